//! A peer made by hand from docs/protocol.md, which says and hands over what no device would.

use std::ffi::CStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType};
use weft_engine::name::EpName;

use crate::handshake::{Key, Proof, Role};
use crate::shm::handshake::{ACCEPT, CHALLENGE, Frame, HELLO, MAGIC, OFFER, id_address};
use crate::shm::ring::MIN_LINES;
use crate::shm::segment::{Mapping, segment_bytes};

/// Most descriptors that are said at once: more than a frame may have.
pub(super) const MOST_FILES: usize = 6;
/// The initiator's and the acceptor's.
pub(super) type Nonces = [[u8; 32]; 2];

/// A connection to where an endpoint listens.
pub(super) fn call(name: &EpName) -> OwnedFd {
    let socket = unix_socket();
    rustix::net::connect(&socket, &address(name)).unwrap();
    socket
}

/// Listens where an endpoint would.
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

/// Says some bytes, and hands files over with them, if the other side still listens.
pub(super) fn say(socket: &OwnedFd, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files)));
    let _ =
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// What proves in a dialogue that the prover knows `capability` to be the acceptor's.
pub(super) fn proof(capability: &[u8; 16], role: Role, nonces: &Nonces) -> Proof {
    Key::new(capability, None).proof(role, &[&MAGIC, &nonces[0], &nonces[1]])
}

/// The initiator's first word.
pub(super) fn hello(nonces: &Nonces) -> Frame {
    let mut frame = Frame::new(HELLO);
    frame.nonce = nonces[0];
    frame
}

/// The acceptor's answer.
pub(super) fn challenge(nonces: &Nonces, proof: Proof) -> Frame {
    let mut frame = Frame::new(CHALLENGE);
    frame.nonce = nonces[1];
    frame.proof = proof;
    frame
}

/// The initiator's second word; [`files`] go with it.
pub(super) fn offer(me: &EpName, proof: Proof) -> Frame {
    let mut frame = Frame::new(OFFER);
    frame.proof = proof;
    frame.name = *me.as_bytes();
    frame.lines = MIN_LINES;
    frame
}

/// The acceptor's last; the last two of [`files`] go with it.
pub(super) fn acceptance(me: &EpName) -> Frame {
    let mut frame = Frame::new(ACCEPT);
    frame.name = *me.as_bytes();
    frame
}

/// A segment and the two pages of a doorbell, as they are to be. By their name they are told from those of
/// other tests ([`held`]).
pub(super) fn files(name: &CStr) -> [OwnedFd; 3] {
    let [segment, page] = [segment_bytes(MIN_LINES), 4096].map(|len| Mapping::create(name, len).unwrap().0);
    [segment, page, Mapping::create_for_readers(name, 4096).unwrap().0]
}

/// How many descriptors of files of that name this process has, and how many mappings.
pub(super) fn held(name: &CStr) -> (usize, usize) {
    let wanted = format!("/memfd:{} ", name.to_str().unwrap());
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.unwrap().path().read_link().ok());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains(&wanted)).count();
    (fds.filter(|file| file.to_string_lossy().starts_with(&wanted)).count(), mapped)
}

/// Files to be lent with a frame.
pub(super) fn lent(files: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}
