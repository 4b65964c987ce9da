//! Accesses to memory of a rank outside its segments, which that rank has allowed.
//!
//! Place in the data flow: weft-gex-c passes accesses here whose flags say that the address may be anywhere in the
//! peer's process, and that lie in no segment. Within a neighbourhood the kernel copies. Where it refuses, and between
//! neighbourhoods, messages of the library ask the target, whose kernel copies in its own process:
//!
//! ```text
//! start ─► ask: address, length, bytes of a put ═══► serve: process_vm_* on itself
//!          told ◄═══ status, bytes of a get ◄──────────┘
//! ```
//!
//! The kernel checks addresses, so a wrong one is an error of the operation, and harms no process.
//!
//! Invariant: a rank serves only if its start allowed that ([`FLAG_OPEN`]).
//!
//! Source: process_vm_readv(2).

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;
use rustix::io::Errno;
use weft_engine::am::{ActiveHead, ActiveMessage, Answer};
use weft_engine::api::{Addr, Error};

use crate::event::Slot;
use crate::far::Access;
use crate::invoke::message_piece;
use crate::job::Job;
use crate::memory::{self, Piece, Way};
use crate::os;
use crate::wait::Pause;

/// The flag of the start by which a rank allows others to access all its memory.
pub const FLAG_OPEN: u32 = 1 << 24;
/// Bytes that one message moves.
const STEP: usize = 16 << 10;

/// The begin of the header of a message that asks for an access. The number, the way, the address and the length
/// follow.
const ASK: [u8; 4] = [3, 3, 0, 0];
/// The begin of the header of its answer. The number and the status follow.
const TOLD: [u8; 4] = [4, 3, 0, 0];
const ASK_BYTES: usize = 4 + 4 * 8;
const TOLD_BYTES: usize = 4 + 2 * 8;

/// The reason why an access has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The target has not allowed it.
    Closed,
    /// There is no such memory.
    Address,
    /// A kernel allows no such access.
    Kernel,
}

impl Refusal {
    fn code(outcome: Result<(), Self>) -> u64 {
        match outcome {
            Ok(()) => 0,
            Err(Self::Closed) => 1,
            Err(Self::Address) => 2,
            Err(Self::Kernel) => 3,
        }
    }

    fn from_code(code: u64) -> Result<(), Self> {
        match code {
            0 => Ok(()),
            1 => Err(Self::Closed),
            2 => Err(Self::Address),
            _ => Err(Self::Kernel),
        }
    }

    fn of(errno: Errno) -> Self {
        if errno == Errno::FAULT { Self::Address } else { Self::Kernel }
    }

    /// Reports the failure.
    #[cold]
    fn report(self, job: &Job, access: &Access) {
        let Access { at, way, remote, bytes, .. } = *access;
        let (from, rank) = (job.rank(), at.rank());
        let what = if way == Way::Put { "put to" } else { "get from" };
        let why = match self {
            Self::Closed => {
                "it has not allowed accesses outside its segments; start all ranks with GEXW_FLAG_OPEN_ADDRESS_SPACE, or pass an address of its segment"
            }
            Self::Address => {
                "not all of that is memory which allows the access; pass an address of valid memory in that process"
            }
            Self::Kernel => {
                "the kernel forbids process_vm_readv there; allow it in the container's seccomp filter, or use segments"
            }
        };
        os::say(
            format!("weft-gex: rank {from}: a {what} rank {rank} of {bytes} bytes at {remote:#x} has failed: {why}\n")
                .as_bytes(),
        );
    }
}

/// A part of an access that was asked for.
struct Asked {
    slot: &'static Slot,
    part: Access,
}

#[derive(Default)]
struct Table {
    asked: HashMap<u64, Asked>,
    made: u64,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// Starts an access outside segments. `event` has been told of it.
pub fn start(job: &Job, access: &Access, event: &'static Slot) {
    let rank = access.at.rank();
    if !job.places().is_near(rank) {
        return ask(job, access, event);
    }
    let outcome = match job.board().process(rank) {
        _ if rank != job.rank() && !job.board().is_open(rank) => Err(Refusal::Closed),
        Some(pid) => copy(pid, access),
        None => Err(Refusal::Kernel),
    };
    match outcome {
        Err(Refusal::Kernel) if rank != job.rank() => ask(job, access, event),
        Ok(()) => event.complete(),
        Err(refusal) => {
            refusal.report(job, access);
            event.fail();
        }
    }
}

fn copy(pid: u32, access: &Access) -> Result<(), Refusal> {
    let Access { way, local, remote, bytes, .. } = *access;
    memory::copy_far_at(way, pid, local, Piece { addr: remote, bytes }).map_err(Refusal::of)
}

/// Asks the target for an access, in parts.
fn ask(job: &Job, access: &Access, event: &'static Slot) {
    for done in (0..access.bytes).step_by(STEP) {
        let part = Access {
            local: access.local + done,
            remote: access.remote.wrapping_add(done),
            bytes: STEP.min(access.bytes - done),
            ..*access
        };
        event.add();
        let number = {
            let mut table = TABLE.lock();
            table.made += 1;
            let number = table.made;
            table.asked.insert(number, Asked { slot: event, part });
            number
        };
        send(job, number, &part);
    }
    event.complete();
}

fn send(job: &Job, number: u64, part: &Access) {
    let way = u64::from(part.way == Way::Put);
    let head: [u8; ASK_BYTES] = head(ASK, [number, way, part.remote as u64, part.bytes as u64]);
    let body = [message_piece(Piece { addr: part.local, bytes: part.bytes })];
    let body = if part.way == Way::Put { &body[..] } else { &[] };
    let head = &mut ActiveHead::new(&head);
    let mut message = ActiveMessage { dest: Addr::from(part.at.rank()), reply: false, head, body };
    let mut pause = Pause::new();
    loop {
        match job.with_engine(|engine| engine.send_active(&mut message)) {
            Some(Ok(())) => return,
            Some(Err(Error::Again)) => pause.step(job),
            None => crate::fatal!("a handler has accessed remote memory; handlers may only reply"),
            Some(Err(error)) => {
                crate::fatal!("a message to rank {} was refused: {error}; report this error", part.at.rank())
            }
        }
    }
}

fn head<const WORDS: usize, const BYTES: usize>(lead: [u8; 4], words: [u64; WORDS]) -> [u8; BYTES] {
    let mut head = [0; BYTES];
    head[..4].copy_from_slice(&lead);
    for (to, word) in head[4..].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    head
}

fn words<const WORDS: usize>(rest: &[u8]) -> Option<[u64; WORDS]> {
    let (chunks, []) = rest.as_chunks::<8>() else { return None };
    let words: [[u8; 8]; WORDS] = chunks.try_into().ok()?;
    Some(words.map(u64::from_ne_bytes))
}

/// Takes a message of this kind. Returns whether it was one.
pub(crate) fn take(job: &Job, head: &[u8], body: &[u8], answer: &mut Answer<'_>) -> bool {
    match head.split_first_chunk::<4>() {
        Some((&ASK, rest)) => words(rest).is_some_and(|asked| serve(job, asked, body, answer)),
        Some((&TOLD, rest)) => words(rest).is_some_and(|told| finish(job, told, body)),
        _ => false,
    }
}

/// Performs an access for a peer. False: the message has another form.
fn serve(job: &Job, asked: [u64; 4], body: &[u8], answer: &mut Answer<'_>) -> bool {
    let [number, way, addr, bytes] = asked;
    let (Ok(addr), Ok(bytes)) = (usize::try_from(addr), usize::try_from(bytes)) else { return false };
    let way = if way == 0 { Way::Get } else { Way::Put };
    if bytes > STEP || (way == Way::Put && bytes != body.len()) {
        return false;
    }
    let mut got = vec![0; if way == Way::Get { bytes } else { 0 }];
    let local = if way == Way::Get { got.as_mut_ptr().expose_provenance() } else { body.as_ptr().expose_provenance() };
    let outcome = match job.board().is_open(job.rank()) {
        true => memory::copy_far_at(way, std::process::id(), local, Piece { addr, bytes }).map_err(Refusal::of),
        false => Err(Refusal::Closed),
    };
    let head: [u8; TOLD_BYTES] = head(TOLD, [number, Refusal::code(outcome)]);
    answer.put(&mut ActiveHead::new(&head), if outcome.is_ok() { &got } else { &[] });
    true
}

/// Ends a part of an access. False: the message has another form.
fn finish(job: &Job, told: [u64; 2], body: &[u8]) -> bool {
    let [number, code] = told;
    let Some(Asked { slot, part }) = TABLE.lock().asked.remove(&number) else { return false };
    let outcome = Refusal::from_code(code);
    match (outcome, part.way) {
        (Ok(()), Way::Get) if body.len() != part.bytes => return false,
        (Ok(()), Way::Get) => {
            memory::copy_at(part.local, Piece { addr: body.as_ptr().expose_provenance(), bytes: part.bytes });
        }
        _ => {}
    }
    match outcome {
        Ok(()) => slot.complete(),
        Err(refusal) => {
            refusal.report(job, &part);
            slot.fail();
        }
    }
    true
}

/// Fails what a rank that is gone was asked for.
pub(crate) fn lose(rank: u32) {
    let lost: Vec<Asked> = {
        let mut table = TABLE.lock();
        let gone: Vec<u64> =
            table.asked.iter().filter(|(_, asked)| asked.part.at.rank() == rank).map(|(&number, _)| number).collect();
        gone.iter().filter_map(|number| table.asked.remove(number)).collect()
    };
    lost.iter().for_each(|asked| asked.slot.fail());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_are_read_back() {
        let head: [u8; ASK_BYTES] = head(ASK, [1, 2, 3, u64::MAX]);
        assert_eq!(words(&head[4..]), Some([1, 2, 3, u64::MAX]));
        assert_eq!(words::<3>(&head[4..]), None);
        assert_eq!(words::<4>(&head[5..]), None);
        for refusal in [Ok(()), Err(Refusal::Closed), Err(Refusal::Address), Err(Refusal::Kernel)] {
            assert_eq!(Refusal::from_code(Refusal::code(refusal)), refusal);
        }
    }
}
