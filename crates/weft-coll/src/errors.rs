//! Errors of collectives: their classes, and texts that name the call, the communicator, the rank and the cause.
//!
//! Place in the data flow: [`crate::plan`] finds calls that are wrong, and [`crate::run`] operations that have failed.
//! [`Failure::code`] makes an error code of MPI of them. The code has a text of its own, which `MPI_Error_string`
//! returns and which the MPI library prints if errors end the program.

use std::ffi::{CString, c_int};
use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};

use weft_fi_sys::{FI_EINVAL, FI_ETRUNC};

use crate::mpi::{ERR_BUFFER, ERR_COUNT, ERR_TYPE, Handle};
use crate::pmpi::Pmpi;
use crate::run::Runtime;

/// `FI_ETRUNC` as an error number.
const FI_ETRUNC_CODE: c_int = FI_ETRUNC as c_int;

/// The reason for which a call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A count is negative.
    Count(i64),
    /// A buffer with elements has no address.
    NoBuffer,
    /// MPI_IN_PLACE stands for a buffer that this rank must have.
    InPlace,
    /// Both buffers are the same, where the MPI library does not allow it.
    Aliased,
    /// This rank sends blocks of other lengths than it receives, in bytes.
    OtherLength { sent: usize, received: usize },
    /// The MPI library could not pack or unpack the elements.
    Packing,
    /// The MPI library has no more requests.
    NoRequest,
    /// Another rank passes arguments that do not fit those of this one. `longer`: it sends more.
    OtherArguments { longer: bool },
    /// A member was lost, or the provider has failed for another reason.
    Failed {
        /// The lost member: its rank here and in the world.
        member: Option<(usize, usize)>,
        /// The provider's text.
        text: String,
    },
}

impl Cause {
    /// The cause of an error of the provider. `ranks` are those of the group's members in the world.
    pub(crate) fn of(error: &weft_client::Error, ranks: &[usize]) -> Self {
        let weft_client::Error::Completion { code, data, text, .. } = error else {
            return Self::Failed { member: None, text: error.to_string() };
        };
        if *code == FI_ETRUNC_CODE || *code == FI_EINVAL {
            return Self::OtherArguments { longer: *code == FI_ETRUNC_CODE };
        }
        let lost = usize::try_from(*data).ok().and_then(|data| data.checked_sub(1));
        let member = lost.and_then(|rank| Some((rank, *ranks.get(rank)?)));
        Self::Failed { member, text: text.clone() }
    }

    /// The text of the cause.
    fn text(&self, hosts: &[String]) -> String {
        match self {
            Self::Failed { member: Some((rank, in_world)), text } => {
                let host = hosts.get(*in_world).map_or("?", String::as_str);
                format!("rank {rank} on host {host} died, or cannot be reached any more ({text})")
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "the count is {count}"),
            Self::NoBuffer => write!(f, "a buffer is a null pointer, and its count is not 0"),
            Self::InPlace => write!(f, "MPI_IN_PLACE stands for a buffer that this rank must pass"),
            Self::Aliased => write!(f, "both buffers are the same: use MPI_IN_PLACE"),
            Self::OtherLength { sent, received } => {
                write!(f, "a block has {sent} bytes where it is sent, and {received} where it is received")
            }
            Self::Packing => write!(f, "the MPI library could not pack or unpack the elements"),
            Self::NoRequest => write!(f, "the MPI library could not make a request"),
            Self::OtherArguments { longer: true } => write!(f, "another rank sends more bytes than this one receives"),
            Self::OtherArguments { longer: false } => {
                write!(f, "another rank passes another count, type, root or operation, or makes another call")
            }
            Self::Failed { text, .. } => write!(f, "another rank has failed, or cannot be reached any more ({text})"),
        }
    }
}

/// A call that has failed, or that is wrong.
pub(crate) struct Failure<'a> {
    /// The name of the function that the program has called. Its form with large counts has the same name here.
    pub(crate) name: &'static str,
    /// The program's communicator, if it still has one.
    pub(crate) comm: Option<Handle>,
    pub(crate) rank: usize,
    pub(crate) cause: &'a Cause,
}

impl Failure<'_> {
    /// An error code of MPI with the cause's class and a text about this failure.
    pub(crate) fn code(&self, runtime: &Runtime) -> c_int {
        let pmpi = &runtime.pmpi;
        let class = self.class(pmpi);
        let on = self.comm.map(|comm| pmpi.name(comm)).filter(|name| !name.is_empty());
        let on = on.unwrap_or_else(|| "a communicator".to_owned());
        let Self { name: call, rank, cause, .. } = self;
        let cause = cause.text(&runtime.hosts);
        pmpi.described(class, &format!("weft-coll: {call} on {on}, rank {rank}: {cause}")).unwrap_or(class)
    }

    /// Calls the error handler of the communicator. Returns the error code.
    pub(crate) fn raise(&self, runtime: &Runtime) -> c_int {
        let code = self.code(runtime);
        if let Some(comm) = self.comm {
            runtime.pmpi.call_error_handler(comm, code);
        }
        code
    }

    fn class(&self, pmpi: &Pmpi) -> c_int {
        match self.cause {
            Cause::Count(_) => ERR_COUNT,
            Cause::NoBuffer | Cause::InPlace | Cause::Aliased => ERR_BUFFER,
            Cause::OtherLength { sent, received } if sent > received => pmpi.mpi.err_truncate(),
            Cause::OtherArguments { longer: true } => pmpi.mpi.err_truncate(),
            Cause::Packing => ERR_TYPE,
            Cause::OtherLength { .. } | Cause::OtherArguments { .. } | Cause::NoRequest | Cause::Failed { .. } => {
                pmpi.mpi.err_other()
            }
        }
    }
}

/// The codes that this library has made, by class. MPI keeps codes until the process ends, so each has its own code,
/// and the text is that of the class's last failure.
static CODES: [AtomicI32; CLASSES] = [const { AtomicI32::new(0) }; CLASSES];
/// Predefined classes of this library's errors are smaller.
const CLASSES: usize = 64;

impl Pmpi {
    /// A code of this class with this text.
    pub(crate) fn described(&self, class: c_int, text: &str) -> Option<c_int> {
        let known = CODES.get(usize::try_from(class).ok()?)?;
        let mut code = known.load(Ordering::Acquire);
        if code == 0 {
            code = self.add_error_code(class)?;
            // Two threads that fail at the same time make two codes, of which one is not used again.
            known.store(code, Ordering::Release);
        }
        let most = self.mpi.max_error_string().saturating_sub(1).min(text.len());
        let text = CString::new(&text.as_bytes()[..most]).ok()?;
        self.set_error_string(code, &text).then_some(code)
    }
}
