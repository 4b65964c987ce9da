//! Persistent collectives (MPI 4.1, 6.13): MPI_Allreduce_init and others, MPI_Start, MPI_Startall.
//!
//! Place in the data flow: [`crate::run`] decides once, when the request is made. Each start is an operation as that of
//! a non-blocking call.
//!
//! The request that the program gets is one of the MPI library: a persistent receive from the rank itself, in a
//! communicator of its own. Its start is that of the program's request, and the end of the operation sends the message
//! ([`Runtime::end_persistent`]). All completion calls treat it as any other request. It becomes inactive by itself.
//! The calls make progress here first ([`crate::completions`]).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::errors::Cause;
use crate::exports::export;
use crate::fold::InUse;
use crate::mpi::{Handle, SUCCESS, pmpi};
use crate::pmpi::Pmpi;
use crate::record::kept;
use crate::run::{Op, Part, Runtime, runtime};

/// The largest tag that every MPI library allows.
const MAX_TAG: c_int = 32_767;

/// Types of this library's own, which are freed with a request.
pub(crate) type Types = SmallVec<[Handle; 2]>;

/// A persistent collective.
pub(crate) struct Persistent {
    part: Part,
    types: Types,
    /// The operation of the program may be freed, and is used until the request is.
    _operation: InUse,
    tag: c_int,
}

// SAFETY: the pointers are the program's buffers. The MPI standard leaves them to the request until it is freed, and
// they are only used by operations, which are safe to send.
unsafe impl Send for Persistent {}
// SAFETY: as above.
unsafe impl Sync for Persistent {}

/// The persistent collectives of a process.
#[derive(Default)]
pub(crate) struct Persistents {
    by_request: FxHashMap<Handle, Arc<Persistent>>,
    /// The communicator of this rank alone.
    alone: Option<Handle>,
    /// Tags that requests had, and the first one that none had.
    free_tags: Vec<c_int>,
    next_tag: c_int,
    /// Operations that have failed, and whose request was not completed since.
    failed: FxHashMap<Handle, Arc<Op>>,
}

impl Runtime {
    /// Makes the request of a persistent collective. An error is one of MPI.
    pub(crate) fn open_persistent(&self, mut part: Part) -> Result<Handle, c_int> {
        let types = part.keep_types(&self.pmpi).ok_or_else(|| part.fails(self, &Cause::Packing))?;
        let made = self
            .alone()
            .zip(self.take_tag())
            .and_then(|(alone, tag)| Some((self.pmpi.persistent_receive(alone, tag)?, tag)));
        let Some((request, tag)) = made else {
            free_types(&self.pmpi, &types);
            return Err(part.fails(self, &Cause::NoRequest));
        };
        let group = part.group;
        let persistent = Persistent { part, types, _operation: InUse::new(), tag };
        let mut state = self.state.lock();
        // The group stays, even if the program frees its communicator.
        state.begin_in_group(group);
        state.persistents.by_request.insert(request, Arc::new(persistent));
        self.persistents.fetch_add(1, Ordering::AcqRel);
        Ok(request)
    }

    /// The communicator of this rank alone.
    fn alone(&self) -> Option<Handle> {
        let known = self.state.lock().persistents.alone;
        if known.is_some() {
            return known;
        }
        let alone = self.pmpi.duplicate(self.pmpi.constants.itself)?;
        let mut state = self.state.lock();
        Some(*state.persistents.alone.get_or_insert(alone))
    }

    fn take_tag(&self) -> Option<c_int> {
        let mut state = self.state.lock();
        let Persistents { free_tags, next_tag, .. } = &mut state.persistents;
        free_tags.pop().or_else(|| {
            *next_tag += 1;
            (*next_tag <= MAX_TAG).then_some(*next_tag)
        })
    }

    /// Starts a request. `None`: it is none of a persistent collective that weft runs.
    fn start_persistent(&self, request: *mut c_void) -> Option<c_int> {
        // SAFETY: the program passes its request.
        let handle = unsafe { self.pmpi.mpi.read(request, 0) };
        let persistent = Arc::clone(self.state.lock().persistents.by_request.get(&handle)?);
        let op = match persistent.part.operation(self, Some(persistent.tag)) {
            Ok(op) => op,
            Err(code) => return Some(code),
        };
        let code = pmpi!("PMPI_Start", request => *mut c_void);
        if code != SUCCESS {
            return Some(code);
        }
        op.set_request(handle);
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.state.lock().requests.insert(handle, Arc::clone(&op));
        crate::run::BY_WEFT.fetch_add(1, Ordering::Relaxed);
        self.submit(&op);
        self.leave(&op);
        Some(SUCCESS)
    }

    /// The operation of a persistent request has ended.
    pub(crate) fn end_persistent(&self, request: Handle, tag: c_int, op: &Op) {
        let mut state = self.state.lock();
        if let Some(op) = state.requests.remove(&request).filter(|_| op.has_failed()) {
            state.persistents.failed.insert(request, op);
        }
        self.requests.fetch_sub(1, Ordering::AcqRel);
        let alone = state.persistents.alone;
        drop(state);
        if let Some(alone) = alone {
            self.pmpi.complete_receive(alone, tag);
        }
    }

    /// The result of a completion call for these requests, with the failure of a persistent collective among them.
    pub(crate) fn with_failures(&self, code: c_int, requests: impl IntoIterator<Item = Handle>) -> c_int {
        if code != SUCCESS || self.persistents.load(Ordering::Acquire) == 0 {
            return code;
        }
        let mut state = self.state.lock();
        let failed: SmallVec<[Arc<Op>; 1]> =
            requests.into_iter().filter_map(|request| state.persistents.failed.remove(&request)).collect();
        drop(state);
        failed.iter().filter_map(|op| op.failure(self)).map(|failure| failure.raise(self)).last().unwrap_or(code)
    }

    /// A request is freed.
    fn free_persistent(&self, request: *mut c_void) {
        // SAFETY: the program passes its request.
        let handle = unsafe { self.pmpi.mpi.read(request, 0) };
        let mut state = self.state.lock();
        let Some(persistent) = state.persistents.by_request.remove(&handle) else { return };
        state.persistents.failed.remove(&handle);
        state.persistents.free_tags.push(persistent.tag);
        state.end_in_group(persistent.part.group, true);
        self.persistents.fetch_sub(1, Ordering::AcqRel);
        drop(state);
        free_types(&self.pmpi, &persistent.types);
    }

    /// Frees the communicator of this rank alone.
    pub(crate) fn close_persistents(&self) {
        let alone = self.state.lock().persistents.alone.take();
        alone.into_iter().for_each(|alone| self.pmpi.free_communicator(alone));
    }
}

fn free_types(pmpi: &Pmpi, types: &Types) {
    types.iter().for_each(|&datatype| pmpi.free_type(datatype));
}

/// The runtime, if persistent collectives exist.
fn persisting() -> Option<&'static Runtime> {
    runtime().filter(|runtime| runtime.persistents.load(Ordering::Acquire) > 0)
}

/// Starts requests, one after the other. `None`: the MPI library does.
fn start_all(count: c_int, requests: *mut c_void) -> Option<c_int> {
    let runtime = persisting()?;
    let places = 0..usize::try_from(count).ok()?;
    for place in places {
        let request = runtime.pmpi.mpi.place(requests, place);
        let start = || pmpi!("PMPI_Start", request => *mut c_void);
        let code = runtime.start_persistent(request).unwrap_or_else(start);
        if code != SUCCESS {
            return Some(code);
        }
    }
    Some(SUCCESS)
}

export! {
    [c_int] MPI_Start(request: pointer)
    |library| kept::around_start(request, 1, || {
        persisting().and_then(|runtime| runtime.start_persistent(request)).unwrap_or_else(library)
    })
}
export! {
    [c_int] MPI_Startall(count: int, requests: pointer)
    |library| kept::around_start(requests, count, || start_all(count, requests).unwrap_or_else(library))
}
export! {
    [c_int] MPI_Request_free(request: pointer)
    |library| {
        kept::freed(request);
        persisting().inspect(|runtime| runtime.free_persistent(request));
        library()
    }
}
