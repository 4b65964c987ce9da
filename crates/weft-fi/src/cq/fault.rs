//! Provider error numbers: the `prov_errno` of an error entry, which is more specific than its errno, and its
//! text.
//!
//! Place in the data flow: `endpoint::route` puts the number into an error entry, and `fi_cq_strerror`
//! returns the text. Zero means no further information.

use std::ffi::{CStr, CString, c_int};

use parking_lot::Mutex;
use weft_engine::api::Fault;
use weft_engine::nic::{Layer, LinkError, Versions};

/// Limit of texts about versions. Peers determine the versions.
const MOST_TEXTS: usize = 64;

/// Numbers of two versions that differ: this, the layer, this side's version, and the peer's.
const VERSIONS: c_int = 1 << 20;

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
        Fault::Internal => 10,
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
            LinkError::Unanswered => 29,
            LinkError::Crowded => 30,
            LinkError::Evicted => 31,
            LinkError::Version(Versions { layer, ours, theirs }) => {
                VERSIONS | (layer as c_int) << 16 | c_int::from(ours) << 8 | c_int::from(theirs)
            }
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
        10 => c"a fault in weft: report the log line that names its place, with the version of weft",
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
        29 => {
            c"the peer closed the link before it answered: its endpoint was closing, or it has another version of weft: install the same version on all hosts"
        }
        30 => {
            c"refused: the peer serves as many endpoints that are not in its address vector as it may: raise FI_WEFT_MAX_UNKNOWN_PEERS and ulimit -n there, or insert this endpoint's address there"
        }
        31 => {
            c"the peer ended the link to make room: this endpoint is not in its address vector, and was idle or held much of its memory: raise FI_WEFT_MAX_UNKNOWN_PEERS or FI_WEFT_UNKNOWN_PEERS_BYTES there"
        }
        _ => versions_of(number).map_or(c"unknown error number", text_of_versions),
    }
}

/// The versions in a number.
fn versions_of(number: c_int) -> Option<Versions> {
    let layers = [Layer::Engine, Layer::Shm, Layer::Tcp];
    let rest = u32::try_from(number ^ VERSIONS).ok().filter(|rest| number & VERSIONS != 0 && *rest < 3 << 16)?;
    let [theirs, ours, layer, _] = rest.to_le_bytes();
    Some(Versions { layer: *layers.get(usize::from(layer))?, ours, theirs })
}

/// The text for two versions, which lives as long as the process. A process meets few of them.
fn text_of_versions(versions: Versions) -> &'static CStr {
    static TEXTS: Mutex<Vec<(Versions, &'static CStr)>> = Mutex::new(Vec::new());
    let mut texts = TEXTS.lock();
    if let Some(&(_, text)) = texts.iter().find(|(known, _)| *known == versions) {
        return text;
    }
    if texts.len() >= MOST_TEXTS {
        return text(number(Fault::Link(LinkError::Protocol)));
    }
    let text = CString::new(versions.to_string()).unwrap_or_default();
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    texts.push((versions, text));
    text
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
            LinkError::Unanswered,
            LinkError::Crowded,
            LinkError::Evicted,
            LinkError::Version(Versions { layer: Layer::Engine, ours: 2, theirs: 3 }),
            LinkError::Version(Versions { layer: Layer::Engine, ours: 2, theirs: 255 }),
            LinkError::Version(Versions { layer: Layer::Shm, ours: 2, theirs: 3 }),
            LinkError::Version(Versions { layer: Layer::Tcp, ours: 0, theirs: 0 }),
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
            Fault::Internal,
        ];
        faults.extend(links.map(Fault::Link));
        let mut texts: Vec<_> = faults.iter().map(|&fault| text(number(fault))).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), faults.len());
        assert!(!texts.contains(&text(0)) && !texts.contains(&text(-1)) && !texts.contains(&text(3 << 16 | 1 << 20)));
        let versions = Fault::Link(LinkError::Version(Versions { layer: Layer::Tcp, ours: 2, theirs: 3 }));
        let words = text(number(versions)).to_str().expect("a text");
        assert!(words.contains("version 3 of") && words.contains("this process version 2"), "{words}");
    }
}
