//! `fi_getinfo`: matches the client's hints with the properties of weft (fi_getinfo(3)).
//!
//! Place in the data flow: the host calls [`getinfo`] for every query. [`hints`] copies the client's
//! structures into plain values. [`offer`] selects the result, also as plain values. This file resolves
//! addresses and writes the result into an `fi_info` that the host allocates. `fi_domain` and `fi_endpoint`
//! read an `fi_info` by the same [`Hints::read`].
//!
//! Rules (fi_getinfo(3)): a hint that is zero is a wildcard. Any other hint must be satisfied, or the result
//! is -FI_ENODATA. A log line at info level then contains the attribute, the wanted value and the offered
//! one. Hints that cost nothing are returned as requested (threading, progress, AV type, tag format,
//! operation flags, traffic class). No mode bit is ever required of the client.
//!
//! Structures: only fields that libfabric 1.17 has are read and written, see `weft_fi_sys`.

pub(crate) mod caps;
pub(crate) mod ep_type;
pub(crate) mod hints;
pub(crate) mod network;
pub(crate) mod offer;
pub(crate) mod order;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{SocketAddr, UdpSocket};

use weft_engine::name::EpName;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::{self, Errno};
use crate::abi::object;
use crate::addr::{self, Format, Query};
use crate::host::{self, Host, Info};
use crate::info::hints::Hints;
use crate::info::offer::Offer;
use crate::params::Params;

pub(crate) use crate::info::ep_type::EpType;
pub(crate) use crate::info::offer::IOV_LIMIT;

/// Private flags of libfabric's layered providers: the first requests a provider for layering, the second one
/// that offloads collectives. weft refuses both, because `weft;ofi_rxm` would only be slower.
const PRIVATE_LAYERING_FLAGS: u64 = 1 << 59 | 1 << 61;

/// Implements `fi_provider.getinfo`.
pub(crate) unsafe extern "C" fn getinfo<D: Device, const SLOT: usize>(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const sys::fi_info,
    info: *mut *mut sys::fi_info,
) -> c_int {
    // SAFETY: the arguments of the call.
    unsafe { getinfo_in::<D>(SLOT, version, node, service, flags, hints, info) }
}

/// One copy serves all slots.
#[inline(never)]
unsafe fn getinfo_in<D: Device>(
    slot: usize,
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const sys::fi_info,
    info: *mut *mut sys::fi_info,
) -> c_int {
    object::guard("fi_getinfo", || {
        let host = host::enter_slot(slot).ok_or(Errno::OTHER)?;
        crate::observe::log::refresh();
        // SAFETY: null or a C string of the client.
        let node = (!node.is_null()).then(|| unsafe { CStr::from_ptr(node) });
        // SAFETY: as above.
        let service = (!service.is_null()).then(|| unsafe { CStr::from_ptr(service) });
        // SAFETY: null or a structure that the host allocated and the client has filled in.
        let hints = unsafe { Hints::read(hints) }?;
        let request =
            Request { api: version, node, service, flags, hints, least_mailbox_bytes: D::least_mailbox_bytes() };
        // System calls that fail here, for instance for lack of a route, must not change the client's errno.
        let reply = errno::kept(|| request.reply(Params::load()))?;
        let filled = reply.write(host)?;
        if info.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the host's variable for the result.
        unsafe { info.write(filled.into_raw()) };
        Ok(0)
    })
}

/// The arguments of a call of `fi_getinfo`.
struct Request<'a> {
    api: u32,
    node: Option<&'a CStr>,
    service: Option<&'a CStr>,
    flags: u64,
    hints: Option<Box<Hints>>,
    /// The longest message that every link of the provider's devices carries.
    least_mailbox_bytes: usize,
}

/// The values for the resulting `fi_info`.
struct Reply {
    offer: Box<Offer>,
    src: Option<EpName>,
    dest: Option<EpName>,
}

impl Request<'_> {
    fn reply(&self, params: &Params) -> Result<Reply, Errno> {
        if self.flags & PRIVATE_LAYERING_FLAGS != 0 {
            return Err(offer::reject("flags", self.flags, "no layering"));
        }
        let mut offer = Offer::select(self.api, self.hints.as_deref(), params, self.least_mailbox_bytes)?;
        offer.find_open_instances(self.api);
        let (src, dest) = self.addresses(offer.format)?;
        let src = src.or_else(|| default_source(offer.format, params));
        Ok(Reply { offer, src, dest })
    }

    /// Source and destination, from node and service or from the hints (fi_getinfo(3), "src_addr",
    /// "dest_addr", "FI_SOURCE").
    fn addresses(&self, format: Format) -> Result<(Option<EpName>, Option<EpName>), Errno> {
        let named = self.node.is_some() || self.service.is_some();
        let source = self.flags & sys::FI_SOURCE != 0;
        if source && !named {
            return Err(Errno::INVAL);
        }
        let hinted = |bytes: Option<&Vec<u8>>| bytes.map(|bytes| format.decode(bytes)).transpose();
        let hinted_src = || hinted(self.hints.as_ref().and_then(|hints| hints.src.as_ref()));
        let hinted_dest = || hinted(self.hints.as_ref().and_then(|hints| hints.dest.as_ref()));
        let resolved = || -> Result<EpName, Errno> {
            let numeric = self.flags & sys::FI_NUMERICHOST != 0;
            let (node, service) = (self.node, self.service);
            addr::resolve(&Query { node, service, numeric, passive: source, format })
        };
        let (src, dest) = match (named, source) {
            (true, true) => (Some(resolved()?), hinted_dest()?),
            // Without a node the destination is a service on this host, as in getaddrinfo(3).
            (true, false) => (hinted_src()?, Some(resolved()?)),
            (false, _) => (hinted_src()?, hinted_dest()?),
        };
        if let Some(src) = &src
            && !is_local(src.socket())
        {
            return Err(offer::reject("src_addr", src.socket(), "an address of this host"));
        }
        Ok((src, dest))
    }
}

/// The default address of an endpoint, if the client's format can express it. A missing interface is reported
/// by fi_enable, because nothing else here depends on it.
fn default_source(format: Format, params: &Params) -> Option<EpName> {
    let any = match format {
        Format::In => Some(SocketAddr::from(([0; 4], 0))),
        Format::In6 => Some(SocketAddr::from(([0_u8; 16], 0))),
        _ => None,
    };
    let name = EpName::service(weft_nic::host::choose_address(params.iface.as_deref(), any).ok()?);
    format.encode(&name).is_ok().then_some(name)
}

/// Whether a socket on this host can be bound to the address.
fn is_local(socket: SocketAddr) -> bool {
    let mut any_port = socket;
    any_port.set_port(0);
    UdpSocket::bind(any_port).is_ok()
}

impl Reply {
    /// Writes the answer into a structure of the host.
    fn write(&self, host: &'static Host) -> Result<Info, Errno> {
        let info = host.new_info().ok_or(Errno::NOMEM)?;
        let raw = info.as_ptr();
        let (src, src_len) = self.address(self.src.as_ref())?;
        // The address is stored before a call can fail, so that the structure owns it.
        // SAFETY: a fresh structure of the host, which no other thread has seen.
        let out = unsafe { &mut *raw };
        (out.src_addr, out.src_addrlen) = (src, src_len);
        (out.dest_addr, out.dest_addrlen) = self.address(self.dest.as_ref())?;
        out.caps = self.offer.caps;
        out.mode = 0;
        out.addr_format = self.offer.format.raw();
        out.handle = self.offer.handle as sys::fid_t;
        // SAFETY: fi_allocinfo allocates the five attribute structures; see `fill_attributes`.
        unsafe { self.fill_attributes(out) };
        Ok(info)
    }

    fn address(&self, name: Option<&EpName>) -> Result<(*mut c_void, usize), Errno> {
        let Some(name) = name else { return Ok((std::ptr::null_mut(), 0)) };
        let bytes = self.offer.format.encode(name)?;
        let copy = host::malloc_copy(&bytes).ok_or(Errno::NOMEM)?;
        Ok((copy.as_ptr(), bytes.len()))
    }

    /// Fills in the attribute structures up to the fields of 1.17. Further fields of newer hosts stay zero.
    ///
    /// # Safety
    /// The five pointers are valid.
    unsafe fn fill_attributes(&self, out: &mut sys::fi_info) {
        let Offer { tx, rx, ep, domain, fabric: instance, .. } = &*self.offer;
        // SAFETY: the caller's promise.
        unsafe { out.tx_attr.write(*tx) };
        // SAFETY: as above.
        unsafe { out.rx_attr.write(*rx) };
        let (mut ep, mut domain) = (*ep, *domain);
        if let Some(key) = &self.offer.ep_auth_key {
            (ep.auth_key, ep.auth_key_size) = auth_key(key);
        }
        if let Some(key) = &self.offer.domain_auth_key {
            (domain.auth_key, domain.auth_key_size) = auth_key(key);
        }
        domain.name = host::malloc_string(crate::NAME);
        // SAFETY: as above.
        unsafe { out.ep_attr.write(ep) };
        // SAFETY: as above.
        unsafe { out.domain_attr.write(domain) };
        // SAFETY: as above.
        let fabric = unsafe { &mut *out.fabric_attr };
        fabric.name = host::malloc_string(crate::NAME);
        fabric.fabric = *instance;
        // The host fills in prov_name, prov_version and api_version, and requires prov_name to be null here.
    }
}

fn auth_key(key: &[u8]) -> (*mut u8, usize) {
    match host::malloc_copy(key) {
        Some(copy) => (copy.as_ptr().cast(), key.len()),
        None => (std::ptr::null_mut(), 0),
    }
}
