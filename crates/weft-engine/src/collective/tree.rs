//! The tree that every reduction follows, for any number of members and any algorithm.
//!
//! Place in the data flow: the reductions of [`super`] are built on it; the tests and the simulator's oracle
//! compare results with [`fold`].
//!
//! Let N be the largest power of two that is not above the member count. First each extra member N + i is
//! folded into member i. Then the values of the first N members are combined in pairs whose ranks differ in
//! bit 0, these pairs in pairs by bit 1, and so on. The lower rank's value is always the first operand.

/// The largest power of two that is not above the member count.
#[must_use]
pub const fn core_members(members: u32) -> u32 {
    if members == 0 { 0 } else { 1 << members.ilog2() }
}

/// Combines one value of each member, in rank order, as the tree says. `None` if there is no member.
pub fn fold<T>(values: Vec<T>, mut combine: impl FnMut(T, T) -> T) -> Option<T> {
    let members = u32::try_from(values.len()).ok()?;
    let core = core_members(members) as usize;
    let mut values: Vec<Option<T>> = values.into_iter().map(Some).collect();
    for (low, high) in pairs(members) {
        let (first, second) = (values[low as usize].take()?, values[high as usize].take()?);
        values[low as usize] = Some(combine(first, second));
    }
    values.truncate(core.max(1));
    values.into_iter().next().flatten()
}

/// The combinations in order: the value at the second rank is folded into the value at the first.
pub fn pairs(members: u32) -> impl Iterator<Item = (u32, u32)> {
    let core = core_members(members);
    let extra = (core..members).map(move |high| (high - core, high));
    let bits = (0..core.checked_ilog2().unwrap_or(0)).flat_map(move |bit| {
        let distance = 1 << bit;
        (0..core).step_by(2 * distance as usize).map(move |low| (low, low + distance))
    });
    extra.chain(bits)
}
