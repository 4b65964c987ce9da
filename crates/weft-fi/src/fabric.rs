//! Fabrics (fi_fabric(3)), the parents of domains, passive endpoints and event queues.
//!
//! Place in the data flow: the host calls [`open`] for `fi_fabric`. A fabric has a name and an API version.
//! All fabrics are of the same kind, and the fabric may be opened any number of times.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use parking_lot::Mutex;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Object, Uses};
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::eq::Eq;
use crate::sleep::waitset::{self, Member, WaitSet};
use crate::{domain, eq, host, pep};

/// An open fabric.
#[repr(C)]
pub(crate) struct Fabric {
    head: Head<sys::fid_fabric>,
    uses: Uses,
    api_version: u32,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open`.
unsafe impl Object for Fabric {
    type Fid = sys::fid_fabric;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_FABRIC];

    fn uses(&self) -> &Uses {
        &self.uses
    }

    fn closing(&self) -> Result<(), Errno> {
        OPEN.remove(std::ptr::from_ref(self) as usize);
        Ok(())
    }
}

/// The open objects of one type, by address, for attributes that refer to them.
pub(crate) struct Instances(Mutex<Vec<usize>>);

impl Instances {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn add(&self, address: usize) {
        self.0.lock().push(address);
    }

    pub(crate) fn remove(&self, address: usize) {
        self.0.lock().retain(|&known| known != address);
    }

    pub(crate) fn contains(&self, address: usize) -> bool {
        self.0.lock().contains(&address)
    }

    /// The first result that `wanted` returns, in the order of opening. The list is locked during the calls.
    pub(crate) fn find<T>(&self, wanted: impl Fn(usize) -> Option<T>) -> Option<T> {
        self.0.lock().iter().copied().find_map(wanted)
    }
}

static OPEN: Instances = Instances::new();

/// The first fabric that was opened with this API version, for `fi_fabric_attr.fabric`: objects opened in it
/// have that version, too. A closed fabric that was inherited by fork(2) stays in the list, so inherited ones
/// are not reported.
pub(crate) fn first_open(api: u32) -> Option<*mut sys::fid_fabric> {
    find(|fabric| fabric.api_version == api && fabric.uses.is_ours())
}

/// Whether `named` is an open weft fabric with this API version.
pub(crate) fn is_open(api: u32, named: *mut sys::fid_fabric) -> bool {
    find(|fabric| std::ptr::addr_eq(fabric, named) && fabric.api_version == api).is_some()
}

/// Finds a fabric of the host that this thread serves.
fn find(wanted: impl Fn(&Fabric) -> bool) -> Option<*mut sys::fid_fabric> {
    let host = host::current();
    let found = OPEN.find(|address| {
        let raw = address as *mut sys::fid_fabric;
        // SAFETY: an open weft fabric. A fabric is removed from the list, which is locked here, before it
        // is freed.
        let fabric = unsafe { object::borrow::<Fabric>(raw) }.ok()?;
        (fabric.uses.is_of(host) && wanted(fabric)).then_some(raw)
    });
    // `borrow` has changed the host that this thread serves.
    host::enter(host);
    found
}

impl Fabric {
    /// The API version that the client requested.
    pub(crate) const fn api_version(&self) -> u32 {
        self.api_version
    }
}

/// Implements `fi_fabric`.
pub(crate) unsafe extern "C" fn open<D: Device, const SLOT: usize>(
    attr: *mut sys::fi_fabric_attr,
    fabric: *mut *mut sys::fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the arguments of the call.
    unsafe { open_in::<D>(SLOT, attr, fabric, context) }
}

/// One copy serves all slots.
#[inline(never)]
unsafe fn open_in<D: Device>(
    slot: usize,
    attr: *mut sys::fi_fabric_attr,
    fabric: *mut *mut sys::fid_fabric,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_fabric", || {
        host::enter_slot(slot);
        let place = object::place(fabric)?;
        // SAFETY: null, or the attributes of the host.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        // SAFETY: null or a C string.
        let name = (!attr.name.is_null()).then(|| unsafe { CStr::from_ptr(attr.name) });
        if name.is_some_and(|name| name != crate::NAME) {
            return Err(Errno::NODATA);
        }
        let fid = object::new_fid(sys::FI_CLASS_FABRIC, context, &FID_OPS);
        let api_version = attr.api_version;
        let head = sys::fid_fabric { fid, ops: object::table(fabric_ops::<D>()), api_version };
        let object = Arc::new(Fabric { head: Head::new(head), uses: Uses::new(), api_version });
        OPEN.add(Arc::as_ptr(&object) as usize);
        // SAFETY: the host's place for the new pointer.
        Ok(unsafe { object::give(object, place) })
    })
}

static FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close), ..noop::FID };

const fn fabric_ops<D: Device>() -> &'static sys::fi_ops_fabric {
    const {
        &sys::fi_ops_fabric {
            domain: Some(domain::open::<D>),
            domain2: Some(domain::open2::<D>),
            passive_ep: Some(pep::open::<D>),
            eq_open: Some(eq::open),
            wait_open: Some(waitset::open),
            trywait: Some(trywait),
            ..noop::FABRIC
        }
    }
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(fabric)", || {
        // SAFETY: the client's fabric.
        unsafe { object::close::<Fabric>(fid) }.map(|()| 0)
    })
}

/// Implements `fi_trywait`: whether the client may block on the descriptors of these queues, counters and
/// wait sets.
unsafe extern "C" fn trywait(_fabric: *mut sys::fid_fabric, fids: *mut *mut sys::fid, count: c_int) -> c_int {
    object::guard("fi_trywait", || {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        if fids.is_null() {
            return Err(Errno::INVAL);
        }
        for index in 0..count {
            // SAFETY: the client's array has `count` elements.
            let fid = unsafe { fids.wrapping_add(index).read() };
            // SAFETY: each is a live weft object.
            unsafe { trywait_one(fid) }?;
        }
        Ok(0)
    })
}

/// # Safety
/// `fid` is a live weft object.
unsafe fn trywait_one(fid: *mut sys::fid) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let class = unsafe { object::class_of(fid) }?;
    if class == sys::FI_CLASS_CQ as usize {
        // SAFETY: as above.
        unsafe { object::borrow_fid::<Cq>(fid) }?.trywait()
    } else if class == sys::FI_CLASS_CNTR as usize {
        // SAFETY: as above.
        unsafe { object::borrow_fid::<Cntr>(fid) }?.trywait()
    } else if class == sys::FI_CLASS_WAIT as usize {
        // SAFETY: as above.
        unsafe { object::borrow_fid::<WaitSet>(fid) }?.trywait()
    } else {
        // SAFETY: as above; objects other than event queues are refused by their class.
        unsafe { object::borrow_fid::<Eq>(fid) }?.trywait()
    }
}
