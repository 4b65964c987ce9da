//! Translates operation flags from libfabric's 64 bits to the engine's, once per call.
//!
//! Place in the data flow: calls without a flags argument use the endpoint's defaults ([`Defaults`],
//! `op_flags` of the transmit or receive attributes), which are translated when they are set. The `…msg`
//! calls translate their flags here, and ignore the defaults (fi_endpoint(3), "Operation Flags"). Every
//! success makes a queue entry, unless the queue was bound with FI_SELECTIVE_COMPLETION. In that case only
//! operations with FI_COMPLETION make one. Injects never do.
//!
//! Errors: -FI_EOPNOTSUPP for flags that libfabric defines and weft does not support, -FI_EINVAL for the rest.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use bitflags::Flags;
use weft_engine::api::{OpFlags, RecvFlags};
use weft_fi_sys as sys;

use crate::abi::errno::Errno;

/// The flags of one operation, and whether its success makes an entry with a selective binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode<F> {
    /// The engine's flags.
    pub(crate) ops: F,
    /// FI_COMPLETION.
    pub(crate) completion: bool,
}

/// Flags without effect: hints, and the family of the operation.
const IGNORED: u64 = sys::FI_MORE
    | sys::FI_PRIORITY
    | sys::FI_MSG
    | sys::FI_TAGGED
    | sys::FI_RMA
    | sys::FI_SEND
    | sys::FI_RECV
    | sys::FI_READ
    | sys::FI_WRITE;

/// Flags that libfabric defines for operations and weft does not support.
const UNSUPPORTED: u64 =
    sys::FI_COMMIT_COMPLETE | sys::FI_MATCH_COMPLETE | sys::FI_MULTICAST | sys::FI_PEER_TRANSFER | sys::v2::FI_AUTH_KEY;

/// The flags of transmit operations.
const TX: &[(u64, OpFlags)] = &[
    (sys::FI_INJECT, OpFlags::INJECT),
    (sys::FI_INJECT_COMPLETE, OpFlags::FREED),
    (sys::FI_DELIVERY_COMPLETE, OpFlags::DELIVERY),
    // A delivery goes into the buffer that matches the message, or into registered memory.
    (sys::FI_MATCH_COMPLETE, OpFlags::DELIVERY),
    (sys::FI_TRANSMIT_COMPLETE, OpFlags::TRANSMIT),
    (sys::FI_REMOTE_CQ_DATA, OpFlags::DATA),
    (sys::FI_FENCE, OpFlags::FENCE),
    (sys::FI_TRIGGER, OpFlags::TRIGGER),
];

/// The flags of receives. Completion levels have no effect for host memory.
const RX: &[(u64, RecvFlags)] = &[
    (sys::FI_MULTI_RECV, RecvFlags::MULTI),
    (sys::FI_PEEK, RecvFlags::PEEK),
    (sys::FI_CLAIM, RecvFlags::CLAIM),
    (sys::FI_DISCARD, RecvFlags::DISCARD),
    (sys::FI_INJECT_COMPLETE, RecvFlags::empty()),
    (sys::FI_TRANSMIT_COMPLETE, RecvFlags::empty()),
    (sys::FI_DELIVERY_COMPLETE, RecvFlags::empty()),
    (sys::FI_REMOTE_CQ_DATA, RecvFlags::empty()),
    (sys::FI_TRIGGER, RecvFlags::TRIGGER),
];

fn translate<F: Flags + Copy>(flags: u64, table: &[(u64, F)]) -> Result<Mode<F>, Errno> {
    let mut rest = flags & !(IGNORED | sys::FI_COMPLETION);
    let mut ops = F::empty();
    for &(bit, op) in table {
        if rest & bit != 0 {
            ops.insert(op);
            rest &= !bit;
        }
    }
    if rest != 0 {
        return Err(if rest & UNSUPPORTED != 0 { Errno::OPNOTSUPP } else { Errno::INVAL });
    }
    Ok(Mode { ops, completion: flags & sys::FI_COMPLETION != 0 })
}

/// Flags of a transmit call.
#[inline]
pub(crate) fn transmit(flags: u64) -> Result<Mode<OpFlags>, Errno> {
    translate(flags, TX)
}

/// Flags of a receive call.
#[inline]
pub(crate) fn receive(flags: u64) -> Result<Mode<RecvFlags>, Errno> {
    let mode = translate(flags, RX)?;
    let peek = mode.ops.contains(RecvFlags::PEEK);
    let claim = mode.ops.contains(RecvFlags::CLAIM);
    let discard = mode.ops.contains(RecvFlags::DISCARD);
    // A discard needs either a message that a peek finds, or one that was claimed before.
    if (discard && peek == claim) || (mode.ops.contains(RecvFlags::MULTI) && (peek || claim)) {
        return Err(Errno::INVAL);
    }
    Ok(mode)
}

/// The default flags of one direction: libfabric's word, and its translation. Clients serialize changes with all other
/// calls.
#[derive(Debug)]
pub(crate) struct Defaults<F> {
    word: AtomicU64,
    /// The engine's flags in the low half, FI_COMPLETION in bit 32.
    mode: AtomicU64,
    /// The mode of tagged operations, without the flag `TAGGED`.
    tagged: AtomicU64,
    flags: PhantomData<F>,
}

const COMPLETION_BIT: u64 = 1 << 32;

impl Defaults<OpFlags> {
    /// The defaults from the attribute `op_flags` of the transmit side.
    pub(crate) fn transmit(word: u64) -> Result<Self, Errno> {
        Ok(Self::with(word, transmit(word)?, OpFlags::empty()))
    }
}

impl Defaults<RecvFlags> {
    /// The defaults from the attribute `op_flags` of the receive side, for an endpoint with these capabilities.
    /// FI_MULTI_RECV applies to tagged receives only with FI_TAGGED_MULTI_RECV.
    pub(crate) fn receive(word: u64, caps: u64, api: u32) -> Result<Self, Errno> {
        let several = api >= sys::v2::V2_0 && caps & sys::v2::FI_TAGGED_MULTI_RECV != 0;
        Ok(Self::with(word, receive(word)?, if several { RecvFlags::empty() } else { RecvFlags::MULTI }))
    }
}

impl<F: Flags<Bits = u32> + Copy> Defaults<F> {
    fn with(word: u64, mode: Mode<F>, untagged: F) -> Self {
        let tagged = Mode { ops: mode.ops.difference(untagged), ..mode };
        let [mode, tagged] = [mode, tagged].map(|mode| AtomicU64::new(Self::pack(mode)));
        Self { word: AtomicU64::new(word), mode, tagged, flags: PhantomData }
    }

    fn pack(mode: Mode<F>) -> u64 {
        u64::from(mode.ops.bits()) | if mode.completion { COMPLETION_BIT } else { 0 }
    }

    /// Replaces the flags.
    pub(crate) fn set(&self, other: &Self) {
        self.word.store(other.word(), Ordering::Relaxed);
        self.mode.store(other.mode.load(Ordering::Relaxed), Ordering::Relaxed);
        self.tagged.store(other.tagged.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The flags as the client set them.
    pub(crate) fn word(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// The mode of an untagged operation.
    #[inline]
    pub(crate) fn mode(&self) -> Mode<F> {
        Self::unpack(self.mode.load(Ordering::Relaxed))
    }

    /// The mode of a tagged operation.
    #[inline]
    pub(crate) fn tagged(&self) -> Mode<F> {
        Self::unpack(self.tagged.load(Ordering::Relaxed))
    }

    #[inline]
    fn unpack(packed: u64) -> Mode<F> {
        // `pack` has put the flags into the low half.
        #[allow(clippy::cast_possible_truncation)]
        let ops = F::from_bits_retain(packed as u32);
        Mode { ops, completion: packed & COMPLETION_BIT != 0 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn completion_levels_translate_to_different_flags() {
        let of = |flags| transmit(flags).unwrap().ops;
        assert_eq!(of(sys::FI_INJECT_COMPLETE), OpFlags::FREED);
        assert_eq!(of(sys::FI_TRANSMIT_COMPLETE), OpFlags::TRANSMIT);
        assert_eq!(of(sys::FI_DELIVERY_COMPLETE | sys::FI_MORE), OpFlags::DELIVERY);
        assert_eq!(of(sys::FI_MATCH_COMPLETE), OpFlags::DELIVERY);
        assert_eq!(
            of(sys::FI_INJECT | sys::FI_FENCE | sys::FI_REMOTE_CQ_DATA),
            OpFlags::INJECT | OpFlags::FENCE | OpFlags::DATA
        );
    }

    #[test]
    fn unsupported_and_unknown_flags_are_refused() {
        assert_eq!(receive(sys::FI_MATCH_COMPLETE), Err(Errno::OPNOTSUPP));
        for flag in [sys::FI_COMMIT_COMPLETE, sys::FI_MULTICAST] {
            assert_eq!(transmit(flag), Err(Errno::OPNOTSUPP), "{flag:#x}");
            assert_eq!(receive(flag), Err(Errno::OPNOTSUPP), "{flag:#x}");
        }
        assert_eq!(transmit(1 << 40), Err(Errno::INVAL));
        assert_eq!(transmit(sys::FI_PEEK), Err(Errno::INVAL));
        assert_eq!(receive(sys::FI_INJECT), Err(Errno::INVAL));
        assert_eq!(receive(sys::FI_DISCARD), Err(Errno::INVAL));
        assert_eq!(receive(sys::FI_PEEK | sys::FI_CLAIM | sys::FI_DISCARD), Err(Errno::INVAL));
    }

    #[test]
    fn defaults_are_kept_in_both_forms() {
        let word = sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE;
        let defaults = Defaults::transmit(word).unwrap();
        assert_eq!(defaults.word(), word);
        assert_eq!(defaults.mode(), Mode { ops: OpFlags::DELIVERY, completion: true });
        defaults.set(&Defaults::transmit(sys::FI_INJECT).unwrap());
        assert_eq!(defaults.mode(), Mode { ops: OpFlags::INJECT, completion: false });
        assert_eq!(defaults.word(), sys::FI_INJECT);
        let (several, new) = (sys::v2::FI_TAGGED_MULTI_RECV, sys::v2::V2_0);
        for (caps, api, tagged) in [
            (several, new, RecvFlags::MULTI),
            (0, new, RecvFlags::empty()),
            // The bit has another meaning in this version.
            (several, sys::version(1, 20), RecvFlags::empty()),
        ] {
            let defaults = Defaults::receive(sys::FI_MULTI_RECV, caps, api).unwrap();
            assert_eq!((defaults.mode().ops, defaults.tagged().ops), (RecvFlags::MULTI, tagged));
        }
    }
}
