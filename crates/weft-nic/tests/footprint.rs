//! The memory that a peer costs: an idle peer, a hostile one, and a stranger without proof. The test counts
//! the heap of an engine and its devices while that engine runs. It rounds up as glibc's allocator does, so
//! that all runs give the same result. It is a program of its own, because it has an allocator of its own.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, clippy::cast_possible_truncation)]
#[path = "tcp/raw.rs"]
mod raw;
#[path = "../../weft-engine/tests/scripted/mod.rs"]
mod scripted;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use scripted::{CAPS, Case, Event, pair, words};
use weft_engine::api::{
    ADDR_NONE, Access, Addr, AddressBook, Config, Context, OpFlags, RecvFlags, RecvOp, Region, SendOp,
};
use weft_engine::mem::{IovList, Owned};
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, NicCaps, Sink};
use weft_engine::{Engine, mem};
use weft_nic::{Devices, Tcp, TcpConfig};

/// Maximum heap that a connected idle peer costs an endpoint, in bytes.
const BUDGET_BYTES: isize = 512;
/// Maximum heap of an encrypted idle peer, in bytes. It includes two expanded keys.
const ENCRYPTED_BUDGET_BYTES: isize = 3072;
/// Maximum heap of a half-open connection, in bytes, without and with a valid hello.
const HALF_OPEN_BYTES: [isize; 2] = [200, 500];
/// Number of peers. It is large enough for tables to grow several times.
const PEERS: usize = 200;
/// Number of peers that connect before the measurement. Memory for busy peers is not attributed to idle ones.
const FIRST: usize = 16;
/// Number of peers from which the budget holds.
const FEW: usize = 64;

thread_local! {
    /// Whether allocations of this thread are counted, and the sum in bytes.
    static COUNTED: (Cell<bool>, Cell<isize>) = const { (Cell::new(false), Cell::new(0)) };
    /// Allocations of this thread fail from this size in bytes.
    static REFUSED: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct Counting;

impl Counting {
    /// Counts a block that was allocated (`sign` 1) or freed (-1).
    fn note(layout: Layout, sign: isize) {
        // A block has a word in front. Its size is a multiple of 16 and at least 32 bytes.
        let block = (layout.size() + size_of::<usize>()).next_multiple_of(16).max(32);
        COUNTED.with(|(on, bytes)| {
            if on.get() {
                bytes.set(bytes.get() + sign * isize::try_from(block).unwrap_or(0));
            }
        });
    }
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= REFUSED.get() {
            return std::ptr::null_mut();
        }
        Self::note(layout, 1);
        // SAFETY: the caller fulfils the contract of `GlobalAlloc`, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::note(layout, -1);
        // SAFETY: the block comes from the system's allocator, with the same layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The growth of the heap during `run` in bytes, and the result of `run`.
fn counted<T>(run: impl FnOnce() -> T) -> (isize, T) {
    COUNTED.with(|(on, bytes)| {
        bytes.set(0);
        on.set(true);
    });
    let result = run();
    COUNTED.with(|(on, bytes)| {
        on.set(false);
        (bytes.get(), result)
    })
}

/// Held for reading by tests that run beside others.
static TESTS: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    TESTS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Excludes the other tests. They open descriptors, and the process's list of descriptor numbers grows with the highest
/// number. That growth belongs to no connection, but would be counted in the thread that causes it.
fn alone() -> RwLockWriteGuard<'static, ()> {
    TESTS.write().unwrap_or_else(PoisonError::into_inner)
}

/// An address vector: the names by number.
struct Names(Vec<EpName>);

impl AddressBook for Names {
    fn name(&self, addr: Addr) -> Option<EpName> {
        self.0.get(usize::try_from(addr).ok()?).copied()
    }

    fn addr(&self, name: &EpName) -> Option<Addr> {
        self.0.iter().position(|known| known.same_endpoint(name)).map(|at| at as Addr)
    }
}

/// The device by which peers are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shm,
    Tcp,
    Encrypted,
}

impl Kind {
    fn budget_bytes(self) -> isize {
        if self == Self::Encrypted { ENCRYPTED_BUDGET_BYTES } else { BUDGET_BYTES }
    }
}

fn endpoint(kind: Kind) -> Engine<Devices> {
    let listen = Some(([127, 0, 0, 1], 0).into());
    let (shm, encrypt) = (kind == Kind::Shm, kind == Kind::Encrypted);
    let config = weft_nic::Config { shm, tcp: !shm, encrypt, listen, ..weft_nic::Config::default() };
    Engine::new(Config::default(), Devices::new(&config).unwrap())
}

/// Sends a short message to the peer and one of `len` bytes back. Returns the growth of the hub's heap in
/// bytes.
fn greet(hub: &mut Engine<Devices>, peer: &mut Engine<Devices>, to: Addr, len: usize) -> isize {
    let mut memory = [Owned::new(vec![7; len]), Owned::new(vec![0; len])];
    let [source, target] = memory.each_mut().map(|memory| [memory.iov()]);
    let (ctx, flags, tag) = (Context::default(), OpFlags::TAGGED, 1);
    let short = mem::slice(&source, 0, 8);
    let recv = RecvOp { src: ADDR_NONE, iov: &target, tag, ignore: 0, ctx, flags: RecvFlags::TAGGED };
    let send = |dest, iov| SendOp { dest, iov, tag, data: 0, ctx, flags };
    let mut growth = counted(|| {
        hub.recv(&recv).unwrap();
        hub.send(&send(to, &short)).unwrap();
    })
    .0;
    peer.recv(&recv).unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    let (mut said, mut done) = (false, 0);
    while done < 2 || !hub.at_rest() || !peer.at_rest() {
        assert!(Instant::now() < patience, "no answer");
        let (more, completed) = counted(|| {
            hub.progress();
            hub.completions().drain(..).count()
        });
        growth += more;
        done += completed;
        peer.progress();
        if peer.completions().drain(..).count() > 0 && !said {
            said = true;
            peer.send(&send(0, &source)).unwrap();
        }
    }
    growth
}

/// Polls all endpoints until the messages of the last greetings are acknowledged, where that takes a while.
/// Returns the growth of the hub's heap in bytes.
fn settle(hub: &mut Engine<Devices>, peers: &mut [Engine<Devices>]) -> isize {
    let (start, mut growth) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(500) {
        growth += counted(|| hub.progress()).0;
        for peer in &mut *peers {
            peer.progress();
        }
    }
    growth
}

/// Checks the heap that each of [`PEERS`] takes at an endpoint that is connected with them, at any number of
/// them. `len`: number of bytes that each has sent.
fn holds(kind: Kind, len: usize) {
    let shm = kind == Kind::Shm;
    let budget_bytes = kind.budget_bytes();
    let mut hub = endpoint(kind);
    let mut peers: Vec<_> = (0..FIRST + PEERS).map(|_| endpoint(kind)).collect();
    hub.bind_book(Arc::new(Names(peers.iter().map(|peer| peer.nic().name()).collect())));
    let mine = Arc::new(Names(vec![hub.nic().name()]));
    let mut growth = 0;
    for addr in 0..peers.len() {
        let peer = &mut peers[addr];
        peer.bind_book(mine.clone());
        let more = greet(&mut hub, peer, addr as Addr, len);
        if addr + 1 == FIRST {
            settle(&mut hub, &mut peers);
        }
        let Some(number) = (addr + 1).checked_sub(FIRST).filter(|number| *number > 0) else { continue };
        growth += more;
        if !shm {
            // Copies of messages are kept until they are acknowledged, so idle memory is measured after a
            // while.
            if number % 40 != 0 {
                continue;
            }
            for _ in 0..20 {
                growth += settle(&mut hub, &mut peers);
                if growth / isize::try_from(number).unwrap() <= budget_bytes {
                    break;
                }
            }
        }
        let each = growth / isize::try_from(number).unwrap();
        assert!(number < FEW || each <= budget_bytes, "{number} peers ({kind:?}, {len} B): {each} B each");
    }
    println!("{kind:?}, {len} B: {} B each", growth / PEERS as isize);
}

/// Both devices are in one test, because descriptors are limited.
#[test]
fn an_idle_peer_costs_no_more_than_its_budget() {
    let _guard = beside_others();
    for kind in [Kind::Shm, Kind::Tcp, Kind::Encrypted] {
        holds(kind, 8);
        // The length makes the data travel apart from messages. Over shared memory, both sides copy it.
        holds(kind, 200_000);
    }
}

/// Ignores all events.
struct Deaf;

impl Sink for Deaf {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, _: LinkId, _: LinkUp) {}
    fn down(&mut self, _: LinkId, _: LinkError) {}
    fn message(&mut self, _: LinkId, _: &[u8]) {}
    fn place(&mut self, _: LinkId, _: u64, _: u64, _: usize) -> Option<mem::IovList> {
        None
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}
    fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
}

/// The maximum heap for a thousand connections of strangers, of which 300 stay open. They are silent, or send
/// a valid hello.
#[test]
fn a_flood_costs_no_more_than_its_budget() {
    let _guard = alone();
    let half_open = TcpConfig::default().half_open;
    for (greets, budget_bytes) in [false, true].into_iter().zip(HALF_OPEN_BYTES) {
        let capability = [7; 16];
        let socket = ([127, 0, 0, 1], 0).into();
        let (ep_id, context) = (endpoint_id(&capability), None);
        let name = NameParts { socket, host_id: 1, ep_id, capability, context, shm: false, tcp: true };
        let mut nic = Tcp::new(&TcpConfig::default(), &name).unwrap();
        let (target, me) = (nic.name(), EpName::full(&name));
        // The first round makes the device's own buffers, which belong to no connection.
        let first = TcpStream::connect(target.socket()).unwrap();
        let ready = Instant::now() + Duration::from_secs(20);
        while nic.stats().half_open == 0 {
            assert!(Instant::now() < ready, "the first connection");
            nic.poll(&mut Deaf);
        }
        drop(first);
        while nic.stats().half_open > 0 {
            assert!(Instant::now() < ready, "the end of the first connection");
            nic.poll(&mut Deaf);
        }
        let refused = nic.stats().refused;
        let (mut held, mut growth, mut most, mut crowd) = (VecDeque::new(), 0, 0, 0);
        let patience = Instant::now() + Duration::from_secs(20);
        for n in 1..=1000 {
            let mut stream = TcpStream::connect(target.socket()).unwrap();
            if greets {
                stream.write_all(&raw::hello(&me, &target)).unwrap();
            }
            held.push_back(stream);
            held.drain(..held.len().saturating_sub(300));
            while nic.stats().refused - refused + (nic.stats().half_open as u64) < n {
                assert!(Instant::now() < patience, "{n} connections");
                growth += counted(|| nic.poll(&mut Deaf)).0;
                most = most.max(growth);
                crowd = crowd.max(nic.stats().half_open);
            }
        }
        // The last connection makes room for the next, which may not have arrived yet.
        assert!((half_open - 1..=half_open).contains(&crowd), "{crowd}");
        let each = most / isize::try_from(crowd).unwrap();
        println!("half-open, good hello: {greets}: {each} B each");
        assert!((1..=budget_bytes).contains(&each), "good hello: {greets}: {each} B each");
    }
}

// ---- a peer that does its worst --------------------------------------------------------------

const EAGER: u8 = 8;
const RTS: u8 = 9;
const CTS: u8 = 10;
const WRITE: u8 = 14;
const WRITE_RTS: u8 = 15;
const READ: u8 = 16;
const READ_BULK: u8 = 17;
const ATOMIC: u8 = 20;

/// An engine with a region, whose peer accepts no message, and whose device accepts no transfer.
fn besieged(caps: NicCaps) -> (Case, Owned) {
    let mut case = Case::new(caps, Config::default());
    case.connect(0, 2);
    let mut memory = Owned::new(vec![1; 8192]);
    let access = Access { read: true, write: true };
    let iov = IovList::from_slice(&[memory.iov()]);
    case.engine.add_region(Region { key: 7, iov, base: 0, access, user: 0, events: false, mapping: None }).unwrap();
    (case.engine.nic_mut().room, case.engine.nic_mut().depth) = (0, 0);
    (case, memory)
}

/// Repeats a message of the peer until the engine closes the link. Returns the maximum heap that the engine
/// has kept, the heap that it keeps afterwards, both in bytes, and the number of messages.
fn siege(case: &mut Case, mut say: impl FnMut(&mut Case)) -> (isize, isize, usize) {
    let (mut kept, mut most, mut times) = (0, 0, 0);
    while !case.is_cut() {
        kept += counted(|| say(case)).0;
        most = most.max(kept);
        times += 1;
        assert!(times < 2_000_000, "nothing is refused");
    }
    (most, kept, times)
}

/// The limits in docs/security.md, in bytes of the heap.
const RESULTS_BYTES: isize = 512 << 10;
const REQUESTS_BYTES: isize = 250 << 20;
const ALL_REQUESTS_BYTES: isize = 450 << 20;
const UNEXPECTED_BYTES: isize = 8 << 20;

/// Each kind of request whose answers the peer does not take or give, repeated without end.
#[test]
fn state_kept_for_a_peer_is_bounded() {
    let _guard = beside_others();
    let (id, pieces) = (pair(3, 0), (0..32).flat_map(|n| [4096 * (n + 1), 200]).collect::<Vec<u64>>());
    let in_pieces = |head: &[u64]| words(&[head, &pieces].concat());
    let (fetch, long) = ([ATOMIC, 8, 0, 10], 32 * 200);
    let plain = |kind| [kind, 0, 0, 0];
    for (what, head, body, bound) in [
        ("results of one byte", fetch, words(&[id, 7, 0, 1]), RESULTS_BYTES),
        ("results of which two fit no message", fetch, words(&[id, 7, 0, 2100]), RESULTS_BYTES),
        ("the longest results", fetch, words(&[id, 7, 0, 4080]), RESULTS_BYTES),
        ("acknowledgements", plain(WRITE), words(&[id, 7, 0, 0]), REQUESTS_BYTES),
        ("refusals", plain(WRITE), words(&[id, 8, 0, 0]), REQUESTS_BYTES),
        ("short reads", plain(READ), words(&[id, 7, 0, 0, 128, 0, 0]), REQUESTS_BYTES),
        ("long reads", plain(READ_BULK), in_pieces(&[id, 7, 0, 0, long, 77 << 32, 32]), REQUESTS_BYTES),
        ("long writes", plain(WRITE_RTS), in_pieces(&[id, 7, 0, 0, long, 0, 32]), REQUESTS_BYTES),
        ("long writes to be pushed", plain(WRITE_RTS), words(&[id, 7, 0, 0, long, 0, 0]), REQUESTS_BYTES),
        ("long messages", plain(RTS), in_pieces(&[pair(3, 32), 0, 0, long]), REQUESTS_BYTES),
        ("messages of nothing", plain(EAGER), vec![], UNEXPECTED_BYTES),
        ("messages of one byte", plain(EAGER), vec![1], UNEXPECTED_BYTES),
        ("messages", plain(EAGER), vec![1; 2000], UNEXPECTED_BYTES),
    ] {
        for direct in [false, true] {
            let (mut case, _memory) = besieged(NicCaps { get: direct, put: direct, ..CAPS });
            let (most, kept, times) = siege(&mut case, |case| case.say_as(head, &body));
            println!("{what}: {most} B for {times}, {kept} B afterwards");
            assert!(most <= bound, "{what}: {most} B for {times}");
            // Tables do not shrink, and messages stay.
            assert!(bound != RESULTS_BYTES || kept < 1024, "{what}: {kept} B are left");
        }
    }
}

/// The maximum number of the most expensive requests of all kinds.
#[test]
fn state_kept_for_all_kinds_of_requests_is_bounded() {
    let _guard = beside_others();
    const REQUESTS: usize = 131_072;
    const UNMATCHED: usize = 1 << 20;
    let (id, pieces) = (pair(3, 0), (0..32).flat_map(|n| [4096 * (n + 1), 200]).collect::<Vec<u64>>());
    let [message, write, read] =
        [&[pair(3, 32), 0, 0, 6400][..], &[id, 7, 0, 0, 6400, 0, 32], &[id, 7, 0, 0, 6400, 77 << 32, 32]]
            .map(|head| words(&[head, &pieces].concat()));
    let (mut case, _memory) = besieged(CAPS);
    let mut times = 0;
    let (most, ..) = siege(&mut case, |case| {
        if times < UNMATCHED {
            case.say(RTS, 0, &message);
        }
        if times < REQUESTS {
            case.say(WRITE_RTS, 0, &write);
        }
        // The first kind that exceeds its limit ends the link.
        if times >= UNMATCHED - 2 * REQUESTS {
            case.say(READ_BULK, 0, &read);
        }
        times += 1;
    });
    println!("all kinds of requests: {most} B");
    assert!(times >= UNMATCHED && most <= ALL_REQUESTS_BYTES, "{most} B for {times} of each");
}

/// Messages before their turn, and messages before the connection is made. A device that preserves order,
/// such as shm and tcp, delivers none.
#[test]
fn messages_out_of_order_are_bounded() {
    let _guard = beside_others();
    let unordered = NicCaps { ordered: false, ..CAPS };
    let whole = vec![1; CAPS.mailbox_bytes - 8];
    let each = isize::try_from(CAPS.mailbox_bytes).unwrap() + 128;
    for (caps, most_messages) in [(CAPS, 0), (unordered, 4096)] {
        let (mut case, _memory) = besieged(caps);
        case.seq = 1;
        let (most, kept, times) = siege(&mut case, |case| case.say(EAGER, 0, &whole));
        assert!(times <= 1 + most_messages && most <= 1024 + each * most_messages as isize, "{most} B for {times}");
        assert!(kept < 1024, "{kept} B are left");

        let mut case = Case::new(caps, Config::default());
        case.engine.nic_mut().dials = Some(0);
        let (ctx, flags) = (Context::default(), OpFlags::empty());
        case.engine.send(&SendOp { dest: 0, iov: &[], tag: 0, data: 0, ctx, flags }).unwrap();
        case.link = LinkId(0);
        case.tell(Event::Up { link: case.link, peer: scripted::name(2), initiator: true });
        let (most, _, times) = siege(&mut case, |case| case.say(EAGER, 0, &whole));
        assert!(times <= 1 + most_messages && most <= 1024 + each * most_messages as isize, "{most} B for {times}");
    }
}

/// A violation of the protocol fails an inject at once, but the device continues with its link until the end
/// of the poll.
#[test]
fn memory_of_the_device_lasts_until_its_link_is_closed() {
    let _guard = beside_others();
    const LEN: usize = 100_000;
    let config = Config { inject_bytes: LEN, ..Config::default() };
    let mut case = Case::new(CAPS, config);
    case.connect(0, 2);
    let mut memory = Owned::new(vec![7; LEN]);
    let iov = [memory.iov()];
    let (ctx, flags) = (Context::default(), OpFlags::INJECT);
    case.engine.send(&SendOp { dest: 0, iov: &iov, tag: 0, data: 0, ctx, flags }).unwrap();
    let op = scripted::u32_at(&case.sent(RTS), 8);
    case.say(CTS, 0, &words(&[op.into(), 77, LEN as u64]));
    assert_eq!(case.engine.nic().busy.len(), 1, "the device pushes");
    let before_close = Rc::new(Cell::new(0));
    let seen = Rc::clone(&before_close);
    let nic = case.engine.nic_mut();
    nic.burst = true;
    nic.events.push_back(Event::Message(case.link, vec![255; 8]));
    nic.events.push_back(Event::Look(Box::new(move || seen.set(COUNTED.with(|(_, bytes)| bytes.get())))));
    let (kept, ()) = counted(|| case.run());
    assert!(case.is_cut() && case.done().len() == 1);
    assert!(before_close.get() > -1024, "{} B were freed while the device read them", -before_close.get());
    assert!(kept < -(LEN as isize), "{kept} B: the copy is kept");
}

/// Connects another peer, whose link is in use.
fn join(hub: &mut Engine<Devices>) -> TcpStream {
    let target = hub.nic().name();
    let peer = std::thread::spawn(move || {
        let capability = weft_nic::handshake::random().unwrap();
        let (socket, ep_id) = (target.socket(), endpoint_id(&capability));
        let me = NameParts { socket, host_id: 1, ep_id, capability, context: None, shm: false, tcp: true };
        let mut stream = raw::join(&EpName::full(&me), &target);
        stream.write_all(&raw::frame(1, &scripted::open(0))).unwrap();
        let mut answer = [0; 32];
        stream.read_exact(&mut answer).unwrap();
        stream
    });
    while !peer.is_finished() {
        hub.progress();
    }
    peer.join().unwrap()
}

/// Whether the hub has ended the connection.
fn has_ended(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    // Acknowledgements and a goodbye may come first.
    let end = (&*stream).read_to_end(&mut Vec::new());
    !end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Polls the hub for a while.
fn poll(hub: &mut Engine<Devices>) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        hub.progress();
    }
}

/// A message without its last part.
fn most_of_a_message() -> Vec<u8> {
    let mut frame = raw::frame(1, &[7; 50_000]);
    frame.truncate(40_000);
    frame
}

/// Incomplete messages of peers in no address vector share one limit.
#[test]
fn incomplete_messages_of_strangers_have_one_bound() {
    let _guard = beside_others();
    let listen = Some(([127, 0, 0, 1], 0).into());
    let devices = weft_nic::Config { shm: false, listen, ..weft_nic::Config::default() };
    let config = Config { stranger_bytes: 1 << 20, ..Config::default() };
    let mut hub = Engine::new(config, Devices::new(&devices).unwrap());
    let mut streams: Vec<_> = (0..30).map(|_| join(&mut hub)).collect();
    let mut growth = 0;
    for stream in &mut streams {
        stream.write_all(&most_of_a_message()).unwrap();
        growth += counted(|| poll(&mut hub)).0;
        // Some buffers are kept for the next such messages.
        assert!(growth < (1 << 20) + (640 << 10), "{growth} B");
    }
    let ended = streams.iter().filter(|stream| has_ended(stream)).count();
    assert!((10..20).contains(&ended), "{ended} of 30 links have ended");
}

/// If there is no memory for a link, that link ends or waits. The process and the other links continue.
#[test]
fn a_link_without_memory_ends() {
    let _guard = beside_others();
    let mut hub = endpoint(Kind::Tcp);
    let (mut first, second) = (join(&mut hub), join(&mut hub));
    first.write_all(&most_of_a_message()).unwrap();
    REFUSED.set(60_000);
    poll(&mut hub);
    REFUSED.set(usize::MAX);
    assert!(has_ended(&first) && !has_ended(&second));
    // A message that cannot be kept until it is acknowledged is sent later.
    let mut peer = endpoint(Kind::Tcp);
    hub.bind_book(Arc::new(Names(vec![peer.nic().name()])));
    peer.bind_book(Arc::new(Names(vec![hub.nic().name()])));
    greet(&mut hub, &mut peer, 0, 8);
    let mut memory = Owned::new(vec![7; 10_000]);
    let (iov, ctx, flags) = ([memory.iov()], Context::default(), OpFlags::TAGGED);
    REFUSED.set(8_000);
    for _ in 0..20 {
        hub.send(&SendOp { dest: 0, iov: &iov, tag: 1, data: 0, ctx, flags }).unwrap();
        hub.progress();
    }
    assert!(hub.completions().is_empty());
    REFUSED.set(usize::MAX);
    let patience = Instant::now() + Duration::from_secs(20);
    while peer.unexpected_messages() < 20 {
        assert!(Instant::now() < patience, "{} messages", peer.unexpected_messages());
        hub.progress();
        peer.progress();
    }
    assert!(hub.completions().drain(..).all(|done| done.fault.is_none()));
}

/// Many links each carry a message without its last byte. Each link takes one mailbox.
#[test]
fn an_incomplete_message_takes_one_mailbox() {
    let _guard = beside_others();
    const LINKS: usize = 16;
    const MAILBOX: usize = (64 << 10) + 256;
    let mut hub = endpoint(Kind::Tcp);
    let target = hub.nic().name();
    let (said, all_said) = std::sync::mpsc::channel();
    let peers = std::thread::spawn(move || {
        let streams = (0..LINKS).map(|_| {
            let capability = weft_nic::handshake::random().unwrap();
            let (socket, ep_id) = (target.socket(), endpoint_id(&capability));
            let me = NameParts { socket, host_id: 1, ep_id, capability, context: None, shm: false, tcp: true };
            let mut stream = raw::join(&EpName::full(&me), &target);
            let frame = raw::frame(1, &[7; MAILBOX]);
            stream.write_all(&frame[..frame.len() - 1]).unwrap();
            stream
        });
        said.send(streams.collect::<Vec<_>>()).unwrap();
    });
    let (mut growth, start) = (0, Instant::now());
    let mut streams = None;
    // All messages are written when the peers report it, and have arrived a while later.
    let mut until = start + Duration::from_secs(20);
    while Instant::now() < until {
        growth += counted(|| hub.progress()).0;
        if let Ok(all) = all_said.try_recv() {
            (streams, until) = (Some(all), Instant::now() + Duration::from_millis(300));
        }
    }
    peers.join().unwrap();
    assert_eq!(streams.map(|all| all.len()), Some(LINKS));
    let each = growth / LINKS as isize;
    assert!((MAILBOX..MAILBOX + 2048).contains(&usize::try_from(each).unwrap()), "{each} B for each link");
}
