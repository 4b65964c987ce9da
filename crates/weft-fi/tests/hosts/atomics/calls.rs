//! The calls of the atomic functions.

use std::ffi::c_void;
use std::ptr::null_mut;

use weft_engine::amo::{Amo, Form};
use weft_fi_sys::*;

use super::{CONTEXT, KEY};
use crate::side::{Side, until};

/// The kind of function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Vector,
    Message,
    Inject,
}

/// The arguments of all functions. Arrays are cut in two for functions that take vectors.
#[derive(Clone, Copy)]
pub(crate) struct Args {
    pub(crate) form: Form,
    pub(crate) ty: u32,
    pub(crate) op: u32,
    pub(crate) size: usize,
    pub(crate) count: usize,
    /// The number of elements in the first of two pieces; 0 for one piece.
    pub(crate) cut: usize,
    pub(crate) buf: *mut u8,
    pub(crate) compare: *mut u8,
    pub(crate) result: *mut u8,
    pub(crate) dest: u64,
    pub(crate) addr: u64,
    pub(crate) key: u64,
    pub(crate) flags: u64,
    pub(crate) data: u64,
    pub(crate) context: usize,
}

impl Args {
    pub(crate) fn new(amo: Amo, count: usize, dest: u64) -> Self {
        let size = amo.ty().size();
        Self {
            form: amo.form(),
            ty: amo.ty() as u32,
            op: amo.op() as u32,
            size,
            count,
            cut: 0,
            buf: null_mut(),
            compare: null_mut(),
            result: null_mut(),
            dest,
            addr: 0,
            key: KEY,
            flags: FI_COMPLETION,
            data: 0xda7a,
            context: CONTEXT,
        }
    }

    /// The pieces of an array.
    pub(crate) fn ioc(&self, array: *mut u8) -> Vec<fi_ioc> {
        let at = |from: usize, count| fi_ioc { addr: array.wrapping_add(from * self.size).cast(), count };
        if self.cut == 0 { vec![at(0, self.count)] } else { vec![at(0, self.cut), at(self.cut, self.count - self.cut)] }
    }

    pub(crate) fn remote(&self) -> Vec<fi_rma_ioc> {
        let at = |from: usize, count| fi_rma_ioc { addr: self.addr + (from * self.size) as u64, count, key: self.key };
        if self.cut == 0 { vec![at(0, self.count)] } else { vec![at(0, self.cut), at(self.cut, self.count - self.cut)] }
    }

    pub(crate) fn with_msg<R>(&self, call: impl FnOnce(&fi_msg_atomic) -> R) -> R {
        let (iov, remote) = (self.ioc(self.buf), self.remote());
        call(&fi_msg_atomic {
            msg_iov: iov.as_ptr(),
            desc: null_mut(),
            iov_count: iov.len(),
            addr: self.dest,
            rma_iov: remote.as_ptr(),
            rma_iov_count: remote.len(),
            datatype: self.ty,
            op: self.op,
            context: self.context as *mut c_void,
            data: self.data,
        })
    }

    /// Calls the function for this form and way.
    pub(crate) fn run(&self, ep: *mut fid_ep, way: Way) -> isize {
        let Self { ty, op, count, dest, addr, key, flags, .. } = *self;
        let [buf, compare, result] = [self.buf, self.compare, self.result].map(<*mut u8>::cast::<c_void>);
        let [iov, cmpv, resv] = [self.buf, self.compare, self.result].map(|array| self.ioc(array));
        let (desc, descs, ctx) = (null_mut::<c_void>(), null_mut::<*mut c_void>(), self.context as *mut c_void);
        let (iovp, cmpp, resp) = (iov.as_ptr(), cmpv.as_ptr(), resv.as_ptr().cast_mut());
        let n = iov.len();
        unsafe {
            let t = &*(*ep).atomic;
            match (self.form, way) {
                (Form::Base, Way::Plain) => (t.write.unwrap())(ep, buf, count, desc, dest, addr, key, ty, op, ctx),
                (Form::Base, Way::Inject) => (t.inject.unwrap())(ep, buf, count, dest, addr, key, ty, op),
                (Form::Base, Way::Vector) => (t.writev.unwrap())(ep, iovp, descs, n, dest, addr, key, ty, op, ctx),
                (Form::Base, Way::Message) => self.with_msg(|msg| (t.writemsg.unwrap())(ep, msg, flags)),
                (Form::Fetch, Way::Vector) => {
                    (t.readwritev.unwrap())(ep, iovp, descs, n, resp, descs, n, dest, addr, key, ty, op, ctx)
                }
                (Form::Fetch, Way::Message) => {
                    self.with_msg(|msg| (t.readwritemsg.unwrap())(ep, msg, resp, descs, n, flags))
                }
                (Form::Fetch, _) => {
                    (t.readwrite.unwrap())(ep, buf, count, desc, result, desc, dest, addr, key, ty, op, ctx)
                }
                (Form::Compare, Way::Vector) => {
                    let call = t.compwritev.unwrap();
                    call(ep, iovp, descs, n, cmpp, descs, n, resp, descs, n, dest, addr, key, ty, op, ctx)
                }
                (Form::Compare, Way::Message) => {
                    self.with_msg(|msg| (t.compwritemsg.unwrap())(ep, msg, cmpp, descs, n, resp, descs, n, flags))
                }
                (Form::Compare, _) => {
                    let call = t.compwrite.unwrap();
                    call(ep, buf, count, desc, compare, desc, result, desc, dest, addr, key, ty, op, ctx)
                }
            }
        }
    }

    /// Calls the function until it accepts the operation, while the target makes progress.
    #[track_caller]
    pub(crate) fn start(&self, side: &Side<'_>, way: Way, target: &Side<'_>) {
        until(|| {
            target.progress();
            (self.run(side.ep, way) == 0).then_some(())
        });
    }
}

/// The kinds of functions of a form.
pub(crate) fn ways(form: Form) -> &'static [Way] {
    if form == Form::Base {
        &[Way::Plain, Way::Vector, Way::Message, Way::Inject]
    } else {
        &[Way::Plain, Way::Vector, Way::Message]
    }
}

pub(crate) const FORMS: [Form; 3] = [Form::Base, Form::Fetch, Form::Compare];
