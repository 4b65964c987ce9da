//! Open domains in fi_getinfo (fi_domain(3), "domain"): for which results a domain can be reported, and how
//! it fills in hints that name it.
//!
//! Place in the data flow: `fi_getinfo` → [`find`], [`Domain::complete`], [`Domain::mismatch`]; `fi_domain` →
//! [`is_automatic`].
//!
//! Invariant: clients use the domain in a result instead of opening one with that result, so the result must
//! describe the domain correctly. The properties of endpoints (sizes, orders, keys) do not matter here.

use std::sync::Arc;

use weft_fi_sys as sys;

use super::{Domain, OPEN};
use crate::abi::object::{self, Object};
use crate::host;
use crate::info::caps;
use crate::info::hints::Hints;
use crate::info::network::{self, KEYS_SINCE};
use crate::info::offer::{Offer, V1_5};
use crate::sleep::lock::Callers;

/// The first open domain, in the order of opening, for which `wanted` returns true. The list is locked during
/// the calls. Domains that a forked child has inherited are not reported.
pub(crate) fn find(wanted: impl Fn(&Arc<Domain>) -> bool) -> Option<Arc<Domain>> {
    let host = host::current();
    let found = OPEN.find(|address| {
        // SAFETY: an open weft domain. A domain is removed from the list, which is locked here, before it
        // is freed.
        let domain = unsafe { object::share::<Domain>(address as *mut sys::fid_domain) }.ok()?;
        (domain.uses().is_ours() && domain.uses().is_of(host) && wanted(&domain)).then_some(domain)
    });
    // `share` has changed the host that this thread serves.
    host::enter(host);
    found
}

/// Whether endpoints make progress automatically. Connections are the only control operations that complete
/// later. A client without connections may request automatic progress for control operations only. It gets no
/// progress thread, which would run beside its own thread on the data path.
pub(super) fn is_automatic(offer: &Offer) -> bool {
    let attr = &offer.domain;
    attr.data_progress == sys::FI_PROGRESS_AUTO
        || offer.ep.type_ == sys::FI_EP_MSG && attr.control_progress == sys::FI_PROGRESS_AUTO
}

impl Domain {
    /// The capabilities that a domain may have and this one lacks.
    pub(crate) const fn missing_caps(&self) -> u64 {
        caps::OF_WHOLE_DOMAIN & !self.caps
    }

    /// Completes hints that name this domain by the domain's properties. (Capabilities are handled by
    /// [`Self::missing_caps`].)
    pub(crate) fn complete(&self, hints: &Hints) -> Box<Hints> {
        let mut hints = Box::new(hints.clone());
        if hints.addr_format == sys::FI_FORMAT_UNSPEC {
            hints.addr_format = self.format.raw();
        }
        if hints.domain_auth_key.is_none() {
            hints.domain_auth_key.clone_from(&self.network.auth_key);
        }
        if let Some(attr) = &mut hints.domain {
            let progress = if self.auto.is_some() { sys::FI_PROGRESS_AUTO } else { sys::FI_PROGRESS_MANUAL };
            let choose = |asked: &mut u32, own| *asked = if *asked == 0 { own } else { *asked };
            choose(&mut attr.threading, self.threading);
            choose(&mut attr.data_progress, progress);
            choose(&mut attr.control_progress, progress);
            if attr.mr_mode == 0 && self.api_version < V1_5 {
                attr.mr_mode = self.mr_mode;
            }
        }
        hints
    }

    /// The first property of a result that this domain does not have, for a client of this API version.
    pub(crate) fn mismatch(&self, api: u32, offer: &Offer) -> Option<&'static str> {
        let attr = &offer.domain;
        let shared = self.callers() == Callers::Any;
        // FI_MR_SCALABLE is equivalent to no bits.
        let registers = |mode| if mode == sys::FI_MR_SCALABLE.cast_signed() { 0 } else { mode };
        let class = network::traffic_class(attr.tclass).flatten();
        let key = offer.domain_auth_key.as_ref().filter(|_| api >= KEYS_SINCE);
        [
            ("the API version", api == self.api_version),
            ("fabric_attr->fabric", offer.fabric.is_null() || offer.fabric == object::raw(self.fabric.arc())),
            ("addr_format", offer.format == self.format),
            ("caps", offer.caps & self.missing_caps() == 0),
            ("ep_attr->type", offer.ep.type_ != sys::FI_EP_MSG || shared),
            // A client that serializes all calls also satisfies FI_THREAD_DOMAIN.
            ("threading", shared || [self.threading, sys::FI_THREAD_DOMAIN].contains(&attr.threading)),
            ("data_progress or control_progress", self.auto.is_some() || !is_automatic(offer)),
            ("mr_mode", registers(attr.mr_mode) == registers(self.mr_mode)),
            ("the number of contexts", attr.max_ep_tx_ctx <= 1 || self.joins_contexts()),
            ("domain_attr->tclass", class.is_none_or(|class| class == self.network.traffic_class)),
            ("domain_attr->auth_key", key == self.network.auth_key.as_ref()),
        ]
        .into_iter()
        .find_map(|(what, met)| (!met).then_some(what))
    }
}
