//! Overlap of collectives with computing, by both methods of "Overlapping Computation and Communication: Barrier
//! Algorithms and ConnectX-2 CORE-Direct Capabilities" (Graham et al.), and by the formulas of the OSU and Intel
//! benchmarks.
//!
//! Rank 0 measures (`measure`). The other members are one of these:
//! - without a wire, one process each, which computes as rank 0 does (`iterations`);
//! - with an emulated wire, endpoints of one process, which hold each step back (`wire`).

mod cost;
mod iterations;
mod measure;
mod wire;

use super::super::collective::buffers::Buffers;
use super::super::collective::crew::Crew;
use super::super::collective::operation;
use crate::bench::child::{RankError, Session};
use iterations::Member;
use measure::Others;

/// Takes part in the measurement.
pub(crate) fn run(session: &mut Session) -> Result<(), RankError> {
    let job = &session.job;
    if job.case.wire_us > 0 {
        return if job.rank == 0 { wire::compute(session) } else { wire::play(session) };
    }
    let place = [job.rank, job.ranks];
    let coll = operation(job)?.operation();
    let buffers = Buffers::new(coll, job.case.size, place, Crew::data_at(job.ranks), 1);
    let mut crew = Crew::open(session, 1, buffers.bytes())?;
    crew.port.ep.collective_offered(coll, job.ranks)?;
    let group = crew.join()?;
    let slot = crew.first_slot();
    let mut member = Member::new(buffers, group, slot)?;
    if job.rank == 0 {
        let result = measure::all(job, &mut Others::Crew(&mut crew), &mut member)?;
        crew.order([0; 4])?;
        session.result(result);
    } else {
        loop {
            match crew.next_order()? {
                [0, ..] => break,
                [count, method, nanoseconds, _] => {
                    let method = iterations::Method::from_words(method, nanoseconds);
                    member.iterate(&mut crew.port, count, method)?;
                }
            }
            crew.report([0; 4])?;
        }
    }
    session.linger(1, || crew.port.linger())
}
