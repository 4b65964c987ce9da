//! Barriers built from deferred work alone.
//!
//! A barrier of n ranks has ⌈log₂ n⌉ rounds. In round k the member at place i signals the member at place i +
//! 2^k and waits for a signal of the member at place i − 2^k. A signal is a message under a tag of its own,
//! or a write that the target's region reports. Each member posts its part as programs, before or when it
//! enters, and enters by raising one counter; the programs do everything else. Round k's counter gets one
//! from the signal and one when round k−1 is over, so an early signal releases nothing. Errors poison the
//! later steps: a member that has lost a signal never leaves.
//!
//! A barrier may be an allreduce. Each member contributes a number, and signals carry numbers, as immediate
//! data of messages, up a binomial tree and down again. The parent of member p is p without its lowest set
//! bit. A member adds its children's numbers to its own, the nearest child first. The engine moves and
//! orders, the client adds; the sum equals that of this tree bit for bit.

use weft_engine::api::{Access, Error, OpFlags};
use weft_engine::program::Errors;

use super::program::{Job, Task};
use super::{Harness, Recv, Rma, Send};
use crate::oracle::program::Change;
use crate::oracle::{Op, Record};

/// This bit marks the tags of barriers; no other tag has it.
const BARRIER_TAG: u64 = 1 << 63;
/// Bits to ignore so that a receive matches every tag that is not a barrier's.
pub const ANY_TAG: u64 = !BARRIER_TAG;
/// The bits of a barrier's tags that identify the round.
const ROUND_BITS: u64 = 0xFF;
/// Barriers that may be open and incomplete at a time. Messages may stand before the signals, so the receives
/// of barriers must not take all the room for receives. With few operations in flight only one barrier may be
/// open: another barrier's signals could take all the room while this one's receives wait.
const MAX_OPEN: usize = 3;
const ROOM_OPS: usize = 64;

/// How ranks signal each other in a barrier.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// Signal by writes instead of messages.
    pub write: bool,
    /// Signal along a tree, with numbers whose sum every member learns; by messages only.
    pub sum: bool,
    /// Length of a signal.
    pub len: usize,
    /// Flags of a signal.
    pub flags: OpFlags,
}

/// The state of a member of a barrier.
#[derive(Clone, Debug, Default)]
struct Member {
    rank: usize,
    /// Counters: entry, signals sent, rounds.
    enter: usize,
    sent: usize,
    rounds: Vec<usize>,
    /// Windows that receive signals by writes, by round.
    windows: Vec<usize>,
    /// The member's part of the sum in an allreduce.
    value: f64,
    posted: bool,
    entered: bool,
    abandoned: bool,
}

/// A barrier.
#[derive(Debug)]
pub(super) struct Barrier {
    signals: Signals,
    member_state: Vec<Member>,
    opened_ns: u64,
}

/// The tag of the first round of a barrier.
const fn first_tag(n: usize) -> u64 {
    BARRIER_TAG | (n as u64) << 8
}

/// This bit marks the tags of signals down the tree.
const DOWN: u64 = 0x80;

/// The children of a member in a tree of `members`, the nearest first.
pub(crate) fn children(place: usize, members: usize) -> impl Iterator<Item = usize> {
    let bits = if place == 0 { usize::BITS } else { place.trailing_zeros() };
    (0..bits).map_while(move |bit| place.checked_add(1 << bit).filter(|child| *child < members))
}

/// The parent of a member other than the root.
const fn parent(place: usize) -> usize {
    place & (place - 1)
}

impl Barrier {
    fn place(&self, rank: usize) -> Option<usize> {
        self.member_state.iter().position(|seat| seat.rank == rank)
    }
}

/// The rounds of a barrier of `members`, which is also the number of children of a tree's root.
const fn rounds(members: usize) -> usize {
    members.next_power_of_two().trailing_zeros() as usize
}

/// Number of receives that a member may have posted at a time.
const fn receives(signals: &Signals, members: usize) -> usize {
    if signals.sum { rounds(members) } else { 1 }
}

impl Harness {
    /// Opens a barrier of all live ranks, with the counters and windows that it needs. `None` if enough are
    /// open.
    pub fn open_barrier(&mut self, signals: Signals) -> Option<usize> {
        let config = self.cluster.engine_config();
        let most = if config.tx_depth < ROOM_OPS { 1 } else { MAX_OPEN };
        let members = self.cluster.live_ranks().into_iter().filter(|rank| self.has_programs(*rank)).collect::<Vec<_>>();
        let open = (0..self.barriers.len()).filter(|n| self.barrier_stands(*n) && self.holds(*n));
        let open = open.map(|n| &self.barriers[n]).collect::<Vec<_>>();
        let posted = open.iter().map(|barrier| receives(&barrier.signals, barrier.member_state.len())).sum::<usize>();
        if open.len() >= most || posted + receives(&signals, members.len()) >= config.rx_depth {
            return None;
        }
        // An allreduce has two: one for numbers from the children, one for the sum.
        let rounds = if signals.sum { 2 } else { rounds(members.len()) };
        let numbers = self.oracle.operands(members.len());
        let member_state = members.iter().zip(&numbers).map(|(&rank, &value)| {
            let (enter, sent) = (self.new_counter(rank), self.new_counter(rank));
            let mut seat = Member { rank, enter, sent, value, ..Member::default() };
            for _ in 0..rounds {
                let counter = self.new_counter(rank);
                seat.rounds.push(counter);
                if signals.write && !signals.sum {
                    let access = Access { read: false, write: true };
                    // This cannot fail: the key is new.
                    let Ok(window) = self.add_window(rank, signals.len, access, true) else { continue };
                    self.count_window_at(rank, window, counter);
                    seat.windows.push(window);
                }
            }
            seat
        });
        let member_state = member_state.collect();
        self.barriers.push(Barrier { signals, member_state, opened_ns: self.oracle.now_ns });
        Some(self.oracle.gate(members, signals.sum.then_some(numbers)))
    }

    /// A barrier of the rank that it has not entered.
    #[must_use]
    pub fn barrier_ahead(&self, rank: usize) -> Option<usize> {
        self.barriers.iter().position(|barrier| {
            barrier
                .place(rank)
                .is_some_and(|place| !barrier.member_state[place].entered && !barrier.member_state[place].abandoned)
        })
    }

    /// A barrier that the rank has not left and that can fail because a member died or a link broke.
    #[must_use]
    pub fn barrier_broken(&self, rank: usize) -> Option<usize> {
        (0..self.barriers.len()).find(|n| {
            let place = self.barriers[*n].place(rank);
            let mine = place.is_some_and(|place| !self.barriers[*n].member_state[place].abandoned);
            mine && !self.barrier_stands(*n) && self.oracle.gate_holds(*n).contains(&rank)
        })
    }

    /// Whether no event has happened that may make the barrier fail.
    fn barrier_stands(&self, n: usize) -> bool {
        let Barrier { member_state, opened_ns, .. } = &self.barriers[n];
        let alive = member_state.iter().all(|seat| self.cluster.is_alive(seat.rank) && !seat.abandoned);
        let breaks = |a: &Member| member_state.iter().any(|b| self.oracle.disturbed_since(a.rank, b.rank, *opened_ns));
        alive && !member_state.iter().any(breaks)
    }

    fn holds(&self, n: usize) -> bool {
        !self.oracle.gate_holds(n).is_empty()
    }

    /// Posts a member's part, as pieces of deferred work or, with `whole`, as one program.
    pub fn post_barrier(&mut self, n: usize, rank: usize, whole: bool) -> Result<(), Error> {
        let Some(place) = self.barriers[n].place(rank) else { return Err(Error::Invalid) };
        let seat = &self.barriers[n].member_state[place];
        if seat.posted || seat.abandoned {
            return Ok(());
        }
        let programs = self.part(n, place, whole);
        if self.oracle.tasks_left(rank) < programs.iter().map(Vec::len).sum() {
            return Err(Error::Again);
        }
        self.barriers[n].member_state[place].posted = true;
        programs.into_iter().try_for_each(|tasks| self.submit(rank, tasks, Some(n)))
    }

    /// The programs of the member at `place`.
    fn part(&self, n: usize, place: usize, whole: bool) -> Vec<Vec<Task>> {
        let Barrier { signals, member_state, .. } = &self.barriers[n];
        if signals.sum {
            return vec![self.sum_part(n, place)];
        }
        let Member { enter, sent, rounds, .. } = &member_state[place];
        let tag = |round: usize| Some(first_tag(n) | round as u64);
        let wait = |counter: &usize, threshold| Task::Wait(*counter, threshold, Errors::Poison);
        let signal = |round: usize| {
            let to = &member_state[(place + (1 << round)) % member_state.len()];
            let job = if signals.write {
                let rma = Rma { remote: vec![signals.len], flags: signals.flags, ..Rma::default() };
                Job::Write(to.windows[round], rma)
            } else {
                let send = Send { tag: tag(round), len: signals.len, flags: signals.flags, ..Send::default() };
                Job::Send(to.rank, send)
            };
            Task::Do(job, Some(*sent))
        };
        let receive = |round: usize| {
            let from =
                &member_state[(place + member_state.len() - (1 << round) % member_state.len()) % member_state.len()];
            let tag = tag(round).map(|tag| (tag, 0));
            let recv = Recv { src: Some(from.rank), tag, len: signals.len, ..Recv::default() };
            (!signals.write).then(|| Task::Do(Job::Recv(recv), Some(rounds[round])))
        };
        let leave = Task::Do(Job::Leave(n), None);
        let all_sent = wait(sent, rounds.len() as u64);
        if whole {
            let mut tasks = if rounds.is_empty() { None } else { receive(0) }.into_iter().collect::<Vec<_>>();
            tasks.push(wait(enter, 1));
            for (round, counter) in rounds.iter().enumerate() {
                tasks.extend([signal(round), wait(counter, 1)]);
                tasks.extend(if round + 1 < rounds.len() { receive(round + 1) } else { None });
            }
            tasks.extend([all_sent, leave]);
            return vec![tasks];
        }
        let mut programs = Vec::new();
        let mut before = wait(enter, 1);
        for (round, counter) in rounds.iter().enumerate() {
            let step = Task::Do(Job::Change(*counter, Change::Add(1)), None);
            programs.push(vec![before.clone(), step]);
            programs.push(vec![before.clone(), signal(round)]);
            // The first receive waits for nothing.
            programs.extend(receive(round).map(|task| if round == 0 { vec![task] } else { vec![before, task] }));
            before = wait(counter, 2);
        }
        // A failed signal ends this program at once.
        programs.push(vec![all_sent, before, leave]);
        programs
    }

    /// The program of the member at `place` of an allreduce.
    fn sum_part(&self, n: usize, place: usize) -> Vec<Task> {
        let Barrier { signals, member_state, .. } = &self.barriers[n];
        let Member { enter, sent, rounds, .. } = &member_state[place];
        let wait = |counter: usize, threshold: usize| Task::Wait(counter, threshold as u64, Errors::Poison);
        let receive = |from: usize, tag: u64, counter| {
            let tag = Some((first_tag(n) | tag, 0));
            let recv = Recv { src: Some(member_state[from].rank), tag, len: signals.len, ..Recv::default() };
            Task::Do(Job::Recv(recv), Some(counter))
        };
        let pass =
            |to: usize, tag: u64| Task::Do(Job::SendPartial(n, member_state[to].rank, first_tag(n) | tag), Some(*sent));
        let children = children(place, member_state.len()).collect::<Vec<_>>();
        let mut tasks = children.iter().map(|child| receive(*child, *child as u64, rounds[0])).collect::<Vec<_>>();
        tasks.extend([wait(*enter, 1), wait(rounds[0], children.len())]);
        tasks.extend(
            children.iter().map(|child| Task::Do(Job::ReceivePartial(n, first_tag(n) | *child as u64, true), None)),
        );
        let mut sends = children.len();
        if place > 0 {
            let down = DOWN | place as u64;
            tasks.extend([receive(parent(place), down, rounds[1]), pass(parent(place), place as u64)]);
            tasks.extend([wait(rounds[1], 1), Task::Do(Job::ReceivePartial(n, first_tag(n) | down, false), None)]);
            sends += 1;
        }
        tasks.extend(children.iter().map(|child| pass(*child, DOWN | *child as u64)));
        tasks.extend([wait(*sent, sends), Task::Do(Job::Leave(n), None)]);
        tasks
    }

    /// Sends a member's partial sum.
    pub(super) fn send_partial(&mut self, n: usize, rank: usize, to: usize, tag: u64) -> Result<Op, Error> {
        let Some(place) = self.barriers[n].place(rank) else { return Err(Error::Invalid) };
        let Barrier { signals, member_state, .. } = &self.barriers[n];
        let (data, len, flags) = (Some(member_state[place].value.to_bits()), signals.len, signals.flags);
        self.send(rank, to, &Send { tag: Some(tag), data, len, flags, ..Send::default() })
    }

    /// Takes the number that a member received under this tag: adds it to the member's number, or replaces
    /// that.
    pub(super) fn receive_partial(&mut self, n: usize, rank: usize, tag: u64, adds: bool) -> Result<(), Error> {
        let data = self.oracle.received_under(rank, tag);
        let (Some(data), Some(place)) = (data, self.barriers[n].place(rank)) else { return Err(Error::Invalid) };
        let value = &mut self.barriers[n].member_state[place].value;
        *value = if adds { *value + f64::from_bits(data) } else { f64::from_bits(data) };
        Ok(())
    }

    /// Raises the counter by which a member enters a barrier; its part must be posted.
    pub fn enter_barrier(&mut self, n: usize, rank: usize) {
        let Some(place) = self.barriers[n].place(rank) else { return };
        let seat = &mut self.barriers[n].member_state[place];
        if seat.posted && !seat.entered && !seat.abandoned {
            seat.entered = true;
            let enter = seat.enter;
            self.oracle.gate_entered(n, rank);
            self.change(rank, enter, Change::Add(1));
        }
    }

    pub(super) fn leave_barrier(&mut self, n: usize, rank: usize) {
        self.program_stats.left += 1;
        self.oracle.gate_left(n, rank);
        let place = self.barriers[n].place(rank);
        if let Some(seat) = place.map(|place| &self.barriers[n].member_state[place]) {
            self.oracle.summed(n, rank, seat.value);
        }
    }

    /// Cancels a member's part of a barrier, with every operation that waits for it.
    pub fn abandon_barrier(&mut self, n: usize, rank: usize) {
        let Some(place) = self.barriers[n].place(rank) else { return };
        self.barriers[n].member_state[place].abandoned = true;
        self.cancel_programs(rank, |origin| origin.barrier == Some(n));
        let of_barrier = |tag: u64| tag & !ROUND_BITS == first_tag(n);
        for op in self.oracle.posted(rank) {
            if self.tag_of(op).is_some_and(of_barrier) {
                self.cancel(op);
            }
        }
    }

    /// The tag under which a receive waits for a signal.
    fn tag_of(&self, op: Op) -> Option<u64> {
        match self.oracle.record(op) {
            Record::Recv(recv) => recv.want.tag.filter(|(_, ignore)| *ignore == 0).map(|(tag, _)| tag),
            _ => None,
        }
    }

    /// Posted receives of a rank that belong to no barrier.
    #[must_use]
    pub fn own_receives(&self, rank: usize) -> Vec<Op> {
        let mut posted = self.oracle.posted(rank);
        posted.retain(|op| self.tag_of(*op).is_none_or(|tag| tag & BARRIER_TAG == 0));
        posted
    }

    /// Ends all programs, with all faults off. Broken barriers are cancelled; the remaining ones are entered
    /// by every member that has not. Some other programs are cancelled; for the rest, counters are raised to
    /// the awaited thresholds.
    pub(super) fn finish_programs(&mut self) -> Result<(), String> {
        for rank in self.cluster.live_ranks() {
            while let Some(n) = self.barrier_broken(rank) {
                self.abandon_barrier(n, rank);
            }
        }
        for round in 0..100 {
            let live_ranks = self.cluster.live_ranks();
            for rank in &live_ranks {
                while let Some(n) = self.barrier_ahead(*rank) {
                    if self.post_barrier(n, *rank, round % 2 == 0).is_err() {
                        break;
                    }
                    self.enter_barrier(n, *rank);
                }
                if round == 0 && rank % 3 == 2 {
                    self.cancel_programs(*rank, |origin| origin.barrier.is_none());
                }
                for (counter, amount) in self.oracle.missing(*rank) {
                    self.change(*rank, counter, Change::Add(amount));
                }
            }
            self.drive()?;
            // Signals of cancelled barriers must not stand in the way.
            let mut tags = vec![None, Some((0, ANY_TAG))];
            let lost = (0..self.barriers.len()).filter(|n| !self.barrier_stands(*n));
            tags.extend(lost.map(|n| Some((first_tag(n), ROUND_BITS))));
            self.receive_everything(&tags)?;
            self.drive()?;
            let over = |rank: &usize| self.programs_over(*rank) && self.barrier_ahead(*rank).is_none();
            if live_ranks.iter().all(over) {
                break;
            }
            for rank in live_ranks {
                if self.programs_stalled(rank) {
                    // The queue may be full of receives that match nothing.
                    for op in self.own_receives(rank) {
                        self.cancel(op);
                    }
                }
            }
        }
        let mut left = self.cluster.live_ranks().into_iter().flat_map(|rank| self.oracle.unfinished_programs(rank));
        if let Some(first) = left.next() {
            return Err(first);
        }
        drop(left);
        let held = (0..self.barriers.len()).find(|n| self.barrier_stands(*n) && self.holds(*n));
        held.map_or(Ok(()), |n| {
            let missing = self.oracle.gate_holds(n);
            Err(format!("barrier {n} never released ranks {missing:?}: {:?}", self.barriers[n]))
        })
    }
}
