//! Peers that are reached in more than one way, or whose way turns out only later: what was posted for an address is served whichever is taken.
#![allow(clippy::unwrap_used)]

mod told;

use std::sync::Arc;

use told::{CAPS, Case, Event, name};
use weft_engine::api::{ADDR_NONE, Addr, AddressBook, Completion, Config, Context, OpFlags, RecvOp, SendOp};
use weft_engine::name::EpName;
use weft_engine::nic::LinkId;

/// EAGER, tagged.
const EAGER: u8 = 8;
const TAGGED: u8 = 1;

/// The peers called 2 and 3 are both at 0, which has this name.
#[derive(Debug)]
struct Book {
    name: EpName,
    knows: bool,
}

impl AddressBook for Book {
    fn name(&self, addr: Addr) -> Option<EpName> {
        (addr == 0).then_some(self.name)
    }
    fn addr(&self, wanted: &EpName) -> Option<Addr> {
        (self.knows && [name(2), name(3)].iter().any(|known| known.same_endpoint(wanted))).then_some(0)
    }
}

fn case(book: Book) -> Case {
    let mut case = Case::new(CAPS, Config::default());
    case.engine.bind_book(Arc::new(book));
    case
}

fn recv(case: &mut Case, tag: u64, ptr: usize) {
    let ctx = Context { ptr, user: 0 };
    case.engine.recv(&RecvOp { src: 0, iov: &[], tag, ignore: 0, ctx, flags: OpFlags::TAGGED }).unwrap();
    case.run();
}

fn received(case: &mut Case) -> Vec<(usize, Addr)> {
    let done: Vec<Completion> = case.done();
    assert!(done.iter().all(|c| c.fault.is_none()), "{done:?}");
    done.iter().map(|c| (c.ctx.ptr, c.src)).collect()
}

/// A peer calls before its address leads to it, and a receive names the address: its message is received once the way is known, and before
/// the next.
#[test]
fn a_message_meets_the_receive_that_was_posted_for_its_address() {
    let mut case = case(Book { name: EpName::service("10.0.0.9:7".parse().unwrap()), knows: false });
    case.connect(0, 2);
    case.say(EAGER, TAGGED, &5u64.to_le_bytes());
    recv(&mut case, 5, 1);
    recv(&mut case, 5, 2);
    assert!(received(&mut case).is_empty(), "nobody knows yet that it is from there");
    case.engine.nic_mut().dials = Some(9);
    let ctx = Context { ptr: 3, user: 0 };
    case.engine.send(&SendOp { dest: 0, iov: &[], tag: 0, data: 0, ctx, flags: OpFlags::QUIET }).unwrap();
    case.tell(Event::Up { link: LinkId(9), peer: name(2), initiator: true });
    assert_eq!(received(&mut case), [(1, 0)]);
    case.say(EAGER, TAGGED, &5u64.to_le_bytes());
    assert_eq!(received(&mut case), [(2, 0)]);
}

/// Two links lead to one address, as to the contexts of a scalable endpoint. The end of one leaves receives from there to the other, and the
/// end of both fails them.
#[test]
fn receives_from_an_address_live_as_long_as_a_link() {
    let mut case = case(Book { name: name(2), knows: true });
    case.connect(0, 3);
    case.connect(1, 2);
    recv(&mut case, 5, 1);
    recv(&mut case, 6, 2);
    case.tell(Event::Down(LinkId(0)));
    case.say(EAGER, TAGGED, &5u64.to_le_bytes());
    assert_eq!(received(&mut case), [(1, 0)]);
    case.tell(Event::Down(LinkId(1)));
    let done = case.done();
    assert!(
        matches!(&done[..], [Completion { fault: Some(_), src: ADDR_NONE, ctx: Context { ptr: 2, .. }, .. }]),
        "{done:?}"
    );
}
