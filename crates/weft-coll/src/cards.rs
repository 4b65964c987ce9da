//! Cards: the results that members exchange, so that all of them decide alike.
//!
//! Place in the data flow: `start` exchanges the names of endpoints by cards, and `segment` the parts of shared memory.

use crate::mpi::Handle;
use crate::pmpi::Pmpi;

/// A card has a byte that tells success, the length of its text, and the text: a result or the reason of a failure.
const CARD_BYTES: usize = 256;
/// The place of the text.
const TEXT_AT: usize = 2;

/// The cards of all members.
pub(crate) struct Cards(Vec<u8>);

fn card(result: Result<&[u8], &str>) -> [u8; CARD_BYTES] {
    let mut card = [0; CARD_BYTES];
    let text = result.unwrap_or_else(str::as_bytes);
    let len = text.len().min(CARD_BYTES - TEXT_AT);
    card[0] = u8::from(result.is_ok());
    card[1] = u8::try_from(len).unwrap_or(u8::MAX);
    card[TEXT_AT..TEXT_AT + len].copy_from_slice(&text[..len]);
    card
}

impl Cards {
    /// Exchanges the cards of a communicator's members. `None`: the MPI library could not.
    pub(crate) fn exchange(pmpi: &Pmpi, comm: Handle, members: usize, own: Result<&[u8], &str>) -> Option<Self> {
        pmpi.gather_bytes(comm, &card(own), members).map(Self)
    }

    /// The texts of all cards, by rank.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.chunks_exact(CARD_BYTES).map(|card| &card[TEXT_AT..TEXT_AT + usize::from(card[1])])
    }

    /// The first rank that has failed, and its reason.
    pub(crate) fn failure(&self) -> Option<(usize, String)> {
        let rank = self.0.chunks_exact(CARD_BYTES).position(|card| card[0] == 0)?;
        let text = self.texts().nth(rank).unwrap_or_default();
        Some((rank, String::from_utf8_lossy(text).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_tell_the_first_failure() {
        let cards = |results: &[Result<&[u8], &str>]| Cards(results.iter().flat_map(|result| card(*result)).collect());
        let all = cards(&[Ok(b"one"), Ok(b"")]);
        assert_eq!(all.texts().collect::<Vec<_>>(), [&b"one"[..], b""]);
        assert_eq!(all.failure(), None);
        let long = "x".repeat(300);
        let failed = cards(&[Ok(b"one"), Err(&long), Err("why")]);
        assert_eq!(failed.failure(), Some((1, "x".repeat(254))));
    }
}
