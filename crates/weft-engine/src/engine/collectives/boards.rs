//! Collectives on boards: the members of a host exchange their blocks in shared memory, and the last one to arrive
//! combines them ([`crate::board`]).
//!
//! Place in the data flow: [`Group::fits_board`] selects the operations, by the group and the length alone,
//! so that all members agree. [`Engine::run_boards`] advances them in each round of progress. Between hosts
//! the *leaders*, the first members of their hosts, exchange the hosts' parts by messages. Everything else
//! stays on the hosts.
//!
//! The arithmetic follows the same tree as that of the schedules, over ranks: leaders exchange contributions, not sums.
//!
//! In a group of two members on one host each member combines both contributions by itself (a *direct* board).
//!
//! Faults. An operation that needs the part of a lost member fails, and the whole group with it (`failure.rs`). The
//! other members of the host are told by messages, as all members are.
//!
//! A member that passes other lengths than the rest, or makes another call, gets no result. Inside a host the operation
//! then fails at all members that would take one, and later operations are not affected.

mod at_once;
mod shapes;

pub use at_once::Performed;

use super::hosts::Host;
use super::messages::Standing;
use super::{ActiveRun, Collectives, Group, Purpose, Tag};

use crate::amo::Reduction;
use crate::api::{Completion, Context, Error, Fault, Kind, OpFlags};
use crate::board::{Arrival, Board, HostBoard, Room, SLOT_BYTES};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::collective::{Operation, Order, Overlap, Request, tree};
use crate::engine::collective_op::{CollectiveOp, Elements, GroupId};
use crate::engine::links::LinkState;
use crate::engine::state::Violation;
use crate::engine::{Engine, State};
use crate::ids;
use crate::mem::{Iov, Owned};
use crate::nic::{LinkError, LinkId, Nic};

/// Longest result of the exchange of contributions between hosts, in bytes. Longer reductions use schedules.
const EXCHANGE_BYTES: usize = 64 * 1024;

/// The progress of an operation on a board.
enum Step {
    /// The board's bank, or an earlier operation, holds it up.
    Enter,
    /// The contribution is in place.
    Wait,
    /// The leaders exchange their parts.
    Exchange,
    /// The exchange has ended.
    Exchanged,
}

/// An operation on a board that is not complete.
pub(super) struct BoardRun {
    group: GroupId,
    turn: u64,
    /// The sequence number of the exchange between hosts.
    sequence: u64,
    request: Request,
    elements: Elements,
    input: Iov,
    result: Iov,
    ctx: Context,
    flags: OpFlags,
    step: Step,
    fault: Option<Fault>,
    /// The call that started it reports its success.
    in_call: bool,
    /// The hosts' parts: those of all hosts, then that of this one.
    parts: Owned,
}

impl BoardRun {
    pub(super) const fn group(&self) -> GroupId {
        self.group
    }

    pub(super) const fn ctx(&self) -> Context {
        self.ctx
    }

    /// Whether the contribution is not in its place yet.
    pub(super) const fn is_outside(&self) -> bool {
        matches!(self.step, Step::Enter)
    }

    pub(super) const fn turn(&self) -> u64 {
        self.turn
    }

    pub(super) const fn request(&self) -> &Request {
        &self.request
    }

    /// Whether a message's tag is one of the exchange of this operation.
    pub(super) fn exchanges(&self, group: GroupId, tag: Tag) -> bool {
        self.group == group && tag.has_sequence(self.sequence)
    }

    const fn is_root(&self) -> bool {
        self.request.rank == self.request.root
    }

    /// The root alone has data for the others.
    const fn has_source(&self) -> bool {
        matches!(self.request.operation, Operation::Broadcast | Operation::Scatter)
    }

    /// Whether this member takes bytes from the board, or waits for the others.
    const fn takes_result(&self) -> bool {
        match self.request.operation {
            Operation::Broadcast => !self.is_root(),
            Operation::Reduce | Operation::Gather => self.is_root(),
            _ => true,
        }
    }

    /// The part of the board for the blocks of this operation.
    fn room(&self) -> Room {
        Room::of(bytes_on_board(&self.request))
    }

    /// The bytes that this member writes into its slot.
    fn contribution(&self) -> Iov {
        match self.request.operation {
            Operation::Barrier => Iov::EMPTY,
            Operation::Broadcast if self.is_root() => self.result.slice(0, self.request.block()),
            Operation::Scatter if self.is_root() => self.input.slice(0, self.request.blocks()),
            Operation::Broadcast | Operation::Scatter => Iov::EMPTY,
            Operation::AllToAll | Operation::ReduceScatter => self.input.slice(0, self.request.blocks()),
            _ => self.input.slice(0, self.request.block()),
        }
    }

    fn reduction(&self) -> Option<Reduction> {
        match self.elements {
            Elements::Numbers(reduction) => Some(reduction),
            Elements::Bytes(_) | Elements::Custom(_) => None,
        }
    }

    /// The place of the member that alone has data for the others, if it is on this host.
    fn source(&self, host: &Host) -> Option<usize> {
        if self.has_source() { host.place_here(self.request.root) } else { None }
    }

    /// Whether the result may be taken.
    fn is_ready(&self, host: &Host, board: &HostBoard) -> bool {
        if !board.is_direct() {
            return board.is_released(self.turn);
        }
        match self.source(host) {
            Some(source) => board.has_entered(self.turn, source),
            None => planted!(Bug::BoardReleasedEarly, board.has_all(self.turn), true),
        }
    }

    /// Whether the members that have a part in this member's result have made the same call.
    fn has_result(&self, host: &Host, board: &HostBoard) -> bool {
        let shape = self.shape();
        if !board.is_direct() {
            return board.has_result(self.turn, shape);
        }
        match self.source(host) {
            Some(source) => board.shape(self.turn, source) == Some(shape),
            None => board.all_have(self.turn, shape),
        }
    }

    /// Combines the contributions of both members of a direct board into this member's result: their bytes from `from`
    /// on.
    fn combine_both(&self, board: &HostBoard, from: usize) {
        let Some(reduction) = self.reduction() else {
            return cannot_happen!("a reduction has an arithmetic operation");
        };
        let (block, room) = (self.request.block(), self.room());
        let [first, second] = [0, 1].map(|place| board.slot(room, self.turn, place).slice(from, block));
        let result = self.result.slice(0, block);
        result.copy_from(&first);
        let order = planted!(Bug::OperandsSwapped, Order::IntoFirst, Order::FromFirst);
        reduction.combine(&second, &result, order);
    }

    /// Copies what this member needs from the board.
    fn take_result(&self, host: &Host, board: &HostBoard) {
        let combines = board.is_direct() && self.request.operation.reduces();
        if combines {
            let scatters = self.request.operation == Operation::ReduceScatter;
            let from = if scatters { self.request.rank as usize * self.request.block() } else { 0 };
            return self.combine_both(board, from);
        }
        let (turn, block, room) = (self.turn, self.request.block(), self.room());
        let own = self.request.rank as usize * block;
        let root = self.source(host).unwrap_or(0);
        let take = |memory: Iov, from: usize| self.result.slice(0, block).copy_from(&memory.slice(from, block));
        let gather = |from: usize| {
            for place in 0..host.places.count() {
                let rank = host.places.ranks_here()[place] as usize;
                self.result.slice(rank * block, block).copy_from(&board.slot(room, turn, place).slice(from, block));
            }
        };
        match self.request.operation {
            Operation::Barrier => {}
            Operation::Broadcast | Operation::AllReduce if host.spans_hosts() => take(board.result(room, turn), 0),
            Operation::Broadcast => take(board.slot(room, turn, root), 0),
            Operation::Scatter => take(board.slot(room, turn, root), own),
            // The contributions were combined in the first slot.
            Operation::AllReduce | Operation::Reduce => take(board.slot(room, turn, 0), 0),
            Operation::ReduceScatter => take(board.slot(room, turn, 0), own),
            Operation::AllGather | Operation::Gather => gather(0),
            Operation::AllToAll => gather(own),
        }
    }

    /// The reason for which the operation cannot end here, if a member has been lost: a source, the member
    /// that combines, one that has not arrived, or the leader that exchanges. A turn that is released ends
    /// well all the same.
    fn needs_lost(&self, host: &Host, board: &HostBoard) -> Option<LinkError> {
        if !host.any_lost() {
            return None;
        }
        let source = host.place_here(self.request.root);
        host.lost().enumerate().find_map(|(place, lost)| {
            let needed = match self.has_source() {
                true => source == Some(place),
                false => !board.has_entered(self.turn, place) || board.has_claimed(self.turn, place),
            };
            (needed || (host.spans_hosts() && place == 0)).then_some(lost).flatten()
        })
    }

    /// [`BoardRun::needs_lost`] for a member that has not entered. A bank that a lost member occupies never
    /// becomes free.
    fn entry_needs_lost(&self, host: &Host, board: &HostBoard) -> Option<LinkError> {
        if !host.any_lost() || self.is_ready(host, board) {
            return None;
        }
        if board.is_free(self.turn) {
            return self.needs_lost(host, board);
        }
        let mut lost = host.lost().enumerate();
        lost.find_map(|(place, lost)| lost.filter(|_| !board.has_entered(self.turn, place)))
    }

    /// Whether the leader has the parts of its host.
    fn may_exchange(&self, host: &Host, board: &HostBoard) -> bool {
        host.spans_hosts()
            && host.places.is_leader()
            && match self.request.operation {
                Operation::Broadcast => {
                    host.place_here(self.request.root).is_none_or(|root| board.has_entered(self.turn, root))
                }
                _ => board.is_full(self.turn),
            }
    }
}

impl Host {
    /// The ranks of the members on this host that have a part in an operation and have not entered it.
    pub(super) fn missing(&self, run: &BoardRun) -> impl Iterator<Item = u32> {
        let source = run.has_source().then(|| self.place_here(run.request.root));
        let ranks = self.places.ranks_here().iter().copied().enumerate();
        let here = self.shared.as_deref();
        ranks.filter_map(move |(place, rank)| {
            let has_part = source.is_none_or(|source| source == Some(place));
            (has_part && here.is_some_and(|board| !board.has_entered(run.turn, place))).then_some(rank)
        })
    }
}

impl Group {
    /// Whether an operation is performed on boards.
    pub(super) fn fits_board(&self, request: &Request) -> bool {
        let Some(host) = self.host.as_deref().filter(|host| host.shared.is_some()) else { return false };
        let block = request.block();
        let places = &host.places;
        if !host.spans_hosts() {
            return bytes_on_board(request) <= SLOT_BYTES;
        }
        let exchange = block.saturating_mul(places.hosts.len() * places.most());
        match request.operation {
            Operation::Barrier => true,
            Operation::Broadcast => block <= SLOT_BYTES,
            Operation::AllReduce => block <= SLOT_BYTES && exchange <= EXCHANGE_BYTES,
            _ => false,
        }
    }

    /// An operation at its start.
    pub(super) fn start_on_board(&mut self, op: &CollectiveOp, request: &Request, in_call: bool) -> BoardRun {
        let mut turn = 0;
        if let Some(host) = self.host.as_deref_mut() {
            turn = host.next_turn;
            host.next_turn += 1;
            if host.spans_hosts() {
                self.next_sequence += 1;
            }
        } else {
            cannot_happen!("a group that fits a board has one");
        }
        self.runs += 1;
        BoardRun {
            group: op.group,
            turn,
            sequence: self.next_sequence - 1,
            request: *request,
            elements: op.elements,
            input: op.input,
            result: op.result,
            ctx: op.ctx,
            flags: op.flags,
            step: Step::Enter,
            fault: None,
            in_call,
            parts: Owned::new(Vec::new()),
        }
    }

    /// The rank of a host's leader.
    pub(super) fn leader_of(&self, host: u32) -> u32 {
        let Some(here) = self.host.as_deref() else {
            cannot_happen!("hosts have leaders in a group that has hosts");
            return 0;
        };
        here.places.hosts[host as usize][0]
    }
}

impl<N: Nic> Engine<N> {
    /// Advances the joins that share boards, and the operations on boards, as far as possible. Returns the number of
    /// operations that have ended.
    #[inline(never)]
    pub(crate) fn run_boards(&mut self) -> usize {
        let before = self.state.completions.len();
        if !self.state.collectives().linking.is_empty() {
            self.link_boards();
        }
        loop {
            let mut runs = std::mem::take(&mut self.state.collectives().on_boards);
            runs.retain_mut(|run| !self.advance_on_board(run));
            self.state.collectives().on_boards = runs;
            self.run_collectives();
            let has_exchanged = |run: &BoardRun| matches!(run.step, Step::Exchanged);
            if !self.state.collectives().on_boards.iter().any(has_exchanged) {
                break;
            }
        }
        let collectives = self.state.collectives();
        let more =
            !collectives.linking.is_empty() || !collectives.on_boards.is_empty() || !collectives.chained.is_empty();
        self.state.links.set_polls_boards(more);
        self.state.completions.len() - before
    }

    /// Whether an operation on a board or chain can continue. A caller that is about to sleep checks this after it has
    /// announced its sleep: members that change the board later wake it.
    pub fn boards_ready(&self) -> bool {
        let Some(collectives) = self.state.collectives.as_deref() else { return false };
        if collectives.has_ended_chain(|id| self.nic.has_ended_chain(id)) {
            return true;
        }
        collectives.on_boards.iter().any(|run| {
            let host = collectives.groups[run.group].host.as_deref();
            let Some((host, board)) = host.and_then(|host| Some((host, host.shared.as_deref()?))) else {
                cannot_happen!("the group of an operation on a board has a board");
                return true;
            };
            let failed = host.failed.is_some();
            match run.step {
                Step::Enter if failed || run.entry_needs_lost(host, board).is_some() => true,
                Step::Enter => host.next_entry == run.turn && board.is_free(run.turn),
                Step::Wait if failed || run.needs_lost(host, board).is_some() => true,
                Step::Wait => run.is_ready(host, board) || run.may_exchange(host, board),
                Step::Exchange => false,
                Step::Exchanged => true,
            }
        })
    }

    /// Advances one operation. Returns whether it has ended.
    fn advance_on_board(&mut self, run: &mut BoardRun) -> bool {
        let State { collectives, peers, completions, .. } = &mut self.state;
        let collectives = collectives.get_or_insert_default();
        let group = &mut collectives.groups[run.group];
        let mut host = group.host.as_deref_mut();
        let outcome = match host.as_mut().and_then(|host| Some((host.shared.take()?, host))) {
            Some((mut board, host)) => {
                if matches!(run.step, Step::Enter) && !board.prepare(run.room()) {
                    host.failed = host.failed.or(Some(Fault::NoMemory));
                }
                let mut advance = Advance { run, host, board: &board, changed: false };
                let outcome = advance.advance();
                if advance.changed {
                    let others = host.peers();
                    others.filter_map(|peer_id| peers[peer_id].link()).for_each(|link| self.nic.wake_peer(link));
                }
                host.shared = Some(board);
                outcome
            }
            None => {
                cannot_happen!("the group of an operation on a board has a board");
                run.fault = Some(Fault::Internal);
                Outcome::Ended
            }
        };
        match outcome {
            Outcome::Waits => false,
            Outcome::Exchanges => {
                collectives.start_exchange(run);
                self.state.check_losses(run.group);
                false
            }
            Outcome::Ended => {
                group.runs -= 1;
                if run.fault.is_some() || !(run.in_call || run.flags.contains(OpFlags::QUIET)) {
                    let completion = Completion::new(Kind::Collective, run.ctx, run.flags.into());
                    let data = run.fault.map_or(0, |_| group.first_lost());
                    completions.push(Completion { fault: run.fault, data, ..completion });
                }
                let is_sound = |why: &Fault| !group.spans_hosts && shapes::is_mismatch(why);
                if let Some(why) = run.fault.filter(|why| !is_sound(why)) {
                    self.state.fail_group(run.group, why);
                }
                true
            }
        }
    }
}

impl State {
    /// A peer has passed a board to the group that has this number here.
    #[cold]
    pub(crate) fn board_passed(&mut self, link: LinkId, number: u64, board: Option<Board>) -> Result<(), Violation> {
        let Some((state, Some(peer_id))) = self.links.lookup(link) else { return Ok(()) };
        if state == LinkState::Free {
            return Ok(());
        }
        // The group may have been left, or use no boards.
        let Some(id) = self.collectives.as_deref().and_then(|collectives| collectives.numbered(number)) else {
            return Ok(());
        };
        match self.standing(id, peer_id) {
            Standing::Member(rank) => self.host_of(id).map_or(Ok(()), |host| host.receive(rank, board)),
            Standing::Outsider => Err(Violation),
            Standing::Unclear => Ok(()),
        }
    }
}

impl Collectives {
    /// Starts the exchange between the leaders of the hosts.
    fn start_exchange(&mut self, run: &mut BoardRun) {
        let group = &mut self.groups[run.group];
        let prepared = group.exchange_request(run).and_then(|request| Some((request, group.run_of(&request).ok()?)));
        let Some((request, (inner, scratch))) = prepared else {
            run.step = Step::Exchanged;
            run.fault = run.fault.or(Some(Fault::Refused(Error::TooLong)));
            return;
        };
        run.step = Step::Exchange;
        let result =
            request.count * if request.operation == Operation::AllGather { request.members as usize } else { 1 };
        let parts = run.parts.iov();
        self.start(ActiveRun {
            group: run.group,
            purpose: Purpose::Exchange { turn: run.turn, sequence: run.sequence },
            request: Some(request),
            elements: Elements::Bytes(1),
            run: inner,
            scratch,
            input: parts.slice(result, parts.len() - result),
            result: parts.slice(0, result),
            ctx: run.ctx,
            flags: OpFlags::empty(),
            fault: run.fault,
            ready: false,
        });
    }

    /// The exchange of an operation has ended.
    pub(super) fn exchanged(&mut self, group: GroupId, turn: u64, fault: Option<Fault>) {
        let run = self.on_boards.iter_mut().find(|run| run.group == group && run.turn == turn);
        let Some(run) = run else { return cannot_happen!("an exchange belongs to an operation on a board") };
        run.step = Step::Exchanged;
        run.fault = run.fault.or(fault);
    }
}

impl Group {
    /// The exchange between the leaders for an operation.
    fn exchange_request(&self, run: &BoardRun) -> Option<Request> {
        let places = &self.host.as_deref()?.places;
        let block = run.request.block();
        let (operation, count, root) = match run.request.operation {
            Operation::Barrier => (Operation::Barrier, 0, 0),
            Operation::Broadcast => (Operation::Broadcast, block, places.place_of(run.request.root)?.0),
            _ => (Operation::AllGather, places.most() * block, 0),
        };
        Some(Request {
            operation,
            rank: ids::number(places.host()),
            members: ids::number(places.hosts.len()),
            root: ids::number(root),
            count,
            element: 1,
            overlap: Overlap::None,
        })
    }
}

/// The result of an attempt to advance.
enum Outcome {
    Waits,
    /// The leaders must exchange their hosts' parts.
    Exchanges,
    Ended,
}

/// One operation, with its host and board.
struct Advance<'a> {
    run: &'a mut BoardRun,
    host: &'a mut Host,
    board: &'a HostBoard,
    /// Others may be able to continue.
    changed: bool,
}

impl Advance<'_> {
    fn advance(&mut self) -> Outcome {
        match self.run.step {
            Step::Enter => self.enter(),
            Step::Wait => self.wait(),
            Step::Exchange => Outcome::Waits,
            Step::Exchanged => self.exchanged(),
        }
    }

    fn enter(&mut self) -> Outcome {
        let turn = self.run.turn;
        if let Some(fault) = self.broken(self.run.entry_needs_lost(self.host, self.board)) {
            self.run.fault = Some(fault);
            return Outcome::Ended;
        }
        let is_free = planted!(Bug::BankOvertaken, self.board.is_free(turn), true);
        if self.host.next_entry != turn || !is_free {
            return Outcome::Waits;
        }
        self.host.next_entry += 1;
        self.run.step = Step::Wait;
        let shape = self.run.shape();
        if self.board.is_direct() {
            self.board.enter(self.run.room(), turn, self.host.places.place, shape, &self.run.contribution());
            return self.wait();
        }
        let arrival = self.board.arrive(self.run.room(), turn, self.host.places.place, shape, &self.run.contribution());
        let is_last = arrival != Arrival::Early;
        let is_source = self.run.has_source() && self.run.is_root();
        self.changed |= is_last || is_source;
        if !self.host.spans_hosts() {
            if is_source {
                self.board.release(turn, Some(shape));
            } else if arrival == (Arrival::Last { alike: false }) {
                self.release_without_result();
            } else if planted!(Bug::BoardReleasedEarly, is_last, true) && !self.run.has_source() {
                self.combine();
            }
        }
        self.wait()
    }

    fn wait(&mut self) -> Outcome {
        let turn = self.run.turn;
        let exchanges = self.host.spans_hosts() && self.host.places.is_leader();
        if self.run.is_ready(self.host, self.board) || !(self.run.takes_result() || exchanges) {
            return self.leave();
        }
        if self.run.may_exchange(self.host, self.board) {
            if self.run.differs(self.host, self.board) {
                // No member of this host gets a result, so that the group fails.
                self.run.fault = Some(self.run.mismatch(self.host, self.board));
                return Outcome::Ended;
            }
            self.prepare_parts();
            return Outcome::Exchanges;
        }
        let combines = !self.host.spans_hosts() && !self.run.has_source() && !self.board.is_direct();
        if self.host.any_lost() && combines && self.board.is_full(turn) {
            // The member that arrived last may be the one that is lost.
            if self.run.differs(self.host, self.board) {
                self.release_without_result();
            } else {
                self.combine();
            }
        }
        match self.broken(self.run.needs_lost(self.host, self.board)) {
            // The member may have released the turn before it was lost.
            Some(_) | None if self.run.is_ready(self.host, self.board) => self.leave(),
            Some(fault) => {
                self.run.fault = Some(fault);
                Outcome::Ended
            }
            None => Outcome::Waits,
        }
    }

    /// The reason for which the operation cannot end here, after the loss of a member that it needs or of none.
    fn broken(&self, lost: Option<LinkError>) -> Option<Fault> {
        self.host.failed.or(lost.map(Fault::Link))
    }

    /// Combines the contributions of this host and releases the turn, unless another member does.
    fn combine(&mut self) {
        let turn = self.run.turn;
        if !self.board.claim(turn, self.host.places.place) {
            return;
        }
        if let Some(reduction) = self.run.reduction() {
            let room = self.run.room();
            let len = self.run.contribution().len();
            fold(reduction, self.host.places.count(), |place| self.board.slot(room, turn, place).slice(0, len));
        }
        self.board.release(turn, Some(self.run.shape()));
        self.changed = true;
    }

    /// Collects the parts of this host for the exchange.
    fn prepare_parts(&mut self) {
        let (turn, block, room) = (self.run.turn, self.run.request.block(), self.run.room());
        let places = &self.host.places;
        match self.run.request.operation {
            Operation::Barrier => {}
            Operation::Broadcast => {
                self.run.parts = Owned::new(vec![0; block]);
                if let Some(root) = self.host.place_here(self.run.request.root) {
                    self.run.parts.iov().copy_from(&self.board.slot(room, turn, root));
                }
            }
            _ => {
                let (hosts, most) = (places.hosts.len(), places.most());
                self.run.parts = Owned::new(vec![0; (hosts + 1) * most * block]);
                let own = self.run.parts.iov().slice(hosts * most * block, most * block);
                for place in 0..places.count() {
                    own.slice(place * block, block).copy_from(&self.board.slot(room, turn, place));
                }
            }
        }
    }

    /// The leaders have exchanged their parts.
    fn exchanged(&mut self) -> Outcome {
        let turn = self.run.turn;
        self.changed = true;
        if self.run.fault.is_some() {
            return Outcome::Ended;
        }
        let (parts, block, room) = (self.run.parts.iov(), self.run.request.block(), self.run.room());
        let places = &self.host.places;
        if let Some(reduction) = self.run.reduction() {
            let part = |rank: usize| {
                let (host, place) = places.place_of(ids::number(rank)).unwrap_or((0, 0));
                parts.slice((host * places.most() + place) * block, block)
            };
            fold(reduction, self.run.request.members as usize, part);
            self.board.result(room, turn).copy_from(&part(0));
        } else {
            self.board.result(room, turn).copy_from(&parts);
        }
        self.board.release(turn, Some(self.run.shape()));
        self.leave()
    }

    /// Takes the result and leaves the turn.
    fn leave(&mut self) -> Outcome {
        if self.run.takes_result() {
            if self.run.has_result(self.host, self.board) {
                self.run.take_result(self.host, self.board);
            } else {
                self.run.fault = Some(self.run.mismatch(self.host, self.board));
            }
        }
        if self.board.is_direct() {
            self.board.finish(self.run.turn, self.host.places.place);
            // Others may wait for this member's arrival, or for the bank.
            self.changed = true;
        } else {
            self.changed |= self.board.depart(self.run.turn);
        }
        Outcome::Ended
    }
}

/// Bytes of the longest contribution or result that an operation has on a board of one host.
const fn bytes_on_board(request: &Request) -> usize {
    match request.operation {
        Operation::Barrier => 0,
        Operation::Scatter | Operation::AllToAll | Operation::ReduceScatter => request.blocks(),
        _ => request.block(),
    }
}

/// Folds the values of all ranks into that of rank 0, along the declared tree.
fn fold(reduction: Reduction, ranks: usize, value: impl Fn(usize) -> Iov) {
    for (low, high) in tree::pairs(ids::number(ranks)) {
        let order = planted!(Bug::OperandsSwapped, Order::IntoFirst, Order::FromFirst);
        reduction.combine(&value(high as usize), &value(low as usize), order);
    }
}
