//! The publisher of an endpoint: its counters for `weft stat` and `weft top` ([`weft_observe::Page`]), and its part in
//! the record of the process for `weft run` ([`super::report`]).
//!
//! Place in the data flow: beside it. The occasions are those of [`weft_observe`].
//!
//! Errors: an endpoint that cannot publish works like any other.

use std::time::Duration;

use weft_engine::Engine;
use weft_nic::Device;
use weft_observe::{Counters, Page, now_ns};

use super::report::Part;
use crate::params::Params;

/// The publisher of an endpoint.
pub(crate) struct Publisher {
    page: Option<Page>,
    part: Option<Part>,
}

impl Publisher {
    /// A publisher for those who look. `None`: there are none.
    pub(crate) fn new(params: &Params) -> Option<Box<Self>> {
        let page = if params.stats { Page::new(None) } else { None };
        let part = Part::new(params);
        (page.is_some() || part.is_some()).then(|| Box::new(Self { page, part }))
    }

    /// Publishes if `interval` has passed since the last time. The report of the process has its own interval.
    pub(crate) fn publish_if_due<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        interval: Duration,
        counters: impl Fn() -> Counters,
    ) {
        let now_ns = now_ns();
        if let Some(part) = &mut self.part {
            part.update_if_due(engine, now_ns, counters().failures);
        }
        if let Some(page) = &mut self.page {
            page.publish_if_due(engine, interval, now_ns, counters);
        }
    }

    /// The part in the report of the process.
    pub(crate) fn into_part(self) -> Option<Part> {
        self.part
    }

    /// The same, while the endpoint is open.
    pub(crate) const fn part(&mut self) -> Option<&mut Part> {
        self.part.as_mut()
    }
}
