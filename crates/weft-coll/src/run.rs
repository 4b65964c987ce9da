//! Operations under way: the endpoint, its groups, and the one lock around them.
//!
//! Place in the data flow: [`Runtime::submit`] passes an operation to the provider. [`Runtime::progress`] reads
//! completions. An operation that finds no room waits in a queue, and all later ones behind it, so that the order of a
//! group's operations is kept.
//!
//! The provider has automatic progress: operations advance while the program computes. Where ranks share processors
//! ([`crate::places`]) they advance in this rank's polls, and in those of the watcher while the rank does not poll
//! ([`crate::watcher`]). A member that waits here polls the provider, and also lets the MPI library make progress:
//! other members may need that before they join in.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use weft_client::{Address, Endpoint, Error, Group, MappedBlock, Performed, Posted};
use weft_fi_sys::FI_EAGAIN;

use crate::errors::{Cause, Failure};
use crate::exports::weft_coll_counts;
use crate::lull::{self, Lull};
use crate::mpi::{Handle, SUCCESS, pmpi};
use crate::persistent::{self, Persistents};
use crate::plan::{Call, Context, Decision, Member, decide};
use crate::pmpi::Pmpi;
use crate::requests::{self, Idle};
use crate::shape::{Shape, Staged, Transfer};
use crate::types::Types;
use crate::watcher::{Next, Watcher};

/// Operations that the provider has at a time.
pub(crate) const SLOTS: u32 = 256;
/// Polls without a completion after which the MPI library makes progress.
const IDLE_POLLS: u32 = 16;
/// Looks for other members inside the call that starts an operation: some microseconds.
const LOOKS: u32 = 200;
/// Polls without a completion after which another process may run.
const YIELD_POLLS: u32 = 4096;
/// The same if ranks share processors. The members that are waited for may need this one.
const CROWDED_POLLS: u32 = 2;

/// The error of a call that found no room.
const FI_EAGAIN_CODE: c_int = FI_EAGAIN as c_int;

/// Groups that are kept for later communicators.
const MAX_IDLE: usize = 16;

/// Collectives that weft has run in this process.
pub(crate) static BY_WEFT: &AtomicU64 = &weft_coll_counts[0];
/// Collectives of this process that were left to the MPI library.
pub(crate) static BY_LIBRARY: &AtomicU64 = &weft_coll_counts[1];

/// The state of this library, once `MPI_Init` has found weft.
pub(crate) struct Runtime {
    parts: Parts,
    /// Operations that have not ended.
    under_way: AtomicUsize,
    /// Requests in [`RuntimeState::requests`].
    pub(crate) requests: AtomicUsize,
    /// Persistent requests.
    pub(crate) persistents: AtomicUsize,
    /// Calls of [`Runtime::wait`] under way.
    waits: AtomicUsize,
    closed: AtomicBool,
    /// A collective has ended since [`Runtime::take_arrived`].
    news: AtomicBool,
    /// Calls of [`Runtime::poll`] that found no completion.
    idle_polls: AtomicU32,
    pub(crate) state: Mutex<RuntimeState>,
    /// Where ranks share processors, until `MPI_Finalize`.
    watcher: Mutex<Option<Watcher>>,
}

/// The parts of a runtime that do not change.
pub(crate) struct Parts {
    pub(crate) pmpi: Pmpi,
    pub(crate) types: Types,
    /// A communicator of this library alone, with the members of the world.
    pub(crate) own: Handle,
    /// The group of the world.
    pub(crate) world: Handle,
    /// The names of their hosts.
    pub(crate) hosts: Vec<String>,
    /// The numbers of their nodes ([`crate::places::node`]).
    pub(crate) nodes: Vec<u64>,
    /// The key of the attribute by which this library notices that a communicator is freed.
    pub(crate) keyval: c_int,
    /// By it the MPI library makes progress.
    pub(crate) idle: Idle,
    /// Whether there are more ranks than processors for them.
    pub(crate) is_crowded: bool,
    /// Bytes from which the provider's thread is worth its wake-up for a non-blocking operation.
    pub(crate) hand_over_bytes: usize,
    /// Whether the MPI library refuses two buffers that are the same.
    pub(crate) refuses_aliases: bool,
}

/// The part under the lock.
pub(crate) struct RuntimeState {
    /// `None` after `MPI_Finalize`.
    pub(crate) endpoint: Option<Endpoint>,
    /// The world's members, by rank.
    addresses: Vec<Address>,
    /// Communicators that have been agreed upon. `None`: the MPI library runs their collectives.
    pub(crate) communicators: FxHashMap<Handle, Option<Communicator>>,
    /// By the names on which the members have agreed.
    pub(crate) groups: FxHashMap<usize, Joined>,
    /// Groups of freed communicators.
    idle: Vec<usize>,
    /// Joins whose end the provider has not reported.
    joins: usize,
    /// Requests of the program that the MPI library does not poll.
    pub(crate) requests: FxHashMap<Handle, Arc<Op>>,
    pub(crate) persistents: Persistents,
    started: Vec<Option<Arc<Op>>>,
    free: Vec<u32>,
    waiting: VecDeque<Arc<Op>>,
    /// Operations that the watcher has found complete, which the rank's next poll ends.
    found: Ended,
    /// The rank has polled since the watcher's last look.
    polled: bool,
    /// The watcher looks at the operations under way. It sleeps otherwise.
    watched: bool,
}

/// A communicator whose collectives weft runs.
#[derive(Clone, Copy)]
pub(crate) struct Communicator {
    pub(crate) group: usize,
    pub(crate) member: Member,
}

/// A group that its members have agreed upon.
pub(crate) struct Joined {
    /// The provider's group, from the first collective on.
    group: Option<Group>,
    /// The members' ranks in the world.
    ranks: Box<[usize]>,
    /// Operations of the group that have not ended.
    operations: usize,
    /// An operation has failed.
    broken: bool,
    /// The group is left after its last operation.
    leaving: bool,
}

impl Joined {
    pub(crate) const fn new(ranks: Box<[usize]>) -> Self {
        Self { group: None, ranks, operations: 0, broken: false, leaving: false }
    }
}

const PENDING: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

/// One operation.
pub(crate) struct Op {
    call: Transfer,
    /// The name of the program's call.
    name: &'static str,
    group: usize,
    pub(crate) comm: Handle,
    /// This rank's number in the communicator.
    rank: usize,
    outcome: AtomicU8,
    /// The reason, once the operation has failed.
    failure: OnceLock<Cause>,
    /// The member's own error, in spite of which it takes part.
    wrong: Option<Cause>,
    staged: Mutex<Option<Staged>>,
    /// The program's request, or [`NO_REQUEST`] for a blocking call.
    request: AtomicUsize,
    /// The tag of the receive that is the request, if it is persistent.
    tag: Option<c_int>,
    /// Whether the provider's thread is worth its wake-up.
    takes_long: bool,
}

/// No request has this handle.
const NO_REQUEST: Handle = 0;

// SAFETY: the pointers in `call` and `staged` are the program's buffers. The MPI standard leaves them to the library
// until the operation is complete, and they are only used under a lock.
unsafe impl Send for Op {}
// SAFETY: as above.
unsafe impl Sync for Op {}

/// Operations that have ended, and the reason of each that has failed.
type Ended = SmallVec<[(Arc<Op>, Option<Box<Cause>>); 16]>;

impl Op {
    pub(crate) fn new(call: Transfer, group: usize, comm: Handle, staged: Staged) -> Self {
        Self {
            call,
            name: "",
            group,
            comm,
            rank: 0,
            outcome: AtomicU8::new(PENDING),
            failure: OnceLock::new(),
            wrong: None,
            staged: Mutex::new(Some(staged)),
            request: AtomicUsize::new(NO_REQUEST),
            tag: None,
            takes_long: false,
        }
    }

    /// Names the request that completes with the operation. It has not started.
    pub(crate) fn set_request(&self, request: Handle) {
        self.request.store(request, Ordering::Release);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.outcome.load(Ordering::Acquire) != PENDING
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.outcome.load(Ordering::Acquire) == FAILED
    }

    /// The result of the operation as a code of MPI.
    pub(crate) fn code(&self, runtime: &Runtime) -> c_int {
        self.failure(runtime).map_or(SUCCESS, |failure| failure.code(runtime))
    }

    /// The failure of the operation, if it has failed.
    #[inline]
    pub(crate) fn failure(&self, runtime: &Runtime) -> Option<Failure<'_>> {
        if !self.has_failed() {
            return None;
        }
        let Self { name, rank, comm, .. } = *self;
        // The program may have freed the communicator of a request.
        let comm = runtime.state.lock().communicators.contains_key(&comm).then_some(comm);
        Some(Failure { name, comm, rank, cause: self.failure.get()? })
    }

    pub(crate) fn request(&self) -> Handle {
        self.request.load(Ordering::Acquire)
    }
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// The state of this library, between `MPI_Init` and `MPI_Finalize`, if weft was found.
pub(crate) fn runtime() -> Option<&'static Runtime> {
    RUNTIME.get().filter(|runtime| !runtime.closed.load(Ordering::Acquire))
}

/// Makes the state known to all functions.
pub(crate) fn install(runtime: Runtime) -> Option<&'static Runtime> {
    RUNTIME.set(runtime).ok()?;
    RUNTIME.get()
}

impl RuntimeState {
    pub(crate) fn new(endpoint: Endpoint, addresses: Vec<Address>) -> Self {
        Self {
            endpoint: Some(endpoint),
            addresses,
            communicators: FxHashMap::default(),
            groups: FxHashMap::default(),
            idle: Vec::new(),
            joins: 0,
            requests: FxHashMap::default(),
            persistents: Persistents::default(),
            started: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS).rev().collect(),
            waiting: VecDeque::new(),
            found: Ended::new(),
            polled: false,
            watched: false,
        }
    }

    /// Passes an operation to the provider. False: there is no room now.
    fn post(&mut self, op: &Arc<Op>) -> Result<bool, Error> {
        let (Some(endpoint), Some(joined)) = (self.endpoint.as_mut(), self.groups.get_mut(&op.group)) else {
            return Err(Error::Misuse("the group does not exist"));
        };
        let Some(&slot) = self.free.last() else { return Ok(false) };
        let group = match &joined.group {
            Some(group) => group,
            None => {
                let members: Vec<Address> = joined.ranks.iter().map(|&rank| self.addresses[rank]).collect();
                match endpoint.join_named(&members, op.group as u64) {
                    Ok(group) => {
                        self.joins += 1;
                        joined.group.insert(group)
                    }
                    Err(Error::Call { code: FI_EAGAIN_CODE, .. }) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
        };
        let posted = match &op.call {
            // SAFETY: the program leaves its buffers to the operation until it is complete; `op` owns the others, and
            // is kept in `started` until then.
            Transfer::Even(call) => unsafe { endpoint.start(slot, group, call) },
            // SAFETY: as above.
            Transfer::Uneven(call) => unsafe { endpoint.start_exchange(slot, group, call) },
        }?;
        if posted == Posted::Again {
            return Ok(false);
        }
        self.free.pop();
        self.started[slot as usize] = Some(Arc::clone(op));
        Ok(true)
    }

    fn take(&mut self, slot: Option<u32>) -> Option<Arc<Op>> {
        let slot = slot?;
        let op = self.started.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(op)
    }

    /// Reads completions into `ended`, with whether each operation succeeded.
    fn poll(&mut self, ended: &mut Ended) {
        let before = ended.len();
        let Some(endpoint) = self.endpoint.as_mut() else { return };
        while self.joins > 0 && !matches!(endpoint.joined(), Ok(None)) {
            // The operations that wait for a join fail with it.
            self.joins -= 1;
        }
        let mut slots: SmallVec<[Option<u32>; 16]> = SmallVec::new();
        match endpoint.poll(|completion| slots.push(completion.slot)) {
            Ok(_) => {}
            Err(error @ Error::Completion { slot, .. }) => {
                ended.extend(self.take(slot).map(|op| {
                    let ranks = self.groups.get(&op.group).map(|joined| &*joined.ranks);
                    let cause = Cause::of(&error, ranks.unwrap_or_default());
                    (op, Some(Box::new(cause)))
                }));
            }
            Err(_) => {}
        }
        for slot in slots {
            ended.extend(self.take(slot).map(|op| (op, None)));
        }
        while let Some(op) = self.waiting.pop_front() {
            match self.post(&op) {
                Ok(true) => {}
                Ok(false) => {
                    self.waiting.push_front(op);
                    break;
                }
                Err(error) => ended.push((op, Some(Box::new(Cause::of(&error, &[]))))),
            }
        }
        for (op, failure) in &ended[before..] {
            self.end_in_group(op.group, failure.is_none());
        }
    }

    /// The watcher looks at the operations, and polls if the rank does not. `parked`: it has slept on the endpoint.
    /// `waits`: a call waits for operations.
    fn stand_in(&mut self, parked: &mut bool, waits: bool) -> Next {
        let rank_polls = std::mem::take(&mut self.polled) || waits;
        // Only a poll of the thread that has parked the endpoint ends the parking.
        if std::mem::take(parked) || !rank_polls {
            let mut found = std::mem::take(&mut self.found);
            self.poll(&mut found);
            self.found = found;
        }
        if self.free.len() == SLOTS as usize && self.waiting.is_empty() {
            self.watched = false;
            return Next::WhenStarted;
        }
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !rank_polls) else { return Next::Later };
        match endpoint.descriptor() {
            Some(descriptor) if endpoint.park() => {
                *parked = true;
                Next::WhenReadable(descriptor)
            }
            _ => Next::Soon,
        }
    }

    /// A further operation uses a group, or may do so.
    pub(crate) fn begin_in_group(&mut self, number: usize) {
        if let Some(joined) = self.groups.get_mut(&number) {
            joined.operations += 1;
        }
    }

    pub(crate) fn end_in_group(&mut self, number: usize, success: bool) {
        if let Some(joined) = self.groups.get_mut(&number) {
            joined.operations -= 1;
            joined.broken |= !success;
            if joined.leaving {
                self.leave(number);
            }
        }
    }

    /// Keeps a group that no communicator uses, or leaves it.
    pub(crate) fn keep_idle(&mut self, number: usize) {
        let is_usable = |joined: &Joined| joined.group.is_some() && joined.operations == 0 && !joined.broken;
        let usable = self.groups.get(&number).is_some_and(is_usable);
        if usable && self.idle.len() < MAX_IDLE {
            self.idle.push(number);
        } else {
            self.leave(number);
        }
    }

    /// Takes a group of these members, if one is kept.
    pub(crate) fn take_idle(&mut self, ranks: &[usize]) -> Option<usize> {
        let is_theirs = |name: &usize| self.groups.get(name).is_some_and(|joined| *joined.ranks == *ranks);
        let place = self.idle.iter().rposition(is_theirs)?;
        Some(self.idle.remove(place))
    }

    /// Leaves a group, at once or after its last operation.
    pub(crate) fn leave(&mut self, number: usize) {
        let Some(mut joined) = self.groups.remove(&number) else { return };
        joined.leaving = true;
        if joined.operations == 0 {
            let (Some(endpoint), Some(group)) = (self.endpoint.as_mut(), joined.group.take()) else { return };
            match endpoint.leave(group) {
                Ok(()) => return,
                Err(group) => joined.group = Some(group),
            }
        }
        self.groups.insert(number, joined);
    }
}

impl Deref for Runtime {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Runtime {
    /// Memory of the provider that other ranks may map. `None`: there is none.
    pub(crate) fn mapped_block(&self, bytes: usize) -> Option<MappedBlock> {
        let state = self.state.lock();
        state.endpoint.as_ref()?.domain().mapped_block(bytes)
    }

    pub(crate) fn new(parts: Parts, addresses: Vec<Address>, endpoint: Endpoint, watcher: Option<Watcher>) -> Self {
        Self {
            parts,
            under_way: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            persistents: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            news: AtomicBool::new(false),
            idle_polls: AtomicU32::new(0),
            state: Mutex::new(RuntimeState::new(endpoint, addresses)),
            watcher: Mutex::new(watcher),
        }
    }

    /// Starts an operation.
    pub(crate) fn submit(&self, op: &Arc<Op>) {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        let mut state = self.state.lock();
        state.polled = true;
        state.begin_in_group(op.group);
        let posted = if state.waiting.is_empty() { state.post(op) } else { Ok(false) };
        match posted {
            Ok(true) => {}
            Ok(false) => state.waiting.push_back(Arc::clone(op)),
            Err(error) => {
                state.end_in_group(op.group, false);
                drop(state);
                self.end(op, Some(Cause::of(&error, &[])));
            }
        }
    }

    /// Performs a blocking operation on the program's memory, and waits a little for its end. One that must wait for
    /// others, or has an error, is left to [`Runtime::submit`].
    fn perform(&self, part: &Part) -> Attempt {
        let Some(call) = part.shape.plain() else { return Attempt::None };
        let mut state = self.state.lock();
        let RuntimeState { endpoint: Some(endpoint), groups, started, free, waiting, polled, .. } = &mut *state else {
            return Attempt::None;
        };
        let (Some(joined), Some(&slot), true) = (groups.get_mut(&part.group), free.last(), waiting.is_empty()) else {
            return Attempt::None;
        };
        let Some(group) = &joined.group else { return Attempt::None };
        *polled = true;
        let looks = if self.is_crowded { 0 } else { LOOKS };
        // SAFETY: the program leaves its buffers to the operation until the call returns.
        match unsafe { endpoint.perform(slot, group, &call, looks) } {
            Ok(Performed::Ended) => {
                self.news.store(true, Ordering::Relaxed);
                Attempt::Ended
            }
            Ok(Performed::Posted(Posted::Done)) => {
                let op = part.started(Transfer::Even(call), Staged::default(), None, false);
                free.pop();
                started[slot as usize] = Some(Arc::clone(&op));
                joined.operations += 1;
                self.under_way.fetch_add(1, Ordering::AcqRel);
                Attempt::Started(op)
            }
            Ok(Performed::Posted(Posted::Again)) | Err(_) => Attempt::None,
        }
    }

    /// The program computes from now on, or blocks in other calls. Without this, the provider's thread would notice
    /// within milliseconds, and the watcher would not.
    pub(crate) fn leave(&self, op: &Op) {
        if op.is_complete() || !(self.is_crowded || op.takes_long) {
            return;
        }
        let mut state = self.state.lock();
        if !self.is_crowded {
            state.endpoint.as_mut().map(Endpoint::park);
        } else if !std::mem::replace(&mut state.watched, true) {
            drop(state);
            self.watcher.lock().as_ref().inspect(|watcher| watcher.wake());
        }
    }

    /// As [`RuntimeState::stand_in`]. A rank that holds the lock polls. One that waits polls as soon as it has a
    /// processor.
    pub(crate) fn stand_in(&self, parked: &mut bool) -> Next {
        let state = if *parked { Some(self.state.lock()) } else { self.state.try_lock() };
        let waits = self.waits.load(Ordering::Acquire) > 0;
        state.map_or(Next::Later, |mut state| state.stand_in(parked, waits))
    }

    /// The end of an operation: its data reach the program, and its request completes.
    fn end(&self, op: &Op, failure: Option<Cause>) {
        let failure = failure.or_else(|| op.wrong.clone());
        let staged = op.staged.lock().take();
        let moved = staged.is_none_or(|staged| staged.finish(&self.pmpi, self.own, failure.is_none()));
        let failure = failure.or_else(|| (!moved).then_some(Cause::Packing));
        let outcome = if failure.is_none() { DONE } else { FAILED };
        if let Some(cause) = failure {
            op.failure.get_or_init(|| cause);
        }
        op.outcome.store(outcome, Ordering::Release);
        self.news.store(true, Ordering::Relaxed);
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        match (op.request(), op.tag) {
            (NO_REQUEST, _) => {}
            (request, None) => _ = pmpi!("PMPI_Grequest_complete", request => Handle),
            (request, Some(tag)) => self.end_persistent(request, tag, op),
        }
    }

    /// Takes completions of the provider. Returns whether there were any.
    pub(crate) fn progress(&self) -> bool {
        if self.under_way.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut ended = Ended::new();
        let mut state = self.state.lock();
        state.polled = true;
        if !state.found.is_empty() {
            ended.append(&mut state.found);
        }
        state.poll(&mut ended);
        drop(state);
        let any = !ended.is_empty();
        for (op, failure) in ended {
            self.end(&op, failure.map(|cause| *cause));
        }
        any
    }

    /// Lets the MPI library take what has arrived, if a collective has ended since the last time.
    ///
    /// A message that was sent before a collective has arrived when the collective ends, but perhaps without the MPI
    /// library's notice: both take different ways. Programs rely on it that a single probe finds the message then.
    pub(crate) fn take_arrived(&self) {
        if self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Relaxed) {
            self.idle.progress(&self.pmpi);
        }
    }

    /// Makes progress, also that of the MPI library from time to time.
    pub(crate) fn poll(&self) {
        if !self.progress() && self.idle_polls.fetch_add(1, Ordering::Relaxed).is_multiple_of(IDLE_POLLS) {
            self.idle.progress(&self.pmpi);
        }
    }

    /// Waits until `done` returns true, and lets everything make progress meanwhile.
    pub(crate) fn wait(&self, mut done: impl FnMut() -> bool) {
        let yield_polls = if self.is_crowded { CROWDED_POLLS } else { YIELD_POLLS };
        let others = self.waits.fetch_add(1, Ordering::AcqRel);
        let mut idle = 0;
        let mut lull = Lull::default();
        while !done() {
            idle = if self.progress() { 0 } else { idle + 1 };
            if idle % IDLE_POLLS == IDLE_POLLS - 1 {
                self.idle.progress(&self.pmpi);
                if idle < IDLE_POLLS {
                    lull.end();
                } else if others == 0 && !done() {
                    self.rest(&mut lull);
                }
            }
            if idle % yield_polls == yield_polls - 1 {
                std::thread::yield_now();
            }
        }
        self.waits.fetch_sub(1, Ordering::AcqRel);
    }

    /// Sleeps once, if the wait is long by now. The next poll ends the parking of the endpoint.
    fn rest(&self, lull: &mut Lull) {
        let mut state = self.state.lock();
        let Some(endpoint) = state.endpoint.as_mut() else { return };
        let reads = || endpoint.domain().stats().map_or(0, |stats| stats.idle_reads);
        let Some(time) = lull.sleep(Instant::now(), reads) else { return };
        if let Some(descriptor) = endpoint.descriptor()
            && endpoint.park()
        {
            drop(state);
            lull::wait_for(descriptor, time);
        }
    }

    /// Leaves all collectives to the MPI library. An operation may be under way, whose memory therefore stays.
    pub(crate) fn give_up(&self) {
        self.closed.store(true, Ordering::Release);
        self.idle.close(&self.pmpi);
        drop(self.watcher.lock().take());
        std::mem::forget(self.state.lock().endpoint.take());
    }

    /// Ends the use of weft: after this no function finds the runtime.
    pub(crate) fn close(&self) {
        self.wait(|| self.under_way.load(Ordering::Acquire) == 0);
        // No member needs this endpoint any more when all members have come here.
        self.pmpi.barrier(self.own);
        self.closed.store(true, Ordering::Release);
        drop(self.watcher.lock().take());
        let mut state = self.state.lock();
        let groups: Vec<usize> = state.groups.keys().copied().collect();
        groups.into_iter().for_each(|number| state.leave(number));
        let endpoint = state.endpoint.take();
        drop(state);
        drop(endpoint);
        self.close_persistents();
        self.idle.close(&self.pmpi);
        self.pmpi.free_keyval(self.keyval);
        self.pmpi.free_group(self.world);
        self.pmpi.free_communicator(self.own);
    }
}

/// The result of [`Runtime::perform`].
enum Attempt {
    /// The operation has ended, with success.
    Ended,
    Started(Arc<Op>),
    /// Nothing has happened.
    None,
}

/// The form of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Blocking,
    NonBlocking,
    Persistent,
}

/// This rank's part in a collective that weft runs.
pub(crate) struct Part {
    shape: Shape,
    /// The name of the program's call.
    name: &'static str,
    pub(crate) group: usize,
    comm: Handle,
    /// This rank's number in the communicator.
    rank: usize,
}

impl Part {
    /// The operation, with the data that this rank gives now. An error is one of MPI.
    pub(crate) fn operation(&self, runtime: &Runtime, tag: Option<c_int>) -> Result<Arc<Op>, c_int> {
        let Some((call, staged)) = self.shape.prepare(&runtime.pmpi, runtime.own) else {
            return Err(self.fails(runtime, &Cause::Packing));
        };
        Ok(self.started(call, staged, tag, self.shape.bytes >= runtime.hand_over_bytes))
    }

    fn started(&self, call: Transfer, staged: Staged, tag: Option<c_int>, takes_long: bool) -> Arc<Op> {
        let Self { shape, name, group, comm, rank } = self;
        let wrong = shape.wrong();
        Arc::new(Op { takes_long, name, rank: *rank, tag, wrong, ..Op::new(call, *group, *comm, staged) })
    }

    /// Lets the part have types of its own, which the caller frees. `None`: the MPI library could not copy them.
    pub(crate) fn keep_types(&mut self, pmpi: &Pmpi) -> Option<persistent::Types> {
        self.shape
            .datatypes()
            .map(|datatype| {
                *datatype = pmpi.duplicate_type(*datatype)?;
                Some(*datatype)
            })
            .collect()
    }

    /// Calls the error handler of the communicator. Returns the error code.
    pub(crate) fn fails(&self, runtime: &Runtime, cause: &Cause) -> c_int {
        Failure { name: self.name, comm: Some(self.comm), rank: self.rank, cause }.raise(runtime)
    }
}

/// This rank's part in the collective of a call, if weft runs it. An error is one of MPI.
fn accept(runtime: &Runtime, call: &Call, form: Form) -> Option<Result<Part, c_int>> {
    let comm = runtime.pmpi.mpi.handle(call.comm);
    let Communicator { group, member } = runtime.communicator(comm, form != Form::NonBlocking)?;
    let Parts { pmpi, types, own, refuses_aliases, .. } = &**runtime;
    let (own, refuses_aliases, rank, name) = (*own, *refuses_aliases, member.rank, call.name);
    // A persistent request has types of its own.
    let waits = form != Form::NonBlocking;
    match decide(call, &Context { pmpi, types, member, own, refuses_aliases, waits }) {
        Decision::Library => None,
        Decision::Refused(cause) => Some(Err(Failure { name, comm: Some(comm), rank, cause: &cause }.raise(runtime))),
        Decision::Weft(shape) => Some(Ok(Part { shape, name, group, comm, rank })),
    }
}

/// The part in the collective of a call, as [`accept`] gives it, and its runtime. Counts the calls that weft runs and
/// those of the library.
fn take(call: &Call, form: Form) -> Option<(&'static Runtime, Result<Part, c_int>)> {
    let taken = runtime().and_then(|runtime| Some((runtime, accept(runtime, call, form)?)));
    match (taken.is_some(), form) {
        // Each start of the request counts.
        (true, Form::Persistent) => {}
        (true, _) => _ = BY_WEFT.fetch_add(1, Ordering::Relaxed),
        (false, _) => _ = BY_LIBRARY.fetch_add(1, Ordering::Relaxed),
    }
    taken
}

/// Runs a blocking collective. `None`: the MPI library does.
pub(crate) fn blocking(call: &Call) -> Option<c_int> {
    let (runtime, part) = take(call, Form::Blocking)?;
    let part = match part {
        Ok(part) => part,
        Err(code) => return Some(code),
    };
    let op = match runtime.perform(&part) {
        Attempt::Ended => return Some(SUCCESS),
        Attempt::Started(op) => op,
        Attempt::None => match part.operation(runtime, None) {
            Ok(op) => {
                runtime.submit(&op);
                op
            }
            Err(code) => return Some(code),
        },
    };
    runtime.wait(|| op.is_complete());
    Some(op.failure(runtime).map_or(SUCCESS, |failure| failure.raise(runtime)))
}

/// Starts a non-blocking collective and writes its request. `None`: the MPI library does.
pub(crate) fn nonblocking(call: &Call, request: *mut c_void) -> Option<c_int> {
    let (runtime, part) = take(call, Form::NonBlocking)?;
    let started = part.and_then(|part| {
        let op = part.operation(runtime, None)?;
        let handle = requests::open(runtime, &op).ok_or_else(|| part.fails(runtime, &Cause::NoRequest))?;
        // SAFETY: the program's place for the request.
        unsafe { runtime.pmpi.mpi.write(request, handle) };
        runtime.submit(&op);
        runtime.leave(&op);
        Ok(())
    });
    Some(started.err().unwrap_or(SUCCESS))
}

/// Makes a persistent collective and writes its request. `None`: the MPI library does.
pub(crate) fn persistent(call: &Call, request: *mut c_void) -> Option<c_int> {
    let (runtime, part) = take(call, Form::Persistent)?;
    let made = part.and_then(|part| {
        let handle = runtime.open_persistent(part)?;
        // SAFETY: the program's place for the request.
        unsafe { runtime.pmpi.mpi.write(request, handle) };
        Ok(())
    });
    Some(made.err().unwrap_or(SUCCESS))
}
