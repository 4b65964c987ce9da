//! Scalable endpoints (fi_endpoint(3), "SCALABLE ENDPOINTS") and addresses that name receive contexts (fi_rx_addr(3)).

use std::ffi::c_int;
use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::{Lib, Opened, bind, close, control};
use crate::open;
use crate::rig::{Cntr, Request, Work};
use crate::side::{
    Args, Outcome, Side, alias, call, err, error_of, fabric_err, is_all, long_bytes, memory, name_of, pattern, scenes,
    setopt, until,
};

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("offers", offers),
            ("misuse", misuse),
            ("every context", every_context),
            ("directed receives", directed),
            ("sources", sources),
            ("named sources", named_sources),
            ("remote memory", remote_memory),
            ("attributes", attributes),
            ("attributes of an older client", older_attributes),
            ("roles of the endpoint", roles_of_the_endpoint),
            ("shared memory", shared_memory),
            ("a plain endpoint", plain_endpoint),
            ("services", services),
            ("late counters", late_counters),
            ("threads", threads),
            ("levels", levels),
        ],
    );
}

/// The number of address bits that select the receive context.
const BITS: u32 = 3;

/// `fi_rx_addr`.
const fn rx_addr(addr: u64, index: u64) -> u64 {
    addr | index << (64 - BITS)
}

/// A scalable endpoint with its objects, and one queue for each context.
struct Many<'a> {
    /// Only the domain and the address vector of this side are used.
    side: Side<'a>,
    sep: *mut fid_ep,
    tx: Vec<Context>,
    rx: Vec<Context>,
    name: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Context {
    ep: *mut fid_ep,
    cq: *mut fid_cq,
}

unsafe impl Send for Context {}

impl Context {
    fn run(self, name: &str, args: &Args) -> isize {
        unsafe { (call(name).run)(self.ep, args) }
    }

    /// Starts an operation, with progress of this context as needed.
    #[track_caller]
    fn start(self, name: &str, args: &Args) {
        until(|| match self.run(name, args) {
            0 => Some(()),
            result => {
                assert_eq!(result, err(FI_EAGAIN), "{name}");
                assert!(self.poll().is_none());
                None
            }
        });
    }

    fn poll(self) -> Option<(Outcome, u64)> {
        let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
        let (ops, mut source) = (unsafe { &*(*self.cq).ops }, 0);
        match unsafe { ops.readfrom.unwrap()(self.cq, (&raw mut entry).cast(), 1, &mut source) } {
            1 => Some((Outcome::Done(entry), source)),
            result if result == fabric_err(FI_EAVAIL) => {
                Some((Outcome::Failed(error_of(self.cq).base), FI_ADDR_NOTAVAIL))
            }
            result => {
                assert_eq!(result, err(FI_EAGAIN));
                None
            }
        }
    }
}

/// Waits for the next completion of the first context. The others make progress and must have no completions.
#[track_caller]
fn next(contexts: &[Context]) -> (fi_cq_tagged_entry, u64) {
    until(|| {
        for other in &contexts[1..] {
            // The read has no room for entries, so completions stay in the queue.
            let none = unsafe { (*(*other.cq).ops).read.unwrap()(other.cq, null_mut(), 0) };
            assert!([0, err(FI_EAGAIN)].contains(&none));
        }
        contexts[0].poll().map(|(outcome, source)| (outcome.done(), source))
    })
}

impl<'a> Many<'a> {
    fn new(lib: &'a Lib, tx: usize, rx: usize, caps: u64) -> Self {
        let info = lib.ask(lib.newest(), None).unwrap();
        let all = info.get().caps;
        let side = Side::unbound(lib, 0, |hints| {
            hints.get().caps = all | FI_NAMED_RX_CTX | caps;
        });
        Self::of(side, tx, rx)
    }

    fn of(mut side: Side<'a>, tx: usize, rx: usize) -> Self {
        // The side's own endpoint is replaced by the scalable one.
        if !side.ep.is_null() {
            side.close_ep();
        }
        assert_eq!(close(side.av), 0);
        side.av = side.opened.av(|attr| attr.rx_ctx_bits = BITS as c_int).unwrap();
        (side.info.ep().tx_ctx_cnt, side.info.ep().rx_ctx_cnt) = (tx, rx);
        let sep = open!(side.opened.domain, scalable_ep, side.info.raw).unwrap();
        assert_eq!(bind(sep, side.av, 0), 0);
        assert_eq!(control(sep, FI_ENABLE, null_mut()), 0);
        let name = name_of(sep);
        let context = |ep: *mut fid_ep, flags| {
            let cq = side.opened.cq();
            assert_eq!(bind(ep, cq, flags), 0);
            assert_eq!(control(ep, FI_ENABLE, null_mut()), 0);
            assert_eq!(name_of(ep), name, "a context has the name of its endpoint");
            Context { ep, cq }
        };
        let tx = (0..tx).map(|index| context(tx_context(sep, index as c_int).unwrap(), FI_TRANSMIT)).collect();
        let rx = (0..rx).map(|index| context(rx_context(sep, index as c_int).unwrap(), FI_RECV)).collect();
        Self { side, sep, tx, rx, name }
    }

    fn address_of(&self, other: &Many<'_>) -> u64 {
        self.side.insert(&other.name)
    }

    /// Opens the first contexts again with these attributes, one after the other: while one is open, no other program
    /// can take the endpoint's port.
    fn reopen(&mut self, tx: *mut fi_tx_attr, rx: *mut fi_rx_attr) {
        let enable =
            |Context { ep, cq }, flags| assert_eq!((bind(ep, cq, flags), control(ep, FI_ENABLE, null_mut())), (0, 0));
        assert_eq!(close(self.tx[0].ep), 0);
        self.tx[0].ep = tx_context_with(self.sep, 0, tx).unwrap();
        enable(self.tx[0], FI_TRANSMIT);
        assert_eq!(close(self.rx[0].ep), 0);
        self.rx[0].ep = rx_context_with(self.sep, 0, rx).unwrap();
        enable(self.rx[0], FI_RECV);
    }
}

impl Drop for Many<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(close(self.sep), -FI_EBUSY, "with open contexts");
        for Context { ep, cq } in self.tx.drain(..).chain(self.rx.drain(..)) {
            assert_eq!((close(ep), close(cq)), (0, 0));
        }
        assert_eq!(close(self.sep), 0);
    }
}

fn tx_context(sep: *mut fid_ep, index: c_int) -> Result<*mut fid_ep, c_int> {
    tx_context_with(sep, index, null_mut())
}

fn tx_context_with(sep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr) -> Result<*mut fid_ep, c_int> {
    let mut out = null_mut();
    let result = unsafe { (*(*sep).ops).tx_ctx.unwrap()(sep, index, attr, &mut out, null_mut()) };
    if result == 0 { Ok(out) } else { Err(-result) }
}

fn rx_context(sep: *mut fid_ep, index: c_int) -> Result<*mut fid_ep, c_int> {
    rx_context_with(sep, index, null_mut())
}

fn rx_context_with(sep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr) -> Result<*mut fid_ep, c_int> {
    let mut out = null_mut();
    let result = unsafe { (*(*sep).ops).rx_ctx.unwrap()(sep, index, attr, &mut out, null_mut()) };
    if result == 0 { Ok(out) } else { Err(-result) }
}

fn offers(lib: &Lib) {
    let plain = lib.ask(lib.newest(), None).unwrap();
    assert_eq!((plain.domain().max_ep_tx_ctx, plain.domain().max_ep_rx_ctx), (1, 1));
    assert_eq!(plain.get().caps & FI_NAMED_RX_CTX, 0);
    let hints = lib.allocinfo();
    hints.get().caps = FI_MSG | FI_NAMED_RX_CTX;
    let named = lib.ask(lib.newest(), Some(&hints)).unwrap();
    assert_eq!((named.domain().max_ep_tx_ctx, named.domain().max_ep_rx_ctx), (64, 64));
    assert_ne!(named.get().caps & FI_NAMED_RX_CTX, 0);
}

fn misuse(lib: &Lib) {
    let many = Many::new(lib, 2, 3, 0);
    let domain = many.side.opened.domain;
    assert_eq!(tx_context(many.sep, 1), Err(FI_EBUSY), "the context is open");
    assert_eq!([tx_context(many.sep, 2), rx_context(many.sep, 3), rx_context(many.sep, -1)], [Err(FI_EINVAL); 3]);
    assert_eq!(bind(many.tx[0].ep, many.side.av, 0), -FI_EINVAL, "a context has the vector of its endpoint");
    assert_eq!(bind(many.sep, many.tx[0].cq, 0), -FI_EINVAL);
    assert_eq!(bind(many.sep, many.side.av, 0) as isize, fabric_err(FI_EOPBADSTATE));
    let ep: Result<*mut fid_ep, c_int> = open!(domain, endpoint, many.side.info.raw);
    assert_eq!(ep, Err(FI_EINVAL), "an ordinary endpoint has one context of either kind");
    let args = Args::new(memory(8), 0);
    for (ep, names) in [
        (many.sep, ["fi_send", "fi_trecv", "fi_read"]),
        (many.tx[0].ep, ["fi_recv", "fi_trecv", "fi_trecvmsg"]),
        (many.rx[0].ep, ["fi_send", "fi_tinject", "fi_write"]),
    ] {
        for name in names {
            assert_eq!(unsafe { (call(name).run)(ep, &args) }, err(FI_ENOSYS), "{name}");
        }
    }
    for bits in [-1, 9] {
        assert_eq!(many.side.opened.av(|attr| attr.rx_ctx_bits = bits), Err(FI_EINVAL));
    }
    many.side.info.ep().rx_ctx_cnt = 65;
    let sep: Result<*mut fid_ep, c_int> = open!(domain, scalable_ep, many.side.info.raw);
    assert_eq!(sep, Err(FI_EINVAL));
    many.side.info.ep().rx_ctx_cnt = 1;
    let sep = open!(domain, scalable_ep, many.side.info.raw).unwrap();
    assert_eq!(control(sep, FI_ENABLE, null_mut()) as isize, fabric_err(FI_ENOAV));
    let (elsewhere, ctx) = (Opened::new(lib, &many.side.info), rx_context(sep, 0).unwrap());
    let av = elsewhere.av(|_| ()).unwrap();
    assert_eq!(bind(sep, av, 0) as isize, fabric_err(FI_EDOMAIN));
    assert_eq!((close(ctx), close(sep), close(av)), (0, 0, 0));
    // A closed context may be opened again.
    let mut many = many;
    let Context { ep, cq } = many.rx.pop().unwrap();
    assert_eq!(close(ep), 0);
    let ep = rx_context(many.sep, 2).unwrap();
    assert_eq!((bind(ep, cq, FI_RECV), control(ep, FI_ENABLE, null_mut())), (0, 0));
    assert_eq!(name_of(ep), many.name);
    many.rx.push(Context { ep, cq });
}

/// Each transmit context reaches exactly the named receive context, with short and long messages.
fn every_context(lib: &Lib) {
    let (a, b) = (Many::new(lib, 2, 1, 0), Many::new(lib, 1, 3, 0));
    let to_b = a.address_of(&b);
    for (from, tx) in a.tx.iter().enumerate() {
        for (to, rx) in b.rx.iter().enumerate() {
            for len in [40, long_bytes()] {
                let (source, target) = (pattern(len), memory(len));
                let context = from * 8 + to;
                rx.start("fi_trecv", &Args { context, ..Args::new(target, 0) });
                tx.start("fi_tsend", &Args { context: 0x5e, ..Args::new(source, rx_addr(to_b, to as u64)) });
                assert_eq!(next(&[*rx, *tx]).0.op_context as usize, context);
                assert_eq!(next(&[*tx, *rx]).0.op_context as usize, 0x5e);
                assert!(target == source);
            }
        }
    }
    // An inject, which has no completion, and a message to the endpoint's own receive context.
    let own = a.address_of(&a);
    for (byte, dest, rx) in [(1, rx_addr(to_b, 2), b.rx[2]), (2, own, a.rx[0])] {
        let target = memory(8);
        rx.start("fi_recv", &Args::new(target, 0));
        until(|| match a.tx[1].run("fi_inject", &Args::new(&mut [byte; 8], dest)) {
            0 => Some(()),
            result => {
                assert_eq!(result, err(FI_EAGAIN));
                assert!(a.tx[1].poll().is_none() && rx.poll().is_none());
                None
            }
        });
        next(&[rx, a.tx[1]]);
        assert!(is_all(target, byte));
    }
    // An address of an absent context is refused.
    assert_eq!(a.tx[0].run("fi_send", &Args::new(&mut [0; 8], rx_addr(to_b + 100, 1))), err(FI_EINVAL));
}

/// A receive may name its source as the endpoint or as any context of it.
fn directed(lib: &Lib) {
    let (a, b) = (Many::new(lib, 2, 1, FI_DIRECTED_RECV), Many::new(lib, 1, 2, FI_DIRECTED_RECV));
    let (to_b, to_a) = (a.address_of(&b), b.address_of(&a));
    for (at, src) in [to_a, rx_addr(to_a, 1), FI_ADDR_UNSPEC].into_iter().enumerate() {
        let target = memory(8);
        b.rx[1].start("fi_trecv", &Args { src, context: at, ..Args::new(target, 0) });
        let args = Args { context: 0x5e, ..Args::new(vec![at as u8 + 1; 8].leak(), rx_addr(to_b, 1)) };
        a.tx[at % 2].start("fi_tsend", &args);
        assert_eq!(next(&[b.rx[1], a.tx[at % 2]]).0.op_context as usize, at);
        assert_eq!(next(&[a.tx[at % 2], b.rx[1]]).0.op_context as usize, 0x5e);
        assert!(is_all(target, at as u8 + 1));
    }
}

/// A message from a context has its endpoint as source, also if the address was inserted later.
fn sources(lib: &Lib) {
    let (a, b) = (Many::new(lib, 2, 1, 0), Many::new(lib, 1, 2, 0));
    let to_b = a.address_of(&b);
    let receive = || {
        let target = memory(8);
        b.rx[1].start("fi_trecv", &Args::new(target, 0));
        a.tx[1].start("fi_tsend", &Args { context: 0x5e, ..Args::new(pattern(8), rx_addr(to_b, 1)) });
        let (_, source) = next(&[b.rx[1], a.tx[1]]);
        next(&[a.tx[1], b.rx[1]]);
        source
    };
    assert_eq!(receive(), FI_ADDR_NOTAVAIL);
    // Another address takes number 0.
    assert_eq!(b.side.insert(&b.name), 0);
    let to_a = b.address_of(&a);
    assert_eq!((receive(), to_a), (1, 1));
    let remove = unsafe { (*(*b.side.av).ops).remove.unwrap() };
    assert_eq!(unsafe { remove(b.side.av, [to_a].as_mut_ptr(), 1, 0) }, 0);
    assert_eq!(receive(), FI_ADDR_NOTAVAIL);
    // A removed endpoint cannot be reached at any of its contexts.
    let remove = unsafe { (*(*a.side.av).ops).remove.unwrap() };
    assert_eq!(unsafe { remove(a.side.av, [to_b].as_mut_ptr(), 1, 0) }, 0);
    assert_eq!(a.tx[1].run("fi_send", &Args::new(&mut [0; 8], rx_addr(to_b, 1))), err(FI_EINVAL));
}

/// A source named by one of its contexts matches its endpoint, for every way to post a receive.
fn named_sources(lib: &Lib) {
    let many = Many::new(lib, 2, 1, 0);
    let caps = many.side.info.get().caps | FI_DIRECTED_RECV;
    for shared in [false, true] {
        let mut side = Side::unbound(lib, 0, |hints| {
            hints.get().caps = caps;
            // FI_SHARED_CONTEXT.
            hints.ep().rx_ctx_cnt = if shared { usize::MAX } else { 1 };
        });
        assert_eq!(close(side.av), 0);
        side.av = side.opened.av(|attr| attr.rx_ctx_bits = BITS as c_int).unwrap();
        let [other, srx] = if shared {
            let srx = open!(side.opened.domain, srx_ctx, side.info.get().rx_attr).unwrap();
            assert_eq!(bind(side.ep, srx, 0), 0);
            [null_mut(), srx]
        } else {
            [alias(side.ep, FI_RECV), null_mut()]
        };
        let side = side.bound();
        let (to, counter) = (many.side.insert(&side.name()), Cntr(side.opened.cntr()));
        let src = rx_addr(side.insert(&many.name), 1);
        let plain = Context { ep: side.ep, cq: side.cq };
        let receive = |post: &dyn Fn(&mut [u8])| {
            let target = memory(8);
            post(target);
            many.tx[1].start("fi_tsend", &Args::new(pattern(8), to));
            next(&[many.tx[1], plain]);
            next(&[plain, many.tx[1]]);
            assert!(target == pattern(8));
        };
        for ep in [other, srx].into_iter().filter(|ep| !ep.is_null()) {
            receive(&|target| {
                assert_eq!(unsafe { (call("fi_trecv").run)(ep, &Args { src, ..Args::new(target, 0) }) }, 0);
            });
        }
        if !shared {
            counter.add(1);
            receive(&|target| {
                let tag = Args::new(target, 0).tag;
                let mut request = Request::new(counter, 1, None);
                request.flags = FI_COMPLETION;
                assert_eq!(request.queue(&side, &Work::TaggedRecvFrom(target, src, tag)), 0);
            });
            assert_eq!(close(other), 0);
        }
        assert_eq!(close(counter.0), 0);
        let mut side = side;
        side.close_ep();
        if shared {
            assert_eq!(close(srx), 0);
        }
    }
}

/// fi_endpoint(3): opening a context returns its attributes, chosen by the client or by the provider.
fn attributes(lib: &Lib) {
    let mut many = Many::new(lib, 1, 1, 0);
    let (whole_tx, whole_rx) = (*many.side.info.tx(), *many.side.info.rx());
    for size in [0, 77] {
        let mut tx: fi_tx_attr = unsafe { std::mem::zeroed() };
        let mut rx: fi_rx_attr = unsafe { std::mem::zeroed() };
        (tx.size, rx.size) = (size, size);
        many.reopen(&mut tx, &mut rx);
        assert_eq!(tx.size, if size == 0 { whole_tx.size } else { size });
        assert_eq!(rx.size, if size == 0 { whole_rx.size } else { size });
        let limits = |tx: &fi_tx_attr, rx: &fi_rx_attr| (tx.inject_size, tx.iov_limit, tx.rma_iov_limit, rx.iov_limit);
        assert_eq!(limits(&tx, &rx), limits(&whole_tx, &whole_rx));
        assert_eq!((tx.msg_order, rx.msg_order), (whole_tx.msg_order, whole_rx.msg_order));
        assert_eq!((tx.caps, rx.caps), (whole_tx.caps, whole_rx.caps));
        // The returned attributes open another context.
        let again = (tx.size, tx.caps, rx.size, rx.caps);
        many.reopen(&mut tx, &mut rx);
        assert_eq!((tx.size, tx.caps, rx.size, rx.caps), again);
    }
}

/// Before API 1.9 `fi_tx_attr` ends before `tclass`. The provider must not access memory behind it.
fn older_attributes(lib: &Lib) {
    let hints = lib.allocinfo();
    hints.get().caps = FI_MSG | FI_NAMED_RX_CTX;
    let many = Many::of(Side::unbound_for(lib, lib.ask(version(1, 8), Some(&hints)).unwrap()), 1, 1);
    let len = std::mem::offset_of!(fi_tx_attr, tclass);
    let mut room = vec![0xff_u8; size_of::<fi_tx_attr>()];
    room[..len].fill(0);
    let mut many = many;
    // The bytes behind the structure are no traffic class.
    many.reopen(room.as_mut_ptr().cast(), null_mut());
    assert!(is_all(&room[len..], 0xff));
}

/// A context whose attributes request no roles, such as FI_SEND, keeps the roles of its endpoint, even if the
/// endpoint has none in that direction.
fn roles_of_the_endpoint(lib: &Lib) {
    let with = |caps| Many::of(Side::unbound(lib, 0, |hints| hints.get().caps = caps | FI_NAMED_RX_CTX), 1, 1);
    let (a, mut b) = (Many::new(lib, 1, 1, 0), with(FI_MSG | FI_RMA | FI_READ | FI_WRITE));
    let to_b = a.address_of(&b);
    let region = memory(8);
    let mr = b.side.register(region, FI_REMOTE_READ | FI_REMOTE_WRITE, 7);
    let (tx, rx) = (b.side.info.get().tx_attr, b.side.info.get().rx_attr);
    b.reopen(tx, rx);
    for name in ["fi_write", "fi_read"] {
        a.tx[0].start(name, &Args { key: 7, ..Args::new(pattern(8), to_b) });
        let (outcome, _) = until(|| {
            assert!(b.rx[0].poll().is_none());
            a.tx[0].poll()
        });
        assert_eq!(outcome.failed().err, FI_EKEYREJECTED, "{name}");
    }
    assert!(is_all(region, 0));
    assert_eq!(close(mr), 0);
    // A context may start any operation. Here no peer is at address 0.
    let mut receiver = with(FI_MSG | FI_RECV);
    let (tx, rx) = (receiver.side.info.get().tx_attr, receiver.side.info.get().rx_attr);
    receiver.reopen(tx, rx);
    assert_eq!(receiver.tx[0].run("fi_send", &Args::new(memory(8), 0)), err(FI_EINVAL));
    assert_eq!(receiver.rx[0].run("fi_send", &Args::new(memory(8), 0)), err(FI_ENOSYS));
}

/// Receive contexts use the devices that their endpoint has opened, including shared memory. Transmit
/// contexts have devices of their own.
fn shared_memory(lib: &Lib) {
    let many = Many::new(lib, 1, 1, 0);
    (many.side.info.ep().tx_ctx_cnt, many.side.info.ep().rx_ctx_cnt) = (1, 1);
    let sep = open!(many.side.opened.domain, scalable_ep, many.side.info.raw).unwrap();
    let (tx, rx) = (tx_context(sep, 0).unwrap(), rx_context(sep, 0).unwrap());
    let permitted = |ep, value: bool| setopt(ep, v2::FI_OPT_SHARED_MEMORY_PERMITTED, value);
    assert_eq!((permitted(rx, false), permitted(rx, true)), (-FI_EOPNOTSUPP, 0));
    assert_eq!((permitted(tx, false), permitted(tx, true)), (0, 0));
    assert_eq!((close(tx), close(rx), close(sep)), (0, 0, 0));
}

/// Each receive context serves the domain's regions.
fn remote_memory(lib: &Lib) {
    let (a, b) = (Many::new(lib, 1, 1, 0), Many::new(lib, 1, 2, 0));
    let to_b = a.address_of(&b);
    let region = memory(64);
    let mr = b.side.register(region, FI_REMOTE_READ | FI_REMOTE_WRITE, 7);
    for to in 0..2 {
        let (source, back) = (vec![to as u8 + 1; 64].leak(), memory(64));
        let args = Args { key: 7, ..Args::new(source, rx_addr(to_b, to)) };
        a.tx[0].start("fi_write", &args);
        next(&[a.tx[0], b.rx[to as usize]]);
        a.tx[0].start("fi_read", &Args { key: 7, ..Args::new(back, rx_addr(to_b, to)) });
        next(&[a.tx[0], b.rx[to as usize]]);
        assert!(back == source);
    }
    assert_eq!(close(mr), 0);
}

/// An ordinary endpoint can send to contexts and receive from them.
fn plain_endpoint(lib: &Lib) {
    let many = Many::new(lib, 1, 2, 0);
    let mut side = Side::new(lib);
    side.close_ep();
    assert_eq!(close(side.av), 0);
    side.av = side.opened.av(|attr| attr.rx_ctx_bits = BITS as c_int).unwrap();
    side.ep = side.another_ep();
    assert_eq!((bind(side.ep, side.av, 0), bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV), side.enable()), (0, 0, 0));
    let (to, back) = (side.insert(&many.name), many.side.insert(&side.name()));
    let (there, here) = (memory(8), memory(8));
    many.rx[1].start("fi_trecv", &Args::new(there, 0));
    side.start("fi_tsend", &Args { context: 1, ..Args::new(pattern(8), rx_addr(to, 1)) }, &[]);
    let plain = Context { ep: side.ep, cq: side.cq };
    assert_eq!(next(&[many.rx[1], plain]).1, back);
    assert_eq!(next(&[plain, many.rx[1]]).0.op_context as usize, 1);
    side.trecv_from(here, to, 2);
    many.tx[0].start("fi_tsend", &Args::new(pattern(8), back));
    let (entry, source) = next(&[plain, many.tx[0]]);
    assert_eq!((entry.op_context as usize, source), (2, to));
    next(&[many.tx[0], plain]);
    assert!(here == pattern(8) && there == pattern(8));
}

/// A client that address_of only the socket address of the first context reaches the others, too.
fn services(lib: &Lib) {
    let open = || {
        let side = Side::unbound(lib, 0, |hints| {
            hints.get().caps = FI_MSG | FI_TAGGED | FI_NAMED_RX_CTX;
            hints.get().addr_format = FI_SOCKADDR_IN;
        });
        Many::of(side, 1, 2)
    };
    let (a, b) = (open(), open());
    assert_eq!(b.name.len(), size_of::<libc::sockaddr_in>());
    // Another address takes number 0.
    assert_eq!(b.address_of(&b), 0);
    let (to_b, to_a) = (a.address_of(&b), b.address_of(&a));
    for (to, rx) in b.rx.iter().enumerate() {
        let target = memory(8);
        rx.start("fi_recv", &Args::new(target, 0));
        a.tx[0].start("fi_send", &Args::new(pattern(8), rx_addr(to_b, to as u64)));
        assert_eq!(next(&[*rx, a.tx[0]]).1, to_a, "a transmit context is known by its endpoint's service");
        next(&[a.tx[0], *rx]);
        assert!(target == pattern(8));
    }
}

/// A counter that is bound to an enabled context also drives the context of the same index, as its queue
/// does.
fn late_counters(lib: &Lib) {
    let (a, mut b) = (Many::new(lib, 1, 1, 0), Many::new(lib, 1, 1, 0));
    let (to_b, cntr) = (a.address_of(&b), Cntr(b.side.opened.cntr()));
    assert_eq!(bind(b.tx[0].ep, cntr.0, FI_SEND), 0);
    let (source, target) = (pattern(long_bytes()), memory(long_bytes()));
    b.rx[0].start("fi_recv", &Args::new(target, 0));
    a.tx[0].start("fi_send", &Args::new(source, to_b));
    // No thread reads the queues of the receiver.
    until(|| {
        assert_eq!(cntr.read(), 0);
        a.tx[0].poll()
    });
    until(|| {
        assert_eq!(cntr.read(), 0);
        std::hint::black_box(target.as_ptr());
        (target == source).then_some(())
    });
    until(|| b.rx[0].poll());
    let Context { ep, cq } = b.tx.pop().unwrap();
    assert_eq!([close(ep), close(cq), close(cntr.0)], [0; 3]);
}

/// Each context is used by one thread.
fn threads(lib: &Lib) {
    const MESSAGES: usize = 500;
    let (a, b) = (Many::new(lib, 3, 3, 0), Many::new(lib, 3, 3, 0));
    let (to_b, to_a) = (a.address_of(&b), b.address_of(&a));
    std::thread::scope(|scope| {
        for index in 0..3 {
            for (tx, rx, dest) in [(a.tx[index], a.rx[index], to_b), (b.tx[index], b.rx[index], to_a)] {
                scope.spawn(move || {
                    let (tx, rx): (Context, Context) = (tx, rx);
                    let dest = rx_addr(dest, index as u64);
                    for at in 0..MESSAGES {
                        let target = memory(16);
                        rx.start("fi_trecv", &Args { context: at, tag: at as u64, ..Args::new(target, 0) });
                        let args = Args { context: at, tag: at as u64, ..Args::new(vec![at as u8; 16].leak(), dest) };
                        until(|| {
                            (tx.run("fi_tsend", &args) == 0).then_some(()).or_else(|| {
                                assert!(tx.poll().is_none());
                                None
                            })
                        });
                        assert_eq!(next(&[tx]).0.op_context as usize, at);
                        assert_eq!(next(&[rx]).0.op_context as usize, at);
                        assert!(is_all(target, at as u8));
                    }
                });
            }
        }
    });
}

/// Contexts drive each other, which needs locks. A domain opened for several contexts has them at every
/// threading level. Other domains refuse contexts if the client may use each context in a thread of its own.
fn levels(lib: &Lib) {
    let levels = [FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT];
    for threading in levels {
        for (ready, tx) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
            let side = Side::unbound(lib, 0, |hints| {
                // The defaults include FI_TRIGGER, which demands locks at any level.
                hints.get().caps = FI_TAGGED;
                hints.domain().threading = threading;
                hints.domain().max_ep_rx_ctx = if ready { 2 } else { 0 };
            });
            (side.info.ep().tx_ctx_cnt, side.info.ep().rx_ctx_cnt) = (tx, 1);
            let sep: Result<*mut fid_ep, c_int> = open!(side.opened.domain, scalable_ep, side.info.raw);
            if ready || threading != FI_THREAD_COMPLETION {
                assert_eq!(close(sep.unwrap()), 0);
            } else {
                assert_eq!(sep, Err(FI_EINVAL));
            }
        }
    }
}
