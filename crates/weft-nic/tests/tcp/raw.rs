//! A peer that is implemented from docs/protocol.md, and can send bytes that no device would.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use weft_engine::name::EpName;
use weft_nic::handshake::{self, Key, Role};

/// The version of docs/protocol.md; [`join`] checks that the device has it.
pub const VERSION: u8 = 2;
pub const HELLO: usize = 112;
pub const ANSWER: usize = 144;
pub const PROOF_AT: usize = 112;
pub const FINISH: usize = 48;
pub const VERDICT: usize = 8;

/// A connection to an endpoint.
pub fn dial(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The hello of `me` to `peer`.
pub fn hello(me: &EpName, peer: &EpName) -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..8].copy_from_slice(b"weft-tcp");
    bytes[8] = VERSION;
    bytes[9] = u8::from(peer.is_full());
    bytes[16..32].copy_from_slice(&handshake::random::<16>().unwrap());
    bytes[32..96].copy_from_slice(&handshake::public_part(me));
    bytes[96..].copy_from_slice(&peer.ep_id());
    bytes
}

/// The hello of the side that made a link to the endpoint with this id, and resumes its session.
pub fn hello_again(number: u64, ep_id: &[u8; 16]) -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..8].copy_from_slice(b"weft-tcp");
    bytes[8..10].copy_from_slice(&[VERSION, 2 | 4]);
    bytes[16..32].copy_from_slice(&handshake::random::<16>().unwrap());
    bytes[32..40].copy_from_slice(&number.to_le_bytes());
    bytes[96..].copy_from_slice(ep_id);
    bytes
}

/// The answer of `me`, without a proof.
pub fn answer(me: &EpName) -> [u8; ANSWER] {
    let mut bytes = [0; ANSWER];
    bytes[..8].copy_from_slice(b"weft-tcp");
    bytes[8] = VERSION;
    bytes[32..96].copy_from_slice(&handshake::public_part(me));
    bytes
}

/// The finish that belongs to a dialogue.
pub fn finish(me: &EpName, key: &Key, hello: &[u8], answer: &[u8]) -> [u8; FINISH] {
    let sealed = key.seal(Role::Initiator, &[hello, &answer[..PROOF_AT]], &me.capability());
    let proof = key.proof(Role::Initiator, &[hello, &answer[..PROOF_AT], &sealed]);
    let mut bytes = [0; FINISH];
    bytes[..16].copy_from_slice(&sealed);
    bytes[16..].copy_from_slice(&proof);
    bytes
}

/// Makes the whole handshake as an initiator. Returns the verdict's status, if there is one.
pub fn try_join(me: &EpName, peer: &EpName) -> Option<u8> {
    let mut stream = dial(peer.socket());
    let hello = hello(me, peer);
    stream.write_all(&hello).ok()?;
    let mut answer = [0; ANSWER];
    stream.read_exact(&mut answer).ok()?;
    let key = Key::new(&peer.capability(), None);
    stream.write_all(&finish(me, &key, &hello, &answer)).ok()?;
    let mut verdict = [9; 8];
    stream.read_exact(&mut verdict).ok()?;
    Some(verdict[0])
}

/// Makes the whole handshake as an initiator. Frames may follow.
pub fn join(me: &EpName, peer: &EpName) -> TcpStream {
    let mut stream = dial(peer.socket());
    let hello = hello(me, peer);
    stream.write_all(&hello).unwrap();
    let mut answer = [0; ANSWER];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!((&answer[..8], answer[8], answer[9]), (&b"weft-tcp"[..], VERSION, 0));
    let key = Key::new(&peer.capability(), None);
    let proof = answer[PROOF_AT..].try_into().unwrap();
    assert!(key.verify(Role::Acceptor, &[&hello, &answer[..PROOF_AT]], &proof));
    stream.write_all(&finish(me, &key, &hello, &answer)).unwrap();
    let mut verdict = [9; 8];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict, [0; 8]);
    stream
}

/// A frame.
pub fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    bytes.extend_from_slice(body);
    bytes
}

/// A push segment.
pub fn segment(window: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    frame(2, &[&window.to_le_bytes()[..], &offset.to_le_bytes(), payload].concat())
}

/// Whether the connection has ended, with or without a reset.
pub fn has_ended(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// The names of a peer and of its target, before they have a link.
pub struct Visit {
    pub me: EpName,
    pub target: EpName,
}

/// A link of the peer, with the data for its resumption.
pub struct Joined {
    pub stream: TcpStream,
    pub target: EpName,
    pub number: u64,
    pub key: Key,
}

impl Visit {
    /// Makes the whole handshake as an initiator. Returns the session that begins with it.
    pub fn join(&self) -> Joined {
        let Self { me, target } = *self;
        let mut stream = dial(target.socket());
        let hello = hello(&me, &target);
        stream.write_all(&hello).unwrap();
        let mut answer = [0; ANSWER];
        stream.read_exact(&mut answer).unwrap();
        let key = Key::new(&target.capability(), None);
        let finish = finish(&me, &key, &hello, &answer);
        stream.write_all(&finish).unwrap();
        let mut verdict = [9; 8];
        stream.read_exact(&mut verdict).unwrap();
        assert_eq!(verdict, [0; 8]);
        let (number, key) = key.session(&[&hello, &answer[..PROOF_AT], &finish[..16], &me.capability()]);
        Joined { stream, target, number, key }
    }
}

impl Joined {
    /// The session on a new connection to the endpoint.
    pub fn again(&self) -> Self {
        Self { stream: dial(self.target.socket()), target: self.target, number: self.number, key: self.key.clone() }
    }

    /// Resumes the link. Returns the new connection and the endpoint's position, or the status of the refusal.
    pub fn come_back(
        &self,
        key: &Key,
        epoch: u64,
        position: u64,
        record: Option<&mut Vec<u8>>,
    ) -> Result<(TcpStream, u64), u8> {
        let mut stream = dial(self.target.socket());
        let hello = hello_again(self.number, &self.target.ep_id());
        stream.write_all(&hello).unwrap();
        let mut answer = [0; ANSWER];
        stream.read_exact(&mut answer).unwrap();
        if answer[9] != 0 {
            return Err(answer[9]);
        }
        let mut finish = [0; FINISH];
        finish[..8].copy_from_slice(&epoch.to_le_bytes());
        finish[8..16].copy_from_slice(&position.to_le_bytes());
        let proof = key.proof(Role::Initiator, &[&hello, &answer[..PROOF_AT], &finish[..16]]);
        finish[16..].copy_from_slice(&proof);
        stream.write_all(&finish).unwrap();
        if let Some(record) = record {
            *record = [&hello[..], &finish[..]].concat();
        }
        let mut verdict = [9; 16];
        stream.read_exact(&mut verdict).unwrap();
        match verdict[0] {
            0 => Ok((stream, u64::from_le_bytes(verdict[8..].try_into().unwrap()))),
            status => Err(status),
        }
    }
}
