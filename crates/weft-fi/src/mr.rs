//! Memory registration (fi_mr(3)).
//!
//! Place in the data flow: `fi_mr_reg` and its variants make an [`Mr`]. With remote access they also make a
//! [`Region`], which the domain passes to its endpoints; `fi_close` removes it. Local use needs no
//! registration, and descriptors are never read.
//!
//! Modes (fi_domain(3), mr_mode). By default the client chooses the key, and peers address a region by
//! offset. With FI_MR_BASIC and FI_MR_VIRT_ADDR, peers use virtual addresses. With FI_MR_BASIC and
//! FI_MR_PROV_KEY, the provider chooses the key. With FI_MR_ENDPOINT, a region is bound to an endpoint and
//! then enabled. With FI_MR_RMA_EVENT and the flag FI_RMA_EVENT, it is bound to counters and then enabled.
//! The other bits are promises of the client that weft does not need.
//!
//! Invariants: the key of an open region is unique in the domain (-FI_ENOKEY). Registrations without remote
//! access have no region, and their keys are not compared. A region with an authorization key, its own or the
//! domain's, is accessible through endpoints with the same key. `fi_mr_reg(NULL, ~0)` is allowed: offsets are
//! then addresses.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use weft_engine::api::{Access, Region};
use weft_engine::mem::{Iov, IovList};
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::cntr::Cntr;
use crate::domain::{Domain, Registered};
use crate::endpoint::Ep;
use crate::endpoint::cell::CellRef;
use crate::endpoint::route::RegionCounters;
use crate::info::IOV_LIMIT;
use crate::info::hints::AUTH_KEY_LIMIT_BYTES;
use crate::info::network::KEYS_SINCE;
use crate::memory::mapping_of;

/// The kinds of access by peers.
const REMOTE: u64 = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
/// All kinds of access that a client may request.
const ACCESS: u64 = REMOTE | sys::FI_SEND | sys::FI_RECV | sys::FI_READ | sys::FI_WRITE | sys::FI_COLLECTIVE;
/// The flags of registration that are accepted. FI_HMEM_DEVICE_ONLY and _HOST_ALLOC describe how device
/// memory was allocated. Bit 41 (FI_MR_SINGLE_USE) is a hint.
const FLAGS: u64 = sys::FI_RMA_EVENT | sys::FI_HMEM_DEVICE_ONLY | sys::FI_HMEM_HOST_ALLOC | FI_MR_SINGLE_USE;
const FI_MR_SINGLE_USE: u64 = 1 << 41;
/// The first API version in which `fi_mr_attr` has the field `iface`.
const VERSION_WITH_IFACE: u32 = sys::version(1, 10);

/// A registered region.
#[repr(C)]
pub(crate) struct Mr {
    head: Head<sys::fid_mr>,
    key: u64,
    /// The remote address of the first byte.
    base: u64,
    state: Mutex<MrState>,
    uses: Uses,
    domain: Hold<Domain>,
}

/// The state of a registration.
struct MrState {
    /// The region that `enable` passes to the domain; `None` afterwards, and without remote access.
    pending: Option<Region>,
    /// The authorization key that endpoints must have, too.
    auth_key: Option<Vec<u8>>,
    /// Whether the domain has the region.
    active: bool,
    /// The counters that are bound to the region.
    counters: RegionCounters,
    /// The endpoint to which it belongs (FI_MR_ENDPOINT).
    endpoint: Option<Owner>,
}

/// The endpoint to which a region belongs.
struct Owner {
    cell: CellRef,
    /// Keeps the endpoint open: a `Hold`.
    _hold: Box<dyn Send + Sync>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `register`.
unsafe impl Object for Mr {
    type Fid = sys::fid_mr;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_MR];

    fn uses(&self) -> &Uses {
        &self.uses
    }

    fn closing(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.active {
            self.domain.remove_region(self.key);
        }
        state.active = false;
        state.pending = None;
        Ok(())
    }
}

/// The arguments of the three registration functions.
struct Request {
    iov: IovList,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    context: *mut c_void,
    auth_key: Option<Vec<u8>>,
}

/// Registers memory, and passes the region to the domain unless it has to be bound first.
fn register(domain: Hold<Domain>, request: Request) -> Result<Arc<Mr>, Errno> {
    if request.access & !ACCESS != 0 || request.offset != 0 {
        return Err(Errno::INVAL);
    }
    if request.flags & !FLAGS != 0 {
        return Err(Errno::BADFLAGS);
    }
    let basic = domain.mr_mode() == sys::FI_MR_BASIC.cast_signed();
    let bits = domain.mr_bits();
    let key = if basic || bits & sys::FI_MR_PROV_KEY != 0 { domain.free_key()? } else { request.requested_key };
    let virtual_address = basic || bits & sys::FI_MR_VIRT_ADDR != 0;
    let base = if virtual_address { request.iov.first().map_or(0, Iov::addr) } else { 0 };
    let access =
        Access { read: request.access & sys::FI_REMOTE_READ != 0, write: request.access & sys::FI_REMOTE_WRITE != 0 };
    let events = domain.caps() & sys::FI_RMA_EVENT != 0;
    let remote = request.access & REMOTE != 0;
    let mapping = mapping_of(&request.iov);
    let region = remote.then_some(Region { key, iov: request.iov, base, access, user: key, events, mapping });
    let fid = object::new_fid(sys::FI_CLASS_MR, request.context, domain.tables().mr);
    let mr = Arc::new(Mr {
        head: Head::new(sys::fid_mr { fid, mem_desc: std::ptr::null_mut(), key }),
        key,
        base,
        state: Mutex::new(MrState {
            pending: region,
            auth_key: request.auth_key.or_else(|| domain.network().auth_key.clone()),
            active: false,
            counters: RegionCounters::default(),
            endpoint: None,
        }),
        uses: Uses::new(),
        domain,
    });
    // Some clients require a descriptor that is not null. Its value has no meaning; it is the address of the
    // region.
    let descriptor = Arc::as_ptr(&mr).cast_mut().cast::<c_void>();
    // SAFETY: no other thread has seen the object yet.
    unsafe { (*mr.head.get()).mem_desc = descriptor };
    let must_bind_first =
        bits & sys::FI_MR_ENDPOINT != 0 || (bits & sys::FI_MR_RMA_EVENT != 0 && request.flags & sys::FI_RMA_EVENT != 0);
    if !must_bind_first {
        mr.enable()?;
    }
    Ok(mr)
}

impl Mr {
    /// Passes the region to the domain. A second call has no effect. With FI_MR_ENDPOINT, a region without an
    /// endpoint is refused: every endpoint would get it.
    fn enable(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let Some(region) = state.pending.clone() else { return Ok(()) };
        if state.endpoint.is_none() && self.domain.mr_bits() & sys::FI_MR_ENDPOINT != 0 {
            return Err(Errno::INVAL);
        }
        let counters = state.counters.clone();
        let only = state.endpoint.as_ref().map(|endpoint| Arc::downgrade(&endpoint.cell));
        let auth_key = state.auth_key.clone();
        self.domain.add_region(Registered { region, counters, only, auth_key })?;
        state.pending = None;
        state.active = true;
        Ok(())
    }

    /// Binds a counter that counts reads by peers (FI_REMOTE_READ) or writes by peers (FI_REMOTE_WRITE).
    fn bind_counter(&self, counter: &Hold<Cntr>, flags: u64) -> Result<(), Errno> {
        if flags & !REMOTE != 0 {
            return Err(Errno::BADFLAGS);
        }
        if flags == 0 {
            return Err(Errno::INVAL);
        }
        if !counter.domain().same(&self.domain) {
            return Err(Errno::DOMAIN);
        }
        if self.domain.caps() & sys::FI_RMA_EVENT == 0 {
            log::info!(
                "fi_mr_bind: counters bound to regions need the capability FI_RMA_EVENT; open the domain with it"
            );
            return Err(Errno::OPNOTSUPP);
        }
        let change = |counters: &mut RegionCounters| {
            if flags & sys::FI_REMOTE_WRITE != 0 {
                counters.write = Some(counter.clone());
            }
            if flags & sys::FI_REMOTE_READ != 0 {
                counters.read = Some(counter.clone());
            }
        };
        let mut state = self.state.lock();
        change(&mut state.counters);
        if state.active { self.domain.change_region_counters(self.key, change) } else { Ok(()) }
    }

    /// Binds the region to one endpoint. Without FI_MR_ENDPOINT the region is already active, and the binding
    /// only keeps the endpoint open.
    fn bind_endpoint<D: Device>(&self, endpoint: Hold<Ep<D>>) -> Result<(), Errno> {
        if !endpoint.domain().same(&self.domain) {
            return Err(Errno::DOMAIN);
        }
        let mut state = self.state.lock();
        if state.endpoint.is_some() {
            return Err(Errno::INVAL);
        }
        state.endpoint = Some(Owner { cell: Arc::clone(endpoint.cell()) as _, _hold: Box::new(endpoint) });
        Ok(())
    }
}

/// The registration operations of a domain.
pub(crate) static OPS: sys::fi_ops_mr =
    sys::fi_ops_mr { size: size_of::<sys::fi_ops_mr>(), reg: Some(reg), regv: Some(regv), regattr: Some(regattr) };

/// The functions of a registration whose endpoints are on devices of type `D`.
pub(crate) const fn fid_ops<D: Device>() -> &'static sys::fi_ops {
    const { &sys::fi_ops { close: Some(close), bind: Some(bind::<D>), control: Some(control), ..noop::FID } }
}

/// Implements the three C functions: registers memory and reports the registration to the domain's event
/// queue if the client requested that.
///
/// # Safety
/// `fid` is the client's domain; `out` is null or valid for a write.
unsafe fn register_for(fid: *mut sys::fid, request: Request, out: *mut *mut sys::fid_mr) -> Result<c_int, Errno> {
    let place = object::place(out)?;
    // SAFETY: the caller's promise.
    let domain = unsafe { Hold::<Domain>::of_fid(fid) }?;
    let events = domain.registration_events();
    let context = request.context as usize;
    let mr = register(domain, request)?;
    let address = Arc::as_ptr(&mr) as usize;
    // SAFETY: the caller's promise.
    let result = unsafe { object::give(mr, place) };
    if let Some(eq) = events {
        // The client's pointer is written before the client can read the event.
        eq.report(sys::FI_MR_COMPLETE, address, context, 0);
    }
    Ok(result)
}

/// Converts a client's vector.
///
/// # Safety
/// `iov` is null or has `count` elements, which describe memory of the client.
unsafe fn pieces(iov: *const libc::iovec, count: usize) -> Result<IovList, Errno> {
    if count > IOV_LIMIT || (iov.is_null() && count > 0) {
        return Err(Errno::INVAL);
    }
    if count == 0 {
        return Ok(IovList::new());
    }
    // SAFETY: the caller's promise.
    let vector = unsafe { std::slice::from_raw_parts(iov, count) };
    // SAFETY: by registering, the client promises that peers may access the memory until it closes the
    // region.
    Ok(vector.iter().map(|piece| unsafe { Iov::new(piece.iov_base.cast(), piece.iov_len) }).collect())
}

unsafe extern "C" fn reg(
    fid: *mut sys::fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut sys::fid_mr,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_mr_reg", || {
        let piece = libc::iovec { iov_base: buf.cast_mut(), iov_len: len };
        // SAFETY: one element, on our stack, which describes the client's memory.
        let iov = unsafe { pieces(&raw const piece, 1) }?;
        let request = Request { iov, access, offset, requested_key, flags, context, auth_key: None };
        // SAFETY: the client's domain and its place for the new pointer.
        unsafe { register_for(fid, request, mr) }
    })
}

unsafe extern "C" fn regv(
    fid: *mut sys::fid,
    iov: *const libc::iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut sys::fid_mr,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_mr_regv", || {
        // SAFETY: the client's vector.
        let iov = unsafe { pieces(iov, count) }?;
        let request = Request { iov, access, offset, requested_key, flags, context, auth_key: None };
        // SAFETY: the client's domain and its place for the new pointer.
        unsafe { register_for(fid, request, mr) }
    })
}

/// The fields of `fi_mr_attr` that every API version has.
#[repr(C)]
struct AttrHead {
    mr_iov: *const libc::iovec,
    iov_count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    context: *mut c_void,
}

const _: () = assert!(size_of::<AttrHead>() == std::mem::offset_of!(sys::fi_mr_attr, auth_key_size));

/// The interfaces of fi_mr(3) that denote device memory.
const DEVICE_MEMORY: [sys::fi_hmem_iface; 5] =
    [sys::FI_HMEM_CUDA, sys::FI_HMEM_ROCR, sys::FI_HMEM_ZE, sys::FI_HMEM_NEURON, sys::FI_HMEM_SYNAPSEAI];

unsafe extern "C" fn regattr(
    fid: *mut sys::fid,
    attr: *const sys::fi_mr_attr,
    flags: u64,
    mr: *mut *mut sys::fid_mr,
) -> c_int {
    object::guard("fi_mr_regattr", || {
        let attr = NonNull::new(attr.cast_mut()).ok_or(Errno::INVAL)?.as_ptr();
        // SAFETY: the client's domain.
        let api = unsafe { object::borrow_fid::<Domain>(fid) }?.api_version();
        // The structure has the length of the client's API version, so its fields are read one by one.
        if api >= VERSION_WITH_IFACE {
            // SAFETY: this version has the field.
            let iface = unsafe { (*attr).iface };
            // Without FI_HMEM the field should be ignored. But device memory would then be accessed like host
            // memory.
            if DEVICE_MEMORY.contains(&iface) {
                return Err(Errno::NOSYS);
            }
        }
        let auth_key = if api >= KEYS_SINCE {
            // SAFETY: this version has these fields; the key belongs to the client and has the given length.
            unsafe { authorization(attr) }?
        } else {
            None
        };
        // SAFETY: every version has these fields.
        let AttrHead { mr_iov, iov_count, access, offset, requested_key, context } =
            unsafe { attr.cast::<AttrHead>().read() };
        // SAFETY: the client's vector.
        let iov = unsafe { pieces(mr_iov, iov_count) }?;
        let request = Request { iov, access, offset, requested_key, flags, context, auth_key };
        // SAFETY: the client's domain and its place for the new pointer.
        unsafe { register_for(fid, request, mr) }
    })
}

/// The authorization key of a region. Returns -FI_EINVAL for a key that no endpoint can have.
///
/// # Safety
/// `attr` has the fields of a key, and the key is readable in its given length.
unsafe fn authorization(attr: *const sys::fi_mr_attr) -> Result<Option<Vec<u8>>, Errno> {
    // SAFETY: the caller's promise.
    let len = unsafe { (*attr).auth_key_size };
    if len == 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    let key = unsafe { (*attr).auth_key };
    if key.is_null() || len > AUTH_KEY_LIMIT_BYTES {
        return Err(Errno::INVAL);
    }
    // SAFETY: as above.
    Ok(Some(unsafe { std::slice::from_raw_parts(key, len) }.to_vec()))
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(mr)", || {
        // SAFETY: the client's region.
        unsafe { object::close::<Mr>(fid) }.map(|()| 0)
    })
}

/// Implements `fi_mr_bind` with a counter or an endpoint.
unsafe extern "C" fn bind<D: Device>(fid: *mut sys::fid, bfid: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_mr_bind", || {
        // SAFETY: the client's region.
        let mr = unsafe { object::borrow_fid::<Mr>(fid) }?;
        // SAFETY: the client's other object.
        let class = unsafe { object::class_of(bfid) }?;
        if class == sys::FI_CLASS_CNTR as usize {
            // SAFETY: as above.
            mr.bind_counter(&unsafe { Hold::of_fid(bfid) }?, flags)?;
        } else {
            // SAFETY: as above. Objects of another class than endpoints are refused.
            mr.bind_endpoint(unsafe { Hold::<Ep<D>>::of_fid(bfid) }?)?;
        }
        Ok(0)
    })
}

/// Implements `fi_control`: fi_mr_enable, fi_mr_refresh and fi_mr_raw_attr.
unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(mr)", || {
        // SAFETY: the client's region.
        let mr = unsafe { object::borrow_fid::<Mr>(fid) }?;
        match command.cast_unsigned() {
            sys::FI_ENABLE => mr.enable()?,
            // Pages are looked up at every access, so there is nothing to refresh.
            sys::FI_REFRESH => {}
            sys::FI_GET_RAW_MR => {
                let raw = NonNull::new(arg.cast::<sys::fi_mr_raw_attr>()).ok_or(Errno::INVAL)?;
                // SAFETY: the client's argument for this command.
                mr.raw_key(&unsafe { raw.read() })?;
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(0)
    })
}

impl Mr {
    /// Returns the key as bytes, for clients that handle keys of any length.
    fn raw_key(&self, raw: &sys::fi_mr_raw_attr) -> Result<(), Errno> {
        let size = NonNull::new(raw.key_size).ok_or(Errno::INVAL)?;
        // SAFETY: the client's length of its buffer.
        let room = unsafe { size.read() };
        // SAFETY: as above.
        unsafe { size.write(size_of::<u64>()) };
        if room < size_of::<u64>() || raw.raw_key.is_null() {
            return Err(Errno::TOOSMALL);
        }
        // SAFETY: the client's buffer, whose length was checked above.
        unsafe { raw.raw_key.cast::<u64>().write_unaligned(self.key) };
        if let Some(base) = NonNull::new(raw.base_addr) {
            // SAFETY: the client's variable for the address.
            unsafe { base.write(self.base) };
        }
        Ok(())
    }
}
