//! Many pending transfers at once. Streams of each operation, with FI_MORE and fences between transfers,
//! start before and after the receives. Several senders overrun a receiver (fi_endpoint(3): FI_MORE,
//! FI_FENCE, message order; fi_domain(3), "Resource Management").

use weft_fi_sys::*;

use crate::client::{Lib, close};
use crate::rig::MODELS;
use crate::side::{Args, Form, PATIENCE, Side, err, introduce, memory, pattern, works};

use super::table::{Family, Limits, Operation, operations};

/// The number of transfers in a stream.
const LENGTH: usize = 40;
/// Every `FENCED`th transfer waits for all before it.
const FENCED: usize = 7;
/// The longest transfer of a stream in bytes.
const LONGEST_BYTES: usize = 70_000;
const KEY: u64 = 0x51;

/// Two endpoints, and the sources and targets of a stream.
struct Stream<'a> {
    a: Side<'a>,
    b: Side<'a>,
    to_b: u64,
    auto: bool,
    source: &'static mut [u8],
    target: &'static mut [u8],
}

/// Runs all streams and returns the number of transfers.
pub(super) fn streams(lib: &Lib, limits: &Limits) -> usize {
    let simulated = std::env::var_os(crate::SIM).is_some();
    let lengths: Vec<usize> = limits.edges().into_iter().filter(|&len| len <= LONGEST_BYTES).collect();
    let mut transfers = 0;
    for (auto, model) in MODELS.into_iter().enumerate().take(if simulated { 1 } else { 2 }) {
        let side = || Side::with(lib, 0, |hints| hints.domain().data_progress = model);
        let (a, b, to_b, to_a) = introduce(side(), side());
        let total = LENGTH * LONGEST_BYTES;
        let mut stream = Stream { a, b, to_b, auto: auto == 1, source: pattern(total), target: memory(total) };
        for op in operations().iter().filter(|op| !op.is_atomic()) {
            let fit = |len: &&usize| op.form != Form::Inject || **len <= stream.a.info.tx().inject_size;
            let lengths: Vec<usize> = lengths.iter().filter(fit).copied().collect();
            for late in [false, true] {
                if late && !op.is_message() {
                    continue;
                }
                println!("stream: {} auto: {} late: {late}", op.name, stream.auto);
                stream.run(op, &lengths, late);
                transfers += LENGTH;
            }
        }
        works(&stream.b, &stream.a, to_a);
    }
    transfers
}

impl Stream<'_> {
    /// Makes progress if the endpoints have manual progress.
    fn drive(&self) {
        if self.auto {
            std::thread::yield_now();
        } else {
            self.a.progress();
            self.b.progress();
        }
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = std::time::Instant::now() + PATIENCE;
        while !done() {
            self.drive();
            assert!(std::time::Instant::now() < end, "{what}");
        }
    }

    fn start(&self, side: &Side<'_>, name: &str, args: &Args) {
        self.until(name, || {
            let result = side.run(name, args);
            assert!(result == 0 || result == err(FI_EAGAIN), "{name}: {result}");
            result == 0
        });
    }

    /// Runs one stream from its first transfer to the last byte.
    fn run(&mut self, op: &Operation, lengths: &[usize], late: bool) {
        let is_read = op.family == Family::Read;
        let mut at = 0;
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for number in 0..LENGTH {
            // Each stream has another order of lengths.
            let len = lengths[(number * 5 + op.name.len()) % lengths.len()];
            spans.push((at, len));
            at += len + 1;
        }
        self.target[..at].fill(0);
        let remote = if is_read { &mut self.source[..] } else { &mut self.target[..] };
        let region = self.b.register(remote, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
        if op.is_message() && !late {
            self.receive(op, &spans);
        }
        for (number, &(at, len)) in spans.iter().enumerate() {
            let local = if is_read { &self.target[at..at + len] } else { &self.source[at..at + len] };
            let more = if number + 1 < LENGTH { FI_MORE } else { 0 };
            let fence = if number % FENCED == FENCED - 1 { FI_FENCE } else { 0 };
            let args = Args {
                buf: local.as_ptr().cast_mut().cast(),
                len,
                addr: at as u64,
                key: KEY,
                flags: more | fence,
                context: number + 1,
                ..Args::new(&mut [], self.to_b)
            };
            self.start(&self.a, op.name, &args);
        }
        if op.is_message() && late {
            self.receive(op, &spans);
        }
        let mut sent = [op.form == Form::Inject; LENGTH];
        let mut received = [!op.is_message() && !op.data; LENGTH];
        self.until("the completions of a stream", || {
            if let Some(outcome) = self.a.poll() {
                let number = outcome.done().op_context as usize - 1;
                assert!(!std::mem::replace(&mut sent[number], true), "transfer {number} has completed twice");
                let fenced = op.form == Form::Message && number % FENCED == FENCED - 1;
                assert!(!fenced || sent[..number].iter().all(|&done| done), "transfer {number} has overtaken others");
            }
            if let Some(outcome) = self.b.poll() {
                let entry = outcome.done();
                if op.is_message() {
                    let number = entry.op_context as usize - 1;
                    assert_eq!(entry.len, spans[number].1, "message {number}");
                    assert!(!std::mem::replace(&mut received[number], true), "transfer {number} was received twice");
                } else {
                    let next = received.iter().position(|done| !done).expect("more data than transfers");
                    received[next] = true;
                }
            }
            sent.iter().chain(&received).all(|&done| done)
        });
        // Injected writes have no completion.
        let there = |(at, len): (usize, usize)| self.target[at..at + len] == self.source[at..at + len];
        let target = &self.target;
        self.until("the bytes of a stream", || {
            std::hint::black_box(target.as_ptr());
            spans.iter().all(|&span| there(span))
        });
        assert!(spans.iter().all(|&(at, len)| self.target[at + len] == 0), "a byte between two transfers");
        assert!(self.a.poll().is_none() && self.b.poll().is_none(), "more completions than operations");
        works(&self.a, &self.b, self.to_b);
        assert_eq!(close(region), 0);
    }

    /// Posts receives for a whole stream in its order.
    fn receive(&self, op: &Operation, spans: &[(usize, usize)]) {
        let name = if op.family == Family::Tagged { "fi_trecv" } else { "fi_recv" };
        for (number, &(at, len)) in spans.iter().enumerate() {
            let place = &self.target[at..at + len];
            let args =
                Args { buf: place.as_ptr().cast_mut().cast(), len, context: number + 1, ..Args::new(&mut [], 0) };
            self.start(&self.b, name, &args);
        }
    }
}

/// The number of senders that overrun one receiver.
const SENDERS: usize = 5;
/// The number of messages of each sender.
const EACH: usize = 150;

/// A sender, with its started and its completed messages.
struct Sender<'a> {
    side: Side<'a>,
    to: u64,
    started: usize,
    completed: usize,
}

/// All senders send to a receiver that takes no message, until no sender can go on. Then all messages arrive
/// whole, in the order of each sender. Returns the number of messages.
pub(super) fn overrun(lib: &Lib, limits: &Limits) -> usize {
    let lengths: Vec<usize> = limits.edges().into_iter().filter(|&len| len <= LONGEST_BYTES).collect();
    let source: &[u8] = pattern(LONGEST_BYTES + EACH);
    for tagged in [false, true] {
        let receiver = Side::new(lib);
        let mut senders: Vec<Sender<'_>> = (0..SENDERS)
            .map(|_| {
                let side = Side::with(lib, 0, |hints| hints.tx().size = 32);
                let to = side.insert(&receiver.name());
                receiver.insert(&side.name());
                Sender { side, to, started: 0, completed: 0 }
            })
            .collect();
        let len_of = |sender: usize, number: usize| lengths[(number + sender) % lengths.len()];
        let mut pump = || {
            let mut moved = false;
            for (number, sender) in senders.iter_mut().enumerate() {
                moved |= sender.pump(tagged, number, source, len_of(number, sender.started));
            }
            (moved, senders.iter().all(|sender| sender.completed == EACH))
        };
        // The senders run until they are stuck.
        let mut idle = 0;
        while idle < 2000 {
            receiver.progress();
            let (moved, done) = pump();
            assert!(!done, "no sender was stuck: the test proves nothing");
            idle = if moved { 0 } else { idle + 1 };
        }
        let buffer = memory(LONGEST_BYTES);
        let mut next = [0; SENDERS];
        let name = if tagged { "fi_trecv" } else { "fi_recv" };
        for _ in 0..SENDERS * EACH {
            let args = Args { ignore: u64::MAX, ..Args::new(buffer, 0) };
            receiver.start(name, &args, &[]);
            let entry = crate::side::until(|| {
                pump();
                receiver.poll()
            })
            .done();
            let (sender, number) = ((entry.data >> 32) as usize, (entry.data & 0xffff_ffff) as usize);
            assert_eq!(number, next[sender], "the order of sender {sender}");
            assert_eq!(entry.len, len_of(sender, number));
            assert_eq!(buffer[..entry.len], source[number..number + entry.len], "message {number} of sender {sender}");
            next[sender] += 1;
        }
        crate::side::until(|| {
            receiver.progress();
            pump().1.then_some(())
        });
        assert!(receiver.poll().is_none(), "more messages than were sent");
    }
    2 * SENDERS * EACH
}

impl Sender<'_> {
    /// Starts a message if possible, and takes a completion. Returns whether either happened.
    fn pump(&mut self, tagged: bool, sender: usize, source: &[u8], len: usize) -> bool {
        let mut moved = false;
        if self.started < EACH {
            let bytes = &source[self.started..][..len];
            let args = Args {
                buf: bytes.as_ptr().cast_mut().cast(),
                len,
                data: (sender as u64) << 32 | self.started as u64,
                ..Args::new(&mut [], self.to)
            };
            let result = self.side.run(if tagged { "fi_tsenddata" } else { "fi_senddata" }, &args);
            assert!(result == 0 || result == err(FI_EAGAIN));
            moved = result == 0;
            self.started += usize::from(moved);
        }
        if let Some(outcome) = self.side.poll() {
            outcome.done();
            self.completed += 1;
            moved = true;
        }
        moved
    }
}
