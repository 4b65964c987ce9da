//! The table of collectives: every operation, root, type and arithmetic operation, with groups of many sizes.
//!
//! The ranks of each set run against the numbers of its members. WEFT_TABLE_MEMBERS lists the sizes of the groups, with
//! ranges such as 1-17,33. `make test-long` sets it.

use weft_engine::amo::{OPS, Op, Reduction, Type};
use weft_fi_sys::fi_progress;

use crate::client::Lib;
use crate::collective_case::{Case, EVERY, What, run};
use crate::collectives::{Member, form, gather_members, introduce, leave};
use crate::rig::MODELS;
use crate::side::scenes;

/// The variable with the sizes of the groups.
pub(crate) const MEMBERS: &str = "WEFT_TABLE_MEMBERS";
/// Operations that are under way at a time.
const AT_A_TIME: usize = 32;

pub(crate) fn all(lib: &Lib) {
    scenes(lib, &[("table", |lib| table(lib, false))]);
}

/// Every third member has no shared memory. The others share it.
pub(crate) fn mixed(lib: &Lib) {
    scenes(lib, &[("table", |lib| table(lib, true))]);
}

fn sizes() -> Vec<usize> {
    let list = std::env::var(MEMBERS).unwrap_or_else(|_| "4,7".to_owned());
    let sizes = list.split(',').flat_map(|piece| {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        first.parse().unwrap()..=last.parse().unwrap()
    });
    sizes.collect()
}

fn table(lib: &Lib, mixed: bool) {
    for size in sizes() {
        for progress in MODELS {
            let members = if mixed { mix(lib, size, progress) } else { gather_members(lib, size, progress) };
            let list: Vec<usize> = (0..size).rev().collect();
            let groups = form(&members, &list);
            let offered = members[0].offered_types();
            let cases: Vec<Case> =
                roots(size).into_iter().chain(reductions(size, &offered)).chain(types(size, &offered)).collect();
            for cases in cases.chunks(AT_A_TIME) {
                run(&members, &list, &groups, cases, false);
            }
            println!("cases: {size} members, progress {progress}: {} operations", cases.len());
            leave(members, groups);
        }
    }
}

/// Members of which every third one has no shared memory.
fn mix(lib: &Lib, size: usize, progress: fi_progress) -> Vec<Member<'_>> {
    let member = |number: usize| {
        // A domain reads the variable when it is opened. Threads of weft read none.
        unsafe { std::env::set_var("FI_WEFT_SHM", if number % 3 == 1 { "0" } else { "1" }) };
        Member::new(lib, progress)
    };
    introduce((0..size).map(member).collect())
}

/// Every operation with every root and several lengths.
fn roots(size: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for what in EVERY {
        for root in 0..size {
            for count in [1, 5, 700] {
                cases.push(Case::new(what, root, count, cases.len() as u64));
            }
        }
    }
    cases
}

/// Every reduction of every type.
fn reductions(size: usize, offered: &[Type]) -> Vec<Case> {
    let mut cases = Vec::new();
    for what in [What::AllReduce, What::Reduce, What::ReduceScatter] {
        for (ty, op) in offered.iter().flat_map(|&ty| OPS.iter().map(move |op| (ty, op.op))) {
            if Reduction::new(ty, op).is_some() {
                let root = cases.len() % size;
                cases.push(Case::new(what, root, 3, cases.len() as u64).on(ty, op));
            }
        }
    }
    cases
}

/// Every operation that moves numbers, with every type.
fn types(size: usize, offered: &[Type]) -> Vec<Case> {
    let mut cases = Vec::new();
    for what in [What::Broadcast, What::AllToAll, What::AllGather, What::Scatter, What::Gather] {
        for &ty in offered {
            let case = Case::new(what, cases.len() % size, 3, cases.len() as u64);
            cases.push(case.on(ty, Op::Sum));
        }
    }
    cases
}
