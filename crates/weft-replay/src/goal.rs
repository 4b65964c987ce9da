//! GOAL, the text format of LogGOPSim and ATLAHS for the programs of ranks.
//!
//! ```text
//! num_ranks 2
//! rank 0 {
//! l1: calc 100
//! l2: send 8b to 1 tag 0
//! l2 requires l1
//! }
//! rank 1 {
//! l1: recv 8b from 0 tag 0
//! }
//! ```
//!
//! Place in the data flow: [`write()`] gives the text of a [`Job`], [`read`] the job of a text.
//!
//! A job is one sequence for each rank. Its text therefore has each operation require the one in front of it. A text
//! may leave the order of operations open. Its job performs them in an order that the requirements allow, the first in
//! the text first, and awaits a message where the first operation requires it.
//!
//! Sources: Hoefler, Schneider and Lumsdaine, "LogGOPSim", 2010; Shen et al., "ATLAHS", 2025.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rustc_hash::FxHashMap;
use weft_scale::profile::Costs;
use weft_scale::{Programs, Step};

use crate::job::Job;
use crate::matching::{Act, Acts, MEETINGS, Receive, matched};

/// The most ranks of a text.
const MAX_RANKS: u32 = 1 << 20;

/// The text of a job. Copies and reductions become computation at these costs. Messages have their numbers as tags.
#[must_use]
pub fn write(job: &Job, costs: &Costs) -> String {
    let mut text = format!("num_ranks {}\n", job.ranks());
    for rank in 0..job.ranks() {
        let _ = writeln!(text, "\nrank {rank} {{");
        let mut label = 0;
        for step in job.steps(rank) {
            let cpu = &costs.cpu;
            let line = match *step {
                Step::Send { to, number, bytes } => format!("send {}b to {to} tag {number}", bytes.max(1)),
                Step::Wait { ordinal, .. } => match job.messages(rank).get(ordinal as usize) {
                    Some(message) if message.number < MEETINGS => {
                        format!("recv {}b from {} tag {}", message.bytes.max(1), message.from, message.number)
                    }
                    _ => continue,
                },
                Step::Compute { ps } => format!("calc {}", ps / 1000),
                Step::Copy { bytes } => format!("calc {}", cpu.copy_byte * bytes / 1000),
                Step::Reduce { bytes } => format!("calc {}", cpu.reduce_byte * bytes / 1000),
                // The format has no reads of memory and no boards.
                Step::Ask { .. } | Step::Drain | Step::Meet { .. } | Step::Slots { .. } | Step::Mark => continue,
                Step::Call if costs.collective.call == 0 => continue,
                Step::Call => format!("calc {}", costs.collective.call / 1000),
            };
            label += 1;
            let _ = writeln!(text, "l{label}: {line}");
            if label > 1 {
                let _ = writeln!(text, "l{label} requires l{}", label - 1);
            }
        }
        text.push_str("}\n");
    }
    text
}

/// Whether a text begins like one of this format.
#[must_use]
pub fn is_one(text: &str) -> bool {
    text.lines().map(str::trim).find(|line| !is_empty(line)).is_some_and(|line| line.starts_with("num_ranks"))
}

/// The reason for which a text is no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoalError {
    /// A line has another form.
    #[error("line {line}: `{text}` is not understood: {expected}")]
    Line {
        /// The number of the line.
        line: usize,
        /// Its text.
        text: String,
        /// The form that is expected.
        expected: &'static str,
    },
    /// Operations of a rank require one another.
    #[error("the operations of rank {0} require one another in a circle")]
    Circle(u32),
}

fn is_empty(line: &str) -> bool {
    line.is_empty() || line.starts_with('#') || line.starts_with("//")
}

/// An operation of a text.
#[derive(Clone, Copy, Debug)]
enum Action {
    Send { to: u32, bytes: u64, tag: u64 },
    Receive { from: u32, tag: u64 },
    Calc { ns: u64 },
}

/// The text's part about one rank.
#[derive(Debug, Default)]
struct Graph {
    actions: Vec<Action>,
    labels: FxHashMap<String, usize>,
    /// By operation: those that it requires. True: only their start.
    requires: Vec<Vec<(usize, bool)>>,
}

/// The job of a text.
///
/// # Errors
/// The text has another form.
pub fn read(text: &str) -> Result<Job, GoalError> {
    let mut graphs = Vec::new();
    let mut current = None;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if is_empty(line) {
            continue;
        }
        let fault = |expected| GoalError::Line { line: number, text: line.chars().take(80).collect(), expected };
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.as_slice(), current) {
            (["num_ranks", count], None) => {
                let count: u32 = count.parse().map_err(|_| fault("the number of ranks"))?;
                let count = if count <= MAX_RANKS { count } else { return Err(fault("at most 1048576 ranks")) };
                graphs.resize_with(count as usize, Graph::default);
            }
            (["rank", rank, "{"], None) => {
                let rank: usize = rank.parse().map_err(|_| fault("the number of a rank"))?;
                current = Some(rank).filter(|rank| *rank < graphs.len());
                current.ok_or_else(|| fault("a rank below num_ranks"))?;
            }
            (["}"], Some(_)) => current = None,
            (words, Some(rank)) => graphs[rank].line(words).map_err(fault)?,
            _ => return Err(fault("`num_ranks N`, or `rank R {`")),
        }
    }
    let acts: Result<Vec<Acts>, GoalError> =
        graphs.iter().zip(0..).map(|(graph, rank)| graph.acts().ok_or(GoalError::Circle(rank))).collect();
    Ok(matched(&acts?))
}

impl Graph {
    fn line(&mut self, words: &[&str]) -> Result<(), &'static str> {
        if let [later, how @ ("requires" | "irequires"), earlier] = words {
            let at = |label: &str| self.labels.get(label).copied().ok_or("a label in front of this line");
            let (later, earlier) = (at(later)?, at(earlier)?);
            self.requires[later].push((earlier, *how == "irequires"));
            return Ok(());
        }
        let (label, words) = match words.split_first() {
            Some((label, rest)) if label.ends_with(':') => (Some(label.trim_end_matches(':')), rest),
            _ => (None, words),
        };
        const SEND: &str = "`send BYTESb to RANK tag TAG`, `recv BYTESb from RANK tag TAG`, or `calc NANOSECONDS`";
        let number = |text: &str| text.parse::<u64>().map_err(|_| SEND);
        let bytes = |text: &str| number(text.strip_suffix('b').ok_or(SEND)?);
        let rank = |text: &str| text.parse::<u32>().map_err(|_| SEND);
        let tag = |rest: &[&str]| match rest {
            ["tag", tag, ..] => number(tag),
            _ => Ok(0),
        };
        let action = match words {
            ["send", size, "to", to, rest @ ..] => Action::Send { to: rank(to)?, bytes: bytes(size)?, tag: tag(rest)? },
            ["recv", size, "from", from, rest @ ..] => {
                bytes(size)?;
                Action::Receive { from: rank(from)?, tag: tag(rest)? }
            }
            ["calc", ns, ..] => Action::Calc { ns: number(ns)? },
            _ => return Err(SEND),
        };
        if let Some(label) = label
            && self.labels.insert(label.to_owned(), self.actions.len()).is_some()
        {
            return Err("each label once in a rank");
        }
        self.actions.push(action);
        self.requires.push(Vec::new());
        Ok(())
    }

    /// The operations in an order that the requirements allow. `None`: there is none.
    fn order(&self) -> Option<Vec<usize>> {
        let mut followers = vec![Vec::new(); self.actions.len()];
        let mut open: Vec<usize> = self.requires.iter().map(Vec::len).collect();
        for (later, earlier) in
            self.requires.iter().enumerate().flat_map(|(at, all)| all.iter().map(move |one| (at, one.0)))
        {
            followers[earlier].push(later);
        }
        let mut ready: BTreeMap<usize, ()> =
            open.iter().enumerate().filter(|(_, open)| **open == 0).map(|(at, _)| (at, ())).collect();
        let mut order = Vec::with_capacity(self.actions.len());
        while let Some((at, ())) = ready.pop_first() {
            order.push(at);
            for &follower in &followers[at] {
                open[follower] -= 1;
                if open[follower] == 0 {
                    ready.insert(follower, ());
                }
            }
        }
        (order.len() == self.actions.len()).then_some(order)
    }

    fn acts(&self) -> Option<Acts> {
        let mut acts = Acts::default();
        // The place among the receives, until the message is awaited.
        let mut open = BTreeMap::new();
        for at in self.order()? {
            for (earlier, _) in self.requires[at].iter().filter(|(_, start)| !start) {
                acts.acts.extend(open.remove(earlier).map(Act::Wait));
            }
            match self.actions[at] {
                Action::Send { to, bytes, tag } => acts.acts.push(Act::Send { to, bytes, key: (0, tag) }),
                Action::Calc { ns } => acts.acts.push(Act::Step(Step::Compute { ps: ns.saturating_mul(1000) })),
                Action::Receive { from, tag } => {
                    open.insert(at, acts.receives.len());
                    acts.receives.push(Receive { from, key: (0, tag) });
                }
            }
        }
        acts.acts.extend(open.into_values().map(Act::Wait));
        Some(acts)
    }
}
