//! `MPI_Init` and `MPI_Finalize`: weft is found, and all ranks agree to use it.
//!
//! Place in the data flow: ranks without this library are found around the start of the MPI library
//! ([`crate::presence`]). If all ranks have it, each opens an endpoint of weft in the libfabric that
//! the MPI library has loaded. The ranks exchange names by `PMPI_Allgather`. If one rank has no endpoint, the MPI
//! library runs all collectives, and rank 0 says why.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use weft_client::{Caps, Domain, Endpoint, Library, Requirements, Waiting};

use crate::cards::Cards;
use crate::chain;
use crate::exports::{self, export};
use crate::groups;
use crate::mpi::{self, Handle, SUCCESS};
use crate::places::{self, PLACE_BYTES, Surroundings};
use crate::pmpi::{Constants, Pmpi};
use crate::presence::{Patience, Space};
use crate::record;
use crate::requests::Idle;
use crate::run::{self, BY_LIBRARY, BY_WEFT, Parts, Runtime, SLOTS};
use crate::types::Types;
use crate::watcher::Watcher;

export! {
    [c_int] MPI_Init(argc: pointer, argv: pointer)
    |library| start_around(library)
}
export! {
    [c_int] MPI_Init_thread(argc: pointer, argv: pointer, required: int, provided: pointer)
    |library| start_around(library)
}
export! {
    [c_int] MPI_Finalize()
    |library| { finish(); library() }
}

/// Starts the MPI library, and the runtime after it. Returns the library's code.
fn start_around(library: impl Fn() -> c_int) -> c_int {
    let (code, space) = Space::around(library);
    start_once(code, space.as_ref())
}

/// Starts the runtime after a start of the MPI library that has passed this library. Returns `code`.
pub(crate) fn started(code: c_int) -> c_int {
    start_once(code, None)
}

fn start_once(code: c_int, space: Option<&Space>) -> c_int {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if code == SUCCESS && !STARTED.swap(true, Ordering::Relaxed) {
        start(space);
        record::start();
    }
    code
}

fn start(space: Option<&Space>) {
    let Some(mpi) = mpi::loaded() else { return };
    let Some(constants) = Constants::of(mpi) else {
        if is_first_rank() {
            say("this MPI library has another binary interface than MPICH, Intel MPI, Open MPI and the MPI standard");
        }
        return;
    };
    let pmpi = Pmpi { mpi, constants };
    let (Some(rank), Some(ranks)) = (pmpi.rank(constants.world), pmpi.size(constants.world)) else { return };
    if let Some(reason) = space.and_then(|space| space.reason(&pmpi, rank, ranks)) {
        if !is_refused() && !reason.is_empty() {
            say(&reason);
        }
        return;
    }
    let patience = (space.is_none() && ranks > 1).then(Patience::start);
    let Some(own) = pmpi.duplicate(constants.world) else { return };
    drop(patience);
    if let Err(reason) = start_with(pmpi, own, ranks) {
        if rank == 0 && !reason.is_empty() {
            say(&reason);
        }
        pmpi.free_communicator(own);
    }
}

/// Whether this rank is the one that prints for all. Launchers tell the rank where the MPI library cannot be asked.
pub(crate) fn is_first_rank() -> bool {
    const VARIABLES: [&str; 4] = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"];
    let pmpi = mpi::loaded().and_then(|mpi| Some(Pmpi { mpi, constants: Constants::of(mpi)? }));
    match pmpi {
        Some(pmpi) => pmpi.rank(pmpi.constants.world) == Some(0),
        None => VARIABLES.iter().find_map(std::env::var_os).is_none_or(|rank| rank == "0"),
    }
}

/// Whether the user wants this library to run nothing.
fn is_refused() -> bool {
    std::env::var_os("FI_WEFT_COLL").is_some_and(|value| value == "0")
}

/// Prints the reason for which the MPI library runs the collectives.
pub(crate) fn say(reason: &str) {
    // One write, which no output of other ranks divides.
    let line = format!("weft-coll: collectives are left to the MPI library: {reason}\n");
    eprint!("{line}");
}

/// Starts the runtime, at all ranks or at none. An empty reason is not worth a line.
fn start_with(pmpi: Pmpi, own: Handle, ranks: usize) -> Result<(), String> {
    const LOST: &str = "the MPI library could not exchange names";
    if ranks < 2 {
        return Err(String::new());
    }
    let places = pmpi.gather_bytes(own, &places::own(), ranks).ok_or(LOST)?;
    let places: Vec<&[u8]> = places.chunks_exact(PLACE_BYTES).collect();
    let surroundings = pmpi.rank(own).map(|rank| Surroundings::of(rank, &places)).ok_or(LOST)?;
    let opened = open(pmpi, own, ranks, surroundings);
    let name = opened.as_ref().map(|(endpoint, _)| endpoint.name()).map_err(String::as_str);
    let cards = Cards::exchange(&pmpi, own, ranks, name).ok_or(LOST)?;
    if let Some((rank, reason)) = cards.failure() {
        let place = if rank == 0 { String::new() } else { format!("rank {rank}: ") };
        return Err(if reason.is_empty() { String::new() } else { format!("{place}{reason}") });
    }
    let (mut endpoint, watcher) = opened?;
    let names: Vec<u8> = cards.texts().flatten().copied().collect();
    let addresses = endpoint.insert(&names, ranks);
    let world = pmpi.group(own);
    let keyval = pmpi.keyval(groups::freed);
    let idle = Idle::open(&pmpi);
    if !pmpi.all_agree(own, addresses.is_ok() && world.is_some() && keyval.is_some() && idle.is_some()) {
        idle.inspect(|idle| idle.close(&pmpi));
        let reason = addresses.err().map_or_else(|| LOST.to_owned(), |error| error.to_string());
        return Err(reason);
    }
    let (Ok(addresses), Some(world), Some(keyval), Some(idle)) = (addresses, world, keyval, idle) else {
        return Err(LOST.to_owned());
    };
    let types = Types::of(&pmpi);
    let (is_crowded, hand_over_bytes) = (surroundings.is_crowded(), surroundings.hand_over_bytes());
    let refuses_aliases = pmpi.refuses_aliases();
    let hosts = places.iter().map(|place| places::host_name(place)).collect();
    let nodes = places.iter().map(|place| places::node(place)).collect();
    let parts =
        Parts { pmpi, types, own, world, hosts, nodes, keyval, idle, is_crowded, hand_over_bytes, refuses_aliases };
    let runtime = Runtime::new(parts, addresses, endpoint, watcher);
    match run::install(runtime) {
        Some(runtime) if !runtime.reaches_all() => {
            runtime.give_up();
            Err("the ranks do not reach each other over weft; FI_WEFT_LOG=info tells which connection failed"
                .to_owned())
        }
        _ => {
            exports::weft_coll_nodes[0].store(1, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// Opens this rank's endpoint, and starts the watcher if it is needed. The error is a reason for users; an empty one is
/// not worth a line.
fn open(
    pmpi: Pmpi,
    own: Handle,
    ranks: usize,
    surroundings: Surroundings,
) -> Result<(Endpoint, Option<Watcher>), String> {
    if is_refused() {
        return Err(String::new());
    }
    if !pmpi.packs_plainly(own) {
        return Err("the MPI library packs data in a form of its own".to_owned());
    }
    name_provider_path();
    let domain = open_domain(surroundings)?;
    let endpoint = Endpoint::open(&domain, 0, SLOTS, ranks).map_err(|error| error.to_string())?;
    let watcher = surroundings.lacks_thread().then(Watcher::start).transpose().map_err(|error| error.to_string())?;
    Ok((endpoint, watcher))
}

fn open_domain(surroundings: Surroundings) -> Result<Domain, String> {
    let requirements = Requirements {
        provider: "weft".to_owned(),
        caps: Caps { collective: true, ..Caps::default() },
        progress: Some(surroundings.progress()),
        // A queue with a wait object lets the provider's thread take over early (`Endpoint::park`).
        waiting: if surroundings.lacks_thread() { Waiting::OnDescriptor } else { Waiting::InCalls },
        ..Requirements::default()
    };
    let try_in = |library: Result<&'static Library, weft_client::Error>| {
        let library = library.map_err(|error| error.to_string())?;
        Domain::open(library, &requirements).map_err(|error| match library.providers() {
            Ok(names) if names.iter().any(|name| name == "weft") => error.to_string(),
            _ => "libfabric has not loaded it".to_owned(),
        })
    };
    let loaded = Library::loaded("libfabric.so.1").map(try_in);
    if let Some(Ok(domain)) = loaded {
        return Ok(domain);
    }
    let named = std::env::var_os("FI_WEFT_LIBFABRIC").map(PathBuf::from);
    let first = match (&named, &loaded) {
        (Some(path), _) => try_in(Library::load(path)),
        (None, None) => try_in(Library::load(Path::new("libfabric.so.1"))),
        (None, Some(_)) => Err(String::new()),
    };
    first.map_err(|second| {
        let reason = loaded.and_then(Result::err).unwrap_or(second);
        format!(
            "weft is not within reach ({reason}). Set FI_PROVIDER_PATH to the directory of libweft-fi.so, and let \
             FI_PROVIDER allow weft."
        )
    })
}

/// Names the directory of this library as that of providers, if `libweft-fi.so` lies there and the user named none. A
/// libfabric that the MPI library uses has found its providers already; one that it does not use finds weft.
fn name_provider_path() {
    const VARIABLE: &str = "FI_PROVIDER_PATH";
    let Some(directory) = own_directory().filter(|directory| directory.join("libweft-fi.so").exists()) else { return };
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: `MPI_Init` is under way, in which the program must not use its environment in other threads.
        unsafe { std::env::set_var(VARIABLE, directory) };
    }
}

/// The directory of this library.
fn own_directory() -> Option<PathBuf> {
    chain::own_file()?.canonicalize().ok()?.parent().map(Path::to_owned)
}

/// Ends the runtime before the MPI library ends. Later calls have no effect.
pub(crate) fn finish() {
    static FINISHED: AtomicBool = AtomicBool::new(false);
    if FINISHED.swap(true, Ordering::Relaxed) {
        return;
    }
    record::finish();
    let wanted = std::env::var_os("FI_WEFT_COLL_REPORT").is_some_and(|value| value == "1");
    let runtime = run::runtime();
    let is_known = mpi::loaded().is_some_and(|mpi| Constants::of(mpi).is_some());
    let reports = wanted && is_known && is_first_rank();
    if let Some(runtime) = runtime {
        runtime.close();
    }
    if reports {
        let [weft, library] = [BY_WEFT, BY_LIBRARY].map(|count| count.load(Ordering::Relaxed));
        eprintln!("weft-coll: {weft} collectives by weft, {library} by the MPI library");
    }
}
