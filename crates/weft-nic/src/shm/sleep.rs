//! Hot and cold links, and sleeping.
//!
//! Place in the data flow: part of [`Shm`], called by `poll` and by the layer that decides to sleep.
//!
//! A link is *hot* or *cold*. The device checks the ring of a hot link in every poll, and informs the peer by
//! `polled` = 1. The peer of a cold link rings the doorbell. A link becomes hot when a record arrives on it
//! and the hot list has room. It becomes cold when it has been quiet and another link needs its place, or
//! when the device sleeps.
//!
//! Becoming cold is the rare side of an asymmetric fence (`doorbell.rs`): clear `polled`, fence, check the
//! ring once more. The producer of a record that this check misses sees `polled` = 0 and rings.
//!
//! To sleep, the device makes all links cold, announces the sleep in its sleep page, and tells peers with
//! full rings that it waits for space. The descriptor to sleep on is an epoll instance. It contains the
//! listeners, the life lines (for hang-ups and wake-up bytes) and, during handshakes, a timer.

use std::os::fd::{AsFd, BorrowedFd};

use weft_engine::nic::{LinkId, Sink};

use super::sleep_protocol::{self, SleepLevel, Sleeper};
use super::{HOT_LINKS, Shm, Slot, page};

/// Number of quiet polls after which a hot link may be replaced by another.
const QUIET_POLLS: u32 = 4096;
/// Number of polls between two such replacements. Each costs a membarrier of some microseconds.
const DEMOTION_POLLS: u64 = 1024;

impl Shm {
    /// The descriptor to sleep on. After [`Shm::park`] it becomes readable when there is something to poll.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Prepares for a sleep on [`Shm::wait_fd`]. Returns false, without effect, if there is something to
    /// poll. After the sleep, the caller calls `wake`, or simply `poll`.
    #[must_use]
    pub fn park(&mut self) -> bool {
        if self.sleep_level == SleepLevel::Parked {
            return true;
        }
        if !self.events.is_empty() || !self.dying.is_empty() || !sleep_protocol::park(self) {
            return false;
        }
        self.arm_timer();
        true
    }

    /// Like [`Shm::park`], for a caller whose sleep is not ended by polls of other threads.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        let parked = self.park();
        if parked {
            self.sleep_level = SleepLevel::Armed;
        }
        parked
    }

    /// Whether peers will wake a sleeper on [`Shm::wait_fd`], and no work remains before.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.has_nothing() && self.door.is_parked()
    }

    /// Whether the device has no work before the next arrival. If the caller sleeps, all wanted notifications
    /// have been requested.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.has_nothing() && self.waiting.is_empty()
    }

    fn has_nothing(&self) -> bool {
        self.busy.is_empty() && self.events.is_empty() && self.dying.is_empty()
    }

    /// The caller of [`Shm::arm`] is awake, and about to poll.
    pub fn wake_listener(&mut self) {
        sleep_protocol::wake_listener(self);
    }

    /// The caller is awake.
    pub fn wake(&mut self) {
        if self.sleep_level != SleepLevel::Awake {
            sleep_protocol::wake(self);
        }
    }

    pub(super) fn is_hot(&self, id: u32) -> bool {
        matches!(self.links.get(id as usize), Some(Slot::Up(link)) if link.hot)
    }

    /// Polls the links whose doorbell bits are set.
    #[cold]
    pub(super) fn poll_rung_slots<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut calls = 0;
        let mut summary = self.door.page().take_summary();
        while summary != 0 {
            let index = summary.trailing_zeros();
            summary &= summary - 1;
            let mut bits = self.door.page().take_word(index);
            while bits != 0 {
                let slot = index * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                calls += self.poll_slot(slot, sink);
            }
        }
        calls
    }

    /// Polls all links that share a bit.
    fn poll_slot<S: Sink>(&mut self, slot: u32, sink: &mut S) -> usize {
        let mut calls = 0;
        let mut id = slot;
        while (id as usize) < self.links.len() {
            if matches!(&self.links[id as usize], Slot::Up(link) if link.ready()) {
                calls += self.poll_link(id, sink);
                self.make_hot(id, sink);
            }
            id += page::SLOTS;
        }
        calls
    }

    /// Makes a cold link hot after an arrival, if the hot list has room.
    fn make_hot<S: Sink>(&mut self, id: u32, sink: &mut S) {
        let polls = self.polls;
        let draining = matches!(self.links.get(id as usize), Some(Slot::Up(link)) if link.hot || link.hung_up);
        if draining || (self.hot.len() >= HOT_LINKS && !self.make_hot_room(sink)) {
            return;
        }
        let polled = self.sleep_level == SleepLevel::Awake;
        if let Some(link) = self.link(LinkId(id)) {
            link.hot = true;
            link.touch(polls);
            link.set_polled(polled);
            self.hot.push(id);
        }
    }

    /// Makes the quietest hot link cold, if it has been quiet for long enough. Returns whether the hot list
    /// has room.
    fn make_hot_room<S: Sink>(&mut self, sink: &mut S) -> bool {
        if self.polls < self.next_demotion {
            return false;
        }
        self.next_demotion = self.polls + DEMOTION_POLLS;
        let quiet = |id: &u32| match &self.links[*id as usize] {
            Slot::Up(link) => link.quiet_polls(self.polls),
            _ => u32::MAX,
        };
        let Some(&quietest) = self.hot.iter().max_by_key(|id| quiet(id)) else { return true };
        if quiet(&quietest) < QUIET_POLLS {
            return false;
        }
        let Some(Slot::Up(link)) = self.links.get(quietest as usize) else { return false };
        if !sleep_protocol::stop_polling(link.polled(), self.sleep_level == SleepLevel::Awake, || {
            self.barriers.fence().is_ok()
        }) {
            return false;
        }
        self.make_cold(quietest);
        // The check after the fence finds records that were published before the peer could see `polled` = 0.
        if matches!(&self.links[quietest as usize], Slot::Up(link) if link.ready()) {
            self.poll_link(quietest, sink);
        }
        true
    }

    /// Removes a link from the hot list.
    pub(super) fn make_cold(&mut self, id: u32) {
        if let Some(link) = self.link(LinkId(id)) {
            link.hot = false;
            link.release_bulk();
        }
        self.hot.retain(|&hot| hot != id);
    }
}

/// The steps of `sleep_protocol.rs` for a device with all its links.
impl Sleeper for Shm {
    fn sleep_level(&mut self) -> &mut SleepLevel {
        &mut self.sleep_level
    }

    fn is_rung(&self) -> bool {
        self.door.page().is_rung()
    }

    fn park_door(&mut self) -> bool {
        self.door.park()
    }

    fn is_door_parked(&self) -> bool {
        self.door.is_parked()
    }

    fn wake_door(&self) {
        self.door.wake();
    }

    fn may_wait_for_space(&self) -> bool {
        !(self.waiting.is_empty() && self.busy.is_empty())
    }

    fn fence(&self) -> bool {
        self.barriers.fence().is_ok()
    }

    fn check_sockets_soon(&mut self) {
        self.control_due = true;
    }

    fn has_work(&mut self) -> bool {
        if self.hot.iter().any(|&id| matches!(&self.links[id as usize], Slot::Up(link) if link.ready())) {
            return true;
        }
        // Bulk transfers proceed, except for pushes that wait for space and transfers whose remainder the
        // peer copies.
        let mut came = false;
        for at in 0..self.busy.len() {
            if let Some(Slot::Up(link)) = self.links.get_mut(self.busy[at] as usize) {
                came |= link.can_copy() || link.has_wanted_space();
            }
        }
        let mut at = 0;
        while let Some(&id) = self.waiting.get(at) {
            let Some(Slot::Up(link)) = self.links.get_mut(id as usize) else {
                self.waiting.swap_remove(at);
                continue;
            };
            let freed = link.has_wanted_space();
            came |= freed;
            if freed || !link.wants_space() {
                link.waiting = false;
                link.set_wants_space(false);
                self.waiting.swap_remove(at);
            } else {
                at += 1;
            }
        }
        // Pending events of the sockets would end the sleep at once.
        came || self.sockets_ready()
    }

    fn set_hot_polled(&self, polled: bool) {
        for &id in &self.hot {
            if let Some(Slot::Up(link)) = self.links.get(id as usize) {
                link.set_polled(polled);
            }
        }
    }

    fn set_waiting_wants(&self, wants: bool) {
        for &id in self.waiting.iter().chain(&self.busy) {
            if let Some(Slot::Up(link)) = self.links.get(id as usize) {
                link.set_wants_space(wants && link.wants_space());
            }
        }
    }
}
