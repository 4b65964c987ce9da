//! The ends of connections, and listeners, for the scenes of `connections`.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::{Info, Lib, Opened, bind, close, control};
use crate::open;
use crate::side::{Outcome, Side, err, fabric_err, until};

/// An event of an event queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Request { pep: usize, info: *mut fi_info, data: Vec<u8> },
    Connected { ep: usize, data: Vec<u8> },
    Shutdown { ep: usize },
    Failed { ep: usize, context: usize, err: c_int, data: Vec<u8> },
}

/// An event queue.
#[derive(Clone, Copy)]
pub(crate) struct Queue(pub(crate) *mut fid_eq);

impl Queue {
    /// Makes one round of progress. Events stay in the queue.
    pub(crate) fn progress(self) {
        let (mut event, mut buffer) = (0, [0_u8; 512]);
        let read = unsafe { (*(*self.0).ops).read.unwrap() };
        unsafe { read(self.0, &mut event, buffer.as_mut_ptr().cast(), buffer.len(), FI_PEEK) };
    }

    pub(crate) fn poll(self) -> Option<Event> {
        let mut event = 0;
        let mut buffer = [0_u64; 64];
        let read = unsafe { (*(*self.0).ops).read.unwrap() };
        let result = unsafe { read(self.0, &mut event, buffer.as_mut_ptr().cast(), size_of_val(&buffer), 0) };
        self.parse(result, event, &buffer)
    }

    /// `fi_eq_sread`.
    pub(crate) fn wait(self, timeout_ms: c_int) -> Option<Event> {
        let mut event = 0;
        let mut buffer = [0_u64; 64];
        let sread = unsafe { (*(*self.0).ops).sread.unwrap() };
        let (to, room) = (buffer.as_mut_ptr().cast(), size_of_val(&buffer));
        let result = unsafe { sread(self.0, &mut event, to, room, timeout_ms, 0) };
        self.parse(result, event, &buffer)
    }

    fn parse(self, result: isize, event: u32, buffer: &[u64; 64]) -> Option<Event> {
        if result == err(FI_EAGAIN) {
            return None;
        }
        if result == fabric_err(FI_EAVAIL) {
            return Some(self.error(0));
        }
        let len = usize::try_from(result).expect("fi_eq_read");
        assert!(len >= size_of::<fi_eq_cm_entry>());
        let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let data = bytes[16..len].to_vec();
        let fid = buffer[0] as usize;
        Some(match event {
            FI_CONNREQ => Event::Request { pep: fid, info: buffer[1] as usize as *mut fi_info, data },
            FI_CONNECTED => Event::Connected { ep: fid, data },
            FI_SHUTDOWN => Event::Shutdown { ep: fid },
            other => panic!("event {other}"),
        })
    }

    /// Reads the next error, with `room` bytes for its data. If `room` is 0, the entry points to the
    /// provider's data.
    pub(crate) fn error(self, room: usize) -> Event {
        let mut own = vec![0_u8; room];
        let mut entry: fi_eq_err_entry = unsafe { std::mem::zeroed() };
        (entry.err_data, entry.err_data_size) = (own.as_mut_ptr().cast(), room);
        let readerr = unsafe { (*(*self.0).ops).readerr.unwrap() };
        assert_eq!(unsafe { readerr(self.0, &mut entry, 0) }, size_of::<fi_eq_err_entry>() as isize);
        let data = match entry.err_data_size {
            0 => Vec::new(),
            len => unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), len) }.to_vec(),
        };
        Event::Failed { ep: entry.fid as usize, context: entry.context as usize, err: entry.err, data }
    }

    /// Reads the next error into an entry that has a size but no buffer. Returns the length of the data.
    pub(crate) fn error_nowhere(self) -> usize {
        let mut entry: fi_eq_err_entry = unsafe { std::mem::zeroed() };
        entry.err_data_size = 100;
        let readerr = unsafe { (*(*self.0).ops).readerr.unwrap() };
        assert_eq!(unsafe { readerr(self.0, &mut entry, 0) }, size_of::<fi_eq_err_entry>() as isize);
        assert!(entry.err_data.is_null());
        assert_eq!(entry.err, FI_ECONNREFUSED);
        entry.err_data_size
    }

    /// Waits for the next event, while the other queues make progress.
    #[track_caller]
    pub(crate) fn next(self, others: &[Self]) -> Event {
        until(|| {
            others.iter().for_each(|other| other.progress());
            self.poll()
        })
    }

    /// Asserts that no event arrives, with progress on all queues.
    #[track_caller]
    pub(crate) fn nothing(self, others: &[Self]) {
        for _ in 0..300 {
            others.iter().for_each(|other| other.progress());
            assert_eq!(self.poll(), None);
        }
    }
}

/// An endpoint of type FI_EP_MSG, with its queues.
pub(crate) struct End<'a> {
    pub(crate) side: Side<'a>,
    pub(crate) eq: Queue,
}

/// `fi_connect`.
pub(crate) fn connect(ep: *mut fid_ep, to: &[u8], data: &[u8]) -> c_int {
    let connect = unsafe { (*(*ep).cm).connect.unwrap() };
    unsafe { connect(ep, to.as_ptr().cast(), data.as_ptr().cast(), data.len()) }
}

/// `fi_accept`.
pub(crate) fn accept(ep: *mut fid_ep, data: &[u8]) -> c_int {
    let accept = unsafe { (*(*ep).cm).accept.unwrap() };
    unsafe { accept(ep, data.as_ptr().cast(), data.len()) }
}

pub(crate) fn as_msg(hints: &Info<'_>) {
    hints.ep().type_ = FI_EP_MSG;
}

impl<'a> End<'a> {
    pub(crate) fn new(lib: &'a Lib) -> Self {
        Self::with(lib, |_| ())
    }

    pub(crate) fn with(lib: &'a Lib, hints: impl Fn(&Info<'_>)) -> Self {
        Self::bound(Side::unbound(lib, 0, |info| {
            as_msg(info);
            hints(info);
        }))
    }

    /// Opens the end that answers a connection request.
    pub(crate) fn answering(lib: &'a Lib, info: *mut fi_info) -> Self {
        Self::bound(Side::unbound_for(lib, lib.own(info)))
    }

    fn bound(side: Side<'a>) -> Self {
        let eq = side.opened.eq(|attr| attr.wait_obj = FI_WAIT_FD).unwrap();
        assert_eq!(bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV), 0);
        assert_eq!(bind(side.ep, eq, 0), 0);
        Self { side, eq: Queue(eq) }
    }

    /// The identity of the endpoint in events.
    pub(crate) fn fid(&self) -> usize {
        self.side.ep as usize
    }

    pub(crate) fn connect(&self, to: &[u8], data: &[u8]) -> c_int {
        connect(self.side.ep, to, data)
    }

    pub(crate) fn accept(&self, data: &[u8]) -> c_int {
        accept(self.side.ep, data)
    }

    pub(crate) fn shutdown(&self) -> c_int {
        unsafe { (*(*self.side.ep).cm).shutdown.unwrap()(self.side.ep, 0) }
    }

    /// `fi_getpeer`.
    pub(crate) fn peer(&self) -> Result<Vec<u8>, c_int> {
        let mut name = vec![0_u8; 64];
        let mut len = name.len();
        let getpeer = unsafe { (*(*self.side.ep).cm).getpeer.unwrap() };
        match unsafe { getpeer(self.side.ep, name.as_mut_ptr().cast(), &mut len) } {
            0 => {
                name.truncate(len);
                Ok(name)
            }
            result => Err(-result),
        }
    }

    /// Waits for the next completion, while the other end makes progress.
    #[track_caller]
    pub(crate) fn next(&self, other: &Self) -> Outcome {
        self.side.next(&[&other.side])
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if !self.side.ep.is_null() {
            self.side.close_ep();
        }
        assert_eq!(close(self.eq.0), 0, "fi_close(eq)");
    }
}

/// A passive endpoint that listens.
pub(crate) struct Listener<'a> {
    pub(crate) lib: &'a Lib,
    pub(crate) eq: Queue,
    /// Null once it is closed.
    pub(crate) pep: *mut fid_pep,
    pub(crate) opened: Opened,
}

impl<'a> Listener<'a> {
    pub(crate) fn new(lib: &'a Lib) -> Self {
        Self::with(lib, |_| ())
    }

    pub(crate) fn with(lib: &'a Lib, change: impl Fn(&Info<'_>)) -> Self {
        let listener = Self::idle(lib, change);
        assert_eq!(listener.listen(), 0);
        listener
    }

    /// Opens a passive endpoint that does not listen yet.
    pub(crate) fn idle(lib: &'a Lib, change: impl Fn(&Info<'_>)) -> Self {
        let hints = lib.allocinfo();
        as_msg(&hints);
        change(&hints);
        let info = lib.ask(lib.newest(), Some(&hints)).unwrap();
        let opened = Opened::new(lib, &info);
        let eq = opened.eq(|attr| attr.wait_obj = FI_WAIT_FD).unwrap();
        let pep = open!(opened.fabric, passive_ep, info.raw).unwrap();
        assert_eq!(bind(pep, eq, 0), 0);
        Self { lib, eq: Queue(eq), pep, opened }
    }

    pub(crate) fn listen(&self) -> c_int {
        unsafe { (*(*self.pep).cm).listen.unwrap()(self.pep) }
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        let mut name = vec![0_u8; 64];
        let mut len = name.len();
        let getname = unsafe { (*(*self.pep).cm).getname.unwrap() };
        assert_eq!(unsafe { getname(self.pep.cast(), name.as_mut_ptr().cast(), &mut len) }, 0);
        name.truncate(len);
        name
    }

    pub(crate) fn reject(&self, handle: fid_t, data: &[u8]) -> c_int {
        let reject = unsafe { (*(*self.pep).cm).reject.unwrap() };
        unsafe { reject(self.pep, handle, data.as_ptr().cast(), data.len()) }
    }

    pub(crate) fn set_backlog(&self, mut calls: c_int) -> c_int {
        control(self.pep, FI_BACKLOG, (&raw mut calls).cast::<c_void>())
    }

    /// Waits for the next connection request, and returns it with the caller's data.
    #[track_caller]
    pub(crate) fn called(&self, caller: &End<'_>) -> (*mut fi_info, Vec<u8>) {
        match self.eq.next(&[caller.eq]) {
            Event::Request { pep, info, data } => {
                assert_eq!(pep, self.pep as usize);
                (info, data)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn close_pep(&mut self) {
        assert_eq!(close(std::mem::replace(&mut self.pep, null_mut())), 0, "fi_close(pep)");
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if !self.pep.is_null() {
            self.close_pep();
        }
        assert_eq!(close(self.eq.0), 0, "fi_close(eq)");
    }
}

/// Two ends of one connection.
#[track_caller]
pub(crate) fn connected<'a>(listener: &Listener<'a>) -> (End<'a>, End<'a>) {
    let a = End::new(listener.lib);
    assert_eq!(a.connect(&listener.name(), &[]), 0);
    let (info, _) = listener.called(&a);
    let b = End::answering(listener.lib, info);
    assert_eq!(b.accept(&[]), 0);
    await_connection(&a, &b, &[]);
    (a, b)
}

/// Waits until both ends report the connection.
#[track_caller]
pub(crate) fn await_connection(a: &End<'_>, b: &End<'_>, data: &[u8]) {
    assert_eq!(a.eq.next(&[b.eq]), Event::Connected { ep: a.fid(), data: data.to_vec() });
    assert_eq!(b.eq.next(&[a.eq]), Event::Connected { ep: b.fid(), data: Vec::new() });
}
