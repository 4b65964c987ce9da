//! A queue of receives with its unexpected messages and multi-receive buffers.
//!
//! Place in the data flow: an engine has one ([`Incoming`], used by [`crate::engine::recv`]), and so has a
//! shared receive context ([`crate::engine::shared_recv`]), whose messages wait in the engines. A message
//! takes memory from a posted receive here ([`Receives::take`]). Its [`RecvInfo`] becomes the completion.

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use crate::api::{Addr, Completion, CompletionFlags, Config, Context, Error};
use crate::api::{Fault, Kind, Matching, RecvFlags, RecvOp};
use crate::broken::{cannot_happen, less};
use crate::bugs::planted;
use crate::engine::shared_recv::{Pool, PooledReleases};
use crate::ids::PeerId;
use crate::matching::{Matcher, Posted, Space, Wanted};
use crate::mem::{self, Iov, IovList};

/// Number of a multi-receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferId {
    /// A buffer of the engine.
    Own(u32),
    /// A buffer of the pool from which the engine takes receives.
    Pooled(u32),
}

/// The kind of the receive that takes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// A receive for one message.
    Single,
    /// A multi-receive.
    Multi(BufferId),
    /// A step of a collective, which is named by the context.
    Collective,
}

/// The completion of a receive whose data has not arrived yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvInfo {
    ctx: Context,
    flags: CompletionFlags,
    tag: u64,
    data: u64,
    buf: usize,
    stored: usize,
    /// Bytes that did not fit.
    excess: usize,
    lack: Lack,
    receiver: Receiver,
}

/// The reason for which a message is not stored, apart from its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    None,
    /// A part of the buffer is not mapped.
    Memory,
    /// The message of a collective is shorter than its receive.
    Bytes,
    /// The sender's part in the collective has failed.
    Poisoned,
}

impl RecvInfo {
    #[inline]
    pub(crate) fn new(ctx: Context, flags: CompletionFlags, tag: u64, data: Option<u64>) -> Self {
        let mut info = Self {
            ctx,
            flags,
            tag,
            data: data.unwrap_or(0),
            buf: 0,
            stored: 0,
            excess: 0,
            lack: Lack::None,
            receiver: Receiver::Single,
        };
        info.flags.set(CompletionFlags::DATA, data.is_some());
        info
    }

    /// A receive of a collective, whose step `ctx` names. It takes a message of its own length, and nothing of others.
    #[cold]
    pub(crate) fn of_group(ctx: Context, memory: Iov, poisoned: bool, len: u64) -> (IovList, Self) {
        let receiver = Receiver::Collective;
        let mut info = Self { receiver, ..Self::new(ctx, CompletionFlags::empty(), 0, None) };
        info.fit(&[memory], len);
        info.lack = match (poisoned, len < memory.len() as u64) {
            (true, _) => Lack::Poisoned,
            (false, true) => Lack::Bytes,
            (false, false) => Lack::None,
        };
        if info.is_whole() {
            return (IovList::from_slice(&[memory]), info);
        }
        (IovList::new(), info.with_stored(0))
    }

    /// Sets the numbers of bytes of a message of `len` bytes that are stored and that are not.
    #[inline]
    pub(crate) fn fit(&mut self, iov: &[Iov], len: u64) {
        let room = mem::total_len(iov) as u64;
        // `stored` is at most the room, which is a usize.
        self.stored = usize::try_from(len.min(room)).unwrap_or(usize::MAX);
        self.excess = usize::try_from(len.saturating_sub(room)).unwrap_or(usize::MAX);
        if self.excess > 0 {
            if iov.iter().any(Iov::is_missing) {
                self.lack = Lack::Memory;
            }
            planted!(Bug::TruncationOffByOne, self.excess -= 1);
        }
        self.buf = iov.first().map_or(0, |piece| piece.as_ptr() as usize);
    }

    /// Bytes of the message that are stored.
    pub(crate) fn stored(&self) -> usize {
        self.stored
    }

    /// Returns the receive with at most `bytes` bytes stored.
    pub(crate) fn with_stored(self, bytes: usize) -> Self {
        Self { stored: self.stored.min(bytes), ..self }
    }

    /// Whether the whole message is stored.
    pub(crate) fn is_whole(&self) -> bool {
        self.excess == 0 && self.lack == Lack::None
    }

    #[cfg(test)]
    pub(crate) fn context(&self) -> Context {
        self.ctx
    }

    /// The receive that takes the message.
    #[inline]
    pub(crate) fn receiver(&self) -> Receiver {
        self.receiver
    }

    /// Makes the receive one of a pool. `user` is added to its context.
    pub(crate) fn pooled(mut self, user: u64) -> Self {
        self.ctx.user |= user;
        if let Receiver::Multi(BufferId::Own(number)) = self.receiver {
            self.receiver = Receiver::Multi(BufferId::Pooled(number));
        }
        self
    }

    /// The completion. An error of its own is reported if `fault` is none.
    #[inline]
    pub(crate) fn completion(&self, src: Addr, fault: Option<Fault>) -> Completion {
        Completion {
            len: self.stored,
            buf: self.buf,
            tag: self.tag,
            data: self.data,
            src,
            fault: fault.or_else(|| self.cut()),
            ..Completion::new(Kind::Recv, self.ctx, self.flags)
        }
    }

    /// The error of a message that is not stored as a whole.
    fn cut(&self) -> Option<Fault> {
        match (self.excess, self.lack) {
            (_, Lack::Memory) => Some(Fault::NoMemory),
            (_, Lack::Poisoned) => Some(Fault::Revoked),
            (_, Lack::Bytes) => Some(Fault::Refused(Error::Invalid)),
            (1.., Lack::None) => planted!(Bug::TruncationUnreported, Some(Fault::Truncated(self.excess)), None),
            (0, Lack::None) => None,
        }
    }
}

/// The state of a multi-receive buffer.
#[derive(Default)]
struct MultiRecv {
    used: usize,
    /// Number of messages that are still arriving in it.
    inflight: u32,
    /// The buffer is no longer posted.
    retired: bool,
}

/// Posted receives and unexpected messages.
pub(crate) struct Receives {
    matchers: [Matcher; Space::COUNT],
    multi: Slab<MultiRecv>,
    /// A multi-receive buffer is released when fewer bytes are left in it.
    min_multi_recv: usize,
}

impl Receives {
    pub(crate) fn new(matching: Matching, min_multi_recv: usize) -> Self {
        let matchers = std::array::from_fn(|_| Matcher::new(matching));
        Self { matchers, multi: Slab::new(), min_multi_recv }
    }

    pub(crate) fn set_min_multi_recv(&mut self, bytes: usize) {
        self.min_multi_recv = bytes;
    }

    #[inline(always)]
    pub(crate) fn matcher_mut(&mut self, space: Space) -> &mut Matcher {
        &mut self.matchers[space as usize]
    }

    #[inline(always)]
    pub(crate) fn matcher(&self, space: Space) -> &Matcher {
        &self.matchers[space as usize]
    }

    /// Number of posted receives of the client, of the kind that has more.
    pub(crate) fn most_posted(&self) -> usize {
        self.matcher(Space::Tagged).posted().len().max(self.matcher(Space::Msg).posted().len())
    }

    /// Posts a receive, single or multi. Returns its key.
    pub(crate) fn post(&mut self, op: &RecvOp<'_>) -> u32 {
        let space = space_of(op.flags);
        let multi = op.flags.contains(RecvFlags::MULTI);
        let buffer = multi.then(|| self.multi.insert(MultiRecv::default()));
        self.matcher_mut(space).post_pieces(wanted(op), op.iov, op.ctx, buffer)
    }

    /// Takes memory for a message of `len` bytes from a posted receive. The receive leaves the queue unless it is a
    /// multi-receive with more room.
    #[inline]
    pub(crate) fn take(
        &mut self,
        space: Space,
        key: u32,
        tag: u64,
        data: Option<u64>,
        len: u64,
    ) -> (IovList, RecvInfo) {
        let matcher = &mut self.matchers[space as usize];
        let flags = flags_in(space);
        let mut info = RecvInfo::new(Context::default(), flags, tag, data);
        let Some(posted) = matcher.posted().get(key).copied() else {
            cannot_happen!("a receive that was found is posted");
            return (IovList::new(), info);
        };
        if space == Space::Group {
            matcher.take_posted(key);
            return RecvInfo::of_group(posted.ctx, posted.piece, data.is_some(), len);
        }
        let mut iov = matcher.buffer(&posted);
        info.ctx = posted.ctx;
        if let Some(number) = posted.multi
            && let Some(multi) = self.multi.get_mut(number as usize)
        {
            info.receiver = Receiver::Multi(BufferId::Own(number));
            let buffer = iov;
            let whole = mem::total_len(&buffer);
            iov = mem::slice(&buffer, multi.used, whole - multi.used);
            info.fit(&iov, len);
            if info.excess > 0 && buffer.iter().any(Iov::is_missing) {
                info.lack = Lack::Memory;
            }
            multi.used += planted!(Bug::MultiOverlaps, info.stored, info.stored.saturating_sub(1));
            multi.inflight += 1;
            // A full buffer is released even if the client has set no minimum.
            if whole - multi.used < self.min_multi_recv.max(1) {
                multi.retired = true;
                matcher.take_posted(key);
            }
            return (iov, info);
        }
        matcher.take_posted(key);
        info.fit(&iov, len);
        (iov, info)
    }

    /// Ends a receive that was posted, without a message.
    pub(crate) fn retire(&mut self, space: Space, posted: &Posted) -> RecvInfo {
        let flags = flags_in(space);
        let mut info = RecvInfo::new(posted.ctx, flags, posted.tag, None);
        if space == Space::Group {
            info.receiver = Receiver::Collective;
        }
        if let Some(number) = posted.multi
            && let Some(multi) = self.multi.get_mut(number as usize)
        {
            multi.retired = true;
            multi.inflight += 1;
            info.receiver = Receiver::Multi(BufferId::Own(number));
        }
        info
    }

    /// Notes that a message has left a multi-receive buffer. Returns true if the buffer is released to the client.
    pub(crate) fn leave(&mut self, number: u32) -> bool {
        let Some(multi) = self.multi.get_mut(number as usize) else {
            cannot_happen!("a message is in a buffer of this side");
            return false;
        };
        multi.inflight = less!(multi.inflight, 1, "a message enters its buffer before it leaves");
        let retired = multi.retired;
        let over = retired && multi.inflight == 0;
        if over {
            self.multi.remove(number as usize);
        }
        planted!(Bug::MultiReleasedEarly, over, retired)
    }
}

/// The kind of messages that a receive takes.
#[inline(always)]
pub(crate) fn space_of(flags: RecvFlags) -> Space {
    Space::of_client(flags.contains(RecvFlags::TAGGED))
}

/// The flags of a receive's completion.
#[inline(always)]
fn flags_in(space: Space) -> CompletionFlags {
    if space == Space::Tagged { CompletionFlags::TAGGED } else { CompletionFlags::empty() }
}

/// The criteria of a receive.
pub(crate) fn wanted(op: &RecvOp<'_>) -> Wanted {
    let tagged = op.flags.contains(RecvFlags::TAGGED);
    Wanted::new(op.src, if tagged { op.tag } else { 0 }, op.ignore)
}

/// The receives of an engine, and those of a pool from which it takes others.
pub(crate) struct Incoming {
    receives: Receives,
    /// The pool, and the bits added to the `user` of its receives' contexts.
    pool: Option<(Arc<Pool>, u64)>,
    /// Messages may take receives from the pool.
    draws: bool,
    /// The buffers of the pool to which the POOLED completions belong, in the order of the completions.
    releases: VecDeque<u32>,
    /// Number of posted receives up to which another one is posted on the fast path.
    fast_receives: usize,
}

impl Incoming {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            receives: Receives::new(config.matching, 64),
            pool: None,
            draws: false,
            releases: VecDeque::new(),
            fast_receives: config.rx_depth,
        }
    }

    #[inline(always)]
    pub(crate) fn receives(&mut self) -> &mut Receives {
        &mut self.receives
    }

    #[inline(always)]
    pub(crate) fn matcher_mut(&mut self, space: Space) -> &mut Matcher {
        self.receives.matcher_mut(space)
    }

    #[inline(always)]
    pub(crate) fn matcher(&self, space: Space) -> &Matcher {
        self.receives.matcher(space)
    }

    /// Number of the client's posted receives, tagged and untagged.
    pub(crate) fn posted(&self) -> usize {
        Space::OF_CLIENT.map(|space| self.matcher(space).posted().len()).iter().sum()
    }

    /// Number of posted receives of the kind that has more.
    pub(crate) fn most_posted(&self) -> usize {
        self.receives.most_posted()
    }

    /// Number of the client's unexpected messages, tagged and untagged.
    pub(crate) fn unexpected(&self) -> usize {
        Space::OF_CLIENT.map(|space| self.matcher(space).unexpected().len()).iter().sum()
    }

    /// Whether a message of a peer waits for the client.
    pub(crate) fn has_message_of(&self, peer_id: PeerId) -> bool {
        let of_kind = |space| self.matcher(space).unexpected().iter();
        Space::OF_CLIENT.into_iter().flat_map(of_kind).any(|(_, message)| message.peer() == peer_id)
    }

    /// Posts a plain receive into one piece of memory if no message waits, and the fast path is open. Returns
    /// false if it has done nothing.
    #[inline(always)]
    pub(crate) fn post_fast(&mut self, op: &RecvOp<'_>, piece: Iov) -> bool {
        let space = space_of(op.flags);
        let fast_receives = self.fast_receives;
        let matcher = self.receives.matcher_mut(space);
        if matcher.unexpected().len() > 0 || matcher.posted().len() >= fast_receives {
            return false;
        }
        matcher.post(Posted {
            src: op.src,
            tag: if space == Space::Tagged { op.tag } else { 0 },
            ignore: op.ignore,
            piece,
            pieces: None,
            ctx: op.ctx,
            multi: None,
        });
        true
    }

    /// Has every receive take the slow path from now on.
    pub(crate) fn close_fast_path(&mut self) {
        self.fast_receives = 0;
    }

    // ---- the pool ----------------------------------------------------------------------------

    pub(crate) fn bind_pool(&mut self, pool: Arc<Pool>, user: u64) {
        self.pool = Some((pool, user));
        self.draws = true;
    }

    /// Stops messages from taking receives of the pool.
    pub(crate) fn leave_pool(&mut self) {
        self.draws = false;
    }

    /// Whether messages may take receives from the pool.
    #[inline(always)]
    pub(crate) fn draws(&self) -> bool {
        self.draws
    }

    pub(crate) fn pool(&self) -> Option<&(Arc<Pool>, u64)> {
        self.pool.as_ref()
    }

    /// Notes that the next POOLED completion belongs to this buffer of the pool.
    pub(crate) fn push_release(&mut self, number: u32) {
        self.releases.push_back(number);
    }

    /// The deliveries of POOLED completions.
    #[inline(always)]
    pub(crate) fn releases(&mut self) -> PooledReleases<'_> {
        PooledReleases::new(self.pool.as_ref(), &mut self.releases)
    }
}
