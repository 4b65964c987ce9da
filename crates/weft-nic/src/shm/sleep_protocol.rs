//! How a side stops looking at its rings, goes to sleep and wakes, and how the other side hears of it: the
//! steps, in their order.
//!
//! Place in the data flow: `link.rs` asks here after every publication and every release of space whether the
//! peer's doorbell is to be rung; `sleep.rs` says what each step is for a whole device. This file is apart so
//! that a model checker can put its own device, atomics and fences under it (`tests/loom_shm.rs`).
//!
//! Why nothing is lost: the rare side changes a word (`polled`, `wants_space`), fences, and looks once more
//! for what the word is about; the frequent side publishes (or releases space), orders, and looks at the
//! word. One of them sees the other (doorbell.rs).

use super::sync::{AtomicU32, Ordering, fence, light_fence};

/// Whether the peers were told that nobody polls, and until when.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SleepLevel {
    /// They were not: hot links are looked at.
    Awake,
    /// Until the next poll.
    Parked,
    /// Polls are made now and then, but nobody relies on them.
    Armed,
}

/// The frequent side, after a publication or a release of space: whether the peer has set `word`.
/// `must_fence`: the peer's fences do not reach us.
#[inline(always)]
pub(super) fn is_set(word: &AtomicU32, must_fence: bool) -> bool {
    if must_fence {
        fence(Ordering::SeqCst);
    } else {
        light_fence();
    }
    word.load(Ordering::Relaxed) != 0
}

/// The rare side. Before relying on the peer's having seen it: fence, then look once more.
pub(super) fn set(word: &AtomicU32, to: bool) {
    word.store(u32::from(to), Ordering::SeqCst);
}

/// Tells the peer that its ring is not looked at in every poll any more: look once more after this. False: it
/// is, for there is no fence.
pub(super) fn stop_polling(polled: &AtomicU32, awake: bool, fence: impl FnOnce() -> bool) -> bool {
    set(polled, false);
    let fenced = fence();
    if !fenced {
        set(polled, awake);
    }
    fenced
}

/// A device, as far as it is concerned with sleep.
pub(super) trait Sleeper {
    /// Whether the peers were told that nobody polls.
    fn sleep_level(&mut self) -> &mut SleepLevel;
    /// Whether a peer has rung.
    fn is_rung(&self) -> bool;
    /// Announces a sleep. False, and not announced, if somebody has rung.
    fn park_door(&mut self) -> bool;
    /// Whether a sleep is announced, and no wake-up was taken since.
    fn is_door_parked(&self) -> bool;
    /// Takes the announcement back.
    fn wake_door(&self);
    /// Sets `polled` of all links that are looked at in every poll.
    fn set_hot_polled(&self, polled: bool);
    /// Sets `wants_space` of all links that may wait for space, if they do.
    fn set_waiting_wants(&self, wants: bool);
    /// Whether there are any.
    fn may_wait_for_space(&self) -> bool;
    /// The rare side's fence. False: it is refused.
    fn fence(&self) -> bool;
    /// A last look before sleeping: whether something has come meanwhile.
    fn has_work(&mut self) -> bool;
    /// Has the next poll look at the sockets: there are wake-ups, and whatever else has ended a sleep.
    fn check_sockets_soon(&mut self);
}

/// Announces a sleep. False: there is something to poll, and nothing is announced.
pub(super) fn park(device: &mut impl Sleeper) -> bool {
    if device.is_rung() {
        return false;
    }
    let was = std::mem::replace(device.sleep_level(), SleepLevel::Parked);
    if was == SleepLevel::Awake {
        device.set_hot_polled(false);
    }
    device.set_waiting_wants(true);
    // The announcement comes before the fence, the looks after it. Of a device that is held the peers have
    // known since an earlier fence that nobody looks at their rings; only what waits for space is news.
    let announced = device.park_door();
    let news = was == SleepLevel::Awake || device.may_wait_for_space();
    let fenced = announced && (!news || device.fence());
    let busy = !fenced || device.has_work() || device.is_rung();
    // A wake-up that the look has taken off a socket may have been for this sleep, and its sender will send
    // no other: for a new one it will. Its bit was set before, and is seen now.
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

/// The caller of a [`park`] that is held is awake, and about to poll.
pub(super) fn wake_listener(device: &mut impl Sleeper) {
    device.wake_door();
    device.check_sockets_soon();
}

/// Hot links are looked at again.
pub(super) fn wake(device: &mut impl Sleeper) {
    *device.sleep_level() = SleepLevel::Awake;
    device.wake_door();
    device.set_hot_polled(true);
    device.set_waiting_wants(false);
    device.check_sockets_soon();
}
