//! A link of the TCP device, and the tokens by which epoll identifies the watched descriptors.
//!
//! Place in the data flow: the table of [`super::Tcp`] holds links; the other parts of the device change their state.

use slab::Slab;
use weft_engine::growth;
use weft_engine::nic::LinkError;
use weft_os::ForkClosedFd;

use super::connect::Attempt;
use super::linger::Linger;
use super::redial::Redial;
use super::rx::Intake;
use super::session::Session;
use super::tx::Tx;

/// One link.
#[derive(Debug)]
pub(super) struct Link {
    /// `None` while an attempt pauses.
    pub(super) socket: Option<ForkClosedFd>,
    pub(super) generation: u32,
    pub(super) state: LinkState,
    pub(super) rx: Intake,
    pub(super) tx: Tx,
    /// `None` before the link came up for the first time.
    pub(super) session: Option<Box<Session>>,
}

impl Link {
    /// The end of the stream, if this side has closed the link.
    pub(super) fn linger(&self) -> Option<&Linger> {
        match &self.state {
            LinkState::Closed(linger) => Some(linger),
            LinkState::Broken(redial) => redial.closed.as_deref(),
            _ => None,
        }
    }

    /// Whether this side has closed the link, so that the engine no longer knows it.
    pub(super) fn is_closed(&self) -> bool {
        self.linger().is_some()
    }
}

/// The state of a link.
#[derive(Debug)]
pub(super) enum LinkState {
    Connecting(Box<Attempt>),
    Up,
    /// The connection has broken and is being replaced. Meanwhile no byte is sent or accepted.
    Broken(Box<Redial>),
    /// This side has closed the link, and its last bytes are being sent.
    Closed(Box<Linger>),
    /// The link has ended; the next poll reports it.
    Failed(LinkError),
}

// Ten thousand idle links must not cost more than a few megabytes here.
const _: () = assert!(size_of::<Link>() <= 256);

/// The links of a device by number. Numbers of removed links are used again.
#[derive(Debug, Default)]
pub(super) struct Links(Slab<Link>);

impl Links {
    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Link> {
        self.0.get(id as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Link> {
        self.0.get_mut(id as usize)
    }

    /// Adds a link. Returns its number; `None` if there are no more numbers.
    pub(super) fn insert(&mut self, link: Link) -> Option<u32> {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(growth::growth(self.0.len()));
        }
        let entry = self.0.vacant_entry();
        let id = u32::try_from(entry.key()).ok()?;
        entry.insert(link);
        Some(id)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Link> {
        self.0.try_remove(id as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    // `insert` has checked that the numbers are of 32 bits.
    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Link)> {
        self.0.iter().map(|(id, link)| (id as u32, link))
    }

    #[allow(clippy::cast_possible_truncation)] // As in `iter`.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Link)> {
        self.0.iter_mut().map(|(id, link)| (id as u32, link))
    }

    /// The numbers of all links.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.iter().map(|(id, _)| id).collect()
    }
}

/// A watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Timer,
    Link(u32, u32),
    HalfOpen(u32, u32),
    Rail(u32, u32),
    Chain(u32, u32),
    /// The ring of chains, or a connection of a chain that is polled.
    Ring,
}

/// The number of bits of a generation in a token.
pub(super) const GENERATION_BITS: u32 = 24;

impl Token {
    pub(super) fn pack(self) -> u64 {
        let (kind, index, generation) = match self {
            Self::Listener => (0, 0, 0),
            Self::Timer => (1, 0, 0),
            Self::Link(index, generation) => (2, index, generation),
            Self::HalfOpen(index, generation) => (3, index, generation),
            Self::Rail(index, generation) => (4, index, generation),
            Self::Chain(index, generation) => (5, index, generation),
            Self::Ring => (6, 0, 0),
        };
        kind << 56 | u64::from(generation) << 32 | u64::from(index)
    }

    pub(super) fn unpack(word: u64) -> Self {
        // Mask and shift cut the three fields out.
        #[allow(clippy::cast_possible_truncation)]
        let (index, generation) = (word as u32, (word >> 32) as u32 & ((1 << GENERATION_BITS) - 1));
        match word >> 56 {
            0 => Self::Listener,
            1 => Self::Timer,
            2 => Self::Link(index, generation),
            3 => Self::HalfOpen(index, generation),
            4 => Self::Rail(index, generation),
            5 => Self::Chain(index, generation),
            _ => Self::Ring,
        }
    }
}
