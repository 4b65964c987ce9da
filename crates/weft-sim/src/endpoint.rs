//! An endpoint of the fabric, and the set of endpoints whose device may have something new.
//!
//! Place in the data flow: due events enter an endpoint's inbox, and `poll` takes them from there. The cluster asks
//! which endpoints are stirred, so that a turn's cost does not depend on the number of idle ones.
//!
//! Invariant: an endpoint for whose device a round of progress could find something new is in the set. Others may be
//! in it, too, until [`FabricState::prune`] has removed them.

use std::collections::VecDeque;

use weft_engine::name::EpName;

use crate::card::{Card, Unit};
use crate::event::Event;
use crate::fabric::FabricState;
use crate::registration::Registered;
use crate::rng::Stream;
use crate::wire::EndId;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: EpName,
    pub(crate) alive: bool,
    /// By link number.
    pub(crate) links: Vec<Option<EndId>>,
    /// All ends that this endpoint has or had, in the order of wires and sides.
    pub(crate) ends: Vec<EndId>,
    pub(crate) inbox: VecDeque<Event>,
    pub(crate) rng: Stream,
    /// Ends with messages that wait for `flush`.
    pub(crate) dirty: Vec<EndId>,
    /// Transfers that still need this process.
    pub(crate) busy: usize,
    pub(crate) registered: Registered,
    pub(crate) unit: Unit,
    /// Whether the endpoint is in the set.
    stirred: bool,
}

impl Endpoint {
    /// An endpoint that has not started.
    pub(crate) fn new(ep: usize, name: EpName, rng: Stream, card: Option<&Card>) -> Self {
        Self {
            name,
            alive: false,
            links: Vec::new(),
            ends: Vec::new(),
            inbox: VecDeque::new(),
            rng,
            dirty: Vec::new(),
            busy: 0,
            registered: Registered::default(),
            unit: Unit::new(ep, card),
            stirred: false,
        }
    }

    /// Whether the inbox holds something for a `poll`.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.alive && !self.inbox.is_empty()
    }

    /// Whether a round of progress could find something new in the device.
    pub(crate) fn has_work(&self) -> bool {
        self.has_arrivals() || !self.dirty.is_empty() || self.registered.has_reports()
    }
}

impl FabricState {
    /// Puts an endpoint into the set.
    pub(crate) fn stir(&mut self, ep: usize) {
        if !std::mem::replace(&mut self.endpoints[ep].stirred, true) {
            self.stirred.push(ep);
        }
    }

    /// Puts an event into an endpoint's inbox.
    pub(crate) fn hand(&mut self, ep: usize, event: Event) {
        self.endpoints[ep].inbox.push_back(event);
        self.stir(ep);
    }

    /// Removes endpoints from the set for whose device a round of progress would find nothing.
    pub(crate) fn prune(&mut self) {
        let Self { stirred, endpoints, .. } = self;
        stirred.retain(|ep| {
            let has_work = endpoints[*ep].has_work();
            endpoints[*ep].stirred = has_work;
            has_work
        });
    }

    /// Whether any inbox holds something for a `poll`.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.stirred.iter().any(|ep| self.endpoints[*ep].has_arrivals())
    }
}
