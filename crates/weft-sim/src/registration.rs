//! What a device of the fabric has registered, and the check that gets and puts touch nothing else.
//!
//! Place in the data flow: the engine's registration cache calls [`SimNic`] as a [`Registrar`]; `transfer` asks
//! [`State::check_registered`] before it moves bytes.
//!
//! Invariant: while registering takes its time, the whole fabric's time goes on, as the caller cannot do anything else.

use std::collections::{BTreeMap, VecDeque};

use weft_engine::mem::Iov;
use weft_engine::nic::{Demands, Refused, Registrar, Span};

use crate::fabric::State;
use crate::nic::SimNic;
use crate::trace::What;
use crate::transfer::Kind;
use crate::wire::Phase;

/// The registrations of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    by_number: BTreeMap<u64, Span>,
    next: u64,
    bytes: u64,
    watches: bool,
    /// An engine has asked what the device demands.
    by_engine: bool,
    reports: VecDeque<Span>,
}

impl Registered {
    fn covers(&self, span: &Span) -> bool {
        span.len == 0 || self.by_number.values().any(|one| one.contains(span))
    }

    /// Whether it waits to be asked what was unmapped.
    pub(crate) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// The memory is gone.
    pub(crate) fn unmapped(&mut self, iov: &Iov) {
        if self.watches {
            self.reports.push_back(span_of(iov));
        }
    }
}

fn span_of(iov: &Iov) -> Span {
    Span { start: iov.addr(), len: iov.len() as u64 }
}

impl State {
    /// A get, a put or the help with one is about to move bytes: both sides must have registered its memory, or else it fails. Where
    /// engines are at both ends, and nobody meddles, that is a violation.
    pub(crate) fn check_registered(&mut self, number: u64) -> bool {
        let Some(transfer) = self.transfers.get(&number).filter(|_| self.config.registration.is_some()) else {
            return true;
        };
        let remote = match &transfer.kind {
            Kind::Push { .. } => return true,
            // Help that comes too late moves nothing.
            Kind::Assist { of, .. } if self.transfers.get(of).is_none_or(|helped| helped.result.is_some()) => {
                return true;
            }
            Kind::Get { remote } | Kind::Put { remote } | Kind::Assist { remote, .. } => remote,
        };
        let mine = self.wires[transfer.end.wire].ends[transfer.end.side.index()].ep;
        let here = transfer.local.iter().all(|iov| self.endpoints[mine].registered.covers(&span_of(iov)));
        let peer = transfer.end.other();
        let peer = &self.wires[peer.wire].ends[peer.side.index()];
        // A peer that is gone, or has closed the link, answers for nothing.
        let answers = peer.phase == Phase::Up && self.endpoints.get(peer.ep).is_some_and(|endpoint| endpoint.alive);
        let there = !answers
            || remote
                .iter()
                .all(|piece| self.endpoints[peer.ep].registered.covers(&Span { start: piece.addr, len: piece.len }));
        let honest =
            self.endpoints.get(peer.ep).is_some_and(|peer| peer.registered.by_engine) && self.meddler.is_none();
        if !here {
            self.violation(mine, "a transfer of local memory that is not registered");
        }
        if !there && honest {
            self.violation(mine, "a transfer of remote memory that its owner has not registered");
        }
        here && there
    }
}

impl Registrar for SimNic {
    const REGISTERS: bool = true;

    fn demands(&self) -> Option<Demands> {
        let mut state = self.state.borrow_mut();
        state.endpoints[self.ep].registered.by_engine = true;
        state.config.registration.map(|registration| registration.demands)
    }

    fn register(&mut self, span: Span) -> Result<u64, Refused> {
        let mut state = self.state.borrow_mut();
        let Some(registration) = state.config.registration else { return Err(Refused::Memory) };
        let demands = registration.demands;
        if !(span.start | span.len).is_multiple_of(demands.align_bytes) {
            state.violation(self.ep, "a registration that is not aligned");
        }
        let fails_permille = state.config.faults.unregistrable_permille;
        if !state.memory.registrable(&span) || state.endpoints[self.ep].rng.chance(fails_permille) {
            state.stats.unregistrable += 1;
            return Err(Refused::Memory);
        }
        let registered = &mut state.endpoints[self.ep].registered;
        if registered.by_number.len() >= demands.regions || registered.bytes.saturating_add(span.len) > demands.bytes {
            state.stats.unregistrable += 1;
            return Err(Refused::Full);
        }
        registered.next += 1;
        let number = registered.next;
        registered.bytes += span.len;
        registered.by_number.insert(number, span);
        state.stats.registrations += 1;
        state.record(What::Register, self.ep, number, span.len, &[]);
        state.pass_now(demands.cost_ns);
        Ok(number)
    }

    fn deregister(&mut self, number: u64) {
        let mut state = self.state.borrow_mut();
        let registered = &mut state.endpoints[self.ep].registered;
        match registered.by_number.remove(&number) {
            Some(span) => registered.bytes -= span.len,
            None => state.violation(self.ep, "a registration ended twice"),
        }
        state.record(What::Deregister, self.ep, number, 0, &[]);
        let end_ns = state.config.registration.map_or(0, |registration| registration.end_ns);
        state.pass_now(end_ns);
    }

    fn watch(&mut self, _span: Span) -> bool {
        let mut state = self.state.borrow_mut();
        let observed = state.config.registration.is_some_and(|registration| registration.observed);
        state.endpoints[self.ep].registered.watches |= observed;
        observed
    }

    fn unmapped(&mut self) -> Option<Span> {
        self.state.borrow_mut().endpoints[self.ep].registered.reports.pop_front()
    }
}
