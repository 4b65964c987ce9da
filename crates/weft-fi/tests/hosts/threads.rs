//! Every threading level with the largest concurrency that it allows. Every message is checked.
//!
//! Two sides send several streams of messages of all lengths to each other. The levels differ in the threads
//! that may call the same object concurrently (fi_domain(3)). Control calls come at any time from any thread.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::joins::{descriptor, readable, trywait};
use crate::open;
use crate::rig::{Cntr, MODELS};
use crate::side::{Args, PATIENCE, Side, err, introduce, long_bytes, memory, name_of, pattern, scenes, until, works};

/// Lengths inside a header, in a message, and beside it.
const LENGTHS: [usize; 5] = [8, 64, 700, 5000, 40_000];
const MESSAGES: usize = 100;
const STREAMS: usize = 4;

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("safe", |lib| level(lib, FI_THREAD_SAFE, safe)),
            ("fid", |lib| level(lib, FI_THREAD_FID, fid)),
            ("endpoint", |lib| level(lib, FI_THREAD_ENDPOINT, endpoint)),
            ("completion", |lib| level(lib, FI_THREAD_COMPLETION, completion)),
            ("domain", |lib| level(lib, FI_THREAD_DOMAIN, domain)),
            ("a region's counter", region_counter),
            ("a reader beside a sleeper", reader_beside_sleeper),
            ("a sender beside a sleeper", sender_beside_sleeper),
            ("a starter beside a sleeper", starter_beside_sleeper),
            ("waiters for a counter", waiters_for_a_counter),
            ("waiters for several entries", waiters_for_several_entries),
            ("removed numbers are reused", removed_numbers_are_reused),
        ],
    );
}

/// Runs a level's scene in both progress models.
fn level(lib: &Lib, threading: fi_threading, scene: fn(Side<'_>, Side<'_>)) {
    for progress in [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO] {
        let open = || {
            Side::with(lib, 0, |hints| {
                hints.domain().threading = threading;
                hints.domain().data_progress = progress;
            })
        };
        scene(open(), open());
    }
}

/// The contents of a message.
fn payload(tag: u64, n: usize) -> Vec<u8> {
    let first = (tag as usize * 31 + n * 7) as u8;
    (0..LENGTHS[n % LENGTHS.len()]).map(|at| first.wrapping_add(at as u8)).collect()
}

/// The streams that one endpoint sends and receives.
struct End {
    ep: *mut fid_ep,
    cq: *mut fid_cq,
    peer: u64,
    /// The tag and the buffers of each stream. The first half is sent.
    streams: Vec<(u64, Vec<Vec<u8>>)>,
    /// Completed operations by stream and number.
    done: Vec<AtomicBool>,
    left: AtomicUsize,
}

// The tests decide which threads call the objects concurrently.
unsafe impl Send for End {}
unsafe impl Sync for End {}

impl End {
    /// `tags` are those of the first sent and the first received stream.
    fn new(ep: *mut fid_ep, cq: *mut fid_cq, peer: u64, tags: [u64; 2], streams: usize) -> Self {
        let stream = |tag: u64, sent: bool| {
            let buffer = |n| if sent { payload(tag, n) } else { vec![0; LENGTHS[n % LENGTHS.len()]] };
            (tag, (0..MESSAGES).map(buffer).collect())
        };
        let sent = (0..streams as u64).map(|n| stream(tags[0] + n, true));
        let received = (0..streams as u64).map(|n| stream(tags[1] + n, false));
        let streams: Vec<_> = sent.chain(received).collect();
        let count = streams.len() * MESSAGES;
        let done = (0..count).map(|_| AtomicBool::new(false)).collect();
        Self { ep, cq, peer, streams, done, left: AtomicUsize::new(count) }
    }

    /// The indexes of the sent or of the received streams.
    fn streams(&self, sent: bool) -> std::ops::Range<usize> {
        let half = self.streams.len() / 2;
        if sent { 0..half } else { half..2 * half }
    }

    /// Starts message `n` of a stream, and calls `make_room` while the endpoint has no room.
    fn start(&self, stream: usize, n: usize, make_room: &dyn Fn()) {
        let (tag, buffers) = &self.streams[stream];
        let (buf, len) = (buffers[n].as_ptr(), buffers[n].len());
        let context = (stream * MESSAGES + n + 1) as *mut c_void;
        let ops = unsafe { &*(*self.ep).tagged };
        let end = Instant::now() + PATIENCE;
        loop {
            let result = if self.streams(true).contains(&stream) {
                unsafe { ops.send.unwrap()(self.ep, buf.cast(), len, null_mut(), self.peer, *tag, context) }
            } else {
                let buf = buf.cast_mut().cast();
                unsafe { ops.recv.unwrap()(self.ep, buf, len, null_mut(), FI_ADDR_UNSPEC, *tag, 0, context) }
            };
            if result == 0 {
                return;
            }
            assert_eq!(result, err(FI_EAGAIN));
            assert!(Instant::now() < end, "no room");
            make_room();
        }
    }

    /// Reads the entries of the queue.
    fn drain(&self) {
        let mut entries: [fi_cq_tagged_entry; 8] = unsafe { std::mem::zeroed() };
        let read = unsafe { (*(*self.cq).ops).read.unwrap() };
        let count = unsafe { read(self.cq, entries.as_mut_ptr().cast(), entries.len()) };
        if count == err(FI_EAGAIN) {
            return std::thread::yield_now();
        }
        assert!(count > 0, "fi_cq_read: {count}");
        for entry in &entries[..count as usize] {
            let at = entry.op_context as usize - 1;
            let sent = self.streams(true).contains(&(at / MESSAGES));
            assert_eq!(entry.flags, FI_TAGGED | if sent { FI_SEND } else { FI_RECV }, "operation {at}");
            assert!(!self.done[at].swap(true, Ordering::AcqRel), "operation {at} completed twice");
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Compares every byte of every message.
    fn check(&self) {
        for stream in self.streams(false) {
            let (tag, buffers) = &self.streams[stream];
            for (n, buffer) in buffers.iter().enumerate() {
                assert!(*buffer == payload(*tag, n), "message {n} with tag {tag}");
            }
        }
    }
}

/// The number of pending operations.
fn left(ends: &[End]) -> usize {
    ends.iter().map(|end| end.left.load(Ordering::Acquire)).sum()
}

/// Makes progress until the operations of all ends have completed. A completed message may still have to
/// leave.
fn finish(ends: &[End], progress: &dyn Fn()) {
    let end = Instant::now() + PATIENCE;
    while left(ends) > 0 {
        progress();
        assert!(Instant::now() < end, "{} operations did not complete", left(ends));
    }
}

fn ends(a: &Side<'_>, b: &Side<'_>, to_b: u64, to_a: u64) -> [End; 2] {
    [End::new(a.ep, a.cq, to_b, [0, 100], STREAMS), End::new(b.ep, b.cq, to_a, [100, 0], STREAMS)]
}

/// A domain, an address vector and a name, for a thread that makes control calls.
struct Controls(*mut fid_domain, *mut fid_av, Vec<u8>);

unsafe impl Sync for Controls {}

impl Controls {
    fn of(side: &Side<'_>) -> Self {
        Self(side.opened.domain, side.av, side.name())
    }

    /// Registers and closes regions, inserts and removes addresses, until `over`.
    fn call_until(&self, over: &dyn Fn() -> bool) {
        let bytes = memory(64);
        let mut key = 1000;
        while !over() {
            let mut mr = null_mut();
            let reg = unsafe { (*(*self.0).mr).reg.unwrap() };
            let (domain, buf) = (self.0.cast(), bytes.as_ptr().cast());
            assert_eq!(unsafe { reg(domain, buf, 64, FI_REMOTE_WRITE, 0, key, 0, &mut mr, null_mut()) }, 0);
            let mut addr = 0;
            let ops = unsafe { &*(*self.1).ops };
            let mut stranger = self.2.clone();
            // The name of an absent endpoint on the same host.
            stranger[20] ^= 0x55;
            let name = stranger.as_ptr().cast();
            let inserted = unsafe { ops.insert.unwrap()(self.1, name, 1, &mut addr, 0, null_mut()) };
            if inserted == 1 {
                assert_eq!(unsafe { ops.remove.unwrap()(self.1, &mut addr, 1, 0) }, 0);
            }
            assert_eq!(close(mr), 0);
            key += 1;
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// All threads make all calls: each stream has a thread at each end, and all threads of a side read its one
/// queue.
fn safe(a: Side<'_>, b: Side<'_>) {
    let (a, b, to_b, to_a) = introduce(a, b);
    let both = &ends(&a, &b, to_b, to_a);
    let controls = Controls::of(&a);
    std::thread::scope(|scope| {
        for end in both {
            for stream in 0..end.streams.len() {
                scope.spawn(move || {
                    (0..MESSAGES).for_each(|n| end.start(stream, n, &|| end.drain()));
                    finish(both, &|| end.drain());
                });
            }
        }
        scope.spawn(|| controls.call_until(&|| left(both) == 0));
    });
    both.iter().for_each(End::check);
}

/// One thread sends, one posts receives, and one reads the queue: each object and each direction has one
/// thread.
fn fid(a: Side<'_>, b: Side<'_>) {
    let (a, b, to_b, to_a) = introduce(a, b);
    let both = &ends(&a, &b, to_b, to_a);
    std::thread::scope(|scope| {
        for end in both {
            for sent in [true, false] {
                scope.spawn(move || {
                    for n in 0..MESSAGES {
                        end.streams(sent).for_each(|stream| end.start(stream, n, &std::thread::yield_now));
                    }
                });
            }
            scope.spawn(|| finish(both, &|| end.drain()));
        }
    });
    both.iter().for_each(End::check);
}

/// One thread uses the endpoint, another its queue.
fn endpoint(a: Side<'_>, b: Side<'_>) {
    let (a, b, to_b, to_a) = introduce(a, b);
    let both = &ends(&a, &b, to_b, to_a);
    std::thread::scope(|scope| {
        for end in both {
            scope.spawn(|| {
                for n in 0..MESSAGES {
                    (0..end.streams.len()).for_each(|stream| end.start(stream, n, &std::thread::yield_now));
                }
            });
            scope.spawn(|| finish(both, &|| end.drain()));
        }
    });
    both.iter().for_each(End::check);
}

/// FI_THREAD_COMPLETION: one thread reads the counter of a region, which drives every endpoint. Another
/// thread reads the queue of an endpoint. The threads share no completion structure.
fn region_counter(lib: &Lib) {
    const TIME: Duration = Duration::from_millis(100);
    let open = || {
        Side::with(lib, 0, |hints| {
            hints.get().caps = FI_TAGGED | FI_RMA | FI_RMA_EVENT;
            hints.domain().threading = FI_THREAD_COMPLETION;
        })
    };
    let (a, b, to_b, to_a) = introduce(open(), open());
    works(&a, &b, to_b);
    works(&b, &a, to_a);
    let (target, written) = (memory(8), Cntr(b.opened.cntr()));
    let region = b.register(target, FI_REMOTE_WRITE, 9);
    assert_eq!(bind(region, written.0, FI_REMOTE_WRITE), 0);
    let mut writes = 0;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let _over = Over(over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                written.read();
            }
        });
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            a.start("fi_write", &Args { key: 9, ..Args::new(pattern(8), to_b) }, &[&b]);
            a.next(&[&b]).done();
            works(&b, &a, to_a);
            writes += 1;
        }
    });
    written.reaches(writes, &[&a, &b]);
    assert_eq!([close(region), close(written.0)], [0; 2]);
}

/// Each thread has its own endpoint and queue. All of them belong to one domain.
fn completion(a: Side<'_>, b: Side<'_>) {
    let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
    attr.format = FI_CQ_FORMAT_TAGGED;
    let mut objects = |side: &Side<'_>| -> Vec<(*mut fid_ep, *mut fid_cq)> {
        (0..STREAMS)
            .map(|_| {
                let (ep, cq) = (side.another_ep(), open!(side.opened.domain, cq_open, &mut attr).unwrap());
                assert_eq!(bind(ep, side.av, 0), 0);
                assert_eq!(bind(ep, cq, FI_TRANSMIT | FI_RECV), 0);
                assert_eq!(control(ep, FI_ENABLE, null_mut()), 0);
                (ep, cq)
            })
            .collect()
    };
    let (of_a, of_b) = (objects(&a), objects(&b));
    let mut all = Vec::new();
    for (n, (mine, theirs)) in of_a.iter().zip(&of_b).enumerate() {
        let (to_b, to_a) = (a.insert(&name_of(theirs.0)), b.insert(&name_of(mine.0)));
        let tag = 10 * n as u64;
        all.push(End::new(mine.0, mine.1, to_b, [tag, tag + 500], 1));
        all.push(End::new(theirs.0, theirs.1, to_a, [tag + 500, tag], 1));
    }
    let (all, controls) = (&all, [Controls::of(&a), Controls::of(&b)]);
    std::thread::scope(|scope| {
        for end in all {
            scope.spawn(move || {
                for n in 0..MESSAGES {
                    (0..2).for_each(|stream| end.start(stream, n, &|| end.drain()));
                }
                finish(all, &|| end.drain());
            });
        }
        for controls in &controls {
            scope.spawn(move || controls.call_until(&|| left(all) == 0));
        }
    });
    all.iter().for_each(End::check);
    for (ep, cq) in of_a.into_iter().chain(of_b) {
        assert_eq!(close(ep), 0);
        assert_eq!(close(cq), 0);
    }
}

/// Several threads use a domain. The client admits one thread at a time.
fn domain(a: Side<'_>, b: Side<'_>) {
    let (a, b, to_b, to_a) = introduce(a, b);
    let both = &ends(&a, &b, to_b, to_a);
    let controls = [Controls::of(&a), Controls::of(&b)];
    std::thread::scope(|scope| {
        for (end, controls) in both.iter().zip(&controls) {
            let turn: &Mutex<()> = Box::leak(Box::default());
            for stream in 0..end.streams.len() {
                scope.spawn(move || {
                    for n in 0..MESSAGES {
                        let _mine = turn.lock().unwrap();
                        end.start(stream, n, &|| end.drain());
                    }
                    finish(both, &|| {
                        let _mine = turn.lock().unwrap();
                        end.drain();
                    });
                });
            }
            scope.spawn(|| controls.call_until(&|| left(both) == 0));
        }
    });
    both.iter().for_each(End::check);
}

/// A thread is about to sleep on a queue's descriptor. Another thread reads the queue once and ends. The next
/// message wakes the sleeper.
fn reader_beside_sleeper(lib: &Lib) {
    let (a, b, to_b, _) = introduce(Side::new(lib), Side::new(lib));
    works(&a, &b, to_b);
    let mut fd: c_int = -1;
    assert_eq!(control(b.cq, FI_GETWAIT, (&raw mut fd).cast()), 0);
    let trywait = || {
        let (fabric, mut fids) = (b.opened.fabric, [b.cq.cast::<fid>()]);
        unsafe { (*(*fabric).ops).trywait.unwrap()(fabric, fids.as_mut_ptr(), 1) }
    };
    for round in 0..20 {
        b.trecv(memory(8), 1);
        until(|| {
            assert!(b.poll().is_none());
            (trywait() == 0).then_some(())
        });
        let cq = b.cq as usize;
        let reader = std::thread::spawn(move || {
            let cq = cq as *mut fid_cq;
            assert_eq!(unsafe { (*(*cq).ops).read.unwrap()(cq, null_mut(), 0) }, err(FI_EAGAIN));
        });
        reader.join().unwrap();
        a.tsend(pattern(8), to_b, 2);
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(
            unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as c_int) },
            1,
            "round {round}: a lost wake-up"
        );
        b.next(&[&a]);
        a.next(&[&b]);
    }
}

/// Two threads wait for a counter. One thread is about to sleep on the descriptor. The reports to the other
/// thread, and its next wait, do not take a wake-up from the first.
fn waiters_for_a_counter(lib: &Lib) {
    for progress in MODELS {
        let side = Side::with(lib, 0, |hints| hints.domain().data_progress = progress);
        let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
        attr.wait_obj = FI_WAIT_FD;
        let cntr = Cntr(open!(side.opened.domain, cntr_open, &mut attr).unwrap());
        let (fabric, fd) = (side.opened.fabric as usize, descriptor(cntr.0));
        let may_sleep = move || {
            let counter = cntr;
            trywait(fabric as *mut fid_fabric, counter.0)
        };
        let other = |run: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        assert_eq!(cntr.read(), 0);
        cntr.add(1);
        other(&|| assert_eq!(may_sleep(), -FI_EAGAIN));
        assert_eq!(may_sleep(), -FI_EAGAIN, "this thread has read 0");
        assert_eq!((cntr.read(), may_sleep()), (1, 0));
        cntr.add(1);
        other(&|| {
            assert_eq!((may_sleep(), cntr.read()), (-FI_EAGAIN, 2));
            assert_eq!(may_sleep(), -FI_EAGAIN, "the sleeper may not have seen the bell yet");
        });
        assert!(readable(fd, Duration::ZERO), "a lost wake-up");
        assert_eq!((cntr.read(), may_sleep(), may_sleep()), (2, -FI_EAGAIN, 0));
        cntr.add(1);
        other(&|| assert_eq!(cntr.wait(100, Duration::from_millis(5)), -FI_ETIMEDOUT));
        assert!(readable(fd, Duration::ZERO), "a lost wake-up");
        // A woken thread that does not read again delays the others for a short time only.
        assert_eq!((cntr.read(), may_sleep()), (3, -FI_EAGAIN));
        other(&|| assert_eq!((may_sleep(), may_sleep()), (-FI_EAGAIN, 0)));
        cntr.add(1);
        let start = Instant::now();
        until(|| (may_sleep() == 0).then_some(()));
        assert!(start.elapsed() >= Duration::from_millis(50), "the woken thread had no time to return");
        assert!(!readable(fd, Duration::ZERO));
        cntr.add(1);
        assert!(readable(fd, Duration::ZERO));
        assert_eq!(close(cntr.0), 0);
    }
}

/// A thread waits for several entries at once. The first entry wakes another thread, which sleeps on the
/// descriptor.
fn waiters_for_several_entries(lib: &Lib) {
    const WANTED: usize = 5;
    for progress in MODELS {
        let with = |hints: &crate::client::Info<'_>| hints.domain().data_progress = progress;
        let b = Side::unbound(lib, 0, with);
        let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
        (attr.format, attr.wait_obj, attr.wait_cond) = (FI_CQ_FORMAT_TAGGED, FI_WAIT_FD, FI_CQ_COND_THRESHOLD);
        let cq: *mut fid_cq = open!(b.opened.domain, cq_open, &mut attr).unwrap();
        assert_eq!([bind(b.ep, b.av, 0), bind(b.ep, b.cq, FI_TRANSMIT), bind(b.ep, cq, FI_RECV), b.enable()], [0; 4]);
        let a = Side::with(lib, 0, with);
        let to_b = a.insert(&b.name());
        let fd = descriptor(cq);
        let send = || {
            a.tsend(pattern(8), to_b, 1);
            a.next(&[]).done();
        };
        (0..=WANTED).for_each(|_| b.trecv(memory(8), 2));
        until(|| (trywait(b.opened.fabric, cq) == 0).then_some(()));
        let queue = cq as usize;
        let patient = std::thread::spawn(move || {
            let cq = queue as *mut fid_cq;
            let mut entries: [fi_cq_tagged_entry; WANTED] = unsafe { std::mem::zeroed() };
            let sread = unsafe { (*(*cq).ops).sread.unwrap() };
            let timeout = PATIENCE.as_millis() as c_int;
            unsafe { sread(cq, entries.as_mut_ptr().cast(), WANTED, WANTED as *const c_void, timeout) }
        });
        send();
        // The other thread has seen the entry and sleeps again.
        std::thread::sleep(Duration::from_millis(50));
        assert!(readable(fd, PATIENCE / 4), "a lost wake-up");
        let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
        assert_eq!(unsafe { (*(*cq).ops).read.unwrap()(cq, (&raw mut entry).cast(), 1) }, 1);
        (0..WANTED).for_each(|_| send());
        assert_eq!(patient.join().unwrap(), WANTED as isize);
        let mut b = b;
        b.close_ep();
        assert_eq!(close(cq), 0);
    }
}

/// A thread is about to sleep on a queue's descriptor. Another thread starts a send for which there is no
/// room, which makes progress, and ends. The next message wakes the sleeper.
fn sender_beside_sleeper(lib: &Lib) {
    let small = Side::with(lib, 0, |hints| hints.tx().size = 4);
    let (a, b, to_b, _) = introduce(Side::new(lib), small);
    works(&a, &b, to_b);
    // A peer that makes no progress, so that no message leaves.
    let (c, b, _, to_c) = introduce(Side::new(lib), b);
    let mut fd: c_int = -1;
    assert_eq!(control(b.cq, FI_GETWAIT, (&raw mut fd).cast()), 0);
    let long = Args { tag: 9, ..Args::new(pattern(long_bytes()), to_c) };
    let mut under_way = 0;
    while b.run("fi_tsend", &long) == 0 {
        under_way += 1;
    }
    for round in 0..20 {
        b.trecv(memory(8), 1);
        until(|| {
            assert!(b.poll().is_none());
            let (fabric, mut fids) = (b.opened.fabric, [b.cq.cast::<fid>()]);
            (unsafe { (*(*fabric).ops).trywait.unwrap()(fabric, fids.as_mut_ptr(), 1) } == 0).then_some(())
        });
        // One thread can play both parts, since the sender does not read the queue.
        assert_eq!(b.run("fi_tsend", &long), err(FI_EAGAIN));
        a.tsend(pattern(8), to_b, 2);
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(
            unsafe { libc::poll(&mut poll, 1, PATIENCE.as_millis() as c_int) },
            1,
            "round {round}: a lost wake-up"
        );
        b.next(&[&a]);
        a.next(&[&b]);
    }
    let target = memory(long.len);
    for _ in 0..under_way {
        c.start("fi_trecv", &Args { tag: 9, ..Args::new(target, 0) }, &[]);
        c.next(&[&b]).done();
        b.next(&[&c]).done();
    }
}

/// A thread sleeps on a queue's descriptor. Another thread starts an operation, which is accepted, and ends.
/// The sleeper is woken for the work of the operation and for its completion.
fn starter_beside_sleeper(lib: &Lib) {
    let (a, b, _, to_a) = introduce(Side::new(lib), Side::new(lib));
    works(&b, &a, to_a);
    let mut fd: c_int = -1;
    assert_eq!(control(b.cq, FI_GETWAIT, (&raw mut fd).cast()), 0);
    let may_sleep = || {
        let (fabric, mut fids) = (b.opened.fabric, [b.cq.cast::<fid>()]);
        unsafe { (*(*fabric).ops).trywait.unwrap()(fabric, fids.as_mut_ptr(), 1) == 0 }
    };
    // One thread can play both parts, since the sleeper reads only after a wake-up.
    let beside = |name: &str, args: &Args, others: &[&Side<'_>]| {
        until(|| {
            assert!(b.poll().is_none());
            may_sleep().then_some(())
        });
        assert_eq!(b.run(name, args), 0);
        let mut asleep = true;
        until(|| {
            for other in others {
                assert!(other.poll().is_none());
            }
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            if asleep && unsafe { libc::poll(&mut poll, 1, 0) } == 0 {
                return None;
            }
            let found = b.poll();
            asleep = found.is_none() && may_sleep();
            found
        })
    };
    let target = memory(long_bytes());
    let region = a.register(target, FI_REMOTE_WRITE, 9);
    for round in 0..10 {
        let source = pattern(long_bytes() - round);
        beside("fi_write", &Args { key: 9, ..Args::new(source, to_a) }, &[&a]).done();
        assert!(target[..source.len()] == *source);
    }
    assert_eq!(close(region), 0);
    // A new peer, and a peer that has left.
    let c = Side::new(lib);
    let to_c = b.insert(&c.name());
    let region = c.register(target, FI_REMOTE_WRITE, 9);
    beside("fi_write", &Args { key: 9, ..Args::new(pattern(8), to_c) }, &[&c]).done();
    assert_eq!(close(region), 0);
    let mut d = Side::new(lib);
    let to_d = b.insert(&d.name());
    d.close_ep();
    beside("fi_tsend", &Args::new(pattern(8), to_d), &[]).failed();
}

/// The sides that the inserting and the removing thread share.
struct Shared<'a>(&'a Side<'a>, &'a Side<'a>);

// All calls through it are thread safe.
unsafe impl Send for Shared<'_> {}
unsafe impl Sync for Shared<'_> {}

/// Sets the flag when it is dropped, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread removes an address. Another thread inserts an address that gets the same number, and sends to
/// it at once. No message reaches the removed peer.
fn removed_numbers_are_reused(lib: &Lib) {
    const TIME: Duration = Duration::from_secs(1);
    let [sender, old, new] = [(); 3].map(|()| Side::new(lib));
    let (name_of_old, name_of_new) = (old.name(), new.name());
    let to = |side: &Side<'_>, number| {
        sender.start("fi_tinject", &Args::new(pattern(8), number), &[side]);
        side.trecv(memory(8), 3);
        side.next(&[&sender]).done();
    };
    let remove = |side: &Side<'_>, mut number: u64| {
        assert_eq!(unsafe { (*(*side.av).ops).remove.unwrap()(side.av, &mut number, 1, 0) }, 0);
    };
    // Both peers were connected before.
    for (side, name) in [(&old, &name_of_old), (&new, &name_of_new)] {
        let number = sender.insert(name);
        to(side, number);
        remove(&sender, number);
    }
    let end = Instant::now() + TIME;
    let mut rounds = 0;
    while Instant::now() < end {
        let number = sender.insert(&name_of_old);
        to(&old, number);
        let over = AtomicBool::new(false);
        let shared = Shared(&sender, &new);
        std::thread::scope(|scope| {
            let (over, shared) = (&over, &shared);
            // This thread keeps the endpoint busy, so that a removal has to wait for it.
            scope.spawn(move || {
                let Shared(sender, _) = shared;
                while !over.load(Ordering::Relaxed) {
                    sender.progress();
                }
            });
            scope.spawn(move || remove(shared.0, number));
            let _over = Over(over);
            let got = loop {
                let got = shared.0.insert(&name_of_new);
                if got == number {
                    break got;
                }
                remove(shared.0, got);
            };
            to(shared.1, got);
        });
        assert!(old.poll().is_none());
        to(&new, number);
        remove(&sender, number);
        rounds += 1;
    }
    assert!(rounds > 0);
    old.nothing(&[&sender]);
}
