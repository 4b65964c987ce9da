//! Moments that the random runs reach rarely or never, each constructed on purpose.
//!
//! Place in the data flow: beside [`super::world`], on the network of [`super::verdict`].

use std::os::fd::AsFd;
use std::sync::Arc;

use weft_engine::mem::Owned;
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId, Nic};

use super::super::{EVENTS, LinkState, Task, Tcp, TcpConfig, Unsent, sys};
use super::net::{self, Net};
use super::verdict::{Quiet, ROUNDS, STEP_MS};
use super::world::{contexts, device};

/// Time in milliseconds for reading a verdict, or for resuming a link without obstacles.
const SOON_MS: u64 = 300;
/// Time in milliseconds until a host is suspected by default, plus some scans.
const SUSPECTED_MS: u64 = 8000;
/// Time in milliseconds for which a caller computes. It exceeds all default time limits except that of an answer.
const AWAY_MS: u64 = 11_000;
/// More links than one epoll call reports.
const CROWD: usize = EVENTS + 36;

/// Connects, and polls until both sides know that the link is up. Returns the link's number at either.
fn joined(quiet: &mut Quiet, from: usize, to: usize) -> [LinkId; 2] {
    let near = quiet.call(from, to);
    quiet.pass(STEP_MS);
    assert_eq!(quiet.0[from].1.up.last(), Some(&near));
    [near, *quiet.0[to].1.up.last().expect("it is up")]
}

fn lose(index: usize, side: usize) {
    net::with(|net| net.lose(index, side, true));
}

/// Has the network carry all bytes.
fn settle() {
    while net::with(Net::step) == Some(true) {}
}

fn made() -> usize {
    net::with(|net| net.made()).expect("a network")
}

/// The acceptor of a transmit context's link cannot call back. It waits as long as the endpoint lives.
#[test]
fn a_link_of_a_transmit_context_waits_to_be_called() {
    for (encrypt, to) in [(false, 0), (false, 1), (true, 1)] {
        let config = TcpConfig::default().with(|config| config.encrypt = encrypt);
        let mut quiet = Quiet::new(&config);
        quiet.0.extend(contexts(&config, 1).map(|tcp| (tcp, Default::default())));
        let links = joined(&mut quiet, 3, to);
        // Only the acceptor notices the break.
        lose(0, 1);
        quiet.pass(15_000);
        assert_eq!((quiet.0[to].0.stats().breaks, &quiet.0[to].1.down[..]), (1, &[][..]), "{to}");
        assert!(made() < 12, "{} connections", made());
        lose(0, 0);
        quiet.pass(SOON_MS);
        for (at, link) in [(3, links[0]), (to, links[1])] {
            assert_eq!((quiet.0[at].0.stats().resumed, &quiet.0[at].1.down[..]), (1, &[][..]), "{at}");
            quiet.say(at, link, &[at as u8; 9]);
        }
        quiet.pass(STEP_MS);
        assert_eq!(quiet.0[to].1.messages, [[3; 9]]);
        assert_eq!(quiet.0[3].1.messages, [[to as u8; 9]]);
        // Both sides notice the break while the initiator computes, for longer than a host may be silent.
        let last = made() - 1;
        lose(last, 1);
        lose(last, 0);
        quiet.pass_without(3, 60_000);
        assert_eq!(quiet.0[to].1.down, []);
        quiet.pass(SOON_MS);
        assert_eq!((quiet.0[3].0.stats().resumed, quiet.0[to].0.stats().resumed), (2, 2));
        // The initiator has dropped the link without telling the acceptor.
        let link = quiet.0[3].0.links.get_mut(links[0].0).expect("it is up");
        link.session = None;
        quiet.0[3].0.sessions.clear();
        let last = made() - 1;
        lose(last, 1);
        lose(last, 0);
        quiet.pass(config.endpoint.answer_timeout_ms - 5000);
        assert_eq!(quiet.0[to].1.down, []);
        quiet.pass(10_000);
        assert_eq!(quiet.0[to].1.down, [(links[1], LinkError::Gone)]);
    }
}

/// A link fails by a protocol error in the poll in which its host would have been suspected. It ends once, for the
/// first reason, and the next link of the same number is unaffected.
#[test]
fn a_link_that_has_failed_ends_once() {
    let mut quiet = Quiet::new(&TcpConfig::default());
    let links = joined(&mut quiet, 0, 1);
    let far = quiet.0[1].0.links.get(links[1].0).expect("it is up");
    let socket = far.socket.as_ref().expect("it is up");
    assert_eq!(sys::send_one(std::os::fd::AsFd::as_fd(socket), &[0xff; 8]), Ok(8));
    settle();
    net::with(|net| net.forsake(0, 0));
    quiet.say(0, links[0], b"into the void");
    net::with(|net| net.now_ms += SUSPECTED_MS);
    let (tcp, reports) = &mut quiet.0[0];
    for _ in 0..ROUNDS {
        if !matches!(tcp.links.get(0).map(|link| &link.state), Some(LinkState::Up)) {
            break;
        }
        tcp.poll(reports);
    }
    let there = quiet.0[1].0.name();
    let (tcp, reports) = &mut quiet.0[0];
    let next = tcp.connect(&there).expect("a call");
    for _ in 0..ROUNDS {
        tcp.poll(reports);
    }
    assert_eq!(reports.down, [(links[0], LinkError::Protocol)]);
    quiet.pass(SOON_MS);
    assert_eq!(quiet.0[0].1.up, [links[0], next]);
}

/// A number of links that have sent a message and been closed. No byte has arrived.
fn closed(links: usize) -> Quiet {
    let mut quiet = Quiet::new(&TcpConfig::default());
    let links: Vec<LinkId> = (0..links).map(|_| quiet.call(0, 1)).collect();
    quiet.pass(STEP_MS);
    for link in links {
        quiet.say(0, link, b"last words");
        quiet.0[0].0.close(link);
    }
    quiet
}

/// Polls the caller until it has noticed all events. The network carries nothing.
fn notice(quiet: &mut Quiet) -> &Tcp {
    let (tcp, reports) = &mut quiet.0[0];
    for _ in 0..ROUNDS {
        tcp.poll(reports);
    }
    tcp
}

/// Closed links with a connection do not count against the limit of those without one.
#[test]
fn closed_links_with_a_connection_leave_room_for_others() {
    const LINKS: usize = 300;
    let mut quiet = closed(LINKS);
    lose(LINKS / 2, 0);
    lose(LINKS / 2, 1);
    let tcp = notice(&mut quiet);
    assert_eq!(
        (tcp.agenda.len(Task::Close), tcp.agenda.len(Task::Connect)),
        (LINKS, 1),
        "they linger, one of them without a connection"
    );
    quiet.pass(SOON_MS);
    assert_eq!(quiet.0[1].1.messages.len(), LINKS);
    assert!(quiet.0[1].1.down.len() == LINKS && quiet.0[1].1.down.iter().all(|end| end.1 == LinkError::Closed));
}

/// Closed links without a connection are limited in number.
#[test]
fn closed_links_without_a_connection_are_bounded() {
    let mut quiet = closed(300);
    (0..280).for_each(|index| lose(index, 0));
    let tcp = notice(&mut quiet);
    assert_eq!((tcp.agenda.len(Task::Close), tcp.agenda.len(Task::Connect)), (256 + 20, 256));
}

/// A closed link gives up a peer that reads nothing, 5 s after the peer's system last accepted bytes.
#[test]
fn a_closed_link_without_progress_ends() {
    let mut quiet = Quiet::new(&TcpConfig::default());
    let [link, _] = joined(&mut quiet, 0, 1);
    let mut words = Owned::new(vec![7; 60_000]);
    while quiet.0[0].0.send(link, &[], &[words.iov()]).is_ok() {}
    quiet.0[0].0.close(link);
    quiet.pass_without(1, 4000);
    assert_eq!(quiet.0[0].0.agenda.len(Task::Close), 1);
    quiet.pass_without(1, 2000);
    assert_eq!(quiet.0[0].0.agenda.len(Task::Close), 0);
}

/// A host that falls silent in the handshake is dialled again. The caller waits for a host that answers while its
/// endpoint computes.
#[test]
fn a_host_that_falls_silent_in_the_handshake_is_called_again() {
    let mut quiet = Quiet::new(&TcpConfig::default());
    let there = quiet.0[1].0.name();
    let link = quiet.0[0].0.connect(&there).expect("a call");
    net::with(Net::step);
    net::with(|net| net.forsake(0, 0));
    quiet.pass(SUSPECTED_MS);
    assert_eq!(quiet.0[0].1.up, [link]);
    assert_eq!(made(), 2);

    // The same holds for a resumption before the other side knows of the break.
    lose(1, 0);
    while made() == 2 {
        quiet.poll(0);
    }
    net::with(|net| net.forsake(2, 0));
    quiet.pass(SUSPECTED_MS);
    assert_eq!((quiet.0[0].0.stats().resumed, made()), (1, 4));

    // The other side computes.
    let second = quiet.0[0].0.connect(&there).expect("a call");
    quiet.pass_without(1, 50_000);
    lose(3, 0);
    quiet.pass_without(1, 50_000);
    assert_eq!(made(), 6);
    quiet.pass(SOON_MS);
    assert_eq!((&quiet.0[0].1.up[..], &quiet.0[0].1.down[..]), (&[link, second][..], &[][..]));
    assert_eq!(quiet.0[0].0.stats().resumed, 2);
}

/// A host that vanishes in the handshake, and does not return, is given up.
#[test]
fn a_host_that_vanishes_in_the_handshake_is_given_up() {
    let mut quiet = Quiet::new(&TcpConfig::default());
    let there = quiet.0[1].0.name();
    let link = quiet.0[0].0.connect(&there).expect("a call");
    net::with(Net::step);
    net::with(|net| {
        net.forsake(0, 0);
        net.vanished = true;
    });
    quiet.pass_without(1, 30_000);
    assert_eq!(quiet.0[0].1.down, [(link, LinkError::Timeout)]);
}

/// A refused caller tries again for the configured time.
#[test]
fn a_refused_caller_waits_for_a_late_listener() {
    let (connect_retry_ms, connect_timeout_ms) = (12_000, 12_000);
    let mut quiet = Quiet::new(&TcpConfig::default().with(|config| {
        config.connect_retry_ms = connect_retry_ms;
        config.connect_timeout_ms = connect_timeout_ms;
    }));
    net::with(|net| net.refuses = true);
    let there = quiet.0[1].0.name();
    let link = quiet.0[0].0.connect(&there).expect("a call");
    quiet.pass(9000);
    assert_eq!(quiet.0[0].1.down, []);
    net::with(|net| net.refuses = false);
    quiet.pass(2 * SOON_MS);
    assert_eq!(quiet.0[0].1.up, [link]);
}

/// Messages that must be sent again are noted as unsent, although a thread found that nothing could be sent meanwhile.
#[test]
fn messages_that_are_sent_again_are_noted() {
    let unsent = Arc::new(Unsent::new(|| true));
    let mut quiet = Quiet::new(&TcpConfig { unsent: Some(Arc::clone(&unsent)), ..TcpConfig::default() });
    let links = joined(&mut quiet, 0, 1);
    lose(0, 1);
    quiet.say(0, links[0], b"lost");
    lose(0, 0);
    let (tcp, reports) = &mut quiet.0[0];
    while tcp.stats().breaks == 0 {
        tcp.poll(reports);
    }
    assert!(tcp.drain(), "there is no connection");
    unsent.clear();
    quiet.pass(SOON_MS);
    assert_eq!(quiet.0[1].1.messages, [b"lost"]);
    assert!(unsent.kept().is_some());
}

/// A refused caller that computes for longer than the retry time tries once more, whether it has seen the refusal or
/// not.
#[test]
fn a_listener_that_came_while_the_caller_was_away_is_called() {
    for noticed in [false, true] {
        let mut quiet = Quiet::new(&TcpConfig::default());
        net::with(|net| net.refuses = true);
        let there = quiet.0[1].0.name();
        let link = quiet.0[0].0.connect(&there).expect("a call");
        if noticed {
            notice(&mut quiet);
        }
        net::with(|net| net.refuses = false);
        come_back(&mut quiet);
        assert_eq!((&quiet.0[0].1.up[..], &quiet.0[0].1.down[..]), (&[link][..], &[][..]), "{noticed}");
        assert_eq!(made(), 2);
        // If that try is refused, too, the attempt ends.
        net::with(|net| net.refuses = true);
        quiet.0[0].0.connect(&there).expect("a call");
        if noticed {
            notice(&mut quiet);
        }
        come_back(&mut quiet);
        assert_eq!((quiet.0[0].1.down.len(), made()), (1, 4), "{noticed}");
    }
}

/// Many attempts by name or by service name, without polls since.
fn crowd(by_service: bool) -> Quiet {
    let mut quiet = Quiet::new(&TcpConfig::default().with(|config| config.open = by_service));
    let name = quiet.0[1].0.name();
    let there = if by_service { EpName::service(name.socket()) } else { name };
    for _ in 0..CROWD {
        quiet.0[0].0.connect(&there).expect("a call");
    }
    quiet
}

/// Has the network carry everything while all devices compute, for longer than the time limits.
fn come_back(quiet: &mut Quiet) {
    settle();
    net::with(|net| net.now_ms += AWAY_MS);
    quiet.pass(20 * STEP_MS);
}

/// A caller returns after the time limit to more connections than one epoll call reports. It finds them made and not
/// late. The same holds for each answer.
#[test]
fn connections_made_while_the_caller_was_away_are_not_late() {
    for by_service in [false, true] {
        let mut quiet = crowd(by_service);
        // The caller sends its hellos, and then the finishes, after it has been away.
        for _ in 0..2 {
            settle();
            net::with(|net| net.now_ms += AWAY_MS);
            notice(&mut quiet);
            quiet.pass_without(0, 5 * STEP_MS);
        }
        come_back(&mut quiet);
        assert_eq!((quiet.0[0].1.up.len(), &quiet.0[0].1.down[..]), (CROWD, &[][..]), "{by_service}");
    }
}

/// Hellos that came while the called side was away are not late.
#[test]
fn hellos_that_came_while_the_acceptor_was_away_are_not_late() {
    let mut quiet = crowd(false);
    settle();
    quiet.pass_without(0, 5 * STEP_MS);
    notice(&mut quiet);
    come_back(&mut quiet);
    assert_eq!((quiet.0[0].1.up.len(), quiet.0[1].1.up.len(), made()), (CROWD, CROWD, CROWD));
    assert_eq!(quiet.0[1].0.stats().refused, 0);
}

/// Resumptions are not late either. Otherwise the links would end with all their unacknowledged messages.
#[test]
fn links_resumed_while_the_caller_was_away_are_not_late() {
    let mut quiet = Quiet::new(&TcpConfig::default());
    for _ in 0..CROWD {
        quiet.call(0, 1);
    }
    quiet.pass(STEP_MS);
    (0..CROWD).for_each(|index| lose(index, 0));
    assert_eq!(notice(&mut quiet).stats().breaks, CROWD as u64);
    come_back(&mut quiet);
    for (tcp, reports) in &quiet.0 {
        assert_eq!((tcp.stats().resumed, &reports.down[..]), (CROWD as u64, &[][..]));
    }
}

/// A link whose first long push begins to dial rails. `before` is called after the link is up. The push itself takes
/// the first connection.
fn with_rails(streams: usize, before: impl FnOnce() -> Option<()>) -> (Quiet, LinkId, Owned) {
    let config = TcpConfig { streams, streams_within_host: true, stripe_bytes: 1000, ..TcpConfig::default() };
    let mut quiet = Quiet::new(&config);
    let [near, _] = joined(&mut quiet, 0, 1);
    before();
    let mut memory = Owned::new(vec![7; 100_000]);
    quiet.0[0].0.push(near, 1, 0, &[memory.iov()], 4).expect("room for a push");
    (quiet, near, memory)
}

/// A quarter of an hour passes, in steps of a second. `each` is called in each.
fn wait_long(quiet: &mut Quiet, mut each: impl FnMut()) {
    for _ in 0..900 {
        for at in [0, 1].repeat(ROUNDS) {
            quiet.poll(at);
        }
        each();
        net::with(|net| net.now_ms += 1000);
    }
}

/// The addresses for rails, which the peer has named, are not called for ever: whether each rail breaks soon, or no
/// host takes the calls.
#[test]
fn rails_are_dialled_a_bounded_number_of_times() {
    for (taken, calls) in [(true, 64..70), (false, 64..65)] {
        let (mut quiet, _, _memory) = with_rails(4, || net::with(|net| net.refuses = !taken));
        let mut broken = 1;
        wait_long(&mut quiet, || {
            (broken..made()).filter(|_| taken).for_each(|index| lose(index, 0));
            broken = made();
        });
        assert!(calls.contains(&(made() - 1)), "{} calls (taken: {taken})", made() - 1);
        assert_eq!(quiet.0[0].1.down, [], "the link itself is fine");
    }
}

/// A push whose rails are lost, and cannot be dialled again, does not wait for ever: its link ends.
#[test]
fn a_push_without_rails_ends_with_its_link() {
    let (mut quiet, near, mut memory) = with_rails(2, || None);
    quiet.pass(SOON_MS);
    assert_eq!(quiet.0[0].0.stats().rails_up, 2);
    quiet.0[0].0.push(near, 1, 0, &[memory.iov()], 5).expect("room for a push");
    (1..made()).for_each(|index| lose(index, 0));
    net::with(|net| net.refuses = true);
    wait_long(&mut quiet, || ());
    assert_eq!(quiet.0[0].1.down, [(near, LinkError::Cut)]);
    assert!(made() < 3 + 2 * 64 + 70, "{} calls", made());
}

/// A closed device does not listen, and its address is free, though a copy of the descriptor exists. The test uses the
/// system's own network.
#[test]
fn a_copy_of_the_listener_does_not_listen() {
    let there = device(&TcpConfig::default(), 1).local_addr();
    let open = || device(&TcpConfig { bind: Some(there), ..TcpConfig::default() }, 1);
    let tcp = open();
    let _copy = tcp.listener.as_fd().try_clone_to_owned().expect("a descriptor");
    drop(tcp);
    let refused = std::net::TcpStream::connect(there).map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(std::io::ErrorKind::ConnectionRefused));
    open();
}
