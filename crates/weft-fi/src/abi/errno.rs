//! `Errno`: the one table from typed errors to libfabric's numbers.
//!
//! Place in the data flow: each error of the engine, the devices or the system becomes an `Errno` on its way to the
//! client. Functions inside weft-fi return `Result<_, Errno>`. The C boundary makes the negative integer
//! ([`Errno::code`], [`Errno::size`]); error entries of queues carry the positive one ([`Errno::get`]).
//! Sources: fi_errno(3), fi_cq(3), fi_rma(3).

use std::ffi::c_int;

use weft_engine::api::{Error, Fault};
use weft_engine::nic::LinkError;
use weft_fi_sys as sys;
use weft_nic::NicError;

/// A libfabric error, as its positive number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Errno(c_int);

/// Declares the constants: name and libfabric's number.
macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        impl Errno {
            $(
                #[doc = concat!("`FI_E", stringify!($name), "`.")]
                pub(crate) const $name: Self = Self(($value) as c_int);
            )*
        }
    };
}

constants! {
    NOENT = sys::FI_ENOENT;
    INTR = sys::FI_EINTR;
    IO = sys::FI_EIO;
    AGAIN = sys::FI_EAGAIN;
    NOMEM = sys::FI_ENOMEM;
    ACCES = sys::FI_EACCES;
    FAULT = sys::FI_EFAULT;
    BUSY = sys::FI_EBUSY;
    NODEV = sys::FI_ENODEV;
    INVAL = sys::FI_EINVAL;
    MFILE = sys::FI_EMFILE;
    NOSPC = sys::FI_ENOSPC;
    NOSYS = sys::FI_ENOSYS;
    NOMSG = sys::FI_ENOMSG;
    NODATA = sys::FI_ENODATA;
    PROTO = libc::EPROTO;
    OVERFLOW = sys::FI_EOVERFLOW;
    MSGSIZE = sys::FI_EMSGSIZE;
    NOPROTOOPT = sys::FI_ENOPROTOOPT;
    OPNOTSUPP = sys::FI_EOPNOTSUPP;
    ADDRINUSE = sys::FI_EADDRINUSE;
    ADDRNOTAVAIL = sys::FI_EADDRNOTAVAIL;
    CONNRESET = sys::FI_ECONNRESET;
    NOTCONN = sys::FI_ENOTCONN;
    SHUTDOWN = sys::FI_ESHUTDOWN;
    TIMEDOUT = sys::FI_ETIMEDOUT;
    CONNREFUSED = sys::FI_ECONNREFUSED;
    HOSTUNREACH = sys::FI_EHOSTUNREACH;
    ALREADY = sys::FI_EALREADY;
    REMOTEIO = sys::FI_EREMOTEIO;
    CANCELED = sys::FI_ECANCELED;
    KEYREJECTED = sys::FI_EKEYREJECTED;
    OTHER = sys::FI_EOTHER;
    TOOSMALL = sys::FI_ETOOSMALL;
    OPBADSTATE = sys::FI_EOPBADSTATE;
    AVAIL = sys::FI_EAVAIL;
    BADFLAGS = sys::FI_EBADFLAGS;
    NOEQ = sys::FI_ENOEQ;
    DOMAIN = sys::FI_EDOMAIN;
    NOCQ = sys::FI_ENOCQ;
    TRUNC = sys::FI_ETRUNC;
    NOKEY = sys::FI_ENOKEY;
    NOAV = sys::FI_ENOAV;
}

impl Errno {
    /// The positive number, for the error entries of queues.
    #[must_use]
    pub(crate) const fn get(self) -> c_int {
        self.0
    }

    /// The negative number, for functions that return `int`.
    #[must_use]
    pub(crate) const fn code(self) -> c_int {
        -self.0
    }

    /// The negative number, for functions that return `ssize_t`.
    #[must_use]
    pub(crate) const fn size(self) -> isize {
        -(self.0 as isize)
    }

    /// The error with a number that the system reported. Numbers that are not positive become FI_EOTHER.
    #[must_use]
    pub(crate) const fn from_raw(number: c_int) -> Self {
        if number > 0 { Self(number) } else { Self::OTHER }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::Again => Self::AGAIN,
            Error::NoSuchAddress | Error::Invalid | Error::NothingClaimed => Self::INVAL,
            Error::TooLong => Self::MSGSIZE,
            Error::KeyInUse => Self::NOKEY,
            Error::NotConnected => Self::NOTCONN,
        }
    }
}

impl From<Fault> for Errno {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Truncated(_) => Self::TRUNC,
            Fault::Canceled => Self::CANCELED,
            Fault::Stranger(_) => Self::ADDRNOTAVAIL,
            Fault::NoMessage => Self::NOMSG,
            Fault::Link(error) => error.into(),
            Fault::BadKey => Self::KEYREJECTED,
            Fault::BadRange => Self::ACCES,
            Fault::NoMemory => Self::FAULT,
            Fault::Revoked => Self::REMOTEIO,
            Fault::Refused(error) => error.into(),
            Fault::Internal => Self::OTHER,
        }
    }
}

impl From<LinkError> for Errno {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Closed | LinkError::Unanswered | LinkError::Evicted => Self::SHUTDOWN,
            LinkError::Gone => Self::CONNRESET,
            LinkError::Refused | LinkError::Crowded => Self::CONNREFUSED,
            LinkError::Timeout => Self::TIMEDOUT,
            LinkError::Unreachable | LinkError::Cut => Self::HOSTUNREACH,
            LinkError::Denied | LinkError::Encryption => Self::ACCES,
            LinkError::Protocol | LinkError::Version(_) => Self::PROTO,
            LinkError::Access => Self::FAULT,
            LinkError::Descriptors => Self::MFILE,
            LinkError::Resources => Self::NOMEM,
            LinkError::PeerResources => Self::REMOTEIO,
        }
    }
}

impl From<&NicError> for Errno {
    fn from(error: &NicError) -> Self {
        match error {
            NicError::NoSuchInterface { .. } | NicError::UnusableInterface { .. } | NicError::NoDevice => Self::NODEV,
            NicError::Listen { .. } | NicError::Shm(_) | NicError::System(_) | NicError::Entropy => {
                Self::from_raw(error.raw_os_error())
            }
        }
    }
}

impl From<std::io::Error> for Errno {
    /// Takes the system's number: libfabric's first 256 numbers are the system's.
    fn from(error: std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::IO, Self::from_raw)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self::from_raw(error.raw_os_error())
    }
}

/// Logs a failure that only the user can remedy, and converts it.
pub(crate) fn log_error(call: &str, error: &NicError) -> Errno {
    log::error!("{call}: {error}");
    error.into()
}

/// Runs `body`, and restores the C library's `errno` afterwards.
pub(crate) fn kept<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: the function takes no arguments and returns the address of this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the C library's address is valid in this thread.
    let saved: c_int = unsafe { errno.read() };
    let value = body();
    // SAFETY: the C library's address is valid in this thread.
    unsafe { errno.write(saved) };
    value
}

#[cfg(test)]
mod tests {
    use weft_engine::nic::{Layer, Versions};

    use super::*;

    /// The numbers are libfabric's ABI. They are written out here, so that a mistake in the table shows.
    #[test]
    fn numbers_are_the_abi() {
        let table: &[(Errno, c_int)] = &[
            (Error::Again.into(), 11),
            (Error::NoSuchAddress.into(), 22),
            (Error::TooLong.into(), 90),
            (Error::Invalid.into(), 22),
            (Error::KeyInUse.into(), 266),
            (Error::NotConnected.into(), 107),
            (Error::NothingClaimed.into(), 22),
            (Fault::Truncated(3).into(), 265),
            (Fault::Canceled.into(), 125),
            (Fault::NoMessage.into(), 42),
            (Fault::BadKey.into(), 129),
            (Fault::BadRange.into(), 13),
            (Fault::NoMemory.into(), 14),
            (Fault::Revoked.into(), 121),
            (Fault::Refused(Error::NoSuchAddress).into(), 22),
            (Fault::Link(LinkError::Gone).into(), 104),
            (LinkError::Closed.into(), 108),
            (LinkError::Refused.into(), 111),
            (LinkError::Timeout.into(), 110),
            (LinkError::Unreachable.into(), 113),
            (LinkError::Cut.into(), 113),
            (LinkError::Denied.into(), 13),
            (LinkError::Encryption.into(), 13),
            (LinkError::Protocol.into(), 71),
            (LinkError::Version(Versions { layer: Layer::Tcp, ours: 2, theirs: 3 }).into(), 71),
            (LinkError::Unanswered.into(), 108),
            (LinkError::Evicted.into(), 108),
            (LinkError::Crowded.into(), 111),
            (LinkError::Access.into(), 14),
            (LinkError::Descriptors.into(), 24),
            (LinkError::Resources.into(), 12),
            (LinkError::PeerResources.into(), 121),
            (std::io::Error::from_raw_os_error(98).into(), 98),
            (std::io::Error::other("no number").into(), 5),
            (Errno::from_raw(0), 256),
        ];
        for (row, (errno, number)) in table.iter().enumerate() {
            assert_eq!(errno.get(), *number, "row {row}");
            assert_eq!(errno.code(), -number);
            assert_eq!(errno.size(), -(*number as isize));
        }
    }
}
