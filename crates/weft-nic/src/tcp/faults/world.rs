//! One run: some devices on a simulated network, their messages and pushes, and the check that all of them arrive.
//!
//! Place in the data flow: [`super`] calls [`run`] with a seed, which determines everything. Each link carries messages
//! and pushes in both directions while the network's faults last. All contents follow from link, direction and number,
//! so that lost, repeated, changed or misordered bytes are noticed immediately. Then some links are closed, and all
//! devices must come to rest.

use std::collections::HashMap;

use weft_engine::mem::{self, IovList, Owned};
use weft_engine::name::{EpName, FIRST_TX_CONTEXT, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};
use weft_fuzz::Random;

use super::super::{LinkState, Task, Tcp, TcpConfig};
use super::net::{self, Cuts, Faults, Net};

/// Limit of rounds in a run.
const ROUNDS: usize = 400_000;
/// Time limit in milliseconds until the devices come to rest.
const REST_MS: u64 = 300_000;
/// Rounds without an event after which the clock jumps to the next timer.
const IDLE_ROUNDS: usize = 100;
/// Bytes of link and number at the beginning of a message.
const HEAD_BYTES: usize = 8;
/// Limit of the numbers of a link's pushes.
const PUSHES: usize = 1000;
/// From this seed on links have rails.
pub(super) const RAILS: u64 = 1 << 32;

/// The counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) messages: u64,
    pub(super) pushes: u64,
    pub(super) breaks: u64,
    pub(super) resumed: u64,
    pub(super) closed: u64,
    pub(super) rails: u64,
    pub(super) rails_lost: u64,
    pub(super) rail_bytes: u64,
    trace: u64,
}

impl Report {
    pub(super) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.pushes += other.pushes;
        self.breaks += other.breaks;
        self.resumed += other.resumed;
        self.closed += other.closed;
        self.rails += other.rails;
        self.rails_lost += other.rails_lost;
        self.rail_bytes += other.rail_bytes;
        self.trace ^= other.trace;
    }
}

/// The contents of the n-th message or push of a stream.
fn contents(stream: u64, n: usize, len: usize) -> Vec<u8> {
    let mut random = Random(stream << 40 ^ (n as u64) << 20);
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&random.bits().to_le_bytes()[..word.len()]);
    }
    bytes
}

/// The messages and pushes of one side of a link.
struct Script {
    /// Distinguishes all streams of a run.
    stream: u64,
    /// Lengths in bytes of the messages, and of the pushes.
    messages: Vec<usize>,
    pushes: Vec<usize>,
    sent: usize,
    pushed: usize,
    /// Messages that were sent before each push.
    after: Vec<usize>,
    /// The memory of the pushes. It belongs to the client again when the push is done.
    sources: Vec<Option<Owned>>,
    done: Vec<bool>,
    /// Messages that have arrived at the other side.
    got: usize,
    /// The windows of the pushes at the other side, the number of bytes placed in each, and these bytes.
    windows: Vec<Owned>,
    placed: Vec<usize>,
    seen: Vec<Vec<bool>>,
}

impl Script {
    /// Draws the messages and pushes. `bulk`: most pushes are long.
    fn draw(stream: u64, bulk: bool, random: &mut Random) -> Self {
        let count = |random: &mut Random, most| if random.below(4) == 0 { 0 } else { random.below(most) };
        let messages = 1 + count(random, 50);
        let messages = (0..messages).map(|_| HEAD_BYTES + message_bytes(random)).collect();
        let pushes = count(random, 10);
        let pushes: Vec<usize> =
            (0..pushes).map(|_| if bulk { 1 + random.below(400_000) } else { push_bytes(random) }).collect();
        let (done, placed) = (vec![false; pushes.len()], vec![0; pushes.len()]);
        let windows = pushes.iter().map(|&len| Owned::new(vec![0; len])).collect();
        let seen = pushes.iter().map(|&len| vec![false; len]).collect();
        Self {
            stream,
            messages,
            sent: 0,
            pushed: 0,
            after: Vec::new(),
            sources: Vec::new(),
            done,
            got: 0,
            windows,
            placed,
            seen,
            pushes,
        }
    }

    fn message(&self, link: usize, n: usize) -> Vec<u8> {
        let mut bytes = contents(self.stream, PUSHES + n, self.messages[n]);
        bytes[..4].copy_from_slice(&(link as u32).to_le_bytes());
        bytes[4..HEAD_BYTES].copy_from_slice(&(n as u32).to_le_bytes());
        bytes
    }

    /// Whether everything has been sent, and the pushes are done.
    fn said(&self) -> bool {
        self.sent == self.messages.len() && self.done.iter().all(|&done| done)
    }

    /// Whether everything has been sent and has arrived.
    fn over(&self) -> bool {
        self.got == self.messages.len() && self.done.iter().all(|&done| done)
    }
}

fn message_bytes(random: &mut Random) -> usize {
    match random.below(20) {
        0 => random.below(60_000),
        1..=3 => random.below(12_000),
        _ => random.below(300),
    }
}

fn push_bytes(random: &mut Random) -> usize {
    1 + match random.below(6) {
        0 => random.below(150_000),
        1 | 2 => random.below(20_000),
        _ => random.below(600),
    }
}

/// The end of a link after everything has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stays,
    /// Side 0 or 1 closes the link after everything has arrived.
    Closed(usize),
    /// Side 0 or 1 closes the link as soon as it has sent everything and its pushes are done.
    Early(usize),
}

struct Link {
    /// The nodes of the caller and of the called device, and the link's number at each.
    nodes: [usize; 2],
    ids: [Option<LinkId>; 2],
    scripts: [Script; 2],
    end: End,
    /// Whether each side has closed the link.
    closed: [bool; 2],
    heard_down: [Option<LinkError>; 2],
}

/// The sink of one node: it checks all links of a run.
struct Book<'a> {
    node: usize,
    links: &'a mut [Link],
    /// Links that came up at this node and have not been identified by a message.
    strangers: &'a mut Vec<LinkId>,
    known: &'a mut HashMap<LinkId, (usize, usize)>,
    wrong: &'a mut Vec<String>,
    /// The bytes of a push may come in any order.
    rails: bool,
}

impl Book<'_> {
    fn wrong(&mut self, what: String) {
        self.wrong.push(format!("node {}: {what}", self.node));
    }

    /// The link, and this node's side of it.
    fn at(&mut self, id: LinkId) -> Option<(usize, usize)> {
        let at = self.known.get(&id).copied();
        if at.is_none() {
            self.wrong(format!("unknown link {id:?}"));
        }
        at
    }

    fn push(&mut self, id: LinkId, window: u64) -> Option<(&mut Script, usize)> {
        let (link, side) = self.at(id)?;
        let script = &mut self.links[link].scripts[1 - side];
        Some((script, window as usize))
    }
}

impl Sink for Book<'_> {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, id: LinkId, info: LinkUp) {
        if !info.initiator {
            self.strangers.push(id);
        } else if self.at(id).is_none() {
            self.wrong(format!("{id:?} is up"));
        }
    }

    fn down(&mut self, id: LinkId, why: LinkError) {
        if let Some(at) = self.strangers.iter().position(|&stranger| stranger == id) {
            // The verdict did not arrive, and the caller has called again.
            self.strangers.swap_remove(at);
            if why != LinkError::Gone {
                self.wrong(format!("a link that its caller abandoned ended: {why}"));
            }
            return;
        }
        let Some((link, side)) = self.at(id) else { return };
        self.known.remove(&id);
        let one = &mut self.links[link];
        let (twice, expected) = (one.heard_down[side].replace(why).is_some(), one.closed[1 - side]);
        if twice || !expected || why != LinkError::Closed {
            self.wrong(format!("link {link} ended: {why}"));
        }
    }

    fn message(&mut self, id: LinkId, bytes: &[u8]) {
        if let Some(at) = self.strangers.iter().position(|&stranger| stranger == id) {
            self.strangers.swap_remove(at);
            let link = bytes.first_chunk().map_or(usize::MAX, |bytes| u32::from_le_bytes(*bytes) as usize);
            match self.links.get_mut(link) {
                Some(one) if one.nodes[1] == self.node && one.ids[1].is_none() => one.ids[1] = Some(id),
                _ => return self.wrong(format!("the first message has no valid header: {bytes:?}")),
            }
            self.known.insert(id, (link, 1));
        }
        let Some((link, side)) = self.at(id) else { return };
        let script = &mut self.links[link].scripts[1 - side];
        let n = script.got;
        script.got += 1;
        if n >= script.sent {
            return self.wrong(format!("link {link}: message {n} was not sent"));
        }
        let expected = script.message(link, n);
        if bytes != expected {
            let at = bytes.iter().zip(&expected).position(|(a, b)| a != b);
            self.wrong(format!(
                "link {link}: message {n}: {} of {} bytes, wrong at {at:?}",
                bytes.len(),
                expected.len()
            ));
        }
    }

    fn place(&mut self, id: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        let rails = self.rails;
        let (script, n) = self.push(id, window)?;
        let offset = offset as usize;
        let is_next = |script: &Script| rails || offset == script.placed[n];
        let is_new =
            |script: &Script| script.seen[n].get(offset..offset + len).is_some_and(|seen| !seen.contains(&true));
        if n >= script.pushed || script.done[n] || !is_next(script) || !is_new(script) {
            self.wrong(format!("{id:?}: push {n}: {len} bytes for {offset}"));
            return None;
        }
        if script.got < script.after[n] {
            let (got, after) = (script.got, script.after[n]);
            self.wrong(format!("{id:?}: push {n} overtook messages: {got} of {after}"));
            return None;
        }
        Some(mem::slice(&[script.windows[n].iov()], offset, len))
    }

    fn placed(&mut self, id: LinkId, window: u64, offset: u64, len: usize) {
        let Some((script, n)) = self.push(id, window) else { return };
        if let Some(seen) = script.seen.get_mut(n).and_then(|seen| seen.get_mut(offset as usize..offset as usize + len))
        {
            seen.fill(true);
            script.placed[n] += len;
        }
    }

    fn done(&mut self, id: LinkId, ctx: u64, result: Result<(), LinkError>) {
        let Some((link, side)) = self.at(id) else { return };
        let over = self.links[link].closed[1 - side];
        let script = &mut self.links[link].scripts[side];
        let n = ctx as usize;
        if result == Err(LinkError::Closed) && over {
            return;
        }
        if n >= script.pushed || std::mem::replace(&mut script.done[n], true) || result.is_err() {
            return self.wrong(format!("link {link}: push {n} is done: {result:?}"));
        }
        let len = script.pushes[n];
        if script.placed[n] != len {
            let placed = script.placed[n];
            return self.wrong(format!("link {link}: push {n} is done, {placed} of {len} bytes have come"));
        }
        // The owner may now overwrite the memory.
        if let Some(source) = &mut script.sources[n] {
            source.iov().write(&vec![0xdd; len]);
        }
        if mem::to_vec(&[script.windows[n].iov()]) != contents(script.stream, n, len) {
            self.wrong(format!("link {link}: push {n}: wrong bytes"));
        }
    }
}

struct Node {
    tcp: Tcp,
    strangers: Vec<LinkId>,
    known: HashMap<LinkId, (usize, usize)>,
    /// The node is not polled before this time.
    sleeps_until_ms: u64,
}

struct World {
    random: Random,
    nodes: Vec<Node>,
    links: Vec<Link>,
    wrong: Vec<String>,
    /// The percentage of rounds that skip a node.
    lazy: usize,
    /// The number of rounds in 1000 that suspend a node.
    sleepy: usize,
    rails: bool,
}

impl Drop for World {
    /// A device that has panicked may panic again while it sends a goodbye.
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(std::mem::take(&mut self.nodes));
        }
    }
}

fn cuts(random: &mut Random) -> Cuts {
    let most = [1, 3, 30, 3000, 100_000][random.below(5)];
    let percent = if random.below(3) == 0 { 0 } else { random.below(if most < 30 { 60 } else { 90 }) };
    Cuts { percent, nothing: random.below(60), most }
}

fn faults(random: &mut Random) -> Faults {
    Faults {
        writes: cuts(random),
        reads: cuts(random),
        small: [0, 0, 5, 40][random.below(4)],
        window: [300, 5000, 60_000, 1 << 20][random.below(4)],
        delays: [0, 0, 3, 20][random.below(4)],
        delay_ms: [1, 10, 300][random.below(3)],
        breaks: [2, 10, 60][random.below(3)],
        early_breaks: [0, 30, 150][random.below(3)],
        budget: random.below(13),
    }
}

impl World {
    fn draw(seed: u64) -> Self {
        let rails = seed >= RAILS;
        let seed = seed % RAILS;
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let (encrypt, bulk) = (seed % 2 == 1, seed % 16 >= 14);
        let mut faults = faults(&mut random);
        if bulk {
            (faults.breaks, faults.window, faults.writes.percent) = (250, 1 << 20, faults.writes.percent / 4);
        }
        net::install(Some(Net::new(random.bits(), faults)));
        let segment_bytes = [256 * 1024, 100, 3001, 65_536][if bulk { 0 } else { random.below(4) }];
        let mut config = TcpConfig { segment_bytes, ..TcpConfig::default() }.with(|config| config.encrypt = encrypt);
        if rails {
            config.streams = 2 + random.below(2);
            config.streams_within_host = true;
            config.stripe_bytes = [100, 3001, 20_000][random.below(3)];
        }
        let hosts = 1 + random.below(2) as u64;
        let mut nodes: Vec<Node> =
            (0..2 + random.below(2) as u64).map(|n| node(device(&config, 1 + n % hosts))).collect();
        // In some runs the last node is a transmit context, which calls and cannot be called.
        let transmits = seed % 5 == 4;
        if transmits {
            nodes.extend(contexts(&config, 1).map(node));
        }
        let called = nodes.len() - usize::from(transmits);
        let mut links: Vec<Link> =
            (0..1 + random.below(3)).map(|link| Link::draw(link, called, bulk, &mut random)).collect();
        if transmits {
            links[0].nodes[0] = called;
        }
        let (lazy, sleepy) = ([0, 50, 90][random.below(3)], [0, 0, 5][random.below(3)]);
        Self { random, nodes, links, wrong: Vec::new(), lazy, sleepy, rails }
    }

    fn connect(&mut self) {
        let names: Vec<EpName> = self.nodes.iter().map(|node| node.tcp.name()).collect();
        for (index, link) in self.links.iter_mut().enumerate() {
            let node = &mut self.nodes[link.nodes[0]];
            match node.tcp.connect(&names[link.nodes[1]]) {
                Ok(id) => {
                    link.ids[0] = Some(id);
                    node.known.insert(id, (index, 0));
                }
                Err(why) => self.wrong.push(format!("connect: {why}")),
            }
        }
    }

    /// Sends a message or push of one side of a link, if any is left.
    fn speak(&mut self, index: usize, side: usize) -> bool {
        let link = &mut self.links[index];
        let Some(id) = link.ids[side].filter(|_| !link.closed[side] && link.heard_down[side].is_none()) else {
            return false;
        };
        let (tcp, script) = (&mut self.nodes[link.nodes[side]].tcp, &mut link.scripts[side]);
        let n = script.pushed;
        // The first message identifies the link.
        if script.sent > 0
            && n < script.pushes.len()
            && (script.sent == script.messages.len() || self.random.below(5) == 0)
        {
            let mut source = Owned::new(contents(script.stream, n, script.pushes[n]));
            let iov = source.iov();
            let cut = self.random.below(iov.len());
            let pieces = [iov.slice(0, cut), iov.slice(cut, usize::MAX)];
            if tcp.push(id, n as u64, 0, &pieces, n as u64).is_err() {
                return false;
            }
            script.sources.push(Some(source));
            script.after.push(script.sent);
            script.pushed += 1;
            return true;
        }
        let n = script.sent;
        if n == script.messages.len() {
            return false;
        }
        let mut message = Owned::new(script.message(index, n));
        let iov = message.iov();
        let cut = self.random.below(HEAD_BYTES + 1);
        let head = mem::to_vec(&[iov.slice(0, cut)]);
        let accepted = tcp.send(id, &head, &[iov.slice(cut, usize::MAX)]).is_ok();
        script.sent += usize::from(accepted);
        accepted
    }

    /// Closes some links after everything has been sent.
    fn close(&mut self) {
        for link in &mut self.links {
            let (side, ready) = match link.end {
                End::Stays => continue,
                End::Closed(side) => (side, link.scripts.iter().all(Script::over)),
                End::Early(side) => (side, link.scripts[side].said()),
            };
            if link.closed[side] || !ready {
                continue;
            }
            if let Some(id) = link.ids[side] {
                let node = &mut self.nodes[link.nodes[side]];
                link.closed[side] = true;
                // The wait for the link's end is limited.
                net::with(Net::calm);
                node.known.remove(&id);
                node.tcp.close(id);
            }
        }
    }

    fn poll(&mut self, node: usize) -> bool {
        let Node { tcp, strangers, known, sleeps_until_ms } = &mut self.nodes[node];
        let now_ms = net::with(|net| net.now_ms).unwrap_or(0);
        if now_ms < *sleeps_until_ms {
            return false;
        }
        if self.random.below(1000) < self.sleepy {
            *sleeps_until_ms = now_ms + self.random.below(400) as u64;
        }
        match self.random.below(20) {
            0 => tcp.flush(),
            1 => drop(tcp.drain()),
            _ => {}
        }
        let mut book =
            Book { node, links: &mut self.links, strangers, known, wrong: &mut self.wrong, rails: self.rails };
        tcp.poll(&mut book) > 0
    }

    /// One round of all links, nodes and the network. Returns whether anything has moved.
    fn round(&mut self, idle: usize) -> bool {
        let mut moved = false;
        for index in 0..self.links.len() {
            for side in 0..2 {
                if self.random.below(3) == 0 {
                    moved |= self.speak(index, side);
                }
            }
        }
        self.close();
        for node in 0..self.nodes.len() {
            if idle > 2 || self.random.below(100) >= self.lazy {
                moved |= self.poll(node);
            }
        }
        moved | net::with(Net::step).unwrap_or(false)
    }

    /// The first link that is not finished, if any.
    fn unfinished(&self) -> Option<String> {
        for (index, link) in self.links.iter().enumerate() {
            for (side, script) in link.scripts.iter().enumerate() {
                // A side that closes early does not receive any more.
                if !script.over() && link.end != End::Early(1 - side) {
                    let done = script.done.iter().filter(|&&done| done).count();
                    return Some(format!(
                        "link {index} from side {side}: {} of {} messages came, {} were sent, {done} of {} pushes are done, {} were begun",
                        script.got,
                        script.messages.len(),
                        script.sent,
                        script.pushes.len(),
                        script.pushed
                    ));
                }
            }
            if let End::Closed(side) | End::Early(side) = link.end
                && !(link.closed[side] && link.heard_down[1 - side].is_some())
            {
                return Some(format!("link {index} has not ended"));
            }
        }
        None
    }

    /// State that is left at rest, if any.
    fn leftover(&self) -> Option<String> {
        let mut left = Vec::new();
        let lasting = self.links.iter().filter(|link| link.end == End::Stays);
        for (number, node) in self.nodes.iter().enumerate() {
            let tcp = &node.tcp;
            let ends = lasting.clone().flat_map(|link| link.nodes).filter(|&at| at == number).count();
            let mut expect = |what: &str, is: usize, shall: usize| {
                if is != shall {
                    left.push(format!("node {number}: {what}: {is}, not {shall}"));
                }
            };
            expect("links", tcp.links.len(), ends);
            expect("half-open connections", tcp.halves.len(), 0);
            expect("closed links", tcp.agenda.len(Task::Close), 0);
            expect("calls", tcp.agenda.len(Task::Connect), 0);
            expect("secrets", tcp.secrets.len(), if tcp.config.endpoint.encrypt { ends + tcp.rails.up() } else { 0 });
            expect("pushes on rails", usize::from(!tcp.rails.is_drained()), 0);
            expect("rails being made", tcp.rails.len(), tcp.rails.up());
            expect("rails that wait", usize::from(tcp.rails.is_held()), 0);
            expect("sessions", tcp.sessions.len(), ends);
            expect("acknowledgements due", tcp.agenda.len(Task::AckDue), 0);
            expect("writability watched", tcp.agenda.len(Task::AwaitWritable), 0);
            expect("links to be flushed", tcp.agenda.len(Task::Flush), 0);
            expect("strangers", node.strangers.len(), 0);
            for (_, link) in tcp.links.iter() {
                expect("bytes kept", link.tx.unacked(), 0);
                expect("pushes", link.tx.pushes(), 0);
                expect("links that are not up", usize::from(!matches!(link.state, LinkState::Up)), 0);
                expect("frames under way", usize::from(link.rx.rx.within()), 0);
            }
        }
        let connections = net::with(|net| net.connections()).unwrap_or(0);
        let rails: usize = self.nodes.iter().map(|node| node.tcp.rails.up()).sum();
        if 2 * connections != 2 * lasting.count() + rails {
            left.push(format!("{connections} connections"));
        }
        (!left.is_empty()).then(|| left.join("; "))
    }

    /// Runs rounds until `open` returns `None`.
    fn until(&mut self, open: impl Fn(&Self) -> Option<String>, patience_ms: u64) -> Result<(), String> {
        let start_ms = net::with(|net| net.now_ms).unwrap_or(0);
        let mut idle = 0;
        for round in 0.. {
            let moved = self.round(idle);
            if let Some(why) = self.wrong.first() {
                return Err(why.clone());
            }
            let Some(why) = open(self) else { return Ok(()) };
            idle = if moved { 0 } else { idle + 1 };
            let now_ms = net::with(|net| net.now_ms).unwrap_or(0);
            if round > ROUNDS || now_ms - start_ms > patience_ms {
                net::with(|net| net.log_state());
                for node in &self.nodes {
                    node.tcp.links.iter().for_each(|(id, link)| log::trace!("{} link {id}: {link:?}", node.tcp.addr));
                }
                return Err(format!("not finished after {} ms: {why}", now_ms - start_ms));
            }
            let timers = self.nodes.iter().map(|node| node.tcp.next_timer_ms.max(node.sleeps_until_ms)).min();
            net::with(|net| {
                // By then every device has polled all of its sockets.
                if idle > 2 && idle % IDLE_ROUNDS == 0 {
                    net.now_ms = net.next_ms().min(timers.unwrap_or(u64::MAX)).clamp(now_ms + 1, now_ms + 10_000);
                } else if idle > 2 || round % 16 == 0 {
                    net.now_ms += 1;
                }
            });
        }
        Ok(())
    }
}

impl Link {
    fn draw(index: usize, nodes: usize, bulk: bool, random: &mut Random) -> Self {
        let from = random.below(nodes);
        let to = (from + 1 + random.below(nodes - 1)) % nodes;
        let script = |side: u64, random: &mut Random| Script::draw(2 * index as u64 + side, bulk, random);
        let scripts = [script(0, random), script(1, random)];
        let ends = [End::Stays, End::Stays, End::Closed(0), End::Closed(1), End::Early(0), End::Early(1)];
        let end = ends[random.below(ends.len())];
        Self { nodes: [from, to], ids: [None; 2], scripts, end, closed: [false; 2], heard_down: [None; 2] }
    }
}

fn node(tcp: Tcp) -> Node {
    Node { tcp, strangers: Vec::new(), known: HashMap::new(), sleeps_until_ms: 0 }
}

/// The parts of an endpoint's name, with port 0.
fn parts(host_id: u64) -> NameParts {
    let capability = crate::handshake::random().expect("the network's own");
    NameParts {
        socket: ([127, 0, 0, 1], 0).into(),
        host_id,
        ep_id: endpoint_id(&capability),
        capability,
        context: None,
        shm: false,
        tcp: true,
    }
}

/// A device on this thread's network.
pub(super) fn device(config: &TcpConfig, host_id: u64) -> Tcp {
    Tcp::new(config, &parts(host_id)).expect("a device")
}

/// The devices of a scalable endpoint's first receive context and of a transmit context, whose name contains the
/// other's socket.
pub(super) fn contexts(config: &TcpConfig, host_id: u64) -> [Tcp; 2] {
    let me = parts(host_id);
    let open = |index| Tcp::new(config, &NameParts { context: Some(index), ..me }).expect("a device");
    let (receive, mut transmit) = (open(0), open(FIRST_TX_CONTEXT));
    let socket = receive.name().socket();
    transmit.rename(EpName::full(&NameParts { socket, context: Some(FIRST_TX_CONTEXT), ..me }));
    [receive, transmit]
}

/// Runs a seed. The error is the first violation.
pub(super) fn run(seed: u64) -> Result<Report, String> {
    let mut world = World::draw(seed);
    world.connect();
    world.until(World::unfinished, REST_MS)?;
    net::with(|net| net.faults.budget = 0);
    world.until(World::leftover, REST_MS)?;
    let mut report = Report { trace: net::with(|net| net.trace).unwrap_or(0), ..Report::default() };
    for node in &world.nodes {
        let stats = node.tcp.stats();
        report.breaks += stats.breaks;
        report.resumed += stats.resumed;
        report.rails += stats.rails_up;
        report.rails_lost += stats.rails_lost;
        report.rail_bytes += stats.rail_bytes;
    }
    for link in &world.links {
        report.messages += link.scripts.iter().map(|script| script.got as u64).sum::<u64>();
        report.pushes += link.scripts.iter().map(|script| script.pushes.len() as u64).sum::<u64>();
        report.closed += u64::from(link.end != End::Stays);
    }
    Ok(report)
}
