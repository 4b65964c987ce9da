//! Endpoints over the real devices, inside one process, through the tables that a client calls.
//!
//! Each [`Side`] is what a process would have: fabric, domain, address vector, queue, endpoint. Two of them talk by shared memory; with
//! manual progress one thread drives both.

#![allow(clippy::unwrap_used, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use weft_fi_sys as sys;

use crate::fabric;

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);
const ALL_CAPS: u64 = sys::FI_MSG
    | sys::FI_TAGGED
    | sys::FI_RMA
    | sys::FI_DIRECTED_RECV
    | sys::FI_MULTI_RECV
    | sys::FI_SOURCE
    | sys::FI_RMA_EVENT
    | sys::FI_FENCE;

/// What a side is opened with.
#[derive(Clone, Copy)]
struct Options {
    threading: sys::fi_threading,
    progress: sys::fi_progress,
    caps: u64,
    tx_flags: u64,
    tx_selective: bool,
    rx_selective: bool,
    cq_size: usize,
    wait: sys::fi_wait_obj,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threading: sys::FI_THREAD_DOMAIN,
            progress: sys::FI_PROGRESS_MANUAL,
            caps: ALL_CAPS,
            tx_flags: 0,
            tx_selective: false,
            rx_selective: false,
            cq_size: 0,
            wait: sys::FI_WAIT_UNSPEC,
        }
    }
}

/// One process's objects.
struct Side {
    fabric: *mut sys::fid_fabric,
    domain: *mut sys::fid_domain,
    av: *mut sys::fid_av,
    cq: *mut sys::fid_cq,
    ep: *mut sys::fid_ep,
    /// Closed after the endpoint.
    cntrs: std::cell::RefCell<Vec<*mut sys::fid_cntr>>,
}

// The tests keep to the threading level that they ask for.
unsafe impl Send for Side {}
unsafe impl Sync for Side {}

fn zeroed<T>() -> T {
    // SAFETY: used for C structures only, which allow zeros.
    unsafe { std::mem::zeroed() }
}

fn ok(result: i32) {
    assert_eq!(result, 0, "failed with {result}");
}

impl Side {
    fn open(options: Options) -> Self {
        let side = Self::open_disabled(options);
        ok(side.bind(side.av.cast(), 0));
        ok(side.bind_cq(side.cq, sys::FI_TRANSMIT | if options.tx_selective { sys::FI_SELECTIVE_COMPLETION } else { 0 }));
        ok(side.bind_cq(side.cq, sys::FI_RECV | if options.rx_selective { sys::FI_SELECTIVE_COMPLETION } else { 0 }));
        ok(side.enable());
        side
    }

    /// Everything but bindings and enable.
    fn open_disabled(options: Options) -> Self {
        let mut side =
            Self { fabric: null_mut(), domain: null_mut(), av: null_mut(), cq: null_mut(), ep: null_mut(), cntrs: Default::default() };
        let mut fabric_attr: sys::fi_fabric_attr = zeroed();
        fabric_attr.api_version = sys::version(2, 0);
        let mut domain_attr: sys::fi_domain_attr = zeroed();
        domain_attr.threading = options.threading;
        domain_attr.data_progress = options.progress;
        domain_attr.control_progress = options.progress;
        let mut ep_attr: sys::fi_ep_attr = zeroed();
        ep_attr.type_ = sys::FI_EP_RDM;
        let mut tx_attr: sys::fi_tx_attr = zeroed();
        tx_attr.op_flags = options.tx_flags;
        let mut rx_attr: sys::fi_rx_attr = zeroed();
        let mut info: sys::fi_info = zeroed();
        info.caps = options.caps;
        info.fabric_attr = &raw mut fabric_attr;
        info.domain_attr = &raw mut domain_attr;
        info.ep_attr = &raw mut ep_attr;
        info.tx_attr = &raw mut tx_attr;
        info.rx_attr = &raw mut rx_attr;
        unsafe {
            ok(fabric::open(&raw mut fabric_attr, &raw mut side.fabric, null_mut()));
            ok(((*(*side.fabric).ops).domain.unwrap())(side.fabric, &raw mut info, &raw mut side.domain, null_mut()));
            let ops = &*(*side.domain).ops;
            let mut av_attr: sys::fi_av_attr = zeroed();
            av_attr.type_ = sys::FI_AV_TABLE;
            ok((ops.av_open.unwrap())(side.domain, &raw mut av_attr, &raw mut side.av, null_mut()));
            let mut cq_attr: sys::fi_cq_attr = zeroed();
            cq_attr.format = sys::FI_CQ_FORMAT_TAGGED;
            cq_attr.size = options.cq_size;
            cq_attr.wait_obj = options.wait;
            ok((ops.cq_open.unwrap())(side.domain, &raw mut cq_attr, &raw mut side.cq, null_mut()));
            ok((ops.endpoint.unwrap())(side.domain, &raw mut info, &raw mut side.ep, 0xe9 as *mut c_void));
        }
        side
    }

    fn fid(&self) -> *mut sys::fid {
        self.ep.cast()
    }

    fn bind(&self, what: *mut sys::fid, flags: u64) -> i32 {
        unsafe { ((*(*self.fid()).ops).bind.unwrap())(self.fid(), what, flags) }
    }

    fn bind_cq(&self, cq: *mut sys::fid_cq, flags: u64) -> i32 {
        self.bind(cq.cast(), flags)
    }

    fn control(&self, command: u32, arg: *mut c_void) -> i32 {
        unsafe { ((*(*self.fid()).ops).control.unwrap())(self.fid(), command.cast_signed(), arg) }
    }

    fn enable(&self) -> i32 {
        self.control(sys::FI_ENABLE, null_mut())
    }

    fn name(&self) -> Vec<u8> {
        let getname = unsafe { (*(*self.ep).cm).getname.unwrap() };
        let mut len = 0;
        assert_eq!(unsafe { getname(self.fid(), null_mut(), &raw mut len) }, -257, "too small");
        let mut name = vec![0_u8; len];
        ok(unsafe { getname(self.fid(), name.as_mut_ptr().cast(), &raw mut len) });
        assert_eq!(len, name.len());
        name
    }

    /// Inserts the other side's name; its address.
    fn insert(&self, other: &Self) -> u64 {
        let name = other.name();
        let mut addr = u64::MAX;
        let insert = unsafe { (*(*self.av).ops).insert.unwrap() };
        assert_eq!(unsafe { insert(self.av, name.as_ptr().cast(), 1, &raw mut addr, 0, null_mut()) }, 1);
        addr
    }

    fn cq_read(&self, count: usize) -> Result<Vec<(sys::fi_cq_tagged_entry, u64)>, isize> {
        let mut entries: Vec<sys::fi_cq_tagged_entry> = (0..count).map(|_| zeroed()).collect();
        let mut src = vec![0; count];
        let readfrom = unsafe { (*(*self.cq).ops).readfrom.unwrap() };
        let got = unsafe { readfrom(self.cq, entries.as_mut_ptr().cast(), count, src.as_mut_ptr()) };
        if got < 0 {
            return Err(got);
        }
        entries.truncate(got.cast_unsigned());
        Ok(entries.into_iter().zip(src).collect())
    }

    fn poll(&self) -> Option<(sys::fi_cq_tagged_entry, u64)> {
        match self.cq_read(1) {
            Ok(mut entries) => entries.pop(),
            Err(error) => {
                assert_eq!(error, -11, "fi_cq_read failed");
                None
            }
        }
    }

    fn error(&self) -> sys::v2::fi_cq_err_entry_1_20 {
        let mut entry: sys::v2::fi_cq_err_entry_1_20 = zeroed();
        let readerr = unsafe { (*(*self.cq).ops).readerr.unwrap() };
        assert_eq!(unsafe { readerr(self.cq, (&raw mut entry).cast(), 0) }, 1);
        entry
    }

    fn counter(&self) -> *mut sys::fid_cntr {
        let mut attr: sys::fi_cntr_attr = zeroed();
        attr.wait_obj = sys::FI_WAIT_UNSPEC;
        let mut cntr = null_mut();
        ok(unsafe { ((*(*self.domain).ops).cntr_open.unwrap())(self.domain, &raw mut attr, &raw mut cntr, null_mut()) });
        self.cntrs.borrow_mut().push(cntr);
        cntr
    }

    fn register(&self, memory: &mut [u8], access: u64, key: u64) -> *mut sys::fid_mr {
        let mut mr = null_mut();
        let reg = unsafe { (*(*self.domain).mr).reg.unwrap() };
        let fid = self.domain.cast();
        let (buf, len) = (memory.as_mut_ptr().cast(), memory.len());
        ok(unsafe { reg(fid, buf, len, access, 0, key, 0, &raw mut mr, null_mut()) });
        mr
    }

    fn tsend(&self, buf: &[u8], dest: u64, tag: u64, ctx: usize) -> isize {
        let send = unsafe { (*(*self.ep).tagged).send.unwrap() };
        unsafe { send(self.ep, buf.as_ptr().cast(), buf.len(), null_mut(), dest, tag, ctx as *mut c_void) }
    }

    fn trecv(&self, buf: &mut [u8], src: u64, tag: u64, ignore: u64, ctx: usize) -> isize {
        let recv = unsafe { (*(*self.ep).tagged).recv.unwrap() };
        unsafe { recv(self.ep, buf.as_mut_ptr().cast(), buf.len(), null_mut(), src, tag, ignore, ctx as *mut c_void) }
    }

    fn trecvmsg(&self, tag: u64, ctx: usize, flags: u64, buf: &mut [u8]) -> isize {
        let iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        let mut msg: sys::fi_msg_tagged = zeroed();
        msg.msg_iov = &raw const iov;
        msg.iov_count = 1;
        msg.addr = u64::MAX;
        msg.tag = tag;
        msg.context = ctx as *mut c_void;
        unsafe { ((*(*self.ep).tagged).recvmsg.unwrap())(self.ep, &raw const msg, flags) }
    }

    fn inject(&self, buf: &[u8], dest: u64) -> isize {
        unsafe { ((*(*self.ep).msg).inject.unwrap())(self.ep, buf.as_ptr().cast(), buf.len(), dest) }
    }

    fn recv(&self, buf: &mut [u8], ctx: usize) -> isize {
        let recv = unsafe { (*(*self.ep).msg).recv.unwrap() };
        unsafe { recv(self.ep, buf.as_mut_ptr().cast(), buf.len(), null_mut(), u64::MAX, ctx as *mut c_void) }
    }
}

fn close<T>(fid: *mut T) -> i32 {
    let fid = fid.cast::<sys::fid>();
    unsafe { ((*(*fid).ops).close.unwrap())(fid) }
}

impl Drop for Side {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if !self.ep.is_null() {
            ok(close(self.ep));
        }
        for cntr in self.cntrs.take() {
            ok(close(cntr));
        }
        ok(close(self.cq));
        ok(close(self.av));
        ok(close(self.domain));
        ok(close(self.fabric));
    }
}

fn pair(options: Options) -> (Side, Side, u64, u64) {
    let (a, b) = (Side::open(options), Side::open(options));
    let (to_b, to_a) = (a.insert(&b), b.insert(&a));
    (a, b, to_b, to_a)
}

/// Polls until `done` gives something.
fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "nothing came");
    }
}

/// Waits for an entry of one side while driving the other, which reports nothing.
fn of(side: &Side, other: &Side) -> (sys::fi_cq_tagged_entry, u64) {
    until(|| {
        assert!(other.cq_read(0).is_err(), "an entry that nobody asked for");
        side.poll()
    })
}

/// Waits for one entry on each side.
fn both(a: &Side, b: &Side) -> (sys::fi_cq_tagged_entry, (sys::fi_cq_tagged_entry, u64)) {
    let (mut at_a, mut at_b) = (None, None);
    until(|| {
        at_a = at_a.or_else(|| a.poll());
        at_b = at_b.or_else(|| b.poll());
        Some((at_a?.0, at_b?))
    })
}

/// Polls both for a while; nothing may come.
fn nothing(a: &Side, b: &Side) {
    for _ in 0..2000 {
        assert!(a.poll().is_none() && b.poll().is_none());
    }
}

/// Drives a side until a read fails with an error entry.
fn until_error(side: &Side, other: &Side) -> sys::v2::fi_cq_err_entry_1_20 {
    until(|| {
        let _ = other.cq_read(0);
        (side.cq_read(1).err() == Some(-259)).then(|| side.error())
    })
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn exchange(options: Options) {
    let (a, b, to_b, to_a) = pair(options);
    for (round, len) in [0, 1, 56, 57, 4096, 20_000, 300_000, 3_000_000].into_iter().enumerate() {
        let data = pattern(len);
        let mut buffer = vec![0; len];
        let tag = 0x1000 + round as u64;
        // Expected and unexpected in turn.
        if round % 2 == 0 {
            assert_eq!(b.trecv(&mut buffer, u64::MAX, tag, 0, 0xb), 0);
        }
        assert_eq!(a.tsend(&data, to_b, tag, 0xa), 0);
        if round % 2 == 1 {
            for _ in 0..100 {
                let _ = (a.cq_read(0), b.cq_read(0));
            }
            assert_eq!(b.trecv(&mut buffer, to_a, tag & !0xff, 0xff, 0xb), 0);
        }
        let (sent, (received, src)) = both(&a, &b);
        assert_eq!(sent.op_context as usize, 0xa);
        assert_eq!(sent.flags, sys::FI_SEND | sys::FI_TAGGED);
        assert_eq!((received.op_context as usize, received.len, received.tag), (0xb, len, tag));
        assert_eq!(received.flags, sys::FI_RECV | sys::FI_TAGGED);
        assert_eq!(src, to_a);
        assert!(buffer == data, "{len} bytes arrived changed");
    }
}

#[test]
fn tagged_messages_of_every_protocol() {
    exchange(Options::default());
}

#[test]
fn the_same_with_real_locks() {
    exchange(Options { threading: sys::FI_THREAD_SAFE, ..Options::default() });
}

#[test]
fn the_same_with_a_progress_thread() {
    exchange(Options { progress: sys::FI_PROGRESS_AUTO, ..Options::default() });
}

#[test]
fn the_same_with_delivery_complete() {
    exchange(Options { tx_flags: sys::FI_DELIVERY_COMPLETE, ..Options::default() });
}

#[test]
fn data_comes_along_and_injects_make_no_entry() {
    let (a, b, to_b, _) = pair(Options::default());
    let mut buffer = [0_u8; 8];
    assert_eq!(b.recv(&mut buffer, 1), 0);
    let send = unsafe { (*(*a.ep).msg).senddata.unwrap() };
    assert_eq!(unsafe { send(a.ep, b"data".as_ptr().cast(), 4, null_mut(), 0xdada, to_b, 2 as *mut c_void) }, 0);
    let (sent, (received, _)) = both(&a, &b);
    assert_eq!(sent.flags, sys::FI_SEND | sys::FI_MSG);
    assert_eq!(received.flags, sys::FI_RECV | sys::FI_MSG | sys::FI_REMOTE_CQ_DATA);
    assert_eq!((received.data, received.len), (0xdada, 4));
    assert_eq!(b.recv(&mut buffer, 3), 0);
    assert_eq!(a.inject(b"inject", to_b), 0);
    let (received, _) = of(&b, &a);
    assert_eq!((received.op_context as usize, received.len), (3, 6));
    assert_eq!(&buffer[..6], b"inject");
    nothing(&a, &b);
    assert_eq!(a.inject(&[0; 1 << 20], to_b), -90, "too long to inject");
    assert_eq!(a.inject(b"x", u64::MAX), -22, "no address");
    assert_eq!(a.inject(b"x", 77), -22, "not in the vector");
}

#[test]
fn selective_completion_reports_what_is_asked_for() {
    let (a, b, to_b, _) = pair(Options { tx_selective: true, rx_selective: true, ..Options::default() });
    let mut buffer = [0_u8; 8];
    assert_eq!(b.trecv(&mut buffer, u64::MAX, 1, 0, 1), 0);
    assert_eq!(a.tsend(b"quiet", to_b, 1, 1), 0);
    let iov = libc::iovec { iov_base: b"loud".as_ptr().cast_mut().cast(), iov_len: 4 };
    let mut msg: sys::fi_msg_tagged = zeroed();
    msg.msg_iov = &raw const iov;
    msg.iov_count = 1;
    msg.addr = to_b;
    msg.tag = 2;
    msg.context = 9 as *mut c_void;
    let sendmsg = unsafe { (*(*a.ep).tagged).sendmsg.unwrap() };
    let mut second = [0_u8; 8];
    assert_eq!(b.trecvmsg(2, 4, sys::FI_COMPLETION, &mut second), 0);
    assert_eq!(unsafe { sendmsg(a.ep, &raw const msg, sys::FI_COMPLETION) }, 0);
    let (sent, (received, _)) = both(&a, &b);
    assert_eq!((sent.op_context as usize, received.op_context as usize), (9, 4));
    assert_eq!((&buffer[..5], &second[..4]), (&b"quiet"[..], &b"loud"[..]));
    nothing(&a, &b);
    assert_eq!(unsafe { sendmsg(a.ep, &raw const msg, sys::FI_MATCH_COMPLETE) }, -95);
    msg.iov_count = 9;
    assert_eq!(unsafe { sendmsg(a.ep, &raw const msg, 0) }, -22, "more pieces than the limit");
}

#[test]
fn failures_are_error_entries() {
    let (a, b, to_b, _) = pair(Options { tx_selective: true, rx_selective: true, ..Options::default() });
    let mut small = [0_u8; 4];
    assert_eq!(b.trecv(&mut small, u64::MAX, 5, 0, 0x51), 0);
    assert_eq!(a.tsend(b"longer than four", to_b, 5, 0x52), 0);
    let truncated = until_error(&b, &a).base;
    assert_eq!((truncated.err, truncated.op_context as usize, truncated.tag), (265, 0x51, 5));
    assert_eq!((truncated.len, truncated.olen), (4, 12));
    assert_eq!(truncated.flags & (sys::FI_RECV | sys::FI_TAGGED), sys::FI_RECV | sys::FI_TAGGED);
    let strerror = unsafe { (*(*b.cq).ops).strerror.unwrap() };
    let mut text = [0_i8; 16];
    let whole = unsafe { strerror(b.cq, truncated.prov_errno, null(), text.as_mut_ptr().cast(), text.len()) };
    assert!(unsafe { std::ffi::CStr::from_ptr(whole) }.to_str().unwrap().contains("longer"));
    assert_eq!(text[15], 0);

    assert_eq!(b.trecv(&mut small, u64::MAX, 6, 0, 0x61), 0);
    let cancel = unsafe { (*(*b.ep).ops).cancel.unwrap() };
    assert_eq!(unsafe { cancel(b.fid(), 0x61 as *mut c_void) }, 0);
    let cancelled = until_error(&b, &a).base;
    assert_eq!((cancelled.err, cancelled.op_context as usize), (125, 0x61));
    assert_eq!(unsafe { cancel(b.fid(), 0x61 as *mut c_void) }, -2, "gone");

    assert_eq!(b.trecvmsg(7, 0x71, sys::FI_PEEK, &mut small), 0);
    let missed = until_error(&b, &a).base;
    assert_eq!((missed.err, missed.op_context as usize), (42, 0x71));
}

#[test]
fn peeked_messages_are_claimed_or_discarded() {
    let (a, b, to_b, to_a) = pair(Options::default());
    let mut buffer = [0_u8; 16];
    for tag in [1, 2, 3] {
        assert_eq!(a.tsend(b"message", to_b, tag, 0), 0);
        of(&a, &b);
    }
    let peek = |tag, ctx, flags| {
        // The message may still be on its way.
        until(|| {
            let _ = a.cq_read(0);
            assert_eq!(b.trecvmsg(tag, ctx, sys::FI_PEEK | flags, &mut []), 0);
            match b.cq_read(1) {
                Ok(entries) => entries.first().copied(),
                Err(error) => {
                    assert!(error == -11 || error == -259);
                    if error == -259 {
                        assert_eq!(b.error().base.err, 42);
                    }
                    None
                }
            }
        })
    };
    let (seen, src) = peek(2, 0x20, sys::FI_CLAIM);
    assert_eq!((seen.len, seen.tag, seen.op_context as usize, src), (7, 2, 0x20, to_a));
    assert_eq!(b.trecvmsg(2, 0x20, sys::FI_CLAIM, &mut buffer), 0);
    let (claimed, _) = until(|| b.poll());
    assert_eq!((claimed.len, claimed.op_context as usize, &buffer[..7]), (7, 0x20, &b"message"[..]));
    peek(1, 0x10, sys::FI_DISCARD);
    assert_eq!(b.trecvmsg(1, 0x11, sys::FI_PEEK, &mut []), 0);
    assert_eq!(until_error(&b, &a).base.err, 42, "discarded");
    peek(3, 0x30, sys::FI_CLAIM);
    assert_eq!(b.trecvmsg(3, 0x30, sys::FI_CLAIM | sys::FI_DISCARD, &mut []), 0);
    until(|| b.poll());
    assert_eq!(b.trecvmsg(3, 0x99, sys::FI_CLAIM, &mut buffer), -22, "nothing claimed under this context");
}

#[test]
fn a_multi_receive_is_released_once() {
    let (a, b, to_b, _) = pair(Options { rx_selective: true, ..Options::default() });
    let minimum = 100_usize;
    let setopt = unsafe { (*(*b.ep).ops).setopt.unwrap() };
    let name = sys::FI_OPT_MIN_MULTI_RECV.cast_signed();
    ok(unsafe { setopt(b.fid(), 0, name, (&raw const minimum).cast(), 8) });
    let mut buffer = vec![0_u8; 250];
    let iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 250 };
    let mut msg: sys::fi_msg = zeroed();
    msg.msg_iov = &raw const iov;
    msg.iov_count = 1;
    msg.addr = u64::MAX;
    msg.context = 0x3 as *mut c_void;
    let recvmsg = unsafe { (*(*b.ep).msg).recvmsg.unwrap() };
    assert_eq!(unsafe { recvmsg(b.ep, &raw const msg, sys::FI_MULTI_RECV | sys::FI_COMPLETION) }, 0);
    let mut offset = 0;
    for (len, released) in [(60, false), (80, false), (40, true)] {
        assert_eq!(a.inject(&pattern(len), to_b), 0);
        let (entry, _) = of(&b, &a);
        assert_eq!((entry.len, entry.buf as usize), (len, buffer.as_ptr() as usize + offset));
        assert_eq!(entry.flags & sys::FI_MULTI_RECV != 0, released);
        assert_eq!(&buffer[offset..offset + len], pattern(len));
        offset += len;
    }
    // Unreported messages: the release is reported all the same.
    assert_eq!(unsafe { recvmsg(b.ep, &raw const msg, sys::FI_MULTI_RECV) }, 0);
    for _ in 0..2 {
        assert_eq!(a.inject(&pattern(80), to_b), 0);
    }
    let (entry, _) = of(&b, &a);
    assert_ne!(entry.flags & sys::FI_MULTI_RECV, 0);
    nothing(&a, &b);
}

fn value(cntr: *mut sys::fid_cntr) -> (u64, u64) {
    let ops = unsafe { &*(*cntr).ops };
    unsafe { ((ops.read.unwrap())(cntr), (ops.readerr.unwrap())(cntr)) }
}

#[test]
fn rma_completes_is_counted_and_refused() {
    let (a, b, to_b, _) = pair(Options::default());
    let (writes, reads, remote_writes, remote_reads, region) =
        (a.counter(), a.counter(), b.counter(), b.counter(), b.counter());
    // After enable, as Sandia OpenSHMEM does.
    ok(a.bind(writes.cast(), sys::FI_WRITE));
    ok(a.bind(reads.cast(), sys::FI_READ));
    assert_eq!(a.bind(reads.cast(), sys::FI_READ), -22, "bound already");
    ok(b.bind(remote_writes.cast(), sys::FI_REMOTE_WRITE));
    ok(b.bind(remote_reads.cast(), sys::FI_REMOTE_READ));
    let mut memory = vec![0_u8; 1 << 20];
    let key = 0x8000_0000_0000_0001;
    let access = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
    let mr = b.register(&mut memory, access, key);
    ok(unsafe { ((*(*mr.cast::<sys::fid>()).ops).bind.unwrap())(mr.cast(), region.cast(), sys::FI_REMOTE_WRITE) });
    let rma = unsafe { &*(*a.ep).rma };
    for (round, len) in [8_usize, 5000, 1 << 19].into_iter().enumerate() {
        let data = pattern(len);
        let sent = unsafe {
            (rma.writedata.unwrap())(
                a.ep, data.as_ptr().cast(), len, null_mut(), 0xcafe, to_b, 16, key, 0x1 as *mut c_void,
            )
        };
        assert_eq!(sent, 0);
        let (write, (remote, _)) = both(&a, &b);
        assert_eq!((write.op_context as usize, write.flags), (1, sys::FI_RMA | sys::FI_WRITE));
        assert_eq!(remote.flags, sys::FI_RMA | sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA);
        assert_eq!((remote.op_context as usize, remote.data, remote.len), (0, 0xcafe, len));
        assert!(memory[16..16 + len] == data);
        let mut back = vec![0_u8; len];
        let read = unsafe {
            (rma.read.unwrap())(a.ep, back.as_mut_ptr().cast(), len, null_mut(), to_b, 16, key, 0x2 as *mut c_void)
        };
        assert_eq!(read, 0);
        let (entry, _) = of(&a, &b);
        assert_eq!((entry.op_context as usize, entry.flags), (2, sys::FI_RMA | sys::FI_READ));
        assert!(back == data);
        let done = round as u64 + 1;
        assert_eq!((value(writes), value(reads)), ((done, 0), (done, 0)));
        until(|| (value(remote_writes).0 == done && value(remote_reads).0 == done).then_some(()));
        assert_eq!(value(region), (done, 0));
    }
    for (len, key) in [(8, 99), (2 << 20, key)] {
        let data = vec![1_u8; len];
        let sent = unsafe {
            (rma.write.unwrap())(a.ep, data.as_ptr().cast(), len, null_mut(), to_b, 0, key, 0x9 as *mut c_void)
        };
        assert_eq!(sent, 0);
        let refused = until_error(&a, &b).base;
        assert_eq!(refused.op_context as usize, 9);
        assert_eq!(refused.err, if key == 99 { 129 } else { 13 });
    }
    assert_eq!(value(writes), (3, 2));
    assert_eq!(close(region), -16, "bound to a region");
    ok(close(mr));
}

#[test]
fn counters_count_each_message_once() {
    let options = Options { tx_selective: true, rx_selective: true, ..Options::default() };
    let (a, b) = (Side::open_disabled(options), Side::open(options));
    let (sends, recvs) = (a.counter(), b.counter());
    ok(a.bind(a.av.cast(), 0));
    ok(a.bind_cq(a.cq, sys::FI_TRANSMIT | sys::FI_RECV | sys::FI_SELECTIVE_COMPLETION));
    ok(a.bind(sends.cast(), sys::FI_SEND));
    ok(a.enable());
    ok(b.bind(recvs.cast(), sys::FI_RECV));
    let to_b = a.insert(&b);
    let mut buffers = vec![[0_u8; 8]; 10];
    for (at, buffer) in buffers.iter_mut().enumerate() {
        assert_eq!(b.recv(buffer, at), 0);
    }
    for at in 0..10 {
        if at % 2 == 0 {
            assert_eq!(a.inject(b"inject", to_b), 0);
        } else {
            let send = unsafe { (*(*a.ep).msg).send.unwrap() };
            assert_eq!(unsafe { send(a.ep, b"send".as_ptr().cast(), 4, null_mut(), to_b, null_mut()) }, 0);
        }
    }
    until(|| ((value(sends), value(recvs)) == ((10, 0), (10, 0))).then_some(()));
    nothing(&a, &b);
    assert_eq!((value(sends), value(recvs)), ((10, 0), (10, 0)));
    assert_eq!(close(sends), -16, "the endpoint is open");
    let ops = unsafe { &*(*sends).ops };
    unsafe {
        ok((ops.set.unwrap())(sends, 5));
        ok((ops.add.unwrap())(sends, 7));
        ok((ops.seterr.unwrap())(sends, 1));
        ok((ops.adderr.unwrap())(sends, 2));
        assert_eq!(value(sends), (12, 3));
        assert_eq!((ops.wait.unwrap())(sends, 12, 0), 0);
        assert_eq!((ops.wait.unwrap())(sends, 13, 20), -110, "timed out");
    }
}

#[test]
fn the_state_of_an_endpoint_is_checked() {
    let side = Side::open_disabled(Options::default());
    assert_eq!(side.inject(b"x", 0), -258, "not enabled");
    assert_eq!(side.enable(), -267, "no address vector");
    ok(side.bind(side.av.cast(), 0));
    assert_eq!(side.bind(side.av.cast(), 0), -22, "bound already");
    assert_eq!(side.enable(), -263, "no queue");
    assert_eq!(side.bind_cq(side.cq, 0), -22);
    assert_eq!(side.bind_cq(side.cq, 1 << 60), -260);
    ok(side.bind_cq(side.cq, sys::FI_TRANSMIT));
    assert_eq!(side.enable(), -263, "no receive queue");
    assert_eq!(side.bind_cq(side.cq, sys::FI_TRANSMIT | sys::FI_RECV), -22, "bound already");
    ok(side.bind_cq(side.cq, sys::FI_RECV));
    assert_eq!(close(side.cq), -16, "bound");
    ok(side.enable());
    assert_eq!(side.enable(), -258);
    assert_eq!(side.bind(side.fid(), 0), -22, "an endpoint is nothing to bind");
    let atomic = unsafe { &*(*side.ep).atomic };
    let mut count = 7;
    assert_eq!(unsafe { (atomic.writevalid.unwrap())(side.ep, 0, 0, &raw mut count) }, -95);
    assert_eq!(unsafe { ((*(*side.ep).cm).connect.unwrap())(side.ep, null(), null(), 0) }, -38);
    let getopt = unsafe { (*(*side.ep).ops).getopt.unwrap() };
    let (mut number, mut len) = (0_usize, 4_usize);
    assert_eq!(unsafe { getopt(side.fid(), 0, 0, (&raw mut number).cast(), &raw mut len) }, -257);
    assert_eq!(len, 8);
    ok(unsafe { getopt(side.fid(), 0, 0, (&raw mut number).cast(), &raw mut len) });
    assert_eq!(number, 64);
    assert_eq!(unsafe { getopt(side.fid(), 0, 4711, (&raw mut number).cast(), &raw mut len) }, -92);
}

#[test]
fn an_alias_has_flags_of_its_own() {
    let (a, b, to_b, _) = pair(Options { tx_selective: true, ..Options::default() });
    let mut handle: *mut sys::fid = null_mut();
    let mut request: sys::fi_alias = zeroed();
    request.fid = &raw mut handle;
    request.flags = sys::FI_TRANSMIT | sys::FI_COMPLETION;
    ok(a.control(sys::FI_ALIAS, (&raw mut request).cast()));
    let alias: *mut sys::fid_ep = handle.cast();
    let mut buffer = [0_u8; 4];
    for ctx in [1, 2] {
        assert_eq!(b.recv(&mut buffer, ctx), 0);
    }
    let send = unsafe { (*(*a.ep).msg).send.unwrap() };
    for (ep, ctx) in [(a.ep, 1), (alias, 2)] {
        assert_eq!(unsafe { send(ep, b"x".as_ptr().cast(), 1, null_mut(), to_b, ctx as *mut c_void) }, 0);
    }
    let (sent, _) = both(&a, &b);
    assert_eq!(sent.op_context as usize, 2, "only the alias asks for completions");
    until(|| b.poll());
    let mut flags = sys::FI_TRANSMIT;
    ok(a.control(sys::FI_GETOPSFLAG, (&raw mut flags).cast()));
    assert_eq!(flags, 0);
    assert_eq!(close(a.ep), -16, "an alias is open");
    ok(close(alias));
}

#[test]
fn a_full_queue_refuses_more_and_loses_nothing() {
    let (a, b, to_b, _) = pair(Options { cq_size: 4, ..Options::default() });
    let mut buffers = vec![[0_u8; 8]; 65];
    for buffer in &mut buffers {
        assert_eq!(b.recv(buffer, 0), 0, "nothing has completed yet");
    }
    let send = unsafe { (*(*a.ep).msg).send.unwrap() };
    let start = || unsafe { send(a.ep, b"x".as_ptr().cast(), 1, null_mut(), to_b, null_mut()) };
    // Once connected, sends complete at once.
    assert_eq!(start(), 0);
    both(&a, &b);
    let mut accepted = 0;
    while start() == 0 {
        accepted += 1;
        assert!(accepted < 64, "a queue of 4 takes anything");
    }
    assert!(accepted >= 4);
    assert_eq!(start(), -11);
    for side in [&a, &b] {
        let mut got = 0;
        until(|| {
            got += side.cq_read(3).map_or(0, |entries| entries.len());
            (got == accepted).then_some(())
        });
        nothing_at(side);
    }
    assert_eq!(start(), 0, "there is room again");
}

fn nothing_at(side: &Side) {
    for _ in 0..1000 {
        assert!(side.poll().is_none());
    }
}

#[test]
fn what_was_injected_leaves_before_close_returns() {
    for _ in 0..20 {
        let (mut a, b, to_b, _) = pair(Options::default());
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut buffers = vec![[0_u8; 8]; 16];
                for (at, buffer) in buffers.iter_mut().enumerate() {
                    assert_eq!(b.recv(buffer, at), 0);
                }
                for _ in 0..16 {
                    until(|| b.poll());
                }
            });
            for _ in 0..16 {
                until(|| (a.inject(b"last", to_b) == 0).then_some(()));
            }
            ok(close(a.ep));
            a.ep = null_mut();
            receiver.join().unwrap();
        });
    }
}

fn sread(side: &Side, timeout_ms: i32) -> isize {
    let mut entry: sys::fi_cq_tagged_entry = zeroed();
    let sread = unsafe { (*(*side.cq).ops).sread.unwrap() };
    unsafe { sread(side.cq, (&raw mut entry).cast(), 1, null(), timeout_ms) }
}

#[test]
fn blocked_readers_wake_up() {
    for progress in [sys::FI_PROGRESS_MANUAL, sys::FI_PROGRESS_AUTO] {
        let (a, b, to_b, _) = pair(Options { threading: sys::FI_THREAD_SAFE, progress, ..Options::default() });
        let begin = Instant::now();
        assert_eq!(sread(&b, 30), -11, "timed out");
        assert!(begin.elapsed() >= Duration::from_millis(29));
        let mut buffers = vec![[0_u8; 8]; 30];
        for buffer in &mut buffers {
            assert_eq!(b.recv(buffer, 0), 0);
        }
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for _ in 0..30 {
                    assert_eq!(sread(&b, 20_000), 1);
                }
                // And one for the signal.
                assert_eq!(sread(&b, 20_000), -11);
            });
            for round in 0..30 {
                // Long enough apart for the reader to fall asleep, most of the time.
                std::thread::sleep(Duration::from_millis(round % 5));
                until(|| (a.inject(b"wake", to_b) == 0).then_some(()));
                let _ = a.cq_read(0);
            }
            // The first message may have waited for the connection.
            until(|| {
                let _ = a.cq_read(0);
                std::thread::sleep(Duration::from_millis(1));
                (begin.elapsed() > Duration::from_millis(300)).then_some(())
            });
            ok(unsafe { ((*(*b.cq).ops).signal.unwrap())(b.cq) });
            reader.join().unwrap();
        });
        assert!(begin.elapsed() < Duration::from_secs(10), "a wake-up was lost");
    }
}

#[test]
fn counter_waits_wake_up() {
    let (a, b, to_b, _) = pair(Options { threading: sys::FI_THREAD_SAFE, ..Options::default() });
    let recvs = b.counter();
    ok(b.bind(recvs.cast(), sys::FI_RECV));
    let mut buffers = vec![[0_u8; 8]; 10];
    for buffer in &mut buffers {
        assert_eq!(b.recv(buffer, 0), 0);
    }
    let wait = unsafe { (*(*recvs).ops).wait.unwrap() };
    let shared = recvs as usize;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let recvs = shared as *mut sys::fid_cntr;
            assert_eq!(unsafe { wait(recvs, 10, 20_000) }, 0);
            assert_eq!(unsafe { wait(recvs, 11, 20_000) }, -259, "an error was counted");
        });
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(2));
            until(|| (a.inject(b"count", to_b) == 0).then_some(()));
            let _ = a.cq_read(0);
        }
        until(|| {
            let _ = a.cq_read(0);
            std::thread::sleep(Duration::from_millis(1));
            (unsafe { (*(*recvs).ops).read.unwrap()(recvs) } == 10).then_some(())
        });
        std::thread::sleep(Duration::from_millis(20));
        ok(unsafe { ((*(*recvs).ops).adderr.unwrap())(recvs, 1) });
        waiter.join().unwrap();
    });
}

#[test]
fn a_target_that_never_calls_is_progressed() {
    let options =
        Options { threading: sys::FI_THREAD_SAFE, progress: sys::FI_PROGRESS_AUTO, ..Options::default() };
    let (a, b, to_b, _) = pair(options);
    let mut memory = vec![7_u8; 1 << 20];
    let mr = b.register(&mut memory, sys::FI_REMOTE_READ, 5);
    let read = unsafe { (*(*a.ep).rma).read.unwrap() };
    let mut slowest = Duration::ZERO;
    for len in [8_usize, 4096, 1 << 20] {
        for _ in 0..20 {
            let mut back = vec![0_u8; len];
            let begin = Instant::now();
            assert_eq!(unsafe { read(a.ep, back.as_mut_ptr().cast(), len, null_mut(), to_b, 0, 5, null_mut()) }, 0);
            until(|| a.poll());
            slowest = slowest.max(begin.elapsed());
            assert!(back.iter().all(|&byte| byte == 7));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(slowest < Duration::from_secs(5), "the slowest read took {slowest:?}");
    ok(close(mr));
}

#[test]
fn a_descriptor_tells_when_to_read() {
    for progress in [sys::FI_PROGRESS_MANUAL, sys::FI_PROGRESS_AUTO] {
        let options =
            Options { threading: sys::FI_THREAD_SAFE, progress, wait: sys::FI_WAIT_FD, ..Options::default() };
        let (a, b, to_b, _) = pair(options);
        let mut fd = -1;
        let control = unsafe { (*(*b.cq.cast::<sys::fid>()).ops).control.unwrap() };
        ok(unsafe { control(b.cq.cast(), sys::FI_GETWAIT.cast_signed(), (&raw mut fd).cast()) });
        let trywait = unsafe { (*(*b.fabric).ops).trywait.unwrap() };
        let mut buffers = vec![[0_u8; 8]; 20];
        for buffer in &mut buffers {
            assert_eq!(b.recv(buffer, 0), 0);
        }
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut got = 0;
                while got < 20 {
                    if b.poll().is_some() {
                        got += 1;
                        continue;
                    }
                    let mut fids = [b.cq.cast::<sys::fid>()];
                    if unsafe { trywait(b.fabric, fids.as_mut_ptr(), 1) } != 0 {
                        continue;
                    }
                    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 20_000) }, 1, "the descriptor did not wake us");
                }
            });
            for round in 0..20 {
                std::thread::sleep(Duration::from_millis(round % 4));
                until(|| (a.inject(b"ready", to_b) == 0).then_some(()));
                let _ = a.cq_read(0);
            }
            until(|| {
                let _ = a.cq_read(0);
                reader.is_finished().then_some(())
            });
            reader.join().unwrap();
        });
    }
}
