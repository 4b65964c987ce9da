//! The doorbell page: how a producer tells a sleeping or otherwise occupied consumer that there is something for it.
//!
//! Place in the data flow: after publishing into a ring that the consumer does not look at in every poll,
//! the producer rings the consumer's page; the consumer looks at one word of its page per poll.
//!
//! One page per endpoint, shared with all its peers. A link has a slot (its number modulo 4096, told at the
//! handshake), a slot has a bit, and a summary word has a bit for each of the 64 words of bits.
//! Links that share a slot are all looked at, so the page serves any number of peers.
//!
//! A second page, which the peers can only read, holds the number of the consumer's present sleep.
//!
//! Why no wake-up is lost:
//! - Bit against consumer. The producer publishes, executes a full fence, and either sets the bit or sees it
//!   set. The consumer clears the bit, executes a full fence, and looks at the ring. A bit that the
//!   producer saw set is cleared later, so the look at the ring comes after the publication.
//! - Bit against summary. The summary bit is set after the word's bit, and cleared before the word is. Every
//!   producer sees to both.
//! - Sleep. The consumer writes the number, fences, and looks at the summary; the producer sets the summary,
//!   fences, and looks at the number: one of them sees the other. A producer that sees a sleep which it has
//!   not ended yet sends a wake-up, so there is at most one of each link for each sleep. It does not clear
//!   the number: its wake-up may get lost (the consumer has just closed that link), and then the others' have
//!   to come.
//! - A wake-up that the consumer takes without having slept ends the sleep that was announced: whoever sent
//!   it for that sleep will not send another.
//!
//! A hostile producer that clears the bits of others cannot corrupt anything. While the consumer sleeps it
//! does not matter, because a wake-up tells the link by which it comes; else messages are delayed until the
//! slow scan of all links.
//!
//! The atomics come from `super::sync`, so that a model checker can put its own there.

use std::cell::Cell;

use super::sync::{AtomicU64, Ordering, fence};

/// Number of bits.
pub(super) const SLOTS: u32 = 4096;

/// A word on 128 bytes of its own, because processors fetch cache lines in pairs.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Padded<T>(pub(super) T);

/// The page that all peers write. All zero at the start.
#[repr(C)]
pub(super) struct Page {
    /// Bit w: word w has a bit set.
    summary: Padded<AtomicU64>,
    /// One bit per slot.
    words: [AtomicU64; (SLOTS / 64) as usize],
}

/// The page that only its owner writes. All zero at the start.
#[repr(C)]
pub(super) struct SleepPage {
    /// 0: the consumer is awake. Else which of its sleeps this is; none has the number of an earlier one.
    sleep: AtomicU64,
}

#[cfg(not(test))]
const _: () = {
    // As docs/protocol.md says.
    assert!(std::mem::offset_of!(Page, words) == 128 && std::mem::offset_of!(SleepPage, sleep) == 0);
};

impl Page {
    /// A page outside shared memory, for the model checker.
    #[cfg(test)]
    #[allow(dead_code)]
    pub(super) fn new() -> Self {
        Self { summary: Padded::default(), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Producer: there is something on the link with this slot. If the consumer may sleep: [`SleepPage::ring`].
    pub(super) fn ring(&self, slot: u32) {
        fence(Ordering::SeqCst);
        let index = slot / 64 % (SLOTS / 64);
        let word = &self.words[index as usize];
        let bit = 1 << (slot % 64);
        // Looking first saves two locked operations for each further message to a consumer that is busy. Who
        // has set the one need not come to set the other.
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        if self.summary.0.load(Ordering::SeqCst) & 1 << index == 0 {
            self.summary.0.fetch_or(1 << index, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Consumer: whether any bit is set. One load.
    #[inline(always)]
    pub(super) fn is_rung(&self) -> bool {
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
}

impl SleepPage {
    /// A page outside shared memory, for the model checker.
    #[cfg(test)]
    #[allow(dead_code)]
    pub(super) fn new() -> Self {
        Self { sleep: AtomicU64::new(0) }
    }

    /// Producer: rings at the consumer's `page`, and wakes it by `wake` if it sleeps, once for each sleep.
    /// `ended`: the one that was ended last.
    pub(super) fn ring(&self, page: &Page, slot: u32, ended: &Cell<u64>, wake: impl FnOnce()) {
        page.ring(slot);
        if let Some(sleep) = self.sleep_to_end(ended.get()) {
            wake();
            ended.set(sleep);
        }
    }

    /// Producer, after [`Page::ring`]: the sleep from which the consumer must be woken, if it is not the one
    /// that was `ended` last.
    fn sleep_to_end(&self, ended: u64) -> Option<u64> {
        let sleep = self.sleep.load(Ordering::SeqCst);
        (sleep != 0 && sleep != ended).then_some(sleep)
    }

    /// Consumer: announces its sleep `number`, which is new and not 0. False, and not announced, if a bit is set.
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

    /// Consumer: whether it has announced to sleep, and has taken no wake-up since.
    pub(super) fn is_parked(&self) -> bool {
        self.sleep.load(Ordering::Relaxed) != 0
    }

    /// Consumer: does not sleep (any more).
    pub(super) fn wake(&self) {
        self.sleep.store(0, Ordering::SeqCst);
    }
}
