//! The objects of a case: two endpoints with queues, counters and regions, which have each other's address or
//! are connected, and functions that observe their reports.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::null;
use std::time::Instant;

use weft_fi_sys::*;

use crate::client::{Info, Lib, bind, close};
use crate::connections::ends::{Event, Listener, Queue, accept, as_msg, connect};
use crate::open;
use crate::rig::{Cntr, MODELS};
use crate::side::{PATIENCE, Side, err, error_of, fabric_err};

use super::memory::{Arenas, Memory};
use super::table::{Axis, Case};

/// The key of a region in one piece.
pub(super) const WHOLE: u64 = 0x10;
/// The key of a region with counters.
pub(super) const COUNTED: u64 = 0x11;
/// The key of a region that is registered in pieces.
pub(super) const PIECES: u64 = u64::MAX - 1;

/// Indexes of counters by class, in the order of [`CLASSES`].
pub(super) const SEND: usize = 0;
pub(super) const RECV: usize = 1;
pub(super) const READ: usize = 2;
pub(super) const WRITE: usize = 3;
pub(super) const REMOTE_READ: usize = 4;
pub(super) const REMOTE_WRITE: usize = 5;
/// The first index of the counters of a region.
const AT_REGION: usize = 6;
const CLASSES: [u64; 6] = [FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE];

/// The parameters of objects that cases may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Setup {
    auto: bool,
    format: usize,
    selective: bool,
    counters: bool,
}

impl Setup {
    pub(super) fn of(case: &Case) -> Self {
        let (selective, counters) = (case.is(Axis::Selective), case.is(Axis::Counters));
        Self { auto: case.auto, format: case.get(Axis::Format), selective, counters }
    }

    fn ask(self, hints: &Info<'_>) {
        hints.domain().data_progress = MODELS[usize::from(self.auto)];
    }

    /// Whether transmits and receives have separate queues.
    fn is_split(self) -> bool {
        (self.format % 2 == 1) ^ self.selective ^ self.counters
    }
}

/// A completion, as far as the queue's format reports it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) context: usize,
    /// Flags and length.
    pub(super) msg: Option<(u64, usize)>,
    /// Buffer and data.
    pub(super) data: Option<(usize, u64)>,
    pub(super) tag: Option<u64>,
    /// The source, if it was requested.
    pub(super) src: Option<u64>,
    /// The error and the number of truncated bytes.
    pub(super) error: Option<(i32, usize)>,
}

/// The function and the number of entries for reading a queue.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    /// fi_cq_read, fi_cq_readfrom, fi_cq_sread, fi_cq_sreadfrom.
    pub(super) call: usize,
    pub(super) count: usize,
}

/// A completion counter of an endpoint or its region, and its index.
#[derive(Clone, Copy)]
struct Counted {
    cntr: Cntr,
    at: usize,
}

/// One endpoint.
pub(super) struct End<'a> {
    pub(super) side: Side<'a>,
    tx: *mut fid_cq,
    rx: *mut fid_cq,
    format: usize,
    /// Whether error entries contain the source (API 1.20).
    errors_have_source: bool,
    pub(super) arenas: Arenas,
    counters: Vec<Counted>,
    regions: Vec<*mut fid_mr>,
    /// The successes and errors that the counters must show.
    due: [Cell<(u64, u64)>; 8],
    seen: RefCell<Vec<Seen>>,
    /// The event queue of a connected endpoint.
    eq: Option<Queue>,
}

/// Two endpoints that have each other's and their own address, or that are connected.
pub(super) struct World<'a> {
    pub(super) setup: Setup,
    pub(super) ends: [End<'a>; 2],
    /// Addresses by the using end and the addressed end.
    pub(super) addr: [[u64; 2]; 2],
    pub(super) memory: &'a Memory,
}

/// Opens a queue of this format.
fn queue(side: &Side<'_>, format: usize) -> *mut fid_cq {
    let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
    attr.format = [FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED][format];
    attr.wait_obj = FI_WAIT_UNSPEC;
    open!(side.opened.domain, cq_open, &mut attr).unwrap()
}

impl<'a> End<'a> {
    /// Opens the objects of a side whose endpoint is still unbound.
    fn new(lib: &'a Lib, setup: Setup, arenas: Arenas, mut side: Side<'a>) -> Self {
        let connects = side.info.ep().type_ == FI_EP_MSG;
        let tx = queue(&side, setup.format);
        assert_eq!(close(std::mem::replace(&mut side.cq, tx)), 0);
        let rx = if setup.is_split() { queue(&side, setup.format) } else { tx };
        let selective = if setup.selective { FI_SELECTIVE_COMPLETION } else { 0 };
        let eq = connects.then(|| Queue(side.opened.eq(|_| ()).unwrap()));
        match eq {
            Some(eq) => assert_eq!(bind(side.ep, eq.0, 0), 0),
            None => assert_eq!(bind(side.ep, side.av, 0), 0),
        }
        if tx == rx {
            assert_eq!(bind(side.ep, tx, FI_TRANSMIT | FI_RECV | selective), 0);
        } else {
            assert_eq!(bind(side.ep, tx, FI_TRANSMIT | selective), 0);
            assert_eq!(bind(side.ep, rx, FI_RECV | selective), 0);
        }
        let mut counters = Vec::new();
        if setup.counters {
            for (at, class) in CLASSES.into_iter().enumerate() {
                let cntr = side.opened.cntr();
                assert_eq!(bind(side.ep, cntr, class), 0);
                counters.push(Counted { cntr: Cntr(cntr), at });
            }
        }
        assert_eq!(side.enable(), 0);
        let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let region = arenas.region.bytes();
        let regions = vec![
            side.register(region, access, WHOLE),
            side.register(region, access, COUNTED),
            side.register_pieces(region, 3, access, PIECES),
        ];
        for (at, class) in [(AT_REGION, FI_REMOTE_READ), (AT_REGION + 1, FI_REMOTE_WRITE)] {
            let cntr = side.opened.cntr();
            assert_eq!(bind(regions[1], cntr, class), 0);
            counters.push(Counted { cntr: Cntr(cntr), at });
        }
        let (format, errors_have_source) = (setup.format, lib.newest() >= version(1, 20));
        Self {
            side,
            tx,
            rx,
            format,
            errors_have_source,
            arenas,
            counters,
            regions,
            due: Default::default(),
            seen: RefCell::default(),
            eq,
        }
    }

    /// Expects one more success or error on this counter.
    pub(super) fn count(&self, at: usize, good: bool) {
        let (successes, errors) = self.due[at].get();
        self.due[at].set(if good { (successes + 1, errors) } else { (successes, errors + 1) });
    }

    /// Expects one more success on the region's counter of this class.
    pub(super) fn count_at_region(&self, class: usize) {
        self.count(class - REMOTE_READ + AT_REGION, true);
    }

    /// Returns whether every counter shows its expected value. Asserts that none shows more.
    fn counted(&self) -> bool {
        self.counters.iter().all(|counted| {
            let (successes, errors) = self.due[counted.at].get();
            let (now, failed) = (counted.cntr.read(), counted.cntr.errors());
            let what = counted.at;
            assert!(
                now <= successes && failed <= errors,
                "counter {what}: {now}, {failed} instead of {successes}, {errors}"
            );
            (now, failed) == (successes, errors)
        })
    }

    /// Moves the entries of the queues to `seen`.
    fn read(&self, reader: Reader) {
        for (at, cq) in [self.tx, self.rx].into_iter().enumerate() {
            if at == 0 || self.rx != self.tx {
                self.read_queue(cq, reader);
            }
        }
    }

    fn read_queue(&self, cq: *mut fid_cq, Reader { call, count }: Reader) {
        const MARK: u64 = 0x5555_5555_5555_5555;
        let words = self.words();
        let mut entries = [MARK; 6 * 8 + 1];
        let mut src = [MARK; 9];
        let (out, from): (*mut c_void, _) = (entries.as_mut_ptr().cast(), src.as_mut_ptr());
        let result = unsafe {
            let ops = &*(*cq).ops;
            match call {
                0 => ops.read.unwrap()(cq, out, count),
                1 => ops.readfrom.unwrap()(cq, out, count, from),
                2 => ops.sread.unwrap()(cq, out, count, null(), 0),
                _ => ops.sreadfrom.unwrap()(cq, out, count, from, null(), 0),
            }
        };
        let taken = usize::try_from(result).unwrap_or(0);
        assert!(taken <= count);
        assert!(entries[taken * words..].iter().all(|&word| word == MARK), "written behind {taken} entries");
        if result == fabric_err(FI_EAVAIL) {
            self.seen.borrow_mut().push(self.error(cq));
        } else if taken == 0 {
            assert_eq!(result, err(FI_EAGAIN));
        }
        for (entry, &from) in entries.chunks(words).zip(&src).take(taken) {
            self.seen.borrow_mut().push(Seen {
                context: entry[0] as usize,
                msg: (words > 1).then(|| (entry[1], entry[2] as usize)),
                data: (words > 3).then(|| (entry[3] as usize, entry[4])),
                tag: (words > 5).then(|| entry[5]),
                src: (call % 2 == 1).then_some(from),
                error: None,
            });
        }
    }

    /// The size of an entry in words.
    fn words(&self) -> usize {
        [1, 3, 5, 6][self.format]
    }

    fn error(&self, cq: *mut fid_cq) -> Seen {
        let failed = error_of(cq);
        let entry = failed.base;
        Seen {
            context: entry.op_context as usize,
            msg: Some((entry.flags, entry.len)),
            data: Some((entry.buf as usize, entry.data)),
            tag: Some(entry.tag),
            src: self.errors_have_source.then_some(failed.src_addr),
            error: Some((entry.err, entry.olen)),
        }
    }
}

impl<'a> World<'a> {
    pub(super) fn new(lib: &'a Lib, setup: Setup, memory: &'a Memory) -> Self {
        let open = |arenas| End::new(lib, setup, arenas, Side::unbound(lib, 0, |hints| setup.ask(hints)));
        let [a, b] = memory.sides.map(open);
        let addr = [[a.side.insert(&a.side.name()), a.side.insert(&b.side.name())], {
            let own = b.side.insert(&b.side.name());
            [b.side.insert(&a.side.name()), own]
        }];
        Self { setup, ends: [a, b], addr, memory }
    }

    /// Opens two ends of one connection, which have no addresses.
    pub(super) fn connected(lib: &'a Lib, setup: Setup, memory: &'a Memory) -> Self {
        let ask = |hints: &Info<'_>| {
            as_msg(hints);
            setup.ask(hints);
        };
        let listener = Listener::with(lib, ask);
        let [ours, theirs] = memory.sides;
        let a = End::new(lib, setup, ours, Side::unbound(lib, 0, ask));
        assert_eq!(connect(a.side.ep, &listener.name(), &[]), 0);
        let (mine, calls) = (a.eq.unwrap(), listener.eq);
        let Event::Request { info, .. } = calls.next(&[mine]) else { panic!("no call") };
        let b = End::new(lib, setup, theirs, Side::unbound_for(lib, lib.own(info)));
        assert_eq!(accept(b.side.ep, &[]), 0);
        let yours = b.eq.unwrap();
        assert_eq!(mine.next(&[yours]), Event::Connected { ep: a.side.ep as usize, data: Vec::new() });
        assert_eq!(yours.next(&[mine]), Event::Connected { ep: b.side.ep as usize, data: Vec::new() });
        Self { setup, ends: [a, b], addr: [[FI_ADDR_NOTAVAIL; 2]; 2], memory }
    }

    /// Makes progress on both sides under manual progress. Under automatic progress the calling thread yields
    /// its processor to the progress threads.
    pub(super) fn drive(&self) {
        if self.setup.auto {
            std::thread::yield_now();
        } else {
            self.ends.iter().for_each(|end| end.side.progress());
        }
    }

    /// Waits until the condition holds.
    #[track_caller]
    pub(super) fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            self.drive();
            assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        }
    }

    /// Starts an operation, with progress as needed.
    #[track_caller]
    pub(super) fn start(&self, what: &str, mut call: impl FnMut() -> isize) {
        self.until(what, || match call() {
            0 => true,
            result => {
                assert_eq!(result, err(FI_EAGAIN), "{what}");
                false
            }
        });
    }

    /// Takes the entry with this context from this side, if it has arrived.
    pub(super) fn look(&self, at: usize, context: usize, reader: Reader) -> Option<Seen> {
        let end = &self.ends[at];
        end.read(reader);
        let mut seen = end.seen.borrow_mut();
        let found = seen.iter().position(|seen| seen.context == context)?;
        Some(seen.remove(found))
    }

    /// Waits for the entry with this context at this side.
    #[track_caller]
    pub(super) fn wait(&self, what: &str, at: usize, context: usize, reader: Reader) -> Seen {
        let mut found = None;
        self.until(what, || {
            found = self.look(at, context, reader);
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until every counter shows its expected value, and asserts that no entry is left.
    #[track_caller]
    pub(super) fn settle(&self, reader: Reader) {
        self.until("counters", || self.ends.iter().all(End::counted));
        for end in &self.ends {
            end.read(reader);
            let seen = end.seen.borrow();
            assert!(seen.is_empty(), "unexpected entries: {seen:?}");
        }
    }

    /// Asserts that nothing more is reported and no guard byte was written, and closes all objects.
    pub(super) fn close(self) {
        for _ in 0..50 {
            self.ends.iter().for_each(|end| end.side.progress());
            self.settle(Reader { call: 0, count: 8 });
        }
        for end in self.ends {
            for arena in [end.arenas.source, end.arenas.target, end.arenas.region, end.arenas.compare] {
                arena.assert_clean("at the end");
            }
            end.close();
        }
    }
}

impl End<'_> {
    fn close(mut self) {
        self.side.close_ep();
        for region in self.regions {
            assert_eq!(close(region), 0);
        }
        for counted in self.counters {
            assert_eq!(close(counted.cntr.0), 0);
        }
        if let Some(eq) = self.eq {
            assert_eq!(close(eq.0), 0);
        }
        if self.rx != self.tx {
            assert_eq!(close(self.rx), 0);
        }
    }
}
