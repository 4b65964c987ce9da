//! Contexts of scalable endpoints: each is a rank for itself, and known to others by the address of its endpoint.

use weft_engine::nic::LinkError;

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
    fn contexts(&self, source: usize) -> impl Iterator<Item = usize> {
        let others = (0..self.sources.len()).filter(move |rank| *rank != source && self.sources[*rank] == source);
        std::iter::once(source).chain(others)
    }

    /// Whether an operation between a rank and any context of an endpoint may fail for this reason.
    pub(super) fn excuses_any(&self, why: LinkError, rank: usize, source: usize) -> bool {
        self.contexts(source).any(|context| self.excuses(why, rank, context))
    }

    /// Whether operations between a rank and any context of an endpoint may fail.
    pub(super) fn any_may_fail(&self, source: usize, rank: usize) -> bool {
        self.contexts(source).any(|context| self.may_fail(context, rank))
    }
}
