//! Sends and receives of all ranks, matched with one another.
//!
//! Place in the data flow: [`crate::build()`] and `crate::goal` make the acts of each rank. [`matched`] makes a [`Job`]
//! of them.
//!
//! The n-th send of a rank to another with a key belongs to the n-th receive that has been started there for that rank
//! with the same key.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};
use weft_scale::Step;
use weft_scale::step::{Meeting, Unit};

use crate::job::{Job, Message, Program};

/// The key that tells messages of one pair of ranks apart: a context and a tag.
pub(crate) type Key = (u64, u64);

/// A step of a rank, before its receives are matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A step that concerns no other rank.
    Step(Step),
    /// Starts a send.
    Send { to: u32, bytes: u64, key: Key },
    /// Waits for a receive, by its place in [`Acts::receives`].
    Wait(usize),
    /// Asks for memory of a peer, by the place in [`Acts::reads`].
    Read(usize),
    /// Waits for the bytes.
    Answer(usize),
    /// Waits for all at a meeting, by its place in [`Acts::meetings`].
    Met(usize),
}

/// A receive, in the order in which receives were started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) from: u32,
    pub(crate) key: Key,
}

/// All acts of a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acts {
    pub(crate) acts: Vec<Act>,
    pub(crate) receives: Vec<Receive>,
    /// Reads of the memory of peers: the peer, and the length.
    pub(crate) reads: Vec<(u32, u64)>,
    /// Meetings on a board, with their numbers.
    pub(crate) meetings: Vec<(u32, Meeting)>,
}

/// The context of writes to the memory of peers, which no receive belongs to.
pub(crate) const ACCESSES: u64 = u64::MAX;
/// Numbers of answers to reads.
const READS: u32 = 1 << 31;
/// Numbers of meetings. Messages have smaller ones.
pub(crate) const MEETINGS: u32 = 1 << 30;

/// Sends by sender, receiver and key: their numbers among all messages of the two, and their lengths.
type Sent = FxHashMap<(u32, u32, Key), VecDeque<(u32, u64)>>;

/// The steps of each rank's acts that need no match. The sends are added to `sent`.
fn unmatched_steps(ranks: &[Acts], sent: &mut Sent) -> Vec<Vec<Option<Step>>> {
    let mut steps = Vec::with_capacity(ranks.len());
    for (rank, acts) in (0..).zip(ranks) {
        let mut numbers = FxHashMap::<u32, u32>::default();
        let mut own = Vec::with_capacity(acts.acts.len());
        for act in &acts.acts {
            if let Act::Send { to, bytes, key } = *act {
                let number = numbers.entry(to).or_default();
                own.push(Some(Step::Send { to, number: *number, bytes }));
                sent.entry((rank, to, key)).or_default().push_back((*number, bytes));
                *number += 1;
            } else {
                own.push(if let Act::Step(step) = *act { Some(step) } else { None });
            }
        }
        steps.push(own);
    }
    steps
}

/// Matches the receives of a rank, and makes its program. Returns how many have no send.
fn program((rank, ranks): (u32, u32), acts: &Acts, own: Vec<Option<Step>>, sent: &mut Sent) -> (Program, usize) {
    let mut messages = Vec::new();
    let receives = acts.receives.iter().map(|&Receive { from, key }| {
        let (number, bytes) = sent.get_mut(&(from, rank, key))?.pop_front()?;
        messages.push(Message { from, number, bytes });
        u32::try_from(messages.len() - 1).ok()
    });
    let ordinals: Vec<Option<u32>> = receives.collect();
    let first_read = u32::try_from(messages.len()).unwrap_or(u32::MAX);
    messages.extend((READS..).zip(&acts.reads).map(|(number, &(from, bytes))| Message { from, number, bytes }));
    let first_meeting = u32::try_from(messages.len()).unwrap_or(u32::MAX);
    messages.extend(acts.meetings.iter().map(|&(number, _)| Message { from: rank, number, bytes: 0 }));
    let read = |at: usize| {
        let (number, &(to, _)) = (u32::try_from(at).ok()?, acts.reads.get(at)?);
        (to < ranks).then_some((to, number))
    };
    let step = |act: &Act, step: Option<Step>| match *act {
        Act::Wait(at) => {
            let (ordinal, from) = (ordinals.get(at).copied().flatten()?, acts.receives.get(at)?.from);
            Some(Step::Wait { from, ordinal })
        }
        Act::Read(at) => read(at).map(|(to, number)| Step::Ask { to, number: READS + number, unit: Unit::Memory }),
        Act::Answer(at) => read(at).map(|(from, number)| Step::Wait { from, ordinal: first_read + number }),
        Act::Met(at) => Some(Step::Wait { from: rank, ordinal: first_meeting + u32::try_from(at).ok()? }),
        Act::Send { .. } | Act::Step(_) => step,
    };
    let steps = own.into_iter().zip(&acts.acts).filter_map(|(own, act)| step(act, own)).collect();
    let unmatched = ordinals.iter().filter(|ordinal| ordinal.is_none()).count();
    let meetings = acts.meetings.iter().copied().collect();
    (Program { steps, messages, meetings, ..Program::default() }, unmatched)
}

/// Matches all receives, and makes the job.
pub(crate) fn matched(ranks: &[Acts]) -> Job {
    let mut sent = Sent::default();
    let steps = unmatched_steps(ranks, &mut sent);
    let count = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    let mut unmatched = 0;
    let mut programs = Vec::with_capacity(ranks.len());
    for ((rank, acts), own) in (0..).zip(ranks).zip(steps) {
        let (program, without) = program((rank, count), acts, own, &mut sent);
        programs.push(program);
        unmatched += without;
    }
    // Writes arrive, and no rank waits for them.
    for (&(from, to, (context, _)), rest) in &mut sent {
        if context == ACCESSES
            && let Some(program) = programs.get_mut(to as usize)
        {
            let writes = rest.drain(..).map(|(number, bytes)| Message { from, number, bytes });
            program.messages.extend(writes);
        }
    }
    // Messages that no rank receives are left out, too: the simulation knows no room for them.
    let surplus: Vec<(u32, u32, u32)> = sent
        .into_iter()
        .flat_map(|((from, to, _), rest)| rest.into_iter().map(move |(number, _)| (from, to, number)))
        .collect();
    let lost: FxHashSet<_> = surplus.into_iter().collect();
    for (rank, program) in (0..).zip(&mut programs) {
        program.steps.retain(|step| match *step {
            Step::Send { to, number, .. } => !lost.contains(&(rank, to, number)),
            _ => true,
        });
    }
    let mut job = Job::new(programs);
    job.unmatched = unmatched + lost.len();
    job
}
