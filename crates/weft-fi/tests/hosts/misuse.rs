//! Arguments that the man pages forbid. Each call returns the right error at once and has no side effect.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use weft_fi_sys::*;

use crate::client::{Lib, Opened, bind, close, control};
use crate::open;
use crate::side::{Args, CALLS, Form, Side, err, introduce, memory, pair, pattern, scenes, works};

/// The number of pieces that a vector may have.
const IOV_LIMIT: usize = 8;

fn insert(av: *mut fid_av, addresses: *const c_void, count: usize, numbers: &mut [u64]) -> c_int {
    unsafe { (*(*av).ops).insert.unwrap()(av, addresses, count, numbers.as_mut_ptr(), 0, null_mut()) }
}

/// All scenes.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("foreign_addresses", foreign_addresses),
            ("unknown_destinations", unknown_destinations),
            ("null_pointers", null_pointers),
            ("lengths", lengths),
            ("flags", flags),
            ("unsupported", unsupported),
        ],
    );
}

/// fi_av(3): an address in another format than the domain's is not inserted, and is marked FI_ADDR_NOTAVAIL.
fn foreign_addresses(lib: &Lib) {
    let good: [(u32, &[u8]); 3] = [
        (FI_FORMAT_UNSPEC, &[]),
        (FI_SOCKADDR_IN, &[2, 0, 0x12, 0x67, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        (FI_SOCKADDR_IN6, &in6_loopback()),
    ];
    for (format, good) in good {
        let side = Side::with(lib, 0, |hints| hints.get().addr_format = format);
        let own = side.name();
        let good = if good.is_empty() { own.as_slice() } else { good };
        let mut bad: Vec<(&str, Vec<u8>)> = vec![("zeros", vec![0; 64]), ("ones", vec![0xff; 64])];
        bad.push(("an InfiniBand address", padded(&[27, 0])));
        bad.push(("a Unix socket", padded(b"\x01\0/tmp/socket")));
        if format != FI_SOCKADDR_IN {
            bad.push(("an IPv4 socket", padded(&[2, 0, 0x12, 0x67, 127, 0, 0, 1])));
        }
        if format != FI_SOCKADDR_IN6 {
            bad.push(("an IPv6 socket", padded(&in6_loopback())));
        }
        if format == FI_FORMAT_UNSPEC {
            for (what, at, value) in [("another version", 0, 3), ("unknown flags", 1, 0x80)] {
                let mut name = own.clone();
                name[at] = value;
                bad.push((what, name));
            }
        } else {
            bad.push(("a native address", Side::new(lib).name()));
        }
        for (what, bytes) in &bad {
            let mut number = [7];
            let inserted = insert(side.av, bytes.as_ptr().cast(), 1, &mut number);
            assert_eq!((inserted, number), (0, [FI_ADDR_NOTAVAIL]), "{what} as format {format}");
        }
        // A name that is too short or too long is not an address.
        let fresh = Side::unbound(lib, 0, |hints| hints.get().addr_format = format);
        let setname = unsafe { (*(*fresh.ep).cm).setname.unwrap() };
        for len in [0, 1, good.len() - 1] {
            let result = unsafe { setname(fresh.ep.cast(), good.as_ptr().cast_mut().cast(), len) };
            assert_eq!(result, -FI_EINVAL, "{len} bytes as format {format}");
        }
        // The refused addresses have not taken rows.
        let mut number = [7];
        assert_eq!(insert(side.av, good.as_ptr().cast(), 1, &mut number), 1);
        assert_eq!(number, [0]);
    }
    strings(lib);
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(64, 0);
    padded
}

fn in6_loopback() -> [u8; 28] {
    let mut address = [0; 28];
    address[..4].copy_from_slice(&[10, 0, 0x12, 0x67]);
    address[23] = 1;
    address
}

fn strings(lib: &Lib) {
    let side = Side::with(lib, 0, |hints| hints.get().addr_format = FI_ADDR_STR);
    let long = std::ffi::CString::new(format!("fi_sockaddr_in://{}", "1".repeat(100_000))).unwrap();
    let bad = [
        c"",
        c"://",
        c"fi_shm://17",
        c"fi_sockaddr_in://[::1]:1",
        c"fi_sockaddr_in://127.0.0.1",
        c"fi_sockaddr_in://127.0.0.1:99999",
        c"fi_sockaddr_in://localhost:1",
        c"\xff\xfe",
        &long,
    ];
    let pointers = bad.map(|text| text.as_ptr());
    let mut numbers = [7; 9];
    assert_eq!(insert(side.av, pointers.as_ptr().cast(), bad.len(), &mut numbers), 0);
    assert_eq!(numbers, [FI_ADDR_NOTAVAIL; 9]);
    let texts = [null(), c"fi_sockaddr_in://127.0.0.1:1".as_ptr()];
    let mut numbers = [7; 2];
    assert_eq!(insert(side.av, texts.as_ptr().cast(), 2, &mut numbers), 1);
    assert_eq!(numbers, [FI_ADDR_NOTAVAIL, 0]);
}

/// Addresses that were never in an address vector, or have been removed.
fn unknown_destinations(lib: &Lib) {
    let (a, b, to_b, to_a) = pair(lib);
    let gone = a.insert(&Side::new(lib).name());
    let remove = unsafe { (*(*a.av).ops).remove.unwrap() };
    let remove = |number: u64| unsafe { remove(a.av, [number].as_mut_ptr(), 1, 0) };
    assert_eq!(remove(gone), 0);
    for number in [gone, 77, u64::MAX - 1, FI_ADDR_UNSPEC] {
        assert_eq!(remove(number), -FI_EINVAL, "removing {number:#x}");
    }
    let free = a.tx_left();
    let buf = pattern(64);
    for number in [gone, 77, 1 << 32, 1 << 63, u64::MAX - 1, FI_ADDR_UNSPEC] {
        for call in CALLS.iter().filter(|call| !call.recv) {
            let result = unsafe { (call.run)(a.ep, &Args::new(buf, number)) };
            assert_eq!(result, err(FI_EINVAL), "{} to {number:#x}", call.name);
        }
    }
    assert_eq!(a.tx_left(), free);
    a.nothing(&[&b]);
    works(&a, &b, to_b);
    works(&b, &a, to_a);
}

/// A forbidden null pointer returns -FI_EINVAL, and partial work is undone.
fn null_pointers(lib: &Lib) {
    let info = lib.ask(lib.newest(), None).unwrap();
    assert_eq!(lib.fabric_into(&info, null_mut()), -FI_EINVAL);
    let again = lib.ask(lib.newest(), None).unwrap();
    assert!(again.fabric().fabric.is_null(), "the fabric of a failed call is still open");
    {
        let opened = Opened::new(lib, &info);
        out_pointers(lib, &opened, info.raw);
        opened_again(lib, &opened);
    }
    let (a, b, to_b, _) = pair(lib);
    let free = a.tx_left();
    let buf = memory(64);
    for call in CALLS {
        let args = Args::new(buf, to_b);
        let no_buffer = Args { buf: null_mut(), ..args };
        // Receives without a buffer are accepted; `limits` tests their completions.
        if !call.recv {
            assert_eq!(unsafe { (call.run)(a.ep, &no_buffer) }, err(FI_EINVAL), "{} from a null pointer", call.name);
        }
        if matches!(call.form, Form::Vector | Form::Message) {
            let no_vector = Args { vector: Some((null(), 1)), ..args };
            assert_eq!(unsafe { (call.run)(a.ep, &no_vector) }, err(FI_EINVAL), "{} without vector", call.name);
        }
    }
    no_descriptors(&a);
    assert_eq!(a.tx_left(), free);
    a.nothing(&[&b]);
    other_arguments(&a);
    works(&a, &b, to_b);
}

/// Opening calls without a place for the new object.
fn out_pointers(lib: &Lib, opened: &Opened, info: *mut fi_info) {
    let (fabric, domain) = (opened.fabric, opened.domain);
    let no = null_mut();
    let mut memory = [0_u8; 64];
    let buf: *mut c_void = memory.as_mut_ptr().cast();
    let piece = libc::iovec { iov_base: buf, iov_len: 64 };
    unsafe {
        let on_fabric = &*(*fabric).ops;
        let on_domain = &*(*domain).ops;
        let on_mr = &*(*domain).mr;
        let mut av: fi_av_attr = std::mem::zeroed();
        let mut cq: fi_cq_attr = std::mem::zeroed();
        cq.wait_obj = FI_WAIT_FD;
        let mut cntr: fi_cntr_attr = std::mem::zeroed();
        let mut eq: fi_eq_attr = std::mem::zeroed();
        let mut mr: fi_mr_attr = std::mem::zeroed();
        (mr.mr_iov, mr.iov_count, mr.access, mr.requested_key) = (&piece, 1, FI_REMOTE_WRITE, 5);
        let auto = lib.allocinfo();
        auto.domain().data_progress = FI_PROGRESS_AUTO;
        let auto = lib.ask(lib.newest(), Some(&auto)).unwrap();
        let answers = [
            ("fi_domain", on_fabric.domain.unwrap()(fabric, auto.raw, null_mut(), no)),
            ("fi_eq_open", on_fabric.eq_open.unwrap()(fabric, &mut eq, null_mut(), no)),
            ("fi_av_open", on_domain.av_open.unwrap()(domain, &mut av, null_mut(), no)),
            ("fi_cq_open", on_domain.cq_open.unwrap()(domain, &mut cq, null_mut(), no)),
            ("fi_cntr_open", on_domain.cntr_open.unwrap()(domain, &mut cntr, null_mut(), no)),
            ("fi_endpoint", on_domain.endpoint.unwrap()(domain, info, null_mut(), no)),
            ("fi_mr_reg", on_mr.reg.unwrap()(domain.cast(), buf, 64, FI_REMOTE_WRITE, 0, 5, 0, null_mut(), no)),
            ("fi_mr_regv", on_mr.regv.unwrap()(domain.cast(), &piece, 1, FI_REMOTE_WRITE, 0, 5, 0, null_mut(), no)),
            ("fi_mr_regattr", on_mr.regattr.unwrap()(domain.cast(), &mr, 0, null_mut())),
        ];
        for (what, answer) in answers {
            assert_eq!(answer, -FI_EINVAL, "{what} without a place for the object");
        }
        // Opening calls without attributes.
        let (mut ep, mut mr, mut av, mut out) = (null_mut(), null_mut(), null_mut(), null_mut());
        let answers = [
            ("fi_domain", on_fabric.domain.unwrap()(fabric, null_mut(), &mut out, no)),
            ("fi_endpoint", on_domain.endpoint.unwrap()(domain, null_mut(), &mut ep, no)),
            ("fi_av_open", on_domain.av_open.unwrap()(domain, null_mut(), &mut av, no)),
            ("fi_mr_regv", on_mr.regv.unwrap()(domain.cast(), null(), 1, FI_REMOTE_WRITE, 0, 5, 0, &mut mr, no)),
            ("fi_mr_regattr", on_mr.regattr.unwrap()(domain.cast(), null(), 0, &mut mr)),
        ];
        for (what, answer) in answers {
            assert_eq!(answer, -FI_EINVAL, "{what} without attributes");
        }
        assert!(out.is_null() && ep.is_null() && av.is_null() && mr.is_null());
        for slot in [(*domain).fid.ops, (*fabric).fid.ops] {
            let result = (*slot).bind.unwrap()(domain.cast(), null_mut(), 0);
            assert!([-FI_EINVAL, -FI_ENOSYS].contains(&result), "binding a null pointer: {result}");
        }
        let trywait = on_fabric.trywait.unwrap();
        assert_eq!(trywait(fabric, null_mut(), 1), -FI_EINVAL);
        assert_eq!(trywait(fabric, [null_mut()].as_mut_ptr(), 1), -FI_EINVAL);
    }
}

/// A failed call has opened nothing: the key is free, and no other domain is open.
fn opened_again(lib: &Lib, opened: &Opened) {
    let again = lib.ask(lib.newest(), None).unwrap();
    assert_eq!(again.domain().domain, opened.domain);
    let domain = opened.domain;
    let mut memory = [0_u8; 64];
    let mut mr = null_mut();
    let reg = unsafe { (*(*domain).mr).reg.unwrap() };
    let buf = memory.as_mut_ptr().cast();
    let result = unsafe { reg(domain.cast(), buf, 64, FI_REMOTE_WRITE, 0, 5, 0, &mut mr, null_mut()) };
    assert_eq!(result, 0, "the key of a failed registration is not free");
    assert_eq!(close(mr), 0);
}

/// Null message descriptors, and descriptors of null vectors.
fn no_descriptors(side: &Side<'_>) {
    let ep = side.ep;
    unsafe {
        let (msg, tagged, rma) = (&*(*ep).msg, &*(*ep).tagged, &*(*ep).rma);
        let answers = [
            msg.sendmsg.unwrap()(ep, null(), 0),
            msg.recvmsg.unwrap()(ep, null(), 0),
            tagged.sendmsg.unwrap()(ep, null(), 0),
            tagged.recvmsg.unwrap()(ep, null(), 0),
            rma.readmsg.unwrap()(ep, null(), 0),
            rma.writemsg.unwrap()(ep, null(), 0),
        ];
        assert_eq!(answers, [err(FI_EINVAL); 6]);
        // A null remote vector, and an empty one although there are bytes to write.
        let mut buf = [0_u8; 8];
        let piece = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 8 };
        let mut descriptor: fi_msg_rma = std::mem::zeroed();
        (descriptor.msg_iov, descriptor.iov_count) = (&raw const piece, 1);
        for count in [1, 0] {
            descriptor.rma_iov_count = count;
            assert_eq!(rma.readmsg.unwrap()(ep, &descriptor, 0), err(FI_EINVAL), "{count} remote pieces at null");
            assert_eq!(rma.writemsg.unwrap()(ep, &descriptor, 0), err(FI_EINVAL), "{count} remote pieces at null");
        }
    }
}

/// Null pointers in control calls.
fn other_arguments(side: &Side<'_>) {
    let (ep, cq, av) = (side.ep, side.cq, side.av);
    let (mut len, nothing) = (8, null_mut::<c_void>());
    unsafe {
        assert_eq!(bind(ep, null_mut::<fid>(), 0), -FI_EINVAL);
        for command in [FI_GETOPSFLAG, FI_SETOPSFLAG, FI_ALIAS] {
            assert_eq!(control(ep, command, nothing), -FI_EINVAL, "fi_control({command}) of a null pointer");
        }
        let ops = &*(*ep).ops;
        let (level, name) = (FI_OPT_ENDPOINT as c_int, FI_OPT_MIN_MULTI_RECV as c_int);
        assert_eq!(ops.getopt.unwrap()(ep.cast(), level, name, nothing, null_mut()), -FI_EINVAL);
        assert_eq!(ops.getopt.unwrap()(ep.cast(), level, name, nothing, &mut len), -FI_EINVAL);
        assert_eq!(ops.setopt.unwrap()(ep.cast(), level, name, nothing, 8), -FI_EINVAL);
        let cm = &*(*ep).cm;
        assert_eq!(cm.getname.unwrap()(ep.cast(), nothing, null_mut()), -FI_EINVAL);
        assert_eq!(cm.setname.unwrap()(ep.cast(), nothing, 64), -FI_EINVAL);
        assert_eq!((*(*cq).ops).readerr.unwrap()(cq, null_mut(), 0), err(FI_EINVAL));
        assert_eq!(control(cq, FI_GETWAIT, nothing), -FI_EINVAL);
        let ops = &*(*av).ops;
        let (mut number, port) = (0, c"1".as_ptr());
        assert_eq!(ops.insert.unwrap()(av, null(), 1, &mut number, 0, null_mut()), -FI_EINVAL);
        assert_eq!(ops.remove.unwrap()(av, null_mut(), 1, 0), -FI_EINVAL);
        assert_eq!(ops.lookup.unwrap()(av, 0, nothing, null_mut()), -FI_EINVAL);
        assert_eq!(ops.insertsvc.unwrap()(av, null(), null(), &mut number, 0, null_mut()), -FI_EINVAL);
        assert_eq!(ops.insertsym.unwrap()(av, null(), 1, port, 1, &mut number, 0, null_mut()), -FI_EINVAL);
        assert_eq!(bind(av, null_mut::<fid>(), 0), -FI_EINVAL);
    }
}

/// Vectors above the limit of pieces, and lengths above the limits of messages and injects.
fn lengths(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let (free, buf) = (a.tx_left(), memory(64));
    let (max, inject) = (a.info.ep().max_msg_size, a.info.tx().inject_size);
    let piece = |iov_len| libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len };
    let many = [piece(1); IOV_LIMIT + 1];
    assert_eq!((a.info.tx().iov_limit, a.info.rx().iov_limit, a.info.tx().rma_iov_limit), (8, 8, 8));
    // None of these lengths is ever read from the buffer.
    let args = |len| Args { len, ..Args::new(memory(64), to_b) };
    for call in CALLS {
        let run = |args: &Args| unsafe { (call.run)(a.ep, args) };
        let name = call.name;
        match call.form {
            Form::Inject => {
                for len in [inject + 1, max + 1, usize::MAX / 2, usize::MAX] {
                    assert_eq!(run(&args(len)), err(FI_EMSGSIZE), "{name} of {len:#x} bytes");
                }
                continue;
            }
            Form::Plain => {}
            Form::Vector | Form::Message => {
                let too_many = Args { vector: Some((many.as_ptr(), many.len())), len: many.len(), ..args(0) };
                assert_eq!(run(&too_many), err(FI_EINVAL), "{name} of {} pieces", many.len());
                let absurd = Args { vector: Some((many.as_ptr(), usize::MAX)), ..args(0) };
                assert_eq!(run(&absurd), err(FI_EINVAL), "{name} with a huge number of pieces");
                // The limit applies to the sum, and the sum must not wrap around.
                for pieces in [[piece(max), piece(1)], [piece(usize::MAX), piece(2)], [piece(1 << 63); 2]] {
                    let len = pieces[0].iov_len.wrapping_add(pieces[1].iov_len);
                    let long = Args { vector: Some((pieces.as_ptr(), 2)), len, ..args(0) };
                    if !call.recv {
                        assert_eq!(run(&long), err(FI_EMSGSIZE), "{name} of {pieces:?}");
                    } else if len < max {
                        assert_eq!(run(&long), err(FI_EMSGSIZE), "{name} into {pieces:?}");
                    }
                }
            }
        }
        if !call.recv {
            for len in [max + 1, usize::MAX / 2, usize::MAX - 63, usize::MAX] {
                assert_eq!(run(&args(len)), err(FI_EMSGSIZE), "{name} of {len:#x} bytes");
            }
        }
    }
    // The inject flag has the same limit.
    for name in ["fi_sendmsg", "fi_tsendmsg", "fi_writemsg"] {
        let long = Args { flags: FI_INJECT, ..args(inject + 1) };
        assert_eq!(a.run(name, &long), err(FI_EMSGSIZE), "{name}");
    }
    // The lengths of the local and the remote vector differ.
    let args = Args::new(memory(64), to_b);
    let remote = fi_rma_iov { addr: 0, len: 63, key: 0 };
    remote_pieces(&a, &args, &[remote], FI_EINVAL);
    remote_pieces(&a, &args, &[fi_rma_iov { len: 8, ..remote }; IOV_LIMIT + 1], FI_EINVAL);
    remote_pieces(&a, &args, &[fi_rma_iov { len: usize::MAX, ..remote }, fi_rma_iov { len: 65, ..remote }], FI_EINVAL);
    assert_eq!(a.tx_left(), free);
    a.nothing(&[&b]);
    works(&a, &b, to_b);
}

fn remote_pieces(side: &Side<'_>, args: &Args, remote: &[fi_rma_iov], errno: c_int) {
    let piece = libc::iovec { iov_base: args.buf, iov_len: args.len };
    let mut msg: fi_msg_rma = unsafe { std::mem::zeroed() };
    (msg.msg_iov, msg.iov_count, msg.addr) = (&raw const piece, 1, args.dest);
    (msg.rma_iov, msg.rma_iov_count) = (remote.as_ptr(), remote.len());
    let rma = unsafe { &*(*side.ep).rma };
    for run in [rma.readmsg.unwrap(), rma.writemsg.unwrap()] {
        assert_eq!(unsafe { run(side.ep, &msg, 0) }, err(errno), "remote pieces {remote:?}");
    }
}

/// Unknown flags, flags of other operations, and flags that request unsupported features.
fn flags(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let free = a.tx_left();
    let buf = memory(64);
    for call in CALLS.iter().filter(|call| call.form == Form::Message) {
        let args = Args::new(buf, to_b);
        let run = |flags| unsafe { (call.run)(a.ep, &Args { flags, ..args }) };
        // FI_MATCH_COMPLETE has no meaning for a receive, which never completes without a match.
        let level = if call.recv { FI_MATCH_COMPLETE } else { FI_COMMIT_COMPLETE };
        for flag in [level, FI_COMMIT_COMPLETE, FI_MULTICAST] {
            assert_eq!(run(flag), err(FI_EOPNOTSUPP), "{} with {flag:#x}", call.name);
        }
        let foreign = if call.recv {
            &[FI_INJECT, FI_FENCE, FI_DISCARD, 1 << 63]
        } else {
            &[FI_PEEK, FI_CLAIM, FI_DISCARD, 1 << 63]
        };
        for &flag in foreign {
            assert_eq!(run(flag), err(FI_EINVAL), "{} with {flag:#x}", call.name);
        }
        if call.recv {
            for flags in [FI_PEEK | FI_CLAIM | FI_DISCARD, FI_MULTI_RECV | FI_PEEK, FI_MULTI_RECV | FI_CLAIM] {
                assert_eq!(run(flags), err(FI_EINVAL), "{} with {flags:#x}", call.name);
            }
            assert_eq!(run(FI_CLAIM), err(FI_EINVAL), "{}: no message was claimed", call.name);
        }
    }
    assert_eq!(a.tx_left(), free);
    // The refused calls have left no receive behind, so the next message waits.
    b.tsend(pattern(64), b.insert(&a.name()), 1);
    a.nothing(&[&b]);
    open_flags(&a);
}

/// Flags of opening calls and of fi_bind: -FI_EBADFLAGS.
fn open_flags(side: &Side<'_>) {
    let opened = &side.opened;
    let bad_flags = FI_EBADFLAGS as c_int;
    let mut cq: fi_cq_attr = unsafe { std::mem::zeroed() };
    cq.flags = FI_PEEK;
    let refused: Result<*mut fid_cq, c_int> = open!(opened.domain, cq_open, &mut cq);
    assert_eq!(refused, Err(bad_flags));
    let mut cntr: fi_cntr_attr = unsafe { std::mem::zeroed() };
    cntr.flags = FI_PEEK;
    let refused: Result<*mut fid_cntr, c_int> = open!(opened.domain, cntr_open, &mut cntr);
    assert_eq!(refused, Err(bad_flags));
    assert_eq!(opened.av(|attr| attr.flags = FI_PEEK), Err(bad_flags));
    assert_eq!(opened.eq(|attr| attr.flags = FI_PEEK), Err(bad_flags));
    let eq = opened.eq(|_| ()).unwrap();
    assert_eq!(bind(side.av, eq, FI_PEEK), -bad_flags);
    assert_eq!(bind(opened.domain, eq, FI_PEEK), -bad_flags);
    assert_eq!(close(eq), 0);
    let remove = unsafe { (*(*side.av).ops).remove.unwrap() };
    assert_eq!(unsafe { remove(side.av, [0].as_mut_ptr(), 1, FI_PEEK) }, -bad_flags);
    let (cq, cntr) = (opened.cq(), opened.cntr());
    let fresh = side.another_ep();
    assert_eq!(bind(fresh, cq, FI_TRANSMIT | FI_PEEK), -bad_flags);
    assert_eq!(bind(fresh, cntr, FI_SEND | FI_PEEK), -bad_flags);
    for result in [close(fresh), close(cq), close(cntr)] {
        assert_eq!(result, 0);
    }
}

/// Unsupported objects and calls: -FI_ENOSYS.
fn unsupported(lib: &Lib) {
    let side = Side::new(lib);
    let (domain, ep) = (side.opened.domain, side.ep);
    let (info, no) = (side.info.raw, null_mut::<c_void>());
    let (sep, cq, cntr) = (open!(domain, scalable_ep, info).unwrap(), side.cq, side.opened.cntr());
    let mut rx = null_mut();
    unsafe {
        let cm = &*(*ep).cm;
        let on_ep = &*(*ep).ops;
        let (mut len, mut ops) = (64, null_mut());
        let mut name = [0_u8; 64];
        let answers = [
            ("fi_rx_context", on_ep.rx_ctx.unwrap()(ep, 0, null_mut(), &mut rx, no)),
            ("fi_connect", cm.connect.unwrap()(ep, null(), null(), 0)),
            ("fi_listen", cm.listen.unwrap()(ep.cast())),
            ("fi_accept", cm.accept.unwrap()(ep, null(), 0)),
            ("fi_reject", cm.reject.unwrap()(ep.cast(), ep.cast(), null(), 0)),
            ("fi_shutdown", cm.shutdown.unwrap()(ep, 0)),
            ("fi_getpeer", cm.getpeer.unwrap()(ep, name.as_mut_ptr().cast(), &mut len)),
            ("fi_open_ops", (*(*domain).fid.ops).ops_open.unwrap()(domain.cast(), c"x".as_ptr(), 0, &mut ops, no)),
        ];
        for (what, answer) in answers {
            assert_eq!(answer, -FI_ENOSYS, "{what}");
        }
        assert!(rx.is_null() && ops.is_null());
        let answers = [
            ("fi_xpu_ctx", next_slot(domain, (*domain).ops)),
            ("fi_ep_export_xpu", next_slot(ep, (*ep).ops)),
            ("fi_ep_export_xpu of a scalable endpoint", next_slot(sep, (*sep).ops)),
            ("fi_cq_export_xpu", next_slot(cq, (*cq).ops)),
            ("fi_cntr_export_xpu", next_slot(cntr, (*cntr).ops)),
        ];
        for (what, answer) in answers {
            assert_eq!(answer, Some(-FI_ENOSYS), "{what}");
        }
        assert_eq!((close(sep), close(cntr)), (0, 0));
    }
    // Endpoints of other types, which fi_getinfo did not offer.
    for kind in [FI_EP_SOCK_STREAM, FI_EP_SOCK_DGRAM] {
        side.info.ep().type_ = kind;
        let opened: Result<*mut fid_ep, c_int> = open!(domain, endpoint, info);
        assert_eq!(opened, Err(FI_ENOSYS), "endpoint type {kind}");
    }
    side.info.ep().type_ = FI_EP_RDM;
    let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
    attr.wait_obj = FI_WAIT_POLLFD;
    let opened: Result<*mut fid_cq, c_int> = open!(domain, cq_open, &mut attr);
    assert_eq!(opened, Err(FI_ENOSYS), "a queue with a list of descriptors");
    let (a, b, to_b, _) = introduce(side, Side::new(lib));
    works(&a, &b, to_b);
}

/// Calls the slot that follows the slots of 1.17, if the table has one. Later headers call it without a look
/// at the table's size.
unsafe fn next_slot<O, T>(object: *mut O, table: *const T) -> Option<c_int> {
    type Call = unsafe extern "C" fn(*mut c_void, u64, *mut c_void, *mut c_void) -> c_int;
    unsafe {
        let size: usize = table.cast::<usize>().read();
        let slot: *const Call = table.add(1).cast();
        (size > size_of::<T>()).then(|| slot.read()(object.cast(), 0, null_mut(), null_mut()))
    }
}
