//! The system's reports of what is unmapped. A program of its own: what is watched, is watched for the whole
//! process. Where the system makes no reports, that is all there is to see.
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
    // SAFETY: new memory.
    unsafe { mmap_anonymous(null_mut(), PAGES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }.unwrap()
}

fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: memory of this test, which is not used afterwards.
    unsafe { munmap(at, len) }.unwrap();
}

fn span(at: *mut c_void, len: usize) -> Span {
    Span { start: at.expose_provenance() as u64, len: len as u64 }
}

/// Whether the next reports tell of `gone`.
fn told(watch: &mut UnmapWatch, gone: Span) -> bool {
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
fn whatever_takes_the_memory_away_is_reported_before_the_call_returns() {
    let Some(mut watch) = observed() else { return };
    for _ in 0..200 {
        let at = map();
        assert!(watch.watch(span(at, PAGES)));
        assert!(watch.watch(span(at, 100)), "again");
        // Of the other tests' memory, which was here before.
        while watch.unmapped().is_some() {}
        unmap(at, PAGES);
        assert!(told(&mut watch, span(at, PAGES)), "munmap");
    }
    let at = map();
    assert!(watch.watch(span(at, PAGES)));
    let third = at.wrapping_byte_add(2 * 4096);
    // SAFETY: memory of this test.
    unsafe { madvise(third, 4096, Advice::LinuxDontNeed) }.unwrap();
    assert!(told(&mut watch, span(third, 4096)), "madvise");
    // SAFETY: memory of this test.
    unsafe { mmap_anonymous(third, 4096, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED) }.unwrap();
    assert!(told(&mut watch, span(third, 4096)), "another mapping in its place");
    unmap(at, PAGES);
    let at = map();
    assert!(watch.watch(span(at, PAGES)));
    // SAFETY: memory of this test.
    let moved = unsafe { mremap(at, PAGES, 64 * PAGES, MremapFlags::MAYMOVE) }.unwrap();
    if moved != at {
        assert!(told(&mut watch, span(at, PAGES)), "mremap");
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
                assert!(told(&mut watch, span(at, PAGES)));
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

/// What nobody observes any more is unmapped without waiting, and observing can begin anew.
#[test]
fn it_ends_and_begins_again() {
    for _ in 0..20 {
        let Some(mut watch) = observed() else { return };
        let at = map();
        assert!(watch.watch(span(at, PAGES)));
        unmap(at, 4096);
        assert!(told(&mut watch, span(at, 4096)));
        drop(watch);
        unmap(at.wrapping_byte_add(4096), PAGES - 4096);
    }
}

#[test]
fn memory_without_reports_is_not_taken_for_watched() {
    let Some(watch) = observed() else { return };
    assert!(!watch.watch(Span { start: 4096, len: 4096 }), "nothing is mapped there");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: new memory.
    let at = unsafe { mmap(null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
    assert!(!watch.watch(span(at, 4096)), "a file that cannot be written");
    unmap(at, 4096);
    // SAFETY: makes a segment, which goes with the last that attaches it.
    let segment = unsafe { libc::shmget(libc::IPC_PRIVATE, PAGES, 0o600) };
    // SAFETY: new memory.
    let at = unsafe { libc::shmat(segment, null_mut(), 0) };
    // SAFETY: a segment of this test's.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, null_mut()) };
    assert!(!watch.watch(span(at, PAGES)), "shmdt is not reported");
    // SAFETY: attached above, and not used afterwards.
    unsafe { libc::shmdt(at) };
    // SAFETY: new memory.
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

/// What is private but in several mappings, which the system has not joined, is watched all the same.
#[test]
fn memory_in_pieces_is_watched() {
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

/// What a forked child finds, which is ended together with its own children.
fn in_a_child(find: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls `find` and is gone.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no memory is concerned.
        unsafe { libc::setpgid(0, 0) };
        let found = catch_unwind(AssertUnwindSafe(find)).unwrap_or(false);
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!found)) };
    }
    let (end, mut status) = (Instant::now() + Duration::from_secs(10), 1);
    // SAFETY: a child of this test and a place for its status.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > end {
            // SAFETY: no memory is concerned.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: as above.
    unsafe { libc::kill(-child, libc::SIGKILL) };
    status == 0
}

/// A child that lives on holds up nobody who unmaps what was observed when it was forked.
#[test]
fn whoever_unmaps_does_not_wait_for_a_forked_child() {
    if observed().is_none() {
        return;
    }
    for _ in 0..20 {
        assert!(in_a_child(|| {
            let Some(watch) = UnmapWatch::new() else { return false };
            let at = map();
            let watched = watch.watch(span(at, PAGES));
            // SAFETY: the child only waits for its end.
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

/// A child begins anew, although it has a copy of what its parent uses.
#[test]
fn a_forked_child_observes_its_own_memory() {
    let Some(inherited) = observed() else { return };
    for _ in 0..20 {
        assert!(in_a_child(|| {
            let Some(mut watch) = UnmapWatch::new() else { return false };
            let at = map();
            let watched = !inherited.watch(span(at, PAGES)) && watch.watch(span(at, PAGES));
            unmap(at, PAGES);
            watched && told(&mut watch, span(at, PAGES))
        }));
    }
}
