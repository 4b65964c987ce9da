//! Random operations: every operation that a client can post on an endpoint, drawn from a seed.
//!
//! Place in the data flow: [`run`](crate::run) makes ranks take `Workload::step`s. Each rank draws its
//! operations from its own stream and posts them through the [`Harness`].

mod connection;
mod datagram;
mod program;

use connection::Ends;
use weft_engine::Role;
use weft_engine::amo::{Amo, Class, Form, OPS, Op as AmoOp, TYPES, Type};
use weft_engine::api::{Access, Config, Error, Fault, Matching, OpFlags, RecvFlags};
use weft_engine::mrcache::Limits;

use crate::config::FabricConfig;
use crate::endpoints::{Endpoints, stream};
use crate::harness::{ANY_TAG, Atomic, COUNTERS, Harness, Recv, Rma, SLOT_BYTES, Send, random_pieces};
use crate::hazard::Hazard;
use crate::oracle::{ID_BYTES, Op, Record};
use crate::plan::{Act, Plan};
use crate::rng::{Entity, Stream};

/// Buffer size that holds every message except the longest.
const ROOM_BYTES: usize = 20_100;
/// The longest message.
const MAX_BYTES: usize = 1 << 20;

/// Maximum number of ends of connections in a run.
pub(crate) const ENDS: usize = 64;

/// Maximum number of tasks that a rank may have waiting.
const MAX_TASKS: usize = 120;

/// The engine's configuration of a run. If `starved`, its windows and queues may be as small as possible.
#[must_use]
pub fn engine_config(rng: &mut Stream, starved: bool) -> Config {
    let least = (*rng.pick(&[1, 2, 8, 64, 4096]), *rng.pick(&[4, 64, 1 << 20]), *rng.pick(&[0, 256, 1000, 10_000]));
    let plenty = (*rng.pick(&[64, 4096]), 1 << 20, *rng.pick(&[10_000, 100_000, 1 << 22]));
    let (tx_depth, rx_depth, window_bytes) = if starved { least } else { plenty };
    Config {
        inject_bytes: *rng.pick(&[0, 8, 64, 256, 4096]),
        tx_depth,
        rx_depth,
        window_bytes,
        eager_bytes: if rng.chance(300) { Some(rng.between(0, 5000)) } else { None },
        matching: *rng.pick(&[Matching::Auto, Matching::List, Matching::Hash, Matching::Tree]),
        mr_cache: Limits {
            on: rng.chance(800),
            entries: *rng.pick(&[1, 3, 4096]),
            bytes: *rng.pick(&[0, 5000, u64::MAX]),
            stale_entries: *rng.pick(&[0, 1, 1024]),
            stale_bytes: *rng.pick(&[0, 3000, u64::MAX]),
        },
        ..Config::default()
    }
}

/// Adapts a run's configuration to its kind of endpoints.
pub(crate) fn endpoints_config(plan: &Plan, fabric: &FabricConfig, engine: &mut Config) {
    if plan.endpoints == Endpoints::Msg {
        engine.role = Role::Listener(stream(plan.seed).between(1, 4));
    }
    if plan.endpoints == Endpoints::Dgram {
        let mut rng = stream(plan.seed);
        // All permitted messages are eager on every device, as in weft-fi.
        let longest = fabric.caps.mailbox_bytes - 128;
        let longest = if rng.chance(500) { longest } else { rng.between(ID_BYTES, longest) };
        engine.role = Role::Datagrams;
        (engine.eager_bytes, engine.max_msg_bytes) = (Some(longest), longest as u64);
    }
}

/// The operations of the ranks of a run.
pub(crate) struct Workload {
    harness: Harness,
    plan: Plan,
    rngs: Vec<Stream>,
    engine: Config,
    /// Lengths at which protocols switch.
    lens: Vec<usize>,
    /// Whether a message may be very long.
    long: bool,
    /// Ranks that have started, including dead ones: the targets of operations.
    begun: Vec<usize>,
    /// Ends of connections.
    ends: Ends,
    /// By rank: peeks that may have claimed a message.
    claims: Vec<Vec<Op>>,
    /// By window: the offset of the next write.
    cursors: Vec<usize>,
    next_data: u64,
    done: usize,
    pub(crate) accepted: usize,
    pub(crate) refused: usize,
}

impl Workload {
    pub(crate) fn new(harness: Harness, plan: &Plan, fabric: &FabricConfig, engine: Config) -> Self {
        let eager_bytes = engine.eager_bytes.unwrap_or(fabric.caps.eager_bytes);
        let mut lens = vec![0, 1, ID_BYTES, 100, 20_000];
        let switches = [
            fabric.caps.inline_bytes,
            eager_bytes,
            engine.inject_bytes,
            fabric.caps.mailbox_bytes,
            fabric.caps.mailbox_bytes.saturating_sub(128),
            fabric.segment_bytes.min(10_000),
            engine.window_bytes.min(10_000),
        ];
        for len in switches {
            lens.extend([len.saturating_sub(1), len, len + 1]);
        }
        let mut workload = Self {
            rngs: Vec::new(),
            ends: Ends::default(),
            claims: Vec::new(),
            cursors: Vec::new(),
            harness,
            plan: *plan,
            engine,
            lens,
            // In small segments, long messages would take all the time of the run.
            long: fabric.segment_bytes >= 4096,
            begun: Vec::new(),
            next_data: 1,
            done: 0,
            accepted: 0,
            refused: 0,
        };
        let total = workload.harness.cluster().ranks();
        workload.rngs = (0..total).map(|rank| Stream::new(plan.seed, Entity::Workload(rank))).collect();
        workload.claims = vec![Vec::new(); total];
        for rank in workload.harness.cluster().live_ranks() {
            workload.begin(rank);
        }
        if let Role::Listener(backlog) = engine.role {
            workload.ends = Ends::new(plan.ranks, total - ENDS, total);
            workload.harness.oracle_mut().expect_connections(backlog);
        }
        if plan.endpoints == Endpoints::Dgram {
            workload.harness.expect_datagrams();
        }
        if plan.hazards.has(Hazard::Refuse) {
            workload.harness.oracle_mut().expect_refusals();
        }
        workload
    }

    pub(crate) fn harness(&mut self) -> &mut Harness {
        &mut self.harness
    }

    /// Starts a rank: registers its regions.
    pub(crate) fn begin(&mut self, rank: usize) {
        if self.harness.cluster().listens(rank) {
            return;
        }
        let place = self.harness.cluster().place(rank);
        let read_only = Access { read: true, write: false };
        let write_only = Access { read: false, write: true };
        // Two regions lack a right.
        let atomic = Access { read: place != 3, write: place != 5 };
        // This cannot fail: the keys are new.
        let _ = self.harness.add_window(rank, 30_000, read_only, place.is_multiple_of(2));
        let _ = self.harness.add_window(rank, 60_000, write_only, place.is_multiple_of(3));
        let _ = self.harness.add_atomic_window(rank, atomic, place.is_multiple_of(3));
        self.cursors.resize(self.harness.windows().len(), 0);
        self.begun.push(rank);
        let min = *self.rngs[rank].pick(&[ID_BYTES, 64, 1000, 20_000]);
        if let Some(pool) = self.harness.cluster().pool(rank) {
            pool.set_min_multi_recv(min);
        } else if let Some(engine) = self.harness.cluster().engine(rank) {
            engine.set_min_multi_recv(min);
        }
        if self.plan.acts.has(Act::Program) && self.plan.endpoints == Endpoints::Rdm {
            self.harness.allow_programs(rank, MAX_TASKS);
        }
    }

    /// Every rank performs some operations, or none.
    pub(crate) fn step(&mut self) {
        if self.plan.endpoints == Endpoints::Msg {
            return self.step_connected();
        }
        for rank in self.harness.cluster().live_ranks() {
            if self.harness.cluster().is_paused(rank) {
                continue;
            }
            for _ in 0..self.rngs[rank].index(4) {
                let act = match self.rngs[rank].index(100) {
                    0..36 => Act::Send,
                    36..65 => Act::Recv,
                    65..72 => Act::Peek,
                    72..76 => Act::Cancel,
                    76..81 => Act::Write,
                    81..86 => Act::Read,
                    86..92 => Act::Atomic,
                    _ => Act::Program,
                };
                let act = match self.plan.endpoints {
                    Endpoints::Rdm | Endpoints::Msg => act,
                    Endpoints::Dgram => Self::datagram_act(act),
                    // Programs need ranks that receive for themselves and have an address of their own.
                    Endpoints::Shared | Endpoints::Scalable => {
                        if act == Act::Program {
                            Act::Atomic
                        } else {
                            act
                        }
                    }
                };
                if self.done < self.plan.ops && self.plan.acts.has(act) {
                    self.done += 1;
                    self.act(rank, act);
                }
            }
        }
    }

    /// Whether messages can be lost, so that each must be recognisable by its bytes.
    fn lossy(&self) -> bool {
        // Where several ranks share an address, the source does not identify them. Connections that end take
        // pending messages with them.
        self.plan.hazards.lose()
            || matches!(self.plan.endpoints, Endpoints::Dgram | Endpoints::Scalable | Endpoints::Msg)
    }

    fn act(&mut self, rank: usize, act: Act) {
        let result = match act {
            Act::Send if self.plan.endpoints == Endpoints::Dgram => self.send_datagram(rank),
            Act::Recv if self.plan.endpoints == Endpoints::Dgram => self.recv_datagram(rank),
            Act::Send => self.send(rank),
            Act::Recv => self.recv(rank),
            Act::Peek => self.peek(rank),
            Act::Cancel => {
                self.cancel(rank);
                Ok(())
            }
            Act::Write => self.rma(rank, true),
            Act::Read => self.rma(rank, false),
            Act::Atomic => self.atomic(rank),
            Act::Program => self.program(rank),
            // Collectives have runs of their own.
            Act::Collective => Ok(()),
        };
        match result {
            Ok(()) => self.accepted += 1,
            Err(Error::Again) => self.refused += 1,
            Err(error) => self.harness.oracle_mut().complain(format!("rank {rank}: an operation was refused: {error}")),
        }
    }

    fn len(&mut self, rank: usize) -> usize {
        let rng = &mut self.rngs[rank];
        let len = if rng.chance(700) { *rng.pick(&self.lens) } else { rng.index(12_000) };
        if self.lossy() { len.max(ID_BYTES) } else { len }
    }

    fn data(&mut self, rank: usize) -> Option<u64> {
        self.next_data += 1;
        self.rngs[rank].chance(300).then_some(self.next_data << 32 | self.next_data)
    }

    fn send(&mut self, rank: usize) -> Result<(), Error> {
        let (dest, send) = self.draw_send(rank);
        self.harness.send(rank, dest, &send).map(drop)
    }

    fn draw_send(&mut self, rank: usize) -> (usize, Send) {
        let (lossy, peer) = (self.lossy(), self.harness.cluster().partner(rank));
        let mut len = self.len(rank);
        let data = self.data(rank);
        let rng = &mut self.rngs[rank];
        let dest = peer.unwrap_or_else(|| *rng.pick(&self.begun));
        if self.long && rng.chance(5) {
            len = rng.between(ROOM_BYTES, MAX_BYTES);
        }
        let mut flags = OpFlags::empty();
        for (flag, permille) in [
            (OpFlags::INJECT, 200),
            (OpFlags::DELIVERY, 250),
            (OpFlags::TRANSMIT, 100),
            (OpFlags::FENCE, 50),
            (OpFlags::AFTER_ACCESSES, 100),
            (OpFlags::QUIET, 100),
        ] {
            flags.set(flag, rng.chance(permille));
        }
        if flags.contains(OpFlags::INJECT) && len > self.engine.inject_bytes {
            if !lossy {
                len = self.engine.inject_bytes;
            } else {
                flags -= OpFlags::INJECT;
            }
        }
        let tag = rng.chance(600).then(|| rng.below(4));
        (dest, Send { tag, data, len, flags, pieces: random_pieces(rng, len) })
    }

    fn criteria(&mut self, rank: usize) -> Recv {
        let connected = self.plan.endpoints == Endpoints::Msg;
        let rng = &mut self.rngs[rank];
        let src = (!connected && rng.chance(500)).then(|| *rng.pick(&self.begun));
        let tag = rng.chance(600).then(|| (rng.below(4), *rng.pick(&[0, 0, 1, 3, ANY_TAG])));
        Recv { src, tag, ..Recv::default() }
    }

    fn recv(&mut self, rank: usize) -> Result<(), Error> {
        let recv = self.draw_recv(rank);
        self.harness.recv(rank, &recv).map(drop)
    }

    fn draw_recv(&mut self, rank: usize) -> Recv {
        let short = self.len(rank);
        let mut recv = self.criteria(rank);
        let rng = &mut self.rngs[rank];
        recv.multi = rng.chance(150);
        recv.len = if rng.chance(150) { short } else { ROOM_BYTES };
        if self.long && rng.chance(5) {
            recv.len = MAX_BYTES;
        }
        if recv.multi {
            recv.len = recv.len.max(1);
        } else {
            recv.pieces = random_pieces(rng, recv.len);
        }
        recv
    }

    fn peek(&mut self, rank: usize) -> Result<(), Error> {
        if let Some(op) = self.claims[rank].pop() {
            let found = match self.harness.oracle().record(op) {
                Record::Peek(peek) => peek.found.iter().flatten().count() > 0,
                _ => false,
            };
            let keep = self.lossy() || self.rngs[rank].chance(700);
            return if found { self.harness.claim(op, keep.then_some(ROOM_BYTES)) } else { Ok(()) };
        }
        let recv = self.criteria(rank);
        let lossy = self.lossy();
        let rng = &mut self.rngs[rank];
        match rng.index(if lossy { 2 } else { 3 }) {
            0 => self.harness.peek(rank, &recv, RecvFlags::empty()).map(drop),
            1 => {
                let op = self.harness.peek(rank, &recv, RecvFlags::CLAIM)?;
                self.claims[rank].push(op);
                Ok(())
            }
            _ => self.harness.peek(rank, &recv, RecvFlags::DISCARD).map(drop),
        }
    }

    fn cancel(&mut self, rank: usize) {
        let posted = self.harness.own_receives(rank);
        if !posted.is_empty() {
            let op = *self.rngs[rank].pick(&posted);
            self.harness.cancel(op);
        }
    }

    fn rma(&mut self, rank: usize, write: bool) -> Result<(), Error> {
        let Some((window, rma)) = self.draw_rma(rank, write) else { return Ok(()) };
        let harness = &mut self.harness;
        if write { harness.write(rank, window, &rma).map(drop) } else { harness.read(rank, window, &rma).map(drop) }
    }

    /// Draws an operation on a window, if the window has room.
    fn draw_rma(&mut self, rank: usize, write: bool) -> Option<(usize, Rma)> {
        let len = self.len(rank);
        let data = self.data(rank).filter(|_| write);
        let peer = self.harness.cluster().partner(rank);
        let rng = &mut self.rngs[rank];
        let target = peer.unwrap_or_else(|| *rng.pick(&self.begun));
        let window = self.harness.windows_of(target)[usize::from(write)];
        let size = self.harness.windows()[window].memory.len();
        let offset = if write { self.cursors[window] } else { rng.index(size - len) };
        if offset + len > size {
            return None;
        }
        let mut rma = Rma { offset, data, pieces: random_pieces(rng, len), ..Rma::default() };
        let first = if rng.chance(300) { rng.between(0, len) } else { len };
        rma.remote = if first < len { vec![first, len - first] } else { vec![len] };
        rma.flags = match rng.below(1000) {
            0..300 => OpFlags::DELIVERY,
            300..450 => OpFlags::TRANSMIT,
            450..600 => OpFlags::FREED,
            _ => OpFlags::empty(),
        };
        for (flag, permille) in [(OpFlags::FENCE, 50), (OpFlags::INJECT, 200)] {
            rma.flags.set(flag, rng.chance(permille));
        }
        if len > self.engine.inject_bytes || !write {
            rma.flags -= OpFlags::INJECT;
        }
        if rng.chance(100) {
            rma.provoke = Some(*rng.pick(&[Fault::BadKey, Fault::BadRange]));
        } else if rng.chance(100) {
            rma.flags |= OpFlags::QUIET;
        }
        if write {
            self.cursors[window] += len;
        }
        Some((window, rma))
    }

    fn atomic(&mut self, rank: usize) -> Result<(), Error> {
        let Some((window, atomic)) = self.draw_atomic(rank) else { return Ok(()) };
        self.harness.atomic(rank, window, &atomic).map(drop)
    }

    /// Draws an operation on an atomic window, if there is one of the drawn kind.
    fn draw_atomic(&mut self, rank: usize) -> Option<(usize, Atomic)> {
        let data = self.data(rank);
        let peer = self.harness.cluster().partner(rank);
        let rng = &mut self.rngs[rank];
        let target = peer.unwrap_or_else(|| *rng.pick(&self.begun));
        let window = self.harness.windows_of(target)[2];
        let access = self.harness.windows()[window].access;
        let counts = rng.chance(500);
        let amo = if counts { Some(count(rng)) } else { any_amo(rng) };
        let amo = amo?;
        let size = amo.ty().size();
        let room = if counts { COUNTERS } else { SLOT_BYTES / size };
        let numbers = if rng.chance(700) { 1 + rng.index(4) } else { 1 + rng.index(room) }.min(room);
        let first = rng.index(room - numbers + 1);
        // Some operations are not aligned.
        let skew = if counts || first + numbers == room || rng.chance(700) { 0 } else { rng.index(size) };
        let offset = first * size + skew + if counts { 0 } else { Harness::slot(rank) };
        let len = numbers * size;
        let mut sources = rng.bytes(2 * len);
        for (at, byte) in sources.iter_mut().enumerate() {
            *byte = if counts { u8::from(at % 8 == 0) * 5 } else { *byte & 3 };
        }
        let cut = size * rng.index(numbers);
        let remote = if cut > 0 && rng.chance(300) { vec![cut, len - cut] } else { vec![len] };
        let mut flags = OpFlags::empty();
        for (flag, permille) in [(OpFlags::DELIVERY, 300), (OpFlags::FENCE, 50), (OpFlags::INJECT, 300)] {
            flags.set(flag, rng.chance(permille));
        }
        if len > self.engine.inject_bytes {
            flags -= OpFlags::INJECT;
        }
        let provoke = rng.chance(50).then(|| *rng.pick(&[Fault::BadKey, Fault::BadRange]));
        // An operation without a completion reports its failure without a context.
        let fails = provoke.is_some() || !allows(access, amo);
        flags.set(OpFlags::QUIET, !fails && rng.chance(150));
        let pieces = random_pieces(rng, len);
        Some((window, Atomic { amo, offset, remote, sources, data, flags, pieces, provoke }))
    }
}

/// Whether a region with this access permits the operation.
fn allows(access: Access, amo: Amo) -> bool {
    (access.read || !amo.fetches()) && (access.write || !amo.changes())
}

/// Draws an addition to counters.
fn count(rng: &mut Stream) -> Amo {
    let form = if rng.chance(600) { Form::Fetch } else { Form::Base };
    Amo::new(form, Type::Uint64, AmoOp::Sum).unwrap_or_else(|| unreachable!("in the table"))
}

/// Draws any operation, if there is one for the drawn type and form. Where the sign of a NaN is unspecified,
/// only integers are used.
fn any_amo(rng: &mut Stream) -> Option<Amo> {
    let (ty, op) = (*rng.pick(&TYPES), *rng.pick(&OPS));
    let computes = matches!(op.op, AmoOp::Sum | AmoOp::Diff | AmoOp::Prod);
    if computes && ty.class != Class::Integer {
        return None;
    }
    Amo::new(*rng.pick(op.forms), ty.ty, op.op)
}
