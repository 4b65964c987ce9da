//! The messages that engines exchange, as specified in docs/protocol.md.
//!
//! Place in the data flow: a message is built on the stack before `Nic::send`, and checked once in
//! `Sink::message`. All integers are little-endian, and all structures are packed without padding (their
//! sizes are asserted below). Decoding copies: no decoded value refers to the message, because a peer over
//! shared memory may still change its bytes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the engine-to-engine protocol; both sides compare it at OPEN.
pub(crate) const PROTOCOL_VERSION: u8 = 3;

/// Bytes of a mailbox that are reserved for the longest header.
pub(crate) const HEADER_BYTES: usize = 128;

/// RMA operations up to this length in bytes travel within messages that have the room. They take effect in the
/// order of the messages, whatever the eager threshold is (`max_order_{raw,war,waw}_size` of libfabric).
pub(crate) const ORDERED_RMA_BYTES: usize = 32 << 10;

/// Kinds of message. Kinds below [`FIRST_SEQUENCED`] belong to a link; all others belong to the numbered
/// stream of a peer.
pub(crate) mod kind {
    /// The first message of the side that connected: [`super::Open`].
    pub(crate) const OPEN: u8 = 0;
    /// The positive answer to OPEN: [`super::Open`]. The link carries messages from then on.
    pub(crate) const OPEN_OK: u8 = 1;
    /// The answer to OPEN when another link already serves this pair. The link is closed after it.
    pub(crate) const OPEN_DUP: u8 = 2;
    /// The first message to a listener: [`super::Open`] and the client's data.
    pub(crate) const CALL: u8 = 3;
    /// The first message of an endpoint that calls back: [`super::Open`] and the client's data. OPEN_OK
    /// answers it.
    pub(crate) const ACCEPT: u8 = 4;
    /// A listener's refusal: the client's data. The link is closed after it.
    pub(crate) const REJECT: u8 = 5;
    /// The reason why the sender does not serve the link, or ends it: [`super::Refused`]. The link is closed after it.
    pub(crate) const REFUSED: u8 = 6;
    /// Asks for a connection in the other direction: [`super::CallBack`]. Only on links that carry messages.
    pub(crate) const CALL_BACK: u8 = 7;
    /// A message with its payload.
    pub(crate) const EAGER: u8 = 8;
    /// Request to send: [`super::Rts`] and the source addresses.
    pub(crate) const RTS: u8 = 9;
    /// Clear to send: [`super::Cts`], and with [`super::F_PLACE`] the U64 address of the receive's memory.
    pub(crate) const CTS: u8 = 10;
    /// One operation has ended: [`super::Fin`].
    pub(crate) const FIN: u8 = 11;
    /// Several operations have ended without error: `flags` operation numbers, U32 each.
    pub(crate) const ACK: u8 = 12;
    /// Returns a part of the eager window: U64 bytes.
    pub(crate) const CREDIT: u8 = 13;
    /// RMA write that contains its payload: [`super::RmaHead`].
    pub(crate) const WRITE: u8 = 14;
    /// RMA write whose payload follows at once, or by get or push: [`super::RmaHead`], [`super::Bulk`],
    /// addresses.
    pub(crate) const WRITE_RTS: u8 = 15;
    /// RMA read that READ_DATA answers: [`super::RmaHead`].
    pub(crate) const READ: u8 = 16;
    /// RMA read that a put or push answers: [`super::RmaHead`], [`super::Bulk`], addresses.
    pub(crate) const READ_BULK: u8 = 17;
    /// The bytes of a READ: [`super::Op`] and payload.
    pub(crate) const READ_DATA: u8 = 18;
    /// Asks the initiator to help with the transfer of its own operation: [`super::Assist`] and the addresses
    /// of the sender's memory.
    pub(crate) const ASSIST: u8 = 19;
    /// An atomic operation: [`super::AtomicHead`], data where `F_DATA`, operands, values to compare with. An
    /// atomic read has its length (U64) in place of the operands.
    pub(crate) const ATOMIC: u8 = 20;
    /// Results of atomic operations: [`super::Op`] and the bytes, repeated.
    pub(crate) const RESULTS: u8 = 21;
    /// The sender has regions that the receiver may map. No body.
    pub(crate) const MAP_OFFER: u8 = 22;
    /// Asks for a region: U64 key. The device passes it, or reports that there is none
    /// ([`crate::nic::Nic::share_region`]).
    pub(crate) const MAP_ASK: u8 = 23;
    /// Names a region that long messages come from or go to: U64 key. The receiver may ask for it.
    pub(crate) const MAP_NAME: u8 = 24;
    /// The sender of a message has copied it to the place that CTS named: U64 window.
    pub(crate) const PLACED: u8 = 25;
    /// An active message: the client's header and body. `detail` has the credit that is returned.
    pub(crate) const ACTIVE: u8 = 26;
    /// Returns credit of active messages, in `detail`. No body.
    pub(crate) const ACTIVE_CREDIT: u8 = 27;
}

/// The first kind of the numbered stream (see [`kind`]).
pub(crate) const FIRST_SEQUENCED: u8 = kind::EAGER;
/// The highest kind; any higher one is a violation.
pub(crate) const LAST_KIND: u8 = kind::ACTIVE_CREDIT;

/// `Head::flags` of CTS: the receive's memory is in a region that the sender of the message may map.
pub(crate) const F_PLACE: u8 = 1;
/// `Head::flags`: the message has a tag.
pub(crate) const F_TAGGED: u8 = 1;
/// `Head::flags`: the message has 64 bits of immediate data.
pub(crate) const F_DATA: u8 = 2;
/// `Head::flags`: the sender requests an acknowledgement of the delivery.
pub(crate) const F_ACK: u8 = 4;

/// `Head::flags` of EAGER, together with `F_ACK`: the sender requests an acknowledgement of the arrival,
/// whether or not a receive has matched.
pub(crate) const F_ARRIVAL: u8 = 32;

/// `Head::flags`: the sender requests the previous value.
pub(crate) const F_FETCH: u8 = 8;

/// `Head::flags` of WRITE, WRITE_RTS, READ, READ_BULK and ATOMIC: more parts of this operation follow. The
/// target's client gets one event when all of them are done.
pub(crate) const F_MORE: u8 = 16;

/// `Head::flags` of EAGER and RTS: a message of a collective (engine::collectives). Data means that the sender's
/// part in the collective has failed.
pub(crate) const F_COLLECTIVE: u8 = 64;

/// `Head::flags` of RTS: the payload follows at once, into the next announced window. It is charged to the eager
/// window.
pub(crate) const F_FOLLOWS: u8 = 128;

/// `Head::flags` of ACTIVE: the message is a reply. The other bits are the length of the client's header.
pub(crate) const F_REPLY: u8 = 128;

/// In place of an operation number: the sender does not wait for the success of this write.
pub(crate) const NO_OP: u32 = u32::MAX;

/// The window of a FIN that refuses a short write. Where the target confirms by position, the confirmation of the
/// write follows.
pub(crate) const CONFIRMED_FIN: u64 = 1;

/// Maximum number of memory pieces in one RTS, WRITE_RTS or READ_BULK.
pub(crate) const MAX_REMOTE_IOV: usize = 32;

/// The head of every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Type and operation of an ATOMIC ([`crate::amo`]), the returned credit of active messages, otherwise 0.
    pub(crate) detail: [u8; 2],
    /// Number of this message in the stream of its peer (0 in link messages).
    pub(crate) seq: U32,
}

impl Head {
    /// A head without a number.
    #[inline]
    pub(crate) const fn new(kind: u8, flags: u8) -> Self {
        Self { kind, flags, detail: [0; 2], seq: U32::ZERO }
    }

    /// The head as it is sent.
    #[inline(always)]
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        let [first, second] = self.detail;
        let low = u32::from_le_bytes([self.kind, self.flags, first, second]);
        (u64::from(low) | u64::from(self.seq.get()) << 32).to_le_bytes()
    }
}

/// Fills in the number of a message that was queued without one. The head is written as a whole, because the device
/// reads it as a whole.
#[inline]
pub(crate) fn number(message: &mut [u8], seq: u32) {
    if let Some(head) = message.first_chunk_mut::<8>() {
        let word = u64::from_le_bytes(*head) & 0xffff_ffff | u64::from(seq) << 32;
        *head = word.to_le_bytes();
    }
}

/// Fills in the credit that an active message returns.
#[inline]
pub(crate) fn give_credit(message: &mut [u8], credit: [u8; 2]) {
    if let Some(head) = message.first_chunk_mut::<8>() {
        let word = u64::from_le_bytes(*head) & !0xffff_0000 | u64::from(u16::from_le_bytes(credit)) << 16;
        *head = word.to_le_bytes();
    }
}

/// OPEN, OPEN_OK, CALL and ACCEPT after [`Head`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Open {
    pub(crate) version: u8,
    pub(crate) reserved: u8,
    /// Units of active requests that the receiver of this message may have under way. 0: its sender takes none.
    pub(crate) active_units: U16,
    /// Numbers the OPENs of an endpoint. A later OPEN has a higher number, by wrapping difference.
    pub(crate) call: U32,
    /// Eager bytes that the receiver of this message may have unmatched at its sender.
    pub(crate) window_bytes: U64,
}

/// The first byte after [`Head`] in [`kind::REFUSED`] is the sender's version, in every version of the protocol.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Refused {
    pub(crate) version: u8,
    /// A [`Refusal`].
    pub(crate) reason: u8,
    /// For later versions.
    pub(crate) reserved: [u8; 6],
}

/// CALL_BACK after [`Head`]: the endpoint `target` should connect to the endpoint `caller`, which gets no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CallBack {
    pub(crate) caller: [u8; 16],
    pub(crate) target: [u8; 16],
    /// The number of endpoints that have passed the message on without a link to the target.
    pub(crate) hops: u8,
    pub(crate) reserved: [u8; 7],
}

/// The reason of [`kind::REFUSED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The sender does not speak the version of the peer.
    Version,
    /// The sender serves as many peers in no address vector as it may.
    Crowded,
    /// The sender ends the link of a peer in no address vector, to make room.
    Evicted,
}

impl Refusal {
    pub(crate) fn to_wire(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Crowded => 2,
            Self::Evicted => 3,
        }
    }

    pub(crate) fn from_wire(n: u8) -> Option<Self> {
        [Self::Version, Self::Crowded, Self::Evicted].into_iter().find(|reason| reason.to_wire() == n)
    }
}

/// The message that tells a peer why its link ends.
pub(crate) fn refused(version: u8, reason: Refusal) -> Short {
    let mut w = Short::new(kind::REFUSED, 0);
    w.put(&Refused { version, reason: reason.to_wire(), reserved: [0; 6] });
    w
}

/// Names a part of an operation. The side that started the operation chose the number.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Op {
    pub(crate) op: U32,
    pub(crate) part: U32,
}

/// RTS after [`Head`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Rts {
    pub(crate) op: U32,
    /// Count of [`WireIov`] that follow; 0: the peer cannot read the source directly.
    pub(crate) iov_count: U32,
    pub(crate) tag: U64,
    pub(crate) data: U64,
    pub(crate) len: U64,
}

/// CTS after [`Head`]: push `len` bytes into `window`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Cts {
    pub(crate) op: Op,
    pub(crate) window: U64,
    pub(crate) len: U64,
}

/// FIN after [`Head`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Fin {
    pub(crate) op: U32,
    /// [`Status`] as a number.
    pub(crate) status: U32,
    /// The window of the READ_BULK that this message answers, otherwise 0.
    pub(crate) window: U64,
}

/// RMA messages after [`Head`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RmaHead {
    pub(crate) op: Op,
    pub(crate) key: U64,
    pub(crate) addr: U64,
    /// Immediate data where `F_DATA`. In a READ, its length.
    pub(crate) data: U64,
}

/// ATOMIC after [`Head`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct AtomicHead {
    pub(crate) op: Op,
    pub(crate) key: U64,
    pub(crate) addr: U64,
}

/// Follows [`RmaHead`] in RMA messages whose payload travels separately.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Bulk {
    pub(crate) len: U64,
    /// READ_BULK: the window into which the target may push. WRITE_RTS: the window into which the payload is
    /// pushed if it follows at once. Otherwise 0.
    pub(crate) window: U64,
    /// Count of [`WireIov`] that follow.
    pub(crate) iov_count: U32,
    pub(crate) reserved: U32,
}

/// ASSIST after [`Head`]. The receiver's device may move a part of the transfer that the sender's device
/// moves.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Assist {
    pub(crate) op: Op,
    /// The sender's device knows the transfer by this number ([`crate::nic::Share`]).
    pub(crate) share: U32,
    /// Count of [`WireIov`] that follow.
    pub(crate) iov_count: U32,
    /// Bytes of the transfer, counted from its first byte.
    pub(crate) len: U64,
}

/// A piece of the sender's memory, for a device that can get or put.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct WireIov {
    pub(crate) addr: U64,
    pub(crate) len: U64,
}

const _: () = {
    assert!(size_of::<Head>() == 8);
    assert!(size_of::<Open>() == 16);
    assert!(size_of::<Refused>() == 8);
    assert!(size_of::<Op>() == 8);
    assert!(size_of::<Rts>() == 32);
    assert!(size_of::<Cts>() == 24);
    assert!(size_of::<Fin>() == 16);
    assert!(size_of::<RmaHead>() == 32);
    assert!(size_of::<AtomicHead>() == 24);
    assert!(size_of::<Bulk>() == 24);
    assert!(size_of::<Assist>() == 24);
    assert!(size_of::<WireIov>() == 16);
};

/// The result of an operation at its target, in [`Fin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    BadKey,
    BadRange,
    Revoked,
    NoMemory,
}

impl Status {
    pub(crate) fn to_wire(self) -> u32 {
        match self {
            Self::Ok => 0,
            Self::BadKey => 1,
            Self::BadRange => 2,
            Self::Revoked => 3,
            Self::NoMemory => 4,
        }
    }

    pub(crate) fn from_wire(n: u32) -> Option<Self> {
        [Self::Ok, Self::BadKey, Self::BadRange, Self::Revoked, Self::NoMemory].get(n as usize).copied()
    }
}

/// A message header under construction, on the stack: at most `ROOM` bytes.
pub(crate) struct Writer<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

/// Size of the longest message with at most one address (a READ_BULK).
pub(crate) const SHORT_ROOM: usize = 80;
/// Size of a message with the longest list of addresses.
pub(crate) const LONG_ROOM: usize = 72 + MAX_REMOTE_IOV * size_of::<WireIov>();
/// A writer for every message with at most one address.
pub(crate) type Short = Writer<SHORT_ROOM>;
/// A writer for the longest list of addresses.
pub(crate) type Long = Writer<LONG_ROOM>;

impl<const ROOM: usize> Writer<ROOM> {
    /// Begins a message. [`Writer::with_seq`] fills in the sequence number.
    #[inline]
    pub(crate) fn new(kind: u8, flags: u8) -> Self {
        let mut w = Self { bytes: [0; ROOM], len: 0 };
        w.put(&Head::new(kind, flags));
        w
    }

    /// Appends a structure.
    #[inline]
    pub(crate) fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        let bytes = value.as_bytes();
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends a payload. The caller has checked that it fits.
    pub(crate) fn gather(&mut self, iov: &[crate::mem::Iov]) {
        self.len += crate::mem::gather(iov, &mut self.bytes[self.len..]);
    }

    /// Sets further flags of the message.
    pub(crate) fn add_flags(&mut self, flags: u8) {
        self.bytes[1] |= flags;
    }

    /// The finished header, with its number.
    #[inline]
    pub(crate) fn with_seq(&mut self, seq: u32) -> &[u8] {
        self.bytes[4..8].copy_from_slice(&seq.to_le_bytes());
        &self.bytes[..self.len]
    }

    /// The finished header without a number: a link message, or a message that is queued.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Takes structures off the front of a message. Returns `None` when the message is too short.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// The remaining bytes: the payload.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next `len` bytes.
    #[inline]
    pub(crate) fn take_bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Takes `count` pieces of memory, at most [`MAX_REMOTE_IOV`].
    pub(crate) fn take_iov(&mut self, count: u32) -> Option<Vec<crate::nic::RemoteIov>> {
        if count as usize > MAX_REMOTE_IOV {
            return None;
        }
        (0..count)
            .map(|_| self.take::<WireIov>().map(|w| crate::nic::RemoteIov { addr: w.addr.get(), len: w.len.get() }))
            .collect()
    }
}

/// Total length of the pieces in bytes. `None`: the sum overflows.
pub(crate) fn described_bytes(pieces: &[crate::nic::RemoteIov]) -> Option<u64> {
    pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_message_is_refused() {
        let mut w = Short::new(kind::RTS, F_TAGGED);
        w.put(&Fin { op: U32::new(3), status: U32::new(0), window: U64::new(0) });
        let bytes = w.with_seq(7).to_vec();
        let mut r = Reader(&bytes);
        let head: Head = r.take().expect("head");
        assert_eq!((head.kind, head.flags, head.seq.get()), (kind::RTS, F_TAGGED, 7));
        assert!(r.take::<Rts>().is_none());
        assert!(r.take_iov(33).is_none());
    }

    #[test]
    fn statuses_round_trip() {
        for s in [Status::Ok, Status::BadKey, Status::BadRange, Status::Revoked, Status::NoMemory] {
            assert_eq!(Status::from_wire(s.to_wire()), Some(s));
        }
        assert_eq!(Status::from_wire(5), None);
        assert!((0..=u8::MAX).all(|n| Refusal::from_wire(n).is_none_or(|reason| reason.to_wire() == n)));
    }
}
