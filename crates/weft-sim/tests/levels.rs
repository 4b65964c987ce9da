//! The moment of each completion level, the effect of a fence on levels, and the length that a receive
//! reports when its sender died.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::cell::RefCell;
use std::rc::Rc;

use weft_engine::api::{Access, Completion, Config, Fault, Kind, OpFlags};
use weft_engine::nic::LinkError;
use weft_sim::oracle::{CANARY, Op, Record};
use weft_sim::{FabricConfig, Harness, Recv, Rma, Send};

const LONG: usize = 20_000;
const LENS: [usize; 3] = [0, 100, LONG];

/// Devices with every combination of the capabilities that matter to sends.
fn fabrics() -> Vec<FabricConfig> {
    let kind = |n: u64| {
        let mut config = FabricConfig::new(n + 1);
        let bit = |at: u64| n >> at & 1 == 1;
        (config.caps.survives, config.caps.get, config.caps.ordered) = (bit(0), bit(1), bit(2));
        (config.caps.put, config.caps.push_follows) = (bit(1), bit(2));
        (config.caps.mailbox_bytes, config.caps.eager_bytes, config.segment_bytes) = (2048, 1000, 700);
        config
    };
    (0..8).map(kind).collect()
}

fn connected(fabric: &FabricConfig) -> Harness {
    let mut h = Harness::new(fabric.clone(), Config::default(), 2);
    h.send(0, 1, &Send { tag: Some(u64::MAX), ..Send::default() }).unwrap();
    h.recv(1, &Recv { tag: Some((u64::MAX, 0)), ..Recv::default() }).unwrap();
    h.drive().unwrap();
    h
}

fn send(h: &mut Harness, tag: u64, len: usize, flags: OpFlags) -> Op {
    h.send(0, 1, &Send { tag: Some(tag), len, flags, ..Send::default() }).unwrap()
}

fn receive(h: &mut Harness, tag: u64) -> Op {
    h.recv(1, &Recv { tag: Some((tag, 0)), len: LONG, ..Recv::default() }).unwrap()
}

/// Lets only the sender make progress while time advances.
fn sender_alone(h: &mut Harness) {
    for _ in 0..1000 {
        h.cluster().engine(0).unwrap().progress();
        h.absorb(0);
        h.cluster().fabric().pass(100);
    }
}

/// Each level has its own moment for a short message. Inject complete: at once. Transmit complete: when the
/// peer's engine has the message, or at once if sent messages survive their sender. Delivery complete: when
/// the message has been received.
#[test]
fn each_completion_level_has_its_own_moment() {
    for fabric in fabrics() {
        for len in LENS {
            let mut h = connected(&fabric);
            let levels = [OpFlags::empty(), OpFlags::TRANSMIT, OpFlags::DELIVERY];
            let ops = [0, 1, 2].map(|n| send(&mut h, n as u64, len, levels[n]));
            let ended = |h: &Harness| ops.map(|op| h.oracle().ended(op));
            let short = len < LONG;
            // The bytes of a long message follow its announcement, and need no receive.
            let goes = short || fabric.caps.push_follows && !fabric.caps.get;
            let sure = fabric.caps.survives;
            sender_alone(&mut h);
            assert_eq!(ended(&h), [goes, goes && sure, false], "left: {len} on {fabric:?}");
            h.drive().unwrap();
            assert_eq!(h.cluster().engine(1).unwrap().unexpected_messages(), 3);
            assert_eq!(ended(&h), [goes, short || goes && sure, false], "arrived: {len} on {fabric:?}");
            for n in 0..3 {
                receive(&mut h, n);
            }
            h.drive().unwrap();
            assert_eq!(ended(&h), [true; 3], "received: {len} on {fabric:?}");
            assert_eq!(h.finish(), Vec::<String>::new());
        }
    }
}

/// A short write is complete when the target's memory has it, unless its client names a level that promises less.
#[test]
fn a_write_without_a_level_is_complete_when_it_is_stored() {
    for fabric in fabrics() {
        for len in [8, 100] {
            let mut h = connected(&fabric);
            let window = h.add_window(1, 4 * len, Access { read: true, write: true }, false).unwrap();
            let levels = [OpFlags::empty(), OpFlags::FREED, OpFlags::TRANSMIT, OpFlags::DELIVERY];
            let ops = [0, 1, 2, 3].map(|n| {
                let rma = Rma { offset: n * len, remote: vec![len], flags: levels[n], ..Rma::default() };
                h.write(0, window, &rma).unwrap()
            });
            let ended = |h: &Harness| ops.map(|op| h.oracle().ended(op));
            sender_alone(&mut h);
            assert_eq!(ended(&h), [false, true, fabric.caps.survives, false], "{fabric:?}");
            h.drive().unwrap();
            assert_eq!(ended(&h), [true; 4], "{fabric:?}");
            assert_eq!(h.finish(), Vec::<String>::new());
        }
    }
}

/// A pushed long message has left when the device has taken all of its bytes. It has not arrived then.
#[test]
fn transmit_complete_of_a_pushed_message_waits_for_its_last_byte() {
    for mut fabric in fabrics().into_iter().filter(|fabric| !fabric.caps.get) {
        fabric.latency_ns = 50_000;
        let mut h = connected(&fabric);
        let [plain, sure] = [(1, OpFlags::empty()), (2, OpFlags::TRANSMIT)].map(|(tag, flags)| {
            receive(&mut h, tag);
            send(&mut h, tag, LONG, flags)
        });
        h.drive_until(|oracle| oracle.ended(plain)).unwrap();
        assert!(fabric.caps.survives || !h.oracle().ended(sure), "{fabric:?}");
        h.drive_until(|oracle| oracle.ended(sure)).unwrap();
        if !fabric.caps.survives {
            let Record::Send(record) = h.oracle().record(sure) else { panic!("not a send") };
            assert!(record.received_by.is_some(), "the answer arrived before the bytes: {fabric:?}");
        }
        h.drive().unwrap();
        assert_eq!(h.finish(), Vec::<String>::new());
    }
}

/// When a fence with delivery complete ends, all earlier operations have been delivered, at any level of their
/// own.
#[test]
fn a_fence_raises_earlier_operations_to_its_level() {
    for fabric in fabrics() {
        for len in LENS {
            let mut h = connected(&fabric);
            let window = h.add_window(1, 4 * LONG, Access { read: true, write: true }, false).unwrap();
            let before = receive(&mut h, 1);
            receive(&mut h, 2);
            send(&mut h, 1, len, OpFlags::empty());
            let rma = |offset| Rma { offset, remote: vec![len.max(1)], ..Rma::default() };
            h.write(0, window, &rma(0)).unwrap();
            h.write(0, window, &Rma { flags: OpFlags::FENCE, ..rma(LONG) }).unwrap();
            let fence = send(&mut h, 2, 8, OpFlags::FENCE | OpFlags::DELIVERY);
            let behind = h.write(0, window, &rma(2 * LONG)).unwrap();
            h.drive_until(|oracle| oracle.ended(fence) || oracle.ended(behind)).unwrap();
            assert!(h.oracle().ended(fence), "a later operation has overtaken the fence");
            h.cluster().engine(1).unwrap().progress();
            h.absorb(1);
            assert!(h.oracle().ended(before), "{len} on {fabric:?}");
            h.drive().unwrap();
            assert_eq!(h.finish(), Vec::<String>::new());
        }
    }
}

/// The receive reports the number of stored bytes, not the length of the message.
#[test]
fn a_receive_cut_by_its_sender_reports_the_arrived_length() {
    for fabric in fabrics() {
        let mut h = connected(&fabric);
        let op = receive(&mut h, 7);
        let Record::Recv(record) = h.oracle().record(op) else { panic!("not a receive") };
        let buffer = record.buffer;
        let ends: Rc<RefCell<Vec<(Completion, usize)>>> = Rc::default();
        let log = Rc::clone(&ends);
        h.set_tamper(Box::new(move |rank, batch| {
            for c in batch.iter().filter(|c| rank == 1 && c.kind == Kind::Recv) {
                let bytes = buffer.bytes();
                let stored = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == CANARY).count();
                log.borrow_mut().push((*c, stored));
            }
        }));
        send(&mut h, 7, LONG, OpFlags::empty());
        let begun = |h: &Harness| match h.oracle().record(op) {
            Record::Recv(recv) => recv.buffer.bytes().iter().any(|byte| *byte != CANARY),
            _ => false,
        };
        while !begun(&h) {
            h.turn();
        }
        h.kill(0);
        h.drive().unwrap();
        let ends = ends.borrow();
        let [(end, stored)] = ends.as_slice() else { panic!("{} ends", ends.len()) };
        assert!(matches!(end.fault, Some(Fault::Link(LinkError::Gone))), "{end:?}");
        // While a device fetches, the stored part of the message is unknown.
        let known = if fabric.caps.get { 0 } else { *stored };
        assert!(*stored > 0 && *stored < LONG && end.len == known, "{} of {stored} bytes on {fabric:?}", end.len);
    }
}
