//! Settings compared for one job: algorithms of its collectives, the length from which messages are announced first,
//! the network between the ranks of a host, and streams between hosts.
//!
//! Place in the data flow: [`settings`] lists what may help the job of some recordings. [`rank`] simulates the job with
//! each of them.
//!
//! A setting is simulated alone, with all others as they are. Thresholds and streams are also simulated without shared
//! memory. No variable selects an algorithm: those are for developers.

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

/// Lengths from which messages may be announced first. No device sends much longer ones without.
const THRESHOLDS: [u64; 3] = [1, 4 << 10, 16 << 10];
/// Numbers of streams.
const STREAMS: [u64; 2] = [2, 4];

/// Settings that differ from the present ones. The default is the present ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Collectives of this operation and bytes of a block have another algorithm. No variable selects it.
    pub algorithm: Option<(Operation, u64, Algorithm)>,
    /// Messages within a host take the way between hosts.
    pub one_network: bool,
    /// Collectives within a host are messages.
    pub no_boards: bool,
    /// Messages of this length are announced first.
    pub announce_from: Option<u64>,
    /// This many streams carry the messages between hosts.
    pub streams: Option<u64>,
}

impl Setting {
    /// The variables that select it. `None`: it cannot be selected.
    #[must_use]
    pub fn variables(&self) -> Option<String> {
        let given = [
            self.one_network.then(|| "FI_WEFT_SHM=no".to_owned()),
            self.no_boards.then(|| "FI_WEFT_COLL_BOARDS=no".to_owned()),
            self.announce_from.map(|from| format!("FI_WEFT_EAGER_BYTES={}", from.saturating_sub(1))),
            self.streams.map(|count| format!("FI_WEFT_TCP_STREAMS={count}")),
        ];
        self.algorithm.is_none().then(|| given.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let algorithm = |(operation, bytes, algorithm)| format!("{operation:?} of {bytes} B by {algorithm:?}");
        let given = [
            self.algorithm.map(algorithm),
            self.one_network.then(|| "no shared memory".to_owned()),
            self.no_boards.then(|| "no boards".to_owned()),
            self.announce_from.map(|from| format!("messages announced first from {from} B")),
            self.streams.map(|count| format!("{count} streams between hosts")),
        ];
        let given: Vec<String> = given.into_iter().flatten().collect();
        f.write_str(if given.is_empty() { "present settings" } else { "" })?;
        f.write_str(&given.join(", "))
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
    let present = Setting::default();
    let mut all = vec![present];
    let mut seen = Vec::new();
    for (recording, event) in recordings.iter().flat_map(|one| one.events.iter().map(move |(_, event)| (one, event))) {
        let Event::Collective { operation, bytes, context, .. } = *event else { continue };
        let members = recording.contexts.get(&context).map_or(0, Vec::len);
        if let Some(&operation) = Operation::ALL.get(operation as usize)
            && !seen.contains(&(operation, bytes, members))
        {
            seen.push((operation, bytes, members));
            let algorithm = |other| Setting { algorithm: Some((operation, bytes, other)), ..present };
            all.extend(others(operation, bytes, members).map(algorithm));
        }
    }
    all.extend(on_network(present));
    if costs.near.is_some() {
        let one_network = Setting { one_network: true, ..present };
        all.push(one_network);
        all.extend(on_network(one_network));
    }
    if costs.collective.board.is_some() {
        all.push(Setting { no_boards: true, ..present });
    }
    let mut kept = Vec::new();
    all.retain(|setting| {
        !kept.contains(setting) && {
            kept.push(*setting);
            true
        }
    });
    all
}

/// Thresholds and streams, beside other settings.
fn on_network(beside: Setting) -> impl Iterator<Item = Setting> {
    let thresholds = THRESHOLDS.map(|from| Setting { announce_from: Some(from), ..beside });
    thresholds.into_iter().chain(STREAMS.map(|count| Setting { streams: Some(count), ..beside }))
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
        let chosen = |operation, bytes, _| match setting.algorithm {
            Some((of, length, algorithm)) if (of, length) == (operation, bytes) => Some(algorithm),
            _ => None,
        };
        if let Some(from) = setting.announce_from {
            for path in costs.near.iter_mut().chain([&mut costs.far]) {
                path.rendezvous_from = Some(from);
            }
        }
        if setting.one_network || setting.no_boards {
            costs.collective.board = None;
        }
        if setting.one_network {
            costs.near = None;
        }
        if let Some(count) = setting.streams {
            costs.far.byte = (costs.far.byte / count).max(costs.far.least_byte.min(costs.far.byte));
        }
        let job = build(recordings, &costs, &chosen)?;
        let outcome = Machine::new(&job, &costs, Options::default()).run(|_, _| ());
        let end_ps = outcome.map_or(u64::MAX, |outcome| outcome.end_ps);
        rated.push(Rated { setting, end_ps });
    }
    rated.sort_by_key(|rated| rated.end_ps);
    Ok(rated)
}
