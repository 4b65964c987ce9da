//! Accesses to the memory of ranks outside the neighbourhood, by the engine.
//!
//! Place in the data flow: weft-gex-c starts an [`Access`] where the table says that memory is remote
//! ([`Place::Remote`]). The engine's completion ends the operation in its event ([`Slot`]) while a rank polls. The
//! blocking calls wait for that.
//!
//! A segment is a region of the engine. Its key is the number of its endpoint, and its addresses are those of the
//! owner.
//!
//! A put is complete when the target's memory has the data. Short sources are copied by the call.

use weft_engine::amo::{self, Amo, Form};
use weft_engine::api::{self, AtomicOp, Completion, Context, Error, Kind, OpFlags, Region, RmaIov, RmaOp};
use weft_engine::mem::Iov;
use weft_engine::nic::Nic as _;
use weft_engine::ordered_rma_bytes;

use crate::atomic::{Op, Operands};
use crate::combine::Type;
use crate::event::Slot;
use crate::invoke::message_piece;
use crate::job::Job;
use crate::meet::{COPIED_BYTES, RankEngine};
use crate::memory::{self, Piece, Way};
use crate::platform;
use crate::table::{Location, Place};
use crate::wait::{self, Pause};

/// An access to remote memory.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The endpoint of the memory.
    pub at: Location,
    /// The direction.
    pub way: Way,
    /// The address here.
    pub local: usize,
    /// The address in the owner's process.
    pub remote: usize,
    /// The length in bytes.
    pub bytes: usize,
}

impl Access {
    /// Whether the target performs the access in its turn among those of the same kind.
    #[must_use]
    pub fn has_turn(&self) -> bool {
        self.bytes <= ordered_rma_bytes(platform::least_mailbox_bytes())
    }

    /// Whether the source of a put is free when the call that starts it returns.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.way == Way::Put && self.bytes <= COPIED_BYTES
    }
}

/// An atomic operation on remote memory.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// The endpoint of the memory.
    pub at: Location,
    /// The address in the owner's process.
    pub remote: usize,
    /// The type of the number.
    pub ty: Type,
    /// The operation.
    pub op: Op,
    /// Its operands.
    pub operands: Operands,
    /// The address for the earlier value; 0: it is not wanted.
    pub result: usize,
}

/// The operation as the engine knows it, and whether it takes the first or the second operand, or a constant.
fn translate(op: Op, ty: Type) -> (amo::Op, Operand) {
    match op {
        Op::And => (amo::Op::Band, Operand::First),
        Op::Or => (amo::Op::Bor, Operand::First),
        Op::Xor => (amo::Op::Bxor, Operand::First),
        Op::Add => (amo::Op::Sum, Operand::First),
        Op::Sub => (amo::Op::Diff, Operand::First),
        Op::Mult => (amo::Op::Prod, Operand::First),
        Op::Min => (amo::Op::Min, Operand::First),
        Op::Max => (amo::Op::Max, Operand::First),
        Op::Inc => (amo::Op::Sum, Operand::One(one(ty))),
        Op::Dec => (amo::Op::Diff, Operand::One(one(ty))),
        Op::Set => (amo::Op::Write, Operand::First),
        Op::Cas => (amo::Op::Cswap, Operand::Second),
        Op::Get => (amo::Op::Read, Operand::First),
    }
}

enum Operand {
    First,
    Second,
    One(u64),
}

/// The number 1, as bits.
fn one(ty: Type) -> u64 {
    match ty {
        Type::Float => u64::from(1.0_f32.to_bits()),
        Type::Double => 1.0_f64.to_bits(),
        _ => 1,
    }
}

/// The type as the engine knows it. Floating-point numbers are swapped by their bits.
fn engine_type(ty: Type, op: Op) -> amo::Type {
    match (ty, op) {
        (Type::Float, Op::Cas | Op::Set | Op::Get) => amo::Type::Uint32,
        (Type::Double, Op::Cas | Op::Set | Op::Get) => amo::Type::Uint64,
        (ty, _) => ty.engine(),
    }
}

fn piece(addr: usize, bytes: usize) -> Iov {
    message_piece(Piece { addr, bytes })
}

/// The context of an operation, from which its completion finds the events.
fn context(ends: [Option<&'static Slot>; 2]) -> Context {
    let [event, leaf] = ends.map(|slot| slot.map_or(0, |slot| std::ptr::from_ref(slot).expose_provenance()));
    Context { ptr: event, user: leaf as u64 }
}

impl Job {
    /// Lets other ranks access a segment of this one by the engine.
    pub(crate) fn register(&self, endpoint: u16, addr: usize, bytes: usize) {
        if self.places().all_near() {
            return;
        }
        let region = Region {
            key: u64::from(endpoint),
            iov: std::iter::once(piece(addr, bytes)).collect(),
            base: addr as u64,
            access: api::Access { read: true, write: true },
            user: 0,
            events: false,
            mapping: None,
        };
        let added = self.with_engine_by(endpoint, |engine| engine.add_region(region.clone()));
        debug_assert!(added.is_none_or(|added| added.is_ok()), "an endpoint has one segment");
    }

    /// Starts an access. `event` has been told of it, and so has `leaf`, which is complete when the local memory is
    /// free.
    ///
    /// The local memory belongs to the access until then, unless it [is copied](Access::is_copied).
    pub fn start_access(&self, access: &Access, event: &'static Slot, leaf: Option<&'static Slot>) {
        let mut pause = Pause::new();
        while !self.try_access(access, event, leaf) {
            pause.step(self);
        }
    }

    /// As [`Self::start_access`], if there is a place for the access now.
    pub(crate) fn try_access(&self, access: &Access, event: &'static Slot, leaf: Option<&'static Slot>) -> bool {
        let copies = if access.is_copied() { OpFlags::INJECT } else { OpFlags::empty() };
        self.try_access_by(OpFlags::DELIVERY.union(copies), access, [Some(event), leaf])
    }

    /// As [`Self::start_access`], but the source is not copied.
    pub fn start_in_place(&self, access: &Access, event: &'static Slot, leaf: Option<&'static Slot>) {
        let mut pause = Pause::new();
        while !self.try_access_by(OpFlags::DELIVERY, access, [Some(event), leaf]) {
            pause.step(self);
        }
    }

    /// Starts a put whose source is copied, and which another operation follows in its turn. `event` has been told of
    /// it. The put is complete when it has left, because the other operation is complete after it.
    pub fn start_followed(&self, access: &Access, event: &'static Slot) {
        debug_assert!(access.is_copied() && access.has_turn());
        let mut pause = Pause::new();
        while !self.try_access_by(OpFlags::FREED.union(OpFlags::INJECT), access, [Some(event), None]) {
            pause.step(self);
        }
    }

    fn try_access_by(&self, flags: OpFlags, access: &Access, ends: [Option<&'static Slot>; 2]) -> bool {
        let Access { at, way, local, remote, bytes } = *access;
        if self.failures().has_lost(at.rank()) {
            ends.into_iter().flatten().for_each(Slot::fail);
            return true;
        }
        let iov = [piece(local, bytes)];
        let remote = [RmaIov { addr: remote as u64, len: bytes as u64, key: u64::from(at.endpoint()) }];
        let op =
            RmaOp { dest: self.access_address(at), iov: &iov, remote: &remote, data: 0, ctx: context(ends), flags };
        self.try_far(at, |engine| match way {
            Way::Put => engine.write(&op),
            Way::Get => engine.read(&RmaOp { flags: OpFlags::empty(), ..op }),
        })
    }

    /// Lets operations leave that a device has gathered. The caller may compute for long before the next poll.
    pub fn flush(&self) {
        let _ = self.with_engine(|engine| engine.nic_mut().flush());
    }

    /// Performs an access, and waits for its end.
    pub fn access(&self, access: &Access) {
        let event = Slot::take();
        self.start_access(access, event, None);
        wait::until(self, || event.test());
    }

    /// Starts an atomic operation. `event` has been told of it.
    pub fn start_update(&self, update: &Update, event: &'static Slot) {
        let mut pause = Pause::new();
        while !self.try_update(update, event) {
            pause.step(self);
        }
    }

    /// As [`Self::start_update`], if there is a place for the operation now.
    pub(crate) fn try_update(&self, update: &Update, event: &'static Slot) -> bool {
        let Update { at, remote, ty, op, operands, result } = *update;
        if self.failures().has_lost(at.rank()) {
            event.fail();
            return true;
        }
        let bytes = ty.bytes();
        let (code, operand) = translate(op, ty);
        let value = match operand {
            Operand::First => operands.first,
            Operand::Second => operands.second,
            Operand::One(one) => one,
        };
        // Numbers of 32 bits are in the low halves.
        let at_low = if cfg!(target_endian = "big") { 8 - bytes } else { 0 };
        let [value, compare] = [value, operands.first].map(u64::to_ne_bytes);
        let [value, compare] = [&value, &compare].map(|word| piece(word[at_low..].as_ptr().expose_provenance(), bytes));
        let form = match op {
            Op::Cas => Form::Compare,
            Op::Get => Form::Fetch,
            _ if result == 0 => Form::Base,
            _ => Form::Fetch,
        };
        let Some(amo) = Amo::new(form, engine_type(ty, op), code) else {
            crate::fatal!("atomic operation {op:?} on {ty:?} is not supported between hosts; report this error");
        };
        let result = if result == 0 { memory::unwanted() } else { result };
        let (iov, compare, result) = ([value], [compare], [piece(result, bytes)]);
        let remote = [RmaIov { addr: remote as u64, len: bytes as u64, key: u64::from(at.endpoint()) }];
        let atomic = AtomicOp {
            dest: self.access_address(at),
            amo,
            iov: &iov,
            compare: &compare,
            result: &result,
            remote: &remote,
            data: 0,
            ctx: context([Some(event), None]),
            flags: OpFlags::INJECT.union(OpFlags::DELIVERY),
        };
        self.try_far(at, |engine| engine.atomic(&atomic))
    }

    /// Performs an atomic operation on memory that is mapped here.
    pub fn update_here(&self, update: &Update) {
        let Update { at, remote, ty, op, operands, result } = *update;
        let place = self.place(at, Piece { addr: remote, bytes: ty.bytes() });
        let Place::Here(here) = place else {
            crate::fatal!("the target of an atomic operation has moved; report this error")
        };
        let old = crate::atomic::perform(here, ty, op, operands);
        if let Some(old) = old.filter(|_| result != 0) {
            memory::store_at(result, old, ty.bytes());
        }
    }

    /// Starts an operation of the engine if there is a place for it now.
    fn try_far(&self, at: Location, start: impl Fn(&mut RankEngine) -> Result<(), Error>) -> bool {
        match self.with_engine_by(at.by(), &start) {
            Some(Ok(())) => true,
            Some(Err(Error::Again)) => false,
            None => crate::fatal!("a handler has accessed remote memory; handlers may only reply"),
            Some(Err(error)) => {
                crate::fatal!("an access to memory of rank {} was refused: {error}; report this error", at.rank())
            }
        }
    }
}

/// Ends the operations of completions.
#[cold]
#[inline(never)]
pub(crate) fn finish(completions: &mut Vec<Completion>) {
    for completion in completions.drain(..) {
        if completion.fault.is_some() && !is_bearable(&completion) {
            continue;
        }
        let slots = [completion.ctx.ptr, usize::try_from(completion.ctx.user).unwrap_or(0)];
        // The joins of groups have no event.
        for slot in slots.into_iter().filter(|&addr| addr != 0).map(memory::slot) {
            if completion.fault.is_some() { slot.fail() } else { slot.complete() }
        }
    }
}

/// Whether an operation that has failed completes its event, and does not end the job.
fn is_bearable(completion: &Completion) -> bool {
    let (Some(fault), Some(job)) = (completion.fault, Job::get()) else { return true };
    if job.failures().are_tolerated() {
        return true;
    }
    // An end of the job breaks links.
    if job.board().exit_code().is_some() {
        return false;
    }
    match completion.kind {
        Kind::Collective | Kind::Joined => {
            crate::fatal!("a collective has failed: {fault}; check that all members call it with the same arguments")
        }
        _ => crate::fatal!("an access to memory of another host failed: {fault}"),
    }
}
