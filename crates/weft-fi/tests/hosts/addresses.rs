//! Nodes, services and address formats.

use std::ffi::CStr;

use weft_fi_sys::*;

use crate::client::{Info, Lib};

const NATIVE_BYTES: usize = 32;

fn hints<'a>(lib: &'a Lib, format: u32) -> Info<'a> {
    let hints = lib.allocinfo();
    hints.get().addr_format = format;
    hints
}

pub(crate) fn all(lib: &Lib) {
    native(lib);
    socket_addresses(lib);
    strings(lib);
    from_hints(lib);
}

fn native(lib: &Lib) {
    let api = lib.newest();
    let info = lib.getinfo(api, Some(c"127.0.0.1"), Some(c"4711"), 0, None).unwrap();
    assert_eq!(info.dest().map(<[u8]>::len), Some(NATIVE_BYTES));
    assert_eq!(info.src().map(<[u8]>::len), Some(NATIVE_BYTES), "the native address of an endpoint");
    assert_ne!(info.get().addr_format & FI_PROV_SPECIFIC, 0);
    let info = lib.getinfo(api, Some(c"::1"), Some(c"4711"), 0, None).unwrap();
    assert_eq!(info.dest().map(<[u8]>::len), Some(NATIVE_BYTES + 16), "with IPv6");
    let info = lib.getinfo(api, None, Some(c"4711"), FI_SOURCE, None).unwrap();
    assert_eq!(info.src().map(<[u8]>::len), Some(NATIVE_BYTES));
    assert_eq!(info.dest(), None);
    let numeric = lib.getinfo(api, Some(c"localhost"), Some(c"4711"), FI_NUMERICHOST, None);
    assert_eq!(numeric.map(|_| ()), Err(FI_ENODATA));
    assert!(lib.getinfo(api, Some(c"localhost"), Some(c"4711"), 0, None).is_ok());
    // TEST-NET-1 is not an address of this host, so no endpoint can be opened on it. The attempt must not
    // show in errno.
    unsafe { libc::__errno_location().write(0) };
    let foreign = lib.getinfo(api, Some(c"192.0.2.1"), Some(c"4711"), FI_SOURCE, None);
    assert_eq!((unsafe { libc::__errno_location().read() }, foreign.map(|_| ())), (0, Err(FI_ENODATA)));
    assert!(lib.getinfo(api, Some(c"192.0.2.1"), Some(c"4711"), 0, None).is_ok());
}

fn socket_addresses(lib: &Lib) {
    let api = lib.newest();
    for format in [FI_SOCKADDR, FI_SOCKADDR_IN] {
        let info = lib.getinfo(api, Some(c"127.0.0.1"), Some(c"4711"), 0, Some(&hints(lib, format))).unwrap();
        assert_eq!(info.get().addr_format, format);
        let dest = info.dest().unwrap();
        assert_eq!(dest.len(), size_of::<libc::sockaddr_in>());
        assert_eq!(&dest[..8], [2, 0, 0x12, 0x67, 127, 0, 0, 1]);
        let src = info.src().unwrap();
        assert_eq!((src.len(), &src[..2]), (dest.len(), [2, 0].as_slice()));
    }
    let info = lib.getinfo(api, Some(c"::1"), Some(c"4711"), 0, Some(&hints(lib, FI_SOCKADDR_IN6))).unwrap();
    assert_eq!(info.dest().map(<[u8]>::len), Some(size_of::<libc::sockaddr_in6>()));
    let wrong = lib.getinfo(api, Some(c"::1"), Some(c"4711"), 0, Some(&hints(lib, FI_SOCKADDR_IN)));
    assert_eq!(wrong.map(|_| ()), Err(FI_ENODATA));
}

fn strings(lib: &Lib) {
    let api = lib.newest();
    let text = c"fi_sockaddr_in://127.0.0.1:4711";
    let info = lib.getinfo(api, Some(text), None, 0, Some(&hints(lib, FI_ADDR_STR))).unwrap();
    assert_eq!(unsafe { CStr::from_ptr(info.get().dest_addr.cast()) }, text);
    // A string names a node in every format.
    let native = lib.getinfo(api, Some(text), None, 0, None).unwrap();
    assert_eq!(native.dest().map(<[u8]>::len), Some(NATIVE_BYTES));
}

fn from_hints(lib: &Lib) {
    let api = lib.newest();
    let given = hints(lib, FI_SOCKADDR_IN);
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as u16;
    address.sin_port = 4711_u16.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    let len = size_of_val(&address);
    let copy = || unsafe {
        let out = libc::malloc(len);
        std::ptr::copy_nonoverlapping((&raw const address).cast::<u8>(), out.cast(), len);
        out
    };
    (given.get().src_addr, given.get().src_addrlen) = (copy(), len);
    (given.get().dest_addr, given.get().dest_addrlen) = (copy(), len);
    let info = lib.ask(api, Some(&given)).unwrap();
    assert_eq!(info.src(), given.src());
    assert_eq!(info.dest(), given.dest());
    // A node replaces the destination of the hints, or with FI_SOURCE the source.
    let info = lib.getinfo(api, Some(c"127.0.0.2"), Some(c"1"), 0, Some(&given)).unwrap();
    assert_eq!(info.src(), given.src());
    assert_ne!(info.dest(), given.dest());
    let info = lib.getinfo(api, Some(c"127.0.0.2"), Some(c"1"), FI_SOURCE, Some(&given)).unwrap();
    assert_ne!(info.src(), given.src());
    assert_eq!(info.dest(), given.dest());
    // An address with a length that its format does not have.
    given.get().src_addrlen = 7;
    assert!(lib.ask(api, Some(&given)).is_err());
}
