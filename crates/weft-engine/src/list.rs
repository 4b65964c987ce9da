//! A doubly linked list with stable keys: it keeps insertion order and removes any item in constant time.
//!
//! Place in the data flow: holds the posted receives and the unexpected messages of [`crate::matching`].
//! Memory grows to the high-water mark and is reused; a push allocates
//! only when that mark rises. A slab would serve too, but moves every item twice, a cost on the path of each
//! receive and each write.

use crate::broken::cannot_happen;

const NIL: u32 = u32::MAX;

struct Node<T> {
    prev: u32,
    /// The next item, or the next free node.
    next: u32,
    /// `None`: the node is free.
    value: Option<T>,
}

/// Items in the order of their insertion.
pub(crate) struct List<T> {
    nodes: Vec<Node<T>>,
    /// The first free node.
    free: u32,
    first: u32,
    last: u32,
    len: usize,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: NIL, first: NIL, last: NIL, len: 0 }
    }
}

impl<T> List<T> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends an item. Its key stays valid until the item is removed.
    ///
    /// The function is inlined, and `make` runs after the node is chosen. The words of the item are thus
    /// written to their place one by one, and not by way of the stack.
    #[inline(always)]
    pub(crate) fn push(&mut self, make: impl FnOnce() -> T) -> u32 {
        if self.free == NIL {
            self.add_node();
        }
        let key = self.free;
        let Some(node) = self.nodes.get_mut(key as usize) else {
            cannot_happen!("a free node is in the table");
            return NIL;
        };
        self.free = node.next;
        node.prev = self.last;
        node.next = NIL;
        node.value.get_or_insert_with(make);
        match self.nodes.get_mut(self.last as usize) {
            Some(last) => last.next = key,
            None => self.first = key,
        }
        self.last = key;
        self.len += 1;
        key
    }

    #[cold]
    #[inline(never)]
    fn add_node(&mut self) {
        self.free = u32::try_from(self.nodes.len()).unwrap_or(NIL);
        self.nodes.push(Node { prev: NIL, next: NIL, value: None });
    }

    /// Removes an item and returns it.
    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.nodes.get_mut(key as usize)?.value.take()?;
        self.unlink(key);
        Some(value)
    }

    /// Drops an item; cheaper than [`List::remove`] where the caller has already read it.
    #[inline(always)]
    pub(crate) fn drop_item(&mut self, key: u32) {
        if let Some(node) = self.nodes.get_mut(key as usize).filter(|node| node.value.is_some()) {
            node.value = None;
            self.unlink(key);
        }
    }

    /// Links the neighbours of an emptied node and puts the node on the free list.
    #[inline(always)]
    fn unlink(&mut self, key: u32) {
        let Some(node) = self.nodes.get_mut(key as usize) else {
            return cannot_happen!("a linked node is in the table");
        };
        let (prev, next) = (node.prev, std::mem::replace(&mut node.next, self.free));
        self.free = key;
        match self.nodes.get_mut(prev as usize) {
            Some(prev) => prev.next = next,
            None => self.first = next,
        }
        match self.nodes.get_mut(next as usize) {
            Some(next) => next.prev = prev,
            None => self.last = prev,
        }
        self.len -= 1;
    }

    #[inline]
    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        self.nodes.get(key as usize)?.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.nodes.get_mut(key as usize)?.value.as_mut()
    }

    /// The position of the oldest item, for [`List::at`].
    #[inline(always)]
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// The item at a position, its key, and the position of the next item.
    #[inline(always)]
    pub(crate) fn at(&self, place: u32) -> Option<(u32, &T, u32)> {
        let node = self.nodes.get(place as usize)?;
        Some((place, node.value.as_ref()?, node.next))
    }

    /// Iterates from the oldest item to the newest.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let key = at;
            let node = self.nodes.get(key as usize)?;
            at = node.next;
            Some((key, node.value.as_ref()?))
        })
    }

    /// Iterates from the newest item to the oldest.
    pub(crate) fn iter_back(&self) -> impl Iterator<Item = (u32, &T)> {
        let mut at = self.last;
        std::iter::from_fn(move || {
            let key = at;
            let node = self.nodes.get(key as usize)?;
            at = node.prev;
            Some((key, node.value.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::List;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_list_behaves_like_a_vector(ops in proptest::collection::vec((any::<bool>(), any::<u8>()), 0..200)) {
            let mut list = List::default();
            let mut model: Vec<(u32, u8)> = Vec::new();
            for (push, x) in ops {
                if push || model.is_empty() {
                    model.push((list.push(|| x), x));
                } else if x < 64 {
                    let (key, _) = model.remove(usize::from(x) % model.len());
                    list.drop_item(key);
                    prop_assert!(list.get_mut(key).is_none());
                } else {
                    let (key, value) = model.remove(usize::from(x) % model.len());
                    prop_assert_eq!(list.remove(key), Some(value));
                    prop_assert_eq!(list.remove(key), None);
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert_eq!(list.iter().map(|(k, v)| (k, *v)).collect::<Vec<_>>(), model.clone());
            }
        }
    }
}
