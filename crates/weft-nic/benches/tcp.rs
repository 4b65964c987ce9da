//! Times of the TCP device over loopback, plain and encrypted, beside bare sockets in the same run.
//!
//! `cargo bench -p weft-nic --bench tcp [-- ROUNDS]`. Both ends run in one thread, so that the figures are processor
//! time without the scheduler. The contestants take turns. Each figure is the best of all rounds, because the machine
//! may be shared.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_precision_loss, missing_docs)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weft_engine::mem::{IovList, Owned};
use weft_engine::name::{NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};
use weft_nic::{Config, Devices, Tcp, TcpConfig};

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
    fn down(&mut self, _link: LinkId, _why: LinkError) {}
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

struct End<N> {
    nic: N,
    link: LinkId,
    sink: Count,
}

fn device(encrypt: bool) -> Tcp {
    let capability = weft_nic::handshake::random().unwrap();
    let parts = NameParts {
        socket: SocketAddr::from(([127, 0, 0, 1], 0)),
        host_id: 1,
        ep_id: endpoint_id(&capability),
        capability,
        context: None,
        shm: false,
        tcp: true,
    };
    Tcp::new(&TcpConfig::default().with(|config| config.encrypt = encrypt), &parts).unwrap()
}

/// Two endpoints and their links to each other.
fn join<N: Nic>(mut a: N, mut b: N) -> (End<N>, End<N>) {
    let (mut sink_a, mut sink_b) = (Count::default(), Count::default());
    let near = a.connect(&b.name()).unwrap();
    while sink_a.up.is_empty() || sink_b.up.is_empty() {
        a.poll(&mut sink_a);
        b.poll(&mut sink_b);
    }
    let far = sink_b.up[0];
    (End { nic: a, link: near, sink: sink_a }, End { nic: b, link: far, sink: sink_b })
}

fn raw_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
    }
    (near, far)
}

fn read_all(stream: &mut TcpStream, bytes: &mut [u8]) {
    let mut have = 0;
    while have < bytes.len() {
        match stream.read(&mut bytes[have..]) {
            Ok(n) => have += n,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn write_all(stream: &mut TcpStream, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

const TURNS: u32 = 300;

/// Nanoseconds per message.
fn raw_ping_pong(pair: &mut (TcpStream, TcpStream), size: usize) -> f64 {
    let bytes = vec![1; size];
    let [mut there, mut back] = [vec![0; size], vec![0; size]];
    let start = Instant::now();
    for _ in 0..TURNS {
        write_all(&mut pair.0, &bytes);
        read_all(&mut pair.1, &mut there);
        write_all(&mut pair.1, &bytes);
        read_all(&mut pair.0, &mut back);
    }
    per_message(start, 2 * TURNS)
}

fn ping_pong<N: Nic>(a: &mut End<N>, b: &mut End<N>, size: usize) -> f64 {
    let head = vec![1; size];
    let start = Instant::now();
    for _ in 0..TURNS {
        hand_over(a, b, &head);
        hand_over(b, a, &head);
    }
    per_message(start, 2 * TURNS)
}

fn hand_over<N: Nic>(from: &mut End<N>, to: &mut End<N>, bytes: &[u8]) {
    let before = to.sink.messages;
    from.nic.send(from.link, bytes, &[]).unwrap();
    from.nic.flush();
    while to.sink.messages == before {
        to.nic.poll(&mut to.sink);
        to.nic.flush();
    }
}

/// Nanoseconds per message of bursts, each of which is received completely before the next.
fn raw_stream(pair: &mut (TcpStream, TcpStream), size: usize, burst: u32) -> f64 {
    let one = vec![1; size];
    let mut all = vec![0; size * burst as usize];
    let start = Instant::now();
    for _ in 0..TURNS {
        for _ in 0..burst {
            write_all(&mut pair.0, &one);
        }
        read_all(&mut pair.1, &mut all);
    }
    per_message(start, burst * TURNS)
}

fn stream<N: Nic>(a: &mut End<N>, b: &mut End<N>, size: usize, burst: u32) -> f64 {
    let head = vec![1; size];
    let start = Instant::now();
    for _ in 0..TURNS {
        let before = b.sink.messages;
        for _ in 0..burst {
            a.nic.send(a.link, &head, &[]).unwrap();
        }
        a.nic.flush();
        while b.sink.messages < before + u64::from(burst) {
            b.nic.poll(&mut b.sink);
            b.nic.flush();
        }
    }
    per_message(start, burst * TURNS)
}

fn per_message(start: Instant, messages: u32) -> f64 {
    start.elapsed().as_nanos() as f64 / f64::from(messages)
}

/// Nanoseconds for carrying the bytes of one buffer to another.
fn raw_bulk(pair: &mut (TcpStream, TcpStream), source: &[u8], target: &mut [u8]) -> f64 {
    let start = Instant::now();
    let (mut sent, mut have) = (0, 0);
    while have < target.len() {
        if sent < source.len() {
            sent += pair.0.write(&source[sent..]).unwrap_or(0);
        }
        have += pair.1.read(&mut target[have..]).unwrap_or(0);
    }
    per_message(start, 1)
}

/// Nanoseconds for carrying the bytes of one buffer to another by a push.
fn bulk(a: &mut End<Tcp>, b: &mut End<Tcp>, source: &mut Owned, target: &mut Owned) -> f64 {
    let start = Instant::now();
    let before = b.sink.bytes;
    b.sink.window = IovList::from_slice(&[target.iov()]);
    a.nic.push(a.link, 1, 0, &[source.iov()], 0).unwrap();
    while b.sink.bytes < before + target.iov().len() as u64 {
        a.nic.flush();
        a.nic.poll(&mut a.sink);
        b.nic.poll(&mut b.sink);
    }
    per_message(start, 1)
}

/// The cost of an idle TCP device for an endpoint that uses shared memory.
fn beside_shm(tcp: bool, tcp_links: usize, rounds: u32) -> f64 {
    let config = Config { tcp, listen: Some("127.0.0.1:0".parse().unwrap()), ..Config::default() };
    let open = || Devices::new(&config).unwrap();
    let (mut a, mut b) = join(open(), open());
    let others: Vec<_> = (0..tcp_links)
        .map(|_| {
            let mut other = Devices::new(&Config { shm: false, ..config.clone() }).unwrap();
            let mut sink = Count::default();
            other.connect(&a.nic.name()).unwrap();
            while sink.up.is_empty() {
                other.poll(&mut sink);
                a.nic.poll(&mut a.sink);
            }
            other
        })
        .collect();
    let deadline = Instant::now() + Duration::from_millis(u64::from(rounds));
    let mut best = f64::MAX;
    while Instant::now() < deadline {
        best = best.min(ping_pong(&mut a, &mut b, 8));
    }
    drop(others);
    best
}

fn main() {
    let rounds: u32 = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(30);
    println!("{:<34}{:>10}{:>10}{:>8}{:>11}{:>8}", "", "bare", "weft", "ratio", "encrypted", "ratio");
    let row = |what: &str, bare: f64, weft: f64| println!("{what:<34}{bare:>10.0}{weft:>10.0}{:>8.2}", weft / bare);
    let rows = |what: &str, bare: f64, weft: f64, secret: f64| {
        println!("{what:<34}{bare:>10.0}{weft:>10.0}{:>8.2}{secret:>11.0}{:>8.2}", weft / bare, secret / weft);
    };
    let mut raw = raw_pair();
    let (mut a, mut b) = join(device(false), device(false));
    let (mut c, mut d) = join(device(true), device(true));
    for size in [1, 64, 1024, 4096, 16_384, 65_536] {
        let (mut bare, mut weft, mut secret) = (f64::MAX, f64::MAX, f64::MAX);
        for _ in 0..rounds {
            bare = bare.min(raw_ping_pong(&mut raw, size));
            weft = weft.min(ping_pong(&mut a, &mut b, size));
            secret = secret.min(ping_pong(&mut c, &mut d, size));
        }
        rows(&format!("ping-pong, {size} B, ns"), bare, weft, secret);
    }
    for size in [8, 256, 4096] {
        let (mut bare, mut weft, mut secret) = (f64::MAX, f64::MAX, f64::MAX);
        for _ in 0..rounds.div_ceil(4) {
            bare = bare.min(raw_stream(&mut raw, size, 32));
            weft = weft.min(stream(&mut a, &mut b, size, 32));
            secret = secret.min(stream(&mut c, &mut d, size, 32));
        }
        rows(&format!("bursts of 32, {size} B, ns"), bare, weft, secret);
    }
    for size in [65_536, 1 << 20, 16 << 20] {
        let (mut bare, mut weft, mut secret) = (f64::MAX, f64::MAX, f64::MAX);
        let (mut source, mut target) = (Owned::new(vec![1; size]), Owned::new(vec![0; size]));
        let (raw_source, mut raw_target) = (vec![1; size], vec![0; size]);
        for _ in 0..rounds * 4 {
            bare = bare.min(raw_bulk(&mut raw, &raw_source, &mut raw_target));
            weft = weft.min(bulk(&mut a, &mut b, &mut source, &mut target));
            secret = secret.min(bulk(&mut c, &mut d, &mut source, &mut target));
        }
        rows(&format!("transfer, {} KiB, ns", size / 1024), bare, weft, secret);
    }
    let alone = beside_shm(false, 0, rounds * 10);
    row("shm with TCP off | on, ns", alone, beside_shm(true, 0, rounds * 10));
    row("shm with TCP off | 3 links, ns", alone, beside_shm(true, 3, rounds * 10));
}
