//! `weft sim profile --measure`: the profiles `shm` and `tcp` of this machine, from `weft bench`.
//!
//! Place in the data flow: starts this command again as `weft bench`, and turns its results into the costs of a
//! profile.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// The profiles, and the providers whose results they hold.
const PATHS: [(&str, &str, &str); 2] = [
    ("shm", "weft", "weft between two processes of this machine, over shared memory"),
    ("tcp", "weft:FI_WEFT_SHM=0", "weft between two processes of this machine, over TCP"),
];
const SHORT: u64 = 8;
const MEDIUM: u64 = 64 << 10;
const LONG: u64 = 1 << 20;

/// A row of `weft bench --json`.
#[derive(Deserialize)]
struct Row {
    provider: String,
    size: u64,
    metric: String,
    p50: Option<f64>,
    max: Option<f64>,
}

/// Results by provider and length: nanoseconds of one way, or million operations per second.
type Results = BTreeMap<(String, u64), f64>;

/// Measures, and writes `shm.toml` and `tcp.toml` into a folder. Returns their paths.
pub(super) fn measure(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let sizes = format!("{SHORT},{MEDIUM},{LONG}");
    // The median of single operations: a preempted one does not change it.
    let times = bench(folder, "pingpong", &sizes, |row| row.p50)?;
    // The best round: the one that was disturbed least.
    let rates = bench(folder, "rate", &SHORT.to_string(), |row| row.max.filter(|_| row.metric == "rate"))?;
    let mut written = Vec::new();
    for (name, provider, about) in PATHS {
        let of = |results: &Results, bytes| results.get(&(provider.to_owned(), bytes)).copied();
        let measured = (of(&times, SHORT), of(&times, MEDIUM), of(&times, LONG), of(&rates, SHORT));
        let (Some(short), Some(medium), Some(long), Some(rate)) = measured else {
            return Err(io::Error::other(format!("weft bench has no result of {provider}: see `weft doctor`")));
        };
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, profile(name, about, [short, medium, long], rate))?;
        written.push(file);
    }
    Ok(written)
}

/// Runs one kind of `weft bench`, and reads its results.
fn bench(folder: &Path, kind: &str, sizes: &str, value: impl Fn(&Row) -> Option<f64>) -> io::Result<Results> {
    let file = folder.join(format!("measured-{kind}.json"));
    let providers = PATHS.map(|(_, provider, _)| provider).join(",");
    let status = Command::new(std::env::current_exe()?)
        .args(["bench", kind, "--providers", &providers, "--sizes", sizes, "--json"])
        .arg(&file)
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!("weft bench {kind} failed ({status}): see its message")));
    }
    let rows: Vec<Row> = serde_json::from_slice(&std::fs::read(&file)?)?;
    std::fs::remove_file(&file)?;
    Ok(rows.iter().filter_map(|row| Some(((row.provider.clone(), row.size), value(row)?))).collect())
}

/// The text of a profile. Times are nanoseconds; the rate is in millions per second.
fn profile(name: &str, about: &str, [short, medium, long]: [f64; 3], rate: f64) -> String {
    #[allow(clippy::cast_precision_loss)] // Below 2^53.
    let byte = ((long - medium) / (LONG - MEDIUM) as f64).max(0.0) * 1e3;
    // The rate bounds what a processor spends for a message. A third of the way is left for each of the three parts.
    let each = (1e3 / rate).min(short / 3.0);
    let latency = (short - 2.0 * each).max(0.001);
    format!(
        "name = \"{name}\"\nabout = \"{about}\"\n\n[far]\n\
         send = {{ is = \"{each:.3} ns\", source = \"measured: {rate:.2} million messages a second (weft bench rate)\" }}\n\
         receive = {{ is = \"{each:.3} ns\", source = \"as send\" }}\n\
         latency = {{ is = \"{latency:.3} ns\", source = \"measured: {short:.0} ns for 8 bytes (weft bench pingpong), less send and receive\" }}\n\
         byte = {{ is = \"{byte:.1} ps/B\", source = \"measured: {medium:.0} ns for 64 KiB, {long:.0} ns for 1 MiB (weft bench pingpong)\" }}\n\n\
         [cpu]\ncopy_byte = {{ is = \"100 ps/B\", source = \"assumed: 10 GB/s\" }}\n\
         reduce_byte = {{ is = \"200 ps/B\", source = \"assumed: 5 GB/s\" }}\n"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use weft_engine::collective::Operation;
    use weft_scale::{Collective, Machine, Options, Profile, schedule};

    use super::*;

    #[test]
    fn measured_costs_are_kept() {
        let profile = Profile::parse(&profile("tcp", "two processes", [10_200.0, 20_000.0, 336_000.0], 0.5)).unwrap();
        let time_ns = |operation, bytes: u64| {
            let request = schedule::request(operation, 2, usize::try_from(bytes).unwrap());
            let collective = Collective::compile(request, None).unwrap();
            Machine::new(&collective, &profile.costs, Options::default()).run(|_, _| ()).unwrap().end_ps / 1000
        };
        assert!((10_199..=10_200).contains(&time_ns(Operation::Barrier, 0)));
        let long = time_ns(Operation::Broadcast, LONG) - time_ns(Operation::Broadcast, MEDIUM);
        assert!((315_000..=317_000).contains(&long), "{long}");
    }
}
