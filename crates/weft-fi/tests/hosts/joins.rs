//! A thread sleeps on a queue or counter, and only then does a source of events or completions join it: an
//! endpoint is opened, a passive endpoint listens, or a connection starts. The events of the new source wake
//! the sleeper.
//!
//! Between the start and the end of its sleep no other thread drives the queue or counter.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::connections::ends::{End, Event, Listener, Queue};
use crate::open;
use crate::rig::Cntr;
use crate::side::{Args, Side, Watched, call, long_bytes, memory, pair, pattern, scenes, until, works};

/// The longest sleep. A sleeper that was not woken exceeds [`SOON`].
const LONG: Duration = Duration::from_secs(5);
/// The time limit of a sleep that a wake-up ends.
const SOON: Duration = Duration::from_secs(3);
/// The time after which an idle thread sleeps.
const ASLEEP: Duration = Duration::from_millis(50);

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("a listener begins", a_listener_begins),
            ("a connection begins", a_connection_begins),
            ("a listener begins beside a descriptor", a_listener_begins_beside_a_descriptor),
            ("a reader beside a sleeper", a_reader_beside_a_sleeper),
            ("an endpoint joins a queue", an_endpoint_joins_a_queue),
            ("an endpoint joins a counter", an_endpoint_joins_a_counter),
            ("a region leaves", a_region_leaves),
            ("a peek beside an event queue", a_peek_beside_an_event_queue),
            ("a peek beside a counter", a_peek_beside_a_counter),
        ],
    );
}

/// Runs `meanwhile` while a thread is blocked in `fi_eq_sread`, and asserts that the thread gets an event.
/// Returns the information of a connection request, or null for other events.
fn wakes_a_sleeper(eq: Queue, meanwhile: impl FnOnce(&dyn Fn() -> bool)) -> *mut fi_info {
    let address = eq.0 as usize;
    let sleeper = std::thread::spawn(move || {
        let start = Instant::now();
        let event = Queue(address as *mut fid_eq).wait(LONG.as_millis() as c_int);
        let time = start.elapsed();
        assert!(event.is_some() && time < SOON, "slept for {time:?} and then got {event:?}");
        event.map_or(0, |event| info_of(&event) as usize)
    });
    std::thread::sleep(ASLEEP);
    meanwhile(&|| sleeper.is_finished());
    sleeper.join().unwrap() as *mut fi_info
}

fn info_of(event: &Event) -> *mut fi_info {
    if let Event::Request { info, .. } = event { *info } else { null_mut() }
}

/// While a thread waits in `fi_eq_sread`, a passive endpoint starts to listen, and receives a connection
/// request.
fn a_listener_begins(lib: &Lib) {
    let listener = Listener::idle(lib, |_| ());
    let caller = End::new(lib);
    let called = wakes_a_sleeper(listener.eq, |over| {
        assert_eq!(listener.listen(), 0);
        assert_eq!(caller.connect(&listener.name(), &[]), 0);
        until(|| {
            caller.eq.progress();
            over().then_some(())
        });
    });
    drop(lib.own(called));
}

/// While a thread waits in `fi_eq_sread`, an endpoint requests a connection, and receives the answer.
fn a_connection_begins(lib: &Lib) {
    let listener = Listener::new(lib);
    let caller = End::new(lib);
    wakes_a_sleeper(caller.eq, |over| {
        assert_eq!(caller.connect(&listener.name(), &[]), 0);
        let Event::Request { info, .. } = listener.eq.next(&[]) else { panic!("no call") };
        let answering = End::answering(lib, info);
        assert_eq!(answering.accept(&[]), 0);
        until(|| {
            answering.eq.progress();
            over().then_some(())
        });
    });
}

/// Calls `fi_trywait` for one object.
pub(crate) fn trywait<F>(fabric: *mut fid_fabric, object: *mut F) -> c_int {
    let mut fids = [object.cast::<fid>()];
    unsafe { (*(*fabric).ops).trywait.unwrap()(fabric, fids.as_mut_ptr(), 1) }
}

/// The wait descriptor of an object.
pub(crate) fn descriptor<F>(object: *mut F) -> c_int {
    let mut fd = -1;
    assert_eq!(control(object, FI_GETWAIT, (&raw mut fd).cast()), 0);
    fd
}

pub(crate) fn readable(fd: c_int, time: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&mut poll, 1, time.as_millis() as c_int) == 1 }
}

/// While a client sleeps on the descriptor of the queue, a passive endpoint starts to listen.
fn a_listener_begins_beside_a_descriptor(lib: &Lib) {
    let listener = Listener::idle(lib, |_| ());
    let (fabric, eq) = (listener.opened.fabric, listener.eq);
    let fd = descriptor(eq.0);
    assert_eq!(trywait(fabric, eq.0), 0);
    assert_eq!(listener.listen(), 0);
    let caller = End::new(lib);
    assert_eq!(caller.connect(&listener.name(), &[]), 0);
    (0..300).for_each(|_| caller.eq.progress());
    assert!(readable(fd, LONG), "a lost wake-up");
    let event = until(|| {
        caller.eq.progress();
        eq.poll()
    });
    drop(lib.own(info_of(&event)));
}

/// While a client sleeps on the descriptor, another thread reads the queue some times and ends. Meanwhile a
/// connection request arrives.
fn a_reader_beside_a_sleeper(lib: &Lib) {
    let listener = Listener::new(lib);
    let (fabric, eq) = (listener.opened.fabric, listener.eq);
    for rounds in 0..20 {
        let caller = End::new(lib);
        until(|| (trywait(fabric, eq.0) == 0).then_some(()));
        assert_eq!(caller.connect(&listener.name(), &[]), 0);
        let queues = [eq.0 as usize, caller.eq.0 as usize];
        let reader = std::thread::spawn(move || {
            (0..rounds).for_each(|_| queues.iter().for_each(|&queue| Queue(queue as *mut fid_eq).progress()));
        });
        reader.join().unwrap();
        (0..300).for_each(|_| caller.eq.progress());
        assert!(readable(descriptor(eq.0), LONG), "a lost wake-up after {rounds} rounds");
        let (info, _) = listener.called(&caller);
        drop(lib.own(info));
    }
}

/// A message arrives for a client that has slept on an object's descriptor since before the object was ready
/// for it. No other thread drives the client's side.
fn message_wakes<F>(a: &Side<'_>, b: &Side<'_>, object: *mut F) {
    let fd = descriptor(object);
    let to_b = a.insert(&b.name());
    b.trecv(memory(8), 1);
    a.tsend(pattern(8), to_b, 2);
    let mut sleeps = true;
    until(|| {
        (0..300).for_each(|_| a.progress());
        assert!(!sleeps || readable(fd, LONG), "a lost wake-up");
        let outcome = b.poll();
        sleeps = outcome.is_none() && trywait(b.opened.fabric, object) == 0;
        outcome
    })
    .done();
    a.next(&[b]).done();
}

/// Waits until the client may sleep on the object.
fn sleeps<F>(side: &Side<'_>, object: *mut F) {
    until(|| (trywait(side.opened.fabric, object) == 0).then_some(()));
}

/// While a client sleeps on a completion queue, an endpoint is bound and enabled, or only enabled.
fn an_endpoint_joins_a_queue(lib: &Lib) {
    let (a, b) = (Side::new(lib), Side::unbound(lib, 0, |_| ()));
    sleeps(&b, b.cq);
    let mut b = b.bound();
    message_wakes(&a, &b, b.cq);
    // The joining endpoint is not always the first of the domain.
    let first = b.ep;
    b.ep = b.another_ep();
    assert_eq!([bind(b.ep, b.av, 0), bind(b.ep, b.cq, FI_TRANSMIT | FI_RECV)], [0; 2]);
    sleeps(&b, b.cq);
    assert_eq!(b.enable(), 0);
    message_wakes(&a, &b, b.cq);
    assert_eq!(close(first), 0);
}

/// While a client sleeps on a counter, the counter is bound to an enabled endpoint or to a memory region.
fn an_endpoint_joins_a_counter(lib: &Lib) {
    let (a, mut b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
    attr.wait_obj = FI_WAIT_FD;
    let open = || -> *mut fid_cntr { open!(b.opened.domain, cntr_open, &mut { attr }).unwrap() };
    let (received, written) = (open(), open());
    sleeps(&b, received);
    assert_eq!(bind(b.ep, received, FI_RECV), 0);
    message_wakes(&a, &b, received);
    sleeps(&b, written);
    let mr = b.register(memory(8), FI_REMOTE_WRITE, 5);
    assert_eq!(bind(mr, written, FI_REMOTE_WRITE), 0);
    a.start("fi_write", &Args { key: 5, ..Args::new(pattern(8), to_b) }, &[]);
    (0..300).for_each(|_| a.progress());
    assert!(readable(descriptor(written), LONG), "a lost wake-up");
    a.next(&[&b]).done();
    until(|| (Cntr(written).read() == 1).then_some(()));
    b.close_ep();
    assert_eq!([close(mr), close(written), close(received)], [0; 3]);
}

/// While a client sleeps on the descriptor of a completion queue, a region is closed that a peer reads. The
/// closing waits for the peer. A message that arrives meanwhile wakes the sleeper.
fn a_region_leaves(lib: &Lib) {
    const KEY: u64 = 7;
    let (reader, b, to_b, _) = pair(lib);
    works(&reader, &b, to_b);
    let sender = Side::new(lib);
    let b_of_sender = sender.insert(&b.name());
    works(&sender, &b, b_of_sender);
    let bytes = long_bytes();
    let (local, remote) = (memory(bytes), pattern(bytes));
    let watched = Watched::new(local);
    let region = b.register(remote, FI_REMOTE_READ, KEY);
    reader.start("fi_read", &Args { key: KEY, ..Args::new(local, to_b) }, &[]);
    until(|| {
        reader.progress();
        b.progress();
        watched.begun().then_some(())
    });
    // The reader makes no more progress, so the pending operations wait for it.
    b.trecv(memory(8), 1);
    let fd = descriptor(b.cq);
    until(|| {
        b.progress();
        (trywait(b.opened.fabric, b.cq) == 0 && !readable(fd, ASLEEP)).then_some(())
    });
    sender.tsend(pattern(8), b_of_sender, 1);
    (0..300).for_each(|_| sender.progress());
    assert_eq!(close(region), 0);
    assert!(readable(fd, LONG), "a lost wake-up");
    b.next(&[&sender]).done();
    sender.next(&[&b]).done();
    reader.next(&[&b]);
}

/// Opens a shared receive context and binds it to the endpoint.
fn share(side: &Side<'_>) -> *mut fid_ep {
    let srx = open!(side.opened.domain, srx_ctx, side.info.get().rx_attr).unwrap();
    assert_eq!(bind(side.ep, srx, 0), 0);
    srx
}

/// Looks for a message in a shared context, which makes progress at its endpoint. While `meanwhile` runs, no
/// other thread makes progress there.
fn beside_a_peek(side: &Side<'_>, srx: *mut fid_ep, meanwhile: impl FnOnce()) {
    let args = Args { flags: FI_PEEK, ..Args::new(memory(8), 0) };
    assert_eq!(unsafe { (call("fi_trecvmsg").run)(srx, &args) }, 0);
    meanwhile();
    assert_eq!(side.next(&[]).failed().err, FI_ENOMSG);
}

/// While a client sleeps on the descriptor of an event queue, another thread looks for a message in a receive
/// context that the endpoint shares. The events of the connection still wake the sleeper.
fn a_peek_beside_an_event_queue(lib: &Lib) {
    let listener = Listener::new(lib);
    let mut a = End::with(lib, |hints| hints.ep().rx_ctx_cnt = FI_SHARED_CONTEXT as usize);
    let srx = share(&a.side);
    let fd = descriptor(a.eq.0);
    let next = |others: &[Queue]| {
        until(|| {
            // The other sides make all possible progress. A sleeper that is not woken by then never wakes.
            let progress = || (0..300).for_each(|_| others.iter().for_each(|other| other.progress()));
            progress();
            let event = a.eq.poll();
            if event.is_none() && trywait(a.side.opened.fabric, a.eq.0) == 0 {
                beside_a_peek(&a.side, srx, || {
                    progress();
                    assert!(readable(fd, LONG), "a lost wake-up");
                });
            }
            event
        })
    };
    assert_eq!(a.connect(&listener.name(), &[]), 0);
    let (info, _) = listener.called(&a);
    let b = End::answering(lib, info);
    assert_eq!(b.accept(&[]), 0);
    assert_eq!(next(&[listener.eq, b.eq]), Event::Connected { ep: a.fid(), data: Vec::new() });
    assert_eq!(b.eq.next(&[a.eq]), Event::Connected { ep: b.fid(), data: Vec::new() });
    assert_eq!(b.shutdown(), 0);
    assert_eq!(next(&[b.eq]), Event::Shutdown { ep: a.fid() });
    a.side.close_ep();
    assert_eq!(close(srx), 0);
}

/// The same peek while a client sleeps on the counter of a region. A peer's write wakes it.
fn a_peek_beside_a_counter(lib: &Lib) {
    const KEY: u64 = 7;
    let a = Side::new(lib);
    let b = Side::unbound(lib, 0, |hints| hints.ep().rx_ctx_cnt = FI_SHARED_CONTEXT as usize);
    let srx = share(&b);
    let mut b = b.bound();
    let to_b = a.insert(&b.name());
    let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
    attr.wait_obj = FI_WAIT_FD;
    let written: *mut fid_cntr = open!(b.opened.domain, cntr_open, &mut attr).unwrap();
    let region = b.register(memory(8), FI_REMOTE_WRITE, KEY);
    assert_eq!(bind(region, written, FI_REMOTE_WRITE), 0);
    a.start("fi_write", &Args { key: KEY, ..Args::new(pattern(8), to_b) }, &[&b]);
    a.next(&[&b]).done();
    for writes in 1..10 {
        until(|| {
            assert_eq!(Cntr(written).read(), writes);
            (trywait(b.opened.fabric, written) == 0).then_some(())
        });
        beside_a_peek(&b, srx, || {
            a.start("fi_write", &Args { key: KEY, ..Args::new(pattern(8), to_b) }, &[]);
            (0..300).for_each(|_| a.progress());
            assert!(readable(descriptor(written), LONG), "a lost wake-up");
        });
        a.next(&[&b]).done();
    }
    b.close_ep();
    assert_eq!([close(region), close(written), close(srx)], [0; 3]);
}
