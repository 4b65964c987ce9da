//! Which functions an endpoint has: those that its capabilities include (fi_getinfo(3), "CAPABILITIES"). The rest answers -FI_ENOSYS.
//!
//! Place in the data flow: a table is chosen once, when the endpoint is opened, so that no call looks at capabilities or at the
//! endpoint's type. What an endpoint does not have may lack a queue to complete in, too: see `fi_enable`.

use weft_fi_sys::{
    FI_ATOMIC, FI_MSG, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_SEND, FI_TAGGED, FI_WRITE,
    fi_ops_atomic, fi_ops_msg, fi_ops_rma, fi_ops_tagged,
};

use crate::endpoint::peer;
use crate::info::EpType;
use crate::{atomic, msg, noop, rma, tagged};

/// Whether capabilities include a kind of operation: a primary one, and a modifier of those given, of which none means all.
pub(super) fn includes(caps: u64, primary: u64, modifiers: u64, wanted: u64) -> bool {
    caps & primary != 0 && (caps & modifiers == 0 || caps & wanted != 0)
}

const RMA_MODIFIERS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// Declares the tables of one kind of messages: none, only sends, only receives, all.
macro_rules! messages {
    ($name:ident: $table:ident = $real:expr, $none:expr) => {
        static $name: [$table; 4] = [
            $none,
            $table { recv: $none.recv, recvv: $none.recvv, recvmsg: $none.recvmsg, ..$real },
            $table { recv: $real.recv, recvv: $real.recvv, recvmsg: $real.recvmsg, ..$none },
            $real,
        ];
    };
}

messages!(MSG: fi_ops_msg = msg::OPS, noop::MSG);
messages!(TAGGED: fi_ops_tagged = tagged::OPS, noop::TAGGED);
messages!(PEER_MSG: fi_ops_msg = peer::MSG, noop::MSG);
messages!(PEER_TAGGED: fi_ops_tagged = peer::TAGGED, noop::TAGGED);
static NO_RMA: fi_ops_rma = noop::RMA;
static NO_ATOMIC: fi_ops_atomic = noop::ATOMIC;

fn choose<T>([none, sends, receives, all]: &'static [T; 4], caps: u64, primary: u64) -> &'static T {
    let has = |direction| includes(caps, primary, FI_SEND | FI_RECV, direction);
    match (has(FI_SEND), has(FI_RECV)) {
        (false, false) => none,
        (true, false) => sends,
        (false, true) => receives,
        (true, true) => all,
    }
}

/// For messages.
pub(super) fn msg(ty: EpType, caps: u64) -> &'static fi_ops_msg {
    choose(if ty == EpType::Msg { &PEER_MSG } else { &MSG }, caps, FI_MSG)
}

/// For tagged messages.
pub(super) fn tagged(ty: EpType, caps: u64) -> &'static fi_ops_tagged {
    choose(if ty == EpType::Msg { &PEER_TAGGED } else { &TAGGED }, caps, FI_TAGGED)
}

/// For remote memory access. As in other providers one of FI_READ and FI_WRITE is enough: clients are not always exact.
pub(super) fn rma(ty: EpType, caps: u64) -> &'static fi_ops_rma {
    match ty {
        _ if !includes(caps, FI_RMA, RMA_MODIFIERS, FI_READ | FI_WRITE) => &NO_RMA,
        EpType::Msg => &peer::RMA,
        EpType::Rdm | EpType::Dgram => &rma::OPS,
    }
}

/// For atomics; the same holds.
pub(super) fn atomic(ty: EpType, caps: u64) -> &'static fi_ops_atomic {
    match ty {
        _ if !includes(caps, FI_ATOMIC, RMA_MODIFIERS, FI_READ | FI_WRITE) => &NO_ATOMIC,
        EpType::Msg => &peer::ATOMIC,
        EpType::Rdm | EpType::Dgram => &atomic::OPS,
    }
}
