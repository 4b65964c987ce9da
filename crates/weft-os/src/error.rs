//! The error of a refused system call, with a remedy.
//!
//! Place in the data flow: the helpers of this crate return it, and `weft_nic::NicError` contains it. weft-fi
//! logs the text and converts the number into an errno.

use std::borrow::Cow;
use std::io;

use crate::descriptors;

/// A refused system call. Its text names the call, the system's answer and, after a semicolon, a remedy.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}{}", remedy(.source))]
pub struct SystemError {
    what: &'static str,
    source: io::Error,
}

impl SystemError {
    /// Makes the function for `map_err` after the system call `what`.
    pub fn of<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self { what, source: source.into() }
    }

    /// The system's error number; EIO if the system gave none.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(libc::EIO)
    }
}

/// The remedy for a system error, to be appended to a text that names the error.
#[must_use]
pub fn remedy(source: &io::Error) -> Cow<'static, str> {
    if source.raw_os_error() == Some(libc::EMFILE)
        && let Some(most) = descriptors::most()
    {
        return format!("; all {most} file descriptors of the process are in use: raise `ulimit -n`").into();
    }
    Cow::Borrowed(match source.raw_os_error() {
        Some(libc::EADDRINUSE) => "; another program listens there: choose another service, or wait until it has ended",
        Some(libc::EADDRNOTAVAIL) => {
            "; no interface of this host has that address, or `ip addr` calls it tentative or dadfailed: choose another one (FI_WEFT_IFACE)"
        }
        Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => {
            "; the kernel lacks that kind of network: choose an interface with the other version of IP (FI_WEFT_IFACE)"
        }
        Some(libc::EACCES | libc::EPERM) => "; a sandbox or security policy forbids the call: allow it",
        // pthread_create(3) returns it also if memory is exhausted.
        Some(libc::EAGAIN) => {
            "; a limit of threads or memory is reached: raise `ulimit -u`, pids.max of the control group, or the memory of the process"
        }
        Some(libc::EMFILE) => "; the process is out of file descriptors: raise `ulimit -n`",
        Some(libc::ENFILE) => "; the host is out of file descriptors: raise fs.file-max",
        Some(libc::ENOMEM | libc::ENOBUFS) => "; memory is short: raise the limit of the process or its control group",
        Some(libc::ENOSPC) => {
            "; a limit of the kernel is reached: raise fs.epoll.max_user_watches, or free memory of the host"
        }
        Some(libc::EFBIG) => "; a file of that length is not allowed: raise `ulimit -f`",
        Some(libc::ENOSYS) => "; the kernel or a sandbox lacks the call: use a newer kernel, or allow the call",
        _ => "; run `weft doctor` to check this host, and report the error if it finds nothing",
    })
}
