//! Blocking calls with members and drivers that belong to the test. Their events occur at the moment under test.

use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weft_fi_sys as sys;

use super::side::{Options, Side, close, ok, zeroed};
use crate::abi::errno::Errno;
use crate::abi::object::{self, Hold};
use crate::cntr::Cntr;
use crate::endpoint::cell::Sleep;
use crate::eq::Eq;
use crate::eq::drivers::Driver;
use crate::sleep::poll::{self, Sources, Waitable, Waited};
use crate::sleep::wait::{Deadline, Waker};
use crate::sleep::waitset::{self, Member, WaitSet};

const NAP: Duration = Duration::from_millis(50);
/// The time for which a member makes progress that a call must not wait for.
const LONG: Duration = Duration::from_secs(2);

fn open_set(side: &Side) -> *mut sys::fid_wait {
    let mut attr = sys::fi_wait_attr { wait_obj: sys::FI_WAIT_UNSPEC, flags: 0 };
    let mut set = null_mut();
    ok(unsafe { ((*(*side.fabric).ops).wait_open.unwrap())(side.fabric, &raw mut attr, &raw mut set) });
    set
}

fn wait(set: *mut sys::fid_wait, timeout: Duration) -> i32 {
    unsafe { ((*(*set).ops).wait.unwrap())(set, i32::try_from(timeout.as_millis()).unwrap()) }
}

fn join<M: Member + 'static>(set: *mut sys::fid_wait, member: &Arc<M>) {
    let set = unsafe { Hold::<WaitSet>::of(set) }.unwrap();
    waitset::join(Some(&set), member);
}

/// A member that raises the counter once, while the set parks its members. It joins the set before the counter does.
#[derive(Default)]
struct Late(Mutex<Option<Arc<Cntr>>>);

impl Member for Late {
    fn progress(&self) -> usize {
        0
    }

    fn has_news(&self) -> bool {
        false
    }

    fn clear_news(&self) {}

    fn park(&self) -> Result<(), Errno> {
        if let Some(cntr) = self.0.lock().take() {
            assert!(!cntr.add(1), "no program waits for it");
        }
        Ok(())
    }
}

#[test]
fn a_count_while_a_set_parks_is_reported() {
    let side = Side::open(Options::default());
    let set = open_set(&side);
    let late = Arc::new(Late::default());
    join(set, &late);
    let mut attr: sys::fi_cntr_attr = zeroed();
    (attr.wait_obj, attr.wait_set) = (sys::FI_WAIT_SET, set);
    let mut cntr = null_mut();
    let open = unsafe { (*(*side.domain).ops).cntr_open.unwrap() };
    ok(unsafe { open(side.domain, &raw mut attr, &raw mut cntr, null_mut()) });
    *late.0.lock() = Some(unsafe { object::share::<Cntr>(cntr) }.unwrap());
    assert_eq!(wait(set, LONG), 0);
    assert!(late.0.lock().is_none());
    assert_eq!(wait(set, NAP), -sys::FI_ETIMEDOUT, "it is reported once");
    ok(close(cntr));
    ok(close(set));
}

/// A member and driver that makes progress for [`LONG`].
struct Busy(Instant);

impl Busy {
    fn new() -> Self {
        Self(Instant::now() + LONG)
    }

    /// Checks that a call has returned before the progress ends.
    fn assert_in_time(&self) {
        assert!(Instant::now() < self.0, "the call did not look at the clock");
    }
}

impl Member for Busy {
    fn progress(&self) -> usize {
        usize::from(Instant::now() < self.0)
    }

    fn has_news(&self) -> bool {
        false
    }

    fn clear_news(&self) {}

    fn park(&self) -> Result<(), Errno> {
        Err(Errno::AGAIN)
    }
}

impl Driver for Busy {
    fn progress(&self) -> usize {
        Member::progress(self)
    }

    fn park(&self, _waker: &Waker, _sleep: Sleep) -> bool {
        false
    }

    fn wake(&self, _sleep: Sleep) {}

    fn notify_progress_thread(&self) -> bool {
        false
    }
}

impl Waitable for Busy {
    fn sources(&self) -> &Sources {
        unreachable!("it makes progress by itself")
    }

    fn progress(&self) -> usize {
        Member::progress(self)
    }

    fn waker(&self) -> Option<&Waker> {
        None
    }

    fn ready(&self) -> bool {
        false
    }

    fn take_interrupt(&self) -> bool {
        false
    }

    fn arm(&self) -> bool {
        true
    }
}

#[test]
fn deadlines_hold_while_every_round_makes_progress() {
    let busy = Busy::new();
    assert_eq!(poll::wait(&busy, Deadline::after_ms(50)), Waited::TimedOut);
    busy.assert_in_time();

    let side = Side::open(Options::default());
    let (set, busy) = (open_set(&side), Arc::new(Busy::new()));
    join(set, &busy);
    assert_eq!(wait(set, NAP), -sys::FI_ETIMEDOUT);
    busy.assert_in_time();
    ok(close(set));

    let mut eq = null_mut();
    let open = unsafe { (*(*side.fabric).ops).eq_open.unwrap() };
    ok(unsafe { open(side.fabric, null_mut(), &raw mut eq, null_mut()) });
    let busy = Arc::new(Busy::new());
    unsafe { object::borrow::<Eq>(eq) }.unwrap().drive(Arc::clone(&busy) as _);
    let (sread, mut bytes) = (unsafe { (*(*eq).ops).sread.unwrap() }, [0_u8; 8]);
    let result = unsafe { sread(eq, &mut 0, bytes.as_mut_ptr().cast(), bytes.len(), 50, 0) };
    assert_eq!(result, Errno::AGAIN.size());
    busy.assert_in_time();
    ok(close(eq));
}
