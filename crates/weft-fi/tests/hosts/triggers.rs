//! Operations with FI_TRIGGER: in every form, with their start, their end, and refusals.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::{Lib, bind, close};
use crate::rig::{Cntr, MODELS, Rig, condition, start_on};
use crate::side::{Args, CALLS, Form, Scene, Side, alias, err, fabric_err, memory, pattern, scenes};

const SCENES: &[Scene] = &[
    ("every form", every_form),
    ("by flag and by default", by_flag_and_by_default),
    ("order", order),
    ("cancelled", cancelled),
    ("conditions", conditions),
    ("refused later", refused_later),
    ("a buffer for several", a_buffer_for_several),
];

pub(crate) fn all(lib: &Lib) {
    scenes(lib, SCENES);
}

/// Runs a scene in both progress models.
fn both(lib: &Lib, scene: fn(&Rig<'_>)) {
    for model in MODELS {
        scene(&Rig::new(lib, model));
    }
}

#[track_caller]
fn silence(rig: &Rig<'_>) {
    rig.a.nothing(&[&rig.b]);
    rig.b.nothing(&[&rig.a]);
}

/// Every function except injects. Nothing happens below the threshold. Then the operation runs as usual, and
/// completes with its context.
fn every_form(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let trigger = rig.cntr(a);
        let [transmits, receives] = [FI_TRANSMIT, FI_RECV].map(|direction| alias(a.ep, direction | FI_TRIGGER));
        let (window, mut threshold) = (memory(64), 0);
        let mr = b.register(window, FI_REMOTE_READ | FI_REMOTE_WRITE, 0);
        for call in CALLS.iter().filter(|call| call.form != Form::Inject) {
            threshold += 1;
            let context = std::ptr::from_mut(condition(trigger, threshold));
            let flags = if call.form == Form::Message { FI_TRIGGER } else { 0 };
            let buf = if call.recv || call.name.contains("read") { memory(64) } else { pattern(64) };
            let args = Args { context: context as usize, flags, ..Args::new(buf, rig.to_b) };
            start_on(if call.recv { receives } else { transmits }, call.name, &args, &rig.sides());
            let tagged = call.name.starts_with("fi_t");
            let message = !call.name.contains("write") && !call.name.contains("read");
            let (mine, other) =
                (if tagged { "fi_tsend" } else { "fi_send" }, if tagged { "fi_trecv" } else { "fi_recv" });
            if call.recv {
                b.start(mine, &Args::new(pattern(64), rig.to_a), &[a]);
                b.next(&[a]).done();
            } else if message {
                b.start(other, &Args::new(memory(64), 0), &[a]);
            }
            silence(rig);
            trigger.add(1);
            let entry = a.next(&[b]).done();
            assert_eq!(entry.op_context, context.cast::<c_void>(), "{}", call.name);
            if call.recv {
                assert!(buf == pattern(64), "{}", call.name);
            } else if message || call.name.contains("data") {
                b.next(&[a]).done();
            }
            if call.name.contains("write") {
                assert!(window == pattern(64), "{}", call.name);
                window.fill(0);
            }
            silence(rig);
        }
        // An inject has no context, which would hold its condition.
        for call in CALLS.iter().filter(|call| call.form == Form::Inject) {
            let args = Args::new(memory(8), rig.to_b);
            assert_eq!(unsafe { (call.run)(transmits, &args) }, err(FI_EINVAL), "{}", call.name);
        }
        for object in [transmits, receives] {
            assert_eq!(close(object), 0);
        }
        assert_eq!(close(mr), 0);
    });
}

/// A triggered operation counts at its endpoint as others do. FI_TRIGGER may be a default flag of the
/// endpoint.
fn by_flag_and_by_default(lib: &Lib) {
    for model in MODELS {
        let side = |flags| {
            Side::with(lib, 0, move |hints| {
                hints.get().caps = FI_MSG | FI_TRIGGER;
                hints.tx().op_flags = flags;
                hints.domain().data_progress = model;
            })
        };
        let mut a = side(FI_TRIGGER | FI_COMPLETION);
        let b = side(0);
        let to_b = a.insert(&b.name());
        let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
        let cntr = Cntr(crate::open!(a.opened.domain, cntr_open, &mut attr).unwrap());
        assert_eq!(bind(a.ep, cntr.0, FI_SEND), 0);
        let target = memory(8);
        for threshold in [1, 2] {
            // Each operation is triggered by the one before.
            let context = std::ptr::from_mut(condition(cntr, threshold)) as usize;
            a.start("fi_send", &Args { context, ..Args::new(pattern(8), to_b) }, &[&b]);
            b.start("fi_recv", &Args::new(target, 0), &[&a]);
        }
        cntr.add(1);
        cntr.reaches(3, &[&a, &b]);
        for side in [&a, &b] {
            let other = if std::ptr::eq(side, &a) { &b } else { &a };
            for _ in 0..2 {
                side.next(&[other]).done();
            }
        }
        a.close_ep();
        assert_eq!(close(cntr.0), 0);
    }
}

fn order(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let trigger = rig.cntr(a);
        let thresholds = [3_usize, 1, 2, 3, 1];
        for (n, &threshold) in thresholds.iter().enumerate() {
            let context = std::ptr::from_mut(condition(trigger, threshold)) as usize;
            let args = Args { context, flags: FI_TRIGGER, ..Args::new(vec![n as u8; 4].leak(), rig.to_b) };
            a.start("fi_sendmsg", &args, &[b]);
        }
        let target = memory(4);
        trigger.add(9);
        for n in [1, 4, 2, 0, 3] {
            b.start("fi_recv", &Args::new(target, 0), &[a]);
            b.next(&[a]).done();
            assert_eq!(target[0], n);
        }
        // The threshold is reached already, so the operation starts at once.
        let context = std::ptr::from_mut(condition(trigger, 9)) as usize;
        b.start("fi_recv", &Args::new(target, 0), &[a]);
        a.start("fi_sendmsg", &Args { context, flags: FI_TRIGGER, ..Args::new(pattern(4), rig.to_b) }, &[b]);
        b.next(&[a]).done();
    });
}

/// `fi_cancel` ends waiting operations in either direction, with an entry.
fn cancelled(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let trigger = rig.cntr(a);
        for name in ["fi_sendmsg", "fi_trecvmsg", "fi_writemsg"] {
            let context = std::ptr::from_mut(condition(trigger, 1)) as usize;
            let args = Args { context, flags: FI_TRIGGER, ..Args::new(memory(8), rig.to_b) };
            a.start(name, &args, &[b]);
            assert_eq!(a.cancel(context + 8), -(FI_ENOENT as isize), "{name}: another context");
            assert_eq!(a.cancel(context), 0, "{name}");
            let failed = a.next(&[b]).failed();
            assert_eq!((failed.op_context as usize, failed.err), (context, FI_ECANCELED as c_int), "{name}");
            assert_eq!(a.cancel(context), -(FI_ENOENT as isize), "{name}: the operation has ended");
        }
        trigger.add(1);
        silence(rig);
    });
}

/// Invalid conditions, and operations without a condition, are refused.
fn conditions(lib: &Lib) {
    let rig = Rig::new(lib, FI_PROGRESS_MANUAL);
    let (a, b) = (&rig.a, &rig.b);
    let (trigger, foreign) = (rig.cntr(a), rig.cntr(b));
    let buf = memory(64);
    let run = |name: &str, flags: u64, context: *mut fi_triggered_context| {
        a.run(name, &Args { flags: flags | FI_TRIGGER, context: context as usize, ..Args::new(memory(64), rig.to_b) })
    };
    for name in ["fi_sendmsg", "fi_recvmsg", "fi_tsendmsg", "fi_trecvmsg", "fi_readmsg", "fi_writemsg"] {
        assert_eq!(run(name, 0, null_mut()), err(FI_EINVAL), "{name}");
        for (cntr, errno) in
            [(Cntr(null_mut()), err(FI_EINVAL)), (Cntr(a.cq.cast()), err(FI_EINVAL)), (foreign, fabric_err(FI_EDOMAIN))]
        {
            assert_eq!(run(name, 0, condition(cntr, 1)), errno, "{name}");
        }
        let other = condition(trigger, 1);
        other.event_type = FI_TRIGGER_XPU;
        assert_eq!(run(name, 0, other), err(FI_ENOSYS), "{name}");
        other.event_type = 77;
        assert_eq!(run(name, 0, other), err(FI_EINVAL), "{name}");
    }
    assert_eq!(run("fi_sendmsg", FI_INJECT, condition(trigger, 1)), err(FI_EINVAL));
    assert_eq!(run("fi_writemsg", FI_INJECT, condition(trigger, 1)), err(FI_EINVAL));
    assert_eq!(run("fi_trecvmsg", FI_PEEK, condition(trigger, 1)), err(FI_ENOSYS));
    assert_eq!(run("fi_trecvmsg", FI_CLAIM, condition(trigger, 1)), err(FI_ENOSYS));
    for name in ["fi_sendmsg", "fi_tsendmsg", "fi_readmsg", "fi_writemsg"] {
        let context = std::ptr::from_mut(condition(trigger, 1)) as usize;
        let args = Args { context, flags: FI_TRIGGER, ..Args::new(buf, rig.to_b + 1000) };
        assert_eq!(a.run(name, &args), err(FI_EINVAL), "{name} to no address");
    }
    trigger.add(1);
    silence(&rig);
    // An endpoint without the capability.
    let plain = Side::with(lib, 0, |hints| hints.get().caps = FI_MSG | FI_TAGGED | FI_RMA);
    for name in ["fi_sendmsg", "fi_recvmsg", "fi_writemsg"] {
        let context = std::ptr::from_mut(condition(trigger, 1)) as usize;
        let args = Args { context, flags: FI_TRIGGER, ..Args::new(buf, 0) };
        assert_eq!(plain.run(name, &args), err(FI_EOPNOTSUPP), "{name}");
    }
}

/// An error that shows only when the operation starts is an error entry.
fn refused_later(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let (trigger, sends) = (rig.cntr(a), rig.cntr(a));
        assert_eq!(bind(a.ep, sends.0, FI_SEND), 0);
        let context = std::ptr::from_mut(condition(trigger, 1)) as usize;
        a.start("fi_sendmsg", &Args { context, flags: FI_TRIGGER, ..Args::new(memory(8), rig.to_b) }, &[b]);
        let mut addr = rig.to_b;
        assert_eq!(unsafe { (*(*a.av).ops).remove.unwrap()(a.av, &mut addr, 1, 0) }, 0);
        trigger.add(1);
        let failed = a.next(&[b]).failed();
        assert_eq!((failed.op_context as usize, failed.err), (context, FI_EINVAL));
        assert_eq!((sends.read(), sends.errors()), (0, 1));
        silence(rig);
    });
}

/// A triggered receive may be a multi-receive.
fn a_buffer_for_several(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let trigger = rig.cntr(b);
        let context = std::ptr::from_mut(condition(trigger, 1)) as usize;
        let target = memory(130);
        let args = Args { context, flags: FI_TRIGGER | FI_MULTI_RECV, ..Args::new(target, 0) };
        b.start("fi_recvmsg", &args, &[a]);
        for _ in 0..2 {
            a.start("fi_send", &Args::new(pattern(40), rig.to_b), &[b]);
            a.next(&[b]).done();
        }
        silence(rig);
        trigger.add(1);
        for n in 0..2 {
            let entry = b.next(&[a]).done();
            assert_eq!((entry.op_context as usize, entry.len), (context, 40));
            assert_eq!(entry.flags & FI_MULTI_RECV != 0, n == 1);
        }
        assert!(target[..40] == *pattern(40) && target[40..80] == *pattern(40));
    });
}
