//! The segments of all ranks: from an address of a peer's process to its place here.
//!
//! Place in the data flow: every remote access asks [`Segments::place`]. It is one comparison for a segment that is
//! mapped. Segments appear on the board when their owner publishes them, and are mapped here at their first use.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::board::{Board, MAX_ENDPOINTS, Published};
use crate::memory::{self, Piece};
use crate::places::Places;

/// An endpoint of the job: a rank, and the number of the endpoint there. It knows the own endpoint by which it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    rank: u32,
    endpoint: u16,
    by: u16,
}

impl Location {
    /// An endpoint of a rank, used by the first of the own ones.
    #[inline(always)]
    #[must_use]
    pub fn new(rank: u32, endpoint: u16) -> Self {
        Self { rank, endpoint, by: 0 }
    }

    /// The endpoint, used by another one.
    #[inline(always)]
    #[must_use]
    pub fn used_by(self, by: u16) -> Self {
        Self { by, ..self }
    }

    /// The number of the own endpoint.
    #[inline(always)]
    #[must_use]
    pub fn by(self) -> u16 {
        self.by
    }

    /// The rank.
    #[inline(always)]
    #[must_use]
    pub fn rank(self) -> u32 {
        self.rank
    }

    /// The number of the endpoint.
    #[inline(always)]
    #[must_use]
    pub fn endpoint(self) -> u16 {
        self.endpoint
    }
}

/// A segment that is mapped here. All zeros: not known, or not mapped. Inline functions of the headers read it
/// (`gex_weft_segment_t`).
#[derive(Default)]
#[repr(C)]
pub struct Mapped {
    /// The address in the owner's process.
    base: AtomicUsize,
    bytes: AtomicUsize,
    /// The address here, less `base`. A distance serves accesses sooner than an address: it is added to that of the
    /// client, while the comparisons go on.
    shift: AtomicUsize,
}

impl Mapped {
    #[inline(always)]
    fn place(&self, piece: Piece) -> Option<usize> {
        let Piece { addr, bytes } = piece;
        let at = addr.wrapping_sub(self.base.load(Ordering::Relaxed));
        let room = self.bytes.load(Ordering::Acquire);
        (at <= room && bytes <= room - at).then(|| addr.wrapping_add(self.shift.load(Ordering::Relaxed)))
    }

    fn set(&self, base: usize, here: usize, bytes: usize) {
        self.base.store(base, Ordering::Relaxed);
        self.shift.store(here.wrapping_sub(base), Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Release);
    }
}

/// The place of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At an address of this process.
    Here(usize),
    /// In another process of this host, whose memory is not mapped here.
    Far(u32),
    /// In a segment of another neighbourhood, which the engine reaches.
    Remote,
    /// In no segment.
    Nowhere,
}

/// The segments of all endpoints.
pub struct Segments {
    rank: u32,
    /// Those of endpoint 0, by rank.
    primary: Box<[Mapped]>,
    /// Those of the other endpoints, by endpoint and rank.
    others: [OnceLock<Box<[Mapped]>>; MAX_ENDPOINTS],
    /// Those of other neighbourhoods: address and length.
    remote: RwLock<HashMap<Location, (usize, usize)>>,
    /// Held while a segment is mapped.
    mapping: Mutex<()>,
}

impl Segments {
    /// An empty table of a rank.
    #[must_use]
    pub fn new(rank: u32, ranks: u32) -> Self {
        let primary = (0..ranks).map(|_| Mapped::default()).collect();
        Self {
            rank,
            primary,
            others: std::array::from_fn(|_| OnceLock::new()),
            remote: RwLock::default(),
            mapping: Mutex::new(()),
        }
    }

    /// Notes the segment of an endpoint of another neighbourhood.
    pub fn add_remote(&self, at: Location, addr: usize, bytes: usize) {
        self.remote.write().insert(at.used_by(0), (addr, bytes));
    }

    /// The address and the length of the segment of an endpoint of another neighbourhood.
    #[must_use]
    pub fn remote(&self, at: Location) -> Option<(usize, usize)> {
        self.remote.read().get(&at.used_by(0)).copied()
    }

    /// The segments of endpoint 0, by rank.
    #[must_use]
    pub fn primary(&self) -> *const Mapped {
        self.primary.as_ptr()
    }

    #[inline(always)]
    fn row(&self, at: Location) -> Option<&Mapped> {
        if at.endpoint == 0 { self.primary.get(at.rank as usize) } else { self.other_row(at) }
    }

    #[cold]
    fn other_row(&self, at: Location) -> Option<&Mapped> {
        let rows = self.others.get(usize::from(at.endpoint))?;
        rows.get_or_init(|| self.primary.iter().map(|_| Mapped::default()).collect()).get(at.rank as usize)
    }

    /// The place of `bytes` bytes at an address of an endpoint's process.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, board: &Board, places: &Places, at: Location, piece: Piece) -> Place {
        match self.row(at).and_then(|row| row.place(piece)) {
            Some(here) => Place::Here(here),
            None => self.look(board, places, at, piece),
        }
    }

    /// The address of a segment that is mapped here, in the process of its owner.
    #[inline]
    #[must_use]
    pub fn base(&self, at: Location) -> Option<usize> {
        let row = self.row(at)?;
        (row.bytes.load(Ordering::Acquire) > 0).then(|| row.base.load(Ordering::Relaxed))
    }

    /// The place of memory in a segment that is not known here yet.
    #[cold]
    #[inline(never)]
    fn look(&self, board: &Board, places: &Places, at: Location, piece: Piece) -> Place {
        let Piece { addr, bytes } = piece;
        if !places.is_near(at.rank) {
            let within = |&(base, length): &(usize, usize)| {
                let offset = addr.wrapping_sub(base);
                offset <= length && bytes <= length - offset
            };
            return self.remote(at).filter(within).map_or(Place::Nowhere, |_| Place::Remote);
        }
        let Some(segment) = board.published(at.rank, usize::from(at.endpoint)) else { return Place::Nowhere };
        let offset = addr.wrapping_sub(segment.addr);
        if offset > segment.bytes || bytes > segment.bytes - offset {
            return Place::Nowhere;
        }
        match self.local(board, at, segment) {
            Some(here) => Place::Here(here + offset),
            None => board.process(at.rank).map_or(Place::Nowhere, Place::Far),
        }
    }

    /// The address at which a peer's segment is mapped here. `None`: the client has allocated it, or the system refuses
    /// the mapping.
    #[must_use]
    pub fn local(&self, board: &Board, at: Location, segment: Published) -> Option<usize> {
        let row = self.row(at)?;
        if at.rank == self.rank {
            row.set(segment.addr, segment.addr, segment.bytes);
            return Some(segment.addr);
        }
        let _one = self.mapping.lock();
        if row.base.load(Ordering::Relaxed) == segment.addr
            && let Some(here) = row.place(Piece { addr: segment.addr, bytes: segment.bytes })
        {
            return Some(here);
        }
        let here = board.file().map(segment.offset?, segment.bytes).ok()?;
        row.set(segment.addr, here, segment.bytes);
        Some(here)
    }

    /// Forgets a segment, and unmaps it here.
    pub fn forget(&self, at: Location) {
        let _one = self.mapping.lock();
        let Some(row) = self.row(at) else { return };
        let [base, shift, bytes] = [&row.base, &row.shift, &row.bytes].map(|word| word.load(Ordering::Relaxed));
        row.set(0, 0, 0);
        if at.rank != self.rank && bytes > 0 {
            memory::unmap_part(Piece { addr: base.wrapping_add(shift), bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn memory_of_peers_is_found_in_published_segments_only() {
        let board = Board::create(2).unwrap();
        let (table, places) = (Segments::new(0, 2), Places::new(0, &[1, 1], 8));
        let peer = Location::new(1, 0);
        assert_eq!(table.place(&board, &places, peer, Piece { addr: 0x10_0000, bytes: 8 }), Place::Nowhere);
        let offset = board.allocate(8192).unwrap();
        board.publish(1, 0, Published { addr: 0x10_0000, bytes: 8192, offset: Some(offset) });
        let Place::Here(here) = table.place(&board, &places, peer, Piece { addr: 0x10_0010, bytes: 8 }) else {
            panic!("not mapped")
        };
        assert_eq!(table.place(&board, &places, peer, Piece { addr: 0x10_0000, bytes: 8192 }), Place::Here(here - 16));
        for (addr, bytes) in [(0x10_0000, 8193), (0xf_ffff, 1), (0x10_1ff9, 8), (usize::MAX, 8), (0x10_2001, 0)] {
            assert_eq!(table.place(&board, &places, peer, Piece { addr, bytes }), Place::Nowhere, "{addr:#x} {bytes}");
        }
        assert_eq!(
            table.place(&board, &places, Location::new(2, 0), Piece { addr: 0x10_0000, bytes: 8 }),
            Place::Nowhere
        );
    }

    #[test]
    fn memory_of_clients_is_far_and_ones_own_is_here() {
        let board = Board::create(2).unwrap();
        let (table, places) = (Segments::new(0, 2), Places::new(0, &[1, 1], 8));
        board.set_up(1, 77);
        for rank in 0..2 {
            board.publish(rank, 5, Published { addr: 0x10_0000, bytes: 100, offset: None });
        }
        assert_eq!(
            table.place(&board, &places, Location::new(1, 5), Piece { addr: 0x10_0001, bytes: 8 }),
            Place::Far(77)
        );
        assert_eq!(
            table.place(&board, &places, Location::new(0, 5), Piece { addr: 0x10_0001, bytes: 8 }),
            Place::Here(0x10_0001)
        );
    }

    #[test]
    fn memory_of_other_neighbourhoods_is_remote() {
        let board = Board::create(2).unwrap();
        let (table, places) = (Segments::new(0, 2), Places::new(0, &[1, 2], 8));
        let peer = Location::new(1, 0);
        assert_eq!(table.place(&board, &places, peer, Piece { addr: 0x1000, bytes: 8 }), Place::Nowhere);
        table.add_remote(peer, 0x1000, 16);
        assert_eq!(table.place(&board, &places, peer, Piece { addr: 0x1008, bytes: 8 }), Place::Remote);
        assert_eq!(table.place(&board, &places, peer, Piece { addr: 0x1009, bytes: 8 }), Place::Nowhere);
    }
}
