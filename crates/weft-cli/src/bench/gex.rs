//! `weft bench gex`: measures weft's library with the GASNet-EX API, beside others.
//!
//! Place in the data flow: runs `gexbench`, which `make install` builds from public calls alone, as a job of two ranks,
//! and prints the medians of its rounds. The same source, compiled against another library, is another subject
//! (`--beside`). In each round every subject has a turn.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use indicatif::ProgressBar;

use super::stats::median;
use crate::render;

/// The name of weft's own library among the subjects.
const OWN: &str = "weft";
/// The places of the program relative to that of this command: where `make install` puts it, and where `make` does.
const PLACES: [&str; 2] = ["../lib/weft/gex/bin/gexbench", "gex/gexbench"];

/// Measures the library with the GASNet-EX API between two ranks on this host.
///
/// The program's source is installed as share/gexbench.c of the library. Compiled against another library with this
/// API, it is measured in the same run: --beside NAME=BINARY.
#[derive(Args, Clone, Debug)]
pub(crate) struct GexOptions {
    /// Another library: a name, and gexbench compiled against it
    #[arg(long, value_name = "NAME=BINARY", value_parser = beside)]
    beside: Vec<(String, PathBuf)>,
    /// Rounds, in each of which every library has a turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The time of each measurement in milliseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    time: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn beside(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, binary)) if !name.is_empty() && Path::new(binary).is_file() => Ok((name.to_owned(), binary.into())),
        Some((_, binary)) => Err(format!("there is no file {binary}; compile share/gexbench.c against the library")),
        None => Err("expected NAME=BINARY".to_owned()),
    }
}

/// Values in nanoseconds, by measurement (in the order of the program) and subject.
#[derive(Default)]
struct Results {
    names: Vec<String>,
    values: BTreeMap<(usize, usize), Vec<f64>>,
}

impl Results {
    /// Adds the lines of one run: name, value, unit.
    fn add(&mut self, subject: usize, text: &str) {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse::<f64>)) else { continue };
            let known = self.names.iter().position(|known| known == name);
            let at = known.unwrap_or_else(|| {
                self.names.push(name.to_owned());
                self.names.len() - 1
            });
            self.values.entry((at, subject)).or_default().push(value);
        }
    }

    fn median(&self, at: usize, subject: usize) -> Option<f64> {
        median(self.values.get(&(at, subject))?)
    }
}

/// Runs the command.
pub(crate) fn run(options: &GexOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    let Some(own) = own_program() else {
        eprintln!("weft bench gex: gexbench is not installed beside this command; run make install, or make");
        return Ok(ExitCode::from(2));
    };
    let mut subjects = vec![(OWN.to_owned(), own)];
    subjects.extend(options.beside.iter().cloned());
    let bar = ProgressBar::new(u64::from(options.rounds) * subjects.len() as u64);
    let mut results = Results::default();
    for round in 0..options.rounds {
        for turn in 0..subjects.len() {
            let subject = if round % 2 == 0 { turn } else { subjects.len() - 1 - turn };
            let (name, binary) = &subjects[subject];
            bar.set_message(name.clone());
            match measure(binary, options.time) {
                Ok(text) => results.add(subject, &text),
                Err(why) => {
                    bar.finish_and_clear();
                    eprintln!("weft bench gex: {name}: {why}");
                    return Ok(ExitCode::FAILURE);
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if options.json {
        print_json(&subjects, &results, out)?
    } else {
        print_table(&subjects, &results, out)?
    }
    Ok(ExitCode::SUCCESS)
}

fn own_program() -> Option<PathBuf> {
    let command = std::env::current_exe().ok()?;
    let directory = command.parent()?;
    PLACES.iter().map(|place| directory.join(place)).find(|place| place.is_file())
}

/// Runs a program as a job of two ranks. Returns what it has printed.
fn measure(binary: &Path, time_ms: u32) -> Result<String, String> {
    let mut command = Command::new(binary);
    command.arg(time_ms.to_string()).env("GASNET_PSHM_NODES", "2").stdin(Stdio::null()).stderr(Stdio::inherit());
    let done = command.output().map_err(|error| format!("{}: {error}", binary.display()))?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        Err(format!("{} ended with {}; see its messages", binary.display(), done.status))
    }
}

fn print_table(subjects: &[(String, PathBuf)], results: &Results, out: &mut impl Write) -> io::Result<()> {
    let names = subjects.iter().map(|(name, _)| format!("{name} ns"));
    let ratios = subjects.iter().skip(1).map(|(name, _)| format!("to {name}"));
    let heads: Vec<String> = std::iter::once("what".to_owned()).chain(names).chain(ratios).collect();
    let line = |at: usize| {
        let value = |subject: usize| results.median(at, subject);
        let text = |value: Option<f64>| value.map(|value| format!("{value:.1}")).unwrap_or_default();
        let ratio = |subject: usize| Some(format!("{:.2}", value(0)? / value(subject)?));
        let values = (0..subjects.len()).map(|subject| text(value(subject)));
        let ratios = (1..subjects.len()).map(|subject| ratio(subject).unwrap_or_default());
        std::iter::once(results.names[at].clone()).chain(values).chain(ratios).collect::<Vec<_>>()
    };
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    writeln!(out, "{}", render::table_of(&heads, (0..results.names.len()).map(line)))
}

fn print_json(subjects: &[(String, PathBuf)], results: &Results, out: &mut impl Write) -> io::Result<()> {
    let rows = results.values.iter().map(|((at, subject), values)| {
        serde_json::json!({
            "what": results.names[*at],
            "library": subjects[*subject].0,
            "median_ns": median(values),
            "values_ns": values,
        })
    });
    writeln!(out, "{}", serde_json::Value::Array(rows.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_program() {
        let mut results = Results::default();
        results.add(0, "put-8 3.0 ns\nnoise\nget-8 2.0 ns\n");
        results.add(0, "put-8 5.0 ns\nget-8 4.0 ns\n");
        results.add(1, "get-8 8.0 ns\n");
        assert_eq!(results.names, ["put-8", "get-8"]);
        assert_eq!(results.median(0, 0), Some(4.0));
        assert_eq!(results.median(0, 1), None);
        assert_eq!(results.median(1, 1), Some(8.0));
    }

    #[test]
    fn other_libraries_are_named_files() {
        assert!(beside("stock=/nowhere/gexbench").is_err_and(|why| why.contains("gexbench.c")));
        assert!(beside("stock").is_err());
    }
}
