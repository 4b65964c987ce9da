//! Barriers between hosts that the kernel or polls perform: that they do, that connections may be cut at any time, and
//! that everything works where the kernel refuses.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, SocketType, getpeername, shutdown, sockopt};
use weft_fi_sys::*;

use crate::client::Lib;
use crate::collective_case::{Case, Part, What, run};
use crate::collectives::{Group, Member, form, gather_members, leave};
use crate::published;
use crate::rig::MODELS;
use crate::seccomp;
use crate::side::{Scene, scenes, until};

/// Scenes for both executors.
const COMMON: [Scene; 7] = [
    ("performed on chains", performed),
    ("never early", |lib| never_early(lib, Cut::Never)),
    ("cut before the last", |lib| never_early(lib, Cut::BeforeLast)),
    ("cut after the last", |lib| never_early(lib, Cut::AfterLast)),
    ("cut between", |lib| never_early(lib, Cut::Between)),
    ("cut for some", |lib| never_early(lib, Cut::Some)),
    ("cut among many", cut_among_many),
];
const BY_KERNEL: [Scene; 3] = [
    ("without calls", without_calls),
    ("a member leaves the group", |lib| a_member_leaves(lib, 0..6)),
    ("a forked child", a_forked_child),
];
const BY_POLLS: [Scene; 1] = [("a member leaves the group", |lib| a_member_leaves(lib, 0..3))];

pub(crate) fn all(lib: &Lib) {
    scenes(lib, &[&COMMON[..], &BY_KERNEL].concat());
}

/// The members perform the steps when they are polled.
pub(crate) fn polled(lib: &Lib) {
    scenes(lib, &[&COMMON[..], &BY_POLLS].concat());
}

/// Without chains: switched off, or with encryption.
pub(crate) fn off(lib: &Lib) {
    scenes(lib, &[("messages", by_messages)]);
}

/// A sandbox refuses one of the system calls.
pub(crate) fn refused(lib: &Lib) {
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter] {
        std::thread::scope(|scope| {
            let refused = scope.spawn(move || {
                seccomp::refuse(&[(call, libc::EPERM)]);
                by_messages(lib);
            });
            refused.join().unwrap();
        });
    }
}

const fn barrier(seed: u64) -> Case {
    Case::new(What::Barrier, 0, 0, seed)
}

/// Barriers that chains have performed, over all endpoints of this process.
fn performed_on_chains() -> u64 {
    published::endpoints().iter().map(|endpoint| endpoint.kernel_barriers).sum()
}

/// Waits until the endpoints have published a number of barriers.
fn chains_have_performed(members: &[Member<'_>], wanted: usize) {
    until(|| {
        members.iter().for_each(|member| member.side.progress());
        let found = performed_on_chains();
        assert!(found <= wanted as u64, "{found} barriers, of {wanted}");
        (found == wanted as u64).then_some(())
    });
}

/// Groups of several sizes, with other operations in between.
fn performed(lib: &Lib) {
    for (size, progress) in [(2, MODELS[0]), (3, MODELS[1]), (5, MODELS[0]), (8, MODELS[1])] {
        let members = gather_members(lib, size, progress);
        let list: Vec<usize> = (0..size).rev().collect();
        let groups = form(&members, &list);
        for seed in 0..20 {
            let sum = Case::new(What::AllReduce, 0, 3, seed);
            run(&members, &list, &groups, &[barrier(seed), sum, barrier(seed), barrier(seed)], false);
        }
        chains_have_performed(&members, 60 * size);
        leave(members, groups);
    }
}

fn by_messages(lib: &Lib) {
    for progress in MODELS {
        let members = gather_members(lib, 3, progress);
        let list = [0, 1, 2];
        let groups = form(&members, &list);
        for seed in 0..10 {
            run(&members, &list, &groups, &[barrier(seed), barrier(seed)], false);
        }
        assert_eq!(performed_on_chains(), 0);
        leave(members, groups);
    }
}

/// Starts a barrier at a member.
fn enter(members: &[Member<'_>], groups: &[Group], rank: usize) {
    let mut part = Part::new(barrier(0), rank, groups.len());
    assert_eq!(part.start(members[rank].side.ep, groups[rank].addr(), 0), 0);
}

/// Makes no call between the start of a barrier and its end, which is complete at the next read of each queue.
fn without_calls(lib: &Lib) {
    let members = gather_members(lib, 8, FI_PROGRESS_MANUAL);
    let list: Vec<usize> = (0..8).collect();
    let groups = form(&members, &list);
    for _ in 0..5 {
        (0..8).for_each(|rank| enter(&members, &groups, rank));
        std::thread::sleep(Duration::from_millis(50));
        for member in &members {
            member.side.poll().expect("the kernel has performed the barrier").done();
        }
    }
    leave(members, groups);
}

/// The time at which connections are cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Never,
    BeforeLast,
    AfterLast,
    Between,
    /// Before the last member enters, and only every third connection.
    Some,
}

/// Cuts TCP connections of this process: every `nth` end.
fn cut(nth: usize) {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let is_socket = std::fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        if is_socket { path.file_name()?.to_str()?.parse().ok() } else { None }
    });
    // No descriptor is closed while these references exist.
    let ends = entries.map(|number| unsafe { BorrowedFd::borrow_raw(number) });
    let connected = ends.filter(|fd| sockopt::socket_type(fd) == Ok(SocketType::STREAM) && getpeername(fd).is_ok());
    for fd in connected.step_by(nth) {
        let _ = shutdown(fd, Shutdown::Both);
    }
}

/// Reads the completions of a barrier. Returns the members that have left it.
fn left(members: &[Member<'_>], done: &mut [bool]) -> usize {
    for (member, done) in members.iter().zip(done.iter_mut()) {
        if let Some(outcome) = member.side.poll() {
            assert!(!std::mem::replace(done, true));
            assert_eq!(outcome.done().flags, FI_COLLECTIVE);
        }
    }
    done.iter().filter(|done| **done).count()
}

/// No member leaves a barrier before the last one has entered, and all leave it then without an error.
fn never_early(lib: &Lib, when: Cut) {
    for (size, progress) in [(2, MODELS[0]), (3, MODELS[1]), (6, MODELS[0]), (4, MODELS[1])] {
        for moment in 0..if when == Cut::Never { 1 } else { 4 } {
            let members = gather_members(lib, size, progress);
            let list: Vec<usize> = (0..size).collect();
            let groups = form(&members, &list);
            for round in 0..8 {
                let (last, mut done) = (round % size, vec![false; size]);
                (0..size).filter(|&rank| rank != last).for_each(|rank| enter(&members, &groups, rank));
                // Frames are in all places when the connections break.
                let wait = Instant::now();
                while wait.elapsed() < Duration::from_micros(300 * (round as u64 + moment) % 1100) {
                    assert_eq!(left(&members, &mut done), 0, "left early");
                }
                let cuts = round == 3;
                match when {
                    Cut::BeforeLast if cuts => cut(1),
                    Cut::Some if cuts => cut(2 + moment as usize),
                    _ => {}
                }
                for _ in 0..20 {
                    assert_eq!(left(&members, &mut done), 0, "left early");
                }
                enter(&members, &groups, last);
                if when == Cut::AfterLast && cuts {
                    (0..moment).for_each(|_| members[round % size].side.progress());
                    cut(1);
                }
                until(|| (left(&members, &mut done) == size).then_some(()));
                if when == Cut::Between && cuts {
                    cut(1);
                }
            }
            leave(members, groups);
        }
    }
}

/// Several barriers and other operations are under way when the connections break.
fn cut_among_many(lib: &Lib) {
    for (progress, moment) in [(MODELS[0], 0), (MODELS[1], 1), (MODELS[0], 2), (MODELS[1], 3)] {
        let members = gather_members(lib, 5, progress);
        let list = [0, 1, 2, 3, 4];
        let groups = form(&members, &list);
        run(&members, &list, &groups, &[barrier(0)], false);
        for rank in 0..5 {
            for _ in 0..6 {
                enter(&members, &groups, rank);
            }
            if rank == 2 + moment % 3 {
                cut(1 + moment);
            }
        }
        let mut count = [0; 5];
        until(|| {
            for (member, count) in members.iter().zip(&mut count) {
                *count += member.side.poll().map_or(0, |outcome| usize::from(outcome.done().flags == FI_COLLECTIVE));
            }
            (count == [6; 5]).then_some(())
        });
        let sum = Case::new(What::AllReduce, 0, 100, 1);
        run(&members, &list, &groups, &[sum, barrier(1), sum, barrier(2)], false);
        leave(members, groups);
    }
}

/// A member closes the group after its last barrier. The connections break before the others have read its frames.
///
/// From the fourth round on, only that member makes calls before.
fn a_member_leaves(lib: &Lib, rounds: Range<usize>) {
    for round in rounds {
        let members = gather_members(lib, 3, FI_PROGRESS_MANUAL);
        let list = [0, 1, 2];
        let mut groups = form(&members, &list);
        run(&members, &list, &groups, &[barrier(0)], false);
        (0..3).for_each(|rank| enter(&members, &groups, rank));
        let first = round % 3;
        if round < 3 {
            cut(2);
        }
        until(|| {
            members.iter().for_each(|member| {
                if round < 3 {
                    member.side.progress()
                }
            });
            members[first].side.poll()
        })
        .done();
        groups.remove(first).close();
        cut(1);
        for member in members.iter().enumerate().filter(|(rank, _)| *rank != first).map(|(_, member)| member) {
            let entry = until(|| {
                members.iter().for_each(|other| other.side.progress());
                member.side.poll()
            });
            assert_eq!(entry.done().flags, FI_COLLECTIVE);
        }
        leave(members, groups);
    }
}

/// A child that is forked during a barrier has no copy of rings and connections, and its end changes nothing.
fn a_forked_child(lib: &Lib) {
    let members = gather_members(lib, 3, FI_PROGRESS_MANUAL);
    let list = [0, 1, 2];
    let groups = form(&members, &list);
    for last in 0..3 {
        let mut done = vec![false; 3];
        (0..3).filter(|&rank| rank != last).for_each(|rank| enter(&members, &groups, rank));
        let child = unsafe { libc::fork() };
        if child == 0 {
            unsafe { libc::_exit(i32::from(has_ring())) };
        }
        assert!(has_ring());
        let mut status = -1;
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child has a copy of a ring");
        assert_eq!(left(&members, &mut done), 0);
        enter(&members, &groups, last);
        until(|| (left(&members, &mut done) == 3).then_some(()));
    }
    chains_have_performed(&members, 9);
    leave(members, groups);
}

/// Whether this process has a descriptor of a ring. Allocates nothing.
fn has_ring() -> bool {
    const NAME: &[u8] = b"anon_inode:[io_uring]";
    (0..1024_u32).any(|number| {
        let mut path = *b"/proc/self/fd/0000\0";
        for (place, digit) in (14..18).zip([1000, 100, 10, 1]) {
            path[place] = b'0' + (number / digit % 10) as u8;
        }
        // The kernel knows descriptors by their numbers without leading zeros.
        let start = (14..17).find(|&at| path[at] != b'0').unwrap_or(17);
        path.copy_within(start.., 14);
        let mut target = [0; 64];
        let len = unsafe { libc::readlink(path.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
        usize::try_from(len).is_ok_and(|len| target[..len] == *NAME)
    })
}
