//! A transfer by address that both sides of a link copy at once, in a model checker. The checker tries all
//! interleavings (up to a limit of preemptions) and all values that a load may return under the C11 memory
//! model. Each byte is copied once, and a client that has seen the end of the transfer has the memory to
//! itself.
//!
//! The slots (`share.rs`) and their use by owner and helper (`transfer.rs`) are included as they ship. The
//! copied memory belongs to the checker, which reports an access that is not ordered after the previous one.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::arc_with_non_send_sync)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use weft_engine::nic::{LinkError, Share};

#[path = "../../weft-os/tests/model/mod.rs"]
mod model;
use model::check;

/// Imports of the files under test from their neighbours.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

mod link {
    pub(super) const TURN_BYTES: usize = 128 * 1024;
}

mod segment {
    use super::share::{SLOTS, Slot};

    #[derive(Clone, Copy)]
    pub(super) enum Role {
        Initiator,
        Acceptor,
    }

    /// The slots of the one side that is modelled.
    pub(super) struct Mapping([Slot; SLOTS as usize]);

    impl Mapping {
        pub(super) fn new() -> Self {
            Self(std::array::from_fn(|_| Slot::new(0)))
        }

        pub(super) fn share(&self, _owner: Role, index: u32) -> &Slot {
            &self.0[index as usize]
        }
    }
}

mod cma {
    //! Memory in pieces that count how often they were copied.

    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use weft_engine::nic::LinkError;

    const PIECE_BYTES: usize = 4096;

    pub(super) struct Memory(Vec<UnsafeCell<u32>>);

    impl Memory {
        pub(super) fn new(bytes: usize) -> Arc<Self> {
            Arc::new(Self((0..bytes / PIECE_BYTES).map(|_| UnsafeCell::new(0)).collect()))
        }

        /// The counts. The caller must have the memory to itself.
        pub(super) fn copied(&self) -> Vec<u32> {
            // SAFETY: the checker reports a concurrent access.
            self.0.iter().map(|piece| piece.with_mut(|times| unsafe { *times })).collect()
        }
    }

    /// A side's access to the memory.
    pub(super) struct Span {
        pub(super) memory: Arc<Memory>,
        pub(super) works: bool,
    }

    impl Span {
        pub(super) fn total_bytes(&self) -> usize {
            self.memory.0.len() * PIECE_BYTES
        }

        pub(super) fn copy(&self, _pid: i32, offset: usize, len: usize) -> Result<(), LinkError> {
            assert!(len > 0 && offset.is_multiple_of(PIECE_BYTES) && offset + len <= self.total_bytes());
            for piece in &self.memory.0[offset / PIECE_BYTES..(offset + len).div_ceil(PIECE_BYTES)] {
                // SAFETY: the checker reports a concurrent access.
                piece.with_mut(|times| unsafe { *times += u32::from(self.works) });
            }
            if self.works { Ok(()) } else { Err(LinkError::Access) }
        }
    }
}

#[path = "../src/shm/share.rs"]
mod share;
#[path = "../src/shm/transfer.rs"]
mod transfer;

use cma::{Memory, Span};
use segment::{Mapping, Role};
use share::SHARE_BYTES;
use transfer::{CopyJob, Help, Slots, Step};

/// The owner takes more than half of this length, and the helper the rest. If the helper is late, the owner
/// claims twice more.
const BYTES: usize = SHARE_BYTES + 8192;

/// The owner's side of a link.
struct Owner {
    map: Arc<Mapping>,
    slots: Slots,
}

impl Owner {
    /// `lap` is the lap of the last shared transfer.
    fn new(lap: u16) -> Self {
        Self { map: Arc::new(Mapping::new()), slots: Slots::new(lap) }
    }

    fn begin(&mut self, memory: &Arc<Memory>, works: bool) -> (CopyJob, Share) {
        let mut transfer = CopyJob::new(Span { memory: Arc::clone(memory), works }, 0);
        let share = transfer.offer(&self.map, Role::Initiator, &mut self.slots).unwrap();
        (transfer, share)
    }

    /// Advances a transfer until it has ended. The owner sleeps while the peer copies. (`Link::copy`,
    /// `Link::can_copy`.)
    fn end(&mut self, mut transfer: CopyJob) -> Result<(), LinkError> {
        loop {
            match transfer.step(0, &self.map, &mut self.slots) {
                Step::Moved(_) => {}
                Step::Waits => {
                    while !transfer.can_step(&self.map) {
                        loom::thread::yield_now();
                    }
                }
                Step::Ended(_, result) => return result,
                Step::Broken => panic!("the owner was misled"),
            }
        }
    }

    /// Starts the peer's help.
    fn helper(&self, memory: &Arc<Memory>, share: Share, works: bool) -> loom::thread::JoinHandle<()> {
        let map = Arc::clone(&self.map);
        let mut help = Help::new(Span { memory: Arc::clone(memory), works }, Role::Initiator, share, 0);
        loom::thread::spawn(move || {
            loop {
                match help.step(0, &map) {
                    Step::Moved(_) => {}
                    Step::Ended(..) => return,
                    Step::Waits | Step::Broken => panic!("the helper was misled"),
                }
            }
        })
    }
}

#[test]
fn each_byte_is_copied_once_before_the_end() {
    check(3, || {
        let (mut owner, memory) = (Owner::new(0), Memory::new(BYTES));
        let (transfer, share) = owner.begin(&memory, true);
        let helper = owner.helper(&memory, share, true);
        assert_eq!(owner.end(transfer), Ok(()));
        assert!(memory.copied().iter().all(|&times| times == 1));
        helper.join().unwrap();
    });
}

/// The slot serves the next transfer before the previous transfer's helper has left, or before it has come.
#[test]
fn a_late_helper_stays_out_of_the_next_transfer() {
    check(3, || {
        let mut owner = Owner::new(u16::MAX - 1);
        let memories = [Memory::new(BYTES), Memory::new(BYTES)];
        let helpers = [0, 1].map(|n| {
            let (transfer, share) = owner.begin(&memories[n], true);
            assert_eq!(share.0 & 0xffff, 0, "the same slot");
            let helper = owner.helper(&memories[n], share, true);
            assert_eq!(owner.end(transfer), Ok(()));
            assert!(memories[n].copied().iter().all(|&times| times == 1));
            helper
        });
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
    });
}

/// The owner or the helper fails to copy. Afterwards the owner has the memory to itself, and the slot is free
/// for another transfer.
fn fails(owner_works: bool, helper_works: bool) {
    check(3, move || {
        let (mut owner, memory) = (Owner::new(0), Memory::new(BYTES));
        let (transfer, share) = owner.begin(&memory, owner_works);
        let late = owner.helper(&memory, share, helper_works);
        let result = owner.end(transfer);
        let copied = memory.copied();
        assert!(copied.iter().all(|&times| times <= 1));
        assert!(result.is_err() || copied.iter().all(|&times| times == 1));

        let next = Memory::new(BYTES);
        let (transfer, share) = owner.begin(&next, true);
        let helper = owner.helper(&next, share, true);
        assert_eq!(owner.end(transfer), Ok(()));
        assert!(next.copied().iter().all(|&times| times == 1));
        [late, helper].into_iter().for_each(|helper| helper.join().unwrap());
    });
}

#[test]
fn an_owner_that_withdraws_waits_for_the_helpers_copies() {
    fails(false, true);
}

#[test]
fn a_helper_that_fails_ends_the_transfer() {
    fails(true, false);
}

#[test]
fn a_shared_transfer_fails_on_both_sides() {
    fails(false, false);
}
