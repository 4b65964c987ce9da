//! The recording of a process's MPI calls (`FI_WEFT_RECORD`), for replay elsewhere.
//!
//! Place in the data flow: beside it. The exported functions pass their calls through [`around`]. Without a recording
//! that is one branch. The file's form is that of weft-record.
//!
//! Rules beside those of weft-record:
//! - Threads of a process are recorded as one, in the order in which their calls return.
//! - Persistent requests, one-sided calls, scans, and collectives with counts for each member are not recorded. Their
//!   time counts as computation.
//!
//! Invariant: no function of the MPI library is called under the lock, except those that only read an object.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use weft_client::Operation;
use weft_record::{ANY, Clock, Event, Source, VARIABLE, Writer};

use crate::mpi::{self, Abi, Handle, SUCCESS};
use crate::plan::{Buffer, Call, Function};
use crate::pmpi::{Constants, Pmpi};

pub(crate) mod ends;
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
            last_id: 0,
            last_context: 0,
        };
        recorder.define(constants.world, 0);
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

    /// A number for the request at this place; 0 without a place.
    fn request(&mut self, at: *mut c_void, wild: Option<Handle>) -> u32 {
        if at.is_null() {
            return 0;
        }
        self.last_id = self.last_id.wrapping_add(1).max(1);
        // SAFETY: the MPI library has written the program's request.
        let handle = unsafe { self.pmpi.mpi.read(at, 0) };
        self.requests.insert(handle, Open { id: self.last_id, wild });
        self.last_id
    }

    /// `MPI_ANY_SOURCE`.
    fn any_source(&self) -> c_int {
        if self.pmpi.mpi.abi() == Abi::Mpich { -2 } else { -1 }
    }

    /// Records a send. Without a place for a request it has ended.
    pub(crate) fn send(&mut self, message: Message, request: *mut c_void) {
        let bytes = self.bytes(message.count, message.datatype);
        let Context { number: context, ranks } = self.context(message.comm);
        let context = *context;
        let to = usize::try_from(message.peer).ok().and_then(|peer| ranks.get(peer).copied());
        let id = self.request(request, None);
        if let Some(to) = to {
            self.writer.add(&Event::Send { to, id, bytes, context, tag: message.tag.cast_unsigned() });
        }
    }

    /// Records a receive. One without a place for a request has ended, and `status` tells its message.
    pub(crate) fn receive(&mut self, message: Message, request: *mut c_void, status: *const c_void) {
        let bytes = self.bytes(message.count, message.datatype);
        let any = message.peer == self.any_source();
        let wild = (any || message.tag < 0).then_some(self.pmpi.mpi.handle(message.comm));
        let (source, tag) = if status.is_null() { (message.peer, message.tag) } else { self.read_status(status) };
        let Context { number: context, ranks } = self.context(message.comm);
        let context = *context;
        let from = usize::try_from(source).ok().and_then(|source| ranks.get(source).copied());
        let id = self.request(request, wild);
        if from.is_some() || any && id > 0 {
            let tag = if tag < 0 { ANY } else { tag.cast_unsigned() };
            self.writer.add(&Event::Receive { from: from.unwrap_or(ANY), id, bytes, context, tag });
        }
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
        let Function::Even(operation) = call.function else { return };
        // Only the root's own side of these is sure to have the length of a block.
        let is_root = |recorder: &Self| recorder.pmpi.rank(call.comm) == usize::try_from(call.root).ok();
        let Buffer { count, datatype, .. } = match operation {
            Operation::Gather if !is_root(self) => call.send,
            Operation::Scatter if is_root(self) => call.send,
            _ => call.recv,
        };
        let bytes = if operation == Operation::Barrier { 0 } else { self.bytes(count, datatype) };
        let context = self.context(call.comm).number;
        let id = self.request(request, None);
        // The order of both lists of operations is the same.
        let (operation, root) = (operation as u32, u32::try_from(call.root).unwrap_or(0));
        self.writer.add(&Event::Collective { operation, id, bytes, context, root });
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
