//! The steps by which a side stops polling its rings, goes to sleep and wakes, in their order.
//!
//! Place in the data flow: after every publication and every release of space, `link.rs` asks here whether to
//! ring the peer's doorbell. `sleep.rs` defines each step for a whole device. The steps have a file of their
//! own so that a model checker can replace the device, the atomics and the fences (`tests/loom_shm.rs`).
//!
//! No event is lost. The rare side changes a word (`polled`, `wants_space`), fences, and once more checks for
//! the event that the word concerns. The frequent side publishes a record or releases space, orders, and
//! reads the word. At least one side sees the change of the other (`doorbell.rs`).
//!
//! The states are those of the `Device` trait.

use super::sync::{AtomicU32, Ordering, fence, light_fence};

/// Whether peers expect polls or must notify the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SleepLevel {
    /// Peers expect polls: hot links are checked in every poll.
    Awake,
    /// Peers must notify the device until the next poll.
    Parked,
    /// Peers must notify the device, although polls are made now and then.
    Armed,
}

/// Frequent side: whether the peer has set `word`, after a publication or a release of space. `must_fence`:
/// the peer's fences do not order this side's accesses.
#[inline(always)]
pub(super) fn is_set(word: &AtomicU32, must_fence: bool) -> bool {
    if must_fence {
        fence(Ordering::SeqCst);
    } else {
        light_fence();
    }
    word.load(Ordering::Relaxed) != 0
}

/// Rare side: sets a word. Before it relies on the word, it must fence and check the condition once more.
pub(super) fn set(word: &AtomicU32, to: bool) {
    word.store(u32::from(to), Ordering::SeqCst);
}

/// Tells the peer that its ring is no longer checked in every poll. The caller must check the ring once more.
/// Returns false, and restores the word, if the fence is impossible.
pub(super) fn stop_polling(polled: &AtomicU32, awake: bool, fence: impl FnOnce() -> bool) -> bool {
    set(polled, false);
    let fenced = fence();
    if !fenced {
        set(polled, awake);
    }
    fenced
}

/// The parts of a device that sleeping concerns.
pub(super) trait Sleeper {
    /// The device's state.
    fn sleep_level(&mut self) -> &mut SleepLevel;
    /// Whether a peer has rung the doorbell.
    fn is_rung(&self) -> bool;
    /// Announces a sleep in the sleep page. Returns false, without effect, if a peer has rung.
    fn park_door(&mut self) -> bool;
    /// Whether a sleep is announced, and no wake-up was taken since.
    fn is_door_parked(&self) -> bool;
    /// Withdraws the announcement.
    fn wake_door(&self);
    /// Sets `polled` of all hot links.
    fn set_hot_polled(&self, polled: bool);
    /// Sets `wants_space` of all links that wait for space.
    fn set_waiting_wants(&self, wants: bool);
    /// Whether a link may wait for space.
    fn may_wait_for_space(&self) -> bool;
    /// The rare side's fence. Returns false if it is impossible.
    fn fence(&self) -> bool;
    /// The last check before sleeping: whether there is work.
    fn has_work(&mut self) -> bool;
    /// Requests a check of the sockets in the next poll, which takes wake-ups and other events that have
    /// ended a sleep.
    fn check_sockets_soon(&mut self);
}

/// Announces a sleep. Returns false, without effect, if there is something to poll.
pub(super) fn park(device: &mut impl Sleeper) -> bool {
    if device.is_rung() {
        return false;
    }
    let was = std::mem::replace(device.sleep_level(), SleepLevel::Parked);
    if was == SleepLevel::Awake {
        device.set_hot_polled(false);
    }
    device.set_waiting_wants(true);
    // The announcement precedes the fence, and the checks follow it. If the device was armed, peers have
    // known since an earlier fence that its rings are not checked. Then only links that wait for space need
    // the fence.
    let announced = device.park_door();
    let news = was == SleepLevel::Awake || device.may_wait_for_space();
    let fenced = announced && (!news || device.fence());
    let busy = !fenced || device.has_work() || device.is_rung();
    // The check may have taken a wake-up that was meant for this sleep, and its sender sends no second one for the
    // same sleep. A new sleep is then announced. The sender's bit was set before, so the announcement sees it, and
    // later events wake the new sleep.
    if busy || !(device.is_door_parked() || device.park_door()) {
        *device.sleep_level() = was;
        match was {
            SleepLevel::Armed => wake_listener(device),
            _ => wake(device),
        }
        return false;
    }
    if was == SleepLevel::Armed {
        *device.sleep_level() = was;
    }
    true
}

/// The listener, for which the device is armed, is awake and about to poll.
pub(super) fn wake_listener(device: &mut impl Sleeper) {
    device.wake_door();
    device.check_sockets_soon();
}

/// Makes the device awake: hot links are checked in every poll again.
pub(super) fn wake(device: &mut impl Sleeper) {
    *device.sleep_level() = SleepLevel::Awake;
    device.wake_door();
    device.set_hot_polled(true);
    device.set_waiting_wants(false);
    device.check_sockets_soon();
}
