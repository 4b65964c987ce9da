//! The operation tables of a handle: the functions of its endpoint's type, in the directions of its kind. Other slots
//! return -FI_ENOSYS.
//!
//! Place in the data flow: tables are chosen once, when a handle is opened, so that no call checks the type.
//! Capabilities restrict the accesses of peers, and not the operations that the endpoint starts. libfabric's
//! tcp, shm and sockets do the same, and clients rely on it: Charm++ asks for FI_RMA with FI_REMOTE_READ, and
//! reads. An operation returns -FI_ENOCQ if the handle has no queue for it.
//!
//! Endpoints that are recorded (`FI_WEFT_RECORD`) have tables of their own.

use weft_fi_sys::{fi_ops_atomic, fi_ops_msg, fi_ops_rma, fi_ops_tagged};
use weft_nic::Device;

use crate::abi::noop;
use crate::abi::transfer::{Named, Peer, atomic_ops, msg_ops, recorded, rma_ops, tagged_ops};
use crate::endpoint::Ep;
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
        const $name: &[$table; 3] = &[
            $table { recv: $none.recv, recvv: $none.recvv, recvmsg: $none.recvmsg, ..$real },
            $table { recv: $real.recv, recvv: $real.recvv, recvmsg: $real.recvmsg, ..$none },
            $real,
        ];
    };
}

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

impl<D: Device> Ep<D> {
    messages!(MSG: fi_ops_msg = msg_ops::<D, Named>(), noop::MSG);
    messages!(TAGGED: fi_ops_tagged = tagged_ops::<D, Named>(), noop::TAGGED);
    messages!(PEER_MSG: fi_ops_msg = msg_ops::<D, Peer>(), noop::MSG);
    messages!(PEER_TAGGED: fi_ops_tagged = tagged_ops::<D, Peer>(), noop::TAGGED);
    const RMA: &fi_ops_rma = &rma_ops::<D, Named>();
    const PEER_RMA: &fi_ops_rma = &rma_ops::<D, Peer>();
    const ATOMIC: &fi_ops_atomic = &atomic_ops::<D, Named>();
    const PEER_ATOMIC: &fi_ops_atomic = &atomic_ops::<D, Peer>();

    messages!(RECORDED_MSG: fi_ops_msg = recorded::msg::<D>(), noop::MSG);
    messages!(RECORDED_TAGGED: fi_ops_tagged = recorded::tagged::<D>(), noop::TAGGED);
    const RECORDED_RMA: &fi_ops_rma = &recorded::rma::<D>();
    const RECORDED_ATOMIC: &fi_ops_atomic = &recorded::atomic_table::<D>();

    /// The table for messages.
    pub(super) fn msg_ops(ty: EpType, kind: Kind, is_recorded: bool) -> &'static fi_ops_msg {
        let table = match ty {
            EpType::Msg => Self::PEER_MSG,
            EpType::Rdm | EpType::Dgram if is_recorded => Self::RECORDED_MSG,
            EpType::Rdm | EpType::Dgram => Self::MSG,
        };
        choose(table, kind)
    }

    /// The table for tagged messages.
    pub(super) fn tagged_ops(ty: EpType, kind: Kind, is_recorded: bool) -> &'static fi_ops_tagged {
        match ty {
            EpType::Rdm if is_recorded => choose(Self::RECORDED_TAGGED, kind),
            EpType::Rdm => choose(Self::TAGGED, kind),
            EpType::Msg => choose(Self::PEER_TAGGED, kind),
            EpType::Dgram => &NO_TAGGED,
        }
    }

    /// The table for remote memory access.
    pub(super) fn rma_ops(ty: EpType, kind: Kind, is_recorded: bool) -> &'static fi_ops_rma {
        match (ty, kind) {
            (EpType::Dgram, _) | (_, Kind::Receive | Kind::Shared) => &NO_RMA,
            (EpType::Msg, _) => Self::PEER_RMA,
            (EpType::Rdm, _) if is_recorded => Self::RECORDED_RMA,
            (EpType::Rdm, _) => Self::RMA,
        }
    }

    /// The table for atomics.
    pub(super) fn atomic_ops(ty: EpType, kind: Kind, is_recorded: bool) -> &'static fi_ops_atomic {
        match (ty, kind) {
            (EpType::Dgram, _) | (_, Kind::Receive | Kind::Shared) => &NO_ATOMIC,
            (EpType::Msg, _) => Self::PEER_ATOMIC,
            (EpType::Rdm, _) if is_recorded => Self::RECORDED_ATOMIC,
            (EpType::Rdm, _) => Self::ATOMIC,
        }
    }
}
