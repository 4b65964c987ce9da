//! The links of an endpoint's devices, and which device serves each.
//!
//! Place in the data flow: `Devices` looks up the route of a link for each call of the engine; its relay translates the
//! devices' link numbers back.

use rustc_hash::FxHashMap;
use weft_engine::growth;
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId};

/// Which device serves a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Shm = 0,
    Tcp = 1,
    /// None at the moment: the number is free, or an attempt changes the device.
    Neither = 2,
}

impl Via {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Neither => "no device",
        }
    }
}

/// How far a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none with this number.
    Free,
    /// We are connecting.
    Attempt,
    Up,
}

/// Where the calls for one of our links go, and what else is known of it. Who the peer is the engine knows
/// ([`Sink::peer`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) via: Via,
    pub(super) stage: Stage,
    pub(super) initiator: bool,
    /// Why shared memory, though tried, does not serve the link.
    pub(super) shm_failed: Option<LinkError>,
    pub(super) inner: LinkId,
}

// There is one for each peer, and it is looked up for every message.
const _: () = assert!(size_of::<Route>() == 8);

pub(super) const NOWHERE: Route =
    Route { via: Via::Neither, stage: Stage::Free, initiator: false, shm_failed: None, inner: LinkId(u32::MAX) };
pub(super) const UNMAPPED: u32 = u32::MAX;

/// What is to be known while we connect.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) peer: EpName,
    /// TCP may follow if shared memory fails.
    pub(super) may_fall_back: bool,
}

/// Our links and the devices'.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// By our number.
    pub(super) routes: Vec<Route>,
    /// Numbers that may be used again.
    pub(super) free: Vec<u32>,
    /// By our number.
    pub(super) attempts: FxHashMap<u32, Attempt>,
    /// Our number by device and the device's number.
    pub(super) ours: [Vec<u32>; 2],
    /// Attempts that shared memory gave up and TCP shall take over.
    pub(super) fallbacks: Vec<(u32, LinkError)>,
}

impl Table {
    /// A number for a new link.
    pub(super) fn insert(&mut self, initiator: bool, shm_failed: Option<LinkError>) -> u32 {
        let stage = if initiator { Stage::Attempt } else { Stage::Up };
        let route = Route { stage, initiator, shm_failed, ..NOWHERE };
        match self.free.pop() {
            Some(id) => {
                self.routes[id as usize] = route;
                id
            }
            None => {
                growth::reserve(&mut self.routes, 1);
                self.routes.push(route);
                u32::try_from(self.routes.len() - 1).unwrap_or(UNMAPPED)
            }
        }
    }

    /// A number for a link that we make.
    pub(super) fn begin(&mut self, attempt: Attempt, shm_failed: Option<LinkError>) -> u32 {
        let id = self.insert(true, shm_failed);
        self.attempts.insert(id, attempt);
        id
    }

    /// An attempt is over.
    pub(super) fn end_attempt(&mut self, id: u32) -> Option<Attempt> {
        let attempt = self.attempts.remove(&id);
        if self.attempts.is_empty() {
            // Many may have been made at once.
            self.attempts = FxHashMap::default();
        }
        attempt
    }

    /// There is no such link any more. Returns where it was.
    pub(super) fn remove(&mut self, id: u32) -> Route {
        let was = self.unmap(id);
        if was.stage != Stage::Free {
            self.routes[id as usize] = NOWHERE;
            self.end_attempt(id);
            self.free.push(id);
        }
        was
    }

    pub(super) fn map(&mut self, id: u32, via: Via, inner: LinkId) {
        let route = &mut self.routes[id as usize];
        (route.via, route.inner) = (via, inner);
        let ours = &mut self.ours[via as usize];
        if ours.len() <= inner.0 as usize {
            let more = inner.0 as usize + 1 - ours.len();
            growth::reserve(ours, more);
            ours.resize(inner.0 as usize + 1, UNMAPPED);
        }
        debug_assert_eq!(ours[inner.0 as usize], UNMAPPED);
        ours[inner.0 as usize] = id;
    }

    /// Separates our link from its device's. Returns what it was.
    pub(super) fn unmap(&mut self, id: u32) -> Route {
        let Some(route) = self.routes.get_mut(id as usize) else { return NOWHERE };
        let was = *route;
        (route.via, route.inner) = (Via::Neither, NOWHERE.inner);
        if was.via != Via::Neither {
            self.ours[was.via as usize][was.inner.0 as usize] = UNMAPPED;
        }
        was
    }

    #[inline]
    pub(super) fn ours(&self, via: Via, inner: LinkId) -> LinkId {
        LinkId(self.ours[via as usize].get(inner.0 as usize).copied().unwrap_or(UNMAPPED))
    }

    #[inline]
    pub(super) fn way(&self, link: LinkId) -> (Via, LinkId) {
        self.routes.get(link.0 as usize).map_or((NOWHERE.via, NOWHERE.inner), |route| (route.via, route.inner))
    }
}
