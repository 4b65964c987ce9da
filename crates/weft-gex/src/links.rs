//! The engine of a rank, with the page that shows its counters to `weft stat` and `weft top`.
//!
//! Place in the data flow: `job` keeps it behind its gate. The engine counts active messages; accesses to mapped memory
//! pass no engine and are counted nowhere.

use weft_engine::Engine;
use weft_nic::{Device as _, Devices};
use weft_observe::{Counters, INTERVAL, Page, ROUNDS_PER_CHECK, now_ns};

use crate::env;
use crate::error::Error;
use crate::far;

/// The engine and its page.
pub(crate) struct Links {
    engine: Box<Engine<Devices>>,
    /// `None`: `FI_WEFT_STATS=no`, or the system refuses it.
    page: Option<Page>,
    rounds: u64,
}

impl Links {
    /// Publishes the counters of an engine, for a rank of a job.
    pub(crate) fn new(engine: Box<Engine<Devices>>, rank: u32, ranks: u32) -> Result<Self, Error> {
        let wanted = env::yes("FI_WEFT_STATS")?.unwrap_or(true);
        let page = if wanted { Page::new(Some((rank.into(), ranks.into()))) } else { None };
        let mut links = Self { engine, page, rounds: 0 };
        links.publish(0);
        Ok(links)
    }

    /// The engine.
    #[inline(always)]
    pub(crate) fn engine(&mut self) -> &mut Engine<Devices> {
        &mut self.engine
    }

    /// Makes one round of progress. Returns the number of events.
    #[inline(always)]
    pub(crate) fn progress(&mut self) -> usize {
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS_PER_CHECK) {
            self.publish(0);
        }
        let events = self.engine.progress();
        if !self.engine.completions().is_empty() {
            far::finish(self.engine.completions());
        }
        events
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
        let counters = Counters { rounds: self.rounds, sleepers, ..Counters::default() };
        if let Some(page) = &mut self.page {
            page.publish_if_due(&mut self.engine, INTERVAL, now_ns(), || counters);
        }
    }
}
