//! A peer whose second thread rapidly changes the shared words while the victim uses them.
//!
//! The other targets write a word and then poll the victim. Here a word changes between two reads of the
//! victim, which detects words that are checked and then read again.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_engine::mem::{self, Iov, Owned};
use weft_engine::nic::{DirectCopy, LinkError, LinkId, Nic, Part, RemoteIov, Share};
use weft_fuzz::Random;

use crate::shm::ring::{MAILBOX_BYTES, PIECE_BYTES};
use crate::shm::segment::{LINE_BYTES, Mapping, Role};
use crate::shm::share::SHARE_BYTES;
use crate::shm::tests::ring::{poke, word};
use crate::shm::tests::{Node, join, segment, until};
use crate::shm::{ShmConfig, Slot};

/// Number of rounds, and of polls in a round. In each round the victim sends, starts transfers, and polls.
const TURNS: u64 = 50;
const POLLS: u64 = 100;
/// Length of a transfer by address that both sides copy.
const BULK_BYTES: usize = SHARE_BYTES + 7777;
/// Length of the guards on either side of a piece of memory.
const GUARD_BYTES: usize = 4096;

/// Memory between guards. The guards are filled with a byte that no other guards have, so that bytes copied
/// from other guards are detected.
struct Guarded(Owned, u8);

impl Guarded {
    fn new(len: usize, guard: u8) -> Self {
        Self(Owned::new(vec![guard; len + 2 * GUARD_BYTES]), guard)
    }

    fn iov(&mut self) -> Iov {
        let whole = self.0.iov();
        whole.slice(GUARD_BYTES, whole.len() - 2 * GUARD_BYTES)
    }

    fn check(&mut self) {
        let whole = self.0.iov();
        let guards = [whole.slice(0, GUARD_BYTES), whole.slice(whole.len() - GUARD_BYTES, GUARD_BYTES)];
        assert!(mem::to_vec(&guards).iter().all(|&byte| byte == self.1), "written outside");
    }
}

fn there(iov: Iov) -> [RemoteIov; 1] {
    [RemoteIov { addr: iov.addr(), len: iov.len() as u64 }]
}

/// The bytes number `n` of an honest exchange.
fn pattern(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (n.wrapping_mul(31) + i * 7 + i / 251) as u8).collect()
}

/// The message number `n` of an honest exchange.
fn message(n: u64) -> Vec<u8> {
    pattern(n, n as usize * 13 % 300)
}

/// Offset of the slots of shared transfers in a segment. Each side has eight slots.
const SHARES_AT: usize = 1024;
const SHARE_SLOTS: usize = 16;

/// Offset of a side's block in a segment.
fn side_at(role: Role) -> usize {
    if role == Role::Initiator { 0 } else { 512 }
}

/// The words that the hostile peer changes in a round.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    /// Headers of records that are valid at their place, so that the link survives.
    Records,
    /// Headers of records, and the words of shared transfers.
    Shares,
    /// All words that it can write.
    Everything,
}

/// A change that is made to a word repeatedly.
enum Change {
    /// Alternates between two values.
    Between(u64, u64),
    /// Adds a value and then subtracts it, independent of other changes of the word.
    By(u64),
}

/// The hostile thread, which selects a word and changes it for a while.
struct Spoiler<'a> {
    map: &'a Mapping,
    /// The victim's doorbell.
    bell: &'a Mapping,
    /// The victim's side of the link.
    victim: Role,
    habit: Habit,
    random: Random,
}

impl<'a> Spoiler<'a> {
    fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let (word, change) = self.pick();
            // The duration of a value decides between which two reads a change falls.
            let pauses = [0, 1].map(|_| self.random.below(2) * self.random.below(6));
            let pause = |n: usize| (0..pauses[n]).for_each(|_| std::hint::spin_loop());
            for _ in 0..self.random.below(100) {
                match change {
                    Change::Between(one, _) => word.store(one, Ordering::Relaxed),
                    Change::By(amount) => drop(word.fetch_add(amount, Ordering::Relaxed)),
                }
                pause(0);
                match change {
                    Change::Between(_, other) => word.store(other, Ordering::Relaxed),
                    Change::By(amount) => drop(word.fetch_sub(amount, Ordering::Relaxed)),
                }
                pause(1);
            }
        }
    }

    fn pick(&mut self) -> (&'a AtomicU64, Change) {
        let (map, bell) = (self.map, self.bell);
        let any = |random: &mut Random| Change::Between(random.bits() >> random.below(64), random.bits());
        match (self.habit, self.random.below(12)) {
            (Habit::Everything, 0) => (word(map, self.random.below(map.len() / 8) * 8), any(&mut self.random)),
            (Habit::Everything, 1) => (word(bell, self.random.below(4096 / 8) * 8), any(&mut self.random)),
            (Habit::Everything, 2..4) => {
                // The hostile side block: its consumed position and its flags.
                let at = side_at(self.victim.other()) + 128 * self.random.below(4);
                (
                    word(map, at),
                    Change::Between(self.random.below(2) as u64, self.random.bits() >> self.random.below(64)),
                )
            }
            (Habit::Everything | Habit::Shares, 4..6) => {
                // Units claimed from the front or the back, and copied units, of a transfer in progress.
                let from = self.random.below(SHARE_SLOTS);
                let mut slots = (from..from + SHARE_SLOTS).map(|slot| SHARES_AT + slot % SHARE_SLOTS * 128);
                let open = slots.find(|&at| word(map, at).load(Ordering::Relaxed) != 0).unwrap_or(SHARES_AT);
                let (at, shift) = [(0, 0), (0, 24), (64, 0)][self.random.below(3)];
                (word(map, open + at), Change::By((self.random.below(16) as u64) << shift))
            }
            (_, 6) => {
                // The target of a piece of a push.
                let (at, _) = self.line();
                (
                    word(map, at + 8 + 8 * self.random.below(2)),
                    Change::Between(self.random.below(4096) as u64, self.random.bits()),
                )
            }
            _ => {
                let (at, number) = self.line();
                (word(map, at), Change::Between(self.header(number), self.header(number)))
            }
        }
    }

    /// The offset of one of the next lines that the victim takes, and its running number.
    fn line(&mut self) -> (usize, u64) {
        let lines = (self.map.len() - 4096) / (2 * LINE_BYTES);
        let number = self.map.side(self.victim).consumed.0.load(Ordering::Relaxed) + self.random.below(3) as u64;
        let ring = Mapping::ring_offset(self.victim.other(), lines as u32);
        (ring + number as usize % lines * LINE_BYTES, number)
    }

    /// A header of a record that begins there. It is valid unless the habit is `Everything`.
    fn header(&mut self, number: u64) -> u64 {
        let (kind, longest) = if self.random.below(3) == 0 { (2, PIECE_BYTES) } else { (1, MAILBOX_BYTES) };
        let len = [self.random.below(57), self.random.below(2000), longest][self.random.below(3)];
        let (kind, len) = match self.random.below(40) {
            0 => (3, 0),
            1..12 if self.habit == Habit::Everything => (self.random.below(5), self.random.below(1 << 24)),
            _ => (kind, len),
        };
        (kind as u64) << 56 | (len as u64) << 32 | number & 0xffff_ffff
    }
}

/// Messages and transfers between two honest endpoints, all of which are checked.
struct Exchange {
    /// The victim's link and the friend's.
    links: [LinkId; 2],
    sent: [u64; 2],
    heard: [u64; 2],
    memory: [Guarded; 2],
    /// Number of transfers so far, and of those with which the friend has helped.
    transfers: u64,
    shared: u64,
    /// Number of sides that have not yet reported the end of the transfer.
    pending: usize,
    direct: bool,
}

impl Exchange {
    /// The context of transfers of the honest exchange. Transfers with the hostile peer have others.
    const CTX: u64 = 1 << 40;

    fn new(links: [LinkId; 2], direct: bool) -> Self {
        Self {
            links,
            sent: [0; 2],
            heard: [0; 2],
            memory: [1, 2].map(|guard| Guarded::new(BULK_BYTES, guard)),
            transfers: 0,
            shared: 0,
            pending: 0,
            direct,
        }
    }

    fn step(&mut self, nodes: &mut [&mut Node; 2]) {
        for (side, node) in nodes.iter_mut().enumerate() {
            let sent = &mut self.sent[side];
            *sent += u64::from(node.nic.send(self.links[side], &message(*sent), &[]).is_ok());
        }
        if self.pending == 0 && self.direct {
            self.begin(nodes);
        }
        nodes[1].poll();
        self.take(nodes);
    }

    /// Starts a get or put of the victim, with the friend's help.
    fn begin(&mut self, [victim, friend]: &mut [&mut Node; 2]) {
        let put = self.transfers % 2 == 1;
        let [near, far] = self.memory.each_mut().map(Guarded::iov);
        let from = if put { near } else { far };
        from.write(&pattern(self.transfers, BULK_BYTES));
        let (link, local, remote) = (self.links[0], [near], there(far));
        let copy = DirectCopy { put, ..DirectCopy::get(&local, &remote, Self::CTX) };
        let Ok(share) = victim.nic.copy(link, &copy) else { return };
        self.pending = 1;
        if let Some(share) = share {
            let (local, remote, part) = ([far], there(near), Part::Helper(share));
            let help = DirectCopy { put: !put, local: &local, remote: &remote, part, ctx: Self::CTX };
            friend.nic.copy(self.links[1], &help).unwrap();
            self.pending = 2;
            self.shared += 1;
        }
    }

    /// Checks the messages and completions that have arrived.
    fn take(&mut self, nodes: &mut [&mut Node; 2]) {
        let mut ended = false;
        for (side, node) in nodes.iter_mut().enumerate() {
            for (link, bytes) in node.inbox.messages.drain(..) {
                if link == self.links[side] {
                    let n = self.heard[side];
                    assert!(bytes == message(n), "message {n} to {side}");
                    self.heard[side] += 1;
                }
            }
            for (ctx, result) in node.inbox.done.drain(..) {
                if ctx == Self::CTX {
                    assert_eq!(result, Ok(()));
                    self.pending -= 1;
                    ended |= self.pending == 0;
                }
            }
        }
        if ended {
            let expected = pattern(self.transfers, BULK_BYTES);
            for memory in &mut self.memory {
                memory.check();
                assert!(mem::to_vec(&[memory.iov()]) == expected, "transfer {}", self.transfers);
            }
            self.transfers += 1;
        }
    }

    /// Waits for the end of all messages and transfers.
    fn finish(&mut self, victim: &mut Node, friend: &mut Node) {
        until("the friend's part", &mut [victim, friend], |nodes| {
            let [victim, friend] = nodes else { unreachable!() };
            self.take(&mut [victim, friend]);
            self.pending == 0 && self.heard == [self.sent[1], self.sent[0]]
        });
    }
}

/// Connects the victim and a new hostile peer, in either direction. Returns the peer, the numbers of the link at the
/// peer and at the victim, and the victim's side.
fn join_hostile(victim: &mut Node, random: &mut Random) -> (Node, LinkId, LinkId, Role) {
    let mut hostile = Node::new(&ShmConfig::default());
    let ((theirs, mine), role) = if random.below(2) == 0 {
        (join(&mut hostile, victim), Role::Acceptor)
    } else {
        let (mine, theirs) = join(victim, &mut hostile);
        ((theirs, mine), Role::Initiator)
    };
    // The victim polls the link in every poll from the first message on. It shares transfers with a peer that
    // claims to poll the ring in every poll.
    hostile.nic.send(theirs, b"hello", &[]).unwrap();
    until("hello", &mut [victim], |nodes| nodes[0].inbox.messages.iter().any(|(link, _)| *link == mine));
    (hostile, theirs, mine, role)
}

/// The victim's link to the hostile peer.
struct HostileLink<'a> {
    number: LinkId,
    segment: &'a Mapping,
    /// The peer's side.
    peer: Role,
}

impl HostileLink<'_> {
    /// Starts the victim's operations of one turn, with the transfers by address if they are possible.
    fn operate(&self, victim: &mut Node, turn: u64, [near, far]: [Iov; 2], direct: bool, random: &mut Random) {
        let _ = victim.nic.send(self.number, &pattern(turn, random.below(200)), &[]);
        let (here, there) = ([near], there(far));
        if turn.is_multiple_of(8) {
            let _ = victim.nic.push(self.number, turn, 0, &here, turn);
        }
        if direct && turn.is_multiple_of(4) {
            let _ = victim.nic.copy(self.number, &DirectCopy::get(&here, &there, turn));
            let _ = victim.nic.copy(self.number, &DirectCopy::put(&here, &there, turn));
            // Help with a transfer of the peer, which the peer opens correctly.
            let (slot, lap) = (turn % 8, 1 + turn);
            let at = SHARES_AT + side_at(self.peer) * 2 + slot as usize * 128;
            poke(self.segment, at + 64, 0);
            poke(self.segment, at, lap << 48);
            let part = Part::Helper(Share((lap << 16 | slot) as u32));
            let help = DirectCopy { put: random.below(2) == 0, part, ..DirectCopy::get(&here, &there, turn) };
            let _ = victim.nic.copy(self.number, &help);
        }
    }
}

/// The victim ends the hostile link or continues. Its exchange with others stays correct, and no memory is
/// touched that must not be.
#[test]
fn a_peer_changes_words_while_they_are_used() {
    let (mut victim, mut friend) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, far) = join(&mut friend, &mut victim);
    let direct = victim.inbox.up[0].1.caps.get;
    let mut exchange = Exchange::new([far, near], direct);
    let [mut window, mut near, mut far] = [3, 4, 5].map(|guard| Guarded::new(BULK_BYTES, guard));
    victim.inbox.window = Some(window.iov());
    let (mut ended, mut survived, mut taken) = (0, 0, 0);
    weft_fuzz::rounds("shm-race", |random| {
        let (hostile, theirs, mine, role) = join_hostile(&mut victim, random);
        let attacked = HostileLink { number: mine, segment: segment(&hostile, theirs), peer: role.other() };
        poke(attacked.segment, side_at(attacked.peer) + 128, 1);
        let Slot::Up(link) = &hostile.nic.links[theirs.0 as usize] else { panic!("the link is not up") };
        let spoiler = Spoiler {
            map: attacked.segment,
            bell: link.bell().map(),
            victim: role,
            habit: [Habit::Records, Habit::Shares, Habit::Everything][random.below(3)],
            random: Random(random.bits()),
        };
        let (stop, start) = (AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                spoiler.run(&stop);
            });
            start.wait();
            let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for turn in 0..TURNS {
                    attacked.operate(&mut victim, turn, [near.iov(), far.iov()], direct, random);
                    for _ in 0..POLLS {
                        taken += victim.poll();
                    }
                    exchange.step(&mut [&mut victim, &mut friend]);
                    if !victim.inbox.down.is_empty() {
                        break;
                    }
                }
                exchange.finish(&mut victim, &mut friend);
            }));
            stop.store(true, Ordering::Relaxed);
            stopped.unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        });
        match victim.inbox.down.pop() {
            Some(end) => {
                assert_eq!(end, (mine, LinkError::Protocol));
                ended += 1;
            }
            None => {
                victim.nic.close(mine);
                survived += 1;
            }
        }
        assert!(victim.inbox.down.is_empty() && friend.inbox.down.is_empty());
        [&mut window, &mut near, &mut far].into_iter().for_each(Guarded::check);
    });
    let Exchange { heard, transfers, shared, .. } = exchange;
    eprintln!(
        "{ended} links ended, {survived} went on, {taken} things came; {heard:?} honest ones, {transfers} transfers, {shared} shared"
    );
    assert!(ended > 0 && survived > 0 && taken > 0);
    if !direct {
        return eprintln!("transfers not tested: no cross-memory attach");
    }
    assert!(shared > 0);
}
