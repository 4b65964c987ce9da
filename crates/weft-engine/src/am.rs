//! Active messages: short messages whose arrival runs a handler of the client.
//!
//! Place in the data flow: a client passes an [`ActiveMessage`] to [`Engine::send_active`](crate::Engine::send_active).
//! At the peer, [`Engine::progress`](crate::Engine::progress) calls the [`ActiveHandler`] while the device polls. The
//! bytes may lie in memory of the device. The handler of a request may put one reply into its [`Answer`], which leaves
//! after the poll. `engine/am.rs` has the credits.

use zerocopy::IntoBytes;

use crate::api::Addr;
use crate::mem::Iov;
use crate::nic::LinkError;
use crate::wire::{F_REPLY, HEADER_BYTES, Head, kind};

/// Limit of the client's own header of an active message, in bytes.
pub const MAX_HEAD: usize = 96;

/// Bytes of the engine's header.
pub(crate) const HEAD_BYTES: usize = size_of::<Head>();

const _: () = assert!(HEAD_BYTES + MAX_HEAD <= HEADER_BYTES);

/// The length of the longest body, in bytes, over a device whose mailboxes have `mailbox_bytes` bytes. It fits with any
/// header.
#[must_use]
pub const fn body_limit(mailbox_bytes: usize) -> usize {
    mailbox_bytes.saturating_sub(HEAD_BYTES + MAX_HEAD)
}

/// The client's header of an active message, behind room for the engine's. It is written in whole words. The device
/// reads whole words, and a processor stalls on a word that was written in smaller parts just before.
#[derive(Clone, Copy, Debug)]
pub struct ActiveHead {
    words: [u64; (HEAD_BYTES + MAX_HEAD) / 8],
    /// Bytes of both headers.
    len: usize,
}

impl ActiveHead {
    /// A header without bytes.
    #[inline(always)]
    #[must_use]
    pub const fn empty() -> Self {
        Self { words: [0; (HEAD_BYTES + MAX_HEAD) / 8], len: HEAD_BYTES }
    }

    /// A header of these bytes.
    ///
    /// # Panics
    ///
    /// If they are more than [`MAX_HEAD`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        assert!(bytes.len() <= MAX_HEAD, "the header of an active message has at most {MAX_HEAD} bytes");
        let mut head = Self::empty();
        head.len += bytes.len();
        head.words.as_mut_bytes()[HEAD_BYTES..head.len].copy_from_slice(bytes);
        head
    }

    /// Adds eight bytes, that have the order of this processor, to a header of whole words.
    ///
    /// # Panics
    ///
    /// If the header has more than [`MAX_HEAD`] bytes then.
    #[inline(always)]
    pub fn push(&mut self, word: u64) {
        debug_assert!(self.len.is_multiple_of(8), "a header of whole words");
        self.words[self.len / 8] = word;
        self.len += 8;
    }

    /// The client's bytes.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[HEAD_BYTES..self.len]
    }

    /// The length of the client's bytes.
    #[inline(always)]
    pub(crate) fn client_len(&self) -> usize {
        self.len - HEAD_BYTES
    }

    /// Both headers, after that of the engine is filled in.
    #[inline(always)]
    pub(crate) fn complete(&mut self, reply: bool, credit: [u8; 2], seq: u32) -> &[u8] {
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_HEAD")]
        let flags = self.client_len() as u8 | if reply { F_REPLY } else { 0 };
        self.words[0] =
            u64::from_ne_bytes(Head { detail: credit, seq: seq.into(), ..Head::new(kind::ACTIVE, flags) }.to_bytes());
        &self.words.as_bytes()[..self.len]
    }
}

/// An active message to be sent.
#[derive(Debug)]
pub struct ActiveMessage<'a> {
    /// The peer's address.
    pub dest: Addr,
    /// Whether this is a reply. Replies need no credit.
    pub reply: bool,
    /// The client's header. The engine fills in its part.
    pub head: &'a mut ActiveHead,
    /// The pieces of the body, copied by the call.
    pub body: &'a [Iov],
}

/// The client's side of the arrival of active messages.
pub trait ActiveHandler: Send {
    /// A message has arrived. The peer may be able to write `head` and `body` still, so each byte is read once. The
    /// memory belongs to the device again when the call returns. It is aligned to nothing.
    ///
    /// The handler of a request may put one reply into `answer`. That of a reply must not. The engine cannot be called
    /// from here.
    fn arrived(&mut self, source: Addr, reply: bool, head: &[u8], body: &[u8], answer: &mut Answer<'_>);

    /// The link to a peer has ended, or could not be made. Requests and replies that were under way may be lost. The
    /// next message makes a new link. Progress calls this, and so do calls that send. The engine cannot be called from
    /// here.
    fn lost(&mut self, source: Addr, why: LinkError);
}

/// The place for the reply to a request.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The message, behind bytes of others.
    bytes: &'a mut Vec<u8>,
    start: usize,
    limit: usize,
}

impl<'a> Answer<'a> {
    /// A place at the end of a buffer, which keeps its memory, for a body of at most `limit` bytes. For clients that
    /// call handlers themselves.
    #[must_use]
    pub fn over(bytes: &'a mut Vec<u8>, limit: usize) -> Self {
        let start = bytes.len();
        Self { bytes, start, limit }
    }

    /// The length of the longest body, in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Sets the reply, and replaces an earlier one. Returns the memory of its body, filled with zeros.
    ///
    /// # Panics
    ///
    /// If the body exceeds [`Answer::limit`].
    pub fn set(&mut self, head: &mut ActiveHead, body_len: usize) -> &mut [u8] {
        self.begin(head, body_len);
        let body = self.bytes.len();
        self.bytes.resize(body + body_len, 0);
        &mut self.bytes[body..]
    }

    /// [`Answer::set`] with a body that is copied.
    ///
    /// # Panics
    ///
    /// As [`Answer::set`].
    #[inline(always)]
    pub fn put(&mut self, head: &mut ActiveHead, body: &[u8]) {
        self.begin(head, body.len());
        if !body.is_empty() {
            self.bytes.extend_from_slice(body);
        }
    }

    #[inline(always)]
    fn begin(&mut self, head: &mut ActiveHead, body_len: usize) {
        assert!(body_len <= self.limit, "the body of this reply has at most {} bytes", self.limit);
        if self.is_set() {
            self.clear();
        }
        self.bytes.extend_from_slice(head.complete(true, [0; 2], 0));
    }

    /// Removes the reply.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.truncate(self.start);
    }

    /// Whether there is a reply.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.bytes.len() > self.start
    }

    /// The header and the body of the reply.
    #[must_use]
    pub fn get(&self) -> Option<(&[u8], &[u8])> {
        let (engine, rest) = self.bytes.get(self.start..)?.split_first_chunk::<HEAD_BYTES>()?;
        rest.split_at_checked(usize::from(engine[1] & !F_REPLY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_replaced_and_removed() {
        let mut bytes = vec![9; 3];
        let mut answer = Answer::over(&mut bytes, 4);
        assert!(!answer.is_set() && answer.get().is_none());
        answer.put(&mut ActiveHead::new(&[1, 2]), &[3]);
        assert_eq!(answer.get(), Some((&[1, 2][..], &[3][..])));
        answer.set(&mut ActiveHead::new(&[5]), 4).copy_from_slice(&[6, 7, 8, 9]);
        assert_eq!(answer.get(), Some((&[5][..], &[6, 7, 8, 9][..])));
        answer.clear();
        assert!(!answer.is_set());
        assert_eq!(bytes, [9; 3]);
    }

    #[test]
    #[should_panic(expected = "at most 4 bytes")]
    fn an_answer_beyond_the_limit_is_a_fault_of_the_client() {
        Answer::over(&mut Vec::new(), 4).set(&mut ActiveHead::empty(), 5);
    }

    #[test]
    fn a_header_is_made_of_bytes_or_words() {
        let mut words = ActiveHead::empty();
        words.push(u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(words.bytes(), ActiveHead::new(&[1, 2, 3, 4, 5, 6, 7, 8]).bytes());
        assert_eq!(
            ActiveHead::new(&[9; 3]).complete(true, [7, 0], 5),
            [kind::ACTIVE, F_REPLY | 3, 7, 0, 5, 0, 0, 0, 9, 9, 9]
        );
        assert_eq!(ActiveHead::new(&[0; MAX_HEAD]).client_len(), MAX_HEAD);
    }

    #[test]
    #[should_panic(expected = "at most 96 bytes")]
    fn a_header_beyond_the_limit_is_a_fault_of_the_client() {
        let _ = ActiveHead::new(&[0; MAX_HEAD + 1]);
    }
}
