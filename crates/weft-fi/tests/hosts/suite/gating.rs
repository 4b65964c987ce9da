//! Every function on endpoints of every combination of capabilities. An endpoint may start all operations of
//! its type, as with libfabric's tcp, shm and sockets. `access` tests the restrictions for peers.

use weft_engine::amo::{self, Amo, Op, Type};
use weft_fi_sys::*;

use crate::atomics::calls as atomics;
use crate::client::Lib;
use crate::side::{Args, CALLS, Side, err, memory};

use super::table::{Family, How, Operation, operations};

/// The requested capabilities.
const ASKED: &[u64] = &[
    FI_MSG,
    FI_TAGGED,
    FI_RMA,
    FI_ATOMIC,
    FI_MSG | FI_TAGGED,
    FI_MSG | FI_RMA,
    FI_RMA | FI_ATOMIC,
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC,
    FI_MSG | FI_SEND,
    FI_MSG | FI_RECV,
    FI_TAGGED | FI_SEND,
    FI_TAGGED | FI_RECV,
    FI_MSG | FI_TAGGED | FI_SEND | FI_RECV,
    FI_RMA | FI_READ,
    FI_RMA | FI_WRITE,
    FI_RMA | FI_READ | FI_WRITE,
    FI_RMA | FI_REMOTE_READ,
    FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_READ,
    FI_ATOMIC | FI_READ | FI_WRITE,
    FI_ATOMIC | FI_REMOTE_READ | FI_REMOTE_WRITE,
    FI_MSG | FI_SEND | FI_RMA | FI_WRITE,
    FI_TAGGED | FI_RECV | FI_RMA | FI_REMOTE_WRITE,
];

/// Calls a function with an address that does not exist, and returns its result.
fn call(side: &Side<'_>, op: &Operation) -> isize {
    let buf = memory(64);
    match op.how {
        How::Call(call) => unsafe { (call.run)(side.ep, &Args::new(buf, 99)) },
        How::Atomic(way) => {
            let Family::Atomic(form) = op.family else { unreachable!("an atomic") };
            let what = if form == amo::Form::Compare { Op::Cswap } else { Op::Sum };
            let buf = buf.as_mut_ptr();
            let args = atomics::Args::new(Amo::new(form, Type::Uint64, what).unwrap(), 4, 99);
            atomics::Args { buf, compare: buf, result: buf, ..args }.run(side.ep, way)
        }
    }
}

/// Runs all calls and returns their number.
pub(super) fn gating(lib: &Lib) -> usize {
    let mut calls = 0;
    for &caps in ASKED {
        let side = Side::with(lib, 0, |hints| hints.get().caps = caps);
        for op in operations() {
            assert_eq!(call(&side, op), err(FI_EINVAL), "{} with capabilities {caps:#x}", op.name);
            calls += 1;
        }
        for call in CALLS.iter().filter(|call| call.recv) {
            let result = unsafe { (call.run)(side.ep, &Args::new(memory(64), 0)) };
            assert_eq!(result, 0, "{} with capabilities {caps:#x}", call.name);
            calls += 1;
        }
        for (form, valid) in valid_queries(&side) {
            assert_eq!(valid, 0, "{form} with capabilities {caps:#x}");
            calls += 1;
        }
    }
    calls
}

fn valid_queries(side: &Side<'_>) -> [(&'static str, i32); 3] {
    let (ep, mut count) = (side.ep, 0);
    unsafe {
        let ops = &*(*ep).atomic;
        [
            ("fi_atomicvalid", ops.writevalid.unwrap()(ep, FI_UINT64, FI_SUM, &mut count)),
            ("fi_fetch_atomicvalid", ops.readwritevalid.unwrap()(ep, FI_UINT64, FI_SUM, &mut count)),
            ("fi_compare_atomicvalid", ops.compwritevalid.unwrap()(ep, FI_UINT64, FI_CSWAP, &mut count)),
        ]
    }
}
