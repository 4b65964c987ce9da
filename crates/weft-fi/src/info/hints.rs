//! A client's `fi_info`, copied into plain values: the hints of `fi_getinfo`, or the argument of `fi_domain`
//! and `fi_endpoint`.
//!
//! The structures were allocated by the host, so they have every field of libfabric 1.17.

use std::ffi::{CStr, CString, c_char, c_void};

use weft_fi_sys as sys;

use crate::abi::errno::Errno;

/// The longest address that is copied; longer ones are invalid.
const ADDRESS_LIMIT_BYTES: usize = 4096;
/// The longest authorization key, in bytes.
pub(crate) const AUTH_KEY_LIMIT_BYTES: usize = 256;

/// A client's `fi_info`. It is boxed where it is passed on, because its size is 0.8 KB.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    pub(crate) caps: u64,
    pub(crate) addr_format: u32,
    pub(crate) src: Option<Vec<u8>>,
    pub(crate) dest: Option<Vec<u8>>,
    /// The address of a weft `fid`: a passive endpoint or a connection request.
    pub(crate) handle: usize,
    pub(crate) tx: Option<sys::fi_tx_attr>,
    pub(crate) rx: Option<sys::fi_rx_attr>,
    pub(crate) ep: Option<sys::fi_ep_attr>,
    pub(crate) domain: Option<sys::fi_domain_attr>,
    pub(crate) fabric: Option<sys::fi_fabric_attr>,
    pub(crate) domain_name: Option<CString>,
    pub(crate) fabric_name: Option<CString>,
    pub(crate) ep_auth_key: Option<Vec<u8>>,
    pub(crate) domain_auth_key: Option<Vec<u8>>,
}

// SAFETY: the pointers inside the attribute structures are not dereferenced after `read`.
unsafe impl Send for Hints {}

impl Hints {
    /// Copies a structure; `None` for a null pointer.
    ///
    /// # Safety
    /// `raw` is null or points to an `fi_info` that the host allocated, whose pointers are null or valid.
    pub(crate) unsafe fn read(raw: *const sys::fi_info) -> Result<Option<Box<Self>>, Errno> {
        // SAFETY: the caller's promise.
        let Some(info) = (unsafe { raw.as_ref() }) else { return Ok(None) };
        // SAFETY: this pointer and the next four are null or valid, by the caller's promise.
        let tx = unsafe { info.tx_attr.as_ref() }.copied();
        // SAFETY: as above.
        let rx = unsafe { info.rx_attr.as_ref() }.copied();
        // SAFETY: as above.
        let ep = unsafe { info.ep_attr.as_ref() }.copied();
        // SAFETY: as above.
        let domain = unsafe { info.domain_attr.as_ref() }.copied();
        // SAFETY: as above.
        let fabric = unsafe { info.fabric_attr.as_ref() }.copied();
        let text = info.addr_format == sys::FI_ADDR_STR;
        Ok(Some(Box::new(Self {
            caps: info.caps,
            addr_format: info.addr_format,
            // SAFETY: null, or an address of the given length, or a string if the format says so.
            src: unsafe { address(info.src_addr, info.src_addrlen, text) }?,
            // SAFETY: as above.
            dest: unsafe { address(info.dest_addr, info.dest_addrlen, text) }?,
            handle: info.handle as usize,
            tx,
            rx,
            ep,
            domain,
            fabric,
            // SAFETY: null or C strings.
            domain_name: domain.and_then(|attr| unsafe { string(attr.name) }),
            // SAFETY: as above.
            fabric_name: fabric.and_then(|attr| unsafe { string(attr.name) }),
            // SAFETY: null, or keys of the given length.
            ep_auth_key: ep.map_or(Ok(None), |attr| unsafe { key(attr.auth_key, attr.auth_key_size) })?,
            // SAFETY: as above.
            domain_auth_key: domain.map_or(Ok(None), |attr| unsafe { key(attr.auth_key, attr.auth_key_size) })?,
        })))
    }
}

impl Hints {
    /// Removes the fabric and the domain that fi_getinfo found open. They do not restrict the call that opens
    /// an object, and may have been closed since.
    pub(crate) fn without_instances(mut self: Box<Self>) -> Box<Self> {
        if let Some(attr) = &mut self.domain {
            attr.domain = std::ptr::null_mut();
        }
        if let Some(attr) = &mut self.fabric {
            attr.fabric = std::ptr::null_mut();
        }
        self
    }
}

/// # Safety
/// `raw` is null, or valid for `len` bytes, or, if `text`, a C string.
unsafe fn address(raw: *const c_void, len: usize, text: bool) -> Result<Option<Vec<u8>>, Errno> {
    if raw.is_null() {
        return Ok(None);
    }
    if text {
        // SAFETY: the caller's promise.
        return Ok(Some(unsafe { CStr::from_ptr(raw.cast()) }.to_bytes().to_vec()));
    }
    if len > ADDRESS_LIMIT_BYTES {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    Ok(Some(unsafe { std::slice::from_raw_parts(raw.cast::<u8>(), len) }.to_vec()))
}

/// # Safety
/// `raw` is null or a C string.
unsafe fn string(raw: *const c_char) -> Option<CString> {
    // SAFETY: the caller's promise.
    (!raw.is_null()).then(|| unsafe { CStr::from_ptr(raw) }.to_owned())
}

/// # Safety
/// `raw` is null or valid for `len` bytes.
unsafe fn key(raw: *const u8, len: usize) -> Result<Option<Vec<u8>>, Errno> {
    if len == 0 {
        return Ok(None);
    }
    // SIZE_MAX is FI_AV_AUTH_KEY (keys per address), which weft does not support.
    if raw.is_null() || len > AUTH_KEY_LIMIT_BYTES {
        return Err(super::offer::reject("auth_key_size", len, AUTH_KEY_LIMIT_BYTES));
    }
    // SAFETY: the caller's promise.
    Ok(Some(unsafe { std::slice::from_raw_parts(raw, len) }.to_vec()))
}
