//! Address formats: conversions between a client's addresses and [`EpName`] (fi_getinfo(3), "Addressing
//! formats").
//!
//! Place in the data flow: `fi_getinfo` converts node and service into addresses. Address vectors convert
//! inserted addresses into names. `fi_getname`, `fi_av_lookup` and `fi_av_straddr` convert names into
//! addresses.
//!
//! The native format consists of a name's own bytes, which are opaque to clients: 32, or 48 with IPv6. Socket
//! addresses and strings are accepted if the client requests such a format. They contain only the socket of
//! an endpoint, so they become *service* names. Only endpoints opened with such a format or with an explicit
//! service accept peers that know no more.

use std::ffi::{CStr, CString, c_char, c_int};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use weft_engine::name::{EpName, address_bytes};
use weft_fi_sys as sys;

use crate::abi::errno::Errno;

/// The number of the native format, a provider-specific one as defined by fabric.h.
pub(crate) const FI_ADDR_WEFT: u32 = sys::FI_PROV_SPECIFIC | 0x7765;

/// The maximum length of an address string with its terminator: `fi_sockaddr_in6://[`, 45, `%`, 10, `]:`, 5.
const STRING_BYTES: usize = 96;
const IN_BYTES: usize = size_of::<libc::sockaddr_in>();
const IN6_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// The format of a client's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// Opaque bytes, which contain their length.
    #[default]
    Native,
    /// `sockaddr_in` or `sockaddr_in6`, distinguished by their family (FI_SOCKADDR, FI_SOCKADDR_IP), with the
    /// number that the client used.
    Sockaddr(u32),
    /// `sockaddr_in`.
    In,
    /// `sockaddr_in6`.
    In6,
    /// A C string such as `fi_sockaddr_in://10.1.1.1:5000`.
    Text,
}

impl Format {
    /// Converts `fi_info.addr_format`; FI_FORMAT_UNSPEC is the native format. `None` for unsupported formats.
    pub(crate) const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            sys::FI_FORMAT_UNSPEC | FI_ADDR_WEFT => Some(Self::Native),
            sys::FI_SOCKADDR | sys::v2::FI_SOCKADDR_IP => Some(Self::Sockaddr(raw)),
            sys::FI_SOCKADDR_IN => Some(Self::In),
            sys::FI_SOCKADDR_IN6 => Some(Self::In6),
            sys::FI_ADDR_STR => Some(Self::Text),
            _ => None,
        }
    }

    /// The number for `fi_info.addr_format`.
    pub(crate) const fn raw(self) -> u32 {
        match self {
            Self::Native => FI_ADDR_WEFT,
            Self::Sockaddr(raw) => raw,
            Self::In => sys::FI_SOCKADDR_IN,
            Self::In6 => sys::FI_SOCKADDR_IN6,
            Self::Text => sys::FI_ADDR_STR,
        }
    }

    /// Whether addresses contain only the socket of an endpoint. An endpoint with such a format must accept
    /// all peers.
    pub(crate) const fn is_open(self) -> bool {
        !matches!(self, Self::Native)
    }

    /// Converts a client's bytes to a name. For [`Format::Text`] they are the string without its terminator.
    pub(crate) fn decode(self, bytes: &[u8]) -> Result<EpName, Errno> {
        match self {
            Self::Native => {
                let name = EpName::from_address(bytes).map_err(|error| {
                    log::info!("not a weft address: {error}; pass the result of fi_getname on a weft endpoint");
                    Errno::INVAL
                })?;
                // Every endpoint has at least one device, so this is a foreign address that begins like a
                // weft address.
                if name.shm() || name.tcp() { Ok(name) } else { Err(Errno::INVAL) }
            }
            Self::Text => parse_text(std::str::from_utf8(bytes).map_err(|_| Errno::INVAL)?),
            Self::Sockaddr(_) | Self::In | Self::In6 => {
                let socket = decode_sockaddr(bytes).ok_or(Errno::INVAL)?;
                let fits = match self {
                    Self::In => socket.is_ipv4(),
                    Self::In6 => socket.is_ipv6(),
                    _ => true,
                };
                if fits { Ok(EpName::service(socket)) } else { Err(Errno::INVAL) }
            }
        }
    }

    /// Converts a name to this format; [`Errno::ADDRNOTAVAIL`] if the format cannot express it. Strings
    /// include the terminator.
    pub(crate) fn encode(self, name: &EpName) -> Result<Vec<u8>, Errno> {
        match (self, name.socket()) {
            (Self::Native, _) => Ok(name.to_address().to_vec()),
            (Self::Text, socket) => {
                Ok(CString::new(socket_text(socket)).map_err(|_| Errno::INVAL)?.into_bytes_with_nul())
            }
            (Self::In | Self::Sockaddr(_), SocketAddr::V4(v4)) => Ok(encode_in(*v4.ip(), v4.port())),
            (Self::In, SocketAddr::V6(_)) => Err(Errno::ADDRNOTAVAIL),
            (Self::In6, SocketAddr::V4(v4)) => Ok(encode_in6(v4.ip().to_ipv6_mapped(), v4.port(), 0)),
            (Self::In6 | Self::Sockaddr(_), SocketAddr::V6(v6)) => Ok(encode_in6(*v6.ip(), v6.port(), v6.scope_id())),
        }
    }

    /// The length of the address at `address`, to iterate over an array. `None` if it is unknown.
    ///
    /// # Safety
    /// `address` points to at least two bytes of an address in this format, which is not [`Format::Text`].
    pub(crate) unsafe fn length_at(self, address: *const u8) -> Option<usize> {
        match self {
            Self::Native => {
                // SAFETY: the first two bytes, by the caller's promise.
                Some(address_bytes(unsafe { address.cast::<[u8; 2]>().read() }))
            }
            Self::In => Some(IN_BYTES),
            Self::In6 => Some(IN6_BYTES),
            Self::Text => None,
            Self::Sockaddr(_) => {
                // SAFETY: the family's two bytes, by the caller's promise.
                let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
                match c_int::from(family) {
                    libc::AF_INET => Some(IN_BYTES),
                    libc::AF_INET6 => Some(IN6_BYTES),
                    _ => None,
                }
            }
        }
    }

    /// Converts an address in the client's memory to a name.
    ///
    /// # Safety
    /// `address` points to an address in this format; for [`Format::Text`] to a C string.
    pub(crate) unsafe fn decode_at(self, address: *const u8) -> Result<EpName, Errno> {
        if self == Self::Text {
            // SAFETY: the caller's promise.
            let text = unsafe { CStr::from_ptr(address.cast::<c_char>()) };
            return self.decode(text.to_bytes());
        }
        // SAFETY: the caller's promise.
        let length = unsafe { self.length_at(address) }.ok_or(Errno::INVAL)?;
        // SAFETY: an address in this format has that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(address, length) };
        self.decode(bytes)
    }
}

/// The printable form of a name, without the capability, which is a secret.
pub(crate) fn describe(name: &EpName) -> String {
    if !name.is_full() {
        return socket_text(name.socket());
    }
    let id: String = name.ep_id().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("fi_weft://{}/{id}", name.socket())
}

fn socket_text(socket: SocketAddr) -> String {
    match socket {
        SocketAddr::V4(v4) => format!("fi_sockaddr_in://{v4}"),
        SocketAddr::V6(v6) => format!("fi_sockaddr_in6://{v6}"),
    }
}

/// Parses a string address: `fi_sockaddr://`, `fi_sockaddr_in://` or `fi_sockaddr_in6://` with address and
/// port.
fn parse_text(text: &str) -> Result<EpName, Errno> {
    let (scheme, rest) = text.split_once("://").ok_or(Errno::INVAL)?;
    let rest = rest.split(['/', '?']).next().unwrap_or_default();
    if rest.len() > STRING_BYTES {
        return Err(Errno::INVAL);
    }
    let socket: SocketAddr = rest.parse().map_err(|_| Errno::INVAL)?;
    match (scheme, socket) {
        ("fi_sockaddr" | "fi_sockaddr_ip", _)
        | ("fi_sockaddr_in", SocketAddr::V4(_))
        | ("fi_sockaddr_in6", SocketAddr::V6(_)) => Ok(EpName::service(socket)),
        _ => Err(Errno::INVAL),
    }
}

/// Whether a node argument is an address string instead of a host name.
pub(crate) fn is_text_address(node: &str) -> bool {
    node.starts_with("fi_") && node.contains("://")
}

fn encode_in(ip: Ipv4Addr, port: u16) -> Vec<u8> {
    // The layout of `sockaddr_in` on Linux: family, port, address, eight zeros.
    let mut bytes = vec![0; IN_BYTES];
    bytes[0..2].copy_from_slice(&family(libc::AF_INET));
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip.octets());
    bytes
}

fn encode_in6(ip: Ipv6Addr, port: u16, scope: u32) -> Vec<u8> {
    // The layout of `sockaddr_in6` on Linux: family, port, flow label, address, scope in the host's byte order.
    let mut bytes = vec![0; IN6_BYTES];
    bytes[0..2].copy_from_slice(&family(libc::AF_INET6));
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[8..24].copy_from_slice(&ip.octets());
    bytes[24..28].copy_from_slice(&scope.to_ne_bytes());
    bytes
}

fn family(number: c_int) -> [u8; 2] {
    libc::sa_family_t::try_from(number).unwrap_or_default().to_ne_bytes()
}

/// Parses a `sockaddr_in` or `sockaddr_in6`, by its family. The bytes may be longer than the address.
fn decode_sockaddr(bytes: &[u8]) -> Option<SocketAddr> {
    let array = |at: usize| -> Option<[u8; 2]> { bytes.get(at..at + 2)?.try_into().ok() };
    let port = u16::from_be_bytes(array(2)?);
    match c_int::from(libc::sa_family_t::from_ne_bytes(array(0)?)) {
        libc::AF_INET if bytes.len() >= IN_BYTES => {
            let octets: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::new(IpAddr::from(octets), port))
        }
        libc::AF_INET6 if bytes.len() >= IN6_BYTES => {
            let octets: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope)))
        }
        _ => None,
    }
}

/// The arguments of a lookup by node and service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'a> {
    pub(crate) node: Option<&'a CStr>,
    pub(crate) service: Option<&'a CStr>,
    /// The node is numeric, so no name server is asked.
    pub(crate) numeric: bool,
    /// The result is a local address for listening; without a node, the wildcard address.
    pub(crate) passive: bool,
    pub(crate) format: Format,
}

/// The first socket address for a node and a service.
pub(crate) fn resolve(query: &Query<'_>) -> Result<EpName, Errno> {
    let node = query.node.map(|node| node.to_str().map_err(|_| Errno::INVAL)).transpose()?;
    if let Some(node) = node.filter(|node| is_text_address(node)) {
        return if query.service.is_some() { Err(Errno::INVAL) } else { parse_text(node) };
    }
    // The C library takes a larger number modulo 65536.
    let number = query.service.and_then(|service| service.to_str().ok()?.parse::<u64>().ok());
    if let Some(number) = number.filter(|&number| number > u64::from(u16::MAX)) {
        log::error!("fi_getinfo: there is no port {number}; choose a port up to 65535");
        return Err(Errno::INVAL);
    }
    let sockets = getaddrinfo(query)?;
    let fits = |socket: &&SocketAddr| match query.format {
        Format::In => socket.is_ipv4(),
        Format::In6 => socket.is_ipv6(),
        _ => true,
    };
    // More than one result fits only for names of hosts with both kinds of addresses. TCP listens on both.
    sockets.iter().find(fits).map(|&socket| EpName::service(socket)).ok_or(Errno::NODATA)
}

/// The addresses that getaddrinfo(3) returns.
fn getaddrinfo(query: &Query<'_>) -> Result<Vec<SocketAddr>, Errno> {
    // SAFETY: a zeroed `addrinfo` is a valid one without requirements.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    hints.ai_flags =
        if query.numeric { libc::AI_NUMERICHOST } else { 0 } | if query.passive { libc::AI_PASSIVE } else { 0 };
    hints.ai_family = match query.format {
        Format::In => libc::AF_INET,
        Format::In6 => libc::AF_INET6,
        _ => libc::AF_UNSPEC,
    };
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    let mut list = std::ptr::null_mut();
    // SAFETY: null or C strings, our hints, and a variable for the result.
    let result =
        unsafe { libc::getaddrinfo(pointer(query.node), pointer(query.service), &raw const hints, &raw mut list) };
    if result != 0 {
        // SAFETY: gai_strerror takes any number.
        let reason = unsafe { libc::gai_strerror(result) };
        // SAFETY: gai_strerror returns a constant C string.
        let reason = unsafe { CStr::from_ptr(reason) };
        log::info!(
            "{:?}:{:?} cannot be resolved: {}; check that the host can resolve the name to an address of this format",
            query.node,
            query.service,
            reason.to_string_lossy()
        );
        return Err(Errno::NODATA);
    }
    let mut sockets = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: an element of the list that getaddrinfo allocated, which is freed below.
        let entry = unsafe { &*next };
        let length = entry.ai_addrlen as usize;
        // SAFETY: the element's address has that length.
        let bytes = unsafe { std::slice::from_raw_parts(entry.ai_addr.cast::<u8>(), length) };
        sockets.extend(decode_sockaddr(bytes));
        next = entry.ai_next;
    }
    // SAFETY: allocated by getaddrinfo above, and not used afterwards.
    unsafe { libc::freeaddrinfo(list) };
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn name(text: &str) -> EpName {
        EpName::service(text.parse().unwrap())
    }

    #[test]
    fn encoded_addresses_decode_to_the_same_name() {
        let v4 = name("10.1.2.3:4711");
        let v6 = name("[fe80::1%3]:4711");
        for format in [Format::Native, Format::In, Format::In6, Format::Sockaddr(sys::FI_SOCKADDR), Format::Text] {
            for name in [v4, v6] {
                let Ok(mut bytes) = format.encode(&name) else {
                    assert!(format == Format::In && name == v6);
                    continue;
                };
                // SAFETY: the bytes are an address in this format; strings are terminated.
                assert_eq!(unsafe { format.decode_at(bytes.as_ptr()) }, Ok(name), "{format:?}");
                if format == Format::Text {
                    bytes.pop();
                }
                assert_eq!(format.decode(&bytes), Ok(name), "{format:?}");
                assert_eq!(Format::from_raw(format.raw()), Some(format));
            }
        }
    }

    #[test]
    fn foreign_and_short_addresses_are_refused() {
        // A `sockaddr_in` begins with 2 and 0, like an address of version 2 without any device.
        assert!(Format::Native.decode(&[[2, 0].as_slice(), &[b'x'; 30]].concat()).is_err());
        for format in [Format::Native, Format::In, Format::In6, Format::Sockaddr(sys::FI_SOCKADDR), Format::Text] {
            assert!(format.decode(&[]).is_err());
            assert!(format.decode(&[0xff; 64]).is_err());
            assert!(format.decode(&[2, 0, 1]).is_err());
        }
        let in4 = Format::In.encode(&name("1.2.3.4:5")).unwrap();
        assert!(Format::In6.decode(&in4).is_err());
        assert!(Format::In.decode(&in4[..15]).is_err());
        assert_eq!(Format::from_raw(sys::FI_SOCKADDR_IB), None);
    }

    #[test]
    fn an_array_of_addresses_is_iterated_by_their_lengths() {
        let names = [name("10.1.2.3:4711"), name("[fe80::1%3]:4711"), name("10.1.2.4:4711")];
        let array: Vec<u8> = names.iter().flat_map(|name| Format::Native.encode(name).unwrap()).collect();
        let mut at = 0;
        for name in names {
            // SAFETY: inside the array, at the start of an address.
            let address = unsafe { array.as_ptr().add(at) };
            // SAFETY: as above.
            assert_eq!(unsafe { Format::Native.decode_at(address) }, Ok(name));
            // SAFETY: as above.
            at += unsafe { Format::Native.length_at(address) }.unwrap();
        }
        assert_eq!(at, array.len());
    }

    #[test]
    fn string_addresses_are_parsed() {
        let good = ["fi_sockaddr://1.2.3.4:5", "fi_sockaddr_in://1.2.3.4:5", "fi_sockaddr_in://1.2.3.4:5/x?qos=3"];
        for text in good {
            assert_eq!(Format::Text.decode(text.as_bytes()), Ok(name("1.2.3.4:5")), "{text}");
        }
        assert_eq!(Format::Text.decode(b"fi_sockaddr_in6://[::1]:5"), Ok(name("[::1]:5")));
        for text in
            ["1.2.3.4:5", "fi_sockaddr_in://[::1]:5", "fi_sockaddr_in://1.2.3.4", "fi_gni://1", "fi_sockaddr://host:5"]
        {
            assert!(Format::Text.decode(text.as_bytes()).is_err(), "{text}");
        }
    }

    /// Any bytes in any format give a name that can be encoded again, or an error.
    #[test]
    fn fuzz_address_strings() {
        let seeds: [&[u8]; 6] = [
            b"fi_sockaddr_in://1.2.3.4:5",
            b"fi_sockaddr_in6://[fe80::1%3]:65535",
            b"fi_weft://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            &[2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
            &[10, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0],
            // An IPv4 address with a scope.
            &[10, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1, 3, 0, 0, 0],
        ];
        let seeds = seeds.map(<[u8]>::to_vec);
        weft_fuzz::fuzz("address-strings", &seeds, |input| {
            let mut seen = 0;
            for (bit, format) in [(0, Format::Text), (1, Format::In), (2, Format::In6), (3, Format::Native)] {
                if let Ok(name) = format.decode(input) {
                    seen |= 1 << bit | u64::from(name.as_bytes()[1]) << 8;
                    let again = EpName::from_address(&name.to_address());
                    assert_eq!(again, Ok(name), "{}", describe(&name));
                }
            }
            seen
        });
    }

    #[test]
    fn a_description_omits_the_capability() {
        let parts = weft_engine::name::NameParts {
            socket: "1.2.3.4:5".parse().unwrap(),
            host_id: 1,
            ep_id: [0x11; 16],
            capability: [0xcc; 16],
            context: None,
            shm: true,
            tcp: true,
        };
        let text = describe(&EpName::full(&parts));
        assert_eq!(text, "fi_weft://1.2.3.4:5/1111111111111111");
    }

    #[test]
    fn nodes_and_services_resolve() {
        let query = |node: Option<&'static CStr>, service: Option<&'static CStr>| Query {
            node,
            service,
            numeric: true,
            passive: false,
            format: Format::Native,
        };
        assert_eq!(resolve(&query(Some(c"127.0.0.1"), Some(c"77"))), Ok(name("127.0.0.1:77")));
        assert_eq!(resolve(&query(Some(c"::1"), Some(c"77"))), Ok(name("[::1]:77")));
        assert_eq!(resolve(&query(Some(c"no-number"), Some(c"77"))), Err(Errno::NODATA));
        assert_eq!(resolve(&query(Some(c"fi_sockaddr://1.2.3.4:5"), None)), Ok(name("1.2.3.4:5")));
        assert_eq!(resolve(&query(Some(c"fi_sockaddr://1.2.3.4:5"), Some(c"5"))), Err(Errno::INVAL));
        let passive = Query { passive: true, format: Format::In, ..query(None, Some(c"77")) };
        assert_eq!(resolve(&passive), Ok(name("0.0.0.0:77")));
    }
}
