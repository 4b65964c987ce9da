//! The provider library over the simulated fabric, for tests.
//!
//! Place in the data flow: the conformance suite (`crates/weft-fi/tests/hosts`) has libfabric load it. All code is in
//! weft-fi.

weft_fi::entry_point!(weft_sim_device::SimDevice);
