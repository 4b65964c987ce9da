//! The command `weft-lab`: `weft` with every kind of `bench`, with drawings, and with `sim`. It is not installed.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    weft_cli::main()
}
