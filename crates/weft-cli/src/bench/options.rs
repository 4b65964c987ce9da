//! The command line of `weft bench`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use weft_client::Operation;

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Time of one operation: half of a round trip (tagged, msg, write) or all of it (read, fetch-add).
    Pingpong,
    /// Bytes per second with a window of pending operations.
    Bandwidth,
    /// Operations per second with a window of pending operations, one endpoint per thread.
    Rate,
    /// Share of a transfer's time that remains for computing.
    #[cfg_attr(not(feature = "lab"), value(skip))]
    Overlap,
    /// Time of a message against the number of connected idle peers.
    #[cfg_attr(not(feature = "lab"), value(skip))]
    Peers,
    /// Cost of a match against the depth of the queue that is searched.
    #[cfg_attr(not(feature = "lab"), value(skip))]
    Match,
    /// Collective operations of more ranks than there are cores.
    #[cfg_attr(not(feature = "lab"), value(skip))]
    Oversubscribe,
    /// Fetch-and-adds per second of many processes on one number.
    #[cfg_attr(not(feature = "lab"), value(skip))]
    Counter,
    /// Memory of an idle peer and of an inserted address.
    #[cfg_attr(not(feature = "lab"), value(skip))]
    Memory,
    /// Time and rate of fi_collective's operations among processes of this host.
    Collective,
    /// Share of a collective's time that remains for computing.
    #[serde(rename = "overlap-coll")]
    #[cfg_attr(not(feature = "lab"), value(skip))]
    OverlapColl,
}

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Coll {
    Barrier,
    Broadcast,
    Allreduce,
    Allgather,
    Alltoall,
    ReduceScatter,
    Reduce,
    Scatter,
    Gather,
}

impl Coll {
    /// The name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Allreduce => "allreduce",
            Self::Allgather => "allgather",
            Self::Alltoall => "alltoall",
            Self::ReduceScatter => "reduce-scatter",
            Self::Reduce => "reduce",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
        }
    }

    /// The operation of the client.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::Barrier => Operation::Barrier,
            Self::Broadcast => Operation::Broadcast,
            Self::Allreduce => Operation::AllReduce,
            Self::Allgather => Operation::AllGather,
            Self::Alltoall => Operation::AllToAll,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::Reduce => Operation::Reduce,
            Self::Scatter => Operation::Scatter,
            Self::Gather => Operation::Gather,
        }
    }

    /// Whether each member's operation ends only after all members have started theirs.
    pub(crate) const fn synchronizes(self) -> bool {
        !matches!(self, Self::Broadcast | Self::Reduce | Self::Scatter | Self::Gather)
    }
}

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// Tagged messages.
    Tagged,
    /// Messages without tags.
    Msg,
    /// Remote writes.
    Write,
    /// Remote reads.
    Read,
    /// Remote fetch-and-add of 8 bytes.
    FetchAdd,
}

impl Op {
    /// The name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tagged => "tagged",
            Self::Msg => "msg",
            Self::Write => "write",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
        }
    }
}

/// The progress model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Progress {
    /// The provider's threads make progress.
    Auto,
    /// The client's calls make progress.
    Manual,
    /// The kernel performs the barriers of rank 0. The client's calls make all other progress.
    #[cfg_attr(not(feature = "lab"), value(skip))]
    Chain,
}

impl Progress {
    /// The name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Manual => "manual",
            Self::Chain => "chain",
        }
    }
}

/// The way to wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wait {
    /// Read the queue in a loop.
    Spin,
    /// Read the queue in a loop, and yield the core after each empty read.
    Yield,
    /// Sleep in fi_cq_sread.
    Sread,
}

/// Most pending operations.
pub(crate) const MOST_WINDOW: usize = 4096;

/// A number of bytes: 8, 4K, 1M.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) usize);

/// The longest message: a window of longer messages would not fit into memory.
pub(crate) const LONGEST: usize = 1 << 30;

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            _ => return Err(format!("`{text}` is no size; sizes are like 8, 4K or 1M")),
        };
        let number: usize = digits.parse().map_err(|_| format!("`{text}` is no size; sizes are like 8, 4K or 1M"))?;
        match number.checked_shl(shift).filter(|&bytes| bytes >> shift == number && (1..=LONGEST).contains(&bytes)) {
            Some(bytes) => Ok(Self(bytes)),
            None => Err(format!("`{text}` is not between 1 byte and 1 GiB")),
        }
    }
}

/// Formats a size as on the command line: 4K, 1M.
pub(crate) fn size_text(bytes: usize) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Formats a size for a table: 4 KiB, 1 MiB.
pub(crate) fn size_title(bytes: usize) -> String {
    match size_text(bytes) {
        text if text.ends_with(|c: char| c.is_ascii_digit()) => format!("{text} B"),
        mut text => {
            let unit = text.pop().unwrap_or_default();
            format!("{text} {unit}iB")
        }
    }
}

/// The cores that the threads of a rank may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bind {
    /// Each rank on a core of its own (one per thread), together with the provider's threads.
    #[default]
    Core,
    /// Each rank on a core of its own, but the provider's threads on all cores.
    Caller,
    /// Each rank on a core of its own, but the provider's threads in rank 0, which measures, on the cores of the
    /// other ranks. These are free if the other ranks wait with --wait yield or sread.
    Apart,
    /// Thread n of both ranks on the nth core, so that the number of cores does not limit two threads.
    Pair,
    /// All threads on all cores.
    All,
}

/// Measures weft and other providers of any libfabric in one run, beside the floors of this machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The kind of measurement
    #[arg(value_enum)]
    pub(crate) kind: Kind,
    /// Providers, each optionally with variables: weft,tcp,weft:FI_WEFT_SHM=0 [default: weft,shm,sm2,tcp,sockets; with
    /// --to: weft,tcp]
    #[arg(long, value_delimiter = ',')]
    providers: Vec<String>,
    /// Message sizes [default: 8,4K,64K,1M; for rate: 8]
    #[arg(long, value_delimiter = ',')]
    pub(crate) sizes: Vec<Size>,
    /// Operations (pingpong and rate: all; bandwidth: all but fetch-add)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tagged")]
    pub(crate) op: Vec<Op>,
    /// Measure between this host and another one, on which `weft bench serve` runs. Operations start here. The server
    /// passes only the variables FI_* of --providers on to its rank
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) to: Option<String>,
    /// The libfabric to load [default: the newest one found]
    #[arg(long, value_name = "PATH")]
    pub(crate) libfabric: Option<PathBuf>,
    /// Number of rounds; each result is the median over them
    #[arg(long, default_value_t = 5, value_parser = positive)]
    pub(crate) rounds: usize,
    /// Shortest duration of one measurement, in milliseconds
    #[arg(long, default_value_t = 150, value_parser = positive)]
    pub(crate) sample_ms: usize,
    /// Pending operations (bandwidth, rate)
    #[arg(long, default_value_t = 64, value_parser = window)]
    pub(crate) window: usize,
    /// Threads per process (rate)
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = positive)]
    pub(crate) threads: Vec<usize>,
    /// Cores to use, by number [default: all cores of this process, one per physical core first]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// Placement of a rank's threads
    #[arg(long, value_enum, default_value = "core")]
    pub(crate) bind: Bind,
    /// Progress to request, or several to compare: auto,manual [default: the provider's own]
    #[arg(long, value_enum, value_delimiter = ',')]
    progress: Vec<Progress>,
    /// The way to wait for completions [default: spin; with --bind pair: yield]
    #[arg(long, value_enum)]
    pub(crate) wait: Option<Wait>,
    /// Send tagged and untagged messages by inject calls, which have no completions (pingpong, bandwidth, rate)
    #[arg(long)]
    pub(crate) inject: bool,
    /// Operations complete only when the data are at the target (FI_DELIVERY_COMPLETE)
    #[arg(long)]
    pub(crate) delivery: bool,
    /// Remote accesses reach memory that peers map, where the provider has such memory (weft)
    #[arg(long)]
    pub(crate) mapped: bool,
    /// Time limit of one measurement in seconds
    #[arg(long, default_value_t = 30, value_parser = positive)]
    pub(crate) timeout_s: usize,
    /// Collective operations [default: all; for overlap-coll: barrier,allreduce]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) coll: Vec<Coll>,
    /// Numbers of members (collective, overlap-coll) [default: 2,4,16; for overlap-coll: 2, with a wire 4,16,64]
    #[arg(long, value_delimiter = ',', value_parser = members)]
    pub(crate) members: Vec<usize>,
    /// Write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[arg(skip)]
    pub(crate) lab: LabOptions,
}

/// The options of `weft-lab` alone.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LabOptions {
    /// Numbers of idle peers (peers, memory: the largest)
    #[arg(long, value_delimiter = ',', default_value = "0,16,64,256")]
    pub(crate) peers: Vec<usize>,
    /// Depths of queues (match)
    #[arg(long, value_delimiter = ',', default_value = "0,16,256,4096")]
    pub(crate) depths: Vec<usize>,
    /// Number of processes (oversubscribe)
    #[arg(long, default_value_t = 16, value_parser = positive)]
    pub(crate) ranks: usize,
    /// Numbers of adding processes (counter)
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = positive)]
    pub(crate) adders: Vec<usize>,
    /// Times of an emulated wire in microseconds (overlap-coll). 0: none, each member is a process that computes.
    /// Otherwise one member computes, and another process has the endpoints of all others. It makes one step of the
    /// collective at a time, this long after a message of the computing member has arrived by TCP. (weft only,
    /// for barrier and allreduce)
    #[arg(long, value_delimiter = ',', default_value = "0,20,50,200", value_parser = wire)]
    pub(crate) wire: Vec<usize>,
    /// Addresses to insert (memory)
    #[arg(long, default_value_t = 1_000_000, value_parser = positive)]
    pub(crate) addresses: usize,
    /// Draw the rows into this file. The name's ending decides: .svg or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

impl Kind {
    /// Whether two hosts can measure it: two ranks take part, and the first of them measures.
    pub(crate) const fn is_between_hosts(self) -> bool {
        matches!(self, Self::Pingpong | Self::Bandwidth | Self::Rate | Self::Overlap | Self::Match)
    }

    /// The measured quantities that are columns of one table and panels of a drawing. Empty: each quantity has rows of
    /// its own, and a panel.
    pub(crate) const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Collective => &["latency", "min", "p99", "CPU", "rate"],
            Self::OverlapColl => {
                &["raw", "at 80 %", "at 100 %", "method 1", "method 2", "OSU", "IMB", "bound", "CPU", "agent", "system"]
            }
            _ => &[],
        }
    }
}

impl Options {
    /// These options with those of the laboratory.
    #[cfg(feature = "lab")]
    pub(crate) fn with(self, lab: LabOptions) -> Self {
        Self { lab, ..self }
    }

    /// The way to wait for completions of `ranks` processes on `cores` cores.
    pub(crate) fn wait(&self, ranks: usize, cores: usize) -> Wait {
        let groups = matches!(self.kind, Kind::Collective | Kind::OverlapColl);
        let share = self.bind == Bind::Pair || groups && ranks > cores;
        self.wait.unwrap_or(if share { Wait::Yield } else { Wait::Spin })
    }

    /// The kinds of progress to compare.
    pub(crate) fn progress(&self) -> &[Progress] {
        match self.kind {
            Kind::OverlapColl if self.progress.is_empty() => &[Progress::Auto, Progress::Manual, Progress::Chain],
            _ => &self.progress,
        }
    }

    /// The providers to measure.
    pub(crate) fn providers(&self) -> Vec<&str> {
        match self.kind {
            _ if !self.providers.is_empty() => self.providers.iter().map(String::as_str).collect(),
            Kind::Collective | Kind::OverlapColl => vec!["weft", "weft:FI_WEFT_SHM=0", "tcp;ofi_rxm"],
            _ if self.to.is_some() => vec!["weft", "tcp"],
            _ => vec!["weft", "shm", "sm2", "tcp", "sockets"],
        }
    }
}

/// Parses a number that must not be 0.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("0 would measure nothing; give 1 or more".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("`{text}` is no number")),
    }
}

fn wire(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(time @ 0..=10_000) => Ok(time),
        _ => Err("the wire takes 0 to 10000 µs".to_owned()),
    }
}

fn members(text: &str) -> Result<usize, String> {
    match positive(text)? {
        number @ 2..=64 => Ok(number),
        _ => Err("groups of 2 to 64 members are supported".to_owned()),
    }
}

fn window(text: &str) -> Result<usize, String> {
    match positive(text)? {
        large if large > MOST_WINDOW => Err(format!("windows of more than {MOST_WINDOW} operations are not supported")),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [("8", 8), ("4K", 4096), ("64k", 65536), ("1M", 1 << 20), ("1GiB", 1 << 30), ("2kb", 2048)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "K", "0", "-1", "1.5K", "4X", "2G", "99999999999999999999", "1K4"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!([8, 4096, 1 << 20, 1500].map(size_text), ["8", "4K", "1M", "1500"]);
        assert_eq!([8, 4096, 1 << 20, 1500].map(size_title), ["8 B", "4 KiB", "1 MiB", "1500 B"]);
    }

    #[test]
    fn an_empty_selection_is_refused() {
        assert!(positive("0").is_err_and(|error| error.contains("1 or more")));
        assert!(positive("x").is_err());
        assert_eq!(positive("3"), Ok(3));
        assert!(window("5000").is_err());
    }
}
