//! A small libfabric client: the functions of a host library, and the inline functions of its headers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_fi_sys::*;

type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type OpenFabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> u32;
type Open = unsafe extern "C" fn(u32, *const c_char, *mut c_void, usize, u64, *mut *mut fid, *mut c_void) -> c_int;
type GetParams = unsafe extern "C" fn(*mut *mut fi_param, *mut c_int) -> c_int;

/// A host library.
pub(crate) struct Lib {
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: OpenFabric,
    open: Open,
    getparams: GetParams,
    pub(crate) version: u32,
}

/// `struct fi_ops_log`.
#[repr(C)]
struct LogOps {
    size: usize,
    enabled: unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys, u64) -> c_int,
    ready: unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys, u64, *mut u64) -> c_int,
    log: unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys, *const c_char, c_int, *const c_char),
}

/// `struct fid_logging`.
#[repr(C)]
struct Logging {
    fid: fid,
    ops: *mut LogOps,
}

/// A structure that the host allocated. Dropping it calls the host's `fi_freeinfo`.
pub(crate) struct Info<'a> {
    pub(crate) raw: *mut fi_info,
    lib: &'a Lib,
}

unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr) -> F {
    unsafe {
        let address = libc::dlsym(handle, name.as_ptr());
        assert!(!address.is_null(), "no {name:?}");
        std::mem::transmute_copy(&address)
    }
}

fn open_library(path: &Path, flags: c_int) -> *mut c_void {
    unsafe {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let handle = libc::dlopen(name.as_ptr(), flags);
        assert!(!handle.is_null(), "{path:?}: {:?}", CStr::from_ptr(libc::dlerror()));
        handle
    }
}

impl Lib {
    pub(crate) fn load(path: &Path) -> Self {
        if let Some(decoy) = std::env::var_os("WEFT_TEST_DECOY") {
            open_library(Path::new(&decoy), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        }
        Self::load_alone(path)
    }

    /// Loads the library without a decoy in front of it.
    pub(crate) fn load_alone(path: &Path) -> Self {
        // Deep binding prevents a decoy from replacing the host's calls of its own functions. It would also
        // prevent the address sanitizer from replacing the library's allocator.
        let deep = if std::env::var_os("WEFT_TEST_ASAN").is_some() { 0 } else { libc::RTLD_DEEPBIND };
        let handle = open_library(path, libc::RTLD_NOW | libc::RTLD_LOCAL | deep);
        unsafe {
            let version: Version = symbol(handle, c"fi_version");
            Self {
                getinfo: symbol(handle, c"fi_getinfo"),
                freeinfo: symbol(handle, c"fi_freeinfo"),
                dupinfo: symbol(handle, c"fi_dupinfo"),
                fabric: symbol(handle, c"fi_fabric"),
                open: symbol(handle, c"fi_open"),
                getparams: symbol(handle, c"fi_getparams"),
                version: version(),
            }
        }
    }

    /// The API versions under test: those that clients use, as far as the host has them.
    pub(crate) fn versions(&self) -> Vec<u32> {
        let asked = [
            (1, 0),
            (1, 1),
            (1, 3),
            (1, 4),
            (1, 5),
            (1, 8),
            (1, 9),
            (1, 13),
            (1, 17),
            (1, 18),
            (1, 20),
            (2, 0),
            (2, 4),
            (2, 5),
        ];
        let all = asked.map(|(major, minor)| version(major, minor));
        [0].into_iter().chain(all).filter(|&api| api <= self.version).collect()
    }

    /// The newest API version of this host.
    pub(crate) fn newest(&self) -> u32 {
        *self.versions().last().unwrap()
    }

    /// `fi_allocinfo`.
    pub(crate) fn allocinfo(&self) -> Info<'_> {
        let raw = unsafe { (self.dupinfo)(null()) };
        assert!(!raw.is_null());
        Info { raw, lib: self }
    }

    /// `fi_getinfo`.
    pub(crate) fn getinfo(
        &self,
        api: u32,
        node: Option<&CStr>,
        service: Option<&CStr>,
        flags: u64,
        hints: Option<&Info<'_>>,
    ) -> Result<Info<'_>, c_int> {
        let pointer = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
        let mut raw = null_mut();
        let hints = hints.map_or(null(), |hints| hints.raw.cast_const());
        let result = unsafe { (self.getinfo)(api, pointer(node), pointer(service), flags, hints, &mut raw) };
        if result == 0 { Ok(Info { raw, lib: self }) } else { Err(-result) }
    }

    /// Calls `fi_getinfo` with hints only. The host must return exactly one answer.
    pub(crate) fn ask(&self, api: u32, hints: Option<&Info<'_>>) -> Result<Info<'_>, c_int> {
        let info = self.getinfo(api, None, None, 0, hints)?;
        assert_eq!(info.names(), ["weft"]);
        Ok(info)
    }

    /// Takes ownership of a structure.
    pub(crate) fn own(&self, raw: *mut fi_info) -> Info<'_> {
        Info { raw, lib: self }
    }

    /// `fi_dupinfo`.
    pub(crate) unsafe fn duplicate(&self, raw: *const fi_info) -> *mut fi_info {
        unsafe { (self.dupinfo)(raw) }
    }

    /// The names and values of the variables.
    pub(crate) fn params(&self) -> Vec<(String, Option<String>)> {
        let (mut list, mut count) = (null_mut(), 0);
        assert_eq!(unsafe { (self.getparams)(&mut list, &mut count) }, 0);
        let owned = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        (0..count as usize)
            .map(|at| unsafe { *list.add(at) })
            .map(|param| (owned(param.name), (!param.value.is_null()).then(|| owned(param.value))))
            .collect()
    }

    /// Receives and counts the host's log lines of the provider weft (`fi_import_log`, rdma/fi_ext.h).
    pub(crate) fn count_log_lines(&self) -> &'static AtomicUsize {
        static COUNTS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        unsafe extern "C" fn enabled(prov: *const fi_provider, _: fi_log_level, _: fi_log_subsys, _: u64) -> c_int {
            (!prov.is_null() && unsafe { CStr::from_ptr((*prov).name) } == c"weft").into()
        }
        unsafe extern "C" fn ready(_: *const fi_provider, _: fi_log_level, _: u32, _: u64, _: *mut u64) -> c_int {
            0
        }
        unsafe extern "C" fn log<const AT: usize>(
            _: *const fi_provider,
            _: fi_log_level,
            _: fi_log_subsys,
            _: *const c_char,
            _: c_int,
            _: *const c_char,
        ) {
            COUNTS[AT].fetch_add(1, Ordering::Relaxed);
        }
        let at = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = [log::<0>, log::<1>][at];
        let ops = Box::leak(Box::new(LogOps { size: size_of::<LogOps>(), enabled, ready, log }));
        let mut logging: Box<Logging> = Box::new(unsafe { std::mem::zeroed() });
        (logging.fid.fclass, logging.ops) = (FI_CLASS_LOG as usize, ops);
        let (logging, mut open) = (Box::leak(logging), null_mut());
        let version = self.version;
        unsafe {
            let name = c"logging".as_ptr();
            assert_eq!((self.open)(version, name, null_mut(), 0, 0, &mut open, null_mut()), 0);
            // fi_import_fid: binds the test's object to the library's.
            assert_eq!(bind(open, &raw mut logging.fid, 0), 0);
            assert_eq!(close(open), 0);
        }
        &COUNTS[at]
    }

    /// `fi_fabric`.
    pub(crate) fn fabric(&self, info: &Info<'_>) -> *mut fid_fabric {
        let mut fabric = null_mut();
        assert_eq!(self.fabric_into(info, &mut fabric), 0, "fi_fabric");
        fabric
    }

    /// Calls `fi_fabric` with a pointer for the result, which may be null.
    pub(crate) fn fabric_into(&self, info: &Info<'_>, out: *mut *mut fid_fabric) -> c_int {
        unsafe { (self.fabric)((*info.raw).fabric_attr, out, null_mut()) }
    }
}

impl Drop for Info<'_> {
    fn drop(&mut self) {
        unsafe { (self.lib.freeinfo)(self.raw) };
    }
}

impl Info<'_> {
    pub(crate) fn get(&self) -> &mut fi_info {
        unsafe { &mut *self.raw }
    }
    pub(crate) fn tx(&self) -> &mut fi_tx_attr {
        unsafe { &mut *self.get().tx_attr }
    }
    pub(crate) fn rx(&self) -> &mut fi_rx_attr {
        unsafe { &mut *self.get().rx_attr }
    }
    pub(crate) fn ep(&self) -> &mut fi_ep_attr {
        unsafe { &mut *self.get().ep_attr }
    }
    pub(crate) fn domain(&self) -> &mut fi_domain_attr {
        unsafe { &mut *self.get().domain_attr }
    }
    pub(crate) fn fabric(&self) -> &mut fi_fabric_attr {
        unsafe { &mut *self.get().fabric_attr }
    }

    /// The names of the providers of all answers.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut next = self.raw;
        while !next.is_null() {
            unsafe {
                names.push(CStr::from_ptr((*(*next).fabric_attr).prov_name).to_string_lossy().into_owned());
                next = (*next).next;
            }
        }
        names
    }

    /// The source address.
    pub(crate) fn src(&self) -> Option<&[u8]> {
        bytes(self.get().src_addr, self.get().src_addrlen)
    }
    pub(crate) fn dest(&self) -> Option<&[u8]> {
        bytes(self.get().dest_addr, self.get().dest_addrlen)
    }
}

fn bytes<'a>(address: *const c_void, len: usize) -> Option<&'a [u8]> {
    (!address.is_null()).then(|| unsafe { std::slice::from_raw_parts(address.cast(), len) })
}

/// `fi_close`.
pub(crate) fn close<F>(object: *mut F) -> c_int {
    unsafe {
        let fid: *mut fid = object.cast();
        (*(*fid).ops).close.unwrap()(fid)
    }
}

/// `fi_bind` of any kind.
pub(crate) fn bind<F, G>(object: *mut F, other: *mut G, flags: u64) -> c_int {
    unsafe {
        let fid: *mut fid = object.cast();
        (*(*fid).ops).bind.unwrap()(fid, other.cast(), flags)
    }
}

/// `fi_control`.
pub(crate) fn control<F>(object: *mut F, command: u32, arg: *mut c_void) -> c_int {
    unsafe {
        let fid: *mut fid = object.cast();
        (*(*fid).ops).control.unwrap()(fid, command as c_int, arg)
    }
}

/// Opens an object by a function of the parent's table: `$table.$slot(parent, attr, &mut out, context)`.
#[macro_export]
macro_rules! open {
    ($parent:expr, $slot:ident, $attr:expr) => {{
        let mut out = std::ptr::null_mut();
        let (parent, attr) = ($parent, $attr);
        let result = unsafe { (*(*parent).ops).$slot.unwrap()(parent, attr, &mut out, std::ptr::null_mut()) };
        if result == 0 { Ok(out) } else { Err(-result) }
    }};
}

/// A fabric and a domain. Both are closed when this is dropped, which must succeed.
pub(crate) struct Opened {
    pub(crate) fabric: *mut fid_fabric,
    pub(crate) domain: *mut fid_domain,
}

impl Opened {
    pub(crate) fn new(lib: &Lib, info: &Info<'_>) -> Self {
        let fabric = lib.fabric(info);
        let domain = open!(fabric, domain, info.raw).expect("fi_domain");
        Self { fabric, domain }
    }

    pub(crate) fn av(&self, change: impl Fn(&mut fi_av_attr)) -> Result<*mut fid_av, c_int> {
        let mut attr: fi_av_attr = unsafe { std::mem::zeroed() };
        change(&mut attr);
        open!(self.domain, av_open, &mut attr)
    }

    pub(crate) fn cq(&self) -> *mut fid_cq {
        let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
        attr.format = FI_CQ_FORMAT_TAGGED;
        open!(self.domain, cq_open, &mut attr).expect("fi_cq_open")
    }

    pub(crate) fn cntr(&self) -> *mut fid_cntr {
        let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
        attr.events = FI_CNTR_EVENTS_COMP;
        open!(self.domain, cntr_open, &mut attr).expect("fi_cntr_open")
    }

    pub(crate) fn eq(&self, change: impl Fn(&mut fi_eq_attr)) -> Result<*mut fid_eq, c_int> {
        let mut attr: fi_eq_attr = unsafe { std::mem::zeroed() };
        change(&mut attr);
        open!(self.fabric, eq_open, &mut attr)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(close(self.domain), 0, "closing the domain");
            assert_eq!(close(self.fabric), 0, "closing the fabric");
        }
    }
}
