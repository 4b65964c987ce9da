//! The job of a process: the processes that one launcher has started.
//!
//! Place in the data flow: `/proc/PID/stat` and `/proc/PID/environ` → here → `find.rs`. A launcher's server that runs
//! several jobs (prte, pmix) names the job in the environment.

use std::path::PathBuf;

use weft_observe::identity::Status;

use super::find::text;
use crate::foreign::shown;

/// Launchers, and their daemons on each host.
const LAUNCHERS: &[&str] = &[
    "mpiexec",
    "mpirun",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "prterun",
    "prted",
    "orterun",
    "orted",
    "oshrun",
    "srun",
    "slurmstepd",
];

/// Whether a program's name is that of a launcher, or of its daemon.
pub(crate) fn is_launcher(name: &str) -> bool {
    LAUNCHERS.iter().any(|known| name.starts_with(known))
}

/// Most ancestors that are examined.
const ANCESTORS_MOST: usize = 16;

/// The name of a process's job: its topmost launcher (`mpiexec 4711`), the name that PMIx or Slurm gave the job, or
/// else its process group (`group 4711`).
pub(super) fn of(pid: u32) -> String {
    let status = Status::of(pid);
    let ancestors =
        std::iter::successors(status.as_ref().map(|status| status.parent), |pid| Some(Status::of(*pid)?.parent));
    let named = ancestors.take(ANCESTORS_MOST).filter_map(|pid| Some((Status::of(pid)?.name, pid)));
    let launcher = named.filter(|(name, _)| is_launcher(name)).last();
    if let Some((name, pid)) = launcher {
        return format!("{} {pid}", shown(&name));
    }
    let environment = text(&PathBuf::from(format!("/proc/{pid}/environ"))).unwrap_or_default();
    let of_variable = of_environment(&environment);
    of_variable.unwrap_or_else(|| status.map(|status| format!("group {}", status.group)).unwrap_or_default())
}

fn of_environment(environment: &str) -> Option<String> {
    let get = |name: &str| environment.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    let name = get("PMIX_NAMESPACE").map(str::to_owned);
    let name =
        name.or_else(|| get("SLURM_JOB_ID").map(|id| format!("slurm {id}.{}", get("SLURM_STEP_ID").unwrap_or("0"))));
    name.map(|name| shown(&name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_environment_names_a_job() {
        assert_eq!(of_environment("A=1\0PMIX_NAMESPACE=prte-h@3\0").as_deref(), Some("prte-h@3"));
        assert_eq!(of_environment("SLURM_JOB_ID=7\0SLURM_STEP_ID=2\0").as_deref(), Some("slurm 7.2"));
        assert_eq!(of_environment("PATH=/bin"), None);
    }

    #[test]
    fn a_process_without_launcher_has_its_group() {
        assert!(!of(std::process::id()).is_empty());
        assert_eq!(of(u32::MAX), "");
    }
}
