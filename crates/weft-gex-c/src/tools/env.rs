//! Variables of the environment. Values that cannot be read end the process with a message that names the variable.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{fatal, number, text};

/// Whether this process prints the variables that are read. One rank of a job does.
static SPEAKS: AtomicBool = AtomicBool::new(true);

/// Sets whether this process prints the variables that are read. The core calls it once the rank is known.
pub fn speak(speaks: bool) {
    SPEAKS.store(speaks, Ordering::Relaxed);
}

/// The value of the variable `name` for calls of this library.
pub(super) fn value(name: &CStr) -> Option<&'static str> {
    // SAFETY: `name` is a C string.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: the environment has C strings, and clients do not change it during calls (see getenv(3)).
    unsafe { text::of(value) }
}

fn yes(value: &str) -> Option<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "t" | "true" | "on" => Some(true),
        "" | "0" | "n" | "no" | "f" | "false" | "off" => Some(false),
        _ => None,
    }
}

pub(super) fn is_yes(name: &CStr) -> bool {
    value(name).and_then(yes).unwrap_or(false)
}

fn unreadable(name: *const c_char, value: &str, kind: &str) -> ! {
    // SAFETY: the callers pass C strings.
    let name = unsafe { text::of(name) }.unwrap_or("?");
    fatal::fatal(&format!("the variable {name} is \"{value}\": set it to {kind}, or unset it"))
}

fn display(name: *const c_char, value: &str, is_default: bool) {
    if gasnett_verboseenv() != 0 {
        // SAFETY: the callers pass C strings.
        let name = unsafe { text::of(name) }.unwrap_or("?");
        eprintln!("ENV parameter: {name} = {value}{}", if is_default { "   (default)" } else { "" });
    }
}

/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_getenv(name: *const c_char) -> *mut c_char {
    // SAFETY: the caller passes a C string.
    unsafe { libc::getenv(name) }
}

/// # Safety
/// Both are C strings; `default` may be NULL.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_getenv_withdefault(
    name: *const c_char,
    default: *const c_char,
) -> *const c_char {
    // SAFETY: the caller passes a C string.
    let set = unsafe { libc::getenv(name) };
    let value = if set.is_null() { default } else { set.cast_const() };
    // SAFETY: the environment and the caller have C strings.
    display(name, unsafe { text::of(value) }.unwrap_or(""), set.is_null());
    value
}

/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_getenv_yesno_withdefault(name: *const c_char, default: c_int) -> c_int {
    // SAFETY: the caller passes a C string.
    let set = value(unsafe { CStr::from_ptr(name) });
    let answer = match set {
        Some(value) => yes(value).unwrap_or_else(|| unreadable(name, value, "yes or no")),
        None => default != 0,
    };
    display(name, if answer { "YES" } else { "NO" }, set.is_none());
    c_int::from(answer)
}

/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_getenv_int_withdefault(
    name: *const c_char,
    default: i64,
    memory_unit: u64,
) -> i64 {
    // SAFETY: the caller passes a C string.
    let set = value(unsafe { CStr::from_ptr(name) });
    let answer = match set {
        Some(value) => number::parse(value, memory_unit).unwrap_or_else(|| unreadable(name, value, "a number")),
        None => default,
    };
    display(name, &number::format(answer, memory_unit != 0), set.is_none());
    answer
}

/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_getenv_dbl_withdefault(name: *const c_char, default: f64) -> f64 {
    // SAFETY: the caller passes a C string.
    let set = value(unsafe { CStr::from_ptr(name) });
    let answer = match set {
        Some(value) => number::parse_real(value).unwrap_or_else(|| unreadable(name, value, "a number")),
        None => default,
    };
    display(name, &answer.to_string(), set.is_none());
    answer
}

/// # Safety
/// Both are C strings, and no other thread reads the environment.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_setenv(name: *const c_char, value: *const c_char) {
    // SAFETY: the caller passes C strings.
    if unsafe { libc::setenv(name, value, 1) } != 0 {
        fatal::fatal("setenv failed: the name is empty or has a \"=\", or memory is exhausted");
    }
}

/// # Safety
/// `name` is a C string, and no other thread reads the environment.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_unsetenv(name: *const c_char) {
    // SAFETY: the caller passes a C string.
    unsafe { libc::unsetenv(name) };
}

/// 1 if this process prints the variables that are read: `GASNET_VERBOSEENV` is set, and this is the rank that prints.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_verboseenv() -> c_int {
    c_int::from(SPEAKS.load(Ordering::Relaxed) && is_yes(c"GASNET_VERBOSEENV"))
}

/// # Safety
/// Both are C strings.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_envstr_display(name: *const c_char, value: *const c_char, is_default: c_int) {
    // SAFETY: the caller passes a C string.
    display(name, unsafe { text::of(value) }.unwrap_or(""), is_default != 0);
}

/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_envint_display(
    name: *const c_char,
    value: i64,
    is_default: c_int,
    is_memory: c_int,
) {
    display(name, &number::format(value, is_memory != 0), is_default != 0);
}

/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_envdbl_display(name: *const c_char, value: f64, is_default: c_int) {
    display(name, &value.to_string(), is_default != 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_yes_or_no() {
        assert_eq!(
            [yes("Y"), yes("on"), yes("0"), yes(""), yes("2")],
            [Some(true), Some(true), Some(false), Some(false), None]
        );
    }
}
