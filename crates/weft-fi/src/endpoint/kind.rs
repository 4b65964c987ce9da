//! What a handle is of, and what its receives do with the sources that they name.
//!
//! Place in the data flow: decided when a handle is made ([`super::setup`], [`super::shared`], [`super::scalable`]).

use weft_fi_sys as sys;

use crate::info::caps;

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An endpoint.
    Whole,
    /// The receives that several endpoints share.
    Shared,
    /// A transmit context of a scalable endpoint.
    Transmit,
    /// A receive context of one.
    Receive,
}

impl Kind {
    /// libfabric's number for it.
    pub(super) const fn class(self) -> u32 {
        match self {
            Self::Whole => sys::FI_CLASS_EP,
            Self::Shared => sys::FI_CLASS_SRX_CTX,
            Self::Transmit => sys::FI_CLASS_TX_CTX,
            Self::Receive => sys::FI_CLASS_RX_CTX,
        }
    }

    /// What it can do of what the client has asked for.
    pub(super) const fn caps(self, asked: u64) -> u64 {
        match self {
            Self::Whole => asked,
            Self::Shared => caps::receiving(asked) & !(sys::FI_RMA | sys::FI_ATOMIC),
            Self::Transmit => caps::transmitting(asked),
            Self::Receive => caps::receiving(asked),
        }
    }
}

/// What receives do with the source that they name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    /// Untagged receives honour it.
    untagged: bool,
    /// Tagged receives do.
    tagged: bool,
    /// Those that honour it must name one.
    pub(super) exact: bool,
    /// Receives are looked at first: they must be exact, or may name a context of a scalable endpoint.
    pub(super) checked: bool,
}

impl Sources {
    /// For an endpoint with these capabilities, of which some bits have their meaning from API 2.0 on.
    pub(super) fn of(caps: u64, api: u32, kind: Kind) -> Self {
        let new = if api >= sys::v2::V2_0 { caps } else { 0 };
        let exact = new & sys::v2::FI_EXACT_DIRECTED_RECV != 0;
        let only_tagged = new & sys::v2::FI_TAGGED_DIRECTED_RECV != 0;
        // Exactness alone is for receives of every kind.
        let untagged = caps & sys::FI_DIRECTED_RECV != 0 || (exact && !only_tagged);
        // Attributes of receive contexts say nothing of them, nor do those of shared ones.
        let contexts = matches!(kind, Kind::Receive | Kind::Shared) || caps & sys::FI_NAMED_RX_CTX != 0;
        Self { untagged, tagged: untagged || only_tagged, exact, checked: exact || contexts }
    }

    /// Whether receives of that kind honour it.
    #[inline]
    pub(super) const fn honoured(self, tagged: bool) -> bool {
        if tagged { self.tagged } else { self.untagged }
    }
}
