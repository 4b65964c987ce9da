//! A job from the recordings of its processes.
//!
//! Place in the data flow: takes [`Recording`]s, gives a [`Job`].
//!
//! Rules:
//! - A collective becomes the schedule that weft's compiler makes for it, whichever library has run it. A
//!   [`Choice`] may name another algorithm.
//! - A non-blocking collective starts what needs no message at its call. The rest follows where the program waits.
//! - A wait for a send, and a blocking send of at least [`LONG_BYTES`], last until the payload has left.
//! - Accesses to a peer's memory are messages that no program waits for at the peer.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use weft_engine::collective::{self, Algorithm, Operation, Refusal, Request, Task};
use weft_record::{ANY, Event, OWN, Recording, Source};
use weft_scale::board::OnBoard;
use weft_scale::profile::Costs;
use weft_scale::step::Meeting;
use weft_scale::{Step, schedule};

use crate::job::Job;
use crate::matching::{ACCESSES, Act, Acts, Key, MEETINGS, Receive, matched};

/// The shortest payload for which a blocking send waits.
const LONG_BYTES: u64 = 16 << 10;
/// The tags of messages of collectives.
const COLLECTIVE: u64 = 1 << 63;
/// The bits of a tag that hold the number of a message in its collective.
const NUMBER_BITS: u32 = 20;

/// Names the algorithm of a collective by operation, bytes of a block, and members. `None`: the size selects it.
pub type Choice<'a> = &'a dyn Fn(Operation, u64, u32) -> Option<Algorithm>;

/// The reason for which recordings make no job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no recording.
    #[error("there is no recording: name the files that FI_WEFT_RECORD has made")]
    None,
    /// Two recordings are of one rank.
    #[error("two recordings are of rank {0}: keep the files of one job in a directory of their own")]
    Twice(u32),
    /// A recording is missing.
    #[error("the recording of rank {0} is missing: name the files of all ranks")]
    Missing(u32),
    /// The processes of one job were recorded in two ways.
    #[error("the files are recordings of MPI calls and of the provider: name those of one kind")]
    Mixed,
    /// A collective has no schedule.
    #[error("a collective of rank {0} has no schedule: {1}")]
    Collective(u32, Refusal),
}

/// A request of the program.
enum Pending {
    Send,
    /// The place in [`Acts::receives`].
    Receive(usize),
    /// The place in [`Acts::reads`].
    Read(usize),
    /// The acts that remain.
    Collective(Vec<Act>),
}

/// Makes the job of these recordings. The costs tell which collectives are performed on boards.
///
/// # Errors
/// They are not those of one job.
pub fn build(recordings: &[Recording], costs: &Costs, choice: Choice<'_>) -> Result<Job, Fault> {
    let by_rank = in_order(recordings)?;
    let names = Names::of(&by_rank);
    let mut all = Vec::with_capacity(by_rank.len());
    for (rank, recording) in (0..).zip(&by_rank) {
        let mut builder = Builder::new(recording, rank, &names, (costs, choice));
        builder.events()?;
        all.push(builder.done);
    }
    let mut job = matched(&all);
    let lasted = by_rank.iter().map(|recording| recording.lasted_ns);
    for (call, count) in by_rank.iter().flat_map(|recording| &recording.omitted) {
        *job.omitted.entry(*call).or_default() += count;
    }
    job.recorded_ns = lasted.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
    Ok(job)
}

/// The recordings by rank. The endpoints of a provider get ranks in the order of their names.
fn in_order(recordings: &[Recording]) -> Result<Vec<&Recording>, Fault> {
    let source = recordings.first().ok_or(Fault::None)?.source;
    if recordings.iter().any(|recording| recording.source != source) {
        return Err(Fault::Mixed);
    }
    let mut all: Vec<&Recording> = recordings.iter().collect();
    if source == Source::Provider {
        // A process that has opened a domain and no endpoint is no rank.
        all.retain(|recording| recording.names.contains_key(&OWN));
        all.sort_by_key(|recording| recording.names.get(&OWN));
        return if all.is_empty() { Err(Fault::None) } else { Ok(all) };
    }
    all.sort_by_key(|recording| recording.rank);
    for (rank, recording) in (0..).zip(&all) {
        if recording.rank < rank {
            return Err(Fault::Twice(recording.rank));
        }
        if recording.rank > rank {
            return Err(Fault::Missing(rank));
        }
    }
    let ranks = recordings.iter().map(|recording| recording.ranks).max().unwrap_or(0);
    let have = u32::try_from(all.len()).unwrap_or(u32::MAX);
    if have < ranks { Err(Fault::Missing(have)) } else { Ok(all) }
}

/// The meaning of a file's numbers in the job.
struct Names {
    /// By rank and number in the rank's file: the peer's rank, for recordings of the provider.
    peers: Vec<FxHashMap<u32, u32>>,
    /// By rank and number in the rank's file: a number that all members have for the context.
    contexts: Vec<FxHashMap<u32, u64>>,
}

impl Names {
    fn of(recordings: &[&Recording]) -> Self {
        // A process may have several endpoints.
        let own = recordings
            .iter()
            .zip(0..)
            .flat_map(|(recording, rank)| recording.names.range(OWN..).map(move |(_, name)| (name, rank)));
        let ranks: BTreeMap<&Vec<u8>, u32> = own.collect();
        let peers = recordings.iter().map(|recording| {
            let known = recording.names.iter().filter_map(|(peer, name)| Some((*peer, *ranks.get(name)?)));
            known.collect()
        });
        // Members make the communicators that they have in common in one order.
        let mut numbers = BTreeMap::<(Vec<u32>, usize), u64>::new();
        let contexts = recordings.iter().map(|recording| {
            let mut made = BTreeMap::<&[u32], usize>::new();
            let mut own = FxHashMap::default();
            for (context, members) in &recording.contexts {
                let nth = made.entry(members).or_default();
                let next = numbers.len() as u64 + 1;
                own.insert(*context, *numbers.entry((members.clone(), *nth)).or_insert(next));
                *nth += 1;
            }
            own
        });
        Self { peers: peers.collect(), contexts: contexts.collect() }
    }
}

/// Makes the acts of one rank.
struct Builder<'a> {
    recording: &'a Recording,
    rank: u32,
    names: &'a Names,
    costs: &'a Costs,
    choice: Choice<'a>,
    done: Acts,
    /// By request. A collective with a count for each member has several messages.
    pending: FxHashMap<u32, Vec<Pending>>,
    /// Collectives so far, by context.
    collectives: FxHashMap<u32, u64>,
}

impl<'a> Builder<'a> {
    fn new(recording: &'a Recording, rank: u32, names: &'a Names, (costs, choice): (&'a Costs, Choice<'a>)) -> Self {
        let (done, pending, collectives) = (Acts::default(), FxHashMap::default(), FxHashMap::default());
        Self { recording, rank, names, costs, choice, done, pending, collectives }
    }

    fn peer(&self, number: u32) -> u32 {
        match self.recording.source {
            Source::Mpi => number,
            Source::Provider => {
                let known = self.names.peers.get(self.rank as usize).and_then(|peers| peers.get(&number));
                known.copied().unwrap_or(ANY)
            }
        }
    }

    fn key(&self, context: u32, tag: u32) -> Key {
        let known = self.names.contexts.get(self.rank as usize).and_then(|contexts| contexts.get(&context));
        (known.copied().unwrap_or(0), tag.into())
    }

    fn events(&mut self) -> Result<(), Fault> {
        for &(gap_ns, event) in &self.recording.events {
            if gap_ns > 0 {
                self.done.acts.push(Act::Step(Step::Compute { ps: gap_ns.saturating_mul(1000) }));
            }
            self.event(event)?;
        }
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Send { to, id, bytes, context, tag } => {
                let key = self.key(context, tag);
                self.send(self.peer(to), bytes, id, key);
            }
            Event::Access { to, id, bytes, reads: false } => self.send(self.peer(to), bytes, id, (ACCESSES, 0)),
            Event::Access { to, id, bytes, reads: true } => self.read(self.peer(to), bytes, id),
            Event::Receive { from, id, context, tag, .. } => {
                let key = self.key(context, tag);
                let from = if from == ANY { ANY } else { self.peer(from) };
                self.done.receives.push(Receive { from, key });
                let at = self.done.receives.len() - 1;
                if id == 0 {
                    self.done.acts.push(Act::Wait(at));
                } else {
                    self.pend(id, Pending::Receive(at));
                }
            }
            Event::Wait { from, id, tag } => self.wait(id, (from, tag)),
            Event::Collective { operation, id, bytes, context, root } => {
                self.collective(operation, bytes, id, (context, root))?;
            }
            Event::Start { .. }
            | Event::Members { .. }
            | Event::Name { .. }
            | Event::Omitted { .. }
            | Event::Rate { .. }
            | Event::End { .. } => {}
        }
        Ok(())
    }

    fn send(&mut self, to: u32, bytes: u64, id: u32, key: Key) {
        self.done.acts.push(Act::Send { to, bytes, key });
        if id > 0 {
            self.pend(id, Pending::Send);
        } else if bytes >= LONG_BYTES {
            self.done.acts.push(Act::Step(Step::Drain));
        }
    }

    /// Reads the memory of a peer. A request that the program does not await ends by itself.
    fn read(&mut self, from: u32, bytes: u64, id: u32) {
        self.done.reads.push((from, bytes));
        let at = self.done.reads.len() - 1;
        self.done.acts.push(Act::Read(at));
        if id > 0 {
            self.pend(id, Pending::Read(at));
        }
    }

    fn pend(&mut self, id: u32, pending: Pending) {
        self.pending.entry(id).or_default().push(pending);
    }

    /// A request ends. A receive of any source or tag is told its message. A request without anything pending is of a
    /// kind that is not recorded.
    fn wait(&mut self, id: u32, message: (u32, u32)) {
        for pending in self.pending.remove(&id).unwrap_or_default() {
            self.ended(pending, message);
        }
    }

    fn ended(&mut self, pending: Pending, (from, tag): (u32, u32)) {
        match pending {
            Pending::Send => self.done.acts.push(Act::Step(Step::Drain)),
            Pending::Receive(at) => {
                let from = if from == ANY { ANY } else { self.peer(from) };
                let receive = &mut self.done.receives[at];
                if from != ANY {
                    receive.from = from;
                }
                if tag != ANY {
                    receive.key.1 = tag.into();
                }
                self.done.acts.push(Act::Wait(at));
            }
            Pending::Read(at) => self.done.acts.push(Act::Answer(at)),
            Pending::Collective(rest) => self.done.acts.extend(rest),
        }
    }

    fn collective(&mut self, operation: u32, bytes: u64, id: u32, (context, root): (u32, u32)) -> Result<(), Fault> {
        let Some(&operation) = Operation::ALL.get(operation as usize) else { return Ok(()) };
        let Some(members) = self.recording.contexts.get(&context) else { return Ok(()) };
        let Some(own) = members.iter().position(|member| *member == self.rank) else { return Ok(()) };
        let number = self.collectives.entry(context).or_default();
        *number += 1;
        let tag = COLLECTIVE | *number << NUMBER_BITS;
        let context = self.key(context, 0).0;
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let whole = schedule::request(operation, count, usize::try_from(bytes).unwrap_or(usize::MAX));
        let request = Request { rank: u32::try_from(own).unwrap_or(u32::MAX), root, ..whole };
        let chosen = (self.choice)(operation, bytes, count);
        let board = if chosen.is_none() { self.board(request, members, (context, tag)) } else { None };
        let acts = match board {
            Some(acts) => acts,
            None => {
                let algorithm = chosen.unwrap_or_else(|| collective::select(&request));
                let compiled = collective::compile_as(&request, algorithm);
                let compiled = compiled.map_err(|why| Fault::Collective(self.rank, why))?;
                self.tasks(compiled.tasks(), members, (context, tag))
            }
        };
        // The acts up to the first wait are done at once.
        let waits = |act: &Act| matches!(act, Act::Wait(_) | Act::Met(_) | Act::Step(Step::Drain));
        let now = acts.iter().position(waits).unwrap_or(acts.len());
        if id == 0 {
            self.done.acts.extend(acts);
        } else {
            self.done.acts.extend_from_slice(&acts[..now]);
            self.pend(id, Pending::Collective(acts[now..].to_vec()));
        }
        Ok(())
    }

    /// The acts of a collective on the board of a host. `None`: it is performed by messages.
    fn board(&mut self, request: Request, members: &[u32], (context, tag): Key) -> Option<Vec<Act>> {
        let board = OnBoard::new(request, self.costs)?;
        let host = |rank: u32| rank / self.costs.ranks_per_host;
        // All members have the same number for the meeting.
        let (context, count) = (u32::try_from(context).ok()?, u32::try_from((tag & !COLLECTIVE) >> NUMBER_BITS).ok()?);
        if members.iter().any(|member| host(*member) != host(self.rank)) || context >= 1 << 10 || count >= 1 << 20 {
            return None;
        }
        let number = MEETINGS | context << 20 | count;
        let meeting = board.meeting();
        let source = meeting.source.and_then(|root| members.get(root as usize).copied());
        self.done.meetings.push((number, Meeting { source, ..meeting }));
        let at = self.done.meetings.len() - 1;
        let act = |step| if let Step::Wait { .. } = step { Act::Met(at) } else { Act::Step(step) };
        Some(board.steps(request.rank, number, 0).map(act).collect())
    }

    /// The acts of a schedule. A schedule is complete when all its transfers are.
    fn tasks(&mut self, tasks: &[Task], members: &[u32], (context, tag): Key) -> Vec<Act> {
        let (mut acts, mut open) = (Vec::with_capacity(tasks.len() + 1), BTreeMap::new());
        acts.push(Act::Step(Step::Call));
        let mut pending = false;
        let member = |rank: u32| members.get(rank as usize).copied().unwrap_or(ANY);
        for (index, task) in (0..).zip(tasks) {
            match *task {
                Task::Send { to, number, at } => {
                    pending |= at.len > 0;
                    acts.push(Act::Send {
                        to: member(to),
                        bytes: at.len as u64,
                        key: (context, tag | u64::from(number)),
                    });
                }
                Task::Receive { from, number, .. } => {
                    open.insert(index, self.done.receives.len());
                    let receive = Receive { from: member(from), key: (context, tag | u64::from(number)) };
                    self.done.receives.push(receive);
                }
                Task::Wait { task } => match open.remove(&task) {
                    Some(at) => acts.push(Act::Wait(at)),
                    None if pending => {
                        pending = false;
                        acts.push(Act::Step(Step::Drain));
                    }
                    None => {}
                },
                Task::Reduce { from, .. } => acts.push(Act::Step(Step::Reduce { bytes: from.len as u64 })),
                Task::Copy { from, .. } => acts.push(Act::Step(Step::Copy { bytes: from.len as u64 })),
            }
        }
        acts.extend(open.into_values().map(Act::Wait));
        if pending {
            acts.push(Act::Step(Step::Drain));
        }
        acts
    }
}
