//! An endpoint that sends to itself, and writes to itself. Both ends of its links are in one engine, which recognizes
//! such links by the peer's identity.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod scripted;

use std::sync::Arc;

use scripted::{CAPS, Case, Event, name};
use weft_engine::api::{
    ADDR_NONE, Access, Addr, AddressBook, Config, Context, Fault, Kind, OpFlags, RecvFlags, RecvOp, Region, RmaIov,
    RmaOp, SendOp,
};
use weft_engine::mem::{self, IovList, Owned};
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

/// A write to oneself is done when the call returns, without a link, by either kind of name. A refused one has one
/// error with its context, and changes nothing.
#[test]
fn a_write_to_oneself_is_done_at_once() {
    for me in [name(1), alias(), EpName::service(name(1).socket())] {
        for flags in [OpFlags::empty(), OpFlags::DELIVERY, OpFlags::FREED, OpFlags::INJECT, OpFlags::FENCE] {
            let mut case = Case::new(CAPS, Config::default());
            case.engine.bind_book(Arc::new(Myself(me)));
            let (mut target, mut source) =
                (Owned::new(vec![0; 9000]), Owned::new((0..6000).map(|n| n as u8).collect()));
            let iov = IovList::from_slice(&[target.iov()]);
            let access = Access { read: false, write: true };
            case.engine
                .add_region(Region { key: 7, iov, base: 0, access, user: 3, events: true, mapping: None })
                .unwrap();
            let len = if flags.contains(OpFlags::INJECT) { 60 } else { 6000 };
            let cut = len / 3;
            let from = [source.iov().slice(0, cut / 2), source.iov().slice(cut / 2, len - cut / 2)];
            let piece = |addr: usize, len: usize| RmaIov { addr: addr as u64, len: len as u64, key: 7 };
            let remote = [piece(0, cut), piece(cut + 10, len - cut)];
            let ctx = Context { ptr: 5, user: 0 };
            let op = RmaOp { dest: 0, iov: &from, remote: &remote, data: 9, ctx, flags: flags | OpFlags::DATA };
            case.engine.write(&op).unwrap();
            let bytes = mem::to_vec(&[target.iov()]);
            let sent = mem::to_vec(&[source.iov()]);
            assert_eq!((&bytes[..cut], &bytes[cut + 10..len + 10]), (&sent[..cut], &sent[cut..len]), "{flags:?}");
            let ends = case.done();
            let [event, end] = ends.as_slice() else { panic!("{ends:?}") };
            assert_eq!((event.kind, event.len, event.data, event.src), (Kind::RemoteWrite, len, 9, 0));
            assert_eq!((end.kind, end.len, end.ctx.ptr, end.fault), (Kind::Write, len, 5, None), "{flags:?}");
            let beyond = [piece(0, cut), piece(9001 - len + cut, len - cut)];
            case.engine.write(&RmaOp { remote: &beyond, ..op }).unwrap();
            let ends = case.done();
            assert!(ends.len() == 1 && ends[0].ctx.ptr == 5 && ends[0].fault == Some(Fault::BadRange), "{ends:?}");
            assert_eq!(mem::to_vec(&[target.iov()]), bytes, "a refused write has changed memory");
            assert!(case.engine.at_rest() && case.engine.nic().sent.is_empty());
        }
    }
}

/// A write to oneself does not overtake an operation to oneself that waits for the link.
#[test]
fn a_write_to_oneself_follows_earlier_operations() {
    let mut case = Case::new(CAPS, Config::default());
    case.engine.bind_book(Arc::new(Myself(name(1))));
    case.engine.nic_mut().dials = Some(0);
    let (mut memory, mut target) = (Owned::new(vec![1; 8]), Owned::new(vec![0; 8]));
    let iov = IovList::from_slice(&[target.iov()]);
    let access = Access { read: false, write: true };
    case.engine.add_region(Region { key: 7, iov, base: 0, access, user: 3, events: false, mapping: None }).unwrap();
    send(&mut case, 1, &mut memory);
    let remote = [RmaIov { addr: 0, len: 8, key: 7 }];
    let ctx = Context { ptr: 5, user: 0 };
    let source = [memory.iov()];
    let op = RmaOp { dest: 0, iov: &source, remote: &remote, data: 0, ctx, flags: OpFlags::empty() };
    case.engine.write(&op).unwrap();
    assert_eq!((mem::to_vec(&[target.iov()]), case.done().len()), (vec![0; 8], 0));
    case.tell(Event::Up { link: LinkId(0), peer: name(1), initiator: true });
    case.tell(Event::Up { link: LinkId(100), peer: name(1), initiator: false });
    carry(&mut case, 0);
    assert_eq!(mem::to_vec(&[target.iov()]), vec![1; 8]);
    assert_eq!(case.done().iter().filter(|end| end.kind == Kind::Write && end.fault.is_none()).count(), 1);
}
