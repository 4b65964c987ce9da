//! Refused atomic operations. Contradictory calls are refused at once, others by the target.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use weft_engine::amo::{Amo, Form, Op, Type};
use weft_fi_sys::*;

use super::calls::{Args, FORMS, Way, ways};
use super::{CONTEXT, KEY, READABLE, WRITABLE};
use crate::client::{Lib, close};
use crate::side::{Side, err, is_all, memory, pair, pattern, works};

/// Contradictory calls return an error at once and have no effect.
pub(crate) fn misuse(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let target = memory(64);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    let (local, result) = (pattern(64), memory(64));
    for form in FORMS {
        let op = if form == Form::Compare { Op::Cswap } else { Op::Sum };
        let amo = Amo::new(form, Type::Int32, op).unwrap();
        let good = Args {
            buf: local.as_mut_ptr(),
            compare: local.as_mut_ptr(),
            result: result.as_mut_ptr(),
            ..Args::new(amo, 4, to_b)
        };
        for way in ways(form) {
            let refused = |args: Args, error: i32, what: &str| {
                assert_eq!(args.run(a.ep, *way), err(error), "{form:?} {way:?}: {what}");
            };
            refused(Args { buf: null_mut(), ..good }, FI_EINVAL, "no operands");
            if form == Form::Compare {
                refused(Args { compare: null_mut(), ..good }, FI_EINVAL, "nothing to compare with");
            }
            if form != Form::Base {
                refused(Args { result: null_mut(), ..good }, FI_EINVAL, "no place for results");
            }
            for (ty, op) in [
                (FI_VOID, FI_SUM),
                (FI_INT32, FI_NOOP),
                (40, FI_SUM),
                (FI_INT32, 40),
                (FI_INT32, if form == Form::Compare { FI_SUM } else { FI_CSWAP }),
                (FI_DOUBLE, if form == Form::Compare { FI_MSWAP } else { FI_BOR }),
                (FI_FLOAT_COMPLEX, if form == Form::Compare { FI_CSWAP_LE } else { FI_MAX }),
            ] {
                refused(Args { ty, op, ..good }, FI_EOPNOTSUPP, "no such operation");
            }
            if form == Form::Base {
                refused(Args { op: FI_ATOMIC_READ, ..good }, FI_EOPNOTSUPP, "a read that fetches nothing");
            }
            refused(Args { dest: 99, ..good }, FI_EINVAL, "no such address");
            if *way == Way::Message {
                refused(Args { flags: FI_TAGGED, ..good }, FI_EOPNOTSUPP, "a tagged target");
                refused(Args { flags: FI_COMMIT_COMPLETE, ..good }, FI_EOPNOTSUPP, "no persistent memory");
                refused(Args { flags: FI_MULTI_RECV, ..good }, FI_EINVAL, "a flag of receives");
            }
        }
    }
    bad_messages(&a, to_b, local, result);
    a.nothing(&[&b]);
    assert!(is_all(target, 0) && is_all(result, 0));
    works(&a, &b, to_b);
    assert_eq!(close(mr), 0);
}

/// Null message descriptors, and bad vectors in descriptors.
fn bad_messages(a: &Side<'_>, to_b: u64, local: &mut [u8], result: &mut [u8]) {
    let cswap = Amo::new(Form::Compare, Type::Int32, Op::Cswap).unwrap();
    let t = unsafe { &*(*a.ep).atomic };
    let args = Args {
        buf: local.as_mut_ptr(),
        compare: local.as_mut_ptr(),
        result: result.as_mut_ptr(),
        ..Args::new(cswap, 4, to_b)
    };
    let (ioc, descs) = (args.ioc(args.buf), null_mut::<*mut c_void>());
    let mut results = args.ioc(args.result);
    let results = results.as_mut_ptr();
    unsafe {
        assert_eq!(t.writemsg.unwrap()(a.ep, null(), 0), err(FI_EINVAL));
        assert_eq!(t.readwritemsg.unwrap()(a.ep, null(), results, descs, 1, 0), err(FI_EINVAL));
        assert_eq!(t.compwritemsg.unwrap()(a.ep, null(), ioc.as_ptr(), descs, 1, results, descs, 1, 0), err(FI_EINVAL));
    }
    // A null vector, one with too many pieces, an empty one, and one of another length than the target.
    let many = [ioc[0]; 9];
    let sum = Amo::new(Form::Base, Type::Int32, Op::Sum).unwrap();
    let base = Args { ..Args::new(sum, 4, to_b) };
    for (iov, count) in [(null(), 1), (many.as_ptr(), 9), (null(), 0), (many.as_ptr(), 2)] {
        let remote = base.remote();
        base.with_msg(|msg| {
            let msg = fi_msg_atomic { msg_iov: iov, iov_count: count, rma_iov: remote.as_ptr(), ..*msg };
            assert_eq!(unsafe { t.writemsg.unwrap()(a.ep, &msg, 0) }, err(FI_EINVAL), "{count}");
        });
    }
    let many = [args.remote()[0]; 9];
    for (remote, count) in [(null(), 1), (many.as_ptr(), 9), (many.as_ptr(), 0), (many.as_ptr(), 2)] {
        Args { buf: local.as_mut_ptr(), ..base }.with_msg(|msg| {
            let msg = fi_msg_atomic { rma_iov: remote, rma_iov_count: count, ..*msg };
            assert_eq!(unsafe { t.writemsg.unwrap()(a.ep, &msg, 0) }, err(FI_EINVAL), "{count}");
        });
    }
}

/// The target refuses an access: one error completion, no read or written byte, and an unaffected connection.
pub(crate) fn refused(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let (readable, writable) = (pattern(4096), memory(4096));
    let regions = [b.register(readable, FI_REMOTE_READ, READABLE), b.register(writable, FI_REMOTE_WRITE, WRITABLE)];
    let (local, result) = (pattern(8192), memory(8192));
    let amo = |form, op| Amo::new(form, Type::Uint32, op).unwrap();
    let end = 4096;
    // Keys and addresses, with the error for each.
    let wrong_key = [KEY, u64::MAX, 0].map(|key| (key, 0, FI_EKEYREJECTED));
    let outside = [end - 4, end, 1 << 62, u64::MAX - 7, u64::MAX - 3].map(|addr| (0, addr, FI_EACCES));
    for (amo, good, bad) in [
        (amo(Form::Base, Op::Sum), WRITABLE, READABLE),
        (amo(Form::Base, Op::Write), WRITABLE, READABLE),
        (amo(Form::Fetch, Op::Read), READABLE, WRITABLE),
        (amo(Form::Fetch, Op::Sum), 0, READABLE),
        (amo(Form::Fetch, Op::Sum), 0, WRITABLE),
        (amo(Form::Compare, Op::Cswap), 0, READABLE),
        (amo(Form::Compare, Op::Mswap), 0, WRITABLE),
    ] {
        let outside = outside.iter().filter(|_| good != 0).map(|&(_, addr, error)| (good, addr, error));
        for (key, addr, error) in wrong_key.into_iter().chain([(bad, 0, FI_EKEYREJECTED)]).chain(outside) {
            for way in ways(amo.form()) {
                // A short operation, and one in several parts.
                for count in [2, 1100] {
                    if *way == Way::Inject && count * 4 > a.info.tx().inject_size {
                        continue;
                    }
                    let what = format!("{amo:?} {way:?} {count} at {addr:#x} of {key:#x}");
                    result.fill(0x5a);
                    let args = Args {
                        buf: local.as_mut_ptr(),
                        compare: local.as_mut_ptr(),
                        result: result.as_mut_ptr(),
                        addr,
                        key,
                        ..Args::new(amo, count, to_b)
                    };
                    args.start(&a, *way, &b);
                    let entry = a.next(&[&b]).failed();
                    assert_eq!(entry.err, error, "{what}");
                    // The failure of an inject has no context.
                    let context = if *way == Way::Inject { 0 } else { CONTEXT };
                    assert_eq!(entry.op_context as usize, context, "{what}");
                    assert!(b.poll().is_none(), "{what}: the target reported the refused operation");
                    assert!(addr == end - 4 || is_all(result, 0x5a), "{what}: the result was written to");
                }
            }
        }
    }
    a.nothing(&[&b]);
    assert!(is_all(writable, 0), "a refused operation has written to the region");
    assert!(readable[..] == *pattern(4096));
    // Accesses up to the last byte are allowed.
    for (amo, key) in [(amo(Form::Fetch, Op::Read), READABLE), (amo(Form::Base, Op::Write), WRITABLE)] {
        let args = Args {
            buf: local.as_mut_ptr(),
            result: result.as_mut_ptr(),
            addr: end - 8,
            key,
            ..Args::new(amo, 2, to_b)
        };
        assert_eq!(args.run(a.ep, Way::Plain), 0);
        a.next(&[&b]).done();
    }
    assert_eq!((&result[..8], &writable[4088..]), (&readable[4088..], &local[..8]));
    works(&a, &b, to_b);
    for region in regions {
        assert_eq!(close(region), 0);
    }
}
