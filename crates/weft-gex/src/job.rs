//! The job as one of its ranks sees it: its start, and the parts that all calls share.
//!
//! Place in the data flow: [`start`] is the client's first call. Afterwards [`Job::get`] leads every call to the parts:
//! the board and the segments of the host, the engine, the team of all ranks, and the own endpoints.

use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use weft_engine::Engine;
use weft_engine::api::{Addr, AddressBook, Config};
use weft_engine::name::{EpName, NAME_BYTES};
use weft_nic::{Device as _, Devices};

use crate::am::Handlers;
use crate::area::Area;
use crate::barrier::{Named, TeamBarrier};
use crate::board::{Board, MAX_ENDPOINTS, Published};
use crate::endpoint::{Client, Endpoint, Segment};
use crate::env;
use crate::error::Error;
use crate::exit;
use crate::gate::{Gate, Refused, Threads};
use crate::links::Links;
use crate::memory::{self, JobFile, Piece};
use crate::os;
use crate::rendezvous::{self, Token};
use crate::spawn::{self, Spawned, Way, pmi};
use crate::table::{Location, Place, Segments};
use crate::team::Team;
use crate::wait::{Limits, Mode};

/// The limit for all ranks to start.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A rank's view of its job.
pub struct Job {
    rank: u32,
    pid: u32,
    threads: Threads,
    board: Board,
    segments: Segments,
    /// `None`: the job has one rank.
    engine: Gate<Option<Links>>,
    /// What a sleeper waits for.
    wait_fd: Option<RawFd>,
    world: Team,
    named: Named,
    client: Client,
    endpoints: [OnceLock<&'static Endpoint>; MAX_ENDPOINTS],
    endpoint_count: AtomicUsize,
    launcher: Option<Mutex<pmi::Client>>,
    max_segment: u64,
    limits: RwLock<Limits>,
    wait_mode: AtomicU32,
    /// Teams whose collectives are under way.
    busy_teams: Mutex<Vec<&'static Team>>,
    busy: AtomicUsize,
}

static JOB: OnceLock<Job> = OnceLock::new();

/// The names of all ranks' endpoints, by rank.
struct Names(Vec<EpName>);

impl AddressBook for Names {
    fn name(&self, addr: Addr) -> Option<EpName> {
        self.0.get(usize::try_from(addr).ok()?).copied()
    }

    fn addr(&self, name: &EpName) -> Option<Addr> {
        self.0.iter().position(|found| found.same_endpoint(name)).map(|at| at as Addr)
    }
}

/// Starts the job, or joins it. A process that forks the ranks does not return.
///
/// # Errors
/// See [`Error`].
pub fn start(name: CString, flags: u32, threads: Threads) -> Result<&'static Job, Error> {
    let Spawned { rank, ranks, way } = spawn::start()?;
    let (board, launcher) = match way {
        Way::Alone => (Board::create(1)?, None),
        Way::Forked(board) => (*board, None),
        Way::Launcher(mut client) => (meet(&mut client)?, Some(Mutex::new(client))),
    };
    let pid = std::process::id();
    board.set_up(rank, pid);
    let world = Team::new(rank, None, Area::map(&board, board.world(), ranks)?, 0);
    let engine = if ranks > 1 { Some(connect(&board, &world)?) } else { None };
    let wait_fd = engine.as_ref().map(|engine| engine.nic().wait_fd().as_raw_fd());
    let links = engine.map(|engine| Links::new(engine, rank, ranks)).transpose()?;
    let max_segment = env::max_segment(u64::from(ranks), board.file().bytes() / 4 / u64::from(ranks))?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let job = Job {
        rank,
        pid,
        threads,
        segments: Segments::new(rank, ranks),
        engine: Gate::new(threads, links),
        wait_fd,
        world,
        named: Named::default(),
        client: Client::new(name, flags),
        endpoints: std::array::from_fn(|_| OnceLock::new()),
        endpoint_count: AtomicUsize::new(0),
        launcher,
        max_segment,
        limits: RwLock::new(Limits::new(Mode::SpinBlock, ranks, processors)),
        wait_mode: AtomicU32::new(0),
        busy_teams: Mutex::new(Vec::new()),
        busy: AtomicUsize::new(0),
        board,
    };
    let job = JOB.get_or_init(|| job);
    let _ = job.add_endpoint(u32::MAX, 0);
    exit::install();
    Ok(job)
}

/// Meets the other ranks that the launcher has started on this host. Returns the board.
fn meet(client: &mut pmi::Client) -> Result<Board, Error> {
    const STEP: &str = "meet";
    let ranks = client.ranks();
    let host = weft_nic::host::host_id();
    if client.rank() == 0 {
        let token = Token::random()?;
        let board = Board::create(ranks)?;
        let listener = rendezvous::listen(&token)?;
        client.put(STEP, &[&host.to_le_bytes()[..], &token.to_bytes()].concat())?;
        client.fence()?;
        rendezvous::serve(&listener, &token, board.file().fd(), ranks - 1)?;
        return Ok(board);
    }
    client.fence()?;
    let blob = client.get(STEP, 0)?;
    let (first_host, token) = blob
        .split_first_chunk::<8>()
        .and_then(|(host, rest)| Some((host, Token::from_bytes(rest.first_chunk()?))))
        .ok_or_else(|| Error::Launcher("keep the blob of rank 0".into()))?;
    if *first_host != host.to_le_bytes() {
        return Err(Error::OtherHost(client.rank()));
    }
    Board::join(JobFile::adopt(rendezvous::call(&token)?)?, ranks)
}

/// Opens the endpoint and exchanges names with the other ranks.
fn connect(board: &Board, world: &Team) -> Result<Box<Engine<Devices>>, Error> {
    let config = weft_nic::Config { tcp: false, job_key: Some(board.key().to_vec()), ..weft_nic::Config::default() };
    let devices = Devices::open(&config)?;
    let mut engine = Engine::boxed(Config { boards: false, maps: false, ..Config::default() }, devices);
    board.put_blob(world.rank(), engine.name().as_bytes());
    let number = world.barrier().arrive(world.area(), world.rank());
    let (deadline, mut seen) = (Instant::now() + START_LIMIT, 0);
    while !TeamBarrier::is_over(world.area(), number, &mut seen) {
        if board.is_ending() || Instant::now() > deadline {
            return Err(Error::Rendezvous(START_LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    let name = |rank| {
        let blob = board.blob(rank);
        let bytes: &[u8; NAME_BYTES] = blob.as_slice().try_into().ok()?;
        EpName::parse(bytes).ok()
    };
    let names: Option<Vec<_>> = (0..board.ranks()).map(name).collect();
    let names = names.ok_or_else(|| Error::Launcher("start the same library in all ranks".into()))?;
    engine.bind_book(Arc::new(Names(names)));
    engine.set_active_handler(Box::new(Handlers));
    Ok(engine)
}

impl Job {
    /// The job of this process; `None` before its start.
    #[inline(always)]
    #[must_use]
    pub fn get() -> Option<&'static Self> {
        JOB.get()
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

    /// The team of all ranks.
    #[inline(always)]
    #[must_use]
    pub fn world(&self) -> &Team {
        &self.world
    }

    /// The named barriers.
    #[must_use]
    pub fn named(&self) -> &Named {
        &self.named
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
    pub(crate) fn with_launcher(&self, work: impl FnOnce(&mut pmi::Client)) {
        if let Some(mut client) = self.launcher.as_ref().and_then(Mutex::try_lock) {
            work(&mut client);
        }
    }

    // ---- endpoints and segments ------------------------------------------------------------

    /// Makes an endpoint. `None`: the rank has the most that there may be.
    pub fn add_endpoint(&self, caps: u32, flags: u32) -> Option<&'static Endpoint> {
        let index = self.endpoint_count.fetch_add(1, Ordering::Relaxed);
        let place = self.endpoints.get(index)?;
        let number = u16::try_from(index).ok()?;
        Some(place.get_or_init(|| Box::leak(Box::new(Endpoint::new(number, caps, flags)))))
    }

    /// The first endpoint.
    #[inline(always)]
    #[must_use]
    pub fn endpoint(&self) -> &'static Endpoint {
        match self.endpoints[0].get() {
            Some(endpoint) => endpoint,
            None => crate::fatal!("the job has no endpoint; report this error"),
        }
    }

    /// The endpoint of a number.
    #[must_use]
    pub fn endpoint_at(&self, index: u16) -> Option<&'static Endpoint> {
        self.endpoints.get(usize::from(index))?.get().copied()
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

    /// Publishes the segment of an endpoint.
    pub fn publish(&self, endpoint: &Endpoint) {
        let Some(segment) = endpoint.segment() else { return };
        let [addr, bytes] = [segment.addr(), segment.bytes()];
        let published = Published { addr, bytes, offset: segment.offset() };
        self.board.publish(self.rank, usize::from(endpoint.index()), published);
        let _ = self.segments.local(&self.board, Location::new(self.rank, endpoint.index()), published);
    }

    /// The place of a rank's memory.
    #[inline(always)]
    #[must_use]
    pub fn place(&self, at: Location, piece: Piece) -> Place {
        self.segments.place(&self.board, at, piece)
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
    pub(crate) fn with_engine<R>(&self, work: impl FnOnce(&mut Engine<Devices>) -> R) -> Option<R> {
        self.engine.with(|links| links.as_mut().map(|links| work(links.engine()))).ok().flatten()
    }

    /// Uses the engine if no other thread does.
    #[inline(always)]
    pub(crate) fn try_with_engine<R>(&self, work: impl FnOnce(&mut Engine<Devices>) -> R) -> Option<R> {
        self.engine.try_with(|links| links.as_mut().map(|links| work(links.engine()))).ok().flatten()
    }

    /// Whether a message to a rank could leave at once.
    pub(crate) fn can_send_now(&self, rank: u32) -> bool {
        self.try_with_engine(|engine| engine.active_limit(Addr::from(rank)) > 0).unwrap_or(false)
    }

    /// Makes one round of progress. Returns the number of events.
    #[inline(always)]
    pub fn poll(&self) -> usize {
        let polled = self.engine.try_with(|links| links.as_mut().map_or(0, Links::progress));
        if self.board.is_ending() && polled != Err(Refused::Inside) {
            exit::follow(self);
        }
        let events = polled.unwrap_or(0);
        if self.busy.load(Ordering::Relaxed) == 0 { events } else { events + self.poll_teams() }
    }

    /// Moves collectives on.
    #[cold]
    #[inline(never)]
    fn poll_teams(&self) -> usize {
        let Some(mut teams) = self.busy_teams.try_lock() else { return 0 };
        let complete = teams.iter().map(|team| team.queue().run(team.area(), team.rank())).sum();
        teams.retain(|team| !team.queue().is_empty());
        self.busy.store(teams.len(), Ordering::Relaxed);
        complete
    }

    /// Notes that collectives of a team are under way.
    pub fn watch(&self, team: &'static Team) {
        let mut teams = self.busy_teams.lock();
        if !teams.iter().any(|known| std::ptr::eq(*known, team)) {
            teams.push(team);
        }
        self.busy.store(teams.len(), Ordering::Relaxed);
    }

    /// Forgets a team that the client destroys.
    pub fn unwatch(&self, team: &Team) {
        self.busy_teams.lock().retain(|known| !std::ptr::eq(*known, team));
    }

    /// The limits of pauses.
    #[must_use]
    pub fn wait_limits(&self) -> Limits {
        *self.limits.read()
    }

    /// Sets the method of waiting.
    pub fn set_wait_mode(&self, mode: Mode) {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        *self.limits.write() = Limits::new(mode, self.ranks(), processors);
        self.wait_mode.store(mode as u32, Ordering::Relaxed);
    }

    /// Sleeps until a message arrives, or for a time.
    #[cold]
    pub fn sleep(&self, time: Duration) {
        let parked = self.engine.try_with(|links| links.as_mut().map(Links::park)).ok().flatten();
        match (parked, self.wait_fd) {
            // There is something to poll.
            (Some(false), _) => {}
            (Some(true), Some(fd)) => os::wait_readable(fd, time),
            _ => std::thread::sleep(time),
        }
    }
}
