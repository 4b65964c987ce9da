//! A little traffic through a host's function tables. Other tests cover the rest of the data path without a
//! host.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, Opened, bind, close, control};
use crate::open;

const LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn all(lib: &Lib) {
    for threading in [FI_THREAD_SAFE, FI_THREAD_DOMAIN] {
        for progress in [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO] {
            let hints = lib.allocinfo();
            hints.domain().threading = threading;
            hints.domain().data_progress = progress;
            let info = lib.ask(lib.newest(), Some(&hints)).unwrap();
            let opened = Opened::new(lib, &info);
            let pair = Pair::new(&opened, info.raw);
            tagged(&pair);
            counted_write(&opened, &pair);
            pair.close();
        }
    }
}

/// Two endpoints of one domain. Address 0 is the first endpoint, address 1 the second.
struct Pair {
    eps: [*mut fid_ep; 2],
    av: *mut fid_av,
    cq: *mut fid_cq,
}

impl Pair {
    fn new(opened: &Opened, info: *mut fi_info) -> Self {
        let (av, cq) = (opened.av(|_| ()).unwrap(), opened.cq());
        let eps = [(), ()].map(|()| {
            let ep: *mut fid_ep = open!(opened.domain, endpoint, info).unwrap();
            assert_eq!(bind(ep, av, 0), 0);
            assert_eq!(bind(ep, cq, FI_TRANSMIT | FI_RECV), 0);
            assert_eq!(control(ep, FI_ENABLE, null_mut()), 0);
            let mut name = [0_u8; 64];
            let mut len = name.len();
            unsafe {
                assert_eq!((*(*ep).cm).getname.unwrap()(ep.cast(), name.as_mut_ptr().cast(), &mut len), 0);
                let insert = (*(*av).ops).insert.unwrap();
                assert_eq!(insert(av, name.as_ptr().cast(), 1, null_mut(), 0, null_mut()), 1);
            }
            ep
        });
        Self { eps, av, cq }
    }

    /// Waits for the next completion.
    fn next(&self) -> fi_cq_tagged_entry {
        let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
        let read = unsafe { (*(*self.cq).ops).read.unwrap() };
        let end = Instant::now() + LIMIT;
        loop {
            match unsafe { read(self.cq, (&raw mut entry).cast(), 1) } {
                1 => return entry,
                again => assert_eq!(again, -(FI_EAGAIN as isize)),
            }
            assert!(Instant::now() < end, "no completion");
        }
    }

    fn close(self) {
        for ep in self.eps {
            assert_eq!(close(ep), 0);
        }
        assert_eq!(close(self.cq), 0);
        assert_eq!(close(self.av), 0);
    }
}

/// Repeats the call while it returns -FI_EAGAIN.
fn post(mut call: impl FnMut() -> isize) {
    let end = Instant::now() + LIMIT;
    loop {
        match call() {
            0 => return,
            again => assert_eq!(again, -(FI_EAGAIN as isize)),
        }
        assert!(Instant::now() < end, "nothing can be posted");
    }
}

fn tagged(pair: &Pair) {
    for len in [0, 8, 5000, 1 << 20] {
        let source: Vec<u8> = (0..len).map(|at| (at * 7 + 3) as u8).collect();
        let mut target = vec![0_u8; len + 1];
        let [sender, receiver] = pair.eps;
        unsafe {
            let recv = (*(*receiver).tagged).recv.unwrap();
            let target = target.as_mut_ptr().cast();
            post(|| recv(receiver, target, len + 1, null_mut(), FI_ADDR_UNSPEC, 0x70, 0xf, 2 as _));
            let send = (*(*sender).tagged).send.unwrap();
            post(|| send(sender, source.as_ptr().cast(), len, null_mut(), 1, 0x75, 1 as _));
        }
        let mut seen = [pair.next(), pair.next()];
        seen.sort_by_key(|entry| entry.op_context as usize);
        assert_eq!(seen[0].flags & (FI_SEND | FI_TAGGED), FI_SEND | FI_TAGGED);
        assert_eq!(seen[1].flags & (FI_RECV | FI_TAGGED), FI_RECV | FI_TAGGED);
        assert_eq!((seen[1].len, seen[1].tag), (len, 0x75));
        assert_eq!(&target[..len], &source[..]);
    }
}

/// The target waits on a counter of its memory region, as Sandia OpenSHMEM does.
fn counted_write(opened: &Opened, pair: &Pair) {
    let cntr = opened.cntr();
    let mut memory = [0_u8; 64];
    let domain = opened.domain;
    let mut mr = null_mut();
    unsafe {
        let reg = (*(*domain).mr).reg.unwrap();
        let result =
            reg(domain.cast(), memory.as_mut_ptr().cast(), 64, FI_REMOTE_WRITE, 0, 1 << 63, 0, &mut mr, null_mut());
        assert_eq!(result, 0);
    }
    assert_eq!(bind(mr, cntr, FI_REMOTE_WRITE), 0);
    let writer = pair.eps[0];
    unsafe {
        let write = (*(*writer).rma).write.unwrap();
        let source = [5_u8; 16];
        post(|| write(writer, source.as_ptr().cast(), 16, null_mut(), 1, 8, 1 << 63, 3 as _));
        assert_eq!(pair.next().op_context as usize, 3);
        let read = (*(*cntr).ops).read.unwrap();
        let end = Instant::now() + LIMIT;
        while read(cntr) == 0 {
            pair_progress(pair);
            assert!(Instant::now() < end, "the counter does not count");
        }
        assert_eq!(read(cntr), 1);
    }
    assert_eq!(memory[7..25], [0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 0]);
    for result in [close(mr), close(cntr)] {
        assert_eq!(result, 0 as c_int);
    }
}

/// Reads no entries, which drives the endpoints.
fn pair_progress(pair: &Pair) {
    let read = unsafe { (*(*pair.cq).ops).read.unwrap() };
    let result = unsafe { read(pair.cq, null_mut(), 0) };
    assert!(result == 0 || result == -(FI_EAGAIN as isize));
}
