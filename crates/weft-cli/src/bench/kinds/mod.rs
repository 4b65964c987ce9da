//! The measurements, as the ranks make them.

pub(super) mod floor;
mod pair;
mod pingpong;
mod stream;

use super::child::{Session, Trouble};
use super::job::Measure;
use super::options::Kind;

/// Takes part in a measurement as the rank that the job says.
pub(super) fn run(session: &mut Session) -> Result<(), Trouble> {
    let job = session.job.clone();
    match (job.floor, job.case.kind) {
        (Some(floor), _) => floor::run(session, floor),
        (None, Kind::Pingpong) => pair::duel(session, pingpong::WINDOW, &|| pingpong::PingPong::new(&job)),
        (None, Kind::Bandwidth | Kind::Rate) => {
            let window = u32::try_from(job.window).map_err(|_| Trouble::Failed("a window too large".to_owned()))?;
            pair::duel(session, window, &|| stream::Stream::new(&job, window))
        }
        _ => Err(Trouble::NotOffered("not measured yet".to_owned())),
    }
}

/// What the time of one operation means for a kind.
pub(super) fn measures(kind: Kind, size: usize, nanoseconds: f64) -> Vec<Measure> {
    vec![match kind {
        // Bytes per nanosecond are gigabytes per second.
        Kind::Bandwidth => Measure::new("bandwidth", size as f64 / nanoseconds * 1e3, "MB/s"),
        Kind::Rate => Measure::new("rate", 1e3 / nanoseconds, "Mop/s"),
        _ => Measure::new("latency", nanoseconds, "ns"),
    }]
}
