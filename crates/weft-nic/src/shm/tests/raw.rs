//! A hand-made peer that follows docs/protocol.md, and sends bytes and descriptors that no device would send.

use std::ffi::CStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType};
use weft_engine::name::EpName;

use crate::handshake::{Key, Proof, Role};
use crate::shm::handshake::{ACCEPT, CHALLENGE, Frame, HELLO, MAGIC, OFFER, VERSION, id_address};
use crate::shm::ring::MIN_LINES;
use crate::shm::segment::{Mapping, segment_bytes};

/// Maximum number of descriptors that are sent at once: more than a frame may have.
pub(super) const MOST_FILES: usize = 6;
/// The nonces of initiator and acceptor.
pub(super) type Nonces = [[u8; 32]; 2];

/// Connects to the listener of an endpoint.
pub(super) fn call(name: &EpName) -> OwnedFd {
    let socket = unix_socket();
    rustix::net::connect(&socket, &address(name)).unwrap();
    socket
}

/// Listens at the address of an endpoint.
pub(super) fn listen(name: &EpName) -> OwnedFd {
    let socket = unix_socket();
    rustix::net::bind(&socket, &address(name)).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    socket
}

fn unix_socket() -> OwnedFd {
    rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap()
}

fn address(name: &EpName) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(&id_address(&name.ep_id())).unwrap()
}

/// Sends bytes and descriptors, if the peer has not hung up.
pub(super) fn say(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files)));
    let _ =
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Proves in a dialogue that the prover knows `capability` to be the acceptor's.
pub(super) fn proof(capability: &[u8; 16], role: Role, nonces: &Nonces) -> Proof {
    Key::new(capability, None).proof(role, &[&MAGIC, &nonces[0], &nonces[1]])
}

/// The initiator's first frame.
pub(super) fn hello(nonces: &Nonces) -> Frame {
    let mut frame = Frame::new(HELLO, VERSION);
    frame.nonce = nonces[0];
    frame
}

/// The acceptor's answer to the hello.
pub(super) fn challenge(nonces: &Nonces, proof: Proof) -> Frame {
    let mut frame = Frame::new(CHALLENGE, VERSION);
    frame.nonce = nonces[1];
    frame.proof = proof;
    frame
}

/// The initiator's second frame. The three [`files`] are sent with it.
pub(super) fn offer(me: &EpName, proof: Proof) -> Frame {
    let mut frame = Frame::new(OFFER, VERSION);
    frame.proof = proof;
    frame.name = *me.as_bytes();
    frame.lines = MIN_LINES;
    frame
}

/// The acceptor's last frame. The last two of the [`files`] are sent with it.
pub(super) fn acceptance(me: &EpName) -> Frame {
    let mut frame = Frame::new(ACCEPT, VERSION);
    frame.name = *me.as_bytes();
    frame
}

/// A valid segment and the two valid pages of a doorbell. The name distinguishes them from the files of other
/// tests ([`held`]).
pub(super) fn files(name: &CStr) -> [OwnedFd; 3] {
    let [segment, page] = [segment_bytes(MIN_LINES), 4096].map(|len| Mapping::create(name, len).unwrap().0);
    [segment, page, Mapping::create_for_readers(name, 4096).unwrap().0]
}

/// The number of this process's descriptors of files with this name, and of their mappings.
pub(super) fn held(name: &CStr) -> (usize, usize) {
    let wanted = format!("/memfd:{} ", name.to_str().unwrap());
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.unwrap().path().read_link().ok());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains(&wanted)).count();
    (fds.filter(|file| file.to_string_lossy().starts_with(&wanted)).count(), mapped)
}

/// Borrows files for sending them with a frame.
pub(super) fn lent(files: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}
