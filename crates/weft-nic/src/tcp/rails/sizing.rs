//! Measures what the connections of a link carry, and changes their number as [`super::growth`] advises.
//!
//! Place in the data flow: each long push of a link begins or continues its measurement ([`Tcp::measure_link`]).
//! [`super::super::time`] calls [`Tcp::time_sizing`] while one is under way. The kernel counts the acknowledged bytes
//! of each connection.
//!
//! Invariants: one link of a device is measured at a time, so a device with many peers makes few connections in vain. A
//! link without long pushes is not measured. The side that dials the rails changes their number; the other follows.

use std::os::fd::AsFd;

use rustc_hash::FxHashMap;

use super::super::{LinkState, Tcp, sys};
use super::growth::{Advice, Carried, Growth};
use super::{Path, RAILS_MAX, Rail};

/// The interval in milliseconds between two samples.
const SAMPLE_MS: u64 = 25;
/// Stands for the first connection of a link among the numbers of its rails.
const FIRST: u32 = u32::MAX;

/// The search for the number of a link's connections.
#[derive(Debug)]
enum Sizing {
    Trying(Growth, Meter),
    /// The number stays.
    Settled,
}

/// Adds up the counters of connections that come and go.
#[derive(Debug, Default)]
struct Meter {
    /// The last counters of each connection, by its number.
    last: Vec<(u32, (u64, u64))>,
    bytes: u64,
    busy_us: u64,
}

impl Meter {
    /// Takes the counters of all connections. The time of the busiest one counts, because they are busy together.
    fn read(&mut self, now: Vec<(u32, (u64, u64))>) {
        let mut longest_us = 0;
        for &(number, (bytes, busy_us)) in &now {
            let last = self.last.iter().find(|(known, _)| *known == number);
            let &(_, (old_bytes, old_us)) = last.unwrap_or(&(number, (bytes, busy_us)));
            self.bytes += bytes.saturating_sub(old_bytes);
            longest_us = longest_us.max(busy_us.saturating_sub(old_us));
        }
        self.busy_us += longest_us;
        self.last = now;
    }
}

/// The searches of a device.
#[derive(Debug)]
pub(super) struct Sizings {
    links: FxHashMap<u32, Sizing>,
    /// The link that is measured now.
    current: Option<u32>,
    /// The time of the next sample.
    next_ms: u64,
}

impl Default for Sizings {
    fn default() -> Self {
        Self { links: FxHashMap::default(), current: None, next_ms: u64::MAX }
    }
}

impl Sizings {
    /// Ends the search of a link that is gone.
    #[inline]
    pub(super) fn forget(&mut self, id: u32) {
        if !self.links.is_empty() {
            self.links.remove(&id);
            self.current.take_if(|current| *current == id);
        }
    }
}

impl Tcp {
    /// Begins or continues the measurement of a link, which has a long push, unless another link is being measured.
    pub(super) fn measure_link(&mut self, id: u32) {
        if self.rails.sizings.current.is_some() {
            return;
        }
        let Some(session) = self.links.get(id).and_then(|link| link.session.as_ref()) else { return };
        let dialled_by_peer = self.rails.bundles.get(&id).is_some_and(|bundle| bundle.paths.is_empty());
        if session.is_near() || !session.can_be_dialled() || dialled_by_peer {
            return;
        }
        let first = self.config.streams.clamp(1, RAILS_MAX);
        let sizing =
            self.rails.sizings.links.entry(id).or_insert_with(|| Sizing::Trying(Growth::new(first), Meter::default()));
        if let Sizing::Trying(..) = sizing {
            self.rails.sizings.current = Some(id);
            self.plan_sample(sys::now_ms());
        }
    }

    fn plan_sample(&mut self, now_ms: u64) {
        self.rails.sizings.next_ms = now_ms + SAMPLE_MS;
        self.set_timer(self.rails.sizings.next_ms);
    }

    /// Takes a sample of the link that is being measured. A link without long pushes makes room for another one.
    pub(in super::super) fn time_sizing(&mut self, now_ms: u64) {
        let Some(id) = self.rails.sizings.current else { return };
        if now_ms < self.rails.sizings.next_ms {
            return self.set_timer(self.rails.sizings.next_ms);
        }
        let early = self.links.get(id).map_or(0, |link| link.tx.pushes());
        let counters = self.counters(id).filter(|_| early + self.rails.pushes(id) > 0);
        let there = self.links.get(id).and_then(|link| link.session.as_ref()).map(|session| session.socket());
        let sizing = self.rails.sizings.links.get_mut(&id);
        let (Some(Sizing::Trying(growth, meter)), Some(counters), Some(there)) = (sizing, counters, there) else {
            self.rails.sizings.current = None;
            return;
        };
        let up = counters.len() - 1;
        meter.read(counters);
        let carried = Carried { bytes: meter.bytes, busy_us: meter.busy_us, up, early: early > 0 };
        match growth.sample(carried) {
            Advice::Wait => {}
            Advice::Grow(count) => {
                let rate = growth.rate() / 1_000_000;
                log::debug!("tcp: long messages reach {there} with {rate} MB/s; {count} connections are tried");
                self.set_rails(id, count, now_ms);
            }
            Advice::Settle(count) => {
                let rate = growth.rate() / 1_000_000;
                log::info!("tcp: long messages reach {there} over {count} connections, with {rate} MB/s");
                self.rails.sizings.links.insert(id, Sizing::Settled);
                self.rails.sizings.current = None;
                return self.set_rails(id, count, now_ms);
            }
        }
        self.plan_sample(now_ms);
    }

    /// The counters of the first connection of a link, and of its rails that are up. `None`: the link is not up, or the
    /// kernel does not count.
    fn counters(&self, id: u32) -> Option<Vec<(u32, (u64, u64))>> {
        let link = self.links.get(id).filter(|link| matches!(link.state, LinkState::Up))?;
        let mut all = vec![(FIRST, sys::carried(link.socket.as_ref()?.as_fd())?)];
        for &index in self.rails.bundles.get(&id).map_or(&[][..], |bundle| bundle.rails.as_slice()) {
            if let Some(rail) = self.rails.all.get(index as usize).filter(|rail| rail.is_up()) {
                all.push((index, sys::carried(rail.socket.as_fd())?));
            }
        }
        Some(all)
    }

    /// Gives up rails that have never come up. Pushes go on over the first connection.
    fn stop_dialling(&mut self, id: u32) {
        let Some(bundle) = self.rails.bundles.get_mut(&id).filter(|bundle| bundle.out.is_empty()) else { return };
        bundle.paths.clear();
        for index in bundle.rails.clone() {
            self.lose_rail(index, "none has come up");
        }
    }

    /// Has this side dial a number of rails, and closes those beyond. One rail of several stays, because pushes may
    /// have segments on it.
    fn set_rails(&mut self, id: u32, count: usize, now_ms: u64) {
        let had = self.rails.bundles.get(&id).map_or(0, |bundle| bundle.paths.len());
        if (count < 2 && had == 0) || self.links.get(id).is_none() {
            return;
        }
        let bundle = self.rails.bundles.entry(id).or_default();
        bundle.paths.resize_with(count.max(1), Path::default);
        let surplus = |rail: &Rail| rail.dialled && usize::from(rail.ordinal) >= count.max(1);
        let all = bundle.rails.iter().copied();
        let surplus: Vec<u32> = all.filter(|&index| self.rails.all.get(index as usize).is_some_and(surplus)).collect();
        for index in surplus {
            self.lose_rail(index, "it carries no more");
        }
        if count < 2 && !self.rails.has_rail_up(id) {
            self.stop_dialling(id);
        }
        self.dial_rails(id, now_ms);
        self.plan_rail_scan();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_connections_that_come_and_go_add_up() {
        let mut meter = Meter::default();
        let mut read = |now: &[(u32, u64, u64)]| {
            meter.read(now.iter().map(|&(number, bytes, us)| (number, (bytes, us))).collect());
            (meter.bytes, meter.busy_us)
        };
        assert_eq!(read(&[(FIRST, 1000, 50)]), (0, 0));
        assert_eq!(read(&[(FIRST, 1500, 70)]), (500, 20));
        // Two more connections begin, and carry bytes at the same time.
        assert_eq!(read(&[(FIRST, 1500, 70), (0, 10, 1), (1, 10, 1)]), (500, 20));
        assert_eq!(read(&[(FIRST, 1500, 70), (0, 110, 11), (1, 210, 9)]), (800, 30));
        // One is replaced.
        assert_eq!(read(&[(FIRST, 1500, 70), (0, 5, 1), (1, 310, 19)]), (900, 40));
    }
}
