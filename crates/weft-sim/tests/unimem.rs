//! The simulated card of Unimem under whole engines: copies, registrations, the figures of the paper, and delivery with
//! little special memory.
#![allow(clippy::unwrap_used)]

use weft_engine::api::Config;
use weft_scale::Profile;
use weft_scale::figure::Effort;
use weft_scale::profile::Costs;
use weft_sim::unimem::{Pair, Switches, figures};
use weft_sim::{Fabric, FabricConfig, Harness, Movement, Place, Recv, Send};

fn costs() -> Costs {
    Profile::named("unimem").unwrap().costs
}

fn moved(switches: Switches) -> Vec<(usize, Movement)> {
    let mut pair = Pair::new(&costs(), switches, 5000);
    let moved = pair.movements(5000);
    // Native RMA is announced by a message that does not fit into the mailbox.
    let moved = moved.iter().filter(|moved| moved.what == Movement::Register || moved.bytes >= 5000);
    moved.map(|moved| (moved.ep, moved.what)).collect()
}

/// The improvements of the paper, by the trace of a message: four copies, then three, and no repeated registration.
#[test]
fn the_trace_shows_four_copies_and_then_three() {
    use Movement::{Copy, Dma, Register};
    use Place::{Bounce, Ordinary, Special};
    let four = [
        (0, Copy(Ordinary, Bounce)),
        (0, Dma(Bounce, Bounce)),
        (1, Copy(Bounce, Ordinary)),
        (1, Copy(Ordinary, Ordinary)),
    ];
    let registers: Vec<_> = four[..1].iter().chain(&[(0, Register)]).chain(&four[1..]).copied().collect();
    assert_eq!(moved(Switches::FIRST), registers);
    assert_eq!(moved(Switches::CACHED), four);
    let three = [(0, Copy(Ordinary, Bounce)), (0, Dma(Bounce, Special)), (1, Copy(Special, Ordinary))];
    assert_eq!(moved(Switches::MEASURED), three);
    assert_eq!(moved(Switches::DIRECT), [(0, Dma(Special, Special))]);
    // The receiver's card reads.
    assert_eq!(moved(Switches::RMA), [(1, Dma(Special, Special))]);
}

/// A block is registered once for all messages.
#[test]
fn a_block_is_registered_once() {
    let mut pair = Pair::new(&costs(), Switches::DIRECT, 4096);
    let registered = |pair: &Pair| pair.cluster().fabric().stats().reached;
    let before = registered(&pair);
    assert_eq!(before, 2, "one block at each side");
    (0..100).for_each(|_| pair.message(0, 1000));
    assert_eq!(registered(&pair), before);
}

#[test]
fn special_memory_is_limited() {
    let fabric = Fabric::new(FabricConfig::unimem(&costs(), Switches::DIRECT));
    drop(fabric.nic());
    let most = 64 << 20;
    assert!(fabric.alloc_special(0, most + 1).is_none());
    let whole = fabric.alloc_special(0, most).unwrap();
    assert!(fabric.alloc_special(0, 1).is_none());
    fabric.free(whole);
    assert!(fabric.alloc_special(0, most).is_some());
}

/// The figures of the paper come out of whole engines, and agree with those over costs.
#[test]
fn published_numbers_come_out_of_whole_engines() {
    let figures = figures(&Profile::named("unimem").unwrap(), Effort::Full);
    for figure in &figures {
        figure.text.iter().for_each(|line| println!("{line}"));
        for line in &figure.lines {
            println!("{}: {:.2?}", line.name, line.points);
        }
        for compared in &figure.compared {
            println!("{}: {} ({})", compared.what, compared.ours_text(), compared.published);
        }
    }
    let compared = figures.iter().flat_map(|figure| &figure.compared);
    let wrong: Vec<_> = compared.filter(|compared| !compared.agrees()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Messages of all lengths arrive in both directions although their pieces wait for bounce buffers.
#[test]
fn messages_arrive_with_little_special_memory() {
    for switches in [Switches::MEASURED, Switches::EAGER, Switches::MAILBOX, Switches::RMA] {
        let mut fabric = FabricConfig::unimem(&costs(), switches);
        fabric.card.as_mut().unwrap().bounce_bytes = 8192;
        fabric.segment_bytes = 3000;
        let mut h = Harness::new(fabric, Config::default(), 4);
        for n in 0..60_u64 {
            let (from, to) = ((n % 4) as usize, ((n * 7 + 1) % 4) as usize);
            let len = [0, 8, 24, 100, 5000, 40_000][(n % 6) as usize];
            h.recv(to, &Recv { tag: Some((n, 0)), len, ..Recv::default() }).unwrap();
            h.send(from, to, &Send { tag: Some(n), len, ..Send::default() }).unwrap();
        }
        h.drive().unwrap();
        assert_eq!(h.finish(), Vec::<String>::new(), "{switches:?}");
    }
}
