//! The speed of the shared-memory device, compared with a bare cache line that two threads hand back and
//! forth in the same run.
//!
//! `cargo bench -p weft-nic --bench shm [-- SECONDS]`. The two threads are pinned to the first two processors
//! of the process's affinity mask. Times are of the device alone, without the engine. Each figure is the best
//! of several rounds, because other programs may use the machine.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_engine::mem::{IovList, Owned};
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{DirectCopy, LinkError, LinkId, LinkUp, Nic, RemoteIov, Sink};
use weft_nic::shm::{Shm, ShmConfig};

#[derive(Default)]
struct Count {
    messages: u64,
    bytes: u64,
    done: u64,
    up: Vec<LinkId>,
    window: IovList,
}

impl Sink for Count {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, _info: LinkUp) {
        self.up.push(link);
    }
    fn down(&mut self, _link: LinkId, why: LinkError) {
        assert_eq!(why, LinkError::Closed, "the other thread ends first");
    }
    fn message(&mut self, _link: LinkId, bytes: &[u8]) {
        self.messages += 1;
        self.bytes += u64::from(bytes[bytes.len() - 1]);
    }
    fn place(&mut self, _: LinkId, _: u64, offset: u64, len: usize) -> Option<IovList> {
        Some(weft_engine::mem::slice(&self.window, offset as usize, len))
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, len: usize) {
        self.bytes += len as u64;
    }
    fn done(&mut self, _: LinkId, _: u64, result: Result<(), LinkError>) {
        result.unwrap();
        self.done += 1;
    }
}

fn device() -> Shm {
    let capability = weft_nic::handshake::random().unwrap();
    let name = EpName::full(&NameParts {
        socket: SocketAddr::from(([127, 0, 0, 1], 0)),
        host_id: 1,
        ep_id: endpoint_id(&capability),
        capability,
        context: None,
        shm: true,
        tcp: false,
    });
    Shm::new(&ShmConfig::default(), name).unwrap()
}

/// Two endpoints and their links to each other. `idle` idle peers have connected to both before.
#[allow(clippy::type_complexity)]
fn pair(idle: u8) -> ((Shm, LinkId), (Shm, LinkId), Vec<(Shm, Count)>) {
    let (mut a, mut b) = (device(), device());
    let (mut sink_a, mut sink_b) = (Count::default(), Count::default());
    let mut others = Vec::new();
    for _ in 0..idle {
        let mut other = (device(), Count::default());
        other.0.connect(&a.name()).unwrap();
        other.0.connect(&b.name()).unwrap();
        while other.1.up.len() < 2 {
            a.poll(&mut sink_a);
            b.poll(&mut sink_b);
            other.0.poll(&mut other.1);
        }
        others.push(other);
    }
    let near = a.connect(&b.name()).unwrap();
    let before = sink_b.up.len();
    while !sink_a.up.contains(&near) || sink_b.up.len() == before {
        a.poll(&mut sink_a);
        b.poll(&mut sink_b);
    }
    let far = *sink_b.up.last().unwrap();
    ((a, near), (b, far), others)
}

/// Pins the calling thread to a processor.
fn pin(cpu: usize) {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..1024).filter(|&cpu| allowed.is_set(cpu)).collect();
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpus[cpu % cpus.len()]);
    rustix::thread::sched_setaffinity(None, &one).unwrap();
}

/// Runs `there` on the second processor and `here` on the first. Both get a flag that is set at the deadline.
fn both<T: Send, U: Send>(
    seconds: f64,
    here: impl FnOnce(&AtomicBool) -> T + Send,
    there: impl FnOnce(&AtomicBool) -> U + Send,
) -> (T, U) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            pin(1);
            there(&stop)
        });
        let first = scope.spawn(|| {
            pin(0);
            here(&stop)
        });
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        (first.join().unwrap(), second.join().unwrap())
    })
}

const ROUND: u64 = 1_000;

/// Half a round trip of a bare word, in ns.
fn bare_ns(seconds: f64) -> f64 {
    #[repr(align(128))]
    struct Word(AtomicU64);
    let words = [Word(AtomicU64::new(0)), Word(AtomicU64::new(0))];
    both(
        seconds,
        |stop| {
            let mut best = f64::MAX;
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                for _ in 0..ROUND {
                    n += 1;
                    words[0].0.store(n, Ordering::Release);
                    while words[1].0.load(Ordering::Acquire) != n {}
                }
                best = best.min(start.elapsed().as_nanos() as f64 / (2 * ROUND) as f64);
            }
            words[0].0.store(u64::MAX, Ordering::Release);
            best
        },
        |_| {
            let mut seen = 0;
            while seen != u64::MAX {
                let now = words[0].0.load(Ordering::Acquire);
                if now != seen {
                    seen = now;
                    words[1].0.store(now, Ordering::Release);
                }
            }
        },
    )
    .0
}

/// Half a round trip of a message with `head` + `body` bytes, in ns.
fn ping_pong_ns(seconds: f64, head: usize, body: usize, idle: u8) -> f64 {
    let ((mut a, near), (mut b, far), _others) = pair(idle);
    let head = &vec![1u8; head][..];
    let (mut mine, mut theirs) = (Owned::new(vec![1; body]), Owned::new(vec![1; body]));
    let (mine, theirs) = (mine.iov(), theirs.iov());
    let over = &AtomicBool::new(false);
    both(
        seconds,
        move |stop| {
            let mut sink = Count::default();
            let mut best = f64::MAX;
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                for _ in 0..ROUND {
                    a.send(near, head, &[mine]).unwrap();
                    let target = sink.messages + 1;
                    while sink.messages < target {
                        a.poll(&mut sink);
                    }
                }
                best = best.min(start.elapsed().as_nanos() as f64 / (2 * ROUND) as f64);
            }
            over.store(true, Ordering::Relaxed);
            best
        },
        move |_| {
            let mut sink = Count::default();
            let mut answered = 0;
            while !over.load(Ordering::Relaxed) {
                b.poll(&mut sink);
                if sink.messages > answered {
                    answered += 1;
                    b.send(far, head, &[theirs]).unwrap();
                }
            }
        },
    )
    .0
}

/// Rate of messages in one direction, in millions per second.
fn stream_mps(seconds: f64, head: usize, body: usize) -> f64 {
    let ((mut a, near), (mut b, _far), _others) = pair(0);
    let head = &vec![1u8; head][..];
    let mut mine = Owned::new(vec![1; body]);
    let mine = mine.iov();
    let over = &AtomicBool::new(false);
    let mut sink = Count::default();
    both(
        seconds,
        move |_| {
            while !over.load(Ordering::Relaxed) {
                if a.send(near, head, &[mine]).is_err() {
                    a.poll(&mut sink);
                }
            }
        },
        move |stop| {
            let (mut best, mut sink) = (0.0, Count::default());
            while !stop.load(Ordering::Relaxed) {
                let (start, from) = (Instant::now(), sink.messages);
                while sink.messages < from + 10 * ROUND {
                    b.poll(&mut sink);
                }
                let rate = (sink.messages - from) as f64 / start.elapsed().as_secs_f64() / 1e6;
                best = f64::max(best, rate);
            }
            over.store(true, Ordering::Relaxed);
            best
        },
    )
    .1
}

/// Duration of a transfer of `size` bytes, in microseconds. Transfers follow one another.
fn bulk_us(seconds: f64, size: usize, get: bool) -> f64 {
    let ((mut a, near), (mut b, _far), _others) = pair(0);
    let (mut mine, mut theirs) = (Owned::new(vec![1; size]), Owned::new(vec![2; size]));
    let (mine, theirs) = (mine.iov(), theirs.iov());
    let remote = [RemoteIov { addr: theirs.addr(), len: size as u64 }];
    let over = &AtomicBool::new(false);
    both(
        seconds,
        move |stop| {
            let mut sink = Count::default();
            let mut best = f64::MAX;
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                for _ in 0..20 {
                    let target = sink.done + 1;
                    let arrived = sink.messages + 1;
                    if get {
                        a.copy(near, &DirectCopy::get(&[mine], &remote, 0)).unwrap();
                    } else {
                        a.push(near, 0, 0, &[mine], 0).unwrap();
                    }
                    while sink.done < target || !(get || sink.messages >= arrived) {
                        a.poll(&mut sink);
                    }
                }
                best = best.min(start.elapsed().as_nanos() as f64 / 20_000.0);
            }
            over.store(true, Ordering::Relaxed);
            best
        },
        move |_| {
            let mut sink = Count { window: [theirs].into_iter().collect(), ..Count::default() };
            while !over.load(Ordering::Relaxed) {
                b.poll(&mut sink);
                if sink.bytes >= size as u64 {
                    sink.bytes -= size as u64;
                    b.send(LinkId(0), &[1], &[]).unwrap();
                }
            }
        },
    )
    .0
}

fn main() {
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(0.3);
    let bare = bare_ns(seconds);
    println!("bare cache line, half round trip        {bare:8.1} ns");
    for (head, body, idle) in [
        (8, 0, 0),
        (32, 8, 0),
        (32, 24, 0),
        (32, 64, 0),
        (32, 128, 0),
        (32, 200, 0),
        (32, 256, 0),
        (32, 400, 0),
        (32, 1024, 0),
        (32, 8, 20),
    ] {
        let ns = ping_pong_ns(seconds, head, body, idle);
        println!("half round trip {head:3} + {body:5} B, {idle:2} idle    {ns:8.1} ns   {:5.2} bare", ns / bare);
    }
    for (head, body) in [(8, 0), (32, 8), (32, 64), (32, 1024), (32, 4096), (32, 16384)] {
        let rate = stream_mps(seconds, head, body);
        println!(
            "stream          {head:3} + {body:5} B            {rate:8.2} M/s  {:7.2} GB/s",
            rate * (head + body) as f64 / 1e3
        );
    }
    for size in [65_536, 262_144, 1 << 20, 4 << 20] {
        let (push, get) = (bulk_us(seconds, size, false), bulk_us(seconds, size, true));
        println!("{size:9} B: push {push:8.1} us  get {get:8.1} us   {:5.2}", push / get);
    }
}
