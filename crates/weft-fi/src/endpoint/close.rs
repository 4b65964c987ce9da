//! Closing an endpoint: nothing that was sent is lost, nothing is waited for without a bound.
//!
//! Place in the data flow: `fi_close(ep)`, once no alias is left. Clients do not flush before they close (an
//! injected message may be the last thing a process does), so what was accepted must leave first. Completions
//! of operations that were still under way are discarded, as fi_endpoint(3) says of close; those that are in
//! queues stay there. Receives of a shared context are not the endpoint's own: those that it has taken are
//! reported, done or failed, so that nobody waits for their buffers.
//!
//! Meanwhile peers are served as before, so regions that another thread closes leave the engine, too
//! ([`crate::domain::Domain::retire`]).

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weft_nic::Device;

use crate::endpoint::Ep;
use crate::endpoint::cell::Eng;
use crate::endpoint::connection::OpenedFrom;
use crate::sleep::flusher;

/// Fruitless rounds before the closing thread starts to sleep between them.
const BUSY_ROUNDS: u32 = 1000;
/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(50);

impl Ep {
    /// Takes the endpoint out of everything that drives it, lets the engine finish, and drops it.
    pub(super) fn shut(&self) {
        self.take_apart();
        flusher::leave(&self.cell);
    }

    fn take_apart(&self) {
        let mut setup = self.setup.lock();
        if let Some(auto) = self.domain.auto_progress() {
            auto.leave(&self.cell);
        }
        if let Some(av) = setup.av.take() {
            av.detach(&self.cell);
        }
        let engine = self.domain.retire(&self.cell);
        let mut routes = self.cell.control().take_routes();
        if let Some(request) = routes.reports().and_then(|reports| reports.request.take()) {
            request.abandon();
        }
        self.domain.work().forget(&self.cell);
        routes.detach(&self.cell);
        if let Some(eq) = setup.eq.take() {
            eq.drivers().remove(&self.cell);
        }
        setup.opened_from = OpenedFrom::Nothing;
        let srx = setup.srx.take();
        if let Some(shared) = srx.as_ref().and_then(|srx| srx.receives()) {
            shared.detach(&self.cell);
        }
        setup.stx = None;
        setup.enabled = false;
        if let Some(engine) = engine {
            {
                let mut engine = engine.lock();
                self.domain.count_dropped(engine.dropped());
                // What comes now would take receives that other endpoints have a use for.
                engine.leave_pool();
            }
            let limit = Duration::from_millis(self.domain.params().close_timeout_ms);
            if srx.is_none() {
                finish(&engine, limit, |engine| engine.completions().clear());
                self.domain.closed(&engine);
                return;
            }
            // As the progress thread does: no threading level covers who closes.
            routes.visited = true;
            let mut fired = false;
            let mut hand_on = |engine: &mut Eng| fired |= routes.deliver_received(engine);
            finish(&engine, limit, &mut hand_on);
            self.domain.closed(&engine);
            // Closing a region may have moved something on.
            hand_on(&mut engine.lock());
            drop(engine);
            routes.end_visits();
            drop(setup);
            if fired {
                self.domain.work().run();
            }
        }
    }
}

/// Progresses until all that was accepted has left, and says goodbye, so that the engine may be dropped; each
/// within the time. `hand_on` empties the list of completions. Between two rounds others may enter. In a
/// forked child, whose devices these are not, nothing is done.
pub(crate) fn finish(engine: &Mutex<Box<Eng>>, limit: Duration, mut hand_on: impl FnMut(&mut Eng)) {
    if !engine.lock().nic().is_ours() {
        return;
    }
    hand_on(&mut engine.lock());
    if !settle(engine, limit, Eng::quiescent, &mut hand_on) {
        log::warn!(
            "closing an endpoint whose peers have not taken everything within {} ms: they make no calls, or are gone; what is left is \
             lost: let them go on, or allow more time (FI_WEFT_CLOSE_TIMEOUT_MS)",
            limit.as_millis()
        );
    }
    {
        let mut engine = engine.lock();
        engine.shutdown();
        hand_on(&mut engine);
    }
    settle(engine, limit, |engine| weft_engine::nic::Nic::drained(engine.nic()), &mut hand_on);
}

/// Whether `done` came true within the time.
fn settle(
    engine: &Mutex<Box<Eng>>,
    limit: Duration,
    done: impl Fn(&Eng) -> bool,
    hand_on: &mut impl FnMut(&mut Eng),
) -> bool {
    let end = Instant::now() + limit;
    let mut fruitless = 0;
    loop {
        let moved = {
            let mut engine = engine.lock();
            if done(&engine) {
                return true;
            }
            let moved = engine.progress() > 0;
            hand_on(&mut engine);
            moved
        };
        if moved {
            fruitless = 0;
        } else {
            fruitless += 1;
            if Instant::now() >= end {
                return false;
            }
            if fruitless < BUSY_ROUNDS { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
    }
}
