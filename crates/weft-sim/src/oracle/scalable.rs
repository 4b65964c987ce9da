//! Contexts of scalable endpoints: each is a rank of its own, known to others under the address of its
//! endpoint.

use super::Oracle;

impl Oracle {
    /// Sets, by rank, the rank under whose address it is known.
    pub(crate) fn share_addresses(&mut self, sources: Vec<usize>) {
        self.sources = sources;
    }

    /// The rank under whose address a rank is known: itself, or its endpoint's first context.
    pub(super) fn known_as(&self, rank: usize) -> usize {
        self.sources.get(rank).copied().unwrap_or(rank)
    }

    /// The ranks known under the address of `source`.
    pub(super) fn contexts(&self, source: usize) -> impl Iterator<Item = usize> {
        let others = (0..self.sources.len()).filter(move |rank| *rank != source && self.sources[*rank] == source);
        std::iter::once(source).chain(others)
    }
}
