//! Frames of groups from peers that may not send them. A peer that is no member of a group has no effect on it: its
//! link is closed, and the group goes on. A member can stop its group, and nothing else.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod scripted;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use scripted::{CAPS, Case, Event, ScriptedDevice, name, u64_at, words};
use weft_engine::api::{Addr, AddressBook, Completion, Config, Context, Error, Kind, OpFlags};
use weft_engine::board::SharedWords;
use weft_engine::collective::{Operation, Order, Overlap, Request, compile_ordered};
use weft_engine::mem::{Iov, Owned};
use weft_engine::name::EpName;
use weft_engine::nic::LinkId;
use weft_engine::{CollectiveOp, Custom, Elements, Engine, GroupId};

const EAGER: u8 = 8;
const RTS: u8 = 9;
/// Flags: tagged, immediate data, a message of a collective.
const TAGGED: u8 = 1;
const DATA: u8 = 2;
const COLLECTIVE: u8 = 64;
/// Numbers of messages that concern a whole group.
const FAILED: u64 = 16383;
const CHAIN_LEFT: u64 = 16382;

/// The endpoint under test has address 0, the peer whose name has byte 2 address 1, and so on.
#[derive(Debug)]
struct All;

impl AddressBook for All {
    fn name(&self, addr: Addr) -> Option<EpName> {
        (addr < 8).then(|| name(u8::try_from(addr).unwrap() + 1))
    }
    fn addr(&self, wanted: &EpName) -> Option<Addr> {
        (0..8).find(|addr| self.name(*addr).unwrap().same_endpoint(wanted))
    }
}

/// An endpoint with links to the peers with the bytes 2, 3 and 4, of the numbers of the bytes.
fn case(boards: bool) -> Case {
    let config = Config { boards, ..Config::default() };
    let mut engine = Engine::new(config, ScriptedDevice::new(CAPS));
    engine.bind_book(Arc::new(All));
    let mut case = Case { engine, seq: 0, link: LinkId(u32::MAX) };
    [4, 3, 2].into_iter().for_each(|byte| case.connect(byte, u8::try_from(byte).unwrap()));
    case
}

impl Case {
    /// Speaks for the peer with this byte from now on, which has sent nothing so far.
    fn speak_for(&mut self, byte: u32) {
        (self.link, self.seq) = (LinkId(byte), 0);
    }

    /// A message of a collective.
    fn collective(&mut self, flags: u8, tag: u64, payload: &[u8]) {
        let data = if flags & DATA == 0 { Vec::new() } else { words(&[0]) };
        self.say(EAGER, COLLECTIVE | TAGGED | flags, &[words(&[tag]), data, payload.to_vec()].concat());
    }

    /// Announces a message of `len` bytes for a group.
    fn announce(&mut self, flags: u8, tag: u64, len: u64) {
        self.say(RTS, COLLECTIVE | TAGGED | flags, &words(&[7, tag, 0, len]));
    }

    fn ends(&mut self) -> Vec<(Kind, bool)> {
        self.done().iter().map(|end: &Completion| (end.kind, end.fault.is_none())).collect()
    }
}

/// A case that joins the group of addresses 0 and 1. Returns the tag of the join, and the own announcement.
fn joining() -> (Case, u64, Vec<u8>) {
    let mut case = case(false);
    case.engine.join_group(&[0, 1], Context::default()).unwrap();
    case.run();
    let announcement = case.sent(EAGER);
    let tag = u64_at(&announcement, 8);
    assert!(announcement[1] & COLLECTIVE != 0 && tag >> 63 == 1);
    (case, tag, announcement[16..].to_vec())
}

/// The peer of [`joining`] completes the join, and a barrier after it.
fn finish(case: &mut Case, tag: u64, mut announcement: Vec<u8>) {
    case.speak_for(2);
    announcement[..4].copy_from_slice(&9_u32.to_le_bytes());
    case.collective(0, tag, &announcement);
    assert_eq!(case.ends(), [(Kind::Joined, true)]);
    case.engine.start_collective(&barrier()).unwrap();
    case.run();
    let step = case.sent(EAGER);
    assert_eq!(u64_at(&step, 8), 9 << 40 | 1 << 14, "the message has the peer's number of the group");
    case.collective(0, 1 << 14, &[]);
    assert_eq!(case.ends(), [(Kind::Collective, true)]);
    assert!(!case.is_cut() && case.engine.at_rest());
}

fn barrier() -> CollectiveOp {
    CollectiveOp {
        group: GroupId::from_number(0),
        operation: Operation::Barrier,
        root: 0,
        count: 0,
        elements: Elements::Bytes(1),
        input: Iov::EMPTY,
        result: Iov::EMPTY,
        ctx: Context::default(),
        flags: OpFlags::empty(),
    }
}

/// A peer that is no member sends each kind of frame. Its link is closed, and the join and a barrier go on.
#[test]
fn outsiders_have_no_effect_on_a_group() {
    let (_, tag, announcement) = joining();
    let frames: [(&str, u8, u64, usize); 6] = [
        ("an announcement", 0, tag, announcement.len()),
        ("another step of the join", 0, tag | 1, 8),
        ("a vote", 0, 0, 1),
        ("a message of an operation", 0, 1 << 14, 0),
        ("a notice of failure", DATA, tag | FAILED, 0),
        ("leaving the chain", 0, tag | CHAIN_LEFT, 0),
    ];
    for (frame, flags, tag_of_frame, len) in frames {
        for eager in [true, false] {
            let (mut case, tag, announcement) = joining();
            case.speak_for(4);
            if eager {
                case.collective(flags, tag_of_frame, &announcement[..len]);
            } else {
                case.announce(flags, tag_of_frame, len as u64);
            }
            assert!(case.is_cut(), "{frame}, eager: {eager}");
            assert!(case.ends().is_empty(), "{frame}, eager: {eager}");
            finish(&mut case, tag, announcement);
        }
    }
}

/// An outsider may send what a member would send before the join has begun here. It has no effect on the join.
#[test]
fn early_frames_of_outsiders_have_no_effect() {
    let (_, tag, announcement) = joining();
    for number in [0, FAILED] {
        let mut case = case(false);
        case.speak_for(4);
        case.collective(
            if number == 0 { 0 } else { DATA },
            tag | number,
            &announcement[..if number == 0 { 16 } else { 0 }],
        );
        assert!(!case.is_cut(), "the join is not known");
        case.engine.join_group(&[0, 1], Context::default()).unwrap();
        case.run();
        finish(&mut case, tag, announcement.clone());
    }
}

/// A member sends a step that the join does not have, or one twice. Its link is closed, and its group has failed.
#[test]
fn a_member_spoils_its_own_group_alone() {
    for number in [1, 77] {
        let (mut case, tag, _) = joining();
        case.engine.join_group(&[0, 2], Context { ptr: 1, user: 0 }).unwrap();
        case.run();
        let other = u64_at(&case.sent(EAGER), 8);
        case.speak_for(2);
        case.collective(0, tag | number, &[0; 16]);
        assert!(case.is_cut());
        assert_eq!(case.ends(), [(Kind::Joined, false)]);
        case.speak_for(3);
        let announcement = case.sent(EAGER)[16..].to_vec();
        case.collective(0, other, &announcement);
        assert_eq!(case.ends(), [(Kind::Joined, true)], "the other group goes on");
    }
}

/// A notice of a member ends the operations under way and those that are started later, and is passed on once.
#[test]
fn a_notice_ends_all_operations_of_a_group() {
    let mut case = case(false);
    case.engine.join_group(&[0, 1, 2], Context::default()).unwrap();
    case.run();
    let tag = u64_at(&case.sent(EAGER), 8) & !FAILED;
    case.speak_for(2);
    case.collective(DATA, tag | FAILED, &[]);
    assert_eq!(case.ends(), [(Kind::Joined, false)]);
    case.collective(DATA, tag | FAILED, &[]);
    let notices = |case: &Case, link| {
        let all = case.engine.nic().sent.iter();
        all.filter(|(to, bytes)| *to == LinkId(link) && bytes[0] == EAGER && u64_at(bytes, 8) == tag | FAILED).count()
    };
    assert_eq!((notices(&case, 2), notices(&case, 3), notices(&case, 4)), (0, 1, 0));
    assert_eq!(case.engine.start_collective(&barrier()), Err(Error::NotConnected));
    assert!(!case.is_cut() && case.engine.at_rest());
}

/// Members that know a group by a key may call before the join is complete. Each key has a group of its own.
#[test]
fn operations_of_keyed_groups_wait_for_the_join() {
    let mut case = case(false);
    let join = |case: &mut Case, key: &[u8]| case.engine.join_keyed_group(&[0, 1], key, Context::default());
    join(&mut case, b"one").unwrap();
    case.run();
    let announcement = case.sent(EAGER);
    assert_eq!(join(&mut case, b"one"), Err(Error::Invalid));
    join(&mut case, b"two").unwrap();
    case.run();
    assert_ne!(u64_at(&case.sent(EAGER), 8), u64_at(&announcement, 8));
    case.engine.start_collective(&barrier()).unwrap();
    assert_eq!(case.engine.leave_group(GroupId::from_number(0)), Err(Error::Again));
    case.run();
    assert!(case.ends().is_empty());
    case.speak_for(2);
    case.collective(0, u64_at(&announcement, 8), &announcement[16..]);
    assert_eq!(case.ends(), [(Kind::Joined, true)]);
    case.collective(0, 1 << 14, &[]);
    assert_eq!(case.ends(), [(Kind::Collective, true)]);
    // The second join fails, and the operation with it.
    let two = CollectiveOp { group: GroupId::from_number(1), ..barrier() };
    case.engine.start_collective(&two).unwrap();
    case.tell(Event::Down(LinkId(2)));
    let ends = case.ends();
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(ends.iter().all(|(_, good)| !good));
    assert_eq!(case.engine.start_collective(&two), Err(Error::NotConnected));
}

/// A member that ends right after its last message is not missed: the operation has all that it needs.
#[test]
fn a_member_may_end_right_after_its_last_message() {
    let (mut case, tag, mut announcement) = joining();
    case.speak_for(2);
    announcement[..4].copy_from_slice(&9_u32.to_le_bytes());
    case.collective(0, tag, &announcement);
    assert_eq!(case.ends(), [(Kind::Joined, true)]);
    case.engine.start_collective(&barrier()).unwrap();
    case.run();
    // Both are delivered in one round of progress.
    case.engine.nic_mut().burst = true;
    let last = [&[EAGER, COLLECTIVE | TAGGED, 0, 0][..], &case.seq.to_le_bytes(), &words(&[1 << 14])].concat();
    case.engine.nic_mut().events.push_back(Event::Message(LinkId(2), last));
    case.tell(Event::Down(LinkId(2)));
    assert_eq!(case.ends(), [(Kind::Collective, true)]);
}

/// The operand of the lower rank has the higher digits.
fn digits(operation: &Custom, from: &Iov, into: &Iov, order: Order) {
    let number = |memory: &Iov| {
        let mut bytes = [0; 8];
        memory.read(&mut bytes);
        u64::from_le_bytes(bytes)
    };
    let (first, second) = if order == Order::IntoFirst { (into, from) } else { (from, into) };
    into.write(&(number(first) * operation.words()[0] as u64 + number(second)).to_le_bytes());
}

/// A schedule of the client waits for the join, combines by the client's function, and uses its own memory alone.
#[test]
fn schedules_of_clients_run_like_others() {
    let mut case = case(false);
    case.engine.join_keyed_group(&[0, 1], b"key", Context::default()).unwrap();
    case.run();
    let announcement = case.sent(EAGER);
    let (operation, overlap) = (Operation::AllReduce, Overlap::None);
    let request = Request { operation, rank: 0, members: 2, root: 0, count: 1, element: 8, overlap };
    let schedule = Arc::new(compile_ordered(&request).unwrap());
    let (mut input, mut result) = (Owned::new(4_u64.to_le_bytes().into()), Owned::new(vec![0; 8]));
    let op = CollectiveOp {
        elements: Elements::Custom(Custom::new(8, digits, [10, 0])),
        input: input.iov(),
        result: result.iov(),
        ..barrier()
    };
    for wrong in [
        CollectiveOp { result: Iov::EMPTY, ..op },
        CollectiveOp { input: op.input.slice(0, 7), ..op },
        CollectiveOp { elements: Elements::Bytes(8), ..op },
    ] {
        assert_eq!(case.engine.start_schedule(&wrong, &schedule), Err(Error::Invalid));
    }
    let wide = Arc::new(compile_ordered(&Request { members: 3, ..request }).unwrap());
    assert_eq!(case.engine.start_schedule(&op, &wide), Err(Error::Invalid));
    case.engine.start_schedule(&op, &schedule).unwrap();
    case.run();
    case.speak_for(2);
    case.collective(0, u64_at(&announcement, 8), &announcement[16..]);
    assert_eq!(case.ends(), [(Kind::Joined, true)]);
    case.collective(0, 1 << 14, &7_u64.to_le_bytes());
    assert_eq!(case.ends(), [(Kind::Collective, true)]);
    assert_eq!(u64_at(&case.sent(EAGER), 16), 47);
    let mut bytes = [0; 8];
    result.iov().read(&mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), 47);
    assert!(!case.is_cut() && case.engine.at_rest());
}

/// Memory of the size of any board.
struct Words(Vec<AtomicU64>);

impl SharedWords for Words {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// A board counts if the first member of the host passes it, and once.
#[test]
fn boards_come_from_the_first_member_of_the_host() {
    let board = || Some(Arc::new(Words((0..1 << 17).map(|_| AtomicU64::new(0)).collect())) as _);
    for (byte, times, cut) in [(2, 1, false), (2, 2, true), (3, 1, true), (4, 1, true)] {
        let mut case = case(true);
        case.engine.join_group(&[1, 0, 2], Context::default()).unwrap();
        case.run();
        case.speak_for(byte);
        (0..times).for_each(|_| case.tell(Event::Board(LinkId(byte), 0, board())));
        assert_eq!(case.is_cut(), cut, "the peer with byte {byte}, {times} boards");
        // A group with a number that is not in use may have been left.
        case.tell(Event::Board(LinkId(byte), 5, board()));
        assert_eq!(case.is_cut(), cut, "a board for no group");
    }
    let mut leader = case(true);
    leader.engine.join_group(&[0, 1, 2], Context::default()).unwrap();
    leader.tell(Event::Board(LinkId(2), 0, None));
    leader.speak_for(2);
    assert!(leader.is_cut(), "a board for the member that makes it");
}
