//! A client forks while it has endpoints open, with threads of ours at work: the child, which has none of them, can end as it likes, and
//! the parent goes on.

use std::io::Read;
use std::os::fd::{FromRawFd, RawFd};
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::Lib;
use crate::side::{PATIENCE, Side, acquaint, scenes, works};

pub(crate) fn all(lib: &Lib) {
    scenes(lib, &[("a child exits", a_child_exits)]);
}

/// What a child that calls exit() prints, which must end well.
fn printed_at_exit() -> String {
    let mut ends: [RawFd; 2] = [-1; 2];
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        unsafe {
            libc::dup2(ends[1], 2);
            libc::exit(0);
        }
    }
    unsafe { libc::close(ends[1]) };
    let end = Instant::now() + PATIENCE;
    let mut status = 0;
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > end {
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut text = String::new();
    unsafe { std::fs::File::from_raw_fd(ends[0]) }.read_to_string(&mut text).unwrap();
    assert_eq!(status, 0, "{text}");
    text
}

fn a_child_exits(lib: &Lib) {
    let open = || Side::with(lib, 0, |hints| hints.domain().data_progress = FI_PROGRESS_AUTO);
    let (a, b, to_b, _) = acquaint(open(), open());
    for _ in 0..5 {
        works(&a, &b, to_b);
        assert_eq!(printed_at_exit(), "");
    }
    works(&a, &b, to_b);
}
