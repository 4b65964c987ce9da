//! What kind of endpoints a run has.
//!
//! Place in the data flow: a [`Plan`](crate::Plan) has one kind, drawn from its seed; engines, operations and the oracle's rules follow it.

use std::fmt;
use std::str::FromStr;

use crate::rng::{Entity, Stream};

/// A kind of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// Connectionless and reliable (FI_EP_RDM).
    Rdm,
    /// Datagrams (FI_EP_DGRAM).
    Dgram,
}

/// So many runs of 1000 have plain endpoints; the others are shared out evenly.
const PLAIN_PERMILLE: u32 = 667;

impl Endpoints {
    /// All.
    pub const ALL: [Self; 2] = [Self::Rdm, Self::Dgram];

    /// As the command line names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdm => "rdm",
            Self::Dgram => "dgram",
        }
    }

    /// Mostly the plain kind.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        // Apart from the hazards and from what else is drawn of a plan.
        let mut rng = Stream::new(seed, Entity::Hazard(62));
        let plain = rng.chance(PLAIN_PERMILLE);
        if plain { Self::Rdm } else { *rng.pick(&Self::ALL[1..]) }
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there are no endpoints `{text}`: name one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_drawn_and_read_as_it_is_written() {
        let drawn = (0..300).map(Endpoints::draw).collect::<Vec<_>>();
        for kind in Endpoints::ALL {
            assert!(drawn.contains(&kind), "{kind}");
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!(drawn.iter().filter(|kind| **kind == Endpoints::Rdm).count() > 150);
        assert!("rdma".parse::<Endpoints>().is_err_and(|why| why.contains("dgram")));
    }
}
