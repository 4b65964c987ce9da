//! The fixture of the endpoint tests: two [`Side`]s in one process.
//!
//! Each side has the objects of a client's process: fabric, domain, address vector, queue and endpoint. Tests call the
//! operation tables as a client does. The sides communicate by shared memory. With manual progress one thread drives
//! both.

#![allow(clippy::unwrap_used, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::fabric;

/// Longest wait for an event before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const ALL_CAPS: u64 = sys::FI_MSG
    | sys::FI_TAGGED
    | sys::FI_RMA
    | sys::FI_DIRECTED_RECV
    | sys::FI_MULTI_RECV
    | sys::FI_SOURCE
    | sys::FI_RMA_EVENT
    | sys::FI_FENCE;

/// The attributes with which a side is opened.
#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) threading: sys::fi_threading,
    pub(super) progress: sys::fi_progress,
    pub(super) caps: u64,
    pub(super) tx_flags: u64,
    pub(super) tx_selective: bool,
    pub(super) rx_selective: bool,
    pub(super) cq_size: usize,
    pub(super) wait: sys::fi_wait_obj,
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

/// The objects of one process.
pub(super) struct Side {
    pub(super) fabric: *mut sys::fid_fabric,
    pub(super) domain: *mut sys::fid_domain,
    pub(super) av: *mut sys::fid_av,
    pub(super) cq: *mut sys::fid_cq,
    pub(super) ep: *mut sys::fid_ep,
    /// Counters, which are closed after the endpoint.
    pub(super) cntrs: std::cell::RefCell<Vec<*mut sys::fid_cntr>>,
}

// SAFETY: the tests call the objects as the threading level permits.
unsafe impl Send for Side {}
unsafe impl Sync for Side {}

pub(super) fn zeroed<T>() -> T {
    // SAFETY: the function is used for C structures only, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

pub(super) fn ok(result: i32) {
    assert_eq!(result, 0, "failed with {result}");
}

impl Side {
    pub(super) fn open(options: Options) -> Self {
        let side = Self::open_disabled(options);
        ok(side.bind(side.av.cast(), 0));
        ok(side
            .bind_cq(side.cq, sys::FI_TRANSMIT | if options.tx_selective { sys::FI_SELECTIVE_COMPLETION } else { 0 }));
        ok(side.bind_cq(side.cq, sys::FI_RECV | if options.rx_selective { sys::FI_SELECTIVE_COMPLETION } else { 0 }));
        ok(side.enable());
        side
    }

    /// Opens all objects. The endpoint is neither bound nor enabled.
    pub(super) fn open_disabled(options: Options) -> Self {
        let mut side = Self {
            fabric: null_mut(),
            domain: null_mut(),
            av: null_mut(),
            cq: null_mut(),
            ep: null_mut(),
            cntrs: Default::default(),
        };
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
            ok(fabric::open::<weft_nic::Devices, 0>(&raw mut fabric_attr, &raw mut side.fabric, null_mut()));
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

    /// Opens one more endpoint of this domain, which is neither bound nor enabled.
    pub(super) fn another_endpoint(&self, options: Options) -> *mut sys::fid_ep {
        let mut ep_attr: sys::fi_ep_attr = zeroed();
        ep_attr.type_ = sys::FI_EP_RDM;
        let mut info: sys::fi_info = zeroed();
        info.caps = options.caps;
        info.ep_attr = &raw mut ep_attr;
        let mut ep = null_mut();
        let open = unsafe { (*(*self.domain).ops).endpoint.unwrap() };
        ok(unsafe { open(self.domain, &raw mut info, &raw mut ep, null_mut()) });
        ep
    }

    pub(super) fn fid(&self) -> *mut sys::fid {
        self.ep.cast()
    }

    pub(super) fn bind(&self, what: *mut sys::fid, flags: u64) -> i32 {
        unsafe { ((*(*self.fid()).ops).bind.unwrap())(self.fid(), what, flags) }
    }

    pub(super) fn bind_cq(&self, cq: *mut sys::fid_cq, flags: u64) -> i32 {
        self.bind(cq.cast(), flags)
    }

    pub(super) fn control(&self, command: u32, arg: *mut c_void) -> i32 {
        unsafe { ((*(*self.fid()).ops).control.unwrap())(self.fid(), command.cast_signed(), arg) }
    }

    pub(super) fn enable(&self) -> i32 {
        self.control(sys::FI_ENABLE, null_mut())
    }

    pub(super) fn name(&self) -> Vec<u8> {
        let getname = unsafe { (*(*self.ep).cm).getname.unwrap() };
        let mut len = 0;
        assert_eq!(unsafe { getname(self.fid(), null_mut(), &raw mut len) }, -257, "too small");
        let mut name = vec![0_u8; len];
        ok(unsafe { getname(self.fid(), name.as_mut_ptr().cast(), &raw mut len) });
        assert_eq!(len, name.len());
        name
    }

    /// Inserts the other side's name. Returns its address.
    pub(super) fn insert(&self, other: &Self) -> u64 {
        let name = other.name();
        let mut addr = u64::MAX;
        let insert = unsafe { (*(*self.av).ops).insert.unwrap() };
        assert_eq!(unsafe { insert(self.av, name.as_ptr().cast(), 1, &raw mut addr, 0, null_mut()) }, 1);
        addr
    }

    pub(super) fn cq_read(&self, count: usize) -> Result<Vec<(sys::fi_cq_tagged_entry, u64)>, isize> {
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

    pub(super) fn poll(&self) -> Option<(sys::fi_cq_tagged_entry, u64)> {
        match self.cq_read(1) {
            Ok(mut entries) => entries.pop(),
            Err(error) => {
                assert_eq!(error, -11, "fi_cq_read failed");
                None
            }
        }
    }

    pub(super) fn error(&self) -> sys::v2::fi_cq_err_entry_1_20 {
        let mut entry: sys::v2::fi_cq_err_entry_1_20 = zeroed();
        let readerr = unsafe { (*(*self.cq).ops).readerr.unwrap() };
        assert_eq!(unsafe { readerr(self.cq, (&raw mut entry).cast(), 0) }, 1);
        entry
    }

    pub(super) fn counter(&self) -> *mut sys::fid_cntr {
        let mut attr: sys::fi_cntr_attr = zeroed();
        attr.wait_obj = sys::FI_WAIT_UNSPEC;
        let mut cntr = null_mut();
        ok(unsafe {
            ((*(*self.domain).ops).cntr_open.unwrap())(self.domain, &raw mut attr, &raw mut cntr, null_mut())
        });
        self.cntrs.borrow_mut().push(cntr);
        cntr
    }

    pub(super) fn register(&self, memory: &mut [u8], access: u64, key: u64) -> *mut sys::fid_mr {
        let mut mr = null_mut();
        let reg = unsafe { (*(*self.domain).mr).reg.unwrap() };
        let fid = self.domain.cast();
        let (buf, len) = (memory.as_mut_ptr().cast(), memory.len());
        ok(unsafe { reg(fid, buf, len, access, 0, key, 0, &raw mut mr, null_mut()) });
        mr
    }

    pub(super) fn tsend(&self, buf: &[u8], dest: u64, tag: u64, ctx: usize) -> isize {
        let send = unsafe { (*(*self.ep).tagged).send.unwrap() };
        unsafe { send(self.ep, buf.as_ptr().cast(), buf.len(), null_mut(), dest, tag, ctx as *mut c_void) }
    }

    pub(super) fn tinject(&self, buf: &[u8], dest: u64, tag: u64) -> isize {
        unsafe { ((*(*self.ep).tagged).inject.unwrap())(self.ep, buf.as_ptr().cast(), buf.len(), dest, tag) }
    }

    pub(super) fn trecv(&self, buf: &mut [u8], src: u64, tag: u64, ignore: u64, ctx: usize) -> isize {
        let recv = unsafe { (*(*self.ep).tagged).recv.unwrap() };
        unsafe { recv(self.ep, buf.as_mut_ptr().cast(), buf.len(), null_mut(), src, tag, ignore, ctx as *mut c_void) }
    }

    pub(super) fn trecvmsg(&self, tag: u64, ctx: usize, flags: u64, buf: &mut [u8]) -> isize {
        let iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        let mut msg: sys::fi_msg_tagged = zeroed();
        msg.msg_iov = &raw const iov;
        msg.iov_count = 1;
        msg.addr = u64::MAX;
        msg.tag = tag;
        msg.context = ctx as *mut c_void;
        unsafe { ((*(*self.ep).tagged).recvmsg.unwrap())(self.ep, &raw const msg, flags) }
    }

    pub(super) fn inject(&self, buf: &[u8], dest: u64) -> isize {
        unsafe { ((*(*self.ep).msg).inject.unwrap())(self.ep, buf.as_ptr().cast(), buf.len(), dest) }
    }

    /// Injects a message, and progresses both sides until the call succeeds: before the link is up it cannot.
    pub(super) fn inject_to(&self, buf: &[u8], dest: u64, peer: &Self) {
        until(|| {
            let result = self.inject(buf, dest);
            if result == 0 {
                return Some(());
            }
            assert_eq!(result, Errno::AGAIN.size());
            for side in [self, peer] {
                // A read of no entries makes progress as well.
                let _ = side.cq_read(0);
            }
            None
        });
    }

    pub(super) fn recv(&self, buf: &mut [u8], ctx: usize) -> isize {
        let recv = unsafe { (*(*self.ep).msg).recv.unwrap() };
        unsafe { recv(self.ep, buf.as_mut_ptr().cast(), buf.len(), null_mut(), u64::MAX, ctx as *mut c_void) }
    }
}

pub(super) fn close<T>(fid: *mut T) -> i32 {
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

pub(super) fn pair(options: Options) -> (Side, Side, u64, u64) {
    let (a, b) = (Side::open(options), Side::open(options));
    let (to_b, to_a) = (a.insert(&b), b.insert(&a));
    (a, b, to_b, to_a)
}

/// Polls until `done` returns a value.
pub(super) fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "the event did not occur in time");
    }
}

/// Waits for an entry of one side while driving the other, which reports nothing.
pub(super) fn of(side: &Side, other: &Side) -> (sys::fi_cq_tagged_entry, u64) {
    until(|| {
        assert!(other.cq_read(0).is_err(), "an unexpected entry");
        side.poll()
    })
}

/// Waits for one entry on each side.
pub(super) fn both(a: &Side, b: &Side) -> (sys::fi_cq_tagged_entry, (sys::fi_cq_tagged_entry, u64)) {
    let (mut at_a, mut at_b) = (None, None);
    until(|| {
        at_a = at_a.or_else(|| a.poll());
        at_b = at_b.or_else(|| b.poll());
        Some((at_a?.0, at_b?))
    })
}

/// Polls both for a while, and checks that there are no entries.
pub(super) fn nothing(a: &Side, b: &Side) {
    for _ in 0..2000 {
        assert!(a.poll().is_none() && b.poll().is_none());
    }
}

/// Drives a side until a read fails with an error entry.
pub(super) fn until_error(side: &Side, other: &Side) -> sys::v2::fi_cq_err_entry_1_20 {
    until(|| {
        let _ = other.cq_read(0);
        (side.cq_read(1).err() == Some(-259)).then(|| side.error())
    })
}

pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..251_u8).cycle().take(len).collect()
}
