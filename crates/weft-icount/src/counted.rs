//! The calls whose instructions are counted. callgrind collects while one of these functions runs.
//!
//! Each function contains one call only, and is never inlined, so that callgrind can find it by its name. Instructions
//! of the function itself and of weft-client are in this program's file. `scripts/icount.py` distinguishes them from
//! the provider's by that and leaves them out.

use weft_client::{Address, Endpoint, Error, Piece, Posted, Region};

/// `fi_tinject`.
#[inline(never)]
pub(crate) fn inject(ep: &mut Endpoint, piece: Piece, to: Address, tag: u64) -> Result<Posted, Error> {
    ep.tagged_inject(piece, to, tag)
}

/// `fi_tsend`.
#[inline(never)]
pub(crate) fn send(ep: &mut Endpoint, slot: u32, piece: Piece, to: Address, tag: u64) -> Result<Posted, Error> {
    ep.tagged_send(slot, piece, to, tag)
}

/// `fi_trecv`.
#[inline(never)]
pub(crate) fn receive(ep: &mut Endpoint, slot: u32, piece: Piece, tag: u64) -> Result<Posted, Error> {
    ep.tagged_recv(slot, piece, tag, 0)
}

/// `fi_write`.
#[inline(never)]
pub(crate) fn write(ep: &mut Endpoint, slot: u32, piece: Piece, to: Address, at: Region) -> Result<Posted, Error> {
    ep.write(slot, piece, to, at, piece.offset)
}

/// `fi_read`.
#[inline(never)]
pub(crate) fn get(ep: &mut Endpoint, slot: u32, into: Piece, from: Address, at: Region) -> Result<Posted, Error> {
    ep.read(slot, into, from, at, into.offset)
}

/// `fi_fetch_atomic` that adds. `locals`: offsets of operand and result.
#[inline(never)]
pub(crate) fn fetch_add(
    ep: &mut Endpoint,
    slot: u32,
    locals: [usize; 2],
    to: Address,
    at: Region,
) -> Result<Posted, Error> {
    ep.fetch_add(slot, locals, to, at, locals[0])
}

/// `fi_cq_read`. Returns the number of completions.
#[inline(never)]
pub(crate) fn read(ep: &mut Endpoint) -> Result<usize, Error> {
    ep.poll(|_| ())
}
