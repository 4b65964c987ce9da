//! The processes behind peers' names: process id, rank and host, where they are known.
//!
//! Place in the data flow: a peer is known by address, port and endpoint id. The same words name the endpoint on the
//! published page of its process, if that process runs on this machine and may be inspected. For other peers only the
//! host is known, by its address or by its name in `/etc/hosts`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use weft_observe::layout::{Endpoint, Peer};

use super::find::Process;

/// A process that has an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) pid: u32,
    pub(super) rank: Option<u64>,
    pub(super) host: String,
}

/// The known endpoints and hosts.
#[derive(Debug, Default)]
pub(super) struct Names {
    endpoints: HashMap<[u64; 4], Known>,
    hosts: HashMap<IpAddr, String>,
}

impl Names {
    /// The endpoints of these processes, and the hosts of `/etc/hosts`.
    pub(super) fn of<'a>(processes: impl Iterator<Item = &'a Process>) -> Self {
        let mut endpoints = HashMap::new();
        for process in processes {
            let known = Known { pid: process.pid, rank: process.rank, host: process.host.clone() };
            for published in &process.endpoints {
                let Endpoint { ip_high, ip_low, port, id, .. } = published.endpoint;
                endpoints.insert([ip_high, ip_low, port, id], known.clone());
                // Before the handshake a peer may be known without its endpoint id.
                endpoints.insert([ip_high, ip_low, port, 0], known.clone());
            }
        }
        Self { endpoints, hosts: hosts(&std::fs::read_to_string("/etc/hosts").unwrap_or_default()) }
    }

    /// The process of a peer.
    pub(super) fn process(&self, peer: &Peer) -> Option<&Known> {
        self.endpoints.get(&[peer.ip_high, peer.ip_low, peer.port, peer.id])
    }

    /// The host of a peer: its name, or else its address.
    pub(super) fn host(&self, peer: &Peer) -> String {
        if let Some(known) = self.process(peer).filter(|known| !known.host.is_empty()) {
            return known.host.clone();
        }
        let ip = Ipv6Addr::from(u128::from(peer.ip_high) << 64 | u128::from(peer.ip_low)).to_canonical();
        self.hosts.get(&ip).cloned().unwrap_or_else(|| ip.to_string())
    }

    /// The shortest name of a peer that users know: the rank, the process id, or else address, port and id.
    pub(super) fn label(&self, peer: &Peer) -> String {
        match self.process(peer) {
            Some(Known { rank: Some(rank), .. }) => format!("rank {rank}"),
            Some(Known { pid, .. }) => format!("pid {pid}"),
            None => peer.name(),
        }
    }

    /// All that is known of a peer: `rank 1, pid 4711, node1`. An address is not repeated as the host.
    pub(super) fn full_label(&self, peer: &Peer) -> String {
        let (known, host) = (self.process(peer), self.host(peer));
        let mut label = match known {
            Some(Known { pid, rank: Some(rank), .. }) => format!("rank {rank}, pid {pid}"),
            _ => self.label(peer),
        };
        if host.parse::<IpAddr>().is_err() {
            label += ", ";
            label += &host;
        }
        label
    }
}

/// The first name of each address, except those of loopback, which every host has.
fn hosts(text: &str) -> HashMap<IpAddr, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let entries = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let ip: IpAddr = words.next()?.parse().ok()?;
        (!ip.is_loopback()).then_some((ip, words.next()?.to_owned()))
    });
    // The first line of an address wins, as for the resolver.
    entries.fold(HashMap::new(), |mut hosts, (ip, name)| {
        hosts.entry(ip).or_insert(name);
        hosts
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::find::{Process, Published};
    use super::*;

    fn peer(last: u64, port: u64, id: u64) -> Peer {
        Peer { ip_low: 0xffff_0a00_0000 | last, port, id, ..Peer::default() }
    }

    #[test]
    fn peers_are_named_by_rank_process_or_address() {
        let endpoint = |port| Endpoint { ip_low: 0xffff_0a00_0007, port, id: 5, ..Endpoint::default() };
        let process = |pid, rank, port| Process {
            pid,
            rank,
            host: "node1".to_owned(),
            endpoints: vec![Published { endpoint: endpoint(port), ..Published::default() }],
            ..Process::default()
        };
        let processes = [process(10, Some(3), 1), process(11, None, 2)];
        let mut names = Names::of(processes.iter());
        names.hosts = hosts("127.0.0.1 localhost\n10.0.0.9 far # 10.0.0.8 no\n10.0.0.9 other\n");
        assert_eq!(names.label(&peer(7, 1, 5)), "rank 3");
        assert_eq!(names.full_label(&peer(7, 1, 0)), "rank 3, pid 10, node1");
        assert_eq!(names.label(&peer(7, 2, 5)), "pid 11");
        assert_eq!(names.label(&peer(7, 2, 6)), "10.0.0.7:2/00000000");
        assert_eq!(names.host(&peer(9, 1, 1)), "far");
        assert_eq!(names.host(&peer(8, 1, 1)), "10.0.0.8");
        assert_eq!(names.hosts.len(), 1);
    }
}
