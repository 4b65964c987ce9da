//! Settings of an endpoint's devices.
//!
//! Place in the data flow: whoever opens an endpoint fills in a [`Config`]; [`crate::Devices`] makes of it
//! what either device wants to know.

use std::net::SocketAddr;
use std::sync::Arc;
use weft_os::Checker;

use crate::NicError;
use crate::handshake;
use crate::shm::ShmConfig;
use crate::tcp::{TcpConfig, Unsent};

/// Settings of an endpoint's devices. Every default is right for somebody who sets nothing.
#[derive(Clone, Debug)]
pub struct Config {
    /// Use shared memory within the host.
    pub shm: bool,
    /// Use TCP.
    pub tcp: bool,
    /// Move long messages within the host by cross-memory attach where the system allows it.
    pub cma: bool,
    /// Name or address of the interface to be reached at. `None`: that of the default route.
    pub iface: Option<String>,
    /// Where to listen: an explicit service, or an address with port 0 for any; `[::]:0` prefers IPv6.
    pub listen: Option<SocketAddr>,
    /// Whoever knows only address and port may connect too.
    pub open: bool,
    /// The name to have, but for where it listens: that of a context of a scalable endpoint. `None`: a fresh one.
    pub identity: Option<Identity>,
    /// What the name says of where it listens, if not that: a context that nobody calls has the socket of its endpoint.
    pub named_socket: Option<SocketAddr>,
    /// A secret of any length that both sides must share, if set.
    pub job_key: Option<Vec<u8>>,
    /// Encrypt TCP; the same on both sides.
    pub encrypt: bool,
    /// The traffic class byte of TCP's packets (RFC 2474).
    pub traffic_class: u8,
    /// Longest time in milliseconds for a connection to be made and, with a service name, for each answer.
    pub connect_timeout_ms: u64,
    /// For so many milliseconds a refused connection is tried again.
    pub connect_retry_ms: u64,
    /// Longest time in milliseconds for an endpoint to answer at whose complete name somebody listens: it may
    /// be computing.
    pub answer_timeout_ms: u64,
    /// A host that acknowledges nothing for so many milliseconds is given up. 0: the kernel's own limits.
    pub dead_peer_ms: u64,
    /// For so many milliseconds a peer whose TCP connection broke is called again. 0: not at all.
    pub resume_ms: u64,
    /// Observe unmapping ([`UnmapWatch`](weft_os::UnmapWatch)), where a device demands registration.
    pub observe_unmap: bool,
    /// Longest eager payload in bytes by shared memory. `None`: the device's choice.
    pub shm_eager_bytes: Option<usize>,
    /// Longest eager payload in bytes by TCP. `None`: the device's choice.
    pub tcp_eager_bytes: Option<usize>,
    /// Called when the first message is kept to leave together with others ([`Unsent`]). Returns whether a
    /// thread will write it.
    pub on_unsent: Option<fn() -> bool>,
}

/// What makes an endpoint's name, apart from where it is reached.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The capability, from which the endpoint id follows.
    pub capability: [u8; 16],
    /// The index of the context (weft-engine, `name`).
    pub context: Option<u8>,
}

impl Identity {
    /// A fresh one.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn random() -> Result<Self, NicError> {
        Ok(Self { capability: handshake::random().map_err(|_| NicError::Entropy)?, context: None })
    }
}

impl Default for Config {
    fn default() -> Self {
        let tcp = TcpConfig::default();
        Self {
            shm: true,
            tcp: true,
            cma: true,
            observe_unmap: true,
            iface: None,
            listen: None,
            open: false,
            identity: None,
            named_socket: None,
            job_key: None,
            encrypt: tcp.encrypt,
            traffic_class: tcp.traffic_class,
            connect_timeout_ms: tcp.connect_timeout_ms,
            connect_retry_ms: tcp.connect_retry_ms,
            answer_timeout_ms: 3_600_000,
            dead_peer_ms: tcp.dead_peer_ms,
            resume_ms: tcp.resume_ms,
            shm_eager_bytes: None,
            tcp_eager_bytes: None,
            on_unsent: None,
        }
    }
}

impl Config {
    /// The job key at the length that the handshakes want.
    fn job_key_bytes(&self) -> Option<[u8; 32]> {
        self.job_key.as_ref().map(|key| blake3::derive_key("weft job key 1", key))
    }

    pub(crate) fn tcp_config(&self, bind: SocketAddr) -> TcpConfig {
        let defaults = TcpConfig::default();
        TcpConfig {
            bind: Some(bind),
            open: self.open,
            job_key: self.job_key_bytes(),
            encrypt: self.encrypt,
            traffic_class: self.traffic_class,
            connect_timeout_ms: self.connect_timeout_ms,
            connect_retry_ms: self.connect_retry_ms,
            answer_timeout_ms: self.answer_timeout_ms,
            dead_peer_ms: self.dead_peer_ms,
            resume_ms: self.resume_ms,
            eager_bytes: self.tcp_eager_bytes.unwrap_or(defaults.eager_bytes),
            unsent: self.on_unsent.map(|call| Arc::new(Unsent::new(call))),
            ..defaults
        }
    }

    pub(crate) fn shm_config(&self, service: Option<u16>) -> ShmConfig {
        let defaults = ShmConfig::default();
        ShmConfig {
            service,
            cma: self.cma && Checker::found().is_none(),
            connect_timeout_ms: self.connect_timeout_ms,
            // A peer that is busy computing answers neither way: what TCP would wait is waited here.
            answer_timeout_ms: self.answer_timeout_ms.max(self.connect_timeout_ms),
            eager_bytes: self.shm_eager_bytes,
            job_key: self.job_key_bytes().unwrap_or_default(),
            ..defaults
        }
    }
}
