//! weft's libfabric provider: the C ABI over [`weft_engine`] and [`weft_nic`].
//!
//! Place in the data flow: a client calls libfabric; libfabric (the *host* library, which loaded this one) calls the
//! operation tables of our objects; those translate into engine calls. Each file here is named as the libfabric man page
//! it implements; [`object`] holds the conventions that all share, [`errno`] the error table, [`params`] the variables.

pub mod errno;
mod lock;
mod noop;
mod object;
mod wait;
