//! Types of endpoint (fi_endpoint(3)): how each differs from the others in what is offered.

use weft_engine::Role;
use weft_engine::api::Config;
use weft_fi_sys as sys;
use weft_fi_sys::v2;

use crate::info::offer::MAX_MSG_BYTES;

/// A type of endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EpType {
    /// FI_EP_RDM: what clients get that ask for no type.
    #[default]
    Rdm,
    /// FI_EP_MSG.
    Msg,
    /// FI_EP_DGRAM.
    Dgram,
}

/// An endpoint with one peer has no source to tell of, nor to choose. Operations that start by themselves
/// name their peers by address.
const NOT_CONNECTED: u64 = sys::FI_DIRECTED_RECV
    | sys::FI_SOURCE
    | sys::FI_SOURCE_ERR
    | sys::FI_TRIGGER
    | sys::FI_NAMED_RX_CTX
    | sys::FI_AV_USER_ID;
/// From API 2.0 on.
const NOT_CONNECTED_2_0: u64 = v2::FI_TAGGED_DIRECTED_RECV | v2::FI_EXACT_DIRECTED_RECV;

/// What goes further than a datagram is reliable.
const NOT_UNRELIABLE: u64 = sys::FI_TAGGED
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
/// From API 2.0 on.
const NOT_UNRELIABLE_2_0: u64 = v2::FI_TAGGED_DIRECTED_RECV | v2::FI_TAGGED_MULTI_RECV;
/// Longest datagram in bytes: eager on every device.
const MAX_DATAGRAM_BYTES: usize = 16 << 10;

impl EpType {
    /// From `fi_ep_attr.type`; `None` for types that weft does not have.
    pub(crate) const fn from_raw(raw: sys::fi_ep_type) -> Option<Self> {
        match raw {
            sys::FI_EP_UNSPEC | sys::FI_EP_RDM => Some(Self::Rdm),
            sys::FI_EP_MSG => Some(Self::Msg),
            sys::FI_EP_DGRAM => Some(Self::Dgram),
            _ => None,
        }
    }

    /// As `fi_ep_attr.type`.
    pub(crate) const fn raw(self) -> sys::fi_ep_type {
        match self {
            Self::Rdm => sys::FI_EP_RDM,
            Self::Msg => sys::FI_EP_MSG,
            Self::Dgram => sys::FI_EP_DGRAM,
        }
    }

    /// Capabilities that endpoints of this type do not have.
    pub(crate) const fn lacks(self, api: u32) -> u64 {
        match self {
            Self::Rdm => 0,
            Self::Msg if api >= v2::V2_0 => NOT_CONNECTED | NOT_CONNECTED_2_0,
            Self::Dgram if api >= v2::V2_0 => NOT_UNRELIABLE | NOT_UNRELIABLE_2_0,
            Self::Msg => NOT_CONNECTED,
            Self::Dgram => NOT_UNRELIABLE,
        }
    }

    /// Longest message in bytes.
    pub(crate) const fn max_msg_bytes(self) -> usize {
        match self {
            Self::Rdm | Self::Msg => MAX_MSG_BYTES,
            Self::Dgram => MAX_DATAGRAM_BYTES,
        }
    }

    /// The least that a peer may fill with messages for which there is no receive: what finds no room there
    /// is lost, or takes another way.
    pub(crate) const fn least_window_bytes(self) -> usize {
        match self {
            Self::Rdm | Self::Msg => 0,
            Self::Dgram => Config::least_window_bytes(MAX_DATAGRAM_BYTES),
        }
    }

    /// What the engine is for.
    pub(crate) const fn role(self) -> Role {
        match self {
            Self::Rdm => Role::Connectionless,
            Self::Msg => Role::Active,
            Self::Dgram => Role::Datagrams,
        }
    }
}
