//! Chains on the simulated fabric: frames between endpoints that move while no engine makes progress, over connections
//! that are cut at random.
//!
//! Place in the data flow: [`SimNic`](crate::SimNic) passes the calls of an engine here. Each frame has an event at its
//! arrival, at which the receiver's chains go on. A cut connection may have lost the frames that are in it, while the
//! links of its ends are fine.
//!
//! Invariant: without [`FabricConfig::chains`](crate::FabricConfig) nothing here draws a number or adds an event.

use std::collections::{BTreeMap, VecDeque};

use weft_engine::nic::{ChainEnd, ChainId, ChainState, ChainStep};

use crate::event::Event;
use crate::fabric::FabricState;
use crate::rng::{Entity, Stream};
use crate::wire::Side;

/// Time limit for the ends of a chain to be connected.
const OPEN_NS: u64 = 5_000_000;

/// A connection, by wire and the numbers by which initiator and acceptor know it.
type Key = (usize, u32, u32);

/// One connection. Arrays are by side.
#[derive(Debug)]
struct Connection {
    eps: [usize; 2],
    open: [bool; 2],
    /// Frames to each side, with the time of their arrival.
    frames: [VecDeque<(u64, u64)>; 2],
    cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening(u64),
    Ready,
    Running,
    Broken,
}

#[derive(Debug)]
struct Chain {
    ep: usize,
    ends: Vec<(Key, usize)>,
    phase: Phase,
    steps: Vec<ChainStep>,
    at: usize,
    arrivals: u64,
}

/// All chains of a fabric. Closed ones stay as `None`.
#[derive(Debug)]
pub(crate) struct Chains {
    chains: Vec<Option<Chain>>,
    connections: BTreeMap<Key, Connection>,
    rng: Stream,
}

impl Chains {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = Stream::new(seed, Entity::Test(usize::MAX >> 10));
        Self { chains: Vec::new(), connections: BTreeMap::new(), rng }
    }

    fn get(&mut self, id: ChainId) -> Option<&mut Chain> {
        self.chains.get_mut(id.0 as usize)?.as_mut()
    }
}

impl FabricState {
    /// The permille of frames at which a connection is cut; `None`: the device has no chains.
    fn cut_permille(&self) -> Option<u32> {
        self.config.chains
    }

    pub(crate) fn open_chain(&mut self, ep: usize, ends: &[ChainEnd]) -> Option<ChainId> {
        self.cut_permille()?;
        if self.chains.rng.chance(50) {
            return None;
        }
        let mut keys = Vec::new();
        for end in ends {
            let id = self.lookup(ep, end.link)?;
            let (side, other) = (id.side.index(), self.end(id.other()).ep);
            let key = match id.side {
                Side::Initiator => (id.wire, end.ours, end.theirs),
                Side::Acceptor => (id.wire, end.theirs, end.ours),
            };
            let mut eps = [other; 2];
            eps[side] = ep;
            let fresh = || Connection { eps, open: [false; 2], frames: Default::default(), cut: false };
            self.chains.connections.entry(key).or_insert_with(fresh).open[side] = true;
            keys.push((key, side));
            self.chain_event(other);
        }
        let until_ns = self.now_ns + OPEN_NS;
        self.agenda.schedule(until_ns, Event::Chain { ep });
        let phase = Phase::Opening(until_ns);
        self.chains.chains.push(Some(Chain { ep, ends: keys, phase, steps: Vec::new(), at: 0, arrivals: 0 }));
        u32::try_from(self.chains.chains.len() - 1).ok().map(ChainId)
    }

    pub(crate) fn start_chain(&mut self, id: ChainId, steps: &[ChainStep]) -> bool {
        let Some(chain) = self.chains.get(id).filter(|chain| chain.phase == Phase::Ready) else { return false };
        (chain.steps, chain.at, chain.arrivals, chain.phase) = (steps.to_vec(), 0, 0, Phase::Running);
        self.run_chain(id.0 as usize);
        true
    }

    pub(crate) fn poll_chain(&mut self, id: ChainId) -> ChainState {
        self.run_chain(id.0 as usize);
        match self.chains.get(id).map(|chain| chain.phase) {
            Some(Phase::Opening(_) | Phase::Running) => ChainState::Busy,
            Some(Phase::Ready) => ChainState::Ready,
            Some(Phase::Broken) | None => ChainState::Broken,
        }
    }

    pub(crate) fn chain_arrivals(&self, id: ChainId) -> u64 {
        let chain = self.chains.chains.get(id.0 as usize).and_then(Option::as_ref);
        chain.map_or(0, |chain| chain.arrivals)
    }

    pub(crate) fn break_chain(&mut self, id: ChainId) {
        let Some(chain) = self.chains.get(id) else { return };
        if chain.phase != Phase::Running {
            chain.phase = Phase::Broken;
        }
        for (key, _) in chain.ends.clone() {
            self.cut_chain_end(key);
        }
        self.run_chain(id.0 as usize);
    }

    /// Closes a chain. Frames to it that have arrived are taken, unless an earlier one of the connection is missing.
    pub(crate) fn close_chain(&mut self, id: ChainId) -> u64 {
        let Some(mut chain) = self.chains.chains.get_mut(id.0 as usize).and_then(Option::take) else { return 0 };
        if chain.phase == Phase::Running {
            self.violation(chain.ep, "a chain was closed whose steps are under way");
        }
        let now_ns = self.now_ns;
        for (at, step) in chain.steps.iter().enumerate().skip(chain.at).filter(|(_, step)| !step.sends) {
            let (key, side) = chain.ends[step.end as usize];
            let frames = self.chains.connections.get_mut(&key).map(|connection| &mut connection.frames[side]);
            let Some(frames) = frames.filter(|frames| frames.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns)) else {
                continue;
            };
            let arrived = frames.pop_front().is_some_and(|(_, tag)| tag == step.tag);
            chain.arrivals |= u64::from(arrived) << at;
        }
        for (key, side) in chain.ends {
            if let Some(connection) = self.chains.connections.get_mut(&key) {
                connection.open[side] = false;
            }
            self.cut_chain_end(key);
        }
        chain.arrivals
    }

    /// An endpoint has ended.
    pub(crate) fn drop_chains_of(&mut self, ep: usize) {
        for index in 0..self.chains.chains.len() {
            if let Some(chain) = self.chains.chains[index].take_if(|chain| chain.ep == ep) {
                chain.ends.into_iter().for_each(|(key, _)| self.cut_chain_end(key));
            }
        }
    }

    /// A frame has arrived, or a connection has ended: the chains of an endpoint go on.
    pub(crate) fn run_chains_of(&mut self, ep: usize) {
        let of_ep = |chain: &Option<Chain>| chain.as_ref().is_some_and(|chain| chain.ep == ep);
        (0..self.chains.chains.len()).for_each(|index| {
            if of_ep(&self.chains.chains[index]) {
                self.run_chain(index);
            }
        });
    }

    /// Has an endpoint look at its chains at a random time soon.
    fn chain_event(&mut self, ep: usize) {
        let at_ns = self.now_ns + self.chains.rng.below(2 * (self.config.latency_ns + self.config.jitter_ns) + 1);
        self.agenda.schedule(at_ns, Event::Chain { ep });
    }

    /// Cuts a connection. Each direction loses its frames in one of two cases.
    fn cut_chain_end(&mut self, key: Key) {
        let Chains { connections, rng, .. } = &mut self.chains;
        let Some(connection) = connections.get_mut(&key).filter(|connection| !connection.cut) else { return };
        connection.cut = true;
        connection.frames.iter_mut().filter(|_| rng.chance(500)).for_each(VecDeque::clear);
        connection.eps.into_iter().for_each(|ep| self.chain_event(ep));
    }

    /// Performs the steps of a chain as far as possible.
    fn run_chain(&mut self, index: usize) {
        loop {
            let now_ns = self.now_ns;
            let Chains { chains, connections, rng } = &mut self.chains;
            let Some(chain) = chains.get_mut(index).and_then(Option::as_mut) else { return };
            if let Phase::Opening(until_ns) = chain.phase {
                let is_open =
                    |(key, _): &(Key, usize)| connections.get(key).is_some_and(|c| c.open == [true; 2] && !c.cut);
                if chain.ends.iter().all(is_open) {
                    chain.phase = Phase::Ready;
                } else if now_ns >= until_ns {
                    chain.phase = Phase::Broken;
                }
                return;
            }
            if chain.phase != Phase::Running {
                return;
            }
            let Some(&step) = chain.steps.get(chain.at) else {
                chain.phase = Phase::Ready;
                return;
            };
            let (key, side) = chain.ends[step.end as usize];
            let Some(connection) = connections.get_mut(&key) else { return };
            if !step.sends {
                match connection.frames[side].front() {
                    Some((at_ns, _)) if *at_ns > now_ns => return,
                    Some((_, tag)) if *tag == step.tag => {
                        connection.frames[side].pop_front();
                        chain.arrivals |= 1 << chain.at;
                        chain.at += 1;
                    }
                    Some(_) => {
                        let ep = chain.ep;
                        chain.phase = Phase::Broken;
                        return self.violation(ep, "a chain has received an unexpected frame");
                    }
                    None if connection.cut => {
                        chain.phase = Phase::Broken;
                        return;
                    }
                    None => return,
                }
                continue;
            }
            // A system may accept frames for a connection that has just been cut.
            if connection.cut && rng.chance(500) {
                chain.phase = Phase::Broken;
                return;
            }
            chain.at += 1;
            if connection.cut {
                continue;
            }
            let flight_ns = self.config.latency_ns + rng.below(self.config.jitter_ns + 1);
            let last_ns = connection.frames[1 - side].back().map_or(0, |(at_ns, _)| *at_ns);
            let at_ns = last_ns.max(now_ns + flight_ns);
            connection.frames[1 - side].push_back((at_ns, step.tag));
            self.agenda.schedule(at_ns, Event::Chain { ep: connection.eps[1 - side] });
            let cuts = rng.chance(self.config.chains.unwrap_or(0));
            self.stats.frames += 1;
            if cuts {
                self.stats.frame_cuts += 1;
                self.cut_chain_end(key);
            }
        }
    }
}
