//! The passing of a memory file from one process of a host to others of the same job.
//!
//! Place in the data flow: weft-gex passes the job's memory where a launcher has started the ranks, and weft-coll that
//! of shared windows. The first process listens at an abstract Unix socket, and then exchanges the token by the job's
//! own means. The others connect after that.
//!
//! The kernel shows the user of each side (SO_PEERCRED), and both refuse another user. A caller also sends the secret
//! of the token, so that a process of another job does not get this one's memory by mistake.
//!
//! Source: unix(7).

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::{SystemError, users};

/// The limit for one caller to introduce itself.
const CALLER_LIMIT: Duration = Duration::from_secs(5);

/// The reason why a file was not passed.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The other processes did not come in time.
    #[error("the processes of this host did not meet within {} s; check that all of them run", .0.as_secs())]
    Late(Duration),
}

/// The meeting point of a host, which the processes exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    name: [u8; 16],
    secret: [u8; 16],
}

impl Token {
    /// Bytes of a token.
    pub const BYTES: usize = 32;

    /// A random token.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn random() -> Result<Self, SystemError> {
        let mut bytes = [0; Self::BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|_| SystemError::of("getrandom")(io::Error::from(io::ErrorKind::Unsupported)))?;
        Ok(Self::from_bytes(&bytes))
    }

    /// A token that was exchanged.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (mut name, mut secret) = ([0; 16], [0; 16]);
        name.copy_from_slice(&bytes[..16]);
        secret.copy_from_slice(&bytes[16..]);
        Self { name, secret }
    }

    /// The token for the exchange.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.name);
        bytes[16..].copy_from_slice(&self.secret);
        bytes
    }

    fn address(&self) -> io::Result<SocketAddr> {
        let mut name = b"weft-meet-".to_vec();
        for byte in self.name {
            name.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        SocketAddr::from_abstract_name(name)
    }
}

fn is_same_user(socket: &UnixStream) -> bool {
    users::own_peer(socket.as_fd()).is_some()
}

/// Listens for the other processes.
///
/// # Errors
/// The system refuses abstract sockets.
pub fn listen(token: &Token) -> Result<UnixListener, SystemError> {
    let listener = token.address().and_then(|address| UnixListener::bind_addr(&address));
    listener.map_err(SystemError::of("an abstract Unix socket"))
}

/// Passes the file to a number of callers.
///
/// # Errors
/// Not all came within the limit, or the system refuses a call.
pub fn serve(
    listener: &UnixListener,
    token: &Token,
    file: BorrowedFd<'_>,
    callers: u32,
    limit: Duration,
) -> Result<(), MeetError> {
    let deadline = Instant::now() + limit;
    let mut served = 0;
    while served < callers {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(MeetError::Late(limit));
        }
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut ready, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(SystemError::of("poll")(errno).into()),
        }
        let (socket, _) = listener.accept().map_err(SystemError::of("accept"))?;
        // A caller that is none of the job does not count.
        if is_same_user(&socket) && introduces_itself(&socket, token).unwrap_or(false) && pass(&socket, file).is_ok() {
            served += 1;
        }
    }
    Ok(())
}

fn introduces_itself(mut socket: &UnixStream, token: &Token) -> io::Result<bool> {
    socket.set_read_timeout(Some(CALLER_LIMIT))?;
    let mut secret = [0; 16];
    socket.read_exact(&mut secret)?;
    Ok(secret == token.secret)
}

fn pass(socket: &UnixStream, file: BorrowedFd<'_>) -> io::Result<()> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A process that waits for the file.
pub struct Caller(UnixStream);

impl Caller {
    /// Connects to the process that listens, which need not serve yet.
    ///
    /// # Errors
    /// It has another user, or the system refuses a call.
    pub fn call(token: &Token) -> Result<Self, SystemError> {
        let system = |what| SystemError::of::<io::Error>(what);
        let address = token.address().map_err(system("an abstract Unix socket"))?;
        let mut socket = UnixStream::connect_addr(&address).map_err(system("connect to the first rank of the host"))?;
        if !is_same_user(&socket) {
            let foreign = io::Error::from_raw_os_error(libc::EACCES);
            return Err(system("the first rank of the host has another user")(foreign));
        }
        socket.write_all(&token.secret).map_err(system("write"))?;
        Ok(Self(socket))
    }

    /// Waits for the file.
    ///
    /// # Errors
    /// The other process does not answer within the limit, or the system refuses a call.
    pub fn receive(&self, limit: Duration) -> Result<OwnedFd, SystemError> {
        self.0.set_read_timeout(Some(limit)).map_err(SystemError::of("setsockopt"))?;
        receive(&self.0).map_err(SystemError::of("receive the memory file of the host"))
    }
}

/// The most processes that may call before they are served.
#[must_use]
pub fn most_callers() -> u32 {
    const USUAL: u32 = 128;
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files.flatten().next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn callers_with_the_secret_get_the_file() {
        let token = Token::random().unwrap();
        let listener = listen(&token).unwrap();
        let file = crate::memfile::create(c"weft-test", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, 12345).unwrap();
        let callers = std::thread::spawn(move || {
            let wrong = Token { secret: [0; 16], ..token };
            assert!(Caller::call(&wrong).unwrap().receive(LIMIT).is_err());
            rustix::fs::fstat(Caller::call(&token).unwrap().receive(LIMIT).unwrap()).unwrap().st_size
        });
        serve(&listener, &token, file.as_fd(), 1, LIMIT).unwrap();
        assert_eq!(callers.join().unwrap(), 12345);
    }
}
