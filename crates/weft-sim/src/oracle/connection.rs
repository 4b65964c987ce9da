//! Connected endpoints: the events that each end of a connection must get.
//!
//! An end calls a listener, or answers a call on behalf of one. It learns once whether the connection is
//! made. If it is made, the end learns once that it has ended, if it does. Every end has a cause: a client
//! closed or declined the connection, a process died, or a link broke.

use std::collections::{BTreeMap, BTreeSet};

use weft_engine::ConnEvent;
use weft_engine::api::{ADDR_NONE, Completion, Context};
use weft_engine::name::EpName;
use weft_engine::nic::LinkError;

use super::Oracle;

/// The stage of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnStage {
    /// It has called or answered, and waits for the result.
    Waiting,
    /// The connection is made.
    Connected,
    /// The connection was not made, or has ended.
    Over,
}

/// A call that has reached a listener, for its client to answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) listener: usize,
    pub(crate) call: u64,
    pub(crate) caller: usize,
}

#[derive(Debug)]
struct End {
    name: EpName,
    /// The present or future other end.
    peer: usize,
    /// The listener, if this end calls.
    listener: Option<usize>,
    /// The data of its client.
    client_data: Vec<u8>,
    stage: ConnStage,
    made: bool,
    /// For a call: whether the listener's client has received it, and the data with which it declined.
    request_seen: bool,
    declined: Option<Vec<u8>>,
}

/// The connections of a run.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    ends: BTreeMap<usize, End>,
    requests: Vec<Request>,
    /// The number of calls that may wait at a listener, the calls that wait, and the listeners with a full
    /// backlog.
    backlog: usize,
    waiting: BTreeMap<usize, usize>,
    full: BTreeSet<usize>,
    /// Ends by event: made, declined, failed, ended.
    counts: [u64; 4],
}

impl Oracle {
    /// Declares that ranks are ends of connections, or listeners with room for `backlog` calls.
    pub(crate) fn expect_connections(&mut self, backlog: usize) {
        self.connections.backlog = backlog;
    }

    /// Numbers of ends whose connection was made, declined, failed, ended.
    pub(crate) fn connection_counts(&self) -> [u64; 4] {
        self.connections.counts
    }

    /// The stage of an end.
    pub(crate) fn stage(&self, rank: usize) -> Option<ConnStage> {
        self.connections.ends.get(&rank).map(|end| end.stage)
    }

    /// The listener that an end has called.
    pub(crate) fn called(&self, rank: usize) -> Option<usize> {
        self.connections.ends.get(&rank)?.listener
    }

    /// Takes the calls that listeners have received since the last call.
    pub(crate) fn take_requests(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.connections.requests)
    }

    /// Records that an end calls a listener; an answering end becomes `peer`.
    pub(crate) fn calls(&mut self, rank: usize, name: EpName, peer: usize, listener: usize, client_data: &[u8]) {
        self.enter(rank, name, peer, Some(listener), client_data);
    }

    /// Records that an end answers a call.
    pub(crate) fn answers(&mut self, rank: usize, name: EpName, request: Request, client_data: &[u8]) {
        self.enter(rank, name, request.caller, None, client_data);
        self.answered(request);
    }

    /// Records that a listener's client declines a call.
    pub(crate) fn declines(&mut self, request: Request, client_data: &[u8]) {
        if let Some(end) = self.connections.ends.get_mut(&request.caller) {
            end.declined = Some(client_data.to_vec());
        }
        self.answered(request);
    }

    fn enter(&mut self, rank: usize, name: EpName, peer: usize, listener: Option<usize>, client_data: &[u8]) {
        let client_data = client_data.to_vec();
        let end = End {
            name,
            peer,
            listener,
            client_data,
            stage: ConnStage::Waiting,
            made: false,
            request_seen: false,
            declined: None,
        };
        self.connections.ends.insert(rank, end);
    }

    fn answered(&mut self, request: Request) {
        if let Some(waiting) = self.connections.waiting.get_mut(&request.listener) {
            *waiting -= 1;
        }
    }

    /// Records that the client of an end closes its connection.
    pub(crate) fn hangs_up(&mut self, rank: usize) {
        if let Some(peer) = self.connections.ends.get(&rank).map(|end| end.peer) {
            self.broke(rank, peer);
        }
    }

    /// Checks a connection event of a rank.
    pub(crate) fn check_event(&mut self, rank: usize, c: &Completion, event: Option<ConnEvent>) {
        let text = format!("{event:?}");
        let blank = c.ctx == Context::default() && c.src == ADDR_NONE && c.fault.is_none();
        let announced = holds(blank, "an announcement names an operation");
        if let Err(wrong) = announced.and_then(|()| self.judge_event(rank, event)) {
            // Later complaints would only follow from this one.
            if let Some(end) = self.connections.ends.get_mut(&rank) {
                end.stage = ConnStage::Over;
            }
            self.complain(format!("rank {rank}: {wrong}: {text}\n    {:?}", self.connections.ends.get(&rank)));
        }
    }

    fn judge_event(&mut self, rank: usize, event: Option<ConnEvent>) -> Result<(), &'static str> {
        let event = event.ok_or("an announced event is missing")?;
        if let ConnEvent::Request { call, peer, data } = event {
            return self.request(rank, call, &peer, &data);
        }
        let end = self.connections.ends.get(&rank).ok_or("a listener got an event of an end")?;
        let other = self.connections.ends.get(&end.peer);
        let (next, count) = match &event {
            ConnEvent::Connected { peer, data } => {
                let other = other.ok_or("connected without another end")?;
                let expected = if end.listener.is_some() { &other.client_data[..] } else { &[] };
                holds(end.stage == ConnStage::Waiting, "connected twice, or too late")?;
                holds(*peer == other.name, "connected with the wrong end")?;
                holds(**data == *expected, "wrong data of the other end")?;
                // The end that was called back is the first to learn of the connection.
                holds(end.listener.is_some() || other.made, "connected before the answering end")?;
                (ConnStage::Connected, 0)
            }
            ConnEvent::Refused { data } => {
                holds(end.stage == ConnStage::Waiting, "declined twice, or too late")?;
                let listener = end.listener.ok_or("declined without a call")?;
                let crowded = data.is_empty() && self.connections.full.contains(&listener);
                let declined = end.declined.as_deref() == Some(&data[..]);
                holds(declined || (crowded && !end.request_seen), "declined without a cause")?;
                (ConnStage::Over, 1)
            }
            ConnEvent::Failed(_) => {
                holds(end.stage == ConnStage::Waiting, "failed twice or too late")?;
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
        let (caller, end) = ends.find(|(_, end)| end.name == *peer).ok_or("called by an unknown end")?;
        holds(end.listener == Some(listener), "the call is for another listener")?;
        holds(!end.request_seen, "the same end called twice")?;
        holds(data == end.client_data, "wrong data of the caller")?;
        end.request_seen = true;
        self.connections.requests.push(Request { listener, call, caller: *caller });
        let waiting = self.connections.waiting.entry(listener).or_insert(0);
        *waiting += 1;
        if *waiting >= self.connections.backlog {
            self.connections.full.insert(listener);
        }
        Ok(())
    }

    /// Whether a fault may have prevented a connection: on either end, or between the caller and the
    /// listener.
    fn may_fail_to_connect(&self, rank: usize, end: &End) -> bool {
        let other = self.connections.ends.get(&end.peer);
        let gave_up = other.is_some_and(|other| other.stage == ConnStage::Over);
        let deaf = end.listener.is_some_and(|listener| self.may_disconnect(LinkError::Gone, rank, listener));
        gave_up || deaf || self.may_disconnect(LinkError::Gone, rank, end.peer)
    }

    /// The established connections, each as a pair of ends in both orders.
    pub(crate) fn connected(&self) -> Vec<(usize, usize)> {
        let ends = self.connections.ends.iter();
        ends.filter(|(_, end)| end.stage == ConnStage::Connected).map(|(rank, end)| (*rank, end.peer)).collect()
    }

    /// Reports ends that still wait for an event, or whose ended connection is still taken for alive. All faults
    /// must be off, and nothing may be pending.
    pub(crate) fn judge_connections(&self, is_alive: impl Fn(usize) -> bool) -> Vec<String> {
        let mut out = Vec::new();
        for (rank, end) in self.connections.ends.iter().filter(|(rank, _)| is_alive(**rank)) {
            let other = self.connections.ends.get(&end.peer).filter(|_| is_alive(end.peer));
            let answered = self.connections.ends.contains_key(&end.peer);
            let ignored =
                end.listener.is_some_and(|listener| end.request_seen && end.declined.is_none() && is_alive(listener));
            let wrong = match end.stage {
                // The answering end may have gone; the caller's client needs a timeout of its own.
                ConnStage::Waiting if end.listener.is_some() && answered => other.is_some_and(|other| other.made),
                ConnStage::Waiting => !ignored,
                ConnStage::Connected => other.is_none_or(|other| other.stage != ConnStage::Connected),
                ConnStage::Over => end.made && !self.posted(*rank).is_empty(),
            };
            if wrong {
                out.push(format!(
                    "rank {rank} misses the result of its connection, or kept its receives: {end:?}; other end: {other:?}"
                ));
            }
        }
        out
    }
}

fn holds(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}
