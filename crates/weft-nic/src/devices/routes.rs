//! The links of an endpoint's devices, with the device of each.
//!
//! Place in the data flow: `Devices` looks up the route of a link for each call of the engine. Its relay translates the
//! devices' link numbers back.

use rustc_hash::FxHashMap;
use weft_engine::growth;
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId};

/// The device that serves a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Shm = 0,
    Tcp = 1,
    /// No device: the number is free, or an attempt changes the device.
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

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No link has this number.
    Free,
    /// This side is connecting.
    Attempt,
    Up,
}

/// The device of a link, the device's number for it, and its state. The engine keeps the peer's name (`Sink::peer`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) via: Via,
    pub(super) stage: Stage,
    pub(super) initiator: bool,
    pub(super) inner: LinkId,
}

// Each peer has one, and each message looks it up.
const _: () = assert!(size_of::<Route>() == 8);

const NOWHERE: Route = Route { via: Via::Neither, stage: Stage::Free, initiator: false, inner: LinkId(u32::MAX) };
pub(super) const UNMAPPED: u32 = u32::MAX;

/// An attempt to connect.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) peer: EpName,
    /// TCP is tried if shared memory fails.
    pub(super) may_fall_back: bool,
}

/// The link numbers of the engine and those of the devices.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// By the engine's number.
    routes: Vec<Route>,
    /// Free numbers.
    free: Vec<u32>,
    /// By the engine's number.
    attempts: FxHashMap<u32, Attempt>,
    /// The engine's number, by device and the device's number.
    ours: [Vec<u32>; 2],
    /// The errors with which shared memory failed before TCP took over, by the engine's number.
    shm_failed: FxHashMap<u32, LinkError>,
    /// Attempts that failed over shared memory and continue over TCP.
    fallbacks: Vec<(u32, LinkError)>,
}

impl Table {
    /// Assigns a number to a new link.
    pub(super) fn insert(&mut self, initiator: bool) -> u32 {
        let stage = if initiator { Stage::Attempt } else { Stage::Up };
        let route = Route { stage, initiator, ..NOWHERE };
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

    /// Assigns a number to a link that this side makes.
    pub(super) fn begin(&mut self, attempt: Attempt, shm_failed: Option<LinkError>) -> u32 {
        let id = self.insert(true);
        self.attempts.insert(id, attempt);
        self.shm_failed.extend(shm_failed.map(|why| (id, why)));
        id
    }

    /// The attempt behind a link, if there is one.
    pub(super) fn attempt(&self, id: u32) -> Option<&Attempt> {
        self.attempts.get(&id)
    }

    /// Notes that an attempt has succeeded.
    pub(super) fn succeed(&mut self, id: u32) {
        self.routes[id as usize].stage = Stage::Up;
        self.end_attempt(id);
    }

    /// Leaves an attempt over shared memory, which TCP will continue.
    pub(super) fn defer_to_tcp(&mut self, id: u32, why: LinkError) {
        self.unmap(id);
        self.shm_failed.insert(id, why);
        self.fallbacks.push((id, why));
    }

    /// The error with which shared memory failed before TCP took over.
    pub(super) fn shm_failed(&self, id: u32) -> Option<LinkError> {
        self.shm_failed.get(&id).copied()
    }

    /// Whether TCP has attempts to continue.
    #[inline]
    pub(super) fn has_fallbacks(&self) -> bool {
        !self.fallbacks.is_empty()
    }

    /// Takes the attempts that TCP must continue, with the errors of shared memory.
    pub(super) fn take_fallbacks(&mut self) -> Vec<(u32, LinkError)> {
        std::mem::take(&mut self.fallbacks)
    }

    /// Ends an attempt.
    fn end_attempt(&mut self, id: u32) {
        self.attempts.remove(&id);
        if self.attempts.is_empty() {
            // Releases the memory of many simultaneous attempts.
            self.attempts = FxHashMap::default();
        }
    }

    /// Removes a link. Returns its route.
    pub(super) fn remove(&mut self, id: u32) -> Route {
        let was = self.unmap(id);
        if was.stage != Stage::Free {
            self.routes[id as usize] = NOWHERE;
            self.end_attempt(id);
            self.fallbacks.retain(|&(other, _)| other != id);
            self.shm_failed.remove(&id);
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

    /// Separates a link from its device. Returns its former route.
    fn unmap(&mut self, id: u32) -> Route {
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

    /// The route of a link; `None` if it does not exist.
    pub(super) fn route(&self, link: LinkId) -> Option<&Route> {
        self.routes.get(link.0 as usize).filter(|route| route.stage != Stage::Free)
    }

    #[inline]
    pub(super) fn way(&self, link: LinkId) -> (Via, LinkId) {
        self.routes.get(link.0 as usize).map_or((NOWHERE.via, NOWHERE.inner), |route| (route.via, route.inner))
    }
}
