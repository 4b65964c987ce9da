//! The command `weft`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    weft_cli::main()
}
