//! Compares weft's answers of fi_getinfo with those of libfabric's own providers, in the same library and for
//! the same hints.
//!
//! A client of tcp, shm or sockets must work over weft. Where one of them accepts hints, weft does, too, and
//! its answer gives the client as much. [`INTENDED`] lists every intended difference with its reason.

use std::ffi::CStr;

use weft_fi_sys::*;

use crate::client::{Info, Lib};

/// The providers. Those that a library does not have are skipped.
const PEERS: [&CStr; 5] = [c"tcp", c"tcp;ofi_rxm", c"net", c"shm", c"sockets"];

/// The API versions from the oldest that clients request to that of the generated structures.
const VERSIONS: [u32; 5] = [version(1, 0), version(1, 1), version(1, 4), V1_5, version(1, 8)];
const V1_5: u32 = version(1, 5);

/// Hints of a client.
struct Case {
    name: &'static str,
    hints: fn(&Info<'_>),
}

/// Hints that a peer accepts and weft refuses, with the reason.
const INTENDED: &[(&str, &str)] = &[
    ("caps HMEM", "nothing here reaches the memory of devices"),
    ("caps RMA|RMA_PMEM", "there is no persistent memory"),
    ("tx op_flags COMMIT_COMPLETE", "there is no persistent memory"),
    ("rx op_flags INJECT", "a receive has nothing to inject; sockets compares with the flags of sends"),
    ("tx comp_order STRICT", "a short message would wait for a long one before it"),
    ("rx comp_order STRICT", "a short message would wait for a long one before it"),
    ("rx comp_order DATA", "bytes are written by two processors at once"),
    ("av_type 9", "libfabric has no such type; the peers do not look"),
    ("another domain", "names are a provider's own"),
    ("protocol RXM", "protocols are a provider's own"),
    ("max_msg_size 2^50", "the longest message has 2^40 bytes; sockets does not look"),
    ("max_order_raw_size 2^16", "longer accesses move beside the stream of messages"),
    ("max_order_waw_size 2^16", "longer accesses move beside the stream of messages"),
];

macro_rules! cases {
    ($($name:literal |$hints:ident| $body:expr;)*) => {
        const CASES: &[Case] = &[$(Case {
            name: $name,
            hints: |$hints| {
                $body;
            },
        }),*];
    };
}

cases! {
    // Hints of clients, from their sources and from observed calls.
    "Charm++" |h| {
        h.get().caps = FI_TAGGED | FI_RMA | FI_REMOTE_READ;
        h.get().mode = FI_CONTEXT;
        h.domain().mode = !0;
        h.domain().resource_mgmt = FI_RM_ENABLED;
    };
    "ComEx" |h| {
        h.get().caps = FI_TAGGED | FI_RMA | FI_ATOMIC;
        h.domain().threading = FI_THREAD_ENDPOINT;
        (h.domain().data_progress, h.domain().control_progress) = (FI_PROGRESS_AUTO, FI_PROGRESS_AUTO);
        h.domain().mr_mode = FI_MR_BASIC as i32;
        h.domain().av_type = FI_AV_MAP;
        (h.tx().msg_order, h.rx().msg_order) = (FI_ORDER_SAW, FI_ORDER_SAW);
    };
    "Open MPI, MTL" |h| {
        h.get().caps = FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV;
        (h.tx().msg_order, h.rx().msg_order) = (FI_ORDER_SAS, FI_ORDER_SAS);
        (h.tx().op_flags, h.rx().op_flags) = (FI_COMPLETION, FI_COMPLETION);
        (h.domain().threading, h.domain().control_progress) = (FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL);
        (h.domain().resource_mgmt, h.domain().av_type) = (FI_RM_ENABLED, FI_AV_MAP);
        h.domain().cq_data_size = 4;
    };
    "Open MPI, BTL" |h| {
        h.get().caps = FI_RMA | FI_ATOMIC;
        h.tx().op_flags = FI_DELIVERY_COMPLETE;
        (h.tx().iov_limit, h.rx().iov_limit) = (1, 1);
        h.domain().mr_key_size = 8;
        h.domain().av_type = FI_AV_MAP;
    };
    "MPICH" |h| {
        h.get().caps = FI_TAGGED | FI_MSG | FI_MULTI_RECV | FI_RMA | FI_ATOMIC;
        h.tx().op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
        h.rx().op_flags = FI_COMPLETION;
        (h.tx().msg_order, h.rx().msg_order) = (FI_ORDER_SAS, FI_ORDER_SAS);
        (h.domain().threading, h.domain().av_type) = (FI_THREAD_DOMAIN, FI_AV_TABLE);
    };
    "Intel MPI" |h| (h.get().caps, h.domain().threading) = (FI_TAGGED | FI_MSG | FI_MULTI_RECV, FI_THREAD_DOMAIN);
    "Sandia OpenSHMEM" |h| {
        h.get().caps = FI_RMA | FI_ATOMIC;
        h.domain().mr_mode = FI_MR_SCALABLE as i32;
        (h.domain().data_progress, h.domain().threading) = (FI_PROGRESS_AUTO, FI_THREAD_SAFE);
        (h.tx().op_flags, h.tx().inject_size) = (FI_DELIVERY_COMPLETE, 8);
    };
    "GASNet" |h| {
        h.get().caps = FI_RMA | FI_MSG | FI_MULTI_RECV;
        h.tx().op_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
        h.rx().op_flags = FI_MULTI_RECV | FI_COMPLETION;
        h.domain().mr_mode = FI_MR_BASIC as i32;
    };
    // Capabilities.
    "no caps" |h| h.get().caps = 0;
    "caps MSG" |h| h.get().caps = FI_MSG;
    "caps TAGGED" |h| h.get().caps = FI_TAGGED;
    "caps RMA" |h| h.get().caps = FI_RMA;
    "caps ATOMIC" |h| h.get().caps = FI_ATOMIC;
    "caps SEND" |h| h.get().caps = FI_SEND;
    "caps MSG|SEND" |h| h.get().caps = FI_MSG | FI_SEND;
    "caps MSG|RECV" |h| h.get().caps = FI_MSG | FI_RECV;
    "caps MSG|READ" |h| h.get().caps = FI_MSG | FI_READ;
    "caps RMA|READ" |h| h.get().caps = FI_RMA | FI_READ;
    "caps RMA|REMOTE_WRITE" |h| h.get().caps = FI_RMA | FI_REMOTE_WRITE;
    "caps MULTI_RECV" |h| h.get().caps |= FI_MULTI_RECV;
    "caps SOURCE" |h| h.get().caps |= FI_SOURCE;
    "caps SOURCE_ERR" |h| h.get().caps |= FI_SOURCE | FI_SOURCE_ERR;
    "caps DIRECTED_RECV" |h| h.get().caps |= FI_DIRECTED_RECV;
    "caps DIRECTED_RECV alone" |h| h.get().caps = FI_DIRECTED_RECV;
    "caps RMA_EVENT" |h| h.get().caps |= FI_RMA_EVENT;
    "caps TRIGGER" |h| h.get().caps |= FI_TRIGGER;
    "caps FENCE" |h| h.get().caps |= FI_FENCE;
    "caps LOCAL_COMM" |h| h.get().caps |= FI_LOCAL_COMM;
    "caps REMOTE_COMM" |h| h.get().caps |= FI_REMOTE_COMM;
    "caps NAMED_RX_CTX" |h| h.get().caps |= FI_NAMED_RX_CTX;
    "caps SHARED_AV" |h| h.get().caps |= FI_SHARED_AV;
    "caps HMEM" |h| h.get().caps |= FI_HMEM;
    "caps COLLECTIVE" |h| h.get().caps = FI_COLLECTIVE;
    "caps MSG|COLLECTIVE" |h| h.get().caps = FI_MSG | FI_COLLECTIVE;
    "caps RMA|RMA_PMEM" |h| h.get().caps = FI_RMA | FI_RMA_PMEM;
    "caps MULTICAST" |h| h.get().caps = FI_MULTICAST;
    "caps VARIABLE_MSG" |h| h.get().caps |= FI_VARIABLE_MSG;
    // Capabilities of contexts, which may exceed those of the endpoint.
    "tx caps MSG" |h| h.tx().caps = FI_MSG;
    "tx caps MSG|SEND" |h| h.tx().caps = FI_MSG | FI_SEND;
    "tx caps MSG|RECV" |h| h.tx().caps = FI_MSG | FI_RECV;
    "tx caps RMA|READ" |h| h.tx().caps = FI_RMA | FI_READ;
    "tx caps ATOMIC" |h| h.tx().caps = FI_ATOMIC;
    "tx caps RMA_EVENT" |h| h.tx().caps = FI_MSG | FI_RMA_EVENT;
    "rx caps RECV" |h| h.rx().caps = FI_MSG | FI_RECV;
    "rx caps SEND" |h| h.rx().caps = FI_MSG | FI_SEND;
    "rx caps DIRECTED_RECV" |h| h.rx().caps = FI_MSG | FI_DIRECTED_RECV;
    "rx caps SOURCE" |h| h.rx().caps = FI_MSG | FI_SOURCE;
    "rx caps RMA|WRITE" |h| h.rx().caps = FI_RMA | FI_WRITE;
    // Modes, also of contexts.
    "no mode" |h| h.get().mode = 0;
    "mode CONTEXT" |h| h.get().mode = FI_CONTEXT;
    "mode LOCAL_MR" |h| h.get().mode = FI_LOCAL_MR;
    "mode MSG_PREFIX" |h| h.get().mode = FI_MSG_PREFIX;
    "tx mode" |h| h.tx().mode = FI_CONTEXT;
    "rx mode" |h| h.rx().mode = FI_CONTEXT;
    "domain mode RESTRICTED_COMP" |h| h.domain().mode = FI_RESTRICTED_COMP;
    // Registration.
    "mr_mode BASIC" |h| h.domain().mr_mode = FI_MR_BASIC as i32;
    "mr_mode SCALABLE" |h| h.domain().mr_mode = FI_MR_SCALABLE as i32;
    "mr_mode BASIC, mode LOCAL_MR" |h| (h.domain().mr_mode, h.get().mode) = (FI_MR_BASIC as i32, FI_LOCAL_MR);
    "mr_mode LOCAL" |h| h.domain().mr_mode = FI_MR_LOCAL;
    "mr_mode VIRT_ADDR" |h| h.domain().mr_mode = FI_MR_VIRT_ADDR;
    "mr_mode as BASIC" |h| h.domain().mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED;
    "mr_mode ENDPOINT" |h| h.domain().mr_mode = FI_MR_ENDPOINT;
    "mr_mode every bit" |h| h.domain().mr_mode = 0xffc;
    "mr_mode BASIC|LOCAL" |h| h.domain().mr_mode = FI_MR_BASIC as i32 | FI_MR_LOCAL;
    "mr_mode BASIC|SCALABLE" |h| h.domain().mr_mode = 3;
    "mr_key_size 4" |h| h.domain().mr_key_size = 4;
    "mr_key_size 16" |h| h.domain().mr_key_size = 16;
    "mr_iov_limit 1" |h| h.domain().mr_iov_limit = 1;
    "mr_iov_limit 64" |h| h.domain().mr_iov_limit = 64;
    "mr_cnt" |h| h.domain().mr_cnt = 1 << 20;
    // Domains.
    "threading FID" |h| h.domain().threading = FI_THREAD_FID;
    "threading ENDPOINT" |h| h.domain().threading = FI_THREAD_ENDPOINT;
    "threading DOMAIN" |h| h.domain().threading = FI_THREAD_DOMAIN;
    "threading COMPLETION" |h| h.domain().threading = FI_THREAD_COMPLETION;
    "threading SAFE" |h| h.domain().threading = FI_THREAD_SAFE;
    "data_progress AUTO" |h| h.domain().data_progress = FI_PROGRESS_AUTO;
    "control_progress AUTO" |h| h.domain().control_progress = FI_PROGRESS_AUTO;
    "progress MANUAL" |h| h.domain().data_progress = FI_PROGRESS_MANUAL;
    "resource_mgmt ENABLED" |h| h.domain().resource_mgmt = FI_RM_ENABLED;
    "resource_mgmt DISABLED" |h| h.domain().resource_mgmt = FI_RM_DISABLED;
    "av_type MAP" |h| h.domain().av_type = FI_AV_MAP;
    "av_type TABLE" |h| h.domain().av_type = FI_AV_TABLE;
    "av_type 9" |h| h.domain().av_type = 9;
    "another domain" |h| h.domain().name = unsafe { libc::strdup(c"eth0".as_ptr()) };
    "domain caps LOCAL_COMM" |h| h.domain().caps = FI_LOCAL_COMM;
    "domain caps SHARED_AV" |h| h.domain().caps = FI_SHARED_AV;
    "domain caps MSG" |h| h.domain().caps = FI_MSG;
    "cq_data_size 4" |h| h.domain().cq_data_size = 4;
    "cq_data_size 16" |h| h.domain().cq_data_size = 16;
    "max_err_data 1000" |h| h.domain().max_err_data = 1000;
    "many objects" |h| {
        (h.domain().cq_cnt, h.domain().ep_cnt, h.domain().cntr_cnt) = (1 << 20, 1 << 20, 1 << 20);
        (h.domain().tx_ctx_cnt, h.domain().rx_ctx_cnt) = (1 << 20, 1 << 20);
    };
    "max_ep_tx_ctx 2" |h| h.domain().max_ep_tx_ctx = 2;
    "max_ep_tx_ctx 1000" |h| h.domain().max_ep_tx_ctx = 1000;
    "max_ep_rx_ctx 1000" |h| h.domain().max_ep_rx_ctx = 1000;
    "max_ep_stx_ctx 1" |h| h.domain().max_ep_stx_ctx = 1;
    "max_ep_srx_ctx 1" |h| h.domain().max_ep_srx_ctx = 1;
    // Endpoints.
    "protocol RXM" |h| h.ep().protocol = FI_PROTO_RXM;
    "protocol_version 1" |h| h.ep().protocol_version = 1;
    "max_msg_size 2^20" |h| h.ep().max_msg_size = 1 << 20;
    "max_msg_size 2^50" |h| h.ep().max_msg_size = 1 << 50;
    "msg_prefix_size 8" |h| h.ep().msg_prefix_size = 8;
    "max_order_raw_size 2^16" |h| h.ep().max_order_raw_size = 1 << 16;
    "max_order_waw_size 2^16" |h| h.ep().max_order_waw_size = 1 << 16;
    "mem_tag_format" |h| h.ep().mem_tag_format = 0x7fff_ffff_ffff_ffff;
    "tx_ctx_cnt 2" |h| h.ep().tx_ctx_cnt = 2;
    "rx_ctx_cnt 2" |h| h.ep().rx_ctx_cnt = 2;
    "a shared transmit context" |h| h.ep().tx_ctx_cnt = usize::MAX;
    "a shared receive context" |h| h.ep().rx_ctx_cnt = usize::MAX;
    // Operations.
    "tx op_flags COMPLETION" |h| h.tx().op_flags = FI_COMPLETION;
    "tx op_flags INJECT" |h| h.tx().op_flags = FI_INJECT;
    "tx op_flags INJECT_COMPLETE" |h| h.tx().op_flags = FI_INJECT_COMPLETE;
    "tx op_flags TRANSMIT_COMPLETE" |h| h.tx().op_flags = FI_TRANSMIT_COMPLETE;
    "tx op_flags DELIVERY_COMPLETE" |h| h.tx().op_flags = FI_DELIVERY_COMPLETE;
    "tx op_flags COMMIT_COMPLETE" |h| h.tx().op_flags = FI_COMMIT_COMPLETE;
    "tx op_flags MULTI_RECV" |h| h.tx().op_flags = FI_MULTI_RECV;
    "rx op_flags COMPLETION" |h| h.rx().op_flags = FI_COMPLETION;
    "rx op_flags MULTI_RECV" |h| h.rx().op_flags = FI_MULTI_RECV;
    "rx op_flags TRANSMIT_COMPLETE" |h| h.rx().op_flags = FI_TRANSMIT_COMPLETE;
    "rx op_flags DELIVERY_COMPLETE" |h| h.rx().op_flags = FI_DELIVERY_COMPLETE;
    "rx op_flags INJECT_COMPLETE" |h| h.rx().op_flags = FI_INJECT_COMPLETE;
    "rx op_flags INJECT" |h| h.rx().op_flags = FI_INJECT;
    "tx msg_order SAS" |h| h.tx().msg_order = FI_ORDER_SAS;
    "tx msg_order SAW" |h| h.tx().msg_order = FI_ORDER_SAW;
    "tx msg_order STRICT" |h| h.tx().msg_order = FI_ORDER_STRICT;
    "rx msg_order SAW" |h| h.rx().msg_order = FI_ORDER_SAW;
    "tx comp_order STRICT" |h| h.tx().comp_order = FI_ORDER_STRICT;
    "tx comp_order DATA" |h| h.tx().comp_order = FI_ORDER_DATA;
    "rx comp_order STRICT" |h| h.rx().comp_order = FI_ORDER_STRICT;
    "rx comp_order DATA" |h| h.rx().comp_order = FI_ORDER_DATA;
    "inject_size 16384" |h| h.tx().inject_size = 16384;
    "tx size 1" |h| h.tx().size = 1;
    "tx size 65536" |h| h.tx().size = 65536;
    "tx iov_limit 4" |h| h.tx().iov_limit = 4;
    "rma_iov_limit 4" |h| h.tx().rma_iov_limit = 4;
    "rx size 65536" |h| h.rx().size = 65536;
    "rx iov_limit 4" |h| h.rx().iov_limit = 4;
    "total_buffered_recv" |h| h.rx().total_buffered_recv = 1 << 20;
    // Addresses.
    "addr_format SOCKADDR" |h| h.get().addr_format = FI_SOCKADDR;
    "addr_format SOCKADDR_IN" |h| h.get().addr_format = FI_SOCKADDR_IN;
    "addr_format SOCKADDR_IN6" |h| h.get().addr_format = FI_SOCKADDR_IN6;
    "addr_format ADDR_STR" |h| h.get().addr_format = FI_ADDR_STR;
}

/// The hints of a case for one provider. Attributes that the case does not change are those of a client with
/// all modes.
fn hints<'a>(lib: &'a Lib, case: &Case, provider: &CStr) -> Info<'a> {
    let hints = lib.allocinfo();
    hints.get().caps = FI_MSG | FI_TAGGED | FI_RMA;
    hints.get().mode = !0;
    hints.ep().type_ = FI_EP_RDM;
    (case.hints)(&hints);
    hints.fabric().prov_name = unsafe { libc::strdup(provider.as_ptr()) };
    hints
}

/// Compares the parts of an answer that a client cannot change: the registration that it must do, and its
/// guarantees.
fn compare(what: &str, api: u32, asked: &Info<'_>, ours: &Info<'_>, theirs: &Info<'_>) {
    const OPERATIONS: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
    const MODIFIERS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    let lacks = |ours: u64, theirs: u64| theirs & !ours;
    let (domain, their_domain) = (ours.domain(), theirs.domain());
    if api < V1_5 {
        assert_eq!(domain.mr_mode, their_domain.mr_mode, "{what}: mr_mode");
    } else {
        assert_eq!(domain.mr_mode & !their_domain.mr_mode, 0, "{what}: mr_mode");
    }
    assert_eq!(lacks(theirs.get().mode, ours.get().mode), 0, "{what}: mode");
    assert_eq!(lacks(ours.get().caps, asked.get().caps), 0, "{what}: requested caps");
    assert_eq!(lacks(ours.get().caps, theirs.get().caps & (OPERATIONS | MODIFIERS)), 0, "{what}: caps");
    let one_of = |ours: u32, asked: u32, default: u32| if asked == 0 { ours == default } else { ours == asked };
    assert!(one_of(domain.threading, asked.domain().threading, FI_THREAD_SAFE), "{what}: threading");
    assert!(one_of(domain.av_type, asked.domain().av_type, their_domain.av_type), "{what}: av_type");
    for (ours, asked) in [
        (domain.data_progress, asked.domain().data_progress),
        (domain.control_progress, asked.domain().control_progress),
    ] {
        assert!(one_of(ours, asked, FI_PROGRESS_MANUAL), "{what}: progress");
    }
    assert_eq!(domain.resource_mgmt, FI_RM_ENABLED, "{what}: resource_mgmt");
    assert_eq!(
        (ours.tx().op_flags, ours.rx().op_flags),
        (asked.tx().op_flags, asked.rx().op_flags),
        "{what}: op_flags"
    );
    for (ours, asked) in [(ours.tx().msg_order, asked.tx().msg_order), (ours.rx().msg_order, asked.rx().msg_order)] {
        assert_eq!(lacks(ours, asked), 0, "{what}: msg_order");
    }
    for (size, ours, asked, theirs) in [
        ("inject_size", ours.tx().inject_size, asked.tx().inject_size, theirs.tx().inject_size),
        ("tx iov_limit", ours.tx().iov_limit, asked.tx().iov_limit, theirs.tx().iov_limit),
        ("rma_iov_limit", ours.tx().rma_iov_limit, asked.tx().rma_iov_limit, theirs.tx().rma_iov_limit),
        ("tx size", ours.tx().size, asked.tx().size, 1),
        ("rx iov_limit", ours.rx().iov_limit, asked.rx().iov_limit, theirs.rx().iov_limit),
        ("rx size", ours.rx().size, asked.rx().size, 1),
        ("cq_data_size", domain.cq_data_size, asked.domain().cq_data_size, their_domain.cq_data_size),
        ("mr_key_size", domain.mr_key_size, 0, their_domain.mr_key_size),
        ("max_msg_size", ours.ep().max_msg_size, asked.ep().max_msg_size, 1),
    ] {
        assert!(ours >= asked.max(theirs), "{what}: {size} is {ours}, requested {asked}, theirs {theirs}");
    }
}

/// Compares every case, version and provider.
pub(crate) fn compared(lib: &Lib) {
    let plain = Case { name: "plain", hints: |_| () };
    let there = |peer: &CStr| lib.getinfo(V1_5, None, None, 0, Some(&hints(lib, &plain, peer))).is_ok();
    let peers: Vec<&CStr> = PEERS.into_iter().filter(|peer| there(peer)).collect();
    let (mut differ, mut compared) = (Vec::new(), 0);
    for case in CASES {
        for api in VERSIONS {
            let asked = hints(lib, case, c"weft");
            let ours = lib.ask(api, Some(&asked));
            for peer in &peers {
                let Ok(theirs) = lib.getinfo(api, None, None, 0, Some(&hints(lib, case, peer))) else { continue };
                let what = format!("{} from API {:#x}, beside {peer:?}", case.name, api);
                match &ours {
                    Ok(ours) => compare(&what, api, &asked, ours, &theirs),
                    Err(_) => differ.push((case.name, what)),
                }
                compared += 1;
            }
        }
    }
    println!("cases: {compared} answers beside those of {peers:?}");
    let is_intended = |name: &str| INTENDED.iter().any(|(intended, _)| *intended == name);
    let unintended: Vec<_> = differ.iter().filter(|(name, _)| !is_intended(name)).map(|(_, what)| what).collect();
    assert!(unintended.is_empty(), "refused by weft only: {unintended:#?}");
    // Libraries of later versions have fewer providers. The system's library has all providers of the list.
    if peers.len() == PEERS.len() {
        for (name, reason) in INTENDED {
            assert!(differ.iter().any(|(differs, _)| differs == name), "the difference is gone: {name}: {reason}");
        }
    }
}
