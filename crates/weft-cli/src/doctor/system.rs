//! Checks of the machine: shared memory, cross-memory attach, interfaces, seccomp, resource limits.

use rustix::process::{Resource, getrlimit};
use weft_fi::params::Params;
use weft_nic::{NicError, host, shm};

use super::{Finding, Outcome};
use crate::info::SHM_NEEDS;

/// Descriptors that a process with many peers needs: one for each peer.
const ENOUGH_DESCRIPTORS: u64 = 4096;

/// Runs all checks of this area.
pub(super) fn examine(params: &Params) -> Vec<Finding> {
    let mut findings = shared_memory(params);
    findings.push(yama(std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().as_deref()));
    findings.push(seccomp(std::fs::read_to_string("/proc/self/status").ok().as_deref()));
    findings.push(address(params));
    let files = getrlimit(Resource::Nofile);
    findings.push(descriptors(files.current, files.maximum));
    findings.push(memlock(getrlimit(Resource::Memlock).current));
    findings.push(dev_shm());
    findings
}

/// Runs the device's own probes. A failed probe costs speed, or makes TCP carry the traffic inside this host.
fn shared_memory(params: &Params) -> Vec<Finding> {
    if !params.shm {
        return vec![Finding::degraded(
            "shared memory",
            "disabled by FI_WEFT_SHM: TCP carries all traffic",
            "unset FI_WEFT_SHM",
        )];
    }
    // Yama alone decides whether siblings may attach; `yama` checks it.
    let probed = shm::probe().into_iter().filter(|found| !found.what.ends_with("between siblings"));
    probed
        .map(|found| {
            let what = format!("shared memory: {}", found.what);
            if found.ok {
                Finding::good(what, found.detail)
            } else {
                Finding::degraded(what, found.detail, remedy(found.what))
            }
        })
        .collect()
}

/// The remedy for a failed probe.
fn remedy(what: &str) -> &'static str {
    if what == "user id" {
        "run as another user, or map all users into the namespace (user_namespaces(7))"
    } else if SHM_NEEDS.contains(&what) {
        "allow memfd_create(2) and abstract Unix sockets (a seccomp or AppArmor profile forbids them)"
    } else if what.starts_with("cross-memory attach") {
        "allow process_vm_readv(2): in a container add the capability SYS_PTRACE, or a seccomp profile with the call"
    } else {
        "use a newer kernel, or a seccomp profile that lets the call through"
    }
}

/// Checks whether unrelated processes may read each other's memory.
fn yama(scope: Option<&str>) -> Finding {
    let what = "yama ptrace_scope";
    match scope.map(str::trim) {
        None => Finding::good(what, "Yama is not active: processes of one user may attach to each other"),
        Some("0") => Finding::good(what, "0: processes of one user may attach to each other"),
        Some("1") => Finding::degraded(
            what,
            "1: only ancestors may attach, so large messages between ranks are copied twice",
            "sysctl kernel.yama.ptrace_scope=0",
        ),
        Some(scope) => Finding::degraded(
            what,
            format!("{scope}: attaching requires CAP_SYS_PTRACE or is disabled, so large messages are copied twice"),
            "sysctl kernel.yama.ptrace_scope=0 (3 can only be changed at boot), or give the processes CAP_SYS_PTRACE",
        ),
    }
}

/// Checks whether a filter of system calls is active. The probes show the calls that it forbids.
fn seccomp(status: Option<&str>) -> Finding {
    let what = "seccomp";
    let mode = status.and_then(|text| text.lines().find_map(|line| line.strip_prefix("Seccomp:"))).map(str::trim);
    match mode {
        Some("0") => Finding::good(what, "no filter of system calls is active"),
        Some("2") => Finding::note(
            what,
            "a filter of system calls is active, as in containers: the probes above show the calls that it forbids",
        ),
        _ => Finding::note(what, "unknown whether a filter of system calls is active"),
    }
}

/// Checks the address at which other hosts reach this one.
fn address(params: &Params) -> Finding {
    let what = "address for TCP";
    if !params.tcp {
        return Finding::degraded(what, "disabled by FI_WEFT_TCP: other hosts are unreachable", "unset FI_WEFT_TCP");
    }
    let names = |up: bool| {
        let all = host::interfaces().unwrap_or_default();
        all.into_iter().filter(|i| i.up == up).map(|i| i.name).collect::<Vec<_>>().join(", ")
    };
    let iface = params.iface.as_deref();
    let chosen = host::choose_address(iface, None).and_then(|addr| host::choose_addresses(iface, addr).map(|_| addr));
    match chosen.and_then(|addr| host::try_listen(addr).map(|()| addr)) {
        Err(error @ NicError::Listen { .. }) if params.shm => Finding::degraded(
            what,
            format!("{error}; other hosts are unreachable"),
            "set FI_WEFT_IFACE to a usable interface or address, or unset it",
        ),
        Err(error) => Finding::bad(
            what,
            error.to_string(),
            "set FI_WEFT_IFACE to an interface that is up or to one of its addresses, or unset it",
        ),
        Ok(addr) if addr.ip().is_loopback() => Finding::degraded(
            what,
            format!("{}: only this host is reachable; interfaces that are up: {}", addr.ip(), names(true)),
            match params.iface.as_deref() {
                Some(iface) => {
                    format!("FI_WEFT_IFACE={iface} chose it: name another interface or address, or unset it")
                }
                None => format!("bring up an interface (now down: {}) or set FI_WEFT_IFACE", names(false)),
            },
        ),
        Ok(addr) => {
            let by = match params.iface {
                Some(_) => "FI_WEFT_IFACE",
                None => {
                    "weft: of the interfaces that are up, that of the default route, and no tunnel if there is another"
                }
            };
            let second = host::second_address(params.iface.as_deref(), None, addr);
            let second = second.map(|ip| format!("; peers that cannot reach it try {ip}")).unwrap_or_default();
            Finding::good(
                what,
                format!("{}, chosen by {by}{second}; interfaces that are up: {}", addr.ip(), names(true)),
            )
        }
    }
}

/// Checks the limits on open files. weft raises the soft one when a process has many peers.
fn descriptors(soft: Option<u64>, hard: Option<u64>) -> Finding {
    let what = "limit on open files";
    match (soft, hard.or(soft)) {
        (Some(_), Some(hard)) if hard < ENOUGH_DESCRIPTORS => Finding::degraded(
            what,
            format!("{hard} per process: large jobs need one for each peer"),
            format!("ulimit -Hn {ENOUGH_DESCRIPTORS}, as root, or limits.conf(5)"),
        ),
        (Some(soft), Some(hard)) if soft < hard => {
            Finding::good(what, format!("{soft} per process; weft raises it up to {hard} for many peers"))
        }
        (Some(soft), _) => Finding::good(what, format!("{soft} per process")),
        (None, _) => Finding::good(what, "none"),
    }
}

/// Reports the limit on locked memory, which concerns other providers.
fn memlock(limit: Option<u64>) -> Finding {
    let limit = limit.map_or("none".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    Finding::good("limit on locked memory", format!("{limit}: any value suffices, weft locks no memory"))
}

/// Reports the size of /dev/shm, which concerns other providers.
fn dev_shm() -> Finding {
    let what = "/dev/shm";
    let size = match rustix::fs::statvfs("/dev/shm") {
        Ok(at) => {
            let mib = |blocks: u64| (blocks * at.f_frsize) >> 20;
            format!("{} MiB, {} MiB free", mib(at.f_blocks), mib(at.f_bavail))
        }
        Err(error) => format!("not there ({error})"),
    };
    Finding::new(what, Outcome::Good, format!("{size}: weft does not use it (it uses memfds); MPI libraries may"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yama_settings_are_parsed() {
        assert_eq!(yama(None).state, Outcome::Good);
        assert_eq!(yama(Some("0\n")).state, Outcome::Good);
        assert_eq!(yama(Some("1\n")).state, Outcome::Degraded);
        assert!(yama(Some("3\n")).remedy.contains("boot"));
    }

    #[test]
    fn seccomp_modes_are_parsed() {
        assert_eq!(seccomp(Some("Name:\tx\nSeccomp:\t0\n")).state, Outcome::Good);
        assert_eq!(seccomp(Some("Seccomp:\t2\nSeccomp_filters:\t1\n")).state, Outcome::Note);
        assert_eq!(seccomp(None).state, Outcome::Note);
    }

    #[test]
    fn few_descriptors_are_noticed() {
        assert_eq!(descriptors(Some(64), Some(64)).state, Outcome::Degraded);
        let raised = descriptors(Some(64), Some(1 << 20));
        assert!(raised.state == Outcome::Good && raised.detail.contains("raises"), "{}", raised.detail);
        assert_eq!(descriptors(Some(1 << 20), Some(1 << 20)).state, Outcome::Good);
        assert_eq!(descriptors(None, None).state, Outcome::Good);
    }

    #[test]
    fn a_missing_interface_is_bad() {
        let params = Params { iface: Some("nonesuch0".to_owned()), ..Params::default() };
        let finding = address(&params);
        assert_eq!(finding.state, Outcome::Bad);
        assert!(finding.detail.contains("nonesuch0"), "{finding:?}");
    }

    #[test]
    fn an_address_is_as_good_as_a_name() {
        let finding = |iface: &str| address(&Params { iface: Some(iface.to_owned()), ..Params::default() });
        for iface in ["lo", "127.0.0.1"] {
            let finding = finding(iface);
            assert_eq!(finding.state, Outcome::Degraded);
            assert!(finding.detail.contains("127.0.0.1"), "{finding:?}");
            assert!(finding.remedy.contains(&format!("FI_WEFT_IFACE={iface}")), "{finding:?}");
        }
        // An address reserved for documentation belongs to no host.
        let foreign = finding("203.0.113.77");
        assert_eq!(foreign.state, Outcome::Bad);
        assert!(foreign.detail.contains("203.0.113.77"), "{foreign:?}");
    }

    #[test]
    fn disabled_paths_are_reported() {
        let params = Params { shm: false, tcp: false, ..Params::default() };
        assert_eq!(shared_memory(&params)[0].state, Outcome::Degraded);
        assert_eq!(address(&params).state, Outcome::Degraded);
    }
}
