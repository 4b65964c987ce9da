//! Contexts of scalable endpoints: each is a rank for itself, and known to others by the address of its endpoint.

use super::Oracle;

impl Oracle {
    /// Ranks are known by others' addresses: by rank, whose.
    pub(crate) fn share_addresses(&mut self, sources: Vec<usize>) {
        self.sources = sources;
    }

    /// By whose address a rank is known: its own, or that of its endpoint's first context.
    pub(super) fn known_as(&self, rank: usize) -> usize {
        self.sources.get(rank).copied().unwrap_or(rank)
    }

    /// Who is known by the address of `source`.
    pub(super) fn contexts(&self, source: usize) -> impl Iterator<Item = usize> {
        let others = (0..self.sources.len()).filter(move |rank| *rank != source && self.sources[*rank] == source);
        std::iter::once(source).chain(others)
    }
}
