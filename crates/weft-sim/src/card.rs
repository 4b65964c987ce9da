//! The simulated card of Unimem: mailboxes of a few bytes, and DMA that reaches special memory only.
//!
//! Place in the data flow: where [`FabricConfig::card`] is set, the fabric passes messages ([`FabricState::post`]) and
//! pushes ([`FabricState::push_piece`]) to this module in place of its own wires. Gets and puts keep the wires, and
//! reach registered special memory only.
//!
//! A message of the engine that fits into a few mailbox messages goes by them. A longer one, and each piece of a push,
//! goes by DMA, and a mailbox message reports it. Memory that is not special is copied into a bounce buffer before the
//! DMA, and out of one after it. Where the receiver's memory is special, the DMA stores there. The engine's message
//! that permits a push does not name that memory, as that of the prototype does; the card asks for it, which takes no
//! time. Before the first DMA to a block of special memory, the sender's card registers it.
//!
//! Invariants:
//! - The processor of an endpoint does one thing at a time: it starts messages and DMA, takes messages, copies, and
//!   registers.
//! - A piece of a push asks for its place at the receiver first, and for its bounce buffer at the sender then. The two
//!   are in different areas, so pieces that hold a bounce buffer always end.
//! - A piece ends with the event that finds its link closed, at the latest. It then returns its bounce buffers.

pub(crate) mod area;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft_engine::mem::{self, Iov};
use weft_engine::nic::Span;

use crate::config::FabricConfig;
use crate::event::Event;
use crate::fabric::{Fabric, FabricState};
use crate::memory::Buffer;
use crate::trace::TraceEvent;
use crate::transfer::Kind;
use crate::wire::{EndId, Phase};
use area::Area;

/// Movements that are kept for [`Fabric::moved`].
const KEPT: usize = 64;
/// Places from here on are those of special memory.
const SPECIAL_PLACE: u64 = 1 << 60;
/// The distance of the special memories of two endpoints.
const ENDPOINT_PLACES: u64 = 1 << 40;

/// A card with mailboxes and special memory, and the costs of the processor that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// The processor's time to send a message, or to start a DMA.
    pub send_ns: u64,
    /// The processor's time to take a message.
    pub receive_ns: u64,
    /// Bytes of a mailbox message.
    pub mailbox_bytes: usize,
    /// The most mailbox messages that one message takes.
    pub mailboxes: usize,
    /// Between two mailbox messages of one message.
    pub mailbox_gap_ns: u64,
    /// The start of a DMA.
    pub setup_ns: u64,
    /// Each byte of a copy, in picoseconds.
    pub copy_ps_per_byte: u64,
    /// A copy out of a bounce buffer, beside its bytes.
    pub stage_ns: u64,
    /// Registration of a block of the peer's special memory with the card.
    pub register_ns: u64,
    /// Such registrations are kept.
    pub keeps_registrations: bool,
    /// Special memory of an endpoint that its client may allocate.
    pub special_bytes: u64,
    /// Bounce buffers of an endpoint for each direction.
    pub bounce_bytes: u64,
}

/// The kind of memory at one end of a movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory that DMA does not reach.
    Ordinary,
    /// A bounce buffer, which is special memory of the device.
    Bounce,
    /// Special memory of the client.
    Special,
}

/// An act of a card or its processor, beside mailbox messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// The processor copies.
    Copy(Place, Place),
    /// The card moves bytes to the peer.
    Dma(Place, Place),
    /// The processor registers memory of the peer with the card.
    Register,
}

impl Movement {
    /// A number for the trace.
    fn number(self) -> u64 {
        match self {
            Self::Register => 0,
            Self::Copy(from, to) => 1 + 3 * from as u64 + to as u64,
            Self::Dma(from, to) => 10 + 3 * from as u64 + to as u64,
        }
    }
}

/// An act, with its endpoint and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The endpoint whose processor or card acts.
    pub ep: usize,
    /// The act.
    pub what: Movement,
    /// The length in bytes. Of a registration, that of the block.
    pub bytes: u64,
}

/// The card of an endpoint, and its processor.
#[derive(Debug)]
pub(crate) struct Unit {
    /// The processor is busy until then.
    busy_until_ns: u64,
    /// Special memory of the client.
    special: Area,
    /// Bounce buffers for pieces that leave, and for those that arrive.
    leaving: Area,
    arriving: Area,
    /// The blocks that the card can reach: the endpoint and its block.
    reached: BTreeSet<(usize, u64)>,
    /// Pieces that wait for a bounce buffer.
    waiting: VecDeque<u64>,
}

impl Unit {
    pub(crate) fn new(ep: usize, card: Option<&Card>) -> Self {
        let start = SPECIAL_PLACE + ep as u64 * ENDPOINT_PLACES;
        let (special, bounce) = card.map_or((0, 0), |card| (card.special_bytes, card.bounce_bytes));
        Self {
            busy_until_ns: 0,
            special: Area::new(start, special),
            leaving: Area::new(start + special, bounce),
            arriving: Area::new(start + special + bounce, bounce),
            reached: BTreeSet::new(),
            waiting: VecDeque::new(),
        }
    }
}

/// The progress of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The receiver has been asked for the place.
    Asks,
    /// The receiver's memory is known; the bytes are next.
    Leaves,
    /// The DMA is under way; the report is next.
    Moves,
    /// The report is under way.
    Reported,
    /// The bytes are at the receiver's engine next.
    Arrives,
}

/// A piece of a push on its way.
#[derive(Debug)]
struct Piece {
    from: EndId,
    transfer: u64,
    window: u64,
    offset: u64,
    len: usize,
    stage: Stage,
    /// The bytes, from when they have left the sender's memory on.
    bytes: Vec<u8>,
    /// The bounce buffers that it holds.
    leaving: Option<Span>,
    arriving: Option<Span>,
    /// The place at which the DMA stores. `None`: a bounce buffer is needed, and not there yet.
    target: Option<Span>,
}

/// The pieces on their way, and the movements so far.
#[derive(Debug, Default)]
pub(crate) struct Cards {
    pieces: BTreeMap<u64, Piece>,
    next: u64,
    moved: VecDeque<Moved>,
}

/// A card's question for the place of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) piece: u64,
    pub(crate) window: u64,
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

impl FabricState {
    /// The end of work of an endpoint's processor that can begin at `from_ns`.
    fn busy(&mut self, ep: usize, from_ns: u64, work_ns: u64) -> u64 {
        let unit = &mut self.endpoints[ep].unit;
        unit.busy_until_ns = unit.busy_until_ns.max(from_ns) + work_ns;
        unit.busy_until_ns
    }

    /// The end of the processor's part in a get or put.
    pub(crate) fn busy_with_copy(&mut self, ep: usize, starts: bool) -> u64 {
        let work_ns = self.config.card.map_or(0, |card| if starts { card.send_ns } else { card.receive_ns });
        let setup_ns = self.config.card.map_or(0, |card| if starts { card.setup_ns } else { 0 });
        self.busy(ep, self.now_ns, work_ns) + setup_ns
    }

    /// Notes an act. Returns the time that a copy of its length takes.
    pub(crate) fn note(&mut self, ep: usize, what: Movement, bytes: u64) -> u64 {
        match what {
            Movement::Copy(..) => self.stats.copies += 1,
            Movement::Dma(..) => self.stats.dmas += 1,
            Movement::Register => self.stats.reached += 1,
        }
        self.record(TraceEvent::Move, ep, what.number(), bytes, &[]);
        if self.cards.moved.len() == KEPT {
            self.cards.moved.pop_front();
        }
        self.cards.moved.push_back(Moved { ep, what, bytes });
        self.config.card.map_or(0, |card| bytes * card.copy_ps_per_byte / 1000)
    }

    fn kind_of(&self, memory: &[Iov]) -> Place {
        let special = |iov: &Iov| {
            iov.is_empty() || self.memory.place(&Span::from(iov)).is_some_and(|place| place.start >= SPECIAL_PLACE)
        };
        if memory.iter().all(special) { Place::Special } else { Place::Ordinary }
    }

    /// Whether DMA reaches this place.
    pub(crate) fn is_special(&self, place: &Span) -> bool {
        self.config.card.is_none() || place.start >= SPECIAL_PLACE
    }

    /// Sends a message: by mailbox messages if it fits, else by DMA between the message buffers of the two sides, which
    /// are registered when the link is made.
    pub(crate) fn post(&mut self, card: &Card, from: EndId, bytes: Vec<u8>) {
        let (ep, count) = (self.end(from).ep, bytes.len().div_ceil(card.mailbox_bytes));
        let by_mailbox = count <= card.mailboxes;
        let left_ns = if by_mailbox {
            self.busy(ep, self.now_ns, card.send_ns) + (count as u64).saturating_sub(1) * card.mailbox_gap_ns
        } else {
            let copy_ns = self.note(ep, Movement::Copy(Place::Ordinary, Place::Bounce), bytes.len() as u64);
            let started_ns = self.busy(ep, self.now_ns, copy_ns + card.send_ns) + card.setup_ns;
            self.note(ep, Movement::Dma(Place::Bounce, Place::Bounce), bytes.len() as u64);
            let moved_ns = self.depart_bytes(from, started_ns, bytes.len());
            self.busy(ep, moved_ns, card.send_ns)
        };
        let at_ns = self.arrival_ns(from, left_ns);
        self.agenda.schedule(at_ns, Event::Mailbox { to: from.other(), bytes });
    }

    /// The time at which bytes that leave at `from_ns` are on the wire.
    fn depart_bytes(&mut self, from: EndId, from_ns: u64, len: usize) -> u64 {
        let Self { config, wires, .. } = self;
        wires[from.wire].ends[from.side.index()].depart(config, from_ns, len)
    }

    /// The arrival of a mailbox message that leaves at `left_ns`.
    fn arrival_ns(&mut self, from: EndId, left_ns: u64) -> u64 {
        let Self { config, wires, .. } = self;
        wires[from.wire].ends[from.side.index()].arrives_ns(config, left_ns)
    }

    /// A message is in the mailbox: the processor takes it.
    pub(crate) fn take_mail(&mut self, to: EndId, bytes: Vec<u8>) {
        let Some(card) = self.config.card else { return };
        let ep = self.end(to).ep;
        let mut work_ns = card.receive_ns;
        if bytes.len().div_ceil(card.mailbox_bytes) > card.mailboxes {
            work_ns += self.note(ep, Movement::Copy(Place::Bounce, Place::Ordinary), bytes.len() as u64);
        }
        let at_ns = self.busy(ep, self.now_ns, work_ns);
        self.end(to).taken_ns = at_ns;
        self.agenda.schedule(at_ns, Event::Message { to, bytes });
    }

    /// Begins with the next piece of a push: asks the receiver for its place.
    pub(crate) fn push_piece(&mut self, transfer: u64, (at, len): (usize, usize)) {
        let Some(found) = self.transfers.get_mut(&transfer) else { return };
        let Kind::Push { window, offset } = found.kind else { return };
        found.sent += len;
        let (from, offset) = (found.end, offset.wrapping_add(at as u64));
        self.cards.next += 1;
        let number = self.cards.next;
        let piece = Piece {
            from,
            transfer,
            window,
            offset,
            len,
            stage: Stage::Asks,
            bytes: Vec::new(),
            leaving: None,
            arriving: None,
            target: None,
        };
        self.cards.pieces.insert(number, piece);
        let event = Event::Question { to: from.other(), question: Question { piece: number, window, offset, len } };
        self.agenda.schedule(self.now_ns, event);
    }

    /// The receiver's engine has named the memory of a piece.
    pub(crate) fn answer(&mut self, number: u64, memory: Option<&[Iov]>) {
        let special = memory.filter(|memory| self.kind_of(memory) == Place::Special);
        // Where the pieces of memory lie in several blocks, the card has a list of DMAs. The first one stands for all.
        let first = special.and_then(|memory| memory.iter().find(|iov| !iov.is_empty()));
        let target = first.and_then(|iov| self.memory.block(&Span::from(iov)));
        if let Some(piece) = self.cards.pieces.get_mut(&number) {
            (piece.stage, piece.target) = (Stage::Leaves, target);
            self.agenda.schedule(self.now_ns, Event::Piece { piece: number });
        }
    }

    /// The next step of a piece is due.
    pub(crate) fn move_piece(&mut self, number: u64) {
        let (Some(card), Some(piece)) = (self.config.card, self.cards.pieces.get(&number)) else { return };
        let (from, stage) = (piece.from, piece.stage);
        let open = |end: EndId| self.wires[end.wire].ends[end.side.index()].phase == Phase::Up;
        // As on a wire, bytes that have left arrive although their sender has closed the link.
        let leaves = !matches!(stage, Stage::Reported | Stage::Arrives);
        if !open(from.other()) || leaves && (self.wires[from.wire].cut || !open(from)) {
            return self.end_piece(number);
        }
        match stage {
            // The receiver answers.
            Stage::Asks => {}
            Stage::Leaves => self.leave_memory(number, &card),
            Stage::Moves => self.report(number, &card),
            Stage::Reported => self.store(number, &card),
            Stage::Arrives => self.hand_piece(number),
        }
    }

    /// Schedules the next step of a piece.
    fn go_on(&mut self, number: u64, stage: Stage, at_ns: u64) {
        if let Some(piece) = self.cards.pieces.get_mut(&number) {
            piece.stage = stage;
            self.agenda.schedule(at_ns, Event::Piece { piece: number });
        }
    }

    /// A bounce buffer of one side. `None`: the piece waits for it.
    fn bounce(&mut self, number: u64, end: EndId, len: usize, leaves: bool) -> Option<Span> {
        let ep = self.end(end).ep;
        let unit = &mut self.endpoints[ep].unit;
        let area = if leaves { &mut unit.leaving } else { &mut unit.arriving };
        let got = area.take(len as u64);
        if got.is_none() {
            unit.waiting.push_back(number);
        }
        got
    }

    /// The bytes of a piece leave the sender's memory.
    fn leave_memory(&mut self, number: u64, card: &Card) {
        let Some(Piece { from, transfer, len, target, arriving, leaving, .. }) = self.cards.pieces.get(&number) else {
            return;
        };
        let (from, transfer, len, target) = (*from, *transfer, *len, *target);
        let (mut arriving, mut leaving) = (*arriving, *leaving);
        let Some((source, at)) = self.source(transfer, number) else { return self.end_piece(number) };
        if target.is_none() && arriving.is_none() {
            arriving = self.bounce(number, from.other(), len, false);
            self.with_piece(number, |piece| piece.arriving = arriving);
            if arriving.is_none() {
                return;
            }
        }
        let ordinary = self.kind_of(&source) == Place::Ordinary;
        if ordinary && leaving.is_none() {
            leaving = self.bounce(number, from, len, true);
            self.with_piece(number, |piece| piece.leaving = leaving);
            if leaving.is_none() {
                return;
            }
        }
        let (ep, mut ready_ns) = (self.end(from).ep, self.now_ns);
        if ordinary {
            let copy_ns = self.note(ep, Movement::Copy(Place::Ordinary, Place::Bounce), len as u64);
            ready_ns = self.busy(ep, ready_ns, copy_ns);
        }
        let mut bytes = self.blank(len);
        mem::gather(&mem::slice(&source, at, len), &mut bytes);
        self.with_piece(number, |piece| piece.bytes = bytes);
        // The processor copies the next piece while this one moves.
        self.agenda.schedule(ready_ns, Event::Step { transfer });
        if let Some(block) = target.or(arriving) {
            let peer = self.end(from.other()).ep;
            ready_ns = self.reach(ep, (peer, block), ready_ns, card);
        }
        let started_ns = self.busy(ep, ready_ns, card.send_ns) + card.setup_ns;
        let moved_ns = self.depart_bytes(from, started_ns, len);
        let source = if ordinary { Place::Bounce } else { Place::Special };
        let to = if target.is_some() { Place::Special } else { Place::Bounce };
        self.note(ep, Movement::Dma(source, to), len as u64);
        self.go_on(number, Stage::Moves, moved_ns);
    }

    /// The memory from which a piece leaves, and its offset there. `None`: the push has ended.
    fn source(&self, transfer: u64, number: u64) -> Option<(mem::IovList, usize)> {
        let (push, piece) = (self.transfers.get(&transfer)?, self.cards.pieces.get(&number)?);
        let Kind::Push { offset, .. } = push.kind else { return None };
        let at = usize::try_from(piece.offset.wrapping_sub(offset)).ok()?;
        push.result.is_none().then(|| (push.local.clone(), at))
    }

    fn with_piece(&mut self, number: u64, change: impl FnOnce(&mut Piece)) {
        if let Some(piece) = self.cards.pieces.get_mut(&number) {
            change(piece);
        }
    }

    /// The time from which on the card of `ep` reaches a block of a peer's special memory.
    fn reach(&mut self, ep: usize, (peer, block): (usize, Span), from_ns: u64, card: &Card) -> u64 {
        let known = !self.endpoints[ep].unit.reached.insert((peer, block.start));
        if known && card.keeps_registrations {
            return from_ns;
        }
        self.note(ep, Movement::Register, block.len);
        self.busy(ep, from_ns, card.register_ns)
    }

    /// The bytes of a piece are on the wire: a mailbox message reports it.
    fn report(&mut self, number: u64, card: &Card) {
        let Some(&Piece { from, transfer, len, leaving, .. }) = self.cards.pieces.get(&number) else { return };
        let ep = self.end(from).ep;
        let left_ns = self.busy(ep, self.now_ns, card.send_ns);
        let at_ns = self.arrival_ns(from, left_ns);
        self.with_piece(number, |piece| piece.leaving = None);
        self.give_back(from, leaving, true);
        self.go_on(number, Stage::Reported, at_ns);
        self.piece_left(transfer, len);
    }

    /// A piece has been reported: its bytes are copied if they are in a bounce buffer.
    fn store(&mut self, number: u64, card: &Card) {
        let Some(&Piece { from, len, arriving, .. }) = self.cards.pieces.get(&number) else { return };
        let ep = self.end(from.other()).ep;
        let mut work_ns = card.receive_ns;
        if arriving.is_some() {
            let copy_ns = self.note(ep, Movement::Copy(Place::Bounce, Place::Ordinary), len as u64);
            work_ns += card.stage_ns + copy_ns;
        }
        let at_ns = self.busy(ep, self.now_ns, work_ns);
        self.end(from.other()).taken_ns = at_ns;
        self.go_on(number, Stage::Arrives, at_ns);
    }

    /// The engine of the receiver gets a piece.
    fn hand_piece(&mut self, number: u64) {
        let Some(piece) = self.cards.pieces.get_mut(&number) else { return };
        let (to, window, offset) = (piece.from.other(), piece.window, piece.offset);
        let bytes = std::mem::take(&mut piece.bytes);
        self.end_piece(number);
        self.arrive(to, Event::Segment { to, window, offset, bytes });
    }

    /// Ends a piece, whether or not its bytes have arrived.
    fn end_piece(&mut self, number: u64) {
        let Some(piece) = self.cards.pieces.remove(&number) else { return };
        self.give_back(piece.from, piece.leaving, true);
        self.give_back(piece.from.other(), piece.arriving, false);
    }

    /// Returns a bounce buffer. Pieces that wait for one try again.
    fn give_back(&mut self, end: EndId, buffer: Option<Span>, left: bool) {
        let Some(buffer) = buffer else { return };
        let ep = self.end(end).ep;
        let unit = &mut self.endpoints[ep].unit;
        if left {
            unit.leaving.give(buffer)
        } else {
            unit.arriving.give(buffer)
        }
        for piece in std::mem::take(&mut unit.waiting) {
            self.agenda.schedule(self.now_ns, Event::Piece { piece });
        }
    }

    /// Allocates special memory. `None`: there is no room.
    fn alloc_special(&mut self, ep: usize, len: usize) -> Option<Buffer> {
        let place = self.endpoints[ep].unit.special.take(len as u64)?;
        let buffer = self.memory.alloc(ep, len, |bytes| bytes.resize(bytes.len() + len, 0));
        self.memory.set_place(buffer, &place);
        Some(buffer)
    }

    /// Special memory at this place is free: no card reaches it any more.
    pub(crate) fn free_special(&mut self, ep: usize, place: Span) {
        if place.start < SPECIAL_PLACE {
            return;
        }
        self.endpoints[ep].unit.special.give(place);
        for endpoint in &mut self.endpoints {
            endpoint.unit.reached.remove(&(ep, place.start));
        }
    }

    /// The client of an endpoint copies memory, and time passes meanwhile.
    fn copy_memory(&mut self, ep: usize, from: Buffer, to: Buffer) {
        let kinds = [from, to].map(|buffer| self.kind_of(&[buffer.iov()]));
        let copy_ns = self.note(ep, Movement::Copy(kinds[0], kinds[1]), from.len() as u64);
        to.write(&from.bytes());
        let at_ns = self.busy(ep, self.now_ns, copy_ns);
        self.advance_by(at_ns - self.now_ns);
    }
}

impl FabricConfig {
    /// Longest piece of a push. Over a card, each piece needs bounce buffers.
    pub(crate) fn piece_bytes(&self) -> usize {
        let bounce = self.card.map_or(u64::MAX, |card| card.bounce_bytes);
        self.segment_bytes.min(usize::try_from(bounce).unwrap_or(usize::MAX))
    }
}

impl Fabric {
    /// Allocates special memory in the address space of endpoint `ep`. `None`: there is no room, or no card.
    #[must_use]
    pub fn alloc_special(&self, ep: usize, len: usize) -> Option<Buffer> {
        self.state().alloc_special(ep, len)
    }

    /// The client of endpoint `ep` copies `from` to `to`, of equal lengths, and time passes meanwhile.
    pub fn copy(&self, ep: usize, from: Buffer, to: Buffer) {
        self.state().copy_memory(ep, from, to);
    }

    /// The last movements by cards and processors, oldest first.
    #[must_use]
    pub fn moved(&self) -> Vec<Moved> {
        self.state().cards.moved.iter().copied().collect()
    }
}
