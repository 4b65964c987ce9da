//! `gasnet_barrier…` and `gex_Coll_Barrier…`.

use std::ffi::c_int;

use weft_gex::barrier::Outcome;
use weft_gex::coll::Collective;
use weft_gex::fatal;
use weft_gex::wait;

use crate::coll::start;
use crate::event::Event;
use crate::handles::{ERR_BARRIER_MISMATCH, ERR_NOT_READY, ERR_RESOURCE, OK, Tm, export, job, put};

fn notify(id: c_int, flags: c_int) {
    if job().notify_barrier(id, flags.cast_unsigned()) == Outcome::Begun {
        fatal!("a barrier was begun twice; end it with gasnet_barrier_wait before the next");
    }
}

fn try_end(id: c_int, flags: c_int) -> c_int {
    match job().try_barrier(id, flags.cast_unsigned()) {
        Outcome::Matched => OK,
        Outcome::Mismatch => ERR_BARRIER_MISMATCH,
        Outcome::NotReady => ERR_NOT_READY,
        Outcome::Lost => ERR_RESOURCE,
        Outcome::NotBegun | Outcome::Begun => {
            fatal!("a barrier was ended that was not begun; call gasnet_barrier_notify first")
        }
    }
}

fn end(id: c_int, flags: c_int) -> c_int {
    let mut code = ERR_NOT_READY;
    wait::until_woken(job(), || {
        code = try_end(id, flags);
        code != ERR_NOT_READY
    });
    code
}

export! {
    fn gasnet_barrier_notify(id: c_int, flags: c_int) {
        notify(id, flags);
        job().poll();
    }

    fn gasnet_barrier_wait(id: c_int, flags: c_int) -> c_int {
        end(id, flags)
    }

    fn gasnet_barrier_try(id: c_int, flags: c_int) -> c_int {
        job().poll();
        try_end(id, flags)
    }

    fn gasnet_barrier(id: c_int, flags: c_int) -> c_int {
        notify(id, flags);
        end(id, flags)
    }

    fn gasnet_barrier_result(id: *mut c_int) -> c_int {
        match job().barrier_result() {
            Some(number) => {
                // SAFETY: the client's pointer is writable.
                unsafe { put(id, number) };
                0
            }
            None => 1,
        }
    }

    fn gex_Coll_BarrierNB(tm: Tm, _flags: u32) -> Event {
        start(tm, &Collective::Barrier)
    }

    fn gex_Coll_BarrierBlocking(tm: Tm, _flags: u32) {
        tm.team().pass_barrier(job());
    }
}
