//! The report of a process: its traffic over weft, kept up to date while it runs.
//!
//! Place in the data flow: beside it. Each open endpoint has a `Part` in the process's record. It compares the
//! counters of its engine with those that it has reported, and adds the difference: when the endpoint opens, in rounds
//! of progress ([`weft_observe`] has the occasions), and when the endpoint closes. FI_WEFT_REPORT has two forms:
//!
//! - `1`: a line for people on standard error, when the last endpoint closes and at the end of the process.
//! - `TOKEN@/proc/PID/fd/N`: the record is for `weft run`, which has made a memfd of the name `weft-report-TOKEN`
//!   ([`record`]). The process has a record from the moment in which libfabric loads the provider.
//!
//! Messages are counted where they are sent, so that the sums of all ranks count each message once.
//!
//! Errors: a record that cannot be made is replaced by lines; nothing else is affected.

pub mod line;
pub mod record;

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use weft_engine::Engine;
use weft_nic::Device;

use crate::endpoint::cell::{AnyCell, CellRef};
use crate::params::Params;
use line::{Counts, Traffic};
use record::{Place, Record};
use weft_observe::INTERVAL;

/// Longest wait for a lock at the end of the program, in a signal handler for example.
const STUCK: Duration = Duration::from_millis(100);
/// Updates of an endpoint that do not wait for a tick of the clock, so that a short program's counters are recent.
const EARLY_UPDATES: u32 = 256;
/// Peers up to which an endpoint adds its counters at each tick. Other endpoints do so every [`INTERVAL`].
const FEW_PEERS: usize = 64;

/// The report of this process. A forked child starts with its parent's.
struct Ours {
    record: Arc<Record>,
    open: Vec<Weak<dyn AnyCell>>,
}

static OURS: Mutex<Option<Ours>> = Mutex::new(None);

impl Ours {
    /// The report of this process, which is made for the first caller.
    fn of(ours: &mut Option<Self>, place: Place) -> &mut Self {
        let known = ours.take().filter(|known| known.record.is_ours());
        ours.insert(known.unwrap_or_else(|| Self { record: Arc::new(Record::new(place)), open: Vec::new() }))
    }
}

/// An endpoint's part in the record of its process.
pub(crate) struct Part {
    record: Arc<Record>,
    /// The counters that the record has.
    reported: Counts,
    early: u32,
    updated_ns: u64,
}

impl Part {
    /// The part of an endpoint that opens. `None`: no report is wanted.
    pub(crate) fn new(params: &Params) -> Option<Self> {
        let place = Place::parse(params.report.as_deref()?)?;
        let record = Arc::clone(&Ours::of(&mut OURS.lock(), place).record);
        Some(Self { record, reported: Counts::default(), early: EARLY_UPDATES, updated_ns: 0 })
    }

    /// Updates the record at a tick of the clock.
    pub(crate) fn update_if_due<D: Device>(&mut self, engine: &mut Engine<D>, now_ns: u64, failures: u64) {
        let interval_ns = match () {
            () if engine.peer_count() > FEW_PEERS => u64::try_from(INTERVAL.as_nanos()).unwrap_or(u64::MAX),
            () if self.early > 0 => 0,
            () => 1,
        };
        if now_ns.saturating_sub(self.updated_ns) >= interval_ns && self.record.is_ours() {
            self.early = self.early.saturating_sub(1);
            self.updated_ns = now_ns;
            self.update(engine, failures, true);
            self.record.forward_if_due(now_ns);
        }
    }

    /// Adds the growth of the endpoint's counters to the record.
    pub(crate) fn update<D: Device>(&mut self, engine: &mut Engine<D>, failures: u64, is_open: bool) {
        let mut counts = Counts { endpoints: 1, open: is_open.into(), failures, ..Counts::default() };
        for number in 0..engine.peer_count() {
            let Some(peer) = engine.peer_report(number) else { continue };
            let sum = if peer.in_memory { &mut counts.shm } else { &mut counts.tcp };
            sum.add(Traffic {
                messages: peer.sent.messages.saturating_add(peer.sent.accesses),
                bytes: peer.sent.bytes.saturating_add(peer.sent.access_bytes),
            });
            counts.unreached += u64::from(peer.calls_failed > 0 && peer.links_up == 0);
        }
        self.record.add(self.reported, counts);
        self.reported = counts;
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.record.is_ours() {
            self.record.add(self.reported, Counts { open: 0, ..self.reported });
        }
    }
}

/// The host has loaded the provider. A program that waits for reports gets one of a process without endpoints, too.
pub(crate) fn loaded() {
    // The host's table of variables is not complete yet.
    let place = std::env::var("FI_WEFT_REPORT").ok().as_deref().and_then(Place::parse);
    if let Some(place @ Place::Program { .. }) = place {
        Ours::of(&mut OURS.lock(), place);
    }
}

/// weft has found a fault that only the user can remedy.
pub(crate) fn faulty(text: &str) {
    // The fault may have occurred under the lock.
    let Some(ours) = OURS.try_lock() else { return };
    if let Some(Ours { record, .. }) = ours.as_ref().filter(|ours| ours.record.is_ours()) {
        record.note_fault(text);
    }
}

/// An endpoint is enabled.
pub(crate) fn opened(cell: &CellRef) {
    if let Some(Ours { open, .. }) = OURS.lock().as_mut() {
        open.retain(|known| known.strong_count() > 0);
        open.push(Arc::downgrade(cell));
    }
}

/// An endpoint is closed. With the last one, the report is complete.
pub(crate) fn closed(cell: &CellRef) {
    let mut ours = OURS.lock();
    let Some(Ours { record, open }) = ours.as_mut().filter(|ours| ours.record.is_ours()) else { return };
    let before = open.len();
    open.retain(|known| !std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(cell)));
    if open.is_empty() && before > 0 {
        record.finish(true);
    }
}

/// The host is about to unload the provider. Open endpoints are added.
pub(crate) fn at_end() {
    let Some(mut ours) = OURS.try_lock_for(STUCK) else { return };
    // A forked child has endpoints of its own, or nothing to report.
    let Some(Ours { record, open }) = ours.as_mut().filter(|ours| ours.record.is_ours()) else { return };
    let open = std::mem::take(open);
    for cell in open.iter().filter_map(Weak::upgrade) {
        // A thread that ended inside the endpoint keeps its lock.
        cell.finish_report();
    }
    record.finish(!open.is_empty());
}

/// Whether this process has loaded the profiling library.
pub(crate) fn has_profiling_library() -> bool {
    Profiling::find().is_some()
}

/// The counters of the profiling library.
struct Profiling {
    /// Collectives that it has run, and those that it has left alone.
    collectives: &'static [AtomicU64; 2],
    /// Whether it completes node communicators, and how many stayed small. A former version lacks them.
    nodes: Option<&'static [AtomicU64; 2]>,
}

impl Profiling {
    /// The counters, if this process has loaded the library.
    fn find() -> Option<Self> {
        let find = |name: &CStr| -> Option<&'static [AtomicU64; 2]> {
            // SAFETY: a look-up by a name that ends in a zero.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // SAFETY: libweft-coll.so defines the names as this type. A preloaded library is never unloaded.
            NonNull::new(found.cast()).map(|counts| unsafe { counts.as_ref() })
        };
        Some(Self { collectives: find(c"weft_coll_counts")?, nodes: find(c"weft_coll_nodes") })
    }

    /// Their values, in this order.
    fn read(&self) -> [u64; 4] {
        let read = |counts: &[AtomicU64; 2]| counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let ([by_weft, left], [completes, small]) = (read(self.collectives), self.nodes.map_or([0; 2], read));
        [by_weft, left, completes, small]
    }
}
