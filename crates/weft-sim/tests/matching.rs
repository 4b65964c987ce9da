//! Matching against a reference matcher, step by step. The cluster becomes idle after each operation, so the
//! order of arrival is known and the reference determines the result.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use proptest::prelude::*;
use weft_engine::api::{Config, Matching, RecvFlags};
use weft_sim::oracle::{Criteria, Op, Record};
use weft_sim::{FabricConfig, Harness, Recv, Send};

const RANKS: usize = 3;
/// The rank that receives.
const HERE: usize = 0;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        from: usize,
        tag: Option<u64>,
        len: usize,
    },
    Recv(Criteria),
    Peek(Criteria),
    Claim(Criteria),
    Discard(Criteria),
    /// Receives the message of the oldest claim.
    Take,
    /// Cancels the n-th posted receive.
    Cancel(usize),
}

fn tag() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 2 => (0_u64..4).prop_map(Some)]
}

fn criteria() -> impl Strategy<Value = Criteria> {
    let src = prop_oneof![1 => Just(None), 1 => (0..RANKS).prop_map(Some)];
    let mask = prop_oneof![3 => Just(0_u64), 1 => Just(1), 1 => Just(u64::MAX)];
    (src, tag(), mask).prop_map(|(src, tag, mask)| Criteria { src, tag: tag.map(|tag| (tag, mask)) })
}

fn step() -> impl Strategy<Value = Step> {
    // One length for each protocol: inline, eager, rendezvous.
    let len = prop_oneof![Just(8_usize), Just(500), Just(4000)];
    prop_oneof![
        6 => (0..RANKS, tag(), len).prop_map(|(from, tag, len)| Step::Send { from, tag, len }),
        6 => criteria().prop_map(Step::Recv),
        1 => criteria().prop_map(Step::Peek),
        1 => criteria().prop_map(Step::Claim),
        1 => criteria().prop_map(Step::Discard),
        1 => Just(Step::Take),
        1 => (0..4_usize).prop_map(Step::Cancel),
    ]
}

/// The reference: two lists in the order of age, searched from the front.
#[derive(Default)]
struct Reference {
    posted: Vec<(Op, Criteria)>,
    waiting: Vec<(Op, usize, Option<u64>)>,
    claimed: Vec<(Op, Op)>,
    /// Receives, each with the send that it must have got.
    matched: Vec<(Op, Op)>,
}

impl Reference {
    fn arrive(&mut self, send: Op, from: usize, tag: Option<u64>) {
        match self.posted.iter().position(|(_, want)| want.accept(from, tag)) {
            Some(at) => self.matched.push((self.posted.remove(at).0, send)),
            None => self.waiting.push((send, from, tag)),
        }
    }

    fn find(&self, want: Criteria) -> Option<usize> {
        self.waiting.iter().position(|(_, from, tag)| want.accept(*from, *tag))
    }

    fn post(&mut self, recv: Op, want: Criteria) {
        match self.find(want) {
            Some(at) => self.matched.push((recv, self.waiting.remove(at).0)),
            None => self.posted.push((recv, want)),
        }
    }
}

fn recv(want: Criteria) -> Recv {
    Recv { src: want.src, tag: want.tag, len: 5000, ..Recv::default() }
}

fn take_step(h: &mut Harness, reference: &mut Reference, step: Step) {
    match step {
        Step::Send { from, tag, len } => {
            let op = h.send(from, HERE, &Send { tag, len, ..Send::default() }).unwrap();
            h.drive().unwrap();
            reference.arrive(op, from, tag);
        }
        Step::Recv(want) => {
            let op = h.recv(HERE, &recv(want)).unwrap();
            reference.post(op, want);
        }
        Step::Peek(want) | Step::Claim(want) | Step::Discard(want) => {
            let extra = match step {
                Step::Claim(_) => RecvFlags::CLAIM,
                Step::Discard(_) => RecvFlags::DISCARD,
                _ => RecvFlags::empty(),
            };
            let op = h.peek(HERE, &recv(want), extra).unwrap();
            let Record::Peek(peek) = h.oracle().record(op) else { panic!("a peek") };
            let found = peek.found.clone().expect("a peek completes at once");
            let at = reference.find(want);
            assert_eq!(found.is_some(), at.is_some());
            let Some(at) = at else { return };
            let Record::Send(send) = h.oracle().record(reference.waiting[at].0) else { panic!("a send") };
            let found = found.expect("checked above");
            assert_eq!((found.full_len, found.src, found.tag), (send.len, Some(send.rank), send.tag));
            if extra != RecvFlags::empty() {
                let (send, ..) = reference.waiting.remove(at);
                if extra == RecvFlags::CLAIM {
                    reference.claimed.push((op, send));
                }
            }
        }
        Step::Take => {
            if !reference.claimed.is_empty() {
                let (op, send) = reference.claimed.remove(0);
                h.claim(op, Some(5000)).unwrap();
                reference.matched.push((op, send));
            }
        }
        Step::Cancel(n) => {
            if n < reference.posted.len() {
                let (op, _) = reference.posted.remove(n);
                assert!(h.cancel(op));
            }
        }
    }
    h.drive().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matching_equals_the_reference(seed in 0_u64..1 << 32, steps in prop::collection::vec(step(), 1..60)) {
        let mut fabric = FabricConfig::swarm(seed);
        fabric.caps.mailbox_bytes = fabric.caps.mailbox_bytes.max(512);
        let window_bytes = if seed % 3 == 0 { 1000 } else { 1 << 20 };
        let kinds = [Matching::Auto, Matching::List, Matching::Hash, Matching::Tree];
        let engine = Config { window_bytes, matching: kinds[(seed / 3 % 4) as usize], ..Config::default() };
        let mut h = Harness::new(fabric, engine, RANKS);
        let mut reference = Reference::default();
        for step in steps {
            take_step(&mut h, &mut reference, step);
            for (op, send) in &reference.matched {
                let Record::Recv(recv) = h.oracle().record(*op) else { panic!("a receive") };
                prop_assert_eq!(recv.got.iter().map(|got| got.send).collect::<Vec<_>>(), [Some(*send)]);
            }
            for (op, want) in &reference.posted {
                prop_assert!(!h.oracle().ended(*op), "{:?} took a message", want);
            }
        }
        let wrong = h.finish();
        prop_assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
