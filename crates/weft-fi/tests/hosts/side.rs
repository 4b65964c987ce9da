//! A client's objects, the calls that it makes, and their results, for the tests of misuse and of failing
//! peers.
//!
//! A test opens one [`Side`] per endpoint and drives all sides from one thread, with manual progress unless
//! the test requests another model. It checks every [`Outcome`]. Every wait ends after [`PATIENCE`]. Buffers
//! are leaked ([`memory`]), so that an operation left behind by a failing test never points to freed memory.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::v2::fi_cq_err_entry_1_20;
use weft_fi_sys::*;

use crate::client::{Info, Lib, Opened, bind, close, control};
use crate::open;

/// The time after which a wait fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The context of every endpoint, reported in errors of operations that have no context.
pub(crate) const EP_CONTEXT: usize = 0xe9;

/// A negative error number, such as -FI_EAGAIN, as data-path functions return it.
pub(crate) const fn err(errno: c_int) -> isize {
    -(errno as isize)
}

/// A negative error number from 256 on, which the headers declare with another type.
pub(crate) const fn fabric_err(errno: u32) -> isize {
    -(errno as isize)
}

/// Memory that is never freed.
pub(crate) fn memory(len: usize) -> &'static mut [u8] {
    vec![0; len].leak()
}

/// Memory with a pattern that distinguishes positions. No byte is 0.
pub(crate) fn pattern(len: usize) -> &'static mut [u8] {
    let mut bytes = (1..=251_u8).collect::<Vec<_>>().repeat(len.div_ceil(251));
    bytes.truncate(len);
    bytes.leak()
}

/// Returns whether all bytes have this value.
pub(crate) fn is_all(bytes: &[u8], byte: u8) -> bool {
    // Comparing each byte with the next is a comparison of memory, which is fast for large buffers.
    bytes.first().is_none_or(|&first| first == byte && bytes[1..] == bytes[..bytes.len() - 1])
}

/// Memory that the other side or the provider writes meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Watched(*mut u8, usize);

impl Watched {
    pub(crate) fn new(memory: &mut [u8]) -> Self {
        Self(memory.as_mut_ptr(), memory.len())
    }

    /// Returns whether the first byte has arrived.
    pub(crate) fn begun(self) -> bool {
        unsafe { self.0.read_volatile() != 0 }
    }

    /// The bytes that have arrived. No other side may access them any more.
    pub(crate) fn bytes(self) -> &'static mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }

    /// Asserts that a part of a [`pattern`] has not arrived yet. Otherwise the test would prove nothing.
    #[track_caller]
    pub(crate) fn assert_incomplete(self) {
        assert!(self.bytes().contains(&0), "the whole message has arrived at once: this test proves nothing");
    }
}

/// The length of a message that no path holds entirely. Sockets hold some megabytes, shared memory less.
pub(crate) fn long_bytes() -> usize {
    if off("FI_WEFT_SHM") { 16 << 20 } else { 4 << 20 }
}

/// Returns whether the receiver or the target of a long transfer copies it without the other side's help.
pub(crate) fn copies_alone() -> bool {
    !off("FI_WEFT_SHM") && !off("FI_WEFT_CMA")
}

/// Returns whether the group has switched this variable off.
pub(crate) fn off(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "0")
}

/// An endpoint with its objects.
pub(crate) struct Side<'a> {
    pub(crate) opened: Opened,
    pub(crate) info: Info<'a>,
    pub(crate) av: *mut fid_av,
    pub(crate) cq: *mut fid_cq,
    /// Null once the endpoint is closed.
    pub(crate) ep: *mut fid_ep,
}

/// The completion of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Done(fi_cq_tagged_entry),
    Failed(fi_cq_err_entry),
}

impl Outcome {
    pub(crate) fn context(&self) -> usize {
        match self {
            Self::Done(entry) => entry.op_context as usize,
            Self::Failed(entry) => entry.op_context as usize,
        }
    }

    #[track_caller]
    pub(crate) fn done(self) -> fi_cq_tagged_entry {
        match self {
            Self::Done(entry) => entry,
            Self::Failed(entry) => panic!("failed: {entry:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn failed(self) -> fi_cq_err_entry {
        match self {
            Self::Failed(entry) => entry,
            Self::Done(entry) => panic!("succeeded: {entry:?}"),
        }
    }
}

/// The arguments of all data-transfer functions.
#[derive(Clone, Copy)]
pub(crate) struct Args {
    pub(crate) buf: *mut c_void,
    pub(crate) len: usize,
    /// The vector for functions that take one. The default is one piece, `buf` and `len`.
    pub(crate) vector: Option<(*const libc::iovec, usize)>,
    /// The remote vector for functions that take one. The default is one piece, `addr` and `len`.
    pub(crate) remote: Option<(*const fi_rma_iov, usize)>,
    pub(crate) dest: u64,
    /// The source of a receive.
    pub(crate) src: u64,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) data: u64,
    pub(crate) key: u64,
    pub(crate) addr: u64,
    pub(crate) flags: u64,
    pub(crate) context: usize,
}

impl Args {
    pub(crate) fn new(buf: &mut [u8], dest: u64) -> Self {
        Self {
            buf: buf.as_mut_ptr().cast(),
            len: buf.len(),
            vector: None,
            remote: None,
            dest,
            src: FI_ADDR_UNSPEC,
            tag: 0x7a6,
            ignore: 0,
            data: 0xda7a,
            key: 0,
            addr: 0,
            flags: 0,
            context: 0xc0,
        }
    }

    fn context(&self) -> *mut c_void {
        self.context as *mut c_void
    }
}

/// The argument shapes of data-transfer functions, as far as their checks differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One buffer and a context.
    Plain,
    /// One buffer that may be reused at once.
    Inject,
    /// A vector of buffers.
    Vector,
    /// A descriptor and flags.
    Message,
}

/// A data-transfer function.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
    /// True for receives; all other functions transmit.
    pub(crate) recv: bool,
    pub(crate) run: unsafe fn(*mut fid_ep, &Args) -> isize,
}

/// Calls the function with the vector of the arguments, or with one made from the buffer.
fn with_vector<R>(args: &Args, call: impl FnOnce(*const libc::iovec, usize) -> R) -> R {
    let piece = libc::iovec { iov_base: args.buf, iov_len: args.len };
    let (iov, count) = args.vector.unwrap_or((&raw const piece, 1));
    call(iov, count)
}

unsafe fn msg_of(args: &Args, call: impl FnOnce(*const fi_msg) -> isize) -> isize {
    with_vector(args, |msg_iov, iov_count| {
        let mut msg: fi_msg = unsafe { std::mem::zeroed() };
        (msg.msg_iov, msg.iov_count) = (msg_iov, iov_count);
        (msg.addr, msg.context, msg.data) = (args.dest, args.context(), args.data);
        call(&msg)
    })
}

unsafe fn tagged_of(args: &Args, call: impl FnOnce(*const fi_msg_tagged) -> isize) -> isize {
    with_vector(args, |msg_iov, iov_count| {
        let mut msg: fi_msg_tagged = unsafe { std::mem::zeroed() };
        (msg.msg_iov, msg.iov_count) = (msg_iov, iov_count);
        (msg.addr, msg.context, msg.data) = (args.dest, args.context(), args.data);
        (msg.tag, msg.ignore) = (args.tag, args.ignore);
        call(&msg)
    })
}

unsafe fn rma_of(args: &Args, call: impl FnOnce(*const fi_msg_rma) -> isize) -> isize {
    with_vector(args, |msg_iov, iov_count| {
        let remote = fi_rma_iov { addr: args.addr, len: args.len, key: args.key };
        let mut msg: fi_msg_rma = unsafe { std::mem::zeroed() };
        (msg.msg_iov, msg.iov_count) = (msg_iov, iov_count);
        (msg.rma_iov, msg.rma_iov_count) = args.remote.unwrap_or((&raw const remote, 1));
        (msg.addr, msg.context, msg.data) = (args.dest, args.context(), args.data);
        call(&msg)
    })
}

/// Declares the list: the name, the shape, the direction, and the call of the function table's slot.
macro_rules! calls {
    ($($name:ident $form:ident $recv:literal $table:ident.$slot:ident |$call:ident, $ep:ident, $a:ident| $body:expr;)*) => {
        /// All data-transfer functions except atomics and collectives.
        pub(crate) const CALLS: &[Call] = &[$({
            unsafe fn $name($ep: *mut fid_ep, $a: &Args) -> isize {
                unsafe {
                    let $call = (*(*$ep).$table).$slot.unwrap();
                    $body
                }
            }
            Call { name: stringify!($name), form: Form::$form, recv: $recv, run: $name }
        }),*];
    };
}

calls! {
    fi_send Plain false msg.send |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.dest, a.context());
    fi_senddata Plain false msg.senddata |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.data, a.dest, a.context());
    fi_sendv Vector false msg.sendv |f, ep, a| with_vector(a, |iov, n| f(ep, iov, null_mut(), n, a.dest, a.context()));
    fi_sendmsg Message false msg.sendmsg |f, ep, a| msg_of(a, |msg| f(ep, msg, a.flags));
    fi_inject Inject false msg.inject |f, ep, a| f(ep, a.buf, a.len, a.dest);
    fi_injectdata Inject false msg.injectdata |f, ep, a| f(ep, a.buf, a.len, a.data, a.dest);
    fi_tsend Plain false tagged.send |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.dest, a.tag, a.context());
    fi_tsenddata Plain false tagged.senddata
        |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.data, a.dest, a.tag, a.context());
    fi_tsendv Vector false tagged.sendv
        |f, ep, a| with_vector(a, |iov, n| f(ep, iov, null_mut(), n, a.dest, a.tag, a.context()));
    fi_tsendmsg Message false tagged.sendmsg |f, ep, a| tagged_of(a, |msg| f(ep, msg, a.flags));
    fi_tinject Inject false tagged.inject |f, ep, a| f(ep, a.buf, a.len, a.dest, a.tag);
    fi_tinjectdata Inject false tagged.injectdata |f, ep, a| f(ep, a.buf, a.len, a.data, a.dest, a.tag);
    fi_read Plain false rma.read |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.dest, a.addr, a.key, a.context());
    fi_readv Vector false rma.readv
        |f, ep, a| with_vector(a, |iov, n| f(ep, iov, null_mut(), n, a.dest, a.addr, a.key, a.context()));
    fi_readmsg Message false rma.readmsg |f, ep, a| rma_of(a, |msg| f(ep, msg, a.flags));
    fi_write Plain false rma.write |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.dest, a.addr, a.key, a.context());
    fi_writedata Plain false rma.writedata
        |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.data, a.dest, a.addr, a.key, a.context());
    fi_writev Vector false rma.writev
        |f, ep, a| with_vector(a, |iov, n| f(ep, iov, null_mut(), n, a.dest, a.addr, a.key, a.context()));
    fi_writemsg Message false rma.writemsg |f, ep, a| rma_of(a, |msg| f(ep, msg, a.flags));
    fi_inject_write Inject false rma.inject |f, ep, a| f(ep, a.buf, a.len, a.dest, a.addr, a.key);
    fi_inject_writedata Inject false rma.injectdata |f, ep, a| f(ep, a.buf, a.len, a.data, a.dest, a.addr, a.key);
    fi_recv Plain true msg.recv |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.src, a.context());
    fi_recvv Vector true msg.recvv
        |f, ep, a| with_vector(a, |iov, n| f(ep, iov, null_mut(), n, a.src, a.context()));
    fi_recvmsg Message true msg.recvmsg
        |f, ep, a| msg_of(&Args { dest: a.src, ..*a }, |msg| f(ep, msg, a.flags));
    fi_trecv Plain true tagged.recv
        |f, ep, a| f(ep, a.buf, a.len, null_mut(), a.src, a.tag, a.ignore, a.context());
    fi_trecvv Vector true tagged.recvv
        |f, ep, a| with_vector(a, |iov, n| f(ep, iov, null_mut(), n, a.src, a.tag, a.ignore, a.context()));
    fi_trecvmsg Message true tagged.recvmsg
        |f, ep, a| tagged_of(&Args { dest: a.src, ..*a }, |msg| f(ep, msg, a.flags));
}

/// The function of this name.
pub(crate) fn call(name: &str) -> &'static Call {
    CALLS.iter().find(|call| call.name == name).unwrap_or_else(|| panic!("no {name}"))
}

impl<'a> Side<'a> {
    /// Opens and enables an endpoint with the defaults.
    pub(crate) fn new(lib: &'a Lib) -> Self {
        Self::with(lib, 0, |_| ())
    }

    /// Opens and enables an endpoint with the given hints and queue size.
    pub(crate) fn with(lib: &'a Lib, cq_size: usize, hints: impl Fn(&Info<'_>)) -> Self {
        Self::unbound(lib, cq_size, hints).bound()
    }

    /// Opens and enables an endpoint whose operations are complete when they are delivered.
    pub(crate) fn delivering(lib: &'a Lib) -> Self {
        Self::with(lib, 0, |hints| hints.tx().op_flags = FI_DELIVERY_COMPLETE)
    }

    /// Binds and enables the endpoint.
    pub(crate) fn bound(self) -> Self {
        assert_eq!(bind(self.ep, self.av, 0), 0);
        assert_eq!(bind(self.ep, self.cq, FI_TRANSMIT | FI_RECV), 0);
        assert_eq!(self.enable(), 0, "fi_enable");
        self
    }

    /// Opens and enables an endpoint with attributes that were changed after fi_getinfo returned them.
    pub(crate) fn with_changed(lib: &'a Lib, change: impl Fn(&Info<'_>)) -> Self {
        let info = lib.ask(lib.newest(), None).unwrap();
        change(&info);
        Self::open(lib, 0, info).bound()
    }

    /// Opens all objects and binds none.
    pub(crate) fn unbound(lib: &'a Lib, cq_size: usize, change: impl Fn(&Info<'_>)) -> Self {
        let hints = lib.allocinfo();
        change(&hints);
        Self::open(lib, cq_size, lib.ask(lib.newest(), Some(&hints)).unwrap())
    }

    /// Opens and enables an endpoint for an answer of fi_getinfo.
    pub(crate) fn opened(lib: &'a Lib, cq_size: usize, info: Info<'a>) -> Self {
        Self::open(lib, cq_size, info).bound()
    }

    /// Opens all objects for an answer of fi_getinfo and binds none.
    pub(crate) fn unbound_for(lib: &'a Lib, info: Info<'a>) -> Self {
        Self::open(lib, 0, info)
    }

    fn open(lib: &'a Lib, cq_size: usize, info: Info<'a>) -> Self {
        let opened = Opened::new(lib, &info);
        let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
        attr.format = FI_CQ_FORMAT_TAGGED;
        attr.wait_obj = FI_WAIT_UNSPEC;
        attr.size = cq_size;
        let cq = open!(opened.domain, cq_open, &mut attr).unwrap();
        let av = opened.av(|_| ()).unwrap();
        let mut ep = null_mut();
        let endpoint = unsafe { (*(*opened.domain).ops).endpoint.unwrap() };
        assert_eq!(unsafe { endpoint(opened.domain, info.raw, &mut ep, EP_CONTEXT as *mut c_void) }, 0);
        Self { opened, info, av, cq, ep }
    }

    /// Opens one more endpoint of the domain, unbound.
    pub(crate) fn another_ep(&self) -> *mut fid_ep {
        open!(self.opened.domain, endpoint, self.info.raw).unwrap()
    }

    pub(crate) fn enable(&self) -> c_int {
        control(self.ep, FI_ENABLE, null_mut())
    }

    /// `fi_getname`.
    pub(crate) fn name(&self) -> Vec<u8> {
        name_of(self.ep)
    }

    /// Calls `fi_av_insert` for one address, which must succeed.
    pub(crate) fn insert(&self, name: &[u8]) -> u64 {
        let mut number = 0;
        let insert = unsafe { (*(*self.av).ops).insert.unwrap() };
        assert_eq!(unsafe { insert(self.av, name.as_ptr().cast(), 1, &mut number, 0, null_mut()) }, 1);
        number
    }

    /// Calls `fi_mr_reg`, which must succeed.
    pub(crate) fn register(&self, memory: &mut [u8], access: u64, key: u64) -> *mut fid_mr {
        let mut mr = null_mut();
        let domain = self.opened.domain;
        let reg = unsafe { (*(*domain).mr).reg.unwrap() };
        let (buf, len) = (memory.as_mut_ptr().cast(), memory.len());
        assert_eq!(unsafe { reg(domain.cast(), buf, len, access, 0, key, 0, &mut mr, null_mut()) }, 0);
        mr
    }

    /// Calls `fi_mr_regv` for memory cut into pieces, which must succeed.
    pub(crate) fn register_pieces(&self, memory: &mut [u8], pieces: usize, access: u64, key: u64) -> *mut fid_mr {
        let mut mr = null_mut();
        let domain = self.opened.domain;
        let piece = |piece: &mut [u8]| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
        let iov: Vec<_> = memory.chunks_mut(memory.len().div_ceil(pieces)).map(piece).collect();
        let regv = unsafe { (*(*domain).mr).regv.unwrap() };
        let (vector, count) = (iov.as_ptr(), iov.len());
        assert_eq!(unsafe { regv(domain.cast(), vector, count, access, 0, key, 0, &mut mr, null_mut()) }, 0);
        mr
    }

    /// Calls the function of this name.
    pub(crate) fn run(&self, name: &str, args: &Args) -> isize {
        unsafe { (call(name).run)(self.ep, args) }
    }

    /// Calls the function of this name until it accepts the operation, while all sides make progress.
    #[track_caller]
    pub(crate) fn start(&self, name: &str, args: &Args, others: &[&Side<'_>]) {
        until(|| match self.run(name, args) {
            0 => Some(()),
            result => {
                assert_eq!(result, err(FI_EAGAIN), "{name}");
                others.iter().for_each(|side| side.progress());
                self.progress();
                None
            }
        });
    }

    /// Starts a tagged send of a buffer.
    #[track_caller]
    pub(crate) fn tsend(&self, buf: &mut [u8], dest: u64, context: usize) {
        self.start("fi_tsend", &Args { context, ..Args::new(buf, dest) }, &[]);
    }

    /// Starts a tagged receive from any source.
    #[track_caller]
    pub(crate) fn trecv(&self, buf: &mut [u8], context: usize) {
        self.start("fi_trecv", &Args { context, ..Args::new(buf, 0) }, &[]);
    }

    /// Starts a tagged receive from one source.
    #[track_caller]
    pub(crate) fn trecv_from(&self, buf: &mut [u8], source: u64, context: usize) {
        let Args { buf, len, tag, .. } = Args::new(buf, 0);
        let recv = unsafe { (*(*self.ep).tagged).recv.unwrap() };
        let result = unsafe { recv(self.ep, buf, len, null_mut(), source, tag, 0, context as *mut c_void) };
        assert_eq!(result, 0);
    }

    /// `fi_cancel`.
    pub(crate) fn cancel(&self, context: usize) -> isize {
        unsafe { (*(*self.ep).ops).cancel.unwrap()(self.ep.cast(), context as *mut c_void) }
    }

    /// The number of operations that may still be started.
    pub(crate) fn tx_left(&self) -> isize {
        unsafe { (*(*self.ep).ops).tx_size_left.unwrap()(self.ep) }
    }

    /// Makes one round of progress. Completions stay in the queue.
    pub(crate) fn progress(&self) {
        let result = unsafe { (*(*self.cq).ops).read.unwrap()(self.cq, null_mut(), 0) };
        // The next entry may be an error.
        let known = [0, err(FI_EAGAIN), fabric_err(FI_EAVAIL)];
        assert!(known.contains(&result), "fi_cq_read of no entries: {result}");
    }

    /// Reads the next completion if there is one.
    pub(crate) fn poll(&self) -> Option<Outcome> {
        let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
        let ops = unsafe { &*(*self.cq).ops };
        match unsafe { ops.read.unwrap()(self.cq, (&raw mut entry).cast(), 1) } {
            1 => Some(Outcome::Done(entry)),
            result if result == fabric_err(FI_EAVAIL) => Some(Outcome::Failed(self.error())),
            result => {
                assert_eq!(result, err(FI_EAGAIN), "fi_cq_read");
                None
            }
        }
    }

    /// Reads the next entry, an error.
    pub(crate) fn error(&self) -> fi_cq_err_entry {
        error_of(self.cq).base
    }

    /// Waits for the next completion, while the other sides make progress.
    #[track_caller]
    pub(crate) fn next(&self, others: &[&Side<'_>]) -> Outcome {
        until(|| {
            others.iter().for_each(|side| side.progress());
            self.poll()
        })
    }

    /// Asserts that nothing completes here within some hundred rounds of progress on all sides.
    #[track_caller]
    pub(crate) fn nothing(&self, others: &[&Side<'_>]) {
        for _ in 0..300 {
            others.iter().for_each(|side| side.progress());
            if let Some(outcome) = self.poll() {
                panic!("an unexpected completion: {outcome:?}");
            }
        }
    }

    /// Calls `fi_close` for the endpoint.
    pub(crate) fn close_ep(&mut self) {
        assert_eq!(close(std::mem::replace(&mut self.ep, null_mut())), 0, "fi_close(ep)");
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        if !self.ep.is_null() {
            self.close_ep();
        }
        assert_eq!(close(self.cq), 0, "fi_close(cq)");
        assert_eq!(close(self.av), 0, "fi_close(av)");
    }
}

/// `fi_getname` of an endpoint.
pub(crate) fn name_of(ep: *mut fid_ep) -> Vec<u8> {
    let mut name = vec![0_u8; 64];
    let mut len = name.len();
    let getname = unsafe { (*(*ep).cm).getname.unwrap() };
    assert_eq!(unsafe { getname(ep.cast(), name.as_mut_ptr().cast(), &mut len) }, 0);
    name.truncate(len);
    name
}

/// Opens an alias with `fi_ep_alias`: another handle with these default flags for one direction.
pub(crate) fn alias(ep: *mut fid_ep, flags: u64) -> *mut fid_ep {
    let mut out: *mut fid = null_mut();
    let mut request = fi_alias { fid: &mut out, flags };
    assert_eq!(control(ep, FI_ALIAS, (&raw mut request).cast()), 0);
    out.cast()
}

/// `fi_setopt` of an endpoint.
pub(crate) fn setopt<T>(ep: *mut fid_ep, name: c_int, value: T) -> c_int {
    let set = unsafe { (*(*ep).ops).setopt.unwrap() };
    unsafe { set(ep.cast(), FI_OPT_ENDPOINT as c_int, name, (&raw const value).cast(), size_of::<T>()) }
}

/// Sets the remaining size in bytes below which a multi-receive is released.
pub(crate) fn set_min_multi_recv(ep: *mut fid_ep, bytes: usize) {
    assert_eq!(setopt(ep, FI_OPT_MIN_MULTI_RECV as c_int, bytes), 0);
}

/// Two endpoints that have each other's address, and those two addresses.
pub(crate) fn pair<'a>(lib: &'a Lib) -> (Side<'a>, Side<'a>, u64, u64) {
    introduce(Side::new(lib), Side::new(lib))
}

/// Inserts the name of each side in the other side's address vector.
pub(crate) fn introduce<'a>(a: Side<'a>, b: Side<'a>) -> (Side<'a>, Side<'a>, u64, u64) {
    let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
    (a, b, to_b, to_a)
}

/// Exchanges a short message, so that both sides are connected and no other message is pending.
#[track_caller]
pub(crate) fn works(a: &Side<'_>, b: &Side<'_>, to_b: u64) {
    let (source, target) = (pattern(100), memory(100));
    b.trecv(target, 0x60);
    a.tsend(source, to_b, 0x61);
    assert_eq!(b.next(&[a]).done().op_context as usize, 0x60);
    assert_eq!(a.next(&[b]).done().op_context as usize, 0x61);
    assert_eq!(target, source);
}

/// Reads the next error entry of a queue. The entry has the size of the newest API (88 bytes, fi_cq(3)). The
/// provider writes only as much as the API version of the domain has.
pub(crate) fn error_of(cq: *mut fid_cq) -> fi_cq_err_entry_1_20 {
    error_with_room(cq, &mut [])
}

/// Reads the next error entry with a buffer of `room.len()` bytes for its data.
pub(crate) fn error_with_room(cq: *mut fid_cq, room: &mut [u8]) -> fi_cq_err_entry_1_20 {
    let mut failed: fi_cq_err_entry_1_20 = unsafe { std::mem::zeroed() };
    failed.base.err_data = if room.is_empty() { null_mut() } else { room.as_mut_ptr().cast() };
    failed.base.err_data_size = room.len();
    let readerr = unsafe { (*(*cq).ops).readerr.unwrap() };
    assert_eq!(unsafe { readerr(cq, (&raw mut failed).cast(), 0) }, 1);
    failed
}

/// Polls until `done` returns a value.
#[track_caller]
pub(crate) fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "no result within {PATIENCE:?}");
    }
}

/// The open descriptors by their targets, and the mappings of shared memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    descriptors: Vec<String>,
    mappings: usize,
}

impl Resources {
    /// The resources that this process has now.
    pub(crate) fn now() -> Self {
        let entries: Vec<_> = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()).collect();
        // The directory itself was open during the listing. Its link is gone now.
        let mut descriptors: Vec<String> = entries
            .iter()
            .filter_map(|path| Some((path, std::fs::read_link(path).ok()?)))
            .map(|(path, target)| format!("{}: {}", path.file_name().unwrap().display(), target.display()))
            .collect();
        descriptors.sort();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self { descriptors, mappings: maps.lines().filter(|line| line.contains("memfd:")).count() }
    }
}

/// A part of a group: its name and its function.
pub(crate) type Scene = (&'static str, fn(&Lib));

/// Runs the scenes of a group. After each scene the process must have the same resources as before.
pub(crate) fn scenes(lib: &Lib, list: &[Scene]) {
    // The first endpoint makes the host open what it keeps until the process ends.
    drop(Side::new(lib));
    for (name, run) in list {
        // The output shows which scene hangs or crashes.
        println!("scene {name}");
        let before = Resources::now();
        run(lib);
        assert_eq!(Resources::now(), before, "descriptors and mappings after and before the scene {name}");
    }
}
