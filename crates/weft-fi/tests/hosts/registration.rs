//! The extension of the registration cache, on a simulated device that demands registration, and on shared
//! memory, which demands none.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::Lib;
use crate::side::{Side, introduce, memory, pattern};

/// `struct weft_mr_cache_limits`, as an application declares it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limits {
    on: u64,
    entries: u64,
    bytes: u64,
    stale_entries: u64,
    stale_bytes: u64,
}

/// `struct weft_mr_cache_counts` with a later member that this provider does not have.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    refusals: u64,
    coalesced: u64,
    evictions: u64,
    unmapped: u64,
    unwatched: u64,
    entries: u64,
    pub(crate) bytes: u64,
    stale: u64,
    stale_bytes: u64,
    future: u64,
}

#[repr(C)]
struct Ops {
    size: usize,
    set: unsafe extern "C" fn(*mut fid_ep, *const Limits, usize) -> c_int,
    get: unsafe extern "C" fn(*mut fid_ep, *mut Limits, usize) -> c_int,
    read: unsafe extern "C" fn(*mut fid_ep, *mut Counts, usize) -> c_int,
}

/// `fi_open_ops`.
fn ops(ep: *mut fid_ep) -> &'static Ops {
    let mut table = null_mut();
    unsafe {
        let open = (*(*ep).fid.ops).ops_open.unwrap();
        assert_eq!(open(&mut (*ep).fid, c"weft_mr_cache".as_ptr(), 0, &mut table, null_mut()), 0);
        let ops: &Ops = &*table.cast();
        assert!(ops.size >= size_of::<Ops>());
        ops
    }
}

pub(crate) fn counts(side: &Side<'_>) -> Counts {
    let mut counts: Counts = unsafe { std::mem::MaybeUninit::zeroed().assume_init() };
    counts.future = 9;
    assert_eq!(unsafe { (ops(side.ep).read)(side.ep, &mut counts, size_of::<Counts>()) }, 0);
    assert_eq!(counts.future, 0);
    counts
}

fn set(side: &Side<'_>, limits: &Limits, len: usize) -> c_int {
    unsafe { (ops(side.ep).set)(side.ep, limits, len) }
}

fn get(side: &Side<'_>) -> Limits {
    let mut limits = Limits::default();
    assert_eq!(unsafe { (ops(side.ep).get)(side.ep, &mut limits, size_of::<Limits>()) }, 0);
    limits
}

/// Two endpoints, and transfers from the first to the second.
pub(crate) struct Pair<'a> {
    pub(crate) a: Side<'a>,
    pub(crate) b: Side<'a>,
    to_b: u64,
    target: &'static mut [u8],
}

impl<'a> Pair<'a> {
    pub(crate) fn new(lib: &'a Lib, len: usize) -> Self {
        let (a, b, to_b, _) = introduce(Side::new(lib), Side::new(lib));
        Self { a, b, to_b, target: memory(len) }
    }

    /// Sends the bytes of `source` and waits for their arrival.
    #[track_caller]
    pub(crate) fn send(&mut self, source: &mut [u8]) {
        self.target.fill(0);
        self.b.trecv(self.target, 1);
        self.a.tsend(source, self.to_b, 2);
        self.b.next(&[&self.a]).done();
        self.a.next(&[&self.b]).done();
        assert!(self.target[..source.len()] == *source);
    }
}

/// Maps new memory. If an address is given, it must be free.
fn map(at: *mut c_void, len: usize) -> &'static mut [u8] {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if at.is_null() { 0 } else { libc::MAP_FIXED_NOREPLACE };
    unsafe {
        let at = libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(at.cast(), len)
    }
}

/// Memory stays registered until it is unmapped. Other memory at the same address gets a new registration.
pub(crate) fn kept(lib: &Lib) {
    let len = 256 << 10;
    let mut pair = Pair::new(lib, len);
    let source = map(null_mut(), len);
    let at = source.as_mut_ptr().cast();
    for round in 0..10 {
        source.fill(round + 1);
        pair.send(source);
    }
    let (ours, theirs) = (counts(&pair.a), counts(&pair.b));
    if ours.unwatched > 0 {
        println!("the system does not report unmapped memory: not tested");
        return;
    }
    assert_eq!((ours.misses, ours.hits, ours.entries, ours.stale), (1, 9, 1, 1), "{ours:?}");
    assert_eq!((theirs.misses, theirs.hits), (1, 9), "{theirs:?}");
    // A part of the memory uses the same registration.
    pair.send(&mut source[4096..200_000]);
    assert_eq!(counts(&pair.a).hits, 10);
    assert_eq!(unsafe { libc::munmap(at, len) }, 0);
    let source = map(at, len);
    source.fill(0x77);
    pair.send(source);
    let ours = counts(&pair.a);
    assert_eq!((ours.misses, ours.hits, ours.unmapped, ours.entries), (2, 10, 1, 1), "{ours:?}");
    drop(pair);
    assert_eq!(unsafe { libc::munmap(at, len) }, 0);
}

/// Limits hold from the call on. A message whose memory exceeds them still arrives.
pub(crate) fn limited(lib: &Lib) {
    let len = 2 << 20;
    let mut pair = Pair::new(lib, len);
    let source = pattern(len);
    let first = get(&pair.a);
    assert_eq!((first.on, first.entries, first.stale_entries), (1, 4096, 1024));
    pair.send(source);
    let ours = counts(&pair.a);
    assert_eq!((ours.refusals, ours.entries), (1, 0), "the device has no room for the memory: {ours:?}");
    let part = &mut source[..100_000];
    pair.send(part);
    assert_eq!(counts(&pair.a).entries, 1);
    // The call changes only the members within its length.
    let none = Limits { stale_entries: 0, bytes: 200_000, ..first };
    assert_eq!(set(&pair.a, &none, size_of::<Limits>() - 8), 0);
    assert_eq!(get(&pair.a), none);
    assert_eq!((counts(&pair.a).entries, counts(&pair.a).evictions), (0, 1), "the unused registration ends at once");
    pair.send(part);
    assert_eq!((counts(&pair.a).entries, counts(&pair.a).misses), (0, 3));
    let off = Limits { on: 0, ..first };
    assert_eq!(set(&pair.a, &off, size_of::<u64>()), 0);
    assert_eq!(get(&pair.a), Limits { on: 0, ..none });
    pair.send(part);
    assert_eq!((counts(&pair.a).entries, counts(&pair.a).misses), (0, 4));
    assert_eq!(set(&pair.a, &first, size_of::<Limits>()), 0);
    pair.send(part);
    pair.send(part);
    let ours = counts(&pair.a);
    assert_eq!((ours.entries, ours.misses, ours.hits), (1, 5, 1), "{ours:?}");
    unsafe {
        let ops = ops(pair.a.ep);
        assert_eq!((ops.set)(pair.a.ep, std::ptr::null(), 8), -(FI_EINVAL as c_int));
        assert_eq!((ops.get)(pair.a.ep, null_mut(), 8), -(FI_EINVAL as c_int));
        assert_eq!((ops.read)(pair.a.ep, null_mut(), 8), -(FI_EINVAL as c_int));
        let idle = Side::unbound(lib, 0, |_| ());
        assert_eq!((ops.set)(idle.ep, &first, 8), -(FI_EOPBADSTATE as c_int), "before it is enabled");
    }
}

/// With FI_WEFT_MR_CACHE_MONITOR=no, no unused registration is kept.
pub(crate) fn unseen(lib: &Lib) {
    let mut pair = Pair::new(lib, 100_000);
    let source = pattern(100_000);
    pair.send(source);
    pair.send(source);
    let ours = counts(&pair.a);
    assert_eq!((ours.misses, ours.unwatched, ours.entries), (2, 2, 0), "{ours:?}");
}

/// Shared memory demands no registration, so there is no cache.
pub(crate) fn none(lib: &Lib) {
    let mut pair = Pair::new(lib, 100_000);
    pair.send(pattern(100_000));
    assert_eq!((counts(&pair.a).hits, counts(&pair.a).misses), (0, 0));
    assert_eq!(set(&pair.a, &Limits::default(), size_of::<Limits>()), -(FI_EOPNOTSUPP as c_int));
}
