//! Moments that [`super::world`]'s runs come to seldom or never, each brought about by hand.

use weft_engine::nic::{LinkError, LinkId, Nic};

use super::super::{Tcp, TcpConfig};
use super::net;
use super::verdict::{Quiet, ROUNDS, STEP_MS};

/// So long both sides take to read a verdict, or a link to be made anew where nothing hinders it.
const SOON_MS: u64 = 300;

fn lose(index: usize, side: usize) {
    net::with(|net| net.lose(index, side, true));
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
    assert_eq!((tcp.closed.len(), tcp.calling.len()), (LINKS, 1), "they linger, one of them without a connection");
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
    assert_eq!((tcp.closed.len(), tcp.calling.len()), (256 + 20, 256));
}
