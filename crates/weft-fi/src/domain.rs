//! Domains (fi_domain(3)): what endpoints, queues, address vectors and memory regions have in common.
//!
//! Place in the data flow: `fi_domain` → [`open`]. A domain is asked for its properties when its objects are
//! opened; on data paths it does not appear. Memory regions belong to the domain but are reached through endpoints,
//! each of which has an engine of its own: the domain hands every region to every endpoint
//! ([`Domain::add_region`]), and an endpoint that is enabled later all that there are ([`Domain::attach`]).
//!
//! Invariants: lock order is regions, then an endpoint's engine, also that of one that is closing. `close`
//! answers -FI_EBUSY while any object of the domain is open.

mod instance;

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use weft_engine::api::Region;
use weft_engine::name::EpName;
use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::abi::{atomic, noop};
use crate::addr::Format;
use crate::cntr::Cntr;
pub(crate) use crate::domain::instance::find;
use crate::endpoint::cell::{CellRef, EndpointCell, Eng};
use crate::endpoint::route::RegionCounters;
use crate::endpoint::{scalable, shared};
use crate::eq::Eq;
use crate::fabric::{Fabric, Instances};
use crate::host::Host;
use crate::info::hints::Hints;
use crate::info::network::Network;
use crate::observe::stats;
use crate::params::Params;
use crate::sleep::lock::{Callers, Meter};
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
    /// Opened for endpoints of type FI_EP_MSG.
    connections: bool,
    threading: sys::fi_threading,
    /// There may be scalable endpoints.
    scalable: bool,
    mr_mode: c_int,
    av_type: sys::fi_av_type,
    format: Format,
    params: &'static Params,
    /// What endpoints ask of the network by default.
    network: Network,
    auto: Option<Arc<AutoProgress>>,
    meter: Arc<Meter>,
    /// Datagrams that endpoints have dropped which are closed by now.
    dropped: AtomicU64,
    /// What waits for counters.
    work: Arc<WorkQueue>,
    shared: Mutex<Shared>,
    /// Bound by `fi_domain_bind`, and whether registrations are reported there (FI_REG_MR).
    eq: Mutex<Option<(Hold<Eq>, bool)>>,
    uses: Uses,
    fabric: Hold<Fabric>,
}

/// FI_KEY_NOTAVAIL: what fi_mr_key(3) answers where there is no key.
const KEY_NOT_AVAILABLE: u64 = u64::MAX;

/// What endpoints and regions share.
#[derive(Default)]
struct Shared {
    cells: Vec<Weak<EndpointCell>>,
    regions: FxHashMap<u64, Registered>,
    /// Counters that drive every endpoint.
    drivers: Vec<Weak<Cntr>>,
    /// Of endpoints that are closing: peers may still be served there.
    closing: Vec<Closing>,
}

/// An engine that its endpoint has given up, and which still finishes what was accepted.
pub(crate) type Closing = Arc<Mutex<Box<Eng>>>;

/// A region that peers can reach.
pub(crate) struct Registered {
    pub(crate) region: Region,
    pub(crate) counters: RegionCounters,
    /// The endpoint to which it belongs (FI_MR_ENDPOINT); all of the domain's otherwise.
    pub(crate) only: Option<Weak<EndpointCell>>,
    /// Peers reach it through endpoints with this authorization key, if any.
    pub(crate) auth_key: Option<Vec<u8>>,
}

impl Registered {
    fn is_for(&self, cell: &CellRef) -> bool {
        self.only.as_ref().is_none_or(|only| std::ptr::eq(only.as_ptr(), Arc::as_ptr(cell)))
            && self.auth_key.as_ref().is_none_or(|key| cell.auth_key.as_ref() == Some(key))
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

/// Nobody holds the list of threads for so long who goes on.
const STUCK: Duration = Duration::from_millis(100);

/// The threads of all domains, for a client that ends without closing them.
static THREADS: Mutex<Vec<Weak<AutoProgress>>> = Mutex::new(Vec::new());

/// Ends every thread of a host's domains.
pub(crate) fn stop_all(host: Option<&Host>) {
    // In a forked child, or in a handler of a signal, whoever holds it may never go on.
    let of_host = |thread: &mut Weak<AutoProgress>| thread.upgrade().is_none_or(|thread| thread.is_of(host));
    let threads = THREADS.try_lock_for(STUCK).map(|mut threads| threads.extract_if(.., of_host).collect::<Vec<_>>());
    for thread in threads.into_iter().flatten() {
        if let Some(thread) = thread.upgrade() {
            thread.stop_at_end();
        }
    }
}

/// `fi_domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    domain: *mut *mut sys::fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the same arguments.
    unsafe { open2(fabric, info, domain, 0, context) }
}

/// `fi_domain2`.
pub(crate) unsafe extern "C" fn open2(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    domain: *mut *mut sys::fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_domain", || {
        let place = object::place(domain)?;
        // Flags would ask for a peer domain, which is not offered.
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: the client's fabric.
        let fabric = unsafe { Hold::<Fabric>::of(fabric) }?;
        // SAFETY: the client's fi_info.
        let info = unsafe { Hints::read(info) }?.ok_or(Errno::INVAL)?;
        let object = open_domain(fabric, info.without_instances(), context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(object, place) })
    })
}

fn open_domain(fabric: Hold<Fabric>, info: Box<Hints>, context: *mut c_void) -> Result<Arc<Domain>, Errno> {
    let api_version = fabric.api_version();
    let params = Params::load();
    params.check()?;
    let network = Network::of_domain(api_version, &info)?;
    // The same decision as in fi_getinfo: a client may have changed what it was given. Bits of mr_mode that it set
    // or left stand for how it will register, so they are kept.
    let asked_mode = info.domain.map_or(0, |attr| attr.mr_mode);
    let offer = info::offer::Offer::select(api_version, Some(&info), params)?;
    let attr = &offer.domain;
    let connections = offer.ep.type_ == sys::FI_EP_MSG;
    let auto = if instance::is_automatic(&offer) {
        let spin = Duration::from_micros(params.progress_spin_us);
        let auto = AutoProgress::new(spin, params.progress_affinity.as_deref())?;
        THREADS.lock().push(Arc::downgrade(&auto));
        Some(auto)
    } else {
        None
    };
    let fid = object::new_fid(sys::FI_CLASS_DOMAIN, context, &FID_OPS);
    let head = sys::fid_domain { fid, ops: object::table(&DOMAIN_OPS.base), mr: object::table(&mr::OPS) };
    let work = Arc::new(WorkQueue::new());
    let domain = Arc::new(Domain {
        head: Head::new(head),
        api_version,
        caps: offer.caps,
        connections,
        threading: attr.threading,
        scalable: attr.max_ep_tx_ctx > 1,
        mr_mode: if attr.mr_mode == 0 { asked_mode } else { attr.mr_mode },
        av_type: attr.av_type,
        format: offer.format,
        network,
        params,
        auto,
        meter: Arc::default(),
        dropped: AtomicU64::new(0),
        work,
        shared: Mutex::default(),
        eq: Mutex::new(None),
        uses: Uses::new(),
        fabric,
    });
    OPEN.add(Arc::as_ptr(&domain) as usize);
    Ok(domain)
}

/// How an endpoint sets up its devices.
///
/// `local`: the address that the client chose, if it did. `open`: peers need no more than that address. `shm`:
/// shared memory may be used.
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
        listen: chosen,
        // An explicit service is the user's choice to be reachable by those who know only that.
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
    /// The API version that the client asked for.
    pub(crate) const fn api_version(&self) -> u32 {
        self.api_version
    }

    /// The fabric.
    pub(crate) const fn fabric(&self) -> &Hold<Fabric> {
        &self.fabric
    }

    /// The capabilities that the `fi_info` had with which the domain was opened.
    pub(crate) const fn caps(&self) -> u64 {
        self.caps
    }

    /// The registration mode in force: 0, FI_MR_BASIC, FI_MR_SCALABLE, or bits.
    pub(crate) const fn mr_mode(&self) -> c_int {
        self.mr_mode
    }

    /// The bits of [`Self::mr_mode`] (FI_MR_ENDPOINT and others), if it is made of any.
    pub(crate) fn mr_bits(&self) -> c_int {
        let whole = [sys::FI_MR_BASIC, sys::FI_MR_SCALABLE].map(u32::cast_signed);
        if whole.contains(&self.mr_mode) { 0 } else { self.mr_mode }
    }

    /// The type of address vectors that leave it open.
    pub(crate) const fn av_type(&self) -> sys::fi_av_type {
        self.av_type
    }

    /// In which format addresses are inserted into address vectors.
    pub(crate) const fn format(&self) -> Format {
        self.format
    }

    /// What endpoints ask of the network by default.
    pub(crate) const fn network(&self) -> &Network {
        &self.network
    }

    /// The variables in force.
    pub(crate) const fn params(&self) -> &'static Params {
        self.params
    }

    /// The thread for automatic progress, if there is one.
    pub(crate) const fn auto_progress(&self) -> Option<&Arc<AutoProgress>> {
        self.auto.as_ref()
    }

    /// What waits for counters.
    pub(crate) const fn work(&self) -> &Arc<WorkQueue> {
        &self.work
    }

    /// Who calls the data path of the domain's objects, the progress thread apart. Where operations are
    /// triggered, whoever raises a counter, that thread included, may start one on an endpoint that the
    /// client uses in another thread; contexts of a scalable endpoint drive each other, whatever their queues
    /// are. A counter of a region drives every endpoint, and shares no completion structure with them:
    /// FI_THREAD_COMPLETION lets another thread read it.
    ///
    /// Where there are connections, event queues drive endpoints, too, and no level below FI_THREAD_SAFE
    /// covers who reads those.
    pub(crate) const fn callers(&self) -> Callers {
        let triggers = self.caps & sys::FI_TRIGGER != 0;
        let apart = self.caps & (sys::FI_TRIGGER | sys::FI_RMA_EVENT) == 0;
        match self.threading {
            _ if self.connections => Callers::Any,
            sys::FI_THREAD_DOMAIN if !triggers || self.auto.is_none() => Callers::One,
            sys::FI_THREAD_COMPLETION if apart && !self.scalable => Callers::One,
            _ => Callers::Any,
        }
    }

    /// Whether contexts of a scalable endpoint may drive each other: always, but where the client serializes
    /// no more than the calls on one context and its queues, and has not said that there would be such
    /// endpoints.
    pub(crate) fn joins_contexts(&self) -> bool {
        self.threading != sys::FI_THREAD_COMPLETION || self.callers() == Callers::Any
    }

    /// What counts the waits at the locks of the domain's objects.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// An endpoint that is closing has dropped so many datagrams.
    pub(crate) fn count_dropped(&self, datagrams: u64) {
        self.dropped.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// Datagrams that were dropped here.
    pub(crate) fn dropped(&self) -> u64 {
        let open: u64 = self.cells().iter().map(|cell| cell.control().engine.as_deref().map_or(0, Eng::dropped)).sum();
        open + self.dropped.load(Ordering::Relaxed)
    }

    /// How an endpoint of this domain sets up its devices, as [`devices_config`].
    pub(crate) fn devices_config(
        &self,
        network: &Network,
        local: Option<EpName>,
        open: bool,
        shm: bool,
    ) -> weft_nic::Config {
        let config = devices_config(self.params, network, local, open, shm);
        weft_nic::Config { on_unsent: Some(flusher::call), ..config }
    }

    /// An endpoint is ready: it gets every region, now and later.
    pub(crate) fn attach(&self, cell: &CellRef) -> Result<(), Errno> {
        let mut shared = self.shared.lock();
        // Regions are independent of each other, so the order does not matter.
        for registered in shared.regions.values().filter(|registered| registered.is_for(cell)) {
            hand_out(cell, registered)?;
        }
        shared.cells.push(Arc::downgrade(cell));
        for cntr in shared.drivers.iter().filter_map(Weak::upgrade) {
            drive_by(cell, &cntr);
        }
        Ok(())
    }

    /// With manual progress, reading this counter drives every endpoint from now on, those to come included: any of
    /// them may bring about what it counts.
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
            drive_by(&cell, cntr.arc());
        }
        // Who sleeps there already has not parked these.
        cntr.notify();
    }

    /// The endpoints that are ready.
    pub(crate) fn cells(&self) -> Vec<CellRef> {
        self.shared.lock().cells.iter().filter_map(Weak::upgrade).collect()
    }

    /// An endpoint is closing.
    pub(crate) fn detach(&self, cell: &CellRef) {
        forget(&mut self.shared.lock(), cell);
    }

    /// The same for one that works. Its engine is the caller's now; regions that are closed meanwhile leave
    /// it, too, until [`Domain::closed`].
    pub(crate) fn retire(&self, cell: &CellRef) -> Option<Closing> {
        let mut shared = self.shared.lock();
        forget(&mut shared, cell);
        let engine = Arc::new(Mutex::new(cell.control().engine.take()?));
        shared.closing.push(Arc::clone(&engine));
        Some(engine)
    }

    /// The engine will make no more progress.
    pub(crate) fn closed(&self, engine: &Closing) {
        self.shared.lock().closing.retain(|known| !Arc::ptr_eq(known, engine));
    }

    /// A key that no region has and that nobody can guess (FI_MR_PROV_KEY).
    pub(crate) fn free_key(&self) -> Result<u64, Errno> {
        let shared = self.shared.lock();
        loop {
            let key = u64::from_ne_bytes(weft_nic::handshake::random()?);
            if key != KEY_NOT_AVAILABLE && !shared.regions.contains_key(&key) {
                return Ok(key);
            }
        }
    }

    /// Peers may reach a region from now on. -FI_ENOKEY if the key is taken.
    pub(crate) fn add_region(&self, registered: Registered) -> Result<(), Errno> {
        let mut shared = self.shared.lock();
        let key = registered.region.key;
        if shared.regions.contains_key(&key) {
            log::info!(
                "fi_mr_reg: key {key:#x} is in use; ask for another, or leave the choice to weft (FI_MR_PROV_KEY)"
            );
            return Err(Errno::NOKEY);
        }
        let cells: Vec<CellRef> = shared.cells.iter().filter_map(Weak::upgrade).collect();
        let concerned = || cells.iter().filter(|cell| registered.is_for(cell));
        for (done, cell) in concerned().enumerate() {
            if let Err(errno) = hand_out(cell, &registered) {
                concerned().take(done).for_each(|cell| cell.remove_region(key));
                return Err(errno);
            }
        }
        shared.regions.insert(key, registered);
        Ok(())
    }

    /// Changes what raises counters when peers reach a region. -FI_ENOKEY if there is no such region.
    pub(crate) fn count_region(&self, key: u64, change: impl FnOnce(&mut RegionCounters)) -> Result<(), Errno> {
        let mut shared = self.shared.lock();
        let cells: Vec<CellRef> = shared.cells.iter().filter_map(Weak::upgrade).collect();
        let registered = shared.regions.get_mut(&key).ok_or(Errno::NOKEY)?;
        change(&mut registered.counters);
        for cell in cells.iter().filter(|cell| registered.is_for(cell)) {
            cell.set_region_counters(key, registered.counters.clone());
        }
        Ok(())
    }

    /// Peers no longer reach a region; on return nothing touches its memory.
    pub(crate) fn remove_region(&self, key: u64) {
        let mut shared = self.shared.lock();
        if let Some(registered) = shared.regions.remove(&key) {
            for cell in shared.cells.iter().filter_map(Weak::upgrade).filter(|cell| registered.is_for(cell)) {
                cell.remove_region(key);
            }
            for engine in &shared.closing {
                engine.lock().remove_region(key);
            }
        }
    }

    /// Where registrations are reported, if the client wants that.
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

/// The endpoint gets no more regions.
fn forget(shared: &mut Shared, cell: &CellRef) {
    shared.cells.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(cell)));
}

/// Reading the counter drives the endpoint from now on, until it closes.
fn drive_by(cell: &CellRef, cntr: &Arc<Cntr>) {
    cntr.sources().add(cell);
    cell.control().routes.add_driver(cntr);
}

/// Gives one endpoint one region, with its counters.
fn hand_out(cell: &CellRef, registered: &Registered) -> Result<(), Errno> {
    cell.add_region(registered.region.clone())?;
    if registered.counters.write.is_some() || registered.counters.read.is_some() {
        cell.set_region_counters(registered.region.key, registered.counters.clone());
    }
    Ok(())
}

static FID_OPS: sys::fi_ops =
    sys::fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ops_open: Some(ops_open), ..noop::FID };

/// The operations, with the slot that later versions of libfabric call without looking whether it is there.
#[repr(C)]
struct DomainOps {
    base: sys::fi_ops_domain,
    xpu_ctx: unsafe extern "C" fn(*mut sys::fid_domain, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int,
}

static DOMAIN_OPS: DomainOps = DomainOps {
    base: sys::fi_ops_domain {
        size: size_of::<DomainOps>(),
        av_open: Some(av::open),
        cq_open: Some(cq::open),
        endpoint: Some(endpoint::open),
        scalable_ep: Some(scalable::open),
        cntr_open: Some(cntr::open),
        poll_open: Some(pollset::open),
        stx_ctx: Some(shared::open_stx),
        srx_ctx: Some(shared::open_srx),
        query_atomic: Some(atomic::query),
        endpoint2: Some(endpoint2),
        ..noop::DOMAIN
    },
    xpu_ctx,
};

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

unsafe extern "C" fn endpoint2(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    ep: *mut *mut sys::fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // Flags would ask for a peer endpoint, which is not offered.
    if flags != 0 {
        return Errno::BADFLAGS.code();
    }
    // SAFETY: the same arguments.
    unsafe { endpoint::open(domain, info, ep, context) }
}

/// `fi_domain_bind`: an event queue.
unsafe extern "C" fn bind(fid: *mut sys::fid, bfid: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_domain_bind", || {
        // SAFETY: the client's domain.
        let domain = unsafe { object::borrow_fid::<Domain>(fid) }?;
        if flags & !sys::FI_REG_MR != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: an object of the client's; another class than that of event queues is refused.
        let eq = unsafe { Hold::<Eq>::of_fid(bfid) }?;
        let mut bound = domain.eq.lock();
        if bound.is_some() {
            return Err(Errno::INVAL);
        }
        *bound = Some((eq, flags & sys::FI_REG_MR != 0));
        Ok(0)
    })
}

/// `fi_control`: deferred work; raw keys of peers, which are the keys themselves (fi_mr_map_raw, fi_mr_unmap_key).
unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(domain)", || match command.cast_unsigned() {
        sys::FI_MAP_RAW_MR => {
            let map = NonNull::new(arg.cast::<sys::fi_mr_map_raw>()).ok_or(Errno::INVAL)?;
            // SAFETY: the client's argument for this command.
            let map = unsafe { map.read() };
            if map.key_size != size_of::<u64>() || map.raw_key.is_null() || map.key.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the client's raw key, of the length that was just checked.
            let key = unsafe { map.raw_key.cast::<u64>().read_unaligned() };
            // SAFETY: the client's place for the key.
            unsafe { map.key.write(key) };
            Ok(0)
        }
        sys::FI_UNMAP_KEY => Ok(0),
        command @ (sys::FI_QUEUE_WORK | sys::FI_CANCEL_WORK | sys::FI_FLUSH_WORK) => {
            // SAFETY: the client's domain.
            let domain = unsafe { object::borrow_fid::<Domain>(fid) }?;
            // SAFETY: the client's argument for this command.
            unsafe { domain.control_work(command, arg) }.map(|()| 0)
        }
        _ => Err(Errno::NOSYS),
    })
}

/// `fi_open_ops`.
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
        // SAFETY: the client's string and place.
        unsafe { object::open_ops(name, flags, ops, &[(stats::NAME, stats::ops)]) }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Whoever holds the list of threads may never go on, if it was interrupted by what ends the program.
    #[test]
    fn the_end_of_the_program_does_not_wait_for_the_list() {
        let (over, is_over) = mpsc::channel();
        let held = THREADS.lock();
        let end = std::thread::spawn(move || {
            stop_all(None);
            over.send(())
        });
        let ended = is_over.recv_timeout(10 * STUCK);
        drop(held);
        assert!(matches!(end.join(), Ok(Ok(()))) && ended.is_ok());
    }
}
