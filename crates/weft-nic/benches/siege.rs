//! The cost of an attack on an endpoint for its peers. Two endpoints play round trips while a third party
//! attacks, and in quiet moments of the same run. `cargo bench -p weft-nic --bench siege`; `tests/siege.rs`
//! makes a short run of each row.
//!
//! One thread drives both endpoints and another attacks, so two processors suffice. Moments of attack and of
//! quiet alternate, and their medians are compared, by two measures. The time on the clock includes the work
//! of other programs. The processor time that the endpoints spend on a round trip does not. The attacker
//! makes at most [`RATE`] strikes per second, because the cost of more is mostly the kernel's.
//!
//! Each row requires evidence of its attack (half-open connections, denied proofs, protocol violations), and
//! fails otherwise. Messages of the peers are compared byte for byte. A row whose time on the clock exceeds
//! [`LIMIT`] is marked, and the program then exits with 1.
#![allow(clippy::unwrap_used, missing_docs, dead_code, unreachable_pub)]

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use weft_engine::mem::IovList;
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};
use weft_nic::shm::{Shm, ShmConfig};
use weft_nic::{Tcp, TcpConfig, handshake};

#[path = "../tests/tcp/raw.rs"]
mod raw;

/// Maximum number of strikes per second.
const RATE: u32 = 3000;
/// Number of connections that the attacker keeps open.
const HELD: usize = 300;
/// Number of connections that send a byte now and then, about 20 per second each.
const SLOW: usize = 100;
/// Maximum ratio of the peers' times on the clock, with and without an attack.
const LIMIT: f64 = 1.2;
/// Maximum time that a row waits for its evidence.
const PATIENCE: Duration = Duration::from_secs(60);
/// The environment variable with the name of the endpoint that the hostile process attacks over shared
/// memory.
const TARGET: &str = "WEFT_SIEGE_TARGET";

/// The size of a run.
pub struct Scale {
    /// Minimum number of moments of attack, and of quiet.
    pub moments: usize,
    pub moment: Duration,
    /// Minimum amount of evidence.
    pub least: u64,
    /// Number of connections in the row with many, and the number of them that stay open.
    pub many: usize,
    pub open: usize,
}

#[derive(Default)]
struct Ears {
    up: Vec<LinkId>,
    /// The link between the peers, and the byte of which its next message consists.
    mine: Option<LinkId>,
    awaited: u8,
    messages: usize,
    /// Number of other links that broke the protocol.
    breaches: u64,
}

impl Sink for Ears {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, _: LinkUp) {
        self.up.push(link);
    }
    fn down(&mut self, link: LinkId, why: LinkError) {
        assert_ne!(self.mine, Some(link), "the peers' link has ended: {why}");
        self.breaches += u64::from(why == LinkError::Protocol);
    }
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        if self.mine == Some(link) {
            assert_eq!(bytes, [self.awaited; 64]);
            self.messages += 1;
        }
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

/// Plays round trips until `end`. Returns the duration of one in nanoseconds, on the clock and in processor
/// time.
fn play<N: Nic>(pair: &mut [(N, Ears); 2], links: [LinkId; 2], end: Instant) -> [f64; 2] {
    let (start, work) = (Instant::now(), worked());
    let mut rounds = 0_u32;
    while Instant::now() < end {
        for (from, to) in [(0, 1), (1, 0)] {
            let byte = rounds.to_le_bytes()[0];
            pair[to].1.awaited = byte;
            while pair[from].0.send(links[from], &[byte; 64], &[]).is_err() {
                let (nic, ears) = &mut pair[from];
                nic.poll(ears);
            }
            pair[from].0.flush();
            let heard = pair[to].1.messages;
            while pair[to].1.messages == heard {
                let (nic, ears) = &mut pair[to];
                nic.poll(ears);
                // The owner of the sending device polls it, too.
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

/// The properties of a row, without the attacker's strike.
struct Row<'a, N> {
    name: &'a str,
    /// Number of connections that are kept open, and minimum number of strikes.
    held: usize,
    made: usize,
    /// The evidence of the attack at the attacked endpoint.
    shown: fn(&N, &Ears) -> u64,
}

impl<N> Row<'_, N> {
    fn new(name: &str, shown: fn(&N, &Ears) -> u64) -> Row<'_, N> {
        Row { name, held: HELD, made: 0, shown }
    }
}

/// Ends the attack on drop, also when the peers panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connects the two devices. Returns their numbers of the link.
fn link<N: Nic>(pair: &mut [(N, Ears); 2]) -> [LinkId; 2] {
    let peer = pair[1].0.name();
    let near = pair[0].0.connect(&peer).unwrap();
    while pair.iter().any(|(_, ears)| ears.up.is_empty()) {
        for (nic, ears) in &mut *pair {
            nic.poll(ears);
        }
    }
    let links = [near, pair[1].1.up[0]];
    for (side, mine) in pair.iter_mut().zip(links) {
        side.1.mine = Some(mine);
    }
    links
}

/// Plays one row: alternating quiet and attacked moments. The attacker's n-th strike at the first endpoint is
/// `strike`, whose result stays open. Returns the ratio of the times on the clock.
fn play_row<N: Nic, C: Send>(
    scale: &Scale,
    row: &Row<'_, N>,
    [a, b]: [N; 2],
    mut strike: impl FnMut(usize) -> Option<C> + Send,
) -> f64 {
    let mut pair = [(a, Ears::default()), (b, Ears::default())];
    let links = link(&mut pair);
    let (attack, over, made) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let (mut evidence, mut moments) = (0, [Vec::new(), Vec::new()]);
    thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            let mut held = VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                if attack.load(Ordering::Relaxed)
                    && let Some(stays) = strike(made.load(Ordering::Relaxed))
                {
                    made.fetch_add(1, Ordering::Relaxed);
                    held.push_back(stays);
                    held.drain(..held.len().saturating_sub(row.held));
                }
                thread::sleep(Duration::from_secs(1) / RATE);
            }
        });
        let end = Over(&over);
        let start = Instant::now();
        for moment in 0.. {
            let enough = evidence >= scale.least && made.load(Ordering::Relaxed) >= row.made;
            if moment >= 2 * scale.moments && (enough || start.elapsed() > PATIENCE) {
                break;
            }
            attack.store(moment % 2 == 1, Ordering::Relaxed);
            moments[moment % 2].push(play(&mut pair, links, Instant::now() + scale.moment));
            evidence = evidence.max((row.shown)(&pair[0].0, &pair[0].1));
        }
        drop(end);
        // The last strike may wait for an answer.
        while !attacker.is_finished() {
            for (nic, ears) in &mut pair {
                nic.poll(ears);
            }
        }
    });
    let (made, attacked) = (made.into_inner(), moments[1].len());
    assert!(evidence >= scale.least && made >= row.made, "{}: {evidence} seen of {made} strikes", row.name);
    let [quiet, busy] = moments.map(|moments| medians(&moments));
    #[allow(clippy::cast_precision_loss)]
    let rate = made as f64 / (attacked as f64 * scale.moment.as_secs_f64());
    let ratios = [0, 1].map(|of| busy[of] / quiet[of]);
    let mark = if ratios[0] > LIMIT { "  above the limit" } else { "" };
    println!(
        "{:40} {:10.0} {:10.0} {:7.2} {:7.2} {rate:10.0}{mark}",
        row.name, quiet[0], busy[0], ratios[0], ratios[1]
    );
    ratios[0]
}

fn tcp() -> [Tcp; 2] {
    [(); 2].map(|()| Tcp::new(&TcpConfig::default(), &parts()).unwrap())
}

fn stranger() -> EpName {
    EpName::full(&parts())
}

/// A strike that connects and sends bytes, regardless of the endpoint's answer.
fn says(target: EpName, what: impl Fn(usize) -> Vec<u8> + Send) -> impl FnMut(usize) -> Option<TcpStream> + Send {
    move |n| {
        let mut stream = TcpStream::connect(target.socket()).ok()?;
        let _ = stream.write_all(&what(n));
        Some(stream)
    }
}

/// Rows of strangers that send nothing, or nothing valid.
fn strangers(scale: &Scale) -> Vec<f64> {
    let half_open: fn(&Tcp, &Ears) -> u64 = |nic, _| nic.stats().half_open as u64;
    let mut ratios = Vec::new();
    let mut row = |row: &Row<'_, Tcp>, what: &(dyn Fn(usize, &EpName) -> Vec<u8> + Sync)| {
        let pair = tcp();
        let target = pair[0].name();
        ratios.push(play_row(scale, row, pair, says(target, move |n| what(n, &target))));
    };
    row(&Row::new("tcp, silent connections", half_open), &|_, _| Vec::new());
    row(&Row::new("tcp, garbage", |nic, _| nic.stats().refused), &|n, _| vec![n.to_le_bytes()[0]; 200]);
    row(&Row::new("tcp, half a hello", half_open), &|_, _| b"weft-tcp\x02\x01".to_vec());
    row(&Row::new("tcp, good hello, no proof", half_open), &|_, target| raw::hello(&stranger(), target).to_vec());
    // The attacker knows all of the endpoint's name except the capability.
    row(&Row::new("tcp, good hello, wrong proof", |nic, _| nic.stats().denied), &|_, target| {
        [&raw::hello(&stranger(), target)[..], &[9; raw::FINISH]].concat()
    });
    let name = format!("tcp, {} connections, {} open", scale.many, scale.open);
    row(&Row { name: &name, held: scale.open, made: scale.many, shown: half_open }, &|_, _| Vec::new());
    ratios
}

/// A row that repeats the frames of an honest initiator.
fn replayed(scale: &Scale) -> f64 {
    let pair = tcp();
    let target = pair[0].name();
    let mut recorded: Option<Vec<u8>> = None;
    play_row(scale, &Row::new("tcp, replayed handshake", |nic: &Tcp, _| nic.stats().denied), pair, move |_| {
        let mut stream = raw::dial(target.socket());
        if let Some(recorded) = &recorded {
            let _ = stream.write_all(recorded);
            return Some(stream);
        }
        let me = stranger();
        let hello = raw::hello(&me, &target);
        stream.write_all(&hello).unwrap();
        let mut answer = [0; raw::ANSWER];
        stream.read_exact(&mut answer).unwrap();
        let finish = raw::finish(&me, &handshake::Key::new(&target.capability(), None), &hello, &answer);
        stream.write_all(&finish).unwrap();
        let mut verdict = [9; raw::VERDICT];
        stream.read_exact(&mut verdict).unwrap();
        assert_eq!(verdict[0], 0, "the recorded handshake is valid");
        recorded = Some([&hello[..], &finish].concat());
        Some(stream)
    })
}

/// A row with peers that join correctly, and send headers with wrong lengths.
fn wild_lengths(scale: &Scale) -> f64 {
    let pair = tcp();
    let target = pair[0].name();
    let head = |len: u32, kind: u8| [&len.to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
    let wild =
        [head(u32::MAX, 1), head(1 << 31, 1), head(65_793, 1), head(u32::MAX, 2), raw::segment(1, u64::MAX, b"xx")];
    play_row(scale, &Row::new("tcp, wild lengths", |_: &Tcp, ears| ears.breaches), pair, move |n| {
        let mut stream = raw::join(&stranger(), &target);
        let _ = stream.write_all(&wild[n % wild.len()]);
        Some(stream)
    })
}

/// A row with hellos and wrong finishes that arrive byte by byte.
fn slow(scale: &Scale) -> f64 {
    let pair = tcp();
    let target = pair[0].name();
    let mut slow: Vec<Option<(TcpStream, VecDeque<u8>)>> = (0..SLOW).map(|_| None).collect();
    play_row(scale, &Row::new("tcp, slow-loris", |nic: &Tcp, _| nic.stats().half_open as u64), pair, move |n| {
        let place = &mut slow[n % SLOW];
        if place.is_none() {
            let stream = TcpStream::connect(target.socket()).ok()?;
            let words = [&raw::hello(&stranger(), &target)[..], &[9; raw::FINISH]].concat();
            *place = Some((stream, words.into()));
        }
        let said = place.as_mut().map(|(stream, words)| stream.write_all(&[words.pop_front()?]).ok());
        if said.flatten().is_none() {
            *place = None;
        }
        Some(())
    })
}

fn shm() -> [Shm; 2] {
    [(); 2].map(|()| Shm::new(&ShmConfig::default(), stranger()).unwrap())
}

/// A row with a process of the same user that connects and sends nothing.
fn silent_neighbour(scale: &Scale) -> f64 {
    let pair = shm();
    let id: String = pair[0].name().ep_id().iter().map(|byte| format!("{byte:02x}")).collect();
    let address = SocketAddrUnix::new_abstract_name(format!("weft-{id}").as_bytes()).unwrap();
    // The device does not show its handshakes, so the evidence is always complete; failed connections are not
    // counted.
    let row =
        Row { made: usize::try_from(scale.least).unwrap(), ..Row::new("shm, silent connections", |_, _| u64::MAX) };
    play_row(scale, &row, pair, move |_| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        rustix::net::connect(&socket, &address).ok()?;
        Some(socket)
    })
}

/// A row with a peer that overwrites the memory that it shares with the endpoint. The peer is [`overwrite`]
/// in another process: `program` with the variable [`TARGET`]. Each byte that it reads is a strike.
fn overwritten(scale: &Scale, mut program: Command) -> f64 {
    let pair = shm();
    let target: String = pair[0].name().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut child = program.env(TARGET, target).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut orders = child.stdin.take().unwrap();
    let row = Row::new("shm, rings and headers overwritten", |_: &Shm, ears| ears.breaches);
    let ratio = play_row(scale, &row, pair, move |_| orders.write_all(&[1]).ok());
    assert!(child.wait().unwrap().success(), "the hostile peer has failed");
    ratio
}

/// Plays the hostile peer, if [`TARGET`] is set. It makes a link, writes random words to control words and
/// rings for each strike, and then makes the next link. Returns whether the variable is set.
pub fn overwrite() -> bool {
    /// Number of strikes per link, and of words per strike.
    const STRIKES: usize = 32;
    const WORDS: usize = 64;
    let Ok(target) = std::env::var(TARGET) else { return false };
    let target: Vec<u8> =
        (0..target.len()).step_by(2).map(|at| u8::from_str_radix(&target[at..at + 2], 16).unwrap()).collect();
    let target = EpName::parse(&target).unwrap();
    let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let mut random = weft_fuzz::Random(1);
    let mut orders = [0; 1 << 16];
    loop {
        let (mut nic, mut ears) = (Shm::new(&ShmConfig::default(), stranger()).unwrap(), Ears::default());
        nic.connect(&target).unwrap();
        let start = Instant::now();
        while ears.up.is_empty() {
            // The endpoint ends when all rows are done.
            if start.elapsed() > Duration::from_secs(5) {
                return true;
            }
            nic.poll(&mut ears);
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let map = maps.lines().find(|line| line.contains("memfd:weft-pair")).unwrap();
        let (from, to) = map.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        for _ in 0..STRIKES {
            // Queued orders count as one strike, so that none falls in a quiet moment.
            if std::io::stdin().read(&mut orders).unwrap() == 0 {
                return true;
            }
            for _ in 0..WORDS {
                // Half of the words are plausible headers in the first lines. The others are in the control
                // words, in the first lines, or anywhere.
                let (at, word) = if random.below(2) == 0 {
                    let line = random.bits() % 8;
                    (4096 + line * 64, (1 + random.bits() % 3) << 56 | (random.bits() % 40_000) << 32 | line)
                } else {
                    let len = [1024, 8192, to - from][random.below(3)];
                    (random.bits() % (len / 8) * 8, random.bits())
                };
                memory.write_all_at(&word.to_le_bytes(), from + at).unwrap();
            }
        }
    }
}

/// Plays all rows, and returns the ratios of the times on the clock. `peer` is the program of the hostile
/// peer.
pub fn run(scale: &Scale, peer: Command) -> Vec<f64> {
    println!(
        "{:40} {:>10} {:>10} {:>7} {:>7} {:>10}",
        "round trip, 64 B", "quiet ns", "attack ns", "ratio", "work", "strikes/s"
    );
    let mut ratios = strangers(scale);
    ratios.extend([
        replayed(scale),
        wild_lengths(scale),
        slow(scale),
        silent_neighbour(scale),
        overwritten(scale, peer),
    ]);
    ratios
}

fn main() -> ExitCode {
    if overwrite() {
        return ExitCode::SUCCESS;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    // Both ends belong to this process, but the endpoint keeps few of its descriptors.
    let room = limit.maximum.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let many = 10_000;
    let open = many.min(room.saturating_sub(1000));
    let scale = Scale { moments: 40, moment: Duration::from_millis(100), least: 50, many, open };
    let ratios = run(&scale, Command::new(std::env::current_exe().unwrap()));
    ExitCode::from(u8::from(ratios.iter().any(|&ratio| ratio > LIMIT)))
}
