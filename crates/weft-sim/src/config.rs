//! Configuration of a simulated fabric: sizes, times, limits, faults.
//!
//! Place in the data flow: only the fabric reads it. Sizes are in bytes, times in virtual nanoseconds,
//! probabilities in thousandths. [`FabricConfig::swarm`] draws a whole configuration from a seed. Each run
//! gets a random subset of the faults at random strength, so over many seeds every combination occurs.

use weft_engine::nic::{Demands, NicCaps};

use crate::card::Card;
use crate::hazard::{Hazard, Hazards};
use crate::rng::{Entity, Stream};

/// Faults and disturbances; a value of 0 disables each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// `send`, `push`, `get`, `put` answer `Full` although there is room.
    pub full_permille: u32,
    /// A message of an unordered fabric is delayed by up to `reorder_ns` on its own.
    pub reorder_permille: u32,
    /// Longest delay of a reordered message.
    pub reorder_ns: u64,
    /// A message, and all behind it on an ordered fabric, is delayed by up to `stall_ns`.
    pub stall_permille: u32,
    /// Longest delay of a stalled message.
    pub stall_ns: u64,
    /// A connection attempt fails: refused, timed out or unreachable.
    pub connect_fail_permille: u32,
    /// A connection attempt takes 100 times as long.
    pub connect_slow_permille: u32,
    /// The pieces of a push are stored in several steps, with a new `place` call for each.
    pub short_place_permille: u32,
    /// A message, and all messages after it, wait in the device for `flush`.
    pub gather_permille: u32,
    /// A `get` or `put` fails with `Access`.
    pub access_fail_permille: u32,
    /// A push does not wait for the messages before it although `push_follows` promises that: the device is
    /// broken.
    pub push_overtakes_permille: u32,
    /// A poll hands over nothing although something has arrived.
    pub idle_poll_permille: u32,
    /// A packet beneath the device is lost or damaged, so everything behind it waits until it is sent again.
    pub resend_permille: u32,
    /// A message of an unordered fabric arrives a second time.
    pub double_permille: u32,
    /// Memory cannot be registered.
    pub unregistrable_permille: u32,
}

/// Registration, on a fabric whose gets and puts reach only registered memory. Registering and deregistering
/// are system calls: the caller waits while they take their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The demands of every device.
    pub demands: Demands,
    /// Duration of a deregistration.
    pub end_ns: u64,
    /// Whether the system reports unmapped memory ([`Fabric::free`](crate::Fabric::free)).
    pub observed: bool,
}

/// The configuration of a simulated fabric.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// The seed of all randomness.
    pub seed: u64,
    /// The capabilities of every link. `device` is `sim`.
    pub caps: NicCaps,
    /// Time of flight.
    pub latency_ns: u64,
    /// Largest random addition to the time of flight, per message.
    pub jitter_ns: u64,
    /// Picoseconds per byte on each direction of a link.
    pub ps_per_byte: u64,
    /// Time until a connection request is answered.
    pub connect_ns: u64,
    /// Longest time until an unanswered attempt fails.
    pub connect_timeout_ns: u64,
    /// Messages of one link direction that may be in flight or unread.
    pub queue_depth: usize,
    /// Pushes, gets and puts that one end of a link may have pending.
    pub transfer_depth: usize,
    /// The peer may assist a get or put.
    pub share_permille: u32,
    /// Longest segment of a push, put or get. Longer segments are used where a transfer would exceed
    /// `max_segments`.
    pub segment_bytes: usize,
    /// Most segments of one transfer.
    pub max_segments: usize,
    /// Most arrivals that one poll delivers.
    pub poll_budget: usize,
    /// Virtual duration of a poll. With 0, the ranks' times stay independent of each other; with more, a rank
    /// that waits inside a call sees time advance.
    pub poll_ns: u64,
    /// The device is a card with mailboxes and special memory.
    pub card: Option<Card>,
    /// Gets and puts need registered memory; `caps.registered` follows from this.
    pub registration: Option<Registration>,
    /// Endpoints per host, in the order of their numbers.
    pub per_host: usize,
    /// Endpoints of a host can share boards.
    pub boards: bool,
    /// The device has chains, whose connections are cut at this permille of frames.
    pub chains: Option<u32>,
    /// The faults that strike.
    pub faults: Faults,
}

impl FabricConfig {
    /// An ordered fabric without faults: 1 µs, 10 GB/s, get and put.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            caps: NicCaps {
                device: "sim",
                mailbox_bytes: 4096,
                inline_bytes: 64,
                eager_bytes: 3072,
                get: true,
                put: true,
                ordered: true,
                push_follows: true,
                survives: false,
                confirms: true,
                maps: true,
                pushes: false,
                registered: false,
            },
            latency_ns: 1000,
            jitter_ns: 0,
            ps_per_byte: 100,
            connect_ns: 20_000,
            connect_timeout_ns: 10_000_000,
            queue_depth: 64,
            transfer_depth: 16,
            share_permille: 500,
            segment_bytes: 8192,
            max_segments: usize::MAX,
            poll_budget: 16,
            poll_ns: 0,
            card: None,
            registration: None,
            per_host: usize::MAX,
            boards: false,
            chains: None,
            faults: Faults::default(),
        }
    }

    /// A configuration drawn from the seed, with the faults that a device may always have.
    #[must_use]
    pub fn swarm(seed: u64) -> Self {
        let mut rng = Stream::new(seed, Entity::Run);
        let harmless = [Hazard::Delay, Hazard::Partial, Hazard::Full, Hazard::Registration];
        let some = harmless.into_iter().filter(|_| rng.chance(400)).collect::<Hazards>();
        Self::draw(seed, some.with(Hazard::Reorder))
    }

    /// A configuration drawn from the seed, with the faults of `hazards` at random strength. The other values
    /// do not depend on the set, so removing one hazard does not change them.
    #[must_use]
    pub fn draw(seed: u64, hazards: Hazards) -> Self {
        let mut rng = Stream::new(seed, Entity::Run);
        let mut config = Self::new(seed);
        let mailbox_bytes = *rng.pick(&[256, 300, 512, 1024, 4096, 16 << 10]);
        let ordered = rng.chance(600);
        config.caps = NicCaps {
            device: "sim",
            mailbox_bytes,
            inline_bytes: *rng.pick(&[0, 56, 64, 192]),
            eager_bytes: rng.between(0, mailbox_bytes - 128),
            get: rng.chance(500),
            put: rng.chance(500),
            ordered,
            push_follows: rng.chance(500) && ordered,
            survives: rng.chance(500),
            confirms: false,
            maps: false,
            pushes: false,
            registered: false,
        };
        // As in shared memory. No draws of their own, so that the other values of a seed stay the same.
        config.caps.confirms = ordered && config.caps.survives;
        config.caps.maps = config.caps.confirms;
        config.caps.pushes = config.caps.push_follows && config.caps.survives;
        config.latency_ns = *rng.pick(&[0, 100, 1000, 50_000]);
        config.jitter_ns = *rng.pick(&[0, 10, 1000, 20_000]);
        config.ps_per_byte = *rng.pick(&[0, 100, 1000, 8000]);
        config.connect_ns = *rng.pick(&[0, 1000, 100_000]);
        config.share_permille = *rng.pick(&[0, 300, 1000]);
        config.segment_bytes = *rng.pick(&[33, 200, 4096, 65536]);
        // More segments find nothing new, and slow the run down.
        config.max_segments = 100;
        config.poll_budget = *rng.pick(&[1, 2, 16, 256]);
        let depths = (*rng.pick(&[1, 2, 3, 8, 64]), *rng.pick(&[1, 2, 16]));
        (config.queue_depth, config.transfer_depth) = if hazards.has(Hazard::Full) { depths } else { (1024, 64) };
        config.registration = Registration::draw(&mut rng, hazards.has(Hazard::Registration));
        config.faults = Faults::draw(seed, hazards);
        config
    }
}

impl Registration {
    fn draw(rng: &mut Stream, tight: bool) -> Option<Self> {
        let exists = rng.chance(300);
        let cost_ns = *rng.pick(&[0, 100, 10_000]);
        let limits = (*rng.pick(&[1, 2, 5, 1000]), *rng.pick(&[1000, 100_000, u64::MAX]));
        let (regions, bytes) = if tight { limits } else { (1000, u64::MAX) };
        let align_bytes = *rng.pick(&[1, 64, 4096]);
        let demands = Demands { cost_ns, align_bytes, regions, bytes };
        let registration = Self { demands, end_ns: rng.below(cost_ns + 1), observed: rng.chance(700) };
        (exists || tight).then_some(registration)
    }
}

impl Faults {
    fn draw(seed: u64, hazards: Hazards) -> Self {
        let strength = |hazard: Hazard, most: u64, rng: &mut Stream| {
            let drawn = 1 + u32::try_from(rng.below(most)).unwrap_or(0);
            if hazards.has(hazard) { drawn } else { 0 }
        };
        let mut of = Hazard::ALL.map(|hazard| hazard.stream(seed));
        let mut draw = |hazard: Hazard, most: u64| strength(hazard, most, &mut of[hazard as usize]);
        Self {
            full_permille: draw(Hazard::Full, 300),
            reorder_permille: draw(Hazard::Reorder, 900),
            reorder_ns: 20_000,
            stall_permille: draw(Hazard::Delay, 50),
            stall_ns: 200_000,
            connect_fail_permille: draw(Hazard::Refuse, 300),
            connect_slow_permille: draw(Hazard::Delay, 300),
            short_place_permille: draw(Hazard::Partial, 500),
            gather_permille: draw(Hazard::Partial, 700),
            idle_poll_permille: draw(Hazard::Partial, 300),
            resend_permille: draw(Hazard::Drop, 30) + draw(Hazard::Corrupt, 10),
            double_permille: draw(Hazard::Duplicate, 200),
            unregistrable_permille: draw(Hazard::Registration, 300),
            access_fail_permille: 0,
            push_overtakes_permille: 0,
        }
    }
}
