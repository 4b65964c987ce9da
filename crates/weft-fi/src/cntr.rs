//! Completion counters (fi_cntr(3)).
//!
//! Place in the data flow: endpoints and their regions [`Cntr::record`] completed operations. `fi_cntr_read`
//! and `fi_cntr_wait` check the values after a round of progress on the bound endpoints. A counter may
//! trigger operations ([`crate::trigger`]): the thread that raises it to a threshold learns this from the
//! result. It has the operations performed once it holds no lock.
//!
//! Invariants: each operation is recorded once, as a success or as an error. Values are atomics ([`values`]).
//! Neither a read nor a raise without waiters takes a lock.

mod values;

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use weft_engine::program::{Counter, Level};
use weft_fi_sys as sys;
use weft_nic::{Device, NicError};

use crate::cntr::values::CounterValues;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::domain::Domain;
use crate::sleep::poll::{self, Sources, Waitable, Waited};
use crate::sleep::wait::{Deadline, LazyWaker, WaitKind, Waker};
use crate::sleep::waitset::{self, Member, WaitSet};

/// Imports of the file that the model checker also compiles.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Empty: sequentially consistent accesses are ordered without it.
    #[inline(always)]
    pub(super) fn ordered() {}
}

/// A counter.
#[repr(C)]
pub(crate) struct Cntr {
    head: Head<sys::fid_cntr>,
    values: CounterValues,
    /// Whether the counter counts bytes instead of operations.
    bytes: bool,
    /// The amount by which the client itself has raised the value, wrapping.
    by_client: AtomicU64,
    /// The number of times that the errors were set or lowered, or that deferred work set the value. The
    /// values may since have returned to earlier ones.
    resets: AtomicU64,
    wait: WaitKind,
    waker: LazyWaker,
    set: Option<Hold<WaitSet>>,
    /// The values that waiting threads have seen. Locked while a value is set.
    seen: Mutex<SeenValues>,
    sources: Sources,
    uses: Uses,
    /// The last field, so that all others are dropped before the domain.
    domain: Hold<Domain>,
}

// SAFETY: `repr(C)`, the first field is a `Head` (an `UnsafeCell`) of the fid, whose class is set in `open`.
unsafe impl Object for Cntr {
    type Fid = sys::fid_cntr;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_CNTR];

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// Implements `fi_cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_cntr_attr,
    cntr: *mut *mut sys::fid_cntr,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_cntr_open", || {
        let place = object::place(cntr)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: null, or the client's attributes. Only fields that every version has are read.
        let attr = unsafe { attr.as_ref() };
        let counter = open_counter(domain, attr, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(counter, place) })
    })
}

fn open_counter(
    domain: Hold<Domain>,
    attr: Option<&sys::fi_cntr_attr>,
    context: *mut c_void,
) -> Result<Arc<Cntr>, Errno> {
    let wait = WaitKind::from_attr(attr.map_or(sys::FI_WAIT_NONE, |attr| attr.wait_obj))?;
    // SAFETY: the client's wait set, if the attributes name one.
    let set =
        unsafe { waitset::named(wait, attr.map_or(std::ptr::null_mut(), |attr| attr.wait_set), domain.fabric()) }?;
    let events = attr.map_or(sys::FI_CNTR_EVENTS_COMP, |attr| attr.events);
    if events != sys::FI_CNTR_EVENTS_COMP && events != sys::v2::FI_CNTR_EVENTS_BYTES {
        return Err(Errno::INVAL);
    }
    if attr.is_some_and(|attr| attr.flags != 0) {
        return Err(Errno::BADFLAGS);
    }
    let head = sys::fid_cntr {
        fid: object::new_fid(sys::FI_CLASS_CNTR, context, &FID_OPS),
        ops: object::table(domain.tables().cntr),
    };
    let counter = Cntr {
        head: Head::new(head),
        values: CounterValues::new(),
        bytes: events == sys::v2::FI_CNTR_EVENTS_BYTES,
        by_client: AtomicU64::new(0),
        resets: AtomicU64::new(0),
        wait,
        waker: LazyWaker::default(),
        set,
        seen: Mutex::default(),
        sources: domain.new_sources(),
        uses: Uses::new(),
        domain,
    };
    if wait.needs_waker() {
        counter.waker.make(|| counter.new_waker())?;
    }
    let counter = Arc::new(counter);
    waitset::join(counter.set.as_ref(), &counter);
    Ok(counter)
}

/// The client's threads that have seen the current values.
#[derive(Default)]
struct SeenValues {
    /// Successes and errors.
    values: (u64, u64),
    /// `None`: all threads know the initial values.
    threads: Option<SmallVec<[usize; 2]>>,
}

impl SeenValues {
    fn has_seen(&self, thread: usize, values: (u64, u64)) -> bool {
        self.values == values && self.threads.as_ref().is_none_or(|threads| threads.contains(&thread))
    }

    fn record(&mut self, thread: usize, values: (u64, u64)) {
        if self.values != values {
            *self = Self { values, threads: Some(SmallVec::new()) };
        }
        self.threads.iter_mut().filter(|threads| !threads.contains(&thread)).for_each(|threads| threads.push(thread));
    }

    /// A value was set. The same values are a change when they occur again.
    fn reset(&mut self) {
        self.threads = Some(SmallVec::new());
    }
}

/// The number of counted events without the client's own additions and settings, the errors, and the number
/// of resets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes(u64, u64, u64);

/// Whether the client's addition is a subtraction.
fn is_less(amount: u64) -> bool {
    amount.cast_signed() < 0
}

impl Cntr {
    /// Records a completed operation of `bytes` bytes. True: programs became ready, as for [`Cntr::add`].
    #[inline]
    #[must_use]
    pub(crate) fn record(&self, bytes: usize, failed: bool) -> bool {
        if failed { self.add_errors(1) } else { self.add(if self.bytes { bytes as u64 } else { 1 }) }
    }

    /// Makes progress for a reader. It is unknown whether the reader finds the value that it waits for.
    ///
    /// # Safety
    /// The domain was opened by the functions for `D`.
    #[inline]
    unsafe fn poll<D: Device>(&self) {
        // SAFETY: the caller's promise.
        let done = unsafe { self.sources.progress_on::<D>(None) };
        if self.sources.note_empty_read(done, || self.waker()) {
            // SAFETY: as above.
            unsafe { self.sources.progress_on::<D>(None) };
        }
    }

    /// The endpoints on which reads and waits make progress.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The value, without progress.
    pub(crate) fn value(&self) -> u64 {
        self.values.value()
    }

    /// The error count, without progress.
    pub(crate) fn errors(&self) -> u64 {
        self.values.errors()
    }

    /// The changes so far that the client did not make itself.
    pub(crate) fn changes(&self) -> Changes {
        // Read before the values: a reset after this is seen by the next call.
        let resets = self.resets.load(Ordering::Acquire);
        Changes(self.value().wrapping_sub(self.by_client.load(Ordering::Relaxed)), self.errors(), resets)
    }

    /// Adds successes. True: programs became ready, and the caller must run the domain's queue as soon as it
    /// holds no lock.
    #[inline]
    #[must_use]
    pub(crate) fn add(&self, amount: u64) -> bool {
        self.values.add(amount) && self.notify_due()
    }

    /// Sets the value. True: as for [`Cntr::add`].
    #[must_use]
    pub(crate) fn set(&self, value: u64) -> bool {
        self.change(|notify_programs| self.values.set(value, notify_programs))
    }

    /// Sets the value on behalf of deferred work, which the client sees as a change.
    #[must_use]
    pub(crate) fn set_by_work(&self, value: u64) -> bool {
        let programs = self.set(value);
        self.resets.fetch_add(1, Ordering::Release);
        programs
    }

    /// Adds successes on behalf of the client; the amount may be negative. True: as for [`Cntr::add`].
    fn add_by_client(&self, amount: u64) -> bool {
        if is_less(amount) { self.set_back(|| self.values.add(amount)) } else { self.add(amount) }
    }

    /// Adds successes on behalf of deferred work, which the client sees as a change.
    #[must_use]
    pub(crate) fn add_by_work(&self, amount: u64) -> bool {
        let programs = self.add_by_client(amount);
        if is_less(amount) {
            self.resets.fetch_add(1, Ordering::Release);
        }
        programs
    }

    fn add_errors(&self, amount: u64) -> bool {
        self.values.add_errors(amount) && self.notify_due()
    }

    fn add_errors_by_client(&self, amount: u64) -> bool {
        if !is_less(amount) {
            return self.add_errors(amount);
        }
        let programs = self.set_back(|| self.values.add_errors(amount));
        self.resets.fetch_add(1, Ordering::Release);
        programs
    }

    fn set_errors(&self, value: u64) -> bool {
        let programs = self.change(|notify_programs| self.values.set_errors(value, notify_programs));
        self.resets.fetch_add(1, Ordering::Release);
        programs
    }

    /// Sets one of the values. A thread that goes to sleep meanwhile arms first and then checks the values
    /// that it has seen, which waits for this lock. Either this function notifies the thread, or the thread
    /// sees the change.
    fn change(&self, set: impl FnOnce(&mut dyn FnMut()) -> bool) -> bool {
        let mut freed = false;
        let called = {
            let mut seen = self.seen.lock();
            let called = set(&mut || freed |= self.notify_programs());
            seen.reset();
            called
        };
        (called && self.notify_due()) | freed
    }

    /// Performs an addition that lowers one of the values, with the same notifications as a lower setting.
    #[cold]
    fn set_back(&self, add: impl FnOnce() -> bool) -> bool {
        self.change(|notify_programs| {
            notify_programs();
            add();
            // Waiters for the next change have a threshold above the old number.
            true
        })
    }

    /// Notifies waiters of a change. True: programs became ready.
    #[cold]
    fn notify_due(&self) -> bool {
        let due = self.values.due();
        if due.sleepers {
            self.notify();
        }
        due.programs && self.notify_programs()
    }

    /// Moves waiting programs whose condition holds to the ready ones. True: as for [`Cntr::add`].
    fn notify_programs(&self) -> bool {
        self.domain.work().look(self.id())
    }

    /// Runs the programs that became ready by the client's own change of the counter.
    fn changed(&self, programs: bool) -> c_int {
        if programs {
            self.domain.work().run();
        }
        0
    }

    /// Wakes all sleeping waiters, which then check the values.
    pub(crate) fn notify(&self) {
        self.sources.notify(self.waker.made());
    }

    /// The domain.
    pub(crate) fn domain(&self) -> &Hold<Domain> {
        &self.domain
    }

    /// Identifies the counter among the open ones.
    pub(crate) fn id(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    /// The object on which waiters sleep, made on first use.
    pub(crate) fn waker(&self) -> Option<&Waker> {
        self.waker.get(|| self.new_waker())
    }

    fn new_waker(&self) -> Result<Waker, NicError> {
        waitset::new_waker(self.wait, self.set.as_ref())
    }

    /// Implements `fi_cntr_wait`.
    ///
    /// # Safety
    /// The domain was opened by the functions for `D`.
    unsafe fn wait_for<D: Device>(&self, threshold: u64, timeout_ms: c_int) -> Result<(), Errno> {
        let errors = self.errors();
        let ready = || self.value() >= threshold || self.errors() != errors;
        // SAFETY: the caller's promise.
        let progress = |sources: &Sources| unsafe { sources.progress_on::<D>(None) };
        let waiter = Waiter { cntr: self, threshold, ready, progress };
        match poll::wait(&waiter, Deadline::after_ms(timeout_ms)) {
            // Without an error the threshold was reached, even if the client has set another value since.
            Waited::Ready if self.value() >= threshold || self.errors() == errors => Ok(()),
            Waited::Ready => Err(Errno::AVAIL),
            Waited::TimedOut => Err(Errno::TIMEDOUT),
            Waited::Interrupted => Err(Errno::INTR),
        }
    }

    /// Both values, without progress.
    fn values(&self) -> (u64, u64) {
        (self.value(), self.errors())
    }
}

impl Member for Cntr {
    fn progress(&self) -> usize {
        self.sources.progress()
    }

    fn has_news(&self) -> bool {
        !self.seen.lock().has_seen(poll::this_thread(), self.values())
    }

    fn clear_news(&self) {
        self.seen.lock().record(poll::this_thread(), self.values());
    }

    /// The next change of the values wakes the clients that poll the descriptor. Returns -FI_EAGAIN if the
    /// values have changed since the calling thread last saw them. The state is per thread: one thread's
    /// having seen a change says nothing about another.
    fn park(&self) -> Result<(), Errno> {
        let waker = self.waker().ok_or(Errno::INVAL)?;
        let waiter = Waiter {
            cntr: self,
            threshold: self.value().saturating_add(1),
            ready: || self.has_news(),
            progress: Sources::progress,
        };
        self.sources.trywait(&waiter, waker)
    }
}

/// A thread that waits until `ready` returns true: for a threshold, or for a change of the errors.
struct Waiter<'a, R, P> {
    cntr: &'a Cntr,
    threshold: u64,
    ready: R,
    /// Makes a round of progress.
    progress: P,
}

impl<R: Fn() -> bool, P: Fn(&Sources) -> usize> Waitable for Waiter<'_, R, P> {
    fn sources(&self) -> &Sources {
        &self.cntr.sources
    }

    fn progress(&self) -> usize {
        (self.progress)(&self.cntr.sources)
    }

    fn waker(&self) -> Option<&Waker> {
        if self.cntr.wait == WaitKind::Yield { None } else { self.cntr.waker() }
    }

    fn ready(&self) -> bool {
        (self.ready)()
    }

    fn take_interrupt(&self) -> bool {
        false
    }

    fn arm(&self) -> bool {
        let arm = || self.cntr.values.arm_sleeper(self.threshold);
        self.cntr.sources.arm_threshold(self.cntr.waker(), arm, || self.ready())
    }
}

/// For the programs that wait for it, a counter is its own handle, which keeps it open.
impl Counter for Hold<Cntr> {
    fn id(&self) -> u64 {
        Cntr::id(self)
    }

    fn arm(&self, at: u64) -> Level {
        let (successes, errors) = self.values.arm_programs(at);
        Level { successes, errors }
    }

    fn disarm(&self) {
        self.values.disarm_programs();
    }
}

const FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close), control: Some(control), ..noop::FID };

/// The operations, with the function that later versions of libfabric call without a check of the table's
/// size.
#[repr(C)]
struct CntrOps {
    base: sys::fi_ops_cntr,
    export_xpu: unsafe extern "C" fn(*mut sys::fid_cntr, u64, *mut c_void) -> c_int,
}

/// The operations of a counter whose endpoints are on devices of type `D`.
pub(crate) const fn ops<D: Device>() -> &'static sys::fi_ops_cntr {
    &const {
        &CntrOps {
            base: sys::fi_ops_cntr {
                size: size_of::<CntrOps>(),
                read: Some(read::<D>),
                readerr: Some(readerr::<D>),
                add: Some(add),
                set: Some(set),
                wait: Some(wait::<D>),
                adderr: Some(adderr),
                seterr: Some(seterr),
            },
            export_xpu,
        }
    }
    .base
}

/// The counter behind the client's pointer. As in every provider, the data path makes no check.
///
/// # Safety
/// `cntr` came from `open` and is not closed.
#[inline]
unsafe fn counter<'a>(cntr: *mut sys::fid_cntr) -> &'a Cntr {
    // SAFETY: only objects of this type carry this file's operations.
    unsafe { &*cntr.cast::<Cntr>() }
}

unsafe extern "C" fn read<D: Device>(cntr: *mut sys::fid_cntr) -> u64 {
    // SAFETY: a live counter of the client.
    let cntr = unsafe { counter(cntr) };
    // SAFETY: the domain of a counter with this function was opened by those for `D`.
    unsafe { cntr.poll::<D>() };
    cntr.value()
}

unsafe extern "C" fn readerr<D: Device>(cntr: *mut sys::fid_cntr) -> u64 {
    // SAFETY: a live counter of the client.
    let cntr = unsafe { counter(cntr) };
    // SAFETY: the domain of a counter with this function was opened by those for `D`.
    unsafe { cntr.poll::<D>() };
    cntr.errors()
}

unsafe extern "C" fn add(cntr: *mut sys::fid_cntr, value: u64) -> c_int {
    // SAFETY: a live counter of the client.
    let cntr = unsafe { counter(cntr) };
    cntr.by_client.fetch_add(value, Ordering::Relaxed);
    cntr.changed(cntr.add_by_client(value))
}

unsafe extern "C" fn set(cntr: *mut sys::fid_cntr, value: u64) -> c_int {
    // SAFETY: a live counter of the client.
    let cntr = unsafe { counter(cntr) };
    cntr.by_client.fetch_add(value.wrapping_sub(cntr.value()), Ordering::Relaxed);
    cntr.changed(cntr.set(value))
}

unsafe extern "C" fn adderr(cntr: *mut sys::fid_cntr, value: u64) -> c_int {
    // SAFETY: a live counter of the client.
    let cntr = unsafe { counter(cntr) };
    cntr.changed(cntr.add_errors_by_client(value))
}

unsafe extern "C" fn seterr(cntr: *mut sys::fid_cntr, value: u64) -> c_int {
    // SAFETY: a live counter of the client.
    let cntr = unsafe { counter(cntr) };
    cntr.changed(cntr.set_errors(value))
}

unsafe extern "C" fn wait<D: Device>(cntr: *mut sys::fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    object::guard("fi_cntr_wait", || {
        // SAFETY: a counter of the client.
        let cntr = unsafe { object::borrow::<Cntr>(cntr) }?;
        // SAFETY: the domain of a counter with this function was opened by those for `D`.
        unsafe { cntr.wait_for::<D>(threshold, timeout) }.map(|()| 0)
    })
}

unsafe extern "C" fn export_xpu(_cntr: *mut sys::fid_cntr, _flags: u64, _xpu: *mut c_void) -> c_int {
    Errno::NOSYS.code()
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(cntr)", || {
        // SAFETY: the client closes its counter.
        unsafe { object::close::<Cntr>(fid) }.map(|()| 0)
    })
}

unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(cntr)", || {
        // SAFETY: a counter of the client.
        let cntr = unsafe { object::borrow_fid::<Cntr>(fid) }?;
        match command.cast_unsigned() {
            // The operations of a counter have no flags.
            sys::FI_GETOPSFLAG => {
                let flags = std::ptr::NonNull::new(arg.cast::<u64>()).ok_or(Errno::INVAL)?;
                // SAFETY: the client's place for the flags.
                unsafe { flags.write(0) };
                Ok(0)
            }
            // SAFETY: the client's argument for this command.
            _ => unsafe { cntr.wait.control(cntr.waker(), command, arg) }.map(|()| 0),
        }
    })
}
