//! `weft stat --prometheus`: the counters of endpoints in Prometheus's text format, version 0.0.4.
//!
//! Place in the data flow: `find.rs` → here → a scraper, such as node_exporter's textfile collector. A family has the
//! name of its counter, as on the man page, with `weft_` before it and `_total` behind it if it only grows. Traffic is
//! summed over the peers of each path.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use weft_observe::layout::{Endpoint, Peer};

use super::find::{self, Process, Published};
use super::sample::UP;
use super::{PUBLISHED_OTHERWISE, together};

/// Numbers that also fall. All others only grow.
const GAUGES: &[&str] = &[
    "sleepers",
    "operations",
    "posted",
    "unexpected",
    "unexpected_most",
    "cache_bytes",
    "tcp_half_open",
    "tcp_streams",
    "busy_groups",
    "collectives",
    "waiting",
    "outstanding",
    "mapped_bytes",
    "regions_mapped",
    "regions_shared",
];

/// A family of samples.
struct Family {
    name: String,
    help: String,
    is_gauge: bool,
    samples: Vec<(String, f64)>,
}

impl Family {
    fn new(name: &str, help: &str, is_gauge: bool) -> Self {
        let total = if is_gauge || name.ends_with("_total") { "" } else { "_total" };
        Self { name: format!("weft_{name}{total}"), help: help.to_owned(), is_gauge, samples: Vec::new() }
    }

    /// The family of a field, unless the field is shown in another form.
    fn of_field((name, help): &(&str, &str)) -> Option<Self> {
        (!PUBLISHED_OTHERWISE.contains(name)).then(|| Self::new(name, help, GAUGES.contains(name)))
    }

    fn text(&self) -> String {
        let kind = if self.is_gauge { "gauge" } else { "counter" };
        let help = self.help.replace('\\', "\\\\").replace('\n', "\\n");
        let mut text = format!("# HELP {} {help}\n# TYPE {} {kind}\n", self.name, self.name);
        for (labels, value) in &self.samples {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}{{{labels}}} {value}", self.name);
        }
        text
    }
}

/// Inspects one process, or all, and formats their counters.
pub(crate) fn look(pid: Option<u32>) -> io::Result<String> {
    let processes = match pid {
        Some(pid) => vec![find::process(pid)?],
        None => find::all()?,
    };
    Ok(text(&processes))
}

// Counters stay far below 2⁵³.
#[allow(clippy::cast_precision_loss)]
fn text(processes: &[Process]) -> String {
    let mut of_endpoint: Vec<Option<Family>> = Endpoint::FIELDS.iter().map(Family::of_field).collect();
    let mut of_path: Vec<Option<Family>> = Peer::FIELDS.iter().map(Family::of_field).collect();
    let mut links = Family::new("links", "Links that are up.", true);
    let mut age = Family::new("age_seconds", "Age of the numbers: a process that computes publishes none.", true);
    for process in processes {
        for published in &process.endpoints {
            let labels = labels(process, &published.endpoint);
            age.samples.push((labels.clone(), published.age.as_secs_f64()));
            add(&mut of_endpoint, &labels, published.endpoint.words());
            for (path, (sums, up)) in by_path(published) {
                let labels = format!("{labels},path=\"{}\"", escaped(&path));
                links.samples.push((labels.clone(), up as f64));
                add(&mut of_path, &labels, sums.words());
            }
        }
    }
    let families = of_endpoint.iter().chain(&of_path).flatten().chain([&links, &age]);
    families.map(Family::text).collect()
}

#[allow(clippy::cast_precision_loss)]
fn add(families: &mut [Option<Family>], labels: &str, words: impl Iterator<Item = u64>) {
    for (family, word) in families.iter_mut().zip(words) {
        if let Some(family) = family {
            family.samples.push((labels.to_owned(), word as f64));
        }
    }
}

/// The sums over the peers of each path, and the number of links that are up. Peers without a link have had none, or
/// their traffic is that of the path that they used last.
fn by_path(published: &Published) -> BTreeMap<String, (Peer, usize)> {
    let mut paths: BTreeMap<String, Vec<Peer>> = BTreeMap::new();
    for peer in &published.peers {
        paths.entry(peer.device_name().unwrap_or_else(|| "none".to_owned())).or_default().push(*peer);
    }
    let sums = |peers: Vec<Peer>| (together(&peers), peers.iter().filter(|peer| peer.state == UP).count());
    paths.into_iter().map(|(path, peers)| (path, sums(peers))).collect()
}

/// The labels of an endpoint. A rank that is not known has no label.
fn labels(process: &Process, endpoint: &Endpoint) -> String {
    let mut labels = vec![("pid", process.pid.to_string())];
    labels.extend(process.rank.map(|rank| ("rank", rank.to_string())));
    labels.extend([("job", process.job.clone()), ("host", process.host.clone()), ("endpoint", endpoint.name())]);
    labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect::<Vec<_>>().join(",")
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    fn is_name(text: &str) -> bool {
        let first = |char: char| char.is_ascii_alphabetic() || char == '_';
        text.starts_with(first) && text.chars().all(|char| first(char) || char.is_ascii_digit())
    }

    /// Reads labels up to the closing brace. Returns them and the rest.
    fn read_labels(mut text: &str) -> (Vec<(String, String)>, &str) {
        let mut labels = Vec::new();
        loop {
            let (name, rest) = text.split_once("=\"").unwrap();
            assert!(is_name(name), "{name}");
            let (mut value, mut chars) = (String::new(), rest.char_indices());
            let end = loop {
                match chars.next().unwrap() {
                    (at, '"') => break at,
                    (_, '\\') => match chars.next().unwrap().1 {
                        'n' => value.push('\n'),
                        char @ ('\\' | '"') => value.push(char),
                        other => panic!("a wrong escape: {other}"),
                    },
                    (_, char) => value.push(char),
                }
            };
            labels.push((name.to_owned(), value));
            match rest[end + 1..].split_at(1) {
                (",", more) => text = more,
                ("}", more) => return (labels, more),
                other => panic!("labels end with {other:?}"),
            }
        }
    }

    type Sample = (String, Vec<(String, String)>, f64);

    /// Reads the format strictly: each family once, with help and type before its samples, and no sample twice.
    fn parse(text: &str) -> Vec<Sample> {
        let (mut families, mut seen, mut samples) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut lines = text.lines().peekable();
        assert!(text.ends_with('\n'));
        while let Some(line) = lines.next() {
            let (name, help) = line.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty() && families.insert(name.to_owned()), "{line}");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert!(matches!(kind, "counter" | "gauge"), "{kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let (labels, value) = read_labels(line.strip_prefix(name).unwrap().strip_prefix('{').unwrap());
                assert!(seen.insert(line.rsplit_once(' ').unwrap().0), "twice: {line}");
                samples.push((name.to_owned(), labels, value.strip_prefix(' ').unwrap().parse().unwrap()));
            }
        }
        samples
    }

    fn processes() -> Vec<Process> {
        let device = |name: &[u8; 3]| u64::from_le_bytes([name[0], name[1], name[2], 0, 0, 0, 0, 0]);
        let peer = |name, sent| Peer { state: UP, device: device(name), messages_sent: sent, ..Peer::default() };
        let published = Published {
            endpoint: Endpoint { unexpected: 3, unexpected_total: 4, port: 7, ..Endpoint::default() },
            peers: vec![peer(b"shm", 5), peer(b"shm", 6), peer(b"tcp", 7)],
            ..Published::default()
        };
        let job = "mpiexec \"a\\b\"\n1".to_owned();
        let process = Process { pid: 9, rank: Some(1), job, host: "node1".into(), ..Process::default() };
        vec![
            Process { endpoints: vec![published.clone()], ..process.clone() },
            Process { pid: 10, rank: None, endpoints: vec![published], ..process },
        ]
    }

    #[test]
    fn the_format_is_that_of_prometheus() {
        let samples = parse(&text(&processes()));
        let find = |name: &str, wanted: &[(&str, &str)]| {
            let has = |labels: &[(String, String)]| {
                wanted.iter().all(|(name, value)| labels.contains(&((*name).to_owned(), (*value).to_owned())))
            };
            let all: Vec<f64> =
                samples.iter().filter(|(of, labels, _)| of == name && has(labels)).map(|s| s.2).collect();
            all
        };
        let job = ("job", "mpiexec \"a\\b\"\n1");
        assert_eq!(find("weft_unexpected", &[("pid", "9"), ("rank", "1"), job, ("host", "node1")]), [3.0]);
        assert_eq!(find("weft_unexpected_total", &[("pid", "10")]), [4.0]);
        assert_eq!(find("weft_messages_sent_total", &[("pid", "9"), ("path", "shm")]), [11.0]);
        assert_eq!(find("weft_messages_sent_total", &[("pid", "9"), ("path", "tcp")]), [7.0]);
        assert_eq!(find("weft_links", &[("pid", "9"), ("path", "shm")]), [2.0]);
        assert_eq!(find("weft_age_seconds", &[]).len(), 2);
        assert!(samples.iter().filter(|(_, labels, _)| labels[0].1 == "10").all(|(_, labels, _)| labels[1].0 == "job"));
    }

    #[test]
    fn numbers_that_fall_are_those_of_fields() {
        let fields = || Endpoint::FIELDS.iter().chain(Peer::FIELDS).map(|field| field.0);
        assert!(GAUGES.iter().all(|gauge| fields().any(|field| field == *gauge)));
        assert!(parse(&text(&[])).is_empty());
    }
}
