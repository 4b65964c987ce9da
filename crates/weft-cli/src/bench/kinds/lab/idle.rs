//! Idle peers: many endpoints in one process. Each exchanged one message with the measuring rank and stays connected.

use std::ops::Range;

use weft_client::Piece;

use crate::bench::child::{RankError, Session};
use crate::bench::job::Hello;
use crate::bench::port::{Port, open_domain};

const GREETING: u64 = 11;
const ANSWER: u64 = 12;

/// Slots of the greeting and of the answer: the last ones of a port.
pub(crate) const SLOTS: u32 = 2;
const OUT: Piece = Piece { offset: 1024, len: 8 };
const IN: Piece = Piece { offset: 1088, len: 8 };
/// Memory of an idle endpoint.
const BYTES: usize = 2048;
/// Interval at which an idle process polls its endpoints, in milliseconds.
const PAUSE_MS: i64 = 500;

/// Hosts `endpoints` idle peers of rank `hub`'s first endpoint.
pub(crate) fn host(session: &Session, endpoints: usize, hub: usize) -> Result<(), RankError> {
    let domain = open_domain(&session.job)?;
    let mut hello = Hello::default();
    let mut ports = Vec::new();
    for _ in 0..endpoints {
        let port = Port::open(&domain, BYTES, SLOTS, 1, session.job.wait)?;
        port.add_to(&mut hello);
        ports.push(port);
    }
    let hellos = session.exchange(hello)?;
    let hub = hellos.get(hub).ok_or(RankError::Failed("the hub's addresses are missing".to_owned()))?;
    for port in &mut ports {
        port.post(|ep| ep.tagged_recv(0, IN, GREETING, 0))?;
    }
    let mut waiting: Vec<usize> = (0..ports.len()).collect();
    while !waiting.is_empty() {
        let mut still = Vec::with_capacity(waiting.len());
        for at in waiting {
            let port = &mut ports[at];
            port.poll()?;
            if port.take(0) {
                let to = port.insert_peer(hub, 0)?.address;
                port.post(|ep| ep.tagged_send(1, OUT, to, ANSWER))?;
            } else {
                still.push(at);
            }
        }
        waiting = still;
        std::thread::yield_now();
    }
    session.linger(PAUSE_MS, || ports.iter_mut().try_for_each(|port| port.poll().map(|_| ())))
}

/// Exchanges a message with some endpoints of an idle process, one after the other, so that they are connected.
pub(crate) fn connect(port: &mut Port, idle: &Hello, which: Range<usize>) -> Result<(), RankError> {
    let (out_slot, in_slot) = (port.slots() - SLOTS, port.slots() - 1);
    for at in which {
        let to = port.insert_peer(idle, at)?.address;
        port.post(|ep| ep.tagged_recv(in_slot, IN, ANSWER, 0))?;
        port.post(|ep| ep.tagged_send(out_slot, OUT, to, GREETING))?;
        for slot in [out_slot, in_slot] {
            while !port.take(slot) {
                // There may be more processes than cores.
                if port.poll()? == 0 {
                    std::thread::yield_now();
                }
            }
        }
    }
    Ok(())
}
