//! The C entry points of endpoints: `fi_endpoint` and the functions of a handle's tables that are not
//! operations.
//!
//! Place in the data flow: libfabric calls these functions. Each borrows the handle and calls a method of [`Ep`].

use std::ffi::{c_char, c_int, c_void};

use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Hold};
use crate::collective::exchange;
use crate::domain::Domain;
use crate::endpoint::kind::Kind;
use crate::endpoint::{Ep, ep, matching, opening, registration};
use crate::info::EpType;
use crate::info::hints::Hints;

/// The C structure of a handle. Functions that its type or its kind lacks return -FI_ENOSYS.
pub(super) fn head_of<D: Device>(domain: &Domain, kind: Kind, ty: EpType, context: *mut c_void) -> sys::fid_ep {
    let is_recorded = domain.is_recorded();
    sys::fid_ep {
        fid: object::new_fid(kind.class(), context, Ep::<D>::FID_OPS),
        ops: object::table(&Ep::<D>::EP_OPS.base),
        cm: object::table(if ty == EpType::Msg { Ep::<D>::CONNECTED_CM_OPS } else { Ep::<D>::CM_OPS }),
        msg: object::table(Ep::<D>::msg_ops(ty, kind, is_recorded)),
        rma: object::table(Ep::<D>::rma_ops(ty, kind, is_recorded)),
        tagged: object::table(Ep::<D>::tagged_ops(ty, kind, is_recorded)),
        atomic: object::table(Ep::<D>::atomic_ops(ty, kind, is_recorded)),
        collective: object::table(Ep::<D>::COLLECTIVE_OPS),
    }
}

/// Opens an endpoint: `fi_endpoint`.
pub(crate) unsafe extern "C" fn open<D: Device>(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    out: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_endpoint", || {
        let place = object::place(out)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: null, or the client's fi_info, which the host allocated.
        let info = unsafe { Hints::read(info) }?.ok_or(Errno::INVAL)?;
        let endpoint = opening::open::<D>(domain, &info, Kind::Whole, None, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(endpoint, place) })
    })
}

/// The operations, with a slot that later versions of libfabric call without a check of the table's size.
#[repr(C)]
pub(super) struct EpOps {
    pub(super) base: sys::fi_ops_ep,
    pub(super) export_xpu: unsafe extern "C" fn(*mut sys::fid_ep, u64, *mut c_void) -> c_int,
}

impl<D: Device> Ep<D> {
    const FID_OPS: &sys::fi_ops = &sys::fi_ops {
        close: Some(close::<D>),
        bind: Some(bind::<D>),
        control: Some(control::<D>),
        ops_open: Some(ops_open::<D>),
        ..noop::FID
    };
    const EP_OPS: &EpOps = &EpOps {
        base: sys::fi_ops_ep {
            size: size_of::<EpOps>(),
            cancel: Some(cancel::<D>),
            getopt: Some(getopt::<D>),
            setopt: Some(setopt::<D>),
            rx_size_left: Some(rx_size_left::<D>),
            tx_size_left: Some(tx_size_left::<D>),
            ..noop::EP
        },
        export_xpu,
    };
}

unsafe extern "C" fn close<D: Device>(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(ep)", || {
        // SAFETY: the client closes its endpoint.
        unsafe { object::close::<Ep<D>>(fid) }.map(|()| 0)
    })
}

unsafe extern "C" fn ops_open<D: Device>(
    fid: *mut sys::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    object::guard("fi_open_ops(ep)", || {
        // SAFETY: the client's endpoint.
        unsafe { object::borrow_fid::<Ep<D>>(fid) }?;
        let extensions = [
            (matching::NAME, matching::ops::<D>()),
            (registration::NAME, registration::ops::<D>()),
            (exchange::NAME, exchange::ops::<D>()),
        ];
        // SAFETY: the client's string and place.
        unsafe { object::open_ops(name, flags, ops, &extensions) }
    })
}

unsafe extern "C" fn bind<D: Device>(fid: *mut sys::fid, what: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_ep_bind", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep<D>>(fid) }?;
        // SAFETY: another object of the client.
        unsafe { ep.bind(what, flags) }.map(|()| 0)
    })
}

unsafe extern "C" fn control<D: Device>(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(ep)", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::share_fid::<Ep<D>>(fid) }?;
        // SAFETY: the client's argument for this command.
        unsafe { ep.control(command.cast_unsigned(), arg) }.map(|()| 0)
    })
}

unsafe extern "C" fn cancel<D: Device>(fid: *mut sys::fid, context: *mut c_void) -> isize {
    // SAFETY: the client's endpoint.
    unsafe { ep::<D>(fid.cast()) }.cell.cancel(context.addr())
}

unsafe extern "C" fn getopt<D: Device>(
    fid: *mut sys::fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    object::guard("fi_getopt", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep<D>>(fid) }?;
        // SAFETY: the client's buffer and its length.
        unsafe { ep.get_option(level, name, value, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn setopt<D: Device>(
    fid: *mut sys::fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    object::guard("fi_setopt", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep<D>>(fid) }?;
        // SAFETY: the client's value of that length.
        unsafe { ep.set_option(level, name, value, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn rx_size_left<D: Device>(fid: *mut sys::fid_ep) -> isize {
    object::guard_size("fi_rx_size_left", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(fid) }?;
        if let Some(shared) = ep.receives() {
            return Ok(shared.pool.free().cast_signed());
        }
        let state = ep.cell.state();
        let engine = state.engine.as_ref().ok_or(Errno::OPBADSTATE)?;
        // Tagged and untagged receives have a queue of this depth each. The limit for multi-receives is not included.
        let left = if state.routes.rx_full() { 0 } else { engine.rx_free() };
        Ok(left.cast_signed())
    })
}

unsafe extern "C" fn tx_size_left<D: Device>(fid: *mut sys::fid_ep) -> isize {
    object::guard_size("fi_tx_size_left", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(fid) }?;
        let state = ep.cell.state();
        let engine = state.engine.as_ref().ok_or(Errno::OPBADSTATE)?;
        let left = if state.routes.tx_full() { 0 } else { engine.tx_free() };
        Ok(left.cast_signed())
    })
}

pub(super) unsafe extern "C" fn export_xpu(_ep: *mut sys::fid_ep, _flags: u64, _xpu: *mut c_void) -> c_int {
    Errno::NOSYS.code()
}
