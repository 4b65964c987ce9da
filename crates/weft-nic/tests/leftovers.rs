//! Many short connections over real sockets, each of which leaves something behind, do not close an endpoint to others.
//! The strangers are written from docs/protocol.md.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs, unreachable_pub, dead_code)]

#[path = "tcp/raw.rs"]
mod raw;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weft_engine::Engine;
use weft_engine::api::Config;
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_nic::Devices;

/// The limit of strangers, and the number of those that come.
const PLACES: usize = 32;
const VISITORS: usize = 300;

fn stranger() -> EpName {
    let capability = weft_nic::handshake::random().unwrap();
    let socket = SocketAddr::from(([127, 0, 0, 1], 1));
    let ep_id = endpoint_id(&capability);
    EpName::full(&NameParts { socket, host_id: 0, ep_id, capability, context: None, shm: false, tcp: true })
}

/// A message of the engine in a frame: its kind, flags and number, and the body.
fn message(kind: u8, flags: u8, number: u32, body: &[u8]) -> Vec<u8> {
    raw::frame(1, &[&[kind, flags, 0, 0][..], &number.to_le_bytes(), body].concat())
}

/// Makes a link, up to the peer's answer to OPEN. Returns the kind of that answer, with the bytes behind its head.
fn open(target: &EpName) -> (TcpStream, u8, Vec<u8>) {
    let mut stream = raw::join(&stranger(), target);
    let words = [3_u64 | 1 << 32, 1 << 20].map(u64::to_le_bytes).concat();
    stream.write_all(&message(0, 0, 0, &words)).unwrap();
    let mut head = [0; 8];
    loop {
        stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize];
        stream.read_exact(&mut body).unwrap();
        if head[4] == 1 {
            return (stream, body[0], body.split_off(8));
        }
    }
}

/// Says goodbye, and waits for the end of the connection.
fn leave(mut stream: TcpStream) {
    stream.write_all(&raw::frame(3, &[])).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let _ = raw::has_ended(&mut stream);
}

/// Runs an endpoint that is open to strangers while `visitors` do their work.
fn besieged(visitors: impl FnOnce(EpName) + Send) -> Engine<Devices> {
    let listen = Some(([127, 0, 0, 1], 0).into());
    let device = Devices::new(&weft_nic::Config { shm: false, listen, ..weft_nic::Config::default() }).unwrap();
    let target = weft_engine::nic::Nic::name(&device);
    let mut hub = Engine::new(Config { max_strangers: PLACES, ..Config::default() }, device);
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            visitors(target);
            done.store(true, Ordering::SeqCst);
        });
        let patience = Instant::now() + Duration::from_secs(60);
        while !done.load(Ordering::SeqCst) {
            hub.progress();
            assert!(Instant::now() < patience, "the visitors wait");
        }
    });
    hub
}

/// Messages that no client receives, withdrawals from unknown collectives, and messages of unknown joins.
#[test]
fn leftovers_of_departed_strangers_close_no_endpoint() {
    let (join, withdrawal) = (1_u64 << 63, (1_u64 << 14) - 1);
    let leftovers: [(&str, u8, u64, usize); 3] =
        [("messages", 1, 7, PLACES), ("withdrawals", 1 | 64, join | withdrawal, 0), ("joins", 1 | 64, join, 0)];
    for (what, flags, tag, kept) in leftovers {
        let hub = besieged(move |target| {
            for number in 0..VISITORS as u64 {
                let (mut stream, answer, _) = open(&target);
                assert_eq!(answer, 1, "{what}: stranger {number} is refused");
                stream.write_all(&message(8, flags, 0, &(tag | number << 14).to_le_bytes())).unwrap();
                leave(stream);
            }
            let (stream, answer, _) = open(&target);
            assert_eq!(answer, 1, "{what}: an honest stranger is refused");
            leave(stream);
        });
        assert!(hub.unexpected_messages() <= kept, "{what}");
        assert!(hub.report().peers <= PLACES as u64 + 64, "{what}");
    }
}

/// Strangers that stay take all places. A further one is told the reason.
#[test]
fn a_stranger_without_a_place_is_told_so() {
    let tag = 7_u64.to_le_bytes();
    besieged(move |target| {
        let mut staying = Vec::new();
        for _ in 0..PLACES {
            let (mut stream, answer, _) = open(&target);
            assert_eq!(answer, 1);
            stream.write_all(&message(8, 1, 0, &tag)).unwrap();
            staying.push(stream);
        }
        let (mut stream, answer, body) = open(&target);
        assert_eq!((answer, &body[..2]), (6, &[3, 2][..]), "REFUSED by version 3, because it is crowded");
        assert!(raw::has_ended(&mut stream));
    });
}
