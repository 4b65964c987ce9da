//! Settings compared for one job: algorithms of its collectives, the length from which messages are announced first,
//! the network between the ranks of a host, and streams between hosts.
//!
//! Place in the data flow: [`settings`] lists what may help the job of some recordings. [`rank`] simulates the job with
//! each of them.
//!
//! A setting is simulated alone, with all others as they are.

use weft_engine::collective::{Algorithm, Operation, compile_as, select};
use weft_record::{Event, Recording};
use weft_scale::profile::Costs;
use weft_scale::{Machine, Options, schedule};

use crate::build::{Fault, build};

/// The algorithms of an operation.
const fn algorithms(operation: Operation) -> &'static [Algorithm] {
    use Algorithm::{Binomial, Bruck, Direct, Dissemination, Halving, Pipeline, RecursiveDoubling, Ring, ScatterRing};
    match operation {
        Operation::Barrier => &[Dissemination, RecursiveDoubling],
        Operation::Broadcast => &[Binomial, Pipeline, ScatterRing],
        Operation::AllReduce => &[RecursiveDoubling, Halving],
        Operation::Reduce => &[Binomial, Halving],
        Operation::ReduceScatter => &[RecursiveDoubling, Direct],
        Operation::AllGather => &[Bruck, Ring],
        Operation::AllToAll => &[Bruck, Direct],
        Operation::Scatter | Operation::Gather => &[Binomial, Direct],
    }
}

/// Lengths from which messages may be announced first.
const THRESHOLDS: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 1 << 20];
/// Numbers of streams.
const STREAMS: [u64; 2] = [2, 4];

/// A setting that differs from the present ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// All as it is.
    Present,
    /// Collectives of this operation and bytes of a block have another algorithm.
    Algorithm(Operation, u64, Algorithm),
    /// Messages of this length are announced first.
    AnnounceFrom(u64),
    /// Messages within a host take the way between hosts (FI_WEFT_SHM=no).
    OneNetwork,
    /// Collectives within a host are messages (FI_WEFT_COLL_BOARDS=no).
    NoBoards,
    /// This many streams carry the messages between hosts, each at the present rate.
    Streams(u64),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Present => f.write_str("present settings"),
            Self::Algorithm(operation, bytes, algorithm) => write!(f, "{operation:?} of {bytes} B by {algorithm:?}"),
            Self::AnnounceFrom(bytes) => write!(f, "messages announced first from {bytes} B"),
            Self::OneNetwork => f.write_str("no shared memory"),
            Self::NoBoards => f.write_str("no boards"),
            Self::Streams(count) => write!(f, "{count} streams between hosts"),
        }
    }
}

/// A setting with the predicted time of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rated {
    /// The setting.
    pub setting: Setting,
    /// The time at which the last rank ends.
    pub end_ps: u64,
}

/// The settings that may change the time of this job, the present ones first.
#[must_use]
pub fn settings(recordings: &[Recording], costs: &Costs) -> Vec<Setting> {
    let mut all = vec![Setting::Present];
    let mut seen = Vec::new();
    for (recording, event) in recordings.iter().flat_map(|one| one.events.iter().map(move |(_, event)| (one, event))) {
        let Event::Collective { operation, bytes, context, .. } = *event else { continue };
        let members = recording.contexts.get(&context).map_or(0, Vec::len);
        if let Some(&operation) = Operation::ALL.get(operation as usize)
            && !seen.contains(&(operation, bytes, members))
        {
            seen.push((operation, bytes, members));
            all.extend(others(operation, bytes, members).map(|other| Setting::Algorithm(operation, bytes, other)));
        }
    }
    all.extend(THRESHOLDS.map(Setting::AnnounceFrom));
    if costs.near.is_some() {
        all.push(Setting::OneNetwork);
    }
    if costs.collective.board.is_some() {
        all.push(Setting::NoBoards);
    }
    all.extend(STREAMS.map(Setting::Streams));
    let mut kept = Vec::new();
    all.retain(|setting| {
        !kept.contains(setting) && {
            kept.push(*setting);
            true
        }
    });
    all
}

/// Algorithms that give other schedules than the one that the size selects.
fn others(operation: Operation, bytes: u64, members: usize) -> impl Iterator<Item = Algorithm> {
    let members = u32::try_from(members).unwrap_or(u32::MAX);
    let mut request = schedule::request(operation, members, usize::try_from(bytes).unwrap_or(usize::MAX));
    request.rank = members.saturating_sub(1);
    let mut known = vec![compile_as(&request, select(&request)).ok()];
    algorithms(operation).iter().copied().filter(move |algorithm| {
        let schedule = compile_as(&request, *algorithm).ok();
        let is_new = schedule.is_some() && !known.contains(&schedule);
        known.push(schedule);
        is_new
    })
}

/// Simulates the job with each setting. The fastest comes first, and equal ones in the order given.
///
/// # Errors
/// The recordings make no job.
pub fn rank(recordings: &[Recording], costs: &Costs, settings: &[Setting]) -> Result<Vec<Rated>, Fault> {
    let mut rated = Vec::with_capacity(settings.len());
    for &setting in settings {
        let mut costs = costs.clone();
        let chosen = |operation, bytes, _| match setting {
            Setting::Algorithm(of, length, algorithm) if (of, length) == (operation, bytes) => Some(algorithm),
            _ => None,
        };
        match setting {
            Setting::Present | Setting::Algorithm(..) => {}
            Setting::AnnounceFrom(from) => {
                costs.far.rendezvous_from = Some(from);
                if let Some(near) = &mut costs.near {
                    near.rendezvous_from = Some(from);
                }
            }
            Setting::OneNetwork => (costs.near, costs.collective.board) = (None, None),
            Setting::NoBoards => costs.collective.board = None,
            Setting::Streams(count) => costs.far.byte /= count,
        }
        let job = build(recordings, &costs, &chosen)?;
        let outcome = Machine::new(&job, &costs, Options::default()).run(|_, _| ());
        let end_ps = outcome.map_or(u64::MAX, |outcome| outcome.end_ps);
        rated.push(Rated { setting, end_ps });
    }
    rated.sort_by_key(|rated| rated.end_ps);
    Ok(rated)
}
