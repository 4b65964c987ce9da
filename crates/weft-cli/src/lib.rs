//! The `weft` command: start of jobs, diagnosis, observation and measurement of the provider.
//!
//! With the feature `lab` it is the command `weft-lab`, which has more kinds of measurements, drawings, and simulated
//! faults.
//!
//! Place in the data flow: `weft bench` is a client of libfabric; the other commands are outside of the data flow. They
//! query the same code as an endpoint does (host identity, choice of address, the devices' probes, the table of
//! variables). Each prints tables for people, or JSON for programs with `--json`.
//!
//! Exit status: that of the job for `weft run`, otherwise 0 for success, 2 for wrong usage, and 1 if
//! - `weft doctor` found a condition that keeps weft from working,
//! - `weft run --require` found a rank that did not use weft,
//! - `weft stat` could not inspect the process,
//! - a simulated run failed, or
//! - output failed.

#![forbid(unsafe_code)]

mod bench;
mod doctor;
mod foreign;
mod info;
mod library;
mod man;
mod render;
mod run;
mod sim;
mod stat;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

/// Runs jobs over weft, a libfabric provider for shared memory and TCP; diagnoses, observes and measures it.
#[derive(Parser)]
#[command(name = "weft", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Options),
    /// Shows the paths that the provider offers on this machine, the protocols on them for each size, the limits in
    /// force, and the libfabrics that are found.
    Info {
        /// Print the variables FI_WEFT_* instead, as a file for the shell: meaning, limits, and `export` lines of those
        /// that are set.
        #[arg(long)]
        params: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Finds conditions that keep weft from working, or from working well, and names cause and remedy. The exit
    /// status is 1 if weft cannot work.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// A host that runs `weft bench serve`: the route, the firewalls and the rates between it and this host are
        /// examined.
        #[arg(long, value_name = "HOST[:PORT]")]
        to: Option<String>,
        /// A launcher and a program, such as `mpiexec -n 2 ./a.out`: its libfabric is examined, and it is started once.
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Shows the counters of a running process's endpoints: messages, bytes, stalls, links, failures.
    Stat {
        /// The process id. With --prometheus it may be omitted, for all processes of this user.
        #[arg(required_unless_present = "prometheus", value_parser = stat::process_id)]
        pid: Option<u32>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Print Prometheus's text format, with the labels pid, rank, job, host, endpoint and path.
        #[arg(long, conflicts_with = "json")]
        prometheus: bool,
    },
    Top(stat::TopOptions),
    Why(stat::WhyOptions),
    /// Prints a man page, in roff.
    Man {
        /// The page: fi_weft(7), or weft(1).
        #[arg(value_enum, default_value_t = man::Page::FiWeft)]
        page: man::Page,
    },
    /// Measures weft and other providers of any libfabric in one run, beside the floors of this machine.
    Bench(Box<bench::Command>),
    /// Prints the completions of this command for a shell, such as `source <(weft completions bash)`.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Predicts the time of jobs on machines that are described by profiles.
    #[command(subcommand)]
    Sim(sim::Command),
    /// A process that ends the launcher of `weft run` if that command is killed.
    #[command(hide = true)]
    RunGuard {
        /// The process id of the launcher.
        launcher: i32,
    },
    /// A child process of `weft bench`.
    #[command(hide = true)]
    BenchChild {
        /// The task, as JSON.
        task: String,
    },
}

/// A shell for which completions are made.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// Writes the completions of a command.
    fn complete(self, mut command: clap::Command, out: &mut impl Write) {
        let shell = match self {
            Self::Bash => clap_complete::Shell::Bash,
            Self::Zsh => clap_complete::Shell::Zsh,
            Self::Fish => clap_complete::Shell::Fish,
        };
        clap_complete::generate(shell, &mut command, "weft", out);
    }
}

/// Runs the command of this process. Returns its exit status.
#[must_use]
pub fn main() -> ExitCode {
    match run(&Cli::parse().command, &mut io::stdout().lock()) {
        Ok(code) => code,
        // A reader that closes the pipe early (`weft man | head`) is not an error.
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
        Command::Doctor { json, to, command } => {
            let report = doctor::examine(command, to.as_deref());
            render::print(out, &report, *json)?;
            if !report.works() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Stat { pid, prometheus: true, .. } => out.write_all(stat::prometheus(*pid)?.as_bytes())?,
        Command::Stat { pid, json, .. } => render::print(out, &stat::look(pid.unwrap_or_default())?, *json)?,
        Command::Top(options) => return stat::run_top(options, out),
        Command::Why(options) => return stat::run_why(options, out),
        Command::Man { page: man::Page::FiWeft } => out.write_all(man::page().as_bytes())?,
        Command::Man { page: man::Page::Weft } => man::write_weft(&Cli::command(), out)?,
        Command::Bench(options) => return bench::run(options, out),
        Command::Completions { shell } => {
            // The library ends the process if it cannot write.
            let mut text = Vec::new();
            shell.complete(Cli::command(), &mut text);
            out.write_all(&text)?;
        }
        Command::Run(options) => return run::run(options, out),
        Command::Sim(command) => return sim::run(command, out),
        Command::RunGuard { launcher } => return run::run_guard(*launcher),
        Command::BenchChild { task } => return Ok(bench::run_child(task)),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_know_commands_and_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            shell.complete(Cli::command(), &mut text);
            let text = String::from_utf8(text).expect("text");
            for word in ["doctor", "require", "pingpong", "serve"] {
                assert!(text.contains(word), "{word} for {shell:?}");
            }
        }
    }
}
