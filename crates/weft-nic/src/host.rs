//! This host: its identity, its network interfaces, and the address by which peers best reach it.
//!
//! Place in the data flow: `Devices::new` calls this module once before the endpoint has a name, and again for each
//! service name. Diagnostic commands print its results. Nothing is sent: connecting a datagram socket only looks up the
//! route.
//!
//! Errors: [`NicError`], which lists the existing interfaces.
//!
//! Sources: getifaddrs(3), netdevice(7), network_namespaces(7), `/proc/sys/kernel/random/boot_id`.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, UdpSocket};

use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::NicError;

/// Documentation addresses (RFC 5737, RFC 3849): routed like other addresses, but assigned to no host.
const SOMEWHERE_V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
const SOMEWHERE_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9);

/// Limit of the interfaces that an endpoint uses.
const MAX_INTERFACES: usize = 4;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name, as `ip link` shows it.
    pub name: String,
    /// The addresses, with port 0. IPv6 link-local addresses carry their scope.
    pub addrs: Vec<SocketAddr>,
    /// Administratively up, and with a carrier.
    pub up: bool,
    /// Administratively up, whether or not there is a carrier.
    pub enabled: bool,
    /// The networks of the addresses.
    pub networks: Vec<Network>,
    /// The loopback interface.
    pub loopback: bool,
    /// Backed by a device of its own, in contrast to a bridge or tunnel.
    pub physical: bool,
    /// A link to one other host, for example of a VPN.
    pub point_to_point: bool,
    /// A bridge, for example of containers, whose address other hosts may have, too.
    pub bridge: bool,
    /// The speed in Mbit/s, if the driver reports it.
    pub speed_mbit: Option<u32>,
}

/// The addresses that an interface reaches without a gateway: those that begin with the same bits as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    own: IpAddr,
    bits: u32,
}

impl Network {
    fn new(own: SocketAddr, mask: Option<SocketAddr>) -> Self {
        let bits = match mask.map(|mask| mask.ip()) {
            Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
            Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
            None => u32::MAX,
        };
        Self { own: own.ip(), bits }
    }

    /// Whether an address is in the network.
    fn contains(&self, ip: IpAddr) -> bool {
        match (self.own, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => (own.to_bits() ^ ip.to_bits()).leading_zeros() >= self.bits.min(32),
            (IpAddr::V6(own), IpAddr::V6(ip)) => (own.to_bits() ^ ip.to_bits()).leading_zeros() >= self.bits.min(128),
            _ => false,
        }
    }
}

/// The networks of this host, for the choice between two addresses of a peer.
#[derive(Clone, Debug, Default)]
pub struct Networks(Vec<Network>);

impl Networks {
    /// The networks of the interfaces that are up.
    #[must_use]
    pub fn of_this_host() -> Self {
        let up = interfaces().unwrap_or_default().into_iter().filter(|known| known.up && !known.loopback);
        Self(up.flat_map(|known| known.networks).collect())
    }

    /// Whether the second address of a peer on another host promises more than the first one.
    ///
    /// An address of this host cannot be the peer's: bridges of containers, and the networks of virtual machines behind
    /// address translation, have the same addresses on each host. An address in a network of this host precedes one
    /// behind a gateway.
    pub(crate) fn prefer_second(&self, first: IpAddr, second: IpAddr) -> bool {
        let rank = |ip| {
            let own = self.0.iter().any(|network| network.own == ip);
            (own, !self.0.iter().any(|network| network.contains(ip)))
        };
        rank(second) < rank(first)
    }
}

/// The interfaces of this host within this network namespace, in the kernel's order.
///
/// # Errors
/// Those of getifaddrs(3).
pub fn interfaces() -> io::Result<Vec<Interface>> {
    // Grouping is a separate function because getifaddrs(3) takes 4 KB of the client's stack.
    Ok(group(nix::ifaddrs::getifaddrs()?))
}

#[inline(never)]
fn group(all: nix::ifaddrs::InterfaceAddressIterator) -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in all {
        let at = found.iter().position(|known| known.name == entry.interface_name).unwrap_or_else(|| {
            found.push(describe(&entry.interface_name, entry.flags));
            found.len() - 1
        });
        if let Some(addr) = entry.address.as_ref().and_then(internet_addr) {
            found[at].addrs.push(addr);
            found[at].networks.push(Network::new(addr, entry.netmask.as_ref().and_then(internet_addr)));
        }
    }
    found
}

fn describe(name: &str, flags: InterfaceFlags) -> Interface {
    let device = format!("/sys/class/net/{name}");
    let speed = fs::read_to_string(format!("{device}/speed")).ok();
    Interface {
        name: name.to_owned(),
        addrs: Vec::new(),
        up: flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
        enabled: flags.contains(InterfaceFlags::IFF_UP),
        networks: Vec::new(),
        loopback: flags.contains(InterfaceFlags::IFF_LOOPBACK),
        physical: fs::exists(format!("{device}/device")).unwrap_or(false),
        point_to_point: flags.contains(InterfaceFlags::IFF_POINTOPOINT),
        bridge: fs::exists(format!("{device}/bridge")).unwrap_or(false),
        // Drivers that do not know the speed report -1.
        speed_mbit: speed.and_then(|text| text.trim().parse().ok()),
    }
}

fn internet_addr(addr: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = addr.as_sockaddr_in().map(|v4| SocketAddr::new(v4.ip().into(), 0));
    v4.or_else(|| addr.as_sockaddr_in6().map(|v6| SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id()).into()))
}

/// Chooses the address for an endpoint's name.
///
/// `listen` is the address at which the endpoint listens. A specific address is the result. An unspecified address
/// determines the family and the port. `iface` is the name of an interface, or one of this host's addresses. Of a list,
/// separated by commas, it is the first that counts. Without either, the result is the address of the best interface
/// (`best_first`), or loopback. IPv4 precedes IPv6.
///
/// # Errors
/// `iface` does not exist or cannot be used.
pub fn choose_address(iface: Option<&str>, listen: Option<SocketAddr>) -> Result<SocketAddr, NicError> {
    if let Some(socket) = listen.filter(|socket| !socket.ip().is_unspecified()) {
        return Ok(socket);
    }
    let all = interfaces().map_err(NicError::system("cannot list the network interfaces"))?;
    let wants = match listen {
        // A listener on 0.0.0.0 cannot be reached by IPv6; [::] takes both.
        Some(socket) if socket.is_ipv4() => Wants::OnlyV4,
        Some(_) => Wants::V6First,
        None => Wants::V4First,
    };
    let mut chosen = match iface.and_then(|list| listed(list).next()) {
        Some(wanted) => choose_wanted(&all, wanted, wants)?,
        None => best_first(&all, &default_routes(), wants)
            .first()
            .map_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), |&(_, addr)| addr),
    };
    chosen.set_port(listen.map_or(0, |socket| socket.port()));
    Ok(chosen)
}

/// The second address for an endpoint's name, of which `first` is the first. Peers try it if they cannot reach the
/// first.
///
/// It is that of the second interface in `iface`, or of the next best one if the client chose neither interface nor
/// address. A bridge is left out: its address often exists on each host. fi_getinfo(3) offers the best address to
/// clients, so a client that passes it on has chosen nothing.
#[must_use]
pub fn second_address(iface: Option<&str>, listen: Option<SocketAddr>, first: SocketAddr) -> Option<Ipv4Addr> {
    if !first.is_ipv4() || first.ip().is_loopback() {
        return None;
    }
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let is_default = |socket: SocketAddr| choose_address(iface, Some(any)).is_ok_and(|default| default == socket);
    if listen.is_some_and(|socket| !socket.ip().is_unspecified() && !is_default(socket)) {
        return None;
    }
    let found = match iface.map(listed) {
        Some(mut names) => {
            names.next()?;
            choose_wanted(&interfaces().ok()?, names.next()?, Wants::OnlyV4).ok()?
        }
        None => {
            let all = interfaces().ok()?;
            let others = best_first(&all, &default_routes(), Wants::OnlyV4);
            let useful = |(known, addr): &&(&Interface, SocketAddr)| {
                !known.bridge && !known.addrs.iter().any(|own| own.ip() == first.ip()) && addr.is_ipv4()
            };
            others.iter().find(useful)?.1
        }
    };
    match found.ip() {
        IpAddr::V4(ip) if found.ip() != first.ip() && !ip.is_loopback() => Some(ip),
        _ => None,
    }
}

/// The interfaces in a list.
fn listed(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// The use of an interface for messages from other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Its address is the first in the names of endpoints.
    First,
    /// Its address is the second: peers dial it if they cannot reach the first.
    Second,
    /// Further connections for long messages use it.
    Further,
    /// It is left out, for this reason.
    LeftOut(&'static str),
}

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::First => "first",
            Self::Second => "second",
            Self::Further => "long messages",
            Self::LeftOut(why) => why,
        })
    }
}

impl Interface {
    /// The use of the interface by an endpoint. `chosen`: the addresses of the endpoint's interfaces, the first of
    /// which is in its name. `second`: the second address in its name.
    #[must_use]
    pub fn usage(&self, chosen: &[SocketAddr], second: Option<IpAddr>) -> Usage {
        let has = |ip: IpAddr| self.addrs.iter().any(|own| own.ip() == ip);
        match chosen {
            [first, ..] if has(first.ip()) => Usage::First,
            _ if second.is_some_and(has) => Usage::Second,
            [_, further @ ..] if further.iter().any(|addr| has(addr.ip())) => Usage::Further,
            _ => Usage::LeftOut(self.drawback()),
        }
    }

    /// The reason why another interface is better.
    fn drawback(&self) -> &'static str {
        if !self.enabled {
            "is down"
        } else if !self.up {
            "has no carrier"
        } else if self.loopback {
            "is loopback"
        } else if best_addr(&self.addrs, Wants::V4First).is_none() {
            "has no address that a peer can dial"
        } else if self.point_to_point {
            "leads to one host, as of a VPN"
        } else if self.bridge {
            "is a bridge: other hosts may have its address"
        } else {
            "is behind others by route and speed"
        }
    }
}

/// Interfaces that a text lists by name for one reason.
const SHOWN: usize = 3;

/// The choice of interfaces in words: `eth0 (10.0.0.1) (first); left out: eth1 (has no carrier)`.
#[must_use]
pub fn describe_choice(all: &[Interface], chosen: &[SocketAddr], second: Option<IpAddr>) -> String {
    let mut used = Vec::new();
    let mut left: Vec<(&str, Vec<&str>)> = Vec::new();
    for known in all {
        match known.usage(chosen, second) {
            Usage::LeftOut(why) if !known.loopback => match left.iter_mut().find(|(other, _)| *other == why) {
                Some((_, names)) => names.push(&known.name),
                None => left.push((why, vec![known.name.as_str()])),
            },
            Usage::LeftOut(_) => {}
            usage => used.push(format!("{}{} ({usage})", known.name, addresses(known))),
        }
    }
    let left = left.iter().map(|(why, names)| {
        let more = names.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more} ({why})", names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", "))
    });
    let left = left.collect::<Vec<_>>().join(", ");
    let left = if left.is_empty() { left } else { format!("; left out: {left}") };
    format!("{}{left}", used.join(", "))
}

/// The addresses of all interfaces in a list. The first one is `first`, the address of the endpoint's name. If that is
/// not an address of the first interface, the client has chosen it, and it is the only one.
///
/// Other interfaces that are down are left out, with a warning.
///
/// # Errors
/// An interface does not exist.
pub fn choose_addresses(iface: Option<&str>, first: SocketAddr) -> Result<Vec<SocketAddr>, NicError> {
    let mut chosen = vec![first];
    let mut names = listed(iface.unwrap_or_default());
    let Some(main) = names.next() else { return Ok(chosen) };
    let all = interfaces().map_err(NicError::system("cannot list the network interfaces"))?;
    let is_main = |known: &&Interface| known.addrs.iter().any(|addr| addr.ip() == first.ip());
    if main.parse() != Ok(first.ip()) && all.iter().find(is_main).is_none_or(|known| known.name != main) {
        return Ok(chosen);
    }
    let wants = if first.is_ipv4() { Wants::OnlyV4 } else { Wants::V6First };
    for name in names.take(MAX_INTERFACES - 1) {
        let addr = match choose_wanted(&all, name, wants) {
            Ok(addr) => addr,
            // The job can do without it.
            Err(error @ NicError::UnusableInterface { .. }) => {
                log::warn!("{error}; long messages use the others");
                continue;
            }
            Err(error) => return Err(error),
        };
        if !chosen.iter().any(|other| other.ip() == addr.ip()) {
            chosen.push(SocketAddr::new(addr.ip(), first.port()));
        }
    }
    Ok(chosen)
}

/// The address that stands for all addresses of a host, in the family of `ip`.
pub(crate) fn any_address(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The number of TCP connections for long messages that suits the interfaces with these addresses: one for each, and
/// more if one connection does not use the speed of the first one.
pub(crate) fn streams_for(addrs: &[SocketAddr]) -> usize {
    let interfaces = interfaces().unwrap_or_default();
    let is_first =
        |known: &&Interface| addrs.first().is_some_and(|first| known.addrs.iter().any(|addr| addr.ip() == first.ip()));
    let speed_mbit = interfaces.iter().find(is_first).and_then(|known| known.speed_mbit).unwrap_or(0);
    addrs.len().max(streams_by_speed(speed_mbit))
}

/// The number of connections for an interface of this speed: two from 25 Gbit/s on, four from 100 Gbit/s on.
const fn streams_by_speed(speed_mbit: u32) -> usize {
    match speed_mbit {
        0..25_000 => 1,
        25_000..100_000 => 2,
        100_000.. => 4,
    }
}

/// The acceptable kinds of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    OnlyV4,
    V4First,
    V6First,
}

impl Wants {
    /// The rank of an address, lowest first; `None` if the address is unusable. Link-local addresses are unusable
    /// because a peer would have to choose the interface for them.
    fn rank(self, ip: IpAddr) -> Option<u8> {
        match (ip, self) {
            (IpAddr::V4(v4), _) if v4.is_link_local() => None,
            (IpAddr::V6(v6), _) if v6.is_unicast_link_local() => None,
            (IpAddr::V6(_), Self::OnlyV4) => None,
            (IpAddr::V4(_), Self::V6First) => Some(2),
            (IpAddr::V4(_), _) => Some(0),
            (IpAddr::V6(_), _) => Some(1),
        }
    }
}

fn choose_wanted(all: &[Interface], wanted: &str, wants: Wants) -> Result<SocketAddr, NicError> {
    let name = || wanted.to_owned();
    let available = || {
        let names: Vec<String> = all.iter().map(|known| format!("{}{}", known.name, addresses(known))).collect();
        names.join(", ")
    };
    if let Ok(ip) = wanted.parse::<IpAddr>() {
        let found = all.iter().flat_map(|known| &known.addrs).find(|addr| addr.ip() == ip);
        return found.copied().ok_or_else(|| NicError::NoSuchInterface { name: name(), available: available() });
    }
    let Some(interface) = all.iter().find(|known| known.name == wanted) else {
        return Err(NicError::NoSuchInterface { name: name(), available: available() });
    };
    let unusable = |problem| NicError::UnusableInterface { name: name(), problem, available: available() };
    if !interface.up {
        return Err(unusable("is down or has no carrier"));
    }
    best_addr(&interface.addrs, wants)
        .ok_or_else(|| unusable("has no address of the wanted kind, link-local ones aside"))
}

/// The addresses of an interface for messages: ` (10.0.0.1 fe80::1)`.
fn addresses(interface: &Interface) -> String {
    if interface.addrs.is_empty() {
        return String::new();
    }
    let list: Vec<String> = interface.addrs.iter().map(|addr| addr.ip().to_string()).collect();
    format!(" ({})", list.join(" "))
}

/// The source addresses of the default routes. The interface of a route may have no carrier.
fn default_routes() -> Vec<SocketAddr> {
    [SOMEWHERE_V4, SOMEWHERE_V6].into_iter().filter_map(source_towards).collect()
}

/// The interfaces that other hosts can use, each with its best address; the best interface is the first. `routed` are
/// the source addresses of default routes.
///
/// Interfaces that are down or without carrier are left out, although a default route may still lead there. Links to
/// one host, for example of a VPN, are the last: the peers of a job are rarely behind them. Among the others, the one
/// of the default route is the first, then devices of their own by their speed. Other bridges follow.
fn best_first<'a>(all: &'a [Interface], routed: &[SocketAddr], wants: Wants) -> Vec<(&'a Interface, SocketAddr)> {
    let mut found: Vec<_> = all
        .iter()
        .filter(|known| known.up)
        .filter_map(|known| {
            let has = |addr: &&SocketAddr| known.addrs.iter().any(|own| own.ip() == addr.ip());
            let sources: Vec<SocketAddr> = routed.iter().filter(has).copied().collect();
            let source = best_addr(&sources, wants);
            // A host that is reached by several interfaces may have its address on the loopback interface.
            let addr = source.or_else(|| best_addr(&known.addrs, wants).filter(|_| !known.loopback))?;
            Some((known, addr, source.and_then(|source| wants.rank(source.ip())).unwrap_or(u8::MAX)))
        })
        .collect();
    // The sort is stable: among equals the kernel's order decides.
    found.sort_by_key(|&(known, _, route)| {
        (known.point_to_point, route, known.bridge, std::cmp::Reverse((known.physical, known.speed_mbit)))
    });
    found.into_iter().map(|(known, addr, _)| (known, addr)).collect()
}

fn best_addr(addrs: &[SocketAddr], wants: Wants) -> Option<SocketAddr> {
    let ranked = addrs.iter().filter_map(|addr| Some((wants.rank(addr.ip())?, addr)));
    ranked.min_by_key(|&(rank, _)| rank).map(|(_, addr)| *addr)
}

/// The source address that the kernel would use towards `to`, with port 0. Nothing is sent.
fn source_towards(to: SocketAddr) -> Option<SocketAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let mut from = socket.local_addr().ok()?;
    from.set_port(0);
    (!from.ip().is_unspecified() && !from.ip().is_loopback()).then_some(from)
}

/// Checks that an endpoint can listen at an address: binds a listener there and closes it.
///
/// # Errors
/// The address cannot be bound. An interface may list such an address, for example an IPv6 address whose check for
/// duplicates has not ended.
pub fn try_listen(addr: SocketAddr) -> Result<(), NicError> {
    TcpListener::bind(addr).map(drop).map_err(|source| NicError::Listen { addr, source })
}

/// Whether the address belongs to this host, within this network namespace.
#[must_use]
pub fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback()
        || ip.is_unspecified()
        || interfaces().is_ok_and(|all| all.iter().flat_map(|known| &known.addrs).any(|addr| addr.ip() == ip))
}

/// A number that distinguishes hosts, and network namespaces of one host. Endpoints with equal numbers try shared
/// memory. Zero: unknown.
#[must_use]
pub fn host_id() -> u64 {
    let boot = fs::read("/proc/sys/kernel/random/boot_id");
    let namespace = fs::read_link("/proc/self/ns/net");
    let (Ok(boot), Ok(namespace)) = (boot, namespace) else { return 0 };
    let material = [&boot, namespace.as_os_str().as_encoded_bytes()].concat();
    let hash = blake3::derive_key("weft host identity 1", &material);
    hash.first_chunk().map_or(0, |id| u64::from_le_bytes(*id))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn interface(name: &str, up: bool, speed_mbit: Option<u32>, addrs: &[&str]) -> Interface {
        let addrs = addrs.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
        let (loopback, point_to_point, bridge) =
            (name == "lo", name.starts_with("tun"), name.starts_with("docker") || name.starts_with("br"));
        let physical = !point_to_point && !bridge;
        let (name, enabled, networks) = (name.to_owned(), up, Vec::new());
        Interface { name, addrs, up, enabled, networks, loopback, physical, point_to_point, bridge, speed_mbit }
    }

    #[test]
    fn the_loopback_interface_is_listed_and_local() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|known| known.loopback).unwrap();
        assert!(lo.addrs.iter().any(|addr| addr.ip().is_loopback()), "{lo:?}");
        assert!(all.iter().flat_map(|known| &known.addrs).all(|addr| is_local(addr.ip())));
        assert!(is_local("127.5.5.5".parse().unwrap()));
        assert!(!is_local(SOMEWHERE_V4.ip()));
        assert!(!is_local(SOMEWHERE_V6.ip()));
    }

    #[test]
    fn the_chosen_address_belongs_to_this_host() {
        for listen in [None, Some("0.0.0.0:4711"), Some("[::]:4711")] {
            let listen: Option<SocketAddr> = listen.map(|text| text.parse().unwrap());
            let addr = choose_address(None, listen).unwrap();
            assert!(is_local(addr.ip()) && !addr.ip().is_unspecified(), "{addr}");
            assert_eq!(addr.port(), listen.map_or(0, |listen| listen.port()));
        }
        let any4 = Some("0.0.0.0:0".parse().unwrap());
        assert_eq!(choose_address(Some("lo"), any4).unwrap(), "127.0.0.1:0".parse().unwrap());
        assert_eq!(choose_address(Some("127.0.0.1"), None).unwrap(), "127.0.0.1:0".parse().unwrap());
    }

    #[test]
    fn a_list_of_interfaces_gives_one_address_for_each() {
        let v4 = |text: &str| text.parse::<SocketAddr>().unwrap();
        // All of 127.0.0.0/8 is local, but only 127.0.0.1 is an address of the interface.
        assert_eq!(choose_address(Some("lo,nonesuch0"), None).unwrap().ip(), v4("127.0.0.1:0").ip());
        let first = v4("127.0.0.1:7");
        for list in ["lo", "127.0.0.1", "lo,127.0.0.1", " lo , ", "lo,lo"] {
            assert_eq!(choose_addresses(Some(list), first).unwrap(), [first], "{list}");
        }
        assert_eq!(choose_addresses(None, first).unwrap(), [first]);
        let text = choose_addresses(Some("lo,nonesuch0"), first).unwrap_err().to_string();
        assert!(text.contains("nonesuch0"), "{text}");
        // The client has chosen another address.
        assert_eq!(choose_addresses(Some("lo,nonesuch0"), v4("192.0.2.1:7")).unwrap(), [v4("192.0.2.1:7")]);
    }

    #[test]
    fn fast_interfaces_get_several_connections() {
        let speeds = [0, 1000, 10_000, 25_000, 40_000, 100_000, 400_000].map(streams_by_speed);
        assert_eq!(speeds, [1, 1, 1, 2, 2, 4, 4]);
        assert!(streams_for(&["127.0.0.1:0", "127.0.0.2:0"].map(|text| text.parse().unwrap())) >= 2);
    }

    #[test]
    fn an_explicit_address_is_taken_as_it_is() {
        let wanted = "192.0.2.7:4711".parse().unwrap();
        assert_eq!(choose_address(Some("lo"), Some(wanted)).unwrap(), wanted);
    }

    #[test]
    fn an_address_that_cannot_be_bound_is_refused() {
        try_listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let text = try_listen(SOMEWHERE_V4).unwrap_err().to_string();
        assert!(text.contains("192.0.2.1") && text.contains("FI_WEFT_IFACE"), "{text}");
    }

    #[test]
    fn a_wrong_interface_is_named_with_those_that_exist() {
        let text = choose_address(Some("nonesuch0"), None).unwrap_err().to_string();
        assert!(
            text.contains("nonesuch0") && text.contains("lo (127.0.0.1") && text.contains("FI_WEFT_IFACE"),
            "{text}"
        );
        let text = choose_address(Some("192.0.2.1"), None).unwrap_err().to_string();
        assert!(text.contains("192.0.2.1") && text.contains("lo (127.0.0.1"), "{text}");
        let down = [interface("eth0", false, None, &["10.0.0.1"])];
        let text = choose_wanted(&down, "eth0", Wants::V4First).unwrap_err().to_string();
        assert!(text.contains("is down"), "{text}");
        let v6 = [interface("eth0", true, None, &["2001:db8::7"])];
        let text = choose_wanted(&v6, "eth0", Wants::OnlyV4).unwrap_err().to_string();
        assert!(text.contains("no address"), "{text}");
    }

    #[test]
    fn routable_addresses_are_preferred() {
        let addrs = interface("eth0", true, None, &["fe80::1", "2001:db8::7", "10.0.0.1"]).addrs;
        assert_eq!(best_addr(&addrs, Wants::V4First).unwrap().ip().to_string(), "10.0.0.1");
        assert_eq!(best_addr(&addrs, Wants::V6First).unwrap().ip().to_string(), "2001:db8::7");
        assert_eq!(best_addr(&addrs[..1], Wants::V6First), None);
        assert_eq!(best_addr(&addrs[..2], Wants::OnlyV4), None);
    }

    /// The names of the interfaces, the best one first.
    fn order(all: &[Interface], routed: &[&str], wants: Wants) -> Vec<String> {
        let routed: Vec<SocketAddr> = routed.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
        best_first(all, &routed, wants)
            .into_iter()
            .map(|(known, addr)| format!("{} {}", known.name, addr.ip()))
            .collect()
    }

    #[test]
    fn interfaces_without_carrier_are_left_out_and_tunnels_are_last() {
        let eth = |name: &str, up, ip: &str| interface(name, up, Some(1000), &[ip]);
        let mut all = vec![
            interface("lo", true, None, &["127.0.0.1"]),
            eth("eth0", false, "10.0.0.1"),
            eth("tun0", true, "10.8.0.1"),
            interface("eth1", true, Some(1000), &["10.1.0.1", "2001:db8::7"]),
            interface("eth2", true, Some(25_000), &["10.2.0.1"]),
        ];
        all.extend((0..20).map(|n| eth(&format!("docker{n}"), false, &format!("172.17.{n}.1"))));
        // The default route leads to a card without a cable, and to a tunnel.
        for routed in [&["10.0.0.1"] as &[&str], &["10.8.0.1"], &[]] {
            let expected = ["eth2 10.2.0.1", "eth1 10.1.0.1", "tun0 10.8.0.1"];
            assert_eq!(order(&all, routed, Wants::V4First), expected, "{routed:?}");
        }
        // A route of the wanted family counts.
        assert_eq!(order(&all, &["10.1.0.1", "2001:db8::7"], Wants::V4First)[0], "eth1 10.1.0.1");
        assert_eq!(order(&all, &["10.0.0.1", "2001:db8::7"], Wants::V4First)[0], "eth1 2001:db8::7");
        assert_eq!(order(&all, &["10.0.0.1", "2001:db8::7"], Wants::OnlyV4)[0], "eth2 10.2.0.1");
        // A tunnel is better than nothing.
        assert_eq!(order(&all[..3], &["10.0.0.1"], Wants::OnlyV4), ["tun0 10.8.0.1"]);
        assert_eq!(order(&all[..2], &["10.0.0.1"], Wants::OnlyV4), [""; 0]);
        // The host's address is on the loopback interface, and its routes lead over several others.
        all[0].addrs.push("192.0.2.1:0".parse().unwrap());
        assert_eq!(order(&all, &["192.0.2.1"], Wants::V4First)[0], "lo 192.0.2.1");
    }

    #[test]
    fn bridges_follow_other_interfaces_unless_the_default_route_is_theirs() {
        let all = [
            interface("docker0", true, None, &["172.17.0.1"]),
            Interface { physical: false, ..interface("eth0", true, None, &["10.0.0.1"]) },
        ];
        assert_eq!(order(&all, &[], Wants::V4First)[0], "eth0 10.0.0.1");
        assert_eq!(order(&all, &["172.17.0.1"], Wants::V4First)[0], "docker0 172.17.0.1");
    }

    #[test]
    fn the_choice_is_described_with_reasons() {
        let mut all = vec![
            interface("lo", true, None, &["127.0.0.1"]),
            interface("eth0", true, None, &["10.0.0.1"]),
            interface("eth1", true, None, &["10.1.0.1"]),
            Interface { enabled: true, ..interface("eth2", false, None, &["10.2.0.1"]) },
            interface("tun0", true, None, &["10.8.0.1"]),
        ];
        all.extend((0..20).map(|n| interface(&format!("docker{n}"), true, None, &[&format!("172.17.{n}.1")])));
        let chosen = ["10.0.0.1:7".parse().unwrap()];
        assert_eq!(
            describe_choice(&all, &chosen, Some("10.1.0.1".parse().unwrap())),
            "eth0 (10.0.0.1) (first), eth1 (10.1.0.1) (second); left out: eth2 (has no carrier), tun0 (leads to one \
             host, as of a VPN), docker0, docker1, docker2 and 17 more (is a bridge: other hosts may have its address)"
        );
        assert_eq!(describe_choice(&all[..2], &chosen, None), "eth0 (10.0.0.1) (first)");
    }

    #[test]
    fn of_two_addresses_the_one_in_a_network_of_this_host_is_dialled_first() {
        let network = |own: &str, mask: &str| {
            let addr = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
            Network::new(addr(own), Some(addr(mask)))
        };
        let ours = Networks(vec![network("172.17.0.1", "255.255.0.0"), network("10.77.0.1", "255.255.255.0")]);
        let prefers = |first: &str, second: &str| ours.prefer_second(first.parse().unwrap(), second.parse().unwrap());
        // The first address is this host's own, or behind a gateway.
        assert!(prefers("172.17.0.1", "10.77.0.2"));
        assert!(prefers("172.17.0.1", "192.0.2.7"));
        assert!(prefers("10.88.0.2", "10.77.0.2"));
        assert!(!prefers("10.77.0.2", "172.17.0.2"));
        assert!(!prefers("10.88.0.2", "10.99.0.2"));
        let v6 = network("2001:db8::1", "ffff:ffff:ffff:ffff::");
        assert!(v6.contains("2001:db8::7".parse().unwrap()) && !v6.contains("2001:db9::1".parse().unwrap()));
    }

    #[test]
    fn a_client_that_chose_one_address_gets_no_second() {
        let (first, any) = ("10.0.0.1:0".parse().unwrap(), Some("0.0.0.0:7".parse().unwrap()));
        assert_eq!(second_address(None, Some(first), first), None);
        assert_eq!(second_address(Some("eth0"), any, first), None);
        assert_eq!(second_address(None, None, "127.0.0.1:0".parse().unwrap()), None);
        assert_eq!(second_address(None, None, "[2001:db8::7]:0".parse().unwrap()), None);
        assert_eq!(second_address(Some("eth0,lo"), any, first), None, "other hosts cannot use loopback");
    }

    #[test]
    fn the_identity_is_stable() {
        assert_eq!(host_id(), host_id());
        assert_ne!(host_id(), 0);
    }
}
