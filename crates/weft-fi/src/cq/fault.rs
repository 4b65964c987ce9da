//! Provider error numbers: the `prov_errno` of an error entry, which is more specific than its errno, and its
//! text.
//!
//! Place in the data flow: `endpoint::route` puts the number into an error entry, and `fi_cq_strerror`
//! returns the text. Zero means no further information.

use std::ffi::{CStr, c_int};

use weft_engine::api::Fault;
use weft_engine::nic::LinkError;

/// The number of a fault.
pub(crate) fn number(fault: Fault) -> c_int {
    match fault {
        Fault::Truncated(_) => 1,
        Fault::Canceled => 2,
        Fault::NoMessage => 3,
        Fault::BadKey => 4,
        Fault::BadRange => 5,
        Fault::Revoked => 6,
        Fault::Refused(_) => 7,
        Fault::Stranger(_) => 8,
        Fault::NoMemory => 9,
        Fault::Link(error) => match error {
            LinkError::Closed => 16,
            LinkError::Gone => 17,
            LinkError::Refused => 18,
            LinkError::Timeout => 19,
            LinkError::Unreachable => 20,
            LinkError::Denied => 21,
            LinkError::Protocol => 22,
            LinkError::Access => 23,
            LinkError::Resources => 24,
            LinkError::Encryption => 25,
            LinkError::Descriptors => 26,
            LinkError::PeerResources => 27,
            LinkError::Cut => 28,
        },
    }
}

/// The text of a number.
pub(crate) fn text(number: c_int) -> &'static CStr {
    match number {
        0 => c"no further information",
        1 => c"the message was longer than the receive buffer",
        2 => c"cancelled, by fi_cancel or by the end of the connection",
        3 => c"no message matched",
        4 => c"the target refused the access: the key is unknown, or does not grant this access",
        5 => c"the target refused the access: outside the registered region",
        6 => c"the peer's buffer was released during the transfer",
        7 => c"the operation could not be started when its trigger fired",
        8 => c"the message was received, but its source is in no address vector: err_data has its address",
        9 => c"the memory of the receive, or of the target's region, is not mapped, or is protected against the access",
        16 => c"the peer closed its endpoint",
        17 => c"the peer is gone (hang-up or reset)",
        18 => c"connection refused: no endpoint listens at that address",
        19 => c"no answer within the connect time-out (FI_WEFT_CONNECT_TIMEOUT_MS; an hour if the peer's system has answered and its process has not)",
        20 => c"no route to the peer's address",
        21 => {
            c"denied: the job keys of the two endpoints differ (FI_WEFT_JOB_KEY, auth_key), or the full address is needed"
        }
        22 => c"the peer violated the protocol, or has another version of weft: install the same version for all processes",
        23 => c"direct access to the peer's memory failed",
        24 => c"out of memory, ports, or epoll watches",
        25 => c"only one of the two endpoints encrypts TCP: FI_WEFT_TCP_ENCRYPT must be the same in all processes",
        26 => c"out of file descriptors (ulimit -n)",
        27 => c"the peer is out of descriptors or memory for another link (ulimit -n there)",
        28 => c"the peer's host could not be reached for FI_WEFT_TCP_RESUME_MS: check the network between the hosts",
        _ => c"unknown error number",
    }
}

#[cfg(test)]
mod tests {
    use weft_engine::api::Error;

    use super::*;

    #[test]
    fn every_fault_has_its_own_number_and_text() {
        let links = [
            LinkError::Closed,
            LinkError::Gone,
            LinkError::Refused,
            LinkError::Timeout,
            LinkError::Unreachable,
            LinkError::Denied,
            LinkError::Protocol,
            LinkError::Access,
            LinkError::Resources,
            LinkError::Encryption,
            LinkError::Descriptors,
            LinkError::PeerResources,
            LinkError::Cut,
        ];
        let mut faults = vec![
            Fault::Truncated(1),
            Fault::Canceled,
            Fault::NoMessage,
            Fault::BadKey,
            Fault::BadRange,
            Fault::Revoked,
            Fault::Refused(Error::NoSuchAddress),
            Fault::Stranger(0),
            Fault::NoMemory,
        ];
        faults.extend(links.map(Fault::Link));
        let mut texts: Vec<_> = faults.iter().map(|&fault| text(number(fault))).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), faults.len());
        assert!(!texts.contains(&text(0)) && !texts.contains(&text(-1)));
    }
}
