//! Automatic progress for a client that comes and goes, and what the provider counts meanwhile.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::Lib;
use crate::side::{Args, Outcome, PATIENCE, Side, Watched, acquaint, memory, pattern, until};

/// Lengths of messages: inside a header, beside it, fetched, fetched in several pieces.
const LENGTHS: [usize; 4] = [8, 3000, 64 << 10, 1 << 20];
/// What asks for nothing more.
const END: u8 = LENGTHS.len() as u8;
const ITERATIONS: usize = 1500;
/// What the client computes between posting and waiting.
const WORK: Duration = Duration::from_micros(30);
const ASK: usize = 0x10;
const DATA: usize = 0x20;
const AWAY: Duration = Duration::from_millis(20);
/// How long a client polls in vain before it goes away: some ticks of the progress thread.
const POLLING: Duration = Duration::from_millis(5);
/// How soon it is relieved then, if the machine is not busy with other things.
const RELIEF: Duration = Duration::from_millis(100);
/// A client that comes and goes is never away for as long as a tick of the progress thread, and yet most of the time.
const SHORT_AWAY: Duration = Duration::from_micros(700);
/// So many of so many turns in a row must find their data there, sooner or later: other tests use the processors, too.
const RELIEVED: usize = 10;
const SHORT_TURNS: usize = 100;
/// The sender leaves its processor to others.
const REST: Duration = Duration::from_micros(20);

pub(crate) fn all(lib: &Lib) {
    stats_are_as_long_as_asked_for(&Side::new(lib));
    for threading in [FI_THREAD_DOMAIN, FI_THREAD_SAFE] {
        let open = || {
            Side::with(lib, 0, |hints| {
                hints.domain().threading = threading;
                hints.domain().data_progress = FI_PROGRESS_AUTO;
            })
        };
        let (receiver, sender, to_sender, to_receiver) = acquaint(open(), open());
        let sender = Lent(sender);
        std::thread::scope(|scope| {
            scope.spawn(move || serve(&sender, to_receiver));
            come_and_go(&receiver, to_sender);
            go_away(&receiver, to_sender);
            stop_polling(&receiver, to_sender);
            say_more(&receiver, to_sender);
            be_away_mostly(&receiver, to_sender);
            ask(&receiver, to_sender, END);
        });
        let [_, thread_rounds, _] = stats(&receiver, 24);
        assert!(thread_rounds > 0, "data came without calls, so the thread has brought them");
    }
}

/// A side that another thread uses, and nobody else meanwhile.
struct Lent<'a>(Side<'a>);

// Objects of libfabric belong to no thread.
unsafe impl Send for Lent<'_> {}

impl Lent<'_> {
    fn get(&self) -> &Side<'_> {
        &self.0
    }
}

/// Sends when asked, until it is asked for nothing.
fn serve(sender: &Lent<'_>, to: u64) {
    let side = sender.get();
    let (ask, data) = (memory(1), pattern(LENGTHS[3]));
    loop {
        side.trecv(ask, ASK);
        assert_eq!(until(|| rest(side)).done().op_context as usize, ASK);
        let Some(&len) = LENGTHS.get(usize::from(ask[0])) else { return };
        side.start("fi_tsend", &Args { context: DATA, ..Args::new(&mut data[..len], to) }, &[]);
        assert_eq!(until(|| rest(side)).done().op_context as usize, DATA);
    }
}

fn rest(side: &Side<'_>) -> Option<Outcome> {
    let found = side.poll();
    if found.is_none() {
        std::thread::sleep(REST);
    }
    found
}

fn ask(side: &Side<'_>, to: u64, what: u8) {
    side.start("fi_tinject", &Args::new(&mut [what], to), &[]);
}

/// Posts, computes, waits.
fn come_and_go(side: &Side<'_>, to: u64) {
    let (target, expected) = (memory(LENGTHS[3]), pattern(LENGTHS[3]));
    for turn in 0..ITERATIONS {
        let which = turn % LENGTHS.len();
        target.fill(0);
        side.trecv(&mut target[..], DATA);
        ask(side, to, which as u8);
        let start = Instant::now();
        while start.elapsed() < WORK {
            std::hint::spin_loop();
        }
        let entry = until(|| side.poll()).done();
        assert_eq!((entry.op_context as usize, entry.len), (DATA, LENGTHS[which]), "turn {turn}");
        assert_eq!(target[..entry.len], expected[..entry.len], "turn {turn}");
    }
}

/// Posts, and calls nothing until everything is there.
fn go_away(side: &Side<'_>, to: u64) {
    let (target, expected) = (memory(LENGTHS[2]), pattern(LENGTHS[2]));
    let watched = Watched::new(target);
    side.trecv(target, DATA);
    std::thread::sleep(AWAY);
    ask(side, to, 2);
    until(|| watched.begun().then_some(()));
    until(|| (watched.bytes()[..] == expected[..]).then_some(()));
    assert_eq!(until(|| side.poll()).done().op_context as usize, DATA);
}

/// The same after having polled all the time, so that the progress thread has stepped back. Waits for the
/// last byte only: until it is there nothing is called.
fn stop_polling(side: &Side<'_>, to: u64) {
    let (target, expected) = (memory(LENGTHS[3]), pattern(LENGTHS[3]));
    let last = Watched::new(&mut target[LENGTHS[3] - 1..]);
    let relief = (0..10).map(|turn| {
        let start = Instant::now();
        while start.elapsed() < POLLING {
            assert!(side.poll().is_none());
        }
        target.fill(0);
        side.trecv(&mut target[..], DATA);
        ask(side, to, 3);
        let start = Instant::now();
        until(|| last.begun().then_some(()));
        let took = start.elapsed();
        assert_eq!(until(|| side.poll()).done().op_context as usize, DATA);
        assert_eq!(target[..], expected[..], "turn {turn}");
        took
    });
    let soonest = relief.min().unwrap();
    assert!(soonest < RELIEF, "{soonest:?}");
}

/// Sends several messages in a row, of which a device may gather the later ones, and calls nothing more: all leave.
fn say_more(side: &Side<'_>, to: u64) {
    let relief = (0..10).map(|turn| {
        let targets: Vec<_> = (0..4).map(|_| Watched::new(memory(LENGTHS[0]))).collect();
        for target in &targets {
            side.trecv(target.bytes(), DATA);
        }
        std::thread::sleep(AWAY);
        targets.iter().for_each(|_| ask(side, to, 0));
        let start = Instant::now();
        until(|| targets.iter().all(|target| target.begun()).then_some(()));
        let took = start.elapsed();
        for target in &targets {
            assert_eq!(until(|| side.poll()).done().op_context as usize, DATA, "turn {turn}");
            assert_eq!(target.bytes()[..], pattern(LENGTHS[0])[..]);
        }
        took
    });
    let soonest = relief.min().unwrap();
    assert!(soonest < RELIEF / 2, "{soonest:?}");
}

/// Posts, is away for less than a tick, and polls until it has what it posted for. The progress thread finds
/// out, and brings the data meanwhile, where it has a processor for that: the client keeps to the first, the
/// thread to the second.
fn be_away_mostly(side: &Side<'_>, to: u64) {
    let (target, expected) = (memory(LENGTHS[2]), pattern(LENGTHS[2]));
    let last = Watched::new(&mut target[LENGTHS[2] - 1..]);
    let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let mut first: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    unsafe {
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&before), &mut before), 0);
        libc::CPU_SET(0, &mut first);
        // Where that one may not be used, things are as they were.
        libc::sched_setaffinity(0, size_of_val(&first), &first);
    }
    let mut relieved = VecDeque::from([false; SHORT_TURNS]);
    let start = Instant::now();
    let mut turn = 0;
    let alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
    while relieved.iter().filter(|&&one| one).count() < RELIEVED && !(alone && turn == SHORT_TURNS) {
        assert!(start.elapsed() < PATIENCE, "relieved in fewer than {RELIEVED} of {SHORT_TURNS} turns, {turn} in all");
        target.fill(0);
        side.trecv(&mut target[..], DATA);
        ask(side, to, 2);
        let start = Instant::now();
        while start.elapsed() < SHORT_AWAY {
            std::hint::spin_loop();
        }
        relieved.rotate_left(1);
        relieved[SHORT_TURNS - 1] = last.begun();
        turn += 1;
        assert_eq!(until(|| side.poll()).done().op_context as usize, DATA);
        assert_eq!(target[..], expected[..], "turn {turn}");
    }
    unsafe { libc::sched_setaffinity(0, size_of_val(&before), &before) };
}

type Read = unsafe extern "C" fn(*mut fid_domain, *mut u64, usize) -> c_int;

/// `struct weft_stats_ops`, as fi_weft(7) has it.
#[repr(C)]
struct Ops {
    size: usize,
    read: Read,
}

/// The numbers, of which the client knows so many bytes; what is not written stays 77.
fn stats(side: &Side<'_>, bytes: usize) -> [u64; 3] {
    let domain = side.opened.domain;
    let mut ops: *mut c_void = null_mut();
    let mut words = [77; 3];
    unsafe {
        let open = (*(*domain).fid.ops).ops_open.unwrap();
        assert_eq!(open(domain.cast(), c"weft_stats".as_ptr(), 0, &mut ops, null_mut()), 0);
        let ops = &*ops.cast::<Ops>();
        assert!(ops.size >= size_of::<Ops>());
        assert_eq!((ops.read)(domain, words.as_mut_ptr(), bytes), 0);
        assert_eq!((ops.read)(domain, null_mut(), bytes), -FI_EINVAL);
    }
    words
}

fn stats_are_as_long_as_asked_for(side: &Side<'_>) {
    assert_eq!(stats(side, 8), [0, 77, 77]);
    // A client of a later version learns that we do not know more.
    assert_eq!(stats(side, 24), [0, 0, 0]);
    assert_eq!(stats(side, 0), [77; 3]);
    let domain = side.opened.domain;
    let mut ops = null_mut();
    unsafe {
        let open = (*(*domain).fid.ops).ops_open.unwrap();
        let flags = open(domain.cast(), c"weft_stats".as_ptr(), 1, &mut ops, null_mut());
        assert_eq!(flags, -(FI_EBADFLAGS as c_int));
        assert_eq!(open(domain.cast(), std::ptr::null(), 0, &mut ops, null_mut()), -FI_EINVAL);
        assert_eq!(open(domain.cast(), c"weft_stats".as_ptr(), 0, null_mut(), null_mut()), -FI_EINVAL);
    }
}
