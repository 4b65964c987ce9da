//! Accesses in memory that peers map (fi_weft(7), "weft_memory"): every row of the access table, beside ordinary
//! memory.
//!
//! An access in mapped memory is complete without progress of its target. All others need it. The numbers, entries and
//! counters are the same.

mod conditions;
mod messages;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_engine::amo::{Amo, Form, Op, Type};
use weft_fi_sys::*;

use crate::atomics::calls::{Args as AtomicArgs, FORMS, Way, ways};
use crate::client::{Lib, bind, close};
use crate::rig::Cntr;
use crate::side::{
    Args, Form as Shape, Side, Watched, call, err, introduce, memory, off, pattern, scenes, until, works,
};

pub(crate) const KEY: u64 = 0x3a;
const CONTEXT: usize = 0xc7;
const LEN: usize = 1 << 18;
const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;

/// `struct weft_memory_ops`.
#[repr(C)]
struct Ops {
    size: usize,
    alloc: unsafe extern "C" fn(*mut fid_domain, usize, u64, *mut *mut c_void) -> c_int,
    free: unsafe extern "C" fn(*mut fid_domain, *mut c_void) -> c_int,
}

/// Memory of the extension.
pub(crate) struct Block {
    domain: *mut fid_domain,
    ops: *mut Ops,
    base: *mut u8,
    len: usize,
}

impl Block {
    /// Error: the number that `alloc` returned.
    pub(crate) fn new(side: &Side<'_>, len: usize) -> Result<Self, c_int> {
        let (domain, mut ops, mut base) = (side.opened.domain, null_mut(), null_mut());
        let open = unsafe { (*(*domain).fid.ops).ops_open.unwrap() };
        assert_eq!(unsafe { open(domain.cast(), c"weft_memory".as_ptr(), 0, &mut ops, null_mut()) }, 0);
        let ops: *mut Ops = ops.cast();
        match unsafe { ((*ops).alloc)(domain, len, 0, &mut base) } {
            0 => Ok(Self { domain, ops, base: base.cast(), len }),
            error => Err(error),
        }
    }

    pub(crate) fn bytes(&self) -> &'static mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    fn word(&self, at: usize) -> &'static AtomicU64 {
        assert!(8 * at < self.len);
        unsafe { AtomicU64::from_ptr(self.base.cast::<u64>().add(at)) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        assert!(std::thread::panicking() || unsafe { ((*self.ops).free)(self.domain, self.base.cast()) } == 0);
    }
}

/// Whether peers map memory in this group.
fn maps() -> bool {
    !off("FI_WEFT_SHM") && std::env::var("FI_WEFT_MAP").is_ok_and(|value| value == "yes")
}

/// All scenes.
pub(crate) fn all(lib: &Lib) {
    let rows: &[crate::side::Scene] = &[("writes and reads", writes_and_reads), ("atomics", atomics), ("data", data)];
    scenes(lib, rows);
    scenes(lib, &[("events", events), ("order", order), ("order of data", order_of_data)]);
    conditions::all(lib);
    messages::all(lib);
}

/// The scenes in which the kernel copies nothing between processes.
pub(crate) fn pushed(lib: &Lib) {
    messages::all(lib);
}

/// Two endpoints, of which one has memory for the other's accesses.
struct Pair<'a> {
    a: Side<'a>,
    b: Side<'a>,
    to_b: u64,
    counter: Cntr,
    target: Watched,
    region: *mut fid_mr,
    block: Option<Block>,
}

impl<'a> Pair<'a> {
    /// `level`: default flags of operations. `selective`: operations have no entries by default.
    fn new(lib: &'a Lib, mapped: bool, level: u64, selective: bool) -> Self {
        let hinted = |hints: &crate::client::Info<'_>| hints.tx().op_flags = level;
        let a = Side::unbound(lib, 0, hinted);
        let counter = Cntr(a.opened.cntr());
        let selective = if selective { FI_SELECTIVE_COMPLETION } else { 0 };
        assert_eq!([bind(a.ep, counter.0, FI_WRITE | FI_READ), bind(a.ep, a.av, 0)], [0; 2]);
        assert_eq!([bind(a.ep, a.cq, FI_RECV), bind(a.ep, a.cq, FI_TRANSMIT | selective), a.enable()], [0; 3]);
        let (a, b, to_b, to_a) = introduce(a, Side::new(lib));
        works(&b, &a, to_a);
        let block = mapped.then(|| Block::new(&b, LEN).unwrap());
        let target = Watched::new(block.as_ref().map_or_else(|| memory(LEN), Block::bytes));
        let region = b.register(target.bytes(), REMOTE, KEY);
        let pair = Self { a, b, to_b, counter, target, region, block };
        pair.settle();
        pair
    }

    fn is_direct(&self) -> bool {
        self.block.is_some() && maps()
    }

    /// Writes until the region is mapped, if it can be.
    fn settle(&self) {
        settle(&self.a, &self.b, self.to_b, self.is_direct(), &|| self.counter.read());
        while self.a.poll().is_some() {}
    }

    fn args(&self, buf: &mut [u8]) -> Args {
        Args { key: KEY, context: CONTEXT, ..Args::new(buf, self.to_b) }
    }

    /// One operation. `direct`: it is complete without progress of the target. Returns its entries.
    #[track_caller]
    fn run(&self, what: &str, direct: bool, mut start: impl FnMut() -> isize) -> usize {
        let Self { a, b, counter, .. } = self;
        let (before, errors) = (counter.read(), counter.errors());
        until(|| match start() {
            0 => Some(()),
            again => {
                assert_eq!(again, err(FI_EAGAIN), "{what}");
                [a, b].iter().for_each(|side| side.progress());
                None
            }
        });
        // The counter's reads make progress at the initiator, and not at the target.
        let alone = (0..300).any(|_| counter.read() > before);
        assert_eq!(alone, direct, "{what}: counted without progress of the target");
        until(|| {
            b.progress();
            (counter.read() > before).then_some(())
        });
        let mut entries = 0;
        (0..50).for_each(|_| {
            entries += usize::from(a.poll().is_some_and(|outcome| outcome.done().op_context as usize == CONTEXT));
        });
        assert_eq!((counter.read(), counter.errors()), (before + 1, errors), "{what}");
        entries
    }

    fn close(mut self) {
        assert_eq!(close(self.region), 0);
        self.a.close_ep();
        assert_eq!(close(self.counter.0), 0);
    }
}

/// Writes until a write is complete without progress of the target, or, unless the region can be mapped, some times.
fn settle(a: &Side<'_>, b: &Side<'_>, to_b: u64, maps: bool, count: &dyn Fn() -> u64) {
    let mut turns = 0;
    until(|| {
        let before = count();
        a.start("fi_write", &Args { key: KEY, ..Args::new(memory(8), to_b) }, &[b]);
        let alone = count() > before;
        until(|| {
            (0..50).for_each(|_| [a, b].iter().for_each(|side| side.progress()));
            (count() > before).then_some(())
        });
        turns += 1;
        (alone || !maps && turns == 3).then_some(())
    });
}

/// Every combination of memory, level and report, with a name.
fn cases<'a>(lib: &'a Lib) -> impl Iterator<Item = (String, Pair<'a>, bool)> {
    let all = [true, false].into_iter().flat_map(|mapped| {
        [0, FI_DELIVERY_COMPLETE].into_iter().flat_map(move |level| [false, true].map(|quiet| (mapped, level, quiet)))
    });
    all.map(move |(mapped, level, quiet)| {
        let what = format!("mapped {mapped}, level {level:#x}, selective {quiet}");
        (what, Pair::new(lib, mapped, level, quiet), quiet)
    })
}

fn writes_and_reads(lib: &Lib) {
    const CALLS: [&str; 7] =
        ["fi_write", "fi_writev", "fi_writemsg", "fi_inject_write", "fi_read", "fi_readv", "fi_readmsg"];
    for (what, pair, quiet) in cases(lib) {
        let inject = pair.a.info.tx().inject_size;
        for (name, len) in CALLS.iter().flat_map(|name| [1, 8, 200, 200_000].map(|len| (name, len))) {
            let shape = call(name).form;
            if shape == Shape::Inject && len > inject {
                continue;
            }
            let what = format!("{name} of {len} bytes, {what}");
            let (local, read) = (pattern(len), name.contains("read"));
            let flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
            let there = &mut pair.target.bytes()[..len + 8];
            there.fill(7);
            if read {
                local.fill(1);
            }
            let args = Args { addr: 5, flags, ..pair.args(local) };
            let args = Args { flags: if shape == Shape::Message && !read { flags } else { FI_COMPLETION }, ..args };
            let entries = pair.run(&what, pair.is_direct(), || pair.a.run(name, &args));
            let reported = shape == Shape::Message || !quiet && shape != Shape::Inject;
            assert_eq!(entries, usize::from(reported), "{what}");
            assert_eq!(there[5..5 + len], *local, "{what}");
            assert_eq!((there[4], there[5 + len]), (7, 7), "{what}");
        }
        pair.close();
    }
}

fn atomics(lib: &Lib) {
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    for (what, pair, quiet) in cases(lib) {
        for (form, way) in FORMS.into_iter().flat_map(|form| ways(form).iter().map(move |way| (form, *way))) {
            let op = if form == Form::Compare { Op::Cswap } else { Op::Sum };
            let amo = Amo::new(form, Type::Uint64, op).unwrap();
            // A number of several, one that is not aligned, and one for which the processor has no instruction.
            for (at, direct) in [(64, true), (65, false)] {
                let what = format!("{form:?} {way:?} at {at}, {what}");
                let mut word = [3_u64, 5].map(u64::to_ne_bytes);
                let result = memory(8);
                let there = &mut pair.target.bytes()[at..at + 8];
                there.copy_from_slice(&word[1]);
                let [operand, compare] = &mut word;
                let args = AtomicArgs {
                    buf: operand.as_mut_ptr(),
                    compare: compare.as_mut_ptr(),
                    result: result.as_mut_ptr(),
                    addr: at as u64,
                    key: KEY,
                    context: CONTEXT,
                    ..AtomicArgs::new(amo, 1, pair.to_b)
                };
                let entries = pair.run(&what, direct && pair.is_direct(), || args.run(pair.a.ep, way));
                let reported = way == Way::Message || !quiet && way != Way::Inject;
                assert_eq!(entries, usize::from(reported), "{what}");
                assert_eq!(number(there), if form == Form::Compare { 3 } else { 8 }, "{what}");
                assert_eq!(number(result), if form == Form::Base { 0 } else { 5 }, "{what}");
            }
        }
        pair.close();
    }
}

/// Remote CQ data is a message, and the target reports it once.
fn data(lib: &Lib) {
    for (what, pair, quiet) in cases(lib) {
        for name in ["fi_writedata", "fi_inject_writedata", "fi_writemsg"] {
            let local = pattern(100);
            let flags = FI_REMOTE_CQ_DATA | FI_COMPLETION;
            let args = Args { flags, ..pair.args(local) };
            let entries = pair.run(&format!("{name}, {what}"), false, || pair.a.run(name, &args));
            let shape = call(name).form;
            assert_eq!(entries, usize::from(shape == Shape::Message || !quiet && shape != Shape::Inject));
            let entry = pair.b.next(&[&pair.a]).done();
            assert_eq!((entry.flags & FI_REMOTE_CQ_DATA, entry.data), (FI_REMOTE_CQ_DATA, 0xda7a), "{name}, {what}");
            assert_eq!(pair.target.bytes()[..100], *local, "{name}, {what}");
            pair.b.nothing(&[&pair.a]);
        }
        pair.close();
    }
}

/// The counter of a region counts each access, so that none is performed without its owner.
fn events(lib: &Lib) {
    let open = || Side::with(lib, 0, |hints| hints.get().caps = FI_TAGGED | FI_RMA | FI_RMA_EVENT);
    for mapped in [true, false] {
        let (a, b, to_b, _) = introduce(open(), open());
        works(&a, &b, to_b);
        let block = mapped.then(|| Block::new(&b, LEN).unwrap());
        let target = block.as_ref().map_or_else(|| memory(LEN), Block::bytes);
        let region = b.register(target, REMOTE, KEY);
        let (count, written) = (a.opened.cntr(), Cntr(b.opened.cntr()));
        assert_eq!(bind(region, written.0, FI_REMOTE_WRITE), 0);
        for n in 1..20_u8 {
            a.start("fi_write", &Args { key: KEY, ..Args::new(&mut [n; 8], to_b) }, &[&b]);
            a.next(&[&b]).done();
            written.reaches(n.into(), &[&a, &b]);
            assert_eq!(target[..8], [n; 8]);
        }
        assert_eq!([close(region), close(written.0), close(count)], [0; 3]);
    }
}

/// A message that follows a write is received only after the write, in another thread, for writes of all lengths.
fn order(lib: &Lib) {
    const ROUNDS: u64 = 200;
    let hinted = |hints: &crate::client::Info<'_>| hints.tx().msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
    let b = Side::with(lib, 0, hinted);
    let block = Block::new(&b, LEN).unwrap();
    let region = b.register(block.bytes(), REMOTE, KEY);
    let name = b.name();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let a = Side::with(lib, 0, hinted);
            let to_b = a.insert(&name);
            for round in 1..=ROUNDS {
                let len = if round % 8 == 0 { LEN } else { 8 };
                let source: &mut [u8] = round.to_ne_bytes().repeat(len / 8).leak();
                a.start("fi_write", &Args { key: KEY, ..Args::new(source, to_b) }, &[]);
                a.tsend(&mut source[..8], to_b, 1);
                for _ in 0..2 {
                    a.next(&[]).done();
                }
            }
        });
        for round in 1..=ROUNDS {
            let note = memory(8);
            b.trecv(note, 2);
            b.next(&[]).done();
            assert_eq!(note[..], round.to_ne_bytes());
            let last = if round % 8 == 0 { LEN / 8 - 1 } else { 0 };
            // A later write may have come as well.
            assert!(block.word(last).load(Ordering::Relaxed) >= round, "round {round}: the message overtook the write");
        }
    });
    assert_eq!(close(region), 0);
}

/// An access that could be performed at once waits for an earlier one that is a message.
fn order_of_data(lib: &Lib) {
    let pair = Pair::new(lib, true, 0, false);
    let Pair { a, b, block, .. } = &pair;
    let word = block.as_ref().unwrap().word(0);
    for round in 0..50_u64 {
        let [mut first, mut second] = [2 * round, 2 * round + 1].map(u64::to_ne_bytes);
        let read = memory(8);
        a.start("fi_writedata", &pair.args(&mut first), &[b]);
        a.start("fi_read", &pair.args(read), &[b]);
        a.start("fi_write", &pair.args(&mut second), &[b]);
        for _ in 0..3 {
            a.next(&[b]).done();
        }
        b.next(&[a]).done();
        assert_eq!((word.load(Ordering::Relaxed), &read[..]), (2 * round + 1, &first[..]), "round {round}");
    }
    pair.close();
}
