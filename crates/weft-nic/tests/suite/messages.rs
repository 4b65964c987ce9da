//! Messages arrive whole, intact, in order, and without loss, for all sizes and all divisions into pieces.

use std::collections::VecDeque;

use weft_engine::nic::Nic;

use super::{Device, Node, Random, World, pattern};

pub fn every_size_arrives_intact<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    let longest = world.nodes[0].inbox.up[&near].caps.mailbox_bytes;
    let mut sizes: Vec<usize> = (1..300).collect();
    sizes.extend((300..longest).step_by(977));
    sizes.extend([longest - 1, longest]);
    for (n, &size) in sizes.iter().enumerate() {
        let (from, to, out, into) = if n % 2 == 0 { (0, 1, near, far) } else { (1, 0, far, near) };
        let bytes = pattern(n as u64, size);
        for head in [size.min(8), size.min(40), size] {
            world.until("room", |nodes| nodes[from].send(out, head, &bytes).is_ok());
            world.until("arrival", |nodes| nodes[to].take_messages(into) == std::slice::from_ref(&bytes));
        }
    }
}

/// The receiver does not poll until the device is full. Then all messages arrive.
pub fn a_flood_is_refused_and_nothing_is_lost<D: Device>() {
    for size in [8usize, 200, 5000] {
        let mut world = World::new::<D>(2);
        let (near, far) = world.join_and_greet(0, 1);
        let mut sent = 0u64;
        let message = |n: u64| [&n.to_be_bytes()[..], &pattern(n, size)].concat();
        while world.nodes[0].send(near, 8, &message(sent)).is_ok() {
            sent += 1;
            assert!(sent < 10_000_000, "queues are bounded");
        }
        let mut got = 0u64;
        world.until("everything arrives", |nodes| {
            for bytes in nodes[1].take_messages(far) {
                assert_eq!(bytes, message(got), "number {got}");
                got += 1;
            }
            got == sent
        });
        assert!(world.nodes[0].send(near, 8, &message(sent)).is_ok(), "room again");
    }
}

/// Random sizes, random polls, several links, and both directions. Each direction of each link is compared
/// with a queue.
pub fn random_traffic_keeps_order<D: Device>() {
    let mut world = World::new::<D>(4);
    let mut queues = Vec::new();
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 3), (3, 1)] {
        let (near, far) = world.join_and_greet(from, to);
        queues.push((from, near, to, far, VecDeque::new()));
        queues.push((to, far, from, near, VecDeque::new()));
    }
    let mut random = Random(0x1234_5678_9abc_def1);
    for n in 0..20_000u64 {
        let (from, out, _, _, queue) = &mut queues[random.below(10)];
        let longest = [20, 60, 300, 2000, 30_000][random.below(5)];
        let size = 1 + random.below(longest.min(world.nodes[0].nic_mailbox(*from, *out, &world.nodes)));
        let bytes = pattern(n, size);
        if world.nodes[*from].send(*out, random.below(size.min(64) + 1), &bytes).is_ok() {
            queue.push_back(bytes);
        }
        for _ in 0..random.below(3) {
            let node = random.below(4);
            world.nodes[node].poll();
        }
        for (_, _, to, into, queue) in &mut queues {
            for bytes in world.nodes[*to].take_messages(*into) {
                assert_eq!(Some(bytes), queue.pop_front());
            }
        }
    }
    world.until("the rest", |nodes| {
        for (_, _, to, into, queue) in &mut queues {
            for bytes in nodes[*to].take_messages(*into) {
                assert_eq!(Some(bytes), queue.pop_front());
            }
        }
        queues.iter().all(|(.., queue)| queue.is_empty())
    });
}

impl<N: Nic> Node<N> {
    fn nic_mailbox(&self, node: usize, link: weft_engine::nic::LinkId, nodes: &[Self]) -> usize {
        nodes[node].inbox.up[&link].caps.mailbox_bytes
    }
}

/// Two threads with one endpoint each.
pub fn two_threads_play_ping_pong<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    let mut pong = world.nodes.pop().unwrap();
    let mut ping = world.nodes.pop().unwrap();
    const TURNS: u32 = 20_000;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let wait = move |node: &mut Node<D::Nic>, link| loop {
        if let Some((of, bytes)) = node.inbox.messages.pop_front() {
            assert_eq!(of, link);
            return bytes;
        }
        if node.poll() == 0 {
            std::thread::yield_now();
            assert!(std::time::Instant::now() < deadline, "too slow, or lost");
        }
    };
    let other = std::thread::spawn(move || {
        for turn in 0..TURNS {
            let bytes = wait(&mut pong, far);
            assert_eq!(bytes, turn.to_be_bytes());
            pong.send(far, 4, &bytes).unwrap();
            pong.nic.flush();
        }
        pong
    });
    for turn in 0..TURNS {
        ping.send(near, 2, &turn.to_be_bytes()).unwrap();
        ping.nic.flush();
        assert_eq!(wait(&mut ping, near), turn.to_be_bytes());
    }
    drop(other.join().unwrap());
}

/// One thread sends as fast as it can, and another receives.
pub fn two_threads_stream<D: Device>() {
    let mut world = World::new::<D>(2);
    let (near, far) = world.join_and_greet(0, 1);
    let mut taker = world.nodes.pop().unwrap();
    let mut sender = world.nodes.pop().unwrap();
    const MESSAGES: u64 = 100_000;
    let size = |n: u64| if n.is_multiple_of(97) { 3000 } else { 8 + (n % 120) as usize };
    let other = std::thread::spawn(move || {
        let mut n = 0;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while n < MESSAGES {
            if taker.poll() == 0 {
                std::thread::yield_now();
                assert!(std::time::Instant::now() < deadline, "{n} of {MESSAGES}");
            }
            for bytes in taker.take_messages(far) {
                assert_eq!((bytes.len(), &bytes[..8]), (size(n), &n.to_be_bytes()[..]));
                n += 1;
            }
        }
        taker
    });
    for n in 0..MESSAGES {
        let mut bytes = vec![0x33; size(n)];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        while sender.send(near, 8, &bytes).is_err() {
            sender.poll();
            std::thread::yield_now();
        }
    }
    while !sender.nic.drained() {
        sender.poll();
    }
    while !other.is_finished() {
        sender.poll();
        std::thread::yield_now();
    }
    drop(other.join().unwrap());
}
