//! How a Rust object is a `fid` for libfabric's clients, and a handle for weft-fi.
//!
//! Place in the data flow: every object that a client holds (fabric, domain, endpoint, queue, …) is an [`Object`]:
//! a `#[repr(C)]` structure whose first field is `UnsafeCell<fid_xxx>`, living in an `Arc`. [`into_raw`] hands one
//! reference to the client as the pointer to that first field; [`borrow`] and [`share`] turn such a pointer back;
//! [`close`] takes the reference back.
//!
//! Invariants:
//! - A pointer that a client hands in is trusted to be one that we handed out and that it has not closed (as with
//!   any C library); its class is checked, so that mixing kinds up is -FI_EINVAL rather than undefined.
//! - A child keeps its parents by [`Hold`]: they stay alive in memory, and `close` of a parent answers -FI_EBUSY
//!   while a hold exists. What merely looks at an object for a moment uses `Arc` or `Weak` and lets go quickly.
//! - An object belongs to the host library by which its fabric was opened. A control call makes that the host that the
//!   thread serves ([`host::current`]), so what the call opens belongs to it, too.
//! - The `fid` is in an `UnsafeCell` because clients and the library write to it (`context`, `fid_fabric.api_version`).
//! - A forked child can close every object that it has inherited. Another thread of the parent may have held any lock
//!   at the fork, and does not exist in the child. So `close` waits for no lock there and does not drop the object.
//! - No panic crosses the C boundary. Control calls run inside [`guard`] or [`guard_size`], which turn a panic into an
//!   error. Functions of the data path have no guard: transfers, cancel, and reads of queues and counters. A panic there
//!   aborts the process, since unwinding does not leave an `extern "C"` function.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};
use weft_fi_sys::{fi_ops, fid};

use crate::abi::errno::Errno;
use crate::host::{self, Host};

/// How long `close` lets other threads let go of the object they are looking at.
const TRANSIENT_HOLD_LIMIT: Duration = Duration::from_secs(2);

/// An object that a client can hold.
///
/// # Safety
/// The type is `#[repr(C)]`, its first field is an `UnsafeCell<Self::Fid>`, and `Self::Fid` begins with a `fid`
/// whose class is one of `CLASSES` for as long as the client holds the object.
pub(crate) unsafe trait Object: Send + Sync + 'static {
    /// libfabric's structure.
    type Fid;
    /// The classes that this type may have.
    const CLASSES: &'static [u32];

    /// How many children hold this object.
    fn uses(&self) -> &Uses;

    /// Called by [`close`] once no child holds the object, before the client's reference goes. May refuse.
    fn closing(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Called by [`close`] in a forked child, in place of [`Object::closing`]. Must not wait for a lock. The
    /// object is not dropped afterwards.
    fn abandon(&self) {}
}

/// The head of a new object.
pub(crate) fn new_fid(class: u32, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class as usize, context, ops: table(ops) }
}

/// A static table as the C structures point to it. Nobody writes through the pointer.
pub(crate) fn table<T>(table: &'static T) -> *mut T {
    std::ptr::from_ref(table).cast_mut()
}

/// Hands the client its reference.
pub(crate) fn into_raw<O: Object>(object: Arc<O>) -> *mut O::Fid {
    Arc::into_raw(object).cast_mut().cast()
}

/// The pointer by which the client knows an object, as [`into_raw`] gave it.
pub(crate) fn raw<O: Object>(object: &Arc<O>) -> *mut O::Fid {
    Arc::as_ptr(object).cast_mut().cast()
}

/// The object behind a client's pointer.
///
/// # Safety
/// `raw` is null or came from [`into_raw`] of any [`Object`] and has not been closed, nor is before the borrow ends.
#[inline]
pub(crate) unsafe fn borrow<'a, O: Object>(raw: *mut O::Fid) -> Result<&'a O, Errno> {
    // SAFETY: passed on to the caller; every `Fid` begins with a `fid`.
    unsafe { borrow_fid(raw.cast()) }
}

/// The object behind a client's `struct fid *`.
///
/// # Safety
/// As for [`borrow`].
#[inline]
pub(crate) unsafe fn borrow_fid<'a, O: Object>(raw: *mut fid) -> Result<&'a O, Errno> {
    // SAFETY: passed on to the caller.
    let class = unsafe { class_of(raw) }?;
    if !O::CLASSES.iter().any(|&known| known as usize == class) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the class says that the pointer came from `into_raw::<O>`, so it is a live `O` by the caller's promise.
    let object = unsafe { &*raw.cast::<O>() };
    host::enter(object.uses().host);
    Ok(object)
}

/// The class of whatever object a client handed in, for functions that take several kinds (`fi_ep_bind`).
///
/// # Safety
/// As for [`borrow`].
#[inline]
pub(crate) unsafe fn class_of(raw: *mut fid) -> Result<usize, Errno> {
    let head = NonNull::new(raw).ok_or(Errno::INVAL)?;
    // SAFETY: by the caller's promise a live object, which begins with a `fid`; `fclass` is written only by us.
    Ok(unsafe { (*head.as_ptr()).fclass })
}

/// A reference of our own to the object behind a client's pointer.
///
/// # Safety
/// As for [`borrow`].
pub(crate) unsafe fn share<O: Object>(raw: *mut O::Fid) -> Result<Arc<O>, Errno> {
    // SAFETY: passed on to the caller.
    unsafe { share_fid(raw.cast()) }
}

/// A reference of our own to the object behind a client's `struct fid *`.
///
/// # Safety
/// As for [`borrow`].
pub(crate) unsafe fn share_fid<O: Object>(raw: *mut fid) -> Result<Arc<O>, Errno> {
    // SAFETY: passed on to the caller.
    let object = unsafe { borrow_fid::<O>(raw) }?;
    let pointer = std::ptr::from_ref(object);
    // SAFETY: the pointer came from `Arc::into_raw`, and the client's reference keeps the count above 0.
    unsafe { Arc::increment_strong_count(pointer) };
    // SAFETY: the reference that was just added is ours.
    Ok(unsafe { Arc::from_raw(pointer) })
}

/// `fi_close` of an object of type `O`.
///
/// # Safety
/// As for [`borrow`]; after success the client no longer uses the pointer.
pub(crate) unsafe fn close<O: Object>(raw: *mut fid) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    let object = unsafe { borrow_fid::<O>(raw) }?;
    if !object.uses().is_ours() {
        // The client's reference is never given back: dropping the object would take locks.
        object.abandon();
        return Ok(());
    }
    if object.uses().any() {
        return Err(Errno::BUSY);
    }
    object.closing()?;
    let pointer = std::ptr::from_ref(object);
    // SAFETY: the client's reference, which `into_raw` gave away, comes back and is not used again.
    let object = unsafe { Arc::from_raw(pointer) };
    // Another thread (progress, a broadcast over the domain's endpoints) may be looking at the object this moment.
    // The parents must be free when we return, or closing them next would fail for no reason that the client could
    // see.
    let deadline = Instant::now() + TRANSIENT_HOLD_LIMIT;
    while Arc::strong_count(&object) > 1 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    Ok(())
}

/// Counts the children of an object, and knows the process that has opened it, and by which host library.
pub(crate) struct Uses {
    children: AtomicUsize,
    owner: Pid,
    host: Option<&'static Host>,
}

impl Uses {
    /// No children; opened by this process, for the host that this thread serves.
    pub(crate) fn new() -> Self {
        Self { children: AtomicUsize::new(0), owner: getpid(), host: host::current() }
    }

    /// Whether the object was opened by that host.
    pub(crate) fn is_of(&self, host: Option<&Host>) -> bool {
        self.host.map(std::ptr::from_ref) == host.map(std::ptr::from_ref)
    }

    /// Whether this process has opened the object. False in a forked child.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner == getpid()
    }

    /// Whether there are children.
    fn any(&self) -> bool {
        self.children.load(Ordering::Acquire) != 0
    }
}

/// A child's reference to its parent: while it exists the parent cannot be closed.
pub(crate) struct Hold<O: Object>(Arc<O>);

impl<O: Object> Hold<O> {
    /// Holds `parent`.
    pub(crate) fn new(parent: Arc<O>) -> Self {
        parent.uses().children.fetch_add(1, Ordering::Relaxed);
        Self(parent)
    }

    /// Holds the object behind a client's pointer.
    ///
    /// # Safety
    /// As for [`borrow`].
    pub(crate) unsafe fn of(raw: *mut O::Fid) -> Result<Self, Errno> {
        // SAFETY: passed on to the caller.
        Ok(Self::new(unsafe { share::<O>(raw) }?))
    }

    /// Holds the object behind a client's `struct fid *`.
    ///
    /// # Safety
    /// As for [`borrow`].
    pub(crate) unsafe fn of_fid(raw: *mut fid) -> Result<Self, Errno> {
        // SAFETY: passed on to the caller.
        Ok(Self::new(unsafe { share_fid::<O>(raw) }?))
    }

    /// The parent, for those who need an `Arc` or a `Weak`.
    pub(crate) fn arc(&self) -> &Arc<O> {
        &self.0
    }

    /// Whether both hold the same object.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<O: Object> Clone for Hold<O> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl<O: Object> Deref for Hold<O> {
    type Target = O;
    fn deref(&self) -> &O {
        &self.0
    }
}

impl<O: Object> Drop for Hold<O> {
    fn drop(&mut self) {
        self.0.uses().children.fetch_sub(1, Ordering::Release);
    }
}

/// The `fid` structure inside an object, as its first field.
#[repr(transparent)]
pub(crate) struct Head<F>(UnsafeCell<F>);

// SAFETY: the fields are plain data. Those that we read after construction (class, tables) are not written by anyone;
// those that clients write (context) we never read.
unsafe impl<F> Sync for Head<F> {}
// SAFETY: the pointers inside are the client's context, which is only handed back, and static tables.
unsafe impl<F> Send for Head<F> {}

impl<F> Head<F> {
    /// A head with these contents.
    pub(crate) const fn new(contents: F) -> Self {
        Self(UnsafeCell::new(contents))
    }

    /// Where the contents are, for the rare field that is read or changed after construction.
    pub(crate) const fn get(&self) -> *mut F {
        self.0.get()
    }
}

/// Runs the body of a C function that returns `int`: 0 or more, or a negative error.
#[inline]
pub(crate) fn guard(function: &'static str, body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    match std::panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => errno.code(),
        Err(panic) => {
            report(function, &panic);
            Errno::OTHER.code()
        }
    }
}

/// Runs the body of a C function that returns `ssize_t`: 0 or more, or a negative error.
#[inline]
pub(crate) fn guard_size(function: &'static str, body: impl FnOnce() -> Result<isize, Errno>) -> isize {
    match std::panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => errno.size(),
        Err(panic) => {
            report(function, &panic);
            Errno::OTHER.size()
        }
    }
}

/// Logs a panic: an invariant of ours is broken.
#[cold]
#[inline(never)]
fn report(function: &'static str, panic: &(dyn std::any::Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    log::error!("{function}: a broken invariant inside weft: {}; please report it", text.unwrap_or("(no message)"));
}

/// Where a client wants the pointer to a new object. Asked before the object is made: one that is never handed over
/// would stay open for ever, and be known to others.
pub(crate) fn place<F>(out: *mut *mut F) -> Result<NonNull<*mut F>, Errno> {
    NonNull::new(out).ok_or(Errno::INVAL)
}

/// What a table of an extension is called, and where it is.
pub(crate) type Extension = (&'static CStr, fn() -> *mut c_void);

/// `fi_open_ops` of an object that has these extensions.
///
/// # Safety
/// `name` is null or a string, `ops` null or valid for a write.
pub(crate) unsafe fn open_ops(
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    known: &[Extension],
) -> Result<c_int, Errno> {
    let place = place(ops)?;
    let name = NonNull::new(name.cast_mut()).ok_or(Errno::INVAL)?;
    // SAFETY: by the caller's promise.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    if flags != 0 {
        return Err(Errno::BADFLAGS);
    }
    let (_, table) = known.iter().find(|(known, _)| *known == name).ok_or(Errno::NOSYS)?;
    // SAFETY: by the caller's promise.
    unsafe { place.write(table()) };
    Ok(0)
}

/// Writes as much of an extension's structure as the client knows; what its own has beyond is set to zero.
///
/// # Safety
/// `out` is null or valid for writes of `len` bytes.
pub(crate) unsafe fn give_known<T: Copy>(value: &T, out: *mut T, len: usize) -> Result<c_int, Errno> {
    let out: *mut u8 = NonNull::new(out).ok_or(Errno::INVAL)?.as_ptr().cast();
    let known = len.min(size_of::<T>());
    // SAFETY: by the caller's promise the place has `len` bytes, of which these are the first.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast(), out, known) };
    let rest = out.wrapping_add(known);
    // SAFETY: the rest of the same place.
    unsafe { rest.write_bytes(0, len - known) };
    Ok(0)
}

/// Stores a new object where the client wants it and gives the client its reference.
///
/// # Safety
/// `place` is valid for a write.
pub(crate) unsafe fn give<O: Object>(object: Arc<O>, place: NonNull<*mut O::Fid>) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe { place.write(into_raw(object)) };
    0
}
