//! N engines on one fabric, progressed in an order that the seed chooses.
//!
//! Place in the data flow: a test (or [`Harness`](crate::Harness), which also checks) calls the engines' operations and
//! [`Cluster::turn`]; completions collect here until they are taken.
//!
//! Invariant: one turn progresses every living engine at most once; virtual time jumps to the next event only when a
//! turn has moved nothing.

use std::sync::Arc;

use weft_engine::Engine;
use weft_engine::api::{Addr, AddressBook, Completion, Config};
use weft_engine::name::EpName;
use weft_engine::nic::Nic;

use crate::config::FabricConfig;
use crate::fabric::Fabric;
use crate::nic::SimNic;
use crate::rng::{Entity, Stream};

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something moved.
    Moved,
    /// Nothing moved, and time went to the next event.
    Advanced,
    /// Nothing moved and nothing will.
    Idle,
}

/// Every rank's address book: the ranks' names, rotated, so that no two ranks agree on an address.
#[derive(Debug)]
struct Names {
    names: Vec<EpName>,
    rotation: usize,
}

impl AddressBook for Names {
    fn name(&self, addr: Addr) -> Option<EpName> {
        let index = usize::try_from(addr).ok().filter(|index| *index < self.names.len())?;
        self.names.get((index + self.rotation) % self.names.len()).copied()
    }

    fn addr(&self, name: &EpName) -> Option<Addr> {
        let rank =
            self.names.iter().position(|own| own.same_endpoint(name) || own.socket_identity() == name.identity())?;
        Some(((rank + self.names.len() - self.rotation) % self.names.len()) as Addr)
    }
}

struct Node {
    engine: Engine<SimNic>,
    schedule: Stream,
    /// A rank that is slow takes part in so many turns out of 1000.
    diligence_permille: u32,
}

/// N engines on one fabric.
pub struct Cluster {
    fabric: Fabric,
    nodes: Vec<Option<Node>>,
}

impl Cluster {
    /// `ranks` engines that all know each other.
    #[must_use]
    pub fn new(fabric: FabricConfig, engine: Config, ranks: usize) -> Self {
        Self::with_impostors(fabric, engine, ranks, 0).0
    }

    /// `ranks` engines, and after them `impostors` ranks that the others know but behind which there is only a device,
    /// for the test to play.
    #[must_use]
    pub fn with_impostors(fabric: FabricConfig, engine: Config, ranks: usize, impostors: usize) -> (Self, Vec<SimNic>) {
        let seed = fabric.seed;
        let fabric = Fabric::new(fabric);
        let mut engines = (0..ranks).map(|_| Engine::new(engine, fabric.nic())).collect::<Vec<_>>();
        let nics = (0..impostors).map(|_| fabric.nic()).collect::<Vec<_>>();
        let names = engines.iter().map(Engine::name).chain(nics.iter().map(Nic::name)).collect::<Vec<_>>();
        for (rank, engine) in engines.iter_mut().enumerate() {
            engine.bind_book(Arc::new(Names { names: names.clone(), rotation: rank }));
        }
        let nodes = engines.into_iter().enumerate().map(|(rank, engine)| {
            let mut schedule = Stream::new(seed, Entity::Schedule(rank));
            let diligence_permille = if schedule.chance(250) { 200 } else { 1000 };
            Some(Node { engine, schedule, diligence_permille })
        });
        let nodes = nodes.chain((0..impostors).map(|_| None)).collect();
        (Self { nodes, fabric }, nics)
    }

    /// The fabric.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// How many ranks there were at the start.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a rank lives.
    #[must_use]
    pub fn lives(&self, rank: usize) -> bool {
        self.nodes.get(rank).is_some_and(Option::is_some)
    }

    /// The ranks that live.
    #[must_use]
    pub fn living(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|rank| self.lives(*rank)).collect()
    }

    /// Rank `peer` in the address book of rank `rank`.
    #[must_use]
    pub fn addr(&self, rank: usize, peer: usize) -> Addr {
        ((peer + self.nodes.len() - rank % self.nodes.len()) % self.nodes.len()) as Addr
    }

    /// The rank behind an address of rank `rank`.
    #[must_use]
    pub fn rank_of(&self, rank: usize, addr: Addr) -> Option<usize> {
        let index = usize::try_from(addr).ok().filter(|index| *index < self.nodes.len())?;
        Some((index + rank) % self.nodes.len())
    }

    /// A living rank's engine.
    pub fn engine(&mut self, rank: usize) -> Option<&mut Engine<SimNic>> {
        self.nodes.get_mut(rank)?.as_mut().map(|node| &mut node.engine)
    }

    /// What has completed at a rank.
    pub fn take_completions(&mut self, rank: usize) -> Vec<Completion> {
        self.engine(rank).map(|engine| std::mem::take(engine.completions())).unwrap_or_default()
    }

    /// The rank's host is lost: its engine is gone, and what was under way is cut off.
    pub fn kill(&mut self, rank: usize) {
        self.fabric.kill(rank);
        if let Some(node) = self.nodes.get_mut(rank) {
            *node = None;
        }
    }

    /// The rank's process ends in order: it says goodbye, drains, and goes.
    pub fn leave(&mut self, rank: usize) {
        if let Some(engine) = self.engine(rank) {
            engine.shutdown();
        }
        if let Some(node) = self.nodes.get_mut(rank) {
            *node = None;
        }
    }

    /// One progress round of every living engine (slow ones now and then pass), in an order that their own random
    /// streams give; calls `each` after each engine. If nothing moved, time goes on.
    pub fn turn(&mut self, mut each: impl FnMut(&mut Self, usize)) -> Turn {
        let full_before = self.fabric.stats().full;
        let (mut order, mut slow) = (Vec::with_capacity(self.nodes.len()), Vec::new());
        for (rank, node) in self.nodes.iter_mut().enumerate() {
            let Some(node) = node else { continue };
            let place = node.schedule.bits();
            let takes_part = node.diligence_permille == 1000 || node.schedule.chance(node.diligence_permille);
            if takes_part { order.push((place, rank)) } else { slow.push((place, rank)) }
        }
        order.sort_unstable();
        let mut moved = self.progress(&order, &mut each);
        if moved == 0 && !slow.is_empty() {
            // Before time goes on, the slow ones must have had nothing to do either.
            moved = self.progress(&slow, &mut each);
        }
        if moved > 0 {
            self.fabric.pass(10);
            return Turn::Moved;
        }
        let retry = self.fabric.waiting() || self.fabric.stats().full > full_before;
        if self.fabric.advance() || retry { Turn::Advanced } else { Turn::Idle }
    }

    fn progress(&mut self, order: &[(u64, usize)], each: &mut impl FnMut(&mut Self, usize)) -> usize {
        let mut moved = 0;
        for (_, rank) in order {
            if let Some(engine) = self.engine(*rank) {
                moved += engine.progress() + engine.completions().len();
                each(self, *rank);
            }
        }
        moved
    }
}
