//! An endpoint that sends to itself. Both ends of its links are in one engine, which recognizes such links by
//! the peer's identity.
#![allow(clippy::unwrap_used)]

mod scripted;

use std::sync::Arc;

use scripted::{CAPS, Case, Event, name};
use weft_engine::api::{ADDR_NONE, Addr, AddressBook, Config, Context, OpFlags, RecvFlags, RecvOp, SendOp};
use weft_engine::mem::Owned;
use weft_engine::name::{EpName, NameParts};
use weft_engine::nic::LinkId;

/// The endpoint's own name, with another socket.
fn alias() -> EpName {
    let me = name(1);
    EpName::full(&NameParts {
        socket: "127.0.0.1:7".parse().unwrap(),
        host_id: me.host_id(),
        ep_id: me.ep_id(),
        capability: me.capability(),
        context: None,
        shm: true,
        tcp: true,
    })
}

#[derive(Debug)]
struct Myself(EpName);

impl AddressBook for Myself {
    fn name(&self, addr: Addr) -> Option<EpName> {
        (addr == 0).then_some(self.0)
    }
    fn addr(&self, wanted: &EpName) -> Option<Addr> {
        self.0.same_endpoint(wanted).then_some(0)
    }
}

/// Carries messages over the link whose ends are `from`, which called, and `from + 100`.
fn carry(case: &mut Case, from: u32) {
    loop {
        case.run();
        let sent = std::mem::take(&mut case.engine.nic_mut().sent);
        if sent.is_empty() {
            return;
        }
        for (link, bytes) in sent {
            let to = if link.0 == from { from + 100 } else { from };
            case.tell(Event::Message(LinkId(to), bytes));
        }
    }
}

fn send(case: &mut Case, tag: u64, memory: &mut Owned) {
    let ctx = Context { ptr: 1, user: 0 };
    let iov = [memory.iov()];
    case.engine.send(&SendOp { dest: 0, iov: &iov, tag, data: 0, ctx, flags: OpFlags::TAGGED }).unwrap();
    case.run();
}

fn recv(case: &mut Case, tag: u64, memory: &mut Owned) {
    let iov = [memory.iov()];
    let op = RecvOp {
        src: ADDR_NONE,
        iov: &iov,
        tag,
        ignore: 0,
        ctx: Context { ptr: 2, user: 0 },
        flags: RecvFlags::TAGGED,
    };
    case.engine.recv(&op).unwrap();
    case.run();
}

/// Messages wait when the second link is made, and are received before the link is answered. The sender is
/// granted no more than the window.
#[test]
fn a_new_link_to_oneself_grants_the_rest_of_the_window() {
    for me in [name(1), alias()] {
        let config = Config { window_bytes: 64 << 10, ..Config::default() };
        let mut case = Case::new(CAPS, config);
        case.engine.bind_book(Arc::new(Myself(me)));
        case.engine.nic_mut().dials = Some(0);
        let mut memory = Owned::new(vec![1; 1000]);
        (0..40).for_each(|tag| send(&mut case, tag, &mut memory));
        case.tell(Event::Up { link: LinkId(0), peer: me, initiator: true });
        case.tell(Event::Up { link: LinkId(100), peer: name(1), initiator: false });
        carry(&mut case, 0);
        case.tell(Event::Down(LinkId(0)));
        send(&mut case, 40, &mut memory);
        case.tell(Event::Up { link: LinkId(1), peer: me, initiator: true });
        (0..40).for_each(|tag| recv(&mut case, tag, &mut memory));
        case.tell(Event::Up { link: LinkId(101), peer: name(1), initiator: false });
        carry(&mut case, 1);
        (41..200).for_each(|tag| send(&mut case, tag, &mut memory));
        carry(&mut case, 1);
        let closed = &case.engine.nic().closed;
        assert!(!closed.iter().any(|link| link.0 % 100 == 1), "{me}: more was sent than the window");
        let done = case.done();
        let failed = done.iter().find(|end| end.fault.is_some());
        assert!(failed.is_none(), "{me}: {failed:?}");
        assert!(done.len() > 2 * 40 + 50, "{me}: only {} operations have ended", done.len());
    }
}
