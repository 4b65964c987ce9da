//! Enabling endpoints: the devices and the engine are made, and the endpoint joins the objects that drive it.
//!
//! Place in the data flow: `fi_enable` → [`Ep::enable`]; `fi_connect` and `fi_accept` enable an endpoint that is not
//! enabled yet. The endpoint joins its address vector, its domain, the progress thread, the event queue, the other
//! contexts of a scalable endpoint, and the flusher.
//!
//! Errors, as fi_endpoint(3) names them: -FI_ENOCQ, -FI_ENOAV and -FI_ENOEQ for missing bindings, -FI_EOPBADSTATE
//! for a second call or a missing shared context.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_engine::Engine;
use weft_engine::api::{Book, Config, NoBook};
use weft_fi_sys as sys;
use weft_nic::{Device, NicError};

use crate::abi::errno::{self, Errno};
use crate::endpoint::cell::CellRef;
use crate::endpoint::connection::Reports;
use crate::endpoint::opening::{receives, transmits};
use crate::endpoint::route::Routes;
use crate::endpoint::setup::Setup;
use crate::endpoint::{Ep, Kind};
use crate::info::EpType;
use crate::observe::publish::Publisher;
use crate::observe::report;
use crate::record;
use crate::sleep::flusher;
use weft_observe::INTERVAL;

/// The error number for devices that could not be opened.
#[allow(clippy::needless_pass_by_value)] // For `map_err`.
pub(crate) fn refused(error: NicError) -> Errno {
    errno::log_error("fi_enable", &error)
}

impl<D: Device> Ep<D> {
    /// Enables the endpoint: `fi_enable`.
    pub(crate) fn enable(&self) -> Result<(), Errno> {
        if self.parent.is_some() {
            return Err(Errno::INVAL);
        }
        if self.kind == Kind::Shared {
            return Ok(());
        }
        let mut setup = self.setup.lock();
        if setup.enabled || setup.lacks_shared_context() {
            return Err(Errno::OPBADSTATE);
        }
        if let Some(place) = self.place() {
            setup.av = place.av();
        }
        let book = self.book(&setup)?;
        let reports = self.reports(&setup)?;
        self.install_engine(&mut setup, book, reports)?;
        self.join(&setup)?;
        setup.enabled = true;
        Ok(())
    }

    /// The address vector as the engine uses it.
    fn book(&self, setup: &Setup<D>) -> Result<Book, Errno> {
        match (&setup.av, self.ty) {
            (Some(av), _) => Ok(av.book()),
            (None, EpType::Msg) => Ok(Arc::new(NoBook)),
            (None, EpType::Rdm | EpType::Dgram) => Err(Errno::NOAV),
        }
    }

    /// Whether the endpoint has events to report: of its connection, or of joined groups.
    pub(super) fn has_events(&self) -> bool {
        self.ty == EpType::Msg || self.caps & sys::FI_COLLECTIVE != 0
    }

    /// Where connections and joins are reported.
    fn reports(&self, setup: &Setup<D>) -> Result<Option<Reports>, Errno> {
        let eq = match (self.ty, &setup.eq) {
            (_, Some(eq)) if self.has_events() => eq.clone(),
            (EpType::Msg, None) => return Err(Errno::NOEQ),
            _ => return Ok(None),
        };
        let siblings = Arc::clone(self.domain.connections());
        Ok(Some(Reports::new(eq, std::ptr::from_ref(self).addr(), siblings)))
    }

    /// Whether a queue is missing that the capabilities need.
    fn lacks_queue(&self, setup: &Setup<D>, routes: &Routes) -> bool {
        let lacks = if transmits(self.caps) {
            // An endpoint that also transmits may never receive. Its receives are refused without a queue, and
            // the transmit queue drives it.
            !routes.has_tx()
        } else {
            receives(self.caps) && !routes.has_rx()
        };
        // Receives of a shared context complete in this endpoint's queue.
        lacks || (setup.srx.is_some() && !routes.has_rx())
    }

    /// Makes the devices and the engine, and installs them in the cell.
    fn install_engine(&self, setup: &mut Setup<D>, book: Book, reports: Option<Reports>) -> Result<(), Errno> {
        let mut state = self.cell.state();
        if self.lacks_queue(setup, &state.routes) {
            return Err(Errno::NOCQ);
        }
        let devices = self.devices(setup)?;
        let mut engine = Engine::boxed(self.engine_config(setup), devices);
        engine.set_min_multi_recv(setup.min_multi_recv);
        engine.set_remote_events(state.routes.counts_remote());
        engine.set_source_errors(self.caps & sys::FI_SOURCE_ERR != 0);
        if let Some(shared) = setup.shared_receives() {
            shared.attach(&self.cell, setup.av.as_ref())?;
            engine.bind_pool(Arc::clone(&shared.pool), self.cell.pool_user());
        }
        if let Some(av) = &setup.av {
            // Receives of a shared context serve only endpoints with the same vector.
            for ep in std::iter::once(self).chain(setup.srx.as_deref()) {
                ep.endpoint_mask.store(av.endpoint_mask(), Ordering::Relaxed);
            }
        }
        let publisher = Publisher::new(self.domain.params());
        state.install(engine, book, publisher);
        self.cell.publish(&mut state, INTERVAL);
        state.routes.set_reports(reports);
        if let Some(table) = setup.av.as_ref().and_then(|av| av.user_ids()) {
            state.routes.set_user_ids(table);
        }
        Ok(())
    }

    /// Introduces the endpoint to the objects that drive it. If that fails, the endpoint is as before enable.
    fn join(&self, setup: &Setup<D>) -> Result<(), Errno> {
        let cell = Arc::clone(&self.cell) as CellRef;
        if let Some(av) = &setup.av {
            av.attach(&cell);
        }
        let joined = self.domain.attach(&cell).and_then(|()| match self.domain.auto_progress() {
            Some(auto) => auto.join(&cell),
            None => Ok(()),
        });
        if let Err(errno) = joined {
            if let Some(av) = &setup.av {
                av.detach(&cell);
            }
            self.domain.detach(&cell);
            setup.shared_receives().inspect(|shared| shared.detach(&self.cell));
            self.cell.take_engine();
            return Err(errno);
        }
        if let Some(eq) = setup.eq.as_ref().filter(|_| self.has_events()) {
            eq.drive(Arc::clone(&self.cell) as _);
        }
        if self.ty == EpType::Msg {
            self.domain.connections().join(&cell);
        }
        self.place().inspect(|place| place.join(&self.cell));
        report::opened(&cell);
        if self.domain.is_recorded()
            && let (Some(name), Some(av)) = (self.cell.name(), &setup.av)
        {
            record::enabled(&name, &av.book());
        }
        flusher::join(&cell);
        // A thread that already sleeps on a queue or counter has not parked these devices.
        self.cell.state().routes.notify();
        Ok(())
    }

    fn devices(&self, setup: &mut Setup<D>) -> Result<Box<D>, Errno> {
        if let Some(devices) = setup.opened_from.take_devices() {
            return Ok(devices);
        }
        if let Some(place) = self.place() {
            return place.devices(&setup.network, setup.shm);
        }
        self.own_devices(setup)
    }

    #[inline(never)] // Keeps the configuration off the stacks of `enable` and of scalable endpoints.
    fn own_devices(&self, setup: &Setup<D>) -> Result<Box<D>, Errno> {
        // A connected endpoint calls its peer back by a full name.
        let open = self.ty != EpType::Msg && setup.format.is_open();
        let config = self.domain.devices_config(&setup.network, setup.local, open, setup.shm);
        D::open(&config).map_err(refused)
    }

    fn engine_config(&self, setup: &Setup<D>) -> Config {
        let params = self.domain.params();
        Config {
            inject_bytes: self.limits.inject_bytes,
            tx_depth: self.limits.tx_depth,
            rx_depth: self.limits.receives(),
            window_bytes: params.unexpected_window_bytes.max(self.ty.least_window_bytes()),
            // A datagram leaves at once or not at all.
            eager_bytes: if self.ty == EpType::Dgram { Some(self.limits.max_msg_bytes) } else { params.eager_bytes },
            max_msg_bytes: self.limits.max_msg_bytes as u64,
            max_strangers: max_strangers(params.max_unknown_peers),
            stranger_bytes: params.unknown_peers_bytes,
            matching: setup.matching,
            mr_cache: params.mr_cache_limits(),
            boards: params.coll_boards,
            maps: params.map && setup.maps,
            offers_regions: params.map,
            probe: Some(weft_os::accessible),
            role: self.ty.role(),
            ..Config::default()
        }
    }
}

/// The number of connected peers that no address vector knows: at most `asked`, and at most half of the process's
/// descriptors.
fn max_strangers(asked: usize) -> usize {
    let half = weft_os::descriptors::most().and_then(|limit| usize::try_from(limit / 2).ok());
    asked.min(half.unwrap_or(usize::MAX))
}
