//! Withdrawals: a member tells another one that they exchange no more messages in a group.
//!
//! Place in the data flow: [`State::withdraw`] is called when a transfer fails with its link, when a link ends, and for
//! all members when a join fails. [`State::on_withdrawal`] takes the message of another member.
//!
//! Such a failure may be known to one side only: an attempt to connect has failed, only one end saw a link come up and
//! end, or the join has failed here and nowhere else. The other side would wait indefinitely. A withdrawal is an empty
//! message whose tag is that of the join, with the number [`WITHDRAWAL`]. It leaves at once if there is a link, and
//! otherwise with the next link: a member that waits for a message makes one. The receiver withdraws as well. If it has
//! not begun the join, it keeps the message until then.
//!
//! Messages that arrive after a withdrawal, or for a group that was left, are discarded and acknowledged. No sender
//! waits for them.

use std::collections::VecDeque;

use super::{Arrived, Group, JOIN, NUMBER_BITS, Purpose, SEQUENCE_BITS, State, ids};
use crate::api::{Addr, Context, Fault, OpFlags};
use crate::engine::ids::PeerId;
use crate::engine::ops::{Outgoing, TxOp};
use crate::engine::peer::Deferred;
use crate::engine::peers::Peers;
use crate::mem::{Iov, IovList};
use crate::nic::LinkError;

/// The number of a withdrawal among the messages of a join, whose schedule has far fewer.
const WITHDRAWAL: u64 = (1 << NUMBER_BITS) - 1;
/// The number by which a member tells its partners that it leaves the group's chain (`chains.rs`).
pub(super) const CHAIN_LEFT: u64 = WITHDRAWAL - 1;
/// The context of a withdrawal, which is no transfer of a run.
pub(super) const NO_RUN: Context = Context { ptr: usize::MAX, user: 0 };
/// Withdrawals that are kept for the next link. The oldest are dropped.
const MADE_LIMIT: usize = 4096;
/// Withdrawals of one peer that are kept for later joins. The oldest are dropped.
const EARLY_LIMIT: usize = 64;

/// Withdrawals of this endpoint and of others.
#[derive(Default)]
pub(super) struct Withdrawals {
    made: VecDeque<Withdrawal>,
    /// Those of peers, for joins that have not begun here, by the join's tag.
    early: VecDeque<(PeerId, u64)>,
}

/// A withdrawal of this endpoint.
struct Withdrawal {
    /// The tag of the group's join.
    tag: u64,
    /// The member.
    addr: Addr,
    /// Whether the message has been sent over the present link, or the member knows otherwise.
    told: bool,
}

impl Withdrawals {
    /// The peers whose withdrawals are kept.
    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.early.iter().map(|(peer, _)| *peer)
    }

    fn make(&mut self, tag: u64, addr: Addr, told: bool) {
        if self.made.len() == MADE_LIMIT {
            self.made.pop_front();
        }
        self.made.push_back(Withdrawal { tag, addr, told });
    }

    /// Messages that have left may not have arrived.
    fn link_ended(&mut self, addr: Addr) {
        self.made.iter_mut().filter(|one| one.addr == addr).for_each(|one| one.told = false);
    }

    fn keep_early(&mut self, peer_id: PeerId, tag: u64) {
        let of_peer = |(peer, _): &(PeerId, u64)| *peer == peer_id;
        if self.early.contains(&(peer_id, tag)) {
            return;
        }
        if self.early.iter().filter(|one| of_peer(one)).count() >= EARLY_LIMIT
            && let Some(oldest) = self.early.iter().position(of_peer)
        {
            self.early.remove(oldest);
        }
        self.early.push_back((peer_id, tag));
    }

    /// Takes the peers that have withdrawn from a group before its join has begun here.
    fn take_early(&mut self, tag: u64) -> Vec<PeerId> {
        let of_join = |one: &&(PeerId, u64)| one.1 == tag;
        let peers = self.early.iter().filter(of_join).map(|(peer, _)| *peer).collect();
        self.early.retain(|one| one.1 != tag);
        peers
    }
}

impl Group {
    /// The rank of the member at an address.
    pub(super) fn rank_of(&self, addr: Addr) -> Option<u32> {
        self.members.iter().position(|&member| member == addr).map(ids::number)
    }

    /// The reason for which no message is exchanged with a member, if there is one.
    pub(super) fn lost(&self, rank: u32) -> Option<LinkError> {
        self.lost.iter().find(|(other, _)| *other == rank).map(|(_, why)| *why)
    }
}

impl State {
    /// Exchanges no more messages with a member of a group. `told`: the member knows.
    pub(super) fn withdraw(&mut self, index: usize, rank: u32, why: LinkError, told: bool) {
        let Some(groups) = self.collectives.as_deref_mut() else { return };
        let Some(group) = groups.groups.get_mut(index) else { return };
        if rank == group.rank || group.lost(rank).is_some() {
            return;
        }
        group.lost.push((rank, why));
        let (tag, addr) = (group.tag, group.members[rank as usize]);
        self.leave_chain(index);
        let Some(groups) = self.collectives.as_deref_mut() else { return };
        let Some(group) = groups.groups.get_mut(index) else { return };
        if let Some(host) = group.host.as_deref_mut() {
            host.lose(rank, why);
            self.links.poll_boards(true);
        }
        groups.withdrawals.make(tag, addr, told);
        // A member that has called here may have an address that was never used.
        let caller = || self.peers.find(&self.peers.book().name(addr)?);
        let Some(peer_id) = self.peers.known(addr).or_else(caller) else { return };
        let of_group = |ctx: Context| groups.runs.get(ctx.ptr).is_some_and(|run| run.group == index);
        let theirs = groups.posted.iter().filter(|((peer, _), posted)| *peer == peer_id && of_group(posted.ctx));
        let mut theirs: Vec<(PeerId, u64)> = theirs.map(|(key, _)| *key).collect();
        theirs.sort_unstable(); // Nothing happens in hash order.
        self.fail_receives(theirs, why);
        self.tell_withdrawals(peer_id);
    }

    /// Fails receives that wait for their messages.
    pub(super) fn fail_receives(&mut self, keys: Vec<(PeerId, u64)>, why: LinkError) {
        for key in keys {
            let Some(groups) = self.collectives.as_deref_mut() else { return };
            if let Some(posted) = groups.posted.remove(&key) {
                self.end_transfer(posted.ctx, Some(Fault::Link(why)));
            }
        }
    }

    /// Withdraws from the partner of a transfer that has failed with its link.
    pub(super) fn withdraw_from_partner(&mut self, ctx: Context, why: LinkError) {
        let Some(groups) = self.collectives.as_deref() else { return };
        let Some(active) = groups.runs.get(ctx.ptr) else { return };
        let partner = u32::try_from(ctx.user).ok().and_then(|task| active.run.partner(task));
        let rank = match (partner, &active.purpose, groups.groups.get(active.group)) {
            (Some(host), Purpose::Exchange { .. }, Some(group)) => group.leader_of(host),
            (Some(rank), ..) => rank,
            (None, ..) => return,
        };
        self.withdraw(active.group, rank, why, false);
    }

    /// A link to the peer has ended, or (not `linked`) an attempt to make one. Withdraws from the groups that rely on
    /// the link.
    pub(super) fn withdraw_after_loss(&mut self, peer_id: PeerId, why: LinkError, linked: bool) {
        let addr = self.peers[peer_id].addr();
        let Some(groups) = self.collectives.as_deref_mut() else { return };
        groups.withdrawals.link_ended(addr);
        let relies = |group: &Group| {
            let shares = || group.host.as_deref().is_some_and(|host| host.peers().any(|peer| peer == peer_id));
            group.rank_of(addr).filter(|&rank| linked || shares() || group.opens_chain_with(rank))
        };
        let affected = groups.groups.iter().filter_map(|(index, group)| Some((index, relies(group)?)));
        for (index, rank) in affected.collect::<Vec<_>>() {
            self.withdraw(index, rank, why, false);
        }
    }

    /// A join has failed here. The others may have succeeded, so they are told.
    pub(super) fn withdraw_from_all(&mut self, index: usize) {
        let Some(group) = self.collectives.as_deref().and_then(|groups| groups.groups.get(index)) else { return };
        let (members, number, tag) = (ids::number(group.members.len()), group.number, group.tag);
        for rank in 0..members {
            self.withdraw(index, rank, LinkError::Closed, false);
        }
        self.discard_arrived(|arrived| arrived & !WITHDRAWAL == tag || is_of(arrived, number));
    }

    /// Sends the withdrawals of which the peer does not know, if there is a link.
    pub(crate) fn tell_withdrawals(&mut self, peer_id: PeerId) {
        let Self { collectives: Some(groups), peers, outgoing, .. } = self else { return };
        if groups.withdrawals.made.is_empty() || !peers[peer_id].is_in_use() {
            return;
        }
        let addr = peers[peer_id].addr();
        for one in groups.withdrawals.made.iter_mut().filter(|one| one.addr == addr && !one.told) {
            one.told = true;
            let mut flags = OpFlags::TAGGED;
            flags.set(OpFlags::DATA, true);
            signal(peers, outgoing, peer_id, flags, one.tag | WITHDRAWAL);
        }
    }

    /// A peer has withdrawn from a group, or has left its chain.
    pub(super) fn on_signal(&mut self, peer_id: PeerId, tag: u64) {
        match tag & WITHDRAWAL {
            WITHDRAWAL => self.on_withdrawal(peer_id, tag & !WITHDRAWAL),
            _ => self.on_chain_left(peer_id, tag & !WITHDRAWAL),
        }
    }

    /// A peer has withdrawn from the group whose join has this tag.
    fn on_withdrawal(&mut self, peer_id: PeerId, tag: u64) {
        let addr = self.peers[peer_id].addr();
        let groups = self.collectives();
        let group = groups.groups.iter().find(|(_, group)| group.tag == tag);
        match group.map(|(index, group)| (index, group.rank_of(addr))) {
            Some((index, Some(rank))) => self.withdraw(index, rank, LinkError::Closed, true),
            Some((_, None)) => {}
            None => groups.withdrawals.keep_early(peer_id, tag),
        }
    }

    /// The join of a group begins. Members may have withdrawn from it already.
    pub(super) fn take_early_withdrawals(&mut self, index: usize, tag: u64) {
        for peer_id in self.collectives().withdrawals.take_early(tag) {
            let addr = self.peers[peer_id].addr();
            let rank = self.collectives().groups.get(index).and_then(|group| group.rank_of(addr));
            if let Some(rank) = rank {
                self.withdraw(index, rank, LinkError::Closed, true);
            }
        }
    }

    /// Whether a message has no receive and will have none: its sender is a member from which this endpoint has
    /// withdrawn, or the group was left.
    pub(super) fn is_unwanted(&self, peer_id: PeerId, tag: u64) -> bool {
        let Some(groups) = self.collectives.as_deref() else { return false };
        let addr = self.peers[peer_id].addr();
        if tag & JOIN != 0 {
            return groups.withdrawals.made.iter().any(|one| one.tag == tag & !WITHDRAWAL && one.addr == addr);
        }
        let group = groups.groups.iter().find(|(_, group)| is_of(tag, group.number));
        group.is_none_or(|(_, group)| {
            group.rank_of(addr).is_some_and(|rank| group.lost(rank).is_some() || group.has_taken(rank, tag))
        })
    }

    /// A group was left: there are no receives for its messages any more.
    pub(super) fn discard_group(&mut self, number: u32) {
        self.discard_arrived(|tag| is_of(tag, number));
    }

    /// Discards messages that wait for their receives and have such tags.
    fn discard_arrived(&mut self, unwanted: impl Fn(u64) -> bool) {
        let Some(groups) = self.collectives.as_deref() else { return };
        let mut keys: Vec<_> = groups.arrived.keys().filter(|(_, tag)| unwanted(*tag)).copied().collect();
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

/// Whether a message with this tag belongs to no transfer, but concerns a whole group.
pub(super) fn is_signal(tag: u64) -> bool {
    tag & JOIN != 0 && tag & WITHDRAWAL >= CHAIN_LEFT
}

/// Sends an empty message that belongs to no run.
pub(super) fn signal(peers: &mut Peers, outgoing: &mut Outgoing, peer_id: PeerId, flags: OpFlags, tag: u64) {
    let send = || TxOp::collective(peer_id, NO_RUN, flags, IovList::from_slice(&[Iov::EMPTY]), tag);
    let index = outgoing.push(&mut peers[peer_id], send);
    peers.defer(peer_id, Deferred::Collective(index));
}

/// Whether a message's tag has this number of a group.
pub(super) fn is_of(tag: u64, number: u32) -> bool {
    tag & JOIN == 0 && tag >> (SEQUENCE_BITS + NUMBER_BITS) == u64::from(number)
}
