//! An endpoint without descriptors refuses callers, which retry and then fail sooner than they would with a
//! silent host. Expected peers get the descriptors of other peers. The tests are a program of their own,
//! because the limit applies to the process.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, unreachable_pub, missing_docs, dead_code)]

#[path = "tcp/raw.rs"]
mod raw;
#[path = "suite/mod.rs"]
mod suite;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use suite::{Node, World};
use weft_engine::Engine;
use weft_engine::api::{Addr, AddressBook, Config, Context, OpFlags, SendOp};
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, Nic};
use weft_nic::handshake::Role;
use weft_nic::{Devices, Tcp, TcpConfig};

/// Serializes the tests, because the limit applies to the process.
static LIMIT: Mutex<()> = Mutex::new(());

fn node() -> Node<Tcp> {
    let name = suite::parts(SocketAddr::new([127, 0, 0, 1].into(), 0));
    Node::new(Tcp::new(&TcpConfig::default(), &name).unwrap())
}

/// Leaves exactly `count` descriptors free. The result holds the others.
fn leave(count: u64) -> Vec<OwnedFd> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest: i32 =
        open.map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap()).max().unwrap();
    let mut filling: Vec<OwnedFd> = Vec::new();
    while filling.last().is_none_or(|fd| fd.as_raw_fd() < highest) {
        filling.push(std::fs::File::open("/dev/null").unwrap().into());
    }
    let next = u64::try_from(filling.last().unwrap().as_raw_fd()).unwrap() + 1;
    let few = Rlimit { current: Some(next + count), maximum: getrlimit(Resource::Nofile).maximum };
    setrlimit(Resource::Nofile, few).unwrap();
    filling
}

#[test]
fn an_endpoint_without_descriptors_refuses_callers() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let before = getrlimit(Resource::Nofile);
    let mut world = World { nodes: vec![node(), node()] };
    let target = world.nodes[0].name();
    // One descriptor, for the caller's socket.
    let filling = leave(1);
    let link = world.nodes[1].connect(&target);
    world.until("the end", |nodes| !nodes[1].inbox.down.is_empty());
    assert_eq!(world.nodes[1].inbox.down, [(link, LinkError::PeerResources)]);
    // The refusal is temporary, so the call is repeated.
    let link = world.nodes[1].connect(&target);
    for _ in 0..20 {
        world.rounds(100);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(world.nodes[1].inbox.down.len(), 1);
    setrlimit(Resource::Nofile, before).unwrap();
    world.until("the link", |nodes| nodes[1].inbox.up.contains_key(&link));
    drop(filling);
    assert!(world.nodes[0].nic.stats().half_open == 0);
}

/// An address vector with one name.
#[derive(Debug)]
struct Only(EpName);

impl AddressBook for Only {
    fn name(&self, addr: Addr) -> Option<EpName> {
        (addr == 0).then_some(self.0)
    }
    fn addr(&self, name: &EpName) -> Option<Addr> {
        self.0.same_endpoint(name).then_some(0)
    }
}

fn engine(shm: bool) -> Engine<Devices> {
    let listen = Some(([127, 0, 0, 1], 0).into());
    let config = weft_nic::Config { shm, tcp: !shm, listen, ..weft_nic::Config::default() };
    Engine::new(Config::default(), Devices::new(&config).unwrap())
}

/// Sends messages from the peers `news` to address 0, and polls all endpoints until `all` messages have
/// arrived at the hub.
fn greet(hub: &mut Engine<Devices>, peers: &mut [Engine<Devices>], news: std::ops::Range<usize>, all: usize) {
    let (ctx, flags) = (Context::default(), OpFlags::empty());
    for peer in &mut peers[news] {
        peer.send(&SendOp { dest: 0, iov: &[], tag: 0, data: 0, ctx, flags }).unwrap();
    }
    let patience = Instant::now() + Duration::from_secs(20);
    while hub.unexpected_messages() < all {
        assert!(Instant::now() < patience, "{} of {all} messages have come", hub.unexpected_messages());
        hub.progress();
        peers.iter_mut().for_each(|peer| {
            peer.progress();
        });
    }
}

/// Strangers have taken all descriptors. Those that have been silent for longest make room for a peer in the
/// address vector.
#[test]
fn strangers_leave_their_descriptors_to_expected_peers() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    const STRANGERS: usize = 20;
    for shm in [false, true] {
        let before = getrlimit(Resource::Nofile);
        let mut hub = engine(shm);
        let mut peers: Vec<_> = (0..STRANGERS + 2).map(|_| engine(shm)).collect();
        hub.bind_book(Arc::new(Only(peers[STRANGERS].nic().name())));
        let mine = Arc::new(Only(hub.nic().name()));
        peers.iter_mut().for_each(|peer| peer.bind_book(mine.clone()));
        greet(&mut hub, &mut peers, 0..STRANGERS, STRANGERS);
        // One stranger stays active; the others are idle.
        greet(&mut hub, &mut peers, 0..1, STRANGERS + 1);
        // Descriptors that the caller needs for its own end.
        let filling = leave(if shm { 4 } else { 1 });
        greet(&mut hub, &mut peers, STRANGERS..STRANGERS + 1, STRANGERS + 2);
        // The device does not check the socket of an idle link in every poll.
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            peers.iter_mut().for_each(|peer| {
                peer.progress();
            });
        }
        let gone = peers[..STRANGERS].iter().filter(|peer| peer.window(0).is_none()).count();
        assert!((1..=8).contains(&gone), "{gone} strangers have left (shm: {shm})");
        drop(filling);
        setrlimit(Resource::Nofile, before).unwrap();
    }
}

/// Dials a rail of a link. Returns its connection, or the status of the refusal.
fn dial_rail(link: &raw::Joined, number: u8) -> Result<TcpStream, u8> {
    let mut stream = raw::dial(link.target.socket());
    let mut hello = raw::hello_again(link.number, &link.target.ep_id());
    hello[9] |= 16;
    stream.write_all(&hello).unwrap();
    let mut answer = [0; raw::ANSWER];
    stream.read_exact(&mut answer).unwrap();
    if answer[9] != 0 {
        return Err(answer[9]);
    }
    let mut sealed = [0; 16];
    sealed[0] = number;
    let proof = link.key.proof(Role::Initiator, &[&hello, &answer[..raw::PROOF_AT], &sealed]);
    stream.write_all(&[&sealed[..], &proof].concat()).unwrap();
    let mut verdict = [9; 16];
    stream.read_exact(&mut verdict).unwrap();
    if verdict[0] == 0 { Ok(stream) } else { Err(verdict[0]) }
}

/// The rails that peers dial take a quarter of the descriptors at most. Further ones are told to use others.
#[test]
fn rails_leave_descriptors_to_others() {
    let _alone = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let before = getrlimit(Resource::Nofile);
    let mut world = World { nodes: vec![node()] };
    let target = world.nodes[0].name();
    setrlimit(Resource::Nofile, Rlimit { current: Some(400), maximum: before.maximum }).unwrap();
    let thread = std::thread::spawn(move || {
        let links: Vec<_> = (0..16)
            .map(|_| {
                let me = EpName::full(&suite::parts(SocketAddr::new([127, 0, 0, 1].into(), 1)));
                raw::Visit { me, target }.join()
            })
            .collect();
        let rails: Vec<_> = links.iter().flat_map(|link| (0..8).map(|number| dial_rail(link, number))).collect();
        assert_eq!(rails.iter().filter_map(|rail| rail.as_ref().err()).copied().collect::<Vec<_>>(), [5; 28]);
    });
    world.until("the peer", |_| thread.is_finished());
    thread.join().unwrap();
    setrlimit(Resource::Nofile, before).unwrap();
}
