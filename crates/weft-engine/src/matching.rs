//! Matching: posted receives against arriving messages, oldest first.
//!
//! Place in the data flow: `Sink::message` asks [`Matcher::arrived`] for a receive; `Engine::recv` asks
//! [`Matcher::find_unexpected`] for a message; what finds no partner waits in one of the two lists. There is one
//! [`Matcher`] for tagged and one for untagged messages.
//!
//! Invariants: among several candidates the oldest wins, whatever the ignore bits (fi_tagged(3)); a
//! message that a peek has claimed matches nothing but its claim; nothing here is ever lost: a
//! posted receive leaves by match, cancel, or the end of its named source, a message by match, discard or the end of its sender.

use crate::api::{ADDR_NONE, Addr, Context};
use crate::list::List;
use crate::mem::IovList;
use crate::nic::{LinkError, RemoteIov};

/// A receive that waits for a message.
#[derive(Debug)]
pub(crate) struct Posted {
    /// `ADDR_NONE`: from anyone.
    pub(crate) src: Addr,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) iov: IovList,
    pub(crate) ctx: Context,
    /// Number of the multi-receive buffer, if it is one.
    pub(crate) multi: Option<u32>,
}

/// Where the payload of an unexpected message is.
#[derive(Debug)]
pub(crate) enum Body {
    /// Here; the sender wants to hear of its delivery if `ack` names an operation of it.
    Eager { bytes: Box<[u8]>, ack: Option<u32> },
    /// At the sender, whose operation `op` waits.
    Rendezvous { op: u32, len: u64, source: Vec<RemoteIov>, ack: bool },
    /// Nowhere any more: the sender's link ended after a peek had claimed the message. Its claim fails.
    Lost { why: LinkError, len: u64 },
}

/// A message that waits for a receive.
#[derive(Debug)]
pub(crate) struct Unexpected {
    /// Number of the sender's virtual connection.
    pub(crate) vc: u32,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) body: Body,
    /// Context pointer of the peek that has claimed it.
    pub(crate) claimed: Option<usize>,
    /// The link that brought it has ended: nobody waits for its acknowledgement or its share of the window.
    pub(crate) orphan: bool,
}

impl Unexpected {
    pub(crate) fn len(&self) -> u64 {
        match &self.body {
            Body::Eager { bytes, .. } => bytes.len() as u64,
            Body::Rendezvous { len, .. } | Body::Lost { len, .. } => *len,
        }
    }
}

/// What a receive asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) src: Addr,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
}

impl Wanted {
    #[inline]
    fn accepts(&self, src: Addr, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0 && (self.src == ADDR_NONE || self.src == src)
    }
}

/// The two queues of one kind of message (tagged or not).
#[derive(Default)]
pub(crate) struct Matcher {
    pub(crate) posted: List<Posted>,
    pub(crate) unexpected: List<Unexpected>,
}

impl Matcher {
    /// The oldest receive that accepts a message of `tag` from `src`.
    #[inline]
    pub(crate) fn arrived(&self, src: Addr, tag: u64) -> Option<u32> {
        for (key, p) in self.posted.iter() {
            if (Wanted { src: p.src, tag: p.tag, ignore: p.ignore }).accepts(src, tag) {
                return Some(key);
            }
        }
        None
    }

    /// The oldest unclaimed message that `wanted` accepts; `addr_of` tells a connection's current address.
    #[inline]
    pub(crate) fn find_unexpected(&self, wanted: Wanted, addr_of: impl Fn(u32) -> Addr) -> Option<u32> {
        self.unexpected
            .iter()
            .find(|(_, m)| m.claimed.is_none() && wanted.accepts(addr_of(m.vc), m.tag))
            .map(|(key, _)| key)
    }

    /// The message that the peek with this context pointer claimed.
    pub(crate) fn find_claimed(&self, ctx_ptr: usize) -> Option<u32> {
        self.unexpected.iter().find(|(_, m)| m.claimed == Some(ctx_ptr)).map(|(key, _)| key)
    }

    /// The oldest posted receive with this context pointer.
    pub(crate) fn find_posted(&self, ctx_ptr: usize) -> Option<u32> {
        self.find_posted_where(|ctx| ctx.ptr == ctx_ptr)
    }

    /// The oldest posted receive whose context is `wanted`.
    pub(crate) fn find_posted_where(&self, mut wanted: impl FnMut(Context) -> bool) -> Option<u32> {
        self.posted.iter().find(|(_, p)| wanted(p.ctx)).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Context;

    fn posted(src: Addr, tag: u64, ignore: u64) -> Posted {
        Posted { src, tag, ignore, iov: IovList::new(), ctx: Context::default(), multi: None }
    }

    #[test]
    fn the_oldest_match_wins_under_wildcards() {
        let mut m = Matcher::default();
        let any = m.posted.push(posted(ADDR_NONE, 0, u64::MAX));
        let exact = m.posted.push(posted(3, 7, 0));
        assert_eq!(m.arrived(3, 7), Some(any));
        m.posted.remove(any);
        assert_eq!(m.arrived(3, 7), Some(exact));
        assert_eq!(m.arrived(4, 7), None);
        assert_eq!(m.arrived(3, 6), None);
    }

    #[test]
    fn a_claimed_message_matches_only_its_claim() {
        let mut m = Matcher::default();
        let body = Body::Eager { bytes: Box::default(), ack: None };
        let key = m.unexpected.push(Unexpected { vc: 0, tag: 1, data: None, body, claimed: Some(9), orphan: false });
        let wanted = Wanted { src: ADDR_NONE, tag: 1, ignore: 0 };
        assert_eq!(m.find_unexpected(wanted, |_| ADDR_NONE), None);
        assert_eq!(m.find_claimed(9), Some(key));
        assert_eq!(m.find_claimed(8), None);
    }
}
