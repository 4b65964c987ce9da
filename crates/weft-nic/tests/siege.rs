//! A short run of each row of `benches/siege.rs`: endpoints come through the attack, and the messages of
//! their peers are what was sent. What the attacks cost is measured there, by hand.
#![allow(clippy::unwrap_used, unreachable_pub, dead_code)]

#[path = "../benches/siege.rs"]
mod siege;

use std::process::Command;
use std::time::Duration;

#[test]
fn peers_go_on_under_every_attack() {
    let scale = siege::Scale { moments: 2, moment: Duration::from_millis(50), least: 5, many: 300, open: 200 };
    let mut peer = Command::new(std::env::current_exe().unwrap());
    peer.args(["--exact", "the_hostile_peer", "--nocapture"]);
    siege::run(&scale, peer);
}

/// Where this program is run to be one.
#[test]
fn the_hostile_peer() {
    siege::overwrite();
}
