//! The doorbell page, by which a producer notifies a consumer that does not check the producer's ring, or
//! that sleeps.
//!
//! Place in the data flow: a producer that has published into such a ring rings the consumer's page. The
//! consumer reads one word of its page in each poll.
//!
//! Each endpoint has one page, which it shares with all its peers. A link has a slot (its number modulo
//! [`SLOTS`], exchanged in the handshake). A slot has a bit, and a summary word has a bit for each word of
//! bits. The consumer polls all links of a slot, so the page serves any number of peers.
//!
//! A second page, which peers can only read, holds the number of the consumer's current sleep.
//!
//! No wake-up is lost:
//! - Bit and consumer. The producer publishes, executes a full fence, and either sets the bit or sees it set.
//!   The consumer clears the bit, executes a full fence, and checks the ring. If the producer saw the bit
//!   set, the consumer clears it later, so its check follows the publication.
//! - Bit and summary. The summary bit is set after the word's bit, and cleared before the word. Each producer
//!   checks both.
//! - Sleep. The consumer writes the number, fences, and reads the summary. The producer sets the summary,
//!   fences, and reads the number. At least one side sees the write of the other. A producer that sees a
//!   sleep which it has not ended yet sends a wake-up, so each link sends at most one for each sleep. The
//!   producer does not clear the number. Its wake-up may get lost, if the consumer has just closed the link,
//!   and then other producers must still send theirs.
//! - A wake-up that the consumer takes without having slept ends the announced sleep, because its sender will
//!   not send another for that sleep.
//!
//! A hostile producer that clears the bits of others cannot corrupt anything. While the consumer sleeps, the
//! bits do not matter, because a wake-up identifies the link on which it arrives. Otherwise messages are
//! delayed until the slow scan of all links.
//!
//! The atomics come from `super::sync`, so that a model checker can replace them.

use std::cell::Cell;

use super::sync::{AtomicU64, Ordering, fence};

/// Number of bits.
pub(super) const SLOTS: u32 = 4096;

/// A word with 128 bytes of its own, because processors fetch cache lines in pairs.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Padded<T>(pub(super) T);

/// The page that all peers write. Initially all zero.
#[repr(C)]
pub(super) struct Page {
    /// Bit w: word w has a bit set.
    summary: Padded<AtomicU64>,
    /// One bit per slot.
    words: [AtomicU64; (SLOTS / 64) as usize],
}

/// The page that only its owner writes. Initially all zero.
#[repr(C)]
pub(super) struct SleepPage {
    /// 0: the consumer is awake. Otherwise the number of its current sleep, which no earlier sleep had.
    sleep: AtomicU64,
}

#[cfg(not(test))]
const _: () = {
    // The offsets of docs/protocol.md.
    assert!(std::mem::offset_of!(Page, words) == 128 && std::mem::offset_of!(SleepPage, sleep) == 0);
};

impl Page {
    /// A page outside shared memory, for the model checker.
    #[cfg(test)]
    #[allow(dead_code)]
    pub(super) fn new() -> Self {
        Self { summary: Padded::default(), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Producer: reports a record on the link with this slot. If the consumer may sleep, [`SleepPage::ring`]
    /// is used instead.
    pub(super) fn ring(&self, slot: u32) {
        fence(Ordering::SeqCst);
        let index = slot / 64 % (SLOTS / 64);
        let word = &self.words[index as usize];
        let bit = 1 << (slot % 64);
        // Reading first saves two locked operations for each further message to a busy consumer. A producer that
        // has set one of the two bits may never set the other, so each producer checks both.
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        if self.summary.0.load(Ordering::SeqCst) & 1 << index == 0 {
            self.summary.0.fetch_or(1 << index, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Consumer: whether any bit is set. Costs one load.
    #[inline(always)]
    pub(super) fn is_rung(&self) -> bool {
        self.summary.0.load(Ordering::Relaxed) != 0
    }

    /// Consumer: takes the summary.
    pub(super) fn take_summary(&self) -> u64 {
        self.summary.0.swap(0, Ordering::SeqCst)
    }

    /// Consumer: takes the bits of word `index` (below 64). The rings must be checked afterwards.
    pub(super) fn take_word(&self, index: u32) -> u64 {
        let bits = self.words[index as usize % self.words.len()].swap(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        bits
    }
}

impl SleepPage {
    /// A page outside shared memory, for the model checker.
    #[cfg(test)]
    #[allow(dead_code)]
    pub(super) fn new() -> Self {
        Self { sleep: AtomicU64::new(0) }
    }

    /// Producer: rings the consumer's `page`, and wakes the consumer by `wake` if it sleeps, once for each
    /// sleep. `ended` is the last sleep that this producer has ended.
    pub(super) fn ring(&self, page: &Page, slot: u32, ended: &Cell<u64>, wake: impl FnOnce()) {
        page.ring(slot);
        if let Some(sleep) = self.sleep_to_end(ended.get()) {
            wake();
            ended.set(sleep);
        }
    }

    /// Producer, after [`Page::ring`]: the consumer's current sleep, if it is not the sleep that was `ended`
    /// last.
    fn sleep_to_end(&self, ended: u64) -> Option<u64> {
        let sleep = self.sleep.load(Ordering::SeqCst);
        (sleep != 0 && sleep != ended).then_some(sleep)
    }

    /// Consumer: announces its sleep `number`, which is new and not 0. Returns false, without effect, if a
    /// bit is set.
    #[must_use]
    pub(super) fn park(&self, number: u64, page: &Page) -> bool {
        self.sleep.store(number, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if page.summary.0.load(Ordering::SeqCst) != 0 {
            self.wake();
            return false;
        }
        true
    }

    /// Consumer: whether a sleep is announced, and no wake-up was taken since.
    pub(super) fn is_parked(&self) -> bool {
        self.sleep.load(Ordering::Relaxed) != 0
    }

    /// Consumer: withdraws the announced sleep.
    pub(super) fn wake(&self) {
        self.sleep.store(0, Ordering::SeqCst);
    }
}
