//! Performs a case and checks all its effects.
//!
//! The expectations follow from the man pages: fi_msg(3), fi_tagged(3), fi_rma(3) and fi_atomic(3) for data
//! and flags, fi_cq(3) and fi_endpoint(3) ("Operation Flags") for entries, fi_cntr(3) for counters. A check
//! waits until libfabric promises the effect. A target's memory is checked after an entry or a count there,
//! or after a delivery; otherwise the check waits for the bytes.

use std::cell::Cell;
use std::ffi::c_void;

use weft_engine::amo;
use weft_fi_sys::*;

use crate::atomics::calls as atomics;
use crate::client::control;
use crate::side::{Args, Form, call};

use super::memory::Buffer;
use super::table::{Axis, Case, Family, How};
use super::world::{
    COUNTED, End, PIECES, READ, RECV, REMOTE_READ, REMOTE_WRITE, Reader, SEND, Seen, WHOLE, WRITE, World,
};

/// The number of pieces that a vector may have.
const IOV_LIMIT: usize = 8;
/// The additional bytes of a larger buffer.
const SPARE: usize = 37;

/// Offsets of the contexts of a case's operations from its number.
const TX: usize = 0;
const RX: usize = 1;
const PEEK: usize = 2;
const MARK_TX: usize = 3;
const MARK_RX: usize = 4;

/// A running case.
struct Run<'a, 'w> {
    world: &'a World<'w>,
    case: &'a Case,
    /// The indexes of the initiator and the target.
    from: usize,
    to: usize,
    /// The source, its bytes, and whether the client has reused it.
    source: Buffer,
    data: &'static [u8],
    reused: Cell<bool>,
}

/// Performs a case.
pub(super) fn perform(world: &World<'_>, case: &Case) {
    let (from, to) = [(0, 1), (1, 0), (0, 0)][case.get(Axis::Direction)];
    let (sides, op) = (&world.ends, case.op);
    // The source of a read is at the target.
    let arena = if op.family == Family::Read { sides[to].arenas.region } else { sides[from].arenas.source };
    let cut = if op.family == Family::Read { Axis::RemoteCut } else { Axis::SourceCut };
    let data = world.memory.data(case.len, case.number);
    let source = arena.buffer(case.len, case.get(Axis::SourceAlign), case.cut(cut), IOV_LIMIT);
    let run = Run { world, case, from, to, source, data, reused: Cell::new(false) };
    if op.is_atomic() {
        return run.atomic();
    }
    run.source.put(data);
    run.set_defaults();
    if op.is_message() {
        run.message()
    } else {
        run.rma()
    }
    if !run.reused.get() {
        assert!(run.source.holds(data), "the source was written to: {}", run.source.difference(data));
    }
    run.source.clear("source");
    world.settle(run.reader());
}

impl Run<'_, '_> {
    fn context(&self, which: usize) -> usize {
        0x1000 + self.case.number * 8 + which
    }

    fn reader(&self) -> Reader {
        Reader { call: self.case.get(Axis::Reader), count: if self.case.is(Axis::Batch) { 8 } else { 1 } }
    }

    fn initiator(&self) -> &End<'_> {
        &self.world.ends[self.from]
    }

    fn target(&self) -> &End<'_> {
        &self.world.ends[self.to]
    }

    fn is_delivered(&self) -> bool {
        self.case.get(Axis::Level) >= 3
    }

    /// Writes to the source, which is the client's again.
    fn reuse(&self) {
        if !self.reused.replace(true) && self.case.op.family != Family::Read {
            self.source.put(&vec![0; self.case.len]);
        }
    }

    // ---- flags -----------------------------------------------------------------------------------

    /// The flags of the transmit that do not depend on the function's form.
    fn word(&self) -> u64 {
        let case = self.case;
        let level = [0, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE]
            [case.get(Axis::Level)];
        let order = [0, FI_FENCE, FI_MORE][case.get(Axis::Order)];
        level | order | if case.is(Axis::Completion) { FI_COMPLETION } else { 0 }
    }

    /// The flags argument of functions that have one.
    fn flags(&self) -> u64 {
        let inject = if self.case.is(Axis::Inject) { FI_INJECT } else { 0 };
        self.word() | inject | if self.case.is(Axis::Data) { FI_REMOTE_CQ_DATA } else { 0 }
    }

    /// Sets the default flags. Functions without flags use them. Functions with flags must not, so they get
    /// the opposite defaults.
    fn set_defaults(&self) {
        let opposite = |completion: bool| if completion { 0 } else { FI_COMPLETION };
        let transmit = match self.case.op.form {
            Form::Message => opposite(self.case.is(Axis::Completion)),
            _ => self.word(),
        };
        set_flags(self.initiator(), FI_TRANSMIT | transmit);
        let completion = self.case.is(Axis::ReceiveCompletion);
        let receive = match self.into().1 {
            Form::Message => opposite(completion),
            _ => opposite(!completion),
        };
        set_flags(self.target(), FI_RECV | receive);
    }

    // ---- expectations ----------------------------------------------------------------------------

    /// Whether the buffer may be reused when the call returns.
    fn is_injected(&self) -> bool {
        self.case.op.form == Form::Inject || self.case.is(Axis::Inject)
    }

    fn has_tx_entry(&self) -> bool {
        self.case.op.form != Form::Inject && (!self.case.is(Axis::Selective) || self.case.is(Axis::Completion))
    }

    fn has_rx_entry(&self) -> bool {
        !self.case.is(Axis::Selective) || self.case.is(Axis::ReceiveCompletion) || self.excess() > 0
    }

    fn has_data(&self) -> bool {
        self.case.op.data || self.case.is(Axis::Data)
    }

    /// The data for the target's queue.
    fn cq_data(&self) -> u64 {
        0xda7a_0000_0000_0001 + self.case.number as u64
    }

    /// The length of the receive buffer in bytes.
    fn room(&self) -> usize {
        let len = self.case.len;
        [len, len + SPARE, len.saturating_sub(1), len / 2][self.case.get(Axis::Room)]
    }

    fn excess(&self) -> usize {
        if self.case.op.is_message() { self.case.len.saturating_sub(self.room()) } else { 0 }
    }

    fn tag(&self) -> u64 {
        if self.case.op.family == Family::Tagged { 0x7a60_0000_0000_0000 | self.case.number as u64 } else { 0 }
    }

    /// Checks the entry of the transmit, which reports its kind only.
    fn check_tx(&self, seen: Seen) {
        let flags = match self.case.op.family {
            Family::Message => FI_SEND | FI_MSG,
            Family::Tagged => FI_SEND | FI_TAGGED,
            Family::Write => FI_RMA | FI_WRITE,
            Family::Read => FI_RMA | FI_READ,
            Family::Atomic(amo::Form::Base) => FI_ATOMIC | FI_WRITE,
            Family::Atomic(_) => FI_ATOMIC | FI_READ,
        };
        assert_eq!(seen.error, None, "the initiator's entry: {seen:?}");
        assert!(seen.msg.is_none_or(|(found, _)| found == flags), "the initiator's entry: {seen:?}, not {flags:#x}");
        assert!(seen.src.is_none_or(|src| src == FI_ADDR_NOTAVAIL), "the initiator's entry: {seen:?}");
    }

    /// Checks an entry of the target for `len` bytes.
    fn check_rx(&self, seen: Seen, flags: u64, len: usize) {
        let data = if self.has_data() { self.cq_data() } else { 0 };
        let flags = flags | if self.has_data() { FI_REMOTE_CQ_DATA } else { 0 };
        assert!(seen.msg.is_none_or(|msg| msg == (flags, len)), "the target's entry: {seen:x?}, not {flags:#x}, {len}");
        assert!(seen.data.is_none_or(|(_, found)| found == data), "the target's entry: {seen:x?}, not data {data:#x}");
        assert!(
            seen.tag.is_none_or(|tag| tag == self.tag()),
            "the target's entry: {seen:x?}, not tag {:#x}",
            self.tag()
        );
        let src = self.world.addr[self.to][self.from];
        assert!(seen.src.is_none_or(|found| found == src), "the target's entry: {seen:x?}, not from {src}");
    }

    // ---- messages --------------------------------------------------------------------------------

    /// The name of the receiving function, its form, and the division of the buffer.
    fn into(&self) -> (&'static str, Form, super::memory::Cut) {
        use super::memory::Cut;
        let tagged = self.case.op.family == Family::Tagged;
        let (name, form, cut) = [
            ("recv", Form::Plain, Cut::Whole),
            ("recvv", Form::Vector, Cut::Two),
            ("recvmsg", Form::Message, Cut::Whole),
            ("recvv", Form::Vector, Cut::Empty),
            ("recvmsg", Form::Message, Cut::Most),
        ][self.case.get(Axis::Into)];
        let full = match (tagged, name) {
            (true, "recv") => "fi_trecv",
            (true, "recvv") => "fi_trecvv",
            (true, _) => "fi_trecvmsg",
            (false, "recv") => "fi_recv",
            (false, "recvv") => "fi_recvv",
            (false, _) => "fi_recvmsg",
        };
        (full, form, cut)
    }

    fn message(&self) {
        let (case, world) = (self.case, self.world);
        let (_, _, cut) = self.into();
        let target = self.target().arenas.target.buffer(self.room(), case.get(Axis::TargetAlign), cut, IOV_LIMIT);
        if !case.is(Axis::Late) {
            self.receive(&target);
        }
        self.transmit(None);
        let mut sent = None;
        if case.is(Axis::Late) {
            self.arrive();
            if self.has_tx_entry() {
                sent = world.look(self.from, self.context(TX), self.reader());
                assert!(sent.is_none() || !self.is_delivered(), "delivered without a receive");
            }
            if sent.is_some() {
                self.reuse();
            }
            self.receive(&target);
        }
        if self.has_rx_entry() {
            self.check_received(world.wait("receive", self.to, self.context(RX), self.reader()));
        }
        if self.has_tx_entry() {
            self.check_tx(sent.unwrap_or_else(|| world.wait("send", self.from, self.context(TX), self.reader())));
            self.reuse();
        }
        self.initiator().count(SEND, true);
        self.target().count(RECV, self.excess() == 0);
        let reported = self.has_rx_entry() || case.is(Axis::Counters);
        self.finish(reported, &target, &self.data[..self.room().min(case.len)]);
    }

    fn check_received(&self, seen: Seen) {
        let family = if self.case.op.family == Family::Tagged { FI_TAGGED } else { FI_MSG };
        self.check_rx(seen, FI_RECV | family, self.room().min(self.case.len));
        let error = (self.excess() > 0).then_some((FI_ETRUNC as i32, self.excess()));
        assert_eq!(seen.error, error, "the receive's entry: {seen:?}");
    }

    fn receive(&self, target: &Buffer) {
        let iov = target.iov();
        // The receive ignores the lowest byte of the tag.
        let (tag, ignore) = if self.case.is(Axis::Ignore) { (self.tag() ^ 0x5a, 0xff) } else { (self.tag(), 0) };
        let (name, ..) = self.into();
        let args = Args {
            buf: target.start().cast(),
            len: target.len(),
            vector: Some((iov.as_ptr(), iov.len())),
            src: if self.case.is(Axis::Directed) { self.world.addr[self.to][self.from] } else { FI_ADDR_UNSPEC },
            tag,
            ignore,
            flags: if self.case.is(Axis::ReceiveCompletion) { FI_COMPLETION } else { 0 },
            context: self.context(RX),
            ..Args::new(&mut [], 0)
        };
        self.world.start(name, || self.target().side.run(name, &args));
    }

    /// Waits until a peek finds the message at the target, where no receive matches it.
    fn arrive(&self) {
        let tagged = self.case.op.family == Family::Tagged;
        let name = if tagged { "fi_trecvmsg" } else { "fi_recvmsg" };
        let args = Args { flags: FI_PEEK, tag: self.tag(), context: self.context(PEEK), ..Args::new(&mut [], 0) };
        self.world.until("arrival", || {
            assert_eq!(self.target().side.run(name, &args), 0, "{name}: peek");
            let seen = self.world.wait("peek", self.to, args.context, self.reader());
            match seen.error {
                Some((error, _)) => assert_eq!(error, FI_ENOMSG, "a peek: {seen:?}"),
                None => self.check_rx(seen, FI_RECV | if tagged { FI_TAGGED } else { FI_MSG }, self.case.len),
            }
            seen.error.is_none()
        });
    }

    // ---- remote memory access --------------------------------------------------------------------

    fn key(&self) -> u64 {
        [WHOLE, COUNTED, PIECES][self.case.get(Axis::Region)]
    }

    fn rma(&self) {
        let (case, world) = (self.case, self.world);
        let is_read = case.op.family == Family::Read;
        let (arena, cut) = if is_read {
            (self.initiator().arenas.target, Axis::SourceCut)
        } else {
            (self.target().arenas.region, Axis::RemoteCut)
        };
        let target = arena.buffer(case.len, case.get(Axis::TargetAlign), case.cut(cut), IOV_LIMIT);
        self.transmit(Some(&target));
        if self.has_tx_entry() {
            self.check_tx(world.wait("initiator", self.from, self.context(TX), self.reader()));
            self.reuse();
        }
        if self.has_data() {
            self.check_rx(world.wait("data", self.to, 0, self.reader()), FI_RMA | FI_REMOTE_WRITE, case.len);
        }
        let reported = if is_read {
            self.has_tx_entry() || case.is(Axis::Counters)
        } else {
            self.has_data() || self.has_tx_entry() && self.is_delivered() || self.is_counted_remotely()
        };
        self.count_access();
        self.finish(reported, &target, self.data);
    }

    /// Whether a counter at the target reports the access.
    fn is_counted_remotely(&self) -> bool {
        self.case.is(Axis::Counters) || self.key() == COUNTED
    }

    fn count_access(&self) {
        let fetches =
            matches!(self.case.op.family, Family::Read | Family::Atomic(amo::Form::Fetch | amo::Form::Compare));
        let (local, remote) = if fetches { (READ, REMOTE_READ) } else { (WRITE, REMOTE_WRITE) };
        self.initiator().count(local, true);
        self.target().count(remote, true);
        if self.key() == COUNTED {
            self.target().count_at_region(remote);
            if fetches && self.case.op.family != Family::Read {
                // The suite's atomic operations also change the numbers that they fetch.
                self.target().count_at_region(REMOTE_WRITE);
            }
        }
    }

    // ---- all -------------------------------------------------------------------------------------

    /// Starts the transfer. `other` is the target of the data, for RMA only.
    fn transmit(&self, other: Option<&Buffer>) {
        let How::Call(call) = self.case.op.how else { unreachable!("atomics are started by themselves") };
        let is_read = self.case.op.family == Family::Read;
        let local = if is_read { other.unwrap() } else { &self.source };
        let remote = if is_read { Some(&self.source) } else { other };
        let iov = local.iov();
        let places = remote.map(|remote| remote.remote(self.key()));
        let args = Args {
            buf: local.start().cast(),
            len: self.case.len,
            vector: Some((iov.as_ptr(), iov.len())),
            remote: places.as_ref().map(|places| (places.as_ptr(), places.len())),
            dest: self.world.addr[self.from][self.to],
            tag: self.tag(),
            data: self.cq_data(),
            key: self.key(),
            addr: remote.map_or(0, |remote| remote.offset() as u64),
            flags: self.flags(),
            context: self.context(TX),
            ..Args::new(&mut [], 0)
        };
        self.world.start(call.name, || self.initiator().side.run(call.name, &args));
        if self.is_injected() {
            self.reuse();
        }
    }

    /// Checks the target: at once if a completion or counter has `reported` the arrival of the data.
    fn finish(&self, reported: bool, target: &Buffer, expected: &[u8]) {
        if !reported || !(self.has_tx_entry() || self.case.is(Axis::Counters)) {
            // No report has shown the end of the transfer.
            self.mark();
        }
        if reported {
            // Counters report the end as well.
            self.world.settle(self.reader());
        } else {
            self.world.until("data", || target.holds(expected));
        }
        assert!(target.holds(expected), "the target: {}", target.difference(expected));
        target.clear("target");
    }

    /// Sends a message behind a fence. Its completion shows that all earlier operations have completed.
    fn mark(&self) {
        let completion = FI_COMPLETION;
        let receive =
            Args { tag: u64::MAX, flags: completion, context: self.context(MARK_RX), ..Args::new(&mut [], 0) };
        let send = Args {
            dest: self.world.addr[self.from][self.to],
            flags: completion | FI_FENCE | FI_DELIVERY_COMPLETE,
            context: self.context(MARK_TX),
            ..receive
        };
        self.world.start("mark", || self.target().side.run(call("fi_trecvmsg").name, &receive));
        self.world.start("mark", || self.initiator().side.run(call("fi_tsendmsg").name, &send));
        for (at, context) in [(self.to, receive.context), (self.from, send.context)] {
            let seen = self.world.wait("mark", at, context, self.reader());
            assert_eq!(seen.error, None, "a message behind the transfer");
        }
        self.initiator().count(SEND, true);
        self.target().count(RECV, true);
    }
}

fn set_flags(end: &End<'_>, mut flags: u64) {
    let word: *mut c_void = (&raw mut flags).cast();
    assert_eq!(control(end.side.ep, FI_SETOPSFLAG, word), 0, "FI_SETOPSFLAG {flags:#x}");
}

// ---- atomic operations ---------------------------------------------------------------------------

/// The arithmetic of each number: an addition, or an exchange of equal numbers.
struct Arithmetic {
    size: usize,
    compares: bool,
}

impl Arithmetic {
    /// Computes the number that replaces `there`.
    fn apply(&self, there: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
        if self.compares {
            return if there == compare { operand } else { there }.to_vec();
        }
        let mut carry = 0;
        let add = |(a, b): (&u8, &u8)| {
            let sum = u16::from(*a) + u16::from(*b) + carry;
            carry = sum >> 8;
            sum as u8
        };
        there.iter().zip(operand).map(add).collect()
    }

    /// Computes all numbers of an array.
    fn apply_all(&self, there: &[u8], operands: &[u8], compare: &[u8]) -> Vec<u8> {
        let size = self.size;
        let numbers = there.chunks(size).zip(operands.chunks(size)).zip(compare.chunks(size));
        numbers.flat_map(|((there, operand), compare)| self.apply(there, operand, compare)).collect()
    }
}

impl Run<'_, '_> {
    fn atomic(&self) {
        let (case, world) = (self.case, self.world);
        let (Family::Atomic(form), How::Atomic(way)) = (case.op.family, case.op.how) else { unreachable!("an atomic") };
        let size = 1 << case.get(Axis::Size);
        let count = (case.len / size).max(1);
        let len = count * size;
        let arithmetic = Arithmetic { size, compares: form == amo::Form::Compare };
        let operands = world.memory.data(len, case.number);
        let before = world.memory.data(len, case.number + 100);
        // Every second number equals its compare operand.
        let mut compare = before.to_vec();
        compare.chunks_mut(2 * size).for_each(|pair| pair[0] ^= 1);
        let after = arithmetic.apply_all(before, operands, &compare);
        let (source, target) = (case.get(Axis::SourceAlign), case.get(Axis::TargetAlign));
        let place = |arena: super::memory::Arena, align| arena.buffer(len, align, super::memory::Cut::Whole, 1);
        let from = self.initiator().arenas;
        let buffers = [
            (place(from.source, source), operands),
            (place(from.compare, target), &compare),
            (place(from.target, source), &[]),
            (place(self.target().arenas.region, target), before),
        ];
        buffers.iter().for_each(|(buffer, bytes)| buffer.put(bytes));
        self.set_defaults();
        let amo = amo::Amo::new(form, TYPES[case.get(Axis::Size)], OPS[usize::from(arithmetic.compares)]).unwrap();
        let args = atomics::Args {
            cut: if case.cut(Axis::SourceCut) == super::memory::Cut::Whole { 0 } else { count / 3 },
            buf: buffers[0].0.start(),
            compare: buffers[1].0.start(),
            result: buffers[2].0.start(),
            addr: buffers[3].0.offset() as u64,
            key: self.key(),
            flags: self.flags(),
            context: self.context(TX),
            ..atomics::Args::new(amo, count, world.addr[self.from][self.to])
        };
        world.start(case.op.name, || args.run(self.initiator().side.ep, way));
        let mut expected: [&[u8]; 4] = [operands, &compare, &[], &after];
        if self.is_injected() {
            buffers[0].0.put(before);
            expected[0] = before;
        }
        if form != amo::Form::Base {
            expected[2] = before;
        }
        if self.has_tx_entry() {
            self.check_tx(world.wait("initiator", self.from, self.context(TX), self.reader()));
        }
        self.count_access();
        let fetched = form != amo::Form::Base && (self.has_tx_entry() || case.is(Axis::Counters));
        let reported = fetched || self.has_tx_entry() && self.is_delivered() || self.is_counted_remotely();
        self.finish(reported, &buffers[3].0, &after);
        for ((buffer, _), expected) in buffers.iter().zip(expected).take(3) {
            assert!(buffer.holds(expected), "{}", buffer.difference(expected));
            buffer.clear("an array");
        }
        world.settle(self.reader());
    }
}

/// The types by the binary logarithm of their size.
const TYPES: [amo::Type; 4] = [amo::Type::Uint8, amo::Type::Uint16, amo::Type::Uint32, amo::Type::Uint64];
const OPS: [amo::Op; 2] = [amo::Op::Sum, amo::Op::Cswap];
