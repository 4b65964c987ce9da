//! Vector accesses between neighbourhoods: short pieces travel together in messages of the library.
//!
//! Place in the data flow: `vis` adds the pieces of an access to a [`Pack`], which sends a message when it is full. The
//! target copies in place, while its engine polls, and answers:
//!
//! ```text
//! Pack::send ─► put: runs …, bytes  ═══► serve: into the segment
//!               get: runs …         ═══► serve: from the segment
//!               finish ◄═══ bytes of a get ◄─────────────┘
//! ```
//!
//! Equally long pieces at equal distances are one [`Run`], so strided accesses need few. The device copies the bytes
//! of a put from the client's memory, and nothing copies them before.
//!
//! Invariant: a bounded number of messages waits for answers, so the answers of gets need bounded memory at the target.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;
use weft_engine::am::{ActiveHead, ActiveMessage, Answer};
use weft_engine::api::{Addr, Error};

use crate::am::max_medium;
use crate::event::Slot;
use crate::invoke::message_piece;
use crate::job::Job;
use crate::memory::{self, Piece, Way};
use crate::table::{Location, Place};
use crate::wait::{self, Pause};

/// The longest piece that travels with others, in bytes. A longer one is an access of the engine, which copies less.
const MOST_BYTES: usize = 1024;
/// Messages that may wait for answers.
const IN_FLIGHT: usize = 64;

/// The begins of headers. The number of the message, the endpoint and the number of runs follow; in an answer, the
/// number of the message alone.
const PUT: [u8; 4] = [5, 3, 0, 0];
const GET: [u8; 4] = [6, 3, 0, 0];
const DONE: [u8; 4] = [7, 3, 0, 0];

/// Pieces of one length at equal distances, in the target's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    addr: u64,
    stride: i64,
    bytes: u32,
    count: u32,
}

impl Run {
    /// Its length in a message.
    const WIRE_BYTES: usize = 24;

    fn new(piece: Piece) -> Self {
        Self { addr: piece.addr as u64, stride: 0, bytes: u32::try_from(piece.bytes).unwrap_or(u32::MAX), count: 1 }
    }

    /// Adds a piece that continues the run. Returns whether it does.
    #[inline(always)]
    fn add(&mut self, piece: Piece) -> bool {
        if piece.bytes != self.bytes as usize {
            return false;
        }
        let distance = (piece.addr as u64).wrapping_sub(self.addr).cast_signed();
        if self.count == 1 {
            self.stride = distance;
        } else if distance != self.stride.wrapping_mul(self.count.into()) {
            return false;
        }
        self.count += 1;
        true
    }

    fn to_bytes(self) -> [u8; Self::WIRE_BYTES] {
        let mut bytes = [0; Self::WIRE_BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.stride.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.bytes.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.count.to_ne_bytes());
        bytes
    }

    /// The run at the begin of a message, and the rest.
    fn first(body: &[u8]) -> Option<(Self, &[u8])> {
        let (addr, rest) = body.split_first_chunk::<8>()?;
        let (stride, rest) = rest.split_first_chunk::<8>()?;
        let (bytes, rest) = rest.split_first_chunk::<4>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let run = Self {
            addr: u64::from_ne_bytes(*addr),
            stride: i64::from_ne_bytes(*stride),
            bytes: u32::from_ne_bytes(*bytes),
            count: u32::from_ne_bytes(*count),
        };
        // Without bytes, the number of pieces would be bounded by nothing.
        (run.bytes > 0 && run.count > 0).then_some((run, rest))
    }

    /// The bytes of all pieces.
    fn total(&self) -> u64 {
        u64::from(self.bytes) * u64::from(self.count)
    }

    /// The memory from the first byte of all pieces to the last one, and the distance of the first piece from there.
    fn span(&self) -> Option<(Piece, usize)> {
        let reach = self.stride.checked_mul(i64::from(self.count) - 1)?;
        let before = if reach < 0 { reach.unsigned_abs() } else { 0 };
        let [addr, bytes, before] =
            [self.addr.checked_sub(before)?, reach.unsigned_abs().checked_add(self.bytes.into())?, before]
                .map(|number| usize::try_from(number).ok());
        Some((Piece { addr: addr?, bytes: bytes? }, before?))
    }

    /// The addresses of the pieces, if that of the first one here is `first`.
    fn places(self, first: usize) -> impl Iterator<Item = usize> {
        let stride = usize::try_from(self.stride.cast_unsigned()).unwrap_or(0);
        (0..self.count as usize).map(move |at| first.wrapping_add(stride.wrapping_mul(at)))
    }
}

/// Whether a piece of this length travels with others.
#[inline(always)]
pub(crate) fn takes(bytes: usize) -> bool {
    bytes <= MOST_BYTES.min(max_medium() - Run::WIRE_BYTES)
}

/// The pieces of a message under construction.
pub(crate) struct Pack {
    at: Location,
    way: Way,
    runs: Vec<Run>,
    /// The memory here, in the order of the pieces. Neighbours are one.
    near: Vec<Piece>,
    /// The bytes of all pieces.
    bytes: usize,
}

/// A message without an answer yet.
struct Sent {
    rank: u32,
    event: &'static Slot,
    places: Vec<Piece>,
}

#[derive(Default)]
struct Table {
    sent: HashMap<u64, Sent>,
    made: u64,
}

impl Table {
    /// Enters a message. Returns its number.
    fn enter(&mut self, sent: Sent) -> u64 {
        self.made += 1;
        self.sent.insert(self.made, sent);
        self.made
    }
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

impl Pack {
    pub(crate) fn new(at: Location, way: Way) -> Self {
        Self { at, way, runs: Vec::new(), near: Vec::new(), bytes: 0 }
    }

    /// Adds a piece: its address here, and its place in the target's process. Its length is one that a message
    /// [takes]. `event` is told of each message. The memory here belongs to the access until the event is
    /// complete.
    #[inline]
    pub(crate) fn add(&mut self, job: &Job, event: &'static Slot, near: usize, far: Piece) {
        let bytes = far.bytes;
        debug_assert!(bytes > 0 && takes(bytes));
        if (self.runs.len() + 1) * Run::WIRE_BYTES + self.bytes + bytes > max_medium() {
            self.send(job, event);
        }
        self.bytes += bytes;
        if !self.runs.last_mut().is_some_and(|run| run.add(far)) {
            self.runs.push(Run::new(far));
        }
        match self.near.last_mut().filter(|last| last.addr.wrapping_add(last.bytes) == near) {
            Some(last) => last.bytes += bytes,
            None => self.near.push(Piece { addr: near, bytes }),
        }
    }

    /// Sends the message, if it has pieces.
    pub(crate) fn send(&mut self, job: &Job, event: &'static Slot) {
        if self.runs.is_empty() {
            return;
        }
        if TABLE.lock().sent.len() >= IN_FLIGHT {
            // Several messages leave together afterwards. One for each answer would alternate with the target.
            wait::until(job, || TABLE.lock().sent.len() <= IN_FLIGHT / 2);
        }
        let (rank, near) = (self.at.rank(), std::mem::take(&mut self.near));
        let runs: Vec<u8> = self.runs.iter().flat_map(|run| run.to_bytes()).collect();
        let mut body = vec![Piece::at(runs.as_ptr(), runs.len())];
        if self.way == Way::Put {
            body.extend_from_slice(&near);
        }
        let body: Vec<_> = body.into_iter().map(message_piece).collect();
        event.add();
        let places = if self.way == Way::Get { near } else { Vec::new() };
        let number = TABLE.lock().enter(Sent { rank, event, places });
        let lead = if self.way == Way::Put { PUT } else { GET };
        let count = u16::try_from(self.runs.len()).unwrap_or(u16::MAX);
        let head = [&lead[..], &number.to_ne_bytes(), &self.at.endpoint().to_ne_bytes(), &count.to_ne_bytes()].concat();
        let head = &mut ActiveHead::new(&head);
        let mut message = ActiveMessage { dest: Addr::from(rank), reply: false, head, body: &body };
        let mut pause = Pause::new();
        loop {
            match job.with_engine(|engine| engine.send_active(&mut message)) {
                Some(Ok(())) => break,
                Some(Err(Error::Again)) if job.failures().has_lost(rank) => {
                    lose(rank);
                    break;
                }
                Some(Err(Error::Again)) => pause.step(job),
                None => crate::fatal!("a handler has accessed remote memory; handlers may only reply"),
                Some(Err(error)) => crate::fatal!("a message to rank {rank} was refused: {error}; report this error"),
            }
        }
        self.runs.clear();
        self.bytes = 0;
    }
}

/// Takes a message of this kind. Returns whether it was one.
pub(crate) fn take(job: &Job, source: u32, head: &[u8], body: &[u8], answer: &mut Answer<'_>) -> bool {
    let Some((lead, rest)) = head.split_first_chunk::<4>() else { return false };
    let Some((number, rest)) = rest.split_first_chunk::<8>() else { return false };
    if *lead == DONE {
        return finish(source, u64::from_ne_bytes(*number), body);
    }
    let Some((endpoint, runs)) = rest.split_first_chunk::<2>() else { return false };
    let Ok(runs) = <[u8; 2]>::try_from(runs) else { return false };
    let at = Location::new(job.rank(), u16::from_ne_bytes(*endpoint));
    let here = |run: &Run| {
        let (span, first) = run.span()?;
        match job.place(at, span) {
            Place::Here(here) => Some(here + first),
            _ => None,
        }
    };
    let done = &mut ActiveHead::new(&[&DONE[..], number].concat());
    let runs = usize::from(u16::from_ne_bytes(runs)) * Run::WIRE_BYTES;
    let served = match *lead {
        PUT => body.split_at_checked(runs).and_then(|(runs, data)| scatter(runs, data, here)),
        GET => gather(body, here, |bytes| (bytes <= answer.limit()).then(|| answer.set(done, bytes))),
        _ => return false,
    };
    if served.is_none() {
        crate::fatal!(
            "rank {source} has accessed memory that is not in the segment of endpoint {}; pass addresses of that segment",
            at.endpoint()
        );
    }
    if *lead == PUT {
        answer.put(done, &[]);
    }
    true
}

/// Copies the pieces of a put. `None`: the message has another form, or a run has no place `here`.
fn scatter(mut runs: &[u8], mut data: &[u8], here: impl Fn(&Run) -> Option<usize>) -> Option<()> {
    while !runs.is_empty() {
        let (run, rest) = Run::first(runs)?;
        let (bytes, left) = data.split_at_checked(usize::try_from(run.total()).ok()?)?;
        for (place, piece) in run.places(here(&run)?).zip(bytes.chunks_exact(run.bytes as usize)) {
            memory::copy_at(place, Piece::at(piece.as_ptr(), piece.len()));
        }
        (runs, data) = (rest, left);
    }
    data.is_empty().then_some(())
}

/// Copies the pieces of a get into memory that `answer` gives for their number of bytes. `None`: as for [`scatter`], or
/// there is no memory.
fn gather<'a>(
    body: &[u8],
    here: impl Fn(&Run) -> Option<usize>,
    answer: impl FnOnce(usize) -> Option<&'a mut [u8]>,
) -> Option<()> {
    let (mut total, mut rest) = (0_u64, body);
    while !rest.is_empty() {
        let (run, others) = Run::first(rest)?;
        total = total.checked_add(run.total())?;
        rest = others;
    }
    let (mut out, mut rest) = (answer(usize::try_from(total).ok()?)?, body);
    while let Some((run, others)) = Run::first(rest) {
        let (bytes, left) = out.split_at_mut_checked(usize::try_from(run.total()).ok()?)?;
        for (place, piece) in run.places(here(&run)?).zip(bytes.chunks_exact_mut(run.bytes as usize)) {
            memory::copy_at(piece.as_mut_ptr().expose_provenance(), Piece { addr: place, bytes: piece.len() });
        }
        (out, rest) = (left, others);
    }
    Some(())
}

/// Ends a message that a rank has answered. False: it has not been asked.
fn finish(source: u32, number: u64, mut body: &[u8]) -> bool {
    let sent = TABLE.lock().sent.remove(&number).filter(|sent| sent.rank == source);
    let Some(Sent { event, places, .. }) = sent else { return false };
    for place in places {
        let Some((data, rest)) = body.split_at_checked(place.bytes) else { return false };
        memory::copy_at(place.addr, Piece::at(data.as_ptr(), data.len()));
        body = rest;
    }
    event.complete();
    body.is_empty()
}

/// Fails the messages to a rank that is gone.
pub(crate) fn lose(rank: u32) {
    TABLE.lock().sent.retain(|_, sent| {
        if sent.rank == rank {
            sent.event.fail();
        }
        sent.rank != rank
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn run(addr: usize, stride: i64, bytes: u32, count: u32) -> Vec<u8> {
        Run { addr: addr as u64, stride, bytes, count }.to_bytes().to_vec()
    }

    /// The place of a run in `memory`, of which the peer knows addresses from 0.
    fn within(memory: &[u8], run: &Run) -> Option<usize> {
        let (span, first) = run.span()?;
        let end = span.addr.checked_add(span.bytes)?;
        (end <= memory.len()).then(|| memory.as_ptr().expose_provenance() + span.addr + first)
    }

    fn got(memory: &[u8], body: &[u8], limit: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; limit];
        let out = &mut bytes[..];
        gather(body, |run| within(memory, run), move |len| out.get_mut(..len))?;
        Some(bytes)
    }

    #[test]
    fn pieces_reach_their_places_and_return() {
        let memory: Vec<u8> = (0..64).collect();
        let runs = [run(8, 0, 2, 1), run(60, -20, 1, 3)].concat();
        assert_eq!(scatter(&runs, &[200, 201, 1, 2, 3], |run| within(&memory, run)), Some(()));
        assert_eq!([8, 9, 60, 40, 20].map(|at: usize| memory[at]), [200, 201, 1, 2, 3]);
        let runs = [run(8, 3, 2, 2), run(0, 0, 2, 1)].concat();
        assert_eq!(got(&memory, &runs, 6), Some(vec![200, 201, 11, 12, 0, 1]));
        assert_eq!(got(&memory, &runs, 5), None);
    }

    #[test]
    fn pieces_join_runs() {
        let at = |addr, bytes| Piece { addr, bytes };
        let mut run = Run::new(at(100, 8));
        assert!(run.add(at(90, 8)) && run.add(at(80, 8)) && !run.add(at(71, 8)) && !run.add(at(70, 4)));
        assert_eq!(run, Run { addr: 100, stride: -10, bytes: 8, count: 3 });
        assert_eq!(run.span(), Some((at(80, 28), 20)));
        assert_eq!(Run::first(&run.to_bytes()), Some((run, &[][..])));
    }

    #[test]
    fn only_the_target_ends_a_message() {
        let event = Slot::take();
        event.add();
        event.complete();
        let sent = |rank| Sent { rank, event, places: Vec::new() };
        for (number, rank) in [(u64::MAX - 1, 1_000_001), (u64::MAX - 2, 1_000_002)] {
            event.add();
            TABLE.lock().sent.insert(number, sent(rank));
        }
        assert!(finish(1_000_001, u64::MAX - 1, &[]));
        lose(1_000_001);
        assert!(!finish(1_000_001, u64::MAX - 1, &[]) && TABLE.lock().sent.contains_key(&(u64::MAX - 2)));
        lose(1_000_002);
        event.complete();
        assert!(event.test() && TABLE.lock().sent.is_empty());
    }

    #[test]
    fn other_forms_are_refused() {
        let memory = [0_u8; 16];
        let here = |run: &Run| within(&memory, run);
        assert!(scatter(&run(8, 0, 2, 1), &[1, 2], |_| None).is_none());
        for (stride, bytes, count) in [(0, 0, 9), (0, 9, 0), (8, 8, 3), (-9, 8, 2), (i64::MAX, 8, 3), (i64::MIN, 8, 2)]
        {
            let data = [0; 8 * 9];
            let run = run(0, stride, bytes, count);
            assert!(scatter(&run, &data[..(bytes * count) as usize], here).is_none(), "{stride} {bytes} {count}");
            assert!(got(&memory, &run, 1 << 20).is_none(), "{stride} {bytes} {count}");
        }
        assert!(scatter(&run(8, 0, 2, 1), &[1], here).is_none() && scatter(&run(8, 0, 2, 1), &[1; 3], here).is_none());
        assert!((1..Run::WIRE_BYTES).all(|len| scatter(&run(8, 0, 2, 1)[..len], &[1, 2], here).is_none()));
        assert!(got(&memory, &run(0, 0, u32::MAX, u32::MAX), 1 << 20).is_none());
        assert!(!finish(0, u64::MAX, &[]));
    }
}
