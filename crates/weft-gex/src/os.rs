//! Processes and signals: forks, exit handlers, and the end of a process.
//!
//! Place in the data flow: `spawn/fork.rs` forks ranks, and `exit` ends them. The functions that may run in a signal
//! handler say so.
//!
//! Sources: fork(2), on_exit(3), sigaction(2), signal-safety(7), PR_SET_PDEATHSIG(2const).

use std::ffi::c_int;
use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};

/// Forks. Returns the child's number in the parent, and `None` in the child.
///
/// # Errors
/// Those of fork(2).
pub fn fork() -> io::Result<Option<u32>> {
    // SAFETY: the child continues as a rank with this thread alone. Callers fork before the job has other threads.
    let child = unsafe { libc::fork() };
    match child {
        0 => Ok(None),
        child => u32::try_from(child).map(Some).map_err(|_| io::Error::last_os_error()),
    }
}

/// Lets the kernel kill this process when its parent, a process of this number, ends.
pub fn die_with(parent: u32) {
    let set = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    debug_assert!(set.is_ok());
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    if now != Some(parent) {
        end_now(1);
    }
}

/// Ends the process at once, without exit handlers. May run in a signal handler.
pub fn end_now(code: i32) -> ! {
    // SAFETY: the call has no precondition and does not return.
    unsafe { libc::_exit(code) }
}

/// Writes out all streams of the C library.
pub fn flush_streams() {
    // SAFETY: a null pointer asks for all streams.
    let _ = unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Sends a signal. A process that has ended is no error. May run in a signal handler.
pub fn kill(pid: u32, signal: c_int) {
    let Some(pid) = i32::try_from(pid).ok().filter(|&pid| pid > 0) else { return };
    // SAFETY: the call has no precondition; the number is that of one process.
    let _ = unsafe { libc::kill(pid, signal) };
}

/// Whether a process of this number runs. May run in a signal handler.
#[must_use]
pub fn exists(pid: u32) -> bool {
    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
        && !has_ended(pid)
}

/// Whether a process has ended, and its parent has not taken its status. Launchers may never do so.
fn has_ended(pid: u32) -> bool {
    use std::io::Write as _;
    let (mut path, mut text) = ([0; 32], [0; 512]);
    let _ = write!(&mut path[..31], "/proc/{pid}/stat");
    let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let read = rustix::io::read(&file, &mut text).unwrap_or(0);
    // The state follows the name, which is in parentheses.
    let name = text[..read].iter().rposition(|&byte| byte == b')');
    name.is_some_and(|at| matches!(text.get(at + 2), Some(b'Z' | b'X')))
}

type ExitHandler = extern "C" fn(c_int, *mut libc::c_void);

unsafe extern "C" {
    fn on_exit(handler: ExitHandler, argument: *mut libc::c_void) -> c_int;
}

/// Registers a function that exit(3) calls with the status.
pub fn at_exit(handler: ExitHandler) {
    // SAFETY: the handler is a function of this library, which is never unloaded while it is registered.
    let refused = unsafe { on_exit(handler, std::ptr::null_mut()) };
    debug_assert_eq!(refused, 0);
}

/// A handler of a signal.
pub type SignalHandler = extern "C" fn(c_int);

/// The handler of a signal, or what stands for its default action.
fn handler_of(signal: c_int) -> Option<libc::sighandler_t> {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer changes nothing; the other one points to a local structure.
    let read = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: all zeros are a value of the structure.
    (read == 0).then(|| unsafe { now.assume_init() }.sa_sigaction)
}

fn set_handler(signal: c_int, handler: libc::sighandler_t) {
    let action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros are a value of the structure: no flags, an empty mask.
    let mut action = unsafe { action.assume_init() };
    action.sa_sigaction = handler;
    // SAFETY: the structure is complete, and the handler has the type that its flags say.
    let set = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    debug_assert_eq!(set, 0);
}

/// Installs a handler, unless the client has one or ignores the signal.
pub fn catch(signal: c_int, handler: SignalHandler) {
    if handler_of(signal) == Some(libc::SIG_DFL) {
        set_handler(signal, handler as libc::sighandler_t);
    }
}

/// Whether a handler of the client's takes a signal, rather than `ours`. May run in a signal handler.
#[must_use]
pub fn has_client_handler(signal: c_int, ours: SignalHandler) -> bool {
    let not_clients = [libc::SIG_DFL, libc::SIG_IGN, ours as libc::sighandler_t];
    handler_of(signal).is_some_and(|handler| !not_clients.contains(&handler))
}

/// Sends a signal to this thread. May run in a signal handler.
pub fn raise(signal: c_int) {
    // SAFETY: the call takes a number.
    let _ = unsafe { libc::raise(signal) };
}

/// Restores the default action of a signal and sends it to this process. May run in a signal handler.
pub fn raise_default(signal: c_int) {
    set_handler(signal, libc::SIG_DFL);
    unblock(signal);
    kill(std::process::id(), signal);
}

fn unblock(signal: c_int) {
    let set = signal_set(&[signal]);
    // SAFETY: the set is a local structure.
    let _ = unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is a local structure.
    let _ = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: as above; the set has been made empty.
        let _ = unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: sigemptyset has written it.
    unsafe { set.assume_init() }
}

/// Signals that are blocked until they are waited for.
pub struct Blocked {
    set: libc::sigset_t,
    before: libc::sigset_t,
}

/// A signal that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: c_int,
    /// Whether the kernel sent it, as a terminal does. All processes of the terminal have it then.
    pub by_kernel: bool,
}

impl Blocked {
    /// Blocks signals for this thread.
    #[must_use]
    pub fn new(signals: &[c_int]) -> Self {
        let set = signal_set(signals);
        let mut before = signal_set(&[]);
        // SAFETY: both sets are local structures.
        let refused = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        debug_assert_eq!(refused, 0);
        Self { set, before }
    }

    /// Restores the mask of before.
    pub fn restore(&self) {
        // SAFETY: the set is that of an earlier call.
        let refused = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
        debug_assert_eq!(refused, 0);
    }

    /// Waits for a signal of the set, at most for a time. `None`: the time is over.
    #[must_use]
    pub fn wait_ms(&self, timeout_ms: u64) -> Option<Arrived> {
        let timeout = libc::timespec {
            tv_sec: (timeout_ms / 1000).cast_signed(),
            tv_nsec: (timeout_ms % 1000 * 1_000_000).cast_signed(),
        };
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: all pointers lead to live structures.
        let signal = unsafe { libc::sigtimedwait(&raw const self.set, info.as_mut_ptr(), &raw const timeout) };
        // SAFETY: all zeros are a value of the structure.
        let info = unsafe { info.assume_init() };
        (signal > 0).then_some(Arrived { signal, by_kernel: info.si_code > 0 })
    }
}

/// Takes a descriptor that the environment names for this process.
pub(crate) fn take_descriptor(fd: std::os::fd::RawFd) -> io::Result<std::fs::File> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: the call refuses a descriptor that is not open.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the launcher has opened it for the client of its protocol alone, and it is open.
    Ok(unsafe { std::fs::File::from_raw_fd(fd) })
}

/// Waits until one of some descriptors that are never closed is readable, or for a time.
pub(crate) fn wait_any(fds: impl Iterator<Item = std::os::fd::RawFd>, time: std::time::Duration) {
    let watch = |fd: std::os::fd::RawFd| {
        // SAFETY: callers pass descriptors of the bell and of devices of this process, which live longer than the call.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)
    };
    let mut fds: smallvec::SmallVec<[_; 4]> = fds.map(watch).collect();
    let timeout = rustix::event::Timespec::try_from(time).ok();
    // An interruption ends the wait, like an event.
    let _ = rustix::event::poll(&mut fds, timeout.as_ref());
}

/// Writes text to standard error in one call. May run in a signal handler.
pub fn say(text: &[u8]) {
    // SAFETY: the pointer and the length are those of the text.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}
