//! `gex_VIS_…`: vectors, indexed blocks and strided arrays.
//!
//! Within a host each access is complete when its call returns.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

use weft_gex::am::{self, Kind, Message};
use weft_gex::memory::{Piece, Way};
use weft_gex::vis::{Strided, copy_lists};

use crate::address;
use crate::after;
use crate::event::Event;
use crate::handles::{ERR_RESOURCE, OK, Tm, export, job, list};

/// `gex_Memvec_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Memvec {
    addr: *mut c_void,
    bytes: usize,
}

/// A list of the client: pieces, or blocks of one length.
#[derive(Clone, Copy)]
enum Blocks<'a> {
    Vector(&'a [Memvec]),
    Indexed(&'a [*mut c_void], usize),
}

/// One side of an access: its list, and the address that its offsets begin at, or 0.
#[derive(Clone, Copy)]
struct Pieces<'a> {
    blocks: Blocks<'a>,
    base: usize,
}

impl<'a> Pieces<'a> {
    fn iter(self) -> impl Iterator<Item = Piece> + 'a {
        let (vector, indexed, bytes) = match self.blocks {
            Blocks::Vector(vector) => (vector, &[][..], 0),
            Blocks::Indexed(indexed, bytes) => (&[][..], indexed, bytes),
        };
        let vector = vector.iter().map(|piece| Piece::at(piece.addr, piece.bytes));
        let all = vector.chain(indexed.iter().map(move |block| Piece::at(*block, bytes)));
        all.map(move |piece| Piece { addr: piece.addr.wrapping_add(self.base), ..piece })
    }
}

/// A message that follows the next put of this thread.
struct Completion {
    handler: u8,
    bytes: Vec<u8>,
}

thread_local! {
    static COMPLETION: RefCell<Option<Completion>> = const { RefCell::new(None) };
}

/// Tells the target that a put is complete, if the client has asked for that.
fn tell_peer(tm: Tm, rank: u32) {
    let Some(Completion { handler, bytes }) = COMPLETION.take() else { return };
    let source = bytes.as_ptr().expose_provenance();
    let message = Message { handler, kind: Kind::Medium, source, bytes: bytes.len(), args: &[] };
    am::notify(job(), tm.at(job(), rank), &message);
}

fn copy(way: Way, to: Target, near: Blocks<'_>, far: Blocks<'_>) {
    let Target { tm, rank, .. } = to;
    let job = job();
    let at = tm.at(job, rank);
    let [near_base, far_base] = bases(to);
    let (near, far) = (Pieces { blocks: near, base: near_base }, Pieces { blocks: far, base: far_base });
    copy_lists(job, at, way, near.iter(), far.iter());
    if way == Way::Put {
        tell_peer(tm, rank);
    }
}

/// The peer of an access, and the flags of the call.
#[derive(Clone, Copy)]
struct Target {
    tm: Tm,
    rank: u32,
    flags: u32,
}

/// The addresses that offsets begin at: here and at the peer; 0: the call has addresses.
fn bases(to: Target) -> [usize; 2] {
    let (job, none) = (job(), std::ptr::null::<c_void>());
    let far = address::at_peer(job, to.tm.at(job, to.rank), none, to.flags);
    [address::here(job, to.tm, none, to.flags).expose_provenance(), far]
}

/// One side of a strided access.
struct Side {
    addr: *const c_void,
    strides: *const isize,
}

/// The elements of a strided access.
struct Shape {
    bytes: usize,
    counts: *const usize,
    levels: usize,
}

fn strided(way: Way, to: Target, near: &Side, far: &Side, shape: &Shape) {
    let Target { tm, rank, .. } = to;
    let [near_base, far_base] = bases(to);
    // SAFETY: the client passes lists of that length.
    let near_strides = unsafe { list(near.strides, shape.levels) };
    // SAFETY: as above.
    let far_strides = unsafe { list(far.strides, shape.levels) };
    // SAFETY: as above.
    let counts = unsafe { list(shape.counts, shape.levels) };
    let access = Strided {
        near: near.addr.expose_provenance().wrapping_add(near_base),
        near_strides,
        far: far.addr.expose_provenance().wrapping_add(far_base),
        far_strides,
        bytes: shape.bytes,
        counts,
    };
    access.copy(job(), tm.at(job(), rank), way);
    if way == Way::Put {
        tell_peer(tm, rank);
    }
}

/// Defines the three forms of an access.
macro_rules! access {
    ($blocking:ident $nb:ident $nbi:ident ($($argument:ident: $ty:ty),*; $flags:ident) $body:block) => {
        export! {
            fn $blocking($($argument: $ty),*, $flags: u32) -> c_int {
                if !after::pass() {
                    return ERR_RESOURCE;
                }
                $body
                OK
            }

            fn $nb($($argument: $ty),*, $flags: u32) -> Event {
                if !after::pass() {
                    return Event::cancelled();
                }
                $body
                Event::INVALID
            }

            fn $nbi($($argument: $ty),*, $flags: u32) -> c_int {
                if !after::pass() {
                    return ERR_RESOURCE;
                }
                $body
                OK
            }
        }
    };
}

access!(gex_VIS_VectorPutBlocking gex_VIS_VectorPutNB gex_VIS_VectorPutNBI (tm: Tm, rank: u32, dests: usize, dest: *const Memvec, sources: usize, source: *const Memvec; flags) {
    // SAFETY: the client passes lists of these lengths.
    let near = Blocks::Vector(unsafe { list(source, sources) });
    // SAFETY: as above.
    copy(Way::Put, Target { tm, rank, flags }, near, Blocks::Vector(unsafe { list(dest, dests) }));
});

access!(gex_VIS_VectorGetBlocking gex_VIS_VectorGetNB gex_VIS_VectorGetNBI (tm: Tm, dests: usize, dest: *const Memvec, rank: u32, sources: usize, source: *const Memvec; flags) {
    // SAFETY: the client passes lists of these lengths.
    let near = Blocks::Vector(unsafe { list(dest, dests) });
    // SAFETY: as above.
    copy(Way::Get, Target { tm, rank, flags }, near, Blocks::Vector(unsafe { list(source, sources) }));
});

access!(gex_VIS_IndexedPutBlocking gex_VIS_IndexedPutNB gex_VIS_IndexedPutNBI (tm: Tm, rank: u32, dests: usize, dest: *const *mut c_void, dest_bytes: usize, sources: usize, source: *const *mut c_void, source_bytes: usize; flags) {
    // SAFETY: the client passes lists of these lengths.
    let near = Blocks::Indexed(unsafe { list(source, sources) }, source_bytes);
    // SAFETY: as above.
    copy(Way::Put, Target { tm, rank, flags }, near, Blocks::Indexed(unsafe { list(dest, dests) }, dest_bytes));
});

access!(gex_VIS_IndexedGetBlocking gex_VIS_IndexedGetNB gex_VIS_IndexedGetNBI (tm: Tm, dests: usize, dest: *const *mut c_void, dest_bytes: usize, rank: u32, sources: usize, source: *const *mut c_void, source_bytes: usize; flags) {
    // SAFETY: the client passes lists of these lengths.
    let near = Blocks::Indexed(unsafe { list(dest, dests) }, dest_bytes);
    // SAFETY: as above.
    copy(Way::Get, Target { tm, rank, flags }, near, Blocks::Indexed(unsafe { list(source, sources) }, source_bytes));
});

access!(gex_VIS_StridedPutBlocking gex_VIS_StridedPutNB gex_VIS_StridedPutNBI (tm: Tm, rank: u32, dest: *mut c_void, dest_strides: *const isize, source: *const c_void, source_strides: *const isize, bytes: usize, counts: *const usize, levels: usize; flags) {
    let near = Side { addr: source, strides: source_strides };
    strided(Way::Put, Target { tm, rank, flags }, &near, &Side { addr: dest, strides: dest_strides }, &Shape { bytes, counts, levels });
});

access!(gex_VIS_StridedGetBlocking gex_VIS_StridedGetNB gex_VIS_StridedGetNBI (tm: Tm, dest: *mut c_void, dest_strides: *const isize, rank: u32, source: *const c_void, source_strides: *const isize, bytes: usize, counts: *const usize, levels: usize; flags) {
    let near = Side { addr: dest, strides: dest_strides };
    strided(Way::Get, Target { tm, rank, flags }, &near, &Side { addr: source, strides: source_strides }, &Shape { bytes, counts, levels });
});

export! {
    fn gex_VIS_SetPeerCompletionHandler(handler: u8, source: *const c_void, bytes: usize, _flags: u32) {
        // SAFETY: the client passes the address of that many bytes.
        let bytes = unsafe { list(source.cast::<u8>(), bytes) }.to_vec();
        COMPLETION.set((handler != 0).then_some(Completion { handler, bytes }));
    }
}
