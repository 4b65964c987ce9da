//! `MPI_Alloc_mem` and `MPI_Free_mem`: memory that other ranks of the host may map.
//!
//! Place in the data flow: memory of the provider in place of the MPI library's. A window over a whole allocation then
//! becomes a region that peers map, if the MPI library performs its remote accesses by weft (fi_weft(7),
//! "weft_memory").
//!
//! Sources: MPI 4.1, section 9.2 (memory allocation).

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;
use weft_client::MappedBlock;

use crate::exports::export;
use crate::mpi::SUCCESS;
use crate::run::runtime;

/// The most allocations at a time: each takes a descriptor. Further ones are left to the MPI library.
const MOST_BLOCKS: usize = 256;

/// The allocations of the program, by address.
static BLOCKS: Mutex<Option<FxHashMap<usize, MappedBlock>>> = Mutex::new(None);

/// Allocates memory, whose address goes to `base`. `None`: the MPI library shall do it.
fn allocate(bytes: *mut c_void, base: *mut c_void) -> Option<c_int> {
    let place = NonNull::new(base.cast::<*mut c_void>())?;
    let bytes = usize::try_from(bytes as isize).ok().filter(|bytes| *bytes > 0)?;
    let runtime = runtime()?;
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    let blocks = blocks.get_or_insert_default();
    if blocks.len() >= MOST_BLOCKS {
        return None;
    }
    let block = runtime.mapped_block(bytes)?;
    // SAFETY: the program's variable for a pointer, as the standard requires.
    unsafe { place.write(block.address().cast()) };
    blocks.insert(block.address() as usize, block);
    Some(SUCCESS)
}

/// Frees memory of [`allocate`]. `None`: it is the MPI library's.
fn free(base: *mut c_void) -> Option<c_int> {
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    blocks.as_mut()?.remove(&(base as usize)).map(|_| SUCCESS)
}

export! {
    [c_int] MPI_Alloc_mem(bytes: pointer, info: handle, base: pointer)
    |library| allocate(bytes, base).unwrap_or_else(library)
}
export! { [c_int] MPI_Free_mem(base: pointer) |library| free(base).unwrap_or_else(library) }
