//! `weft top`: this user's processes that use weft, with their rates and queues.
//!
//! Place in the data flow: as for `weft stat`, with the rates of `sample.rs`. On a terminal it is an application
//! (`screen.rs`, `app.rs`, `view.rs`); otherwise it prints tables or JSON (`print.rs`).

mod app;
mod print;
mod screen;
mod table;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

/// Shows this user's processes that use weft, with their rates, queues and peers. Root sees the processes of all users.
///
/// On a terminal the keys are those of similar programs: arrows, Enter, Esc, `/`, `?`, `q`. Otherwise it prints a table
/// in each interval.
#[derive(Args)]
pub(crate) struct Options {
    /// Observe for one interval, print one table, and end.
    #[arg(long)]
    once: bool,
    /// Print JSON: one object, in one line, for each interval.
    #[arg(long)]
    json: bool,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

/// Parses an interval between a tenth of a second and a day.
fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.1..=86400.0).contains(&seconds) { Ok(seconds) } else { Err("must be 0.1 to 86400 seconds".to_owned()) }
}

/// Runs `weft top`.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> io::Result<ExitCode> {
    let interval = Duration::from_secs_f64(options.interval);
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb;
    if is_terminal && !options.once && !options.json {
        screen::run(interval)?;
    } else {
        print::run(interval, options.once, options.json, out)?;
    }
    Ok(ExitCode::SUCCESS)
}
