//! A table whose items are partitioned. A partition is iterated without a look at the items of others.
//!
//! Place in the data flow: [`crate::engine::ops`] keeps operations and transfers here, one partition for each peer.
//! When a peer fails, its operations are found without a scan of all others. Keys stay valid until their item is
//! removed. Memory grows to the high-water mark and is reused.

use crate::broken::cannot_happen;

const NIL: u32 = u32::MAX;

struct Node<T> {
    /// The next newer item of the partition.
    newer: u32,
    /// The next older item of the partition, or the next free node.
    older: u32,
    /// `None`: the node is free.
    item: Option<T>,
}

/// A partition of a table, by the key of its newest item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition(u32);

impl Partition {
    pub(crate) const EMPTY: Self = Self(NIL);

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self == Self::EMPTY
    }
}

pub(crate) struct PartitionedTable<T> {
    nodes: Vec<Node<T>>,
    /// The first free node.
    free: u32,
    len: usize,
}

impl<T> Default for PartitionedTable<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: NIL, len: 0 }
    }
}

impl<T> PartitionedTable<T> {
    /// The number of items in all partitions.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The key of the next item.
    #[inline]
    pub(crate) fn next_key(&self) -> u32 {
        if self.free == NIL { crate::ids::number(self.nodes.len()) } else { self.free }
    }

    /// Adds an item to a partition and returns its key.
    ///
    /// The function is inlined, and `make` runs after the node is chosen. The item's words are thus written to their
    /// place one by one, and not by way of the stack.
    #[inline(always)]
    pub(crate) fn push(&mut self, partition: &mut Partition, make: impl FnOnce() -> T) -> u32 {
        if self.free == NIL {
            self.add_node();
        }
        let key = self.free;
        let Some(node) = self.nodes.get_mut(key as usize) else {
            cannot_happen!("a free node is in the table");
            return NIL;
        };
        self.free = node.older;
        node.newer = NIL;
        node.older = partition.0;
        node.item.get_or_insert_with(make);
        if let Some(older) = self.nodes.get_mut(partition.0 as usize) {
            older.newer = key;
        }
        partition.0 = key;
        self.len += 1;
        key
    }

    #[cold]
    #[inline(never)]
    fn add_node(&mut self) {
        self.free = crate::ids::number(self.nodes.len());
        self.nodes.push(Node { newer: NIL, older: NIL, item: None });
    }

    /// Removes an item from its partition and returns it.
    pub(crate) fn remove(&mut self, partition: &mut Partition, key: u32) -> Option<T> {
        let item = self.nodes.get_mut(key as usize)?.item.take()?;
        self.unlink(partition, key);
        Some(item)
    }

    /// Drops an item of a partition; cheaper than [`Self::remove`] where the caller has already read it.
    #[inline(always)]
    pub(crate) fn drop_item(&mut self, partition: &mut Partition, key: u32) {
        if let Some(node) = self.nodes.get_mut(key as usize).filter(|node| node.item.is_some()) {
            node.item = None;
            self.unlink(partition, key);
        }
    }

    /// Links the neighbours of an emptied node and puts the node on the free list.
    #[inline(always)]
    fn unlink(&mut self, partition: &mut Partition, key: u32) {
        let Some(node) = self.nodes.get_mut(key as usize) else {
            return cannot_happen!("a linked node is in the table");
        };
        let (newer, older) = (node.newer, std::mem::replace(&mut node.older, self.free));
        self.free = key;
        match self.nodes.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => partition.0 = older,
        }
        if let Some(older) = self.nodes.get_mut(older as usize) {
            older.newer = newer;
        }
        self.len -= 1;
    }

    #[inline(always)]
    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        self.nodes.get(key as usize)?.item.as_ref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.nodes.get_mut(key as usize)?.item.as_mut()
    }

    /// Iterates over a partition from the newest item to the oldest.
    pub(crate) fn iter(&self, partition: Partition) -> impl Iterator<Item = (u32, &T)> {
        let mut at = partition.0;
        std::iter::from_fn(move || {
            let key = at;
            let node = self.nodes.get(key as usize)?;
            at = node.older;
            Some((key, node.item.as_ref()?))
        })
    }

    /// Iterates over the items of all partitions by key.
    pub(crate) fn iter_all(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.nodes).filter_map(|(key, node)| Some((key, node.item.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn partitions_behave_like_vectors(ops in proptest::collection::vec((0..3usize, any::<u8>()), 0..200)) {
            let mut table = PartitionedTable::default();
            let mut heads = [Partition::EMPTY; 3];
            let mut model: [Vec<(u32, u8)>; 3] = Default::default();
            for (of, x) in ops {
                if x < 128 || model[of].is_empty() {
                    let next = table.next_key();
                    let key = table.push(&mut heads[of], || x);
                    prop_assert_eq!(key, next);
                    model[of].push((key, x));
                } else {
                    let at = usize::from(x) % model[of].len();
                    let (key, item) = model[of].remove(at);
                    if x & 1 == 0 {
                        table.drop_item(&mut heads[of], key);
                    } else {
                        prop_assert_eq!(table.remove(&mut heads[of], key), Some(item));
                    }
                    prop_assert!(table.get(key).is_none());
                }
                for (head, expected) in heads.iter().zip(&model) {
                    let mut found: Vec<_> = table.iter(*head).map(|(key, item)| (key, *item)).collect();
                    found.reverse();
                    prop_assert_eq!(&found, expected);
                    prop_assert_eq!(head.is_empty(), expected.is_empty());
                }
                prop_assert_eq!(table.len(), model.iter().map(Vec::len).sum::<usize>());
                prop_assert_eq!(table.iter_all().count(), table.len());
            }
        }
    }
}
