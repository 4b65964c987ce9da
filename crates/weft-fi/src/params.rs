//! The variables `FI_WEFT_*`: a table with name, default, unit and help, and their current values.
//!
//! Place in the data flow: the values are read once, at the first `fi_getinfo`; domains keep a copy. Inside a
//! host the variables are declared and read by `fi_param_define` and `fi_param_get`, so that `fi_info -e`
//! lists them. A program that links weft as a library (the `weft` command) reads the environment directly.
//! The table is also the source for fi_weft(7) and `weft info --params`.
//!
//! A value that does not parse is reported, and the default is used. A number out of its limits is reported, and the
//! nearest limit is used ([`problem`]). Sizes may end in K, M or G (powers of 1024). An empty job key is an error of
//! `Params::check`: the default would give no protection.

pub mod problem;

use std::ffi::CString;
use std::sync::OnceLock;

use rustix::thread::CpuSet;
use weft_engine::api::Matching;
use weft_engine::mrcache::Limits;
use weft_engine::name::MAX_CONTEXTS;
use weft_nic::Uring;

use crate::abi::errno::Errno;
use crate::host;
use problem::Problem;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The name without the prefix `FI_WEFT_`.
    pub name: &'static str,
    /// The default as text, as a user would set it.
    pub default: &'static str,
    /// The unit: `bytes`, `ms`, `µs`, `yes/no`, `count`, `name`, `list` or `text`.
    pub unit: &'static str,
    /// The smallest and the largest number, if the value is a number with limits.
    pub limits: Option<(u64, u64)>,
    /// The description, one to three sentences.
    pub help: &'static str,
}

impl Param {
    /// Whether the variable concerns only devices that require registration. No device of weft does, so lists for users
    /// leave the variable out.
    #[must_use]
    pub fn is_of_registration(&self) -> bool {
        self.name.starts_with("MR_CACHE")
    }

    /// The default for users, to follow the unit: `, default: 8K`. Empty if the description tells it.
    #[must_use]
    pub fn default_text(&self) -> String {
        match self.default {
            "" if self.help.contains("Default:") => String::new(),
            "" => ", default: none".to_owned(),
            default => format!(", default: {default}"),
        }
    }
}

/// A type of variable.
trait Value: Sized {
    /// Parses a text.
    fn parse(text: &str) -> Option<Self>;

    /// The value of a variable that is not set, by default that of the table's text.
    fn unset(default: &str) -> Option<Self> {
        Self::parse(default)
    }

    /// The value as a number, if it is one.
    fn number(&self) -> Option<u64> {
        None
    }
}

impl Value for bool {
    fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "1" | "y" | "yes" | "t" | "true" | "on" => Some(true),
            "0" | "n" | "no" | "f" | "false" | "off" => Some(false),
            _ => None,
        }
    }
}

impl Value for u64 {
    fn parse(text: &str) -> Option<Self> {
        let (digits, shift) = match text.as_bytes().last()? {
            b'k' | b'K' => (&text[..text.len() - 1], 10),
            b'm' | b'M' => (&text[..text.len() - 1], 20),
            b'g' | b'G' => (&text[..text.len() - 1], 30),
            _ => (text, 0),
        };
        digits.trim().parse::<Self>().ok()?.checked_mul(1 << shift)
    }

    fn number(&self) -> Option<u64> {
        Some(*self)
    }
}

impl Value for usize {
    fn parse(text: &str) -> Option<Self> {
        u64::parse(text).and_then(|value| value.try_into().ok())
    }

    fn number(&self) -> Option<u64> {
        u64::try_from(*self).ok()
    }
}

/// Processors by numbers and ranges, such as `1,4-7`.
impl Value for CpuSet {
    fn parse(text: &str) -> Option<Self> {
        let mut set = Self::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            if first > last || last >= Self::MAX_CPU {
                return None;
            }
            (first..=last).for_each(|processor| set.set(processor));
        }
        Some(set)
    }
}

impl Value for Uring {
    fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("polled") {
            return Some(Self::Polled);
        }
        bool::parse(text).map(|yes| if yes { Self::Yes } else { Self::No })
    }
}

impl Value for String {
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Value for Matching {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// The job key in the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobKey {
    /// The variable is not set, so there is no key.
    Unset,
    /// The variable is set to an empty or blank text.
    Empty,
    /// The key.
    Key(String),
}

impl JobKey {
    /// The bytes of the key.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Unset | Self::Empty => None,
            Self::Key(text) => Some(text.as_bytes().to_vec()),
        }
    }
}

impl Value for JobKey {
    fn parse(text: &str) -> Option<Self> {
        Some(if text.is_empty() { Self::Empty } else { Self::Key(text.to_owned()) })
    }

    fn unset(_default: &str) -> Option<Self> {
        Some(Self::Unset)
    }
}

/// An empty value means "not set".
impl<T: Value> Value for Option<T> {
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { T::parse(text).map(Some) }
    }

    fn number(&self) -> Option<u64> {
        self.as_ref().and_then(T::number)
    }
}

/// Declares the table, the structure and its reader in one place.
macro_rules! params {
    ($($field:ident: $type:ty = $default:literal, $unit:literal, $name:literal, $help:literal
        $(, $least:literal to $most:expr)?;)*) => {
        /// All variables, in the order in which they are listed.
        pub const TABLE: &[Param] =
            &[$(Param {
                name: $name,
                default: $default,
                unit: $unit,
                limits: params!(@limits $($least to $most)?),
                help: $help,
            }),*];

        /// The current values.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Params {
            $(
                #[doc = concat!("`FI_WEFT_", $name, "`, in ", $unit, ": ", $help)]
                pub $field: $type,
            )*
        }

        impl Params {
            /// Reads the values from `source`, which maps a name to a text, with the table's defaults. Returns the
            /// texts that could not be used, too.
            fn read(source: impl Fn(&str) -> Option<String>) -> (Self, Vec<Problem>) {
                let mut problems = Vec::new();
                let mut rows = TABLE.iter();
                let read = Self { $($field: value(rows.next(), source($name), &mut problems)),* };
                (read, problems)
            }
        }
    };
    (@limits) => { None };
    (@limits $least:literal to $most:expr) => { Some(($least, $most)) };
}

/// The largest time-out: a day.
const DAY_MS: u64 = 86_400_000;
/// The largest amount of memory.
const MEMORY_MOST: u64 = 1 << 40;

params! {
    iface: Option<String> = "", "list", "IFACE",
        "Network interface (by name) or local address (IPv4 or IPv6) that TCP uses, or a list of up to four, separated by commas. Of a list, the first two are in the endpoint's address: peers that cannot reach the first try the second. Long messages use all. The interfaces must be in different networks. Default: of the interfaces that are up and have a carrier, that of the default route, then the fastest one; bridges follow, and links to one host, as of a VPN, are the last. `weft info` shows the choice.";
    shm: bool = "yes", "yes/no", "SHM",
        "Use shared memory to endpoints on the same host.";
    tcp: bool = "yes", "yes/no", "TCP",
        "Use TCP to endpoints that shared memory does not reach.";
    cma: bool = "yes", "yes/no", "CMA",
        "Copy messages of more than 128 KiB inside a host once, by process_vm_readv(2), where the kernel permits it.";
    connect_timeout_ms: u64 = "10000", "ms", "CONNECT_TIMEOUT_MS",
        "Longest time on each device for a connection to a peer, and then for each of the peer's two answers. Operations to the peer fail after it. A process that may be computing has an hour for an answer if its address is complete: one on the same host, or one that accepts connections.",
        0 to DAY_MS;
    connect_retry_ms: u64 = "1000", "ms", "CONNECT_RETRY_MS",
        "Time during which a refused TCP connection is retried: the peer may be about to listen.",
        0 to DAY_MS;
    tcp_resume_ms: u64 = "10000", "ms", "TCP_RESUME_MS",
        "Time during which a broken TCP connection to a peer is restored, unless the peer is known to be gone. Data that the peer did not receive is sent again. 0: the link ends at once.",
        0 to DAY_MS;
    tcp_streams: Option<usize> = "", "count", "TCP_STREAMS",
        "TCP connections that together carry the messages of more than 256 KiB between two endpoints. They are made when the first such message is sent. 1: the connection that carries short messages. Default: one for each interface in FI_WEFT_IFACE, two from 25 Gbit/s on, four from 100 Gbit/s on, and twice as many, up to 8, as long as they are measured to carry 1.4 times as much; inside a host 1.",
        1 to 8;
    eager_bytes: Option<usize> = "", "bytes", "EAGER_BYTES",
        "Longest message that is sent eagerly, without a request to the receiver, on every device. Values above a device's maximum (32,896 for shared memory, 65,664 for TCP) are reduced to it. Default: the device's choice.",
        0 to 1 << 30;
    shm_eager_bytes: Option<usize> = "", "bytes", "SHM_EAGER_BYTES",
        "Longest message that is sent eagerly over shared memory. Default: the device's choice.",
        0 to 1 << 30;
    tcp_eager_bytes: Option<usize> = "", "bytes", "TCP_EAGER_BYTES",
        "Longest message that is sent eagerly over TCP. Default: the device's choice.",
        0 to 1 << 30;
    inject_bytes: usize = "4096", "bytes", "INJECT_BYTES",
        "Longest message that fi_inject accepts (inject_size).",
        0 to 1 << 20;
    tx_size: usize = "4096", "count", "TX_SIZE",
        "Operations to one peer that may be queued for transmission (default of the transmit attribute size).",
        1 to 1 << 20;
    rx_size: usize = "65536", "count", "RX_SIZE",
        "Receives that may be posted to an endpoint (default of the receive attribute size).",
        1 to 1 << 24;
    unexpected_window_bytes: usize = "4M", "bytes", "UNEXPECTED_WINDOW_BYTES",
        "Memory that one peer may fill with unexpected messages. At the limit the peer waits.",
        0 to MEMORY_MOST;
    raise_descriptors: bool = "yes", "yes/no", "RAISE_DESCRIPTORS",
        "Raise the soft limit of descriptors up to the hard one when the process needs more for its peers.";
    max_unknown_peers: usize = "16K", "count", "MAX_UNKNOWN_PEERS",
        "Peers without an entry in an address vector that may be connected to an endpoint or have messages queued there. The maximum is half the process's limit of descriptors. One more peer takes the place of one that has left and whose messages are then dropped, or of an idle one, or is refused.",
        0 to 1 << 20;
    unknown_peers_bytes: usize = "64M", "bytes", "UNKNOWN_PEERS_BYTES",
        "Memory that all peers without an entry in an address vector may fill together with unexpected messages. Other state that they cause at an endpoint has a limit of the same size.",
        0 to MEMORY_MOST;
    ep_contexts: usize = "1", "count", "EP_CONTEXTS",
        "Transmit and receive contexts per endpoint (max_ep_tx_ctx, max_ep_rx_ctx) that are reported to clients without hints for them. Values above 1 invite clients to use scalable endpoints.",
        1 to MAX_CONTEXTS as u64;
    matching: Matching = "auto", "name", "MATCH",
        "Search structure for the queues of receives and unexpected messages: list, hash, tree, or auto, which walks short queues and chooses an index for deep ones.";
    mr_cache: bool = "yes", "yes/no", "MR_CACHE",
        "Share memory registrations and keep unused ones, if a device requires registration. Shared memory and TCP do not require it.";
    mr_cache_entries: usize = "4096", "count", "MR_CACHE_ENTRIES",
        "Registrations that an endpoint may have.",
        0 to 1 << 24;
    mr_cache_bytes: Option<u64> = "", "bytes", "MR_CACHE_BYTES",
        "Memory that an endpoint may have registered. Other data is copied through the device's own memory. Default: the device's limit.";
    mr_cache_stale_entries: usize = "1024", "count", "MR_CACHE_STALE_ENTRIES",
        "Unused registrations that an endpoint keeps. 0: none (no lazy deregistration).",
        0 to 1 << 24;
    mr_cache_stale_bytes: Option<u64> = "", "bytes", "MR_CACHE_STALE_BYTES",
        "Memory in the unused registrations that an endpoint keeps. Default: no limit.";
    mr_cache_monitor: bool = "yes", "yes/no", "MR_CACHE_MONITOR",
        "Observe unmapping of memory by userfaultfd(2), which unused registrations depend on. Without it none are kept.";
    stats: bool = "yes", "yes/no", "STATS",
        "Publish the counters of endpoints for the commands weft stat and weft top. It takes one file descriptor per endpoint.";
    report: Option<String> = "", "text", "REPORT",
        "1: when its last endpoint closes, each process prints one line on standard error: messages and bytes sent by shared memory and by TCP, and errors. The command weft run sets another value, to collect the lines of a job.";
    record: Option<String> = "", "text", "RECORD",
        "Record the operations of this process to the file FILE.fi.PID, for the commands weft sim replay and weft sim tune: kinds, sizes, peers, and the time between. Where libweft-coll.so is loaded, it records the calls of MPI to FILE.RANK instead.";
    job_key: JobKey = "", "text", "JOB_KEY",
        "A secret that all processes of a job share. If it is set, only peers that know it can connect. An empty value is an error: no domain opens.";
    tcp_encrypt: bool = "no", "yes/no", "TCP_ENCRYPT",
        "Encrypt TCP connections with fresh keys, which are authenticated by the job key and the addresses. It must have the same value in all processes of a job.";
    close_timeout_ms: u64 = "5000", "ms", "CLOSE_TIMEOUT_MS",
        "Longest time that closing an endpoint waits for sent data to leave.",
        0 to DAY_MS;
    progress_spin_us: u64 = "20", "µs", "PROGRESS_SPIN_US",
        "Time that the thread for automatic progress polls for work before it sleeps.",
        0 to 1_000_000;
    nap_us: u64 = "2000", "µs", "NAP_US",
        "Longest sleep inside a read that finds nothing (fi_cq_read, fi_cntr_read), and of a collective of the profiling library. Reads sleep where threads compete for processors, and after a wait of some milliseconds in which the thread did nothing but read. Messages end the sleep at once; other work of the thread waits at most for this time. 0: reads never sleep.",
        0 to 100_000;
    coll_uring: Uring = "no", "name", "COLL_URING",
        "yes: let the kernel perform barriers between hosts by io_uring(7), where it can: a process that computes does not delay them. For clients that compute between the start and the end of a barrier; clients that poll until it ends are faster without. All members of a group must agree; one that has no io_uring sets polled, and performs its part when it makes progress. no: barriers are messages. Not with FI_WEFT_TCP_ENCRYPT. With yes, blocking calls of the thread that entered the barrier may end with EINTR.";
    map: bool = "yes", "yes/no", "MAP",
        "Let processes of the same user on this host map memory that was allocated for it (weft_memory, MPI_Alloc_mem with the profiling library), and map theirs. With no, all accesses are messages.";
    coll_boards: bool = "yes", "yes/no", "COLL_BOARDS",
        "Perform the collectives of endpoints on the same host in memory that they share. With no, all groups of the endpoint use messages.";
    progress_affinity: Option<CpuSet> = "", "list", "PROGRESS_AFFINITY",
        "Processors that the thread for automatic progress may run on, such as 1,4-7. Default: the processors of the thread that enables the first endpoint.";
}

/// The value of one variable: the text if it is set and parses, otherwise the default. A number out of its limits
/// becomes the nearest limit.
fn value<T: Value>(param: Option<&'static Param>, set: Option<String>, problems: &mut Vec<Problem>) -> T {
    let Some(param) = param else { unreachable!("the table has a row for each field") };
    if let Some(text) = set {
        let parsed = T::parse(text.trim());
        let problem = match (&parsed, param.limits) {
            (None, _) => Some(Problem::unparsed(param, &text)),
            (Some(value), Some((least, most))) => match value.number() {
                Some(number) if number < least => Some(Problem::beyond(param, &text, least)),
                Some(number) if number > most => Some(Problem::beyond(param, &text, most)),
                _ => None,
            },
            _ => None,
        };
        let Some(problem) = problem else {
            return parsed.unwrap_or_else(|| unreachable!("a text that does not parse is a problem"));
        };
        let instead = T::parse(problem.instead()).filter(|_| parsed.is_some());
        problems.push(problem);
        if let Some(value) = instead {
            return value;
        }
    }
    match T::unset(param.default) {
        Some(value) => value,
        None => unreachable!("the default of FI_WEFT_{} parses: a test proves it", param.name),
    }
}

impl Params {
    /// The current values: from the host inside one, otherwise from the environment. Each source is read
    /// once.
    #[must_use]
    pub fn load() -> &'static Self {
        static LOADED: OnceLock<Params> = OnceLock::new();
        match host::current() {
            Some(host) => host.params(),
            None => LOADED.get_or_init(|| Self::of_environment().0),
        }
    }

    /// The values in the environment, and the texts there that cannot be used, with unknown names.
    #[must_use]
    pub fn of_environment() -> (Self, Vec<Problem>) {
        let (params, mut problems) = Self::read(|name| std::env::var(format!("FI_WEFT_{name}")).ok());
        problems.extend(problem::unknown(problem::environment_names()));
        (params, problems)
    }

    /// Checks whether an endpoint may be opened with these values.
    ///
    /// # Errors
    /// -FI_EINVAL: the job key is empty. An empty string is no secret, and an endpoint without a key would be
    /// open although the client requested protection.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.job_key == JobKey::Empty {
            log::error!(
                "FI_WEFT_JOB_KEY is set, but empty, which gives no protection; set it to the secret that all processes of the job share, or unset it"
            );
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// The limits of an endpoint's registration cache.
    pub(crate) fn mr_cache_limits(&self) -> Limits {
        Limits {
            on: self.mr_cache,
            entries: self.mr_cache_entries,
            bytes: self.mr_cache_bytes.unwrap_or(u64::MAX),
            stale_entries: self.mr_cache_stale_entries,
            stale_bytes: self.mr_cache_stale_bytes.unwrap_or(u64::MAX),
        }
    }

    /// The values of a host.
    pub(crate) fn of(host: &host::Host) -> Self {
        let (params, mut problems) = Self::read(|name| host.param(&CString::new(name.to_ascii_lowercase()).ok()?));
        problems.extend(problem::unknown(problem::environment_names()));
        problem::warn(&problems, host);
        params
    }
}

impl Default for Params {
    /// The defaults, independent of the environment.
    fn default() -> Self {
        Self::read(|_| None).0
    }
}

/// Declares every variable to a host.
pub(crate) fn define(host: &host::Host) {
    for param in TABLE {
        // `fi_info -e` prints bytes, and terminals of any encoding show ASCII.
        let unit = param.unit.replace('µ', "u");
        let help = format!("{} [{unit}{}]", param.help, param.default_text());
        if let (Ok(name), Ok(help)) = (CString::new(param.name.to_ascii_lowercase()), CString::new(help)) {
            host.define_param(&name, &help);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn defaults_parse() {
        let params = Params::default();
        assert!(params.shm && params.tcp && params.cma);
        assert_eq!(params.inject_bytes, 4096);
        assert_eq!(params.unexpected_window_bytes, 4 << 20);
        assert_eq!(params.iface, None);
        assert_eq!(params.shm_eager_bytes, None);
    }

    #[test]
    fn every_row_is_complete_and_unique() {
        for (row, param) in TABLE.iter().enumerate() {
            assert!(param.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'), "{}", param.name);
            assert!(param.help.ends_with('.') && !param.unit.is_empty(), "{}", param.name);
            assert!(!TABLE[..row].iter().any(|other| other.name == param.name), "{} twice", param.name);
        }
    }

    #[test]
    fn an_empty_job_key_is_an_error() {
        let read = |text: Option<&str>| Params::read(|name| text.filter(|_| name == "JOB_KEY").map(str::to_owned)).0;
        for (text, key, usable) in [
            (None, JobKey::Unset, true),
            (Some(""), JobKey::Empty, false),
            (Some(" \t"), JobKey::Empty, false),
            (Some("green"), JobKey::Key("green".to_owned()), true),
        ] {
            let params = read(text);
            assert_eq!((&params.job_key, params.check().is_ok()), (&key, usable), "{text:?}");
        }
    }

    #[test]
    fn valid_values_override_and_invalid_ones_do_not() {
        let (params, problems) = Params::read(|name| {
            let text = match name {
                "SHM" => "no",
                "TX_SIZE" => "2K",
                "EAGER_BYTES" => " 65536 ",
                "IFACE" => "eth0",
                "RX_SIZE" => "-3",
                "UNEXPECTED_WINDOW_BYTES" => "99999999999G",
                "TCP" => "perhaps",
                "INJECT_BYTES" => "99G",
                "MATCH" => "foo",
                "PROGRESS_AFFINITY" => "1,4-6",
                _ => return None,
            };
            Some(text.to_owned())
        });
        assert!(!params.shm);
        assert_eq!(params.tx_size, 2048);
        assert_eq!(params.eager_bytes, Some(65536));
        assert_eq!(params.iface.as_deref(), Some("eth0"));
        let default = Params::default();
        assert_eq!((params.rx_size, params.tcp), (default.rx_size, default.tcp));
        assert_eq!(params.unexpected_window_bytes, default.unexpected_window_bytes);
        // A number beyond its limits becomes the limit.
        assert_eq!((params.inject_bytes, params.matching), (1 << 20, default.matching));
        let processors = params.progress_affinity.unwrap();
        assert_eq!((0..10).filter(|at| processors.is_set(*at)).collect::<Vec<_>>(), [1, 4, 5, 6]);
        let names: Vec<&str> = problems.iter().map(Problem::variable).collect();
        let wrong = ["TCP", "INJECT_BYTES", "RX_SIZE", "UNEXPECTED_WINDOW_BYTES", "MATCH"];
        assert_eq!(names, wrong.map(|name| format!("FI_WEFT_{name}")));
        assert!(problems[1].to_string().contains("1048576"), "{}", problems[1]);
    }

    #[test]
    fn lists_of_processors_are_checked() {
        assert!(["", "a", "3-1", "99999", "1,,2"].into_iter().all(|text| CpuSet::parse(text).is_none()));
    }
}
