//! Opening endpoints and contexts: checks of the attributes, and a handle that is not enabled yet.
//!
//! Place in the data flow: `fi_endpoint`, `fi_srx_context`, `fi_tx_context` and `fi_rx_context` → [`open`];
//! `fi_ep_bind` ([`mod@super::bind`]) and `fi_enable` ([`super::enable`]) follow.
//!
//! Errors: -FI_ENOSYS for types of endpoints that weft does not have, -FI_EINVAL for attributes that it cannot meet.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use weft_engine::Pool;
use weft_engine::api::{Access, OpFlags};
use weft_engine::name::EpName;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::{Head, Hold, Uses};
use crate::addr::Format;
use crate::domain::Domain;
use crate::endpoint::cell::EndpointCell;
use crate::endpoint::connection::OpenedFrom;
use crate::endpoint::entry::head_of;
use crate::endpoint::flags::Defaults;
use crate::endpoint::route::Routes;
use crate::endpoint::setup::{Setup, Shares};
use crate::endpoint::shared::Receives;
use crate::endpoint::tables::includes;
use crate::endpoint::{Ep, Kind, Limits, Place, Sources};
use crate::info::EpType;
use crate::info::hints::Hints;
use crate::info::offer::{self, IOV_LIMIT, MAX_INJECT_BYTES, SHARED_CONTEXT};
use crate::info::order;
use crate::params::Params;
use crate::sleep::lock::Callers;

/// Default of FI_OPT_MIN_MULTI_RECV, in bytes.
pub(super) const MIN_MULTI_RECV_BYTES: usize = 64;

/// Checks the attributes and makes a handle that is not enabled yet.
pub(super) fn open<D: Device>(
    domain: Hold<Domain>,
    info: &Hints,
    kind: Kind,
    place: Option<Place<D>>,
    context: *mut c_void,
) -> Result<Arc<Ep<D>>, Errno> {
    let ty = type_of(&domain, info)?;
    let shares = shares_of(info)?;
    let (format, local) = local_address(info)?;
    let caps = kind.caps(info.caps);
    let limits = limits_of(domain.params(), ty, info)?;
    let network = domain.network().of_endpoint(domain.api_version(), info)?;
    let cell = new_cell(&domain, kind, caps, &limits, Routes::new(format, context.addr()), network.auth_key.clone());
    let tx = Defaults::transmit(info.tx.map_or(0, |attr| attr.op_flags))?;
    let rx = Defaults::receive(info.rx.map_or(0, |attr| attr.op_flags), caps, domain.api_version())?;
    // The last step that may fail: a passive endpoint keeps its address until an endpoint takes it over.
    let (opened_from, local) = OpenedFrom::of(info, ty, local)?;
    let setup = Setup {
        av: None,
        eq: None,
        srx: None,
        stx: None,
        shares,
        network,
        format,
        local,
        shown: opened_from.request().map(|request| request.listens_at),
        opened_from,
        called: None,
        min_multi_recv: MIN_MULTI_RECV_BYTES,
        shm: true,
        maps: info.tx.is_none_or(|attr| attr.msg_order & order::ACCESSES_AFTER_SENDS == 0),
        matching: domain.params().matching,
        // A shared context needs no enable.
        enabled: kind == Kind::Shared,
    };
    let ordered = info.tx.is_some_and(|attr| attr.msg_order & order::AFTER_ACCESSES != 0);
    Ok(Arc::new(Ep {
        head: Head::new(head_of::<D>(&domain, kind, ty, context)),
        cell: Arc::new(cell),
        tx,
        rx,
        send_order: if ordered { OpFlags::AFTER_ACCESSES } else { OpFlags::empty() },
        limits,
        sources: Sources::of(caps, domain.api_version(), kind),
        context: context.addr(),
        kind,
        place,
        endpoint_mask: AtomicU64::new(u64::MAX),
        ty,
        caps,
        setup: Arc::new(Mutex::new(setup)),
        uses: Uses::new(),
        parent: None,
        domain,
    }))
}

fn type_of(domain: &Domain, info: &Hints) -> Result<EpType, Errno> {
    let ty = EpType::from_raw(info.ep.map_or(sys::FI_EP_UNSPEC, |attr| attr.type_)).ok_or(Errno::NOSYS)?;
    if ty == EpType::Msg && domain.callers() == Callers::One {
        log::info!(
            "fi_endpoint: the domain was opened for another type than FI_EP_MSG; open one with an fi_info of that type"
        );
        return Err(Errno::INVAL);
    }
    Ok(ty)
}

/// The shared contexts that the attributes ask for. An endpoint has at most one context of each kind otherwise.
fn shares_of(info: &Hints) -> Result<Shares, Errno> {
    let Some(attr) = info.ep else { return Ok(Shares::default()) };
    if [attr.tx_ctx_cnt, attr.rx_ctx_cnt].iter().any(|&count| count > 1 && count != SHARED_CONTEXT) {
        return Err(Errno::INVAL);
    }
    Ok(Shares { transmit: attr.tx_ctx_cnt == SHARED_CONTEXT, receive: attr.rx_ctx_cnt == SHARED_CONTEXT })
}

fn new_cell<D: Device>(
    domain: &Hold<Domain>,
    kind: Kind,
    caps: u64,
    limits: &Limits,
    routes: Routes,
    auth_key: Option<Vec<u8>>,
) -> EndpointCell<D> {
    let triggers = caps & domain.caps() & sys::FI_TRIGGER != 0;
    let pool = || Pool::new(domain.params().matching, limits.receives(), MIN_MULTI_RECV_BYTES);
    let shared = (kind == Kind::Shared).then(|| Receives::new(pool()));
    // No threading level covers a context that several endpoints share.
    let callers = if shared.is_some() { Callers::Any } else { domain.callers() };
    // SAFETY: the client made this promise for its domain.
    let cell = unsafe { EndpointCell::new(domain, callers, triggers, open_to(caps), routes, shared, auth_key) };
    if kind == Kind::Shared {
        // The endpoints decide whether successes make entries.
        cell.bound.set_rx_selective();
    }
    cell
}

/// The limits that the attributes ask for. Zero asks for the default.
fn limits_of(params: &Params, ty: EpType, info: &Hints) -> Result<Limits, Errno> {
    let choose = |asked: usize, default: usize| if asked == 0 { default } else { asked };
    let inject_asked = info.tx.map_or(0, |attr| attr.inject_size);
    let limits = Limits {
        iov: IOV_LIMIT,
        rma_iov: IOV_LIMIT,
        inject_bytes: inject_asked.max(params.inject_bytes),
        max_msg_bytes: choose(info.ep.map_or(0, |attr| attr.max_msg_size), ty.max_msg_bytes()),
        tx_depth: choose(info.tx.map_or(0, |attr| attr.size), params.tx_size),
        rx_depth: choose(info.rx.map_or(0, |attr| attr.size), params.rx_size),
    };
    let iov_asked = info.tx.map_or(0, |attr| attr.iov_limit.max(attr.rma_iov_limit));
    let iov_asked = iov_asked.max(info.rx.map_or(0, |attr| attr.iov_limit));
    let queue_asked = info.tx.map_or(0, |attr| attr.size).max(info.rx.map_or(0, |attr| attr.size));
    if iov_asked > IOV_LIMIT
        || limits.max_msg_bytes > ty.max_msg_bytes()
        || inject_asked > MAX_INJECT_BYTES.max(params.inject_bytes)
        || queue_asked > offer::longest_queue(params)
    {
        return Err(Errno::INVAL);
    }
    Ok(limits)
}

/// The format in which the client writes addresses, and the local address that it has chosen.
pub(super) fn local_address(info: &Hints) -> Result<(Format, Option<EpName>), Errno> {
    let format = Format::from_raw(info.addr_format).ok_or(Errno::INVAL)?;
    let local = info.src.as_deref().map(|bytes| decode_local(format, bytes)).transpose()?;
    Ok((format, local))
}

/// Decodes a local address that the client has chosen.
pub(crate) fn decode_local(format: Format, bytes: &[u8]) -> Result<EpName, Errno> {
    // Strings may come with their terminator.
    let bytes = if format == Format::Text { bytes.strip_suffix(b"\0").unwrap_or(bytes) } else { bytes };
    format.decode(bytes)
}

/// Whether an endpoint with these capabilities is expected to start operations, and needs a queue for them.
pub(super) fn transmits(caps: u64) -> bool {
    includes(caps, sys::FI_MSG | sys::FI_TAGGED, sys::FI_SEND | sys::FI_RECV, sys::FI_SEND)
        || includes(
            caps,
            sys::FI_RMA | sys::FI_ATOMIC,
            sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE,
            sys::FI_READ | sys::FI_WRITE,
        )
}

/// Whether an endpoint with these capabilities is expected to receive messages.
pub(super) fn receives(caps: u64) -> bool {
    includes(caps, sys::FI_MSG | sys::FI_TAGGED, sys::FI_SEND | sys::FI_RECV, sys::FI_RECV)
}

/// The accesses that peers may make at an endpoint with these capabilities. For others, peers get the error of a
/// region that does not grant the access.
fn open_to(caps: u64) -> Access {
    let role = |role| {
        let all = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
        includes(caps, sys::FI_RMA | sys::FI_ATOMIC, all, role)
    };
    Access { read: role(sys::FI_REMOTE_READ), write: role(sys::FI_REMOTE_WRITE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_decide_which_queues_are_needed() {
        let both = sys::FI_MSG | sys::FI_TAGGED;
        assert!(transmits(both) && receives(both));
        assert!(transmits(both | sys::FI_SEND) && !receives(both | sys::FI_SEND));
        assert!(!transmits(both | sys::FI_RECV) && receives(both | sys::FI_RECV));
        assert!(transmits(sys::FI_RMA) && !receives(sys::FI_RMA));
        assert!(!transmits(sys::FI_RMA | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE));
        assert!(transmits(sys::FI_ATOMIC | sys::FI_WRITE));
        assert!(!transmits(0) && !receives(0));
    }

    #[test]
    fn capabilities_decide_which_accesses_peers_may_make() {
        let access = |read, write| Access { read, write };
        assert_eq!(open_to(sys::FI_RMA), access(true, true));
        assert_eq!(open_to(sys::FI_RMA | sys::FI_READ | sys::FI_WRITE), access(false, false));
        assert_eq!(open_to(sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE), access(false, true));
        assert_eq!(open_to(sys::FI_ATOMIC | sys::FI_REMOTE_READ), access(true, false));
        assert_eq!(open_to(sys::FI_MSG), access(false, false));
    }
}
