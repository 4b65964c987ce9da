//! Poll sets: they report which of several queues and counters have entries or changes.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::rig::{Cntr, MODELS};
use crate::side::{Args, Side, call, memory, name_of, pattern, scenes, until};

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("reported_members", reported_members),
            ("several_endpoints", several_endpoints),
            ("poll_set_misuse", poll_set_misuse),
        ],
    );
}

const BADFLAGS: c_int = FI_EBADFLAGS as c_int;
/// The contexts of the receiver's queues and counter.
const SENT: usize = 0x51;
const RECEIVED: usize = 0x52;
const COUNTED: usize = 0x53;

/// A receiver with a queue for each direction and a counter of receives.
struct Receiver<'a> {
    side: Side<'a>,
    sent: *mut fid_cq,
    received: *mut fid_cq,
    counted: Cntr,
}

fn open_cq(side: &Side<'_>, context: usize) -> *mut fid_cq {
    let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
    attr.format = FI_CQ_FORMAT_TAGGED;
    let (domain, mut cq) = (side.opened.domain, null_mut());
    let open = unsafe { (*(*domain).ops).cq_open.unwrap() };
    assert_eq!(unsafe { open(domain, &mut attr, &mut cq, context as *mut c_void) }, 0);
    cq
}

fn open_cntr(side: &Side<'_>, context: usize) -> Cntr {
    let mut attr: fi_cntr_attr = unsafe { std::mem::zeroed() };
    let (domain, mut cntr) = (side.opened.domain, null_mut());
    let open = unsafe { (*(*domain).ops).cntr_open.unwrap() };
    assert_eq!(unsafe { open(domain, &mut attr, &mut cntr, context as *mut c_void) }, 0);
    Cntr(cntr)
}

impl<'a> Receiver<'a> {
    fn new(lib: &'a Lib, progress: fi_progress) -> Self {
        let side = Side::unbound(lib, 0, |hints| hints.domain().data_progress = progress);
        let (sent, received, counted) = (open_cq(&side, SENT), open_cq(&side, RECEIVED), open_cntr(&side, COUNTED));
        assert_eq!(bind(side.ep, side.av, 0), 0);
        assert_eq!(bind(side.ep, sent, FI_TRANSMIT), 0);
        assert_eq!(bind(side.ep, received, FI_RECV), 0);
        assert_eq!(bind(side.ep, counted.0, FI_RECV), 0);
        assert_eq!(side.enable(), 0);
        Self { side, sent, received, counted }
    }

    fn close(mut self) {
        self.side.close_ep();
        assert_eq!([close(self.sent), close(self.received), close(self.counted.0)], [0; 3]);
    }
}

fn read(cq: *mut fid_cq) -> isize {
    let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
    unsafe { (*(*cq).ops).read.unwrap()(cq, (&raw mut entry).cast(), 1) }
}

#[derive(Clone, Copy)]
struct PollSet(*mut fid_poll);

impl PollSet {
    fn new(side: &Side<'_>) -> Self {
        let (mut attr, mut set) = (fi_poll_attr { flags: 0 }, null_mut());
        let open = unsafe { (*(*side.opened.domain).ops).poll_open.unwrap() };
        assert_eq!(unsafe { open(side.opened.domain, &mut attr, &mut set) }, 0);
        Self(set)
    }

    fn add<F>(self, object: *mut F) -> c_int {
        unsafe { (*(*self.0).ops).poll_add.unwrap()(self.0, object.cast(), 0) }
    }

    fn del<F>(self, object: *mut F) -> c_int {
        unsafe { (*(*self.0).ops).poll_del.unwrap()(self.0, object.cast(), 0) }
    }

    /// Calls `fi_poll` for at most `room` contexts, and returns them in order.
    fn poll(self, room: usize) -> Vec<usize> {
        let mut contexts = [null_mut(); 8];
        let named = unsafe { (*(*self.0).ops).poll.unwrap()(self.0, contexts.as_mut_ptr(), room as c_int) };
        assert!((0..=room as c_int).contains(&named), "{named}");
        assert!(
            contexts[named as usize..].iter().all(|context| context.is_null()),
            "fi_poll wrote more contexts than it reports"
        );
        let mut named: Vec<_> = contexts[..named as usize].iter().map(|context| *context as usize).collect();
        named.sort_unstable();
        named
    }

    /// Polls until the set reports a context, while the other side makes progress.
    #[track_caller]
    fn next(self, room: usize, other: &Side<'_>) -> Vec<usize> {
        until(|| {
            other.progress();
            Some(self.poll(room)).filter(|named| !named.is_empty())
        })
    }
}

/// The set reports a queue while it has entries, a counter once per change, and nothing else. Only the set
/// drives the receiver.
fn reported_members(lib: &Lib) {
    for progress in MODELS {
        let (a, receiver) = (Side::new(lib), Receiver::new(lib, progress));
        let b = &receiver.side;
        let (to_a, to_b) = (b.insert(&a.name()), a.insert(&b.name()));
        let set = PollSet::new(b);
        assert_eq!(set.add(receiver.sent), 0);
        assert_eq!(set.add(receiver.received), 0);
        assert_eq!(set.add(receiver.counted.0), 0);
        let nothing = || (0..300).for_each(|_| assert_eq!(set.poll(8), []));
        nothing();
        // A receive fills a queue and raises the counter.
        b.trecv(memory(8), 1);
        a.tsend(pattern(8), to_b, 2);
        let mut named = set.next(8, &a);
        // With a progress thread, the two reports may come one after the other.
        named.extend(set.poll(8));
        assert!(named.contains(&RECEIVED) && named.contains(&COUNTED) && !named.contains(&SENT), "{named:x?}");
        assert_eq!(set.poll(8), [RECEIVED], "the queue until it is read; the counter once");
        assert_eq!(receiver.counted.read(), 1);
        assert_eq!(read(receiver.received), 1);
        nothing();
        a.next(&[]).done();
        // A send fills the other queue only.
        a.trecv(memory(8), 3);
        b.tsend(pattern(8), to_a, 4);
        assert_eq!(set.next(8, &a), [SENT]);
        // With room for one context, the members are reported in turn.
        b.trecv(memory(8), 5);
        a.tsend(pattern(8), to_b, 6);
        until(|| {
            a.progress();
            (set.poll(0).is_empty() && receiver.counted.read() == 2).then_some(())
        });
        let mut turns: Vec<_> = (0..3).flat_map(|_| set.poll(1)).collect();
        turns.sort_unstable();
        assert_eq!(turns, [SENT, RECEIVED, COUNTED]);
        assert_eq!([read(receiver.sent), read(receiver.received)], [1, 1]);
        nothing();
        // The set does not report changes by the client itself, except errors.
        receiver.counted.add(5);
        nothing();
        receiver.counted.set(1);
        nothing();
        receiver.counted.fail(1);
        assert_eq!(set.poll(8), [COUNTED]);
        nothing();
        let back: [fn(Cntr); 2] = [|counted| counted.set_errors(0), |counted| counted.fail(u64::MAX)];
        for set_back in back {
            set_back(receiver.counted);
            receiver.counted.fail(1);
            assert_eq!(set.poll(8), [COUNTED], "the same number of errors, but new ones");
            nothing();
        }
        // A removed member is not reported.
        assert_eq!(set.del(receiver.counted.0), 0);
        receiver.counted.fail(1);
        nothing();
        assert_eq!([set.del(receiver.sent), set.del(receiver.received), close(set.0)], [0; 3]);
        receiver.close();
    }
}

/// Queues and counters of two endpoints in one set. Each is reported for the messages of its endpoint, and
/// the set drives both endpoints.
fn several_endpoints(lib: &Lib) {
    const QUEUE: usize = 0x61;
    const COUNTER: usize = 0x62;
    for progress in MODELS {
        let (a, receiver) = (Side::new(lib), Receiver::new(lib, progress));
        let b = &receiver.side;
        let (second, cq, cntr) = (b.another_ep(), open_cq(b, QUEUE), open_cntr(b, COUNTER));
        assert_eq!(
            [bind(second, b.av, 0), bind(second, cq, FI_TRANSMIT | FI_RECV), bind(second, cntr.0, FI_RECV)],
            [0; 3]
        );
        assert_eq!(control(second, FI_ENABLE, null_mut()), 0);
        let (to_first, to_second) = (a.insert(&b.name()), a.insert(&name_of(second)));
        let set = PollSet::new(b);
        assert_eq!([set.add(receiver.received), set.add(receiver.counted.0), set.add(cq), set.add(cntr.0)], [0; 4]);
        // The contexts that the set reports for messages to these endpoints.
        let named = |to: &[(*mut fid_ep, u64)]| {
            for &(ep, dest) in to {
                assert_eq!(unsafe { (call("fi_trecv").run)(ep, &Args { tag: dest, ..Args::new(memory(8), 0) }) }, 0);
                a.start("fi_tsend", &Args { tag: dest, ..Args::new(pattern(8), dest) }, &[]);
            }
            let mut named = Vec::new();
            until(|| {
                a.progress();
                named.extend(set.poll(8));
                named.sort_unstable();
                named.dedup();
                (named.len() == 2 * to.len()).then_some(())
            });
            for _ in to {
                a.next(&[]).done();
            }
            named
        };
        assert_eq!(named(&[(second, to_second)]), [QUEUE, COUNTER]);
        assert_eq!((set.poll(8), read(cq), cntr.read(), receiver.counted.read()), (vec![QUEUE], 1, 1, 0));
        assert_eq!(set.poll(8), []);
        assert_eq!(named(&[(b.ep, to_first)]), [RECEIVED, COUNTED]);
        assert_eq!(read(receiver.received), 1);
        assert_eq!(named(&[(b.ep, to_first), (second, to_second)]), [RECEIVED, COUNTED, QUEUE, COUNTER]);
        assert_eq!([read(cq), read(receiver.received)], [1; 2]);
        assert_eq!(set.poll(8), []);
        assert_eq!([set.del(receiver.received), set.del(receiver.counted.0), set.del(cq), set.del(cntr.0)], [0; 4]);
        assert_eq!([close(set.0), close(second), close(cq), close(cntr.0)], [0; 4]);
        receiver.close();
    }
}

fn poll_set_misuse(lib: &Lib) {
    let receiver = Receiver::new(lib, FI_PROGRESS_MANUAL);
    let (side, other) = (&receiver.side, Side::new(lib));
    let on_domain = unsafe { &*(*side.opened.domain).ops };
    let (mut attr, mut out) = (fi_poll_attr { flags: 1 }, null_mut());
    let open = |attr, out| unsafe { on_domain.poll_open.unwrap()(side.opened.domain, attr, out) };
    assert_eq!(open(&mut attr, &mut out), -BADFLAGS);
    assert_eq!(open(&mut attr, null_mut()), -FI_EINVAL);
    assert!(out.is_null());
    let set = PollSet::new(side);
    let ops = unsafe { &*(*set.0).ops };
    assert_eq!(set.add(null_mut::<fid>()), -FI_EINVAL);
    for wrong in [side.ep.cast::<fid>(), side.av.cast(), set.0.cast(), other.cq.cast()] {
        assert_eq!([set.add(wrong), set.del(wrong)], [-FI_EINVAL; 2]);
    }
    assert_eq!(set.del(receiver.sent), -FI_EINVAL, "never added");
    assert_eq!(unsafe { ops.poll_add.unwrap()(set.0, receiver.sent.cast(), 1) }, -BADFLAGS);
    assert_eq!([set.add(receiver.sent), set.add(receiver.sent)], [0, -FI_EALREADY]);
    assert_eq!(unsafe { ops.poll_del.unwrap()(set.0, receiver.sent.cast(), 1) }, -BADFLAGS);
    assert_eq!(unsafe { ops.poll.unwrap()(set.0, null_mut(), 1) }, -FI_EINVAL);
    assert_eq!(unsafe { ops.poll.unwrap()(set.0, &mut null_mut(), -1) }, -FI_EINVAL);
    assert_eq!(unsafe { ops.poll.unwrap()(set.0, null_mut(), 0) }, 0);
    assert_eq!(close(set.0), -FI_EBUSY, "the set has a member");
    assert_eq!([set.del(receiver.sent), set.del(receiver.sent)], [0, -FI_EINVAL]);
    let passing = open_cq(side, 0);
    assert_eq!(set.add(passing), 0);
    // A closed queue leaves the set.
    assert_eq!(close(passing), 0);
    assert_eq!(set.poll(8), []);
    assert_eq!(close(set.0), 0);
    receiver.close();
}
