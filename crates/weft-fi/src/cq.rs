//! Completion queues (fi_cq(3)).
//!
//! Place in the data flow: endpoints append entries through an [`Appender`]; `fi_cq_read` and its variants
//! take them. A read that finds entries takes them and does nothing else. A read of an empty queue makes one
//! round of progress on every bound endpoint and checks again.
//!
//! Invariants: no entry is ever lost. The bound is kept outside the queue: while the queue holds `size`
//! entries, new operations that would complete here return -FI_EAGAIN ([`Cq::is_full`]). The queue then
//! exceeds its size at most by the outstanding operations. Unsolicited messages and messages for
//! multi-receives stop at a second limit ([`Cq::is_flooded`]): the endpoints make no progress until the
//! client has read. Only at that limit are multi-receives refused.
//!
//! Blocking: `fi_cq_sread` spins, yields, parks the devices and sleeps ([`crate::sleep::poll`]). For
//! FI_WAIT_FD the client gets the queue's epoll descriptor, and may poll it after a successful `fi_trywait`.

pub(crate) mod fault;
mod recorded;
pub(crate) mod ring;
mod signal;

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_fi_sys as sys;
use weft_nic::{Device, NicError};

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::cq::ring::{Entry, Failure, Format, ReadBuffer, Ring, TakeError};
use crate::cq::signal::Signal;
use crate::domain::Domain;
use crate::sleep::lock::{Guard, Guarded};
use crate::sleep::poll::{self, Sources, Waitable, Waited};
use crate::sleep::wait::{Deadline, LazyWaker, WaitKind, Waker};
use crate::sleep::waitset::{self, Member, WaitSet};

/// Imports of the file that the model checker also compiles.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};
}

/// Size of a queue if the client requests none.
const DEFAULT_ENTRIES: usize = 8192;
/// Entries that are allocated at the start; a longer queue grows on demand.
const RESERVED_ENTRIES: usize = 256;
/// Maximum size. Such a queue takes 4 GiB.
const MAX_ENTRIES: usize = 1 << 26;
/// Entries above the size at which unsolicited writes with data, and messages for multi-receives, have to
/// wait.
const FLOOD_ENTRIES: usize = 1 << 20;

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    head: Head<sys::fid_cq>,
    /// The number of entries in `ring`, to be read without the lock.
    len: AtomicUsize,
    ring: Guarded<Ring>,
    sources: Sources,
    format: Format,
    /// The client's format, if the queue is recorded.
    shown: Format,
    /// The number of entries from which new operations are refused.
    size: usize,
    /// Entries from which on unsolicited messages wait.
    flood_size: usize,
    wait: WaitKind,
    /// Whether the condition of `fi_cq_sread` is a number of entries.
    threshold: bool,
    /// The API version that the client requested.
    api: u32,
    /// Made on first use.
    waker: LazyWaker,
    set: Option<Hold<WaitSet>>,
    signal: Signal,
    uses: Uses,
    /// The last field, so that all others are dropped before the domain.
    domain: Hold<Domain>,
}

// SAFETY: `repr(C)`, the first field is a `Head` (an `UnsafeCell`) of the fid, whose class is set in `open_queue`.
unsafe impl Object for Cq {
    type Fid = sys::fid_cq;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_CQ];

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// Implements `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_cq_attr,
    cq: *mut *mut sys::fid_cq,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_cq_open", || {
        let place = object::place(cq)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: null, or the client's attributes. Only fields that every version has are read.
        let attr = unsafe { attr.as_ref() };
        let queue = open_queue(domain, attr, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(queue, place) })
    })
}

fn open_queue(domain: Hold<Domain>, attr: Option<&sys::fi_cq_attr>, context: *mut c_void) -> Result<Arc<Cq>, Errno> {
    let format = attr.map_or(sys::FI_CQ_FORMAT_UNSPEC, |attr| attr.format);
    let wait = WaitKind::from_attr(attr.map_or(sys::FI_WAIT_NONE, |attr| attr.wait_obj))?;
    // SAFETY: the client's wait set, if the attributes name one.
    let set =
        unsafe { waitset::named(wait, attr.map_or(std::ptr::null_mut(), |attr| attr.wait_set), domain.fabric()) }?;
    // FI_AFFINITY states that signaling_vector is set, which is a hint.
    if attr.is_some_and(|attr| attr.flags & !sys::FI_AFFINITY != 0) {
        log::info!("fi_cq_open: unknown flags {:#x}; only FI_AFFINITY is supported", attr.map_or(0, |attr| attr.flags));
        return Err(Errno::BADFLAGS);
    }
    let size = attr.map_or(0, |attr| attr.size);
    let size = if size == 0 { DEFAULT_ENTRIES } else { size };
    if size > MAX_ENTRIES {
        log::info!(
            "fi_cq_open: size: wanted {size}, offered {MAX_ENTRIES}; request at most that, or 0 for the default"
        );
        return Err(Errno::NOMEM);
    }
    let shown = Format::from_attr(format).ok_or(Errno::INVAL)?;
    let callers = domain.callers();
    let head = sys::fid_cq {
        fid: object::new_fid(sys::FI_CLASS_CQ, context, &FID_OPS),
        ops: object::table(if domain.is_recorded() { domain.tables().recorded_cq } else { domain.tables().cq }),
    };
    // SAFETY: `callers` is the client's promise for this domain, which covers calls on this queue and on its
    // endpoints.
    let ring = unsafe { Guarded::new(callers, domain.meter(), Ring::new(size.min(RESERVED_ENTRIES))) };
    let queue = Cq {
        head: Head::new(head),
        len: AtomicUsize::new(0),
        ring,
        sources: domain.new_sources(),
        format: if domain.is_recorded() { Format::Tagged } else { shown },
        shown,
        size,
        flood_size: size.saturating_add(FLOOD_ENTRIES),
        wait,
        threshold: attr.is_some_and(|attr| attr.wait_cond == sys::FI_CQ_COND_THRESHOLD),
        api: domain.api_version(),
        waker: LazyWaker::default(),
        set,
        signal: Signal::new(),
        uses: Uses::new(),
        domain,
    };
    if wait.needs_waker() {
        queue.waker.make(|| queue.new_waker())?;
    }
    let queue = Arc::new(queue);
    waitset::join(queue.set.as_ref(), &queue);
    Ok(queue)
}

/// A read of an empty queue, which takes entries directly as long as the queue stays empty.
pub(crate) struct Reading<'a> {
    cq: &'a Cq,
    buffer: ReadBuffer,
}

impl Reading<'_> {
    /// The buffer for entries of `cq`, unless earlier ones are in the queue. The caller is inside the endpoint.
    #[inline(always)]
    pub(crate) fn buffer_for(&mut self, cq: &Cq) -> Option<&mut ReadBuffer> {
        (std::ptr::eq(self.cq, cq) && cq.is_empty()).then_some(&mut self.buffer)
    }
}

/// Appends entries under one lock. The drop publishes them and wakes waiting readers.
pub(crate) struct Appender<'a> {
    cq: &'a Cq,
    ring: Guard<'a, Ring>,
}

impl Appender<'_> {
    /// Whether the appender is that of `cq`.
    #[inline]
    pub(crate) fn is_for(&self, cq: &Cq) -> bool {
        std::ptr::eq(self.cq, cq)
    }

    /// Appends the entry of a successful operation.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: Entry) {
        self.ring.push(entry);
    }

    /// Appends the entry of a failed operation.
    pub(crate) fn push_failed(&mut self, entry: Entry, failure: Failure) {
        self.ring.push_failed(entry, failure);
    }
}

impl Drop for Appender<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let len = self.ring.len();
        self.cq.len.store(len, Ordering::Relaxed);
        if len >= self.ring.wake_at {
            self.cq.notify_reader(&mut self.ring);
        }
    }
}

impl Cq {
    /// Locks the queue for appending. `visiting`: the caller is the progress thread.
    #[inline]
    pub(crate) fn appender(&self, visiting: bool) -> Appender<'_> {
        Appender { cq: self, ring: if visiting { self.ring.visit() } else { self.ring.lock() } }
    }

    /// Called when the progress thread will not append for a while.
    pub(crate) fn end_visits(&self) {
        self.ring.end_visits();
    }

    /// Whether new operations must wait until the client reads.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len.load(Ordering::Relaxed) >= self.size
    }

    /// Whether the queue is empty, without progress.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Whether unsolicited messages must wait as well.
    #[inline]
    pub(crate) fn is_flooded(&self) -> bool {
        self.len.load(Ordering::Relaxed) >= self.flood_size
    }

    /// The endpoints on which reads make progress.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The object on which readers sleep, made on first use.
    pub(crate) fn waker(&self) -> Option<&Waker> {
        self.waker.get(|| self.new_waker())
    }

    fn new_waker(&self) -> Result<Waker, NicError> {
        waitset::new_waker(self.wait, self.set.as_ref())
    }

    #[cold]
    fn notify_reader(&self, ring: &mut Ring) {
        ring.wake_at = usize::MAX;
        if let Some(waker) = self.waker() {
            waker.notify();
        }
    }

    /// Wakes all sleeping readers, which then check the queue.
    pub(crate) fn notify(&self) {
        self.sources.notify(self.waker.made());
    }

    /// The domain.
    pub(crate) fn domain(&self) -> &Hold<Domain> {
        &self.domain
    }

    /// Implements `fi_cq_read` and `fi_cq_readfrom`.
    ///
    /// # Safety
    /// The domain was opened by the functions for `D`. `out` and `src` are the client's buffers for `count` entries.
    #[inline(never)]
    unsafe fn read_some<D: Device>(&self, out: *mut c_void, count: usize, src: *mut sys::fi_addr_t) -> isize {
        if self.len.load(Ordering::Relaxed) == 0 || count == 0 {
            loop {
                // SAFETY: the caller's promise.
                let buffer = unsafe { ReadBuffer::new(self.format, out.cast(), count, src) };
                let mut reading = Reading { cq: self, buffer };
                // SAFETY: the caller's promise.
                let done = unsafe { self.sources.progress_on::<D>(Some(&mut reading)) };
                let taken = count - reading.buffer.room();
                if taken > 0 {
                    self.sources.note_read();
                    return taken.cast_signed();
                }
                if self.len.load(Ordering::Relaxed) > 0 {
                    break;
                }
                if !self.sources.note_empty_read(done, || self.waker()) {
                    return Errno::AGAIN.size();
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.take(out, count, src) }
    }

    /// Takes entries without progress.
    ///
    /// # Safety
    /// `out` and `src` are the client's buffers for `count` entries.
    #[inline(always)]
    unsafe fn take(&self, out: *mut c_void, count: usize, src: *mut sys::fi_addr_t) -> isize {
        let mut ring = self.ring.lock();
        // SAFETY: the caller's promise.
        let taken = unsafe { ring.take(self.format, out.cast(), count, src) };
        self.len.store(ring.len(), Ordering::Relaxed);
        drop(ring);
        match taken {
            // `taken` entries fit the client's buffer, whose length is below `isize::MAX`.
            Ok(taken) => {
                self.sources.note_read();
                taken.cast_signed()
            }
            Err(TakeError::Empty) => Errno::AGAIN.size(),
            Err(TakeError::Failed) => Errno::AVAIL.size(),
        }
    }

    /// Implements `fi_cq_sread` and `fi_cq_sreadfrom`.
    ///
    /// # Safety
    /// As for `read_some`.
    unsafe fn read_blocking<D: Device>(
        &self,
        out: *mut c_void,
        count: usize,
        src: *mut sys::fi_addr_t,
        cond: *const c_void,
        timeout_ms: c_int,
    ) -> isize {
        if self.wait == WaitKind::None {
            return Errno::INVAL.size();
        }
        // The pointer itself is the threshold.
        let wanted = if self.threshold { cond.addr().clamp(1, count.max(1)) } else { 1 };
        let deadline = Deadline::after_ms(timeout_ms);
        // SAFETY: the caller's promise.
        let progress = |sources: &Sources| unsafe { sources.progress_on::<D>(None) };
        loop {
            let waited = poll::wait(&Reader { cq: self, wanted, progress }, deadline);
            if waited != Waited::Ready && self.len.load(Ordering::Relaxed) == 0 {
                return Errno::AGAIN.size();
            }
            // SAFETY: the caller's promise.
            let taken = unsafe { self.take(out, count, src) };
            if waited != Waited::Ready || taken != Errno::AGAIN.size() {
                return taken;
            }
            // Another reader has taken the entries.
        }
    }

    /// Takes the next entry, if it is an error entry.
    ///
    /// # Safety
    /// `out` is the client's error entry.
    unsafe fn read_error(&self, out: *mut sys::fi_cq_err_entry) -> isize {
        if out.is_null() {
            return Errno::INVAL.size();
        }
        let mut ring = self.ring.lock();
        let Some((entry, failure)) = ring.take_failed() else { return Errno::AGAIN.size() };
        // SAFETY: the client's error entry, in the layout of the API version that it requested.
        unsafe { ring::write_error(out, self.api, &entry, failure) };
        self.len.store(ring.len(), Ordering::Relaxed);
        1
    }

    /// Wakes a blocked reader.
    fn signal(&self) -> Result<(), Errno> {
        if self.wait == WaitKind::None {
            return Err(Errno::INVAL);
        }
        self.signal.raise(|| {
            self.waker().inspect(|waker| waker.notify());
        });
        Ok(())
    }
}

impl Member for Cq {
    fn progress(&self) -> usize {
        self.sources.progress()
    }

    fn has_news(&self) -> bool {
        !self.is_empty() || self.signal.is_raised()
    }

    fn clear_news(&self) {
        // If there are entries, the notification was for them.
        if self.is_empty() {
            self.signal.take();
        }
    }

    fn park(&self) -> Result<(), Errno> {
        let waker = self.waker().ok_or(Errno::INVAL)?;
        self.sources.trywait(&Reader { cq: self, wanted: 1, progress: Sources::progress }, waker)
    }
}

/// A reader that waits for `wanted` entries.
struct Reader<'a, P> {
    cq: &'a Cq,
    wanted: usize,
    /// Makes a round of progress.
    progress: P,
}

impl<P> Reader<'_, P> {
    fn satisfied(&self, ring: &Ring) -> bool {
        ring.len() >= self.wanted || ring.has_failures()
    }
}

impl<P: Fn(&Sources) -> usize> Waitable for Reader<'_, P> {
    fn sources(&self) -> &Sources {
        &self.cq.sources
    }

    fn progress(&self) -> usize {
        (self.progress)(&self.cq.sources)
    }

    fn waker(&self) -> Option<&Waker> {
        if self.cq.wait == WaitKind::Yield { None } else { self.cq.waker() }
    }

    fn ready(&self) -> bool {
        self.cq.len.load(Ordering::Relaxed) > 0 && self.satisfied(&self.cq.ring.lock())
    }

    fn take_interrupt(&self) -> bool {
        self.cq.signal.take()
    }

    fn arm(&self) -> bool {
        let mut ring = self.cq.ring.lock();
        if self.satisfied(&ring) {
            return false;
        }
        // Clients that sleep outside wait for the first entry. If there is one, they may not have seen the
        // notification yet.
        let wanted = if self.wanted > 1 && self.cq.sources.has_outside_sleepers() { 1 } else { self.wanted };
        if ring.len() >= wanted {
            drop(ring);
            poll::yield_to_notified();
            return false;
        }
        let waker = self.cq.waker();
        let drain = || _ = waker.inspect(|waker| waker.drain());
        let arm = || ring.wake_at = ring.wake_at.min(wanted);
        self.cq.signal.arm(drain, arm, || _ = waker.inspect(|waker| waker.notify()))
    }
}

const FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close), control: Some(control), ..noop::FID };

/// The operations, with the function that later versions of libfabric call without a check of the table's
/// size.
#[repr(C)]
struct CqOps {
    base: sys::fi_ops_cq,
    export_xpu: unsafe extern "C" fn(*mut sys::fid_cq, u64, *mut c_void) -> c_int,
}

/// The operations of a queue whose endpoints are on devices of type `D`.
pub(crate) const fn ops<D: Device>() -> &'static sys::fi_ops_cq {
    &const { &CqOps { base: base::<D>(), export_xpu } }.base
}

const fn base<D: Device>() -> sys::fi_ops_cq {
    sys::fi_ops_cq {
        size: size_of::<CqOps>(),
        read: Some(read::<D>),
        readfrom: Some(readfrom::<D>),
        readerr: Some(readerr),
        sread: Some(sread::<D>),
        sreadfrom: Some(sreadfrom::<D>),
        signal: Some(signal),
        strerror: Some(strerror),
    }
}

/// The operations of a queue that is recorded.
pub(crate) const fn recorded_ops<D: Device>() -> &'static sys::fi_ops_cq {
    &const { &CqOps { base: recorded::base::<D>(), export_xpu } }.base
}

/// The queue behind the client's pointer. As in every provider, the data path makes no check.
///
/// # Safety
/// `cq` came from `open` and is not closed.
#[inline]
unsafe fn queue<'a>(cq: *mut sys::fid_cq) -> &'a Cq {
    // SAFETY: only objects of this type carry this file's operations.
    unsafe { &*cq.cast::<Cq>() }
}

unsafe extern "C" fn read<D: Device>(cq: *mut sys::fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: a live queue of the client.
    let cq = unsafe { queue(cq) };
    // SAFETY: the client's buffer for `count` entries.
    unsafe { cq.read_some::<D>(buf, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom<D: Device>(
    cq: *mut sys::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut sys::fi_addr_t,
) -> isize {
    // SAFETY: a live queue of the client.
    let cq = unsafe { queue(cq) };
    // SAFETY: the client's buffers for `count` entries and addresses.
    unsafe { cq.read_some::<D>(buf, count, src_addr) }
}

unsafe extern "C" fn readerr(cq: *mut sys::fid_cq, buf: *mut sys::fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: a live queue of the client.
    let cq = unsafe { queue(cq) };
    // SAFETY: the client's error entry.
    unsafe { cq.read_error(buf) }
}

unsafe extern "C" fn sread<D: Device>(
    cq: *mut sys::fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: a live queue of the client.
    let cq = unsafe { queue(cq) };
    // SAFETY: the client's buffer for `count` entries.
    unsafe { cq.read_blocking::<D>(buf, count, std::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom<D: Device>(
    cq: *mut sys::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut sys::fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: a live queue of the client.
    let cq = unsafe { queue(cq) };
    // SAFETY: the client's buffers for `count` entries and addresses.
    unsafe { cq.read_blocking::<D>(buf, count, src_addr, cond, timeout) }
}

unsafe extern "C" fn signal(cq: *mut sys::fid_cq) -> c_int {
    object::guard("fi_cq_signal", || {
        // SAFETY: a queue of the client.
        unsafe { object::borrow::<Cq>(cq) }?.signal().map(|()| 0)
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut sys::fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = fault::text(prov_errno);
    if !buf.is_null() && len > 0 {
        let bytes = text.to_bytes();
        let fits = bytes.len().min(len - 1);
        // SAFETY: the client's buffer has `len > fits` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buf, fits) };
        let end = buf.wrapping_add(fits);
        // SAFETY: as above; this byte is at most the last one.
        unsafe { end.write(0) };
    }
    text.as_ptr()
}

unsafe extern "C" fn export_xpu(_cq: *mut sys::fid_cq, _flags: u64, _xpu: *mut c_void) -> c_int {
    Errno::NOSYS.code()
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(cq)", || {
        // SAFETY: the client closes its queue.
        unsafe { object::close::<Cq>(fid) }.map(|()| 0)
    })
}

unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(cq)", || {
        // SAFETY: a queue of the client.
        let cq = unsafe { object::borrow_fid::<Cq>(fid) }?;
        // SAFETY: the client's argument for this command.
        unsafe { cq.wait.control(cq.waker(), command, arg) }.map(|()| 0)
    })
}
