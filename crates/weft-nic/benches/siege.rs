//! What a stranger who attacks an endpoint costs its peers: round trips between two endpoints while a third party connects,
//! beside those of quiet moments in the same run. `cargo bench -p weft-nic --bench siege`.
//!
//! One thread drives both endpoints, another attacks, so that two processors suffice; moments of attack and of quiet alternate, and
//! medians of both are compared: of the time on the clock, in which other programs have their part, and of the processor time that the endpoints
//! spend on a round trip, in which they have not. The attacker makes [`RATE`] connections in a second at most: what more would cost is mostly the kernel's part.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::{ClockId, clock_gettime};
use weft_engine::mem::IovList;
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};
use weft_nic::shm::{Shm, ShmConfig};
use weft_nic::{Tcp, TcpConfig, handshake};

/// Connections in a second.
const RATE: u32 = 3000;
/// Connections that the attacker keeps open.
const HELD: usize = 300;
/// Moments of attack, and as many of quiet.
const MOMENTS: usize = 40;
const MOMENT: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Ears {
    up: Vec<LinkId>,
    messages: usize,
}

impl Sink for Ears {
    fn up(&mut self, link: LinkId, _: LinkUp) {
        self.up.push(link);
    }
    fn down(&mut self, _: LinkId, why: LinkError) {
        panic!("a link has ended: {why}");
    }
    fn message(&mut self, _: LinkId, _: &[u8]) {
        self.messages += 1;
    }
    fn place(&mut self, _: LinkId, _: u64, _: u64, _: usize) -> Option<IovList> {
        None
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}
    fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
}

fn parts() -> NameParts {
    let capability = handshake::random().unwrap();
    NameParts {
        socket: SocketAddr::from(([127, 0, 0, 1], 0)),
        host_id: 1,
        ep_id: endpoint_id(&capability),
        capability,
        context: None,
        shm: true,
        tcp: true,
    }
}

/// Processor time of this thread.
fn worked() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

/// Round trips until `end`; returns what one has taken in nanoseconds, of the clock and of the processor.
fn play<N: Nic>(pair: &mut [(N, Ears); 2], links: [LinkId; 2], end: Instant) -> [f64; 2] {
    let (start, work) = (Instant::now(), worked());
    let mut rounds = 0;
    while Instant::now() < end {
        for (from, to) in [(0, 1), (1, 0)] {
            while pair[from].0.send(links[from], &[1; 64], &[]).is_err() {
                let (nic, ears) = &mut pair[from];
                nic.poll(ears);
            }
            pair[from].0.flush();
            let heard = pair[to].1.messages;
            while pair[to].1.messages == heard {
                let (nic, ears) = &mut pair[to];
                nic.poll(ears);
                // The one that has sent is polled by its owner, too.
                let (nic, ears) = &mut pair[from];
                nic.poll(ears);
            }
        }
        rounds += 1;
    }
    [start.elapsed(), worked() - work].map(|time| time.as_secs_f64() * 1e9 / f64::from(rounds.max(1)))
}

/// The medians of the moments.
fn medians(moments: &[[f64; 2]]) -> [f64; 2] {
    [0, 1].map(|of| {
        let mut values: Vec<f64> = moments.iter().map(|moment| moment[of]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    })
}

/// One row: quiet and attacked moments by turns, against an attacker that makes its n-th connection by `connect`.
fn row<N: Nic, C: Send>(name: &str, a: N, b: N, mut connect: impl FnMut(usize) -> Option<C> + Send) {
    let mut pair = [(a, Ears::default()), (b, Ears::default())];
    let peer = pair[1].0.name();
    let near = pair[0].0.connect(&peer).unwrap();
    while pair.iter().any(|(_, ears)| ears.up.is_empty()) {
        for (nic, ears) in &mut pair {
            nic.poll(ears);
        }
    }
    let links = [near, pair[1].1.up[0]];
    let (attack, over, made) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let [quiet, attacked] = thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                if attack.load(Ordering::Relaxed) {
                    held.extend(connect(made.fetch_add(1, Ordering::Relaxed)));
                    held.drain(..held.len().saturating_sub(HELD));
                }
                thread::sleep(Duration::from_secs(1) / RATE);
            }
        });
        let mut moments = [Vec::new(), Vec::new()];
        for moment in 0..2 * MOMENTS {
            attack.store(moment % 2 == 1, Ordering::Relaxed);
            moments[moment % 2].push(play(&mut pair, links, Instant::now() + MOMENT));
        }
        over.store(true, Ordering::Relaxed);
        moments.map(|moments| medians(&moments))
    });
    #[allow(clippy::cast_precision_loss)]
    let made = made.into_inner() as f64 / (MOMENTS as f64 * MOMENT.as_secs_f64());
    let ratios = [0, 1].map(|of| attacked[of] / quiet[of]);
    println!("{name:34} {:10.0} {:10.0} {:7.2} {:7.2} {made:10.0}", quiet[0], attacked[0], ratios[0], ratios[1]);
}

fn main() {
    println!(
        "{:34} {:>10} {:>10} {:>7} {:>7} {:>10}",
        "round trip, 64 B", "quiet ns", "attack ns", "ratio", "work", "attacks/s"
    );
    let tcp = || Tcp::new(&TcpConfig::default(), &parts()).unwrap();
    type Says = fn(usize, &EpName) -> Vec<u8>;
    let attacks: [(&str, Says); 4] = [
        ("tcp, silent connections", |_, _| Vec::new()),
        ("tcp, garbage", |n, _| vec![n.to_le_bytes()[0]; 200]),
        ("tcp, half a hello", |_, _| b"weft-tcp\x01\x01".to_vec()),
        ("tcp, hellos without proof", |_, target| {
            let mut hello = vec![0; 112];
            hello[..8].copy_from_slice(b"weft-tcp");
            (hello[8], hello[9]) = (1, 1);
            hello[32..96].copy_from_slice(&handshake::public_part(&EpName::full(&parts())));
            hello[96..].copy_from_slice(&target.ep_id());
            hello
        }),
    ];
    for (name, says) in attacks {
        let (a, b) = (tcp(), tcp());
        let target = a.name();
        row(name, a, b, move |n| {
            let mut stream = TcpStream::connect(target.socket()).ok()?;
            let _ = stream.write_all(&says(n, &target));
            Some(stream)
        });
    }
    let shm = || Shm::new(&ShmConfig::default(), EpName::full(&parts())).unwrap();
    let (a, b) = (shm(), shm());
    let id: String = a.name().ep_id().iter().map(|byte| format!("{byte:02x}")).collect();
    let address = SocketAddrUnix::new_abstract_name(format!("weft-{id}").as_bytes()).unwrap();
    row("shm, silent connections", a, b, move |_| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        rustix::net::connect(&socket, &address).ok()?;
        Some(socket)
    });
}
