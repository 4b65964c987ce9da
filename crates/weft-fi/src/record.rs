//! The recording of a process's libfabric calls (`FI_WEFT_RECORD`), for replay elsewhere.
//!
//! Place in the data flow: beside it. A domain that is recorded gives its endpoints and queues other tables of
//! functions (`abi/transfer/recorded.rs`, `cq/recorded.rs`), which call the ordinary ones and report here. Without a
//! recording nothing of this is on any path. The file's form is that of weft-record.
//!
//! Rules beside those of weft-record:
//! - A process writes to FILE.fi.PID, from the first domain that it opens. Threads are recorded as one.
//! - If `libweft-coll.so` is loaded, it records the calls of MPI, and the provider records nothing.
//! - A receive is recorded when the client reads its entry. The message is then known, whatever the receive named.
//! - Connected endpoints, collectives, and operations that end by counters alone are not recorded as such. Their time
//!   counts as computation.
//! - All endpoints share the address vector of the first.
//!
//! Invariant: no other lock is taken under the lock, except that of the address vector.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use weft_engine::api::{Addr, Book};
use weft_engine::name::{EpName, Identity};
use weft_fi_sys as sys;
use weft_record::{ANY, Clock, Event, OWN, Source, Writer};

use crate::cq::ring::Entry;
use crate::observe::report;
use crate::params::Params;

/// Operations whose entries the client has not read, at most. Clients read most entries soon.
const MOST_REQUESTS: usize = 1 << 16;

/// Longest wait for the lock where its owner may be gone: in a forked child, and at the end of the process.
const STUCK: Duration = Duration::from_millis(100);

static CLOCK: Clock = Clock::new();
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// The recording of this process.
struct Recorder {
    writer: Writer,
    /// The process, whose forked children have recordings of their own.
    pid: u32,
    /// The names of peers, once an endpoint is enabled.
    book: Option<Book>,
    peers: FxHashMap<Addr, u32>,
    /// Operations by their contexts.
    requests: FxHashMap<usize, u32>,
    endpoints: u32,
    last_id: u32,
}

/// An operation that the client has started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Started {
    /// A message. `None`: without a tag.
    Send(Option<u64>),
    /// A write to the peer's memory, or an atomic operation there without a result.
    Write,
    /// A read of the peer's memory, or an atomic operation there with a result.
    Read,
}

/// The peer, length and context of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Started,
    pub(crate) to: Addr,
    pub(crate) bytes: usize,
    pub(crate) context: usize,
}

/// Whether the calls of a domain that opens are recorded. The first caller makes the file.
pub(crate) fn begin(params: &Params) -> bool {
    let Some(file) = params.record.as_deref().filter(|file| !file.is_empty()) else { return false };
    if report::has_profiling_library() {
        log::info!("libweft-coll.so is loaded and records the calls of MPI to {file}; the provider records nothing");
        return false;
    }
    let Some(mut recorder) = RECORDER.try_lock_for(STUCK) else { return false };
    if recorder.as_ref().is_none_or(|recorder| !recorder.is_ours()) {
        // A child must not write what its parent has kept.
        std::mem::forget(recorder.take());
        *recorder = Recorder::open(file);
    }
    recorder.is_some()
}

/// An endpoint is enabled, and uses this address vector.
pub(crate) fn enabled(name: &EpName, book: &Book) {
    with(|recorder| {
        recorder.writer.add_name(OWN | recorder.endpoints, &bytes(name));
        recorder.endpoints += 1;
        recorder.book.get_or_insert_with(|| book.clone());
        // A process that is killed soon is a rank all the same.
        recorder.writer.flush();
    });
}

/// An endpoint is closed. Its client may end the process without further calls.
pub(crate) fn closed() {
    with(|recorder| {
        if recorder.is_ours() {
            recorder.writer.flush();
        }
    });
}

/// The host is about to unload the provider.
pub(crate) fn at_end() {
    let Some(mut recorder) = RECORDER.try_lock_for(STUCK) else { return };
    if let Some(recorder) = recorder.as_mut().filter(|recorder| recorder.is_ours()) {
        recorder.writer.end();
    }
}

/// Passes a call on that starts an operation, and records its success.
pub(crate) fn around(call: impl FnOnce() -> isize, operation: impl FnOnce() -> Operation) -> isize {
    CLOCK.enter();
    let result = call();
    if result == 0 {
        with(|recorder| recorder.started(&operation()));
    }
    CLOCK.leave();
    result
}

/// A read begins.
pub(crate) fn entering() {
    CLOCK.enter();
}

/// A read ends without entries.
pub(crate) fn has_read_nothing() {
    CLOCK.leave_empty();
}

/// A read ends, and the client gets these entries. All are taken from the iterator.
pub(crate) fn has_read(entries: impl Iterator<Item = Entry>) {
    let mut recorder = RECORDER.lock();
    for entry in entries {
        if let Some(recorder) = recorder.as_mut() {
            recorder.ended(&entry);
        }
    }
    drop(recorder);
    CLOCK.leave();
}

fn with(f: impl FnOnce(&mut Recorder)) {
    if let Some(recorder) = RECORDER.lock().as_mut() {
        f(recorder);
    }
}

/// The bytes that name an endpoint in all recordings of a job.
fn bytes(name: &EpName) -> [u8; 16] {
    match name.identity() {
        Identity::Id(id) => id,
        Identity::Socket(mut address, port) => {
            address.iter_mut().zip(port.to_be_bytes()).for_each(|(byte, part)| *byte ^= part);
            address
        }
    }
}

/// A number of 32 bits for a tag. Messages without a tag have one of their own.
fn short(tag: Option<u64>) -> u32 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let Some(tag) = tag else { return ANY - 1 };
    // The factor spreads all bits of the tag over the upper half.
    let hash = u32::try_from(tag.wrapping_mul(FACTOR) >> 32).unwrap_or(0);
    hash.min(ANY - 2)
}

impl Recorder {
    fn open(file: &str) -> Option<Self> {
        let pid = std::process::id();
        let path = PathBuf::from(format!("{file}.fi.{pid}"));
        let writer = Writer::create(&path, (ANY, 0), Source::Provider, &CLOCK).inspect_err(|error| {
            // The writer may have made an empty file.
            let _ = fs::remove_file(&path);
            log::warn!("nothing is recorded, since {} cannot be made: {error}", path.display());
        });
        let (peers, requests) = (FxHashMap::default(), FxHashMap::default());
        Some(Self { writer: writer.ok()?, pid, book: None, peers, requests, endpoints: 0, last_id: 0 })
    }

    /// Whether this process has begun it, and not a parent. A child cannot use its parent's endpoints, so calls of
    /// endpoints need no check.
    fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The number of a peer. `None`: it is in no address vector.
    fn peer(&mut self, addr: Addr) -> Option<u32> {
        if let Some(&known) = self.peers.get(&addr) {
            return Some(known);
        }
        let name = self.book.as_ref()?.name(addr)?;
        let number = u32::try_from(self.peers.len()).ok()?;
        self.peers.insert(addr, number);
        self.writer.add_name(number, &bytes(&name));
        Some(number)
    }

    fn started(&mut self, operation: &Operation) {
        let Some(to) = self.peer(operation.to) else { return };
        let bytes = operation.bytes as u64;
        let id = if operation.context == 0 { 0 } else { self.request(operation.context) };
        self.writer.add(&match operation.kind {
            Started::Send(tag) => Event::Send { to, id, bytes, context: 0, tag: short(tag) },
            Started::Write => Event::Access { to, id, bytes, reads: false },
            Started::Read => Event::Access { to, id, bytes, reads: true },
        });
    }

    fn request(&mut self, context: usize) -> u32 {
        self.last_id = self.last_id.wrapping_add(1).max(1);
        if self.requests.len() >= MOST_REQUESTS {
            // The client has asked for no entries of these.
            self.requests.clear();
        }
        self.requests.insert(context, self.last_id);
        self.last_id
    }

    /// The client has read an entry.
    fn ended(&mut self, entry: &Entry) {
        if entry.flags & sys::FI_RECV == 0 {
            if let Some(id) = self.requests.remove(&entry.context) {
                self.writer.add(&Event::Wait { from: ANY, id, tag: ANY });
            }
            return;
        }
        let tag = (entry.flags & sys::FI_TAGGED != 0).then_some(entry.tag);
        if let Some(from) = self.peer(entry.src) {
            let bytes = entry.len as u64;
            self.writer.add(&Event::Receive { from, id: 0, bytes, context: 0, tag: short(tag) });
        }
    }
}
