//! Message and completion order: what is promised, and what that costs (fi_endpoint(3), "Message Ordering").
//!
//! The engine takes a peer's messages in the order in which they were sent. A send, however long, takes part in
//! matching at its place in that order (of a long one the announcement does), so *send after send* always holds and
//! is free. An RMA operation that fits a message takes effect at its place too; a longer one only begins there and
//! moves its data beside the stream, while later operations proceed. Therefore:
//!
//! - RMA and atomics among each other are ordered up to [`ordered_rma_bytes`]; that is what the attributes
//!   `max_order_{raw,war,waw}_size` are for, and the flags are granted with these limits.
//! - A send against an RMA operation, in either direction, has no such limit in libfabric's attributes, so it must
//!   hold for all sizes. Where a client asks for one (SAW: Global Arrays' ComEx), later operations of that kind
//!   wait for earlier operations to the same peer, as FI_FENCE does: see [`Fences`]. Clients that do not ask pay
//!   nothing, and the flags are not offered unasked.
//! - Completions are written when operations complete, in whatever order that is: FI_ORDER_STRICT and FI_ORDER_DATA
//!   as completion orders are not available. A short send after a long one would have to wait for it.

use weft_fi_sys as sys;

/// RMA operations up to this many bytes take effect in order: they travel inside messages whatever the eager
/// thresholds are. A constant of the real devices, whose mailboxes have the room.
pub(crate) fn ordered_rma_bytes() -> usize {
    weft_engine::ordered_rma_bytes(crate::Devices::least_mailbox_bytes())
}

/// Always held, or limited by a size that is reported.
pub(crate) const FREE: u64 = sys::FI_ORDER_SAS
    | sys::FI_ORDER_RAR
    | sys::FI_ORDER_RAW
    | sys::FI_ORDER_WAR
    | sys::FI_ORDER_WAW
    | sys::FI_ORDER_RMA_RAR
    | sys::FI_ORDER_RMA_RAW
    | sys::FI_ORDER_RMA_WAR
    | sys::FI_ORDER_RMA_WAW
    | sys::FI_ORDER_ATOMIC_RAR
    | sys::FI_ORDER_ATOMIC_RAW
    | sys::FI_ORDER_ATOMIC_WAR
    | sys::FI_ORDER_ATOMIC_WAW;

/// Held by fencing, where asked for.
pub(crate) const FENCED: u64 = sys::FI_ORDER_SAR | sys::FI_ORDER_SAW | sys::FI_ORDER_RAS | sys::FI_ORDER_WAS;

/// Which operations an endpoint must fence to keep the order that it promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fences {
    /// Sends wait for earlier RMA operations.
    pub(crate) sends: bool,
    /// RMA reads wait for earlier sends.
    pub(crate) reads: bool,
    /// RMA writes wait for earlier sends.
    pub(crate) writes: bool,
}

impl Fences {
    /// For an endpoint whose transmit attributes have this `msg_order`.
    pub(crate) const fn of(msg_order: u64) -> Self {
        Self {
            sends: msg_order & (sys::FI_ORDER_SAR | sys::FI_ORDER_SAW) != 0,
            reads: msg_order & sys::FI_ORDER_RAS != 0,
            writes: msg_order & sys::FI_ORDER_WAS != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mixed_orders_cost() {
        assert_eq!(Fences::of(FREE), Fences::default());
        assert_eq!(Fences::of(FREE | sys::FI_ORDER_SAW), Fences { sends: true, ..Fences::default() });
        assert_eq!(Fences::of(FENCED), Fences { sends: true, reads: true, writes: true });
        assert_eq!(FREE & FENCED, 0);
        // Together they are all that the 1.x "strict" order means.
        assert_eq!((FREE | FENCED) & sys::FI_ORDER_STRICT, sys::FI_ORDER_STRICT);
    }
}
