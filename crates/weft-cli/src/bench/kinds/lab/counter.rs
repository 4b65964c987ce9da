//! Many processes that add to one number. This is the shared counter of dynamic load balancing (Global Arrays'
//! nxtval) and the throughput curve of the GNI paper.
//!
//! Rank 0 has the number. It announces the number of additions of a batch to the others, and each of them reports when
//! it is done. The others add 1 and wait for the previous value, one addition after the other. Two checks find lost and
//! doubled additions: the values that a rank fetches must rise, and after each batch the number must have grown by all
//! additions.

use std::time::{Duration, Instant};

use weft_client::Piece;

use crate::bench::child::{RankError, Session};
use crate::bench::job::Hello;
use crate::bench::kinds::{count, measures};
use crate::bench::port::{Peer, Port, open_domain};
use crate::bench::timing;

const BATCH_TAG: u64 = 1;
const DONE_TAG: u64 = 2;
/// Slots of a rank that adds.
const ANNOUNCED: u32 = 0;
const REPORT: u32 = 1;
const ADD: u32 = 2;
const SLOTS: u32 = 3;
/// Offsets of the number, of the operand, and of the previous value. Messages have the cache lines behind them, one per
/// slot.
const COUNTER: usize = 0;
const OPERAND: usize = 128;
const RESULT: usize = 192;
const MESSAGES: usize = 256;

const fn message(slot: u32) -> Piece {
    Piece { offset: MESSAGES + slot as usize * 64, len: 8 }
}

/// The measurement.
pub(crate) fn run(session: &mut Session) -> Result<(), RankError> {
    let job = &session.job;
    let domain = open_domain(job)?;
    let adders = count(job.case.number)?;
    let slots = if job.rank == 0 { 2 * adders } else { SLOTS };
    let mut port = Port::open(&domain, MESSAGES + slots as usize * 64, slots, job.ranks, job.wait)?;
    port.ep.fetch_add_offered()?;
    let mut hello = Hello::default();
    port.add_to(&mut hello);
    let hellos = session.exchange(hello)?;
    let peers: Result<Vec<Peer>, RankError> = hellos.iter().map(|hello| port.insert_peer(hello, 0)).collect();
    let peers = peers?;
    if job.rank == 0 {
        let mut host = Host { port, peers, adders, announced: false, total: 0 };
        let sample = Duration::from_millis(job.sample_ms as u64);
        let nanoseconds = timing::nanoseconds(sample, |count| host.batch(count))?;
        host.announce(0)?;
        session.result(measures(job.case.kind, job.case.size, nanoseconds / f64::from(adders)));
        return session.linger(1, || host.port.linger());
    }
    let host = *peers.first().ok_or(RankError::Failed("there is no rank 0".to_owned()))?;
    add(&mut port, host)?;
    session.linger(1, || port.linger())
}

/// Rank 0. It sends in the first slots, one for each other rank, and receives in the following ones.
struct Host {
    port: Port,
    peers: Vec<Peer>,
    adders: u32,
    announced: bool,
    total: u64,
}

impl Host {
    /// Measures the time that the others take for `additions` each.
    fn batch(&mut self, additions: u64) -> Result<Duration, RankError> {
        for slot in self.adders..2 * self.adders {
            self.port.post(|ep| ep.tagged_recv(slot, message(slot), DONE_TAG, 0))?;
        }
        let start = Instant::now();
        self.announce(additions)?;
        (self.adders..2 * self.adders).try_for_each(|slot| self.port.finish(slot))?;
        let took = start.elapsed();
        self.total += additions * u64::from(self.adders);
        match self.port.ep.load(COUNTER)? {
            now if now == self.total => Ok(took),
            now => Err(RankError::Failed(format!("after {} additions the number is {now}", self.total))),
        }
    }

    fn announce(&mut self, additions: u64) -> Result<(), RankError> {
        for slot in 0..self.adders {
            if self.announced {
                self.port.finish(slot)?;
            }
            let to = self.peers[slot as usize + 1].address;
            self.port.ep.store(message(slot).offset, additions)?;
            self.port.post(|ep| ep.tagged_send(slot, message(slot), to, BATCH_TAG))?;
        }
        self.announced = true;
        Ok(())
    }
}

/// Another rank: performs batches until one is empty.
fn add(port: &mut Port, host: Peer) -> Result<(), RankError> {
    port.ep.store(OPERAND, 1)?;
    let mut before = None;
    loop {
        port.post(|ep| ep.tagged_recv(ANNOUNCED, message(ANNOUNCED), BATCH_TAG, 0))?;
        port.finish(ANNOUNCED)?;
        let additions = port.ep.load(message(ANNOUNCED).offset)?;
        if additions == 0 {
            return Ok(());
        }
        for _ in 0..additions {
            port.post(|ep| ep.fetch_add(ADD, [OPERAND, RESULT], host.address, host.region, COUNTER))?;
            port.finish(ADD)?;
            let fetched = port.ep.load(RESULT)?;
            if before.replace(fetched).is_some_and(|before| before >= fetched) {
                return Err(RankError::Failed(format!("the value {fetched} was fetched twice or out of order")));
            }
        }
        port.post(|ep| ep.tagged_send(REPORT, message(REPORT), host.address, DONE_TAG))?;
        port.finish(REPORT)?;
    }
}
