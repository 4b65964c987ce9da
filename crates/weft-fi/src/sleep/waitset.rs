//! Wait sets (fi_poll(3)): waiting for several queues and counters at once.
//!
//! Place in the data flow: a queue or counter opened with FI_WAIT_SET has a waker of its own, which the set's
//! waker watches. `fi_wait` does for all members what `fi_trywait` does for a client, and sleeps on the set's
//! waker. Members hold the set; it looks at those that are open.
//!
//! What a member has to say only once (that a counter has changed, that a queue was signaled) is over when
//! the client is told to look, and not before: by an answer of `fi_trywait` or the return of `fi_wait`.
//!
//! No wake-up is lost: whoever sleeps has armed and parked each member ([`crate::sleep::poll`]), and all that wakes
//! one is level-triggered up to the set's descriptor. Slices are for time-outs inside the engines.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weft_fi_sys as sys;
use weft_nic::NicError;

use crate::abi::errno::{self, Errno};
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::fabric::Fabric;
use crate::sleep::poll::{ROUNDS_PER_CLOCK, SLICE, SPINS, YIELDS};
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

/// What a client may wait for, alone or in a wait set: a queue or a counter.
pub(crate) trait Member: Send + Sync {
    /// One round on all that brings something about here. Returns 0 when nothing happened.
    fn progress(&self) -> usize;
    /// Whether the client has to look: a queue that has something or was signaled, a counter that has
    /// changed. It stays so until [`Member::clear_news`].
    fn has_news(&self) -> bool;
    /// The client hears that it has to look. What it does not find by itself when it looks is over: a signal, a change.
    fn clear_news(&self);
    /// Ok: whatever comes wakes those who sleep on the waker, until the next round of progress. -FI_EAGAIN if
    /// it has stirred, or may have.
    fn park(&self) -> Result<(), Errno>;

    /// The same for `fi_trywait`, whose answer the client hears.
    fn trywait(&self) -> Result<(), Errno> {
        let answer = self.park();
        if answer == Err(Errno::AGAIN) {
            self.clear_news();
        }
        answer
    }
}

/// Whether the client of these has to look, which it is told then.
fn tell(members: &[Arc<dyn Member>]) -> bool {
    let stirred = members.iter().any(|member| member.has_news());
    if stirred {
        members.iter().for_each(|member| member.clear_news());
    }
    stirred
}

/// The set that the attributes of an object name, if its kind is one in a set.
///
/// # Safety
/// `set` is the attributes' pointer: with this kind a wait set of the client.
pub(crate) unsafe fn named(
    kind: WaitKind,
    set: *mut sys::fid_wait,
    fabric: &Hold<Fabric>,
) -> Result<Option<Hold<WaitSet>>, Errno> {
    if kind != WaitKind::Set {
        return Ok(None);
    }
    // SAFETY: by the caller's promise; null is refused.
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

/// Makes an object a member of its set, if it is in one; [`new_waker`] has made its waker.
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

    /// `fi_wait`.
    fn wait(&self, deadline: Deadline) -> Result<(), Errno> {
        while !self.attend(deadline)? {
            // Nobody is held in here, so that members can be closed meanwhile.
            let time = deadline.left().map_or(SLICE, |left| left.min(SLICE));
            if self.waker.sleep(Some(time)) == Woken::Signal {
                let members = self.open_members();
                members.iter().for_each(|member| _ = member.progress());
                return if tell(&members) { Ok(()) } else { Err(Errno::INTR) };
            }
        }
        Ok(())
    }

    /// Makes progress until a member has stirred, which the client is to be told; `false`: until all are
    /// prepared for the caller to sleep.
    fn attend(&self, deadline: Deadline) -> Result<bool, Errno> {
        let mut members = self.open_members();
        let (mut fruitless, mut fruitful) = (0, 0_u32);
        loop {
            let moved = members.iter().map(|member| member.progress()).sum::<usize>() > 0;
            if tell(&members) {
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
                // This may go on for long, while members are closed and others opened.
                members.clear();
                if fruitless > SPINS && yields {
                    std::thread::yield_now();
                }
                members = self.open_members();
            }
        }
    }

    /// For `fi_trywait`: Ok when the client may block on the set's descriptor.
    pub(crate) fn trywait(&self) -> Result<(), Errno> {
        if self.kind == WaitKind::Yield {
            return Err(Errno::INVAL);
        }
        self.open_members().iter().try_for_each(|member| member.trywait())
    }
}

/// `fi_wait_open`.
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
    let waker = Waker::for_kind(kind).map_err(|error| errno::told("fi_wait_open", &error))?;
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
