//! Binding objects to endpoints: `fi_ep_bind` (fi_endpoint(3)).
//!
//! Place in the data flow: control calls between `fi_endpoint` and `fi_enable` ([`super::enable`]). Counters
//! may also be bound later.
//!
//! Errors: -FI_EOPBADSTATE for calls after enable, -FI_EDOMAIN for objects of another domain, -FI_EINVAL for objects or
//! flags that do not go together.

use std::sync::Arc;

use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::{self, Hold};
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::endpoint::route::Class;
use crate::endpoint::shared::Stx;
use crate::endpoint::{Ep, Kind};
use crate::eq::Eq;
use crate::info::EpType;

impl<D: Device> Ep<D> {
    /// Binds an object to the endpoint: `fi_ep_bind`.
    ///
    /// # Safety
    /// `what` is an object of the client.
    pub(super) unsafe fn bind(&self, what: *mut sys::fid, flags: u64) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        let class = unsafe { object::class_of(what) }?;
        let class = u32::try_from(class).map_err(|_| Errno::INVAL)?;
        if self.kind == Kind::Shared {
            return Err(Errno::INVAL);
        }
        match class {
            sys::FI_CLASS_AV => {
                // SAFETY: the caller's promise.
                self.bind_av(unsafe { Hold::of_fid(what) }?)
            }
            sys::FI_CLASS_CQ => {
                // SAFETY: the caller's promise.
                self.bind_cq(&unsafe { Hold::of_fid(what) }?, flags)
            }
            sys::FI_CLASS_CNTR => {
                // SAFETY: the caller's promise.
                self.bind_cntr(&unsafe { Hold::of_fid(what) }?, flags)
            }
            sys::FI_CLASS_EQ => {
                // SAFETY: the caller's promise.
                self.bind_eq(unsafe { Hold::of_fid(what) }?)
            }
            sys::FI_CLASS_SRX_CTX => {
                // SAFETY: the caller's promise.
                self.bind_srx(unsafe { Hold::of_fid(what) }?)
            }
            sys::FI_CLASS_STX_CTX => {
                // SAFETY: the caller's promise.
                self.bind_stx(unsafe { Hold::of_fid(what) }?)
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn bind_av(&self, av: Hold<Av>) -> Result<(), Errno> {
        if self.ty == EpType::Msg {
            return Err(Errno::INVAL);
        }
        if !av.domain().same(&self.domain) {
            return Err(Errno::DOMAIN);
        }
        // A context uses the address vector of its endpoint.
        if self.place().is_some() {
            return Err(Errno::INVAL);
        }
        let mut setup = self.setup.lock();
        if setup.enabled {
            return Err(Errno::OPBADSTATE);
        }
        if setup.av.is_some() {
            return Err(Errno::INVAL);
        }
        setup.av = Some(av);
        Ok(())
    }

    fn bind_srx(&self, srx: Hold<Self>) -> Result<(), Errno> {
        if !srx.domain.same(&self.domain) {
            return Err(Errno::DOMAIN);
        }
        let mut setup = self.setup.lock();
        if setup.enabled {
            return Err(Errno::OPBADSTATE);
        }
        if setup.srx.is_some() {
            return Err(Errno::INVAL);
        }
        // A context of a scalable endpoint has receives of its own.
        if self.place().is_some() {
            return Err(Errno::INVAL);
        }
        setup.srx = Some(srx);
        Ok(())
    }

    fn bind_stx(&self, stx: Hold<Stx>) -> Result<(), Errno> {
        if !stx.domain().same(&self.domain) {
            return Err(Errno::DOMAIN);
        }
        let mut setup = self.setup.lock();
        if setup.enabled {
            return Err(Errno::OPBADSTATE);
        }
        if setup.stx.is_some() {
            return Err(Errno::INVAL);
        }
        setup.stx = Some(stx);
        Ok(())
    }

    fn bind_eq(&self, eq: Hold<Eq>) -> Result<(), Errno> {
        let mut setup = self.setup.lock();
        if setup.eq.is_some() || (self.has_events() && setup.enabled) {
            return Err(Errno::INVAL);
        }
        setup.eq = Some(eq);
        Ok(())
    }

    fn bind_cq(&self, cq: &Hold<Cq>, flags: u64) -> Result<(), Errno> {
        let (tx, rx) = (flags & sys::FI_TRANSMIT != 0, flags & sys::FI_RECV != 0);
        if flags & !(sys::FI_TRANSMIT | sys::FI_RECV | sys::FI_SELECTIVE_COMPLETION) != 0 {
            return Err(Errno::BADFLAGS);
        }
        if !tx && !rx {
            return Err(Errno::INVAL);
        }
        if !cq.domain().same(&self.domain) {
            return Err(Errno::DOMAIN);
        }
        if self.setup.lock().enabled {
            return Err(Errno::OPBADSTATE);
        }
        let selective = flags & sys::FI_SELECTIVE_COMPLETION != 0;
        let mut state = self.cell.state();
        if (tx && state.routes.has_tx()) || (rx && state.routes.has_rx()) {
            return Err(Errno::INVAL);
        }
        if tx {
            state.routes.set_tx(cq.clone());
            if selective {
                self.cell.bound.set_tx_selective();
            }
        }
        if rx {
            state.routes.set_rx(cq.clone());
            if selective {
                self.cell.bound.set_rx_selective();
            }
        }
        drop(state);
        cq.sources().add(Arc::clone(&self.cell) as _);
        Ok(())
    }

    fn bind_cntr(&self, cntr: &Hold<Cntr>, flags: u64) -> Result<(), Errno> {
        let all = Class::FLAGS.iter().fold(0, |all, (_, flag)| all | flag);
        if flags & !all != 0 {
            return Err(Errno::BADFLAGS);
        }
        if flags == 0 {
            return Err(Errno::INVAL);
        }
        if !cntr.domain().same(&self.domain) {
            return Err(Errno::DOMAIN);
        }
        let mut state = self.cell.state();
        let wanted = || Class::FLAGS.iter().filter(|(_, flag)| flags & flag != 0).map(|&(class, _)| class);
        if wanted().any(|class| state.routes.has_counter(class)) {
            return Err(Errno::INVAL);
        }
        for class in wanted() {
            state.routes.set_counter(class, cntr.clone());
            self.cell.bound.set_counted(class);
        }
        let remote = state.routes.counts_remote();
        if let Some(engine) = &mut state.engine {
            engine.set_remote_events(remote);
        }
        drop(state);
        cntr.sources().add(Arc::clone(&self.cell) as _);
        // The endpoint may be enabled already.
        cntr.notify();
        if let Some(place) = self.place() {
            place.add_counter(&self.cell, cntr);
        }
        Ok(())
    }
}
