//! What kind of endpoints a run has.
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
    /// Contexts of scalable endpoints (`fi_scalable_ep`), one endpoint in each process.
    Scalable,
    /// Connected ones (FI_EP_MSG), and a listener in each process.
    Msg,
    /// Some endpoints in each process, which share their receives (`fi_srx_context`).
    Shared,
}

/// So many runs of 1000 have plain endpoints; the others are shared out evenly.
const PLAIN_PERMILLE: u32 = 667;

impl Endpoints {
    /// All.
    pub const ALL: [Self; 5] = [Self::Rdm, Self::Dgram, Self::Shared, Self::Scalable, Self::Msg];

    /// As the command line names it.
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

    /// Mostly the plain kind.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        // Apart from the hazards and from what else is drawn of a plan.
        let mut rng = Stream::new(seed, Entity::Hazard(62));
        let plain = rng.chance(PLAIN_PERMILLE);
        if plain { Self::Rdm } else { *rng.pick(&Self::ALL[1..]) }
    }
}

/// Of which processes ranks are endpoints: by rank, the first of its process.
pub(crate) fn processes(plan: &Plan) -> Vec<usize> {
    let size = match plan.endpoints {
        Endpoints::Rdm | Endpoints::Dgram | Endpoints::Msg => 1,
        Endpoints::Shared | Endpoints::Scalable => stream(plan.seed).between(2, 4),
    };
    (0..plan.ranks).map(|rank| rank - rank % size).collect()
}

/// Where the details of a kind come from.
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
