//! weft's libfabric provider: the C ABI over [`weft_engine`] and [`weft_nic`].
//!
//! Place in the data flow: a client calls libfabric; libfabric (the *host*, which loaded this library) calls
//! [`fi_prov_ini`] once and then the operation tables of our objects, which translate into engine calls. Each file
//! here is named as the libfabric man page it implements; `object` holds the conventions that all share, [`errno`]
//! the error table, [`params`] the variables, [`publish`] what others may see, `host` how the host is found. As a Rust library the crate offers only
//! the tables, for the `weft` command.

mod addr;
mod atomic;
mod av;
mod cm;
mod cntr;
mod collective;
mod cq;
mod domain;
mod endpoint;
mod eq;
pub mod errno;
mod fabric;
mod flusher;
mod host;
mod info;
mod lock;
mod log;
mod mr;
mod msg;
mod noop;
mod object;
pub mod params;
mod pep;
mod poll;
mod pollset;
mod progress;
pub mod publish;
mod rma;
#[cfg(feature = "sim")]
mod sim;
mod stats;
mod tagged;
mod trigger;
mod wait;
mod waitset;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "sim")]
use sim::Devices;
use weft_fi_sys as sys;
#[cfg(not(feature = "sim"))]
use weft_nic::Devices;

/// The name of provider, fabric and domain.
pub(crate) const NAME: &CStr = c"weft";

/// The newest API version that the provider speaks. A client that asks for a newer one is not shown the provider.
pub const API_VERSION: u32 = sys::version(2, 6);
/// The oldest host whose structures have all the fields that weft touches.
const OLDEST_HOST: u32 = sys::version(1, 17);

/// What the host keeps of us. It writes to the structure (`context`), we only hand out its address.
struct Provider(UnsafeCell<sys::fi_provider>);

// SAFETY: after start-up only the host touches the contents, by its own rules.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(sys::fi_provider {
    version: VERSION,
    fi_version: API_VERSION,
    context: sys::fi_context { internal: [std::ptr::null_mut(); 4] },
    name: NAME.as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

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

/// The structure by which the host knows us.
pub(crate) fn provider_ptr() -> *mut sys::fi_provider {
    PROVIDER.0.get()
}

/// The entry point: libfabric calls it after it has loaded the library, under the loader's lock, and gets the
/// provider. It hands on the return address, by which `host` tells which libfabric is calling, and does nothing
/// else.
///
/// # Safety
/// For libfabric.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    // On entry the return address is on top of the stack; the jump leaves the stack as the callee expects it.
    std::arch::naked_asm!("mov rdi, [rsp]", "jmp {start}", start = sym start)
}

/// The entry point; see the other architecture.
///
/// # Safety
/// For libfabric.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    // On entry the return address is in the link register.
    std::arch::naked_asm!("mov x0, x30", "b {start}", start = sym start)
}

/// The entry point where the return address cannot be had: the host is looked for among the global symbols.
///
/// # Safety
/// For libfabric.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    start(std::ptr::null())
}

/// The host has the provider. It may find our library a second time, by another path: it would give back the first when it throws away the
/// second, which is the same, and with it what it knows of our variables.
static HANDED_OUT: AtomicBool = AtomicBool::new(false);

/// Attaches to the host. Null, which makes the host unload us, when the caller is no libfabric that we know how to work
/// with, or when another one was first, or the same.
extern "C" fn start(caller: *const c_void) -> *mut sys::fi_provider {
    if HANDED_OUT.load(Ordering::Acquire) {
        return std::ptr::null_mut();
    }
    let started = std::panic::catch_unwind(|| {
        if !host::attach(caller) {
            return false;
        }
        let Some(host) = host::get().filter(|host| host.version >= OLDEST_HOST) else { return false };
        log::install();
        params::define(host);
        weft_nic::watch_forks();
        true
    });
    let started = started.unwrap_or(false);
    HANDED_OUT.store(started, Ordering::Release);
    if started { provider_ptr() } else { std::ptr::null_mut() }
}

/// The host is about to unload us. Threads belong to domains, and end with them; those that a client left open at
/// its end are stopped here, so that none runs in code that is gone.
unsafe extern "C" fn cleanup() {
    object::guard("cleanup", || {
        domain::stop_all();
        flusher::stop();
        HANDED_OUT.store(false, Ordering::Release);
        Ok(0)
    });
}
