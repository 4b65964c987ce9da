//! What the TCP device is told, and what it tells of itself.
//!
//! Place in the data flow: whoever opens a device gives a [`TcpConfig`]; [`super::Tcp::stats`] and
//! [`super::Tcp::describe`] answer for diagnosis.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Unsent;

/// Settings of the TCP device. Sizes in bytes, times in milliseconds.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Where to listen: an explicit service. `None`: any free port of the address in the endpoint's name.
    pub bind: Option<SocketAddr>,
    /// Whoever knows only address and port may connect too.
    pub open: bool,
    /// Both sides must know it, if set.
    pub job_key: Option<[u8; 32]>,
    /// Whether connections are encrypted; the same on both sides.
    pub encrypt: bool,
    /// IP_TOS and IPV6_TCLASS.
    pub traffic_class: u8,
    /// Longest time for a connection to be made and, with a service name, for each answer.
    pub connect_timeout_ms: u64,
    /// For so long a refused connection is tried again.
    pub connect_retry_ms: u64,
    /// Longest time for an endpoint whose host has answered to answer itself: it may be computing.
    pub answer_timeout_ms: u64,
    /// A host that acknowledges nothing for so long is given up. 0: the kernel's own limits.
    pub dead_peer_ms: u64,
    /// For so long a peer whose connection broke, and whose host cannot be reached, is called again. 0: not at all.
    pub resume_ms: u64,
    /// SO_SNDBUF, where the kernel's own choice is not wanted.
    pub send_buffer_bytes: Option<usize>,
    /// SO_RCVBUF, where the kernel's own choice is not wanted.
    pub receive_buffer_bytes: Option<usize>,
    /// Longest eager payload.
    pub eager_bytes: usize,
    /// Payload of one push segment.
    pub segment_bytes: usize,
    /// Connections of unproven peers at a time.
    pub half_open: usize,
    /// Told of messages that are kept to leave together with others.
    pub unsent: Option<Arc<Unsent>>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            bind: None,
            open: false,
            job_key: None,
            encrypt: false,
            traffic_class: 0,
            connect_timeout_ms: 10_000,
            connect_retry_ms: 1000,
            answer_timeout_ms: 120_000,
            dead_peer_ms: 30_000,
            resume_ms: 10_000,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            eager_bytes: 64 * 1024,
            segment_bytes: 256 * 1024,
            half_open: 128,
            unsent: None,
        }
    }
}

/// What the device has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpStats {
    /// Calls that received.
    pub receive_calls: u64,
    /// Calls that sent.
    pub send_calls: u64,
    /// Calls that asked which sockets are ready.
    pub wait_calls: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Connections that broke and were to be made anew.
    pub breaks: u64,
    /// Links that went on with another connection.
    pub resumed: u64,
    /// Connections of peers that did not get past the handshake.
    pub refused: u64,
    /// Those of them whose proof was wrong, or who had none.
    pub denied: u64,
    /// Links open now.
    pub links: usize,
    /// Connections of peers that have not proven anything yet.
    pub half_open: usize,
}

/// What is known of one link, for diagnosis.
#[derive(Clone, Copy, Debug)]
pub struct TcpLinkInfo {
    /// Our end.
    pub local: Option<SocketAddr>,
    /// The peer's end.
    pub remote: Option<SocketAddr>,
    /// Bytes of messages that the kernel has not taken yet.
    pub queued_bytes: usize,
    /// Bytes of messages that the peer has not acknowledged, with those.
    pub kept_bytes: usize,
    /// Pushes that are not finished.
    pub pushes: usize,
}
