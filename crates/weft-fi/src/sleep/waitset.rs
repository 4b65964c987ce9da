//! Wait sets (fi_poll(3)): one wait for several queues and counters.
//!
//! Place in the data flow: a queue or counter opened with FI_WAIT_SET has a waker of its own, which the set's waker
//! watches. `fi_wait` prepares all members as `fi_trywait` does for a client, and sleeps on the set's waker. Members
//! hold the set. The set refers to them weakly, and skips closed ones.
//!
//! Some events are reported once: a change of a counter, a signal of a queue. They are cleared when the client learns
//! that it must look, and not before. It learns that from -FI_EAGAIN of `fi_trywait`, or when `fi_wait` returns.
//!
//! No wake-up is lost. A sleeper has parked and armed each member ([`crate::sleep::poll`]), and every wake-up is
//! level-triggered up to the set's descriptor. Sleeps are divided into slices for time-outs inside the engines.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weft_fi_sys as sys;
use weft_nic::NicError;

use crate::abi::errno::{self, Errno};
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::fabric::Fabric;
use crate::sleep::policy::reader::SPINS;
use crate::sleep::poll::{ROUNDS_PER_CLOCK, SLICE, YIELDS};
use crate::sleep::wait::{Deadline, WaitKind, Waker, Woken};

/// A wait set.
#[repr(C)]
pub(crate) struct WaitSet {
    head: Head<sys::fid_wait>,
    kind: WaitKind,
    waker: Waker,
    members: Mutex<Vec<Weak<dyn Member>>>,
    uses: Uses,
    fabric: Hold<Fabric>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open_set`.
unsafe impl Object for WaitSet {
    type Fid = sys::fid_wait;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_WAIT];

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// An object that a client may wait on, alone or in a wait set: a queue or a counter.
pub(crate) trait Member: Send + Sync {
    /// Makes one round of progress on the object's endpoints. Returns 0 when nothing happened.
    fn progress(&self) -> usize;
    /// Whether the client must look: the queue has entries or was signaled, or the counter has changed. True until
    /// [`Member::clear_news`].
    fn has_news(&self) -> bool;
    /// The client learns that it must look. Clears events that it would not find by itself: a signal, a change.
    fn clear_news(&self);
    /// Prepares the object for a sleep on its waker. On success any event wakes the sleeper, until the next round of
    /// progress. Fails with -FI_EAGAIN if there is an event, or may be.
    fn park(&self) -> Result<(), Errno>;

    /// `fi_trywait`: parks the object. -FI_EAGAIN tells the client to look.
    fn trywait(&self) -> Result<(), Errno> {
        let answer = self.park();
        if answer == Err(Errno::AGAIN) {
            self.clear_news();
        }
        answer
    }
}

/// Whether the client must look at one of these members. If so, clears the events of all: the caller tells the client.
fn take_news(members: &[Arc<dyn Member>]) -> bool {
    let news = members.iter().any(|member| member.has_news());
    if news {
        members.iter().for_each(|member| member.clear_news());
    }
    news
}

/// The set in the attributes of an object, for objects of kind [`WaitKind::Set`].
///
/// # Safety
/// `set` is the pointer in the attributes. With [`WaitKind::Set`] it is null or a wait set of the client.
pub(crate) unsafe fn named(
    kind: WaitKind,
    set: *mut sys::fid_wait,
    fabric: &Hold<Fabric>,
) -> Result<Option<Hold<WaitSet>>, Errno> {
    if kind != WaitKind::Set {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let set = unsafe { Hold::<WaitSet>::of(set) }?;
    if set.fabric.same(fabric) { Ok(Some(set)) } else { Err(Errno::INVAL) }
}

/// The waker of an object of this kind.
pub(crate) fn new_waker(kind: WaitKind, set: Option<&Hold<WaitSet>>) -> Result<Waker, NicError> {
    match set {
        Some(set) => set.waker.new_member(),
        None => Waker::for_kind(kind),
    }
}

/// Adds an object to its set, if it has one. Its waker came from [`new_waker`].
pub(crate) fn join<M: Member + 'static>(set: Option<&Hold<WaitSet>>, member: &Arc<M>) {
    let Some(set) = set else { return };
    let member: Weak<M> = Arc::downgrade(member);
    let mut members = set.members.lock();
    members.retain(|known| known.strong_count() > 0);
    members.push(member);
}

impl WaitSet {
    fn open_members(&self) -> Vec<Arc<dyn Member>> {
        self.members.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until a member has an event: `fi_wait`.
    fn wait(&self, deadline: Deadline) -> Result<(), Errno> {
        while !self.park(deadline)? {
            // No member is held during the sleep, so that members can be closed meanwhile.
            let time = deadline.left().map_or(SLICE, |left| left.min(SLICE));
            if self.waker.sleep(Some(time)) == Woken::Signal {
                let members = self.open_members();
                members.iter().for_each(|member| _ = member.progress());
                return if take_news(&members) { Ok(()) } else { Err(Errno::INTR) };
            }
        }
        Ok(())
    }

    /// Makes progress until a member has an event, which the caller reports: `true`. Or until all members are
    /// parked for the caller's sleep: `false`.
    fn park(&self, deadline: Deadline) -> Result<bool, Errno> {
        let mut members = self.open_members();
        let (mut fruitless, mut fruitful) = (0, 0_u32);
        loop {
            let moved = members.iter().map(|member| member.progress()).sum::<usize>() > 0;
            if take_news(&members) {
                return Ok(true);
            }
            (fruitless, fruitful) = if moved { (0, fruitful.wrapping_add(1)) } else { (fruitless + 1, fruitful) };
            // The clock is not read for each of the spins.
            let look =
                if moved { fruitful.is_multiple_of(ROUNDS_PER_CLOCK) } else { fruitless == 1 || fruitless > SPINS };
            if look && deadline.over() {
                return Err(Errno::TIMEDOUT);
            }
            let yields = fruitless <= SPINS + YIELDS || self.kind == WaitKind::Yield;
            if fruitless <= SPINS {
                std::hint::spin_loop();
            } else if !yields && members.iter().all(|member| member.park().is_ok()) {
                return Ok(false);
            }
            if look {
                // The loop may run for long. Members are closed and opened meanwhile.
                members.clear();
                if fruitless > SPINS && yields {
                    std::thread::yield_now();
                }
                members = self.open_members();
            }
        }
    }

    /// `fi_trywait`. On success the client may block on the set's descriptor.
    pub(crate) fn trywait(&self) -> Result<(), Errno> {
        if self.kind == WaitKind::Yield {
            return Err(Errno::INVAL);
        }
        self.open_members().iter().try_for_each(|member| member.trywait())
    }
}

/// Opens a wait set: `fi_wait_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    attr: *mut sys::fi_wait_attr,
    set: *mut *mut sys::fid_wait,
) -> c_int {
    object::guard("fi_wait_open", || {
        let place = object::place(set)?;
        // SAFETY: the client's fabric.
        let fabric = unsafe { Hold::<Fabric>::of(fabric) }?;
        // SAFETY: null, or the client's attributes.
        let attr = unsafe { attr.as_ref() };
        let set = open_set(fabric, attr)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(set, place) })
    })
}

fn open_set(fabric: Hold<Fabric>, attr: Option<&sys::fi_wait_attr>) -> Result<Arc<WaitSet>, Errno> {
    if attr.is_some_and(|attr| attr.flags != 0) {
        return Err(Errno::BADFLAGS);
    }
    let kind = WaitKind::from_attr(attr.map_or(sys::FI_WAIT_UNSPEC, |attr| attr.wait_obj))?;
    if matches!(kind, WaitKind::None | WaitKind::Set) {
        return Err(Errno::INVAL);
    }
    let waker = Waker::for_kind(kind).map_err(|error| errno::log_error("fi_wait_open", &error))?;
    let fid = object::new_fid(sys::FI_CLASS_WAIT, std::ptr::null_mut(), &FID_OPS);
    let head = Head::new(sys::fid_wait { fid, ops: object::table(&WAIT_OPS) });
    Ok(Arc::new(WaitSet { head, kind, waker, members: Mutex::default(), uses: Uses::new(), fabric }))
}

static FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close), control: Some(control), ..noop::FID };

static WAIT_OPS: sys::fi_ops_wait = sys::fi_ops_wait { size: size_of::<sys::fi_ops_wait>(), wait: Some(wait) };

unsafe extern "C" fn wait(set: *mut sys::fid_wait, timeout_ms: c_int) -> c_int {
    object::guard("fi_wait", || {
        // SAFETY: the client's wait set.
        unsafe { object::borrow::<WaitSet>(set) }?.wait(Deadline::after_ms(timeout_ms)).map(|()| 0)
    })
}

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(wait set)", || {
        // SAFETY: the client closes its wait set.
        unsafe { object::close::<WaitSet>(fid) }.map(|()| 0)
    })
}

unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(wait set)", || {
        // SAFETY: the client's wait set.
        let set = unsafe { object::borrow_fid::<WaitSet>(fid) }?;
        // SAFETY: the client's argument for this command.
        unsafe { set.kind.control(Some(&set.waker), command, arg) }.map(|()| 0)
    })
}
