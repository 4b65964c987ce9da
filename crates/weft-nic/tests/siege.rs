//! A short run of each row of `benches/siege.rs`. The endpoints survive the attack, and the messages of their
//! peers arrive intact. The benchmark measures the costs of the attacks.
#![allow(clippy::unwrap_used, unreachable_pub, dead_code)]

#[path = "../benches/siege.rs"]
mod siege;

use std::process::Command;
use std::time::Duration;

#[test]
fn peers_continue_under_every_attack() {
    let scale = siege::Scale { moments: 2, moment: Duration::from_millis(50), least: 5, many: 300, open: 200 };
    let mut peer = Command::new(std::env::current_exe().unwrap());
    peer.args(["--exact", "the_hostile_peer", "--nocapture"]);
    siege::run(&scale, peer);
}

/// Run by the test above in a process of its own, as the hostile peer.
#[test]
fn the_hostile_peer() {
    siege::overwrite();
}
