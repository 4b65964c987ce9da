//! The session of a link, which survives its connections: the secret that proves it, the epoch, and the peer's address.
//!
//! Place in the data flow: a link gets its session when it comes up. [`super::resume`] (the called side) and
//! [`super::redial`] (the calling side) let it write and check the messages of a resumption. Pure computation: no I/O.
//!
//! Invariants: a session is small, because every idle link has one. The epoch only grows.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use weft_engine::name::{EpName, FIRST_TX_CONTEXT};
use weft_engine::nic::LinkError;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::bugs::planted;
use super::connect::Local;
use super::initiator::answer_body;
use super::wire::{self, Answer, Finish, Hello, MAGIC, VERSION};
use crate::handshake::{self, Key, Nonce, Role};

/// The unit in which the time of a break is stored.
const TICK_MS: u64 = 4096;
/// A connection with pending bytes that breaks earlier, without progress, was useless.
const USELESS_TICKS: u8 = 15;
/// A connection without pending bytes that breaks earlier, without progress, was useless.
const SHORT_LIVED_TICKS: u8 = 2;

/// Whether this side can make connections to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// It can, as far as is known.
    Open,
    /// Only the peer can connect: connections of this side are dropped or refused on their way.
    OneWay,
    /// The peer is a transmit context and cannot be called.
    Transmits,
}

/// The session of a link.
#[derive(Debug)]
pub(super) struct Session {
    number: u64,
    key: Key,
    ip: Ipv6Addr,
    ep_id: [u8; 16],
    scope: u32,
    /// The highest epoch that was sent or accepted.
    epoch: u32,
    port: u16,
    initiator: bool,
    /// The peer is on this host.
    near: bool,
    reach: Reach,
    /// The number of consecutive connections that broke without progress.
    fruitless: u8,
    /// The time of the last break in ticks, and a digest of the progress in both directions by then. A few bits of each
    /// suffice, because only long series of connections count.
    broke: u8,
    through: u8,
}

impl Session {
    pub(super) fn new((number, key): (u64, Key), peer: &EpName, local: &Local, initiator: bool) -> Self {
        let (socket, ep_id) = (peer.socket(), peer.ep_id());
        let (ip, scope) = match socket {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let near = peer.same_host(&local.name);
        let transmits = peer.context_index().is_some_and(|index| index >= FIRST_TX_CONTEXT);
        Self {
            number,
            key,
            ip,
            ep_id,
            scope,
            epoch: 0,
            port: socket.port(),
            initiator,
            near,
            reach: if transmits { Reach::Transmits } else { Reach::Open },
            fruitless: 0,
            broke: 0,
            through: 0,
        }
    }

    /// Has the peer dialled at its second address, if the link was made there. `remote`: the peer's end of the
    /// connection.
    pub(super) fn prefer(&mut self, second: SocketAddr, remote: Option<IpAddr>) {
        if let IpAddr::V4(ip) = second.ip()
            && remote == Some(second.ip())
        {
            (self.ip, self.scope) = (ip.to_ipv6_mapped(), 0);
        }
    }

    /// Notes the break of the connection.
    ///
    /// `through` is the number of bytes that were transmitted in both directions. `pending`: some bytes were not. An
    /// attempt that connects but transmits nothing has failed: only short packets may pass, or the peer may drop them.
    #[allow(clippy::cast_possible_truncation)] // Some bits suffice to tell whether something has changed.
    pub(super) fn breaks(&mut self, through: u64, pending: bool, now_ms: u64) {
        let through = through.to_le_bytes().into_iter().fold(0_u8, |sum, byte| sum.rotate_left(3) ^ byte);
        let now = (now_ms / TICK_MS) as u8;
        let useless = if pending { USELESS_TICKS } else { SHORT_LIVED_TICKS };
        let again = self.through == through && now.wrapping_sub(self.broke) < useless;
        self.fruitless = if again { self.fruitless.saturating_add(1) } else { 0 };
        (self.through, self.broke) = (through, now);
    }

    /// The key of the session in the sorted list of the device. The two ends of an endpoint's link with
    /// itself have the same number.
    pub(super) fn index_key(&self) -> u64 {
        Self::index_key_of(self.number, self.initiator)
    }

    pub(super) fn index_key_of(number: u64, initiator: bool) -> u64 {
        number ^ u64::from(initiator)
    }

    /// Whether this side made the link.
    pub(super) fn is_initiator(&self) -> bool {
        self.initiator
    }

    /// Whether the peer is on this host.
    pub(super) fn is_near(&self) -> bool {
        self.near
    }

    /// Whether further connections to the peer can be made from this side.
    pub(super) fn can_be_dialled(&self) -> bool {
        self.reach == Reach::Open
    }

    /// Whether the peer is a transmit context, which cannot be called.
    pub(super) fn is_with_transmit_context(&self) -> bool {
        self.reach == Reach::Transmits
    }

    /// Notes that only the peer can connect.
    pub(super) fn set_one_way(&mut self) {
        if self.reach == Reach::Open {
            self.reach = Reach::OneWay;
        }
    }

    /// Whether only the peer can connect. A refusal then tells nothing about the peer.
    pub(super) fn is_one_way(&self) -> bool {
        self.reach == Reach::OneWay
    }

    /// The number of consecutive connections that broke without progress.
    pub(super) fn fruitless(&self) -> u32 {
        u32::from(self.fruitless)
    }

    /// The key of the proofs, and of an exchange of session keys.
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Whether a hello has the number of this session.
    pub(super) fn has_number_of(&self, hello: &Hello) -> bool {
        hello.name[..8] == self.number.to_le_bytes()
    }

    /// The id of the endpoint to call. For a transmit context it is that of the first receive context of its endpoint.
    fn target(&self) -> [u8; 16] {
        let mut id = self.ep_id;
        if self.reach == Reach::Transmits {
            id[15] = 0;
        }
        id
    }

    /// The socket at which the peer or its endpoint listens.
    pub(super) fn socket(&self) -> SocketAddr {
        match self.ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, self.port)),
            None => SocketAddrV6::new(self.ip, self.port, 0, self.scope).into(),
        }
    }

    /// The initiator's first message of a resumption.
    pub(super) fn hello(&self, nonce: Nonce) -> Hello {
        let from = if self.initiator { wire::INITIATOR } else { 0 };
        let mut name = [0; size_of::<EpName>()];
        name[..8].copy_from_slice(&self.number.to_le_bytes());
        Hello {
            magic: MAGIC,
            version: VERSION,
            flags: wire::RETURNS | from,
            reserved: [0; 6],
            nonce,
            name,
            target: self.target(),
        }
    }

    /// The acceptor's answer to a hello that names this session.
    pub(super) fn answer(&self, hello: &Hello) -> Result<Answer, LinkError> {
        let mut answer = Answer::new_zeroed();
        (answer.magic, answer.version) = (MAGIC, VERSION);
        answer.nonce = handshake::random()?;
        answer.name[..8].copy_from_slice(&u64::from(self.epoch).to_le_bytes());
        answer.proof = self.key.proof(Role::Acceptor, &[hello.as_bytes(), answer_body(&answer)]);
        Ok(answer)
    }

    /// The initiator's finish after an answer, with a new epoch. `position`: the one up to which this side
    /// has received.
    ///
    /// # Errors
    /// `Gone` if the proof is wrong, `Protocol` if the epochs are exhausted.
    pub(super) fn finish(&mut self, hello: &Hello, answer: &Answer, position: u64) -> Result<Finish, LinkError> {
        let dialogue = [hello.as_bytes(), answer_body(answer)];
        if !self.key.verify(Role::Acceptor, &dialogue, &answer.proof) {
            return Err(LinkError::Gone);
        }
        let (theirs, _) = U64::read_from_prefix(&answer.name).map_err(|_| LinkError::Protocol)?;
        let theirs = u32::try_from(theirs.get()).map_err(|_| LinkError::Protocol)?;
        self.epoch = self.epoch.max(theirs).checked_add(1).ok_or(LinkError::Protocol)?;
        let mut sealed = [0; 16];
        sealed[..8].copy_from_slice(&u64::from(self.epoch).to_le_bytes());
        sealed[8..].copy_from_slice(&position.to_le_bytes());
        let proof = self.key.proof(Role::Initiator, &[dialogue[0], dialogue[1], &sealed]);
        Ok(Finish { sealed, proof })
    }

    /// Checks the initiator's proof, and accepts its epoch. Returns the position up to which the initiator
    /// has received, or the status of the refusal.
    pub(super) fn accept(&mut self, hello: &Hello, answer: &Answer, finish: &Finish) -> Result<u64, u8> {
        let dialogue = [hello.as_bytes(), answer_body(answer), &finish.sealed[..]];
        if !self.key.verify(Role::Initiator, &dialogue, &finish.proof) {
            return Err(wire::DENIED);
        }
        let [epoch, position] = <[U64; 2]>::read_from_bytes(&finish.sealed).map_err(|_| wire::DENIED)?;
        // Of two attempts that meet, that of the side that made the link takes precedence.
        let epoch = u32::try_from(epoch.get()).map_err(|_| wire::DENIED)?;
        let later = epoch > self.epoch || (epoch == self.epoch && !self.initiator);
        if !planted!(Bug::EpochIgnored, later, true) {
            return Err(wire::BUSY);
        }
        self.epoch = epoch;
        Ok(position.get())
    }
}
