//! Blocking calls: reads, counters, descriptors, and a target that makes no calls.

use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use weft_fi_sys as sys;

use super::side::{Options, Side, close, ok, pair, until, zeroed};

fn sread(side: &Side, timeout_ms: i32) -> isize {
    let mut entry: sys::fi_cq_tagged_entry = zeroed();
    let sread = unsafe { (*(*side.cq).ops).sread.unwrap() };
    unsafe { sread(side.cq, (&raw mut entry).cast(), 1, null(), timeout_ms) }
}

#[test]
fn blocked_readers_wake_up() {
    for progress in [sys::FI_PROGRESS_MANUAL, sys::FI_PROGRESS_AUTO] {
        let (a, b, to_b, _) = pair(Options { threading: sys::FI_THREAD_SAFE, progress, ..Options::default() });
        let begin = Instant::now();
        assert_eq!(sread(&b, 30), -11, "timed out");
        assert!(begin.elapsed() >= Duration::from_millis(29));
        let mut buffers = vec![[0_u8; 8]; 30];
        for buffer in &mut buffers {
            assert_eq!(b.recv(buffer, 0), 0);
        }
        let read = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for _ in 0..30 {
                    assert_eq!(sread(&b, 20_000), 1);
                    read.fetch_add(1, Ordering::Relaxed);
                }
                // One more read, for the signal.
                assert_eq!(sread(&b, 20_000), -11);
            });
            for round in 0..30 {
                // The interval mostly lets the reader fall asleep.
                std::thread::sleep(Duration::from_millis(round % 5));
                until(|| (a.inject(b"wake", to_b) == 0).then_some(()));
                let _ = a.cq_read(0);
            }
            // The first message may have waited for the connection. The reader must sleep when it is signaled.
            until(|| {
                let _ = a.cq_read(0);
                std::thread::sleep(Duration::from_millis(1));
                (read.load(Ordering::Relaxed) == 30).then_some(())
            });
            std::thread::sleep(Duration::from_millis(20));
            ok(unsafe { ((*(*b.cq).ops).signal.unwrap())(b.cq) });
            reader.join().unwrap();
        });
        assert!(begin.elapsed() < Duration::from_secs(10), "a wake-up was lost");
    }
}

/// A thread waits without a time-out, while another thread reads the same queue and is sometimes faster.
#[test]
fn a_blocked_reader_continues_to_wait_when_another_was_faster() {
    const TIME: Duration = Duration::from_millis(1500);
    let (a, b, to_b, _) = pair(Options { threading: sys::FI_THREAD_SAFE, ..Options::default() });
    let [read, empty] = [(); 2].map(|()| AtomicU32::new(0));
    let over = AtomicBool::new(false);
    let mut buffer = [0_u8; 8];
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            loop {
                match sread(&b, -1) {
                    1 => _ = read.fetch_add(1, Ordering::Relaxed),
                    _ if over.load(Ordering::Relaxed) => return,
                    result => {
                        assert_eq!(result, -11);
                        empty.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        let begin = Instant::now();
        let mut sent = 0;
        while begin.elapsed() < TIME {
            assert_eq!(b.recv(&mut buffer, 0), 0);
            until(|| (a.inject(b"faster", to_b) == 0).then_some(()).or_else(|| a.cq_read(0).ok().and(None)));
            sent += 1;
            until(|| {
                if b.poll().is_some() {
                    read.fetch_add(1, Ordering::Relaxed);
                }
                (read.load(Ordering::Relaxed) == sent).then_some(())
            });
        }
        over.store(true, Ordering::Relaxed);
        until(|| {
            ok(unsafe { ((*(*b.cq).ops).signal.unwrap())(b.cq) });
            std::thread::sleep(Duration::from_millis(1));
            reader.is_finished().then_some(())
        });
    });
    assert_eq!(empty.into_inner(), 0, "a read without a time-out returned without an entry");
}

#[test]
fn counter_waits_wake_up() {
    let (a, b, to_b, _) = pair(Options { threading: sys::FI_THREAD_SAFE, ..Options::default() });
    let recvs = b.counter();
    ok(b.bind(recvs.cast(), sys::FI_RECV));
    let mut buffers = [[0_u8; 8]; 10];
    for buffer in &mut buffers {
        assert_eq!(b.recv(buffer, 0), 0);
    }
    let wait = unsafe { (*(*recvs).ops).wait.unwrap() };
    let shared = recvs as usize;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let recvs = shared as *mut sys::fid_cntr;
            assert_eq!(unsafe { wait(recvs, 10, 20_000) }, 0);
            assert_eq!(unsafe { wait(recvs, 11, 20_000) }, -259, "an error was counted");
        });
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(2));
            until(|| (a.inject(b"count", to_b) == 0).then_some(()));
            let _ = a.cq_read(0);
        }
        until(|| {
            let _ = a.cq_read(0);
            std::thread::sleep(Duration::from_millis(1));
            (unsafe { (*(*recvs).ops).read.unwrap()(recvs) } == 10).then_some(())
        });
        // The waiter counts errors from the start of its wait, which may come later than this error.
        while !waiter.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            ok(unsafe { ((*(*recvs).ops).adderr.unwrap())(recvs, 1) });
        }
        waiter.join().unwrap();
    });
}

#[test]
fn a_target_that_makes_no_calls_is_progressed() {
    let options = Options { threading: sys::FI_THREAD_SAFE, progress: sys::FI_PROGRESS_AUTO, ..Options::default() };
    let (a, b, to_b, _) = pair(options);
    let mut memory = vec![7_u8; 1 << 20];
    let mr = b.register(&mut memory, sys::FI_REMOTE_READ, 5);
    let read = unsafe { (*(*a.ep).rma).read.unwrap() };
    let mut slowest = Duration::ZERO;
    for len in [8_usize, 4096, 1 << 20] {
        for _ in 0..20 {
            let mut back = vec![0_u8; len];
            let begin = Instant::now();
            assert_eq!(unsafe { read(a.ep, back.as_mut_ptr().cast(), len, null_mut(), to_b, 0, 5, null_mut()) }, 0);
            until(|| a.poll());
            slowest = slowest.max(begin.elapsed());
            assert!(back.iter().all(|&byte| byte == 7));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(slowest < Duration::from_secs(5), "the slowest read took {slowest:?}");
    ok(close(mr));
}

#[test]
fn a_descriptor_is_readable_when_there_are_entries() {
    for progress in [sys::FI_PROGRESS_MANUAL, sys::FI_PROGRESS_AUTO] {
        let options = Options { threading: sys::FI_THREAD_SAFE, progress, wait: sys::FI_WAIT_FD, ..Options::default() };
        let (a, b, to_b, _) = pair(options);
        let mut fd = -1;
        let control = unsafe { (*(*b.cq.cast::<sys::fid>()).ops).control.unwrap() };
        ok(unsafe { control(b.cq.cast(), sys::FI_GETWAIT.cast_signed(), (&raw mut fd).cast()) });
        let trywait = unsafe { (*(*b.fabric).ops).trywait.unwrap() };
        let mut buffers = vec![[0_u8; 8]; 20];
        for buffer in &mut buffers {
            assert_eq!(b.recv(buffer, 0), 0);
        }
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut got = 0;
                while got < 20 {
                    if b.poll().is_some() {
                        got += 1;
                        continue;
                    }
                    let mut fids = [b.cq.cast::<sys::fid>()];
                    if unsafe { trywait(b.fabric, fids.as_mut_ptr(), 1) } != 0 {
                        continue;
                    }
                    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    assert_eq!(
                        unsafe { libc::poll(&raw mut poll, 1, 20_000) },
                        1,
                        "the descriptor did not become readable"
                    );
                }
            });
            for round in 0..20 {
                std::thread::sleep(Duration::from_millis(round % 4));
                until(|| (a.inject(b"ready", to_b) == 0).then_some(()));
                let _ = a.cq_read(0);
            }
            until(|| {
                let _ = a.cq_read(0);
                reader.is_finished().then_some(())
            });
            reader.join().unwrap();
        });
    }
}

#[test]
fn a_condition_variable_is_signalled() {
    let options = Options {
        threading: sys::FI_THREAD_SAFE,
        progress: sys::FI_PROGRESS_AUTO,
        wait: sys::FI_WAIT_MUTEX_COND,
        ..Options::default()
    };
    let (a, b, to_b, _) = pair(options);
    let mut objects: sys::fi_mutex_cond = zeroed();
    let control = unsafe { (*(*b.cq.cast::<sys::fid>()).ops).control.unwrap() };
    ok(unsafe { control(b.cq.cast(), sys::FI_GETWAIT.cast_signed(), (&raw mut objects).cast()) });
    let trywait = unsafe { (*(*b.fabric).ops).trywait.unwrap() };
    let mut buffer = [0_u8; 8];
    for _ in 0..10 {
        assert_eq!(b.recv(&mut buffer, 0), 0);
        unsafe { libc::pthread_mutex_lock(objects.mutex) };
        let mut fids = [b.cq.cast::<sys::fid>()];
        // No other thread polls this side. The progress thread receives the message, and the condition is signalled.
        until(|| (unsafe { trywait(b.fabric, fids.as_mut_ptr(), 1) } == 0).then_some(()));
        a.inject_to(b"signal", to_b, &a);
        let mut limit: libc::timespec = zeroed();
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut limit) };
        limit.tv_sec += 20;
        assert_eq!(unsafe { libc::pthread_cond_timedwait(objects.cond, objects.mutex, &raw const limit) }, 0);
        unsafe { libc::pthread_mutex_unlock(objects.mutex) };
        until(|| b.poll());
    }
}

#[test]
fn threads_share_an_endpoint() {
    const EACH: usize = 3000;
    for progress in [sys::FI_PROGRESS_MANUAL, sys::FI_PROGRESS_AUTO] {
        let (a, b, to_b, _) = pair(Options { threading: sys::FI_THREAD_SAFE, progress, ..Options::default() });
        // The buffers outlive the receives.
        let mut buffers = vec![[0_u8; 8]; 3 * EACH];
        std::thread::scope(|scope| {
            for (thread, buffers) in (0..3_u64).zip(buffers.chunks_mut(EACH)) {
                let (a, b) = (&a, &b);
                scope.spawn(move || {
                    for (round, buffer) in (0_u64..).zip(buffers) {
                        let tag = thread << 32 | round;
                        until(|| (b.trecv(buffer, u64::MAX, tag, 0, 1) == 0).then_some(()));
                        until(|| match a.tinject(&tag.to_ne_bytes(), to_b, tag) {
                            0 => Some(()),
                            _ => a.cq_read(0).ok().and(None),
                        });
                    }
                });
            }
            scope.spawn(|| {
                let mut got = 0;
                while got < 3 * EACH {
                    let _ = a.cq_read(0);
                    got += b.cq_read(8).map_or(0, |entries| entries.len());
                }
            });
        });
        assert!(a.poll().is_none() && b.poll().is_none());
        let tags = (0..3_u64).flat_map(|thread| (0..EACH as u64).map(move |round| thread << 32 | round));
        assert!(tags.zip(&buffers).all(|(tag, buffer)| *buffer == tag.to_ne_bytes()));
    }
}
