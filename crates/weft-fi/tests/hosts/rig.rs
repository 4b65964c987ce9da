//! Two endpoints with counters, for the tests of triggered operations and of deferred work.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, close, control};
use crate::open;
use crate::side::{Args, Form, PATIENCE, Side, introduce, until};

/// A counter of the test. Any thread may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cntr(pub(crate) *mut fid_cntr);

unsafe impl Send for Cntr {}
unsafe impl Sync for Cntr {}

impl Cntr {
    pub(crate) fn read(self) -> u64 {
        unsafe { (*(*self.0).ops).read.unwrap()(self.0) }
    }

    pub(crate) fn errors(self) -> u64 {
        unsafe { (*(*self.0).ops).readerr.unwrap()(self.0) }
    }

    pub(crate) fn add(self, amount: u64) {
        assert_eq!(unsafe { (*(*self.0).ops).add.unwrap()(self.0, amount) }, 0);
    }

    pub(crate) fn set(self, value: u64) {
        assert_eq!(unsafe { (*(*self.0).ops).set.unwrap()(self.0, value) }, 0);
    }

    pub(crate) fn fail(self, amount: u64) {
        assert_eq!(unsafe { (*(*self.0).ops).adderr.unwrap()(self.0, amount) }, 0);
    }

    pub(crate) fn set_errors(self, value: u64) {
        assert_eq!(unsafe { (*(*self.0).ops).seterr.unwrap()(self.0, value) }, 0);
    }

    /// `fi_cntr_wait`.
    pub(crate) fn wait(self, threshold: u64, timeout: Duration) -> c_int {
        unsafe { (*(*self.0).ops).wait.unwrap()(self.0, threshold, timeout.as_millis() as c_int) }
    }

    /// Reads the counter until it has this value, while the sides make progress.
    #[track_caller]
    pub(crate) fn reaches(self, value: u64, sides: &[&Side<'_>]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.read();
            assert!(now <= value, "the counter has {now}, more than {value}");
            if now == value {
                return;
            }
            sides.iter().for_each(|side| side.progress());
            assert!(Instant::now() < end, "the counter stays at {now}, not {value}, with {} errors", self.errors());
        }
    }
}

/// Two connected endpoints and their counters, which are closed in the right order when the rig is dropped.
pub(crate) struct Rig<'a> {
    pub(crate) a: Side<'a>,
    pub(crate) b: Side<'a>,
    pub(crate) to_b: u64,
    pub(crate) to_a: u64,
    counters: RefCell<Vec<Cntr>>,
}

/// The progress models.
pub(crate) const MODELS: [fi_progress; 2] = [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO];

impl<'a> Rig<'a> {
    pub(crate) fn new(lib: &'a Lib, progress: fi_progress) -> Self {
        Self::with(lib, progress, 0)
    }

    /// Limits the number of pending operations to `depth`; 0 is the default limit.
    pub(crate) fn with(lib: &'a Lib, progress: fi_progress, depth: usize) -> Self {
        let side = || {
            Side::with(lib, 0, |hints| {
                (hints.tx().size, hints.rx().size) = (depth, depth);
                hints.domain().data_progress = progress;
            })
        };
        let (a, b, to_b, to_a) = introduce(side(), side());
        Self { a, b, to_b, to_a, counters: RefCell::default() }
    }

    /// Opens a counter in the domain of this side.
    pub(crate) fn cntr(&self, side: &Side<'_>) -> Cntr {
        let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
        attr.wait_obj = FI_WAIT_UNSPEC;
        let cntr = Cntr(open!(side.opened.domain, cntr_open, &mut attr).unwrap());
        self.counters.borrow_mut().push(cntr);
        cntr
    }

    pub(crate) fn sides(&self) -> [&Side<'a>; 2] {
        [&self.a, &self.b]
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for side in [&mut self.a, &mut self.b] {
            if !side.ep.is_null() {
                side.close_ep();
            }
        }
        for cntr in self.counters.get_mut().drain(..) {
            assert_eq!(close(cntr.0), 0, "fi_close(cntr)");
        }
    }
}

/// Memory that a test leaks, so that it stays valid.
type Bytes = *mut [u8];

/// An operation of deferred work.
pub(crate) enum Work {
    Send(Bytes, u64),
    Recv(Bytes),
    TaggedSend(Bytes, u64, u64),
    TaggedRecv(Bytes, u64),
    /// Receives from one source only.
    TaggedRecvFrom(Bytes, u64, u64),
    Write(Bytes, u64, fi_rma_iov),
    Read(Bytes, u64, fi_rma_iov),
    Atomic(Amo),
    Add(Cntr, u64),
    Set(Cntr, u64),
}

/// An atomic operation on 64-bit numbers.
pub(crate) struct Amo {
    /// FI_OP_ATOMIC, FI_OP_FETCH_ATOMIC or FI_OP_COMPARE_ATOMIC.
    pub(crate) kind: fi_op_type,
    pub(crate) op: fi_op,
    pub(crate) operands: *mut [u64],
    pub(crate) compare: *mut [u64],
    pub(crate) result: *mut [u64],
    pub(crate) dest: u64,
    pub(crate) addr: u64,
    pub(crate) key: u64,
}

/// A request for deferred work: libfabric's structure and the operation's arguments.
pub(crate) struct Request {
    pub(crate) raw: Box<fi_deferred_work>,
    pub(crate) flags: u64,
    pub(crate) context: usize,
}

impl Request {
    pub(crate) fn new(trigger: Cntr, threshold: u64, completion: Option<Cntr>) -> Self {
        let mut raw: Box<fi_deferred_work> = Box::new(unsafe { std::mem::zeroed() });
        raw.triggering_cntr = trigger.0;
        raw.threshold = threshold;
        raw.completion_cntr = completion.map_or(null_mut(), |cntr| cntr.0);
        Self { raw, flags: 0, context: 0xdef }
    }

    /// FI_QUEUE_WORK. On return all structures and vectors are overwritten and gone, except the request
    /// itself.
    pub(crate) fn queue(&mut self, side: &Side<'_>, work: &Work) -> c_int {
        let mut iov: [libc::iovec; 2] = unsafe { std::mem::zeroed() };
        let mut remote: [fi_rma_iov; 2] = unsafe { std::mem::zeroed() };
        if let Work::Send(buf, _)
        | Work::Recv(buf)
        | Work::TaggedSend(buf, ..)
        | Work::TaggedRecv(buf, _)
        | Work::TaggedRecvFrom(buf, ..)
        | Work::Write(buf, ..)
        | Work::Read(buf, ..) = work
        {
            let (start, first): (*mut u8, usize) = (buf.cast(), buf.len() / 3);
            iov[0] = libc::iovec { iov_base: start.cast(), iov_len: first };
            iov[1] = libc::iovec { iov_base: start.wrapping_add(first).cast(), iov_len: buf.len() - first };
        }
        let context = self.context as *mut c_void;
        let (count, flags, ep) = (2, self.flags, side.ep);
        let result = match work {
            Work::Send(_, addr) => {
                let msg = fi_msg { addr: *addr, ..message(&iov, count, context) };
                self.submit(side, FI_OP_SEND, |op| op.msg = leak(fi_op_msg { ep, msg, flags }))
            }
            Work::Recv(_) => {
                let msg = message(&iov, count, context);
                self.submit(side, FI_OP_RECV, |op| op.msg = leak(fi_op_msg { ep, msg, flags }))
            }
            Work::TaggedSend(_, addr, tag) => {
                let msg = fi_msg_tagged { addr: *addr, tag: *tag, ..tagged(&iov, count, context) };
                self.submit(side, FI_OP_TSEND, |op| op.tagged = leak(fi_op_tagged { ep, msg, flags }))
            }
            &Work::TaggedRecv(_, tag) | &Work::TaggedRecvFrom(_, _, tag) => {
                let addr = if let &Work::TaggedRecvFrom(_, from, _) = work { from } else { FI_ADDR_UNSPEC };
                let msg = fi_msg_tagged { addr, tag, ..tagged(&iov, count, context) };
                self.submit(side, FI_OP_TRECV, |op| op.tagged = leak(fi_op_tagged { ep, msg, flags }))
            }
            Work::Write(_, addr, place) | Work::Read(_, addr, place) => {
                let half = place.len / 2;
                remote[0] = fi_rma_iov { len: half, ..*place };
                remote[1] = fi_rma_iov { addr: place.addr + half as u64, len: place.len - half, key: place.key };
                let mut msg: fi_msg_rma = unsafe { std::mem::zeroed() };
                (msg.msg_iov, msg.iov_count, msg.addr, msg.context) = (iov.as_ptr(), count, *addr, context);
                (msg.rma_iov, msg.rma_iov_count) = (remote.as_ptr(), remote.len());
                let kind = if matches!(work, Work::Write(..)) { FI_OP_WRITE } else { FI_OP_READ };
                self.submit(side, kind, |op| op.rma = leak(fi_op_rma { ep, msg, flags }))
            }
            Work::Atomic(amo) => self.atomic(side, amo),
            Work::Add(cntr, value) => {
                let op_cntr = fi_op_cntr { cntr: cntr.0, value: *value };
                self.submit(side, FI_OP_CNTR_ADD, |op| op.cntr = leak(op_cntr))
            }
            Work::Set(cntr, value) => {
                let op_cntr = fi_op_cntr { cntr: cntr.0, value: *value };
                self.submit(side, FI_OP_CNTR_SET, |op| op.cntr = leak(op_cntr))
            }
        };
        // A later read of these fields fails.
        iov = [libc::iovec { iov_base: 8 as *mut c_void, iov_len: usize::MAX }; 2];
        remote = [fi_rma_iov { addr: 1, len: usize::MAX, key: u64::MAX }; 2];
        std::hint::black_box((&mut iov, &mut remote));
        result
    }

    /// Queues an atomic operation. The vectors have two pieces, of which the first is one number.
    fn atomic(&mut self, side: &Side<'_>, amo: &Amo) -> c_int {
        let split = |numbers: *mut [u64]| {
            let start: *mut u64 = numbers.cast();
            let piece = |at: usize, count| fi_ioc { addr: start.wrapping_add(at).cast(), count };
            [piece(0, 1), piece(1, numbers.len().saturating_sub(1))]
        };
        let [mut operands, mut compare, mut result] = [amo.operands, amo.compare, amo.result].map(split);
        let count = amo.operands.len();
        let mut remote = [(0, 1), (1, count - 1)].map(|(at, count)| fi_rma_ioc {
            addr: amo.addr + 8 * at as u64,
            count,
            key: amo.key,
        });
        let mut msg: fi_msg_atomic = unsafe { std::mem::zeroed() };
        (msg.msg_iov, msg.iov_count, msg.addr) = (operands.as_ptr(), 2, amo.dest);
        (msg.rma_iov, msg.rma_iov_count) = (remote.as_ptr(), 2);
        (msg.datatype, msg.op, msg.context) = (FI_UINT64, amo.op, self.context as *mut c_void);
        let fetch = fi_msg_fetch { msg_iov: result.as_mut_ptr(), desc: null_mut(), iov_count: 2 };
        let compared = fi_msg_compare { msg_iov: compare.as_ptr(), desc: null_mut(), iov_count: 2 };
        let (flags, ep) = (self.flags, side.ep);
        let result_code = self.submit(side, amo.kind, |op| match amo.kind {
            FI_OP_ATOMIC => op.atomic = leak(fi_op_atomic { ep, msg, flags }),
            FI_OP_FETCH_ATOMIC => op.fetch_atomic = leak(fi_op_fetch_atomic { ep, msg, fetch, flags }),
            _ => op.compare_atomic = leak(fi_op_compare_atomic { ep, msg, fetch, compare: compared, flags }),
        });
        for vector in [&mut operands, &mut compare, &mut result] {
            *vector = [fi_ioc { addr: 8 as *mut c_void, count: usize::MAX }; 2];
        }
        remote = [fi_rma_ioc { addr: 1, count: usize::MAX, key: u64::MAX }; 2];
        std::hint::black_box((&operands, &compare, &result, &remote));
        result_code
    }

    fn submit(
        &mut self,
        side: &Side<'_>,
        kind: fi_op_type,
        fill: impl FnOnce(&mut fi_deferred_work__bindgen_ty_1),
    ) -> c_int {
        self.raw.op_type = kind;
        fill(&mut self.raw.op);
        let result = self.control(side, FI_QUEUE_WORK);
        // The client's structures may change once the call has returned.
        let op = std::mem::replace(&mut self.raw.op, fi_deferred_work__bindgen_ty_1 { msg: null_mut() });
        unsafe { op.cntr.write_bytes(0xff, 1) };
        result
    }

    /// `fi_control` of the domain with this request.
    pub(crate) fn control(&mut self, side: &Side<'_>, command: u32) -> c_int {
        control(side.opened.domain, command, (&raw mut *self.raw).cast())
    }
}

/// Leaks small values, so that a use after the call is found by its contents and not by chance.
fn leak<T>(value: T) -> *mut T {
    Box::leak(Box::new(value))
}

fn message(iov: &[libc::iovec], count: usize, context: *mut c_void) -> fi_msg {
    let mut msg: fi_msg = unsafe { std::mem::zeroed() };
    (msg.msg_iov, msg.iov_count, msg.addr, msg.context) = (iov.as_ptr(), count, FI_ADDR_UNSPEC, context);
    msg
}

fn tagged(iov: &[libc::iovec], count: usize, context: *mut c_void) -> fi_msg_tagged {
    let mut msg: fi_msg_tagged = unsafe { std::mem::zeroed() };
    (msg.msg_iov, msg.iov_count, msg.addr, msg.context) = (iov.as_ptr(), count, FI_ADDR_UNSPEC, context);
    msg
}

/// Queues work. The provider must accept it.
#[track_caller]
pub(crate) fn queue(side: &Side<'_>, trigger: Cntr, threshold: u64, completion: Option<Cntr>, work: Work) -> Request {
    let mut request = Request::new(trigger, threshold, completion);
    assert_eq!(request.queue(side, &work), 0, "FI_QUEUE_WORK");
    request
}

/// A context for a triggered operation.
pub(crate) fn condition(cntr: Cntr, threshold: usize) -> &'static mut fi_triggered_context {
    let mut context: fi_triggered_context = unsafe { std::mem::zeroed() };
    context.event_type = FI_TRIGGER_THRESHOLD;
    context.trigger.threshold = fi_trigger_threshold { cntr: cntr.0, threshold };
    Box::leak(Box::new(context))
}

/// Calls a function until it accepts the operation.
#[track_caller]
pub(crate) fn start_on(ep: *mut fid_ep, name: &str, args: &Args, sides: &[&Side<'_>]) {
    let call = crate::side::call(name);
    assert_ne!(call.form, Form::Inject);
    until(|| match unsafe { (call.run)(ep, args) } {
        0 => Some(()),
        result => {
            assert_eq!(result, crate::side::err(FI_EAGAIN), "{name}");
            sides.iter().for_each(|side| side.progress());
            None
        }
    });
}
