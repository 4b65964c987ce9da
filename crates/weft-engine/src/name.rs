//! Endpoint names: 64 opaque bytes that say where an endpoint is reached and that permit to reach it.
//!
//! Place in the data flow: made by the device layer at enable, handed to clients by `fi_getname`,
//! carried by them out of band, inserted into address vectors, and handed back to `Nic::connect`.
//! Pure bytes: no look-up, no socket happens here.
//!
//! Layout (all integers big-endian), specified in docs/protocol.md:
//! ```text
//!  0      1      2        4                       20        24           32                 48                64
//!  | ver  | flags| port   | IPv6 or v4-mapped     | scope   | host id    | endpoint id      | capability      |
//! ```
//! `flags`: bit 0 = the endpoint id and capability are present (a *full* name; without it the name is a
//! *service* name: only address and port, as `fi_getinfo(node, service)` makes it); bit 1 = the endpoint
//! may be reached by shared memory; bit 2 = it may be reached by TCP.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Length of every name in bytes (the same on every rank: Sandia OpenSHMEM requires it).
pub const NAME_BYTES: usize = 64;
/// The version this code writes and reads.
pub const NAME_VERSION: u8 = 1;

const FULL: u8 = 1;
const SHM: u8 = 2;
const TCP: u8 = 4;

/// The name of an endpoint. Compares bytewise; see [`EpName::same_endpoint`] for identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpName([u8; NAME_BYTES]);

/// What distinguishes endpoints in a table: the id of a full name, the socket address of a service name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// A full name's endpoint id.
    Id([u8; 16]),
    /// A service name's address and port.
    Socket([u8; 16], u16),
}

/// The parts of a full name.
#[derive(Clone, Copy, Debug)]
pub struct NameParts {
    /// Where TCP listens; port 0 when it does not.
    pub socket: SocketAddr,
    /// Identity of the host (and its network namespace) as far as it can be told.
    pub host_id: u64,
    /// Random, public: names the endpoint's Unix socket.
    pub ep_id: [u8; 16],
    /// Random, secret: proves that the holder was given the name.
    pub capability: [u8; 16],
    /// May be reached by shared memory.
    pub shm: bool,
    /// May be reached by TCP.
    pub tcp: bool,
}

/// Why bytes are not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not 64 bytes.
    #[error("a weft address has 64 bytes, this has {0}")]
    Length(usize),
    /// Another version, or not a weft address at all.
    #[error("not a weft address (version byte {0})")]
    Version(u8),
    /// Unknown flag bits.
    #[error("unknown flags {0:#x} in a weft address")]
    Flags(u8),
}

impl EpName {
    /// A full name.
    #[must_use]
    pub fn full(parts: &NameParts) -> Self {
        let mut name = Self::service(parts.socket);
        name.0[1] = FULL | if parts.shm { SHM } else { 0 } | if parts.tcp { TCP } else { 0 };
        name.0[24..32].copy_from_slice(&parts.host_id.to_be_bytes());
        name.0[32..48].copy_from_slice(&parts.ep_id);
        name.0[48..64].copy_from_slice(&parts.capability);
        name
    }

    /// A service name: only where to ask.
    #[must_use]
    pub fn service(socket: SocketAddr) -> Self {
        let mut bytes = [0; NAME_BYTES];
        bytes[0] = NAME_VERSION;
        bytes[1] = SHM | TCP;
        bytes[2..4].copy_from_slice(&socket.port().to_be_bytes());
        let (ip, scope) = match socket {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        bytes[4..20].copy_from_slice(&ip.octets());
        bytes[20..24].copy_from_slice(&scope.to_be_bytes());
        Self(bytes)
    }

    /// Checks bytes that a client or a peer handed in.
    pub fn parse(bytes: &[u8]) -> Result<Self, NameError> {
        let array: [u8; NAME_BYTES] = bytes.try_into().map_err(|_| NameError::Length(bytes.len()))?;
        if array[0] != NAME_VERSION {
            return Err(NameError::Version(array[0]));
        }
        if array[1] & !(FULL | SHM | TCP) != 0 {
            return Err(NameError::Flags(array[1]));
        }
        Ok(Self(array))
    }

    /// The bytes, as clients carry them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; NAME_BYTES] {
        &self.0
    }

    /// Whether endpoint id and capability are present.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0[1] & FULL != 0
    }

    /// Whether shared memory may be tried.
    #[must_use]
    pub fn shm(&self) -> bool {
        self.0[1] & SHM != 0
    }

    /// Whether TCP may be tried.
    #[must_use]
    pub fn tcp(&self) -> bool {
        self.0[1] & TCP != 0
    }

    /// Where TCP listens (v4-mapped addresses come back as IPv4).
    #[must_use]
    pub fn socket(&self) -> SocketAddr {
        let port = self.port();
        match self.ip6().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
            None => SocketAddr::V6(SocketAddrV6::new(self.ip6(), port, 0, self.scope())),
        }
    }

    /// Host identity of a full name, 0 in a service name.
    #[must_use]
    pub fn host_id(&self) -> u64 {
        u64::from_be_bytes(self.array(24))
    }

    /// Endpoint id of a full name, zeros in a service name.
    #[must_use]
    pub fn ep_id(&self) -> [u8; 16] {
        self.array(32)
    }

    /// Capability of a full name, zeros in a service name.
    #[must_use]
    pub fn capability(&self) -> [u8; 16] {
        self.array(48)
    }

    /// What to key a table of peers by.
    #[must_use]
    pub fn identity(&self) -> Identity {
        if self.is_full() { Identity::Id(self.ep_id()) } else { self.socket_identity() }
    }

    /// The identity that a service name for this endpoint would have.
    #[must_use]
    pub fn socket_identity(&self) -> Identity {
        Identity::Socket(self.array(4), self.port())
    }

    /// Whether both names surely mean one endpoint.
    #[must_use]
    pub fn same_endpoint(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    fn port(&self) -> u16 {
        u16::from_be_bytes(self.array(2))
    }

    fn ip6(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.array::<16>(4))
    }

    fn scope(&self) -> u32 {
        u32::from_be_bytes(self.array(20))
    }

    /// `N` bytes at a constant offset inside the 64.
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }
}

/// For messages: `10.0.0.1:4711/1f2e3d4c` (never the capability).
impl std::fmt::Display for EpName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.socket())?;
        if self.is_full() {
            write!(f, "/")?;
            for byte in &self.ep_id()[..4] {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for EpName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EpName({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(socket: &str) -> NameParts {
        NameParts {
            socket: socket.parse().expect("test address"),
            host_id: 0x0102_0304_0506_0708,
            ep_id: [7; 16],
            capability: [9; 16],
            shm: true,
            tcp: false,
        }
    }

    #[test]
    fn full_names_round_trip() {
        for socket in ["10.1.2.3:4711", "[fe80::1%3]:80", "[::1]:0"] {
            let name = EpName::full(&parts(socket));
            let back = EpName::parse(name.as_bytes()).expect("own name");
            assert_eq!(back, name);
            assert_eq!(back.socket(), socket.parse().expect("test address"));
            assert!(back.is_full() && back.shm() && !back.tcp());
            assert_eq!(back.host_id(), 0x0102_0304_0506_0708);
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(EpName::parse(&[1; 63]), Err(NameError::Length(63)));
        assert_eq!(EpName::parse(&[0; 64]), Err(NameError::Version(0)));
        let mut bytes = *EpName::full(&parts("1.2.3.4:5")).as_bytes();
        bytes[1] = 0x80;
        assert_eq!(EpName::parse(&bytes), Err(NameError::Flags(0x80)));
    }

    #[test]
    fn service_and_full_names_share_the_socket_identity() {
        let full = EpName::full(&parts("1.2.3.4:5"));
        let service = EpName::service("1.2.3.4:5".parse().expect("test address"));
        assert_eq!(full.socket_identity(), service.identity());
        assert!(!full.same_endpoint(&service));
        assert!(!format!("{full}").contains("0909"));
    }
}
