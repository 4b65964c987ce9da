//! A job: the steps of each rank, and the messages that it receives.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use weft_record::Omitted;
use weft_scale::step::Meeting;
use weft_scale::{Arrival, Programs, Step};

/// A message that a rank receives: its sender, its number among those between the two, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub from: u32,
    /// The number, as in [`Step::Send`].
    pub number: u32,
    /// The length.
    pub bytes: u64,
}

/// The program of a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    /// By ordinal.
    pub(crate) messages: Vec<Message>,
    pub(crate) ordinals: FxHashMap<(u32, u32), u32>,
    /// By number.
    pub(crate) meetings: FxHashMap<u32, Meeting>,
}

/// The programs of all ranks of a job.
#[derive(Clone, Debug, Default)]
pub struct Job {
    programs: Vec<Program>,
    /// Receives without a send, which the programs leave out: a process was killed, or not recorded.
    pub(crate) unmatched: usize,
    /// Calls that are not recorded, of all ranks.
    pub(crate) omitted: BTreeMap<Omitted, usize>,
    /// The nanoseconds for which the job ran, if it was recorded to its end.
    pub(crate) recorded_ns: Option<u64>,
}

impl Job {
    pub(crate) fn new(mut programs: Vec<Program>) -> Self {
        for program in &mut programs {
            let messages = program.messages.iter().zip(0..);
            program.ordinals = messages.map(|(message, ordinal)| ((message.from, message.number), ordinal)).collect();
        }
        Self { programs, unmatched: 0, omitted: BTreeMap::new(), recorded_ns: None }
    }

    /// The steps of a rank.
    #[must_use]
    pub fn steps(&self, rank: u32) -> &[Step] {
        self.programs.get(rank as usize).map_or(&[], |program| &program.steps)
    }

    /// The messages that a rank receives, by the ordinals of [`Step::Wait`].
    #[must_use]
    pub fn messages(&self, rank: u32) -> &[Message] {
        self.programs.get(rank as usize).map_or(&[], |program| &program.messages)
    }

    /// Receives without a send, which are left out.
    #[must_use]
    pub const fn unmatched(&self) -> usize {
        self.unmatched
    }

    /// Calls that are not recorded, of all ranks.
    #[must_use]
    pub const fn omitted(&self) -> &BTreeMap<Omitted, usize> {
        &self.omitted
    }

    /// The nanoseconds for which the job ran, if it was recorded to its end.
    #[must_use]
    pub const fn recorded_ns(&self) -> Option<u64> {
        self.recorded_ns
    }

    /// All computation of a rank, in picoseconds.
    #[must_use]
    pub fn computed_ps(&self, rank: u32) -> u64 {
        let computed = |step: &Step| if let Step::Compute { ps } = step { *ps } else { 0 };
        self.steps(rank).iter().map(computed).sum()
    }
}

impl Programs for Job {
    fn ranks(&self) -> u32 {
        u32::try_from(self.programs.len()).unwrap_or(u32::MAX)
    }

    fn step(&self, rank: u32, index: u32) -> Option<Step> {
        self.steps(rank).get(index as usize).copied()
    }

    fn arrival(&self, rank: u32, from: u32, number: u32) -> Option<Arrival> {
        let program = self.programs.get(rank as usize)?;
        let ordinal = *program.ordinals.get(&(from, number))?;
        let bytes = program.messages.get(ordinal as usize)?.bytes;
        Some(Arrival { ordinal, bytes })
    }

    fn meeting(&self, rank: u32, number: u32) -> Option<Meeting> {
        self.programs.get(rank as usize)?.meetings.get(&number).copied()
    }

    fn most_arrivals(&self) -> u32 {
        let most = self.programs.iter().map(|program| program.messages.len()).max().unwrap_or(0);
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}
