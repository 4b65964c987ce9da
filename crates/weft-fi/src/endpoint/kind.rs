//! The kind of a handle, and whether its receives honour the sources that they name.
//!
//! Place in the data flow: both are decided when a handle is opened ([`super::opening`]).

use weft_fi_sys as sys;

use crate::info::caps;

/// The kind of object behind a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An endpoint.
    Whole,
    /// A shared receive context.
    Shared,
    /// A transmit context of a scalable endpoint.
    Transmit,
    /// A receive context of a scalable endpoint.
    Receive,
}

impl Kind {
    /// libfabric's number of the class.
    pub(super) const fn class(self) -> u32 {
        match self {
            Self::Whole => sys::FI_CLASS_EP,
            Self::Shared => sys::FI_CLASS_SRX_CTX,
            Self::Transmit => sys::FI_CLASS_TX_CTX,
            Self::Receive => sys::FI_CLASS_RX_CTX,
        }
    }

    /// The part of the requested capabilities that applies to this kind.
    pub(super) const fn caps(self, asked: u64) -> u64 {
        match self {
            Self::Whole => asked,
            Self::Shared => caps::receiving(asked) & !(sys::FI_RMA | sys::FI_ATOMIC),
            Self::Transmit => caps::transmitting(asked),
            Self::Receive => caps::receiving(asked),
        }
    }
}

/// Whether receives honour the source that they name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    /// Untagged receives honour their source.
    untagged: bool,
    /// Tagged receives honour their source.
    tagged: bool,
    /// Receives that honour a source must name one.
    pub(super) exact: bool,
    /// The source of each receive is checked, because it must be exact, or may name a context of a scalable endpoint.
    pub(super) checked: bool,
}

impl Sources {
    /// The choice of an endpoint with these capabilities. Some bits have their meaning from API 2.0 on.
    pub(super) fn of(caps: u64, api: u32, kind: Kind) -> Self {
        let new = if api >= sys::v2::V2_0 { caps } else { 0 };
        let exact = new & sys::v2::FI_EXACT_DIRECTED_RECV != 0;
        let only_tagged = new & sys::v2::FI_TAGGED_DIRECTED_RECV != 0;
        // Without the bit for tagged receives, exactness applies to receives of both kinds.
        let untagged = caps & sys::FI_DIRECTED_RECV != 0 || (exact && !only_tagged);
        // The attributes of receive contexts and shared contexts do not carry FI_NAMED_RX_CTX.
        let contexts = matches!(kind, Kind::Receive | Kind::Shared) || caps & sys::FI_NAMED_RX_CTX != 0;
        Self { untagged, tagged: untagged || only_tagged, exact, checked: exact || contexts }
    }

    /// Whether receives of that kind honour their source.
    #[inline]
    pub(super) const fn honoured(self, tagged: bool) -> bool {
        if tagged { self.tagged } else { self.untagged }
    }
}
