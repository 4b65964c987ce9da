//! weft's libfabric provider: the C ABI over [`weft_engine`] and [`weft_nic`].
//!
//! Place in the data flow: a client calls libfabric. libfabric (the *host*, which loaded the provider library) calls
//! `fi_prov_ini` once, and then the operation tables of our objects, which call the engine. Most files are named after
//! the libfabric man page that they implement. `abi` holds the conventions of all objects and the table of error
//! numbers, [`params`] the variables, [`observe`] the published counters, and `host` the connection to the host.
//!
//! The crate is generic over the device ([`weft_nic::Device`]). [`entry_point`] makes a provider library of it: the one
//! that ships (weft-provider), or the one over the simulated fabric (weft-fi-sim). Only endpoints have the device as a
//! type parameter (`endpoint`, `pep`). Other objects hold them as `CellRef`s. Functions of the data path that reach a
//! device are generic, and in tables of that device. For the `weft` command, the crate offers the tables of variables
//! and counters.

mod abi;
mod addr;
mod av;
mod cm;
mod cntr;
mod collective;
mod cq;
mod domain;
mod endpoint;
mod eq;
mod fabric;
mod host;
mod info;
mod memory;
mod mr;
pub mod observe;
pub mod params;
mod pep;
mod record;
mod sleep;
mod trigger;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::panic::AssertUnwindSafe;

#[doc(hidden)] // For the macro.
pub use weft_fi_sys as sys;
use weft_nic::Device;

/// The name of the provider, the fabric and the domain.
pub(crate) const NAME: &CStr = c"weft";

/// The newest API version that the provider supports. Clients that request a newer one do not see the provider.
pub const API_VERSION: u32 = sys::version(2, 6);
/// The oldest host whose structures have all fields that weft uses.
const OLDEST_HOST: u32 = sys::version(1, 17);

/// A provider structure that a host keeps. The host writes to its `context`; this crate only hands out the address.
struct Provider(UnsafeCell<sys::fi_provider>);

// SAFETY: after start-up only the host accesses the contents, by its own rules.
unsafe impl Sync for Provider {}

impl Provider {
    const fn new<D: Device, const SLOT: usize>() -> Self {
        Self(UnsafeCell::new(sys::fi_provider {
            version: VERSION,
            fi_version: API_VERSION,
            context: sys::fi_context { internal: [std::ptr::null_mut(); 4] },
            name: NAME.as_ptr(),
            getinfo: Some(info::getinfo::<D, SLOT>),
            fabric: Some(fabric::open::<D, SLOT>),
            cleanup: Some(cleanup::<SLOT>),
        }))
    }
}

/// One provider structure per host, by slot. A host does not pass its identity, so each structure has its own
/// functions. [`entry_point`] makes the only value of a library.
pub struct Providers([Provider; host::MAX_HOSTS + 1]);

impl Providers {
    /// The structures of a provider on devices of type `D`.
    pub const fn of<D: Device>() -> Self {
        Self([
            Provider::new::<D, 0>(),
            Provider::new::<D, 1>(),
            Provider::new::<D, 2>(),
            Provider::new::<D, 3>(),
            Provider::new::<D, 4>(),
            Provider::new::<D, 5>(),
            Provider::new::<D, 6>(),
            Provider::new::<D, 7>(),
            // The structure through which an excess host gets a message.
            Provider::new::<D, { host::MAX_HOSTS }>(),
        ])
    }
}

/// The provider's own version, as libfabric packs versions.
const VERSION: u32 = {
    const fn number(text: &str) -> u32 {
        let mut value = 0;
        let mut at = 0;
        while at < text.len() {
            value = value * 10 + (text.as_bytes()[at] - b'0') as u32;
            at += 1;
        }
        value
    }
    sys::version(number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")))
};

/// Defines the entry point of a provider library on devices of the given type, `fi_prov_ini`. libfabric calls it under
/// the loader's lock after it has loaded the library, and receives the provider. The function passes its return address
/// on, by which `host` determines the calling libfabric.
#[macro_export]
macro_rules! entry_point {
    ($device:ty) => {
        static PROVIDERS: $crate::Providers = $crate::Providers::of::<$device>();

        extern "C" fn start(caller: *const ::std::ffi::c_void) -> *mut $crate::sys::fi_provider {
            PROVIDERS.start(caller)
        }

        /// The entry point of the provider.
        ///
        /// # Safety
        /// Only libfabric may call it.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn fi_prov_ini() -> *mut $crate::sys::fi_provider {
            // On entry the return address is on top of the stack; the jump leaves the stack as the callee expects it.
            ::std::arch::naked_asm!("mov rdi, [rsp]", "jmp {start}", start = sym start)
        }

        /// The entry point of the provider.
        ///
        /// # Safety
        /// Only libfabric may call it.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn fi_prov_ini() -> *mut $crate::sys::fi_provider {
            // On entry the return address is in the link register.
            ::std::arch::naked_asm!("mov x0, x30", "b {start}", start = sym start)
        }

        /// The entry point of the provider. Where the return address is not available, the host is searched among the
        /// global symbols.
        ///
        /// # Safety
        /// Only libfabric may call it.
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn fi_prov_ini() -> *mut $crate::sys::fi_provider {
            start(::std::ptr::null())
        }
    };
}

impl Providers {
    /// Attaches to the host. Returns null, which makes the host unload us, in three cases:
    /// - The caller is not a supported libfabric.
    /// - The process already has the maximum number of hosts, which is logged.
    /// - The host already has the provider: it may find our file a second time by another path. Two registrations
    ///   would share the structure, so discarding one would clean up the other, with the definitions of our
    ///   variables.
    pub fn start(&'static self, caller: *const c_void) -> *mut sys::fi_provider {
        let started = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let host = match host::attach(caller, OLDEST_HOST, |slot| self.0[slot].0.get()) {
                Ok(host) => host,
                Err(host::Refusal::TooMany(host)) => {
                    observe::log::warn_host(
                        &host,
                        "too many libfabrics have loaded weft in this process; let them share one library",
                    );
                    return std::ptr::null_mut();
                }
                Err(host::Refusal::Unsupported | host::Refusal::AlreadyAttached) => return std::ptr::null_mut(),
            };
            observe::log::install();
            params::define(host);
            observe::report::loaded();
            weft_os::watch_forks();
            host.provider()
        }));
        started.unwrap_or(std::ptr::null_mut())
    }
}

/// The host is about to unload us. A domain's threads end with the domain. Domains that the client left open have their
/// threads stopped here, so that no thread executes unloaded code.
unsafe extern "C" fn cleanup<const SLOT: usize>() {
    cleanup_in(SLOT);
}

/// One copy serves all slots.
#[inline(never)]
fn cleanup_in(slot: usize) {
    abi::object::guard("cleanup", || {
        let Some(host) = host::enter_slot(slot) else { return Ok(0) };
        domain::stop_all(Some(host));
        observe::report::at_end();
        record::at_end();
        host.detach();
        if host::attached().next().is_none() {
            sleep::flusher::stop();
        }
        Ok(0)
    });
}
