//! The extension `weft_match` (`fi_open_ops`): how one endpoint searches its queues of receives and messages
//! (fi_weft(7), "EXTENSIONS").
//!
//! Place in the data flow: the client chooses before `fi_enable`, which passes the choice to the engine.
//! FI_WEFT_MATCH is the default of all endpoints.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use weft_engine::api::Matching;
use weft_fi_sys as sys;
use weft_nic::Device;

use super::Ep;
use crate::abi::errno::Errno;
use crate::abi::object;

/// The name of the extension.
pub(super) const NAME: &CStr = c"weft_match";

/// `struct weft_match_ops`.
#[repr(C)]
struct Ops {
    /// The size of this table in bytes.
    size: usize,
    set: unsafe extern "C" fn(*mut sys::fid_ep, *const c_char) -> c_int,
    get: unsafe extern "C" fn(*mut sys::fid_ep, *mut *const c_char) -> c_int,
}

/// The table, as `fi_open_ops` returns it.
pub(super) fn ops<D: Device>() -> *mut c_void {
    object::table(const { &Ops { size: size_of::<Ops>(), set: set::<D>, get: get::<D> } }).cast()
}

/// Sets the search: `auto`, `list`, `hash` or `tree`. The endpoint must not be enabled.
unsafe extern "C" fn set<D: Device>(ep: *mut sys::fid_ep, kind: *const c_char) -> c_int {
    object::guard("weft_match.set", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(ep) }?;
        let kind = NonNull::new(kind.cast_mut()).ok_or(Errno::INVAL)?;
        // SAFETY: the client's string.
        let kind = unsafe { CStr::from_ptr(kind.as_ptr()) };
        let kind = kind.to_str().ok().and_then(|kind| kind.parse::<Matching>().ok()).ok_or(Errno::INVAL)?;
        let mut setup = ep.setup.lock();
        if setup.enabled {
            return Err(Errno::OPBADSTATE);
        }
        setup.matching = kind;
        Ok(0)
    })
}

/// Returns the name of the chosen search, or of the default.
unsafe extern "C" fn get<D: Device>(ep: *mut sys::fid_ep, kind: *mut *const c_char) -> c_int {
    object::guard("weft_match.get", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(ep) }?;
        let place = NonNull::new(kind).ok_or(Errno::INVAL)?;
        let name = match ep.setup.lock().matching {
            Matching::Auto => c"auto",
            Matching::List => c"list",
            Matching::Hash => c"hash",
            Matching::Tree => c"tree",
        };
        // SAFETY: the client's place for the pointer.
        unsafe { place.write(name.as_ptr()) };
        Ok(0)
    })
}
