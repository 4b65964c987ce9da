//! The session keys of an encrypted connection, by Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s.
//!
//! Place in the data flow: the two messages travel behind the finish and behind the verdict of a handshake
//! ([`super::connect`], [`super::resume`]); so neither side computes anything for a peer that has not proven
//! itself. The pre-shared key and the prologue are made of that handshake's key and dialogue, and the second
//! message vouches for the verdict, which no proof covers. Pure computation: no I/O.
//!
//! Sources: the Noise protocol framework, revision 34, sections 7.5 and 9.

use snow::{Builder, HandshakeState};
use weft_engine::nic::LinkError;

use super::primitives::Primitives;
use super::stream::Keys;
use crate::handshake::{Key, Role};

/// Length of either message: an ephemeral key and a tag, and what it vouches for.
pub(super) const fn message_bytes(vouched: usize) -> usize {
    48 + vouched
}
/// Of the initiator's, which vouches for nothing: the proof before it covers all.
pub(super) const FIRST_BYTES: usize = message_bytes(0);
/// What a message vouches for at most.
const VOUCHED_BYTES: usize = 16;
pub(super) const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// One side's exchange of keys.
pub(super) struct Noise {
    role: Role,
    state: Box<HandshakeState>,
}

impl std::fmt::Debug for Noise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Noise(..)")
    }
}

impl Noise {
    /// The exchange that follows a dialogue whose proofs were right, under the key of these.
    pub(super) fn new(role: Role, key: &Key, dialogue: &[&[u8]]) -> Result<Self, LinkError> {
        let (psk, prologue) = key.noise(dialogue);
        // None of these can fail but for want of randomness.
        let state = builder(&psk, &prologue).and_then(|builder| build(role, builder));
        Ok(Self { role, state: state.map(Box::new).map_err(|_| LinkError::Resources)? })
    }

    /// Our message, which vouches for what was said before it.
    pub(super) fn write(&mut self, said: &[u8]) -> Result<Vec<u8>, LinkError> {
        let mut message = vec![0; message_bytes(said.len())];
        match self.state.write_message(said, &mut message) {
            Ok(len) if len == message.len() => Ok(message),
            _ => Err(LinkError::Resources),
        }
    }

    /// The peer's message, and what it has said before.
    pub(super) fn read(&mut self, message: &[u8], said: &[u8]) -> Result<(), LinkError> {
        let mut vouched = [0; VOUCHED_BYTES];
        let len = self.state.read_message(message, &mut vouched).map_err(|_| LinkError::Denied)?;
        if vouched[..len] == *said { Ok(()) } else { Err(LinkError::Denied) }
    }

    /// The keys, when both messages are over.
    pub(super) fn keys(&mut self) -> Keys {
        let (from_initiator, from_acceptor) = self.state.dangerously_get_raw_split();
        match self.role {
            Role::Initiator => Keys { ours: from_initiator, theirs: from_acceptor },
            Role::Acceptor => Keys { ours: from_acceptor, theirs: from_initiator },
        }
    }

    /// The session's key, by which the link may go on over another connection, when both messages are over.
    pub(super) fn session(&mut self, key: &Key) -> Key {
        let (from_initiator, from_acceptor) = self.state.dangerously_get_raw_split();
        key.agreed(&[&from_initiator, &from_acceptor])
    }
}

// These two are not in line, so that each of their results is on the client's stack once: together they take 1 KB.
#[inline(never)]
fn builder<'a>(psk: &'a [u8; 32], prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    Builder::with_resolver(PATTERN.parse()?, Box::new(Primitives)).psk(0, psk)?.prologue(prologue)
}

#[inline(never)]
fn build(role: Role, builder: Builder<'_>) -> Result<HandshakeState, snow::Error> {
    match role {
        Role::Initiator => builder.build_initiator(),
        Role::Acceptor => builder.build_responder(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn exchange(keys: [&Key; 2], dialogues: [&[&[u8]]; 2]) -> Option<[Keys; 2]> {
        let mut a = Noise::new(Role::Initiator, keys[0], dialogues[0]).unwrap();
        let mut b = Noise::new(Role::Acceptor, keys[1], dialogues[1]).unwrap();
        b.read(&a.write(&[]).unwrap(), &[]).ok()?;
        a.read(&b.write(b"yes").unwrap(), b"yes").ok()?;
        let origin = Key::new(&[3; 16], None);
        assert_eq!(a.session(&origin).proof(Role::Initiator, &[]), b.session(&origin).proof(Role::Initiator, &[]));
        Some([a.keys(), b.keys()])
    }

    #[test]
    fn both_sides_have_the_same_keys_and_never_the_same_twice() {
        let key = Key::new(&[1; 16], None);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..4 {
            let [a, b] = exchange([&key; 2], [&[b"said"]; 2]).unwrap();
            assert_eq!((a.ours, a.theirs), (b.theirs, b.ours));
            assert!(seen.insert(a.ours) && seen.insert(a.theirs));
        }
    }

    /// Whatever else but its own verdict is put before the acceptor's message is found out.
    #[test]
    fn the_second_message_vouches_for_the_verdict() {
        let key = Key::new(&[1; 16], None);
        for heard in [&b"yes"[..], b"yea", b"ye", b"yes!", b""] {
            let mut a = Noise::new(Role::Initiator, &key, &[b"said"]).unwrap();
            let mut b = Noise::new(Role::Acceptor, &key, &[b"said"]).unwrap();
            b.read(&a.write(&[]).unwrap(), &[]).unwrap();
            assert_eq!(a.read(&b.write(b"yes").unwrap(), heard).is_ok(), heard == b"yes");
        }
    }

    /// What is on the wire, or what proves the key, does not give the keys of records; nor does the session's key.
    #[test]
    fn every_key_has_one_use() {
        let key = Key::new(&[1; 16], None);
        let said: &[&[u8]] = &[b"said"];
        let [a, _] = exchange([&key; 2], [said; 2]).unwrap();
        let (psk, prologue) = key.noise(said);
        let session = key.session(said).1;
        let agreed = session.agreed(&[&a.ours, &a.theirs]);
        let proofs =
            [&key, &session, &agreed].map(|key| [Role::Initiator, Role::Acceptor].map(|role| key.proof(role, said)));
        let all = [psk, prologue, a.ours, a.theirs].into_iter().chain(proofs.into_iter().flatten());
        let all: Vec<[u8; 32]> = all.collect();
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one), "{n}");
        }
    }

    #[test]
    fn key_and_dialogue_must_be_the_same() {
        let (key, other) = (Key::new(&[1; 16], None), Key::new(&[1; 16], Some(&[2; 32])));
        assert!(exchange([&key, &other], [&[b"said"]; 2]).is_none());
        assert!(exchange([&key; 2], [&[b"said"], &[b"sai"]]).is_none());
    }
}
