//! The path to another host: the route and its interface, the firewalls on both sides, and the rate of one connection.
//!
//! Place in the data flow: `weft doctor --to`, towards a host that runs `weft bench serve`. The checks follow what
//! weft's endpoints do: they announce the address of one or two interfaces, listen at ports that the kernel chooses,
//! and connect in either direction.

use std::net::{IpAddr, SocketAddr};

use weft_fi::params::Params;
use weft_nic::host::{self, Interface};

use super::Finding;
use crate::bench::flows::{Blocked, Path};
use crate::bench::remote::Control;

/// Connections whose rate is compared with that of one.
const SEVERAL: u8 = 4;
/// The gain by several connections from which on they are worth it.
const GAIN: f64 = 1.5;

/// Examines the path to a host.
pub(super) fn examine(to: &str, params: &Params) -> Vec<Finding> {
    let control = match Control::connect(to) {
        Ok(control) => control,
        Err(message) => {
            let (detail, remedy) = message.split_once("; ").unwrap_or((&message, "check the name and the network"));
            return vec![Finding::bad(format!("path to {to}"), detail, remedy)];
        }
    };
    let [here, there] = match control.ends() {
        Ok(ends) => ends.map(|end| SocketAddr::new(end.ip().to_canonical(), end.port())),
        Err(error) => return vec![Finding::bad(format!("path to {to}"), error.to_string(), "try again")],
    };
    let other = &control.welcome.host;
    let mut findings = vec![route(here.ip(), there.ip(), params)];
    let path = Path::over(&control);
    match path.rate(1) {
        Ok(one) => {
            findings
                .push(Finding::good(format!("ports of {other}"), "connections to ports that the kernel chose pass"));
            findings.push(back(&path, other));
            // The better of two rounds: other programs disturb single ones.
            let again = || Ok((path.rate(SEVERAL)?, path.rate(1)?, path.rate(SEVERAL)?));
            findings.push(match again() {
                Ok((several, second, more)) => rate(one.max(second), several.max(more), params.tcp_streams),
                Err(blocked) => Finding::note("rate", format!("not measured: {}", describe(&blocked))),
            });
        }
        Err(blocked) => {
            findings.push(closed(&format!("ports of {other}"), &blocked, there.ip(), here.ip()));
            findings.push(back(&path, other));
        }
    }
    findings
}

fn describe(blocked: &Blocked) -> String {
    match blocked {
        Blocked::Port(port, error) => format!("port {port}: {error}"),
        Blocked::Server(why) => why.clone(),
    }
}

/// A direction in which connections do not pass.
fn closed(what: &str, blocked: &Blocked, listener: IpAddr, caller: IpAddr) -> Finding {
    match blocked {
        Blocked::Port(port, error) => Finding::bad(
            what,
            format!("a connection from {caller} to port {port} of {listener} fails: {error}"),
            format!(
                "let the firewall of {listener} accept TCP from {caller} at the ports of net.ipv4.ip_local_port_range"
            ),
        ),
        Blocked::Server(why) => Finding::note(what, format!("not examined: {why}")),
    }
}

/// The way back: peers there connect to this host.
fn back(path: &Path<'_>, other: &str) -> Finding {
    let what = "ports of this host";
    match path.is_called_back() {
        Ok(()) => Finding::good(what, format!("{other} connects to ports that the kernel chose")),
        Err(Blocked::Port(port, error)) => Finding::degraded(
            what,
            format!("{other} cannot connect to port {port} of this host: {error}"),
            "let the firewall of this host accept TCP from that host at the ports of net.ipv4.ip_local_port_range",
        ),
        Err(Blocked::Server(why)) => Finding::note(what, format!("not examined: {why}")),
    }
}

/// The interface of the kernel's route, and whether weft announces its address.
fn route(here: IpAddr, there: IpAddr, params: &Params) -> Finding {
    let all = host::interfaces().unwrap_or_default();
    let on = all.iter().find(|known| known.addrs.iter().any(|addr| addr.ip() == here));
    let shown = format!("{here}{} → {there}", on.map_or_else(String::new, |known| format!(" ({})", interface(known))));
    let iface = params.iface.as_deref();
    let Ok(first) = host::choose_address(iface, None) else {
        return Finding::note("route", format!("{shown}; weft's own address is not known"));
    };
    let announced = [Some(first.ip()), host::second_address(iface, None, first).map(IpAddr::V4)];
    if announced.contains(&Some(here)) || here.is_loopback() {
        return Finding::good("route", shown);
    }
    let name = on.map_or_else(|| here.to_string(), |known| known.name.clone());
    Finding::degraded(
        "route",
        format!("{shown}, but weft's endpoints announce {}", first.ip()),
        format!("if the ranks run on such hosts, set FI_WEFT_IFACE={name}"),
    )
}

/// An interface for messages.
fn interface(known: &Interface) -> String {
    let speed = known.speed_mbit.map_or_else(|| "speed not reported".to_owned(), |mbit| format!("{mbit} Mbit/s"));
    let kind = if known.point_to_point { ", a link to one host such as a VPN" } else { "" };
    format!("{}, {speed}{kind}", known.name)
}

/// The rates of one connection and of several, in Mbit/s. `streams`: the number of connections that weft is told to
/// use. `None`: it finds the number by itself.
fn rate(one: f64, several: f64, streams: Option<usize>) -> Finding {
    let detail = format!("one connection carries {one:.0} Mbit/s, {SEVERAL} carry {several:.0} Mbit/s");
    match streams {
        _ if several < GAIN * one => Finding::good("rate", detail),
        None => Finding::good("rate", format!("{detail}: each is limited, and weft makes more for long messages")),
        Some(1) => Finding::degraded(
            "rate",
            detail,
            "unset FI_WEFT_TCP_STREAMS=1: weft then makes more connections for long messages while they carry more",
        ),
        Some(_) => Finding::good("rate", detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    #[test]
    fn a_limit_of_each_connection_is_named() {
        assert_eq!(rate(100.0, 390.0, Some(1)).state, Outcome::Degraded);
        assert_eq!(rate(100.0, 390.0, Some(4)).state, Outcome::Good);
        assert_eq!(rate(9_000.0, 9_400.0, Some(1)).state, Outcome::Good);
        let found = rate(100.0, 390.0, None);
        assert!(found.state == Outcome::Good && found.detail.contains("makes more"), "{found:?}");
    }

    #[test]
    fn a_host_without_a_server_is_named_with_a_remedy() {
        let found = examine("127.0.0.1:1", &Params::default());
        assert_eq!(found[0].state, Outcome::Bad);
        assert!(found[0].remedy.contains("weft bench serve"), "{found:?}");
    }
}
