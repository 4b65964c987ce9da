//! Windows with shared memory: `MPI_Win_allocate_shared`, `MPI_Win_shared_query`, and their attributes and end.
//!
//! Place in the data flow: where all members are on one host and the MPI library does not find that, or fails at its
//! own windows ([`loses_accesses`]), the members map memory ([`crate::segment`]), and the window is one of
//! `MPI_Win_create` over it. All remote accesses and synchronisation are then the MPI library's own. It performs them
//! in the same memory in which the members load and store.
//!
//! Invariant: no function of the MPI library is called under the lock.
//!
//! Sources: MPI 4.1, sections 12.2.3 (shared memory) and 12.2.7 (attributes).

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{Ordering, fence};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::exports::{export, export_large};
use crate::mpi::{ERR_RANK, Handle, SUCCESS, pmpi};
use crate::run::{Runtime, runtime};
use crate::segment::Segment;

/// Bytes of a page, at which members' parts begin if they need not be contiguous.
const PAGE_BYTES: usize = 1 << 12;

/// The windows that this library has made, by handle.
static WINDOWS: Mutex<Option<FxHashMap<Handle, Window>>> = Mutex::new(None);

struct Window {
    /// `None`: no member has asked for memory.
    memory: Option<Segment>,
    /// By rank.
    parts: Vec<Part>,
}

/// The wish of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish {
    bytes: i64,
    unit: i64,
    /// Its part may begin at a page (`alloc_shared_noncontig`).
    apart: bool,
}

/// The part of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    at: usize,
    bytes: usize,
    unit: c_int,
}

/// The reason why a window is not made.
#[derive(Debug, PartialEq, Eq)]
enum Cause {
    Size(usize, i64),
    Unit(usize, i64),
    TooLong,
    Memory(usize, String),
}

impl Wish {
    const BYTES: usize = 24;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.bytes, self.unit, self.apart.into()]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |at: usize| bytes[8 * at..8 * at + 8].try_into().map_or(0, i64::from_le_bytes);
        Self { bytes: number(0), unit: number(1), apart: number(2) != 0 }
    }
}

/// The parts of all members, and the length of the memory. The first member says whether the parts may lie apart.
fn lay_out(wishes: &[Wish]) -> Result<(Vec<Part>, usize), Cause> {
    let apart = wishes.first().is_some_and(|wish| wish.apart);
    let mut end = 0_usize;
    let mut parts = Vec::with_capacity(wishes.len());
    for (rank, wish) in wishes.iter().enumerate() {
        let bytes = usize::try_from(wish.bytes).map_err(|_| Cause::Size(rank, wish.bytes))?;
        let unit = c_int::try_from(wish.unit).ok().filter(|unit| *unit > 0).ok_or(Cause::Unit(rank, wish.unit))?;
        let at = if apart { end.next_multiple_of(PAGE_BYTES) } else { end };
        parts.push(Part { at, bytes, unit });
        end = at.checked_add(bytes).filter(|end| *end < isize::MAX as usize - PAGE_BYTES).ok_or(Cause::TooLong)?;
    }
    Ok((parts, end))
}

impl Cause {
    /// The class of the error, and its text.
    fn told(&self, runtime: &Runtime) -> (c_int, String) {
        let numbers = runtime.pmpi.mpi.shared();
        match self {
            Self::Size(rank, bytes) => (numbers.err_size, format!("rank {rank} asks for {bytes} bytes")),
            Self::Unit(rank, unit) => (numbers.err_disp, format!("rank {rank} passes the displacement unit {unit}")),
            Self::TooLong => (numbers.err_size, "the members ask for more bytes than addresses exist".to_owned()),
            Self::Memory(rank, text) => (numbers.err_no_mem, format!("rank {rank}: {text}")),
        }
    }

    /// Calls the error handler of the communicator. Returns the error code.
    fn raise(&self, runtime: &Runtime, comm: Handle) -> c_int {
        let (class, text) = self.told(runtime);
        let name = runtime.pmpi.name(comm);
        let on = if name.is_empty() { "a communicator" } else { &name };
        let text = format!("weft-coll: MPI_Win_allocate_shared on {on}: {text}");
        let code = runtime.pmpi.described(class, &text).unwrap_or(class);
        runtime.pmpi.call_error_handler(comm, code);
        code
    }
}

/// Whether remote accesses to the MPI library's own shared windows fail. Without its own shared memory, Intel MPI
/// 2021.18 registers no memory for them: they end with FI_EKEYREJECTED, and over libfabric's shm they are lost.
fn loses_accesses() -> bool {
    std::env::var("I_MPI_FABRICS").is_ok_and(|fabrics| !fabrics.contains("shm"))
}

/// Whether this library makes the shared windows of a communicator. All members decide alike.
fn is_ours(runtime: &Runtime, comm: Handle) -> Option<bool> {
    let nodes = runtime.nodes_of(comm)?;
    if nodes.len() < 2 || nodes[0] == 0 || nodes.iter().any(|node| *node != nodes[0]) {
        return Some(false);
    }
    let is_known = runtime.pmpi.sharing(comm)? == nodes.len() && !loses_accesses();
    Some(!runtime.pmpi.all_agree(comm, is_known))
}

/// Makes a window. `base` and `window` are the places of its results. `None`: the MPI library shall do it.
fn allocate(wish: Wish, info: Handle, comm: Handle, base: *mut c_void, window: *mut c_void) -> Option<c_int> {
    let runtime = runtime()?;
    let pmpi = &runtime.pmpi;
    let (comm, info) = (pmpi.mpi.handle(comm), pmpi.mpi.handle(info));
    if !is_ours(runtime, comm)? {
        return None;
    }
    let apart = pmpi.info(info, c"alloc_shared_noncontig").is_some_and(|value| value == "true");
    let (rank, members) = (pmpi.rank(comm)?, pmpi.size(comm)?);
    let wishes = pmpi.gather_bytes(comm, &Wish { apart, ..wish }.to_bytes(), members)?;
    let wishes: Vec<Wish> = wishes.chunks_exact(Wish::BYTES).map(Wish::from_bytes).collect();
    let made = lay_out(&wishes).and_then(|(parts, bytes)| {
        let memory = (bytes > 0).then(|| Segment::share(pmpi, comm, bytes.next_multiple_of(PAGE_BYTES)));
        let memory = memory.transpose().map_err(|(rank, text)| Cause::Memory(rank, text))?;
        Ok(Window { memory, parts })
    });
    let made = match made {
        Ok(made) => made,
        Err(cause) => return Some(cause.raise(runtime, comm)),
    };
    let Part { bytes, unit, .. } = made.parts[rank];
    let address = made.address(rank);
    let code = pmpi.window(address, bytes, unit, info, comm, window);
    if code == SUCCESS {
        // SAFETY: the library has written the program's handle.
        let handle = pmpi.mpi.handle(unsafe { pmpi.mpi.read(window, 0) });
        WINDOWS.lock().get_or_insert_default().insert(handle, made);
        write(base, address);
    }
    Some(code)
}

impl Window {
    /// The address of a member's part in this process.
    fn address(&self, rank: usize) -> *mut c_void {
        self.memory.as_ref().map_or(null_mut(), |memory| memory.at(self.parts[rank].at))
    }

    /// The member that a query means: for `MPI_PROC_NULL` the first one with memory.
    fn member(&self, rank: c_int, proc_null: c_int) -> Option<usize> {
        if rank == proc_null {
            return Some(self.parts.iter().position(|part| part.bytes > 0).unwrap_or(0));
        }
        usize::try_from(rank).ok().filter(|rank| *rank < self.parts.len())
    }
}

/// Writes a result to the program's place for it.
fn write<T>(place: *mut c_void, value: T) {
    if let Some(place) = NonNull::new(place.cast::<T>()) {
        // SAFETY: the program passes a place of this type, as the standard requires.
        unsafe { place.write_unaligned(value) };
    }
}

/// A window of this library. `None`: it is the MPI library's.
fn with<R>(window: Handle, f: impl FnOnce(&Runtime, Handle, &Window) -> R) -> Option<R> {
    let runtime = runtime()?;
    let handle = runtime.pmpi.mpi.handle(window);
    WINDOWS.lock().as_ref()?.get(&handle).map(|window| f(runtime, handle, window))
}

/// Answers a query. The displacement unit has the type `U`. `None`: the MPI library shall do it.
fn query<U: From<c_int>>(
    window: Handle,
    rank: c_int,
    bytes: *mut c_void,
    unit: *mut c_void,
    base: *mut c_void,
) -> Option<c_int> {
    let found = with(window, |runtime, _, window| {
        let member = window.member(rank, runtime.pmpi.mpi.shared().proc_null)?;
        Some((window.parts[member], window.address(member)))
    })?;
    let Some((part, address)) = found else {
        let runtime = runtime()?;
        runtime.pmpi.call_window_error_handler(runtime.pmpi.mpi.handle(window), ERR_RANK);
        return Some(ERR_RANK);
    };
    write(bytes, part.bytes);
    write(unit, U::from(part.unit));
    write(base, address);
    Some(SUCCESS)
}

/// Frees a window by `library`. Its memory is unmapped after all members have come there.
fn free(window: *mut c_void, library: impl FnOnce() -> c_int) -> c_int {
    let Some(runtime) = runtime() else { return library() };
    // SAFETY: the program's variable for the handle.
    let handle = runtime.pmpi.mpi.handle(unsafe { runtime.pmpi.mpi.read(window, 0) });
    // The handle may be used again as soon as the library has freed it.
    let ours = WINDOWS.lock().as_mut().and_then(|windows| windows.remove(&handle));
    let code = library();
    if let Some(ours) = ours.filter(|_| code != SUCCESS) {
        WINDOWS.lock().get_or_insert_default().insert(handle, ours);
    }
    code
}

/// The attribute that tells how a window was made.
fn flavor(window: Handle, keyval: c_int) -> Option<&'static c_int> {
    with(window, |runtime, _, _| {
        let numbers = runtime.pmpi.mpi.shared();
        (keyval == numbers.create_flavor).then_some(&numbers.flavor)
    })?
}

/// The function by which the Fortran functions of MPICH and Intel MPI read attributes. They want numbers in place of
/// addresses.
// SAFETY: the name is that of the MPI library's function, in whose place its Fortran functions shall find it.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn MPII_Win_get_attr(
    window: Handle,
    keyval: c_int,
    value: *mut c_void,
    flag: *mut c_void,
    kind: c_int,
) -> c_int {
    /// `MPIR_ATTR_AINT`.
    const NUMBER: c_int = 1;
    let code = pmpi!(
        "MPII_Win_get_attr",
        window => Handle,
        keyval => c_int,
        value => *mut c_void,
        flag => *mut c_void,
        kind => c_int,
    );
    if (code, kind) == (SUCCESS, NUMBER)
        && let Some(flavor) = flavor(window, keyval)
    {
        write(value, *flavor as isize);
    }
    code
}

fn wish(bytes: *mut c_void, unit: impl Into<i64>) -> Wish {
    Wish { bytes: bytes as isize as i64, unit: unit.into(), apart: false }
}

export! {
    [c_int] MPI_Win_allocate_shared(bytes: pointer, unit: count, info: handle, comm: handle, base: pointer, window: pointer)
    |library| allocate(wish(bytes, unit), info, comm, base, window).unwrap_or_else(library)
}
export_large! {
    MPI_Win_allocate_shared MPI_Win_allocate_shared_c
        (bytes: pointer, unit: count, info: handle, comm: handle, base: pointer, window: pointer)
    |library| allocate(wish(bytes, unit), info, comm, base, window).unwrap_or_else(library)
}
export! {
    [c_int] MPI_Win_shared_query(window: handle, rank: int, bytes: pointer, unit: pointer, base: pointer)
    |library| query::<c_int>(window, rank, bytes, unit, base).unwrap_or_else(library)
}
export_large! {
    MPI_Win_shared_query MPI_Win_shared_query_c
        (window: handle, rank: int, bytes: pointer, unit: pointer, base: pointer)
    |library| query::<i64>(window, rank, bytes, unit, base).unwrap_or_else(|| {
        // A library without this function writes the low half.
        write(unit, 0_i64);
        library()
    })
}
export! { [c_int] MPI_Win_free(window: pointer) |library| free(window, library) }
export! {
    [c_int] MPI_Win_get_attr(window: handle, keyval: int, value: pointer, flag: pointer)
    |library| {
        let code = library();
        if let (SUCCESS, Some(flavor)) = (code, flavor(window, keyval)) {
            write(value, std::ptr::from_ref(flavor));
        }
        code
    }
}
export! {
    [c_int] MPI_Win_sync(window: handle)
    |library| {
        // Members load and store directly, so the processor's order counts, too.
        fence(Ordering::SeqCst);
        library()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(bytes: i64, apart: bool) -> Wish {
        Wish { bytes, unit: 8, apart }
    }

    #[test]
    fn parts_follow_each_other_unless_they_may_lie_apart() {
        let at = |apart| lay_out(&[wish(10, apart), wish(0, apart), wish(5, false)]);
        let places = |apart| at(apart).map(|(parts, end)| (parts.iter().map(|part| part.at).collect::<Vec<_>>(), end));
        assert_eq!(places(false), Ok((vec![0, 10, 10], 15)));
        assert_eq!(places(true), Ok((vec![0, 4096, 4096], 4101)));
        assert_eq!(lay_out(&[]), Ok((Vec::new(), 0)));
    }

    #[test]
    fn wrong_wishes_name_their_rank() {
        assert_eq!(lay_out(&[wish(1, false), wish(-3, false)]), Err(Cause::Size(1, -3)));
        assert_eq!(lay_out(&[Wish { unit: 0, ..wish(1, false) }]), Err(Cause::Unit(0, 0)));
        assert_eq!(lay_out(&[wish(i64::MAX, false), wish(1, false)]), Err(Cause::TooLong));
        let wish = Wish { bytes: -1, unit: 1 << 40, apart: true };
        assert_eq!(Wish::from_bytes(&wish.to_bytes()), wish);
    }

    #[test]
    fn the_null_process_is_the_first_member_with_memory() {
        let part = |bytes| Part { at: 0, bytes, unit: 1 };
        let window = Window { memory: None, parts: vec![part(0), part(0), part(4)] };
        assert_eq!(window.member(-1, -1), Some(2));
        assert_eq!((window.member(1, -2), window.member(3, -2), window.member(-1, -2)), (Some(1), None, None));
        assert_eq!(Window { parts: vec![part(0)], ..window }.member(-3, -3), Some(0));
    }
}
