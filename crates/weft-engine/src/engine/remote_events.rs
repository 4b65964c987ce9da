//! What the client of a target hears of its peers' accesses: one event per operation, when all of it has taken effect.
//!
//! Place in the data flow: `rma` and `atomic` execute a peer's operation part by part and say here how each
//! part ended; what comes out are [`Completion`]s of the kinds `RemoteWrite` and `RemoteRead`.
//!
//! The parts of one operation follow each other in the stream of messages, and each says whether more follow
//! (`F_MORE`); the first has number 0. Those whose bytes travel apart may end in any order, and after later
//! operations have begun: an operation of several parts is a [`Parts`] until its last part has ended. An
//! operation of which any part was refused makes no event.

use smallvec::SmallVec;

use crate::api::{Completion, Context, Kind, OpFlags};
use crate::bugs::planted;
use crate::engine::state::Core;
use crate::wire::Op;

/// Regions that one operation may reach; far beyond what a client can name in one call.
const PLACES_LIMIT: usize = 64;

/// A part of a peer's operation that has taken effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    /// `RemoteWrite` or `RemoteRead`.
    pub(crate) kind: Kind,
    /// ATOMIC, with CHANGES where a fetching one writes too, or nothing.
    pub(crate) family: OpFlags,
    pub(crate) key: u64,
    pub(crate) data: Option<u64>,
    pub(crate) len: usize,
}

/// A peer's operation of several parts.
#[derive(Default)]
pub(crate) struct Parts {
    /// More parts follow.
    open: bool,
    /// Parts that have begun and not ended.
    under_way: u32,
    /// One of them was refused, or its link has ended.
    failed: bool,
    /// The immediate data, which the last part brings.
    data: Option<u64>,
    /// What was reached: keys and bytes.
    places: SmallVec<[(u64, usize); 2]>,
}

impl Parts {
    /// Whether nothing happens to it any more, unless the peer sends another part.
    pub(crate) fn rest(&self) -> bool {
        self.under_way == 0
    }
}

impl Core {
    /// A part of a peer's operation begins. Returns the operation's number here, `None` if it has only this
    /// part. Each part that begins ends by [`Core::part_done`] or [`Core::part_failed`].
    #[inline]
    pub(crate) fn part_begins(&mut self, vci: u32, id: Op, more: bool) -> Option<u32> {
        if !more && self.vcs[vci as usize].waiting.as_ref().is_none_or(|waiting| waiting.parts.is_none()) {
            return None;
        }
        self.one_of_several(vci, id.part.get() == 0, more)
    }

    #[cold]
    fn one_of_several(&mut self, vci: u32, first: bool, more: bool) -> Option<u32> {
        // Who was refused one part may not send the rest.
        if first && let Some(cut) = self.waiting(vci).parts.take() {
            self.cut_parts(cut);
        }
        let open = self.waiting(vci).parts.take();
        if open.is_none() && !more {
            return None;
        }
        let number = open.or_else(|| u32::try_from(self.parts.insert(Parts::default())).ok())?;
        let parts = self.parts.get_mut(number as usize)?;
        parts.under_way += 1;
        parts.open = more;
        self.waiting(vci).parts = more.then_some(number);
        Some(number)
    }

    /// The operation's other parts will not come.
    pub(crate) fn cut_parts(&mut self, number: u32) {
        let Some(parts) = self.parts.get_mut(number as usize) else { return };
        parts.open = false;
        parts.failed = true;
        if parts.under_way == 0 {
            self.parts.remove(number as usize);
        }
    }

    /// A part was refused, or will not end.
    #[cold]
    pub(crate) fn part_failed(&mut self, number: Option<u32>) {
        let Some(number) = number else { return };
        let Some(parts) = self.parts.get_mut(number as usize) else { return };
        parts.failed = true;
        parts.under_way = parts.under_way.saturating_sub(1);
        if parts.under_way == 0 && !parts.open {
            self.parts.remove(number as usize);
        }
    }

    /// A part has taken effect.
    #[inline]
    pub(crate) fn part_done(&mut self, vci: u32, number: Option<u32>, reached: &Reached) {
        match planted!(Bug::EventPerPart, number, None) {
            None => self.report(vci, reached),
            Some(number) => self.several_done(vci, number, reached),
        }
    }

    #[cold]
    fn several_done(&mut self, vci: u32, number: u32, reached: &Reached) {
        let Some(parts) = self.parts.get_mut(number as usize) else { return };
        parts.under_way = parts.under_way.saturating_sub(1);
        parts.data = parts.data.or(reached.data);
        match parts.places.iter().position(|(key, _)| *key == reached.key) {
            Some(at) => parts.places[at].1 = parts.places[at].1.saturating_add(reached.len),
            None if parts.places.len() < PLACES_LIMIT => parts.places.push((reached.key, reached.len)),
            None => parts.failed = true,
        }
        if parts.under_way > 0 || parts.open {
            return;
        }
        let Parts { failed, data, places, .. } = self.parts.remove(number as usize);
        if failed {
            return;
        }
        let whole =
            Reached { data, len: places.iter().fold(0, |sum, (_, bytes)| bytes.saturating_add(sum)), ..*reached };
        match places.as_slice() {
            &[(key, _)] => self.report(vci, &Reached { key, ..whole }),
            several => self.report_regions(vci, &whole, several),
        }
    }

    /// One operation has reached several regions: once to the endpoint, and once to each region.
    fn report_regions(&mut self, vci: u32, whole: &Reached, places: &[(u64, usize)]) {
        let watched = |key| self.regions.get(key).is_some_and(|region| region.events);
        let all = whole.data.is_some() || self.remote_events || places.iter().any(|&(key, _)| watched(key));
        if all {
            self.tell(vci, whole, OpFlags::ENDPOINT);
        }
        for &(key, len) in places {
            if self.regions.get(key).is_some_and(|region| region.events) {
                self.tell(vci, &Reached { key, len, data: None, ..*whole }, OpFlags::REGION);
            }
        }
    }

    /// A peer has touched a region: the client may want to know.
    #[inline]
    fn report(&mut self, vci: u32, reached: &Reached) {
        let Some(region) = self.regions.get(reached.key) else { return };
        if reached.data.is_some() || region.events || self.remote_events {
            self.tell(vci, reached, OpFlags::empty());
        }
    }

    fn tell(&mut self, vci: u32, reached: &Reached, whom: OpFlags) {
        let Some(region) = self.regions.get(reached.key) else { return };
        let mut flags = reached.family | whom;
        flags.set(OpFlags::DATA, reached.data.is_some());
        self.completions.push(Completion {
            kind: reached.kind,
            ctx: Context { ptr: 0, user: region.user },
            flags,
            len: reached.len,
            buf: 0,
            tag: 0,
            data: reached.data.unwrap_or(0),
            src: self.vcs[vci as usize].addr,
            fault: None,
        });
    }
}
