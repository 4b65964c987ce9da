//! Fuzz targets: what a peer writes into the pair's memory, and what it says on the socket before that.

use std::os::fd::OwnedFd;

use weft_engine::mem::Owned;
use weft_engine::nic::{LinkError, LinkId, Nic};
use weft_fuzz::{Reader, fuzz, hash};

use super::ring::poke;
use super::{Inbox, Node, join};
use crate::shm::segment::{LINE_BYTES, Mapping};
use crate::shm::{ShmConfig, Slot, handshake};

fn segment(node: &Node, link: LinkId) -> &Mapping {
    match &node.nic.links[link.0 as usize] {
        Slot::Up(link) => link.segment(),
        _ => panic!("the link is not up"),
    }
}

/// Two endpoints with a link, of which the second plays the hostile one.
fn pair() -> (Node, Node, LinkId, LinkId) {
    let (mut victim, mut hostile) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (theirs, mine) = join(&mut hostile, &mut victim);
    (victim, hostile, mine, theirs)
}

/// Where the first ring begins, after the control words.
const RING_AT: usize = 4096;

/// A seed: what is poked (place, word), then a poll.
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

/// Whatever stands in rings and control words, the victim panics never and ends that link at worst, and what it hands on lies within
/// what it may be.
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
        // A fresh pair: what the last one says in the end is its own affair.
        (victim, hostile, mine, theirs) = pair();
        hash(&seen)
    });
}

/// Frames of any content and length at any point of the handshake: no link comes of them.
#[test]
fn handshakes() {
    let frame = |kind: u8, flags: u8| {
        let mut bytes = vec![0_u8; 184];
        bytes[..8].copy_from_slice(b"weft-shm");
        (bytes[8], bytes[12], bytes[16]) = (1, kind, flags);
        bytes
    };
    let seeds = [
        frame(1, 0),
        [frame(1, 0), frame(3, 0)].concat(),
        [frame(1, 4), frame(3, 3)].concat(),
        [frame(2, 0), frame(5, 0)].concat(),
    ];
    let mut victim = Node::new(&ShmConfig::default());
    let address = handshake::id_address(&victim.nic.name().ep_id());
    let address = rustix::net::SocketAddrUnix::new_abstract_name(&address).unwrap();
    fuzz("shm-handshakes", &seeds, |input| {
        let kind = rustix::net::SocketType::SEQPACKET;
        let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let mut answers = Vec::new();
        for frame in input.chunks(184) {
            let _ =
                rustix::net::send(&socket, frame, rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL);
            for _ in 0..3 {
                let _ = victim.nic.check_control(&mut victim.inbox);
            }
            answers.push(answer(&socket));
        }
        drop(socket);
        let _ = victim.nic.check_control(&mut victim.inbox);
        assert!(victim.inbox.up.is_empty(), "a link without a proof");
        assert!(victim.nic.handshakes.is_empty());
        hash(&answers)
    });
}

/// The kind of the frame that has come and its reason, 254 for a hang-up, 255 for nothing.
fn answer(socket: &OwnedFd) -> u8 {
    let mut frame = [0_u8; 184];
    match rustix::net::recv(socket, &mut frame, rustix::net::RecvFlags::DONTWAIT) {
        Ok((_, 0)) => 254,
        Ok(_) => frame[12] * 16 + frame[20],
        Err(_) => 255,
    }
}
