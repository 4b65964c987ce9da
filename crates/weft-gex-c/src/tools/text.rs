//! C strings of the callers of tools.

use std::ffi::{CStr, c_char};

/// The text at `text`, if it is a string of valid UTF-8.
///
/// # Safety
/// `text` is NULL or a C string that outlives `'a`.
pub(super) unsafe fn of<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller passes a C string.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Copies `text` and a terminating zero into `buffer`, cut at `bytes`.
///
/// # Safety
/// `buffer` is NULL or has room for `bytes`.
pub(super) unsafe fn put(text: &str, buffer: *mut c_char, bytes: usize) {
    if buffer.is_null() || bytes == 0 {
        return;
    }
    let length = text.len().min(bytes - 1);
    // SAFETY: `length` is less than `bytes`, for which the caller has room, and `text` has as many.
    unsafe { buffer.copy_from_nonoverlapping(text.as_ptr().cast(), length) };
    // SAFETY: `length` lies within the buffer.
    let end = unsafe { buffer.add(length) };
    // SAFETY: as above.
    unsafe { end.write(0) };
}
