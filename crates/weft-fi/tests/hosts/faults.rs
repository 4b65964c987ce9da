//! Faults of the configuration: each is printed once on standard error at the default log level, with cause and remedy.
//!
//! The groups run without FI_LOG_LEVEL. `main.rs` compares the printed line with [`PRINTED`].

use std::ffi::CString;
use std::net::TcpListener;

use weft_fi_sys::*;

use crate::client::{Lib, bind};
use crate::network::keyed;
use crate::side::{Side, introduce, pattern};
use crate::{network, states};

/// The groups, each with parts of the only line that it prints.
pub(crate) const PRINTED: &[(&str, &[&str])] = &[
    ("fault_interface", &["192.0.2.1", "; set FI_WEFT_IFACE to one of them"]),
    ("fault_interface_shm", &["192.0.2.1", "; set FI_WEFT_IFACE to one of them"]),
    ("fault_port", &["cannot listen on 127.0.0.1:", ": choose another service"]),
    ("fault_port_range", &["70000", "; choose a port up to 65535"]),
    ("fault_key", &["cannot reach", "denied", "; give all processes the same user"]),
    ("fault_empty_key", &["FI_WEFT_JOB_KEY is set, but empty", "; set it"]),
    ("fault_peer", &["cannot reach 127.0.0.1:1", "; check that the peer runs"]),
];

/// FI_WEFT_IFACE holds an address that this host does not have.
pub(crate) fn interface(lib: &Lib) {
    states::wrong_interface(lib);
    states::wrong_interface(lib);
}

/// The port of the source address is in use.
pub(crate) fn port(lib: &Lib) {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = CString::new(holder.local_addr().unwrap().port().to_string()).unwrap();
    let info = lib.getinfo(lib.newest(), Some(c"127.0.0.1"), Some(&service), FI_SOURCE, None).unwrap();
    let side = Side::unbound_for(lib, info);
    assert_eq!(bind(side.ep, side.av, 0), 0);
    assert_eq!(bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV), 0);
    assert_eq!(side.enable(), -FI_EADDRINUSE);
}

/// No port has the number of the service.
pub(crate) fn port_range(lib: &Lib) {
    for node in [None, Some(c"127.0.0.1")] {
        assert!(lib.getinfo(lib.newest(), node, Some(c"70000"), FI_SOURCE, None).is_err());
    }
}

/// The keys of two endpoints differ.
pub(crate) fn key(lib: &Lib) {
    for _ in 0..2 {
        let side = |key| keyed(lib, lib.newest(), None, Some(key));
        let (a, b, to_b, _) = introduce(side(c"red"), side(c"blue"));
        a.tsend(pattern(100), to_b, 1);
        assert_eq!(a.next(&[&b]).failed().err, libc::EACCES);
    }
}

/// The key of the job is empty.
pub(crate) fn empty_key(lib: &Lib) {
    network::empty_job_key(lib);
}

/// No process listens at the peer's address, which is a reserved port.
pub(crate) fn peer(lib: &Lib) {
    for _ in 0..2 {
        let a = Side::with(lib, 0, |hints| hints.get().addr_format = FI_SOCKADDR_IN);
        let absent = a.insert(&[2, 0, 0, 1, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        a.tsend(pattern(8), absent, 1);
        assert_eq!(a.next(&[]).failed().err, FI_ECONNREFUSED);
    }
}
