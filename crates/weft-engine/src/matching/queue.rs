//! A queue of receives or messages in the order of their age, searched for the oldest match.
//!
//! Place in the data flow: each [`super::Matcher`] has two. Short queues are walked, which is the fastest
//! method for them and the path of most programs. With [`Matching::Auto`] a queue gets an index after
//! repeated long walks, and loses it when it is short again. The other values of [`Matching`] fix the method.
//!
//! Invariant: every method finds the oldest match, exactly as a walk does.

use super::hash::HashIndex;
use super::pattern::Pattern;
use super::tree::TreeIndex;
use crate::api::Matching;
use crate::list::List;

/// Walks up to this number of entries do not count towards an index.
const SHORT_WALK: usize = 16;
/// A queue of this length or less loses its index.
const SHORT_QUEUE: usize = 8;
/// An index is built after walks have passed this multiple of the queue's length: building one costs about as
/// much as such walks.
const WALKS_FOR_INDEX: usize = 4;

enum Index {
    Hash(HashIndex),
    Tree(TreeIndex),
}

impl Index {
    fn insert(&mut self, key: u32, pattern: Pattern) {
        match self {
            Self::Hash(index) => index.insert(key, pattern),
            Self::Tree(index) => index.insert(key, pattern),
        }
    }

    fn remove(&mut self, key: u32) {
        match self {
            Self::Hash(index) => index.remove(key),
            Self::Tree(index) => index.remove(key),
        }
    }
}

/// The queue; the module's documentation describes it. The caller's functions tell the pattern of an entry;
/// `None` means that the entry matches nothing. The pattern must not change while the entry is queued, except
/// by [`Queue::hide`] and [`Queue::reindex`].
pub(crate) struct Queue<T> {
    list: List<T>,
    method: Matching,
    index: Option<Box<Index>>,
    /// The queue has an index, or builds one at the next search. One flag saves each message a second test.
    by_index: bool,
    /// Entries passed by long walks since the queue has had no index.
    passed: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new(method: Matching) -> Self {
        Self { list: List::default(), method, index: None, by_index: Self::is_always_indexed(method), passed: 0 }
    }

    /// Whether even a short queue has an index.
    fn is_always_indexed(method: Matching) -> bool {
        matches!(method, Matching::Hash | Matching::Tree)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Appends an entry. Its key stays valid until the entry is removed.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T, pattern: impl FnOnce(&T) -> Option<Pattern>) -> u32 {
        let key = self.list.push(move || value);
        if self.by_index {
            self.index_entry(key, pattern);
        }
        key
    }

    #[cold]
    fn index_entry(&mut self, key: u32, pattern: impl FnOnce(&T) -> Option<Pattern>) {
        if let (Some(index), Some(entry)) = (&mut self.index, self.list.get_mut(key))
            && let Some(pattern) = pattern(entry)
        {
            index.insert(key, pattern);
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.list.get_mut(key)
    }

    #[inline(always)]
    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        self.list.get(key)
    }

    /// Iterates from the oldest entry to the newest.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.list.iter()
    }

    /// Iterates from the newest entry to the oldest.
    pub(crate) fn iter_back(&self) -> impl Iterator<Item = (u32, &T)> {
        self.list.iter_back()
    }

    /// Removes an entry and returns it.
    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.list.remove(key);
        self.unindex(key);
        value
    }

    /// Drops an entry; cheaper than [`Queue::remove`] where the caller has already read it.
    #[inline(always)]
    pub(crate) fn drop_item(&mut self, key: u32) {
        self.list.drop_item(key);
        self.unindex(key);
    }

    /// Keeps an entry in the queue, but removes it from the index: it matches nothing any more.
    pub(crate) fn hide(&mut self, key: u32) {
        if let Some(index) = &mut self.index {
            index.remove(key);
        }
    }

    #[inline(always)]
    fn unindex(&mut self, key: u32) {
        if self.by_index {
            self.remove_from_index(key);
        }
    }

    #[cold]
    fn remove_from_index(&mut self, key: u32) {
        if let Some(index) = &mut self.index {
            index.remove(key);
            if self.method == Matching::Auto && self.list.len() <= SHORT_QUEUE {
                self.reindex();
            }
        }
    }

    /// Drops the index, because the patterns of entries have changed.
    pub(crate) fn reindex(&mut self) {
        self.index = None;
        self.by_index = Self::is_always_indexed(self.method);
    }

    /// The oldest entry that matches `wanted`. `accepts` gives the same answer as the patterns, and is
    /// faster.
    #[inline(always)]
    pub(crate) fn find(
        &mut self,
        wanted: impl FnOnce() -> Pattern,
        accepts: impl Fn(&T) -> bool,
        pattern: impl Fn(&T) -> Option<Pattern>,
    ) -> Option<u32> {
        if self.by_index {
            return self.find_by_index(wanted(), pattern);
        }
        // The first entry matches most often.
        let (key, entry, next) = self.list.at(self.list.first())?;
        if accepts(entry) { Some(key) } else { self.find_after(next, wanted, accepts, pattern) }
    }

    #[inline(never)]
    fn find_after(
        &mut self,
        mut at: u32,
        wanted: impl FnOnce() -> Pattern,
        accepts: impl Fn(&T) -> bool,
        pattern: impl Fn(&T) -> Option<Pattern>,
    ) -> Option<u32> {
        for _ in 1..SHORT_WALK {
            let (key, entry, next) = self.list.at(at)?;
            if accepts(entry) {
                return Some(key);
            }
            at = next;
        }
        self.list.at(at)?;
        self.find_far(wanted(), accepts, pattern)
    }

    #[cold]
    fn find_far(
        &mut self,
        wanted: Pattern,
        accepts: impl Fn(&T) -> bool,
        pattern: impl Fn(&T) -> Option<Pattern>,
    ) -> Option<u32> {
        if self.method == Matching::Auto && self.passed >= self.len() * WALKS_FOR_INDEX {
            self.passed = 0;
            return self.find_by_index(wanted, pattern);
        }
        let mut passed = 0;
        let found = self.list.iter().find(|(_, entry)| {
            passed += 1;
            accepts(entry)
        });
        let found = found.map(|(key, _)| key);
        self.passed += passed;
        found
    }

    #[inline(never)]
    fn find_by_index(&mut self, wanted: Pattern, pattern: impl Fn(&T) -> Option<Pattern>) -> Option<u32> {
        if self.index.is_none() {
            self.fill(
                if self.method == Matching::Tree {
                    Index::Tree(TreeIndex::default())
                } else {
                    Index::Hash(HashIndex::default())
                },
                &pattern,
            );
        }
        let found = match self.index.as_deref_mut()? {
            Index::Tree(index) => return index.search(wanted),
            Index::Hash(index) => {
                let found = index.search(wanted, || self.list.iter().map(|(key, _)| key));
                if self.method == Matching::Hash || !index.is_crowded() {
                    return found;
                }
                found
            }
        };
        self.fill(Index::Tree(TreeIndex::default()), &pattern);
        found
    }

    #[cold]
    fn fill(&mut self, mut index: Index, pattern: &impl Fn(&T) -> Option<Pattern>) {
        for (key, entry) in self.list.iter() {
            if let Some(pattern) = pattern(entry) {
                index.insert(key, pattern);
            }
        }
        self.index = Some(Box::new(index));
        self.by_index = true;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::ADDR_NONE;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(Pattern),
        Search(Pattern, bool),
        Remove(usize),
        Hide(usize),
        Reindex,
    }

    /// Uses few sources and tags, so that many patterns match. Most masks come from `masks`.
    fn receive(masks: Vec<u64>) -> impl Strategy<Value = Pattern> {
        let src = prop_oneof![Just(ADDR_NONE), 0..3_u64];
        let mask = prop_oneof![8 => proptest::sample::select(masks), 1 => any::<u64>()];
        (src, tag(), mask).prop_map(|(src, tag, mask)| Pattern::receive(src, tag, mask))
    }

    fn message() -> impl Strategy<Value = Pattern> {
        let src = prop_oneof![4 => 0..3_u64, 1 => Just(ADDR_NONE)];
        (src, tag()).prop_map(|(src, tag)| Pattern::message(src, tag))
    }

    /// The first and the last bits of tags differ, so that trees fork at both ends.
    fn tag() -> impl Strategy<Value = u64> {
        (0..3_u64, 0..3_u64, 0..6_u64).prop_map(|(high, middle, low)| high << 62 | middle << 30 | low)
    }

    fn steps(posted: bool, many_masks: bool) -> impl Strategy<Value = Vec<Step>> {
        let masks = if many_masks {
            (0..40).map(|bit| 1 << bit | 1 << 62).collect()
        } else {
            vec![0, 0, 7, u64::MAX, 0xffff_ffff << 28]
        };
        let (entries, searches) = if posted {
            (receive(masks).boxed(), message().boxed())
        } else {
            (message().boxed(), receive(masks).boxed())
        };
        let step = prop_oneof![
            6 => entries.prop_map(Step::Push),
            3 => (searches, any::<bool>()).prop_map(|(wanted, take)| Step::Search(wanted, take)),
            1 => any::<usize>().prop_map(Step::Remove),
            1 => any::<usize>().prop_map(Step::Hide),
            1 => prop_oneof![20 => Just(Step::Hide(0)), 1 => Just(Step::Reindex)],
        ];
        proptest::collection::vec(step, 0..400)
    }

    /// Checks that every method finds the entry that a walk finds.
    fn agree(steps: &[Step]) -> Result<(), TestCaseError> {
        let kinds = [Matching::Auto, Matching::List, Matching::Hash, Matching::Tree];
        // The entries are patterns; `None` marks a hidden entry.
        let mut queues = kinds.map(Queue::<Option<Pattern>>::new);
        let mut model: Vec<(u32, Option<Pattern>)> = Vec::new();
        for step in steps {
            match *step {
                Step::Push(entry) => {
                    let keys = queues.each_mut().map(|queue| queue.push(Some(entry), |&entry| entry));
                    prop_assert!(keys.iter().all(|key| *key == keys[0]));
                    model.push((keys[0], Some(entry)));
                }
                Step::Search(wanted, take) => {
                    let at = model.iter().position(|(_, entry)| entry.is_some_and(|entry| entry.meets(&wanted)));
                    let expected = at.map(|at| model[at].0);
                    let accepts = |entry: &Option<Pattern>| entry.is_some_and(|entry| entry.meets(&wanted));
                    for queue in &mut queues {
                        let found = queue.find(|| wanted, accepts, |&entry| entry);
                        prop_assert_eq!(found, expected, "{:?} {:?}", queue.method, wanted);
                    }
                    if let Some(at) = at.filter(|_| take) {
                        let (key, _) = model.remove(at);
                        queues.iter_mut().for_each(|queue| queue.drop_item(key));
                    }
                }
                Step::Remove(at) if !model.is_empty() => {
                    let (key, entry) = model.remove(at % model.len());
                    for queue in &mut queues {
                        prop_assert_eq!(queue.remove(key), Some(entry));
                        prop_assert_eq!(queue.remove(key), None);
                    }
                }
                Step::Hide(at) if !model.is_empty() => {
                    let at = at % model.len();
                    model[at].1 = None;
                    for queue in &mut queues {
                        if let Some(entry) = queue.get_mut(model[at].0) {
                            *entry = None;
                        }
                        queue.hide(model[at].0);
                    }
                }
                Step::Reindex => queues.iter_mut().for_each(Queue::reindex),
                Step::Remove(_) | Step::Hide(_) => {}
            }
            for queue in &queues {
                prop_assert!(queue.iter().map(|(key, entry)| (key, *entry)).eq(model.iter().copied()));
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn posted_receives_are_found_as_by_walking(steps in steps(true, false)) {
            agree(&steps)?;
        }

        #[test]
        fn messages_are_found_as_by_walking(steps in steps(false, false)) {
            agree(&steps)?;
        }

        #[test]
        fn receives_with_many_masks_are_found_as_by_walking(steps in steps(true, true)) {
            agree(&steps)?;
        }

        #[test]
        fn messages_under_many_masks_are_found_as_by_walking(steps in steps(false, true)) {
            agree(&steps)?;
        }
    }

    /// The kind of index that the queue has.
    fn kind<T>(queue: &Queue<T>) -> Option<&'static str> {
        match queue.index.as_deref()? {
            Index::Hash(_) => Some("hash"),
            Index::Tree(_) => Some("tree"),
        }
    }

    fn look(queue: &mut Queue<Pattern>, wanted: Pattern) -> Option<u32> {
        queue.find(|| wanted, |entry| entry.meets(&wanted), |&entry| Some(entry))
    }

    #[test]
    fn depth_and_masks_choose_the_index() {
        let mut queue = Queue::new(Matching::Auto);
        for tag in 0..1000 {
            queue.push(Pattern::receive(1, tag, 0), |&entry| Some(entry));
        }
        assert_eq!(look(&mut queue, Pattern::message(1, 3)), Some(3));
        assert_eq!(kind(&queue), None, "a short walk in a long queue");
        for _ in 0..=WALKS_FOR_INDEX {
            assert_eq!(look(&mut queue, Pattern::message(1, 999)), Some(999));
        }
        assert_eq!(kind(&queue), Some("hash"));
        for bit in 0..20 {
            queue.push(Pattern::receive(1, 1 << 20, 1 << bit), |&entry| Some(entry));
        }
        assert_eq!(look(&mut queue, Pattern::message(1, 1 << 20 | 1 << 7)), Some(1007));
        assert_eq!(kind(&queue), Some("tree"));
        assert_eq!(look(&mut queue, Pattern::message(1, 1 << 20 | 1 << 9)), Some(1009));
        for key in 0..1012 {
            queue.drop_item(key);
        }
        assert_eq!((kind(&queue), queue.len()), (None, 8));
        assert_eq!(look(&mut queue, Pattern::message(1, 1 << 20 | 1 << 17)), Some(1017));
    }

    #[test]
    fn a_queue_that_is_used_at_its_front_has_no_index() {
        let mut queue = Queue::new(Matching::Auto);
        for tag in 0..100_000 {
            queue.push(Pattern::receive(ADDR_NONE, tag, 0), |&entry| Some(entry));
        }
        for tag in 0..99_000 {
            let key = look(&mut queue, Pattern::message(1, tag));
            queue.drop_item(key.expect("it is the first"));
        }
        assert_eq!(kind(&queue), None);
    }
}
