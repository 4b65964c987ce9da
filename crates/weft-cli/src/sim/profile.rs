//! `weft sim profile`: the costs of machines, with their sources.
//!
//! Place in the data flow: prints the values of weft-scale's profiles.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use weft_scale::Profile;
use weft_scale::figure::names;
use weft_scale::profile::Value;

use super::measure::{Effort, check, measure};
use super::profile;
use crate::render::{self, Text, table};

/// Shows the costs of the machine of a profile with their sources, or lists the known profiles and their figures, or
/// measures this machine.
#[derive(Args)]
pub(crate) struct ProfileOptions {
    /// A known profile, or the path of a file.
    name: Option<String>,
    /// Measure this machine by `weft bench`, and write the profiles shm.toml, tcp.toml and machine.toml (both)
    /// to this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "name")]
    measure: Option<PathBuf>,
    /// Measure collectives of this machine, and print the times beside those that shm.toml and tcp.toml
    /// of this folder predict.
    #[arg(long, value_name = "FOLDER", conflicts_with = "name")]
    check: Option<PathBuf>,
    #[command(flatten)]
    effort: Effort,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A profile in the list.
#[derive(Serialize)]
struct Known {
    name: String,
    about: String,
    figures: Vec<&'static str>,
}

#[derive(Serialize)]
struct List(Vec<Known>);

impl Text for List {
    fn text(&self) -> String {
        let rows = self.0.iter().map(|known| [known.name.clone(), known.about.clone(), known.figures.join(", ")]);
        table(["profile", "machine", "figures"], rows)
    }
}

#[derive(Serialize)]
struct Values {
    name: String,
    about: String,
    values: Vec<Value>,
}

impl Text for Values {
    fn text(&self) -> String {
        let fit = |value: &Value| value.fit.clone().unwrap_or_default();
        let rows =
            self.values.iter().map(|value| [value.name.clone(), value.is.clone(), value.source.clone(), fit(value)]);
        format!("{}: {}\n{}", self.name, self.about, table(["value", "is", "source", "fitted to"], rows))
    }
}

/// Runs the command. The inner error is one of the arguments.
pub(super) fn run(options: &ProfileOptions, out: &mut impl Write) -> io::Result<Result<(), String>> {
    let effort = &options.effort;
    if let Some(folder) = &options.measure {
        for file in measure(folder, effort)?.iter().filter(|_| !options.json) {
            writeln!(out, "{}", file.display())?;
        }
    }
    if let Some(folder) = &options.check {
        render::print(out, &check(folder, effort)?, options.json)?;
    }
    if options.measure.is_some() || options.check.is_some() {
        return Ok(Ok(()));
    }
    let Some(name) = &options.name else {
        let figures = |of: &str| names().filter(|(profile, _)| *profile == of).map(|(_, name)| name).collect();
        let known =
            |profile: Profile| Known { figures: figures(&profile.name), name: profile.name, about: profile.about };
        render::print(out, &List(Profile::all().map(known).collect()), options.json)?;
        return Ok(Ok(()));
    };
    match profile(name) {
        Ok(Profile { name, about, values, .. }) => {
            render::print(out, &Values { name, about, values }, options.json)?;
            Ok(Ok(()))
        }
        Err(why) => Ok(Err(why)),
    }
}
