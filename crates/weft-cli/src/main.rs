//! The `weft` command: what the provider offers on this machine, and what stands in its way.
//!
//! Place in the data flow: none, except that `weft bench` is a client of libfabric. The other commands ask
//! the same code that an endpoint asks (host identity, choice of address, the devices' probes, the table of
//! variables) and print the answers, for people as tables, for programs with `--json`.
//!
//! Exit status: 0, or 1 when `weft doctor` found something that keeps weft from working, when `weft stat`
//! could not look at the process, when a simulated run failed, or when output failed; 2 for wrong usage.

#![forbid(unsafe_code)]

mod bench;
mod doctor;
mod info;
mod library;
mod man;
mod render;
mod sim;
mod stat;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// weft, a libfabric provider: shared memory inside a host, TCP between hosts.
#[derive(Parser)]
#[command(name = "weft", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tells what the provider offers here, and why a path is or is not available.
    Info {
        /// List the variables FI_WEFT_* instead: default, what is set, meaning.
        #[arg(long)]
        params: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Looks for what keeps weft from working, or from working well; names cause and remedy. Exit status 1 if
    /// it cannot work.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows what the endpoints of a running process count: messages, bytes, stalls, links, failures.
    Stat {
        /// The process.
        pid: u32,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows this user's processes that use weft, and what they are doing, again and again.
    Top {
        /// Watch for one interval, print one table, and end.
        #[arg(long)]
        once: bool,
        /// Seconds between two tables.
        #[arg(long, default_value_t = 1.0, value_parser = interval)]
        interval: f64,
    },
    /// Prints the man page fi_weft(7), in roff.
    Man,
    Bench(Box<bench::Options>),
    /// Runs the engine on a simulated fabric, in virtual time.
    #[command(subcommand)]
    Sim(sim::Command),
    /// A process of `weft bench`.
    #[command(hide = true)]
    BenchChild {
        /// What it is to do, as JSON.
        task: String,
    },
}

/// Between a tenth of a second and a day.
fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.1..=86400.0).contains(&seconds) { Ok(seconds) } else { Err("must be 0.1 to 86400 seconds".to_owned()) }
}

fn main() -> ExitCode {
    match run(&Cli::parse().command, &mut io::stdout().lock()) {
        Ok(code) => code,
        // A reader that has seen enough (`weft man | head`) is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command, out: &mut impl Write) -> io::Result<ExitCode> {
    match command {
        Command::Info { params: true, json } => render::print(out, &info::params(), *json)?,
        Command::Info { params: false, json } => render::print(out, &info::gather(), *json)?,
        Command::Doctor { json } => {
            let report = doctor::examine();
            render::print(out, &report, *json)?;
            if !report.works() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Stat { pid, json } => render::print(out, &stat::look(*pid)?, *json)?,
        Command::Top { once, interval } => return stat::run_top(Duration::from_secs_f64(*interval), *once, out),
        Command::Man => out.write_all(man::page().as_bytes())?,
        Command::Bench(options) => return bench::run(options, out),
        Command::Sim(command) => return sim::run(command, out),
        Command::BenchChild { task } => return Ok(bench::run_child(task)),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
