//! The reports of atomic operations: entries, counters, data.

use weft_engine::amo::{Amo, Form, Op, Type};
use weft_fi_sys::*;

use super::KEY;
use super::calls::{Args, FORMS, Way, ways};
use crate::client::{Lib, bind, close};
use crate::side::{Side, introduce, memory, pair, pattern, works};

fn value(cntr: *mut fid_cntr) -> u64 {
    unsafe { (*(*cntr).ops).read.unwrap()(cntr) }
}

/// Opens a counter for each class and binds it to the object.
fn counters_at<F>(side: &Side<'_>, object: *mut F, classes: [u64; 2]) -> [*mut fid_cntr; 2] {
    classes.map(|class| {
        let cntr = side.opened.cntr();
        assert_eq!(bind(object, cntr, class), 0);
        cntr
    })
}

/// A call of a form, without flags, on `count` numbers of the region at [`KEY`].
fn call_of(form: Form, count: usize, to_b: u64) -> Args {
    let op = if form == Form::Compare { Op::Cswap } else { Op::Sum };
    let amo = Amo::new(form, Type::Uint64, op).unwrap();
    let (local, result) = (pattern(64), memory(64));
    Args {
        buf: local.as_mut_ptr(),
        compare: local.as_mut_ptr(),
        result: result.as_mut_ptr(),
        flags: 0,
        ..Args::new(amo, count, to_b)
    }
}

/// Counters at both ends and at the region, data at the target's queue.
pub(crate) fn reports(lib: &Lib) {
    let (a, b, to_b, to_a) = pair(lib);
    let counters = counters_at(&a, a.ep, [FI_READ, FI_WRITE]);
    let remote = counters_at(&b, b.ep, [FI_REMOTE_READ, FI_REMOTE_WRITE]);
    let target = memory(4096);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    let at_region = counters_at(&b, mr, [FI_REMOTE_READ, FI_REMOTE_WRITE]);
    let (mut fetches, mut bases) = (0, 0);
    for form in FORMS {
        for way in ways(form) {
            for data in [false, true] {
                if data && *way != Way::Message {
                    continue;
                }
                let flags = if data { FI_REMOTE_CQ_DATA } else { 0 };
                Args { flags, ..call_of(form, 4, to_b) }.start(&a, *way, &b);
                if form == Form::Base {
                    bases += 1
                } else {
                    fetches += 1
                }
                if *way != Way::Inject {
                    a.next(&[&b]).done();
                }
                if data {
                    let entry = b.next(&[&a]).done();
                    let class = if form == Form::Base { FI_REMOTE_WRITE } else { FI_REMOTE_READ };
                    assert_eq!(entry.flags, FI_ATOMIC | class | FI_REMOTE_CQ_DATA, "{form:?}");
                    assert_eq!((entry.data, entry.len), (0xda7a, 32), "{form:?}");
                }
                works(&a, &b, to_b);
                assert_eq!(counters.map(value), [fetches, bases], "{form:?} {way:?}");
                assert_eq!(remote.map(value), [fetches, bases], "{form:?} {way:?}, at the target");
                // An operation that changes a region counts there as a write, also if it fetches.
                assert_eq!(at_region.map(value), [fetches, bases + fetches], "{form:?} {way:?}, at the region");
            }
        }
    }
    // An operation that only reads does not count as a write.
    let read = Amo::new(Form::Fetch, Type::Uint64, Op::Read).unwrap();
    let args = Args { result: memory(64).as_mut_ptr(), ..Args::new(read, 4, to_b) };
    assert_eq!(args.run(a.ep, Way::Plain), 0);
    a.next(&[&b]).done();
    fetches += 1;
    works(&a, &b, to_b);
    assert_eq!(at_region.map(value), [fetches, bases + fetches - 1], "an atomic read, at the region");
    // A long operation is sent in parts, and counts once.
    let many = Amo::new(Form::Base, Type::Uint8, Op::Bxor).unwrap();
    let long = memory(60_000);
    let there = b.register(memory(60_000), FI_REMOTE_WRITE, KEY + 1);
    let args =
        Args { buf: long.as_mut_ptr(), key: KEY + 1, flags: FI_REMOTE_CQ_DATA, ..Args::new(many, long.len(), to_b) };
    assert_eq!(args.run(a.ep, Way::Message), 0);
    a.next(&[&b]).done();
    assert_eq!(b.next(&[&a]).done().len, long.len());
    bases += 1;
    assert_eq!((counters.map(value), remote.map(value)), ([fetches, bases], [fetches, bases]), "a long operation");
    assert_eq!(close(there), 0);
    assert!(fetches > 5 && bases > 4);
    works(&b, &a, to_a);
    assert_eq!(close(mr), 0);
    let (mut a, mut b) = (a, b);
    a.close_ep();
    b.close_ep();
    for cntr in counters.into_iter().chain(remote).chain(at_region) {
        assert_eq!(close(cntr), 0);
    }
}

/// Selective completion: an entry on request, and for every error.
pub(crate) fn quiet(lib: &Lib) {
    let b = Side::new(lib);
    let a = Side::unbound(lib, 0, |_| ());
    assert_eq!(bind(a.ep, a.av, 0), 0);
    assert_eq!(bind(a.ep, a.cq, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION), 0);
    assert_eq!(a.enable(), 0);
    let (a, b, to_b, _) = introduce(a, b);
    let target = memory(64);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    for form in FORMS {
        let args = call_of(form, 2, to_b);
        for way in ways(form) {
            args.start(&a, *way, &b);
            a.nothing(&[&b]);
        }
        for flags in [FI_COMPLETION, FI_COMPLETION | FI_DELIVERY_COMPLETE, FI_COMPLETION | FI_FENCE | FI_INJECT] {
            assert_eq!(Args { flags, ..args }.run(a.ep, Way::Message), 0);
            a.next(&[&b]).done();
        }
        assert_eq!(Args { key: 5, ..args }.run(a.ep, Way::Message), 0);
        assert_eq!(a.next(&[&b]).failed().err, FI_EKEYREJECTED);
    }
    assert_eq!(close(mr), 0);
}

/// Data is sent only by calls that have a data argument, whatever the endpoint's default flags are.
pub(crate) fn no_data(lib: &Lib) {
    let a = Side::with(lib, 0, |hints| hints.tx().op_flags = FI_REMOTE_CQ_DATA);
    let (a, b, to_b, _) = introduce(a, Side::new(lib));
    let target = memory(64);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    for form in FORMS {
        let args = call_of(form, 2, to_b);
        for way in ways(form) {
            args.start(&a, *way, &b);
            if *way != Way::Inject {
                a.next(&[&b]).done();
            }
            b.nothing(&[&a]);
        }
    }
    assert_eq!(close(mr), 0);
}
