//! Closing an endpoint: nothing that was sent is lost, nothing is waited for without a bound.
//!
//! Place in the data flow: `fi_close(ep)`, once no alias is left. Clients do not flush before they close (an
//! injected message may be the last thing a process does), so what was accepted must leave first. Completions of
//! operations that were still under way are discarded, as fi_endpoint(3) says of close; those that are in queues
//! stay there.

use std::sync::Weak;
use std::time::{Duration, Instant};

use crate::endpoint::Ep;
use crate::endpoint::core::Eng;
use crate::flusher;

/// Fruitless rounds before the closing thread starts to sleep between them.
const BUSY_ROUNDS: u32 = 1000;
/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(50);

impl Ep {
    /// Takes the endpoint out of everything that drives it, lets the engine finish, and drops it.
    pub(super) fn shut(&self) {
        let mut setup = self.setup.lock();
        flusher::leave(&self.core);
        if let Some(auto) = self.domain.auto_progress() {
            auto.leave(&self.core);
        }
        if let Some(av) = setup.av.take() {
            av.detach(&self.core);
        }
        self.domain.detach(&self.core);
        let mut state = self.core.control();
        let engine = state.engine.take();
        let routes = std::mem::take(&mut state.routes);
        state.publisher = None;
        drop(state);
        self.domain.work().forget(&self.core);
        for cq in [&routes.tx, &routes.rx].into_iter().flatten() {
            cq.sources().remove(&self.core);
        }
        for cntr in routes.counters.iter().flatten() {
            cntr.sources().remove(&self.core);
        }
        for cq in routes.foreign.iter().filter_map(Weak::upgrade) {
            cq.sources().remove(&self.core);
        }
        for cntr in routes.drivers.iter().filter_map(Weak::upgrade) {
            cntr.sources().remove(&self.core);
        }
        if let Some(eq) = setup.eq.take() {
            eq.drivers().remove(&self.core);
        }
        (setup.request, setup.devices) = (None, None);
        if let Some(srx) = setup.srx.take() {
            srx.receives().inspect(|shared| shared.detach(&self.core));
        }
        setup.stx = None;
        setup.enabled = false;
        if let Some(mut engine) = engine {
            self.domain.count_dropped(engine.dropped());
            // What comes now would take receives that other endpoints have a use for.
            engine.leave_pool();
            finish(engine, Duration::from_millis(self.domain.params().close_timeout_ms));
        }
    }
}

/// Progresses until all that was accepted has left, says goodbye, and drops the engine; each within the time.
pub(crate) fn finish(mut engine: Eng, limit: Duration) {
    if !settle(&mut engine, limit, Eng::quiescent) {
        log::warn!(
            "closing an endpoint whose peers have not taken everything within {} ms (FI_WEFT_CLOSE_TIMEOUT_MS)",
            limit.as_millis()
        );
    }
    engine.shutdown();
    settle(&mut engine, limit, |engine| weft_engine::nic::Nic::drained(engine.nic()));
}

/// Whether `done` came true within the time.
fn settle(engine: &mut Eng, limit: Duration, done: impl Fn(&Eng) -> bool) -> bool {
    let end = Instant::now() + limit;
    let mut fruitless = 0;
    while !done(engine) {
        if engine.progress() > 0 {
            fruitless = 0;
        } else {
            fruitless += 1;
            if Instant::now() >= end {
                return false;
            }
            if fruitless < BUSY_ROUNDS { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
        engine.completions().clear();
    }
    true
}
