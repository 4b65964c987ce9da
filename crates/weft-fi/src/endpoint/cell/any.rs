//! Endpoints as objects see them that do not depend on the device: domains, address vectors, queues, counters,
//! programs, and the threads of weft.
//!
//! Place in the data flow: beside it. These are control calls, which may come from any thread at any time, and the
//! calls of the progress thread and of programs. Reads of queues and counters make rounds on the cell itself
//! ([`DrivenCells`]).

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_engine::Engine;
use weft_engine::api::{Addr, Error, Region};
use weft_engine::name::EpName;
use weft_nic::{Device, Unsent};

use super::deferred::Standing;
use super::progress::this_cpu;
use super::{CellState, EndpointCell};
use crate::cntr::Cntr;
use crate::endpoint::route::RegionCounters;
use crate::eq::drivers::Driver;
use crate::sleep::policy::Next;
use crate::sleep::progress::{AutoProgress, Member};
use crate::sleep::wait::Waker;
use crate::trigger::op::{Op, Report};

/// Shared ownership of a cell, whatever its device is.
pub(crate) type CellRef = Arc<dyn AnyCell>;

/// An [`EndpointCell`], whatever its device is.
pub(crate) trait AnyCell: Driver {
    /// A number that is unique among existing endpoints, and never 0.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The program lanes of the endpoint's transmit and receive queues.
    fn lanes(&self) -> [u64; 2] {
        // A cell's address is even and below `u64::MAX - 1`.
        [self.id() as u64, self.id() as u64 | 1]
    }

    /// Whether the endpoint has this authorization key.
    fn has_auth_key(&self, key: &[u8]) -> bool;

    /// Number of datagrams that the engine has dropped.
    fn dropped(&self) -> u64;

    /// Number of calls that had to wait at a lock of the domain.
    fn lock_waits(&self) -> u64;

    /// Whether the endpoint is linked with another one of this host. A call of the client.
    fn has_near_peer(&self) -> bool;

    /// Whether a tagged receive is posted or an operation is under way. A call of the client.
    fn is_waiting(&self) -> bool;

    /// Adds the endpoint's last traffic to the report of the process, unless a thread is inside the endpoint.
    fn finish_report(&self);

    /// The note in which the devices record that they keep unsent messages, if they may keep any.
    fn unsent(&self) -> Option<Arc<Unsent>>;

    /// Writes unsent messages that the devices keep, without a poll. Clears `unsent` if none is left; under the lock,
    /// so that no message is added in between. A forked child leaves its parent's devices alone.
    fn drain(&self, unsent: &Unsent);

    /// A counter drives this endpoint from now on.
    fn add_driver(&self, cntr: &Arc<Cntr>);

    /// The address vector has gained addresses.
    fn addresses_added(&self, fresh: &[(Addr, EpName)]);

    /// The address vector has lost an address.
    fn address_removed(&self, addr: Addr);

    /// The domain has a new region. Its `user` word must be its key.
    fn add_region(&self, region: Region) -> Result<(), Error>;

    /// The region's counters have changed.
    fn set_region_counters(&self, key: u64, counters: RegionCounters);

    /// The domain has lost a region. On return the engine no longer accesses its memory.
    fn remove_region(&self, key: u64);

    /// Starts an operation whose condition is met ([`EndpointCell::start`]).
    fn start(&self, op: &mut Op, report: &mut Option<Report>) -> bool;

    /// Takes and reports everything that has arrived ([`EndpointCell::settle`]).
    fn settle(&self);

    /// Cancels deferred work whose operation was started, if that is a receive without a message.
    fn cancel_work(&self, work: usize) -> Standing;

    /// The activity of the client's threads: their rounds of progress so far, and whether one sleeps.
    fn activity(&self) -> (u64, bool);

    /// Whether the client's rounds were made on the caller's processor, if that is known.
    fn shares_cpu(&self) -> Option<bool>;

    /// Returns whether the client has asked the progress thread to step back, and clears the request.
    fn take_step_back(&self) -> bool;

    /// Has the progress thread serve the endpoint ([`Member::serve`]).
    fn serve(&self, member: &mut Member, auto: &AutoProgress, sleeper: bool) -> Next;

    /// Ends the progress thread's visits for some time ([`EndpointCell::end_visits`]).
    fn end_visits(&self, waker: &Waker);
}

/// The cells that a queue or a counter drives.
#[derive(Default)]
pub(crate) struct DrivenCells {
    cells: Vec<CellRef>,
    /// The cells' addresses, in the same order. To take them from `cells`, each round would have to read the alignment
    /// of the type.
    addresses: Vec<NonNull<()>>,
}

// SAFETY: the pointers only lead to the cells, which threads share.
unsafe impl Send for DrivenCells {}

impl DrivenCells {
    /// Adds a cell, unless it is here already. Returns whether it was added.
    pub(crate) fn add(&mut self, cell: CellRef) -> bool {
        let new = !self.cells.iter().any(|known| Arc::ptr_eq(known, &cell));
        if new {
            self.addresses.push(NonNull::from(&*cell).cast());
            self.cells.push(cell);
        }
        new
    }

    pub(crate) fn remove(&mut self, cell: &CellRef) {
        self.cells.retain(|known| !Arc::ptr_eq(known, cell));
        self.addresses = self.cells.iter().map(|cell| NonNull::from(&**cell).cast()).collect();
    }

    /// The cells, whatever their devices are.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, CellRef> {
        self.cells.iter()
    }

    /// The cells with their device of type `D`.
    ///
    /// # Safety
    /// The devices are of type `D`. That holds for the endpoints of a domain that was opened by the functions for `D`.
    #[inline(always)]
    pub(crate) unsafe fn on_device<D: Device>(&self) -> impl Iterator<Item = &EndpointCell<D>> {
        // SAFETY: `cells` keeps each cell. `EndpointCell` is the only type with the trait, and by the caller's promise
        // its device is a `D`.
        self.addresses.iter().map(|address| unsafe { address.cast().as_ref() })
    }
}

impl<D: Device> AnyCell for EndpointCell<D> {
    fn has_auth_key(&self, key: &[u8]) -> bool {
        self.auth_key.as_deref() == Some(key)
    }

    fn dropped(&self) -> u64 {
        self.state.intrude().engine.as_deref().map_or(0, Engine::dropped)
    }

    fn lock_waits(&self) -> u64 {
        self.state.waits()
    }

    fn has_near_peer(&self) -> bool {
        self.state.lock().engine.as_deref().is_some_and(Engine::has_near_peer)
    }

    fn is_waiting(&self) -> bool {
        self.state.lock().engine.as_deref().is_some_and(Engine::is_waiting)
    }

    fn finish_report(&self) {
        if let Some(mut visit) = self.try_visit() {
            visit.finish_report();
        }
    }

    fn unsent(&self) -> Option<Arc<Unsent>> {
        self.state.intrude().engine.as_ref().and_then(|engine| engine.nic().unsent().cloned())
    }

    fn drain(&self, unsent: &Unsent) {
        if let Some(engine) = &mut self.state.intrude().engine
            && engine.nic().is_ours()
            && engine.nic_mut().drain()
        {
            unsent.clear();
        }
    }

    fn add_driver(&self, cntr: &Arc<Cntr>) {
        self.state.intrude().routes.add_driving_counter(cntr);
    }

    fn addresses_added(&self, fresh: &[(Addr, EpName)]) {
        let mut state = self.state.intrude();
        if let Some(engine) = &mut state.engine {
            fresh.iter().for_each(|(addr, name)| engine.address_added(*addr, name));
            self.notify_sleepers(&mut state);
        }
    }

    fn address_removed(&self, addr: Addr) {
        let mut state = self.state.intrude();
        if let Some(engine) = &mut state.engine {
            engine.address_removed(addr);
            self.notify_sleepers(&mut state);
        }
    }

    fn add_region(&self, mut region: Region) -> Result<(), Error> {
        debug_assert_eq!(region.user, region.key);
        region.access.read &= self.open_to.read;
        region.access.write &= self.open_to.write;
        match &mut self.state.intrude().engine {
            Some(engine) => engine.add_region(region),
            None => Ok(()),
        }
    }

    fn set_region_counters(&self, key: u64, counters: RegionCounters) {
        let mut state = self.state.intrude();
        state.routes.set_region_counters(key, counters);
        if let Some(engine) = &mut state.engine {
            engine.watch_region(key);
        }
    }

    fn remove_region(&self, key: u64) {
        let mut state = self.state.intrude();
        state.routes.remove_region(key);
        let CellState { engine: Some(engine), .. } = &mut *state else { return };
        engine.remove_region(key);
        self.notify_sleepers(&mut state);
    }

    fn start(&self, op: &mut Op, report: &mut Option<Report>) -> bool {
        Self::start(self, op, report)
    }

    fn settle(&self) {
        Self::settle(self);
    }

    fn cancel_work(&self, work: usize) -> Standing {
        Self::cancel_work(self, work)
    }

    fn activity(&self) -> (u64, bool) {
        (self.rounds.load(Ordering::Relaxed), self.sleeping_threads.load(Ordering::Relaxed) > 0)
    }

    fn shares_cpu(&self) -> Option<bool> {
        let cpu = self.cpu.load(Ordering::Relaxed);
        (cpu != u32::MAX).then(|| cpu == this_cpu())
    }

    fn take_step_back(&self) -> bool {
        self.step_back.load(Ordering::Relaxed) && self.step_back.swap(false, Ordering::Relaxed)
    }

    fn serve(&self, member: &mut Member, auto: &AutoProgress, sleeper: bool) -> Next {
        member.serve(self, auto, sleeper)
    }

    fn end_visits(&self, waker: &Waker) {
        Self::end_visits(self, waker);
    }
}
