//! Vector accesses between neighbourhoods: short pieces travel together in messages of the library.
//!
//! Place in the data flow: `vis` adds the pieces of an access to a [`Pack`], which sends a message when it is full. The
//! target copies in place, while its engine polls, and answers:
//!
//! ```text
//! Pack::send ─► put: (address, length, bytes) …  ═══► serve: into the segment
//!               get: (address, length) …         ═══► serve: from the segment
//!               finish ◄═══ bytes of a get ◄─────────────┘
//! ```
//!
//! Invariant: a bounded number of messages waits for answers, so the answers of gets need bounded memory at the target.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;
use weft_engine::am::{ActiveMessage, Answer};
use weft_engine::api::{Addr, Error};

use crate::am::max_medium;
use crate::event::Slot;
use crate::invoke::message_piece;
use crate::job::Job;
use crate::memory::{self, Piece, Way};
use crate::table::{Location, Place};
use crate::wait::{self, Pause};

/// The longest piece that travels with others, in bytes. A longer one is an access of the engine, which copies less.
pub(crate) const MOST_BYTES: usize = 1024;
/// Messages that may wait for answers.
const IN_FLIGHT: usize = 32;

/// The begins of headers. The number of the message and the endpoint follow; in an answer, the number alone.
const PUT: [u8; 4] = [5, 3, 0, 0];
const GET: [u8; 4] = [6, 3, 0, 0];
const DONE: [u8; 4] = [7, 3, 0, 0];
/// The address and the length of a piece in a message.
const RECORD_BYTES: usize = 8 + 4;

/// The pieces of a message under construction.
pub(crate) struct Pack {
    at: Location,
    way: Way,
    body: Vec<u8>,
    /// The pieces here that a get fills.
    places: Vec<Piece>,
    /// Their bytes.
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

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

impl Pack {
    pub(crate) fn new(at: Location, way: Way) -> Self {
        Self { at, way, body: Vec::with_capacity(max_medium()), places: Vec::new(), bytes: 0 }
    }

    /// Adds a piece of at most [`MOST_BYTES`]: its address here, and its place in the target's process. `event` is told
    /// of each message.
    pub(crate) fn add(&mut self, job: &Job, event: &'static Slot, near: usize, far: Piece) {
        let bytes = far.bytes;
        debug_assert!(bytes <= MOST_BYTES);
        let payload = if self.way == Way::Put { bytes } else { 0 };
        if self.body.len() + RECORD_BYTES + payload > max_medium() || self.bytes + bytes > max_medium() {
            self.send(job, event);
        }
        self.body.extend_from_slice(&(far.addr as u64).to_ne_bytes());
        self.body.extend_from_slice(&u32::try_from(bytes).unwrap_or(u32::MAX).to_ne_bytes());
        self.bytes += bytes;
        match self.way {
            Way::Put => self.body.extend_from_slice(memory::bytes_at(Piece { addr: near, bytes })),
            Way::Get => self.places.push(Piece { addr: near, bytes }),
        }
    }

    /// Sends the message, if it has pieces.
    pub(crate) fn send(&mut self, job: &Job, event: &'static Slot) {
        if self.body.is_empty() {
            return;
        }
        wait::until(job, || TABLE.lock().sent.len() < IN_FLIGHT);
        event.add();
        let sent = Sent { rank: self.at.rank(), event, places: std::mem::take(&mut self.places) };
        let number = {
            let mut table = TABLE.lock();
            table.made += 1;
            let number = table.made;
            table.sent.insert(number, sent);
            number
        };
        let lead = if self.way == Way::Put { PUT } else { GET };
        let head = [&lead[..], &number.to_ne_bytes(), &self.at.endpoint().to_ne_bytes()].concat();
        let body = [message_piece(Piece::at(self.body.as_ptr(), self.body.len()))];
        let message = ActiveMessage { dest: Addr::from(self.at.rank()), reply: false, head: &head, body: &body };
        let mut pause = Pause::new();
        loop {
            match job.with_engine(|engine| engine.send_active(&message)) {
                Some(Ok(())) => break,
                Some(Err(Error::Again)) => pause.step(job),
                None => crate::fatal!("a handler has accessed remote memory; handlers may only reply"),
                Some(Err(error)) => {
                    crate::fatal!("a message to rank {} was refused: {error}; report this error", self.at.rank())
                }
            }
        }
        self.body.clear();
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
    let Ok(endpoint) = <[u8; 2]>::try_from(rest) else { return false };
    let at = Location::new(job.rank(), u16::from_ne_bytes(endpoint));
    let here = |piece| match job.place(at, piece) {
        Place::Here(here) => Some(here),
        _ => None,
    };
    let done = [&DONE[..], number].concat();
    let served = match *lead {
        PUT => scatter(body, here).map(|()| answer.put(&done, &[])),
        GET => gather(body, answer.limit(), here).map(|got| answer.put(&done, &got)),
        _ => return false,
    };
    if served.is_none() {
        crate::fatal!(
            "rank {source} has accessed memory that is not in the segment of endpoint {}; pass addresses of that segment",
            at.endpoint()
        );
    }
    true
}

/// The piece at the begin of a message, and the rest.
fn first(body: &[u8]) -> Option<(Piece, &[u8])> {
    let (addr, rest) = body.split_first_chunk::<8>()?;
    let (bytes, rest) = rest.split_first_chunk::<4>()?;
    let addr = usize::try_from(u64::from_ne_bytes(*addr)).ok()?;
    Some((Piece { addr, bytes: usize::try_from(u32::from_ne_bytes(*bytes)).ok()? }, rest))
}

/// Copies the pieces of a put. `None`: the message has another form, or a piece has no place `here`.
fn scatter(mut body: &[u8], here: impl Fn(Piece) -> Option<usize>) -> Option<()> {
    while !body.is_empty() {
        let (piece, rest) = first(body)?;
        let (data, rest) = rest.split_at_checked(piece.bytes)?;
        memory::copy_at(here(piece)?, Piece::at(data.as_ptr(), data.len()));
        body = rest;
    }
    Some(())
}

/// The bytes of the pieces of a get, at most `limit`. `None`: as for [`scatter`], or there are more.
fn gather(mut body: &[u8], limit: usize, here: impl Fn(Piece) -> Option<usize>) -> Option<Vec<u8>> {
    let mut got = Vec::with_capacity(limit);
    while !body.is_empty() {
        let (piece, rest) = first(body)?;
        if piece.bytes > limit - got.len() {
            return None;
        }
        got.extend_from_slice(memory::bytes_at(Piece { addr: here(piece)?, bytes: piece.bytes }));
        body = rest;
    }
    Some(got)
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

    fn record(addr: usize, bytes: u32) -> Vec<u8> {
        [&(addr as u64).to_ne_bytes()[..], &bytes.to_ne_bytes()].concat()
    }

    #[test]
    fn pieces_reach_their_places_and_return() {
        let memory: Vec<u8> = (0..64).collect();
        let first = memory.as_ptr().expose_provenance();
        let here = |piece: Piece| (piece.addr + piece.bytes <= 64).then(|| first + piece.addr);
        let body = [record(8, 2), vec![200, 201], record(0, 1), vec![99]].concat();
        assert_eq!(scatter(&body, here), Some(()));
        assert_eq!((memory[0], memory[8], memory[9], memory[10]), (99, 200, 201, 10));
        let body = [record(8, 3), record(0, 2)].concat();
        assert_eq!(gather(&body, 5, here), Some(vec![200, 201, 10, 99, 1]));
        assert_eq!(gather(&body, 4, here), None);
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
        let nowhere = |_| None;
        let whole = [record(8, 2), vec![1, 2]].concat();
        assert!(scatter(&whole, nowhere).is_none() && gather(&record(8, 2), 9, nowhere).is_none());
        let memory = [0_u8; 16];
        let here = |_| Some(memory.as_ptr().expose_provenance());
        for len in 1..whole.len() {
            assert!(scatter(&whole[..len], here).is_none(), "{len}");
        }
        assert!(gather(&record(8, u32::MAX), 9, here).is_none());
        assert!(!finish(0, u64::MAX, &[]));
    }
}
