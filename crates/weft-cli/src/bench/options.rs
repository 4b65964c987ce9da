//! The command line of `weft bench`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Time of one operation: half of a round trip (tagged, msg, write) or all of it (read, fetch-add).
    Pingpong,
    /// Bytes per second with a window of operations under way.
    Bandwidth,
    /// Operations per second with a window of operations under way, one endpoint per thread.
    Rate,
    /// How much of a transfer's time is left for computing.
    Overlap,
    /// Time of a message against the number of connected idle peers.
    Peers,
    /// Cost of a match against the depth of the queue that is searched.
    Match,
    /// Collective operations of more ranks than there are cores.
    Oversubscribe,
    /// Fetch-and-adds per second of many processes on one number.
    Counter,
    /// Memory of an idle peer and of an inserted address.
    Memory,
}

/// The operation measured.
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
    /// As on the command line.
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

/// Who moves data on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Progress {
    /// The provider's threads.
    Auto,
    /// The client's calls.
    Manual,
}

impl Progress {
    /// As on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Manual => "manual",
        }
    }
}

/// How completions are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wait {
    /// Reading the queue again and again.
    Spin,
    /// The same, giving the core away after each empty read.
    Yield,
    /// Sleeping in fi_cq_sread.
    Sread,
}

/// A number of bytes: 8, 4K, 1M.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) usize);

/// The longest message: a window of longer ones would not fit any memory.
const LONGEST: usize = 1 << 30;

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

/// As people write it: 4K, 1M.
pub(crate) fn size_text(bytes: usize) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// As it stands in a table: 4 KiB, 1 MiB.
pub(crate) fn size_title(bytes: usize) -> String {
    match size_text(bytes) {
        text if text.ends_with(|c: char| c.is_ascii_digit()) => format!("{text} B"),
        mut text => {
            let unit = text.pop().unwrap_or_default();
            format!("{text} {unit}iB")
        }
    }
}

/// Where the threads of a rank may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bind {
    /// Each rank on a core of its own (one per thread), a provider's threads with it.
    #[default]
    Core,
    /// The same, but a provider's threads run on all the cores.
    Caller,
    /// The same, but a provider's threads in rank 0, which measures, run on the cores of the other ranks:
    /// free for them, if those give them away (--wait yield or sread).
    Apart,
    /// Thread n of both ranks on the nth core: what two threads can do together is not limited by cores.
    Pair,
    /// Everybody on all the cores.
    All,
}

/// Measures weft and other providers of any libfabric in one run, beside the floors of this machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// What is measured.
    #[arg(value_enum)]
    pub(crate) kind: Kind,
    /// Providers, each with variables if it shall have any: weft,tcp,weft:FI_WEFT_SHM=0
    #[arg(long, value_delimiter = ',', default_value = "weft,shm,sm2,tcp,sockets")]
    pub(crate) providers: Vec<String>,
    /// Message sizes [default: 8,4K,64K,1M, and for rate, peers and match 8]
    #[arg(long, value_delimiter = ',')]
    pub(crate) sizes: Vec<Size>,
    /// Operations (pingpong and rate: all; bandwidth: all but fetch-add)
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tagged")]
    pub(crate) op: Vec<Op>,
    /// The libfabric to load [default: the newest that is found]
    #[arg(long, value_name = "PATH")]
    pub(crate) libfabric: Option<PathBuf>,
    /// How often everything is measured; medians are over these
    #[arg(long, default_value_t = 5, value_parser = positive)]
    pub(crate) rounds: usize,
    /// How long one measurement lasts at least, in milliseconds
    #[arg(long, default_value_t = 150, value_parser = positive)]
    pub(crate) sample_ms: usize,
    /// Operations under way (bandwidth, rate)
    #[arg(long, default_value_t = 64, value_parser = window)]
    pub(crate) window: usize,
    /// Threads per process (rate)
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = positive)]
    pub(crate) threads: Vec<usize>,
    /// Numbers of idle peers (peers, memory: the largest)
    #[arg(long, value_delimiter = ',', default_value = "0,16,64,256")]
    pub(crate) peers: Vec<usize>,
    /// Depths of queues (match)
    #[arg(long, value_delimiter = ',', default_value = "0,16,256,4096")]
    pub(crate) depths: Vec<usize>,
    /// Number of processes (oversubscribe)
    #[arg(long, default_value_t = 16, value_parser = positive)]
    pub(crate) ranks: usize,
    /// Numbers of processes that add (counter)
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = positive)]
    pub(crate) adders: Vec<usize>,
    /// Addresses to insert (memory)
    #[arg(long, default_value_t = 1_000_000, value_parser = positive)]
    pub(crate) addresses: usize,
    /// Cores to use, by number [default: those this process may use, one per physical core first]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// Where the threads of a rank run
    #[arg(long, value_enum, default_value = "core")]
    pub(crate) bind: Bind,
    /// Ask for this progress, or compare both: auto,manual [default: what the provider does by itself]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) progress: Vec<Progress>,
    /// How completions are awaited [default: spin, where two ranks share a core: yield]
    #[arg(long, value_enum)]
    pub(crate) wait: Option<Wait>,
    /// Send tagged messages and messages by the inject calls, which have no completions (pingpong, bandwidth, rate)
    #[arg(long)]
    pub(crate) inject: bool,
    /// Operations complete only when the data are at the target (FI_DELIVERY_COMPLETE)
    #[arg(long)]
    pub(crate) delivery: bool,
    /// A measurement that takes longer than this many seconds is given up
    #[arg(long, default_value_t = 30, value_parser = positive)]
    pub(crate) timeout_s: usize,
    /// Write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the rows into this file as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

impl Options {
    /// How completions are awaited.
    pub(crate) fn wait(&self) -> Wait {
        self.wait.unwrap_or(if self.bind == Bind::Pair { Wait::Yield } else { Wait::Spin })
    }
}

/// A number that must not be 0.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("0 would measure nothing; give 1 or more".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("`{text}` is no number")),
    }
}

fn window(text: &str) -> Result<usize, String> {
    match positive(text)? {
        large if large > 4096 => Err("windows of more than 4096 operations are not supported".to_owned()),
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
