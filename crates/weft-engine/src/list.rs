//! A doubly linked list in a slab: insertion order kept, removal anywhere in constant time, stable numbers.
//!
//! Place in the data flow: holds the posted receives and the unexpected messages of [`crate::matching`].
//! Memory grows to the high-water mark and is reused; pushing allocates only when that mark rises.

use slab::Slab;

const NIL: u32 = u32::MAX;

struct Node<T> {
    prev: u32,
    next: u32,
    value: T,
}

/// Items in the order in which they were pushed.
pub(crate) struct List<T> {
    nodes: Slab<Node<T>>,
    first: u32,
    last: u32,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { nodes: Slab::new(), first: NIL, last: NIL }
    }
}

impl<T> List<T> {
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Appends; the number stays valid until the item is removed.
    pub(crate) fn push(&mut self, value: T) -> u32 {
        let key = self.nodes.insert(Node { prev: self.last, next: NIL, value });
        let key = u32::try_from(key).unwrap_or(NIL);
        match self.nodes.get_mut(self.last as usize) {
            Some(last) => last.next = key,
            None => self.first = key,
        }
        self.last = key;
        key
    }

    /// Takes an item out.
    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        let node = self.nodes.try_remove(key as usize)?;
        match self.nodes.get_mut(node.prev as usize) {
            Some(prev) => prev.next = node.next,
            None => self.first = node.next,
        }
        match self.nodes.get_mut(node.next as usize) {
            Some(next) => next.prev = node.prev,
            None => self.last = node.prev,
        }
        Some(node.value)
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.nodes.get_mut(key as usize).map(|n| &mut n.value)
    }

    /// From the oldest to the newest.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let key = at;
            let node = self.nodes.get(key as usize)?;
            at = node.next;
            Some((key, &node.value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::List;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_vector(ops in proptest::collection::vec((any::<bool>(), any::<u8>()), 0..200)) {
            let mut list = List::default();
            let mut model: Vec<(u32, u8)> = Vec::new();
            for (push, x) in ops {
                if push || model.is_empty() {
                    model.push((list.push(x), x));
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
