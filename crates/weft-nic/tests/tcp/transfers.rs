//! Bulk transfers: long pushes, small buffers, messages between segments.

use std::thread;
use std::time::{Duration, Instant};

use weft_engine::mem::Owned;
use weft_engine::nic::Nic;
use weft_nic::TcpConfig;

use super::suite::{Window, pattern};
use super::{config, while_running, world};

/// A push of 64 MiB between two threads arrives unchanged in every byte.
#[test]
fn a_long_push_arrives_intact() {
    const SIZE: usize = 64 << 20;
    let mut world = world(&config(), 2);
    let (near, _) = world.join_and_greet(0, 1);
    let bytes = pattern(11, SIZE);
    let mut memory = Owned::new(bytes.clone());
    world.nodes[1].inbox.windows.insert(1, Window::new(SIZE));
    world.nodes[0].push(near, 1, &[memory.iov()], 1).unwrap();
    let mut receiver = world.nodes.pop().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let other = thread::spawn(move || {
        while receiver.inbox.windows[&1].placed < SIZE {
            if receiver.poll() == 0 {
                thread::yield_now();
            }
            assert!(Instant::now() < deadline);
        }
        receiver
    });
    world.until("sent", |nodes| nodes[0].inbox.done.contains_key(&1));
    let mut receiver = while_running(&mut world, other);
    assert!(receiver.inbox.windows.get_mut(&1).unwrap().bytes() == bytes);
}

/// Socket buffers of a few kilobytes cut every frame many times on both sides.
#[test]
fn small_socket_buffers_cut_frames_anywhere() {
    let tiny = TcpConfig {
        send_buffer_bytes: Some(4608),
        receive_buffer_bytes: Some(2304),
        segment_bytes: 10_007,
        ..config()
    };
    let mut world = world(&tiny, 2);
    let (near, far) = world.join_and_greet(0, 1);
    let size = 300_000;
    let bytes = pattern(3, size);
    let mut memory = Owned::new(bytes.clone());
    for (node, id) in [(1, 1), (0, 2)] {
        world.nodes[node].inbox.windows.insert(id, Window::new(size));
    }
    world.nodes[0].push(near, 1, &[memory.iov()], 1).unwrap();
    world.nodes[1].push(far, 2, &[memory.iov()], 2).unwrap();
    let mut got = [0u64; 2];
    let mut sent = [0u64; 2];
    let length = |n: u64| 8 + (n * 7919 % 65_000) as usize;
    world.until("all", |nodes| {
        for (node, link) in [(0, near), (1, far)] {
            if sent[node] < 60 {
                let mut message = pattern(sent[node], length(sent[node]));
                message[..8].copy_from_slice(&sent[node].to_le_bytes());
                sent[node] += u64::from(nodes[node].send(link, 8, &message).is_ok());
            }
            for message in nodes[node].take_messages(link) {
                let n = got[node];
                assert_eq!(message[..8], n.to_le_bytes());
                assert!(message[8..] == pattern(n, length(n))[8..]);
                got[node] += 1;
            }
        }
        got == [60, 60] && nodes[0].inbox.done.contains_key(&1) && nodes[1].inbox.done.contains_key(&2)
    });
    world.until("windows", |nodes| {
        nodes[1].inbox.windows[&1].placed == size && nodes[0].inbox.windows[&2].placed == size
    });
    assert!(world.nodes[1].inbox.windows.get_mut(&1).unwrap().bytes() == bytes);
    assert!(world.nodes[0].inbox.windows.get_mut(&2).unwrap().bytes() == bytes);
}

/// A message that is sent during a long push overtakes nearly all of it.
#[test]
fn a_message_waits_for_one_segment_at_most() {
    let mut world = world(&TcpConfig { send_buffer_bytes: Some(64 * 1024), ..config() }, 2);
    let (near, far) = world.join_and_greet(0, 1);
    let size = 32 << 20;
    let mut memory = Owned::new(pattern(1, size));
    world.nodes[1].inbox.windows.insert(1, Window::new(size));
    world.nodes[0].push(near, 1, &[memory.iov()], 1).unwrap();
    world.until("under way", |nodes| nodes[1].inbox.windows[&1].placed > 100_000);
    world.nodes[0].send(near, 3, b"now").unwrap();
    world.until("message", |nodes| nodes[1].take_messages(far) == [b"now"]);
    let placed = world.nodes[1].inbox.windows[&1].placed;
    assert!(placed < size / 2, "{placed} bytes came first");
    world.until("the rest", |nodes| nodes[1].inbox.windows[&1].placed == size);
}

/// Pushes on several links progress at the same time.
#[test]
fn pushes_of_several_links_progress_together() {
    let mut world = world(&config(), 4);
    let size = 8 << 20;
    let mut memory = Owned::new(pattern(1, size));
    let links: Vec<_> = (1..4).map(|to| world.join_and_greet(0, to).0).collect();
    for (n, link) in links.iter().enumerate() {
        world.nodes[n + 1].inbox.windows.insert(1, Window::new(size));
        world.nodes[0].push(*link, 1, &[memory.iov()], n as u64).unwrap();
    }
    world.until("one", |nodes| (1..4).any(|n| nodes[n].inbox.windows[&1].placed == size));
    let least = (1..4).map(|n| world.nodes[n].inbox.windows[&1].placed).min().unwrap();
    assert!(least > size / 8, "{least} of {size}");
    world.until("all", |nodes| (1..4).all(|n| nodes[n].inbox.windows[&1].placed == size));
    world.until("drained", |nodes| nodes[0].nic.drained());
}

/// The link is closed in the middle of a segment, with messages after it. The messages arrive, and the peer sees a
/// clean end.
#[test]
fn closing_within_a_segment_keeps_the_framing() {
    let mut world = world(&TcpConfig { send_buffer_bytes: Some(16 * 1024), ..config() }, 2);
    let (near, far) = world.join_and_greet(0, 1);
    let mut memory = Owned::new(pattern(1, 16 << 20));
    world.nodes[0].push(near, 1, &[memory.iov()], 1).unwrap();
    world.nodes[0].nic.flush();
    world.nodes[0].send(near, 4, b"last words").unwrap();
    world.nodes[0].close(near);
    drop(memory);
    world.until("end", |nodes| !nodes[1].inbox.down.is_empty());
    assert_eq!(world.nodes[1].inbox.down, [(far, weft_engine::nic::LinkError::Closed)]);
    assert_eq!(world.nodes[1].take_messages(far), [b"last words"]);
}
