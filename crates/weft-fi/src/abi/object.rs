//! Objects of libfabric: a Rust object that is a `fid` for clients and a handle for weft-fi.
//!
//! Place in the data flow: every object that a client holds (fabric, domain, endpoint, queue, …) is an [`Object`]. That
//! is a `#[repr(C)]` structure in an `Arc`, whose first field is an `UnsafeCell<fid_xxx>`. [`into_raw`] gives one
//! reference to the client, as the pointer to that first field. [`borrow`] and [`share`] convert such a pointer back.
//! [`close`] takes the reference back.
//!
//! Invariants:
//! - A client passes only pointers that weft has given it and that it has not closed, as with any C library.
//!   Their class is checked, so that an object of the wrong kind leads to -FI_EINVAL and not to undefined
//!   behaviour. The class does not say the type of the device: all endpoints of a library have the same
//!   ([`entry_point`](crate::entry_point)).
//! - A child keeps its parents by [`Hold`]: they stay in memory, and `close` of a parent returns -FI_EBUSY while a hold
//!   exists. Code that uses an object for a moment only has an `Arc` or a `Weak`, and drops it soon.
//! - An object belongs to the host library that opened its fabric. A control call makes that library the host that the
//!   thread serves ([`host::current`]). Objects that the call opens therefore belong to the same host.
//! - The `fid` is in an `UnsafeCell` because clients and the library write to it (`context`, `fid_fabric.api_version`).
//! - A forked child can close every object that it has inherited. Another thread of the parent may have held any lock
//!   at the fork, and does not exist in the child. `close` therefore waits for no lock there, and does not drop the
//!   object.
//! - No panic crosses the C boundary. Control calls run inside [`guard`] or [`guard_size`], which turn a
//!   panic into an error. Functions of the data path have no guard: transfers, cancel, and reads of queues
//!   and counters. A panic there aborts the process, since unwinding does not leave an `extern "C"` function.

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

/// How long `close` waits for other threads that use the object for a moment.
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

    /// The number of children that hold this object, and its origin.
    fn uses(&self) -> &Uses;

    /// Called by [`close`] when no child holds the object, before the client's reference is dropped. An error refuses
    /// the close.
    fn closing(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Called by [`close`] in a forked child, in place of [`Object::closing`]. It must not wait for a lock. The object
    /// is not dropped afterwards.
    fn abandon(&self) {}
}

/// The head of a new object.
pub(crate) fn new_fid(class: u32, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid { fclass: class as usize, context, ops: table(ops) }
}

/// The pointer to a static table, for the C structures. Neither side writes through it.
pub(crate) fn table<T>(table: &'static T) -> *mut T {
    std::ptr::from_ref(table).cast_mut()
}

/// Converts the client's reference into a pointer.
pub(crate) fn into_raw<O: Object>(object: Arc<O>) -> *mut O::Fid {
    Arc::into_raw(object).cast_mut().cast()
}

/// The pointer that the client has, as [`into_raw`] returned it.
pub(crate) fn raw<O: Object>(object: &Arc<O>) -> *mut O::Fid {
    Arc::as_ptr(object).cast_mut().cast()
}

/// The object behind a client's pointer.
///
/// # Safety
/// `raw` is null, or came from [`into_raw`] of any [`Object`], which stays open until the borrow ends.
#[inline]
pub(crate) unsafe fn borrow<'a, O: Object>(raw: *mut O::Fid) -> Result<&'a O, Errno> {
    // SAFETY: the caller's promise; every `Fid` begins with a `fid`.
    unsafe { borrow_fid(raw.cast()) }
}

/// The object behind a client's `struct fid *`.
///
/// # Safety
/// As for [`borrow`].
#[inline]
pub(crate) unsafe fn borrow_fid<'a, O: Object>(raw: *mut fid) -> Result<&'a O, Errno> {
    // SAFETY: the caller's promise.
    let class = unsafe { class_of(raw) }?;
    if !O::CLASSES.iter().any(|&known| known as usize == class) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the class shows that the pointer came from `into_raw::<O>`. By the caller's promise the object is open.
    let object = unsafe { &*raw.cast::<O>() };
    host::enter(object.uses().host);
    Ok(object)
}

/// The class of an object that a client passes, for functions that accept several kinds (`fi_ep_bind`).
///
/// # Safety
/// As for [`borrow`].
#[inline]
pub(crate) unsafe fn class_of(raw: *mut fid) -> Result<usize, Errno> {
    let head = NonNull::new(raw).ok_or(Errno::INVAL)?;
    // SAFETY: by the caller's promise an open object, which begins with a `fid`. Only weft writes `fclass`.
    Ok(unsafe { (*head.as_ptr()).fclass })
}

/// A new reference to the object behind a client's pointer.
///
/// # Safety
/// As for [`borrow`].
pub(crate) unsafe fn share<O: Object>(raw: *mut O::Fid) -> Result<Arc<O>, Errno> {
    // SAFETY: the caller's promise.
    unsafe { share_fid(raw.cast()) }
}

/// A new reference to the object behind a client's `struct fid *`.
///
/// # Safety
/// As for [`borrow`].
pub(crate) unsafe fn share_fid<O: Object>(raw: *mut fid) -> Result<Arc<O>, Errno> {
    // SAFETY: the caller's promise.
    let object = unsafe { borrow_fid::<O>(raw) }?;
    let pointer = std::ptr::from_ref(object);
    // SAFETY: the pointer came from `Arc::into_raw`, and the client's reference keeps the count above 0.
    unsafe { Arc::increment_strong_count(pointer) };
    // SAFETY: this takes the reference that was just added.
    Ok(unsafe { Arc::from_raw(pointer) })
}

/// Closes an object of type `O`: `fi_close`.
///
/// # Safety
/// As for [`borrow`]; after success the client no longer uses the pointer.
pub(crate) unsafe fn close<O: Object>(raw: *mut fid) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let object = unsafe { borrow_fid::<O>(raw) }?;
    if !object.uses().is_ours() {
        // The client's reference is leaked: the destructor of the object would take locks.
        object.abandon();
        return Ok(());
    }
    if object.uses().any() {
        return Err(Errno::BUSY);
    }
    object.closing()?;
    let pointer = std::ptr::from_ref(object);
    // SAFETY: this takes back the client's reference, which `into_raw` had given. The client does not use it again.
    let object = unsafe { Arc::from_raw(pointer) };
    // Another thread may use the object at this moment (progress, a broadcast over the domain's endpoints). The parents
    // must be released on return. Otherwise the client's close of a parent would fail without a visible reason.
    let deadline = Instant::now() + TRANSIENT_HOLD_LIMIT;
    while Arc::strong_count(&object) > 1 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    Ok(())
}

/// The number of an object's children, and its origin: the process and the host library that opened it.
pub(crate) struct Uses {
    children: AtomicUsize,
    owner: Pid,
    host: Option<&'static Host>,
}

impl Uses {
    /// No children. The object was opened by this process, for the host that this thread serves.
    pub(crate) fn new() -> Self {
        Self { children: AtomicUsize::new(0), owner: getpid(), host: host::current() }
    }

    /// Whether `host` opened the object.
    pub(crate) fn is_of(&self, host: Option<&Host>) -> bool {
        self.host.map(std::ptr::from_ref) == host.map(std::ptr::from_ref)
    }

    /// Whether this process opened the object. False in a forked child.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner == getpid()
    }

    /// Whether there are children.
    fn any(&self) -> bool {
        self.children.load(Ordering::Acquire) != 0
    }
}

/// A child's reference to its parent. While it exists, the parent cannot be closed.
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
        // SAFETY: the caller's promise.
        Ok(Self::new(unsafe { share::<O>(raw) }?))
    }

    /// Holds the object behind a client's `struct fid *`.
    ///
    /// # Safety
    /// As for [`borrow`].
    pub(crate) unsafe fn of_fid(raw: *mut fid) -> Result<Self, Errno> {
        // SAFETY: the caller's promise.
        Ok(Self::new(unsafe { share_fid::<O>(raw) }?))
    }

    /// The parent, for code that needs an `Arc` or a `Weak`.
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

// SAFETY: the fields are plain data. Fields that weft reads after construction (class, tables) are never written.
// Fields that clients write (context) are never read by weft.
unsafe impl<F> Sync for Head<F> {}
// SAFETY: the pointers inside are static tables, and the client's context, which weft only returns.
unsafe impl<F> Send for Head<F> {}

impl<F> Head<F> {
    /// A head with these contents.
    pub(crate) const fn new(contents: F) -> Self {
        Self(UnsafeCell::new(contents))
    }

    /// The address of the contents, for fields that are read or changed after construction.
    pub(crate) const fn get(&self) -> *mut F {
        self.0.get()
    }
}

/// Runs the body of a C function that returns `int`: 0 or more, or a negative error. A panic is logged and becomes
/// -FI_EOTHER.
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

/// Runs the body of a C function that returns `ssize_t`: 0 or more, or a negative error. A panic is logged and becomes
/// -FI_EOTHER.
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

/// Logs a panic, which means that an invariant of weft is broken.
#[cold]
#[inline(never)]
fn report(function: &'static str, panic: &(dyn std::any::Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    log::error!("{function}: a broken invariant inside weft: {}; please report it", text.unwrap_or("(no message)"));
}

/// Checks the place where a client wants the pointer to a new object. The check comes before the object is made: an
/// object that the client never gets would stay open indefinitely, and peers could see it.
pub(crate) fn place<F>(out: *mut *mut F) -> Result<NonNull<*mut F>, Errno> {
    NonNull::new(out).ok_or(Errno::INVAL)
}

/// An extension: its name, and its table.
pub(crate) type Extension = (&'static CStr, *mut c_void);

/// Opens one of an object's extensions: `fi_open_ops`.
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
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    if flags != 0 {
        return Err(Errno::BADFLAGS);
    }
    let (_, table) = known.iter().find(|(known, _)| *known == name).ok_or(Errno::NOSYS)?;
    // SAFETY: the caller's promise.
    unsafe { place.write(*table) };
    Ok(0)
}

/// Writes the part of an extension's structure that the client knows. Fields that only the client's structure has are
/// set to zero.
///
/// # Safety
/// `out` is null or valid for writes of `len` bytes.
pub(crate) unsafe fn give_known<T: Copy>(value: &T, out: *mut T, len: usize) -> Result<c_int, Errno> {
    let out: *mut u8 = NonNull::new(out).ok_or(Errno::INVAL)?.as_ptr().cast();
    let known = len.min(size_of::<T>());
    // SAFETY: by the caller's promise `out` has `len` bytes, and `known` is at most `len`.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast(), out, known) };
    let rest = out.wrapping_add(known);
    // SAFETY: the remaining bytes of `out`.
    unsafe { rest.write_bytes(0, len - known) };
    Ok(0)
}

/// Gives the client its reference to a new object.
///
/// # Safety
/// `place` is valid for a write.
pub(crate) unsafe fn give<O: Object>(object: Arc<O>, place: NonNull<*mut O::Fid>) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { place.write(into_raw(object)) };
    0
}
