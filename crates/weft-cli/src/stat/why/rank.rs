//! The ranks of a job: what each does, and what it waits for.
//!
//! Place in the data flow: two looks of `find.rs`, some tenths of a second apart → here → the findings of `verdict.rs`
//! and the output of `mod.rs`. A process publishes ten times a second while it calls weft. One that has published
//! nothing for longer makes no call.

use std::collections::BTreeMap;
use std::time::Duration;

use weft_observe::layout::{Peer, Wait};

use super::super::find::{Process, Published};
use super::super::names::Names;
use super::super::sample;
use super::tag::Library;
use crate::render;

/// Age of the last publication from which a process is said to compute.
const COMPUTES: Duration = Duration::from_millis(400);

/// The activity of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Messages or accesses have passed since the last look.
    Active,
    /// It calls weft, and operations are pending, but nothing passes.
    Waits,
    /// It calls weft, and nothing is pending.
    Polls,
    /// It makes no call of weft.
    Computes,
    /// It is stopped by a signal.
    Stopped,
    /// Its process has ended.
    Ended,
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Waits => "waits",
            Self::Polls => "polls",
            Self::Computes => "computes",
            Self::Stopped => "stopped",
            Self::Ended => "ended",
        }
    }

    /// The state in a sentence behind a rank.
    pub(crate) const fn clause(self) -> &'static str {
        match self {
            Self::Active => "is active",
            Self::Waits => "waits",
            Self::Polls => "is in a call, but has nothing pending in weft (a probe, or a call that weft does not see)",
            Self::Computes => "computes (it is in no call of weft)",
            Self::Stopped => "is stopped by a signal",
            Self::Ended => "has ended",
        }
    }

    /// Whether the rank may do what others wait for.
    pub(crate) const fn can_act(self) -> bool {
        matches!(self, Self::Active | Self::Polls | Self::Computes)
    }
}

/// The ranks that a call waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The rank at this place of the job's list.
    Rank(usize),
    /// Any rank.
    Any,
    /// Members of a group, by their places in the job's list.
    Ranks(Vec<usize>),
    /// A process that is not seen from here, by its name.
    Unseen(String),
}

/// A pending operation, or a message that waits for a receive.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) kind: &'static str,
    pub(crate) target: Target,
    /// Tag, and ignored bits, of tagged operations.
    pub(crate) tag: Option<(u64, u64)>,
    pub(crate) bytes: u64,
    pub(crate) since: Duration,
    /// The operation and the members that it waits for, of a collective.
    pub(crate) collective: Option<String>,
}

/// One rank, or a process without rank.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    pub(crate) number: Option<u64>,
    pub(crate) pid: Option<u32>,
    pub(crate) host: String,
    pub(crate) library: Library,
    pub(crate) state: State,
    /// Time since its last call of weft that is known.
    pub(crate) age: Duration,
    /// Operations and collectives, the oldest first.
    pub(crate) calls: Vec<Call>,
    /// Messages without a receive.
    pub(crate) messages: Vec<Call>,
}

impl Rank {
    /// The name in sentences.
    pub(crate) fn label(&self) -> String {
        match (self.number, self.pid) {
            (Some(number), _) => format!("rank {number}"),
            (None, Some(pid)) => format!("process {pid}"),
            (None, None) => "a process".to_owned(),
        }
    }
}

/// The words for a call: `receives from rank 1, tag 5 in MPI_COMM_WORLD`.
pub(crate) fn call_words(call: &Call, ranks: &[Rank], library: Library) -> String {
    if let Some(collective) = &call.collective {
        return format!("is in {collective}");
    }
    let peer = match &call.target {
        Target::Rank(place) => ranks.get(*place).map_or_else(|| "a process".to_owned(), Rank::label),
        Target::Any => "any rank".to_owned(),
        Target::Ranks(_) => "members".to_owned(),
        Target::Unseen(name) => name.clone(),
    };
    let verb = match call.kind {
        "receive" => "receives from",
        "message" => "has a message from",
        "send" => "sends to",
        "write" => "writes to the memory of",
        "read" => "reads the memory of",
        _ => "updates the memory of",
    };
    let tag = call.tag.map(|(tag, ignore)| format!(", {}", library.words(tag, ignore))).unwrap_or_default();
    format!("{verb} {peer}{tag}, {}", render::byte_count(call.bytes))
}

/// Messages and accesses so far.
fn traffic(process: &Process) -> u64 {
    let peers = process.endpoints.iter().flat_map(|published| &published.peers);
    let count = |peer: &Peer| {
        [peer.messages_sent, peer.messages_received, peer.accesses_sent, peer.accesses_received]
            .into_iter()
            .fold(0, u64::wrapping_add)
    };
    peers.map(count).fold(0, u64::wrapping_add)
}

/// The ranks of one job, in the order of their numbers. `status` tells the state of a process, as /proc does.
pub(crate) fn ranks(
    before: &BTreeMap<u32, Process>,
    job: &[&Process],
    names: &Names,
    status: impl Fn(u32) -> Option<char>,
) -> Vec<Rank> {
    let mut processes = job.to_vec();
    processes.sort_by_key(|process| (process.rank.is_none(), process.rank, process.pid));
    let mut ranks: Vec<Rank> = processes.iter().map(|process| rank(before, process, &status)).collect();
    add_missing(&processes, &mut ranks);
    let places = Places { ranks: &ranks, names, processes: &processes };
    let calls: Vec<_> = processes.iter().map(|process| places.calls(process)).collect();
    for (rank, (calls, messages)) in ranks.iter_mut().zip(calls) {
        if rank.state == State::Polls && !calls.is_empty() {
            rank.state = State::Waits;
        }
        (rank.calls, rank.messages) = (calls, messages);
    }
    ranks.sort_by_key(|rank| (rank.number.is_none(), rank.number, rank.pid));
    ranks
}

fn rank(before: &BTreeMap<u32, Process>, process: &Process, status: &impl Fn(u32) -> Option<char>) -> Rank {
    let age = process.endpoints.iter().map(|published| published.age).min().unwrap_or_default();
    let moved = before.get(&process.pid).is_none_or(|before| traffic(before) != traffic(process));
    let state = match status(process.pid) {
        Some('T' | 't') => State::Stopped,
        Some('Z' | 'X') | None => State::Ended,
        _ if age > COMPUTES => State::Computes,
        _ if moved => State::Active,
        _ => State::Polls,
    };
    Rank {
        number: process.rank,
        pid: Some(process.pid),
        host: process.host.clone(),
        library: Library::of(process.pid),
        state,
        age,
        calls: Vec::new(),
        messages: Vec::new(),
    }
}

/// Adds the ranks that have ended. Ranks of other hosts are not known to have ended.
fn add_missing(processes: &[&Process], ranks: &mut Vec<Rank>) {
    let size = processes.iter().filter_map(|process| process.size).max().unwrap_or(0).min(1 << 20);
    let hosts = processes.iter().flat_map(|process| &process.endpoints).map(|published| published.endpoint.ip_low);
    let own: Vec<u64> = hosts.collect();
    let peers = || processes.iter().flat_map(|process| &process.endpoints).flat_map(|published| &published.peers);
    // All peers that were ever known are on this host, so the missing ranks were, too.
    if !peers().all(|peer| peer.port == 0 || own.contains(&peer.ip_low)) {
        return;
    }
    for number in 0..size {
        if !processes.iter().any(|process| process.rank == Some(number)) {
            ranks.push(Rank {
                number: Some(number),
                pid: None,
                host: processes.first().map(|process| process.host.clone()).unwrap_or_default(),
                library: Library::Other,
                state: State::Ended,
                age: Duration::ZERO,
                calls: Vec::new(),
                messages: Vec::new(),
            });
        }
    }
}

/// The places of processes in the list of ranks.
struct Places<'a> {
    ranks: &'a [Rank],
    names: &'a Names,
    processes: &'a [&'a Process],
}

impl Places<'_> {
    /// The place of a rank in the final order.
    fn of(&self, is: impl Fn(&Rank) -> bool) -> Option<usize> {
        let key = |rank: &Rank| (rank.number.is_none(), rank.number, rank.pid);
        let found = self.ranks.iter().find(|rank| is(rank))?;
        Some(self.ranks.iter().filter(|rank| key(rank) < key(found)).count())
    }

    fn target(&self, peer: &Peer) -> Target {
        if let Some(known) = self.names.process(peer)
            && let Some(place) = self.of(|rank| rank.pid == Some(known.pid))
        {
            return Target::Rank(place);
        }
        // The only rank that is missing is the peer that nothing is known of.
        let mut missing = self.ranks.iter().filter(|rank| rank.pid.is_none());
        match (missing.next(), missing.next()) {
            (Some(one), None) if self.names.process(peer).is_none() => {
                self.of(|rank| rank.number == one.number).map_or_else(|| Target::Unseen(peer.name()), Target::Rank)
            }
            _ => Target::Unseen(self.names.full_label(peer)),
        }
    }

    fn call(&self, published: &Published, wait: &Wait) -> Call {
        Call {
            kind: wait.kind_name(),
            target: if wait.has(Wait::ANY) { Target::Any } else { self.target(&wait.peer()) },
            tag: wait.has(Wait::TAGGED).then_some((wait.tag, wait.ignore)),
            bytes: wait.bytes,
            since: published.age_since(wait.since_ns),
            collective: None,
        }
    }

    /// The calls of a process, and the messages that wait there.
    fn calls(&self, process: &Process) -> (Vec<Call>, Vec<Call>) {
        let of_waits = |published| move |wait| self.call(published, wait);
        let waits = process.endpoints.iter().flat_map(|published| published.waits.iter().map(of_waits(published)));
        let (messages, mut calls): (Vec<_>, Vec<_>) = waits.partition(|call| call.kind == "message");
        calls.extend(sample::groups(process).filter(|(_, group)| group.awaited > 0).map(|(published, group)| {
            let of_world = group.members == self.processes.iter().filter_map(|process| process.size).max().unwrap_or(0);
            let members = group.awaited_below_64().filter(|_| of_world);
            let places = members.filter_map(|member| self.of(|rank| rank.number == Some(member.into())));
            let awaited = super::super::awaited(group);
            Call {
                kind: "collective",
                target: if of_world {
                    Target::Ranks(places.collect())
                } else {
                    Target::Unseen(format!("members {awaited}"))
                },
                tag: None,
                bytes: group.block_bytes,
                since: published.age_of(group),
                collective: Some(format!(
                    "weft's {} (number {} of the group), waits for {} {awaited}",
                    group.operation_name(),
                    group.sequence,
                    if of_world { "ranks" } else { "members" }
                )),
            }
        }));
        calls.sort_by_key(|call| std::cmp::Reverse(call.since));
        (calls, messages)
    }
}
