//! An emulated wire between one computing member and the others, so that there is something to overlap on one machine.
//!
//! The computing member is rank 0: an endpoint in a process of its own, reached by TCP. The *player*, another process
//! on another core, has the endpoints of all other members. They share memory among each other, use messages for their
//! part of the collective, and make progress only when the player polls them.
//!
//! With `--progress chain` the kernel performs the part of rank 0. The player's members perform theirs by polls of
//! connections of the same kind, and use TCP among each other, too.
//!
//! The player works in *rounds*. When bytes from the computing member have arrived, it waits for the time of the wire.
//! It then polls each endpoint, so that each performs one step of its schedule. When all have ended their operation and
//! the computing member has started its next one, all start theirs. An operation of s steps thus takes the computing
//! member s times the wire, its own time for each step, and the player's time for a round. The others are never late,
//! and never ahead of the computing member.
//!
//! Endpoints are polled in an order in which the messages that the computing member depends on reach members that have
//! already been polled: from the highest rank in a dissemination (barrier), from the lowest in recursive doubling.
//!
//! The computing member sends one message in each step of a barrier by dissemination and of an allreduce by recursive
//! doubling. Other operations are not emulated.
//!
//! Limits: the player's endpoints cost no network. Bytes are held back once per step, whatever their number, so
//! bandwidth is not emulated.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weft_client::{Address, Domain, Sockets};

use super::super::super::collective::buffers::Buffers;
use super::super::super::collective::{crew, operation};
use super::iterations::Member;
use super::measure::{self, Others};
use crate::bench::child::{RankError, Session};
use crate::bench::job::{Hello, Job};
use crate::bench::options::{Coll, Progress};
use crate::bench::port::{Port, open_domain};
use crate::stat;

/// Time without a message after which a round takes place all the same.
const IDLE: Duration = Duration::from_millis(5);
/// Time beyond the wire after which the last members end an operation without a message.
const LATE: Duration = Duration::from_millis(1);
/// Polls of an endpoint in a round. One takes a message, the next performs the step.
const POLLS: usize = 3;
/// Polls of an endpoint in a round, with a chain.
const CHAIN_POLLS: usize = 1;
/// Time of one turn of the player, after which it looks for the end of the measurement.
const TURN: Duration = Duration::from_millis(5);

/// The slot of an endpoint's operations.
const SLOT: u32 = 0;

/// One member's endpoint.
fn open(job: &Job, domain: &Domain, rank: usize) -> Result<(Port, Buffers), RankError> {
    let coll = operation(job)?.operation();
    let buffers = Buffers::new(coll, job.case.size, [rank, job.case.number], 0, 1);
    let port = Port::open(domain, buffers.bytes().max(64), 1, job.case.number, job.wait)?;
    port.ep.collective_offered(coll, job.case.number)?;
    Ok((port, buffers))
}

/// Inserts the addresses of all members: the computing one, then those of the player.
fn insert(port: &mut Port, hellos: &[Hello]) -> Result<Vec<Address>, RankError> {
    let mut all = Vec::new();
    for hello in hellos {
        for endpoint in 0..hello.names.len() {
            all.push(port.insert_peer(hello, endpoint)?.address);
        }
    }
    Ok(all)
}

/// Rank 0: the computing member.
pub(super) fn compute(session: &Session) -> Result<(), RankError> {
    let job = &session.job;
    let domain = open_domain(job)?;
    let (mut port, buffers) = open(job, &domain, 0)?;
    let mut hello = Hello::default();
    port.add_to(&mut hello);
    session.opened()?;
    let hellos = session.exchange(hello)?;
    let addresses = insert(&mut port, &hellos)?;
    let group = port.ep.join(&addresses)?;
    while !crew::joined(&mut port)? {
        std::thread::yield_now();
    }
    let mut member = Member::new(buffers, group, SLOT)?;
    let result = measure::all(job, &mut Others::Wire(&mut port), &mut member)?;
    if job.progress == Some(Progress::Chain) && stat::chained_barriers() == 0 {
        let why = "the kernel performs no barriers; does it refuse io_uring (FI_LOG_LEVEL=info shows the reason)?";
        return Err(RankError::NotOffered(why.to_owned()));
    }
    session.result(result);
    session.finish(|| port.linger())
}

/// Rank 1: the player.
pub(super) fn play(session: &Session) -> Result<(), RankError> {
    let job = &session.job;
    allow_descriptors();
    let domain = open_domain(job)?;
    let mut hello = Hello::default();
    let mut all = Vec::new();
    for rank in 1..job.case.number {
        let (port, buffers) = open(job, &domain, rank)?;
        port.add_to(&mut hello);
        all.push((port, buffers));
    }
    session.opened()?;
    let hellos = session.exchange(hello)?;
    let mut members = Vec::new();
    for (port, buffers) in &mut all {
        let addresses = insert(port, &hellos)?;
        members.push((port.ep.join(&addresses)?, *buffers));
    }
    let mut joined = vec![false; all.len()];
    while joined.contains(&false) {
        for ((port, _), done) in all.iter_mut().zip(&mut joined) {
            *done = crew::joined(port)? || *done;
        }
    }
    let mut player = Player {
        members: Vec::new(),
        links: Sockets::find()?,
        wire: Duration::from_micros(job.case.wire_us as u64),
        polls: if job.progress == Some(Progress::Chain) { CHAIN_POLLS } else { POLLS },
        last: Instant::now(),
        noticed: None,
    };
    for ((mut port, _), (group, buffers)) in all.into_iter().zip(members) {
        let mut member = Member::new(buffers, group, SLOT)?;
        member.start(&mut port)?;
        player.members.push((port, member, false));
    }
    if operation(job)? == Coll::Barrier {
        player.members.reverse();
    }
    session.finish(|| player.turn())
}

/// Raises the limit of descriptors, of which each pair of members needs some.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // With fewer descriptors, endpoints would fall back to TCP.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

struct Player {
    /// In the order in which they are polled, each with whether its operation is complete.
    members: Vec<(Port, Member, bool)>,
    /// The TCP connections to the computing member.
    links: Sockets,
    wire: Duration,
    /// Polls of each member in a round.
    polls: usize,
    /// The time of the last round.
    last: Instant,
    /// The time at which a message has been noticed since the begin of that round.
    noticed: Option<Instant>,
}

impl Player {
    /// Makes rounds for a while.
    fn turn(&mut self) -> Result<(), RankError> {
        let end = Instant::now() + TURN;
        while Instant::now() < end {
            self.notice();
            // The last message from the computing member lets some members end a round earlier than the others.
            let ending = self.members.iter().any(|(_, _, done)| *done);
            let pause = if ending { self.wire + LATE } else { IDLE };
            let due = self.noticed.map_or(self.last + pause, |noticed| noticed + self.wire);
            if Instant::now() < due {
                continue;
            }
            if self.noticed.take().is_none() && !ending {
                // New links may have come up.
                self.links = Sockets::find()?;
            }
            self.last = Instant::now();
            let before = self.links.received_bytes();
            self.round()?;
            // A member may have taken an answer of the computing member before the player noticed the answer.
            if self.links.received_bytes() > before {
                self.noticed.get_or_insert_with(Instant::now);
            }
        }
        Ok(())
    }

    /// Looks whether a message of the computing member has arrived, before its receiver takes it.
    fn notice(&mut self) {
        if self.links.arrived() {
            self.noticed.get_or_insert_with(Instant::now);
        }
    }

    fn round(&mut self) -> Result<(), RankError> {
        let before = self.members.iter().filter(|(_, _, done)| *done).count();
        for at in 0..self.members.len() {
            // The computing member may answer within the round.
            if at > 0 {
                self.notice();
            }
            let (port, member, done) = &mut self.members[at];
            for _ in 0..self.polls {
                port.poll()?;
                *done = *done || member.take(port)?;
            }
        }
        // Some members end with the last message of the computing member. The round after that is due to the first
        // message of its next operation, so that the others may start theirs.
        let done = self.members.iter().filter(|(_, _, done)| *done).count();
        if done == self.members.len() && (before > 0 || done == 1) {
            for (port, member, done) in &mut self.members {
                member.start(port)?;
                *done = false;
            }
        }
        Ok(())
    }
}
