//! The hazards of a run, by name.
//!
//! Place in the data flow: a [`Plan`](crate::Plan) has a set of hazards. The fabric's configuration takes its
//! faults from the set, the run its disasters. Each run gets a random subset (swarm testing: leaving a hazard
//! out lets the others reach further), and the shrinker removes those that a failure does not need.
//!
//! Devices give the engine reliable links, so events on the wire beneath them are modelled by their effect on
//! a reliable transport. A lost or damaged packet delays everything behind it until it is sent again. The
//! engine sees a duplicate only where the device does not restore order; there the engine's sequence numbers
//! detect it. A message damaged beyond repair reaches the engine as garbage, and the engine closes the link.

use std::fmt;
use std::str::FromStr;

use crate::rng::{Entity, Stream};

/// A kind of fault or disaster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Hazard {
    /// Packets are lost, and sent again after a timeout that doubles.
    Drop,
    /// Packets are damaged, detected by their checksum, and sent again.
    Corrupt,
    /// Messages arrive twice (on links without order).
    Duplicate,
    /// Messages overtake each other (on links without order).
    Reorder,
    /// Some messages and connection attempts take long.
    Delay,
    /// A message arrives cut or as garbage, which closes its link.
    Truncate,
    /// Bytes arrive in several pieces, and leave late.
    Partial,
    /// Links break, even during a transfer; the two sides learn of it at different times.
    Reset,
    /// A link breaks, and one side learns of it half a second later.
    HalfOpen,
    /// Devices report a full queue.
    Full,
    /// Memory cannot be registered, or only a little at a time.
    Registration,
    /// Windows and queues are small, so senders wait for receivers.
    Starvation,
    /// Ranks are slow, or pause for a while.
    Slow,
    /// Connection attempts fail.
    Refuse,
    /// A process dies, and another starts at its address, with regions under the same keys.
    Restart,
    /// A host is lost.
    Death,
    /// A process exits in order.
    Departure,
}

impl Hazard {
    /// All hazards.
    pub const ALL: [Self; 17] = [
        Self::Drop,
        Self::Corrupt,
        Self::Duplicate,
        Self::Reorder,
        Self::Delay,
        Self::Truncate,
        Self::Partial,
        Self::Reset,
        Self::HalfOpen,
        Self::Full,
        Self::Registration,
        Self::Starvation,
        Self::Slow,
        Self::Refuse,
        Self::Restart,
        Self::Death,
        Self::Departure,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Corrupt => "corrupt",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Delay => "delay",
            Self::Truncate => "truncate",
            Self::Partial => "partial",
            Self::Reset => "reset",
            Self::HalfOpen => "half-open",
            Self::Full => "full",
            Self::Registration => "registration",
            Self::Starvation => "starvation",
            Self::Slow => "slow",
            Self::Refuse => "refuse",
            Self::Restart => "restart",
            Self::Death => "death",
            Self::Departure => "departure",
        }
    }

    /// Whether operations may fail because of the hazard.
    #[must_use]
    pub const fn loses(self) -> bool {
        matches!(
            self,
            Self::Truncate
                | Self::Reset
                | Self::HalfOpen
                | Self::Refuse
                | Self::Restart
                | Self::Death
                | Self::Departure
        )
    }

    /// The stream that decides when and how the hazard strikes. Each hazard has its own, so removing one does
    /// not change the others.
    pub(crate) fn stream(self, seed: u64) -> Stream {
        Stream::new(seed, Entity::Hazard(self as usize))
    }
}

/// A set of hazards. Displayed as comma-separated names, `none`, or `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hazards(u32);

impl Hazards {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// All hazards.
    #[must_use]
    pub fn all() -> Self {
        Hazard::ALL.into_iter().collect()
    }

    /// Draws a random subset. One run in four gets none that may fail an operation.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Stream::new(seed, Entity::Plan);
        let lossless = rng.chance(250);
        Hazard::ALL.into_iter().filter(|hazard| rng.chance(300) && !(lossless && hazard.loses())).collect()
    }

    /// Whether the set contains `hazard`.
    #[must_use]
    pub const fn has(self, hazard: Hazard) -> bool {
        self.0 >> hazard as u8 & 1 == 1
    }

    /// The set with `hazard` added.
    #[must_use]
    pub const fn with(self, hazard: Hazard) -> Self {
        Self(self.0 | 1 << hazard as u8)
    }

    /// The set without `hazard`.
    #[must_use]
    pub const fn without(self, hazard: Hazard) -> Self {
        Self(self.0 & !(1 << hazard as u8))
    }

    /// Whether any hazard in the set may fail an operation.
    #[must_use]
    pub fn lose(self) -> bool {
        self.iter().any(Hazard::loses)
    }

    /// The hazards in the set.
    pub fn iter(self) -> impl Iterator<Item = Hazard> {
        Hazard::ALL.into_iter().filter(move |hazard| self.has(*hazard))
    }
}

impl FromIterator<Hazard> for Hazards {
    fn from_iter<I: IntoIterator<Item = Hazard>>(all: I) -> Self {
        all.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Display for Hazards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("none");
        }
        let names = self.iter().map(Hazard::name).collect::<Vec<_>>();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Hazards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |name: &str| {
            Hazard::ALL.into_iter().find(|hazard| hazard.name() == name).ok_or_else(|| {
                let names = Hazard::ALL.map(Hazard::name).join(", ");
                format!("unknown fault `{name}`: choose from {names}, or use `all` or `none`")
            })
        };
        match text {
            "none" => Ok(Self::NONE),
            "all" => Ok(Self::all()),
            _ => text.split(',').map(str::trim).map(one).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_they_are_written() {
        for seed in 0..50 {
            let set = Hazards::draw(seed);
            assert_eq!(set.to_string().parse(), Ok(set));
        }
        assert_eq!("all".parse(), Ok(Hazards::all()));
        assert!("reset,rust".parse::<Hazards>().is_err_and(|why| why.contains("rust")));
        for (n, hazard) in Hazard::ALL.into_iter().enumerate() {
            assert_eq!(hazard as usize, n);
        }
    }

    #[test]
    fn every_hazard_is_drawn_with_and_without_every_other() {
        let sets = (0..500).map(Hazards::draw).collect::<Vec<_>>();
        for a in Hazard::ALL {
            for b in Hazard::ALL.into_iter().filter(|b| *b != a) {
                assert!(sets.iter().any(|set| set.has(a) && set.has(b)), "{a:?} with {b:?}");
                assert!(sets.iter().any(|set| set.has(a) && !set.has(b)), "{a:?} without {b:?}");
            }
        }
    }
}
