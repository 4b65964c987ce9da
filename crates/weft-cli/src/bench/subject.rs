//! The subject of a measurement: a provider, optionally with variables (`weft:FI_WEFT_SHM=0`), or a floor.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::options::Progress;

/// A bound that no program on this machine can beat: the same work without any library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Floor {
    /// A cache line passed from one core to another.
    CacheLine,
    /// Cache lines passed in a row, without waiting for each.
    Ring,
    /// memcpy by one thread.
    Memcpy,
    /// process_vm_readv(2) from another process.
    Readv,
    /// A TCP socket on the loopback interface: a ping-pong or a stream.
    Tcp,
    /// Threads that wait for each other by futex(2).
    Futex,
}

impl Floor {
    /// The name in its rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CacheLine => "floor cache-line",
            Self::Ring => "floor ring",
            Self::Memcpy => "floor memcpy",
            Self::Readv => "floor readv",
            Self::Tcp => "floor tcp",
            Self::Futex => "floor futex",
        }
    }
}

/// The subject of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The name in its rows, as given on the command line.
    pub(crate) name: String,
    /// The provider's name in libfabric, empty for a floor.
    pub(crate) provider: String,
    /// Environment variables of its processes.
    pub(crate) env: Vec<(String, String)>,
    /// The requested progress; `None` leaves the choice to the provider.
    pub(crate) progress: Option<Progress>,
    /// The floor, if the subject is one.
    pub(crate) floor: Option<Floor>,
    /// Whether its ranks are on two hosts.
    pub(crate) between_hosts: bool,
}

impl Subject {
    /// Makes the subject of a floor.
    pub(crate) fn floor(floor: Floor) -> Self {
        let (name, provider) = (floor.name().to_owned(), String::new());
        Self { name, provider, env: Vec::new(), progress: None, floor: Some(floor), between_hosts: false }
    }

    /// Makes the subject of a rank whose peer is on another host.
    pub(crate) fn remote(provider: &str, floor: Option<Floor>) -> Self {
        let (name, provider) = (provider.to_owned(), provider.to_owned());
        Self { name, provider, env: Vec::new(), progress: None, floor, between_hosts: true }
    }

    /// Makes one subject for each requested progress. Several subjects get distinct names.
    pub(crate) fn with_progress(&self, wanted: &[Progress]) -> Vec<Self> {
        let one = |&progress: &Progress| {
            let name = if wanted.len() > 1 { format!("{} {}", self.name, progress.name()) } else { self.name.clone() };
            Self { name, progress: Some(progress), ..self.clone() }
        };
        if wanted.is_empty() { vec![self.clone()] } else { wanted.iter().map(one).collect() }
    }

    /// Whether the subject certainly uses sockets, so that their floor is the one to compare with.
    pub(crate) fn by_sockets(&self) -> bool {
        let no_shm = |(name, value): &(String, String)| {
            name == "FI_WEFT_SHM" && ["0", "no", "off", "false"].contains(&value.to_ascii_lowercase().as_str())
        };
        self.between_hosts
            || self.provider.split(';').any(|layer| ["tcp", "sockets", "net", "udp"].contains(&layer))
            || self.provider == "weft" && self.env.iter().any(no_shm)
    }

    /// Defaults of its processes' environment variables. They route TCP within this host over the loopback interface.
    pub(crate) fn defaults(&self) -> &'static [(&'static str, &'static str)] {
        match self.provider.split(';').next() {
            _ if self.between_hosts => &[],
            Some("tcp" | "net") => &[("FI_TCP_IFACE", "lo")],
            Some("sockets") => &[("FI_SOCKETS_IFACE", "lo")],
            _ => &[],
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    /// Parses `name[:VARIABLE=value]…`. A part without `=` belongs to the value before it, so values may have colons.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            Err(format!("provider `{text}`: {why}; write a name, or a name with variables like weft:FI_WEFT_SHM=0"))
        };
        let mut parts = text.split(':');
        let provider = parts.next().unwrap_or_default();
        if provider.is_empty() || provider.contains(|c: char| c.is_whitespace() || c == '=') {
            return bad("that is no provider's name");
        }
        let mut env: Vec<(String, String)> = Vec::new();
        for part in parts {
            match (part.split_once('='), env.last_mut()) {
                (Some(("", _)), _) => return bad("a variable has no name"),
                (Some((name, value)), _) => env.push((name.to_owned(), value.to_owned())),
                (None, Some((_, value))) => *value = format!("{value}:{part}"),
                (None, None) => return bad("a variable has no value"),
            }
        }
        Ok(Self {
            name: text.to_owned(),
            provider: provider.to_owned(),
            env,
            progress: None,
            floor: None,
            between_hosts: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_follow_the_name() {
        let subject: Subject = "weft:FI_WEFT_SHM=0:FI_PROVIDER_PATH=/a:/b".parse().expect("well-formed");
        assert_eq!(subject.provider, "weft");
        let expected = [("FI_WEFT_SHM", "0"), ("FI_PROVIDER_PATH", "/a:/b")];
        assert_eq!(subject.env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(subject.by_sockets());
        let layered: Subject = "tcp;ofi_rxm".parse().expect("well-formed");
        assert!(layered.by_sockets() && layered.defaults().len() == 1);
        assert!(!"weft".parse::<Subject>().expect("well-formed").by_sockets());
    }

    #[test]
    fn each_kind_of_progress_is_a_subject() {
        let subject: Subject = "weft:FI_WEFT_SHM=0".parse().expect("well-formed");
        assert_eq!(subject.with_progress(&[]), std::slice::from_ref(&subject));
        let [one] = &subject.with_progress(&[Progress::Auto])[..] else { panic!("one") };
        assert_eq!((one.name.as_str(), one.progress), ("weft:FI_WEFT_SHM=0", Some(Progress::Auto)));
        let both = subject.with_progress(&[Progress::Auto, Progress::Manual]);
        let names: Vec<_> = both.iter().map(|subject| subject.name.as_str()).collect();
        assert_eq!(names, ["weft:FI_WEFT_SHM=0 auto", "weft:FI_WEFT_SHM=0 manual"]);
        assert!(both.iter().all(Subject::by_sockets));
    }

    #[test]
    fn misspelled_names_are_explained() {
        for text in ["", ":A=1", "weft:A", "weft:=1", "a b", "FI_X=1"] {
            assert!(text.parse::<Subject>().is_err_and(|error| error.contains("FI_WEFT_SHM=0")), "{text}");
        }
    }
}
