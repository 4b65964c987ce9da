//! Remote memory accesses that the target refuses. Every operation ends with one error completion, no byte is
//! read or written, and the connection stays (fi_domain(3), "Unmatched RMA, RMA Overrun": a transmit error).

use std::ffi::c_void;
use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::side::{
    Args, CALLS, EP_CONTEXT, Form, Outcome, Side, Watched, copies_alone, introduce, is_all, long_bytes, memory,
    name_of, pattern, scenes, until, works,
};

/// The length of the regions.
const REGION_BYTES: usize = 1 << 20;
/// A length that fits in a message, and one that needs a bulk transfer.
const LENGTHS: [usize; 2] = [8, 200_000];

const READABLE: u64 = 1;
const WRITABLE: u64 = 1 << 63 | 2;
const LOCAL: u64 = 3;
const CLOSED: u64 = 4;
const NEVER: u64 = u64::MAX;

/// A refused access: its description, its key and address, and the error.
struct Refusal {
    what: &'static str,
    key: u64,
    addr: u64,
    err: i32,
}

fn refusals(write: bool, len: usize) -> Vec<Refusal> {
    let good = if write { WRITABLE } else { READABLE };
    let end = REGION_BYTES as u64;
    let refusal = |what, key, addr, err| Refusal { what, key, addr, err };
    vec![
        refusal("a key that was never registered", NEVER, 0, FI_EKEYREJECTED),
        refusal("the key of a closed region", CLOSED, 0, FI_EKEYREJECTED),
        refusal("the key of a local region", LOCAL, 0, FI_EKEYREJECTED),
        refusal("no such access", if write { READABLE } else { WRITABLE }, 0, FI_EKEYREJECTED),
        refusal("the last byte beyond", good, end - len as u64 + 1, FI_EACCES),
        refusal("all beyond", good, end, FI_EACCES),
        refusal("far beyond", good, 1 << 62, FI_EACCES),
        refusal("an end that wraps around to 0", good, 0_u64.wrapping_sub(len as u64), FI_EACCES),
        refusal("an end that wraps into the region", good, u64::MAX - 3, FI_EACCES),
    ]
}

fn is_write(name: &str) -> bool {
    name.contains("write")
}

/// All scenes.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("refused", refused),
            ("roles", roles),
            ("unrequested_accesses", unrequested_accesses),
            ("endpoints", endpoints),
            ("domains", domains),
            ("pieces", pieces),
            ("virtual_addresses", virtual_addresses),
            ("closed_during_an_access", closed_during_an_access),
            ("unmapped_memory", unmapped_memory),
            ("receives_into_read_only_memory", receives_into_read_only_memory),
        ],
    );
}

/// Every RMA function with every refusal, short and long.
fn refused(lib: &Lib) {
    let (a, b, to_b, _) = introduce(Side::delivering(lib), Side::new(lib));
    let readable = pattern(REGION_BYTES);
    let writable = memory(REGION_BYTES);
    let regions = [
        b.register(readable, FI_REMOTE_READ, READABLE),
        b.register(writable, FI_REMOTE_WRITE, WRITABLE),
        b.register(memory(REGION_BYTES), FI_SEND | FI_RECV | FI_READ | FI_WRITE, LOCAL),
    ];
    assert_eq!(close(b.register(memory(REGION_BYTES), FI_REMOTE_READ | FI_REMOTE_WRITE, CLOSED)), 0);
    let (ok, failed) = (a.opened.cntr(), a.opened.cntr());
    assert_eq!(bind(a.ep, ok, FI_WRITE), 0);
    assert_eq!(bind(a.ep, failed, FI_READ), 0);
    let mut expected = [0, 0];
    for call in CALLS.iter().filter(|call| call.name.contains("read") || is_write(call.name)) {
        let write = is_write(call.name);
        for len in LENGTHS {
            if call.form == Form::Inject && len > a.info.tx().inject_size {
                continue;
            }
            for refusal in refusals(write, len) {
                let what = format!("{} of {len} bytes, {}", call.name, refusal.what);
                let buf = memory(len);
                buf.fill(0x5a);
                let (key, addr, flags) = (refusal.key, refusal.addr, FI_DELIVERY_COMPLETE);
                let args = Args { key, addr, flags, context: 0xc7, ..Args::new(buf, to_b) };
                assert_eq!(unsafe { (call.run)(a.ep, &args) }, 0, "{what}");
                let entry = a.next(&[&b]).failed();
                assert_eq!(entry.err, refusal.err, "{what}");
                let context = if call.form == Form::Inject { EP_CONTEXT } else { 0xc7 };
                assert_eq!(entry.op_context as usize, context, "{what}");
                let kind = FI_RMA | if write { FI_WRITE } else { FI_READ };
                assert_eq!(entry.flags & kind, kind, "{what}");
                assert!(is_all(buf, 0x5a), "{what}: the local buffer was written to");
                assert!(b.poll().is_none(), "{what}: the target reported the refused access");
                expected[usize::from(!write)] += 1;
            }
        }
    }
    assert!(expected[0] > 50 && expected[1] > 50, "{expected:?}");
    a.nothing(&[&b]);
    b.nothing(&[&a]);
    assert!(is_all(writable, 0), "a refused write has changed the region");
    let errors =
        |cntr: *mut fid_cntr| unsafe { ((*(*cntr).ops).read.unwrap()(cntr), (*(*cntr).ops).readerr.unwrap()(cntr)) };
    assert_eq!([errors(ok), errors(failed)], [(0, expected[0]), (0, expected[1])], "each access counts as one error");
    edges(&a, &b, to_b, writable);
    works(&a, &b, to_b);
    let (mut a, mut b) = (a, b);
    a.close_ep();
    b.close_ep();
    for region in regions {
        assert_eq!(close(region), 0);
    }
    assert_eq!([close(ok), close(failed)], [0, 0]);
}

/// An endpoint that was opened without the role of a target refuses reads or writes, whatever its regions
/// permit.
fn roles(lib: &Lib) {
    for (role, reads, writes) in
        [(FI_READ | FI_WRITE, false, false), (FI_REMOTE_READ, true, false), (FI_REMOTE_WRITE | FI_READ, false, true)]
    {
        let b = Side::with(lib, 0, |hints| hints.get().caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | role);
        let (a, b, to_b, _) = introduce(Side::delivering(lib), b);
        let target = pattern(4096);
        let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, READABLE);
        for len in [8, 4096] {
            for (name, allowed) in [("fi_read", reads), ("fi_write", writes)] {
                let args = Args { key: READABLE, ..Args::new(memory(len), to_b) };
                a.start(name, &args, &[]);
                match a.next(&[&b]) {
                    Outcome::Done(_) => assert!(allowed, "{name} at {role:#x}"),
                    Outcome::Failed(entry) => assert_eq!((entry.err, allowed), (FI_EKEYREJECTED, false), "{name}"),
                }
            }
        }
        assert_eq!(is_all(target, 0), writes, "either all bytes are written, or none");
        works(&a, &b, to_b);
        assert_eq!(close(mr), 0);
    }
}

/// Charm++ opens endpoints from API 1.0 without a registration mode, reads from peers, and is read. It may
/// also write. Its peers may access only as requested.
fn unrequested_accesses(lib: &Lib) {
    let open = || {
        let hints = lib.allocinfo();
        hints.get().caps = FI_TAGGED | FI_RMA | FI_REMOTE_READ;
        hints.tx().op_flags = FI_DELIVERY_COMPLETE;
        Side::opened(lib, 0, lib.ask(version(1, 0), Some(&hints)).unwrap())
    };
    let (a, b, to_b, _) = introduce(open(), open());
    assert_eq!(a.info.domain().mr_mode, FI_MR_BASIC as i32, "keys of the provider, virtual addresses");
    let source = pattern(REGION_BYTES);
    let mr = b.register(source, FI_REMOTE_READ | FI_REMOTE_WRITE, 0);
    let (key, addr) = (unsafe { (*mr).key }, source.as_ptr().addr() as u64);
    for len in LENGTHS {
        let target = memory(len);
        a.start("fi_read", &Args { key, addr, ..Args::new(target, to_b) }, &[]);
        a.next(&[&b]).done();
        assert!(*target == source[..len], "{len} bytes");
        a.start("fi_write", &Args { key, addr, ..Args::new(memory(len), to_b) }, &[]);
        assert_eq!(a.next(&[&b]).failed().err, FI_EKEYREJECTED);
        assert!(*source == *pattern(REGION_BYTES), "{len} bytes: the access changed the region");
    }
    works(&a, &b, to_b);
    assert_eq!(close(mr), 0);
}

/// A write, a read and an atomic operation, short and long, on a region of [`REGION_BYTES`]. Either all
/// succeed, or all are refused without effect.
#[track_caller]
fn reaches(a: &Side<'_>, b: &Side<'_>, dest: u64, (region, key): (Watched, u64), allowed: bool) {
    let ended = |what: &str| match a.next(&[b]) {
        Outcome::Done(_) => assert!(allowed, "{what}"),
        Outcome::Failed(entry) => assert_eq!((entry.err, allowed), (FI_EKEYREJECTED, false), "{what}"),
    };
    for len in LENGTHS {
        region.bytes().fill(0x11);
        a.start("fi_write", &Args { key, ..Args::new(pattern(len), dest) }, &[b]);
        ended("fi_write");
        assert_eq!(region.bytes()[..len] == *pattern(len), allowed, "fi_write of {len} bytes");
        let back = memory(len);
        a.start("fi_read", &Args { key, ..Args::new(back, dest) }, &[b]);
        ended("fi_read");
        assert_eq!(*back == *pattern(len), allowed, "fi_read of {len} bytes");
        let atomic = unsafe { (*(*a.ep).atomic).write.unwrap() };
        let (buf, count) = (pattern(len).as_mut_ptr().cast(), len / 8);
        region.bytes().fill(0x11);
        let ctx = 0xc9 as *mut c_void;
        assert_eq!(unsafe { atomic(a.ep, buf, count, null_mut(), dest, 0, key, FI_UINT64, FI_ATOMIC_WRITE, ctx) }, 0);
        ended("fi_atomic");
        assert_eq!(region.bytes()[..len] == *pattern(len), allowed, "fi_atomic of {len} bytes");
        assert!(is_all(region.bytes(), 0x11) != allowed, "either all accesses are done, or none");
    }
    b.nothing(&[a]);
}

/// A region of one endpoint (FI_MR_ENDPOINT) is accessible through that endpoint once it is enabled. It is
/// not accessible through earlier or later endpoints of the domain.
fn endpoints(lib: &Lib) {
    let b = Side::with_changed(lib, |info| info.domain().mr_mode = FI_MR_ENDPOINT);
    let (a, b, to_b, _) = introduce(Side::delivering(lib), b);
    let ready = || {
        let ep = b.another_ep();
        assert_eq!(bind(ep, b.av, 0), 0);
        assert_eq!(bind(ep, b.cq, FI_TRANSMIT | FI_RECV), 0);
        assert_eq!(control(ep, FI_ENABLE, null_mut()), 0);
        (ep, a.insert(&name_of(ep)))
    };
    let (early, to_early) = ready();
    let target = memory(REGION_BYTES);
    let region = (Watched::new(target), WRITABLE);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, WRITABLE);
    assert_eq!(control(mr, FI_ENABLE, null_mut()), -FI_EINVAL, "the region has no endpoint yet");
    reaches(&a, &b, to_b, region, false);
    reaches(&a, &b, to_early, region, false);
    assert_eq!(bind(mr, b.ep, 0), 0);
    assert_eq!(bind(mr, early, 0), -FI_EINVAL, "one endpoint");
    reaches(&a, &b, to_b, region, false);
    assert_eq!(control(mr, FI_ENABLE, null_mut()), 0);
    let (late, to_late) = ready();
    for _ in 0..2 {
        reaches(&a, &b, to_b, region, true);
        reaches(&a, &b, to_early, region, false);
        reaches(&a, &b, to_late, region, false);
        // Neither call changes the endpoint of the region.
        assert_eq!(control(mr, FI_REFRESH, null_mut()), 0);
        assert_eq!(control(mr, FI_ENABLE, null_mut()), 0);
    }
    assert_eq!(close(mr), 0);
    reaches(&a, &b, to_b, region, false);
    works(&a, &b, to_b);
    assert_eq!([close(early), close(late)], [0, 0]);
}

/// The key of a region is unknown at endpoints of other domains, in the same process or in others.
fn domains(lib: &Lib) {
    let (a, b, to_b, _) = introduce(Side::delivering(lib), Side::new(lib));
    let c = Side::new(lib);
    let to_c = a.insert(&c.name());
    let target = memory(REGION_BYTES);
    let region = (Watched::new(target), WRITABLE);
    let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
    let (mr, own) = (c.register(target, access, WRITABLE), b.register(memory(REGION_BYTES), access, READABLE));
    reaches(&a, &c, to_c, region, true);
    reaches(&a, &b, to_b, region, false);
    works(&a, &b, to_b);
    assert_eq!([close(mr), close(own)], [0, 0]);
}

/// Accesses up to the last byte of the region are allowed, and empty ones at its end.
fn edges(a: &Side<'_>, b: &Side<'_>, to_b: u64, writable: &[u8]) {
    for (len, addr) in [(8, REGION_BYTES - 8), (200_000, REGION_BYTES - 200_000), (0, REGION_BYTES), (REGION_BYTES, 0)]
    {
        let buf = pattern(len);
        let args = Args { key: WRITABLE, addr: addr as u64, ..Args::new(buf, to_b) };
        a.start("fi_write", &args, &[]);
        a.next(&[b]).done();
        assert_eq!(writable[addr..addr + len], *buf);
        let back = memory(len);
        a.start("fi_read", &Args { key: READABLE, addr: addr as u64, ..Args::new(back, to_b) }, &[]);
        a.next(&[b]).done();
        assert_eq!(back[..], pattern(REGION_BYTES)[addr..addr + len]);
    }
}

/// One of several remote pieces is refused: one error completion, and no data at the target's queue.
fn pieces(lib: &Lib) {
    let (a, b, to_b, _) = introduce(Side::delivering(lib), Side::new(lib));
    let target = memory(REGION_BYTES);
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, READABLE);
    for len in LENGTHS {
        let good = fi_rma_iov { addr: 0, len, key: READABLE };
        let bad = fi_rma_iov { key: NEVER, ..good };
        let outside = fi_rma_iov { addr: REGION_BYTES as u64, ..good };
        for (remote, expected) in [
            ([bad, good, good], FI_EKEYREJECTED),
            ([good, bad, good], FI_EKEYREJECTED),
            ([good, good, outside], FI_EACCES),
            ([good, outside, outside], FI_EACCES),
        ] {
            let buf = pattern(3 * len);
            let piece = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
            let mut msg: fi_msg_rma = unsafe { std::mem::zeroed() };
            (msg.msg_iov, msg.iov_count, msg.addr) = (&raw const piece, 1, to_b);
            (msg.rma_iov, msg.rma_iov_count) = (remote.as_ptr(), remote.len());
            (msg.context, msg.data) = (0xc8 as *mut c_void, 0xda7a);
            let rma = unsafe { &*(*a.ep).rma };
            let (write, read) = (rma.writemsg.unwrap(), rma.readmsg.unwrap());
            assert_eq!(unsafe { write(a.ep, &msg, FI_REMOTE_CQ_DATA) }, 0);
            assert_eq!(unsafe { read(a.ep, &msg, 0) }, 0);
            for _ in 0..2 {
                let entry = a.next(&[&b]).failed();
                assert_eq!((entry.err, entry.op_context as usize), (expected, 0xc8), "{remote:?}");
            }
            a.nothing(&[&b]);
            b.nothing(&[&a]);
        }
    }
    works(&a, &b, to_b);
    assert_eq!(close(mr), 0);
}

/// Virtual addresses: an address below the region, and an offset in place of an address.
fn virtual_addresses(lib: &Lib) {
    let b = Side::with_changed(lib, |info| info.domain().mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
    let (a, b, to_b, _) = introduce(Side::delivering(lib), b);
    let target = memory(4096);
    let base = target.as_ptr() as u64;
    // The region is the middle of the buffer, so that its surroundings can be checked.
    let mr = b.register(&mut target[1024..2048], FI_REMOTE_READ | FI_REMOTE_WRITE, 0);
    let key = unsafe { (*mr).key };
    let buf = pattern(8);
    for addr in [0, 8, base, base + 1023, base + 1024 - 8, base + 2048, base + 2041, u64::MAX - 7, u64::MAX] {
        a.start("fi_write", &Args { key, addr, ..Args::new(buf, to_b) }, &[]);
        assert_eq!(a.next(&[&b]).failed().err, FI_EACCES, "{addr:#x} of {base:#x}");
    }
    assert!(is_all(target, 0));
    for at in [1024, 2040] {
        a.start("fi_write", &Args { key, addr: base + at, ..Args::new(buf, to_b) }, &[]);
        a.next(&[&b]).done();
        assert_eq!(target[at as usize..at as usize + 8], *buf);
    }
    assert_eq!(close(mr), 0);
    a.start("fi_write", &Args { key, addr: base + 1024, ..Args::new(buf, to_b) }, &[]);
    assert_eq!(a.next(&[&b]).failed().err, FI_EKEYREJECTED, "closed");
}

/// The length of each part of a [`Patchwork`] in bytes.
const PART_BYTES: usize = 1 << 18;

/// Memory in four parts: one readable and writable, one only readable, one inaccessible, and one unmapped.
struct Patchwork(*mut u8);

impl Patchwork {
    fn new() -> Self {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let base = unsafe { libc::mmap(null_mut(), 4 * PART_BYTES, rights, kind, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let this = Self(base.cast());
        this.protect(1, libc::PROT_READ);
        this.protect(2, libc::PROT_NONE);
        assert_eq!(unsafe { libc::munmap(this.at(3).cast(), PART_BYTES) }, 0);
        this
    }

    fn at(&self, part: usize) -> *mut u8 {
        self.0.wrapping_add(part * PART_BYTES)
    }

    fn protect(&self, part: usize, rights: i32) {
        assert_eq!(unsafe { libc::mprotect(self.at(part).cast(), PART_BYTES, rights) }, 0);
    }
}

impl Drop for Patchwork {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.0.cast(), 4 * PART_BYTES) };
    }
}

/// Calls `fi_mr_reg` for memory that no slice can describe.
fn register(side: &Side<'_>, buf: *mut u8, len: usize, key: u64) -> *mut fid_mr {
    let (domain, mut mr) = (side.opened.domain, null_mut());
    let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
    let reg = unsafe { (*(*domain).mr).reg.unwrap() };
    assert_eq!(unsafe { reg(domain.cast(), buf.cast(), len, access, 0, key, 0, &mut mr, null_mut()) }, 0);
    mr
}

/// Runs a write, a read, an atomic and a fetching operation. Returns which of them succeed. All others must
/// end with a memory error.
fn done_there(a: &Side<'_>, b: &Side<'_>, dest: u64, (key, addr): (u64, u64), len: usize) -> [bool; 4] {
    let ended = || match a.next(&[b]) {
        Outcome::Done(_) => true,
        Outcome::Failed(entry) => {
            assert_eq!(entry.err, FI_EFAULT);
            false
        }
    };
    let atomics = unsafe { &*(*a.ep).atomic };
    let (count, ctx) = (len / 8, 0xc9 as *mut c_void);
    let args = |buf| Args { key, addr, ..Args::new(buf, dest) };
    a.start("fi_write", &args(memory(len)), &[b]);
    let write = ended();
    a.start("fi_read", &args(memory(len)), &[b]);
    let read = ended();
    let (buf, result) = (memory(len).as_mut_ptr().cast(), memory(len).as_mut_ptr().cast());
    let add = atomics.write.unwrap();
    assert_eq!(unsafe { add(a.ep, buf, count, null_mut(), dest, addr, key, FI_UINT64, FI_SUM, ctx) }, 0);
    let atomic = ended();
    let fetch = atomics.readwrite.unwrap();
    let (no, ty) = (null_mut(), FI_UINT64);
    assert_eq!(unsafe { fetch(a.ep, buf, count, no, result, no, dest, addr, key, ty, FI_ATOMIC_READ, ctx) }, 0);
    [write, read, atomic, ended()]
}

/// Operations on registered memory that is protected or unmapped fail. The target goes on, and accessible
/// parts stay reachable.
fn unmapped_memory(lib: &Lib) {
    let (a, b, to_b, _) = introduce(Side::delivering(lib), Side::new(lib));
    let patchwork = Patchwork::new();
    let base = patchwork.at(0);
    let whole = register(&b, base, 4 * PART_BYTES, READABLE);
    let everything = register(&b, null_mut(), usize::MAX, WRITABLE);
    // The start of a part in either region.
    let there = |at: usize| [(READABLE, at as u64), (WRITABLE, base as u64 + at as u64)];
    let all = [true; 4];
    let constant = [false, true, false, true];
    let none = [false; 4];
    for len in LENGTHS {
        for (part, expected) in [(0, all), (1, constant), (2, none), (3, none)] {
            for place in there(part * PART_BYTES) {
                assert_eq!(done_there(&a, &b, to_b, place, len), expected, "{len} bytes of part {part}, {place:x?}");
            }
        }
        // The two halves of the access have different rights.
        for (at, expected) in [(PART_BYTES, constant), (2 * PART_BYTES, none)] {
            for place in there(at - len / 2) {
                assert_eq!(done_there(&a, &b, to_b, place, len), expected, "{len} bytes at {at:#x}, {place:x?}");
            }
        }
    }
    assert_eq!(done_there(&a, &b, to_b, (WRITABLE, 8), 8), none, "the first page of the address space");
    // The same access succeeds as soon as the memory is accessible.
    patchwork.protect(1, libc::PROT_READ | libc::PROT_WRITE);
    patchwork.protect(2, libc::PROT_READ);
    for len in LENGTHS {
        for (part, expected) in [(1, all), (2, constant)] {
            for place in there(part * PART_BYTES) {
                assert_eq!(done_there(&a, &b, to_b, place, len), expected, "{len} bytes of part {part}, {place:x?}");
            }
        }
    }
    a.nothing(&[&b]);
    works(&a, &b, to_b);
    assert_eq!([close(whole), close(everything)], [0, 0]);
}

/// A long message for a receive whose buffer is read-only, if the system moves the bytes.
fn receives_into_read_only_memory(lib: &Lib) {
    if !copies_alone() {
        return;
    }
    let (a, b, to_b, _) = introduce(Side::delivering(lib), Side::new(lib));
    let patchwork = Patchwork::new();
    let len = LENGTHS[1];
    let nowhere = Args { buf: patchwork.at(1).cast(), len, context: 0xb1, ..Args::new(memory(0), 0) };
    for _ in 0..2 {
        assert_eq!(b.run("fi_trecv", &nowhere), 0);
        a.start("fi_tsend", &Args::new(pattern(len), to_b), &[&b]);
        let entry = b.next(&[&a]).failed();
        assert_eq!((entry.err, entry.op_context as usize), (FI_EFAULT, 0xb1));
        a.next(&[&b]).done();
    }
    works(&a, &b, to_b);
}

/// A region is closed while a peer writes to it. When the call returns, no access touches its memory.
fn closed_during_an_access(lib: &Lib) {
    let bytes = long_bytes();
    let (a, b, to_b, _) = introduce(Side::delivering(lib), Side::new(lib));
    works(&a, &b, to_b);
    for write in [true, false] {
        let (local, remote) = if write { (pattern(bytes), memory(bytes)) } else { (memory(bytes), pattern(bytes)) };
        let watched = Watched::new(if write { remote } else { local });
        let region = Watched::new(remote);
        let mr = b.register(remote, FI_REMOTE_WRITE | FI_REMOTE_READ, READABLE);
        let name = if write { "fi_write" } else { "fi_read" };
        a.start(name, &Args { key: READABLE, ..Args::new(local, to_b) }, &[]);
        until(|| {
            a.progress();
            b.progress();
            watched.begun().then_some(())
        });
        watched.assert_incomplete();
        assert_eq!(close(mr), 0);
        let after = region.bytes();
        after.fill(0xee);
        // The access was finished within the close, or it has failed.
        let outcome = a.next(&[&b]);
        match outcome {
            Outcome::Done(_) if !write => assert!(*local == *pattern(bytes), "read after the region was closed"),
            Outcome::Done(_) => {}
            Outcome::Failed(entry) => assert!([FI_ESHUTDOWN, FI_ECONNRESET].contains(&entry.err)),
        }
        a.nothing(&[&b]);
        assert!(is_all(after, 0xee), "{name}: memory was touched after its region was closed");
        assert_eq!(a.run(name, &Args { key: READABLE, ..Args::new(memory(8), to_b) }), 0);
        assert_eq!(a.next(&[&b]).failed().err, FI_EKEYREJECTED);
    }
    works(&a, &b, to_b);
}
