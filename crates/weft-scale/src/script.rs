//! Programs that are written out step by step, such as protocols between two ranks.
//!
//! Place in the data flow: [`crate::figure`] writes them, [`crate::machine`] performs them.

use rustc_hash::FxHashMap;

use crate::step::{Arrival, Programs, Step, Unit};

/// Programs of a few ranks, with their messages matched.
#[derive(Clone, Debug, Default)]
pub struct Script {
    ranks: Vec<Member>,
    most_arrivals: u32,
}

/// The program of one rank.
#[derive(Clone, Debug, Default)]
struct Member {
    steps: Vec<Step>,
    /// By sender and number.
    arrivals: FxHashMap<(u32, u32), Arrival>,
    /// Arrivals so far, by sender.
    counts: FxHashMap<u32, u32>,
}

/// A message of a script, for which its receiver waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Message {
    from: u32,
    to: u32,
    ordinal: u32,
}

impl Script {
    /// Empty programs.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        Self { ranks: vec![Member::default(); ranks], most_arrivals: 0 }
    }

    /// Adds a step to a rank's program.
    pub fn push(&mut self, rank: u32, step: Step) {
        self.ranks[rank as usize].steps.push(step);
    }

    /// A rank computes.
    pub fn compute(&mut self, rank: u32, ps: u64) {
        self.push(rank, Step::Compute { ps });
    }

    /// A rank copies bytes.
    pub fn copy(&mut self, rank: u32, bytes: u64) {
        self.push(rank, Step::Copy { bytes });
    }

    /// A rank sends a message.
    pub fn send(&mut self, from: u32, to: u32, bytes: u64) -> Message {
        let (message, number) = self.expect(from, to, bytes);
        self.push(from, Step::Send { to, number, bytes });
        message
    }

    /// A rank has the device of another one answer with this many bytes.
    pub fn ask(&mut self, rank: u32, to: u32, bytes: u64, unit: Unit) -> Message {
        let (message, number) = self.expect(to, rank, bytes);
        self.push(rank, Step::Ask { to, number, unit });
        message
    }

    /// The receiver of a message waits for it.
    pub fn wait(&mut self, message: Message) {
        self.push(message.to, Step::Wait { from: message.from, ordinal: message.ordinal });
    }

    /// A message that the receiver waits for at once.
    pub fn pass(&mut self, from: u32, to: u32, bytes: u64) {
        let message = self.send(from, to, bytes);
        self.wait(message);
    }

    fn expect(&mut self, from: u32, to: u32, bytes: u64) -> (Message, u32) {
        let member = &mut self.ranks[to as usize];
        let ordinal = u32::try_from(member.arrivals.len()).unwrap_or(u32::MAX);
        let count = member.counts.entry(from).or_insert(0);
        let number = *count;
        *count += 1;
        member.arrivals.insert((from, number), Arrival { ordinal, bytes });
        self.most_arrivals = self.most_arrivals.max(ordinal + 1);
        (Message { from, to, ordinal }, number)
    }
}

impl Programs for Script {
    fn ranks(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    fn step(&self, rank: u32, index: u32) -> Option<Step> {
        self.ranks.get(rank as usize)?.steps.get(index as usize).copied()
    }

    fn arrival(&self, rank: u32, from: u32, number: u32) -> Option<Arrival> {
        self.ranks.get(rank as usize)?.arrivals.get(&(from, number)).copied()
    }

    fn most_arrivals(&self) -> u32 {
        self.most_arrivals
    }
}
