//! `weft info`: the paths that the provider offers on this machine, the protocols on them with their thresholds, and
//! the libfabrics that were found; with `--params` the table of variables.

mod params;
mod protocols;

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use weft_fi::params::Params;
use weft_nic::{host, shm};

use crate::bench;
use crate::library;
use crate::render::{self, Text};
pub(crate) use params::params;
use protocols::{Limit, Protocol};

/// The facts about this machine that determine the available paths.
#[derive(Serialize)]
pub(crate) struct Info {
    version: &'static str,
    /// The revision of the sources, by `git describe`; `unknown` without git.
    revision: &'static str,
    /// The newest libfabric API that the provider supports.
    api_version: String,
    /// The library that libfabric would load, if it is found.
    library: Option<String>,
    /// Identity of host and network namespace. Shared memory is tried where both sides have the same identity.
    host_id: String,
    paths: Vec<PathFact>,
    interfaces: Vec<InterfaceFact>,
    protocols: Vec<Protocol>,
    limits: Vec<Limit>,
    libfabrics: Vec<LibfabricFact>,
}

/// One libfabric of this machine, loaded by a child process.
#[derive(Serialize)]
struct LibfabricFact {
    path: String,
    /// `None`: it cannot be loaded.
    version: Option<String>,
    /// Its providers in the present environment, or the reason why it cannot be loaded.
    providers: String,
    /// Whether weft is among them.
    has_weft: bool,
}

fn libfabrics() -> Vec<LibfabricFact> {
    let facts = bench::libfabrics().into_iter().map(|path| match bench::probe_with(&path, |_| {}) {
        Ok(((major, minor), providers)) => LibfabricFact {
            path: path.display().to_string(),
            version: Some(format!("{major}.{minor}")),
            has_weft: providers.iter().any(|name| name == "weft"),
            providers: providers.join(" "),
        },
        Err(why) => LibfabricFact { path: path.display().to_string(), version: None, has_weft: false, providers: why },
    });
    facts.collect()
}

/// A path to peers.
#[derive(Serialize)]
struct PathFact {
    name: &'static str,
    reaches: &'static str,
    available: bool,
    why: String,
}

/// One network interface.
#[derive(Serialize)]
struct InterfaceFact {
    name: String,
    up: bool,
    loopback: bool,
    addresses: Vec<String>,
    /// TCP uses one of its addresses.
    chosen: bool,
    /// The use by TCP, or the reason why it is left out.
    usage: String,
}

/// Collects the facts.
pub(crate) fn gather() -> Info {
    let params = Params::load();
    let chosen = host::choose_address(params.iface.as_deref(), None);
    let chosen = chosen.and_then(|addr| host::try_listen(addr).map(|()| addr));
    let set = std::env::var("FI_PROVIDER_PATH").ok();
    let library = library::find(&library::places(set.as_deref())).or_else(library::beside_us);
    let used = chosen.as_ref().ok().and_then(|addr| host::choose_addresses(params.iface.as_deref(), *addr).ok());
    let used = used.unwrap_or_default();
    let first = chosen.as_ref().ok().copied();
    let second = first.and_then(|first| host::second_address(params.iface.as_deref(), None, first)).map(IpAddr::V4);
    let interfaces = host::interfaces().unwrap_or_default().into_iter().map(|interface| {
        let usage = interface.usage(&used, second);
        InterfaceFact {
            chosen: !matches!(usage, host::Usage::LeftOut(_)),
            usage: usage.to_string(),
            name: interface.name,
            up: interface.up,
            loopback: interface.loopback,
            addresses: interface.addrs.iter().map(|addr| addr.ip().to_string()).collect(),
        }
    });
    let api = weft_fi::API_VERSION;
    let shm = shm_path(params);
    let attach = shm.available && params.cma && attach_refused(&shm::probe()).is_none();
    Info {
        revision: env!("WEFT_REVISION"),
        protocols: protocols::protocols(params, attach),
        limits: protocols::limits(params),
        libfabrics: libfabrics(),
        version: env!("CARGO_PKG_VERSION"),
        api_version: format!("{}.{}", api >> 16, api & 0xffff),
        library: library.map(|path| path.display().to_string()),
        host_id: format!("{:016x}", host::host_id()),
        paths: vec![shm, tcp_path(params, chosen)],
        interfaces: interfaces.collect(),
    }
}

/// The probes that shared memory depends on. The other probes only affect its speed.
pub(crate) const SHM_NEEDS: &[&str] = &["sealed memfd", "abstract Unix socket", "user id"];

/// The probe that shows that processes may not read each other's memory.
fn attach_refused(findings: &[shm::Finding]) -> Option<&shm::Finding> {
    findings.iter().find(|found| !found.ok && found.what.starts_with("cross-memory attach"))
}

fn shm_path(params: &Params) -> PathFact {
    let reaches = "endpoints on this host, in the same network namespace, of a user with whom memory may be shared";
    let fact = |available, why| PathFact { name: "shm", reaches, available, why };
    if !params.shm {
        return fact(false, "disabled by FI_WEFT_SHM".to_owned());
    }
    let findings = shm::probe();
    if let Some(broken) = findings.iter().find(|found| !found.ok && SHM_NEEDS.contains(&found.what)) {
        return fact(false, format!("{}: {}", broken.what, broken.detail));
    }
    fact(
        true,
        match attach_refused(&findings) {
            _ if !params.cma => "large messages are copied twice: FI_WEFT_CMA disables cross-memory attach".to_owned(),
            Some(refused) => format!("large messages are copied twice ({}: {})", refused.what, refused.detail),
            None => "large messages may be copied once, by cross-memory attach".to_owned(),
        },
    )
}

fn tcp_path(params: &Params, chosen: Result<SocketAddr, weft_nic::NicError>) -> PathFact {
    let (available, why) = match chosen {
        _ if !params.tcp => (false, "disabled by FI_WEFT_TCP".to_owned()),
        Err(error) => (false, error.to_string()),
        Ok(addr) if addr.ip().is_loopback() => {
            let why = match params.iface.as_deref() {
                Some(iface) => format!("FI_WEFT_IFACE={iface} is loopback"),
                None => "no interface but loopback is usable".to_owned(),
            };
            (true, format!("only on this host: {why} ({})", addr.ip()))
        }
        Ok(addr) => {
            let second = host::second_address(params.iface.as_deref(), None, addr);
            let second = second.map(|ip| format!(", and on {ip} for peers that cannot reach it")).unwrap_or_default();
            (true, format!("listens on {}{second}", addr.ip()))
        }
    };
    PathFact { name: "tcp", reaches: "endpoints that shared memory does not reach", available, why }
}

impl Text for Info {
    fn text(&self) -> String {
        let library = self.library.as_deref().unwrap_or("not found: see `weft doctor`");
        let yes_no = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
        let head = format!(
            "weft {}, revision {}, libfabric API {}\nlibrary  {library}\nhost id  {}\n",
            self.version, self.revision, self.api_version, self.host_id
        );
        let paths = render::table(
            ["path", "available", "why", "reaches"],
            self.paths.iter().map(|p| [p.name.to_owned(), yes_no(p.available), p.why.clone(), p.reaches.to_owned()]),
        );
        let interfaces = render::table(
            ["interface", "up", "used by tcp", "addresses"],
            self.interfaces.iter().map(|i| {
                let usage = if i.chosen { i.usage.clone() } else { format!("no: {}", i.usage) };
                [i.name.clone(), yes_no(i.up), usage, i.addresses.join(" ")]
            }),
        );
        format!(
            "{head}\n{paths}\n{interfaces}\n{}\n{}\n{}",
            self.protocol_table(),
            self.limit_table(),
            self.libfabric_table()
        )
    }
}

impl Info {
    fn protocol_table(&self) -> String {
        let size = |row: &Protocol| match row.to_bytes {
            Some(to) => format!("to {to} B"),
            None => format!("from {} B", row.from_bytes),
        };
        let set_by = |row: &Protocol| if row.set_by.is_empty() { "default" } else { row.set_by }.to_owned();
        render::table(
            ["path", "operation", "size", "protocol", "way of the data", "threshold by"],
            self.protocols.iter().map(|row| {
                let (path, operation, protocol) =
                    (row.path.to_owned(), row.operation.to_owned(), row.protocol.to_owned());
                [path, operation, size(row), protocol, row.how.to_owned(), set_by(row)]
            }),
        )
    }

    fn limit_table(&self) -> String {
        let rows = self.limits.iter();
        let rows = rows.map(|limit| [limit.variable.to_owned(), limit.value.to_string(), limit.meaning.to_owned()]);
        render::table(["limit", "in force", "meaning"], rows)
    }

    fn libfabric_table(&self) -> String {
        let rows = self.libfabrics.iter().map(|found| {
            let weft = if found.has_weft { "yes" } else { "no" }.to_owned();
            [found.path.clone(), found.version.clone().unwrap_or_default(), weft, found.providers.clone()]
        });
        render::table(["libfabric", "version", "has weft", "providers in this environment"], rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described_with_every_path() {
        let info = gather();
        assert_eq!(info.paths.iter().map(|path| path.name).collect::<Vec<_>>(), ["shm", "tcp"]);
        assert!(info.interfaces.iter().any(|interface| interface.loopback));
        let text = info.text();
        assert!(text.contains("rendezvous") && text.contains("FI_WEFT_INJECT_BYTES"), "{text}");
        assert!(text.contains("shm") && text.contains("tcp") && text.ends_with('\n'), "{text}");
    }

    #[test]
    fn a_disabled_path_names_the_variable() {
        let params = Params { shm: false, tcp: false, ..Params::default() };
        let shm = shm_path(&params);
        assert!(!shm.available && shm.why.contains("FI_WEFT_SHM"));
        let tcp = tcp_path(&params, host::choose_address(None, None));
        assert!(!tcp.available && tcp.why.contains("FI_WEFT_TCP"));
    }

    #[test]
    fn chosen_loopback_is_not_reported_as_missing_interfaces() {
        for iface in ["127.0.0.1", "lo"] {
            let params = Params { iface: Some(iface.to_owned()), ..Params::default() };
            let tcp = tcp_path(&params, host::choose_address(Some(iface), None));
            assert!(tcp.available && tcp.why.contains(&format!("FI_WEFT_IFACE={iface}")), "{}", tcp.why);
        }
        let tcp = tcp_path(&Params::default(), Ok(([127, 0, 0, 1], 0).into()));
        assert!(tcp.available && tcp.why.contains("no interface but loopback"), "{}", tcp.why);
    }
}
