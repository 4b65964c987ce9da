//! A radix tree for deep queues whose entries or searches use many different masks.
//!
//! Place in the data flow: one of the indexes of [`super::queue`]. Keys are strings of 128 digits: 0, 1, or
//! *any* where an entry does not care. Each node stands for a run of digits, and its children continue with
//! 0, 1 and any. Runs without a fork are one node (Morrison's PATRICIA, with a third digit). Each node knows
//! the age of its oldest entry.
//!
//! A search follows every branch that agrees with its own digits, the older branch first, and skips branches
//! that are younger than the best match so far. The most significant bits of the tag come first, because
//! programs keep the most distinctive part of the tag there (MPI's context).

use slab::Slab;

use super::pattern::Pattern;

const NIL: u32 = u32::MAX;
const DIGITS: u32 = 128;

/// Bits `from..to` of 128, counted from the most significant one.
fn range(from: u32, to: u32) -> u128 {
    let left = u128::MAX.checked_shr(from).unwrap_or(0);
    let right = u128::MAX.checked_shr(to).unwrap_or(0);
    left & !right
}

/// The digit of a pattern: 0, 1, or 2 for any.
fn digit(pattern: &Pattern, at: u32) -> usize {
    let bit = 1_u128 << (DIGITS - 1 - at);
    match (pattern.care & bit, pattern.value & bit) {
        (0, _) => 2,
        (_, 0) => 0,
        _ => 1,
    }
}

struct Node {
    parent: u32,
    /// The node covers the digits `from..to` of this pattern. The digits before are those of its ancestors.
    pattern: Pattern,
    from: u32,
    to: u32,
    /// Age of the oldest entry below the node.
    oldest: u64,
    kind: NodeKind,
}

enum NodeKind {
    Fork([u32; 3]),
    /// Entries with equal patterns, oldest first.
    Leaf {
        first: u32,
        last: u32,
    },
}

#[derive(Clone, Copy)]
struct Slot {
    /// `NIL`: the entry is not in the index.
    leaf: u32,
    prev: u32,
    next: u32,
    age: u64,
}

/// The index; the module's documentation describes it.
pub(crate) struct TreeIndex {
    nodes: Slab<Node>,
    root: u32,
    slots: Vec<Slot>,
    ages: u64,
    /// The stack of a search, kept to reuse its memory.
    stack: Vec<u32>,
}

impl Default for TreeIndex {
    fn default() -> Self {
        Self { nodes: Slab::new(), root: NIL, slots: Vec::new(), ages: 0, stack: Vec::new() }
    }
}

impl TreeIndex {
    fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize]
    }

    fn add(&mut self, node: Node) -> u32 {
        u32::try_from(self.nodes.insert(node)).unwrap_or(NIL)
    }

    /// Replaces the child `old` of `parent` by `new`.
    fn replace(&mut self, parent: u32, old: u32, new: u32) {
        match self.nodes.get_mut(parent as usize).map(|node| &mut node.kind) {
            Some(NodeKind::Fork(children)) => {
                children.iter_mut().filter(|child| **child == old).for_each(|child| *child = new);
            }
            _ => self.root = new,
        }
        if let Some(node) = self.nodes.get_mut(new as usize) {
            node.parent = parent;
        }
    }

    /// Adds an entry that is younger than all others.
    pub(crate) fn insert(&mut self, key: u32, pattern: Pattern) {
        let age = self.ages;
        self.ages += 1;
        let leaf = self.leaf_for(pattern, age);
        let prev = match &mut self.nodes[leaf as usize].kind {
            NodeKind::Leaf { first, last } => {
                if *first == NIL {
                    *first = key;
                }
                std::mem::replace(last, key)
            }
            NodeKind::Fork(_) => NIL,
        };
        if let Some(prev) = self.slots.get_mut(prev as usize) {
            prev.next = key;
        }
        let slot = Slot { leaf, prev, next: NIL, age };
        let at = key as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot { leaf: NIL, prev: NIL, next: NIL, age: 0 });
        }
        self.slots[at] = slot;
    }

    /// The leaf for a pattern. A new leaf is empty and has the age of its first entry.
    fn leaf_for(&mut self, pattern: Pattern, age: u64) -> u32 {
        let (mut parent, mut at, mut from) = (NIL, self.root, 0);
        while at != NIL {
            let node = self.node(at);
            // The position of the first digit that differs.
            let differ = (node.pattern.care ^ pattern.care) | (node.pattern.value ^ pattern.value);
            let same_to = (differ & range(node.from, node.to)).leading_zeros();
            if same_to < node.to {
                return self.split(at, same_to, pattern, age);
            }
            match &node.kind {
                NodeKind::Leaf { .. } => return at,
                NodeKind::Fork(children) => {
                    (parent, from) = (at, node.to);
                    at = children[digit(&pattern, from)];
                }
            }
        }
        let leaf = self.new_leaf(parent, pattern, from, age);
        match self.nodes.get_mut(parent as usize).map(|node| &mut node.kind) {
            Some(NodeKind::Fork(children)) => children[digit(&pattern, from)] = leaf,
            _ => self.root = leaf,
        }
        leaf
    }

    fn new_leaf(&mut self, parent: u32, pattern: Pattern, from: u32, age: u64) -> u32 {
        let kind = NodeKind::Leaf { first: NIL, last: NIL };
        self.add(Node { parent, pattern, from, to: DIGITS, oldest: age, kind })
    }

    /// Forks a node at the first digit at which a new pattern differs from it.
    fn split(&mut self, at: u32, fork_at: u32, pattern: Pattern, age: u64) -> u32 {
        let Node { parent, pattern: old, from, oldest, .. } = *self.node(at);
        let fork = self.add(Node { parent, pattern: old, from, to: fork_at, oldest, kind: NodeKind::Fork([NIL; 3]) });
        self.replace(parent, at, fork);
        let leaf = self.new_leaf(fork, pattern, fork_at, age);
        let lower = &mut self.nodes[at as usize];
        (lower.parent, lower.from) = (fork, fork_at);
        if let NodeKind::Fork(children) = &mut self.nodes[fork as usize].kind {
            children[digit(&old, fork_at)] = at;
            children[digit(&pattern, fork_at)] = leaf;
        }
        leaf
    }

    /// Removes an entry, if it is in the index.
    pub(crate) fn remove(&mut self, key: u32) {
        let Some(slot) = self.slots.get_mut(key as usize) else { return };
        let Slot { prev, next, .. } = *slot;
        let leaf = std::mem::replace(&mut slot.leaf, NIL);
        if leaf == NIL {
            return;
        }
        if let Some(prev) = self.slots.get_mut(prev as usize) {
            prev.next = next;
        }
        if let Some(next) = self.slots.get_mut(next as usize) {
            next.prev = prev;
        }
        let Some(node) = self.nodes.get_mut(leaf as usize) else { return };
        let NodeKind::Leaf { first, last } = &mut node.kind else { return };
        if *last == key {
            *last = prev;
        }
        if *first != key {
            return;
        }
        *first = next;
        let parent = node.parent;
        if let Some(next) = self.slots.get(next as usize) {
            node.oldest = next.age;
        } else {
            self.nodes.remove(leaf as usize);
            self.replace(parent, leaf, NIL);
        }
        self.tidy(parent);
    }

    /// Corrects the ages from a fork upwards, and removes forks with a single child.
    fn tidy(&mut self, mut at: u32) {
        while at != NIL {
            let node = self.node(at);
            let (parent, from) = (node.parent, node.from);
            let NodeKind::Fork(children) = node.kind else { return };
            let mut rest = children.into_iter().filter(|&child| child != NIL);
            match (rest.next(), rest.next()) {
                (Some(only), None) => {
                    self.nodes.remove(at as usize);
                    self.nodes[only as usize].from = from;
                    self.replace(parent, at, only);
                }
                _ => {
                    let oldest =
                        children.iter().filter_map(|&child| self.nodes.get(child as usize)).map(|n| n.oldest).min();
                    let node = &mut self.nodes[at as usize];
                    if oldest == Some(node.oldest) {
                        return;
                    }
                    node.oldest = oldest.unwrap_or(u64::MAX);
                }
            }
            at = parent;
        }
    }

    /// The oldest entry that `wanted` matches.
    pub(crate) fn search(&mut self, wanted: Pattern) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        stack.push(self.root);
        while let Some(at) = stack.pop() {
            let Some(node) = self.nodes.get(at as usize) else { continue };
            if best.is_some_and(|(age, _)| age <= node.oldest) {
                continue;
            }
            let differ = (node.pattern.value ^ wanted.value) & node.pattern.care & wanted.care;
            if differ & range(node.from, node.to) != 0 {
                continue;
            }
            match node.kind {
                NodeKind::Leaf { first, .. } => best = Some((node.oldest, first)),
                NodeKind::Fork(mut children) => {
                    // The oldest child is pushed last, so that it is visited first.
                    let age =
                        |&child: &u32| std::cmp::Reverse(self.nodes.get(child as usize).map_or(u64::MAX, |n| n.oldest));
                    children.sort_unstable_by_key(age);
                    stack.extend(children.into_iter().filter(|&child| child != NIL));
                }
            }
        }
        self.stack = stack;
        best.map(|(_, key)| key)
    }
}
