//! The part of an endpoint that outlives its handle: the engine, its lock, and what is bound to it.
//!
//! Place in the data flow: operations enter through [`EndpointCell::submit_tx`] and
//! [`EndpointCell::submit_recv`], queues and counters that are read drive [`EndpointCell::progress`], memory
//! regions and address vectors reach every endpoint of their domain through the control calls at the end.
//! Queues, counters and the progress thread hold an `EndpointCell` by `Arc`; the client holds handles
//! ([`crate::endpoint::Ep`]), of which aliases share one cell.
//!
//! Invariants: one engine, one lock. Whoever called into the engine delivers its completions before leaving,
//! except control calls: they leave them to the next round of progress, so that a queue's ring is only
//! entered by those whom the threading level covers, and by the progress thread ([`progress::Visit`]), which the rings
//! know. Whoever delivers runs, once it has left, the programs that were set free by it ([`crate::trigger`]),
//! or leaves that to the next round by [`State::programs_due`]. The same goes for programs that are
//! [`State::stalled`]: any call into the engine in which it may make progress may have made the room that
//! they wait for, and no later round need find anything.

pub(crate) mod deferred;
mod parking;
mod progress;
mod submit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use weft_engine::Engine;
use weft_engine::api::{Access, Addr, Book, Error, Region};
use weft_engine::name::EpName;

use crate::Devices;
use crate::domain::Domain;
pub(crate) use crate::endpoint::cell::parking::Sleep;
use crate::endpoint::route::{Bound, RegionCounters, Routes};
use crate::endpoint::shared::Receives;
use crate::observe::publish::Publisher;
use crate::sleep::lock::{Callers, Guard, Guarded};
use crate::sleep::progress::AutoProgress;
use crate::trigger::WorkQueue;

/// The engine over the real devices.
pub(crate) type Eng = Engine<Devices>;

/// An endpoint as queues, counters and regions see it.
pub(crate) struct EndpointCell {
    state: Guarded<State>,
    /// What the data path looks at first.
    pub(crate) bound: Bound,
    /// Rounds of progress that application threads have made, for others to see whether somebody is at work.
    polls: AtomicU64,
    /// The processor on which they were made lately.
    cpu: AtomicU32,
    /// Application threads that sleep on this endpoint and will progress it when they wake.
    sleepers: AtomicU32,
    /// The progress thread, if there is one.
    auto: Option<Arc<AutoProgress>>,
    /// The client has taken over, and the progress thread has not seen it yet.
    dismissed: AtomicBool,
    /// What waits in the domain for counters.
    work: Arc<WorkQueue>,
    /// Whether operations of this endpoint may be among it (FI_TRIGGER).
    triggers: bool,
    /// What peers may do here at all, whatever a region permits (FI_REMOTE_READ, FI_REMOTE_WRITE).
    open_to: Access,
    /// In the place of an engine: the receives of a shared context.
    shared: Option<Receives>,
    /// What peers had to know besides the name (fi_endpoint(3), "auth_key").
    pub(crate) auth_key: Option<Vec<u8>>,
}

/// What the lock guards.
pub(crate) struct State {
    /// `None` before enable and after close. Boxed, so that it is not moved on the stacks of clients.
    pub(crate) engine: Option<Box<Eng>>,
    /// What is bound.
    pub(crate) routes: Routes,
    /// How many threads sleep in our calls with these devices parked.
    sleeping: u32,
    /// How many wait objects of clients rely on the devices being parked (`fi_trywait`): those sleep where we cannot
    /// see them, for as long as they like.
    external: u32,
    /// The progress thread listens to these devices, which are parked until it or the client ends that.
    auto_listens: bool,
    /// It sleeps, and was not called yet.
    auto_asleep: bool,
    /// Any of these sleeps.
    relied_on: bool,
    /// Rounds that the client has made since the progress thread was of use.
    unaided: u32,
    /// Programs were set free in here, or may go on: whoever finds this set runs them, once out of the engine.
    pub(crate) programs_due: bool,
    /// Programs wait for room in this engine.
    pub(crate) stalled: bool,
    /// Lets others see what happens here.
    pub(super) publisher: Option<Box<Publisher>>,
    /// It may be time to publish.
    look_due: bool,
}

impl EndpointCell {
    /// A cell without an engine.
    ///
    /// # Safety
    /// With [`Callers::One`], every call below that is not named a control call or a visit comes from threads that the
    /// client serializes, as [`Guarded::new`] demands.
    pub(crate) unsafe fn new(
        domain: &Domain,
        callers: Callers,
        triggers: bool,
        open_to: Access,
        routes: Routes,
        shared: Option<Receives>,
    ) -> Self {
        let state = State {
            engine: None,
            routes,
            sleeping: 0,
            external: 0,
            auto_listens: false,
            auto_asleep: false,
            relied_on: false,
            unaided: 0,
            programs_due: false,
            stalled: false,
            publisher: None,
            look_due: false,
        };
        Self {
            // SAFETY: the caller's promise.
            state: unsafe { Guarded::new(callers, domain.meter(), state) },
            bound: Bound::default(),
            polls: AtomicU64::new(0),
            cpu: AtomicU32::new(u32::MAX),
            sleepers: AtomicU32::new(0),
            auto: domain.auto_progress().cloned(),
            dismissed: AtomicBool::new(false),
            work: Arc::clone(domain.work()),
            triggers,
            open_to,
            shared,
            auth_key: None,
        }
    }

    /// What waits in the domain.
    pub(super) fn work(&self) -> &WorkQueue {
        &self.work
    }

    /// The receives of a shared context, which has no engine.
    pub(super) fn shared(&self) -> Option<&Receives> {
        self.shared.as_ref()
    }

    /// Whether operations may wait for triggers.
    pub(crate) fn triggers(&self) -> bool {
        self.triggers
    }

    /// The state for a call that the client serializes with data-path calls: bind, enable, options.
    pub(crate) fn state(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// The state for a control call, which may come from any thread at any time.
    pub(crate) fn control(&self) -> Guard<'_, State> {
        self.state.intrude()
    }

    /// The endpoint's name, once enabled. A control call.
    pub(crate) fn name(&self) -> Option<EpName> {
        self.state.intrude().engine.as_deref().map(Engine::name)
    }

    /// The address vector has gained addresses. A control call.
    pub(crate) fn addresses_added(&self, fresh: &[(Addr, EpName)]) {
        let mut state = self.state.intrude();
        if let Some(engine) = &mut state.engine {
            fresh.iter().for_each(|(addr, name)| engine.address_added(*addr, name));
            self.notify_sleepers(&mut state);
        }
    }

    /// The address vector has lost an address. A control call.
    pub(crate) fn address_removed(&self, addr: Addr) {
        let mut state = self.state.intrude();
        if let Some(engine) = &mut state.engine {
            engine.address_removed(addr);
            self.notify_sleepers(&mut state);
        }
    }

    /// The domain has a new region, whose `user` word must be its key. A control call.
    pub(crate) fn add_region(&self, mut region: Region) -> Result<(), Error> {
        debug_assert_eq!(region.user, region.key);
        region.access.read &= self.open_to.read;
        region.access.write &= self.open_to.write;
        match &mut self.state.intrude().engine {
            Some(engine) => engine.add_region(region),
            None => Ok(()),
        }
    }

    /// The region's counters have changed. Reading them drives this endpoint from now on. A control call.
    pub(crate) fn set_region_counters(self: &Arc<Self>, key: u64, counters: RegionCounters) {
        for cntr in [&counters.write, &counters.read].into_iter().flatten() {
            cntr.sources().add(self);
            cntr.notify();
        }
        self.state.intrude().routes.set_region_counters(key, counters);
    }

    /// The domain has lost a region: on return nothing touches its memory any more. A control call.
    pub(crate) fn remove_region(&self, key: u64) {
        let mut state = self.state.intrude();
        state.routes.regions.remove(&key);
        let State { engine: Some(engine), .. } = &mut *state else { return };
        engine.remove_region(key);
        self.notify_sleepers(&mut state);
    }
}

impl State {
    /// Installs the engine that enable has made.
    pub(crate) fn install(&mut self, mut engine: Box<Eng>, book: Book, publisher: Option<Box<Publisher>>) {
        engine.bind_book(book);
        self.engine = Some(engine);
        self.publisher = publisher;
    }
}

/// Shared ownership of a cell.
pub(crate) type CellRef = Arc<EndpointCell>;
