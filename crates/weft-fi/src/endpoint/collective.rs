//! Collectives of an endpoint: joining groups, and starting operations.
//!
//! Place in the data flow: [`crate::collective`] → these methods → `Engine::join_group`,
//! `Engine::start_collective`. The end of a join comes back as a completion of its own kind, which
//! [`Routes::report_join`] hands to the event queue.

use std::ffi::c_void;

use weft_engine::api::{Addr, Completion, Context, Error, OpFlags};
use weft_engine::collective::{Extent, Operation};
use weft_engine::mem::Iov;
use weft_engine::{CollectiveOp, Elements, Engine, GroupId};
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::Hold;
use crate::av::Av;
use crate::endpoint::Ep;
use crate::endpoint::connection::Reports;
use crate::endpoint::flags::Mode;
use crate::endpoint::route::{Class, Routes, User};
use crate::eq::Failure;

/// The arguments of a collective call, as the client gave them.
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) input: *const c_void,
    pub(crate) result: *mut c_void,
    pub(crate) count: usize,
    pub(crate) coll_addr: sys::fi_addr_t,
    /// A rank, or an address.
    pub(crate) root_addr: sys::fi_addr_t,
    pub(crate) datatype: sys::fi_datatype,
    /// Only used by reductions.
    pub(crate) op: sys::fi_op,
    pub(crate) context: *mut c_void,
}

/// The arguments of an exchange, as the client gave them.
pub(crate) struct Exchange {
    pub(crate) input: *const c_void,
    /// The blocks for each member.
    pub(crate) given: Vec<Extent>,
    pub(crate) result: *mut c_void,
    /// The blocks of each member.
    pub(crate) taken: Vec<Extent>,
    pub(crate) context: *mut c_void,
}

impl Call {
    /// A call without data.
    pub(crate) const fn new(operation: Operation, coll_addr: sys::fi_addr_t, context: *mut c_void) -> Self {
        Self {
            operation,
            input: std::ptr::null(),
            result: std::ptr::null_mut(),
            count: 0,
            coll_addr,
            root_addr: 0,
            datatype: sys::FI_VOID,
            op: sys::FI_NOOP,
            context,
        }
    }

    /// The operation as the engine takes it.
    ///
    /// # Safety
    /// The buffers are as the operation and the count say, and left to weft until the operation completes.
    unsafe fn to_engine<D: Device>(
        &self,
        engine: &Engine<D>,
        group: GroupId,
        elements: Elements,
        ctx: Context,
        flags: OpFlags,
    ) -> Result<CollectiveOp, Error> {
        let members = engine.members_in(group).ok_or(Error::NoSuchAddress)?;
        let rank = u32::try_from(self.root_addr).ok().filter(|&root| root < members);
        let root = rank.or_else(|| engine.rank_in(group, self.root_addr)).unwrap_or(u32::MAX);
        let mut op = CollectiveOp {
            group,
            operation: self.operation,
            root,
            count: self.count,
            elements,
            input: Iov::EMPTY,
            result: Iov::EMPTY,
            ctx,
            flags,
        };
        let (input, result) = engine.collective_bytes(&op)?;
        if (self.input.is_null() && input > 0) || (self.result.is_null() && result > 0) {
            return Err(Error::Invalid);
        }
        // SAFETY: by the caller's promise. The input is only read.
        op.input = unsafe { Iov::new(self.input.cast_mut().cast(), input) };
        // SAFETY: by the caller's promise.
        op.result = unsafe { Iov::new(self.result.cast(), result) };
        Ok(op)
    }
}

impl<D: Device> Ep<D> {
    /// Joins a group. `context` and `fid`, the group's handle as a number, come back with the event. `key`: see
    /// [`Engine::join_keyed_group`].
    pub(crate) fn join_group(
        &self,
        av: &Hold<Av>,
        members: &[Addr],
        key: &[u8],
        [context, fid]: [usize; 2],
    ) -> Result<GroupId, Errno> {
        if self.caps & sys::FI_COLLECTIVE == 0 || self.place().is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        let (same, has_eq) = {
            let setup = self.setup.lock();
            (setup.av.as_ref().is_some_and(|bound| bound.same(av)), setup.eq.is_some())
        };
        if !has_eq {
            return Err(Errno::NOEQ);
        }
        if !same {
            return Err(Errno::INVAL);
        }
        let ctx = Context { ptr: context, user: fid as u64 };
        let joined = self.cell.with_engine(|engine| (true, engine.join_keyed_group(members, key, ctx)));
        joined.ok_or(Errno::OPBADSTATE)?.map_err(Errno::from)
    }

    /// Leaves a group that a client closes.
    pub(crate) fn leave_group(&self, group: GroupId) -> Result<(), Errno> {
        match self.cell.with_engine(|engine| (false, engine.leave_group(group))) {
            Some(Err(Error::Again)) => Err(Errno::BUSY),
            _ => Ok(()),
        }
    }

    /// Whether the endpoint has joined this group.
    pub(crate) fn has_group(&self, group: GroupId) -> bool {
        self.cell.with_engine(|engine| (false, engine.members_in(group).is_some())).unwrap_or(false)
    }

    /// Starts a collective operation in a group.
    ///
    /// # Safety
    /// As for [`Call::to_engine`].
    pub(crate) unsafe fn start_collective(
        &self,
        group: GroupId,
        elements: Elements,
        call: &Call,
        mode: Mode<OpFlags>,
    ) -> isize {
        self.start_in_group(group, call.context, mode, |engine, ctx, flags| {
            // SAFETY: by the caller's promise.
            let op = unsafe { call.to_engine(engine, group, elements, ctx, flags) }?;
            engine.start_collective(&op)
        })
    }

    /// Performs a collective operation in a group. Returns 1 if it has ended: it then makes no queue entry. It is
    /// started otherwise. `looks`: see [`Engine::perform_collective`].
    ///
    /// # Safety
    /// As for [`Call::to_engine`].
    pub(crate) unsafe fn perform_collective(
        &self,
        group: GroupId,
        elements: Elements,
        call: &Call,
        looks: u32,
    ) -> isize {
        let (ctx, flags) = self.options(call.context, self.tx_mode());
        let performed = self.cell.perform_collective(|engine| {
            // SAFETY: by the caller's promise.
            let op = unsafe { call.to_engine(engine, group, elements, ctx, flags) }?;
            engine.perform_collective(&op, looks)
        });
        // SAFETY: by the caller's promise.
        performed.unwrap_or_else(|| unsafe { self.start_collective(group, elements, call, self.tx_mode()) })
    }

    /// Starts an exchange of blocks of different lengths in a group.
    ///
    /// # Safety
    /// The blocks lie in the caller's memory, and are left to weft until the operation completes.
    pub(crate) unsafe fn start_exchange(&self, group: GroupId, exchange: &Exchange) -> isize {
        let Exchange { input, given, result, taken, context } = exchange;
        self.start_in_group(group, *context, self.tx_mode(), |engine, ctx, flags| {
            let [input_len, result_len] = [given, taken].map(|blocks| Extent::end(blocks));
            let (input_len, result_len) = input_len.zip(result_len).ok_or(Error::TooLong)?;
            if (input.is_null() && input_len > 0) || (result.is_null() && result_len > 0) {
                return Err(Error::Invalid);
            }
            let op = CollectiveOp {
                group,
                operation: Operation::AllToAll,
                root: 0,
                count: 0,
                elements: Elements::Bytes(1),
                // SAFETY: by the caller's promise. The input is only read.
                input: unsafe { Iov::new(input.cast_mut().cast(), input_len) },
                // SAFETY: by the caller's promise.
                result: unsafe { Iov::new(result.cast(), result_len) },
                ctx,
                flags,
            };
            engine.start_uneven(&op, given, taken)
        })
    }

    /// Submits an operation of a group by `start`, which gets the engine, the context and the flags of the operation.
    fn start_in_group(
        &self,
        group: GroupId,
        context: *mut c_void,
        mode: Mode<OpFlags>,
        start: impl Fn(&mut Engine<D>, Context, OpFlags) -> Result<(), Error>,
    ) -> isize {
        let (ctx, flags) = self.options(context, mode);
        let started = self.cell.submit_collective(group, |engine| start(engine, ctx, flags));
        // Operations come too early while the join is under way.
        if started == Errno::NOTCONN.size() { Errno::OPBADSTATE.size() } else { started }
    }

    /// The context and the flags of an operation.
    fn options(&self, context: *mut c_void, mode: Mode<OpFlags>) -> (Context, OpFlags) {
        let entry = self.tx_entry(mode);
        let flags = mode.ops | self.completion_policy(entry, Class::Send);
        let user = User::new(sys::FI_COLLECTIVE, entry);
        (Context { ptr: context.addr(), user: user.word() }, flags)
    }
}

impl Routes {
    /// Reports the end of a join.
    #[cold]
    pub(super) fn report_join(&self, completion: &Completion) {
        let Some(Reports { eq, .. }) = self.reports() else { return };
        let (context, fid) = (completion.ctx.ptr, usize::try_from(completion.ctx.user).unwrap_or(0));
        match completion.fault {
            None => eq.report(sys::FI_JOIN_COMPLETE, fid, context, 0),
            Some(fault) => {
                let errno = Errno::from(fault);
                log::info!("fi_join_collective: {fault}; check that all members join the same set");
                eq.report_failure(Failure { fid, context, data: 0, errno, why: None, more: Box::default() });
            }
        }
    }
}
