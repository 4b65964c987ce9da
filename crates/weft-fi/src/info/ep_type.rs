//! Types of endpoint (fi_endpoint(3)): how each differs from the others in what is offered.

use weft_fi_sys as sys;
use weft_fi_sys::v2;

/// A type of endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EpType {
    /// FI_EP_RDM: what clients get that ask for no type.
    #[default]
    Rdm,
    /// FI_EP_MSG.
    Msg,
}

/// An endpoint with one peer has no source to tell of, nor to choose. Operations that start by themselves name their peers by address.
const NOT_CONNECTED: u64 = sys::FI_DIRECTED_RECV | sys::FI_SOURCE | sys::FI_SOURCE_ERR | sys::FI_TRIGGER;
/// From API 2.0 on.
const NOT_CONNECTED_2_0: u64 = v2::FI_TAGGED_DIRECTED_RECV | v2::FI_EXACT_DIRECTED_RECV;

impl EpType {
    /// From `fi_ep_attr.type`; `None` for types that weft does not have.
    pub(crate) const fn from_raw(raw: sys::fi_ep_type) -> Option<Self> {
        match raw {
            sys::FI_EP_UNSPEC | sys::FI_EP_RDM => Some(Self::Rdm),
            sys::FI_EP_MSG => Some(Self::Msg),
            _ => None,
        }
    }

    /// As `fi_ep_attr.type`.
    pub(crate) const fn raw(self) -> sys::fi_ep_type {
        match self {
            Self::Rdm => sys::FI_EP_RDM,
            Self::Msg => sys::FI_EP_MSG,
        }
    }

    /// Capabilities that endpoints of this type do not have.
    pub(crate) const fn lacks(self, api: u32) -> u64 {
        match self {
            Self::Rdm => 0,
            Self::Msg if api >= v2::V2_0 => NOT_CONNECTED | NOT_CONNECTED_2_0,
            Self::Msg => NOT_CONNECTED,
        }
    }
}
