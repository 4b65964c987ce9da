//! Peers that can be connected in one direction only: requests that the other side connects.
#![allow(clippy::unwrap_used)]

mod scripted;

use scripted::{CAPS, Case, Event, name};
use weft_engine::api::{Config, Context, OpFlags, SendOp};
use weft_engine::nic::LinkId;

const CALL_BACK: u8 = 7;
const EAGER: u8 = 8;

/// A request that the endpoint with the byte `target` connects to the one with the byte `caller`.
fn request(caller: u8, target: u8, hops: u8) -> Vec<u8> {
    [&[CALL_BACK, 0, 0, 0, 0, 0, 0, 0][..], &name(caller).ep_id(), &name(target).ep_id(), &[hops, 0, 0, 0, 0, 0, 0, 0]]
        .concat()
}

/// The requests that the engine has sent, with their links.
fn requests(case: &Case) -> Vec<(LinkId, Vec<u8>)> {
    case.engine.nic().sent.iter().filter(|(_, bytes)| bytes[0] == CALL_BACK).cloned().collect()
}

/// An engine with the byte 1 in its name, and links with these peers, whose numbers are those bytes.
fn linked(peers: &[u8]) -> Case {
    let mut case = Case::new(CAPS, Config::default());
    for &peer in peers {
        case.connect(peer.into(), peer);
    }
    case
}

#[test]
fn an_attempt_without_a_connection_asks_connected_peers() {
    let mut case = linked(&[2, 3]);
    case.engine.nic_mut().dials = Some(100);
    let ctx = Context { ptr: 3, user: 0 };
    case.engine.send(&SendOp { dest: 4, iov: &[], tag: 0, data: 0, ctx, flags: OpFlags::empty() }).unwrap();
    case.run();
    assert_eq!(requests(&case), []);
    case.tell(Event::Hindered(LinkId(100)));
    let asked = request(1, 6, 0);
    assert_eq!(requests(&case), [(LinkId(2), asked.clone()), (LinkId(3), asked)]);
    // The peer connects, and its link takes the place of the attempt.
    case.connect(6, 6);
    assert!(case.engine.nic().closed.contains(&LinkId(100)));
    let last = case.engine.nic().sent.last().map(|(link, bytes)| (*link, bytes[0]));
    assert_eq!(last, Some((LinkId(6), EAGER)), "the message leaves on the peer's link");
    case.tell(Event::Hindered(LinkId(100)));
    assert_eq!(requests(&case).len(), 2);
}

#[test]
fn the_target_of_a_request_connects_to_a_peer_that_it_knows() {
    let mut case = linked(&[2]);
    case.engine.nic_mut().dials = Some(100);
    let opened = |case: &mut Case, caller: u8| {
        let before = case.engine.nic().open.len();
        case.tell(Event::Message(LinkId(2), request(caller, 1, 2)));
        case.engine.nic().open.len() - before
    };
    assert_eq!(opened(&mut case, 3), 1);
    assert_eq!(opened(&mut case, 3), 0, "it is connecting");
    assert_eq!(opened(&mut case, 2), 0, "it has a link");
    assert_eq!(opened(&mut case, 99), 0, "it is in no address vector");
    assert_eq!(requests(&case), []);
}

#[test]
fn a_request_is_passed_on_once() {
    let mut case = linked(&[2, 3, 4]);
    let passed = |case: &mut Case, message: Vec<u8>| {
        let before = requests(case).len();
        case.tell(Event::Message(LinkId(2), message));
        requests(case).split_off(before)
    };
    // There is a link to the target.
    assert_eq!(passed(&mut case, request(2, 3, 0)), [(LinkId(3), request(2, 3, 1))]);
    assert_eq!(passed(&mut case, request(2, 3, 1)), [(LinkId(3), request(2, 3, 2))]);
    // There is none: others are asked, but not those of another peer.
    let asked = passed(&mut case, request(2, 7, 0));
    assert!(asked.iter().all(|(link, bytes)| [3, 4].map(LinkId).contains(link) && *bytes == request(2, 7, 1)));
    assert_eq!(asked.len(), 2);
    assert_eq!(passed(&mut case, request(2, 7, 1)), []);
}

#[test]
fn requests_of_strangers_and_on_silent_links() {
    let mut case = linked(&[3]);
    case.engine.nic_mut().dials = Some(100);
    // The peer with the byte 50 is in no address vector.
    case.connect(50, 50);
    case.tell(Event::Message(LinkId(50), request(50, 3, 0)));
    case.tell(Event::Message(LinkId(50), request(3, 1, 0)));
    assert_eq!(requests(&case), []);
    assert!(!case.engine.nic().closed.contains(&LinkId(50)));
    // A request on a link that carries no messages is a violation, as is one that is too short.
    case.tell(Event::Up { link: LinkId(60), peer: name(4), initiator: false });
    case.tell(Event::Message(LinkId(60), request(4, 3, 0)));
    assert!(case.engine.nic().closed.contains(&LinkId(60)));
    case.tell(Event::Message(LinkId(3), request(3, 4, 0)[..30].to_vec()));
    assert!(case.engine.nic().closed.contains(&LinkId(3)));
}
