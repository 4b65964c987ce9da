//! A link whose acceptor has lost the connection before the caller has read the verdict: neither side may give the link
//! up.
//!
//! Place in the data flow: beside the runs of [`super::world`], which rarely reach this moment. [`super::moments`] has
//! other such moments.

use weft_engine::mem::{IovList, Owned};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};

use super::super::{Tcp, TcpConfig};
use super::net::{self, Cuts, Faults, Net};
use super::world::device;

/// The number of polls after which a device has polled all of its sockets.
pub(super) const ROUNDS: usize = 120;
/// Milliseconds: a step of the clock, the time for which the caller reads nothing, and the time for resuming the link.
pub(super) const STEP_MS: u64 = 5;
const DEAF_MS: u64 = 150;
const MENDING_MS: u64 = 600;

/// The reports of a device.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pub(super) up: Vec<LinkId>,
    pub(super) down: Vec<(LinkId, LinkError)>,
    pub(super) messages: Vec<Vec<u8>>,
}

impl Sink for Reports {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, id: LinkId, _: LinkUp) {
        self.up.push(id);
    }
    fn down(&mut self, id: LinkId, why: LinkError) {
        self.down.push((id, why));
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

/// Some devices on a network without faults of its own.
pub(super) struct Quiet(pub(super) Vec<(Tcp, Reports)>);

impl Quiet {
    /// Two devices of different hosts: caller and acceptor.
    pub(super) fn new(config: &TcpConfig) -> Self {
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
        Self([1, 2].map(|host| (device(config, host), Reports::default())).into())
    }

    /// Device `from` calls device `to`. Returns when `to` has sent the verdict.
    pub(super) fn call(&mut self, from: usize, to: usize) -> LinkId {
        let there = self.0[to].0.name();
        let before = self.0[to].1.up.len();
        let link = self.0[from].0.connect(&there).expect("a call");
        for _ in 0..10 * ROUNDS {
            self.poll(from);
            self.poll(to);
            if self.0[to].1.up.len() > before {
                return link;
            }
        }
        panic!("no answer");
    }

    pub(super) fn poll(&mut self, at: usize) {
        let (tcp, reports) = &mut self.0[at];
        tcp.poll(reports);
        net::with(Net::step);
    }

    /// Polls all devices for a number of milliseconds of virtual time.
    pub(super) fn pass(&mut self, ms: u64) {
        self.pass_without(usize::MAX, ms);
    }

    /// Polls all devices but one, which computes.
    pub(super) fn pass_without(&mut self, busy: usize, ms: u64) {
        let step_ms = (ms / 200).max(STEP_MS);
        for _ in 0..ms.div_ceil(step_ms) {
            for _ in 0..ROUNDS {
                (0..self.0.len()).filter(|&at| at != busy).for_each(|at| self.poll(at));
            }
            net::with(|net| net.now_ms += step_ms);
        }
    }

    pub(super) fn say(&mut self, at: usize, link: LinkId, word: &[u8]) {
        let mut message = Owned::new(word.to_vec());
        self.0[at].0.send(link, &[], &[message.iov()]).expect("room for a message");
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // A device that has panicked may panic again while it sends a goodbye.
        match std::thread::panicking() {
            true => std::mem::forget(std::mem::take(&mut self.0)),
            false => self.0.clear(),
        }
        net::install(None);
    }
}

#[test]
fn an_unread_verdict_survives_a_call_of_the_acceptor() {
    for encrypt in [false, true] {
        let mut two = Quiet::new(&TcpConfig::default().with(|config| config.encrypt = encrypt));
        two.call(0, 1);
        assert_eq!((two.0[0].1.up.len(), two.0[1].1.up.len()), (0, 1), "the verdict has just been sent");

        net::with(|net| {
            net.deaf = Some(0);
            net.lose(0, 1, false);
        });
        two.pass(DEAF_MS);
        assert!(two.0[1].0.stats().breaks > 0, "the acceptor knows");
        assert!(two.0[0].1.up.is_empty(), "the caller does not");
        net::with(|net| net.deaf = None);
        two.pass(MENDING_MS);
        for (side, (_, reports)) in two.0.iter().enumerate() {
            assert_eq!((reports.up.len(), &reports.down[..]), (1, &[][..]), "side {side}, encrypted: {encrypt}");
        }
        for side in 0..2 {
            let link = two.0[side].1.up[0];
            two.say(side, link, &[side as u8; 9]);
        }
        two.pass(STEP_MS);
        for (side, (_, reports)) in two.0.iter().enumerate() {
            assert_eq!(reports.messages, [vec![1 - side as u8; 9]], "side {side}, encrypted: {encrypt}");
        }
    }
}
