//! weft's devices: shared memory and TCP behind one trait.
//!
//! Place in the data flow: below the engine ([`weft_engine::nic::Nic`]), above the kernel. All system calls and all
//! shared memory of weft live here. [`Devices`] is what an endpoint uses: both devices at once, peer by peer.
//! Read [`weft_engine::nic`] first: it is the contract.
//!
//! Errors: [`NicError`] for what cannot be set up; `weft_engine::nic::LinkError` for single links. Messages
//! for people go through the `log` facade.

mod checker;
mod config;
mod devices;
mod error;
mod fork;
pub mod handshake;
pub mod host;
mod mapped;
pub mod memfile;
pub mod shm;
pub mod tcp;
mod unmap;
mod worker;

pub use config::{Config, Identity};
pub use devices::{Devices, LinkInfo, Stats};
pub use error::NicError;
pub use fork::watch_forks;
pub use mapped::accessible;
pub use tcp::{Tcp, TcpConfig, Unsent};
pub use unmap::UnmapWatch;
pub use worker::Worker;
