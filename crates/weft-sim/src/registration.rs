//! The registrations of a device, and the check that gets and puts touch nothing else.
//!
//! Place in the data flow: the engine's registration cache calls [`SimNic`] as a [`Registrar`]; `transfer`
//! calls [`FabricState::check_registered`] before it moves bytes.
//!
//! Invariant: registering blocks the caller, so the time of the whole fabric advances meanwhile.

use std::collections::{BTreeMap, VecDeque};

use weft_engine::mem::Iov;
use weft_engine::nic::{Demands, Refused, Registrar, Span};

use crate::fabric::FabricState;
use crate::nic::SimNic;
use crate::trace::TraceEvent;
use crate::transfer::Kind;
use crate::wire::Phase;

/// The registrations of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    by_number: BTreeMap<u64, Span>,
    next: u64,
    bytes: u64,
    watches: bool,
    /// Registered copies that the engine made, which lie in no buffer: their addresses and places.
    copies: Vec<(Span, Span)>,
    /// Set once an engine has asked for the device's demands.
    by_engine: bool,
    reports: VecDeque<Span>,
}

impl Registered {
    fn covers(&self, span: &Span) -> bool {
        span.len == 0 || self.by_number.values().any(|one| one.contains(span))
    }

    /// Whether unmapped memory has been reported and not taken.
    pub(crate) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    fn covers_copy(&self, copy: &Span) -> bool {
        self.copies.iter().any(|(whole, place)| whole.contains(copy) && self.covers(place))
    }

    /// Records that the memory at this place is unmapped, if that is reported.
    pub(crate) fn unmapped(&mut self, place: Span) -> bool {
        if self.watches {
            self.reports.push_back(place);
        }
        self.watches
    }
}

impl FabricState {
    fn is_registered(&self, ep: usize, memory: &Span) -> bool {
        let registered = &self.endpoints[ep].registered;
        let known = self.memory.place(memory);
        memory.len == 0 || known.map_or_else(|| registered.covers_copy(memory), |place| registered.covers(&place))
    }

    /// Checks that both sides of a get, put or assist have registered its memory before bytes move; the
    /// transfer fails otherwise. With engines at both ends and no interceptor, a failed check is a violation.
    pub(crate) fn check_registered(&mut self, number: u64) -> bool {
        let Some(transfer) = self.transfers.get(&number).filter(|_| self.config.registration.is_some()) else {
            return true;
        };
        let remote = match &transfer.kind {
            Kind::Push { .. } => return true,
            // An assist that comes too late moves nothing.
            Kind::Assist { of, .. } if self.transfers.get(of).is_none_or(|helped| helped.result.is_some()) => {
                return true;
            }
            Kind::Get { remote } | Kind::Put { remote } | Kind::Assist { remote, .. } => remote,
        };
        let mine = self.wires[transfer.end.wire].ends[transfer.end.side.index()].ep;
        let here = transfer.local.iter().all(|iov| self.is_registered(mine, &iov.into()));
        let peer = transfer.end.other();
        let peer = &self.wires[peer.wire].ends[peer.side.index()];
        // A peer that has gone or closed the link need not have its memory registered.
        let answers = peer.phase == Phase::Up && self.endpoints.get(peer.ep).is_some_and(|endpoint| endpoint.alive);
        let there = !answers
            || remote.iter().all(|piece| self.is_registered(peer.ep, &Span { start: piece.addr, len: piece.len }));
        let honest =
            self.endpoints.get(peer.ep).is_some_and(|peer| peer.registered.by_engine) && self.interceptor.is_none();
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

    /// Each copy that the engine makes gets a new place: the addresses that the allocator chose must not
    /// matter.
    fn span(&mut self, memory: &Iov) -> Span {
        let mut state = self.state.borrow_mut();
        let memory = Span::from(memory);
        if let Some(place) = state.memory.place(&memory) {
            return place;
        }
        let place = state.memory.new_place(memory.len);
        let registered = &mut state.endpoints[self.ep].registered;
        let mut copies = std::mem::take(&mut registered.copies);
        copies.retain(|(_, at)| registered.covers(at));
        copies.push((memory, place));
        registered.copies = copies;
        place
    }

    fn register(&mut self, span: Span) -> Result<u64, Refused> {
        let mut state = self.state.borrow_mut();
        let Some(registration) = state.config.registration else { return Err(Refused::Memory) };
        let demands = registration.demands;
        if !(span.start | span.len).is_multiple_of(demands.align_bytes) {
            state.violation(self.ep, "a registration that is not aligned");
        }
        let fails_permille = state.config.faults.unregistrable_permille;
        if !state.memory.registrable(&span)
            || !state.is_special(&span)
            || state.endpoints[self.ep].rng.chance(fails_permille)
        {
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
        state.record(TraceEvent::Register, self.ep, number, span.len, &[]);
        state.advance_by(demands.cost_ns);
        Ok(number)
    }

    fn deregister(&mut self, number: u64) {
        let mut state = self.state.borrow_mut();
        let registered = &mut state.endpoints[self.ep].registered;
        match registered.by_number.remove(&number) {
            Some(span) => registered.bytes -= span.len,
            None => state.violation(self.ep, "a registration ended twice"),
        }
        state.record(TraceEvent::Deregister, self.ep, number, 0, &[]);
        let end_ns = state.config.registration.map_or(0, |registration| registration.end_ns);
        state.advance_by(end_ns);
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
