//! Connections of endpoints of type FI_EP_MSG (fi_cm(3)): `fi_connect`, `fi_accept`, `fi_shutdown`, `fi_getpeer`.
//!
//! Place in the data flow: these calls → `Engine::connect`, `accept`, `disconnect`. Events of the engine report the
//! outcome: [`crate::endpoint::route`] → [`Reports`] → the event queue. Passive endpoints are in [`crate::pep`].
//!
//! An end is reported after everything that has arrived before it, on this connection or on others. A client that
//! reads of the end may leave, or close the queue. The completions and the event of the end are therefore held
//! ([`Reports::holds_end`]) until the other connections of the domain have taken what has arrived ([`Siblings`]).
//!
//! Errors: -FI_EOPBADSTATE for calls that are repeated or too late, -FI_ENOTCONN without a connection, -FI_EINVAL for
//! more data than FI_OPT_CM_DATA_SIZE.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use weft_engine::api::Error;
use weft_engine::name::EpName;
use weft_engine::nic::LinkError;
use weft_engine::{ConnEvent, Engine};
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::Hold;
use crate::endpoint::Ep;
use crate::endpoint::cell::{AnyCell, CellRef};
use crate::endpoint::route::Routes;
use crate::eq::{Eq, Failure};
use crate::info::EpType;
use crate::info::hints::Hints;
use crate::pep::{self, Request};

/// The event queue for an endpoint's connection, and the data of the reports.
pub(super) struct Reports {
    pub(super) eq: Hold<Eq>,
    /// The address of the endpoint's `fid`.
    pub(super) fid: usize,
    /// The request that is being accepted. It keeps the passive endpoint's devices open until the exchange is over.
    pub(super) request: RefCell<Option<Arc<Request>>>,
    siblings: Arc<Siblings>,
    /// Everything that arrived before the end of the connection has been reported.
    may_end: Cell<bool>,
}

impl Reports {
    pub(super) fn new(eq: Hold<Eq>, fid: usize, siblings: Arc<Siblings>) -> Self {
        Self { eq, fid, request: RefCell::default(), siblings, may_end: Cell::new(false) }
    }

    /// Whether the end of the connection must not be reported yet.
    pub(super) fn holds_end<D: Device>(&self, engine: &Engine<D>) -> bool {
        engine.connection_ended() && !self.may_end.get()
    }

    /// Lets the end of the connection be reported.
    pub(super) fn allow_end(&self) {
        self.may_end.set(true);
    }

    pub(super) fn siblings(&self) -> Arc<Siblings> {
        Arc::clone(&self.siblings)
    }
}

/// The connected endpoints of a domain. The lock is a leaf.
#[derive(Default)]
pub(crate) struct Siblings(Mutex<Vec<Weak<dyn AnyCell>>>);

impl Siblings {
    pub(super) fn join(&self, cell: &CellRef) {
        let mut cells = self.0.lock();
        cells.retain(|known| known.strong_count() > 0);
        cells.push(Arc::downgrade(cell));
    }

    /// Has all other endpoints take and report what has arrived. The caller is inside no endpoint.
    pub(super) fn settle_others(&self, than: usize) {
        let cells: Vec<CellRef> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        cells.iter().filter(|cell| cell.id() != than).for_each(|cell| cell.settle());
    }
}

/// The object that an endpoint was opened from (`fi_info.handle`).
#[derive(Default)]
pub(super) enum OpenedFrom<D> {
    /// There was no handle, or it was used already.
    #[default]
    Nothing,
    /// A connection request, until it is answered.
    Request(Arc<Request>),
    /// A passive endpoint whose address the endpoint takes over: its devices, until enable.
    Devices(Box<D>),
}

impl<D: Device> OpenedFrom<D> {
    /// The handle of an `fi_info`, and the local address of an endpoint that is opened from it. `local` is the
    /// source address of the `fi_info`.
    pub(super) fn of(info: &Hints, ty: EpType, local: Option<EpName>) -> Result<(Self, Option<EpName>), Errno> {
        if info.handle == 0 || ty != EpType::Msg {
            return Ok((Self::Nothing, local));
        }
        if let Some(request) = pep::request(info.handle) {
            // The passive endpoint listens on that port.
            let local = local.map(|name| EpName::service(SocketAddr::new(name.socket().ip(), 0)));
            return Ok((Self::Request(request), local));
        }
        let (devices, bound) = pep::take_devices::<D>(info.handle)?;
        Ok((devices.map_or(Self::Nothing, Self::Devices), bound.or(local)))
    }

    /// The request that the endpoint must answer.
    pub(super) fn request(&self) -> Option<&Arc<Request>> {
        if let Self::Request(request) = self { Some(request) } else { None }
    }

    /// Whether the endpoint has the devices of a passive endpoint.
    pub(super) fn has_devices(&self) -> bool {
        matches!(self, Self::Devices(_))
    }

    /// Takes the devices of a passive endpoint.
    pub(super) fn take_devices(&mut self) -> Option<Box<D>> {
        match std::mem::take(self) {
            Self::Devices(devices) => Some(devices),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Routes {
    /// Reports the events of the connection to the client.
    #[cold]
    pub(super) fn report_connection<D: Device>(&self, engine: &mut Engine<D>) {
        let Some(Reports { eq, fid, request, .. }) = self.reports() else { return };
        for event in engine.take_connection_events() {
            let (errno, why, more) = match event {
                ConnEvent::Connected { data, .. } => {
                    request.take();
                    eq.report_connection(sys::FI_CONNECTED, *fid, &data);
                    continue;
                }
                ConnEvent::Ended(why) => {
                    log::debug!("connection ended: {why}");
                    eq.report_connection(sys::FI_SHUTDOWN, *fid, &[]);
                    continue;
                }
                ConnEvent::Refused { data } => (Errno::CONNREFUSED, None, data),
                // The process at that address refuses the link.
                ConnEvent::Failed(why @ (LinkError::Closed | LinkError::Unanswered | LinkError::Protocol)) => {
                    (Errno::CONNREFUSED, Some(why), Box::default())
                }
                ConnEvent::Failed(why) => (why.into(), Some(why), Box::default()),
                // Only listeners report requests.
                ConnEvent::Request { .. } => continue,
            };
            request.take().inspect(|request| request.abandon());
            eq.report_failure(Failure { fid: *fid, context: self.context(), data: 0, errno, why, more });
        }
    }
}

/// The error of a step that the engine refuses.
fn refused(error: Error) -> Errno {
    match error {
        Error::Invalid => Errno::OPBADSTATE,
        Error::TooLong => Errno::INVAL,
        other => other.into(),
    }
}

impl<D: Device> Ep<D> {
    /// Connects to a peer: `fi_connect`.
    pub(crate) fn connect(&self, peer: &EpName, data: &[u8]) -> Result<(), Errno> {
        if data.len() > weft_engine::MAX_CONN_DATA {
            return Err(Errno::INVAL);
        }
        if self.setup.lock().opened_from.request().is_some() {
            return Err(Errno::OPBADSTATE);
        }
        self.ready()?;
        self.step(|engine| engine.connect(peer, data))?;
        self.setup.lock().called = Some(*peer);
        Ok(())
    }

    /// Accepts the request that the endpoint was opened from: `fi_accept`.
    pub(crate) fn accept(&self, data: &[u8]) -> Result<(), Errno> {
        if data.len() > weft_engine::MAX_CONN_DATA {
            return Err(Errno::INVAL);
        }
        let request = self.setup.lock().opened_from.request().cloned().ok_or(Errno::OPBADSTATE)?;
        self.ready()?;
        request.answer()?;
        if let Some(reports) = self.cell.control().routes.reports() {
            reports.request.replace(Some(Arc::clone(&request)));
        }
        self.setup.lock().opened_from = OpenedFrom::Nothing;
        self.step(|engine| engine.accept(&request.peer, data))
    }

    /// Ends the connection: `fi_shutdown`.
    pub(crate) fn disconnect(&self) -> Result<(), Errno> {
        self.step(Engine::disconnect)?;
        self.cell.settle_siblings();
        Ok(())
    }

    /// Enables the endpoint, unless it is enabled.
    fn ready(&self) -> Result<(), Errno> {
        if self.setup.lock().enabled { Ok(()) } else { self.origin().enable() }
    }

    fn step(&self, step: impl FnOnce(&mut Engine<D>) -> Result<(), Error>) -> Result<(), Errno> {
        let mut state = self.cell.control();
        step(state.engine.as_mut().ok_or(Errno::OPBADSTATE)?).map_err(refused)?;
        self.cell.finish_control(&mut state);
        Ok(())
    }

    /// The peer's address in the client's format. As with sockets it is the address that was called.
    pub(crate) fn peer_address(&self) -> Result<Vec<u8>, Errno> {
        let setup = self.setup.lock();
        let state = self.cell.control();
        let peer = state.engine.as_deref().and_then(Engine::peer).ok_or(Errno::NOTCONN)?;
        let name = setup.called.filter(|_| setup.format.is_open()).unwrap_or(peer);
        setup.format.encode(&name)
    }
}
