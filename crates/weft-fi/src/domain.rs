//! Domains (fi_domain(3)): the common properties and resources of endpoints, queues, address vectors and
//! memory regions.
//!
//! Place in the data flow: `fi_domain` → [`open`]. Objects read the domain's properties when they are opened;
//! data paths do not involve the domain. Memory regions belong to the domain but are accessed through
//! endpoints, each of which has its own engine. The domain therefore passes every region to every endpoint
//! ([`Domain::add_region`]). An endpoint that is enabled later gets all existing regions
//! ([`Domain::attach`]).
//!
//! Invariants: the lock of the regions comes before that of an endpoint's engine, also of a closing
//! endpoint's. `close` returns -FI_EBUSY while any object of the domain is open.

mod instance;

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use weft_engine::Engine;
use weft_engine::api::Region;
use weft_engine::name::EpName;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::abi::{atomic, noop};
use crate::addr::Format;
use crate::cntr::Cntr;
use crate::collective::ops;
pub(crate) use crate::domain::instance::find;
use crate::endpoint::cell::{AnyCell, CellRef, EndpointCell};
use crate::endpoint::connection::Siblings;
use crate::endpoint::route::RegionCounters;
use crate::endpoint::{scalable, shared};
use crate::eq::Eq;
use crate::fabric::{Fabric, Instances};
use crate::host::Host;
use crate::info::hints::Hints;
use crate::info::network::Network;
use crate::memory;
use crate::observe::stats;
use crate::params::Params;
use crate::record;
use crate::sleep::lock::{Callers, Meter};
use crate::sleep::poll::Naps;
use crate::sleep::progress::AutoProgress;
use crate::sleep::{flusher, pollset};
use crate::trigger::WorkQueue;
use crate::{av, cntr, cq, endpoint, info, mr};

/// An open domain.
#[repr(C)]
pub(crate) struct Domain {
    head: Head<sys::fid_domain>,
    api_version: u32,
    caps: u64,
    /// Whether the domain was opened for endpoints of type FI_EP_MSG.
    connections: bool,
    threading: sys::fi_threading,
    /// Whether the client may open scalable endpoints.
    scalable: bool,
    mr_mode: c_int,
    av_type: sys::fi_av_type,
    format: Format,
    params: &'static Params,
    /// Whether the calls of its endpoints and queues are recorded.
    is_recorded: bool,
    /// The default network settings of endpoints.
    network: Network,
    auto: Option<Arc<AutoProgress>>,
    tables: Tables,
    meter: Arc<Meter>,
    naps: Arc<Naps>,
    /// Datagrams dropped by endpoints that are closed by now.
    dropped: AtomicU64,
    /// The programs that wait for counters.
    work: Arc<WorkQueue>,
    shared: Mutex<Shared>,
    /// The enabled endpoints of type FI_EP_MSG.
    connected: Arc<Siblings>,
    /// The queue bound by `fi_domain_bind`, and whether registrations are reported there (FI_REG_MR).
    eq: Mutex<Option<(Hold<Eq>, bool)>>,
    uses: Uses,
    fabric: Hold<Fabric>,
}

/// FI_KEY_NOTAVAIL: the result of fi_mr_key(3) if there is no key.
const KEY_NOT_AVAILABLE: u64 = u64::MAX;

/// The state shared by endpoints and regions.
#[derive(Default)]
struct Shared {
    cells: Vec<Weak<dyn AnyCell>>,
    regions: FxHashMap<u64, Registered>,
    /// Counters whose reading makes progress on every endpoint.
    drivers: Vec<Weak<Cntr>>,
    /// The engines of closing endpoints, which may still serve peers.
    closing: Vec<Arc<dyn Closing>>,
}

/// The engine of a closing endpoint, which still completes accepted operations.
trait Closing: Send + Sync {
    /// Makes a region inaccessible to peers.
    fn remove_region(&self, key: u64);
}

impl<D: Device> Closing for Mutex<Box<Engine<D>>> {
    fn remove_region(&self, key: u64) {
        self.lock().remove_region(key);
    }
}

/// A region that peers can access.
pub(crate) struct Registered {
    pub(crate) region: Region,
    pub(crate) counters: RegionCounters,
    /// The endpoint to which the region belongs (FI_MR_ENDPOINT). Without one it belongs to all endpoints of
    /// the domain.
    pub(crate) only: Option<Weak<dyn AnyCell>>,
    /// The authorization key of endpoints through which peers can access the region, if any.
    pub(crate) auth_key: Option<Vec<u8>>,
}

impl Registered {
    fn is_for(&self, cell: &CellRef) -> bool {
        self.only.as_ref().is_none_or(|only| std::ptr::addr_eq(only.as_ptr(), Arc::as_ptr(cell)))
            && self.auth_key.as_ref().is_none_or(|key| cell.has_auth_key(key))
    }
}

/// The operation tables of objects that reach the devices of endpoints and are not generic themselves.
pub(crate) struct Tables {
    pub(crate) cq: &'static sys::fi_ops_cq,
    pub(crate) recorded_cq: &'static sys::fi_ops_cq,
    pub(crate) cntr: &'static sys::fi_ops_cntr,
    pub(crate) poll: &'static sys::fi_ops_poll,
    pub(crate) mr: &'static sys::fi_ops,
}

impl Tables {
    /// The tables for endpoints on devices of type `D`.
    const fn of<D: Device>() -> Self {
        Self {
            cq: cq::ops::<D>(),
            recorded_cq: cq::recorded_ops::<D>(),
            cntr: cntr::ops::<D>(),
            poll: pollset::ops::<D>(),
            mr: mr::fid_ops::<D>(),
        }
    }
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open_domain`.
unsafe impl Object for Domain {
    type Fid = sys::fid_domain;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_DOMAIN];

    fn uses(&self) -> &Uses {
        &self.uses
    }

    fn closing(&self) -> Result<(), Errno> {
        OPEN.remove(std::ptr::from_ref(self) as usize);
        self.stop();
        Ok(())
    }
}

static OPEN: Instances = Instances::new();

/// A live thread never holds the list of threads for this long.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The progress threads of all domains, for clients that exit without closing them.
static THREADS: Mutex<Vec<Weak<AutoProgress>>> = Mutex::new(Vec::new());

/// Stops all threads of a host's domains.
pub(crate) fn stop_all(host: Option<&Host>) {
    // In a forked child, or in a signal handler, the thread that holds the lock may never continue.
    let of_host = |thread: &mut Weak<AutoProgress>| thread.upgrade().is_none_or(|thread| thread.is_of(host));
    let threads =
        THREADS.try_lock_for(LOCK_TIMEOUT).map(|mut threads| threads.extract_if(.., of_host).collect::<Vec<_>>());
    for thread in threads.into_iter().flatten() {
        if let Some(thread) = thread.upgrade() {
            thread.stop_at_end();
        }
    }
}

/// Implements `fi_domain`.
pub(crate) unsafe extern "C" fn open<D: Device>(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    domain: *mut *mut sys::fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are passed unchanged.
    unsafe { open2::<D>(fabric, info, domain, 0, context) }
}

/// Implements `fi_domain2`.
pub(crate) unsafe extern "C" fn open2<D: Device>(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    domain: *mut *mut sys::fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_domain", || {
        let place = object::place(domain)?;
        // The flags would request a peer domain, which is not supported.
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: the client's fabric.
        let fabric = unsafe { Hold::<Fabric>::of(fabric) }?;
        // SAFETY: the client's fi_info.
        let info = unsafe { Hints::read(info) }?.ok_or(Errno::INVAL)?;
        let object = open_domain::<D>(fabric, info.without_instances(), context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(object, place) })
    })
}

fn open_domain<D: Device>(fabric: Hold<Fabric>, info: Box<Hints>, context: *mut c_void) -> Result<Arc<Domain>, Errno> {
    let api_version = fabric.api_version();
    let params = Params::load();
    params.check()?;
    if params.raise_descriptors {
        weft_os::descriptors::allow_raising();
    }
    let network = Network::of_domain(api_version, &info)?;
    // The selection of fi_getinfo is repeated, because the client may have changed the structure. Bits of
    // mr_mode that the client has set or left describe how it will register, so they are kept.
    let requested_mode = info.domain.map_or(0, |attr| attr.mr_mode);
    let offer = info::offer::Offer::select(api_version, Some(&info), params, D::least_mailbox_bytes())?;
    let attr = &offer.domain;
    let connections = offer.ep.type_ == sys::FI_EP_MSG;
    let auto = if instance::is_automatic(&offer) {
        let spin = Duration::from_micros(params.progress_spin_us);
        let auto = AutoProgress::new(spin, params.progress_affinity)?;
        THREADS.lock().push(Arc::downgrade(&auto));
        Some(auto)
    } else {
        None
    };
    let fid = object::new_fid(sys::FI_CLASS_DOMAIN, context, fid_ops::<D>());
    let head = sys::fid_domain { fid, ops: object::table(domain_ops::<D>()), mr: object::table(&mr::OPS) };
    let work = Arc::new(WorkQueue::new());
    let domain = Arc::new(Domain {
        head: Head::new(head),
        api_version,
        caps: offer.caps,
        connections,
        threading: attr.threading,
        scalable: attr.max_ep_tx_ctx > 1,
        mr_mode: if attr.mr_mode == 0 { requested_mode } else { attr.mr_mode },
        av_type: attr.av_type,
        format: offer.format,
        network,
        params,
        is_recorded: record::begin(params),
        auto,
        tables: Tables::of::<D>(),
        meter: Arc::default(),
        naps: Arc::default(),
        dropped: AtomicU64::new(0),
        work,
        shared: Mutex::default(),
        connected: Arc::default(),
        eq: Mutex::new(None),
        uses: Uses::new(),
        fabric,
    });
    OPEN.add(Arc::as_ptr(&domain) as usize);
    Ok(domain)
}

/// The configuration of an endpoint's devices.
///
/// `local`: the address chosen by the client, if any. `open`: peers may connect with knowledge of the address
/// only. `shm`: shared memory may be used.
pub(crate) fn devices_config(
    params: &Params,
    network: &Network,
    local: Option<EpName>,
    open: bool,
    shm: bool,
) -> weft_nic::Config {
    let chosen = local.map(|name| name.socket());
    let job_key = network.auth_key.clone().or_else(|| params.job_key.bytes());
    weft_nic::Config {
        iface: params.iface.clone(),
        streams: params.tcp_streams,
        uring: params.coll_uring,
        listen: chosen,
        // With an explicit service, the user wants to be reachable by peers that know only the service.
        open: open || chosen.is_some_and(|socket| socket.port() != 0),
        job_key,
        traffic_class: network.traffic_class,
        encrypt: params.tcp_encrypt,
        shm: params.shm && shm,
        tcp: params.tcp,
        cma: params.cma,
        observe_unmap: params.mr_cache_monitor,
        connect_timeout_ms: params.connect_timeout_ms,
        connect_retry_ms: params.connect_retry_ms,
        resume_ms: params.tcp_resume_ms,
        shm_eager_bytes: params.shm_eager_bytes,
        tcp_eager_bytes: params.tcp_eager_bytes,
        ..weft_nic::Config::default()
    }
}

impl Domain {
    /// The API version that the client requested.
    pub(crate) const fn api_version(&self) -> u32 {
        self.api_version
    }

    /// The fabric.
    pub(crate) const fn fabric(&self) -> &Hold<Fabric> {
        &self.fabric
    }

    /// The capabilities of the `fi_info` with which the domain was opened.
    pub(crate) const fn caps(&self) -> u64 {
        self.caps
    }

    /// The registration mode: 0, FI_MR_BASIC, FI_MR_SCALABLE, or bits.
    pub(crate) const fn mr_mode(&self) -> c_int {
        self.mr_mode
    }

    /// The bits of [`Self::mr_mode`] (FI_MR_ENDPOINT and others), or 0 for the two other modes.
    pub(crate) fn mr_bits(&self) -> c_int {
        let whole = [sys::FI_MR_BASIC, sys::FI_MR_SCALABLE].map(u32::cast_signed);
        if whole.contains(&self.mr_mode) { 0 } else { self.mr_mode }
    }

    /// The type of address vectors for which the client specifies none.
    pub(crate) const fn av_type(&self) -> sys::fi_av_type {
        self.av_type
    }

    /// The format of addresses in address vectors.
    pub(crate) const fn format(&self) -> Format {
        self.format
    }

    /// The default network settings of endpoints.
    pub(crate) const fn network(&self) -> &Network {
        &self.network
    }

    /// The values of the variables.
    pub(crate) const fn params(&self) -> &'static Params {
        self.params
    }

    /// The operation tables of the domain's objects.
    pub(crate) const fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The thread for automatic progress, if there is one.
    pub(crate) const fn auto_progress(&self) -> Option<&Arc<AutoProgress>> {
        self.auto.as_ref()
    }

    /// The programs that wait for counters.
    pub(crate) const fn work(&self) -> &Arc<WorkQueue> {
        &self.work
    }

    /// The threads that call the data path of the domain's objects concurrently, except the progress thread.
    /// A thread that raises a counter may start triggered operations on an endpoint that another thread uses,
    /// and this may be the progress thread. Contexts of a scalable endpoint make progress on each other,
    /// independent of their queues. A counter of a region makes progress on every endpoint without sharing a
    /// completion structure with them, so FI_THREAD_COMPLETION lets another thread read it.
    ///
    /// With connections, event queues make progress on endpoints, too. No level below FI_THREAD_SAFE covers
    /// the readers of event queues.
    pub(crate) const fn callers(&self) -> Callers {
        let may_trigger = self.caps & sys::FI_TRIGGER != 0;
        let independent = self.caps & (sys::FI_TRIGGER | sys::FI_RMA_EVENT) == 0;
        match self.threading {
            _ if self.connections => Callers::Any,
            sys::FI_THREAD_DOMAIN if !may_trigger || self.auto.is_none() => Callers::One,
            sys::FI_THREAD_COMPLETION if independent && !self.scalable => Callers::One,
            _ => Callers::Any,
        }
    }

    /// Whether contexts of a scalable endpoint may make progress on each other. The exception: the client
    /// serializes only the calls on a context and its queues, and did not announce scalable endpoints.
    pub(crate) fn joins_contexts(&self) -> bool {
        self.threading != sys::FI_THREAD_COMPLETION || self.callers() == Callers::Any
    }

    /// Longest sleep in a read that finds nothing.
    pub(crate) const fn longest_nap(&self) -> Duration {
        Duration::from_micros(self.params.nap_us)
    }

    /// Counts the naps of readers of the domain's queues and counters.
    pub(crate) const fn naps(&self) -> &Arc<Naps> {
        &self.naps
    }

    /// Whether the calls of its endpoints and queues are recorded.
    pub(crate) const fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Counts the waits at the locks of the domain's objects.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Adds the dropped datagrams of a closing endpoint.
    pub(crate) fn count_dropped(&self, datagrams: u64) {
        self.dropped.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// The datagrams that the domain's endpoints have dropped.
    pub(crate) fn dropped(&self) -> u64 {
        let open: u64 = self.cells().iter().map(|cell| cell.dropped()).sum();
        open + self.dropped.load(Ordering::Relaxed)
    }

    /// The configuration of an endpoint's devices, as by [`devices_config`], with the flusher.
    pub(crate) fn devices_config(
        &self,
        network: &Network,
        local: Option<EpName>,
        open: bool,
        shm: bool,
    ) -> weft_nic::Config {
        let config = devices_config(self.params, network, local, open, shm);
        weft_nic::Config { on_unsent: Some(flusher::notify), ..config }
    }

    /// Adds an endpoint, which gets all current and future regions.
    pub(crate) fn attach(&self, cell: &CellRef) -> Result<(), Errno> {
        let mut shared = self.shared.lock();
        // Regions are independent of each other, so their order does not matter.
        for registered in shared.regions.values().filter(|registered| registered.is_for(cell)) {
            give_region(cell, registered)?;
        }
        shared.cells.push(Arc::downgrade(cell));
        for cntr in shared.drivers.iter().filter_map(Weak::upgrade) {
            add_driver(cell, &cntr);
        }
        Ok(())
    }

    /// With manual progress, lets reads of this counter make progress on all current and future endpoints.
    /// Any of them may contribute to the counter's value.
    pub(crate) fn drive(&self, cntr: &Hold<Cntr>) {
        if self.auto.is_some() {
            return;
        }
        let mut shared = self.shared.lock();
        if shared.drivers.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(cntr.arc()))) {
            return;
        }
        shared.drivers.retain(|known| known.strong_count() > 0);
        shared.drivers.push(Arc::downgrade(cntr.arc()));
        for cell in shared.cells.iter().filter_map(Weak::upgrade) {
            add_driver(&cell, cntr.arc());
        }
        // Threads that sleep on the counter have not parked these endpoints.
        cntr.notify();
    }

    /// The enabled endpoints of type FI_EP_MSG.
    pub(crate) const fn connections(&self) -> &Arc<Siblings> {
        &self.connected
    }

    /// The enabled endpoints.
    pub(crate) fn cells(&self) -> Vec<CellRef> {
        self.shared.lock().cells.iter().filter_map(Weak::upgrade).collect()
    }

    /// Removes an endpoint that is closing.
    pub(crate) fn detach(&self, cell: &CellRef) {
        remove_cell(&mut self.shared.lock(), &**cell);
    }

    /// Removes an enabled endpoint that is closing, and transfers its engine to the caller. Regions that are
    /// closed meanwhile are removed from this engine until [`Domain::closed`].
    pub(crate) fn retire<D: Device>(&self, cell: &EndpointCell<D>) -> Option<Arc<Mutex<Box<Engine<D>>>>> {
        let mut shared = self.shared.lock();
        remove_cell(&mut shared, cell);
        let engine = Arc::new(Mutex::new(cell.take_engine()?));
        shared.closing.push(Arc::clone(&engine) as _);
        Some(engine)
    }

    /// Records that a closing endpoint's engine makes no more progress.
    pub(crate) fn closed<D: Device>(&self, engine: &Arc<Mutex<Box<Engine<D>>>>) {
        self.shared.lock().closing.retain(|known| !std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(engine)));
    }

    /// A random key that no region has (FI_MR_PROV_KEY).
    pub(crate) fn free_key(&self) -> Result<u64, Errno> {
        let shared = self.shared.lock();
        loop {
            let key = u64::from_ne_bytes(weft_nic::handshake::random()?);
            if key != KEY_NOT_AVAILABLE && !shared.regions.contains_key(&key) {
                return Ok(key);
            }
        }
    }

    /// Makes a region accessible to peers. Returns -FI_ENOKEY if the key is in use.
    pub(crate) fn add_region(&self, registered: Registered) -> Result<(), Errno> {
        let mut shared = self.shared.lock();
        let key = registered.region.key;
        if shared.regions.contains_key(&key) {
            log::info!(
                "fi_mr_reg: key {key:#x} is in use; choose another, or leave the choice to weft (FI_MR_PROV_KEY)"
            );
            return Err(Errno::NOKEY);
        }
        let cells: Vec<CellRef> = shared.cells.iter().filter_map(Weak::upgrade).collect();
        let concerned = || cells.iter().filter(|cell| registered.is_for(cell));
        for (done, cell) in concerned().enumerate() {
            if let Err(errno) = give_region(cell, &registered) {
                concerned().take(done).for_each(|cell| cell.remove_region(key));
                return Err(errno);
            }
        }
        shared.regions.insert(key, registered);
        Ok(())
    }

    /// Changes the counters of a region. Returns -FI_ENOKEY if there is no such region.
    pub(crate) fn change_region_counters(
        &self,
        key: u64,
        change: impl FnOnce(&mut RegionCounters),
    ) -> Result<(), Errno> {
        let mut shared = self.shared.lock();
        let cells: Vec<CellRef> = shared.cells.iter().filter_map(Weak::upgrade).collect();
        let registered = shared.regions.get_mut(&key).ok_or(Errno::NOKEY)?;
        change(&mut registered.counters);
        for cell in cells.iter().filter(|cell| registered.is_for(cell)) {
            give_counters(cell, key, registered.counters.clone());
        }
        Ok(())
    }

    /// Makes a region inaccessible to peers. On return no operation accesses its memory.
    pub(crate) fn remove_region(&self, key: u64) {
        let mut shared = self.shared.lock();
        if let Some(registered) = shared.regions.remove(&key) {
            for cell in shared.cells.iter().filter_map(Weak::upgrade).filter(|cell| registered.is_for(cell)) {
                cell.remove_region(key);
            }
            for engine in &shared.closing {
                engine.remove_region(key);
            }
        }
    }

    /// The queue to which registrations are reported, if the client requested that.
    pub(crate) fn registration_events(&self) -> Option<Hold<Eq>> {
        self.eq.lock().as_ref().filter(|(_, registrations)| *registrations).map(|(eq, _)| eq.clone())
    }

    fn stop(&self) {
        if let Some(auto) = &self.auto {
            auto.stop();
            THREADS.lock().retain(|thread| !std::ptr::eq(thread.as_ptr(), Arc::as_ptr(auto)));
        }
    }
}

/// Removes an endpoint, which gets no more regions.
fn remove_cell(shared: &mut Shared, cell: &dyn AnyCell) {
    shared.cells.retain(|known| !std::ptr::addr_eq(known.as_ptr(), cell));
}

/// Lets reads of the counter make progress on the endpoint until it closes.
fn add_driver(cell: &CellRef, cntr: &Arc<Cntr>) {
    cntr.sources().add(Arc::clone(cell));
    cell.add_driver(cntr);
}

/// Passes a region and its counters to an endpoint.
fn give_region(cell: &CellRef, registered: &Registered) -> Result<(), Errno> {
    cell.add_region(registered.region.clone())?;
    if registered.counters.write.is_some() || registered.counters.read.is_some() {
        give_counters(cell, registered.region.key, registered.counters.clone());
    }
    Ok(())
}

/// Passes the counters of a region to an endpoint. A read of these counters drives the endpoint from now on.
fn give_counters(cell: &CellRef, key: u64, counters: RegionCounters) {
    for cntr in [&counters.write, &counters.read].into_iter().flatten() {
        cntr.sources().add(Arc::clone(cell));
        cntr.notify();
    }
    cell.set_region_counters(key, counters);
}

const fn fid_ops<D: Device>() -> &'static sys::fi_ops {
    const {
        &sys::fi_ops {
            close: Some(close),
            bind: Some(bind),
            control: Some(control::<D>),
            ops_open: Some(ops_open),
            ..noop::FID
        }
    }
}

/// The operations, with the function that later versions of libfabric call without a check of the table's
/// size.
#[repr(C)]
struct DomainOps {
    base: sys::fi_ops_domain,
    xpu_ctx: unsafe extern "C" fn(*mut sys::fid_domain, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int,
}

const fn domain_ops<D: Device>() -> &'static sys::fi_ops_domain {
    &const {
        &DomainOps {
            base: sys::fi_ops_domain {
                size: size_of::<DomainOps>(),
                av_open: Some(av::open),
                cq_open: Some(cq::open),
                endpoint: Some(endpoint::open::<D>),
                scalable_ep: Some(scalable::open::<D>),
                cntr_open: Some(cntr::open),
                poll_open: Some(pollset::open),
                stx_ctx: Some(shared::open_stx),
                srx_ctx: Some(shared::open_srx::<D>),
                query_atomic: Some(atomic::query),
                query_collective: Some(ops::query),
                endpoint2: Some(endpoint2::<D>),
            },
            xpu_ctx,
        }
    }
    .base
}

unsafe extern "C" fn xpu_ctx(
    _domain: *mut sys::fid_domain,
    _attr: *mut c_void,
    _ctx: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    Errno::NOSYS.code()
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(domain)", || {
        // SAFETY: the client's domain.
        unsafe { object::close::<Domain>(fid) }.map(|()| 0)
    })
}

unsafe extern "C" fn endpoint2<D: Device>(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    ep: *mut *mut sys::fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // The flags would request a peer endpoint, which is not supported.
    if flags != 0 {
        return Errno::BADFLAGS.code();
    }
    // SAFETY: the arguments are passed unchanged.
    unsafe { endpoint::open::<D>(domain, info, ep, context) }
}

/// Implements `fi_domain_bind` with an event queue.
unsafe extern "C" fn bind(fid: *mut sys::fid, bfid: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_domain_bind", || {
        // SAFETY: the client's domain.
        let domain = unsafe { object::borrow_fid::<Domain>(fid) }?;
        if flags & !sys::FI_REG_MR != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: an object of the client. Objects of another class than event queues are refused.
        let eq = unsafe { Hold::<Eq>::of_fid(bfid) }?;
        let mut bound = domain.eq.lock();
        if bound.is_some() {
            return Err(Errno::INVAL);
        }
        *bound = Some((eq, flags & sys::FI_REG_MR != 0));
        Ok(0)
    })
}

/// Implements `fi_control`: deferred work, and the raw keys of peers, which equal the keys (fi_mr_map_raw,
/// fi_mr_unmap_key).
unsafe extern "C" fn control<D: Device>(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(domain)", || match command.cast_unsigned() {
        sys::FI_MAP_RAW_MR => {
            let map = NonNull::new(arg.cast::<sys::fi_mr_map_raw>()).ok_or(Errno::INVAL)?;
            // SAFETY: the client's argument for this command.
            let map = unsafe { map.read() };
            if map.key_size != size_of::<u64>() || map.raw_key.is_null() || map.key.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the client's raw key, whose length was checked above.
            let key = unsafe { map.raw_key.cast::<u64>().read_unaligned() };
            // SAFETY: the client's variable for the key.
            unsafe { map.key.write(key) };
            Ok(0)
        }
        sys::FI_UNMAP_KEY => Ok(0),
        command @ (sys::FI_QUEUE_WORK | sys::FI_CANCEL_WORK | sys::FI_FLUSH_WORK) => {
            // SAFETY: the client's domain.
            let domain = unsafe { object::borrow_fid::<Domain>(fid) }?;
            // SAFETY: the client's argument for this command.
            unsafe { domain.control_work::<D>(command, arg) }.map(|()| 0)
        }
        _ => Err(Errno::NOSYS),
    })
}

/// Implements `fi_open_ops`.
unsafe extern "C" fn ops_open(
    fid: *mut sys::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    object::guard("fi_open_ops(domain)", || {
        // SAFETY: the client's domain.
        unsafe { object::borrow_fid::<Domain>(fid) }?;
        // SAFETY: the client's string and variable.
        unsafe { object::open_ops(name, flags, ops, &[(stats::NAME, stats::ops()), (memory::NAME, memory::ops())]) }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A thread that holds the list may never continue, if the code that ends the program has interrupted it.
    #[test]
    fn the_end_of_the_program_does_not_wait_for_the_thread_list() {
        let (over, is_over) = mpsc::channel();
        let held = THREADS.lock();
        let end = std::thread::spawn(move || {
            stop_all(None);
            over.send(())
        });
        let ended = is_over.recv_timeout(10 * LOCK_TIMEOUT);
        drop(held);
        assert!(matches!(end.join(), Ok(Ok(()))) && ended.is_ok());
    }
}
