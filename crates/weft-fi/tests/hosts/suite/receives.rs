//! Special receives: peeks, claims and discards of unexpected messages, multi-receives, and cancelled
//! receives (fi_msg(3), fi_tagged(3), fi_cq(3), fi_endpoint(3)).

use std::ffi::c_void;

use weft_fi_sys::*;

use crate::client::Lib;
use crate::side::{Args, Outcome, Side, err, is_all, memory, pair, pattern, set_min_multi_recv, until, works};

use super::table::Limits;

/// The data of every message.
const DATA: u64 = 0xda7a_0000_0000_0007;

/// The kind of messages, tagged or untagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    tagged: bool,
}

impl Kind {
    const BOTH: [Self; 2] = [Self { tagged: false }, Self { tagged: true }];

    fn send(self) -> &'static str {
        if self.tagged { "fi_tsendmsg" } else { "fi_sendmsg" }
    }

    fn recv(self) -> &'static str {
        if self.tagged { "fi_trecvmsg" } else { "fi_recvmsg" }
    }

    fn flags(self) -> u64 {
        FI_RECV | if self.tagged { FI_TAGGED } else { FI_MSG }
    }
}

/// Two endpoints, and the address of each at the other.
struct Pair<'a> {
    a: Side<'a>,
    b: Side<'a>,
    to_b: u64,
    to_a: u64,
}

impl<'a> Pair<'a> {
    fn new(lib: &'a Lib) -> Self {
        let (a, b, to_b, to_a) = pair(lib);
        Self { a, b, to_b, to_a }
    }

    /// Sends a message with data from a to b.
    fn send(&self, kind: Kind, bytes: &mut [u8], tag: u64, context: usize, flags: u64) {
        let flags = flags | FI_REMOTE_CQ_DATA;
        let args = Args { tag, context, flags, data: DATA, ..Args::new(bytes, self.to_b) };
        self.a.start(kind.send(), &args, &[&self.b]);
    }

    /// Posts a receive at b. The call must return `result`.
    fn recv(&self, kind: Kind, args: &Args, result: isize) {
        assert_eq!(self.b.run(kind.recv(), args), result, "{kind:?} with flags {:#x}", args.flags);
    }

    /// Waits for the next completion at b.
    fn next(&self) -> Outcome {
        self.b.next(&[&self.a])
    }

    /// Asserts that nothing more completes on either side.
    fn nothing(&self) {
        self.a.nothing(&[&self.b]);
        self.b.nothing(&[&self.a]);
    }
}

/// The fate of a message that a peek has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A receive takes it.
    Receive,
    /// The peek discards it.
    Discarded,
    /// The peek claims it, and a receive takes it.
    Claim,
    /// The peek claims it, and a receive discards it.
    ClaimDiscard,
    /// The peek claims it, and a receive takes it with a buffer that is one byte too short.
    ClaimShort,
}

const THEN: [Then; 5] = [Then::Receive, Then::Discarded, Then::Claim, Then::ClaimDiscard, Then::ClaimShort];

/// Runs all cases and returns their number.
pub(super) fn receives(lib: &Lib, limits: &Limits) -> usize {
    let mut cases = 0;
    let pair = Pair::new(lib);
    for kind in Kind::BOTH {
        for len in limits.edges() {
            for then in THEN {
                for directed in [false, true] {
                    for delivered in [false, true] {
                        println!("peek: {kind:?} {len} {then:?} directed: {directed} delivered: {delivered}");
                        peek(&pair, kind, len, then, directed, delivered);
                        cases += 1;
                    }
                }
            }
            for late in [0, 2, 5] {
                // Empty messages never fill a buffer that is released only when it is full.
                for min in [0, 1, 64, 5000].into_iter().filter(|min| len + min > 0) {
                    println!("multi: {kind:?} {len}, {late} early, released below {min}");
                    multi(&pair, kind, len, late, min);
                    cases += 1;
                }
            }
        }
        cases += cancels(&pair, kind) + missing(&pair, kind);
    }
    works(&pair.b, &pair.a, pair.to_a);
    cases
}

/// Peeks until the message has arrived. Earlier peeks fail with FI_ENOMSG.
fn found(pair: &Pair<'_>, kind: Kind, args: &Args) -> fi_cq_tagged_entry {
    until(|| {
        pair.recv(kind, args, 0);
        match pair.next() {
            Outcome::Done(entry) => Some(entry),
            Outcome::Failed(entry) => {
                assert_eq!((entry.err, entry.op_context as usize), (FI_ENOMSG, args.context));
                None
            }
        }
    })
}

/// Checks the completion of the receive or discard that ends a peek, of a buffer of `room` bytes.
fn check_end(outcome: Outcome, kind: Kind, then: Then, len: usize, room: usize) {
    assert_eq!(outcome.context(), if then == Then::Receive { 4 } else { 3 });
    if room < len {
        let entry = outcome.failed();
        assert_eq!((entry.err, entry.len, entry.olen), (FI_ETRUNC as i32, room, len - room));
        return;
    }
    let entry = outcome.done();
    if then != Then::ClaimDiscard {
        assert_eq!((entry.len, entry.data), (len, DATA));
        assert_eq!(entry.flags & !FI_CLAIM, kind.flags() | FI_REMOTE_CQ_DATA);
    }
}

/// Two messages wait. A peek finds the first one, which stays until it is received or discarded.
fn peek(pair: &Pair<'_>, kind: Kind, len: usize, then: Then, directed: bool, delivered: bool) {
    let (first, second) = (pattern(len), pattern(7));
    let (tag, other) = (0x11, 0x12);
    pair.send(kind, first, tag, 1, if delivered { FI_DELIVERY_COMPLETE } else { 0 });
    pair.send(kind, second, other, 2, 0);
    let src = if directed { pair.to_a } else { FI_ADDR_UNSPEC };
    let peek = FI_PEEK
        | match then {
            Then::Receive => 0,
            Then::Discarded => FI_DISCARD,
            Then::Claim | Then::ClaimDiscard | Then::ClaimShort => FI_CLAIM,
        };
    let args = |flags, context| Args { tag, src, flags, context, ..Args::new(&mut [], 0) };
    let found = found(pair, kind, &args(peek, 3));
    assert_eq!(found.op_context as usize, 3);
    assert_eq!(found.flags, kind.flags() | FI_REMOTE_CQ_DATA);
    assert_eq!((found.len, found.data), (len, DATA));
    assert!(!kind.tagged || found.tag == tag);
    let buffer = memory(len + 8);
    let start: *mut c_void = buffer.as_mut_ptr().cast();
    let room = if then == Then::ClaimShort { len.saturating_sub(1) } else { len };
    let into = |flags, context| Args { buf: start, len: room, ..args(flags, context) };
    match then {
        Then::Receive => pair.recv(kind, &into(FI_COMPLETION, 4), 0),
        Then::Discarded => {}
        Then::Claim | Then::ClaimDiscard | Then::ClaimShort => {
            // No other peek and no receive finds a claimed message, and no other context can receive it.
            let others = Args { tag: other, ..into(FI_COMPLETION, 9) };
            pair.recv(kind, &Args { len: 8, ..others }, 0);
            let entry = pair.next().done();
            assert_eq!((entry.op_context as usize, entry.len), (9, 7), "the message behind the claimed one");
            assert_eq!(buffer[..7], *second);
            buffer.fill(0);
            pair.recv(kind, &args(FI_PEEK, 5), 0);
            assert_eq!(pair.next().failed().err, FI_ENOMSG, "a claimed message was found again");
            pair.recv(kind, &into(FI_CLAIM, 6), err(FI_EINVAL));
            let discard = if then == Then::ClaimDiscard { FI_DISCARD } else { 0 };
            pair.recv(kind, &into(FI_CLAIM | discard, 3), 0);
            // A claimed message is received once.
            pair.recv(kind, &into(FI_CLAIM, 3), err(FI_EINVAL));
        }
    }
    let received = matches!(then, Then::Receive | Then::Claim | Then::ClaimShort);
    if then != Then::Discarded {
        check_end(pair.next(), kind, then, len, room);
    }
    if received {
        assert_eq!(buffer[..room], first[..room]);
        assert!(is_all(&buffer[room..], 0), "bytes behind the buffer were written");
    } else {
        assert!(is_all(buffer, 0), "a discarded message was written to the buffer");
    }
    if matches!(then, Then::Receive | Then::Discarded) {
        pair.recv(kind, &Args { tag: other, len: 8, ..into(0, 9) }, 0);
        assert_eq!(pair.next().done().len, 7);
    }
    // The sends complete, whether the messages are received or discarded.
    let mut done = [pair.a.next(&[&pair.b]).done(), pair.a.next(&[&pair.b]).done()];
    done.sort_by_key(|entry| entry.op_context as usize);
    assert_eq!(done.map(|entry| entry.op_context as usize), [1, 2]);
    pair.nothing();
}

/// The number of messages for a multi-receive.
const MESSAGES: usize = 5;

/// A multi-receive. Some messages arrive before it is posted.
fn multi(pair: &Pair<'_>, kind: Kind, len: usize, early: usize, min: usize) {
    set_min_multi_recv(pair.b.ep, min);
    let source = pattern(len + MESSAGES);
    let send = |at: usize| pair.send(kind, &mut source[at..at + len].to_vec().leak()[..], 0x21, at, 0);
    (0..early).for_each(send);
    // The buffer has room for three messages and some bytes.
    let spare = 10;
    let room = 3 * len + spare;
    let (buffer, rest) = (memory(room + 8), memory(2 * MESSAGES * (len + 8)));
    let args = Args { tag: 0x21, context: 7, flags: FI_MULTI_RECV, ..Args::new(&mut buffer[..room], 0) };
    pair.recv(kind, &args, 0);
    (early..MESSAGES).for_each(send);
    let start = buffer.as_ptr() as usize;
    // The place and the stored length of each message in the order of sending.
    let mut places = Vec::new();
    let (mut at, mut released) = (0, false);
    while !released && places.len() < MESSAGES {
        let stored = len.min(room - at);
        places.push((start + at, stored, len - stored));
        at += stored;
        released = room - at < min.max(1);
    }
    let taken = places.len();
    // Completions come in any order. The last one releases the buffer.
    let mut seen: Vec<_> = (0..taken).map(|number| checked(pair, kind, released && number + 1 == taken)).collect();
    seen.sort_unstable();
    assert_eq!(seen, places);
    for (message, &(buf, stored, _)) in places.iter().enumerate() {
        assert_eq!(buffer[buf - start..][..stored], source[message..message + stored], "message {message}");
    }
    assert!(is_all(&buffer[at..], 0), "bytes behind the messages were written");
    if !released {
        // Cancelling the multi-receive releases the buffer.
        assert_eq!(pair.b.cancel(7), 0);
        let entry = pair.next().failed();
        assert_eq!((entry.err, entry.op_context as usize), (FI_ECANCELED, 7));
        assert_ne!(entry.flags & FI_MULTI_RECV, 0, "the cancelled buffer is released");
    }
    for number in taken..MESSAGES {
        let place = &mut rest[number * (len + 8)..][..len];
        pair.recv(kind, &Args { tag: 0x21, context: 8, ..Args::new(place, 0) }, 0);
        assert_eq!(pair.next().done().len, len);
        assert_eq!(*place, source[number..number + len]);
    }
    for _ in 0..MESSAGES {
        pair.a.next(&[&pair.b]).done();
    }
    pair.nothing();
}

/// Checks one message of a multi-receive. Returns its place, its stored bytes, and its truncated bytes.
fn checked(pair: &Pair<'_>, kind: Kind, released: bool) -> (usize, usize, usize) {
    let outcome = pair.next();
    let (flags, len, buf, excess) = match outcome {
        Outcome::Done(entry) => (entry.flags, entry.len, entry.buf, 0),
        Outcome::Failed(entry) => {
            assert_eq!(entry.err, FI_ETRUNC as i32);
            (entry.flags, entry.len, entry.buf, entry.olen)
        }
    };
    assert_eq!(outcome.context(), 7);
    assert_eq!(flags & FI_MULTI_RECV != 0, released, "released");
    assert_eq!(flags & !FI_MULTI_RECV, kind.flags() | FI_REMOTE_CQ_DATA);
    (buf as usize, len, excess)
}

/// The first receive, a middle one and the last one are cancelled. The others get their messages in order.
fn cancels(pair: &Pair<'_>, kind: Kind) -> usize {
    const POSTED: usize = 5;
    for gone in 0..POSTED {
        let buffers = memory(8 * POSTED);
        for (context, buffer) in buffers.chunks_mut(8).enumerate() {
            pair.recv(kind, &Args { tag: 0x31, context: context + 1, ..Args::new(buffer, 0) }, 0);
        }
        assert_eq!(pair.b.cancel(gone + 1), 0);
        let entry = pair.next().failed();
        assert_eq!((entry.err, entry.op_context as usize), (FI_ECANCELED, gone + 1));
        assert_eq!(entry.flags, kind.flags());
        assert_eq!(pair.b.cancel(gone + 1), err(FI_ENOENT), "twice");
        for message in 0..POSTED - 1 {
            pair.send(kind, memory(8), 0x31, 1, 0);
            let expected = if message < gone { message } else { message + 1 };
            assert_eq!(pair.next().done().op_context as usize, expected + 1);
            pair.a.next(&[&pair.b]).done();
        }
        pair.nothing();
    }
    POSTED
}

/// Peeks and claims of absent messages, by tag, by source, or of any message.
fn missing(pair: &Pair<'_>, kind: Kind) -> usize {
    let mut cases = 0;
    pair.send(kind, pattern(9), 0x41, 1, 0);
    pair.a.next(&[&pair.b]).done();
    let own = pair.b.insert(&pair.b.name());
    for flags in [FI_PEEK, FI_PEEK | FI_CLAIM, FI_PEEK | FI_DISCARD] {
        for (tag, src) in [(0x42, FI_ADDR_UNSPEC), (0x42, pair.to_a), (0x41, own)] {
            if !kind.tagged && src != own {
                continue;
            }
            pair.recv(kind, &Args { tag, src, flags, context: 3, ..Args::new(&mut [], 0) }, 0);
            let entry = pair.next().failed();
            assert_eq!((entry.err, entry.op_context as usize, entry.len), (FI_ENOMSG, 3, 0));
            cases += 1;
        }
        pair.recv(kind, &Args { flags: FI_CLAIM, context: 3, ..Args::new(memory(9), 0) }, err(FI_EINVAL));
    }
    let target = memory(9);
    pair.recv(kind, &Args { tag: 0x41, context: 4, ..Args::new(target, 0) }, 0);
    assert_eq!(pair.next().done().len, 9);
    assert_eq!(target, pattern(9));
    pair.nothing();
    cases + 1
}
