//! Calls in the wrong state: before an endpoint is enabled or after it, bindings that make no sense, and
//! parents that are closed while in use.

use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::side::{
    Args, CALLS, Side, alias, fabric_err, introduce, memory, pattern, scenes, set_min_multi_recv, works,
};

const BAD_STATE: i32 = -(FI_EOPBADSTATE as i32);

/// All scenes.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("before_enable", before_enable),
            ("no_receive_queue", no_receive_queue),
            ("no_transmit_queue", no_transmit_queue),
            ("bindings", bindings),
            ("busy_parents", busy_parents),
            ("older_info", older_info),
            ("aliases", aliases),
            ("early aliases", early_aliases),
        ],
    );
}

/// fi_endpoint(3): an endpoint must be enabled before it is used.
fn before_enable(lib: &Lib) {
    let side = Side::unbound(lib, 0, |_| ());
    let refused = |when: &str| {
        let buf = memory(64);
        for call in CALLS {
            let result = unsafe { (call.run)(side.ep, &Args::new(buf, 0)) };
            assert_eq!(result, fabric_err(FI_EOPBADSTATE), "{} {when}", call.name);
        }
        assert_eq!(side.cancel(1), fabric_err(FI_EOPBADSTATE), "fi_cancel {when}");
        assert_eq!(side.tx_left(), fabric_err(FI_EOPBADSTATE), "fi_tx_size_left {when}");
        let rx_left = unsafe { (*(*side.ep).ops).rx_size_left.unwrap()(side.ep) };
        assert_eq!(rx_left, fabric_err(FI_EOPBADSTATE), "fi_rx_size_left {when}");
    };
    refused("before anything is bound");
    assert_eq!(side.enable(), -(FI_ENOAV as i32));
    refused("after an enable that failed");
    assert_eq!(bind(side.ep, side.av, 0), 0);
    assert_eq!(side.enable(), -(FI_ENOCQ as i32));
    assert_eq!(bind(side.ep, side.cq, FI_RECV), 0);
    assert_eq!(side.enable(), -(FI_ENOCQ as i32), "no queue reports sends");
    assert_eq!(bind(side.ep, side.cq, FI_TRANSMIT), 0);
    refused("bound and not enabled");
    assert_eq!(side.poll().map(|outcome| outcome.context()), None);
    assert_eq!(side.enable(), 0);
    assert_eq!(side.enable(), BAD_STATE, "again");
    let mut name = side.name();
    let setname = unsafe { (*(*side.ep).cm).setname.unwrap() };
    assert_eq!(unsafe { setname(side.ep.cast(), name.as_mut_ptr().cast(), name.len()) }, BAD_STATE);
    let (a, b, to_b, _) = introduce(side, Side::new(lib));
    works(&a, &b, to_b);
}

/// An endpoint that was opened to receive needs no queue for transmits. A transmit is refused.
fn no_transmit_queue(lib: &Lib) {
    let a = Side::unbound(lib, 0, |hints| hints.get().caps = FI_MSG | FI_RECV | FI_RMA | FI_REMOTE_WRITE);
    assert_eq!(bind(a.ep, a.av, 0), 0);
    assert_eq!(bind(a.ep, a.cq, FI_RECV), 0);
    assert_eq!(a.enable(), 0);
    let (a, b, to_b, to_a) = introduce(a, Side::new(lib));
    let transmits: Vec<_> = CALLS.iter().filter(|call| !call.recv).collect();
    assert!(transmits.len() > 20);
    for call in transmits {
        let result = unsafe { (call.run)(a.ep, &Args::new(memory(64), to_b)) };
        assert_eq!(result, fabric_err(FI_ENOCQ), "{}", call.name);
    }
    assert_eq!(a.tx_left(), 0);
    let target = memory(64);
    a.start("fi_recv", &Args { context: 1, ..Args::new(target, 0) }, &[]);
    b.start("fi_send", &Args::new(pattern(64), to_a), &[]);
    assert_eq!(a.next(&[&b]).done().op_context as usize, 1);
    assert_eq!(*target, *pattern(64));
    b.next(&[&a]).done();
}

/// fi_endpoint(3): a client binds queues for the operations that an endpoint *will* start. An endpoint that
/// only transmits, and is the target of RMA, needs no receive queue, whatever its capabilities. A receive is
/// refused.
fn no_receive_queue(lib: &Lib) {
    let receiver = Side::unbound(lib, 0, |hints| hints.get().caps = FI_MSG | FI_RECV);
    assert_eq!(bind(receiver.ep, receiver.av, 0), 0);
    assert_eq!(bind(receiver.ep, receiver.cq, FI_TRANSMIT), 0);
    assert_eq!(receiver.enable(), -(FI_ENOCQ as i32), "the endpoint was opened to receive");
    let a = Side::unbound(lib, 0, |_| ());
    assert_eq!(bind(a.ep, a.av, 0), 0);
    assert_eq!(bind(a.ep, a.cq, FI_TRANSMIT), 0);
    assert_eq!(a.enable(), 0);
    let (a, b, to_b, to_a) = introduce(a, Side::new(lib));
    let buf = memory(64);
    let mut receives = 0;
    for call in CALLS.iter().filter(|call| call.name.contains("recv")) {
        assert_eq!(unsafe { (call.run)(a.ep, &Args::new(buf, to_b)) }, fabric_err(FI_ENOCQ), "{}", call.name);
        receives += 1;
    }
    assert_eq!(receives, 6, "fi_recv, fi_trecv and their forms");
    works(&a, &b, to_b);
    // A peer's message waits and disturbs nothing. A peer's write arrives.
    let region = memory(64);
    let mr = a.register(region, FI_REMOTE_WRITE, 1);
    b.tsend(pattern(64), to_a, 1);
    b.next(&[&a]).done();
    b.start("fi_writedata", &Args { key: 1, ..Args::new(pattern(64), to_a) }, &[&a]);
    b.next(&[&a]).done();
    assert_eq!(*region, *pattern(64));
    a.nothing(&[&b]);
    assert_eq!(close(mr), 0);
}

/// Objects that fi_getinfo reports as open (`fabric_attr.fabric`, `domain_attr.domain`) may be closed before
/// the client uses the answer, for example by another thread.
fn older_info(lib: &Lib) {
    let first = Side::new(lib);
    let info = lib.ask(lib.newest(), None).unwrap();
    assert_eq!(info.domain().domain, first.opened.domain, "fi_getinfo names the open domain");
    drop(first);
    let side = Side::opened(lib, 0, info);
    let (a, b, to_b, _) = introduce(side, Side::new(lib));
    works(&a, &b, to_b);
}

/// Bindings that are repeated, too late, between objects of two domains, or useless.
fn bindings(lib: &Lib) {
    let (side, other) = (Side::unbound(lib, 0, |_| ()), Side::unbound(lib, 0, |_| ()));
    let (ep, domain) = (side.ep, side.opened.domain);
    let another_domain = -(FI_EDOMAIN as i32);
    let (cntr, foreign_cntr) = (side.opened.cntr(), other.opened.cntr());
    let eq = side.opened.eq(|_| ()).unwrap();
    let mr = side.register(memory(8), FI_REMOTE_WRITE, 1);
    // The wrong kind of object.
    for (what, result) in [
        ("a domain", bind(ep, domain, 0)),
        ("a fabric", bind(ep, side.opened.fabric, 0)),
        ("itself", bind(ep, ep, 0)),
        ("another endpoint", bind(ep, other.ep, 0)),
        ("a region", bind(ep, mr, 0)),
        ("a queue to a vector", bind(side.av, side.cq, 0)),
        ("a vector to a domain", bind(domain, side.av, 0)),
        ("a queue to a region", bind(mr, side.cq, FI_REMOTE_WRITE)),
    ] {
        assert_eq!(result, -FI_EINVAL, "{what}");
    }
    // An object of another domain.
    for (what, result) in [
        ("vector", bind(ep, other.av, 0)),
        ("queue", bind(ep, other.cq, FI_TRANSMIT | FI_RECV)),
        ("counter", bind(ep, foreign_cntr, FI_SEND)),
        ("counter to a region", bind(mr, foreign_cntr, FI_REMOTE_WRITE)),
        ("endpoint to a region", bind(mr, other.ep, 0)),
    ] {
        assert_eq!(result, another_domain, "another domain's {what}");
    }
    // No direction.
    assert_eq!(bind(ep, side.cq, 0), -FI_EINVAL);
    assert_eq!(bind(ep, cntr, 0), -FI_EINVAL);
    // Repeated bindings.
    for (what, first, second) in [
        ("vector", bind(ep, side.av, 0), bind(ep, side.av, 0)),
        ("transmit queue", bind(ep, side.cq, FI_TRANSMIT), bind(ep, side.cq, FI_TRANSMIT)),
        ("receive queue", bind(ep, side.cq, FI_RECV), bind(ep, side.cq, FI_RECV | FI_TRANSMIT)),
        ("counter", bind(ep, cntr, FI_SEND | FI_READ), bind(ep, cntr, FI_READ | FI_WRITE)),
        ("event queue", bind(ep, eq, 0), bind(ep, eq, 0)),
    ] {
        assert_eq!((first, second), (0, -FI_EINVAL), "{what}");
    }
    // Bindings after enabling.
    assert_eq!(side.enable(), 0);
    let (late_av, late_cq) = (side.opened.av(|_| ()).unwrap(), side.opened.cq());
    assert_eq!(bind(ep, late_av, 0), BAD_STATE);
    assert_eq!(bind(ep, late_cq, FI_TRANSMIT), BAD_STATE);
    // A refused binding holds no reference.
    for result in [close(late_av), close(late_cq), close(foreign_cntr), close(mr)] {
        assert_eq!(result, 0);
    }
    drop(other);
    let mut peer = Side::new(lib);
    let to_peer = side.insert(&peer.name());
    works(&side, &peer, to_peer);
    peer.close_ep();
    let mut side = side;
    side.close_ep();
    for result in [close(cntr), close(eq)] {
        assert_eq!(result, 0);
    }
}

/// An object cannot be closed while operations or objects use it. Afterwards all of them can.
fn busy_parents(lib: &Lib) {
    let (mut a, mut b, to_b, to_a) = introduce(Side::new(lib), Side::new(lib));
    let (cntr, region_cntr) = (a.opened.cntr(), b.opened.cntr());
    assert_eq!(bind(a.ep, cntr, FI_SEND | FI_WRITE), 0);
    let mr = b.register(memory(4 << 20), FI_REMOTE_WRITE | FI_REMOTE_READ, 9);
    assert_eq!(bind(mr, region_cntr, FI_REMOTE_WRITE), 0);
    works(&a, &b, to_b);
    // A receive without a message, a message without a receive, and a write that is half done.
    a.trecv(memory(64), 1);
    a.tsend(pattern(4 << 20), to_b, 2);
    a.start("fi_write", &Args { key: 9, context: 3, ..Args::new(pattern(4 << 20), to_b) }, &[]);
    b.tsend(pattern(64), to_a, 4);
    b.progress();
    let held = |a: &Side<'_>, b: &Side<'_>| {
        for (what, result) in [
            ("the queue", close(a.cq)),
            ("the vector", close(a.av)),
            ("the counter", close(cntr)),
            ("the region's counter", close(region_cntr)),
            ("the domain", close(a.opened.domain)),
            ("the fabric", close(a.opened.fabric)),
            ("the other domain", close(b.opened.domain)),
        ] {
            assert_eq!(result, -FI_EBUSY, "{what}");
        }
    };
    held(&a, &b);
    for _ in 0..3 {
        a.progress();
        b.progress();
    }
    held(&a, &b);
    // The write still ends.
    let mut seen = vec![];
    while !seen.contains(&3) {
        let outcome = a.next(&[&b]);
        outcome.done();
        seen.push(outcome.context());
    }
    assert!(!seen.contains(&2), "the message has no receive");
    assert_eq!(close(mr), 0, "a region may be closed at any time");
    assert_eq!(close(region_cntr), 0);
    b.close_ep();
    a.close_ep();
    assert_eq!(close(cntr), 0);
    // Dropping the sides closes the other objects and checks the results.
}

/// An alias keeps its endpoint open. Each of the two is closed once.
fn aliases(lib: &Lib) {
    let mut side = Side::new(lib);
    let other = alias(side.ep, FI_TRANSMIT);
    assert_eq!(close(side.ep), -FI_EBUSY);
    // An alias is enabled with its endpoint, and cannot be enabled alone.
    assert_eq!(control(other, FI_ENABLE, null_mut()), -FI_EINVAL);
    assert_eq!(close(other), 0);
    // No direction, and both directions.
    let mut handle: *mut fid = null_mut();
    let mut request = fi_alias { fid: &mut handle, flags: 0 };
    for flags in [0, FI_TRANSMIT | FI_RECV, FI_TRANSMIT | FI_PEEK] {
        request.flags = flags;
        assert_eq!(control(side.ep, FI_ALIAS, (&raw mut request).cast()), -FI_EINVAL, "{flags:#x}");
    }
    side.close_ep();
}

/// An alias differs from its endpoint in its default flags only. Settings made through an alias before
/// fi_enable apply to the endpoint.
fn early_aliases(lib: &Lib) {
    let side = Side::unbound(lib, 0, |_| ());
    let other = alias(side.ep, FI_TRANSMIT);
    assert_eq!((bind(other, side.av, 0), bind(other, side.cq, FI_TRANSMIT | FI_RECV)), (0, 0));
    assert_eq!(bind(side.ep, side.av, 0), -FI_EINVAL, "already bound");
    set_min_multi_recv(other, 500);
    assert_eq!(side.enable(), 0);
    let (mut bytes, mut len) = (0_usize, size_of::<usize>());
    let getopt = unsafe { (*(*side.ep).ops).getopt.unwrap() };
    let (level, name) = (FI_OPT_ENDPOINT as i32, FI_OPT_MIN_MULTI_RECV as i32);
    assert_eq!(unsafe { getopt(side.ep.cast(), level, name, (&raw mut bytes).cast(), &mut len) }, 0);
    assert_eq!(bytes, 500);
    let mut name = side.name();
    let setname = unsafe { (*(*other).cm).setname.unwrap() };
    assert_eq!(unsafe { setname(other.cast(), name.as_mut_ptr().cast(), name.len()) }, BAD_STATE);
    let (a, b, to_b, _) = introduce(side, Side::new(lib));
    works(&a, &b, to_b);
    assert_eq!(close(other), 0);
}

/// FI_WEFT_IFACE holds an address that this host does not have.
pub(crate) fn wrong_interface(lib: &Lib) {
    let side = Side::unbound(lib, 0, |_| ());
    assert_eq!(bind(side.ep, side.av, 0), 0);
    assert_eq!(bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV), 0);
    assert_eq!(side.enable(), -FI_ENODEV);
}
