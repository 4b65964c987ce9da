//! The objects that are bound to an endpoint, and the way of its completions to them.
//!
//! Place in the data flow: [`crate::endpoint::bind`] and enable fill the [`Routes`]. Every call into the engine is
//! followed by [`Routes::deliver`], under the endpoint's lock.
//!
//! Invariants (fi_endpoint(3), fi_cq(3), fi_cntr(3)):
//!
//! - A failed operation always makes a queue entry and raises the error count of its counter.
//! - A released multi-receive buffer always makes an entry.
//! - Each operation is counted exactly once, by the counter of its class, whether or not it makes an entry.

mod class;
mod deferred;
mod deliver;

use std::cell::Cell;
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;
use weft_engine::Engine;
use weft_engine::api::{RecvFlags, RecvOp};
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::Hold;
use crate::addr::Format;
use crate::av::table::Table;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::endpoint::cell::CellRef;
use crate::endpoint::connection::Reports;
pub(super) use crate::endpoint::route::class::{Bound, Class, User};
pub(super) use crate::endpoint::route::deferred::DeferredReports;
use crate::trigger::op::Op;

/// The counters of one memory region.
#[derive(Clone, Default)]
pub(crate) struct RegionCounters {
    /// Raised by a peer's writes (FI_REMOTE_WRITE).
    pub(crate) write: Option<Hold<Cntr>>,
    /// Raised by a peer's reads (FI_REMOTE_READ).
    pub(crate) read: Option<Hold<Cntr>>,
}

/// The objects that are bound to an endpoint, and those whose readers drive it.
#[derive(Default)]
pub(super) struct Routes {
    /// The queue of sends, RMA and atomics.
    tx: Option<Hold<Cq>>,
    /// The queue of receives and of peers' writes with data.
    rx: Option<Hold<Cq>>,
    /// The counters, by class.
    counters: [Option<Hold<Cntr>>; 6],
    /// By class: whether a success needs more than the engine's entry, such as a counter or another entry.
    needs_care: [bool; 6],
    /// The table of the numbers by which completions name sources, with FI_AV_USER_ID.
    user_ids: Option<Arc<Table>>,
    /// Regions that have counters of their own, by key.
    regions: FxHashMap<u64, RegionCounters>,
    /// Counters that drive this endpoint without being bound to it: those of regions (also of closed ones), of
    /// other contexts of the same scalable endpoint, and of deferred work.
    driving_counters: Vec<Weak<Cntr>>,
    /// Queues of other contexts of the same scalable endpoint, which drive this one.
    driving_queues: Vec<Weak<Cq>>,
    /// The format in which the client writes addresses.
    format: Format,
    /// The endpoint's context, for errors that belong to no operation.
    context: usize,
    /// The progress thread works on the endpoint and has its own right to enter queues.
    pub(super) visited: bool,
    /// Where connections are reported (FI_EP_MSG).
    reports: Option<Reports>,
    /// Deferred work whose operation is under way.
    pub(super) works: DeferredReports,
    /// Number of operations that have failed.
    failures: Cell<u64>,
    /// Number of operations that were refused for lack of room.
    refusals: Cell<u64>,
}

/// Setup: bindings and sources of progress.
impl Routes {
    /// Routes of an endpoint without bindings.
    pub(super) fn new(format: Format, context: usize) -> Self {
        Self { format, context, ..Self::default() }
    }

    /// Whether a queue for transmit operations is bound.
    pub(super) fn has_tx(&self) -> bool {
        self.tx.is_some()
    }

    /// Whether a queue for receives is bound.
    pub(super) fn has_rx(&self) -> bool {
        self.rx.is_some()
    }

    /// Whether the queue is bound in which the operation completes.
    pub(super) fn has_queue_for(&self, op: &Op) -> bool {
        if op.receives() { self.has_rx() } else { self.has_tx() }
    }

    /// Whether a counter is bound to the class.
    pub(super) fn has_counter(&self, class: Class) -> bool {
        self.counters[class as usize].is_some()
    }

    /// Whether peers' accesses are counted.
    pub(super) fn counts_remote(&self) -> bool {
        [Class::RemoteWrite, Class::RemoteRead].into_iter().any(|class| self.has_counter(class))
    }

    /// Binds the queue of transmit operations.
    pub(super) fn set_tx(&mut self, cq: Hold<Cq>) {
        self.tx = Some(cq);
    }

    /// Binds the queue of receives.
    pub(super) fn set_rx(&mut self, cq: Hold<Cq>) {
        self.rx = Some(cq);
    }

    /// Binds a counter to a class.
    pub(super) fn set_counter(&mut self, class: Class, cntr: Hold<Cntr>) {
        self.counters[class as usize] = Some(cntr);
        self.needs_care[class as usize] = true;
    }

    /// Has completions name sources by the numbers of this table.
    pub(super) fn set_user_ids(&mut self, table: Arc<Table>) {
        self.user_ids = Some(table);
        self.needs_care[Class::Recv as usize] = true;
    }

    /// Sets where connections are reported.
    pub(super) fn set_reports(&mut self, reports: Option<Reports>) {
        self.reports = reports;
    }

    /// Where connections are reported.
    pub(super) fn reports(&self) -> Option<&Reports> {
        self.reports.as_ref()
    }

    /// Whether completions wait because the end of the connection must not be reported yet.
    #[inline]
    pub(super) fn holds_end<D: Device>(&self, engine: &Engine<D>) -> bool {
        self.reports.as_ref().is_some_and(|reports| reports.holds_end(engine))
    }

    /// The endpoint's context.
    pub(super) fn context(&self) -> usize {
        self.context
    }

    /// Sets the counters of a region.
    pub(super) fn set_region_counters(&mut self, key: u64, counters: RegionCounters) {
        for cntr in [&counters.write, &counters.read].into_iter().flatten() {
            self.add_driving_counter(cntr.arc());
        }
        self.regions.insert(key, counters);
    }

    /// Forgets the counters of a region.
    pub(super) fn remove_region(&mut self, key: u64) {
        self.regions.remove(&key);
    }

    /// Notes a counter that drives this endpoint. The endpoint wakes the counter's waiters, and leaves the counter
    /// when it closes.
    pub(super) fn add_driving_counter(&mut self, cntr: &Arc<Cntr>) {
        note(&mut self.driving_counters, cntr);
    }

    /// Notes a queue of another context that drives this endpoint. The endpoint wakes the queue's readers, and
    /// leaves the queue when it closes.
    pub(super) fn add_driving_queue(&mut self, cq: &Arc<Cq>) {
        note(&mut self.driving_queues, cq);
    }

    /// The bound queues and counters.
    pub(super) fn bound(&self) -> (Vec<Arc<Cq>>, Vec<Arc<Cntr>>) {
        let queues = [&self.tx, &self.rx].into_iter().flatten().map(|cq| Arc::clone(cq.arc())).collect();
        let counters = self.counters.iter().flatten().map(|cntr| Arc::clone(cntr.arc())).collect();
        (queues, counters)
    }

    /// Numbers of queues and counters that drive this endpoint without being bound to it.
    #[cfg(test)]
    pub(super) fn driving(&self) -> (usize, usize) {
        (self.driving_queues.len(), self.driving_counters.len())
    }
}

/// Data path: admission of operations.
impl Routes {
    /// Whether transmit operations are refused: until the client has read its queue, or for lack of a queue
    /// ([`Self::tx_refusal`]).
    #[inline]
    pub(super) fn tx_full(&self) -> bool {
        self.tx.as_ref().is_none_or(|cq| cq.is_full())
    }

    /// The answer to a transmit operation that is refused. Without a queue it could not complete anywhere
    /// (fi_endpoint(3)).
    #[cold]
    pub(super) fn tx_refusal(&self) -> isize {
        if self.tx.is_some() { Errno::AGAIN.size() } else { Errno::NOCQ.size() }
    }

    /// Whether receives must wait until the client has read its queue.
    #[inline]
    pub(super) fn rx_full(&self) -> bool {
        self.rx.as_ref().is_some_and(|cq| cq.is_full())
    }

    /// The answer to a receive that is refused.
    #[inline(always)]
    pub(super) fn rx_refusal(&self, op: &RecvOp<'_>) -> Option<isize> {
        match &self.rx {
            Some(cq) if !cq.is_full() => None,
            // Messages that wait for a buffer go into the queue in any case, and clients that post the next
            // multi-receive while they read (GASNet) do not handle a refusal.
            Some(cq) if op.flags.contains(RecvFlags::MULTI) && !cq.is_flooded() => None,
            Some(_) => Some(Errno::AGAIN.size()),
            // The receive could not complete anywhere (fi_endpoint(3): -FI_ENOCQ).
            None => Some(Errno::NOCQ.size()),
        }
    }

    /// Whether a queue is so far over its size that even messages of peers must wait.
    #[inline]
    pub(super) fn flooded(&self) -> bool {
        self.rx.as_ref().is_some_and(|cq| cq.is_flooded())
    }

    /// Counts an operation that was refused for lack of room.
    pub(super) fn count_refusal(&self) {
        self.refusals.update(|refusals| refusals + 1);
    }

    /// Number of operations that were refused for lack of room.
    pub(super) fn refusals(&self) -> u64 {
        self.refusals.get()
    }

    /// Number of operations that have failed.
    pub(super) fn failures(&self) -> u64 {
        self.failures.get()
    }
}

/// Wake and close.
impl Routes {
    /// Wakes the threads that sleep on an object that drives this endpoint.
    pub(super) fn notify(&self) {
        for cq in [&self.tx, &self.rx].into_iter().flatten() {
            cq.notify();
        }
        for cntr in self.counters.iter().flatten() {
            cntr.notify();
        }
        self.driving_queues.iter().filter_map(Weak::upgrade).for_each(|cq| cq.notify());
        self.driving_counters.iter().filter_map(Weak::upgrade).for_each(|cntr| cntr.notify());
        if let Some(reports) = &self.reports {
            reports.eq.notify();
        }
    }

    /// Ends the progress thread's visits to the bound queues.
    pub(super) fn end_visits(&self) {
        for cq in [&self.tx, &self.rx].into_iter().flatten() {
            cq.end_visits();
        }
    }

    /// Removes the endpoint from every object that drives it. Counters of regions may be closed from then on.
    pub(super) fn detach(&mut self, cell: &CellRef) {
        for cq in [&self.tx, &self.rx].into_iter().flatten() {
            cq.sources().remove(cell);
        }
        for cntr in self.counters.iter().flatten() {
            cntr.sources().remove(cell);
        }
        for cq in self.driving_queues.iter().filter_map(Weak::upgrade) {
            cq.sources().remove(cell);
        }
        for cntr in self.driving_counters.iter().filter_map(Weak::upgrade) {
            cntr.sources().remove(cell);
        }
        self.regions.clear();
    }
}

/// Adds an object to a list, unless it is there, and drops the objects that no longer exist.
fn note<T>(list: &mut Vec<Weak<T>>, new: &Arc<T>) {
    if !list.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(new))) {
        list.retain(|known| known.strong_count() > 0);
        list.push(Arc::downgrade(new));
    }
}
