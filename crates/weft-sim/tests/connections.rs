//! Connections on fabrics with every fault. After any failure or exit, each end gets the event exactly once.
//! A message that breaks the protocol has no effect beyond the end of its link.
#![allow(clippy::unwrap_used)]

use weft_engine::api::{Config, Kind};
use weft_engine::mem::IovList;
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};
use weft_engine::{ConnEvent, Engine, MAX_CONN_DATA, Role};
use weft_sim::rng::{Entity, Stream};
use weft_sim::{Fabric, FabricConfig, SimNic};

/// An endpoint and its connection events.
struct End {
    engine: Engine<SimNic>,
    /// The caller, if this endpoint answers a call.
    caller: Option<usize>,
    closed: bool,
    made: usize,
    /// Events that the connection was refused, failed or ended.
    over: usize,
}

impl End {
    fn new(fabric: &Fabric, role: Role) -> Self {
        let engine = Engine::new(Config { role, ..Config::default() }, fabric.nic());
        Self { engine, caller: None, closed: false, made: 0, over: 0 }
    }

    /// Makes a round of progress. Returns the calls that a listener got.
    fn run(&mut self) -> Vec<(u64, EpName, Box<[u8]>)> {
        self.engine.progress();
        let announced = self.engine.completions().drain(..).filter(|c| c.kind == Kind::Connection).count();
        let events = self.engine.take_connection_events();
        assert_eq!(announced, events.len(), "each event has a completion");
        let mut requests = Vec::new();
        for event in events {
            match event {
                ConnEvent::Request { call, peer, data } => requests.push((call, peer, data)),
                ConnEvent::Connected { .. } => {
                    assert_eq!((self.made, self.over), (0, 0));
                    self.made += 1;
                }
                ConnEvent::Ended(_) => {
                    assert_eq!((self.made, self.over), (1, 0));
                    self.over += 1;
                }
                ConnEvent::Refused { .. } | ConnEvent::Failed(_) => {
                    assert_eq!((self.made, self.over), (0, 0));
                    self.over += 1;
                }
            }
        }
        requests
    }

    fn close(&mut self) {
        self.engine.shutdown();
        self.engine.completions().clear();
        self.engine.take_connection_events();
        self.closed = true;
    }
}

/// Runs one seed. Returns the numbers of connections made and of callers that got none.
fn run(seed: u64) -> (usize, usize) {
    let fabric = Fabric::new(FabricConfig::swarm(seed));
    let mut rng = Stream::new(seed, Entity::Test(0));
    let mut listener = End::new(&fabric, Role::Listener(rng.between(1, 4)));
    let name = listener.engine.name();
    let mut ends: Vec<End> = (0..rng.between(1, 6)).map(|_| End::new(&fabric, Role::Active)).collect();
    let callers = ends.len();
    let names: Vec<_> = ends.iter().map(|end| end.engine.name()).collect();
    for (number, end) in ends.iter_mut().enumerate() {
        end.engine.connect(&name, &[u8::try_from(number).unwrap()]).unwrap();
    }
    let mut ignored = vec![false; callers];
    // Before this step, ends may disconnect or close unexpectedly.
    let trouble = rng.below(4000);
    for step in 0..40_000 {
        for (call, peer, data) in if listener.closed { Vec::new() } else { listener.run() } {
            let caller = usize::from(data[0]);
            assert_eq!(peer, names[caller]);
            match rng.index(6) {
                0 => listener.engine.reject(call, b"no").unwrap(),
                1 => ignored[caller] = true,
                _ => {
                    listener.engine.answered(call);
                    let mut end = End::new(&fabric, Role::Active);
                    end.caller = Some(caller);
                    end.engine.accept(&peer, b"yes").unwrap();
                    ends.push(end);
                }
            }
        }
        let disturb = step < trouble && rng.chance(3);
        let victim = rng.index(ends.len() + 1);
        if disturb && victim == ends.len() {
            // Waiting callers fail. Callers that are being answered would fail too, so the client closes the
            // listener only when there are none.
            if ends.iter().all(|end| end.caller.is_none() || end.made + end.over > 0 || end.closed) && !listener.closed
            {
                listener.engine.stop_listening();
                listener.close();
            }
        } else if disturb && !ends[victim].closed && ends[victim].engine.disconnect().is_err() {
            ends[victim].close();
        }
        for end in ends.iter_mut().filter(|end| !end.closed) {
            end.run();
        }
        if listener.closed {
            listener.engine.progress();
        }
        for end in ends.iter_mut().filter(|end| end.closed) {
            end.engine.progress();
            end.engine.completions().clear();
        }
        fabric.advance();
    }
    for (number, end) in ends.iter().enumerate().filter(|(_, end)| !end.closed) {
        let waits = number < callers && ignored[number] && !listener.closed;
        assert!(waits || end.made + end.over > 0, "seed {seed}: end {number} got no event");
        // Both ends of a connection agree whether it is open.
        if let Some(caller) = end.caller.map(|caller| &ends[caller]) {
            let open = |end: &End| !end.closed && end.made == 1 && end.over == 0;
            assert_eq!(open(end), open(caller), "seed {seed}: end {number} and its caller");
        }
    }
    assert!(fabric.violations().is_empty(), "seed {seed}: {:?}", fabric.violations());
    let made = ends.iter().filter(|end| end.caller.is_some() && end.made == 1).count();
    (made, callers - made.min(callers))
}

#[test]
fn every_end_learns_its_outcome_once() {
    let (mut made, mut not_made) = (0, 0);
    for seed in 0..150 {
        let (some, others) = run(seed);
        made += some;
        not_made += others;
    }
    assert!(made > 100 && not_made > 100, "too few cases: {made} connections made, {not_made} not made");
}

/// A device without an engine: the test decides what it sends.
#[derive(Default)]
struct Raw {
    up: Vec<LinkId>,
    down: Vec<(LinkId, LinkError)>,
    received: Vec<Vec<u8>>,
}

impl Sink for Raw {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, _info: LinkUp) {
        self.up.push(link);
    }
    fn down(&mut self, link: LinkId, why: LinkError) {
        self.down.push((link, why));
    }
    fn message(&mut self, _link: LinkId, bytes: &[u8]) {
        self.received.push(bytes.to_vec());
    }
    fn place(&mut self, _: LinkId, _: u64, _: u64, _: usize) -> Option<IovList> {
        None
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}
    fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
}

/// Builds a message with the layout of OPEN, CALL and ACCEPT: kind, rest of the head, version, window, and
/// `data` bytes of data.
fn message(kind: u8, data: usize) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    out.extend(4096_u64.to_le_bytes());
    out.resize(out.len() + data, 7);
    out
}

const OPEN: u8 = 0;
const OPEN_OK: u8 = 1;
const OPEN_DUP: u8 = 2;
const CALL: u8 = 3;
const ACCEPT: u8 = 4;
const REJECT: u8 = 5;
const EAGER: u8 = 8;

/// Sends these messages to an engine on a link of their own. Returns whether the engine closed the link.
fn link_ends_after(fabric: &Fabric, victim: &mut End, messages: &[Vec<u8>]) -> bool {
    let (mut nic, mut raw) = (fabric.nic(), Raw::default());
    let link = nic.connect(&victim.engine.name()).unwrap();
    let mut left = messages.iter();
    for _ in 0..2000 {
        nic.poll(&mut raw);
        if !raw.up.is_empty()
            && raw.down.is_empty()
            && let Some(message) = left.next()
        {
            nic.send(link, message, &[]).unwrap();
        }
        nic.flush();
        assert!(victim.run().len() <= 1);
        fabric.advance();
    }
    assert!(raw.up == [link], "the link came up");
    !raw.down.is_empty()
}

#[test]
fn an_out_of_order_message_closes_the_link() {
    let fabric = Fabric::new(FabricConfig::new(1));
    for role in [Role::Connectionless, Role::Datagrams, Role::Active, Role::Listener(4)] {
        let mut victim = End::new(&fabric, role);
        let listens = matches!(role, Role::Listener(_));
        let opens = matches!(role, Role::Connectionless | Role::Datagrams);
        let mut version = message(if listens { CALL } else { OPEN }, 0);
        version[8] = 4;
        let cases: &[(&[Vec<u8>], bool)] = &[
            (&[message(OPEN, 0)], !opens),
            (&[message(CALL, 5)], !listens),
            (&[message(CALL, MAX_CONN_DATA)], !listens),
            (&[message(CALL, MAX_CONN_DATA + 1)], true),
            (&[message(CALL, 0)[..20].to_vec()], true),
            (&[message(CALL, 0), message(CALL, 0)], true),
            (&[message(CALL, 0), message(EAGER, 0)], true),
            (&[message(CALL, 0), message(OPEN, 0)], true),
            (&[message(ACCEPT, 0)], true),
            (&[message(REJECT, 0)], true),
            (&[message(OPEN_OK, 0)], true),
            (&[message(OPEN_DUP, 0)], true),
            (&[message(EAGER, 0)], true),
            (&[version], true),
        ];
        for (number, (messages, cut)) in cases.iter().enumerate() {
            assert_eq!(link_ends_after(&fabric, &mut victim, messages), *cut, "case {number} to {role:?}");
        }
        assert_eq!((victim.made, victim.over), (0, 0));
    }
    assert!(fabric.violations().is_empty(), "{:?}", fabric.violations());
}

/// A listener may answer a call with REJECT only. A caller takes an ACCEPT once, and only while its call is
/// pending.
#[test]
fn a_dishonest_listener_only_declines() {
    for answer in [OPEN_OK, OPEN_DUP, OPEN, CALL, ACCEPT, EAGER, REJECT] {
        let fabric = Fabric::new(FabricConfig::new(u64::from(answer)));
        let (mut nic, mut raw) = (fabric.nic(), Raw::default());
        let mut caller = End::new(&fabric, Role::Active);
        caller.engine.connect(&nic.name(), b"hello").unwrap();
        let mut answered = false;
        for _ in 0..2000 {
            caller.run();
            nic.poll(&mut raw);
            if !answered && !raw.received.is_empty() {
                answered = true;
                assert_eq!((raw.received[0][0], &raw.received[0][24..]), (CALL, b"hello".as_slice()));
                nic.send(raw.up[0], &message(answer, 0), &[]).unwrap();
            }
            nic.flush();
            fabric.advance();
        }
        assert_eq!((caller.made, caller.over), (0, 1), "answer {answer}");
        assert!(answered && !raw.down.is_empty());
        assert!(link_ends_after(&fabric, &mut caller, &[message(ACCEPT, 0)]), "too late");
        assert!(fabric.violations().is_empty(), "{:?}", fabric.violations());
    }
}
