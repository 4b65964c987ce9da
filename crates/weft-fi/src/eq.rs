//! Event queues (fi_eq(3)): asynchronous results of control operations.
//!
//! Place in the data flow: four sources report here. Address vectors opened with FI_EVENT and domains bound
//! with FI_REG_MR report completed calls. Connections report their changes ([`crate::endpoint::connection`],
//! [`crate::pep`]). Clients add events by `fi_eq_write`. No data path is involved, so one mutex is enough. A
//! read makes progress on the engines that generate events ([`drivers`]).
//!
//! Invariants: events leave in the order of their arrival. While an error event is the next one, `fi_eq_read`
//! returns -FI_EAVAIL, and only `fi_eq_readerr` takes it. A peer's connection data is truncated to the
//! reader's buffer. Any other event is taken whole or not at all (-FI_ETOOSMALL). The queue is bounded: a
//! client's write beyond the bound returns -FI_EAGAIN. Events of the provider are always accepted, because no
//! caller could be refused. There is one for each call of the client.

pub(crate) mod drivers;

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use weft_engine::api::Fault;
use weft_engine::nic::LinkError;
use weft_fi_sys as sys;

use crate::abi::errno::{self, Errno};
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::cq::fault;
use crate::eq::drivers::{Driver, Drivers};
use crate::fabric::Fabric;
use crate::host::Info;
use crate::sleep::poll::{ROUNDS_PER_CLOCK, YIELDS};
use crate::sleep::wait::{Deadline, WaitKind, Waker, Woken};
use crate::sleep::waitset::{self, Member, WaitSet};

/// Size of a queue if the client requests none.
const DEFAULT_EVENTS: usize = 1024;
/// The first API version in which a client may provide the buffer for the data of an error.
const ERR_DATA_COPIED: u32 = sys::version(1, 5);
/// The longest event that a client may write, in bytes.
const EVENT_LIMIT_BYTES: usize = 4096;

/// An event queue.
#[repr(C)]
pub(crate) struct Eq {
    head: Head<sys::fid_eq>,
    events: Mutex<VecDeque<Event>>,
    /// The data of the error that was read last. The client may access it until it reads the next error.
    err_data: Mutex<Box<[u8]>>,
    drivers: Drivers,
    size: usize,
    wait: WaitKind,
    waker: Option<Waker>,
    set: Option<Hold<WaitSet>>,
    /// Whether the client may write events.
    writable: bool,
    uses: Uses,
    fabric: Hold<Fabric>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open_queue`.
unsafe impl Object for Eq {
    type Fid = sys::fid_eq;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_EQ];

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

enum Event {
    /// The event number and the event's bytes, in the layout for `fi_eq_read`.
    Success(u32, Box<[u8]>),
    /// The event number, the structure and the bytes of a connection event: a `fi_eq_cm_entry` and the peer's
    /// data. With FI_CONNREQ the entry contains the address of the structure, whose ownership passes to the
    /// reader.
    Connection(u32, Option<Info>, Box<[u8]>),
    Failure(Failure),
}

impl Event {
    /// The event number, the bytes, and the minimum length of a reader's buffer.
    fn success(&self) -> Option<(u32, &[u8], usize)> {
        match self {
            Self::Success(number, bytes) => Some((*number, bytes, bytes.len())),
            // fi_eq(3): "The amount of data will be limited to the buffer space that the application provides".
            Self::Connection(number, _, bytes) => Some((*number, bytes, size_of::<sys::fi_eq_cm_entry>())),
            Self::Failure(_) => None,
        }
    }
}

/// In the `prov_errno` of an error event: the other bits are the number of a [`fault`]. Otherwise it is the system's.
const OF_LINKS: c_int = 1 << 24;

/// An error event.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The address of the object concerned.
    pub(crate) fid: usize,
    /// The operation's context as a number.
    pub(crate) context: usize,
    /// The data of the event; for address vectors, the index of the address.
    pub(crate) data: u64,
    pub(crate) errno: Errno,
    /// The reason of a failed connection, which is more specific than `errno`.
    pub(crate) why: Option<LinkError>,
    /// The additional data (`err_data`): the data that a peer sent with its rejection.
    pub(crate) more: Box<[u8]>,
}

/// Implements `fi_eq_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    attr: *mut sys::fi_eq_attr,
    eq: *mut *mut sys::fid_eq,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_eq_open", || {
        let place = object::place(eq)?;
        // SAFETY: the client's fabric.
        let fabric = unsafe { Hold::<Fabric>::of(fabric) }?;
        // SAFETY: null, or the client's attributes.
        let attr = unsafe { attr.as_ref() };
        let queue = open_queue(fabric, attr, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(queue, place) })
    })
}

fn open_queue(fabric: Hold<Fabric>, attr: Option<&sys::fi_eq_attr>, context: *mut c_void) -> Result<Arc<Eq>, Errno> {
    let wait = WaitKind::from_attr(attr.map_or(sys::FI_WAIT_UNSPEC, |attr| attr.wait_obj))?;
    // SAFETY: the client's wait set, if the attributes name one.
    let set = unsafe { waitset::named(wait, attr.map_or(std::ptr::null_mut(), |attr| attr.wait_set), &fabric) }?;
    let flags = attr.map_or(0, |attr| attr.flags);
    if flags & !(sys::FI_WRITE | sys::FI_AFFINITY) != 0 {
        return Err(Errno::BADFLAGS);
    }
    let size = attr.map_or(0, |attr| attr.size);
    let waker = match wait {
        WaitKind::None | WaitKind::Yield => None,
        kind => {
            let made = waitset::new_waker(kind, set.as_ref());
            Some(made.map_err(|error| errno::log_error("fi_eq_open", &error))?)
        }
    };
    let fid = object::new_fid(sys::FI_CLASS_EQ, context, &FID_OPS);
    let queue = Arc::new(Eq {
        head: Head::new(sys::fid_eq { fid, ops: object::table(&EQ_OPS) }),
        events: Mutex::new(VecDeque::new()),
        err_data: Mutex::default(),
        drivers: Drivers::new(),
        size: if size == 0 { DEFAULT_EVENTS } else { size },
        wait,
        waker,
        set,
        writable: flags & sys::FI_WRITE != 0,
        uses: Uses::new(),
        fabric,
    });
    waitset::join(queue.set.as_ref(), &queue);
    Ok(queue)
}

impl Eq {
    /// Reports a success as an event with the layout `fi_eq_entry`.
    pub(crate) fn report(&self, event: u32, fid: usize, context: usize, data: u64) {
        let mut bytes = Vec::with_capacity(size_of::<sys::fi_eq_entry>());
        bytes.extend_from_slice(&fid.to_ne_bytes());
        bytes.extend_from_slice(&context.to_ne_bytes());
        bytes.extend_from_slice(&data.to_ne_bytes());
        self.push(Event::Success(event, bytes.into_boxed_slice()));
    }

    /// Reports the state of a connection as an event with the layout `fi_eq_cm_entry` and the peer's data.
    pub(crate) fn report_connection(&self, event: u32, fid: usize, data: &[u8]) {
        self.push(Event::Connection(event, None, connection_entry(fid, 0, data)));
    }

    /// Reports a connection request at the passive endpoint `fid`.
    pub(crate) fn report_request(&self, fid: usize, info: Info, data: &[u8]) {
        let bytes = connection_entry(fid, info.as_ptr().expose_provenance(), data);
        self.push(Event::Connection(sys::FI_CONNREQ, Some(info), bytes));
    }

    /// The engines on which reads make progress.
    pub(crate) const fn drivers(&self) -> &Drivers {
        &self.drivers
    }

    /// Adds an engine on which reads make progress. Sleepers have not parked it yet, so they are woken to
    /// check again.
    pub(crate) fn drive(&self, driver: Arc<dyn Driver>) {
        self.drivers.add(driver);
        self.notify_waiter();
    }

    /// The fabric of the queue.
    pub(crate) const fn fabric(&self) -> &Hold<Fabric> {
        &self.fabric
    }

    /// Reports an error.
    pub(crate) fn report_failure(&self, failure: Failure) {
        self.push(Event::Failure(failure));
    }

    fn push(&self, event: Event) {
        self.events.lock().push_back(event);
        self.notify_waiter();
    }

    /// Wakes all sleepers, which then check the queue.
    fn notify_waiter(&self) {
        if let Some(waker) = &self.waker {
            waker.notify();
        }
    }

    /// Wakes all sleepers after a change of the engines that a sleeper, or a thread about to sleep, did not
    /// expect.
    pub(crate) fn notify(&self) {
        self.drivers.notify();
        self.notify_waiter();
    }

    /// Takes the next event, or with `peek` only reads it. Returns its number and the number of bytes stored
    /// at `buf`.
    ///
    /// # Safety
    /// `buf` is valid for `len` bytes.
    unsafe fn take(&self, buf: *mut c_void, len: usize, peek: bool) -> Result<(u32, usize), Errno> {
        let mut events = self.events.lock();
        let (number, bytes, needed) = events.front().ok_or(Errno::AGAIN)?.success().ok_or(Errno::AVAIL)?;
        if needed > len {
            return Err(Errno::TOOSMALL);
        }
        let stored = bytes.len().min(len);
        if stored > 0 {
            // SAFETY: the caller's promise, and `stored` is at most `len`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast::<u8>(), stored) };
        }
        if !peek && let Some(Event::Connection(_, Some(info), _)) = events.pop_front() {
            info.into_raw();
        }
        Ok((number, stored))
    }

    /// Waits until there is an event, the deadline has passed, or a signal interrupts the sleep.
    fn wait(&self, deadline: &Deadline) -> Result<(), Errno> {
        let (mut fruitless, mut fruitful) = (0, 0_u32);
        while self.is_empty() {
            let moved = self.drivers.progress() > 0;
            (fruitless, fruitful) = if moved { (0, fruitful.wrapping_add(1)) } else { (fruitless + 1, fruitful) };
            if (!moved || fruitful.is_multiple_of(ROUNDS_PER_CLOCK)) && deadline.over() {
                return if self.is_empty() { Err(Errno::AGAIN) } else { Ok(()) };
            }
            if moved {
                continue;
            }
            match self.waker.as_ref().filter(|_| fruitless > YIELDS) {
                None => std::thread::yield_now(),
                Some(waker) => {
                    if self.drivers.sleep(waker, deadline, || self.is_empty()) == Woken::Signal {
                        // fi_eq(3): a thread that is interrupted by a signal returns as if the time were
                        // over.
                        return if self.is_empty() { Err(Errno::AGAIN) } else { Ok(()) };
                    }
                }
            }
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.events.lock().is_empty()
    }
}

impl Member for Eq {
    fn progress(&self) -> usize {
        self.drivers.progress()
    }

    fn has_news(&self) -> bool {
        !self.is_empty()
    }

    fn clear_news(&self) {}

    fn park(&self) -> Result<(), Errno> {
        let waker = self.waker.as_ref().ok_or(Errno::INVAL)?;
        if self.drivers.progress() > 0 || !self.drivers.park_for_trywait(waker, || self.is_empty()) {
            return Err(Errno::AGAIN);
        }
        Ok(())
    }
}

static FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close), control: Some(control), ..noop::FID };

static EQ_OPS: sys::fi_ops_eq = sys::fi_ops_eq {
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
    ..noop::EQ
};

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(eq)", || {
        // SAFETY: the client's queue.
        unsafe { object::close::<Eq>(fid) }.map(|()| 0)
    })
}

unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(eq)", || {
        // SAFETY: the client's queue.
        let eq = unsafe { object::borrow_fid::<Eq>(fid) }?;
        // SAFETY: the client's argument for the command.
        unsafe { eq.wait.control(eq.waker.as_ref(), command, arg) }.map(|()| 0)
    })
}

/// Stores the next event in the caller's buffers.
///
/// # Safety
/// `event` is null or valid; `buf` is valid for `len` bytes.
unsafe fn deliver(eq: &Eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> Result<isize, Errno> {
    let event = NonNull::new(event).ok_or(Errno::INVAL)?;
    if buf.is_null() && len > 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let (number, stored) = unsafe { eq.take(buf, len, flags & sys::FI_PEEK != 0) }?;
    // SAFETY: the caller's promise.
    unsafe { event.write(number) };
    Ok(stored.cast_signed())
}

unsafe extern "C" fn read(eq: *mut sys::fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    object::guard_size("fi_eq_read", || {
        // SAFETY: the client's queue.
        let eq = unsafe { object::borrow::<Eq>(eq) }?;
        if eq.is_empty() {
            eq.drivers.progress();
        }
        // SAFETY: the client's buffers for the event.
        unsafe { deliver(eq, event, buf, len, flags) }
    })
}

unsafe extern "C" fn sread(
    eq: *mut sys::fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout_ms: c_int,
    flags: u64,
) -> isize {
    object::guard_size("fi_eq_sread", || {
        // SAFETY: the client's queue.
        let eq = unsafe { object::borrow::<Eq>(eq) }?;
        if eq.wait == WaitKind::None {
            return Err(Errno::INVAL);
        }
        let deadline = Deadline::after_ms(timeout_ms);
        loop {
            eq.wait(&deadline)?;
            // SAFETY: the client's buffers for the event.
            match unsafe { deliver(eq, event, buf, len, flags) } {
                // Another reader has taken the event.
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
    })
}

unsafe extern "C" fn readerr(eq: *mut sys::fid_eq, buf: *mut sys::fi_eq_err_entry, flags: u64) -> isize {
    object::guard_size("fi_eq_readerr", || {
        // SAFETY: the client's queue.
        let eq = unsafe { object::borrow::<Eq>(eq) }?;
        let out = NonNull::new(buf).ok_or(Errno::INVAL)?;
        let mut events = eq.events.lock();
        let Some(Event::Failure(failure)) = events.front() else { return Err(Errno::AGAIN) };
        let failure = failure.clone();
        if flags & sys::FI_PEEK == 0 {
            events.pop_front();
        }
        drop(events);
        // SAFETY: the client's error entry.
        let old = unsafe { out.read() };
        let copies = old.err_data_size > 0 && eq.fabric.api_version() >= ERR_DATA_COPIED;
        let (err_data, err_data_size) = if copies {
            let fits = if old.err_data.is_null() { 0 } else { failure.more.len().min(old.err_data_size) };
            if fits > 0 {
                // SAFETY: the client's buffer, which has the size in the entry.
                unsafe { std::ptr::copy_nonoverlapping(failure.more.as_ptr(), old.err_data.cast::<u8>(), fits) };
            }
            (old.err_data, fits)
        } else {
            let mut kept = eq.err_data.lock();
            *kept = failure.more;
            (if kept.is_empty() { old.err_data } else { kept.as_mut_ptr().cast() }, kept.len())
        };
        let entry = sys::fi_eq_err_entry {
            fid: failure.fid as sys::fid_t,
            context: failure.context as *mut c_void,
            data: failure.data,
            err: failure.errno.get(),
            prov_errno: failure.why.map_or(failure.errno.get(), |why| OF_LINKS | fault::number(Fault::Link(why))),
            err_data,
            err_data_size,
        };
        // SAFETY: as above.
        unsafe { out.write(entry) };
        Ok(size_of::<sys::fi_eq_err_entry>().cast_signed())
    })
}

unsafe extern "C" fn write(eq: *mut sys::fid_eq, event: u32, buf: *const c_void, len: usize, _flags: u64) -> isize {
    object::guard_size("fi_eq_write", || {
        // SAFETY: the client's queue.
        let eq = unsafe { object::borrow::<Eq>(eq) }?;
        if !eq.writable || len > EVENT_LIMIT_BYTES || (buf.is_null() && len > 0) {
            return Err(Errno::INVAL);
        }
        let bytes: &[u8] = if len == 0 {
            &[]
        } else {
            // SAFETY: the client's event has `len` bytes.
            unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }
        };
        if eq.events.lock().len() >= eq.size {
            return Err(Errno::AGAIN);
        }
        eq.push(Event::Success(event, bytes.into()));
        Ok(len.cast_signed())
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut sys::fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = if prov_errno & OF_LINKS != 0 { fault::text(prov_errno ^ OF_LINKS) } else { text_of_system(prov_errno) };
    // SAFETY: the client's buffer.
    unsafe { copy_text(text, buf, len) };
    text.as_ptr()
}

fn text_of_system(errno: c_int) -> &'static CStr {
    // SAFETY: strerror takes any number. All other errors reported here are the system's.
    let text = unsafe { libc::strerror(errno) };
    // SAFETY: strerror returns a C string, which is a constant for the system's numbers.
    unsafe { CStr::from_ptr(text) }
}

/// The bytes of a `fi_eq_cm_entry`.
fn connection_entry(fid: usize, info: usize, data: &[u8]) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(size_of::<sys::fi_eq_cm_entry>() + data.len());
    bytes.extend_from_slice(&fid.to_ne_bytes());
    bytes.extend_from_slice(&info.to_ne_bytes());
    bytes.extend_from_slice(data);
    bytes.into_boxed_slice()
}

/// Copies a text into a client's buffer, truncated and terminated. A null buffer is ignored.
///
/// # Safety
/// `buf` is null or valid for `len` bytes.
unsafe fn copy_text(text: &CStr, buf: *mut c_char, len: usize) {
    if buf.is_null() || len == 0 {
        return;
    }
    let bytes = text.to_bytes();
    let fits = bytes.len().min(len - 1);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), buf, fits) };
    // SAFETY: `fits` is less than `len`.
    unsafe { buf.wrapping_add(fits).write(0) };
}
