//! Peers in other processes, and their sudden death.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use weft_engine::mem::Owned;
use weft_engine::nic::{DirectCopy, LinkError, LinkId, LinkUp, Nic, RemoteIov};

use super::{Inbox, Node, name, segment, until};
use crate::shm::segment::Role;
use crate::shm::{Shm, ShmConfig};
use crate::{Config, Devices};

/// A forked child, which is killed and reaped on drop.
struct Child(rustix::process::Pid);

impl Child {
    /// Runs `body` in a child that ends without unwinding into the test harness.
    fn run(body: impl FnOnce()) -> Self {
        // SAFETY: the child allocates, which glibc permits after fork, takes no lock of the harness, and ends
        // by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
            // SAFETY: the call ends the child at once.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        Self(rustix::process::Pid::from_raw(pid).unwrap())
    }

    fn kill(&self) {
        rustix::process::kill_process(self.0, rustix::process::Signal::KILL).unwrap();
    }

    fn stop(&self) {
        rustix::process::kill_process(self.0, rustix::process::Signal::STOP).unwrap();
    }

    /// Waits for the child's end. Returns whether it exited by itself and with success.
    fn ended_well(self) -> bool {
        let start = Instant::now();
        loop {
            if let Some((_, status)) =
                rustix::process::waitpid(Some(self.0), rustix::process::WaitOptions::NOHANG).unwrap()
            {
                std::mem::forget(self);
                return status.exit_status() == Some(0);
            }
            assert!(start.elapsed() < Duration::from_secs(20), "the child does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.0), rustix::process::WaitOptions::empty());
    }
}

/// Runs in the child: makes an endpoint that connects to `to` and sends a hello.
fn guest(to: &weft_engine::name::EpName) -> (Node, LinkId) {
    let mut node = Node { nic: Shm::new(&ShmConfig::default(), name()).unwrap(), inbox: Inbox::default() };
    let link = node.nic.connect(to).unwrap();
    until("connect", &mut [&mut node], |nodes| !nodes[0].inbox.up.is_empty());
    node.nic.send(link, b"hello", &[]).unwrap();
    (node, link)
}

/// Runs in a child: forks a process that exits after five seconds.
fn leave_a_fork() {
    std::mem::forget(Child::run(|| std::thread::sleep(Duration::from_secs(5))));
}

/// Makes a process like [`leave_a_fork`] by the system call, which runs no handlers of fork(3). The process
/// has copies of all descriptors.
fn leave_a_clone() {
    let (flags, none) = (libc::c_long::from(libc::SIGCHLD), 0_usize);
    // SAFETY: the call copies this process, and the child allocates nothing.
    if unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) } == 0 {
        std::thread::sleep(Duration::from_secs(5));
        // SAFETY: the call ends the child at once.
        unsafe { libc::_exit(0) };
    }
}

#[test]
fn processes_exchange_messages_and_memory() {
    let mut host = Node::new(&ShmConfig::default());
    let to = host.nic.name();
    let child = Child::run(|| {
        let (mut node, link) = guest(&to);
        // The host reads 100,000 bytes by address.
        let mut memory = Owned::new((0..100_000u32).map(|i| (i % 251) as u8).collect());
        node.nic.send(link, &memory.iov().addr().to_ne_bytes(), &[]).unwrap();
        until("goodbye", &mut [&mut node], |nodes| nodes[0].inbox.messages.iter().any(|(_, bytes)| bytes == b"bye"));
        // Drops the device, which closes the link in an orderly way.
        drop(node);
    });
    until("guest", &mut [&mut host], |nodes| nodes[0].inbox.messages.len() == 2);
    let (link, info) = host.inbox.up[0];
    assert_eq!(host.inbox.messages[0].1, b"hello");
    let addr = u64::from_ne_bytes(host.inbox.messages[1].1[..].try_into().unwrap());
    if info.caps.get {
        let mut memory = Owned::new(vec![0; 100_000]);
        let there = RemoteIov { addr, len: 100_000 };
        host.nic.copy(link, &DirectCopy::get(&[memory.iov()], &[there], 5)).unwrap();
        until("get", &mut [&mut host], |nodes| !nodes[0].inbox.done.is_empty());
        assert_eq!(host.inbox.done, [(5, Ok(()))]);
        let bytes = weft_engine::mem::to_vec(&[memory.iov()]);
        assert!(bytes.iter().zip(0u32..).all(|(&byte, i)| byte == (i % 251) as u8));
    } else {
        eprintln!("memory not tested: no cross-memory attach");
    }
    host.nic.send(link, b"bye", &[]).unwrap();
    assert!(child.ended_well());
    until("end", &mut [&mut host], |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(host.inbox.down, [(link, LinkError::Closed)]);
}

#[test]
fn a_killed_peer_is_gone() {
    for asleep in [false, true] {
        let mut host = Node::new(&ShmConfig::default());
        let to = host.nic.name();
        let child = Child::run(|| {
            let (mut node, _) = guest(&to);
            loop {
                node.poll();
            }
        });
        until("guest", &mut [&mut host], |nodes| !nodes[0].inbox.messages.is_empty());
        let link = host.inbox.up[0].0;
        let mut memory = Owned::new(vec![1; 50_000_000]);
        host.nic.push(link, 1, 0, &[memory.iov()], 1).unwrap();
        for _ in 0..10 {
            host.poll();
        }
        child.kill();
        if asleep {
            // A sleep on the descriptor ends by itself, although no peer rings.
            let start = Instant::now();
            while host.inbox.down.is_empty() {
                if host.nic.park() {
                    let mut fds =
                        [rustix::event::PollFd::from_borrowed_fd(host.nic.wait_fd(), rustix::event::PollFlags::IN)];
                    let limit = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
                    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "the sleep was not ended");
                }
                host.poll();
                assert!(start.elapsed() < Duration::from_secs(30));
            }
        } else {
            until("end", &mut [&mut host], |nodes| !nodes[0].inbox.down.is_empty());
        }
        assert_eq!(host.inbox.down, [(link, LinkError::Gone)]);
        assert!(matches!(host.inbox.done[..], [(1, Err(LinkError::Gone) | Ok(()))]));
        assert!(!child.ended_well());
    }
}

/// A peer that has requested a copy dies. Its process id belongs to another process when the client polls
/// again.
#[test]
fn a_reused_process_id_is_not_the_peer() {
    let mut host = Node::new(&ShmConfig::default());
    let to = host.nic.name();
    let child = Child::run(|| {
        let (mut node, _) = guest(&to);
        loop {
            node.poll();
        }
    });
    until("guest", &mut [&mut host], |nodes| !nodes[0].inbox.messages.is_empty());
    let (link, info) = host.inbox.up[0];
    if !info.caps.get {
        return eprintln!("not tested: no cross-memory attach");
    }
    child.kill();
    assert!(!child.ended_well());
    // The clock has advanced since the last poll.
    std::thread::sleep(Duration::from_millis(20));
    let Some(crate::shm::Slot::Up(up)) = host.nic.links.get_mut(link.0 as usize) else { panic!("no link") };
    up.set_pid(rustix::process::getpid().as_raw_pid());
    let (mut own, mut secret) = (Owned::new(vec![0; 100_000]), Owned::new(vec![7; 100_000]));
    let foreign = secret.iov().addr();
    for (ctx, len) in [(1, 100), (2, 100_000)] {
        let there = RemoteIov { addr: foreign, len };
        // Where the queue is full, no copy takes place either.
        let _ = host.nic.copy(link, &DirectCopy::get(&[own.iov().slice(0, len as usize)], &[there], ctx));
    }
    until("end", &mut [&mut host], |nodes| !nodes[0].inbox.down.is_empty());
    assert!(weft_engine::mem::to_vec(&[own.iov()]).iter().all(|&byte| byte == 0), "a stranger's memory was read");
    assert!(host.inbox.done.iter().all(|(_, result)| *result == Err(LinkError::Gone)), "{:?}", host.inbox.done);
}

/// A host that polls seldom also sees connections and deaths in time.
#[test]
fn a_seldom_poll_sees_calls_and_deaths() {
    let mut host = Node::new(&ShmConfig::default());
    let to = host.nic.name();
    let child = Child::run(|| {
        let (mut node, _) = guest(&to);
        loop {
            node.poll();
        }
    });
    let mut polls_until = |condition: fn(&Inbox) -> bool| {
        let polls = (1..).take_while(|_| {
            std::thread::sleep(Duration::from_millis(20));
            host.poll();
            !condition(&host.inbox)
        });
        polls.take(100).count()
    };
    // Two steps of a handshake are the host's.
    let polls = polls_until(|inbox| !inbox.messages.is_empty());
    assert!(polls <= 20, "{polls}");
    child.kill();
    let polls = polls_until(|inbox| !inbox.down.is_empty());
    assert!(polls <= 10, "{polls}");
}

/// A grandchild stays alive. The process's own end counts: for a link, for an unanswered call, and for a
/// later call.
#[test]
fn a_peer_whose_fork_lives_on_is_gone() {
    let mut host = Node::new(&ShmConfig { answer_timeout_ms: 60_000, ..ShmConfig::default() });
    let to = host.nic.name();
    let child = Child::run(|| {
        let (mut node, link) = guest(&to);
        leave_a_fork();
        node.nic.send(link, b"forked", &[]).unwrap();
        loop {
            node.poll();
        }
    });
    until("guest", &mut [&mut host], |nodes| nodes[0].inbox.messages.len() == 2);
    let (link, peer) = (host.inbox.up[0].0, host.inbox.up[0].1.peer);
    child.stop();
    let call = host.nic.connect(&peer).unwrap();
    host.poll();
    child.kill();
    let start = Instant::now();
    until("end", &mut [&mut host], |nodes| nodes[0].inbox.down.len() == 2);
    assert!(host.inbox.down.contains(&(link, LinkError::Gone)), "{:?}", host.inbox.down);
    assert!(host.inbox.down.contains(&(call, LinkError::Refused)), "{:?}", host.inbox.down);
    host.inbox.down.clear();
    let call = host.nic.connect(&peer).unwrap();
    until("end of a call", &mut [&mut host], |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(host.inbox.down, [(call, LinkError::Refused)]);
    assert!(!child.ended_well());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// A child has copies of the life line, so the device also watches the process itself.
#[test]
fn a_peer_whose_clone_lives_on_is_gone() {
    let mut host = Node::new(&ShmConfig::default());
    let to = host.nic.name();
    let child = Child::run(|| {
        let (mut node, link) = guest(&to);
        leave_a_clone();
        node.nic.send(link, b"cloned", &[]).unwrap();
        loop {
            node.poll();
        }
    });
    until("guest", &mut [&mut host], |nodes| nodes[0].inbox.messages.len() == 2);
    child.kill();
    let start = Instant::now();
    until("end", &mut [&mut host], |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(host.inbox.down, [(host.inbox.up[0].0, LinkError::Gone)]);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// The descriptors of a process also end when it executes another program, although a grandchild stays alive.
#[test]
fn a_peer_that_has_become_another_program_is_gone() {
    let mut host = Node::new(&ShmConfig::default());
    let to = host.nic.name();
    let _child = Child::run(|| {
        let _guest = guest(&to);
        leave_a_fork();
        panic!("{}", Command::new("sleep").arg("5").exec());
    });
    until("guest", &mut [&mut host], |nodes| !nodes[0].inbox.messages.is_empty());
    let start = Instant::now();
    until("end", &mut [&mut host], |nodes| !nodes[0].inbox.down.is_empty());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// The name of a port is free when the endpoint is closed, although a child stays alive.
#[test]
fn a_port_can_be_taken_again_although_a_fork_lives_on() {
    // Another run of this test may be in progress.
    let port = 40_000 + (std::process::id() % 20_000) as u16;
    let config = ShmConfig { service: Some(port), ..ShmConfig::default() };
    let node = Node::new(&config);
    let _child = Child::run(|| std::thread::sleep(Duration::from_secs(30)));
    drop(node);
    let start = Instant::now();
    // The child may not have closed its copies yet.
    while let Err(error) = Shm::new(&config, name()) {
        assert!(error.raw_os_error() == libc::EADDRINUSE && start.elapsed() < Duration::from_secs(3), "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Connections to a dead peer fail at once on both devices.
#[test]
fn calls_to_a_dead_peer_fail() {
    let config = Config { listen: Some(([127, 0, 0, 1], 0).into()), answer_timeout_ms: 60_000, ..Config::default() };
    let (mut host, mut inbox) = (Devices::new(&config).unwrap(), Inbox::default());
    let to = host.name();
    let child = Child::run(|| {
        let (mut guest, mut inbox) = (Devices::new(&config).unwrap(), Inbox::default());
        leave_a_fork();
        guest.connect(&to).unwrap();
        loop {
            guest.poll(&mut inbox);
        }
    });
    let start = Instant::now();
    while inbox.up.is_empty() {
        host.poll(&mut inbox);
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    let (link, LinkUp { peer, caps, .. }) = inbox.up[0];
    assert!(caps.device == "shm" && peer.tcp());
    child.kill();
    let call = host.connect(&peer).unwrap();
    let start = Instant::now();
    while inbox.down.len() < 2 {
        host.poll(&mut inbox);
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", inbox.down);
    }
    inbox.down.sort_by_key(|&(link, _)| link.0);
    assert_eq!(inbox.down, [(link, LinkError::Gone), (call, LinkError::Refused)]);
}

/// A child keeps a copy of the link, which the process itself has closed.
#[test]
fn a_close_is_seen_although_a_fork_lives_on() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, far) = super::join(&mut a, &mut b);
    let (near_again, far_again) = super::join(&mut a, &mut b);
    let _child = Child::run(|| std::thread::sleep(Duration::from_secs(30)));
    a.nic.close(near);
    until("end", &mut [&mut a, &mut b], |nodes| nodes[1].inbox.down == [(far, LinkError::Closed)]);
    assert!(a.inbox.up.iter().any(|(link, _)| *link == near_again));
    let to = a.nic.name();
    drop(a);
    until("end", &mut [&mut b], |nodes| nodes[0].inbox.down.last() == Some(&(far_again, LinkError::Closed)));
    b.nic.connect(&to).unwrap();
    until("refusal", &mut [&mut b], |nodes| nodes[0].inbox.down.len() == 3);
    assert_eq!(b.inbox.down[2].1, LinkError::Refused);
}

/// A link has failed at one end, whose client has its memory back. The other end, in the middle of a copy,
/// does not report success.
#[test]
fn a_copy_fails_with_its_link() {
    const BYTES: usize = 1_000_000;
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, far) = super::join(&mut a, &mut b);
    if !b.inbox.up[0].1.caps.get {
        return eprintln!("not tested: no cross-memory attach");
    }
    let (mut theirs, mut ours) = (Owned::new(vec![1; BYTES]), Owned::new(vec![0; BYTES]));
    let there = RemoteIov { addr: theirs.iov().addr(), len: BYTES as u64 };
    b.nic.copy(far, &DirectCopy::get(&[ours.iov()], &[there], 7)).unwrap();
    // The next check of the sockets follows at a clock tick.
    b.nic.control_due = true;
    b.poll();
    assert!(b.inbox.done.is_empty());
    a.nic.fail(near.0, LinkError::Resources);
    until("end", &mut [&mut a], |nodes| nodes[0].inbox.down == [(near, LinkError::Resources)]);
    weft_engine::mem::scatter(&[theirs.iov()], 0, &[2; BYTES]);
    until("end", &mut [&mut b], |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!((&*b.inbox.done, &*b.inbox.down), (&[(7, Err(LinkError::Gone))][..], &[(far, LinkError::Gone)][..]));
    assert!(!weft_engine::mem::to_vec(&[ours.iov()]).contains(&2), "another's bytes were copied");
}

/// Two short transfers are queued. The first one writes the peer's word that says that the link has ended.
#[test]
fn no_transfer_starts_after_the_end_of_a_link() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, far) = super::join(&mut a, &mut b);
    if !b.inbox.up[0].1.caps.put {
        return eprintln!("not tested: no cross-memory attach");
    }
    let said = segment(&a, near).side(Role::Initiator).closed.0.as_ptr() as usize as u64;
    let (mut theirs, mut ours) = (Owned::new(vec![0; 4]), Owned::new(2u32.to_ne_bytes().to_vec()));
    // Transfers are queued while a push waits for room.
    let mut pushed = Owned::new(vec![0; 1 << 20]);
    b.nic.push(far, 1, 0, &[pushed.iov()], 1).unwrap();
    for (ctx, addr) in [(2, said), (3, theirs.iov().addr())] {
        b.nic.copy(far, &DirectCopy::put(&[ours.iov()], &[RemoteIov { addr, len: 4 }], ctx)).unwrap();
    }
    b.poll();
    assert_eq!(b.inbox.done, [(2, Err(LinkError::Gone))]);
    assert_eq!(weft_engine::mem::to_vec(&[theirs.iov()]), [0; 4], "another's bytes were written");
}

/// A forked child that drops its copy of a device does not close the parent's links.
#[test]
fn a_forked_copy_is_silent() {
    let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
    let (near, far) = super::join(&mut a, &mut b);
    let mut copy = None;
    let slot = &mut copy;
    let child = Child::run(|| {
        *slot = Some(());
        // SAFETY: the child reads its copy of `a` once, and ends without touching the original.
        drop(unsafe { std::ptr::read(&a.nic) });
    });
    assert!(child.ended_well());
    for _ in 0..2000 {
        a.poll();
        b.poll();
    }
    assert!(b.inbox.down.is_empty());
    a.nic.send(near, b"alive", &[]).unwrap();
    until("message", &mut [&mut a, &mut b], |nodes| nodes[1].inbox.messages == [(far, b"alive".to_vec())]);
}

/// A process with another user or in another network namespace cannot connect, and cannot be reached. Neither
/// can a process whose user namespace shows all users by one number, its own. The test needs root.
#[test]
fn strangers_are_kept_apart() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: this user may not become another one");
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Stranger {
        User,
        Network,
        Unmapped,
    }
    for stranger in [Stranger::User, Stranger::Network, Stranger::Unmapped] {
        let mut host = Node::new(&ShmConfig::default());
        let to = host.nic.name();
        let child = Child::run(|| {
            let namespace = match stranger {
                Stranger::User => 0,
                Stranger::Network => libc::CLONE_NEWNET,
                Stranger::Unmapped => libc::CLONE_NEWUSER,
            };
            if stranger == Stranger::User {
                // SAFETY: the call changes the ids of this process, which has one thread.
                assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
            } else {
                // SAFETY: the call moves this process, which has one thread, to an empty namespace.
                assert_eq!(unsafe { libc::unshare(namespace) }, 0);
            }
            let mut node = Node::new(&ShmConfig::default());
            node.nic.connect(&to).unwrap();
            until("refusal", &mut [&mut node], |nodes| !nodes[0].inbox.down.is_empty());
            let expected = if stranger == Stranger::Network { LinkError::Refused } else { LinkError::Denied };
            assert_eq!(node.inbox.down[0].1, expected);
        });
        for _ in 0..3000 {
            host.poll();
        }
        assert!(child.ended_well());
        for _ in 0..3000 {
            host.poll();
        }
        assert!(host.inbox.up.is_empty() && host.nic.handshakes.is_empty());
        // A process that cannot distinguish users hangs up first, so the host records no denial.
        assert_eq!(host.nic.control.denied, u64::from(stranger == Stranger::User));
    }
}
