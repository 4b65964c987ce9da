//! Peers in no address vector can make an endpoint hold a bounded amount of memory, whatever the number of
//! their names. Freed memory serves others.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod scripted;

use std::cell::Cell;
use std::sync::Arc;

use scripted::{CAPS, Case, Event, parts, u64_at, words};
use weft_engine::api::{ADDR_NONE, Addr, AddressBook, Config, Context, RecvFlags, RecvOp};
use weft_engine::mem::Owned;
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, Notice};

const OPEN_OK: u8 = 1;
const EAGER: u8 = 8;
const RTS: u8 = 9;
const CREDIT: u8 = 13;
const WRITE: u8 = 14;
const TAGGED: u8 = 1;
const COLLECTIVE: u8 = 64;

const WINDOW: u64 = 4 << 20;
const BUDGET: u64 = 64 << 20;
/// Cost of a message beside its payload.
const COST: u64 = 64;

/// One of the names that a process can generate in any number.
fn identity(number: u32) -> EpName {
    let mut capability = [0x5a; 16];
    capability[..4].copy_from_slice(&number.to_le_bytes());
    EpName::full(&NameParts { ep_id: endpoint_id(&capability), capability, ..parts(1) })
}

/// An address vector with this name only.
#[derive(Debug)]
struct Only(EpName);

impl AddressBook for Only {
    fn name(&self, addr: Addr) -> Option<EpName> {
        (addr == 0).then_some(self.0)
    }
    fn addr(&self, name: &EpName) -> Option<Addr> {
        self.0.same_endpoint(name).then_some(0)
    }
}

fn case(config: Config) -> Case {
    Case::new(CAPS, config)
}

/// Connects another stranger. Returns its window in bytes.
fn connect(case: &mut Case, number: u32) -> u64 {
    case.connect_as(number, identity(number));
    case.engine
        .nic_mut()
        .sent
        .drain(..)
        .find(|(_, bytes)| bytes[0] == OPEN_OK)
        .map_or(0, |(_, bytes)| u64_at(&bytes, 16))
}

fn receive(case: &mut Case, flags: RecvFlags) -> usize {
    let mut memory = Owned::new(vec![0; 4096]);
    let op = RecvOp { src: ADDR_NONE, iov: &[memory.iov()], tag: 5, ignore: 0, ctx: Context::default(), flags };
    case.engine.recv(&op).unwrap();
    case.run();
    case.done().iter().filter(|done| done.fault.is_none()).count()
}

/// The sum of all strangers' windows stays within the budget, whether the windows are used or not. Each
/// stranger can send something.
#[test]
fn windows_of_strangers_share_a_budget() {
    let mut case = case(Config::default());
    let windows: Vec<u64> = (0..5000).map(|number| connect(&mut case, number)).collect();
    assert!(windows.is_sorted_by(|a, b| a >= b));
    let [widest, narrowest] = [windows[0], windows[4999]];
    assert!(widest == 64 << 10 && narrowest >= 2048, "{widest}, {narrowest}");
    assert!(windows.iter().sum::<u64>() <= BUDGET);
    // The last stranger exceeds its small window.
    case.say(EAGER, 0, &vec![1; 1900]);
    assert!(!case.is_cut());
    case.say(EAGER, 0, &vec![1; 1900]);
    assert!(case.is_cut());
    // Strangers that leave return their windows, except for the bytes of queued messages.
    (0..5000).for_each(|number| case.tell(Event::Down(LinkId(number))));
    assert_eq!(connect(&mut case, 6000), 64 << 10);
    assert_eq!(case.engine.unexpected_messages(), 1);
}

/// The window of a stranger grows to the usual size as its messages are received. It shrinks when other
/// strangers need the budget.
#[test]
fn a_window_grows_with_use_and_shrinks_for_others() {
    let mut case = case(Config::default());
    let mut left = connect(&mut case, 0);
    let mut widest = left;
    let traffic = |case: &mut Case, left: &mut u64, bytes: u64| {
        let mut widest = 0;
        for _ in 0..bytes / (1000 + COST) {
            *left = left.checked_sub(1000 + COST).expect("window");
            case.say(EAGER, TAGGED, &[&words(&[5]), &vec![1; 1000][..]].concat());
            assert_eq!(receive(case, RecvFlags::TAGGED), 1);
            let sent = std::mem::take(&mut case.engine.nic_mut().sent);
            *left += sent
                .iter()
                .filter(|(on, bytes)| *on == case.link && bytes[0] == CREDIT)
                .map(|(_, bytes)| u64_at(bytes, 8))
                .sum::<u64>();
            widest = widest.max(*left);
        }
        widest
    };
    widest = widest.max(traffic(&mut case, &mut left, 8 << 20));
    assert!(widest > WINDOW * 9 / 10 && widest <= WINDOW, "{widest}");
    // Other strangers take the budget.
    let (link, seq) = (case.link, case.seq);
    let crowd: u64 = (1..2000).map(|number| connect(&mut case, number)).sum();
    assert!(crowd + widest <= BUDGET);
    (case.link, case.seq) = (link, seq);
    traffic(&mut case, &mut left, 8 << 20);
    let now = traffic(&mut case, &mut left, 1 << 20);
    assert!(now < WINDOW / 4, "{now}");
    assert!(!case.is_cut());
    // The others return the budget.
    (1..2000).for_each(|number| case.tell(Event::Down(LinkId(number))));
    let widest = traffic(&mut case, &mut left, 16 << 20);
    assert!(widest > WINDOW * 9 / 10 && widest <= WINDOW, "{widest}");
}

/// A peer that is inserted into the address vector gets the window of known peers.
#[test]
fn a_stranger_that_becomes_known_has_the_usual_window() {
    let mut case = case(Config::default());
    (1..2000).for_each(|number| {
        connect(&mut case, number);
    });
    let first = connect(&mut case, 0);
    assert!(first < 16 << 10, "{first}");
    case.engine.bind_book(Arc::new(Only(identity(0))));
    case.engine.address_added(0, &identity(0));
    case.run();
    assert_eq!(u64_at(&case.sent(CREDIT), 8), WINDOW - first);
    // Further strangers do not reduce the window.
    (2000..4000).for_each(|number| {
        connect(&mut case, number);
    });
    case.tell(Event::Down(LinkId(0)));
    assert_eq!(connect(&mut case, 0), WINDOW);
}

/// Announcements and untaken answers of all strangers share one limit. At the limit, the stranger with the
/// most state loses its link.
#[test]
fn memory_of_strangers_has_one_bound() {
    let announce = |case: &mut Case| case.say(RTS, 0, &words(&[3, 5, 0, 100]));
    let refusal = |case: &mut Case| case.say(WRITE, 0, &words(&[scripted::pair(3, 0), 8, 0, 0]));
    let tag = Cell::new(0);
    let collective = |case: &mut Case| {
        tag.set(tag.get() + 1);
        // Messages of joins wait, as the join may begin later. Those of other groups are discarded.
        case.say(RTS, COLLECTIVE | TAGGED, &words(&[3, 1 << 63 | tag.get(), 0, 100]));
    };
    for (ask, room) in [(&announce as &dyn Fn(&mut Case), usize::MAX), (&refusal, 0), (&collective, usize::MAX)] {
        let mut case = case(Config { stranger_bytes: 4 << 20, ..Config::default() });
        let modest = |case: &mut Case, seq| (case.link, case.seq) = (LinkId(0), seq);
        connect(&mut case, 0);
        case.engine.nic_mut().room = room;
        (0..10).for_each(|_| ask(&mut case));
        let mut asked = 0_u64;
        for number in 1..40 {
            // The answer to the stranger's call leaves first.
            case.engine.nic_mut().room = room.max(1);
            connect(&mut case, number);
            case.engine.nic_mut().room = room;
            for _ in 0..4000 {
                if case.is_cut() {
                    break;
                }
                ask(&mut case);
                asked += 1;
            }
            assert!(case.engine.unexpected_messages() as u64 * 192 <= (4 << 20) + 192);
        }
        assert!(asked > 60_000, "{asked}");
        let open = case.engine.nic().open.len();
        assert!((4..35).contains(&open), "{open} links");
        modest(&mut case, 10);
        ask(&mut case);
        assert!(!case.is_cut(), "a stranger with little state keeps its link");
        // The limit does not apply to a peer in the address vector.
        case.engine.nic_mut().room = room.max(1);
        case.connect(100, 2);
        case.engine.nic_mut().room = room;
        (0..100_000).for_each(|_| ask(&mut case));
        assert!(!case.is_cut());
    }
}

/// At the maximum number of strangers, those that have been idle for long make room.
#[test]
fn an_idle_stranger_makes_room() {
    let mut case = case(Config { max_strangers: 10, ..Config::default() });
    for number in 0..10 {
        connect(&mut case, number);
    }
    // One stranger has left a message, and one sends a message now and then.
    (case.link, case.seq) = (LinkId(3), 0);
    case.say(EAGER, 0, &[1]);
    let mut taken = Vec::new();
    for number in 10..210 {
        (case.link, case.seq) = (LinkId(5), number - 10);
        case.say(EAGER, TAGGED, &words(&[5]));
        assert_eq!(receive(&mut case, RecvFlags::TAGGED), 1);
        connect(&mut case, number);
        if !case.is_cut() {
            taken.push(number);
        }
        let open = &case.engine.nic().open;
        assert!(open.len() == 10 && open.contains(&LinkId(3)) && open.contains(&LinkId(5)), "{open:?}");
    }
    // A new link may be about to carry its first message, and is kept for a while.
    assert!(taken.len() >= 16 && taken[0] > 70 && taken[8] > taken[0] + 60, "{taken:?}");
}

/// A stranger that connects, leaves a message with this tag, and departs.
fn visit(case: &mut Case, number: u32, tag: u64) {
    connect(case, number);
    case.say(EAGER, TAGGED, &words(&[tag]));
    case.tell(Event::Down(LinkId(number)));
}

/// Takes the message with this tag, if it is there.
fn take(case: &mut Case, tag: u64) -> bool {
    let mut memory = Owned::new(vec![0; 8]);
    let flags = RecvFlags::TAGGED | RecvFlags::PEEK | RecvFlags::DISCARD;
    let op = RecvOp { src: ADDR_NONE, iov: &[memory.iov()], tag, ignore: 0, ctx: Context::default(), flags };
    case.engine.recv(&op).unwrap();
    case.run();
    case.done().pop().is_some_and(|done| done.fault.is_none())
}

/// At the maximum number of strangers, those that departed first lose their messages. No stranger is refused.
#[test]
fn the_first_departed_strangers_make_room() {
    let mut case = case(Config { max_strangers: 10, ..Config::default() });
    for number in 0..1000 {
        visit(&mut case, number, number.into());
        assert!(!case.engine.nic().closed.contains(&LinkId(number)), "{number} was refused");
        assert_eq!(case.engine.unexpected_messages(), 10.min(number as usize + 1));
    }
    assert!((0..990).all(|tag| !take(&mut case, tag)));
    assert!((990..1000).all(|tag| take(&mut case, tag)));
    assert_eq!(case.engine.unexpected_messages(), 0);
    assert!(case.engine.nic().notices.contains(&Notice::Forgets));
    assert!(case.engine.report().peers <= 10 + 64);
}

/// A message that the client has claimed stays, and so do those of connected strangers and of known peers.
#[test]
fn claimed_and_connected_messages_stay() {
    let mut case = case(Config { max_strangers: 3, ..Config::default() });
    case.connect(500, 2);
    case.say(EAGER, TAGGED, &words(&[77]));
    case.tell(Event::Down(LinkId(500)));
    visit(&mut case, 0, 5);
    let mut memory = Owned::new(vec![0; 8]);
    let mut claim = |case: &mut Case, flags| {
        let op = RecvOp { src: ADDR_NONE, iov: &[memory.iov()], tag: 5, ignore: 0, ctx: Context::default(), flags };
        case.engine.recv(&op).unwrap();
        case.done()
    };
    claim(&mut case, RecvFlags::TAGGED | RecvFlags::PEEK | RecvFlags::CLAIM);
    connect(&mut case, 1);
    case.say(EAGER, TAGGED, &words(&[6]));
    (10..100).for_each(|number| visit(&mut case, number, 1000 + u64::from(number)));
    assert_eq!(claim(&mut case, RecvFlags::TAGGED | RecvFlags::CLAIM).len(), 1);
    assert!(take(&mut case, 77) && take(&mut case, 6) && take(&mut case, 1099) && !take(&mut case, 1098));
}

/// A stranger that comes back departs anew, and its messages count from then on.
#[test]
fn a_stranger_that_returns_departs_later() {
    let mut case = case(Config { max_strangers: 3, ..Config::default() });
    (0..3).for_each(|number| visit(&mut case, number, number.into()));
    case.connect_as(50, identity(0));
    case.tell(Event::Down(LinkId(50)));
    visit(&mut case, 3, 3);
    assert!(take(&mut case, 0) && !take(&mut case, 1) && take(&mut case, 2) && take(&mut case, 3));
}

/// Notices, messages and announcements of departed strangers for later joins are dropped at once.
#[test]
fn departed_strangers_leave_nothing_to_joins() {
    const JOIN: u64 = 1 << 63;
    let mut case = case(Config { max_strangers: 10, ..Config::default() });
    for number in 0..200_u32 {
        connect(&mut case, number);
        assert!(!case.is_cut(), "{number} was refused");
        for tag in 0..100 {
            let tag = JOIN | (u64::from(number) * 100 + tag) << 14;
            case.say(EAGER, TAGGED | COLLECTIVE, &words(&[tag | 16383]));
            case.say(EAGER, TAGGED | COLLECTIVE, &words(&[tag | 1]));
            case.say(RTS, TAGGED | COLLECTIVE, &words(&[3, tag | 2, 0, 100]));
        }
        assert!(!case.is_cut(), "{number}");
        case.tell(Event::Down(LinkId(number)));
    }
    assert!(case.engine.report().peers <= 10 + 64);
}

/// The withdrawals of connected strangers are few for each, and all have a part of the common budget.
#[test]
fn withdrawals_of_strangers_are_bounded() {
    let mut case = case(Config { stranger_bytes: 1 << 20, max_strangers: 2000, ..Config::default() });
    for number in 0..1300_u64 {
        connect(&mut case, u32::try_from(number).unwrap());
        for tag in 0..70 {
            case.say(EAGER, TAGGED | COLLECTIVE, &words(&[1 << 63 | (number * 70 + tag) << 14 | 16383]));
        }
        assert!(!case.is_cut(), "{number}: others have as much");
    }
    let cut = case.engine.nic().closed.len();
    assert!((200..600).contains(&cut), "{cut}");
    assert_eq!(case.engine.nic().notices[0], Notice::Refuses(LinkError::Evicted));
}

/// A stranger beyond the limit is told so.
#[test]
fn a_stranger_beyond_the_limit_learns_why() {
    let mut case = case(Config { max_strangers: 2, ..Config::default() });
    for number in 0..3 {
        connect(&mut case, number);
        if number == 2 {
            assert!(case.is_cut());
        }
        case.say(EAGER, TAGGED, &words(&[9]));
    }
    assert_eq!(case.engine.nic().notices, [Notice::Refuses(LinkError::Crowded)]);
}

/// The time of a departure and of a drop does not depend on the messages of others.
#[test]
fn messages_of_others_cost_no_time() {
    let mut case = case(Config { max_strangers: 600, ..Config::default() });
    for number in 0..200 {
        connect(&mut case, number);
        (0..500).for_each(|tag| case.say(EAGER, TAGGED, &words(&[tag])));
    }
    let start = std::time::Instant::now();
    (1000..3000).for_each(|number| visit(&mut case, number, 1 << 40 | u64::from(number)));
    let taken = start.elapsed();
    assert_eq!(case.engine.unexpected_messages(), 100_000 + 400);
    assert!(taken < std::time::Duration::from_secs(2), "{taken:?}");
}
