//! Peers that vanish: a process is killed during an operation.
//!
//! The peer is another process of this program ([`peer`]). Environment variables give it its role and the
//! survivor's address. SIGSTOP stops it where an operation must stay pending, and SIGKILL kills it. The
//! survivor's operations with it fail within [`NOTICE`], and all others go on. At the end no resource of the
//! dead peer is left: the caller of every group compares descriptors and mappings.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, bind, close};
use crate::mapped::Block;
use crate::side::{
    Args, Outcome, PATIENCE, Side, Watched, copies_alone, err, fabric_err, memory, off, pattern, scenes, until, works,
};

/// A length at which no path holds the whole message.
const BYTES: usize = 16 << 20;
/// The time within which operations with a dead peer must end.
const NOTICE: Duration = Duration::from_secs(1);
/// The key of the peer's region.
const KEY: u64 = 5;
/// The tag of the greeting, which shows that both sides are connected.
const GREETING: u64 = 0x6e;
/// The lifetime of a peer that is not killed.
const PEER_LIFE: Duration = Duration::from_secs(30);

/// The behavior of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Sends two long messages.
    Sender,
    /// Receives one long message, and stops polling when it has begun to arrive.
    Receiver,
    /// Offers a region and makes progress.
    Target,
    /// Forks a child, which outlives the peer.
    Parent,
    /// Offers memory that peers map, and makes progress.
    Owner,
}

impl Role {
    const ALL: [Self; 5] = [Self::Sender, Self::Receiver, Self::Target, Self::Parent, Self::Owner];
}

/// A peer process, which is killed when this is dropped.
struct Peer {
    process: Child,
    lines: Receiver<String>,
    /// The peer's child exits when this is closed.
    leash: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
    name: Vec<u8>,
    /// The peer's address in the survivor's address vector.
    number: u64,
}

impl Peer {
    /// Starts a peer. Returns once both sides are connected.
    fn start(role: Role, survivor: &Side<'_>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("WEFT_TEST_GROUP", "peer").env("WEFT_TEST_ROLE", format!("{role:?}"));
        command.env("WEFT_TEST_SURVIVOR", to_hex(&survivor.name()));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        let read = move || output.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        let (leash, reader) = (process.stdin.take(), Some(std::thread::spawn(read)));
        let mut peer = Self { process, lines, leash, reader, name: Vec::new(), number: 0 };
        peer.name = from_hex(&peer.line("name ", survivor));
        peer.number = survivor.insert(&peer.name);
        let word = memory(1);
        survivor.start("fi_trecv", &Args { tag: GREETING, context: 0x66, ..Args::new(word, 0) }, &[]);
        assert_eq!(survivor.next(&[]).done().op_context as usize, 0x66);
        survivor.start("fi_tsend", &Args { tag: GREETING, context: 0x67, ..Args::new(word, peer.number) }, &[]);
        assert_eq!(survivor.next(&[]).done().op_context as usize, 0x67);
        peer.line("greeted", survivor);
        peer
    }

    /// Waits for the next line with this prefix, while the survivor makes progress, and returns the rest of
    /// the line.
    fn line(&self, start: &str, survivor: &Side<'_>) -> String {
        until(|| {
            survivor.progress();
            let line = self.lines.try_recv().ok()?;
            line.strip_prefix(start).map(str::to_owned)
        })
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.process.id()).unwrap();
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    /// Stops the peer. May be called again.
    fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let pid = i32::try_from(self.process.id()).unwrap();
        // A stopped process has the state `T` after a moment.
        until(|| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T').then_some(())
        });
    }

    /// Kills the peer and returns the time.
    fn kill(&mut self) -> Instant {
        let now = Instant::now();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        now
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        drop(self.leash.take());
        // The reader thread holds a descriptor.
        self.reader.take().into_iter().for_each(|reader| drop(reader.join()));
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The function of the peer process. The process is killed, or ends by itself after a while.
pub(crate) fn peer(lib: &Lib) {
    // The peer does not outlive the survivor either.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let role = std::env::var("WEFT_TEST_ROLE").unwrap();
    let role = Role::ALL.into_iter().find(|known| format!("{known:?}") == role).unwrap();
    let side = Side::new(lib);
    let survivor = side.insert(&from_hex(&std::env::var("WEFT_TEST_SURVIVOR").unwrap()));
    let block = (role == Role::Owner).then(|| Block::new(&side, BYTES).unwrap());
    let ordinary = || memory(if role == Role::Target { BYTES } else { 8 });
    let region = block.as_ref().map_or_else(ordinary, Block::bytes);
    let mr = side.register(region, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
    assert!(!mr.is_null());
    println!("\nname {}", to_hex(&side.name()));
    let end = Instant::now() + PEER_LIFE;
    let word = memory(1);
    side.start("fi_trecv", &Args { tag: GREETING, ..Args::new(word, 0) }, &[]);
    side.start("fi_tsend", &Args { tag: GREETING, ..Args::new(word, survivor) }, &[]);
    side.next(&[]).done();
    side.next(&[]).done();
    let buffer = if role == Role::Sender { pattern(BYTES) } else { memory(BYTES) };
    let watched = Watched::new(buffer);
    match role {
        Role::Sender => (0..2).for_each(|context| side.tsend(buffer, survivor, context)),
        Role::Receiver => side.trecv(buffer, 1),
        Role::Target | Role::Owner => {}
        Role::Parent => leave_a_child(),
    }
    println!("greeted");
    while Instant::now() < end {
        side.progress();
        if role == Role::Receiver && watched.begun() {
            println!("begun");
            std::thread::sleep(PEER_LIFE);
        }
        std::thread::yield_now();
    }
}

/// Forks a child that does nothing until the survivor closes the peer's input.
fn leave_a_child() {
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        unsafe { libc::close(1) };
        unsafe { libc::read(0, [0_u8].as_mut_ptr().cast(), 1) };
        unsafe { libc::_exit(0) };
    }
}

/// Waits for `count` failures of the survivor's operations, which must come in time. Returns errors by
/// context.
#[track_caller]
fn failures(side: &Side<'_>, count: usize, killed: Instant) -> BTreeMap<usize, i32> {
    let mut failures = BTreeMap::new();
    while failures.len() < count {
        let failed = side.next(&[]).failed();
        assert!(killed.elapsed() < NOTICE, "noticed after {:?}", killed.elapsed());
        assert!(failures.insert(failed.op_context as usize, failed.err).is_none(), "twice: {failed:?}");
    }
    side.nothing(&[]);
    failures
}

/// Asserts that the survivor still works: new operations with the dead peer fail, and those with others
/// succeed.
#[track_caller]
fn assert_survivor_works(lib: &Lib, side: &Side<'_>, dead: u64) {
    let mut contexts = 0x500..;
    for name in ["fi_tsend", "fi_write", "fi_read"] {
        for len in [8, 100_000] {
            let context = contexts.next().unwrap();
            side.start(name, &Args { key: KEY, context, ..Args::new(pattern(len), dead) }, &[]);
        }
    }
    let expected: BTreeMap<usize, i32> = (0x500..0x506).map(|context| (context, FI_ECONNREFUSED)).collect();
    assert_eq!(failures(side, expected.len(), Instant::now()), expected);
    let other = Side::new(lib);
    let to_other = side.insert(&other.name());
    works(side, &other, to_other);
    let to_side = other.insert(&side.name());
    works(&other, side, to_side);
}

/// All scenes in which a peer is killed.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("sender", sender),
            ("helper", helper),
            ("receiver", receiver),
            ("target", target),
            ("parent", parent),
            ("owner", owner),
        ],
    );
}

/// The sender dies. A partial message is not delivered, and an announced message is gone.
fn sender(lib: &Lib) {
    let side = Side::new(lib);
    let mut peer = Peer::start(Role::Sender, &side);
    // If this side can read the peer's memory, it does not need the peer. With its help the whole message
    // might arrive at once.
    peer.freeze();
    let watched = begin(&side, &peer);
    peer.freeze();
    watched.assert_incomplete();
    let killed = peer.kill();
    assert_eq!(failures(&side, 1, killed), [(0x31, FI_ECONNRESET)].into());
    announced_message_is_gone(&side);
    assert_survivor_works(lib, &side, peer.number);
}

/// The receive that matches the announced message fails. Afterwards no message is left.
fn announced_message_is_gone(side: &Side<'_>) {
    side.trecv(memory(BYTES), 0x32);
    assert_eq!(failures(side, 1, Instant::now()), [(0x32, FI_ECONNRESET)].into());
    side.trecv(memory(BYTES), 0x33);
    side.nothing(&[]);
    assert_eq!(side.cancel(0x33), 0);
    assert_eq!(side.next(&[]).failed().err, FI_ECANCELED);
}

/// Receives until the first byte has arrived. A stopped peer continues if no byte arrives without it.
fn begin(side: &Side<'_>, peer: &Peer) -> Watched {
    let target = memory(BYTES);
    let watched = Watched::new(target);
    side.trecv(target, 0x31);
    let thaw = Instant::now() + Duration::from_millis(20);
    until(|| {
        side.progress();
        if Instant::now() > thaw {
            peer.signal(libc::SIGCONT);
        }
        watched.begun().then_some(())
    });
    watched
}

/// The sender dies while it copies a part of its message. Either the whole message is delivered, or none of
/// it.
fn helper(lib: &Lib) {
    if !copies_alone() {
        return;
    }
    let side = Side::new(lib);
    let mut peer = Peer::start(Role::Sender, &side);
    let watched = begin(&side, &peer);
    let killed = peer.kill();
    match side.next(&[]) {
        Outcome::Done(_) => assert!(*watched.bytes() == *pattern(BYTES), "a partial message was reported as complete"),
        Outcome::Failed(entry) => assert_eq!(entry.err, FI_ECONNRESET),
    }
    assert!(killed.elapsed() < NOTICE);
    announced_message_is_gone(&side);
    assert_survivor_works(lib, &side, peer.number);
}

/// The receiver dies after the beginning of a message, while more messages wait.
fn receiver(lib: &Lib) {
    let side = Side::new(lib);
    let mut peer = Peer::start(Role::Receiver, &side);
    side.tsend(pattern(BYTES), peer.number, 0x41);
    side.tsend(pattern(BYTES), peer.number, 0x42);
    peer.line("begun", &side);
    side.nothing(&[]);
    let killed = peer.kill();
    assert_eq!(failures(&side, 2, killed), [(0x41, FI_ECONNRESET), (0x42, FI_ECONNRESET)].into());
    assert_survivor_works(lib, &side, peer.number);
}

/// The target dies. Five connected endpoints of the survivor have operations pending with it, and a sixth
/// endpoint has tried to connect.
fn target(lib: &Lib) {
    let rma = Side::delivering(lib);
    let [mut closing, flood, blocked] = [(); 3].map(|()| Side::new(lib));
    let progressed = Side::with(lib, 0, |hints| hints.domain().data_progress = FI_PROGRESS_AUTO);
    let stranger = Side::new(lib);
    let mut peer = Peer::start(Role::Target, &rma);
    let connected = [&rma, &closing, &flood, &blocked, &progressed];
    let dead = connected.map(|side| connect(side, &peer));
    let cntr = rma.opened.cntr();
    assert_eq!(bind(rma.ep, cntr, FI_READ | FI_WRITE), 0);
    peer.freeze();

    let accesses = start_accesses(&rma, dead[0]);
    let flooded = start_flood(&flood, dead[2]);
    for (side, dead) in [(&blocked, dead[3]), (&progressed, dead[4])] {
        side.trecv_from(memory(8), dead, 0x71);
        side.trecv(memory(8), 0x72);
    }
    let to_peer = stranger.insert(&peer.name);
    for (context, len) in [(0x81, 8), (0x82, BYTES)] {
        stranger.tsend(pattern(len), to_peer, context);
    }
    for side in [&rma, &blocked, &progressed, &stranger] {
        side.nothing(&[]);
    }
    close_with_frozen_peer(&mut closing, dead[1]);

    let killer = std::thread::spawn(move || {
        // The reader sleeps by then.
        std::thread::sleep(Duration::from_millis(50));
        peer.kill()
    });
    let woken = blocked_read(&blocked);
    let killed = killer.join().unwrap();
    assert!(woken > killed && woken - killed < NOTICE, "woken after {:?}", woken - killed);
    assert!(blocked_read(&progressed) - killed < NOTICE);
    let expected = (0..accesses).map(|at| (0x50 + at, FI_ECONNRESET)).collect();
    assert_eq!(failures(&rma, accesses, killed), expected);
    assert_eq!(counted(cntr), (0, accesses as u64), "each access counts once");
    assert_eq!(failures(&stranger, 2, killed), [(0x81, FI_ECONNREFUSED), (0x82, FI_ECONNREFUSED)].into());
    end_flood(&flood, flooded, killed);
    for (side, dead) in [(&rma, dead[0]), (&flood, dead[2]), (&blocked, dead[3]), (&progressed, dead[4])] {
        assert_survivor_works(lib, side, dead);
    }
    assert_survivor_works(lib, &stranger, to_peer);
    let mut rma = rma;
    rma.close_ep();
    assert_eq!(close(cntr), 0);
}

/// The peer forks. The child has none of its sockets.
fn parent(lib: &Lib) {
    let side = Side::new(lib);
    let mut peer = Peer::start(Role::Parent, &side);
    side.trecv_from(memory(8), peer.number, 0x91);
    let killed = peer.kill();
    assert_eq!(failures(&side, 1, killed), [(0x91, FI_ECONNRESET)].into());
}

/// The owner of memory dies while the survivor has it mapped. Its accesses fail from then on.
fn owner(lib: &Lib) {
    if off("FI_WEFT_SHM") {
        return;
    }
    let side = Side::new(lib);
    let mut peer = Peer::start(Role::Owner, &side);
    let to_peer = peer.number;
    let write = || {
        side.start("fi_write", &Args { key: KEY, ..Args::new(pattern(8), to_peer) }, &[]);
        side.next(&[])
    };
    let end = Instant::now() + Duration::from_millis(100);
    while Instant::now() < end {
        write().done();
    }
    peer.freeze();
    write().done();
    let killed = Instant::now();
    peer.signal(libc::SIGKILL);
    let failed = until(|| match write() {
        Outcome::Done(_) => None,
        Outcome::Failed(entry) => Some(entry.err),
    });
    assert!(killed.elapsed() < NOTICE && [FI_ECONNRESET, FI_ECONNREFUSED].contains(&failed), "{failed}");
    peer.kill();
    assert_survivor_works(lib, &side, peer.number);
}

/// Connects by a write, which shows that accesses work while the peer is alive. Returns the peer's address.
fn connect(side: &Side<'_>, peer: &Peer) -> u64 {
    let number = side.insert(&peer.name);
    side.start("fi_write", &Args { key: KEY, context: 1, ..Args::new(pattern(8), number) }, &[]);
    assert_eq!(side.next(&[]).done().op_context as usize, 1);
    number
}

fn counted(cntr: *mut fid_cntr) -> (u64, u64) {
    let ops = unsafe { &*(*cntr).ops };
    unsafe { (ops.read.unwrap()(cntr), ops.readerr.unwrap()(cntr)) }
}

/// Starts long and short reads and writes, with contexts from 0x50 on. Returns their number.
fn start_accesses(side: &Side<'_>, dead: u64) -> usize {
    let all = [("fi_write", 8), ("fi_write", BYTES), ("fi_read", 8), ("fi_read", BYTES), ("fi_writemsg", 100_000)];
    for (at, (name, len)) in all.into_iter().enumerate() {
        let flags = FI_DELIVERY_COMPLETE;
        side.start(name, &Args { key: KEY, context: 0x50 + at, flags, ..Args::new(memory(len), dead) }, &[]);
    }
    all.len()
}

/// Starts many short messages. Some are on their way, some wait for room, and every second one waits for an
/// acknowledgement. Returns their number.
fn start_flood(side: &Side<'_>, dead: u64) -> usize {
    let buf = pattern(4000);
    for context in 0..2000 {
        let flags = if context % 2 == 0 { FI_DELIVERY_COMPLETE } else { 0 };
        match side.run("fi_tsendmsg", &Args { context, flags, ..Args::new(buf, dead) }) {
            0 => {}
            again => {
                assert_eq!(again, err(FI_EAGAIN));
                return context;
            }
        }
    }
    2000
}

/// Checks that each message has ended once, and that none was delivered to a stopped process.
fn end_flood(side: &Side<'_>, accepted: usize, killed: Instant) {
    let mut failed: BTreeMap<usize, bool> = BTreeMap::new();
    while failed.len() < accepted {
        let outcome = side.next(&[]);
        assert!(killed.elapsed() < NOTICE, "noticed after {:?}", killed.elapsed());
        if let Outcome::Failed(entry) = outcome {
            assert_eq!(entry.err, FI_ECONNRESET);
        }
        let twice = failed.insert(outcome.context(), matches!(outcome, Outcome::Failed(_)));
        assert!(twice.is_none(), "{outcome:?}");
    }
    side.nothing(&[]);
    assert!(failed.iter().all(|(context, failed)| *failed || context % 2 == 1), "delivered");
    assert!(failed.values().filter(|failed| **failed).count() >= accepted / 2);
}

/// Sleeps until the receive from the dead peer has failed. The other receive stays. Returns the time.
#[track_caller]
fn blocked_read(side: &Side<'_>) -> Instant {
    let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
    let sread = unsafe { (*(*side.cq).ops).sread.unwrap() };
    let patience = i32::try_from(PATIENCE.as_millis()).unwrap();
    let result = unsafe { sread(side.cq, (&raw mut entry).cast(), 1, std::ptr::null(), patience) };
    let woken = Instant::now();
    assert_eq!(result, fabric_err(FI_EAVAIL));
    let failed = side.error();
    assert_eq!((failed.op_context as usize, failed.err), (0x71, FI_ECONNRESET));
    side.nothing(&[]);
    assert_eq!(side.cancel(0x72), 0);
    assert_eq!(side.next(&[]).failed().err, FI_ECANCELED);
    woken
}

/// The peer is alive but makes no progress. The close waits for it in bounded time.
fn close_with_frozen_peer(side: &mut Side<'_>, frozen: u64) {
    for name in ["fi_tsend", "fi_write", "fi_read"] {
        side.start(name, &Args { key: KEY, ..Args::new(memory(BYTES), frozen) }, &[]);
    }
    side.trecv_from(memory(8), frozen, 2);
    side.nothing(&[]);
    let begin = Instant::now();
    side.close_ep();
    // Twice the tests' close timeout, with a wide margin.
    assert!(begin.elapsed() < Duration::from_secs(2), "fi_close took {:?}", begin.elapsed());
}
