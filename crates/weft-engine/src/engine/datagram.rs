//! Datagrams (FI_EP_DGRAM): messages that arrive once or not at all, and that have no answer.
//!
//! Place in the data flow: an engine with [`Role::Datagrams`] sends eagerly or not at all. [`Engine::send_now`]
//! is the fast path of all endpoints, and declined datagrams come here. A message waits for its link, or for
//! room in the device, while few others wait. It is dropped if more wait, if the receiver's window is used up
//! (the counterpart of a UDP socket's buffer), and with its link. Its send completes in either case. Receivers
//! treat datagrams like other messages.
//!
//! Invariant: a peer that is unreachable, or does not receive, never prevents sends to others.

use crate::api::EAGER_COST;
use crate::api::Role;
use crate::api::{Error, OpFlags, SendOp};
use crate::bugs::planted;
use crate::engine::State;
use crate::engine::ops::{Phase, TxOp};
use crate::engine::{Engine, Started};
use crate::mem;
use crate::nic::Nic;

/// Limit of messages to one peer that wait for its link or for room.
const WAITING_LIMIT: usize = 256;
/// Options that no datagram can have, because they need an answer or an order.
const UNANSWERABLE: OpFlags = OpFlags::DELIVERY.union(OpFlags::FENCE);

impl<N: Nic> Engine<N> {
    /// Number of datagrams that this engine has dropped.
    pub fn dropped(&self) -> u64 {
        self.state.dropped
    }

    /// [`Engine::send_later`] for datagrams. Errors: `Invalid` for options that a datagram cannot have,
    /// `TooLong`, `NoSuchAddress`.
    pub(crate) fn send_datagram(&mut self, op: &SendOp<'_>) -> Result<(), Error> {
        let len = mem::total_len(op.iov);
        if op.flags.intersects(UNANSWERABLE) {
            return Err(Error::Invalid);
        }
        if len as u64 > self.state.config.max_msg_bytes
            || (op.flags.contains(OpFlags::INJECT) && len > self.state.config.inject_bytes)
        {
            return Err(Error::TooLong);
        }
        let peer_id = self.state.peer_for(op.dest)?;
        let peer = &self.state.peers[peer_id];
        let queued = peer.queues().map_or(0, |queues| queues.ops());
        let crowded = queued >= WAITING_LIMIT || self.state.outgoing.len() >= self.state.config.tx_depth;
        if crowded || (peer.link().is_some() && len as u64 + EAGER_COST > peer.tx_credit()) {
            self.state.dropped += 1;
            let wanted = !op.flags.contains(OpFlags::QUIET);
            if planted!(Bug::DropUnreported, wanted, false) {
                self.state.complete_send(op, len);
            }
            return Ok(());
        }
        // A message that has left is complete, since its arrival is unknown in any case.
        self.enqueue_send(&SendOp { flags: op.flags - OpFlags::TRANSMIT, ..*op }, peer_id, len)?;
        self.run_peer(peer_id);
        Ok(())
    }
}

impl State {
    /// Drops the next queued operation, which would have to wait for its receiver.
    pub(crate) fn drop_datagram(op: &mut TxOp, dropped: &mut u64) -> Started {
        *dropped += planted!(Bug::DropUncounted, 1, 0);
        op.message_left(Phase::AwaitAck, op.pending(), false);
        Started::Sent
    }

    /// Whether this endpoint has datagrams only.
    #[inline]
    pub(crate) fn is_unreliable(&self) -> bool {
        self.config.role == Role::Datagrams
    }
}
