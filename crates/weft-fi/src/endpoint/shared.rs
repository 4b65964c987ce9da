//! Shared contexts (fi_endpoint(3), "SHARED CONTEXTS"): receives that several endpoints use, and shared
//! transmit contexts.
//!
//! Place in the data flow: `fi_srx_context` makes an [`Ep`] whose cell has [`Receives`] in the place of an engine. Its
//! receives go to a pool ([`weft_engine::Pool`]). The endpoints to which the context is bound take receives from the
//! pool when a message finds no receive of their own. The completion belongs to the endpoint that the message has
//! reached. `fi_stx_context` makes a [`Stx`], which is a handle only: each endpoint sends by its own engine.
//!
//! Invariants: the receive context's own lock is held while a receive is posted and offered to the endpoints. Each
//! endpoint is entered by a control call, which leaves completions to the next round of progress and wakes the
//! sleepers.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weft_engine::api::{RecvFlags, RecvOp};
use weft_engine::{Engine, Pool};
use weft_fi_sys as sys;
use weft_nic::Device;

use super::cell::EndpointCell;
use super::flags::Defaults;
use super::route::User;
use super::{Ep, Kind, opening};
use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object::{self, Head, Hold, Object, Uses};
use crate::av::Av;
use crate::domain::Domain;
use crate::info::hints::Hints;

/// The receives of a shared context, and the endpoints that use them.
pub(crate) struct Receives<D: Device> {
    pub(super) pool: Arc<Pool>,
    users: Mutex<Users<D>>,
}

struct Users<D: Device> {
    cells: Vec<Weak<EndpointCell<D>>>,
    /// The address of their common address vector, while there are any users.
    av: usize,
}

impl<D: Device> Receives<D> {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool: Arc::new(pool), users: Mutex::new(Users { cells: Vec::new(), av: 0 }) }
    }

    /// Adds an endpoint with this address vector, or without one.
    pub(super) fn attach(&self, cell: &Arc<EndpointCell<D>>, av: Option<&Hold<Av>>) -> Result<(), Errno> {
        let mut users = self.users.lock();
        let av = av.map_or(0, |av| Arc::as_ptr(av.arc()) as usize);
        if !users.cells.is_empty() && users.av != av {
            return Err(Errno::INVAL);
        }
        users.av = av;
        users.cells.push(Arc::downgrade(cell));
        Ok(())
    }

    /// Removes an endpoint that closes.
    pub(super) fn detach(&self, cell: &Arc<EndpointCell<D>>) {
        self.users.lock().cells.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(cell)));
    }

    fn cells(&self) -> Vec<Arc<EndpointCell<D>>> {
        self.users.lock().cells.iter().filter_map(Weak::upgrade).collect()
    }

    /// Posts a receive, or peeks at, claims or discards a message.
    fn post(&self, op: &RecvOp<'_>) -> Result<(), Errno> {
        if op.flags.contains(RecvFlags::TRIGGER) {
            return Err(Errno::OPNOTSUPP);
        }
        if op.flags.intersects(RecvFlags::LOOKS) {
            return self.look(op);
        }
        if self.pool.post(op)? {
            let offer = |engine: &mut Engine<D>| (engine.feed(op), engine.unexpected_messages() > 0);
            let mut waiting = false;
            for cell in self.cells() {
                waiting |= cell.with_engine(offer).is_some_and(|waiting| waiting);
            }
            if waiting {
                self.pool.await_more();
            }
        }
        Ok(())
    }

    /// Looks for a message at every endpoint. If there is none, the last endpoint reports it.
    fn look(&self, op: &RecvOp<'_>) -> Result<(), Errno> {
        let cells = self.cells();
        let found = cells.iter().find(|cell| {
            let seek = |engine: &mut Engine<D>| {
                engine.progress();
                (true, engine.has_message_for(op))
            };
            cell.with_engine(seek) == Some(true)
        });
        let cell = found.or(cells.last()).ok_or(Errno::OPBADSTATE)?;
        let mut op = *op;
        op.ctx.user |= cell.pool_user();
        cell.with_engine(|engine| (true, engine.recv(&op))).ok_or(Errno::OPBADSTATE)?.map_err(Errno::from)
    }

    /// Cancels a receive. One of the endpoints, if there are any, reports the cancel.
    fn cancel(&self, context: usize) -> Result<(), Errno> {
        let report = |engine: &mut Engine<D>| {
            let canceled = engine.cancel_pooled(context);
            (canceled, canceled)
        };
        let canceled = self.cells().iter().find_map(|cell| cell.with_engine(report));
        if canceled.unwrap_or_else(|| self.pool.cancel(context)) { Ok(()) } else { Err(Errno::NOENT) }
    }
}

impl<D: Device> EndpointCell<D> {
    /// The bits that this endpoint adds to the `user` words of receives from a pool. They say whether
    /// successes make queue entries at this endpoint.
    pub(super) fn pool_user(&self) -> u64 {
        if self.bound.rx_selective() { 0 } else { User::new(0, true).word() }
    }

    /// Posts a receive at a shared context, which has no engine.
    #[cold]
    pub(super) fn post_shared(&self, op: RecvOp<'_>) -> isize {
        let posted = self.shared().ok_or(Errno::OPBADSTATE).and_then(|shared| shared.post(&op));
        posted.map_or_else(Errno::size, |()| 0)
    }

    /// Cancels a receive of a shared context, which has no engine.
    #[cold]
    pub(super) fn cancel_shared(&self, context: usize) -> isize {
        let canceled = self.shared().ok_or(Errno::OPBADSTATE).and_then(|shared| shared.cancel(context));
        canceled.map_or_else(Errno::size, |()| 0)
    }
}

/// Opens a shared receive context: `fi_srx_context`.
pub(crate) unsafe extern "C" fn open_srx<D: Device>(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_rx_attr,
    out: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_srx_context", || {
        let place = object::place(out)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: null, or the client's attributes.
        let rx = unsafe { attr.as_ref() }.copied();
        let caps = rx.map(|attr| attr.caps).filter(|&caps| caps != 0).unwrap_or(domain.caps());
        let info = Hints { caps, rx, addr_format: domain.format().raw(), ..Hints::default() };
        let receives = opening::open::<D>(domain, &info, Kind::Shared, None, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(receives, place) })
    })
}

/// A shared transmit context.
#[repr(C)]
pub(crate) struct Stx {
    head: Head<sys::fid_stx>,
    uses: Uses,
    domain: Hold<Domain>,
}

// SAFETY: `repr(C)`, the first field is a `Head` of the fid, whose class is set in `open_stx`.
unsafe impl Object for Stx {
    type Fid = sys::fid_stx;
    const CLASSES: &'static [u32] = &[sys::FI_CLASS_STX_CTX];

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl Stx {
    /// The domain.
    pub(super) const fn domain(&self) -> &Hold<Domain> {
        &self.domain
    }
}

static STX_FID_OPS: sys::fi_ops = sys::fi_ops { close: Some(close_stx), ..noop::FID };
static STX_OPS: sys::fi_ops_ep = noop::EP;

/// Opens a shared transmit context: `fi_stx_context`.
pub(crate) unsafe extern "C" fn open_stx(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_tx_attr,
    out: *mut *mut sys::fid_stx,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_stx_context", || {
        let place = object::place(out)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: null, or the client's attributes, which have this field in every API version.
        let flags = NonNull::new(attr).map_or(0, |attr| unsafe { (*attr.as_ptr()).op_flags });
        Defaults::transmit(flags)?;
        let fid = object::new_fid(sys::FI_CLASS_STX_CTX, context, &STX_FID_OPS);
        let head = Head::new(sys::fid_stx { fid, ops: object::table(&STX_OPS) });
        let stx = Arc::new(Stx { head, uses: Uses::new(), domain });
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(stx, place) })
    })
}

unsafe extern "C" fn close_stx(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(stx)", || {
        // SAFETY: the client closes its context.
        unsafe { object::close::<Stx>(fid) }.map(|()| 0)
    })
}

impl<D: Device> Ep<D> {
    /// The receives of a shared context.
    pub(super) fn receives(&self) -> Option<&Receives<D>> {
        self.cell.shared()
    }
}
