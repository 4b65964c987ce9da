//! Encrypted links: the view and the abilities of an attacker on the path. conformance.rs checks that encrypted links
//! carry everything that plain ones do.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use weft_engine::mem::Owned;
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId};
use weft_nic::TcpConfig;

use super::suite::Window;
use super::{Node, World, config, moved, open};

/// The length of the initiator's handshake: hello, finish, message of the key exchange.
const SAID: usize = 112 + 48 + 48;

fn settings(encrypt: bool) -> TcpConfig {
    // The end of a connection must end the link.
    config().with(|config| {
        config.encrypt = encrypt;
        config.resume_ms = 0;
    })
}

fn pair(encrypt: [bool; 2]) -> World<super::Tcp> {
    World { nodes: encrypt.map(|encrypt| Node::new(open(&settings(encrypt)))).into_iter().collect() }
}

/// Notes of connections that are not examined.
static UNUSED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// An attacker on the path, which changes bytes of the initiator and records those of both sides.
struct Between {
    recorded: Arc<Mutex<Vec<u8>>>,
    /// The attacker's connections with the two sides.
    ends: Arc<Mutex<Vec<TcpStream>>>,
    /// The acceptor's name with the attacker's address.
    name: EpName,
}

fn between(target: EpName, change: impl Fn(usize, &mut u8) + Send + 'static) -> Between {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = moved(&target, listener.local_addr().unwrap());
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let ends = Arc::new(Mutex::new(Vec::new()));
    let (notes, held) = (Arc::clone(&recorded), Arc::clone(&ends));
    thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(target.socket()).unwrap();
        *held.lock().unwrap() = vec![near.try_clone().unwrap(), far.try_clone().unwrap()];
        let (back_from, back_to, back_notes) =
            (far.try_clone().unwrap(), near.try_clone().unwrap(), Arc::clone(&notes));
        let back = thread::spawn(move || pass(back_from, back_to, &back_notes, |_, _| ()));
        pass(near, far, &notes, change);
        back.join().unwrap();
    });
    Between { recorded, ends, name }
}

fn pass(mut from: TcpStream, mut to: TcpStream, notes: &Mutex<Vec<u8>>, change: impl Fn(usize, &mut u8)) {
    let (mut buffer, mut at) = ([0; 4096], 0);
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        for byte in &mut buffer[..n] {
            change(at, byte);
            at += 1;
        }
        notes.lock().unwrap().extend_from_slice(&buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// An eavesdropper cannot read short or long messages in either direction. Without encryption it can.
#[test]
fn an_eavesdropper_reads_nothing() {
    for encrypt in [true, false] {
        let mut world = pair([encrypt; 2]);
        let eavesdropper = between(world.nodes[1].name(), |_, _| ());
        let near = world.nodes[0].connect(&eavesdropper.name);
        world.until("up", |nodes| nodes.iter().all(|node| !node.inbox.up.is_empty()));
        let far = world.nodes[1].inbox.order[0];
        let long: Vec<u8> = b"a long secret ".iter().copied().cycle().take(50_000).collect();
        for (node, link) in [(0, near), (1, far)] {
            world.nodes[node].send(link, 3, b"a short secret").unwrap();
            world.nodes[node].send(link, 3, &long).unwrap();
        }
        let both = |nodes: &mut [Node<super::Tcp>]| nodes.iter().all(|node| node.inbox.messages.len() == 2);
        world.until("messages", both);
        for (node, link) in [(0, near), (1, far)] {
            assert_eq!(world.nodes[node].take_messages(link), [b"a short secret".to_vec(), long.clone()]);
        }
        let recorded = eavesdropper.recorded.lock().unwrap();
        assert!(recorded.len() > 100_000);
        for secret in [&b"a short secret"[..], b"long secret", b"hort secret"] {
            assert_eq!(recorded.windows(secret.len()).any(|part| part == secret), !encrypt);
        }
    }
}

/// A rail of an encrypted link is encrypted, too. Without encryption an eavesdropper reads it.
#[test]
fn rails_are_encrypted() {
    const SECRET: &[u8] = b"a long secret. ";
    for encrypt in [true, false] {
        let config = TcpConfig { streams: 2, streams_within_host: true, stripe_bytes: 5000, ..settings(encrypt) };
        let mut world = World { nodes: (0..2).map(|_| Node::new(open(&config))).collect() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (target, recorded) = (world.nodes[1].name(), Arc::new(Mutex::new(Vec::new())));
        let (name, notes) = (moved(&target, listener.local_addr().unwrap()), Arc::clone(&recorded));
        thread::spawn(move || {
            for (count, near) in listener.incoming().enumerate() {
                let (near, far) = (near.unwrap(), TcpStream::connect(target.socket()).unwrap());
                let (from, to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                let notes = Arc::clone(&notes);
                thread::spawn(move || pass(from, to, &Mutex::default(), |_, _| ()));
                // Only the rails are recorded.
                thread::spawn(move || pass(near, far, if count > 0 { &notes } else { &UNUSED }, |_, _| ()));
            }
        });
        let near = world.nodes[0].connect(&name);
        world.until("up", |nodes| nodes.iter().all(|node| !node.inbox.up.is_empty()));
        let text: Vec<u8> = SECRET.iter().copied().cycle().take(100_000).collect();
        let mut memory = Owned::new(text.clone());
        for turn in 0..3 {
            world.nodes[1].inbox.windows.insert(turn, Window::new(text.len()));
            world.nodes[0].push(near, turn, &[memory.iov()], turn).unwrap();
            world.until("push", |nodes| nodes[0].inbox.done.contains_key(&turn));
            assert!(world.nodes[1].inbox.windows.get_mut(&turn).unwrap().bytes() == text);
            world.until("rails", |nodes| nodes.iter().all(|node| node.nic.stats().rails == 2));
        }
        let recorded = recorded.lock().unwrap();
        assert!(recorded.len() > 2 * text.len());
        assert_eq!(recorded.windows(SECRET.len()).any(|part| part == SECRET), !encrypt);
    }
}

/// One changed bit in the key exchange, or in anything after it, ends the link. No false message is delivered.
#[test]
fn changed_bytes_end_the_link() {
    for at in [112 + 48, SAID - 1, SAID, SAID + 3, SAID + 4, SAID + 20, SAID + 60, SAID + 200] {
        let mut world = pair([true; 2]);
        let attacker = between(world.nodes[1].name(), move |place, byte| *byte ^= u8::from(place == at) << 2);
        let near = world.nodes[0].connect(&attacker.name);
        let sent: Vec<Vec<u8>> = (0..8_u8).map(|n| vec![n; 40]).collect();
        let mut rest = sent.iter();
        world.until("the end", |nodes| {
            if nodes[0].inbox.up.contains_key(&near)
                && let Some(bytes) = rest.next()
            {
                let _ = nodes[0].send(near, 3, bytes);
            }
            !nodes[0].inbox.down.is_empty()
        });
        let up = !world.nodes[1].inbox.order.is_empty();
        if up {
            world.until("the other end", |nodes| !nodes[1].inbox.down.is_empty());
            let why = world.nodes[1].inbox.down[0].1;
            assert!(matches!(why, LinkError::Protocol | LinkError::Gone), "{at}: {why}");
        }
        assert_eq!(up, at >= SAID, "without common keys there is no link");
        let heard: Vec<Vec<u8>> = world.nodes[1].inbox.messages.drain(..).map(|(_, bytes)| bytes).collect();
        assert!(heard.len() < sent.len() && sent.starts_with(&heard), "{at}");
    }
}

/// An encrypting side and a plain one get no link, and the error names the setting.
#[test]
fn both_sides_must_encrypt() {
    for encrypt in [[true, false], [false, true]] {
        let mut world = pair(encrypt);
        let peer = world.nodes[1].name();
        let link = world.nodes[0].connect(&peer);
        world.until("refusal", |nodes| !nodes[0].inbox.down.is_empty());
        assert_eq!(world.nodes[0].inbox.down, [(link, LinkError::Encryption)]);
        assert!(LinkError::Encryption.to_string().contains("FI_WEFT_TCP_ENCRYPT"));
        assert!(world.nodes[1].inbox.up.is_empty());
        assert_eq!(world.nodes[1].nic.stats().denied, 1);
    }
}

/// An attacker removes the encryption flag from the hello, or adds it. No link results, plain or encrypted.
#[test]
fn an_attacker_cannot_change_the_encryption_flag() {
    for encrypt in [[true, false], [true, true], [false, true], [false, false]] {
        let mut world = pair(encrypt);
        let attacker = between(world.nodes[1].name(), |place, byte| *byte ^= u8::from(place == 9) << 3);
        let link: LinkId = world.nodes[0].connect(&attacker.name);
        world.until("refusal", |nodes| !nodes[0].inbox.down.is_empty());
        let (ended, why) = world.nodes[0].inbox.down[0];
        assert_eq!(ended, link);
        assert!(matches!(why, LinkError::Denied | LinkError::Encryption), "{encrypt:?}: {why}");
        assert!(world.nodes[1].inbox.up.is_empty());
    }
}

/// A connection that ends without a goodbye is distinguished from a closed one: no attacker can send a goodbye for a
/// peer.
#[test]
fn a_cut_end_is_no_goodbye() {
    for cut in [true, false] {
        let mut world = pair([true; 2]);
        let eavesdropper = between(world.nodes[1].name(), |_, _| ());
        let near = world.nodes[0].connect(&eavesdropper.name);
        world.until("up", |nodes| nodes.iter().all(|node| !node.inbox.up.is_empty()));
        if cut {
            eavesdropper.ends.lock().unwrap().iter().for_each(|end| end.shutdown(Shutdown::Both).unwrap());
        } else {
            world.nodes[0].close(near);
        }
        world.until("the end", |nodes| !nodes[1].inbox.down.is_empty());
        assert_eq!(world.nodes[1].inbox.down[0].1, if cut { LinkError::Gone } else { LinkError::Closed });
    }
}

/// The action of an attacker on the path against the connection that resumes a link.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Attack {
    None,
    /// Changes a byte of the acceptor's position.
    Position(u8),
    /// Replaces records of the second connection by those of the first one.
    Replay,
}

/// The first connection is cut in the middle of a record. The link continues over another one, with keys of its own,
/// and no message is lost. An attacker that changes the position, or repeats records of the first connection, ends the
/// link.
#[test]
fn an_encrypted_link_outlives_its_connection() {
    for attack in [Attack::None, Attack::Position(0), Attack::Position(1), Attack::Replay] {
        resume_under(attack);
    }
}

fn resume_under(attack: Attack) {
    // The names are those of different hosts, so that the initiator dials first.
    let mut world = super::resume::far_world(&config().with(|config| config.encrypt = true));
    let (name, attacked) = attacker(world.nodes[1].name(), attack);
    let near = world.nodes[0].connect(&name);
    world.until("up", |nodes| nodes.iter().all(|node| !node.inbox.up.is_empty()));
    let far = world.nodes[1].inbox.order[0];
    let sent: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; 40]).collect();
    let mut rest = sent.iter().peekable();
    world.until("all messages, or the end", |nodes| {
        if let Some(bytes) = rest.peek()
            && nodes[0].send(near, 3, bytes).is_ok()
        {
            rest.next();
        }
        nodes[1].inbox.messages.len() == sent.len() || nodes.iter().any(|node| !node.inbox.down.is_empty())
    });
    let received = world.nodes[1].take_messages(far);
    assert!(sent.starts_with(&received), "{attack:?}: each once, and in order");
    let down: Vec<LinkError> = world.nodes.iter().flat_map(|node| node.inbox.down.iter().map(|down| down.1)).collect();
    if attacked.load(Ordering::Relaxed) {
        let why = if attack == Attack::Replay { LinkError::Protocol } else { LinkError::Denied };
        assert!(down.contains(&why), "{attack:?}: {down:?}");
    } else {
        // The acceptor may have dialled first, past the attacker.
        assert!(down.is_empty() && received.len() == sent.len(), "{attack:?}: {down:?}");
        assert!(world.nodes[1].nic.stats().resumed > 0);
    }
}

/// Starts an attacker on the path to `target`. Returns the target's name with the attacker's address, and whether the
/// attacker has changed any byte.
fn attacker(target: EpName, attack: Attack) -> (EpName, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = moved(&target, listener.local_addr().unwrap());
    let attacked = Arc::new(AtomicBool::new(false));
    let acts = Arc::clone(&attacked);
    thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let record = cut_within_a_record(near, target);
        for stream in listener.incoming().flatten() {
            let far = TcpStream::connect(target.socket()).unwrap();
            relay(attack, stream, far, record.clone(), &acts);
        }
    });
    (name, attacked)
}

/// Carries the first connection up to the middle of a record. Both sides then see an end without a goodbye. Returns the
/// initiator's bytes.
fn cut_within_a_record(near: TcpStream, target: EpName) -> Vec<u8> {
    let far = TcpStream::connect(target.socket()).unwrap();
    let (back_from, back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    let back = thread::spawn(move || pass(back_from, back_to, &Mutex::new(Vec::new()), |_, _| ()));
    let mut record = Vec::new();
    while record.len() < SAID + 510 {
        let mut some = vec![0; SAID + 510 - record.len()];
        let n = (&near).read(&mut some).unwrap();
        (&far).write_all(&some[..n]).unwrap();
        record.extend_from_slice(&some[..n]);
    }
    for stream in [&near, &far] {
        let _ = stream.shutdown(Shutdown::Both);
    }
    back.join().unwrap();
    record
}

/// Carries a later connection in both directions, with the attack.
fn relay(attack: Attack, near: TcpStream, far: TcpStream, record: Vec<u8>, acts: &Arc<AtomicBool>) {
    /// The offset of the acceptor's position in its bytes: after the answer and the verdict's status.
    const POSITION: usize = 144 + 8;
    let (from, to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
    let (forth, back) = (Arc::clone(acts), Arc::clone(acts));
    thread::spawn(move || {
        pass(from, to, &Mutex::new(Vec::new()), |at, byte| {
            if matches!(attack, Attack::Position(place) if at == POSITION + usize::from(place)) {
                *byte ^= 4;
                back.store(true, Ordering::Relaxed);
            }
        });
    });
    thread::spawn(move || {
        pass(near, far, &Mutex::new(Vec::new()), |at, byte| {
            if attack == Attack::Replay && (SAID..record.len()).contains(&at) {
                *byte = record[at];
                forth.store(true, Ordering::Relaxed);
            }
        });
    });
}
