//! The protocols by which messages and accesses travel, for each path and size, and the limits in force.
//!
//! Place in the data flow: the capabilities of the devices and the engine's thresholds, which endpoints use as well,
//! with the present variables → here → `weft info`. The operation's flags and the peer's window may lead to a
//! rendezvous below the threshold.

use serde::Serialize;
use weft_engine::nic::{NicCaps, PUSH_BYTES};
use weft_fi::params::Params;
use weft_nic::{TcpConfig, shm, tcp};

/// The protocol of one range of sizes.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Protocol {
    pub(crate) path: &'static str,
    /// Messages, or remote reads and writes.
    pub(crate) operation: &'static str,
    /// The shortest and the longest payload, in bytes. `None`: the longest message.
    pub(crate) from_bytes: usize,
    pub(crate) to_bytes: Option<usize>,
    pub(crate) protocol: &'static str,
    pub(crate) how: &'static str,
    /// The variable that sets the threshold; empty for the device's default.
    pub(crate) set_by: &'static str,
}

/// A limit in force.
#[derive(Debug, Serialize)]
pub(crate) struct Limit {
    pub(crate) variable: &'static str,
    pub(crate) value: u64,
    pub(crate) meaning: &'static str,
}

/// The protocols on both paths. `attach`: processes may read each other's memory.
pub(crate) fn protocols(params: &Params, attach: bool) -> Vec<Protocol> {
    let mut protocols = Vec::new();
    if params.shm {
        let caps = shm::caps(params.shm_eager_bytes, attach);
        let pushed = "the data passes through the ring in pieces, copied twice";
        let attached = "both sides copy by cross-memory attach (process_vm_readv), each a part";
        let bulk = if attach { attached } else { pushed };
        let eager = "copied into the ring beside the header, and out of it";
        protocols.extend(of_path(
            params,
            &caps,
            params.shm_eager_bytes.map(|_| "FI_WEFT_SHM_EAGER_BYTES"),
            [eager, pushed, bulk],
        ));
    }
    if params.tcp {
        let caps = tcp::caps(params.tcp_eager_bytes.unwrap_or(TcpConfig::default().eager_bytes));
        let eager = "sent beside the header; short messages that follow one another leave together";
        let bulk = "the receiver names its buffer, into which the socket is read";
        protocols.extend(of_path(
            params,
            &caps,
            params.tcp_eager_bytes.map(|_| "FI_WEFT_TCP_EAGER_BYTES"),
            [eager, bulk, bulk],
        ));
    }
    protocols
}

fn of_path(params: &Params, caps: &NicCaps, set_by: Option<&'static str>, how: [&'static str; 3]) -> Vec<Protocol> {
    let thresholds = caps.thresholds(params.eager_bytes);
    let set_by = if params.eager_bytes.is_some() { "FI_WEFT_EAGER_BYTES" } else { set_by.unwrap_or_default() };
    let row = |operation, from_bytes, to_bytes, protocol, how| Protocol {
        path: caps.device,
        operation,
        from_bytes,
        to_bytes,
        protocol,
        how,
        set_by,
    };
    let (message, access) = (thresholds.eager_bytes, thresholds.access_bytes);
    let mut rows = Vec::new();
    for (operation, threshold, short, long) in
        [("message", message, "eager", "rendezvous"), ("read, write", access, "in a message", "in bulk")]
    {
        rows.push(row(operation, 0, Some(threshold), short, how[0]));
        let pushed = usize::try_from(PUSH_BYTES).unwrap_or(usize::MAX);
        let mut next = threshold + 1;
        if caps.pushes && caps.get && threshold < pushed {
            rows.push(row(operation, next, Some(pushed), "pushed", how[1]));
            next = pushed + 1;
        }
        rows.push(row(operation, next, None, long, how[2]));
    }
    rows
}

/// The limits that users meet most.
pub(crate) fn limits(params: &Params) -> Vec<Limit> {
    let limit = |variable, value, meaning| Limit { variable, value, meaning };
    vec![
        limit("FI_WEFT_INJECT_BYTES", params.inject_bytes as u64, "longest fi_inject, in bytes"),
        limit("FI_WEFT_TX_SIZE", params.tx_size as u64, "operations queued for one peer"),
        limit("FI_WEFT_RX_SIZE", params.rx_size as u64, "receives posted to an endpoint"),
        limit(
            "FI_WEFT_UNEXPECTED_WINDOW_BYTES",
            params.unexpected_window_bytes as u64,
            "bytes of unexpected messages of one peer; beyond it, short messages take the rendezvous",
        ),
        limit("FI_WEFT_CONNECT_TIMEOUT_MS", params.connect_timeout_ms, "longest wait for a connection, in ms"),
        limit("FI_WEFT_TCP_RESUME_MS", params.tcp_resume_ms, "time to restore a broken TCP connection, in ms"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eager(params: &Params) -> Vec<(&'static str, Option<usize>, &'static str)> {
        let rows = protocols(params, true);
        rows.iter().filter(|row| row.protocol == "eager").map(|row| (row.path, row.to_bytes, row.set_by)).collect()
    }

    #[test]
    fn thresholds_are_those_of_the_devices() {
        assert_eq!(eager(&Params::default()), [("shm", Some(32 << 10), ""), ("tcp", Some(32 << 10), "")]);
        let params = Params { shm_eager_bytes: Some(100), tcp: false, ..Params::default() };
        assert_eq!(eager(&params), [("shm", Some(100), "FI_WEFT_SHM_EAGER_BYTES")]);
        // The common variable precedes those of the devices, and is reduced to their largest messages.
        let params = Params { shm_eager_bytes: Some(100), eager_bytes: Some(1 << 30), ..Params::default() };
        let variable = "FI_WEFT_EAGER_BYTES";
        assert_eq!(eager(&params), [("shm", Some(32_896), variable), ("tcp", Some(65_664), variable)]);
    }

    #[test]
    fn ranges_of_sizes_follow_one_another() {
        for (attach, rows) in [(false, 2), (true, 3)] {
            let all = protocols(&Params { tcp: false, ..Params::default() }, attach);
            for rows in all.chunks(rows) {
                let next = rows[1..].iter().map(|row| Some(row.from_bytes));
                assert!(rows.iter().map(|row| row.to_bytes.map(|bytes| bytes + 1)).eq(next.chain([None])), "{rows:?}");
            }
        }
    }
}
