//! Sleeping: no wake-up is lost, and none is sent without need.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use weft_engine::mem::Owned;
use weft_engine::nic::{LinkId, Nic};

use super::{Node, join};
use crate::shm::ShmConfig;

/// Waits on the descriptor. Returns false after the limit.
fn sleep(node: &Node, limit_ms: i64) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(node.nic.wait_fd(), PollFlags::IN)];
    let limit = rustix::time::Timespec { tv_sec: limit_ms / 1000, tv_nsec: limit_ms % 1000 * 1_000_000 };
    rustix::event::poll(&mut fds, Some(&limit)).unwrap() > 0
}

/// Polls until the condition holds, and sleeps after polls that found nothing. A sleep of ten seconds is a
/// lost wake-up.
fn work(node: &mut Node, mut condition: impl FnMut(&mut Node) -> bool) -> u32 {
    let mut sleeps = 0;
    while !condition(node) {
        if node.poll() == 0 && node.nic.park() {
            sleeps += 1;
            assert!(sleep(node, 10_000), "a wake-up was lost");
            node.nic.wake();
        }
    }
    sleeps
}

#[test]
fn a_parked_endpoint_sleeps_until_rung() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, _) = join(&mut a, &mut b);
    a.nic.send(near, b"first", &[]).unwrap();
    assert!(!b.nic.park(), "something is there");
    while b.inbox.messages.is_empty() {
        b.poll();
    }
    while !b.nic.park() {
        b.poll();
    }
    assert!(!sleep(&b, 20), "nothing is there");
    a.nic.send(near, b"second", &[]).unwrap();
    assert!(sleep(&b, 5000));
    b.nic.wake();
    b.poll();
    assert_eq!(b.inbox.messages.len(), 2);
    // A message to an awake endpoint sends no wake-up: the descriptor is quiet once the wake-up byte is read.
    while !b.nic.park() {
        b.poll();
    }
    assert!(!sleep(&b, 20));
}

#[test]
fn a_confirmation_wakes_a_sleeper() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, _) = join(&mut a, &mut b);
    while !b.nic.park() {
        b.poll();
    }
    assert!(!sleep(&b, 20), "nothing is there");
    a.nic.confirm(near, 7);
    assert!(sleep(&b, 5000));
    b.nic.wake();
    b.poll();
    assert_eq!(b.inbox.confirmed, 7);
    a.nic.confirm(near, 8);
    assert!(!b.nic.park(), "something is there");
    b.poll();
    assert_eq!(b.inbox.confirmed, 8);
}

/// A peer sends a wake-up on a link that this side has just closed. The wake-up is lost, but the peer sends
/// another one on its other link.
#[test]
fn a_closed_link_swallows_no_wake_up() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (stale, closed) = join(&mut a, &mut b);
    let (near, _) = join(&mut a, &mut b);
    b.nic.close(closed);
    while !b.nic.park() {
        b.poll();
    }
    a.nic.send(stale, b"to nobody", &[]).unwrap();
    a.nic.send(near, b"to the sleeper", &[]).unwrap();
    assert!(sleep(&b, 5000), "the wake-up went to the closed link");
    b.nic.wake();
    b.poll();
    assert_eq!(b.inbox.messages.len(), 1);
}

/// A listener arms the device and sleeps, while a client polls now and then.
#[test]
fn an_armed_endpoint_stays_armed_across_polls() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, _) = join(&mut a, &mut b);
    while !b.nic.arm() {
        b.poll();
    }
    // Polls that find nothing do not end the sleep.
    (0..1000).for_each(|_| assert_eq!(b.poll(), 0));
    assert!(b.nic.is_armed() && !sleep(&b, 20));
    for turn in 1..10 {
        a.nic.send(near, b"for the sleeper", &[]).unwrap();
        assert!(sleep(&b, 5000), "turn {turn}");
        // A poll that comes first takes the message. Until the device is armed again, the byte is there, or
        // the device is not armed.
        assert_eq!(b.poll(), 1);
        assert!(!b.nic.is_armed() || sleep(&b, 0));
        assert!((0..3).any(|_| b.nic.arm()), "only the wake-up byte is there");
        assert!(b.nic.is_armed() && !sleep(&b, 5));
        assert_eq!(b.inbox.messages.len(), turn);
    }
    // A second sleeper and its end change nothing.
    assert!(b.nic.park());
    b.poll();
    assert!(b.nic.is_armed());
    b.nic.wake();
    assert!(!b.nic.is_armed());
    a.nic.send(near, b"to a polling peer", &[]).unwrap();
    assert!(!sleep(&b, 20), "woken without an announced sleep");
    assert_eq!(b.poll(), 1);
}

/// Several threads poll an armed device. The listener sleeps only after it has armed the device again, and no
/// wake-up is lost.
#[test]
fn arming_beside_polls_loses_nothing() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, far) = join(&mut a, &mut b);
    const TURNS: u32 = 5000;
    let other = std::thread::spawn(move || {
        let mut sleeps = 0;
        for turn in 0..TURNS {
            while b.inbox.messages.is_empty() {
                if b.poll() == 0 && b.nic.arm() {
                    // Polls of other threads between the announcement and the sleep.
                    let polls = turn % 5;
                    let came = (0..polls).any(|_| b.poll() > 0);
                    if !came && b.nic.is_armed() {
                        assert!(sleep(&b, 10_000), "a wake-up was lost in turn {turn}");
                        sleeps += 1;
                    }
                    b.nic.wake_listener();
                }
            }
            assert_eq!(b.inbox.messages.pop().unwrap().1, turn.to_ne_bytes());
            b.nic.send(far, &turn.to_ne_bytes(), &[]).unwrap();
        }
        assert!(sleeps > 0, "the test is about sleeping");
        b
    });
    for turn in 0..TURNS {
        a.nic.send(near, &turn.to_ne_bytes(), &[]).unwrap();
        work(&mut a, |a| !a.inbox.messages.is_empty());
        assert_eq!(a.inbox.messages.pop().unwrap().1, turn.to_ne_bytes());
        if turn % 16 == 0 {
            std::thread::sleep(Duration::from_micros(u64::from(turn % 7) * 50));
        }
    }
    drop(other.join().unwrap());
}

/// Two threads sleep after every message; then several links compete for the hot list.
#[test]
fn ping_pong_with_sleeping_loses_nothing() {
    for must_fence in [false, true] {
        let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
        if must_fence {
            // Both sides fence, as on a system without membarrier.
            for node in [&mut a, &mut b] {
                node.nic.barriers.callable = false;
                node.nic.barriers.registered = false;
            }
        }
        let (near, far) = join(&mut a, &mut b);
        const TURNS: u32 = 5000;
        let other = std::thread::spawn(move || {
            for turn in 0..TURNS {
                work(&mut b, |b| !b.inbox.messages.is_empty());
                assert_eq!(b.inbox.messages.pop().unwrap().1, turn.to_ne_bytes());
                b.nic.send(far, &turn.to_ne_bytes(), &[]).unwrap();
            }
            b
        });
        let mut sleeps = 0;
        for turn in 0..TURNS {
            a.nic.send(near, &turn.to_ne_bytes(), &[]).unwrap();
            sleeps += work(&mut a, |a| !a.inbox.messages.is_empty());
            assert_eq!(a.inbox.messages.pop().unwrap().1, turn.to_ne_bytes());
            if turn % 64 == 0 {
                std::thread::sleep(Duration::from_micros(u64::from(turn % 7) * 50));
            }
        }
        assert!(sleeps > 0, "the test is about sleeping");
        drop(other.join().unwrap());
    }
}

/// Random pauses on both sides, and bursts that fill the ring. The sender sleeps for space, the receiver for
/// messages.
#[test]
fn a_full_ring_wakes_its_producer() {
    let config = ShmConfig { ring_bytes: 128 * 1024, ..ShmConfig::default() };
    let (mut a, mut b) = (Node::new(&config), Node::new(&config));
    let (near, _) = join(&mut a, &mut b);
    const MESSAGES: u32 = 60_000;
    let other = std::thread::spawn(move || {
        let mut next = 0u32;
        let mut sleeps = 0;
        while next < MESSAGES {
            sleeps += work(&mut b, |b| !b.inbox.messages.is_empty());
            for (_, bytes) in b.inbox.messages.drain(..) {
                assert_eq!(bytes[..4], next.to_ne_bytes());
                next += 1;
            }
            if next.is_multiple_of(1009) {
                std::thread::sleep(Duration::from_micros(300));
            }
            if next.is_multiple_of(20_011) {
                // However slow the sender is, the ring is full by now.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        (b, sleeps)
    });
    let mut memory = Owned::new(vec![1; 2000]);
    let body = memory.iov();
    let mut sleeps = 0;
    for n in 0..MESSAGES {
        let body = if n % 10 == 0 { body } else { body.slice(0, 20) };
        sleeps += work(&mut a, |a| a.nic.send(near, &n.to_ne_bytes(), &[body]).is_ok());
        if n % 15_013 == 0 {
            // However slow the receiver is, the ring is empty by now.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let (b, their_sleeps) = other.join().unwrap();
    assert!(sleeps > 0 && their_sleeps > 0, "{sleeps} {their_sleeps}");
    drop(b);
}

/// A push that waits for space continues when the receiver takes records, although the sender sleeps.
#[test]
fn a_push_wakes_its_sender() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, _) = join(&mut a, &mut b);
    let size = 20_000_000;
    let other = std::thread::spawn(move || {
        work(&mut b, |b| b.inbox.placed >= size);
        b
    });
    let mut memory = Owned::new(vec![1; size]);
    a.nic.push(near, 1, 0, &[memory.iov()], 9).unwrap();
    work(&mut a, |a| !a.inbox.done.is_empty());
    drop(other.join().unwrap());
}

/// A push that the ring has room for leaves at once. Its sender need not poll.
#[test]
fn a_push_with_room_leaves_at_once() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, _) = join(&mut a, &mut b);
    let size = usize::try_from(weft_engine::nic::PUSH_BYTES).unwrap();
    let mut memory = Owned::new(vec![1; size]);
    a.nic.push(near, 1, 0, &[memory.iov()], 9).unwrap();
    work(&mut b, |b| b.inbox.placed >= size);
    assert!(a.inbox.done.is_empty(), "only a poll reports the end");
    a.poll();
    assert_eq!(a.inbox.done, [(9, Ok(()))]);
}

/// The number of active links exceeds the hot list. Cold links are served as well, awake and asleep.
#[test]
fn hot_and_cold_links_are_served() {
    let mut host = Node::new(&ShmConfig::default());
    let mut guests: Vec<(Node, LinkId)> = Vec::new();
    for _ in 0..20 {
        let mut guest = Node::new(&ShmConfig::default());
        let (near, _) = join(&mut guest, &mut host);
        guests.push((guest, near));
    }
    let turns = 300u32;
    let other = std::thread::spawn(move || {
        let mut seed = 12345u32;
        for turn in 0..turns * 20 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Long runs on one link, so that others become cold, and jumps.
            let at = if turn % 100 < 70 { turn / 100 % 20 } else { seed >> 16 };
            let (guest, link) = &mut guests[at as usize % 20];
            work(guest, |guest| guest.nic.send(*link, &turn.to_ne_bytes(), &[]).is_ok());
            if seed.is_multiple_of(50) {
                std::thread::sleep(Duration::from_micros(u64::from(seed >> 24)));
            }
        }
        guests
    });
    let start = Instant::now();
    work(&mut host, |host| {
        assert!(start.elapsed() < Duration::from_secs(60));
        host.inbox.messages.len() as u32 == turns * 20
    });
    assert!(host.nic.hot.len() <= crate::shm::HOT_LINKS);
    drop(other.join().unwrap());
}

/// The time-out of an unanswered connection attempt ends the sleep.
#[test]
fn a_time_out_wakes_a_sleeper() {
    let config = ShmConfig { answer_timeout_ms: 50, ..ShmConfig::default() };
    let (mut a, silent) = (Node::new(&config), Node::new(&config));
    a.nic.connect(&silent.nic.name()).unwrap();
    work(&mut a, |a| !a.inbox.down.is_empty());
    assert_eq!(a.inbox.down[0].1, weft_engine::nic::LinkError::Timeout);
    // A connection attempt that another thread makes during the sleep.
    while !a.nic.park() {
        a.poll();
    }
    a.nic.connect(&silent.nic.name()).unwrap();
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(a.nic.wait_fd(), rustix::event::PollFlags::IN)];
    let limit = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "the time-out does not wake");
    work(&mut a, |a| a.inbox.down.len() == 2);
}

/// A listener named only by its port has a shorter time-out.
#[test]
fn a_service_has_its_own_time_out() {
    let service = Some(40_777);
    let silent = Node::new(&ShmConfig { service, ..ShmConfig::default() });
    let mut a = Node::new(&ShmConfig { connect_timeout_ms: 50, answer_timeout_ms: 60_000, ..ShmConfig::default() });
    let named = a.nic.connect(&silent.nic.name()).unwrap();
    let by_port = weft_engine::name::EpName::service(([127, 0, 0, 1], 40_777).into());
    let called = a.nic.connect(&by_port).unwrap();
    work(&mut a, |a| !a.inbox.down.is_empty());
    assert_eq!(a.inbox.down, [(called, weft_engine::nic::LinkError::Timeout)]);
    a.nic.close(named);
}
