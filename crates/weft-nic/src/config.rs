//! Settings of an endpoint's devices.
//!
//! Place in the data flow: the code that opens an endpoint fills in a [`Config`]. [`crate::Devices`] derives the
//! settings of each device from it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use weft_os::Checker;

use crate::NicError;
use crate::handshake;
use crate::host;
use crate::shm::ShmConfig;
use crate::tcp::{TcpConfig, Unsent};

/// Settings of an endpoint's devices. The defaults suit most endpoints.
#[derive(Clone, Debug)]
pub struct Config {
    /// Use shared memory within the host.
    pub shm: bool,
    /// Use TCP.
    pub tcp: bool,
    /// Move long messages within the host by cross-memory attach where the system allows it.
    pub cma: bool,
    /// Name or address of the interface for incoming connections, or a list of them, separated by commas. The first two
    /// are those of the endpoint's name; long messages use all. `None`: the best two ([`host::choose_address`]), of
    /// which the second serves peers that cannot reach the first.
    pub iface: Option<String>,
    /// The number of TCP connections for the long messages of a link. `None`: one for each interface, and more for fast
    /// interfaces or if they are measured to carry more, but only to other hosts.
    pub streams: Option<usize>,
    /// The address to listen at: an explicit service, or an address with port 0 for any port; `[::]:0` prefers IPv6.
    pub listen: Option<SocketAddr>,
    /// Accept peers that know only the address and port.
    pub open: bool,
    /// The identity within the name. A context of a scalable endpoint sets it. `None`: a fresh identity.
    pub identity: Option<Identity>,
    /// The socket in the name, if it differs from the listener's. A context that peers never call has its endpoint's
    /// socket.
    pub named_socket: Option<SocketAddr>,
    /// An optional secret of any length, which both sides must share.
    pub job_key: Option<Vec<u8>>,
    /// Encrypt TCP. Both sides must have the same setting.
    pub encrypt: bool,
    /// The traffic class byte of TCP's packets (RFC 2474).
    pub traffic_class: u8,
    /// Time limit in milliseconds for making a connection and, with a service name, for each answer.
    pub connect_timeout_ms: u64,
    /// Time in milliseconds during which a refused connection is tried again.
    pub connect_retry_ms: u64,
    /// Time limit in milliseconds for an answer from an endpoint whose complete name is known, and whose host has
    /// accepted the connection. The endpoint may be busy computing.
    pub answer_timeout_ms: u64,
    /// Time in milliseconds after which a host that acknowledges nothing is considered dead. 0: the kernel's own
    /// limits.
    pub dead_peer_ms: u64,
    /// Time in milliseconds during which a broken TCP connection is dialled again. 0: the link ends at once.
    pub resume_ms: u64,
    /// The executor of barriers between hosts.
    pub uring: Uring,
    /// Observe unmapping ([`UnmapWatch`](weft_os::UnmapWatch)) if a device demands registration.
    pub observe_unmap: bool,
    /// Longest eager payload in bytes over shared memory. `None`: the device's choice.
    pub shm_eager_bytes: Option<usize>,
    /// Longest eager payload in bytes over TCP. `None`: the device's choice.
    pub tcp_eager_bytes: Option<usize>,
    /// Called when the device first defers a message in order to send it with others ([`Unsent`]). Returns whether a
    /// thread will write it.
    pub on_unsent: Option<fn() -> bool>,
    /// Added to the versions of both devices' protocols, for tests of different versions.
    #[doc(hidden)]
    pub later_version: u8,
}

/// The executor of barriers between hosts, on connections of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uring {
    /// There are no such connections. Barriers are messages.
    No,
    /// The system, by io_uring. If it refuses, barriers are messages.
    Yes,
    /// Polls of the device. The other members may have either executor.
    Polled,
}

/// The part of an endpoint's name that does not depend on its address.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The capability, from which the endpoint id follows.
    pub capability: [u8; 16],
    /// The index of the context (weft-engine, `name`).
    pub context: Option<u8>,
}

impl Identity {
    /// A random identity.
    ///
    /// # Errors
    /// The operating system provides no randomness.
    pub fn random() -> Result<Self, NicError> {
        Ok(Self { capability: handshake::random().map_err(|_| NicError::Entropy)?, context: None })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shm: true,
            tcp: true,
            cma: true,
            later_version: 0,
            uring: Uring::No,
            observe_unmap: true,
            iface: None,
            streams: None,
            listen: None,
            open: false,
            identity: None,
            named_socket: None,
            job_key: None,
            encrypt: false,
            traffic_class: 0,
            connect_timeout_ms: 10_000,
            connect_retry_ms: 1000,
            answer_timeout_ms: 3_600_000,
            dead_peer_ms: 30_000,
            resume_ms: 10_000,
            shm_eager_bytes: None,
            tcp_eager_bytes: None,
            on_unsent: None,
        }
    }
}

/// Properties of TCP that depend on the host. They are found out before the device is made, since that takes stack.
pub(crate) struct Extras {
    /// Connections for long messages.
    pub(crate) streams: usize,
    /// The second address in the name.
    pub(crate) second: Option<Ipv4Addr>,
    /// The networks of this host.
    pub(crate) networks: host::Networks,
    /// The executor of barriers between hosts.
    pub(crate) uring: Uring,
}

impl Config {
    /// The job key, derived to the length that the handshakes use.
    fn job_key_bytes(&self) -> Option<[u8; 32]> {
        self.job_key.as_ref().map(|key| blake3::derive_key("weft job key 1", key))
    }

    /// The number of connections for long messages.
    pub(crate) fn tcp_streams(&self, addrs: &[SocketAddr]) -> usize {
        self.streams.unwrap_or_else(|| host::streams_for(addrs))
    }

    /// `addrs`: the addresses of the interfaces, the first of which is in the name.
    #[inline(never)] // The result, before it is boxed, is on the stack.
    pub(crate) fn tcp_config(&self, addrs: Vec<SocketAddr>, extras: Extras) -> Box<TcpConfig> {
        let defaults = TcpConfig::default();
        let mut bind = self.listen.or(addrs.first().copied());
        let mut admitted: Vec<IpAddr> = addrs.iter().map(SocketAddr::ip).chain(extras.second.map(IpAddr::V4)).collect();
        if admitted.len() > 1 && bind.is_some_and(|bind| !bind.ip().is_unspecified()) {
            // One listener serves all addresses.
            bind.iter_mut().for_each(|bind| bind.set_ip(host::any_address(bind.ip())));
        } else {
            admitted.clear();
        }
        Box::new(TcpConfig {
            endpoint: Arc::new(self.clone()),
            bind,
            streams: extras.streams,
            grows: self.streams.is_none(),
            streams_within_host: self.streams.is_some(),
            addrs,
            admitted,
            job_key: self.job_key_bytes(),
            eager_bytes: self.tcp_eager_bytes.unwrap_or(defaults.eager_bytes),
            networks: extras.networks,
            uring: extras.uring,
            unsent: self.on_unsent.map(|call| Arc::new(Unsent::new(call))),
            version: defaults.version + self.later_version,
            ..defaults
        })
    }

    pub(crate) fn shm_config(&self, service: Option<u16>) -> ShmConfig {
        let defaults = ShmConfig::default();
        ShmConfig {
            service,
            cma: self.cma && Checker::found().is_none(),
            connect_timeout_ms: self.connect_timeout_ms,
            // A computing peer answers over neither device, so both devices use the same limit.
            answer_timeout_ms: self.answer_timeout_ms.max(self.connect_timeout_ms),
            eager_bytes: self.shm_eager_bytes,
            job_key: self.job_key_bytes().unwrap_or_default(),
            version: defaults.version + u32::from(self.later_version),
            ..defaults
        }
    }
}
