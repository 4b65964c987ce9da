//! Floors: the time that the machine itself needs for the same work without libfabric.
//!
//! - `cache-line`: a flag passed to another core; half of the round trip.
//! - `ring`: numbers passed in a row, each in its own cache line.
//! - `memcpy`: copying by one thread.
//! - `readv`: process_vm_readv(2).
//! - `tcp`: a socket on loopback or between the hosts, non-blocking and polled. Messages are round trips, or windows
//!   that are acknowledged.
//! - `futex`: a barrier of as many threads as there are ranks, at which all but the last one sleep.

use std::hint::{black_box, spin_loop};
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::thread::futex;

use super::super::child::{RankError, Session, from_hex, to_hex};
use super::super::cores;
use super::super::job::{Hello, Job, Measure};
use super::super::options::{Kind, Op};
use super::super::subject::{Floor, Subject};
use super::super::timing;
use super::measures;
use super::pair::Layout;

/// The floors of a kind. Between hosts there are only those of sockets.
pub(crate) fn subjects(kind: Kind, between_hosts: bool) -> Vec<Subject> {
    let floors: &[Floor] = match kind {
        Kind::Pingpong => &[Floor::CacheLine, Floor::Memcpy, Floor::Readv, Floor::Tcp],
        Kind::Bandwidth => &[Floor::Memcpy, Floor::Readv, Floor::Tcp],
        Kind::Rate | Kind::Match => &[Floor::Ring],
        Kind::Peers => &[Floor::CacheLine, Floor::Tcp],
        Kind::Oversubscribe => &[Floor::Futex],
        Kind::Overlap | Kind::Memory | Kind::Counter | Kind::Collective | Kind::OverlapColl => &[],
    };
    let floors = floors.iter().copied().filter(|&floor| !between_hosts || floor == Floor::Tcp);
    floors.map(Subject::floor).collect()
}

/// The best possible result of a provider: a time or a rate composed of floors. `floor` returns the measured value of a
/// floor.
///
/// Through shared memory, a message costs one passed cache line and a copy. An operation with an answer costs
/// two lines. A read may proceed without the peer. Through sockets, an operation costs what the sockets cost.
pub(crate) fn bound(
    kind: Kind,
    op: Op,
    threads: usize,
    by_sockets: bool,
    floor: impl Fn(Floor) -> Option<f64>,
) -> Option<f64> {
    let answered = matches!(op, Op::Read | Op::FetchAdd);
    let line = || floor(Floor::CacheLine);
    match kind {
        Kind::Pingpong if by_sockets => floor(Floor::Tcp).map(|time| if answered { 2.0 * time } else { time }),
        Kind::Pingpong if op == Op::FetchAdd => line().map(|time| 2.0 * time),
        Kind::Pingpong if op == Op::Read => {
            let through_the_peer = 2.0 * line()? + floor(Floor::Memcpy)?;
            Some(floor(Floor::Readv).map_or(through_the_peer, |time| time.min(through_the_peer)))
        }
        Kind::Pingpong => Some(line()? + floor(Floor::Memcpy)?),
        Kind::Bandwidth if by_sockets => floor(Floor::Tcp),
        Kind::Bandwidth => {
            let copied = floor(Floor::Memcpy)?;
            Some(floor(Floor::Readv).map_or(copied, |rate| rate.max(copied)))
        }
        Kind::Rate if threads == 1 && !by_sockets => floor(Floor::Ring),
        Kind::Match if !by_sockets => floor(Floor::Ring),
        Kind::Peers if by_sockets => floor(Floor::Tcp),
        Kind::Peers => line(),
        Kind::Oversubscribe => floor(Floor::Futex),
        _ => None,
    }
}

/// Measures a floor.
pub(crate) fn run(session: &mut Session, floor: Floor) -> Result<(), RankError> {
    match floor {
        Floor::CacheLine => alone(session, hand_over),
        Floor::Ring => alone(session, ring),
        Floor::Memcpy => alone(session, copy),
        Floor::Readv => readv(session),
        Floor::Tcp => tcp(session),
        Floor::Futex => alone(session, futex_barrier),
    }
}

fn sample(job: &Job) -> Duration {
    Duration::from_millis(job.sample_ms as u64)
}

/// Makes a measurement that takes one process.
fn alone(session: &mut Session, measure: fn(&Job) -> Result<f64, RankError>) -> Result<(), RankError> {
    session.exchange(Hello::default())?;
    let nanoseconds = measure(&session.job)?;
    report(session, nanoseconds);
    session.finish(|| Ok(()))
}

fn report(session: &Session, nanoseconds: f64) {
    let case = &session.job.case;
    let result: Vec<Measure> = measures(case.kind, case.size, nanoseconds);
    session.result(result);
}

/// A number alone on its cache line, and on the line that is fetched with it.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Tells the other thread to end.
const OVER: u64 = u64::MAX;

impl Line {
    /// Waits until the number is at least `wanted`, and returns it. After many attempts the thread yields, since both
    /// may share a core.
    fn await_at_least(&self, wanted: u64) -> u64 {
        for turn in 0_u32.. {
            let found = self.0.load(Ordering::Acquire);
            if found >= wanted {
                return found;
            }
            if turn > 1 << 16 {
                std::thread::yield_now();
            } else if turn > 64 {
                spin_loop();
            }
        }
        OVER
    }
}

/// Runs `helper` on the second core while `measure` runs on the first.
fn with_helper<T>(
    job: &Job,
    helper: impl FnOnce() + Send,
    measure: impl FnOnce() -> Result<T, RankError>,
) -> Result<T, RankError> {
    let [first, second] = [0, 1].map(|at| [job.cores[at % job.cores.len()]]);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A failure is ignored: on the same core the result would be slow, but not wrong.
            let _ = cores::pin(&second);
            helper();
        });
        let _ = cores::pin(&first);
        measure()
    })
}

fn hand_over(job: &Job) -> Result<f64, RankError> {
    let (to, fro) = (Line::default(), Line::default());
    let echo = || {
        let mut next = 1;
        while to.await_at_least(next) != OVER {
            fro.0.store(next, Ordering::Release);
            next += 1;
        }
    };
    with_helper(job, echo, || {
        let mut last = 0;
        let round_trip = timing::nanoseconds(sample(job), |count| {
            let start = Instant::now();
            for _ in 0..count {
                last += 1;
                to.0.store(last, Ordering::Release);
                fro.await_at_least(last);
            }
            Ok::<_, RankError>(start.elapsed())
        });
        to.0.store(OVER, Ordering::Release);
        Ok(round_trip? / 2.0)
    })
}

/// Slots of the ring.
const RING: u64 = 64;
/// The consumer publishes its position after this many messages.
const PUBLISH_EVERY: u64 = 16;

/// A slot of the ring: the number of the message, and the message.
#[repr(align(64))]
#[derive(Default)]
struct Slot {
    number: AtomicU64,
    message: AtomicU64,
}

fn ring(job: &Job) -> Result<f64, RankError> {
    let slots: Vec<Slot> = (0..RING).map(|_| Slot::default()).collect();
    let slot = |number: u64| slots.get(usize::try_from(number % RING).unwrap_or_default());
    let taken = Line::default();
    let consume = || {
        let mut sum = 0_u64;
        for number in 1_u64.. {
            let Some(slot) = slot(number) else { return };
            let mut turns = 0_u32;
            loop {
                match slot.number.load(Ordering::Acquire) {
                    OVER => return,
                    found if found == number => break,
                    _ => turns += 1,
                }
                if turns > 1 << 16 {
                    std::thread::yield_now();
                }
            }
            sum = sum.wrapping_add(slot.message.load(Ordering::Relaxed));
            if number.is_multiple_of(PUBLISH_EVERY) {
                taken.0.store(number, Ordering::Release);
            }
        }
        black_box(sum);
    };
    with_helper(job, consume, || {
        let (mut last, mut room) = (0, RING);
        let result = timing::nanoseconds(sample(job), |count| {
            let start = Instant::now();
            for _ in 0..count * RING {
                last += 1;
                if last > room {
                    room = taken.await_at_least(last - RING) + RING;
                }
                let Some(slot) = slot(last) else { break };
                slot.message.store(last, Ordering::Relaxed);
                slot.number.store(last, Ordering::Release);
            }
            taken.await_at_least(last);
            Ok::<_, RankError>(start.elapsed())
        });
        for slot in &slots {
            slot.number.store(OVER, Ordering::Release);
        }
        Ok(result? / RING as f64)
    })
}

/// A barrier at which threads sleep until the last one arrives.
struct FutexBarrier {
    threads: u32,
    arrived: AtomicU32,
    generation: AtomicU32,
}

impl FutexBarrier {
    fn wait(&self) {
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::Release);
            // A thread that is not woken was not asleep yet and sees the new generation.
            let _ = futex::wake(&self.generation, futex::Flags::PRIVATE, i32::MAX.unsigned_abs());
            return;
        }
        while self.generation.load(Ordering::Acquire) == generation {
            let _ = futex::wait(&self.generation, futex::Flags::PRIVATE, generation, None);
        }
    }
}

fn futex_barrier(job: &Job) -> Result<f64, RankError> {
    let threads = u32::try_from(job.case.number).unwrap_or(u32::MAX);
    let barrier = FutexBarrier { threads, arrived: AtomicU32::new(0), generation: AtomicU32::new(0) };
    let batch = AtomicU64::new(0);
    let follow = || {
        loop {
            barrier.wait();
            match batch.load(Ordering::Relaxed) {
                OVER => return,
                count => (0..count).for_each(|_| barrier.wait()),
            }
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(follow)));
        let result = timing::nanoseconds(sample(job), |count| {
            batch.store(count, Ordering::Relaxed);
            barrier.wait();
            let start = Instant::now();
            (0..count).for_each(|_| barrier.wait());
            Ok::<_, RankError>(start.elapsed())
        });
        batch.store(OVER, Ordering::Relaxed);
        barrier.wait();
        result
    })
}

/// The number of buffers, as for a provider.
fn buffers(job: &Job) -> usize {
    let window = if job.case.kind == Kind::Bandwidth { job.window } else { 1 };
    Layout::new(job.case.size, u32::try_from(window).unwrap_or(u32::MAX)).buffers()
}

fn copy(job: &Job) -> Result<f64, RankError> {
    let (size, count) = (job.case.size, buffers(job));
    let source = vec![1_u8; size * count];
    let mut target = vec![0_u8; size * count];
    let mut at = 0;
    timing::nanoseconds(sample(job), |copies| {
        let start = Instant::now();
        for _ in 0..copies {
            let range = at * size..(at + 1) * size;
            target[range.clone()].copy_from_slice(black_box(&source[range]));
            black_box(&mut target);
            at = (at + 1) % count;
        }
        Ok(start.elapsed())
    })
}

fn readv(session: &mut Session) -> Result<(), RankError> {
    let (size, count) = (session.job.case.size, buffers(&session.job));
    let memory = vec![1_u8; size * count];
    let hellos = session.exchange(Hello { regions: vec![(memory.as_ptr() as u64, 0)], ..Hello::default() })?;
    if session.job.rank == 0 {
        let other = hellos.get(1).ok_or(RankError::Failed("there is no peer".to_owned()))?;
        let pid = Pid::from_raw(i32::try_from(other.pid).unwrap_or(0));
        let base = other.regions.first().and_then(|region| usize::try_from(region.0).ok()).unwrap_or_default();
        let mut target = vec![0_u8; size * count];
        let mut at = 0;
        let nanoseconds = timing::nanoseconds(sample(&session.job), |copies| {
            let start = Instant::now();
            for _ in 0..copies {
                let into = &mut target[at * size..(at + 1) * size];
                let from = RemoteIoVec { base: base + at * size, len: size };
                match process_vm_readv(pid, &mut [IoSliceMut::new(into)], &[from]) {
                    Ok(read) if read == size => at = (at + 1) % count,
                    Ok(_) => return Err(RankError::Failed("process_vm_readv read less than it should".to_owned())),
                    Err(error) => return Err(RankError::NotOffered(format!("process_vm_readv is refused: {error}"))),
                }
            }
            Ok(start.elapsed())
        })?;
        report(session, nanoseconds);
    }
    session.finish(|| Ok(()))
}

fn tcp(session: &mut Session) -> Result<(), RankError> {
    let rank = session.job.rank;
    let listener = TcpListener::bind((session.job.listen.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0))?;
    let address = listener.local_addr()?.to_string();
    let hellos = session.exchange(Hello { names: vec![to_hex(address.as_bytes())], ..Hello::default() })?;
    let stream = if rank == 0 {
        let name = hellos.get(1).and_then(|hello| hello.names.first()).cloned().unwrap_or_default();
        TcpStream::connect(String::from_utf8_lossy(&from_hex(&name)?).into_owned())?
    } else {
        listener.accept()?.0
    };
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut socket = Socket(stream);
    let job = &session.job;
    let window = if job.case.kind == Kind::Bandwidth { job.window } else { 1 };
    if rank == 1 {
        echo(&mut socket, job, window)?;
    } else {
        let nanoseconds = timing::nanoseconds(sample(job), |count| batch(&mut socket, job, window, count))?;
        socket.send(&0_u64.to_ne_bytes())?;
        // A window takes the time of its messages; a round trip takes the time of two messages.
        let share = if job.case.kind == Kind::Bandwidth { window as f64 } else { 2.0 };
        report(session, nanoseconds / share);
    }
    session.finish(|| Ok(()))
}

/// A socket that is polled.
struct Socket(TcpStream);

impl Socket {
    fn send(&mut self, mut bytes: &[u8]) -> Result<(), RankError> {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), RankError> {
        let mut have = 0;
        while have < bytes.len() {
            match self.0.read(&mut bytes[have..]) {
                Ok(0) => return Err(RankError::Failed("the peer closed the socket".to_owned())),
                Ok(more) => have += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Measures a batch of round trips, or of windows with an acknowledgement.
fn batch(socket: &mut Socket, job: &Job, window: usize, count: u64) -> Result<Duration, RankError> {
    let buffers = buffers(job);
    let out = vec![1_u8; job.case.size * buffers];
    let mut back = vec![0_u8; if job.case.kind == Kind::Bandwidth { 1 } else { job.case.size }];
    socket.send(&count.to_ne_bytes())?;
    let start = Instant::now();
    for _ in 0..count {
        for at in 0..window {
            socket.send(&out[at % buffers * job.case.size..][..job.case.size])?;
        }
        socket.receive(&mut back)?;
    }
    Ok(start.elapsed())
}

/// Serves as the other side until a batch of 0.
fn echo(socket: &mut Socket, job: &Job, window: usize) -> Result<(), RankError> {
    let (size, buffers) = (job.case.size, buffers(job));
    let mut memory = vec![0_u8; size * buffers];
    loop {
        let mut head = [0; 8];
        socket.receive(&mut head)?;
        let count = u64::from_ne_bytes(head);
        if count == 0 {
            return Ok(());
        }
        for _ in 0..count {
            for at in 0..window {
                socket.receive(&mut memory[at % buffers * size..][..size])?;
            }
            let answer = if job.case.kind == Kind::Bandwidth { 1 } else { size };
            socket.send(&memory[..answer])?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_adds_up_the_costs_of_its_work() {
        let floor = |floor| match floor {
            Floor::CacheLine => Some(100.0),
            Floor::Memcpy => Some(50.0),
            Floor::Readv => Some(180.0),
            Floor::Tcp => Some(8000.0),
            Floor::Ring => Some(30.0),
            Floor::Futex => Some(90_000.0),
        };
        let pingpong = |op, by_sockets| bound(Kind::Pingpong, op, 1, by_sockets, floor);
        assert_eq!(pingpong(Op::Tagged, false), Some(150.0));
        assert_eq!(pingpong(Op::Read, false), Some(180.0));
        assert_eq!(pingpong(Op::FetchAdd, false), Some(200.0));
        assert_eq!(pingpong(Op::Tagged, true), Some(8000.0));
        assert_eq!(pingpong(Op::Read, true), Some(16000.0));
        assert_eq!(bound(Kind::Bandwidth, Op::Tagged, 1, false, floor), Some(180.0));
        assert_eq!(bound(Kind::Rate, Op::Tagged, 2, false, floor), None);
        assert_eq!(bound(Kind::Peers, Op::Tagged, 1, true, floor), Some(8000.0));
        assert_eq!(bound(Kind::Oversubscribe, Op::Tagged, 1, true, floor), Some(90_000.0));
        assert_eq!(bound(Kind::Memory, Op::Tagged, 1, false, floor), None);
    }
}
