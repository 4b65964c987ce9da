//! Calls of the client's functions: handlers of active messages, and functions of reductions.
//!
//! Place in the data flow: `am` calls a handler with its token, its payload and its arguments. A handler is a function
//! of C without a prototype; the number of its arguments selects the type by which it is called.

use std::ffi::{c_char, c_void};

use weft_engine::Custom;
use weft_engine::am::Answer;
use weft_engine::collective::Order;
use weft_engine::mem::Iov;

use crate::am::Token;
use crate::combine::User;
use crate::memory::{self, Piece};

/// An argument of a handler as it travels.
pub(crate) type Argument = [u8; 4];

/// The most arguments of a handler.
pub const MAX_ARGS: usize = 16;
/// The number of arguments of an entry whose handler takes any number.
pub const ANY_ARGS: u32 = u32::MAX;

/// A handler as the client registers it. The layout is that of `gex_AM_Entry_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry {
    /// The index in the table.
    pub index: u8,
    /// The handler.
    pub function: Option<unsafe extern "C" fn()>,
    /// The kinds of messages that it takes.
    pub flags: u32,
    /// The number of its arguments.
    pub nargs: u32,
    /// The client's pointer.
    pub cdata: *const c_void,
    /// The client's name of it.
    pub name: *const c_char,
}

// SAFETY: the pointers are the client's; they are passed back to it and not followed.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// The function of a reduction. It combines elements; the second operand becomes the result.
pub type ReduceFn = unsafe extern "C" fn(*const c_void, *mut c_void, usize, *const c_void);

/// The function that a client gives for failures. It gets the rank that has failed.
pub type FailureFn = unsafe extern "C" fn(u32);

/// The address of a function for failures.
pub(crate) fn failure_addr(function: FailureFn) -> usize {
    (function as *const ()).expose_provenance()
}

/// Calls the function for failures at an address.
pub(crate) fn failure(addr: usize, rank: u32) {
    let function = std::ptr::with_exposed_provenance::<c_void>(addr);
    // SAFETY: the address is that of `failure_addr`.
    let function = unsafe { std::mem::transmute::<*const c_void, FailureFn>(function) };
    // SAFETY: the client has given the function for this.
    unsafe { function(rank) };
}

/// The operation of the client's function, for the engine.
pub(crate) fn custom(user: &User) -> Custom {
    let function = (user.function as *const ()).expose_provenance();
    Custom::new(user.bytes, combine_user, [function, user.cdata])
}

/// Combines two operands by the client's function, whose second operand becomes the result.
fn combine_user(operation: &Custom, from: &Iov, into: &Iov, order: Order) {
    let count = into.len().checked_div(operation.bytes()).unwrap_or(0);
    let [function, cdata] = operation.words().map(std::ptr::with_exposed_provenance::<c_void>);
    // SAFETY: `custom`, which alone makes such operations, has put the address of a function of this type there.
    let function = unsafe { std::mem::transmute::<*const c_void, ReduceFn>(function) };
    match order {
        // SAFETY: the client has given the function for operands of this type and length.
        Order::FromFirst => unsafe { function(from.as_ptr().cast(), into.as_ptr().cast(), count, cdata) },
        Order::IntoFirst => {
            // Words keep the copy aligned.
            let mut right = vec![0_u128; from.len().div_ceil(16)];
            let copy = memory::iov_at(Piece::at(right.as_mut_ptr(), from.len()));
            copy.copy_from(from);
            // SAFETY: as above.
            unsafe { function(into.as_ptr().cast(), copy.as_ptr().cast(), count, cdata) };
            into.copy_from(&copy);
        }
    }
}

macro_rules! argument {
    ($at:literal) => {
        i32
    };
}

/// Calls a function with a token and arguments.
macro_rules! call_short {
    ($function:expr, $args:expr, ($token:expr); $($at:literal)*) => {{
        type Handler = unsafe extern "C" fn(*const c_void $(, argument!($at))*);
        // SAFETY: the client has registered a function that takes the token and this number of arguments.
        let handler = unsafe { std::mem::transmute::<unsafe extern "C" fn(), Handler>($function) };
        // SAFETY: as above; the token lives during the call.
        unsafe { handler($token $(, i32::from_ne_bytes($args[$at]))*) }
    }};
}

/// Calls a function with a token, a payload and arguments.
macro_rules! call_payload {
    ($function:expr, $args:expr, ($token:expr, $addr:expr, $bytes:expr); $($at:literal)*) => {{
        type Handler = unsafe extern "C" fn(*const c_void, *mut c_void, usize $(, argument!($at))*);
        // SAFETY: the client has registered a function that takes the token, the payload and this number of arguments.
        let handler = unsafe { std::mem::transmute::<unsafe extern "C" fn(), Handler>($function) };
        // SAFETY: as above; the token and the payload live during the call.
        unsafe { handler($token, $addr, $bytes $(, i32::from_ne_bytes($args[$at]))*) }
    }};
}

macro_rules! call {
    ($one:ident, $function:expr, $args:expr, $lead:tt) => {
        match $args.len() {
            0 => $one!($function, $args, $lead;),
            1 => $one!($function, $args, $lead; 0),
            2 => $one!($function, $args, $lead; 0 1),
            3 => $one!($function, $args, $lead; 0 1 2),
            4 => $one!($function, $args, $lead; 0 1 2 3),
            5 => $one!($function, $args, $lead; 0 1 2 3 4),
            6 => $one!($function, $args, $lead; 0 1 2 3 4 5),
            7 => $one!($function, $args, $lead; 0 1 2 3 4 5 6),
            8 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7),
            9 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7 8),
            10 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7 8 9),
            11 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7 8 9 10),
            12 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7 8 9 10 11),
            13 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7 8 9 10 11 12),
            14 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7 8 9 10 11 12 13),
            15 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            16 => $one!($function, $args, $lead; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
            _ => debug_assert!(false, "{} arguments", $args.len()),
        }
    };
}

/// Calls a handler.
pub(crate) fn handler(function: unsafe extern "C" fn(), token: &Token<'_>, payload: Option<Piece>, args: &[Argument]) {
    let token: *const c_void = std::ptr::from_ref(token).cast();
    match payload {
        None => call!(call_short, function, args, (token)),
        Some(Piece { addr, bytes }) => {
            let addr = std::ptr::with_exposed_provenance_mut::<c_void>(addr);
            call!(call_payload, function, args, (token, addr, bytes));
        }
    }
}

/// The token that a handler has passed back.
///
/// # Safety
/// `token` is that of a handler that is running.
#[must_use]
pub unsafe fn token<'a>(token: *const c_void) -> &'a Token<'a> {
    // SAFETY: the caller's contract: the token is on the stack of the caller of the handler.
    unsafe { &*token.cast() }
}

/// An entry of the table as the client passes it.
///
/// # Safety
/// `table` points to `count` entries, which this call may change.
#[must_use]
pub unsafe fn entries<'a>(table: *mut Entry, count: usize) -> &'a mut [Entry] {
    let first = if count == 0 { std::ptr::NonNull::dangling().as_ptr() } else { table };
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(first, count) }
}

/// A message's piece of client memory for the engine, which copies it within the call.
pub(crate) fn message_piece(body: Piece) -> weft_engine::mem::Iov {
    // SAFETY: the payload of a request is readable until the client's call returns, and only `am::send` uses this.
    unsafe { weft_engine::mem::Iov::new(std::ptr::with_exposed_provenance_mut(body.addr), body.bytes) }
}

/// The place for a reply, as the token of a handler holds it.
pub(crate) fn for_token<'a>(answer: &'a mut Answer<'_>) -> &'a mut Answer<'a> {
    // SAFETY: the two lifetimes become one, the shorter. The token writes into the answer and never replaces the
    // reference inside, so nothing of the shorter lifetime can get into it.
    unsafe { std::mem::transmute::<&'a mut Answer<'_>, &'a mut Answer<'a>>(answer) }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::am::Token;

    static SEEN: Mutex<Vec<i64>> = Mutex::new(Vec::new());

    unsafe extern "C" fn short(_: *const c_void, a: i32, b: i32) {
        *SEEN.lock().expect("no panic") = vec![i64::from(a), i64::from(b)];
    }

    unsafe extern "C" fn medium(
        _: *const c_void,
        _: *mut c_void,
        bytes: usize,
        a: i32,
        b: i32,
        c: i32,
        d: i32,
        e: i32,
    ) {
        let all = [a, b, c, d, e].map(i64::from);
        *SEEN.lock().expect("no panic") = [&[i64::try_from(bytes).unwrap_or(-1)], &all[..]].concat();
    }

    #[test]
    fn arguments_arrive_in_order() {
        let token = Token::for_reply(0, std::ptr::null());
        // SAFETY: the type is restored by the call.
        let function = unsafe {
            std::mem::transmute::<unsafe extern "C" fn(*const c_void, i32, i32), unsafe extern "C" fn()>(short)
        };
        handler(function, &token, None, &[7, -8].map(i32::to_ne_bytes));
        assert_eq!(*SEEN.lock().expect("no panic"), [7, -8]);
        type Medium = unsafe extern "C" fn(*const c_void, *mut c_void, usize, i32, i32, i32, i32, i32);
        // SAFETY: as above.
        let function = unsafe { std::mem::transmute::<Medium, unsafe extern "C" fn()>(medium) };
        handler(function, &token, Some(Piece { addr: 64, bytes: 9 }), &[1, 2, 3, 4, -5].map(i32::to_ne_bytes));
        assert_eq!(*SEEN.lock().expect("no panic"), [9, 1, 2, 3, 4, -5]);
    }
}
