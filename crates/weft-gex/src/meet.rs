//! The meeting of all ranks at the start: their places, the job's memory file of each host, and the engine.
//!
//! Place in the data flow: [`crate::job::start`] calls [`meet`] when it knows its rank. Ranks that were forked have the
//! board already, and exchange names over it. Under a launcher, the ranks exchange two blobs each:
//!
//! ```text
//! "host": identity of the host; of rank 0 also the job's key
//! "name": name of the endpoint; of the lowest rank of a host also the token of its rendezvous
//! ```
//!
//! The key is random, so that links of strangers are refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_engine::Engine;
use weft_engine::api::Config;
use weft_engine::name::{EpName, NAME_BYTES};
use weft_nic::Device as _;
use weft_os::rendezvous::{self, Caller, Token};

use crate::am::Handlers;
use crate::board::{Board, KEY_BYTES};
use crate::book::Book;
use crate::env;
use crate::error::Error;
use crate::memory::JobFile;
use crate::places::Places;
use crate::platform::RankDevice;
use crate::spawn::{Conduit, Launcher, Spawned, Way};

/// The limit for all ranks to start.
const START_LIMIT: Duration = Duration::from_secs(120);
/// The payload that is copied when a put starts, in bytes, so that its source is free at once.
pub(crate) const COPIED_BYTES: usize = 8192;

/// The engine of a rank.
pub(crate) type RankEngine = Engine<RankDevice>;

/// The result of the meeting.
pub(crate) struct Met {
    pub(crate) board: Board,
    pub(crate) places: Places,
    /// `None`: the job has one rank.
    pub(crate) engines: Option<Engines>,
    pub(crate) launcher: Option<Launcher>,
}

/// The means by which endpoints get engines of their own.
pub(crate) struct Opener {
    key: [u8; KEY_BYTES],
    reach: Reach,
    book: Arc<Book>,
    ranks: u32,
}

impl Opener {
    /// Opens the engine of an endpoint.
    ///
    /// # Errors
    /// The system refuses what the devices need.
    pub(crate) fn open(&self, endpoint: u16) -> Result<Box<RankEngine>, Error> {
        let mut engine = open(&self.key, self.reach)?;
        engine.bind_book(Arc::<Book>::clone(&self.book));
        engine.set_active_handler(Box::new(Handlers { endpoint }));
        Ok(engine)
    }

    /// The names of endpoints.
    pub(crate) fn book(&self) -> &Book {
        &self.book
    }

    /// The number of ranks.
    pub(crate) fn ranks(&self) -> u32 {
        self.ranks
    }
}

/// The engine of the first endpoint, and the means for more.
pub(crate) type Engines = (Box<RankEngine>, Opener);

/// Meets the other ranks.
pub(crate) fn meet(spawned: Spawned, conduit: Conduit) -> Result<Met, Error> {
    let Spawned { rank, ranks, way } = spawned;
    let most = match env::number("GASNET_SUPERNODE_MAXSIZE")? {
        None | Some(0) => u32::MAX,
        Some(most) => u32::try_from(most).unwrap_or(u32::MAX),
    };
    let host = weft_nic::host::host_id();
    let on_one_host = || Places::new(rank, &vec![host; ranks as usize], most);
    match way {
        Way::Alone => Ok(Met { board: Board::create(1)?, places: on_one_host(), engines: None, launcher: None }),
        Way::Forked(board) => {
            let engine = open(&board.key(), Reach::Host)?;
            let names = names_on_board(&board, rank, &engine)?;
            let engines = bind(engine, names, board.key(), Reach::Host);
            Ok(Met { board: *board, places: on_one_host(), engines: Some(engines), launcher: None })
        }
        Way::Launcher(mut launcher) => match meet_launched(&mut launcher, conduit, host, most) {
            Ok((board, places, engines)) => Ok(Met { board, places, engines, launcher: Some(launcher) }),
            Err(error) => {
                // A launcher kills a rank that closes the connection, and the rank has not said why yet.
                std::mem::forget(launcher);
                Err(error)
            }
        },
    }
}

/// Meets the ranks that a launcher has started.
fn meet_launched(
    launcher: &mut Launcher,
    conduit: Conduit,
    host: u64,
    most: u32,
) -> Result<(Board, Places, Option<Engines>), Error> {
    let (rank, ranks) = (launcher.rank(), launcher.ranks());
    let (places, key) = meet_hosts(launcher, host, most)?;
    if conduit == Conduit::Smp && places.host().count > 1 {
        let other = (0..ranks).find(|other| places.host_of(*other) != places.host_of(0));
        return Err(Error::OtherHost(other.unwrap_or(rank)));
    }
    let (board, engines) = if ranks == 1 {
        (Board::create(1)?, None)
    } else {
        let (board, engines) = meet_names(launcher, &places, &key)?;
        (board, Some(engines))
    };
    board.set_up(rank, std::process::id());
    Ok((board, places, engines))
}

/// Exchanges the identities of hosts, and gets the job's key.
fn meet_hosts(launcher: &mut Launcher, host: u64, most: u32) -> Result<(Places, [u8; KEY_BYTES]), Error> {
    const STEP: &str = "host";
    let mut blob = host.to_le_bytes().to_vec();
    if launcher.rank() == 0 {
        blob.extend_from_slice(&Board::new_key()?);
    }
    launcher.put(STEP, &blob)?;
    launcher.fence()?;
    let mut hosts = Vec::with_capacity(launcher.ranks() as usize);
    let mut key = None;
    for rank in 0..launcher.ranks() {
        let blob = launcher.get(STEP, rank)?;
        let (id, rest) = blob.split_first_chunk::<8>().ok_or_else(lost_blob)?;
        hosts.push(u64::from_le_bytes(*id));
        if rank == 0 {
            key = rest.first_chunk::<KEY_BYTES>().copied();
        }
    }
    Ok((Places::new(launcher.rank(), &hosts, most), key.ok_or_else(lost_blob)?))
}

/// Exchanges the names of endpoints, and the memory file of each host.
fn meet_names(launcher: &mut Launcher, places: &Places, key: &[u8; KEY_BYTES]) -> Result<(Board, Engines), Error> {
    const STEP: &str = "name";
    let (host, ranks) = (places.host(), launcher.ranks());
    let reach = if host.count > 1 { Reach::Hosts } else { Reach::Host };
    let engine = open(key, reach)?;
    let leads = host.index == 0;
    let token = Token::random()?;
    let listener = if leads { Some(rendezvous::listen(&token)?) } else { None };
    let mut blob = engine.name().as_bytes().to_vec();
    blob.extend_from_slice(&token.to_bytes());
    launcher.put(STEP, &blob)?;
    launcher.fence()?;
    let board = match &listener {
        Some(listener) => {
            let board = Board::create(ranks)?;
            let callers = u32::try_from(host.members.len()).unwrap_or(u32::MAX) - 1;
            rendezvous::serve(listener, &token, board.file().fd(), callers, START_LIMIT)?;
            board
        }
        None => {
            let blob = launcher.get(STEP, host.members[0])?;
            let (_, rest) = blob.split_first_chunk::<NAME_BYTES>().ok_or_else(lost_blob)?;
            let token = Token::from_bytes(rest.first_chunk().ok_or_else(lost_blob)?);
            Board::join(JobFile::adopt(Caller::call(&token)?.receive(START_LIMIT)?)?, ranks)?
        }
    };
    let mut names = Vec::with_capacity(ranks as usize);
    for rank in 0..ranks {
        let blob = launcher.get(STEP, rank)?;
        names.push(name(blob.get(..NAME_BYTES).unwrap_or_default())?);
    }
    Ok((board, bind(engine, names, *key, reach)))
}

fn lost_blob() -> Error {
    Error::Launcher("keep the blobs of all ranks".into())
}

fn name(bytes: &[u8]) -> Result<EpName, Error> {
    let bytes: Option<&[u8; NAME_BYTES]> = bytes.try_into().ok();
    bytes
        .and_then(|bytes| EpName::parse(bytes).ok())
        .ok_or_else(|| Error::Launcher("start the same library in all ranks".into()))
}

/// The extent of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// One host.
    Host,
    /// Several hosts.
    Hosts,
}

/// Opens the endpoint. Some variables of the provider apply to it, too.
fn open(key: &[u8; KEY_BYTES], reach: Reach) -> Result<Box<RankEngine>, Error> {
    let shm = env::yes("FI_WEFT_SHM")?.unwrap_or(true);
    let config = weft_nic::Config {
        shm,
        tcp: reach == Reach::Hosts || !shm,
        iface: env::text("FI_WEFT_IFACE"),
        encrypt: env::yes("FI_WEFT_TCP_ENCRYPT")?.unwrap_or(false),
        job_key: Some(key.to_vec()),
        ..weft_nic::Config::default()
    };
    Ok(Engine::boxed(engine_config(), RankDevice::open(&config)?))
}

/// The settings of engines.
pub(crate) fn engine_config() -> Config {
    Config { boards: true, maps: false, inject_bytes: COPIED_BYTES, ..Config::default() }
}

pub(crate) fn bind(mut engine: Box<RankEngine>, names: Vec<EpName>, key: [u8; KEY_BYTES], reach: Reach) -> Engines {
    let ranks = u32::try_from(names.len()).unwrap_or(u32::MAX);
    let book = Arc::new(Book::new(names));
    engine.bind_book(Arc::<Book>::clone(&book));
    engine.set_active_handler(Box::new(Handlers { endpoint: 0 }));
    (engine, Opener { key, reach, book, ranks })
}

/// Exchanges names over the board of a host that has all ranks.
fn names_on_board(board: &Board, rank: u32, engine: &RankEngine) -> Result<Vec<EpName>, Error> {
    board.put_blob(rank, engine.name().as_bytes());
    let deadline = Instant::now() + START_LIMIT;
    let mut names = Vec::with_capacity(board.ranks() as usize);
    for other in 0..board.ranks() {
        while !board.has_blob(other) {
            if board.is_ending() || Instant::now() > deadline {
                return Err(Error::Rendezvous(START_LIMIT.as_secs()));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        names.push(name(&board.blob(other))?);
    }
    Ok(names)
}
