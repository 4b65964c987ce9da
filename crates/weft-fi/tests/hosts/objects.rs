//! Fabrics, domains and endpoints: their tables, their lifetimes, and exits with open objects.

use std::ffi::c_int;
use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::{Lib, Opened, bind, close, control};
use crate::open;

/// No slot of a table is empty, since older headers call slots without a check.
pub(crate) fn tables(lib: &Lib) {
    let info = lib.ask(lib.newest(), None).unwrap();
    let opened = Opened::new(lib, &info);
    let av = opened.av(|_| ()).unwrap();
    let (cq, cntr, eq) = (opened.cq(), opened.cntr(), opened.eq(|_| ()).unwrap());
    let ep: *mut fid_ep = open!(opened.domain, endpoint, info.raw).unwrap();
    let mut poll = null_mut();
    assert_eq!(unsafe { (*(*opened.domain).ops).poll_open.unwrap()(opened.domain, null_mut(), &mut poll) }, 0);
    let mut wait = null_mut();
    assert_eq!(unsafe { (*(*opened.fabric).ops).wait_open.unwrap()(opened.fabric, null_mut(), &mut wait) }, 0);
    unsafe {
        full((*poll).fid.ops);
        full((*poll).ops);
        full((*wait).fid.ops);
        full((*wait).ops);
        full((*opened.fabric).fid.ops);
        full((*opened.fabric).ops);
        full((*opened.domain).fid.ops);
        full((*opened.domain).ops);
        full((*opened.domain).mr);
        full((*av).fid.ops);
        full((*av).ops);
        full((*cq).fid.ops);
        full((*cq).ops);
        full((*cntr).fid.ops);
        full((*cntr).ops);
        full((*eq).fid.ops);
        full((*eq).ops);
        full((*ep).fid.ops);
        full((*ep).ops);
        full((*ep).cm);
        full((*ep).msg);
        full((*ep).rma);
        full((*ep).tagged);
        full((*ep).atomic);
        full((*ep).collective);
    }
    let sep = open!(opened.domain, scalable_ep, info.raw).unwrap();
    unsafe {
        full((*sep).fid.ops);
        full((*sep).ops);
        full((*sep).cm);
        full((*sep).msg);
        full((*sep).rma);
        full((*sep).tagged);
        full((*sep).atomic);
        full((*sep).collective);
    }
    assert_eq!(close(sep), 0);
    let (stx, srx) =
        (open!(opened.domain, stx_ctx, null_mut()).unwrap(), open!(opened.domain, srx_ctx, null_mut()).unwrap());
    unsafe {
        full((*stx).fid.ops);
        full((*stx).ops);
        full((*srx).ops);
        full((*srx).cm);
        full((*srx).msg);
        full((*srx).rma);
        full((*srx).tagged);
        full((*srx).atomic);
        full((*srx).collective);
    }
    assert_eq!((close(stx), close(srx)), (0, 0));
    for result in [close(poll), close(wait), close(ep), close(av), close(cq), close(cntr), close(eq)] {
        assert_eq!(result, 0);
    }
}

/// Asserts that a table is its size followed by non-null pointers up to that size.
unsafe fn full<T>(table: *const T) {
    let words: *const usize = table.cast();
    unsafe {
        let size = words.read();
        assert!(size >= size_of::<T>(), "size {size} of {}", std::any::type_name::<T>());
        for slot in 1..size / size_of::<usize>() {
            assert_ne!(words.add(slot).read(), 0, "slot {slot} of {}", std::any::type_name::<T>());
        }
    }
}

/// Parents cannot be closed before their children.
pub(crate) fn busy(lib: &Lib) {
    let info = lib.ask(lib.newest(), None).unwrap();
    let opened = Opened::new(lib, &info);
    assert_eq!(close(opened.fabric), -FI_EBUSY);
    let av = opened.av(|_| ()).unwrap();
    assert_eq!(close(opened.domain), -FI_EBUSY);
    let eq = opened.eq(|_| ()).unwrap();
    assert_eq!(bind(av, eq, 0), 0);
    assert_eq!(close(eq), -FI_EBUSY, "bound to the address vector");
    let ep: *mut fid_ep = open!(opened.domain, endpoint, info.raw).unwrap();
    let cq = opened.cq();
    assert_eq!(bind(ep, av, 0), 0);
    assert_eq!(bind(ep, cq, FI_TRANSMIT | FI_RECV), 0);
    assert_eq!(close(av), -FI_EBUSY);
    assert_eq!(close(cq), -FI_EBUSY);
    assert_eq!(close(ep), 0);
    assert_eq!(close(cq), 0);
    assert_eq!(close(av), 0);
    assert_eq!(close(eq), 0);
    // While a domain is open, fi_getinfo reports it, and hints may name it.
    let second = lib.ask(lib.newest(), None).unwrap();
    assert_eq!(second.domain().domain, opened.domain);
    assert_eq!(second.fabric().fabric, opened.fabric);
    let hints = lib.allocinfo();
    hints.domain().domain = opened.domain;
    assert!(lib.ask(lib.newest(), Some(&hints)).is_ok());
    hints.domain().domain = 0x10 as *mut fid_domain;
    assert!(lib.ask(lib.newest(), Some(&hints)).is_err());
}

/// A process may exit with open objects, including threads for automatic progress.
pub(crate) fn left_open(lib: &Lib) {
    let hints = lib.allocinfo();
    hints.domain().data_progress = FI_PROGRESS_AUTO;
    let info = lib.ask(lib.newest(), Some(&hints)).unwrap();
    let opened = Opened::new(lib, &info);
    let ep = enabled(&opened, info.raw);
    assert!(!ep.is_null());
    std::mem::forget(opened);
}

/// Opens and enables an endpoint with a vector and a queue, which stay open.
fn enabled(opened: &Opened, info: *mut fi_info) -> *mut fid_ep {
    let ep: *mut fid_ep = open!(opened.domain, endpoint, info).unwrap();
    assert_eq!(bind(ep, opened.av(|_| ()).unwrap(), 0), 0);
    assert_eq!(bind(ep, opened.cq(), FI_TRANSMIT | FI_RECV), 0);
    assert_eq!(control(ep, FI_ENABLE, null_mut()), 0, "fi_enable");
    ep
}

/// Calls `fi_getname` twice: for the length, and for the name.
fn name_of(ep: *mut fid_ep) -> Vec<u8> {
    unsafe {
        let getname = (*(*ep).cm).getname.unwrap();
        let mut len = 0;
        assert_eq!(getname(ep.cast(), null_mut(), &mut len), -(FI_ETOOSMALL as i32));
        let mut name = vec![0_u8; len];
        assert_eq!(getname(ep.cast(), name.as_mut_ptr().cast(), &mut len), 0);
        assert_eq!(len, name.len());
        name
    }
}

/// Endpoints have names that can be inserted, in every format and version.
pub(crate) fn endpoint(lib: &Lib) {
    for api in lib.versions() {
        for format in [FI_FORMAT_UNSPEC, FI_SOCKADDR_IN] {
            let hints = lib.allocinfo();
            hints.get().addr_format = format;
            let info = lib.ask(api, Some(&hints)).unwrap();
            let opened = Opened::new(lib, &info);
            let (av, cq) = (opened.av(|_| ()).unwrap(), opened.cq());
            let ep: *mut fid_ep = open!(opened.domain, endpoint, info.raw).unwrap();
            assert_eq!(control(ep, FI_ENABLE, null_mut()), -(FI_ENOAV as i32));
            assert_eq!(bind(ep, av, 0), 0);
            assert_eq!(control(ep, FI_ENABLE, null_mut()), -(FI_ENOCQ as i32));
            assert_eq!(bind(ep, cq, FI_TRANSMIT | FI_RECV), 0);
            assert_eq!(control(ep, FI_ENABLE, null_mut()), 0, "fi_enable");
            let name = name_of(ep);
            assert_eq!(name.len(), if format == FI_SOCKADDR_IN { 16 } else { 32 });
            let insert = unsafe { (*(*av).ops).insert.unwrap() };
            let mut number = 77;
            assert_eq!(unsafe { insert(av, name.as_ptr().cast(), 1, &mut number, 0, null_mut()) }, 1);
            assert_eq!(number, 0);
            assert_eq!(close(ep), 0);
            assert_eq!(close(cq), 0);
            assert_eq!(close(av), 0);
        }
    }
}

/// `struct weft_match_ops` of fi_weft(7).
#[repr(C)]
struct MatchOps {
    size: usize,
    set: unsafe extern "C" fn(*mut fid_ep, *const std::ffi::c_char) -> std::ffi::c_int,
    get: unsafe extern "C" fn(*mut fid_ep, *mut *const std::ffi::c_char) -> std::ffi::c_int,
}

/// The search method of an endpoint's queues is chosen before it is enabled.
pub(crate) fn matching(lib: &Lib) {
    let side = crate::side::Side::new(lib);
    let info = lib.ask(lib.newest(), None).unwrap();
    let opened = Opened::new(lib, &info);
    let ep: *mut fid_ep = open!(opened.domain, endpoint, info.raw).unwrap();
    let (mut table, mut kind) = (null_mut(), std::ptr::null());
    unsafe {
        let open = (*(*ep).fid.ops).ops_open.unwrap();
        assert_eq!(open(&mut (*ep).fid, c"weft_match".as_ptr(), 0, &mut table, null_mut()), 0);
        assert_eq!(open(&mut (*ep).fid, c"weft_stats".as_ptr(), 0, &mut table, null_mut()), -FI_ENOSYS);
        let ops: &MatchOps = &*table.cast();
        assert!(ops.size >= size_of::<MatchOps>());
        assert_eq!(((ops.get)(ep, &mut kind), std::ffi::CStr::from_ptr(kind)), (0, c"auto"));
        for name in [c"list", c"hash", c"tree", c"auto"] {
            assert_eq!((ops.set)(ep, name.as_ptr()), 0);
            assert_eq!(((ops.get)(ep, &mut kind), std::ffi::CStr::from_ptr(kind)), (0, name));
        }
        assert_eq!((ops.set)(ep, c"heap".as_ptr()), -FI_EINVAL);
        assert_eq!((ops.set)(ep, std::ptr::null()), -FI_EINVAL);
        assert_eq!((ops.get)(ep, null_mut()), -FI_EINVAL);
        assert_eq!((ops.set)(side.ep, c"list".as_ptr()), -(FI_EOPBADSTATE as c_int));
    }
    assert_eq!(close(ep), 0);
}
