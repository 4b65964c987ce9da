//! Closing an endpoint: accepted operations leave first, within a time limit.
//!
//! Place in the data flow: `fi_close(ep)`, when the endpoint has no aliases. Clients do not flush before they close: an
//! injected message may be the last call of a process. Accepted operations must therefore leave first. Completions of
//! operations that are under way are discarded, as fi_endpoint(3) defines for close. Entries in queues stay there.
//! Receives of a shared context do not belong to the endpoint. The endpoint reports those that it has taken, as done or
//! failed, so that the client can reuse their buffers.
//!
//! Peers are served meanwhile. Regions that another thread closes are therefore removed from the engine as well
//! ([`crate::domain::Domain::retire`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weft_engine::Engine;
use weft_nic::Device;

use crate::endpoint::Ep;
use crate::endpoint::cell::CellRef;
use crate::endpoint::connection::OpenedFrom;
use crate::observe::report;
use crate::record;
use crate::sleep::flusher;

/// Fruitless rounds before the closing thread starts to sleep between them.
const BUSY_ROUNDS: u32 = 1000;
/// The time of such a sleep.
const NAP: Duration = Duration::from_micros(50);

impl<D: Device> Ep<D> {
    /// Removes the endpoint from all objects that drive it, lets the engine finish, and drops it.
    pub(super) fn shut(&self) {
        let cell = Arc::clone(&self.cell) as CellRef;
        self.dismantle(&cell);
        flusher::leave(&cell);
        report::closed(&cell);
        if self.domain.is_recorded() {
            record::closed();
        }
    }

    fn dismantle(&self, cell: &CellRef) {
        let mut setup = self.setup.lock();
        if let Some(auto) = self.domain.auto_progress() {
            auto.leave(cell);
        }
        if let Some(av) = setup.av.take() {
            av.detach(cell);
        }
        let engine = self.domain.retire(&self.cell);
        let (mut routes, mut part) = self.cell.control().take_routes();
        if let Some(request) = routes.reports().and_then(|reports| reports.request.take()) {
            request.abandon();
        }
        self.domain.work().forget(cell.id());
        routes.detach(cell);
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
                // Later messages must not take receives that other endpoints can use.
                engine.leave_pool();
            }
            let limit = Duration::from_millis(self.domain.params().close_timeout_ms);
            let failures = routes.failures();
            let sent = |engine: &mut Engine<D>| {
                if let Some(part) = &mut part {
                    part.update(engine, failures, false);
                }
            };
            if srx.is_none() {
                finish(&engine, limit, |engine| engine.completions().clear(), sent);
                self.domain.closed(&engine);
                return;
            }
            // The threading level does not cover the closing thread. It enters queues as the progress thread does.
            routes.visited = true;
            let mut fired = false;
            let mut deliver = |engine: &mut Engine<D>| fired |= routes.deliver_received(engine);
            finish(&engine, limit, &mut deliver, sent);
            self.domain.closed(&engine);
            // The close of a region may have completed receives.
            deliver(&mut engine.lock());
            drop(engine);
            routes.end_visits();
            drop(setup);
            if fired {
                self.domain.work().run();
            }
        }
    }
}

/// Makes progress until all accepted operations have left, then shuts the engine down, so that it can be
/// dropped. Each of the two takes at most `limit`. `deliver` empties the list of completions; `sent` gets the engine
/// before its links are closed. Other threads may enter the engine between two rounds. In a forked child, which must
/// not use its parent's devices, nothing is done.
pub(crate) fn finish<D: Device>(
    engine: &Mutex<Box<Engine<D>>>,
    limit: Duration,
    mut deliver: impl FnMut(&mut Engine<D>),
    sent: impl FnOnce(&mut Engine<D>),
) {
    if !engine.lock().nic().is_ours() {
        return;
    }
    deliver(&mut engine.lock());
    if !progress_until(engine, limit, Engine::quiescent, &mut deliver) {
        log::warn!(
            "closing an endpoint whose peers have not taken all messages within {} ms: they make no calls, or have ended; the remaining \
             messages are lost: let the peers make calls, or allow more time (FI_WEFT_CLOSE_TIMEOUT_MS)",
            limit.as_millis()
        );
    }
    {
        let mut engine = engine.lock();
        sent(&mut engine);
        engine.shutdown();
        deliver(&mut engine);
    }
    progress_until(engine, limit, |engine| weft_engine::nic::Nic::drained(engine.nic()), &mut deliver);
}

/// Makes progress until `done` is true. Returns `false` if that takes longer than `limit`.
fn progress_until<D: Device>(
    engine: &Mutex<Box<Engine<D>>>,
    limit: Duration,
    done: impl Fn(&Engine<D>) -> bool,
    deliver: &mut impl FnMut(&mut Engine<D>),
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
            deliver(&mut engine);
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
