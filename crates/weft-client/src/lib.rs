//! A libfabric client that is safe to use: it loads a host library and drives any provider in it.
//!
//! Place in the data flow: outside of the product. `weft bench` measures weft and its peers through this
//! crate, so that every provider sees the same calls. [`Library`] is a loaded libfabric, [`Domain`] a
//! provider opened in it, [`Endpoint`] a reliable-datagram endpoint with its completion queue, address vector
//! and memory; start reading there.
//!
//! What makes it safe, and is checked here rather than promised by callers:
//! - An endpoint owns the memory it communicates with. Operations name pieces of it by offset and length, which are
//!   checked; nobody holds a Rust reference into it, because a peer may write to it at any time.
//! - An endpoint owns the contexts of its operations (`fi_context2`, for providers that keep state in them). A context
//!   is refused until the operation that has it is complete.
//! - Memory and contexts are freed after the endpoint and its registration were closed, or not at all.
//! - A library that was loaded stays loaded: its threads and exit handlers may outlive what we know of.
//!
//! Sizes are bytes. Errors are [`Error`]; a provider that has no room at the moment (`-FI_EAGAIN`) is no error but
//! [`Posted::Again`].
//!
//! Sources: the man pages of libfabric 1.17, fi_getinfo(3), fi_endpoint(3), fi_cq(3), fi_av(3), fi_mr(3), fi_rma(3),
//! fi_atomic(3).

mod block;
mod domain;
mod endpoint;
mod library;
mod operations;

use std::ffi::c_int;

/// Addresses are `sockaddr_in`, see [`Domain::address_format`].
pub const FORMAT_SOCKADDR_IN: u32 = weft_fi_sys::FI_SOCKADDR_IN;
/// Addresses are `sockaddr_in6`.
pub const FORMAT_SOCKADDR_IN6: u32 = weft_fi_sys::FI_SOCKADDR_IN6;
/// Addresses are strings that end in a null byte.
pub const FORMAT_STRING: u32 = weft_fi_sys::FI_ADDR_STR;

pub use domain::{Caps, Domain, Progress, Stats, Threading, Wanted};
pub use endpoint::{Address, Completion, Endpoint, Piece, Posted, Region};
pub use library::Library;

/// Bytes that this process has from malloc(3) and has not given back, in all its libraries. `None`: the C
/// library does not tell.
#[must_use]
pub fn heap_bytes() -> Option<usize> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes no arguments and only counts.
        let info = unsafe { libc::mallinfo2() };
        Some(info.uordblks + info.hblkhd)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library cannot be loaded, or is not libfabric.
    #[error("{0}")]
    Load(String),
    /// The provider has not got what is wanted.
    #[error("{0}")]
    NotOffered(String),
    /// A call failed.
    #[error("{what}: {text} ({code})")]
    Call {
        /// The function.
        what: &'static str,
        /// The error, a positive number.
        code: c_int,
        /// What `fi_strerror` says.
        text: String,
    },
    /// An operation completed in error.
    #[error("an operation completed in error: {text} ({code}, the provider's own {provider_code})")]
    Completion {
        /// The error, a positive number.
        code: c_int,
        /// The provider's error number.
        provider_code: c_int,
        /// What `fi_strerror` says.
        text: String,
    },
    /// We asked for something that makes no sense: a piece outside the memory, a context in use, a foreign name.
    #[error("misuse: {0}")]
    Misuse(&'static str),
}

impl Error {
    /// Whether the provider lacks the function, as opposed to failing in it.
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
