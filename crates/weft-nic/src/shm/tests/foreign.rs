//! Processes of other users: connections with them end with a hang-up, in either direction, whatever they
//! know.
//!
//! A thread may have another user id than its process, because only the C library's functions change all
//! threads. The kernel tells peers the id of the thread that has connected or listens. Changing it requires
//! root; otherwise nothing is tested.

use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use weft_engine::name::{EpName, NameParts};
use weft_engine::nic::{LinkError, Nic};

use super::many::alone;
use super::{Inbox, Node, join, name, name_parts, until};
use crate::shm::accept::most_accepted;
use crate::shm::handshake::Handshake;
use crate::shm::{Shm, ShmConfig, handshake, rights};

/// Runs a function on a thread of an unprivileged user. Returns `None` if that is not permitted.
fn as_nobody<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let nobody = scope.spawn(|| {
            const NOBODY: libc::c_long = 65_534;
            // SAFETY: the call changes the calling thread's user ids and no memory.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            (result == 0).then(run)
        });
        nobody.join().unwrap()
    })
}

fn socket() -> OwnedFd {
    rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap()
}

/// A foreign user connects to the right address. The victim hangs up before the user has sent anything.
#[test]
fn a_foreign_user_is_disconnected() {
    let mut victim = Node::new(&ShmConfig::default());
    let address = SocketAddrUnix::new_abstract_name(&handshake::id_address(&victim.nic.name().ep_id())).unwrap();
    let connected = as_nobody(|| {
        let sockets: Vec<OwnedFd> = (0..500).map(|_| socket()).collect();
        sockets.iter().for_each(|socket| rustix::net::connect(socket, &address).unwrap());
        sockets
    });
    let Some(sockets) = connected else { return eprintln!("not tested: this user may not become another one") };
    // Honest peers wait behind these connections only for a moment.
    let mut friend = Node::new(&ShmConfig::default());
    join(&mut friend, &mut victim);
    assert!(victim.nic.handshakes.is_empty());
    assert_eq!(victim.inbox.up.len(), 1);
    for socket in &sockets {
        let mut byte = [0];
        let end = rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT);
        assert!(matches!(end, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET)), "{end:?}");
    }
}

/// A TCP socket whose close takes five seconds, or until its other end is closed.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(Duration::from_secs(5))).unwrap();
    (sender, listener.accept().unwrap().0)
}

fn hand_over(by: &OwnedFd, blocking: &TcpStream) -> rustix::io::Result<usize> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [blocking.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(by, &[IoSlice::new(b"hold this")], &mut control, SendFlags::empty())
}

/// A foreign user puts descriptors into its connections, whose close blocks. The victim's thread does not
/// block. `old` simulates a system where sockets accept the descriptors.
fn check_that_descriptors_do_not_block(old: bool) {
    let mut victim = Node::new(&ShmConfig::default());
    if old {
        assert!(victim.nic.control.refuses_rights, "a system since 6.16");
        victim.nic.control.accept_rights();
    }
    let address = SocketAddrUnix::new_abstract_name(&handshake::id_address(&victim.nic.name().ep_id())).unwrap();
    // The number exceeds the queue of sockets to close.
    let attack = as_nobody(|| {
        let hold_up = |_| {
            let (socket, (blocking, other)) = (socket(), lingering());
            rustix::net::connect(&socket, &address).unwrap();
            let sent = hand_over(&socket, &blocking);
            // The other end is closed first, or the blocking one is kept open here.
            (other, sent, (!old).then_some(blocking))
        };
        (0..70).map(hold_up).collect::<Vec<_>>()
    });
    let Some(attack) = attack else { return eprintln!("not tested: this user may not become another one") };
    assert!(attack.iter().all(|(_, sent, _)| sent.is_ok() == old), "{:?}", attack[0].1);
    let start = Instant::now();
    for _ in 0..20_000 {
        victim.poll();
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(victim.nic.control.foreign_sockets.is_empty(), !old);
    // Meanwhile others are accepted, or are refused at once.
    let mut friend = Node::new(&ShmConfig { answer_timeout_ms: 60_000, ..ShmConfig::default() });
    join(&mut friend, &mut victim);
    assert!(victim.nic.handshakes.is_empty());
    let call = friend.nic.connect(&victim.nic.name()).unwrap();
    drop(victim);
    until("hang-up", &mut [&mut friend], |nodes| nodes[0].inbox.down.contains(&(call, LinkError::Refused)));
    drop(attack);
}

/// The number of foreign sockets exceeds the limit. Callers are refused, so that they connect by TCP. A
/// caller that waits already is accepted when there is room again.
#[test]
fn too_many_foreign_sockets_direct_callers_to_tcp() {
    alone(|| {
        let name = EpName::full(&NameParts { tcp: true, ..name_parts() });
        let mut victim = Node { nic: Shm::new(&ShmConfig::default(), name).unwrap(), inbox: Inbox::default() };
        victim.nic.control.accept_rights();
        let address = SocketAddrUnix::new_abstract_name(&handshake::id_address(&name.ep_id())).unwrap();
        let attack = as_nobody(|| {
            let (blocking, other) = lingering();
            let sockets: Vec<OwnedFd> = (0..most_accepted() + 100).map(|_| socket()).collect();
            sockets.iter().for_each(|socket| rustix::net::connect(socket, &address).unwrap());
            hand_over(&sockets[0], &blocking).unwrap();
            (sockets, other)
        });
        let Some(attack) = attack else { return eprintln!("not tested: this user may not become another one") };
        let patient = ShmConfig { answer_timeout_ms: 60_000, ..ShmConfig::default() };
        let (mut early, mut late) = (Node::new(&patient), Node::new(&patient));
        early.nic.connect(&name).unwrap();
        until("crowd", &mut [&mut victim], |nodes| nodes[0].nic.control.shut);
        late.nic.connect(&name).unwrap();
        until("refusal", &mut [&mut late], |nodes| !nodes[0].inbox.down.is_empty());
        assert_eq!(late.inbox.down[0].1, LinkError::Refused);
        // The victim can sleep.
        until("sleep", &mut [&mut victim], |nodes| nodes[0].nic.park());
        let mut fds = [PollFd::from_borrowed_fd(victim.nic.wait_fd(), PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap(), 0);
        assert!(victim.inbox.up.is_empty() && early.inbox.down.is_empty());
        drop(attack);
        until("room", &mut [&mut victim, &mut early], |nodes| {
            // The victim parks whenever it can.
            if nodes[0].nic.park() {
                nodes[0].nic.wake();
            }
            nodes[0].inbox.up.len() == 1 && nodes[1].inbox.up.len() == 1
        });
        until("closing", &mut [&mut victim], |nodes| nodes[0].nic.control.foreign_sockets.is_empty());
    });
}

/// A foreign user listens at the address to which the caller connects, before the caller has checked its
/// user. The caller makes 70 calls.
#[test]
fn a_foreign_listeners_descriptors_are_closed_by_others() {
    let mut caller = Node::new(&ShmConfig::default());
    caller.nic.control.accept_rights();
    let wanted = name();
    let listener = socket();
    let address = SocketAddrUnix::new_abstract_name(&handshake::id_address(&wanted.ep_id())).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    if as_nobody(|| rustix::net::listen(&listener, 100).unwrap()).is_none() {
        return eprintln!("not tested: this user may not become another one");
    }
    let mut attack = Vec::new();
    let mut calls = Vec::new();
    for link in 0..70 {
        let call = caller.nic.handshakes.insert(Handshake::connect(&wanted, link, u64::MAX).unwrap());
        assert_eq!(caller.nic.try_step(call).err(), Some(LinkError::Denied));
        rights::allow(caller.nic.handshakes[call].socket(), true);
        let (blocking, other) = lingering();
        hand_over(&rustix::net::accept(&listener).unwrap(), &blocking).unwrap();
        attack.push(other);
        calls.push(call);
    }
    let start = Instant::now();
    calls.into_iter().for_each(|call| caller.nic.drop_handshake(call));
    for _ in 0..20_000 {
        caller.poll();
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    drop(attack);
    join(&mut caller, &mut Node::new(&ShmConfig::default()));
    until("closing", &mut [&mut caller], |nodes| nodes[0].nic.control.foreign_sockets.is_empty());
}

#[test]
fn a_foreign_user_sends_no_descriptors() {
    check_that_descriptors_do_not_block(false);
}

#[test]
fn a_foreign_users_descriptors_are_closed_by_others() {
    check_that_descriptors_do_not_block(true);
}

/// A foreign user listens at the address of a former peer. It receives nothing.
#[test]
fn a_foreign_listener_is_denied() {
    let theirs = name();
    let address = SocketAddrUnix::new_abstract_name(&handshake::id_address(&theirs.ep_id())).unwrap();
    let listening = as_nobody(|| {
        let listener = socket();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 5).unwrap();
        listener
    });
    let Some(listener) = listening else { return eprintln!("not tested: this user may not become another one") };
    let mut node = Node::new(&ShmConfig::default());
    let link = node.nic.connect(&theirs).unwrap();
    until("denial", &mut [&mut node], |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(node.inbox.down, [(link, LinkError::Denied)]);
    let caller = rustix::net::accept(&listener).unwrap();
    let mut byte = [0];
    assert_eq!(rustix::net::recv(&caller, &mut byte, RecvFlags::empty()).unwrap().1, 0, "nothing was sent");
}
