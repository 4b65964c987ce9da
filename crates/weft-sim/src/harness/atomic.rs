//! Atomic operations under observation.
//!
//! An atomic window of a rank is one region with two parts. The first holds [`COUNTERS`] numbers of 64 bits,
//! to which every rank only adds. In the second each rank has a slot of its own for operations of any kind;
//! the oracle models them in the order in which they were started.

use weft_engine::amo::{Amo, Op as AmoOp, Type};
use weft_engine::api::{Access, AtomicOp, Error, Fault, OpFlags, RmaIov};

use super::{CANARY, Harness, Window, beyond, pieces, with};
use crate::memory::Buffer;
use crate::oracle::{AtomicRecord, Op, Record, context};

/// Shared numbers at the start of an atomic window.
pub const COUNTERS: usize = 4;
/// Bytes of each rank's slot in an atomic window.
pub const SLOT_BYTES: usize = 6 << 10;
/// Length up to which an atomic operation is always a single message.
const SHORT_BYTES: usize = 64;

/// An atomic operation to be posted, on consecutive parts of one region.
#[derive(Clone, Debug)]
pub struct Atomic {
    /// The operation.
    pub amo: Amo,
    /// Offset in the region.
    pub offset: usize,
    /// Lengths of the remote pieces.
    pub remote: Vec<usize>,
    /// Operands, then comparison values.
    pub sources: Vec<u8>,
    /// Immediate data.
    pub data: Option<u64>,
    /// Flags; DATA follows from the field.
    pub flags: OpFlags,
    /// Lengths of the first local pieces, of each array.
    pub pieces: Vec<usize>,
    /// Makes the operation name the region wrongly, so that the target must refuse: `Fault::BadKey` or
    /// `Fault::BadRange`.
    pub provoke: Option<Fault>,
}

impl Atomic {
    /// Whether the operation only adds to counters.
    fn counts(&self) -> bool {
        self.amo.op() == AmoOp::Sum
            && self.amo.ty() == Type::Uint64
            && self.offset + self.remote.iter().sum::<usize>() <= COUNTERS * 8
    }

    /// The remote pieces of the operation in `window`, and the fault that it must meet.
    fn target(&self, window: &Window) -> (Vec<RmaIov>, Option<Fault>) {
        let (amo, len) = (self.amo, self.remote.iter().sum::<usize>());
        let granted = (window.access.read || !amo.fetches()) && (window.access.write || !amo.changes());
        let must_fail = if granted { self.provoke } else { Some(Fault::BadKey) };
        let key = if self.provoke == Some(Fault::BadKey) { window.key ^ 1 << 40 } else { window.key };
        let region_bytes = window.memory.len();
        let shift = match self.provoke {
            // The target checks each part of a long operation on its own: parts inside the region would take effect.
            Some(Fault::BadRange) if len > SHORT_BYTES => region_bytes + 1,
            Some(Fault::BadRange) => beyond(region_bytes, self.offset, &self.remote),
            _ => 0,
        };
        let mut remote = Vec::new();
        let mut at = self.offset;
        for len in &self.remote {
            remote.push(RmaIov { addr: window.base + (at + shift) as u64, len: *len as u64, key });
            at += len;
        }
        (remote, must_fail)
    }

    /// The oracle's record of the operation, which has not started yet. `region`: the window's number, and the
    /// fault that the operation must meet.
    fn record(&self, rank: usize, window: &Window, region: (usize, Option<Fault>), buffer: Buffer) -> AtomicRecord {
        let len = self.remote.iter().sum::<usize>();
        AtomicRecord {
            rank,
            target: window.rank,
            region: region.0 as u64,
            reported: window.events,
            amo: self.amo,
            flags: self.flags,
            data: self.data,
            len,
            pieces: self.remote.len(),
            offset: self.offset,
            sources: self.sources[..self.amo.sources() * len].to_vec(),
            counts: self.counts(),
            expected: Vec::new(),
            fetched: Vec::new(),
            buffer,
            there: window.memory.part(self.offset, len),
            must_fail: region.1,
            started: 0,
            end: None,
            events: 0,
        }
    }
}

impl Harness {
    /// Registers an atomic window of a rank, with slots for all ranks of the cluster, filled with zeros.
    pub fn add_atomic_window(&mut self, rank: usize, access: Access, events: bool) -> Result<usize, Error> {
        let len = COUNTERS * 8 + self.cluster.ranks() * SLOT_BYTES;
        let index = self.add_window(rank, len, access, events)?;
        self.windows[index].memory.fill(0);
        self.windows[index].atomic = true;
        Ok(index)
    }

    /// Offset of a rank's slot in an atomic window.
    #[must_use]
    pub fn slot(rank: usize) -> usize {
        COUNTERS * 8 + rank * SLOT_BYTES
    }

    /// Starts an atomic operation. An error leaves no trace.
    pub fn atomic(&mut self, rank: usize, index: usize, atomic: &Atomic) -> Result<Op, Error> {
        let op = self.oracle.number();
        let window = self.windows[index];
        let (amo, len) = (atomic.amo, atomic.remote.iter().sum::<usize>());
        let flags = with(atomic.flags, false, atomic.data.is_some());
        let sent = amo.sources() * len;
        let local_bytes = sent + if amo.fetches() { len } else { 0 };
        let buffer = self.cluster.fabric().alloc_filled(rank, local_bytes, CANARY);
        buffer.write(&atomic.sources[..sent]);
        let array = |n: usize| buffer.part(n * len, len);
        let arrays = [array(0), array(1), array(amo.sources())].map(|array| pieces(array, &atomic.pieces));
        let (remote, must_fail) = atomic.target(&window);
        let dest = self.cluster.addr(rank, window.rank);
        let Some(engine) = self.cluster.engine(rank) else { return Err(Error::Invalid) };
        let posted = engine.atomic(&AtomicOp {
            dest,
            amo,
            iov: &arrays[0],
            compare: &arrays[1],
            result: &arrays[2],
            remote: &remote,
            data: atomic.data.unwrap_or(0),
            ctx: context(op),
            flags,
        });
        if flags.contains(OpFlags::INJECT) {
            // The client may reuse the sources of an inject at once.
            buffer.part(0, sent).fill(0x1F);
        }
        if posted.is_err() {
            self.cluster.fabric().free(buffer);
        }
        self.note_post(rank, op, len, posted.is_ok());
        if posted.is_ok() {
            let mut record = atomic.record(rank, &window, (index, must_fail), buffer);
            record.flags = flags;
            record.started = self.oracle.tick();
            self.oracle.model(&mut record);
            self.oracle.accepted(op, Record::Atomic(Box::new(record)));
        }
        self.absorb(rank);
        posted.map(|()| op)
    }
}
