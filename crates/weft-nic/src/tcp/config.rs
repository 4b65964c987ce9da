//! Settings and counters of the TCP device.
//!
//! Place in the data flow: the code that opens a device gives it a [`TcpConfig`]. [`super::Tcp::stats`] and
//! [`super::Tcp::describe`] return the other types for diagnosis.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Unsent;
use super::wire::VERSION;
use crate::host::Networks;
use crate::{Config, Uring};

/// Settings of the TCP device. Sizes in bytes, times in milliseconds.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// The settings of the endpoint. The device takes those from here that it shares with others; the fields below are
    /// derived from the rest, or are its own.
    pub endpoint: Arc<Config>,
    /// The service to listen at. `None`: any free port of the address in the endpoint's name.
    pub bind: Option<SocketAddr>,
    /// An optional secret, which both sides must share.
    pub job_key: Option<[u8; 32]>,
    /// SO_SNDBUF. `None`: the kernel's choice.
    pub send_buffer_bytes: Option<usize>,
    /// SO_RCVBUF. `None`: the kernel's choice.
    pub receive_buffer_bytes: Option<usize>,
    /// Longest eager payload.
    pub eager_bytes: usize,
    /// Payload of one push segment.
    pub segment_bytes: usize,
    /// Connections of a link that carry its long pushes, beside the first one. Below 2: the first one carries them.
    pub streams: usize,
    /// More of them are made if they carry more, to other hosts only (`tcp/rails`).
    pub grows: bool,
    /// Also use them between endpoints of one host.
    pub streams_within_host: bool,
    /// Payload of one segment on these connections. Only longer pushes use them.
    pub stripe_bytes: usize,
    /// The addresses of the interfaces that these connections use. The first is that of the endpoint's name. Fewer than
    /// two: the kernel chooses.
    pub addrs: Vec<SocketAddr>,
    /// Drop connections to other addresses of this host. Empty: to none.
    pub admitted: Vec<IpAddr>,
    /// The networks of this host, for the choice between two addresses of a peer.
    pub networks: Networks,
    /// The executor of the steps of collectives.
    pub uring: Uring,
    /// Limit of simultaneous half-open connections: those whose peer has not proven itself.
    pub half_open: usize,
    /// Notes messages that the device defers in order to send them with others.
    pub unsent: Option<Arc<Unsent>>,
    /// The version of the handshake of new links. Only tests set another one.
    #[doc(hidden)]
    pub version: u8,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            endpoint: Arc::new(Config { answer_timeout_ms: 120_000, ..Config::default() }),
            bind: None,
            job_key: None,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            eager_bytes: 32 * 1024,
            segment_bytes: 256 * 1024,
            streams: 1,
            grows: false,
            streams_within_host: false,
            stripe_bytes: 256 * 1024,
            addrs: Vec::new(),
            admitted: Vec::new(),
            networks: Networks::default(),
            uring: Uring::No,
            half_open: 128,
            unsent: None,
            version: VERSION,
        }
    }
}

impl TcpConfig {
    /// These settings, with a change of the endpoint's.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.endpoint));
        self
    }
}

/// Counters of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpStats {
    /// System calls that received.
    pub receive_calls: u64,
    /// System calls that sent.
    pub send_calls: u64,
    /// System calls that waited for ready sockets.
    pub wait_calls: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Connections that broke and had to be replaced.
    pub breaks: u64,
    /// Links that were resumed over another connection.
    pub resumed: u64,
    /// Incoming connections that failed in the handshake.
    pub refused: u64,
    /// Failed handshakes in which the proof was wrong or missing.
    pub denied: u64,
    /// Connections for long pushes that came up.
    pub rails_up: u64,
    /// Connections for long pushes that ended before their link.
    pub rails_lost: u64,
    /// Connections for long pushes that are open now.
    pub rails: usize,
    /// Bytes received and sent on them.
    pub rail_bytes: u64,
    /// Barriers between hosts that were performed on chains.
    pub chained: u64,
    /// Links that are open now.
    pub links: usize,
    /// Connections that are half-open now.
    pub half_open: usize,
}

/// A description of one link, for diagnosis.
#[derive(Clone, Copy, Debug)]
pub struct TcpLinkInfo {
    /// The local socket address.
    pub local: Option<SocketAddr>,
    /// The peer's socket address.
    pub remote: Option<SocketAddr>,
    /// Bytes of messages that the kernel has not accepted yet.
    pub queued_bytes: usize,
    /// Bytes of messages that the peer has not acknowledged, including `queued_bytes`.
    pub kept_bytes: usize,
    /// Pushes that are not finished.
    pub pushes: usize,
}
