//! The network settings in attributes: the traffic class and the authorization key (fi_endpoint(3), "tclass",
//! "auth_key").
//!
//! Place in the data flow: `fi_domain`, `fi_endpoint`, `fi_scalable_ep` and `fi_passive_ep` make a
//! [`Network`] from their `fi_info`, and devices are configured with it. fi_getinfo checks classes by
//! [`traffic_class`].
//!
//! TCP packets are marked with a differentiated services code point for the class. The labels map to code
//! points of RFC 4594 with a fitting description, and of RFC 8622 for traffic that may be starved.

use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::info::hints::Hints;

/// The first API version in which authorization keys are used.
pub(crate) const KEYS_SINCE: u32 = sys::version(1, 5);
/// The number of bits in a code point.
const DSCP_BITS: u32 = 6;

/// The network settings of an endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    /// The traffic class byte of packets.
    pub(crate) traffic_class: u8,
    /// The key that peers must know, too, if any.
    pub(crate) auth_key: Option<Vec<u8>>,
}

impl Network {
    /// The settings in the domain attributes, which are the defaults of endpoints.
    pub(crate) fn of_domain(api: u32, info: &Hints) -> Result<Self, Errno> {
        let tclass = info.domain.map_or(sys::FI_TC_UNSPEC, |attr| attr.tclass);
        Ok(Self {
            traffic_class: traffic_class(tclass).ok_or(Errno::INVAL)?.unwrap_or(0),
            auth_key: info.domain_auth_key.clone().filter(|_| api >= KEYS_SINCE),
        })
    }

    /// The settings of an endpoint: those of its own attributes, with the domain's as defaults.
    pub(crate) fn of_endpoint(&self, api: u32, info: &Hints) -> Result<Self, Errno> {
        let tclass = info.tx.map_or(sys::FI_TC_UNSPEC, |attr| attr.tclass);
        let own_key = info.ep_auth_key.as_ref().filter(|_| api >= KEYS_SINCE);
        Ok(Self {
            traffic_class: traffic_class(tclass).ok_or(Errno::INVAL)?.unwrap_or(self.traffic_class),
            auth_key: own_key.or(self.auth_key.as_ref()).cloned(),
        })
    }
}

/// The traffic class byte for a `tclass`: `Some(None)` for an unspecified class, `None` for an invalid one.
pub(crate) fn traffic_class(tclass: u32) -> Option<Option<u8>> {
    let dscp = match tclass {
        sys::FI_TC_UNSPEC => return Some(None),
        // Default forwarding.
        sys::FI_TC_BEST_EFFORT => 0,
        // AF21, "low-latency data".
        sys::FI_TC_LOW_LATENCY => 18,
        // EF, the highest code point below those of the network itself.
        sys::FI_TC_DEDICATED_ACCESS => 46,
        // AF11, "high-throughput data".
        sys::FI_TC_BULK_DATA => 10,
        // Lower effort.
        sys::FI_TC_SCAVENGER => 1,
        // CS6.
        sys::FI_TC_NETWORK_CTRL => 48,
        _ => u8::try_from(tclass ^ sys::FI_TC_DSCP).ok().filter(|dscp| dscp >> DSCP_BITS == 0)?,
    };
    // The two low bits are those of congestion notification.
    Some(Some(dscp << (u8::BITS - DSCP_BITS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_classes_are_code_points() {
        assert_eq!(traffic_class(sys::FI_TC_UNSPEC), Some(None));
        assert_eq!(traffic_class(sys::FI_TC_BEST_EFFORT), Some(Some(0)));
        assert_eq!(traffic_class(sys::FI_TC_DEDICATED_ACCESS), Some(Some(0xb8)));
        assert_eq!(traffic_class(sys::FI_TC_DSCP), Some(Some(0)));
        assert_eq!(traffic_class(sys::FI_TC_DSCP | 46), Some(Some(0xb8)));
        assert_eq!(traffic_class(sys::FI_TC_DSCP | 63), Some(Some(0xfc)));
        for wrong in
            [1, 46, sys::FI_TC_DSCP | 64, sys::FI_TC_NETWORK_CTRL + 1, sys::FI_TC_DSCP | sys::FI_TC_LABEL, u32::MAX]
        {
            assert_eq!(traffic_class(wrong), None, "{wrong:#x}");
        }
    }
}
