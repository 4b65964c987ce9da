//! Our doorbell, the peers' doorbells, and the asymmetric fence that keeps the fast side cheap.
//!
//! Place in the data flow: a producer publishes a record, looks at one word (`SideBlock::polled`), and goes
//! on if the consumer polls that ring; else it rings the consumer's [`Page`], and wakes it if its [`SleepPage`]
//! says that it sleeps.
//!
//! Waking is one byte on the link's Unix socket, and not a futex, because a thread must be able to sleep on shared
//! memory and TCP at once and clients want a file descriptor; and not an eventfd of the peer's, because
//! writing to a descriptor that a peer chose might block, and because the socket is there anyhow.
//!
//! # The asymmetric fence
//! Publishing and then reading `polled` (or releasing space and then reading `wants_space`) is one half of Dekker's
//! protocol and needs a store-load fence, about 20 ns in every message. The other half, clearing
//! `polled` and then looking at the ring once more, is rare. So the rare side executes `membarrier(GLOBAL_EXPEDITED)`,
//! which runs a full barrier on every processor that runs a process registered for it, and the
//! frequent side only keeps the compiler from reordering. Either the frequent side's barrier ran before
//! its store: then its later load sees the rare side's word, which was written before the call. Or it ran
//! after: then the store is visible to the rare side's look after the call. Where the frequent side is not
//! registered, or the rare side may not call membarrier, the frequent side is told at the handshake to fence.
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

/// Size of the file behind either page.
const PAGE_FILE_BYTES: usize = 4096;
/// What is sent to wake a peer.
const WAKE: &[u8] = &[1];

const _: () = assert!(size_of::<Page>() <= PAGE_FILE_BYTES && size_of::<SleepPage>() <= PAGE_FILE_BYTES);

/// Whether this process takes part in asymmetric fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Barriers {
    /// As the frequent side: membarrier calls of others reach us.
    pub(super) registered: bool,
    /// As the rare side: we can call.
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

    /// The rare side's fence. An error means that the rare step must not be taken.
    pub(super) fn fence(self) -> io::Result<()> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // Where the call is not possible the peers were told to fence themselves.
        if self.callable { Self::call() } else { Ok(()) }
    }
}

/// Our doorbell.
pub(super) struct Door {
    files: [OwnedFd; 2],
    /// What peers write.
    page: Mapping,
    /// What they only read.
    sleep_page: Mapping,
    /// Number of the last sleep that was announced.
    sleeps: u64,
}

impl Door {
    /// A new one.
    pub(super) fn new() -> Result<Self, NicError> {
        let (page_file, page) = Mapping::create(c"weft-doorbell", PAGE_FILE_BYTES)?;
        let (sleep_file, sleep_page) = Mapping::create_for_readers(c"weft-sleep", PAGE_FILE_BYTES)?;
        for file in [&page, &sleep_page] {
            file.populate(0, PAGE_FILE_BYTES).map_err(NicError::system("the pages of a memfd"))?;
        }
        Ok(Self { files: [page_file, sleep_file], page, sleep_page, sleeps: 0 })
    }

    /// The files to pass to peers.
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

    /// Announces that we will sleep. False, and not announced, if somebody has rung.
    #[must_use]
    pub(super) fn park(&mut self) -> bool {
        self.sleeps += 1;
        self.sleep_page().park(self.sleeps, self.page())
    }

    /// Whether we have announced to sleep, and have taken no wake-up since.
    pub(super) fn is_parked(&self) -> bool {
        self.sleep_page().is_parked()
    }

    /// We do not sleep (any more).
    pub(super) fn wake(&self) {
        self.sleep_page().wake();
    }
}

/// A peer's doorbell.
pub(super) struct Bell {
    /// The page that we write, and behind it the one that we read.
    map: Mapping,
    /// The sleep of which we have woken the peer last.
    ended: Cell<u64>,
}

impl Bell {
    /// Maps what the peer passed.
    pub(super) fn adopt(files: &[OwnedFd; 2]) -> io::Result<Self> {
        Ok(Self { map: Mapping::adopt_two(files, PAGE_FILE_BYTES)?, ended: Cell::new(0) })
    }

    /// Tells the peer that there is something for it on our link, which has `slot` there, waking it through
    /// `socket` if it sleeps.
    #[cold]
    pub(super) fn ring(&self, slot: u32, socket: BorrowedFd<'_>) {
        sleep_page(&self.map, second_at(PAGE_FILE_BYTES)).ring(page(&self.map), slot, &self.ended, || {
            // A full socket buffer means that wakes are waiting there already; a broken socket is noticed elsewhere.
            let _ = rustix::net::send(socket, WAKE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        });
    }

    /// What is mapped.
    #[cfg(test)]
    pub(super) fn map(&self) -> &Mapping {
        &self.map
    }
}

#[inline(always)]
fn page(map: &Mapping) -> &Page {
    debug_assert!(map.len() >= size_of::<Page>());
    // SAFETY: both constructors map `PAGE_FILE_BYTES`, which hold a page; aligned to the system's page size; a
    // page is made of atomics, for which every bit pattern is valid.
    unsafe { map.base().cast::<Page>().as_ref() }
}

/// The other page, `offset` bytes into a mapping.
fn sleep_page(map: &Mapping, offset: usize) -> &SleepPage {
    debug_assert!(map.len() >= offset + size_of::<SleepPage>());
    let at = map.base().as_ptr().wrapping_add(offset).cast::<SleepPage>();
    // SAFETY: as for `page`. Where it is mapped for reading only, in a bell, it is only read.
    unsafe { &*at }
}
