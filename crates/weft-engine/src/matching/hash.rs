//! A hash index for deep queues whose entries and searches use few different masks.
//!
//! Place in the data flow: one of the indexes of [`super::queue`]. Entries that care for the same bits form a
//! *group*. A *view* is a set of bits that searches care for. In each view every group has a table. It maps
//! the bits that both care for to a chain of the group's entries, oldest first. A search looks into each
//! group once and takes the oldest entry of all chains found.
//!
//! Posted receives form several groups and have one view, since messages care for every bit. Unexpected
//! messages form one group and have several views. This is tuple space search (Srinivasan, Suri and Varghese,
//! SIGCOMM 1999). Libfabric's GNI provider hashed exact tags only, and missed receives with ignore bits.
//!
//! Costs: a search takes one look-up per group; an insertion or removal takes one per view.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::pattern::Pattern;

const NIL: u32 = u32::MAX;
/// Maximum number of groups before the index counts as crowded, and of views that are kept.
const MAX_SHAPES: usize = 8;

/// An entry of the queue, indexed by its key.
#[derive(Clone, Copy)]
struct Slot {
    pattern: Pattern,
    /// Age of the entry: later entries have larger values.
    age: u64,
    /// Whether the entry is in the index.
    present: bool,
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

/// The entries that care for the same bits.
struct Group {
    care: u128,
    len: usize,
}

/// The tables for searches that care for the same bits.
struct View {
    care: u128,
    /// Number of the last search that used the view.
    used: u64,
    /// One table for each group.
    tables: Vec<HashMap<u128, Chain, RandomState>>,
    /// The neighbours of each entry in its chain, by key.
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

    fn unlink(&mut self, slots: &[Slot], group: usize, key: u32) {
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

/// The index; the module's documentation describes it.
#[derive(Default)]
pub(crate) struct HashIndex {
    slots: Vec<Slot>,
    groups: Vec<Group>,
    views: Vec<View>,
    ages: u64,
    searches: u64,
    /// A view was dropped to make room for another.
    dropped_view: bool,
}

impl HashIndex {
    /// Whether entries or searches have used too many masks for this index. A [`super::tree`] is faster then.
    pub(crate) fn is_crowded(&self) -> bool {
        self.groups.len() > MAX_SHAPES || self.dropped_view
    }

    /// Adds an entry that is younger than all others.
    pub(crate) fn insert(&mut self, key: u32, pattern: Pattern) {
        let at = key as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot { pattern, age: 0, present: false });
        }
        self.slots[at] = Slot { pattern, age: self.ages, present: true };
        self.ages += 1;
        let group = self.group_for(pattern.care);
        self.groups[group].len += 1;
        for view in &mut self.views {
            view.append(&self.slots, group, key);
        }
    }

    /// The group for entries that care for these bits; made if there is none.
    fn group_for(&mut self, care: u128) -> usize {
        if let Some(at) = self.groups.iter().position(|group| group.care == care) {
            return at;
        }
        // With many groups, an empty one is reused.
        if self.groups.len() >= MAX_SHAPES
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
        let care = self.slots.get(key as usize).filter(|slot| slot.present)?.pattern.care;
        self.groups.iter().position(|group| group.care == care)
    }

    /// Removes an entry, if it is in the index.
    pub(crate) fn remove(&mut self, key: u32) {
        let Some(group) = self.group_of(key) else { return };
        self.slots[key as usize].present = false;
        self.groups[group].len -= 1;
        for view in &mut self.views {
            view.unlink(&self.slots, group, key);
        }
    }

    /// The oldest entry that `wanted` matches. `entries` are the keys of all entries, oldest first. They are
    /// read when the search cares for a new set of bits.
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
        if self.views.len() < MAX_SHAPES {
            self.views.push(view);
            return self.views.len() - 1;
        }
        // The least recently used view is replaced.
        self.dropped_view = true;
        let oldest = (0..self.views.len()).min_by_key(|&at| self.views[at].used).unwrap_or_default();
        self.views[oldest] = view;
        oldest
    }
}
