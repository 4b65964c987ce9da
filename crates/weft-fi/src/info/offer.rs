//! Selects the result of fi_getinfo for given hints, or the reason for a refusal. Input and output are plain
//! values; only open fabrics and domains are looked up (`domain/instance.rs`).
//!
//! Every attribute is handled in one of four ways. *Fixed*: weft determines the value, which a hint may not
//! exceed or contradict. *Echoed*: any value that libfabric defines is accepted. *Granted up to a limit*.
//! *Ignored*: the attribute only matters to modes that weft never requires.

use std::fmt::Display;
use std::sync::Arc;

use weft_fi_sys as sys;
use weft_fi_sys::v2;

use crate::abi::errno::Errno;
use crate::abi::object;
use crate::addr::Format;
use crate::domain::{self, Domain};
use crate::fabric;
use crate::info::hints::Hints;
use crate::info::{EpType, caps, network, order};
use crate::params::Params;

/// The longest message in bytes.
pub(crate) const MAX_MSG_BYTES: usize = 1 << 40;
/// The longest inject that is granted on request; the default is FI_WEFT_INJECT_BYTES.
pub(crate) const MAX_INJECT_BYTES: usize = 64 << 10;
/// The maximum of outstanding operations, and of posted receives, that is granted on request.
pub(crate) const MAX_QUEUE: usize = 1 << 20;
/// The maximum number of elements of a local vector, of a remote vector, and of a registered region.
pub(crate) const IOV_LIMIT: usize = 8;
/// The size of remote completion data and of a registration key, in bytes.
const DATA_BYTES: usize = 8;
/// The longest `err_data` of an error: an address in its longest format (FI_ADDR_STR of IPv6).
const MAX_ERR_DATA_BYTES: usize = 96;
/// The reported number of objects of a domain. The only hard limit is the system's.
const REPORTED_OBJECTS: usize = 1 << 16;
/// The number of weft's protocol, a provider-specific one as defined by fabric.h.
const FI_PROTO_WEFT: u32 = sys::FI_PROV_SPECIFIC | 0x7765;
const PROTOCOL_VERSION: u32 = 1;
/// The maximum number of contexts of a scalable endpoint, in either direction.
const MAX_EP_CONTEXTS: usize = weft_engine::name::MAX_CONTEXTS as usize;
/// FI_SHARED_CONTEXT as a number of contexts.
pub(crate) const SHARED_CONTEXT: usize = usize::MAX;
/// `FI_TAG_GENERIC`: every bit of a tag belongs to the client, and may be masked individually.
const TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// The first API version in which mr_mode is a set of bits.
pub(crate) const V1_5: u32 = sys::version(1, 5);

/// The operation flags that may be defaults of a transmit context. FI_COMMIT_COMPLETE is missing, because
/// weft does not support persistent memory.
const TX_OP_FLAGS: u64 = sys::FI_COMPLETION
    | sys::FI_INJECT
    | sys::FI_INJECT_COMPLETE
    | sys::FI_TRANSMIT_COMPLETE
    | sys::FI_DELIVERY_COMPLETE
    | sys::FI_MATCH_COMPLETE
    | sys::FI_REMOTE_CQ_DATA
    | sys::FI_FENCE
    | sys::FI_MORE;
/// The flags that datagrams cannot have: no peer answers them, and they do not wait for others.
const NOT_FOR_DATAGRAMS: u64 = sys::FI_DELIVERY_COMPLETE | sys::FI_MATCH_COMPLETE | sys::FI_FENCE;
/// The operation flags that may be defaults of a receive context. Completion levels have no effect there.
const RX_OP_FLAGS: u64 = sys::FI_COMPLETION
    | sys::FI_MULTI_RECV
    | sys::FI_MORE
    | sys::FI_INJECT_COMPLETE
    | sys::FI_TRANSMIT_COMPLETE
    | sys::FI_DELIVERY_COMPLETE;

const MR_BASIC: i32 = 1;
const MR_SCALABLE: i32 = 2;

/// Logs the reason why hints cannot be satisfied, and returns the error for it.
pub(crate) fn reject(what: &str, wanted: impl Display, offered: impl Display) -> Errno {
    log::info!(
        "fi_getinfo: {what}: wanted {wanted}, offered {offered}; request the offered value, or leave the hint zero"
    );
    Errno::NODATA
}

/// The selected attributes, in libfabric's structures with null pointers. The structure is boxed, because its
/// size is 0.9 KB.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) caps: u64,
    pub(crate) format: Format,
    pub(crate) handle: usize,
    pub(crate) tx: sys::fi_tx_attr,
    pub(crate) rx: sys::fi_rx_attr,
    pub(crate) ep: sys::fi_ep_attr,
    pub(crate) domain: sys::fi_domain_attr,
    /// An open fabric: the one named by the client, one that was found, or null. The same holds for the
    /// domain in `domain.domain`.
    pub(crate) fabric: *mut sys::fid_fabric,
    pub(crate) ep_auth_key: Option<Vec<u8>>,
    pub(crate) domain_auth_key: Option<Vec<u8>>,
}

impl Offer {
    /// Selects the attributes for the hints. Every link of the provider's devices carries messages of
    /// `least_mailbox_bytes`.
    pub(crate) fn select(
        api: u32,
        hints: Option<&Hints>,
        params: &Params,
        least_mailbox_bytes: usize,
    ) -> Result<Box<Self>, Errno> {
        let none;
        let hints = match hints {
            Some(hints) => hints,
            None => {
                none = Box::<Hints>::default();
                &none
            }
        };
        let named = named_domain(api, hints)?;
        let completed = named.as_ref().map(|domain| domain.complete(hints));
        let hints = completed.as_deref().unwrap_or(hints);
        let Some(format) = Format::from_raw(hints.addr_format) else {
            return Err(reject("addr_format", hints.addr_format, "FI_FORMAT_UNSPEC, FI_SOCKADDR*, FI_ADDR_STR"));
        };
        let ty = ep_type(hints)?;
        // Without hints, the capabilities are those of the named domain.
        let missing = if hints.caps == 0 { named.as_ref().map_or(0, |domain| domain.missing_caps()) } else { 0 };
        let contexts = hints.tx.map_or(0, |attr| attr.caps) | hints.rx.map_or(0, |attr| attr.caps);
        let caps = caps::grant(api, ty, hints.caps, contexts)? & !missing;
        let mut offer = Box::new(Self {
            caps,
            format,
            handle: hints.handle,
            tx: tx(hints, ty, caps, params)?,
            rx: rx(hints, ty, caps, params)?,
            ep: ep(hints, ty, weft_engine::ordered_rma_bytes(least_mailbox_bytes))?,
            domain: domain_attr(api, hints, params)?,
            fabric: hints.fabric.map_or(std::ptr::null_mut(), |attr| attr.fabric),
            ep_auth_key: hints.ep_auth_key.clone(),
            domain_auth_key: hints.domain_auth_key.clone(),
        });
        if let Some(domain) = named {
            offer.restrict(api, hints, &domain)?;
        }
        Ok(offer)
    }

    /// Restricts the selection to the domain that the hints name.
    fn restrict(&mut self, api: u32, hints: &Hints, domain: &Arc<Domain>) -> Result<(), Errno> {
        let bits = domain.mr_bits();
        // The client supports the bits that the domain requires.
        if self.domain.mr_mode == 0 && hints.domain.is_some_and(|attr| bits & !attr.mr_mode == 0) {
            self.domain.mr_mode = bits;
        }
        if let Some(what) = domain.mismatch(api, self) {
            let wanted = format_args!("a domain with another {what}");
            return Err(reject("domain_attr->domain", wanted, "the properties with which it was opened"));
        }
        self.set_instance(domain);
        Ok(())
    }

    /// Finds an open domain or fabric that is equivalent to one that the client would open with this
    /// selection. Hints that name a domain take precedence.
    pub(crate) fn find_open_instances(&mut self, api: u32) {
        if !self.domain.domain.is_null() {
            return;
        }
        if let Some(domain) = domain::find(|domain| domain.mismatch(api, self).is_none()) {
            self.set_instance(&domain);
        } else if self.fabric.is_null() {
            self.fabric = fabric::first_open(api).unwrap_or(self.fabric);
        }
    }

    fn set_instance(&mut self, domain: &Arc<Domain>) {
        (self.domain.domain, self.fabric) = (object::raw(domain), object::raw(domain.fabric().arc()));
    }
}

/// Checks that a named fabric and domain belong to weft. Returns the named domain.
fn named_domain(api: u32, hints: &Hints) -> Result<Option<Arc<Domain>>, Errno> {
    for (what, name) in [("fabric_attr->name", &hints.fabric_name), ("domain_attr->name", &hints.domain_name)] {
        if let Some(name) = name
            && name.as_c_str() != crate::NAME
        {
            return Err(reject(what, name.to_string_lossy(), crate::NAME.to_string_lossy()));
        }
    }
    let named = hints.fabric.map_or(std::ptr::null_mut(), |attr| attr.fabric);
    if !named.is_null() && !fabric::is_open(api, named) {
        return Err(reject(
            "fabric_attr->fabric",
            format_args!("{named:p}"),
            "an open weft fabric with this API version",
        ));
    }
    let named = hints.domain.map_or(std::ptr::null_mut(), |attr| attr.domain);
    if named.is_null() {
        return Ok(None);
    }
    let found = domain::find(|domain| object::raw(domain) == named);
    found.map(Some).ok_or_else(|| reject("domain_attr->domain", format_args!("{named:p}"), "an open domain of weft"))
}

/// Checks a hint that may not exceed a limit.
fn at_most(what: &str, wanted: usize, offered: usize) -> Result<(), Errno> {
    if wanted > offered { Err(reject(what, wanted, offered)) } else { Ok(()) }
}

/// Checks a hint whose flags must all be supported.
fn subset(what: &str, wanted: u64, offered: u64) -> Result<(), Errno> {
    if wanted & !offered != 0 {
        return Err(reject(what, format_args!("{wanted:#x}"), format_args!("{offered:#x}")));
    }
    Ok(())
}

/// The longest queue that a client may request, which includes the values of the variables.
pub(crate) fn longest_queue(params: &Params) -> usize {
    MAX_QUEUE.max(params.tx_size).max(params.rx_size)
}

/// A number that is granted up to a limit: the default, or the requested number if that is larger.
fn up_to(what: &str, wanted: usize, default: usize, limit: usize) -> Result<usize, Errno> {
    at_most(what, wanted, limit.max(default))?;
    Ok(default.max(wanted))
}

/// Checks that a traffic class has a code point.
fn tclass(what: &str, wanted: u32) -> Result<u32, Errno> {
    network::traffic_class(wanted)
        .map(|_| wanted)
        .ok_or_else(|| reject(what, wanted, "FI_TC_DSCP with 6 bits, FI_TC_* labels"))
}

/// The message orders of one side of an endpoint: the orders without cost, and the requested ones.
fn msg_order(what: &str, ty: EpType, wanted: u64) -> Result<u64, Errno> {
    subset(what, wanted, order::FREE | if ty == EpType::Dgram { 0 } else { order::ON_REQUEST })?;
    Ok(order::FREE | wanted)
}

/// Zeroed transmit attributes.
pub(crate) const NO_TX: sys::fi_tx_attr = sys::fi_tx_attr {
    caps: 0,
    mode: 0,
    op_flags: 0,
    msg_order: 0,
    comp_order: 0,
    inject_size: 0,
    size: 0,
    iov_limit: 0,
    rma_iov_limit: 0,
    tclass: 0,
};

fn tx(hints: &Hints, ty: EpType, caps: u64, params: &Params) -> Result<sys::fi_tx_attr, Errno> {
    let hint = hints.tx.unwrap_or(NO_TX);
    let unsupported = if ty == EpType::Dgram { NOT_FOR_DATAGRAMS } else { 0 };
    subset("tx_attr->op_flags", hint.op_flags, TX_OP_FLAGS & !unsupported | (caps & sys::FI_TRIGGER))?;
    subset("tx_attr->comp_order", hint.comp_order, 0)?;
    let longest = ty.max_msg_bytes();
    let inject = params.inject_bytes.min(longest);
    at_most("tx_attr->iov_limit", hint.iov_limit, IOV_LIMIT)?;
    at_most("tx_attr->rma_iov_limit", hint.rma_iov_limit, IOV_LIMIT)?;
    Ok(sys::fi_tx_attr {
        caps: if hint.caps == 0 { caps::of_tx(caps) } else { hint.caps },
        op_flags: hint.op_flags,
        msg_order: msg_order("tx_attr->msg_order", ty, hint.msg_order)?,
        inject_size: up_to(
            "tx_attr->inject_size",
            hint.inject_size,
            inject,
            MAX_INJECT_BYTES.max(params.inject_bytes).min(longest),
        )?,
        // A client that requests fewer operations gets fewer, because the queue takes memory.
        size: if hint.size == 0 {
            params.tx_size
        } else {
            up_to("tx_attr->size", hint.size, 1, longest_queue(params))?
        },
        iov_limit: IOV_LIMIT,
        rma_iov_limit: if ty == EpType::Dgram { 0 } else { IOV_LIMIT },
        tclass: tclass("tx_attr->tclass", hint.tclass)?,
        ..NO_TX
    })
}

fn rx(hints: &Hints, ty: EpType, caps: u64, params: &Params) -> Result<sys::fi_rx_attr, Errno> {
    let zero = sys::fi_rx_attr {
        caps: 0,
        mode: 0,
        op_flags: 0,
        msg_order: 0,
        comp_order: 0,
        total_buffered_recv: 0,
        size: 0,
        iov_limit: 0,
    };
    let hint = hints.rx.unwrap_or(zero);
    subset("rx_attr->op_flags", hint.op_flags, RX_OP_FLAGS | (caps & sys::FI_TRIGGER))?;
    subset("rx_attr->comp_order", hint.comp_order, 0)?;
    at_most("rx_attr->iov_limit", hint.iov_limit, IOV_LIMIT)?;
    Ok(sys::fi_rx_attr {
        caps: if hint.caps == 0 { caps::of_rx(caps) } else { hint.caps },
        op_flags: hint.op_flags,
        msg_order: msg_order("rx_attr->msg_order", ty, hint.msg_order)?,
        // The window is per peer, so any requested total is satisfied.
        total_buffered_recv: hint.total_buffered_recv,
        size: if hint.size == 0 {
            params.rx_size
        } else {
            up_to("rx_attr->size", hint.size, 1, longest_queue(params))?
        },
        iov_limit: IOV_LIMIT,
        ..zero
    })
}

/// The type of endpoint.
fn ep_type(hints: &Hints) -> Result<EpType, Errno> {
    let wanted = hints.ep.map_or(sys::FI_EP_UNSPEC, |attr| attr.type_);
    EpType::from_raw(wanted)
        .ok_or_else(|| reject("ep_attr->type", wanted, "FI_EP_RDM (3), FI_EP_MSG (1), FI_EP_DGRAM (2)"))
}

fn ep(hints: &Hints, ty: EpType, ordered_bytes: usize) -> Result<sys::fi_ep_attr, Errno> {
    let zero = sys::fi_ep_attr {
        type_: sys::FI_EP_UNSPEC,
        protocol: sys::FI_PROTO_UNSPEC,
        protocol_version: 0,
        max_msg_size: 0,
        msg_prefix_size: 0,
        max_order_raw_size: 0,
        max_order_war_size: 0,
        max_order_waw_size: 0,
        mem_tag_format: 0,
        tx_ctx_cnt: 0,
        rx_ctx_cnt: 0,
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
    };
    let hint = hints.ep.unwrap_or(zero);
    if !matches!(hint.protocol, sys::FI_PROTO_UNSPEC | FI_PROTO_WEFT) {
        return Err(reject("ep_attr->protocol", hint.protocol, FI_PROTO_WEFT));
    }
    if !matches!(hint.protocol_version, 0 | PROTOCOL_VERSION) {
        return Err(reject("ep_attr->protocol_version", hint.protocol_version, PROTOCOL_VERSION));
    }
    at_most("ep_attr->max_msg_size", hint.max_msg_size, ty.max_msg_bytes())?;
    let ordered = if ty == EpType::Dgram { 0 } else { ordered_bytes };
    at_most("ep_attr->max_order_raw_size", hint.max_order_raw_size, ordered)?;
    at_most("ep_attr->max_order_war_size", hint.max_order_war_size, ordered)?;
    at_most("ep_attr->max_order_waw_size", hint.max_order_waw_size, ordered)?;
    Ok(sys::fi_ep_attr {
        type_: ty.raw(),
        protocol: FI_PROTO_WEFT,
        protocol_version: PROTOCOL_VERSION,
        max_msg_size: ty.max_msg_bytes(),
        max_order_raw_size: ordered,
        max_order_war_size: ordered,
        max_order_waw_size: ordered,
        mem_tag_format: if hint.mem_tag_format == 0 { TAG_GENERIC } else { hint.mem_tag_format },
        tx_ctx_cnt: contexts("ep_attr->tx_ctx_cnt", hint.tx_ctx_cnt, ty)?,
        rx_ctx_cnt: contexts("ep_attr->rx_ctx_cnt", hint.rx_ctx_cnt, ty)?,
        ..zero
    })
}

/// The number of contexts of an endpoint in one direction: its own, a shared one, or those of a scalable
/// endpoint.
fn contexts(what: &str, wanted: usize, ty: EpType) -> Result<usize, Errno> {
    if wanted != SHARED_CONTEXT {
        at_most(what, wanted, if ty == EpType::Rdm { MAX_EP_CONTEXTS } else { 1 })?;
    }
    Ok(wanted.max(1))
}

/// Zeroed domain attributes.
const NO_DOMAIN: sys::fi_domain_attr = sys::fi_domain_attr {
    domain: std::ptr::null_mut(),
    name: std::ptr::null_mut(),
    threading: sys::FI_THREAD_UNSPEC,
    control_progress: sys::FI_PROGRESS_UNSPEC,
    data_progress: sys::FI_PROGRESS_UNSPEC,
    resource_mgmt: sys::FI_RM_UNSPEC,
    av_type: sys::FI_AV_UNSPEC,
    mr_mode: 0,
    mr_key_size: 0,
    cq_data_size: 0,
    cq_cnt: 0,
    ep_cnt: 0,
    tx_ctx_cnt: 0,
    rx_ctx_cnt: 0,
    max_ep_tx_ctx: 0,
    max_ep_rx_ctx: 0,
    max_ep_stx_ctx: 0,
    max_ep_srx_ctx: 0,
    cntr_cnt: 0,
    mr_iov_limit: 0,
    caps: 0,
    mode: 0,
    auth_key: std::ptr::null_mut(),
    auth_key_size: 0,
    max_err_data: 0,
    mr_cnt: 0,
    tclass: 0,
};

fn domain_attr(api: u32, hints: &Hints, params: &Params) -> Result<sys::fi_domain_attr, Errno> {
    let hint = hints.domain.unwrap_or(NO_DOMAIN);
    let domain_caps = caps::DOMAIN | caps::domain_extras(api);
    // mr_key_size and max_ep_{tx,rx}_ctx state the client's abilities and not its needs. Any value is
    // accepted, and the result contains weft's own.
    at_most("domain_attr->cq_data_size", hint.cq_data_size, DATA_BYTES)?;
    // Clients of older versions do not have these fields.
    if api >= V1_5 {
        subset("domain_attr->caps", hint.caps, domain_caps)?;
        at_most("domain_attr->mr_iov_limit", hint.mr_iov_limit, IOV_LIMIT)?;
        at_most("domain_attr->max_err_data", hint.max_err_data, MAX_ERR_DATA_BYTES)?;
    }
    let ep = |count: fn(&sys::fi_ep_attr) -> usize| hints.ep.as_ref().map_or(0, count);
    let shared = |wanted: usize, count: usize| {
        if wanted == 0 && count != SHARED_CONTEXT { 0 } else { wanted.max(REPORTED_OBJECTS) }
    };
    // The default is one context in each direction: some clients take more as an invitation to use scalable
    // endpoints.
    let several = |count: usize| count > 1 && count != SHARED_CONTEXT;
    let scalable = hints.caps & sys::FI_NAMED_RX_CTX != 0
        || [hint.max_ep_tx_ctx, hint.max_ep_rx_ctx].into_iter().any(several)
        || hints.ep.is_some_and(|ep| several(ep.tx_ctx_cnt) || several(ep.rx_ctx_cnt));
    let max_ep_ctx = if scalable { MAX_EP_CONTEXTS } else { params.ep_contexts.clamp(1, MAX_EP_CONTEXTS) };
    let count = |wanted: usize| wanted.max(REPORTED_OBJECTS);
    Ok(sys::fi_domain_attr {
        threading: one_of("threading", hint.threading, sys::FI_THREAD_ENDPOINT, sys::FI_THREAD_SAFE)?,
        control_progress: progress("control_progress", api, hint.control_progress)?,
        data_progress: progress("data_progress", api, hint.data_progress)?,
        resource_mgmt: sys::FI_RM_ENABLED,
        // Unspecified is not replaced: a client that gets FI_AV_TABLE may depend on indices without having
        // requested them.
        av_type: one_of("av_type", hint.av_type, sys::FI_AV_TABLE, sys::FI_AV_UNSPEC)?,
        mr_mode: mr_mode(api, hint.mr_mode)?,
        mr_key_size: DATA_BYTES,
        cq_data_size: DATA_BYTES,
        cq_cnt: count(hint.cq_cnt),
        ep_cnt: count(hint.ep_cnt),
        tx_ctx_cnt: count(hint.tx_ctx_cnt),
        rx_ctx_cnt: count(hint.rx_ctx_cnt),
        max_ep_tx_ctx: max_ep_ctx,
        max_ep_rx_ctx: max_ep_ctx,
        max_ep_stx_ctx: shared(hint.max_ep_stx_ctx, ep(|attr| attr.tx_ctx_cnt)),
        max_ep_srx_ctx: shared(hint.max_ep_srx_ctx, ep(|attr| attr.rx_ctx_cnt)),
        cntr_cnt: count(hint.cntr_cnt),
        mr_iov_limit: IOV_LIMIT,
        caps: caps::DOMAIN | hint.caps & domain_caps | (hints.caps & caps::domain_extras(api)),
        mr_cnt: count(hint.mr_cnt),
        tclass: tclass("domain_attr->tclass", hint.tclass)?,
        max_err_data: MAX_ERR_DATA_BYTES,
        ..NO_DOMAIN
    })
}

/// Checks an enumeration of which every value up to `last` is accepted; 0 selects the default.
fn one_of(what: &str, wanted: u32, last: u32, default: u32) -> Result<u32, Errno> {
    match wanted {
        0 => Ok(default),
        known if known <= last => Ok(known),
        unknown => Err(reject(what, unknown, format_args!("0 to {last}"))),
    }
}

/// Checks a progress model. Manual is the default, because automatic progress costs a thread. From API 1.20
/// on a third model exists, which only promises more.
fn progress(what: &str, api: u32, wanted: u32) -> Result<u32, Errno> {
    let last = if api >= sys::version(1, 20) { v2::FI_PROGRESS_CONTROL_UNIFIED } else { sys::FI_PROGRESS_MANUAL };
    one_of(what, wanted, last, sys::FI_PROGRESS_MANUAL)
}

/// The registration mode (fi_mr(3), fi_domain(3)). weft requires no mode: a client may choose its keys, use
/// offsets as addresses, register memory that is not allocated yet, and use local memory without
/// registration.
///
/// From API 1.5 on, the bits state the client's abilities, so all of them are cleared. The two old values
/// request a mode: they are returned unchanged, and registration obeys them (BASIC: virtual addresses and
/// keys chosen by the provider). A client that sets bits in the `fi_info` with which it opens a domain gets
/// the behaviour of these bits.
///
/// Before 1.5 only the two values existed. For 0 the provider chooses FI_MR_BASIC, like libfabric's tcp, shm
/// and sockets. A client that ignores the result uses virtual addresses and reads keys from the provider.
fn mr_mode(api: u32, wanted: i32) -> Result<i32, Errno> {
    match wanted {
        MR_BASIC | MR_SCALABLE => Ok(wanted),
        0 => Ok(if api < V1_5 { MR_BASIC } else { 0 }),
        bits if api >= V1_5 && bits & (MR_BASIC | MR_SCALABLE) == 0 => Ok(0),
        other => {
            Err(reject("mr_mode", format_args!("{other:#x}"), "FI_MR_BASIC, FI_MR_SCALABLE, or bits (from API 1.5)"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const V1_20: u32 = sys::version(1, 20);
    const MAILBOX_BYTES: usize = 4096;

    fn select(api: u32, hints: &Hints) -> Result<Box<Offer>, Errno> {
        Offer::select(api, Some(hints), &Params::default(), MAILBOX_BYTES)
    }

    fn with_domain(change: impl Fn(&mut sys::fi_domain_attr)) -> Hints {
        let mut attr = NO_DOMAIN;
        change(&mut attr);
        Hints { domain: Some(attr), ..Hints::default() }
    }

    /// A result may be passed as hints: clients reuse it.
    #[test]
    fn an_offer_is_accepted_as_hints() {
        for api in [0, sys::version(1, 0), sys::version(1, 1), V1_5, V1_20, sys::version(2, 5)] {
            let first = Offer::select(api, None, &Params::default(), MAILBOX_BYTES).unwrap();
            let again = Hints {
                caps: first.caps,
                addr_format: first.format.raw(),
                tx: Some(first.tx),
                rx: Some(first.rx),
                ep: Some(first.ep),
                domain: Some(first.domain),
                ..Hints::default()
            };
            let second = select(api, &again).unwrap();
            assert_eq!(format!("{first:?}"), format!("{second:?}"), "API {api:#x}");
        }
    }

    #[test]
    fn wildcards_give_defaults() {
        let offer = Offer::select(V1_20, None, &Params::default(), MAILBOX_BYTES).unwrap();
        assert_eq!(offer.domain.threading, sys::FI_THREAD_SAFE);
        assert_eq!(offer.domain.data_progress, sys::FI_PROGRESS_MANUAL);
        assert_eq!(offer.domain.av_type, sys::FI_AV_UNSPEC);
        assert_eq!((offer.domain.max_ep_tx_ctx, offer.domain.max_ep_stx_ctx), (1, 0));
        assert_eq!((offer.tx.inject_size, offer.tx.size), (4096, 4096));
        assert_eq!(offer.ep.type_, sys::FI_EP_RDM);
        assert_eq!(offer.tx.msg_order & order::ON_REQUEST, 0);
    }

    /// A domain has its own capabilities if they are requested in its attributes or among all capabilities.
    #[test]
    fn domain_capabilities_may_be_requested_in_two_places() {
        let domain_caps = |hints: &Hints| select(V1_20, hints).map(|offer| offer.domain.caps);
        let own = caps::DOMAIN | sys::FI_SHARED_AV;
        assert_eq!(domain_caps(&Hints::default()), Ok(caps::DOMAIN));
        assert_eq!(domain_caps(&with_domain(|attr| attr.caps = sys::FI_SHARED_AV)), Ok(own));
        assert_eq!(domain_caps(&Hints { caps: sys::FI_MSG | sys::FI_SHARED_AV, ..Hints::default() }), Ok(own));
        assert_eq!(domain_caps(&with_domain(|attr| attr.caps = sys::FI_MSG)), Err(Errno::NODATA));
    }

    #[test]
    fn free_attributes_are_echoed() {
        for threading in [
            sys::FI_THREAD_SAFE,
            sys::FI_THREAD_FID,
            sys::FI_THREAD_DOMAIN,
            sys::FI_THREAD_COMPLETION,
            sys::FI_THREAD_ENDPOINT,
        ] {
            let hints = with_domain(|attr| attr.threading = threading);
            assert_eq!(select(V1_20, &hints).unwrap().domain.threading, threading);
        }
        let hints = with_domain(|attr| {
            attr.data_progress = sys::FI_PROGRESS_AUTO;
            attr.av_type = sys::FI_AV_MAP;
        });
        let offer = select(V1_5, &hints).unwrap();
        assert_eq!(
            (offer.domain.data_progress, offer.domain.control_progress),
            (sys::FI_PROGRESS_AUTO, sys::FI_PROGRESS_MANUAL)
        );
        assert_eq!(offer.domain.av_type, sys::FI_AV_MAP);
        let unified = with_domain(|attr| attr.control_progress = v2::FI_PROGRESS_CONTROL_UNIFIED);
        assert!(select(V1_20, &unified).is_ok());
        assert!(select(V1_5, &unified).is_err());
    }

    #[test]
    fn registration_modes_follow_the_api_version() {
        let mode =
            |api, wanted| select(api, &with_domain(|attr| attr.mr_mode = wanted)).map(|offer| offer.domain.mr_mode);
        let old = sys::version(1, 1);
        assert_eq!(mode(old, 0), Ok(MR_BASIC));
        assert_eq!(mode(old, MR_BASIC), Ok(MR_BASIC));
        assert_eq!(mode(old, sys::FI_MR_LOCAL), Err(Errno::NODATA));
        assert_eq!(mode(V1_5, 0), Ok(0));
        assert_eq!(mode(V1_5, MR_BASIC), Ok(MR_BASIC));
        assert_eq!(mode(V1_5, MR_SCALABLE), Ok(MR_SCALABLE));
        assert_eq!(mode(V1_5, sys::FI_MR_VIRT_ADDR | sys::FI_MR_PROV_KEY | sys::FI_MR_LOCAL), Ok(0));
        assert_eq!(mode(V1_5, MR_BASIC | sys::FI_MR_LOCAL), Err(Errno::NODATA));
    }

    /// Excessive values of attributes that state abilities are accepted, and fields that the client's version
    /// lacks are ignored.
    #[test]
    fn attributes_that_state_abilities_are_accepted() {
        let domain =
            |api, change: fn(&mut sys::fi_domain_attr)| select(api, &with_domain(change)).map(|offer| offer.domain);
        assert_eq!(domain(V1_20, |attr| attr.mr_key_size = 16).unwrap().mr_key_size, DATA_BYTES);
        assert_eq!(domain(V1_20, |attr| attr.max_ep_tx_ctx = 1000).unwrap().max_ep_tx_ctx, MAX_EP_CONTEXTS);
        let later: [fn(&mut sys::fi_domain_attr); 3] =
            [|attr| attr.mr_iov_limit = 64, |attr| attr.max_err_data = 1000, |attr| attr.caps = sys::FI_MSG];
        for later in later {
            let old = domain(sys::version(1, 4), later).unwrap();
            assert_eq!((old.mr_iov_limit, old.max_err_data), (IOV_LIMIT, MAX_ERR_DATA_BYTES));
            assert_eq!(old.caps, caps::DOMAIN);
            assert_eq!(domain(V1_5, later).map(|_| ()), Err(Errno::NODATA));
        }
    }

    #[test]
    fn completion_levels_may_be_defaults() {
        let flags = |flags| {
            let tx = sys::fi_tx_attr {
                op_flags: flags,
                ..Offer::select(V1_20, None, &Params::default(), MAILBOX_BYTES).unwrap().tx
            };
            select(V1_20, &Hints { tx: Some(tx), ..Hints::default() }).map(|offer| offer.tx.op_flags)
        };
        for good in [
            sys::FI_INJECT_COMPLETE,
            sys::FI_TRANSMIT_COMPLETE,
            sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION,
            sys::FI_MATCH_COMPLETE,
        ] {
            assert_eq!(flags(good), Ok(good));
        }
        assert_eq!(flags(sys::FI_COMMIT_COMPLETE), Err(Errno::NODATA));
    }

    #[test]
    fn unsupported_limits_and_types_are_refused() {
        let ep = |change: fn(&mut sys::fi_ep_attr)| {
            let mut attr = Offer::select(V1_20, None, &Params::default(), MAILBOX_BYTES).unwrap().ep;
            change(&mut attr);
            select(V1_20, &Hints { ep: Some(attr), ..Hints::default() }).map(|_| ())
        };
        assert_eq!(ep(|_| ()), Ok(()));
        assert_eq!(ep(|attr| attr.type_ = sys::FI_EP_SOCK_STREAM), Err(Errno::NODATA));
        assert_eq!(ep(|attr| attr.type_ = sys::FI_EP_DGRAM), Err(Errno::NODATA), "datagrams are shorter");
        assert_eq!(ep(|attr| attr.max_msg_size = usize::MAX), Err(Errno::NODATA));
        assert_eq!(ep(|attr| attr.protocol = 1), Err(Errno::NODATA));
        assert_eq!(ep(|attr| attr.tx_ctx_cnt = usize::MAX - 1), Err(Errno::NODATA));
        assert_eq!(select(V1_20, &with_domain(|attr| attr.cq_data_size = 16)).map(|_| ()), Err(Errno::NODATA));
        let other = Hints { domain_name: Some(c"eth0".to_owned()), ..Hints::default() };
        assert_eq!(select(V1_20, &other).map(|_| ()), Err(Errno::NODATA));
        let ours = Hints { domain_name: Some(crate::NAME.to_owned()), ..Hints::default() };
        assert!(select(V1_20, &ours).is_ok());
    }

    #[test]
    fn scalable_endpoints_are_offered_on_request() {
        let most = |hints: &Hints| select(V1_20, hints).map(|offer| (offer.domain.max_ep_tx_ctx, offer.ep.rx_ctx_cnt));
        assert_eq!(most(&Hints::default()), Ok((1, 1)));
        let named = Hints { caps: sys::FI_MSG | sys::FI_NAMED_RX_CTX, ..Hints::default() };
        assert_eq!(most(&named), Ok((MAX_EP_CONTEXTS, 1)));
        assert_eq!(most(&with_domain(|attr| attr.max_ep_rx_ctx = 2)), Ok((MAX_EP_CONTEXTS, 1)));
        let ep = |count| {
            let ep = Offer::select(V1_20, None, &Params::default(), MAILBOX_BYTES).unwrap().ep;
            Hints { ep: Some(sys::fi_ep_attr { rx_ctx_cnt: count, ..ep }), ..Hints::default() }
        };
        assert_eq!(most(&ep(4)), Ok((MAX_EP_CONTEXTS, 4)));
        assert_eq!(most(&ep(MAX_EP_CONTEXTS + 1)), Err(Errno::NODATA));
        let params = Params { ep_contexts: 1000, ..Params::default() };
        assert_eq!(Offer::select(V1_20, None, &params, MAILBOX_BYTES).unwrap().domain.max_ep_rx_ctx, MAX_EP_CONTEXTS);
    }

    #[test]
    fn shared_contexts_are_offered_on_request() {
        let mut ep = Offer::select(V1_20, None, &Params::default(), MAILBOX_BYTES).unwrap().ep;
        ep.rx_ctx_cnt = SHARED_CONTEXT;
        let offer = select(V1_20, &Hints { ep: Some(ep), ..Hints::default() }).unwrap();
        assert_eq!((offer.ep.tx_ctx_cnt, offer.ep.rx_ctx_cnt), (1, SHARED_CONTEXT));
        assert_eq!((offer.domain.max_ep_stx_ctx, offer.domain.max_ep_srx_ctx), (0, REPORTED_OBJECTS));
        let offer = select(V1_20, &with_domain(|attr| attr.max_ep_stx_ctx = 1)).unwrap();
        assert_eq!((offer.domain.max_ep_stx_ctx, offer.domain.max_ep_srx_ctx), (REPORTED_OBJECTS, 0));
        assert_eq!((offer.ep.tx_ctx_cnt, offer.ep.rx_ctx_cnt), (1, 1));
    }

    #[test]
    fn message_orders_are_granted_on_request() {
        let tx = |msg_order, comp_order| {
            let tx = Offer::select(V1_20, None, &Params::default(), MAILBOX_BYTES).unwrap().tx;
            let tx = sys::fi_tx_attr { msg_order, comp_order, ..tx };
            select(V1_20, &Hints { tx: Some(tx), ..Hints::default() }).map(|offer| offer.tx.msg_order)
        };
        assert_eq!(tx(sys::FI_ORDER_SAS, 0), Ok(order::FREE));
        assert_eq!(tx(sys::FI_ORDER_SAW, 0), Ok(order::FREE | sys::FI_ORDER_SAW));
        assert_eq!(tx(sys::FI_ORDER_STRICT, 0).map(|order| order & sys::FI_ORDER_STRICT), Ok(sys::FI_ORDER_STRICT));
        assert_eq!(tx(0, sys::FI_ORDER_STRICT), Err(Errno::NODATA));
    }
}
