//! Delivery of completions: from the engine's list to queue entries and counters.
//!
//! Place in the data flow: [`Routes::deliver`] follows every call into the engine. The `user` word of the operation's
//! context says which reports it wants ([`User`]). Delivery combines it with the bindings and the outcome. Successes
//! that make neither an entry nor a count have `OpFlags::QUIET`, and never get here.

use weft_engine::api::{ADDR_NONE, Completion, CompletionFlags, Context, Fault, Kind, SendOp};
use weft_engine::{Engine, PeerNames, PooledReleases, mem};
use weft_fi_sys as sys;
use weft_nic::Device;

use super::class::{Class, User};
use super::deferred::Verdict;
use super::{RegionCounters, Routes};
use crate::abi::errno::Errno;
use crate::cq::ring::{Entry, Failure};
use crate::cq::{Appender, Cq, Reading, fault};

/// The effects of delivered completions.
#[derive(Clone, Copy, Default)]
struct Delivered {
    /// Programs can continue ([`Cntr::add`](crate::cntr::Cntr::add)).
    released: bool,
    /// The engine has events of the endpoint's connection.
    connection: bool,
}

impl Routes {
    /// Hands the engine's completions to queues and counters, and empties its list. Returns whether programs can
    /// continue ([`Cntr::add`](crate::cntr::Cntr::add)).
    #[inline]
    #[must_use]
    pub(in crate::endpoint) fn deliver<D: Device>(
        &self,
        engine: &mut Engine<D>,
        reading: Option<&mut Reading<'_>>,
    ) -> bool {
        !engine.completions().is_empty() && self.deliver_some(engine, reading)
    }

    /// Delivers the completions of receives for an endpoint that closes, and discards the others. Returns whether
    /// programs can continue.
    pub(in crate::endpoint) fn deliver_received<D: Device>(&self, engine: &mut Engine<D>) -> bool {
        engine.completions().retain(|completion| completion.kind == Kind::Recv);
        self.reports().inspect(|reports| reports.allow_end());
        self.deliver(engine, None)
    }

    /// Delivers a send that was complete when the call into the engine returned. Returns whether programs can continue.
    #[inline(always)]
    pub(in crate::endpoint) fn sent(&self, op: &SendOp<'_>) -> bool {
        let user = User::of(op.ctx);
        let mut released = false;
        if let Some(cntr) = &self.counters[Class::Send as usize] {
            released = cntr.record(mem::total_len(op.iov), false);
        }
        if user.wants_entry()
            && let Some(cq) = &self.tx
        {
            cq.appender(false).push(transmitted(op.ctx.ptr, user));
        }
        released
    }

    #[inline(never)]
    fn deliver_some<D: Device>(&self, engine: &mut Engine<D>, mut reading: Option<&mut Reading<'_>>) -> bool {
        let completions = engine.completions();
        let done = self.deliver_run(completions, reading.as_deref_mut());
        if done < completions.len() {
            return self.deliver_rest(engine, done, reading);
        }
        completions.clear();
        false
    }

    /// Delivers the first completions, as far as they are of one kind and need only an entry: most often these
    /// are all. Returns their number.
    #[inline(always)]
    fn deliver_run(&self, completions: &[Completion], reading: Option<&mut Reading<'_>>) -> usize {
        let Some(kind) = completions.first().map(|completion| completion.kind) else { return 0 };
        let cq = match kind {
            Kind::RemoteWrite | Kind::RemoteRead | Kind::Connection | Kind::Joined => return 0,
            Kind::Recv => &self.rx,
            _ => &self.tx,
        };
        let Some(cq) = cq.as_deref().filter(|_| !self.needs_care[Class::of(kind) as usize]) else { return 0 };
        let plain = |completion: &&Completion| {
            completion.kind == kind
                && completion.fault.is_none()
                && !completion.flags.intersects(CompletionFlags::RELEASED.union(CompletionFlags::POOLED))
                && User::of(completion.ctx).is_plain()
        };
        let entry = |completion: &Completion| {
            let user = User::of(completion.ctx);
            if kind == Kind::Recv {
                received(completion, completion.ctx.ptr, user.flags())
            } else {
                transmitted(completion.ctx.ptr, user)
            }
        };
        let mut done = 0;
        if let Some(buffer) = reading.and_then(|reading| reading.buffer_for(cq)) {
            for completion in completions.iter().take(buffer.room()).take_while(plain) {
                buffer.put(entry(completion));
                done += 1;
            }
        }
        let rest = completions.get(done..).unwrap_or_default();
        if rest.first().is_none_or(|completion| !plain(&completion)) {
            return done;
        }
        let mut appender = cq.appender(self.visited);
        for completion in rest.iter().take_while(plain) {
            appender.push(entry(completion));
            done += 1;
        }
        done
    }

    /// Delivers the completions behind the first `done`, and empties the list. Returns whether programs can continue.
    #[inline(never)]
    fn deliver_rest<D: Device>(&self, engine: &mut Engine<D>, done: usize, reading: Option<&mut Reading<'_>>) -> bool {
        if self.holds_end(engine) {
            // `EndpointCell::run_programs` continues outside the endpoint.
            engine.completions().drain(..done);
            return true;
        }
        let (completions, peers, releases) = engine.outcome();
        let rest = completions.get_mut(done..).unwrap_or_default();
        let delivered = if releases.is_empty() {
            self.deliver_all(rest, peers, reading)
        } else {
            self.deliver_pooled(rest, peers, releases)
        };
        completions.clear();
        if delivered.connection {
            self.report_connection(engine);
        }
        delivered.released
    }

    /// Delivers completions of which some are messages in multi-receives of a shared context. Each of these enters
    /// its queue before the pool declares another one to be the last of its buffer.
    #[cold]
    fn deliver_pooled(
        &self,
        completions: &mut [Completion],
        peers: PeerNames<'_>,
        mut releases: PooledReleases<'_>,
    ) -> Delivered {
        let mut sum = Delivered::default();
        for completion in completions {
            let left = completion
                .flags
                .contains(CompletionFlags::POOLED)
                .then(|| releases.next(&mut completion.flags))
                .flatten();
            let one = self.deliver_all(std::slice::from_ref(completion), peers, None);
            drop(left);
            sum.released |= one.released;
            sum.connection |= one.connection;
        }
        sum
    }

    #[inline(always)]
    fn deliver_all(
        &self,
        completions: &[Completion],
        peers: PeerNames<'_>,
        mut reading: Option<&mut Reading<'_>>,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        // The queue that the last entry went to stays locked for the next one.
        let mut open: Option<Appender<'_>> = None;
        for completion in completions {
            let user = User::of(completion.ctx);
            let (cq, wanted, mut counted) = match completion.kind {
                Kind::Send | Kind::Read | Kind::Write | Kind::Atomic | Kind::FetchAtomic | Kind::Collective => {
                    (&self.tx, user.wants_entry(), user.is_counted())
                }
                Kind::Recv => {
                    let wanted = user.wants_entry() || completion.flags.contains(CompletionFlags::RELEASED);
                    (&self.rx, wanted, user.is_counted())
                }
                // The context of these has the region's key in the place of a `User`.
                Kind::RemoteWrite | Kind::RemoteRead => {
                    if !completion.flags.contains(CompletionFlags::ENDPOINT) {
                        delivered.released |= self.count_remote(completion);
                    }
                    if completion.flags.contains(CompletionFlags::REGION) {
                        continue;
                    }
                    (&self.rx, completion.flags.contains(CompletionFlags::DATA), true)
                }
                Kind::Connection => {
                    delivered.connection = true;
                    continue;
                }
                Kind::Joined => {
                    self.report_join(completion);
                    continue;
                }
            };
            if !counted && let Some(number) = user.number() {
                let (released, verdict) = self.works.finish(number, completion);
                delivered.released |= released;
                match verdict {
                    Verdict::Ordinary => counted = true,
                    Verdict::EntryOnly => {}
                    Verdict::Silent => continue,
                }
            }
            if counted && let Some(cntr) = &self.counters[Class::of(completion.kind) as usize] {
                delivered.released |= cntr.record(completion.len, completion.fault.is_some_and(is_failure));
            }
            let wanted = wanted || completion.fault.is_some_and(is_failure);
            if let Some(cq) = cq.as_deref().filter(|_| wanted) {
                self.append(&mut open, reading.as_deref_mut(), cq, completion, peers);
            }
        }
        delivered
    }

    /// Hands the entry of a completion to the read of its queue, or appends it. `open` is the queue of the last entry
    /// that was appended.
    #[inline(always)]
    fn append<'a>(
        &'a self,
        open: &mut Option<Appender<'a>>,
        reading: Option<&mut Reading<'_>>,
        cq: &'a Cq,
        completion: &Completion,
        peers: PeerNames<'_>,
    ) {
        let mut entry = self.entry(completion);
        if let Some(table) = &self.user_ids {
            entry.src = table.user_id(entry.src);
        }
        let appender = match open {
            Some(appender) if appender.is_for(cq) => appender,
            other => {
                if completion.fault.is_none()
                    && let Some(buffer) = reading.and_then(|reading| reading.buffer_for(cq))
                    && buffer.room() > 0
                {
                    return buffer.put(entry);
                }
                drop(other.take());
                other.insert(cq.appender(self.visited))
            }
        };
        match completion.fault {
            None => appender.push(entry),
            Some(fault) => {
                // The refusal of a write that was complete when it left has no context.
                if completion.kind == Kind::Write && completion.ctx == Context::default() {
                    entry.flags = sys::FI_RMA | sys::FI_WRITE;
                }
                // A failed collective names the member that was lost.
                if completion.kind == Kind::Collective {
                    entry.data = completion.data;
                }
                appender.push_failed(entry, self.failure(fault, peers));
            }
        }
    }

    /// Raises the counters of the region that a peer has accessed. Returns whether programs can continue.
    ///
    /// A fetching atomic operation is a read to an endpoint's counters (fi_endpoint(3)). To a region's counters
    /// it is also a write if it changes the region (fi_mr(3)): clients wait for a change of memory on them.
    #[cold]
    fn count_remote(&self, completion: &Completion) -> bool {
        let Some(RegionCounters { read, write }) = self.regions.get(&completion.ctx.user) else { return false };
        let read = read.as_ref().filter(|_| completion.kind == Kind::RemoteRead);
        let wrote = completion.kind == Kind::RemoteWrite || completion.flags.contains(CompletionFlags::CHANGES);
        let write = write.as_ref().filter(|cntr| wrote && !read.is_some_and(|read| read.same(cntr)));
        let mut released = false;
        for cntr in read.into_iter().chain(write) {
            released |= cntr.record(completion.len, completion.fault.is_some());
        }
        released
    }

    #[inline(always)]
    fn entry(&self, completion: &Completion) -> Entry {
        match completion.kind {
            Kind::Send | Kind::Read | Kind::Write | Kind::Atomic | Kind::FetchAtomic | Kind::Collective => {
                transmitted(completion.ctx.ptr, User::of(completion.ctx))
            }
            Kind::Recv => {
                let multi = if completion.flags.contains(CompletionFlags::RELEASED) { sys::FI_MULTI_RECV } else { 0 };
                received(completion, completion.ctx.ptr, User::of(completion.ctx).flags() | multi)
            }
            // No operation was posted for a peer's write.
            Kind::RemoteWrite => received(completion, 0, remote_family(completion) | sys::FI_REMOTE_WRITE),
            Kind::RemoteRead | Kind::Connection | Kind::Joined => {
                received(completion, self.context, remote_family(completion) | sys::FI_REMOTE_READ)
            }
        }
    }

    /// The error data of a fault. Counts it, unless the client expected it.
    #[cold]
    fn failure(&self, fault: Fault, peers: PeerNames<'_>) -> Failure {
        let expected = matches!(fault, Fault::Canceled | Fault::NoMessage);
        self.failures.update(|failures| failures + u64::from(is_failure(fault) && !expected));
        let olen = if let Fault::Truncated(bytes) = fault { bytes } else { 0 };
        let source = if let Fault::Stranger(number) = fault { peers.name(number) } else { None };
        // The address is left out if it cannot be written in the client's format.
        let data = source.and_then(|name| self.format.encode(&name).ok()).unwrap_or_default();
        Failure { err: Errno::from(fault).get(), prov_errno: fault::number(fault), olen, data }
    }
}

/// The entry of a send, an RMA operation or an atomic.
#[inline(always)]
fn transmitted(context: usize, user: User) -> Entry {
    Entry { context, flags: user.flags(), len: 0, buf: 0, data: 0, tag: 0, src: sys::FI_ADDR_NOTAVAIL, failed: false }
}

/// The entry of a receive or of a peer's access.
#[inline(always)]
fn received(completion: &Completion, context: usize, flags: u64) -> Entry {
    let data = completion.flags.contains(CompletionFlags::DATA);
    Entry {
        context,
        flags: flags | if data { sys::FI_REMOTE_CQ_DATA } else { 0 },
        len: completion.len,
        buf: completion.buf,
        data: completion.data,
        tag: completion.tag,
        // The engine and libfabric have the same number for an unknown source.
        src: completion.src,
        failed: false,
    }
}

/// Whether the operation has failed. A message of a stranger carries a fault but was received.
pub(super) const fn is_failure(fault: Fault) -> bool {
    !matches!(fault, Fault::Stranger(_))
}

/// The family of operations of a peer's access.
const fn remote_family(completion: &Completion) -> u64 {
    if completion.flags.contains(CompletionFlags::ATOMIC) { sys::FI_ATOMIC } else { sys::FI_RMA }
}

const _: () = assert!(ADDR_NONE == sys::FI_ADDR_NOTAVAIL);
