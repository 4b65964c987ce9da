//! The messages of transfers: they are sent, checked when they arrive, and find their receives.
//!
//! Place in the data flow: [`Engine::advance`] starts transfers here. Messages with the flag COLLECTIVE arrive and find
//! their receives like others (`recv.rs`, [`Space::Group`]). [`State::end_transfer`] records the end of each transfer.
//!
//! Checks. A message finds a receive by its sender and its tag, so that it has an effect only where the sender's
//! message is awaited. Other messages for a group are kept if a member sent them and a receive may follow. A peer that
//! is no member, or sends a message that the join does not have, has broken the protocol ([`State::receive_later`]).

use super::tag::Signal;
use super::{Ended, NO_PEER, Purpose, StepId, StepTransfer, Tag};
use crate::api::{Context, Fault, OpFlags};
use crate::broken::cannot_happen;
use crate::engine::collective_op::GroupId;
use crate::engine::ops::TxOp;
use crate::engine::peer::{Deferred, PeerState};
use crate::engine::receives::{Incoming, RecvInfo};
use crate::engine::state::Violation;
use crate::engine::{Engine, State};
use crate::ids::{self, PeerId};
use crate::matching::{Body, Space, Wanted};
use crate::mem::{Iov, IovList};
use crate::nic::Nic;

/// The place of a peer in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Member(u32),
    Outsider,
    /// The name of some member is not known any more. It may be that of the peer.
    Unclear,
}

/// The treatment of a message without a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reception {
    Kept,
    /// No receive will take it.
    Discarded,
}

impl<N: Nic> Engine<N> {
    pub(super) fn send_collective(&mut self, transfer: &StepTransfer) {
        let StepTransfer { peer, tag, memory, step, poisoned, cut_off, .. } = *transfer;
        if cut_off.is_some() {
            return self.state.end_step(step, cut_off);
        }
        let Ok(peer_id) = self.state.peer_for(peer) else { return self.state.end_step(step, Some(NO_PEER)) };
        let mut flags = OpFlags::TAGGED;
        flags.set(OpFlags::DATA, poisoned);
        let State { peers, outgoing, .. } = &mut self.state;
        let (ctx, tag) = (step.to_context(), tag.to_wire());
        let send = || TxOp::collective(peer_id, ctx, flags, IovList::from_slice(&[memory]), tag);
        let index = outgoing.push(&mut peers[peer_id], send);
        self.state.peers.defer(peer_id, Deferred::Collective(index));
        self.run_peer(peer_id);
    }

    pub(super) fn receive_collective(&mut self, transfer: &StepTransfer) {
        let StepTransfer { peer, tag, memory, step, cut_off, taken, .. } = *transfer;
        if taken {
            return self.state.end_step(step, None);
        }
        let Ok(peer_id) = self.state.peer_for(peer) else { return self.state.end_step(step, Some(NO_PEER)) };
        let ctx = step.to_context();
        if let Some(key) = self.state.find_arrived(peer_id, tag) {
            return self.state.take_arrived(key, ctx, memory);
        }
        if cut_off.is_some() {
            return self.state.end_step(step, cut_off);
        }
        let wanted = Wanted::of_group(peer_id, tag.to_wire());
        self.state.incoming.matcher_mut(Space::Group).post_pieces(wanted, &[memory], ctx, None);
        self.dial_for_receives(peer_id);
    }

    /// Makes a link to a peer from which collectives wait for messages. Without a link, the death of the peer would not
    /// be noticed. An attempt may also have been given up in favour of the peer's, which has come to nothing.
    #[inline]
    pub(crate) fn dial_for_receives(&mut self, peer_id: PeerId) -> bool {
        let posted = self.state.incoming.matcher(Space::Group).posted();
        let dials = self.state.peers[peer_id].state() == PeerState::Idle
            && posted.iter().any(|(_, posted)| posted.src == peer_id.as_source());
        if dials {
            self.dial(peer_id);
        }
        dials
    }
}

impl State {
    /// The treatment of a message for which there is no receive. An error: its sender may not send it.
    #[cold]
    pub(crate) fn reception(&mut self, peer_id: PeerId, tag: u64) -> Result<Reception, Violation> {
        let tag = Tag::from_wire(tag);
        if Signal::of(tag).is_some() || self.receive_later(peer_id, tag)? == Reception::Discarded {
            return Ok(Reception::Discarded);
        }
        if self.find_arrived(peer_id, tag).is_some() {
            // The first message with this tag waits.
            return Err(Violation);
        }
        self.note_early(peer_id, tag);
        Ok(Reception::Kept)
    }

    /// A message was discarded. It may be a signal, or its sender may not know of a failure.
    #[cold]
    pub(crate) fn discarded(&mut self, peer_id: PeerId, tag: u64) -> Result<(), Violation> {
        match Signal::of(Tag::from_wire(tag)) {
            Some((signal, join)) => self.on_signal(peer_id, signal, join),
            None => {
                self.tell_failures(peer_id);
                Ok(())
            }
        }
    }

    /// The key of a message that waits for its receive.
    pub(super) fn find_arrived(&mut self, peer_id: PeerId, tag: Tag) -> Option<u32> {
        self.find_unexpected(Space::Group, Wanted::of_group(peer_id, tag.to_wire()))
    }

    /// Whether the payload of a message has arrived, or is at its sender.
    pub(super) fn has_arrived(&mut self, peer_id: PeerId, tag: Tag) -> bool {
        let Some(key) = self.find_arrived(peer_id, tag) else { return false };
        let message = self.incoming.matcher(Space::Group).unexpected().get(key);
        message.is_some_and(|message| !matches!(message.body(), Body::Lost { .. }))
    }

    /// Records the end of a run's send or receive, which `ctx` names.
    #[cold]
    pub(crate) fn end_transfer(&mut self, ctx: Context, fault: Option<Fault>) {
        if let Some(step) = StepId::from_context(ctx) {
            self.end_step(step, fault);
        }
    }

    /// Records the end of a step.
    #[cold]
    pub(super) fn end_step(&mut self, step: StepId, fault: Option<Fault>) {
        if let Some(why) = fault.filter(|why| matches!(why, Fault::Link(_)) || *why == NO_PEER) {
            self.fail_group_of(step, why);
        }
        let collectives = self.collectives();
        collectives.ended.push(Ended { step, fault });
        if collectives.ended.len() == 1 {
            // The next round of progress works off the links' queue, and collectives with it.
            self.links.request_round();
        }
    }

    /// The place of a peer in a group.
    pub(super) fn standing(&self, id: GroupId, peer_id: PeerId) -> Standing {
        let group = self.group(id);
        let peer = &self.peers[peer_id];
        if let Some(rank) = group.rank_of(peer.addr()) {
            return Standing::Member(rank);
        }
        // An address vector may have the peer's name at several addresses.
        let names = || group.members.iter().map(|&member| self.peers.book().name(member));
        match names().position(|name| name.is_some_and(|name| name.same_endpoint(&peer.name()))) {
            Some(rank) => Standing::Member(ids::number(rank)),
            None if names().any(|name| name.is_none()) => Standing::Unclear,
            None => Standing::Outsider,
        }
    }

    /// The treatment of a message that has no receive. An error: its sender may not send it.
    pub(super) fn receive_later(&self, peer_id: PeerId, tag: Tag) -> Result<Reception, Violation> {
        let (is_join, join) = (tag.is_join(), tag.with_number(0));
        let Some(collectives) = self.collectives.as_deref() else {
            // No join has begun here.
            return Ok(if is_join { Reception::Kept } else { Reception::Discarded });
        };
        let id = if is_join { collectives.joined_by(join) } else { collectives.numbered(tag.group()) };
        let Some(id) = id else {
            // The join has not begun here, or the group was left.
            let failed = || {
                collectives.notices.is_made(join, self.peers[peer_id].addr())
                    || collectives.early.has_notice(peer_id, join)
            };
            return Ok(if is_join && !failed() { Reception::Kept } else { Reception::Discarded });
        };
        let group = &collectives.groups[id];
        let rank = match self.standing(id, peer_id) {
            Standing::Member(rank) => rank,
            Standing::Outsider => return Err(Violation),
            Standing::Unclear => return Ok(Reception::Discarded),
        };
        if group.cut_off(rank).is_some() || group.has_taken(rank, tag) {
            return Ok(Reception::Discarded);
        }
        let mut runs = collectives.runs.iter().map(|(_, run)| run).filter(|run| run.group == id);
        if is_join {
            // All steps of the join are known.
            let run = runs.find(|run| matches!(run.purpose, Purpose::Join { .. })).ok_or(Violation)?;
            return if run.expects(group, rank, tag) { Ok(Reception::Kept) } else { Err(Violation) };
        }
        let is_under_way = runs.any(|run| run.expects(group, rank, tag))
            || collectives.on_boards.iter().any(|run| run.exchanges(id, tag));
        Ok(if is_under_way || !group.is_past(tag) { Reception::Kept } else { Reception::Discarded })
    }

    /// Gives a message that waits to its receive.
    fn take_arrived(&mut self, key: u32, ctx: Context, memory: Iov) {
        let Some(message) = self.incoming.matcher_mut(Space::Group).unexpected_mut().remove(key) else {
            return cannot_happen!("a message that was found waits");
        };
        let (iov, info) = RecvInfo::of_group(ctx, memory, message.data().is_some(), message.len());
        self.deliver_unexpected(message, iov, info);
    }

    /// Discards messages that wait for their receives: those with such senders and tags.
    pub(super) fn discard_arrived(&mut self, unwanted: impl Fn(PeerId, Tag) -> bool) {
        let keys = arrived(&self.incoming, unwanted);
        self.discard_all(keys);
    }

    pub(super) fn discard_all(&mut self, keys: Vec<u32>) {
        for key in keys {
            self.discard(Space::Group, key);
        }
    }
}

/// The keys of messages that wait for their receives, in the order of peers and tags.
pub(super) fn arrived(incoming: &Incoming, wanted: impl Fn(PeerId, Tag) -> bool) -> Vec<u32> {
    let waiting = incoming.matcher(Space::Group).unexpected().iter();
    let waiting = waiting.map(|(key, message)| (message.peer(), Tag::from_wire(message.tag()), key));
    let mut waiting: Vec<_> = waiting.filter(|(peer, tag, _)| wanted(*peer, *tag)).collect();
    waiting.sort_unstable();
    waiting.into_iter().map(|(_, _, key)| key).collect()
}
