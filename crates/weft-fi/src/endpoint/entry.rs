//! The C entry points of endpoints: `fi_endpoint` and the functions of a handle's tables that are not
//! operations.
//!
//! Place in the data flow: libfabric calls these functions. Each borrows the handle and calls a method of [`Ep`].

use std::ffi::{c_char, c_int, c_void};

use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Hold};
use crate::domain::Domain;
use crate::endpoint::kind::Kind;
use crate::endpoint::{Ep, ep, matching, opening, registration, tables};
use crate::info::EpType;
use crate::info::hints::Hints;
use crate::{cm, collective};

/// The C structure of a handle. Functions that its type or its kind lacks return -FI_ENOSYS.
pub(super) fn head_of(kind: Kind, ty: EpType, context: *mut c_void) -> sys::fid_ep {
    sys::fid_ep {
        fid: object::new_fid(kind.class(), context, &FID_OPS),
        ops: object::table(&EP_OPS.base),
        cm: object::table(if ty == EpType::Msg { &cm::CONNECTED } else { &cm::OPS }),
        msg: object::table(tables::msg(ty, kind)),
        rma: object::table(tables::rma(ty, kind)),
        tagged: object::table(tables::tagged(ty, kind)),
        atomic: object::table(tables::atomic(ty, kind)),
        collective: object::table(&collective::ops::OPS),
    }
}

/// Opens an endpoint: `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
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
        let endpoint = opening::open(domain, &info, Kind::Whole, None, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(endpoint, place) })
    })
}

static FID_OPS: sys::fi_ops =
    sys::fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ops_open: Some(ops_open), ..noop::FID };

/// The operations, with a slot that later versions of libfabric call without a check of the table's size.
#[repr(C)]
pub(super) struct EpOps {
    pub(super) base: sys::fi_ops_ep,
    pub(super) export_xpu: unsafe extern "C" fn(*mut sys::fid_ep, u64, *mut c_void) -> c_int,
}

static EP_OPS: EpOps = EpOps {
    base: sys::fi_ops_ep {
        size: size_of::<EpOps>(),
        cancel: Some(cancel),
        getopt: Some(getopt),
        setopt: Some(setopt),
        rx_size_left: Some(rx_size_left),
        tx_size_left: Some(tx_size_left),
        ..noop::EP
    },
    export_xpu,
};

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(ep)", || {
        // SAFETY: the client closes its endpoint.
        unsafe { object::close::<Ep>(fid) }.map(|()| 0)
    })
}

const EXTENSIONS: &[object::Extension] = &[(matching::NAME, matching::ops), (registration::NAME, registration::ops)];

unsafe extern "C" fn ops_open(
    fid: *mut sys::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    object::guard("fi_open_ops(ep)", || {
        // SAFETY: the client's endpoint.
        unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: the client's string and place.
        unsafe { object::open_ops(name, flags, ops, EXTENSIONS) }
    })
}

unsafe extern "C" fn bind(fid: *mut sys::fid, what: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_ep_bind", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: another object of the client.
        unsafe { ep.bind(what, flags) }.map(|()| 0)
    })
}

unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(ep)", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::share_fid::<Ep>(fid) }?;
        // SAFETY: the client's argument for this command.
        unsafe { ep.control(command.cast_unsigned(), arg) }.map(|()| 0)
    })
}

unsafe extern "C" fn cancel(fid: *mut sys::fid, context: *mut c_void) -> isize {
    // SAFETY: the client's endpoint.
    unsafe { ep(fid.cast()) }.cell.cancel(context.addr())
}

unsafe extern "C" fn getopt(
    fid: *mut sys::fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    object::guard("fi_getopt", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: the client's buffer and its length.
        unsafe { ep.get_option(level, name, value, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn setopt(fid: *mut sys::fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    object::guard("fi_setopt", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: the client's value of that length.
        unsafe { ep.set_option(level, name, value, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn rx_size_left(fid: *mut sys::fid_ep) -> isize {
    object::guard_size("fi_rx_size_left", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep>(fid) }?;
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

unsafe extern "C" fn tx_size_left(fid: *mut sys::fid_ep) -> isize {
    object::guard_size("fi_tx_size_left", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep>(fid) }?;
        let state = ep.cell.state();
        let engine = state.engine.as_ref().ok_or(Errno::OPBADSTATE)?;
        let left = if state.routes.tx_full() { 0 } else { engine.tx_free() };
        Ok(left.cast_signed())
    })
}

pub(super) unsafe extern "C" fn export_xpu(_ep: *mut sys::fid_ep, _flags: u64, _xpu: *mut c_void) -> c_int {
    Errno::NOSYS.code()
}
