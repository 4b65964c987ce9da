//! Order and atomicity of the operations of one initiator, of several initiators, and of the client itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_engine::amo::{Amo, Form, Op, Type};
use weft_fi_sys::*;

use super::KEY;
use super::calls::{Args, Way};
use crate::client::{Lib, close};
use crate::side::{Side, introduce, memory, pair, until};

/// Writes, atomics and reads of one initiator take effect in the order of their start, including long
/// atomics.
pub(crate) fn in_order(lib: &Lib) {
    use crate::side::Args as Plain;
    let (a, b, to_b, _) = pair(lib);
    let target = memory(80_000);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    let add = Amo::new(Form::Fetch, Type::Uint64, Op::Sum).unwrap();
    let long = Amo::new(Form::Base, Type::Uint64, Op::Sum).unwrap();
    let write = Amo::new(Form::Base, Type::Uint64, Op::Write).unwrap();
    let one: &mut [u8] = 1_u64.to_ne_bytes().repeat(10_000).leak();
    let hundred: &mut [u8] = 100_u64.to_ne_bytes().to_vec().leak();
    let (mut old, mut got) = (0, Vec::new());
    for round in 0..20 {
        let result = memory(16);
        let (fetched, read) = result.split_at_mut(8);
        let at = |amo, buf: &mut [u8]| Args { buf: buf.as_mut_ptr(), ..Args::new(amo, 1, to_b) };
        let post = |args: Args| args.start(&a, Way::Plain, &b);
        // A long operation on all numbers, which is sent in parts, then short ones on the first and the last
        // number.
        post(Args { count: 10_000, ..at(long, one) });
        post(Args { addr: 79_992, result: fetched.as_mut_ptr(), ..at(add, one) });
        a.start("fi_write", &Plain { key: KEY, ..Plain::new(hundred, to_b) }, &[&b]);
        post(at(long, one));
        a.start("fi_read", &Plain { key: KEY, ..Plain::new(read, to_b) }, &[&b]);
        post(at(write, hundred));
        for _ in 0..6 {
            a.next(&[&b]).done();
        }
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        old += 1;
        assert_eq!((number(fetched), number(read)), (old, 101), "round {round}");
        got.push(number(&target[..8]));
        old += 1;
    }
    assert!(got.iter().all(|n| *n == 100), "{got:?}");
    assert_eq!(close(mr), 0);
}

/// With automatic progress the target answers although no thread polls there.
pub(crate) fn asleep(lib: &Lib) {
    let b = Side::with(lib, 0, |hints| {
        hints.domain().data_progress = FI_PROGRESS_AUTO;
        hints.domain().control_progress = FI_PROGRESS_AUTO;
    });
    let (a, b, to_b, _) = introduce(Side::new(lib), b);
    let target = memory(8);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    let add = Amo::new(Form::Fetch, Type::Uint64, Op::Sum).unwrap();
    let (one, result) = (1_u64.to_ne_bytes().to_vec().leak(), memory(8));
    for n in 0..30_u64 {
        if n.is_multiple_of(10) {
            // The target's progress thread sleeps by then.
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        let args = Args { buf: one.as_mut_ptr(), result: result.as_mut_ptr(), ..Args::new(add, 1, to_b) };
        until(|| {
            let posted = args.run(a.ep, Way::Plain);
            a.progress();
            (posted == 0).then_some(())
        });
        a.next(&[]).done();
        assert_eq!(result[..], n.to_ne_bytes());
    }
    assert_eq!(close(mr), 0);
}

/// The bytes of a positive number of this type.
fn number(ty: Type, value: u64) -> Vec<u8> {
    let mut bytes = vec![0; ty.size()];
    match ty {
        Type::Double => bytes.copy_from_slice(&(value as f64).to_ne_bytes()),
        Type::LongDoubleComplex => {
            let exponent = 63 - value.leading_zeros();
            let bits = u128::from(16383 + exponent) << 64 | u128::from(value << value.leading_zeros());
            bytes[..16].copy_from_slice(&bits.to_ne_bytes());
        }
        _ => bytes[..8].copy_from_slice(&value.to_ne_bytes()),
    }
    bytes
}

/// Two targets in one process share memory. Each has an initiator and a thread of its own, and the client uses its own
/// atomics. No addition is lost, whatever the place of the number.
pub(crate) fn every_mix(lib: &Lib) {
    const ROUNDS: usize = 400;
    let shared = memory(256);
    let skip = shared.as_ptr().align_offset(64);
    let start = shared[skip..].as_mut_ptr() as usize;
    // The offset of each number from a multiple of 64.
    let places = [
        (0, Type::Uint64),
        (17, Type::Uint64),
        (32, Type::Int128),
        (57, Type::Int128),
        (80, Type::Double),
        (96, Type::LongDoubleComplex),
    ];
    let stop = AtomicBool::new(false);
    let own = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            // The client's own additions, on the first number, which is aligned.
            let number = unsafe { AtomicU64::from_ptr(start as *mut u64) };
            let mut added = 0;
            while !stop.load(Ordering::Relaxed) {
                number.fetch_add(1, Ordering::Relaxed);
                added += 1;
            }
            added
        });
        let work = || {
            let (a, b, to_b, _) = pair(lib);
            let memory_here = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, 128) };
            let mr = b.register(memory_here, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
            let result = memory(32);
            for round in 0..ROUNDS {
                for (at, ty) in places {
                    let form = if round.is_multiple_of(2) { Form::Fetch } else { Form::Base };
                    let amo = Amo::new(form, ty, Op::Sum).unwrap();
                    let mut one = number(ty, 1);
                    let args = Args {
                        buf: one.as_mut_ptr(),
                        result: result.as_mut_ptr(),
                        addr: at,
                        ..Args::new(amo, 1, to_b)
                    };
                    until(|| {
                        let posted = args.run(a.ep, Way::Plain);
                        b.progress();
                        (posted == 0).then_some(())
                    });
                    a.next(&[&b]).done();
                }
            }
            assert_eq!(close(mr), 0);
        };
        let workers = [scope.spawn(work), scope.spawn(work)];
        for worker in workers {
            worker.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        client.join().unwrap()
    });
    for (at, ty) in places {
        let sum = 2 * ROUNDS as u64 + if at == 0 { own } else { 0 };
        let at = skip + usize::try_from(at).unwrap();
        assert_eq!(shared[at..at + ty.size()], number(ty, sum), "{ty:?} at {at}");
    }
}
