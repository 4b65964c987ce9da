//! Masks of the interface, and lists of memory, as text for messages of clients.

use std::ffi::{c_char, c_uint, c_void};
use std::fmt::Write;

use super::text;

const DTS: [&str; 7] = ["I32", "U32", "I64", "U64", "FLT", "DBL", "USER"];
const OPS: [&str; 12] = ["AND", "OR", "XOR", "ADD", "SUB", "MULT", "MIN", "MAX", "INC", "DEC", "SET", "CAS"];
const TIS: [&str; 5] = ["SRCRANK", "ENTRY", "IS_REQ", "IS_LONG", "EP"];
/// The distance in bits from an operation to its fetching form.
const FETCHING: u32 = 15;

fn op_name(bit: u32) -> Option<String> {
    let plain = |bit: u32| OPS.get(bit as usize).copied();
    match bit {
        25 => Some("SWAP".into()),
        27 => Some("GET".into()),
        30 => Some("USER".into()),
        31 => Some("USER_NC".into()),
        FETCHING.. => plain(bit - FETCHING).map(|name| format!("F{name}")),
        _ => plain(bit).map(String::from),
    }
}

/// The names of the bits of `mask`. Bits without a name are one number.
fn names(prefix: &str, mask: u32, name: impl Fn(u32) -> Option<String>) -> String {
    let mut parts = Vec::new();
    let mut rest = 0u32;
    for bit in (0..u32::BITS).filter(|bit| mask & 1 << bit != 0) {
        match name(bit) {
            Some(name) => parts.push(format!("{prefix}{name}")),
            None => rest |= 1 << bit,
        }
    }
    if rest != 0 || parts.is_empty() {
        parts.push(format!("{rest:#x}"));
    }
    parts.join("|")
}

/// Writes `text` to `buffer`, if there is one, and returns the bytes that it needs.
///
/// # Safety
/// `buffer` is NULL or has that room.
unsafe fn answer(text: &str, buffer: *mut c_char) -> usize {
    // SAFETY: the caller asked for the size before.
    unsafe { text::put(text, buffer, text.len() + 1) };
    text.len() + 1
}

/// # Safety
/// `buffer` is NULL or has the room that a call with NULL returns.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_format_dt(buffer: *mut c_char, dt: u32) -> usize {
    // SAFETY: the caller has the room.
    unsafe { answer(&names("GEX_DT_", dt, |bit| DTS.get(bit as usize).map(|&name| name.into())), buffer) }
}

/// # Safety
/// `buffer` is NULL or has the room that a call with NULL returns.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_format_op(buffer: *mut c_char, op: u32) -> usize {
    // SAFETY: the caller has the room.
    unsafe { answer(&names("GEX_OP_", op, op_name), buffer) }
}

/// # Safety
/// `buffer` is NULL or has the room that a call with NULL returns.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_format_ti(buffer: *mut c_char, ti: c_uint) -> usize {
    // SAFETY: the caller has the room.
    unsafe { answer(&names("GEX_TI_", ti, |bit| TIS.get(bit as usize).map(|&name| name.into())), buffer) }
}

/// `gex_Memvec_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Memvec {
    address: *const c_void,
    bytes: usize,
}

/// Bytes of text for each element of a list, and for the frame of one.
const ELEMENT: usize = 64;
const FRAME: usize = 512;

/// # Safety
/// `list` has `count` elements. `count` may be 0, and `list` NULL then.
unsafe fn list_of<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if list.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller has the elements.
    unsafe { std::slice::from_raw_parts(list, count) }
}

fn joined<T>(list: &[T], element: impl Fn(&T) -> String) -> String {
    list.iter().map(element).collect::<Vec<_>>().join(" ")
}

#[unsafe(no_mangle)]
/// Bytes of the text of such a list.
pub(super) extern "C" fn gasnett_format_memveclist_bufsz(count: usize) -> usize {
    FRAME + ELEMENT * count
}

/// # Safety
/// `buffer` has `gasnett_format_memveclist_bufsz(count)` bytes, and `list` has `count` elements.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_format_memveclist(
    buffer: *mut c_char,
    count: usize,
    list: *const Memvec,
) -> *mut c_char {
    // SAFETY: the caller has the elements.
    let elements = unsafe { list_of(list, count) };
    let total: usize = elements.iter().map(|element| element.bytes).fold(0, usize::wrapping_add);
    let items = joined(elements, |element| format!("{:p}+{}", element.address, element.bytes));
    // SAFETY: the caller has the room.
    unsafe { text::put(&format!("{count} pieces, {total} bytes: {items}"), buffer, FRAME + ELEMENT * count) };
    buffer
}

/// Bytes of the text of such a list.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_format_addrlist_bufsz(count: usize) -> usize {
    FRAME + ELEMENT * count
}

/// # Safety
/// `buffer` has `gasnett_format_addrlist_bufsz(count)` bytes, and `list` has `count` elements.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_format_addrlist(
    buffer: *mut c_char,
    count: usize,
    list: *const *const c_void,
    bytes: usize,
) -> *mut c_char {
    // SAFETY: the caller has the elements.
    let items = joined(unsafe { list_of(list, count) }, |address| format!("{address:p}"));
    // SAFETY: the caller has the room.
    unsafe { text::put(&format!("{count} pieces of {bytes} bytes: {items}"), buffer, FRAME + ELEMENT * count) };
    buffer
}

/// Bytes of the text of a strided access.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_format_putsgets_bufsz(levels: usize) -> usize {
    FRAME + 3 * ELEMENT * levels
}

/// # Safety
/// `buffer` has `gasnett_format_putsgets_bufsz(levels)` bytes, and each list has `levels` elements.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_format_putsgets(
    buffer: *mut c_char,
    _total: *mut c_void,
    _tm: *const c_void,
    rank: u32,
    dest: *const c_void,
    dest_strides: *const isize,
    src: *const c_void,
    src_strides: *const isize,
    element_bytes: usize,
    counts: *const usize,
    levels: usize,
) -> *mut c_char {
    let mut text = format!("rank {rank}, {levels} levels, elements of {element_bytes} bytes; ");
    for (name, address, strides) in [("dest", dest, dest_strides), ("src", src, src_strides)] {
        // SAFETY: the caller has the elements.
        let strides = joined(unsafe { list_of(strides, levels) }, isize::to_string);
        let _ = write!(text, "{name} {address:p} strides [{strides}]; ");
    }
    // SAFETY: the caller has the elements.
    let _ = write!(text, "counts [{}]", joined(unsafe { list_of(counts, levels) }, usize::to_string));
    // SAFETY: the caller has the room.
    unsafe { text::put(&text, buffer, FRAME + 3 * ELEMENT * levels) };
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_names() {
        assert_eq!(names("GEX_OP_", 1 << 3 | 1 << 18 | 1 << 27, op_name), "GEX_OP_ADD|GEX_OP_FADD|GEX_OP_GET");
        assert_eq!(names("GEX_OP_", 1 << 25 | 1 << 26 | 1 << 31, op_name), "GEX_OP_SWAP|GEX_OP_FCAS|GEX_OP_USER_NC");
        assert_eq!(names("GEX_OP_", 1 << 13, op_name), "0x2000");
        assert_eq!(names("GEX_OP_", 0, op_name), "0x0");
    }

    #[test]
    fn lists_fit_their_buffers() {
        let list = [Memvec { address: usize::MAX as *const c_void, bytes: usize::MAX }; 8];
        let mut buffer = vec![1; gasnett_format_memveclist_bufsz(list.len())];
        // SAFETY: the buffer and the list have the sizes that are passed.
        unsafe { gasnett_format_memveclist(buffer.as_mut_ptr(), list.len(), list.as_ptr()) };
        assert!(buffer.contains(&0));
    }
}
