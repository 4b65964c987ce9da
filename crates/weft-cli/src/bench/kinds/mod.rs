//! The measurements: the ranks' side.

mod collective;
pub(super) mod floor;
#[cfg(feature = "lab")]
mod lab;
pub(crate) mod pair;
mod pingpong;
mod stream;

use super::child::{RankError, Session};
use super::job::Measure;
use super::options::Kind;
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
        (None, Kind::Collective) => collective::run(session),
        #[cfg(feature = "lab")]
        (None, _) => lab::run(session, pingpong),
        #[cfg(not(feature = "lab"))]
        (None, _) => Err(RankError::Failed("only weft-lab measures this kind".to_owned())),
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
