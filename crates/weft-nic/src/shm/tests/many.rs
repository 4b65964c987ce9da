//! Many links, which leave no state.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weft_engine::nic::Nic;

use super::{Node, join, until};
use crate::shm::ShmConfig;
use crate::shm::control::{EVENTS, hang_up_on};

/// Number of mapped segments of this process. Tests that use it run in a process of their own ([`alone`]),
/// because other tests run at the same time.
fn mapped_segments() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:weft-")).count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs `body` in a forked child, where no other test opens or closes anything.
pub(super) fn alone(body: impl FnOnce()) {
    // SAFETY: the child allocates, which glibc permits after fork, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        // SAFETY: the call ends the child at once.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "see the child's message");
}

#[test]
fn many_links_leave_no_state() {
    alone(|| {
        let (fds, maps) = (descriptors(), mapped_segments());
        {
            let mut host = Node::new(&ShmConfig::default());
            let mut guest = Node::new(&ShmConfig::default());
            let links: Vec<_> = (0..300).map(|_| join(&mut guest, &mut host)).collect();
            for round in 0..3u8 {
                for (near, _) in &links {
                    guest.nic.send(*near, &[round], &[]).unwrap();
                }
                until("all heard", &mut [&mut host], |nodes| nodes[0].inbox.messages.len() == 300);
                let mut heard: Vec<u32> = host.inbox.messages.drain(..).map(|(link, _)| link.0).collect();
                heard.sort_unstable();
                heard.dedup();
                assert_eq!(heard.len(), 300);
            }
            for (near, _) in &links[..150] {
                guest.nic.close(*near);
            }
            until("half ends", &mut [&mut host, &mut guest], |nodes| nodes[0].inbox.down.len() == 150);
            drop(guest);
            until("all end", &mut [&mut host], |nodes| nodes[0].inbox.down.len() == 300);
        }
        assert_eq!((descriptors(), mapped_segments()), (fds, maps));
    });
}

#[test]
fn failed_attempts_leave_nothing() {
    alone(|| {
        let mut host = Node::new(&ShmConfig { answer_timeout_ms: 20, ..ShmConfig::default() });
        let silent = Node::new(&ShmConfig::default());
        let gone = super::name();
        let (fds, maps) = (descriptors(), mapped_segments());
        for _ in 0..5 {
            host.nic.connect(&silent.nic.name()).unwrap();
            host.nic.connect(&gone).unwrap();
        }
        until("failures", &mut [&mut host], |nodes| nodes[0].inbox.down.len() == 10);
        assert!(host.nic.handshakes.is_empty());
        assert_eq!((descriptors(), mapped_segments()), (fds, maps));
    });
}

/// Lets all time-outs of the node pass, and polls it once.
fn come_back(node: &mut Node) {
    node.nic.handshakes.iter_mut().for_each(|(_, handshake)| handshake.deadline_ns = 0);
    // The clock must advance.
    std::thread::sleep(Duration::from_millis(20));
    node.nic.control_due = true;
    node.poll();
}

/// A node is away until after the time-out. On its return it finds more answers than one check reports, at
/// either side, and none of its calls counts as late.
#[test]
fn answers_during_an_absence_are_not_late() {
    const CALLS: usize = EVENTS + 36;
    alone(|| {
        let (mut caller, mut host) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
        for _ in 0..CALLS {
            caller.nic.connect(&host.nic.name()).unwrap();
        }
        until("challenges", &mut [&mut host], |nodes| nodes[0].nic.handshakes.len() == CALLS);
        come_back(&mut caller);
        come_back(&mut host);
        come_back(&mut caller);
        assert_eq!((caller.inbox.up.len(), host.inbox.up.len(), &caller.inbox.down[..]), (CALLS, CALLS, &[][..]));
    });
}

/// The resident pages of a quiet pair are the control words and one page of each ring, whatever the size of
/// the rings.
#[test]
fn a_quiet_pair_costs_twelve_kilobytes() {
    alone(|| {
        let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
        let (near, far) = join(&mut a, &mut b);
        for n in 0..1000 {
            a.nic.send(near, &[n as u8; 8], &[]).unwrap();
            b.nic.send(far, &[n as u8; 8], &[]).unwrap();
            until("one each", &mut [&mut a, &mut b], |nodes| nodes.iter().all(|node| !node.inbox.messages.is_empty()));
            a.inbox.messages.clear();
            b.inbox.messages.clear();
        }
        let resident = resident_bytes("memfd:weft-pair");
        let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
        if !["[always]", "[within_size]", "[force]"].iter().any(|mode| huge.contains(mode)) {
            assert!(resident > 0 && resident <= 2 * 12 * 1024, "{resident}: mapped twice in this process");
        }
    });
}

/// Resident bytes of all mappings whose name contains `name`.
fn resident_bytes(name: &str) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut counting = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kib: usize = rest.trim().trim_end_matches(" kB").parse().unwrap();
            sum += if counting { kib * 1024 } else { 0 };
        } else if line.contains('-') && line.contains("p ") || line.contains("s ") && line.contains('/') {
            counting = line.contains(name);
        }
    }
    sum
}

/// Leaves `left` descriptors free. Returns the previous limit, and descriptors that use up the others.
fn use_up_descriptors(left: u64) -> (Rlimit, Vec<OwnedFd>) {
    let before = getrlimit(Resource::Nofile);
    // The limit applies to numbers, among which there are gaps.
    let highest = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest: i32 =
        highest.map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap()).max().unwrap();
    let mut filling: Vec<OwnedFd> = Vec::new();
    while filling.last().is_none_or(|fd| fd.as_raw_fd() < highest) {
        filling.push(std::io::stderr().as_fd().try_clone_to_owned().unwrap());
    }
    let next = filling.last().unwrap().as_raw_fd() as u64 + 1;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + left), maximum: before.maximum }).unwrap();
    (before, filling)
}

/// If descriptors run out, connecting fails with an error. It works again when there are descriptors.
#[test]
fn running_out_of_descriptors_is_an_error() {
    alone(|| {
        let (mut a, mut b) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
        join(&mut a, &mut b);
        let (before, _filling) = use_up_descriptors(1);
        let mut failures = 0;
        for _ in 0..20 {
            match a.nic.connect(&b.nic.name()) {
                Ok(_) => {
                    for _ in 0..2000 {
                        a.poll();
                        b.poll();
                    }
                }
                Err(why) => {
                    assert_eq!(why, weft_engine::nic::LinkError::Descriptors);
                    failures += 1;
                }
            }
        }
        failures += a.inbox.down.len();
        assert_eq!(failures, 20, "callers fail before their time-out");
        // No connection is left at the listener, so that the endpoint can sleep.
        assert!((0..1000).any(|_| b.poll() == 0 && b.nic.park()));
        b.nic.wake();
        setrlimit(Resource::Nofile, before).unwrap();
        join(&mut a, &mut b);
    });
}

/// A shut listener reports a waiting caller once. If another thread has taken even the spare descriptor, the
/// caller is accepted when there are descriptors again, although the host sleeps.
#[test]
fn a_waiting_caller_is_accepted_when_descriptors_return() {
    alone(|| {
        let (mut caller, mut host) = (Node::new(&ShmConfig::default()), Node::new(&ShmConfig::default()));
        caller.nic.connect(&host.nic.name()).unwrap();
        host.nic.control.shut = true;
        host.nic.control.listeners().for_each(|(listener, _)| hang_up_on(listener.as_fd()));
        host.nic.report_again();
        host.nic.control.spare = None;
        let (before, _filling) = use_up_descriptors(0);
        (0..2000).for_each(|_| assert_eq!(host.poll(), 0));
        until("sleep", &mut [&mut host], |nodes| nodes[0].nic.park());
        setrlimit(Resource::Nofile, before).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(host.nic.wait_fd(), PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "the sleep was not ended");
        host.nic.wake();
        until("link", &mut [&mut caller, &mut host], |nodes| nodes.iter().all(|node| node.inbox.up.len() == 1));
        // The host can sleep again.
        until("sleep", &mut [&mut host], |nodes| nodes[0].nic.park());
        assert!(!host.nic.control.recheck_listeners);
    });
}

#[test]
fn the_probe_reports_each_facility() {
    alone(|| {
        let findings = crate::shm::probe();
        assert!(findings.len() >= 6 && findings.iter().all(|finding| !finding.detail.is_empty()));
        // The test suite itself needs these two.
        assert!(findings.iter().take(2).all(|finding| finding.ok), "{findings:?}");
    });
}
