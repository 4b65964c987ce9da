//! Barriers between hosts as chains, which the system performs while the client computes ([`crate::nic::Chaining`]).
//!
//! Place in the data flow: the join opens a chain where all members can, and they vote for it (`join.rs`).
//! [`Collectives::queue_on_chain`] takes the barriers of the group, and [`Engine::poll_chains`] starts one after the
//! other and notes their ends. All members have the same order of barriers, so that frames need no matching.
//!
//! Leaving. A chain whose connections fail says nothing about the members, whose links may be fine. The member *leaves*
//! the chain for good, and tells its partners, which leave as well. From then on all steps are messages. The member
//! repeats by messages the steps of the barrier under way, and those of the last one that it completed: it cannot know
//! which frames have arrived. A partner may lack frames of these two barriers only, because a member starts a barrier
//! after it has completed the previous one. Repetitions of steps that the chain has taken are discarded.
//!
//! A member that leaves the group repeats the steps of its last barrier as well, since it does not hear of later
//! failures.
//!
//! Invariants: the chain of a group is left by all members or by none that still waits for the others. A step is
//! received once, as a frame or as a message.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::failure::signal;
use super::messages::arrived;
use super::tag::Signal;
use super::{ActiveRun, Collectives, Group, Purpose, Tag};
use crate::api::OpFlags;
use crate::broken::cannot_happen;
use crate::collective::{self, Operation, Overlap, Request};
use crate::engine::collective_op::GroupId;
use crate::engine::peer::PeerState;
use crate::engine::state::Violation;
use crate::engine::{Engine, State};
use crate::ids::{self, PeerId, RunId};
use crate::nic::{CHAIN_STEPS, ChainEnd, ChainId, ChainState, ChainStep, Nic};

/// Barriers whose frames are remembered: the one under way and the two before it. A partner that leaves repeats no
/// others.
const REMEMBERED: usize = 3;

/// The use of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The members have not voted for it.
    Opening,
    InUse,
    /// The steps under way must end. `tells`: the partners must be told.
    Leaving {
        tells: bool,
    },
    Left,
}

/// The chain of a group.
pub(super) struct Chain {
    stage: Stage,
    device: Option<ChainId>,
    /// The members of the barrier: those of the group, or one for each host. 0: this member is none of them.
    members: u32,
    /// The ranks of the partners, by end.
    partners: Vec<u32>,
    steps: Vec<Step>,
    /// Runs of barriers. The first one may be under way.
    queue: VecDeque<RunId>,
    /// The sequence number of the barrier under way.
    running: Option<u64>,
    /// The sequence number of the last barrier that was completed.
    completed: Option<u64>,
    /// The sequence numbers of the latest barriers, and a bit for each awaited step whose frame has arrived.
    arrivals: VecDeque<(u64, u64)>,
}

struct Step {
    end: u32,
    number: u32,
    sends: bool,
}

impl Chain {
    fn remember(&mut self, sequence: u64, arrivals: u64) {
        self.arrivals.truncate(REMEMBERED - 1);
        self.arrivals.push_front((sequence, arrivals));
    }

    /// Leaves the chain.
    fn leave(&mut self, tells: bool) {
        if matches!(self.stage, Stage::Opening | Stage::InUse) {
            self.stage = Stage::Leaving { tells };
        }
    }
}

/// The result of a look at a chain.
#[derive(PartialEq, Eq)]
enum Look {
    Idle,
    Waits,
    Changed,
}

impl<N: Nic> Engine<N> {
    /// Opens the chain of a group that is being joined. `Some`: whether it is usable here.
    pub(super) fn open_chain(&mut self, id: GroupId) -> Option<bool> {
        let Some(chain) = self.state.chain(id).filter(|chain| chain.stage == Stage::Opening) else {
            return Some(false);
        };
        if chain.members == 0 {
            return Some(true);
        }
        if chain.device.is_none() {
            let ends = match self.chain_ends(id)? {
                Some(ends) if ends.len() <= CHAIN_STEPS => ends,
                _ => return Some(false),
            };
            let device = self.nic.open_chain(&ends);
            chain_of(&mut self.state, id, |chain| chain.device = device);
        }
        match self.state.chain(id)?.device.map(|device| self.nic.poll_chain(device)) {
            Some(ChainState::Busy) => None,
            Some(ChainState::Ready) => Some(true),
            Some(ChainState::Broken) | None => Some(false),
        }
    }

    /// The ends of a chain. The outer `None`: links to partners are being made. The inner one: a partner is lost.
    fn chain_ends(&mut self, id: GroupId) -> Option<Option<Vec<ChainEnd>>> {
        let partners = self.state.chain(id)?.partners.clone();
        let mut ends = Some(Vec::new());
        let mut pending = false;
        for rank in partners {
            let group = self.state.group(id);
            let (addr, ours, theirs) = (group.members[rank as usize], group.number, group.numbers[rank as usize]);
            let peer_id = self.state.peer_for(addr).ok();
            let is_lost = || self.state.group(id).cut_off(rank).is_some();
            let Some(peer_id) = peer_id.filter(|_| !is_lost()) else { return Some(None) };
            if self.state.peers[peer_id].state() == PeerState::Idle {
                self.dial(peer_id);
            }
            match (self.state.peers[peer_id].link(), &mut ends) {
                (Some(link), Some(ends)) => ends.push(ChainEnd { link, ours, theirs }),
                _ => pending = true,
            }
        }
        if pending { None } else { Some(ends) }
    }

    /// Advances the chains that have work. Returns whether anything has changed.
    pub(super) fn poll_chains(&mut self) -> bool {
        let Some(collectives) =
            self.state.collectives.as_deref_mut().filter(|collectives| !collectives.chained.is_empty())
        else {
            return false;
        };
        let mut changed = false;
        let mut chained = std::mem::take(&mut collectives.chained);
        chained.retain(|&id| {
            let look = self.poll_chain(id);
            changed |= look == Look::Changed;
            look != Look::Idle
        });
        let busy = !chained.is_empty();
        self.state.collectives().chained = chained;
        if busy {
            self.state.links.set_polls_boards(true);
        }
        changed
    }

    fn poll_chain(&mut self, id: GroupId) -> Look {
        // The group may have been left since its last poll.
        let Some(chain) = self.state.collectives().groups.get_mut(id).and_then(|group| group.chain.as_deref_mut())
        else {
            return Look::Idle;
        };
        let (stage, device) = (chain.stage, chain.device);
        let state = device.map_or(ChainState::Broken, |device| self.nic.poll_chain(device));
        match (stage, device, state) {
            (Stage::InUse, Some(device), ChainState::Ready) => self.continue_chain(id, device),
            (Stage::InUse, Some(_), ChainState::Busy) => Look::Waits,
            (Stage::InUse, ..) => {
                chain_of(&mut self.state, id, |chain| chain.leave(true));
                Look::Changed
            }
            (Stage::Leaving { tells }, ..) => {
                if tells {
                    self.state.tell_leaving(id);
                }
                device.into_iter().for_each(|device| self.nic.break_chain(device));
                if device.is_some_and(|device| self.nic.poll_chain(device) == ChainState::Busy) {
                    return Look::Waits;
                }
                let arrivals = device.map_or(0, |device| self.nic.close_chain(device));
                self.state.chain_left(id, arrivals);
                Look::Changed
            }
            (Stage::Opening | Stage::Left, ..) => Look::Idle,
        }
    }

    /// Ends the barrier that a chain has performed, and starts the next one.
    fn continue_chain(&mut self, id: GroupId, device: ChainId) -> Look {
        let Some(chain) = self.state.chain(id) else {
            cannot_happen!("a chain that continues is there");
            return Look::Idle;
        };
        if let Some(sequence) = chain.running.take() {
            chain.remember(sequence, u64::MAX);
            chain.completed = Some(sequence);
            let run = chain.queue.pop_front();
            self.state.discard_repeated(id);
            match run {
                Some(run) => self.state.end_run(run),
                None => cannot_happen!("the barrier under way is the first in the queue"),
            }
            return Look::Changed;
        }
        let collectives = self.state.collectives();
        let group = &collectives.groups[id];
        let Some(chain) = group.chain.as_deref() else { return Look::Idle };
        // No barrier waits.
        let Some(&run) = chain.queue.front() else { return Look::Idle };
        let sequence = collectives.runs[run].sequence();
        let step = |step: &Step| {
            let receiver = if step.sends { chain.partners[step.end as usize] } else { group.rank };
            let tag = group.tag_for(receiver, sequence, step.number).to_wire();
            ChainStep { end: step.end, sends: step.sends, tag }
        };
        let steps: SmallVec<[ChainStep; 16]> = chain.steps.iter().map(step).collect();
        let started = self.nic.start_chain(device, &steps);
        chain_of(&mut self.state, id, |chain| {
            if started {
                chain.running = Some(sequence);
            } else {
                chain.leave(true);
            }
        });
        Look::Changed
    }

    /// Closes the chain of a group that is left. No barrier is under way.
    pub(super) fn close_chain(&mut self, id: GroupId) {
        if let Some(device) = self.state.chain(id).and_then(|chain| chain.device.take()) {
            self.nic.break_chain(device);
            self.nic.close_chain(device);
            self.state.repeat_completed(id);
        }
    }
}

/// Changes the chain of a group that has one.
fn chain_of(state: &mut State, id: GroupId, change: impl FnOnce(&mut Chain)) {
    match state.chain(id) {
        Some(chain) => change(chain),
        None => cannot_happen!("a chain stays until its group is left"),
    }
}

impl State {
    /// The chain of a group, if it has one.
    fn chain(&mut self, id: GroupId) -> Option<&mut Chain> {
        self.collectives().groups[id].chain.as_deref_mut()
    }

    /// A member has left the chain of a group. Partners alone tell that.
    pub(super) fn on_chain_left(&mut self, id: GroupId, rank: u32) -> Result<(), Violation> {
        match self.chain(id) {
            Some(chain) if !chain.partners.contains(&rank) => return Err(Violation),
            Some(_) => self.leave_chain(id),
            // The chain is not prepared here. The partner votes against it.
            None => {}
        }
        Ok(())
    }

    /// Leaves the chain of a group, if it has one.
    pub(super) fn leave_chain(&mut self, id: GroupId) {
        if self.collectives().leave_chain(id, true) {
            self.links.set_polls_boards(true);
        }
    }

    /// Tells the partners that this member leaves the chain.
    fn tell_leaving(&mut self, id: GroupId) {
        let Some(chain) = self.chain(id) else { return cannot_happen!("a chain that is left is there") };
        chain.stage = Stage::Leaving { tells: false };
        for rank in chain.partners.clone() {
            let tag = Signal::ChainLeft.tag(self.group(id).tag);
            self.signal_member(id, rank, tag);
        }
    }

    /// No step of the chain is under way any more. Its barriers continue by messages.
    fn chain_left(&mut self, id: GroupId, arrivals: u64) {
        let Some(chain) = self.chain(id) else { return cannot_happen!("a chain that is left is there") };
        (chain.stage, chain.device) = (Stage::Left, None);
        let queue = std::mem::take(&mut chain.queue);
        if let Some(sequence) = chain.running.take() {
            chain.remember(sequence, arrivals);
        }
        self.discard_repeated(id);
        self.repeat_completed(id);
        queue.into_iter().for_each(|run| self.collectives().make_ready(run));
        self.check_losses(id);
    }

    /// Repeats the steps of the last barrier that the chain has completed, by messages.
    fn repeat_completed(&mut self, id: GroupId) {
        let group = self.group(id);
        // The chain may have completed no barrier.
        let Some((chain, sequence)) = group.chain.as_deref().and_then(|chain| Some((chain, chain.completed?))) else {
            return;
        };
        let sends = chain.steps.iter().filter(|step| step.sends);
        let message = |step: &Step| {
            let rank = chain.partners[step.end as usize];
            (rank, group.tag_for(rank, sequence, step.number))
        };
        for (rank, tag) in sends.map(message).collect::<Vec<_>>() {
            self.signal_member(id, rank, tag);
        }
    }

    /// Sends an empty message of no run to a member, unless it is lost.
    fn signal_member(&mut self, id: GroupId, rank: u32, tag: Tag) {
        let group = self.group(id);
        if group.cut_off(rank).is_some() {
            return;
        }
        let addr = group.members[rank as usize];
        if let Some(peer_id) = self.peers.known(addr).filter(|&peer_id| self.peers[peer_id].is_in_use()) {
            signal(&mut self.peers, &mut self.outgoing, peer_id, OpFlags::TAGGED, tag);
        }
    }

    /// Discards the messages of steps that the chain has taken.
    fn discard_repeated(&mut self, id: GroupId) {
        let Self { collectives, peers, incoming, .. } = self;
        let collectives = collectives.get_or_insert_default();
        let group = &collectives.groups[id];
        let is_repeated =
            |peer_id: PeerId, tag| group.rank_of(peers[peer_id].addr()).is_some_and(|rank| group.has_taken(rank, tag));
        let repeated = arrived(incoming, is_repeated);
        self.discard_all(repeated);
    }
}

impl Collectives {
    /// Gives a barrier to the chain of its group. False: it is performed by messages.
    pub(super) fn queue_on_chain(&mut self, run: RunId) -> bool {
        let active = &self.runs[run];
        let (at, poisoned) = (active.group, active.fault.is_some());
        let chain = self.groups[at].chain.as_deref_mut();
        let Some(chain) = chain.filter(|chain| chain.stage == Stage::InUse && active.is_barrier_of(chain.members))
        else {
            return false;
        };
        if poisoned {
            // Frames carry no mark of a failure.
            self.leave_chain(at, true);
            return false;
        }
        chain.queue.push_back(run);
        self.poll_chain_of(at);
        true
    }

    /// Leaves the chain of a group. Returns whether it has one.
    pub(super) fn leave_chain(&mut self, id: GroupId, tells: bool) -> bool {
        let chain = self.groups[id].chain.as_deref_mut();
        let leaves = chain.map(|chain| chain.leave(tells)).is_some();
        if leaves {
            self.poll_chain_of(id);
        }
        leaves
    }

    fn poll_chain_of(&mut self, id: GroupId) {
        if !self.chained.contains(&id) {
            self.chained.push(id);
        }
    }

    /// Whether a chain has ended its steps and has not been polled since.
    pub(super) fn has_ended_chain(&self, ended: impl Fn(ChainId) -> bool) -> bool {
        let chains = self.chained.iter().filter_map(|&id| self.groups.get(id)?.chain.as_deref()?.device);
        chains.into_iter().any(ended)
    }
}

impl ActiveRun {
    fn is_barrier_of(&self, members: u32) -> bool {
        let is_client = matches!(self.purpose, Purpose::Operation { .. } | Purpose::Exchange { .. });
        let is_barrier = |of: &Request| of.operation == Operation::Barrier && of.members == members;
        is_client && self.request.as_ref().is_some_and(is_barrier)
    }
}

impl Group {
    /// Prepares a chain for the barriers of this group.
    pub(super) fn prepare_chain(&mut self) {
        let (rank, members) = match self.host.as_deref() {
            Some(host) if !host.is_leader() => (0, 0),
            Some(host) => host.among_hosts(),
            None => (self.rank, ids::number(self.members.len())),
        };
        let (operation, overlap) = (Operation::Barrier, Overlap::None);
        let request = Request { operation, rank, members, root: 0, count: 0, element: 1, overlap };
        let links = collective::compile(&request).ok().and_then(|schedule| collective::chain(&schedule));
        let mut partners = Vec::new();
        let mut steps = Vec::new();
        for link in links.unwrap_or_default() {
            let rank = if self.host.is_some() { self.leader_of(link.partner) } else { link.partner };
            let end = partners.iter().position(|&other| other == rank).unwrap_or(partners.len());
            if end == partners.len() {
                partners.push(rank);
            }
            steps.push(Step { end: ids::number(end), number: link.number, sends: link.sends });
        }
        self.chain = Some(Box::new(Chain {
            stage: Stage::Opening,
            device: None,
            members,
            partners,
            steps,
            queue: VecDeque::new(),
            running: None,
            completed: None,
            arrivals: VecDeque::new(),
        }));
    }

    /// Whether a link to a member is needed for the group's chain to be opened.
    pub(super) fn opens_chain_with(&self, rank: u32) -> bool {
        self.chain.as_deref().is_some_and(|chain| chain.stage == Stage::Opening && chain.partners.contains(&rank))
    }

    /// All members have voted for the chain.
    pub(super) fn use_chain(&mut self) {
        if let Some(chain) = self.chain.as_deref_mut().filter(|chain| chain.stage == Stage::Opening) {
            chain.stage = Stage::InUse;
        }
    }

    /// Whether a run waits for the group's chain, or is performed by it.
    pub(super) fn is_on_chain(&self, run: RunId) -> bool {
        self.chain.as_deref().is_some_and(|chain| chain.queue.contains(&run))
    }

    /// Whether the message of a member with this tag has arrived as a frame.
    pub(super) fn has_taken(&self, rank: u32, tag: Tag) -> bool {
        let Some(chain) = self.chain.as_deref().filter(|_| tag.is_of(self.number)) else { return false };
        let arrivals = chain.arrivals.iter().find(|(sequence, _)| tag.has_sequence(*sequence));
        let Some((_, arrivals)) = arrivals else { return false };
        chain.steps.iter().enumerate().any(|(at, step)| {
            let is_step =
                !step.sends && chain.partners[step.end as usize] == rank && u64::from(step.number) == tag.number();
            is_step && arrivals >> at & 1 != 0
        })
    }

    /// The rank whose frame a barrier on the chain awaits now. `None`: the run is not performed by the chain.
    pub(super) fn awaited_on_chain(&self, run: &ActiveRun, arrivals: impl Fn(ChainId) -> u64) -> Option<u32> {
        let chain = self.chain.as_deref().filter(|chain| chain.running == Some(run.sequence()))?;
        let arrivals = arrivals(chain.device?);
        let mut steps = chain.steps.iter().enumerate().filter(|(_, step)| !step.sends);
        let (_, step) = steps.find(|(at, _)| arrivals >> at & 1 == 0)?;
        chain.partners.get(step.end as usize).copied()
    }
}
