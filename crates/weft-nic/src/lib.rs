//! weft's devices: shared memory and TCP behind one trait.
//!
//! Place in the data flow: below the engine ([`weft_engine::nic::Nic`]), above the kernel. All system calls for
//! devices and all shared memory of weft are here. An endpoint uses [`Devices`], which chooses between the two devices
//! for each peer. Read [`weft_engine::nic`] first: it is the contract.
//!
//! Errors: [`NicError`] if a device cannot be set up, `weft_engine::nic::LinkError` for single links. Log messages go
//! through the `log` facade.

mod config;
mod device;
mod devices;
mod error;
pub mod handshake;
pub mod host;
pub mod shm;
pub mod tcp;

pub use config::{Config, Identity, Uring};
pub use device::Device;
pub use devices::{Devices, LinkInfo, PEER_ERRORS, Stats};
pub use error::NicError;
pub use tcp::{Tcp, TcpConfig, Unsent};
