//! Short answers that leave right after the poll in which their requests arrived.
//!
//! Place in the data flow: `rma.rs` and `atomic.rs` put the bytes of a short read, or the result of a short atomic,
//! here while the device polls, and `am.rs` the replies to active messages. [`Engine::progress`] sends them next. An
//! answer that would wait behind others, or that the device does not accept, takes its peer's queue.
//!
//! Invariant: the answers to one peer leave in the order of the requests. An answer comes here only if the peer's
//! queues have nothing to send. Active messages have no order with other answers, so their replies wait for deferred
//! work alone.

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::bugs::planted;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::peer::Deferred;
use crate::ids::PeerId;
use crate::nic::Nic;
use crate::wire::{self, Head, Op};

/// Limit of the payload of a prompt answer, in bytes: with its head it fits one line of a ring in shared memory.
pub(crate) const PROMPT_BYTES: usize = 40;

/// Limit of the answers of one poll. Further ones are queued.
const PROMPTS: usize = 32;

/// The answers of a poll.
#[derive(Default)]
pub(crate) struct ImmediateReplies {
    /// The messages, one after the other.
    bytes: Vec<u8>,
    /// The peer of each message, and the position of its first byte. `None`: the peer has failed meanwhile.
    list: Vec<(Option<PeerId>, usize)>,
    /// Peers whose requests were executed and are confirmed by position.
    executed: Vec<PeerId>,
}

impl ImmediateReplies {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.executed.is_empty()
    }

    /// Notes that a request of a peer was executed, or refused, that the peer wants confirmed.
    #[inline]
    pub(crate) fn confirm(&mut self, peer_id: PeerId) {
        if self.executed.last() != Some(&peer_id) {
            self.executed.push(peer_id);
        }
    }

    /// Begins an answer to a peer's operation. The caller appends its payload, of at most [`PROMPT_BYTES`].
    #[inline]
    pub(crate) fn begin(&mut self, peer_id: PeerId, kind: u8, op: Op) -> &mut Vec<u8> {
        self.list.push((Some(peer_id), self.bytes.len()));
        self.bytes.extend_from_slice(Head::new(kind, 0).as_bytes());
        self.bytes.extend_from_slice(op.as_bytes());
        &mut self.bytes
    }

    /// The memory of the messages, for a message to be appended.
    #[inline]
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Enters the message to a peer that was appended at `start`.
    #[inline]
    pub(crate) fn enter(&mut self, peer_id: PeerId, start: usize) {
        self.list.push((Some(peer_id), start));
    }

    /// Drops the answers to a peer that has failed.
    pub(crate) fn forget(&mut self, peer_id: PeerId) {
        for (peer, _) in &mut self.list {
            *peer = peer.filter(|peer| planted!(Bug::ActiveDeathTakesReplies, *peer != peer_id, false));
        }
        self.executed.retain(|peer| *peer != peer_id);
    }

    /// A message by its place in the list, without its number.
    #[inline(always)]
    fn message(&mut self, at: usize) -> Option<(PeerId, &mut [u8])> {
        let (peer, start) = *self.list.get(at)?;
        let end = self.list.get(at + 1).map_or(self.bytes.len(), |next| next.1);
        Some((peer?, self.bytes.get_mut(start..end)?))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.list.clear();
        self.executed.clear();
    }
}

impl State {
    /// Whether an answer of `len` bytes to a peer leaves before the peer's queued work.
    #[inline]
    pub(crate) fn may_prompt(&self, peer_id: PeerId, len: usize) -> bool {
        len <= PROMPT_BYTES
            && self.prompts.list.len() < PROMPTS
            && self.peers[peer_id].queues().is_none_or(|queues| !queues.to_send())
    }
}

impl<N: Nic> Engine<N> {
    /// Sends the answers of the poll that has ended. Returns their number.
    #[inline(never)]
    pub(crate) fn send_prompts(&mut self) -> usize {
        let State { prompts, peers, .. } = &mut self.state;
        let count = prompts.list.len();
        let mut sent = 0;
        while sent < count {
            if let Some((peer_id, message)) = prompts.message(sent) {
                let peer = &mut peers[peer_id];
                if let Some(link) = peer.link() {
                    wire::number(message, peer.tx_seq());
                    if self.nic.send(link, message, &[]).is_err() {
                        break;
                    }
                    peer.message_sent();
                }
            }
            sent += 1;
        }
        // They stay before whatever the same poll has queued behind them.
        for at in (sent..count).rev() {
            if let Some((peer_id, message)) = prompts.message(at) {
                if planted!(Bug::ActiveReplyDropped, false, message.first() == Some(&wire::kind::ACTIVE)) {
                    continue;
                }
                let message = Deferred::Message(SmallVec::from_slice(message));
                peers.queues(peer_id).retry_deferred(message);
                peers.activate(peer_id);
            }
        }
        let mut confirmed = 0;
        while let Some(&peer_id) = self.state.prompts.executed.get(confirmed) {
            self.confirm_executed(peer_id);
            confirmed += 1;
        }
        self.state.prompts.clear();
        count + confirmed
    }

    /// Confirms all messages that were taken from a peer. Refusals of requests leave before. Returns whether the
    /// confirmation has left, too.
    #[inline]
    pub(crate) fn confirm_executed(&mut self, peer_id: PeerId) -> bool {
        let peer = &mut self.state.peers[peer_id];
        let (Some(link), number) = (peer.link(), peer.rx_seq()) else { return false };
        let refusals = peer.queues().is_some_and(|queues| queues.has_deferred());
        let waits = planted!(Bug::RefusalOvertaken, refusals, false);
        if waits {
            self.state.peers.activate(peer_id);
        } else {
            self.nic.confirm(link, number);
        }
        if let Some(queues) = self.state.peers[peer_id].queues_mut() {
            queues.set_confirmation_due(waits);
        }
        !waits
    }
}
