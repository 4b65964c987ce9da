//! The job as one of its ranks sees it: its start, and the parts that all calls share.
//!
//! Place in the data flow: [`start`] is the client's first call. Afterwards [`Job::get`] leads every call to the parts:
//! the board and the segments of the host, the engine, the team of all ranks, and the own endpoints.

use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use weft_engine::api::Addr;
use weft_engine::name::EpName;
use weft_nic::Device as _;

use crate::after;
use crate::area::Area;
use crate::attend::{self, Attendant, Bell, Hidden, Next, Record, Sleeps};
use crate::barrier::{Named, Outcome};
use crate::board::{Board, MAX_ENDPOINTS, Published};
use crate::book::Life;
use crate::endpoint::{Client, Endpoint, Segment};
use crate::env;
use crate::error::Error;
use crate::event::Slot;
use crate::exit;
use crate::failure::{self, Failures};
use crate::far::Access;
use crate::gate::{Gate, Refused, Shelf, Threads};
use crate::group::Seat;
use crate::links::Links;
use crate::meet::{Met, Opener, RankEngine, meet};
use crate::memory::{self, Piece};
use crate::os;
use crate::outside;
use crate::own::Own;
use crate::places::Places;
use crate::platform;
use crate::spawn::{self, Conduit, Launcher};
use crate::table::{Location, Place, Segments};
use crate::team::Team;
use crate::wait::{self, Crowd, Limits, Mode};

/// A rank's view of its job.
pub struct Job {
    rank: u32,
    pid: u32,
    threads: Threads,
    attendant: Attendant,
    bell: Arc<Bell>,
    /// Threads that sleep on the device.
    sleepers: AtomicU32,
    /// Sleeps on the device so far.
    sleeps: AtomicU32,
    board: Board,
    places: Places,
    segments: Segments,
    /// `None`: the job has one rank.
    engine: Gate<Option<Links>>,
    /// The means for more engines. `None`: the job has one rank.
    opener: Option<Opener>,
    /// The descriptor on which a sleeper waits.
    wait_fd: Option<RawFd>,
    world: Team,
    named: Named,
    failures: Failures,
    client: Client,
    first: OnceLock<&'static Endpoint>,
    /// The endpoints by number, that of 0 too.
    endpoints: [Shelf<Endpoint>; MAX_ENDPOINTS],
    /// Endpoints with engines of their own that polls of the job include. Held while they are polled.
    polled: RwLock<Vec<&'static Endpoint>>,
    launcher: Option<Mutex<Launcher>>,
    max_segment: u64,
    /// The limits of pauses, by [`Mode`].
    limits: [Limits; 3],
    wait_mode: AtomicU32,
    /// Threads that wait.
    crowd: Crowd,
    /// Teams whose collectives in shared memory are under way.
    busy_teams: Gate<Vec<&'static Team>>,
    /// Their number, and one more while operations wait for others.
    busy: AtomicUsize,
    /// The number of endpoints in `polled`, which count as well.
    busy_endpoints: AtomicUsize,
    /// Whether a serial endpoint was made.
    has_serial: AtomicBool,
    /// Teams that this rank has numbered.
    numbered_teams: AtomicU32,
    /// The number of calls that end this process; the first one does it.
    ends: AtomicU32,
}

/// The client's threads, as it was compiled.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// The number of its own.
    pub threads: Threads,
    /// Whether its handlers may run in another one.
    pub hidden: Hidden,
}

/// The endpoint takes active messages.
const CAPABILITY_AM: u32 = 1 << 1;

/// The parts of a rank's view of its job.
pub(crate) struct Parts {
    pub(crate) seat: Seat,
    pub(crate) met: Met,
    pub(crate) client: Client,
    pub(crate) threads: Threads,
    pub(crate) attendant: Attendant,
    /// Those that the ranks of the host share.
    pub(crate) processors: usize,
}

/// Starts the job, or joins it. A process that forks the ranks does not return.
///
/// # Errors
/// See [`Error`].
pub fn start(name: CString, flags: u32, manner: Manner, conduit: Conduit) -> Result<&'static Job, Error> {
    let Manner { threads, hidden } = manner;
    let spawned = spawn::start(conduit)?;
    let (rank, ranks) = (spawned.rank, spawned.ranks);
    let met = meet(spawned, conduit)?;
    met.board.set_up(rank, std::process::id());
    if flags & outside::FLAG_OPEN != 0 {
        met.board.set_open(rank);
    }
    let attendant = match &met.engines {
        Some(_) => Attendant::wanted(hidden, flags, rank)?,
        None => Attendant::None,
    };
    let job = platform::keep(assemble(Parts {
        seat: Seat { rank, members: ranks },
        met,
        client: Client::new(name, flags),
        threads,
        attendant,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
    })?);
    job.settle();
    exit::install();
    if attendant == Attendant::Own {
        attend::start(job)?;
    }
    Ok(job)
}

/// Makes a rank's view of its job.
pub(crate) fn assemble(parts: Parts) -> Result<Job, Error> {
    let Parts { seat, met, client, threads, attendant, processors } = parts;
    let Seat { rank, members: ranks } = seat;
    let Met { board, places, engines, launcher } = met;
    let area = match places.all_near() {
        true => Some(Area::map(&board, board.world(), ranks)?),
        false => None,
    };
    let on_host = u32::try_from(places.host().members.len()).unwrap_or(ranks);
    let (engine, opener) = engines.unzip();
    let wait_fd = engine.as_ref().map(|engine| engine.nic().wait_fd().as_raw_fd());
    let bell = Arc::new(Bell::new(attendant)?);
    let links = engine.map(|engine| Links::new(engine, rank, ranks, Arc::clone(&bell))).transpose()?;
    let max_segment = env::max_segment(u64::from(on_host), board.file().bytes() / 4 / u64::from(on_host))?;
    Ok(Job {
        rank,
        pid: std::process::id(),
        threads,
        attendant,
        bell,
        sleepers: AtomicU32::new(0),
        sleeps: AtomicU32::new(0),
        segments: Segments::new(rank, ranks),
        engine: Gate::new(attendant.threads(threads), links),
        wait_fd,
        world: Team::new(0, seat, attendant.threads(threads), None, area),
        named: Named::default(),
        failures: Failures::new(ranks),
        opener,
        client,
        first: OnceLock::new(),
        endpoints: std::array::from_fn(|_| Shelf::new()),
        polled: RwLock::default(),
        launcher: launcher.map(Mutex::new),
        max_segment,
        limits: Mode::ALL.map(|mode| Limits::new(mode, on_host, processors, !places.all_near())),
        wait_mode: AtomicU32::new(Mode::SpinBlock as u32),
        crowd: Crowd::new(u32::try_from(processors).unwrap_or(u32::MAX) / on_host.max(1)),
        busy_teams: Gate::new(attendant.threads(threads), Vec::new()),
        busy: AtomicUsize::new(0),
        busy_endpoints: AtomicUsize::new(0),
        has_serial: AtomicBool::new(false),
        numbered_teams: AtomicU32::new(0),
        ends: AtomicU32::new(0),
        board,
        places,
    })
}

impl Job {
    /// The job of this process; `None` before its start.
    #[inline(always)]
    #[must_use]
    pub fn get() -> Option<&'static Self> {
        platform::job()
    }

    /// Makes the first endpoint. The job has its place in memory.
    pub(crate) fn settle(&'static self) {
        self.first.get_or_init(|| Box::leak(Box::new(Endpoint::new(0, u32::MAX, 0, None))));
        self.endpoints[0].set(self.endpoint());
    }

    /// Notes a call that ends this process. Returns whether it is the first one.
    pub(crate) fn begin_end(&self) -> bool {
        self.ends.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// Whether a call ends this process.
    pub(crate) fn has_begun_end(&self) -> bool {
        self.ends.load(Ordering::Acquire) > 0
    }

    /// The rank of this process.
    #[inline(always)]
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    #[inline(always)]
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.board.ranks()
    }

    /// Whether this process is the rank, and not a child that the client has forked.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Whether the client has one thread or several.
    #[must_use]
    pub fn threads(&self) -> Threads {
        self.threads
    }

    /// The threads that poll.
    pub(crate) fn engine_threads(&self) -> Threads {
        self.attendant.threads(self.threads)
    }

    /// The thread that serves peers while the client computes.
    #[must_use]
    pub fn attendant(&self) -> Attendant {
        self.attendant
    }

    /// The board of the host.
    #[inline(always)]
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// The segments of all ranks.
    #[must_use]
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The places of all ranks.
    #[inline(always)]
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// A number for a team that this rank leads; no other team of the job has it.
    pub(crate) fn new_team_id(&self) -> u64 {
        let count = self.numbered_teams.fetch_add(1, Ordering::Relaxed) + 1;
        u64::from(self.rank) << 32 | u64::from(count)
    }

    /// The team of all ranks.
    #[inline(always)]
    #[must_use]
    pub fn world(&self) -> &Team {
        &self.world
    }

    /// The failures of other ranks.
    #[inline(always)]
    #[must_use]
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Begins a named barrier.
    pub fn notify_barrier(&self, number: i32, flags: u32) -> Outcome {
        let Some(area) = self.world.area() else {
            return self.named.notify_by_engine(self, number, flags);
        };
        let outcome = self.named.notify(area, self.rank, number, flags);
        // The last rank wakes the others.
        if outcome == Outcome::Matched && self.board.has_sleepers() && self.named.is_over(area) {
            self.world.wake_members(self);
        }
        outcome
    }

    /// Ends a named barrier if all ranks have begun it.
    pub fn try_barrier(&self, number: i32, flags: u32) -> Outcome {
        match self.world.area() {
            Some(area) => match self.named.try_end(area, number, flags) {
                Outcome::NotReady if self.world.is_broken(self) => self.named.abandon(),
                outcome => outcome,
            },
            None => self.named.try_end_by_engine(number, flags),
        }
    }

    /// The id of the last named barrier.
    #[must_use]
    pub fn barrier_result(&self) -> Option<i32> {
        self.named.result()
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The largest segment in bytes.
    #[must_use]
    pub fn max_segment(&self) -> u64 {
        self.max_segment
    }

    /// Whether a launcher has started the ranks.
    #[must_use]
    pub fn is_launched(&self) -> bool {
        self.launcher.is_some()
    }

    /// Speaks to the launcher, unless another thread does.
    pub(crate) fn with_launcher(&self, work: impl FnOnce(&mut Launcher)) {
        if let Some(mut client) = self.launcher.as_ref().and_then(Mutex::try_lock) {
            work(&mut client);
        }
    }

    // ---- endpoints and segments ------------------------------------------------------------

    /// Makes an endpoint. One that takes messages gets an engine of its own.
    ///
    /// # Errors
    /// The rank has the most that there may be, or the system refuses what an engine needs.
    pub fn add_endpoint(&self, caps: u32, flags: u32) -> Result<&'static Endpoint, Error> {
        let mut polled = self.polled.write();
        let free = (0..).zip(&self.endpoints).find(|(_, place)| place.get().is_none());
        let (index, place) = free.ok_or(Error::Endpoints)?;
        let opener = self.opener.as_ref().filter(|_| caps & CAPABILITY_AM != 0);
        let at = Location::new(self.rank, index);
        let own = opener.map(|opener| Own::open(opener, at, flags, self.threads)).transpose()?;
        let endpoint: &Endpoint = Box::leak(Box::new(Endpoint::new(index, caps, flags, own)));
        place.set(endpoint);
        if endpoint.own().is_some_and(|own| !own.is_serial()) {
            polled.push(endpoint);
            self.busy_endpoints.fetch_add(1, Ordering::Relaxed);
            self.busy.fetch_add(1, Ordering::Relaxed);
        }
        if endpoint.own().is_some_and(Own::is_serial) {
            self.has_serial.store(true, Ordering::Relaxed);
        }
        Ok(endpoint)
    }

    /// Whether a thread may have used a serial endpoint.
    #[inline(always)]
    pub(crate) fn has_serial(&self) -> bool {
        self.has_serial.load(Ordering::Relaxed)
    }

    /// Forgets an endpoint. Polls of the job have left it afterwards.
    pub(crate) fn clear_endpoint(&self, index: u16) {
        let mut polled = self.polled.write();
        if let Some(at) = polled.iter().position(|endpoint| endpoint.index() == index) {
            polled.swap_remove(at);
            self.busy_endpoints.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(place) = self.endpoints.get(usize::from(index)) {
            place.clear();
        }
    }

    /// The first endpoint.
    #[inline(always)]
    #[must_use]
    pub fn endpoint(&self) -> &'static Endpoint {
        match self.first.get() {
            Some(endpoint) => endpoint,
            None => crate::fatal!("the job has no endpoint; report this error"),
        }
    }

    /// The endpoint of a number.
    #[inline(always)]
    #[must_use]
    pub fn endpoint_at(&self, index: u16) -> Option<&'static Endpoint> {
        self.endpoints.get(usize::from(index))?.get()
    }

    /// The engines' address of an endpoint; `None`: it is not known to have an engine.
    #[inline(always)]
    pub(crate) fn address(&self, at: Location) -> Option<Addr> {
        match &self.opener {
            Some(opener) => opener.book().address(at),
            None => Some(Addr::from(at.rank())),
        }
    }

    /// Learns the name of a peer's endpoint.
    pub(crate) fn learn(&self, at: Location, life: Life, name: EpName) {
        if let Some(opener) = self.opener.as_ref().filter(|_| at.rank() != self.rank) {
            opener.book().add(at, life, name);
        }
    }

    /// Makes a segment of memory that all ranks of the host can map.
    ///
    /// # Errors
    /// The memory cannot be had.
    pub fn make_segment(&self, bytes: usize, flags: u32) -> Result<&'static Segment, Error> {
        let offset = self.board.allocate(bytes as u64)?;
        let addr = self.board.file().map(offset, bytes)?;
        Ok(Box::leak(Box::new(Segment::new(addr, bytes, Some(offset), flags))))
    }

    /// Gives the memory of a segment back, and ends the accesses of other ranks to it.
    pub fn destroy_segment(&self, segment: &Segment) {
        let endpoints = self.endpoints.iter().filter_map(Shelf::get);
        for endpoint in endpoints.filter(|one| one.segment().is_some_and(|bound| std::ptr::eq(bound, segment))) {
            let _ = self.with_engine(|engine| engine.remove_region(endpoint.index().into()));
        }
        if let Some(offset) = segment.offset() {
            self.board.file().discard(offset, segment.bytes() as u64);
        }
    }

    /// Publishes the segment of an endpoint.
    pub fn publish(&self, endpoint: &Endpoint) {
        let Some(segment) = endpoint.segment() else { return };
        let [addr, bytes] = [segment.addr(), segment.bytes()];
        let published = Published { addr, bytes, offset: segment.offset() };
        self.register(endpoint.index(), addr, bytes);
        self.board.publish(self.rank, usize::from(endpoint.index()), published);
        let _ = self.segments.local(&self.board, Location::new(self.rank, endpoint.index()), published);
    }

    /// Publishes the segments of endpoints to the members of a team, and waits for them. Collective.
    pub fn publish_all(&self, team: &Team, endpoints: &[&Endpoint]) {
        self.introduce(team, endpoints);
        endpoints.iter().for_each(|endpoint| self.publish(endpoint));
        if team.area().is_some() {
            return team.pass_barrier(self);
        }
        let mut at = 0;
        loop {
            // A count of those that are left, and one segment: its endpoint, address and length.
            let segment = endpoints.get(at).and_then(|endpoint| Some((endpoint.index(), endpoint.segment()?)));
            let (index, addr, bytes) = segment.map_or((0, 0, 0), |(at, one)| (at, one.addr(), one.bytes()));
            let left = endpoints.len().saturating_sub(at + 1) as u64;
            let all = team.exchange(self, [left, u64::from(index), addr as u64, bytes as u64, 0, 0, 0]);
            for (member, [_, index, addr, bytes, ..]) in (0..).zip(&all) {
                let numbers = [*addr, *bytes].map(|number| usize::try_from(number).unwrap_or(0));
                let ([addr, bytes], Ok(index), Some(rank)) = (numbers, u16::try_from(*index), team.job_rank(member))
                else {
                    continue;
                };
                if bytes > 0 && !self.places.is_near(rank) {
                    self.segments.add_remote(Location::new(rank, index), addr, bytes);
                }
            }
            at += 1;
            if all.iter().all(|[left, ..]| *left == 0) {
                return;
            }
        }
    }

    /// A published segment: its address there, its address here (0: it is not mapped), and its length. An own one is
    /// known from the moment at which it is bound.
    #[must_use]
    pub fn published(&self, at: Location) -> Option<[usize; 3]> {
        if at.rank() == self.rank() {
            let segment = self.endpoint_at(at.endpoint())?.segment()?;
            return Some([segment.addr(), segment.addr(), segment.bytes()]);
        }
        if !self.places.is_near(at.rank()) {
            return self.segments.remote(at).map(|(addr, bytes)| [addr, 0, bytes]);
        }
        let segment = self.board.published(at.rank(), usize::from(at.endpoint()))?;
        let here = self.segments.local(&self.board, at, segment).unwrap_or(0);
        Some([segment.addr, here, segment.bytes])
    }

    /// The address of an endpoint's segment in its process.
    #[must_use]
    pub fn segment_base(&self, at: Location) -> Option<usize> {
        self.segments.base(at).or_else(|| self.published(at).map(|[base, ..]| base))
    }

    /// The place of a rank's memory.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, at: Location, piece: Piece) -> Place {
        self.segments.place(&self.board, &self.places, at, piece)
    }

    /// An access to memory that is not mapped here.
    #[cold]
    #[inline(never)]
    pub(crate) fn far(&self, way: memory::Way, at: Location, local: usize, remote: Piece, place: Place) {
        match place {
            _ if remote.bytes == 0 => {}
            Place::Far(pid) => {
                if let Err(errno) = memory::copy_far_at(way, pid, local, remote) {
                    crate::fatal!(
                        "memory of rank {} outside segments of the library cannot be reached ({errno}); let the library allocate the segment, or allow process_vm_readv",
                        at.rank()
                    );
                }
            }
            Place::Remote => {
                self.access(&Access { at, way, local, remote: remote.addr, bytes: remote.bytes });
            }
            Place::Here(_) => debug_assert!(false, "mapped memory"),
            Place::Nowhere => crate::fatal!(
                "{} bytes at {:#x} are not in the segment of endpoint {} of rank {}; pass an address of that segment",
                remote.bytes,
                remote.addr,
                at.endpoint(),
                at.rank()
            ),
        }
    }

    // ---- progress --------------------------------------------------------------------------

    /// Uses the engine, after other threads. `None`: the call comes from a handler, or there is no engine.
    #[inline(always)]
    pub(crate) fn with_engine<R>(&self, work: impl FnOnce(&mut RankEngine) -> R) -> Option<R> {
        self.engine.with(|links| links.as_mut().map(|links| links.operate(work))).ok().flatten()
    }

    /// Uses the engine if no other thread does.
    #[inline(always)]
    pub(crate) fn try_with_engine<R>(&self, work: impl FnOnce(&mut RankEngine) -> R) -> Option<R> {
        self.engine.try_with(|links| links.as_mut().map(|links| links.operate(work))).ok().flatten()
    }

    /// Whether a message to a rank could leave at once.
    pub(crate) fn can_send_now(&self, at: Location) -> bool {
        let addr = self.message_address(at);
        self.try_with_engine_by(at.by(), |engine| engine.active_limit(addr) > 0).unwrap_or(false)
    }

    /// Makes one round of progress. Returns the number of events.
    #[inline(always)]
    pub fn poll(&self) -> usize {
        let polled = self.engine.try_with(|links| links.as_mut().map_or(0, Links::progress));
        let news = self.board.news();
        if !self.failures.has_heard(news) && polled != Err(Refused::Inside) {
            failure::hear(self, news);
        }
        let events = polled.unwrap_or(0);
        if self.busy.load(Ordering::Relaxed) == 0 { events } else { events + self.poll_teams() }
    }

    /// Moves the collectives in shared memory on, and starts operations that have waited for others.
    #[inline(never)]
    fn poll_teams(&self) -> usize {
        let mut events = if after::any() { after::run(self) } else { 0 };
        if self.busy_endpoints.load(Ordering::Relaxed) > 0 {
            events += self.poll_endpoints();
        }
        let run = |teams: &mut Vec<&'static Team>| {
            let complete: usize = teams.iter().map(|team| team.run(self)).sum();
            if !teams.iter().all(|team| team.is_busy()) {
                teams.retain(|team| team.is_busy());
            }
            self.note_busy(teams.len());
            complete
        };
        events + self.busy_teams.try_with(run).unwrap_or(0)
    }

    /// Polls the endpoints with engines of their own.
    #[cold]
    fn poll_endpoints(&self) -> usize {
        let Some(polled) = self.polled.try_read() else { return 0 };
        polled.iter().filter_map(|endpoint| Some(endpoint.own()?.poll())).sum()
    }

    fn with_busy_teams<R>(&self, work: impl FnOnce(&mut Vec<&'static Team>) -> R) -> R {
        match self.busy_teams.with(work) {
            Ok(result) => result,
            Err(_) => crate::fatal!("the function of a reduction has called the library; it may not"),
        }
    }

    fn note_busy(&self, teams: usize) {
        let endpoints = self.busy_endpoints.load(Ordering::Relaxed);
        self.busy.store(teams + usize::from(after::any()) + endpoints, Ordering::Relaxed);
    }

    /// Notes that operations wait for others.
    pub(crate) fn note_dependents(&self) {
        self.with_busy_teams(|teams| self.note_busy(teams.len()));
    }

    /// Notes that collectives of a team are under way.
    pub fn watch(&self, team: &'static Team) {
        self.with_busy_teams(|teams| {
            if !teams.iter().any(|known| std::ptr::eq(*known, team)) {
                teams.push(team);
            }
            self.note_busy(teams.len());
        });
    }

    /// As [`Job::reads_source`], for collectives in shared memory.
    pub(crate) fn reads_source_in_areas(&self, event: &Slot) -> Option<bool> {
        self.with_busy_teams(|teams| teams.iter().find_map(|team| team.reads_source(event)))
    }

    /// Forgets a team that the client destroys.
    pub fn unwatch(&self, team: &Team) {
        self.with_busy_teams(|teams| teams.retain(|known| !std::ptr::eq(*known, team)));
    }

    /// The limits of pauses.
    #[inline]
    #[must_use]
    pub fn wait_limits(&self) -> Limits {
        let limits = self.limits[self.wait_mode.load(Ordering::Relaxed) as usize % self.limits.len()];
        if self.crowd.is_dense() { limits.crowded() } else { limits }
    }

    /// The threads of this rank that wait.
    pub(crate) fn crowd(&self) -> &Crowd {
        &self.crowd
    }

    /// Sets the method of waiting.
    pub fn set_wait_mode(&self, mode: Mode) {
        self.wait_mode.store(mode as u32, Ordering::Relaxed);
    }

    /// Sleeps until a message arrives, or for a time.
    #[cold]
    pub fn sleep(&self, time: Duration) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        let parked = self.engine.try_with(|links| links.as_mut().map(Links::park));
        let (others, is_idle) = self.park_others();
        match (parked, self.wait_fd) {
            // There is something to poll, or an engine has work that waits for a peer.
            (Ok(Some(false)), _) => platform::rest(),
            (Ok(_), _) if !is_idle => platform::rest(),
            (Ok(Some(true)), Some(fd)) => os::wait_any(others.iter().copied().chain([fd]), time),
            // Another thread polls. It may leave without a sign.
            (Err(_), _) => platform::sleep(time.min(wait::LONGEST_NAP)),
            _ => platform::sleep(time),
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Prepares a sleep for the endpoints with engines of their own that a wait polls. Returns their descriptors, and
    /// whether nothing is left to poll.
    fn park_others(&self) -> (SmallVec<[RawFd; 4]>, bool) {
        let mut fds = SmallVec::new();
        let mut is_idle = true;
        let mut park = |own: &Own| {
            fds.push(own.wait_fd());
            is_idle &= own.park();
        };
        self.last_own().into_iter().for_each(&mut park);
        if let Some(polled) = self.polled.try_read() {
            polled.iter().filter_map(|endpoint| endpoint.own()).for_each(park);
        }
        (fds, is_idle)
    }

    // ---- progress while the client computes ----------------------------------------------------

    /// Whether processors are left for a thread beside those of the ranks.
    pub(crate) fn has_spare_processors(&self) -> bool {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.places.host().members.len() < processors
    }

    /// Serves peers, unless the client does.
    pub(crate) fn attend(&self, record: &mut Record) -> Next {
        let under_way = self.sleepers.load(Ordering::Relaxed) > 0;
        let sleeps = Sleeps { begun: self.sleeps.load(Ordering::Relaxed), under_way };
        let entered = self.engine.try_with(|links| links.as_mut().map(|links| links.attend(record, sleeps)));
        if self.board.is_ending() {
            exit::follow(self);
        }
        match entered {
            // Steps of collectives in shared memory ring nowhere.
            Ok(Some(next @ (Next::Now | Next::Listen))) if self.busy.load(Ordering::Relaxed) > 0 => {
                if self.poll_teams() > 0 || next == Next::Now { Next::Now } else { Next::After(attend::STEP) }
            }
            Ok(Some(next)) => next,
            Ok(None) | Err(_) => record.again(),
        }
    }

    /// The bell of the thread that serves peers.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// The descriptor by which peers wake a sleeper.
    pub(crate) fn wait_fd(&self) -> Option<RawFd> {
        self.wait_fd
    }
}
