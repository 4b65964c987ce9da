//! Jobs of a few ranks with planted faults.

#![allow(clippy::unwrap_used)]
use super::*;

fn call(kind: &'static str, target: Target, tag: u64) -> Call {
    let tag = Some((tag, 0));
    Call { kind, target, tag, bytes: 8, since: Duration::from_secs(2), collective: None }
}

fn receive(from: usize, tag: u64) -> Call {
    call("receive", Target::Rank(from), tag)
}

fn rank(number: u64, state: State, calls: Vec<Call>) -> Rank {
    Rank {
        number: Some(number),
        pid: Some(100 + u32::try_from(number).unwrap()),
        host: "node1".to_owned(),
        library: Library::Mpich,
        state,
        age: Duration::from_secs(1),
        calls,
        messages: Vec::new(),
    }
}

/// The kinds and ranks of the findings.
fn found(ranks: &[Rank]) -> Vec<(&'static str, Vec<usize>)> {
    findings(ranks).into_iter().map(|finding| (finding.kind, finding.ranks)).collect()
}

#[test]
fn cycles_are_deadlocks() {
    let waits = |number, calls| rank(number, State::Waits, calls);
    let two = [waits(0, vec![receive(1, 5)]), waits(1, vec![receive(0, 5)])];
    assert_eq!(found(&two), [("deadlock", vec![0, 1])]);
    let text = &findings(&two)[0].text;
    assert_eq!(text, "deadlock: rank 0 waits for rank 1 waits for rank 0");
    let three = [waits(0, vec![receive(1, 1)]), waits(1, vec![receive(2, 1)]), waits(2, vec![receive(0, 1)])];
    assert_eq!(found(&three), [("deadlock", vec![0, 1, 2])]);
    // A rank behind the cycle is not part of it. A receive from itself is.
    let behind = [waits(0, vec![receive(1, 1)]), waits(1, vec![receive(2, 1)]), waits(2, vec![receive(1, 1)])];
    assert_eq!(found(&behind)[0], ("deadlock", vec![1, 2]));
    assert_eq!(found(&[waits(0, vec![receive(0, 1)])]), [("deadlock", vec![0])]);
    // Receives from any source, and no rank is left to send.
    let any = || vec![call("receive", Target::Any, 1)];
    assert_eq!(found(&[waits(0, any()), waits(1, any())]), [("deadlock", vec![0, 1])]);
}

#[test]
fn a_rank_that_can_act_is_no_deadlock() {
    let computes = [rank(0, State::Waits, vec![receive(1, 5)]), rank(1, State::Computes, vec![])];
    assert_eq!(found(&computes), [("computes", vec![1, 0])]);
    // Another receive of rank 0 can end.
    let posted = [
        rank(0, State::Waits, vec![receive(1, 5), receive(2, 5)]),
        rank(1, State::Waits, vec![receive(0, 5)]),
        rank(2, State::Active, vec![]),
    ];
    assert_eq!(found(&posted), []);
    let unseen = [rank(0, State::Waits, vec![call("receive", Target::Unseen("10.0.0.1".to_owned()), 1)])];
    assert_eq!(found(&unseen), []);
}

#[test]
fn stopped_and_ended_ranks_are_named() {
    for state in [State::Stopped, State::Ended, State::Polls] {
        let ranks = [rank(0, State::Waits, vec![receive(1, 5)]), rank(1, state, vec![])];
        assert_eq!(found(&ranks), [(state.name(), vec![1, 0])]);
    }
    let any = [rank(0, State::Waits, vec![call("receive", Target::Any, 1)]), rank(1, State::Ended, vec![])];
    assert_eq!(found(&any), [("ended", vec![1, 0])]);
    assert_eq!(findings(&any)[0].text, "rank 1 has ended; rank 0 waits for it");
    let nothing = [rank(0, State::Computes, vec![]), rank(1, State::Stopped, vec![])];
    assert_eq!(findings(&nothing)[0].text, "rank 1 is stopped by a signal; no rank is known to wait for it");
}

#[test]
fn near_misses_differ_in_one_part() {
    let with = |message: Call| {
        let mut waiter = rank(0, State::Waits, vec![receive(1, 5)]);
        waiter.messages = vec![message];
        findings(&[waiter, rank(1, State::Computes, vec![])]).into_iter().find(|finding| finding.kind == "near miss")
    };
    let message = |from, tag| call("message", Target::Rank(from), tag);
    assert!(with(message(1, 6)).unwrap().text.ends_with("differs in the tag"));
    assert!(with(message(1, 5 | 496 << 31)).unwrap().text.ends_with("differs in the communicator"));
    assert_eq!(with(message(1, 6 | 496 << 31)), None, "both differ");
    assert_eq!(with(message(0, 6)), None, "another source");
    assert_eq!(with(message(1, 1 << 31 | 1)), None, "a message of a collective");
}

#[test]
fn a_send_without_receive_is_named() {
    let mut receiver = rank(1, State::Waits, vec![receive(0, 5)]);
    receiver.messages = vec![call("message", Target::Rank(0), 9)];
    let ranks = [rank(0, State::Waits, vec![call("send", Target::Rank(1), 9)]), receiver];
    let kinds: Vec<&str> = findings(&ranks).iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, ["deadlock", "near miss", "no receive"]);
}

#[test]
fn a_collective_waits_for_all_its_members() {
    let collective = |members: Vec<usize>| Call {
        collective: Some("weft's barrier".to_owned()),
        ..call("collective", Target::Ranks(members), 0)
    };
    let skipped = [
        rank(0, State::Waits, vec![collective(vec![1, 2])]),
        rank(1, State::Computes, vec![]),
        rank(2, State::Waits, vec![receive(0, 3)]),
    ];
    assert_eq!(found(&skipped), [("deadlock", vec![0, 2]), ("computes", vec![1, 0])]);
}
