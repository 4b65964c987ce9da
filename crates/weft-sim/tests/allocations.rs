//! An event of the simulation allocates nothing, once the lists have their lengths. The test is a program of its own,
//! because it has an allocator of its own.

mod job;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

use job::Job;
use weft_engine::collective::Operation;
use weft_sim::FabricConfig;

thread_local! {
    /// Whether allocations of this thread are counted, and how many there were.
    static COUNTED: (Cell<bool>, Cell<u64>) = const { (Cell::new(false), Cell::new(0)) };
    /// The places of the first ones.
    static PLACES: RefCell<Vec<Backtrace>> = const { RefCell::new(Vec::new()) };
}

/// Places that are kept.
const KEPT: usize = 3;

struct Counting;

impl Counting {
    fn note() {
        COUNTED.with(|(on, count)| {
            if on.replace(false) {
                count.set(count.get() + 1);
                PLACES.with_borrow_mut(|places| {
                    if places.len() < KEPT {
                        places.push(Backtrace::force_capture());
                    }
                });
                on.set(true);
            }
        });
    }
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: the caller fulfils the contract of `GlobalAlloc`, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block comes from the system's allocator, with the same layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_barrier_of_connected_engines_allocates_nothing() {
    let fabric = FabricConfig { latency_ns: 1500, jitter_ns: 300, ..FabricConfig::new(1) };
    let mut job = Job::new(fabric, 256, Operation::Barrier, 0);
    // The first one connects the engines. The lists have their lengths soon after.
    (0..8).for_each(|_| _ = job.perform());
    let before = job.cluster.fabric().stats().messages;
    COUNTED.with(|(on, _)| on.set(true));
    job.perform();
    let count = COUNTED.with(|(on, count)| {
        on.set(false);
        count.get()
    });
    let messages = job.cluster.fabric().stats().messages - before;
    assert_eq!(messages, 256 * 8, "a barrier has eight rounds");
    let places = PLACES.take();
    assert_eq!(count, 0, "allocations for {messages} messages, the first ones: {places:#?}");
}
