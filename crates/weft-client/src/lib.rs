//! A libfabric client with a safe interface: it loads a host library and drives any provider in it.
//!
//! Place in the data flow: on the client's side of libfabric. `weft bench` measures weft and other providers through
//! this crate, so that every provider sees the same calls. weft-coll runs the collectives of MPI programs through it.
//! Start reading at the three main types: [`Library`] is a loaded libfabric. [`Domain`] is a provider opened in it.
//! [`Endpoint`] is a reliable-datagram endpoint with its completion queue, address vector and memory.
//!
//! The crate checks these rules itself and does not depend on its callers:
//! - An endpoint owns its communication memory, except that of collectives (an `unsafe` call). Operations name ranges
//!   of it by offset and length, which are checked. No Rust reference into this memory exists, because a peer may write
//!   to it at any time.
//! - An endpoint owns the contexts of its operations (`fi_context2`, for providers that keep state in them).
//!   A context is refused until its operation is complete.
//! - Memory and contexts are freed after the endpoint and its registration were closed, or not at all.
//! - A loaded library is never unloaded: it may have threads and exit handlers that this crate cannot see.
//!
//! Sizes are bytes. Errors are [`Error`]. The state "no room at the moment" (`-FI_EAGAIN`) is not an error
//! but [`Posted::Again`].
//!
//! Sources: the man pages of libfabric 1.17, fi_getinfo(3), fi_endpoint(3), fi_cq(3), fi_av(3), fi_mr(3), fi_rma(3),
//! fi_atomic(3), fi_collective(3).

mod block;
mod collective;
mod domain;
mod endpoint;
mod library;
mod operations;
mod sockets;

use std::ffi::c_int;
#[cfg(target_env = "gnu")]
use std::sync::OnceLock;

/// The address format `sockaddr_in`, see [`Domain::address_format`].
pub const FORMAT_SOCKADDR_IN: u32 = weft_fi_sys::FI_SOCKADDR_IN;
/// The address format `sockaddr_in6`.
pub const FORMAT_SOCKADDR_IN6: u32 = weft_fi_sys::FI_SOCKADDR_IN6;
/// The address format of null-terminated strings.
pub const FORMAT_STRING: u32 = weft_fi_sys::FI_ADDR_STR;

pub use collective::{Collective, Exchange, Extent, Group, Numbers, Operation, Performed};
pub use domain::{Caps, Domain, MappedBlock, Progress, Requirements, Stats, Threading, Waiting};
pub use endpoint::{Address, Completion, Endpoint, Piece, Posted, Region};
pub use library::Library;
pub use sockets::Sockets;

/// Bytes that all libraries of this process have allocated from malloc(3) and not freed. `None`: the C
/// library does not report it.
#[must_use]
pub fn heap_bytes() -> Option<usize> {
    #[cfg(target_env = "gnu")]
    {
        // glibc has the function since 2.33, and packages of this program run with older versions.
        static COUNT: OnceLock<Option<unsafe extern "C" fn() -> libc::mallinfo2>> = OnceLock::new();
        // SAFETY: the signature is that of mallinfo(3), and libc is never unloaded.
        let find = || unsafe { libloading::os::unix::Library::this().get(b"mallinfo2\0") }.ok().map(|found| *found);
        let count = (*COUNT.get_or_init(find))?;
        // SAFETY: the function takes no arguments and only counts.
        let info = unsafe { count() };
        Some(info.uordblks + info.hblkhd)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library cannot be loaded, or is not libfabric.
    #[error("{0}")]
    Load(String),
    /// The provider lacks a requested feature.
    #[error("{0}")]
    NotOffered(String),
    /// A libfabric function returned an error.
    #[error("{what}: {text} ({code})")]
    Call {
        /// The name of the function.
        what: &'static str,
        /// The error number, positive.
        code: c_int,
        /// The text of `fi_strerror`.
        text: String,
    },
    /// An operation completed with an error.
    #[error("an operation completed with an error: {text} ({code}, the provider's own {provider_code})")]
    Completion {
        /// The context of the operation; `None` if the provider named none.
        slot: Option<u32>,
        /// The error number, positive.
        code: c_int,
        /// The provider's error number.
        provider_code: c_int,
        /// The entry's data. For a collective of weft: the rank of a member that was lost, plus 1, or 0.
        data: u64,
        /// The text of `fi_strerror`.
        text: String,
    },
    /// The caller violated a rule of this crate: a range outside the memory, a context in use, a foreign
    /// address.
    #[error("misuse: {0}")]
    Misuse(&'static str),
}

impl Error {
    /// Whether the provider lacks the function, in contrast to a failure of the function.
    #[must_use]
    pub fn is_not_offered(&self) -> bool {
        match self {
            Self::NotOffered(_) => true,
            Self::Call { code, .. } => {
                [weft_fi_sys::FI_ENODATA, weft_fi_sys::FI_ENOSYS, weft_fi_sys::FI_EOPNOTSUPP].contains(code)
            }
            _ => false,
        }
    }
}
