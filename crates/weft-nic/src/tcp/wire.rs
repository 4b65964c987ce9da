//! The wire format of a TCP link: four handshake messages of fixed size, then frames.
//!
//! Place in the data flow: [`super::initiator`] and [`super::half_open`] exchange the handshake messages. [`super::tx`]
//! writes frames, and [`super::rx`] reads them. Integers are little-endian, structures have no padding, and every
//! length is checked here before it is used. docs/protocol.md specifies the same layouts.
//!
//! Errors: a header that breaks a rule decodes to `None`. The link then ends with `LinkError::Protocol`.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use weft_engine::name::NAME_BYTES;

use crate::handshake::{Capability, Nonce, Proof};

/// The first bytes of every hello and answer.
pub(super) const MAGIC: [u8; 8] = *b"weft-tcp";
/// The version of handshake and frames that this code speaks.
pub(super) const VERSION: u8 = 2;

/// Longest message (head and body): 64 KiB of payload and the engine's header.
pub(crate) const MAILBOX_BYTES: usize = 64 * 1024 + 256;
/// Longest payload of one push segment that is accepted from a peer.
pub(super) const SEGMENT_MAX_BYTES: usize = 1024 * 1024;

/// Length of a frame's header; a push segment has [`PUSH_HEAD_BYTES`].
pub(super) const HEAD_BYTES: usize = size_of::<FrameHead>();
/// Length of a push segment's header: frame header, window, offset.
pub(super) const PUSH_HEAD_BYTES: usize = size_of::<PushHead>();
/// Length of a whole acknowledgement.
pub(super) const ACK_BYTES: usize = HEAD_BYTES + size_of::<U64>();

const KIND_MESSAGE: u8 = 1;
const KIND_PUSH: u8 = 2;
const KIND_GOODBYE: u8 = 3;
const KIND_ACK: u8 = 4;

/// In [`FrameHead::flags`] of a push segment: the sender requests an acknowledgement.
const ACK_REQUESTED: u8 = 1;

/// In [`Hello::flags`]: the initiator knows the full name, and the key is made from its capability.
pub(super) const KNOWS_CAPABILITY: u8 = 1;
/// In [`Hello::flags`]: the traffic after the handshake must be encrypted.
pub(super) const ENCRYPTS: u8 = 8;

/// In [`Hello::flags`]: an existing link must be resumed. The name then begins with the session's number, and the rest
/// of it is zero.
pub(super) const RETURNS: u8 = 2;
/// In [`Hello::flags`], with [`RETURNS`]: the sender is the side that made the link.
pub(super) const INITIATOR: u8 = 4;
/// In [`Hello::flags`], with [`RETURNS`]: the connection becomes a rail of the link instead of its first connection.
pub(super) const RAIL: u8 = 16;
/// In [`Hello::flags`], with [`RETURNS`]: the connection becomes an end of a chain.
pub(super) const CHAIN: u8 = 32;

/// In [`Answer::status`] and [`Verdict::status`]: success.
pub(super) const OK: u8 = 0;
/// In a status: the version is not supported.
pub(super) const BAD_VERSION: u8 = 1;
/// In a status: another endpoint than the requested one listens here.
pub(super) const NOT_HERE: u8 = 2;
/// In a status: the proof is wrong, or a capability is required.
pub(super) const DENIED: u8 = 3;
/// In a status: only one of the two sides encrypts.
pub(super) const ENCRYPTION: u8 = 6;
/// In a status: there are no descriptors, or no memory, for the connection.
pub(super) const NO_ROOM: u8 = 7;

/// In a status: the link was closed or has been given up.
pub(super) const UNKNOWN: u8 = 4;
/// In a status: an attempt of the other side takes precedence.
pub(super) const BUSY: u8 = 5;

/// Initiator → acceptor: the names of both sides.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Hello {
    pub(super) magic: [u8; 8],
    pub(super) version: u8,
    pub(super) flags: u8,
    pub(super) reserved: [u8; 6],
    pub(super) nonce: Nonce,
    /// The initiator's full name, its capability zeroed.
    pub(super) name: [u8; NAME_BYTES],
    /// The wanted endpoint id; zero with a service name.
    pub(super) target: [u8; 16],
}

/// Acceptor → initiator: the acceptor's name, with its proof.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Answer {
    pub(super) magic: [u8; 8],
    pub(super) version: u8,
    pub(super) status: u8,
    pub(super) reserved: [u8; 6],
    pub(super) nonce: Nonce,
    /// The acceptor's full name, its capability zeroed.
    pub(super) name: [u8; NAME_BYTES],
    /// The acceptor's capability, sealed; only for an initiator that does not know it.
    pub(super) sealed: Capability,
    pub(super) proof: Proof,
}

/// Initiator → acceptor: the initiator's proof.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Finish {
    /// The initiator's capability, sealed, so that the acceptor knows its full name.
    pub(super) sealed: Capability,
    pub(super) proof: Proof,
}

/// Acceptor → initiator: the result. After success, frames follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Verdict {
    pub(super) status: u8,
    pub(super) reserved: [u8; 7],
}

/// The verdict on a link that is resumed.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ReturnVerdict {
    pub(super) status: u8,
    pub(super) reserved: [u8; 7],
    /// The position in the stream up to which the acceptor has received.
    pub(super) position: U64,
}

const _: () = assert!(size_of::<Hello>() == 112);
const _: () = assert!(size_of::<Answer>() == 144);
const _: () = assert!(size_of::<Finish>() == 48);
const _: () = assert!(size_of::<Verdict>() == 8 && size_of::<ReturnVerdict>() == 16);
const _: () = assert!(HEAD_BYTES == 8 && PUSH_HEAD_BYTES == 24);

/// Header of every frame.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FrameHead {
    /// The number of bytes after this header.
    len: U32,
    kind: u8,
    flags: u8,
    reserved: [u8; 2],
}

/// Header of a push segment.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PushHead {
    head: FrameHead,
    window: U64,
    offset: U64,
}

/// A frame's header, decoded and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A message; its length in bytes.
    Message(usize),
    /// A push segment: 16 more header bytes, then the payload. The payload's length in bytes, and whether an
    /// acknowledgement is requested.
    Push(usize, bool),
    /// An acknowledgement, with 8 more bytes.
    Ack,
    /// The peer closes the link in an orderly way; nothing follows.
    Goodbye,
}

/// Decodes the first eight bytes of a frame. `None`: the peer broke the protocol.
#[inline]
pub(super) fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Frame> {
    let head = FrameHead::ref_from_bytes(bytes).ok()?;
    let len = usize::try_from(head.len.get()).ok()?;
    // One comparison recognizes messages, the most frequent kind.
    if bytes[4..] == [KIND_MESSAGE, 0, 0, 0] && len <= MAILBOX_BYTES {
        return Some(Frame::Message(len));
    }
    decode_other(head, len)
}

fn decode_other(head: &FrameHead, len: usize) -> Option<Frame> {
    if head.reserved != [0; 2] {
        return None;
    }
    match (head.kind, head.flags) {
        (KIND_PUSH, 0 | ACK_REQUESTED) => {
            let payload = len.checked_sub(PUSH_HEAD_BYTES - HEAD_BYTES)?;
            (1..=SEGMENT_MAX_BYTES).contains(&payload).then_some(Frame::Push(payload, head.flags == ACK_REQUESTED))
        }
        (KIND_ACK, 0) if len == ACK_BYTES - HEAD_BYTES => Some(Frame::Ack),
        (KIND_GOODBYE, 0) if len == 0 => Some(Frame::Goodbye),
        _ => None,
    }
}

/// Window and offset of a push segment, which must not reach beyond 2^64.
#[inline]
pub(super) fn decode_push(bytes: &[u8; PUSH_HEAD_BYTES], payload: usize) -> Option<(u64, u64)> {
    let push = PushHead::ref_from_bytes(bytes).ok()?;
    let offset = push.offset.get();
    offset.checked_add(payload as u64)?;
    Some((push.window.get(), offset))
}

/// The header of a message of `len` bytes, which is at most [`MAILBOX_BYTES`].
#[inline]
pub(super) fn message_head(len: usize) -> [u8; HEAD_BYTES] {
    debug_assert!(len <= MAILBOX_BYTES);
    head(len, KIND_MESSAGE, 0)
}

/// The header of a push segment of `payload` bytes, which is at most [`SEGMENT_MAX_BYTES`].
pub(super) fn push_head(payload: usize, window: u64, offset: u64, ack_requested: bool) -> [u8; PUSH_HEAD_BYTES] {
    debug_assert!((1..=SEGMENT_MAX_BYTES).contains(&payload));
    let mut bytes = [0; PUSH_HEAD_BYTES];
    let len = payload + PUSH_HEAD_BYTES - HEAD_BYTES;
    bytes[..HEAD_BYTES].copy_from_slice(&head(len, KIND_PUSH, u8::from(ack_requested) * ACK_REQUESTED));
    bytes[HEAD_BYTES..HEAD_BYTES + 8].copy_from_slice(&window.to_le_bytes());
    bytes[HEAD_BYTES + 8..].copy_from_slice(&offset.to_le_bytes());
    bytes
}

/// The whole goodbye frame.
pub(super) fn goodbye() -> [u8; HEAD_BYTES] {
    head(0, KIND_GOODBYE, 0)
}

/// The whole acknowledgement frame for a position in the stream.
pub(super) fn ack(position: u64) -> [u8; ACK_BYTES] {
    let mut bytes = [0; ACK_BYTES];
    bytes[..HEAD_BYTES].copy_from_slice(&head(ACK_BYTES - HEAD_BYTES, KIND_ACK, 0));
    bytes[HEAD_BYTES..].copy_from_slice(&position.to_le_bytes());
    bytes
}

/// The position in an acknowledgement.
pub(super) fn decode_ack(bytes: &[u8; ACK_BYTES]) -> u64 {
    bytes.last_chunk().map_or(0, |position| u64::from_le_bytes(*position))
}

#[inline]
fn head(len: usize, kind: u8, flags: u8) -> [u8; HEAD_BYTES] {
    // Every caller's length is below 2^21.
    #[allow(clippy::cast_possible_truncation)]
    let len = len as u32;
    let mut bytes = [0; HEAD_BYTES];
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes[4] = kind;
    bytes[5] = flags;
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_round_trip() {
        assert_eq!(decode(&message_head(0)), Some(Frame::Message(0)));
        assert_eq!(decode(&message_head(MAILBOX_BYTES)), Some(Frame::Message(MAILBOX_BYTES)));
        assert_eq!(decode(&goodbye()), Some(Frame::Goodbye));
        for wanted in [false, true] {
            let push = push_head(77, 5, 1 << 40, wanted);
            assert_eq!(decode(push.first_chunk().unwrap()), Some(Frame::Push(77, wanted)));
            assert_eq!(decode_push(&push, 77), Some((5, 1 << 40)));
        }
        assert_eq!(decode(ack(7 << 50).first_chunk().unwrap()), Some(Frame::Ack));
        assert_eq!(decode_ack(&ack(7 << 50)), 7 << 50);
    }

    #[test]
    fn wild_headers_are_refused() {
        let wild = |len: u32, kind: u8, reserved: u8| {
            let mut bytes = [0; HEAD_BYTES];
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            bytes[4] = kind;
            bytes[7] = reserved;
            decode(&bytes)
        };
        let (mailbox, segment) = (u32::try_from(MAILBOX_BYTES).unwrap(), u32::try_from(SEGMENT_MAX_BYTES).unwrap());
        assert_eq!(wild(mailbox + 1, KIND_MESSAGE, 0), None);
        assert_eq!(wild(u32::MAX, KIND_MESSAGE, 0), None);
        assert_eq!(wild(15, KIND_PUSH, 0), None);
        assert_eq!(wild(16, KIND_PUSH, 0), None);
        assert_eq!(wild(segment + 17, KIND_PUSH, 0), None);
        assert_eq!(wild(1, KIND_GOODBYE, 0), None);
        assert_eq!(wild(0, 0, 0), None);
        assert_eq!(wild(0, 9, 0), None);
        assert_eq!(wild(0, KIND_GOODBYE, 1), None);
        assert_eq!(wild(7, KIND_ACK, 0), None);
        assert_eq!(wild(9, KIND_ACK, 0), None);
        for kind in [KIND_MESSAGE, KIND_PUSH, KIND_GOODBYE, KIND_ACK] {
            assert!((0..64).all(|len| decode(&head(len, kind, ACK_REQUESTED << 1)).is_none()));
            assert!(kind == KIND_PUSH || (0..64).all(|len| decode(&head(len, kind, ACK_REQUESTED)).is_none()));
        }
        assert_eq!(decode_push(&push_head(2, 0, u64::MAX - 1, false), 2), None);
    }
}
