//! Hosts: the libfabrics that loaded this provider, and their functions.
//!
//! Place in the data flow: `fi_prov_ini` ([`crate::entry_point`]) identifies the host that calls it. Every `fi_info` is
//! allocated and freed by the functions of the host that requested it. Variables are declared and read
//! through the host, and log lines go to it.
//!
//! weft does not link against libfabric. Its functions are versioned symbols, and the newest version differs
//! between hosts: `fi_dupinfo` is FABRIC_1.3 in 1.17 and FABRIC_1.9 in 2.5. A provider bound to a newer
//! version than the host has does not load. A provider bound to an older one gets shorter structures. The
//! functions are therefore looked up at run time. `dlsym` returns the host's newest version of each, which is
//! the layout that the host itself uses.
//!
//! A process may have several libfabrics: MPI libraries load their own with RTLD_LOCAL, next to the system's.
//! `RTLD_DEFAULT` then finds another one or none. The right one is the caller of `fi_prov_ini`, whose code
//! contains the return address of the call. `fi_prov_ini` therefore passes its return address on. `dladdr`
//! identifies the object that contains it, the functions are looked up there, and a check ensures that they
//! belong to the same object. If no return address is available, the global scope is searched.
//!
//! Several hosts may load the provider in one process. The loader maps a file once, so they share every
//! static. Each host has a slot with a `fi_provider` of its own, whose functions know the slot. Every object
//! belongs to the host that opened it ([`crate::abi::object::Uses`]). [`current`] is the host of the object
//! in the thread's last call. Calls on the data path do not update it.
//!
//! Invariant: a host's functions are called only between its `fi_prov_ini` and the return of its `cleanup`.
//! The host outlives that, because it unloads us.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use parking_lot::Mutex;
use weft_fi_sys::{fi_info, fi_log_level, fi_log_subsys, fi_param_type, fi_provider};

use crate::params::Params;

type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type ParamDefine = unsafe extern "C" fn(*const fi_provider, *const c_char, fi_param_type, *const c_char, ...) -> c_int;
type ParamGet = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;
type LogEnabled = unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys) -> c_int;
type Log =
    unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys, *const c_char, c_int, *const c_char, ...);
type Version = unsafe extern "C" fn() -> u32;

/// A host, with the functions of it that weft uses.
pub(crate) struct Host {
    dup_info: DupInfo,
    free_info: FreeInfo,
    param_define: ParamDefine,
    param_get: ParamGet,
    log_enabled: LogEnabled,
    log: Log,
    /// The host's API version, packed.
    pub(crate) version: u32,
    /// The base address of the host's object, which identifies the host.
    base: usize,
    /// The structure by which the host knows the provider.
    provider: *mut fi_provider,
    /// The values of the variables, read on first use.
    params: OnceLock<Params>,
    /// True between `fi_prov_ini` and `cleanup`.
    attached: AtomicBool,
}

// SAFETY: the pointer refers to a static structure, which only the host accesses, by its own rules.
unsafe impl Send for Host {}
// SAFETY: as above; the functions may be called by any thread.
unsafe impl Sync for Host {}

/// The maximum number of host libraries in one process.
pub(crate) const MAX_HOSTS: usize = 8;

/// The hosts by slot, null for a slot that was never used. A host is never freed, because other threads may
/// be reading it.
static HOSTS: [AtomicPtr<Host>; MAX_HOSTS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_HOSTS];
/// Locked while a host attaches.
static ATTACHING: Mutex<()> = Mutex::new(());

thread_local! {
    static CURRENT: Cell<Option<&'static Host>> = const { Cell::new(None) };
}

/// The host that this thread serves: that of the object in its last call, or else the first attached host.
/// `None` in a program that links weft as a Rust library.
pub(crate) fn current() -> Option<&'static Host> {
    CURRENT.get().filter(|host| host.is_attached()).or_else(|| attached().next())
}

/// Sets the host that this thread serves.
pub(crate) fn enter(host: Option<&'static Host>) {
    CURRENT.set(host);
}

/// Sets the host that this thread serves to the host in `slot`, which is calling.
pub(crate) fn enter_slot(slot: usize) -> Option<&'static Host> {
    let host = in_slot(slot).filter(|host| host.is_attached());
    enter(host);
    host
}

/// All attached hosts.
pub(crate) fn attached() -> impl Iterator<Item = &'static Host> {
    (0..MAX_HOSTS).filter_map(in_slot).filter(|host| host.is_attached())
}

fn in_slot(slot: usize) -> Option<&'static Host> {
    // SAFETY: null, or a host, which is never freed.
    unsafe { HOSTS.get(slot)?.load(Ordering::Acquire).as_ref() }
}

/// The reason why a host does not get the provider.
pub(crate) enum Refusal {
    /// The caller is not a supported libfabric.
    Unsupported,
    /// The host already has the provider, by another path to the file.
    AlreadyAttached,
    /// [`MAX_HOSTS`] are attached already.
    TooMany(Box<Host>),
}

/// Finds the host that contains the code at `caller`, and assigns it a slot and the provider of that slot.
/// (`provider` of [`MAX_HOSTS`] is for a host that is refused.)
pub(crate) fn attach(
    caller: *const c_void,
    oldest: u32,
    provider: impl Fn(usize) -> *mut fi_provider,
) -> Result<&'static Host, Refusal> {
    let mut found = Box::new(find(caller).filter(|host| host.version >= oldest).ok_or(Refusal::Unsupported)?);
    let _attaching = ATTACHING.lock();
    if attached().any(|host| host.base == found.base) {
        return Err(Refusal::AlreadyAttached);
    }
    let Some(slot) = (0..MAX_HOSTS).find(|&slot| in_slot(slot).is_none_or(|host| !host.is_attached())) else {
        found.provider = provider(MAX_HOSTS);
        return Err(Refusal::TooMany(found));
    };
    found.provider = provider(slot);
    found.attached = AtomicBool::new(true);
    let host: &'static Host = Box::leak(found);
    HOSTS[slot].store(std::ptr::from_ref(host).cast_mut(), Ordering::Release);
    Ok(host)
}

/// The name and the base address of the object that contains an address.
fn object_of(address: *const c_void) -> Option<(*const c_char, usize)> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address and fills in the structure.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    if address.is_null() || found == 0 {
        return None;
    }
    // SAFETY: zeroed is a valid value of the structure, and dladdr may have written to it.
    let info = unsafe { info.assume_init() };
    Some((info.dli_fname, info.dli_fbase as usize))
}

fn find(caller: *const c_void) -> Option<Host> {
    match object_of(caller) {
        Some((name, base)) if !name.is_null() => {
            // SAFETY: a C string from dladdr, which is valid while the object is loaded. The object is
            // calling us.
            let handle = unsafe { libc::dlopen(name, libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
            if handle.is_null() {
                // The caller is the main program, or its file was replaced. Its functions can only be global.
                return Host::load(libc::RTLD_DEFAULT, Some(base));
            }
            let host = Host::load(handle, Some(base));
            // SAFETY: reverts the dlopen above. The object stays loaded, because it is calling us.
            unsafe { libc::dlclose(handle) };
            host
        }
        _ => Host::load(libc::RTLD_DEFAULT, None),
    }
}

/// Looks up a symbol of an object as a function pointer of type `F`.
///
/// # Safety
/// `F` is a function pointer type, and the symbol has that signature wherever it is defined.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the handle is open, and the name is a C string.
    let address = NonNull::new(unsafe { libc::dlsym(handle, name.as_ptr()) })?;
    // SAFETY: the caller's promise; the sizes are equal.
    Some(unsafe { std::mem::transmute_copy::<NonNull<c_void>, F>(&address) })
}

impl Host {
    /// Looks up the functions. With `base`, they must belong to the object at that address.
    fn load(handle: *mut c_void, base: Option<usize>) -> Option<Self> {
        // SAFETY: here and below, the signatures are those of rdma/fabric.h, fi_prov.h and fi_log.h.
        let dup_info = unsafe { symbol::<DupInfo>(handle, c"fi_dupinfo") }?;
        // SAFETY: as above.
        let free_info = unsafe { symbol::<FreeInfo>(handle, c"fi_freeinfo") }?;
        // SAFETY: as above.
        let param_define = unsafe { symbol::<ParamDefine>(handle, c"fi_param_define") }?;
        // SAFETY: as above.
        let param_get = unsafe { symbol::<ParamGet>(handle, c"fi_param_get") }?;
        // SAFETY: as above.
        let log_enabled = unsafe { symbol::<LogEnabled>(handle, c"fi_log_enabled") }?;
        // SAFETY: as above.
        let log = unsafe { symbol::<Log>(handle, c"fi_log") }?;
        // SAFETY: as above.
        let version = unsafe { symbol::<Version>(handle, c"fi_version") }?;
        let (_, home) = object_of(dup_info as *const c_void)?;
        if base.is_some_and(|base| base != home) {
            return None;
        }
        // SAFETY: the function takes no arguments and returns a number.
        let version = unsafe { version() };
        let (provider, params, attached) = (std::ptr::null_mut(), OnceLock::new(), AtomicBool::new(false));
        Some(Self {
            dup_info,
            free_info,
            param_define,
            param_get,
            log_enabled,
            log,
            version,
            base: home,
            provider,
            params,
            attached,
        })
    }

    fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire)
    }

    /// The host is about to unload us. Its functions are not called afterwards.
    pub(crate) fn detach(&self) {
        self.attached.store(false, Ordering::Release);
    }

    /// The structure by which the host knows the provider.
    pub(crate) fn provider(&self) -> *mut fi_provider {
        self.provider
    }

    /// The values of the variables for this host.
    pub(crate) fn params(&'static self) -> &'static Params {
        self.params.get_or_init(|| Params::of(self))
    }

    /// Allocates a zeroed `fi_info` with all its attribute structures, as `fi_allocinfo` does.
    pub(crate) fn new_info(&'static self) -> Option<Info> {
        // SAFETY: the host's function; null requests an empty structure.
        let raw = unsafe { (self.dup_info)(std::ptr::null()) };
        NonNull::new(raw).map(|raw| Info { raw, host: self })
    }

    /// Copies a client's `fi_info`.
    ///
    /// # Safety
    /// `info` was allocated by this host.
    pub(crate) unsafe fn copy_info(&'static self, info: *const fi_info) -> Option<Info> {
        // SAFETY: the host's function, called with a structure that it allocated.
        let raw = unsafe { (self.dup_info)(info) };
        NonNull::new(raw).map(|raw| Info { raw, host: self })
    }

    /// Declares a variable that holds a string.
    pub(crate) fn define_param(&self, name: &CStr, help: &CStr) {
        let provider = self.provider.cast_const();
        // SAFETY: the host's function; the format consumes one string. If it fails, the variable is only
        // missing in the host's list.
        unsafe {
            (self.param_define)(provider, name.as_ptr(), weft_fi_sys::FI_PARAM_STRING, c"%s".as_ptr(), help.as_ptr())
        };
    }

    /// The value of a variable that is set.
    pub(crate) fn param(&self, name: &CStr) -> Option<String> {
        let mut value: *mut c_char = std::ptr::null_mut();
        // SAFETY: the host's function; for a string it stores one pointer.
        let result = unsafe { (self.param_get)(self.provider, name.as_ptr(), (&raw mut value).cast()) };
        if result != 0 || value.is_null() {
            return None;
        }
        // SAFETY: a C string inside the environment, where the host has just found it.
        Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }

    /// Whether the host prints lines of this level and subsystem.
    pub(crate) fn log_enabled(&self, level: fi_log_level, subsys: fi_log_subsys) -> bool {
        // SAFETY: the host's function, which only reads the provider's context.
        unsafe { (self.log_enabled)(self.provider, level, subsys) != 0 }
    }

    /// Prints a log line.
    pub(crate) fn log(&self, level: fi_log_level, subsys: fi_log_subsys, function: &CStr, line: c_int, text: &CStr) {
        // SAFETY: the host's function; the format consumes exactly one string.
        unsafe { (self.log)(self.provider, level, subsys, function.as_ptr(), line, c"%s\n".as_ptr(), text.as_ptr()) };
    }
}

/// An owned `fi_info` that the host allocated, with the five attribute structures that `fi_allocinfo` adds.
pub(crate) struct Info {
    raw: NonNull<fi_info>,
    host: &'static Host,
}

impl Info {
    /// The pointer to the structure.
    pub(crate) const fn as_ptr(&self) -> *mut fi_info {
        self.raw.as_ptr()
    }

    /// A copy, allocated by the same host.
    pub(crate) fn copy(&self) -> Option<Self> {
        // SAFETY: this host allocated the structure.
        unsafe { self.host.copy_info(self.raw.as_ptr()) }
    }

    /// Transfers the ownership to the host, which frees the structure.
    pub(crate) fn into_raw(self) -> *mut fi_info {
        let raw = self.raw.as_ptr();
        std::mem::forget(self);
        raw
    }
}

// SAFETY: the structure has one owner, and any thread may call the host's function.
unsafe impl Send for Info {}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: allocated by the same host, and still owned.
        unsafe { (self.host.free_info)(self.raw.as_ptr()) };
    }
}

/// Copies bytes into memory that the host's `fi_freeinfo` can free: it calls the C library's `free`.
pub(crate) fn malloc_copy(bytes: &[u8]) -> Option<NonNull<c_void>> {
    // SAFETY: any size is allowed. At least one byte is requested, so success is never null.
    let memory = NonNull::new(unsafe { libc::malloc(bytes.len().max(1)) })?;
    // SAFETY: fresh memory of at least that length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.as_ptr().cast(), bytes.len()) };
    Some(memory)
}

/// Replaces an address in a structure of the host, which owns the new one from then on.
///
/// # Safety
/// `place` is null or was allocated by the C library.
pub(crate) unsafe fn set_address(place: &mut *mut c_void, len: &mut usize, bytes: &[u8]) -> Option<()> {
    let copy = malloc_copy(bytes)?;
    let old = std::mem::replace(place, copy.as_ptr());
    *len = bytes.len();
    // SAFETY: the caller's promise.
    unsafe { libc::free(old) };
    Some(())
}

/// Copies a string into memory that the host's `fi_freeinfo` can free.
pub(crate) fn malloc_string(text: &CStr) -> *mut c_char {
    malloc_copy(text.to_bytes_with_nul()).map_or(std::ptr::null_mut(), |memory| memory.as_ptr().cast())
}
