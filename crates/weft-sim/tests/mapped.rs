//! Accesses in mapped memory: they need no turn of the target, meet the accesses of other peers, and end with the
//! region.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use weft_engine::amo::{Amo, Form, Op as AmoOp, Type};
use weft_engine::api::{
    Access, AtomicOp, Completion, Config, Context, Fault, OpFlags, RecvFlags, RecvOp, Region, RmaIov, RmaOp, SendOp,
};
use weft_engine::mem::{Iov, IovList};
use weft_sim::{Buffer, Cluster, FabricConfig, SimMemory};

const LEN: usize = 4096;
const BOTH: Access = Access { read: true, write: true };

/// The tests that find the bugs planted in mapped memory, of which random runs have none.
#[allow(dead_code, reason = "used by the test of planted bugs")]
pub(crate) const SCENARIOS: [fn(); 2] = [an_access_waits_for_an_earlier_one, a_removed_region_is_not_reached_again];

struct Case {
    cluster: Cluster,
    memory: Buffer,
}

impl Case {
    /// Rank 0 owns the region of key 7. All other ranks have a link to it.
    fn new(ranks: usize, events: bool, access: Access) -> Self {
        Self::on(FabricConfig::new(1), ranks, events, access)
    }

    fn on(mut config: FabricConfig, ranks: usize, events: bool, access: Access) -> Self {
        (config.caps.maps, config.poll_ns) = (true, 20);
        let cluster = Cluster::new(config, Config::default(), ranks);
        let memory = cluster.fabric().clone().alloc(0, LEN);
        let mut this = Self { cluster, memory };
        this.register(memory, events, access);
        for rank in 1..ranks {
            // The first access makes the link, and the second one asks for the region.
            for _ in 0..2 {
                this.write(rank, 4088, 0);
                this.settle(rank);
            }
        }
        this
    }

    fn register(&mut self, memory: Buffer, events: bool, access: Access) {
        let iov = IovList::from_slice(&[memory.iov()]);
        let mapping = Some(Arc::new(SimMemory::new(memory.iov())) as _);
        let region = Region { key: 7, iov, base: 0x1000, access, user: 0, events, mapping };
        self.cluster.engine(0).unwrap().add_region(region).unwrap();
    }

    fn settle(&mut self, rank: usize) -> Vec<Completion> {
        let mut ends = Vec::new();
        for _ in 0..2000 {
            self.cluster.turn(|cluster, turn| {
                let taken = cluster.take_completions(turn);
                ends.extend((turn == rank).then_some(taken).into_iter().flatten());
            });
        }
        ends
    }

    fn write(&mut self, rank: usize, offset: u64, value: u64) -> Vec<Completion> {
        self.write_with(OpFlags::empty(), rank, offset, value)
    }

    fn write_with(&mut self, flags: OpFlags, rank: usize, offset: u64, value: u64) -> Vec<Completion> {
        let buffer = self.cluster.fabric().clone().alloc(rank, 8);
        buffer.write(&value.to_le_bytes());
        let remote = [RmaIov { addr: 0x1000 + offset, len: 8, key: 7 }];
        let ctx = Context { ptr: 1, user: 0 };
        let dest = self.cluster.addr(rank, 0);
        let iov = [buffer.iov()];
        let op = RmaOp { dest, iov: &iov, remote: &remote, data: 0, ctx, flags };
        self.cluster.engine(rank).unwrap().write(&op).unwrap();
        self.cluster.take_completions(rank)
    }

    fn read(&mut self, rank: usize, offset: u64, into: Iov) -> Vec<Completion> {
        let remote = [RmaIov { addr: 0x1000 + offset, len: 8, key: 7 }];
        let ctx = Context { ptr: 1, user: 0 };
        let dest = self.cluster.addr(rank, 0);
        let op = RmaOp { dest, iov: &[into], remote: &remote, data: 0, ctx, flags: OpFlags::empty() };
        self.cluster.engine(rank).unwrap().read(&op).unwrap();
        self.cluster.take_completions(rank)
    }

    fn add(&mut self, rank: usize, more: u64) -> Vec<Completion> {
        let amo = Amo::new(Form::Fetch, Type::Uint64, AmoOp::Sum).unwrap();
        let fabric = self.cluster.fabric().clone();
        let (operand, result) = (fabric.alloc(rank, 8), fabric.alloc(rank, 8));
        operand.write(&more.to_le_bytes());
        let remote = [RmaIov { addr: 0x1000, len: 8, key: 7 }];
        let (dest, ctx) = (self.cluster.addr(rank, 0), Context { ptr: 1, user: 0 });
        let (iov, result) = ([operand.iov()], [result.iov()]);
        let flags = OpFlags::empty();
        let op = AtomicOp { amo, dest, iov: &iov, compare: &[], result: &result, remote: &remote, data: 0, ctx, flags };
        self.cluster.engine(rank).unwrap().atomic(&op).unwrap();
        self.cluster.take_completions(rank)
    }

    /// Sends a long message from rank `from` to the other one. Returns the pushes of the device.
    fn send(&mut self, from: usize, source: Iov, target: Iov) -> u64 {
        let to = 1 - from;
        let before = self.cluster.fabric().stats().pushes;
        let (src, dest) = (self.cluster.addr(to, from), self.cluster.addr(from, to));
        let ctx = Context { ptr: 1, user: 0 };
        let receive = RecvOp { src, iov: &[target], tag: 0, ignore: 0, ctx, flags: RecvFlags::empty() };
        self.cluster.engine(to).unwrap().recv(&receive).unwrap();
        let send = SendOp { dest, iov: &[source], tag: 0, data: 0, ctx, flags: OpFlags::empty() };
        self.cluster.engine(from).unwrap().send(&send).unwrap();
        let mut received = 0;
        for _ in 0..4000 {
            self.cluster.turn(|cluster, turn| {
                let ends = cluster.take_completions(turn);
                assert!(ends.iter().all(|end| end.fault.is_none()), "{ends:?}");
                received += if turn == to { ends.len() } else { 0 };
            });
        }
        assert_eq!((received, bytes(source)), (1, bytes(target)));
        self.cluster.fabric().stats().pushes - before
    }

    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.iov().slice(at, 8).read(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

fn bytes(memory: Iov) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(&mut bytes);
    bytes
}

/// A device that pushes the bytes of long messages.
fn pushes() -> FabricConfig {
    let mut config = FabricConfig::new(1);
    (config.caps.get, config.caps.put, config.caps.eager_bytes) = (false, false, 1024);
    // Bytes that follow the announcement would need no answer, and no region.
    config.caps.push_follows = false;
    config
}

/// The first message names the region, which later ones use.
#[test]
fn long_messages_are_copied_from_and_to_regions() {
    for (from, access, uses) in [
        (1, BOTH, true),
        (1, Access { read: true, write: false }, false),
        (0, BOTH, true),
        (0, Access { read: false, write: true }, false),
    ] {
        let mut case = Case::on(pushes(), 2, false, access);
        let region = case.memory.iov().slice(8, LEN - 16);
        let other = case.cluster.fabric().clone().alloc(1, LEN - 16);
        let (source, target) = if from == 0 { (region, other.iov()) } else { (other.iov(), region) };
        let transfers: Vec<u64> = (1..4u8)
            .map(|round| {
                source.write(&vec![round; LEN - 16]);
                case.send(from, source, target)
            })
            .collect();
        assert_eq!(transfers[2] == 0, uses, "{transfers:?} from rank {from} with {access:?}");
        assert!(uses || transfers.iter().all(|&number| number > 0), "{transfers:?}");
    }
}

#[test]
fn accesses_are_complete_when_the_call_returns() {
    let mut case = Case::new(2, false, BOTH);
    let ends = case.write(1, 16, 77);
    assert_eq!((ends.len(), ends[0].fault, ends[0].len, case.word(16)), (1, None, 8, 77));
    let buffer = case.cluster.fabric().clone().alloc(1, 8);
    assert_eq!(case.read(1, 16, buffer.iov()).len(), 1);
    let mut bytes = [0; 8];
    buffer.iov().read(&mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), 77);
    assert_eq!((case.add(1, 5).len(), case.word(0)), (1, 5));
}

#[test]
fn an_access_that_the_target_reports_is_a_message() {
    let mut case = Case::new(2, true, BOTH);
    assert_eq!(case.write(1, 16, 77).len(), 1);
    case.cluster.engine(0).unwrap().watch_region(7);
    assert_eq!(case.write(1, 16, 78).len(), 0);
    assert_eq!((case.settle(1).len(), case.word(16)), (1, 78));
}

/// A write with data is a message, which the next write of the same bytes must not overtake.
#[test]
fn an_access_waits_for_an_earlier_one() {
    let mut case = Case::new(2, false, BOTH);
    assert_eq!(case.write_with(OpFlags::DATA, 1, 16, 1).len(), 0);
    assert_eq!(case.write(1, 16, 2).len(), 0);
    assert_eq!((case.settle(1).len(), case.word(16)), (2, 2));
}

/// A fenced access waits for a send whose delivery is not known.
#[test]
fn a_fenced_access_waits_for_sends() {
    let mut case = Case::new(2, false, BOTH);
    let source = case.cluster.fabric().clone().alloc(1, 8);
    let (dest, ctx) = (case.cluster.addr(1, 0), Context { ptr: 2, user: 0 });
    let send = SendOp { dest, iov: &[source.iov()], tag: 0, data: 0, ctx, flags: OpFlags::DELIVERY };
    case.cluster.engine(1).unwrap().send(&send).unwrap();
    assert_eq!(case.write_with(OpFlags::FENCE, 1, 16, 1).len(), 0);
    assert_eq!((case.settle(1).len(), case.word(16)), (0, 0));
    let target = case.cluster.fabric().clone().alloc(0, 8);
    let src = case.cluster.addr(0, 1);
    let receive = RecvOp { src, iov: &[target.iov()], tag: 0, ignore: 0, ctx, flags: RecvFlags::empty() };
    case.cluster.engine(0).unwrap().recv(&receive).unwrap();
    assert_eq!((case.settle(1).len(), case.word(16)), (2, 1));
}

#[test]
fn a_removed_region_is_not_reached_again() {
    let mut case = Case::new(2, false, BOTH);
    assert_eq!(case.write(1, 16, 1).len(), 1);
    case.cluster.engine(0).unwrap().remove_region(7);
    assert_eq!(case.write(1, 16, 2).len(), 0, "it must ask the target");
    let ends = case.settle(1);
    assert_eq!((ends.len(), ends[0].fault, case.word(16)), (1, Some(Fault::BadKey), 1));
    // The key names another region now, which may be mapped as well.
    let other = case.cluster.fabric().clone().alloc(0, LEN);
    case.register(other, false, BOTH);
    case.write(1, 24, 3);
    case.settle(1);
    let mut bytes = [0; 8];
    other.iov().slice(24, 8).read(&mut bytes);
    assert_eq!((u64::from_le_bytes(bytes), case.word(24)), (3, 0));
}

#[test]
fn rights_and_ranges_are_those_of_the_region() {
    let mut case = Case::new(2, false, Access { read: true, write: false });
    for offset in [0, LEN as u64 - 4] {
        assert_eq!(case.write(1, offset, 9).len(), 0);
        assert!(case.settle(1)[0].fault.is_some());
    }
    assert_eq!(case.word(0), 0);
}

#[test]
fn atomics_of_all_ways_meet_on_one_number() {
    let mut case = Case::new(4, false, BOTH);
    for round in 0..50 {
        for rank in 1..4 {
            case.add(rank, 1 + round % 3);
        }
    }
    case.settle(1);
    assert_eq!(case.word(0), (0..50).map(|round| 3 * (1 + round % 3)).sum::<u64>());
}
