//! The claims of a shared transfer, step by step. `tests/loom_share.rs` tests concurrent claims.

use proptest::prelude::*;

use crate::shm::share::{COUNT_BITS, COUNT_MASK, Claim, Cut, End, Slot};

proptest! {
    /// In any order of claims, each byte is claimed exactly once.
    #[test]
    fn claims_cover_the_transfer_once(total in 1usize..3_000_000, turns in proptest::collection::vec(any::<bool>(), 64)) {
        let (slot, cut) = (Slot::new(0), Cut::new(total));
        slot.open(7);
        let (mut taken, mut covered) = ([0u64; 2], vec![]);
        for front in turns.into_iter().chain([true; 64]) {
            let end = if front { End::Front } else { End::Back };
            match slot.claim(7, cut, end, taken[usize::from(front)]) {
                Claim::Bytes { offset, len, units } => {
                    taken[usize::from(front)] += units;
                    covered.push((offset, len));
                }
                Claim::Nothing => prop_assert!(!slot.wants_help(7, cut)),
                Claim::Nonsense => prop_assert!(false),
            }
        }
        covered.sort_unstable();
        let mut at = 0;
        for (offset, len) in covered {
            prop_assert_eq!(offset, at);
            at += len;
        }
        prop_assert_eq!(at, total);
        prop_assert_eq!(taken[0] + taken[1], cut.units());
    }

    /// For any word that the peer writes, a claim lies within the transfer and follows the side's earlier
    /// claims.
    #[test]
    fn nonsense_claims_nothing_outside(word in any::<u64>(), total in 1usize..3_000_000, taken in 0u64..800) {
        let cut = Cut::new(total);
        for (end, bits) in [(End::Front, word & COUNT_MASK), (End::Back, word >> COUNT_BITS & COUNT_MASK)] {
            if let Claim::Bytes { offset, len, units } = Slot::new(word).claim(word >> 48, cut, end, taken) {
                prop_assert!(len > 0 && offset + len <= total);
                prop_assert!(bits == taken && taken + units <= cut.units());
            }
        }
    }
}

#[test]
fn a_late_helper_finds_nothing() {
    let (slot, cut) = (Slot::new(0), Cut::new(1 << 20));
    slot.open(3);
    assert!(slot.wants_help(3, cut));
    assert_eq!(slot.close(3), 0);
    assert_eq!(slot.claim(3, cut, End::Back, 0), Claim::Nothing);
    slot.open(4);
    assert_eq!(slot.claim(3, cut, End::Back, 0), Claim::Nothing);
    assert!(matches!(slot.claim(4, cut, End::Back, 0), Claim::Bytes { .. }));
    slot.helped(Some(2));
    assert_eq!(slot.help(), Some(2));
    slot.helped(None);
    assert_eq!(slot.help(), None);
    assert!(slot.close(4) > 0);
}

#[test]
fn a_terabyte_has_few_enough_units() {
    let cut = Cut::new(1 << 42);
    assert!(cut.units() <= COUNT_MASK);
    assert!(matches!(cut.bytes(cut.units() - 1, 1), Claim::Bytes { len, .. } if len > 0));
}
