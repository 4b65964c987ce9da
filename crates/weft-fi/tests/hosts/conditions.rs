//! Clients that wait on a mutex and a condition variable (FI_WAIT_MUTEX_COND), as fi_poll(3) describes. The
//! client locks the mutex before `fi_trywait`, and the wait releases it.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::open;
use crate::side::{PATIENCE, Side, memory, pattern, scenes, until};

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("a queue by one thread", |lib| by_one_thread(lib, false)),
            ("a set by one thread", |lib| by_one_thread(lib, true)),
            ("a queue with automatic progress", |lib| with_automatic_progress(lib, false)),
            ("a set with automatic progress", |lib| with_automatic_progress(lib, true)),
            ("closed under the mutex", closed_under_the_mutex),
        ],
    );
}

const ROUNDS: usize = 400;
/// The interval at which a busy client checks the object.
const BRIEF: Duration = Duration::from_micros(20);

/// A mutex and a condition variable.
#[derive(Clone, Copy)]
struct Condition(fi_mutex_cond);

impl Condition {
    fn of<F>(object: *mut F) -> Self {
        let mut found: fi_mutex_cond = unsafe { std::mem::zeroed() };
        assert_eq!(control(object, FI_GETWAIT, (&raw mut found).cast()), 0);
        Self(found)
    }

    /// Locks the mutex by `pthread_mutex_timedlock`, so that a deadlock fails the test.
    fn lock(self) {
        let end = time_after(PATIENCE);
        assert_eq!(unsafe { libc::pthread_mutex_timedlock(self.0.mutex, &end) }, 0, "the mutex stays locked");
    }

    fn unlock(self) {
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.0.mutex) }, 0);
    }

    /// Waits with the mutex held. Returns false on a timeout.
    fn wait(self, time: Duration) -> bool {
        let end = time_after(time);
        match unsafe { libc::pthread_cond_timedwait(self.0.cond, self.0.mutex, &end) } {
            0 => true,
            result => {
                assert_eq!(result, libc::ETIMEDOUT);
                false
            }
        }
    }
}

fn time_after(time: Duration) -> libc::timespec {
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) }, 0);
    now.tv_sec += time.as_secs() as libc::time_t;
    now.tv_nsec += i64::from(time.subsec_nanos());
    if now.tv_nsec >= 1_000_000_000 {
        (now.tv_sec, now.tv_nsec) = (now.tv_sec + 1, now.tv_nsec - 1_000_000_000);
    }
    now
}

/// A side whose completions are waited for on a condition: that of the queue, or that of the queue's wait
/// set.
struct Waiter<'a> {
    side: Side<'a>,
    cq: *mut fid_cq,
    /// Null if the queue is in no set.
    set: *mut fid_wait,
    condition: Condition,
}

impl<'a> Waiter<'a> {
    fn new(lib: &'a Lib, in_set: bool, progress: fi_progress) -> Self {
        let side = Side::unbound(lib, 0, |hints| hints.domain().data_progress = progress);
        let (fabric, mut set) = (side.opened.fabric, null_mut());
        let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
        (attr.format, attr.wait_obj) = (FI_CQ_FORMAT_TAGGED, FI_WAIT_MUTEX_COND);
        if in_set {
            let mut of_set = fi_wait_attr { wait_obj: FI_WAIT_MUTEX_COND, flags: 0 };
            assert_eq!(unsafe { (*(*fabric).ops).wait_open.unwrap()(fabric, &mut of_set, &mut set) }, 0);
            (attr.wait_obj, attr.wait_set) = (FI_WAIT_SET, set);
        }
        let cq = open!(side.opened.domain, cq_open, &mut attr).unwrap();
        assert_eq!([bind(side.ep, side.av, 0), bind(side.ep, cq, FI_TRANSMIT | FI_RECV), side.enable()], [0; 3]);
        let condition = if in_set { Condition::of(set) } else { Condition::of(cq) };
        Self { side, cq, set, condition }
    }

    fn take(&self) -> bool {
        let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
        let result = unsafe { (*(*self.cq).ops).read.unwrap()(self.cq, (&raw mut entry).cast(), 1) };
        assert!(result == 1 || result == -(FI_EAGAIN as isize), "fi_cq_read: {result}");
        result == 1
    }

    fn may_sleep(&self) -> bool {
        let mut fids = [if self.set.is_null() { self.cq.cast::<fid>() } else { self.set.cast() }];
        let fabric = self.side.opened.fabric;
        let result = unsafe { (*(*fabric).ops).trywait.unwrap()(fabric, fids.as_mut_ptr(), 1) };
        assert!(result == 0 || result == -FI_EAGAIN, "fi_trywait: {result}");
        result == 0
    }

    fn close(mut self) {
        self.side.close_ep();
        assert_eq!(close(self.cq), 0);
        assert!(self.set.is_null() || close(self.set) == 0);
    }
}

/// One thread does all the work. Its waits are short, since no other thread would wake it.
fn by_one_thread(lib: &Lib, in_set: bool) {
    let waiter = Waiter::new(lib, in_set, FI_PROGRESS_MANUAL);
    let a = Side::new(lib);
    let to_b = a.insert(&waiter.side.name());
    for _ in 0..5 {
        waiter.side.trecv(memory(8), 2);
        a.tsend(pattern(8), to_b, 1);
        waiter.condition.lock();
        until(|| {
            if waiter.take() {
                return Some(());
            }
            if waiter.may_sleep() {
                // The message arrives now.
                (0..300).for_each(|_| a.progress());
                waiter.condition.wait(Duration::from_millis(5));
            }
            None
        });
        waiter.condition.unlock();
        until(|| {
            waiter.take();
            a.poll()
        })
        .done();
    }
    waiter.close();
}

/// The objects of the sending thread.
struct Sender<'a>(Side<'a>);

// One thread uses it at a time.
unsafe impl Send for Sender<'_> {}

/// The progress thread makes progress while the client waits, and wakes the client.
fn with_automatic_progress(lib: &Lib, in_set: bool) {
    let waiter = Waiter::new(lib, in_set, FI_PROGRESS_AUTO);
    let a = Side::new(lib);
    let to_b = a.insert(&waiter.side.name());
    let (taken, sender) = (AtomicUsize::new(0), Sender(a));
    let (late, sender) = std::thread::scope(|scope| {
        let taken = &taken;
        let thread = scope.spawn(move || {
            let sender = sender;
            let a = &sender.0;
            let mut random = 1_u32;
            for n in 0..ROUNDS {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                std::thread::sleep(Duration::from_micros((random >> 22).into()));
                a.tsend(pattern(8), to_b, 1);
                a.next(&[]).done();
                until(|| {
                    a.progress();
                    (taken.load(Ordering::Acquire) > n).then_some(())
                });
            }
            sender
        });
        let mut late = 0;
        for n in 1..=ROUNDS {
            waiter.side.trecv(memory(8), 2);
            let start = Instant::now();
            waiter.condition.lock();
            while !waiter.take() {
                if !waiter.may_sleep() {
                    continue;
                }
                if n % 2 == 0 {
                    assert!(waiter.condition.wait(PATIENCE), "round {n}: a lost wake-up");
                } else {
                    // The message may arrive while the client checks again.
                    waiter.condition.wait(BRIEF);
                }
            }
            waiter.condition.unlock();
            late += usize::from(start.elapsed() >= Duration::from_millis(100));
            taken.store(n, Ordering::Release);
        }
        (late, thread.join().unwrap())
    });
    assert!(late < ROUNDS / 10, "{late} wake-ups came late");
    drop(sender);
    waiter.close();
}

/// A queue is signaled and closed while the client holds the mutex. Neither call waits for the mutex.
fn closed_under_the_mutex(lib: &Lib) {
    let side = Side::new(lib);
    let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
    (attr.format, attr.wait_obj) = (FI_CQ_FORMAT_TAGGED, FI_WAIT_MUTEX_COND);
    for pause in [0, 0, 20] {
        let cq: *mut fid_cq = open!(side.opened.domain, cq_open, &mut attr).unwrap();
        let condition = Condition::of(cq);
        condition.lock();
        let results: [c_int; 2] = [unsafe { (*(*cq).ops).signal.unwrap()(cq) }, {
            std::thread::sleep(Duration::from_millis(pause));
            close(cq)
        }];
        assert_eq!(results, [0; 2]);
        condition.unlock();
    }
}
