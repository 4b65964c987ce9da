//! A connection as [`super::tx`] and [`super::rx`] use it: a stream of bytes, plain or encrypted.
//!
//! Place in the data flow: between the frames of a link and [`super::sys`]. A plain connection is its socket. On an
//! encrypted one, the bytes of each write are cut into *records* of at most [`RECORD_BYTES`]. A record is a length and
//! the sealed bytes. The keys come from the handshake ([`super::connect`]) and are new for each connection, so that the
//! resumption of a link is independent of encryption.
//!
//! Invariants:
//!
//! - Each direction has its own key, which is replaced every [`KEY_RECORDS`] records. The nonce is a counter of
//!   records, whose end closes the connection before a nonce repeats.
//! - Sealed bytes are kept until the kernel accepts them. Meanwhile no further bytes are accepted.
//! - No byte of a record that is not genuine is delivered.
//! - Buffers are lent to connections while they hold bytes. An idle connection has none.
//!
//! Errors: [`Errno::BADMSG`] for a record that is too long or not genuine; otherwise those of the socket.
//!
//! Sources: NIST SP 800-38D (AES-GCM; section 8.2.1 for the nonces); RFC 8446, section 5.5 (limits of a key); the Noise
//! protocol framework, revision 34, section 4.2 (REKEY).

use std::cell::RefCell;
use std::os::fd::BorrowedFd;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustc_hash::FxHashMap;
use rustix::io::Errno;

use super::bugs::planted;
use super::sys::{self, Pieces};

/// Limit of plain bytes in a record. The excess over 32 KiB takes the headers of a push: eight records hold a segment
/// of 256 KiB with its announcement.
pub(super) const RECORD_BYTES: usize = 32 * 1024 + 64;
/// Bytes of the length before a record.
const LENGTH_BYTES: usize = 4;
/// Records under one key: at most 32 GiB. The limit is far below that of AES-GCM's confidentiality (2^31 blocks; TLS
/// 1.3 allows 2^34.5).
const KEY_RECORDS: u64 = 1 << 20;
/// Bytes that sealing adds.
const TAG_BYTES: usize = 16;
/// Limit of bytes in a whole record.
const SEALED_BYTES: usize = LENGTH_BYTES + RECORD_BYTES + TAG_BYTES;
/// Limit of sealed bytes that one system call sends.
const OUT_BYTES: usize = 4 * SEALED_BYTES;
/// Limit of sealed bytes that one system call receives.
const IN_BYTES: usize = 2 * SEALED_BYTES;

/// The two keys of one side.
pub(super) struct Keys {
    /// The key for sending.
    pub(super) ours: [u8; 32],
    /// The key for receiving.
    pub(super) theirs: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// The encrypted connections of a device, by link. Each is borrowed only for single calls.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    links: FxHashMap<u32, RefCell<Secret>>,
    spare: RefCell<Spare>,
}

/// Buffers that no connection uses now.
#[derive(Default)]
struct Spare {
    input: Vec<Vec<u8>>,
    out: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Spare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spare(..)")
    }
}

/// Limit of unused buffers of each kind.
const SPARE_BUFFERS: usize = 4;

/// Allocates a receive buffer; `None`: there is no memory.
#[cold]
fn new_input() -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(IN_BYTES).ok()?;
    buffer.resize(IN_BYTES, 0);
    Some(buffer)
}

/// Returns a buffer.
fn put_back(spare: &mut Vec<Vec<u8>>, buffer: &mut Vec<u8>) {
    let buffer = std::mem::take(buffer);
    if buffer.capacity() > 0 && spare.len() < SPARE_BUFFERS {
        spare.push(buffer);
    }
}

impl Secrets {
    /// Makes the link's connection encrypted, or plain if there are no keys.
    pub(super) fn set(&mut self, link: u32, keys: Option<&Keys>) {
        match keys {
            Some(keys) => drop(self.links.insert(link, RefCell::new(Secret::new(keys)))),
            None => drop(self.links.remove(&link)),
        }
    }

    /// Bytes of memory for records that have been received or sent in part.
    pub(super) fn held_bytes(&self, link: u32) -> usize {
        self.links.get(&link).map_or(0, |secret| {
            let secret = secret.borrow();
            secret.input.capacity() + secret.out.capacity()
        })
    }

    /// The number of encrypted connections.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// The encryption of a link, for one call; `None` if the link is plain.
    pub(super) fn of<'a>(&'a self, link: u32, fd: BorrowedFd<'a>) -> Option<Sealed<'a>> {
        self.links.get(&link).map(|secret| Sealed { fd, secret, spare: &self.spare })
    }

    /// The bytes that must still be written to the socket before a link's connection ends, with `last` at their end.
    /// The connection sends nothing else afterwards.
    pub(super) fn finish(&self, link: u32, last: Vec<u8>) -> Vec<u8> {
        match self.links.get(&link) {
            None => last,
            Some(secret) => secret.borrow_mut().finish(&last),
        }
    }
}

/// The two directions of a connection, for one call. Link operations are compiled for both implementations, so that
/// plain connections only pay for a check whether the device encrypts.
pub(super) trait Wire: Copy {
    /// Whether the connection accepts bytes before the kernel does.
    const HOLDS: bool;
    /// Sends the pieces. Returns the number of bytes accepted.
    fn send(self, pieces: &Pieces<'_>) -> Result<usize, Errno>;
    /// Sends one buffer.
    fn send_one(self, bytes: &[u8]) -> Result<usize, Errno>;
    /// Fills the pieces. Returns the number of bytes received; 0 is the end of the stream. If that is less than the
    /// space, no byte is left.
    fn receive(self, pieces: &mut Pieces<'_>) -> Result<usize, Errno>;
    /// Fills one buffer from its start. Returns as [`Wire::receive`] does.
    fn receive_one(self, buffer: &mut [u8]) -> Result<usize, Errno>;
    /// Whether accepted bytes have not reached the kernel.
    fn holds(self) -> bool;
    /// Whether received bytes have not been delivered, so that the socket does not announce them. If so, the caller
    /// continues reading. Until these bytes are delivered, no more are taken from the kernel.
    fn has_more(self) -> bool;
}

/// A plain connection.
impl Wire for BorrowedFd<'_> {
    const HOLDS: bool = false;
    #[inline]
    fn send(self, pieces: &Pieces<'_>) -> Result<usize, Errno> {
        sys::send(self, pieces)
    }
    #[inline]
    fn send_one(self, bytes: &[u8]) -> Result<usize, Errno> {
        sys::send_one(self, bytes)
    }
    #[inline]
    fn receive(self, pieces: &mut Pieces<'_>) -> Result<usize, Errno> {
        sys::receive(self, pieces)
    }
    #[inline]
    fn receive_one(self, buffer: &mut [u8]) -> Result<usize, Errno> {
        sys::receive_one(self, buffer)
    }
    #[inline]
    fn holds(self) -> bool {
        false
    }
    #[inline]
    fn has_more(self) -> bool {
        false
    }
}

/// An encrypted connection.
#[derive(Clone, Copy)]
pub(super) struct Sealed<'a> {
    fd: BorrowedFd<'a>,
    secret: &'a RefCell<Secret>,
    spare: &'a RefCell<Spare>,
}

impl Wire for Sealed<'_> {
    const HOLDS: bool = true;
    fn send(self, pieces: &Pieces<'_>) -> Result<usize, Errno> {
        self.secret.borrow_mut().send(self.fd, pieces, &mut self.spare.borrow_mut())
    }
    #[inline(never)] // The list of pieces has room for many.
    fn send_one(self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut pieces = Pieces::new();
        pieces.bytes(bytes);
        self.send(&pieces)
    }
    fn receive(self, pieces: &mut Pieces<'_>) -> Result<usize, Errno> {
        self.secret.borrow_mut().receive(self.fd, pieces, &mut self.spare.borrow_mut())
    }
    #[inline(never)] // The list of pieces has room for many.
    fn receive_one(self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut pieces = Pieces::new();
        pieces.buffer(buffer);
        self.receive(&mut pieces)
    }
    fn holds(self) -> bool {
        self.secret.borrow().holds()
    }
    fn has_more(self) -> bool {
        self.secret.borrow_mut().has_more()
    }
}

/// One direction.
struct Direction {
    /// The expanded key, which takes half a kilobyte.
    key: Box<LessSafeKey>,
    /// The number of records.
    records: u64,
}

impl Direction {
    fn new(key: &[u8; 32]) -> Self {
        Self { key: Self::expand(key), records: 0 }
    }

    #[inline(never)] // The expanded key, before it is boxed, is on the client's stack.
    fn expand(key: &[u8; 32]) -> Box<LessSafeKey> {
        match UnboundKey::new(&AES_256_GCM, key) {
            Ok(key) => Box::new(LessSafeKey::new(key)),
            Err(_) => unreachable!("the key has the cipher's length"),
        }
    }

    /// A nonce that no other record of this direction has. Replaces the key when it is due.
    fn nonce(&mut self) -> Result<Nonce, Errno> {
        let number = self.records;
        self.records = number.checked_add(1).ok_or(Errno::OVERFLOW)?;
        if number > 0 && number.is_multiple_of(KEY_RECORDS) {
            self.rekey()?;
        }
        Ok(nonce(number))
    }

    /// Replaces the key as Noise does: 32 zero bytes, sealed with the one nonce that no record has.
    fn rekey(&mut self) -> Result<(), Errno> {
        let mut key = [0; 32];
        let sealed = self.key.seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut key);
        if sealed.is_err() {
            return Err(Errno::OVERFLOW);
        }
        self.key = Self::expand(&key);
        Ok(())
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// The state of an encrypted connection.
struct Secret {
    seal: Direction,
    open: Direction,
    /// Sealed bytes. The kernel has accepted the first `out_at` of them.
    out: Vec<u8>,
    out_at: usize,
    /// The received bytes: opened ones from `plain` to `opened`, and sealed ones from `sealed` to `end`.
    input: Vec<u8>,
    plain: usize,
    /// The end of the opened bytes. The tag behind them is skipped.
    opened: usize,
    sealed: usize,
    end: usize,
    /// No byte is taken from the kernel until all received ones have been delivered.
    drains: bool,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    fn new(keys: &Keys) -> Self {
        let (seal, open) = (Direction::new(&keys.ours), Direction::new(&keys.theirs));
        let (out, input) = (Vec::new(), Vec::new());
        Self { seal, open, out, out_at: 0, input, plain: 0, opened: 0, sealed: 0, end: 0, drains: false }
    }

    fn holds(&self) -> bool {
        self.out_at < self.out.len()
    }

    fn has_more(&mut self) -> bool {
        let rest = &self.input[self.sealed..self.end];
        let next = rest.split_first_chunk::<LENGTH_BYTES>();
        let whole = next.is_some_and(|(length, rest)| rest.len() >= u32::from_le_bytes(*length) as usize);
        self.drains = self.plain < self.opened || whole;
        self.drains
    }

    /// Seals and sends as long as the kernel accepts bytes.
    fn send(&mut self, fd: BorrowedFd<'_>, pieces: &Pieces<'_>, spare: &mut Spare) -> Result<usize, Errno> {
        self.flush(fd)?;
        if self.out.capacity() == 0 {
            self.out = spare.out.pop().unwrap_or_default();
        }
        let sent = self.seal(fd, pieces);
        if self.out.is_empty() {
            put_back(&mut spare.out, &mut self.out);
        }
        sent
    }

    fn seal(&mut self, fd: BorrowedFd<'_>, pieces: &Pieces<'_>) -> Result<usize, Errno> {
        let mut taken = 0;
        while taken < pieces.len() && !self.holds() {
            while taken < pieces.len() && self.out.len() + SEALED_BYTES <= OUT_BYTES {
                match self.seal_record(|out, len| pieces.append_to(taken, len, out), pieces.len() - taken) {
                    Ok(n) => taken += n,
                    // The sealed records are sent by the next call.
                    Err(_) if taken > 0 => return Ok(taken),
                    Err(errno) => return Err(errno),
                }
            }
            // Sealed bytes count as sent even if the connection ends here, because the peer may have received them. The
            // next call meets the end again.
            if let Err(errno) = self.flush(fd)
                && errno != Errno::AGAIN
            {
                planted!(Bug::SealedForgotten, return Err(errno));
                break;
            }
        }
        Ok(taken)
    }

    /// Appends one record of at most `most` bytes. `append` appends a number of them to the output.
    fn seal_record(&mut self, append: impl FnOnce(&mut Vec<u8>, usize), most: usize) -> Result<usize, Errno> {
        let (start, len) = (self.out.len(), most.min(RECORD_BYTES));
        let body = start + LENGTH_BYTES;
        // The exact reservation bounds the memory for a peer that does not read. Missing memory has the same effect as
        // a full socket.
        self.out.try_reserve_exact(LENGTH_BYTES + len + TAG_BYTES).map_err(|_| Errno::AGAIN)?;
        let nonce = self.seal.nonce()?;
        // At most RECORD_BYTES + TAG_BYTES.
        #[allow(clippy::cast_possible_truncation)]
        let length = ((len + TAG_BYTES) as u32).to_le_bytes();
        self.out.extend_from_slice(&length);
        append(&mut self.out, len);
        debug_assert_eq!(self.out.len(), body + len);
        let tag = self.seal.key.seal_in_place_separate_tag(nonce, Aad::from(length), &mut self.out[body..]);
        self.out.extend_from_slice(tag.map_err(|_| Errno::OVERFLOW)?.as_ref());
        Ok(len)
    }

    /// Sends the sealed bytes. `AGAIN`: some are left.
    fn flush(&mut self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.holds() {
            self.out_at += sys::send_one(fd, &self.out[self.out_at..])?;
        }
        self.out.clear();
        self.out_at = 0;
        Ok(())
    }

    /// Receives and opens bytes until the pieces are full or no byte is left.
    fn receive(&mut self, fd: BorrowedFd<'_>, pieces: &mut Pieces<'_>, spare: &mut Spare) -> Result<usize, Errno> {
        if self.input.is_empty() {
            self.input = match spare.input.pop() {
                Some(buffer) => buffer,
                None => new_input().ok_or(Errno::NOMEM)?,
            };
        }
        let outcome = self.take(fd, pieces);
        if self.plain == self.opened && self.sealed == self.end {
            (self.plain, self.opened, self.sealed, self.end) = (0, 0, 0, 0);
            put_back(&mut spare.input, &mut self.input);
        }
        outcome
    }

    fn take(&mut self, fd: BorrowedFd<'_>, pieces: &mut Pieces<'_>) -> Result<usize, Errno> {
        let mut given = 0;
        loop {
            given += self.give(pieces, given);
            if given == pieces.len() {
                return Ok(given);
            }
            if self.open_record()? {
                continue;
            }
            let filled = if std::mem::take(&mut self.drains) { Err(Errno::AGAIN) } else { self.fill(fd) };
            match filled {
                Ok(0) | Err(_) if given > 0 => return Ok(given),
                Ok(0) => return Ok(0),
                Ok(_) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Copies opened bytes to the pieces, starting at byte `at` of them.
    fn give(&mut self, pieces: &mut Pieces<'_>, at: usize) -> usize {
        let n = pieces.write(at, &self.input[self.plain..self.opened]);
        self.plain += n;
        n
    }

    /// Opens the next record if it is complete. The bytes of the previous one have been delivered.
    fn open_record(&mut self) -> Result<bool, Errno> {
        let rest = &mut self.input[self.sealed..self.end];
        let Some((length, rest)) = rest.split_first_chunk_mut::<LENGTH_BYTES>() else { return Ok(false) };
        let len = u32::from_le_bytes(*length) as usize;
        if !(TAG_BYTES + 1..=RECORD_BYTES + TAG_BYTES).contains(&len) {
            return Err(Errno::BADMSG);
        }
        let Some(record) = rest.get_mut(..len) else { return Ok(false) };
        let nonce = self.open.nonce()?;
        self.open.key.open_in_place(nonce, Aad::from(*length), record).map_err(|_| Errno::BADMSG)?;
        self.plain = self.sealed + LENGTH_BYTES;
        self.sealed = self.plain + len;
        self.opened = self.sealed - TAG_BYTES;
        Ok(true)
    }

    /// Receives more bytes, behind those of an incomplete record.
    fn fill(&mut self, fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.input.copy_within(self.sealed..self.end, 0);
        self.end -= self.sealed;
        (self.plain, self.opened, self.sealed) = (0, 0, 0);
        let n = sys::receive_one(fd, &mut self.input[self.end..])?;
        self.end += n;
        Ok(n)
    }

    fn finish(&mut self, last: &[u8]) -> Vec<u8> {
        self.out.drain(..self.out_at);
        self.out_at = 0;
        for piece in last.chunks(RECORD_BYTES) {
            if self.seal_record(|out, len| out.extend_from_slice(&piece[..len]), piece.len()).is_err() {
                break;
            }
        }
        std::mem::take(&mut self.out)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    /// One end of a connection.
    struct Stream {
        socket: OwnedFd,
        secrets: Secrets,
    }

    impl AsFd for Stream {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }

    impl Stream {
        fn new(socket: OwnedFd, keys: Option<&Keys>) -> Self {
            let mut secrets = Secrets::default();
            secrets.set(0, keys);
            Self { socket, secrets }
        }
        fn wire(&self) -> Sealed<'_> {
            self.secrets.of(0, self.socket.as_fd()).unwrap()
        }
        fn finish(self, last: Vec<u8>) -> (OwnedFd, Vec<u8>) {
            let bytes = self.secrets.finish(0, last);
            (self.socket, bytes)
        }
    }

    fn keys(swap: bool) -> Keys {
        if swap { Keys { ours: [2; 32], theirs: [1; 32] } } else { Keys { ours: [1; 32], theirs: [2; 32] } }
    }

    /// Two ends of one connection, over sockets that do not block.
    fn pair() -> (Stream, Stream) {
        let (a, b) = raw_pair();
        (Stream::new(a, Some(&keys(false))), Stream::new(b, Some(&keys(true))))
    }

    fn raw_pair() -> (OwnedFd, OwnedFd) {
        let (a, b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (a.into(), b.into())
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 31 % 251) as u8).collect()
    }

    /// Writes as a link does: bytes that were not accepted are offered again.
    fn push(stream: &Stream, rest: &mut &[u8], cut: usize) {
        let (front, back) = rest.split_at(rest.len().min(cut));
        let mut pieces = Pieces::new();
        pieces.bytes(&front[..front.len() / 2]);
        pieces.bytes(&front[front.len() / 2..]);
        match stream.wire().send(&pieces) {
            Ok(n) => *rest = if n == front.len() { back } else { &rest[n..] },
            Err(errno) => assert_eq!(errno, Errno::AGAIN),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        /// Bytes arrive unchanged, for all sizes of writes and reads.
        #[test]
        fn bytes_arrive_unchanged(
            len in 1usize..1_500_000,
            writes in prop::collection::vec(prop_oneof![1usize..100, 1..200_000usize], 1..6),
            reads in prop::collection::vec(prop_oneof![1usize..100, 1..200_000usize], 1..6),
        ) {
            let (a, b) = pair();
            let all = bytes(len);
            let (mut rest, mut got) = (&all[..], Vec::new());
            let floor = len / 300 + 1;
            let (mut writes, mut reads) = (writes.iter().cycle(), reads.iter().cycle());
            while got.len() < len {
                push(&a, &mut rest, *writes.next().unwrap() + floor);
                let mut buffer = vec![0; *reads.next().unwrap() + floor];
                match b.wire().receive_one(&mut buffer) {
                    Ok(n) => {
                        prop_assert!(n > 0);
                        // A short read means that no byte is left that the socket would not announce.
                        prop_assert!(n == buffer.len() || !b.wire().has_more());
                        got.extend_from_slice(&buffer[..n]);
                    }
                    Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                }
            }
            prop_assert!(got == all && rest.is_empty() && !a.wire().holds());
        }

        /// If a bit is changed, or bytes are repeated, removed or inserted on the way, the altered bytes are not
        /// delivered.
        #[test]
        fn altered_bytes_are_not_delivered(at in 0usize..400, bit in 0u8..8, how in 0u8..4) {
            let (a, wire) = raw_pair();
            let a = Stream::new(a, Some(&keys(false)));
            for n in 0..4 {
                a.wire().send_one(&bytes(80 + n)).unwrap();
            }
            let mut sealed = vec![0; 4096];
            let n = sys::receive_one(wire.as_fd(), &mut sealed).unwrap();
            sealed.truncate(n);
            let at = at.min(n - 1);
            match how {
                0 => sealed[at] ^= 1 << bit,
                1 => drop(sealed.remove(at)),
                2 => sealed.insert(at, 1 << bit),
                // The second record replaces the third one, which is one byte longer.
                _ => {
                    let second = sealed[100..201].to_vec();
                    sealed.splice(201..303, second);
                }
            }
            let (other, b) = raw_pair();
            sys::send_one(other.as_fd(), &sealed).unwrap();
            drop(other);
            let b = Stream::new(b, Some(&keys(true)));
            let (mut got, mut buffer) = (Vec::new(), vec![0; 4096]);
            let end = loop {
                match b.wire().receive_one(&mut buffer) {
                    Ok(0) => break None,
                    Ok(n) => got.extend_from_slice(&buffer[..n]),
                    Err(errno) => break Some(errno),
                }
            };
            let sent: Vec<u8> = (0..4).flat_map(|n| bytes(80 + n)).collect();
            prop_assert!(sent.starts_with(&got) && got.len() < sent.len(), "{} of {}", got.len(), sent.len());
            prop_assert!(matches!(end, None | Some(Errno::BADMSG)));
        }
    }

    /// The connection holds the bytes that the kernel has not accepted. The end of the link returns all of them.
    #[test]
    fn the_end_of_a_link_returns_all_held_bytes() {
        let (a, b) = pair();
        let all = bytes(3_000_000);
        let mut rest = &all[..];
        while !a.wire().holds() {
            push(&a, &mut rest, 100_000);
        }
        let taken = all.len() - rest.len();
        let (socket, last) = a.finish(b"goodbye".to_vec());
        let (mut got, mut last, mut buffer) = (Vec::new(), &last[..], vec![0; 100_000]);
        while got.len() < taken + 7 {
            if let Ok(n) = sys::send_one(socket.as_fd(), last) {
                last = &last[n..];
            }
            if let Ok(n) = b.wire().receive_one(&mut buffer) {
                got.extend_from_slice(&buffer[..n]);
            }
        }
        assert!(got[..taken] == all[..taken] && got[taken..] == *b"goodbye");
    }

    /// The connection breaks within a call that has already sent a part. That part counts as sent, and the next call
    /// fails.
    #[test]
    fn sealed_bytes_count_as_sent_when_the_connection_breaks() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        drop(listener.accept().unwrap());
        let a = Stream::new(near.into(), Some(&keys(false)));
        // The peer is gone. The first system call provokes a reset, which the second one meets.
        let all = bytes(4 * OUT_BYTES);
        let sent = a.wire().send_one(&all).unwrap();
        assert!((OUT_BYTES / 2..all.len()).contains(&sent), "{sent}");
        assert!(a.wire().send_one(&all[sent..]).is_err());
    }

    /// For a peer that does not read, the connection holds a few records and no more memory than these need.
    #[test]
    fn the_memory_of_a_full_socket_is_bounded() {
        let (a, _unread) = raw_pair();
        let stream = Stream::new(a, Some(&keys(false)));
        let all = bytes(16 * OUT_BYTES);
        let mut sent = 0;
        while let Ok(n @ 1..) = stream.wire().send_one(&all[sent..]) {
            sent += n;
        }
        let secret = stream.secrets.links[&0].borrow();
        assert!(secret.holds() && sent < all.len(), "{sent}");
        assert!(secret.out.capacity() <= OUT_BYTES, "{}", secret.out.capacity());
    }

    /// The two directions have different keys, and every record has its own nonce, so equal bytes are never sealed
    /// equally.
    #[test]
    fn equal_bytes_are_sealed_differently() {
        let (a, b) = raw_pair();
        let (one, two) = (Stream::new(a, Some(&keys(false))), Stream::new(b, Some(&keys(true))));
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            one.wire().send_one(&[7; 64]).unwrap();
            let mut sealed = [0; 84];
            assert_eq!(sys::receive_one(two.as_fd(), &mut sealed), Ok(84));
            assert!(seen.insert(sealed) && !sealed.windows(8).any(|part| part == [7; 8]));
            two.wire().send_one(&[7; 64]).unwrap();
            let mut sealed = [0; 84];
            assert_eq!(sys::receive_one(one.as_fd(), &mut sealed), Ok(84));
            assert!(seen.insert(sealed));
        }
    }

    /// Bytes of this side that come back are not accepted as the peer's.
    #[test]
    fn an_echo_is_not_genuine() {
        let (a, mirror) = raw_pair();
        let a = Stream::new(a, Some(&keys(false)));
        a.wire().send_one(b"who is there").unwrap();
        let mut sealed = [0; 32];
        assert_eq!(sys::receive_one(mirror.as_fd(), &mut sealed), Ok(32));
        sys::send_one(mirror.as_fd(), &sealed).unwrap();
        assert_eq!(a.wire().receive_one(&mut [0; 32]), Err(Errno::BADMSG));
    }

    /// Both sides replace the key at the same record. The first key opens the records before it, and none of the later
    /// ones.
    #[test]
    fn keys_are_replaced() {
        let ((near, tap), (relay, far)) = (raw_pair(), raw_pair());
        let (a, b) = (Stream::new(near, Some(&keys(false))), Stream::new(far, Some(&keys(true))));
        let start = KEY_RECORDS - 2;
        a.secrets.links[&0].borrow_mut().seal.records = start;
        b.secrets.links[&0].borrow_mut().open.records = start;
        let first = Direction::new(&keys(false).ours).key;
        for number in start..KEY_RECORDS + 2 {
            let said = number.to_le_bytes();
            a.wire().send_one(&said).unwrap();
            let mut sealed = [0; 28];
            assert_eq!(sys::receive_one(tap.as_fd(), &mut sealed), Ok(28));
            sys::send_one(relay.as_fd(), &sealed).unwrap();
            let mut got = [0; 8];
            assert_eq!((b.wire().receive_one(&mut got), got), (Ok(8), said));
            let (length, body) = sealed.split_first_chunk_mut::<LENGTH_BYTES>().unwrap();
            let opened = first.open_in_place(nonce(number), Aad::from(*length), body);
            assert_eq!(opened.is_ok(), number < KEY_RECORDS);
        }
    }

    /// A direction ends before a nonce repeats.
    #[test]
    fn a_nonce_never_repeats() {
        let (a, _b) = pair();
        a.secrets.links[&0].borrow_mut().seal.records = u64::MAX - 1;
        assert_eq!(a.wire().send_one(b"last"), Ok(4));
        assert_eq!(a.wire().send_one(b"none"), Err(Errno::OVERFLOW));
    }

    #[test]
    fn wild_lengths_are_refused() {
        for length in [0, 16, RECORD_BYTES as u32 + 17, u32::MAX] {
            let (near, far) = raw_pair();
            let far = Stream::new(far, Some(&keys(true)));
            sys::send_one(near.as_fd(), &length.to_le_bytes()).unwrap();
            assert_eq!(far.wire().receive_one(&mut [0; 10]), Err(Errno::BADMSG), "{length}");
        }
    }
}
