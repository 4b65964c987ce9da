//! The plan of a run: everything that determines its course.
//!
//! Place in the data flow: the command line and the tests draw a [`Plan`] from a seed and change it;
//! [`run`](crate::run::run) plays it; the shrinker tries smaller ones. A plan is displayed as the arguments
//! with which `weft-lab sim faults` plays it again.

use std::fmt;
use std::str::FromStr;

use crate::endpoints::Endpoints;
use crate::hazard::Hazards;
use crate::rng::{Entity, Stream};

/// A kind of operation that ranks perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Act {
    /// A message, tagged or untagged.
    Send,
    /// A receive, possibly a multi-receive.
    Recv,
    /// A peek at unexpected messages; claim, discard.
    Peek,
    /// The cancellation of a receive.
    Cancel,
    /// An RMA write.
    Write,
    /// An RMA read.
    Read,
    /// An atomic operation of any form.
    Atomic,
    /// Work deferred until counters reach thresholds, and barriers made of it.
    Program,
    /// Collectives in overlapping groups. They have runs of their own.
    Collective,
}

impl Act {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Send,
        Self::Recv,
        Self::Peek,
        Self::Cancel,
        Self::Write,
        Self::Read,
        Self::Atomic,
        Self::Program,
        Self::Collective,
    ];

    /// The name on the command line.
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
            Self::Collective => "collective",
        }
    }
}

/// A set of operations. Displayed as comma-separated names, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acts(u32);

impl Acts {
    /// All operations that the runs of other kinds have.
    pub const ALL: Self = Self((1 << Act::Collective as u8) - 1);
    /// Collectives alone.
    pub const COLLECTIVES: Self = Self(1 << Act::Collective as u8);

    /// Whether the set contains `act`.
    #[must_use]
    pub const fn has(self, act: Act) -> bool {
        self.0 >> act as u8 & 1 == 1
    }

    /// Whether the set contains `act` only.
    #[must_use]
    pub const fn is_only(self, act: Act) -> bool {
        self.0 == 1 << act as u8
    }

    /// The set without `act`.
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
                format!("unknown operation `{name}`: choose from {names}, or use `all`")
            })?;
            all |= 1 << act as u8;
        }
        Ok(Self(all))
    }
}

/// The fewest and the most ranks of a run.
pub const RANKS: std::ops::RangeInclusive<usize> = 2..=32;

/// The parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of all randomness.
    pub seed: u64,
    /// Number of ranks at the start, within [`RANKS`].
    pub ranks: usize,
    /// How long ranks work, in virtual milliseconds.
    pub millis: u64,
    /// Maximum number of operations.
    pub ops: usize,
    /// The hazards that strike.
    pub hazards: Hazards,
    /// The operations that ranks perform.
    pub acts: Acts,
    /// The kind of endpoints.
    pub endpoints: Endpoints,
}

impl Plan {
    /// Draws every parameter from the seed; the duration is one minute.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        // Drawn after the hazards, which use this stream alone.
        let mut rng = Stream::new(seed, Entity::Hazard(63));
        let few = rng.between(2, 8);
        let ranks = if rng.chance(30) { rng.between(9, 32) } else { few };
        let (hazards, endpoints) = (Hazards::draw(seed), Endpoints::draw(seed));
        Self { seed, ranks, millis: 60_000, ops: usize::MAX, hazards, acts: Acts::ALL, endpoints }
    }

    /// Draws every parameter as [`Plan::draw`] does, but removes hazards that may fail an operation.
    #[must_use]
    pub fn lossless(seed: u64) -> Self {
        let plan = Self::draw(seed);
        let hazards = plan.hazards.iter().filter(|hazard| !hazard.loses()).collect();
        Self { hazards, ..plan }
    }

    /// Draws a run of collectives.
    #[must_use]
    pub fn collectives(seed: u64) -> Self {
        Self { acts: Acts::COLLECTIVES, endpoints: Endpoints::Rdm, ..Self::draw(seed) }
    }

    /// Checks that the plan can be played; the error says what to change.
    ///
    /// # Errors
    /// The number of ranks or the time is out of range, or collectives are combined with something else.
    pub fn check(&self) -> Result<(), String> {
        if !RANKS.contains(&self.ranks) {
            return Err(format!("{} ranks are out of range: use {} to {}", self.ranks, RANKS.start(), RANKS.end()));
        }
        if self.millis == 0 {
            return Err("the run has no duration: set some minutes, for instance 0.5".into());
        }
        if self.acts.has(Act::Collective) {
            if self.acts != Acts::COLLECTIVES {
                return Err("collectives have runs of their own: use `--do collective` alone".into());
            }
            if self.endpoints != Endpoints::Rdm {
                return Err("collectives need endpoints of kind rdm".into());
            }
        }
        Ok(())
    }
}

/// Formats the arguments that play the plan again.
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
