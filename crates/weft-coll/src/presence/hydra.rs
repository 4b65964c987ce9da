//! The key-value space of Hydra, the launcher of MPICH and Intel MPI: PMI-1 over an inherited descriptor.
//!
//! Place in the data flow: the MPI library is the client of this protocol. It is not in a call of PMI when this module
//! asks: before its start, and directly after it. Each question is answered by one line, so nothing is left for it.
//!
//! Keys that were put before a barrier of all ranks can be got after it. The MPI library makes such a barrier in its
//! start. A question for a key that does not exist is answered at once.

use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};

use super::key;

/// Longest wait for an answer, in milliseconds.
const PATIENCE_MS: i32 = 10_000;
/// Longest answer in bytes.
const MOST_BYTES: usize = 1 << 16;
/// A variable that Hydra sets, and other launchers with the same protocol do not.
const MARK_OF_HYDRA: &str = "MPI_LOCALRANKID";
/// Variables by which a user chooses another protocol.
const CHOICES: [&str; 3] = ["MPIR_CVAR_PMI_VERSION", "I_MPI_PMI", "I_MPI_PMI_LIBRARY"];

/// The space of the job.
pub(crate) struct Space {
    /// The descriptor, which belongs to the MPI library.
    channel: ManuallyDrop<File>,
    name: String,
}

/// The nodes of the ranks.
pub(super) struct Nodes(Vec<Block>);

/// Nodes with the same number of ranks each.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    first: usize,
    nodes: usize,
    ranks_per_node: usize,
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

impl Space {
    /// Puts the mark of this rank.
    pub(super) fn enter() -> Option<Self> {
        let is_set = |name: &&str| std::env::var_os(name).is_some();
        if !is_set(&MARK_OF_HYDRA) || CHOICES.iter().any(is_set) {
            return None;
        }
        let (descriptor, rank): (i32, usize) = (variable("PMI_FD")?, variable("PMI_RANK")?);
        // SAFETY: the launcher has opened the descriptor for this process. It is not closed here.
        let channel = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
        let mut space = Self { channel, name: String::new() };
        space.ask("cmd=init pmi_version=1 pmi_subversion=1")?;
        space.name = field(&space.ask("cmd=get_my_kvsname")?, "kvsname")?;
        let host = std::env::var("PMI_HOSTNAME").ok().or_else(host_name).unwrap_or_default();
        // A value has no space, and may not be empty.
        let host = host.split_whitespace().next().unwrap_or("?");
        // A rank whose mark is missing counts as one without this library, here and at the others.
        space.ask(&format!("cmd=put kvsname={} key={} value={host}", space.name, key(rank)));
        Some(space)
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        let answer = self.ask(&format!("cmd=get kvsname={} key={key}", self.name))?;
        (field(&answer, "rc")? == "0").then(|| field(&answer, "value")).flatten()
    }

    /// The nodes of the ranks.
    pub(super) fn nodes(&self) -> Nodes {
        Nodes(self.get("PMI_process_mapping").and_then(|text| blocks(&text)).unwrap_or_default())
    }

    /// Sends a line, and returns the line of the answer.
    fn ask(&self, question: &str) -> Option<String> {
        (&*self.channel).write_all(format!("{question}\n").as_bytes()).ok()?;
        let mut answer = Vec::new();
        while answer.last() != Some(&b'\n') {
            let mut one = libc::pollfd { fd: self.channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the structure is a local.
            if unsafe { libc::poll(&raw mut one, 1, PATIENCE_MS) } != 1 || answer.len() > MOST_BYTES {
                return None;
            }
            let mut bytes = [0; 1024];
            let len = (&*self.channel).read(&mut bytes).ok().filter(|&len| len > 0)?;
            answer.extend_from_slice(&bytes[..len]);
        }
        String::from_utf8(answer).ok()
    }
}

/// The value of a field `name=value` in a line.
fn field(line: &str, name: &str) -> Option<String> {
    let value = |word: &str| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    line.split_whitespace().find_map(value)
}

/// The blocks in a text such as `(vector,(0,2,4),(2,1,3))`.
fn blocks(text: &str) -> Option<Vec<Block>> {
    let inside = text.strip_prefix("(vector,(")?.strip_suffix("))")?;
    let block = |text: &str| {
        let numbers: Vec<usize> = text.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [first, nodes, ranks_per_node] = numbers[..] else { return None };
        Some(Block { first, nodes, ranks_per_node })
    };
    inside.split("),(").map(block).collect()
}

impl Nodes {
    /// The number of a rank's node. The blocks repeat as often as needed.
    pub(super) fn of(&self, rank: usize) -> Option<usize> {
        let all: usize = self.0.iter().map(|block| block.nodes * block.ranks_per_node).sum();
        let mut rank = rank.checked_rem(all)?;
        for block in &self.0 {
            let ranks = block.nodes * block.ranks_per_node;
            if rank < ranks {
                return Some(block.first + rank / block.ranks_per_node);
            }
            rank -= ranks;
        }
        None
    }
}

fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_by_field() {
        let line = "cmd=get_result rc=0 msg=success value=host-a\n";
        assert_eq!((field(line, "value"), field(line, "rc")), (Some("host-a".to_owned()), Some("0".to_owned())));
        assert_eq!(field(line, "val"), None);
    }

    #[test]
    fn ranks_are_found_on_their_nodes() {
        let nodes = Nodes(blocks("(vector,(0,2,2),(2,1,3))").unwrap_or_default());
        let found: Vec<_> = (0..9).map(|rank| nodes.of(rank)).collect();
        assert_eq!(found, [0, 0, 1, 1, 2, 2, 2, 0, 0].map(Some));
        assert_eq!((blocks("(vector,(0,2))"), blocks("none")), (None, None));
        let empty = Block { first: 0, nodes: 0, ranks_per_node: 0 };
        assert_eq!((Nodes(Vec::new()).of(3), Nodes(vec![empty]).of(1)), (None, None));
    }
}
