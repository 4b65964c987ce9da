//! Errors of a job's start, and the end of a process that cannot go on.
//!
//! Every text names the cause and, after a semicolon, the remedy.

use weft_nic::NicError;
use weft_os::SystemError;
use weft_os::rendezvous::MeetError;

/// The reason why a job cannot start or a call cannot be performed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call was refused.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The endpoint's device cannot be opened.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A dialogue with the launcher failed.
    #[error(
        "the launcher did not {0}; start the job with a launcher that speaks PMI-1 (MPICH's mpiexec) or PMIx, or by gasnetrun_ofi"
    )]
    Launcher(String),
    /// A variable of the environment has no usable value.
    #[error("{name}={value} is not {expected}; change or unset the variable")]
    Variable {
        /// The name of the variable.
        name: String,
        /// Its value.
        value: String,
        /// A description of usable values.
        expected: &'static str,
    },
    /// A start by ssh has no hosts.
    #[error("no hosts are named; set GASNET_SSH_SERVERS to their names, or GASNET_SSH_NODEFILE to a file with them")]
    NoHosts,
    /// A rank is on another host.
    #[error(
        "rank {0} runs on another host, and conduit smp serves one host; link with conduit ofi, or start all ranks on one host"
    )]
    OtherHost(u32),
    /// The ranks of the host could not exchange their memory.
    #[error("the ranks of this host did not meet within {0} s; check that all ranks have started")]
    Rendezvous(u64),
    /// A number of ranks is out of the limits.
    #[error("a job of {0} ranks is not supported; start 1 to {most} ranks", most = crate::board::MAX_RANKS)]
    Ranks(u64),
    /// The rank has all endpoints that it may have.
    #[error("no endpoint is left; make at most GASNET_MAXEPS, or destroy one with gexw_EP_Destroy")]
    Endpoints,
    /// The job's memory file has no room.
    #[error("a segment of {0} bytes does not fit into the job's memory file; ask for less, or raise `ulimit -f`")]
    NoRoom(u64),
}

impl From<MeetError> for Error {
    fn from(error: MeetError) -> Self {
        match error {
            MeetError::System(error) => Self::System(error),
            MeetError::Late(limit) => Self::Rendezvous(limit.as_secs()),
        }
    }
}
