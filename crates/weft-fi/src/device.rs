//! The device under the engine of every endpoint, chosen once for the whole library.
//!
//! Place in the data flow: `endpoint/setup.rs` opens a [`Devices`] and gives it to the engine. The rest of the crate
//! uses it through the trait [`weft_nic::Device`] only.
//!
//! The choice is an alias and not a type parameter: operation tables and the lists of open objects are statics, which
//! cannot be generic.

/// Shared memory and TCP, in the library that ships.
#[cfg(not(feature = "sim"))]
pub(crate) type Devices = weft_nic::Devices;

/// The simulated fabric, in the library that the conformance suite loads (weft-fi-sim).
#[cfg(feature = "sim")]
pub(crate) type Devices = weft_sim_device::SimDevice;
