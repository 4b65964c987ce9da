//! The measurements: the ranks' side.

mod collective;
mod counter;
pub(super) mod floor;
mod idle;
mod matching;
mod memory;
mod overlap;
mod overlap_coll;
mod oversubscribe;
pub(crate) mod pair;
mod pingpong;
mod stream;

use super::child::{RankError, Session};
use super::job::Measure;
use super::options::Kind;
use super::plan::Variant;
use pair::Room;

/// Takes part in a measurement as the job's rank.
pub(super) fn run(session: &mut Session) -> Result<(), RankError> {
    let job = session.job.clone();
    let pingpong = Room { window: pingpong::WINDOW, lasting: 0 };
    match (job.floor, job.case.kind) {
        (Some(floor), _) => floor::run(session, floor),
        (None, Kind::Pingpong) => pair::measure_pairs(session, pingpong, &|| pingpong::PingPong::new(&job)),
        (None, Kind::Bandwidth | Kind::Rate) => {
            let window = count(job.window)?;
            pair::measure_pairs(session, Room { window, lasting: 0 }, &|| stream::Stream::new(&job, window))
        }
        (None, Kind::Peers) if job.rank >= 2 => idle::host(session, job.case.number, 0),
        (None, Kind::Peers) => {
            let room = Room { lasting: idle::SLOTS, ..pingpong };
            let (mut pairs, hellos) = pair::open(session, room)?;
            match (job.rank, hellos.get(2), pairs.as_mut_slice()) {
                (0, Some(idle), [pair]) => idle::connect(&mut pair.port, idle, 0..job.case.number)?,
                (1, Some(_), [pair]) => pair.sleep_until_announced()?,
                _ => {}
            }
            pair::conduct(session, &mut pairs, &|| pingpong::PingPong::new(&job))
        }
        (None, Kind::Match) => matching::run(session),
        (None, Kind::Overlap) => overlap::run(session),
        (None, Kind::Oversubscribe) => oversubscribe::run(session),
        (None, Kind::Counter) => counter::run(session),
        (None, Kind::Collective) => collective::run(session),
        (None, Kind::OverlapColl) => overlap_coll::run(session),
        (None, Kind::Memory) if job.case.variant == Variant::AvInsert => memory::insert(session),
        (None, Kind::Memory) => memory::idle_peers(session),
    }
}

/// Converts a number of slots.
fn count(number: usize) -> Result<u32, RankError> {
    u32::try_from(number).ok().filter(|&count| count < 1 << 24).ok_or_else(|| RankError::Failed("too many".to_owned()))
}

/// The result of a kind, derived from the time of one operation.
pub(super) fn measures(kind: Kind, size: usize, nanoseconds: f64) -> Vec<Measure> {
    vec![match kind {
        // Bytes per nanosecond are gigabytes per second.
        Kind::Bandwidth => Measure::new("bandwidth", size as f64 / nanoseconds * 1e3, "MB/s"),
        Kind::Rate | Kind::Counter => Measure::new("rate", 1e3 / nanoseconds, "Mop/s"),
        Kind::Match => Measure::new("cost", nanoseconds, "ns"),
        Kind::Oversubscribe => Measure::new("time", nanoseconds, "ns"),
        _ => Measure::new("latency", nanoseconds, "ns"),
    }]
}
