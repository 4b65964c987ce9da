//! Moments that the runs come to seldom or never, each brought about by hand.
//!
//! Place in the data flow: beside [`super::world`], on the network of [`super::verdict`].

use std::os::fd::AsFd;
use std::sync::Arc;

use weft_engine::mem::Owned;
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId, Nic};

use super::super::{EVENTS, State, Task, Tcp, TcpConfig, Unsent, sys};
use super::net::{self, Net};
use super::verdict::{Quiet, ROUNDS, STEP_MS};
use super::world::{contexts, device};

/// So long both sides take to read a verdict, or a link to be made anew where nothing hinders it.
const SOON_MS: u64 = 300;
/// A host is suspected after so long by default, and some looks more.
const SUSPECTED_MS: u64 = 8000;
/// For so long a caller computes who comes back after all time-outs by default, but for that of an answer.
const AWAY_MS: u64 = 11_000;
/// More links than one poll is told of.
const CROWD: usize = EVENTS + 36;

/// Calls, and lets both sides learn that the link is up. Gives the link at either.
fn joined(quiet: &mut Quiet, from: usize, to: usize) -> [LinkId; 2] {
    let near = quiet.call(from, to);
    quiet.pass(STEP_MS);
    assert_eq!(quiet.0[from].1.up.last(), Some(&near));
    [near, *quiet.0[to].1.up.last().expect("it is up")]
}

fn lose(index: usize, side: usize) {
    net::with(|net| net.lose(index, side, true));
}

/// The network carries all that has been said.
fn settle() {
    while net::with(Net::step) == Some(true) {}
}

fn made() -> usize {
    net::with(|net| net.made()).expect("a network")
}

/// The acceptor of a transmit context's link cannot call back: it waits, as long as the endpoint lives.
#[test]
fn a_link_of_a_transmit_context_waits_to_be_called() {
    for (encrypt, to) in [(false, 0), (false, 1), (true, 1)] {
        let config = TcpConfig { encrypt, ..TcpConfig::default() };
        let mut quiet = Quiet::new(&config);
        quiet.0.extend(contexts(&config, 1).map(|tcp| (tcp, Default::default())));
        let links = joined(&mut quiet, 3, to);
        // Only the acceptor notices.
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
        // Both notice while the initiator computes, for longer than a host may be silent.
        let last = made() - 1;
        lose(last, 1);
        lose(last, 0);
        quiet.pass_without(3, 60_000);
        assert_eq!(quiet.0[to].1.down, []);
        quiet.pass(SOON_MS);
        assert_eq!((quiet.0[3].0.stats().resumed, quiet.0[to].0.stats().resumed), (2, 2));
        // It has left the link for good, and nobody says so.
        let link = &mut quiet.0[3].0.links[links[0].0 as usize];
        link.session = None;
        quiet.0[3].0.sessions.clear();
        let last = made() - 1;
        lose(last, 1);
        lose(last, 0);
        quiet.pass(config.answer_timeout_ms - 5000);
        assert_eq!(quiet.0[to].1.down, []);
        quiet.pass(10_000);
        assert_eq!(quiet.0[to].1.down, [(links[1], LinkError::Gone)]);
    }
}

/// A link ends with nonsense in the poll in which its host would have been suspected: it ends once, for the
/// first reason, and the next link of the same number is another.
#[test]
fn a_link_that_has_failed_ends_once() {
    let mut quiet = Quiet::new(&TcpConfig::default());
    let links = joined(&mut quiet, 0, 1);
    let far = &quiet.0[1].0.links[links[1].0 as usize];
    let socket = far.socket.as_ref().expect("it is up");
    assert_eq!(sys::send_one(std::os::fd::AsFd::as_fd(socket), &[0xff; 8]), Ok(8));
    settle();
    net::with(|net| net.forsake(0, 0));
    quiet.say(0, links[0], b"into the void");
    net::with(|net| net.now_ms += SUSPECTED_MS);
    let (tcp, heard) = &mut quiet.0[0];
    for _ in 0..ROUNDS {
        if !matches!(tcp.links.get(0).map(|link| &link.state), Some(State::Up)) {
            break;
        }
        tcp.poll(heard);
    }
    let there = quiet.0[1].0.name();
    let (tcp, heard) = &mut quiet.0[0];
    let next = tcp.connect(&there).expect("a call");
    for _ in 0..ROUNDS {
        tcp.poll(heard);
    }
    assert_eq!(heard.down, [(links[0], LinkError::Protocol)]);
    quiet.pass(SOON_MS);
    assert_eq!(quiet.0[0].1.up, [links[0], next]);
}

/// So many links have said something and been closed; none of it has arrived.
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

/// The caller notices what has come to pass, and the network does nothing.
fn notice(quiet: &mut Quiet) -> &Tcp {
    let (tcp, heard) = &mut quiet.0[0];
    for _ in 0..ROUNDS {
        tcp.poll(heard);
    }
    tcp
}

/// Of links that our side has closed, those with a connection do not count against those without.
#[test]
fn healthy_partings_crowd_nobody_out() {
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

/// Those without a connection are limited in number.
#[test]
fn partings_without_a_connection_are_bounded() {
    let mut quiet = closed(300);
    (0..280).for_each(|index| lose(index, 0));
    let tcp = notice(&mut quiet);
    assert_eq!((tcp.agenda.len(Task::Close), tcp.agenda.len(Task::Connect)), (256 + 20, 256));
}

/// A peer that reads nothing more is given up by a link that our side has closed, 5 s after its system took
/// something for the last time.
#[test]
fn a_parting_without_progress_ends() {
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

/// The caller's host reached the other, and then no more: it is called again. One that lives and computes is
/// waited for.
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

    // The same when it is made anew, and the other side does not know yet.
    lose(1, 0);
    while made() == 2 {
        quiet.poll(0);
    }
    net::with(|net| net.forsake(2, 0));
    quiet.pass(SUSPECTED_MS);
    assert_eq!((quiet.0[0].0.stats().resumed, made()), (1, 4));

    // The other side is busy.
    let second = quiet.0[0].0.connect(&there).expect("a call");
    quiet.pass_without(1, 50_000);
    lose(3, 0);
    quiet.pass_without(1, 50_000);
    assert_eq!(made(), 6);
    quiet.pass(SOON_MS);
    assert_eq!((&quiet.0[0].1.up[..], &quiet.0[0].1.down[..]), (&[link, second][..], &[][..]));
    assert_eq!(quiet.0[0].0.stats().resumed, 2);
}

/// A host that vanishes in the handshake, and does not come back, is given up.
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

/// Who is refused calls again for as long as it was told to.
#[test]
fn a_late_listener_is_waited_for() {
    let (connect_retry_ms, connect_timeout_ms) = (12_000, 12_000);
    let mut quiet = Quiet::new(&TcpConfig { connect_retry_ms, connect_timeout_ms, ..TcpConfig::default() });
    net::with(|net| net.refuses = true);
    let there = quiet.0[1].0.name();
    let link = quiet.0[0].0.connect(&there).expect("a call");
    quiet.pass(9000);
    assert_eq!(quiet.0[0].1.down, []);
    net::with(|net| net.refuses = false);
    quiet.pass(2 * SOON_MS);
    assert_eq!(quiet.0[0].1.up, [link]);
}

/// Messages that are to be said once more are noted as unsent, though somebody found that nothing could be
/// sent meanwhile.
#[test]
fn what_is_said_once_more_is_noted() {
    let unsent = Arc::new(Unsent::new(|| true));
    let mut quiet = Quiet::new(&TcpConfig { unsent: Some(Arc::clone(&unsent)), ..TcpConfig::default() });
    let links = joined(&mut quiet, 0, 1);
    lose(0, 1);
    quiet.say(0, links[0], b"lost");
    lose(0, 0);
    let (tcp, heard) = &mut quiet.0[0];
    while tcp.stats().breaks == 0 {
        tcp.poll(heard);
    }
    assert!(tcp.drain(), "there is no connection");
    unsent.clear();
    quiet.pass(SOON_MS);
    assert_eq!(quiet.0[1].1.messages, [b"lost"]);
    assert!(unsent.kept().is_some());
}

/// Who was refused and computes then, for longer than calls are tried again, calls once more: whether it had
/// heard of it or not.
#[test]
fn a_listener_that_came_while_the_caller_was_away_is_called() {
    for heard in [false, true] {
        let mut quiet = Quiet::new(&TcpConfig::default());
        net::with(|net| net.refuses = true);
        let there = quiet.0[1].0.name();
        let link = quiet.0[0].0.connect(&there).expect("a call");
        if heard {
            notice(&mut quiet);
        }
        net::with(|net| net.refuses = false);
        come_back(&mut quiet);
        assert_eq!((&quiet.0[0].1.up[..], &quiet.0[0].1.down[..]), (&[link][..], &[][..]), "{heard}");
        assert_eq!(made(), 2);
        // If it is refused that time, too, that was it.
        net::with(|net| net.refuses = true);
        quiet.0[0].0.connect(&there).expect("a call");
        if heard {
            notice(&mut quiet);
        }
        come_back(&mut quiet);
        assert_eq!((quiet.0[0].1.down.len(), made()), (1, 4), "{heard}");
    }
}

/// A crowd of calls by name or by service name; nobody has been polled since.
fn crowd(by_service: bool) -> Quiet {
    let mut quiet = Quiet::new(&TcpConfig { open: by_service, ..TcpConfig::default() });
    let name = quiet.0[1].0.name();
    let there = if by_service { EpName::service(name.socket()) } else { name };
    for _ in 0..CROWD {
        quiet.0[0].0.connect(&there).expect("a call");
    }
    quiet
}

/// The network does its part while all are away, for too long but for that.
fn come_back(quiet: &mut Quiet) {
    settle();
    net::with(|net| net.now_ms += AWAY_MS);
    quiet.pass(20 * STEP_MS);
}

/// Who comes back after the time-out to more connections than one poll is told of finds them made, not late;
/// and so with each answer.
#[test]
fn connections_made_while_the_caller_was_away_are_not_late() {
    for by_service in [false, true] {
        let mut quiet = crowd(by_service);
        // It says its hello, and the finish, when it has been away.
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

/// The same of the side that is called: hellos that came while it was away are not late.
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

/// The same of links that are made anew, which would end with all that they have kept.
#[test]
fn links_made_anew_while_the_caller_was_away_are_not_late() {
    let mut quiet = Quiet::new(&TcpConfig::default());
    for _ in 0..CROWD {
        quiet.call(0, 1);
    }
    quiet.pass(STEP_MS);
    (0..CROWD).for_each(|index| lose(index, 0));
    assert_eq!(notice(&mut quiet).stats().breaks, CROWD as u64);
    come_back(&mut quiet);
    for (tcp, heard) in &quiet.0 {
        assert_eq!((tcp.stats().resumed, &heard.down[..]), (CROWD as u64, &[][..]));
    }
}

/// Nobody listens any more where a device was, and its address is free, though a copy of the descriptor is
/// left. (On the system's own network.)
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
