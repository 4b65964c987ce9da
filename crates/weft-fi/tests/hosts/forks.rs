//! A client forks while it has open endpoints and the provider's threads run. The child has no such threads.
//! The child can end in any way, and the parent goes on.

use std::io::Read;
use std::os::fd::{FromRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::joins::{descriptor, readable, trywait};
use crate::side::{Args, PATIENCE, Side, introduce, long_bytes, memory, pattern, scenes, until, works};

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("a child exits", a_child_exits),
            ("a child closes", a_child_closes),
            ("a child closes locked objects", a_child_closes_locked_objects),
            ("a child calls getinfo", a_child_calls_getinfo),
            ("a handler exits", a_handler_exits),
            ("a child outlives an endpoint", a_child_outlives_an_endpoint),
            ("a child outlives a sleeper's endpoint", a_child_outlives_a_sleepers_endpoint),
        ],
    );
}

/// Forks a child that runs the function and calls exit(), which must succeed. Returns the child's output.
pub(crate) fn printed_at_exit(before: impl FnOnce()) -> String {
    let mut ends: [RawFd; 2] = [-1; 2];
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        unsafe { libc::dup2(ends[1], 2) };
        before();
        unsafe { libc::exit(0) };
    }
    unsafe { libc::close(ends[1]) };
    let end = Instant::now() + PATIENCE;
    let mut status = 0;
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > end {
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut text = String::new();
    unsafe { std::fs::File::from_raw_fd(ends[0]) }.read_to_string(&mut text).unwrap();
    assert_eq!(status, 0, "{text}");
    text
}

/// A child that sleeps until this is dropped.
struct Sleeper(libc::pid_t);

impl Sleeper {
    fn new() -> Self {
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // The child does not outlive its parent.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            loop {
                unsafe { libc::pause() };
            }
        }
        Self(child)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let killed = unsafe { libc::kill(self.0, libc::SIGKILL) };
        let ended = unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
        assert_eq!((killed, ended), (0, self.0));
    }
}

/// Prints the sockets by which a peer can be reached.
fn print_sockets() {
    for fd in 0..1000 {
        let mut addr: libc::sockaddr = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&addr) as libc::socklen_t;
        let result = unsafe { libc::getsockname(fd, &mut addr, &mut len) };
        let inet = [libc::AF_INET, libc::AF_INET6].contains(&addr.sa_family.into());
        // The sockets that replace the parent's have no name.
        let named = i32::from(addr.sa_family) == libc::AF_UNIX && len as usize > size_of_val(&addr.sa_family);
        if result == 0 && (inet || named) {
            eprintln!("descriptor {fd} is a socket of the parent");
        }
    }
}

/// The child has no sockets of its parent. With such a socket open, peers would not notice the parent's
/// death.
fn a_child_exits(lib: &Lib) {
    let open = || Side::with(lib, 0, |hints| hints.domain().data_progress = FI_PROGRESS_AUTO);
    let (a, b, to_b, _) = introduce(open(), open());
    for _ in 0..5 {
        works(&a, &b, to_b);
        assert_eq!(printed_at_exit(print_sockets), "");
    }
    works(&a, &b, to_b);
}

/// A signal handler that interrupts a read of a queue ends the program, while the progress thread uses the
/// endpoint.
fn a_handler_exits(lib: &Lib) {
    const POLLING: Duration = Duration::from_micros(300);
    static READING: AtomicBool = AtomicBool::new(false);
    extern "C" fn handler(_: i32) {
        if READING.load(Ordering::Relaxed) {
            unsafe { libc::exit(0) };
        }
    }
    for round in 0..20 {
        let printed = printed_at_exit(|| {
            let side = Side::with(lib, 0, |hints| hints.domain().data_progress = FI_PROGRESS_AUTO);
            let begin = Instant::now();
            assert_ne!(
                unsafe { libc::signal(libc::SIGALRM, handler as *const () as libc::sighandler_t) },
                libc::SIG_ERR
            );
            let interval = libc::timeval { tv_sec: 0, tv_usec: 171 };
            let first = libc::timeval { tv_sec: 0, tv_usec: 10_000 + 13 * round };
            let timer = libc::itimerval { it_interval: interval, it_value: first };
            assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) }, 0);
            while begin.elapsed() < PATIENCE {
                let turn = Instant::now();
                while turn.elapsed() < POLLING {
                    READING.store(true, Ordering::Relaxed);
                    assert!(side.poll().is_none());
                    READING.store(false, Ordering::Relaxed);
                }
                std::thread::sleep(5 * POLLING);
            }
            unsafe { libc::_exit(1) };
        });
        assert_eq!(printed, "");
    }
}

/// Objects of the parent are not open in the child. fi_getinfo in the child neither accepts nor reports them.
fn a_child_calls_getinfo(lib: &Lib) {
    let side = Side::new(lib);
    let api = lib.newest();
    let printed = printed_at_exit(|| {
        assert!(lib.ask(api, None).unwrap().domain().domain.is_null());
        let hints = lib.allocinfo();
        hints.domain().domain = side.opened.domain;
        assert_eq!(lib.ask(api, Some(&hints)).err(), Some(FI_ENODATA));
    });
    assert_eq!(printed, "");
    assert_eq!(lib.ask(api, None).unwrap().domain().domain, side.opened.domain);
}

/// The child closes all inherited objects, as destructors do at the end of a program. The parent goes on and
/// loses no pending operation.
fn a_child_closes(lib: &Lib) {
    for progress in [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO] {
        let open = || Side::with(lib, 0, |hints| hints.domain().data_progress = progress);
        let (a, b, to_b, to_a) = introduce(open(), open());
        fork_and_close(&a, &b, to_b, to_a);
    }
}

fn fork_and_close(a: &Side<'_>, b: &Side<'_>, to_b: u64, to_a: u64) {
    let region = b.register(memory(64), FI_REMOTE_WRITE, 3);
    works(a, b, to_b);
    for round in 0..5 {
        let (source, target) = (pattern(long_bytes() + round), memory(long_bytes() + round));
        for context in 1..20 {
            a.tsend(pattern(8), to_b, context);
        }
        a.start("fi_tsend", &Args { tag: 5, ..Args::new(source, to_b) }, &[]);
        let printed = printed_at_exit(|| {
            assert_eq!(close(region), 0);
            [a, b].into_iter().for_each(close_all);
        });
        assert_eq!(printed, "");
        for context in 1..20 {
            b.trecv(memory(8), context);
            b.next(&[a]).done();
        }
        b.start("fi_trecv", &Args { tag: 5, ..Args::new(target, 0) }, &[]);
        b.next(&[a]).done();
        assert!(target == source);
        for _ in 0..20 {
            a.next(&[b]).done();
        }
        works(b, a, to_a);
    }
    assert_eq!(close(region), 0);
}

/// Closes all objects in the order that clients use.
fn close_all(side: &Side<'_>) {
    let results =
        [close(side.ep), close(side.cq), close(side.av), close(side.opened.domain), close(side.opened.fabric)];
    assert_eq!(results, [0; 5]);
}

/// Memory whose first access waits until it is released. It holds a thread inside a call of the provider.
struct Trap {
    room: *mut libc::c_void,
    page: *mut libc::c_void,
}

static TRAPPED: AtomicBool = AtomicBool::new(false);
static RELEASED: AtomicBool = AtomicBool::new(false);

impl Trap {
    const BYTES: usize = 1 << 16;

    fn new() -> Self {
        extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
            TRAPPED.store(true, Ordering::Release);
            while !RELEASED.load(Ordering::Acquire) {
                unsafe { libc::sched_yield() };
            }
            let page = (unsafe { (*info).si_addr() } as usize & !(Trap::BYTES - 1)) as *mut libc::c_void;
            if unsafe { libc::mprotect(page, Trap::BYTES, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
                // A fault elsewhere ends the test.
                unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            }
        }
        let (flags, none) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, null_mut());
        // The memory is aligned to its size, so that the handler finds its start.
        let room = unsafe { libc::mmap(none, 2 * Self::BYTES, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(room, libc::MAP_FAILED);
        let page = room.map_addr(|address| address.next_multiple_of(Self::BYTES));
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action, null_mut()) }, 0);
        Self { room, page }
    }

    /// Runs `call` in a thread, runs `meanwhile` while that thread waits for this memory, and then releases
    /// the memory.
    fn hold(&self, call: impl FnOnce(*mut libc::c_void) + Send, meanwhile: impl FnOnce()) {
        [&TRAPPED, &RELEASED].into_iter().for_each(|flag| flag.store(false, Ordering::Release));
        assert_eq!(unsafe { libc::mprotect(self.page, Self::BYTES, libc::PROT_NONE) }, 0);
        let page = self.page as usize;
        std::thread::scope(|scope| {
            scope.spawn(move || call(page as *mut libc::c_void));
            until(|| TRAPPED.load(Ordering::Acquire).then_some(()));
            meanwhile();
            RELEASED.store(true, Ordering::Release);
        });
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        assert_eq!(unsafe { libc::munmap(self.room, 2 * Self::BYTES) }, 0);
    }
}

/// A side that another thread uses. The test serializes the calls.
struct Shared<'a, 'b>(&'a Side<'b>);
unsafe impl Send for Shared<'_, '_> {}

/// The process forks while another thread is inside the endpoint, a queue's list of endpoints, or the queue.
/// The child can still close all objects, and the parent goes on.
fn a_child_closes_locked_objects(lib: &Lib) {
    const BYTES: usize = 8;
    let child_closes = |a: &Side<'_>, b: &Side<'_>| {
        let printed = printed_at_exit(|| {
            unsafe { libc::alarm(5) };
            [a, b].into_iter().for_each(close_all);
        });
        assert_eq!(printed, "");
    };
    let trap = Trap::new();
    for progress in [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO] {
        let open = || {
            Side::with(lib, 0, |hints| {
                (hints.domain().threading, hints.domain().data_progress) = (FI_THREAD_SAFE, progress);
            })
        };
        let (a, b, to_b, to_a) = introduce(open(), open());
        works(&a, &b, to_b);
        let args = |page: *mut libc::c_void| Args { buf: page, len: BYTES, ..Args::new(&mut [], to_b) };
        let sender = Shared(&a);
        // A short message is copied in the call.
        trap.hold(
            move |page| {
                let Shared(a) = { sender };
                assert_eq!(a.run("fi_tinject", &args(page)), 0);
            },
            || child_closes(&a, &b),
        );
        let received = memory(BYTES);
        b.trecv(received, 1);
        b.next(&[&a]).done();
        if progress == FI_PROGRESS_MANUAL {
            // The read that finds the message copies it.
            a.tsend(pattern(BYTES), to_b, 5);
            a.next(&[]).done();
            let receiver = Shared(&b);
            trap.hold(
                move |page| {
                    let Shared(b) = { receiver };
                    assert_eq!(b.run("fi_trecv", &Args { context: 2, ..args(page) }), 0);
                    b.next(&[]).done();
                },
                || child_closes(&a, &b),
            );
        }
        let reader = Shared(&b);
        b.trecv(received, 3);
        a.tsend(pattern(BYTES), to_b, 4);
        a.next(&[]).done();
        trap.hold(
            move |page| {
                let Shared(b) = { reader };
                let read = unsafe { (*(*b.cq).ops).read.unwrap() };
                until(|| (unsafe { read(b.cq, page, 1) } == 1).then_some(()));
            },
            || child_closes(&a, &b),
        );
        works(&b, &a, to_a);
    }
}

/// No process answers at a closed endpoint, even while a forked child of its process lives.
fn a_child_outlives_an_endpoint(lib: &Lib) {
    let (a, mut b, to_b, _) = introduce(Side::new(lib), Side::new(lib));
    works(&a, &b, to_b);
    let name = b.name();
    let _child = Sleeper::new();
    b.close_ep();
    let c = Side::new(lib);
    c.tsend(pattern(8), c.insert(&name), 1);
    assert_eq!(c.next(&[&a]).failed().err, FI_ECONNREFUSED);
}

/// A queue's descriptor does not report a closed endpoint, even if a message without a receive had arrived
/// there.
fn a_child_outlives_a_sleepers_endpoint(lib: &Lib) {
    let (a, mut b, to_b, _) = introduce(Side::new(lib), Side::new(lib));
    works(&a, &b, to_b);
    let other = b.another_ep();
    assert_eq!([bind(other, b.av, 0), bind(other, b.cq, FI_TRANSMIT | FI_RECV)], [0; 2]);
    assert_eq!(control(other, FI_ENABLE, std::ptr::null_mut()), 0);
    let (fabric, fd) = (b.opened.fabric, descriptor(b.cq));
    until(|| (trywait(fabric, b.cq) == 0).then_some(()));
    a.tsend(pattern(8), to_b, 1);
    a.next(&[]).done();
    assert!(readable(fd, PATIENCE));
    let _child = Sleeper::new();
    assert_eq!(close(std::mem::replace(&mut b.ep, other)), 0);
    // The child may not have replaced its copies of the sockets yet.
    until(|| (trywait(fabric, b.cq) == 0 && !readable(fd, Duration::from_millis(50))).then_some(()));
}
