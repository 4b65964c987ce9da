//! The identity of this process within its job: rank, number of ranks, and host.
//!
//! Place in the data flow: read by [`super::publish`] and [`super::report`], whose readers show it to users.

/// Variables in which launchers tell a process its rank and the number of ranks: Hydra and Slurm's PMI-1 and PMI-2,
/// Open MPI, and Slurm.
const RANKS: [(&str, &str); 3] =
    [("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")];

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
