//! Writes the recording of a process.
//!
//! Place in the data flow: the recorded calls of one process, in their order, arrive at [`Writer`]. Its user makes sure
//! that one thread calls at a time.
//!
//! Invariant: an event allocates nothing. A system call is made once for [`BUFFER_BYTES`] bytes, and the system's clock
//! is read as often: each block ends with the rate of the ticks that gaps are in.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::event::{Event, RECORD_BYTES};
use crate::{Clock, Source};

/// Bytes that are kept before they are written.
const BUFFER_BYTES: usize = 64 << 10;

/// The recording of one process. Its end is written when it is dropped or by [`Writer::end`].
#[derive(Debug)]
pub struct Writer {
    file: File,
    buffer: Vec<u8>,
    clock: &'static Clock,
    /// The begin by both clocks.
    began: (u64, Instant),
    /// The file has its end, or could not be written.
    closed: bool,
}

impl Writer {
    /// Makes the file. The clock starts, to which the caller reports all calls.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn create(
        path: &Path,
        (rank, ranks): (u32, u32),
        source: Source,
        clock: &'static Clock,
    ) -> std::io::Result<Self> {
        let file = File::create(path)?;
        let buffer = Vec::with_capacity(BUFFER_BYTES + 2 * RECORD_BYTES);
        let began = (clock.start(), Instant::now());
        let mut writer = Self { file, buffer, clock, began, closed: false };
        writer.add(&Event::Start { source, rank, ranks });
        Ok(writer)
    }

    /// Adds an event. The computation since the last one is in front of it.
    pub fn add(&mut self, event: &Event) {
        if self.closed {
            return;
        }
        self.buffer.extend_from_slice(&event.encode(self.clock.take_gap()));
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
        if self.closed {
            return;
        }
        let (ticks, ns) = self.passed();
        self.buffer.extend_from_slice(&Event::Rate { ticks, ns }.encode(0));
        if let Err(error) = self.file.write_all(&self.buffer) {
            eprintln!("weft: the recording ends here, since its file cannot be written: {error}");
            self.closed = true;
        }
        self.buffer.clear();
    }

    /// The time since the begin by both clocks.
    fn passed(&self) -> (u64, u64) {
        let (ticks, instant) = self.began;
        let ns = u64::try_from(instant.elapsed().as_nanos()).unwrap_or(u64::MAX);
        (weft_os::clock::ticks().saturating_sub(ticks), ns)
    }

    /// Writes the end.
    pub fn end(&mut self) {
        if self.closed {
            return;
        }
        let (_, lasted_ns) = self.passed();
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
