//! The messages between the parent and its children: lines of JSON over the children's standard input and output.
//!
//! A child gets its [`Job`] as an argument. It answers `Hello` with its addresses, receives the addresses of all
//! children, and measures. It then reports `Result` (the measuring rank only) and `Done`, and makes progress
//! until its standard input is closed, because a peer may need that. Lines without [`MARK`] come from libraries
//! in the child and are ignored.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cores;
use super::options::{Bind, Kind, Options, Progress, Wait};
use super::places::Host;
use super::plan::{Case, Variant};
use super::subject::{Floor, Subject};

/// The first character of a child's lines.
pub(crate) const MARK: char = '@';

/// The purpose of a child process.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Loads a library and reports its version and its providers.
    Probe(PathBuf),
    /// Acts as one rank of a measurement.
    Rank(Box<Job>),
}

/// A measurement, as one of its ranks sees it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) case: Case,
    /// The provider, empty for a floor.
    pub(crate) provider: String,
    pub(crate) floor: Option<Floor>,
    pub(crate) library: PathBuf,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Whether there are more ranks than cores.
    pub(crate) crowded: bool,
    /// The cores for the threads of this rank that call a provider.
    pub(crate) cores: Vec<usize>,
    /// The cores for the other threads of this rank.
    pub(crate) others_cores: Vec<usize>,
    pub(crate) bind: Bind,
    pub(crate) sample_ms: usize,
    pub(crate) window: usize,
    pub(crate) inject: bool,
    pub(crate) delivery: bool,
    pub(crate) mapped: bool,
    pub(crate) progress: Option<Progress>,
    pub(crate) wait: Wait,
    pub(crate) timeout_s: usize,
    /// The parent's process id. A child with another parent was orphaned before it could ask for a signal.
    pub(crate) parent: u32,
    /// This host's address for the rank on the other host. `None`: both ranks are here.
    pub(crate) listen: Option<IpAddr>,
}

impl Job {
    /// The job of rank 0; the others differ in `rank` and `cores`.
    pub(crate) fn new(options: &Options, case: &Case, subject: &Subject, host: &Host, all_cores: &[usize]) -> Self {
        let ranks = ranks(case, subject.floor);
        Self {
            case: case.clone(),
            provider: subject.provider.clone(),
            floor: subject.floor,
            library: host.library.clone(),
            rank: 0,
            ranks,
            crowded: ranks > all_cores.len(),
            cores: all_cores.to_vec(),
            others_cores: all_cores.to_vec(),
            bind: options.bind,
            sample_ms: options.sample_ms,
            window: options.window,
            inject: options.inject,
            delivery: options.delivery,
            mapped: options.mapped,
            progress: subject.progress,
            wait: options.wait(ranks, all_cores.len()),
            timeout_s: options.timeout_s,
            parent: std::process::id(),
            listen: None,
        }
    }

    /// The job as another rank sees it.
    pub(crate) fn of_rank(&self, rank: usize) -> Self {
        let cores = match (self.case.kind, self.floor) {
            // There may be more ranks than cores, so the system places them.
            (Kind::Oversubscribe | Kind::Counter, _) => self.cores.clone(),
            (Kind::Collective | Kind::OverlapColl, _) if self.crowded => self.cores.clone(),
            // Idle processes must not disturb the measuring ones.
            (Kind::Peers, None) if rank >= 2 => self.cores.clone(),
            (Kind::Memory, None) if rank >= 1 => self.cores.clone(),
            (_, Some(Floor::CacheLine | Floor::Ring)) => cores::of_rank(&self.cores, 0, 2),
            (_, None) if self.bind == Bind::All => self.cores.clone(),
            (_, None) if self.bind == Bind::Pair => cores::of_rank(&self.cores, 0, self.case.threads),
            _ => cores::of_rank(&self.cores, rank, self.case.threads),
        };
        let others_cores = match self.bind {
            Bind::Caller => self.others_cores.clone(),
            Bind::Apart if rank == 0 => cores::except(&self.others_cores, &cores),
            _ => cores.clone(),
        };
        // The members behind an emulated wire make progress only when they are polled.
        let played = self.case.wire_us > 0 && rank > 0 && self.progress != Some(Progress::Chain);
        let progress = if played { Some(Progress::Manual) } else { self.progress };
        Self { rank, cores, others_cores, progress, ..self.clone() }
    }

    /// The variables of a rank: behind an emulated wire rank 0 is reached by TCP, and no member shares memory for its
    /// part of a collective. Without resumption a link carries no acknowledgements, which are no steps. A chain is by
    /// TCP for all members. The kernel performs the part of rank 0; it would not wait for the wire at the others.
    pub(crate) fn variables(&self) -> Variables {
        match (self.case.wire_us, self.rank, self.progress) {
            (0, ..) => &[],
            (_, 0, Some(Progress::Chain)) => CHAIN_OF_FIRST,
            (_, _, Some(Progress::Chain)) => CHAIN,
            (_, 0, _) => WIRE_OF_FIRST,
            _ => WIRE,
        }
    }
}

type Variables = &'static [(&'static str, &'static str)];
/// The variables of members behind an emulated wire.
const WIRE: Variables = &[("FI_WEFT_COLL_BOARDS", "no"), ("FI_WEFT_TCP_RESUME_MS", "0"), ("FI_WEFT_COLL_URING", "no")];
const WIRE_OF_FIRST: Variables = &[WIRE[0], WIRE[1], WIRE[2], ("FI_WEFT_SHM", "no")];
const CHAIN: Variables = &[WIRE[0], WIRE[1], ("FI_WEFT_COLL_URING", "polled"), WIRE_OF_FIRST[3]];
const CHAIN_OF_FIRST: Variables = &[WIRE[0], WIRE[1], ("FI_WEFT_COLL_URING", "yes"), WIRE_OF_FIRST[3]];

/// The number of processes of a measurement.
fn ranks(case: &Case, floor: Option<Floor>) -> usize {
    match (floor, case.kind, case.variant) {
        (Some(Floor::CacheLine | Floor::Ring | Floor::Memcpy), ..) | (None, _, Variant::AvInsert) => 1,
        (Some(Floor::Readv | Floor::Tcp), ..) => 2,
        (None, Kind::Peers, _) if case.number == 0 => 2,
        (None, Kind::Peers, _) => 3,
        (None, Kind::Memory, _) => 3,
        (None, Kind::OverlapColl, _) if case.wire_us > 0 => 2,
        (None, Kind::Oversubscribe | Kind::Collective | Kind::OverlapColl, _) => case.number,
        (None, Kind::Counter, _) => case.number + 1,
        _ => 2,
    }
}

/// The addresses of a rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The names of its endpoints, in hexadecimal.
    pub(crate) names: Vec<String>,
    /// Base and key of each endpoint's memory.
    pub(crate) regions: Vec<(u64, u64)>,
    /// The process id.
    pub(crate) pid: u32,
}

/// The unit of counted events.
pub(crate) const COUNT: &str = "times";

/// The unit of events of an operation.
pub(crate) const PER_OPERATION: &str = "per operation";

/// One measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measure {
    /// The quantity: latency, bandwidth, ….
    pub(crate) metric: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// The times of single operations: nanoseconds, and the number of operations that took as long. Empty: they were
    /// not taken.
    #[serde(default)]
    pub(crate) times: Vec<(u64, u64)>,
}

impl Measure {
    pub(crate) fn new(metric: &str, value: f64, unit: &str) -> Self {
        Self { metric: metric.to_owned(), value, unit: unit.to_owned(), times: Vec::new() }
    }
}

/// A child's lines.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToParent {
    /// The answer to a probe: major, minor, providers.
    Library(u32, u32, Vec<String>),
    /// Addresses.
    Hello(Hello),
    /// The measured values.
    Result(Vec<Measure>),
    /// The rank has finished, but still makes progress.
    Done,
    /// The provider lacks a needed capability.
    NotOffered(String),
    /// The measurement failed.
    Failed(String),
}

/// The outcome of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Measured(Vec<Measure>),
    NotOffered(String),
    Failed(String),
    TimedOut,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A job of this kind over weft, as rank 1 of 2.
    pub(crate) fn job(kind: Kind) -> Job {
        Job {
            case: Case::plain(kind),
            provider: "weft".to_owned(),
            floor: None,
            library: PathBuf::new(),
            rank: 1,
            ranks: 2,
            crowded: false,
            cores: vec![0],
            others_cores: vec![0],
            bind: Bind::Core,
            sample_ms: 1,
            window: 1,
            inject: false,
            delivery: false,
            mapped: false,
            progress: None,
            wait: Wait::Spin,
            timeout_s: 1,
            parent: 0,
            listen: None,
        }
    }
}
