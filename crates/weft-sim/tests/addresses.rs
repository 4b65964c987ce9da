//! Peers under service names and under several addresses; strangers that become known; removed addresses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use std::sync::{Arc, Mutex};

use weft_engine::api::{
    ADDR_NONE, Addr, AddressBook, Completion, Config, Context, Error, Kind, OpFlags, RecvFlags, RecvOp, SendOp,
};
use weft_engine::name::EpName;
use weft_engine::{Engine, Role};
use weft_sim::{Fabric, FabricConfig, SimNic};

/// An address vector with entries that the test adds and removes.
#[derive(Default)]
struct Book(Mutex<Vec<Option<EpName>>>);

impl AddressBook for Book {
    fn name(&self, addr: Addr) -> Option<EpName> {
        *self.0.lock().unwrap().get(addr as usize)?
    }
    fn addr(&self, name: &EpName) -> Option<Addr> {
        let names = self.0.lock().unwrap();
        let by = |same: &dyn Fn(&EpName) -> bool| names.iter().position(|entry| entry.as_ref().is_some_and(same));
        let index =
            by(&|entry| entry.same_endpoint(name)).or_else(|| by(&|entry| entry.identity() == name.socket_identity()));
        index.map(|index| index as Addr)
    }
}

struct Pair {
    fabric: Fabric,
    engines: Vec<Engine<SimNic>>,
    books: Vec<Arc<Book>>,
    done: Vec<Vec<Completion>>,
    /// The completion level of sends.
    level: OpFlags,
}

impl Pair {
    fn new(config: FabricConfig) -> Self {
        Self::with(config, &Config::default())
    }

    fn with(config: FabricConfig, engine: &Config) -> Self {
        let fabric = Fabric::new(config);
        let mut engines = [0, 1].map(|_| Engine::new(*engine, fabric.nic()));
        let books = [0, 1].map(|_| Arc::new(Book::default()));
        for (engine, book) in engines.iter_mut().zip(&books) {
            engine.bind_book(Arc::clone(book) as Arc<dyn AddressBook>);
        }
        let level = if engine.role == Role::Datagrams { OpFlags::empty() } else { OpFlags::DELIVERY };
        Self { fabric, engines: engines.into(), books: books.into(), done: vec![Vec::new(), Vec::new()], level }
    }

    fn insert(&mut self, at: usize, name: EpName) -> Addr {
        let addr = {
            let mut names = self.books[at].0.lock().unwrap();
            names.push(Some(name));
            names.len() as Addr - 1
        };
        self.engines[at].address_added(addr, &name);
        addr
    }

    fn remove(&mut self, at: usize, addr: Addr) {
        self.books[at].0.lock().unwrap()[addr as usize] = None;
        self.engines[at].address_removed(addr);
    }

    fn send(&mut self, at: usize, dest: Addr, tag: u64) -> Result<(), Error> {
        let flags = OpFlags::TAGGED | self.level;
        let ctx = Context { ptr: tag as usize, user: 0 };
        self.engines[at].send(&SendOp { dest, iov: &[], tag, data: 0, ctx, flags })
    }

    fn recv(&mut self, at: usize, src: Addr, tag: u64, ignore: u64) {
        let ctx = Context { ptr: 1 << 20 | tag as usize, user: 0 };
        self.engines[at].recv(&RecvOp { src, iov: &[], tag, ignore, ctx, flags: RecvFlags::TAGGED }).unwrap();
    }

    fn drive(&mut self) {
        for _ in 0..100_000 {
            let (mut moved, full) = (0, self.fabric.stats().full);
            for (engine, done) in self.engines.iter_mut().zip(&mut self.done) {
                moved += engine.progress();
                done.append(engine.completions());
            }
            let retry = self.fabric.waiting() || self.fabric.stats().full > full;
            if moved == 0 && !self.fabric.advance() && !retry {
                assert_eq!(self.fabric.violations(), Vec::<String>::new());
                return;
            }
        }
        panic!("does not become idle");
    }

    /// Tags and sources of the messages that a side has received since the last call.
    fn received(&mut self, at: usize) -> Vec<(u64, Addr)> {
        let done = std::mem::take(&mut self.done[at]);
        assert!(done.iter().all(|c| c.fault.is_none()), "{done:?}");
        done.iter().filter(|c| c.kind == Kind::Recv).map(|c| (c.tag, c.src)).collect()
    }

    fn names(&self) -> [EpName; 2] {
        [self.engines[0].name(), self.engines[1].name()]
    }
}

#[test]
fn a_service_name_leads_to_its_endpoint_and_answers_come_back_under_it() {
    let mut pair = Pair::new(FabricConfig::new(1));
    let [a, b] = pair.names();
    let service = pair.insert(0, EpName::service(b.socket()));
    pair.send(0, service, 1).unwrap();
    pair.recv(1, ADDR_NONE, 1, 0);
    pair.drive();
    assert_eq!(pair.received(1), [(1, ADDR_NONE)], "the sender is in no address vector");
    let back = pair.insert(1, a);
    pair.recv(0, service, 2, 0);
    pair.send(1, back, 2).unwrap();
    pair.drive();
    assert_eq!(pair.received(0), [(2, service)]);
    assert_eq!((pair.fabric.links(0), pair.fabric.links(1)), (1, 1), "one link serves both names");
}

#[test]
fn one_endpoint_under_a_service_and_a_full_name_gets_everything_once() {
    for seed in 0..300 {
        let mut config = FabricConfig::swarm(seed);
        config.faults.connect_slow_permille = 500;
        let mut pair = Pair::new(config);
        let [a, b] = pair.names();
        let addrs = [EpName::service(b.socket()), b].map(|name| pair.insert(0, name));
        let back = if seed % 2 == 0 { EpName::service(a.socket()) } else { a };
        let back = pair.insert(1, back);
        for n in 0..20 {
            pair.send(0, addrs[(seed as usize + n as usize) % 2], n).unwrap();
            pair.send(1, back, n).unwrap();
            pair.recv(0, ADDR_NONE, 0, u64::MAX);
            pair.recv(1, ADDR_NONE, 0, u64::MAX);
            if n % 7 == seed % 7 {
                pair.drive();
            }
        }
        pair.drive();
        for at in [0, 1] {
            let got = pair.received(at);
            let mut tags = got.iter().map(|got| got.0).collect::<Vec<_>>();
            tags.sort_unstable();
            assert_eq!(tags, (0..20).collect::<Vec<_>>(), "seed {seed}");
            assert!(got.iter().all(|got| got.1 != ADDR_NONE), "seed {seed}: {got:?}");
            assert!(pair.engines[at].at_rest(), "seed {seed}");
        }
    }
}

#[test]
fn a_stranger_becomes_known_and_unknown_again() {
    let mut pair = Pair::new(FabricConfig::new(1));
    let [a, b] = pair.names();
    let to_b = pair.insert(0, b);
    for tag in 1..=4 {
        pair.send(0, to_b, tag).unwrap();
    }
    pair.drive();
    pair.recv(1, ADDR_NONE, 1, 0);
    assert_eq!(pair.engines[1].completions().first().map(|c| c.src), Some(ADDR_NONE));
    pair.insert(1, b);
    let known = pair.insert(1, a);
    pair.recv(1, known, 2, 0);
    assert_eq!(pair.engines[1].completions().last().map(|c| c.src), Some(known));
    pair.remove(1, known);
    assert_eq!(pair.send(1, known, 9), Err(Error::NoSuchAddress));
    pair.recv(1, known, 3, 0);
    pair.drive();
    assert_eq!(pair.received(1).len(), 2, "no message comes from a removed address");
    let again = pair.insert(1, a);
    pair.recv(1, again, 4, 0);
    pair.drive();
    assert_eq!(pair.received(1), [(4, again)]);
}

/// An endpoint has two addresses, a service name and a full name. Removing either leaves the other one valid.
#[test]
fn an_endpoint_that_loses_one_of_its_addresses_is_known_by_the_other() {
    for (service_first, service_goes) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut pair = Pair::new(FabricConfig::new(1));
        let [a, b] = pair.names();
        let to_b = pair.insert(0, b);
        let mut both = [EpName::service(a.socket()), a].map(|name| pair.insert(1, name));
        if !service_first {
            both.reverse();
        }
        for (tag, addr) in (1..).zip(both) {
            pair.send(1, addr, tag).unwrap();
            pair.recv(0, ADDR_NONE, tag, 0);
        }
        pair.drive();
        assert_eq!(pair.received(0).len(), 2);
        let _ = pair.received(1);
        let (gone, stays) = if service_first == service_goes { (both[0], both[1]) } else { (both[1], both[0]) };
        // A receive from one address takes messages that arrived under the other one.
        pair.recv(1, stays, 7, 0);
        pair.send(0, to_b, 7).unwrap();
        pair.drive();
        pair.remove(1, gone);
        assert_eq!(pair.send(1, gone, 3), Err(Error::NoSuchAddress));
        pair.drive();
        assert_eq!(pair.received(1), [(7, stays)], "{service_first} {service_goes}");
        pair.recv(1, stays, 4, 0);
        pair.recv(1, ADDR_NONE, 5, 0);
        pair.send(0, to_b, 4).unwrap();
        pair.send(0, to_b, 5).unwrap();
        pair.drive();
        assert_eq!(pair.received(1), [(4, stays), (5, stays)], "{service_first} {service_goes}");
        pair.send(1, stays, 6).unwrap();
        pair.recv(0, ADDR_NONE, 6, 0);
        pair.drive();
        assert_eq!(pair.received(0).len(), 1);
    }
}

#[test]
fn an_unknown_address_is_refused() {
    let mut pair = Pair::new(FabricConfig::new(1));
    for addr in [0, 7, ADDR_NONE, ADDR_NONE - 1] {
        assert_eq!(pair.send(0, addr, 1), Err(Error::NoSuchAddress));
    }
    pair.drive();
    assert_eq!(pair.fabric.links(0), 0);
}

/// After the process behind a service has died, another process serves it. A client that knows only the
/// service reaches the successor. Either of the two may call first, and the address need not be inserted again.
#[test]
fn a_service_leads_to_its_current_listener() {
    for (calls_first, inserted_again, unreliable) in
        (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)).filter(|(_, again, unreliable)| !(*again && *unreliable))
    {
        let what = format!("calls first: {calls_first}, inserted again: {inserted_again}, datagrams: {unreliable}");
        let config = Config { role: if unreliable { Role::Datagrams } else { Role::default() }, ..Config::default() };
        let mut pair = Pair::with(FabricConfig::new(1), &config);
        let mut successor = 1;
        let mut service = ADDR_NONE;
        for process in 0..4 {
            if process > 0 {
                pair.fabric.kill(successor);
                successor = pair.fabric.reserve(Some(1));
            }
            let nic = if process > 0 { Some(pair.fabric.start(successor)) } else { None };
            if let Some(nic) = nic {
                pair.engines[1] = Engine::new(config, nic);
                pair.engines[1].bind_book(Arc::clone(&pair.books[1]) as Arc<dyn AddressBook>);
            }
            let [a, b] = pair.names();
            if process == 0 || inserted_again {
                if process > 0 {
                    pair.remove(0, service);
                }
                service = pair.insert(0, EpName::service(b.socket()));
            }
            let back = if process == 0 { pair.insert(1, a) } else { 0 };
            if process > 0 {
                // The first operation on the link notices its end.
                pair.drive();
                pair.done[0].clear();
            }
            let tag = 10 * process;
            if calls_first && process > 0 {
                pair.recv(0, service, tag + 2, 0);
                pair.send(1, back, tag + 2).unwrap();
                pair.drive();
                assert_eq!(pair.received(0), [(tag + 2, service)], "{what}, process {process}");
                let _ = pair.received(1);
            }
            pair.recv(1, ADDR_NONE, tag + 1, 0);
            pair.send(0, service, tag + 1).unwrap();
            pair.drive();
            assert_eq!(pair.received(1), [(tag + 1, back)], "{what}, process {process}");
            let _ = pair.received(0);
        }
    }
}
