//! Errors of setting up devices, each with a remedy.
//!
//! Place in the data flow: returned by `Devices::new` and by helpers that the operating system may refuse, such as
//! threads and memory files. weft-fi logs the text and converts the kind into an errno. A single link's errors are
//! [`weft_engine::nic::LinkError`].

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use weft_engine::nic::LinkError;
use weft_os::{SystemError, remedy};

/// A set-up error. Its text names the cause and, after a semicolon, a remedy.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The requested interface does not exist.
    #[error(
        "no network interface has the name or address `{name}`; there are: {available}; set FI_WEFT_IFACE to one of them, or unset it"
    )]
    NoSuchInterface {
        /// The requested name or address.
        name: String,
        /// The existing interfaces.
        available: String,
    },
    /// The requested interface cannot be used.
    #[error(
        "network interface `{name}` {problem}; set FI_WEFT_IFACE to another one, or unset it (there are: {available})"
    )]
    UnusableInterface {
        /// The requested name or address.
        name: String,
        /// The reason.
        problem: &'static str,
        /// The existing interfaces.
        available: String,
    },
    /// Both devices are disabled.
    #[error(
        "shared memory and TCP are both disabled: nothing is left to communicate with; set FI_WEFT_SHM or FI_WEFT_TCP to yes"
    )]
    NoDevice,
    /// The TCP listener could not be bound.
    #[error("cannot listen on {addr}: {source}{}", remedy_of_listening(.source))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Shared memory could not be set up, and TCP is not available as a fallback.
    #[error("cannot set up shared memory: {0}, or allow TCP as well (FI_WEFT_TCP=yes)")]
    Shm(Box<NicError>),
    /// The operating system provides no random numbers.
    #[error(
        "the operating system gives no random numbers (getrandom failed); allow the call in the sandbox, or use Linux 3.17 or newer"
    )]
    Entropy,
    /// Another system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl NicError {
    /// The closest errno value.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::NoSuchInterface { .. } => libc::ENODEV,
            Self::UnusableInterface { .. } => libc::EADDRNOTAVAIL,
            Self::NoDevice => libc::EINVAL,
            Self::Entropy => libc::EIO,
            Self::Shm(error) => error.raw_os_error(),
            Self::Listen { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::System(error) => error.raw_os_error(),
        }
    }

    /// Converts the error of the system call `what`; an argument of `map_err`.
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System(SystemError::of(what)(source))
    }
}

/// The resource that a link lacks, by the system's error.
pub(crate) fn shortage(source: impl Into<io::Error>) -> LinkError {
    match source.into().raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => LinkError::Descriptors,
        _ => LinkError::Resources,
    }
}

/// The remedy for a port that cannot be bound.
fn remedy_of_listening(source: &io::Error) -> Cow<'static, str> {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "; a port below 1024 needs a privilege: choose a higher one; else a sandbox or security policy forbids the call: allow it".into()
        }
        _ => remedy(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the text has a cause and a remedy, separated by the first semicolon.
    #[track_caller]
    fn is_whole(text: &str) {
        let parts = text.split_once("; ").unwrap_or_default();
        assert!(parts.0.len() > 10 && parts.1.len() > 10, "{text:?}");
        assert!(!text.contains(";;") && !text.contains("; ;") && !text.contains("  "), "{text:?}");
    }

    #[test]
    fn every_end_of_a_link_has_a_remedy() {
        use LinkError::*;
        use weft_engine::nic::{Layer, Versions};
        let next = |error| match error {
            Closed => Some(Gone),
            Gone => Some(Refused),
            Refused => Some(Timeout),
            Timeout => Some(Unreachable),
            Unreachable => Some(Denied),
            Denied => Some(Encryption),
            Encryption => Some(Protocol),
            Protocol => Some(Access),
            Access => Some(Descriptors),
            Descriptors => Some(Resources),
            Resources => Some(PeerResources),
            PeerResources => Some(Cut),
            Cut => Some(Version(Versions { layer: Layer::Tcp, ours: 2, theirs: 3 })),
            Version(_) => Some(Unanswered),
            Unanswered => Some(Crowded),
            Crowded => Some(Evicted),
            Evicted => None,
        };
        let all: Vec<_> = std::iter::successors(Some(Closed), |&error| next(error)).collect();
        assert_eq!(all.len(), 17);
        all.iter().for_each(|error| is_whole(&error.to_string()));
    }

    /// A remedy belongs to the call that was refused: only a port can be too low.
    #[test]
    fn a_refused_call_is_named_with_its_own_remedy() {
        let refused = |what, errno| NicError::system(what)(io::Error::from_raw_os_error(errno)).to_string();
        for errno in [libc::EPERM, libc::EACCES] {
            let text = refused("memfd_create", errno);
            assert!(text.contains("memfd_create") && text.contains("sandbox") && !text.contains("1024"), "{text}");
            let (addr, source) = (([127, 0, 0, 1], 1).into(), io::Error::from_raw_os_error(errno));
            assert!(NicError::Listen { addr, source }.to_string().contains("1024"));
        }
        let text = refused("pthread_create", libc::EAGAIN);
        assert!(text.contains("threads") && !text.contains("ulimit -n"), "{text}");
        assert_eq!(shortage(io::Error::from_raw_os_error(libc::EMFILE)), LinkError::Descriptors);
        assert_eq!(shortage(io::Error::from_raw_os_error(libc::ENOMEM)), LinkError::Resources);
    }

    #[test]
    fn every_set_up_error_has_a_remedy() {
        // All error numbers, including unassigned ones.
        for errno in 0..200 {
            let source = || io::Error::from_raw_os_error(errno);
            let addr = ([127, 0, 0, 1], 1).into();
            is_whole(&NicError::Listen { addr, source: source() }.to_string());
            let system = NicError::system("epoll_create1")(source());
            is_whole(&system.to_string());
            is_whole(&NicError::Shm(Box::new(system)).to_string());
        }
        let (name, available) = ("eth9".to_owned(), "lo (127.0.0.1)".to_owned());
        let others = [
            NicError::NoSuchInterface { name: name.clone(), available: available.clone() },
            NicError::UnusableInterface { name, problem: "has no address", available },
            NicError::NoDevice,
            NicError::Entropy,
        ];
        for error in others {
            // A new error belongs into `others`, or into the loop above.
            match error {
                NicError::NoSuchInterface { .. } | NicError::UnusableInterface { .. } => {}
                NicError::NoDevice | NicError::Entropy => {}
                NicError::Listen { .. } | NicError::Shm(_) | NicError::System(_) => unreachable!("above"),
            }
            is_whole(&error.to_string());
        }
    }
}
