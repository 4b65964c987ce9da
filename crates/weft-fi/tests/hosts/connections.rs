//! Connections (FI_EP_MSG) are made, refused, aborted, used and ended, between endpoints of one process and
//! with a process that dies.

pub(crate) mod ends;
mod order;
mod trouble;

use std::time::Duration;

use weft_fi_sys::*;

use self::ends::{End, Event, Listener, Queue, as_msg, await_connection, connect, connected};
use crate::client::{Lib, close, control};
use crate::side::{Args, CALLS, Form, Side, alias, err, memory, name_of, pattern, scenes, setopt};

pub(crate) use self::trouble::caller;

/// The largest length of connection data in bytes.
const MOST_DATA: usize = 192;
/// No endpoint has this address.
const NOWHERE: u64 = 77;

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("offers", offers),
            ("introductions", introductions),
            ("aliases", aliases),
            ("limits", limits),
            ("operations", operations),
        ],
    );
    scenes(lib, &[("little_room", little_room)]);
    scenes(lib, &[("endings", endings), ("crowd", crowd), ("sockets", sockets), ("waiting", waiting)]);
    scenes(lib, &[("unattended", unattended)]);
    order::all(lib);
    trouble::all(lib);
}

/// Only a client that requests the type gets it, without capabilities that connections cannot have.
fn offers(lib: &Lib) {
    for api in lib.versions() {
        let hints = lib.allocinfo();
        as_msg(&hints);
        let info = lib.ask(api, Some(&hints)).unwrap();
        assert_eq!(info.ep().type_, FI_EP_MSG);
        assert_eq!(info.get().caps & (FI_DIRECTED_RECV | FI_SOURCE | FI_TRIGGER), 0);
        assert_eq!(lib.ask(api, None).unwrap().ep().type_, FI_EP_RDM);
        for caps in [FI_SOURCE, FI_DIRECTED_RECV, FI_TRIGGER, FI_SOURCE_ERR] {
            hints.get().caps = FI_MSG | caps;
            assert_eq!(lib.ask(api, Some(&hints)).err(), Some(FI_ENODATA), "{caps:#x}");
        }
    }
    let rdm = Side::unbound(lib, 0, |hints| hints.domain().threading = FI_THREAD_DOMAIN);
    rdm.info.ep().type_ = FI_EP_MSG;
    let opened: Result<*mut fid_ep, _> = crate::open!(rdm.opened.domain, endpoint, rdm.info.raw);
    assert_eq!(opened, Err(FI_EINVAL), "event queues would drive it beside the domain's one thread");
    rdm.info.ep().type_ = FI_EP_RDM;
    let passive: Result<*mut fid_pep, _> = crate::open!(rdm.opened.fabric, passive_ep, rdm.info.raw);
    assert_eq!(passive, Err(FI_EINVAL), "this type has no connections");
}

/// Both sides learn the other's name and data, or the refusal.
fn introductions(lib: &Lib) {
    let listener = Listener::new(lib);
    let a = End::new(lib);
    assert_eq!(a.connect(&listener.name(), b"hello"), 0);
    let (info, data) = listener.called(&a);
    assert_eq!(data, b"hello");
    let b = End::answering(lib, info);
    assert_eq!(b.side.info.dest(), Some(a.side.name().as_slice()));
    assert_eq!(b.side.info.src(), Some(listener.name().as_slice()));
    assert_eq!((a.peer(), b.peer()), (Err(FI_ENOTCONN), Err(FI_ENOTCONN)));
    assert_eq!(b.accept(b"welcome"), 0);
    await_connection(&a, &b, b"welcome");
    assert_eq!((a.peer(), b.peer()), (Ok(b.side.name()), Ok(a.side.name())));
    // A refusal. Its data is copied to the client's buffer or left in the provider's, whole or truncated, or
    // discarded.
    for (room, expected) in [(Some(0), b"not you".as_slice()), (Some(100), b"not you"), (Some(3), b"not"), (None, &[])]
    {
        let c = End::new(lib);
        assert_eq!(c.connect(&listener.name(), &[]), 0);
        let (info, data) = listener.called(&c);
        assert!(data.is_empty());
        let handle = unsafe { (*info).handle };
        assert_eq!(listener.reject(handle, b"not you"), 0);
        assert_eq!(listener.reject(handle, b"not you"), -FI_EINVAL, "answered before");
        drop(lib.own(info));
        let mut byte = 0_u64;
        let read = || unsafe { (*(*c.eq.0).ops).read.unwrap()(c.eq.0, &mut 0, (&raw mut byte).cast(), 8, 0) };
        let mut read = read;
        crate::side::until(|| (read() == crate::side::fabric_err(FI_EAVAIL)).then_some(()));
        let data = expected.to_vec();
        let context = crate::side::EP_CONTEXT;
        match room {
            Some(room) => {
                assert_eq!(c.eq.error(room), Event::Failed { ep: c.fid(), context, err: FI_ECONNREFUSED, data });
            }
            None => assert_eq!(c.eq.error_nowhere(), 0),
        }
        assert_eq!(c.peer(), Err(FI_ENOTCONN));
    }
    b.eq.nothing(&[a.eq, listener.eq]);
}

/// An alias that was made before its endpoint was enabled connects the endpoint.
fn aliases(lib: &Lib) {
    let listener = Listener::new(lib);
    let a = End::new(lib);
    let other = alias(a.side.ep, FI_TRANSMIT);
    assert_eq!(connect(other, &listener.name(), &[]), 0);
    let (info, _) = listener.called(&a);
    let b = End::answering(lib, info);
    assert_eq!(b.accept(&[]), 0);
    await_connection(&a, &b, &[]);
    assert_eq!(close(other), 0);
}

/// The largest connection data, and one byte more.
fn limits(lib: &Lib) {
    let listener = Listener::new(lib);
    let a = End::new(lib);
    let most = |fid: *mut fid, ops: *mut fi_ops_ep| {
        let (mut most, mut len) = (0_usize, size_of::<usize>());
        let getopt = unsafe { (*ops).getopt.unwrap() };
        let (level, name) = (FI_OPT_ENDPOINT as i32, FI_OPT_CM_DATA_SIZE as i32);
        assert_eq!(unsafe { getopt(fid, level, name, (&raw mut most).cast(), &mut len) }, 0);
        most
    };
    unsafe {
        assert_eq!(most(a.side.ep.cast(), (*a.side.ep).ops), MOST_DATA);
        assert_eq!(most(listener.pep.cast(), (*listener.pep).ops), MOST_DATA);
    }
    let (data, more) = (pattern(MOST_DATA), pattern(MOST_DATA + 1));
    assert_eq!(a.connect(&listener.name(), more), -FI_EINVAL);
    assert_eq!(a.connect(&listener.name(), data), 0);
    assert_eq!(a.connect(&listener.name(), data), -(FI_EOPBADSTATE as i32), "an endpoint connects once");
    let (info, heard) = listener.called(&a);
    assert_eq!(heard, data);
    assert_eq!(listener.reject(unsafe { (*info).handle }, more), -FI_EINVAL);
    let b = End::answering(lib, info);
    assert_eq!(b.accept(more), -FI_EINVAL);
    assert_eq!(b.connect(&listener.name(), &[]), -(FI_EOPBADSTATE as i32), "an answering endpoint cannot connect");
    assert_eq!(b.accept(data), 0);
    assert_eq!(b.accept(data), -(FI_EOPBADSTATE as i32));
    await_connection(&a, &b, data);
}

/// The peer's data is truncated to the size of the client's buffer (fi_eq(3)). The buffer must have room for
/// the entry itself.
fn little_room(lib: &Lib) {
    const ENTRY: usize = size_of::<fi_eq_cm_entry>();
    let read = |eq: Queue, room: usize, flags: u64| {
        let (mut event, mut buffer) = (0, [0xaa_u8; 64]);
        let read = unsafe { (*(*eq.0).ops).read.unwrap() };
        let result = unsafe { read(eq.0, &mut event, buffer.as_mut_ptr().cast(), room, flags) };
        assert!(buffer[room..].iter().all(|&byte| byte == 0xaa), "bytes behind the buffer");
        (result, event, buffer)
    };
    let said = |eq: Queue, other: Queue, event: u32, data: &[u8]| {
        crate::side::until(|| {
            other.progress();
            (read(eq, 64, FI_PEEK).0 > 0).then_some(())
        });
        for room in [0, ENTRY - 1] {
            assert_eq!(read(eq, room, 0).0, crate::side::fabric_err(FI_ETOOSMALL));
        }
        // A peek does not change the event.
        for (room, flags) in [(ENTRY, FI_PEEK), (ENTRY + 3, FI_PEEK), (64, FI_PEEK), (ENTRY + 2, 0)] {
            let len = room.min(ENTRY + data.len());
            let (result, number, buffer) = read(eq, room, flags);
            assert_eq!((result, number), (len as isize, event));
            assert_eq!(buffer[ENTRY..len], data[..len - ENTRY]);
        }
        assert_eq!(read(eq, 64, 0).0, err(FI_EAGAIN));
    };
    let listener = Listener::new(lib);
    let a = End::new(lib);
    assert_eq!(a.connect(&listener.name(), b"a caller"), 0);
    let whole = crate::side::until(|| {
        a.eq.progress();
        let (result, _, buffer) = read(listener.eq, 64, FI_PEEK);
        (result > 0).then_some(buffer)
    });
    said(listener.eq, a.eq, FI_CONNREQ, b"a caller");
    let info = usize::from_ne_bytes(whole[8..16].try_into().unwrap()) as *mut fi_info;
    let b = End::answering(lib, info);
    assert_eq!(b.accept(b"who accepts"), 0);
    said(a.eq, b.eq, FI_CONNECTED, b"who accepts");
    said(b.eq, a.eq, FI_CONNECTED, &[]);
    assert_eq!(a.shutdown(), 0);
    for (end, other) in [(&a, &b), (&b, &a)] {
        said(end.eq, other.eq, FI_SHUTDOWN, &[]);
    }
}

/// Every operation reaches the peer with any destination, also after the implicit fi_enable of `fi_connect`.
fn operations(lib: &Lib) {
    let listener = Listener::new(lib);
    let (a, b) = connected(&listener);
    let region = memory(4096);
    let mr = b.side.register(region, FI_REMOTE_READ | FI_REMOTE_WRITE, 7);
    for call in CALLS.iter().filter(|call| !call.recv) {
        for dest in [0, NOWHERE, FI_ADDR_UNSPEC] {
            for len in [0, 8, 3000, 100_000] {
                if len > 4096
                    && (call.form == Form::Inject || call.name.contains("read") || call.name.contains("write"))
                    || len == 0 && call.name.contains("read")
                {
                    continue;
                }
                let (source, target) = (pattern(len), memory(len));
                let message = call.name.contains("send")
                    || matches!(call.name, "fi_inject" | "fi_tinject")
                    || call.name.ends_with("injectdata");
                if message {
                    let recv = if call.name.starts_with("fi_t") { "fi_trecv" } else { "fi_recv" };
                    b.side.start(recv, &Args { src: NOWHERE, context: 1, ..Args::new(target, 0) }, &[]);
                }
                a.side.start(call.name, &Args { key: 7, context: 2, ..Args::new(source, dest) }, &[&b.side]);
                if message {
                    assert_eq!(b.next(&a).done().op_context as usize, 1, "{}", call.name);
                    assert!(target == source, "{} of {len}", call.name);
                }
                if call.form != Form::Inject {
                    assert_eq!(a.next(&b).done().op_context as usize, 2, "{}", call.name);
                }
                if call.name.contains("data") && !message {
                    assert_eq!(b.next(&a).done().data, 0xda7a, "{}", call.name);
                }
            }
        }
    }
    b.side.nothing(&[&a.side]);
    assert_eq!(close(mr), 0);
    // Queues can be bound to a connected endpoint, address vectors cannot.
    assert_eq!(crate::client::bind(a.side.ep, a.side.av, 0), -FI_EINVAL);
}

/// Either side ends the connection. Both get one event. Arrived messages can still be received, and no
/// operation waits indefinitely.
fn endings(lib: &Lib) {
    let listener = Listener::new(lib);
    let (mut a, b) = connected(&listener);
    let (first, second) = (memory(8), memory(8));
    b.side.start("fi_recv", &Args { context: 1, ..Args::new(first, 0) }, &[]);
    a.side.trecv(memory(8), 2);
    for context in [3, 4] {
        a.side.start("fi_send", &Args { context, ..Args::new(pattern(8), 0) }, &[&b.side]);
        assert_eq!(a.next(&b).done().op_context as usize, context);
    }
    assert_eq!(a.shutdown(), 0);
    assert_eq!(a.side.next(&[]).failed().err, FI_ECANCELED, "before fi_shutdown returned");
    assert_eq!(a.eq.poll(), Some(Event::Shutdown { ep: a.fid() }));
    assert_eq!(b.eq.next(&[]), Event::Shutdown { ep: b.fid() });
    assert_eq!(b.side.next(&[]).done().op_context as usize, 1);
    b.side.start("fi_recv", &Args { context: 5, ..Args::new(second, 0) }, &[]);
    assert_eq!(b.side.next(&[]).done().op_context as usize, 5, "the message arrived before the end");
    assert_eq!((&*first, &*second), (&*pattern(8), &*pattern(8)));
    for end in [&a, &b] {
        for call in ["fi_send", "fi_inject", "fi_read", "fi_tsend"] {
            assert_eq!(end.side.run(call, &Args::new(memory(8), 0)), err(FI_ENOTCONN), "{call}");
        }
        assert_eq!(end.shutdown(), -FI_ENOTCONN);
        assert_eq!(end.peer(), Err(FI_ENOTCONN));
        assert_eq!(end.connect(&listener.name(), &[]), -(FI_EOPBADSTATE as i32));
    }
    a.eq.nothing(&[b.eq]);
    b.eq.nothing(&[a.eq]);
    // Closing an endpoint ends the connection, too. A long message without a receive is pending.
    let (c, mut d) = connected(&listener);
    c.side.start("fi_send", &Args { context: 6, ..Args::new(pattern(8 << 20), 0) }, &[]);
    c.side.start("fi_recv", &Args { context: 7, ..Args::new(memory(8), 0) }, &[]);
    d.side.close_ep();
    let mut failed = [c.next(&a).failed(), c.next(&a).failed()];
    failed.sort_by_key(|entry| entry.op_context as usize);
    assert_eq!(failed.map(|entry| (entry.op_context as usize, entry.err)), [(6, FI_ESHUTDOWN), (7, FI_ECANCELED)]);
    assert_eq!(c.eq.next(&[]), Event::Shutdown { ep: c.fid() });
    a.side.close_ep();
}

/// Many callers connect at once to two listeners from both sides. A listener may close after it has answered.
fn crowd(lib: &Lib) {
    let (one, mut other) = (Listener::new(lib), Listener::new(lib));
    let callers: Vec<_> = (0..12_u8).map(|_| End::new(lib)).collect();
    for (number, caller) in (0..).zip(&callers) {
        let listener = if number % 2 == 0 { &one } else { &other };
        assert_eq!(caller.connect(&listener.name(), &[number]), 0);
    }
    let mut answering = Vec::new();
    for (number, caller) in callers.iter().enumerate() {
        let listener = if number % 2 == 0 { &one } else { &other };
        let (info, data) = listener.called(caller);
        let end = End::answering(lib, info);
        assert_eq!(end.accept(&data), 0);
        answering.push((usize::from(data[0]), end));
    }
    other.close_pep();
    for (number, end) in &answering {
        await_connection(&callers[*number], end, &[*number as u8]);
        let (source, target) = (pattern(40), memory(40));
        end.side.start("fi_recv", &Args { context: 1, ..Args::new(target, 0) }, &[]);
        callers[*number].side.start("fi_inject", &Args::new(source, 0), &[&end.side]);
        assert_eq!(end.next(&callers[*number]).done().op_context as usize, 1);
        assert_eq!(target, source);
    }
    // Callers beyond the backlog are refused.
    assert_eq!(one.set_backlog(1), 0);
    let (first, second) = (End::new(lib), End::new(lib));
    assert_eq!(first.connect(&one.name(), &[]), 0);
    let (info, _) = one.called(&first);
    assert_eq!(second.connect(&one.name(), &[]), 0);
    let refused = second.eq.next(&[one.eq]);
    assert!(matches!(refused, Event::Failed { err: FI_ECONNREFUSED, .. }), "{refused:?}");
    one.eq.nothing(&[first.eq]);
    drop(lib.own(info));
}

/// With socket addresses, an accepting endpoint has the listener's address, and an endpoint may take over the
/// address of a passive endpoint.
fn sockets(lib: &Lib) {
    let format = |hints: &crate::client::Info<'_>| hints.get().addr_format = FI_SOCKADDR_IN;
    let any: [u8; 16] = [2, 0, 0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let set_name = |pep: *mut fid_pep| unsafe {
        (*(*pep).cm).setname.unwrap()(pep.cast(), any.as_ptr().cast_mut().cast(), any.len())
    };
    let listener = Listener::idle(lib, format);
    assert_eq!(set_name(listener.pep), 0);
    let name = listener.name();
    assert_ne!(name[2..4], [0, 0], "the name has a port");
    assert_eq!(listener.listen(), 0);
    assert_eq!(listener.listen(), -(FI_EOPBADSTATE as i32));
    assert_eq!(set_name(listener.pep), -(FI_EOPBADSTATE as i32));
    assert_eq!(listener.name(), name);
    let mut idle = Listener::idle(lib, format);
    assert_eq!(set_name(idle.pep), 0);
    let own = idle.name();
    let handle = idle.pep.cast();
    // An endpoint that cannot be opened takes over nothing.
    let other = End::new(lib);
    (other.side.info.get().handle, other.side.info.tx().size) = (handle, usize::MAX);
    let opened: Result<*mut fid_ep, _> = crate::open!(other.side.opened.domain, endpoint, other.side.info.raw);
    assert_eq!(opened, Err(FI_EINVAL), "the queue is too long");
    other.side.info.get().handle = std::ptr::null_mut();
    let a = End::with(lib, |hints| {
        format(hints);
        hints.get().handle = handle;
    });
    idle.close_pep();
    // The listener's devices are open already, including shared memory.
    let permitted = |value: bool| setopt(a.side.ep, v2::FI_OPT_SHARED_MEMORY_PERMITTED, value);
    assert_eq!((permitted(false), permitted(true)), (-FI_EOPNOTSUPP, 0));
    assert_eq!(a.connect(&name, &[]), 0);
    assert_eq!(name_of(a.side.ep), own);
    let (info, _) = listener.called(&a);
    let b = End::answering(lib, info);
    assert_eq!(b.accept(&[]), 0);
    await_connection(&a, &b, &[]);
    assert_eq!((name_of(b.side.ep), a.peer()), (name.clone(), Ok(name)));
    assert_eq!(b.peer(), Ok(own));
}

/// Threads that sleep on a queue are woken, in a call or on the descriptor.
fn waiting(lib: &Lib) {
    let listener = Listener::new(lib);
    let mut fd: i32 = -1;
    assert_eq!(control(listener.eq.0, FI_GETWAIT, (&raw mut fd).cast()), 0);
    let readable = || {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        unsafe { libc::poll(&mut poll, 1, 10_000) == 1 }
    };
    let trywait = || {
        let mut fids = [listener.eq.0.cast::<fid>()];
        let fabric = listener.opened.fabric;
        unsafe { (*(*fabric).ops).trywait.unwrap()(fabric, fids.as_mut_ptr(), 1) }
    };
    let name = listener.name();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            let a = End::new(lib);
            assert_eq!(a.connect(&name, &[]), 0);
            let connected = a.eq.wait(10_000);
            assert_eq!(connected, Some(Event::Connected { ep: a.fid(), data: b"x".to_vec() }));
            assert_eq!(a.eq.wait(10_000), Some(Event::Shutdown { ep: a.fid() }));
        });
        let request = crate::side::until(|| {
            // An event that arrives while the client goes to sleep is found before.
            if trywait() == 0 {
                assert!(readable(), "the descriptor is not readable");
            }
            listener.eq.poll()
        });
        let Event::Request { info, .. } = request else { panic!("{request:?}") };
        let b = End::answering(lib, info);
        assert_eq!(b.eq.wait(20), None);
        assert_eq!(b.accept(b"x"), 0);
        assert_eq!(b.eq.wait(10_000), Some(Event::Connected { ep: b.fid(), data: Vec::new() }));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(b.shutdown(), 0);
    });
}

/// With automatic progress of control operations, a connection is established without further calls of the
/// caller (fi_domain(3)).
fn unattended(lib: &Lib) {
    let listener = Listener::new(lib);
    let a = End::with(lib, |hints| {
        hints.domain().control_progress = FI_PROGRESS_AUTO;
        hints.domain().data_progress = FI_PROGRESS_MANUAL;
    });
    assert_eq!(a.connect(&listener.name(), &[]), 0);
    let Event::Request { info, .. } = listener.eq.next(&[]) else { panic!("no call") };
    let b = End::answering(lib, info);
    assert_eq!(b.accept(b"x"), 0);
    assert_eq!(b.eq.next(&[]), Event::Connected { ep: b.fid(), data: Vec::new() });
    assert_eq!(a.eq.poll(), Some(Event::Connected { ep: a.fid(), data: b"x".to_vec() }));
}
