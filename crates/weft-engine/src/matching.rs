//! Matching of posted receives and arriving messages, oldest first.
//!
//! Place in the data flow: `Sink::message` asks [`Matcher::arrived`] for a receive; `Engine::recv` asks
//! [`Matcher::find_unexpected`] for a message. Receives and messages without a partner are queued (`queue`,
//! with the indexes `hash` and `tree` for deep queues). There is one [`Matcher`] for each kind of message
//! ([`Space`]).
//!
//! Invariants:
//! - Among several candidates the oldest is chosen, whatever the ignore bits (fi_tagged(3)).
//! - A message that a peek has claimed matches only its claim.
//! - No entry is lost. A posted receive leaves by match, by cancel, or when its named source ends. A message
//!   leaves by match, by discard, or when its sender ends.

mod hash;
mod pattern;
mod queue;
mod tree;

use std::collections::VecDeque;

use slab::Slab;

use crate::api::{ADDR_NONE, Addr, Context, Matching};
use crate::bugs::planted;
use crate::ids::{PeerId, TransferId};
use crate::mem::{Iov, IovList};
use crate::nic::{LinkError, RemoteIov};
use crate::wire::{F_COLLECTIVE, F_TAGGED};
use pattern::Pattern;
use queue::Queue;

/// The kind of a message. A receive takes messages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// A message of the client without a tag.
    Msg,
    /// A tagged message of the client.
    Tagged,
    /// A message of a collective. Its receive names the peer by number, in place of an address, and the whole tag.
    Group,
}

impl Space {
    /// The number of kinds.
    pub(crate) const COUNT: usize = 3;
    /// All kinds.
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Tagged, Self::Msg, Self::Group];
    /// The kinds of the client's messages.
    pub(crate) const OF_CLIENT: [Self; 2] = [Self::Tagged, Self::Msg];

    /// The kind of the client's messages with or without a tag.
    #[inline(always)]
    pub(crate) const fn of_client(tagged: bool) -> Self {
        if tagged { Self::Tagged } else { Self::Msg }
    }

    /// The kind of a message, by the flags of its head.
    #[inline]
    pub(crate) const fn of_head(flags: u8) -> Self {
        if flags & F_COLLECTIVE != 0 { Self::Group } else { Self::of_client(flags & F_TAGGED != 0) }
    }
}

/// A posted receive without a message yet. It consists of plain words that are stored one by one. A value
/// that is assembled elsewhere and copied by wider loads would stall until those stores have reached the
/// cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    /// `ADDR_NONE`: any source.
    pub(crate) src: Addr,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    /// The buffer, if it has one piece.
    pub(crate) piece: Iov,
    /// Number of the list of pieces in the [`Matcher`], if the buffer has several.
    pub(crate) pieces: Option<u32>,
    pub(crate) ctx: Context,
    /// Number of the multi-receive buffer, for a multi-receive.
    pub(crate) multi: Option<u32>,
}

/// The place of an unexpected message's payload.
#[derive(Debug)]
pub(crate) enum Body {
    /// The payload is here. If `ack` names an operation of the sender, the sender requests an acknowledgement
    /// of its delivery.
    Eager { bytes: Box<[u8]>, ack: Option<u32> },
    /// The payload is at the sender, whose operation `op` waits.
    Rendezvous { op: u32, len: u64, source: Vec<RemoteIov>, ack: bool },
    /// The payload is on its way into memory of the engine, by this transfer (`crate::engine::prefetch`).
    Prefetch { token: TransferId, len: u64 },
    /// The payload is lost, because the sender's link has ended. The receive that matches the message fails.
    Lost { why: LinkError, len: u64 },
}

/// A message without a receive yet.
#[derive(Debug)]
pub(crate) struct Unexpected {
    /// Number of the sending peer.
    peer: PeerId,
    tag: u64,
    data: Option<u64>,
    body: Body,
    /// Context pointer of the peek that has claimed the message.
    claimed: Option<usize>,
    /// The message's link has ended, so its acknowledgement and its share of the window are void.
    orphan: bool,
}

impl Unexpected {
    pub(crate) fn new(peer: PeerId, tag: u64, data: Option<u64>, body: Body) -> Self {
        Self { peer, tag, data, body, claimed: None, orphan: false }
    }

    /// The sender.
    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    pub(crate) fn data(&self) -> Option<u64> {
        self.data
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    pub(crate) fn set_body(&mut self, body: Body) {
        self.body = body;
    }

    pub(crate) fn into_body(self) -> Body {
        self.body
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.is_some()
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// Notes that the message's link has ended. Returns the length of a payload that has not arrived.
    pub(crate) fn orphan(&mut self) -> Option<u64> {
        self.orphan = true;
        match &mut self.body {
            Body::Eager { ack, .. } => {
                *ack = None;
                None
            }
            Body::Rendezvous { len, .. } | Body::Prefetch { len, .. } => Some(*len),
            Body::Lost { .. } => None,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.body {
            Body::Eager { bytes, .. } => bytes.len() as u64,
            Body::Rendezvous { len, .. } | Body::Prefetch { len, .. } | Body::Lost { len, .. } => *len,
        }
    }
}

/// The selection criteria of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    src: Addr,
    tag: u64,
    ignore: u64,
}

impl Wanted {
    /// `src` may be `ADDR_NONE`. Bits of `ignore` are not compared.
    #[inline(always)]
    pub(crate) fn new(src: Addr, tag: u64, ignore: u64) -> Self {
        Self { src, tag, ignore }
    }

    /// The message of a collective with this tag from a peer.
    pub(crate) fn of_group(peer: PeerId, tag: u64) -> Self {
        Self { src: peer.as_source(), tag, ignore: 0 }
    }

    fn pattern(&self) -> Pattern {
        Pattern::receive(self.src, self.tag, self.ignore)
    }

    /// Agrees with `Pattern::meets` of the tests, but is faster: a walk calls it for each entry.
    #[inline(always)]
    fn accepts(&self, src: Addr, tag: u64) -> bool {
        let compared = planted!(Bug::IgnoreSwapped, !self.ignore, self.ignore);
        (self.tag ^ tag) & compared == 0
            && planted!(Bug::SourceForgotten, self.src == ADDR_NONE || self.src == src, true)
    }
}

impl Posted {
    #[inline(always)]
    pub(crate) fn wants(&self) -> Wanted {
        Wanted { src: self.src, tag: self.tag, ignore: self.ignore }
    }
}

/// The two queues of one kind of message.
pub(crate) struct Matcher {
    posted: Queue<Posted>,
    unexpected: Queue<Unexpected>,
    /// Buffers that have several pieces.
    pieces: Slab<IovList>,
    /// Total number of messages that were queued, and the largest number at a time.
    kept: u64,
    most_unexpected: usize,
    /// Keys of the claimed messages. They make a claim independent of the number of other messages, which
    /// peers control.
    claims: VecDeque<u32>,
}

impl Matcher {
    #[inline(always)]
    pub(crate) fn posted(&self) -> &Queue<Posted> {
        &self.posted
    }

    #[inline(always)]
    pub(crate) fn posted_mut(&mut self) -> &mut Queue<Posted> {
        &mut self.posted
    }

    #[inline(always)]
    pub(crate) fn unexpected(&self) -> &Queue<Unexpected> {
        &self.unexpected
    }

    #[inline(always)]
    pub(crate) fn unexpected_mut(&mut self) -> &mut Queue<Unexpected> {
        &mut self.unexpected
    }

    /// Number of messages that have found no receive on arrival.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// The largest number of unexpected messages at a time.
    pub(crate) fn most_unexpected(&self) -> usize {
        self.most_unexpected
    }

    pub(crate) fn new(method: Matching) -> Self {
        Self {
            posted: Queue::new(method),
            unexpected: Queue::new(method),
            pieces: Slab::new(),
            kept: 0,
            most_unexpected: 0,
            claims: VecDeque::new(),
        }
    }

    /// Posts a receive whose buffer has any number of pieces, as [`Matcher::post`] does. `multi` is the
    /// number of the multi-receive buffer, if any.
    pub(crate) fn post_pieces(&mut self, wanted: Wanted, iov: &[Iov], ctx: Context, multi: Option<usize>) -> u32 {
        let (piece, pieces) = match iov {
            [] => (Iov::EMPTY, None),
            [one] => (*one, None),
            many => (Iov::EMPTY, Some(self.pieces.insert(many.into()))),
        };
        let Wanted { src, tag, ignore } = wanted;
        let number = |number: Option<usize>| number.and_then(|number| u32::try_from(number).ok());
        self.post(Posted { src, tag, ignore, piece, pieces: number(pieces), ctx, multi: number(multi) })
    }

    /// The buffer of a posted receive.
    pub(crate) fn buffer(&self, posted: &Posted) -> IovList {
        let many = posted.pieces.and_then(|number| self.pieces.get(number as usize));
        many.cloned().unwrap_or_else(|| IovList::from_slice(&[posted.piece]))
    }

    /// Removes a receive and its buffer's pieces.
    pub(crate) fn take_posted(&mut self, key: u32) -> Option<Posted> {
        let posted = self.posted.remove(key)?;
        posted.pieces.and_then(|number| self.pieces.try_remove(number as usize));
        Some(posted)
    }

    /// Posts a receive. Its key stays valid until it leaves.
    #[inline(always)]
    pub(crate) fn post(&mut self, posted: Posted) -> u32 {
        self.posted.push(posted, |posted| Some(posted.wants().pattern()))
    }

    /// The oldest receive that accepts a message with `tag` from `src`.
    #[inline(always)]
    pub(crate) fn arrived(&mut self, src: Addr, tag: u64) -> Option<u32> {
        self.posted.find(
            move || Pattern::message(src, tag),
            move |posted| posted.wants().accepts(src, tag),
            |posted| Some(posted.wants().pattern()),
        )
    }

    /// Queues a message that no receive accepts. `src` is its peer's address. The returned key stays valid
    /// until the message leaves.
    pub(crate) fn keep(&mut self, message: Unexpected, src: Addr) -> u32 {
        let key = self.unexpected.push(message, |message| Some(Pattern::message(src, message.tag)));
        self.kept += 1;
        self.most_unexpected = self.most_unexpected.max(self.unexpected.len());
        key
    }

    /// The oldest unclaimed message that `wanted` accepts. `addr_of` returns a peer's address;
    /// [`Matcher::readdressed`] must be called when one changes.
    #[inline]
    pub(crate) fn find_unexpected(&mut self, wanted: Wanted, addr_of: impl Fn(PeerId) -> Addr) -> Option<u32> {
        self.unexpected.find(
            || wanted.pattern(),
            |message| message.claimed.is_none() && wanted.accepts(addr_of(message.peer), message.tag),
            |message| message.claimed.is_none().then(|| Pattern::message(addr_of(message.peer), message.tag)),
        )
    }

    /// Rebuilds the index after addresses of peers have changed.
    pub(crate) fn readdressed(&mut self) {
        self.unexpected.reindex();
    }

    /// Reserves a message for the claim with this context pointer.
    pub(crate) fn claim(&mut self, key: u32, ctx_ptr: usize) {
        if let Some(message) = self.unexpected.get_mut(key) {
            message.claimed = Some(ctx_ptr);
            self.unexpected.hide(key);
            self.claims.push_back(key);
        }
    }

    /// Whether the peek with this context pointer has claimed a message.
    pub(crate) fn has_claim(&self, ctx_ptr: usize) -> bool {
        self.place_of_claim(ctx_ptr).is_some()
    }

    /// The message that the peek with this context pointer claimed. The claim ends; the caller removes the
    /// message.
    pub(crate) fn take_claim(&mut self, ctx_ptr: usize) -> Option<u32> {
        let place = self.place_of_claim(ctx_ptr)?;
        self.claims.remove(place)
    }

    fn place_of_claim(&self, ctx_ptr: usize) -> Option<usize> {
        let is_it = |&key: &u32| self.unexpected.get(key).is_some_and(|message| message.claimed == Some(ctx_ptr));
        self.claims.iter().position(is_it)
    }

    /// The oldest posted receive with this context pointer.
    pub(crate) fn find_posted(&self, ctx_ptr: usize) -> Option<u32> {
        self.find_posted_where(|ctx| ctx.ptr == ctx_ptr)
    }

    /// The oldest posted receive whose context `wanted` accepts.
    pub(crate) fn find_posted_where(&self, mut wanted: impl FnMut(Context) -> bool) -> Option<u32> {
        self.posted.iter().find(|(_, p)| wanted(p.ctx)).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::api::Context;

    fn posted(src: Addr, tag: u64, ignore: u64) -> Posted {
        Posted { src, tag, ignore, piece: Iov::EMPTY, pieces: None, ctx: Context::default(), multi: None }
    }

    fn empty(tag: u64) -> Unexpected {
        let body = Body::Eager { bytes: Box::default(), ack: None };
        Unexpected { peer: PeerId::new(0), tag, data: None, body, claimed: None, orphan: false }
    }

    #[test]
    fn the_oldest_match_wins_under_wildcards() {
        let mut m = Matcher::new(Matching::Auto);
        let any = m.post(posted(ADDR_NONE, 0, u64::MAX));
        let exact = m.post(posted(3, 7, 0));
        assert_eq!(m.arrived(3, 7), Some(any));
        m.posted.remove(any);
        assert_eq!(m.arrived(3, 7), Some(exact));
        assert_eq!(m.arrived(4, 7), None);
        assert_eq!(m.arrived(3, 6), None);
    }

    proptest! {
        #[test]
        fn walks_and_indexes_have_one_rule(
            src in prop_oneof![Just(ADDR_NONE), 0..2_u64],
            from in prop_oneof![Just(ADDR_NONE), 0..2_u64],
            (tag, other) in (0..4_u64, 0..4_u64),
            ignore in prop_oneof![0..4_u64, Just(u64::MAX)],
        ) {
            let wanted = Wanted { src, tag, ignore };
            prop_assert_eq!(wanted.accepts(from, other), wanted.pattern().meets(&Pattern::message(from, other)));
        }
    }

    #[test]
    fn a_claimed_message_matches_only_its_claim() {
        for method in [Matching::Auto, Matching::Hash, Matching::Tree] {
            let mut m = Matcher::new(method);
            m.keep(empty(1), ADDR_NONE);
            let wanted = Wanted { src: ADDR_NONE, tag: 1, ignore: 0 };
            let key = m.find_unexpected(wanted, |_| ADDR_NONE).expect("it is there");
            m.claim(key, 9);
            assert_eq!(m.find_unexpected(wanted, |_| ADDR_NONE), None);
            assert!(m.has_claim(9));
            assert_eq!(m.take_claim(8), None);
            assert_eq!(m.take_claim(9), Some(key));
            assert!(!m.has_claim(9), "once");
        }
    }

    /// The time of a claim does not depend on the number of queued messages.
    #[test]
    fn a_claim_walks_past_no_other_message() {
        const KEPT: u64 = 100_000;
        let mut m = Matcher::new(Matching::Hash);
        for tag in 0..KEPT {
            m.keep(empty(tag), ADDR_NONE);
        }
        let start = Instant::now();
        for tag in (KEPT - 2000..KEPT).rev() {
            let key = m.find_unexpected(Wanted { src: ADDR_NONE, tag, ignore: 0 }, |_| ADDR_NONE).expect("it is there");
            m.claim(key, 9);
            assert_eq!(m.take_claim(9), Some(key));
            assert_eq!(m.unexpected.remove(key).map(|message| message.tag), Some(tag));
        }
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(1), "{taken:?}");
    }
}
