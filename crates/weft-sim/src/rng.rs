//! Random streams: one per entity, all derived from one seed.
//!
//! Place in the data flow: the fabric, the cluster and the workload draw every decision from here. Invariant:
//! the draws of an entity depend on the seed, on its identity, and on its own earlier draws; never on the
//! number of other entities. Adding a rank therefore does not change the random streams of the others.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The owner of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entity {
    /// The run as a whole: its configuration.
    Run,
    /// An endpoint's device.
    Endpoint(usize),
    /// One direction of the `nth` connection that endpoint `from` made to `to` (side 0: initiator to acceptor).
    Wire {
        /// The initiator.
        from: usize,
        /// The acceptor.
        to: usize,
        /// How many connections this pair had before.
        nth: usize,
        /// The direction.
        side: usize,
    },
    /// A rank's turn in the order of progress.
    Schedule(usize),
    /// The operations that a rank issues.
    Workload(usize),
    /// The hazards and the duration of a run.
    Plan,
    /// One hazard.
    Hazard(usize),
    /// Reserved for tests.
    Test(usize),
}

impl Entity {
    /// A ChaCha stream number that no other entity has (for fewer than 2^20 endpoints).
    fn stream(self) -> u64 {
        let (kind, id) = match self {
            Self::Run => (0, 0),
            Self::Endpoint(n) => (1, n as u64),
            Self::Wire { from, to, nth, side } => {
                (2, ((from as u64) << 40) ^ ((to as u64) << 20) ^ ((nth as u64) << 1) ^ side as u64)
            }
            Self::Schedule(n) => (3, n as u64),
            Self::Workload(n) => (4, n as u64),
            Self::Test(n) => (5, n as u64),
            Self::Plan => (6, 0),
            Self::Hazard(n) => (7, n as u64),
        };
        (kind << 60) | (id & ((1 << 60) - 1))
    }
}

/// One entity's random stream.
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of `entity` in the run with `seed`.
    #[must_use]
    pub fn new(seed: u64, entity: Entity) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(entity.stream());
        Self(rng)
    }

    /// A number below `n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.0.random_range(0..n) }
    }

    /// An index below `n`; 0 when `n` is 0.
    pub fn index(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { self.0.random_range(0..n) }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.index(high.saturating_sub(low) + 1)
    }

    /// True with a probability in thousandths. With 0, nothing is drawn, so a disabled fault costs nothing.
    pub fn chance(&mut self, permille: u32) -> bool {
        permille > 0 && self.0.random_range(0..1000) < permille
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.random()
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes[..]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_entity_and_repeat_by_seed() {
        let draw = |seed, entity| Stream::new(seed, entity).bits();
        let entities = [
            Entity::Run,
            Entity::Endpoint(0),
            Entity::Endpoint(1),
            Entity::Schedule(0),
            Entity::Workload(0),
            Entity::Wire { from: 0, to: 1, nth: 0, side: 0 },
            Entity::Wire { from: 0, to: 1, nth: 0, side: 1 },
            Entity::Wire { from: 1, to: 0, nth: 0, side: 0 },
            Entity::Wire { from: 0, to: 1, nth: 1, side: 0 },
        ];
        for (i, a) in entities.iter().enumerate() {
            assert_eq!(draw(7, *a), draw(7, *a));
            assert_ne!(draw(7, *a), draw(8, *a));
            for b in &entities[i + 1..] {
                assert_ne!(draw(7, *a), draw(7, *b), "{a:?} and {b:?} share a stream");
            }
        }
    }
}
