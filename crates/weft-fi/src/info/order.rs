//! Message and completion order: what is promised, and what that costs (fi_endpoint(3), "Message Ordering").
//!
//! The engine takes a peer's messages in the order in which they were sent. A send, however long, takes part in
//! matching at its place in that order (of a long one the announcement does), so *send after send* always holds and
//! is free. An RMA operation that fits a message takes effect at its place too; a longer one only begins there and
//! moves its data beside the stream, while later operations proceed. Therefore:
//!
//! - RMA and atomics among each other are ordered up to [`ordered_rma_bytes`]; that is what the attributes
//!   `max_order_{raw,war,waw}_size` are for, and the flags are granted with these limits.
//! - An RMA operation after a send begins behind it in the stream: whoever sees what it did finds the
//!   message. (That the message has been received cannot be meant: nobody may ever ask for it.)
//! - A send after an RMA operation has no such limit in libfabric's attributes, so it must hold for all
//!   sizes. Where a client asks for that (SAW: Global Arrays' ComEx), sends wait for earlier RMA operations
//!   to the same peer, and for nothing else: an earlier send may be received only after this one. Clients
//!   that do not ask pay nothing.
//! - These two are not offered unasked.
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

/// Held where asked for.
pub(crate) const ASKED_FOR: u64 = sys::FI_ORDER_RAS | sys::FI_ORDER_WAS | AFTER_ACCESSES;

/// With any of these, sends wait for earlier RMA operations.
pub(crate) const AFTER_ACCESSES: u64 = sys::FI_ORDER_SAR | sys::FI_ORDER_SAW;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_there() {
        assert_eq!(FREE & ASKED_FOR, 0);
        // Together they are all that the 1.x "strict" order means.
        assert_eq!((FREE | ASKED_FOR) & sys::FI_ORDER_STRICT, sys::FI_ORDER_STRICT);
    }
}
