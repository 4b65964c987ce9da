//! The shared memory of a team on one host: counters of barriers, and pieces of data for collectives.
//!
//! Place in the data flow: `team` makes an area for each team in the job's memory file; `barrier`, `coll` and `split`
//! use it. Each member writes its own block and reads those of others.
//!
//! ```text
//! block of a member: line 0 barriers of the team · line 1 named barriers · line 2 collectives · line 3 exchange
//!                    two chunks of data
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use crate::board::Board;
use crate::error::Error;
use crate::memory::{LINE_BYTES, LINE_WORDS, Line};

/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = 8192;
/// Words of a message that [`Area::post`] publishes, with its number.
pub const EXCHANGE_WORDS: usize = LINE_WORDS / 2;

const CHUNK_LINES: usize = CHUNK_BYTES / LINE_BYTES;
const HEAD_LINES: usize = 4;
const MEMBER_LINES: usize = HEAD_LINES + 2 * CHUNK_LINES;

/// The lines of a member's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Barriers of the team.
    Barrier = 0,
    /// Named barriers.
    Named = 1,
    /// Collectives.
    Data = 2,
    /// Short messages to all members.
    Exchange = 3,
}

/// The area of a team.
pub struct Area {
    lines: &'static [Line],
    members: u32,
}

impl Area {
    /// Bytes of an area.
    #[must_use]
    pub const fn bytes(members: u32) -> usize {
        members as usize * MEMBER_LINES * LINE_BYTES
    }

    /// Maps the area at an offset of the job's memory file.
    ///
    /// # Errors
    /// The offset is not that of an area, or the system refuses the mapping.
    pub fn map(board: &Board, offset: u64, members: u32) -> Result<Self, Error> {
        Ok(Self { lines: board.file().lines(offset, members as usize * MEMBER_LINES)?, members })
    }

    /// The number of members.
    #[inline(always)]
    #[must_use]
    pub fn members(&self) -> u32 {
        self.members
    }

    /// A line of a member.
    #[inline(always)]
    #[must_use]
    pub fn line(&self, member: u32, part: Part) -> &'static Line {
        &self.lines[member as usize * MEMBER_LINES + part as usize]
    }

    /// The address of a member's chunk.
    #[must_use]
    pub fn chunk(&self, member: u32, number: u64) -> *mut u8 {
        let first = member as usize * MEMBER_LINES + HEAD_LINES;
        let lines = &self.lines[first..first + 2 * CHUNK_LINES];
        // The words are atomic, so the memory may be written through a shared reference.
        std::ptr::from_ref(&lines[usize::from(number % 2 == 1) * CHUNK_LINES]).cast_mut().cast()
    }

    /// The first word of a line, in which a member counts its arrivals.
    #[inline(always)]
    #[must_use]
    pub fn arrivals(&self, member: u32, part: Part) -> &'static AtomicU64 {
        self.line(member, part).word(0)
    }

    /// Whether all members have counted to `number`. `seen` is the number of members that are known to have, and
    /// shortens the next look.
    #[inline(always)]
    pub fn have_arrived(&self, part: Part, number: u64, seen: &mut u32) -> bool {
        while *seen < self.members {
            if self.arrivals(*seen, part).load(Ordering::Acquire) < number {
                return false;
            }
            *seen += 1;
        }
        true
    }

    /// Publishes a message of this member for the exchange of a number, which grows by one each time.
    pub fn post(&self, member: u32, number: u64, message: [u64; EXCHANGE_WORDS - 1]) {
        let line = self.line(member, Part::Exchange);
        let first = usize::from(number % 2 == 1) * EXCHANGE_WORDS;
        for (at, word) in message.into_iter().enumerate() {
            line.word(first + 1 + at).store(word, Ordering::Relaxed);
        }
        line.word(first).store(number, Ordering::Release);
    }

    /// The message of a member in the exchange of a number, once it is there.
    #[must_use]
    pub fn posted(&self, member: u32, number: u64) -> Option<[u64; EXCHANGE_WORDS - 1]> {
        let line = self.line(member, Part::Exchange);
        let first = usize::from(number % 2 == 1) * EXCHANGE_WORDS;
        (line.word(first).load(Ordering::Acquire) >= number)
            .then(|| std::array::from_fn(|at| line.word(first + 1 + at).load(Ordering::Relaxed)))
    }
}
