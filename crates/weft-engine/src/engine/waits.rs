//! Reports of the receives, messages and operations that wait in an endpoint, for `weft why`.
//!
//! Place in the data flow: beside it. weft-observe asks for the reports when it publishes counters. They are read from
//! the queues as they are, so that the data path notes nothing.

use crate::api::{ADDR_NONE, Kind, OpFlags};
use crate::engine::Engine;
use crate::engine::ops::TxOp;
use crate::engine::peer::Peer;
use crate::matching::{Posted, Space, Unexpected};
use crate::name::EpName;
use crate::nic::Nic;

/// Most peers whose messages are counted for a receive from any source.
const PEERS_MOST: usize = 1024;

/// The kind of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// A posted receive without a message.
    Receive,
    /// A message without a receive.
    Message,
    /// A send that is not complete.
    Send,
    /// A remote write that is not complete.
    Write,
    /// A remote read that is not complete.
    Read,
    /// A remote atomic that is not complete.
    Atomic,
}

/// Something that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitReport {
    /// Its kind.
    kind: WaitKind,
    /// The peer. `None`: any source, or a source that is not known any more.
    peer: Option<EpName>,
    /// The tag, if it has one, and the bits of it that a receive ignores.
    tag: Option<[u64; 2]>,
    /// Length in bytes.
    bytes: u64,
    /// A number by which the wait is recognized in the next report. It changes when messages of the peer have passed
    /// meanwhile.
    key: u64,
}

impl WaitReport {
    /// A report of these parts.
    #[must_use]
    pub const fn new(kind: WaitKind, peer: Option<EpName>, tag: Option<[u64; 2]>, bytes: u64, key: u64) -> Self {
        Self { kind, peer, tag, bytes, key }
    }

    /// The kind, the peer, the tag with the ignored bits, the length, and the key.
    #[must_use]
    pub const fn parts(&self) -> (WaitKind, Option<EpName>, Option<[u64; 2]>, u64, u64) {
        (self.kind, self.peer, self.tag, self.bytes, self.key)
    }
}

/// Mixes words into one.
fn key(words: [u64; 4]) -> u64 {
    words
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23))
}

fn traffic(peer: &Peer) -> u64 {
    u64::from(peer.rx_seq()) << 32 | u64::from(peer.tx_seq())
}

impl<N: Nic> Engine<N> {
    /// Passes on what waits: up to `most` operations, posted receives, and messages without a receive, each from the
    /// oldest on. Receives of many messages are left out, because a client may post them for what it does not expect.
    pub fn wait_reports(&self, most: usize, mut each: impl FnMut(WaitReport)) {
        let state = &self.state;
        let ops = state.outgoing.all_ops().filter(|(_, op)| op.kind() != Kind::Collective);
        ops.take(most).for_each(|(number, op)| each(self.operation(number, op)));
        let mut left = most;
        for space in Space::OF_CLIENT {
            let posted = state.incoming.matcher(space).posted().iter().filter(|(_, posted)| posted.multi.is_none());
            for (_, posted) in posted.take(left) {
                each(self.posted(space, posted));
                left -= 1;
            }
        }
        let mut left = most;
        for space in Space::OF_CLIENT {
            for (number, message) in state.incoming.matcher(space).unexpected().iter().take(left) {
                each(self.message(space, number, message));
                left -= 1;
            }
        }
    }

    fn operation(&self, number: u32, op: &TxOp) -> WaitReport {
        let kind = match op.kind() {
            Kind::Write => WaitKind::Write,
            Kind::Read => WaitKind::Read,
            Kind::Atomic | Kind::FetchAtomic => WaitKind::Atomic,
            _ => WaitKind::Send,
        };
        let peer = self.state.peers.get(op.peer());
        let sent = peer.map_or(0, traffic);
        WaitReport {
            kind,
            peer: peer.map(Peer::name),
            tag: (kind == WaitKind::Send && op.flags().contains(OpFlags::TAGGED)).then(|| [op.tag(), 0]),
            bytes: op.len(),
            key: key([number.into(), op.ctx().ptr as u64, op.tag(), sent]),
        }
    }

    fn posted(&self, space: Space, posted: &Posted) -> WaitReport {
        let peers = &self.state.peers;
        let source = peers.known(posted.src).and_then(|id| peers.get(id)).filter(|_| posted.src != ADDR_NONE);
        let passed = match source {
            Some(peer) => traffic(peer),
            None => peers.iter().take(PEERS_MOST).map(|(_, peer)| traffic(peer)).fold(0, u64::wrapping_add),
        };
        WaitReport {
            kind: WaitKind::Receive,
            peer: source.map(Peer::name).or_else(|| peers.book().name(posted.src)),
            tag: (space == Space::Tagged).then_some([posted.tag, posted.ignore]),
            bytes: crate::mem::total_len(&self.state.incoming.matcher(space).buffer(posted)) as u64,
            key: key([posted.src, posted.ctx.ptr as u64, posted.tag, passed]),
        }
    }

    fn message(&self, space: Space, number: u32, message: &Unexpected) -> WaitReport {
        WaitReport {
            kind: WaitKind::Message,
            peer: self.state.peers.get(message.peer()).map(Peer::name),
            tag: (space == Space::Tagged).then(|| [message.tag(), 0]),
            bytes: message.len(),
            key: key([number.into(), message.tag(), message.len(), message.peer().place() as u64]),
        }
    }
}
