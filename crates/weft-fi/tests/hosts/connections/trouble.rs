//! Connections that fail: callers, listeners and peers that leave, and strangers.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use super::ends::{End, Event, Listener, Queue, await_connection, connected};
use crate::client::Lib;
use crate::side::{Args, Side, err, memory, pattern, scenes, until};

/// The time within which the death of a peer must be noticed.
const NOTICE: Duration = Duration::from_secs(1);
/// The lifetime of a caller that is not killed.
const LIFE: Duration = Duration::from_secs(30);

pub(super) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("absent listeners", absent_listeners),
            ("departing callers", departing_callers),
            ("departing listeners", departing_listeners),
        ],
    );
    scenes(lib, &[("strangers", strangers), ("wrong handles", wrong_handles), ("death", death)]);
}

#[track_caller]
fn fails(end: &End<'_>, others: &[Queue]) {
    let event = end.eq.next(others);
    assert!(matches!(event, Event::Failed { ep, err: FI_ECONNREFUSED, .. } if ep == end.fid()), "{event:?}");
    assert_eq!(end.side.run("fi_send", &Args::new(memory(8), 0)), err(FI_ENOTCONN));
    assert_eq!(end.shutdown(), -FI_ENOTCONN);
}

/// No endpoint is at the address, or one that does not listen.
fn absent_listeners(lib: &Lib) {
    let gone = {
        let listener = Listener::new(lib);
        listener.name()
    };
    let a = End::new(lib);
    assert_eq!(a.connect(&gone, &[]), 0);
    fails(&a, &[]);
    let rdm = Side::new(lib);
    let (b, c) = (End::new(lib), End::new(lib));
    assert_eq!(b.connect(&rdm.name(), &[]), 0);
    until(|| {
        rdm.progress();
        b.eq.progress();
        (b.eq.0 as usize != 0 && b.side.run("fi_send", &Args::new(memory(8), 0)) == err(FI_ENOTCONN)).then_some(())
    });
    let event = until(|| {
        rdm.progress();
        b.eq.poll()
    });
    assert!(matches!(event, Event::Failed { err: FI_ECONNREFUSED, .. }), "{event:?}");
    // An active endpoint does not listen, not even to itself.
    assert_eq!(c.side.enable(), 0);
    let d = End::new(lib);
    assert_eq!(d.connect(&c.side.name(), &[]), 0);
    fails(&d, &[c.eq]);
    assert_eq!(c.connect(&c.side.name(), &[]), 0);
    fails(&c, &[]);
}

/// The caller closes before it is answered, while it is answered, or after the answer.
fn departing_callers(lib: &Lib) {
    let listener = Listener::new(lib);
    for accept in [true, false] {
        let mut a = End::new(lib);
        assert_eq!(a.connect(&listener.name(), &[]), 0);
        let (info, _) = listener.called(&a);
        a.side.close_ep();
        if accept {
            let b = End::answering(lib, info);
            assert_eq!(b.accept(&[]), 0);
            fails(&b, &[listener.eq]);
        } else {
            listener.eq.nothing(&[]);
            assert_eq!(listener.reject(unsafe { (*info).handle }, b"too late"), 0, "the caller has left");
            drop(lib.own(info));
        }
    }
    let mut a = End::new(lib);
    assert_eq!(a.connect(&listener.name(), &[]), 0);
    let (info, _) = listener.called(&a);
    let b = End::answering(lib, info);
    assert_eq!(b.accept(&[]), 0);
    a.side.close_ep();
    let event = b.eq.next(&[listener.eq]);
    assert!(matches!(event, Event::Failed { err: FI_ECONNREFUSED | FI_ECONNRESET, .. }), "{event:?}");
    // A caller that closes before the listener sees its request.
    let mut c = End::new(lib);
    assert_eq!(c.connect(&listener.name(), &[]), 0);
    c.side.close_ep();
    let (d, e) = connected(&listener);
    drop((d, e));
    while let Some(Event::Request { info, .. }) = listener.eq.poll() {
        drop(lib.own(info));
    }
}

/// The listener closes with pending requests, reported or not, and the answering endpoint closes.
fn departing_listeners(lib: &Lib) {
    let mut listener = Listener::new(lib);
    let (a, b) = (End::new(lib), End::new(lib));
    assert_eq!(a.connect(&listener.name(), &[]), 0);
    let (info, _) = listener.called(&a);
    assert_eq!(b.connect(&listener.name(), &[]), 0);
    // The second event stays in the queue, which frees the event's memory when it is closed.
    until(|| {
        b.eq.progress();
        listener.eq.progress();
        (unsafe { (*(*listener.eq.0).ops).read.unwrap()(listener.eq.0, &mut 0, std::ptr::null_mut(), 0, 0) }
            != err(FI_EAGAIN))
        .then_some(())
    });
    let late = End::answering(lib, info);
    listener.close_pep();
    fails(&a, &[]);
    fails(&b, &[]);
    assert_eq!(late.accept(&[]), -(FI_EOPBADSTATE as i32), "the request ended with the listener");
    // An endpoint that closes before it answers leaves the request to other endpoints.
    let other = Listener::new(lib);
    let c = End::new(lib);
    assert_eq!(c.connect(&other.name(), &[]), 0);
    let (info, _) = other.called(&c);
    drop(End::answering(lib, unsafe { copy(lib, info) }));
    let d = End::answering(lib, info);
    assert_eq!(d.accept(&[]), 0);
    await_connection(&c, &d, &[]);
    // An endpoint that closes after its answer does not, even if the caller has not seen the answer.
    let e = End::new(lib);
    assert_eq!(e.connect(&other.name(), &[]), 0);
    let (info, _) = other.called(&e);
    let f = End::answering(lib, info);
    assert_eq!(f.accept(&[]), 0);
    drop(f);
    fails(&e, &[other.eq]);
}

unsafe fn copy(lib: &Lib, info: *mut fi_info) -> *mut fi_info {
    unsafe { lib.duplicate(info) }
}

/// A stranger can send nothing to the peers, and does not disturb the connection.
fn strangers(lib: &Lib) {
    let listener = Listener::new(lib);
    let (a, b) = connected(&listener);
    let target = memory(100);
    b.side.start("fi_trecv", &Args { context: 9, ..Args::new(target, 0) }, &[]);
    let rdm = Side::new(lib);
    for (context, victim) in [(1, b.side.name()), (2, listener.name())] {
        let to = rdm.insert(&victim);
        rdm.start("fi_tsend", &Args { context, ..Args::new(pattern(5000), to) }, &[&b.side]);
        let failed = until(|| {
            listener.eq.progress();
            b.side.progress();
            rdm.poll()
        });
        assert_eq!(failed.failed().op_context as usize, context);
    }
    let other = End::new(lib);
    assert_eq!(other.connect(&b.side.name(), &[]), 0);
    fails(&other, &[b.eq]);
    let source = pattern(100);
    a.side.start("fi_tsend", &Args { context: 8, ..Args::new(source, 0) }, &[]);
    assert_eq!(b.next(&a).done().op_context as usize, 9);
    assert_eq!(target, source);
    listener.eq.nothing(&[a.eq, b.eq]);
}

/// Invalid handles, and handles of finished requests.
fn wrong_handles(lib: &Lib) {
    let (listener, other) = (Listener::new(lib), Listener::new(lib));
    let a = End::new(lib);
    assert_eq!(a.accept(&[]), -(FI_EOPBADSTATE as i32), "there is no request");
    assert_eq!(a.connect(&listener.name(), &[]), 0);
    let (info, _) = listener.called(&a);
    let handle = unsafe { (*info).handle };
    assert_eq!(other.reject(handle, &[]), -FI_EINVAL, "the handle belongs to another listener");
    assert_eq!(listener.reject(std::ptr::null_mut(), &[]), -FI_EINVAL);
    let (b, c) = (End::answering(lib, unsafe { copy(lib, info) }), End::answering(lib, info));
    assert_eq!(b.accept(&[]), 0);
    assert_eq!(c.accept(&[]), -(FI_EOPBADSTATE as i32), "another endpoint has answered");
    await_connection(&a, &b, &[]);
    a.side.info.get().handle = handle;
    let opened: Result<*mut fid_ep, _> = crate::open!(a.side.opened.domain, endpoint, a.side.info.raw);
    assert_eq!(opened, Err(FI_EINVAL), "answered");
    a.side.info.get().handle = listener.pep.cast();
    let opened: Result<*mut fid_ep, _> = crate::open!(a.side.opened.domain, endpoint, a.side.info.raw);
    assert_eq!(opened, Err(FI_EBUSY), "the endpoint listens");
    a.side.info.get().handle = std::ptr::null_mut();
}

/// A process is killed while its request waits, and after it is connected.
fn death(lib: &Lib) {
    let listener = Listener::new(lib);
    for connect in [false, true] {
        let hex: String = listener.name().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("WEFT_TEST_GROUP", "caller").env("WEFT_TEST_LISTENER", hex).stdout(Stdio::null());
        let mut process = command.spawn().unwrap();
        let Event::Request { info, data, .. } = listener.eq.next(&[]) else { panic!("no call") };
        assert_eq!(data, b"from afar");
        let b = End::answering(lib, info);
        if connect {
            assert_eq!(b.accept(&[]), 0);
            assert_eq!(b.eq.next(&[]), Event::Connected { ep: b.fid(), data: Vec::new() });
            b.side.trecv(memory(8), 1);
            b.side.start("fi_send", &Args { context: 2, ..Args::new(pattern(8 << 20), 0) }, &[]);
        }
        process.kill().unwrap();
        process.wait().unwrap();
        let killed = Instant::now();
        if connect {
            assert_eq!(b.eq.next(&[]), Event::Shutdown { ep: b.fid() });
            for _ in 0..2 {
                assert_eq!(b.side.next(&[]).failed().err, FI_ECONNRESET);
            }
        } else {
            listener.eq.nothing(&[]);
            assert_eq!(b.accept(&[]), 0);
            fails(&b, &[listener.eq]);
        }
        assert!(killed.elapsed() < NOTICE, "noticed after {:?}", killed.elapsed());
    }
}

/// The killed process: it requests a connection and waits.
pub(crate) fn caller(lib: &Lib) {
    let hex = std::env::var("WEFT_TEST_LISTENER").unwrap();
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let name: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    let a = End::new(lib);
    assert_eq!(a.connect(&name, b"from afar"), 0);
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        a.eq.wait(100);
    }
}
