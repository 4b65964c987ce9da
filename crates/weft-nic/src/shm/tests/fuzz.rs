//! Fuzz targets: the words that a peer writes into the pair's memory, and its frames on the socket before
//! that.

mod race;

use std::ffi::CStr;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use weft_engine::mem::Owned;
use weft_engine::nic::{LinkError, LinkId, Nic};
use weft_fuzz::{Reader, fuzz, hash};
use zerocopy::{FromBytes, IntoBytes};

use super::ring::poke;
use super::{Inbox, Node, join, raw, segment};
use crate::handshake::Role;
use crate::shm::handshake::{CHALLENGE, Frame, OFFER, REASON_DENIED, REASON_PROTOCOL, REFUSE};
use crate::shm::ring::MIN_LINES;
use crate::shm::segment::{LINE_BYTES, Mapping, segment_bytes};
use crate::shm::{ShmConfig, Slot, handshake};

/// Two endpoints with a link. The second one is hostile.
fn pair() -> (Node, Node, LinkId, LinkId) {
    let (mut victim, mut hostile) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (theirs, mine) = join(&mut hostile, &mut victim);
    (victim, hostile, mine, theirs)
}

/// Offset of the first ring, after the control words.
const RING_AT: usize = 4096;

/// A seed: words that are written (place, word), then a poll.
fn pokes(words: &[(usize, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for &(at, word) in words {
        out.push(0);
        out.extend(((at / 8) as u16).to_le_bytes());
        out.extend(word.to_le_bytes());
    }
    out.extend([1, 1]);
    out
}

/// For all words in the rings and control words, the victim does not panic, and ends that link at worst. The
/// data that it passes on is within the bounds of its contract.
#[test]
fn rings() {
    let record = |kind: u64, len: u64, line: u64| kind << 56 | len << 32 | line;
    let seeds = [
        pokes(&[(RING_AT + 8, 0x1122), (RING_AT, record(1, 16, 0)), (RING_AT + LINE_BYTES, record(1, 0, 1))]),
        pokes(&[(RING_AT + 8, 1), (RING_AT + 16, 0), (RING_AT + 64, 7), (RING_AT, record(2, 8, 0))]),
        pokes(&[(RING_AT, record(3, 0, 0))]),
        pokes(&[(0, 1), (128, 0), (256, 1), (384, 1), (1024, u64::MAX), (1088, u64::MAX)]),
        pokes(&[(RING_AT, record(1, 32_768, 0)), (RING_AT + 8, 5)]),
    ];
    let (mut victim, mut hostile, mut mine, mut theirs) = pair();
    let mut memory = Owned::new(vec![3; 100_000]);
    fuzz("shm-rings", &seeds, |input| {
        let mut seen = Vec::new();
        let mut reader = Reader(input);
        while !reader.is_empty() && seen.len() < 64 {
            match reader.byte() & 7 {
                1 => {
                    victim.poll();
                    seen.push(1);
                }
                2 => seen.push(2 + u8::from(victim.nic.send(mine, &[1; 40], &[]).is_ok())),
                3 => seen.push(4 + u8::from(victim.nic.push(mine, 1, 0, &[memory.iov()], 1).is_ok())),
                _ => {
                    let map = segment(&hostile, theirs);
                    let at = usize::from(u16::from_le_bytes([reader.byte(), reader.byte()])) * 8;
                    poke(map, at % map.len(), reader.word());
                }
            }
            let Inbox { messages, down, .. } = &mut victim.inbox;
            seen.extend(messages.drain(..).map(|(_, bytes)| bytes.len().min(255) as u8));
            if let Some((link, why)) = down.pop() {
                assert_eq!(link, mine);
                assert!(matches!(why, LinkError::Protocol | LinkError::Closed | LinkError::Gone), "{why}");
                seen.push(200);
                break;
            }
        }
        // The next input gets a fresh pair, independent of the errors of this one.
        (victim, hostile, mine, theirs) = pair();
        hash(&seen)
    });
}

/// Flag in the first byte of an input: the peer knows the capability.
const KNOWS: u8 = 1;
/// Mask in the first byte of a frame of an input: number of pieces that are changed.
const CHANGES: u8 = 3;
/// Flag: the length of the frame is changed.
const LENGTH: u8 = 4;
/// Flag: other files are sent with the frame.
const FILES: u8 = 8;

/// Maximum number of frames of an input.
const MOST_FRAMES: usize = 4;
/// The result of [`answer`] if no frame has arrived.
const SILENCE: u8 = 255;

/// An honest frame, some of whose bytes or whose length may be changed, and its files. The files are those of
/// `files` in the range `right`, or others that the input selects.
fn spoil<'a>(
    reader: &mut Reader<'_>,
    honest: &Frame,
    files: &'a [OwnedFd],
    right: Range<usize>,
) -> (Vec<u8>, Vec<BorrowedFd<'a>>) {
    let mut bytes = honest.as_bytes().to_vec();
    let mut with = raw::lent(&files[right]);
    let how = reader.byte();
    for _ in 0..how & CHANGES {
        let at = usize::from(reader.byte()) % bytes.len();
        let len = usize::from(reader.byte() & 15);
        bytes[at..].iter_mut().zip(reader.bytes(len)).for_each(|(to, from)| *to = *from);
    }
    if how & LENGTH != 0 {
        bytes.resize(usize::from(u16::from_le_bytes([reader.byte(), reader.byte()])) % 400, 0);
    }
    if how & FILES != 0 {
        let count = usize::from(reader.byte()) % (raw::MOST_FILES + 1);
        with = (0..count).map(|_| files[usize::from(reader.byte()) % files.len()].as_fd()).collect();
    }
    (bytes, with)
}

/// Files of all kinds. The first three are those of a valid offer.
fn all_files(name: &CStr) -> Vec<OwnedFd> {
    let mut files = Vec::from(raw::files(name));
    for len in [1, 4096 - 1, 4096 + 1, segment_bytes(MIN_LINES) - 64, 2 * segment_bytes(MIN_LINES)] {
        files.push(Mapping::create(name, len).unwrap().0);
    }
    for len in [0, 4096, segment_bytes(MIN_LINES)] {
        let loose = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, len as u64).unwrap();
        files.push(loose);
    }
    files.push(std::fs::File::open("/dev/null").unwrap().into());
    files
}

/// The frame that has arrived, and a summary of it in a byte.
fn answer(socket: &OwnedFd) -> (u8, Option<Frame>) {
    match handshake::receive(socket.as_fd()) {
        Ok(Some((frame, _))) => ((frame.kind * 16 + frame.reason) as u8, Some(frame)),
        Ok(None) => (SILENCE, None),
        Err(_) => (254, None),
    }
}

/// The seeds of [`handshakes`].
fn handshake_seeds() -> Vec<Vec<u8>> {
    let (lines, name, proof) =
        (offset_of!(Frame, lines) as u8, offset_of!(Frame, name) as u8, offset_of!(Frame, proof) as u8);
    let kind = offset_of!(Frame, kind) as u8;
    vec![
        // Valid; without the capability; with another proof.
        vec![KNOWS, 0, 0],
        vec![0, 0, 0],
        vec![KNOWS, 0, 1, proof, 2, 0, 0],
        // Not sealed, too short, too long, no file, too few files, more files than fit.
        vec![KNOWS, 0, FILES, 3, 10, 1, 2],
        vec![KNOWS, 0, FILES, 3, 6, 1, 2],
        vec![KNOWS, 0, FILES, 3, 0, 5, 4],
        vec![KNOWS, 0, FILES, 3, 0, 1, 11],
        vec![KNOWS, 0, FILES, 2, 0, 1],
        vec![KNOWS, 0, FILES, 5, 0, 1, 2, 2, 2],
        // A number of lines that is no power of two, too many lines; the name of another endpoint.
        vec![KNOWS, 0, 1, lines, 1, 1],
        vec![KNOWS, 0, 1, lines, 4, 0, 0, 0, 1],
        vec![KNOWS, 0, 1, name + 40, 1, 1],
        // Files with the first frame; another length, a caller of a service; frames out of turn.
        vec![KNOWS, FILES, 3, 0, 1, 2, 0],
        vec![KNOWS, LENGTH, 183, 0],
        vec![KNOWS, 1, kind + 4, 1, 4],
        vec![KNOWS, 1, kind, 1, 3],
    ]
}

/// Callers send arbitrary frames and files at any point of the handshake. No link is made without a proof,
/// and nothing is kept.
#[test]
fn handshakes() {
    const NAME: &CStr = c"weft-fuzz-caller";
    let files = all_files(NAME);
    let before = raw::held(NAME);
    let mut victim = Node::new(&ShmConfig::default());
    let (target, me) = (victim.nic.name(), super::name());
    // Counts inputs that are challenged, denied after that, refused with a valid proof, and linked.
    let mut reached = [0_u64; 4];
    fuzz("shm-handshakes", &handshake_seeds(), |input| {
        let mut reader = Reader(input);
        let capability = if reader.byte() & KNOWS != 0 { target.capability() } else { [0; 16] };
        let socket = raw::call(&target);
        let mut nonces = [[1; 32], [0; 32]];
        let (mut challenged, mut proven, mut seen) = (false, false, Vec::new());
        for turn in 0..MOST_FRAMES {
            let (bytes, with) = match turn {
                0 => spoil(&mut reader, &raw::hello(&nonces), &files, 0..0),
                _ => spoil(
                    &mut reader,
                    &raw::offer(&me, raw::proof(&capability, Role::Initiator, &nonces)),
                    &files,
                    0..3,
                ),
            };
            if let (0, Ok(frame)) = (turn, Frame::read_from_bytes(&bytes)) {
                nonces[0] = frame.nonce;
            }
            let right = raw::proof(&target.capability(), Role::Initiator, &nonces);
            proven |= challenged && Frame::read_from_bytes(&bytes).is_ok_and(|frame| frame.proof == right);
            raw::say(&socket, &bytes, &with);
            seen.push(with.len() as u8);
            for _ in 0..3 {
                let _ = victim.nic.check_control(&mut victim.inbox);
            }
            let (heard, frame) = answer(&socket);
            seen.push(heard);
            match frame {
                Some(frame) if frame.kind == CHALLENGE => {
                    (challenged, nonces[1]) = (true, frame.nonce);
                    reached[0] += 1;
                }
                Some(frame) if frame.kind == REFUSE => {
                    reached[1] += u64::from(challenged && frame.reason == REASON_DENIED);
                    reached[2] += u64::from(proven && frame.reason == REASON_PROTOCOL);
                    break;
                }
                None if heard == SILENCE => {}
                _ => break,
            }
        }
        if let Some((link, _)) = victim.inbox.up.pop() {
            assert!(proven, "a link without a proof");
            reached[3] += 1;
            // Any offer that was accepted makes a usable link.
            let sent = victim.nic.send(link, &[1; 40], &[]).is_ok();
            seen.extend([u8::from(sent), victim.poll() as u8]);
        }
        hang_up(socket, &mut victim);
        seen.extend(victim.inbox.down.drain(..).map(|(_, why)| why.number()));
        hash(&seen)
    });
    drop(victim);
    assert!(reached.iter().all(|&times| times > 0), "{reached:?}");
    assert_eq!(raw::held(NAME), before, "files or mappings are left");
}

/// The seeds of [`answers`].
fn answer_seeds() -> Vec<Vec<u8>> {
    let (proof, name) = (offset_of!(Frame, proof) as u8, offset_of!(Frame, name) as u8);
    let kind = offset_of!(Frame, kind) as u8;
    vec![
        // Valid; without the capability; with another proof.
        vec![KNOWS, 0, 0],
        vec![0, 0, 0],
        vec![KNOWS, 1, proof, 2, 0, 0],
        // Not sealed, too long, no file, too few files, one file too many.
        vec![KNOWS, 0, FILES, 2, 9, 2],
        vec![KNOWS, 0, FILES, 2, 1, 5],
        vec![KNOWS, 0, FILES, 2, 11, 2],
        vec![KNOWS, 0, FILES, 1, 1],
        vec![KNOWS, 0, FILES, 3, 1, 2, 2],
        // The name of another endpoint; a refusal; an acceptance at once; files at once; another length.
        vec![KNOWS, 0, 1, name + 40, 1, 1],
        vec![KNOWS, 0, 1, kind, 1, 5],
        vec![KNOWS, 1, kind, 1, 4],
        vec![KNOWS, FILES, 3, 0, 1, 2, 0],
        vec![KNOWS, LENGTH, 185, 0, 0],
    ]
}

/// A process listens at the address to which the victim connects, and answers arbitrarily. It gets no data of
/// the victim and no link without proving that it knows the capability.
#[test]
fn answers() {
    const NAME: &CStr = c"weft-fuzz-listener";
    let files = all_files(NAME);
    let before = raw::held(NAME);
    let mut victim = Node::new(&ShmConfig::default());
    let me = super::name();
    let listener = raw::listen(&me);
    // Counts inputs that are denied, offered, and linked.
    let mut reached = [0_u64; 3];
    fuzz("shm-answers", &answer_seeds(), |input| {
        let mut reader = Reader(input);
        let capability = if reader.byte() & KNOWS != 0 { me.capability() } else { [0; 16] };
        let link = victim.nic.connect(&me).unwrap();
        let socket = rustix::net::accept(&listener).unwrap();
        let (_, hello) = answer(&socket);
        let mut nonces = [hello.unwrap().nonce, [2; 32]];
        let (mut proven, mut seen) = (false, Vec::new());
        for turn in 0..MOST_FRAMES {
            let (bytes, with) = match turn {
                0 => spoil(
                    &mut reader,
                    &raw::challenge(&nonces, raw::proof(&capability, Role::Acceptor, &nonces)),
                    &files,
                    0..0,
                ),
                _ => spoil(&mut reader, &raw::acceptance(&me), &files, 1..3),
            };
            if let (0, Ok(frame)) = (turn, Frame::read_from_bytes(&bytes)) {
                nonces[1] = frame.nonce;
                proven = frame.proof == raw::proof(&me.capability(), Role::Acceptor, &nonces);
            }
            raw::say(&socket, &bytes, &with);
            seen.push(with.len() as u8);
            for _ in 0..3 {
                let _ = victim.nic.check_control(&mut victim.inbox);
            }
            let (heard, frame) = answer(&socket);
            seen.push(heard);
            if let Some(frame) = frame {
                assert!(proven, "kind {} to a peer without a proof", frame.kind);
                reached[1] += u64::from(frame.kind == OFFER);
            } else if heard != SILENCE || !victim.inbox.up.is_empty() {
                break;
            }
        }
        if let Some((up, _)) = victim.inbox.up.pop() {
            assert!(proven && up == link, "a link without a proof");
            reached[2] += 1;
            let sent = victim.nic.send(link, &[1; 40], &[]).is_ok();
            seen.extend([u8::from(sent), victim.poll() as u8]);
        }
        hang_up(socket, &mut victim);
        let (ended, why) = victim.inbox.down.pop().unwrap();
        assert!(ended == link && victim.inbox.down.is_empty());
        reached[0] += u64::from(why == LinkError::Denied);
        seen.push(why.number());
        hash(&seen)
    });
    drop(victim);
    assert!(reached.iter().all(|&times| times > 0), "{reached:?}");
    assert_eq!(raw::held(NAME), before, "files or mappings are left");
}

/// The other end of a handshake or of a link hangs up, and the victim keeps nothing of it.
fn hang_up(socket: OwnedFd, victim: &mut Node) {
    drop(socket);
    let _ = victim.nic.check_control(&mut victim.inbox);
    victim.poll();
    assert!(victim.nic.handshakes.is_empty());
    assert!(!victim.nic.links.iter().any(|slot| matches!(slot, Slot::Up(_))));
}
