//! `libweft-coll.so`: an MPI profiling library that runs the collectives of unmodified MPI programs over weft.
//!
//! Place in the data flow: a program that is started with this library in LD_PRELOAD calls its `MPI_` functions. A
//! collective that weft can run becomes a collective of weft's provider (`run`), in a group that belongs to the
//! communicator (`groups`). Every other call goes on to the MPI library under its profiling name, `PMPI_`. Other tools
//! may stand in front or behind (`chain`).
//!
//! ```text
//! MPI_Iallreduce ─► collectives.rs ─► plan.rs: weft or library? ─► run.rs ─► weft-client ─► fi_allreduce (weft)
//!                                                ├► PMPI_Iallreduce
//!                                                └► errors.rs: the call is wrong
//! MPI_Wait ─► the MPI library polls the request (MPICH, Intel MPI), or completions.rs does (Open MPI)
//! ```
//!
//! Node communicators and shared windows are made by host where the MPI library does not find the ranks of its host
//! (`nodes`, `windows`).
//!
//! Invariants:
//! - All members of a communicator decide alike. A decision depends on arguments that the MPI standard requires to
//!   agree (type signatures, counts, roots, operations), and on agreements made by collectives of the MPI library.
//! - No function of the MPI library is called under the lock of `run`. Callbacks of the MPI library take that lock.
//! - Nothing happens when the library is loaded: launchers and interpreters get it, too, and have no MPI.
//! - Functions of MPI are looked up at run time (`mpi`), since programs such as mpi4py load MPI locally.
//!
//! Handles of MPI are numbers of 32 bits (MPICH, Intel MPI) or pointers (Open MPI). Exported functions take them as
//! whole registers and pass them on unchanged; `mpi::Mpi::handle` cuts off the bits that an ABI leaves undefined.
//!
//! Sources: MPI 4.1, chapters 6 (collectives), 7.4.2 and 12.2.3 (shared memory), 13.2 (generalized requests) and 15.2
//! (profiling interface).

mod cards;
mod chain;
mod collectives;
mod communicators;
mod completions;
mod errors;
mod exports;
mod fold;
mod groups;
mod lull;
mod memory;
mod mpi;
mod nodes;
mod persistent;
mod places;
mod plan;
mod pmpi;
mod presence;
mod record;
mod requests;
mod run;
mod segment;
mod shape;
mod start;
mod types;
mod uneven;
mod watcher;
mod windows;
