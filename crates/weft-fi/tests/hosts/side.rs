//! One client's objects, what it may call, and what it gets back: what the tests of misuse and of failing peers
//! stand on.
//!
//! A test opens one [`Side`] per endpoint, drives them from one thread (manual progress unless the test asks for
//! another), and looks at every [`Outcome`]. Every wait ends after [`PATIENCE`]. Buffers are leaked ([`memory`]), so
//! that an operation that a failing test leaves behind never points to memory that is gone.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use weft_fi_sys::v2::fi_cq_err_entry_1_20;
use weft_fi_sys::*;

use crate::client::{Info, Lib, Opened, bind, close, control};
use crate::open;

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The context of every endpoint, for errors of operations that have none.
pub(crate) const EP_CONTEXT: usize = 0xe9;

/// -FI_EAGAIN and its like, as data-path functions return them.
pub(crate) const fn err(errno: c_int) -> isize {
    -(errno as isize)
}

/// The same for the numbers from 256 on, which the headers declare with another type.
pub(crate) const fn fabric_err(errno: u32) -> isize {
    -(errno as isize)
}

/// Memory that is never freed.
pub(crate) fn memory(len: usize) -> &'static mut [u8] {
    vec![0; len].leak()
}

/// Memory with bytes that tell places apart, none of them 0.
pub(crate) fn pattern(len: usize) -> &'static mut [u8] {
    let mut bytes = (1..=251_u8).collect::<Vec<_>>().repeat(len.div_ceil(251));
    bytes.truncate(len);
    bytes.leak()
}

/// Whether all bytes are that one.
pub(crate) fn is_all(bytes: &[u8], byte: u8) -> bool {
    // Each equals the next: a comparison of memory, since there is much of it.
    bytes.first().is_none_or(|&first| first == byte && bytes[1..] == bytes[..bytes.len() - 1])
}

/// Memory that somebody else is writing to.
#[derive(Clone, Copy)]
pub(crate) struct Watched(*mut u8, usize);

impl Watched {
    pub(crate) fn new(memory: &mut [u8]) -> Self {
        Self(memory.as_mut_ptr(), memory.len())
    }

    /// Whether the first byte has come.
    pub(crate) fn begun(self) -> bool {
        unsafe { self.0.read_volatile() != 0 }
    }

    /// What is there now; by then nobody else may use it.
    pub(crate) fn bytes(self) -> &'static mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }

    /// Something of a [`pattern`] has not come yet; otherwise the caller's test would show nothing.
    #[track_caller]
    pub(crate) fn assert_incomplete(self) {
        assert!(self.bytes().contains(&0), "all there at once: this test shows nothing");
    }
}

/// The length of a message that is never all on its way at once: sockets hold some megabytes, shared memory less.
pub(crate) fn long_bytes() -> usize {
    if off("FI_WEFT_SHM") { 16 << 20 } else { 4 << 20 }
}

/// Whether the receiver or the target of a long transfer copies it by itself, without the other side's help.
pub(crate) fn by_itself() -> bool {
    !off("FI_WEFT_SHM") && !off("FI_WEFT_CMA")
}

/// Whether the group has switched something off.
pub(crate) fn off(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "0")
}

/// An endpoint with everything that it needs.
pub(crate) struct Side<'a> {
    pub(crate) opened: Opened,
    pub(crate) info: Info<'a>,
    pub(crate) av: *mut fid_av,
    pub(crate) cq: *mut fid_cq,
    /// Null once it is closed.
    pub(crate) ep: *mut fid_ep,
}

/// How an operation ended.
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

/// What the arguments of every data-transfer function are taken from.
#[derive(Clone, Copy)]
pub(crate) struct Args {
    pub(crate) buf: *mut c_void,
    pub(crate) len: usize,
    /// The vector that functions with one get; by default one piece, `buf` and `len`.
    pub(crate) vector: Option<(*const libc::iovec, usize)>,
    /// The remote vector that functions with one get; by default one piece, `addr` and `len`.
    pub(crate) remote: Option<(*const fi_rma_iov, usize)>,
    pub(crate) dest: u64,
    /// From whom to receive.
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

/// What distinguishes data-transfer functions as far as their checks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One buffer and a context.
    Plain,
    /// One buffer that is free at once.
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
    /// Receives; everything else transmits.
    pub(crate) recv: bool,
    pub(crate) run: unsafe fn(*mut fid_ep, &Args) -> isize,
}

/// Makes a vector of the arguments if there is none, and calls.
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

/// Declares the list: name, form, direction, and how the slot of a table is called.
macro_rules! calls {
    ($($name:ident $form:ident $recv:literal $table:ident.$slot:ident |$call:ident, $ep:ident, $a:ident| $body:expr;)*) => {
        /// Every data-transfer function but atomics and collectives.
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

/// The function of that name.
pub(crate) fn call(name: &str) -> &'static Call {
    CALLS.iter().find(|call| call.name == name).unwrap_or_else(|| panic!("no {name}"))
}

impl<'a> Side<'a> {
    /// An enabled endpoint with the defaults.
    pub(crate) fn new(lib: &'a Lib) -> Self {
        Self::with(lib, 0, |_| ())
    }

    /// An enabled endpoint with hints and a queue size of the test's choice.
    pub(crate) fn with(lib: &'a Lib, cq_size: usize, hints: impl Fn(&Info<'_>)) -> Self {
        Self::unbound(lib, cq_size, hints).bound()
    }

    /// Binds and enables it.
    pub(crate) fn bound(self) -> Self {
        assert_eq!(bind(self.ep, self.av, 0), 0);
        assert_eq!(bind(self.ep, self.cq, FI_TRANSMIT | FI_RECV), 0);
        assert_eq!(self.enable(), 0, "fi_enable");
        self
    }

    /// An enabled endpoint, opened with attributes that were changed after fi_getinfo gave them.
    pub(crate) fn with_changed(lib: &'a Lib, change: impl Fn(&Info<'_>)) -> Self {
        let info = lib.ask(lib.newest(), None).unwrap();
        change(&info);
        Self::open(lib, 0, info).bound()
    }

    /// Everything opened, nothing bound.
    pub(crate) fn unbound(lib: &'a Lib, cq_size: usize, change: impl Fn(&Info<'_>)) -> Self {
        let hints = lib.allocinfo();
        change(&hints);
        Self::open(lib, cq_size, lib.ask(lib.newest(), Some(&hints)).unwrap())
    }

    /// An enabled endpoint for an answer of fi_getinfo.
    pub(crate) fn opened(lib: &'a Lib, cq_size: usize, info: Info<'a>) -> Self {
        Self::open(lib, cq_size, info).bound()
    }

    /// Everything opened for an answer of fi_getinfo, nothing bound.
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

    /// One more endpoint of the domain, unbound.
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

    /// `fi_av_insert` of one address, which must succeed.
    pub(crate) fn insert(&self, name: &[u8]) -> u64 {
        let mut number = 0;
        let insert = unsafe { (*(*self.av).ops).insert.unwrap() };
        assert_eq!(unsafe { insert(self.av, name.as_ptr().cast(), 1, &mut number, 0, null_mut()) }, 1);
        number
    }

    /// `fi_mr_reg`, which must succeed.
    pub(crate) fn register(&self, memory: &mut [u8], access: u64, key: u64) -> *mut fid_mr {
        let mut mr = null_mut();
        let domain = self.opened.domain;
        let reg = unsafe { (*(*domain).mr).reg.unwrap() };
        let (buf, len) = (memory.as_mut_ptr().cast(), memory.len());
        assert_eq!(unsafe { reg(domain.cast(), buf, len, access, 0, key, 0, &mut mr, null_mut()) }, 0);
        mr
    }

    /// `fi_mr_regv` of memory cut into pieces, which must succeed.
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

    /// Calls one function.
    pub(crate) fn run(&self, name: &str, args: &Args) -> isize {
        unsafe { (call(name).run)(self.ep, args) }
    }

    /// Calls one function, which must accept the operation, perhaps after some progress on all sides.
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

    /// A tagged send from a buffer.
    #[track_caller]
    pub(crate) fn tsend(&self, buf: &mut [u8], dest: u64, context: usize) {
        self.start("fi_tsend", &Args { context, ..Args::new(buf, dest) }, &[]);
    }

    /// A tagged receive from anyone.
    #[track_caller]
    pub(crate) fn trecv(&self, buf: &mut [u8], context: usize) {
        self.start("fi_trecv", &Args { context, ..Args::new(buf, 0) }, &[]);
    }

    /// A tagged receive from one source.
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

    /// How many more operations may be started.
    pub(crate) fn tx_left(&self) -> isize {
        unsafe { (*(*self.ep).ops).tx_size_left.unwrap()(self.ep) }
    }

    /// A round of progress; completions stay in the queue.
    pub(crate) fn progress(&self) {
        let result = unsafe { (*(*self.cq).ops).read.unwrap()(self.cq, null_mut(), 0) };
        // An error entry may be the next one.
        let known = [0, err(FI_EAGAIN), fabric_err(FI_EAVAIL)];
        assert!(known.contains(&result), "fi_cq_read of nothing: {result}");
    }

    /// The next completion, if there is one.
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

    /// The error entry that is next.
    pub(crate) fn error(&self) -> fi_cq_err_entry {
        error_of(self.cq).base
    }

    /// The next completion, while the other sides make progress.
    #[track_caller]
    pub(crate) fn next(&self, others: &[&Side<'_>]) -> Outcome {
        until(|| {
            others.iter().for_each(|side| side.progress());
            self.poll()
        })
    }

    /// Nothing completes here within some hundred rounds of progress everywhere.
    #[track_caller]
    pub(crate) fn nothing(&self, others: &[&Side<'_>]) {
        for _ in 0..300 {
            others.iter().for_each(|side| side.progress());
            if let Some(outcome) = self.poll() {
                panic!("a completion that nobody expects: {outcome:?}");
            }
        }
    }

    /// `fi_close` of the endpoint.
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

/// `fi_ep_alias`: another handle, whose default flags of one direction are these.
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

/// Below how many bytes a multi-receive is released.
pub(crate) fn set_min_multi_recv(ep: *mut fid_ep, bytes: usize) {
    assert_eq!(setopt(ep, FI_OPT_MIN_MULTI_RECV as c_int, bytes), 0);
}

/// Two endpoints that know each other, and their numbers for the other.
pub(crate) fn pair<'a>(lib: &'a Lib) -> (Side<'a>, Side<'a>, u64, u64) {
    acquaint(Side::new(lib), Side::new(lib))
}

/// Inserts each name at the other.
pub(crate) fn acquaint<'a>(a: Side<'a>, b: Side<'a>) -> (Side<'a>, Side<'a>, u64, u64) {
    let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
    (a, b, to_b, to_a)
}

/// A short message goes through, so that both are connected and nothing else is under way.
#[track_caller]
pub(crate) fn works(a: &Side<'_>, b: &Side<'_>, to_b: u64) {
    let (source, target) = (pattern(100), memory(100));
    b.trecv(target, 0x60);
    a.tsend(source, to_b, 0x61);
    assert_eq!(b.next(&[a]).done().op_context as usize, 0x60);
    assert_eq!(a.next(&[b]).done().op_context as usize, 0x61);
    assert_eq!(target, source);
}

/// The error entry that is next in a queue, read into the size that the newest API has (88 bytes, fi_cq(3)):
/// a provider writes as much as the API of the domain asks for.
pub(crate) fn error_of(cq: *mut fid_cq) -> fi_cq_err_entry_1_20 {
    error_with_room(cq, &mut [])
}

/// As `error_of`, read with a buffer of so many bytes for its data.
pub(crate) fn error_with_room(cq: *mut fid_cq, room: &mut [u8]) -> fi_cq_err_entry_1_20 {
    let mut failed: fi_cq_err_entry_1_20 = unsafe { std::mem::zeroed() };
    failed.base.err_data = if room.is_empty() { null_mut() } else { room.as_mut_ptr().cast() };
    failed.base.err_data_size = room.len();
    let readerr = unsafe { (*(*cq).ops).readerr.unwrap() };
    assert_eq!(unsafe { readerr(cq, (&raw mut failed).cast(), 0) }, 1);
    failed
}

/// Polls until `done` gives something.
#[track_caller]
pub(crate) fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "nothing came within {PATIENCE:?}");
    }
}

/// The open descriptors, by what they are, and the mappings of shared memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held {
    descriptors: Vec<String>,
    mappings: usize,
}

impl Held {
    /// Of this process, now.
    pub(crate) fn now() -> Self {
        let entries: Vec<_> = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()).collect();
        // The directory itself was open a moment ago; its link is gone.
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

/// A part of a group: its name, and what runs.
pub(crate) type Scene = (&'static str, fn(&Lib));

/// Runs each of a group's scenes, after which the process must hold what it held before.
pub(crate) fn scenes(lib: &Lib, list: &[Scene]) {
    // What a host opens once and keeps is there after the first endpoint.
    drop(Side::new(lib));
    for (name, run) in list {
        // For whoever reads the output of a scene that hangs or crashes.
        println!("scene {name}");
        let before = Held::now();
        run(lib);
        assert_eq!(Held::now(), before, "descriptors and mappings after and before the scene {name}");
    }
}
