//! The engine of a rank, with the page that shows its counters to `weft stat` and `weft top`.
//!
//! Place in the data flow: `job` keeps it behind its gate. The engine counts active messages; accesses to mapped memory
//! pass no engine and are counted nowhere.
//!
//! The thread that serves peers while the client computes comes here, too ([`crate::attend`]). While it listens, the
//! device is armed, and peers ring for each message. The client's polls end that: they are counted down from
//! [`POLLS_WHILE_LISTENING`].

use std::sync::Arc;

use weft_nic::Device as _;
use weft_observe::{Counters, INTERVAL, Page, ROUNDS_PER_CHECK, now_ns};

use crate::attend::{Bell, Next, Record, Sleeps};
use crate::error::Error;
use crate::far;
use crate::meet::RankEngine;
use crate::platform;

/// The engine and its page.
pub(crate) struct Links {
    engine: Box<RankEngine>,
    /// `None`: `FI_WEFT_STATS=no`, or the system refuses it.
    page: Option<Page>,
    /// Rounds of the client.
    rounds: u64,
    /// Rounds of the thread that serves peers.
    rounds_served: u64,
    /// Polls of the client after which nothing listens any more. 0: nothing does.
    polls_left: u32,
    /// Wakes that thread.
    bell: Arc<Bell>,
}

/// Polls of the client beside a listener before the client serves peers alone.
const POLLS_WHILE_LISTENING: u32 = 64;
/// Rounds of the thread that serves peers before it leaves the engine for a moment.
const ROUNDS_INSIDE: usize = 32;

impl Links {
    /// Publishes the counters of an engine, for a rank of a job.
    pub(crate) fn new(engine: Box<RankEngine>, rank: u32, ranks: u32, bell: Arc<Bell>) -> Result<Self, Error> {
        let page = platform::page(rank, ranks)?;
        let mut links = Self { engine, page, rounds: 0, rounds_served: 0, polls_left: 0, bell };
        links.publish(0);
        Ok(links)
    }

    /// Makes one round of progress. Returns the number of events.
    #[inline(always)]
    pub(crate) fn progress(&mut self) -> usize {
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS_PER_CHECK) {
            self.publish(0);
        }
        let events = self.round();
        if self.polls_left > 0 {
            self.polled_beside_listener();
        }
        events
    }

    /// Uses the engine for an operation of the client.
    #[inline(always)]
    pub(crate) fn operate<R>(&mut self, work: impl FnOnce(&mut RankEngine) -> R) -> R {
        let result = work(&mut self.engine);
        if self.polls_left > 0 && !self.engine.nic().is_idle() {
            // No arrival will announce what is left to do.
            self.bell.ring();
        }
        result
    }

    #[inline(always)]
    fn round(&mut self) -> usize {
        let events = self.engine.progress();
        if !self.engine.completions().is_empty() {
            far::finish(self.engine.completions());
        }
        events
    }

    /// The client's poll may have taken the arrival for which the listener would have been woken.
    #[cold]
    fn polled_beside_listener(&mut self) {
        self.polls_left -= 1;
        if self.polls_left == 0 {
            self.engine.nic_mut().wake();
        } else if !self.engine.nic().is_armed() && !self.engine.nic_mut().arm() {
            self.bell.ring();
        }
    }

    /// Serves peers for a client that computes.
    #[cold]
    pub(crate) fn attend(&mut self, record: &mut Record, sleeps: Sleeps) -> Next {
        if let Some(time) = record.look(self.rounds, sleeps) {
            return Next::After(time);
        }
        if self.polls_left > 0 {
            self.engine.nic_mut().wake_listener();
        }
        let mut events = 0;
        for _ in 0..ROUNDS_INSIDE {
            self.rounds_served += 1;
            match self.round() {
                0 => break,
                more => events += more,
            }
        }
        if events > 0 {
            record.worked();
        }
        if events > 0 || record.spins() {
            return Next::Now;
        }
        if self.engine.has_work() {
            return record.again();
        }
        if !self.engine.nic_mut().arm() {
            return Next::Now;
        }
        self.polls_left = POLLS_WHILE_LISTENING;
        self.publish(1);
        Next::Listen
    }

    /// Prepares a sleep. False: there is something to poll, or work to go on with.
    pub(crate) fn park(&mut self) -> bool {
        if self.engine.has_work() {
            return false;
        }
        self.publish(1);
        self.engine.nic_mut().park()
    }

    #[cold]
    fn publish(&mut self, sleepers: u64) {
        let counters = Counters { rounds: self.rounds + self.rounds_served, sleepers, ..Counters::default() };
        if let Some(page) = &mut self.page {
            page.publish_if_due(&mut self.engine, INTERVAL, now_ns(), || counters);
        }
    }
}
