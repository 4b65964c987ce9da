//! The endpoint's doorbell, the peers' doorbells, and the asymmetric fence that keeps the frequent side
//! cheap.
//!
//! Place in the data flow: a producer publishes a record and reads one word (`SideBlock::polled`). If the
//! consumer polls that ring, the producer is done. Otherwise it rings the consumer's [`Page`], and wakes the
//! consumer if its [`SleepPage`] announces a sleep.
//!
//! A wake-up is one byte on the link's Unix socket. A futex would not do, because a thread must be able to
//! sleep on shared memory and TCP at once, and clients want a file descriptor. An eventfd of the peer would
//! not do, because writing to a descriptor that a peer chose might block. The socket exists anyway.
//!
//! # The asymmetric fence
//! Publishing a record and then reading `polled` is one half of Dekker's protocol, as is releasing space and
//! then reading `wants_space`. It needs a store-load fence, which would cost about 20 ns in each message. The
//! other half is rare: clearing `polled` and then checking the ring once more. The rare side therefore
//! executes `membarrier(GLOBAL_EXPEDITED)`, which runs a full barrier on every processor that runs a
//! registered process. The frequent side only keeps the compiler from reordering.
//!
//! There are two cases. If the barrier ran before the frequent side's store, that side's later load sees the
//! rare side's word, which was written before the call. If it ran after the store, the rare side's check
//! after the call sees the store. If the frequent side is not registered, or the rare side may not call
//! membarrier, the frequent side must fence itself; the handshake tells it.
//!
//! Sources: membarrier(2); M. Desnoyers' asymmetric barriers in liburcu.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SendFlags;
use rustix::thread::MembarrierCommand;

use super::page::{Page, SleepPage};
use super::segment::{Mapping, second_at};
use crate::NicError;

/// Size in bytes of the file behind each page.
const PAGE_FILE_BYTES: usize = 4096;
/// The message that wakes a peer.
const WAKE: &[u8] = &[1];

const _: () = assert!(size_of::<Page>() <= PAGE_FILE_BYTES && size_of::<SleepPage>() <= PAGE_FILE_BYTES);

/// The part of this process in asymmetric fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Barriers {
    /// As the frequent side: membarrier calls of other processes include this process.
    pub(super) registered: bool,
    /// As the rare side: this process can call membarrier.
    pub(super) callable: bool,
}

impl Barriers {
    /// Registers the process and tries a call.
    pub(super) fn probe() -> Self {
        let query = rustix::thread::membarrier_query();
        let registered = query.contains_command(MembarrierCommand::RegisterGlobalExpedited)
            && rustix::thread::membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        let callable = query.contains_command(MembarrierCommand::GlobalExpedited) && Self::call().is_ok();
        Self { registered, callable }
    }

    fn call() -> io::Result<()> {
        Ok(rustix::thread::membarrier(MembarrierCommand::GlobalExpedited)?)
    }

    /// The rare side's fence. After an error, the rare step must not be taken.
    pub(super) fn fence(self) -> io::Result<()> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // If the call is impossible, the peers fence themselves.
        if self.callable { Self::call() } else { Ok(()) }
    }
}

/// The endpoint's doorbell.
pub(super) struct Door {
    files: [OwnedFd; 2],
    /// The page that peers write.
    page: Mapping,
    /// The page that peers only read.
    sleep_page: Mapping,
    /// Number of the last announced sleep.
    sleeps: u64,
}

impl Door {
    /// Makes a doorbell.
    pub(super) fn new() -> Result<Self, NicError> {
        let (page_file, page) = Mapping::create(c"weft-doorbell", PAGE_FILE_BYTES)?;
        let (sleep_file, sleep_page) = Mapping::create_for_readers(c"weft-sleep", PAGE_FILE_BYTES)?;
        for file in [&page, &sleep_page] {
            file.populate(0, PAGE_FILE_BYTES).map_err(NicError::system("the pages of a memfd"))?;
        }
        Ok(Self { files: [page_file, sleep_file], page, sleep_page, sleeps: 0 })
    }

    /// The files for the peers.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.files[0].as_fd(), self.files[1].as_fd()]
    }

    /// The page that peers write.
    #[inline(always)]
    pub(super) fn page(&self) -> &Page {
        page(&self.page)
    }

    fn sleep_page(&self) -> &SleepPage {
        sleep_page(&self.sleep_page, 0)
    }

    /// Announces a sleep. Returns false, without effect, if a peer has rung.
    #[must_use]
    pub(super) fn park(&mut self) -> bool {
        self.sleeps += 1;
        self.sleep_page().park(self.sleeps, self.page())
    }

    /// Whether a sleep is announced, and no wake-up was taken since.
    pub(super) fn is_parked(&self) -> bool {
        self.sleep_page().is_parked()
    }

    /// Withdraws the announced sleep.
    pub(super) fn wake(&self) {
        self.sleep_page().wake();
    }
}

/// A peer's doorbell.
pub(super) struct Bell {
    /// The page that this side writes, followed by the page that it reads.
    map: Mapping,
    /// The last sleep of the peer that this side has ended.
    ended: Cell<u64>,
}

impl Bell {
    /// Maps the files of a peer.
    pub(super) fn adopt(files: &[OwnedFd; 2]) -> io::Result<Self> {
        Ok(Self { map: Mapping::adopt_two(files, PAGE_FILE_BYTES)?, ended: Cell::new(0) })
    }

    /// Rings for this side's link, which has the slot `slot` at the peer. If the peer sleeps, it is woken
    /// through `socket`.
    #[cold]
    pub(super) fn ring(&self, slot: u32, socket: BorrowedFd<'_>) {
        sleep_page(&self.map, second_at(PAGE_FILE_BYTES)).ring(page(&self.map), slot, &self.ended, || {
            // A full socket buffer contains wake-ups already; a broken socket is noticed elsewhere.
            let _ = rustix::net::send(socket, WAKE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        });
    }

    /// Rings like [`Bell::ring`] if the peer sleeps. A sleep that is announced later is preceded by a check of the word
    /// that the caller has changed.
    pub(super) fn ring_sleeper(&self, slot: u32, socket: BorrowedFd<'_>) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if sleep_page(&self.map, second_at(PAGE_FILE_BYTES)).is_parked() {
            self.ring(slot, socket);
        }
    }

    /// The mapping.
    #[cfg(test)]
    pub(super) fn map(&self) -> &Mapping {
        &self.map
    }
}

#[inline(always)]
fn page(map: &Mapping) -> &Page {
    debug_assert!(map.len() >= size_of::<Page>());
    // SAFETY: both constructors map `PAGE_FILE_BYTES`, which hold a page, at the beginning of a system page.
    // A page consists of atomics, for which every bit pattern is valid.
    unsafe { map.base().cast::<Page>().as_ref() }
}

/// The sleep page, `offset` bytes into a mapping.
fn sleep_page(map: &Mapping, offset: usize) -> &SleepPage {
    debug_assert!(map.len() >= offset + size_of::<SleepPage>());
    let at = map.base().as_ptr().wrapping_add(offset).cast::<SleepPage>();
    // SAFETY: the mapping holds a sleep page at `offset`, as checked above, at the beginning of a system
    // page. It consists of atomics. In a bell it is mapped for reading only, and is only read.
    unsafe { &*at }
}
