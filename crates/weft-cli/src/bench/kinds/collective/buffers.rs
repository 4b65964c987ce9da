//! The buffers of an operation, their contents, and the check of its results.
//!
//! Each element is a function of a seed, of the member that supplies it, of its block and of its place. The first
//! element of each block changes with every operation, and is checked after every operation. The others change with
//! every batch, and are checked after it. Of long buffers, a batch changes and checks only some thousand elements, and
//! other ones each time.

use weft_client::{Endpoint, Error, Numbers, Operation, Piece};

use crate::bench::child::RankError;

/// Elements that a batch changes in each direction.
const SAMPLED: usize = 4096;
/// Most bytes of the buffers of pending operations.
const MOST_BYTES: usize = 16 << 20;

/// The buffers of one member.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    what: Operation,
    count: usize,
    rank: usize,
    members: usize,
    at: usize,
    input_bytes: usize,
    result_bytes: usize,
    /// Number of operations that may be pending, each with buffers of its own.
    places: u32,
}

/// The root of operations that have one.
const ROOT: usize = 0;

impl Buffers {
    /// The buffers of up to `window` pending operations with blocks of `size` bytes, from offset `at` on.
    pub(crate) fn new(what: Operation, size: usize, [rank, members]: [usize; 2], at: usize, window: u32) -> Self {
        let count = size / 8;
        let [input_bytes, result_bytes] = what.buffer_bytes(count, members).map(|bytes| bytes.next_multiple_of(64));
        let fitting = MOST_BYTES / (input_bytes + result_bytes).max(1);
        let places = u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, window);
        Self { what, count, rank, members, at, input_bytes, result_bytes, places }
    }

    /// Number of operations that may be pending.
    pub(crate) const fn places(&self) -> u32 {
        self.places
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.places as usize * (self.input_bytes + self.result_bytes)
    }

    /// The arguments of the operation at a place.
    pub(crate) const fn numbers(&self, place: u32) -> Numbers {
        let start = self.at + place as usize * (self.input_bytes + self.result_bytes);
        let input = Piece { offset: start, len: self.input_bytes };
        let result = Piece { offset: start + self.input_bytes, len: self.result_bytes };
        Numbers { operation: self.what, count: self.count, root: ROOT as u64, input, result }
    }

    /// Where this member's input begins, and its number of blocks.
    const fn input(&self, place: u32) -> (usize, usize) {
        let Numbers { input, result, .. } = self.numbers(place);
        let at_root = self.rank == ROOT;
        match self.what {
            Operation::Barrier => (0, 0),
            Operation::Broadcast => (result.offset, if at_root { 1 } else { 0 }),
            Operation::Scatter => (input.offset, if at_root { self.members } else { 0 }),
            Operation::AllToAll | Operation::ReduceScatter => (input.offset, self.members),
            _ => (input.offset, 1),
        }
    }

    /// Where this member's result begins, and its number of blocks.
    const fn result(&self, place: u32) -> (usize, usize) {
        let offset = self.numbers(place).result.offset;
        let at_root = self.rank == ROOT;
        let blocks = match self.what {
            Operation::Barrier => 0,
            Operation::Reduce => at_root as usize,
            Operation::Gather => at_root as usize * self.members,
            Operation::AllToAll | Operation::AllGather => self.members,
            _ => 1,
        };
        (offset, blocks)
    }

    /// The element of a result.
    fn expected(&self, seed: u64, block: usize, element: usize) -> u64 {
        let sum_of = |block| (0..self.members).fold(0_u64, |sum, of| sum.wrapping_add(value(seed, of, block, element)));
        match self.what {
            Operation::Barrier => 0,
            Operation::Broadcast => value(seed, ROOT, 0, element),
            Operation::Scatter => value(seed, ROOT, self.rank, element),
            Operation::AllToAll => value(seed, block, self.rank, element),
            Operation::AllGather | Operation::Gather => value(seed, block, 0, element),
            Operation::AllReduce | Operation::Reduce => sum_of(0),
            Operation::ReduceScatter => sum_of(self.rank),
        }
    }

    /// The elements that a batch changes, without the first.
    fn sampled(&self, batch: u64) -> impl Iterator<Item = usize> + use<> {
        let elements = self.count * self.members * self.places as usize;
        // The first batch fills everything.
        let step = if batch == 0 { 1 } else { elements.div_ceil(SAMPLED).max(1) };
        let first = usize::try_from(batch).unwrap_or(0) % step + 1;
        (first..self.count).step_by(step)
    }

    /// Writes the inputs of a batch.
    pub(crate) fn fill(&self, ep: &mut Endpoint, batch: u64) -> Result<(), Error> {
        for place in 0..self.places {
            let (start, blocks) = self.input(place);
            for block in 0..blocks {
                for element in self.sampled(batch) {
                    let at = start + (block * self.count + element) * 8;
                    ep.store(at, value(batch, self.rank, block, element))?;
                }
            }
        }
        Ok(())
    }

    /// Writes the first elements of an operation's input.
    #[inline]
    pub(crate) fn stamp(&self, ep: &mut Endpoint, place: u32, number: u64) -> Result<(), Error> {
        let (start, blocks) = self.input(place);
        for block in 0..blocks {
            ep.store(start + block * self.count * 8, value(number, self.rank, block, 0))?;
        }
        Ok(())
    }

    /// Checks the first elements of an operation's result.
    #[inline]
    pub(crate) fn check_stamp(&self, ep: &Endpoint, place: u32, number: u64) -> Result<(), RankError> {
        let (_, blocks) = self.result(place);
        (0..blocks).try_for_each(|block| self.check(ep, place, number, block, 0))
    }

    /// Checks the other elements that the batch has changed.
    pub(crate) fn check_batch(&self, ep: &Endpoint, place: u32, batch: u64) -> Result<(), RankError> {
        let (_, blocks) = self.result(place);
        for block in 0..blocks {
            for element in self.sampled(batch) {
                self.check(ep, place, batch, block, element)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn check(&self, ep: &Endpoint, place: u32, seed: u64, block: usize, element: usize) -> Result<(), RankError> {
        let (start, _) = self.result(place);
        let found = ep.load(start + (block * self.count + element) * 8)?;
        let expected = self.expected(seed, block, element);
        if found == expected {
            return Ok(());
        }
        Err(RankError::Failed(format!(
            "wrong result: element {element} of block {block} at member {} is {found:#x} instead of {expected:#x}",
            self.rank
        )))
    }
}

/// An element of a member's input.
const fn value(seed: u64, member: usize, block: usize, element: usize) -> u64 {
    (seed << 40) ^ ((member as u64) << 32) ^ ((block as u64) << 24) ^ (element as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_pending_operations_do_not_overlap() {
        let buffers = Buffers::new(Operation::AllGather, 24, [1, 3], 4096, 5);
        assert_eq!(buffers.places(), 5);
        let mut end = 4096;
        for place in 0..5 {
            let Numbers { input, result, .. } = buffers.numbers(place);
            assert_eq!((input.offset, result.offset), (end, end + input.len));
            assert!(input.len >= 24 && result.len >= 72);
            end = result.offset + result.len;
        }
        assert_eq!(end, 4096 + buffers.bytes());
        let long = Buffers::new(Operation::AllToAll, 1 << 20, [0, 16], 0, 64);
        assert_eq!(long.places(), 1);
    }

    #[test]
    fn every_element_is_changed_by_some_batch() {
        let buffers = Buffers::new(Operation::AllReduce, 8 * 10_000, [0, 2], 0, 1);
        let mut changed: Vec<usize> = (1..=5).flat_map(|batch| buffers.sampled(batch)).collect();
        changed.sort_unstable();
        changed.dedup();
        assert_eq!(changed.len(), 9_999);
        assert_eq!(buffers.sampled(0).count(), 9_999);
    }

    #[test]
    fn results_are_those_of_the_operations() {
        let expected = |what, block| Buffers::new(what, 64, [1, 3], 0, 1).expected(7, block, 5);
        assert_eq!(expected(Operation::Broadcast, 0), value(7, 0, 0, 5));
        assert_eq!(expected(Operation::AllToAll, 2), value(7, 2, 1, 5));
        assert_eq!(expected(Operation::AllGather, 2), value(7, 2, 0, 5));
        let sum = value(7, 0, 1, 5) + value(7, 1, 1, 5) + value(7, 2, 1, 5);
        assert_eq!(expected(Operation::ReduceScatter, 0), sum);
    }
}
