//! `gex_AM_Prepare…`, `…Commit…`, `…Cancel…`: messages whose payload is negotiated first.
//!
//! A descriptor is an object of the heap that the client holds between the two calls. Descriptors and their buffers are
//! kept by thread, so that a pair of calls allocates nothing after the first.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};

use weft_gex::am::{Kind, MAX_LONG, max_long_reply, max_medium};
use weft_gex::fatal;

use crate::address::{PEER_SEG_OFFSET, SELF_SEG_OFFSET};
use crate::am::{Call, To, long, send};
use crate::event::Event;
use crate::handles::{Tm, export, job};

/// The longest buffer in bytes that a preparation makes if the client needs no more.
const BUFFER_BYTES: usize = 1 << 20;

/// `gex_AM_SrcDesc_t`: a message under preparation.
pub(crate) struct Prepared {
    to: To,
    /// Memory of the client; null: the buffer.
    client: *const c_void,
    /// The buffer, in words, so that it is aligned.
    buffer: Vec<u64>,
    bytes: usize,
    is_long: bool,
    lc: *mut Event,
    flags: u32,
}

thread_local! {
    #[allow(clippy::vec_box)] // Clients hold the addresses of descriptors.
    static FREE: RefCell<Vec<Box<Prepared>>> = const { RefCell::new(Vec::new()) };
}

/// The lengths that a client accepts.
struct Lengths {
    least: usize,
    most: usize,
}

/// The local completion of a message, and the flags of its preparation.
struct End {
    lc: *mut Event,
    flags: u32,
}

/// Makes a descriptor.
fn prepare(to: To, is_long: bool, client: *const c_void, lengths: &Lengths, end: End) -> *mut Prepared {
    let End { lc, flags } = end;
    if flags & SELF_SEG_OFFSET != 0 {
        fatal!("a message was prepared with GEX_FLAG_SELF_SEG_OFFSET; pass the address of the buffer");
    }
    let limit = match (is_long, to) {
        (false, _) => max_medium(),
        (true, To::Rank(..)) => MAX_LONG,
        (true, To::Token(_)) => max_long_reply(job()),
    };
    if lengths.least > limit || lengths.least > lengths.most {
        fatal!(
            "a message was prepared for {} to {} bytes, and at most {limit} are possible; ask gex_AM_MaxRequest… for the limit",
            lengths.least,
            lengths.most
        );
    }
    let mut bytes = lengths.most.min(limit);
    let kept = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
    let new = || Box::new(Prepared { to, client, buffer: Vec::new(), bytes, is_long, lc, flags });
    let mut prepared = kept.unwrap_or_else(new);
    if client.is_null() {
        bytes = bytes.min(lengths.least.max(BUFFER_BYTES));
        if prepared.buffer.len() < bytes.div_ceil(8) {
            prepared.buffer.resize(bytes.div_ceil(8), 0);
        }
    }
    let buffer = std::mem::take(&mut prepared.buffer);
    *prepared = Prepared { to, client, buffer, bytes, is_long, lc, flags };
    Box::into_raw(prepared)
}

/// Takes a descriptor back.
fn take(sd: *mut Prepared) -> Box<Prepared> {
    if sd.is_null() {
        fatal!("a commit or cancel got GEX_AM_SRCDESC_NO_OP; prepare again");
    }
    // SAFETY: the client passes a descriptor of `prepare` once, and not after its end.
    unsafe { Box::from_raw(sd) }
}

fn keep(prepared: Box<Prepared>) {
    let _ = FREE.try_with(|free| free.borrow_mut().push(prepared));
}

/// The arguments of a commit.
struct Commit {
    handler: u8,
    bytes: usize,
    dest: Option<*mut c_void>,
    flags: u32,
    nargs: c_uint,
    args: *const i32,
}

fn commit(sd: *mut Prepared, commit: &Commit) -> c_int {
    let prepared = take(sd);
    if commit.bytes > prepared.bytes || prepared.is_long != commit.dest.is_some() {
        fatal!(
            "a commit of {} bytes does not fit a preparation of {}; send at most gex_AM_SrcDescSize, by the call of the same kind",
            commit.bytes,
            prepared.bytes
        );
    }
    let call = Call {
        handler: commit.handler,
        kind: commit.dest.map_or(Kind::Medium, long),
        source: prepared.source(),
        bytes: commit.bytes,
        lc: prepared.lc,
        flags: (commit.flags & !SELF_SEG_OFFSET) | (prepared.flags & PEER_SEG_OFFSET),
        nargs: commit.nargs,
        args: commit.args,
    };
    let refused = send(prepared.to, &call);
    if refused == 0 {
        keep(prepared);
    } else {
        // The descriptor stays valid, and the client commits or cancels it later.
        let _ = Box::into_raw(prepared);
    }
    refused
}

fn cancel(sd: *mut Prepared) -> c_int {
    keep(take(sd));
    0
}

impl Prepared {
    fn source(&self) -> *const c_void {
        if self.client.is_null() { self.buffer.as_ptr().cast() } else { self.client }
    }
}

/// The object of a descriptor that stays valid.
fn look<'a>(sd: *mut Prepared) -> &'a mut Prepared {
    if sd.is_null() {
        fatal!("a query got GEX_AM_SRCDESC_NO_OP; prepare again");
    }
    // SAFETY: the client passes a descriptor of `prepare` that it has not ended, from one thread.
    unsafe { &mut *sd }
}

export! {
    fn gex_AM_PrepareRequestMedium(tm: Tm, rank: u32, client: *const c_void, least: usize, most: usize, lc: *mut Event, flags: u32, _nargs: c_uint) -> *mut Prepared {
        prepare(To::Rank(tm, rank), false, client, &Lengths { least, most }, End { lc, flags })
    }

    fn gex_AM_PrepareReplyMedium(token: *const c_void, client: *const c_void, least: usize, most: usize, lc: *mut Event, flags: u32, _nargs: c_uint) -> *mut Prepared {
        prepare(To::Token(token), false, client, &Lengths { least, most }, End { lc, flags })
    }

    fn gex_AM_PrepareRequestLong(tm: Tm, rank: u32, client: *const c_void, least: usize, most: usize, _dest: *mut c_void, lc: *mut Event, flags: u32, _nargs: c_uint) -> *mut Prepared {
        prepare(To::Rank(tm, rank), true, client, &Lengths { least, most }, End { lc, flags })
    }

    fn gex_AM_PrepareReplyLong(token: *const c_void, client: *const c_void, least: usize, most: usize, _dest: *mut c_void, lc: *mut Event, flags: u32, _nargs: c_uint) -> *mut Prepared {
        prepare(To::Token(token), true, client, &Lengths { least, most }, End { lc, flags })
    }

    fn gex_AM_SrcDescAddr(sd: *mut Prepared) -> *mut c_void {
        let prepared = look(sd);
        if prepared.client.is_null() { prepared.buffer.as_mut_ptr().cast() } else { prepared.client.cast_mut() }
    }

    fn gex_AM_SrcDescSize(sd: *mut Prepared) -> usize {
        look(sd).bytes
    }

    fn gex_weft_AM_CommitRequestMedium(sd: *mut Prepared, handler: u8, bytes: usize, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        commit(sd, &Commit { handler, bytes, dest: None, flags, nargs, args })
    }

    fn gex_weft_AM_CommitReplyMedium(sd: *mut Prepared, handler: u8, bytes: usize, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        commit(sd, &Commit { handler, bytes, dest: None, flags, nargs, args })
    }

    fn gex_weft_AM_CommitRequestLong(sd: *mut Prepared, handler: u8, bytes: usize, dest: *mut c_void, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        commit(sd, &Commit { handler, bytes, dest: Some(dest), flags, nargs, args })
    }

    fn gex_weft_AM_CommitReplyLong(sd: *mut Prepared, handler: u8, bytes: usize, dest: *mut c_void, flags: u32, nargs: c_uint, args: *const i32) -> c_int {
        commit(sd, &Commit { handler, bytes, dest: Some(dest), flags, nargs, args })
    }

    fn gex_AM_CancelRequestMedium(sd: *mut Prepared, _flags: u32) -> c_int {
        cancel(sd)
    }

    fn gex_AM_CancelReplyMedium(sd: *mut Prepared, _flags: u32) -> c_int {
        cancel(sd)
    }

    fn gex_AM_CancelRequestLong(sd: *mut Prepared, _flags: u32) -> c_int {
        cancel(sd)
    }

    fn gex_AM_CancelReplyLong(sd: *mut Prepared, _flags: u32) -> c_int {
        cancel(sd)
    }
}
