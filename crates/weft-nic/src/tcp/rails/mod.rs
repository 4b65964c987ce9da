//! Rails: further connections of a link, which carry its long pushes, over one interface or several.
//!
//! Place in the data flow: [`Nic::push`](weft_engine::nic::Nic::push) gives long pushes to [`Tcp::push_on_rails`]. The
//! link's first connection carries everything else, and is unaffected. The parts:
//!
//! - `call`: the handshake of a rail. `frame`: the layouts. `upkeep`: rails are dialled, adopted, and dropped.
//! - `growth`: the number of rails by the rate that they carry. `sizing`: its measurements.
//! - `outgoing`: pushes, cut into numbered segments. `incoming`: the receiving half. `traffic`: writing and reading.
//!
//! The first long push of a link has its side dial the rails: first the address in the peer's name, then also the
//! addresses that the peer's answer names. Pushes take the first connection until a rail is up. From then on both
//! directions use the rails. The next segment goes to the rail with the fewest unacknowledged bytes that has room, so a
//! slow rail carries less. A rail is dropped if it fails, or if the peer's host acknowledges nothing for a second.
//! Other rails repeat its unacknowledged segments, and it is dialled again.
//!
//! Invariants:
//!
//! - A segment names the position of the first connection's stream that goes before it. The receiver does not read a
//!   rail beyond such a segment until the link has taken that position. The first connection never waits for a rail.
//! - Rails survive a break of the first connection, and end with the link.
//! - A link without long pushes has no rails and costs nothing here.

use std::net::SocketAddr;

use rustc_hash::FxHashMap;
use rustix::event::epoll::EventFlags;
use slab::Slab;
use weft_engine::mem::{self, Iov};
use weft_engine::nic::Full;
use weft_os::ForkClosedFd;

use super::Tcp;
use super::initiator::Initiator;

pub(super) mod call;
mod frame;
mod growth;
mod incoming;
mod outgoing;
mod sizing;
mod traffic;
mod upkeep;

use incoming::Receipts;
use outgoing::Outgoing;
use sizing::Sizings;
use traffic::Flow;

/// Limit of rails that one side of a link dials.
pub(super) const RAILS_MAX: usize = 8;
/// Rails have at most this part of the process's descriptors.
const DESCRIPTORS_PART: u64 = 4;
/// Dials of one rail, and dials of all rails of a link that a host has taken, without a rail that lasted. Then no more
/// are made: the peer has named the addresses.
const DIALS_MAX: u32 = 64;
/// Distinguishes the keys of rails from those of links.
const SECRET: u32 = 1 << 31;

/// One further connection of a link.
#[derive(Debug)]
struct Rail {
    link: u32,
    /// The number among the rails of the side that dialled.
    ordinal: u8,
    dialled: bool,
    generation: u32,
    socket: ForkClosedFd,
    /// The handshake, until the rail is up.
    handshake: Option<Box<Initiator>>,
    /// The time of the dial.
    since_ms: u64,
    watched: EventFlags,
    flow: Flow,
}

impl Rail {
    fn is_up(&self) -> bool {
        self.handshake.is_none()
    }
}

/// A rail that this side dials.
#[derive(Clone, Debug, Default)]
struct Path {
    rail: Option<u32>,
    tries: u32,
    dial_at_ms: u64,
}

/// The rails of one link.
#[derive(Debug, Default)]
struct Bundle {
    rails: Vec<u32>,
    out: Outgoing,
    receipts: Receipts,
    /// The rails that this side dials. Empty: it dials none.
    paths: Vec<Path>,
    /// The further addresses of the peer, once it has answered.
    further: Option<Vec<SocketAddr>>,
    /// The peer knows no rails.
    refused: bool,
    /// Dials that a host has taken, since a rail lasted.
    taken: u32,
    /// The time since which pushes wait for the peer to dial.
    alone_since_ms: Option<u64>,
}

impl Bundle {
    /// The paths whose rails are missing and may be dialled, with their numbers. The answer to the first call names the
    /// addresses for the others.
    fn missing(&self) -> impl Iterator<Item = (usize, &Path)> {
        let known = if self.further.is_some() { self.paths.len() } else { 1 };
        let wanted = |path: &Path| path.rail.is_none() && path.tries < DIALS_MAX && self.taken < DIALS_MAX;
        (0..).zip(self.paths.iter().take(known)).filter(move |(_, path)| wanted(path))
    }

    /// Whether pushes wait, and no rail will carry them.
    fn is_stuck(&self) -> bool {
        let given_up = !self.paths.is_empty() && self.missing().next().is_none();
        given_up && self.rails.is_empty() && !self.out.is_empty()
    }
}

/// The rails of a device.
#[derive(Debug)]
pub(super) struct Rails {
    bundles: FxHashMap<u32, Bundle>,
    all: Slab<Rail>,
    /// Rails that wait for the first connection of their link.
    held: usize,
    /// Memory for bytes that are discarded.
    discard: Vec<u8>,
    /// Bytes received and written.
    bytes: u64,
    /// The time of the next look at all rails.
    next_scan_ms: u64,
    sizings: Sizings,
}

impl Rails {
    pub(super) fn new() -> Self {
        Self {
            bundles: FxHashMap::default(),
            all: Slab::new(),
            held: 0,
            discard: Vec::new(),
            bytes: 0,
            next_scan_ms: u64::MAX,
            sizings: Sizings::default(),
        }
    }

    /// Whether no link has or dials rails.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.bundles.is_empty()
    }

    /// The number of connections.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether another rail may be taken from a peer. All together have a part of the process's descriptors.
    fn has_room(&self) -> bool {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = limit.and_then(|limit| usize::try_from(limit / DESCRIPTORS_PART).ok()).unwrap_or(usize::MAX);
        self.all.len() < share.max(RAILS_MAX)
    }

    /// The number of connections that are up.
    pub(super) fn up(&self) -> usize {
        self.all.iter().filter(|(_, rail)| rail.is_up()).count()
    }

    /// Bytes received and written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all pushes are done.
    pub(super) fn is_drained(&self) -> bool {
        self.bundles.values().all(|bundle| bundle.out.is_empty())
    }

    /// The number of pushes of a link that are not done.
    pub(super) fn pushes(&self, id: u32) -> usize {
        self.bundles.get(&id).map_or(0, |bundle| bundle.out.pushes())
    }

    /// Whether any rail waits for the first connection of its link.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Whether this side dials rails of a link.
    fn dials(&self, id: u32) -> bool {
        self.bundles.get(&id).is_some_and(|bundle| !bundle.paths.is_empty())
    }

    fn has_rail_up(&self, id: u32) -> bool {
        let is_up = |&index: &u32| self.all.get(index as usize).is_some_and(Rail::is_up);
        self.bundles.get(&id).is_some_and(|bundle| bundle.rails.iter().any(is_up))
    }
}

impl Tcp {
    /// Whether a push should take rails, if its link has any.
    #[inline]
    pub(super) fn is_striped(&self, src: &[Iov]) -> bool {
        (self.config.streams > 1 || self.config.grows || !self.rails.is_empty())
            && mem::total_len(src) > self.config.stripe_bytes
    }

    /// Accepts a long push for the rails of a link. False: it takes the first connection.
    #[inline(never)]
    pub(super) fn push_on_rails(
        &mut self,
        id: u32,
        window: u64,
        offset: u64,
        src: &[Iov],
        ctx: u64,
    ) -> Result<bool, Full> {
        if self.config.grows {
            self.measure_link(id);
        }
        if !self.rails.has_rail_up(id) {
            self.begin_rails(id);
            return Ok(false);
        }
        let (Some(link), Some(bundle)) = (self.links.get(id), self.rails.bundles.get_mut(&id)) else {
            return Err(Full);
        };
        bundle.out.add(window, offset, src, ctx, link.tx.accepted_messages())?;
        if link.tx.queued() > 0 && !link.tx.socket.is_full() {
            // The segments follow the messages.
            self.pump(id);
        } else {
            self.pump_rails(id);
        }
        Ok(true)
    }

    /// The address at which a broken link is dialled for the `tries`-th time. The addresses that the peer has named
    /// take turns, because an interface may have failed.
    pub(super) fn address_of(&self, id: u32, tries: u32) -> Option<SocketAddr> {
        let session = self.links.get(id)?.session.as_ref()?;
        let bundle = self.rails.bundles.get(&id);
        let further = bundle.and_then(|bundle| bundle.further.as_deref()).unwrap_or_default();
        let turn = tries as usize % (1 + further.len());
        Some(turn.checked_sub(1).and_then(|turn| further.get(turn).copied()).unwrap_or_else(|| session.socket()))
    }

    /// Drops the rails of a link. Returns the contexts of the pushes that are not done.
    pub(super) fn drop_rails(&mut self, id: u32) -> Vec<u64> {
        self.rails.sizings.forget(id);
        if self.rails.is_empty() {
            return Vec::new();
        }
        let Some(mut bundle) = self.rails.bundles.remove(&id) else { return Vec::new() };
        for index in bundle.rails.drain(..) {
            self.close_rail(index);
        }
        bundle.out.abandon().collect()
    }
}
