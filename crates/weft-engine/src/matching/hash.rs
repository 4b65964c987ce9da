//! An index for deep queues whose entries and searches care for few different sets of bits: by hashing.
//!
//! Place in the data flow: one of the indexes of [`super::queue`]. Entries that care for the same bits form a
//! *group*. For each set of bits that searches care for (a *view*) every group has a table from the bits that
//! both care for to a chain of its entries, oldest first. A search looks into each group once and takes the
//! oldest of what it finds. Posted receives have several groups and one view, since messages care for
//! everything; unexpected messages have one group and several views. (Tuple space search, Srinivasan, Suri
//! and Varghese, SIGCOMM 1999. The GNI provider hashed exact tags only, and missed receives with ignore
//! bits.)
//!
//! Costs: a search one look per group; an entry that comes or goes one per view.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::pattern::Pattern;

const NIL: u32 = u32::MAX;
/// Groups that are looked into without regret, and views that are kept.
const MOST_SHAPES: usize = 8;

/// An entry of the queue, by its number there.
#[derive(Clone, Copy)]
struct Slot {
    pattern: Pattern,
    /// Entries that came later have larger ages.
    age: u64,
    /// It is here, not gone.
    here: bool,
}

#[derive(Clone, Copy)]
struct Chain {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy)]
struct Links {
    prev: u32,
    next: u32,
}

/// Entries that care for the same bits.
struct Group {
    care: u128,
    len: usize,
}

/// What searches care for.
struct View {
    care: u128,
    /// The last search with it.
    used: u64,
    /// One per group.
    tables: Vec<HashMap<u128, Chain, RandomState>>,
    /// The chain that an entry is in, by its number.
    links: Vec<Links>,
}

impl View {
    fn append(&mut self, slots: &[Slot], group: usize, key: u32) {
        let at = key as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, Links { prev: NIL, next: NIL });
        }
        let (Some(slot), Some(table)) = (slots.get(at), self.tables.get_mut(group)) else { return };
        let chain = table.entry(slot.pattern.value & self.care).or_insert(Chain { first: key, last: NIL });
        let prev = std::mem::replace(&mut chain.last, key);
        self.links[at] = Links { prev, next: NIL };
        if let Some(prev) = self.links.get_mut(prev as usize) {
            prev.next = key;
        }
    }

    fn take_out(&mut self, slots: &[Slot], group: usize, key: u32) {
        let at = key as usize;
        let (Some(slot), Some(table)) = (slots.get(at), self.tables.get_mut(group)) else { return };
        let Links { prev, next } = self.links[at];
        if let Some(prev) = self.links.get_mut(prev as usize) {
            prev.next = next;
        }
        if let Some(next) = self.links.get_mut(next as usize) {
            next.prev = prev;
        }
        if prev != NIL && next != NIL {
            return;
        }
        let bits = slot.pattern.value & self.care;
        if prev == NIL && next == NIL {
            table.remove(&bits);
        } else if let Some(chain) = table.get_mut(&bits) {
            *chain = if prev == NIL { Chain { first: next, ..*chain } } else { Chain { last: prev, ..*chain } };
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct HashIndex {
    slots: Vec<Slot>,
    groups: Vec<Group>,
    views: Vec<View>,
    ages: u64,
    searches: u64,
    /// There were more views than it keeps.
    gave_up_view: bool,
}

impl HashIndex {
    /// Whether its entries, or its searches, have cared for so many sets of bits that another index would do better.
    pub(crate) fn is_crowded(&self) -> bool {
        self.groups.len() > MOST_SHAPES || self.gave_up_view
    }

    /// A new entry, younger than all.
    pub(crate) fn insert(&mut self, key: u32, pattern: Pattern) {
        let at = key as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot { pattern, age: 0, here: false });
        }
        self.slots[at] = Slot { pattern, age: self.ages, here: true };
        self.ages += 1;
        let group = self.group_for(pattern.care);
        self.groups[group].len += 1;
        for view in &mut self.views {
            view.append(&self.slots, group, key);
        }
    }

    /// The group for entries that care for these bits, new or old.
    fn group_for(&mut self, care: u128) -> usize {
        if let Some(at) = self.groups.iter().position(|group| group.care == care) {
            return at;
        }
        // One that is empty is taken over when there are many.
        if self.groups.len() >= MOST_SHAPES
            && let Some(at) = self.groups.iter().position(|group| group.len == 0)
        {
            self.groups[at].care = care;
            return at;
        }
        self.groups.push(Group { care, len: 0 });
        self.views.iter_mut().for_each(|view| view.tables.push(HashMap::default()));
        self.groups.len() - 1
    }

    fn group_of(&self, key: u32) -> Option<usize> {
        let care = self.slots.get(key as usize).filter(|slot| slot.here)?.pattern.care;
        self.groups.iter().position(|group| group.care == care)
    }

    /// An entry goes; nothing happens if it is not here.
    pub(crate) fn remove(&mut self, key: u32) {
        let Some(group) = self.group_of(key) else { return };
        self.slots[key as usize].here = false;
        self.groups[group].len -= 1;
        for view in &mut self.views {
            view.take_out(&self.slots, group, key);
        }
    }

    /// The oldest entry that `wanted` matches. `entries`: all, oldest first; they are looked at when the
    /// search cares for bits that none before cared for.
    pub(crate) fn search<I: Iterator<Item = u32>>(
        &mut self,
        wanted: Pattern,
        entries: impl FnOnce() -> I,
    ) -> Option<u32> {
        self.searches += 1;
        let view = self.view_for(wanted.care, entries);
        let view = &mut self.views[view];
        view.used = self.searches;
        let mut best: Option<(u64, u32)> = None;
        for (group, table) in self.groups.iter().zip(&view.tables) {
            if group.len == 0 {
                continue;
            }
            if let Some(chain) = table.get(&(wanted.value & group.care)) {
                let age = self.slots[chain.first as usize].age;
                if best.is_none_or(|(oldest, _)| age < oldest) {
                    best = Some((age, chain.first));
                }
            }
        }
        best.map(|(_, key)| key)
    }

    fn view_for<I: Iterator<Item = u32>>(&mut self, care: u128, entries: impl FnOnce() -> I) -> usize {
        if let Some(at) = self.views.iter().position(|view| view.care == care) {
            return at;
        }
        let tables = self.groups.iter().map(|_| HashMap::default()).collect();
        let mut view = View { care, used: 0, tables, links: Vec::new() };
        for key in entries() {
            if let Some(group) = self.group_of(key) {
                view.append(&self.slots, group, key);
            }
        }
        if self.views.len() < MOST_SHAPES {
            self.views.push(view);
            return self.views.len() - 1;
        }
        // The one that nobody has used for the longest time goes.
        self.gave_up_view = true;
        let oldest = (0..self.views.len()).min_by_key(|&at| self.views[at].used).unwrap_or_default();
        self.views[oldest] = view;
        oldest
    }
}
