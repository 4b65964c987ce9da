//! Message and completion order: the guarantees, and their cost (fi_endpoint(3), "Message Ordering").
//!
//! The engine processes a peer's messages in the order of sending. A send of any length takes part in
//! matching at its position in that order; for a long one the announcement does. *Send after send* therefore
//! always holds and is free. An RMA operation that fits a message takes effect at its position. A longer one
//! only starts there and moves its data outside the stream, while later operations proceed. This has the
//! following consequences.
//!
//! - RMA and atomic operations are ordered among each other up to [`weft_engine::ordered_rma_bytes`]. Operations of
//!   this size travel inside messages for any eager threshold, and the mailboxes of every device have the room. The
//!   attributes `max_order_{raw,war,waw}_size` express this limit, so the flags are granted.
//! - An RMA operation after a send starts behind it in the stream. A target that sees the effect of the
//!   operation finds the message. (The guarantee cannot include that the message was received, because a
//!   receive may never be posted.)
//! - For a send after an RMA operation, libfabric has no attribute for a limit, so the order must hold for
//!   all sizes. If a client requests it (SAW: Global Arrays' ComEx), sends wait for earlier RMA operations to
//!   the same peer. They wait for no earlier send, which may be received only after this one. Clients that do
//!   not request it pay nothing.
//! - Orders between sends and RMA operations are offered only on request.
//! - Completions are written when operations complete, in any order. The completion orders FI_ORDER_STRICT
//!   and FI_ORDER_DATA are not supported: a short send would have to wait for an earlier long one.

use weft_fi_sys as sys;

/// Orders that always hold, or hold up to a reported size.
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

/// Orders that hold on request.
pub(crate) const ON_REQUEST: u64 = ACCESSES_AFTER_SENDS | AFTER_ACCESSES;

/// With any of these, accesses follow earlier sends, and are therefore messages.
pub(crate) const ACCESSES_AFTER_SENDS: u64 = sys::FI_ORDER_RAS | sys::FI_ORDER_WAS;

/// With any of these, sends wait for earlier RMA operations.
pub(crate) const AFTER_ACCESSES: u64 = sys::FI_ORDER_SAR | sys::FI_ORDER_SAW;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_orders_of_libfabric_1_are_supported() {
        assert_eq!(FREE & ON_REQUEST, 0);
        // Together they are the "strict" order of libfabric 1.x.
        assert_eq!((FREE | ON_REQUEST) & sys::FI_ORDER_STRICT, sys::FI_ORDER_STRICT);
    }
}
