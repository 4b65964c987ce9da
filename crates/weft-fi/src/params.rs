//! The variables `FI_WEFT_*`: one table (name, default, unit, help), and the values that are in force.
//!
//! Place in the data flow: read once, at the first `fi_getinfo`; domains keep a copy. Inside a host the variables
//! are declared and read through `fi_param_define` and `fi_param_get`, so that `fi_info -e` lists them; a program
//! that links weft as a library (the `weft` command) reads the environment directly. The table also feeds
//! fi_weft(7) and `weft info --params`.
//!
//! A value that does not parse is reported and the default is used. Sizes may end in K, M or G (powers of
//! 1024). An empty job key is an error of `Params::check`: the default would be no protection.

use std::ffi::CString;
use std::sync::OnceLock;

use weft_engine::api::Matching;
use weft_engine::mrcache::Limits;

use crate::abi::errno::Errno;
use crate::host;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Without the prefix `FI_WEFT_`.
    pub name: &'static str,
    /// What holds when the variable is not set, as one would write it.
    pub default: &'static str,
    /// `bytes`, `ms`, `µs`, `yes/no`, `count`, `name`, `list`, `text`.
    pub unit: &'static str,
    /// One or two sentences.
    pub help: &'static str,
}

/// A type that a variable may have.
trait Value: Sized {
    /// The value that a string means.
    fn parse(text: &str) -> Option<Self>;

    /// The value that holds when the variable is not set: what the default in the table means.
    fn unset(default: &str) -> Option<Self> {
        Self::parse(default)
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
}

impl Value for usize {
    fn parse(text: &str) -> Option<Self> {
        u64::parse(text).and_then(|value| value.try_into().ok())
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

/// The job key of the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobKey {
    /// The variable is not set: there is no key.
    Unset,
    /// The variable is set, to nothing or to blanks.
    Empty,
    /// The key.
    Key(String),
}

impl JobKey {
    /// The key, if there is one.
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
}

/// Declares the table, the structure and its reader in one place.
macro_rules! params {
    ($($field:ident: $type:ty = $default:literal, $unit:literal, $name:literal, $help:literal;)*) => {
        /// Every variable, in the order in which they are listed.
        pub const TABLE: &[Param] =
            &[$(Param { name: $name, default: $default, unit: $unit, help: $help }),*];

        /// The values in force.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Params {
            $(
                #[doc = concat!("`FI_WEFT_", $name, "`, in ", $unit, ": ", $help)]
                pub $field: $type,
            )*
        }

        impl Params {
            /// The values that `source` gives for the names, or the defaults.
            fn read(source: impl Fn(&str) -> Option<String>) -> Self {
                let read = Self { $($field: value($name, $default, $unit, source($name))),* };
                // A queue without room would be full for ever.
                Self { tx_size: read.tx_size.max(1), rx_size: read.rx_size.max(1), ..read }
            }
        }
    };
}

params! {
    iface: Option<String> = "", "name", "IFACE",
        "Network interface (name) or local address (IPv4 or IPv6) that TCP uses. Default: the one that reaches most hosts.";
    shm: bool = "yes", "yes/no", "SHM",
        "Use shared memory to endpoints on the same host.";
    tcp: bool = "yes", "yes/no", "TCP",
        "Use TCP to endpoints that shared memory does not reach.";
    cma: bool = "yes", "yes/no", "CMA",
        "Let large messages inside a host be copied once, by process_vm_readv(2), where the kernel permits it.";
    connect_timeout_ms: u64 = "10000", "ms", "CONNECT_TIMEOUT_MS",
        "How long connecting with a peer may take, and then each of its two answers, in each way that there is, before its operations fail. A process on the same host, or one that takes connections, is waited for for an hour if its address is complete: it may be computing.";
    connect_retry_ms: u64 = "1000", "ms", "CONNECT_RETRY_MS",
        "For how long a TCP connection that is refused is tried again: the peer may be about to listen.";
    tcp_resume_ms: u64 = "10000", "ms", "TCP_RESUME_MS",
        "For how long a peer whose TCP connection broke is called again, unless it is known to be gone; what it had not got is sent once more. 0: the link ends at once.";
    eager_bytes: Option<usize> = "", "bytes", "EAGER_BYTES",
        "Longest message that is sent without asking the receiver, on every device; what a device does not take is cut to its most (32,896 for shared memory, 65,664 for TCP). Default: the device's.";
    shm_eager_bytes: Option<usize> = "", "bytes", "SHM_EAGER_BYTES",
        "The same for shared memory only.";
    tcp_eager_bytes: Option<usize> = "", "bytes", "TCP_EAGER_BYTES",
        "The same for TCP only.";
    inject_bytes: usize = "4096", "bytes", "INJECT_BYTES",
        "Longest message that fi_inject takes (inject_size).";
    tx_size: usize = "4096", "count", "TX_SIZE",
        "Operations to one peer that may wait to leave (default of the transmit attribute size).";
    rx_size: usize = "65536", "count", "RX_SIZE",
        "Receives that may be posted to an endpoint (default of the receive attribute size).";
    unexpected_window_bytes: usize = "4M", "bytes", "UNEXPECTED_WINDOW_BYTES",
        "Memory that one peer may fill with messages for which no receive is posted yet; it waits beyond.";
    max_unknown_peers: usize = "16K", "count", "MAX_UNKNOWN_PEERS",
        "Peers that may be connected to an endpoint, or have left it messages, though no address vector has them, at most half as many as the process may have descriptors. One more takes the place of one that is idle, or is turned away.";
    unknown_peers_bytes: usize = "64M", "bytes", "UNKNOWN_PEERS_BYTES",
        "Memory that all peers in no address vector together may fill with messages for which no receive is posted yet, and as much with what else they make an endpoint keep.";
    ep_contexts: usize = "1", "count", "EP_CONTEXTS",
        "Contexts of either kind that endpoints are said to have (max_ep_tx_ctx, max_ep_rx_ctx) to clients that do not ask. More than 1 invites clients to use scalable endpoints.";
    matching: Matching = "auto", "name", "MATCH",
        "How the queues of receives and messages are searched: list, hash, tree, or auto, which walks short queues and chooses for deep ones.";
    mr_cache: bool = "yes", "yes/no", "MR_CACHE",
        "Share registrations of memory and keep them beyond their use, where a device demands registration (shared memory and TCP do not).";
    mr_cache_entries: usize = "4096", "count", "MR_CACHE_ENTRIES",
        "Registrations that an endpoint may have.";
    mr_cache_bytes: Option<u64> = "", "bytes", "MR_CACHE_BYTES",
        "Memory that an endpoint may have registered; what is beyond travels through the device's own memory. Default: the device's limit.";
    mr_cache_stale_entries: usize = "1024", "count", "MR_CACHE_STALE_ENTRIES",
        "Registrations that an endpoint keeps although nobody uses them; 0: none (no lazy deregistration).";
    mr_cache_stale_bytes: Option<u64> = "", "bytes", "MR_CACHE_STALE_BYTES",
        "Memory in such registrations. Default: no limit.";
    mr_cache_monitor: bool = "yes", "yes/no", "MR_CACHE_MONITOR",
        "Observe by userfaultfd(2) what is unmapped, so that registrations may be kept; without it none is kept that nobody uses.";
    stats: bool = "yes", "yes/no", "STATS",
        "Let the commands weft stat and weft top read what endpoints count; it takes a descriptor for each.";
    job_key: JobKey = "", "text", "JOB_KEY",
        "A secret that all processes of a job share. When set, only peers that know it can connect. Set to nothing it is an error: no domain opens.";
    tcp_encrypt: bool = "no", "yes/no", "TCP_ENCRYPT",
        "Encrypt TCP connections, with fresh keys that job key and addresses authenticate. The same in all processes of a job.";
    close_timeout_ms: u64 = "5000", "ms", "CLOSE_TIMEOUT_MS",
        "How long closing an endpoint waits until what was sent has left.";
    progress_spin_us: u64 = "20", "µs", "PROGRESS_SPIN_US",
        "How long the thread for automatic progress looks for work before it sleeps.";
    progress_affinity: Option<String> = "", "list", "PROGRESS_AFFINITY",
        "Processors that the thread for automatic progress may run on, such as 1,4-7. Default: those of the thread that enables the first endpoint.";
}

/// The values that variables of a unit may have, in words.
fn understood(unit: &str) -> &'static str {
    match unit {
        "yes/no" => "yes or no",
        "bytes" | "count" | "ms" | "µs" => "a number from 0 on, which may end in K, M or G",
        _ => "one of the values that fi_weft(7) names",
    }
}

/// The value of one variable: what is set, if it parses, else the default.
fn value<T: Value>(name: &str, default: &'static str, unit: &str, set: Option<String>) -> T {
    if let Some(text) = set {
        match T::parse(text.trim()) {
            Some(value) => return value,
            None => log::warn!(
                "FI_WEFT_{name}={text} is not understood, using the default ({default}); set it to {}",
                understood(unit)
            ),
        }
    }
    match T::unset(default) {
        Some(value) => value,
        None => unreachable!("the default of FI_WEFT_{name} parses: a test proves it"),
    }
}

impl Params {
    /// The values in force: through the host inside one, from the environment elsewhere. Each reads them once.
    #[must_use]
    pub fn load() -> &'static Self {
        static LOADED: OnceLock<Params> = OnceLock::new();
        match host::current() {
            Some(host) => host.params(),
            None => LOADED.get_or_init(|| Self::read(|name| std::env::var(format!("FI_WEFT_{name}")).ok())),
        }
    }

    /// Whether an endpoint may be set up by these values.
    ///
    /// # Errors
    /// -FI_EINVAL: the job key is empty. An empty string is no secret, and to go on without a key would leave
    /// a client open that asked for protection.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.job_key == JobKey::Empty {
            log::warn!(
                "FI_WEFT_JOB_KEY is set, but empty, which protects nothing; set it to the secret that all processes of the job share, or unset it"
            );
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// What the registration cache of an endpoint may keep.
    pub(crate) fn mr_cache_limits(&self) -> Limits {
        Limits {
            on: self.mr_cache,
            entries: self.mr_cache_entries,
            bytes: self.mr_cache_bytes.unwrap_or(u64::MAX),
            stale_entries: self.mr_cache_stale_entries,
            stale_bytes: self.mr_cache_stale_bytes.unwrap_or(u64::MAX),
        }
    }

    /// The values as a host has them.
    pub(crate) fn of(host: &host::Host) -> Self {
        Self::read(|name| host.param(&CString::new(name.to_ascii_lowercase()).ok()?))
    }
}

impl Default for Params {
    /// The defaults, whatever is set.
    fn default() -> Self {
        Self::read(|_| None)
    }
}

/// Declares every variable to a host.
pub(crate) fn define(host: &host::Host) {
    for param in TABLE {
        let default = if param.default.is_empty() { "none" } else { param.default };
        let help = format!("{} [{}, default: {default}]", param.help, param.unit);
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
    fn defaults_parse_and_are_what_the_table_says() {
        let params = Params::default();
        assert!(params.shm && params.tcp && params.cma);
        assert_eq!(params.inject_bytes, 4096);
        assert_eq!(params.unexpected_window_bytes, 4 << 20);
        assert_eq!(params.iface, None);
        assert_eq!(params.shm_eager_bytes, None);
    }

    #[test]
    fn every_row_says_what_it_is() {
        for (row, param) in TABLE.iter().enumerate() {
            assert!(param.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'), "{}", param.name);
            assert!(param.help.ends_with('.') && !param.unit.is_empty(), "{}", param.name);
            assert!(!TABLE[..row].iter().any(|other| other.name == param.name), "{} twice", param.name);
        }
    }

    #[test]
    fn an_empty_job_key_is_not_the_same_as_none() {
        let read = |text: Option<&str>| Params::read(|name| text.filter(|_| name == "JOB_KEY").map(str::to_owned));
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
    fn values_override_and_nonsense_does_not() {
        let params = Params::read(|name| {
            let text = match name {
                "SHM" => "no",
                "TX_SIZE" => "2K",
                "EAGER_BYTES" => " 65536 ",
                "IFACE" => "eth0",
                "RX_SIZE" => "-3",
                "UNEXPECTED_WINDOW_BYTES" => "99999999999G",
                "TCP" => "perhaps",
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
    }
}
