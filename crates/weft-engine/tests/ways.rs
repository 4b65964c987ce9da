//! Peers that are reached at more than one address, or whose address is learned late. Receives and operations
//! for an address are served in either case.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod scripted;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use scripted::{CAPS, Case, Event, FIRST_PROBE, PROTOCOL_VERSION, name, open, parts, words};
use weft_engine::Pool;
use weft_engine::api::{
    ADDR_NONE, Addr, AddressBook, Changes, Completion, Config, Context, Error, Fault, Matching, OpFlags, RecvFlags,
    RecvOp, SendOp,
};
use weft_engine::name::{EpName, NameParts};
use weft_engine::nic::{LinkError, LinkId, Notice};

const OPEN: u8 = 0;
const OPEN_OK: u8 = 1;
const OPEN_DUP: u8 = 2;
const EAGER: u8 = 8;
const RTS: u8 = 9;
/// The flag of a message with a tag.
const TAGGED: u8 = 1;

/// An address book in which the peers with the bytes 2 and 3 are both at address 0, which has this name.
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
    recv_as(case, tag, ptr, RecvFlags::empty());
}

fn recv_as(case: &mut Case, tag: u64, ptr: usize, flags: RecvFlags) {
    post(case, 0, tag, ptr, flags);
}

fn post(case: &mut Case, src: Addr, tag: u64, ptr: usize, flags: RecvFlags) {
    let (ctx, flags) = (Context { ptr, user: 0 }, RecvFlags::TAGGED | flags);
    case.engine.recv(&RecvOp { src, iov: &[], tag, ignore: 0, ctx, flags }).unwrap();
    case.run();
}

fn send(case: &mut Case, flags: OpFlags) -> Result<(), Error> {
    send_to(case, 0, flags)
}

fn send_to(case: &mut Case, dest: Addr, flags: OpFlags) -> Result<(), Error> {
    let ctx = Context { ptr: 3, user: 0 };
    case.engine.send(&SendOp { dest, iov: &[], tag: 0, data: 0, ctx, flags })
}

fn received(case: &mut Case) -> Vec<(usize, Addr)> {
    let done: Vec<Completion> = case.done();
    assert!(done.iter().all(|c| c.fault.is_none()), "{done:?}");
    done.iter().map(|c| (c.ctx.ptr, c.src)).collect()
}

/// A peer connects before its address is known to lead to it, and a receive names the address. The message is
/// received when the address is resolved, before the peer's next message.
#[test]
fn a_message_meets_the_receive_that_was_posted_for_its_address() {
    let mut case = case(Book { name: EpName::service("10.0.0.9:7".parse().unwrap()), knows: false });
    case.connect(0, 2);
    case.say(EAGER, TAGGED, &5u64.to_le_bytes());
    recv(&mut case, 5, 1);
    recv(&mut case, 5, 2);
    assert!(received(&mut case).is_empty(), "the sender's address is not known yet");
    case.engine.nic_mut().dials = Some(9);
    send(&mut case, OpFlags::QUIET).unwrap();
    case.tell(Event::Up { link: LinkId(9), peer: name(2), initiator: true });
    assert_eq!(received(&mut case), [(1, 0)]);
    case.say(EAGER, TAGGED, &5u64.to_le_bytes());
    assert_eq!(received(&mut case), [(2, 0)]);
}

/// The peer has left meanwhile, and the endpoint connects to it. The peer keeps its address after its last
/// message has been received.
#[test]
fn a_message_of_a_departed_peer_meets_the_receive_for_its_address() {
    let mut case = case(Book { name: EpName::service("10.0.0.9:7".parse().unwrap()), knows: false });
    case.connect(0, 2);
    case.say(EAGER, TAGGED, &words(&[5]));
    case.tell(Event::Down(case.link));
    recv(&mut case, 5, 1);
    recv(&mut case, 5, 2);
    case.engine.nic_mut().dials = Some(9);
    send(&mut case, OpFlags::QUIET).unwrap();
    (case.link, case.seq) = (LinkId(9), 0);
    case.tell(Event::Up { link: case.link, peer: name(2), initiator: true });
    assert_eq!(received(&mut case), [(1, 0)]);
    case.tell(Event::Message(case.link, open(1)));
    case.say(EAGER, TAGGED, &words(&[5]));
    assert_eq!(received(&mut case), [(2, 0)]);
}

/// Two links lead to one address, as to the contexts of a scalable endpoint. When one link ends, receives
/// from the address stay posted. When both have ended, the receives fail.
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

/// When a peer closes its endpoint in an orderly way, receives from it alone end, as they do when it dies.
/// Receives from any source stay posted.
#[test]
fn receives_end_with_a_peer_that_closes() {
    let mut case = Case::new(CAPS, Config::default());
    case.connect(0, 2);
    post(&mut case, 0, 5, 1, RecvFlags::empty());
    post(&mut case, ADDR_NONE, 5, 2, RecvFlags::empty());
    case.say(EAGER, TAGGED, &words(&[6]));
    case.tell(Event::Closed(case.link));
    let done: Vec<_> = case.done().iter().map(|c| (c.ctx.ptr, c.fault)).collect();
    assert_eq!(done, [(1, Some(Fault::Link(LinkError::Closed)))]);
    // The peer's earlier messages can still be received.
    post(&mut case, 0, 6, 3, RecvFlags::empty());
    assert_eq!(received(&mut case), [(3, 0)]);
}

/// An endpoint that closes itself does not report its receives.
#[test]
fn receives_do_not_end_with_their_own_endpoint() {
    let mut case = Case::new(CAPS, Config::default());
    case.connect(0, 2);
    post(&mut case, 0, 5, 1, RecvFlags::empty());
    case.engine.shutdown();
    assert!(case.done().is_empty());
}

/// A closed endpoint takes no message over another link while its last bytes leave: the message would be acknowledged
/// and lost.
#[test]
fn a_closed_endpoint_accepts_no_link() {
    let mut case = Case::new(CAPS, Config::default());
    case.connect(0, 2);
    let early = LinkId(1);
    case.tell(Event::Up { link: early, peer: name(3), initiator: false });
    case.engine.shutdown();
    assert!(case.engine.nic().open.is_empty(), "a link that was silent is closed as well");
    let sent = case.engine.nic().sent.len();
    case.engine.nic_mut().burst = true;
    for (link, peer) in [(2, 2), (3, 3)] {
        let link = LinkId(link);
        case.engine.nic_mut().events.push_back(Event::Up { link, peer: name(peer), initiator: false });
        case.tell(Event::Message(link, open(0)));
    }
    assert!(case.engine.nic().open.is_empty());
    assert_eq!(case.engine.nic().sent.len(), sent, "no link is confirmed");
    assert_eq!(case.engine.unexpected_messages(), 0);
}

/// An address book whose rows come and go.
#[derive(Debug, Default)]
struct Rows {
    rows: Mutex<Vec<Option<EpName>>>,
    /// Whether other processes write the book.
    foreign: bool,
    removals: AtomicU64,
}

impl Rows {
    fn bind(case: &mut Case, foreign: bool) -> Arc<Self> {
        let book = Arc::new(Self { foreign, ..Self::default() });
        case.engine.bind_book(Arc::clone(&book) as Arc<dyn AddressBook>);
        book
    }

    fn set(&self, rows: &[Option<EpName>]) {
        let mut old = self.rows.lock().unwrap();
        let removed = old.iter().enumerate().filter(|(at, row)| row.is_some() && rows.get(*at) != Some(*row));
        self.removals.fetch_add(removed.count() as u64, Ordering::Relaxed);
        *old = rows.to_vec();
    }
}

impl AddressBook for Rows {
    fn name(&self, addr: Addr) -> Option<EpName> {
        *self.rows.lock().unwrap().get(addr as usize)?
    }
    fn addr(&self, wanted: &EpName) -> Option<Addr> {
        let rows = self.rows.lock().unwrap();
        let find = |id| rows.iter().position(|row| row.is_some_and(|row| row.identity() == id));
        find(wanted.identity()).or_else(|| find(wanted.socket_identity())).map(|at| at as Addr)
    }
    fn changes(&self) -> Option<Changes> {
        let (removals, rows) = (self.removals.load(Ordering::Relaxed), self.rows.lock().unwrap().len() as u64);
        self.foreign.then_some(Changes { removals, rows })
    }
}

/// Two sockets lead to one endpoint, whose name contains neither. When one of the addresses is removed, the
/// endpoint keeps the other, also for messages that have already arrived.
#[test]
fn an_endpoint_is_at_the_sockets_that_lead_to_it() {
    for waits in [false, true] {
        let mut case = Case::new(CAPS, Config::default());
        let book = Rows::bind(&mut case, false);
        let [first, second] = ["10.0.0.9:7", "10.0.0.9:8"].map(|at| Some(EpName::service(at.parse().unwrap())));
        book.set(&[first, second]);
        case.engine.nic_mut().dials = Some(8);
        for (dest, link) in [(0, LinkId(8)), (1, LinkId(9))] {
            send_to(&mut case, dest, OpFlags::QUIET).unwrap();
            case.tell(Event::Up { link, peer: name(2), initiator: true });
            case.tell(Event::Message(link, open(1)));
        }
        case.link = LinkId(8);
        post(&mut case, 1, 5, 1, RecvFlags::empty());
        if waits {
            case.say(EAGER, TAGGED, &words(&[5]));
            assert!(received(&mut case).is_empty(), "the sender is known by the first address");
        }
        book.set(&[None, second]);
        case.engine.address_removed(0);
        if !waits {
            case.say(EAGER, TAGGED, &words(&[5]));
        }
        assert_eq!(received(&mut case), [(1, 1)], "{waits}");
    }
}

/// A peer is a stranger when it connects, and is in the book when a receive names its address. The receive
/// takes earlier and later messages.
#[test]
fn a_stranger_is_found_in_a_book_that_others_write() {
    for receives_first in [false, true] {
        let mut case = Case::new(CAPS, Config::default());
        let book = Rows::bind(&mut case, true);
        case.connect(0, 2);
        let say = |case: &mut Case| case.say(EAGER, TAGGED, &5u64.to_le_bytes());
        if receives_first {
            recv(&mut case, 5, 1);
            book.set(&[Some(name(2))]);
            say(&mut case);
        } else {
            say(&mut case);
            book.set(&[Some(name(2))]);
            recv(&mut case, 5, 1);
        }
        assert_eq!(received(&mut case), [(1, 0)], "{receives_first}");
    }
}

/// A receive names an address before it is inserted. A stranger that has sent a message turns out to be
/// there. The row has its own name, the name of its socket, or the name of its scalable endpoint.
#[test]
fn a_stranger_is_at_the_address_that_is_inserted() {
    let base = EpName::full(&NameParts { context: Some(0), ..parts(2) });
    let third = base.context(3).unwrap();
    for (peer, row) in [(name(2), name(2)), (name(2), EpName::service(name(2).socket())), (third, base)] {
        let mut case = Case::new(CAPS, Config::default());
        let book = Rows::bind(&mut case, false);
        case.connect_as(0, peer);
        case.say(EAGER, TAGGED, &words(&[5]));
        recv(&mut case, 5, 1);
        assert!(received(&mut case).is_empty(), "the sender's address is not known yet");
        book.set(&[Some(row)]);
        case.engine.address_added(0, &row);
        case.run();
        assert_eq!(received(&mut case), [(1, 0)], "{peer:?} {row:?}");
    }
}

/// Another process removes the address of a peer and inserts it again. The peer has the new address.
#[test]
fn a_peer_is_found_under_its_new_number_in_a_book_that_others_write() {
    for (receives_first, full) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut case = Case::new(CAPS, Config::default());
        let book = Rows::bind(&mut case, true);
        let row = Some(if full { name(2) } else { EpName::service(name(2).socket()) });
        book.set(&[row]);
        case.connect(0, 2);
        if !receives_first {
            case.say(EAGER, TAGGED, &words(&[5]));
        }
        book.set(&[None, row]);
        post(&mut case, 1, 5, 1, RecvFlags::empty());
        if receives_first {
            case.say(EAGER, TAGGED, &words(&[5]));
        }
        assert_eq!(received(&mut case), [(1, 1)], "{receives_first} {full}");
        // The new address also applies before later receives from any source, and when the peer dies.
        post(&mut case, 1, 5, 2, RecvFlags::empty());
        post(&mut case, ADDR_NONE, 5, 3, RecvFlags::empty());
        post(&mut case, 1, 5, 4, RecvFlags::empty());
        case.say(EAGER, TAGGED, &words(&[5]));
        assert_eq!(received(&mut case), [(2, 1)], "{receives_first} {full}");
        case.tell(Event::Down(case.link));
        assert!(matches!(case.done()[..], [Completion { fault: Some(_), ctx: Context { ptr: 4, .. }, .. }]));
    }
}

/// Another process replaces the socket of an endpoint by its name, while the endpoint is being connected. The
/// endpoint has the new address when it answers.
#[test]
fn an_answering_endpoint_has_its_current_address() {
    let mut case = Case::new(CAPS, Config::default());
    let book = Rows::bind(&mut case, true);
    book.set(&[Some(EpName::service(name(2).socket()))]);
    case.engine.nic_mut().dials = Some(9);
    send(&mut case, OpFlags::QUIET).unwrap();
    book.set(&[None, Some(name(2))]);
    post(&mut case, 1, 5, 1, RecvFlags::empty());
    (case.link, case.seq) = (LinkId(9), 0);
    case.tell(Event::Up { link: case.link, peer: name(2), initiator: true });
    case.tell(Event::Message(case.link, open(1)));
    case.say(EAGER, TAGGED, &words(&[5]));
    assert_eq!(received(&mut case), [(1, 1)]);
}

/// A receive from an address fails with the stranger that turns out to have been there.
#[test]
fn a_stranger_that_dies_was_in_a_book_that_others_write() {
    let mut case = Case::new(CAPS, Config::default());
    let book = Rows::bind(&mut case, true);
    case.connect(0, 2);
    recv(&mut case, 5, 1);
    book.set(&[Some(name(2))]);
    case.tell(Event::Down(case.link));
    assert!(matches!(case.done()[..], [Completion { fault: Some(_), .. }]));
}

/// Several peers claim one socket, which another process inserts. The peer that answers at the socket gets
/// the address.
#[test]
fn a_service_has_one_endpoint_in_a_book_that_others_write() {
    let mut case = Case::new(CAPS, Config::default());
    let book = Rows::bind(&mut case, true);
    (2..12).for_each(|peer| case.connect(peer.into(), peer));
    case.engine.nic_mut().lives = Some(name(5));
    book.set(&[Some(EpName::service(name(2).socket()))]);
    (0..10).for_each(|ptr| post(&mut case, 0, 5, ptr, RecvFlags::empty()));
    for link in 2..12 {
        (case.link, case.seq) = (LinkId(link), 0);
        case.say(EAGER, TAGGED, &words(&[5]));
    }
    assert_eq!(received(&mut case), [(0, 0)]);
    assert_eq!(case.engine.unexpected_messages(), 9);
}

/// A message that is received because its sender turns out to be in the book counts as a result of feeding.
#[test]
fn feeding_counts_strangers_in_a_book_that_others_write() {
    let mut case = Case::new(CAPS, Config::default());
    let book = Rows::bind(&mut case, true);
    let pool = Arc::new(Pool::new(Matching::default(), 8, 64));
    case.engine.bind_pool(Arc::clone(&pool), 0);
    case.connect(0, 2);
    case.say(EAGER, TAGGED, &words(&[5]));
    book.set(&[Some(name(2))]);
    let ctx = Context { ptr: 1, user: 0 };
    let op = RecvOp { src: 0, iov: &[], tag: 5, ignore: 0, ctx, flags: RecvFlags::TAGGED };
    pool.post(&op).unwrap();
    assert!(case.engine.feed(&op));
    assert_eq!(received(&mut case), [(1, 0)]);
    assert!(!case.engine.feed(&op));
}

/// A stranger sends messages with these tags. Shared receives with tag 5 and these ignore bits are posted.
/// Then the stranger turns out to be at their address.
fn shared(tags: &[u64], ignored: &[u64]) -> (Case, Arc<Pool>) {
    let mut case = case(Book { name: EpName::service("10.0.0.9:7".parse().unwrap()), knows: false });
    let pool = Arc::new(Pool::new(Matching::default(), 8, 64));
    case.engine.bind_pool(Arc::clone(&pool), 0);
    case.connect(0, 2);
    tags.iter().for_each(|tag| case.say(EAGER, TAGGED, &tag.to_le_bytes()));
    for (ptr, &ignore) in (1..).zip(ignored) {
        let ctx = Context { ptr, user: 0 };
        pool.post(&RecvOp { src: 0, iov: &[], tag: 5, ignore, ctx, flags: RecvFlags::TAGGED }).unwrap();
    }
    case.engine.nic_mut().dials = Some(9);
    send(&mut case, OpFlags::QUIET).unwrap();
    case.tell(Event::Up { link: LinkId(9), peer: name(2), initiator: true });
    (case, pool)
}

/// One message takes one of several shared receives.
#[test]
fn a_message_meets_one_shared_receive() {
    let (mut case, pool) = shared(&[5], &[0, 0]);
    assert_eq!(received(&mut case), [(1, 0)]);
    assert_eq!(pool.free(), 7, "the second receive waits");
    case.say(EAGER, TAGGED, &5u64.to_le_bytes());
    assert_eq!(received(&mut case), [(2, 0)]);
}

/// A shared receive takes the oldest of several messages that it accepts, although the receive before it took
/// a younger message.
#[test]
fn shared_receives_meet_messages_in_their_order() {
    let (mut case, _pool) = shared(&[5, 6, 5], &[0, u64::MAX]);
    let done: Vec<_> = case.done().iter().map(|c| (c.ctx.ptr, c.tag)).collect();
    assert_eq!(done, [(1, 5), (2, 6)]);
    assert_eq!(case.engine.unexpected_messages(), 1);
}

/// Sends quiet injects to a service, where a peer answers and hangs up, until one is accepted.
fn inject_until_accepted(case: &mut Case, peer: u8) {
    let flags = OpFlags::INJECT | OpFlags::QUIET;
    let first = u32::from(peer) * 10;
    case.engine.nic_mut().dials = Some(first);
    for link in first.. {
        if send(case, flags) == Ok(()) {
            break;
        }
        assert!(link < first + 3, "refused repeatedly");
        case.run();
        case.tell(Event::Up { link: LinkId(link), peer: name(peer), initiator: true });
        case.tell(Event::Down(LinkId(link)));
    }
    assert!(matches!(case.done()[..], [Completion { fault: Some(_), .. }]));
}

/// A quiet inject is refused until it can leave, or it is accepted and fails. This also holds if the name
/// behind a service was learned before its peer hung up, however long the client waits between calls.
#[test]
fn an_inject_to_a_service_that_hangs_up_fails_in_the_end() {
    let mut case = case(Book { name: EpName::service("10.0.0.9:7".parse().unwrap()), knows: false });
    inject_until_accepted(&mut case, 2);
}

/// Injects that follow accesses are not queued. They are sent at once if nothing is queued before them.
#[test]
fn an_inject_after_accesses_leaves_or_is_refused() {
    let mut case = case(Book { name: name(2), knows: true });
    case.engine.nic_mut().dials = Some(9);
    let flags = OpFlags::INJECT | OpFlags::QUIET | OpFlags::AFTER_ACCESSES;
    assert_eq!(send(&mut case, flags), Err(Error::Again));
    case.connect(0, 2);
    assert_eq!(send(&mut case, flags), Ok(()));
    assert_eq!(case.sent(EAGER)[0], EAGER);
    case.engine.nic_mut().room = 0;
    assert_eq!(send(&mut case, flags), Err(Error::Again));
}

/// A case whose book has only the socket at which name(2) and all other peers claim to listen.
fn at_a_socket() -> Case {
    let mut case = Case::new(CAPS, Config::default());
    Rows::bind(&mut case, false).set(&[Some(EpName::service(name(2).socket()))]);
    case
}

/// The peers of several links each send their first message, in this order.
fn send_on_each(case: &mut Case, links: impl IntoIterator<Item = u32>) {
    for link in links {
        (case.link, case.seq) = (LinkId(link), 0);
        case.say(EAGER, TAGGED, &words(&[5]));
    }
}

/// A peer that claims a socket at which another endpoint answers is a stranger. It does not get the address,
/// and does not hide the death of the endpoint there.
#[test]
fn a_claim_counts_only_where_its_peer_answers() {
    let mut case = at_a_socket();
    case.engine.nic_mut().lives = Some(name(2));
    case.call_as(0, name(3));
    case.call_as(1, name(2));
    case.call_as(2, name(4));
    assert!(case.engine.nic().closed.iter().all(|link| link.0 >= FIRST_PROBE), "all links are open");
    (1..4).for_each(|ptr| post(&mut case, 0, 5, ptr, RecvFlags::empty()));
    send_on_each(&mut case, 0..3);
    assert_eq!(received(&mut case), [(1, 0)]);
    assert_eq!(case.engine.unexpected_messages(), 2);
    case.tell(Event::Down(LinkId(1)));
    let done: Vec<_> = case.done().iter().map(|c| (c.ctx.ptr, c.fault)).collect();
    assert_eq!(done, [2, 3].map(|ptr| (ptr, Some(Fault::Link(LinkError::Gone)))));
    post(&mut case, ADDR_NONE, 5, 4, RecvFlags::empty());
    assert_eq!(received(&mut case), [(4, ADDR_NONE)]);
}

/// A claim is void if no endpoint answers at the socket, or if no link to it can be made. Otherwise the call
/// waits for the answer.
#[test]
fn a_claim_waits_for_the_answer() {
    for down in [false, true] {
        let mut case = at_a_socket();
        case.engine.nic_mut().dials = Some(FIRST_PROBE).filter(|_| down);
        case.call_as(0, name(2));
        if down {
            assert!(sent_on(&case, LinkId(0)).is_empty(), "the endpoint is not known yet");
            // The engine retries the connection several times; no operation waits for it.
            (FIRST_PROBE..FIRST_PROBE + 8).for_each(|link| case.tell(Event::Down(LinkId(link))));
            assert_eq!(case.engine.nic().open, [LinkId(0)]);
        }
        post(&mut case, 0, 5, 1, RecvFlags::empty());
        send_on_each(&mut case, [0]);
        assert!(received(&mut case).is_empty());
        post(&mut case, ADDR_NONE, 5, 2, RecvFlags::empty());
        assert_eq!(received(&mut case), [(2, ADDR_NONE)]);
    }
    let mut case = at_a_socket();
    case.engine.nic_mut().dials = Some(FIRST_PROBE);
    case.call_as(0, name(2));
    case.tell(Event::Up { link: LinkId(FIRST_PROBE), peer: name(2), initiator: true });
    post(&mut case, ADDR_NONE, 5, 1, RecvFlags::empty());
    send_on_each(&mut case, [0]);
    assert_eq!(received(&mut case), [(1, 0)]);
    // Operations to the address use the existing link.
    send(&mut case, OpFlags::QUIET).unwrap();
    assert_eq!(case.engine.nic().open, [LinkId(0)]);
}

/// Of the calls of one peer that wait for an answer, only the latest are kept.
#[test]
fn calls_that_wait_are_few() {
    let mut case = at_a_socket();
    case.engine.nic_mut().dials = Some(FIRST_PROBE);
    (0..20).for_each(|link| case.call_as(link, name(2)));
    assert_eq!(case.engine.nic().open.len(), 8 + 1);
    case.tell(Event::Up { link: LinkId(FIRST_PROBE), peer: name(2), initiator: true });
    assert_eq!(case.engine.nic().open, [LinkId(12)], "the oldest kept call is used");
}

/// An endpoint that answers at a socket replaces its predecessor there. Operations to the predecessor end,
/// and so do receives from it alone.
#[test]
fn an_address_is_taken_over() {
    let mut case = at_a_socket();
    case.connect(0, 2);
    post(&mut case, 0, 5, 1, RecvFlags::empty());
    send(&mut case, OpFlags::DELIVERY).unwrap();
    case.run();
    case.connect(1, 3);
    let gone = Some(Fault::Link(LinkError::Gone));
    let mut done: Vec<_> = case.done().iter().map(|c| (c.ctx.ptr, c.fault)).collect();
    done.sort_by_key(|&(ptr, _)| ptr);
    assert_eq!(done, [(1, gone), (3, gone)]);
    assert!(case.engine.nic().closed.contains(&LinkId(0)));
    post(&mut case, 0, 5, 2, RecvFlags::empty());
    send_on_each(&mut case, [1]);
    assert_eq!(received(&mut case), [(2, 0)]);
}

/// An endpoint limits the state that successive endpoints at one socket leave behind.
#[test]
fn a_service_has_few_claimants() {
    let mut case = at_a_socket();
    for peer in 2..12 {
        case.connect(peer.into(), peer);
        assert!(!case.is_cut(), "{peer} is refused");
        send_on_each(&mut case, [peer.into()]);
        case.tell(Event::Down(case.link));
        assert_eq!(case.engine.unexpected_messages(), usize::from(peer - 1).min(4));
    }
    // The first ones have lost their messages.
    recv(&mut case, 5, 1);
    assert_eq!(received(&mut case), [(1, 0)]);
    assert_eq!(case.engine.nic().notices[0], Notice::Forgets);
}

/// A peer claims no service if it left before the endpoint's answer was sent. The same holds if its state is
/// gone: its message was received or discarded, or the loss of its long message was reported.
#[test]
fn departed_peers_claim_no_service() {
    type Step<'a> = &'a dyn Fn(&mut Case);
    let message = |case: &mut Case| case.say(EAGER, TAGGED, &words(&[5]));
    let long = |case: &mut Case| case.say(RTS, TAGGED, &words(&[3, 5, 0, 100]));
    let claimed = |case: &mut Case| {
        long(case);
        recv_as(case, 5, 1, RecvFlags::PEEK | RecvFlags::CLAIM);
    };
    let ways: [(usize, Step<'_>, Step<'_>); 5] = [
        (0, &|_| {}, &|_| {}),
        (9, &message, &|case| recv(case, 5, 1)),
        (9, &message, &|case| recv_as(case, 5, 1, RecvFlags::PEEK | RecvFlags::DISCARD)),
        (9, &long, &|case| recv(case, 5, 1)),
        (9, &claimed, &|case| recv_as(case, 5, 1, RecvFlags::CLAIM)),
    ];
    for (way, (room, before, after)) in ways.into_iter().enumerate() {
        let mut case = Case::new(CAPS, Config::default());
        Rows::bind(&mut case, false).set(&[Some(EpName::service(name(2).socket()))]);
        for peer in 2..12 {
            case.engine.nic_mut().room = room;
            case.connect(peer.into(), peer);
            assert!(!case.is_cut(), "way {way}: {peer} is refused");
            before(&mut case);
            case.tell(Event::Down(case.link));
            after(&mut case);
            let done = case.done();
            assert!(done.iter().all(|c| c.src == 0), "way {way}: {done:?}");
            assert_eq!(case.engine.unexpected_messages(), 0, "way {way}");
        }
    }
}

/// A long message whose sender is gone keeps its place. The receive that matches it fails, and the next
/// receive takes the next message.
#[test]
fn a_lost_message_keeps_its_place() {
    let mut case = case(Book { name: name(2), knows: true });
    case.connect(0, 2);
    case.say(RTS, TAGGED, &words(&[3, 5, 0, 100]));
    case.say(EAGER, TAGGED, &words(&[5]));
    case.say(RTS, TAGGED, &words(&[4, 6, 0, 100]));
    case.tell(Event::Down(case.link));
    assert!(case.done().is_empty());
    recv_as(&mut case, 6, 1, RecvFlags::PEEK | RecvFlags::DISCARD);
    (2..5).for_each(|ptr| recv(&mut case, 5, ptr));
    let done: Vec<_> = case.done().iter().map(|c| (c.ctx.ptr, c.fault)).collect();
    assert_eq!(done, [(1, None), (2, Some(Fault::Link(LinkError::Gone))), (3, None)]);
    assert_eq!(case.engine.unexpected_messages(), 0);
}

/// Announcements of a peer in no address vector end with its link. Receives continue to wait for other
/// messages; only a claim on an announcement fails.
#[test]
fn announcements_end_with_a_stranger() {
    let mut case = Case::new(CAPS, Config::default());
    case.connect(0, 20);
    (0..1000).for_each(|op| case.say(RTS, TAGGED, &words(&[op, 5, 0, 100])));
    case.say(RTS, TAGGED, &words(&[1000, 6, 0, 100]));
    case.say(EAGER, TAGGED, &words(&[7]));
    post(&mut case, ADDR_NONE, 6, 1, RecvFlags::PEEK | RecvFlags::CLAIM);
    assert_eq!(received(&mut case), [(1, ADDR_NONE)]);
    case.tell(Event::Down(case.link));
    assert_eq!(case.engine.unexpected_messages(), 2, "a complete message and a claimed one");
    (0..1000).for_each(|ptr| post(&mut case, ADDR_NONE, 5, ptr, RecvFlags::empty()));
    post(&mut case, ADDR_NONE, 7, 1001, RecvFlags::empty());
    assert_eq!(received(&mut case), [(1001, ADDR_NONE)]);
    post(&mut case, ADDR_NONE, 6, 1, RecvFlags::CLAIM);
    assert!(matches!(case.done()[..], [Completion { fault: Some(Fault::Link(LinkError::Gone)), .. }]));
    assert_eq!((case.engine.unexpected_messages(), case.engine.posted_receives()), (0, 1000));
    // The next peer's messages match the waiting receives.
    case.connect(1, 2);
    case.say(EAGER, TAGGED, &words(&[5]));
    assert_eq!(received(&mut case), [(0, 0)]);
}

/// Peers that hung up when an inject connected to them claim no service once the failure is reported.
#[test]
fn peers_that_hung_up_claim_no_service() {
    let mut case = Case::new(CAPS, Config::default());
    Rows::bind(&mut case, false).set(&[Some(EpName::service(name(2).socket()))]);
    (2..7).for_each(|peer| inject_until_accepted(&mut case, peer));
    case.connect(7, 7);
    assert!(!case.is_cut());
}

/// A peer that connects again after its link ended keeps its address, or gets it if it was a stranger before.
/// Its earlier and its later messages are received.
#[test]
fn a_peer_that_reconnects_keeps_its_service() {
    for stranger in [false, true] {
        let message = |case: &mut Case| case.say(EAGER, TAGGED, &words(&[5]));
        let mut case = case(Book { name: EpName::service(name(2).socket()), knows: !stranger });
        case.connect(0, 2);
        if stranger {
            message(&mut case);
        }
        case.tell(Event::Down(case.link));
        Rows::bind(&mut case, false).set(&[Some(EpName::service(name(2).socket()))]);
        recv(&mut case, 5, 1);
        case.connect(1, 2);
        if !stranger {
            message(&mut case);
        }
        assert_eq!(received(&mut case), [(1, 0)], "{stranger}");
        recv(&mut case, 5, 2);
        message(&mut case);
        assert_eq!(received(&mut case), [(2, 0)], "{stranger}");
    }
}

/// Operations fail only with links that this endpoint made. If a peer connected and left before the answer
/// was sent, the endpoint connects to it for its next operation.
#[test]
fn an_inject_does_not_fail_with_a_peers_call() {
    let mut case = case(Book { name: name(2), knows: true });
    case.engine.nic_mut().room = 0;
    case.connect(0, 2);
    case.tell(Event::Down(LinkId(0)));
    case.engine.nic_mut().dials = Some(9);
    assert_eq!(send(&mut case, OpFlags::INJECT | OpFlags::QUIET), Err(Error::Again));
    assert_eq!(case.engine.nic().open, [LinkId(9)]);
}

/// The OPEN of a peer that has connected `number` times before.
fn call(number: u64) -> Vec<u8> {
    words(&[u64::from(OPEN), PROTOCOL_VERSION | number << 32, 1 << 20])
}

/// Connects to a peer with a greater name: its own call waits for the end of this attempt once OPEN is sent.
fn calling(case: &mut Case, mine: LinkId) -> u8 {
    case.engine.nic_mut().dials = Some(mine.0);
    let peer = (3..8).find(|byte| name(*byte) > name(1)).unwrap();
    send_to(case, Addr::from(peer) - 2, OpFlags::empty()).unwrap();
    case.run();
    peer
}

/// The kinds of the messages that were sent on a link.
fn sent_on(case: &Case, link: LinkId) -> Vec<u8> {
    case.engine.nic().sent.iter().filter(|(on, _)| *on == link).map(|(_, bytes)| bytes[0]).collect()
}

/// Links do not preserve each other's order. The OPEN of an abandoned call may arrive after the OPEN of the
/// next call, followed by its end.
#[test]
fn a_call_that_was_given_up_does_not_end_the_next() {
    let mut case = Case::new(CAPS, Config::default());
    let [late, next, mine] = [1, 2, 100].map(LinkId);
    let peer = calling(&mut case, mine);
    for link in [late, next] {
        case.tell(Event::Up { link, peer: name(peer), initiator: false });
    }
    case.tell(Event::Message(next, call(2)));
    case.tell(Event::Message(late, call(1)));
    // The attempt of this side has sent nothing, and is given up for the peer's.
    let closed = &case.engine.nic().closed;
    assert!(sent_on(&case, late) == [OPEN_DUP] && *closed == [mine, late], "{:?} {closed:?}", sent_on(&case, late));
    assert!(sent_on(&case, next)[0] == OPEN_OK && case.done().iter().all(|done| done.fault.is_none()));
    // An abandoned call is not accepted when there is no other link either.
    case.tell(Event::Down(next));
    let [late, next] = [3, 4].map(LinkId);
    for (link, number, answer) in [(late, 1, OPEN_DUP), (next, 3, OPEN_OK)] {
        case.tell(Event::Up { link, peer: name(peer), initiator: false });
        case.tell(Event::Message(link, call(number)));
        assert_eq!(sent_on(&case, link), [answer]);
    }
}

/// The endpoint's call has broken after its OPEN. The peer may have abandoned its own call, whose end is
/// still in transit.
#[test]
fn a_waiting_call_is_not_accepted_after_the_own_call_broke() {
    let mut case = Case::new(CAPS, Config::default());
    let [theirs, mine, again] = [1, 100, 101].map(LinkId);
    let peer = calling(&mut case, mine);
    case.tell(Event::Up { link: mine, peer: name(peer), initiator: true });
    case.tell(Event::Up { link: theirs, peer: name(peer), initiator: false });
    case.tell(Event::Message(theirs, call(1)));
    assert_eq!(sent_on(&case, theirs), [0; 0], "the peer may have taken the OPEN of this side");
    case.tell(Event::Down(mine));
    assert_eq!((sent_on(&case, mine), sent_on(&case, theirs)), (vec![OPEN], vec![OPEN_DUP]));
    // The send waits for the next link.
    case.tell(Event::Up { link: again, peer: name(peer), initiator: true });
    case.tell(Event::Message(again, open(OPEN_OK)));
    assert_eq!(sent_on(&case, again), [OPEN, EAGER]);
    assert!(case.done().iter().all(|done| done.fault.is_none()));
}
