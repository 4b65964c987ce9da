//! Datagrams (FI_EP_DGRAM): messages that arrive once or not at all, and for which nobody waits.
//!
//! Place in the data flow: an engine with [`Role::Datagrams`] sends eagerly or not at all.
//! [`Engine::send_now`] serves it as any other; what that cannot take comes here. A message waits for a link
//! to be made and for the device's room, as long as few do; it is dropped where more wait, where the
//! receiver's window is used up (the window is what a socket's buffer is to UDP), and with its link. Dropped
//! or not, its send is complete. A receiver does nothing differently.
//!
//! Invariant: a peer that is out of reach, or does not receive, never keeps this endpoint from sending to others.

use crate::api::{Error, OpFlags, SendOp};
use crate::bugs::planted;
use crate::engine::connection::Role;
use crate::engine::ops::{Phase, TxOp};
use crate::engine::send::EAGER_COST;
use crate::engine::state::State;
use crate::engine::{Engine, Started};
use crate::mem;
use crate::nic::Nic;

/// Messages to one peer that may wait for its link or for room.
const WAITING_LIMIT: usize = 256;
/// What no datagram can be asked for: that anybody answers, or goes first.
const UNANSWERABLE: OpFlags = OpFlags::DELIVERY.union(OpFlags::FENCE);

impl<N: Nic> Engine<N> {
    /// How many datagrams were dropped here.
    pub fn dropped(&self) -> u64 {
        self.state.dropped
    }

    /// [`Engine::send_later`] for datagrams. Errors: `Invalid` for what cannot be promised, `TooLong`, `NoSuchAddress`.
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
        let queued = peer.queues.as_ref().map_or(0, |queues| queues.tx.len());
        let crowded = queued >= WAITING_LIMIT || self.state.ops.len() >= self.state.config.tx_depth;
        if crowded || (peer.link().is_some() && len as u64 + EAGER_COST > peer.tx_credit) {
            self.state.dropped += 1;
            let wanted = !op.flags.contains(OpFlags::QUIET);
            if planted!(Bug::DropUnreported, wanted, false) {
                self.state.complete_send(op, len);
            }
            return Ok(());
        }
        // What has left is complete: whether it arrives is not known in any case.
        self.enqueue_send(&SendOp { flags: op.flags - OpFlags::TRANSMIT, ..*op }, peer_id, len)?;
        self.run_peer(peer_id);
        Ok(())
    }
}

impl State {
    /// The operation whose turn it is would have to wait for its receiver: it is dropped.
    pub(crate) fn drop_datagram(op: &mut TxOp, dropped: &mut u64) -> Started {
        *dropped += planted!(Bug::DropUncounted, 1, 0);
        op.phase = Phase::AwaitAck;
        Started::Sent
    }

    /// Whether this endpoint has datagrams only.
    #[inline]
    pub(crate) fn is_unreliable(&self) -> bool {
        self.config.role == Role::Datagrams
    }
}
