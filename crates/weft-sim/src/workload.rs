//! Random workloads: everything a client can ask of an endpoint, drawn from a seed, on a fabric drawn from the same seed.
//!
//! Place in the data flow: [`run`] is one whole run: it draws fabric, engine and operations, drives the
//! [`Harness`], and returns what was wrong. The same seed and scenario give the same trace hash.

use weft_engine::amo::{Amo, Class, Form, OPS, Op as What, TYPES, Type};
use weft_engine::api::{Access, Config, Error, Fault, Matching, OpFlags};
use weft_engine::mrcache::Limits;

use crate::config::FabricConfig;
use crate::fabric::Stats;
use crate::harness::{Atomic, COUNTERS, Harness, Recv, Rma, SLOT_BYTES, Send, random_pieces};
use crate::oracle::{ID_BYTES, Op, Record};
use crate::rng::{Entity, Stream};

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Everything must succeed.
    Lossless,
    /// Connection attempts fail now and then.
    ConnectFailures,
    /// Links between living ranks break.
    Breaks,
    /// A rank dies.
    Death,
    /// A rank leaves in order.
    Departure,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Everything that was wrong.
    pub wrong: Vec<String>,
    /// The trace's hash.
    pub hash: [u8; 32],
    /// What went through the fabric.
    pub stats: Stats,
    /// Operations accepted.
    pub accepted: usize,
    /// Operations refused with `Again`.
    pub refused: usize,
    /// The end of the trace and the configuration, for a failure's report.
    pub detail: String,
}

/// The engine's configuration of a run.
#[must_use]
pub fn engine_config(rng: &mut Stream) -> Config {
    Config {
        inject_bytes: *rng.pick(&[0, 8, 64, 256, 4096]),
        tx_depth: *rng.pick(&[1, 2, 8, 64, 4096]),
        rx_depth: *rng.pick(&[4, 64, 1 << 20]),
        window_bytes: *rng.pick(&[0, 256, 1000, 10_000, 1 << 22]),
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

struct Workload {
    harness: Harness,
    rngs: Vec<Stream>,
    scenario: Scenario,
    engine: Config,
    /// Lengths at which some protocol switches.
    lens: Vec<usize>,
    /// Per rank: peeks that may have claimed a message.
    claims: Vec<Vec<Op>>,
    /// Where the next write to each window goes.
    cursors: Vec<usize>,
    next_data: u64,
    accepted: usize,
    refused: usize,
}

/// One run.
#[must_use]
pub fn run(seed: u64, scenario: Scenario) -> Report {
    run_with(seed, scenario, |_| {})
}

/// One run whose harness is prepared first.
#[must_use]
pub fn run_with(seed: u64, scenario: Scenario, prepare: impl FnOnce(&mut Harness)) -> Report {
    let mut fabric = FabricConfig::swarm(seed);
    let mut rng = Stream::new(seed, Entity::Test(usize::MAX >> 8));
    if scenario == Scenario::ConnectFailures {
        fabric.faults.connect_fail_permille = 200;
    }
    let engine = engine_config(&mut rng);
    let ranks = rng.between(2, 8);
    let steps = rng.between(10, 100);
    let detail = format!("{ranks} ranks, {scenario:?}\n{fabric:?}\n{engine:?}\n");
    let mut workload = Workload::new(fabric, engine, ranks, scenario);
    prepare(&mut workload.harness);
    workload.play(steps, &mut rng);
    let wrong = workload.harness.finish();
    let fabric = workload.harness.cluster().fabric().clone();
    Report {
        wrong,
        hash: fabric.trace_hash(),
        stats: fabric.stats(),
        accepted: workload.accepted,
        refused: workload.refused,
        detail: detail + &fabric.trace_tail(),
    }
}

impl Workload {
    fn new(fabric: FabricConfig, engine: Config, ranks: usize, scenario: Scenario) -> Self {
        let seed = fabric.seed;
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
        let mut harness = Harness::new(fabric, engine, ranks);
        for rank in 0..ranks {
            // Cannot fail: the keys are new.
            let _ = harness.add_window(rank, 30_000, Access { read: true, write: false }, rank.is_multiple_of(2));
            let _ = harness.add_window(rank, 60_000, Access { read: false, write: true }, rank.is_multiple_of(3));
        }
        // After the others. Two lack a right.
        for rank in 0..ranks {
            let access = Access { read: rank != 3, write: rank != 5 };
            let _ = harness.add_atomic_window(rank, access, rank.is_multiple_of(3));
        }
        if scenario == Scenario::ConnectFailures {
            for a in 0..ranks {
                for b in a..ranks {
                    harness.oracle_mut().broke(a, b);
                }
            }
        }
        Self {
            rngs: (0..ranks).map(|rank| Stream::new(seed, Entity::Workload(rank))).collect(),
            claims: vec![Vec::new(); ranks],
            cursors: vec![0; 2 * ranks],
            harness,
            scenario,
            engine,
            lens,
            next_data: 1,
            accepted: 0,
            refused: 0,
        }
    }

    /// Messages can be lost, so each must be recognisable by its bytes.
    fn lossy(&self) -> bool {
        self.scenario != Scenario::Lossless
    }

    fn play(&mut self, steps: usize, rng: &mut Stream) {
        for rank in self.harness.cluster().living() {
            let min = *rng.pick(&[ID_BYTES, 64, 1000, 20_000]);
            if let Some(engine) = self.harness.cluster().engine(rank) {
                engine.set_min_multi_recv(min);
            }
        }
        let disasters = if self.scenario == Scenario::Breaks { 8 } else { 1 };
        let disasters = (0..disasters).map(|_| rng.index(steps)).collect::<Vec<_>>();
        for step in 0..steps {
            for _ in disasters.iter().filter(|at| **at == step) {
                self.strike(rng);
            }
            for rank in self.harness.cluster().living() {
                for _ in 0..self.rngs[rank].index(4) {
                    self.act(rank);
                }
            }
            for _ in 0..rng.index(6) {
                self.harness.turn();
            }
            if rng.chance(20) {
                // A lull, in which everything under way arrives.
                let _ = self.harness.settle();
            }
        }
    }

    fn strike(&mut self, rng: &mut Stream) {
        let ranks = self.harness.cluster().ranks();
        let (victim, other) = (rng.index(ranks), rng.index(ranks));
        match self.scenario {
            Scenario::Lossless | Scenario::ConnectFailures => {}
            Scenario::Breaks => self.harness.break_links(victim, other),
            Scenario::Death => self.harness.kill(victim),
            Scenario::Departure => self.harness.leave(victim),
        }
    }

    fn act(&mut self, rank: usize) {
        let result = match self.rngs[rank].index(100) {
            0..40 => self.send(rank),
            40..72 => self.recv(rank),
            72..80 => self.peek(rank),
            80..84 => {
                self.cancel(rank);
                Ok(())
            }
            84..89 => self.rma(rank, true),
            89..94 => self.rma(rank, false),
            _ => self.atomic(rank),
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
        let mut len = self.len(rank);
        let data = self.data(rank);
        let ranks = self.rngs.len();
        let rng = &mut self.rngs[rank];
        let mut flags = OpFlags::empty();
        for (flag, permille) in [
            (OpFlags::INJECT, 200),
            (OpFlags::DELIVERY, 250),
            (OpFlags::TRANSMIT, 100),
            (OpFlags::FENCE, 50),
            (OpFlags::QUIET, 100),
        ] {
            flags.set(flag, rng.chance(permille));
        }
        if flags.contains(OpFlags::INJECT) && len > self.engine.inject_bytes {
            if self.scenario == Scenario::Lossless {
                len = self.engine.inject_bytes;
            } else {
                flags -= OpFlags::INJECT;
            }
        }
        let tag = rng.chance(600).then(|| rng.below(4));
        let send = Send { tag, data, len, flags, pieces: random_pieces(rng, len) };
        let dest = rng.index(ranks);
        self.harness.send(rank, dest, &send).map(drop)
    }

    fn criteria(&mut self, rank: usize) -> Recv {
        let ranks = self.rngs.len();
        let rng = &mut self.rngs[rank];
        let src = rng.chance(500).then(|| rng.index(ranks));
        let tag = rng.chance(600).then(|| (rng.below(4), *rng.pick(&[0, 0, 1, 3, u64::MAX])));
        Recv { src, tag, ..Recv::default() }
    }

    fn recv(&mut self, rank: usize) -> Result<(), Error> {
        let short = self.len(rank);
        let mut recv = self.criteria(rank);
        let rng = &mut self.rngs[rank];
        recv.multi = rng.chance(150);
        recv.len = if rng.chance(150) { short } else { 30_000 };
        if recv.multi {
            recv.len = recv.len.max(1);
        } else {
            recv.pieces = random_pieces(rng, recv.len);
        }
        self.harness.recv(rank, &recv).map(drop)
    }

    fn peek(&mut self, rank: usize) -> Result<(), Error> {
        if let Some(op) = self.claims[rank].pop() {
            let found = matches!(self.harness.oracle().record(op), Record::Peek(peek) if peek.found.iter().flatten().count() > 0);
            let keep = self.lossy() || self.rngs[rank].chance(700);
            return if found { self.harness.claim(op, keep.then_some(30_000)) } else { Ok(()) };
        }
        let recv = self.criteria(rank);
        let lossy = self.lossy();
        let rng = &mut self.rngs[rank];
        match rng.index(if lossy { 2 } else { 3 }) {
            0 => self.harness.peek(rank, &recv, OpFlags::empty()).map(drop),
            1 => {
                let op = self.harness.peek(rank, &recv, OpFlags::CLAIM)?;
                self.claims[rank].push(op);
                Ok(())
            }
            _ => self.harness.peek(rank, &recv, OpFlags::DISCARD).map(drop),
        }
    }

    fn cancel(&mut self, rank: usize) {
        let posted = self.harness.oracle().posted(rank);
        if !posted.is_empty() {
            let op = *self.rngs[rank].pick(&posted);
            self.harness.cancel(op);
        }
    }

    fn rma(&mut self, rank: usize, write: bool) -> Result<(), Error> {
        let len = self.len(rank);
        let data = self.data(rank).filter(|_| write);
        let ranks = self.rngs.len();
        let rng = &mut self.rngs[rank];
        let window = 2 * rng.index(ranks) + usize::from(write);
        let size = self.harness.windows()[window].memory.len();
        let offset = if write { self.cursors[window] } else { rng.index(size - len) };
        if offset + len > size {
            return Ok(());
        }
        let mut rma = Rma { offset, data, pieces: random_pieces(rng, len), ..Rma::default() };
        let first = if rng.chance(300) { rng.between(0, len) } else { len };
        rma.remote = if first < len { vec![first, len - first] } else { vec![len] };
        for (flag, permille) in [(OpFlags::DELIVERY, 300), (OpFlags::FENCE, 50), (OpFlags::INJECT, 200)] {
            rma.flags.set(flag, rng.chance(permille));
        }
        if len > self.engine.inject_bytes || !write {
            rma.flags -= OpFlags::INJECT;
        }
        if rng.chance(100) {
            rma.spoil = Some(*rng.pick(&[Fault::BadKey, Fault::BadRange]));
        } else if rng.chance(100) {
            rma.flags |= OpFlags::QUIET;
        }
        if write {
            self.cursors[window] += len;
            self.harness.write(rank, window, &rma).map(drop)
        } else {
            self.harness.read(rank, window, &rma).map(drop)
        }
    }

    fn atomic(&mut self, rank: usize) -> Result<(), Error> {
        let data = self.data(rank);
        let ranks = self.rngs.len();
        let rng = &mut self.rngs[rank];
        let window = 2 * ranks + rng.index(ranks);
        let access = self.harness.windows()[window].access;
        let counts = rng.chance(500);
        let amo = if counts { Some(count(rng)) } else { any_amo(rng) };
        let Some(amo) = amo else { return Ok(()) };
        let size = amo.ty().size();
        let room = if counts { COUNTERS } else { SLOT_BYTES / size };
        let numbers = if rng.chance(700) { 1 + rng.index(4) } else { 1 + rng.index(room) }.min(room);
        let first = rng.index(room - numbers + 1);
        // Not always aligned.
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
        let spoil = rng.chance(50).then(|| *rng.pick(&[Fault::BadKey, Fault::BadRange]));
        // A failure of what nobody waits for has no name.
        let fails = spoil.is_some() || !allows(access, amo);
        flags.set(OpFlags::QUIET, !fails && rng.chance(150));
        let atomic = Atomic { amo, offset, remote, sources, data, flags, pieces: random_pieces(rng, len), spoil };
        self.harness.atomic(rank, window, &atomic).map(drop)
    }
}

/// Whether a region with this access serves the operation.
fn allows(access: Access, amo: Amo) -> bool {
    (access.read || !amo.fetches()) && (access.write || !amo.changes())
}

/// An addition to counters.
fn count(rng: &mut Stream) -> Amo {
    let form = if rng.chance(600) { Form::Fetch } else { Form::Base };
    Amo::new(form, Type::Uint64, What::Sum).unwrap_or_else(|| unreachable!("in the table"))
}

/// Any operation, if there is one for the type and form drawn. (Where not even the sign of a NaN is certain, integers only.)
fn any_amo(rng: &mut Stream) -> Option<Amo> {
    let (ty, op) = (*rng.pick(&TYPES), *rng.pick(&OPS));
    let computes = matches!(op.op, What::Sum | What::Diff | What::Prod);
    if computes && ty.class != Class::Integer {
        return None;
    }
    Amo::new(*rng.pick(op.forms), ty.ty, op.op)
}
