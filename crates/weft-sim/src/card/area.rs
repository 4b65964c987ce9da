//! The allocator of special memory: the first free range that is long enough.
//!
//! Place in the data flow: [`super`] takes bounce buffers and the memory of clients from areas.
//!
//! Invariant: free ranges do not overlap or touch.

use std::collections::BTreeMap;

use weft_engine::nic::Span;

/// Alignment of ranges, in bytes.
const ALIGN_BYTES: u64 = 64;

/// A range of special memory, of which parts are taken.
#[derive(Debug)]
pub(crate) struct Area {
    /// Free ranges: the length by the start.
    free: BTreeMap<u64, u64>,
}

impl Area {
    pub(crate) fn new(start: u64, len: u64) -> Self {
        Self { free: (len > 0).then_some((start, len)).into_iter().collect() }
    }

    /// The bytes that a range of `len` bytes takes.
    const fn room(len: u64) -> u64 {
        let len = if len == 0 { 1 } else { len };
        len.next_multiple_of(ALIGN_BYTES)
    }

    /// Takes the first range of `len` bytes. `None`: no free range is long enough.
    pub(crate) fn take(&mut self, len: u64) -> Option<Span> {
        let room = Self::room(len);
        let (&start, &free) = self.free.iter().find(|(_, free)| **free >= room)?;
        self.free.remove(&start);
        if free > room {
            self.free.insert(start + room, free - room);
        }
        Some(Span { start, len })
    }

    /// Returns a range that was taken.
    pub(crate) fn give(&mut self, range: Span) {
        let (mut start, mut len) = (range.start, Self::room(range.len));
        if let Some(behind) = self.free.remove(&(start + len)) {
            len += behind;
        }
        if let Some((&before, &free)) = self.free.range(..start).next_back()
            && before + free == start
        {
            (start, len) = (before, free + len);
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn freed_neighbours_are_one_range() {
        let mut area = Area::new(1 << 20, 4096);
        let taken: Vec<Span> = (0..64).map(|_| area.take(50).unwrap()).collect();
        assert_eq!(area.take(1), None);
        assert!(taken.windows(2).all(|pair| pair[0].start + 64 == pair[1].start));
        // Every second one, then the others: in any order, all memory is one range again.
        for odd in [0, 1] {
            taken.iter().skip(odd).step_by(2).for_each(|span| area.give(*span));
        }
        assert_eq!(area.take(4096), Some(Span { start: 1 << 20, len: 4096 }));
    }

    #[test]
    fn the_first_range_that_fits_is_taken() {
        let mut area = Area::new(0, 1024);
        let [a, _, c] = [100, 200, 300].map(|len| area.take(len).unwrap());
        area.give(a);
        area.give(c);
        assert_eq!(area.take(128).unwrap().start, a.start);
        assert_eq!(area.take(64).unwrap().start, c.start);
    }
}
