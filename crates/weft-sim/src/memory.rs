//! The memory of a run: all buffers of operations, with guards around them.
//!
//! Place in the data flow: tests and workloads allocate here and hand the [`Iov`]s to the engine; the fabric
//! looks up the remote side of a `get` or `put` here. All endpoints share one process, so an address
//! identifies a buffer, and the owner of the buffer represents the address space. Addresses differ between
//! processes and runs, so registrations identify buffers by *places*, which depend on the plan of a run
//! alone.
//!
//! Invariants: no buffer is unmapped before the run ends. An engine that writes too late therefore damages
//! only the pattern of a freed buffer, which [`Memory::damage`] finds. The module is sound without `unsafe`
//! for the same reason: the `Iov` of a buffer is valid for as long as the run.

use std::collections::BTreeMap;

use weft_engine::mem::{self, Iov, IovList, Owned};
use weft_engine::nic::{RemoteIov, Span};

use crate::fabric::Fabric;

/// Guard bytes before and after each buffer.
const GUARD_BYTES: usize = 32;
const GUARD: u8 = 0xA5;
/// Alignment of places, apart from the guard, as usual allocators have it.
const PLACE_BYTES: u64 = 16;
/// The content of freed buffers.
const FREED: u8 = 0xDD;
/// Memory is filled and compared in blocks, because there is much of it.
const BLOCK_BYTES: usize = 1024;

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

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iov.is_empty()
    }

    /// The content.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        mem::to_vec(&[self.iov])
    }

    /// Writes `bytes` from the front.
    pub fn write(&self, bytes: &[u8]) {
        self.iov.write(bytes);
    }

    /// Fills the buffer with one byte.
    pub fn fill(&self, byte: u8) {
        let block = [byte; BLOCK_BYTES];
        for at in (0..self.len()).step_by(block.len()) {
            self.iov.slice(at, block.len()).write(&block);
        }
    }

    /// Whether the content starts with `bytes`.
    #[must_use]
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let mut here = [0; BLOCK_BYTES];
        bytes.len() == self.len()
            && bytes.chunks(BLOCK_BYTES).enumerate().all(|(n, chunk)| {
                let read = self.iov.slice(n * BLOCK_BYTES, BLOCK_BYTES).read(&mut here);
                here[..read] == *chunk
            })
    }

    /// Whether every byte is `byte`.
    #[must_use]
    pub fn is_filled(&self, byte: u8) -> bool {
        is_filled(&self.iov, byte)
    }

    /// The part that starts at `offset` and has `len` bytes.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Self {
        Self { id: self.id, iov: self.iov.slice(offset, len) }
    }

    /// Cuts the buffer into consecutive pieces of the given lengths; the remaining bytes form the last piece.
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
fn is_filled(iov: &Iov, byte: u8) -> bool {
    let (block, mut here) = ([byte; BLOCK_BYTES], [0; BLOCK_BYTES]);
    (0..iov.len()).step_by(BLOCK_BYTES).all(|at| {
        let n = iov.slice(at, BLOCK_BYTES).read(&mut here);
        here[..n] == block[..n]
    })
}

#[derive(Debug)]
struct Block {
    owner: usize,
    memory: Owned,
    buffer: Buffer,
    /// The place of its first byte.
    place: u64,
    freed: bool,
}

/// All buffers of a run.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    blocks: Vec<Block>,
    by_address: BTreeMap<u64, usize>,
    unregistrable: Vec<Span>,
    /// The first unused place.
    next_place: u64,
    live: usize,
    /// By endpoint: the number of its address space. An endpoint without an entry has its own.
    spaces: Vec<usize>,
    /// Replaces all address spaces where clients bring their own memory.
    pub(crate) resolver: Option<fn(RemoteIov) -> Iov>,
}

impl Memory {
    /// Allocates a buffer of at most `len` bytes in the address space of endpoint `owner`, filled by
    /// `append`.
    pub(crate) fn alloc(&mut self, owner: usize, len: usize, append: impl FnOnce(&mut Vec<u8>)) -> Buffer {
        let mut bytes = Vec::with_capacity(len + 2 * GUARD_BYTES);
        bytes.resize(GUARD_BYTES, GUARD);
        append(&mut bytes);
        let len = bytes.len() - GUARD_BYTES;
        bytes.resize(bytes.len() + GUARD_BYTES, GUARD);
        let mut memory = Owned::new(bytes);
        let iov = memory.iov().slice(GUARD_BYTES, len);
        let id = self.blocks.len();
        let buffer = Buffer { id, iov };
        let place = self.new_place(len as u64).start;
        self.by_address.insert(iov.addr(), id);
        self.blocks.push(Block { owner, memory, buffer, place, freed: false });
        self.live += 1;
        buffer
    }

    /// Gives a buffer another place.
    pub(crate) fn set_place(&mut self, buffer: Buffer, place: &Span) {
        if let Some(block) = self.blocks.get_mut(buffer.id) {
            block.place = place.start;
        }
    }

    /// Frees a buffer and returns its owner; `damage` reports later changes to it.
    pub(crate) fn free(&mut self, buffer: Buffer) -> Option<usize> {
        let block = self.blocks.get_mut(buffer.id).filter(|block| !block.freed)?;
        block.freed = true;
        block.buffer.fill(FREED);
        self.live -= 1;
        Some(block.owner)
    }

    /// Makes endpoints share address spaces. `spaces` gives, by endpoint, the number of its own.
    pub(crate) fn share(&mut self, spaces: Vec<usize>) {
        self.spaces = spaces;
    }

    /// Whether two endpoints share an address space.
    pub(crate) fn is_shared(&self, a: usize, b: usize) -> bool {
        let space = |owner: usize| self.spaces.get(owner).copied().unwrap_or(owner);
        space(a) == space(b)
    }

    /// Makes every registration of this buffer fail, as [`crate::Fabric::forbid_registration`] says.
    pub(crate) fn forbid_registration(&mut self, buffer: Buffer) {
        self.unregistrable.extend(self.place(&Span::from(&buffer.iov)));
    }

    /// Whether `span` may be registered.
    pub(crate) fn registrable(&self, span: &Span) -> bool {
        !self.unregistrable.iter().any(|forbidden| span.overlaps(forbidden))
    }

    /// Reserves a place for memory of `len` bytes, behind all others and as close as an allocator would put
    /// it.
    pub(crate) fn new_place(&mut self, len: u64) -> Span {
        let start = self.next_place.next_multiple_of(PLACE_BYTES) + GUARD_BYTES as u64;
        self.next_place = start + len + GUARD_BYTES as u64;
        Span { start, len }
    }

    /// The place of memory that lies in a buffer, given by its address; `None` outside of all buffers. The
    /// place of memory that a client brings is its address.
    pub(crate) fn place(&self, memory: &Span) -> Option<Span> {
        if self.resolver.is_some() {
            return Some(*memory);
        }
        let (block, offset) = self.find(memory)?;
        Some(Span { start: block.place + offset as u64, len: memory.len })
    }

    /// The whole place of the buffer that contains `memory`.
    pub(crate) fn block(&self, memory: &Span) -> Option<Span> {
        self.find(memory).map(|(block, _)| Span { start: block.place, len: block.buffer.len() as u64 })
    }

    /// The buffer that contains `memory`, and the offset of `memory` in it.
    fn find(&self, memory: &Span) -> Option<(&Block, usize)> {
        let (start, id) = self.by_address.range(..=memory.start).next_back()?;
        let block = self.blocks.get(*id)?;
        let offset = usize::try_from(memory.start - start).ok()?;
        let end = offset.checked_add(usize::try_from(memory.len).ok()?)?;
        (end <= block.buffer.len()).then_some((block, offset))
    }

    /// Number of buffers not freed.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Reports writes to guards and freed buffers.
    pub(crate) fn damage(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for block in &mut self.blocks {
            let whole = block.memory.iov();
            let end = GUARD_BYTES + block.buffer.len();
            let guards = [whole.slice(0, GUARD_BYTES), whole.slice(end, GUARD_BYTES)];
            if !guards.iter().all(|guard| is_filled(guard, GUARD)) {
                let Buffer { id, .. } = block.buffer;
                found.push(format!("buffer {id} of endpoint {} was written outside its bounds", block.owner));
            }
            if block.freed && !block.buffer.is_filled(FREED) {
                found.push(format!(
                    "buffer {} of endpoint {} was written after it was freed",
                    block.buffer.id, block.owner
                ));
            }
        }
        found
    }

    /// The memory that `remote` names in the address space of `owner`; `None` if any of it lies outside all
    /// buffers. Freed buffers resolve too, as freed memory in a process does: a read returns the freed
    /// pattern, a write is found as damage.
    pub(crate) fn resolve(&self, owner: usize, remote: &[RemoteIov]) -> Option<IovList> {
        remote.iter().filter(|piece| piece.len > 0).map(|piece| self.resolve_one(owner, *piece)).collect()
    }

    fn resolve_one(&self, owner: usize, piece: RemoteIov) -> Option<Iov> {
        if let Some(resolver) = self.resolver {
            return Some(resolver(piece));
        }
        let (block, offset) = self.find(&Span { start: piece.addr, len: piece.len })?;
        let len = usize::try_from(piece.len).ok()?;
        self.is_shared(block.owner, owner).then(|| block.buffer.iov.slice(offset, len))
    }
}

impl Fabric {
    /// Allocates a buffer in the address space of endpoint `ep`.
    #[must_use]
    pub fn alloc(&self, ep: usize, len: usize) -> Buffer {
        self.alloc_filled(ep, len, 0)
    }

    /// Allocates a buffer in the address space of endpoint `ep`, filled with one byte.
    #[must_use]
    pub fn alloc_filled(&self, ep: usize, len: usize, byte: u8) -> Buffer {
        self.state().memory.alloc(ep, len, |bytes| bytes.resize(bytes.len() + len, byte))
    }

    /// Allocates a buffer of `len` bytes in the address space of endpoint `ep`, filled by `append`.
    #[must_use]
    pub fn alloc_of(&self, ep: usize, len: usize, append: impl FnOnce(&mut Vec<u8>)) -> Buffer {
        self.state().memory.alloc(ep, len, append)
    }

    /// Frees a buffer; [`Fabric::violations`] reports later writes to it.
    pub fn free(&self, buffer: Buffer) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(place) = state.memory.place(&Span::from(&buffer.iov())) else { return };
        if let Some(owner) = state.memory.free(buffer) {
            state.free_special(owner, place);
            for ep in 0..state.endpoints.len() {
                if state.memory.is_shared(ep, owner) && state.endpoints[ep].registered.unmapped(place) {
                    state.stir(ep);
                }
            }
        }
    }

    /// Makes endpoints share address spaces. `spaces` gives, by endpoint, the number of its own.
    pub(crate) fn share_memory(&self, spaces: Vec<usize>) {
        self.state().memory.share(spaces);
    }

    /// Makes every registration of this buffer fail.
    pub fn forbid_registration(&self, buffer: Buffer) {
        self.state().memory.forbid_registration(buffer);
    }

    /// Number of buffers not freed.
    #[must_use]
    pub fn live_buffers(&self) -> usize {
        self.state().memory.live()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_resolves_only_inside_a_buffer_of_its_owner() {
        let mut memory = Memory::default();
        let buffer = memory.alloc(1, 100, |bytes| bytes.extend([0; 100]));
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
        let good = memory.alloc(0, 8, |bytes| bytes.extend([0; 8]));
        let late = memory.alloc(0, 8, |bytes| bytes.extend([0; 8]));
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
