//! The end of a process by an error, and backtraces. weft writes no backtrace; it calls the client's function.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use super::{env, text};

/// `gasnett_backtrace_type_t`.
#[repr(C)]
pub(super) struct BacktraceType {
    name: *const c_char,
    function: Option<unsafe extern "C" fn(c_int) -> c_int>,
    required: c_int,
}

/// The client's way to write a backtrace, or NULL.
static USER: AtomicPtr<BacktraceType> = AtomicPtr::new(std::ptr::null_mut());

/// Ends the process with `message`, from which the user learns the cause and the remedy.
pub(super) fn fatal(message: &str) -> ! {
    // SAFETY: flushing all streams has no conditions.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    eprintln!("*** FATAL ERROR (process {}): {message}", std::process::id());
    gasnett_print_backtrace_ifenabled(libc::STDERR_FILENO);
    if env::is_yes(c"GASNET_FREEZE") || env::is_yes(c"GASNET_FREEZE_ON_ERROR") {
        eprintln!("process {} waits for a debugger, because GASNET_FREEZE_ON_ERROR is set", std::process::id());
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    std::process::abort()
}

/// # Safety
/// `file` and `message` are C strings; `file` may be NULL.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_weft_fatal(file: *const c_char, line: c_uint, message: *const c_char) -> ! {
    // SAFETY: the caller passes a C string.
    let message = unsafe { text::of(message) }.unwrap_or("");
    // SAFETY: the caller passes a C string or NULL.
    match unsafe { text::of(file) } {
        Some(file) => fatal(&format!("{message} (at {file}:{line})")),
        None => fatal(message),
    }
}

/// # Safety
/// `user` is NULL or points to a structure that stays.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_weft_backtrace_init(_exe: *const c_char, user: *const BacktraceType) {
    USER.store(user.cast_mut(), Ordering::Release);
}

/// Writes a backtrace to `fd`. Returns 0, or 1 if there is none.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_print_backtrace(fd: c_int) -> c_int {
    let user = USER.load(Ordering::Acquire);
    // SAFETY: the pointer is NULL or that of a structure that stays.
    if let Some(user) = unsafe { user.as_ref() }
        && let Some(function) = user.function
        && is_chosen(user.name)
        // SAFETY: the client's function takes a descriptor.
        && unsafe { function(fd) } == 0
    {
        return 0;
    }
    let message = "no backtrace: weft writes none; run the program in a debugger, or define gasnett_backtrace_user\n";
    // SAFETY: the bytes are those of `message`.
    unsafe { libc::write(fd, message.as_ptr().cast(), message.len()) };
    1
}

/// Whether `GASNET_BACKTRACE_TYPE`, a list, has the name, or is not set.
fn is_chosen(name: *const c_char) -> bool {
    // SAFETY: the client's structure has a C string or NULL.
    let name = unsafe { text::of(name) }.unwrap_or("");
    match env::value(c"GASNET_BACKTRACE_TYPE") {
        Some(list) => list.split(',').any(|chosen| chosen.trim() == name),
        None => true,
    }
}

/// Writes a backtrace if `GASNET_BACKTRACE` is set. Returns 0, or 1 if there is none.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_print_backtrace_ifenabled(fd: c_int) -> c_int {
    if env::is_yes(c"GASNET_BACKTRACE") { gasnett_print_backtrace(fd) } else { 1 }
}

/// Ends this process at once, without handlers of exit.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_killmyprocess(code: c_int) -> ! {
    // SAFETY: ending the process has no conditions.
    unsafe { libc::_exit(code) }
}
