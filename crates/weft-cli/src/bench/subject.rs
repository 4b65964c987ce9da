//! What is measured: a provider, perhaps with variables of its own (`weft:FI_WEFT_SHM=0`), or a floor.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What no program on this machine can undercut: the same work without any library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Floor {
    /// A cache line handed from one core to another.
    CacheLine,
    /// Cache lines handed over in a row, without waiting for each.
    Ring,
    /// memcpy by one thread.
    Memcpy,
    /// process_vm_readv(2) from another process.
    Readv,
    /// A TCP socket on the loopback interface: a ping-pong or a stream.
    Tcp,
}

impl Floor {
    /// The name of its rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CacheLine => "floor cache-line",
            Self::Ring => "floor ring",
            Self::Memcpy => "floor memcpy",
            Self::Readv => "floor readv",
            Self::Tcp => "floor tcp",
        }
    }
}

/// A row's subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// What its rows are called: as it was given.
    pub(crate) name: String,
    /// The provider's name in libfabric, empty for a floor.
    pub(crate) provider: String,
    /// Variables of its processes.
    pub(crate) env: Vec<(String, String)>,
    /// It is a floor.
    pub(crate) floor: Option<Floor>,
}

impl Subject {
    /// A floor.
    pub(crate) fn floor(floor: Floor) -> Self {
        Self { name: floor.name().to_owned(), provider: String::new(), env: Vec::new(), floor: Some(floor) }
    }

    /// Whether it surely communicates by sockets, so that the floor of sockets is the one to compare with.
    pub(crate) fn by_sockets(&self) -> bool {
        let no_shm = |(name, value): &(String, String)| {
            name == "FI_WEFT_SHM" && ["0", "no", "off", "false"].contains(&value.to_ascii_lowercase().as_str())
        };
        self.provider.split(';').any(|layer| ["tcp", "sockets", "net", "udp"].contains(&layer))
            || self.provider == "weft" && self.env.iter().any(no_shm)
    }

    /// Variables that its processes get when the caller has not set them: TCP between processes of one host goes by loopback.
    pub(crate) fn defaults(&self) -> &'static [(&'static str, &'static str)] {
        match self.provider.split(';').next() {
            Some("tcp" | "net") => &[("FI_TCP_IFACE", "lo")],
            Some("sockets") => &[("FI_SOCKETS_IFACE", "lo")],
            _ => &[],
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    /// `name[:VARIABLE=value]…`; a part without `=` belongs to the value before it, which so may have colons.
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
        Ok(Self { name: text.to_owned(), provider: provider.to_owned(), env, floor: None })
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
    fn slips_of_the_pen_are_explained() {
        for text in ["", ":A=1", "weft:A", "weft:=1", "a b", "FI_X=1"] {
            assert!(text.parse::<Subject>().is_err_and(|error| error.contains("FI_WEFT_SHM=0")), "{text}");
        }
    }
}
