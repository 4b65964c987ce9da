//! The keyed challenge by which two endpoints prove that they belong together, without sending a secret.
//!
//! Place in the data flow: the TCP device's initiator and acceptor each build a [`Key`] and exchange nonces. They prove
//! to each other that they hold the same key before a link comes up. Pure computation: no I/O.
//!
//! An endpoint's full name contains its 16-byte capability, so a peer that was given the full name knows the
//! capability. The key is BLAKE3 in its key-derivation mode over the *acceptor's* capability and the job key, if one is
//! set. The capability is zero if the initiator has only a service name. A proof is a keyed BLAKE3 over the prover's
//! role and the whole dialogue so far. The dialogue holds a fresh nonce and the name of each side, so a proof is
//! worthless in another dialogue, in the other role, or with another name. Capabilities travel only sealed: XORed with
//! a keystream from the same key and dialogue. The peer thus learns the full name, and an eavesdropper does not.
//!
//! The proofs neither encrypt nor authenticate later traffic on the link. For encrypted links, session keys are agreed
//! upon under the same key and dialogue ([`Key::noise`]).
//!
//! Sources: the BLAKE3 paper, sections 2.3 (keyed hash) and 2.3 (key derivation).

use weft_engine::name::{EpName, NAME_BYTES};
use weft_engine::nic::LinkError;

/// Random bytes, fresh in each dialogue.
pub type Nonce = [u8; 16];
/// Proves possession of the key.
pub type Proof = [u8; 32];
/// The secret part of a full name.
pub type Capability = [u8; 16];

/// The offset of the capability in a full name.
const CAPABILITY_AT: usize = 48;

/// A side of the dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connected.
    Initiator,
    /// The side that accepted.
    Acceptor,
}

/// The common secret of one dialogue.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// The key for an acceptor's `capability`, which is zero if the initiator has only a service name.
    #[must_use]
    pub fn new(capability: &Capability, job_key: Option<&[u8; 32]>) -> Self {
        let job_key = job_key.map_or(&[][..], |key| key);
        let material = [&capability[..], job_key].concat();
        Self(blake3::derive_key("weft link handshake 1: capability and job key", &material))
    }

    /// The proof of `role` over the dialogue so far.
    #[must_use]
    pub fn proof(&self, role: Role, dialogue: &[&[u8]]) -> Proof {
        let label = match role {
            Role::Initiator => b"proof: initiator",
            Role::Acceptor => b"proof: acceptor ",
        };
        *self.keyed(label, dialogue).as_bytes()
    }

    /// Whether `proof` is that of `role` over this dialogue. The time taken does not depend on the difference.
    #[must_use]
    pub fn verify(&self, role: Role, dialogue: &[&[u8]], proof: &Proof) -> bool {
        // `blake3::Hash` compares in constant time.
        blake3::Hash::from(self.proof(role, dialogue)) == blake3::Hash::from(*proof)
    }

    /// The number and the key of the session that begins with this dialogue. They identify the session and prove it
    /// when a connection is resumed.
    #[must_use]
    pub fn session(&self, dialogue: &[&[u8]]) -> (u64, Self) {
        let number = self.keyed(b"session: number ", dialogue);
        let number = number.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (number, Self(*self.keyed(b"session: secret ", dialogue).as_bytes()))
    }

    /// Seals or opens the capability that `role` sends in this dialogue. Both are the same operation.
    #[must_use]
    pub fn seal(&self, role: Role, dialogue: &[&[u8]], capability: &Capability) -> Capability {
        let label = match role {
            Role::Initiator => b"seal:  initiator",
            Role::Acceptor => b"seal:  acceptor ",
        };
        let stream = self.keyed(label, dialogue);
        let mut out = *capability;
        for (byte, mask) in out.iter_mut().zip(stream.as_bytes()) {
            *byte ^= mask;
        }
        out
    }

    /// The pre-shared key and the prologue of the exchange of session keys that follows a dialogue.
    #[must_use]
    pub fn noise(&self, dialogue: &[&[u8]]) -> ([u8; 32], [u8; 32]) {
        (*self.keyed(b"noise: key      ", dialogue).as_bytes(), *self.keyed(b"noise: prologue ", dialogue).as_bytes())
    }

    /// The key of a session whose two sides have also agreed upon a secret. It does not follow from the key of the
    /// handshake.
    #[must_use]
    pub fn agreed(&self, secret: &[&[u8]]) -> Self {
        Self(*self.keyed(b"session: agreed ", secret).as_bytes())
    }

    /// Each part is preceded by its length, so that no two dialogues hash the same bytes. The input is built on the
    /// heap, because `blake3::Hasher`, which takes input in parts, occupies 2 KB of the client's stack.
    fn keyed(&self, label: &[u8; 16], parts: &[&[u8]]) -> blake3::Hash {
        let mut input = label.to_vec();
        for part in parts {
            input.extend_from_slice(&(part.len() as u64).to_le_bytes());
            input.extend_from_slice(part);
        }
        blake3::keyed_hash(&self.0, &input)
    }
}

/// Fresh random bytes from the operating system.
pub fn random<const N: usize>() -> Result<[u8; N], LinkError> {
    let mut bytes = [0; N];
    #[cfg(test)]
    if crate::tcp::faults::net::random(&mut bytes) {
        return Ok(bytes);
    }
    getrandom::fill(&mut bytes).map_err(|_| LinkError::Resources)?;
    Ok(bytes)
}

/// The bytes of a name without its capability, which may travel in the clear.
#[must_use]
pub fn public_part(name: &EpName) -> [u8; NAME_BYTES] {
    let mut bytes = *name.as_bytes();
    bytes[CAPABILITY_AT..].fill(0);
    bytes
}

/// Joins a public part and a capability into a full name.
///
/// Returns `None` if the public part is not that of a full name, or if its endpoint id does not follow from this
/// capability. A peer that has only seen a public name can therefore not impersonate the endpoint.
#[must_use]
pub fn with_capability(public: &[u8; NAME_BYTES], capability: &Capability) -> Option<EpName> {
    let mut bytes = *public;
    if bytes[CAPABILITY_AT..].iter().any(|&byte| byte != 0) {
        return None;
    }
    bytes[CAPABILITY_AT..].copy_from_slice(capability);
    EpName::parse(&bytes).ok().filter(EpName::is_genuine)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use weft_engine::name::{NameParts, endpoint_id};

    fn name() -> EpName {
        EpName::full(&NameParts {
            socket: "10.0.0.1:7".parse().unwrap(),
            host_id: 5,
            ep_id: endpoint_id(&[9; 16]),
            capability: [9; 16],
            context: None,
            shm: true,
            tcp: true,
        })
    }

    #[test]
    fn proofs_hold_only_for_their_key_role_and_dialogue() {
        let key = Key::new(&[9; 16], None);
        let proof = key.proof(Role::Acceptor, &[b"ab", b"c"]);
        assert!(key.verify(Role::Acceptor, &[b"ab", b"c"], &proof));
        assert!(!key.verify(Role::Initiator, &[b"ab", b"c"], &proof));
        assert!(!key.verify(Role::Acceptor, &[b"a", b"bc"], &proof));
        assert!(!Key::new(&[8; 16], None).verify(Role::Acceptor, &[b"ab", b"c"], &proof));
        assert!(!Key::new(&[9; 16], Some(&[0; 32])).verify(Role::Acceptor, &[b"ab", b"c"], &proof));
    }

    #[test]
    fn a_sealed_capability_opens_only_in_its_role() {
        let key = Key::new(&[1; 16], None);
        let sealed = key.seal(Role::Initiator, &[b"x"], &[9; 16]);
        assert_ne!(sealed, [9; 16]);
        assert_eq!(key.seal(Role::Initiator, &[b"x"], &sealed), [9; 16]);
        assert_ne!(key.seal(Role::Acceptor, &[b"x"], &sealed), [9; 16]);
    }

    #[test]
    fn names_lose_and_regain_their_capability() {
        let public = public_part(&name());
        assert_eq!(with_capability(&public, &[9; 16]), Some(name()));
        // A name with a secret in the clear, or one that is not a full name, is not accepted.
        assert_eq!(with_capability(name().as_bytes(), &[9; 16]), None);
        // The id of another capability is not accepted either.
        assert_eq!(with_capability(&public, &[8; 16]), None);
        let service = EpName::service("10.0.0.1:7".parse().unwrap());
        assert_eq!(with_capability(&public_part(&service), &[9; 16]), None);
    }
}
