//! The frames of a rail: numbered segments and receipts. docs/protocol.md specifies the same layouts.
//!
//! Place in the data flow: [`super`] writes frames, and [`super::incoming`] reads them. Integers are little-endian.
//! Every length is checked here before it is used.

use weft_engine::nic::LinkError;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::wire::SEGMENT_MAX_BYTES;

/// Length of a segment's header.
pub(super) const HEAD_BYTES: usize = size_of::<SegmentLayout>();
/// Length of a whole receipt.
pub(super) const RECEIPT_BYTES: usize = size_of::<ReceiptLayout>();
/// Limit of segments of one direction of a link that are not acknowledged.
pub(super) const SPAN: u64 = 64;

const KIND_SEGMENT: u8 = 5;
const KIND_RECEIPT: u8 = 6;

const _: () = assert!(HEAD_BYTES == 40 && RECEIPT_BYTES == 24);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Common {
    /// The number of bytes after the first eight.
    len: U32,
    kind: u8,
    reserved: [u8; 3],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SegmentLayout {
    common: Common,
    number: U64,
    after: U64,
    window: U64,
    offset: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReceiptLayout {
    common: Common,
    low: U64,
    bits: U64,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHead {
    /// The number among all segments of this direction of the link. A repeated segment has its first number.
    pub(super) number: u64,
    /// The position in the stream of the link's first connection that the receiver must have taken before.
    pub(super) after: u64,
    pub(super) window: u64,
    pub(super) offset: u64,
    /// Bytes of payload.
    pub(super) len: usize,
}

/// The segments that an endpoint has placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    /// All segments below this number.
    pub(super) low: u64,
    /// Bit n stands for the segment `low + n`.
    pub(super) bits: u64,
}

/// A frame of a rail. The payload of a segment follows its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Segment(SegmentHead),
    Receipt(Receipt),
}

const fn common(len: usize, kind: u8) -> Common {
    // Every length is below 2^21.
    #[allow(clippy::cast_possible_truncation)]
    let len = len as u32;
    Common { len: U32::new(len), kind, reserved: [0; 3] }
}

impl SegmentHead {
    pub(super) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let common = common(HEAD_BYTES - size_of::<Common>() + self.len, KIND_SEGMENT);
        let [number, after, window, offset] = [self.number, self.after, self.window, self.offset].map(U64::new);
        zerocopy::transmute!(SegmentLayout { common, number, after, window, offset })
    }
}

impl Receipt {
    pub(super) fn to_bytes(self) -> [u8; RECEIPT_BYTES] {
        let common = common(RECEIPT_BYTES - size_of::<Common>(), KIND_RECEIPT);
        zerocopy::transmute!(ReceiptLayout { common, low: self.low.into(), bits: self.bits.into() })
    }
}

/// Decodes the frame at the beginning of `bytes`. Returns it with its length, without payload. `None`: more bytes are
/// needed.
pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, LinkError> {
    let Ok((common, _)) = Common::ref_from_prefix(bytes) else { return Ok(None) };
    let len = common.len.get() as usize + size_of::<Common>();
    match common.kind {
        _ if common.reserved != [0; 3] => Err(LinkError::Protocol),
        KIND_SEGMENT if (HEAD_BYTES + 1..=HEAD_BYTES + SEGMENT_MAX_BYTES).contains(&len) => {
            let Ok((layout, _)) = SegmentLayout::ref_from_prefix(bytes) else { return Ok(None) };
            let [number, after, window, offset] =
                [layout.number, layout.after, layout.window, layout.offset].map(U64::get);
            let len = len - HEAD_BYTES;
            offset.checked_add(len as u64).ok_or(LinkError::Protocol)?;
            Ok(Some((Frame::Segment(SegmentHead { number, after, window, offset, len }), HEAD_BYTES)))
        }
        KIND_RECEIPT if len == RECEIPT_BYTES => {
            let Ok((layout, _)) = ReceiptLayout::ref_from_prefix(bytes) else { return Ok(None) };
            Ok(Some((Frame::Receipt(Receipt { low: layout.low.get(), bits: layout.bits.get() }), RECEIPT_BYTES)))
        }
        _ => Err(LinkError::Protocol),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HEAD: SegmentHead = SegmentHead { number: 7, after: 1 << 50, window: 3, offset: 1 << 40, len: 77 };

    #[test]
    fn frames_round_trip_at_any_cut() {
        let receipt = Receipt { low: 9, bits: 0b1010 };
        for (bytes, frame) in
            [(&HEAD.to_bytes()[..], Frame::Segment(HEAD)), (&receipt.to_bytes()[..], Frame::Receipt(receipt))]
        {
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut]), Ok(None), "{cut}");
            }
            assert_eq!(decode(bytes), Ok(Some((frame, bytes.len()))));
        }
    }

    #[test]
    fn wild_headers_are_refused() {
        let wild = |at: usize, byte: u8| {
            let mut bytes = HEAD.to_bytes();
            bytes[at] = byte;
            decode(&bytes)
        };
        for (at, byte) in [(3, 1), (4, 1), (4, 4), (4, 6), (5, 1), (7, 1)] {
            assert_eq!(wild(at, byte), Err(LinkError::Protocol), "{at}");
        }
        assert_eq!(decode(&SegmentHead { len: 0, ..HEAD }.to_bytes()), Err(LinkError::Protocol));
        assert_eq!(decode(&SegmentHead { len: SEGMENT_MAX_BYTES + 1, ..HEAD }.to_bytes()), Err(LinkError::Protocol));
        assert_eq!(decode(&SegmentHead { offset: u64::MAX - 5, ..HEAD }.to_bytes()), Err(LinkError::Protocol));
    }
}
