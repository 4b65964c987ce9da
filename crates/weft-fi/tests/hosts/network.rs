//! Attributes of the network: traffic classes and authorization keys.

use std::ffi::CStr;

use weft_fi_sys::*;

use crate::client::{Info, Lib, Opened, close};
use crate::open;
use crate::side::{Args, Scene, Side, introduce, memory, pattern, scenes, works};

const SCENES: &[Scene] =
    &[("keys", keys), ("old_versions_have_no_keys", old_versions_have_no_keys), ("keys_of_regions", keys_of_regions)];
const TCP_SCENES: &[Scene] = &[("traffic_classes", traffic_classes), ("wrong_traffic_classes", wrong_traffic_classes)];

pub(crate) fn all(lib: &Lib) {
    scenes(lib, SCENES);
}

pub(crate) fn tcp(lib: &Lib) {
    scenes(lib, SCENES);
    scenes(lib, TCP_SCENES);
}

/// The environment sets FI_WEFT_JOB_KEY to [`JOB_KEY`].
pub(crate) fn job_key(lib: &Lib) {
    scenes(lib, &[("keys_of_the_job", keys_of_the_job)]);
}

/// With an empty job key, no object opens that would communicate without a key.
pub(crate) fn empty_job_key(lib: &Lib) {
    // The group's environment cannot set an empty value. Only this thread runs, and the provider reads the
    // variable later.
    unsafe { std::env::set_var(JOB_KEY.0, "") };
    let info = lib.ask(lib.newest(), None).unwrap();
    let fabric = lib.fabric(&info);
    assert_eq!(open!(fabric, domain, info.raw).map(|domain: *mut fid_domain| close(domain)), Err(FI_EINVAL));
    let hints = lib.allocinfo();
    hints.ep().type_ = FI_EP_MSG;
    let info = lib.ask(lib.newest(), Some(&hints)).unwrap();
    assert_eq!(open!(fabric, passive_ep, info.raw).map(|pep: *mut fid_pep| close(pep)), Err(FI_EINVAL));
    assert_eq!(close(fabric), 0);
}

/// A variable in the environment of every process of a job.
pub(crate) const JOB_KEY: (&str, &str) = ("FI_WEFT_JOB_KEY", "green");

/// The authorization keys of a domain and of its endpoint.
type Keys = (Option<&'static CStr>, Option<&'static CStr>);

/// Opens an endpoint with these authorization keys in its attributes.
pub(crate) fn keyed<'a>(lib: &'a Lib, api: u32, domain: Option<&CStr>, endpoint: Option<&CStr>) -> Side<'a> {
    let hints = lib.allocinfo();
    let give = |key: Option<&CStr>, (place, len): (&mut *mut u8, &mut usize)| {
        if let Some(key) = key {
            // The host frees the key.
            (*place, *len) = (unsafe { libc::strdup(key.as_ptr()) }.cast(), key.count_bytes());
        }
    };
    let attr = hints.domain();
    give(domain, (&mut attr.auth_key, &mut attr.auth_key_size));
    let attr = hints.ep();
    give(endpoint, (&mut attr.auth_key, &mut attr.auth_key_size));
    Side::opened(lib, 0, lib.ask(api, Some(&hints)).unwrap())
}

/// Checks for each case whether two endpoints with these keys can communicate.
fn agree(lib: &Lib, cases: &[(Keys, Keys, bool)]) {
    for &(mine, theirs, agree) in cases {
        let side = |(domain, endpoint)| keyed(lib, lib.newest(), domain, endpoint);
        let (a, b, to_b, _) = introduce(side(mine), side(theirs));
        if agree {
            works(&a, &b, to_b);
        } else {
            a.tsend(pattern(100), to_b, 1);
            assert_eq!(a.next(&[&b]).failed().err, libc::EACCES, "{mine:?}, {theirs:?}");
        }
    }
}

/// Endpoints communicate if they have the same key. The key is the endpoint's own, or its domain's.
fn keys(lib: &Lib) {
    let (red, blue) = (Some(c"red"), Some(c"blue"));
    let cases = [
        ((None, red), (None, red), true),
        ((blue, red), (red, None), true),
        ((None, red), (None, blue), false),
        ((red, None), (red, blue), false),
        ((None, None), (None, red), false),
    ];
    agree(lib, &cases);
}

/// The environment's key applies to endpoints without a key. Endpoints that have the same key from their
/// attributes communicate with them.
fn keys_of_the_job(lib: &Lib) {
    let (red, green) = (Some(c"red"), Some(c"green"));
    let cases = [
        ((None, None), (None, None), true),
        ((None, None), (None, green), true),
        ((green, None), (None, None), true),
        ((None, None), (red, None), false),
        ((None, red), (None, None), false),
        ((red, None), (None, red), true),
    ];
    agree(lib, &cases);
}

/// Calls `fi_mr_regattr` with an authorization key for the region.
fn register(side: &Side<'_>, target: &mut [u8], key: Option<&[u8]>) -> Result<*mut fid_mr, i32> {
    let iov = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let mut attr: fi_mr_attr = unsafe { std::mem::zeroed() };
    (attr.mr_iov, attr.iov_count, attr.access, attr.requested_key) = (&raw const iov, 1, FI_REMOTE_WRITE, 7);
    if let Some(key) = key {
        (attr.auth_key, attr.auth_key_size) = (key.as_ptr().cast_mut(), key.len());
    }
    let (domain, mut mr) = (side.opened.domain, std::ptr::null_mut());
    match unsafe { (*(*domain).mr).regattr.unwrap()(domain.cast(), &attr, 0, &mut mr) } {
        0 => Ok(mr),
        error => Err(error),
    }
}

/// A region is accessible through endpoints with its key. The key is the region's own, or its domain's if
/// that has one.
fn keys_of_regions(lib: &Lib) {
    let red = Some(c"red");
    for (domain, own, reached) in [
        (None, None, true),
        (None, Some(&b"red"[..]), true),
        (None, Some(b"blue"), false),
        (Some(c"blue"), None, false),
        (Some(c"blue"), Some(b"red"), true),
    ] {
        let (a, b) = (keyed(lib, lib.newest(), None, red), keyed(lib, lib.newest(), domain, red));
        let (a, b, to_b, _) = introduce(a, b);
        let target = memory(8);
        let mr = register(&b, target, own).unwrap();
        a.start("fi_write", &Args { key: 7, ..Args::new(pattern(8), to_b) }, &[&b]);
        let end = a.next(&[&b]);
        if reached {
            end.done();
            assert_eq!(target, pattern(8));
        } else {
            assert_eq!(end.failed().err, libc::EKEYREJECTED, "{domain:?}, {own:?}");
            assert_eq!(target, [0; 8]);
        }
        assert_eq!(close(mr), 0);
        assert_eq!(register(&b, target, Some(&[1; 257])), Err(-libc::EINVAL));
    }
}

/// Before API 1.5 keys are ignored.
fn old_versions_have_no_keys(lib: &Lib) {
    let side = |key| keyed(lib, version(1, 4), None, Some(key));
    let (a, b, to_b, _) = introduce(side(c"red"), side(c"blue"));
    works(&a, &b, to_b);
}

/// An endpoint's class is that of its attributes, or its domain's. Its sockets are marked with the class.
fn traffic_classes(lib: &Lib) {
    for (domain, endpoint, byte) in [
        (FI_TC_UNSPEC, FI_TC_UNSPEC, 0),
        (FI_TC_DSCP | 10, FI_TC_UNSPEC, 10 << 2),
        (FI_TC_UNSPEC, FI_TC_DSCP | 63, 63 << 2),
        (FI_TC_BULK_DATA, FI_TC_DEDICATED_ACCESS, 46 << 2),
        (FI_TC_BULK_DATA, FI_TC_BEST_EFFORT, 0),
    ] {
        let side = Side::with(lib, 0, |hints: &Info<'_>| {
            hints.get().addr_format = FI_SOCKADDR_IN;
            hints.domain().tclass = domain;
            hints.tx().tclass = endpoint;
        });
        assert_eq!((side.info.domain().tclass, side.info.tx().tclass), (domain, endpoint));
        assert_eq!(class_of_listener(&side.name()), byte, "{domain:#x}, {endpoint:#x}");
    }
}

/// Returns the traffic class byte of the socket that listens at an address.
fn class_of_listener(name: &[u8]) -> i32 {
    for fd in 0..1024 {
        let mut addr: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&addr) as libc::socklen_t;
        let (mut class, mut listens) = (0, 0);
        let ask = |level, option, value: &mut i32| {
            let mut len = size_of::<i32>() as libc::socklen_t;
            unsafe { libc::getsockopt(fd, level, option, (&raw mut *value).cast(), &mut len) }
        };
        let known = unsafe { libc::getsockname(fd, (&raw mut addr).cast(), &mut len) } == 0
            && i32::from(addr.sin_family) == libc::AF_INET
            && addr.sin_port.to_ne_bytes() == name[2..4]
            && ask(libc::SOL_SOCKET, libc::SO_ACCEPTCONN, &mut listens) == 0;
        if known && listens == 1 {
            assert_eq!(ask(libc::IPPROTO_IP, libc::IP_TOS, &mut class), 0);
            return class;
        }
    }
    panic!("no socket listens at {name:?}");
}

/// Invalid classes are not offered. Opening an object with one is refused.
fn wrong_traffic_classes(lib: &Lib) {
    for wrong in [1, FI_TC_DSCP | 64, FI_TC_NETWORK_CTRL + 1] {
        let hints = lib.allocinfo();
        hints.tx().tclass = wrong;
        assert_eq!(lib.ask(lib.newest(), Some(&hints)).err(), Some(FI_ENODATA), "{wrong:#x}");
        hints.tx().tclass = FI_TC_UNSPEC;
        hints.domain().tclass = wrong;
        assert_eq!(lib.ask(lib.newest(), Some(&hints)).err(), Some(FI_ENODATA), "{wrong:#x}");
        let info = lib.ask(lib.newest(), None).unwrap();
        let opened = Opened::new(lib, &info);
        info.tx().tclass = wrong;
        assert_eq!(open!(opened.domain, endpoint, info.raw).map(|ep: *mut fid_ep| close(ep)), Err(FI_EINVAL));
        (info.tx().tclass, info.domain().tclass) = (FI_TC_UNSPEC, wrong);
        assert_eq!(open!(opened.fabric, domain, info.raw).map(|domain: *mut fid_domain| close(domain)), Err(FI_EINVAL));
    }
}
