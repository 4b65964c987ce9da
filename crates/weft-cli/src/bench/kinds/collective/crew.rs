//! Ranks that work in batches: rank 0 announces a batch to the others, and each of them reports its end.
//!
//! The messages are tagged, so they are independent of the measured operations. They consist of a few words.

use weft_client::{Address, Group, Piece};

use crate::bench::child::{RankError, Session};
use crate::bench::job::Hello;
use crate::bench::kinds::count;
use crate::bench::port::{Port, open_domain};

/// Words of a message.
const WORDS: usize = 4;
/// A message.
pub(crate) type Words = [u64; WORDS];

const ORDER_TAG: u64 = 1;
/// The tag of rank 0's reports; those of the other ranks follow.
const REPORT_TAG: u64 = 16;
/// Bytes of a message's place: a cache line.
const PLACE: usize = 64;

/// One rank.
pub(crate) struct Crew {
    pub(crate) port: Port,
    addresses: Vec<Address>,
    rank: usize,
    /// Whether orders have been sent: their slots are then to be awaited first.
    ordered: bool,
}

impl Crew {
    /// Opens this rank's endpoint, with `slots` slots and `bytes` bytes of memory for the measured operations, and
    /// gets to know the others.
    pub(crate) fn open(session: &Session, slots: u32, bytes: usize) -> Result<Self, RankError> {
        let job = &session.job;
        let domain = open_domain(job)?;
        let own = Self::slots_of(job.ranks)?;
        let port = Port::open(&domain, Self::data_at(job.ranks) + bytes, own + slots, job.ranks, job.wait)?;
        Self::gather(session, port)
    }

    fn gather(session: &Session, mut port: Port) -> Result<Self, RankError> {
        let mut hello = Hello::default();
        port.add_to(&mut hello);
        session.opened()?;
        let hellos = session.exchange(hello)?;
        let peers: Result<Vec<_>, RankError> = hellos.iter().map(|hello| port.insert_peer(hello, 0)).collect();
        let addresses = peers?.into_iter().map(|peer| peer.address).collect();
        Ok(Self { port, addresses, rank: session.job.rank, ordered: false })
    }

    /// The slots of messages: an order to each rank, and a report from each.
    fn slots_of(ranks: usize) -> Result<u32, RankError> {
        count(2 * ranks)
    }

    /// The first slot for measured operations.
    pub(crate) fn first_slot(&self) -> u32 {
        u32::try_from(2 * self.addresses.len()).unwrap_or(u32::MAX)
    }

    /// The offset of the memory for measured operations.
    pub(crate) const fn data_at(ranks: usize) -> usize {
        (2 * ranks * PLACE).next_multiple_of(4096)
    }

    /// Joins the group of all ranks.
    pub(crate) fn join(&mut self) -> Result<Group, RankError> {
        let group = self.port.ep.join(&self.addresses)?;
        while !joined(&mut self.port)? {
            std::thread::yield_now();
        }
        Ok(group)
    }

    /// The slots of the order to, and of the report from, a rank.
    fn slots(&self, rank: usize) -> [u32; 2] {
        let number = u32::try_from(rank).unwrap_or(u32::MAX);
        [number, number + self.first_slot() / 2]
    }

    fn send(&mut self, slot: u32, to: usize, tag: u64, words: Words) -> Result<(), RankError> {
        let (piece, to) = (piece(slot), self.addresses[to]);
        for (at, word) in words.into_iter().enumerate() {
            self.port.ep.store(piece.offset + 8 * at, word)?;
        }
        self.port.post(|ep| ep.tagged_send(slot, piece, to, tag))
    }

    fn take(&mut self, slot: u32) -> Result<Words, RankError> {
        self.port.finish(slot)?;
        let mut words = [0; WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.port.ep.load(piece(slot).offset + 8 * at)?;
        }
        Ok(words)
    }

    /// Rank 0: announces a batch to the others.
    pub(crate) fn order(&mut self, words: Words) -> Result<(), RankError> {
        let ranks = self.addresses.len();
        for rank in 1..ranks {
            let [out, report] = self.slots(rank);
            if self.ordered {
                self.port.finish(out)?;
            }
            self.port.post(|ep| ep.tagged_recv(report, piece(report), REPORT_TAG + rank as u64, 0))?;
            self.send(out, rank, ORDER_TAG, words)?;
        }
        self.ordered = true;
        Ok(())
    }

    /// Rank 0: waits for the others' reports of the batch.
    pub(crate) fn reports(&mut self) -> Result<Vec<Words>, RankError> {
        (1..self.addresses.len()).map(|rank| self.take(self.slots(rank)[1])).collect()
    }

    /// Another rank: waits for the next batch.
    pub(crate) fn next_order(&mut self) -> Result<Words, RankError> {
        let [slot, _] = self.slots(self.rank);
        self.port.post(|ep| ep.tagged_recv(slot, piece(slot), ORDER_TAG, 0))?;
        self.take(slot)
    }

    /// Another rank: reports the end of the batch.
    pub(crate) fn report(&mut self, words: Words) -> Result<(), RankError> {
        let [_, slot] = self.slots(self.rank);
        self.send(slot, 0, REPORT_TAG + self.rank as u64, words)?;
        self.port.finish(slot)
    }
}

/// Whether the only join of an endpoint has ended. Makes progress.
pub(crate) fn joined(port: &mut Port) -> Result<bool, RankError> {
    port.poll()?;
    // The event need not name the join. (That of off_coll does not.)
    match port.ep.joined()? {
        Some((_, Some(error))) => Err(error.into()),
        Some((_, None)) => Ok(true),
        None => Ok(false),
    }
}

/// The place of a slot's message.
const fn piece(slot: u32) -> Piece {
    Piece { offset: slot as usize * PLACE, len: 8 * WORDS }
}
