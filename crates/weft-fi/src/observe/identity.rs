//! The identity of this process within its job: rank, number of ranks, and host.
//!
//! Place in the data flow: read by [`super::publish`] and [`super::report`], whose readers show it to users.

/// Variables in which launchers tell a process its rank and the number of ranks: Hydra and Slurm's PMI-1 and PMI-2,
/// Open MPI, and Slurm.
const RANKS: [(&str, &str); 3] =
    [("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")];

/// Variables in which launchers tell a process its place among the ranks of its host: Hydra, Open MPI, and Slurm.
const LOCAL_RANKS: [&str; 3] = ["MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"];

/// Whether this process is the first rank of its host, or no launcher tells otherwise.
pub(crate) fn is_first_of_host() -> bool {
    LOCAL_RANKS.iter().find_map(std::env::var_os).is_none_or(|rank| rank == "0")
}

/// The identity of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The rank, if the launcher told it.
    pub(crate) rank: Option<u64>,
    /// The number of ranks, if the launcher told it.
    pub(crate) size: Option<u64>,
    /// The name of the host, without white space.
    pub(crate) host: String,
}

impl Identity {
    /// Reads the environment and the host's name.
    pub(crate) fn of_this_process() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let known = RANKS.iter().find_map(|(rank, size)| Some((number(rank)?, number(size))));
        Self {
            rank: known.map(|(rank, _)| rank),
            size: known.and_then(|(_, size)| size),
            host: rustix::system::uname().nodename().to_string_lossy().replace(char::is_whitespace, "_"),
        }
    }
}
