//! fi_getinfo: offers, answers to the hints of middleware, and refusals.

use std::ffi::{CStr, CString, c_int};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use weft_fi_sys::v2::*;
use weft_fi_sys::*;

use crate::client::{Info, Lib, Opened, close};
use crate::open;
use crate::side::{Side, introduce, works};

const V1_5: u32 = version(1, 5);
const DATA_CAPS: u64 = FI_MSG | FI_TAGGED | FI_RMA;

/// With NULL hints every version gets all capabilities. The answer is accepted as hints again, as MPICH does.
pub(crate) fn defaults(lib: &Lib) {
    for api in lib.versions() {
        let info = lib.ask(api, None).unwrap_or_else(|error| panic!("API {api:#x}: error {error}"));
        let caps = info.get().caps;
        let wanted =
            DATA_CAPS | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT | FI_LOCAL_COMM | FI_REMOTE_COMM;
        assert_eq!(caps & wanted, wanted, "API {api:#x}");
        let modifiers = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        assert_eq!(caps & modifiers, modifiers, "API {api:#x}");
        assert_eq!(caps & FI_TAGGED_DIRECTED_RECV != 0, api >= V2_0, "API {api:#x}");
        assert_eq!(info.get().mode, 0);
        assert_eq!(info.ep().type_, FI_EP_RDM);
        assert_eq!(info.fabric().api_version, api);
        unsafe {
            assert_eq!(CStr::from_ptr(info.fabric().name), c"weft");
            assert_eq!(CStr::from_ptr(info.domain().name), c"weft");
        }
        assert_eq!(info.domain().mr_mode, if api < V1_5 { FI_MR_BASIC as i32 } else { 0 });
        assert_eq!((info.domain().max_ep_tx_ctx, info.domain().max_ep_stx_ctx), (1, 0));
        assert!(info.tx().inject_size >= 4096 && info.tx().iov_limit >= 8 && info.domain().cq_data_size >= 4);
        assert_eq!(info.domain().mr_key_size, 8);
        let again = lib.ask(api, Some(&info)).unwrap_or_else(|error| panic!("API {api:#x} again: error {error}"));
        assert_eq!(again.get().caps, caps);
    }
}

/// The hints of middleware, and the fields of the answer that it reads.
pub(crate) fn clients(lib: &Lib) {
    open_mpi(lib);
    sandia_openshmem(lib);
    gasnet(lib);
    charm(lib);
    comex(lib);
    mpich(lib);
    intel_mpi(lib);
}

fn hinted<'a>(lib: &'a Lib, caps: u64) -> Info<'a> {
    let hints = lib.allocinfo();
    hints.get().caps = caps;
    hints.get().mode = FI_CONTEXT | FI_CONTEXT2;
    hints.ep().type_ = FI_EP_RDM;
    hints.fabric().prov_name = unsafe { libc::strdup(c"weft".as_ptr()) };
    hints
}

fn open_mpi(lib: &Lib) {
    for threading in [FI_THREAD_DOMAIN, FI_THREAD_SAFE] {
        let hints = hinted(lib, FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV);
        hints.tx().msg_order = FI_ORDER_SAS;
        hints.rx().msg_order = FI_ORDER_SAS;
        hints.rx().op_flags = FI_COMPLETION;
        hints.tx().op_flags = FI_COMPLETION;
        hints.domain().threading = threading;
        hints.domain().control_progress = FI_PROGRESS_MANUAL;
        hints.domain().resource_mgmt = FI_RM_ENABLED;
        hints.domain().av_type = FI_AV_MAP;
        hints.domain().cq_data_size = 4;
        let api = lib.newest().min(version(1, 18));
        let info = lib.ask(api, Some(&hints)).unwrap();
        assert_eq!(info.domain().threading, threading);
        assert_eq!(info.domain().av_type, FI_AV_MAP);
        assert_eq!(info.tx().msg_order & FI_ORDER_SAS, FI_ORDER_SAS);
        assert_eq!(info.get().caps & (FI_MSG | FI_RMA), 0, "primary capabilities are not widened");
    }
}

fn sandia_openshmem(lib: &Lib) {
    for mr_mode in [FI_MR_SCALABLE, FI_MR_BASIC] {
        let hints = hinted(lib, FI_RMA | FI_RMA_EVENT);
        hints.domain().mr_mode = mr_mode as i32;
        hints.domain().data_progress = FI_PROGRESS_AUTO;
        hints.domain().threading = FI_THREAD_SAFE;
        hints.domain().av_type = FI_AV_TABLE;
        hints.tx().op_flags = FI_DELIVERY_COMPLETE;
        hints.tx().inject_size = 8;
        let info = lib.ask(V1_5, Some(&hints)).unwrap();
        assert_eq!(info.domain().mr_mode, mr_mode as i32, "the old modes are echoed");
        assert_eq!(info.domain().data_progress, FI_PROGRESS_AUTO);
        assert_eq!(info.tx().op_flags, FI_DELIVERY_COMPLETE);
        assert_eq!(info.get().caps & (FI_MSG | FI_TAGGED | FI_SEND | FI_RECV), 0);
    }
}

fn gasnet(lib: &Lib) {
    let hints = hinted(lib, FI_RMA | FI_MSG | FI_MULTI_RECV);
    hints.tx().op_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
    hints.rx().op_flags = FI_MULTI_RECV | FI_COMPLETION;
    hints.domain().mr_mode = FI_MR_SCALABLE as i32;
    hints.domain().resource_mgmt = FI_RM_ENABLED;
    let info = lib.ask(V1_5, Some(&hints)).unwrap();
    assert_eq!(info.rx().op_flags, FI_MULTI_RECV | FI_COMPLETION);
    assert_eq!(info.get().caps & FI_MULTI_RECV, FI_MULTI_RECV);
}

fn charm(lib: &Lib) {
    let hints = hinted(lib, FI_TAGGED | FI_RMA | FI_REMOTE_READ);
    hints.domain().mode = !0;
    hints.domain().av_type = FI_AV_TABLE;
    hints.ep().mem_tag_format = 0x7fff_ffff_ffff_ffff;
    let info = lib.ask(version(1, 0), Some(&hints)).unwrap();
    assert_eq!(info.domain().mr_mode, FI_MR_BASIC as i32);
    assert_eq!(info.ep().mem_tag_format, 0x7fff_ffff_ffff_ffff);
}

fn comex(lib: &Lib) {
    let hints = hinted(lib, FI_RMA | FI_TAGGED);
    hints.domain().threading = FI_THREAD_ENDPOINT;
    hints.domain().data_progress = FI_PROGRESS_AUTO;
    hints.domain().control_progress = FI_PROGRESS_AUTO;
    hints.domain().mr_mode = FI_MR_BASIC as i32;
    hints.domain().av_type = FI_AV_MAP;
    hints.tx().msg_order = FI_ORDER_SAW;
    let info = lib.ask(version(1, 1), Some(&hints)).unwrap();
    assert_eq!(info.domain().threading, FI_THREAD_ENDPOINT);
    assert_eq!(info.domain().control_progress, FI_PROGRESS_AUTO);
    assert_eq!(info.tx().msg_order & FI_ORDER_SAW, FI_ORDER_SAW);
}

fn mpich(lib: &Lib) {
    let all = lib.ask(lib.newest(), None).unwrap().get().caps;
    let hints = hinted(lib, all);
    hints.tx().op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
    hints.rx().op_flags = FI_COMPLETION;
    hints.tx().msg_order = FI_ORDER_SAS;
    hints.domain().threading = FI_THREAD_DOMAIN;
    hints.domain().mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED | FI_MR_LOCAL;
    hints.domain().av_type = FI_AV_TABLE;
    let info = lib.ask(lib.newest(), Some(&hints)).unwrap();
    assert_eq!(info.domain().threading, FI_THREAD_DOMAIN);
    assert_eq!(info.domain().mr_mode, 0, "modes that are not needed are cleared");
    assert_eq!(info.get().caps, all);
}

fn intel_mpi(lib: &Lib) {
    for api in [0, V1_5, version(1, 8)] {
        let hints = hinted(lib, FI_TAGGED | FI_MSG | FI_MULTI_RECV);
        hints.domain().threading = FI_THREAD_DOMAIN;
        let info = lib.ask(api, Some(&hints)).unwrap();
        assert_eq!(info.domain().threading, FI_THREAD_DOMAIN);
    }
}

/// One attribute at a time cannot be met, so there is no answer.
pub(crate) fn rejections(lib: &Lib) {
    let api = lib.newest();
    let refused = |what: &str, change: &dyn Fn(&Info<'_>)| {
        let hints = hinted(lib, FI_TAGGED);
        change(&hints);
        let answer = lib.getinfo(api, None, None, 0, Some(&hints)).map(|info| info.names());
        assert_eq!(answer, Err(FI_ENODATA), "{what}");
    };
    refused("socket endpoints", &|hints| hints.ep().type_ = FI_EP_SOCK_STREAM);
    refused("tagged datagrams", &|hints| hints.ep().type_ = FI_EP_DGRAM);
    refused("device memory", &|hints| hints.get().caps |= FI_HMEM);
    refused("multicast", &|hints| hints.get().caps |= FI_MULTICAST);
    refused("commit complete", &|hints| hints.tx().op_flags = FI_COMMIT_COMPLETE);
    refused("strict completion order", &|hints| hints.tx().comp_order = FI_ORDER_STRICT);
    refused("long data", &|hints| hints.domain().cq_data_size = 9);
    refused("huge messages", &|hints| hints.ep().max_msg_size = usize::MAX);
    refused("huge injects", &|hints| hints.tx().inject_size = 1 << 30);
    refused("many pieces", &|hints| hints.tx().iov_limit = 1 << 10);
    refused("many remote pieces", &|hints| hints.tx().rma_iov_limit = 9);
    refused("many pieces of a receive", &|hints| hints.rx().iov_limit = 9);
    refused("many pieces of a region", &|hints| hints.domain().mr_iov_limit = 9);
    refused("an endless transmit queue", &|hints| hints.tx().size = usize::MAX);
    refused("a transmit queue just too long", &|hints| hints.tx().size = (1 << 20) + 1);
    refused("an endless receive queue", &|hints| hints.rx().size = usize::MAX);
    refused("order of long writes", &|hints| hints.ep().max_order_waw_size = usize::MAX);
    refused("order of long reads", &|hints| hints.ep().max_order_raw_size = usize::MAX);
    refused("an address of 7 bytes", &|hints| {
        let bytes = unsafe { libc::calloc(1, 7) };
        (hints.get().src_addr, hints.get().src_addrlen) = (bytes, 7);
    });
    refused("another protocol", &|hints| hints.ep().protocol = 8);
    refused("too many contexts", &|hints| hints.ep().tx_ctx_cnt = usize::MAX - 1);
    refused("InfiniBand addresses", &|hints| hints.get().addr_format = FI_SOCKADDR_IB);
    refused("another domain", &|hints| hints.domain().name = unsafe { libc::strdup(c"eth0".as_ptr()) });
    refused("another fabric", &|hints| hints.fabric().name = unsafe { libc::strdup(c"10.0.0.0/8".as_ptr()) });
    let hints = hinted(lib, FI_TAGGED);
    assert!(lib.ask(api, Some(&hints)).is_ok(), "the same hints without the attribute");
}

/// A client that names its open fabric or domain gets that one. A client that names none gets the first one
/// that is open.
pub(crate) fn instances(lib: &Lib) {
    let api = lib.newest();
    let info = lib.ask(api, None).unwrap();
    let opened = [Opened::new(lib, &info), Opened::new(lib, &info)];
    let named = |domain: *mut fid_domain, fabric: *mut fid_fabric| {
        let hints = hinted(lib, FI_TAGGED);
        (hints.domain().domain, hints.fabric().fabric) = (domain, fabric);
        let answer = lib.ask(api, Some(&hints)).unwrap();
        (answer.domain().domain, answer.fabric().fabric)
    };
    for Opened { domain, fabric, .. } in &opened {
        assert_eq!(named(*domain, *fabric), (*domain, *fabric));
        assert_eq!(named(null_mut(), *fabric), (*domain, *fabric), "output is restricted to the fabric");
    }
    assert_eq!(named(null_mut(), null_mut()), (opened[0].domain, opened[0].fabric));
    let hints = hinted(lib, FI_TAGGED);
    (hints.domain().domain, hints.fabric().fabric) = (opened[0].domain, opened[1].fabric);
    assert_eq!(lib.ask(api, Some(&hints)).err(), Some(FI_ENODATA), "a domain of another fabric");
    let [first, second] = opened;
    drop(first);
    assert_eq!(named(null_mut(), null_mut()), (second.domain, second.fabric));
    assert_eq!(named(second.domain, null_mut()), (second.domain, second.fabric));
    drop(second);
    as_opened(lib);
    for_less(lib);
    modes_in_force(lib);
}

/// An answer names an open domain only if the domain has the answer's attributes, since clients use it
/// unchanged.
fn as_opened(lib: &Lib) {
    let api = lib.newest();
    let weakest = || {
        let hints = hinted(lib, FI_TAGGED | FI_RMA);
        hints.domain().threading = FI_THREAD_DOMAIN;
        hints
    };
    let opened = Opened::new(lib, &lib.ask(api, Some(&weakest())).unwrap());
    let lacks = |what: &str, ask_for: &dyn Fn(&Info<'_>)| {
        let hints = weakest();
        ask_for(&hints);
        let answer = lib.ask(api, Some(&hints)).unwrap_or_else(|error| panic!("{what}: error {error}"));
        assert_eq!(answer.domain().domain, null_mut(), "{what}");
        hints.domain().domain = opened.domain;
        assert_eq!(lib.ask(api, Some(&hints)).err(), Some(FI_ENODATA), "{what}");
    };
    lacks("FI_THREAD_SAFE", &|hints| hints.domain().threading = FI_THREAD_SAFE);
    lacks("FI_THREAD_COMPLETION", &|hints| hints.domain().threading = FI_THREAD_COMPLETION);
    lacks("automatic progress", &|hints| hints.domain().data_progress = FI_PROGRESS_AUTO);
    lacks("FI_RMA_EVENT", &|hints| hints.get().caps |= FI_RMA_EVENT);
    lacks("FI_TRIGGER", &|hints| hints.get().caps |= FI_TRIGGER);
    lacks("FI_MR_BASIC", &|hints| hints.domain().mr_mode = FI_MR_BASIC as i32);
    lacks("connections", &|hints| (hints.get().caps, hints.ep().type_) = (FI_MSG, FI_EP_MSG));
    lacks("addresses as text", &|hints| hints.get().addr_format = FI_ADDR_STR);
    lacks("a traffic class", &|hints| hints.domain().tclass = FI_TC_DEDICATED_ACCESS);
    lacks("a key", &|hints| {
        let attr = hints.domain();
        // The host frees the key.
        (attr.auth_key, attr.auth_key_size) = (unsafe { libc::strdup(c"red".as_ptr()) }.cast(), 3);
    });
    let older = lib.ask(V1_5, Some(&weakest())).unwrap();
    assert_eq!((older.domain().domain, older.fabric().fabric), (null_mut(), null_mut()), "of another API version");
    for (domain, fabric) in [(opened.domain, null_mut()), (null_mut(), opened.fabric)] {
        let hints = weakest();
        (hints.domain().domain, hints.fabric().fabric) = (domain, fabric);
        assert_eq!(lib.ask(V1_5, Some(&hints)).err(), Some(FI_ENODATA), "of another API version");
        assert_eq!(lib.ask(api, Some(&hints)).unwrap().domain().domain, opened.domain);
    }
    // Hints that leave an attribute open get the value of the domain.
    let hints = lib.allocinfo();
    hints.domain().domain = opened.domain;
    let answer = lib.ask(api, Some(&hints)).unwrap();
    let attr = answer.domain();
    assert_eq!(
        (attr.threading, attr.data_progress, attr.control_progress),
        (FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL)
    );
    assert_eq!((attr.domain, answer.fabric().fabric), (opened.domain, opened.fabric));
    assert_eq!(answer.get().caps & (FI_MSG | FI_RMA_EVENT | FI_TRIGGER), FI_MSG);
    let endpoint: Result<*mut fid_ep, c_int> = open!(attr.domain, endpoint, answer.raw);
    assert_eq!(endpoint.map(close), Ok(0));
}

/// A domain also serves clients that request less than it has. It does not serve several contexts if it was
/// opened without.
fn for_less(lib: &Lib) {
    let api = lib.newest();
    let hints = hinted(lib, FI_TAGGED);
    (hints.domain().threading, hints.domain().data_progress) = (FI_THREAD_COMPLETION, FI_PROGRESS_AUTO);
    let opened = Opened::new(lib, &lib.ask(api, Some(&hints)).unwrap());
    let named = |threading, progress, contexts| {
        let hints = hinted(lib, FI_TAGGED);
        (hints.domain().domain, hints.domain().max_ep_rx_ctx) = (opened.domain, contexts);
        (hints.domain().threading, hints.domain().data_progress) = (threading, progress);
        let answer = lib.ask(api, Some(&hints))?;
        Ok((answer.domain().threading, answer.domain().data_progress))
    };
    assert_eq!(named(FI_THREAD_UNSPEC, FI_PROGRESS_UNSPEC, 0), Ok((FI_THREAD_COMPLETION, FI_PROGRESS_AUTO)));
    assert_eq!(named(FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL, 1), Ok((FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL)));
    assert_eq!(named(FI_THREAD_DOMAIN, FI_PROGRESS_MANUAL, 2), Err(FI_ENODATA));
    assert_eq!(named(FI_THREAD_FID, FI_PROGRESS_MANUAL, 1), Err(FI_ENODATA));
}

/// Modes of mr_mode that are in force at a domain are required of all its clients.
fn modes_in_force(lib: &Lib) {
    let api = lib.newest();
    let info = lib.ask(api, None).unwrap();
    info.domain().mr_mode = FI_MR_VIRT_ADDR;
    let opened = Opened::new(lib, &info);
    let named = |mr_mode: i32| {
        let hints = hinted(lib, FI_RMA);
        (hints.domain().domain, hints.domain().mr_mode) = (opened.domain, mr_mode);
        lib.ask(api, Some(&hints)).map(|answer| answer.domain().mr_mode)
    };
    assert_eq!(named(0), Err(FI_ENODATA));
    assert_eq!(named(FI_MR_PROV_KEY), Err(FI_ENODATA));
    assert_eq!(named(FI_MR_SCALABLE as i32), Err(FI_ENODATA));
    assert_eq!(named(FI_MR_VIRT_ADDR | FI_MR_PROV_KEY), Ok(FI_MR_VIRT_ADDR));
    assert_eq!(lib.ask(api, None).unwrap().domain().domain, null_mut(), "its answer requires no mode");
}

/// The host knows the variables, and the provider obeys them.
pub(crate) fn params(lib: &Lib) {
    let info = lib.ask(lib.newest(), None).unwrap();
    assert_eq!(info.tx().inject_size, 8192, "FI_WEFT_INJECT_BYTES=8K");
    let params = lib.params();
    for param in weft_fi::params::TABLE {
        let name = format!("FI_WEFT_{}", param.name);
        let found = params.iter().find(|(known, _)| *known == name);
        let (_, value) = found.unwrap_or_else(|| panic!("{name} is not listed in {params:?}"));
        let expected = match param.name {
            "INJECT_BYTES" => Some("8K"),
            "RAISE_DESCRIPTORS" => Some("no"),
            _ => None,
        };
        assert_eq!(value.as_deref(), expected, "{name}");
    }
}

/// Refusals are explained at info level. The parent process checks the line.
pub(crate) fn log_lines(lib: &Lib) {
    let hints = hinted(lib, FI_TAGGED);
    hints.domain().cq_data_size = 16;
    assert!(lib.getinfo(lib.newest(), None, None, 0, Some(&hints)).is_err());
}

/// Without FI_PROVIDER, layered providers look for a core provider. They must not use weft.
pub(crate) fn no_layers(lib: &Lib) {
    for name in ["", "weft"] {
        let hints = lib.allocinfo();
        if !name.is_empty() {
            hints.fabric().prov_name = unsafe { libc::strdup(CString::new(name).unwrap().as_ptr()) };
        }
        let names = lib.getinfo(lib.newest(), None, None, 0, Some(&hints)).unwrap().names();
        assert!(names.iter().any(|name| name == "weft"), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("weft;")), "{names:?}");
    }
}

/// Two host libraries of one process each load the provider. Objects of one host are not shown to the other.
/// Structures come from the requesting library, and so do the log lines of a call. The endpoints reach each
/// other.
pub(crate) fn second_host(first: &Path, second: &Path) {
    let libs = [first, second].map(Lib::load_alone);
    let lines = libs.each_ref().map(Lib::count_log_lines);
    for lib in &libs {
        assert_eq!(lib.ask(lib.newest(), None).unwrap().names(), ["weft"]);
        assert!(lib.params().iter().any(|(name, _)| name == "FI_WEFT_RX_SIZE"));
    }
    let (a, b, to_b, to_a) = introduce(Side::new(&libs[0]), Side::new(&libs[1]));
    works(&a, &b, to_b);
    works(&b, &a, to_a);
    for (lib, own, other) in [(&libs[0], &a, &b), (&libs[1], &b, &a)] {
        assert_eq!(lib.ask(lib.newest(), None).unwrap().domain().domain, own.opened.domain);
        let hints = lib.allocinfo();
        hints.domain().domain = other.opened.domain;
        let before = lines.map(|count| count.load(Ordering::Relaxed));
        assert_eq!(lib.ask(lib.newest(), Some(&hints)).err(), Some(FI_ENODATA));
        let more = [0, 1].map(|at| lines[at].load(Ordering::Relaxed) > before[at]);
        assert_eq!(more, libs.each_ref().map(|any| std::ptr::eq(any, lib)), "the hosts that logged the reason");
    }
    drop(a);
    drop(b);
    assert!(libs[0].ask(libs[0].newest(), None).unwrap().domain().domain.is_null());
}
