//! Endpoint names: opaque bytes that say where an endpoint is reached and that permit a peer to reach it.
//!
//! Place in the data flow: the device layer makes a name at enable, and `fi_getname` gives it to the client
//! as an [`Address`]. Clients exchange addresses out of band and insert them into address vectors;
//! `Nic::connect` gets the name again. This file handles bytes only: it does no look-up and opens no socket.
//!
//! An address has 32 bytes, or 48 where TCP uses IPv6; clients often have little room for addresses. A name,
//! which weft uses internally and on the wire, has 64 bytes: it contains the endpoint id that the address
//! implies ([`endpoint_id`]).
//!
//! Layouts (all integers big-endian), specified in docs/protocol.md:
//! ```text
//! name:
//!  0      1      2        4                       20        24           32                 48                64
//!  | ver  | flags| port   | IPv6 or v4-mapped     | scope   | host id    | endpoint id      | capability      |
//! address:
//!  0      1      2        4                8         16               32           48
//!  | ver  | flags| port   | IPv4, or scope | host id | capability     | IPv6 (if so)|
//! ```
//! Bits of `flags`:
//! - 0: the endpoint id and capability are present. Such a name is *full*. A name without them is a *service*
//!   name, which has only address and port, as `fi_getinfo(node, service)` makes it.
//! - 1: the endpoint may be reached by shared memory.
//! - 2: the endpoint may be reached by TCP.
//! - 3, only in addresses: TCP uses IPv6.
//! - 4: the endpoint is a context of a scalable endpoint.
//! - 5: the endpoint has a second IPv4 address, with the same port. It takes the last four bytes of the host id.
//!
//! The contexts of a scalable endpoint are endpoints with related names. They share one capability, and the
//! last byte of the endpoint id is the context's index. The receive contexts listen on consecutive ports. The
//! name of the first receive context therefore implies all others ([`EpName::context`], [`EpName::base`]),
//! and clients exchange only that one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use smallvec::SmallVec;

/// Length of every name in bytes.
pub const NAME_BYTES: usize = 64;
/// Length of an address without IPv6 (Sandia OpenSHMEM requires the same length on every rank).
pub const ADDRESS_BYTES: usize = 32;
/// Length of an address with IPv6.
pub const LONG_ADDRESS_BYTES: usize = 48;
/// The version of names that this code reads and writes.
pub const NAME_VERSION: u8 = 1;
/// The version of addresses that this code reads and writes.
pub const ADDRESS_VERSION: u8 = 2;

const FULL: u8 = 1;
const SHM: u8 = 2;
const TCP: u8 = 4;
const IPV6: u8 = 8;
const CONTEXT: u8 = 16;
const SECOND: u8 = 32;
/// Flags that only full names have.
const OF_FULL: u8 = CONTEXT | SECOND;

/// The part of the host id that a name with a second address has.
const HALF_HOST_ID: u64 = !0 << 32;

/// Maximum number of receive contexts, and of transmit contexts, of a scalable endpoint.
pub const MAX_CONTEXTS: u8 = 64;
/// The index of the first transmit context. Receive contexts have smaller indices.
pub const FIRST_TX_CONTEXT: u8 = 128;

/// The form of a name that clients exchange.
pub type Address = SmallVec<[u8; LONG_ADDRESS_BYTES]>;

/// The endpoint id that belongs to a capability. The id is public and reveals nothing about the capability.
#[must_use]
pub fn endpoint_id(capability: &[u8; 16]) -> [u8; 16] {
    let hash = blake3::keyed_hash(b"weft: endpoint id of capability.", capability);
    let mut id = [0; 16];
    id.copy_from_slice(&hash.as_bytes()[..16]);
    id
}

/// The length of an address that begins with these two bytes. Any other bytes count as a short address.
#[must_use]
pub const fn address_bytes(head: [u8; 2]) -> usize {
    if head[0] == ADDRESS_VERSION && head[1] & IPV6 != 0 { LONG_ADDRESS_BYTES } else { ADDRESS_BYTES }
}

/// The name of an endpoint. It compares bytewise; [`EpName::same_endpoint`] compares identities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpName([u8; NAME_BYTES]);

/// The key of an endpoint in tables: the id of a full name, or the socket address of a service name.
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
    /// The socket on which TCP listens; port 0 when it does not listen.
    pub socket: SocketAddr,
    /// Identity of the host and its network namespace, as far as it can be determined.
    pub host_id: u64,
    /// The public id that belongs to the capability ([`endpoint_id`]). It names the endpoint's Unix socket.
    pub ep_id: [u8; 16],
    /// A random secret. Its holder was given the name.
    pub capability: [u8; 16],
    /// Whether the endpoint may be reached by shared memory.
    pub shm: bool,
    /// Whether the endpoint may be reached by TCP.
    pub tcp: bool,
    /// The index of a context of a scalable endpoint. It replaces the last byte of the id.
    pub context: Option<u8>,
}

/// The reason why bytes are not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The length is wrong.
    #[error("a weft address has 32 bytes, or 48 with IPv6, not {0}")]
    Length(usize),
    /// The version is unknown, or the bytes are not a weft address.
    #[error("not a weft address (version byte {0})")]
    Version(u8),
    /// Unknown flag bits.
    #[error("unknown flags {0:#x} in a weft address")]
    Flags(u8),
}

impl EpName {
    /// Makes a full name.
    #[must_use]
    pub fn full(parts: &NameParts) -> Self {
        let mut name = Self::service(parts.socket);
        name.0[1] = FULL | if parts.shm { SHM } else { 0 } | if parts.tcp { TCP } else { 0 };
        name.0[24..32].copy_from_slice(&parts.host_id.to_be_bytes());
        name.0[32..48].copy_from_slice(&parts.ep_id);
        name.0[48..64].copy_from_slice(&parts.capability);
        if let Some(index) = parts.context {
            name.0[1] |= CONTEXT;
            name.0[47] = index;
        }
        name
    }

    /// A full name with a second address, at which the endpoint listens, too. Half of the host id is left.
    #[must_use]
    pub fn with_second(mut self, ip: Ipv4Addr) -> Self {
        debug_assert!(self.is_full());
        self.0[1] |= SECOND;
        self.0[28..32].copy_from_slice(&ip.octets());
        self
    }

    /// Makes a service name: a socket without an endpoint id.
    #[must_use]
    pub fn service(socket: SocketAddr) -> Self {
        let mut bytes = [0; NAME_BYTES];
        bytes[0] = NAME_VERSION;
        bytes[1] = SHM | TCP;
        bytes[2..4].copy_from_slice(&socket.port().to_be_bytes());
        let (ip, scope) = match socket {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            // A scope has no meaning for an IPv4 address, and would give one endpoint two names.
            SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => (*v6.ip(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        bytes[4..20].copy_from_slice(&ip.octets());
        bytes[20..24].copy_from_slice(&scope.to_be_bytes());
        Self(bytes)
    }

    /// The name that a client's address stands for.
    pub fn from_address(bytes: &[u8]) -> Result<Self, NameError> {
        let head = |at: usize| bytes.get(at).copied().ok_or(NameError::Length(bytes.len()));
        let (version, flags) = (head(0)?, head(1)?);
        if bytes.len() != address_bytes([version, flags]) {
            return Err(NameError::Length(bytes.len()));
        }
        if version != ADDRESS_VERSION {
            return Err(NameError::Version(version));
        }
        if flags & !(FULL | SHM | TCP | IPV6 | OF_FULL) != 0 || (flags & OF_FULL != 0 && flags & FULL == 0) {
            return Err(NameError::Flags(flags));
        }
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let four: [u8; 4] = part(bytes, 4);
        let socket = if flags & IPV6 == 0 {
            SocketAddr::new(Ipv4Addr::from(four).into(), port)
        } else {
            let ip = Ipv6Addr::from(part::<16>(bytes, 32));
            // Each address has exactly one form: an IPv4 address must use the short form, which has no scope.
            if ip.to_ipv4_mapped().is_some() {
                return Err(NameError::Flags(flags));
            }
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, u32::from_be_bytes(four)))
        };
        let mut name = Self::service(socket);
        name.0[1] = flags & !IPV6;
        if flags & FULL != 0 {
            let capability = part(bytes, 16);
            name.0[24..32].copy_from_slice(&bytes[8..16]);
            name.0[32..48].copy_from_slice(&endpoint_id(&capability));
            name.0[48..64].copy_from_slice(&capability);
            if flags & CONTEXT != 0 {
                name.0[47] = 0;
            }
        }
        Ok(name)
    }

    /// The form that clients exchange. Of a scalable endpoint they exchange only the first receive context.
    #[must_use]
    pub fn to_address(&self) -> Address {
        let mut bytes = Address::from_slice(&[0; ADDRESS_BYTES]);
        bytes[0] = ADDRESS_VERSION;
        bytes[1] = self.0[1];
        bytes[2..4].copy_from_slice(&self.0[2..4]);
        bytes[8..16].copy_from_slice(&self.0[24..32]);
        bytes[16..32].copy_from_slice(&self.capability());
        match self.ip6().to_ipv4_mapped() {
            Some(v4) => bytes[4..8].copy_from_slice(&v4.octets()),
            None => {
                bytes[1] |= IPV6;
                bytes[4..8].copy_from_slice(&self.0[20..24]);
                bytes.extend_from_slice(&self.0[4..20]);
            }
        }
        bytes
    }

    /// Checks bytes that came from a peer.
    pub fn parse(bytes: &[u8]) -> Result<Self, NameError> {
        let array: [u8; NAME_BYTES] = bytes.try_into().map_err(|_| NameError::Length(bytes.len()))?;
        if array[0] != NAME_VERSION {
            return Err(NameError::Version(array[0]));
        }
        let flags = array[1];
        if flags & !(FULL | SHM | TCP | OF_FULL) != 0 || (flags & OF_FULL != 0 && flags & FULL == 0) {
            return Err(NameError::Flags(array[1]));
        }
        Ok(Self(array))
    }

    /// The bytes that peers exchange.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; NAME_BYTES] {
        &self.0
    }

    /// Whether endpoint id and capability are present.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0[1] & FULL != 0
    }

    /// Whether the endpoint may be reached by shared memory.
    #[must_use]
    pub fn shm(&self) -> bool {
        self.0[1] & SHM != 0
    }

    /// Whether the endpoint may be reached by TCP.
    #[must_use]
    pub fn tcp(&self) -> bool {
        self.0[1] & TCP != 0
    }

    /// The socket on which TCP listens. IPv4-mapped addresses are returned as IPv4.
    #[must_use]
    pub fn socket(&self) -> SocketAddr {
        let port = self.port();
        match self.ip6().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
            None => SocketAddr::V6(SocketAddrV6::new(self.ip6(), port, 0, self.scope())),
        }
    }

    /// The second socket on which TCP listens.
    #[must_use]
    pub fn second_socket(&self) -> Option<SocketAddr> {
        let ip = Ipv4Addr::from(self.array::<4>(28));
        (self.0[1] & SECOND != 0 && !ip.is_unspecified()).then(|| SocketAddr::new(ip.into(), self.port()))
    }

    /// Host identity of a full name, 0 in a service name.
    #[must_use]
    pub fn host_id(&self) -> u64 {
        let id = u64::from_be_bytes(self.array(24));
        if self.0[1] & SECOND == 0 { id } else { id & HALF_HOST_ID }
    }

    /// Whether both endpoints are on one host, as far as their names tell.
    #[must_use]
    pub fn same_host(&self, other: &Self) -> bool {
        let whole = (self.0[1] | other.0[1]) & SECOND == 0;
        let known = |name: &Self| name.host_id() & if whole { u64::MAX } else { HALF_HOST_ID };
        known(self) != 0 && known(self) == known(other)
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

    /// The index of a context of a scalable endpoint.
    #[must_use]
    pub fn context_index(&self) -> Option<u8> {
        (self.0[1] & CONTEXT != 0).then(|| self.0[47])
    }

    /// The name of receive context `index` of a scalable endpoint. The endpoint is named by its first receive
    /// context or by that context's socket. `None` if no such context can exist.
    #[must_use]
    pub fn context(&self, index: u8) -> Option<Self> {
        if index == 0 {
            return Some(*self);
        }
        if index >= MAX_CONTEXTS || (self.is_full() && self.context_index() != Some(0)) {
            return None;
        }
        let mut name = *self;
        if self.port() != 0 {
            name.0[2..4].copy_from_slice(&self.port().checked_add(index.into())?.to_be_bytes());
        }
        if self.is_full() {
            name.0[47] = index;
        }
        Some(name)
    }

    /// The name of the scalable endpoint to which this context belongs, or the name itself. A transmit
    /// context's name has the socket of its endpoint.
    #[must_use]
    pub fn base(&self) -> Self {
        let mut name = *self;
        if let Some(index) = self.context_index() {
            name.0[47] = 0;
            if index < FIRST_TX_CONTEXT && self.port() != 0 {
                name.0[2..4].copy_from_slice(&self.port().saturating_sub(index.into()).to_be_bytes());
            }
        }
        name
    }

    /// A name with an endpoint id alone, by which the endpoint can be looked up but not reached.
    pub(crate) fn of_id(ep_id: [u8; 16]) -> Self {
        Self::full(&NameParts {
            socket: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            host_id: 0,
            ep_id,
            capability: [0; 16],
            context: None,
            shm: false,
            tcp: false,
        })
    }

    /// Whether the endpoint id of a full name follows from its capability. Only then may a peer that presents
    /// the capability use the id.
    #[must_use]
    pub fn is_genuine(&self) -> bool {
        let mut id = endpoint_id(&self.capability());
        if let Some(index) = self.context_index() {
            id[15] = index;
        }
        self.is_full() && id == self.ep_id()
    }

    /// The key of this name in a table of peers.
    #[must_use]
    pub fn identity(&self) -> Identity {
        if self.is_full() { Identity::Id(self.ep_id()) } else { self.socket_identity() }
    }

    /// The identity that a service name for this endpoint would have.
    #[must_use]
    pub fn socket_identity(&self) -> Identity {
        Identity::Socket(self.array(4), self.port())
    }

    /// Whether both names certainly denote the same endpoint.
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

    /// `N` bytes at a constant offset within the name.
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        part(&self.0, at)
    }
}

/// `N` bytes at an offset that the caller has checked.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// For log texts: `10.0.0.1:4711/1f2e3d4c`. The capability is never shown.
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
            context: None,
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
    fn addresses_round_trip() {
        for (socket, bytes) in [("10.1.2.3:4711", 32), ("0.0.0.0:0", 32), ("[fe80::1%3]:80", 48), ("[::1]:0", 48)] {
            let parts = parts(socket);
            for name in [
                EpName::full(&NameParts { ep_id: endpoint_id(&parts.capability), ..parts }),
                EpName::service(parts.socket),
            ] {
                let address = name.to_address();
                assert_eq!(address.len(), bytes);
                assert_eq!(address_bytes([address[0], address[1]]), bytes);
                assert_eq!(EpName::from_address(&address), Ok(name));
            }
        }
    }

    #[test]
    fn a_second_address_takes_half_of_the_host_id() {
        let parts = parts("10.1.2.3:4711");
        let one = EpName::full(&NameParts { ep_id: endpoint_id(&parts.capability), ..parts });
        let two = one.with_second(Ipv4Addr::new(10, 9, 8, 7));
        assert_eq!((one.second_socket(), two.second_socket()), (None, "10.9.8.7:4711".parse().ok()));
        assert_eq!((two.socket(), two.host_id()), (one.socket(), 0x0102_0304_0000_0000));
        assert_eq!(EpName::from_address(&two.to_address()), Ok(two));
        assert_eq!(two.to_address().len(), ADDRESS_BYTES);
        assert!(one.same_host(&two) && two.same_host(&one) && two.same_host(&two));
        let far = |host_id| EpName::full(&NameParts { host_id, ..parts });
        assert!(!far(0x0102_0304_0506_0709).same_host(&one) && far(0x0102_0304_0506_0709).same_host(&two));
        assert!(!far(1).same_host(&two) && !far(0).same_host(&far(0)));
        let mut service = EpName::service(parts.socket).to_address();
        service[1] |= SECOND;
        assert_eq!(EpName::from_address(&service), Err(NameError::Flags(service[1])));
        // No such address: the peer has only one.
        assert_eq!(one.with_second(Ipv4Addr::UNSPECIFIED).second_socket(), None);
    }

    #[test]
    fn an_endpoint_id_depends_on_all_of_the_capability() {
        let ids: Vec<_> = (0..128).map(|bit| endpoint_id(&(1_u128 << bit).to_be_bytes())).collect();
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn foreign_addresses_are_refused() {
        let good = EpName::full(&parts("10.1.2.3:4711")).to_address();
        for len in 0..good.len() {
            assert_eq!(EpName::from_address(&good[..len]), Err(NameError::Length(len)));
        }
        assert_eq!(EpName::from_address(&[0; 32]), Err(NameError::Version(0)));
        assert_eq!(EpName::from_address(&[0xff; 32]), Err(NameError::Version(0xff)));
        let mut bytes = good.clone();
        bytes[1] |= 0x80;
        assert_eq!(EpName::from_address(&bytes), Err(NameError::Flags(bytes[1])));
        bytes[1] = good[1] | IPV6;
        assert_eq!(EpName::from_address(&bytes), Err(NameError::Length(32)), "the IPv6 address is missing");
        bytes[1] = CONTEXT;
        assert_eq!(EpName::from_address(&bytes), Err(NameError::Flags(CONTEXT)), "a service has no index");
    }

    #[test]
    fn contexts_are_named_by_the_first() {
        let parts = |socket| {
            let parts = parts(socket);
            NameParts { ep_id: endpoint_id(&parts.capability), ..parts }
        };
        let base = EpName::full(&NameParts { context: Some(0), ..parts("1.2.3.4:500") });
        assert_eq!(EpName::from_address(&base.to_address()), Ok(base));
        let third = base.context(3).expect("it can be");
        assert_eq!((third.context_index(), third.socket().port()), (Some(3), 503));
        assert_eq!((third.base(), base.base()), (base, base));
        assert_eq!(EpName::parse(third.as_bytes()), Ok(third));
        assert!(!third.same_endpoint(&base) && third.context(1).is_none());
        assert_eq!((base.context(0), base.context(MAX_CONTEXTS)), (Some(base), None));
        let tx = EpName::full(&NameParts { context: Some(FIRST_TX_CONTEXT + 1), ..parts("1.2.3.4:77") });
        assert_eq!(tx.base().identity(), base.identity());
        // A service name has no context index; the port alone distinguishes the contexts.
        let service = EpName::service("1.2.3.4:500".parse().expect("test address"));
        assert_eq!(service.context(3).map(|name| name.identity()), Some(third.socket_identity()));
        // A plain endpoint has no contexts.
        let plain = EpName::full(&parts("1.2.3.4:500"));
        assert_eq!((plain.context(1), plain.context(0), plain.base()), (None, Some(plain), plain));
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(EpName::parse(&[1; 63]), Err(NameError::Length(63)));
        assert_eq!(EpName::parse(&[0; 64]), Err(NameError::Version(0)));
        let mut bytes = *EpName::full(&parts("1.2.3.4:5")).as_bytes();
        bytes[1] = 0x80;
        assert_eq!(EpName::parse(&bytes), Err(NameError::Flags(0x80)));
        bytes[1] = CONTEXT;
        assert_eq!(EpName::parse(&bytes), Err(NameError::Flags(CONTEXT)), "a service has no index");
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
