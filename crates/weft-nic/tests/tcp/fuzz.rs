//! Fuzz targets: the bytes of strangers without a proof, and those of a proven peer.
//!
//! Values that only the current run knows are represented in inputs by marks ([`ID`], [`SESSION`], [`PROOF`]), so that
//! stored inputs reach equally far in every run. Each target finally asserts how far its inputs have come: seeds that
//! are refused at the first byte would prove nothing.

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

/// The number of polls that read half-open connections three times: beside a link they are polled once in 64 polls.
const LOOKS: usize = 3 * 64;
/// The endpoint's id.
const ID: [u8; 16] = [b'i'; 16];
/// The number of the session that can be resumed.
const SESSION: u64 = u64::from_le_bytes([b's'; 8]);
/// The right proof of the dialogue.
const PROOF: [u8; 32] = [b'p'; 32];

fn settings() -> TcpConfig {
    // Inputs with half a hello must not hold a place for long.
    TcpConfig { half_open: 8, ..config() }
}

/// A name that is the same in every run, because stored inputs contain it.
fn stranger() -> EpName {
    let capability = [7; 16];
    EpName::full(&NameParts { capability, ep_id: endpoint_id(&capability), ..parts("127.0.0.1") })
}

/// Replaces `mark` at offset `at` by `what`. Returns whether the mark was there.
fn put(bytes: &mut [u8], at: usize, mark: &[u8], what: &[u8]) -> bool {
    let place = bytes.get_mut(at..at + mark.len()).filter(|place| *place == mark);
    place.map(|place| place.copy_from_slice(what)).is_some()
}

/// Reads the available bytes, up to `buffer`'s length, without waiting. Returns their number, and whether the stream
/// has ended.
fn heard(stream: &mut TcpStream, buffer: &mut [u8]) -> (usize, bool) {
    stream.set_nonblocking(true).unwrap();
    let outcome = stream.read(buffer);
    stream.set_nonblocking(false).unwrap();
    (outcome.as_ref().map_or(0, |n| *n), matches!(outcome, Ok(0)))
}

/// Waits for `N` bytes and reads them.
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

/// Makes the handshake of a peer in the thread that also polls the endpoint.
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

/// The frames of a peer: the link ends with the peer, or by a breach of the protocol. Pushed bytes stay within their
/// window.
#[test]
fn frames() {
    // The first byte determines the sizes in which the others arrive.
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
        seen.extend([254, why.number(), node.inbox.windows[&5].placed.min(255) as u8]);
        hash(&seen)
    });
    let depth = [whole, full, closed, breaches];
    assert!(depth.iter().all(|&n| n > 0), "messages, whole pushes, goodbyes, breaches after a message: {depth:?}");
}

/// Bytes without a proof never make a link. Nor do they affect the existing link, which only its own peer can resume.
#[test]
fn hellos() {
    let mut world = world(&settings(), 1);
    let (target, me) = (world.nodes[0].name(), stranger());
    let node = world.nodes.remove(0);
    let mut hellos = Hellos { node, target, me, session: None, met: 0, depth: Depth::default() };
    fuzz("tcp-hellos", &hello_seeds(&me, &target), |input| hellos.try_input(input));
    let Hellos { node, session, depth, .. } = hellos;
    let reached = [depth.denied, depth.stolen, depth.late, depth.resumed];
    assert!(reached.iter().all(|&n| n > 0), "{depth:?}");
    world.nodes.push(node);
    if let Some((mut joined, link)) = session {
        joined.stream.write_all(&raw::frame(1, b"still here")).unwrap();
        world.until("the link's message", |nodes| nodes[0].take_messages(link) == [b"still here"]);
    }
}

fn hello_seeds(me: &EpName, target: &EpName) -> [Vec<u8>; 9] {
    let mut good = raw::hello(me, target);
    good[96..].copy_from_slice(&ID);
    let mut service = good;
    service[9] = 0;
    let again = raw::hello_again(SESSION, &ID);
    // The increment of the epoch, the position, and a proof.
    let finish =
        |epoch: u64, position: u64, proof: &[u8]| [&epoch.to_le_bytes(), &position.to_le_bytes(), proof].concat();
    [
        good.to_vec(),
        [&good[..], &[9; raw::FINISH]].concat(),
        service.to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [&again[..], &finish(1, 0, &PROOF)].concat(),
        [&again[..], &finish(1, 0, &[9; 32])].concat(),
        [&again[..], &finish(u64::MAX, 0, &PROOF)].concat(),
        [&again[..], &finish(1, 1000, &PROOF)].concat(),
        [&raw::hello_again(!SESSION, &ID)[..], &finish(1, 0, &PROOF)].concat(),
    ]
}

/// The numbers of inputs of [`hellos`] that reached a judgement.
#[derive(Debug, Default)]
struct Depth {
    /// New links whose proof was judged and denied.
    denied: usize,
    /// Resumptions whose proof was judged and denied.
    stolen: usize,
    /// Resumptions with an outdated epoch.
    late: usize,
    /// Resumptions of the link.
    resumed: usize,
}

/// An endpoint under test, and the peer of its link.
struct Hellos {
    node: Node<Tcp>,
    target: EpName,
    me: EpName,
    session: Option<(raw::Joined, LinkId)>,
    /// Connections that the endpoint must have accepted.
    met: u64,
    depth: Depth,
}

impl Hellos {
    /// Sends an input on a connection of its own. Returns a hash of the endpoint's behaviour.
    fn try_input(&mut self, input: &[u8]) -> u64 {
        let (joined, link) = self.session.get_or_insert_with(|| {
            self.met += 1;
            let joined = join(&mut self.node, &self.me, &self.target);
            (joined, *self.node.inbox.order.last().unwrap())
        });
        let (key, link) = (joined.key.clone(), *link);
        let mut bytes = input.to_vec();
        // A stranger may have seen the endpoint's public name with its id, and the session's number in a handshake.
        put(&mut bytes, 96, &ID, &self.target.ep_id());
        put(&mut bytes, 32, &SESSION.to_le_bytes(), &joined.number.to_le_bytes());
        let (hello, finish) = bytes.split_at_mut(input.len().min(raw::HELLO));
        let mut stream = self.offer(hello);
        let mut answer = [0; raw::ANSWER];
        let (said, hung_up) = heard(&mut stream, &mut answer);
        let returns = hello.get(9).is_some_and(|flags| flags & 2 != 0);
        let answered = returns && said == raw::ANSWER && answer[9] == 0;
        let proven = answered && finish.len() >= raw::FINISH && prove(&key, hello, &answer, finish);
        let _ = stream.write_all(finish);
        self.look();
        let mut verdict = [9; 16];
        let (told, _) = heard(&mut stream, &mut verdict);
        let resumed = returns && told == 16 && verdict[0] == 0;
        assert!(!resumed || proven, "a link is resumed without a proof");
        self.depth.denied += usize::from(!returns && verdict[0] == 3);
        self.depth.stolen += usize::from(returns && verdict[0] == 3);
        self.depth.late += usize::from(verdict[0] == 5);
        if resumed {
            self.resumed(link, stream, finish);
        } else {
            assert!(self.node.inbox.up.len() == 1 && self.node.inbox.down.is_empty());
            drop(stream);
        }
        self.look();
        hash(&[u8::from(hung_up), said as u8, answer[9], told as u8, verdict[0], u8::from(resumed), u8::from(proven)])
    }

    /// Sends a hello, and polls until the endpoint has read it.
    fn offer(&mut self, hello: &[u8]) -> TcpStream {
        let mut stream = raw::dial(self.target.socket());
        let _ = stream.write_all(hello);
        // While half-open connections crowd, few are accepted at a time; the others fill the kernel's queue.
        self.met += 1;
        let met = |node: &Node<Tcp>| {
            let stats = node.nic.stats();
            stats.refused + stats.half_open as u64 + stats.links_up + stats.resumed
        };
        while met(&self.node) < self.met {
            self.node.poll();
        }
        self.look();
        stream
    }

    /// Polls until the endpoint has read all half-open connections.
    fn look(&mut self) {
        for _ in 0..LOOKS {
            self.node.poll();
        }
    }

    /// The link belongs to `stream` now. It ends if the bytes after the finish break a rule, or are a goodbye.
    fn resumed(&mut self, link: LinkId, mut stream: TcpStream, finish: &[u8]) {
        let down = &self.node.inbox.down;
        let ends = |&(of, why): &(LinkId, _)| of == link && matches!(why, LinkError::Protocol | LinkError::Closed);
        assert!(down.iter().all(ends), "{down:?}");
        let lives = down.is_empty();
        self.depth.resumed += usize::from(lives);
        // A high epoch leaves no room for others, and bytes after the finish are frames.
        let simple = finish.len() == raw::FINISH && finish[4..8] == [0; 4] && finish[3] < 128;
        match &mut self.session {
            Some((joined, _)) if simple && lives => std::mem::swap(&mut stream, &mut joined.stream),
            _ => {
                self.node.close(link);
                self.node.inbox = Inbox::default();
                self.session = None;
            }
        }
    }
}

/// Completes the finish of a resumption: adds the session's epoch from the answer, and replaces the mark of the proof.
/// Returns whether it had one.
fn prove(key: &Key, hello: &[u8], answer: &[u8; raw::ANSWER], finish: &mut [u8]) -> bool {
    let epoch = u64::from_le_bytes(answer[32..40].try_into().unwrap());
    let raised = epoch.wrapping_add(u64::from_le_bytes(finish[..8].try_into().unwrap()));
    finish[..8].copy_from_slice(&raised.to_le_bytes());
    let proof = key.proof(Role::Initiator, &[hello, &answer[..raw::PROOF_AT], &finish[..16]]);
    put(finish, 16, &PROOF, &proof)
}

/// The answers of a program that listens at a peer's address. Without a proof the attempt fails with a reason, and
/// reveals nothing more.
#[test]
fn answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = moved(&stranger(), listener.local_addr().unwrap());
    let key = Key::new(&peer.capability(), None);
    // A message of a verdict's length with its status.
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
    let mut node = Node::new(open(&settings().with(|config| {
        config.connect_retry_ms = 0;
        config.resume_ms = 0;
    })));
    // The numbers of answers with a wrong proof, of answers with the right one, and of links.
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
        assert!(is_right || (finish == 0 && node.inbox.order.is_empty()), "a peer without a proof is believed");
        let ups = node.inbox.order.len();
        let outcome = match node.inbox.down.pop() {
            Some((ended, why)) => {
                assert_eq!(ended, link);
                let passes = bytes.len() >= raw::ANSWER && bytes[8..10] == [raw::VERSION, 0];
                judged += usize::from(passes && !is_right && why == LinkError::Denied);
                10 + why.number()
            }
            None => {
                // The attempt waits for the rest, would dial again, or has succeeded.
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
