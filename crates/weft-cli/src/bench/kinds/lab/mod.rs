//! The measurements of `weft-lab`: the ranks' side of the kinds that only this project uses.

mod counter;
mod idle;
mod matching;
mod memory;
mod overlap;
mod overlap_coll;
mod oversubscribe;

use super::pair::{self, Room};
use super::pingpong;
use crate::bench::child::{RankError, Session};
use crate::bench::options::Kind;
use crate::bench::plan::Variant;

/// Takes part in a measurement as the job's rank. `room`: that of a ping-pong.
pub(super) fn run(session: &mut Session, room: Room) -> Result<(), RankError> {
    let job = session.job.clone();
    match job.case.kind {
        Kind::Peers if job.rank >= 2 => idle::host(session, job.case.number, 0),
        Kind::Peers => {
            let room = Room { lasting: idle::SLOTS, ..room };
            let (mut pairs, hellos) = pair::open(session, room)?;
            match (job.rank, hellos.get(2), pairs.as_mut_slice()) {
                (0, Some(idle), [pair]) => idle::connect(&mut pair.port, idle, 0..job.case.number)?,
                (1, Some(_), [pair]) => pair.sleep_until_announced()?,
                _ => {}
            }
            pair::conduct(session, &mut pairs, &|| pingpong::PingPong::new(&job))
        }
        Kind::Match => matching::run(session),
        Kind::Overlap => overlap::run(session),
        Kind::Oversubscribe => oversubscribe::run(session),
        Kind::Counter => counter::run(session),
        Kind::OverlapColl => overlap_coll::run(session),
        Kind::Memory if job.case.variant == Variant::AvInsert => memory::insert(session),
        Kind::Memory => memory::idle_peers(session),
        Kind::Pingpong | Kind::Bandwidth | Kind::Rate | Kind::Collective => {
            Err(RankError::Failed("no kind of the laboratory".to_owned()))
        }
    }
}
