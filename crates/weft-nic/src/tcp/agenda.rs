//! The work that links of the TCP device need: which link needs which [`Task`], in the order of the requests.
//!
//! Place in the data flow: the parts of the device add a task for a link where the need arises. The poll, the flush
//! and the timers take the tasks from here, so that an idle link costs a poll nothing.
//!
//! Invariants: a link has each task at most once. Adding, removing and asking take constant time, on the average over
//! several calls for removal. A link that leaves the table has no task ([`Agenda::forget`]).
//!
//! Each task has a queue of link numbers, and each link knows its place in each queue. A removed link leaves a vacant
//! entry behind, which keeps the order of the others; queues that are mostly vacant are compacted.

use weft_engine::growth;

/// One kind of work that a link may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// The link has failed outside a poll; the next poll reports its end.
    ReportEnd,
    /// The connection is being made, for the first time or again.
    Connect,
    /// The socket is full: epoll watches its writability.
    AwaitWritable,
    /// The link can send more at the next flush.
    Flush,
    /// The peer has sent messages that are not acknowledged.
    AckDue,
    /// The client has closed the link, whose last bytes are on their way.
    Close,
}

/// The number of tasks.
const TASKS: usize = 6;
/// The first tasks concern the connection, which is either being made, or full, or has failed. A link has one of them
/// at most, so they share a place.
const SHARED: usize = 3;
/// The number of places that a link has.
const PLACES: usize = TASKS - SHARED + 1;
/// The number of no link: a vacant entry.
const VACANT: u32 = u32::MAX;
/// The place of a link that does not have the task.
const NOWHERE: u32 = u32::MAX;
/// Queues shorter than this are not compacted.
const COMPACT_ENTRIES: usize = 64;

/// The places of one link in the queues.
type Places = [u32; PLACES];

/// The links that have one task.
#[derive(Debug, Default)]
struct Queue {
    /// Numbers of links in the order in which the task was added, with vacant entries.
    entries: Vec<u32>,
    /// The entries that are not vacant.
    len: usize,
}

/// The tasks of all links.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    queues: [Queue; TASKS],
    /// By number of link.
    places: Vec<Places>,
    /// The memory of the links that were flushed last, for the next ones.
    spare: Vec<u32>,
}

/// Links whose task was taken off the agenda.
#[derive(Debug)]
pub(super) struct Taken(Vec<u32>);

impl Taken {
    /// The links in the order of the requests.
    #[inline]
    pub(super) fn links(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.0.iter().copied().filter(|&link| link != VACANT)
    }
}

impl Agenda {
    /// Makes room for the tasks of link `link`.
    pub(super) fn admit(&mut self, link: u32) {
        let rows = link as usize + 1;
        let more = rows.saturating_sub(self.places.len());
        if more > 0 {
            growth::reserve(&mut self.places, more);
            self.places.resize(rows, [NOWHERE; PLACES]);
        }
    }

    /// Adds a task for a link; no effect if the link has it already.
    #[inline]
    pub(super) fn add(&mut self, task: Task, link: u32) {
        let Some(places) = self.places.get_mut(link as usize) else { return };
        let queue = &mut self.queues[task as usize];
        let place = &mut places[task.place()];
        if *place != NOWHERE {
            debug_assert_eq!(
                queue.entries.get(*place as usize),
                Some(&link),
                "link {link} has another task of its connection"
            );
            return;
        }
        // There are fewer entries than twice the links, whose numbers are of 32 bits.
        #[allow(clippy::cast_possible_truncation)]
        let at = queue.entries.len() as u32;
        *place = at;
        queue.entries.push(link);
        queue.len += 1;
    }

    /// Whether a link has a task.
    #[inline]
    pub(super) fn has(&self, task: Task, link: u32) -> bool {
        let place = self.places.get(link as usize).map(|places| places[task.place()]);
        place.is_some_and(|place| self.queues[task as usize].entries.get(place as usize) == Some(&link))
    }

    /// Removes a task from a link. Returns whether the link had it.
    pub(super) fn remove(&mut self, task: Task, link: u32) -> bool {
        let Some(places) = self.places.get_mut(link as usize) else { return false };
        let (queue, place) = (&mut self.queues[task as usize], &mut places[task.place()]);
        let Some(entry) = queue.entries.get_mut(*place as usize).filter(|entry| **entry == link) else { return false };
        (*entry, *place) = (VACANT, NOWHERE);
        queue.len -= 1;
        if queue.len == 0 {
            queue.entries.clear();
        } else if queue.entries.len() >= COMPACT_ENTRIES.max(2 * queue.len) {
            self.compact(task);
        }
        true
    }

    /// Removes all tasks from a link that leaves the table.
    pub(super) fn forget(&mut self, link: u32) {
        for task in Task::ALL {
            self.remove(task, link);
        }
    }

    /// Whether no link has the task.
    #[inline]
    pub(super) fn is_empty(&self, task: Task) -> bool {
        self.queues[task as usize].len == 0
    }

    /// The number of links that have the task.
    pub(super) fn len(&self, task: Task) -> usize {
        self.queues[task as usize].len
    }

    /// The links that have the task, in the order of the requests.
    pub(super) fn links(&self, task: Task) -> impl Iterator<Item = u32> + use<'_> {
        self.queues[task as usize].entries.iter().copied().filter(|&link| link != VACANT)
    }

    /// Takes the task off all links that have it. Requests from now on are for the next time.
    #[inline]
    pub(super) fn take(&mut self, task: Task) -> Taken {
        let queue = &mut self.queues[task as usize];
        let next = if task == Task::Flush { std::mem::take(&mut self.spare) } else { Vec::new() };
        let taken = std::mem::replace(&mut queue.entries, next);
        queue.len = 0;
        for &link in &taken {
            if let Some(places) = self.places.get_mut(link as usize) {
                places[task.place()] = NOWHERE;
            }
        }
        Taken(taken)
    }

    /// Keeps the memory of the links that [`Self::take`] gave for [`Task::Flush`].
    #[inline]
    pub(super) fn give_back(&mut self, taken: Taken) {
        let Taken(mut memory) = taken;
        memory.clear();
        self.spare = memory;
    }

    /// Removes the vacant entries of a queue.
    #[cold]
    fn compact(&mut self, task: Task) {
        let entries = &mut self.queues[task as usize].entries;
        entries.retain(|&link| link != VACANT);
        for (place, &link) in (0..).zip(&*entries) {
            if let Some(places) = self.places.get_mut(link as usize) {
                places[task.place()] = place;
            }
        }
    }
}

impl Task {
    const ALL: [Self; TASKS] =
        [Self::ReportEnd, Self::Connect, Self::AwaitWritable, Self::Flush, Self::AckDue, Self::Close];

    /// Where a link notes its place in the task's queue.
    #[inline]
    const fn place(self) -> usize {
        (self as usize).saturating_sub(SHARED - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        /// The agenda behaves as a list without duplicates for each task.
        #[test]
        fn the_agenda_keeps_order_and_has_no_duplicates(
            steps in prop::collection::vec((0usize..8, 0usize..TASKS, 0u32..100), 1..800),
        ) {
            let mut agenda = Agenda::default();
            let mut model: [Vec<u32>; TASKS] = Default::default();
            (0..100).for_each(|link| agenda.admit(link));
            for (step, task, link) in steps {
                let task = Task::ALL[task];
                match step {
                    // No link has both tasks that share a place.
                    0..=3 if task.place() == 0 && model[..SHARED].concat().contains(&link) => {}
                    0..=3 => {
                        let listed = &mut model[task as usize];
                        agenda.add(task, link);
                        if !listed.contains(&link) {
                            listed.push(link);
                        }
                    }
                    4 | 5 => {
                        let listed = &mut model[task as usize];
                        prop_assert_eq!(agenda.remove(task, link), listed.contains(&link));
                        listed.retain(|&other| other != link);
                    }
                    6 if link < 10 => {
                        let taken = agenda.take(task);
                        prop_assert_eq!(taken.links().collect::<Vec<_>>(), std::mem::take(&mut model[task as usize]));
                        agenda.give_back(taken);
                    }
                    _ => {
                        agenda.forget(link);
                        model.iter_mut().for_each(|listed| listed.retain(|&other| other != link));
                    }
                }
                for (task, listed) in Task::ALL.into_iter().zip(&model) {
                    prop_assert_eq!(&agenda.links(task).collect::<Vec<_>>(), listed);
                    prop_assert_eq!(agenda.len(task), listed.len());
                    prop_assert_eq!(agenda.is_empty(task), listed.is_empty());
                    prop_assert!((0..100).all(|link| agenda.has(task, link) == listed.contains(&link)));
                }
            }
        }
    }

    #[test]
    fn a_queue_of_vacant_entries_is_compacted() {
        let mut agenda = Agenda::default();
        (0..1000).for_each(|link| agenda.admit(link));
        agenda.add(Task::Connect, 0);
        for link in 1..1000 {
            agenda.add(Task::Connect, link);
            agenda.remove(Task::Connect, link);
        }
        assert!(agenda.queues[Task::Connect as usize].entries.len() <= COMPACT_ENTRIES);
        assert_eq!(agenda.links(Task::Connect).collect::<Vec<_>>(), [0]);
    }
}
