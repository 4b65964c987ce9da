//! The failure of groups: a group that lacks a member for an operation has failed at all members.
//!
//! Place in the data flow: [`State::fail_group`] is called when an operation or a join fails for want of a member, or
//! on the boards. [`State::lose_member`] is called when the link to a member ends. [`State::on_signal`] takes the
//! notices of other members.
//!
//! One member notices a failure, and the others may wait for that member, in the same operation or in a later one.
//! Each member that learns of the failure therefore tells all others, once. All its operations in the group end with
//! an error, those under way and those that are started later. A notice is an empty message whose tag is that of the
//! join, as [`Signal::Failed`]. It leaves at once if there is a link, and otherwise with the next link: a member
//! that waits for a message makes one. A receiver that has not begun the join keeps the notice until then.
//!
//! The end of a link alone is no failure, because a member that has completed its operations may go. The group fails
//! as soon as an operation needs the lost member. That member gets a notice with the next link: if it lives, messages
//! may be lost.
//!
//! Messages that arrive for a group that has failed or was left are discarded and acknowledged. No sender waits for
//! them.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::messages::Standing;
use super::tag::{NO_STEP, Signal, StepId};
use super::{Collectives, Group, Tag};
use crate::api::{Addr, Fault, OpFlags};
use crate::bugs::planted;
use crate::collective::Task;
use crate::engine::State;
use crate::engine::collective_op::GroupId;
use crate::engine::ops::{Outgoing, TxOp};
use crate::engine::peer::Deferred;
use crate::engine::peers::Peers;
use crate::engine::receives::Incoming;
use crate::engine::state::Violation;
use crate::ids::{self, PeerId};
use crate::matching::{Posted, Space};
use crate::mem::{Iov, IovList};
use crate::nic::LinkError;

/// Notices for one member that are kept. The oldest are dropped.
const MADE_LIMIT: usize = 4096;

/// Notices of this endpoint, by the member to be told. Those of peers for later joins are in `early.rs`.
#[derive(Default)]
pub(super) struct Notices {
    made: FxHashMap<Addr, VecDeque<Notice>>,
}

/// A notice of this endpoint to one member.
struct Notice {
    /// The tag of the group's join.
    tag: Tag,
    /// Whether the message has been sent over the present link, or the member knows otherwise.
    told: bool,
}

impl Notices {
    fn make(&mut self, tag: Tag, addr: Addr) {
        let made = self.made.entry(addr).or_default();
        if made.iter().any(|one| one.tag == tag) {
            return;
        }
        if made.len() == MADE_LIMIT {
            made.pop_front();
        }
        made.push_back(Notice { tag, told: planted!(Bug::FailureUntold, false, true) });
    }

    pub(super) fn is_made(&self, tag: Tag, addr: Addr) -> bool {
        self.made.get(&addr).is_some_and(|made| made.iter().any(|one| one.tag == tag))
    }

    /// A member knows that the group has failed.
    fn is_known(&mut self, tag: Tag, addr: Addr) {
        let made = self.made.get_mut(&addr).into_iter().flatten();
        made.filter(|one| one.tag == tag).for_each(|one| one.told = true);
    }

    /// Messages that have left may not have arrived.
    fn link_ended(&mut self, addr: Addr) {
        let made = self.made.get_mut(&addr).into_iter().flatten();
        made.for_each(|one| one.told = planted!(Bug::FailureUntold, false, true));
    }
}

impl Group {
    /// The rank of the member at an address.
    pub(super) fn rank_of(&self, addr: Addr) -> Option<u32> {
        self.members.iter().position(|&member| member == addr).map(ids::number)
    }

    /// The reason for which no message is exchanged with a member, if there is one.
    pub(super) fn cut_off(&self, rank: u32) -> Option<Fault> {
        let lost = || self.lost.iter().find(|(other, _)| *other == rank).map(|(_, why)| Fault::Link(*why));
        self.failed.or_else(lost)
    }
}

impl Collectives {
    /// The index of the group whose join has this tag.
    pub(super) fn joined_by(&self, tag: Tag) -> Option<GroupId> {
        self.groups.iter().find(|(_, group)| group.tag == tag).map(|(index, _)| index)
    }

    /// The index of the group that has this number here.
    pub(super) fn numbered(&self, number: u64) -> Option<GroupId> {
        self.groups.iter().find(|(_, group)| u64::from(group.number) == number).map(|(index, _)| index)
    }
}

impl State {
    /// Ends the operations of a group, and tells the other members.
    pub(super) fn fail_group(&mut self, index: GroupId, why: Fault) {
        let group = &mut self.collectives().groups[index];
        if group.failed.is_some() {
            return;
        }
        group.failed = Some(why);
        let (tag, number, rank, members) = (group.tag, group.number, group.rank, Arc::clone(&group.members));
        if let Some(host) = group.host.as_deref_mut() {
            host.fail(why);
            self.links.set_polls_boards(true);
        }
        self.leave_chain(index);
        let collectives = self.collectives();
        let others = members.iter().enumerate().filter(|(at, _)| ids::number(*at) != rank).map(|(_, addr)| *addr);
        others.clone().for_each(|addr| collectives.notices.make(tag, addr));
        self.fail_receives_of(index, why);
        self.discard_arrived(|_, arrived| arrived.with_number(0) == tag || arrived.is_of(number));
        for addr in others {
            if let Some(peer_id) = self.member_peer(addr) {
                self.tell_failures(peer_id);
            }
        }
    }

    /// The peer at a member's address. A member that has called here may have an address that was never used.
    pub(super) fn member_peer(&self, addr: Addr) -> Option<PeerId> {
        self.peers.known(addr).or_else(|| self.peers.find(&self.peers.book().name(addr)?))
    }

    /// Fails the receives of a group that wait for their messages.
    fn fail_receives_of(&mut self, index: GroupId, why: Fault) {
        let Self { collectives, incoming, .. } = self;
        let collectives = collectives.get_or_insert_default();
        let of_group = |step: StepId| collectives.runs[step.run()].group == index;
        let theirs = |posted: &Posted| StepId::from_context(posted.ctx).is_some_and(of_group);
        let keys = keys_of(incoming, theirs);
        self.end_receives(keys, why);
    }

    /// Fails receives that wait for their messages.
    pub(super) fn fail_receives(&mut self, wanted: impl Fn(&Posted) -> bool, why: Fault) {
        let keys = keys_of(&self.incoming, wanted);
        self.end_receives(keys, why);
    }

    fn end_receives(&mut self, keys: Vec<u32>, why: Fault) {
        for key in keys {
            // The end of an earlier one may have failed the group, and all of its receives.
            if self.incoming.matcher(Space::Group).posted().get(key).is_some() {
                self.end_posted(Space::Group, key, why);
            }
        }
    }

    /// Fails the group of a step.
    pub(super) fn fail_group_of(&mut self, step: StepId, why: Fault) {
        let group = self.collectives().runs[step.run()].group;
        self.fail_group(group, why);
    }

    /// A link to the peer has ended, or (not `linked`) an attempt to make one. The peer is lost to the groups that rely
    /// on the link.
    pub(super) fn lose_peer(&mut self, peer_id: PeerId, why: LinkError, linked: bool) {
        let addr = self.peers[peer_id].addr();
        let Some(collectives) = self.collectives.as_deref_mut() else { return };
        collectives.notices.link_ended(addr);
        let relies = |group: &Group| {
            let shares = || group.host.as_deref().is_some_and(|host| host.peers().any(|peer| peer == peer_id));
            group.rank_of(addr).filter(|&rank| linked || shares() || group.opens_chain_with(rank))
        };
        let affected = collectives.groups.iter().filter_map(|(index, group)| Some((index, relies(group)?)));
        for (index, rank) in affected.collect::<Vec<_>>() {
            self.lose_member(index, rank, why);
        }
    }

    fn lose_member(&mut self, index: GroupId, rank: u32, why: LinkError) {
        let collectives = self.collectives();
        let group = &mut collectives.groups[index];
        if rank == group.rank || group.cut_off(rank).is_some() {
            return;
        }
        group.lost.push((rank, why));
        if let Some(host) = group.host.as_deref_mut() {
            host.lose(rank, why);
            self.links.set_polls_boards(true);
        }
        let collectives = self.collectives();
        let group = &collectives.groups[index];
        collectives.notices.make(group.tag, group.members[rank as usize]);
        self.leave_chain(index);
        self.check_losses(index);
    }

    /// Fails a group if an operation under way needs a lost member.
    pub(super) fn check_losses(&mut self, index: GroupId) {
        let collectives = self.collectives();
        // A member may have ended right after its last message, which has arrived in this round.
        collectives.settle();
        let group = &collectives.groups[index];
        if group.failed.is_some() {
            return;
        }
        let lost = group.lost.clone();
        if let Some((_, why)) = lost.iter().find(|(rank, _)| self.needs(index, *rank)) {
            self.fail_group(index, Fault::Link(*why));
        }
    }

    /// Whether operations exchange messages with a member that they have not exchanged.
    fn needs(&mut self, index: GroupId, rank: u32) -> bool {
        let collectives = self.collectives();
        let group = &collectives.groups[index];
        let addr = group.members[rank as usize];
        let mut awaited = Vec::new();
        for (_, run) in collectives.runs.iter().filter(|(at, run)| run.group == index && !group.is_on_chain(*at)) {
            for task in run.run.open_transfers() {
                match task {
                    Task::Send { to, .. } if run.rank_of(group, to) == rank => return true,
                    Task::Receive { from, number, .. } if run.rank_of(group, from) == rank => {
                        let tag = run.tag_at(group, group.rank, number);
                        awaited.extend((!group.has_taken(rank, tag)).then_some(tag));
                    }
                    _ => {}
                }
            }
        }
        let peer_id = self.member_peer(addr);
        awaited.into_iter().any(|tag| peer_id.is_none_or(|peer_id| !self.has_arrived(peer_id, tag)))
    }

    /// Sends the notices of which the peer does not know, if there is a link.
    pub(crate) fn tell_failures(&mut self, peer_id: PeerId) {
        let Self { collectives: Some(collectives), peers, outgoing, .. } = self else { return };
        if !peers[peer_id].is_in_use() {
            return;
        }
        let Some(made) = collectives.notices.made.get_mut(&peers[peer_id].addr()) else { return };
        for one in made.iter_mut().filter(|one| !one.told) {
            one.told = true;
            let mut flags = OpFlags::TAGGED;
            flags.set(OpFlags::DATA, true);
            signal(peers, outgoing, peer_id, flags, Signal::Failed.tag(one.tag));
        }
    }

    /// A peer reports the failure of a group, or has left its chain. The group's members alone may.
    pub(super) fn on_signal(&mut self, peer_id: PeerId, signal: Signal, join: Tag) -> Result<(), Violation> {
        let collectives = self.collectives();
        let Some(index) = collectives.joined_by(join) else {
            if signal == Signal::Failed {
                self.keep_notice(peer_id, join);
            }
            return Ok(());
        };
        match self.standing(index, peer_id) {
            Standing::Outsider => Err(Violation),
            Standing::Unclear => Ok(()),
            Standing::Member(_) if signal == Signal::Failed => {
                self.on_notice(index, peer_id);
                Ok(())
            }
            Standing::Member(rank) => self.on_chain_left(index, rank),
        }
    }

    /// A member has told that the group has failed.
    pub(super) fn on_notice(&mut self, index: GroupId, peer_id: PeerId) {
        let from = self.peers[peer_id].addr();
        let collectives = self.collectives();
        let tag = collectives.groups[index].tag;
        collectives.notices.make(tag, from);
        collectives.notices.is_known(tag, from);
        self.fail_group(index, Fault::Link(LinkError::Closed));
    }

    /// A join is complete: there are no receives for its messages any more.
    pub(super) fn discard_join(&mut self, tag: Tag) {
        self.discard_arrived(|_, arrived| arrived.with_number(0) == tag);
    }

    /// A group was left: there are no receives for its messages any more.
    pub(super) fn discard_group(&mut self, number: u32) {
        self.discard_arrived(|_, tag| tag.is_of(number));
    }
}

/// The keys of receives of collectives, in the order of peers and tags.
fn keys_of(incoming: &Incoming, wanted: impl Fn(&Posted) -> bool) -> Vec<u32> {
    let posted = incoming.matcher(Space::Group).posted().iter().filter(|(_, posted)| wanted(posted));
    let mut posted: Vec<_> = posted.map(|(key, posted)| (posted.src, posted.tag, key)).collect();
    posted.sort_unstable();
    posted.into_iter().map(|(_, _, key)| key).collect()
}

/// Sends an empty message that belongs to no run.
pub(super) fn signal(peers: &mut Peers, outgoing: &mut Outgoing, peer_id: PeerId, flags: OpFlags, tag: Tag) {
    let send = || TxOp::collective(peer_id, NO_STEP, flags, IovList::from_slice(&[Iov::EMPTY]), tag.to_wire());
    let index = outgoing.push(&mut peers[peer_id], send);
    peers.defer(peer_id, Deferred::Collective(index));
}
