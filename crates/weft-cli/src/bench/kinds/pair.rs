//! Two ranks: rank 0 measures, rank 1 is its peer.
//!
//! Rank 0 announces the number of operations of each batch by a control message; a batch of 0 ends the measurement.
//! Control messages are tagged for every measured operation.
//!
//! An endpoint's memory consists of a page of control messages and counters, the send buffers, and the receive buffers.
//! The peer reads from and writes to the receive buffers. Both sides have the same layout.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use weft_client::{Piece, Stats};

use super::super::child::{RankError, Session};
use super::super::cores;
use super::super::job::{COUNT, Hello, Job, Measure};
use super::super::options::{Bind, Kind, Op};
use super::super::port::{Peer, Port, open_domain_for};
use super::super::timing::{self, Took};
use super::measures;

/// The tag of measured messages.
pub(crate) const DATA: u64 = 1;
const CONTROL: u64 = 2;
const ACK: u64 = 3;

const CONTROL_OUT: Piece = Piece { offset: 0, len: 8 };
const CONTROL_IN: Piece = Piece { offset: 64, len: 8 };
const ACK_OUT: Piece = Piece { offset: 128, len: 8 };
const ACK_IN: Piece = Piece { offset: 192, len: 8 };
/// Offset of the operand of fetch-and-adds.
pub(crate) const OPERAND: usize = 256;
/// Offset of the peer's number that fetch-and-adds change.
pub(crate) const COUNTER: usize = 320;
const BUFFERS: usize = 4096;
/// Slots besides those of the window.
const EXTRA_SLOTS: u32 = 4;

/// Longest time of an operation that is told from longer ones, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;
/// Most bytes of a window's buffers in each direction. In a window of longer messages, messages share buffers.
const MOST_BYTES: usize = 64 << 20;

/// The layout of the buffers.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    size: usize,
    stride: usize,
    buffers: usize,
}

impl Layout {
    /// The layout for a window of messages.
    pub(crate) fn new(size: usize, window: u32) -> Self {
        let stride = size.max(8).next_multiple_of(64);
        Self { size, stride, buffers: (MOST_BYTES / stride).clamp(1, window as usize) }
    }

    /// The number of buffers in each direction.
    pub(crate) const fn buffers(&self) -> usize {
        self.buffers
    }

    /// The send buffer of a window's `at`th message.
    pub(crate) const fn outgoing(&self, at: u32) -> Piece {
        Piece { offset: BUFFERS + at as usize % self.buffers * self.stride, len: self.size }
    }

    /// The receive buffer of a window's `at`th message.
    pub(crate) const fn incoming(&self, at: u32) -> Piece {
        Piece { offset: BUFFERS + (self.buffers + at as usize % self.buffers) * self.stride, len: self.size }
    }

    pub(crate) const fn bytes(&self) -> usize {
        BUFFERS + 2 * self.buffers * self.stride
    }
}

/// One side of a pair: an endpoint, its peer and its buffers.
pub(crate) struct Pair {
    pub(crate) port: Port,
    pub(crate) peer: Peer,
    pub(crate) layout: Layout,
    window: u32,
    control_pending: bool,
    ack_pending: bool,
}

/// The work of both sides in a batch.
pub(crate) trait Workload {
    /// Called once before the first batch: posts receives that must precede it.
    fn prepare(&mut self, pair: &mut Pair, active: bool) -> Result<(), RankError>;
    /// Performs `count` operations on the measuring side.
    fn active(&mut self, pair: &mut Pair, count: u64) -> Result<(), RankError>;
    /// Performs them as well, and calls `each` after every one.
    fn active_each(&mut self, pair: &mut Pair, count: u64, _each: &mut dyn FnMut()) -> Result<(), RankError> {
        self.active(pair, count)
    }
    /// Performs the other side's part of the same batch.
    fn passive(&mut self, pair: &mut Pair, count: u64) -> Result<(), RankError>;
    /// Called after the last batch: checks the effect of the operations.
    fn verify(&mut self, _pair: &mut Pair) -> Result<(), RankError> {
        Ok(())
    }
    /// The measured part of the last batch's time, if not all of it counts.
    fn own_time(&mut self) -> Option<Duration> {
        None
    }
    /// Converts the time of one unit of `count` to the time of one operation.
    fn per_operation(&self, nanoseconds: f64) -> f64;
}

impl Pair {
    /// The number of slots that a window needs: its sends, its receives, and the control messages.
    pub(crate) const fn slots(window: u32) -> u32 {
        2 * window + EXTRA_SLOTS
    }

    /// Makes a pair that is ready for [`Pair::announce`] and [`Pair::next_batch`].
    pub(crate) fn new(port: Port, peer: Peer, layout: Layout, window: u32) -> Result<Self, RankError> {
        let mut pair = Self { port, peer, layout, window, control_pending: false, ack_pending: false };
        pair.receive_control()?;
        Ok(pair)
    }

    /// The slot of the `at`th operation of a window.
    pub(crate) const fn out_slot(&self, at: u32) -> u32 {
        at
    }

    /// The slot of the `at`th receive of a window.
    pub(crate) const fn in_slot(&self, at: u32) -> u32 {
        self.window + at
    }

    const fn extra(&self, number: u32) -> u32 {
        2 * self.window + number
    }

    /// The slot of the `at`th operation that stays pending beside the windows.
    #[cfg(feature = "lab")]
    pub(crate) const fn lasting_slot(&self, at: u32) -> u32 {
        2 * self.window + EXTRA_SLOTS + at
    }

    fn receive_control(&mut self) -> Result<(), RankError> {
        let slot = self.extra(1);
        self.port.post(|ep| ep.tagged_recv(slot, CONTROL_IN, CONTROL, 0))
    }

    /// Announces the number of operations of the next batch to the peer.
    pub(crate) fn announce(&mut self, count: u64) -> Result<(), RankError> {
        let (slot, to) = (self.extra(0), self.peer.address);
        if std::mem::replace(&mut self.control_pending, true) {
            self.port.finish(slot)?;
        }
        self.port.ep.store(CONTROL_OUT.offset, count)?;
        self.port.post(|ep| ep.tagged_send(slot, CONTROL_OUT, to, CONTROL))
    }

    /// Waits for the number of operations of the next batch.
    pub(crate) fn next_batch(&mut self) -> Result<u64, RankError> {
        self.port.finish(self.extra(1))?;
        let count = self.port.ep.load(CONTROL_IN.offset)?;
        self.receive_control()?;
        Ok(count)
    }

    /// Waits for the first announcement, which may take some time.
    #[cfg(feature = "lab")]
    pub(crate) fn sleep_until_announced(&mut self) -> Result<(), RankError> {
        let slot = self.extra(1);
        self.port.sleep_until(slot)
    }

    /// Posts the receive for an acknowledgement.
    pub(crate) fn expect_ack(&mut self) -> Result<(), RankError> {
        let slot = self.extra(3);
        self.port.post(|ep| ep.tagged_recv(slot, ACK_IN, ACK, 0))
    }

    /// Waits for the acknowledgement.
    #[inline]
    pub(crate) fn await_ack(&mut self) -> Result<(), RankError> {
        self.port.finish(self.extra(3))
    }

    /// Waits for the acknowledgement, at most for `limit`.
    #[cfg(feature = "lab")]
    pub(crate) fn await_ack_for(&mut self, limit: Duration) -> Result<(), RankError> {
        let (slot, end) = (self.extra(3), Instant::now() + limit);
        while !self.port.take(slot) {
            self.port.poll()?;
            if Instant::now() > end {
                return Err(RankError::Stuck);
            }
        }
        Ok(())
    }

    /// Sends an acknowledgement.
    #[inline]
    pub(crate) fn acknowledge(&mut self) -> Result<(), RankError> {
        let (slot, to) = (self.extra(2), self.peer.address);
        if std::mem::replace(&mut self.ack_pending, true) {
            self.port.finish(slot)?;
        }
        self.port.post(|ep| ep.tagged_send(slot, ACK_OUT, to, ACK))
    }

    /// Measures the nanoseconds of one unit of the batches' counts.
    pub(crate) fn measure(&mut self, workload: &mut impl Workload, sample: Duration) -> Result<f64, RankError> {
        timing::nanoseconds_of_part(sample, |count| self.timed(workload, count))
    }

    fn timed(&mut self, workload: &mut impl Workload, count: u64) -> Result<Took, RankError> {
        self.announce(count)?;
        let start = Instant::now();
        workload.active(self, count)?;
        let all = start.elapsed();
        Ok(Took { all, counts: workload.own_time().unwrap_or(all) })
    }

    /// Takes the time of each operation. `nanoseconds` is the approximate time of one. Each time includes a reading of
    /// the clock, so these times are taken apart from those of batches.
    fn measure_each(
        &mut self,
        workload: &mut impl Workload,
        sample: Duration,
        nanoseconds: f64,
    ) -> Result<Vec<(u64, u64)>, RankError> {
        let mut times = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3)
            .map_err(|error| RankError::Failed(format!("no histogram: {error}")))?;
        // Operations fill the sample, with pauses between batches as in the sample of batches.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The count is limited.
        let count = (sample.as_secs_f64() * 1e9 / nanoseconds / 16.0).clamp(2.0, 1e9) as u64;
        let end = Instant::now() + sample;
        while Instant::now() < end {
            self.announce(count)?;
            // The first operation of a batch also waits for the peer to take the announcement.
            let mut last: Option<Instant> = None;
            workload.active_each(self, count, &mut || {
                let now = Instant::now();
                if let Some(last) = last.replace(now) {
                    times.saturating_record(u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX));
                }
            })?;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Times are not negative.
        let scaled = |time: u64| workload.per_operation(time as f64).round() as u64;
        Ok(times.iter_recorded().map(|step| (scaled(step.value_iterated_to()), step.count_at_value())).collect())
    }

    /// Serves the peer's batches until it announces the end.
    pub(crate) fn serve(&mut self, workload: &mut impl Workload) -> Result<(), RankError> {
        loop {
            match self.next_batch()? {
                0 => return Ok(()),
                count => workload.passive(self, count)?,
            }
        }
    }
}

/// The operations that a pair may have pending.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// Pending operations in each direction.
    pub(crate) window: u32,
    /// Further operations that stay pending.
    pub(crate) lasting: u32,
}

/// Opens an endpoint per thread and pairs it with the peer's. Also returns the addresses of all ranks.
pub(crate) fn open(session: &Session, room: Room) -> Result<(Vec<Pair>, Vec<Hello>), RankError> {
    let window = room.window;
    let job = &session.job;
    let layout = Layout::new(job.case.size, window);
    // Measurements without a deep queue use the provider's default.
    let deep = room.lasting as usize + 2 * window as usize;
    let domain = open_domain_for(job, if room.lasting > 64 { deep } else { 0 })?;
    let most = domain.inject_bytes();
    if job.inject && !job.case.is_remote() && job.case.size > most {
        return Err(RankError::NotOffered(format!("it injects no more than {most} bytes")));
    }
    let mut hello = Hello::default();
    let mut ports = Vec::new();
    let idle = if job.case.kind == Kind::Peers { job.case.number } else { 0 };
    for _ in 0..job.case.threads {
        let port = Port::open(&domain, layout.bytes(), Pair::slots(window) + room.lasting, job.ranks + idle, job.wait)?;
        if job.case.op == Op::FetchAdd {
            port.ep.fetch_add_offered()?;
        }
        port.add_to(&mut hello);
        ports.push(port);
    }
    session.opened()?;
    let hellos = session.exchange(hello)?;
    let other = hellos.get(1 - job.rank).ok_or(RankError::Failed("there is no peer".to_owned()))?;
    let make_pair = |(thread, mut port): (usize, Port)| {
        let peer = port.insert_peer(other, thread)?;
        Pair::new(port, peer, layout, window)
    };
    let pairs: Result<Vec<Pair>, RankError> = ports.into_iter().enumerate().map(make_pair).collect();
    Ok((pairs?, hellos))
}

/// Makes a whole measurement between two ranks, each with the case's number of threads.
pub(crate) fn measure_pairs<D: Workload + Send>(
    session: &mut Session,
    room: Room,
    make: &(dyn Fn() -> D + Sync),
) -> Result<(), RankError> {
    let (mut pairs, _) = open(session, room)?;
    conduct(session, &mut pairs, make)
}

/// Makes the measurement with open pairs.
pub(crate) fn conduct<D: Workload + Send>(
    session: &Session,
    pairs: &mut [Pair],
    make: &(dyn Fn() -> D + Sync),
) -> Result<(), RankError> {
    let job = &session.job;
    let threads = pairs.len();
    // Each measuring thread continues until all have measured, so that each is measured beside the others.
    let (start, measuring) = (Barrier::new(threads), AtomicUsize::new(threads));
    let before = inside(pairs);
    let each = |(thread, pair): (usize, &mut Pair)| {
        if threads > 1 && job.bind != Bind::All {
            cores::pin(&job.cores[thread % job.cores.len()..][..1]).map_err(RankError::Failed)?;
        }
        side(job, pair, &mut make(), &start, &measuring)
    };
    let results: Vec<Result<Option<Timed>, RankError>> = match &mut *pairs {
        [only] => vec![each((0, only))],
        many => std::thread::scope(|scope| {
            let each = &each;
            let running: Vec<_> = many.iter_mut().enumerate().map(|job| scope.spawn(move || each(job))).collect();
            let panicked = |_| Err(RankError::Failed("a thread panicked".to_owned()));
            running.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        }),
    };
    let timed: Vec<Timed> = results.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let nanoseconds: Vec<f64> = timed.iter().map(|timed| timed.nanoseconds).collect();
    let mut result = together(&nanoseconds).map_or_else(Vec::new, |time| measures(job.case.kind, job.case.size, time));
    if let [only] = &mut result[..] {
        only.times = timed.into_iter().flat_map(|timed| timed.times).collect();
    }
    if let (Kind::Rate, Some(before), Some(after)) = (job.case.kind, before, inside(pairs)) {
        let side = if job.rank == 0 { "lock waits" } else { "lock waits, target" };
        result.push(Measure::new(side, (after.lock_waits - before.lock_waits) as f64, COUNT));
    }
    session.result(result);
    session.finish(|| pairs.iter_mut().try_for_each(|pair| pair.port.linger()))
}

/// The provider's internal counters, if it has any.
fn inside(pairs: &[Pair]) -> Option<Stats> {
    pairs.first().and_then(|pair| pair.port.ep.domain().stats())
}

/// The time of one operation while several threads perform operations at once: their rates add up.
fn together(nanoseconds: &[f64]) -> Option<f64> {
    let rate: f64 = nanoseconds.iter().map(|each| 1.0 / each).sum();
    (rate > 0.0).then(|| 1.0 / rate)
}

/// The times that a thread has measured.
struct Timed {
    /// Time of one operation in long batches.
    nanoseconds: f64,
    /// Times of single operations, see [`Measure::times`].
    times: Vec<(u64, u64)>,
}

/// Makes one thread's part of one rank. Rank 0 returns the times.
fn side<D: Workload>(
    job: &Job,
    pair: &mut Pair,
    workload: &mut D,
    start: &Barrier,
    measuring: &AtomicUsize,
) -> Result<Option<Timed>, RankError> {
    let active = job.rank == 0;
    workload.prepare(pair, active)?;
    start.wait();
    if !active {
        pair.serve(workload)?;
        return Ok(None);
    }
    let sample = Duration::from_millis(job.sample_ms as u64);
    let nanoseconds = pair.measure(workload, sample)?;
    let times = match job.case.kind {
        Kind::Pingpong => pair.measure_each(workload, sample, nanoseconds)?,
        _ => Vec::new(),
    };
    measuring.fetch_sub(1, Ordering::Relaxed);
    while job.case.kind == Kind::Rate && measuring.load(Ordering::Relaxed) > 0 {
        pair.timed(workload, 1)?;
    }
    workload.verify(pair)?;
    pair.announce(0)?;
    Ok(Some(Timed { nanoseconds: workload.per_operation(nanoseconds), times }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_unless_there_is_no_room() {
        let layout = Layout::new(1000, 4);
        let starts: Vec<_> = (0..4).flat_map(|at| [layout.outgoing(at), layout.incoming(at)]).collect();
        for (index, one) in starts.iter().enumerate() {
            assert!(one.offset >= BUFFERS && one.offset + one.len <= layout.bytes());
            for other in &starts[index + 1..] {
                assert!(one.offset + one.len <= other.offset || other.offset + other.len <= one.offset);
            }
        }
        assert_eq!(Layout::new(1 << 20, 64).buffers(), 64);
        assert_eq!(Layout::new(16 << 20, 64).buffers(), 4);
        assert_eq!(Layout::new(1 << 30, 64).buffers(), 1);
    }

    #[test]
    fn rates_of_threads_add_up() {
        assert_eq!(together(&[]), None);
        assert_eq!(together(&[100.0, 100.0]), Some(50.0));
    }
}
