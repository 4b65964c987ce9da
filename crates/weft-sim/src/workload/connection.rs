//! Random connections: each process has a listener, calls others, answers or declines calls, uses its
//! connections, closes them and connects again.

use weft_engine::api::Error;

use super::Workload;
use crate::oracle::connection::{ConnStage, Request};
use crate::plan::Act;

/// Maximum number of ends that a process may have at a time by calling.
const MAX_CALLS: usize = 3;

/// Ends of connections, unused ones and started ones.
#[derive(Default)]
pub(super) struct Ends {
    /// The next pair of unused ranks, and the end of their range.
    next: usize,
    end: usize,
    begun: Vec<usize>,
    /// By process: its listener.
    listeners: Vec<usize>,
    /// Calls that have not been answered.
    requests: Vec<Request>,
}

impl Ends {
    pub(super) fn new(processes: usize, next: usize, end: usize) -> Self {
        Self { next, end, begun: Vec::new(), listeners: (0..processes).collect(), requests: Vec::new() }
    }
}

impl Workload {
    /// Every process performs some steps on its connections, or none.
    pub(super) fn step_connected(&mut self) {
        let new = self.harness.take_requests();
        self.ends.requests.extend(new);
        for request in std::mem::take(&mut self.ends.requests) {
            self.answer_call(request);
        }
        for process in 0..self.plan.ranks {
            self.place_call(process);
        }
        for rank in self.ends.begun.clone() {
            let cluster = self.harness.cluster();
            if cluster.is_alive(rank) && !cluster.is_paused(rank) {
                self.step_end(rank);
            }
        }
        let cluster = self.harness.cluster();
        self.ends.begun.retain(|rank| cluster.is_alive(*rank));
    }

    /// Starts the successor of a rank, unless the rank was an end of a connection. Returns whether it did.
    pub(crate) fn restart(&mut self, rank: usize, successor: usize) -> bool {
        if rank >= self.plan.ranks {
            return false;
        }
        self.harness.restart(successor);
        if let Some(listener) = self.ends.listeners.get_mut(rank) {
            *listener = successor;
        }
        self.begin(successor);
        true
    }

    /// Two ranks between which a link may exist, one of them of this process.
    pub(crate) fn linked(&mut self, process: usize, choice: usize) -> Option<(usize, usize)> {
        let of_process = self.harness.cluster().process(process);
        let mut pairs = Vec::new();
        for rank in self.ends.begun.iter().filter(|rank| of_process.contains(rank)) {
            let other =
                self.harness.cluster().partner(*rank).filter(|other| self.harness.oracle().stage(*other).is_some());
            pairs.extend(other.map(|other| (*rank, other)));
            pairs.extend(self.harness.oracle().called(*rank).map(|listener| (*rank, listener)));
        }
        pairs.get(choice % pairs.len().max(1)).copied()
    }

    fn answer_call(&mut self, request: Request) {
        if !self.harness.cluster().is_alive(request.listener) {
            return;
        }
        let process = self.harness.cluster().place(request.listener);
        let rng = &mut self.rngs[request.listener];
        let (choice, len) = (rng.index(100), rng.index(40));
        let data = rng.bytes(len);
        match choice {
            0..70 => {
                // The other rank of the pair.
                let rank = request.caller + 1;
                self.harness.answer(request, rank, process, &data);
                self.begin(rank);
                self.ends.begun.push(rank);
            }
            70..82 => self.harness.decline(request, &data),
            _ => self.ends.requests.push(request),
        }
    }

    fn place_call(&mut self, process: usize) {
        let listener = self.ends.listeners[process];
        let cluster = self.harness.cluster();
        if !cluster.is_alive(listener) || cluster.is_paused(listener) || self.ends.next == self.ends.end {
            return;
        }
        let of_process = cluster.process(process);
        let open = self.ends.begun.iter().filter(|rank| of_process.contains(rank)).count();
        let rng = &mut self.rngs[listener];
        if open >= MAX_CALLS || !rng.chance(250) {
            return;
        }
        let target = self.ends.listeners[rng.index(self.plan.ranks)];
        let len = rng.index(100);
        let data = rng.bytes(len);
        let rank = self.ends.next;
        self.ends.next += 2;
        self.harness.call(rank, process, rank + 1, target, &data);
        self.begin(rank);
        self.ends.begun.push(rank);
    }

    fn step_end(&mut self, rank: usize) {
        let Some(stage) = self.harness.oracle().stage(rank) else { return };
        let (choice, count) = (self.rngs[rank].index(1000), self.rngs[rank].index(4));
        // Closing a connection may fail operations, as a fault does.
        match (stage, choice) {
            (ConnStage::Connected | ConnStage::Waiting, _) if !self.plan.hazards.lose() => {}
            (ConnStage::Connected, 0..15) => return self.harness.hang_up(rank),
            (ConnStage::Connected | ConnStage::Waiting, 15..20) | (ConnStage::Over, 0..300) => {
                return self.harness.leave(rank);
            }
            _ => {}
        }
        for _ in 0..count {
            let act = match (stage, self.rngs[rank].index(100)) {
                (ConnStage::Waiting, _) => Act::Recv,
                (_, 0..40) => Act::Send,
                (_, 40..70) => Act::Recv,
                (_, 70..77) => Act::Peek,
                (_, 77..81) => Act::Cancel,
                (_, 81..86) => Act::Write,
                (_, 86..92) => Act::Read,
                (_, _) => Act::Atomic,
            };
            if self.done >= self.plan.ops || !self.plan.acts.has(act) {
                continue;
            }
            self.done += 1;
            // The operation may have ended the connection.
            if self.harness.oracle().stage(rank) == Some(ConnStage::Over) {
                self.act_too_late(rank, act);
            } else {
                self.act(rank, act);
            }
        }
    }

    /// After the end of a connection, receives take messages that arrived before, or are cancelled. Nothing can be
    /// sent.
    fn act_too_late(&mut self, rank: usize, act: Act) {
        let result = match act {
            Act::Recv => self.recv(rank),
            Act::Send => self.send(rank).and(Err(Error::Invalid)),
            _ => return,
        };
        let expected = match act {
            Act::Recv => matches!(result, Ok(()) | Err(Error::Again)),
            _ => matches!(result, Err(Error::NotConnected)),
        };
        if !expected {
            self.harness
                .oracle_mut()
                .complain(format!("rank {rank} has no connection, and {act:?} comes to {result:?}"));
        }
    }
}
