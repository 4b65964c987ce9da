//! Automatic progress for a client that stops and resumes calls, and the provider's statistics.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::Lib;
use crate::side::{Args, Outcome, PATIENCE, Side, Watched, introduce, memory, pattern, until};

/// Lengths of messages: inside a header, beside it, fetched in one piece, and fetched in several pieces.
const LENGTHS: [usize; 4] = [8, 3000, 64 << 10, 1 << 20];
/// Asks the sender to stop.
const END: u8 = LENGTHS.len() as u8;
const ITERATIONS: usize = 1500;
/// The time of computation between posting and waiting.
const WORK: Duration = Duration::from_micros(30);
const ASK: usize = 0x10;
const DATA: usize = 0x20;
const AWAY: Duration = Duration::from_millis(20);
/// The time for which a client polls in vain before it stops: some ticks of the progress thread.
const POLLING: Duration = Duration::from_millis(5);
/// The time limit until the progress thread takes over, if the processors are idle.
const TAKEOVER: Duration = Duration::from_millis(100);
/// The pause of a client that stops for less than a tick of the progress thread, but spends most time in
/// pauses.
const SHORT_PAUSE: Duration = Duration::from_micros(700);
/// The number of turns, among the last [`SHORT_TURNS`], that must find their data. Other tests use the
/// processors, too.
const SERVED: usize = 10;
const SHORT_TURNS: usize = 100;
/// The pause in which the sender leaves its processor to other threads.
const PAUSE: Duration = Duration::from_micros(20);

pub(crate) fn all(lib: &Lib) {
    stats_have_the_requested_length(&Side::new(lib));
    for threading in [FI_THREAD_DOMAIN, FI_THREAD_SAFE] {
        let open = || {
            Side::with(lib, 0, |hints| {
                hints.domain().threading = threading;
                hints.domain().data_progress = FI_PROGRESS_AUTO;
            })
        };
        let (receiver, sender, to_sender, to_receiver) = introduce(open(), open());
        let sender = Lent(sender);
        std::thread::scope(|scope| {
            scope.spawn(move || serve(&sender, to_receiver));
            come_and_go(&receiver, to_sender);
            go_away(&receiver, to_sender);
            stop_polling(&receiver, to_sender);
            send_burst(&receiver, to_sender);
            pause_mostly(&receiver, to_sender);
            ask(&receiver, to_sender, END);
        });
        let [_, thread_rounds, _] = stats(&receiver, 24);
        assert!(thread_rounds > 0, "the progress thread must have fetched the data");
    }
}

/// A side that only another thread uses for a time.
struct Lent<'a>(Side<'a>);

// Objects of libfabric are not bound to a thread.
unsafe impl Send for Lent<'_> {}

impl Lent<'_> {
    fn get(&self) -> &Side<'_> {
        &self.0
    }
}

/// Sends the requested lengths until the receiver requests the end.
fn serve(sender: &Lent<'_>, to: u64) {
    let side = sender.get();
    let (ask, data) = (memory(1), pattern(LENGTHS[3]));
    loop {
        side.trecv(ask, ASK);
        assert_eq!(until(|| poll_or_pause(side)).done().op_context as usize, ASK);
        let Some(&len) = LENGTHS.get(usize::from(ask[0])) else { return };
        side.start("fi_tsend", &Args { context: DATA, ..Args::new(&mut data[..len], to) }, &[]);
        assert_eq!(until(|| poll_or_pause(side)).done().op_context as usize, DATA);
    }
}

fn poll_or_pause(side: &Side<'_>) -> Option<Outcome> {
    let found = side.poll();
    if found.is_none() {
        std::thread::sleep(PAUSE);
    }
    found
}

fn ask(side: &Side<'_>, to: u64, what: u8) {
    side.start("fi_tinject", &Args::new(&mut [what], to), &[]);
}

/// Posts a receive, computes, and waits.
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

/// Posts a receive, and makes no call until the whole message has arrived.
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

/// Polls until the progress thread has stepped back, then makes no call until the last byte has arrived.
fn stop_polling(side: &Side<'_>, to: u64) {
    let (target, expected) = (memory(LENGTHS[3]), pattern(LENGTHS[3]));
    let last = Watched::new(&mut target[LENGTHS[3] - 1..]);
    let times = (0..10).map(|turn| {
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
    let shortest = times.min().unwrap();
    assert!(shortest < TAKEOVER, "{shortest:?}");
}

/// Sends several messages in a row, of which a device may gather the later ones, and makes no more calls. All
/// leave.
fn send_burst(side: &Side<'_>, to: u64) {
    let times = (0..10).map(|turn| {
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
    let shortest = times.min().unwrap();
    assert!(shortest < TAKEOVER / 2, "{shortest:?}");
}

/// Posts a receive, pauses for less than a tick, and polls for the message. The progress thread detects the
/// pauses and fetches the data meanwhile, if it has a processor: the client uses the first one, the thread
/// the second.
fn pause_mostly(side: &Side<'_>, to: u64) {
    let (target, expected) = (memory(LENGTHS[2]), pattern(LENGTHS[2]));
    let last = Watched::new(&mut target[LENGTHS[2] - 1..]);
    let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let mut first: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    unsafe {
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&before), &mut before), 0);
        libc::CPU_SET(0, &mut first);
        // Without permission for the first processor the affinity stays as it is.
        libc::sched_setaffinity(0, size_of_val(&first), &first);
    }
    let mut served = VecDeque::from([false; SHORT_TURNS]);
    let start = Instant::now();
    let mut turn = 0;
    let alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
    while served.iter().filter(|&&one| one).count() < SERVED && !(alone && turn == SHORT_TURNS) {
        assert!(start.elapsed() < PATIENCE, "data in fewer than {SERVED} of {SHORT_TURNS} turns; {turn} turns");
        target.fill(0);
        side.trecv(&mut target[..], DATA);
        ask(side, to, 2);
        let start = Instant::now();
        while start.elapsed() < SHORT_PAUSE {
            std::hint::spin_loop();
        }
        served.rotate_left(1);
        served[SHORT_TURNS - 1] = last.begun();
        turn += 1;
        assert_eq!(until(|| side.poll()).done().op_context as usize, DATA);
        assert_eq!(target[..], expected[..], "turn {turn}");
    }
    unsafe { libc::sched_setaffinity(0, size_of_val(&before), &before) };
}

type Read = unsafe extern "C" fn(*mut fid_domain, *mut u64, usize) -> c_int;

/// `struct weft_stats_ops` of fi_weft(7).
#[repr(C)]
struct Ops {
    size: usize,
    read: Read,
}

/// Reads the statistics into a buffer of `bytes` bytes. Words that are not written keep the value 77.
pub(crate) fn stats<const N: usize>(side: &Side<'_>, bytes: usize) -> [u64; N] {
    let domain = side.opened.domain;
    let mut ops: *mut c_void = null_mut();
    let mut words = [77; N];
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

fn stats_have_the_requested_length(side: &Side<'_>) {
    assert_eq!(stats(side, 8), [0, 77, 77]);
    assert_eq!(stats(side, 40), [0, 0, 0, 0, 0]);
    // A client of a later version gets zeros for unknown statistics.
    assert_eq!(stats(side, 48), [0; 6]);
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
