//! Where completions go: from the engine's list to queue entries and counters.
//!
//! Place in the data flow: every call into the engine is followed by [`Routes::deliver`], under the endpoint's lock.
//! The operation said what it wants in its context's `user` word ([`User`]); what remains here is to look at the
//! binding and the outcome. Successes that nobody wants never get here: the engine was told to be quiet.
//!
//! Invariants (fi_endpoint(3), fi_cq(3), fi_cntr(3)): a failed operation always makes a queue entry and raises the
//! error count of its counter; a released multi-receive buffer always makes an entry; each operation is counted
//! exactly once, by the counter of its class, whether or not it makes an entry.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;
use slab::Slab;
use weft_engine::api::{ADDR_NONE, Completion, Context, Fault, Kind, OpFlags, SendOp};
use weft_engine::mem;
use weft_engine::{PeerNames, PooledReleases};
use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::abi::object::Hold;
use crate::addr::Format;
use crate::av::table::Table;
use crate::cntr::Cntr;
use crate::cq::fault;
use crate::cq::ring::{Entry, Failure};
use crate::cq::{Appender, Cq};
use crate::endpoint::cell::Eng;
use crate::endpoint::cell::deferred::Verdict;
use crate::endpoint::connection::Reports;
use crate::trigger::op::Report;

/// The `user` word of an operation's context: its completion flags, in the low half, and bits that libfabric
/// does not use; in the high half the number of deferred work ([`Routes::works`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User(u64);

impl User {
    /// A success shall make a queue entry.
    const ENTRY: u64 = 1;
    /// Not an operation that counters count (a peek).
    const UNCOUNTED: u64 = 1 << 7;
    /// The high half is a number. Set together with `UNCOUNTED`.
    const DEFERRED: u64 = 1 << 31;
    /// The completion flags.
    const FLAGS: u64 = 0xffff_ffff & !(Self::ENTRY | Self::UNCOUNTED | Self::DEFERRED);

    /// For an operation with these completion flags.
    #[inline]
    pub(crate) const fn new(flags: u64, entry: bool) -> Self {
        Self(flags | if entry { Self::ENTRY } else { 0 })
    }

    /// The same, ignored by counters.
    #[inline]
    pub(crate) const fn uncounted(self) -> Self {
        Self(self.0 | Self::UNCOUNTED)
    }

    /// What an operation's context carries. Not for remote events, which carry a key.
    #[inline]
    pub(crate) const fn of(ctx: Context) -> Self {
        Self(ctx.user)
    }

    /// The same for deferred work of this number.
    pub(crate) fn deferred(self, number: usize) -> Self {
        // Bounded by the depths of the endpoint's queues.
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Self((self.0 & (Self::FLAGS | Self::ENTRY)) | Self::UNCOUNTED | Self::DEFERRED | u64::from(number) << 32)
    }

    /// The number of deferred work.
    #[inline]
    pub(crate) fn number(self) -> Option<usize> {
        (self.0 & Self::DEFERRED != 0).then_some((self.0 >> 32) as usize)
    }

    /// As the engine carries it.
    #[inline]
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    const fn flags(self) -> u64 {
        self.0 & Self::FLAGS
    }

    const fn wants_entry(self) -> bool {
        self.0 & Self::ENTRY != 0
    }

    /// An entry is wanted, and nothing is particular about it.
    const fn is_plain(self) -> bool {
        self.0 & (Self::ENTRY | Self::UNCOUNTED) == Self::ENTRY
    }

    const fn is_counted(self) -> bool {
        self.0 & Self::UNCOUNTED == 0
    }
}

// The bits are free in the flags that operations put here.
const _: () = assert!(
    (sys::FI_SEND
        | sys::FI_RECV
        | sys::FI_MSG
        | sys::FI_TAGGED
        | sys::FI_RMA
        | sys::FI_READ
        | sys::FI_WRITE
        | sys::FI_ATOMIC)
        & !User::FLAGS
        == 0
);

/// What a counter of an endpoint counts: atomics as reads if they fetch, else as writes (fi_cntr(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// FI_SEND.
    Send,
    /// FI_RECV.
    Recv,
    /// FI_READ.
    Read,
    /// FI_WRITE.
    Write,
    /// FI_REMOTE_WRITE.
    RemoteWrite,
    /// FI_REMOTE_READ.
    RemoteRead,
}

impl Class {
    /// Every class with the flag that binds a counter to it.
    pub(crate) const FLAGS: [(Self, u64); 6] = [
        (Self::Send, sys::FI_SEND),
        (Self::Recv, sys::FI_RECV),
        (Self::Read, sys::FI_READ),
        (Self::Write, sys::FI_WRITE),
        (Self::RemoteWrite, sys::FI_REMOTE_WRITE),
        (Self::RemoteRead, sys::FI_REMOTE_READ),
    ];

    #[inline]
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Send => Self::Send,
            Kind::Recv => Self::Recv,
            Kind::Read | Kind::FetchAtomic => Self::Read,
            Kind::Write | Kind::Atomic => Self::Write,
            Kind::RemoteWrite => Self::RemoteWrite,
            // Nobody asks for that of connections.
            Kind::RemoteRead | Kind::Connection => Self::RemoteRead,
        }
    }
}

/// What the data path must know of the bindings before it enters the engine: which classes have a counter, and whether
/// entries of successes are selective. One byte, one load.
#[derive(Debug, Default)]
pub(crate) struct Bound(AtomicU8);

impl Bound {
    const TX_SELECTIVE: u8 = 1 << 6;
    const RX_SELECTIVE: u8 = 1 << 7;

    /// Whether successes of the class are counted.
    #[inline]
    pub(crate) fn counts(&self, class: Class) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << class as u8) != 0
    }

    /// Whether transmit successes make an entry only on request.
    #[inline]
    pub(crate) fn tx_selective(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::TX_SELECTIVE != 0
    }

    /// Whether receive successes make an entry only on request.
    #[inline]
    pub(crate) fn rx_selective(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::RX_SELECTIVE != 0
    }

    /// A counter was bound.
    pub(crate) fn set_counted(&self, class: Class) {
        self.0.fetch_or(1 << class as u8, Ordering::Relaxed);
    }

    /// The transmit queue was bound selectively.
    pub(crate) fn set_tx_selective(&self) {
        self.0.fetch_or(Self::TX_SELECTIVE, Ordering::Relaxed);
    }

    /// The receive queue was bound selectively.
    pub(crate) fn set_rx_selective(&self) {
        self.0.fetch_or(Self::RX_SELECTIVE, Ordering::Relaxed);
    }
}

/// The counters of one memory region.
#[derive(Clone, Default)]
pub(crate) struct RegionCounters {
    /// Raised by a peer's writes (FI_REMOTE_WRITE).
    pub(crate) write: Option<Hold<Cntr>>,
    /// Raised by a peer's reads (FI_REMOTE_READ).
    pub(crate) read: Option<Hold<Cntr>>,
}

/// What is bound to an endpoint.
#[derive(Default)]
pub(crate) struct Routes {
    /// Completions of sends, RMA and atomics.
    pub(crate) tx: Option<Hold<Cq>>,
    /// Completions of receives and of peers' writes with data.
    pub(crate) rx: Option<Hold<Cq>>,
    /// By class.
    pub(crate) counters: [Option<Hold<Cntr>>; 6],
    /// By class: successes do not only make entries, or not as the engine has them.
    pub(super) watched: [bool; 6],
    /// What completions name sources by, if not by their addresses (FI_AV_USER_ID).
    pub(super) user_ids: Option<Arc<Table>>,
    /// By key: regions with counters of their own.
    pub(crate) regions: FxHashMap<u64, RegionCounters>,
    /// Counters that drive this endpoint and are not bound to it: those of regions, also of regions that have
    /// gone since, of other contexts of the same scalable endpoint, of deferred work.
    pub(crate) drivers: Vec<Weak<Cntr>>,
    /// Queues of other contexts of the same scalable endpoint that drive this one.
    pub(crate) foreign: Vec<Weak<Cq>>,
    /// In which format the client writes addresses.
    pub(crate) format: Format,
    /// Context of errors that belong to no operation: the endpoint's.
    pub(crate) context: usize,
    /// The progress thread is at work here: it enters queues by its own right.
    pub(crate) visited: bool,
    /// Where connections are reported (FI_EP_MSG).
    pub(crate) reports: Option<Reports>,
    /// Deferred work whose operation is under way.
    pub(crate) works: RefCell<Slab<Report>>,
    /// Operations that have failed, and that were refused for want of room.
    pub(super) failures: Cell<u64>,
    pub(super) again: Cell<u64>,
}

impl Routes {
    /// Whether transmit operations are refused: until the client has read its queue, or for want of one
    /// ([`Self::tx_refusal`]).
    #[inline]
    pub(crate) fn tx_full(&self) -> bool {
        self.tx.as_ref().is_none_or(|cq| cq.is_full())
    }

    /// The answer to a transmit operation that is refused. Without a queue it could not complete anywhere
    /// (fi_endpoint(3)).
    #[cold]
    pub(crate) fn tx_refusal(&self) -> isize {
        if self.tx.is_some() { Errno::AGAIN.size() } else { Errno::NOCQ.size() }
    }

    /// Whether receives must wait.
    #[inline]
    pub(crate) fn rx_full(&self) -> bool {
        self.rx.as_ref().is_some_and(|cq| cq.is_full())
    }

    /// Whether a queue is so far over its size that even what peers send must wait.
    #[inline]
    pub(crate) fn flooded(&self) -> bool {
        self.rx.as_ref().is_some_and(|cq| cq.is_flooded())
    }

    /// What counts a class.
    pub(crate) fn set_counter(&mut self, class: Class, cntr: Hold<Cntr>) {
        self.counters[class as usize] = Some(cntr);
        self.watched[class as usize] = true;
    }

    /// Completions name sources by the numbers that this table has for that.
    pub(crate) fn set_user_ids(&mut self, table: Arc<Table>) {
        self.user_ids = Some(table);
        self.watched[Class::Recv as usize] = true;
    }

    /// The counters of a region.
    pub(crate) fn set_region_counters(&mut self, key: u64, counters: RegionCounters) {
        for cntr in [&counters.write, &counters.read].into_iter().flatten() {
            self.add_driver(cntr.arc());
        }
        self.regions.insert(key, counters);
    }

    /// A counter drives this endpoint, which must tell whoever sleeps there, and forgets it when it closes.
    pub(crate) fn add_driver(&mut self, cntr: &Arc<Cntr>) {
        note(&mut self.drivers, cntr);
    }

    /// A queue of another context drives this one; the same holds.
    pub(crate) fn add_foreign(&mut self, cq: &Arc<Cq>) {
        note(&mut self.foreign, cq);
    }

    /// Whether peers' accesses are counted.
    pub(crate) fn counts_remote(&self) -> bool {
        [Class::RemoteWrite, Class::RemoteRead].into_iter().any(|class| self.counters[class as usize].is_some())
    }

    /// Wakes whoever sleeps on what drives this endpoint: its queues and counters, and those that are not bound to it.
    pub(crate) fn notify(&self) {
        for cq in [&self.tx, &self.rx].into_iter().flatten() {
            cq.notify();
        }
        for cntr in self.counters.iter().flatten() {
            cntr.notify();
        }
        self.foreign.iter().filter_map(Weak::upgrade).for_each(|cq| cq.notify());
        self.drivers.iter().filter_map(Weak::upgrade).for_each(|cntr| cntr.notify());
        if let Some(reports) = &self.reports {
            reports.eq.notify();
        }
    }

    /// Hands the engine's completions to queues and counters, and empties its list. True: programs can go on
    /// ([`Cntr::add`]).
    #[inline]
    #[must_use]
    pub(crate) fn deliver(&self, engine: &mut Eng) -> bool {
        !engine.completions().is_empty() && self.deliver_some(engine)
    }

    /// The endpoint closes: of the engine's completions only those of receives are handed on, the others
    /// forgotten. True: programs can go on.
    pub(super) fn deliver_received(&self, engine: &mut Eng) -> bool {
        engine.completions().retain(|completion| completion.kind == Kind::Recv);
        self.deliver(engine)
    }

    /// A send was complete when the call returned. True: programs can go on.
    #[inline(always)]
    pub(crate) fn sent(&self, op: &SendOp<'_>) -> bool {
        let user = User(op.ctx.user);
        let mut fired = false;
        if let Some(cntr) = &self.counters[Class::Send as usize] {
            fired = cntr.record(mem::total_len(op.iov), false);
        }
        if user.wants_entry()
            && let Some(cq) = &self.tx
        {
            cq.appender(false).push(Self::transmitted(op.ctx.ptr, user));
        }
        fired
    }

    #[inline(always)]
    fn transmitted(context: usize, user: User) -> Entry {
        Entry {
            context,
            flags: user.flags(),
            len: 0,
            buf: 0,
            data: 0,
            tag: 0,
            src: sys::FI_ADDR_NOTAVAIL,
            failed: false,
        }
    }

    /// Hands on the completions of one kind that come first and of which only an entry is to be made: most
    /// often these are all. Returns how many there were.
    #[inline(always)]
    fn deliver_run(&self, completions: &[Completion]) -> usize {
        let Some(kind) = completions.first().map(|completion| completion.kind) else { return 0 };
        let cq = match kind {
            Kind::RemoteWrite | Kind::RemoteRead | Kind::Connection => return 0,
            Kind::Recv => &self.rx,
            _ => &self.tx,
        };
        let Some(cq) = cq.as_deref().filter(|_| !self.watched[Class::of(kind) as usize]) else { return 0 };
        let plain = |completion: &&Completion| {
            completion.kind == kind
                && completion.fault.is_none()
                && !completion.flags.intersects(OpFlags::MULTI.union(OpFlags::POOLED))
                && User(completion.ctx.user).is_plain()
        };
        if completions.first().is_none_or(|completion| !plain(&completion)) {
            return 0;
        }
        let mut appender = cq.appender(self.visited);
        let mut done = 0;
        for completion in completions.iter().take_while(plain) {
            let user = User(completion.ctx.user);
            if kind == Kind::Recv {
                appender.push(Self::received(completion, completion.ctx.ptr, user.flags()));
            } else {
                appender.push(Self::transmitted(completion.ctx.ptr, user));
            }
            done += 1;
        }
        done
    }

    #[inline(never)]
    fn deliver_some(&self, engine: &mut Eng) -> bool {
        let completions = engine.completions();
        let done = self.deliver_run(completions);
        if done < completions.len() {
            return self.deliver_rest(engine, done);
        }
        completions.clear();
        false
    }

    /// Hands on the completions behind the first `done`, and empties the list. True: programs can go on.
    #[inline(never)]
    fn deliver_rest(&self, engine: &mut Eng, done: usize) -> bool {
        let (completions, peers, releases) = engine.outcome();
        let rest = completions.get_mut(done..).unwrap_or_default();
        let (fired, connection) =
            if releases.is_empty() { self.hand_on(rest, peers) } else { self.hand_on_leaving(rest, peers, releases) };
        completions.clear();
        if connection {
            self.report_connection(engine);
        }
        fired
    }

    /// The same where messages leave multi-receives that this endpoint shares: each is in its queue before
    /// the pool says of another one that it is the last.
    #[cold]
    fn hand_on_leaving(
        &self,
        completions: &mut [Completion],
        peers: PeerNames<'_>,
        mut releases: PooledReleases<'_>,
    ) -> (bool, bool) {
        let mut outcome = (false, false);
        for completion in completions {
            let left =
                completion.flags.contains(OpFlags::POOLED).then(|| releases.next(&mut completion.flags)).flatten();
            let (fired, connection) = self.hand_on(std::slice::from_ref(completion), peers);
            drop(left);
            outcome = (outcome.0 | fired, outcome.1 | connection);
        }
        outcome
    }

    /// Whether programs can go on, and whether there is news of the connection.
    #[inline(always)]
    fn hand_on(&self, completions: &[Completion], peers: PeerNames<'_>) -> (bool, bool) {
        let (mut fired, mut connection) = (false, false);
        // The queue that the last entry went to stays locked for the next one.
        let mut open: Option<Appender<'_>> = None;
        for completion in completions {
            let user = User(completion.ctx.user);
            let (cq, wanted, mut counted) = match completion.kind {
                Kind::Send | Kind::Read | Kind::Write | Kind::Atomic | Kind::FetchAtomic => {
                    (&self.tx, user.wants_entry(), user.is_counted())
                }
                Kind::Recv => {
                    let wanted = user.wants_entry() || completion.flags.contains(OpFlags::MULTI);
                    (&self.rx, wanted, user.is_counted())
                }
                // Here the word is not one of ours but the region's key.
                Kind::RemoteWrite | Kind::RemoteRead => {
                    if !completion.flags.contains(OpFlags::ENDPOINT) {
                        fired |= self.count_remote(completion);
                    }
                    if completion.flags.contains(OpFlags::REGION) {
                        continue;
                    }
                    (&self.rx, completion.flags.contains(OpFlags::DATA), true)
                }
                Kind::Connection => {
                    connection = true;
                    continue;
                }
            };
            if !counted && let Some(number) = user.number() {
                let (more, verdict) = self.finish_work(number, completion);
                fired |= more;
                match verdict {
                    Verdict::AsAny => counted = true,
                    Verdict::EntryOnly => {}
                    Verdict::Silent => continue,
                }
            }
            if counted && let Some(cntr) = &self.counters[Class::of(completion.kind) as usize] {
                fired |= cntr.record(completion.len, completion.fault.is_some_and(is_failure));
            }
            let wanted = wanted || completion.fault.is_some_and(is_failure);
            let Some(cq) = cq.as_deref().filter(|_| wanted) else { continue };
            let appender = match &mut open {
                Some(appender) if appender.is_for(cq) => appender,
                other => {
                    drop(other.take());
                    other.insert(cq.appender(self.visited))
                }
            };
            let mut entry = self.entry(completion);
            if let Some(table) = &self.user_ids {
                entry.src = table.user_id(entry.src);
            }
            match completion.fault {
                None => appender.push(entry),
                Some(fault) => appender.push_failed(entry, self.failure(fault, peers)),
            }
        }
        (fired, connection)
    }

    /// Raises the counters of the region that a peer has reached. True: programs can go on.
    ///
    /// A fetching atomic operation is a read to an endpoint's counters (fi_endpoint(3)), but where it changes
    /// the region it is a write, too, to those of the region (fi_mr(3)): clients sleep on them until memory
    /// has changed.
    #[cold]
    fn count_remote(&self, completion: &Completion) -> bool {
        let Some(region) = self.regions.get(&completion.ctx.user) else { return false };
        let read = region.read.as_ref().filter(|_| completion.kind == Kind::RemoteRead);
        let wrote = completion.kind == Kind::RemoteWrite || completion.flags.contains(OpFlags::CHANGES);
        let write = region.write.as_ref().filter(|cntr| wrote && !read.is_some_and(|read| read.same(cntr)));
        let mut fired = false;
        for cntr in read.into_iter().chain(write) {
            fired |= cntr.record(completion.len, completion.fault.is_some());
        }
        fired
    }

    #[inline(always)]
    fn entry(&self, completion: &Completion) -> Entry {
        match completion.kind {
            Kind::Send | Kind::Read | Kind::Write | Kind::Atomic | Kind::FetchAtomic => {
                Self::transmitted(completion.ctx.ptr, User(completion.ctx.user))
            }
            Kind::Recv => {
                let multi = if completion.flags.contains(OpFlags::MULTI) { sys::FI_MULTI_RECV } else { 0 };
                Self::received(completion, completion.ctx.ptr, User(completion.ctx.user).flags() | multi)
            }
            // Nobody posted an operation for it.
            Kind::RemoteWrite => Self::received(completion, 0, remote_family(completion) | sys::FI_REMOTE_WRITE),
            Kind::RemoteRead | Kind::Connection => {
                Self::received(completion, self.context, remote_family(completion) | sys::FI_REMOTE_READ)
            }
        }
    }

    /// What an error entry says about a fault.
    #[cold]
    fn failure(&self, fault: Fault, peers: PeerNames<'_>) -> Failure {
        self.failures.update(|failures| failures + u64::from(is_failure(fault)));
        let olen = if let Fault::Truncated(bytes) = fault { bytes } else { 0 };
        let source = if let Fault::Stranger(number) = fault { peers.name(number) } else { None };
        // Nothing, if the address cannot be written in the client's format.
        let data = source.and_then(|name| self.format.encode(&name).ok()).unwrap_or_default();
        Failure { err: Errno::from(fault).get(), prov_errno: fault::number(fault), olen, data }
    }

    #[inline(always)]
    fn received(completion: &Completion, context: usize, flags: u64) -> Entry {
        let data = completion.flags.contains(OpFlags::DATA);
        Entry {
            context,
            flags: flags | if data { sys::FI_REMOTE_CQ_DATA } else { 0 },
            len: completion.len,
            buf: completion.buf,
            data: completion.data,
            tag: completion.tag,
            // No source is the same number to the engine and to libfabric.
            src: completion.src,
            failed: false,
        }
    }
}

/// Adds what is not in the list, from which goes what is not there any more.
fn note<T>(list: &mut Vec<Weak<T>>, new: &Arc<T>) {
    if !list.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(new))) {
        list.retain(|known| known.strong_count() > 0);
        list.push(Arc::downgrade(new));
    }
}

/// Whether the operation has failed: all but a message of a stranger, which has been received well.
pub(super) const fn is_failure(fault: Fault) -> bool {
    !matches!(fault, Fault::Stranger(_))
}

/// Which family of operations a peer has reached us by.
const fn remote_family(completion: &Completion) -> u64 {
    if completion.flags.contains(OpFlags::ATOMIC) { sys::FI_ATOMIC } else { sys::FI_RMA }
}

const _: () = assert!(ADDR_NONE == sys::FI_ADDR_NOTAVAIL);
