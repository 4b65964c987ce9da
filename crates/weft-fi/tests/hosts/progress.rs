//! Automatic progress for a client that comes and goes, and what the provider counts meanwhile.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::Lib;
use crate::side::{Args, Side, Watched, acquaint, memory, pattern, until};

/// Lengths of messages: inside a header, beside it, fetched.
const LENGTHS: [usize; 3] = [8, 3000, 64 << 10];
const ITERATIONS: usize = 1500;
/// What the client computes between posting and waiting.
const WORK: Duration = Duration::from_micros(30);
const ASK: usize = 0x10;
const DATA: usize = 0x20;
const AWAY: Duration = Duration::from_millis(20);

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
    let (ask, data) = (memory(1), pattern(LENGTHS[2]));
    loop {
        side.trecv(ask, ASK);
        assert_eq!(until(|| side.poll()).done().op_context as usize, ASK);
        let Some(&len) = LENGTHS.get(usize::from(ask[0])) else { return };
        side.start("fi_tsend", &Args { context: DATA, ..Args::new(&mut data[..len], to) }, &[]);
        assert_eq!(until(|| side.poll()).done().op_context as usize, DATA);
    }
}

fn ask(side: &Side<'_>, to: u64, what: u8) {
    side.start("fi_tinject", &Args::new(&mut [what], to), &[]);
}

/// Posts, computes, waits.
fn come_and_go(side: &Side<'_>, to: u64) {
    let (target, expected) = (memory(LENGTHS[2]), pattern(LENGTHS[2]));
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

/// Posts, and calls nothing until everything is there; in the end it asks for nothing more.
fn go_away(side: &Side<'_>, to: u64) {
    let (target, expected) = (memory(LENGTHS[2]), pattern(LENGTHS[2]));
    let watched = Watched::new(target);
    side.trecv(target, DATA);
    std::thread::sleep(AWAY);
    ask(side, to, 2);
    until(|| watched.begun().then_some(()));
    until(|| (watched.bytes()[..] == expected[..]).then_some(()));
    assert_eq!(until(|| side.poll()).done().op_context as usize, DATA);
    ask(side, to, LENGTHS.len() as u8);
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
