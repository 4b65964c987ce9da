//! Peers that are in no address vector. The state that they cause at an endpoint is bounded, and none of it
//! remains after they have exited.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use weft_engine::Engine;
use weft_engine::api::{
    ADDR_NONE, Addr, AddressBook, Completion, Config, Context, Fault, Kind, NoBook, OpFlags, RecvFlags, RecvOp, SendOp,
};
use weft_engine::mem::IovList;
use weft_engine::name::EpName;
use weft_engine::nic::{Layer, LinkError, LinkId, LinkUp, Nic, Notice, Sink, Versions};
use weft_sim::{Fabric, FabricConfig, SimNic};

const LEN: usize = 40;

/// An address book with a single address.
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

/// A server with an empty address vector, and its clients.
struct World {
    fabric: Fabric,
    server: Engine<SimNic>,
    clients: Vec<Engine<SimNic>>,
    /// Completions at the server.
    done: Vec<Completion>,
}

impl World {
    fn new(max_strangers: usize) -> Self {
        let fabric = Fabric::new(FabricConfig::new(1));
        let mut server = Engine::new(Config { max_strangers, ..Config::default() }, fabric.nic());
        server.set_source_errors(true);
        Self { fabric, server, clients: Vec::new(), done: Vec::new() }
    }

    /// Adds a client that sends a message with this tag.
    fn call(&mut self, tag: u64) {
        let mut client = Engine::new(Config::default(), self.fabric.nic());
        client.bind_book(Arc::new(Only(self.server.name())));
        let bytes = self.fabric.alloc_filled(client.nic().endpoint(), LEN, u8::try_from(tag % 251).unwrap());
        let send = SendOp {
            dest: 0,
            iov: &IovList::from_slice(&[bytes.iov()]),
            tag,
            data: 0,
            ctx: Context::default(),
            flags: OpFlags::TAGGED,
        };
        client.send(&send).unwrap();
        self.clients.push(client);
    }

    /// Makes the client the only entry of the server's address vector.
    fn insert(&mut self, name: EpName) {
        self.server.bind_book(Arc::new(Only(name)));
        self.server.address_added(0, &name);
    }

    fn remove(&mut self) {
        self.server.bind_book(Arc::new(NoBook));
        self.server.address_removed(0);
    }

    /// Makes progress until nothing moves.
    fn drive(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            let mut moved = self.server.progress();
            self.done.append(self.server.completions());
            for client in &mut self.clients {
                moved += client.progress();
            }
            idle = if moved > 0 || self.fabric.advance() { 0 } else { idle + 1 };
        }
    }

    /// All clients exit. Returns the number of messages that they have sent successfully.
    fn leave(&mut self) -> usize {
        let done = |client: &mut Engine<SimNic>| client.completions().iter().filter(|c| c.fault.is_none()).count();
        let sent = self.clients.iter_mut().map(done).sum();
        self.clients.iter_mut().for_each(Engine::shutdown);
        self.drive();
        self.clients.clear();
        self.drive();
        sent
    }

    /// Receives a message with this tag at the server. Returns the sender, if the server can name it.
    fn receive(&mut self, tag: u64) -> Option<EpName> {
        let buffer = self.fabric.alloc(0, LEN);
        let iov = IovList::from_slice(&[buffer.iov()]);
        let ctx = Context { ptr: usize::try_from(tag).unwrap(), ..Context::default() };
        let recv = RecvOp { src: ADDR_NONE, iov: &iov, tag, ignore: 0, ctx, flags: RecvFlags::TAGGED };
        self.server.recv(&recv).unwrap();
        let (completions, peers, _) = self.server.outcome();
        let done = completions.drain(..).find(|c| c.kind == Kind::Recv)?;
        let name = match done.fault {
            Some(Fault::Stranger(number)) => peers.name(number),
            _ => None,
        };
        let bytes = weft_engine::mem::to_vec(&iov);
        assert_eq!((done.len, bytes), (LEN, vec![u8::try_from(tag % 251).unwrap(); LEN]));
        self.fabric.free(buffer);
        name
    }
}

#[test]
fn departed_strangers_leave_no_state() {
    let mut world = World::new(usize::MAX);
    for round in 0..100 {
        let tags = (round * 20..round * 20 + 20).collect::<Vec<_>>();
        tags.iter().for_each(|tag| world.call(*tag));
        world.drive();
        let names = world.clients.iter().map(Engine::name).collect::<Vec<_>>();
        for (tag, name) in tags.iter().zip(names) {
            assert!(world.receive(*tag).is_some_and(|source| source.same_endpoint(&name)), "tag {tag}");
        }
        assert_eq!(world.leave(), 20);
        // The table is searched for departed peers only from this size on, and one round may be added to it.
        let peers = world.server.report().peers;
        assert!(peers <= 84 + 20, "{peers} peers after round {round}");
    }
    assert_eq!(world.server.unexpected_messages(), 0);
}

#[test]
fn messages_of_departed_strangers_are_kept() {
    let mut world = World::new(usize::MAX);
    let mut names = Vec::new();
    for tag in 0..500 {
        world.call(tag);
        names.push(world.clients[0].name());
        world.drive();
        // Every fifth message is received only at the end. Its sender's number would have been reused by then.
        if tag % 5 != 0 {
            let _ = world.receive(tag);
        }
        assert_eq!(world.leave(), 1);
    }
    assert!(world.server.report().peers < 200);
    for (tag, name) in (0..).zip(names).filter(|(tag, _)| tag % 5 == 0) {
        assert!(world.receive(tag).is_some_and(|source| source.same_endpoint(&name)), "tag {tag}");
    }
}

#[test]
fn strangers_beyond_the_limit_are_refused() {
    let mut world = World::new(10);
    (0..30).for_each(|tag| world.call(tag));
    world.drive();
    assert_eq!(world.server.unexpected_messages(), 10);
    let refused = |client: &mut Engine<SimNic>| client.completions().iter().any(|c| c.fault.is_some());
    assert_eq!(world.clients.iter_mut().filter_map(|client| refused(client).then_some(())).count(), 20);
    // The limit does not apply to peers in an address vector: the server's book now has this client.
    world.call(30);
    let name = world.clients[30].name();
    world.server.bind_book(Arc::new(Only(name)));
    world.drive();
    assert_eq!(world.server.unexpected_messages(), 11);
    // Departed peers make room, and lose their messages. The peer in the address vector keeps its message.
    assert_eq!(world.leave(), 11);
    (100..110).for_each(|tag| world.call(tag));
    world.drive();
    assert_eq!(world.server.unexpected_messages(), 11);
    for tag in 100..110 {
        assert!(world.receive(tag).is_some(), "tag {tag}");
    }
    let _ = world.receive(30);
    assert_eq!(world.server.unexpected_messages(), 0);
    assert_eq!(world.leave(), 10);
    (200..220).for_each(|tag| world.call(tag));
    world.drive();
    assert_eq!(world.server.unexpected_messages(), 10);
}

/// Both sides of a refusal learn the reason.
#[test]
fn a_refused_stranger_learns_the_reason() {
    let mut world = World::new(3);
    (0..5).for_each(|tag| world.call(tag));
    world.drive();
    let faults = world.clients.iter_mut().flat_map(|client| client.completions().iter().map(|done| done.fault));
    let crowded = Some(Fault::Link(LinkError::Crowded));
    assert_eq!(faults.filter(|fault| fault.is_some()).collect::<Vec<_>>(), [crowded; 2]);
    assert_eq!(world.server.nic().notices(), [Notice::Refuses(LinkError::Crowded); 2]);
    let told = |client: &Engine<SimNic>| client.nic().notices().len();
    assert_eq!(world.clients.iter().map(told).sum::<usize>(), 2);
}

/// Engines of different versions of the protocol both say so.
#[test]
fn other_versions_are_named() {
    for (ours, theirs) in [(2, 3), (3, 2)] {
        let fabric = Fabric::new(FabricConfig::new(1));
        let of_version = |protocol_version| Engine::new(Config { protocol_version, ..Config::default() }, fabric.nic());
        let (mut server, mut client) = (of_version(ours), of_version(theirs));
        client.bind_book(Arc::new(Only(server.name())));
        let (ctx, flags) = (Context::default(), OpFlags::empty());
        client.send(&SendOp { dest: 0, iov: &[], tag: 0, data: 0, ctx, flags }).unwrap();
        for _ in 0..200 {
            let moved = server.progress() + client.progress();
            if moved == 0 && !fabric.advance() {
                break;
            }
        }
        let versions = |ours, theirs| LinkError::Version(Versions { layer: Layer::Engine, ours, theirs });
        let seen = versions(theirs, ours);
        assert_eq!(client.completions()[0].fault, Some(Fault::Link(seen)));
        assert_eq!(client.nic().notices(), [Notice::RefusedBy(seen)]);
        assert_eq!(server.nic().notices(), [Notice::Refuses(versions(ours, theirs))]);
    }
}

#[test]
fn removed_addresses_leave_no_state() {
    let mut world = World::new(4);
    for tag in 0..10 {
        world.call(tag);
        world.drive();
        assert_eq!(world.server.unexpected_messages(), 1, "call {tag} was turned away");
        world.insert(world.clients[0].name());
        let _ = world.receive(tag);
        assert_eq!(world.leave(), 1);
        world.remove();
    }
    // These clients send nothing; the server sends to them.
    for _ in 0..200 {
        world.clients.push(Engine::new(Config::default(), world.fabric.nic()));
        world.insert(world.clients[0].name());
        let (ctx, flags) = (Context::default(), OpFlags::empty());
        world.server.send(&SendOp { dest: 0, iov: &[], tag: 0, data: 0, ctx, flags }).unwrap();
        world.drive();
        assert_eq!(world.clients[0].unexpected_messages(), 1);
        world.leave();
        world.remove();
    }
    let peers = world.server.report().peers;
    assert!(peers <= 70, "{peers} peers");
}

/// The sink of a peer that has a device and no engine.
#[derive(Default)]
struct Deaf {
    up: Vec<LinkId>,
}

impl Sink for Deaf {
    weft_engine::ignore_events!(confirmed, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, _: LinkUp) {
        self.up.push(link);
    }

    fn down(&mut self, link: LinkId, _: weft_engine::nic::LinkError) {
        self.up.retain(|other| *other != link);
    }

    fn message(&mut self, _: LinkId, _: &[u8]) {}

    fn place(&mut self, _: LinkId, _: u64, _: u64, _: usize) -> Option<IovList> {
        None
    }

    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}

    fn done(&mut self, _: LinkId, _: u64, _: Result<(), weft_engine::nic::LinkError>) {}

    fn peer(&self, _: LinkId) -> Option<EpName> {
        None
    }
}

#[test]
fn silent_peers_have_few_links() {
    let mut world = World::new(usize::MAX);
    let name = world.server.name();
    let mut silent = (0..3).map(|_| (world.fabric.nic(), Deaf::default())).collect::<Vec<_>>();
    for _ in 0..50 {
        for (nic, _) in &mut silent {
            nic.connect(&name).unwrap();
        }
        for _ in 0..20 {
            world.server.progress();
            for (nic, links) in &mut silent {
                nic.poll(links);
            }
            world.fabric.advance();
        }
    }
    assert_eq!(world.fabric.links(0), 3 * 8);
    assert!(silent.iter().all(|(_, links)| links.up.len() == 8));
    // With many peers, the oldest link is closed to make room.
    let mut crowd = (0..1200).map(|_| (world.fabric.nic(), Deaf::default())).collect::<Vec<_>>();
    for (nic, links) in &mut crowd {
        nic.connect(&name).unwrap();
        for _ in 0..10 {
            world.server.progress();
            nic.poll(links);
            world.fabric.advance();
        }
    }
    assert_eq!(world.fabric.links(0), 1024);
    // A peer that sends a message still gets a link.
    world.call(7);
    world.drive();
    assert!(world.receive(7).is_some());
}
