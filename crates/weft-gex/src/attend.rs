//! Progress while the client computes: one thread that serves peers when the client does not poll.
//!
//! Place in the data flow: [`crate::job::start`] starts the thread if `GASNET_RCV_THREAD` asks for it, or leaves it to
//! the client to run [`run`] in a thread of its own. The thread runs handlers, performs accesses of peers to the own
//! memory, and moves collectives on.
//!
//! While the client polls, or sleeps in a call, the thread stays away: it looks only at each tick. Otherwise it
//! *listens*: it makes progress until there is none, arms the device, and sleeps until a peer rings. When the client
//! polls again, it ends the listening by itself (`links`), so that peers ring no more.
//!
//! Invariant: the thread only tries to enter the engine, so a client that is inside never waits for a look.

use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use weft_os::{SystemError, Worker};

use crate::error::Error;
use crate::gate::Threads;
use crate::job::Job;
use crate::os;

/// The interval between two looks at a client that is active.
const TICK: Duration = Duration::from_millis(1);
/// The interval after [`STEADY_LOOKS`] looks at a client that was active at each of them.
const STEADY_TICK: Duration = Duration::from_millis(4);
const STEADY_LOOKS: u32 = 50;
/// A client that polls fewer times between two looks computes.
const ACTIVE_POLLS: u64 = 8;
/// The time for which the thread polls on after work, where it has a processor of its own.
const SPIN: Duration = Duration::from_micros(20);
/// Looks that find the engine in use, or work that waits for a peer, before a pause, where the thread has a processor
/// of its own.
const FRUITLESS_LOOKS: u32 = 64;
/// That pause. A yield would cost the thread the processor for a time slice of the client.
const SOON: Duration = Duration::from_micros(20);
/// The pause between two steps of collectives.
pub(crate) const STEP: Duration = Duration::from_micros(100);
/// The longest sleep.
const SLICE: Duration = Duration::from_millis(100);

/// The thread that serves peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attendant {
    /// There is none.
    #[default]
    None,
    /// It belongs to the library.
    Own,
    /// The client runs it.
    Clients,
}

/// Whether the client allows handlers outside its own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// It does not: it was compiled for one thread.
    Forbidden,
    /// It does.
    Allowed,
}

/// The flag of the start by which the client runs the library's threads itself.
const FLAG_DEFER_THREADS: u32 = 1 << 1;

impl Attendant {
    /// The attendant that the environment asks for.
    ///
    /// # Errors
    /// The variable is neither yes nor no.
    pub(crate) fn wanted(hidden: Hidden, flags: u32, rank: u32) -> Result<Self, Error> {
        if crate::env::yes("GASNET_RCV_THREAD")? != Some(true) {
            return Ok(Self::None);
        }
        if hidden == Hidden::Forbidden {
            if rank == 0 {
                os::say(b"weft-gex: GASNET_RCV_THREAD has no effect in a program of mode SEQ; compile all of it with -DGEXW_RCV_THREAD=1\n");
            }
            return Ok(Self::None);
        }
        Ok(if flags & FLAG_DEFER_THREADS != 0 { Self::Clients } else { Self::Own })
    }

    /// The threads that use the engine.
    pub(crate) fn threads(self, clients: Threads) -> Threads {
        if self == Self::None { clients } else { Threads::Many }
    }
}

/// The bell by which the client wakes the thread for work that no peer announces. Without a thread it has no
/// descriptor.
#[derive(Debug)]
pub(crate) struct Bell(Option<OwnedFd>);

impl Bell {
    /// A bell, if there is a thread.
    pub(crate) fn new(attendant: Attendant) -> Result<Self, Error> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let made = (attendant != Attendant::None).then(|| eventfd(0, flags));
        Ok(Self(made.transpose().map_err(|errno| SystemError::of("eventfd")(errno))?))
    }

    /// Wakes the thread.
    #[cold]
    pub(crate) fn ring(&self) {
        // A full counter has rung already.
        let _ = self.0.as_ref().map(|fd| rustix::io::write(fd, &1_u64.to_ne_bytes()));
    }

    /// Sleeps until the bell or the device rings, or for a time.
    fn wait(&self, device: Option<RawFd>, time: Duration) {
        let Some(bell) = &self.0 else { return std::thread::sleep(time) };
        os::wait_any([bell.as_raw_fd()].into_iter().chain(device), time);
        let _ = rustix::io::read(bell, &mut [0; 8]);
    }
}

/// The next step of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again now.
    Now,
    /// Look again after a time.
    After(Duration),
    /// Sleep on the device, which is armed.
    Listen,
}

/// The client's sleeps on the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sleeps {
    /// Their number.
    pub(crate) begun: u32,
    /// Whether a thread of the client sleeps.
    pub(crate) under_way: bool,
}

/// The thread's record of the client.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The client's polls at the last look.
    seen: u64,
    /// Its sleeps at the last look.
    sleeps: u32,
    /// Looks at which the client was active, in a row.
    active: u32,
    /// The end of the time in which the thread polls on.
    spins_until: Option<Instant>,
    /// Looks that found the engine in use, or work that waits for a peer.
    fruitless: u32,
    /// Whether the thread has a processor of its own.
    has_processor: bool,
}

impl Record {
    /// Takes note of a look. Returns the time until the next one if the client serves peers itself.
    pub(crate) fn look(&mut self, polls: u64, sleeps: Sleeps) -> Option<Duration> {
        let before = std::mem::replace(&mut self.seen, polls);
        let slept = std::mem::replace(&mut self.sleeps, sleeps.begun) != sleeps.begun || sleeps.under_way;
        if polls - before < ACTIVE_POLLS && !slept {
            self.active = 0;
            return None;
        }
        self.active = self.active.saturating_add(1);
        self.spins_until = None;
        Some(if self.active < STEADY_LOOKS { TICK } else { STEADY_TICK })
    }

    /// Notes that a look has found work.
    pub(crate) fn worked(&mut self) {
        self.spins_until = self.has_processor.then(|| Instant::now() + SPIN);
    }

    /// Whether the thread polls on before it sleeps.
    pub(crate) fn spins(&self) -> bool {
        self.spins_until.is_some_and(|end| Instant::now() < end)
    }

    /// The next step after a look that found the engine in use, or work that waits for a peer.
    pub(crate) fn again(&mut self) -> Next {
        self.fruitless += 1;
        let spins = self.has_processor && !self.fruitless.is_multiple_of(FRUITLESS_LOOKS);
        if spins { Next::Now } else { Next::After(SOON) }
    }
}

/// Starts the library's thread.
pub(crate) fn start(job: &'static Job) -> Result<(), Error> {
    // The thread runs until the process ends.
    let worker = Worker::spawn("weft-gex-rcv", move || run(job))?;
    std::mem::forget(worker);
    Ok(())
}

/// Serves peers until the job ends. A second call returns at once.
pub fn run(job: &Job) {
    static RUNS: AtomicBool = AtomicBool::new(false);
    if RUNS.swap(true, Ordering::AcqRel) {
        return;
    }
    // A thread that computes beside this one on its processor is interrupted for an arrival.
    weft_os::set_short_time_slice(true);
    let mut record = Record { has_processor: job.has_spare_processors(), ..Record::default() };
    while job.is_here() && !job.has_begun_end() {
        match job.attend(&mut record) {
            Next::Now => std::hint::spin_loop(),
            Next::After(time) => std::thread::sleep(time),
            Next::Listen => job.bell().wait(job.wait_fd(), SLICE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_polls_or_sleeps_is_left_alone() {
        let mut record = Record::default();
        let awake = Sleeps::default();
        assert_eq!(record.look(0, awake), None);
        assert_eq!(record.look(ACTIVE_POLLS, awake), Some(TICK));
        assert_eq!(record.look(2 * ACTIVE_POLLS - 1, awake), None, "it polls now and then");
        let asleep = Sleeps { begun: 1, under_way: true };
        let slept = Sleeps { begun: 2, under_way: false };
        assert_eq!(record.look(2 * ACTIVE_POLLS, asleep), Some(TICK));
        assert_eq!(record.look(2 * ACTIVE_POLLS, asleep), Some(TICK));
        assert_eq!(record.look(2 * ACTIVE_POLLS, slept), Some(TICK));
        assert_eq!(record.look(2 * ACTIVE_POLLS, slept), None);
        let last = (1..=u64::from(STEADY_LOOKS)).map(|look| record.look((look + 2) * ACTIVE_POLLS, slept)).last();
        assert_eq!(last, Some(Some(STEADY_TICK)));
        assert_eq!(record.look((u64::from(STEADY_LOOKS) + 2) * ACTIVE_POLLS, slept), None);
        assert_eq!(record.look(1000 * ACTIVE_POLLS, slept), Some(TICK));
    }

    #[test]
    fn only_a_client_of_several_threads_gets_a_thread() {
        assert_eq!(Attendant::None.threads(Threads::One), Threads::One);
        assert_eq!(Attendant::Own.threads(Threads::One), Threads::Many);
    }
}
