//! The passing of the job's memory file from the first rank of a host to the others.
//!
//! Place in the data flow: `job` uses it where a launcher has started the ranks. The first rank listens at an abstract
//! Unix socket before the launcher's fence; the others connect after it.
//!
//! The kernel shows the user of each side (SO_PEERCRED), and both refuse another user. A caller also sends a secret of
//! the exchanged blob, so that a process of another job does not get this one's memory by mistake.
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
use weft_os::SystemError;

use crate::error::Error;

/// The limit for all ranks of a host to meet.
const LIMIT: Duration = Duration::from_secs(120);
/// The limit for one caller to introduce itself.
const CALLER_LIMIT: Duration = Duration::from_secs(5);

/// The meeting point of a host, which travels in the exchanged blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    name: [u8; 16],
    secret: [u8; 16],
}

impl Token {
    /// Bytes of a token.
    pub(crate) const BYTES: usize = 32;

    /// A random token.
    pub(crate) fn random() -> Result<Self, Error> {
        let mut bytes = [0; Self::BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|_| SystemError::of("getrandom")(io::Error::from(io::ErrorKind::Unsupported)))?;
        Ok(Self::from_bytes(&bytes))
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (mut name, mut secret) = ([0; 16], [0; 16]);
        name.copy_from_slice(&bytes[..16]);
        secret.copy_from_slice(&bytes[16..]);
        Self { name, secret }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.name);
        bytes[16..].copy_from_slice(&self.secret);
        bytes
    }

    fn address(&self) -> io::Result<SocketAddr> {
        let mut name = b"weft-gex-".to_vec();
        for byte in self.name {
            name.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        SocketAddr::from_abstract_name(name)
    }
}

fn is_same_user(socket: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Listens for the other ranks.
pub(crate) fn listen(token: &Token) -> Result<UnixListener, Error> {
    let listener = token.address().and_then(|address| UnixListener::bind_addr(&address));
    Ok(listener.map_err(SystemError::of("an abstract Unix socket"))?)
}

/// Passes the file to a number of callers.
pub(crate) fn serve(listener: &UnixListener, token: &Token, file: BorrowedFd<'_>, callers: u32) -> Result<(), Error> {
    let deadline = Instant::now() + LIMIT;
    let mut served = 0;
    while served < callers {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Rendezvous(LIMIT.as_secs()));
        }
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut ready, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(SystemError::of("poll")(errno).into()),
        }
        let (socket, _) = listener.accept().map_err(SystemError::of("accept"))?;
        // A caller that is none of the ranks does not count.
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

/// Gets the file from the first rank.
pub(crate) fn call(token: &Token) -> Result<OwnedFd, Error> {
    let system = |what| SystemError::of::<io::Error>(what);
    let address = token.address().map_err(system("an abstract Unix socket"))?;
    let mut socket = UnixStream::connect_addr(&address).map_err(system("connect to the first rank of the host"))?;
    if !is_same_user(&socket) {
        return Err(
            system("the first rank of the host has another user")(io::ErrorKind::PermissionDenied.into()).into()
        );
    }
    socket.set_read_timeout(Some(LIMIT)).map_err(system("setsockopt"))?;
    socket.write_all(&token.secret).map_err(system("write"))?;
    receive(&socket).map_err(|errno| system("receive the job's memory file")(errno).into())
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

    #[test]
    fn callers_with_the_secret_get_the_file() {
        let token = Token::random().unwrap();
        let listener = listen(&token).unwrap();
        let file = weft_os::memfile::create(c"weft-test", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, 12345).unwrap();
        let callers = std::thread::spawn(move || {
            let wrong = Token { secret: [0; 16], ..token };
            assert!(call(&wrong).is_err());
            rustix::fs::fstat(call(&token).unwrap()).unwrap().st_size
        });
        serve(&listener, &token, file.as_fd(), 1).unwrap();
        assert_eq!(callers.join().unwrap(), 12345);
    }
}
