//! `gex_AM_…` and `gex_Token_…`: requests, replies, limits, and what a handler may ask.

use std::ffi::{c_int, c_uint, c_void};

use weft_gex::after::Wait;
use weft_gex::am::{self, Kind, MAX_LONG, Message, Patience, Token};
use weft_gex::far::Access;
use weft_gex::fatal;
use weft_gex::invoke::{self, Entry, MAX_ARGS};
use weft_gex::job::Job;
use weft_gex::memory::{Piece, Way};
use weft_gex::table::{Location, Place};

use crate::address;
use crate::after;
use crate::event::{Event, LcKind, done_locally};
use crate::handles::{EpHandle, FLAG_IMMEDIATE, Tm, export, job, list, put};

/// `gex_Token_Info_t`.
#[repr(C)]
struct TokenInfo {
    source: u32,
    ep: EpHandle,
    entry: *const Entry,
    is_request: c_int,
    is_long: c_int,
}

const TI_SRCRANK: c_uint = 1;
const TI_ENTRY: c_uint = 2;
const TI_IS_REQ: c_uint = 4;
const TI_IS_LONG: c_uint = 8;
const TI_EP: c_uint = 16;

/// The destination of a message.
#[derive(Clone, Copy)]
pub(crate) enum To {
    /// A request to a rank.
    Rank(Tm, u32),
    /// A reply of the handler with this token.
    Token(*const c_void),
}

/// A message in terms of the C call. `args` points to `nargs` arguments.
pub(crate) struct Call {
    pub(crate) handler: u8,
    pub(crate) kind: Kind,
    pub(crate) source: *const c_void,
    pub(crate) bytes: usize,
    pub(crate) lc: *mut Event,
    pub(crate) flags: u32,
    pub(crate) nargs: c_uint,
    pub(crate) args: *const i32,
}

/// Sends a message. Returns 0, or 1 if an immediate call was refused.
#[inline(always)]
pub(crate) fn send(to: To, call: &Call) -> c_int {
    let nargs = call.nargs as usize;
    if nargs > MAX_ARGS {
        fatal!("a message with {nargs} arguments; pass at most {MAX_ARGS}");
    }
    if let Kind::Long { .. } = call.kind
        && call.bytes > MAX_LONG
    {
        fatal!("a long message of {} bytes; send at most gex_AM_MaxRequestLong, which is {MAX_LONG}", call.bytes);
    }
    // SAFETY: the header passes an array of that length.
    let args = unsafe { list(call.args, nargs) };
    let job = job();
    let mut message = Message {
        handler: call.handler,
        kind: call.kind,
        source: call.source.expose_provenance(),
        bytes: call.bytes,
        args,
    };
    if call.flags & (address::SELF_SEG_OFFSET | address::PEER_SEG_OFFSET) != 0 {
        address_of_offsets(job, to, call, &mut message);
    }
    let sent = match to {
        To::Rank(tm, rank) => {
            let at = tm.at(job, rank);
            match after::take() {
                None => request(at, &message, call),
                Some(wait) => return request_after(wait, at, &message, call.lc),
            }
        }
        To::Token(token) => {
            of(token).reply(job, &message);
            done_locally(call.lc);
            true
        }
    };
    c_int::from(!sent)
}

/// Sends a request when others are complete.
#[cold]
fn request_after(wait: Wait, at: Location, message: &Message<'_>, lc: *mut Event) -> c_int {
    match remote_payload(at, message) {
        Some(put) => after::leave_long(Some(wait), &put, message, lc),
        None => after::leave_message(wait, at, message, lc),
    }
    0
}

/// The put of a long payload that does not fit its message; `None`: the call places the payload, or the message has it.
fn remote_payload(at: Location, message: &Message<'_>) -> Option<Access> {
    let Kind::Long { dest: remote } = message.kind else { return None };
    let Message { source: local, bytes, .. } = *message;
    let is_remote = bytes > am::max_medium() && job().place(at, Piece { addr: remote, bytes }) == Place::Remote;
    is_remote.then_some(Access { at, way: Way::Put, local, remote, bytes })
}

/// Sends a request. One with a long payload does not wait for its put, unless the source is to be free at once.
#[inline(always)]
fn request(at: Location, message: &Message<'_>, call: &Call) -> bool {
    let is_long = matches!(message.kind, Kind::Long { .. }) && message.bytes > am::max_medium();
    if is_long
        && !matches!(LcKind::of(call.lc), LcKind::Now)
        && let Some(put) = remote_payload(at, message)
    {
        after::leave_long(None, &put, message, call.lc);
        return true;
    }
    let patience = if call.flags & FLAG_IMMEDIATE != 0 { Patience::Immediate } else { Patience::Wait };
    let sent = am::request(job(), at, message, patience);
    if sent {
        done_locally(call.lc);
    }
    sent
}

/// Makes addresses of the offsets that a call has.
#[cold]
fn address_of_offsets(job: &'static Job, to: To, call: &Call, message: &mut Message<'_>) {
    let (tm, at) = match to {
        To::Rank(tm, rank) => (tm, tm.at(job, rank)),
        To::Token(token) => (Tm::of(job.world()), Location::new(of(token).source(), 0)),
    };
    message.source = address::here(job, tm, call.source, call.flags).expose_provenance();
    if let Kind::Long { dest } = &mut message.kind {
        *dest = address::at_peer(job, at, std::ptr::without_provenance(*dest), call.flags);
    }
}

/// The token that a handler passes back.
pub(crate) fn of<'a>(token: *const c_void) -> &'a Token<'a> {
    if token.is_null() {
        fatal!("a call got no token; pass the token of the handler that runs");
    }
    // SAFETY: the client passes the token of a handler that is running.
    unsafe { invoke::token(token) }
}

fn short() -> (Kind, *const c_void, usize, *mut Event) {
    (Kind::Short, std::ptr::null(), 0, std::ptr::null_mut())
}

/// The kind of a long message.
pub(crate) fn long(dest: *mut c_void) -> Kind {
    Kind::Long { dest: dest.expose_provenance() }
}

export! {
    fn gex_weft_AM_RequestShort(tm: Tm, rank: u32, handler: u8, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        let (kind, source, bytes, lc) = short();
        send(To::Rank(tm, rank), &Call { handler, kind, source, bytes, lc, flags, nargs, args })
    }

    fn gex_weft_AM_RequestMedium(tm: Tm, rank: u32, handler: u8, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        send(To::Rank(tm, rank), &Call { handler, kind: Kind::Medium, source, bytes, lc, flags, nargs, args })
    }

    fn gex_weft_AM_RequestLong(tm: Tm, rank: u32, handler: u8, source: *const c_void, bytes: usize, dest: *mut c_void, lc: *mut Event, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        send(To::Rank(tm, rank), &Call { handler, kind: long(dest), source, bytes, lc, flags, nargs, args })
    }

    fn gex_weft_AM_ReplyShort(token: *const c_void, handler: u8, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        let (kind, source, bytes, lc) = short();
        send(To::Token(token), &Call { handler, kind, source, bytes, lc, flags, nargs, args })
    }

    fn gex_weft_AM_ReplyMedium(token: *const c_void, handler: u8, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        send(To::Token(token), &Call { handler, kind: Kind::Medium, source, bytes, lc, flags, nargs, args })
    }

    fn gex_weft_AM_ReplyLong(token: *const c_void, handler: u8, source: *const c_void, bytes: usize, dest: *mut c_void, lc: *mut Event, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        send(To::Token(token), &Call { handler, kind: long(dest), source, bytes, lc, flags, nargs, args })
    }

    fn gex_AM_MaxArgs() -> c_uint {
        c_uint::try_from(MAX_ARGS).unwrap_or(c_uint::MAX)
    }

    fn gex_AM_MaxRequestMedium(_tm: Tm, _rank: u32, _lc: *const Event, _flags: u32, _nargs: c_uint) -> usize {
        am::max_medium()
    }

    fn gex_AM_MaxReplyMedium(_tm: Tm, _rank: u32, _lc: *const Event, _flags: u32, _nargs: c_uint) -> usize {
        am::max_medium()
    }

    fn gex_AM_MaxRequestLong(_tm: Tm, _rank: u32, _lc: *const Event, _flags: u32, _nargs: c_uint) -> usize {
        MAX_LONG
    }

    fn gex_AM_MaxReplyLong(_tm: Tm, _rank: u32, _lc: *const Event, _flags: u32, _nargs: c_uint) -> usize {
        am::max_long_reply(job())
    }

    fn gex_AM_LUBRequestMedium() -> usize {
        am::max_medium()
    }

    fn gex_AM_LUBReplyMedium() -> usize {
        am::max_medium()
    }

    fn gex_AM_LUBRequestLong() -> usize {
        MAX_LONG
    }

    fn gex_AM_LUBReplyLong() -> usize {
        am::max_long_reply(job())
    }

    fn gex_Token_MaxReplyMedium(_token: *const c_void, _lc: *const Event, _flags: u32, _nargs: c_uint) -> usize {
        am::max_medium()
    }

    fn gex_Token_MaxReplyLong(_token: *const c_void, _lc: *const Event, _flags: u32, _nargs: c_uint) -> usize {
        am::max_long_reply(job())
    }

    fn gex_Token_Info(token: *const c_void, info: *mut TokenInfo, _mask: c_uint) -> c_uint {
        let (job, token) = (job(), of(token));
        let value = TokenInfo {
            source: token.source(),
            ep: job.endpoint_at(token.endpoint()).map_or(EpHandle::INVALID, EpHandle::of),
            entry: token.entry(),
            is_request: c_int::from(token.is_request()),
            is_long: c_int::from(token.is_long()),
        };
        // SAFETY: the client's pointer is writable.
        unsafe { put(info, value) };
        TI_SRCRANK | TI_ENTRY | TI_IS_REQ | TI_IS_LONG | TI_EP
    }
}
