//! Recordings: what each process of a job sent, received, awaited and computed, for replay elsewhere.
//!
//! Place in the data flow: beside it. With `FI_WEFT_RECORD` set, the profiling library (weft-coll) and the provider
//! (weft-fi) write one file each per process by a [`Writer`]. `weft sim replay` reads them as [`Recording`]s.
//!
//! A file is a sequence of records of 32 bytes, all numbers little-endian ([`Event`] has the meanings):
//!
//! ```text
//! bytes 0–7    the kind (8 bits), and above it the ticks of computation in front of the event (56 bits)
//! bytes 8–15   two numbers of 32 bits, `a` and `b`
//! bytes 16–31  two numbers of 64 bits, `c` and `d`
//! ```
//!
//! Ticks are those of the processor's clock. [`Event::Rate`] ends each block that is written, and tells their duration.
//! The first record is [`Event::Start`]. A file without [`Event::End`] is of a process that was killed.
//!
//! Rules:
//! - Computation is the time between two recorded calls. The time inside calls is not: a replay finds out how long a
//!   call takes.
//! - A receive of any source or tag is bound to the message that it received in the recorded run.
//! - A test that finds nothing is no event. The time between two such tests is computation if it is at least
//!   [`SPIN_TICKS`]; a shorter one belongs to a loop that waits.

#![forbid(unsafe_code)]

mod clock;
mod event;
mod reader;
mod writer;

pub use clock::Clock;
pub use event::{ANY, Event, OWN, Omitted, Source};
pub use reader::{Recording, Unreadable};
pub use writer::Writer;

/// The version of the format.
pub const VERSION: u64 = 2;
/// Time between two tests without result from which it counts as computation, in ticks of the processor: about 1 µs.
pub const SPIN_TICKS: u64 = 2048;
/// The variable that names the file.
pub const VARIABLE: &str = "FI_WEFT_RECORD";
