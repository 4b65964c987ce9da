//! The identity of a process within its job: rank, number of ranks, job, and host.
//!
//! Place in the data flow: read by [`super::Page`] and by the report of weft-fi, whose readers show it to users. `weft
//! run` reads the identities of processes that do not use weft.
//!
//! A job is one start of ranks by a launcher. Its name is the same on all hosts: that of PMIx, Slurm or Intel MPI in
//! the environment. MPICH's Hydra gives its jobs no name there, but the arguments of its proxies have the launcher's
//! port.

use std::path::PathBuf;

/// Variables in which launchers tell a process its rank and the number of ranks: Hydra and Slurm's PMI-1 and PMI-2,
/// Open MPI, and Slurm.
const RANKS: [(&str, &str); 3] =
    [("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")];

/// Variables in which launchers tell a process its place among the ranks of its host: Hydra, Open MPI, and Slurm.
const LOCAL_RANKS: [&str; 3] = ["MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"];

/// The parent of Hydra's ranks, as the kernel truncates its name.
const HYDRA_PROXY: &str = "hydra_pmi_proxy";
/// The parents of other launchers' ranks.
const OTHER_PARENTS: [&str; 6] = ["prted", "prterun", "orted", "orterun", "mpirun", "slurmstepd"];
/// Most ancestors that are examined.
const ANCESTORS_MOST: usize = 16;
/// Most characters of a job's name.
const JOB_CHARS: usize = 128;

/// Variables in which launchers tell a process the number of ranks on its host: Hydra and Open MPI.
const LOCAL_SIZES: [&str; 2] = ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"];

/// The library that carries the messages between the ranks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// weft, or the process is the only rank of its host.
    Weft,
    /// The MPI library, by shared memory of its own.
    Library,
    /// The launcher does not tell.
    Unknown,
}

impl Carrier {
    /// The carrier of this process's tagged messages, by the environment.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self::by(|name| std::env::var(name).ok())
    }

    fn by(variable: impl Fn(&str) -> Option<String>) -> Self {
        let value = |name: &str| variable(name).map(|value| value.to_ascii_lowercase());
        let is_alone = LOCAL_SIZES.iter().any(|name| value(name).is_some_and(|size| size == "1"));
        // Open MPI passes tagged messages to libfabric with all other ranks, or with none.
        let all_or_none = value("OMPI_COMM_WORLD_RANK").is_some();
        let no_local = value("MPIR_CVAR_NOLOCAL").map(|set| !["", "0", "n", "no", "false", "off"].contains(&&*set));
        let fabrics = value("I_MPI_FABRICS").map(|fabrics| !fabrics.contains("shm"));
        match (is_alone || all_or_none, no_local.or(fabrics), value("PMI_RANK")) {
            (true, ..) | (_, Some(true), _) => Self::Weft,
            (_, _, Some(_)) => Self::Library,
            _ => Self::Unknown,
        }
    }
}

/// Whether this process is the first rank of its host, or no launcher tells otherwise.
#[must_use]
pub fn is_first_of_host() -> bool {
    LOCAL_RANKS.iter().find_map(std::env::var_os).is_none_or(|rank| rank == "0")
}

/// The identity of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The rank, if the launcher told it.
    pub rank: Option<u64>,
    /// The number of ranks, if the launcher told it.
    pub size: Option<u64>,
    /// The name of the host, without white space.
    pub host: String,
    /// The name of the job, without white space. Empty: no launcher is known.
    pub job: String,
    /// Whether other ranks have started this one (`MPI_Comm_spawn`). Hydra's spawned ranks have the job of the others.
    pub spawned: bool,
}

impl Identity {
    /// Reads the environment, the host's name, and the ancestors in /proc.
    #[must_use]
    pub fn of_this_process() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        Self::without_job(variable).in_job(std::process::id(), variable)
    }

    /// Reads the environment and the host's name.
    pub(crate) fn without_job_of_this_process() -> Self {
        Self::without_job(|name| std::env::var(name).ok())
    }

    /// The identity of another process of this host. `None`: it has ended, or belongs to another user.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let environment = text(pid, "environ")?;
        let value = |name: &str| environment.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
        let variable = |name: &str| value(name).map(str::to_owned);
        Some(Self::without_job(variable).in_job(pid, variable))
    }

    /// Whether MPICH's launcher has started the rank: its jobs are named by a socket and a process group.
    #[must_use]
    pub fn is_of_hydra(&self) -> bool {
        self.job.split_once('/').is_some_and(|(socket, _)| socket.contains(':'))
    }

    fn without_job(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| variable(name).and_then(|text| text.parse().ok());
        let known = RANKS.iter().find_map(|(rank, size)| Some((number(rank)?, number(size))));
        Self {
            rank: known.map(|(rank, _)| rank),
            size: known.and_then(|(_, size)| size),
            host: one_word(&rustix::system::uname().nodename().to_string_lossy()),
            job: String::new(),
            spawned: variable("PMI_SPAWNED").is_some_and(|value| value == "1"),
        }
    }

    fn in_job(self, pid: u32, variable: impl Fn(&str) -> Option<String>) -> Self {
        let job = self.rank.and_then(|_| job(pid, &variable)).unwrap_or_default();
        Self { job: one_word(&job).chars().take(JOB_CHARS).collect(), ..self }
    }
}

fn one_word(text: &str) -> String {
    text.replace(|char: char| char.is_whitespace() || char.is_control(), "_")
}

/// The name of a rank's job. The nearest launcher among the ancestors counts: variables of an outer one may be left in
/// the environment.
fn job(pid: u32, variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let named = |names: &[&str]| names.iter().find_map(|name| variable(name));
    let slurm = || Some(format!("{}.{}", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?));
    let hydra = match parent(pid) {
        Some((name, proxy)) if name == HYDRA_PROXY => {
            text(proxy, "cmdline").and_then(|line| of_proxy(&line)).or_else(|| variable("I_MPI_HYDRA_UUID"))
        }
        _ => None,
    };
    hydra.or_else(|| named(&["PMIX_NAMESPACE", "PMI_JOBID", "I_MPI_HYDRA_UUID"])).or_else(slurm)
}

/// The nearest ancestor that is the parent of a launcher's ranks.
fn parent(pid: u32) -> Option<(String, u32)> {
    let ancestors = std::iter::successors(Some(Status::of(pid)?.parent), |pid| Some(Status::of(*pid)?.parent));
    let named = ancestors.take(ANCESTORS_MOST).filter_map(|pid| Some((Status::of(pid)?.name, pid)));
    named.into_iter().find(|(name, _)| name == HYDRA_PROXY || OTHER_PARENTS.contains(&name.as_str()))
}

/// The launcher's port and the process group of a proxy's arguments.
fn of_proxy(line: &str) -> Option<String> {
    let argument = |name: &str| line.split('\0').skip_while(|word| *word != name).nth(1);
    Some(format!("{}/{}", argument("--control-port")?, argument("--pgid").unwrap_or("0")))
}

/// A file of a process in /proc, as text. Names of processes may be any bytes.
fn text(pid: u32, file: &str) -> Option<String> {
    let bytes = std::fs::read(PathBuf::from(format!("/proc/{pid}/{file}"))).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The fields of `/proc/PID/stat` that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The name of the program's file, truncated to 15 bytes.
    pub name: String,
    /// The parent's process id.
    pub parent: u32,
    /// The process group.
    pub group: u32,
}

impl Status {
    /// Reads the fields. `None`: there is no such process.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&text(pid, "stat")?)
    }

    /// The name is in parentheses and may itself contain parentheses and spaces.
    fn parse(stat: &str) -> Option<Self> {
        let (before, after) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let mut fields = after.split_whitespace().skip(1).map(str::parse);
        let name = name.chars().filter(|char| !char.is_control()).collect();
        Some(Self { name, parent: fields.next()?.ok()?, group: fields.next()?.ok()? })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn identity(variables: &[(&str, &str)]) -> Identity {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        // No process has this id, so no ancestor is known.
        Identity::without_job(find).in_job(u32::MAX, find)
    }

    #[test]
    fn launchers_name_rank_and_job() {
        let prte = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_NAMESPACE", "prterun-h-7@1")];
        let found = identity(&prte);
        assert_eq!((found.rank, found.size, found.job.as_str()), (Some(1), Some(4), "prterun-h-7@1"));
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "9"), ("SLURM_STEP_ID", "3")];
        assert_eq!(identity(&slurm).job, "9.3");
        let spawned = identity(&[("PMI_RANK", "2"), ("PMI_SIZE", "3"), ("PMI_SPAWNED", "1")]);
        assert!(spawned.spawned && spawned.job.is_empty());
        assert_eq!(identity(&[("PMIX_NAMESPACE", "outer")]).job, "", "a process without rank belongs to no job");
    }

    #[test]
    fn the_carrier_of_messages_in_a_host_is_known_by_the_environment() {
        let by = |variables: &[(&str, &str)]| {
            Carrier::by(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        let hydra = ("PMI_RANK", "1");
        for (variables, carrier) in [
            (vec![], Carrier::Unknown),
            (vec![hydra], Carrier::Library),
            (vec![hydra, ("MPI_LOCALNRANKS", "1")], Carrier::Weft),
            (vec![hydra, ("MPI_LOCALNRANKS", "2")], Carrier::Library),
            (vec![hydra, ("MPIR_CVAR_NOLOCAL", "1")], Carrier::Weft),
            (vec![hydra, ("MPIR_CVAR_NOLOCAL", "No")], Carrier::Library),
            (vec![hydra, ("I_MPI_FABRICS", "ofi")], Carrier::Weft),
            (vec![hydra, ("I_MPI_FABRICS", "shm:ofi")], Carrier::Library),
            (vec![("OMPI_COMM_WORLD_RANK", "0")], Carrier::Weft),
        ] {
            assert_eq!(by(&variables), carrier, "{variables:?}");
        }
    }

    #[test]
    fn hydra_names_its_jobs_in_the_arguments_of_proxies() {
        let line = "/v/bin/hydra_pmi_proxy\0--control-port\0vm:44529\0--rmk\0user\0--pgid\x000\0--proxy-id\x001\0";
        assert_eq!(of_proxy(line).as_deref(), Some("vm:44529/0"));
        let identity = |job: &str| Identity { job: job.to_owned(), ..Identity::default() };
        assert!(identity("vm:44529/0").is_of_hydra() && !identity("prterun-vm-24082@1").is_of_hydra());
        assert_eq!(of_proxy("/v/bin/hydra_pmi_proxy\0--usize\0-1\0"), None);
    }

    #[test]
    fn names_of_processes_may_contain_anything() {
        let status = Status::parse("4711 (a) (b c) S 12 4700 1 0 -1").unwrap();
        assert_eq!((status.name.as_str(), status.parent, status.group), ("a) (b c", 12, 4700));
        assert!(Status::parse("4711 (a").is_none());
    }

    #[test]
    fn other_processes_are_read_from_outside() {
        let found = Identity::of(std::process::id()).unwrap();
        assert_eq!(found.host, Identity::of_this_process().host);
        assert!(Identity::of(u32::MAX).is_none());
    }
}
