//! A client of launchers that speak PMI-1, such as MPICH's mpiexec (Hydra).
//!
//! Place in the data flow: `spawn` asks for rank and size, `job` exchanges one blob for each rank, and `exit` reports
//! the end. Messages are lines of `key=value` pairs over the descriptor in `PMI_FD`. The launcher answers each, except
//! for an abort.
//!
//! Errors: [`Error::Launcher`] names the step that failed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::env;
use crate::error::Error;
use crate::os;

/// The longest value that is put in one piece. Launchers promise 1024 bytes, and keys of 64.
const VALUE_BYTES: usize = 1000;

/// Whether a launcher has started this process.
#[must_use]
pub fn is_here() -> bool {
    ["PMI_FD", "PMI_RANK", "PMI_SIZE"].iter().all(|name| env::text(name).is_some())
}

/// A blob as text.
pub(super) fn to_text(blob: &[u8]) -> String {
    let mut text = String::with_capacity(blob.len() * 2);
    for byte in blob {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The blob of a text.
pub(super) fn from_text(text: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(byte).collect()
}

/// The connection to the launcher.
pub struct Client {
    lines: BufReader<File>,
    rank: u32,
    ranks: u32,
    space: String,
}

/// The pairs of a line.
type Pairs = HashMap<String, String>;

pub(super) fn parse(line: &str) -> Pairs {
    let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    line.split_ascii_whitespace().filter_map(pair).collect()
}

fn variable<T: std::str::FromStr>(name: &str) -> Result<T, Error> {
    let value = env::text(name).ok_or_else(|| Error::Launcher(format!("set {name}")))?;
    value.parse().map_err(|_| Error::Launcher(format!("set {name} to a number, but to {value}")))
}

impl Client {
    /// Begins the dialogue.
    ///
    /// # Errors
    /// The environment is not that of a launcher, or the launcher does not answer as it should.
    pub fn start() -> Result<Self, Error> {
        let fd: RawFd = variable("PMI_FD")?;
        let socket = os::take_descriptor(fd).map_err(|_| Error::Launcher(format!("leave descriptor {fd} open")))?;
        Self::over(socket, variable("PMI_RANK")?, variable("PMI_SIZE")?)
    }

    /// Begins the dialogue over a connection.
    ///
    /// # Errors
    /// The launcher does not answer as it should.
    pub(super) fn over_socket(socket: OwnedFd, rank: u32, ranks: u32) -> Result<Self, Error> {
        Self::over(File::from(socket), rank, ranks)
    }

    fn over(socket: File, rank: u32, ranks: u32) -> Result<Self, Error> {
        let mut client = Self { lines: BufReader::new(socket), rank, ranks, space: String::new() };
        if rank >= ranks {
            return Err(Error::Launcher(format!("give a rank below {ranks}, but {rank}")));
        }
        client.ask("cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init")?;
        let mut space = client.ask("cmd=get_my_kvsname\n", "my_kvsname")?;
        client.space = space.remove("kvsname").ok_or_else(|| Error::Launcher("name its key space".into()))?;
        Ok(client)
    }

    /// The rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    fn ask(&mut self, line: &str, answer: &str) -> Result<Pairs, Error> {
        let failed = |why: &dyn std::fmt::Display| Error::Launcher(format!("answer {:?}: {why}", line.trim_end()));
        self.lines.get_mut().write_all(line.as_bytes()).map_err(|error| failed(&error))?;
        let mut text = String::new();
        let read = self.lines.read_line(&mut text).map_err(|error| failed(&error))?;
        let pairs = parse(&text);
        let is = |key: &str, value: &str| pairs.get(key).is_some_and(|found| found == value);
        match () {
            () if read == 0 => Err(failed(&"it has closed the connection")),
            () if !is("cmd", answer) => Err(failed(&text.trim_end())),
            () if pairs.contains_key("rc") && !is("rc", "0") => Err(failed(&text.trim_end())),
            () => Ok(pairs),
        }
    }

    /// Publishes the blob of this rank under a step of the start.
    ///
    /// # Errors
    /// The launcher refuses.
    pub fn put(&mut self, step: &str, blob: &[u8]) -> Result<(), Error> {
        let value = to_text(blob);
        debug_assert!(value.len() <= VALUE_BYTES);
        let line = format!("cmd=put kvsname={} key=weft-{step}-{} value={value}\n", self.space, self.rank);
        self.ask(&line, "put_result").map(drop)
    }

    /// Waits for all ranks. Blobs that they have put before are visible afterwards.
    ///
    /// # Errors
    /// The launcher refuses, or has ended.
    pub fn fence(&mut self) -> Result<(), Error> {
        self.ask("cmd=barrier_in\n", "barrier_out").map(drop)
    }

    /// Arrives at a fence without waiting for it.
    pub fn arrive(&mut self) {
        let _ = self.lines.get_mut().write_all(b"cmd=barrier_in\n");
    }

    /// Waits for a time until all ranks have arrived at the fence. Returns whether they have.
    pub fn has_passed(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.lines.buffer().is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut ready = [PollFd::new(self.lines.get_ref(), PollFlags::IN)];
            match poll(&mut ready, Timespec::try_from(left).ok().as_ref()) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return false,
                Ok(_) => break,
            }
        }
        let mut text = String::new();
        self.lines.read_line(&mut text).is_ok() && parse(&text).get("cmd").is_some_and(|found| found == "barrier_out")
    }

    /// The blob of a rank.
    ///
    /// # Errors
    /// The launcher has none, or not in the form of [`Self::put`].
    pub fn get(&mut self, step: &str, rank: u32) -> Result<Vec<u8>, Error> {
        let line = format!("cmd=get kvsname={} key=weft-{step}-{rank}\n", self.space);
        let pairs = self.ask(&line, "get_result")?;
        let value = pairs.get("value").map_or("", String::as_str);
        from_text(value).ok_or_else(|| Error::Launcher(format!("keep the value of rank {rank}: it returned {value:?}")))
    }

    /// Reports that this rank ends in order. A launcher that has ended is no error.
    pub fn finalize(&mut self) {
        let _ = self.ask("cmd=finalize\n", "finalize_ack");
    }

    /// Asks the launcher to end the job. It kills this process, too.
    pub fn abort(&mut self, code: i32) {
        let _ = self.lines.get_mut().write_all(format!("cmd=abort exitcode={code}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A launcher that answers each line by the function.
    fn launcher(answer: impl Fn(&Pairs) -> String + Send + 'static) -> File {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs);
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                let text = answer(&parse(&line));
                lines.get_mut().write_all(text.as_bytes()).unwrap();
                line.clear();
            }
        });
        File::from(OwnedFd::from(ours))
    }

    fn usual(pairs: &Pairs) -> String {
        match pairs["cmd"].as_str() {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".into(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0\n".into(),
            "put" => format!("cmd=put_result rc={}\n", i32::from(pairs["value"] != "00ff10")),
            "barrier_in" => "cmd=barrier_out\n".into(),
            "get" if pairs["key"] == "weft-a-1" => "cmd=get_result rc=0 msg=success value=00ff10\n".into(),
            "get" => "cmd=get_result rc=-1 msg=key_not_found value=unknown\n".into(),
            _ => "cmd=finalize_ack\n".into(),
        }
    }

    #[test]
    fn blobs_travel_as_text() {
        let mut client = Client::over(launcher(usual), 1, 2).unwrap();
        client.put("a", &[0, 255, 16]).unwrap();
        client.fence().unwrap();
        assert_eq!(client.get("a", 1).unwrap(), [0, 255, 16]);
        assert!(client.get("a", 0).unwrap_err().to_string().contains("key_not_found"));
        client.finalize();
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let odd = Client::over(launcher(|_| "cmd=what rc=0\n".into()), 0, 1);
        assert!(odd.err().unwrap().to_string().contains("cmd=what"));
        let refused = Client::over(launcher(|_| "cmd=response_to_init rc=-1\n".into()), 0, 1);
        assert!(refused.is_err());
        assert!(Client::over(launcher(usual), 2, 2).is_err(), "the rank is too large");
    }
}
