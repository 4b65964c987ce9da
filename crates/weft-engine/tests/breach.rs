//! Peers that break the protocol in one way each. The engine closes the link. It touches no memory after it
//! has told the client that the memory is free, and limits the state that a peer can create. `fuzz.rs` and
//! weft-sim's `hostile.rs` search for further violations at random.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod scripted;

use scripted::{CAPS, Case, Event, name, open, pair, u32_at, u64_at, words};
use weft_engine::amo::{self, Amo, Form, Type};
use weft_engine::api::{
    ADDR_NONE, Access, AtomicOp, Config, Context, OpFlags, RecvFlags, RecvOp, Region, RmaIov, RmaOp, SendOp,
};
use weft_engine::mem::{self, Iov, IovList, Owned};
use weft_engine::nic::{LinkId, NicCaps, PUSH_BYTES};

const OPEN: u8 = 0;
const OPEN_OK: u8 = 1;
const EAGER: u8 = 8;
const RTS: u8 = 9;
const FIN: u8 = 11;
const ACK: u8 = 12;
const CREDIT: u8 = 13;
const WRITE: u8 = 14;
const WRITE_RTS: u8 = 15;
const READ: u8 = 16;
const READ_BULK: u8 = 17;
const READ_DATA: u8 = 18;
const ATOMIC: u8 = 20;
const RESULTS: u8 = 21;

/// Too long for the payload of a message.
const LONG: u64 = 6000;
/// The engine's number of its first transfer.
const FIRST_TOKEN: u64 = 1 << 32;

fn read(case: &mut Case, iov: Iov, parts: &[u64]) {
    let remote = parts.iter().map(|&len| RmaIov { addr: 0, len, key: 7 }).collect::<Vec<_>>();
    let ctx = Context { ptr: 1, user: 0 };
    let op = RmaOp { dest: 0, iov: &[iov], remote: &remote, data: 0, ctx, flags: OpFlags::empty() };
    case.engine.read(&op).unwrap();
    case.run();
}

/// Starts a read of these parts. Returns the case, the memory, the operation's number and the window of the
/// last long part.
fn reading(parts: &[u64]) -> (Case, Owned, u64, u64) {
    let mut case = Case::new(CAPS, Config::default());
    case.connect(0, 2);
    let mut memory = Owned::new(vec![0; usize::try_from(parts.iter().sum::<u64>()).unwrap()]);
    read(&mut case, memory.iov(), parts);
    let request = case.sent(READ_BULK);
    let (op, window) = (u32_at(&request, 8).into(), u64_at(&request, 48));
    (case, memory, op, window)
}

/// Asserts that the engine has detected the violation: the read has failed once, and nothing writes its
/// memory afterwards.
fn assert_detected(mut case: Case, mut memory: Owned, window: u64) {
    let ends = case.done();
    assert!(ends.len() == 1 && ends[0].fault.is_some(), "{ends:?}");
    let before = mem::to_vec(&[memory.iov()]);
    case.push(window, 0, &[9; LONG as usize]);
    assert!(mem::to_vec(&[memory.iov()]) == before, "written after the end of the operation");
    assert!(case.is_cut() && case.done().is_empty() && case.engine.at_rest());
}

/// A long read ends when its bytes have arrived, and not by a message of its target.
#[test]
fn a_long_read_is_not_ended_by_the_number_of_its_part() {
    for status in [0, 1] {
        let (mut case, memory, op, window) = reading(&[LONG]);
        case.say(FIN, 0, &words(&[pair(op, status), 0]));
        assert_detected(case, memory, window);
    }
}

#[test]
fn a_long_part_is_not_ended_by_the_answers_to_a_short_one() {
    let (mut case, memory, op, window) = reading(&[100, LONG]);
    for _ in 0..2 {
        case.say(READ_DATA, 0, &[words(&[pair(op, 0)]), vec![5; 100]].concat());
    }
    assert_detected(case, memory, window);
}

#[test]
fn a_long_part_is_not_answered_like_a_short_one() {
    // A peer with a larger mailbox threshold would send this length in a message.
    let (mut case, memory, op, window) = reading(&[3980]);
    case.say(READ_DATA, 0, &[words(&[pair(op, 0)]), vec![5; 3980]].concat());
    assert_detected(case, memory, window);
}

#[test]
fn a_short_read_does_not_succeed_without_its_bytes() {
    for acknowledged in [false, true] {
        let mut case = Case::new(CAPS, Config::default());
        case.connect(0, 2);
        let mut memory = Owned::new(vec![0; 100]);
        read(&mut case, memory.iov(), &[100]);
        let op = u32_at(&case.sent(READ), 8);
        if acknowledged {
            case.say(12, 1, &op.to_le_bytes());
        } else {
            case.say(FIN, 0, &words(&[op.into(), 0]));
        }
        let ends = case.done();
        assert!(case.is_cut() && ends.len() == 1 && ends[0].fault.is_some(), "{ends:?}");
    }
}

/// Parts of reads, as an honest target answers them.
#[test]
fn parts_of_reads_end_in_any_order() {
    let (mut case, mut memory, op, window) = reading(&[100, LONG, 50]);
    case.say(READ_DATA, 0, &[words(&[pair(op, 2)]), vec![3; 50]].concat());
    case.say(READ_DATA, 0, &[words(&[pair(op, 0)]), vec![1; 100]].concat());
    assert!(case.done().is_empty());
    case.push(window, 0, &[2; LONG as usize]);
    assert_eq!(case.done()[0].fault, None);
    assert_eq!(mem::to_vec(&[memory.iov()]), [vec![1; 100], vec![2; LONG as usize], vec![3; 50]].concat());
    assert!(case.engine.at_rest() && !case.is_cut());
}

/// Bytes end the link if their window was never named, or if all bytes of the window have arrived.
#[test]
fn bytes_for_no_window_end_the_link() {
    let never = FIRST_TOKEN + 7;
    for window in [Some(never), Some(1 << 63), None] {
        let (mut case, memory, _, named) = reading(&[LONG]);
        if window.is_none() {
            case.push(named, 0, &[2; LONG as usize]);
            assert!(case.done()[0].fault.is_none() && !case.is_cut());
        }
        case.push(window.unwrap_or(named), 0, &[9; LONG as usize]);
        assert!(case.is_cut(), "{window:?}");
        assert!(case.done().iter().all(|end| end.fault.is_some()) && case.engine.at_rest());
        drop(memory);
    }
}

/// Bytes end the link if they exceed the window.
#[test]
fn bytes_beyond_the_window_end_the_link() {
    for offset in [1, LONG, u64::MAX] {
        let (mut case, mut memory, _, window) = reading(&[LONG]);
        case.push(window, offset, &[9; LONG as usize]);
        assert!(case.is_cut() && case.done()[0].fault.is_some(), "{offset}");
        assert_eq!(mem::to_vec(&[memory.iov()]), vec![0; LONG as usize]);
    }
}

/// Bytes end the link if they arrive before the peer's first message.
#[test]
fn bytes_before_the_first_message_end_the_link() {
    for window in [FIRST_TOKEN, 1 << 63] {
        let mut case = Case::new(CAPS, Config::default());
        case.link = LinkId(0);
        case.tell(Event::Up { link: case.link, peer: name(2), initiator: false });
        case.push(window, 0, &[9; 8]);
        assert!(case.is_cut());
    }
}

/// The engine releases a region when no device reads it. A push by the reader must not change this.
#[test]
fn a_region_that_is_being_served_cannot_be_pushed_into() {
    for put in [false, true] {
        let mut case = Case::new(NicCaps { put, ..CAPS }, Config::default());
        case.connect(0, 2);
        let mut memory = Owned::new(vec![1; LONG as usize]);
        let access = Access { read: true, write: false };
        let iov = IovList::from_slice(&[memory.iov()]);
        case.engine.add_region(Region { key: 7, iov, base: 0, access, user: 0, events: false, mapping: None }).unwrap();
        let pieces = u64::from(put);
        let home = if put { vec![4096, LONG] } else { vec![] };
        case.say(READ_BULK, 0, &words(&[&[3, 7, 0, 0, LONG, 77 << 32, pieces][..], &home].concat()));
        assert_eq!(case.engine.nic().busy.len(), 1, "the device serves the read");
        case.push(FIRST_TOKEN, 0, &[9; LONG as usize]);
        case.engine.remove_region(7);
        assert!(case.engine.nic().busy.is_empty(), "the engine released memory that the device reads");
        assert!(case.is_cut() && mem::to_vec(&[memory.iov()]) == vec![1; LONG as usize]);
    }
}

#[test]
fn a_peer_cannot_push_into_a_transfer_of_the_device() {
    for write in [false, true] {
        let mut case = Case::new(NicCaps { get: true, ..CAPS }, Config::default());
        case.connect(0, 2);
        let mut memory = Owned::new(vec![1; LONG as usize]);
        let iov = IovList::from_slice(&[memory.iov()]);
        if write {
            let access = Access { read: false, write: true };
            case.engine
                .add_region(Region { key: 7, iov, base: 0, access, user: 0, events: true, mapping: None })
                .unwrap();
            case.say(WRITE_RTS, 0, &words(&[3, 7, 0, 0, LONG, 0, 1, 4096, LONG]));
        } else {
            let ctx = Context { ptr: 1, user: 0 };
            let recv = RecvOp { src: ADDR_NONE, iov: &iov, tag: 0, ignore: 0, ctx, flags: RecvFlags::empty() };
            case.engine.recv(&recv).unwrap();
            case.say(RTS, 0, &words(&[pair(3, 1), 0, 0, LONG, 4096, LONG]));
        }
        assert_eq!(case.engine.nic().busy.len(), 1, "the device fetches the data");
        case.push(FIRST_TOKEN, 0, &[9; LONG as usize]);
        let ends = case.done();
        assert!(case.engine.nic().busy.is_empty(), "{ends:?}, but the device writes the memory");
        assert!(case.is_cut() && mem::to_vec(&[memory.iov()]) == vec![1; LONG as usize]);
        assert!(ends.iter().all(|end| end.fault.is_some()) && case.engine.at_rest(), "{ends:?}");
    }
}

/// Announced bytes have one window, and arrive in no other.
#[test]
fn announced_bytes_arrive_in_their_window_only() {
    let mut case = Case::new(NicCaps { push_follows: true, ..CAPS }, Config::default());
    case.connect(0, 2);
    let mut memory = Owned::new(vec![1; LONG as usize]);
    let access = Access { read: false, write: true };
    let iov = IovList::from_slice(&[memory.iov()]);
    case.engine.add_region(Region { key: 7, iov, base: 0, access, user: 0, events: true, mapping: None }).unwrap();
    for (announced, pushed) in [(1 << 63, 1 << 63), (1 << 63 | 1, FIRST_TOKEN + (1 << 32))] {
        case.say(WRITE_RTS, 0, &words(&[3, 7, 0, 0, LONG, announced, 0]));
        case.push(pushed, 0, &[9; LONG as usize]);
        assert_eq!((case.is_cut(), case.done().len()), (pushed != announced, usize::from(pushed == announced)));
    }
}

/// Says RTS with flag 128 for a message of `len` bytes, and `pieces` pieces of memory.
fn say_followed(case: &mut Case, len: u64, pieces: u64) {
    let source = if pieces > 0 { vec![4096, len] } else { vec![] };
    case.say(RTS, 128, &words(&[&[pair(3, pieces), 0, 0, len][..], &source].concat()));
}

/// A message whose bytes follow needs a device that keeps order, bytes, and room in the window.
#[test]
fn a_followed_message_keeps_to_the_window() {
    let caps = NicCaps { push_follows: true, ..CAPS };
    let config = Config { window_bytes: 10_000, ..Config::default() };
    for (caps, len, pieces, allowed) in [
        (caps, LONG, 0, true),
        (caps, 10_000 - 64, 0, true),
        (caps, 10_000 - 63, 0, false),
        (caps, u64::MAX, 0, false),
        (caps, 0, 0, false),
        (NicCaps { push_follows: false, ..caps }, LONG, 0, false),
        (NicCaps { get: true, ..caps }, LONG, 1, false),
    ] {
        let mut case = Case::new(caps, config);
        case.connect(0, 2);
        say_followed(&mut case, len, pieces);
        assert_eq!(case.is_cut(), !allowed, "{len} bytes in {pieces} pieces");
        assert_eq!(case.engine.unexpected_messages(), usize::from(allowed));
    }
    let mut case = Case::new(caps, config);
    case.connect(0, 2);
    say_followed(&mut case, LONG, 0);
    assert!(!case.is_cut());
    say_followed(&mut case, LONG, 0);
    assert!(case.is_cut(), "the two exceed the window together");
}

/// The bytes of a followed message that no receive waits for are kept, and count until a receive takes them.
#[test]
fn a_followed_message_waits_for_its_receive() {
    let mut case = Case::new(NicCaps { push_follows: true, ..CAPS }, Config::default());
    case.connect(0, 2);
    say_followed(&mut case, LONG, 0);
    case.push(1 << 63, 0, &[9; LONG as usize]);
    assert!(case.done().is_empty() && !case.is_cut() && case.engine.unexpected_messages() == 1);
    let mut memory = Owned::new(vec![1; LONG as usize]);
    let iov = IovList::from_slice(&[memory.iov()]);
    let ctx = Context { ptr: 1, user: 0 };
    let recv = RecvOp { src: ADDR_NONE, iov: &iov, tag: 0, ignore: 0, ctx, flags: RecvFlags::empty() };
    case.engine.recv(&recv).unwrap();
    assert_eq!(case.done()[0].len, LONG as usize);
    assert_eq!(mem::to_vec(&[memory.iov()]), vec![9; LONG as usize]);
    assert!(case.engine.at_rest());
    case.push(1 << 63, 0, &[9; 1]);
    assert!(!case.is_cut(), "bytes for a complete window are discarded");
    case.push(1 << 63 | 1, 0, &[9; 1]);
    assert!(case.is_cut(), "bytes before their announcement are a violation");
}

/// A case with a peer, and a short write of these flags to it. Returns the number in the request.
fn writing(flags: OpFlags) -> (Case, u32) {
    let mut case = Case::new(CAPS, Config::default());
    case.connect(0, 2);
    let mut memory = Owned::new(vec![1; 100]);
    let remote = [RmaIov { addr: 0, len: 100, key: 7 }];
    let ctx = Context { ptr: 5, user: 0 };
    let op = RmaOp { dest: 0, iov: &[memory.iov()], remote: &remote, data: 0, ctx, flags };
    case.engine.write(&op).unwrap();
    let number = u32_at(&case.sent(WRITE), 8);
    (case, number)
}

/// A short write ends when the target answers, once, with its context, unless its client names a weaker level.
#[test]
fn a_write_ends_when_its_target_answers() {
    for (flags, status) in [OpFlags::empty(), OpFlags::INJECT, OpFlags::INJECT | OpFlags::COUNTED]
        .into_iter()
        .flat_map(|flags| [(flags, 0), (flags, 1)])
    {
        let (mut case, number) = writing(flags);
        assert!(number != u32::MAX && case.done().is_empty(), "{flags:?}");
        case.say(FIN, 0, &words(&[pair(number.into(), status), 0]));
        let ends = case.done();
        assert!(ends.len() == 1 && ends[0].ctx.ptr == 5, "{flags:?}: {ends:?}");
        assert_eq!((ends[0].fault.is_some(), case.is_cut()), (status != 0, false), "{flags:?}");
        case.say(FIN, 0, &words(&[pair(number.into(), status), 0]));
        assert!(case.is_cut() && case.done().is_empty(), "a second answer to one write");
    }
}

/// A short write that names inject complete ends when it has left. Its refusal is reported without its context, once.
/// The same holds if its client can observe no end.
#[test]
fn a_write_that_leaves_is_refused_later() {
    for (flags, reported) in [(OpFlags::FREED, 1), (OpFlags::INJECT | OpFlags::QUIET, 0)] {
        let (mut case, number) = writing(flags);
        let ends = case.done();
        assert_eq!((number, ends.len()), (u32::MAX, reported), "{ends:?}");
        assert!(ends.iter().all(|end| end.ctx.ptr == 5 && end.fault.is_none() && end.len == 100), "{ends:?}");
        case.say(FIN, 0, &words(&[pair(u32::MAX.into(), 1), 0]));
        let ends = case.done();
        assert!(ends.len() == 1 && ends[0].ctx.ptr == 0 && ends[0].fault.is_some() && !case.is_cut(), "{ends:?}");
        case.say(FIN, 0, &words(&[pair(u32::MAX.into(), 1), 0]));
        assert!(case.is_cut() && case.done().is_empty(), "a second refusal of one write");
    }
}

/// Starts a call to a peer whose name is greater than the endpoint's, so that the peer's calls wait once OPEN is sent.
/// Also returns the byte of the peer's name.
fn calling() -> (Case, u8) {
    let mut case = Case::new(CAPS, Config::default());
    case.engine.nic_mut().dials = Some(100);
    let byte = (2..10).find(|byte| name(*byte) > name(1)).unwrap();
    let (dest, iov) = (u64::from(byte) - 2, IovList::new());
    let send = SendOp { dest, iov: &iov, tag: 0, data: 0, ctx: Context::default(), flags: OpFlags::empty() };
    case.engine.send(&send).unwrap();
    (case, byte)
}

#[test]
fn a_peer_has_one_waiting_call() {
    let (mut case, byte) = calling();
    case.tell(Event::Up { link: LinkId(100), peer: name(byte), initiator: true });
    for link in 0..20 {
        case.connect(link, byte);
        assert_eq!(case.engine.nic().open, [LinkId(100), LinkId(link)], "the own call and the peer's latest");
    }
    // When the endpoint's own call has failed, the waiting call is accepted, and the send leaves on it.
    case.tell(Event::Closed(LinkId(100)));
    let sent = &case.engine.nic().sent;
    assert!(sent.iter().map(|(link, bytes)| (link.0, bytes[0])).eq([(100, OPEN), (19, OPEN_OK), (19, EAGER)]));
}

/// The end of a waiting call that was replaced does not end its replacement.
#[test]
fn the_end_of_an_older_call_keeps_the_waiting_one() {
    let (mut case, byte) = calling();
    case.tell(Event::Up { link: LinkId(100), peer: name(byte), initiator: true });
    let nic = case.engine.nic_mut();
    for link in [0, 1] {
        nic.events.push_back(Event::Up { link: LinkId(link), peer: name(byte), initiator: false });
        nic.events.push_back(Event::Message(LinkId(link), open(0)));
    }
    // The link ends before the engine has told the device to close it.
    nic.events.push_back(Event::Down(LinkId(0)));
    nic.burst = true;
    case.run();
    assert_eq!(case.engine.nic().open, [LinkId(100), LinkId(1)]);
    case.tell(Event::Closed(LinkId(100)));
    assert_eq!(case.engine.nic().sent.len(), 3, "OPEN, OPEN_OK and the message");
}

/// A link in use has no queued message that could delay its close.
#[test]
fn an_answer_before_the_open_ends_the_link() {
    let (mut case, byte) = calling();
    case.engine.nic_mut().room = 0;
    case.tell(Event::Up { link: LinkId(100), peer: name(byte), initiator: true });
    case.tell(Event::Message(LinkId(100), open(OPEN_OK)));
    assert_eq!(
        case.engine.window(u64::from(byte) - 2),
        None,
        "the link is in use before the device has taken its OPEN"
    );
    assert!(case.done().iter().all(|end| end.fault.is_some()));
    case.engine.nic_mut().room = usize::MAX;
    case.run();
    assert!(case.engine.nic().open.is_empty());
}

/// The results of a request fit a message together with their head.
#[test]
fn a_result_longer_than_a_message_is_refused() {
    const ATOMIC_READ: u8 = 10;
    for (len, refused) in [(4080, false), (4096, true)] {
        let mut case = Case::new(CAPS, Config::default());
        case.connect(0, 2);
        let mut memory = Owned::new(vec![1; 8192]);
        let access = Access { read: true, write: true };
        let iov = IovList::from_slice(&[memory.iov()]);
        case.engine.add_region(Region { key: 7, iov, base: 0, access, user: 0, events: false, mapping: None }).unwrap();
        case.say_as([ATOMIC, 8 | 16, 0, ATOMIC_READ], &words(&[3, 7, 0, len]));
        assert_eq!(case.is_cut(), refused);
        assert!(case.engine.at_rest(), "a part of an operation is in progress");
        if !refused {
            assert_eq!(case.sent(RESULTS).len() as u64, 16 + len);
        }
    }
}

/// A RESULTS message that was cut after its head has a number, and could be taken for a complete one.
#[test]
fn empty_results_are_a_violation() {
    let mut case = Case::new(CAPS, Config::default());
    case.connect(0, 2);
    let mut memory = Owned::new(vec![0; 16]);
    let (here, result) = (memory.iov().slice(0, 8), memory.iov().slice(8, 8));
    let amo = Amo::new(Form::Fetch, Type::Uint64, amo::Op::Sum).unwrap();
    let (remote, ctx) = ([RmaIov { addr: 0, len: 8, key: 7 }], Context { ptr: 1, user: 0 });
    let op = AtomicOp {
        dest: 0,
        amo,
        iov: &[here],
        compare: &[],
        result: &[result],
        remote: &remote,
        data: 0,
        ctx,
        flags: OpFlags::empty(),
    };
    case.engine.atomic(&op).unwrap();
    case.run();
    case.say(RESULTS, 0, &[]);
    let ends = case.done();
    assert!(case.is_cut() && ends.len() == 1 && ends[0].fault.is_some(), "{ends:?}");
}

/// However often a peer calls, its messages without a receive stay within one window. A new link is granted
/// the remainder of the window.
#[test]
fn messages_without_a_receive_stay_within_the_window_of_their_peer() {
    const WINDOW: u64 = 10_000;
    const COST: u64 = 1000 + 64;
    let config = Config { window_bytes: WINDOW as usize, ..Config::default() };
    let mut case = Case::new(CAPS, config);
    let mut waiting = 0;
    for link in 0..100 {
        case.connect(link, 2);
        assert_eq!(u64_at(&case.sent(OPEN_OK), 16), WINDOW - waiting * COST);
        // The peer respects the window at first, and exceeds it on the last link.
        let left = (WINDOW / COST - waiting).min(4);
        (0..left).for_each(|_| case.say(EAGER, 0, &[7; 1000]));
        assert!(!case.is_cut());
        waiting += left;
        if link > 50 {
            case.say(EAGER, 0, &[7; 1000]);
            assert!(case.is_cut());
        }
        case.tell(Event::Down(LinkId(link)));
        assert_eq!(case.engine.unexpected_messages() as u64, waiting);
    }
    // Messages are received while the peer is away and while its next call is in progress. The peer gets their
    // window back.
    let mut memory = Owned::new(vec![0; 1000]);
    let mut receive = |case: &mut Case| {
        let ctx = Context { ptr: 1, user: 0 };
        let iov = [memory.iov()];
        let recv = RecvOp { src: ADDR_NONE, iov: &iov, tag: 0, ignore: 0, ctx, flags: RecvFlags::empty() };
        case.engine.recv(&recv).unwrap();
        case.run();
        assert_eq!(case.done().iter().filter(|end| end.fault.is_none()).count(), 1);
    };
    (0..3).for_each(|_| receive(&mut case));
    case.engine.nic_mut().dials = Some(100);
    let send = SendOp { dest: 0, iov: &[], tag: 0, data: 0, ctx: Context::default(), flags: OpFlags::empty() };
    case.engine.send(&send).unwrap();
    (case.link, case.seq) = (LinkId(100), 0);
    case.tell(Event::Up { link: case.link, peer: name(2), initiator: true });
    assert_eq!(u64_at(&case.sent(OPEN), 16), WINDOW - 6 * COST);
    (0..3).for_each(|_| receive(&mut case));
    case.tell(Event::Message(case.link, open(1)));
    assert_eq!(u64_at(&case.sent(CREDIT), 8), 3 * COST);
    let _ = case.done();
    (0..3).for_each(|_| receive(&mut case));
    assert_eq!(u64_at(&case.sent(CREDIT), 8), 3 * COST);
    assert_eq!(case.engine.window(0), Some(((1 << 20) - 64, 0)));
    assert_eq!(case.engine.unexpected_messages(), 0);
}

/// Maximum number of requests of one peer that may be in progress (docs/protocol.md).
const REQUESTS: usize = 131_072;

/// Maximum number of a peer's messages that may wait for receives without being stored here.
const UNMATCHED: usize = 1 << 20;

/// A peer sends requests, and accepts no answers or gives none. The link lasts up to the limit, and is closed
/// beyond it.
#[test]
fn requests_are_limited() {
    // Acknowledgements, refusals, answers, windows for long writes, messages without a receive.
    let asks: [(u8, &[u64], usize); 5] = [
        (WRITE, &[1, 7, 0, 0], REQUESTS + UNMATCHED),
        (WRITE, &[1, 8, 0, 0], 2 * REQUESTS),
        (READ, &[1, 7, 0, 8], 2 * REQUESTS),
        (WRITE_RTS, &[1, 7, 0, 0, 100, 0, 0], REQUESTS),
        (RTS, &[1, 0, 0, 100], UNMATCHED),
    ];
    for (kind, body, limit) in asks {
        let mut case = Case::new(CAPS, Config::default());
        case.connect(0, 2);
        let mut memory = Owned::new(vec![1; 100]);
        let access = Access { read: true, write: true };
        let iov = IovList::from_slice(&[memory.iov()]);
        case.engine.add_region(Region { key: 7, iov, base: 0, access, user: 0, events: false, mapping: None }).unwrap();
        if kind != WRITE_RTS {
            case.engine.nic_mut().room = 0;
        }
        let body = words(body);
        for n in 0..=limit {
            assert!(!case.is_cut(), "kind {kind}: link closed after {n}");
            case.say(kind, 0, &body);
        }
        case.say(kind, 0, &body);
        assert!(case.is_cut(), "kind {kind}: link open after {limit}");
        assert!(case.engine.at_rest());
    }
}

#[test]
fn acknowledgements_leave_in_order_when_they_can() {
    let mut case = Case::new(CAPS, Config::default());
    case.connect(0, 2);
    let mut memory = Owned::new(vec![1; 100]);
    let access = Access { read: true, write: true };
    let iov = IovList::from_slice(&[memory.iov()]);
    case.engine.add_region(Region { key: 7, iov, base: 0, access, user: 0, events: false, mapping: None }).unwrap();
    case.engine.nic_mut().room = 0;
    (0..1000).for_each(|op| case.say(WRITE, 0, &words(&[op, 7, 0, 0])));
    let mut told = Vec::new();
    for room in [1, 0, 5, 100] {
        case.engine.nic_mut().room = room;
        case.run();
    }
    for (_, bytes) in case.engine.nic().sent.iter().filter(|(_, bytes)| bytes[0] == ACK) {
        assert_eq!(usize::from(bytes[1]) * 4, bytes.len() - 8);
        told.extend(bytes[8..].chunks(4).map(|op| u32_at(op, 0)));
    }
    assert!(told.into_iter().eq(0..1000));
}

/// An endpoint with a large TX queue respects the limits of its peer, and continues as the peer answers.
/// Sends that wait for a receive do not count as requests.
#[test]
fn a_large_queue_asks_no_more_than_a_peer_answers() {
    let mut case = Case::new(CAPS, Config { tx_depth: 1 << 20, ..Config::default() });
    case.connect(0, 2);
    let mut memory = Owned::new(vec![1; 64]);
    let iov = [memory.iov()];
    let ctx = Context { ptr: 1, user: 0 };
    let (one, eight) = ([RmaIov { addr: 0, len: 64, key: 7 }], [RmaIov { addr: 0, len: 8, key: 7 }; 8]);
    let mut begun = 0;
    for n in 0..150_000 {
        let remote = if n % 5 == 0 { &eight[..] } else { &one };
        let flags = OpFlags::DELIVERY;
        let op = RmaOp { dest: 0, iov: &iov, remote, data: 0, ctx, flags };
        if n % 5 == 4 {
            case.engine.send(&SendOp { dest: 0, iov: &iov, tag: 0, data: 0, ctx, flags }).unwrap();
        } else {
            case.engine.write(&op).unwrap();
        }
        begun += 1;
    }
    let mut ended = 0;
    while ended < begun {
        case.run();
        let mut asked = std::mem::take(&mut case.engine.nic_mut().sent);
        asked.retain(|(_, bytes)| bytes[0] != OPEN_OK);
        let requests = asked.iter().filter(|(_, bytes)| bytes[0] == WRITE).count();
        assert!(requests <= REQUESTS, "{requests} at once");
        assert!(!asked.is_empty(), "{ended} of {begun} have ended, without further progress");
        let ops = asked.iter().map(|(_, bytes)| u32_at(bytes, 8).to_le_bytes()).collect::<Vec<_>>();
        for batch in ops.chunks(48) {
            case.say(ACK, u8::try_from(batch.len()).unwrap(), &batch.concat());
        }
        let done = case.done();
        assert!(done.iter().all(|end| end.fault.is_none()), "{:?}", done.last());
        ended += done.len();
    }
    assert!(case.engine.at_rest() && !case.is_cut());
}

/// A write for which the target confirms that it was executed.
fn delivered_write(case: &mut Case, memory: &mut Owned, ptr: usize) {
    let remote = [RmaIov { addr: 0, len: 100, key: 7 }];
    let ctx = Context { ptr, user: 0 };
    let op = RmaOp { dest: 0, iov: &[memory.iov()], remote: &remote, data: 0, ctx, flags: OpFlags::DELIVERY };
    case.engine.write(&op).unwrap();
}

/// A confirmation by position ends exactly the requests before it. A refused one ends with its error.
#[test]
fn a_confirmation_ends_the_requests_before_it() {
    let mut case = Case::new(NicCaps { confirms: true, ..CAPS }, Config::default());
    case.connect(0, 2);
    let mut memory = Owned::new(vec![1; 100]);
    let link = case.link;
    for ptr in 1..=3 {
        delivered_write(&mut case, &mut memory, ptr);
    }
    let first = u32_at(&case.engine.nic().sent[case.engine.nic().sent.len() - 3].1, 4);
    let second = u32_at(&case.engine.nic().sent[case.engine.nic().sent.len() - 2].1, 8);
    case.tell(Event::Confirmed(link, first));
    assert!(case.done().is_empty(), "the first message is not included");
    case.tell(Event::Confirmed(link, first + 1));
    assert_eq!(case.done().iter().map(|end| end.ctx.ptr).collect::<Vec<_>>(), [1]);
    case.say(FIN, 0, &words(&[pair(second.into(), 1), 1]));
    assert!(case.done().is_empty(), "the confirmation follows the refusal");
    case.tell(Event::Confirmed(link, first + 3));
    let ends = case.done();
    assert_eq!(ends.iter().map(|end| (end.ctx.ptr, end.fault.is_some())).collect::<Vec<_>>(), [(2, true), (3, false)]);
    assert!(!case.is_cut() && case.engine.at_rest());
    case.tell(Event::Confirmed(link, first + 4));
    assert!(case.is_cut(), "the message does not exist yet");
}

/// The target confirms what it has executed, after the refusals have left.
#[test]
fn a_refusal_leaves_before_the_confirmation() {
    let mut case = Case::new(NicCaps { confirms: true, ..CAPS }, Config::default());
    case.connect(0, 2);
    let mut memory = Owned::new(vec![0; 8]);
    let access = Access { read: false, write: true };
    let iov = IovList::from_slice(&[memory.iov()]);
    case.engine.add_region(Region { key: 7, iov, base: 0, access, user: 0, events: true, mapping: None }).unwrap();
    let taken = case.seq;
    case.say(WRITE, 0, &words(&[3, 7, 0, 0, 77]));
    assert_eq!(case.engine.nic().confirmed.last().map(|&(number, _)| number), Some(taken + 1));
    case.engine.nic_mut().room = 0;
    case.say(WRITE, 0, &words(&[4, 8, 0, 0, 77]));
    case.say(WRITE, 0, &words(&[5, 7, 0, 0, 78]));
    assert_eq!(case.engine.nic().confirmed.len(), 1, "the refusal waits for room");
    let sent = case.engine.nic().sent.len();
    case.engine.nic_mut().room = usize::MAX;
    case.run();
    assert_eq!(case.engine.nic().confirmed[1..], [(taken + 3, sent + 1)]);
    assert_eq!(case.sent(FIN)[16..24], 1_u64.to_le_bytes());
    assert!(!case.is_cut());
}

/// Where pushes are the faster way for a limited length, messages up to it are pushed behind their announcement, and
/// longer ones leave their memory to the peer.
#[test]
fn messages_are_pushed_up_to_a_length() {
    let caps = NicCaps { get: true, push_follows: true, pushes: true, ..CAPS };
    for (len, pushed) in [(PUSH_BYTES, true), (PUSH_BYTES + 1, false)] {
        let mut case = Case::new(caps, Config::default());
        case.connect(0, 2);
        let mut memory = Owned::new(vec![1; len as usize]);
        let iov = [memory.iov()];
        let send = SendOp { dest: 0, iov: &iov, tag: 0, data: 0, ctx: Context::default(), flags: OpFlags::empty() };
        case.engine.send(&send).unwrap();
        let announced = case.sent(RTS);
        assert_eq!((announced[1] & 128 != 0, u32_at(&announced, 12)), (pushed, u32::from(!pushed)), "{len} bytes");
        assert_eq!(case.engine.nic().busy.len(), usize::from(pushed));
    }
}
