//! Collectives of a team by the engine.
//!
//! Place in the data flow: `team` passes what its shared memory does not perform to its [`Group`], which is a group of
//! the engine ([`weft_engine::collective`]). Members on a host use a board of the engine there, and the hosts exchange
//! what their leaders have. A collective moves on whenever the engine is polled, and its completion ends its event.
//!
//! The group is joined by the first collective that needs it. All members know it by the id of their team, so the
//! collective starts at once and waits in the engine for the others.

use std::sync::Arc;

use parking_lot::Mutex;
use weft_engine::api::{Addr, Context, Error, OpFlags};
use weft_engine::collective::{
    Extent, Operation, Overlap, Prefix, Refusal, Request, Schedule, compile_ordered, compile_scan, compile_uneven,
};
use weft_engine::mem::Iov;
use weft_engine::{CollectiveOp, Elements, GroupId};

use crate::coll::{Collective, Move, To};
use crate::combine::Combine;
use crate::event::Slot;
use crate::job::Job;
use crate::meet::RankEngine;
use crate::memory::{self, Piece, iov_at};
use crate::wait::Pause;

/// The group of a team.
pub(crate) struct Group {
    /// The id of the team, which is the same in all members.
    team: u64,
    joined: Mutex<Option<GroupId>>,
}

/// This member's place in its team.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    /// Its number.
    pub(crate) rank: u32,
    /// The number of members.
    pub(crate) members: u32,
}

/// The context of a collective, from which its completion finds the event.
fn context(event: &Slot) -> Context {
    Context { ptr: std::ptr::from_ref(event).expose_provenance(), user: 0 }
}

impl Job {
    /// Whether the collective with this event may still read its source. `None`: no collective under way has it.
    #[must_use]
    pub fn reads_source(&self, event: &Slot) -> Option<bool> {
        let by_engine = self.try_with_engine(|engine| engine.reads_source(context(event)));
        match by_engine {
            // Another thread is inside, or there is no engine.
            None => self.reads_source_in_areas(event).or_else(|| (self.ranks() > 1).then_some(true)),
            Some(None) => self.reads_source_in_areas(event),
            Some(reads) => reads,
        }
    }
}

/// A collective in the engine's terms.
struct Call {
    operation: Operation,
    root: u32,
    count: usize,
    elements: Elements,
    /// The schedule, if the engine does not have the operation.
    schedule: Option<Arc<Schedule>>,
}

impl Call {
    fn known(operation: Operation, elements: Elements) -> Self {
        Self { operation, root: 0, count: 0, elements, schedule: None }
    }

    fn planned(schedule: Result<Schedule, Refusal>, elements: Elements) -> Self {
        match schedule {
            Ok(schedule) => Self { schedule: Some(Arc::new(schedule)), ..Self::known(Operation::Barrier, elements) },
            Err(error) => {
                crate::fatal!("a collective cannot be performed: {error}; pass shorter blocks to all members")
            }
        }
    }
}

impl Group {
    /// The group of a team with an id.
    pub(crate) fn new(team: u64) -> Self {
        Self { team, joined: Mutex::new(None) }
    }

    /// Starts a collective. Returns its event. `addresses`: the members.
    pub(crate) fn start(
        &self,
        job: &Job,
        seat: Seat,
        addresses: impl Iterator<Item = Addr> + Clone,
        collective: &Collective,
    ) -> Option<&'static Slot> {
        let (call, input, result) = translate(seat, collective);
        if seat.members == 1 {
            perform_alone(collective, &input, &result);
            return None;
        }
        let slot = Slot::take();
        let ctx = context(slot);
        let flags = OpFlags::empty();
        let mut pause = Pause::new();
        loop {
            let started = job.with_engine(|engine| {
                let group = self.join(engine, addresses.clone())?;
                let Call { operation, root, count, elements, .. } = call;
                let op = CollectiveOp { group, operation, root, count, elements, input, result, ctx, flags };
                match &call.schedule {
                    None => engine.start_collective(&op),
                    Some(schedule) => engine.start_schedule(&op, schedule),
                }
            });
            match started {
                Some(Ok(())) => {
                    let is_over = slot.is_complete() && !slot.has_failed();
                    return if is_over && slot.test() { None } else { Some(slot) };
                }
                Some(Err(Error::Again)) => pause.step(job),
                // The group has failed before all members had joined.
                Some(Err(Error::NotConnected)) if job.failures().are_tolerated() => {
                    slot.fail();
                    return Some(slot);
                }
                None => crate::fatal!("a handler has started a collective; handlers may only reply"),
                Some(Err(error)) => crate::fatal!("a collective was refused: {error}; pass shorter blocks"),
            }
        }
    }

    fn join(&self, engine: &mut RankEngine, addresses: impl Iterator<Item = Addr>) -> Result<GroupId, Error> {
        let mut joined = self.joined.lock();
        if let Some(group) = *joined {
            return Ok(group);
        }
        let members: Vec<Addr> = addresses.collect();
        let group = engine.join_keyed_group(&members, &self.team.to_ne_bytes(), Context { ptr: 0, user: 0 })?;
        *joined = Some(group);
        Ok(group)
    }

    /// Leaves the group. All members have passed a barrier of the team before.
    pub(crate) fn leave(&self, job: &Job) {
        let Some(group) = self.joined.lock().take() else { return };
        let left = job.with_engine(|engine| engine.leave_group(group));
        debug_assert!(left.is_none_or(|left| left.is_ok()), "operations of a team are under way at its end");
    }
}

fn translate(seat: Seat, collective: &Collective) -> (Call, Iov, Iov) {
    let piece = |addr: usize, bytes: usize| iov_at(Piece { addr, bytes: if addr == 0 { 0 } else { bytes } });
    match *collective {
        Collective::Barrier => (Call::known(Operation::Barrier, Elements::Bytes(1)), Iov::EMPTY, Iov::EMPTY),
        Collective::Move { what, source, result, bytes } => {
            let blocks = blocks(bytes, seat.members);
            let is_root = |root: u32| root == seat.rank;
            let (operation, root, input, output) = match what {
                Move::Broadcast(root) => {
                    // The engine reads the root's block from its result.
                    let data = if is_root(root) { source } else { result };
                    if is_root(root) && result != 0 && result != source {
                        memory::copy_at(result, Piece { addr: source, bytes });
                    }
                    (Operation::Broadcast, root, Iov::EMPTY, piece(data, bytes))
                }
                Move::Scatter(root) => {
                    let input = if is_root(root) { piece(source, blocks) } else { Iov::EMPTY };
                    (Operation::Scatter, root, input, piece(result, bytes))
                }
                Move::Gather(root) => {
                    let output = if is_root(root) { piece(result, blocks) } else { Iov::EMPTY };
                    (Operation::Gather, root, piece(source, bytes), output)
                }
                Move::GatherAll => (Operation::AllGather, 0, piece(source, bytes), piece(result, blocks)),
                Move::Exchange => (Operation::AllToAll, 0, piece(source, blocks), piece(result, blocks)),
            };
            (Call { root, count: bytes, ..Call::known(operation, Elements::Bytes(1)) }, input, output)
        }
        Collective::Reduce { to, source, result, count, combine } => {
            let block = count * combine.element_bytes();
            let (given, taken) = match to {
                To::One(root) => (block, if root == seat.rank { block } else { 0 }),
                To::All | To::Prefix(_) => (block, block),
                To::Each => (blocks(block, seat.members), block),
            };
            let (input, output) = (piece(source, given), piece(result, taken));
            (reduction(seat, to, count, combine, Overlap::of(&input, &output)), input, output)
        }
        Collective::Uneven { source, result, ref given, ref taken } => {
            let len = |all: &[Extent]| Extent::end(all).unwrap_or_else(|| too_long());
            let (input, output) = (piece(source, len(given)), piece(result, len(taken)));
            let schedule = compile_uneven(seat.rank, given, taken, Overlap::of(&input, &output));
            (Call::planned(schedule, Elements::Bytes(1)), input, output)
        }
    }
}

fn reduction(seat: Seat, to: To, count: usize, combine: Combine, overlap: Overlap) -> Call {
    let (operation, root) = match to {
        To::One(root) => (Operation::Reduce, root),
        To::All | To::Prefix(_) => (Operation::AllReduce, 0),
        To::Each => (Operation::ReduceScatter, 0),
    };
    let elements = combine.elements();
    let Seat { rank, members } = seat;
    let request = Request { operation, rank, members, root, count, element: elements.size(), overlap };
    match to {
        To::Prefix(prefix) => Call::planned(compile_scan(&request, prefix), elements),
        _ if !combine.commutes() => Call::planned(compile_ordered(&request), elements),
        _ => Call { root, count, ..Call::known(operation, elements) },
    }
}

fn blocks(bytes: usize, members: u32) -> usize {
    bytes.checked_mul(members as usize).unwrap_or_else(|| too_long())
}

fn too_long() -> ! {
    crate::fatal!("the blocks of a collective are longer than memory; pass shorter ones")
}

/// Performs a collective of a team with one member.
fn perform_alone(collective: &Collective, input: &Iov, result: &Iov) {
    match collective {
        // The first member has no result of an exclusive scan.
        Collective::Barrier
        | Collective::Move { what: Move::Broadcast(_), .. }
        | Collective::Reduce { to: To::Prefix(Prefix::Exclusive), .. } => {}
        Collective::Uneven { given, taken, .. } => {
            let ([given, ..], [taken, ..]) = (&given[..], &taken[..]) else { return };
            result.slice(taken.offset(), taken.bytes()).copy_from(&input.slice(given.offset(), given.bytes()));
        }
        Collective::Move { .. } | Collective::Reduce { .. } => result.copy_from(input),
    }
}
