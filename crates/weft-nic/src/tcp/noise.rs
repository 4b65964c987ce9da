//! The session keys of an encrypted connection, by Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s.
//!
//! Place in the data flow: the first message follows the finish of a handshake, and the second the verdict
//! ([`super::connect`], [`super::resume`]). Neither side therefore computes keys for a peer that has not proven itself.
//! The pre-shared key and the prologue follow from that handshake's key and dialogue. The second message authenticates
//! the verdict, which no proof covers. Pure computation: no I/O.
//!
//! Sources: the Noise protocol framework, revision 34, sections 7.5 and 9.

use snow::{Builder, HandshakeState};
use weft_engine::nic::LinkError;

use super::primitives::Primitives;
use super::stream::Keys;
use crate::handshake::{Key, Role};

/// Length of a message in bytes: an ephemeral key, a tag, and `payload` encrypted bytes.
pub(super) const fn message_bytes(payload: usize) -> usize {
    48 + payload
}
/// Length of the initiator's message. Its payload is empty because the proof before it covers the whole dialogue.
pub(super) const FIRST_BYTES: usize = message_bytes(0);
/// Length limit of a payload in bytes.
const PAYLOAD_MAX_BYTES: usize = 16;
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
    /// Starts the exchange after a dialogue whose proofs were right, under the key of these proofs.
    pub(super) fn new(role: Role, key: &Key, dialogue: &[&[u8]]) -> Result<Self, LinkError> {
        let (psk, prologue) = key.noise(dialogue);
        // Only missing randomness can make these calls fail.
        let state = builder(&psk, &prologue).and_then(|builder| build(role, builder));
        Ok(Self { role, state: state.map(Box::new).map_err(|_| LinkError::Resources)? })
    }

    /// This side's message. It authenticates `said`, the bytes that this side sent before it.
    pub(super) fn write(&mut self, said: &[u8]) -> Result<Vec<u8>, LinkError> {
        let mut message = vec![0; message_bytes(said.len())];
        match self.state.write_message(said, &mut message) {
            Ok(len) if len == message.len() => Ok(message),
            _ => Err(LinkError::Resources),
        }
    }

    /// Reads the peer's message and checks that it authenticates `said`, the bytes that the peer sent before it.
    pub(super) fn read(&mut self, message: &[u8], said: &[u8]) -> Result<(), LinkError> {
        let mut payload = [0; PAYLOAD_MAX_BYTES];
        let len = self.state.read_message(message, &mut payload).map_err(|_| LinkError::Denied)?;
        if payload[..len] == *said { Ok(()) } else { Err(LinkError::Denied) }
    }

    /// The keys for records, after both messages.
    pub(super) fn keys(&mut self) -> Keys {
        let (from_initiator, from_acceptor) = self.state.dangerously_get_raw_split();
        match self.role {
            Role::Initiator => Keys { ours: from_initiator, theirs: from_acceptor },
            Role::Acceptor => Keys { ours: from_acceptor, theirs: from_initiator },
        }
    }

    /// The session's key, after both messages. It proves the session when the link is resumed over another connection.
    pub(super) fn session(&mut self, key: &Key) -> Key {
        let (from_initiator, from_acceptor) = self.state.dangerously_get_raw_split();
        key.agreed(&[&from_initiator, &from_acceptor])
    }
}

// These two functions are not inlined, so that each result is on the client's stack once: together they take 1 KB.
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
    fn both_sides_have_the_same_keys_and_every_exchange_has_others() {
        let key = Key::new(&[1; 16], None);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..4 {
            let [a, b] = exchange([&key; 2], [&[b"said"]; 2]).unwrap();
            assert_eq!((a.ours, a.theirs), (b.theirs, b.ours));
            assert!(seen.insert(a.ours) && seen.insert(a.theirs));
        }
    }

    /// Any bytes other than the acceptor's own verdict are rejected.
    #[test]
    fn the_second_message_authenticates_the_verdict() {
        let key = Key::new(&[1; 16], None);
        for heard in [&b"yes"[..], b"yea", b"ye", b"yes!", b""] {
            let mut a = Noise::new(Role::Initiator, &key, &[b"said"]).unwrap();
            let mut b = Noise::new(Role::Acceptor, &key, &[b"said"]).unwrap();
            b.read(&a.write(&[]).unwrap(), &[]).unwrap();
            assert_eq!(a.read(&b.write(b"yes").unwrap(), heard).is_ok(), heard == b"yes");
        }
    }

    /// The keys of records differ from all values on the wire, from the keys of proofs, and from the session's key.
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
