//! Shared receive and transmit contexts (fi_endpoint(3), "SHARED CONTEXTS").

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Duration;

use weft_fi_sys::*;

use crate::client::{Info, Lib, Opened, bind, close, control};
use crate::open;
use crate::side::{
    Args, Outcome, Side, call, err, fabric_err, is_all, long_bytes, memory, name_of, pattern, scenes,
    set_min_multi_recv, until,
};

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("offers", offers),
            ("bindings", bindings),
            ("any endpoint", any_endpoint),
            ("oldest first", oldest_first),
            ("long messages", long_messages),
            ("multi-receives", multi_receives),
            ("the last report releases", last_report_releases),
            ("peek and claim", peek_and_claim),
            ("cancel", cancel),
            ("selective completion", selective),
            ("a sleeping reader", sleeping_reader),
            ("an endpoint that closes", closing),
            ("closing with a pending receive", closing_with_a_pending_receive),
            ("closing with the last of a multi-receive", closing_multi),
        ],
    );
}

/// FI_SHARED_CONTEXT as a number of contexts.
const SHARED: usize = usize::MAX;

fn shared_hints(info: &Info<'_>) {
    (info.ep().tx_ctx_cnt, info.ep().rx_ctx_cnt) = (SHARED, SHARED);
}

/// Endpoints that share both contexts and a queue, and a peer.
struct Group<'a> {
    /// The first endpoint, the queue and the address vector.
    side: Side<'a>,
    others: Vec<*mut fid_ep>,
    srx: *mut fid_ep,
    stx: *mut fid_stx,
    peer: Side<'a>,
    /// The endpoints' addresses at the peer, and the peer's address here.
    to: Vec<u64>,
    back: u64,
}

impl<'a> Group<'a> {
    fn new(lib: &'a Lib, count: usize) -> Self {
        Self::with(lib, count, 0, |_| ())
    }

    fn with(lib: &'a Lib, count: usize, selective: u64, hints: impl Fn(&Info<'_>)) -> Self {
        let peer = Side::new(lib);
        let side = Side::unbound(lib, 0, |info| {
            shared_hints(info);
            hints(info);
        });
        let srx = open!(side.opened.domain, srx_ctx, side.info.get().rx_attr).unwrap();
        let stx = open!(side.opened.domain, stx_ctx, side.info.get().tx_attr).unwrap();
        let others: Vec<_> = (1..count).map(|_| side.another_ep()).collect();
        for &ep in std::iter::once(&side.ep).chain(&others) {
            assert_eq!(bind(ep, side.av, 0), 0);
            assert_eq!(bind(ep, side.cq, FI_TRANSMIT | FI_RECV | selective), 0);
            assert_eq!((bind(ep, srx, 0), bind(ep, stx, 0)), (0, 0));
        }
        // The endpoints join in another order than that in which the queue drives them.
        for &ep in others.iter().rev().chain([&side.ep]) {
            assert_eq!(control(ep, FI_ENABLE, null_mut()), 0);
        }
        let back = side.insert(&peer.name());
        let to = std::iter::once(&side.ep).chain(&others).map(|&ep| peer.insert(&name_of(ep))).collect();
        Self { side, others, srx, stx, peer, to, back }
    }

    /// Calls a function of the shared receive context.
    fn post(&self, name: &str, args: &Args) -> isize {
        unsafe { (call(name).run)(self.srx, args) }
    }

    fn trecv(&self, buf: &mut [u8], context: usize) {
        assert_eq!(self.post("fi_trecv", &Args { context, ..Args::new(buf, 0) }), 0);
    }

    /// Sends a tagged message to one of the endpoints. The message leaves.
    fn send(&self, buf: &[u8], to: usize) {
        let buf = buf.to_vec().leak();
        self.peer.start("fi_tsend", &Args { context: 0x5e, ..Args::new(buf, self.to[to]) }, &[&self.side]);
    }

    fn sent(&self) {
        assert_eq!(self.peer.next(&[&self.side]).done().op_context as usize, 0x5e);
    }

    /// Sends a message without a receive to one of the endpoints, and waits for its arrival.
    fn arrived(&self, buf: &[u8], to: usize) {
        self.send(buf, to);
        self.sent();
        self.side.nothing(&[&self.peer]);
    }

    /// Sends an untagged message to one of the endpoints. The message leaves.
    fn plain(&self, buf: &mut [u8], to: usize) {
        self.peer.start("fi_send", &Args { context: 0x5e, ..Args::new(buf, self.to[to]) }, &[&self.side]);
        self.sent();
    }

    fn multi_recv(&self, buf: &mut [u8], context: usize) {
        assert_eq!(self.post("fi_recvmsg", &Args { flags: FI_MULTI_RECV, context, ..Args::new(buf, 0) }), 0);
    }

    /// A multi-receive takes one waiting message from each of two endpoints, and has no room for more.
    fn fill_multi(&self) {
        set_min_multi_recv(self.srx, 16);
        self.plain(&mut [1; 20], 0);
        self.plain(&mut [2; 20], 1);
        self.side.nothing(&[&self.peer]);
        self.multi_recv(memory(48), 7);
    }

    /// Both messages of [`Group::fill_multi`] are reported. The report of the last one releases the buffer.
    fn multi_filled(&self) {
        let flags = [(); 2].map(|()| {
            let entry = self.next().done();
            assert_eq!((entry.op_context as usize, entry.len), (7, 20));
            entry.flags & FI_MULTI_RECV
        });
        assert_eq!(flags, [0, FI_MULTI_RECV]);
        self.side.nothing(&[&self.peer]);
    }

    fn next(&self) -> Outcome {
        self.side.next(&[&self.peer])
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for ep in self.others.drain(..) {
            assert_eq!(close(ep), 0);
        }
        if !self.side.ep.is_null() {
            self.side.close_ep();
        }
        assert_eq!((close(self.srx), close(self.stx)), (0, 0));
    }
}

fn offers(lib: &Lib) {
    let plain = lib.ask(lib.newest(), None).unwrap();
    assert_eq!((plain.domain().max_ep_stx_ctx, plain.domain().max_ep_srx_ctx), (0, 0));
    assert_eq!((plain.ep().tx_ctx_cnt, plain.ep().rx_ctx_cnt), (1, 1));
    let hints = lib.allocinfo();
    shared_hints(&hints);
    let shared = lib.ask(lib.newest(), Some(&hints)).unwrap();
    assert_eq!((shared.ep().tx_ctx_cnt, shared.ep().rx_ctx_cnt), (SHARED, SHARED));
    assert!(shared.domain().max_ep_stx_ctx > 0 && shared.domain().max_ep_srx_ctx > 0);
}

fn bindings(lib: &Lib) {
    let side = Side::unbound(lib, 0, shared_hints);
    let srx = open!(side.opened.domain, srx_ctx, side.info.get().rx_attr).unwrap();
    let stx = open!(side.opened.domain, stx_ctx, side.info.get().tx_attr).unwrap();
    assert_eq!((bind(side.ep, side.av, 0), bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV)), (0, 0));
    assert_eq!(side.enable() as isize, fabric_err(FI_EOPBADSTATE), "without its contexts");
    assert_eq!(bind(side.ep, stx, 0), 0);
    assert_eq!(side.enable() as isize, fabric_err(FI_EOPBADSTATE), "without one of its contexts");
    assert_eq!(bind(side.ep, srx, 0), 0);
    assert_eq!((bind(side.ep, srx, 0), bind(side.ep, stx, 0)), (-FI_EINVAL, -FI_EINVAL), "twice");
    assert_eq!(side.enable(), 0);
    assert_eq!((close(srx), close(stx)), (-FI_EBUSY, -FI_EBUSY));
    // A receive context accepts only receives and options.
    let args = Args::new(memory(8), 0);
    for name in ["fi_send", "fi_tsend", "fi_write", "fi_read"] {
        assert_eq!(unsafe { (call(name).run)(srx, &args) }, err(FI_ENOSYS), "{name}");
    }
    assert_eq!(bind(srx, side.cq, FI_RECV), -FI_EINVAL);
    assert_eq!(control(srx, FI_ENABLE, null_mut()), 0);
    // Endpoints that share receives share their address vector.
    let (stranger, av) = (side.another_ep(), side.opened.av(|_| ()).unwrap());
    assert_eq!((bind(stranger, av, 0), bind(stranger, side.cq, FI_TRANSMIT | FI_RECV)), (0, 0));
    assert_eq!((bind(stranger, srx, 0), bind(stranger, stx, 0)), (0, 0));
    assert_eq!(control(stranger, FI_ENABLE, null_mut()), -FI_EINVAL);
    assert_eq!((close(stranger), close(av)), (0, 0));
    // Objects of several domains cannot be mixed.
    let (elsewhere, info) = (Opened::new(lib, &side.info), &side.info);
    let ep: *mut fid_ep = open!(elsewhere.domain, endpoint, info.raw).unwrap();
    assert_eq!(
        (bind(ep, srx, 0) as isize, bind(ep, stx, 0) as isize),
        (fabric_err(FI_EDOMAIN), fabric_err(FI_EDOMAIN))
    );
    assert_eq!(close(ep), 0);
    drop(elsewhere);
    let mut side = side;
    side.close_ep();
    assert_eq!((close(srx), close(stx)), (0, 0));
}

/// Posted receives serve the endpoint at which a message arrives. Each endpoint sends independently.
fn any_endpoint(lib: &Lib) {
    let group = Group::new(lib, 3);
    let targets: Vec<_> = (0..6).map(|_| memory(64)).collect();
    let places: Vec<_> = targets.iter().map(|target| target.as_ptr()).collect();
    for (at, target) in targets.into_iter().enumerate() {
        group.trecv(target, at);
    }
    for at in 0..6_u8 {
        group.send(&[at + 1; 64], 2 - at as usize % 3);
        group.sent();
        let entry = group.next().done();
        assert_eq!((entry.op_context as usize, entry.len), (at as usize, 64), "the oldest receive");
        assert_eq!(entry.buf.cast_const().cast(), places[at as usize]);
        assert!(is_all(unsafe { std::slice::from_raw_parts(places[at as usize], 64) }, at + 1));
    }
    for &ep in std::iter::once(&group.side.ep).chain(&group.others) {
        let target = memory(8);
        group.peer.trecv(target, 1);
        let args = Args { context: 2, ..Args::new(pattern(8), group.back) };
        until(|| match unsafe { (call("fi_tsend").run)(ep, &args) } {
            0 => Some(()),
            result => {
                assert_eq!(result, err(FI_EAGAIN));
                group.side.progress();
                None
            }
        });
        assert_eq!(group.peer.next(&[&group.side]).done().op_context as usize, 1);
        assert_eq!(group.next().done().op_context as usize, 2);
        assert_eq!(target, pattern(8));
    }
    // Untagged receives are shared, too.
    let target = memory(8);
    assert_eq!(group.post("fi_recv", &Args::new(target, 0)), 0);
    group.peer.start("fi_send", &Args { context: 0x5e, ..Args::new(pattern(8), group.to[1]) }, &[&group.side]);
    group.sent();
    assert_eq!(group.next().done().flags, FI_RECV | FI_MSG);
    assert_eq!(target, pattern(8));
}

/// Waiting messages are received in their order, by the oldest receive.
fn oldest_first(lib: &Lib) {
    let group = Group::new(lib, 2);
    group.arrived(&[1; 8], 1);
    group.arrived(&[2; 8], 1);
    group.arrived(&[3; 8], 0);
    let targets = [memory(8), memory(8), memory(8)].map(|target| &*target as *const [u8] as *mut [u8]);
    for (at, &target) in targets.iter().enumerate() {
        group.trecv(unsafe { &mut *target }, at);
        assert_eq!(group.next().done().op_context as usize, at);
    }
    let got = targets.map(|target| unsafe { (*target)[0] });
    let ordered: Vec<u8> = got.into_iter().filter(|&byte| byte != 3).collect();
    assert!(ordered == [1, 2] && got.contains(&3), "{got:?}");
    // A receive that does not match stays for a later message.
    group.arrived(&[4; 8], 1);
    let (other, fitting) = (memory(8), memory(8));
    assert_eq!(group.post("fi_trecv", &Args { tag: 1, context: 0xa, ..Args::new(other, 0) }), 0);
    group.side.nothing(&[&group.peer]);
    group.trecv(fitting, 0xb);
    assert_eq!(group.next().done().op_context as usize, 0xb);
    assert!(is_all(fitting, 4));
    group.peer.start(
        "fi_tsend",
        &Args { tag: 1, context: 0x5e, ..Args::new(vec![5; 8].leak(), group.to[0]) },
        &[&group.side],
    );
    group.sent();
    assert_eq!(group.next().done().op_context as usize, 0xa);
    assert!(is_all(other, 5));
}

/// Receives of long messages are posted before and after the messages.
fn long_messages(lib: &Lib) {
    let group = Group::new(lib, 2);
    let (source, first, second) = (pattern(long_bytes()), memory(long_bytes()), memory(long_bytes()));
    group.trecv(first, 1);
    group.send(source, 1);
    assert_eq!(group.next().done().op_context as usize, 1);
    group.sent();
    assert!(first == source);
    group.send(source, 0);
    group.side.nothing(&[&group.peer]);
    group.trecv(second, 2);
    assert_eq!(group.next().done().op_context as usize, 2);
    group.sent();
    assert!(second == source);
}

/// A multi-receive takes messages of all endpoints, including waiting ones, and is released once.
fn multi_receives(lib: &Lib) {
    let group = Group::new(lib, 2);
    let room = || unsafe { (*(*group.srx).ops).rx_size_left.unwrap()(group.srx) };
    let whole = room();
    assert!(whole >= group.side.info.rx().size as isize);
    set_min_multi_recv(group.srx, 16);
    group.plain(&mut [1; 20], 1);
    group.side.nothing(&[&group.peer]);
    let target = memory(80);
    let start = target.as_ptr() as usize;
    group.multi_recv(target, 7);
    for at in 0..4_u8 {
        if at > 0 {
            group.plain(&mut [at + 1; 20], at as usize % 2);
        }
        let entry = group.next().done();
        assert_eq!((entry.op_context as usize, entry.len, entry.buf as usize - start), (7, 20, at as usize * 20));
        assert_eq!(entry.flags & FI_MULTI_RECV != 0, at == 3, "message {at}");
    }
    assert!((0..4).all(|at| is_all(&target[at * 20..][..20], at as u8 + 1)));
    assert_eq!(room(), whole, "no receive is posted any more");
}

/// A buffer is released only after all its messages are reported, at whichever endpoints.
fn last_report_releases(lib: &Lib) {
    let group = Group::new(lib, 2);
    group.fill_multi();
    group.multi_filled();
}

fn peek_and_claim(lib: &Lib) {
    let group = Group::new(lib, 3);
    let look = |flags: u64, context| {
        let args = Args { flags, context, ..Args::new(&mut [], 0) };
        assert_eq!(group.post("fi_trecvmsg", &args), 0);
        group.next()
    };
    assert_eq!(look(FI_PEEK, 1).failed().err, FI_ENOMSG);
    group.arrived(&[9; 24], 1);
    let found = look(FI_PEEK | FI_CLAIM, 2).done();
    assert_eq!((found.op_context as usize, found.len), (2, 24));
    assert_eq!(look(FI_PEEK, 3).failed().err, FI_ENOMSG, "the message is claimed");
    let target = memory(24);
    assert_eq!(group.post("fi_trecvmsg", &Args { flags: FI_CLAIM, context: 2, ..Args::new(target, 0) }), 0);
    assert_eq!(group.next().done().op_context as usize, 2);
    assert!(is_all(target, 9));
    group.arrived(&[8; 24], 2);
    assert_eq!(look(FI_PEEK | FI_DISCARD, 4).done().len, 24);
    assert_eq!(look(FI_PEEK, 5).failed().err, FI_ENOMSG, "the message was discarded");
}

fn cancel(lib: &Lib) {
    let group = Group::new(lib, 2);
    let cancel =
        |context: usize| unsafe { (*(*group.srx).ops).cancel.unwrap()(group.srx.cast(), context as *mut c_void) };
    let (first, second) = (memory(8), memory(8));
    group.trecv(first, 1);
    group.trecv(second, 2);
    assert_eq!(cancel(1), 0);
    let failed = group.next().failed();
    assert_eq!((failed.op_context as usize, failed.err), (1, FI_ECANCELED));
    assert_eq!(cancel(1), err(FI_ENOENT));
    group.send(&[3; 8], 1);
    group.sent();
    assert_eq!(group.next().done().op_context as usize, 2);
    assert!(is_all(second, 3) && is_all(first, 0));
}

/// Each endpoint's binding decides whether a success is reported.
fn selective(lib: &Lib) {
    let group = Group::with(lib, 2, FI_SELECTIVE_COMPLETION, |_| ());
    let (silent, told) = (memory(8), memory(8));
    group.trecv(silent, 1);
    let args = Args { flags: FI_COMPLETION, context: 2, ..Args::new(told, 0) };
    assert_eq!(group.post("fi_trecvmsg", &args), 0);
    for byte in [1, 2] {
        group.send(&[byte; 8], 1);
        group.sent();
    }
    assert_eq!(group.next().done().op_context as usize, 2);
    assert!(is_all(silent, 1) && is_all(told, 2));
    group.side.nothing(&[&group.peer]);
}

/// A thread sleeps on the queue when a receive is posted for a message that has arrived before.
fn sleeping_reader(lib: &Lib) {
    for progress in [FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO] {
        let group = Group::with(lib, 2, 0, |info| info.domain().data_progress = progress);
        group.arrived(&[6; 8], 1);
        let (target, cq) = (memory(8), group.side.cq as usize);
        let reader = std::thread::spawn(move || {
            let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
            let cq = cq as *mut fid_cq;
            let sread = unsafe { (*(*cq).ops).sread.unwrap() };
            let result = unsafe { sread(cq, (&raw mut entry).cast(), 1, std::ptr::null(), 5000) };
            (result, entry.op_context as usize)
        });
        std::thread::sleep(Duration::from_millis(50));
        group.trecv(target, 3);
        assert_eq!(reader.join().unwrap(), (1, 3), "progress {progress}");
        assert!(is_all(target, 6));
    }
}

/// Receives stay for the remaining endpoints.
fn closing(lib: &Lib) {
    let mut group = Group::new(lib, 2);
    let target = memory(8);
    group.trecv(target, 1);
    group.side.close_ep();
    group.side.nothing(&[&group.peer]);
    group.send(&[7; 8], 1);
    group.sent();
    assert_eq!(group.next().done().op_context as usize, 1);
    assert!(is_all(target, 7));
}

/// A closing endpoint reports completed and aborted receives.
fn closing_with_a_pending_receive(lib: &Lib) {
    for size in [8, long_bytes()] {
        let mut group = Group::new(lib, 2);
        let target = memory(size);
        group.send(pattern(size), 0);
        group.side.nothing(&[&group.peer]);
        group.trecv(target, 1);
        group.side.close_ep();
        match group.next() {
            Outcome::Done(entry) => {
                assert_eq!(entry.op_context as usize, 1);
                assert!(target == pattern(size));
            }
            Outcome::Failed(entry) => assert!(entry.op_context as usize == 1 && size > 8),
        }
        group.side.nothing(&[&group.peer]);
    }
}

/// An endpoint closes that was the last to receive into a buffer. The remaining endpoints report its release.
fn closing_multi(lib: &Lib) {
    let mut group = Group::new(lib, 2);
    group.fill_multi();
    group.side.close_ep();
    group.multi_filled();
}
