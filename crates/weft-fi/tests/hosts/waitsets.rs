//! Wait sets: a thread waits for queues, counters and event queues at once.
//!
//! Messages that arrive at random moments while the receiver goes to sleep show that no wake-up is lost.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::open;
use crate::rig::{Cntr, MODELS};
use crate::side::{PATIENCE, Side, memory, pattern, scenes, until};

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("sleepers_in_calls", |lib| sleepers(lib, true)),
            ("sleepers_on_descriptors", |lib| sleepers(lib, false)),
            ("other_members", other_members),
            ("reported_once", reported_once),
            ("reported_again", reported_again),
            ("set_back_under_a_sleeper", set_back_under_a_sleeper),
            ("closed_meanwhile", closed_meanwhile),
            ("wait_set_misuse", wait_set_misuse),
        ],
    );
}

const BADFLAGS: c_int = FI_EBADFLAGS as c_int;
const ROUNDS: usize = 200;

/// A wait set. Any thread may use it.
#[derive(Clone, Copy)]
struct WaitSet(*mut fid_wait);

unsafe impl Send for WaitSet {}

impl WaitSet {
    fn open(fabric: *mut fid_fabric, wait_obj: fi_wait_obj, flags: u64) -> Result<Self, c_int> {
        let (mut attr, mut set) = (fi_wait_attr { wait_obj, flags }, null_mut());
        match unsafe { (*(*fabric).ops).wait_open.unwrap()(fabric, &mut attr, &mut set) } {
            0 => Ok(Self(set)),
            result => {
                assert!(set.is_null());
                Err(-result)
            }
        }
    }

    fn new(side: &Side<'_>, wait_obj: fi_wait_obj) -> Self {
        Self::open(side.opened.fabric, wait_obj, 0).unwrap()
    }

    fn wait(self, timeout: Duration) -> c_int {
        unsafe { (*(*self.0).ops).wait.unwrap()(self.0, timeout.as_millis() as c_int) }
    }

    fn trywait(self, side: &Side<'_>) -> c_int {
        let mut fids = [self.0.cast::<fid>()];
        unsafe { (*(*side.opened.fabric).ops).trywait.unwrap()(side.opened.fabric, fids.as_mut_ptr(), 1) }
    }

    fn descriptor(self) -> c_int {
        let mut fd = -1;
        assert_eq!(control(self.0, FI_GETWAIT, (&raw mut fd).cast()), 0);
        fd
    }

    fn cq(self, side: &Side<'_>) -> Result<*mut fid_cq, c_int> {
        let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
        (attr.format, attr.wait_obj, attr.wait_set) = (FI_CQ_FORMAT_TAGGED, FI_WAIT_SET, self.0);
        open!(side.opened.domain, cq_open, &mut attr)
    }

    fn cntr(self, side: &Side<'_>) -> Result<Cntr, c_int> {
        let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
        (attr.wait_obj, attr.wait_set) = (FI_WAIT_SET, self.0);
        open!(side.opened.domain, cntr_open, &mut attr).map(Cntr)
    }

    fn eq(self, side: &Side<'_>) -> Result<*mut fid_eq, c_int> {
        side.opened.eq(|attr| (attr.flags, attr.wait_obj, attr.wait_set) = (FI_WRITE, FI_WAIT_SET, self.0))
    }
}

/// Waits in `epoll_wait` on another epoll descriptor that watches the set's.
fn epoll(fd: c_int, timeout: Duration) -> bool {
    unsafe {
        let outer = libc::epoll_create1(0);
        let _closed = OwnedFd::from_raw_fd(outer);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        assert_eq!(libc::epoll_ctl(outer, libc::EPOLL_CTL_ADD, fd, &mut event), 0);
        libc::epoll_wait(outer, &mut event, 1, timeout.as_millis() as c_int) == 1
    }
}

fn take(cq: *mut fid_cq) -> bool {
    let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
    let result = unsafe { (*(*cq).ops).read.unwrap()(cq, (&raw mut entry).cast(), 1) };
    assert!(result == 1 || result == -(FI_EAGAIN as isize), "fi_cq_read: {result}");
    result == 1
}

/// The objects of the sending thread. The receiver's objects belong to the main thread.
struct Sender<'a>(Side<'a>);

// One thread uses it at a time.
unsafe impl Send for Sender<'_> {}

/// Receives complete in a queue and count in a counter, which the receiver reads in turn. Sends complete in
/// another queue of the set, which the scene ignores.
fn sleepers(lib: &Lib, in_calls: bool) {
    let kinds: &[fi_wait_obj] =
        if in_calls { &[FI_WAIT_UNSPEC, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD] } else { &[FI_WAIT_FD] };
    for progress in MODELS {
        for &kind in kinds {
            let a = Side::with(lib, 0, |hints| hints.domain().data_progress = progress);
            let mut b = Side::unbound(lib, 0, |hints| hints.domain().data_progress = progress);
            let set = WaitSet::new(&b, kind);
            let (sent, received, counted) = (set.cq(&b).unwrap(), set.cq(&b).unwrap(), set.cntr(&b).unwrap());
            assert_eq!(bind(b.ep, b.av, 0), 0);
            assert_eq!([bind(b.ep, sent, FI_TRANSMIT), bind(b.ep, received, FI_RECV)], [0; 2]);
            assert_eq!([bind(b.ep, counted.0, FI_RECV), b.enable()], [0; 2]);
            let to_b = a.insert(&b.name());
            let taken = AtomicUsize::new(0);
            let sender = Sender(a);
            let slow = std::thread::scope(|scope| {
                let taken = &taken;
                let thread = scope.spawn(move || {
                    let sender = sender;
                    let a = &sender.0;
                    let mut random = 1_u32;
                    for n in 0..ROUNDS {
                        // The message arrives while the receiver still spins, while it goes to sleep, or
                        // while it sleeps.
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
                let mut slow = 0;
                for n in 1..=ROUNDS {
                    b.trecv(memory(8), 2);
                    let start = Instant::now();
                    // Odd rounds read the counter.
                    let arrived = || if n % 2 == 0 { take(received) } else { counted.read() == n as u64 };
                    while !arrived() {
                        if in_calls {
                            assert_eq!(set.wait(PATIENCE), 0, "round {n} of kind {kind}");
                        } else if set.trywait(&b) == 0 {
                            assert!(epoll(set.descriptor(), PATIENCE), "round {n}: a lost wake-up");
                        }
                    }
                    if n % 2 == 1 {
                        until(|| take(received).then_some(()));
                    }
                    // A lost wake-up inside a call costs at least this time.
                    slow += usize::from(start.elapsed() >= Duration::from_millis(100));
                    taken.store(n, Ordering::Release);
                }
                drop(thread.join().unwrap());
                slow
            });
            assert!(slow < ROUNDS / 10, "{slow} wake-ups came late");
            b.close_ep();
            assert_eq!(close(set.0), -FI_EBUSY, "members are open");
            assert_eq!([close(sent), close(received), close(counted.0), close(set.0)], [0; 4]);
        }
    }
}

fn write(eq: *mut fid_eq) {
    let bytes = [1_u8; 4];
    assert_eq!(unsafe { (*(*eq).ops).write.unwrap()(eq, 1, bytes.as_ptr().cast(), 4, 0) }, 4);
}

fn read(eq: *mut fid_eq) -> isize {
    let mut bytes = [0_u8; 8];
    unsafe { (*(*eq).ops).read.unwrap()(eq, &mut 0, bytes.as_mut_ptr().cast(), 8, 0) }
}

/// Event queues, counters that the client raises, and signals; a wait without any event; members that join
/// and leave.
fn other_members(lib: &Lib) {
    let side = Side::new(lib);
    let set = WaitSet::new(&side, FI_WAIT_FD);
    let nap = Duration::from_millis(30);
    let in_vain = || {
        let start = Instant::now();
        assert_eq!(set.wait(nap), -FI_ETIMEDOUT);
        assert!(start.elapsed() >= nap);
        assert_eq!(set.wait(Duration::ZERO), -FI_ETIMEDOUT);
        assert_eq!(set.trywait(&side), 0);
        assert!(!epoll(set.descriptor(), Duration::ZERO));
    };
    in_vain();
    let (eq, cntr, cq) = (set.eq(&side).unwrap(), set.cntr(&side).unwrap(), set.cq(&side).unwrap());
    in_vain();
    let address = eq as usize;
    let later = |run: fn(usize), address: usize| {
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            run(address);
        });
        assert_eq!(set.wait(PATIENCE), 0);
        thread.join().unwrap();
    };
    later(|eq| write(eq as *mut fid_eq), address);
    assert_eq!(set.wait(PATIENCE), 0, "the set stays ready until the event is read");
    assert_eq!(set.trywait(&side), -FI_EAGAIN);
    assert_eq!(read(eq), 4);
    in_vain();
    write(eq);
    assert!(epoll(set.descriptor(), PATIENCE));
    assert_eq!(read(eq), 4);
    in_vain();
    later(|cntr| Cntr(cntr as *mut fid_cntr).add(3), cntr.0 as usize);
    in_vain();
    // An event before the wait ends the wait at once.
    cntr.fail(1);
    assert_eq!(set.wait(PATIENCE), 0);
    in_vain();
    later(|cq| assert_eq!(unsafe { (*(*(cq as *mut fid_cq)).ops).signal.unwrap()(cq as *mut fid_cq) }, 0), cq as usize);
    in_vain();
    assert_eq!([close(cq), close(cntr.0)], [0; 2]);
    in_vain();
    write(eq);
    assert_eq!(set.wait(PATIENCE), 0);
    assert_eq!([close(set.0), close(eq), close(set.0)], [-FI_EBUSY, 0, 0]);
}

/// fi_trywait reports a signaled queue and a changed counter once, for the object or for its set.
fn reported_once(lib: &Lib) {
    let side = Side::new(lib);
    let set = WaitSet::new(&side, FI_WAIT_FD);
    let trywait = |object: *mut fid| {
        let (fabric, mut fids) = (side.opened.fabric, [object]);
        unsafe { (*(*fabric).ops).trywait.unwrap()(fabric, fids.as_mut_ptr(), 1) }
    };
    let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
    attr.wait_obj = FI_WAIT_FD;
    let alone: *mut fid_cq = open!(side.opened.domain, cq_open, &mut attr).unwrap();
    let (cq, cntr) = (set.cq(&side).unwrap(), set.cntr(&side).unwrap());
    let signal = |cq: *mut fid_cq| assert_eq!(unsafe { (*(*cq).ops).signal.unwrap()(cq) }, 0);
    let mut fd = -1;
    assert_eq!(control(alone, FI_GETWAIT, (&raw mut fd).cast()), 0);
    let reported_once_by = |object: *mut fid, fd: c_int| {
        assert_eq!(trywait(object), -FI_EAGAIN);
        assert_eq!(trywait(object), 0);
        assert!(!epoll(fd, Duration::ZERO), "the next event is waited for");
    };
    for _ in 0..2 {
        signal(alone);
        reported_once_by(alone.cast(), fd);
        // A thread may sleep already when the signal arrives.
        signal(alone);
        assert!(epoll(fd, PATIENCE));
        reported_once_by(alone.cast(), fd);
        signal(cq);
        assert!(epoll(set.descriptor(), PATIENCE));
        reported_once_by(set.0.cast(), set.descriptor());
        signal(cq);
        reported_once_by(cq.cast(), set.descriptor());
        cntr.add(1);
        reported_once_by(set.0.cast(), set.descriptor());
        cntr.fail(1);
        reported_once_by(cntr.0.cast(), set.descriptor());
        signal(cq);
        cntr.add(1);
        assert_eq!(set.wait(PATIENCE), 0);
        assert_eq!(trywait(set.0.cast()), 0);
    }
    assert_eq!([close(alone), close(cq), close(cntr.0), close(set.0)], [0; 4]);
}

/// A counter that was set back reports a change when it reaches a reported value again.
fn reported_again(lib: &Lib) {
    let side = Side::new(lib);
    let set = WaitSet::new(&side, FI_WAIT_FD);
    let cntr = set.cntr(&side).unwrap();
    let phases: [fn(Cntr); 4] = [
        |cntr| {
            cntr.set(0);
            cntr.add(1);
        },
        |cntr| {
            cntr.add(u64::MAX);
            cntr.add(1);
        },
        |cntr| {
            cntr.set_errors(0);
            cntr.fail(1);
        },
        |cntr| {
            cntr.fail(u64::MAX);
            cntr.fail(1);
        },
    ];
    for (at, phase) in phases.into_iter().enumerate() {
        for _ in 0..2 {
            phase(cntr);
            assert_eq!(set.wait(PATIENCE), 0, "phase {at}");
            assert_eq!(set.trywait(&side), 0, "the change is reported once");
            phase(cntr);
            assert_eq!(set.trywait(&side), -FI_EAGAIN, "phase {at}");
            assert_eq!(set.trywait(&side), 0);
        }
    }
    assert_eq!([close(cntr.0), close(set.0)], [0; 2]);
}

/// A counter is set to a lower value, or an addition wraps around to one. This wakes a client that sleeps
/// after fi_trywait.
fn set_back_under_a_sleeper(lib: &Lib) {
    let side = Side::new(lib);
    let set = WaitSet::new(&side, FI_WAIT_FD);
    let cntr = set.cntr(&side).unwrap();
    cntr.add(5);
    let changes: [fn(Cntr); 3] = [|cntr| cntr.set(4), |cntr| cntr.add(u64::MAX), |cntr| cntr.set(0)];
    for change in changes {
        until(|| (set.trywait(&side) == 0).then_some(()));
        assert!(!epoll(set.descriptor(), Duration::ZERO));
        change(cntr);
        assert!(epoll(set.descriptor(), PATIENCE), "the counter is {}", cntr.read());
    }
    assert_eq!([close(cntr.0), close(set.0)], [0; 2]);
}

/// Members are closed and opened while a busy thread waits for the set.
fn closed_meanwhile(lib: &Lib) {
    let side = Side::new(lib);
    let set = WaitSet::new(&side, FI_WAIT_YIELD);
    let first = set.cq(&side).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let set = set;
            set.wait(PATIENCE)
        });
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        assert_eq!(close(first), 0);
        assert!(start.elapsed() < Duration::from_secs(1), "the close waited for the waiting thread");
        let late = set.cq(&side).unwrap();
        assert_eq!(unsafe { (*(*late).ops).signal.unwrap()(late) }, 0);
        assert_eq!(waiter.join().unwrap(), 0);
        assert_eq!(close(late), 0);
    });
    assert_eq!(close(set.0), 0);
}

/// Wrong arguments, and the answers of objects about themselves.
fn wait_set_misuse(lib: &Lib) {
    let (side, other) = (Side::new(lib), Side::new(lib));
    let fabric = side.opened.fabric;
    for (wait_obj, flags, errno) in [
        (FI_WAIT_NONE, 0, FI_EINVAL),
        (FI_WAIT_SET, 0, FI_EINVAL),
        (99, 0, FI_EINVAL),
        (FI_WAIT_POLLFD, 0, FI_ENOSYS),
        (FI_WAIT_FD, 1, BADFLAGS),
    ] {
        assert_eq!(WaitSet::open(fabric, wait_obj, flags).err(), Some(errno), "{wait_obj} {flags}");
    }
    assert_eq!(unsafe { (*(*fabric).ops).wait_open.unwrap()(fabric, null_mut(), null_mut()) }, -FI_EINVAL);
    let nowhere = WaitSet(null_mut());
    let elsewhere = WaitSet::new(&other, FI_WAIT_FD);
    let queue = WaitSet(side.cq.cast());
    for wrong in [nowhere, elsewhere, queue] {
        assert_eq!(wrong.cq(&side), Err(FI_EINVAL));
        assert_eq!(wrong.cntr(&side), Err(FI_EINVAL));
        assert_eq!(wrong.eq(&side), Err(FI_EINVAL));
    }
    let object = |object: *mut fid| {
        let mut kind: fi_wait_obj = 99;
        assert_eq!(control(object, FI_GETWAITOBJ, (&raw mut kind).cast()), 0);
        kind
    };
    for kind in [FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD] {
        let set = WaitSet::new(&side, kind);
        assert_eq!(object(set.0.cast()), kind);
        assert_eq!(control(set.0, FI_GETWAIT, null_mut()), -FI_EINVAL);
        let mut found: fi_mutex_cond = unsafe { std::mem::zeroed() };
        let expected = if kind == FI_WAIT_YIELD { -FI_ENODATA } else { 0 };
        assert_eq!(control(set.0, FI_GETWAIT, (&raw mut found).cast()), expected);
        assert_eq!(found.cond.is_null(), kind != FI_WAIT_MUTEX_COND);
        assert_eq!(set.trywait(&side), if kind == FI_WAIT_YIELD { -FI_EINVAL } else { 0 });
        let cq = set.cq(&side).unwrap();
        assert_eq!(object(cq.cast()), FI_WAIT_SET);
        assert_eq!(control(cq, FI_GETWAIT, (&raw mut found).cast()), -FI_ENODATA, "the descriptor belongs to the set");
        assert_eq!([close(set.0), close(cq), close(set.0)], [-FI_EBUSY, 0, 0]);
    }
    assert_eq!(close(elsewhere.0), 0);
}
