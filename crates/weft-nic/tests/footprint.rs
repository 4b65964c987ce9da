//! What an idle peer costs, and a stranger who has proven nothing: heap of an engine and its devices, counted while that engine runs and
//! rounded up as glibc's allocator does, so that the result is the same in every run. A program of its own, because it has an allocator of its own.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_engine::api::{ADDR_NONE, Addr, AddressBook, Config, Context, OpFlags, RecvOp, SendOp};
use weft_engine::mem::Owned;
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};
use weft_engine::{Engine, mem};
use weft_nic::{Devices, Tcp, TcpConfig};

#[allow(dead_code, unreachable_pub)]
#[path = "tcp/raw.rs"]
mod raw;

/// What a connected idle peer may cost an endpoint, in bytes of the heap.
const BUDGET_BYTES: isize = 512;
/// The same where it is encrypted: two expanded keys.
const ENCRYPTED_BUDGET_BYTES: isize = 3072;
/// What a half-open connection may cost, and one whose hello was good.
const HALF_OPEN_BYTES: [isize; 2] = [200, 500];
/// Peers, so many that tables have been enlarged some times.
const PEERS: usize = 200;
/// So many come first: what an endpoint keeps for those that are busy is no idle peer's.
const FIRST: usize = 16;
/// Peers from which on the budget holds.
const FEW: usize = 64;

thread_local! {
    /// Whether what this thread allocates and frees is counted, and the bytes so far.
    static COUNTED: (Cell<bool>, Cell<isize>) = const { (Cell::new(false), Cell::new(0)) };
}

struct Counting;

impl Counting {
    /// Notes that a block came (`sign` 1) or went (-1).
    fn note(layout: Layout, sign: isize) {
        // A block has a word in front, and is a multiple of 16 and at least 32 bytes.
        let block = (layout.size() + size_of::<usize>()).next_multiple_of(16).max(32);
        COUNTED.with(|(on, bytes)| {
            if on.get() {
                bytes.set(bytes.get() + sign * isize::try_from(block).unwrap_or(0));
            }
        });
    }
}

// SAFETY: the system's allocator does everything.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout, 1);
        // SAFETY: the caller's promises are those that the system's allocator wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::note(layout, -1);
        // SAFETY: as above; the block is one of the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `run` has added to the heap, and what it returns.
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

/// Address vector: the names by number.
struct Names(Vec<EpName>);

impl AddressBook for Names {
    fn name(&self, addr: Addr) -> Option<EpName> {
        self.0.get(usize::try_from(addr).ok()?).copied()
    }

    fn addr(&self, name: &EpName) -> Option<Addr> {
        self.0.iter().position(|known| known.same_endpoint(name)).map(|at| at as Addr)
    }
}

/// How the peers are reached.
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

/// One short message there and one of `len` bytes back. Returns what it has added to the hub's heap.
fn greet(hub: &mut Engine<Devices>, peer: &mut Engine<Devices>, to: Addr, len: usize) -> isize {
    let mut memory = [Owned::new(vec![7; len]), Owned::new(vec![0; len])];
    let [source, target] = memory.each_mut().map(|memory| [memory.iov()]);
    let (ctx, flags, tag) = (Context::default(), OpFlags::TAGGED, 1);
    let short = mem::slice(&source, 0, 8);
    let recv = RecvOp { src: ADDR_NONE, iov: &target, tag, ignore: 0, ctx, flags };
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

/// Polls all until the messages of the last greetings are acknowledged, where that takes a while. Returns what it has added to the hub's heap.
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

/// The heap that each of [`PEERS`] takes at an endpoint that is connected with them, at any number of them. `len`: bytes that each
/// has sent.
fn holds(kind: Kind, len: usize) {
    let (shm, budget_bytes) = (kind == Kind::Shm, kind.budget_bytes());
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
            // Copies of messages stay until they are acknowledged: what is idle is seen after a while.
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

/// Both devices in one test: descriptors are limited.
#[test]
fn an_idle_peer_costs_no_more_than_its_budget() {
    for kind in [Kind::Shm, Kind::Tcp, Kind::Encrypted] {
        holds(kind, 8);
        // Long enough to move apart from messages, by both sides where they share memory.
        holds(kind, 200_000);
    }
}

/// Hears nothing, and is told nothing.
struct Deaf;

impl Sink for Deaf {
    fn up(&mut self, _: LinkId, _: LinkUp) {}
    fn down(&mut self, _: LinkId, _: LinkError) {}
    fn message(&mut self, _: LinkId, _: &[u8]) {}
    fn place(&mut self, _: LinkId, _: u64, _: u64, _: usize) -> Option<mem::IovList> {
        None
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}
    fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
}

/// A thousand connections of strangers, silent ones or such with a good hello, of which 300 stay open: the most that is held on the heap.
#[test]
fn a_flood_costs_no_more_than_its_budget() {
    let half_open = TcpConfig::default().half_open;
    for (greets, budget_bytes) in [false, true].into_iter().zip(HALF_OPEN_BYTES) {
        let capability = [7; 16];
        let socket = ([127, 0, 0, 1], 0).into();
        let (ep_id, context) = (endpoint_id(&capability), None);
        let name = NameParts { socket, host_id: 1, ep_id, capability, context, shm: false, tcp: true };
        let mut nic = Tcp::new(&TcpConfig::default(), &name).unwrap();
        let (target, me) = (nic.name(), EpName::full(&name));
        let (mut held, mut growth, mut most, mut crowd) = (VecDeque::new(), 0, 0, 0);
        let patience = Instant::now() + Duration::from_secs(20);
        for n in 1..=1000 {
            let mut stream = TcpStream::connect(target.socket()).unwrap();
            if greets {
                stream.write_all(&raw::hello(&me, &target)).unwrap();
            }
            held.push_back(stream);
            held.drain(..held.len().saturating_sub(300));
            while nic.stats().refused + (nic.stats().half_open as u64) < n {
                assert!(Instant::now() < patience, "{n} connections");
                growth += counted(|| nic.poll(&mut Deaf)).0;
                most = most.max(growth);
                crowd = crowd.max(nic.stats().half_open);
            }
        }
        // The last one makes room for the next, which may not have come yet.
        assert!((half_open - 1..=half_open).contains(&crowd), "{crowd}");
        let each = most / isize::try_from(crowd).unwrap();
        println!("half-open, good hello: {greets}: {each} B each");
        assert!((1..=budget_bytes).contains(&each), "good hello: {greets}: {each} B each");
    }
}
