//! Connected endpoints: what each end of a connection must hear of it.
//!
//! An end calls a listener, or answers a call in the place of one. It hears once whether the connection is
//! made; if it is, it hears once that the connection has ended, if it does. Nothing comes to an end without a
//! cause: somebody hung up, closed, declined or died, or a link broke.

use std::collections::{BTreeMap, BTreeSet};

use weft_engine::ConnEvent;
use weft_engine::api::{ADDR_NONE, Completion, Context};
use weft_engine::name::EpName;
use weft_engine::nic::LinkError;

use super::Oracle;

/// How far an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnStage {
    /// It has called or answered, and heard nothing yet.
    Waiting,
    /// The connection is made.
    Connected,
    /// It was not made, or has ended.
    Over,
}

/// A call that a listener has heard of, for its client to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) listener: usize,
    pub(crate) call: u64,
    pub(crate) caller: usize,
}

#[derive(Debug)]
struct End {
    name: EpName,
    /// Who is, or will be, the other end.
    peer: usize,
    /// Of an end that calls: whom.
    listener: Option<usize>,
    /// What its client had to say.
    said: Vec<u8>,
    stage: ConnStage,
    made: bool,
    /// Of a call: the listener's client has heard of it, and declined with these words.
    heard: bool,
    declined: Option<Vec<u8>>,
}

/// The connections of a run.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    ends: BTreeMap<usize, End>,
    requests: Vec<Request>,
    /// How many calls may wait at a listener, how many do, and where all places have been taken.
    backlog: usize,
    waiting: BTreeMap<usize, usize>,
    full: BTreeSet<usize>,
    /// Ends that have heard: made, declined, failed, ended.
    counts: [u64; 4],
}

impl Oracle {
    /// Ranks are ends of connections, or listeners at which so many calls may wait.
    pub(crate) fn expect_connections(&mut self, backlog: usize) {
        self.connections.backlog = backlog;
    }

    /// How often an end heard that its connection was made, declined, failed, ended.
    pub(crate) fn connection_counts(&self) -> [u64; 4] {
        self.connections.counts
    }

    /// How far an end is.
    pub(crate) fn stage(&self, rank: usize) -> Option<ConnStage> {
        self.connections.ends.get(&rank).map(|end| end.stage)
    }

    /// Whom an end has called.
    pub(crate) fn called(&self, rank: usize) -> Option<usize> {
        self.connections.ends.get(&rank)?.listener
    }

    /// What listeners have heard since the last call.
    pub(crate) fn take_requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.connections.requests)
    }

    /// An end calls a listener; whoever answers is to be `peer`.
    pub(crate) fn calls(&mut self, rank: usize, name: EpName, peer: usize, listener: usize, said: &[u8]) {
        self.enter(rank, name, peer, Some(listener), said);
    }

    /// An end answers a call.
    pub(crate) fn answers(&mut self, rank: usize, name: EpName, request: Request, said: &[u8]) {
        self.enter(rank, name, request.caller, None, said);
        self.answered(request);
    }

    /// A listener's client declines a call.
    pub(crate) fn declines(&mut self, request: Request, said: &[u8]) {
        if let Some(end) = self.connections.ends.get_mut(&request.caller) {
            end.declined = Some(said.to_vec());
        }
        self.answered(request);
    }

    fn enter(&mut self, rank: usize, name: EpName, peer: usize, listener: Option<usize>, said: &[u8]) {
        let said = said.to_vec();
        let end =
            End { name, peer, listener, said, stage: ConnStage::Waiting, made: false, heard: false, declined: None };
        self.connections.ends.insert(rank, end);
    }

    fn answered(&mut self, request: Request) {
        if let Some(waiting) = self.connections.waiting.get_mut(&request.listener) {
            *waiting -= 1;
        }
    }

    /// The client of an end ends its connection.
    pub(crate) fn hangs_up(&mut self, rank: usize) {
        if let Some(peer) = self.connections.ends.get(&rank).map(|end| end.peer) {
            self.broke(rank, peer);
        }
    }

    /// A rank hears something of connections.
    pub(crate) fn heard(&mut self, rank: usize, c: &Completion, event: Option<ConnEvent>) {
        let text = format!("{event:?}");
        let blank = c.ctx == Context::default() && c.src == ADDR_NONE && c.fault.is_none();
        let announced = holds(blank, "an announcement names an operation");
        if let Err(wrong) = announced.and_then(|()| self.judge_event(rank, event)) {
            // What follows from this is not complained of as well.
            if let Some(end) = self.connections.ends.get_mut(&rank) {
                end.stage = ConnStage::Over;
            }
            self.complain(format!("rank {rank}: {wrong}: {text}\n    {:?}", self.connections.ends.get(&rank)));
        }
    }

    fn judge_event(&mut self, rank: usize, event: Option<ConnEvent>) -> Result<(), &'static str> {
        let event = event.ok_or("an event was announced and is not there")?;
        if let ConnEvent::Request { call, peer, data } = event {
            return self.request(rank, call, &peer, &data);
        }
        let end = self.connections.ends.get(&rank).ok_or("a listener heard what is not for it")?;
        let other = self.connections.ends.get(&end.peer);
        let (next, count) = match &event {
            ConnEvent::Connected { peer, data } => {
                let other = other.ok_or("connected with nobody")?;
                let said = if end.listener.is_some() { &other.said[..] } else { &[] };
                holds(end.stage == ConnStage::Waiting, "connected twice, or too late")?;
                holds(*peer == other.name, "connected with somebody else")?;
                holds(**data == *said, "not what the other end said")?;
                // Whoever was called back is the first to know.
                holds(end.listener.is_some() || other.made, "connected, and the other end is not")?;
                (ConnStage::Connected, 0)
            }
            ConnEvent::Refused { data } => {
                holds(end.stage == ConnStage::Waiting, "declined twice, or too late")?;
                let listener = end.listener.ok_or("declined without having called")?;
                let crowded = data.is_empty() && self.connections.full.contains(&listener);
                let declined = end.declined.as_deref() == Some(&data[..]);
                holds(declined || (crowded && !end.heard), "declined by nobody")?;
                (ConnStage::Over, 1)
            }
            ConnEvent::Failed(_) => {
                holds(end.stage == ConnStage::Waiting, "failed twice, or too late")?;
                holds(self.may_fail_to_connect(rank, end), "failed without a cause")?;
                (ConnStage::Over, 2)
            }
            ConnEvent::Ended(why) => {
                holds(end.stage == ConnStage::Connected, "ended twice, or was never made")?;
                holds(self.may_disconnect(*why, rank, end.peer), "ended without a cause")?;
                (ConnStage::Over, 3)
            }
            ConnEvent::Request { .. } => return Ok(()),
        };
        self.connections.counts[count] += 1;
        if let Some(end) = self.connections.ends.get_mut(&rank) {
            end.stage = next;
            end.made |= next == ConnStage::Connected;
        }
        Ok(())
    }

    fn request(&mut self, listener: usize, call: u64, peer: &EpName, data: &[u8]) -> Result<(), &'static str> {
        let mut ends = self.connections.ends.iter_mut();
        let (caller, end) = ends.find(|(_, end)| end.name == *peer).ok_or("called by a stranger")?;
        holds(end.listener == Some(listener), "called by somebody who called another")?;
        holds(!end.heard, "called twice by the same")?;
        holds(data == end.said, "not what the caller said")?;
        end.heard = true;
        self.connections.requests.push(Request { listener, call, caller: *caller });
        let waiting = self.connections.waiting.entry(listener).or_insert(0);
        *waiting += 1;
        if *waiting >= self.connections.backlog {
            self.connections.full.insert(listener);
        }
        Ok(())
    }

    /// Whether something stood in the way of a connection: of either end, or of the caller's way to the listener.
    fn may_fail_to_connect(&self, rank: usize, end: &End) -> bool {
        let other = self.connections.ends.get(&end.peer);
        let gave_up = other.is_some_and(|other| other.stage == ConnStage::Over);
        let deaf = end.listener.is_some_and(|listener| self.may_disconnect(LinkError::Gone, rank, listener));
        gave_up || deaf || self.may_disconnect(LinkError::Gone, rank, end.peer)
    }

    /// The connections that stand, each as a pair of its ends and the other way round.
    pub(crate) fn connected(&self) -> Vec<(usize, usize)> {
        let ends = self.connections.ends.iter();
        ends.filter(|(_, end)| end.stage == ConnStage::Connected).map(|(rank, end)| (*rank, end.peer)).collect()
    }

    /// At rest, with all faults gone: who still waits for what will not come, or believes in what is not there.
    pub(crate) fn judge_connections(&self, is_alive: impl Fn(usize) -> bool) -> Vec<String> {
        let mut out = Vec::new();
        for (rank, end) in self.connections.ends.iter().filter(|(rank, _)| is_alive(**rank)) {
            let other = self.connections.ends.get(&end.peer).filter(|_| is_alive(end.peer));
            let answered = self.connections.ends.contains_key(&end.peer);
            let ignored =
                end.listener.is_some_and(|listener| end.heard && end.declined.is_none() && is_alive(listener));
            let wrong = match end.stage {
                // Whoever was to call back may have gone; the caller's client has to look at the clock.
                ConnStage::Waiting if end.listener.is_some() && answered => other.is_some_and(|other| other.made),
                ConnStage::Waiting => !ignored,
                ConnStage::Connected => other.is_none_or(|other| other.stage != ConnStage::Connected),
                ConnStage::Over => end.made && !self.posted(*rank).is_empty(),
            };
            if wrong {
                out.push(format!("rank {rank} has not heard what became of its connection, or kept its receives: {end:?}, and the other end: {other:?}"));
            }
        }
        out
    }
}

fn holds(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}
