//! A peer that has connected correctly and then writes arbitrary bytes.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use weft_engine::mem::Owned;
use weft_engine::nic::{Layer, LinkError, Nic, Versions};
use zerocopy::IntoBytes;

use super::ring::poke;
use super::{Node, join, name, raw, segment, until};
use crate::handshake::Role;
use crate::shm::handshake::{ACCEPT, Frame, OFFER, REASON_DENIED, REASON_PROTOCOL, REFUSE};
use crate::shm::segment::{LINE_BYTES, second_at};
use crate::shm::{ShmConfig, Slot, handshake};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Random words are written to the segment while the victim polls, sends and pushes. They end the link at
/// worst.
#[test]
fn random_words_harm_only_the_link() {
    let mut random = Random(0xdead_beef_1234_5678);
    let mut ended = 0;
    for round in 0..60 {
        let (mut victim, mut hostile) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
        let (theirs, mine) = join(&mut hostile, &mut victim);
        let mut memory = Owned::new(vec![3; 1_000_000]);
        victim.nic.push(mine, 1, 0, &[memory.iov()], 1).unwrap();
        let map_bytes = segment(&hostile, theirs).len();
        for step in 0..300u64 {
            let map = segment(&hostile, theirs);
            // Many of the words are in the control words and in the first lines.
            let range = [1024, 4096 + 64 * LINE_BYTES, map_bytes][(random.next() % 3) as usize];
            let at = random.next() as usize % (range / 8) * 8;
            let word = [random.next(), (1 + random.next() % 3) << 56 | (random.next() % 40_000) << 32 | step]
                [(random.next() % 2) as usize];
            // Words after `closed` are unused; the rings are filled with plausible headers.
            poke(map, at, word);
            if round % 2 == 0 {
                let line = random.next() % 8;
                poke(map, 4096 + line as usize * LINE_BYTES, word & !0xffff_ffff | line);
            }
            victim.poll();
            let _ = victim.nic.send(mine, &[1; 40], &[]);
            if !victim.inbox.down.is_empty() {
                break;
            }
        }
        if let Some(&(link, why)) = victim.inbox.down.first() {
            assert_eq!((link, why), (mine, LinkError::Protocol));
            assert_eq!(victim.inbox.done.len(), 1, "`done` before `down`");
            ended += 1;
        }
        // The endpoint still accepts other links.
        let mut friend = Node::new(&ShmConfig::default());
        join(&mut friend, &mut victim);
    }
    assert!(ended > 10, "{ended}");
}

/// One peer overwrites the doorbell, which all peers share, while the victim sleeps. Other peers still wake
/// the victim, and it finds their messages. Peers cannot write the announcement of the sleep.
#[test]
fn a_spoiled_doorbell_loses_no_message() {
    let (mut victim, mut hostile) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let mut friend = Node::new(&ShmConfig::default());
    let (theirs, _) = join(&mut hostile, &mut victim);
    let (near, _) = join(&mut friend, &mut victim);
    let Slot::Up(link) = &hostile.nic.links[theirs.0 as usize] else { panic!("the link is not up") };
    let bell = link.bell().map();
    let mut random = Random(0x5eed_0000_1234_5678);
    for turn in 1..=300 {
        while !victim.nic.park() {
            victim.poll();
        }
        friend.nic.send(near, b"from a friend", &[]).unwrap();
        for at in 0..4096 / 8 {
            poke(bell, at * 8, if turn % 2 == 0 { 0 } else { random.next() });
        }
        let mut fds = [PollFd::from_borrowed_fd(victim.nic.wait_fd(), PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "turn {turn}: asleep");
        victim.nic.wake();
        victim.poll();
        victim.poll();
        assert_eq!(victim.inbox.messages.len(), turn);
    }
    assert!(victim.inbox.down.is_empty());
    let sleep_page = bell.base().as_ptr().wrapping_add(second_at(4096));
    // SAFETY: the call changes the protection of a mapped page, if that is allowed.
    let writable = unsafe { libc::mprotect(sleep_page.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(writable, -1);
    let [_, file] = victim.nic.door.files();
    // SAFETY: a new mapping touches no existing memory.
    let map = unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
    assert_eq!(map.unwrap_err(), rustix::io::Errno::PERM);
    assert!(rustix::io::write(file, &[1]).is_err());
}

/// The consumer claims to have consumed lines that were never sent.
#[test]
fn an_impossible_position_ends_the_link() {
    let (mut victim, mut hostile) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (theirs, mine) = join(&mut hostile, &mut victim);
    // The hostile side is the initiator, whose block is the first.
    poke(segment(&hostile, theirs), 0, u64::MAX);
    while victim.nic.send(mine, &[1; 40], &[]).is_ok() {}
    until("end", &mut [&mut victim], |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(victim.inbox.down, [(mine, LinkError::Protocol)]);
}

/// The victim waits for space and is about to sleep when the position becomes impossible. No peer would wake
/// it.
#[test]
fn an_impossible_position_ends_a_wait_for_space() {
    let (mut victim, mut hostile) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (theirs, mine) = join(&mut hostile, &mut victim);
    while victim.nic.send(mine, &[1; 40], &[]).is_ok() {}
    poke(segment(&hostile, theirs), 0, u64::MAX);
    assert!(!victim.nic.park());
    assert!(victim.nic.send(mine, &[1; 40], &[]).is_err(), "the engine retries the send");
    victim.poll();
    assert_eq!(victim.inbox.down, [(mine, LinkError::Protocol)]);
}

/// Invalid bytes on the life line end the link.
#[test]
fn rubbish_on_the_life_line_ends_the_link() {
    let (mut victim, mut hostile) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (theirs, mine) = join(&mut hostile, &mut victim);
    if let Slot::Up(link) = &hostile.nic.links[theirs.0 as usize] {
        rustix::net::send(link.socket(), b"rubbish", rustix::net::SendFlags::DONTWAIT).unwrap();
    }
    until("end", &mut [&mut victim], |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(victim.inbox.down, [(mine, LinkError::Protocol)]);
}

/// Connections that send nothing, nonsense, or half of a handshake. They get no link and keep no memory, and
/// other peers are served.
#[test]
fn nonsense_in_the_handshake_is_refused() {
    let mut victim = Node::new(&ShmConfig { answer_timeout_ms: 300, ..ShmConfig::default() });
    let target = victim.nic.name();
    let mut sockets = Vec::new();
    let mut random = Random(99);
    for n in 0..200u64 {
        let socket = raw::call(&target);
        let bytes: Vec<u8> = (0..[0, 1, 184, 4000][n as usize % 4]).map(|_| random.next() as u8).collect();
        if !bytes.is_empty() {
            rustix::net::send(&socket, &bytes, rustix::net::SendFlags::DONTWAIT).unwrap();
        }
        sockets.push(socket);
        victim.poll();
    }
    let mut friend = Node::new(&ShmConfig::default());
    join(&mut friend, &mut victim);
    until("time-outs", &mut [&mut victim], |nodes| nodes[0].nic.handshakes.is_empty());
    assert_eq!(victim.inbox.up.len(), 1);
    assert!(victim.inbox.down.is_empty());
    assert!(sockets.iter().all(|socket| socket.as_fd().try_clone_to_owned().is_ok()));
}

/// A caller follows the handshake up to an invalid proof. It gets no link, and nothing of it is kept.
#[test]
fn a_wrong_proof_is_denied() {
    const NAME: &CStr = c"weft-wrong-proof";
    let mut victim = Node::new(&ShmConfig::default());
    let (target, me) = (victim.nic.name(), name());
    let files = raw::files(NAME);
    let nothing = raw::held(NAME);
    let mut nonces = [[5; 32], [0; 32]];
    let mut recorded = None;
    // The valid proof; the same again, with the same nonce of the caller; the acceptor's proof; the proof for
    // another capability; the valid proof again.
    for turn in 0..5 {
        let socket = raw::call(&target);
        raw::say(&socket, raw::hello(&nonces).as_bytes(), &[]);
        nonces[1] = hear(&socket, &mut victim).nonce;
        let honest = raw::proof(&target.capability(), Role::Initiator, &nonces);
        let proof = match turn {
            0 | 4 => honest,
            1 => recorded.unwrap(),
            2 => raw::proof(&target.capability(), Role::Acceptor, &nonces),
            _ => raw::proof(&me.capability(), Role::Initiator, &nonces),
        };
        recorded = recorded.or(Some(proof));
        raw::say(&socket, raw::offer(&me, proof).as_bytes(), &raw::lent(&files));
        let verdict = hear(&socket, &mut victim);
        if proof == honest {
            assert_eq!((verdict.kind, victim.inbox.up.pop().is_some()), (ACCEPT, true), "{turn}");
            assert_ne!(raw::held(NAME), nothing, "{turn}: the offered files are mapped");
            drop(socket);
            until("end", &mut [&mut victim], |nodes| nodes[0].inbox.down.pop().is_some());
        } else {
            assert_eq!((verdict.kind, verdict.reason), (REFUSE, REASON_DENIED), "{turn}");
        }
        assert!(victim.inbox.up.is_empty() && victim.inbox.down.is_empty() && victim.nic.handshakes.is_empty());
        assert_eq!(raw::held(NAME), nothing, "{turn}");
    }
    join(&mut Node::new(&ShmConfig::default()), &mut victim);
}

/// A listener follows the handshake up to an invalid proof. It gets neither the victim's name nor its
/// descriptors.
#[test]
fn a_listeners_wrong_proof_is_denied() {
    let mut victim = Node::new(&ShmConfig::default());
    let wanted = name();
    let listener = raw::listen(&wanted);
    // The valid proof; the same again, with the same nonce of the listener; a caller's proof; the proof for
    // another capability; the valid proof again.
    let mut recorded = None;
    for turn in 0..5 {
        let link = victim.nic.connect(&wanted).unwrap();
        let socket = rustix::net::accept(&listener).unwrap();
        let nonces = [hear(&socket, &mut victim).nonce, [6; 32]];
        let honest = raw::proof(&wanted.capability(), Role::Acceptor, &nonces);
        let proof = match turn {
            0 | 4 => honest,
            1 => recorded.unwrap(),
            2 => raw::proof(&wanted.capability(), Role::Initiator, &nonces),
            _ => raw::proof(&[0; 16], Role::Acceptor, &nonces),
        };
        recorded = recorded.or(Some(proof));
        raw::say(&socket, raw::challenge(&nonces, proof).as_bytes(), &[]);
        if proof == honest {
            assert_eq!(hear(&socket, &mut victim).kind, OFFER, "{turn}");
            victim.nic.close(link);
        } else {
            until("denial", &mut [&mut victim], |nodes| !nodes[0].inbox.down.is_empty());
            assert_eq!(victim.inbox.down.pop(), Some((link, LinkError::Denied)), "{turn}");
            assert_eq!(handshake::receive(socket.as_fd()).err(), Some(LinkError::Gone), "{turn}: nothing was sent");
        }
    }
    assert!(victim.inbox.up.is_empty() && victim.nic.handshakes.is_empty());
}

/// Receives the next frame.
fn hear(socket: &OwnedFd, victim: &mut Node) -> Frame {
    let mut frame = None;
    until("answer", &mut [victim], |_| {
        frame = handshake::receive(socket.as_fd()).unwrap().map(|(frame, _)| frame);
        frame.is_some()
    });
    frame.unwrap()
}

/// Endpoints with different job keys do not connect, and endpoints with the same key do.
#[test]
fn job_keys_must_agree() {
    let with = |key| ShmConfig { job_key: [key; 32], ..ShmConfig::default() };
    let (mut a, mut b, mut c) = (Node::new(&with(1)), Node::new(&with(1)), Node::new(&with(2)));
    join(&mut a, &mut b);
    c.nic.connect(&b.nic.name()).unwrap();
    until("denial", &mut [&mut b, &mut c], |nodes| !nodes[1].inbox.down.is_empty());
    assert_eq!(c.inbox.down[0].1, LinkError::Denied);
    assert_eq!(b.inbox.up.len(), 1);
}

/// Endpoints of different versions do not connect, and both sides know the version of the other. The frames of another
/// version may have another length.
#[test]
fn other_versions_are_named() {
    let of_version = |version| Node::new(&ShmConfig { version, ..ShmConfig::default() });
    let versions = |ours, theirs| LinkError::Version(Versions { layer: Layer::Shm, ours, theirs });
    let (mut old, mut new) = (of_version(3), of_version(4));
    for (ours, theirs) in [(3, 4), (4, 3)] {
        let (from, to) = if ours == 3 { (&mut old, &mut new) } else { (&mut new, &mut old) };
        let link = from.nic.connect(&to.nic.name()).unwrap();
        let denied = to.nic.control.denied;
        until("refusal", &mut [&mut *from, &mut *to], |nodes| !nodes[0].inbox.down.is_empty());
        assert_eq!(from.inbox.down.pop(), Some((link, versions(ours, theirs))));
        assert_eq!(to.nic.control.denied, denied + 1, "the called side has said so, too");
    }
    let socket = raw::call(&old.nic.name());
    let mut hello = raw::hello(&[[5; 32], [0; 32]]).as_bytes().to_vec();
    hello[8..12].copy_from_slice(&300_u32.to_ne_bytes());
    raw::say(&socket, &hello[..40], &[]);
    let answer = hear(&socket, &mut old);
    assert_eq!((answer.kind, answer.reason), (REFUSE, REASON_PROTOCOL));
    assert_eq!(answer.as_bytes()[8..12], 3_u32.to_ne_bytes());
    assert_eq!(old.nic.control.denied, 2);
}

/// The number of silent connections exceeds the limit of handshakes. An honest peer still connects.
#[test]
fn silent_connections_exclude_no_peer() {
    let mut victim = Node::new(&ShmConfig { answer_timeout_ms: 60_000, ..ShmConfig::default() });
    let target = victim.nic.name();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let bound = limit.current.map_or(1024, |limit| 1024.min(limit as usize / 8));
    let mut sockets = Vec::new();
    for _ in 0..bound + bound / 2 {
        sockets.push(raw::call(&target));
        for _ in 0..20 {
            victim.poll();
        }
    }
    until("the bound", &mut [&mut victim], |nodes| nodes[0].nic.handshakes.len() >= bound);
    let mut friend = Node::new(&ShmConfig::default());
    join(&mut friend, &mut victim);
    assert!(victim.nic.handshakes.len() <= bound);
}
