//! The memory of a run: every buffer that operations use, with guards around it.
//!
//! Place in the data flow: tests and workloads allocate here and hand the [`Iov`]s to the engine; the
//! fabric looks the remote side of a `get` or `put` up here. All endpoints live in one process, so an address
//! names a buffer uniquely, and the owner of the buffer stands for the address space.
//!
//! Invariants: no buffer is unmapped before the run ends, so an engine that writes too late damages nothing
//! but a freed buffer's pattern, and that is found by [`Memory::damage`]. This is also what makes the module
//! sound without `unsafe`: an `Iov` of a run's buffer is valid for as long as the run.

use std::collections::BTreeMap;

use weft_engine::mem::{self, Iov, IovList, Owned};
use weft_engine::nic::{RemoteIov, Span};

/// Guard bytes before and after each buffer.
const GUARD_BYTES: usize = 32;
const GUARD: u8 = 0xA5;
/// What a freed buffer is filled with.
const FREED: u8 = 0xDD;

/// A buffer of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    id: usize,
    iov: Iov,
}

impl Buffer {
    /// The memory, to be handed to an engine.
    #[must_use]
    pub fn iov(&self) -> Iov {
        self.iov
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iov.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iov.is_empty()
    }

    /// What it holds.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        mem::to_vec(&[self.iov])
    }

    /// Fills it from the front.
    pub fn write(&self, bytes: &[u8]) {
        self.iov.write(bytes);
    }

    /// Fills it with one byte.
    pub fn fill(&self, byte: u8) {
        let block = [byte; 512];
        for at in (0..self.len()).step_by(block.len()) {
            self.iov.slice(at, block.len()).write(&block);
        }
    }

    /// The part of it that begins at `offset` and has `len` bytes.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Self {
        Self { id: self.id, iov: self.iov.slice(offset, len) }
    }

    /// Cuts it into consecutive pieces of the given lengths; what is left over makes the last.
    #[must_use]
    pub fn pieces(&self, lens: &[usize]) -> IovList {
        let mut at = 0;
        let mut out = IovList::new();
        for len in lens {
            out.push(self.iov.slice(at, *len));
            at += len;
        }
        if at < self.len() {
            out.push(self.iov.slice(at, usize::MAX));
        }
        out
    }
}

/// Whether all bytes of `iov` are `byte`.
fn holds_only(iov: &[Iov], byte: u8, scratch: &mut Vec<u8>) -> bool {
    scratch.clear();
    scratch.resize(mem::total_len(iov), 0);
    mem::gather(iov, scratch);
    is_filled(scratch, byte)
}

/// Whether all of `bytes` are `byte`; by comparison of blocks, for there are many.
pub(crate) fn is_filled(bytes: &[u8], byte: u8) -> bool {
    let block = [byte; 512];
    bytes.chunks(block.len()).all(|chunk| *chunk == block[..chunk.len()])
}

#[derive(Debug)]
struct Block {
    owner: usize,
    memory: Owned,
    buffer: Buffer,
    freed: bool,
    unregistrable: bool,
}

/// All buffers of a run.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    blocks: Vec<Block>,
    by_address: BTreeMap<u64, usize>,
    live: usize,
    /// Stands for all address spaces, where clients bring their own memory.
    pub(crate) resolver: Option<fn(RemoteIov) -> Iov>,
}

impl Memory {
    /// A buffer in the address space of endpoint `owner`.
    pub(crate) fn alloc(&mut self, owner: usize, len: usize) -> Buffer {
        let mut memory = Owned::new(vec![GUARD; len + 2 * GUARD_BYTES]);
        let iov = memory.iov().slice(GUARD_BYTES, len);
        let id = self.blocks.len();
        let buffer = Buffer { id, iov };
        buffer.fill(0);
        self.by_address.insert(iov.addr(), id);
        self.blocks.push(Block { owner, memory, buffer, freed: false, unregistrable: false });
        self.live += 1;
        buffer
    }

    /// Ends the use of a buffer: whoever changes it from now on is found by `damage`. Returns whose it was.
    pub(crate) fn free(&mut self, buffer: Buffer) -> Option<usize> {
        let block = self.blocks.get_mut(buffer.id).filter(|block| !block.freed)?;
        block.freed = true;
        block.buffer.fill(FREED);
        self.live -= 1;
        Some(block.owner)
    }

    /// See [`crate::Fabric::forbid_registration`].
    pub(crate) fn forbid_registration(&mut self, buffer: Buffer) {
        if let Some(block) = self.blocks.get_mut(buffer.id) {
            block.unregistrable = true;
        }
    }

    /// Whether nothing in `span` forbids to register it.
    pub(crate) fn registrable(&self, span: &Span) -> bool {
        let forbids = |block: &Block| {
            let iov = block.buffer.iov;
            block.unregistrable && span.overlaps(&Span { start: iov.addr(), len: iov.len() as u64 })
        };
        !self.blocks.iter().any(forbids)
    }

    /// Buffers not freed.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// What was written where nothing may be written: guards and freed buffers.
    pub(crate) fn damage(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        let mut scratch = Vec::new();
        for block in &mut self.blocks {
            let whole = block.memory.iov();
            let end = GUARD_BYTES + block.buffer.len();
            let guards = [whole.slice(0, GUARD_BYTES), whole.slice(end, GUARD_BYTES)];
            if !holds_only(&guards, GUARD, &mut scratch) {
                found.push(format!("buffer {} of endpoint {} was written outside", block.buffer.id, block.owner));
            }
            if block.freed && !holds_only(&[block.buffer.iov], FREED, &mut scratch) {
                found.push(format!(
                    "buffer {} of endpoint {} was written after it was free",
                    block.buffer.id, block.owner
                ));
            }
        }
        found
    }

    /// The memory that `remote` names in the address space of `owner`; `None` if any of it is in no buffer. A freed
    /// buffer is found too, as freed memory is in a process: who still reads it gets rubbish, who writes it does damage.
    pub(crate) fn resolve(&self, owner: usize, remote: &[RemoteIov]) -> Option<IovList> {
        remote.iter().filter(|piece| piece.len > 0).map(|piece| self.resolve_one(owner, *piece)).collect()
    }

    fn resolve_one(&self, owner: usize, piece: RemoteIov) -> Option<Iov> {
        if let Some(resolver) = self.resolver {
            return Some(resolver(piece));
        }
        let (start, id) = self.by_address.range(..=piece.addr).next_back()?;
        let block = self.blocks.get(*id)?;
        let offset = usize::try_from(piece.addr - start).ok()?;
        let len = usize::try_from(piece.len).ok()?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= block.buffer.len());
        (inside && block.owner == owner).then(|| block.buffer.iov.slice(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_resolves_only_inside_a_buffer_of_its_owner() {
        let mut memory = Memory::default();
        let buffer = memory.alloc(1, 100);
        let at = buffer.iov().addr();
        let inside = [RemoteIov { addr: at + 10, len: 90 }];
        assert_eq!(memory.resolve(1, &inside).map(|iov| mem::total_len(&iov)), Some(90));
        assert!(memory.resolve(0, &inside).is_none(), "another's address space");
        assert!(memory.resolve(1, &[RemoteIov { addr: at + 11, len: 90 }]).is_none(), "past the end");
        assert!(memory.resolve(1, &[RemoteIov { addr: at - 1, len: 1 }]).is_none(), "before the start");
        assert!(memory.resolve(1, &[RemoteIov { addr: at, len: u64::MAX }]).is_none(), "overflow");
    }

    #[test]
    fn late_and_stray_writes_are_found() {
        let mut memory = Memory::default();
        let good = memory.alloc(0, 8);
        let late = memory.alloc(0, 8);
        good.fill(1);
        memory.free(late);
        assert!(memory.damage().is_empty());
        late.iov().slice(3, 1).write(&[0]);
        assert_eq!(memory.damage().len(), 1);
        memory.blocks[0].memory.iov().slice(0, 1).write(&[0]);
        assert_eq!(memory.damage().len(), 2);
        assert_eq!(memory.live(), 1);
    }
}
