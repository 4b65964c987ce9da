//! Endpoints with an engine of their own.
//!
//! Place in the data flow: `gex_EP_Create` makes one if the endpoint takes messages. Its messages and accesses pass its
//! own engine, over links of its own, to the endpoint of the peer. No lock is shared with other endpoints.
//!
//! Polls of the job include these endpoints, except *serial* ones. One thread at a time uses a serial endpoint, so it
//! has no lock, and only the calls that name it poll it. A thread that waits polls the serial endpoint that it has used
//! last.
//!
//! The names of such endpoints are exchanged when a team of them is made, or when they are published.

use std::cell::Cell;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use weft_engine::api::Addr;
use weft_engine::name::{EpName, NAME_BYTES};
use weft_engine::nic::Nic as _;
use weft_nic::Device as _;

use crate::area::EXCHANGE_WORDS;
use crate::attend::{Attendant, Bell};
use crate::book::Life;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::gate::{Gate, Threads};
use crate::job::Job;
use crate::links::Links;
use crate::meet::{Opener, RankEngine};
use crate::table::Location;
use crate::team::Team;

/// The flag of an endpoint that one thread at a time uses.
pub const FLAG_SERIAL: u32 = 1 << 25;
/// The time for messages to leave an endpoint that is destroyed.
const DRAIN: Duration = Duration::from_secs(2);
/// Polls of a serial endpoint for one of the job, while a thread waits.
const POLLS_PER_JOB: u32 = 16;
/// Idle polls after which each one includes the job.
const PATIENT_POLLS: u32 = 256;
/// Words of a name in an exchange. Two exchanges carry one.
const NAME_WORDS: usize = NAME_BYTES / 8 / 2;

/// An engine of an endpoint.
pub struct Own {
    links: Gate<Links>,
    name: EpName,
    life: Life,
    wait_fd: RawFd,
    is_serial: bool,
}

impl Own {
    /// Opens the engine of the endpoint of a number.
    pub(crate) fn open(opener: &Opener, at: Location, flags: u32, threads: Threads) -> Result<Self, Error> {
        static LIVES: AtomicU16 = AtomicU16::new(0);
        let engine = opener.open(at.endpoint())?;
        let (name, life) = (engine.name(), LIVES.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        opener.book().add(at, life, name);
        let wait_fd = engine.nic().wait_fd().as_raw_fd();
        let bell = Arc::new(Bell::new(Attendant::None)?);
        let links = Links::new(engine, at.rank(), opener.ranks(), bell)?;
        let is_serial = flags & FLAG_SERIAL != 0;
        let threads = if is_serial { Threads::One } else { threads };
        Ok(Self { links: Gate::new(threads, links), name, life, wait_fd, is_serial })
    }

    /// Whether one thread at a time uses the endpoint.
    #[must_use]
    pub fn is_serial(&self) -> bool {
        self.is_serial
    }

    /// Makes one round of progress, unless another thread does. Returns the number of events.
    #[inline(always)]
    pub fn poll(&self) -> usize {
        self.links.try_with(Links::progress).unwrap_or(0)
    }

    /// The descriptor by which peers wake a sleeper.
    pub(crate) fn wait_fd(&self) -> RawFd {
        self.wait_fd
    }

    /// Prepares a sleep. False: there is something to poll, or another thread polls.
    pub(crate) fn park(&self) -> bool {
        self.links.try_with(Links::park).unwrap_or(false)
    }

    /// Ends all links, after the messages that were sent.
    fn shut_down(&self) {
        let deadline = Instant::now() + DRAIN;
        let mut is_down = false;
        while !is_down && Instant::now() < deadline {
            let step = |links: &mut Links| {
                links.operate(|engine| engine.nic_mut().flush());
                links.progress();
                links.operate(|engine| engine.quiescent())
            };
            // A call from a handler of the endpoint is refused.
            let Ok(quiet) = self.links.with(step) else {
                crate::fatal!("a handler has destroyed its endpoint; destroy it after the handler has returned");
            };
            is_down = quiet;
        }
        let _ = self.links.with(|links| links.operate(RankEngine::shutdown));
        while Instant::now() < deadline {
            let drained = self.links.with(|links| {
                links.progress();
                links.operate(|engine| engine.nic().drained())
            });
            if drained != Ok(false) {
                return;
            }
        }
    }
}

thread_local! {
    /// The number of the serial endpoint that the thread has used last. 0: none.
    static LAST: Cell<u16> = const { Cell::new(0) };
}

impl Job {
    /// Uses the engine of an endpoint, after other threads. `None`: the call comes from a handler, or there is no
    /// engine.
    #[inline(always)]
    pub(crate) fn with_engine_by<R>(&self, by: u16, work: impl FnOnce(&mut RankEngine) -> R) -> Option<R> {
        match self.own(by) {
            None => self.with_engine(work),
            Some(own) => own.links.with(|links| links.operate(work)).ok(),
        }
    }

    /// Uses the engine of an endpoint if no other thread does.
    #[inline(always)]
    pub(crate) fn try_with_engine_by<R>(&self, by: u16, work: impl FnOnce(&mut RankEngine) -> R) -> Option<R> {
        match self.own(by) {
            None => self.try_with_engine(work),
            Some(own) => own.links.try_with(|links| links.operate(work)).ok(),
        }
    }

    /// The own engine of an endpoint, which the thread uses from now on.
    #[inline(always)]
    pub(crate) fn own(&self, by: u16) -> Option<&'static Own> {
        if by == 0 {
            return None;
        }
        let own = self.endpoint_at(by)?.own()?;
        if own.is_serial {
            let _ = LAST.try_with(|last| last.set(by));
        }
        Some(own)
    }

    /// The engines' address of an endpoint for messages.
    #[inline(always)]
    pub(crate) fn message_address(&self, at: Location) -> Addr {
        match self.address(at) {
            Some(addr) => addr,
            None => no_messages(at),
        }
    }

    /// The engines' address of an endpoint for accesses. Endpoints without an engine are served by the first one.
    pub(crate) fn access_address(&self, at: Location) -> Addr {
        self.address(at).unwrap_or(Addr::from(at.rank()))
    }

    /// Makes one round of progress of an endpoint alone. One without an engine is polled with the job.
    #[inline]
    pub fn poll_by(&self, by: u16) -> usize {
        match self.own(by) {
            None => self.poll(),
            Some(own) => own.poll(),
        }
    }

    /// Makes one round of progress for a thread that waits. Returns the number of events. A thread that uses a serial
    /// endpoint polls the rest of the job less often, because other threads do.
    #[inline(always)]
    pub(crate) fn poll_waiting(&self, idle: u32) -> usize {
        if self.has_serial() { self.poll_serial(idle) } else { self.poll() }
    }

    #[cold]
    fn poll_serial(&self, idle: u32) -> usize {
        let Some(last) = self.last_own() else { return self.poll() };
        let events = last.poll();
        let job_too = idle.is_multiple_of(POLLS_PER_JOB) || idle >= PATIENT_POLLS;
        if events == 0 && job_too { self.poll() } else { events }
    }

    /// The serial endpoint that the thread has used last.
    pub(crate) fn last_own(&self) -> Option<&'static Own> {
        self.own(LAST.try_with(Cell::get).unwrap_or(0))
    }

    /// Ends an endpoint that has an engine. The client uses it no more.
    pub fn destroy(&self, endpoint: &Endpoint) {
        self.clear_endpoint(endpoint.index());
        if let Some(own) = endpoint.own() {
            own.shut_down();
        }
        let _ = LAST.try_with(|last| last.set(if last.get() == endpoint.index() { 0 } else { last.get() }));
    }

    /// Tells the members of a team the names of endpoints, and learns theirs. Collective.
    pub fn introduce(&self, team: &Team, endpoints: &[&Endpoint]) {
        let mut known = endpoints.iter().filter_map(|endpoint| Some((endpoint.index(), endpoint.own()?)));
        loop {
            let (index, life, name) = match known.next() {
                Some((index, own)) => (index, own.life, *own.name.as_bytes()),
                None => (0, 0, [0; NAME_BYTES]),
            };
            let words = name.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
            let left = known.clone().count() as u64;
            let mut first = [left, u64::from(life) << 16 | u64::from(index), 0, 0, 0, 0, 0];
            let mut second = [0; EXCHANGE_WORDS - 1];
            let places = first[2..2 + NAME_WORDS].iter_mut().chain(&mut second[..NAME_WORDS]);
            places.zip(words).for_each(|(place, word)| *place = word);
            let [firsts, seconds] = [first, second].map(|words| team.exchange(self, words));
            for (member, (first, second)) in (0..).zip(firsts.iter().zip(&seconds)) {
                self.note_name(team.job_rank(member), first, second);
            }
            if firsts.iter().all(|[left, ..]| *left == 0) {
                return;
            }
        }
    }

    /// Notes the name of an endpoint, as a member of a team has told it.
    fn note_name(&self, rank: Option<u32>, first: &[u64; EXCHANGE_WORDS - 1], second: &[u64; EXCHANGE_WORDS - 1]) {
        #[expect(clippy::cast_possible_truncation, reason = "16 bits each")]
        let (index, life) = (first[1] as u16, (first[1] >> 16) as u16);
        let words = first[2..2 + NAME_WORDS].iter().chain(&second[..NAME_WORDS]);
        let name: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        if let (Some(rank), Ok(name)) = (rank.filter(|_| index != 0), EpName::parse(&name)) {
            self.learn(Location::new(rank, index), life, name);
        }
    }
}

#[cold]
fn no_messages(at: Location) -> ! {
    crate::fatal!(
        "endpoint {} of rank {} is not known to take messages; create it with GEX_EP_CAPABILITY_AM, and make a team of both endpoints with gex_TM_Create, or publish them",
        at.endpoint(),
        at.rank()
    )
}
