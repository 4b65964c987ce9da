//! The shrinker: reduces a failing run to the smallest similar run that still fails.
//!
//! Place in the data flow: the caller passes a failing [`Plan`]. The shrinker plays it repeatedly with less
//! time and fewer operations, faults, kinds of operations and ranks. It keeps each smaller plan that still
//! fails. The remaining failure may be another symptom of the same cause.

use crate::plan::{Act, Plan, RANKS};

/// Returns a smaller plan that fails, after at most `plays` runs. `ops` is the number of operations of the
/// original run.
pub fn shrink(plan: Plan, ops: usize, plays: usize, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut best = plan;
    let mut left = plays;
    let mut attempt = |best: &mut Plan, smaller: Plan| {
        if left == 0 || smaller == *best {
            return false;
        }
        left -= 1;
        let failed = fails(&smaller);
        if failed {
            *best = smaller;
        }
        failed
    };
    loop {
        let before = best;
        // Bisects the number of operations for the first one that matters.
        let (mut enough, mut too_few) = (best.ops.min(ops), 0);
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            let smaller = Plan { ops: middle, ..best };
            if attempt(&mut best, smaller) {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        for hazard in best.hazards.iter().collect::<Vec<_>>() {
            let smaller = Plan { hazards: best.hazards.without(hazard), ..best };
            attempt(&mut best, smaller);
        }
        for act in Act::ALL.into_iter().filter(|act| before.acts.has(*act)) {
            if best.acts.is_only(act) {
                continue;
            }
            let smaller = Plan { acts: best.acts.without(act), ..best };
            attempt(&mut best, smaller);
        }
        for ranks in *RANKS.start()..best.ranks {
            let smaller = Plan { ranks, ..best };
            if attempt(&mut best, smaller) {
                break;
            }
        }
        while best.millis > 1 {
            let smaller = Plan { millis: best.millis / 2, ..best };
            if !attempt(&mut best, smaller) {
                break;
            }
        }
        if best == before {
            return best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hazard::{Hazard, Hazards};
    use crate::plan::Acts;

    #[test]
    fn unneeded_parts_are_removed() {
        let plan = Plan { ranks: 8, hazards: Hazards::all(), ..Plan::draw(1) };
        let needs = |plan: &Plan| {
            plan.ranks >= 3 && plan.hazards.has(Hazard::Reset) && plan.acts.has(Act::Write) && plan.ops >= 123
        };
        let small = shrink(plan, 2000, 1000, needs);
        assert_eq!((small.ranks, small.hazards, small.ops), (3, Hazards::NONE.with(Hazard::Reset), 123));
        assert!(small.acts.has(Act::Write) && !small.acts.has(Act::Send) && small.millis < 60_000);
        assert_eq!(shrink(plan, 2000, 1000, |_| false), plan);
        assert_eq!(Acts::ALL, plan.acts);
    }
}
