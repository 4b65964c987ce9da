//! The kernel's reports of unmapped memory. These tests have a process of their own, because memory is
//! watched for the whole process. Where the kernel makes no reports, the tests pass without a check.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap, munmap};
use weft_engine::nic::Span;
use weft_os::UnmapWatch;

const PAGES: usize = 16 * 4096;

fn map() -> *mut c_void {
    // SAFETY: a new mapping.
    unsafe { mmap_anonymous(null_mut(), PAGES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }.unwrap()
}

fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: memory of this test, which is not used afterwards.
    unsafe { munmap(at, len) }.unwrap();
}

fn span(at: *mut c_void, len: usize) -> Span {
    Span { start: at.expose_provenance() as u64, len: len as u64 }
}

/// Whether one of the pending reports covers `gone`.
fn is_reported(watch: &mut UnmapWatch, gone: Span) -> bool {
    std::iter::from_fn(|| watch.unmapped()).any(|report| report.contains(&gone))
}

fn observed() -> Option<UnmapWatch> {
    let watch = UnmapWatch::new();
    if watch.is_none() {
        println!("the system does not let this process observe: not tested");
    }
    watch
}

#[test]
fn every_kind_of_unmap_is_reported_before_the_call_returns() {
    let Some(mut watch) = observed() else { return };
    for _ in 0..200 {
        let at = map();
        assert!(watch.watch(span(at, PAGES)));
        assert!(watch.watch(span(at, 100)), "again");
        // Discard reports of other tests' memory at the same address.
        while watch.unmapped().is_some() {}
        unmap(at, PAGES);
        assert!(is_reported(&mut watch, span(at, PAGES)), "munmap");
    }
    let at = map();
    assert!(watch.watch(span(at, PAGES)));
    let third = at.wrapping_byte_add(2 * 4096);
    // SAFETY: memory of this test.
    unsafe { madvise(third, 4096, Advice::LinuxDontNeed) }.unwrap();
    assert!(is_reported(&mut watch, span(third, 4096)), "madvise");
    // SAFETY: memory of this test.
    unsafe { mmap_anonymous(third, 4096, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED) }.unwrap();
    assert!(is_reported(&mut watch, span(third, 4096)), "another mapping in its place");
    unmap(at, PAGES);
    let at = map();
    assert!(watch.watch(span(at, PAGES)));
    // SAFETY: memory of this test.
    let moved = unsafe { mremap(at, PAGES, 64 * PAGES, MremapFlags::MAYMOVE) }.unwrap();
    if moved != at {
        assert!(is_reported(&mut watch, span(at, PAGES)), "mremap");
    }
    unmap(moved, 64 * PAGES);
}

#[test]
fn many_threads_unmap_and_none_is_missed() {
    if observed().is_none() {
        return;
    }
    let threads = (0..4).map(|_| {
        std::thread::spawn(|| {
            let mut watch = UnmapWatch::new().unwrap();
            for _ in 0..500 {
                let at = map();
                assert!(watch.watch(span(at, PAGES)));
                unmap(at, PAGES);
                assert!(is_reported(&mut watch, span(at, PAGES)));
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

/// After the last reader is dropped, unmapping does not wait, and observation can start again.
#[test]
fn observation_ends_and_starts_again() {
    for _ in 0..20 {
        let Some(mut watch) = observed() else { return };
        let at = map();
        assert!(watch.watch(span(at, PAGES)));
        unmap(at, 4096);
        assert!(is_reported(&mut watch, span(at, 4096)));
        drop(watch);
        unmap(at.wrapping_byte_add(4096), PAGES - 4096);
    }
}

#[test]
fn memory_without_reports_is_refused() {
    let Some(watch) = observed() else { return };
    assert!(!watch.watch(Span { start: 4096, len: 4096 }), "nothing is mapped there");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: a new mapping.
    let at = unsafe { mmap(null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
    assert!(!watch.watch(span(at, 4096)), "a file that cannot be written");
    unmap(at, 4096);
    // SAFETY: creates a segment, which is removed with its last attachment.
    let segment = unsafe { libc::shmget(libc::IPC_PRIVATE, PAGES, 0o600) };
    // SAFETY: a new mapping.
    let at = unsafe { libc::shmat(segment, null_mut(), 0) };
    // SAFETY: the segment of this test.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, null_mut()) };
    assert!(!watch.watch(span(at, PAGES)), "shmdt is not reported");
    // SAFETY: attached above, and not used afterwards.
    unsafe { libc::shmdt(at) };
    // SAFETY: a new mapping.
    let at =
        unsafe { mmap_anonymous(null_mut(), PAGES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED) }.unwrap();
    assert!(!watch.watch(span(at, PAGES)), "nor is what becomes of a file");
    unmap(at, PAGES);
    let at = map();
    let third = at.wrapping_byte_add(2 * 4096);
    let file = rustix::fs::memfd_create("part", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    // SAFETY: memory of this test.
    unsafe { mmap(third, 4096, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED, &file, 0) }
        .unwrap();
    assert!(!watch.watch(span(at, PAGES)), "partly of a file");
    unmap(at, PAGES);
}

/// A private range of several mappings that the kernel has not merged is watched.
#[test]
fn memory_of_several_mappings_is_watched() {
    let Some(mut watch) = observed() else { return };
    let at = map();
    for page in [0, 3, 4, 9] {
        // SAFETY: memory of this test.
        unsafe { rustix::mm::mprotect(at.wrapping_byte_add(page * 4096), 4096, rustix::mm::MprotectFlags::READ) }
            .unwrap();
    }
    assert!(watch.watch(span(at, PAGES)));
    unmap(at, PAGES);
    assert!(std::iter::from_fn(|| watch.unmapped()).any(|gone| gone.contains(&span(at, 4096))));
}

/// Runs `find` in a forked child, then ends the child and its own children.
fn in_a_child(find: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls `find` and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call accesses no memory.
        unsafe { libc::setpgid(0, 0) };
        let found = catch_unwind(AssertUnwindSafe(find)).unwrap_or(false);
        // SAFETY: the call accesses no memory.
        unsafe { libc::_exit(i32::from(!found)) };
    }
    let (end, mut status) = (Instant::now() + Duration::from_secs(10), 1);
    // SAFETY: a child of this test, and a valid place for its status.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > end {
            // SAFETY: the call accesses no memory.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the call accesses no memory.
    unsafe { libc::kill(-child, libc::SIGKILL) };
    status == 0
}

/// Memory was observed when a child was forked. Unmapping it does not wait for that child.
#[test]
fn unmapping_does_not_wait_for_a_forked_child() {
    if observed().is_none() {
        return;
    }
    for _ in 0..20 {
        assert!(in_a_child(|| {
            let Some(watch) = UnmapWatch::new() else { return false };
            let at = map();
            let watched = watch.watch(span(at, PAGES));
            // SAFETY: the child only waits until it is killed.
            if unsafe { libc::fork() } == 0 {
                loop {
                    std::thread::park();
                }
            }
            drop(watch);
            unmap(at, PAGES);
            watched
        }));
    }
}

/// A child can observe its own memory although it inherits the parent's state.
#[test]
fn a_forked_child_observes_its_own_memory() {
    let Some(inherited) = observed() else { return };
    for _ in 0..20 {
        assert!(in_a_child(|| {
            let Some(mut watch) = UnmapWatch::new() else { return false };
            let at = map();
            let watched = !inherited.watch(span(at, PAGES)) && watch.watch(span(at, PAGES));
            unmap(at, PAGES);
            watched && is_reported(&mut watch, span(at, PAGES))
        }));
    }
}
