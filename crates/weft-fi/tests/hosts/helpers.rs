//! The system refuses resources: threads, descriptors, memory files. Operations that do not need the resource
//! still work. The others return the errno, and the log names the resource. weft requests a refused resource
//! again later.

use std::ffi::{CString, c_int};
use std::ptr::null_mut;
use std::time::Duration;

use weft_fi_sys::*;

use crate::client::{Info, Lib, bind, close, control};
use crate::open;
use crate::seccomp::{refuse, refuse_threads};
use crate::side::{Args, Side, err, memory, pair, pattern, scenes, until, works};

/// The scenes over TCP.
pub(crate) fn tcp(lib: &Lib) {
    scenes(
        lib,
        &[
            ("messages_leave_without_a_thread", messages_leave_without_a_thread),
            ("threads", |lib| on_another_thread(lib, threads)),
            ("descriptors", descriptors),
            ("eventfd", |lib| on_another_thread(lib, eventfd)),
        ],
    );
}

/// The scenes over shared memory alone.
pub(crate) fn shm(lib: &Lib) {
    scenes(lib, &[("memfd", |lib| on_another_thread(lib, memfd))]);
}

/// Lends a value to another thread, while this thread waits for it.
struct Lent<'a, T>(&'a T);

// Objects of libfabric are not bound to a thread.
unsafe impl<T> Send for Lent<'_, T> {}

impl<'a, T> Lent<'a, T> {
    fn get(&self) -> &'a T {
        self.0
    }
}

/// Runs a function on a new thread. Its system call filter ends with the thread.
fn on_another_thread<T>(with: &T, body: fn(&T)) {
    let with = Lent(with);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || body(with.get()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Returns whether the process has a thread of this name.
fn has_thread(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.into_iter().any(|comm| comm.trim() == name)
}

/// Sends some messages in a row, of which TCP gathers the later ones, and makes no further call. weft's
/// thread writes them, or they are written at once where the system refuses the thread.
fn messages_leave_without_a_thread(lib: &Lib) {
    const MESSAGES: usize = 5;
    const FLUSHER: &str = "weft-flusher";
    /// After a refusal, weft waits a tenth of a second before it starts the thread again.
    const RETRY: Duration = Duration::from_millis(110);
    let sides = pair(lib);
    let (a, b, to_b, _) = &sides;
    on_another_thread(&sides, |(a, b, to_b, _)| {
        refuse_threads();
        works(a, b, *to_b);
        burst(a, *to_b, MESSAGES);
    });
    assert!(!has_thread(FLUSHER), "the filter permits threads");
    arrive(b, MESSAGES);
    assert!(!has_thread(FLUSHER));
    std::thread::sleep(RETRY);
    burst(a, *to_b, MESSAGES);
    arrive(b, MESSAGES);
    assert!(has_thread(FLUSHER), "a refusal is not final");
}

fn burst(side: &Side<'_>, to: u64, messages: usize) {
    for at in 0..messages {
        assert_eq!(side.run("fi_tinject", &Args::new(pattern(8 + at), to)), 0);
    }
}

/// All messages arrive, although only this side makes calls.
fn arrive(side: &Side<'_>, messages: usize) {
    for at in 0..messages {
        side.trecv(memory(64), at);
        assert_eq!(until(|| side.poll()).done().len, 8 + at);
    }
}

/// Opens a queue, a counter, an event queue and a wait set with this wait object, and returns the results.
fn opened_with(side: &Side<'_>, object: fi_wait_obj) -> [c_int; 4] {
    fn end<F>(opened: Result<*mut F, c_int>) -> c_int {
        opened.map_or_else(|errno| errno, |object| close(object))
    }
    let opened = &side.opened;
    let mut cq: fi_cq_attr = unsafe { std::mem::zeroed() };
    let mut cntr: fi_cntr_attr = unsafe { std::mem::zeroed() };
    let mut set = fi_wait_attr { wait_obj: object, flags: 0 };
    (cq.wait_obj, cntr.wait_obj) = (object, object);
    let cq: Result<*mut fid_cq, c_int> = open!(opened.domain, cq_open, &mut cq);
    let cntr: Result<*mut fid_cntr, c_int> = open!(opened.domain, cntr_open, &mut cntr);
    let mut opened_set = null_mut();
    let result = unsafe { (*(*opened.fabric).ops).wait_open.unwrap()(opened.fabric, &mut set, &mut opened_set) };
    let set = if result == 0 { Ok(opened_set) } else { Err(-result) };
    [end(cq), end(cntr), end(opened.eq(|attr| attr.wait_obj = object)), end(set)]
}

/// A side with automatic progress that is not enabled yet.
fn automatic(lib: &Lib) -> Side<'_> {
    let side = Side::unbound(lib, 0, |hints| hints.domain().data_progress = FI_PROGRESS_AUTO);
    assert_eq!([bind(side.ep, side.av, 0), bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV)], [0; 2]);
    side
}

/// A refused thread is reported as such, and not as a lack of descriptors.
fn threads(lib: &Lib) {
    let sides = (automatic(lib), Side::new(lib));
    on_another_thread(&sides, |(automatic, side)| {
        refuse_threads();
        assert_eq!(opened_with(side, FI_WAIT_MUTEX_COND), [FI_EAGAIN; 4]);
        assert_eq!(opened_with(side, FI_WAIT_FD), [0; 4], "no thread is needed");
        assert_eq!(automatic.enable(), -FI_EAGAIN);
    });
    let (automatic, side) = &sides;
    assert_eq!(opened_with(side, FI_WAIT_MUTEX_COND), [0; 4]);
    assert_eq!(automatic.enable(), 0, "a refusal is not final");
    works(automatic, side, automatic.insert(&side.name()));
}

/// Runs a function while no descriptor can be opened. No other thread runs here.
fn without_descriptors(body: impl FnOnce()) {
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    let none = libc::rlimit { rlim_cur: 0, ..limit };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
    body();
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

/// Hints for a domain with automatic progress.
fn automatic_info(lib: &Lib) -> Info<'_> {
    let hints = lib.allocinfo();
    hints.domain().data_progress = FI_PROGRESS_AUTO;
    lib.ask(lib.newest(), Some(&hints)).unwrap()
}

/// The descriptors run out. Calls that need none still work.
fn descriptors(lib: &Lib) {
    let (side, other, to_other, _) = pair(lib);
    let unbound = Side::unbound(lib, 0, |_| ());
    assert_eq!([bind(unbound.ep, unbound.av, 0), bind(unbound.ep, unbound.cq, FI_TRANSMIT | FI_RECV)], [0; 2]);
    works(&side, &other, to_other);
    let automatic = automatic_info(lib);
    let (mut fd, mut entry): (c_int, fi_cq_tagged_entry) = (-1, unsafe { std::mem::zeroed() });
    let sread = unsafe { (*(*side.cq).ops).sread.unwrap() };
    let mut sleeps = || unsafe { sread(side.cq, (&raw mut entry).cast(), 1, std::ptr::null(), 1) };
    without_descriptors(|| {
        for object in [FI_WAIT_FD, FI_WAIT_MUTEX_COND] {
            assert_eq!(opened_with(&side, object), [FI_EMFILE; 4]);
        }
        assert_eq!(open!(side.opened.fabric, domain, automatic.raw), Err::<*mut fid_domain, _>(FI_EMFILE));
        assert_eq!(unbound.enable(), -FI_EMFILE);
        assert_eq!(sleeps(), err(FI_EAGAIN), "without a descriptor it yields");
        assert_eq!(control(side.cq, FI_GETWAIT, (&raw mut fd).cast()), -FI_ENODATA);
        works(&side, &other, to_other);
    });
    assert_eq!(unbound.enable(), 0);
    assert_eq!(sleeps(), err(FI_EAGAIN));
    assert_eq!(control(side.cq, FI_GETWAIT, (&raw mut fd).cast()), 0, "a refusal is not final");
}

/// If the system forbids the call, its errno is returned.
fn eventfd(lib: &Lib) {
    let (side, automatic) = (Side::new(lib), automatic_info(lib));
    refuse(&[(libc::SYS_eventfd2, libc::EPERM)]);
    assert_eq!(opened_with(&side, FI_WAIT_FD), [FI_EPERM; 4]);
    assert_eq!(open!(side.opened.fabric, domain, automatic.raw), Err::<*mut fid_domain, _>(FI_EPERM));
}

/// Without memory files there is no shared memory, and there are no shared address vectors.
fn memfd(lib: &Lib) {
    let unbound = Side::unbound(lib, 0, |_| ());
    assert_eq!([bind(unbound.ep, unbound.av, 0), bind(unbound.ep, unbound.cq, FI_TRANSMIT | FI_RECV)], [0; 2]);
    refuse(&[(libc::SYS_memfd_create, libc::EPERM)]);
    assert_eq!(unbound.enable(), -FI_EPERM);
    let name = CString::new(format!("no file {}", std::process::id())).unwrap();
    assert_eq!(unbound.opened.av(|attr| attr.name = name.as_ptr()), Err(FI_EPERM));
}
