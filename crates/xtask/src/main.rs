//! `cargo xtask`: tasks for weft's developers and CI that are more than one cargo command.
//!
//! Each task is one module; `cargo xtask help` lists them. Nothing here is part of the product.

use clap::{Parser, Subcommand};

mod bindings;
mod tidy;

/// Tasks for weft's developers.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Regenerates crates/weft-fi-sys/src/bindings.rs from the installed libfabric headers.
    Bindings(bindings::Args),
    /// Checks the countable style rules of CONTRIBUTING.md and fails if one is broken.
    Tidy(tidy::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Bindings(args) => bindings::run(&args),
        Task::Tidy(args) => tidy::run(&args),
    }
}
