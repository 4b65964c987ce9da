//! A libfabric that is loaded at run time, and the structures that it allocates.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use libloading::os::unix::Library as Dynamic;
use weft_fi_sys::*;

use crate::Error;

type Version = unsafe extern "C" fn() -> u32;
type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type OpenFabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;

/// The newest API version that this client supports. Newer versions only append to the structures.
const NEWEST_API: u32 = version(2, 5);

/// A loaded libfabric.
pub struct Library {
    version: u32,
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: OpenFabric,
    strerror: StrError,
}

/// Looks up the function `name` of type `F`.
///
/// # Safety
/// The library's function has the type `F`.
unsafe fn symbol<F: Copy>(library: &Dynamic, name: &CStr) -> Result<F, Error> {
    // SAFETY: the caller promises the type.
    let found = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
    let found = found
        .map_err(|_| Error::Load(format!("the library is not libfabric: it has no {}", name.to_string_lossy())))?;
    Ok(*found)
}

impl Library {
    /// Loads a library, which is never unloaded.
    pub fn load(path: &Path) -> Result<&'static Self, Error> {
        // Local and deep binding: otherwise another libfabric in the process could intercept this library's
        // calls to its own functions.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
        // SAFETY: loading runs the library's constructors; the user requested that by naming the library.
        let opened = unsafe { Dynamic::open(Some(path), flags) };
        Self::of(opened.map_err(|error| Error::Load(error.to_string()))?)
    }

    /// The library with this file name (`DT_SONAME`), if the process has loaded it already.
    pub fn loaded(name: &str) -> Option<Result<&'static Self, Error>> {
        // SAFETY: with RTLD_NOLOAD no constructor runs.
        let opened = unsafe { Dynamic::open(Some(name), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NOLOAD) };
        opened.ok().map(Self::of)
    }

    fn of(library: Dynamic) -> Result<&'static Self, Error> {
        let library: &'static Dynamic = Box::leak(Box::new(library));
        // SAFETY: the type is that of libfabric's header.
        let version: Version = unsafe { symbol(library, c"fi_version")? };
        Ok(Box::leak(Box::new(Self {
            // SAFETY: the function has no preconditions.
            version: unsafe { version() },
            // SAFETY: the type is that of libfabric's header.
            getinfo: unsafe { symbol(library, c"fi_getinfo")? },
            // SAFETY: the type is that of libfabric's header.
            freeinfo: unsafe { symbol(library, c"fi_freeinfo")? },
            // SAFETY: the type is that of libfabric's header.
            dupinfo: unsafe { symbol(library, c"fi_dupinfo")? },
            // SAFETY: the type is that of libfabric's header.
            fabric: unsafe { symbol(library, c"fi_fabric")? },
            // SAFETY: the type is that of libfabric's header.
            strerror: unsafe { symbol(library, c"fi_strerror")? },
        })))
    }

    /// The API version, major and minor.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        version_parts(self.version)
    }

    /// The API version to request.
    pub(crate) fn api(&self) -> u32 {
        self.version.min(NEWEST_API)
    }

    /// The names of the providers in this library, whether or not they find a device on this host.
    pub fn providers(&self) -> Result<Vec<String>, Error> {
        let all = self.getinfo(FI_PROV_ATTR_ONLY, None)?;
        let mut names: Vec<String> = Vec::new();
        for info in all.iter() {
            let name = provider(info);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The library's text for an error number.
    pub(crate) fn text(&self, code: c_int) -> String {
        // SAFETY: the function takes any number and returns a string constant.
        let text = unsafe { (self.strerror)(code) };
        string(text)
    }

    /// Turns the negative result of a call into an error.
    pub(crate) fn check(&self, what: &'static str, result: isize) -> Result<isize, Error> {
        if result >= 0 { Ok(result) } else { Err(self.failure(what, result)) }
    }

    /// The error of a call that returned the negative number `result`.
    #[cold]
    pub(crate) fn failure(&self, what: &'static str, result: isize) -> Error {
        let code = c_int::try_from(-result).unwrap_or(c_int::MAX);
        Error::Call { what, code, text: self.text(code) }
    }

    /// Calls `fi_allocinfo`.
    pub(crate) fn allocate(&'static self) -> Result<Info, Error> {
        // SAFETY: a null pointer asks for an empty structure.
        let raw = unsafe { (self.dupinfo)(null()) };
        if raw.is_null() {
            Err(self.failure("fi_allocinfo", -(libc::ENOMEM as isize)))
        } else {
            Ok(Info { raw, library: self })
        }
    }

    /// Calls `fi_getinfo`.
    pub(crate) fn getinfo(&self, flags: u64, hints: Option<&Info>) -> Result<Found<'_>, Error> {
        let hints = hints.map_or(null(), |hints| hints.raw.cast_const());
        let mut raw = null_mut();
        // SAFETY: the hints are null or the library's own; the result goes to a local.
        let result = unsafe { (self.getinfo)(self.api(), null(), null(), flags, hints, &mut raw) };
        self.check("fi_getinfo", result as isize)?;
        Ok(Found { raw, library: self })
    }

    /// Calls `fi_fabric`.
    pub(crate) fn open_fabric(&self, info: &Info) -> Result<*mut fid_fabric, Error> {
        let mut fabric = null_mut();
        // SAFETY: the attributes are the library's own; the result goes to a local.
        let result = unsafe { (self.fabric)(info.get().fabric_attr, &mut fabric, null_mut()) };
        self.check("fi_fabric", result as isize)?;
        Ok(fabric)
    }

    /// Calls `fi_dupinfo`: copies one of the structures found.
    pub(crate) fn copy(&'static self, info: &fi_info) -> Result<Info, Error> {
        // SAFETY: the library allocated the structure.
        let raw = unsafe { (self.dupinfo)(info) };
        if raw.is_null() {
            Err(self.failure("fi_dupinfo", -(libc::ENOMEM as isize)))
        } else {
            Ok(Info { raw, library: self })
        }
    }
}

/// Converts a C string; null becomes an empty string.
fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: libfabric's strings end in a null byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The name of the provider in a structure.
pub(crate) fn provider(info: &fi_info) -> String {
    // SAFETY: libfabric sets it in every structure it returns; null gives `None`.
    let attr = unsafe { info.fabric_attr.as_ref() };
    attr.map(|attr| string(attr.prov_name)).unwrap_or_default()
}

/// An owned `fi_info`.
pub(crate) struct Info {
    pub(crate) raw: *mut fi_info,
    library: &'static Library,
}

impl Info {
    pub(crate) fn get(&self) -> &fi_info {
        // SAFETY: the structure is valid until `self` is dropped, and changed only through `&mut self`.
        unsafe { &*self.raw }
    }

    pub(crate) fn get_mut(&mut self) -> &mut fi_info {
        // SAFETY: the structure is valid until `self` is dropped, and `self` is its only owner.
        unsafe { &mut *self.raw }
    }

    /// The domain attributes, which every structure of libfabric has.
    pub(crate) fn domain(&self) -> &fi_domain_attr {
        // SAFETY: as in `get`; fi_allocinfo allocates the attributes and fi_dupinfo copies them.
        unsafe { &*self.get().domain_attr }
    }

    pub(crate) fn domain_mut(&mut self) -> &mut fi_domain_attr {
        // SAFETY: as in `get_mut`; fi_allocinfo allocates the attributes.
        unsafe { &mut *self.get_mut().domain_attr }
    }

    pub(crate) fn tx(&self) -> &fi_tx_attr {
        // SAFETY: as in `domain`.
        unsafe { &*self.get().tx_attr }
    }

    pub(crate) fn tx_mut(&mut self) -> &mut fi_tx_attr {
        // SAFETY: as in `domain_mut`.
        unsafe { &mut *self.get_mut().tx_attr }
    }

    pub(crate) fn rx_mut(&mut self) -> &mut fi_rx_attr {
        // SAFETY: as in `domain_mut`.
        unsafe { &mut *self.get_mut().rx_attr }
    }

    pub(crate) fn ep_mut(&mut self) -> &mut fi_ep_attr {
        // SAFETY: as in `domain_mut`.
        unsafe { &mut *self.get_mut().ep_attr }
    }

    /// Sets the provider's name, for hints.
    pub(crate) fn set_provider(&mut self, name: &str) -> Result<(), Error> {
        let name = CString::new(name).map_err(|_| Error::Misuse("the provider's name contains a null byte"))?;
        // SAFETY: as in `domain_mut`.
        let attr = unsafe { &mut *self.get_mut().fabric_attr };
        // fi_freeinfo frees the copy.
        // SAFETY: the string is valid for the call.
        attr.prov_name = unsafe { libc::strdup(name.as_ptr()) };
        Ok(())
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the library allocated it, and `self` is its only owner.
        unsafe { (self.library.freeinfo)(self.raw) };
    }
}

/// The list that `fi_getinfo` returned.
pub(crate) struct Found<'a> {
    raw: *mut fi_info,
    library: &'a Library,
}

impl Found<'_> {
    /// The structures, best first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &fi_info> {
        // SAFETY: the list is valid and unchanged until `self` is dropped.
        let reach = |raw: *mut fi_info| unsafe { raw.as_ref() };
        std::iter::successors(reach(self.raw), move |info| reach(info.next))
    }
}

impl Drop for Found<'_> {
    fn drop(&mut self) {
        // SAFETY: the library allocated it, and `self` is its only owner.
        unsafe { (self.library.freeinfo)(self.raw) };
    }
}
