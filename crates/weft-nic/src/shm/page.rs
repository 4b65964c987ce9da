//! The doorbell page: how a producer tells a sleeping or otherwise occupied consumer that there is something for it.
//!
//! Place in the data flow: after publishing into a ring that the consumer does not look at in every poll,
//! the producer rings the consumer's page; the consumer looks at one word of its page per poll.
//!
//! One page per endpoint, shared with all its peers. A link has a slot (its number modulo 4096, told at the
//! handshake), a slot has a bit, and a summary word has a bit for each of the 64 words of bits.
//! Links that share a slot are all looked at, so the page serves any number of peers.
//!
//! Why no wake-up is lost:
//! - Bit against consumer. The producer publishes, executes a full fence, and either sets the bit or sees it
//!   set. The consumer clears the bit, executes a full fence, and looks at the ring. A bit that the
//!   producer saw set is cleared later, so the look at the ring comes after the publication.
//! - Bit against summary. The summary bit is set after the word's bit, and cleared before the word is.
//! - Sleep. The consumer sets `parked`, fences, and looks at the summary; the producer sets the summary, fences, and
//!   looks at `parked`: one of them sees the other. Who clears `parked` delivers the wake-up, so there is
//!   at most one for each sleep.
//!
//! A producer that dies between the two bits, or a hostile one that clears the bits of others, can delay
//! others' messages until the consumer's slow scan of all links; it cannot corrupt anything.
//!
//! The atomics come from `super::sync`, so that a model checker can put its own there.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of bits.
pub(super) const SLOTS: u32 = 4096;

/// A word on 128 bytes of its own, because processors fetch cache lines in pairs.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Padded<T>(pub(super) T);

/// The shared page. All zero at the start.
#[repr(C)]
pub(super) struct Page {
    /// Bit w: word w has a bit set.
    summary: Padded<AtomicU64>,
    /// 1: the consumer sleeps.
    parked: Padded<AtomicU32>,
    /// One bit per slot.
    words: [AtomicU64; (SLOTS / 64) as usize],
}

#[cfg(not(test))]
const _: () = {
    // As docs/protocol.md says.
    assert!(std::mem::offset_of!(Page, parked) == 128 && std::mem::offset_of!(Page, words) == 256);
};

impl Page {
    /// A page outside shared memory, for the model checker.
    #[cfg(test)]
    #[allow(dead_code)]
    pub(super) fn new() -> Self {
        Self {
            summary: Padded::default(),
            parked: Padded::default(),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Producer: there is something on the link with this slot. True: the consumer sleeps, and the caller
    /// must wake it.
    #[must_use]
    pub(super) fn ring(&self, slot: u32) -> bool {
        fence(Ordering::SeqCst);
        let index = slot / 64 % (SLOTS / 64);
        let word = &self.words[index as usize];
        let bit = 1 << (slot % 64);
        // Looking first saves two locked operations for each further message to a consumer that is busy.
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
            self.summary.0.fetch_or(1 << index, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        self.parked.0.load(Ordering::SeqCst) != 0 && self.parked.0.swap(0, Ordering::SeqCst) != 0
    }

    /// Consumer: whether any bit is set. One load.
    #[inline(always)]
    pub(super) fn rung(&self) -> bool {
        self.summary.0.load(Ordering::Relaxed) != 0
    }

    /// Consumer: takes the summary.
    pub(super) fn take_summary(&self) -> u64 {
        self.summary.0.swap(0, Ordering::SeqCst)
    }

    /// Consumer: takes the bits of word `index` (below 64). Look at the rings after this.
    pub(super) fn take_word(&self, index: u32) -> u64 {
        let bits = self.words[index as usize % self.words.len()].swap(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        bits
    }

    /// Consumer: announces that it will sleep. False, and not announced, if a bit is set.
    #[must_use]
    pub(super) fn park(&self) -> bool {
        self.parked.0.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.summary.0.load(Ordering::SeqCst) != 0 {
            self.unpark();
            return false;
        }
        true
    }

    /// Consumer: whether it has announced to sleep, and nobody has rung since.
    pub(super) fn parked(&self) -> bool {
        self.parked.0.load(Ordering::Relaxed) != 0
    }

    /// Consumer: does not sleep (any more).
    pub(super) fn unpark(&self) {
        self.parked.0.store(0, Ordering::SeqCst);
    }
}
