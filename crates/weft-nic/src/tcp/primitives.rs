//! The cryptographic primitives of the key exchange: those of `ring`, which also seals records, and BLAKE2s of
//! `blake2`, which `ring` lacks.
//!
//! Place in the data flow: [`super::noise`] gives [`Primitives`] to `snow`, which looks up the primitives that the
//! pattern names. `ring` exports no private key and uses each for one agreement, which suffices for a pattern without
//! static keys.
//!
//! Errors: `snow::Error` if randomness is missing, and for a peer's public key that leads to an all-zero shared secret.

use std::sync::{Mutex, PoisonError};

use blake2::{Blake2s256, Digest};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};

/// The length in bytes of an X25519 key, and of a shared secret.
const KEY_BYTES: usize = 32;

/// Provides `snow` with primitives.
pub(super) struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        RingResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::<Ephemeral>::default() as _)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::Blake2s).then(|| Box::<Blake2s>::default() as _)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// The hash function. `snow` builds HMAC and key derivation upon it.
#[derive(Default)]
struct Blake2s(Blake2s256);

impl Hash for Blake2s {
    fn name(&self) -> &'static str {
        "BLAKE2s"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&self.0.finalize_reset());
    }
}

/// An ephemeral key pair of X25519.
#[derive(Default)]
struct Ephemeral {
    /// Taken by the first agreement. The lock is needed because `snow` requires `Sync`.
    private: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; KEY_BYTES],
}

impl Dh for Ephemeral {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, _private: &[u8]) {
        unreachable!("the pattern has no static keys");
    }

    fn generate(&mut self, _rng: &mut dyn Random) -> Result<(), Error> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(|_| Error::Rng)?;
        let public = private.compute_public_key().map_err(|_| Error::Dh)?;
        self.public.copy_from_slice(public.as_ref());
        *self.private.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        unreachable!("only makers of static keys need the private key");
    }

    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let private = self.private.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(Error::Dh)?;
        let theirs = UnparsedPublicKey::new(&X25519, theirs.get(..KEY_BYTES).ok_or(Error::Dh)?);
        agree_ephemeral(private, &theirs, |secret| out[..KEY_BYTES].copy_from_slice(secret)).map_err(|_| Error::Dh)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A first message under a key of sevens and the prologue "weft", as produced by snow's own primitives: the wire
    /// format is unchanged.
    #[test]
    fn a_message_of_other_primitives_is_read() {
        const MESSAGE: [u8; 48] = [
            0x0d, 0x06, 0x12, 0xcc, 0x22, 0x06, 0x12, 0xc4, 0xcb, 0xc1, 0x61, 0xb0, 0x1a, 0x1a, 0x66, 0x2e, 0xfc, 0x66,
            0x53, 0xf9, 0x34, 0xad, 0x33, 0xea, 0xa6, 0x62, 0xb0, 0xd0, 0xd6, 0x32, 0xc7, 0x5e, 0xce, 0xb2, 0x87, 0x16,
            0x22, 0xd6, 0xb7, 0xb4, 0x81, 0x00, 0x4d, 0xea, 0x11, 0xdf, 0x2b, 0x1b,
        ];
        for spoiled in [None, Some(0), Some(47)] {
            let pattern = super::super::noise::PATTERN.parse().unwrap();
            let builder = snow::Builder::with_resolver(pattern, Box::new(Primitives));
            let mut reader = builder.psk(0, &[7; 32]).unwrap().prologue(b"weft").unwrap().build_responder().unwrap();
            let mut message = MESSAGE;
            if let Some(at) = spoiled {
                message[at] ^= 1;
            }
            assert_eq!(reader.read_message(&message, &mut []).is_ok(), spoiled.is_none());
        }
    }

    /// The private keys of RFC 7748, section 6.1, cannot be given to `ring`. The test therefore checks that both sides
    /// agree, only once, and never upon zeros.
    #[test]
    fn a_key_agrees_once_and_not_with_zeros() {
        let mut rng = Primitives.resolve_rng().unwrap();
        let mut pair = || {
            let mut pair = Ephemeral::default();
            pair.generate(&mut *rng).unwrap();
            pair
        };
        let (a, b) = (pair(), pair());
        let (mut ours, mut theirs) = ([0; KEY_BYTES], [1; KEY_BYTES]);
        a.dh(b.pubkey(), &mut ours).unwrap();
        b.dh(a.pubkey(), &mut theirs).unwrap();
        assert_eq!(ours, theirs);
        assert!(a.dh(b.pubkey(), &mut ours).is_err(), "a second time");
        assert!(pair().dh(&[0; KEY_BYTES], &mut ours).is_err(), "a point of low order");
    }

    /// The provider contains one implementation of each primitive: that of `ring` if it has one.
    #[test]
    fn each_primitive_has_one_implementation() {
        let lock = include_str!("../../../../Cargo.lock");
        for other in ["aes-gcm", "chacha20poly1305", "curve25519-dalek", "poly1305", "x25519-dalek"] {
            assert!(!lock.contains(&format!("name = \"{other}\"\n")), "{other} does what ring does");
        }
    }
}
