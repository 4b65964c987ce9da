//! The handshake of a rail, or of an end of a chain: a connection that joins an existing link.
//!
//! Place in the data flow: the dialling side has an [`Initiator`](super::super::initiator::Initiator) with the contents
//! of [`Call`]. The called side answers in a half-open connection ([`super::super::half_open`]), as for a link that is
//! resumed. The dialogue has the form of a resumption. Its key is that of the session, which only the two ends of the
//! link know. The answer names the further addresses of the called endpoint. On an encrypted link each rail has keys of
//! its own.
//!
//! Errors: [`Failure::Retry`] if another attempt may succeed. [`Failure::Final`]: the peer knows no rails.

use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use weft_engine::name::NAME_BYTES;
use weft_engine::nic::LinkError;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::super::initiator::{Exchange, Failure, answer_body, send_handshake};
use super::super::noise::Noise;
use super::super::resume::ResumeDialogue;
use super::super::session::Session;
use super::super::stream::Keys;
use super::super::wire::{self, Answer, Finish, Hello, MAGIC, ReturnVerdict, VERSION};
use super::super::{LinkState, Tcp};
use super::RAILS_MAX;
use crate::handshake::{self, Key, Nonce, Role};

use Failure::{Final, Retry};

/// Limit of further addresses in an answer.
pub(super) const FURTHER_MAX: usize = 3;
/// Where the addresses begin in the name of an answer, and the bytes of one.
const ADDRESSES_AT: usize = 8;
const ADDRESS_BYTES: usize = 18;

const _: () = assert!(ADDRESSES_AT + FURTHER_MAX * ADDRESS_BYTES <= NAME_BYTES);

/// Writes the further addresses of an endpoint into an answer.
fn write_addresses(name: &mut [u8; NAME_BYTES], further: &[SocketAddr]) {
    for (slot, addr) in name[ADDRESSES_AT..].chunks_exact_mut(ADDRESS_BYTES).zip(further).take(FURTHER_MAX) {
        let ip = match addr {
            SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped(),
            SocketAddr::V6(v6) => *v6.ip(),
        };
        slot[..16].copy_from_slice(&ip.octets());
        slot[16..].copy_from_slice(&addr.port().to_le_bytes());
    }
    // At most FURTHER_MAX.
    #[allow(clippy::cast_possible_truncation)]
    let count = further.len().min(FURTHER_MAX) as u8;
    name[0] = count;
}

/// Reads the further addresses in an answer.
fn read_addresses(name: &[u8; NAME_BYTES]) -> Vec<SocketAddr> {
    let count = usize::from(name[0]).min(FURTHER_MAX);
    let slots = name[ADDRESSES_AT..].chunks_exact(ADDRESS_BYTES).take(count);
    slots
        .filter_map(|slot| {
            let (ip, port) = slot.split_first_chunk::<16>()?;
            let port = u16::from_le_bytes(*port.first_chunk()?);
            Some(SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), port))
        })
        .collect()
}

/// The contents of the dialling side's handshake.
pub(in super::super) struct Call<'a> {
    pub(in super::super) session: &'a Session,
    /// The purpose of the connection: [`wire::RAIL`] or [`wire::CHAIN`].
    pub(in super::super) flag: u8,
    /// The number of the rail among those that this side dials, or the peer's number of the chain's end.
    pub(in super::super) number: u32,
    /// Receives the further addresses of the peer.
    pub(in super::super) further: &'a mut Option<Vec<SocketAddr>>,
}

impl Exchange for Call<'_> {
    type Verdict = ReturnVerdict;
    type Outcome = Option<Keys>;
    const HANG_UP: LinkError = LinkError::Unreachable;
    const FOREIGN: LinkError = LinkError::Gone;

    fn connect_failure(_: Errno) -> Failure {
        Retry(LinkError::Unreachable)
    }

    fn hello(&self, nonce: Nonce) -> Hello {
        let hello = self.session.hello(nonce);
        Hello { flags: hello.flags | self.flag, ..hello }
    }

    fn hello_sent(&mut self) {}

    fn finish(&mut self, hello: &Hello, answer: &Answer) -> Result<(Finish, Key), Failure> {
        match (answer.version, answer.status) {
            (VERSION, wire::OK) => {}
            (_, wire::BAD_VERSION) => return Err(Final(LinkError::Protocol)),
            (_, wire::NO_ROOM) => return Err(Retry(LinkError::PeerResources)),
            _ => return Err(Retry(LinkError::Refused)),
        }
        let (key, dialogue) = (self.session.key(), [hello.as_bytes(), answer_body(answer)]);
        if !key.verify(Role::Acceptor, &dialogue, &answer.proof) {
            return Err(Final(LinkError::Denied));
        }
        *self.further = Some(read_addresses(&answer.name));
        let mut sealed = [0; 16];
        sealed[..4].copy_from_slice(&self.number.to_le_bytes());
        let proof = key.proof(Role::Initiator, &[dialogue[0], dialogue[1], &sealed]);
        Ok((Finish { sealed, proof }, key.clone()))
    }

    fn judge(&mut self, verdict: &ReturnVerdict, noise: Option<&mut Noise>) -> Result<Self::Outcome, Failure> {
        match verdict.status {
            wire::OK => Ok(noise.map(Noise::keys)),
            wire::DENIED => Err(Final(LinkError::Denied)),
            _ => Err(Retry(LinkError::Refused)),
        }
    }
}

impl Tcp {
    /// Answers a hello that asks for a rail of a link, or for an end of a chain. The peer has not proven anything yet.
    pub(in super::super) fn answer_rail(
        &self,
        hello: &Hello,
        found: Option<(u32, &Session)>,
        socket: BorrowedFd<'_>,
    ) -> Result<Box<ResumeDialogue>, LinkError> {
        let mut answer = Answer::new_zeroed();
        (answer.magic, answer.version) = (MAGIC, VERSION);
        let is_chain = hello.flags & wire::CHAIN != 0;
        let welcome =
            |id, session: &Session| if is_chain { self.chains.may_open() } else { self.takes_rail(id, session) };
        let Some((link, session)) = found.filter(|(id, session)| welcome(*id, session)) else {
            answer.status = if found.is_some() { wire::BUSY } else { wire::UNKNOWN };
            // The answer may not arrive; the caller tries again in any case.
            let _ = send_handshake(socket, answer.as_bytes());
            return Err(LinkError::Gone);
        };
        answer.nonce = handshake::random()?;
        let port = self.addr.port();
        let further: Vec<SocketAddr> =
            self.config.addrs.iter().skip(1).map(|addr| SocketAddr::new(addr.ip(), port)).collect();
        write_addresses(&mut answer.name, &further);
        answer.proof = session.key().proof(Role::Acceptor, &[hello.as_bytes(), answer_body(&answer)]);
        send_handshake(socket, answer.as_bytes()).map_err(|_| LinkError::Gone)?;
        Ok(Box::new(ResumeDialogue { link, hello: *hello, answer }))
    }

    /// Whether this side dials the rails of a link itself. If both sides dial, those of the side that made the link
    /// remain.
    fn goes_first(&self, id: u32, session: &Session) -> bool {
        session.is_initiator() && self.rails.dials(id)
    }

    /// Whether the peer may dial a rail of a link.
    fn takes_rail(&self, id: u32, session: &Session) -> bool {
        !self.goes_first(id, session) && self.rails.has_room()
    }

    /// Checks the proof of a peer that dials a rail or an end of a chain. Returns its number, or the status of the
    /// refusal.
    pub(in super::super) fn check_joining(&self, dialogue: &ResumeDialogue, finish: &Finish) -> Result<u32, u8> {
        let link = self.links.get(dialogue.link).ok_or(wire::UNKNOWN)?;
        let session = link.session.as_ref().ok_or(wire::UNKNOWN)?;
        if !session.has_number_of(&dialogue.hello) || !matches!(link.state, LinkState::Up | LinkState::Broken(_)) {
            return Err(wire::UNKNOWN);
        }
        let said = [dialogue.hello.as_bytes(), answer_body(&dialogue.answer), &finish.sealed[..]];
        let proven = session.key().verify(Role::Initiator, &said, &finish.proof);
        let (number, rest) = U32::read_from_prefix(&finish.sealed).map_err(|_| wire::DENIED)?;
        if !proven || *rest != [0; 12] {
            return Err(wire::DENIED);
        }
        if link.is_closed() { Err(wire::BUSY) } else { Ok(number.get()) }
    }

    /// [`Self::check_joining`] for a rail.
    fn check_rail(&self, dialogue: &ResumeDialogue, finish: &Finish) -> Result<u8, u8> {
        let number = self.check_joining(dialogue, finish)?;
        let ordinal = u8::try_from(number).ok().filter(|&ordinal| usize::from(ordinal) < RAILS_MAX);
        let session = self.links.get(dialogue.link).and_then(|link| link.session.as_ref()).ok_or(wire::UNKNOWN)?;
        if self.takes_rail(dialogue.link, session) { ordinal.ok_or(wire::DENIED) } else { Err(wire::BUSY) }
    }

    /// Handles the finish of a half-open connection that asks for a rail: the link takes it over if the proof is right.
    #[inline(never)]
    pub(in super::super) fn judge_rail(&mut self, index: usize, dialogue: &ResumeDialogue, finish: &Finish) {
        let mut agreed = None;
        let judged = self.check_rail(dialogue, finish).and_then(|ordinal| {
            agreed = self.agree_for_resumption(index, dialogue, finish).map_err(|_| wire::DENIED)?;
            Ok(ordinal)
        });
        let ordinal = match judged {
            Ok(ordinal) => ordinal,
            Err(status) => return self.refuse_finish(index, status),
        };
        let verdict = ReturnVerdict::new_zeroed();
        let mut bytes = verdict.as_bytes().to_vec();
        let mut keys = None;
        if let Some(mut noise) = agreed {
            match noise.write(verdict.as_bytes()) {
                Ok(message) => bytes.extend(message),
                Err(why) => return self.refuse(index, why),
            }
            keys = Some(noise.keys());
        }
        let half = self.halves.remove(index);
        // If the verdict does not arrive, the peer dials again.
        if send_handshake(half.socket.as_fd(), &bytes).is_err() {
            return self.unwatch(&half.socket);
        }
        self.adopt_rail(dialogue.link, ordinal, half.socket, keys.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        let all: Vec<SocketAddr> = ["10.1.2.3:4711", "[2001:db8::7]:1", "192.0.2.1:65535"]
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect();
        for count in 0..=FURTHER_MAX {
            let mut name = [0; NAME_BYTES];
            write_addresses(&mut name, &all[..count]);
            assert_eq!(read_addresses(&name), all[..count]);
        }
        // A count beyond the limit reads no further.
        assert_eq!(read_addresses(&[0xff; NAME_BYTES]).len(), FURTHER_MAX);
    }
}
