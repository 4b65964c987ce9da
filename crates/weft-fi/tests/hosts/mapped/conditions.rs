//! Conditions under which mapped memory must hold: other ways to the same numbers, forks, advice, and limits.

use std::sync::atomic::Ordering;

use rustix::process::Resource;
use weft_engine::amo::{Amo, Form, Op, Type};
use weft_fi_sys::*;

use super::{Block, KEY, LEN, Pair, REMOTE};
use crate::atomics::calls::{Args as AtomicArgs, Way};
use crate::client::{Lib, close};
use crate::forks::printed_at_exit;
use crate::published::limited;
use crate::side::{Args, Side, off, pattern, scenes, until, works};

pub(super) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("all ways to one number", all_ways_to_one_number),
            ("a child of the owner", a_child_of_the_owner),
            ("advice", advice),
            ("limits of allocation", limits_of_allocation),
            ("no descriptor for a peer", no_descriptor_for_a_peer),
            ("no descriptor at the end", no_descriptor_at_the_end),
        ],
    );
}

/// Opens an endpoint by which its peers are reached by TCP or, if the group has it, by shared memory.
fn side_by(lib: &Lib, tcp: bool) -> Side<'_> {
    if off("FI_WEFT_SHM") {
        return Side::new(lib);
    }
    // A domain reads the variable when it is opened. Threads of weft read none.
    unsafe { std::env::set_var("FI_WEFT_SHM", if tcp { "0" } else { "1" }) };
    let side = Side::new(lib);
    unsafe { std::env::set_var("FI_WEFT_SHM", "1") };
    side
}

/// An endpoint of another thread. The test serializes the calls.
struct Sent<'a>(Side<'a>);
unsafe impl Send for Sent<'_> {}

/// More adders than processors, of which two add by TCP, and the client's own atomics. No addition is lost, and no two
/// fetch the same number.
fn all_ways_to_one_number(lib: &Lib) {
    const ROUNDS: usize = 100;
    const ADDERS: usize = 6;
    let b = Side::new(lib);
    let block = Block::new(&b, LEN).unwrap();
    let region = b.register(block.bytes(), REMOTE, KEY);
    let add = |side: &Side<'_>, to_b: u64| {
        let amo = Amo::new(Form::Fetch, Type::Uint64, Op::Sum).unwrap();
        let mut one = 1_u64.to_ne_bytes();
        (0..ROUNDS)
            .map(|_| {
                let mut old = [0; 8];
                let args = AtomicArgs {
                    buf: one.as_mut_ptr(),
                    result: old.as_mut_ptr(),
                    key: KEY,
                    ..AtomicArgs::new(amo, 1, to_b)
                };
                until(|| (args.run(side.ep, Way::Plain) == 0).then_some(()));
                side.next(&[]).done();
                u64::from_ne_bytes(old)
            })
            .collect::<Vec<_>>()
    };
    let sides: Vec<Sent<'_>> = (0..ADDERS).map(|n| Sent(side_by(lib, n % 3 == 2))).collect();
    let name = b.name();
    let mut fetched = std::thread::scope(|scope| {
        let adders: Vec<_> = sides
            .into_iter()
            .map(|side| {
                let name = &name;
                scope.spawn(move || {
                    let Sent(side) = { side };
                    let to_b = side.insert(name);
                    add(&side, to_b)
                })
            })
            .collect();
        let mut own = Vec::new();
        while adders.iter().any(|adder| !adder.is_finished()) {
            b.progress();
            if own.len() < ROUNDS {
                own.push(block.word(0).fetch_add(1, Ordering::Relaxed));
            }
        }
        adders.into_iter().flat_map(|adder| adder.join().unwrap()).chain(own).collect::<Vec<u64>>()
    });
    let sum = block.word(0).load(Ordering::Relaxed);
    fetched.sort_unstable();
    assert!(fetched.iter().copied().eq(0..sum), "{sum}: {fetched:?}");
    assert_eq!(close(region), 0);
}

impl Pair<'_> {
    /// A write that must reach the owner's memory, and a read of it.
    #[track_caller]
    fn reaches(&self, value: u8, direct: bool) {
        let mut bytes = [value; 100];
        self.run("a write", direct, || self.a.run("fi_write", &self.args(&mut bytes)));
        assert_eq!(self.target.bytes()[..100], bytes);
        self.target.bytes()[50] = value.wrapping_add(1);
        self.run("a read", direct, || self.a.run("fi_read", &self.args(&mut bytes)));
        assert_eq!(self.target.bytes()[..100], bytes);
    }
}

/// The owner forks. The child gives advice, closes the objects, or exits. The owner and its peer go on.
fn a_child_of_the_owner(lib: &Lib) {
    let mut pair = Pair::new(lib, true, 0, false);
    let advise = |pair: &Pair<'_>| {
        let start = pair.target.bytes().as_mut_ptr().cast();
        assert_eq!(unsafe { libc::madvise(start, LEN, libc::MADV_DONTNEED) }, 0);
    };
    for value in 1..4 {
        pair.reaches(value, pair.is_direct());
        let printed = printed_at_exit(|| match value {
            1 => {}
            2 => advise(&pair),
            _ => assert_eq!(close(pair.region), 0),
        });
        assert_eq!((printed.as_str(), pair.target.bytes()[0]), ("", value));
        pair.settle();
        pair.reaches(10 + value, pair.is_direct());
    }
    // The region still ends as it should.
    assert_eq!(close(pair.region), 0);
    pair.a.start("fi_write", &pair.args(&mut [99; 8]), &[&pair.b]);
    assert_eq!(pair.a.next(&[&pair.b]).failed().err, FI_EKEYREJECTED);
    assert_eq!(pair.target.bytes()[0], 13);
    pair.region = pair.b.register(pair.target.bytes(), REMOTE, KEY);
    pair.settle();
    pair.reaches(7, pair.is_direct());
    pair.close();
}

/// Advice of the owner. The pages stay those that the peer has, whether their content stays or not.
fn advice(lib: &Lib) {
    let pair = Pair::new(lib, true, 0, false);
    let advices = [libc::MADV_DONTNEED, libc::MADV_REMOVE, libc::MADV_HUGEPAGE, libc::MADV_DONTFORK, libc::MADV_COLD];
    for (value, advice) in (1..).zip(advices) {
        pair.reaches(value, pair.is_direct());
        let result = unsafe { libc::madvise(pair.target.bytes().as_mut_ptr().cast(), LEN, advice) };
        assert!(result == 0 || advice == libc::MADV_HUGEPAGE, "advice {advice}");
        assert_eq!(pair.target.bytes()[0], if advice == libc::MADV_REMOVE { 0 } else { value }, "advice {advice}");
        pair.reaches(100 + value, pair.is_direct());
    }
    pair.close();
}

/// Limits refuse an allocation or do not matter. The process gets no signal.
fn limits_of_allocation(lib: &Lib) {
    let side = Side::new(lib);
    let refused = |what, limit| limited(what, limit, || Block::new(&side, LEN).err());
    assert_eq!(refused(Resource::Fsize, LEN as u64 - 1), Some(-FI_ENOMEM));
    assert_eq!(refused(Resource::Nofile, 0), Some(-FI_ENOMEM));
    assert_eq!(refused(Resource::Fsize, LEN as u64), None);
    limited(Resource::Memlock, 0, || {
        let pair = Pair::new(lib, true, 0, false);
        pair.reaches(1, pair.is_direct());
        pair.close();
    });
    for len in [0, usize::MAX] {
        assert!(Block::new(&side, len).is_err());
    }
}

/// Without a descriptor for the peer's guard the accesses are messages.
fn no_descriptor_for_a_peer(lib: &Lib) {
    let (a, b, to_b, _) = crate::side::pair(lib);
    works(&a, &b, to_b);
    let block = Block::new(&b, LEN).unwrap();
    let region = b.register(block.bytes(), REMOTE, KEY);
    limited(Resource::Nofile, 0, || {
        for n in 1..50_u8 {
            a.start("fi_write", &Args { key: KEY, ..Args::new(&mut [n; 8], to_b) }, &[&b]);
            a.next(&[&b]).done();
            assert_eq!(block.bytes()[..8], [n; 8]);
        }
    });
    assert_eq!(close(region), 0);
}

/// Without a descriptor for other pages the end of a region still separates the owner from its peer. The memory keeps
/// its content, and further regions on it are not mapped.
fn no_descriptor_at_the_end(lib: &Lib) {
    let mut pair = Pair::new(lib, true, 0, false);
    pair.reaches(5, pair.is_direct());
    pair.target.bytes()[LEN - 1] = 9;
    limited(Resource::Nofile, 0, || assert_eq!(close(pair.region), 0));
    assert_eq!((pair.target.bytes()[0], pair.target.bytes()[LEN - 1]), (5, 9));
    pair.a.start("fi_write", &pair.args(pattern(8)), &[&pair.b]);
    assert_eq!(pair.a.next(&[&pair.b]).failed().err, FI_EKEYREJECTED);
    pair.region = pair.b.register(pair.target.bytes(), REMOTE, KEY);
    for _ in 0..5 {
        pair.a.start("fi_write", &pair.args(&mut [6; 8]), &[&pair.b]);
        pair.a.next(&[&pair.b]).done();
    }
    assert_eq!(pair.target.bytes()[..8], [6; 8]);
    pair.close();
}
