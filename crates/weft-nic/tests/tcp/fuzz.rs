//! Fuzz targets: what strangers say before they have proven anything, and what a peer says that has.
//!
//! What only this run knows stands in inputs as a mark ([`ID`], [`SESSION`], [`PROOF`]), so that stored
//! inputs get as far in every run. Each target asserts in the end how far its inputs have come: where seeds
//! are refused at the first byte, it shows nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId};
use weft_fuzz::{Reader, fuzz, hash};
use weft_nic::handshake::{Key, Role};
use weft_nic::{Tcp, TcpConfig};

use super::suite::{Inbox, Window};
use super::{Node, config, moved, open, parts, raw, world};

/// So many polls look three times at what half-open connections say: beside a link they are asked for in one
/// poll of 64.
const LOOKS: usize = 3 * 64;
/// The endpoint's id.
const ID: [u8; 16] = [b'i'; 16];
/// The number of the session that is there to be carried on.
const SESSION: u64 = u64::from_le_bytes([b's'; 8]);
/// The proof that is right in this dialogue.
const PROOF: [u8; 32] = [b'p'; 32];

fn settings() -> TcpConfig {
    // Inputs that say half a hello shall not last.
    TcpConfig { half_open: 8, ..config() }
}

/// The same in every run: its name stands in stored inputs.
fn stranger() -> EpName {
    let capability = [7; 16];
    EpName::full(&NameParts { capability, ep_id: endpoint_id(&capability), ..parts("127.0.0.1") })
}

/// Puts `what` in the place of `mark`, if that stands at `at`. Returns whether it did.
fn put(bytes: &mut [u8], at: usize, mark: &[u8], what: &[u8]) -> bool {
    let place = bytes.get_mut(at..at + mark.len()).filter(|place| *place == mark);
    place.map(|place| place.copy_from_slice(what)).is_some()
}

/// What has come, up to `buffer`'s length, without waiting. Nothing: the end, or nothing yet, which `ended`
/// tells apart.
fn heard(stream: &mut TcpStream, buffer: &mut [u8]) -> (usize, bool) {
    stream.set_nonblocking(true).unwrap();
    let outcome = stream.read(buffer);
    stream.set_nonblocking(false).unwrap();
    (outcome.as_ref().map_or(0, |n| *n), matches!(outcome, Ok(0)))
}

/// Waits for so many bytes and reads them.
fn await_bytes<const N: usize>(node: &mut Node<Tcp>, stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.set_nonblocking(true).unwrap();
    while stream.peek(&mut bytes).unwrap_or(0) < N {
        node.poll();
    }
    stream.set_nonblocking(false).unwrap();
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// The handshake of a peer that plays both sides.
fn join(node: &mut Node<Tcp>, me: &EpName, target: &EpName) -> raw::Joined {
    let mut stream = raw::dial(target.socket());
    let hello = raw::hello(me, target);
    stream.write_all(&hello).unwrap();
    let answer = await_bytes::<{ raw::ANSWER }>(node, &mut stream);
    let key = Key::new(&target.capability(), None);
    let finish = raw::finish(me, &key, &hello, &answer);
    stream.write_all(&finish).unwrap();
    assert_eq!(await_bytes::<{ raw::VERDICT }>(node, &mut stream)[0], 0);
    let (number, key) = key.session(&[&hello, &answer[..raw::PROOF_AT], &finish[..16], &me.capability()]);
    raw::Joined { stream, target: *target, number, key }
}

/// Frames of a peer: the link ends with the peer, or because of a breach of the protocol; what is pushed
/// stays in its window.
#[test]
fn frames() {
    // The first byte says in what pieces the others arrive.
    let seed = |pieces: u8, frames: &[Vec<u8>]| [vec![pieces], frames.concat()].concat();
    let seeds = [
        seed(255, &[raw::frame(1, b"a message")]),
        seed(255, &[raw::frame(1, b""), raw::segment(5, 0, &[7; 100]), raw::frame(1, &[1; 300])]),
        seed(255, &[raw::segment(5, 0, &[7; 100]), raw::segment(5, 100, &[8; 100]), raw::frame(3, b"")]),
        seed(1, &[raw::frame(1, b"in pieces"), raw::segment(5, 0, &[7; 100]), raw::frame(3, b"")]),
        seed(255, &[raw::frame(4, &[0; 8])]),
        seed(255, &[raw::frame(1, b""), raw::segment(1, u64::MAX, b"xx")]),
    ];
    let mut world = world(&settings(), 1);
    let (target, me) = (world.nodes[0].name(), stranger());
    let (mut whole, mut full, mut closed, mut breaches) = (0, 0, 0, 0);
    fuzz("tcp-frames", &seeds, |input| {
        let mut reader = Reader(input);
        let node = &mut world.nodes[0];
        node.inbox = Inbox::default();
        node.inbox.windows.insert(5, Window::new(200));
        node.inbox.from_anybody = true;
        let mut stream = join(node, &me, &target).stream;
        let cut = usize::from(reader.byte()).max(1) * 4;
        for piece in reader.0.chunks(cut) {
            if stream.write_all(piece).is_err() {
                break;
            }
            node.poll();
        }
        drop(stream);
        let start = Instant::now();
        while node.inbox.down.is_empty() {
            node.poll();
            assert!(start.elapsed() < Duration::from_secs(4), "the link does not end");
        }
        let why = node.inbox.down[0].1;
        assert!(matches!(why, LinkError::Protocol | LinkError::Closed | LinkError::Gone), "{why}");
        whole += node.inbox.messages.len();
        full += usize::from(node.inbox.windows[&5].full());
        closed += usize::from(why == LinkError::Closed);
        breaches += usize::from(why == LinkError::Protocol && !node.inbox.messages.is_empty());
        let mut seen: Vec<u8> = node.inbox.messages.iter().map(|(_, bytes)| bytes.len().min(255) as u8).collect();
        seen.extend([254, why as u8, node.inbox.windows[&5].placed.min(255) as u8]);
        hash(&seen)
    });
    let depth = [whole, full, closed, breaches];
    assert!(depth.iter().all(|&n| n > 0), "messages, whole pushes, goodbyes, breaches after a message: {depth:?}");
}

/// What comes before a proof: never a link. Nor does it touch the link that is there, which only its own peer
/// carries on.
#[test]
fn hellos() {
    let mut world = world(&settings(), 1);
    let (target, me) = (world.nodes[0].name(), stranger());
    let mut good = raw::hello(&me, &target);
    good[96..].copy_from_slice(&ID);
    let mut service = good;
    service[9] = 0;
    let again = raw::hello_again(SESSION, &ID);
    // How far the epoch is raised, the position, and a proof.
    let finish =
        |epoch: u64, position: u64, proof: &[u8]| [&epoch.to_le_bytes(), &position.to_le_bytes(), proof].concat();
    let seeds = [
        good.to_vec(),
        [&good[..], &[9; raw::FINISH]].concat(),
        service.to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [&again[..], &finish(1, 0, &PROOF)].concat(),
        [&again[..], &finish(1, 0, &[9; 32])].concat(),
        [&again[..], &finish(u64::MAX, 0, &PROOF)].concat(),
        [&again[..], &finish(1, 1000, &PROOF)].concat(),
        [&raw::hello_again(!SESSION, &ID)[..], &finish(1, 0, &PROOF)].concat(),
    ];
    let mut session: Option<(raw::Joined, LinkId)> = None;
    let mut dialled = 0;
    // Plain ones and returning ones that were judged by their proof and denied, late ones, and those that
    // carried the link on.
    let (mut denied, mut stolen, mut late, mut carried) = (0, 0, 0, 0);
    fuzz("tcp-hellos", &seeds, |input| {
        let node = &mut world.nodes[0];
        let (joined, link) = session.get_or_insert_with(|| {
            dialled += 1;
            let joined = join(node, &me, &target);
            (joined, *node.inbox.order.last().unwrap())
        });
        let link = *link;
        let mut bytes = input.to_vec();
        // Whoever has seen the endpoint's public name knows its id, and whoever has seen a handshake the
        // session's number.
        put(&mut bytes, 96, &ID, &target.ep_id());
        put(&mut bytes, 32, &SESSION.to_le_bytes(), &joined.number.to_le_bytes());
        let (hello, finish) = bytes.split_at_mut(input.len().min(raw::HELLO));
        let mut stream = raw::dial(target.socket());
        let _ = stream.write_all(hello);
        // While half-open connections crowd, few are accepted at a time; what nobody accepts fills the kernel's queue.
        dialled += 1;
        let met = |node: &Node<Tcp>| {
            let stats = node.nic.stats();
            stats.refused + stats.half_open as u64 + stats.links_up + stats.resumed
        };
        while met(node) < dialled {
            node.poll();
        }
        for _ in 0..LOOKS {
            node.poll();
        }
        let mut answer = [0; raw::ANSWER];
        let (said, hung_up) = heard(&mut stream, &mut answer);
        let returns = hello.get(9).is_some_and(|flags| flags & 2 != 0);
        let mut proven = false;
        if returns && said == raw::ANSWER && answer[9] == 0 && finish.len() >= raw::FINISH {
            // The endpoint has told the session's epoch.
            let epoch = u64::from_le_bytes(answer[32..40].try_into().unwrap());
            let raised = epoch.wrapping_add(u64::from_le_bytes(finish[..8].try_into().unwrap()));
            finish[..8].copy_from_slice(&raised.to_le_bytes());
            let proof = joined.key.proof(Role::Initiator, &[&*hello, &answer[..raw::PROOF_AT], &finish[..16]]);
            proven = put(finish, 16, &PROOF, &proof);
        }
        let _ = stream.write_all(finish);
        for _ in 0..LOOKS {
            node.poll();
        }
        let mut verdict = [9; 16];
        let (told, _) = heard(&mut stream, &mut verdict);
        let inbox = &mut node.inbox;
        let goes_on = returns && told == 16 && verdict[0] == 0;
        assert!(!goes_on || proven, "a link is carried on without a proof");
        denied += usize::from(!returns && verdict[0] == 3);
        stolen += usize::from(returns && verdict[0] == 3);
        late += usize::from(verdict[0] == 5);
        if goes_on {
            // It is this connection's now, and ends if that says what breaks the rules, or goodbye.
            let ends = |&(of, why): &(LinkId, _)| of == link && matches!(why, LinkError::Protocol | LinkError::Closed);
            assert!(inbox.down.iter().all(ends), "{:?}", inbox.down);
            carried += usize::from(inbox.down.is_empty());
            let simple = finish.len() == raw::FINISH && finish[4..8] == [0; 4] && finish[3] < 128;
            if simple && inbox.down.is_empty() {
                std::mem::swap(&mut stream, &mut joined.stream);
            } else {
                // Epochs come to their end, and what is behind the finish are frames.
                node.close(link);
                node.inbox = Inbox::default();
                session = None;
            }
        } else {
            assert!(inbox.up.len() == 1 && inbox.down.is_empty());
        }
        drop(stream);
        for _ in 0..LOOKS {
            world.nodes[0].poll();
        }
        hash(&[u8::from(hung_up), said as u8, answer[9], told as u8, verdict[0], u8::from(goes_on), u8::from(proven)])
    });
    let depth = [denied, stolen, late, carried];
    assert!(depth.iter().all(|&n| n > 0), "denied, denied a link, late, carried on: {depth:?}");
    if let Some((joined, link)) = &mut session {
        joined.stream.write_all(&raw::frame(1, b"still here")).unwrap();
        world.until("the link's message", |nodes| nodes[0].take_messages(*link) == [b"still here"]);
    }
}

/// What somebody answers who listens at a peer's address: without a proof the attempt fails, says why, and
/// tells no more of itself.
#[test]
fn answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = moved(&stranger(), listener.local_addr().unwrap());
    let key = Key::new(&peer.capability(), None);
    // As long as a verdict, with its status.
    let verdict = |status: u8| [status, 0, 0, 0, 0, 0, 0, 0];
    let wrong = raw::answer(&peer);
    let mut right = wrong;
    right[raw::PROOF_AT..].copy_from_slice(&PROOF);
    let refused = |status: u8| {
        let mut answer = wrong;
        answer[9] = status;
        answer.to_vec()
    };
    let mut other = right;
    other[32..96].copy_from_slice(&weft_nic::handshake::public_part(&EpName::full(&parts("127.0.0.1"))));
    let seeds = [
        [&right[..], &verdict(0)].concat(),
        [&right[..], &verdict(3)].concat(),
        right.to_vec(),
        other.to_vec(),
        [&wrong[..], &verdict(0)].concat(),
        refused(2),
        refused(3),
        refused(6),
        wrong[..100].to_vec(),
        b"220 mail ESMTP\r\n".to_vec(),
    ];
    let mut node = Node::new(open(&TcpConfig { connect_retry_ms: 0, resume_ms: 0, ..settings() }));
    // Answers with a wrong proof, and with the right one; links.
    let (mut judged, mut proven, mut links) = (0, 0, 0);
    fuzz("tcp-answers", &seeds, |input| {
        let link = node.connect(&peer);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let hello = await_bytes::<{ raw::HELLO }>(&mut node, &mut stream);
        let mut bytes = input.to_vec();
        let proof = key.proof(Role::Acceptor, &[&hello, &bytes[..bytes.len().min(raw::PROOF_AT)]]);
        let is_right = put(&mut bytes, raw::PROOF_AT, &PROOF, &proof);
        let _ = stream.write_all(&bytes);
        for _ in 0..3 {
            node.poll();
        }
        let (finish, _) = heard(&mut stream, &mut [0; raw::FINISH]);
        assert!(is_right || (finish == 0 && node.inbox.order.is_empty()), "it believes who has proven nothing");
        let ups = node.inbox.order.len();
        let outcome = match node.inbox.down.pop() {
            Some((ended, why)) => {
                assert_eq!(ended, link);
                let passes = bytes.len() >= raw::ANSWER && bytes[8..10] == [raw::VERSION, 0];
                judged += usize::from(passes && !is_right && why == LinkError::Denied);
                10 + why as u8
            }
            None => {
                // It waits for the rest, would call again, or is up.
                node.close(link);
                1
            }
        };
        proven += usize::from(finish == raw::FINISH);
        links += ups;
        node.inbox = Inbox::default();
        hash(&[outcome, finish as u8, ups as u8])
    });
    let depth = [judged, proven, links];
    assert!(depth.iter().all(|&n| n > 0), "wrong proofs, right proofs, links: {depth:?}");
}
