//! The guard of a mapped region in a model checker, which tries all interleavings (up to a limit of preemptions) and
//! all values that a load may return under the C11 memory model.
//!
//! `guard.rs` is included as it ships. A peer writes to a region while its owner revokes it. The region belongs to the
//! checker, which reports an access that is not ordered after the previous one: the owner must find what the peer has
//! written, and the peer must not write once the owner has taken the region back.
#![allow(clippy::arc_with_non_send_sync, clippy::unwrap_used, unsafe_code)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;

#[path = "../src/mapped/guard.rs"]
mod guard;
#[path = "../../weft-os/tests/model/mod.rs"]
mod model;

/// Imports of the file under test from its neighbour.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

struct Shared {
    word: AtomicU64,
    region: UnsafeCell<u64>,
}

#[test]
fn a_revoked_region_belongs_to_its_owner() {
    model::check(4, || {
        let shared = Arc::new(Shared { word: AtomicU64::new(0), region: UnsafeCell::new(0) });
        let peer = Arc::clone(&shared);
        let thread = loom::thread::spawn(move || {
            let mut written = 0;
            for value in 1..=2 {
                if guard::enter(&peer.word) {
                    // SAFETY: the cell is alive, and the checker reports any access beside this one.
                    peer.region.with_mut(|region| unsafe { region.write(value) });
                    written = value;
                    guard::leave(&peer.word);
                }
            }
            written
        });
        guard::revoke(&shared.word);
        while !guard::is_idle(&shared.word) {
            loom::thread::yield_now();
        }
        // SAFETY: as above.
        let found = shared.region.with(|region| unsafe { region.read() });
        // SAFETY: as above.
        shared.region.with_mut(|region| unsafe { region.write(found) });
        assert_eq!(found, thread.join().unwrap(), "every access that was counted is found");
        assert!(guard::is_revoked(&shared.word));
    });
}
