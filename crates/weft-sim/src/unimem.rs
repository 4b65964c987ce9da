//! The Unimem prototype with whole engines: a message layer over weft's engine over the simulated card.
//!
//! Place in the data flow: [`Pair`] plays the clients of two endpoints in virtual time. [`figures()`] compares them
//! with the paper (Kim et al., "Toward Developing a Unimem OFI Provider for MPI Support", 2018), and with the same
//! protocols over costs (weft-scale). `weft sim paper` prints both.
//!
//! The improvements of the paper, and those that it names as future work, are [`Switches`]. The message layer of the
//! paper puts a header before each message and receives into buffers of its own, out of which it copies. It is left out
//! where the paper would have to leave it out: messages in one mailbox message, and DMA between buffers of the user.

mod figures;

use weft_engine::api::{ADDR_NONE, Access, Config, Context, OpFlags, RecvFlags, RecvOp, Region, RmaIov, RmaOp, SendOp};
use weft_engine::mem::{Iov, IovList};
use weft_engine::nic::{Demands, NicCaps};
use weft_scale::profile::Costs;

use crate::card::{Card, Moved};
use crate::cluster::{Cluster, Turn};
use crate::config::{FabricConfig, Registration};
use crate::memory::Buffer;

pub use figures::figures;

/// The message layer's header.
const HEADER_BYTES: usize = 64;
/// Payload of an engine's message that fits into one mailbox message with its head and tag.
const MAILBOX_PAYLOAD: usize = 8;
/// The longest eager message.
const EAGER_BYTES: usize = 4096;
/// The engine announces a message by 32 or 40 bytes, where the prototype needs one mailbox message.
const MAILBOXES: usize = 2;
/// Assumed: the processor writes the next 24 bytes.
const MAILBOX_GAP_NS: u64 = 50;
/// Special memory for each purpose.
const SPECIAL_BYTES: u64 = 64 << 20;
/// Round trips of a measurement.
const ROUNDS: u32 = 10;

/// Improvements of the provider, those of the paper first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Registrations of the peer's memory are kept.
    pub keeps_registrations: bool,
    /// The message layer's buffers are special memory, so that the DMA stores there.
    pub special_layer: bool,
    /// Short messages go into buffers that the receiver has posted, without announcement.
    pub eager: bool,
    /// Small messages go in one mailbox message, without the message layer.
    pub mailbox: bool,
    /// The DMA goes between buffers of the users, which are special memory, without the message layer.
    pub direct: bool,
    /// The receiver's card reads the sender's memory, and clients write the memory of others.
    pub rma: bool,
}

impl Switches {
    /// The first version of the paper: four copies, with the DMA.
    pub const FIRST: Self = Self {
        keeps_registrations: false,
        special_layer: false,
        eager: false,
        mailbox: false,
        direct: false,
        rma: false,
    };
    /// With the registration cache.
    pub const CACHED: Self = Self { keeps_registrations: true, ..Self::FIRST };
    /// The version that the paper measured: three copies.
    pub const MEASURED: Self = Self { special_layer: true, ..Self::CACHED };
    /// Future work: eager messages.
    pub const EAGER: Self = Self { eager: true, ..Self::MEASURED };
    /// Future work: messages in one mailbox message.
    pub const MAILBOX: Self = Self { mailbox: true, ..Self::MEASURED };
    /// Future work: DMA between buffers of the users.
    pub const DIRECT: Self = Self { direct: true, ..Self::MEASURED };
    /// Future work: native RMA.
    pub const RMA: Self = Self { rma: true, ..Self::DIRECT };

    /// Whether a message of this length takes the way for which the version stands. Eager messages have a limit, and an
    /// empty message without the message layer's header is in the mailbox in every version.
    const fn shows(self, bytes: usize) -> bool {
        if self.eager { HEADER_BYTES + bytes <= EAGER_BYTES } else { bytes > 0 || self.has_layer() }
    }

    const fn has_layer(self) -> bool {
        !self.mailbox && !self.direct
    }
}

/// A cost in nanoseconds.
const fn ns(ps: u64) -> u64 {
    ps / 1000
}

impl FabricConfig {
    /// A fabric of Unimem cards with the costs of a profile. Messages move in one piece, as in the prototype.
    #[must_use]
    pub fn unimem(costs: &Costs, switches: Switches) -> Self {
        let mut config = Self::new(1);
        config.caps = NicCaps {
            mailbox_bytes: EAGER_BYTES + 256,
            inline_bytes: 24,
            eager_bytes: if switches.eager {
                EAGER_BYTES
            } else if switches.mailbox {
                MAILBOX_PAYLOAD
            } else {
                0
            },
            get: switches.rma,
            put: switches.rma,
            push_follows: false,
            confirms: false,
            maps: false,
            ..config.caps
        };
        let register_ns = ns(costs.card.register);
        if switches.rma {
            let demands = Demands { cost_ns: register_ns, align_bytes: 1, regions: 1024, bytes: u64::MAX };
            config.registration = Some(Registration { demands, end_ns: register_ns, observed: true });
        }
        (config.latency_ns, config.ps_per_byte) = (ns(costs.far.latency), costs.far.byte);
        (config.share_permille, config.segment_bytes) = (0, usize::MAX);
        config.card = Some(Card {
            send_ns: ns(costs.far.send),
            receive_ns: ns(costs.far.receive),
            mailbox_bytes: costs.card.mailbox.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(24),
            mailboxes: MAILBOXES,
            mailbox_gap_ns: MAILBOX_GAP_NS,
            setup_ns: ns(costs.far.bulk_setup),
            copy_ps_per_byte: costs.cpu.copy_byte,
            stage_ns: ns(costs.cpu.stage),
            register_ns,
            keeps_registrations: switches.keeps_registrations,
            special_bytes: SPECIAL_BYTES,
            bounce_bytes: SPECIAL_BYTES,
        });
        config
    }
}

/// The memory of one client.
#[derive(Clone, Copy, Debug)]
struct Client {
    /// The header of the message that it sends.
    header: Buffer,
    /// The message layer's buffer.
    layer: Buffer,
    /// Where the user has messages.
    user: Buffer,
}

/// Two clients that exchange messages.
pub struct Pair {
    cluster: Cluster,
    switches: Switches,
    clients: [Client; 2],
}

impl Pair {
    /// Two clients that are connected, for messages of at most `longest` bytes.
    ///
    /// # Panics
    /// The messages do not fit into the special memory.
    #[must_use]
    pub fn new(costs: &Costs, switches: Switches, longest: usize) -> Self {
        Self::over(FabricConfig::unimem(costs, switches), Config::default(), switches, longest)
    }

    /// The same over a fabric, or with engines, that differ.
    ///
    /// # Panics
    /// See [`Pair::new`].
    #[must_use]
    pub fn over(fabric: FabricConfig, engine: Config, switches: Switches, longest: usize) -> Self {
        let mut cluster = Cluster::new(fabric, engine, 2);
        cluster.set_slow(false);
        cluster.set_turn_ns(0);
        let fabric = cluster.fabric().clone();
        let alloc = |rank, len, special| {
            let memory = if special { fabric.alloc_special(rank, len) } else { Some(fabric.alloc(rank, len)) };
            memory.unwrap_or_else(|| unreachable!("{len} bytes exceed the special memory"))
        };
        let clients = [0, 1].map(|rank| Client {
            header: alloc(rank, HEADER_BYTES, false),
            layer: alloc(rank, HEADER_BYTES + longest, switches.special_layer),
            user: alloc(rank, longest, switches.direct),
        });
        let mut pair = Self { cluster, switches, clients };
        // Connects the two, and registers memory if registrations are kept.
        for len in [0, longest] {
            pair.message(0, len);
            pair.message(1, len);
        }
        pair
    }

    /// The cluster.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Drives the engines until `count` operations have completed.
    fn wait(&mut self, mut count: usize) {
        while count > 0 {
            let turn = self.cluster.turn(|cluster, rank| {
                for done in cluster.take_completions(rank) {
                    assert_eq!(done.fault, None, "an operation fails");
                    count -= 1;
                }
            });
            assert!(count == 0 || turn != Turn::Idle, "{count} operations never complete");
        }
    }

    fn engine(&mut self, rank: usize) -> &mut weft_engine::Engine<crate::SimNic> {
        // Both ranks live as long as the pair.
        self.cluster.engine(rank).unwrap_or_else(|| unreachable!("rank {rank} is alive"))
    }

    /// Passes a message from the memory of one user to that of the other.
    ///
    /// # Panics
    /// An operation fails, or never completes.
    pub fn message(&mut self, from: usize, len: usize) {
        let (to, [here, there]) = (1 - from, [self.clients[from], self.clients[1 - from]]);
        let (source, target) = (here.user.part(0, len), there.user.part(0, len));
        let landed = if self.switches.has_layer() { there.layer.part(0, HEADER_BYTES + len) } else { target };
        let whole: &[Iov] = &[here.header.iov(), source.iov()];
        let sent = if self.switches.has_layer() { whole } else { &whole[1..] };
        let (ctx, tag) = (Context::default(), 1);
        let recv = RecvOp { src: ADDR_NONE, iov: &[landed.iov()], tag, ignore: 0, ctx, flags: RecvFlags::TAGGED };
        let dest = self.cluster.addr(from, to);
        let send = SendOp { dest, iov: sent, tag, data: 0, ctx, flags: OpFlags::TAGGED };
        // A refusal ends in a wait without end, which the caller sees as a panic.
        let posted = self.engine(to).recv(&recv).is_ok() && self.engine(from).send(&send).is_ok();
        assert!(posted, "the engine refuses an operation");
        self.wait(2);
        if self.switches.has_layer() && len > 0 {
            self.cluster.fabric().copy(to, landed.part(HEADER_BYTES, len), target);
        }
    }

    /// The time of a message one way, in microseconds.
    #[must_use]
    pub fn one_way_us(&mut self, len: usize) -> f64 {
        let start_ns = self.cluster.fabric().now_ns();
        for _ in 0..ROUNDS {
            self.message(0, len);
            self.message(1, len);
        }
        us(self.cluster.fabric().now_ns() - start_ns) / f64::from(2 * ROUNDS)
    }

    /// The bandwidth of one message after the other, each of which is answered, in MB/s.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // Below 2^53.
    pub fn mb_per_s(&mut self, len: usize) -> f64 {
        let start_ns = self.cluster.fabric().now_ns();
        for _ in 0..ROUNDS {
            self.message(0, len);
            self.message(1, 0);
        }
        len as f64 * f64::from(ROUNDS) / us(self.cluster.fabric().now_ns() - start_ns)
    }

    /// The time from the start to the completion of a write into the memory of the other user, in microseconds.
    ///
    /// # Panics
    /// An operation fails, or never completes.
    #[must_use]
    pub fn write_us(&mut self, len: usize) -> f64 {
        let [here, there] = self.clients;
        let (access, iov) = (Access { read: true, write: true }, IovList::from_slice(&[there.user.iov()]));
        let region = Region { key: 1, iov, base: 0, access, user: 0, events: false, mapping: None };
        // Later calls find the region there.
        _ = self.engine(1).add_region(region);
        let remote = [RmaIov { addr: 0, len: len as u64, key: 1 }];
        let (dest, ctx) = (self.cluster.addr(0, 1), Context::default());
        let mut taken_us = 0.0;
        // The first one registers.
        for _ in 0..2 {
            let source = here.user.part(0, len).iov();
            let op = RmaOp { dest, iov: &[source], remote: &remote, data: 0, ctx, flags: OpFlags::empty() };
            let start_ns = self.cluster.fabric().now_ns();
            assert!(self.engine(0).write(&op).is_ok(), "the engine refuses a write");
            self.wait(1);
            taken_us = us(self.cluster.fabric().now_ns() - start_ns);
        }
        taken_us
    }

    /// The movements of one message, in their order.
    #[must_use]
    pub fn movements(&mut self, len: usize) -> Vec<Moved> {
        let count = |pair: &Self| {
            let stats = pair.cluster.fabric().stats();
            usize::try_from(stats.copies + stats.dmas + stats.reached).unwrap_or(0)
        };
        let before = count(self);
        self.message(0, len);
        let added = count(self) - before;
        let mut moved = self.cluster.fabric().moved();
        moved.split_off(moved.len().saturating_sub(added))
    }
}

/// Nanoseconds as microseconds.
#[allow(clippy::cast_precision_loss)] // Below 2^53.
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
