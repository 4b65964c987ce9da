//! The kinds of endpoints that a run may have.
//!
//! Place in the data flow: a [`Plan`] has one kind, drawn from its seed; engines, operations and the oracle's
//! rules follow it.

use std::fmt;
use std::str::FromStr;

use crate::plan::Plan;
use crate::rng::{Entity, Stream};

/// A kind of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// Connectionless and reliable (FI_EP_RDM).
    Rdm,
    /// Datagrams (FI_EP_DGRAM).
    Dgram,
    /// Contexts of scalable endpoints (`fi_scalable_ep`), one scalable endpoint per process.
    Scalable,
    /// Connected endpoints (FI_EP_MSG), and a listener in each process.
    Msg,
    /// Several endpoints per process that share their receives (`fi_srx_context`).
    Shared,
}

/// Share of runs with plain endpoints, in thousandths. The other kinds share the remaining runs evenly.
const PLAIN_PERMILLE: u32 = 667;

impl Endpoints {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Rdm, Self::Dgram, Self::Shared, Self::Scalable, Self::Msg];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdm => "rdm",
            Self::Dgram => "dgram",
            Self::Shared => "shared",
            Self::Scalable => "scalable",
            Self::Msg => "msg",
        }
    }

    /// Draws a kind; the plain one is the most frequent.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        // This stream is separate from the hazards and from the rest of the plan.
        let mut rng = Stream::new(seed, Entity::Hazard(62));
        let plain = rng.chance(PLAIN_PERMILLE);
        if plain { Self::Rdm } else { *rng.pick(&Self::ALL[1..]) }
    }
}

/// The process of each rank, given by the process's first rank.
pub(crate) fn processes(plan: &Plan) -> Vec<usize> {
    let size = match plan.endpoints {
        Endpoints::Rdm | Endpoints::Dgram | Endpoints::Msg => 1,
        Endpoints::Shared | Endpoints::Scalable => stream(plan.seed).between(2, 4),
    };
    (0..plan.ranks).map(|rank| rank - rank % size).collect()
}

/// The stream for the details of a kind.
pub(crate) fn stream(seed: u64) -> Stream {
    Stream::new(seed, Entity::Hazard(61))
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
            format!("unknown endpoints `{text}`: choose one of {names}")
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
