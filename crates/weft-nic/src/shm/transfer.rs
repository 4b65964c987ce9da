//! Transfers by address in progress: `get` and `put`, alone or shared with the peer, and help with the peer's
//! transfers.
//!
//! Place in the data flow: `Shm::copy` queues them at their link. `Link::bulk` advances
//! them in portions, which `cma.rs` copies.
//!
//! Invariant: when a transfer or a help has ended here, neither side uses this side's memory on its behalf
//! any longer. A peer that breaks the protocol may violate this, but could access the memory by address in
//! any case.

use weft_engine::nic::{LinkError, Share};

use super::cma::Span;
use super::link::TURN_BYTES;
use super::segment::{Mapping, Role};
use super::share::{Claim, Cut, End, SLOTS, Slot};

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This number of bytes was copied, and more remain.
    Moved(usize),
    /// The peer is copying the remaining bytes.
    Waits,
    /// The transfer has ended, after this number of bytes in the last step.
    Ended(usize, Result<(), LinkError>),
    /// The peer broke the protocol.
    Broken,
}

/// A get or put of this side.
pub(super) struct CopyJob {
    span: Span,
    /// Passed to `done`.
    pub(super) ctx: u64,
    /// Number of bytes copied, or of units claimed if the transfer is shared.
    moved: u64,
    shared: Option<Shared>,
}

/// The owner's state of a shared transfer.
struct Shared {
    share: Share,
    role: Role,
    cut: Cut,
    /// The owner has failed. The transfer ends when the helper has copied this number of claimed units.
    failed: Option<u64>,
}

/// The share slots of one side, and the number of their last use.
pub(super) struct Slots {
    used: [bool; SLOTS as usize],
    lap: u16,
}

/// A share consists of a slot and a lap.
fn share(index: usize, lap: u16) -> Share {
    Share(u32::from(lap) << 16 | u32::try_from(index).unwrap_or(0))
}

fn lap_of(share: Share) -> u64 {
    u64::from(share.0 >> 16)
}

fn slot_of(map: &Mapping, owner: Role, share: Share) -> &Slot {
    map.share(owner, (share.0 & 0xffff) % SLOTS)
}

impl Slots {
    /// All slots are free. `lap` is the last lap in use.
    pub(super) fn new(lap: u16) -> Self {
        Self { used: [false; SLOTS as usize], lap }
    }

    /// The last lap in use.
    pub(super) fn lap(&self) -> u16 {
        self.lap
    }

    /// Opens a free slot of this side.
    fn open(&mut self, map: &Mapping, role: Role) -> Option<Share> {
        let index = self.used.iter().position(|used| !used)?;
        self.used[index] = true;
        self.lap = self.lap.checked_add(1).unwrap_or(1);
        let share = share(index, self.lap);
        slot_of(map, role, share).open(lap_of(share));
        Some(share)
    }

    /// Makes a slot free again.
    fn release(&mut self, share: Share) {
        if let Some(used) = self.used.get_mut((share.0 & 0xffff) as usize) {
            *used = false;
        }
    }
}

impl CopyJob {
    pub(super) fn new(span: Span, ctx: u64) -> Self {
        Self { span, ctx, moved: 0, shared: None }
    }

    pub(super) fn total_bytes(&self) -> usize {
        self.span.total_bytes()
    }

    /// Shares the transfer with the peer, if a slot is free.
    pub(super) fn offer(&mut self, map: &Mapping, role: Role, slots: &mut Slots) -> Option<Share> {
        let share = slots.open(map, role)?;
        self.shared = Some(Shared { share, role, cut: Cut::new(self.span.total_bytes()), failed: None });
        Some(share)
    }

    /// Whether a step would make progress.
    pub(super) fn can_step(&self, map: &Mapping) -> bool {
        let Some(shared) = &self.shared else { return true };
        let slot = slot_of(map, shared.role, shared.share);
        let awaited = shared.failed.unwrap_or(shared.cut.units() - self.moved);
        slot.wants_help(lap_of(shared.share), shared.cut) || slot.help().is_none_or(|helped| helped >= awaited)
    }

    /// Advances the transfer by one portion.
    pub(super) fn step(&mut self, pid: i32, map: &Mapping, slots: &mut Slots) -> Step {
        let Some(shared) = &mut self.shared else { return self.step_alone(pid) };
        let slot = slot_of(map, shared.role, shared.share);
        let lap = lap_of(shared.share);
        let mut bytes = 0;
        if shared.failed.is_none() {
            match slot.claim(lap, shared.cut, End::Front, self.moved) {
                Claim::Bytes { offset, len, units } => {
                    self.moved += units;
                    match self.span.copy(pid, offset, len) {
                        Ok(()) => bytes = len,
                        Err(_) => shared.failed = Some(slot.close(lap)),
                    }
                }
                Claim::Nothing => {}
                Claim::Nonsense => return Step::Broken,
            }
        }
        let result = match (slot.help(), shared.failed) {
            (None, _) => Err(LinkError::Access),
            (Some(helped), Some(claimed)) if helped >= claimed => Err(LinkError::Access),
            (Some(_), Some(_)) => return Step::Waits,
            (Some(helped), None) if helped > shared.cut.units() - self.moved => return Step::Broken,
            (Some(helped), None) if helped + self.moved == shared.cut.units() => Ok(()),
            (Some(_), None) if bytes > 0 => return Step::Moved(bytes),
            (Some(_), None) => return Step::Waits,
        };
        slot.close(lap);
        slots.release(shared.share);
        Step::Ended(bytes, result)
    }

    fn step_alone(&mut self, pid: i32) -> Step {
        let at = usize::try_from(self.moved).unwrap_or(usize::MAX);
        let len = self.span.total_bytes().saturating_sub(at).min(TURN_BYTES);
        if let Err(why) = self.span.copy(pid, at, len) {
            return Step::Ended(0, Err(why));
        }
        self.moved += len as u64;
        if at + len == self.span.total_bytes() { Step::Ended(len, Ok(())) } else { Step::Moved(len) }
    }
}

/// This side's help with a transfer of the peer.
pub(super) struct Help {
    span: Span,
    share: Share,
    owner: Role,
    cut: Cut,
    taken: u64,
    /// Passed to `done`.
    pub(super) ctx: u64,
}

impl Help {
    pub(super) fn new(span: Span, owner: Role, share: Share, ctx: u64) -> Self {
        let cut = Cut::new(span.total_bytes());
        Self { span, share, owner, cut, taken: 0, ctx }
    }

    /// Copies one portion. After `Moved`, or `Ended` with an error, the caller must notify the owner. Never
    /// returns `Waits`.
    pub(super) fn step(&mut self, pid: i32, map: &Mapping) -> Step {
        let slot = slot_of(map, self.owner, self.share);
        match slot.claim(lap_of(self.share), self.cut, End::Back, self.taken) {
            Claim::Bytes { offset, len, units } => {
                self.taken += units;
                let copied = self.span.copy(pid, offset, len);
                slot.helped(copied.is_ok().then_some(units));
                // After a failure the owner may end the transfer at any time, and use the slot for another
                // one.
                if copied.is_ok() { Step::Moved(len) } else { Step::Ended(len, copied) }
            }
            Claim::Nothing => Step::Ended(0, Ok(())),
            Claim::Nonsense => Step::Broken,
        }
    }
}
