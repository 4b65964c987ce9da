//! `gexw_RMA_PutSignal…`: a put, and an atomic operation at the target that is performed when the data is there.
//!
//! Within a neighbourhood the call performs both. Elsewhere the target performs a short put and its signal in the order
//! of their link, so both leave at once. The signal of a longer put waits for the put (`weft_gex::after`).

use std::ffi::{c_int, c_void};

use weft_gex::after::{Act, Wait};
use weft_gex::atomic::{Op, Operands};
use weft_gex::combine::Type;
use weft_gex::event::{Category, Slot};
use weft_gex::far::{Access, Update};
use weft_gex::fatal;
use weft_gex::memory::{Piece, Way};
use weft_gex::table::Place;
use weft_gex::wait;

use crate::address;
use crate::after::{self, By};
use crate::event::{Event, done_locally, start_access};
use crate::handles::{ERR_RESOURCE, OK, Tm, export, job};

/// Bytes of a signal.
const SIGNAL_BYTES: usize = 8;

/// The number at the target that tells of a put.
#[derive(Clone, Copy)]
struct Signal {
    addr: *mut u64,
    value: u64,
    op: u32,
}

/// The data of a put with a signal.
#[derive(Clone, Copy)]
struct Data {
    dest: *mut c_void,
    source: *const c_void,
    bytes: usize,
}

/// A put and its signal, as operations.
struct Pair {
    data: Access,
    signal: Update,
}

impl Pair {
    fn new(tm: Tm, rank: u32, (data, signal): (Data, Signal), flags: u32) -> Self {
        let job = job();
        let at = tm.at(job, rank);
        let known = Op::from_code(signal.op).filter(|(op, fetches)| !fetches && !matches!(op, Op::Cas | Op::Get));
        let Some((op, _)) = known else {
            fatal!(
                "a signal has operation {:#x}; pass GEX_OP_SET, GEX_OP_ADD or another one that fetches nothing",
                signal.op
            );
        };
        let remote = address::at_peer(job, at, signal.addr.cast(), flags);
        if !remote.is_multiple_of(SIGNAL_BYTES) {
            fatal!("the signal at {remote:#x} is not aligned; align it to {SIGNAL_BYTES} bytes");
        }
        let operands = Operands { first: signal.value, second: 0 };
        let signal = Update { at, remote, ty: Type::U64, op, operands, result: 0 };
        let local = address::here(job, tm, data.source, flags).expose_provenance();
        let remote = address::at_peer(job, at, data.dest, flags);
        Self { data: Access { at, way: Way::Put, local, remote, bytes: data.bytes }, signal }
    }

    fn place_of_data(&self) -> Place {
        job().place(self.data.at, Piece { addr: self.data.remote, bytes: self.data.bytes })
    }

    fn place_of_signal(&self) -> Place {
        job().place(self.signal.at, Piece { addr: self.signal.remote, bytes: SIGNAL_BYTES })
    }

    /// Copies the data, and performs the signal.
    fn perform(&self) {
        let Access { at, local, remote, bytes, .. } = self.data;
        if bytes > 0 {
            job().put(at, remote, Piece { addr: local, bytes });
        }
        job().update_here(&self.signal);
    }

    /// Ends the job unless both addresses are in segments.
    fn check(&self) {
        if !matches!(self.place_of_signal(), Place::Here(_) | Place::Remote) {
            fatal!(
                "the signal at {:#x} is not in a segment of rank {} that the library has allocated; pass an address of such a segment",
                self.signal.remote,
                self.signal.at.rank()
            );
        }
        if self.data.bytes > 0 && self.place_of_data() == Place::Nowhere {
            // It reports the address.
            self.perform();
        }
    }

    /// Starts both.
    fn start(&self, lc: *mut Event, by: By) -> Event {
        self.check();
        let wait = after::take();
        let is_remote = self.place_of_signal() == Place::Remote;
        let rank = self.data.at.rank();
        let has_turn = is_remote && self.data.has_turn();
        match wait {
            None if !is_remote => {
                self.perform();
                done_locally(lc);
                Event::INVALID
            }
            None if has_turn => self.start_in_turn(lc, by),
            Some(wait) if has_turn && wait.is_in_turn(rank) => {
                let _ = wait.end();
                self.start_in_turn(lc, by)
            }
            wait => self.start_in_steps(wait, lc, by),
        }
    }

    /// Starts both at once: the target keeps their order.
    fn start_in_turn(&self, lc: *mut Event, by: By) -> Event {
        let (slot, event) = by.slot(Category::Put);
        if self.data.bytes > 0 {
            slot.add();
        }
        match self.data.bytes {
            0 => done_locally(lc),
            _ if self.data.is_copied() => {
                job().start_followed(&self.data, slot);
                done_locally(lc);
            }
            _ => start_access(&self.data, slot, lc),
        }
        job().start_update(&self.signal, slot);
        job().flush();
        if by == By::Event {
            slot.set_turn(self.data.at.rank());
        }
        event
    }

    /// The data first, after the wait if there is one, and the signal when the data is there.
    fn start_in_steps(&self, wait: Option<Wait>, lc: *mut Event, by: By) -> Event {
        let stored = Slot::take();
        // The wait knows the slot before anything can complete it.
        let signal = Wait::for_own(stored);
        match wait {
            Some(wait) => wait.leave(job(), after::act(&self.data, lc), Some(stored)),
            None => start_access(&self.data, stored, lc),
        }
        let (slot, event) = by.slot(Category::Put);
        signal.leave(job(), Act::Update(self.signal), Some(slot));
        event
    }
}

export! {
    fn gexw_RMA_PutSignalNB(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, signal: *mut u64, value: u64, op: u32, lc: *mut Event, flags: u32) -> Event {
        let data = Data { dest, source, bytes };
        Pair::new(tm, rank, (data, Signal { addr: signal, value, op }), flags).start(lc, By::Event)
    }

    fn gexw_RMA_PutSignalNBI(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, signal: *mut u64, value: u64, op: u32, lc: *mut Event, flags: u32) -> c_int {
        let data = Data { dest, source, bytes };
        Pair::new(tm, rank, (data, Signal { addr: signal, value, op }), flags).start(lc, By::Count);
        OK
    }

    fn gexw_RMA_PutSignalBlocking(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, signal: *mut u64, value: u64, op: u32, flags: u32) -> c_int {
        if !after::pass() {
            return ERR_RESOURCE;
        }
        let data = Data { dest, source, bytes };
        let event = Pair::new(tm, rank, (data, Signal { addr: signal, value, op }), flags).start(std::ptr::null_mut(), By::Event);
        if let Some(slot) = event.known() {
            wait::until(job(), || slot.test());
        }
        OK
    }
}
