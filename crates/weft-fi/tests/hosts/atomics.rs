//! Atomic operations: every operation on every type in every form, refusals, reports, order, and atomicity
//! under every mix of operations (fi_atomic(3)).

pub(crate) mod calls;
mod mixes;
mod refusals;
mod reports;

use std::ptr::null_mut;

use weft_engine::amo::{Amo, Form, Op, Type};
use weft_engine::mem::Iov;
use weft_fi_sys::v2::{FI_DIFF, FI_FLOAT8_E5M2, FI_FLOAT16};
use weft_fi_sys::*;

use crate::atomics::calls::{Args, FORMS, Way, ways};
use crate::client::{Lib, close};
use crate::side::{Side, err, is_all, memory, pair, pattern, scenes, until, works};

const KEY: u64 = 1 << 63 | 0x41;
const READABLE: u64 = 0x42;
const WRITABLE: u64 = 0x43;
const CONTEXT: usize = 0xa7;
/// The length at the target of the longest operation.
const LONGEST_BYTES: usize = 1 << 20;

/// Whether an API version has an operation, by the words of fi_atomic(3) and not by the provider's table.
fn is_valid(api: u32, form: Form, ty: u32, op: u32) -> bool {
    let since = |new: bool, version: u32| !new || api >= version;
    let known = ty <= FI_FLOAT8_E5M2
        && op <= FI_DIFF
        && since(matches!(ty, FI_INT128 | FI_UINT128), version(1, 13))
        && since(ty >= FI_FLOAT16, version(2, 1))
        && since(op == FI_DIFF, version(2, 1));
    let complex = matches!(ty, FI_FLOAT_COMPLEX | FI_DOUBLE_COMPLEX | FI_LONG_DOUBLE_COMPLEX);
    let integer = ty <= FI_UINT64 || matches!(ty, FI_INT128 | FI_UINT128);
    let on_it = match op {
        FI_MIN | FI_MAX | FI_CSWAP_LE | FI_CSWAP_LT | FI_CSWAP_GE | FI_CSWAP_GT => !complex,
        FI_BOR | FI_BAND | FI_BXOR | FI_MSWAP => integer,
        _ => true,
    };
    let compares = (FI_CSWAP..=FI_MSWAP).contains(&op);
    known
        && on_it
        && match form {
            Form::Base => !compares && op != FI_ATOMIC_READ,
            Form::Fetch => !compares,
            Form::Compare => compares,
        }
}

/// All operations of this host's newest API version.
fn all_of(lib: &Lib) -> Vec<Amo> {
    let mut out = Vec::new();
    for ty in 0..=FI_FLOAT8_E5M2 {
        for op in 0..=FI_DIFF {
            for form in FORMS {
                if is_valid(lib.newest(), form, ty, op) {
                    let (ty, op) = (Type::from_number(ty).unwrap(), Op::from_number(op).unwrap());
                    out.push(Amo::new(form, ty, op).unwrap_or_else(|| panic!("{form:?} {ty:?} {op:?} must exist")));
                }
            }
        }
    }
    assert!(out.len() > 300);
    out
}

/// All scenes.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("queries", queries),
            ("known_values", known_values),
            ("every_operation", every_operation),
            ("counts", counts),
            ("misuse", refusals::misuse),
            ("refused", refusals::refused),
            ("reports", reports::reports),
            ("quiet", reports::quiet),
            ("no_data", reports::no_data),
            ("in_order", mixes::in_order),
            ("asleep", mixes::asleep),
            ("every_mix", mixes::every_mix),
        ],
    );
}

// ---- queries ---------------------------------------------------------------------------------

fn valid(ep: *mut fid_ep, form: Form, ty: u32, op: u32, count: *mut usize) -> i32 {
    unsafe {
        let t = &*(*ep).atomic;
        let call = match form {
            Form::Base => t.writevalid,
            Form::Fetch => t.readwritevalid,
            Form::Compare => t.compwritevalid,
        };
        call.unwrap()(ep, ty, op, count)
    }
}

/// The queries of all types and operations, existing or not, for old and new clients.
fn queries(lib: &Lib) {
    for api in lib.versions() {
        let info = lib.ask(api, None).unwrap();
        let side = Side::opened(lib, 0, info);
        let query = unsafe { (*(*side.opened.domain).ops).query_atomic.unwrap() };
        for ty in (0..24).chain([255, FI_VOID, FI_VOID + 1, u32::MAX]) {
            for op in (0..24).chain([255, FI_NOOP, u32::MAX]) {
                for (form, flag) in FORMS.into_iter().zip([0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC]) {
                    let what = format!("API {api:#x}: {form:?}, type {ty}, operation {op}");
                    let size = Type::from_number(ty).map_or(0, Type::size);
                    let good = is_valid(api, form, ty, op);
                    let (expected, count) = if good { (0, LONGEST_BYTES / size) } else { (-FI_EOPNOTSUPP, 0) };
                    let mut told = 77;
                    assert_eq!(valid(side.ep, form, ty, op, &mut told), expected, "{what}");
                    assert_eq!(told, count, "{what}");
                    let mut attr = fi_atomic_attr { count: 77, size: 77 };
                    assert_eq!(unsafe { query(side.opened.domain, ty, op, &mut attr, flag) }, expected, "{what}");
                    assert_eq!((attr.count, attr.size), if good { (count, size) } else { (0, 0) }, "{what}");
                }
            }
        }
        assert_eq!(valid(side.ep, Form::Base, FI_INT8, FI_SUM, null_mut()), 0, "a client may not request the count");
        let mut attr = fi_atomic_attr { count: 0, size: 0 };
        for (flags, expected) in [
            (FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC, -(FI_EBADFLAGS as i32)),
            (1, -(FI_EBADFLAGS as i32)),
            (FI_TAGGED, -FI_EOPNOTSUPP),
            (FI_TAGGED | FI_FETCH_ATOMIC, -FI_EOPNOTSUPP),
        ] {
            assert_eq!(unsafe { query(side.opened.domain, FI_UINT64, FI_SUM, &mut attr, flags) }, expected);
        }
        assert_eq!(unsafe { query(side.opened.domain, FI_UINT64, FI_SUM, null_mut(), 0) }, -FI_EINVAL);
    }
    // Capabilities do not limit the operations that an endpoint starts. Datagrams have no atomics.
    for (ty, caps, answer) in [(FI_EP_RDM, FI_MSG, FI_EINVAL), (FI_EP_DGRAM, FI_MSG, FI_ENOSYS)] {
        let side = Side::with(lib, 0, |hints| (hints.ep().type_, hints.get().caps) = (ty, caps));
        let known = if ty == FI_EP_DGRAM { -FI_ENOSYS } else { 0 };
        assert_eq!(valid(side.ep, Form::Base, FI_INT8, FI_SUM, null_mut()), known);
        let one = memory(8);
        let amo = Amo::new(Form::Base, Type::Uint64, Op::Sum).unwrap();
        // No peer is at address 0.
        assert_eq!(Args { buf: one.as_mut_ptr(), ..Args::new(amo, 1, 0) }.run(side.ep, Way::Plain), err(answer));
    }
}

// ---- results ---------------------------------------------------------------------------------

/// Some cases with constant results, by libfabric's numbers.
fn known_values(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let target = memory(64);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    let i16s = |n: i16| n.to_ne_bytes().to_vec();
    let f64s = |n: f64| n.to_ne_bytes().to_vec();
    let c32s = |re: f32, im: f32| [re.to_ne_bytes(), im.to_ne_bytes()].concat();
    // A long double can hold 2^63 + 1, a double cannot.
    let long = |low: u64, high: u16| (u128::from(high) << 64 | u128::from(low)).to_ne_bytes().to_vec();
    let cases = [
        (FI_INT16, FI_SUM, i16s(-3), i16s(5), vec![], i16s(2)),
        (FI_INT16, FI_MIN, i16s(3), i16s(-5), vec![], i16s(-5)),
        (FI_UINT16, FI_MIN, i16s(3), i16s(-5), vec![], i16s(3)),
        (FI_INT16, FI_MAX, i16s(3), i16s(-5), vec![], i16s(3)),
        (FI_INT16, FI_LXOR, i16s(3), i16s(4), vec![], i16s(0)),
        (FI_INT16, FI_BAND, i16s(6), i16s(12), vec![], i16s(4)),
        (FI_INT16, FI_ATOMIC_WRITE, i16s(6), i16s(12), vec![], i16s(12)),
        (FI_INT16, FI_MSWAP, i16s(0x1234), i16s(0x5678), i16s(0x0ff0), i16s(0x1674)),
        (FI_INT16, FI_CSWAP_LT, i16s(5), i16s(9), i16s(4), i16s(9)),
        (FI_INT16, FI_CSWAP_GT, i16s(5), i16s(9), i16s(4), i16s(5)),
        (FI_DOUBLE, FI_PROD, f64s(2.5), f64s(-4.0), vec![], f64s(-10.0)),
        (FI_FLOAT_COMPLEX, FI_PROD, c32s(1.0, 2.0), c32s(3.0, -1.0), vec![], c32s(5.0, 5.0)),
        (FI_LONG_DOUBLE, FI_SUM, long(1 << 63, 16446), long(1 << 63, 16383), vec![], long(1 << 63 | 1, 16446)),
    ];
    for (ty, op, old, operand, compare, new) in cases {
        let form = if compare.is_empty() { Form::Fetch } else { Form::Compare };
        let amo = Amo::new(form, Type::from_number(ty).unwrap(), Op::from_number(op).unwrap()).unwrap();
        target[..old.len()].copy_from_slice(&old);
        let (mut operand, mut compare, result) = (operand, compare, memory(16));
        let args = Args {
            buf: operand.as_mut_ptr(),
            compare: compare.as_mut_ptr(),
            result: result.as_mut_ptr(),
            ..Args::new(amo, 1, to_b)
        };
        assert_eq!(args.run(a.ep, Way::Plain), 0);
        a.next(&[&b]).done();
        assert_eq!(result[..old.len()], old, "type {ty}, operation {op}: the fetched value");
        assert_eq!(target[..new.len()], new, "type {ty}, operation {op}");
    }
    assert_eq!(close(mr), 0);
}

/// Numbers of any type on which operations have an effect. The bytes of small integers are no useful floats,
/// so floats are halves of their range and the like. None is a NaN, whose bits are not specified.
fn numbers(ty: Type, count: usize, seed: usize) -> Vec<u8> {
    let part = |n: usize| -> Vec<u8> {
        let small = i8::try_from(n * 7 % 11).unwrap() - 5;
        match ty {
            Type::Float | Type::FloatComplex => f32::from(small).to_ne_bytes().to_vec(),
            Type::Double | Type::DoubleComplex => f64::from(small).to_ne_bytes().to_vec(),
            Type::LongDouble | Type::LongDoubleComplex => {
                // 1.5 times a power of two, or the negative.
                let exponent = 16383_u128 + (n as u128 % 5);
                (u128::from(small < 0) << 79 | exponent << 64 | 3 << 62).to_ne_bytes().to_vec()
            }
            Type::Float16 | Type::Bfloat16 => (0x3c00 + n as u16 % 7).to_ne_bytes().to_vec(),
            Type::Float8E4m3 | Type::Float8E5m2 => vec![0x30 + n as u8 % 9],
            _ => (0..ty.size()).map(|byte| (n * 29 + byte * 53) as u8).collect(),
        }
    };
    let mut out = Vec::new();
    let mut n = seed;
    while out.len() < count * ty.size() {
        out.extend(part(n));
        n += 1;
    }
    out
}

/// Every operation on every type in every way, aligned and unaligned, in one piece and in two. No other byte
/// changes.
fn every_operation(lib: &Lib) {
    const COUNT: usize = 3;
    let (a, b, to_b, _) = pair(lib);
    // A region of pieces. The first piece ends inside a number.
    let whole = memory(512);
    let mr = b.register_pieces(whole, 4, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    for (n, amo) in all_of(lib).into_iter().enumerate() {
        let size = amo.ty().size();
        for (w, way) in ways(amo.form()).iter().enumerate() {
            let what = format!("{amo:?} {way:?}");
            // In turn at a multiple of 64, unaligned, and across the end of a piece.
            let at = [64, 65, 128 - size - size / 2][(n + w) % 3];
            let len = COUNT * size;
            let old = numbers(amo.ty(), COUNT, n);
            let compare = if n.is_multiple_of(2) { old.clone() } else { numbers(amo.ty(), COUNT, n + 1) };
            let mut expected = vec![0x11; 512];
            expected[at..at + len].copy_from_slice(&old);
            whole.copy_from_slice(&expected);
            let sources = [numbers(amo.ty(), COUNT, n + 2), compare].concat();
            let there = unsafe { Iov::new(expected[at..at + len].as_mut_ptr(), len) };
            amo.execute(&[there], &sources, None);
            let (local, result) = (memory(2 * len), memory(len + 8));
            local.copy_from_slice(&sources);
            result.fill(0x22);
            let cut = if matches!(way, Way::Vector | Way::Message) && n % 3 == 1 { 1 } else { 0 };
            let args = Args {
                cut,
                buf: if amo.op() == Op::Read { null_mut() } else { local.as_mut_ptr() },
                compare: local[len..].as_mut_ptr(),
                result: result.as_mut_ptr(),
                addr: at as u64,
                ..Args::new(amo, COUNT, to_b)
            };
            until(|| {
                let posted = args.run(a.ep, *way);
                assert!(posted == 0 || posted == err(FI_EAGAIN), "{what}: {posted}");
                b.progress();
                (posted == 0).then_some(())
            });
            if *way == Way::Inject {
                local.fill(0x33);
                // The next message shows that the operation has ended.
                works(&a, &b, to_b);
            } else {
                let entry = a.next(&[&b]).done();
                let class = if amo.fetches() { FI_READ } else { FI_WRITE };
                assert_eq!((entry.op_context as usize, entry.flags), (CONTEXT, FI_ATOMIC | class), "{what}");
                assert_eq!(local[..], sources, "{what}: the sources");
            }
            assert!(
                whole[..] == expected,
                "{what} at {at}: {:x?}, not {:x?}",
                &whole[at..at + len],
                &expected[at..at + len]
            );
            if amo.fetches() {
                assert_eq!(result[..len], old, "{what}: the fetched numbers");
            }
            assert!(is_all(&result[if amo.fetches() { len } else { 0 }..], 0x22), "{what}: beyond the result");
        }
    }
    a.nothing(&[&b]);
    b.nothing(&[&a]);
    assert_eq!(close(mr), 0);
}

/// The numbers of elements from one to the maximum of the queries. More elements are refused.
fn counts(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let target = memory(LONGEST_BYTES + 64);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    let (local, result) = (pattern(2 * LONGEST_BYTES + 64), memory(LONGEST_BYTES + 64));
    for (form, ty, op) in [
        (Form::Base, Type::Uint64, Op::Sum),
        (Form::Fetch, Type::Uint8, Op::Bxor),
        (Form::Fetch, Type::LongDoubleComplex, Op::Read),
        (Form::Compare, Type::Int32, Op::CswapNe),
    ] {
        let amo = Amo::new(form, ty, op).unwrap();
        let mut most = 0;
        assert_eq!(valid(a.ep, form, ty as u32, op as u32, &mut most), 0);
        assert_eq!(most * ty.size(), LONGEST_BYTES);
        for count in [1, 2, 255, 256, 257, 5000, most] {
            let len = count * ty.size();
            if len > LONGEST_BYTES {
                continue;
            }
            let old = pattern(LONGEST_BYTES + 64);
            target.copy_from_slice(old);
            let mut expected = target.to_vec();
            let sources = [&local[..len], &local[LONGEST_BYTES..LONGEST_BYTES + len]].concat();
            amo.execute(&[unsafe { Iov::new(expected.as_mut_ptr(), len) }], &sources, None);
            result.fill(0);
            let args = Args {
                buf: local.as_mut_ptr(),
                compare: local[LONGEST_BYTES..].as_mut_ptr(),
                result: result.as_mut_ptr(),
                ..Args::new(amo, count, to_b)
            };
            assert_eq!(args.run(a.ep, Way::Plain), 0, "{amo:?} {count}");
            a.next(&[&b]).done();
            assert!(target[..] == expected, "{amo:?} {count}");
            assert!(!amo.fetches() || (result[..len] == old[..len] && is_all(&result[len..], 0)), "{amo:?} {count}");
        }
        let mut args = |count| Args {
            buf: local.as_mut_ptr(),
            compare: local.as_mut_ptr(),
            result: result.as_mut_ptr(),
            ..Args::new(amo, count, to_b)
        };
        for way in ways(form) {
            assert_eq!(args(most + 1).run(a.ep, *way), err(FI_EMSGSIZE), "{amo:?} {way:?}");
            assert_eq!(args(usize::MAX / 2).run(a.ep, *way), err(FI_EMSGSIZE), "{amo:?} {way:?}");
            assert_eq!(args(0).run(a.ep, *way), err(FI_EINVAL), "{amo:?} {way:?}");
        }
    }
    // Injects have the same limits.
    let amo = Amo::new(Form::Base, Type::Uint8, Op::Sum).unwrap();
    let limit = a.info.tx().inject_size;
    let mut args = |count, flags| Args { buf: local.as_mut_ptr(), flags, ..Args::new(amo, count, to_b) };
    for (count, expected) in [(limit + 1, err(FI_EMSGSIZE)), (limit, 0)] {
        assert_eq!(args(count, 0).run(a.ep, Way::Inject), expected, "inject {count}");
        assert_eq!(args(count, FI_INJECT).run(a.ep, Way::Message), expected, "FI_INJECT {count}");
    }
    a.next(&[&b]).done();
    works(&a, &b, to_b);
    assert_eq!(close(mr), 0);
}
