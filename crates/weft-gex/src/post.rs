//! Letters: messages of the library itself between members of a team.
//!
//! Place in the data flow: `spread` sends letters for barriers and collectives of teams whose members share no memory.
//! A letter travels as an active message without a handler of the client; `am` puts it into the [`Inbox`] while the
//! engine polls. The receiver takes it out when it needs it.
//!
//! Invariant: an inbox holds what members of the own teams have sent for collectives that this rank has not finished.
//! Senders of data wait until the receiver has begun the collective, so its size is bounded by that of a collective.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The name of a letter: its team and its place in the team's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The team.
    pub team: u64,
    /// The kind, the number of the collective, and the place in it.
    pub place: u64,
}

impl Tag {
    /// Bytes of a tag in a message.
    pub const BYTES: usize = 16;

    /// The tag as it travels.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.team.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.place.to_ne_bytes());
        bytes
    }

    /// The tag of a message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (team, rest) = bytes.split_first_chunk::<8>()?;
        let place = rest.first_chunk::<8>()?;
        Some(Self { team: u64::from_ne_bytes(*team), place: u64::from_ne_bytes(*place) })
    }
}

/// Letters that have arrived, by source and tag.
#[derive(Default)]
pub struct Inbox(Mutex<HashMap<(u32, Tag), Vec<u8>>>);

impl Inbox {
    /// Puts a letter in.
    pub fn put(&self, source: u32, tag: Tag, bytes: &[u8]) {
        self.0.lock().insert((source, tag), bytes.to_vec());
    }

    /// Takes a letter out, if it is there.
    #[must_use]
    pub fn take(&self, source: u32, tag: Tag) -> Option<Vec<u8>> {
        self.0.lock().remove(&(source, tag))
    }
}

/// The mail of one member of a team.
pub trait Mail {
    /// The number of this member.
    fn me(&self) -> u32;
    /// The number of members.
    fn members(&self) -> u32;
    /// Sends a letter to a member. False: it cannot leave now.
    fn send(&self, member: u32, place: u64, bytes: &[u8]) -> bool;
    /// Takes a letter of a member, if it is there.
    fn take(&self, member: u32, place: u64) -> Option<Vec<u8>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_taken_once() {
        let (inbox, tag) = (Inbox::default(), Tag { team: 7, place: 9 });
        assert_eq!(Tag::from_bytes(&tag.to_bytes()), Some(tag));
        assert_eq!(Tag::from_bytes(&[0; 15]), None);
        inbox.put(3, tag, &[1, 2]);
        assert_eq!(inbox.take(2, tag), None);
        assert_eq!(inbox.take(3, tag), Some(vec![1, 2]));
        assert_eq!(inbox.take(3, tag), None);
    }
}
