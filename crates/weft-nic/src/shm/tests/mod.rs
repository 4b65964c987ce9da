//! Tests of the rings and of the whole device, as far as they need to look inside; the contract that it shares with
//! the other devices is tested by tests/conformance.rs.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod ring;
