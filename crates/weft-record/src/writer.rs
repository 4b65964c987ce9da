//! Writes the recording of a process.
//!
//! Place in the data flow: the recorded calls of one process, in their order, arrive at [`Writer`]. Its user makes sure
//! that one thread calls at a time.
//!
//! Invariant: an event allocates nothing. A system call is made once for [`BUFFER_BYTES`] bytes.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::event::{Event, RECORD_BYTES};
use crate::{SPIN_NS, Source};

/// Bytes that are kept before they are written.
const BUFFER_BYTES: usize = 64 << 10;

/// The time of the process: which part of it is computation.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    /// When the last call returned, since the start.
    left_ns: u64,
    /// Computation that no event has in front of it yet.
    gap_ns: u64,
    /// The last call was a test that found nothing.
    spinning: bool,
}

impl Default for Clock {
    fn default() -> Self {
        Self { start: Instant::now(), left_ns: 0, gap_ns: 0, spinning: false }
    }
}

impl Clock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A call begins.
    pub fn enter(&mut self) {
        self.enter_at(self.now_ns());
    }

    fn enter_at(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.left_ns);
        if !self.spinning || passed_ns >= SPIN_NS {
            self.gap_ns += passed_ns;
        }
    }

    /// A call returns.
    pub fn leave(&mut self) {
        (self.left_ns, self.spinning) = (self.now_ns(), false);
    }

    /// A test returns that has found nothing.
    pub fn leave_empty(&mut self) {
        (self.left_ns, self.spinning) = (self.now_ns(), true);
    }
}

/// The recording of one process. Its end is written when it is dropped or by [`Writer::end`].
#[derive(Debug)]
pub struct Writer {
    file: File,
    buffer: Vec<u8>,
    /// The time of the process.
    pub clock: Clock,
    /// The file has its end, or could not be written.
    closed: bool,
}

impl Writer {
    /// Makes the file.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn create(path: &Path, rank: u32, source: Source, ranks: u32) -> std::io::Result<Self> {
        let file = File::create(path)?;
        let buffer = Vec::with_capacity(BUFFER_BYTES + RECORD_BYTES);
        let mut writer = Self { file, buffer, clock: Clock::default(), closed: false };
        writer.add(&Event::Start { source, rank, ranks });
        Ok(writer)
    }

    /// Adds an event. The computation since the last one is in front of it.
    pub fn add(&mut self, event: &Event) {
        if self.closed {
            return;
        }
        let gap_ns = std::mem::take(&mut self.clock.gap_ns);
        self.buffer.extend_from_slice(&event.encode(gap_ns));
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Adds the members of a context.
    pub fn add_members(&mut self, context: u32, ranks: &[u32]) {
        for four in ranks.chunks(4) {
            let ranks = std::array::from_fn(|at| four.get(at).copied().unwrap_or(crate::ANY));
            self.add(&Event::Members { context, ranks });
        }
    }

    /// Adds the name of a peer.
    pub fn add_name(&mut self, peer: u32, name: &[u8]) {
        for sixteen in name.chunks(16) {
            let part = std::array::from_fn(|at| sixteen.get(at).copied().unwrap_or(0));
            self.add(&Event::Name { peer, part });
        }
    }

    /// Writes what is kept. After a failure nothing more is recorded, and the caller of the call that is recorded does
    /// not notice.
    pub fn flush(&mut self) {
        if let Err(error) = self.file.write_all(&self.buffer) {
            eprintln!("weft: the recording ends here, since its file cannot be written: {error}");
            self.closed = true;
        }
        self.buffer.clear();
    }

    /// Writes the end.
    pub fn end(&mut self) {
        if self.closed {
            return;
        }
        let lasted_ns = self.clock.now_ns();
        self.add(&Event::End { lasted_ns });
        self.flush();
        self.closed = true;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_that_wait_are_no_computation() {
        let mut clock = Clock::default();
        clock.enter_at(500);
        (clock.left_ns, clock.spinning) = (600, true);
        clock.enter_at(650);
        (clock.left_ns, clock.spinning) = (700, true);
        assert_eq!(clock.gap_ns, 500, "a loop that waits");
        clock.enter_at(700 + SPIN_NS);
        assert_eq!(clock.gap_ns, 500 + SPIN_NS, "work between two tests");
    }
}
