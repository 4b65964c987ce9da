//! Accesses to several pieces of memory: lists of pieces, and strided arrays.
//!
//! Place in the data flow: weft-gex-c makes lists of pieces or [`Strided`] of the client's arguments. Within the
//! neighbourhood, each piece is copied by the call. Other short pieces travel together (`pack`). Long ones are
//! accesses of the engine, which the call starts one after the other. The call awaits the end of all.

use crate::event::Slot;
use crate::far::Access;
use crate::job::Job;
use crate::memory::{self, Piece, Way};
use crate::pack::{self, Pack};
use crate::table::{Location, Place};
use crate::wait;

/// Copies between two lists of pieces of the same total length.
pub fn copy_lists(
    job: &Job,
    at: Location,
    way: Way,
    near: impl Iterator<Item = Piece>,
    far: impl Iterator<Item = Piece>,
) {
    let mut flow = Flow::new(job, at, way);
    walk(near, far, |near, far, bytes| flow.piece(near, far, bytes));
    flow.finish();
}

/// The pieces of one access.
struct Flow<'a> {
    job: &'a Job,
    at: Location,
    way: Way,
    /// The event of all pieces that messages move.
    event: Option<&'static Slot>,
    pack: Option<Pack>,
}

impl<'a> Flow<'a> {
    fn new(job: &'a Job, at: Location, way: Way) -> Self {
        Self { job, at, way, event: None, pack: None }
    }

    fn piece(&mut self, near: usize, far: usize, bytes: usize) {
        let Self { job, at, way, .. } = *self;
        let there = Piece { addr: far, bytes };
        if bytes > 0 && job.place(at, there) == Place::Remote {
            return self.remote(near, there);
        }
        match way {
            Way::Put => job.put(at, far, Piece { addr: near, bytes }),
            Way::Get => job.get_from(at, there, near),
        }
    }

    /// A piece that lies in a segment of another neighbourhood.
    fn remote(&mut self, near: usize, far: Piece) {
        let Self { job, at, way, .. } = *self;
        let event = *self.event.get_or_insert_with(Slot::take);
        if pack::takes(far.bytes) {
            return self.pack.get_or_insert_with(|| Pack::new(at, way)).add(job, event, near, far);
        }
        event.add();
        job.start_access(&Access { at, way, local: near, remote: far.addr, bytes: far.bytes }, event, None);
    }

    /// Waits for all pieces.
    fn finish(mut self) {
        let Some(event) = self.event else { return };
        if let Some(pack) = &mut self.pack {
            pack.send(self.job, event);
        }
        event.complete();
        wait::until(self.job, || event.test());
    }
}

/// Calls `copy` with the parts in which two lists correspond: address, address, length.
fn walk(
    near: impl Iterator<Item = Piece>,
    far: impl Iterator<Item = Piece>,
    mut copy: impl FnMut(usize, usize, usize),
) {
    let (mut near, mut far) = (near.filter(|piece| piece.bytes > 0), far.filter(|piece| piece.bytes > 0));
    let (mut here, mut there) = (near.next(), far.next());
    while let (Some(from), Some(to)) = (&mut here, &mut there) {
        let bytes = from.bytes.min(to.bytes);
        copy(from.addr, to.addr, bytes);
        for piece in [&mut *from, &mut *to] {
            piece.addr += bytes;
            piece.bytes -= bytes;
        }
        if from.bytes == 0 {
            here = near.next();
        }
        if to.bytes == 0 {
            there = far.next();
        }
    }
}

/// A strided access: elements of a length, in nested loops with a stride on each side.
pub struct Strided<'a> {
    /// The address here.
    pub near: usize,
    /// The strides here, innermost first, in bytes.
    pub near_strides: &'a [isize],
    /// The address in the target's process.
    pub far: usize,
    /// The strides there.
    pub far_strides: &'a [isize],
    /// Bytes of an element.
    pub bytes: usize,
    /// The number of turns of each loop.
    pub counts: &'a [usize],
}

/// The bytes that a strided side covers, relative to its address: the first, and behind the last.
fn extent(strides: &[isize], counts: &[usize], bytes: usize) -> Option<(isize, isize)> {
    let (mut first, mut last) = (0_isize, isize::try_from(bytes).ok()?);
    for (&stride, &count) in strides.iter().zip(counts) {
        let reach = stride.checked_mul(isize::try_from(count).ok()?.checked_sub(1)?)?;
        if reach < 0 {
            first = first.checked_add(reach)?;
        } else {
            last = last.checked_add(reach)?;
        }
    }
    Some((first, last))
}

impl Strided<'_> {
    /// Performs the access.
    pub fn copy(&self, job: &Job, at: Location, way: Way) {
        if self.bytes == 0 || self.counts.contains(&0) {
            return;
        }
        match (self.place(job, at), way) {
            (Place::Here(far), Way::Put) => {
                self.each(far, |near, far| memory::copy_at(far, Piece { addr: near, bytes: self.bytes }))
            }
            (Place::Here(far), Way::Get) => {
                self.each(far, |near, far| memory::copy_at(near, Piece { addr: far, bytes: self.bytes }))
            }
            (place, _) => {
                let mut flow = Flow::new(job, at, way);
                let bytes = self.bytes;
                match place {
                    Place::Remote => self.each(self.far, |near, far| flow.remote(near, Piece { addr: far, bytes })),
                    // The memory is not mapped here, or the arguments are wrong: each piece finds out.
                    _ => self.each(self.far, |near, far| flow.piece(near, far, bytes)),
                }
                flow.finish();
            }
        }
    }

    /// The place of the first element, if all lie in one segment.
    fn place(&self, job: &Job, at: Location) -> Place {
        let Some((first, last)) = extent(self.far_strides, self.counts, self.bytes) else { return Place::Nowhere };
        let Some(start) = self.far.checked_add_signed(first) else { return Place::Nowhere };
        match job.place(at, Piece { addr: start, bytes: last.abs_diff(first) }) {
            Place::Here(here) => here.checked_add_signed(-first).map_or(Place::Nowhere, Place::Here),
            other => other,
        }
    }

    /// Calls `copy` with the two addresses of each element.
    #[inline(always)]
    fn each(&self, far: usize, mut copy: impl FnMut(usize, usize)) {
        let Some((&inner, outer)) = self.counts.split_first() else { return copy(self.near, far) };
        let mut turns = vec![0_usize; outer.len()];
        let (mut near, mut far) = (self.near, far);
        loop {
            let (mut from, mut to) = (near, far);
            for _ in 0..inner {
                copy(from, to);
                from = from.wrapping_add_signed(self.near_strides[0]);
                to = to.wrapping_add_signed(self.far_strides[0]);
            }
            let mut level = 0;
            loop {
                let Some(turn) = turns.get_mut(level) else { return };
                let strides = [self.near_strides[level + 1], self.far_strides[level + 1]];
                *turn += 1;
                if *turn < outer[level] {
                    near = near.wrapping_add_signed(strides[0]);
                    far = far.wrapping_add_signed(strides[1]);
                    break;
                }
                let back = (outer[level] - 1).cast_signed();
                near = near.wrapping_add_signed(strides[0].wrapping_mul(-back));
                far = far.wrapping_add_signed(strides[1].wrapping_mul(-back));
                *turn = 0;
                level += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_where_either_side_ends() {
        let list = |pieces: &[(usize, usize)]| -> Vec<Piece> {
            pieces.iter().map(|&(addr, bytes)| Piece { addr, bytes }).collect()
        };
        let mut parts = Vec::new();
        let (near, far) = (list(&[(10, 3), (0, 0), (20, 5)]), list(&[(100, 4), (200, 4)]));
        walk(near.into_iter(), far.into_iter(), |near, far, bytes| parts.push((near, far, bytes)));
        assert_eq!(parts, [(10, 100, 3), (20, 103, 1), (21, 200, 4)]);
    }

    #[test]
    fn strides_are_nested_and_may_be_negative() {
        let access = Strided {
            near: 1000,
            near_strides: &[4, 100],
            far: 5000,
            far_strides: &[50, -8],
            bytes: 4,
            counts: &[2, 3],
        };
        let mut seen = Vec::new();
        access.each(access.far, |near, far| seen.push((near, far)));
        assert_eq!(seen, [(1000, 5000), (1004, 5050), (1100, 4992), (1104, 5042), (1200, 4984), (1204, 5034)]);
        assert_eq!(extent(access.far_strides, access.counts, 4), Some((-16, 54)));
        let mut count = 0;
        Strided { counts: &[], ..access }.each(0, |_, _| count += 1);
        assert_eq!(count, 1);
    }
}
