//! Address vectors.

use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::ptr::{null, null_mut};

use weft_fi_sys::*;

use crate::client::{Lib, Opened, bind, close};

pub(crate) fn all(lib: &Lib) {
    kinds(lib);
    socket_addresses(lib);
    errors(lib);
    events(lib);
    strings(lib);
    shared(lib);
    occupied(lib);
}

/// Vectors of one name share addresses and their numbers, whichever vector inserts them. The name is free
/// again when the last vector is closed.
fn shared(lib: &Lib) {
    let (opened, other) = (opened(lib, FI_SOCKADDR_IN), opened(lib, FI_SOCKADDR_IN));
    let name = std::ffi::CString::new(format!("vector {}", std::process::id())).unwrap();
    let named = |attr: &mut fi_av_attr, flags| (attr.name, attr.flags) = (name.as_ptr(), flags);
    assert_eq!(opened.av(|attr| named(attr, FI_READ)), Err(FI_ENOENT), "the vector does not exist yet");
    let first = opened.av(|attr| named(attr, 0)).unwrap();
    let mut numbers = [9_u64; 2];
    assert_eq!(insert(first, &[socket(1), socket(2)], numbers.as_mut_ptr(), 0, null_mut()), 2);
    assert_eq!(numbers, [0, 1]);
    let mut attr: fi_av_attr = unsafe { std::mem::zeroed() };
    named(&mut attr, FI_READ);
    let reader: *mut fid_av = crate::open!(other.domain, av_open, &mut attr).unwrap();
    assert_eq!(unsafe { attr.map_addr.cast::<u64>().add(1).read() }, 1);
    let second = other.av(|attr| named(attr, 0)).unwrap();
    // A known address keeps its number. A new address appears in all vectors.
    assert_eq!(insert(second, &[socket(2), socket(3)], numbers.as_mut_ptr(), 0, null_mut()), 2);
    assert_eq!(numbers, [1, 2]);
    for av in [first, second, reader] {
        for (number, port) in [(0, 1), (1, 2), (2, 3)] {
            assert_eq!(lookup(av, number).unwrap()[2..4], [0, port]);
        }
        assert_eq!(lookup(av, 3), Err(-FI_EINVAL));
    }
    assert_eq!(insert(reader, &[socket(4)], numbers.as_mut_ptr(), 0, null_mut()), -FI_EACCES);
    let remove =
        |av: *mut fid_av, number: u64| unsafe { (*(*av).ops).remove.unwrap()(av, [number].as_mut_ptr(), 1, 0) };
    assert_eq!(remove(reader, 0), -FI_EACCES);
    // The address was inserted twice.
    assert_eq!((remove(first, 1), lookup(first, 1).is_ok(), remove(second, 1)), (0, true, 0));
    assert_eq!(lookup(reader, 1), Err(-FI_EINVAL), "the other vectors see the removal");
    assert_eq!((lookup(second, 1), remove(first, 1)), (Err(-FI_EINVAL), -FI_EINVAL));
    assert_eq!(insert(first, &[socket(5)], numbers.as_mut_ptr(), 0, null_mut()), 1);
    assert_eq!((numbers[0], lookup(reader, 3).unwrap()[3]), (3, 5));
    // Open vectors stay usable when their creator closes. No new vector of the name can be opened then.
    assert_eq!(close(first), 0);
    assert_eq!(lookup(second, 2).unwrap()[3], 3);
    assert_eq!(opened.av(|attr| named(attr, FI_READ)), Err(FI_ENOENT));
    let fresh = opened.av(|attr| named(attr, 0)).unwrap();
    assert_eq!(lookup(fresh, 0), Err(-FI_EINVAL), "a new vector of the name");
    short_files(|| {
        assert!(opened.av(|attr| attr.name = c"another name".as_ptr()).is_err(), "no room for a new vector");
        assert!(insert(second, &[socket(6)], numbers.as_mut_ptr(), 0, null_mut()) <= 0, "no room for another row");
        assert_eq!(lookup(second, 2).unwrap()[3], 3);
    });
    assert_eq!(insert(second, &[socket(6)], numbers.as_mut_ptr(), 0, null_mut()), 1);
    for av in [second, reader, fresh] {
        assert_eq!(close(av), 0);
    }
}

/// Another process holds the socket of a vector's name, as any user can, and may announce one of this
/// process's files as the vector. Opening the vector fails within bounds. It succeeds once the socket is
/// closed.
fn occupied(lib: &Lib) {
    let opened = opened(lib, FI_SOCKADDR_IN);
    let name = std::ffi::CString::new(format!("occupied {}", std::process::id())).unwrap();
    let open = || opened.av(|attr| attr.name = name.as_ptr());
    let bound = || -> Vec<String> {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        sockets.lines().filter_map(|line| Some(line.split_once("@weft-av-")?.1.to_owned())).collect()
    };
    let (before, av) = (bound(), open().unwrap());
    // The number of the creating process is part of the second socket's name.
    let mine = format!("-{}-", std::process::id());
    let new = bound().into_iter().find(|name| name.contains(&mine) && !before.contains(name)).unwrap();
    assert_eq!(close(av), 0);
    let public = format!("weft-av-{}", new.split_once('-').unwrap().0);
    let file = File::open("/proc/self/exe").unwrap();
    let terminal = terminal();
    let lies = [
        "-1-1".to_owned(),
        format!("{mine}{}", file.as_raw_fd()),
        "-x".to_owned(),
        format!("{mine}{}", terminal.1.as_raw_fd()),
    ];
    let hold = |name: String| UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let mut held = vec![hold(public.clone())];
    held.extend(lies.map(|lie| hold(format!("{public}{lie}"))));
    assert_eq!(open(), Err(FI_EADDRINUSE));
    assert_eq!(opened.av(|attr| (attr.name, attr.flags) = (name.as_ptr(), FI_READ)), Err(FI_ENOENT));
    let controlling = File::open("/dev/tty").map_err(|error| error.raw_os_error());
    assert_eq!(
        controlling.err(),
        Some(Some(libc::ENXIO)),
        "the terminal became the controlling terminal of this process"
    );
    drop(held);
    assert_eq!(close(open().unwrap()), 0);
}

/// Opens both ends of a terminal that does not control this process. A session leader without a controlling
/// terminal would get the next terminal that it opens. This process becomes such a leader.
fn terminal() -> (File, File) {
    unsafe {
        assert!(libc::setsid() > 0);
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        let slave = libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(slave >= 0);
        (File::from_raw_fd(master), File::from_raw_fd(slave))
    }
}

/// Runs a function while a write beyond 256 bytes of a file raises a signal. No other thread writes files
/// here.
fn short_files(body: impl FnOnce()) {
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) }, 0);
    let short = libc::rlimit { rlim_cur: 256, ..limit };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &short) }, 0);
    body();
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

fn opened(lib: &Lib, format: u32) -> Opened {
    let hints = lib.allocinfo();
    hints.get().addr_format = format;
    Opened::new(lib, &lib.ask(lib.newest(), Some(&hints)).unwrap())
}

fn socket(port: u16) -> libc::sockaddr_in {
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as u16;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    address
}

fn insert<T>(av: *mut fid_av, addresses: &[T], numbers: *mut u64, flags: u64, context: *mut c_void) -> c_int {
    unsafe { (*(*av).ops).insert.unwrap()(av, addresses.as_ptr().cast(), addresses.len(), numbers, flags, context) }
}

fn lookup(av: *mut fid_av, number: u64) -> Result<Vec<u8>, c_int> {
    let mut bytes = vec![0_u8; 128];
    let mut len = bytes.len();
    let result = unsafe { (*(*av).ops).lookup.unwrap()(av, number, bytes.as_mut_ptr().cast(), &mut len) };
    if result == 0 { Ok(bytes[..len].to_vec()) } else { Err(result) }
}

fn kinds(lib: &Lib) {
    let opened = opened(lib, FI_FORMAT_UNSPEC);
    for kind in [FI_AV_MAP, FI_AV_TABLE] {
        let av = opened.av(|attr| attr.type_ = kind).unwrap();
        assert_eq!(close(av), 0);
    }
    let mut attr: fi_av_attr = unsafe { std::mem::zeroed() };
    let av: *mut fid_av = crate::open!(opened.domain, av_open, &mut attr).unwrap();
    assert_eq!(attr.type_, FI_AV_TABLE, "the chosen type is returned");
    assert_eq!(close(av), 0);
    assert_eq!(opened.av(|attr| attr.flags = FI_READ), Err(FI_EINVAL), "only named vectors can be read-only");
    let old = Opened::new(lib, &lib.ask(version(1, 17), None).unwrap());
    assert_eq!(old.av(|attr| attr.flags = FI_AV_USER_ID), Err(FI_ENOSYS), "this API has no function to set numbers");
    assert_eq!(opened.av(|attr| attr.type_ = 9), Err(FI_EINVAL));
}

fn socket_addresses(lib: &Lib) {
    let opened = opened(lib, FI_SOCKADDR_IN);
    let av = opened.av(|attr| attr.count = 4).unwrap();
    let mut numbers = [9; 3];
    let addresses = [socket(1), socket(2), socket(3)];
    assert_eq!(insert(av, &addresses, numbers.as_mut_ptr(), 0, null_mut()), 3);
    assert_eq!(numbers, [0, 1, 2]);
    // Numbers follow from the order, so the client need not request them. A known address keeps its number.
    assert_eq!(insert(av, &[socket(4)], null_mut(), FI_MORE, null_mut()), 1);
    assert_eq!(insert(av, &[socket(2)], numbers.as_mut_ptr(), 0, null_mut()), 1);
    assert_eq!(numbers[0], 1);
    assert_eq!(lookup(av, 3).unwrap()[..8], [2, 0, 0, 4, 127, 0, 0, 1]);
    assert_eq!(lookup(av, 4), Err(-FI_EINVAL));
    let mut gone = [2, 0];
    let remove = unsafe { (*(*av).ops).remove.unwrap() };
    assert_eq!(unsafe { remove(av, gone.as_mut_ptr(), 2, 0) }, 0);
    assert_eq!(lookup(av, 0), Err(-FI_EINVAL));
    assert_eq!(unsafe { remove(av, gone.as_mut_ptr(), 1, 0) }, -FI_EINVAL);
    assert_eq!(insert(av, &[socket(9)], numbers.as_mut_ptr(), 0, null_mut()), 1);
    assert_eq!(numbers[0], 0, "the lowest free number");
    let mut text = [0 as std::ffi::c_char; 64];
    let mut len = text.len();
    let straddr = unsafe { (*(*av).ops).straddr.unwrap() };
    let shown = unsafe { straddr(av, (&raw const addresses[0]).cast(), text.as_mut_ptr(), &mut len) };
    assert_eq!(unsafe { CStr::from_ptr(shown) }, c"fi_sockaddr_in://127.0.0.1:1");
    let mut short = 8;
    unsafe { straddr(av, (&raw const addresses[0]).cast(), text.as_mut_ptr(), &mut short) };
    assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"fi_sock");
    assert_eq!(short, len);
    let insertsym = unsafe { (*(*av).ops).insertsym.unwrap() };
    let mut many = [0; 4];
    let result =
        unsafe { insertsym(av, c"127.0.0.1".as_ptr(), 2, c"100".as_ptr(), 2, many.as_mut_ptr(), 0, null_mut()) };
    assert_eq!((result, many), (4, [2, 4, 5, 6]));
    assert_eq!(lookup(av, 6).unwrap()[..8], [2, 0, 0, 101, 127, 0, 0, 2]);
    let insertsvc = unsafe { (*(*av).ops).insertsvc.unwrap() };
    let result = unsafe { insertsvc(av, c"localhost".as_ptr(), c"300".as_ptr(), null_mut(), 0, null_mut()) };
    assert_eq!(result, 1);
    assert_eq!(lookup(av, 7).unwrap()[..4], [2, 0, 1, 44]);
    assert_eq!(close(av), 0);
}

/// Invalid addresses among good ones are counted, marked, and explained on request.
fn errors(lib: &Lib) {
    let opened = opened(lib, FI_FORMAT_UNSPEC);
    let av = opened.av(|_| ()).unwrap();
    let native = {
        let info = lib.getinfo(lib.newest(), Some(c"127.0.0.1"), Some(c"7"), 0, None).unwrap();
        <[u8; 32]>::try_from(info.dest().unwrap()).unwrap()
    };
    let mut status = [9, 9, 9];
    let mut numbers = [9; 3];
    let addresses = [[0xff_u8; 32], native, [0; 32]];
    let inserted = insert(av, &addresses, numbers.as_mut_ptr(), FI_SYNC_ERR, status.as_mut_ptr().cast());
    assert_eq!((inserted, status), (1, [FI_EINVAL, 0, FI_EINVAL]));
    assert_eq!(numbers, [FI_ADDR_NOTAVAIL, 0, FI_ADDR_NOTAVAIL]);
    assert_eq!(lookup(av, 0).unwrap(), native);
    assert_eq!(insert(av, &addresses[1..2], null_mut(), FI_AV_USER_ID, null_mut()), -(FI_EBADFLAGS as i32));
    assert_eq!(unsafe { (*(*av).ops).insert.unwrap()(av, null(), 1, null_mut(), 0, null_mut()) }, -FI_EINVAL);
    assert_eq!(close(av), 0);
}

/// Asynchronous insertion reports the failures first, then the number of successes.
fn events(lib: &Lib) {
    let opened = opened(lib, FI_SOCKADDR_IN);
    let av = opened.av(|attr| attr.flags = FI_EVENT).unwrap();
    let mut bad = socket(2);
    bad.sin_family = 0;
    let addresses = [socket(1), bad, socket(3)];
    assert_eq!(insert(av, &addresses, null_mut(), 0, null_mut()), -(FI_ENOEQ as i32));
    let eq = opened.eq(|_| ()).unwrap();
    assert_eq!(bind(av, eq, 0), 0);
    let mut context = 0_u64;
    let context: *mut c_void = (&raw mut context).cast();
    assert_eq!(insert(av, &addresses, null_mut(), 0, context), 0);
    let mut event = 0;
    let mut entry: fi_eq_entry = unsafe { std::mem::zeroed() };
    let mut error: fi_eq_err_entry = unsafe { std::mem::zeroed() };
    unsafe {
        let ops = &*(*eq).ops;
        let read = ops.read.unwrap();
        let size = size_of::<fi_eq_entry>();
        assert_eq!(read(eq, &mut event, (&raw mut entry).cast(), size, 0), -(FI_EAVAIL as isize));
        assert_eq!(ops.readerr.unwrap()(eq, &mut error, 0), size_of::<fi_eq_err_entry>() as isize);
        assert_eq!((error.fid, error.context, error.data, error.err), (av.cast(), context, 1, FI_EINVAL));
        assert_eq!(read(eq, &mut event, (&raw mut entry).cast(), size, 0), size as isize);
        assert_eq!((entry.fid, entry.context, entry.data), (av.cast(), context, 2));
        assert_eq!(event, FI_AV_COMPLETE);
    }
    assert_eq!(close(av), 0);
    assert_eq!(close(eq), 0);
}

fn strings(lib: &Lib) {
    let opened = opened(lib, FI_ADDR_STR);
    let av = opened.av(|_| ()).unwrap();
    let text = c"fi_sockaddr_in://127.0.0.1:4711";
    assert_eq!(insert(av, &[text.as_ptr(), c"nonsense".as_ptr()], null_mut(), 0, null_mut()), 1);
    assert_eq!(lookup(av, 0).unwrap(), text.to_bytes_with_nul());
    assert_eq!(close(av), 0);
}
