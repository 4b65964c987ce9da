//! The first part of the job's memory file: what the ranks of a host know of one another.
//!
//! Place in the data flow: the leader of a host (or the process that forks all ranks) makes the file, all ranks map the
//! board. `exit` reads and writes the job's end, `segment` publishes segments, `area` has the counters of teams.
//!
//! ```text
//! line 0            ranks · exit word · news · next free byte of the file · area of all ranks · key (4 words)
//! line 1            ranks that sleep
//! RANK_LINES each   process · stage · length of the blob · asleep · lost · tolerant
//!                   blob (4 lines) · endpoints' segments (7 lines)
//! ```
//!
//! Invariant: only the rank itself writes its lines, except for its process number, which the supervisor may read at
//! any time. Numbers from here are checked where they become addresses: ranks of a job trust one another
//! (docs/security.md), but a torn or missing value must not become a wrong address.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use weft_os::SystemError;

use crate::area::Area;
use crate::error::Error;
use crate::memory::{JobFile, LINE_BYTES, LINE_WORDS, Line};

/// The most ranks of a job.
pub const MAX_RANKS: u32 = 8192;
/// The most endpoints of a rank.
pub const MAX_ENDPOINTS: usize = 33;
/// Bytes of the job's key.
pub const KEY_BYTES: usize = 32;
/// The longest blob of a rank, in bytes.
pub const BLOB_BYTES: usize = BLOB_LINES * LINE_BYTES;

const BLOB_LINES: usize = 4;
const ENDPOINT_WORDS: usize = 3;
const ENDPOINT_LINES: usize = (MAX_ENDPOINTS * ENDPOINT_WORDS).div_ceil(LINE_WORDS);
/// Lines before those of the ranks. The number of sleepers has its own, because all polls read the first.
const HEAD_LINES: usize = 2;
const RANK_LINES: usize = 1 + BLOB_LINES + ENDPOINT_LINES;

// Words of line 0.
const RANKS: usize = 0;
const EXIT: usize = 1;
const NEWS: usize = 2;
const NEXT_FREE: usize = 3;
const WORLD: usize = 4;
const KEY: usize = 5;
// Words of the first line of a rank.
const PROCESS: usize = 0;
const STAGE: usize = 1;
const BLOB_LEN: usize = 2;
const ASLEEP: usize = 3;
const OPEN: usize = 4;
const LOST: usize = 5;
const TOLERANT: usize = 6;

/// The bit of the exit word that says that the job ends.
const EXIT_SET: u64 = 1 << 63;

/// The progress of a rank through its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has not started.
    Absent,
    /// It runs.
    Up,
    /// It has called exit, or is about to end.
    Exiting,
}

/// A published segment of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Its address in the owner's process.
    pub addr: usize,
    /// Its length in bytes.
    pub bytes: usize,
    /// Its place in the job's memory file; `None` for memory that the client has allocated.
    pub offset: Option<u64>,
}

/// The board of a host.
pub struct Board {
    file: JobFile,
    lines: &'static [Line],
    ranks: u32,
}

fn page_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(rustix::param::page_size() as u64)
}

impl Board {
    const fn lines_for(ranks: u32) -> usize {
        HEAD_LINES + ranks as usize * RANK_LINES
    }

    /// Makes the board of a new job.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub fn create(ranks: u32) -> Result<Self, Error> {
        let board = Self::over(JobFile::create()?, ranks)?;
        board.lines[0].word(RANKS).store(u64::from(ranks), Ordering::Relaxed);
        let used = page_up((Self::lines_for(ranks) * LINE_BYTES) as u64);
        board.lines[0].word(NEXT_FREE).store(used, Ordering::Release);
        let world = board.allocate(Area::bytes(ranks) as u64)?;
        board.lines[0].word(WORLD).store(world, Ordering::Release);
        let key = Self::new_key()?;
        for (at, word) in key.as_chunks::<8>().0.iter().enumerate() {
            board.lines[0].word(KEY + at).store(u64::from_le_bytes(*word), Ordering::Release);
        }
        Ok(board)
    }

    /// A random key for a new job.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new_key() -> Result<[u8; KEY_BYTES], Error> {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key)
            .map_err(|_| SystemError::of("getrandom")(std::io::Error::from(std::io::ErrorKind::Unsupported)))?;
        Ok(key)
    }

    /// Maps the board of a file that was passed to this rank.
    ///
    /// # Errors
    /// The file is not that of a job with this number of ranks, or the system refuses the mapping.
    pub fn join(file: JobFile, ranks: u32) -> Result<Self, Error> {
        let board = Self::over(file, ranks)?;
        let there = board.lines[0].word(RANKS).load(Ordering::Acquire);
        if there == u64::from(ranks) { Ok(board) } else { Err(Error::Ranks(there)) }
    }

    fn over(file: JobFile, ranks: u32) -> Result<Self, Error> {
        let lines = file.lines(0, Self::lines_for(ranks))?;
        Ok(Self { file, lines, ranks })
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The area of the team of all ranks.
    #[must_use]
    pub fn world(&self) -> u64 {
        self.lines[0].word(WORLD).load(Ordering::Acquire)
    }

    /// The job's key, which strangers do not have.
    #[must_use]
    pub fn key(&self) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        for (at, bytes) in key.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = self.lines[0].word(KEY + at).load(Ordering::Acquire).to_le_bytes();
        }
        key
    }

    /// The file of the board and of all that is allocated in it.
    #[must_use]
    pub fn file(&self) -> &JobFile {
        &self.file
    }

    fn rank_line(&self, rank: u32, line: usize) -> &'static Line {
        debug_assert!(rank < self.ranks && line < RANK_LINES);
        &self.lines[HEAD_LINES + rank as usize * RANK_LINES + line]
    }

    /// Takes a place of whole pages in the file. Returns its offset.
    ///
    /// # Errors
    /// The file has no room left.
    pub fn allocate(&self, bytes: u64) -> Result<u64, Error> {
        // Large places begin where large pages may.
        let align: u64 = if bytes >= 4 << 20 { 2 << 20 } else { rustix::param::page_size() as u64 };
        let page = rustix::param::page_size() as u64;
        let pages = bytes.checked_next_multiple_of(page).ok_or(Error::NoRoom(bytes))?;
        let next = self.lines[0].word(NEXT_FREE);
        let mut free = next.load(Ordering::Relaxed);
        loop {
            let start = free.next_multiple_of(align);
            let end = start.checked_add(pages).filter(|&end| end <= self.file.bytes());
            let end = end.ok_or(Error::NoRoom(bytes))?;
            match next.compare_exchange_weak(free, end, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(start),
                Err(now) => free = now,
            }
        }
    }

    /// Notes that a rank runs in a process.
    pub fn set_up(&self, rank: u32, pid: u32) {
        self.rank_line(rank, 0).word(PROCESS).store(u64::from(pid), Ordering::Relaxed);
        self.rank_line(rank, 0).word(STAGE).store(1, Ordering::Release);
    }

    /// Notes that a rank is about to end.
    pub fn set_exiting(&self, rank: u32) {
        self.rank_line(rank, 0).word(STAGE).store(2, Ordering::Release);
    }

    /// The stage of a rank.
    #[must_use]
    pub fn stage(&self, rank: u32) -> Stage {
        match self.rank_line(rank, 0).word(STAGE).load(Ordering::Acquire) {
            0 => Stage::Absent,
            1 => Stage::Up,
            _ => Stage::Exiting,
        }
    }

    /// The process of a rank that has started.
    #[must_use]
    pub fn process(&self, rank: u32) -> Option<u32> {
        let pid = self.rank_line(rank, 0).word(PROCESS).load(Ordering::Relaxed);
        u32::try_from(pid).ok().filter(|&pid| pid != 0)
    }

    /// Notes whether a rank sleeps and wants to be woken. What it wrote before, and what it reads after, is in this
    /// order with the same of [`Self::has_sleepers`].
    pub fn set_asleep(&self, rank: u32, asleep: bool) {
        let count = self.lines[1].word(0);
        self.rank_line(rank, 0).word(ASLEEP).store(u64::from(asleep), Ordering::Relaxed);
        if asleep {
            count.fetch_add(1, Ordering::SeqCst);
        } else {
            count.fetch_sub(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Whether ranks sleep.
    #[inline(always)]
    #[must_use]
    pub fn has_sleepers(&self) -> bool {
        fence(Ordering::SeqCst);
        self.lines[1].word(0).load(Ordering::Relaxed) != 0
    }

    /// Whether a rank sleeps.
    #[must_use]
    pub fn is_asleep(&self, rank: u32) -> bool {
        self.rank_line(rank, 0).word(ASLEEP).load(Ordering::Relaxed) != 0
    }

    /// Notes that other ranks may access all memory of a rank.
    pub fn set_open(&self, rank: u32) {
        self.rank_line(rank, 0).word(OPEN).store(1, Ordering::Release);
    }

    /// Whether other ranks may access all memory of a rank.
    #[must_use]
    pub fn is_open(&self, rank: u32) -> bool {
        self.rank_line(rank, 0).word(OPEN).load(Ordering::Acquire) != 0
    }

    /// Whether a rank has published its blob.
    #[must_use]
    pub fn has_blob(&self, rank: u32) -> bool {
        self.rank_line(rank, 0).word(BLOB_LEN).load(Ordering::Acquire) != 0
    }

    /// Publishes the blob of a rank. It is there when [`Self::has_blob`] says so.
    pub fn put_blob(&self, rank: u32, blob: &[u8]) {
        assert!(blob.len() <= BLOB_BYTES, "a blob of {} bytes", blob.len());
        for (at, bytes) in blob.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let line = self.rank_line(rank, 1 + at / LINE_WORDS);
            line.word(at % LINE_WORDS).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.rank_line(rank, 0).word(BLOB_LEN).store(blob.len() as u64, Ordering::Release);
    }

    /// The blob of a rank.
    #[must_use]
    pub fn blob(&self, rank: u32) -> Vec<u8> {
        let len = self.rank_line(rank, 0).word(BLOB_LEN).load(Ordering::Acquire);
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(BLOB_BYTES);
        let word = |at: usize| {
            self.rank_line(rank, 1 + at / LINE_WORDS).word(at % LINE_WORDS).load(Ordering::Relaxed).to_le_bytes()
        };
        let mut blob: Vec<u8> = (0..len.div_ceil(8)).flat_map(word).collect();
        blob.truncate(len);
        blob
    }

    fn endpoint_word(&self, rank: u32, endpoint: usize, word: usize) -> &'static AtomicU64 {
        let at = endpoint * ENDPOINT_WORDS + word;
        self.rank_line(rank, 1 + BLOB_LINES + at / LINE_WORDS).word(at % LINE_WORDS)
    }

    /// Publishes the segment of an endpoint.
    pub fn publish(&self, rank: u32, endpoint: usize, segment: Published) {
        self.endpoint_word(rank, endpoint, 1).store(segment.bytes as u64, Ordering::Relaxed);
        self.endpoint_word(rank, endpoint, 2).store(segment.offset.map_or(0, |at| at + 1), Ordering::Relaxed);
        self.endpoint_word(rank, endpoint, 0).store(segment.addr as u64, Ordering::Release);
    }

    /// The segment of an endpoint; `None` if it has published none.
    #[must_use]
    pub fn published(&self, rank: u32, endpoint: usize) -> Option<Published> {
        if rank >= self.ranks || endpoint >= MAX_ENDPOINTS {
            return None;
        }
        let addr = usize::try_from(self.endpoint_word(rank, endpoint, 0).load(Ordering::Acquire)).ok()?;
        let bytes = usize::try_from(self.endpoint_word(rank, endpoint, 1).load(Ordering::Relaxed)).ok()?;
        let offset = self.endpoint_word(rank, endpoint, 2).load(Ordering::Relaxed).checked_sub(1);
        (addr != 0 && bytes != 0).then_some(Published { addr, bytes, offset })
    }

    /// Notes that the job ends with a code. The first code other than 0 stays. May run in a signal handler.
    pub fn end_job(&self, code: i32) {
        let word = self.lines[0].word(EXIT);
        let mine = EXIT_SET | u64::from(code.cast_unsigned());
        let mut now = word.load(Ordering::Relaxed);
        while now == 0 || (now == EXIT_SET && mine != EXIT_SET) {
            match word.compare_exchange_weak(now, mine, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// The code with which the job ends; `None` while it runs. May run in a signal handler.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        let word = self.lines[0].word(EXIT).load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "the code is in the low half")]
        (word & EXIT_SET != 0).then_some((word as u32).cast_signed())
    }

    /// Asks the ranks that have not called exit to end.
    pub fn set_ending(&self) {
        self.lines[0].word(NEWS).fetch_or(News::ENDING, Ordering::AcqRel);
    }

    /// Whether a rank that polls must end.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.news().is_ending()
    }

    /// The state that all ranks read.
    #[inline(always)]
    #[must_use]
    pub fn news(&self) -> News {
        News(self.lines[0].word(NEWS).load(Ordering::Acquire))
    }

    /// Notes that a rank has failed.
    pub fn set_lost(&self, rank: u32) {
        if self.rank_line(rank, 0).word(LOST).swap(1, Ordering::AcqRel) == 0 {
            self.lines[0].word(NEWS).fetch_add(News::LOSS, Ordering::AcqRel);
        }
    }

    /// Whether a rank has failed.
    #[must_use]
    pub fn is_lost(&self, rank: u32) -> bool {
        self.rank_line(rank, 0).word(LOST).load(Ordering::Acquire) != 0
    }

    /// Notes whether a rank goes on without ranks that fail.
    pub fn set_tolerant(&self, rank: u32, tolerant: bool) {
        self.rank_line(rank, 0).word(TOLERANT).store(u64::from(tolerant), Ordering::Release);
    }

    /// Whether a rank goes on without ranks that fail.
    #[must_use]
    pub fn is_tolerant(&self, rank: u32) -> bool {
        self.rank_line(rank, 0).word(TOLERANT).load(Ordering::Acquire) != 0
    }
}

/// The state that all ranks read: whether the job ends, and the number of ranks that have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News(u64);

impl News {
    const ENDING: u64 = 1;
    const LOSS: u64 = 2;

    /// Whether ranks that poll must end.
    #[inline(always)]
    #[must_use]
    pub fn is_ending(self) -> bool {
        self.0 & Self::ENDING != 0
    }

    /// A number that changes with the news.
    #[inline(always)]
    #[must_use]
    pub fn word(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_first_code_other_than_0_stays() {
        let board = Board::create(2).unwrap();
        assert_eq!(board.exit_code(), None);
        for (code, after) in [(0, 0), (-3, -3), (5, -3), (0, -3)] {
            board.end_job(code);
            assert_eq!(board.exit_code(), Some(after));
        }
    }

    #[test]
    fn blobs_and_segments_are_read_back() {
        let board = Board::create(3).unwrap();
        let file = JobFile::adopt(board.file().fd().try_clone_to_owned().unwrap()).unwrap();
        let other = Board::join(file, 3).unwrap();
        let blob: Vec<u8> = (0..=254).cycle().take(BLOB_BYTES - 3).collect();
        board.put_blob(2, &blob);
        assert_eq!(other.blob(2), blob);
        assert_eq!(other.blob(1), []);
        for (endpoint, offset) in [(0, Some(0)), (MAX_ENDPOINTS - 1, None)] {
            let segment = Published { addr: 4096, bytes: 77, offset };
            board.publish(1, endpoint, segment);
            assert_eq!(other.published(1, endpoint), Some(segment));
        }
        assert_eq!(other.published(1, 1), None);
        assert_eq!(other.published(3, 0), None);
    }

    #[test]
    fn places_do_not_overlap() {
        let board = Board::create(1).unwrap();
        let first = board.allocate(1).unwrap();
        let large = board.allocate(5 << 20).unwrap();
        assert!(large >= first + 4096 && large.is_multiple_of(2 << 20));
        assert!(board.allocate(1).unwrap() >= large + (5 << 20));
        for bytes in [u64::MAX, u64::MAX / 2, board.file().bytes()] {
            assert!(matches!(board.allocate(bytes), Err(Error::NoRoom(_))));
        }
    }
}
