//! A libfabric loaded at run time, and the structures it allocates.

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

/// The newest API that this client was written for. Structures that newer ones allocate only grew at their ends.
const NEWEST_API: u32 = version(2, 5);

/// A libfabric.
pub struct Library {
    version: u32,
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: OpenFabric,
    strerror: StrError,
}

/// The function of this name and type.
///
/// # Safety
/// The library's function has the type `F`.
unsafe fn symbol<F: Copy>(library: &Dynamic, name: &CStr) -> Result<F, Error> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
    let found = found.map_err(|_| Error::Load(format!("it is not libfabric: it has no {}", name.to_string_lossy())))?;
    Ok(*found)
}

impl Library {
    /// Loads a library, for good.
    pub fn load(path: &Path) -> Result<&'static Self, Error> {
        // Local and deep binding: another libfabric in the process must not catch this one's calls of its own
        // functions.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
        // SAFETY: loading runs the library's constructors; that is what the user asked for by naming it.
        let opened = unsafe { Dynamic::open(Some(path), flags) };
        let library = opened.map_err(|error| Error::Load(error.to_string()))?;
        let library: &'static Dynamic = Box::leak(Box::new(library));
        // SAFETY: the type is that of libfabric's header.
        let version: Version = unsafe { symbol(library, c"fi_version")? };
        Ok(Box::leak(Box::new(Self {
            // SAFETY: it has no conditions.
            version: unsafe { version() },
            // SAFETY: the type is that of libfabric's header.
            getinfo: unsafe { symbol(library, c"fi_getinfo")? },
            // SAFETY: the same.
            freeinfo: unsafe { symbol(library, c"fi_freeinfo")? },
            // SAFETY: the same.
            dupinfo: unsafe { symbol(library, c"fi_dupinfo")? },
            // SAFETY: the same.
            fabric: unsafe { symbol(library, c"fi_fabric")? },
            // SAFETY: the same.
            strerror: unsafe { symbol(library, c"fi_strerror")? },
        })))
    }

    /// The API version, major and minor.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        version_parts(self.version)
    }

    /// The version to ask for.
    pub(crate) fn api(&self) -> u32 {
        self.version.min(NEWEST_API)
    }

    /// The providers in this library, whether or not they find a device here.
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

    /// What the library says about an error number.
    pub(crate) fn text(&self, code: c_int) -> String {
        // SAFETY: it takes any number and returns a string constant.
        let text = unsafe { (self.strerror)(code) };
        string(text)
    }

    /// Turns the result of a call into an error, unless it is 0 or more.
    pub(crate) fn check(&self, what: &'static str, result: isize) -> Result<isize, Error> {
        if result >= 0 { Ok(result) } else { Err(self.failure(what, result)) }
    }

    /// The error of a call that returned a negative number.
    #[cold]
    pub(crate) fn failure(&self, what: &'static str, result: isize) -> Error {
        let code = c_int::try_from(-result).unwrap_or(c_int::MAX);
        Error::Call { what, code, text: self.text(code) }
    }

    /// `fi_allocinfo`.
    pub(crate) fn allocate(&'static self) -> Result<Info, Error> {
        // SAFETY: a null pointer asks for an empty structure.
        let raw = unsafe { (self.dupinfo)(null()) };
        if raw.is_null() {
            Err(self.failure("fi_allocinfo", -(libc::ENOMEM as isize)))
        } else {
            Ok(Info { raw, library: self })
        }
    }

    /// `fi_getinfo`.
    pub(crate) fn getinfo(&self, flags: u64, hints: Option<&Info>) -> Result<Found<'_>, Error> {
        let hints = hints.map_or(null(), |hints| hints.raw.cast_const());
        let mut raw = null_mut();
        // SAFETY: the hints are null or the library's own; the result goes to a local.
        let result = unsafe { (self.getinfo)(self.api(), null(), null(), flags, hints, &mut raw) };
        self.check("fi_getinfo", result as isize)?;
        Ok(Found { raw, library: self })
    }

    /// `fi_fabric`.
    pub(crate) fn open_fabric(&self, info: &Info) -> Result<*mut fid_fabric, Error> {
        let mut fabric = null_mut();
        // SAFETY: the attributes are the library's own; the result goes to a local.
        let result = unsafe { (self.fabric)(info.get().fabric_attr, &mut fabric, null_mut()) };
        self.check("fi_fabric", result as isize)?;
        Ok(fabric)
    }

    /// A copy of one of the structures found.
    pub(crate) fn copy(&'static self, info: &fi_info) -> Result<Info, Error> {
        // SAFETY: it is one of the library's own structures.
        let raw = unsafe { (self.dupinfo)(info) };
        if raw.is_null() {
            Err(self.failure("fi_dupinfo", -(libc::ENOMEM as isize)))
        } else {
            Ok(Info { raw, library: self })
        }
    }
}

/// Text from C, empty for null.
fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: libfabric's strings end in a null byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The name of the provider that a structure describes.
pub(crate) fn provider(info: &fi_info) -> String {
    // SAFETY: libfabric sets it in every structure it returns; null is a possible answer of as_ref.
    let attr = unsafe { info.fabric_attr.as_ref() };
    attr.map(|attr| string(attr.prov_name)).unwrap_or_default()
}

/// One structure, owned.
pub(crate) struct Info {
    pub(crate) raw: *mut fi_info,
    library: &'static Library,
}

impl Info {
    pub(crate) fn get(&self) -> &fi_info {
        // SAFETY: it lives until this is dropped, and is changed only through &mut self.
        unsafe { &*self.raw }
    }

    pub(crate) fn get_mut(&mut self) -> &mut fi_info {
        // SAFETY: it lives until this is dropped, and nobody else has it.
        unsafe { &mut *self.raw }
    }

    /// The attributes of the domain; a structure of libfabric's always has them.
    pub(crate) fn domain(&self) -> &fi_domain_attr {
        // SAFETY: as `get`; fi_allocinfo allocates them and fi_dupinfo copies them.
        unsafe { &*self.get().domain_attr }
    }

    pub(crate) fn domain_mut(&mut self) -> &mut fi_domain_attr {
        // SAFETY: as `get_mut`; fi_allocinfo allocates them.
        unsafe { &mut *self.get_mut().domain_attr }
    }

    pub(crate) fn tx(&self) -> &fi_tx_attr {
        // SAFETY: as `domain`.
        unsafe { &*self.get().tx_attr }
    }

    pub(crate) fn tx_mut(&mut self) -> &mut fi_tx_attr {
        // SAFETY: as `domain_mut`.
        unsafe { &mut *self.get_mut().tx_attr }
    }

    pub(crate) fn rx_mut(&mut self) -> &mut fi_rx_attr {
        // SAFETY: as `domain_mut`.
        unsafe { &mut *self.get_mut().rx_attr }
    }

    pub(crate) fn ep_mut(&mut self) -> &mut fi_ep_attr {
        // SAFETY: as `domain_mut`.
        unsafe { &mut *self.get_mut().ep_attr }
    }

    /// Names the provider, in hints.
    pub(crate) fn set_provider(&mut self, name: &str) -> Result<(), Error> {
        let name = CString::new(name).map_err(|_| Error::Misuse("a provider's name with a null byte"))?;
        // SAFETY: as `domain_mut`.
        let attr = unsafe { &mut *self.get_mut().fabric_attr };
        // fi_freeinfo releases it with free.
        // SAFETY: the string is valid for the call.
        attr.prov_name = unsafe { libc::strdup(name.as_ptr()) };
        Ok(())
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: it is the library's own, and nobody has it any longer.
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
        // SAFETY: the list lives until this is dropped, and nobody changes it.
        let reach = |raw: *mut fi_info| unsafe { raw.as_ref() };
        std::iter::successors(reach(self.raw), move |info| reach(info.next))
    }
}

impl Drop for Found<'_> {
    fn drop(&mut self) {
        // SAFETY: it is the library's own, and nobody has it any longer.
        unsafe { (self.library.freeinfo)(self.raw) };
    }
}
