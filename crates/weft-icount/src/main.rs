//! Runs single operations of a provider, many times each, so that valgrind can count their instructions.
//!
//! Place in the data flow: outside of the product. `scripts/icount.py` runs this program under callgrind and reads what
//! that wrote. Two endpoints in one process, each in a domain of its own, drive any provider in any libfabric through
//! weft-client. One process, because then everything happens in one order, and the count is the same in every run.
//!
//! What callgrind is told, and what this program does for it:
//! - It collects while a function of `counted` runs (`--toggle-collect`), and at no other time: what a peer
//!   does, and what has to be done between two operations, is not counted.
//! - It writes what it has collected to a file, and forgets it, whenever [`measured`] ends (`--dump-after`).
//!   There are two files for each line on standard output: the first is the warm-up's, the second belongs to
//!   the line.
//!
//! Usage: `weft-icount LIBRARY PROVIDER ROUNDS`. A line is: operation, how often it was executed, counted
//! calls in all rounds. The exit status is 0, or 1 with the reason on standard error, or 2 for wrong usage.
//!
//! Invariants: no unsafe code; no wait without a bound. Without valgrind it runs just as well, and is of no use.

#![forbid(unsafe_code)]

mod counted;
mod pair;
mod rounds;

use std::path::Path;
use std::process::ExitCode;

use weft_client::{Error, Library};

use pair::Pair;
use rounds::{DELIVERED, OPERATIONS, Round};

/// Rounds before those that count: by then buffers have grown, and lazily bound symbols are bound.
const WARM_UP_ROUNDS: u32 = 64;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [library, provider, rounds] = words.as_slice() else { return usage() };
    let Ok(rounds) = rounds.parse() else { return usage() };
    match run(Path::new(library), provider, rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-icount: {provider}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: weft-icount LIBRARY PROVIDER ROUNDS");
    ExitCode::from(2)
}

fn run(library: &Path, provider: &str, rounds: u32) -> Result<(), Error> {
    let library = Library::load(library)?;
    for (operations, delivery) in [(OPERATIONS, false), (DELIVERED, true)] {
        let mut pair = Pair::open(library, provider, delivery)?;
        pair.meet()?;
        for &(name, each, round) in operations {
            measured(&mut pair, round, WARM_UP_ROUNDS)?;
            let calls = measured(&mut pair, round, rounds)?;
            println!("{name} {} {calls}", rounds * each);
        }
    }
    Ok(())
}

/// Some rounds of an operation. Returns how many calls were counted. Its name is known to callgrind.
#[inline(never)]
fn measured(pair: &mut Pair, round: Round, rounds: u32) -> Result<u32, Error> {
    let mut calls = 0;
    for _ in 0..rounds {
        calls += round(pair)?;
    }
    Ok(calls)
}
