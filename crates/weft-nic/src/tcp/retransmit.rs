//! The accepted messages of a link that the peer has not acknowledged.
//!
//! Place in the data flow: [`super::tx`] appends frames and writes them to the socket from here. Written bytes stay
//! until the peer's endpoint, not its system, has acknowledged them, because the connection may break before. Then they
//! are written again to the next connection.
//!
//! The buffer is a ring, whose size is a power of two and grows with its contents. Positions count the bytes of
//! messages since the link came up. An empty buffer holds no memory.

use weft_engine::mem::{self, Iov};

use super::wire::{self, HEAD_BYTES};

/// The size of the smallest ring.
const LEAST_BYTES: usize = 512;
/// The factor by which a ring grows, up to [`COMMON_BYTES`]. Beyond that it grows to the needed size.
const GROWTH: usize = 8;
/// The largest size to which rings grow by [`GROWTH`].
const COMMON_BYTES: usize = 256 * 1024;
/// Limit of unused rings.
const SPARE_RINGS: usize = 8;
/// Limit of bytes in unused rings.
const SPARE_BYTES: usize = 2 * 1024 * 1024;

/// The messages of one link that the peer has not acknowledged.
#[derive(Debug, Default)]
pub(super) struct RetransmitBuffer {
    ring: Box<[u8]>,
    /// The position of the first byte: all bytes before it are acknowledged.
    acked: u64,
    /// Bytes in the ring.
    len: u32,
    /// Bytes of those that have been handed to the kernel.
    sent: u32,
}

/// Rings that no link uses.
#[derive(Debug, Default)]
pub(super) struct SpareRings {
    rings: Vec<Box<[u8]>>,
    bytes: usize,
}

impl RetransmitBuffer {
    /// The number of bytes in the buffer.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// The number of bytes that have not been handed to the kernel.
    #[inline]
    pub(super) fn unsent_len(&self) -> usize {
        (self.len - self.sent) as usize
    }

    /// The position up to which all bytes are acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// The position up to which all bytes have been handed to the kernel.
    pub(super) fn sent(&self) -> u64 {
        self.acked + u64::from(self.sent)
    }

    /// The index in the ring of the byte that lies `offset` bytes behind the first one.
    #[inline]
    fn index(&self, offset: u32) -> usize {
        // The mask reduces the index to the ring's size in any case.
        #[allow(clippy::cast_possible_truncation)]
        let at = self.acked as usize + offset as usize;
        at & self.ring.len().saturating_sub(1)
    }

    /// Notes that the kernel has accepted `n` more bytes.
    #[inline]
    pub(super) fn mark_sent(&mut self, n: usize) {
        debug_assert!(n <= self.unsent_len());
        self.sent += small(n);
    }

    /// Releases the bytes before `position`, which the peer has acknowledged. False: they were not sent, or the
    /// position was passed before.
    pub(super) fn acknowledge(&mut self, position: u64) -> bool {
        let more = position.checked_sub(self.acked).and_then(|more| u32::try_from(more).ok());
        let Some(more) = more.filter(|&more| more <= self.sent) else { return false };
        self.acked = position;
        self.len -= more;
        self.sent -= more;
        true
    }

    /// A planted bug: marks the bytes from `position` on as unacknowledged, if the buffer is not empty.
    pub(super) fn take_back_acknowledgement(&mut self, position: u64) {
        if self.len == 0 {
            return;
        }
        // The difference is less than the size of the ring.
        #[allow(clippy::cast_possible_truncation)]
        let more = (self.acked - position) as u32;
        self.len += more;
        self.acked = position;
    }

    /// Marks the bytes from `position` on as unsent. False: they are not in the buffer.
    pub(super) fn rewind(&mut self, position: u64) -> bool {
        let sent = position.checked_sub(self.acked).and_then(|sent| u32::try_from(sent).ok());
        let Some(sent) = sent.filter(|&sent| sent <= self.len) else { return false };
        self.sent = sent;
        true
    }

    /// Makes room for a frame of `frame_bytes` bytes. False: there is no memory.
    #[inline]
    pub(super) fn make_room(&mut self, frame_bytes: usize, spare: &mut SpareRings) -> bool {
        self.ring.len() - self.len() >= frame_bytes || self.grow(frame_bytes, spare)
    }

    /// Appends a message's frame, for which there must be room. `len` is that of `head` and `body` together. Returns
    /// the frame if it is contiguous.
    #[inline(always)] // Plain and encrypted links: two callers.
    pub(super) fn append(&mut self, head: &[u8], body: &[Iov], len: usize) -> Option<&[u8]> {
        let frame_bytes = HEAD_BYTES + len;
        let at = self.index(self.len);
        if self.ring.len() - at < frame_bytes {
            self.append_around(head, body, len);
            return None;
        }
        self.len += small(frame_bytes);
        let frame = self.ring.get_mut(at..at + frame_bytes)?;
        let (front, rest) = frame.split_at_mut(HEAD_BYTES);
        front.copy_from_slice(&wire::message_head(len));
        let (middle, rest) = rest.split_at_mut(head.len());
        middle.copy_from_slice(head);
        mem::gather(body, rest);
        Some(frame)
    }

    /// [`Self::append`] across the ring's end.
    #[cold]
    fn append_around(&mut self, head: &[u8], body: &[Iov], len: usize) {
        for part in [&wire::message_head(len)[..], head] {
            let (front, back) = self.area(part.len());
            let (first, second) = part.split_at(front.len());
            front.copy_from_slice(first);
            back.copy_from_slice(second);
            self.len += small(part.len());
        }
        let rest = len - head.len();
        let (front, back) = self.area(rest);
        mem::gather(&mem::slice(body, 0, front.len()), front);
        mem::gather(&mem::slice(body, front.len(), usize::MAX), back);
        self.len += small(rest);
    }

    /// The free space of the next `len` bytes after the tail.
    fn area(&mut self, len: usize) -> (&mut [u8], &mut [u8]) {
        let at = self.index(self.len);
        let (start, end) = self.ring.split_at_mut(at);
        let first = len.min(end.len());
        (&mut end[..first], &mut start[..len - first])
    }

    /// The bytes that have not been handed to the kernel.
    #[inline]
    pub(super) fn unsent(&self) -> (&[u8], &[u8]) {
        let (at, len) = (self.index(self.sent), self.unsent_len());
        match self.ring.get(at..at + len) {
            Some(whole) => (whole, &[]),
            None => (&self.ring[at..], &self.ring[..at + len - self.ring.len()]),
        }
    }

    /// Makes room for `more` bytes.
    #[cold]
    fn grow(&mut self, more: usize, spare: &mut SpareRings) -> bool {
        let held = self.len();
        let roomy = (self.ring.len() * GROWTH).clamp(LEAST_BYTES, COMMON_BYTES);
        let Some(mut ring) = spare.take((held + more).next_power_of_two().max(roomy)) else { return false };
        if held > 0 {
            // The mask reduces the index to the ring's size.
            #[allow(clippy::cast_possible_truncation)]
            let (from, to) = (self.index(0), self.acked as usize & (ring.len() - 1));
            let mask = (self.ring.len() - 1, ring.len() - 1);
            let mut done = 0;
            while done < held {
                let (from, to) = ((from + done) & mask.0, (to + done) & mask.1);
                let n = (held - done).min(self.ring.len() - from).min(ring.len() - to);
                ring[to..to + n].copy_from_slice(&self.ring[from..from + n]);
                done += n;
            }
        }
        spare.put(std::mem::replace(&mut self.ring, ring));
        true
    }

    /// Releases the ring if it is empty.
    pub(super) fn release(&mut self, spare: &mut SpareRings) {
        if self.len == 0 {
            spare.put(std::mem::take(&mut self.ring));
        }
    }

    /// Drops all messages.
    pub(super) fn clear(&mut self, spare: &mut SpareRings) {
        self.acked += u64::from(self.len);
        (self.len, self.sent) = (0, 0);
        self.release(spare);
    }
}

/// Converts a number of bytes in a ring, whose size is bounded by the unacknowledged bytes of a link.
#[inline]
#[allow(clippy::cast_possible_truncation)]
const fn small(bytes: usize) -> u32 {
    bytes as u32
}

impl SpareRings {
    /// A ring of at least `least` bytes, which is a power of two; `None`: there is no memory for it.
    fn take(&mut self, least: usize) -> Option<Box<[u8]>> {
        if let Some(index) = self.rings.iter().position(|ring| ring.len() >= least) {
            let ring = self.rings.swap_remove(index);
            self.bytes -= ring.len();
            return Some(ring);
        }
        let mut ring = Vec::new();
        ring.try_reserve_exact(least).ok()?;
        ring.resize(least, 0);
        Some(ring.into_boxed_slice())
    }

    fn put(&mut self, ring: Box<[u8]>) {
        if !ring.is_empty() && self.rings.len() < SPARE_RINGS && self.bytes + ring.len() <= SPARE_BYTES {
            self.bytes += ring.len();
            self.rings.push(ring);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    use proptest::prelude::*;
    use weft_engine::mem::Owned;

    proptest! {
        /// After any appending, writing, acknowledging and rewinding, the bytes are those of the frames, in order.
        #[test]
        fn bytes_stay_in_order(steps in prop::collection::vec((0usize..4, 0usize..700, any::<u8>()), 1..200)) {
            let (mut kept, mut spare) = (RetransmitBuffer::default(), SpareRings::default());
            // All bytes since the start.
            let mut all = Vec::new();
            for (what, size, byte) in steps {
                match what {
                    0 => {
                        let head = vec![byte; size / 3];
                        let mut body = Owned::new(vec![byte ^ 1; size - size / 3]);
                        let iov = body.iov();
                        prop_assert!(kept.make_room(HEAD_BYTES + size, &mut spare));
                        kept.append(&head, &[iov.slice(0, size / 5), iov.slice(size / 5, usize::MAX)], size);
                        all.extend(wire::message_head(size));
                        all.extend(&head);
                        all.extend(vec![byte ^ 1; size - size / 3]);
                    }
                    1 => kept.mark_sent(size.min(kept.unsent_len())),
                    2 => prop_assert!(kept.acknowledge(kept.sent().min(kept.acked() + size as u64))),
                    _ => prop_assert!(kept.rewind(kept.acked().max(kept.sent().saturating_sub(size as u64)))),
                }
                prop_assert_eq!(kept.acked() + kept.len() as u64, all.len() as u64);
                let (front, back) = kept.unsent();
                prop_assert_eq!(&[front, back].concat(), &all[usize::try_from(kept.sent()).unwrap()..]);
                kept.release(&mut spare);
                prop_assert!(kept.ring.is_empty() == (kept.len() == 0));
            }
        }
    }

    #[test]
    fn an_empty_ring_holds_nothing() {
        let (mut kept, mut spare) = (RetransmitBuffer::default(), SpareRings::default());
        assert!(kept.make_room(HEAD_BYTES + 4, &mut spare));
        kept.append(b"head", &[], 4);
        assert_eq!(kept.ring.len(), LEAST_BYTES);
        kept.clear(&mut spare);
        assert_eq!((kept.ring.len(), spare.bytes), (0, LEAST_BYTES));
        assert!(kept.make_room(HEAD_BYTES + 5000, &mut spare));
        kept.append(&[0; 5000], &[], 5000);
        assert_eq!((kept.ring.len(), spare.bytes), (8192, LEAST_BYTES));
    }
}
