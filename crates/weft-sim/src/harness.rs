//! A cluster and its oracle: every operation that passes through here is checked.
//!
//! Place in the data flow: tests and workloads call [`Harness`]. It allocates the buffers, calls the engines,
//! and reports accepted operations to the [`Oracle`]. Like weft-fi, it drains the completions after every
//! call into an engine. It frees each buffer as soon as the operation releases it, so that a late access is
//! noticed.

mod atomic;
mod barrier;
mod connection;
mod datagram;
mod finish;
pub(crate) mod program;
mod shared;

use std::sync::Arc;

use weft_engine::api::{
    ADDR_NONE, Access, Completion, Config, Error, Fault, Kind, OpFlags, RecvFlags, RecvOp, Region, RmaIov, RmaOp,
    SendOp,
};
use weft_engine::mem::IovList;

use crate::cluster::{Cluster, Turn};
use crate::config::FabricConfig;
use crate::memory::Buffer;
use crate::nic::SimMemory;
use crate::oracle::{CANARY, Criteria, Op, Oracle, PeekRecord, Record, RecvRecord, RecvState, RmaRecord, SendRecord};
use crate::oracle::{context, extend_payload};
use crate::rng::Stream;
use crate::trace::TraceEvent;

pub use atomic::{Atomic, COUNTERS, SLOT_BYTES};
pub use barrier::{ANY_TAG, Signals};
pub use program::{FREE_COUNTER, Job, ProgramStats, RANK_COUNTERS, Task};

/// Turns after which a run that has not become idle counts as a hang.
const IDLE_TURN_LIMIT: usize = 200_000;

/// Turns after which a run counts as endless: fifty times the turns of a long run.
const MAX_TURNS: u64 = 20_000_000;

/// Matches every message: untagged ones, and tagged ones with any tag.
const ALL_TAGS: [Option<(u64, u64)>; 2] = [None, Some((0, u64::MAX))];

/// A send to be posted.
#[derive(Clone, Debug, Default)]
pub struct Send {
    /// The tag, if tagged.
    pub tag: Option<u64>,
    /// Immediate data.
    pub data: Option<u64>,
    /// Length in bytes.
    pub len: usize,
    /// Flags; TAGGED and DATA follow from the fields.
    pub flags: OpFlags,
    /// Lengths of the first pieces of the buffer.
    pub pieces: Vec<usize>,
}

/// A receive or peek to be posted.
#[derive(Clone, Debug, Default)]
pub struct Recv {
    /// The source; `None` means any.
    pub src: Option<usize>,
    /// Tag and ignored bits, if tagged.
    pub tag: Option<(u64, u64)>,
    /// Length of the buffer.
    pub len: usize,
    /// Whether the receive is a multi-receive.
    pub multi: bool,
    /// Lengths of the first pieces of the buffer.
    pub pieces: Vec<usize>,
}

/// A read or write to be posted, on consecutive parts of one region.
#[derive(Clone, Debug, Default)]
pub struct Rma {
    /// Offset in the region.
    pub offset: usize,
    /// Lengths of the remote pieces.
    pub remote: Vec<usize>,
    /// Immediate data (writes).
    pub data: Option<u64>,
    /// Flags; DATA follows from the field.
    pub flags: OpFlags,
    /// Lengths of the first local pieces.
    pub pieces: Vec<usize>,
    /// Makes the operation name the region wrongly, so that the target must refuse: `Fault::BadKey` or
    /// `Fault::BadRange`.
    pub provoke: Option<Fault>,
}

/// A registered region of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The owner.
    pub rank: usize,
    /// Its key.
    pub key: u64,
    /// The remote address of its first byte.
    pub base: u64,
    /// The memory.
    pub memory: Buffer,
    /// The access that the region grants.
    pub access: Access,
    /// Whether the region reports every access.
    pub events: bool,
    /// Whether the region is for atomic operations.
    pub atomic: bool,
}

/// The offset that shifts each piece outside of the region; a single piece only by its last byte.
fn beyond(region_bytes: usize, offset: usize, pieces: &[usize]) -> usize {
    match pieces {
        [one] => region_bytes + 1 - (offset + one),
        _ => region_bytes + 1,
    }
}

impl Window {
    /// The remote pieces of an operation, their memory, and the fault that the operation must meet.
    fn reach(&self, rma: &Rma, kind: Kind) -> (Vec<RmaIov>, Vec<Buffer>, Option<Fault>) {
        let granted = if kind == Kind::Write { self.access.write } else { self.access.read };
        let must_fail = if granted { rma.provoke } else { Some(Fault::BadKey) };
        let key = if rma.provoke == Some(Fault::BadKey) { self.key ^ 1 << 40 } else { self.key };
        let shift =
            if rma.provoke == Some(Fault::BadRange) { beyond(self.memory.len(), rma.offset, &rma.remote) } else { 0 };
        let (mut remote, mut there) = (Vec::new(), Vec::new());
        let mut at = rma.offset;
        for len in &rma.remote {
            remote.push(RmaIov { addr: self.base + (at + shift) as u64, len: *len as u64, key });
            there.push(self.memory.part(at, *len));
            at += len;
        }
        (remote, there, must_fail)
    }
}

/// Changes completions on their way to the oracle; tests prove with it that the oracle notices.
pub type Tamper = Box<dyn FnMut(usize, &mut Vec<Completion>)>;

/// A cluster under observation.
pub struct Harness {
    cluster: Cluster,
    oracle: Oracle,
    tamper: Option<Tamper>,
    windows: Vec<Window>,
    /// By rank: the indexes of its windows.
    windows_of: Vec<Vec<usize>>,
    lost: u64,
    /// By rank, where programs are allowed.
    queues: Vec<Option<program::Queue>>,
    barriers: Vec<barrier::Barrier>,
    program_stats: ProgramStats,
    /// Batches that endpoints of one process completed one after the other, within one call.
    early: Vec<(usize, Vec<Completion>)>,
    /// Turns so far. They decide when clients read their completions.
    turns: u64,
    max_turns: u64,
    /// Pairs of ranks with a broken link of which one end has not learned yet.
    breaking: Vec<(usize, usize)>,
}

impl Harness {
    /// Makes a cluster of `ranks` and observes it.
    #[must_use]
    pub fn new(fabric: FabricConfig, engine: Config, ranks: usize) -> Self {
        Self::of(Cluster::new(fabric, engine, ranks))
    }

    /// Observes a cluster that has not started.
    #[must_use]
    pub fn of(cluster: Cluster) -> Self {
        let windows_of = vec![Vec::new(); cluster.ranks()];
        let mut oracle = Oracle::new();
        oracle.share_receives(cluster.receivers());
        oracle.share_addresses(cluster.sources());
        let queues = (0..cluster.ranks()).map(|_| None).collect();
        Self {
            cluster,
            oracle,
            tamper: None,
            windows: Vec::new(),
            windows_of,
            lost: 0,
            queues,
            barriers: Vec::new(),
            program_stats: ProgramStats::default(),
            early: Vec::new(),
            turns: 0,
            max_turns: MAX_TURNS,
            breaking: Vec::new(),
        }
    }

    /// The cluster.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// The cluster, to look at.
    pub(crate) fn cluster_ref(&self) -> &Cluster {
        &self.cluster
    }

    /// The oracle.
    #[must_use]
    pub fn oracle(&self) -> &Oracle {
        &self.oracle
    }

    /// The oracle, through which a test announces breakage that it causes.
    pub fn oracle_mut(&mut self) -> &mut Oracle {
        &mut self.oracle
    }

    /// Sets a function that changes completions before the oracle sees them.
    pub fn set_tamper(&mut self, tamper: Tamper) {
        self.tamper = Some(tamper);
    }

    /// All regions registered so far.
    #[must_use]
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    // ---- messages ----------------------------------------------------------------------------

    /// Posts a send. An error leaves no trace.
    pub fn send(&mut self, rank: usize, dest: usize, send: &Send) -> Result<Op, Error> {
        let op = self.oracle.number();
        let flags = with(send.flags, send.tag.is_some(), send.data.is_some());
        let buffer = self.cluster.fabric().alloc_of(rank, send.len, |bytes| extend_payload(bytes, op, send.len));
        let iov = pieces(buffer, &send.pieces);
        let (tag, data) = (send.tag.unwrap_or(0), send.data.unwrap_or(0));
        let dest_addr = self.cluster.addr(rank, dest);
        let Some(engine) = self.cluster.engine(rank) else { return Err(Error::Invalid) };
        let posted = engine.send(&SendOp { dest: dest_addr, iov: &iov, tag, data, ctx: context(op), flags });
        let inject = flags.contains(OpFlags::INJECT);
        if posted.is_err() || inject {
            self.cluster.fabric().free(buffer);
        }
        self.note_post(rank, op, send.len, posted.is_ok());
        if posted.is_ok() {
            let (tag, data, len) = (send.tag, send.data, send.len);
            let buffer = (!inject).then_some(buffer);
            let record = SendRecord { rank, dest, tag, data, len, flags, buffer, end: None, received_by: None };
            self.oracle.accepted(op, Record::Send(record));
        }
        self.absorb(rank);
        posted.map(|()| op)
    }

    /// Posts a receive. An error leaves no trace.
    pub fn recv(&mut self, rank: usize, recv: &Recv) -> Result<Op, Error> {
        let op = self.oracle.number();
        let order = self.oracle.tick();
        let flags = recv_flags(recv);
        let buffer = self.cluster.fabric().alloc_filled(rank, recv.len, CANARY);
        let posted = self.call_recv(rank, op, recv, flags, buffer);
        self.note_post(rank, op, recv.len, posted.is_ok());
        match posted {
            Ok(()) => {
                let src = recv.src.map(|src| self.cluster.known_as(src));
                let (want, state) = (Criteria { src, tag: recv.tag }, RecvState::Posted);
                let (got, claimed, failed, cut) = (Vec::new(), None, None, false);
                let record = RecvRecord { rank, want, flags, buffer, order, state, got, claimed, failed, cut };
                self.oracle.accepted(op, Record::Recv(record));
            }
            Err(_) => self.cluster.fabric().free(buffer),
        }
        self.absorb_shared(rank);
        posted.map(|()| op)
    }

    fn call_recv(&mut self, rank: usize, op: Op, recv: &Recv, flags: RecvFlags, buffer: Buffer) -> Result<(), Error> {
        let iov = pieces(buffer, &recv.pieces);
        let src = recv.src.map_or(ADDR_NONE, |src| self.cluster.addr(rank, self.cluster.known_as(src)));
        let (tag, ignore) = recv.tag.unwrap_or((0, 0));
        let op = RecvOp { src, iov: &iov, tag, ignore, ctx: context(op), flags };
        if let Some(pool) = self.cluster.pool(rank) {
            return self.post_shared(&pool, rank, &op);
        }
        let Some(engine) = self.cluster.engine(rank) else { return Err(Error::Invalid) };
        engine.recv(&op)
    }

    /// Posts a peek; `extra` is empty, CLAIM or DISCARD.
    pub fn peek(&mut self, rank: usize, recv: &Recv, extra: RecvFlags) -> Result<Op, Error> {
        let op = self.oracle.number();
        let order = self.oracle.tick();
        let flags = recv_flags(recv) | RecvFlags::PEEK | extra;
        let nothing = self.cluster.fabric().alloc(rank, 0);
        let posted = self.call_recv(rank, op, recv, flags, nothing);
        self.cluster.fabric().free(nothing);
        if posted.is_ok() {
            let src = recv.src.map(|src| self.cluster.known_as(src));
            let want = Criteria { src, tag: recv.tag };
            let (discarded, discarding) = (false, false);
            let record = PeekRecord { rank, want, flags, order, found: None, discarded, discarding };
            self.oracle.accepted(op, Record::Peek(record));
        }
        self.absorb_shared(rank);
        posted.map(|()| op)
    }

    /// Receives the message that peek `op` claimed into a buffer of `len` bytes; discards it if `len` is
    /// `None`.
    pub fn claim(&mut self, op: Op, len: Option<usize>) -> Result<(), Error> {
        let Record::Peek(peek) = self.oracle.record(op) else { return Err(Error::Invalid) };
        let (rank, want) = (peek.rank, peek.want);
        let found = peek.found.iter().flatten().next();
        if found.is_some_and(|found| !self.cluster.is_alive(found.dest)) {
            // The message was lost with the endpoint that held it.
            return Ok(());
        }
        let recv = Recv { src: want.src, tag: want.tag, len: len.unwrap_or(0), ..Recv::default() };
        let discard = if len.is_none() { RecvFlags::DISCARD } else { RecvFlags::empty() };
        let flags = recv_flags(&recv) | RecvFlags::CLAIM | discard;
        let buffer = self.cluster.fabric().alloc_filled(rank, recv.len, CANARY);
        let posted = self.call_recv(rank, op, &recv, flags, buffer);
        if posted.is_err() || len.is_none() {
            self.cluster.fabric().free(buffer);
        }
        match (posted, len) {
            (Ok(()), Some(_)) => self.oracle.claim(op, buffer, flags),
            (Ok(()), None) => self.oracle.discard(op),
            (Err(_), _) => {}
        }
        self.absorb_shared(rank);
        posted
    }

    /// Cancels a receive; returns whether it was posted.
    pub fn cancel(&mut self, op: Op) -> bool {
        let Record::Recv(recv) = self.oracle.record(op) else { return false };
        let rank = recv.rank;
        let found = match self.cluster.pool(rank) {
            Some(pool) => self.cancel_shared(&pool, rank, op),
            None => self.cluster.engine(rank).is_some_and(|engine| engine.cancel(context(op).ptr)),
        };
        self.absorb_shared(rank);
        found
    }

    // ---- remote memory -----------------------------------------------------------------------

    /// The regions of a rank, in the order of registration.
    #[must_use]
    pub fn windows_of(&self, rank: usize) -> &[usize] {
        &self.windows_of[rank]
    }

    /// Registers a region of `len` bytes, filled with a pattern derived from its number.
    pub fn add_window(&mut self, rank: usize, len: usize, access: Access, events: bool) -> Result<usize, Error> {
        // A successor registers the same keys as its predecessor.
        let place = self.cluster.place(rank);
        let key = (1 << 63) | (place as u64) << 32 | self.windows_of[rank].len() as u64;
        let index = self.windows.len();
        let memory = self.cluster.fabric().alloc_of(rank, len, |bytes| extend_payload(bytes, index, len));
        let base = if key.is_multiple_of(2) { 0 } else { 0x1000_0000 * (place as u64 + 1) };
        // Some windows can be mapped by peers.
        let mapped = !events && !key.is_multiple_of(3) && self.cluster.fabric().config().caps.maps;
        let iov = memory.pieces(&[len / 2][usize::from(mapped)..]);
        let mapping = mapped.then(|| Arc::new(SimMemory::new(iov[0])) as _);
        let region = Region { key, iov, base, access, user: index as u64, events, mapping };
        let Some(engine) = self.cluster.engine(rank) else { return Err(Error::Invalid) };
        engine.add_region(region)?;
        self.windows.push(Window { rank, key, base, memory, access, events, atomic: false });
        self.windows_of[rank].push(index);
        Ok(index)
    }

    /// Removes a region and frees its memory; later writes to it are found.
    pub fn remove_window(&mut self, index: usize) {
        let window = self.windows[index];
        if let Some(engine) = self.cluster.engine(window.rank) {
            engine.remove_region(window.key);
        }
        self.absorb(window.rank);
    }

    /// Writes to a region. No other operation may use the written part.
    pub fn write(&mut self, rank: usize, window: usize, rma: &Rma) -> Result<Op, Error> {
        self.rma(rank, window, rma, Kind::Write)
    }

    /// Reads from a region.
    pub fn read(&mut self, rank: usize, window: usize, rma: &Rma) -> Result<Op, Error> {
        self.rma(rank, window, rma, Kind::Read)
    }

    fn rma(&mut self, rank: usize, index: usize, rma: &Rma, kind: Kind) -> Result<Op, Error> {
        let op = self.oracle.number();
        let window = self.windows[index];
        let len = rma.remote.iter().sum();
        let flags = with(rma.flags, false, rma.data.is_some());
        let buffer = match kind {
            Kind::Write => self.cluster.fabric().alloc_of(rank, len, |bytes| extend_payload(bytes, op, len)),
            _ => self.cluster.fabric().alloc_filled(rank, len, CANARY),
        };
        let iov = pieces(buffer, &rma.pieces);
        let (remote, there, must_fail) = window.reach(rma, kind);
        let mut expected = Vec::new();
        if kind == Kind::Read {
            there.iter().for_each(|part| expected.extend(part.bytes()));
        }
        let dest = self.cluster.addr(rank, window.rank);
        let data = rma.data.unwrap_or(0);
        let Some(engine) = self.cluster.engine(rank) else { return Err(Error::Invalid) };
        let call = RmaOp { dest, iov: &iov, remote: &remote, data, ctx: context(op), flags };
        let posted = if kind == Kind::Write { engine.write(&call) } else { engine.read(&call) };
        let inject = flags.contains(OpFlags::INJECT) && kind == Kind::Write;
        if posted.is_err() || inject {
            self.cluster.fabric().free(buffer);
        }
        self.note_post(rank, op, len, posted.is_ok());
        if posted.is_ok() {
            let (target, data, buffer) = (window.rank, rma.data, (!inject).then_some(buffer));
            let (remote, end, events) = (there, None, 0);
            let (region, reported) = (index as u64, window.events);
            let record = RmaRecord {
                rank,
                region,
                reported,
                target,
                kind,
                flags,
                data,
                len,
                buffer,
                expected,
                remote,
                must_fail,
                end,
                refused: false,
                events,
            };
            self.oracle.accepted(op, Record::Rma(record));
        }
        self.absorb(rank);
        posted.map(|()| op)
    }

    // ---- progress ----------------------------------------------------------------------------

    fn note_post(&mut self, rank: usize, op: Op, len: usize, accepted: bool) {
        self.cluster.fabric().record(TraceEvent::Post, rank, op as u64, len as u64, &[u8::from(accepted)]);
    }

    /// Passes a rank's completions to the oracle, frees the released buffers, and runs the programs that
    /// became ready.
    pub fn absorb(&mut self, rank: usize) {
        self.absorb_batch(rank);
        self.oracle.batch_ended();
        self.run_programs(rank);
    }

    fn absorb_batch(&mut self, rank: usize) {
        let Self { cluster, oracle, tamper, queues, .. } = self;
        for (rank, batch) in std::mem::take(&mut self.early) {
            report(cluster, oracle, tamper.as_mut(), None, rank, batch);
        }
        absorb(cluster, oracle, tamper.as_mut(), queues[rank].as_mut(), rank);
    }

    /// Sets the number of turns after which a run counts as endless.
    pub fn limit_turns(&mut self, turns: u64) {
        self.max_turns = turns;
    }

    /// Number of turns so far.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// One turn of the cluster.
    ///
    /// # Panics
    /// When the run exceeds its turns; the caller reports the command that plays it again.
    pub fn turn(&mut self) -> Turn {
        assert!(self.turns < self.max_turns, "no end after {} turns, at {} ns", self.turns, self.oracle.now_ns);
        let Self { cluster, oracle, tamper, queues, .. } = self;
        oracle.now_ns = cluster.fabric().now_ns();
        let turn = cluster.turn(|cluster, rank| {
            let mut queue = queues[rank].as_mut();
            absorb(cluster, oracle, tamper.as_mut(), queue.as_deref_mut(), rank);
            oracle.batch_ended();
            if let Some(queue) = queue {
                queue.progressed(cluster, rank, oracle);
            }
        });
        self.oracle.now_ns = self.cluster.fabric().now_ns();
        self.mend();
        self.read_some(turn == Turn::Idle);
        self.run_all(turn)
    }

    /// Runs turns until nothing moves any more; fails if that does not happen.
    pub fn drive(&mut self) -> Result<(), String> {
        let mut idle = 0;
        for _ in 0..IDLE_TURN_LIMIT {
            idle = if self.turn() == Turn::Idle { idle + 1 } else { 0 };
            if idle > 2 {
                return Ok(());
            }
        }
        Err(format!("did not become idle within {IDLE_TURN_LIMIT} turns"))
    }

    /// Runs turns until `until` holds of the oracle; fails if nothing moves any more before that.
    pub fn drive_until(&mut self, mut until: impl FnMut(&Oracle) -> bool) -> Result<(), String> {
        let mut idle = 0;
        for _ in 0..IDLE_TURN_LIMIT {
            if until(&self.oracle) {
                return Ok(());
            }
            idle = if self.turn() == Turn::Idle { idle + 1 } else { 0 };
            if idle > 2 {
                return Err("became idle too early".into());
            }
        }
        Err(format!("not reached after {IDLE_TURN_LIMIT} turns"))
    }

    /// Breaks the links between two ranks; the second learns of it `later_ns` later.
    pub fn break_links(&mut self, a: usize, b: usize, later_ns: u64) {
        self.oracle.broke(a, b);
        self.cluster.fabric().break_links(a, b, later_ns);
        self.breaking.push((a, b));
    }

    /// Makes operations count as safe again after both ends have learned that their link is broken. A connection
    /// ends with its link.
    fn mend(&mut self) {
        let Self { breaking, cluster, oracle, .. } = self;
        breaking.retain(|(a, b)| {
            let breaks = cluster.has_connections() || cluster.fabric().is_breaking(*a, *b);
            if !breaks && cluster.is_alive(*a) && cluster.is_alive(*b) {
                oracle.mended(*a, *b);
            }
            breaks
        });
    }

    /// The next message from one rank to another arrives as garbage of `bytes` bytes.
    pub fn garble(&mut self, from: usize, to: usize, bytes: usize) {
        self.oracle.garbled(from, to);
        self.cluster.fabric().garble(from, to, bytes);
        self.breaking.push((from, to));
    }

    /// Permits pending and later operations from and to a rank to fail.
    fn expect_losses(&mut self, rank: usize) {
        self.oracle.now_ns = self.cluster.fabric().now_ns();
        for other in 0..self.cluster.ranks() {
            self.oracle.broke(rank, other);
        }
        self.oracle.died(rank);
        self.queues[rank] = None;
        self.oracle.drop_programs(rank);
    }

    /// Kills a rank.
    pub fn kill(&mut self, rank: usize) {
        self.expect_losses(rank);
        // The contexts of one endpoint share an address, so a receive from it depends on no single context.
        // The endpoints of a process share their receives likewise.
        let alone = !self.cluster.has_connections() && self.cluster.process(rank) == [rank] && !self.oracle.datagrams();
        let alone = alone && self.cluster.pool(rank).is_none();
        for other in self.cluster.live_ranks() {
            if alone && other != rank && self.cluster.fabric().is_linked(other, rank) {
                self.oracle.linked_at_death(rank, other);
            }
        }
        self.cluster.kill(rank);
        self.announce_death(rank);
    }

    /// Exits a rank in order. Its accepted operations may fail, and so may those of others that involve it.
    pub fn leave(&mut self, rank: usize) {
        self.expect_losses(rank);
        if self.cluster.pool(rank).is_some() {
            // The other endpoints of the process report the receives that this one had taken.
            self.cluster.shut_down(rank);
            self.absorb(rank);
            self.read_next(rank);
        }
        self.cluster.leave(rank);
        self.announce_death(rank);
    }

    /// Records when the other ranks learn of a rank's death.
    fn announce_death(&mut self, rank: usize) {
        for other in self.cluster.live_ranks() {
            self.oracle.sees_death_by(rank, other, self.cluster.fabric().close_seen_ns(rank, other));
        }
    }

    /// Starts a rank at the place of another one, which is killed if it is still alive.
    pub fn restart(&mut self, rank: usize) {
        let before = self.cluster.place(rank);
        if self.cluster.is_alive(before) {
            self.kill(before);
        }
        self.oracle.succeeded(before);
        self.cluster.restart(rank);
    }

    /// Checks, a bounded time after a rank's death, that no operation still waits for it.
    pub(crate) fn judge_death(&mut self, rank: usize) {
        self.oracle.now_ns = self.cluster.fabric().now_ns();
        let cluster = &self.cluster;
        for late in self.oracle.overdue(rank, |rank| cluster.is_alive(rank) && !cluster.is_paused(rank)) {
            self.oracle.complain(late);
        }
    }
}

fn absorb(
    cluster: &mut Cluster,
    oracle: &mut Oracle,
    tamper: Option<&mut Tamper>,
    queue: Option<&mut program::Queue>,
    rank: usize,
) {
    let batch = cluster.take_completions(rank);
    report(cluster, oracle, tamper, queue, rank, batch);
}

fn report(
    cluster: &mut Cluster,
    oracle: &mut Oracle,
    tamper: Option<&mut Tamper>,
    mut queue: Option<&mut program::Queue>,
    rank: usize,
    mut batch: Vec<Completion>,
) {
    if let Some(tamper) = tamper {
        tamper(rank, &mut batch);
    }
    for c in batch {
        let src = cluster.rank_of(rank, c.src);
        let kind = c.kind as u64 | u64::from(c.flags.bits()) << 8;
        let line = [c.tag.to_le_bytes(), c.data.to_le_bytes(), [u8::from(c.fault.is_some()); 8]].concat();
        cluster.fabric().record(TraceEvent::Complete, rank, c.ctx.ptr as u64, kind, &line);
        if c.kind == Kind::Connection {
            oracle.check_event(rank, &c, cluster.connection_event(rank));
            continue;
        }
        if let Some(buffer) = oracle.completed(rank, &c, src) {
            cluster.fabric().free(buffer);
        }
        if let Some(queue) = queue.as_deref_mut() {
            queue.completed(rank, &c, oracle);
        }
    }
}

fn with(flags: OpFlags, tagged: bool, data: bool) -> OpFlags {
    let mut flags = flags;
    flags.set(OpFlags::TAGGED, tagged);
    flags.set(OpFlags::DATA, data);
    flags
}

fn recv_flags(recv: &Recv) -> RecvFlags {
    let mut flags = RecvFlags::empty();
    flags.set(RecvFlags::TAGGED, recv.tag.is_some());
    flags.set(RecvFlags::MULTI, recv.multi);
    flags
}

fn pieces(buffer: Buffer, lens: &[usize]) -> IovList {
    buffer.pieces(lens)
}

/// Draws lengths that cut `len` bytes into pieces.
#[must_use]
pub fn random_pieces(rng: &mut Stream, len: usize) -> Vec<usize> {
    let mut left = len;
    let mut out = Vec::new();
    while left > 0 && out.len() < 5 && rng.chance(300) {
        let piece = rng.between(0, left);
        out.push(piece);
        left -= piece;
    }
    out
}
