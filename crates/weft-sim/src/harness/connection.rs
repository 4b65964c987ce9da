//! Connections: the calls of clients of connected endpoints, and their events.

use weft_engine::api::Error;

use crate::harness::Harness;
use crate::oracle::connection::Request;

impl Harness {
    /// A new end of process `process` calls a listener; if the call is answered, `peer` becomes the other
    /// end.
    pub(crate) fn call(&mut self, rank: usize, process: usize, peer: usize, listener: usize, data: &[u8]) {
        self.cluster.open(rank, process, peer);
        let (name, target) = (self.cluster.fabric().name(rank), self.cluster.fabric().name(listener));
        self.oracle.calls(rank, name, peer, listener, data);
        let called = self.cluster.engine(rank).map(|engine| engine.connect(&target, data));
        self.expect_ok(rank, called);
        self.absorb(rank);
    }

    /// A new end of the listener's process answers a call.
    pub(crate) fn answer(&mut self, request: Request, rank: usize, process: usize, data: &[u8]) {
        if let Some(engine) = self.cluster.engine(request.listener) {
            engine.answered(request.call);
        }
        self.cluster.open(rank, process, request.caller);
        let (name, caller) = (self.cluster.fabric().name(rank), self.cluster.fabric().name(request.caller));
        self.oracle.answers(rank, name, request, data);
        let answered = self.cluster.engine(rank).map(|engine| engine.accept(&caller, data));
        self.expect_ok(rank, answered);
        self.absorb(rank);
    }

    /// A listener's client declines a call.
    pub(crate) fn decline(&mut self, request: Request, data: &[u8]) {
        self.oracle.declines(request, data);
        let declined = self.cluster.engine(request.listener).map(|engine| engine.reject(request.call, data));
        self.expect_ok(request.listener, declined);
        self.absorb(request.listener);
    }

    /// Closes an end's connection.
    pub(crate) fn hang_up(&mut self, rank: usize) {
        self.oracle.hangs_up(rank);
        let ended = self.cluster.engine(rank).map(|engine| engine.disconnect());
        self.expect_ok(rank, ended);
        self.absorb(rank);
    }

    /// Takes the calls that listeners have received since the last time.
    pub(crate) fn take_requests(&mut self) -> Vec<Request> {
        self.oracle.take_requests()
    }

    /// The pairs between which a message must arrive when all faults are off: neighbours, or the ends of each
    /// connection.
    pub(super) fn reachable_pairs(&self) -> Vec<(usize, usize)> {
        if self.cluster.has_connections() {
            let mut pairs = self.oracle.connected();
            pairs.retain(|(a, b)| self.cluster.is_alive(*a) && self.cluster.is_alive(*b));
            return pairs;
        }
        let live_ranks = self.cluster.live_ranks();
        let neighbour = |n: usize, distance: usize| (live_ranks[n], live_ranks[(n + distance) % live_ranks.len()]);
        let pairs = |n| (1..live_ranks.len().min(4)).map(move |distance| neighbour(n, distance));
        (0..live_ranks.len()).flat_map(pairs).collect()
    }

    /// The ends of connections that miss an event when nothing is pending.
    pub(super) fn connection_failures(&self) -> Vec<String> {
        self.oracle.judge_connections(|rank| self.cluster.is_alive(rank))
    }

    fn expect_ok(&mut self, rank: usize, result: Option<Result<(), Error>>) {
        if let Some(Err(error)) = result {
            self.oracle.complain(format!("rank {rank}: a call of connection management was refused: {error}"));
        }
    }
}
