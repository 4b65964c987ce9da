//! Runs single operations of a provider, many times each, so that valgrind can count their instructions.
//!
//! Place in the data flow: outside of the product. `scripts/icount.py` runs this program under callgrind and reads
//! callgrind's output. Two endpoints in one process, each in a domain of its own, drive any provider in any libfabric
//! through weft-client. A single process has a fixed order of events, so the count is the same in every run.
//!
//! callgrind and this program cooperate as follows:
//! - callgrind collects only while a function of `counted` runs (`--toggle-collect`). The work of the peer and the work
//!   between two operations are not counted.
//! - callgrind writes its counts to a file and resets them whenever [`measured`] ends (`--dump-after`). Each line on
//!   standard output has two files: the first belongs to the warm-up, the second to the line.
//!
//! Usage: `weft-icount LIBRARY PROVIDER ROUNDS`. A line contains the operation, the number of executions, and the
//! number of counted calls in all rounds. The exit status is 0, or 1 with the reason on standard error, or 2 for wrong
//! usage.
//!
//! Invariants: no unsafe code; no wait without a bound. The program also runs without valgrind, to no effect.

#![forbid(unsafe_code)]

mod counted;
mod pair;
mod rounds;

use std::path::Path;
use std::process::ExitCode;

use weft_client::{Error, Library};

use pair::{Kind, Pair};
use rounds::{DELIVERED, MAPPED, OPERATIONS, Round};

/// Warm-up rounds, in which buffers grow and lazily bound symbols are bound. Their number exceeds that of the counted
/// rounds: a buffer of unacknowledged messages grows until the next acknowledgement, whose time varies.
const WARM_UP_ROUNDS: u32 = 2048;

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
    for (operations, kind) in [(OPERATIONS, Kind::Ordinary), (DELIVERED, Kind::Delivery), (MAPPED, Kind::Mapped)] {
        let mut pair = Pair::open(library, provider, kind)?;
        pair.connect()?;
        if kind == Kind::Mapped && !pair.is_mapped()? {
            continue;
        }
        for &(name, each, round) in operations {
            measured(&mut pair, round, WARM_UP_ROUNDS)?;
            let calls = measured(&mut pair, round, rounds)?;
            println!("{name} {} {calls}", rounds * each);
        }
    }
    Ok(())
}

/// Executes rounds of an operation. Returns the number of counted calls. callgrind's options contain the name of this
/// function.
#[inline(never)]
fn measured(pair: &mut Pair, round: Round, rounds: u32) -> Result<u32, Error> {
    let mut calls = 0;
    for _ in 0..rounds {
        calls += round(pair)?;
    }
    Ok(calls)
}
