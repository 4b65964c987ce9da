//! What an open domain is to fi_getinfo (fi_domain(3), "domain"): of which answers it may be a part, and what
//! it says where hints that name it leave something open.
//!
//! Place in the data flow: `fi_getinfo` → [`find`], [`Domain::complete`], [`Domain::unmet`]; `fi_domain` →
//! [`is_automatic`].
//!
//! Invariant: clients use the domain of an answer in the place of one that they would open with it, so the
//! answer is true of it. What endpoints have of their own (sizes, orders, keys) does not matter here.

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

/// The domain that was opened first of those that are `wanted`, which are asked with the list of open ones
/// locked. What a forked child has of its parent's is not open there.
pub(crate) fn find(wanted: impl Fn(&Arc<Domain>) -> bool) -> Option<Arc<Domain>> {
    let host = host::current();
    let found = OPEN.find(|address| {
        // SAFETY: an open domain of ours; one that closes leaves the list, which is locked meanwhile, before
        // it is gone.
        let domain = unsafe { object::share::<Domain>(address as *mut sys::fid_domain) }.ok()?;
        (domain.uses().is_ours() && domain.uses().is_of(host) && wanted(&domain)).then_some(domain)
    });
    // Looking at an object of another host must not change the host that this call serves.
    host::enter(host);
    found
}

/// Whether endpoints make progress by themselves. Connections are all that control operations leave to be
/// done later: where there are none, a client that wants only those to progress by themselves is not given a
/// thread beside its own on the data path.
pub(super) fn is_automatic(offer: &Offer) -> bool {
    let attr = &offer.domain;
    attr.data_progress == sys::FI_PROGRESS_AUTO
        || offer.ep.type_ == sys::FI_EP_MSG && attr.control_progress == sys::FI_PROGRESS_AUTO
}

impl Domain {
    /// What every domain may have and this one has not.
    pub(crate) const fn lacks(&self) -> u64 {
        caps::OF_WHOLE_DOMAIN & !self.caps
    }

    /// Hints that name this domain, with what they leave open as it is here. (Of capabilities, [`Self::lacks`] tells.)
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

    /// What an answer to a client of this API version says that is not so in this domain, if anything.
    pub(crate) fn unmet(&self, api: u32, offer: &Offer) -> Option<&'static str> {
        let attr = &offer.domain;
        let shared = self.callers() == Callers::Any;
        // FI_MR_SCALABLE is what there is without any bit.
        let registers = |mode| if mode == sys::FI_MR_SCALABLE.cast_signed() { 0 } else { mode };
        let class = network::traffic_class(attr.tclass).flatten();
        let key = offer.domain_auth_key.as_ref().filter(|_| api >= KEYS_SINCE);
        [
            ("the API version", api == self.api_version),
            ("fabric_attr->fabric", offer.fabric.is_null() || offer.fabric == object::raw(self.fabric.arc())),
            ("addr_format", offer.format == self.format),
            ("caps", offer.caps & self.lacks() == 0),
            ("ep_attr->type", offer.ep.type_ != sys::FI_EP_MSG || shared),
            // Who serializes all calls serializes those that another level asks for.
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
