//! What a run is: everything that decides how it goes.
//!
//! Place in the data flow: the command line and the tests make a [`Plan`], drawn from a seed and then
//! changed; [`run`](crate::run::run) plays it; the shrinker tries smaller ones. A plan is written as the
//! arguments that make `weft sim faults` play it again.

use std::fmt;
use std::str::FromStr;

use crate::endpoints::Endpoints;
use crate::hazard::Hazards;
use crate::rng::{Entity, Stream};

/// What ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Act {
    /// A message, tagged or not.
    Send,
    /// A receive, also of several messages.
    Recv,
    /// A look at what waits; claim, discard.
    Peek,
    /// The end of a receive.
    Cancel,
    /// An RMA write.
    Write,
    /// An RMA read.
    Read,
    /// An atomic operation of any form.
    Atomic,
    /// Work that waits for counters, in all that belongs to it; barriers of such work.
    Program,
}

impl Act {
    /// All.
    pub const ALL: [Self; 8] =
        [Self::Send, Self::Recv, Self::Peek, Self::Cancel, Self::Write, Self::Read, Self::Atomic, Self::Program];

    /// As the command line names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Peek => "peek",
            Self::Cancel => "cancel",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Program => "program",
        }
    }
}

/// A set of what ranks may do. Written as names with commas between, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acts(u32);

impl Acts {
    /// All.
    pub const ALL: Self = Self((1 << Act::ALL.len()) - 1);

    /// Whether it is one of them.
    #[must_use]
    pub const fn has(self, act: Act) -> bool {
        self.0 >> act as u8 & 1 == 1
    }

    /// Whether it is the only one.
    #[must_use]
    pub const fn is_only(self, act: Act) -> bool {
        self.0 == 1 << act as u8
    }

    /// With one less.
    #[must_use]
    pub const fn without(self, act: Act) -> Self {
        Self(self.0 & !(1 << act as u8))
    }
}

impl fmt::Display for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Act::ALL.into_iter().filter(|act| self.has(*act)).map(Act::name).collect::<Vec<_>>();
        f.write_str(if *self == Self::ALL { "all".into() } else { names.join(",") }.as_str())
    }
}

impl FromStr for Acts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = 0;
        for name in text.split(',').map(str::trim) {
            if name == "all" {
                return Ok(Self::ALL);
            }
            let act = Act::ALL.into_iter().find(|act| act.name() == name).ok_or_else(|| {
                let names = Act::ALL.map(Act::name).join(", ");
                format!("there is no operation `{name}`: name some of {names}, or `all`")
            })?;
            all |= 1 << act as u8;
        }
        Ok(Self(all))
    }
}

/// The fewest and the most ranks of a run.
pub const RANKS: std::ops::RangeInclusive<usize> = 2..=32;

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where all randomness comes from.
    pub seed: u64,
    /// How many ranks there are at the start: one of [`RANKS`].
    pub ranks: usize,
    /// How long ranks work, in virtual milliseconds.
    pub millis: u64,
    /// How many operations there are at most.
    pub ops: usize,
    /// What goes wrong.
    pub hazards: Hazards,
    /// What ranks do.
    pub acts: Acts,
    /// Of what kind ranks are.
    pub endpoints: Endpoints,
}

impl Plan {
    /// Everything as the seed has it; a minute.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        // After the hazards, which have the same stream for themselves.
        let mut rng = Stream::new(seed, Entity::Hazard(63));
        let few = rng.between(2, 8);
        let ranks = if rng.chance(30) { rng.between(9, 32) } else { few };
        let (hazards, endpoints) = (Hazards::draw(seed), Endpoints::draw(seed));
        Self { seed, ranks, millis: 60_000, ops: usize::MAX, hazards, acts: Acts::ALL, endpoints }
    }

    /// The same run without anything that operations could fail of.
    #[must_use]
    pub fn lossless(seed: u64) -> Self {
        let plan = Self::draw(seed);
        let hazards = plan.hazards.iter().filter(|hazard| !hazard.loses()).collect();
        Self { hazards, ..plan }
    }

    /// What cannot be played, and what would help.
    ///
    /// # Errors
    /// The number of ranks or the time is out of range.
    pub fn check(&self) -> Result<(), String> {
        if !RANKS.contains(&self.ranks) {
            return Err(format!("{} ranks: a run has {} to {}", self.ranks, RANKS.start(), RANKS.end()));
        }
        if self.millis == 0 {
            return Err("a run of no time: name some minutes, for instance 0.5".into());
        }
        Ok(())
    }
}

/// The arguments that play it again.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = format!("{}.{:05}", self.millis / 60_000, self.millis % 60_000 * 100_000 / 60_000);
        let minutes = minutes.trim_end_matches('0').trim_end_matches('.');
        write!(f, "--seed {} --ranks {} --minutes {minutes} --faults {}", self.seed, self.ranks, self.hazards)?;
        write!(f, " --endpoints {}", self.endpoints)?;
        if self.ops < usize::MAX {
            write!(f, " --ops {}", self.ops)?;
        }
        if self.acts != Acts::ALL {
            write!(f, " --do {}", self.acts)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_written_as_arguments() {
        let plan = Plan { ops: 17, millis: 1500, ranks: 3, hazards: Hazards::NONE, ..Plan::draw(5) };
        let plan = Plan { endpoints: Endpoints::Dgram, ..plan };
        let acts = plan.acts.without(Act::Peek);
        let plan = Plan { acts, ..plan };
        let text = "--seed 5 --ranks 3 --minutes 0.025 --faults none --endpoints dgram --ops 17 \
                    --do send,recv,cancel,write,read,atomic,program";
        assert_eq!(plan.to_string(), text);
        assert_eq!(acts.to_string().parse(), Ok(acts));
        assert!("send,sent".parse::<Acts>().is_err());
    }
}
