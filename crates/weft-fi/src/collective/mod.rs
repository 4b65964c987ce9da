//! Collectives (fi_collective(3)).
//!
//! Place in the data flow: a client selects addresses of an address vector ([`av_set`]) and joins a group with them
//! ([`group`]). The operations ([`ops`]) → [`Ep::start_collective`](crate::endpoint::Ep) → `Engine::start_collective`.
//! An extension exchanges blocks of different lengths, and performs operations that may end inside the call
//! ([`exchange`]).
//! A join ends in FI_JOIN_COMPLETE on the endpoint's event queue, an operation in an entry of its transmit queue.

pub(crate) mod av_set;
pub(crate) mod exchange;
pub(crate) mod group;
pub(crate) mod ops;
