//! Writing and reading of rails.
//!
//! Place in the data flow: [`super::super::progress`] passes the events of rails on. [`Tcp::pump_rails`] also runs
//! after a push, and after the first connection has written messages that go before a push.
//!
//! Invariants: a frame that has begun is finished before another begins on the same rail. A rail's socket is watched
//! for writability exactly while it could write more, and not for bytes while it is held.
//!
//! Errors: a socket error ends the rail alone. Client memory that cannot be read, and a breach of the protocol, end the
//! link.

use std::os::fd::AsFd;

use rustix::event::epoll::{self, EventFlags};
use weft_engine::nic::{LinkError, LinkId, Sink};

use super::super::stream::Wire;
use super::super::sys::Pieces;
use super::super::tx::SocketState;
use super::super::{Link, LinkState, SEND_BUDGET_BYTES, Tcp, Token, sys};
use super::frame::{HEAD_BYTES, RECEIPT_BYTES, SegmentHead};
use super::incoming::{DISCARD_BYTES, Intake, Outcome};
use super::outgoing::{Outgoing, Sent};
use super::{Rail, SECRET};

/// A segment that is being written.
#[derive(Debug)]
struct Writing {
    number: u64,
    head: [u8; HEAD_BYTES],
    len: usize,
    /// Bytes of header and payload that have been written.
    sent: usize,
}

/// The state of a rail's bytes in both directions.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) socket: SocketState,
    pub(super) intake: Intake,
    writing: Option<Writing>,
    /// A receipt that is being written, and the number of its written bytes.
    receipt: Option<([u8; RECEIPT_BYTES], usize)>,
    pub(super) receipt_due: bool,
    /// Bytes have been sent since the last check whether the peer's host acknowledges them.
    pub(super) unproven: bool,
}

impl Flow {
    pub(super) const START: Self = Self {
        socket: SocketState::Writable,
        intake: Intake::START,
        writing: None,
        receipt: None,
        receipt_due: false,
        unproven: false,
    };

    /// Whether bytes other than those of another segment must be written.
    fn has_own(&self) -> bool {
        self.writing.is_some() || self.receipt.is_some() || self.receipt_due || self.socket.is_within_record()
    }

    /// Prepares the next frames: a receipt if one is due, and a segment.
    fn prepare(&mut self, receipt: impl FnOnce() -> [u8; RECEIPT_BYTES], next: impl FnOnce() -> Option<SegmentHead>) {
        // A receipt that has begun is finished. One that has not is replaced.
        if self.receipt_due && self.receipt.is_none_or(|(_, at)| at == 0) {
            (self.receipt, self.receipt_due) = (Some((receipt(), 0)), false);
        }
        if self.writing.is_none() {
            let writing =
                |head: SegmentHead| Writing { number: head.number, head: head.to_bytes(), len: head.len, sent: 0 };
            self.writing = next().map(writing);
        }
    }

    /// Makes one write. Returns the number of bytes that the kernel accepted.
    fn write<W: Wire>(&mut self, wire: W, out: &mut Outgoing, done: impl FnMut(u64)) -> usize {
        let mut pieces = Pieces::new();
        // No frame may come between the parts of a segment.
        let begun = self.writing.as_ref().is_some_and(|writing| writing.sent > 0);
        if let Some((bytes, at)) = self.receipt.as_ref().filter(|_| !begun) {
            pieces.bytes(&bytes[*at..]);
        }
        let before = pieces.len();
        if let Some(writing) = &self.writing {
            pieces.bytes(writing.head.get(writing.sent..).unwrap_or_default());
            pieces.client(&out.payload(writing.number, writing.sent.saturating_sub(HEAD_BYTES)), 0);
        }
        let (outcome, asked) = (wire.send(&pieces), pieces.len());
        let n = self.socket.judge(wire, outcome, asked).unwrap_or(0);
        self.unproven |= n > 0;
        let of_receipt = n.min(before);
        if let Some((_, at)) = self.receipt.as_mut().filter(|_| !begun) {
            *at += of_receipt;
        }
        self.receipt.take_if(|(_, at)| *at == RECEIPT_BYTES);
        if let Some(writing) = &mut self.writing {
            writing.sent += n - of_receipt;
        }
        if let Some(writing) = self.writing.take_if(|writing| writing.sent == HEAD_BYTES + writing.len) {
            out.written(writing.number, done);
        }
        n
    }
}

/// The progress of sending on the link's first connection.
fn sent(link: &Link) -> Sent {
    let (messages, position) = link.tx.sent();
    Sent { messages, position }
}

impl Tcp {
    /// Writes segments and receipts of a link, as far as its rails have room.
    #[inline(never)]
    pub(in super::super) fn pump_rails(&mut self, id: u32) {
        let Some(link) = self.links.get(id) else { return };
        let Some(bundle) = self.rails.bundles.get_mut(&id) else { return };
        let (sent, writer, rails) = (sent(link), &mut self.writer, &mut self.rails.all);
        let mut budget = SEND_BUDGET_BYTES * bundle.rails.len();
        let mut wrote = false;
        while budget > 0 {
            let next = bundle.out.has_next(sent);
            let wants = |rail: &Rail| rail.is_up() && rail.flow.socket.takes() && (next || rail.flow.has_own());
            let all = bundle.rails.iter().filter_map(|&index| Some((index, rails.get(index as usize)?)));
            // Frames that have begun come first.
            let rank = |(index, rail): &(u32, &Rail)| (!rail.flow.has_own(), bundle.out.outstanding(*index));
            let Some((index, _)) = all.filter(|(_, rail)| wants(rail)).min_by_key(rank) else { break };
            let Some(Rail { socket, flow, .. }) = rails.get_mut(index as usize) else { break };
            flow.prepare(
                || bundle.receipts.receipt().to_bytes(),
                || bundle.out.take(index, sent, self.config.stripe_bytes),
            );
            let done = |ctx| writer.report_done(LinkId(id), ctx);
            let n = if self.config.endpoint.encrypt {
                let Some(wire) = self.secrets.of(SECRET | index, socket.as_fd()) else { break };
                flow.write(wire, &mut bundle.out, done)
            } else {
                flow.write(socket.as_fd(), &mut bundle.out, done)
            };
            if flow.socket == SocketState::Unreadable {
                return self.report_end(id, LinkError::Access);
            }
            self.rails.bytes += n as u64;
            budget = budget.saturating_sub(n.max(1));
            wrote = true;
        }
        self.watch_rails(id);
        if wrote {
            self.focus.disturb();
            self.plan_rail_scan();
        }
    }

    /// Watches the sockets of a link's rails for what matters.
    fn watch_rails(&mut self, id: u32) {
        let (Some(link), Some(bundle)) = (self.links.get(id), self.rails.bundles.get(&id)) else { return };
        let next = bundle.out.has_next(sent(link));
        let mut failed = Vec::new();
        for &index in &bundle.rails {
            let Some(rail) = self.rails.all.get_mut(index as usize).filter(|rail| rail.is_up()) else { continue };
            let writes = rail.flow.socket.is_full() || (rail.flow.socket.takes() && (next || rail.flow.has_own()));
            let reads = rail.flow.intake.held_until.is_none();
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, reads);
            flags.set(EventFlags::OUT, writes);
            if flags == rail.watched {
                continue;
            }
            let data = epoll::EventData::new_u64(Token::Rail(index, rail.generation).pack());
            match epoll::modify(&self.epoll, &rail.socket, data, flags) {
                Ok(()) => rail.watched = flags,
                Err(errno) => {
                    sys::cannot_watch(errno);
                    failed.push(index);
                }
            }
        }
        for index in failed {
            self.lose_rail(index, "its socket cannot be watched");
        }
    }

    /// Handles an event of a rail's socket.
    pub(in super::super) fn rail_event<S: Sink>(
        &mut self,
        index: u32,
        generation: u32,
        flags: EventFlags,
        sink: &mut S,
        now_ms: u64,
    ) {
        let rail = self.rails.all.get_mut(index as usize).filter(|rail| rail.generation == generation);
        let Some(rail) = rail else { return };
        let id = rail.link;
        self.pace.wake();
        self.focus.disturb();
        if !rail.is_up() {
            return self.continue_rail(index, now_ms);
        }
        if flags.contains(EventFlags::OUT) {
            rail.flow.socket.try_again();
            self.pump_rails(id);
        }
        let ends = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        let held = self.rails.all.get(index as usize).is_some_and(|rail| rail.flow.intake.held_until.is_some());
        if ends && held {
            // Unread segments are repeated on another rail.
            return self.lose_rail(index, "it has ended");
        }
        if ends || flags.contains(EventFlags::IN) {
            self.read_rail(index, sink);
        }
    }

    /// Reads the rails that waited for the first connections of their links, as far as these have come.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn read_held_rails<S: Sink>(&mut self, sink: &mut S) {
        self.focus.disturb();
        let ready = |rail: &Rail| {
            let position = self.links.get(rail.link).map_or(0, |link| link.rx.position());
            rail.flow.intake.held_until.is_some_and(|after| after <= position)
        };
        let ready: Vec<usize> = self.rails.all.iter().filter(|(_, rail)| ready(rail)).map(|(index, _)| index).collect();
        for index in ready {
            // The number was made from 32 bits.
            #[allow(clippy::cast_possible_truncation)]
            self.read_rail(index as u32, sink);
        }
    }

    /// Reads the available bytes of a rail, within the budget.
    fn read_rail<S: Sink>(&mut self, index: u32, sink: &mut S) {
        let Some(rail) = self.rails.all.get_mut(index as usize).filter(|rail| rail.is_up()) else { return };
        let id = rail.link;
        let Some(link) = self.links.get(id).filter(|link| matches!(link.state, LinkState::Up | LinkState::Broken(_)))
        else {
            return;
        };
        let Some(bundle) = self.rails.bundles.get_mut(&id) else { return };
        let Rail { socket, flow, .. } = rail;
        let (discard, receipts, position) = (&mut self.rails.discard, &mut bundle.receipts, link.rx.position());
        discard.resize(DISCARD_BYTES, 0);
        let was_held = flow.intake.held_until.is_some();
        let Outcome { bytes, completed, receipt, mut end } = if self.config.endpoint.encrypt {
            let Some(wire) = self.secrets.of(SECRET | index, socket.as_fd()) else { return };
            flow.intake.read(wire, receipts, discard, position, LinkId(id), sink)
        } else {
            flow.intake.read(socket.as_fd(), receipts, discard, position, LinkId(id), sink)
        };
        flow.receipt_due |= completed;
        self.rails.held -= usize::from(was_held);
        self.rails.held += usize::from(flow.intake.held_until.is_some());
        self.rails.bytes += bytes as u64;
        if let Some(receipt) = receipt {
            let done = |ctx| self.writer.report_done(LinkId(id), ctx);
            end = bundle.out.acknowledged(receipt, done).err().or(end);
        }
        match end {
            None => self.pump_rails(id),
            Some(LinkError::Gone) => self.lose_rail(index, "hang-up or reset"),
            Some(why) => self.report_end(id, why),
        }
    }
}
