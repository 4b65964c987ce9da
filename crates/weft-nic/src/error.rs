//! Why devices could not be set up, with what to do about it.
//!
//! Place in the data flow: returned by `Devices::new` and what it calls; weft-fi logs the text and turns the kind
//! into an errno. Errors of a single link are [`weft_engine::nic::LinkError`].

use std::io;
use std::net::SocketAddr;

/// A set-up error. Its text names the cause and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The interface that was asked for does not exist.
    #[error(
        "no network interface has the name or address `{name}`; there are: {available} (set FI_WEFT_IFACE to one of them, or unset it)"
    )]
    NoSuchInterface {
        /// What was asked for.
        name: String,
        /// What there is.
        available: String,
    },
    /// The interface that was asked for cannot be used.
    #[error(
        "network interface `{name}` {problem} (set FI_WEFT_IFACE to another one, or unset it; there are: {available})"
    )]
    UnusableInterface {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What there is.
        available: String,
    },
    /// Both devices are switched off.
    #[error("shared memory and TCP are both disabled (FI_WEFT_SHM, FI_WEFT_TCP): nothing is left to communicate with")]
    NoDevice,
    /// The TCP listener could not be bound.
    #[error("cannot listen on {addr}: {source}{}", remedy(.source))]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// Shared memory could not be set up, and there is no TCP to fall back to.
    #[error("cannot set up shared memory: {0} (allow TCP as well: FI_WEFT_TCP=1)")]
    Shm(io::Error),
    /// The system has no random numbers for us.
    #[error("the operating system gives no random numbers (getrandom failed)")]
    Entropy,
    /// Another system call failed.
    #[error("{what}: {source}{}", remedy(.source))]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl NicError {
    /// The system's error number that comes closest.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::NoSuchInterface { .. } => libc::ENODEV,
            Self::UnusableInterface { .. } => libc::EADDRNOTAVAIL,
            Self::NoDevice => libc::EINVAL,
            Self::Entropy => libc::EIO,
            Self::Listen { source, .. } | Self::Shm(source) | Self::System { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }

    /// For `map_err` after a system call.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}

fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            " (another program listens there: choose another service, or wait until it has ended)"
        }
        Some(libc::EADDRNOTAVAIL) => " (no interface of this host has that address)",
        Some(libc::EACCES) => " (ports below 1024 need a privilege: choose a higher one)",
        Some(libc::EMFILE) => " (the process is out of file descriptors: raise `ulimit -n`)",
        Some(libc::ENFILE) => " (the host is out of file descriptors: raise fs.file-max)",
        _ => "",
    }
}
