//! The C ABI that all objects share, and the data-transfer entry points.
//!
//! Place in the data flow: a client calls a slot of an operation table. For data transfers the functions are those of
//! [`transfer`]: they check and translate the arguments with [`args`], and [`message`], [`rma`] and [`atomic`] call the
//! endpoint. [`object`] turns Rust objects into `fid`s and back, [`errno`] maps errors to libfabric's numbers, and
//! [`noop`] fills the slots that an object does not implement.

pub(crate) mod args;
pub(crate) mod atomic;
pub(crate) mod errno;
mod message;
pub(crate) mod noop;
pub(crate) mod object;
mod rma;
pub(crate) mod transfer;
