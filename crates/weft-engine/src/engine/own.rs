//! Writes to the endpoint itself, which are done when the call returns.
//!
//! Place in the data flow: `Engine::write` → here → the region's memory → completion. No message is sent, and no link
//! is needed. Clients read their own memory after the completion like that of any other target, and some do so without
//! progress.
//!
//! Invariant: a write takes effect after all earlier operations to the endpoint itself that are queued or on their way.
//! Those on their way are taken first. A write that must wait for a queued one takes the way of all other writes.

use smallvec::SmallVec;

use crate::api::{OpFlags, RmaOp};
use crate::engine::peer::{Direction, Peer};
use crate::engine::remote_events::RemoteAccess;
use crate::engine::rma::WRITE;
use crate::engine::{Engine, State};
use crate::ids::{PeerId, number};
use crate::mem::{self, IovList};
use crate::name::{EpName, FIRST_TX_CONTEXT};
use crate::nic::Nic;
use crate::wire::{NO_OP, Op, Status};

/// Most rounds of progress that take earlier messages to the endpoint itself.
const ROUNDS: u32 = 64;

impl<N: Nic> Engine<N> {
    /// Executes a write to this endpoint itself. Returns false if it has done nothing, because the write must wait for
    /// an earlier operation.
    #[cold]
    #[inline(never)]
    pub(crate) fn write_own(&mut self, op: &RmaOp<'_>, peer_id: PeerId, len: u64) -> bool {
        let mut rounds = 0;
        while !self.state.peers[peer_id].is_settled() {
            if rounds == ROUNDS {
                return false;
            }
            rounds += 1;
            self.progress();
        }
        // Answers to the endpoint's own reads are copied before their memory changes.
        if self.state.peers[peer_id].holds_back(op.flags) || self.state.memory_changes(peer_id).is_err() {
            return false;
        }
        let fault = match self.state.own_targets(op) {
            Ok(targets) => {
                self.state.store_own(op, peer_id, &targets);
                None
            }
            Err(status) => status.fault(),
        };
        self.state.complete_write(op, len, fault);
        true
    }
}

impl State {
    /// Whether a name is that of this endpoint.
    pub(crate) fn is_own_name(&self, name: &EpName) -> bool {
        if name.is_full() {
            return name.same_endpoint(&self.me);
        }
        // A transmit context does not listen at the socket of its name.
        let listens = self.me.socket().port() != 0 && self.me.context_index() < Some(FIRST_TX_CONTEXT);
        listens && name.socket_identity() == self.me.socket_identity()
    }

    /// The memory of each remote piece of a write, or the reason for its refusal.
    fn own_targets(&mut self, op: &RmaOp<'_>) -> Result<SmallVec<[IovList; 1]>, Status> {
        op.remote.iter().map(|piece| self.target.regions().check(piece.key, piece.addr, piece.len, WRITE)).collect()
    }

    /// Stores the bytes of a write, and reports it like that of a peer.
    fn store_own(&mut self, op: &RmaOp<'_>, peer_id: PeerId, targets: &[IovList]) {
        let mut offset = 0;
        for (at, (piece, target)) in op.remote.iter().zip(targets).enumerate() {
            let (len, last) = (mem::total_len(target), at + 1 == targets.len());
            for direction in [Direction::Sent, Direction::Received] {
                self.peers[peer_id].count_access(direction, piece.len);
            }
            mem::copy(target, &mem::slice(op.iov, offset, len));
            offset += len;
            let data = (last && op.flags.contains(OpFlags::DATA)).then_some(op.data);
            let part = Op { op: NO_OP.into(), part: number(at).into() };
            let parts = self.part_begins(peer_id, part, !last);
            self.part_done(peer_id, parts, &RemoteAccess::write(piece.key, data, len));
        }
    }
}

impl Peer {
    /// Whether no operation is queued, and the peer, which is this endpoint itself, has taken all messages.
    fn is_settled(&self) -> bool {
        self.tx_is_empty() && self.tx_seq() == self.rx_seq()
    }
}
