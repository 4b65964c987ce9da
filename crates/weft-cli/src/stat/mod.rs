//! `weft stat PID` shows the counters of a process's endpoints; `top` shows all processes with their rates, and `why`
//! tells for which ranks the ranks of a job wait.
//! `prometheus` writes them for scrapers.
//!
//! Place in the data flow: reads the files that `weft_observe::Page` has written. Nothing here stops, wakes or
//! changes a process.

mod find;
mod job;
mod names;
mod prometheus;
mod sample;
mod top;
mod why;

use std::fmt::Write as _;
use std::io;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use weft_observe::layout::{Endpoint, Group, Peer};

use crate::render::{self, Text};
use find::{Process, Published};
use names::Names;
use sample::has_counts;

pub(crate) use job::is_launcher;
pub(crate) use prometheus::look as prometheus;
pub(crate) use top::{Options as TopOptions, run as run_top};
pub(crate) use why::{Options as WhyOptions, run as run_why};

/// The result of `weft stat`.
pub(crate) struct Stat {
    process: Process,
    /// The processes of its peers.
    names: Names,
}

/// Parses a process id.
pub(crate) fn process_id(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|pid| *pid > 0).ok_or_else(|| {
        "a process id is a number, such as 4711; `weft top --once` lists the processes that use weft".to_owned()
    })
}

/// Inspects a process.
pub(crate) fn look(pid: u32) -> io::Result<Stat> {
    let process = find::process(pid)?;
    Ok(Stat { process, names: Names::of(find::all()?.iter()) })
}

/// Barriers on chains that the endpoints of this process have published.
#[cfg(feature = "lab")]
pub(crate) fn chained_barriers() -> u64 {
    let endpoints = find::process(std::process::id()).map(|process| process.endpoints).unwrap_or_default();
    endpoints.iter().map(|published| published.endpoint.kernel_barriers).sum()
}

/// Published fields that JSON and the man page present in another form.
pub(crate) const PUBLISHED_OTHERWISE: &[&str] = &[
    "ip_high",
    "ip_low",
    "port",
    "id",
    "address",
    "state",
    "device",
    "published_ns",
    "opened_ns",
    "operation",
    "awaited_ranks",
    "since_ns",
    "waits",
    "wait_words",
];

fn counters(fields: &[(&str, &str)], words: impl Iterator<Item = u64>) -> Map<String, Value> {
    let named = fields.iter().zip(words).filter(|((name, _), _)| !PUBLISHED_OTHERWISE.contains(name));
    named.map(|((name, _), word)| ((*name).to_owned(), word.into())).collect()
}

/// Whether a counter counts bytes.
fn is_bytes(name: &str) -> bool {
    name.contains("bytes")
}

fn peer_json(peer: &Peer, names: &Names) -> Value {
    let mut map = counters(Peer::FIELDS, peer.words());
    map.insert("name".into(), peer.name().into());
    map.insert("state".into(), peer.state_name().into());
    map.insert("device".into(), peer.device_name().into());
    map.insert("address".into(), (peer.address != u64::MAX).then_some(peer.address).into());
    let known = names.process(peer);
    map.insert("pid".into(), known.map(|known| known.pid).into());
    map.insert("rank".into(), known.and_then(|known| known.rank).into());
    map.insert("host".into(), names.host(peer).into());
    map.into()
}

fn group_json(published: &Published, group: &Group) -> Value {
    let mut map = counters(Group::FIELDS, group.words());
    map.insert("operation".into(), group.operation_name().into());
    map.insert("awaited_ranks".into(), group.awaited_below_64().collect());
    map.insert("age_ms".into(), u64::try_from(published.age_of(group).as_millis()).unwrap_or(u64::MAX).into());
    map.into()
}

const GROUP_HEADS: [&str; 8] =
    ["group", "rank", "operation", "number", "block", "under way", "waits for ranks", "since"];

/// The cells of a group under [`GROUP_HEADS`].
fn group_cells(published: &Published, group: &Group) -> [String; 8] {
    [
        group.number.to_string(),
        format!("{} of {}", group.rank, group.members),
        group.operation_name().to_owned(),
        group.sequence.to_string(),
        render::byte_count(group.block_bytes),
        group.under_way.to_string(),
        awaited(group),
        format!("{:.1} s", published.age_of(group).as_secs_f64()),
    ]
}

/// Most ranks that are listed by name.
const LISTED: usize = 8;

/// Lists the members that a group's operation waits for.
fn awaited(group: &Group) -> String {
    let mut ranks: Vec<String> = group.awaited_below_64().take(LISTED).map(|rank| rank.to_string()).collect();
    let others = group.awaited.saturating_sub(ranks.len() as u64);
    match (ranks.is_empty(), others) {
        (true, 0) => return String::new(),
        (true, _) => return format!("{others} above 63"),
        (false, 0) => {}
        (false, _) => ranks.push(format!("{others} more")),
    }
    ranks.join(", ")
}

fn endpoint_json(published: &Published, names: &Names) -> Value {
    let Published { endpoint, age, peers, groups, .. } = published;
    let ms = |ns: u64| ns / 1_000_000;
    let mut map = counters(Endpoint::FIELDS, endpoint.words());
    map.insert("name".into(), endpoint.name().into());
    map.insert("age_ms".into(), u64::try_from(age.as_millis()).unwrap_or(u64::MAX).into());
    map.insert("open_ms".into(), ms(endpoint.published_ns.saturating_sub(endpoint.opened_ns)).into());
    map.insert("peer_sums".into(), counters(Peer::FIELDS, together(peers).words()).into());
    map.insert(
        "peer_list".into(),
        peers.iter().filter(|peer| has_counts(peer)).map(|peer| peer_json(peer, names)).collect(),
    );
    map.insert("group_list".into(), groups.iter().map(|group| group_json(published, group)).collect());
    map.into()
}

/// The sums of the peers' counters.
fn together(peers: &[Peer]) -> Peer {
    let mut sums = vec![0_u64; Peer::FIELDS.len()];
    for peer in peers {
        for (sum, word) in sums.iter_mut().zip(peer.words()) {
            *sum = sum.saturating_add(word);
        }
    }
    Peer::from_words(&sums)
}

impl Serialize for Stat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Process { pid, command, version, rank, size, host, job, endpoints } = &self.process;
        let value = serde_json::json!({
            "pid": pid,
            "command": command,
            "weft": version,
            "rank": rank,
            "size": size,
            "host": host,
            "job": job,
            "endpoints": endpoints.iter().map(|endpoint| endpoint_json(endpoint, &self.names)).collect::<Vec<_>>(),
        });
        value.serialize(serializer)
    }
}

impl Text for Stat {
    fn text(&self) -> String {
        let Process { pid, command, version, rank, size, host, job, endpoints } = &self.process;
        let rank = match (rank, size) {
            (Some(rank), Some(size)) => format!(", rank {rank} of {size}"),
            (Some(rank), None) => format!(", rank {rank}"),
            _ => String::new(),
        };
        let host = if host.is_empty() { String::new() } else { format!(" on {host}") };
        let mut text = format!("process {pid}{rank}{host}, job {job}, weft {version}: {command}\n");
        for published in endpoints {
            let Published { endpoint, age, groups, .. } = published;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "\nendpoint {}, as of {} ms ago", endpoint.name(), age.as_millis());
            let counted = Endpoint::FIELDS.iter().zip(endpoint.words());
            let counted = counted.filter(|((name, _), word)| *word != 0 && !PUBLISHED_OTHERWISE.contains(name));
            text += &render::table(
                ["counter", "value", "meaning"],
                counted.map(|((name, help), word)| [(*name).to_owned(), shown(name, word), (*help).to_owned()]),
            );
            text += "\n";
            if !groups.is_empty() {
                let rows: Vec<Vec<String>> =
                    groups.iter().map(|group| group_cells(published, group).to_vec()).collect();
                text += &render::split_table(&GROUP_HEADS, &rows);
                text += "\n";
            }
            text += &peer_table(&published.peers, &self.names);
        }
        text
    }
}

/// The value of a counter for people.
fn shown(name: &str, word: u64) -> String {
    if is_bytes(name) { render::byte_count(word) } else { render::count(word) }
}

/// The peers of an endpoint. Pairs are sent and received. Columns of zeros are left out.
fn peer_table(peers: &[Peer], names: &Names) -> String {
    const HEADS: [&str; 13] = [
        "peer",
        "link",
        "messages",
        "bytes",
        "rendezvous",
        "matched",
        "accesses",
        "access bytes",
        "in mapped",
        "mapped regions",
        "stalls",
        "retries",
        "waiting",
    ];
    /// Columns that are always shown.
    const FIRST: usize = 4;
    let with_counts = peers.iter().filter(|peer| has_counts(peer));
    let link = |peer: &Peer| peer.device_name().unwrap_or_else(|| peer.state_name().to_owned());
    let all = (with_counts.clone().count() > 1).then(|| ("together".to_owned(), String::new(), together(peers)));
    let rows = with_counts.map(|peer| (names.full_label(peer), link(peer), *peer)).chain(all);
    let cells: Vec<[String; 13]> = rows.map(|(name, link, peer)| peer_cells(name, link, &peer)).collect();
    let has_digits = |column: &usize| cells.iter().any(|row| row[*column].contains(|char| matches!(char, '1'..='9')));
    let columns: Vec<usize> = (0..HEADS.len()).filter(|column| *column < FIRST || has_digits(column)).collect();
    let heads: Vec<&str> = columns.iter().map(|column| HEADS[*column]).collect();
    let rows: Vec<Vec<String>> =
        cells.iter().map(|row| columns.iter().map(|column| row[*column].clone()).collect()).collect();
    render::split_table(&heads, &rows)
}

fn peer_cells(name: String, link: String, peer: &Peer) -> [String; 13] {
    let pair = |one: u64, other: u64| format!("{} / {}", render::count(one), render::count(other));
    let bytes = |one: u64, other: u64| format!("{} / {}", render::byte_count(one), render::byte_count(other));
    [
        name,
        link,
        pair(peer.messages_sent, peer.messages_received),
        bytes(peer.bytes_sent, peer.bytes_received),
        pair(peer.rendezvous_sent, peer.rendezvous_received),
        pair(peer.matched_on_arrival, peer.matched_on_posting),
        pair(peer.accesses_sent, peer.accesses_received),
        bytes(peer.access_bytes_sent, peer.access_bytes_received),
        render::count(peer.accesses_mapped),
        pair(peer.regions_mapped, peer.regions_shared),
        render::count(peer.stalls),
        render::count(peer.retries),
        render::count(peer.waiting.saturating_add(peer.outstanding)),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    fn sample() -> Stat {
        let endpoint = Endpoint { peers: 2, unexpected: 3, ..Endpoint::default() };
        let peer = Peer { state: 2, messages_sent: 5, address: u64::MAX, ..Peer::default() };
        let empty = Peer { address: 1, ..Peer::default() };
        let published =
            Published { endpoint, age: Duration::from_millis(12), peers: vec![peer, empty], ..Published::default() };
        let process = Process { pid: 9, command: "a.out".into(), endpoints: vec![published], ..Process::default() };
        Stat { process, names: Names::default() }
    }

    #[test]
    fn json_has_every_counter_under_its_name() {
        let value = serde_json::to_value(sample()).unwrap();
        let endpoint = &value["endpoints"][0];
        assert_eq!((&endpoint["unexpected"], &endpoint["age_ms"]), (&3.into(), &12.into()));
        let peers = endpoint["peer_list"].as_array().unwrap();
        assert_eq!(peers.len(), 1, "a peer without counts is left out");
        assert_eq!((&peers[0]["messages_sent"], &peers[0]["address"]), (&5.into(), &Value::Null));
        for (name, _) in Peer::FIELDS.iter().filter(|(name, _)| !PUBLISHED_OTHERWISE.contains(name)) {
            assert!(peers[0].get(name).is_some(), "{name}");
            assert_eq!(endpoint["peer_sums"][name], peers[0][name], "{name}");
        }
    }

    #[test]
    fn text_shows_nonzero_counters() {
        let text = sample().text();
        assert!(text.contains("unexpected") && text.contains("5 / 0") && !text.contains("tcp_sends"), "{text}");
        assert!(!text.contains("together"), "there is one peer:\n{text}");
    }

    #[test]
    fn several_peers_are_also_summed() {
        let Stat { mut process, names } = sample();
        let peer = Peer { messages_received: 9, matched_on_arrival: 7, matched_on_posting: 2, ..Peer::default() };
        process.endpoints[0].peers.extend([peer, peer]);
        let text = Stat { process: process.clone(), names }.text();
        let line = text.lines().find(|line| line.contains("together")).unwrap();
        assert!(line.contains("5 / 18") && line.contains("14 / 4"), "{text}");
        process.endpoints[0].peers.push(Peer { matched_on_arrival: u64::MAX, ..peer });
        let sums =
            &serde_json::to_value(Stat { process, names: Names::default() }).unwrap()["endpoints"][0]["peer_sums"];
        assert_eq!((&sums["messages_sent"], &sums["messages_received"]), (&5.into(), &27.into()));
        assert_eq!((&sums["matched_on_arrival"], &sums["matched_on_posting"]), (&u64::MAX.into(), &6.into()));
        assert!(text.contains("7 / 2"), "{text}");
    }
}
