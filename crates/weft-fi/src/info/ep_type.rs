//! Types of endpoints (fi_endpoint(3)), and the differences between them in fi_getinfo.

use weft_engine::Role;
use weft_engine::api::Config;
use weft_fi_sys as sys;
use weft_fi_sys::v2;

use crate::info::offer::MAX_MSG_BYTES;

/// A type of endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EpType {
    /// FI_EP_RDM, the default type.
    #[default]
    Rdm,
    /// FI_EP_MSG.
    Msg,
    /// FI_EP_DGRAM.
    Dgram,
}

/// Capabilities that connected endpoints lack. Their only peer needs no source, and triggered operations name
/// their peers by address.
const NOT_CONNECTED: u64 = sys::FI_DIRECTED_RECV
    | sys::FI_COLLECTIVE
    | sys::FI_SOURCE
    | sys::FI_SOURCE_ERR
    | sys::FI_TRIGGER
    | sys::FI_NAMED_RX_CTX
    | sys::FI_AV_USER_ID;
/// Further capabilities that connected endpoints lack, from API 2.0 on.
const NOT_CONNECTED_2_0: u64 = v2::FI_TAGGED_DIRECTED_RECV | v2::FI_EXACT_DIRECTED_RECV;

/// Capabilities that datagram endpoints lack, because they need reliable transport.
const NOT_UNRELIABLE: u64 = sys::FI_TAGGED
    | sys::FI_COLLECTIVE
    | sys::FI_RMA
    | sys::FI_ATOMIC
    | sys::FI_READ
    | sys::FI_WRITE
    | sys::FI_REMOTE_READ
    | sys::FI_REMOTE_WRITE
    | sys::FI_RMA_EVENT
    | sys::FI_FENCE
    | sys::FI_TRIGGER
    | sys::FI_NAMED_RX_CTX;
/// Further capabilities that datagram endpoints lack, from API 2.0 on.
const NOT_UNRELIABLE_2_0: u64 = v2::FI_TAGGED_DIRECTED_RECV | v2::FI_TAGGED_MULTI_RECV;
/// The longest datagram in bytes, which is eager on every device.
const MAX_DATAGRAM_BYTES: usize = 16 << 10;

impl EpType {
    /// Converts `fi_ep_attr.type`; `None` for types that weft does not support.
    pub(crate) const fn from_raw(raw: sys::fi_ep_type) -> Option<Self> {
        match raw {
            sys::FI_EP_UNSPEC | sys::FI_EP_RDM => Some(Self::Rdm),
            sys::FI_EP_MSG => Some(Self::Msg),
            sys::FI_EP_DGRAM => Some(Self::Dgram),
            _ => None,
        }
    }

    /// The number for `fi_ep_attr.type`.
    pub(crate) const fn raw(self) -> sys::fi_ep_type {
        match self {
            Self::Rdm => sys::FI_EP_RDM,
            Self::Msg => sys::FI_EP_MSG,
            Self::Dgram => sys::FI_EP_DGRAM,
        }
    }

    /// The capabilities that endpoints of this type lack.
    pub(crate) const fn lacks(self, api: u32) -> u64 {
        match self {
            Self::Rdm => 0,
            Self::Msg if api >= v2::V2_0 => NOT_CONNECTED | NOT_CONNECTED_2_0,
            Self::Dgram if api >= v2::V2_0 => NOT_UNRELIABLE | NOT_UNRELIABLE_2_0,
            Self::Msg => NOT_CONNECTED,
            Self::Dgram => NOT_UNRELIABLE,
        }
    }

    /// The longest message in bytes.
    pub(crate) const fn max_msg_bytes(self) -> usize {
        match self {
            Self::Rdm | Self::Msg => MAX_MSG_BYTES,
            Self::Dgram => MAX_DATAGRAM_BYTES,
        }
    }

    /// The minimum window for unexpected messages of a peer, in bytes. Datagrams beyond the window are lost;
    /// other messages are sent by rendezvous.
    pub(crate) const fn least_window_bytes(self) -> usize {
        match self {
            Self::Rdm | Self::Msg => 0,
            Self::Dgram => Config::least_window_bytes(MAX_DATAGRAM_BYTES),
        }
    }

    /// The role of the engine.
    pub(crate) const fn role(self) -> Role {
        match self {
            Self::Rdm => Role::Connectionless,
            Self::Msg => Role::Active,
            Self::Dgram => Role::Datagrams,
        }
    }
}
