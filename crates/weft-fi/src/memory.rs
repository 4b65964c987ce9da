//! `fi_open_ops(domain, "weft_memory", …)`: memory that peers of this host may map (fi_weft(7), "EXTENSIONS").
//!
//! Place in the data flow: the client allocates here, and registers the memory as any other. A region that is a whole
//! allocation can be mapped by peers ([`mapping_of`], [`weft_engine::mapped`]). Memory belongs to the process, not to
//! the domain.
//!
//! The C declarations are in `include/weft_memory.h`.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use weft_engine::mapped::Mappable;
use weft_engine::mem::Iov;
use weft_fi_sys as sys;
use weft_nic::shm::memory::{self, NotFreed};

use crate::abi::errno::Errno;
use crate::abi::object;
use crate::domain::Domain;

/// The name of the extension.
pub(crate) const NAME: &std::ffi::CStr = c"weft_memory";

/// The flag of `alloc`: the system should use large pages.
const HUGE: u64 = 1;

/// `struct weft_memory_ops`.
#[repr(C)]
struct Ops {
    /// The size of this table in bytes.
    size: usize,
    alloc: unsafe extern "C" fn(*mut sys::fid_domain, usize, u64, *mut *mut c_void) -> c_int,
    free: unsafe extern "C" fn(*mut sys::fid_domain, *mut c_void) -> c_int,
    query: unsafe extern "C" fn(*mut sys::fid_domain, *const c_void, *mut *mut c_void, *mut usize) -> c_int,
}

static OPS: Ops = Ops { size: size_of::<Ops>(), alloc, free, query };

/// The operation table, as `fi_open_ops` returns it.
pub(crate) fn ops() -> *mut c_void {
    object::table(&OPS).cast()
}

/// The allocation of which a region consists, if there is one.
pub(crate) fn mapping_of(memory: &[Iov]) -> Option<Arc<dyn Mappable>> {
    let [piece] = memory else { return None };
    memory::whole(piece.as_ptr() as usize, piece.len())
}

/// Allocates at least `len` bytes, which are zero and begin at a page.
unsafe extern "C" fn alloc(domain: *mut sys::fid_domain, len: usize, flags: u64, out: *mut *mut c_void) -> c_int {
    object::guard("weft_memory.alloc", || {
        // SAFETY: a domain of the client.
        unsafe { object::borrow::<Domain>(domain) }?;
        let out = NonNull::new(out).ok_or(Errno::INVAL)?;
        if flags & !HUGE != 0 {
            return Err(Errno::BADFLAGS);
        }
        let base = memory::allocate(len, flags & HUGE != 0).map_err(|why| {
            log::info!("weft_memory.alloc: {len} bytes are not available: {why}");
            if len == 0 { Errno::INVAL } else { Errno::NOMEM }
        })?;
        // SAFETY: the client's variable.
        unsafe { out.write(base.as_ptr().cast()) };
        Ok(0)
    })
}

/// Frees an allocation. -FI_EBUSY: a region is still registered on it. -FI_EINVAL: none begins there.
unsafe extern "C" fn free(domain: *mut sys::fid_domain, address: *mut c_void) -> c_int {
    object::guard("weft_memory.free", || {
        // SAFETY: a domain of the client.
        unsafe { object::borrow::<Domain>(domain) }?;
        memory::free(address as usize).map(|()| 0).map_err(|why| match why {
            NotFreed::Unknown => Errno::INVAL,
            NotFreed::Registered => Errno::BUSY,
        })
    })
}

/// Finds the allocation that contains an address. -FI_ENOENT: there is none.
unsafe extern "C" fn query(
    domain: *mut sys::fid_domain,
    address: *const c_void,
    base: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    object::guard("weft_memory.query", || {
        // SAFETY: a domain of the client.
        unsafe { object::borrow::<Domain>(domain) }?;
        let (first, bytes) = memory::query(address as usize).ok_or(Errno::NOENT)?;
        if let Some(base) = NonNull::new(base) {
            // SAFETY: the client's variable.
            unsafe { base.write(std::ptr::with_exposed_provenance_mut(first)) };
        }
        if let Some(len) = NonNull::new(len) {
            // SAFETY: the client's variable.
            unsafe { len.write(bytes) };
        }
        Ok(0)
    })
}
