//! Profiles: the costs of a machine, read from a data file in which each value has a unit and a source.
//!
//! Place in the data flow: [`crate::machine`] takes [`Costs`]; `weft sim profile` shows the values with their sources.
//! The files of known machines are compiled in; others are read by the command.
//!
//! A file has tables whose entries are `{ is = "1.5 us", source = "…" }`. An entry that was fitted to a published
//! figure also has `fit = "the figure"`. Unknown entries are refused, so that no value is ignored by a wrong name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The files of known machines, by name.
const FILES: [(&str, &str); 5] = [
    ("aries", include_str!("../profiles/aries.toml")),
    ("connectx2", include_str!("../profiles/connectx2.toml")),
    ("ethernet-25g", include_str!("../profiles/ethernet-25g.toml")),
    ("ethernet-100g", include_str!("../profiles/ethernet-100g.toml")),
    ("unimem", include_str!("../profiles/unimem.toml")),
];

/// A machine: its costs, and where they come from.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The name, such as `connectx2`.
    pub name: String,
    /// One sentence about the machine.
    pub about: String,
    /// The costs.
    pub costs: Costs,
    /// The values of the file.
    pub values: Vec<Value>,
}

/// A value of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Value {
    /// The place in the file, such as `far.latency`.
    pub name: String,
    /// The number and its unit.
    pub is: String,
    /// Where it comes from.
    pub source: String,
    /// The figure to which it was fitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<String>,
}

/// All costs of a machine. Times are picoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Ranks on one host.
    pub ranks_per_host: u32,
    /// Processors that the ranks of a host share, if there are more ranks; without a number, each rank has its own.
    pub processors: Option<u32>,
    /// Between ranks of one host; without it, their messages take the way between hosts.
    pub near: Option<Path>,
    /// Between hosts.
    pub far: Path,
    /// Work of a processor.
    pub cpu: Cpu,
    /// The layer that performs collectives.
    pub collective: Layer,
    /// The network card, if it has properties beyond those of a path.
    pub card: Card,
}

/// The costs of the layer that performs collectives, and of the boards of shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// A call, whatever its schedule: the processor's time at each rank.
    pub call: u64,
    /// Each message that a schedule waits for, beside the costs of the message.
    pub step: u64,
    /// A call on a board: the processor's time at each rank. Without a number, there are no boards.
    pub board: Option<u64>,
    /// A cache line that passes from one processor to another.
    pub line: u64,
    /// A rank that finds nothing looks once more, and yields its processor to the next rank.
    pub turn: u64,
    /// The part that each rank of a processor beyond two adds to a turn: it displaces lines of the others from the
    /// caches.
    pub refill: u64,
}

/// The costs of messages on one way, by the model LogGP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The processor's time to send a message (o).
    pub send: u64,
    /// The processor's time to receive a message (o).
    pub receive: u64,
    /// From the first byte's departure to its arrival (L).
    pub latency: u64,
    /// Between two messages of one device (g).
    pub gap: u64,
    /// For each byte of a message (G).
    pub byte: u64,
    /// For each byte, however many streams carry a message: what processors and memory need.
    pub least_byte: u64,
    /// The processor's time for each byte of a short message.
    pub cpu_byte: u64,
    /// The most time by which a message is late, chosen at random for each.
    pub jitter: u64,
    /// The shortest message that is announced first.
    pub rendezvous_from: Option<u64>,
    /// The shortest message that a bulk engine moves.
    pub bulk_from: Option<u64>,
    /// The shortest remote access that a bulk engine moves, if that differs.
    pub rma_bulk_from: Option<u64>,
    /// The bulk engine's time to start.
    pub bulk_setup: u64,
    /// How many messages the bulk engine moves at a time.
    pub bulk_channels: u32,
}

/// The costs of work of a processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Taking a message through a buffer of the message layer, whatever its length.
    pub stage: u64,
    /// Each byte of a copy.
    pub copy_byte: u64,
    /// Each byte of a reduction.
    pub reduce_byte: u64,
    /// A layer above the device: requests and completion entries, for each message at each end.
    pub layer: u64,
    /// A handler of an active message.
    pub handler: u64,
    /// Peers whose buffers a handler finds in the cache; without a number, all.
    pub peers: Option<u64>,
    /// The additional time of a handler for a peer whose buffers are not there.
    pub peer_miss: u64,
    /// The detour to a device at another socket, for each message at each end.
    pub far_socket: u64,
    /// One test whether an operation has ended.
    pub test: u64,
    /// The time within which one interruption of the processor falls.
    pub noise_every: u64,
    /// The duration of an interruption.
    pub noise_lasts: u64,
}

/// The costs and limits of a network card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// The processor's time until the card begins with a schedule.
    pub post: u64,
    /// The rest of the processor's time to hand a schedule to the card, while the card works.
    pub posting: u64,
    /// The processor's time to take the end of a schedule.
    pub reap: u64,
    /// The card's time for a message that it sends or receives. The ranks of a host share it.
    pub service: u64,
    /// The card's time for a step of a schedule that does not keep it from others.
    pub step: u64,
    /// Contexts of queues that the card holds; without a number, all.
    pub contexts: Option<u64>,
    /// The time to fetch a context, or a receive entry, from the memory of the host.
    pub fetch: u64,
    /// The most tasks of a schedule.
    pub entries: Option<u64>,
    /// Each byte of a reduction that the card performs.
    pub reduce_byte: u64,
    /// An atomic operation in the card.
    pub atomic: u64,
    /// The bytes of a message that fits into a mailbox.
    pub mailbox: Option<u64>,
    /// Registration of memory with the card.
    pub register: u64,
    /// Whether the card reaches special memory only, so that other memory is copied.
    pub special_memory: bool,
}

/// The reason for which a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No profile has this name.
    #[error("no profile `{0}`: there are {names}; a path must contain a slash or end in .toml", names = names())]
    Unknown(String),
    /// The text is not TOML, or has other members.
    #[error("the profile cannot be read: {0}")]
    Syntax(String),
    /// A value has an unknown name.
    #[error("the profile has a value `{0}`, which does not exist: correct the name")]
    NoSuchValue(String),
    /// A value has no number, or not the expected unit.
    #[error("the profile's value `{name}` is `{is}`: it must be {expected}")]
    Value {
        /// The value's name.
        name: String,
        /// Its text.
        is: String,
        /// The expected form.
        expected: &'static str,
    },
}

/// The names of the profiles that are compiled in.
#[must_use]
pub fn names() -> String {
    FILES.map(|(name, _)| name).join(", ")
}

/// One entry of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    is: String,
    source: String,
    fit: Option<String>,
}

/// A file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    about: String,
    #[serde(default)]
    machine: BTreeMap<String, Entry>,
    #[serde(default)]
    near: BTreeMap<String, Entry>,
    #[serde(default)]
    far: BTreeMap<String, Entry>,
    #[serde(default)]
    cpu: BTreeMap<String, Entry>,
    #[serde(default)]
    collective: BTreeMap<String, Entry>,
    #[serde(default)]
    card: BTreeMap<String, Entry>,
}

impl Profile {
    /// A profile that is compiled in.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let file = FILES.iter().find(|(known, _)| *known == name);
        let (_, text) = file.ok_or_else(|| ProfileError::Unknown(name.to_owned()))?;
        Self::parse(text)
    }

    /// All profiles that are compiled in.
    pub fn all() -> impl Iterator<Item = Self> {
        FILES.iter().filter_map(|(_, text)| Self::parse(text).ok())
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// The text is no profile.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let file: File = toml::from_str(text).map_err(|error| ProfileError::Syntax(error.message().to_owned()))?;
        let mut costs = Costs { ranks_per_host: 1, ..Costs::default() };
        let mut values = Vec::new();
        let File { machine, near, far, cpu, collective, card, .. } = file;
        for (table, entries) in [
            ("machine", machine),
            ("near", near),
            ("far", far),
            ("cpu", cpu),
            ("collective", collective),
            ("card", card),
        ] {
            for (key, Entry { is, source, fit }) in entries {
                let name = format!("{table}.{key}");
                costs.set(table, &key, &is).map_err(|fault| fault.at(&name, &is))?;
                values.push(Value { name, is, source, fit });
            }
        }
        Ok(Self { name: file.name, about: file.about, costs, values })
    }
}

/// A fault of a value, without its name.
enum Fault {
    NoSuchValue,
    Expected(&'static str),
}

impl Fault {
    fn at(self, name: &str, is: &str) -> ProfileError {
        match self {
            Self::NoSuchValue => ProfileError::NoSuchValue(name.to_owned()),
            Self::Expected(expected) => ProfileError::Value { name: name.to_owned(), is: is.to_owned(), expected },
        }
    }
}

impl Costs {
    fn set(&mut self, table: &str, key: &str, is: &str) -> Result<(), Fault> {
        match (table, key) {
            ("machine", "ranks_per_host") => self.ranks_per_host = count(is)?.max(1),
            ("machine", "processors") => self.processors = Some(count(is)?.max(1)),
            ("near", _) => self.near.get_or_insert_default().set(key, is)?,
            ("far", _) => self.far.set(key, is)?,
            ("cpu", _) => self.cpu.set(key, is)?,
            ("collective", _) => self.collective.set(key, is)?,
            ("card", _) => self.card.set(key, is)?,
            _ => return Err(Fault::NoSuchValue),
        }
        Ok(())
    }
}

impl Path {
    fn set(&mut self, key: &str, is: &str) -> Result<(), Fault> {
        match key {
            "send" => self.send = time(is)?,
            "receive" => self.receive = time(is)?,
            "latency" => self.latency = time(is)?,
            "gap" => self.gap = time(is)?,
            "byte" => self.byte = time_per_byte(is)?,
            "least_byte" => self.least_byte = time_per_byte(is)?,
            "cpu_byte" => self.cpu_byte = time_per_byte(is)?,
            "jitter" => self.jitter = time(is)?,
            "rendezvous_from" => self.rendezvous_from = Some(bytes(is)?),
            "bulk_from" => self.bulk_from = Some(bytes(is)?),
            "rma_bulk_from" => self.rma_bulk_from = Some(bytes(is)?),
            "bulk_setup" => self.bulk_setup = time(is)?,
            "bulk_channels" => self.bulk_channels = count(is)?,
            _ => return Err(Fault::NoSuchValue),
        }
        Ok(())
    }

    /// Whether the bulk engine moves a message of this length.
    #[must_use]
    pub fn is_bulk(&self, bytes: u64) -> bool {
        self.bulk_from.is_some_and(|from| bytes >= from)
    }
}

impl Cpu {
    fn set(&mut self, key: &str, is: &str) -> Result<(), Fault> {
        match key {
            "stage" => self.stage = time(is)?,
            "copy_byte" => self.copy_byte = time_per_byte(is)?,
            "reduce_byte" => self.reduce_byte = time_per_byte(is)?,
            "layer" => self.layer = time(is)?,
            "peers" => self.peers = Some(count(is)?.into()),
            "peer_miss" => self.peer_miss = time(is)?,
            "far_socket" => self.far_socket = time(is)?,
            "handler" => self.handler = time(is)?,
            "test" => self.test = time(is)?,
            "noise_every" => self.noise_every = time(is)?,
            "noise_lasts" => self.noise_lasts = time(is)?,
            _ => return Err(Fault::NoSuchValue),
        }
        Ok(())
    }
}

impl Layer {
    fn set(&mut self, key: &str, is: &str) -> Result<(), Fault> {
        match key {
            "call" => self.call = time(is)?,
            "step" => self.step = time(is)?,
            "board" => self.board = Some(time(is)?),
            "line" => self.line = time(is)?,
            "turn" => self.turn = time(is)?,
            "refill" => self.refill = time(is)?,
            _ => return Err(Fault::NoSuchValue),
        }
        Ok(())
    }
}

impl Card {
    fn set(&mut self, key: &str, is: &str) -> Result<(), Fault> {
        match key {
            "post" => self.post = time(is)?,
            "posting" => self.posting = time(is)?,
            "reap" => self.reap = time(is)?,
            "service" => self.service = time(is)?,
            "step" => self.step = time(is)?,
            "contexts" => self.contexts = Some(count(is)?.into()),
            "fetch" => self.fetch = time(is)?,
            "entries" => self.entries = Some(count(is)?.into()),
            "reduce_byte" => self.reduce_byte = time_per_byte(is)?,
            "atomic" => self.atomic = time(is)?,
            "mailbox" => self.mailbox = Some(bytes(is)?),
            "register" => self.register = time(is)?,
            "special_memory" => {
                self.special_memory = is.parse().map_err(|_| Fault::Expected("`true` or `false`"))?;
            }
            _ => return Err(Fault::NoSuchValue),
        }
        Ok(())
    }
}

/// Splits a text into a number and a unit, and multiplies the number by the unit's factor.
fn quantity(is: &str, units: &[(&str, f64)], expected: &'static str) -> Result<u64, Fault> {
    let (number, unit) = is.split_once(' ').unwrap_or((is, ""));
    let number: f64 = number.parse().map_err(|_| Fault::Expected(expected))?;
    let &(_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or(Fault::Expected(expected))?;
    let value = (number * factor).round();
    if !(0.0..1e18).contains(&value) {
        return Err(Fault::Expected(expected));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // In range, and rounded.
    let value = value as u64;
    Ok(value)
}

fn time(is: &str) -> Result<u64, Fault> {
    quantity(is, &[("ps", 1.0), ("ns", 1e3), ("us", 1e6), ("ms", 1e9), ("s", 1e12)], "a time, such as `1.5 us`")
}

fn time_per_byte(is: &str) -> Result<u64, Fault> {
    quantity(is, &[("ps/B", 1.0), ("ns/B", 1e3)], "a time for each byte, such as `80 ps/B`")
}

fn bytes(is: &str) -> Result<u64, Fault> {
    quantity(is, &[("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0)], "a length, such as `16 KiB`")
}

fn count(is: &str) -> Result<u32, Fault> {
    is.parse().map_err(|_| Fault::Expected("a number without a unit"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn known_profiles_can_be_read() {
        assert_eq!(Profile::all().count(), FILES.len());
        for (name, text) in FILES {
            let profile = Profile::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(profile.name, name);
            assert!(profile.costs.far.latency > 0, "{name}");
            assert!(profile.values.iter().all(|value| !value.source.is_empty()), "{name}");
        }
    }

    #[test]
    fn faults_are_named() {
        let fault = |line: &str| {
            let text = format!("name = \"x\"\nabout = \"y\"\n[far]\n{line}");
            Profile::parse(&text).map(drop).unwrap_err().to_string()
        };
        let unit = fault("latency = { is = \"1.5 B\", source = \"s\" }");
        assert_eq!(unit, "the profile's value `far.latency` is `1.5 B`: it must be a time, such as `1.5 us`");
        assert!(fault("latenzy = { is = \"1 us\", source = \"s\" }").contains("`far.latenzy`, which does not exist"));
        assert!(fault("latency = { is = \"1 us\" }").contains("source"));
        assert!(Profile::named("cray").unwrap_err().to_string().contains("connectx2"));
    }

    #[test]
    fn units_are_converted() {
        let text = "name = \"x\"\nabout = \"y\"\n[far]\nlatency = { is = \"1.5 us\", source = \"s\" }\n\
                    byte = { is = \"0.105 ns/B\", source = \"s\" }\nbulk_from = { is = \"8 KiB\", source = \"s\" }";
        let far = Profile::parse(text).unwrap().costs.far;
        assert_eq!((far.latency, far.byte, far.bulk_from), (1_500_000, 105, Some(8192)));
        assert!(far.is_bulk(8192) && !far.is_bulk(8191));
    }
}
