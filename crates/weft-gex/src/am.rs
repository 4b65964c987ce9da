//! Active messages: their form on the wire, the call of handlers, requests and replies.
//!
//! Place in the data flow: weft-gex-c calls [`request`] and [`Token::reply`]. A request to another rank is a message of
//! the engine; at its target `Handlers` runs the handler in place, while the engine polls. A reply of a handler is
//! written into the arrival's answer, which the engine sends after the poll. A message to the own rank runs its handler
//! in the call.
//!
//! The payload of a long message is copied into the target's segment before its message leaves, where the segment is
//! mapped here. Elsewhere a short payload travels in the message, and the target copies it; a request waits until the
//! engine has written a longer one. The handler therefore finds it in place.
//!
//! Some messages are the library's own: a wake, and the end of the job.
//!
//! Invariant: a handler sends at most one reply, and none to a reply.

use std::cell::{Cell, RefCell};

use weft_engine::am::{ActiveHandler, ActiveHead, ActiveMessage, Answer, body_limit};
use weft_engine::api::{Addr, Error};
use weft_engine::nic::LinkError;

use crate::book::place_of;
use crate::failure;
use crate::invoke::{self, ANY_ARGS, Argument, Entry, MAX_ARGS};
use crate::job::Job;
use crate::memory::{self, Piece};
use crate::outside;
use crate::pack;
use crate::platform;
use crate::table::{Location, Place};
use crate::wait::Pause;

/// The longest payload of a long message, in bytes.
pub const MAX_LONG: usize = 0x7fff_ffff;

/// The longest payload of a medium message in bytes, to any rank.
#[must_use]
pub fn max_medium() -> usize {
    // Whole words remain behind each header.
    body_limit(platform::least_mailbox_bytes()).min((64 << 10) - 1024) & !7
}

/// The longest payload of a long reply in bytes. A reply cannot wait, so between neighbourhoods its payload travels in
/// the message.
#[must_use]
pub fn max_long_reply(job: &Job) -> usize {
    if job.places().all_near() { MAX_LONG } else { max_medium() }
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Arguments alone.
    Short,
    /// A payload that the handler gets in memory of the library.
    Medium,
    /// A payload at an address of the target's segment.
    Long {
        /// The address in the target's process.
        dest: usize,
    },
}

/// A message, without its destination.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The index of the handler.
    pub handler: u8,
    /// Its kind.
    pub kind: Kind,
    /// The address of the payload; ignored for short messages.
    pub source: usize,
    /// The length of the payload in bytes.
    pub bytes: usize,
    /// The handler's arguments.
    pub args: &'a [i32],
}

/// The place of a long message's payload when the message leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cargo {
    /// At its destination.
    Placed,
    /// In the message.
    Aboard,
}

/// The kind of a long message that carries its payload.
const LONG_ABOARD: u8 = 4;

/// The bytes before the arguments of a header: handler, kind, number of arguments, and a free byte.
const LEAD_BYTES: usize = 4;

/// A message's header: the lead and the arguments, filled up to a whole word; for long messages also address and
/// length. Payloads behind it are aligned if the device's memory is.
#[inline(always)]
fn head_of(message: &Message<'_>, cargo: Cargo) -> ActiveHead {
    let kind = match (message.kind, cargo) {
        (Kind::Short, _) => 0,
        (Kind::Medium, _) => 1,
        (Kind::Long { .. }, Cargo::Placed) => 2,
        (Kind::Long { .. }, Cargo::Aboard) => LONG_ABOARD,
    };
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 arguments")]
    let lead = i32::from_ne_bytes([message.handler, kind, message.args.len() as u8, 0]);
    let mut head = ActiveHead::empty();
    let (first, rest) = message.args.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
    head.push(word_of(lead, first));
    for pair in rest.chunks(2) {
        head.push(word_of(pair[0], pair.get(1).copied().unwrap_or(0)));
    }
    if let Kind::Long { dest } = message.kind {
        head.push(dest as u64);
        head.push(message.bytes as u64);
    }
    head
}

/// Two numbers, in the order of their addresses.
#[inline(always)]
fn word_of(first: i32, second: i32) -> u64 {
    let [first, second] = [first, second].map(|half| u64::from(half.cast_unsigned()));
    if cfg!(target_endian = "little") { first | second << 32 } else { first << 32 | second }
}

/// A header that has arrived. Its arguments are read when the handler is called.
struct Arrived<'a> {
    handler: u8,
    kind: Kind,
    /// Bytes of a long payload.
    long_bytes: usize,
    cargo: Cargo,
    args: &'a [Argument],
}

impl<'a> Arrived<'a> {
    #[inline(always)]
    fn parse(head: &'a [u8]) -> Option<Self> {
        let (&[handler, kind, count, _], rest) = head.split_first_chunk::<LEAD_BYTES>()?;
        let count = usize::from(count);
        let args = rest.as_chunks().0.get(..count).filter(|_| count <= MAX_ARGS)?;
        let cargo = if kind == LONG_ABOARD { Cargo::Aboard } else { Cargo::Placed };
        let (kind, long_bytes) = match kind {
            0 => (Kind::Short, 0),
            1 => (Kind::Medium, 0),
            2 | LONG_ABOARD => {
                let [dest, bytes] = *head.as_chunks::<8>().0.get((LEAD_BYTES + 4 * count).div_ceil(8)..)? else {
                    return None;
                };
                let [dest, bytes] = [dest, bytes].map(|word| usize::try_from(u64::from_ne_bytes(word)).ok());
                (Kind::Long { dest: dest? }, bytes?)
            }
            _ => return None,
        };
        Some(Self { handler, kind, long_bytes, cargo, args })
    }
}

/// The destination of a handler's reply.
enum ReplyTo<'a> {
    /// Another rank.
    Peer(&'a mut Answer<'a>),
    /// The own rank.
    Own,
    /// None: this is a reply.
    Nothing,
}

/// The token of a handler that runs.
pub struct Token<'a> {
    source: Location,
    /// The endpoint that the message has reached.
    endpoint: u16,
    is_long: bool,
    is_request: bool,
    entry: *const Entry,
    replied: Cell<bool>,
    reply: RefCell<ReplyTo<'a>>,
}

impl Token<'_> {
    fn new<'a>(source: Location, is_long: bool, entry: *const Entry, reply: ReplyTo<'a>) -> Token<'a> {
        let is_request = !matches!(reply, ReplyTo::Nothing);
        Token {
            source,
            endpoint: source.by(),
            is_long,
            is_request,
            entry,
            replied: Cell::new(false),
            reply: RefCell::new(reply),
        }
    }

    /// The token of a reply's handler.
    #[must_use]
    pub fn for_reply(source: u32, entry: *const Entry) -> Self {
        Self::new(Location::new(source, 0), false, entry, ReplyTo::Nothing)
    }

    /// The rank of the sender.
    #[must_use]
    pub fn source(&self) -> u32 {
        self.source.rank()
    }

    /// The number of the endpoint that the message has reached.
    #[must_use]
    pub fn endpoint(&self) -> u16 {
        self.endpoint
    }

    /// Whether the message is long.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.is_long
    }

    /// Whether the message is a request.
    #[must_use]
    pub fn is_request(&self) -> bool {
        self.is_request
    }

    /// The entry of the handler.
    #[must_use]
    pub fn entry(&self) -> *const Entry {
        self.entry
    }

    /// Replies to the request.
    #[inline(always)] // The kind of the message is known to each caller.
    pub fn reply(&self, job: &Job, message: &Message<'_>) {
        if !self.is_request {
            crate::fatal!("the handler of a reply has replied; only handlers of requests may");
        }
        if self.replied.replace(true) {
            crate::fatal!("a handler has replied twice; send one reply to a request");
        }
        let at = self.source;
        let is_long = matches!(message.kind, Kind::Long { .. });
        if is_long && message.bytes > max_medium() && !job.places().is_near(at.rank()) {
            crate::fatal!(
                "a long reply of {} bytes to another neighbourhood; send at most gex_Token_MaxReplyLong, which is {}",
                message.bytes,
                max_medium()
            );
        }
        let cargo = place_long(job, at, message);
        let mut reply = self.reply.borrow_mut();
        match &mut *reply {
            ReplyTo::Peer(answer) => {
                let body = body_bytes(message, cargo);
                answer.put(&mut head_of(message, cargo), memory::bytes_at(Piece { addr: message.source, bytes: body }));
            }
            ReplyTo::Own => run_own(job, at.used_by(self.endpoint), message, false),
            ReplyTo::Nothing => {}
        }
    }
}

fn check_medium(bytes: usize) {
    if bytes > max_medium() {
        crate::fatal!(
            "a medium message of {bytes} bytes; send at most gex_AM_MaxRequestMedium, which is {}",
            max_medium()
        );
    }
}

/// The length of what travels in the message.
#[inline(always)]
fn body_bytes(message: &Message<'_>, cargo: Cargo) -> usize {
    if message.kind == Kind::Medium {
        check_medium(message.bytes);
    }
    if message.kind == Kind::Medium || cargo == Cargo::Aboard { message.bytes } else { 0 }
}

/// Copies the payload of a long message into the target's segment, unless it is to travel in the message.
#[inline(always)]
fn place_long(job: &Job, at: Location, message: &Message<'_>) -> Cargo {
    if let Kind::Long { dest } = message.kind
        && message.bytes > 0
    {
        let remote = Piece { addr: dest, bytes: message.bytes };
        match job.place(at, remote) {
            Place::Here(here) => memory::copy_at(here, Piece { addr: message.source, bytes: message.bytes }),
            Place::Remote if message.bytes <= max_medium() => return Cargo::Aboard,
            other => job.far(memory::Way::Put, at, message.source, remote, other),
        }
    }
    Cargo::Placed
}

/// The readiness of a sender to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Poll until the message has left.
    Wait,
    /// Refuse the message rather than poll.
    Immediate,
}

/// Sends a request. Returns whether it was sent. It is not if the rank has failed, or waiting would be needed and is
/// not wanted.
#[inline(always)] // The kind of the message is known to each caller.
pub fn request(job: &Job, at: Location, message: &Message<'_>, patience: Patience) -> bool {
    if at.rank() == job.rank() {
        place_long(job, at, message);
        run_own(job, at, message, true);
        return true;
    }
    // The payload of a long message must be in place first, and must not be if the message is refused. Its address is
    // checked by the copy.
    if patience == Patience::Immediate && matches!(message.kind, Kind::Long { .. }) {
        return request_long_now(job, at, message);
    }
    let cargo = place_long(job, at, message);
    let body = Piece { addr: message.source, bytes: body_bytes(message, cargo) };
    send(job, at, &mut head_of(message, cargo), body, Sending { reply: false, patience })
}

/// Sends a long request whose payload is in place, if it can leave now. It carries no payload.
pub(crate) fn request_placed(job: &Job, at: Location, message: &Message<'_>) -> bool {
    let nothing = Piece { addr: 0, bytes: 0 };
    let sending = Sending { reply: false, patience: Patience::Immediate };
    send(job, at, &mut head_of(message, Cargo::Placed), nothing, sending)
}

/// Sends a short or medium message whose handler is that of a reply, without a request.
pub fn notify(job: &Job, at: Location, message: &Message<'_>) {
    if at.rank() == job.rank() {
        return run_own(job, at, message, false);
    }
    check_medium(message.bytes);
    let body = Piece { addr: message.source, bytes: message.bytes };
    send(job, at, &mut head_of(message, Cargo::Placed), body, Sending { reply: true, patience: Patience::Wait });
}

/// The manner of sending.
#[derive(Clone, Copy)]
struct Sending {
    reply: bool,
    patience: Patience,
}

/// A long request that may be refused. Overwriting the destination early is harmless only if the message follows, so
/// the call waits once the copy is made. It polls only if the device is full at that moment.
#[cold]
fn request_long_now(job: &Job, at: Location, message: &Message<'_>) -> bool {
    // Refusing is always allowed: without a link or while another thread is inside, the client tries again.
    if !job.can_send_now(at) {
        return false;
    }
    let cargo = place_long(job, at, message);
    // A payload within the message has no effect yet if the message is refused.
    let patience = if cargo == Cargo::Aboard { Patience::Immediate } else { Patience::Wait };
    let body = Piece { addr: message.source, bytes: body_bytes(message, cargo) };
    send(job, at, &mut head_of(message, cargo), body, Sending { reply: false, patience })
}

#[inline(always)]
fn send(job: &Job, at: Location, head: &mut ActiveHead, body: Piece, sending: Sending) -> bool {
    let Sending { reply, patience } = sending;
    let piece = invoke::message_piece(body);
    let pieces = std::slice::from_ref(&piece);
    let mut message =
        ActiveMessage { dest: job.message_address(at), reply, head, body: if body.bytes == 0 { &[] } else { pieces } };
    if job.failures().has_lost(at.rank()) {
        return false;
    }
    match attempt(job, at, &mut message, patience) {
        Some(Ok(())) => true,
        refused => send_later(job, at, &mut message, patience, refused),
    }
}

/// Tries to send. `None`: the call comes from a handler, or another thread uses the engine.
#[inline(always)]
fn attempt(job: &Job, at: Location, message: &mut ActiveMessage<'_>, patience: Patience) -> Option<Result<(), Error>> {
    match patience {
        Patience::Wait => job.with_engine_by(at.by(), |engine| engine.send_active(message)),
        Patience::Immediate => job.try_with_engine_by(at.by(), |engine| engine.send_active(message)),
    }
}

/// Sends a message after an attempt that was refused.
#[cold]
#[inline(never)]
fn send_later(
    job: &Job,
    at: Location,
    message: &mut ActiveMessage<'_>,
    patience: Patience,
    mut sent: Option<Result<(), Error>>,
) -> bool {
    let mut pause = Pause::new();
    loop {
        match sent {
            Some(Ok(())) => return true,
            Some(Err(Error::Again)) | None if patience == Patience::Immediate => return false,
            Some(Err(Error::Again)) if job.failures().has_lost(at.rank()) => return false,
            Some(Err(Error::Again)) => pause.step(job),
            None => crate::fatal!("a handler has sent a request; handlers may only reply"),
            Some(Err(error)) => crate::fatal!(
                "a message to rank {} was refused: {error}; check that it has started the same library",
                at.rank()
            ),
        }
        sent = attempt(job, at, message, patience);
    }
}

/// The header of a message without a handler, which ends the target's sleep.
const WAKE: [u8; 4] = [0, 3, 0, 0];

/// Ends the sleep of a rank. Without credit or link it may sleep on until its time is over.
pub(crate) fn wake(job: &Job, rank: u32) {
    let head = &mut ActiveHead::new(&WAKE);
    let mut message = ActiveMessage { dest: Addr::from(rank), reply: false, head, body: &[] };
    let _ = job.with_engine(|engine| engine.send_active(&mut message));
}

/// The begin of the header of a message that ends the job. The code follows.
const END: [u8; 4] = [2, 3, 0, 0];

/// Tells a rank that the job ends, if a message can leave now.
pub(crate) fn send_end(job: &Job, rank: u32, code: i32) {
    let mut head = ActiveHead::empty();
    head.push(word_of(i32::from_ne_bytes(END), code));
    let mut message = ActiveMessage { dest: Addr::from(rank), reply: true, head: &mut head, body: &[] };
    let _ = job.try_with_engine(|engine| engine.send_active(&mut message));
}

/// Takes a message of the library. Returns whether it was one.
#[cold]
#[inline(never)]
fn take_own(job: &Job, head: &[u8]) -> bool {
    match head.split_first_chunk::<4>() {
        Some((&WAKE, [])) => true,
        Some((&END, rest)) => {
            let code = rest.first_chunk().map_or(1, |bytes| i32::from_ne_bytes(*bytes));
            job.board().end_job(code);
            job.board().set_ending();
            true
        }
        _ => false,
    }
}

/// Runs the handler of a message to the own rank.
#[inline(never)]
fn run_own(job: &Job, at: Location, message: &Message<'_>, request: bool) {
    let entry = find(job, at.endpoint(), message.handler, message.args.len());
    let reply = if request { ReplyTo::Own } else { ReplyTo::Nothing };
    let source = Location::new(job.rank(), at.by()).used_by(at.endpoint());
    let token = Token::new(source, matches!(message.kind, Kind::Long { .. }), entry, reply);
    let Some(function) = entry.function else { return };
    let mut args = [[0; 4]; MAX_ARGS];
    args.iter_mut().zip(message.args).for_each(|(to, arg)| *to = arg.to_ne_bytes());
    let args = &args[..message.args.len()];
    match message.kind {
        Kind::Short => invoke::handler(function, &token, None, args),
        Kind::Long { dest } => {
            let payload = Piece { addr: dest, bytes: message.bytes };
            invoke::handler(function, &token, Some(payload), args);
        }
        Kind::Medium => {
            check_medium(message.bytes);
            // The source belongs to the client again when the handler runs, so the handler gets a copy.
            with_copy(memory::bytes_at(Piece { addr: message.source, bytes: message.bytes }), |addr| {
                let payload = Piece { addr, bytes: message.bytes };
                invoke::handler(function, &token, Some(payload), args);
            });
        }
    }
}

thread_local! {
    /// Buffers for payloads that handlers get as copies. Handlers nest twice: a request's, and its reply's.
    static COPIES: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with the address of an aligned copy.
fn with_copy(bytes: &[u8], work: impl FnOnce(usize)) {
    let mut copy = COPIES.try_with(|copies| copies.borrow_mut().pop()).ok().flatten().unwrap_or_default();
    let words = bytes.len().div_ceil(8);
    if copy.len() < words {
        copy.resize(words, 0);
    }
    let addr = copy.as_mut_ptr().expose_provenance();
    memory::bytes_at_mut(Piece { addr, bytes: bytes.len() }).copy_from_slice(bytes);
    work(addr);
    let _ = COPIES.try_with(|copies| copies.borrow_mut().push(copy));
}

#[inline(always)]
fn find(job: &Job, endpoint: u16, index: u8, count: usize) -> &Entry {
    let found = match endpoint {
        0 => job.endpoint().handler(index),
        other => job.endpoint_at(other).and_then(|endpoint| endpoint.handler(index)),
    };
    match found {
        Some(entry) if entry.nargs == ANY_ARGS || entry.nargs as usize == count => entry,
        other => wrong_handler(endpoint, index, count, other),
    }
}

#[cold]
fn wrong_handler(endpoint: u16, index: u8, count: usize, found: Option<&Entry>) -> ! {
    match found {
        Some(entry) => crate::fatal!(
            "handler {index} takes {} arguments and got {count}; send as many as were registered",
            entry.nargs
        ),
        None => crate::fatal!(
            "no handler of endpoint {endpoint} has index {index}; register it in all ranks before the first message"
        ),
    }
}

/// The engine's client: runs handlers.
pub(crate) struct Handlers {
    /// The number of the endpoint whose engine this is.
    pub(crate) endpoint: u16,
}

impl ActiveHandler for Handlers {
    #[inline]
    fn arrived(&mut self, source: Addr, reply: bool, head: &[u8], body: &[u8], answer: &mut Answer<'_>) {
        let Some(job) = Job::get() else { return };
        let at = place_of(source).used_by(self.endpoint);
        let source = at.rank();
        let Some(arrived) = Arrived::parse(head) else {
            if take_own(job, head)
                || outside::take(job, head, body, answer)
                || pack::take(job, source, head, body, answer)
            {
                return;
            }
            crate::fatal!("rank {source} has sent a message of another form; start the same library in all ranks");
        };
        let args = arrived.args;
        let entry = find(job, self.endpoint, arrived.handler, args.len());
        let Some(function) = entry.function else { return };
        let to = if reply { ReplyTo::Nothing } else { ReplyTo::Peer(invoke::for_token(answer)) };
        let token = Token::new(at, matches!(arrived.kind, Kind::Long { .. }), entry, to);
        match arrived.kind {
            Kind::Short => invoke::handler(function, &token, None, args),
            Kind::Long { dest } => {
                if arrived.cargo == Cargo::Aboard {
                    unload(job, self.endpoint, dest, body);
                }
                let payload = Piece { addr: dest, bytes: arrived.long_bytes };
                invoke::handler(function, &token, Some(payload), args);
            }
            Kind::Medium => {
                let addr = body.as_ptr().expose_provenance();
                if addr.is_multiple_of(8) {
                    invoke::handler(function, &token, Some(Piece { addr, bytes: body.len() }), args);
                } else {
                    with_copy(body, |addr| {
                        invoke::handler(function, &token, Some(Piece { addr, bytes: body.len() }), args);
                    });
                }
            }
        }
    }

    fn lost(&mut self, source: Addr, why: LinkError) {
        let rank = u32::try_from(source).unwrap_or(u32::MAX);
        outside::lose(rank);
        pack::lose(rank);
        if Job::get().is_some_and(|job| failure::link_ended(job, rank, why)) {
            return;
        }
        // The supervisor or the launcher ends the job when a rank dies. Links that cannot be made are no deaths.
        let is_hopeless = matches!(
            why,
            LinkError::Timeout
                | LinkError::Unreachable
                | LinkError::Denied
                | LinkError::Encryption
                | LinkError::Version(_)
                | LinkError::Descriptors
        );
        if is_hopeless && Job::get().is_some_and(|job| job.board().exit_code().is_none()) {
            crate::fatal!("no link to rank {}: {why}", place_of(source).rank());
        }
    }
}

/// Copies the payload of a long message to its destination.
#[cold]
fn unload(job: &Job, endpoint: u16, dest: usize, body: &[u8]) {
    let Place::Here(here) = job.place(Location::new(job.rank(), endpoint), Piece { addr: dest, bytes: body.len() })
    else {
        crate::fatal!(
            "a long message of {} bytes to {dest:#x}, which is not in the segment; pass an address of the target's segment",
            body.len()
        );
    };
    memory::copy_at(here, Piece::at(body.as_ptr(), body.len()));
}

impl Job {
    /// Copies into a rank's segment.
    #[inline(always)]
    pub fn put(&self, at: Location, dest: usize, source: Piece) {
        let remote = Piece { addr: dest, bytes: source.bytes };
        match self.place(at, remote) {
            Place::Here(here) => memory::copy_at(here, source),
            other => self.far(memory::Way::Put, at, source.addr, remote, other),
        }
    }

    /// Copies from a rank's segment.
    #[inline(always)]
    pub fn get_from(&self, at: Location, source: Piece, dest: usize) {
        match self.place(at, source) {
            Place::Here(here) => memory::copy_at(dest, Piece { addr: here, bytes: source.bytes }),
            other => self.far(memory::Way::Get, at, dest, source, other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_back() {
        let all: Vec<i32> = (0..16).map(|at| at * 1_000_003 - 5).collect();
        for count in 0..=MAX_ARGS {
            for kind in [Kind::Short, Kind::Medium, Kind::Long { dest: 0x7fff_1234_5678 }] {
                let args = &all[..count];
                let header = head_of(&Message { handler: 200, kind, source: 0, bytes: 77, args }, Cargo::Placed);
                let bytes = header.bytes();
                let arrived = Arrived::parse(bytes).expect("a header");
                let got: Vec<i32> = arrived.args.iter().map(|arg| i32::from_ne_bytes(*arg)).collect();
                assert_eq!((arrived.handler, arrived.kind, &got[..]), (200, kind, args));
                assert_eq!(arrived.long_bytes, if matches!(kind, Kind::Long { .. }) { 77 } else { 0 });
                assert!(bytes.len().is_multiple_of(8));
                assert!((0..LEAD_BYTES).all(|len| Arrived::parse(&bytes[..len]).is_none()));
                assert!(Arrived::parse(&bytes[..bytes.len() - 8]).is_none());
            }
        }
        assert!(Arrived::parse(&[1, 0, 17, 0]).is_none());
        assert!(Arrived::parse(&[1, 3, 0, 0]).is_none());
    }
}
