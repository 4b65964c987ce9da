//! Recorded jobs, as programs of the simulation.
//!
//! Place in the data flow: [`Recording`](weft_record::Recording)s become a [`Job`] ([`build()`]), which
//! `weft_scale::Machine` performs at the costs of a profile. [`goal`] writes and reads jobs in the text format of
//! LogGOPSim and ATLAHS. [`tune`] compares settings.

#![forbid(unsafe_code)]

mod build;
pub mod goal;
mod job;
mod matching;
pub mod tune;

pub use build::{Choice, Fault, build};
pub use job::{Job, Message};
