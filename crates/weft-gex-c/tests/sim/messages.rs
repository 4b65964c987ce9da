//! Active messages of simulated ranks, and the oracle of their runs.
//!
//! The oracle: each request is handled once, with its bytes. Each reply arrives once, after its request was sent. No
//! more requests are under way than the window allows. A message to or from a rank that died may be lost, but arrives
//! at most once. Every rank comes to the end of its program.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_gex::job::Job;
use weft_gex::sim::{Entity, Stream, complain, rest};
use weft_gex::table::Location;

use crate::client::*;

/// The longest payload.
const MOST_BYTES: usize = 700;
/// Places for the payloads of long messages of each sender. No more of them are under way than the window allows.
const PLACES: usize = 64;
const REQUEST: u8 = 200;
const REQUEST_SHORT: u8 = 201;
const REPLY: u8 = 202;
const REPLY_SHORT: u8 = 203;
const EXIT: u8 = 204;

const HANDLED: u8 = 1;
const REPLIED: u8 = 2;
const WANTS_REPLY: u8 = 4;

/// The form of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Short,
    Medium,
    Long,
    Prepared,
}

fn form(id: u32) -> Form {
    [Form::Short, Form::Medium, Form::Long, Form::Prepared][id as usize % 4]
}

/// The form of the reply to a request. `None`: it has none.
fn reply_form(id: u32) -> Option<Form> {
    [None, Some(Form::Short), Some(Form::Medium), Some(Form::Prepared)][(id / 4) as usize % 4]
}

fn mixed(id: u32) -> u32 {
    (id ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b1).rotate_left(13)
}

fn len_of(id: u32) -> usize {
    if form(id) == Form::Short { 0 } else { mixed(id) as usize % MOST_BYTES }
}

fn fill(bytes: &mut [u8], id: u32) {
    let first = mixed(id).to_le_bytes()[0];
    bytes.iter_mut().zip((0_u8..=250).cycle()).for_each(|(byte, at)| *byte = first.wrapping_add(at));
}

fn is_filled(bytes: &[u8], id: u32) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill(&mut expected, id);
    expected == bytes
}

/// The messages from one rank to another.
#[derive(Default)]
struct Pair {
    /// By number of request.
    states: Vec<u8>,
    handled: usize,
    /// The most requests that were under way.
    peak: usize,
    /// Messages may have been lost.
    is_excused: bool,
}

/// The facts of a run.
#[derive(Default)]
pub(crate) struct Oracle {
    ranks: u32,
    window: usize,
    pairs: Mutex<Vec<Pair>>,
    finished: AtomicU32,
    dead: AtomicU32,
    /// Failures that ranks were told of.
    told: AtomicU32,
}

thread_local! {
    static ORACLE: Cell<Option<(&'static Oracle, u32)>> = const { Cell::new(None) };
}

fn here() -> (&'static Oracle, u32) {
    ORACLE.get().unwrap_or_else(|| panic!("no rank"))
}

impl Oracle {
    pub(crate) fn new(ranks: u32, window: u16) -> &'static Self {
        let pairs = (0..ranks * ranks).map(|_| Pair::default()).collect();
        let new = Self { ranks, window: window.into(), pairs: Mutex::new(pairs), ..Self::default() };
        Box::leak(Box::new(new))
    }

    fn pair<R>(&self, from: u32, to: u32, work: impl FnOnce(&mut Pair) -> R) -> R {
        let mut pairs = self.pairs.lock().unwrap_or_else(|broken| broken.into_inner());
        work(&mut pairs[(from * self.ranks + to) as usize])
    }

    /// The least number of requests under way at their peak, of all pairs of ranks.
    pub(crate) fn least_peak(&self) -> usize {
        let pairs = (0..self.ranks).flat_map(|from| (0..self.ranks).map(move |to| (from, to)));
        let others = pairs.filter(|(from, to)| from != to);
        others.map(|(from, to)| self.pair(from, to, |pair| pair.peak)).min().unwrap_or(0)
    }

    pub(crate) fn told(&self) -> u32 {
        self.told.load(Ordering::Relaxed)
    }

    fn is_dead(&self, rank: u32) -> bool {
        self.dead.load(Ordering::Relaxed) & (1 << rank) != 0
    }

    /// Notes that a rank dies now.
    pub(crate) fn note_death(&self, rank: u32) {
        self.dead.fetch_or(1 << rank, Ordering::Relaxed);
        for other in 0..self.ranks {
            self.pair(rank, other, |pair| pair.is_excused = true);
            self.pair(other, rank, |pair| pair.is_excused = true);
        }
    }

    fn is_done(&self) -> bool {
        let open = |pair: &Pair| {
            !pair.is_excused && pair.states.iter().any(|state| state & HANDLED == 0 || state & 6 == WANTS_REPLY)
        };
        let dead = self.dead.load(Ordering::Relaxed).count_ones();
        let pairs = self.pairs.lock().unwrap_or_else(|broken| broken.into_inner());
        self.finished.load(Ordering::Relaxed) + dead >= self.ranks && !pairs.iter().any(open)
    }

    /// Notes an arrival.
    fn arrived(&self, from: u32, to: u32, id: u32, what: u8) {
        self.pair(from, to, |pair| {
            let Some(state) = pair.states.get_mut(id as usize) else {
                return complain(format!("message {id} of {from} to {to} was never sent"));
            };
            let before = if what == REPLIED { *state & (HANDLED | WANTS_REPLY) } else { WANTS_REPLY & *state };
            let expected = if what == REPLIED { HANDLED | WANTS_REPLY } else { *state & WANTS_REPLY };
            if *state & what != 0 || before != expected {
                complain(format!("message {id} of {from} to {to} has arrived in state {state}, as {what}"));
            }
            *state |= what;
            pair.handled += usize::from(what == HANDLED);
        });
    }
}

fn handle(token: *const c_void, bytes: &[u8], id: i32, source: i32) {
    let (oracle, rank) = here();
    let (id, source) = (id.cast_unsigned(), source.cast_unsigned());
    if bytes.len() != len_of(id) || !is_filled(bytes, id) {
        complain(format!("request {id} of {source} to {rank} has {} bytes, or wrong ones", bytes.len()));
    }
    oracle.arrived(source, rank, id, HANDLED);
    let args = [id.cast_signed(), rank.cast_signed()];
    let mut reply = [0; 40];
    fill(&mut reply, !id);
    match reply_form(id) {
        None => {}
        Some(Form::Prepared) => {
            let sd = gex_AM_PrepareReplyMedium(token, null(), 1, reply.len(), null_mut(), 0, 2);
            bytes_of(gex_AM_SrcDescAddr(sd), reply.len()).copy_from_slice(&reply);
            gex_weft_AM_CommitReplyMedium(sd, REPLY, reply.len(), 0, 2, args.as_ptr());
        }
        Some(Form::Medium) => {
            gex_weft_AM_ReplyMedium(token, REPLY, reply.as_ptr().cast(), reply.len(), NOW, 0, 2, args.as_ptr());
        }
        Some(_) => {
            gex_weft_AM_ReplyShort(token, REPLY_SHORT, 0, 2, args.as_ptr());
        }
    }
}

unsafe extern "C" fn on_request(token: *const c_void, body: *mut c_void, len: usize, id: i32, source: i32) {
    handle(token, bytes_of(body, len), id, source);
}

unsafe extern "C" fn on_request_short(token: *const c_void, id: i32, source: i32) {
    handle(token, &[], id, source);
}

unsafe extern "C" fn on_reply(_: *const c_void, body: *mut c_void, len: usize, id: i32, source: i32) {
    let (oracle, rank) = here();
    if !is_filled(bytes_of(body, len), !id.cast_unsigned()) {
        complain(format!("the reply to {id} has wrong bytes"));
    }
    oracle.arrived(rank, source.cast_unsigned(), id.cast_unsigned(), REPLIED);
}

unsafe extern "C" fn on_reply_short(_: *const c_void, id: i32, source: i32) {
    let (oracle, rank) = here();
    oracle.arrived(rank, source.cast_unsigned(), id.cast_unsigned(), REPLIED);
}

unsafe extern "C" fn on_exit(_: *const c_void, code: i32, _: i32) {
    gasnet_exit(code)
}

unsafe extern "C" fn on_failure(_: u32) {
    here().0.told.fetch_add(1, Ordering::Relaxed);
}

/// An event between the messages of a rank.
pub(crate) trait Events: Sync {
    /// Between a preparation and its commit.
    fn between(&self, _rank: u32, _to: u32, _id: u32) {}
    /// After a request.
    fn after(&self, _rank: u32, _id: u32) {}
}

/// Nothing happens.
pub(crate) struct Quiet;

impl Events for Quiet {}

/// Prepares a rank for messages.
pub(crate) fn set_up(job: &'static Job, oracle: &'static Oracle, tolerant: bool) {
    ORACLE.set(Some((oracle, job.rank())));
    type Payload = unsafe extern "C" fn(*const c_void, *mut c_void, usize, i32, i32);
    type Short = unsafe extern "C" fn(*const c_void, i32, i32);
    register!(job,
        REQUEST => on_request, Payload, 2;
        REQUEST_SHORT => on_request_short, Short, 2;
        REPLY => on_reply, Payload, 2;
        REPLY_SHORT => on_reply_short, Short, 2;
        EXIT => on_exit, Short, 2;
    );
    if tolerant {
        gexw_System_SetFailureHandler(Some(on_failure));
    }
    let bytes = (PLACES * MOST_BYTES * oracle.ranks as usize).next_multiple_of(4096);
    assert_eq!(gex_Segment_Attach(&mut null(), gex_weft_tm0(), bytes), 0);
}

/// Sends a message after which the target exits in a handler.
pub(crate) fn ask_to_exit(to: u32, code: c_int) {
    gex_weft_AM_RequestShort(gex_weft_tm0(), to, EXIT, 0, 2, [code, 0].as_ptr());
}

/// The place of a long message at its target.
fn place(job: &Job, to: u32, id: u32) -> *mut c_void {
    let base = job.segment_base(Location::new(to, 0)).unwrap_or(0);
    let at = job.rank() as usize * PLACES + (id as usize / 4) % PLACES;
    std::ptr::with_exposed_provenance_mut(base + at * MOST_BYTES)
}

/// Sends a request in its form. Returns whether it was sent.
fn send(job: &Job, to: u32, id: u32, flags: u32, events: &dyn Events) -> bool {
    let (tm, args) = (gex_weft_tm0(), [id.cast_signed(), job.rank().cast_signed()]);
    let mut body = vec![0; len_of(id)];
    fill(&mut body, id);
    let (source, len, args) = (body.as_ptr().cast(), body.len(), args.as_ptr());
    0 == match form(id) {
        Form::Short => gex_weft_AM_RequestShort(tm, to, REQUEST_SHORT, flags, 2, args),
        Form::Medium => gex_weft_AM_RequestMedium(tm, to, REQUEST, source, len, NOW, flags, 2, args),
        Form::Long => gex_weft_AM_RequestLong(tm, to, REQUEST, source, len, place(job, to, id), NOW, flags, 2, args),
        Form::Prepared => {
            let sd = gex_AM_PrepareRequestMedium(tm, to, null(), len, len, null_mut(), flags, 2);
            bytes_of(gex_AM_SrcDescAddr(sd), len).copy_from_slice(&body);
            events.between(job.rank(), to, id);
            let refused = gex_weft_AM_CommitRequestMedium(sd, REQUEST, len, flags, 2, args);
            if refused != 0 {
                gex_AM_CancelRequestMedium(sd, 0);
            }
            refused
        }
    }
}

/// Sends requests to random ranks, then waits until all are handled and answered.
pub(crate) fn exchange(job: &'static Job, oracle: &'static Oracle, seed: u64, requests: usize, events: &dyn Events) {
    let rank = job.rank();
    let mut rng = Stream::new(seed, Entity::Workload(rank as usize));
    let mut left = requests;
    while left > 0 {
        let to = (rank + 1 + u32::try_from(rng.index(oracle.ranks as usize - 1)).unwrap_or(0)) % oracle.ranks;
        // Bursts to one rank exhaust its credit.
        for _ in 0..rng.between(1, 2 * oracle.window).min(left) {
            left -= 1;
            let flags = if rng.chance(300) { IMMEDIATE } else { 0 };
            let id = oracle.pair(rank, to, |pair| {
                let id = u32::try_from(pair.states.len()).unwrap_or(0);
                pair.states.push(if reply_form(id).is_some() { WANTS_REPLY } else { 0 });
                id
            });
            if send(job, to, id, flags, events) {
                oracle.pair(rank, to, |pair| {
                    let under_way = pair.states.len() - pair.handled;
                    pair.peak = pair.peak.max(under_way);
                    if under_way > oracle.window && !pair.is_excused {
                        complain(format!("{under_way} requests of {rank} to {to} are under way"));
                    }
                });
            } else {
                let refused_well = flags != 0 || (oracle.is_dead(to) && gexw_System_HasFailed(to) != 0);
                if !refused_well {
                    complain(format!("request {id} of {rank} to {to} was refused"));
                }
                oracle.pair(rank, to, |pair| pair.states.pop());
            }
            events.after(rank, id);
            if rng.chance(50) {
                gasnet_AMPoll();
                rest();
            }
        }
        rest();
    }
    oracle.finished.fetch_add(1, Ordering::Relaxed);
    // A rank that is left learns of each death, or is ended by it.
    while !oracle.is_done() || (0..oracle.ranks).any(|rank| oracle.is_dead(rank) && gexw_System_HasFailed(rank) == 0) {
        gasnet_AMPoll();
        rest();
    }
}
