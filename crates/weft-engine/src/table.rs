//! A table whose entries are found by ids of their own type. An id that the table has given out has its entry until the
//! entry is removed, so that indexing cannot miss.
//!
//! Place in the data flow: [`crate::engine`] keeps groups and runs of collectives here. Ids that the client names are
//! looked up by [`Table::get`].

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// The id of an entry.
pub(crate) trait Id: Copy {
    /// The id of the entry at a place.
    fn at(place: usize) -> Self;
    fn place(self) -> usize;
}

pub(crate) struct Table<I, T> {
    entries: Slab<T>,
    ids: PhantomData<I>,
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Self { entries: Slab::new(), ids: PhantomData }
    }
}

impl<I: Id, T> Table<I, T> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn insert(&mut self, entry: T) -> I {
        I::at(self.entries.insert(entry))
    }

    /// Removes the entry of an id of this table.
    pub(crate) fn remove(&mut self, id: I) -> T {
        self.entries.remove(id.place())
    }

    /// The entry of an id from outside.
    pub(crate) fn get(&self, id: I) -> Option<&T> {
        self.entries.get(id.place())
    }

    /// [`Table::get`] for changes.
    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.entries.get_mut(id.place())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.entries.iter().map(|(place, entry)| (I::at(place), entry))
    }
}

impl<I: Id, T> Index<I> for Table<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        &self.entries[id.place()]
    }
}

impl<I: Id, T> IndexMut<I> for Table<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.entries[id.place()]
    }
}
