//! Active messages between two engines over the devices that ship: their bytes, their replies, and their credits.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_engine::Engine;
use weft_engine::am::{ActiveHandler, ActiveHead, ActiveMessage, Answer, MAX_HEAD, body_limit};
use weft_engine::api::{Addr, AddressBook, Config, Error};
use weft_engine::mem::Owned;
use weft_engine::name::EpName;
use weft_engine::nic::LinkError;
use weft_nic::{Device, Devices};

#[derive(Debug)]
struct Names([EpName; 2]);

impl AddressBook for Names {
    fn name(&self, addr: Addr) -> Option<EpName> {
        self.0.get(usize::try_from(addr).ok()?).copied()
    }
    fn addr(&self, name: &EpName) -> Option<Addr> {
        self.0.iter().position(|known| known.same_endpoint(name)).map(|at| at as Addr)
    }
}

/// Counts messages. The reply to a request has its bytes.
#[derive(Default)]
struct Echo {
    requests: Arc<AtomicU64>,
    replies: Arc<AtomicU64>,
    last: Arc<Mutex<Vec<u8>>>,
    lost: Arc<AtomicU64>,
}

impl ActiveHandler for Echo {
    fn arrived(&mut self, _source: Addr, reply: bool, head: &[u8], body: &[u8], answer: &mut Answer<'_>) {
        if reply {
            self.replies.fetch_add(1, Relaxed);
            let mut last = self.last.lock().unwrap();
            last.clear();
            last.extend_from_slice(head);
            last.extend_from_slice(body);
        } else {
            self.requests.fetch_add(1, Relaxed);
            answer.put(&mut ActiveHead::new(head), body);
        }
    }

    fn lost(&mut self, _source: Addr, _why: LinkError) {
        self.lost.fetch_add(1, Relaxed);
    }
}

struct Pair {
    engines: [Engine<Devices>; 2],
    echoes: [Echo; 2],
}

fn pair(shm: bool, active_window: u16) -> Pair {
    let listen = Some(([127, 0, 0, 1], 0).into());
    let config = weft_nic::Config { shm, tcp: !shm, listen, ..weft_nic::Config::default() };
    let engine = || Engine::new(Config { active_window, ..Config::default() }, Devices::new(&config).unwrap());
    let mut engines = [engine(), engine()];
    let names = Arc::new(Names([engines[0].name(), engines[1].name()]));
    let echoes = [Echo::default(), Echo::default()];
    for (engine, echo) in engines.iter_mut().zip(&echoes) {
        engine.bind_book(names.clone());
        let Echo { requests, replies, last, lost } = echo;
        let (requests, replies, last, lost) = (requests.clone(), replies.clone(), last.clone(), lost.clone());
        engine.set_active_handler(Box::new(Echo { requests, replies, last, lost }));
    }
    Pair { engines, echoes }
}

impl Pair {
    fn send(&mut self, from: usize, head: &[u8], body: &mut Owned) -> Result<(), Error> {
        let body = [body.iov()];
        let body = if body[0].is_empty() { &[][..] } else { &body[..] };
        let head = &mut ActiveHead::new(head);
        self.engines[from].send_active(&mut ActiveMessage { dest: 1 - from as Addr, reply: false, head, body })
    }

    fn turn(&mut self) {
        for engine in &mut self.engines {
            engine.progress();
        }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let patience = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            assert!(Instant::now() < patience, "no end");
            self.turn();
        }
    }
}

#[test]
fn replies_bring_the_bytes_back() {
    for shm in [true, false] {
        let mut pair = pair(shm, 1024);
        let limit = body_limit(Devices::least_mailbox_bytes());
        for (round, (head_len, len)) in
            [(0, 0), (8, 0), (8, 32), (MAX_HEAD, 1), (12, 1000), (MAX_HEAD, limit)].into_iter().enumerate()
        {
            let bytes: Vec<u8> = (0..head_len + len).map(|at| (at * 7 + round) as u8).collect();
            let mut body = Owned::new(bytes[head_len..].to_vec());
            pair.until(|pair| match pair.send(0, &bytes[..head_len], &mut body) {
                Ok(()) => true,
                Err(why) => {
                    assert_eq!(why, Error::Again);
                    false
                }
            });
            pair.until(|pair| pair.echoes[0].replies.load(Relaxed) == round as u64 + 1);
            assert_eq!(*pair.echoes[0].last.lock().unwrap(), bytes, "{head_len} and {len} bytes, shm: {shm}");
        }
        assert!(pair.engines[0].active_limit(1) >= limit);
        let mut long = Owned::new(vec![0; pair.engines[0].active_limit(1) + MAX_HEAD + 1]);
        assert_eq!(pair.send(0, &[], &mut long), Err(Error::TooLong));
    }
}

/// Both sides send whenever they may. Replies fill the devices, too.
#[test]
fn floods_in_both_directions_end() {
    const REQUESTS: u64 = 20_000;
    for (shm, window, len) in [(true, 8, 900), (true, 1024, 0), (false, 1024, 900), (false, 64, 4000)] {
        let mut pair = pair(shm, window);
        let mut bodies = [Owned::new(vec![1; len]), Owned::new(vec![2; len])];
        let mut sent = [0; 2];
        pair.until(|pair| {
            for (from, body) in bodies.iter_mut().enumerate() {
                while sent[from] < REQUESTS && pair.send(from, &[0; 8], body).is_ok() {
                    sent[from] += 1;
                }
            }
            pair.echoes.iter().all(|echo| echo.replies.load(Relaxed) == REQUESTS)
        });
        pair.until(|pair| pair.engines.iter().all(Engine::at_rest));
        assert!(pair.echoes.iter().all(|echo| echo.requests.load(Relaxed) == REQUESTS));
        assert!(pair.echoes.iter().all(|echo| echo.lost.load(Relaxed) == 0));
    }
}

/// The peer's end is reported, also with replies under way.
#[test]
fn the_end_of_a_peer_is_reported() {
    for shm in [true, false] {
        let mut pair = pair(shm, 1024);
        let mut body = Owned::new(vec![0; 500]);
        let mut sent = 0;
        pair.until(|pair| {
            sent += u32::from(pair.send(0, &[], &mut body).is_ok());
            sent == 200
        });
        pair.engines[1].shutdown();
        pair.until(|pair| pair.echoes[0].lost.load(Relaxed) > 0);
    }
}
