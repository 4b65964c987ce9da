//! Naps: where threads share processors, a reader that finds nothing sleeps for short times. It must not do so if its
//! messages inside the host may come by a way that weft does not know.
//!
//! The tests count naps. A busy thread on the reader's processor makes weft see the competition.

use std::sync::atomic::{AtomicBool, Ordering};

use weft_fi_sys::FI_PROGRESS_MANUAL;

use crate::client::Lib;
use crate::progress::stats;
use crate::side::{Side, introduce, works};

/// Reads of an empty queue: more than a reader makes between its last nap and the next event.
const READS: usize = 4000;
/// The most naps between two events (`MOST_IDLE` in `sleep/poll.rs`), with one before the first yield.
const MOST: u64 = 65;

pub(crate) fn all(lib: &Lib) {
    beside_a_busy_thread(|| {
        without_a_peer(lib);
        beside_a_peer(lib);
    });
}

fn open(lib: &Lib) -> Side<'_> {
    Side::with(lib, 0, |hints| hints.domain().data_progress = FI_PROGRESS_MANUAL)
}

/// Number of naps, and of those without an event.
fn naps(side: &Side<'_>) -> [u64; 2] {
    let [.., all, fruitless] = stats::<5>(side, 40);
    [all, fruitless]
}

fn read_in_vain(side: &Side<'_>) {
    assert!((0..READS).all(|_| side.poll().is_none()));
}

/// Calls `run` on a processor on which another thread computes.
fn beside_a_busy_thread(run: impl FnOnce()) {
    let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    unsafe {
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&before), &mut before), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &before)).unwrap();
        libc::CPU_SET(first, &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        run();
        done.store(true, Ordering::Relaxed);
    });
    unsafe { libc::sched_setaffinity(0, size_of_val(&before), &before) };
}

/// An MPI library with shared memory of its own links no peer of the host. All that it waits for comes by another way.
fn without_a_peer(lib: &Lib) {
    let side = open(lib);
    read_in_vain(&side);
    assert_eq!(naps(&side), [0, 0]);
}

/// A client that is linked inside the host naps. Without events it stops.
fn beside_a_peer(lib: &Lib) {
    let (a, b, to_b, _) = introduce(open(lib), open(lib));
    for _ in 0..2 {
        works(&a, &b, to_b);
        let before = naps(&a);
        read_in_vain(&a);
        let after = naps(&a);
        let [all, fruitless] = [after[0] - before[0], after[1] - before[1]];
        assert!(all > 0 && all == fruitless && fruitless <= MOST, "{all} naps, {fruitless} without an event");
    }
}
