//! Active messages: requests with and without replies, in both directions, under faults and through the loss of ranks.
//!
//! The oracle of each run: every request is handled once and every reply arrives once, or the peer is lost. Requests
//! that handlers answer are never under way in a greater number than the window allows. No run stands still.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use weft_engine::am::{ActiveHandler, ActiveHead, ActiveMessage, Answer};
use weft_engine::api::{Addr, Config, Error};
use weft_engine::mem::Owned;
use weft_engine::nic::LinkError;
use weft_sim::rng::{Entity, Stream};
use weft_sim::{Cluster, FabricConfig, Fate, Hazard, Hazards, Turn};

/// The tests that find the bugs planted in active messages, of which random runs have none.
#[allow(dead_code, reason = "used by the test of planted bugs")]
pub(crate) const SCENARIOS: [fn(); 3] =
    [full_devices_lose_nothing, credit_runs_out_in_both_directions, a_death_ends_its_own_messages_only];

const HEAD_BYTES: usize = 12;
/// Bytes of a request for which it costs a further unit of the window.
const UNIT_BYTES: usize = 1024;

/// The answer to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Nothing,
    /// By the handler.
    Now,
    /// By a later call.
    Later,
}

fn mixed(id: u32) -> u32 {
    (id ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b1).rotate_left(13)
}

/// The bytes of a body.
fn body_of(id: u32, reply: bool, len: usize) -> Vec<u8> {
    let first = mixed(id ^ u32::from(reply)) as u8;
    (0..len).map(|at| first.wrapping_add((at % 251) as u8)).collect()
}

fn head_of(id: u32, body_len: usize, wanted: Wanted) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&id.to_le_bytes());
    head[4..8].copy_from_slice(&(body_len as u32).to_le_bytes());
    head[8] = wanted as u8;
    head
}

/// The requests from one rank to another.
#[derive(Default)]
struct Pair {
    /// For each request: 1 once it was handled, 2 once its reply has arrived, 4 if it wants a reply.
    requests: Vec<u8>,
    /// Cost of the requests that handlers answer and have not answered.
    unanswered: usize,
    costs: BTreeMap<u32, usize>,
    /// Requests before this one may have been lost.
    excused: usize,
    losses: usize,
}

#[derive(Default)]
struct World {
    ranks: usize,
    pairs: BTreeMap<(usize, usize), Pair>,
    /// Replies to be sent by calls: from, to, number of the request.
    later: Vec<(usize, usize, u32)>,
    reply_bytes: usize,
    /// The reasons of all losses.
    reasons: Vec<LinkError>,
}

impl World {
    fn pair(&mut self, from: usize, to: usize) -> &mut Pair {
        self.pairs.entry((from, to)).or_default()
    }

    fn is_done(&self) -> bool {
        let open = |pair: &Pair| {
            let late = pair.requests.iter().skip(pair.excused);
            late.copied().any(|state| state & 1 == 0 || state & 6 == 4)
        };
        self.later.is_empty() && !self.pairs.values().any(open)
    }
}

struct Handler {
    rank: usize,
    world: Arc<Mutex<World>>,
}

impl Handler {
    fn rank_of(&self, ranks: usize, addr: Addr) -> usize {
        (addr as usize + self.rank) % ranks
    }
}

impl ActiveHandler for Handler {
    fn arrived(&mut self, source: Addr, reply: bool, head: &[u8], body: &[u8], answer: &mut Answer<'_>) {
        let mut world = self.world.lock().unwrap();
        let from = self.rank_of(world.ranks, source);
        assert_eq!(head.len(), HEAD_BYTES);
        let id = u32::from_le_bytes(head[..4].try_into().unwrap());
        assert_eq!(body.len(), u32::from_le_bytes(head[4..8].try_into().unwrap()) as usize);
        assert_eq!(body, body_of(id, reply, body.len()));
        let (bit, expected, pair) = match reply {
            false => (1, 0, world.pair(from, self.rank)),
            true => (2, 5, world.pair(self.rank, from)),
        };
        let state = &mut pair.requests[id as usize];
        assert_eq!(*state & 3, expected & 3, "request {id} of {from} to {}: {state}", self.rank);
        *state |= bit;
        if reply {
            pair.unanswered -= pair.costs.remove(&id).unwrap_or(0);
        } else if head[8] == Wanted::Now as u8 {
            let len = mixed(id) as usize % (answer.limit().min(world.reply_bytes) + 1);
            let mut head = ActiveHead::new(&head_of(id, len, Wanted::Nothing));
            if id % 2 == 0 {
                answer.put(&mut head, &body_of(id, true, len));
            } else {
                answer.set(&mut head, len).copy_from_slice(&body_of(id, true, len));
            }
        } else if head[8] == Wanted::Later as u8 {
            world.later.push((self.rank, from, id));
        }
    }

    fn lost(&mut self, source: Addr, why: LinkError) {
        let mut world = self.world.lock().unwrap();
        world.reasons.push(why);
        let (me, peer) = (self.rank, self.rank_of(world.ranks, source));
        world.later.retain(|(from, to, _)| (*from, *to) != (me, peer));
        for (from, to) in [(me, peer), (peer, me)] {
            let pair = world.pair(from, to);
            pair.excused = pair.requests.len();
            pair.losses += 1;
        }
        // The costs of lost requests are those of this side alone.
        let pair = world.pair(me, peer);
        pair.unanswered = 0;
        pair.costs.clear();
    }
}

/// A run: each rank sends `requests` requests.
struct Job {
    cluster: Cluster,
    world: Arc<Mutex<World>>,
    rng: Stream,
    left: Vec<usize>,
    window: usize,
    /// Permille of requests that handlers answer, and that calls answer.
    answered: (u32, u32),
    body_bytes: usize,
    burst: usize,
    accepted: usize,
}

impl Job {
    fn new(fabric: FabricConfig, ranks: usize, requests: usize, window: u16) -> Self {
        let rng = Stream::new(fabric.seed, Entity::Test(0));
        let engine = Config { active_window: window, ..Config::default() };
        let mut cluster = Cluster::new(fabric, engine, ranks);
        let world = Arc::new(Mutex::new(World { ranks, reply_bytes: 3000, ..World::default() }));
        for rank in 0..ranks {
            let handler = Handler { rank, world: Arc::clone(&world) };
            cluster.engine(rank).unwrap().set_active_handler(Box::new(handler));
        }
        let (window, left) = (usize::from(window), vec![requests; ranks]);
        Self { cluster, world, rng, left, window, answered: (600, 200), body_bytes: 3000, burst: 4, accepted: 0 }
    }

    fn send(&mut self, from: usize, to: usize, reply: bool, head: &[u8], body: Vec<u8>) -> Result<(), Error> {
        let dest = self.cluster.addr(from, to);
        let mut body = Owned::new(body);
        let body = [body.iov()];
        let head = &mut ActiveHead::new(head);
        self.cluster.engine(from).unwrap().send_active(&mut ActiveMessage { dest, reply, head, body: &body })
    }

    /// Sends requests of a rank while there is credit.
    fn issue(&mut self, from: usize, to: usize) {
        for _ in 0..self.burst {
            if self.left[from] == 0 {
                return;
            }
            let (id, draw) =
                (self.world.lock().unwrap().pair(from, to).requests.len() as u32, self.rng.below(1000) as u32);
            let wanted = match draw {
                n if n < self.answered.0 => Wanted::Now,
                n if n < self.answered.0 + self.answered.1 => Wanted::Later,
                _ => Wanted::Nothing,
            };
            let dest = self.cluster.addr(from, to);
            let most = self.cluster.engine(from).unwrap().active_limit(dest).min(self.body_bytes);
            let len = if self.rng.chance(500) { self.rng.index(most + 1) } else { self.rng.index(most.min(32) + 1) };
            match self.send(from, to, false, &head_of(id, len, wanted), body_of(id, false, len)) {
                Ok(()) => {}
                Err(Error::Again) => return,
                Err(why) => panic!("a request of {len} bytes from {from} to {to}: {why}"),
            }
            (self.left[from], self.accepted) = (self.left[from] - 1, self.accepted + 1);
            let mut world = self.world.lock().unwrap();
            let pair = world.pair(from, to);
            pair.requests.push(if wanted == Wanted::Nothing { 0 } else { 4 });
            if wanted == Wanted::Now {
                let cost = 1 + (HEAD_BYTES + len) / UNIT_BYTES;
                pair.costs.insert(id, cost);
                pair.unanswered += cost;
                assert!(pair.unanswered <= self.window, "{} units are under way, of {}", pair.unanswered, self.window);
            }
        }
    }

    /// Sends the replies that handlers have left to calls.
    fn reply_later(&mut self, rank: usize) {
        let due = std::mem::take(&mut self.world.lock().unwrap().later);
        let (mine, others): (Vec<_>, Vec<_>) = due.into_iter().partition(|(from, ..)| *from == rank);
        self.world.lock().unwrap().later.extend(others);
        for (from, to, id) in mine {
            let dest = self.cluster.addr(from, to);
            let len = mixed(id) as usize % (self.cluster.engine(from).unwrap().active_limit(dest).min(200) + 1);
            match self.send(from, to, true, &head_of(id, len, Wanted::Nothing), body_of(id, true, len)) {
                Ok(()) => {}
                Err(Error::Again) => self.world.lock().unwrap().later.push((from, to, id)),
                Err(why) => panic!("a reply of {len} bytes from {from} to {to}: {why}"),
            }
        }
    }

    /// One turn of all ranks, which then send.
    fn step(&mut self, own: bool) -> Turn {
        let turn = self.cluster.turn(|_, _| {});
        let live = self.cluster.live_ranks();
        for &from in &live {
            self.reply_later(from);
            let to = *self.rng.pick(&live);
            if from != to || own || live.len() == 1 {
                self.issue(from, to);
            }
        }
        turn
    }

    /// Runs until all requests are handled and answered. `each` is called after each turn.
    fn run(&mut self, own: bool, mut each: impl FnMut(&mut Self, usize)) {
        let (mut idle, mut turns) = (0, 0);
        loop {
            let before = self.accepted;
            let turn = self.step(own);
            each(self, turns);
            turns += 1;
            let all_sent = self.cluster.live_ranks().iter().all(|rank| self.left[*rank] == 0);
            idle = if turn == Turn::Idle && self.accepted == before { idle + 1 } else { 0 };
            if idle > 0 && all_sent && self.world.lock().unwrap().is_done() {
                break;
            }
            assert!(
                idle < 300,
                "the run stands still: {} requests left\n{}",
                self.left.iter().sum::<usize>(),
                self.state()
            );
            assert!(turns < 3_000_000, "the run does not end: {:?}", self.left);
        }
        for rank in self.cluster.live_ranks() {
            assert!(self.cluster.engine(rank).unwrap().at_rest(), "rank {rank} is not at rest");
        }
        assert_eq!(self.cluster.fabric().violations(), Vec::<String>::new());
    }

    fn state(&self) -> String {
        let world = self.world.lock().unwrap();
        let line = |((from, to), pair): (&(usize, usize), &Pair)| {
            let open = pair.requests.iter().filter(|state| **state & 1 == 0).count();
            format!("{from} to {to}: {} sent, {open} not handled, {} unanswered", pair.requests.len(), pair.unanswered)
        };
        world.pairs.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn losses(&self) -> usize {
        self.world.lock().unwrap().pairs.values().map(|pair| pair.losses).sum()
    }
}

#[test]
fn requests_and_replies_arrive_once() {
    let mut job = Job::new(FabricConfig::new(1), 3, 2000, 64);
    job.run(true, |_, _| {});
    assert_eq!(job.losses(), 0);
}

/// The devices take one message at a time, or refuse at random. The replies of handlers wait in memory.
#[test]
fn full_devices_lose_nothing() {
    for seed in 0..40 {
        let hazards: Hazards = [Hazard::Full, Hazard::Partial, Hazard::Delay].into_iter().collect();
        let window = [1, 2, 3, 8, 64, 1024][seed as usize % 6];
        let mut job = Job::new(FabricConfig::draw(seed, hazards), 2 + seed as usize % 3, 300, window);
        job.answered = [(1000, 0), (600, 200), (0, 0)][seed as usize % 3];
        job.run(seed % 2 == 0, |_, _| {});
        assert_eq!(job.losses(), 0, "seed {seed}");
    }
}

/// Both sides send all that they may before either makes progress.
#[test]
fn credit_runs_out_in_both_directions() {
    for window in [1, 2, 5, 16] {
        let mut fabric = FabricConfig::new(u64::from(window));
        (fabric.queue_depth, fabric.poll_budget) = (4, 3);
        let mut job = Job::new(fabric, 2, 3000, window);
        (job.burst, job.answered) = (1000, (900, 100));
        job.run(false, |_, _| {});
        assert_eq!(job.losses(), 0);
    }
}

/// Messages overtake one another, arrive twice, or are lost beneath the device.
#[test]
fn unordered_links_lose_nothing() {
    for seed in 100..140 {
        let hazards: Hazards =
            [Hazard::Reorder, Hazard::Duplicate, Hazard::Drop, Hazard::Full, Hazard::Slow].into_iter().collect();
        let mut job = Job::new(FabricConfig::draw(seed, hazards), 3, 200, 16);
        job.run(true, |_, _| {});
        assert_eq!(job.losses(), 0, "seed {seed}");
    }
}

/// Links break and are made again, while both sides send.
#[test]
fn broken_links_lose_their_own_messages() {
    for seed in 200..230 {
        let hazards: Hazards = [Hazard::Full, Hazard::Delay, Hazard::Refuse].into_iter().collect();
        let mut job = Job::new(FabricConfig::draw(seed, hazards), 3, 400, 16);
        job.run(true, |job, turn| {
            if turn % 97 == 96 && turn < 1000 {
                let (a, b) = (job.rng.index(3), job.rng.index(3));
                job.cluster.fabric().clone().break_links(a, b, 0);
            }
        });
        assert!(job.accepted == 1200, "seed {seed}");
    }
}

/// A rank dies while requests and replies are under way in both directions. The others go on.
#[test]
fn a_death_ends_its_own_messages_only() {
    for seed in 300..330 {
        let mut job = Job::new(FabricConfig::draw(seed, Hazards::NONE), 3, 400, 16);
        let when = 20 + job.rng.index(200);
        job.run(false, |job, turn| {
            if turn == when {
                if seed % 2 == 0 {
                    job.cluster.kill(2)
                } else {
                    job.cluster.leave(2)
                }
                let mut world = job.world.lock().unwrap();
                world.later.retain(|(from, to, _)| *from != 2 && *to != 2);
                // A link that was never made has no end to report.
                for other in 0..2 {
                    for (from, to) in [(other, 2), (2, other)] {
                        let pair = world.pair(from, to);
                        pair.excused = pair.requests.len();
                    }
                }
            }
        });
        assert_eq!(job.left[..2], [0, 0]);
    }
}

/// The bytes of a message that make it a violation.
type Forgery = fn(&mut Vec<u8>);

/// A message that breaks the rules ends its link. Both sides learn it, and go on over the next link.
#[test]
fn violations_end_the_link() {
    // Byte 0 is the kind, byte 1 the length of the header and the mark of replies, bytes 2 and 3 the credit.
    let forgeries: [(&str, Forgery); 6] = [
        ("credit that was not used", |bytes| bytes[2..4].copy_from_slice(&[255, 255])),
        ("a header beyond the limit", |bytes| bytes[1] = 97),
        ("a header beyond the message", |bytes| bytes.truncate(HEAD_BYTES + 7)),
        ("a request beyond the window", |bytes| {
            bytes[1] &= 127;
            bytes.resize(6000, 0);
        }),
        ("credit alone that was not used", |bytes| {
            bytes[0] = 27;
            bytes[2..4].copy_from_slice(&[255, 255]);
        }),
        ("an unknown kind", |bytes| bytes[0] = 28),
    ];
    for (what, forge) in forgeries {
        let mut job = Job::new(FabricConfig::new(1), 2, 200, 4);
        let mut left = 20;
        job.cluster.fabric().set_interceptor(Box::new(move |_, _, whole, bytes| {
            if whole && bytes[0] == 26 && left > 0 {
                left -= 1;
                if left == 0 {
                    forge(bytes);
                }
            }
            Fate::Deliver
        }));
        job.run(false, |_, _| {});
        let world = job.world.lock().unwrap();
        assert_eq!(world.reasons[0], LinkError::Protocol, "{what}");
        assert_eq!(world.reasons.len(), 2, "{what}: {:?}", world.reasons);
    }
}

/// An endpoint without a handler takes no active messages, and its link stays.
#[test]
fn an_endpoint_without_a_handler_is_spared() {
    let mut cluster = Cluster::new(FabricConfig::new(1), Config::default(), 2);
    let world = Arc::new(Mutex::new(World { ranks: 2, ..World::default() }));
    let mut head = ActiveHead::empty();
    let dest = cluster.addr(0, 1);
    let to_second = &mut ActiveMessage { dest, reply: false, head: &mut head, body: &[] };
    assert_eq!(cluster.engine(0).unwrap().send_active(to_second), Err(Error::Invalid));
    cluster.engine(0).unwrap().set_active_handler(Box::new(Handler { rank: 0, world: Arc::clone(&world) }));
    assert_eq!(cluster.engine(0).unwrap().send_active(to_second), Err(Error::Again));
    while cluster.turn(|_, _| {}) != Turn::Idle {}
    assert_eq!(cluster.engine(0).unwrap().send_active(to_second), Err(Error::Invalid));
    assert!(world.lock().unwrap().reasons.is_empty());
    to_second.dest = 99;
    assert_eq!(cluster.engine(0).unwrap().send_active(to_second), Err(Error::NoSuchAddress));
}

#[test]
fn a_million_requests() {
    let mut job =
        Job::new(FabricConfig { queue_depth: 4096, poll_budget: 256, ..FabricConfig::new(9) }, 2, 500_000, 1024);
    (job.burst, job.body_bytes, job.answered) = (512, 16, (300, 0));
    job.world.lock().unwrap().reply_bytes = 16;
    job.run(false, |_, _| {});
    assert_eq!((job.accepted, job.losses()), (1_000_000, 0));
}
