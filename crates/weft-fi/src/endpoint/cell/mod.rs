//! The part of an endpoint that outlives its handle: the engine, its lock, and the bound objects.
//!
//! Place in the data flow: operations enter through [`submit`]. Queues and counters that are read drive
//! [`EndpointCell::progress`]. Memory regions and address vectors reach every endpoint of their domain through the
//! control calls in [`any`]. Programs start operations through [`deferred`]. Queues, counters and the progress thread
//! hold an `EndpointCell` as a [`CellRef`], without its device type. The client holds handles
//! ([`crate::endpoint::Ep`]); aliases share one cell.
//!
//! Invariants:
//!
//! - One engine, one lock.
//! - A call into the engine delivers its completions before it leaves. Control calls are the exception: they leave
//!   completions to the next round of progress. Thus a queue's ring is entered only by threads that the threading
//!   level covers, and by the progress thread ([`progress::Visit`]), which the rings know.
//! - A call that has delivered runs the programs that it released ([`crate::trigger`]) after it has left the
//!   engine, or leaves them to the next round (`CellState::programs_due`).
//! - The same applies to stalled programs (`CellState::programs_stalled`) after any call in which the engine may make
//!   progress. Such a call may have made room for them, and no later round needs to find work.

mod any;
pub(crate) mod deferred;
mod parking;
mod progress;
mod submit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use weft_engine::Engine;
use weft_engine::api::{Access, Book};
use weft_engine::name::EpName;
use weft_nic::Device;

use crate::domain::Domain;
pub(crate) use crate::endpoint::cell::any::{AnyCell, CellRef, DrivenCells};
use crate::endpoint::route::{Bound, Routes};
use crate::endpoint::shared::Receives;
use crate::observe::publish::Publisher;
use crate::observe::report::Part;
use crate::sleep::lock::{Callers, Guard, Guarded};
use crate::sleep::parking::Parking;
pub(crate) use crate::sleep::parking::Sleep;
use crate::sleep::progress::AutoProgress;
use crate::trigger::WorkQueue;

/// An endpoint as queues, counters and regions see it.
pub(crate) struct EndpointCell<D: Device> {
    state: Guarded<CellState<D>>,
    /// Bindings that the data path reads before it takes the lock.
    pub(super) bound: Bound,
    /// Rounds of progress that threads of the client have made.
    rounds: AtomicU64,
    /// The processor on which they were made lately, or `u32::MAX`.
    cpu: AtomicU32,
    /// Number of the client's threads that sleep on this endpoint and progress it when they wake.
    sleeping_threads: AtomicU32,
    /// The domain's progress thread, with automatic progress.
    progress_thread: Option<Arc<AutoProgress>>,
    /// The client asks the progress thread to step back. The thread clears the request.
    step_back: AtomicBool,
    /// The domain's programs, which wait for counters.
    work: Arc<WorkQueue>,
    /// Whether operations of this endpoint may be part of programs (FI_TRIGGER).
    triggers: bool,
    /// The remote accesses that the endpoint's capabilities permit, whatever a region grants (FI_REMOTE_READ,
    /// FI_REMOTE_WRITE).
    open_to: Access,
    /// The receives of a shared context, which has no engine.
    shared: Option<Receives<D>>,
    /// The key that peers must present besides the name (fi_endpoint(3), "auth_key").
    auth_key: Option<Vec<u8>>,
}

/// The state that the lock guards.
pub(crate) struct CellState<D: Device> {
    /// `None` before enable and after close. Boxed, so that it is not moved on the stacks of clients.
    pub(super) engine: Option<Box<Engine<D>>>,
    /// The bound queues and counters.
    pub(super) routes: Routes,
    /// The threads that rely on parked devices.
    parking: Parking,
    /// Programs were released, or statistics are due. The next call that leaves the engine handles them
    /// ([`EndpointCell::run_programs`]).
    programs_due: bool,
    /// Programs wait for room in this engine.
    programs_stalled: bool,
    /// Writes the endpoint's statistics for other processes.
    publisher: Option<Box<Publisher>>,
    /// The interval between two looks at the clock for statistics is over.
    publish_due: bool,
}

impl<D: Device> EndpointCell<D> {
    /// A cell without an engine.
    ///
    /// # Safety
    /// With [`Callers::One`], the client serializes all calls below, except control calls and visits, as
    /// [`Guarded::new`] demands.
    pub(super) unsafe fn new(
        domain: &Domain,
        callers: Callers,
        triggers: bool,
        open_to: Access,
        routes: Routes,
        shared: Option<Receives<D>>,
        auth_key: Option<Vec<u8>>,
    ) -> Self {
        let state = CellState {
            engine: None,
            routes,
            parking: Parking::default(),
            programs_due: false,
            programs_stalled: false,
            publisher: None,
            publish_due: false,
        };
        Self {
            // SAFETY: the caller's promise.
            state: unsafe { Guarded::new(callers, domain.meter(), state) },
            bound: Bound::default(),
            rounds: AtomicU64::new(0),
            cpu: AtomicU32::new(u32::MAX),
            sleeping_threads: AtomicU32::new(0),
            progress_thread: domain.auto_progress().cloned(),
            step_back: AtomicBool::new(false),
            work: Arc::clone(domain.work()),
            triggers,
            open_to,
            shared,
            auth_key,
        }
    }

    /// The receives of a shared context, which has no engine.
    pub(super) fn shared(&self) -> Option<&Receives<D>> {
        self.shared.as_ref()
    }

    /// Whether operations may wait for triggers.
    pub(crate) fn triggers(&self) -> bool {
        self.triggers
    }

    /// The state for a call that the client serializes with data-path calls: bind, enable, options.
    pub(super) fn state(&self) -> Guard<'_, CellState<D>> {
        self.state.lock()
    }
}

/// Control calls, which may come from any thread at any time.
impl<D: Device> EndpointCell<D> {
    /// The state for a control call.
    pub(super) fn control(&self) -> Guard<'_, CellState<D>> {
        self.state.intrude()
    }

    /// The endpoint's name, once enabled.
    pub(crate) fn name(&self) -> Option<EpName> {
        self.state.intrude().engine.as_deref().map(Engine::name)
    }

    /// Takes the engine out of the endpoint, which is closed from then on.
    pub(crate) fn take_engine(&self) -> Option<Box<Engine<D>>> {
        self.state.intrude().engine.take()
    }

    /// Lets the engine act. If `act` says that something has happened, threads that wait at this endpoint look
    /// again. Returns `None` where there is no engine.
    pub(super) fn with_engine<R>(&self, act: impl FnOnce(&mut Engine<D>) -> (bool, R)) -> Option<R> {
        let mut state = self.state.intrude();
        let (happened, result) = act(state.engine.as_mut()?);
        if happened {
            state.programs_due |= state.programs_stalled;
            state.routes.notify();
            self.notify_listener(&mut state);
        }
        Some(result)
    }
}

impl<D: Device> CellState<D> {
    /// Installs the engine that enable has made.
    pub(super) fn install(&mut self, mut engine: Box<Engine<D>>, book: Book, publisher: Option<Box<Publisher>>) {
        engine.bind_book(book);
        self.engine = Some(engine);
        self.publisher = publisher;
    }

    /// Closes the endpoint for routes and statistics: no completion is delivered any more.
    pub(super) fn take_routes(&mut self) -> (Routes, Option<Part>) {
        let part = self.publisher.take().and_then(|publisher| publisher.into_part());
        (std::mem::take(&mut self.routes), part)
    }

    /// Brings the endpoint's part of the report up to date, for the last time.
    pub(crate) fn finish_report(&mut self) {
        if let Self { engine: Some(engine), publisher: Some(publisher), routes, .. } = self
            && let Some(part) = publisher.part()
        {
            part.update(engine, routes.failures(), false);
        }
    }

    /// Delivers the engine's completions. The programs that this releases are due, and so are stalled ones, for
    /// which there may be room now.
    pub(super) fn deliver(&mut self) {
        if let Some(engine) = &mut self.engine {
            self.programs_due |= self.routes.deliver(engine, None) || self.programs_stalled;
        }
    }
}
