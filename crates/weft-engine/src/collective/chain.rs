//! Schedules of empty messages as chains: the sends and receives in the order in which one must end before the next
//! begins.
//!
//! Place in the data flow: `engine/collectives/chains.rs` compiles the barrier of a group once, and has the device
//! perform the steps.

use super::{Schedule, Task};

/// One step of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The rank of the other member.
    pub partner: u32,
    /// The number of the message among those between the two in this direction.
    pub number: u32,
    /// Whether the message is sent or awaited.
    pub sends: bool,
}

/// The steps of a schedule. `None`: it moves bytes, or does not end with a receive that it waits for.
#[must_use]
pub fn chain(schedule: &Schedule) -> Option<Vec<Link>> {
    let mut steps = Vec::new();
    let mut receives = 0_usize;
    for task in schedule.tasks() {
        match *task {
            Task::Send { to, number, at } if at.len == 0 => steps.push(Link { partner: to, number, sends: true }),
            Task::Receive { at, .. } if at.len == 0 => receives += 1,
            Task::Wait { task } => {
                // A send that is waited for has left when its step has ended.
                if let &Task::Receive { from, number, .. } = schedule.tasks().get(task as usize)? {
                    steps.push(Link { partner: from, number, sends: false });
                }
            }
            _ => return None,
        }
    }
    let awaited = steps.iter().filter(|step| !step.sends).count();
    (awaited == receives && steps.last().is_some_and(|step| !step.sends)).then_some(steps)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::{HashMap, VecDeque};

    use super::super::{Operation, Overlap, Request, compile};
    use super::*;

    fn barrier(rank: u32, members: u32) -> Request {
        let (operation, overlap) = (Operation::Barrier, Overlap::None);
        Request { operation, rank, members, root: 0, count: 0, element: 1, overlap }
    }

    /// Members enter in any order, and perform their steps over queues of frames. None leaves before all have entered.
    #[test]
    fn chains_are_barriers() {
        for members in 2..=33 {
            let chains: Vec<Vec<Link>> =
                (0..members).map(|rank| chain(&compile(&barrier(rank, members)).unwrap()).unwrap()).collect();
            for last in [0, members / 2, members - 1] {
                let mut frames: HashMap<(u32, u32), VecDeque<u32>> = HashMap::new();
                let mut done = vec![0; members as usize];
                let mut turn = |rank: u32| {
                    let (steps, at) = (&chains[rank as usize], &mut done[rank as usize]);
                    while let Some(step) = steps.get(*at) {
                        if step.sends {
                            frames.entry((rank, step.partner)).or_default().push_back(step.number);
                        } else {
                            let Some(number) = frames.entry((step.partner, rank)).or_default().pop_front() else {
                                break;
                            };
                            assert_eq!(number, step.number);
                        }
                        *at += 1;
                    }
                    *at == steps.len()
                };
                for _ in 0..members {
                    assert!(!(0..members).filter(|&rank| rank != last).any(&mut turn), "{members}: left early");
                }
                let left = |_| (0..members).filter(|&rank| turn(rank)).count();
                assert_eq!((0..members).map(left).last(), Some(members as usize));
            }
        }
    }

    #[test]
    fn transfers_of_bytes_make_no_chain() {
        let request = Request { operation: Operation::AllReduce, count: 1, element: 8, ..barrier(0, 2) };
        assert_eq!(chain(&compile(&request).unwrap()), None);
        assert_eq!(chain(&compile(&barrier(0, 1)).unwrap()), None);
    }
}
