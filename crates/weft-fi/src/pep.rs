//! Passive endpoints (fi_endpoint(3), fi_cm(3)), which listen for connection requests, and the requests
//! themselves (`fi_info.handle` of FI_CONNREQ).
//!
//! Place in the data flow: `fi_passive_ep` → [`Pep`]. `fi_listen` gives its [`Listener`] an engine. Reads of
//! the event queue make progress on that engine ([`crate::eq::drivers`]), and it reports requests to the
//! queue. `fi_endpoint` with a request's handle makes the endpoint that accepts by connecting back
//! ([`crate::endpoint::connection`]).
//!
//! Invariants: handles from clients are looked up and never dereferenced. An answered request keeps the
//! listener's devices alive until the connection is established, even if the passive endpoint is closed. The
//! caller would take the end of the devices for a rejection.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use weft_engine::api::Config;
use weft_engine::name::EpName;
use weft_engine::{ConnEvent, Engine, Role};
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::addr::Format;
use crate::cm;
use crate::domain::devices_config;
use crate::endpoint::cell::Sleep;
use crate::endpoint::close::finish;
use crate::endpoint::enable::refused;
use crate::endpoint::opening::decode_local;
use crate::endpoint::options::give_number;
use crate::eq::Eq;
use crate::eq::drivers::Driver;
use crate::fabric::{Fabric, Instances};
use crate::host::{self, Info};
use crate::info::EpType;
use crate::info::hints::Hints;
use crate::info::network::Network;
use crate::params::Params;
use crate::sleep::wait::Waker;

/// Default number of requests that wait for an answer (FI_BACKLOG).
const BACKLOG: usize = 1024;

/// A passive endpoint.
#[repr(C)]
pub(crate) struct Pep<D: Device> {
    head: Head<sys::fid_pep>,
    listener: Arc<Listener<D>>,
    setup: Mutex<Setup<D>>,
    params: &'static Params,
    network: Network,
    uses: Uses,
    fabric: Hold<Fabric>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open`.
unsafe impl<D: Device> Object for Pep<D> {
    type Fid = sys::fid_pep;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_PEP];

    fn uses(&self) -> &Uses {
        &self.uses
    }

    fn closing(&self) -> Result<(), Errno> {
        OPEN.remove(std::ptr::from_ref(self).addr());
        if let Some(eq) = self.setup.lock().eq.take() {
            eq.drivers().remove(&self.listener);
        }
        *self.listener.reports.lock() = None;
        for call in REQUESTS.lock().extract_if(.., |call| call.is_of(&self.listener)) {
            // An endpoint may have been opened for it.
            call.answered.store(true, Ordering::Release);
        }
        if let Some(engine) = &mut *self.listener.engine.lock() {
            engine.stop_listening();
        }
        Ok(())
    }

    fn abandon(&self) {
        if let Some(mut engine) = self.listener.engine.try_lock() {
            *engine = None;
        }
    }
}

/// The state that may change before listening.
struct Setup<D> {
    /// The address that the client chose.
    local: Option<EpName>,
    name: Option<EpName>,
    /// Created early to determine the address.
    devices: Option<Box<D>>,
    eq: Option<Hold<Eq>>,
    backlog: usize,
    listening: bool,
}

/// The open passive endpoints.
static OPEN: Instances = Instances::new();
/// The requests that clients have not answered.
static REQUESTS: Mutex<Vec<Arc<Request>>> = Mutex::new(Vec::new());

/// The listening part of a passive endpoint. Requests keep it alive.
pub(crate) struct Listener<D: Device> {
    me: Weak<Self>,
    engine: Mutex<Option<Box<Engine<D>>>>,
    /// The number of sleepers that depend on parked devices. Changed with the engine locked.
    sleepers: AtomicUsize,
    reports: Mutex<Option<Reports>>,
    /// The client's `fi_info`, which is copied for each request.
    template: Mutex<Info>,
    format: Format,
    close_timeout: Duration,
}

/// The destination of reported requests.
struct Reports {
    eq: Hold<Eq>,
    /// The address of the passive endpoint.
    fid: usize,
}

/// A connection request.
#[repr(C)]
pub(crate) struct Request {
    head: Head<sys::fid>,
    listener: Arc<dyn Answers>,
    number: u64,
    /// The name of the caller.
    pub(crate) peer: EpName,
    /// The address at which the request arrived.
    pub(crate) listens_at: EpName,
    answered: AtomicBool,
}

impl Request {
    /// The handle by which clients refer to the request.
    fn handle(&self) -> usize {
        self.head.get().expose_provenance()
    }

    /// Marks the request as answered. Fails if it was answered before.
    fn mark_answered(&self) -> Result<(), Errno> {
        REQUESTS.lock().retain(|call| !std::ptr::eq(Arc::as_ptr(call), self));
        if self.answered.swap(true, Ordering::AcqRel) { Err(Errno::OPBADSTATE) } else { Ok(()) }
    }

    /// Accepts the request: an endpoint of this process connects back.
    pub(crate) fn answer(&self) -> Result<(), Errno> {
        self.mark_answered()?;
        self.listener.accept(self.number);
        Ok(())
    }

    /// Rejects an accepted request: the endpoint that connects back has failed or is closed. The caller is
    /// notified.
    pub(crate) fn abandon(&self) {
        self.listener.abandon(self.number);
    }

    fn reject(&self, data: &[u8]) -> Result<(), Errno> {
        self.mark_answered()?;
        self.listener.reject(self.number, data)
    }

    fn is_of<D: Device>(&self, listener: &Arc<Listener<D>>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.listener), Arc::as_ptr(listener))
    }
}

/// A [`Listener`], whatever its device is, as its requests need it.
trait Answers: Send + Sync {
    /// An endpoint of this process connects back.
    fn accept(&self, call: u64);
    /// The endpoint that connects back has failed or is closed.
    fn abandon(&self, call: u64);
    /// The request is refused.
    fn reject(&self, call: u64, data: &[u8]) -> Result<(), Errno>;
}

impl<D: Device> Answers for Listener<D> {
    fn accept(&self, call: u64) {
        if let Some(engine) = &mut *self.engine.lock() {
            engine.answered(call);
        }
    }

    fn abandon(&self, call: u64) {
        if let Some(engine) = &mut *self.engine.lock() {
            engine.abandon(call);
        }
    }

    fn reject(&self, call: u64, data: &[u8]) -> Result<(), Errno> {
        match &mut *self.engine.lock() {
            Some(engine) => Ok(engine.reject(call, data)?),
            None => Ok(()),
        }
    }
}

/// The request with this handle.
pub(crate) fn request(handle: usize) -> Option<Arc<Request>> {
    REQUESTS.lock().iter().find(|call| call.handle() == handle).cloned()
}

/// Takes the devices and the address of a passive endpoint that does not listen, for another endpoint.
pub(crate) fn take_devices<D: Device>(handle: usize) -> Result<(Option<Box<D>>, Option<EpName>), Errno> {
    if !OPEN.contains(handle) {
        log::info!(
            "fi_endpoint: the handle is neither a pending connection request (its caller may have gone) nor an open passive endpoint; pass the handle \
             of an fi_info unchanged"
        );
        return Err(Errno::INVAL);
    }
    // SAFETY: an open weft object, which the client does not close during the call.
    let pep = unsafe { object::borrow_fid::<Pep<D>>(std::ptr::with_exposed_provenance_mut(handle)) }?;
    let mut setup = pep.setup.lock();
    if setup.listening {
        return Err(Errno::BUSY);
    }
    Ok((setup.devices.take(), setup.local))
}

impl<D: Device> Drop for Listener<D> {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.get_mut().take() {
            finish(&Mutex::new(engine), self.close_timeout, |engine| engine.completions().clear(), |_| {});
        }
    }
}

impl<D: Device> Listener<D> {
    /// Makes one round of progress. Returns 0 if nothing happened.
    fn round(&self, engine: &mut Engine<D>) -> usize {
        let done = engine.progress();
        self.report(engine);
        done
    }

    /// Notifies sleepers after a poll by another thread, which has ended the parking and may make no further
    /// poll.
    fn notify_sleepers(&self) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.reports.lock().as_ref().inspect(|reports| reports.eq.notify());
        }
    }

    /// Reports requests to the event queue.
    #[inline(never)]
    fn report(&self, engine: &mut Engine<D>) {
        engine.completions().clear();
        let Some(me) = self.me.upgrade() else { return };
        let reports = self.reports.lock();
        for event in engine.take_connection_events() {
            let ConnEvent::Request { call, peer, data } = event else { continue };
            let head = object::new_fid(sys::FI_CLASS_CONNREQ, std::ptr::null_mut(), &REQUEST_OPS);
            let request = Arc::new(Request {
                head: Head::new(head),
                listener: Arc::clone(&me) as _,
                number: call,
                peer,
                listens_at: engine.name(),
                answered: AtomicBool::new(false),
            });
            let info = reports.as_ref().and_then(|reports| Some((reports, self.describe(&request)?)));
            let Some((Reports { eq, fid }, info)) = info else {
                // There is no event queue, or no memory.
                let _ = engine.reject(call, &[]);
                continue;
            };
            REQUESTS.lock().push(request);
            eq.report_request(*fid, info, &data);
        }
    }

    /// The `fi_info` for opening the endpoint that accepts the request.
    fn describe(&self, request: &Request) -> Option<Info> {
        let template = self.template.lock();
        let info = template.copy()?;
        // SAFETY: a fresh structure that no other thread has seen.
        let out = unsafe { &mut *info.as_ptr() };
        let (src, dest) = (self.format.encode(&request.listens_at).ok()?, self.format.encode(&request.peer).ok()?);
        // SAFETY: the addresses in the host's structure were allocated by the C library.
        unsafe { host::set_address(&mut out.src_addr, &mut out.src_addrlen, &src) }?;
        // SAFETY: as above.
        unsafe { host::set_address(&mut out.dest_addr, &mut out.dest_addrlen, &dest) }?;
        out.handle = request.head.get();
        Some(info)
    }
}

impl<D: Device> Driver for Listener<D> {
    fn progress(&self) -> usize {
        let mut engine = self.engine.lock();
        let Some(engine) = &mut *engine else { return 0 };
        let done = self.round(engine);
        if !(done == 0 && self.sleepers.load(Ordering::Relaxed) > 0 && engine.nic_mut().park()) {
            self.notify_sleepers();
        }
        done
    }

    fn park(&self, waker: &Waker, _sleep: Sleep) -> bool {
        let mut engine = self.engine.lock();
        if let Some(engine) = &mut *engine {
            let parked =
                self.round(engine) == 0 && waker.watch(engine.nic().wait_fd()).is_ok() && engine.nic_mut().park();
            if !parked {
                self.notify_sleepers();
                return false;
            }
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn wake(&self, _sleep: Sleep) {
        let mut engine = self.engine.lock();
        if self.sleepers.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(engine) = &mut *engine
        {
            engine.nic_mut().wake();
        }
    }

    fn notify_progress_thread(&self) -> bool {
        false
    }
}

/// Implements `fi_passive_ep`.
pub(crate) unsafe extern "C" fn open<D: Device>(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    pep: *mut *mut sys::fid_pep,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_passive_ep", || {
        let place = object::place(pep)?;
        // SAFETY: the client's fabric.
        let fabric = unsafe { Hold::<Fabric>::of(fabric) }?;
        // SAFETY: null, or the client's fi_info, which the host allocated.
        let hints = unsafe { Hints::read(info) }?.ok_or(Errno::INVAL)?;
        // SAFETY: as above.
        let template = unsafe { host::current().ok_or(Errno::OTHER)?.copy_info(info) }.ok_or(Errno::NOMEM)?;
        let object = open_passive::<D>(fabric, &hints, template, context)?;
        OPEN.add(Arc::as_ptr(&object).expose_provenance());
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(object, place) })
    })
}

fn open_passive<D: Device>(
    fabric: Hold<Fabric>,
    hints: &Hints,
    template: Info,
    context: *mut c_void,
) -> Result<Arc<Pep<D>>, Errno> {
    if hints.ep.and_then(|attr| EpType::from_raw(attr.type_)) != Some(EpType::Msg) {
        log::info!("fi_passive_ep: only endpoints of type FI_EP_MSG listen; request that type");
        return Err(Errno::INVAL);
    }
    let format = Format::from_raw(hints.addr_format).ok_or(Errno::INVAL)?;
    let local = hints.src.as_deref().map(|bytes| decode_local(format, bytes)).transpose()?;
    let params = Params::load();
    params.check()?;
    let api = fabric.api_version();
    let head = sys::fid_pep {
        fid: object::new_fid(sys::FI_CLASS_PEP, context, Pep::<D>::FID_OPS),
        ops: object::table(Pep::<D>::EP_OPS),
        cm: object::table(Pep::<D>::CM_OPS),
    };
    let listener = Arc::new_cyclic(|me| Listener {
        me: me.clone(),
        engine: Mutex::new(None),
        sleepers: AtomicUsize::new(0),
        reports: Mutex::new(None),
        template: Mutex::new(template),
        format,
        close_timeout: Duration::from_millis(params.close_timeout_ms),
    });
    let setup = Setup { local, name: None, devices: None, eq: None, backlog: BACKLOG, listening: false };
    Ok(Arc::new(Pep {
        head: Head::new(head),
        listener,
        setup: Mutex::new(setup),
        network: Network::of_domain(api, hints)?.of_endpoint(api, hints)?,
        params,
        uses: Uses::new(),
        fabric,
    }))
}

impl<D: Device> Pep<D> {
    /// Creates the devices, which determine the address.
    fn create_devices(&self, setup: &mut Setup<D>) -> Result<(), Errno> {
        if setup.devices.is_none() {
            let config = devices_config(self.params, &self.network, setup.local, true, true);
            let devices = D::open(&config).map_err(refused)?;
            setup.name = Some(weft_engine::nic::Nic::name(&*devices));
            setup.devices = Some(devices);
        }
        Ok(())
    }

    fn set_name(&self, bytes: &[u8]) -> Result<(), Errno> {
        let mut setup = self.setup.lock();
        if setup.listening {
            return Err(Errno::OPBADSTATE);
        }
        setup.devices = None;
        setup.local = Some(decode_local(self.listener.format, bytes)?);
        self.create_devices(&mut setup)?;
        // An endpoint that takes the address over gets the port, too.
        setup.local = setup.name.map(|name| EpName::service(name.socket()));
        Ok(())
    }

    fn own_address(&self) -> Result<Vec<u8>, Errno> {
        let setup = self.setup.lock();
        self.listener.format.encode(&setup.name.or(setup.local).ok_or(Errno::OPBADSTATE)?)
    }

    fn listen(&self) -> Result<(), Errno> {
        let mut setup = self.setup.lock();
        if setup.listening {
            return Err(Errno::OPBADSTATE);
        }
        let eq = setup.eq.clone().ok_or(Errno::NOEQ)?;
        self.create_devices(&mut setup)?;
        let devices = setup.devices.take().ok_or(Errno::OPBADSTATE)?;
        let config = Config {
            tx_depth: 0,
            rx_depth: 0,
            window_bytes: 0,
            role: Role::Listener(setup.backlog),
            ..Config::default()
        };
        *self.listener.engine.lock() = Some(Engine::boxed(config, devices));
        *self.listener.reports.lock() = Some(Reports { eq: eq.clone(), fid: std::ptr::from_ref(self).addr() });
        eq.drive(Arc::clone(&self.listener) as _);
        setup.listening = true;
        Ok(())
    }

    fn set_backlog(&self, calls: usize) {
        self.setup.lock().backlog = calls;
        if let Some(engine) = &mut *self.listener.engine.lock() {
            engine.set_backlog(calls);
        }
    }

    fn bind_eq(&self, eq: Hold<Eq>) -> Result<(), Errno> {
        let mut setup = self.setup.lock();
        if setup.eq.is_some() || !eq.fabric().same(&self.fabric) {
            return Err(Errno::INVAL);
        }
        setup.eq = Some(eq);
        Ok(())
    }
}

/// Requests have no operations that clients could call.
static REQUEST_OPS: sys::fi_ops = noop::FID;

impl<D: Device> Pep<D> {
    const FID_OPS: &sys::fi_ops =
        &sys::fi_ops { close: Some(close::<D>), bind: Some(bind::<D>), control: Some(control::<D>), ..noop::FID };
    const EP_OPS: &sys::fi_ops_ep = &sys::fi_ops_ep { getopt: Some(getopt::<D>), ..noop::EP };
    const CM_OPS: &sys::fi_ops_cm = &sys::fi_ops_cm {
        setname: Some(setname::<D>),
        getname: Some(getname::<D>),
        listen: Some(listen::<D>),
        reject: Some(reject::<D>),
        ..noop::CM
    };
}

unsafe extern "C" fn close<D: Device>(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(pep)", || {
        // SAFETY: the client closes its endpoint.
        unsafe { object::close::<Pep<D>>(fid) }.map(|()| 0)
    })
}

unsafe extern "C" fn bind<D: Device>(fid: *mut sys::fid, bfid: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_pep_bind", || {
        // SAFETY: the client's endpoint.
        let pep = unsafe { object::borrow_fid::<Pep<D>>(fid) }?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: an object of the client. Objects of another class than event queues are refused.
        pep.bind_eq(unsafe { Hold::<Eq>::of_fid(bfid) }?).map(|()| 0)
    })
}

unsafe extern "C" fn control<D: Device>(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(pep)", || {
        // SAFETY: the client's endpoint.
        let pep = unsafe { object::borrow_fid::<Pep<D>>(fid) }?;
        if command.cast_unsigned() != sys::FI_BACKLOG {
            return Err(Errno::NOSYS);
        }
        let calls = NonNull::new(arg.cast::<c_int>()).ok_or(Errno::INVAL)?;
        // SAFETY: the client's number.
        let calls = unsafe { calls.read() };
        pep.set_backlog(usize::try_from(calls).map_err(|_| Errno::INVAL)?);
        Ok(0)
    })
}

unsafe extern "C" fn getopt<D: Device>(
    fid: *mut sys::fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    object::guard("fi_getopt(pep)", || {
        // SAFETY: the client's endpoint.
        unsafe { object::borrow_fid::<Pep<D>>(fid) }?;
        if level != sys::FI_OPT_ENDPOINT as c_int || name != sys::FI_OPT_CM_DATA_SIZE as c_int {
            return Err(Errno::NOPROTOOPT);
        }
        // SAFETY: the client's buffer and its length.
        unsafe { give_number(weft_engine::MAX_CONN_DATA, value, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn getname<D: Device>(fid: *mut sys::fid, addr: *mut c_void, len: *mut usize) -> c_int {
    object::guard("fi_getname(pep)", || {
        // SAFETY: the client's endpoint.
        let name = unsafe { object::borrow_fid::<Pep<D>>(fid) }?.own_address()?;
        // SAFETY: the client's buffer and its length.
        unsafe { cm::copy_out(&name, addr, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn setname<D: Device>(fid: *mut sys::fid, addr: *mut c_void, len: usize) -> c_int {
    object::guard("fi_setname(pep)", || {
        // SAFETY: the client's endpoint.
        let pep = unsafe { object::borrow_fid::<Pep<D>>(fid) }?;
        let addr = NonNull::new(addr.cast::<u8>()).ok_or(Errno::INVAL)?;
        // SAFETY: the client's address of that length.
        pep.set_name(unsafe { std::slice::from_raw_parts(addr.as_ptr(), len) }).map(|()| 0)
    })
}

unsafe extern "C" fn listen<D: Device>(pep: *mut sys::fid_pep) -> c_int {
    object::guard("fi_listen", || {
        // SAFETY: the client's endpoint.
        unsafe { object::borrow::<Pep<D>>(pep) }?.listen().map(|()| 0)
    })
}

unsafe extern "C" fn reject<D: Device>(
    pep: *mut sys::fid_pep,
    handle: *mut sys::fid,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    object::guard("fi_reject", || {
        // SAFETY: the client's endpoint.
        let pep = unsafe { object::borrow::<Pep<D>>(pep) }?;
        let call = request(handle.addr()).filter(|call| call.is_of(&pep.listener));
        // SAFETY: the client's data.
        call.ok_or(Errno::INVAL)?.reject(unsafe { cm::data(param, paramlen) }?).map(|()| 0)
    })
}
