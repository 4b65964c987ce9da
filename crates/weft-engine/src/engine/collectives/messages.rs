//! The messages of transfers: they are sent, checked when they arrive, and find their receives.
//!
//! Place in the data flow: [`Engine::advance`] starts transfers here. The engine's dispatch passes messages with the
//! flag COLLECTIVE. [`State::end_transfer`] records the end of each transfer.
//!
//! Checks. A message finds a receive by its sender and its tag, so that it has an effect only where the sender's
//! message is awaited. Other messages for a group are kept if a member sent them and a receive may follow. A peer that
//! is no member, or sends a message that the join does not have, has broken the protocol ([`State::receive_later`]).

use zerocopy::little_endian::U64;

use super::tag::Signal;
use super::{Collectives, Ended, NO_PEER, Purpose, StepId, Tag, Transfer};
use crate::api::{Context, Error, Fault, OpFlags};
use crate::bugs::planted;
use crate::engine::collective_op::GroupId;
use crate::engine::ops::TxOp;
use crate::engine::peer::{Deferred, PeerState};
use crate::engine::receives::RecvInfo;
use crate::engine::state::Violation;
use crate::engine::{Engine, State};
use crate::ids::{self, PeerId};
use crate::mem::{Iov, IovList};
use crate::nic::{LinkError, Nic, RemoteIov};
use crate::wire::{F_ACK, F_DATA, Reader, Rts};

/// A receive that waits for its message, which must be exactly as long.
pub(super) struct Posted {
    memory: Iov,
    pub(super) step: StepId,
}

/// A message that waits for its receive.
pub(super) enum Arrived {
    /// The payload is here. `orphan`: its link has ended.
    Eager { bytes: Box<[u8]>, poisoned: bool, orphan: bool },
    /// The payload is at the sender, whose operation `op` waits.
    Announced { op: u32, len: u64, source: Vec<RemoteIov>, ack: bool, poisoned: bool },
    /// The payload is lost.
    Lost(LinkError),
}

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
pub(super) enum Reception {
    Kept,
    /// No receive will take it.
    Discarded,
}

impl<N: Nic> Engine<N> {
    pub(super) fn send_collective(&mut self, transfer: &Transfer) {
        let Transfer { peer, tag, memory, step, poisoned, cut_off, .. } = *transfer;
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

    pub(super) fn receive_collective(&mut self, transfer: &Transfer) {
        let Transfer { peer, tag, memory, step, cut_off, taken, .. } = *transfer;
        if taken {
            return self.state.end_step(step, None);
        }
        let Ok(peer_id) = self.state.peer_for(peer) else { return self.state.end_step(step, Some(NO_PEER)) };
        if let Some(arrived) = self.state.collectives().arrived.remove(&(peer_id, tag)) {
            return self.state.deliver_arrived(peer_id, &memory, step, arrived);
        }
        if cut_off.is_some() {
            return self.state.end_step(step, cut_off);
        }
        self.state.collectives().posted.insert((peer_id, tag), Posted { memory, step });
        self.dial_for_receives(peer_id);
    }

    /// Makes a link to a peer from which collectives wait for messages. Without a link, the death of the peer would not
    /// be noticed. An attempt may also have been given up in favour of the peer's, which has come to nothing.
    #[inline]
    pub(crate) fn dial_for_receives(&mut self, peer_id: PeerId) -> bool {
        let waits = |groups: &Collectives| groups.posted.keys().any(|(peer, _)| *peer == peer_id);
        let dials = self.state.peers[peer_id].state() == PeerState::Idle
            && self.state.collectives.as_deref().is_some_and(waits);
        if dials {
            self.dial(peer_id);
        }
        dials
    }
}

impl State {
    /// An eager message of a collective.
    #[cold]
    pub(crate) fn on_collective_eager(
        &mut self,
        peer_id: PeerId,
        flags: u8,
        mut r: Reader<'_>,
    ) -> Result<(), Violation> {
        let tag = Tag::from_wire(r.take::<U64>().ok_or(Violation)?.get());
        let poisoned = flags & F_DATA != 0;
        if poisoned {
            r.take::<U64>().ok_or(Violation)?;
        }
        if flags & F_ACK != 0 {
            return Err(Violation);
        }
        let payload = r.rest();
        self.admit_eager(peer_id, payload.len())?;
        if let Some((signal, join)) = Signal::of(tag) {
            self.return_window(peer_id, payload.len());
            return self.on_signal(peer_id, signal, join);
        }
        let groups = self.collectives();
        if let Some(Posted { memory, step }) = groups.posted.remove(&(peer_id, tag)) {
            let fault = fault_of(payload.len() as u64, &memory, poisoned);
            if fault.is_none() {
                memory.write(payload);
            }
            self.return_window(peer_id, payload.len());
            self.end_step(step, fault);
            return Ok(());
        }
        if self.receive_later(peer_id, tag)? == Reception::Discarded {
            self.return_window(peer_id, payload.len());
            self.tell_failures(peer_id);
            return Ok(());
        }
        let arrived = Arrived::Eager { bytes: payload.into(), poisoned, orphan: false };
        self.keep_arrived(peer_id, tag, arrived)
    }

    /// A message of a collective whose payload is at the sender.
    #[cold]
    pub(crate) fn on_collective_rts(
        &mut self,
        peer_id: PeerId,
        flags: u8,
        rts: &Rts,
        mut source: Vec<RemoteIov>,
    ) -> Result<(), Violation> {
        let (tag, op, len) = (Tag::from_wire(rts.tag.get()), rts.op.get(), rts.len.get());
        let (ack, poisoned) = (flags & F_ACK != 0, flags & F_DATA != 0);
        self.admit_announcement(peer_id, &mut source)?;
        let arrived = Arrived::Announced { op, len, source, ack, poisoned };
        if let Some((signal, join)) = Signal::of(tag) {
            self.discard_one(peer_id, arrived);
            return self.on_signal(peer_id, signal, join);
        }
        let groups = self.collectives();
        if let Some(Posted { memory, step }) = groups.posted.remove(&(peer_id, tag)) {
            self.deliver_arrived(peer_id, &memory, step, arrived);
        } else if self.receive_later(peer_id, tag)? == Reception::Discarded {
            self.discard_one(peer_id, arrived);
            self.tell_failures(peer_id);
        } else {
            self.keep_arrived(peer_id, tag, arrived)?;
        }
        Ok(())
    }

    /// A message and its receive have found each other.
    pub(super) fn deliver_arrived(&mut self, peer_id: PeerId, memory: &Iov, step: StepId, arrived: Arrived) {
        match arrived {
            Arrived::Eager { bytes, poisoned, orphan } => {
                let fault = fault_of(bytes.len() as u64, memory, poisoned);
                if fault.is_none() {
                    memory.write(&bytes);
                }
                if planted!(Bug::CollectiveCreditLost, true, false) {
                    self.eager_taken(peer_id, bytes.len(), orphan);
                }
                self.end_step(step, fault);
            }
            Arrived::Announced { op, len, source, ack, poisoned } => {
                self.announcement_taken(peer_id);
                let fault = fault_of(len, memory, poisoned);
                if fault.is_some() {
                    self.queue_ack(peer_id, op);
                    return self.end_step(step, fault);
                }
                let mut info = RecvInfo::collective(step.to_context());
                info.fit(&[*memory], memory.len() as u64);
                self.start_rendezvous(peer_id, IovList::from_slice(&[*memory]), info, op, source, ack);
            }
            Arrived::Lost(why) => self.end_step(step, Some(Fault::Link(why))),
        }
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
        let groups = self.collectives();
        groups.ended.push(Ended { step, fault });
        if groups.ended.len() == 1 {
            // The next round of progress works off the links' queue, and collectives with it.
            self.links.queue_query();
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
        let Some(groups) = self.collectives.as_deref() else { return Ok(Reception::Discarded) };
        let (is_join, join) = (tag.is_join(), tag.with_number(0));
        let id = if is_join { groups.joined_by(join) } else { groups.numbered(tag.group()) };
        let Some(id) = id else {
            // The join has not begun here, or the group was left.
            let failed =
                || groups.notices.is_made(join, self.peers[peer_id].addr()) || groups.early.has_notice(peer_id, join);
            return Ok(if is_join && !failed() { Reception::Kept } else { Reception::Discarded });
        };
        let group = &groups.groups[id];
        let rank = match self.standing(id, peer_id) {
            Standing::Member(rank) => rank,
            Standing::Outsider => return Err(Violation),
            Standing::Unclear => return Ok(Reception::Discarded),
        };
        if group.cut_off(rank).is_some() || group.has_taken(rank, tag) {
            return Ok(Reception::Discarded);
        }
        let mut runs = groups.runs.iter().map(|(_, run)| run).filter(|run| run.group == id);
        if is_join {
            // All steps of the join are known.
            let run = runs.find(|run| matches!(run.purpose, Purpose::Join { .. })).ok_or(Violation)?;
            return if run.expects(group, rank, tag) { Ok(Reception::Kept) } else { Err(Violation) };
        }
        let is_under_way =
            runs.any(|run| run.expects(group, rank, tag)) || groups.on_boards.iter().any(|run| run.exchanges(id, tag));
        Ok(if is_under_way || !group.is_past(tag) { Reception::Kept } else { Reception::Discarded })
    }

    /// Discards messages that wait for their receives: those with such senders and tags.
    pub(super) fn discard_arrived(&mut self, unwanted: impl Fn(PeerId, Tag) -> bool) {
        let Some(groups) = self.collectives.as_deref() else { return };
        let mut keys: Vec<_> = groups.arrived.keys().filter(|(peer, tag)| unwanted(*peer, *tag)).copied().collect();
        keys.sort_unstable(); // Nothing happens in hash order.
        for key in keys {
            if let Some(arrived) = self.collectives().arrived.remove(&key) {
                self.discard_one(key.0, arrived);
            }
        }
    }

    /// Discards a message for which there is no receive.
    pub(super) fn discard_one(&mut self, peer_id: PeerId, arrived: Arrived) {
        match arrived {
            Arrived::Eager { bytes, orphan, .. } => self.eager_taken(peer_id, bytes.len(), orphan),
            Arrived::Announced { op, .. } => {
                self.announcement_taken(peer_id);
                self.queue_ack(peer_id, op);
            }
            Arrived::Lost(_) => {}
        }
    }
}

/// The reason for which a message of a collective cannot be received, if there is one.
fn fault_of(len: u64, memory: &Iov, poisoned: bool) -> Option<Fault> {
    if poisoned {
        Some(Fault::Revoked)
    } else if len > memory.len() as u64 {
        Some(Fault::Truncated(usize::try_from(len - memory.len() as u64).unwrap_or(usize::MAX)))
    } else {
        (len < memory.len() as u64).then_some(Fault::Refused(Error::Invalid))
    }
}
