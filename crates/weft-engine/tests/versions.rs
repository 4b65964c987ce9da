//! Peers of other versions, and peers that refuse: each side learns the reason, and the version of the other.
#![allow(clippy::unwrap_used)]

mod scripted;

use scripted::{CAPS, Case, Event, name, open, words};
use weft_engine::api::{Config, Context, Fault, OpFlags, SendOp};
use weft_engine::nic::{Layer, LinkError, LinkId, Notice, Versions};
use weft_engine::{ConnEvent, Role};

const OPEN: u8 = 0;
const OPEN_OK: u8 = 1;
const CALL: u8 = 3;
const ACCEPT: u8 = 4;
const REFUSED: u8 = 6;
const OURS: u8 = 3;
const LATER: u8 = 9;

const VERSIONS: LinkError = LinkError::Version(Versions { layer: Layer::Engine, ours: OURS, theirs: LATER });

/// The first message of a later version, which may have another length from the version on.
fn later(kind: u8) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0, LATER][..], b"new"].concat()
}

fn refused(version: u8, reason: u8) -> Vec<u8> {
    vec![REFUSED, 0, 0, 0, 0, 0, 0, 0, version, reason, 0, 0, 0, 0, 0, 0]
}

/// An engine that has called peer 2, whose link is up.
fn calling() -> (Case, LinkId) {
    let mut case = Case::new(CAPS, Config::default());
    case.engine.nic_mut().dials = Some(0);
    let (ctx, flags) = (Context::default(), OpFlags::empty());
    case.engine.send(&SendOp { dest: 0, iov: &[], tag: 0, data: 0, ctx, flags }).unwrap();
    let link = LinkId(0);
    case.tell(Event::Up { link, peer: name(2), initiator: true });
    assert_eq!(case.sent(OPEN)[8], OURS);
    (case, link)
}

fn fault(case: &mut Case) -> Option<Fault> {
    case.done().pop().and_then(|done| done.fault)
}

/// A caller of another version is told this side's version, whatever else its message has.
#[test]
fn a_caller_of_another_version_is_refused() {
    let mut case = Case::new(CAPS, Config::default());
    let link = LinkId(3);
    case.tell(Event::Up { link, peer: name(2), initiator: false });
    case.tell(Event::Message(link, later(OPEN)));
    let device = case.engine.nic();
    assert_eq!(device.sent, [(link, refused(OURS, 1))]);
    assert_eq!((&device.closed[..], &device.notices[..]), (&[link][..], &[Notice::Refuses(VERSIONS)][..]));
}

/// Without room for the reason, the link is closed all the same.
#[test]
fn a_refusal_waits_for_no_room() {
    let mut case = Case::new(CAPS, Config::default());
    case.engine.nic_mut().room = 0;
    case.tell(Event::Up { link: LinkId(3), peer: name(2), initiator: false });
    case.tell(Event::Message(LinkId(3), later(OPEN)));
    assert_eq!(case.engine.nic().closed, [LinkId(3)]);
}

/// A called peer answers with another version, refuses this side's version, or has no place.
#[test]
fn a_called_peer_that_refuses_is_named() {
    for (answer, why) in [
        (later(OPEN_OK), VERSIONS),
        (refused(LATER, 1), VERSIONS),
        (refused(OURS, 2), LinkError::Crowded),
        (refused(LATER, 3), LinkError::Evicted),
    ] {
        let (mut case, link) = calling();
        case.tell(Event::Message(link, answer.clone()));
        assert_eq!(fault(&mut case), Some(Fault::Link(why)));
        let notice = if answer[0] == OPEN_OK { Notice::Refuses(why) } else { Notice::RefusedBy(why) };
        assert_eq!((&case.engine.nic().notices[..], &case.engine.nic().closed[..]), (&[notice][..], &[link][..]));
    }
    // A reason of a later version is as good as none.
    let (mut case, link) = calling();
    case.tell(Event::Message(link, refused(LATER, 77)));
    assert_eq!(fault(&mut case), Some(Fault::Link(LinkError::Unanswered)));
    // A peer cannot refuse the version that it speaks itself.
    let (mut case, link) = calling();
    case.tell(Event::Message(link, refused(OURS, 1)));
    assert_eq!(fault(&mut case), Some(Fault::Link(LinkError::Protocol)));
}

/// Versions before REFUSED close the link without a word. The error names the possible causes.
#[test]
fn a_peer_that_closes_before_it_answers_may_have_another_version() {
    let (mut case, link) = calling();
    case.tell(Event::Closed(link));
    assert_eq!(fault(&mut case), Some(Fault::Link(LinkError::Unanswered)));
    let cause = format!("version {OURS} of weft's message protocol");
    assert!(LinkError::Unanswered.to_string().contains(&cause));
}

/// A link in use may be ended with a reason.
#[test]
fn a_peer_may_end_a_link_with_a_reason() {
    let (mut case, link) = calling();
    case.tell(Event::Message(link, open(OPEN_OK)));
    case.done();
    case.tell(Event::Message(link, refused(OURS, 3)));
    assert_eq!(case.engine.nic().notices, [Notice::RefusedBy(LinkError::Evicted)]);
    assert_eq!(case.engine.nic().closed, [link]);
}

/// Listeners, and endpoints that call them, compare versions, too.
#[test]
fn connections_compare_versions() {
    let mut listener = Case::new(CAPS, Config { role: Role::Listener(8), ..Config::default() });
    listener.tell(Event::Up { link: LinkId(3), peer: name(2), initiator: false });
    listener.tell(Event::Message(LinkId(3), later(CALL)));
    assert_eq!(listener.sent(REFUSED), refused(OURS, 1));

    for answer in [refused(LATER, 1), later(ACCEPT)] {
        let mut active = Case::new(CAPS, Config { role: Role::Active, ..Config::default() });
        active.engine.nic_mut().dials = Some(0);
        active.engine.connect(&name(2), &[]).unwrap();
        active.tell(Event::Up { link: LinkId(0), peer: name(2), initiator: true });
        if answer[0] == ACCEPT {
            active.tell(Event::Up { link: LinkId(9), peer: name(3), initiator: false });
            active.tell(Event::Message(LinkId(9), answer));
            assert_eq!(active.sent(REFUSED), refused(OURS, 1));
        } else {
            active.tell(Event::Message(LinkId(0), answer));
            let failed = active.engine.take_connection_events().pop_front();
            assert_eq!(failed, Some(ConnEvent::Failed(VERSIONS)));
        }
    }
}

/// Many refusals are few notices.
#[test]
fn refusals_do_not_fill_the_log() {
    let mut case = Case::new(CAPS, Config::default());
    for link in 0..100 {
        case.tell(Event::Up { link: LinkId(link), peer: name(2), initiator: false });
        case.tell(Event::Message(LinkId(link), words(&[u64::from(OPEN), u64::from(LATER), 0])));
    }
    assert_eq!(case.engine.nic().notices.len(), 7);
}
