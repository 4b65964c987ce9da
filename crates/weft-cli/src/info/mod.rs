//! `weft info`: the paths that the provider offers on this machine, and the table of its variables.

use serde::Serialize;
use weft_fi::params::{Params, TABLE};
use weft_nic::{host, shm};

use crate::library;
use crate::render::{self, Text};

/// The facts about this machine that determine the available paths.
#[derive(Serialize)]
pub(crate) struct Info {
    version: &'static str,
    /// The newest libfabric API that the provider supports.
    api_version: String,
    /// The library that libfabric would load, if it is found.
    library: Option<String>,
    /// Identity of host and network namespace. Shared memory is tried where both sides have the same identity.
    host_id: String,
    paths: Vec<PathFact>,
    interfaces: Vec<InterfaceFact>,
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
}

/// Collects the facts.
pub(crate) fn gather() -> Info {
    let params = Params::load();
    let chosen = host::choose_address(params.iface.as_deref(), None);
    let chosen = chosen.and_then(|addr| host::try_listen(addr).map(|()| addr));
    let set = std::env::var("FI_PROVIDER_PATH").ok();
    let library = library::find(&library::places(set.as_deref())).or_else(library::beside_us);
    let chosen_ip = chosen.as_ref().ok().map(std::net::SocketAddr::ip);
    let interfaces = host::interfaces().unwrap_or_default().into_iter().map(|interface| InterfaceFact {
        chosen: interface.addrs.iter().any(|addr| Some(addr.ip()) == chosen_ip),
        name: interface.name,
        up: interface.up,
        loopback: interface.loopback,
        addresses: interface.addrs.iter().map(|addr| addr.ip().to_string()).collect(),
    });
    let api = weft_fi::API_VERSION;
    Info {
        version: env!("CARGO_PKG_VERSION"),
        api_version: format!("{}.{}", api >> 16, api & 0xffff),
        library: library.map(|path| path.display().to_string()),
        host_id: format!("{:016x}", host::host_id()),
        paths: vec![shm_path(params), tcp_path(params, chosen)],
        interfaces: interfaces.collect(),
    }
}

/// The probes that shared memory depends on. The other probes only affect its speed.
pub(crate) const SHM_NEEDS: &[&str] = &["sealed memfd", "abstract Unix socket", "user id"];

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
    let attach = findings.iter().find(|found| !found.ok && found.what.starts_with("cross-memory attach"));
    fact(
        true,
        match attach {
            _ if !params.cma => "large messages are copied twice: FI_WEFT_CMA disables cross-memory attach".to_owned(),
            Some(refused) => format!("large messages are copied twice ({}: {})", refused.what, refused.detail),
            None => "large messages may be copied once, by cross-memory attach".to_owned(),
        },
    )
}

fn tcp_path(params: &Params, chosen: Result<std::net::SocketAddr, weft_nic::NicError>) -> PathFact {
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
        Ok(addr) => (true, format!("listens on {}", addr.ip())),
    };
    PathFact { name: "tcp", reaches: "endpoints that shared memory does not reach", available, why }
}

impl Text for Info {
    fn text(&self) -> String {
        let library = self.library.as_deref().unwrap_or("not found: see `weft doctor`");
        let yes_no = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
        let head = format!(
            "weft {}, libfabric API {}\nlibrary  {library}\nhost id  {}\n",
            self.version, self.api_version, self.host_id
        );
        let paths = render::table(
            ["path", "available", "why", "reaches"],
            self.paths.iter().map(|p| [p.name.to_owned(), yes_no(p.available), p.why.clone(), p.reaches.to_owned()]),
        );
        let interfaces = render::table(
            ["interface", "up", "used by tcp", "addresses"],
            self.interfaces.iter().map(|i| [i.name.clone(), yes_no(i.up), yes_no(i.chosen), i.addresses.join(" ")]),
        );
        format!("{head}\n{paths}\n{interfaces}")
    }
}

/// The table of variables, with the values that are set.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct ParamList(Vec<ParamFact>);

#[derive(Serialize)]
struct ParamFact {
    /// Without the prefix FI_WEFT_.
    name: &'static str,
    default: &'static str,
    unit: &'static str,
    /// The value in the environment, if set.
    set: Option<String>,
    help: &'static str,
}

/// Reads the table.
pub(crate) fn params() -> ParamList {
    ParamList(
        TABLE
            .iter()
            .map(|param| ParamFact {
                name: param.name,
                default: param.default,
                unit: param.unit,
                set: std::env::var(format!("FI_WEFT_{}", param.name)).ok().map(|text| shown(param.name, text)),
                help: param.help,
            })
            .collect(),
    )
}

/// Hides secrets: the output is pasted into reports.
fn shown(name: &str, text: String) -> String {
    if name == "JOB_KEY" { "(set)".to_owned() } else { text }
}

impl Text for ParamList {
    fn text(&self) -> String {
        let rows = self.0.iter().map(|param| {
            let set = param.set.clone().unwrap_or_default();
            [
                format!("FI_WEFT_{}", param.name),
                param.default.to_owned(),
                param.unit.to_owned(),
                set,
                param.help.to_owned(),
            ]
        });
        render::table(["variable", "default", "unit", "set", "meaning"], rows)
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

    #[test]
    fn every_variable_is_listed() {
        let text = params().text();
        assert_eq!(params().0.len(), TABLE.len());
        assert!(TABLE.iter().all(|param| text.contains(param.name)), "{text}");
    }
}
