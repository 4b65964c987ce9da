//! The provider library that ships: weft-fi over shared memory and TCP.
//!
//! Place in the data flow: libfabric loads it. All code is in weft-fi.

weft_fi::entry_point!(weft_nic::Devices);
