//! Event queues.

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, Opened, close, control};

pub(crate) fn all(lib: &Lib) {
    let info = lib.ask(lib.newest(), None).unwrap();
    let opened = Opened::new(lib, &info);
    write_and_read(&opened);
    wait_objects(&opened);
    signaled(&opened);
    blocking(&opened);
}

fn read(eq: *mut fid_eq, buffer: &mut [u8], flags: u64) -> (isize, u32) {
    let mut event = 0;
    let read = unsafe { (*(*eq).ops).read.unwrap() };
    (unsafe { read(eq, &mut event, buffer.as_mut_ptr().cast(), buffer.len(), flags) }, event)
}

fn write(eq: *mut fid_eq, event: u32, bytes: &[u8]) -> isize {
    let write = unsafe { (*(*eq).ops).write.unwrap() };
    unsafe { write(eq, event, bytes.as_ptr().cast(), bytes.len(), 0) }
}

fn write_and_read(opened: &Opened) {
    let eq = opened
        .eq(|attr| {
            attr.flags = FI_WRITE;
            attr.size = 2;
        })
        .unwrap();
    let mut buffer = [0; 16];
    assert_eq!(read(eq, &mut buffer, 0).0, -(FI_EAGAIN as isize));
    assert_eq!(write(eq, 11, b"first"), 5);
    assert_eq!(write(eq, 12, b"second"), 6);
    assert_eq!(write(eq, 13, b"third"), -(FI_EAGAIN as isize), "full");
    assert_eq!(read(eq, &mut buffer[..4], 0).0, -(FI_ETOOSMALL as isize));
    assert_eq!(read(eq, &mut buffer, FI_PEEK), (5, 11));
    assert_eq!(read(eq, &mut buffer, 0), (5, 11));
    assert_eq!(&buffer[..5], b"first");
    assert_eq!(read(eq, &mut buffer, 0), (6, 12));
    let mut error: fi_eq_err_entry = unsafe { std::mem::zeroed() };
    let readerr = unsafe { (*(*eq).ops).readerr.unwrap() };
    assert_eq!(unsafe { readerr(eq, &mut error, 0) }, -(FI_EAGAIN as isize));
    let strerror = unsafe { (*(*eq).ops).strerror.unwrap() };
    let mut text = [0; 8];
    let words = unsafe { CStr::from_ptr(strerror(eq, FI_EINVAL, null_mut(), text.as_mut_ptr(), text.len())) };
    assert!(words.to_bytes().starts_with(b"Invalid"), "{words:?}");
    assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"Invalid");
    assert_eq!(close(eq), 0);
    let closed_to_clients = opened.eq(|_| ()).unwrap();
    assert_eq!(write(closed_to_clients, 1, b"x"), -(FI_EINVAL as isize));
    assert_eq!(close(closed_to_clients), 0);
}

fn wait_objects(opened: &Opened) {
    let eq = opened
        .eq(|attr| {
            attr.flags = FI_WRITE;
            attr.wait_obj = FI_WAIT_FD;
        })
        .unwrap();
    let mut fd: c_int = -1;
    assert_eq!(control(eq, FI_GETWAIT, (&raw mut fd).cast()), 0);
    let readable = |timeout| {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        unsafe { libc::poll(&mut poll, 1, timeout) == 1 }
    };
    let trywait = || {
        let mut fids = [eq.cast::<fid>()];
        unsafe { (*(*opened.fabric).ops).trywait.unwrap()(opened.fabric, fids.as_mut_ptr(), 1) }
    };
    assert_eq!(trywait(), 0);
    assert!(!readable(0));
    assert_eq!(write(eq, 1, b"x"), 1);
    assert!(readable(1000));
    assert_eq!(trywait(), -FI_EAGAIN);
    assert_eq!(read(eq, &mut [0; 8], 0), (1, 1));
    assert_eq!(trywait(), 0);
    assert!(!readable(0));
    assert_eq!(close(eq), 0);
    assert_eq!(opened.eq(|attr| attr.wait_obj = FI_WAIT_SET), Err(FI_EINVAL), "no set");
    assert_eq!(opened.eq(|attr| attr.wait_obj = FI_WAIT_POLLFD), Err(FI_ENOSYS));
    let never = opened.eq(|attr| attr.wait_obj = FI_WAIT_NONE).unwrap();
    let sread = unsafe { (*(*never).ops).sread.unwrap() };
    assert_eq!(unsafe { sread(never, &mut 0, null_mut(), 0, 0, 0) }, -(FI_EINVAL as isize));
    assert_eq!(close(never), 0);
}

/// A signal ends fi_eq_sread of the signaled thread like a timeout (fi_eq(3)).
fn signaled(opened: &Opened) {
    extern "C" fn nothing(_: c_int) {}
    let eq = opened.eq(|attr| attr.wait_obj = FI_WAIT_UNSPEC).unwrap();
    let handler: extern "C" fn(c_int) = nothing;
    let before = unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    let (sleeper, woken) = (unsafe { libc::pthread_self() } as usize, std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !woken.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(unsafe { libc::pthread_kill(sleeper as libc::pthread_t, libc::SIGUSR1) }, 0);
            }
        });
        let sread = unsafe { (*(*eq).ops).sread.unwrap() };
        let (mut event, mut buffer) = (0, [0_u8; 8]);
        let result = unsafe { sread(eq, &mut event, buffer.as_mut_ptr().cast(), 8, -1, 0) };
        woken.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(result, -(FI_EAGAIN as isize));
    });
    assert_ne!(unsafe { libc::signal(libc::SIGUSR1, before) }, libc::SIG_ERR);
    assert_eq!(close(eq), 0);
}

fn blocking(opened: &Opened) {
    for wait_obj in [FI_WAIT_UNSPEC, FI_WAIT_YIELD] {
        let eq = opened
            .eq(|attr| {
                attr.flags = FI_WRITE;
                attr.wait_obj = wait_obj;
            })
            .unwrap();
        let sread = unsafe { (*(*eq).ops).sread.unwrap() };
        let mut buffer = [0_u8; 8];
        let mut event = 0;
        let start = Instant::now();
        let result = unsafe { sread(eq, &mut event, buffer.as_mut_ptr().cast(), 8, 30, 0) };
        assert_eq!(result, -(FI_EAGAIN as isize));
        assert!(start.elapsed() >= Duration::from_millis(30));
        let address = eq as usize;
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(write(address as *mut fid_eq, 5, b"late"), 4);
        });
        let result = unsafe { sread(eq, &mut event, buffer.as_mut_ptr().cast(), 8, -1, 0) };
        assert_eq!((result, event), (4, 5));
        writer.join().unwrap();
        assert_eq!(close(eq), 0);
    }
}
