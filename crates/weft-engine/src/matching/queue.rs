//! A queue of receives or messages in the order of their age, searched for the oldest that matches.
//!
//! Place in the data flow: [`super::Matcher`] has two. Short queues are walked; that is faster than anything
//! else, and the path of most programs. A queue that was walked far, and again and again, gets an index,
//! which it loses when it is short again ([`Matching::Auto`]); or the client chooses ([`Matching`]).
//!
//! Invariant: whatever the index, the oldest match is found, exactly as by walking.

use super::hash::HashIndex;
use super::pattern::Pattern;
use super::tree::TreeIndex;
use crate::api::Matching;
use crate::list::List;

/// A walk of so many entries is no reason to think of an index.
const SHORT_WALK: usize = 16;
/// A queue as short as this loses its index.
const SHORT_QUEUE: usize = 8;
/// An index is made when the walks have passed so many times as many entries as it would get: making one
/// costs about as much.
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

/// See the module. What an entry matches is told by a function of the caller's, which must say the same of an
/// entry as long as it is here, but for [`Queue::hide`] and [`Queue::reindex`]; `None`: it matches nothing.
pub(crate) struct Queue<T> {
    list: List<T>,
    how: Matching,
    index: Option<Box<Index>>,
    /// There is an index, or will be when it is needed: one look instead of two for who comes with each message.
    by_index: bool,
    /// Entries passed by long walks since there was no index.
    passed: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new(how: Matching) -> Self {
        Self { list: List::default(), how, index: None, by_index: Self::always(how), passed: 0 }
    }

    /// Whether even a short queue has an index.
    fn always(how: Matching) -> bool {
        matches!(how, Matching::Hash | Matching::Tree)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Appends; the number stays valid until the entry is removed.
    #[inline(always)]
    pub(crate) fn push(&mut self, value: T, pattern: impl FnOnce(&T) -> Option<Pattern>) -> u32 {
        let key = self.list.push(move || value);
        if self.by_index {
            self.came(key, pattern);
        }
        key
    }

    #[cold]
    fn came(&mut self, key: u32, pattern: impl FnOnce(&T) -> Option<Pattern>) {
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

    /// From the oldest to the newest.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.list.iter()
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        let value = self.list.remove(key);
        self.left(key);
        value
    }

    /// Ends an entry; cheaper than [`Queue::remove`] for somebody who has seen it already.
    #[inline(always)]
    pub(crate) fn drop_item(&mut self, key: u32) {
        self.list.drop_item(key);
        self.left(key);
    }

    /// An entry stays, but matches nothing any more.
    pub(crate) fn hide(&mut self, key: u32) {
        if let Some(index) = &mut self.index {
            index.remove(key);
        }
    }

    #[inline(always)]
    fn left(&mut self, key: u32) {
        if self.by_index {
            self.went(key);
        }
    }

    #[cold]
    fn went(&mut self, key: u32) {
        if let Some(index) = &mut self.index {
            index.remove(key);
            if self.how == Matching::Auto && self.list.len() <= SHORT_QUEUE {
                self.reindex();
            }
        }
    }

    /// What entries match has changed.
    pub(crate) fn reindex(&mut self) {
        self.index = None;
        self.by_index = Self::always(self.how);
    }

    /// The oldest entry that matches `wanted`, which `accepts` tells as well, and faster.
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
        // Most often it is the first.
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
        if self.how == Matching::Auto && self.passed >= self.len() * WALKS_FOR_INDEX {
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
                if self.how == Matching::Tree {
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
                if self.how == Matching::Hash || !index.is_crowded() {
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

    /// Few sources and tags, so that much matches; masks from `masks`, or any.
    fn receive(masks: Vec<u64>) -> impl Strategy<Value = Pattern> {
        let src = prop_oneof![Just(ADDR_NONE), 0..3_u64];
        let mask = prop_oneof![8 => proptest::sample::select(masks), 1 => any::<u64>()];
        (src, tag(), mask).prop_map(|(src, tag, mask)| Pattern::receive(src, tag, mask))
    }

    fn message() -> impl Strategy<Value = Pattern> {
        let src = prop_oneof![4 => 0..3_u64, 1 => Just(ADDR_NONE)];
        (src, tag()).prop_map(|(src, tag)| Pattern::message(src, tag))
    }

    /// Segments: the first and the last bits differ.
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

    /// Every kind of matching finds what a walk finds.
    fn agree(steps: &[Step]) -> Result<(), TestCaseError> {
        let kinds = [Matching::Auto, Matching::List, Matching::Hash, Matching::Tree];
        // Patterns; hidden ones are gone.
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
                        prop_assert_eq!(found, expected, "{:?} {:?}", queue.how, wanted);
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

    /// The index that a queue has.
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
