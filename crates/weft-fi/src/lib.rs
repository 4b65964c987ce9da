//! weft's libfabric provider: the C ABI over [`weft_engine`] and [`weft_nic`].
//!
//! Place in the data flow: a client calls libfabric. libfabric (the *host*, which loaded this library) calls
//! [`fi_prov_ini`] once, and then the operation tables of our objects, which call the engine. Most files are
//! named after the libfabric man page that they implement. `abi` holds the conventions of all objects and the
//! table of error numbers, [`params`] the variables, [`observe`] the published counters, and `host` the
//! connection to the host. As a Rust library, the crate offers only the tables, for the `weft` command.

mod abi;
mod addr;
mod av;
mod cm;
mod cntr;
mod collective;
mod cq;
mod device;
mod domain;
mod endpoint;
mod eq;
mod fabric;
mod host;
mod info;
mod mr;
pub mod observe;
pub mod params;
mod pep;
mod sleep;
mod trigger;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};

use device::Devices;
use weft_fi_sys as sys;

/// The name of the provider, the fabric and the domain.
pub(crate) const NAME: &CStr = c"weft";

/// The newest API version that the provider supports. Clients that request a newer one do not see the
/// provider.
pub const API_VERSION: u32 = sys::version(2, 6);
/// The oldest host whose structures have all fields that weft uses.
const OLDEST_HOST: u32 = sys::version(1, 17);

/// A provider structure that a host keeps. The host writes to its `context`; this crate only hands out the
/// address.
struct Provider(UnsafeCell<sys::fi_provider>);

// SAFETY: after start-up only the host accesses the contents, by its own rules.
unsafe impl Sync for Provider {}

/// One provider structure per host, by slot. A host does not pass its identity, so each structure has its own
/// functions.
static PROVIDERS: [Provider; host::MAX_HOSTS + 1] = [
    Provider::new::<0>(),
    Provider::new::<1>(),
    Provider::new::<2>(),
    Provider::new::<3>(),
    Provider::new::<4>(),
    Provider::new::<5>(),
    Provider::new::<6>(),
    Provider::new::<7>(),
    // The structure through which an excess host gets a message.
    Provider::new::<{ host::MAX_HOSTS }>(),
];

impl Provider {
    const fn new<const SLOT: usize>() -> Self {
        Self(UnsafeCell::new(sys::fi_provider {
            version: VERSION,
            fi_version: API_VERSION,
            context: sys::fi_context { internal: [std::ptr::null_mut(); 4] },
            name: NAME.as_ptr(),
            getinfo: Some(info::getinfo::<SLOT>),
            fabric: Some(fabric::open::<SLOT>),
            cleanup: Some(cleanup::<SLOT>),
        }))
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

/// The entry point. libfabric calls it under the loader's lock after it has loaded the library, and receives
/// the provider. The function passes its return address on, by which `host` determines the calling libfabric.
///
/// # Safety
/// Only libfabric may call it.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    // On entry the return address is on top of the stack; the jump leaves the stack as the callee expects it.
    std::arch::naked_asm!("mov rdi, [rsp]", "jmp {start}", start = sym start)
}

/// The entry point; it passes the return address on, as on x86-64.
///
/// # Safety
/// Only libfabric may call it.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    // On entry the return address is in the link register.
    std::arch::naked_asm!("mov x0, x30", "b {start}", start = sym start)
}

/// The entry point where the return address is not available: the host is then searched among the global
/// symbols.
///
/// # Safety
/// Only libfabric may call it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    start(std::ptr::null())
}

/// Attaches to the host. Returns null, which makes the host unload us, in three cases:
/// - The caller is not a supported libfabric.
/// - The process already has the maximum number of hosts, which is logged.
/// - The host already has the provider: it may find our file a second time by another path. Two registrations
///   would share the structure, so discarding one would clean up the other, with the definitions of our
///   variables.
extern "C" fn start(caller: *const c_void) -> *mut sys::fi_provider {
    let started = std::panic::catch_unwind(|| {
        let host = match host::attach(caller, OLDEST_HOST, |slot| PROVIDERS[slot].0.get()) {
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
        weft_os::watch_forks();
        host.provider()
    });
    started.unwrap_or(std::ptr::null_mut())
}

/// The host is about to unload us. A domain's threads end with the domain. Domains that the client left open
/// have their threads stopped here, so that no thread executes unloaded code.
unsafe extern "C" fn cleanup<const SLOT: usize>() {
    abi::object::guard("cleanup", || {
        let Some(host) = host::enter_slot(SLOT) else { return Ok(0) };
        domain::stop_all(Some(host));
        observe::report::at_end(host);
        host.detach();
        if host::attached().next().is_none() {
            sleep::flusher::stop();
        }
        Ok(0)
    });
}
