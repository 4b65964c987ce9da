//! Groups of endpoints, and the collectives that run in them.
//!
//! Place in the data flow: [`Engine::join_group`] (`join.rs`) and [`Engine::start_collective`] accept
//! requests of the client. Each becomes a run of a schedule ([`crate::collective`]).
//! [`Engine::run_collectives`] starts transfers, copies and reduces until all runs wait. Transfers are
//! messages with the flag COLLECTIVE. They have a matcher of their own ([`Space::Group`](crate::matching::Space)),
//! and pass the queued messages of the client, so that no message of the client blocks them.
//! [`State::end_transfer`] records the end of each transfer.
//!
//! A group's *number* is chosen by each member for itself and announced to the others by the join, which is an
//! allgather. The tags of messages contain the receiver's number (`tag.rs`).
//!
//! Faults. When a transfer fails, the run is *poisoned*. It performs the rest of its schedule with empty messages that
//! carry the mark of the failure, and without copies and reductions. Every member's schedule therefore ends, and no
//! garbage is forwarded. Each member that depends on the failed one gets an error. If the transfer fails for want of a
//! member, the whole group has failed, and all its members are told (`failure.rs`).
//!
//! Invariants: a run is complete only when no transfer refers to its memory; a collective is accepted whole or not at
//! all. A repeated collective allocates nothing, except for messages that arrive before their receive.

mod arenas;
mod boards;
mod chains;
mod early;
mod failure;
mod hosts;
mod join;
mod messages;
mod report;
mod schedules;
mod tag;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::api::{Addr, Completion, Context, Error, Fault, Kind, OpFlags};
use crate::bugs::planted;
use crate::collective::{self, Buffer, Next, Operation, Overlap, Request, Run, Schedule, Span, Task};
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::collective_op::{CollectiveOp, Elements, GroupId};
use crate::ids::{self, PeerId, RunId};
use crate::mem::{Iov, Owned};
use crate::nic::{LinkError, Nic};
use crate::table::Table;
use arenas::Arenas;
use boards::BoardRun;
pub use boards::Performed;
use chains::Chain;
use early::Early;
use failure::Notices;
use hosts::Host;
use join::Joined;
pub(crate) use messages::Reception;
pub use report::GroupReport;
use schedules::Postponed;
use tag::{StepId, Tag};

/// The sequence number of the vote that ends a join. Operations have later ones.
const VOTE_SEQUENCE: u64 = 0;

/// Collectives that may be under way at a time in one endpoint.
const RUN_LIMIT: usize = 256;
/// Schedules that a group keeps.
const TEMPLATE_LIMIT: usize = 64;
/// Idle runs that a group keeps per schedule.
const IDLE_RUN_LIMIT: usize = 4;

/// The fault of a transfer to a member that has left the address vector.
const NO_PEER: Fault = Fault::Refused(Error::NoSuchAddress);

/// The groups of one endpoint.
#[derive(Default)]
pub(crate) struct Collectives {
    groups: Table<GroupId, Group>,
    arenas: Arenas,
    /// Groups whose members on this host are about to share a board.
    linking: Vec<GroupId>,
    /// Operations that are performed on boards, in the order of their calls.
    on_boards: Vec<BoardRun>,
    /// Groups whose chains have work.
    chained: Vec<GroupId>,
    runs: Table<RunId, ActiveRun>,
    /// Operations that wait for the joins of their groups.
    postponed: Vec<Postponed>,
    /// Runs that may be able to continue.
    ready: VecDeque<RunId>,
    /// Transfers that have ended and that their runs have not taken into account.
    ended: Vec<Ended>,
    /// The number of the next group.
    next_number: u32,
    /// Joins so far, by the members' hash.
    joins: FxHashMap<u64, u64>,
    early: Early,
    notices: Notices,
}

struct Group {
    /// This endpoint's number of the group.
    number: u32,
    /// The tag of the join.
    tag: Tag,
    rank: u32,
    members: Arc<[Addr]>,
    /// Each member's number of the group; empty until they are known.
    numbers: Vec<u32>,
    /// Whether the join is complete.
    joined: bool,
    /// All members know the group by a key. Operations may begin before the join is complete.
    is_keyed: bool,
    next_sequence: u64,
    templates: FxHashMap<Request, Template>,
    /// Members whose link has ended. Messages may have been lost, so that all transfers with them fail.
    lost: Vec<(u32, LinkError)>,
    /// The failure of the group: all its operations fail.
    failed: Option<Fault>,
    /// Operations under way, the join included.
    runs: usize,
    /// Whether members are on different hosts.
    spans_hosts: bool,
    /// The members by host, and the board of this one. `None`: all transfers are messages.
    host: Option<Box<Host>>,
    /// The chain that performs the group's barriers between hosts.
    chain: Option<Box<Chain>>,
    /// The context of the join.
    join: Context,
}

struct Template {
    schedule: Arc<Schedule>,
    idle: Vec<(Run, Owned)>,
}

/// The purpose of a run.
enum Purpose {
    /// The first part of a join. The buffer holds the announcements of all members, with this member's last.
    Join { announcements: Owned, digest: u64 },
    /// The last part of a join. The buffer holds the votes of all members about their boards, with this member's last.
    Vote { votes: Owned },
    /// The exchange between hosts for the operation that has this turn on the boards. Its ranks are those of hosts.
    Exchange { turn: u64, sequence: u64 },
    /// A collective of the client.
    Operation { sequence: u64 },
}

struct ActiveRun {
    group: GroupId,
    purpose: Purpose,
    /// `None`: the schedule is the client's.
    request: Option<Request>,
    elements: Elements,
    run: Run,
    scratch: Owned,
    input: Iov,
    result: Iov,
    ctx: Context,
    flags: OpFlags,
    /// The first failure.
    fault: Option<Fault>,
    /// Whether the run is in `Collectives::ready`.
    ready: bool,
}

impl ActiveRun {
    /// A collective of the client. `request` is `None` if the schedule is the client's as well.
    fn of_client(op: &CollectiveOp, sequence: u64, request: Option<Request>, run: Run, scratch: Owned) -> Self {
        Self {
            group: op.group,
            purpose: Purpose::Operation { sequence },
            request,
            elements: op.elements,
            run,
            scratch,
            input: op.input,
            result: op.result,
            ctx: op.ctx,
            flags: op.flags,
            fault: None,
            ready: false,
        }
    }

    fn memory(&mut self, at: Span) -> Iov {
        let buffer = match at.buffer {
            Buffer::Input => self.input,
            Buffer::Result => self.result,
            Buffer::Scratch => self.scratch.iov(),
        };
        buffer.slice(at.offset, at.len)
    }

    /// The rank in the group of a partner in the schedule, whose ranks may be those of hosts.
    fn rank_of(&self, group: &Group, partner: u32) -> u32 {
        if let Purpose::Exchange { .. } = self.purpose { group.leader_of(partner) } else { partner }
    }

    /// The tag of a message to a member, by its number in the schedule.
    fn tag_at(&self, group: &Group, receiver: u32, number: u32) -> Tag {
        match self.purpose {
            Purpose::Join { .. } => group.tag.with_number(number.into()),
            Purpose::Vote { .. } => group.tag_for(receiver, VOTE_SEQUENCE, number),
            Purpose::Operation { sequence } | Purpose::Exchange { sequence, .. } => {
                group.tag_for(receiver, sequence, number)
            }
        }
    }

    /// Whether the run receives a message with this tag from a member, and has not.
    fn expects(&self, group: &Group, rank: u32, tag: Tag) -> bool {
        self.run.open_transfers().any(|task| match task {
            Task::Receive { from, number, .. } => {
                self.rank_of(group, from) == rank && self.tag_at(group, group.rank, number) == tag
            }
            _ => false,
        })
    }
}

/// The end of one transfer.
struct Ended {
    step: StepId,
    fault: Option<Fault>,
}

/// A transfer of a run, in the form that engine and matcher understand.
#[derive(Clone, Copy)]
struct StepTransfer {
    peer: Addr,
    tag: Tag,
    memory: Iov,
    step: StepId,
    poisoned: bool,
    /// The reason for which no message is exchanged with the peer.
    cut_off: Option<Fault>,
    /// A chain has received the message.
    taken: bool,
}

impl<N: Nic> Engine<N> {
    /// Leaves a group. Errors: `NoSuchAddress` if there is no such group, `Again` while operations are under way.
    pub fn leave_group(&mut self, group: GroupId) -> Result<(), Error> {
        match self.state.collectives().groups.get(group) {
            None => Err(Error::NoSuchAddress),
            Some(group) if group.runs > 0 => Err(Error::Again),
            Some(_) => {
                self.close_chain(group);
                let group = self.state.collectives().groups.remove(group);
                group.host.iter().for_each(|host| host.quit());
                self.state.discard_group(group.number);
                Ok(())
            }
        }
    }

    /// Starts a collective. Its completion has kind `Collective`.
    ///
    /// Errors: `NoSuchAddress` if there is no such group or root; `NotConnected` before the join is complete, unless
    /// the group has a key; `TooLong`; `Invalid` if the buffers are shorter than the operation needs; `Again` if too
    /// many collectives are under way.
    pub fn start_collective(&mut self, op: &CollectiveOp) -> Result<(), Error> {
        let collectives = self.state.collectives();
        if collectives.under_way() >= RUN_LIMIT {
            return Err(Error::Again);
        }
        let group = collectives.groups.get_mut(op.group).ok_or(Error::NoSuchAddress)?;
        if group.joined {
            return self.begin_collective(op);
        }
        if !group.is_keyed || group.failed.is_some() {
            return Err(Error::NotConnected);
        }
        group.request(op)?;
        group.runs += 1;
        collectives.postponed.push(Postponed::Call(*op));
        Ok(())
    }

    /// Starts the operations that have waited for joins. Returns whether there were any.
    #[cold]
    fn start_early(&mut self) -> bool {
        let Some(collectives) = self.state.collectives.as_deref_mut() else { return false };
        let due = |op: &Postponed| collectives.groups[op.group()].may_begin();
        let (due, early): (Vec<_>, Vec<_>) = collectives.postponed.drain(..).partition(due);
        collectives.postponed = early;
        for op in &due {
            let group = &mut self.state.collectives().groups[op.group()];
            group.runs -= 1;
            let fault = match (group.failed, op) {
                (None, Postponed::Call(op)) => self.begin_collective(op).err().map(Fault::Refused),
                (None, Postponed::Schedule(op, schedule)) => {
                    self.begin_schedule(op, schedule).err().map(Fault::Refused)
                }
                (failed, _) => failed,
            };
            if fault.is_some() {
                let (ctx, flags) = op.options();
                self.state
                    .completions
                    .push(Completion { fault, ..Completion::new(Kind::Collective, ctx, flags.into()) });
            }
        }
        !due.is_empty()
    }

    fn begin_collective(&mut self, op: &CollectiveOp) -> Result<(), Error> {
        let collectives = self.state.collectives();
        let group = &mut collectives.groups[op.group];
        let request = group.request(op)?;
        if group.fits_board(&request) && !matches!(op.elements, Elements::Custom(_)) {
            let run = group.start_on_board(op, &request, false);
            collectives.on_boards.push(run);
            self.run_boards();
            return Ok(());
        }
        let (run, scratch) = group.run_of(&request)?;
        let sequence = group.take_sequence();
        self.start_run(ActiveRun::of_client(op, sequence, Some(request), run, scratch));
        Ok(())
    }

    /// Starts the run of an operation of the client.
    fn start_run(&mut self, run: ActiveRun) {
        let (id, collectives) = (run.group, self.state.collectives());
        let group = &mut collectives.groups[id];
        group.runs += 1;
        let lacks_members = !group.lost.is_empty();
        collectives.start(run);
        self.run_collectives();
        if lacks_members {
            self.state.check_losses(id);
            self.run_collectives();
        }
    }

    /// Bytes of this member's input and result in an operation, whatever buffers it names.
    ///
    /// Errors: `NoSuchAddress` if there is no such group, `TooLong`.
    pub fn collective_bytes(&self, op: &CollectiveOp) -> Result<(usize, usize), Error> {
        let collectives = self.state.collectives.as_deref().ok_or(Error::NoSuchAddress)?;
        collectives.groups.get(op.group).ok_or(Error::NoSuchAddress)?.buffer_bytes(op)
    }

    /// The rank of a member, or `None` if there is no such group or the address is no member's.
    pub fn rank_in(&self, group: GroupId, addr: Addr) -> Option<u32> {
        let group = self.state.collectives.as_deref()?.groups.get(group)?;
        group.members.iter().position(|&member| member == addr).map(ids::number)
    }

    /// The number of members, or `None` if there is no such group.
    pub fn members_in(&self, group: GroupId) -> Option<u32> {
        self.state.collectives.as_deref()?.groups.get(group).map(|group| ids::number(group.members.len()))
    }

    /// Advances every run until all runs wait for transfers.
    pub(crate) fn run_collectives(&mut self) {
        loop {
            while let Some(id) = self.state.next_ready_run() {
                self.advance(id);
            }
            let chains_changed = self.poll_chains();
            let joined = self.state.has_due_operations() && self.start_early();
            if !chains_changed && !joined {
                return;
            }
        }
    }

    fn advance(&mut self, id: RunId) {
        loop {
            let collectives = self.state.collectives();
            let active = &mut collectives.runs[id];
            match active.run.next_task() {
                Next::Blocked => return,
                Next::Done => return self.state.end_run(id),
                Next::Perform(task, Task::Send { to, number, at }) => {
                    active.run.started();
                    let memory = if active.fault.is_some() { Iov::EMPTY } else { active.memory(at) };
                    let transfer = collectives.transfer(id, task, to, number, memory, Side::Send);
                    self.send_collective(&transfer);
                }
                Next::Perform(task, Task::Receive { from, number, at }) => {
                    active.run.started();
                    let memory = active.memory(at);
                    let transfer = collectives.transfer(id, task, from, number, memory, Side::Receive);
                    self.receive_collective(&transfer);
                }
                Next::Perform(_, Task::Copy { from, into }) => {
                    let (from, into) = (active.memory(from), active.memory(into));
                    if active.fault.is_none() {
                        into.copy_from(&from);
                    }
                    active.run.performed();
                }
                Next::Perform(_, Task::Reduce { from, into, order }) => {
                    let (from, into) = (active.memory(from), active.memory(into));
                    if active.fault.is_none() {
                        let elements = active.elements;
                        elements.combine(&from, &into, planted!(Bug::OperandsSwapped, order, order.swapped()));
                        planted!(Bug::ReducedTwice, elements.combine(&from, &into, order));
                    }
                    active.run.performed();
                }
                Next::Perform(_, Task::Wait { .. }) => return,
            }
        }
    }
}

impl State {
    /// The groups; made when the first group or message asks for them.
    fn collectives(&mut self) -> &mut Collectives {
        self.collectives.get_or_insert_default()
    }

    /// A group of this endpoint.
    fn group(&self, id: GroupId) -> &Group {
        let collectives = self.collectives.as_deref().map(|collectives| &collectives.groups);
        &collectives.expect("an id is given out by the table")[id]
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Send,
    Receive,
}

impl Collectives {
    fn start(&mut self, run: ActiveRun) {
        let id = self.runs.insert(run);
        if !self.queue_on_chain(id) {
            self.make_ready(id);
        }
    }

    fn make_ready(&mut self, id: RunId) {
        if !std::mem::replace(&mut self.runs[id].ready, true) {
            self.ready.push_back(id);
        }
    }

    /// A number that no group of this endpoint has.
    fn free_number(&mut self) -> u32 {
        loop {
            let number = tag::group_number(self.next_number);
            self.next_number = self.next_number.wrapping_add(1);
            if self.groups.iter().all(|(_, group)| group.number != number) {
                return number;
            }
        }
    }

    fn transfer(&mut self, id: RunId, task: u32, peer: u32, number: u32, memory: Iov, side: Side) -> StepTransfer {
        let active = &self.runs[id];
        let group = &self.groups[active.group];
        let peer = active.rank_of(group, peer);
        let receiver = if side == Side::Send { peer } else { group.rank };
        let tag = active.tag_at(group, receiver, number);
        StepTransfer {
            peer: group.members[peer as usize],
            tag,
            memory,
            step: StepId::new(id, task),
            poisoned: active.fault.is_some(),
            cut_off: group.cut_off(peer),
            taken: side == Side::Receive && group.has_taken(peer, tag),
        }
    }

    /// The peers that share a board, or have sent notices for later joins. Some are named several times.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        let hosts = self.groups.iter().filter_map(|(_, group)| group.host.as_deref());
        hosts.flat_map(Host::peers).chain(self.early.peers())
    }

    /// Operations that are not complete.
    fn under_way(&self) -> usize {
        self.runs.len() + self.on_boards.len() + self.postponed.len()
    }

    /// Takes the ends of transfers into account.
    fn settle(&mut self) {
        let mut all = std::mem::take(&mut self.ended);
        for ended in all.drain(..) {
            let (run, task) = (ended.step.run(), ended.step.task());
            let active = &mut self.runs[run];
            active.run.complete(task);
            active.fault = planted!(Bug::CollectivePoisonLost, active.fault.or(ended.fault), active.fault);
            if planted!(Bug::RunForgotten, true, task % 4 != 3) {
                self.make_ready(run);
            }
        }
        self.ended = all; // Its memory is reused.
    }
}

impl Group {
    /// The tag of a message of an operation to a member.
    fn tag_for(&self, receiver: u32, sequence: u64, number: u32) -> Tag {
        Tag::operation(self.numbers[receiver as usize], planted!(Bug::SequenceLost, sequence, 1), number)
    }

    /// Whether a message's tag has the sequence number of an operation that has begun here.
    fn is_past(&self, tag: Tag) -> bool {
        self.joined && tag.precedes(self.next_sequence)
    }

    /// Whether the join has ended.
    fn may_begin(&self) -> bool {
        self.joined || self.failed.is_some()
    }

    /// The request for a schedule, once the operation is found valid.
    fn request(&self, op: &CollectiveOp) -> Result<Request, Error> {
        let members = ids::number(self.members.len());
        let root = if op.operation.is_rooted() { op.root } else { 0 };
        if root >= members {
            return Err(Error::NoSuchAddress);
        }
        if op.operation.reduces() != op.elements.reduces() {
            return Err(Error::Invalid);
        }
        let (input, result) = self.buffer_bytes(op)?;
        if op.input.len() < input || op.result.len() < result {
            return Err(Error::Invalid);
        }
        let overlap = Overlap::of(&op.input.slice(0, input), &op.result.slice(0, result));
        let (operation, element) = (op.operation, op.elements.size());
        Ok(Request { operation, rank: self.rank, members, root, count: op.count, element, overlap })
    }

    /// Bytes of this member's input and result.
    fn buffer_bytes(&self, op: &CollectiveOp) -> Result<(usize, usize), Error> {
        let block = op.count.checked_mul(op.elements.size()).ok_or(Error::TooLong)?;
        let blocks = block.checked_mul(self.members.len()).ok_or(Error::TooLong)?;
        let is_root = self.rank == op.root;
        Ok(match op.operation {
            Operation::Barrier => (0, 0),
            Operation::Broadcast => (0, block),
            Operation::AllToAll => (blocks, blocks),
            Operation::AllReduce => (block, block),
            Operation::AllGather => (block, blocks),
            Operation::ReduceScatter => (blocks, block),
            Operation::Reduce => (block, if is_root { block } else { 0 }),
            Operation::Scatter => (if is_root { blocks } else { 0 }, block),
            Operation::Gather => (block, if is_root { blocks } else { 0 }),
        })
    }

    /// A run of this request's schedule, compiled if the group has not used it lately.
    fn run_of(&mut self, request: &Request) -> Result<(Run, Owned), Error> {
        if !self.templates.contains_key(request) {
            let schedule = Arc::new(collective::compile(request).map_err(|_| Error::TooLong)?);
            if self.templates.len() >= TEMPLATE_LIMIT {
                self.templates.clear();
            }
            self.templates.insert(*request, Template { schedule, idle: Vec::new() });
        }
        let template = self.templates.get_mut(request).ok_or(Error::TooLong)?;
        Ok(template.idle.pop().unwrap_or_else(|| {
            let schedule = &template.schedule;
            (Run::new(Arc::clone(schedule)), Owned::new(vec![0; schedule.scratch()]))
        }))
    }

    /// The sequence number of a new operation.
    fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// Keeps a run's memory for the next one.
    fn keep(&mut self, request: Option<Request>, mut run: Run, scratch: Owned) {
        if let Some(template) = request.and_then(|request| self.templates.get_mut(&request))
            && template.idle.len() < IDLE_RUN_LIMIT
        {
            if planted!(Bug::RunNotRestarted, true, false) {
                run.restart();
            }
            template.idle.push((run, scratch));
        }
    }
}

impl State {
    /// Whether operations have waited for a join that has ended.
    fn has_due_operations(&self) -> bool {
        let Some(collectives) = self.collectives.as_deref().filter(|collectives| !collectives.postponed.is_empty())
        else {
            return false;
        };
        collectives.postponed.iter().any(|op| collectives.groups[op.group()].may_begin())
    }

    /// The next run that may be able to continue.
    fn next_ready_run(&mut self) -> Option<RunId> {
        let collectives = self.collectives.as_deref_mut()?;
        collectives.settle();
        let id = collectives.ready.pop_front()?;
        collectives.runs[id].ready = false;
        Some(id)
    }

    /// All tasks of a run are performed.
    fn end_run(&mut self, id: RunId) {
        let collectives = self.collectives();
        let active = collectives.runs.remove(id);
        let ActiveRun { purpose, request, run, scratch, ctx, flags, fault, .. } = active;
        let kind = match purpose {
            Purpose::Join { announcements, digest, .. } => {
                let outcome = match fault {
                    None => collectives.numbers_known(active.group, &announcements.into_bytes(), digest),
                    Some(fault) => Err(fault),
                };
                return match outcome {
                    Ok(Joined::Linking) => self.links.set_polls_boards(true),
                    Ok(Joined::Complete) => self.complete_join(active.group, None),
                    Err(why) => self.complete_join(active.group, Some(why)),
                };
            }
            Purpose::Vote { votes } => {
                collectives.votes_known(active.group, &votes.into_bytes());
                return self.complete_join(active.group, fault);
            }
            Purpose::Exchange { turn, .. } => {
                collectives.exchanged(active.group, turn, fault);
                return collectives.groups[active.group].keep(request, run, scratch);
            }
            Purpose::Operation { .. } => {
                let group = &mut collectives.groups[active.group];
                group.runs -= 1;
                group.keep(request, run, scratch);
                Kind::Collective
            }
        };
        if fault.is_none() && flags.contains(OpFlags::QUIET) {
            return;
        }
        let data = fault.map_or(0, |_| self.group(active.group).first_lost());
        self.completions.push(Completion { fault, data, ..Completion::new(kind, ctx, flags.into()) });
    }
}
