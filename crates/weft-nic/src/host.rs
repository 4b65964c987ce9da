//! What this host is and at which address it is reached.
//!
//! Place in the data flow: asked once when an endpoint is opened (`Devices::new`), when a service name is met, and
//! by diagnosing commands.
//!
//! Sources: getifaddrs(3), `/proc/sys/kernel/random/boot_id`, network_namespaces(7).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use nix::net::if_::InterfaceFlags;

use crate::NicError;

/// A network interface, with one entry per name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its addresses (the port is 0; IPv6 link-local ones carry their scope).
    pub addrs: Vec<SocketAddr>,
    /// Administratively up and running.
    pub up: bool,
    /// A loopback interface.
    pub loopback: bool,
}

/// The interfaces of this network namespace, in the system's order.
///
/// # Errors
/// The system's, if it does not list them.
pub fn interfaces() -> std::io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in nix::ifaddrs::getifaddrs()? {
        let at = found.iter().position(|i| i.name == entry.interface_name).unwrap_or_else(|| {
            found.push(Interface {
                name: entry.interface_name.clone(),
                addrs: Vec::new(),
                up: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            });
            found.len() - 1
        });
        let addr = entry.address.as_ref().and_then(|a| {
            a.as_sockaddr_in().map(|v4| SocketAddr::new(IpAddr::V4(v4.ip()), 0)).or_else(|| {
                a.as_sockaddr_in6().map(|v6| SocketAddr::V6(SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id())))
            })
        });
        found[at].addrs.extend(addr);
    }
    Ok(found)
}

/// Whether the address is one of this host's own (in this network namespace).
#[must_use]
pub fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback()
        || ip.is_unspecified()
        || interfaces().is_ok_and(|all| all.iter().flat_map(|i| &i.addrs).any(|addr| addr.ip() == ip))
}

/// The address to put into an endpoint's name: `listen` if it names one; else of interface `iface`; else the one that the
/// default route would send from; else of the first interface that is up; else loopback.
///
/// # Errors
/// `NoSuchInterface`, `UnusableInterface`.
pub fn choose_address(iface: Option<&str>, listen: Option<SocketAddr>) -> Result<SocketAddr, NicError> {
    let port = listen.map_or(0, |socket| socket.port());
    if let Some(socket) = listen.filter(|socket| !socket.ip().is_unspecified()) {
        return Ok(socket);
    }
    let wants_v6 = listen.is_some_and(|socket| socket.is_ipv6());
    let mut chosen = match iface {
        Some(name) => address_of(name)?,
        None => routed_address(wants_v6),
    };
    chosen.set_port(port);
    Ok(chosen)
}

fn address_of(name: &str) -> Result<SocketAddr, NicError> {
    let all = interfaces().map_err(NicError::system("getifaddrs"))?;
    let available = || all.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
    let Some(interface) = all.iter().find(|i| i.name == name) else {
        return Err(NicError::NoSuchInterface { name: name.to_owned(), available: available() });
    };
    let unusable = |problem| NicError::UnusableInterface { name: name.to_owned(), problem, available: available() };
    if !interface.up {
        return Err(unusable("is down"));
    }
    best_address(&interface.addrs).ok_or_else(|| unusable("has no IP address beyond link-local ones"))
}

/// IPv4 before IPv6. No link-local address: a peer would have to know over which of its own interfaces to reach it.
fn best_address(addrs: &[SocketAddr]) -> Option<SocketAddr> {
    let link_local = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    addrs.iter().filter(|addr| !link_local(addr.ip())).min_by_key(|addr| addr.is_ipv6()).copied()
}

/// Documentation addresses (RFC 5737, RFC 3849): routed like any other; connecting a datagram socket sends nothing.
const SOMEWHERE_V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
const SOMEWHERE_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9);

fn routed_address(wants_v6: bool) -> SocketAddr {
    let families = if wants_v6 { [SOMEWHERE_V6, SOMEWHERE_V4] } else { [SOMEWHERE_V4, SOMEWHERE_V6] };
    let routed = families.into_iter().find_map(|to| {
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().filter(|addr| !addr.ip().is_unspecified())
    });
    routed
        .or_else(|| {
            let all = interfaces().ok()?;
            all.iter().filter(|i| i.up && !i.loopback).find_map(|i| best_address(&i.addrs))
        })
        .unwrap_or_else(|| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))
}

/// Tells hosts apart, and network namespaces of one host: equal numbers mean that shared memory is worth trying. 0: cannot tell.
#[must_use]
pub fn host_id() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/net");
    let (Ok(boot), Ok(namespace)) = (boot, namespace) else { return 0 };
    let mut hasher = blake3::Hasher::new();
    hasher.update(&boot);
    hasher.update(namespace.as_os_str().as_encoded_bytes());
    let mut id = [0; 8];
    hasher.finalize_xof().fill(&mut id);
    u64::from_le_bytes(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_a_documentation_address_is_not() {
        assert!(is_local(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_local(SOMEWHERE_V4.ip()));
        assert!(interfaces().is_ok_and(|all| all.iter().any(|i| i.loopback)));
    }

    #[test]
    fn an_unknown_interface_is_named_with_those_that_exist() {
        let error = choose_address(Some("nonesuch0"), None).expect_err("no such interface");
        let text = error.to_string();
        assert!(text.contains("nonesuch0") && text.contains("lo"), "{text}");
    }

    #[test]
    fn an_explicit_address_is_taken_as_it_is() {
        let wanted: SocketAddr = "127.0.0.1:4711".parse().expect("an address");
        assert!(choose_address(None, Some(wanted)).is_ok_and(|got| got == wanted));
        let any: SocketAddr = "0.0.0.0:4711".parse().expect("an address");
        assert!(choose_address(None, Some(any)).is_ok_and(|got| got.port() == 4711 && !got.ip().is_unspecified()));
    }

    #[test]
    fn the_host_id_is_stable() {
        assert_eq!(host_id(), host_id());
        assert_ne!(host_id(), 0);
    }
}
