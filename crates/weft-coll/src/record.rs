//! The recording of a process's MPI calls (`FI_WEFT_RECORD`), for replay elsewhere.
//!
//! Place in the data flow: beside it. The exported functions pass their calls through [`around`]. Without a recording
//! that is one branch. The file's form is that of weft-record.
//!
//! Rules beside those of weft-record:
//! - Threads of a process are recorded as one, in the order in which their calls return.
//! - A start of a persistent request is recorded as a non-blocking call.
//! - A collective with a count for each member is recorded as messages ([`exchange`]).
//! - One-sided calls, partitioned messages and collectives of neighbours are not recorded. Their time counts as
//!   computation. Scans are left out with their time. Windows and scans leave a note, so that a replay can say so.
//!
//! Invariant: no function of the MPI library is called under the lock, except those that only read an object.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use weft_client::Operation;
use weft_record::{ANY, Clock, Event, Omitted, Source, VARIABLE, Writer};

use crate::mpi::{self, Abi, Handle, SUCCESS};
use crate::plan::{Buffer, Call, Function};
use crate::pmpi::{Constants, Pmpi};

use exchange::Events;
use kept::Kept;

pub(crate) mod ends;
mod exchange;
pub(crate) mod kept;
mod messages;

/// Whether calls are recorded.
static ON: AtomicBool = AtomicBool::new(false);
static CLOCK: Clock = Clock::new();
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// Room for a status of any MPI library.
pub(crate) type Status = [u64; 8];

/// A communicator.
struct Context {
    number: u32,
    /// The members' ranks in the world.
    ranks: Box<[u32]>,
}

/// A request of the program.
#[derive(Clone, Copy)]
struct Open {
    id: u32,
    /// The communicator of a receive of any source or tag.
    wild: Option<Handle>,
}

/// The recording.
pub(crate) struct Recorder {
    pmpi: Pmpi,
    world: Handle,
    writer: Writer,
    contexts: FxHashMap<Handle, Context>,
    sizes: FxHashMap<Handle, u64>,
    requests: FxHashMap<Handle, Open>,
    /// Persistent requests.
    kept: FxHashMap<Handle, Kept>,
    last_id: u32,
    last_context: u32,
}

/// The arguments of a message.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub(crate) count: i64,
    pub(crate) datatype: Handle,
    pub(crate) peer: c_int,
    pub(crate) tag: c_int,
    pub(crate) comm: Handle,
}

/// Whether a tag is `MPI_ANY_TAG`.
const fn is_any(tag: c_int) -> bool {
    tag < 0 && tag != exchange::TAG
}

/// Whether calls are recorded.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Passes a call on, and records its success.
#[inline]
pub(crate) fn around(call: impl FnOnce() -> c_int, event: impl FnOnce(&mut Recorder)) -> c_int {
    if is_on() { recorded(call, event) } else { call() }
}

#[cold]
fn recorded(call: impl FnOnce() -> c_int, event: impl FnOnce(&mut Recorder)) -> c_int {
    CLOCK.enter();
    let code = call();
    if code == SUCCESS {
        with(event);
    }
    CLOCK.leave();
    code
}

/// Passes a test on. `event` returns whether it has found something.
#[inline]
pub(crate) fn around_test(call: impl FnOnce() -> c_int, event: impl FnOnce(&mut Recorder) -> bool) -> c_int {
    if !is_on() {
        return call();
    }
    CLOCK.enter();
    let code = call();
    if code == SUCCESS && with(event).unwrap_or(false) {
        CLOCK.leave();
    } else {
        CLOCK.leave_empty();
    }
    code
}

pub(crate) fn with<R>(f: impl FnOnce(&mut Recorder) -> R) -> Option<R> {
    RECORDER.lock().as_mut().map(f)
}

/// Begins the recording after the start of the MPI library, if the user wants one.
pub(crate) fn start() {
    let Some(file) = std::env::var_os(VARIABLE).filter(|file| !file.is_empty()) else { return };
    let Some(recorder) = mpi::loaded().and_then(|mpi| Recorder::open(mpi, PathBuf::from(file))) else { return };
    *RECORDER.lock() = Some(recorder);
    ON.store(true, Ordering::Relaxed);
}

/// Ends the recording.
pub(crate) fn finish() {
    ON.store(false, Ordering::Relaxed);
    drop(RECORDER.lock().take());
}

impl Recorder {
    fn open(mpi: &'static mpi::Mpi, file: PathBuf) -> Option<Self> {
        let pmpi = Pmpi { mpi, constants: Constants::of(mpi)? };
        let constants = pmpi.constants;
        let (rank, ranks) = (pmpi.rank(constants.world)?, pmpi.size(constants.world)?);
        let mut path = file.into_os_string();
        path.push(format!(".{rank}"));
        let [own, all] = [rank, ranks].map(|number| u32::try_from(number).unwrap_or(ANY));
        let writer = Writer::create(path.as_ref(), (own, all), Source::Mpi, &CLOCK);
        let writer = writer.inspect_err(|error| {
            let path = PathBuf::from(&path);
            eprintln!("weft-coll: nothing is recorded, since {} cannot be made: {error}", path.display());
        });
        let world = pmpi.group(constants.world)?;
        let mut recorder = Self {
            pmpi,
            world,
            writer: writer.ok()?,
            contexts: FxHashMap::default(),
            sizes: FxHashMap::default(),
            requests: FxHashMap::default(),
            kept: FxHashMap::default(),
            last_id: 0,
            last_context: 0,
        };
        recorder.define(constants.world, 0);
        // A process that is killed soon is a rank all the same.
        recorder.writer.flush();
        Some(recorder)
    }

    fn define(&mut self, comm: Handle, number: u32) {
        let ranks = self.members(comm).unwrap_or_default();
        self.writer.add_members(number, &ranks);
        self.contexts.insert(comm, Context { number, ranks });
    }

    /// The members of a communicator, unless it joins two groups.
    fn members(&self, comm: Handle) -> Option<Box<[u32]>> {
        if self.pmpi.is_inter(comm)? {
            return None;
        }
        let group = self.pmpi.group(comm)?;
        let ranks = self.pmpi.translate(group, self.pmpi.size(comm)?, self.world);
        self.pmpi.free_group(group);
        Some(ranks?.into_iter().map(|rank| u32::try_from(rank).unwrap_or(ANY)).collect())
    }

    /// A new communicator at this place.
    pub(crate) fn made_at(&mut self, new: *mut c_void) {
        // SAFETY: the MPI library has written the program's handle.
        let comm = unsafe { self.pmpi.mpi.read(new, 0) };
        self.made(comm);
    }

    fn made(&mut self, comm: Handle) {
        let comm = self.pmpi.mpi.handle(comm);
        if comm != self.pmpi.constants.no_communicator {
            self.last_context += 1;
            self.define(comm, self.last_context);
        }
    }

    fn context(&mut self, comm: Handle) -> &Context {
        let comm = self.pmpi.mpi.handle(comm);
        if !self.contexts.contains_key(&comm) {
            self.made(comm);
        }
        self.contexts.entry(comm).or_insert_with(|| Context { number: 0, ranks: Box::default() })
    }

    fn bytes(&mut self, count: i64, datatype: Handle) -> u64 {
        let datatype = self.pmpi.mpi.handle(datatype);
        let pmpi = self.pmpi;
        let size = *self.sizes.entry(datatype).or_insert_with(|| pmpi.type_size(datatype).unwrap_or(0) as u64);
        u64::try_from(count).unwrap_or(0).saturating_mul(size)
    }

    /// A type is freed, whose handle may be used again.
    pub(crate) fn forget_type(&mut self, datatype: Handle) {
        let datatype = self.pmpi.mpi.handle(datatype);
        self.sizes.remove(&datatype);
    }

    /// A communicator is freed.
    pub(crate) fn forget(&mut self, comm: Handle) {
        let comm = self.pmpi.mpi.handle(comm);
        self.contexts.remove(&comm);
    }

    fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1).max(1);
        self.last_id
    }

    /// The request at a place of an array.
    fn handle_at(&self, array: *mut c_void, index: usize) -> Handle {
        // SAFETY: the program's requests, which the MPI library has accepted.
        unsafe { self.pmpi.mpi.read(array, index) }
    }

    /// A number for the request at this place; 0 without a place.
    fn request(&mut self, at: *mut c_void, wild: Option<Handle>) -> u32 {
        if at.is_null() {
            return 0;
        }
        let (id, handle) = (self.next_id(), self.handle_at(at, 0));
        self.requests.insert(handle, Open { id, wild });
        id
    }

    fn add_all(&mut self, events: &[Event], id: u32) {
        for event in events {
            self.writer.add(&event.with_request(id));
        }
    }

    /// `MPI_ANY_SOURCE`.
    fn any_source(&self) -> c_int {
        if self.pmpi.mpi.abi() == Abi::Mpich { -2 } else { -1 }
    }

    /// A send, without its request.
    fn send_event(&mut self, message: Message) -> Option<Event> {
        let bytes = self.bytes(message.count, message.datatype);
        let Context { number: context, ranks } = self.context(message.comm);
        let (context, to) = (*context, *ranks.get(usize::try_from(message.peer).ok()?)?);
        Some(Event::Send { to, id: 0, bytes, context, tag: message.tag.cast_unsigned() })
    }

    /// Records a send. Without a place for a request it has ended.
    pub(crate) fn send(&mut self, message: Message, request: *mut c_void) {
        let (event, id) = (self.send_event(message), self.request(request, None));
        self.add_all(event.as_slice(), id);
    }

    /// The communicator of a receive of any source or tag.
    fn wild(&self, message: Message) -> Option<Handle> {
        let is_wild = message.peer == self.any_source() || is_any(message.tag);
        is_wild.then_some(self.pmpi.mpi.handle(message.comm))
    }

    /// A receive from this source, without its request.
    fn receive_event(&mut self, message: Message, source: c_int, tag: c_int) -> Option<Event> {
        let bytes = self.bytes(message.count, message.datatype);
        let any_source = self.any_source();
        let Context { number: context, ranks } = self.context(message.comm);
        let from = usize::try_from(source).ok().and_then(|source| ranks.get(source).copied());
        let from = from.or_else(|| (source == any_source).then_some(ANY))?;
        let tag = if is_any(tag) { ANY } else { tag.cast_unsigned() };
        Some(Event::Receive { from, id: 0, bytes, context: *context, tag })
    }

    /// Records a receive. One without a place for a request has ended, and `status` tells its message.
    pub(crate) fn receive(&mut self, message: Message, request: *mut c_void, status: *const c_void) {
        let wild = self.wild(message);
        let (source, tag) = if status.is_null() { (message.peer, message.tag) } else { self.read_status(status) };
        let (event, id) = (self.receive_event(message, source, tag), self.request(request, wild));
        self.add_all(event.as_slice(), id);
    }

    fn read_status(&self, status: *const c_void) -> (c_int, c_int) {
        let [source, tag] = self.pmpi.mpi.status_fields().map(|at| {
            // SAFETY: the MPI library has written the status, which has these fields.
            unsafe { status.wrapping_byte_add(at).cast::<c_int>().read_unaligned() }
        });
        (source, tag)
    }

    /// Records a collective. Without a place for a request it has ended.
    pub(crate) fn collective(&mut self, call: &Call, request: *mut c_void) {
        let events = self.collective_events(call);
        let id = self.request(request, None);
        if id > 0 || events.len() <= 1 {
            return self.add_all(&events, id);
        }
        // Its messages are under way at the same time.
        let id = self.next_id();
        self.add_all(&events, id);
        self.writer.add(&Event::Wait { from: ANY, id, tag: ANY });
    }

    /// The events of a collective, without its request.
    fn collective_events(&mut self, call: &Call) -> Events {
        let operation = match call.function {
            Function::Even(operation) => operation,
            Function::Uneven { operation, sent, received } => return self.exchange(call, operation, sent, received),
            Function::Scan(_) => return Events::from_slice(&[Event::Omitted { call: Omitted::Scan }]),
        };
        // Only the root's own side of these is sure to have the length of a block.
        let is_root = |recorder: &Self| recorder.pmpi.rank(call.comm) == usize::try_from(call.root).ok();
        let Buffer { count, datatype, .. } = match operation {
            Operation::Gather if !is_root(self) => call.send,
            Operation::Scatter if is_root(self) => call.send,
            _ => call.recv,
        };
        let bytes = if operation == Operation::Barrier { 0 } else { self.bytes(count, datatype) };
        Events::from_slice(&[self.even(call, operation, bytes)])
    }

    /// A collective of blocks of one length.
    fn even(&mut self, call: &Call, operation: Operation, bytes: u64) -> Event {
        let context = self.context(call.comm).number;
        // The order of both lists of operations is the same.
        let (operation, root) = (operation as u32, u32::try_from(call.root).unwrap_or(0));
        Event::Collective { operation, id: 0, bytes, context, root }
    }

    /// A window is made, whose accesses are not recorded.
    fn window(&mut self) {
        self.writer.add(&Event::Omitted { call: Omitted::Window });
    }

    /// The handle of a request, and whether the caller must let the MPI library write a status for it.
    ///
    /// # Safety
    /// The array has that many requests.
    pub(crate) unsafe fn peek(&self, array: *mut c_void, index: usize) -> (Handle, bool) {
        // SAFETY: by the caller's promise.
        let handle = unsafe { self.pmpi.mpi.read(array, index) };
        (handle, self.requests.get(&handle).is_some_and(|open| open.wild.is_some()))
    }

    /// Records the end of a request. `status` tells the message of a receive of any source or tag.
    pub(crate) fn ended(&mut self, request: Handle, status: Option<*const c_void>) {
        let Some(Open { id, wild }) = self.requests.remove(&request) else { return };
        let (mut from, mut tag) = (ANY, ANY);
        if let (Some(comm), Some(status)) = (wild, status) {
            let (source, of_message) = self.read_status(status);
            let ranks = self.contexts.get(&comm).map(|context| &context.ranks);
            let source = usize::try_from(source).ok().and_then(|source| ranks?.get(source).copied());
            (from, tag) = (source.unwrap_or(ANY), of_message.cast_unsigned());
        }
        self.writer.add(&Event::Wait { from, id, tag });
    }
}
