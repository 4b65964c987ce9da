//! Capabilities: the supported ones, and those that are granted for a request (fi_getinfo(3),
//! "CAPABILITIES").

use weft_fi_sys as sys;
use weft_fi_sys::v2;

use crate::abi::errno::Errno;
use crate::av::USER_IDS_SINCE;
use crate::info::ep_type::EpType;
use crate::info::offer::reject;

/// Kinds of operations. Granted only on request.
const PRIMARY: u64 =
    sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_DIRECTED_RECV | sys::FI_COLLECTIVE;
/// Modifiers that restrict messages to one direction.
const MESSAGE_MODIFIERS: u64 = sys::FI_SEND | sys::FI_RECV;
/// Modifiers that restrict remote memory access and atomics to one role.
const RMA_MODIFIERS: u64 = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
/// Capabilities without cost, which are granted without a request.
const FREE: u64 = sys::FI_MULTI_RECV | sys::FI_SOURCE | sys::FI_FENCE | sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM;
/// Capabilities with a cost. FI_RMA_EVENT: every remote access raises an event. FI_TRIGGER: any thread that
/// raises a counter may enter an endpoint. FI_SOURCE_ERR: messages of unknown sources are errors.
/// FI_NAMED_RX_CTX: addresses may select contexts of scalable endpoints. FI_SHARED_AV: vectors may be shared
/// with other processes.
const COSTLY: u64 = sys::FI_RMA_EVENT | sys::FI_TRIGGER | sys::FI_SOURCE_ERR | sys::FI_NAMED_RX_CTX | sys::FI_SHARED_AV;

/// From API 2.0 on, tagged receives may be directed by a capability of their own, which FI_DIRECTED_RECV
/// includes.
const PRIMARY_2_0: u64 = v2::FI_TAGGED_DIRECTED_RECV;
/// From API 2.0 on: receives must name their source. Granted only on request. If it is the only one
/// requested, receives are directed as well.
const EXACT_2_0: u64 = v2::FI_EXACT_DIRECTED_RECV;
/// From API 2.0 on: multi-receives of tagged messages.
const FREE_2_0: u64 = v2::FI_TAGGED_MULTI_RECV;

/// The capabilities that concern a transmit context.
const TX: u64 = sys::FI_MSG
    | sys::FI_TAGGED
    | sys::FI_RMA
    | sys::FI_ATOMIC
    | sys::FI_SEND
    | sys::FI_READ
    | sys::FI_WRITE
    | sys::FI_FENCE
    | sys::FI_TRIGGER
    | sys::FI_COLLECTIVE
    | sys::FI_NAMED_RX_CTX;
/// The capabilities that concern a receive context.
const RX: u64 = sys::FI_MSG
    | sys::FI_TAGGED
    | sys::FI_RMA
    | sys::FI_ATOMIC
    | sys::FI_RECV
    | sys::FI_REMOTE_READ
    | sys::FI_REMOTE_WRITE
    | sys::FI_MULTI_RECV
    | sys::FI_DIRECTED_RECV
    | v2::FI_TAGGED_DIRECTED_RECV
    | v2::FI_EXACT_DIRECTED_RECV
    | v2::FI_TAGGED_MULTI_RECV
    | sys::FI_SOURCE
    | sys::FI_SOURCE_ERR
    | sys::FI_RMA_EVENT
    | sys::FI_COLLECTIVE
    | sys::FI_TRIGGER;

/// Capabilities that an endpoint has only in a domain that was opened with them.
pub(crate) const OF_WHOLE_DOMAIN: u64 = sys::FI_RMA_EVENT | sys::FI_TRIGGER;

/// The capabilities of every domain.
pub(crate) const DOMAIN: u64 = sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM;

/// The capabilities that a domain has on request, in its attributes or among all capabilities.
pub(crate) const fn domain_extras(api: u32) -> u64 {
    sys::FI_SHARED_AV | sys::FI_COLLECTIVE | user_ids(api)
}

/// FI_AV_USER_ID in API versions that have it. Granted only on request.
pub(crate) const fn user_ids(api: u32) -> u64 {
    if api >= USER_IDS_SINCE { sys::FI_AV_USER_ID } else { 0 }
}

/// The capabilities that a client of this API version may request. Before 2.0, bits 44 to 48 have other
/// meanings, which weft does not support.
pub(crate) const fn offered(api: u32, kind: EpType) -> u64 {
    let new = if api >= v2::V2_0 { PRIMARY_2_0 | EXACT_2_0 | FREE_2_0 } else { 0 } | user_ids(api);
    (PRIMARY | MESSAGE_MODIFIERS | RMA_MODIFIERS | FREE | COSTLY | new) & !kind.lacks(api)
}

/// The capabilities of a client that requests none.
const fn default_caps(api: u32, kind: EpType) -> u64 {
    offered(api, kind)
        & !(EXACT_2_0
            | sys::FI_COLLECTIVE
            | sys::FI_SOURCE_ERR
            | sys::FI_NAMED_RX_CTX
            | sys::FI_SHARED_AV
            | sys::FI_AV_USER_ID)
}

/// The capabilities that are granted for `wanted` and for the attributes of contexts, or the refusal.
///
/// A context may request capabilities that `wanted` lacks. libfabric's own providers compare both with their
/// capabilities, and not with each other.
pub(crate) fn grant(api: u32, kind: EpType, wanted: u64, contexts: u64) -> Result<u64, Errno> {
    for (what, wanted) in [("caps", wanted), ("caps of tx_attr and rx_attr", contexts)] {
        let unknown = wanted & !offered(api, kind);
        if unknown != 0 {
            let wanted = format_args!("{wanted:#x} (of which {unknown:#x})");
            return Err(reject(what, wanted, format_args!("{:#x}", offered(api, kind))));
        }
    }
    const MODIFIERS: u64 = MESSAGE_MODIFIERS | RMA_MODIFIERS;
    if wanted == 0 {
        return Ok(default_caps(api, kind) | contexts);
    }
    // Modifiers of a context restrict only that context.
    Ok(granted(api, kind, wanted | contexts & !MODIFIERS) | contexts)
}

/// The capabilities that are granted for `wanted`, which is supported and not empty.
const fn granted(api: u32, kind: EpType, wanted: u64) -> u64 {
    let primary = PRIMARY | PRIMARY_2_0;
    // Without a kind of operation in the request, all kinds are granted.
    let base = if wanted & primary == 0 { default_caps(api, kind) & primary } else { wanted & primary };
    let messages = base & (sys::FI_MSG | sys::FI_TAGGED) != 0;
    let rma = base & (sys::FI_RMA | sys::FI_ATOMIC) != 0;
    let granted = base
        | modifiers(messages, wanted & MESSAGE_MODIFIERS, MESSAGE_MODIFIERS)
        | modifiers(rma, wanted & RMA_MODIFIERS, RMA_MODIFIERS)
        | wanted & (COSTLY | EXACT_2_0 | sys::FI_AV_USER_ID)
        | offered(api, kind) & (FREE | if api >= v2::V2_0 { FREE_2_0 } else { 0 });
    let receives = granted & sys::FI_RECV != 0;
    let mut without = if receives { 0 } else { sys::FI_MULTI_RECV };
    // Before 2.0 the bit has another meaning, and is never granted.
    if !receives || granted & sys::FI_TAGGED == 0 {
        without |= FREE_2_0;
    }
    // A client may check for every capability that it requested, even for those without effect here.
    granted & !without | wanted
}

/// Without a modifier, all modifiers apply, if the capability that they modify is granted.
const fn modifiers(applies: bool, wanted: u64, all: u64) -> u64 {
    match (applies, wanted) {
        (false, _) => 0,
        (true, 0) => all,
        (true, some) => some,
    }
}

/// The part of an endpoint's capabilities that concerns its transmit context.
pub(crate) const fn of_tx(caps: u64) -> u64 {
    caps & TX
}

/// The part of an endpoint's capabilities that concerns its receive context.
pub(crate) const fn of_rx(caps: u64) -> u64 {
    caps & RX
}

/// The capabilities of a scalable endpoint's context that is opened with `context`. If `context` has a kind
/// of operation without modifiers, the modifiers of the endpoint apply: fi_getinfo omits the modifiers that
/// do not concern a context.
pub(crate) const fn of_context(endpoint: u64, context: u64) -> u64 {
    const fn inherited(endpoint: u64, context: u64, all: u64) -> u64 {
        if context & all == 0 { endpoint & all } else { 0 }
    }
    if context == 0 {
        return endpoint;
    }
    context | inherited(endpoint, context, MESSAGE_MODIFIERS) | inherited(endpoint, context, RMA_MODIFIERS)
}

/// The part of `caps` for a receive-only endpoint, without the kinds of operations in which it takes no part.
pub(crate) const fn receiving(caps: u64) -> u64 {
    restricted(caps, sys::FI_RECV, sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE)
}

/// The part of `caps` for a transmit-only endpoint.
pub(crate) const fn transmitting(caps: u64) -> u64 {
    restricted(caps, sys::FI_SEND, sys::FI_READ | sys::FI_WRITE)
}

/// Reduces the modifiers in `caps` to those given. Kinds of operations that are left without a modifier are
/// removed.
const fn restricted(caps: u64, messages: u64, rma: u64) -> u64 {
    const MESSAGES: u64 = sys::FI_MSG | sys::FI_TAGGED;
    const RMA: u64 = sys::FI_RMA | sys::FI_ATOMIC;
    let message_modifiers = modifiers(caps & MESSAGES != 0, caps & MESSAGE_MODIFIERS, MESSAGE_MODIFIERS) & messages;
    let rma_modifiers = modifiers(caps & RMA != 0, caps & RMA_MODIFIERS, RMA_MODIFIERS) & rma;
    let mut kept = caps & !(MESSAGE_MODIFIERS | RMA_MODIFIERS) | message_modifiers | rma_modifiers;
    if message_modifiers == 0 {
        kept &= !MESSAGES;
    }
    if rma_modifiers == 0 {
        kept &= !RMA;
    }
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const V1_5: u32 = sys::version(1, 5);

    #[test]
    fn an_empty_request_is_granted_everything() {
        assert_eq!(
            grant(V1_5, EpType::Rdm, 0, 0).unwrap(),
            offered(V1_5, EpType::Rdm)
                & !(sys::FI_COLLECTIVE | sys::FI_SOURCE_ERR | sys::FI_NAMED_RX_CTX | sys::FI_SHARED_AV),
            "collectives and source errors only on request"
        );
        let new = grant(v2::V2_0, EpType::Rdm, 0, 0).unwrap();
        assert_ne!(new & v2::FI_TAGGED_DIRECTED_RECV, 0);
        assert_eq!(new & v2::FI_EXACT_DIRECTED_RECV, 0, "a restriction only on request");
    }

    #[test]
    fn granted_capabilities_may_be_requested() {
        for api in [0, sys::version(1, 0), V1_5, sys::version(1, 18), v2::V2_0, sys::version(2, 5)] {
            let granted = grant(api, EpType::Rdm, 0, 0).unwrap();
            assert_eq!(grant(api, EpType::Rdm, granted, 0).unwrap(), granted);
        }
    }

    #[test]
    fn every_primary_capability_belongs_to_a_context() {
        let granted = grant(V1_5, EpType::Rdm, sys::FI_MSG | sys::FI_NAMED_RX_CTX | sys::FI_DIRECTED_RECV, 0).unwrap();
        assert_eq!((of_tx(granted) | of_rx(granted)) & PRIMARY & granted, granted & PRIMARY);
        assert_eq!(of_rx(granted) & sys::FI_NAMED_RX_CTX, 0, "only senders name a context");
        assert_ne!(of_tx(granted) & sys::FI_NAMED_RX_CTX, 0);
    }

    #[test]
    fn only_requested_primary_capabilities_are_granted() {
        let granted = grant(V1_5, EpType::Rdm, sys::FI_TAGGED, 0).unwrap();
        assert_eq!(granted & (sys::FI_MSG | sys::FI_RMA | sys::FI_DIRECTED_RECV), 0);
        assert_eq!(granted & MESSAGE_MODIFIERS, MESSAGE_MODIFIERS);
        assert_eq!(granted & (RMA_MODIFIERS | COSTLY), 0);
        assert_eq!(granted & FREE, FREE);
    }

    #[test]
    fn contexts_are_not_wider_than_their_endpoint() {
        let whole = grant(V1_5, EpType::Rdm, sys::FI_MSG | sys::FI_RMA | sys::FI_RECV | sys::FI_WRITE, 0).unwrap();
        assert_eq!(receiving(of_context(whole, of_rx(whole))) & (PRIMARY | RMA_MODIFIERS), sys::FI_MSG);
        assert_eq!(transmitting(of_context(whole, of_tx(whole))) & (PRIMARY | MESSAGE_MODIFIERS), sys::FI_RMA);
        assert_eq!(of_context(whole, 0), whole);
        let asked = sys::FI_RMA | sys::FI_REMOTE_WRITE;
        assert_eq!(of_context(whole, asked) & RMA_MODIFIERS, sys::FI_REMOTE_WRITE, "the explicit request");
    }

    /// A context may request more than the endpoint, and both get it. The access of peers stays as requested.
    #[test]
    fn capabilities_of_contexts_are_granted() {
        let rdm = |wanted, contexts| grant(V1_5, EpType::Rdm, wanted, contexts);
        let rma = sys::FI_RMA | sys::FI_REMOTE_READ;
        let all = rdm(rma, sys::FI_ATOMIC | sys::FI_TAGGED | sys::FI_READ | sys::FI_RMA_EVENT).unwrap();
        assert_eq!(all & RMA_MODIFIERS, sys::FI_REMOTE_READ | sys::FI_READ);
        assert_eq!(all & (PRIMARY | COSTLY), sys::FI_RMA | sys::FI_ATOMIC | sys::FI_TAGGED | sys::FI_RMA_EVENT);
        assert_eq!(rdm(sys::FI_RMA, sys::FI_RMA | sys::FI_READ), rdm(sys::FI_RMA, 0), "restricts nothing");
        for idle in [sys::FI_MSG | sys::FI_READ, sys::FI_MSG | sys::FI_SEND | sys::FI_MULTI_RECV] {
            assert_eq!(rdm(idle, 0).unwrap() & idle, idle, "everything that was requested");
        }
        assert_eq!(rdm(0, sys::FI_NAMED_RX_CTX), Ok(default_caps(V1_5, EpType::Rdm) | sys::FI_NAMED_RX_CTX));
        assert_eq!(rdm(sys::FI_MSG, sys::FI_HMEM), Err(Errno::NODATA));
    }

    #[test]
    fn modifiers_restrict_capabilities() {
        let granted = grant(V1_5, EpType::Rdm, sys::FI_MSG | sys::FI_RMA | sys::FI_SEND | sys::FI_WRITE, 0).unwrap();
        assert_eq!(granted & MESSAGE_MODIFIERS, sys::FI_SEND);
        assert_eq!(granted & RMA_MODIFIERS, sys::FI_WRITE);
        assert_eq!(granted & sys::FI_MULTI_RECV, 0);
    }

    #[test]
    fn bits_have_the_meaning_of_the_api_version() {
        let v1_20 = sys::version(1, 20);
        for bit in [v2::FI_TAGGED_DIRECTED_RECV, v2::FI_TAGGED_MULTI_RECV, v2::FI_EXACT_DIRECTED_RECV] {
            assert_eq!(grant(v1_20, EpType::Rdm, sys::FI_TAGGED | bit, 0), Err(Errno::NODATA));
            assert_ne!(grant(v2::V2_0, EpType::Rdm, sys::FI_TAGGED | bit, 0).unwrap() & bit, 0);
        }
        for api in [v1_20, v2::V2_0] {
            assert_eq!(grant(api, EpType::Rdm, sys::FI_HMEM, 0), Err(Errno::NODATA));
            assert_eq!(grant(api, EpType::Rdm, v2::FI_XPU, 0), Err(Errno::NODATA));
        }
    }
}
