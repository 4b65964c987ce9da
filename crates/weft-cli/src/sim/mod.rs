//! `weft sim`: jobs on machines that are not at hand, in virtual time.
//!
//! Place in the data flow: the commands print what weft-scale and weft-replay predict from profiles of machines.
//! `faults`, of `weft-lab` alone, tests the engine itself on weft-sim's fabric.

pub(crate) mod draw;
#[cfg(feature = "lab")]
mod faults;
mod measure;
mod paper;
mod profile;
mod replay;
mod scale;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use weft_scale::Profile;
use weft_scale::profile::names;

/// The simulations.
#[derive(Subcommand)]
pub(crate) enum Command {
    Scale(scale::ScaleOptions),
    Profile(profile::ProfileOptions),
    Paper(paper::PaperOptions),
    Replay(replay::ReplayOptions),
    Tune(replay::TuneOptions),
    #[cfg(feature = "lab")]
    Faults(faults::FaultOptions),
}

/// Runs the command. The exit status is 2 for invalid arguments.
pub(crate) fn run(command: &Command, out: &mut impl Write) -> io::Result<ExitCode> {
    let result = match command {
        Command::Scale(options) => scale::run(options, out)?,
        Command::Profile(options) => profile::run(options, out)?,
        Command::Paper(options) => return paper::run(options, out),
        Command::Replay(options) => replay::run(options, out)?,
        Command::Tune(options) => replay::tune(options, out)?,
        #[cfg(feature = "lab")]
        Command::Faults(options) => return faults::run(options, out),
    };
    Ok(result.map_or_else(
        |why| {
            eprintln!("weft sim: {why}");
            ExitCode::from(2)
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// A profile by its name, or by the path of its file.
fn profile(name: &str) -> Result<Profile, String> {
    let path = Path::new(name);
    if !name.contains('/') && path.extension().is_none_or(|extension| extension != "toml") {
        return Profile::named(name).map_err(|error| error.to_string());
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the profile {name} cannot be read ({error}): name a file, or one of {}", names()))?;
    Profile::parse(&text).map_err(|error| format!("{name}: {error}"))
}
