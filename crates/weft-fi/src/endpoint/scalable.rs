//! Scalable endpoints (fi_endpoint(3), "SCALABLE ENDPOINTS"): one name for many transmit and receive contexts.
//!
//! Place in the data flow: `fi_scalable_ep` makes a [`Sep`]. `fi_tx_context` and `fi_rx_context` make [`Ep`]s from it,
//! each with an engine of its own: contexts share no lock and no queue.
//!
//! The names of the contexts make them one endpoint (weft-engine, `name`). The receive contexts have the same
//! endpoint id except for an index, and listen on successive ports. A peer that knows the name of the first
//! one, which is the endpoint's name, can therefore reach each. Transmit contexts have the same id, so that
//! receivers know their endpoint. A transmit context and the receive context of the same index drive each
//! other, whichever queue is read. Peers can reach all receive contexts from the first enable of the endpoint
//! or of a context.
//!
//! Errors: -FI_EBUSY for a context that is open, -FI_ENOAV for an enable before an address vector is bound.
//! -FI_EINVAL if the domain was not opened for several contexts, and its threading level forbids that
//! contexts drive each other.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weft_engine::name::{EpName, FIRST_TX_CONTEXT, MAX_CONTEXTS};
use weft_fi_sys as sys;
use weft_nic::{Device, Identity, NicError};

use super::cell::{AnyCell, EndpointCell};
use super::entry::{EpOps, export_xpu};
use super::{Ep, Kind, Limits, enable, opening};
use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::addr::Format;
use crate::av::Av;
use crate::cm;
use crate::cntr::Cntr;
use crate::domain::Domain;
use crate::info::hints::Hints;
use crate::info::network::Network;
use crate::info::{EpType, caps, offer, order};

/// Most attempts to find successive ports that are free.
const PORT_SEARCHES: u32 = 64;

/// A scalable endpoint.
#[repr(C)]
pub(crate) struct Sep<D: Device> {
    head: Head<sys::fid_ep>,
    format: Format,
    network: Network,
    /// The numbers of transmit and receive contexts.
    counts: [u8; 2],
    state: Mutex<ScalableState<D>>,
    uses: Uses,
    /// The last field, so that the domain is released after all others.
    domain: Hold<Domain>,
}

struct ScalableState<D: Device> {
    /// The attributes with which contexts are opened.
    info: Box<Hints>,
    av: Option<Hold<Av>>,
    /// The local address that the client chose.
    local: Option<EpName>,
    /// The open transmit and receive contexts, as bits by index.
    open: [u64; 2],
    /// The enabled transmit and receive contexts, by index.
    cells: [Vec<Weak<EndpointCell<D>>>; 2],
    started: Option<Started<D>>,
}

/// From now on, reads of the objects that are bound to `reader` drive `driven` as well.
fn drive_by<D: Device>(driven: &Arc<EndpointCell<D>>, reader: &Arc<EndpointCell<D>>) {
    let (queues, counters) = reader.control().routes.bound();
    queues.iter().for_each(|cq| cq.sources().add(Arc::clone(driven) as _));
    counters.iter().for_each(|cntr| cntr.sources().add(Arc::clone(driven) as _));
    let routes = &mut driven.control().routes;
    queues.iter().for_each(|cq| routes.add_driving_queue(cq));
    counters.iter().for_each(|cntr| routes.add_driving_counter(cntr));
}

/// The part of the state that exists after the first enable.
struct Started<D> {
    identity: Identity,
    /// The name of the first receive context.
    name: EpName,
    /// Whether peers may connect that know only the listening address, and not the full name.
    open: bool,
    /// The devices of receive contexts that are not enabled yet. Peers may connect to them already.
    devices: Vec<Option<Box<D>>>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open`.
unsafe impl<D: Device> Object for Sep<D> {
    type Fid = sys::fid_ep;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_SEP];

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// A context's place in its endpoint.
pub(crate) struct Place<D: Device> {
    sep: Hold<Sep<D>>,
    kind: Kind,
    index: u8,
}

impl<D: Device> Place<D> {
    /// The endpoint's address vector.
    pub(super) fn av(&self) -> Option<Hold<Av>> {
        self.sep.state.lock().av.clone()
    }

    /// The endpoint's name, after the first enable.
    pub(super) fn name(&self) -> Option<EpName> {
        self.sep.name()
    }

    /// The context's devices.
    pub(super) fn devices(&self, network: &Network, shm: bool) -> Result<Box<D>, Errno> {
        let mut state = self.sep.state.lock();
        let started = self.sep.start(&mut state)?;
        let ready = started.devices.get_mut(usize::from(self.index)).filter(|_| self.kind == Kind::Receive);
        match ready.and_then(Option::take) {
            Some(devices) => Ok(devices),
            None => self.sep.context_devices(network, started, self.kind, self.index, shm).map_err(enable::refused),
        }
    }
}

impl<D: Device> Place<D> {
    /// The enabled partners of this context: the contexts of the other kind with the same index. If there are fewer
    /// contexts of one kind, several contexts share a partner.
    fn partners(&self) -> Vec<Arc<EndpointCell<D>>> {
        let cells = &self.sep.state.lock().cells;
        let (few, index) = (cells[0].len().min(cells[1].len()), usize::from(self.index));
        let beside = cells[1 - side(self.kind)].iter().enumerate().filter(|&(other, _)| other % few == index % few);
        beside.filter_map(|(_, cell)| cell.upgrade()).collect()
    }

    /// Has a counter that is bound to the context drive the partners as well, if the context is enabled. Otherwise
    /// [`Self::join`] does so later.
    pub(super) fn add_counter(&self, cell: &Arc<EndpointCell<D>>, cntr: &Hold<Cntr>) {
        let mine = self.sep.state.lock().cells[side(self.kind)][usize::from(self.index)].upgrade();
        if mine.is_none_or(|mine| !Arc::ptr_eq(&mine, cell)) {
            return;
        }
        for partner in self.partners() {
            cntr.sources().add(Arc::clone(&partner) as _);
            partner.add_driver(cntr.arc());
        }
    }

    /// Joins an enabled context with its partners: each drives the other, as if they were one endpoint. A client that
    /// sends by a context and waits for the answer at its partner reads the queue of the partner only.
    pub(super) fn join(&self, cell: &Arc<EndpointCell<D>>) {
        self.sep.state.lock().cells[side(self.kind)][usize::from(self.index)] = Arc::downgrade(cell);
        for partner in self.partners() {
            drive_by(cell, &partner);
            drive_by(&partner, cell);
        }
    }
}

impl<D: Device> Drop for Place<D> {
    fn drop(&mut self) {
        self.sep.state.lock().open[side(self.kind)] &= !(1 << self.index);
    }
}

/// The index of a kind in pairs of transmit and receive.
fn side(kind: Kind) -> usize {
    usize::from(kind == Kind::Receive)
}

impl<D: Device> Sep<D> {
    /// The name, or before the first enable the local address that the client chose.
    fn name(&self) -> Option<EpName> {
        let state = self.state.lock();
        state.started.as_ref().map(|started| started.name).or(state.local)
    }

    /// Opens the devices of all receive contexts at the first enable, so that peers can reach each.
    fn start<'a>(&self, state: &'a mut ScalableState<D>) -> Result<&'a mut Started<D>, Errno> {
        if state.av.is_none() {
            return Err(Errno::NOAV);
        }
        let started = match state.started.take() {
            Some(started) => started,
            None => self.listen(state.local).map_err(enable::refused)?,
        };
        Ok(state.started.insert(started))
    }

    /// Opens the devices of all receive contexts, on successive ports.
    fn listen(&self, local: Option<EpName>) -> Result<Started<D>, NicError> {
        let chosen = local.is_some_and(|name| name.socket().port() != 0);
        let mut searches = 0;
        loop {
            let identity = Identity { context: Some(0), ..Identity::random()? };
            let mut config = self.domain.devices_config(&self.network, local, self.format.is_open(), true);
            config.identity = Some(identity);
            let first = D::open(&config)?;
            let mut started = Started { identity, name: first.name(), open: config.open, devices: vec![Some(first)] };
            searches += 1;
            match self.open_others(&mut started) {
                Ok(()) => return Ok(started),
                // One of the ports is in use.
                Err(NicError::Listen { .. }) if !chosen && searches < PORT_SEARCHES => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the devices of all receive contexts but the first.
    fn open_others(&self, started: &mut Started<D>) -> Result<(), NicError> {
        for index in 1..self.counts[side(Kind::Receive)] {
            let devices = self.context_devices(&self.network, started, Kind::Receive, index, true)?;
            started.devices.push(Some(devices));
        }
        Ok(())
    }

    /// Opens the devices of one context.
    fn context_devices(
        &self,
        network: &Network,
        started: &Started<D>,
        kind: Kind,
        index: u8,
        shm: bool,
    ) -> Result<Box<D>, NicError> {
        let base = started.name;
        let mut config = self.domain.devices_config(network, None, false, shm && base.shm());
        config.tcp &= base.tcp();
        let expected = if kind == Kind::Receive {
            let name = base.context(index).ok_or(NicError::NoDevice)?;
            config.listen = (base.socket().port() != 0).then(|| name.socket());
            config.open = started.open;
            config.identity = Some(Identity { context: Some(index), ..started.identity });
            Some(name)
        } else {
            // Peers do not connect to a transmit context. It announces its endpoint's listening address, for
            // peers that know only that address.
            config.listen = base.tcp().then(|| SocketAddr::new(base.socket().ip(), 0));
            config.named_socket = Some(base.socket());
            config.identity = Some(Identity { context: Some(FIRST_TX_CONTEXT + index), ..started.identity });
            None
        };
        let devices = D::open(&config)?;
        // Peers derive the name from the first one's, and could not reach another name.
        if expected.is_some_and(|name| name != devices.name()) {
            log::warn!(
                "context {index} of a scalable endpoint cannot be reached by a name that follows from the first one's (a device is missing, or \
                 its port is in use); see the lines before, or choose another service"
            );
            return Err(NicError::NoDevice);
        }
        Ok(devices)
    }
}

impl<D: Device> Sep<D> {
    /// Opens a context that is not open yet.
    fn context(
        self: &Arc<Self>,
        kind: Kind,
        index: c_int,
        info: &Hints,
        context: *mut c_void,
    ) -> Result<Arc<Ep<D>>, Errno> {
        let index = u8::try_from(index).ok().filter(|&index| index < self.counts[side(kind)]).ok_or(Errno::INVAL)?;
        {
            let open = &mut self.state.lock().open[side(kind)];
            if *open & (1 << index) != 0 {
                return Err(Errno::BUSY);
            }
            *open |= 1 << index;
        }
        let place = Place { sep: Hold::new(Arc::clone(self)), kind, index };
        opening::open(self.domain.clone(), info, kind, Some(place), context)
    }

    fn bind(&self, av: Hold<Av>) -> Result<(), Errno> {
        if !av.domain().same(&self.domain) {
            return Err(Errno::DOMAIN);
        }
        let mut state = self.state.lock();
        if state.started.is_some() {
            return Err(Errno::OPBADSTATE);
        }
        if state.av.is_some() {
            return Err(Errno::INVAL);
        }
        state.av = Some(av);
        Ok(())
    }
}

impl<D: Device> Sep<D> {
    const FID_OPS: &sys::fi_ops =
        &sys::fi_ops { close: Some(close::<D>), bind: Some(bind::<D>), control: Some(control::<D>), ..noop::FID };
    const EP_OPS: &EpOps = &EpOps {
        base: sys::fi_ops_ep {
            size: size_of::<EpOps>(),
            tx_ctx: Some(tx_context::<D>),
            rx_ctx: Some(rx_context::<D>),
            ..noop::EP
        },
        export_xpu,
    };
    const CM_OPS: &sys::fi_ops_cm =
        &sys::fi_ops_cm { setname: Some(setname::<D>), getname: Some(getname::<D>), ..noop::CM };
}

static MSG: sys::fi_ops_msg = noop::MSG;
static RMA: sys::fi_ops_rma = noop::RMA;
static TAGGED: sys::fi_ops_tagged = noop::TAGGED;
static ATOMIC: sys::fi_ops_atomic = noop::ATOMIC;

/// Opens a scalable endpoint: `fi_scalable_ep`.
pub(crate) unsafe extern "C" fn open<D: Device>(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    out: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_scalable_ep", || {
        let place = object::place(out)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: null, or the client's fi_info, which the host allocated.
        let mut info = unsafe { Hints::read(info) }?.ok_or(Errno::INVAL)?;
        let attr = info.ep.as_mut().ok_or(Errno::INVAL)?;
        if EpType::from_raw(attr.type_) != Some(EpType::Rdm) {
            return Err(Errno::NOSYS);
        }
        if !domain.joins_contexts() {
            log::info!(
                "fi_scalable_ep: under FI_THREAD_COMPLETION the domain must be opened with an fi_info that asks for several contexts"
            );
            return Err(Errno::INVAL);
        }
        let count = |wanted: usize| u8::try_from(wanted.max(1)).ok().filter(|&count| count <= MAX_CONTEXTS);
        let counts = [count(attr.tx_ctx_cnt), count(attr.rx_ctx_cnt)].map(|count| count.ok_or(Errno::INVAL));
        let counts = [counts[0]?, counts[1]?];
        // Each context is opened with the same attributes.
        (attr.tx_ctx_cnt, attr.rx_ctx_cnt) = (1, 1);
        let (format, local) = opening::local_address(&info)?;
        let network = domain.network().of_endpoint(domain.api_version(), &info)?;
        info.src = None;
        let head = sys::fid_ep {
            fid: object::new_fid(sys::FI_CLASS_SEP, context, Sep::<D>::FID_OPS),
            ops: object::table(&Sep::<D>::EP_OPS.base),
            cm: object::table(Sep::<D>::CM_OPS),
            msg: object::table(&MSG),
            rma: object::table(&RMA),
            tagged: object::table(&TAGGED),
            atomic: object::table(&ATOMIC),
            collective: object::table(Ep::<D>::COLLECTIVE_OPS),
        };
        let cells = counts.map(|count| (0..count).map(|_| Weak::new()).collect());
        let state = ScalableState { info, av: None, local, open: [0; 2], cells, started: None };
        let sep = Sep::<D> {
            head: Head::new(head),
            format,
            network,
            counts,
            state: Mutex::new(state),
            uses: Uses::new(),
            domain,
        };
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(Arc::new(sep), place) })
    })
}

unsafe extern "C" fn close<D: Device>(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(sep)", || {
        // SAFETY: the client closes its endpoint.
        unsafe { object::close::<Sep<D>>(fid) }.map(|()| 0)
    })
}

/// Binds an address vector: `fi_scalable_ep_bind`.
unsafe extern "C" fn bind<D: Device>(fid: *mut sys::fid, what: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_scalable_ep_bind", || {
        // SAFETY: the client's endpoint.
        let sep = unsafe { object::borrow_fid::<Sep<D>>(fid) }?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: an object of the client. Classes other than that of address vectors are refused.
        sep.bind(unsafe { Hold::of_fid(what) }?).map(|()| 0)
    })
}

unsafe extern "C" fn control<D: Device>(fid: *mut sys::fid, command: c_int, _arg: *mut c_void) -> c_int {
    object::guard("fi_control(sep)", || {
        // SAFETY: the client's endpoint.
        let sep = unsafe { object::borrow_fid::<Sep<D>>(fid) }?;
        match command.cast_unsigned() {
            sys::FI_ENABLE => sep.start(&mut sep.state.lock()).map(|_| 0),
            _ => Err(Errno::NOSYS),
        }
    })
}

impl<D: Device> Ep<D> {
    /// The attributes of a transmit context, for the requested ones.
    fn tx_attr(&self, asked: &sys::fi_tx_attr) -> sys::fi_tx_attr {
        let Limits { iov, rma_iov, inject_bytes, tx_depth, .. } = self.limits;
        sys::fi_tx_attr {
            caps: caps::of_tx(self.caps),
            mode: 0,
            msg_order: order::FREE | asked.msg_order,
            comp_order: 0,
            inject_size: inject_bytes,
            size: tx_depth,
            iov_limit: iov,
            rma_iov_limit: rma_iov,
            ..*asked
        }
    }

    /// The attributes of a receive context, for the requested ones.
    fn rx_attr(&self, asked: &sys::fi_rx_attr) -> sys::fi_rx_attr {
        sys::fi_rx_attr {
            caps: caps::of_rx(self.caps),
            mode: 0,
            msg_order: order::FREE | asked.msg_order,
            comp_order: 0,
            size: self.limits.rx_depth,
            iov_limit: self.limits.iov,
            ..*asked
        }
    }
}

/// The first API version in which `fi_tx_attr` has its last field, `tclass`.
const VERSION_WITH_TCLASS: u32 = sys::version(1, 9);

/// The size in bytes of the `fi_tx_attr` of a client of this API version.
const fn tx_attr_bytes(api: u32) -> usize {
    if api >= VERSION_WITH_TCLASS {
        size_of::<sys::fi_tx_attr>()
    } else {
        std::mem::offset_of!(sys::fi_tx_attr, tclass)
    }
}

/// The requested attributes of a transmit context. Fields that the client's structure lacks are the endpoint's.
///
/// # Safety
/// `attr` is null or the attributes of a client of this API version.
unsafe fn read_tx_attr(
    attr: *const sys::fi_tx_attr,
    api: u32,
    endpoint: Option<sys::fi_tx_attr>,
) -> Option<sys::fi_tx_attr> {
    let attr = NonNull::new(attr.cast_mut().cast::<u8>())?;
    let mut copy = endpoint.unwrap_or(offer::NO_TX);
    // SAFETY: the client's structure has that many bytes, and any bytes are a valid `fi_tx_attr`.
    unsafe { attr.copy_to_nonoverlapping(NonNull::from(&mut copy).cast(), tx_attr_bytes(api)) };
    Some(copy)
}

unsafe extern "C" fn tx_context<D: Device>(
    sep: *mut sys::fid_ep,
    index: c_int,
    attr: *mut sys::fi_tx_attr,
    out: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_tx_context", || {
        let place = object::place(out)?;
        // SAFETY: the client's endpoint.
        let sep = unsafe { object::share::<Sep<D>>(sep) }?;
        let mut info = sep.state.lock().info.clone();
        let api = sep.domain.api_version();
        // SAFETY: null, or the client's attributes.
        if let Some(attr) = unsafe { read_tx_attr(attr, api, info.tx) } {
            info.caps = caps::of_context(info.caps, attr.caps);
            info.tx = Some(attr);
        }
        let context = sep.context(Kind::Transmit, index, &info, context)?;
        if let Some(asked) = info.tx.filter(|_| !attr.is_null()) {
            // SAFETY: the client's attributes, with the length of its API version.
            unsafe { object::give_known(&context.tx_attr(&asked), attr, tx_attr_bytes(api)) }?;
        }
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(context, place) })
    })
}

unsafe extern "C" fn rx_context<D: Device>(
    sep: *mut sys::fid_ep,
    index: c_int,
    attr: *mut sys::fi_rx_attr,
    out: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_rx_context", || {
        let place = object::place(out)?;
        // SAFETY: the client's endpoint.
        let sep = unsafe { object::share::<Sep<D>>(sep) }?;
        let mut info = sep.state.lock().info.clone();
        // SAFETY: null, or the client's attributes.
        if let Some(attr) = unsafe { attr.as_ref() } {
            info.caps = caps::of_context(info.caps, attr.caps);
            info.rx = Some(*attr);
        }
        let context = sep.context(Kind::Receive, index, &info, context)?;
        if let (Some(asked), Some(attr)) = (info.rx, NonNull::new(attr)) {
            // SAFETY: the client's attributes.
            unsafe { attr.write(context.rx_attr(&asked)) };
        }
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(context, place) })
    })
}

unsafe extern "C" fn getname<D: Device>(fid: *mut sys::fid, addr: *mut c_void, len: *mut usize) -> c_int {
    object::guard("fi_getname", || {
        // SAFETY: an endpoint of the client.
        let sep = unsafe { object::borrow_fid::<Sep<D>>(fid) }?;
        let name = sep.format.encode(&sep.name().ok_or(Errno::OPBADSTATE)?)?;
        // SAFETY: the client's buffer and its length.
        unsafe { cm::copy_out(&name, addr, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn setname<D: Device>(fid: *mut sys::fid, addr: *mut c_void, len: usize) -> c_int {
    object::guard("fi_setname", || {
        // SAFETY: an endpoint of the client.
        let sep = unsafe { object::borrow_fid::<Sep<D>>(fid) }?;
        // SAFETY: the client's address of that length.
        let bytes = unsafe { cm::bytes_of(addr, len) }?;
        let mut state = sep.state.lock();
        if state.started.is_some() {
            return Err(Errno::OPBADSTATE);
        }
        state.local = Some(opening::decode_local(sep.format, bytes)?);
        Ok(0)
    })
}
