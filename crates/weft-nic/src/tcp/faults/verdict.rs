//! A link whose acceptor has lost the connection before the caller has read the verdict: neither side may give it up.
//!
//! Place in the data flow: beside [`super::world`]'s runs, which seldom come to this moment.

use weft_engine::mem::{IovList, Owned};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};

use super::super::{Tcp, TcpConfig};
use super::net::{self, Cuts, Faults, Net};
use super::world::device;

/// Polls after which a device has asked for all of its sockets.
const ROUNDS: usize = 120;
/// So long are a step of the clock, the caller's deafness and what is left to it for making the link whole again.
const STEP_MS: u64 = 5;
const DEAF_MS: u64 = 150;
const MENDING_MS: u64 = 600;

/// What a side has heard of its only link.
#[derive(Debug, Default)]
struct Heard {
    up: Vec<LinkId>,
    down: Vec<LinkError>,
    messages: Vec<Vec<u8>>,
}

impl Sink for Heard {
    fn up(&mut self, id: LinkId, _: LinkUp) {
        self.up.push(id);
    }
    fn down(&mut self, _: LinkId, why: LinkError) {
        self.down.push(why);
    }
    fn message(&mut self, _: LinkId, bytes: &[u8]) {
        self.messages.push(bytes.to_vec());
    }
    fn place(&mut self, _: LinkId, _: u64, _: u64, _: usize) -> Option<IovList> {
        None
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}
    fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
}

/// Caller and acceptor.
struct Two([(Tcp, Heard); 2]);

impl Two {
    fn poll(&mut self, side: usize) {
        let (tcp, heard) = &mut self.0[side];
        tcp.poll(heard);
        net::with(Net::step);
    }

    /// Both are polled for so many milliseconds of virtual time.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / STEP_MS {
            for _ in 0..ROUNDS {
                self.poll(0);
                self.poll(1);
            }
            net::with(|net| net.now_ms += STEP_MS);
        }
    }

    fn say(&mut self, side: usize, word: &[u8]) {
        let (tcp, heard) = &mut self.0[side];
        let mut message = Owned::new(word.to_vec());
        tcp.send(heard.up[0], &[], &[message.iov()]).expect("room for a message");
    }
}

#[test]
fn a_verdict_may_lie_unread_while_the_acceptor_calls_again() {
    for encrypt in [false, true] {
        let whole = Cuts { percent: 0, nothing: 0, most: 1 };
        let faults = Faults {
            writes: whole,
            reads: whole,
            small: 0,
            window: 1 << 16,
            delays: 0,
            delay_ms: 0,
            breaks: 0,
            early_breaks: 0,
            budget: 0,
        };
        net::install(Some(Net::new(1, faults)));
        let config = TcpConfig { encrypt, ..TcpConfig::default() };
        let mut two = Two([1, 2].map(|host| (device(&config, host), Heard::default())));
        let there = two.0[1].0.name();
        two.0[0].0.connect(&there).expect("a call");
        for _ in 0..10 * ROUNDS {
            two.poll(0);
            two.poll(1);
            if !two.0[1].1.up.is_empty() {
                break;
            }
        }
        assert_eq!((two.0[0].1.up.len(), two.0[1].1.up.len()), (0, 1), "the verdict has just been said");

        net::with(|net| {
            net.deaf = Some(0);
            net.lose(0, 1, false);
        });
        two.pass(DEAF_MS);
        assert!(two.0[1].0.stats().breaks > 0, "the acceptor knows");
        assert!(two.0[0].1.up.is_empty(), "the caller does not");
        net::with(|net| net.deaf = None);
        two.pass(MENDING_MS);
        for (side, (_, heard)) in two.0.iter().enumerate() {
            assert_eq!((heard.up.len(), &heard.down[..]), (1, &[][..]), "side {side}, encrypted: {encrypt}");
        }
        for side in 0..2 {
            two.say(side, &[side as u8; 9]);
        }
        two.pass(STEP_MS);
        for (side, (_, heard)) in two.0.iter().enumerate() {
            assert_eq!(heard.messages, [vec![1 - side as u8; 9]], "side {side}, encrypted: {encrypt}");
        }
        drop(two);
        net::install(None);
    }
}
