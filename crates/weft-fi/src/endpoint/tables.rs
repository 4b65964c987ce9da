//! The operation tables of a handle: the functions of its endpoint's type, in the directions of its kind. Other slots
//! return -FI_ENOSYS.
//!
//! Place in the data flow: tables are chosen once, when a handle is opened, so that no call checks the type.
//! Capabilities restrict the accesses of peers, and not the operations that the endpoint starts. libfabric's
//! tcp, shm and sockets do the same, and clients rely on it: Charm++ asks for FI_RMA with FI_REMOTE_READ, and
//! reads. An operation returns -FI_ENOCQ if the handle has no queue for it.

use weft_fi_sys::{fi_ops_atomic, fi_ops_msg, fi_ops_rma, fi_ops_tagged};

use crate::abi::noop;
use crate::abi::transfer::{Named, Peer, atomic_ops, msg_ops, rma_ops, tagged_ops};
use crate::endpoint::kind::Kind;
use crate::info::EpType;

/// Whether capabilities include a kind of operation: the `primary` bit, and the `wanted` one of its `modifiers`. No
/// modifier means all.
pub(super) fn includes(caps: u64, primary: u64, modifiers: u64, wanted: u64) -> bool {
    caps & primary != 0 && (caps & modifiers == 0 || caps & wanted != 0)
}

/// Declares the tables of one kind of messages: sends only, receives only, both.
macro_rules! messages {
    ($name:ident: $table:ident = $real:expr, $none:expr) => {
        static $name: [$table; 3] = [
            $table { recv: $none.recv, recvv: $none.recvv, recvmsg: $none.recvmsg, ..$real },
            $table { recv: $real.recv, recvv: $real.recvv, recvmsg: $real.recvmsg, ..$none },
            $real,
        ];
    };
}

messages!(MSG: fi_ops_msg = msg_ops::<Named>(), noop::MSG);
messages!(TAGGED: fi_ops_tagged = tagged_ops::<Named>(), noop::TAGGED);
messages!(PEER_MSG: fi_ops_msg = msg_ops::<Peer>(), noop::MSG);
messages!(PEER_TAGGED: fi_ops_tagged = tagged_ops::<Peer>(), noop::TAGGED);
static RMA: fi_ops_rma = rma_ops::<Named>();
static PEER_RMA: fi_ops_rma = rma_ops::<Peer>();
static ATOMIC: fi_ops_atomic = atomic_ops::<Named>();
static PEER_ATOMIC: fi_ops_atomic = atomic_ops::<Peer>();
static NO_TAGGED: fi_ops_tagged = noop::TAGGED;
static NO_RMA: fi_ops_rma = noop::RMA;
static NO_ATOMIC: fi_ops_atomic = noop::ATOMIC;

fn choose<T>([sends, receives, all]: &'static [T; 3], kind: Kind) -> &'static T {
    match kind {
        Kind::Whole => all,
        Kind::Transmit => sends,
        Kind::Receive | Kind::Shared => receives,
    }
}

/// The table for messages.
pub(super) fn msg(ty: EpType, kind: Kind) -> &'static fi_ops_msg {
    choose(if ty == EpType::Msg { &PEER_MSG } else { &MSG }, kind)
}

/// The table for tagged messages.
pub(super) fn tagged(ty: EpType, kind: Kind) -> &'static fi_ops_tagged {
    match ty {
        EpType::Rdm => choose(&TAGGED, kind),
        EpType::Msg => choose(&PEER_TAGGED, kind),
        EpType::Dgram => &NO_TAGGED,
    }
}

/// The table for remote memory access.
pub(super) fn rma(ty: EpType, kind: Kind) -> &'static fi_ops_rma {
    match (ty, kind) {
        (EpType::Dgram, _) | (_, Kind::Receive | Kind::Shared) => &NO_RMA,
        (EpType::Msg, _) => &PEER_RMA,
        (EpType::Rdm, _) => &RMA,
    }
}

/// The table for atomics.
pub(super) fn atomic(ty: EpType, kind: Kind) -> &'static fi_ops_atomic {
    match (ty, kind) {
        (EpType::Dgram, _) | (_, Kind::Receive | Kind::Shared) => &NO_ATOMIC,
        (EpType::Msg, _) => &PEER_ATOMIC,
        (EpType::Rdm, _) => &ATOMIC,
    }
}
