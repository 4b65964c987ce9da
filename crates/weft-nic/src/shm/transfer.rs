//! Transfers by address under way: `get` and `put`, alone or shared with the peer, and our help with the peer's.
//!
//! Place in the data flow: `Shm::get`, `put` and `assist` queue them at their link; `Link::bulk` moves them
//! on in portions, which `cma.rs` copies.
//!
//! Invariant: when a transfer or a help has ended here, neither side copies into or out of our memory on its
//! behalf, unless the peer broke the rules (then it could have done so anyhow: it may reach our memory by
//! address).

use weft_engine::nic::{LinkError, Share};

use super::cma::Span;
use super::link::TURN_BYTES;
use super::segment::{Mapping, Role};
use super::share::{Claim, Cut, End, SLOTS, Slot};

/// What a step brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So many bytes were copied, and more remain.
    Moved(usize),
    /// The peer is at work on the rest.
    Waits,
    /// It has ended, after so many bytes more.
    Ended(usize, Result<(), LinkError>),
    /// The peer broke the protocol.
    Broken,
}

/// Our own get or put.
pub(super) struct Transfer {
    span: Span,
    /// Comes back with `done`.
    pub(super) ctx: u64,
    /// Alone: bytes copied. Shared: units claimed.
    moved: u64,
    shared: Option<Shared>,
}

/// The owner's account of a shared transfer.
struct Shared {
    share: Share,
    role: Role,
    cut: Cut,
    /// We failed, and wait until the helper has put down the so many units that it had claimed.
    failed: Option<u64>,
}

/// The slots of one side, and their laps.
pub(super) struct Slots {
    used: [bool; SLOTS as usize],
    lap: u16,
}

/// A share is a slot and a lap.
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
    /// All free. `lap`: the last one.
    pub(super) fn new(lap: u16) -> Self {
        Self { used: [false; SLOTS as usize], lap }
    }

    /// The last lap.
    pub(super) fn lap(&self) -> u16 {
        self.lap
    }

    /// A free slot of ours, opened.
    fn open(&mut self, map: &Mapping, role: Role) -> Option<Share> {
        let index = self.used.iter().position(|used| !used)?;
        self.used[index] = true;
        self.lap = self.lap.checked_add(1).unwrap_or(1);
        let share = share(index, self.lap);
        slot_of(map, role, share).open(lap_of(share));
        Some(share)
    }

    /// Back to the free ones.
    fn release(&mut self, share: Share) {
        if let Some(used) = self.used.get_mut((share.0 & 0xffff) as usize) {
            *used = false;
        }
    }
}

impl Transfer {
    pub(super) fn new(span: Span, ctx: u64) -> Self {
        Self { span, ctx, moved: 0, shared: None }
    }

    pub(super) fn total_bytes(&self) -> usize {
        self.span.total_bytes()
    }

    /// Lets the peer help, if a slot is free.
    pub(super) fn offer(&mut self, map: &Mapping, role: Role, slots: &mut Slots) -> Option<Share> {
        let share = slots.open(map, role)?;
        self.shared = Some(Shared { share, role, cut: Cut::new(self.span.total_bytes()), failed: None });
        Some(share)
    }

    /// Whether a step would find something to do.
    pub(super) fn can_step(&self, map: &Mapping) -> bool {
        let Some(shared) = &self.shared else { return true };
        let slot = slot_of(map, shared.role, shared.share);
        let awaited = shared.failed.unwrap_or(shared.cut.units() - self.moved);
        slot.wants_help(lap_of(shared.share), shared.cut) || slot.help().is_none_or(|helped| helped >= awaited)
    }

    /// Moves it on by one portion.
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

/// Our help with a transfer of the peer's.
pub(super) struct Help {
    span: Span,
    share: Share,
    owner: Role,
    cut: Cut,
    taken: u64,
    /// Comes back with `done`.
    pub(super) ctx: u64,
}

impl Help {
    pub(super) fn new(span: Span, owner: Role, share: Share, ctx: u64) -> Self {
        let cut = Cut::new(span.total_bytes());
        Self { span, share, owner, cut, taken: 0, ctx }
    }

    /// Copies one portion. `Moved`, or `Ended` with an error: the owner must be told. Never `Waits`.
    pub(super) fn step(&mut self, pid: i32, map: &Mapping) -> Step {
        let slot = slot_of(map, self.owner, self.share);
        match slot.claim(lap_of(self.share), self.cut, End::Back, self.taken) {
            Claim::Bytes { offset, len, units } => {
                self.taken += units;
                let copied = self.span.copy(pid, offset, len);
                slot.helped(copied.is_ok().then_some(units));
                // After a failure the owner may end the transfer at any time, and use the slot for another one.
                if copied.is_ok() { Step::Moved(len) } else { Step::Ended(len, copied) }
            }
            Claim::Nothing => Step::Ended(0, Ok(())),
            Claim::Nonsense => Step::Broken,
        }
    }
}
