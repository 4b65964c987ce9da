//! A barrier made of deferred work alone: recursive doubling over counters. With automatic progress no rank
//! calls libfabric between its start and its release, which it sees in its memory.
//!
//! A counter has no order: a message of step k may arrive before step k-1 has ended. The counter of each step
//! gets one from the step's receive, and one from a counter-add that the step before triggers. Only both
//! together trigger the next step. Ranks beyond the largest power of two first signal a rank within it, which
//! releases them at the end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use weft_fi_sys::*;

use crate::client::{Lib, close};
use crate::rig::{Cntr, Request, Work, queue};
use crate::side::{PATIENCE, Side, Watched, memory, scenes};

/// The number of rounds. The marks of all rounds differ in their first byte.
const ROUNDS: u64 = 100;
const KEY: u64 = 0xba;
/// Steps as part of tags.
const SIGNAL: u64 = 0x80;
const RELEASE: u64 = 0x81;

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("of_two", |lib| barriers(lib, 2)),
            ("of_three", |lib| barriers(lib, 3)),
            ("of_four", |lib| barriers(lib, 4)),
            ("of_five", |lib| barriers(lib, 5)),
        ],
    );
}

/// A rank: its endpoint, its counters, and the memory in which it sees the end of a barrier.
struct Rank<'a> {
    side: Side<'a>,
    doorbell: Cntr,
    counters: Vec<Cntr>,
    flag: Watched,
    mr: *mut fid_mr,
    requests: Vec<Request>,
}

// One thread uses a rank at a time.
unsafe impl Send for Rank<'_> {}
unsafe impl Sync for Rank<'_> {}

fn tag(round: u64, step: u64) -> u64 {
    round << 8 | step
}

impl<'a> Rank<'a> {
    fn new(lib: &'a Lib) -> Self {
        let side = Side::with(lib, 0, |hints| {
            hints.get().caps = FI_MSG | FI_TAGGED | FI_RMA | FI_TRIGGER;
            hints.domain().data_progress = FI_PROGRESS_AUTO;
            hints.domain().control_progress = FI_PROGRESS_AUTO;
            (hints.tx().size, hints.rx().size) = (4096, 4096);
        });
        let memory = memory(8);
        let flag = Watched::new(memory);
        let mr = side.register(memory, FI_REMOTE_WRITE, KEY);
        let doorbell = Cntr(side.opened.cntr());
        Self { side, doorbell, counters: Vec::new(), flag, mr, requests: Vec::new() }
    }

    fn cntr(&mut self) -> Cntr {
        let cntr = Cntr(self.side.opened.cntr());
        self.counters.push(cntr);
        cntr
    }

    fn work(&mut self, trigger: Cntr, threshold: u64, completion: Option<Cntr>, work: Work) {
        self.requests.push(queue(&self.side, trigger, threshold, completion, work));
    }

    /// Queues the programs of all rounds. `dests` are the ranks' addresses.
    fn program(&mut self, me: usize, dests: &[u64]) {
        let ranks = dests.len();
        let inner = 1 << ranks.ilog2();
        let (sent, released) = (self.cntr(), self.cntr());
        if me >= inner {
            for round in 0..ROUNDS {
                let partner = dests[me - inner];
                self.work(self.doorbell, 0, Some(released), Work::TaggedRecv(memory(1), tag(round, RELEASE)));
                self.work(
                    self.doorbell,
                    round + 1,
                    Some(sent),
                    Work::TaggedSend(memory(1), partner, tag(round, SIGNAL)),
                );
                self.over(released, round + 1, sent, round, dests[me]);
            }
            return;
        }
        let extra = dests.get(me + inner).copied();
        // A rank enters by its own start, and by the signal of the rank beyond if there is one.
        let entered = self.cntr();
        let needed = 1 + u64::from(extra.is_some());
        let steps: Vec<Cntr> = (0..ranks.ilog2()).map(|_| self.cntr()).collect();
        for round in 0..ROUNDS {
            if extra.is_some() {
                self.work(self.doorbell, 0, Some(entered), Work::TaggedRecv(memory(1), tag(round, SIGNAL)));
            }
            self.work(self.doorbell, round + 1, None, Work::Add(entered, 1));
            let (mut before, mut threshold) = (entered, needed * (round + 1));
            for (step, &cntr) in steps.iter().enumerate() {
                let partner = dests[me ^ 1 << step];
                let name = tag(round, step as u64);
                self.work(self.doorbell, 0, Some(cntr), Work::TaggedRecv(memory(1), name));
                self.work(before, threshold, None, Work::Add(cntr, 1));
                self.work(before, threshold, Some(sent), Work::TaggedSend(memory(1), partner, name));
                (before, threshold) = (cntr, 2 * (round + 1));
            }
            if let Some(extra) = extra {
                self.work(before, threshold, Some(sent), Work::TaggedSend(memory(1), extra, tag(round, RELEASE)));
            }
            self.over(before, threshold, sent, round, dests[me]);
        }
    }

    /// The rank writes the end of the round to its own memory.
    fn over(&mut self, trigger: Cntr, threshold: u64, completion: Cntr, round: u64, me: u64) {
        let mark = (round + 1).to_le_bytes().to_vec().leak();
        let place = fi_rma_iov { addr: 0, len: 8, key: KEY };
        self.work(trigger, threshold, Some(completion), Work::Write(mark, me, place));
    }

    /// Enters and leaves all barriers. `entered` counts the barriers that each rank has entered.
    fn run(&self, me: usize, entered: &[AtomicU64]) {
        for round in 1..=ROUNDS {
            // Ranks enter at different times. Each rank is the last one now and then.
            if (round as usize + me).is_multiple_of(entered.len()) {
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
            assert_ne!(u64::from(self.flag.bytes()[0]), round, "rank {me} was released before it entered");
            entered[me].store(round, Ordering::SeqCst);
            self.doorbell.add(1);
            let end = Instant::now() + PATIENCE;
            while u64::from(unsafe { self.flag.bytes().as_ptr().read_volatile() }) != round {
                assert!(Instant::now() < end, "rank {me} hangs in round {round}");
                std::thread::yield_now();
            }
            for (rank, entered) in entered.iter().enumerate() {
                assert!(
                    entered.load(Ordering::SeqCst) >= round,
                    "rank {me} has left round {round}, which rank {rank} has not entered"
                );
            }
        }
    }

    fn finish(mut self) {
        for cntr in &self.counters {
            assert_eq!(cntr.errors(), 0);
        }
        self.side.close_ep();
        assert_eq!(close(self.mr), 0);
        for cntr in self.counters.iter().chain([&self.doorbell]) {
            assert_eq!(close(cntr.0), 0, "fi_close(cntr)");
        }
    }
}

fn barriers(lib: &Lib, count: usize) {
    let mut ranks: Vec<_> = (0..count).map(|_| Rank::new(lib)).collect();
    let names: Vec<_> = ranks.iter().map(|rank| rank.side.name()).collect();
    for (me, rank) in ranks.iter_mut().enumerate() {
        let dests: Vec<_> = names.iter().map(|name| rank.side.insert(name)).collect();
        rank.program(me, &dests);
    }
    let entered: Vec<_> = (0..count).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (me, rank) in ranks.iter().enumerate() {
            let entered = &entered;
            scope.spawn(move || rank.run(me, entered));
        }
    });
    ranks.into_iter().for_each(Rank::finish);
}
