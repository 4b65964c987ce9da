//! An address vector that processes share by name (fi_av(3), `fi_av_attr.name`).
//!
//! Place in the data flow: [`super::table::Table`] keeps what is here in memory, too, and comes here to
//! insert, to remove, and for what it does not know.
//!
//! The addresses are in a memfd of whoever was first to open the name. Others find it by two abstract
//! sockets, on which nobody listens: one makes sure that there is one maker, the name of the other says by
//! which process and number the file is to be had under /proc. All that goes when the last process goes that
//! has it; nothing has a name in a file system. Only processes of the same user can open it; what they write
//! is checked as any address is. Abstract names are anybody's to take: who takes the first one without having
//! the file, another user for instance, keeps the vector from being made, which is an error (-FI_EADDRINUSE),
//! and no more.
//!
//! Layout: a head of [`HEAD_BYTES`] (magic, how often something was removed, how many rows there are, the
//! name), then rows of [`ROW_BYTES`]: the address, and how often it was inserted. A row, once there, keeps
//! its number. Writers hold the file's lock. Everybody has the words of the head mapped: whether others have
//! done something is seen without a system call.
//!
//! The number of rows in the head counts only as far as the file has memory for them: a process that writes
//! nonsense there costs the others no more than it takes itself. A hole at the end of the file counts as no
//! row.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::hash::BuildHasher;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxBuildHasher;
use rustix::fs::{FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use weft_engine::api::Changes;
use weft_engine::name::{EpName, NAME_BYTES};
use weft_os::memfile::{self, Words};

use crate::abi::errno::{self, Errno};

const MAGIC: u64 = u64::from_le_bytes(*b"weft av2");
/// Which words of the head say how often a row was removed, and how many rows there are.
const REMOVALS: usize = 1;
const ROWS: usize = 2;
/// Words of the head before the name.
const WORDS: usize = 3;
/// Where the head has the length of the name, and then that.
const NAME_AT: u64 = WORDS as u64 * 8;
/// Longest name of a vector in bytes.
const LONGEST_NAME: usize = 256;
/// Bytes of the head.
const HEAD: usize = 512;
const HEAD_BYTES: u64 = HEAD as u64;
/// Bytes of a row.
const ROW: usize = NAME_BYTES + 4;
const ROW_BYTES: u64 = ROW as u64;
/// Rows that are read at once.
const BLOCK: usize = 1024;
/// How often to look for the maker of a file that is just being made.
const LOOKS: u32 = 200;

const _: () = assert!(NAME_AT + 8 + LONGEST_NAME as u64 <= HEAD_BYTES);

/// The file, and what tells others of it.
pub(super) struct Shared {
    file: File,
    words: Words,
    /// The number of rows that the head last said, in the upper half, and the number of them that the file
    /// had memory for.
    checked: AtomicU64,
    read_only: bool,
    _sockets: Vec<OwnedFd>,
}

/// What a row has.
pub(super) struct Row {
    pub(super) name: Option<EpName>,
    pub(super) uses: u32,
}

impl Row {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (name, uses) = bytes.split_at_checked(NAME_BYTES)?;
        Some(Self { name: EpName::parse(name).ok(), uses: u32::from_le_bytes(uses.try_into().ok()?) })
    }
}

/// Holds the file's lock.
pub(super) struct Writing<'a>(&'a File);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let unlocked = flock(self.0, FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok());
    }
}

/// An abstract socket of that name, which holds the name and no more.
fn claim(name: &str) -> Result<OwnedFd, rustix::io::Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Writes where the process may.
fn write(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    memfile::may_have(at + bytes.len() as u64)?;
    file.write_all_at(bytes, at)
}

impl Shared {
    /// Opens the vector of that name, or makes it.
    pub(super) fn open(name: &CStr, read_only: bool) -> Result<Self, Errno> {
        let bytes = name.to_bytes();
        if bytes.is_empty() || bytes.len() > LONGEST_NAME {
            return Err(Errno::INVAL);
        }
        let user = rustix::process::getuid().as_raw();
        let public = format!("weft-av-{:016x}", FxBuildHasher.hash_one((user, bytes)));
        if read_only {
            return Self::find(&public, bytes, true);
        }
        match claim(&public) {
            Ok(socket) => Self::make(&public, bytes, socket),
            Err(rustix::io::Errno::ADDRINUSE) => {
                let found = (0..LOOKS).find_map(|_| {
                    let found = Self::find(&public, bytes, false);
                    if found.is_err() {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    found.ok()
                });
                found.ok_or_else(|| {
                    log::warn!(
                        "fi_av_open: the socket @{public}, which stands for the name of this address vector, is held by a process that has no such \
                         vector of this user's; `ss -xap` tells whose it is. End that process, or give the vector another name"
                    );
                    Errno::ADDRINUSE
                })
            }
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }

    fn make(public: &str, name: &[u8], socket: OwnedFd) -> Result<Self, Errno> {
        let made = memfile::create(c"weft-av", MemfdFlags::ALLOW_SEALING);
        let fd = made.map_err(|error| errno::told("fi_av_open", &error.into()))?;
        let file = File::from(fd);
        write(&file, &[0; HEAD], 0)?;
        write(&file, &(name.len() as u64).to_le_bytes(), NAME_AT)?;
        write(&file, name, NAME_AT + 8)?;
        write(&file, &MAGIC.to_le_bytes(), 0)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL).map_err(std::io::Error::from)?;
        let words = Words::map(&file, WORDS).map_err(std::io::Error::from)?;
        let place = format!("{public}-{}-{}", std::process::id(), file.as_raw_fd());
        let told = claim(&place).map_err(std::io::Error::from)?;
        Ok(Self { file, words, checked: AtomicU64::new(0), read_only: false, _sockets: vec![socket, told] })
    }

    fn find(public: &str, name: &[u8], read_only: bool) -> Result<Self, Errno> {
        let sockets = std::fs::read_to_string("/proc/net/unix")?;
        let prefix = format!("@{public}-");
        let mut places = sockets.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix(&prefix));
        let open = |place: &str| {
            let (process, number) = place.split_once('-')?;
            let path = format!("/proc/{}/fd/{}", process.parse::<u32>().ok()?, number.parse::<u32>().ok()?);
            // The descriptor may be any file of any process. Opening it must not block, must not make a
            // terminal the controlling one, and must not yield addresses that another user has written.
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
            let file = OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path).ok()?;
            let data = file.metadata().ok()?;
            if !data.is_file() || data.uid() != rustix::process::geteuid().as_raw() {
                return None;
            }
            let words = Words::map(&file, WORDS).ok()?;
            let shared = Self { file, words, checked: AtomicU64::new(0), read_only, _sockets: Vec::new() };
            shared.is_of(name).then_some(shared)
        };
        places.find_map(open).ok_or(Errno::NOENT)
    }

    /// Whether this is a vector of that name.
    fn is_of(&self, name: &[u8]) -> bool {
        let mut found = vec![0; name.len()];
        let mut len = [0; 8];
        self.words.get(0) == MAGIC
            && self.file.read_exact_at(&mut len, NAME_AT).is_ok()
            && u64::from_le_bytes(len) == name.len() as u64
            && self.file.read_exact_at(&mut found, NAME_AT + 8).is_ok()
            && found == name
    }

    /// Whether nothing may be inserted or removed here.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Keeps writers in other processes out.
    pub(super) fn writing(&self) -> Option<Writing<'_>> {
        loop {
            match flock(&self.file, FlockOperation::LockExclusive) {
                Ok(()) => return Some(Writing(&self.file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// How many rows there are: 2³² - 1 at most. The file is asked for its size once for each number that the
    /// head says.
    pub(super) fn len(&self) -> u64 {
        let said = self.words.get(ROWS).min(u64::from(u32::MAX));
        let checked = self.checked.load(Ordering::Relaxed);
        if checked >> 32 == said {
            return checked & u64::from(u32::MAX);
        }
        let rows = said.min(self.rows_of_file());
        self.checked.store(said << 32 | rows, Ordering::Relaxed);
        rows
    }

    /// How many rows the file can have, by its length and by the memory that it takes.
    fn rows_of_file(&self) -> u64 {
        /// Units of `st_blocks`, see stat(2).
        const BLOCK_BYTES: u64 = 512;
        let Ok(data) = self.file.metadata() else { return 0 };
        data.len().min(data.blocks().saturating_mul(BLOCK_BYTES)).saturating_sub(HEAD_BYTES) / ROW_BYTES
    }

    /// How often a row was removed so far.
    pub(super) fn removals(&self) -> u64 {
        self.words.get(REMOVALS)
    }

    /// Both.
    pub(super) fn changes(&self) -> Changes {
        Changes { removals: self.removals(), rows: self.len() }
    }

    /// One row.
    pub(super) fn row(&self, at: u64) -> Option<Row> {
        self.rows(at, at + 1).next()
    }

    /// Rows in their order, as many as there are.
    pub(super) fn rows(&self, from: u64, to: u64) -> impl Iterator<Item = Row> {
        let blocks = (from..to).step_by(BLOCK).map_while(move |at| {
            let mut bytes = vec![0; ROW * usize::try_from(to - at).map_or(BLOCK, |rows| rows.min(BLOCK))];
            self.file.read_exact_at(&mut bytes, HEAD_BYTES + at * ROW_BYTES).ok().map(|()| bytes)
        });
        blocks.flat_map(|bytes| bytes.chunks_exact(ROW).filter_map(Row::parse).collect::<Vec<_>>())
    }

    /// Appends a row. Under the lock.
    pub(super) fn append(&self, name: &EpName) -> Option<u64> {
        let at = self.len();
        if at == u64::from(u32::MAX) {
            return None;
        }
        let mut bytes = [0; ROW];
        bytes[..NAME_BYTES].copy_from_slice(name.as_bytes());
        bytes[NAME_BYTES..].copy_from_slice(&1_u32.to_le_bytes());
        write(&self.file, &bytes, HEAD_BYTES + at * ROW_BYTES).ok()?;
        self.set(ROWS, at + 1)?;
        Some(at)
    }

    /// How often the row's address is inserted now. Under the lock.
    pub(super) fn set_uses(&self, at: u64, uses: u32) -> Option<()> {
        write(&self.file, &uses.to_le_bytes(), HEAD_BYTES + at * ROW_BYTES + NAME_BYTES as u64).ok()?;
        if uses == 0 {
            self.set(REMOVALS, self.removals().wrapping_add(1))?;
        }
        Some(())
    }

    /// A word of the head. Under the lock.
    fn set(&self, word: usize, value: u64) -> Option<()> {
        write(&self.file, &value.to_le_bytes(), word as u64 * 8).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn vector(name: &str) -> (Shared, Shared) {
        let name = std::ffi::CString::new(format!("{name} {}", std::process::id())).unwrap();
        (Shared::open(&name, false).unwrap(), Shared::open(&name, true).unwrap())
    }

    fn address(port: u16) -> EpName {
        EpName::service(([127, 0, 0, 1], port).into())
    }

    /// A process that has the vector writes a number of rows that the file does not have, and makes the file
    /// longer without filling it.
    #[test]
    fn there_are_no_more_rows_than_the_file_has_memory_for() {
        let (writer, reader) = vector("rows");
        (1..4).for_each(|port| assert_eq!(writer.append(&address(port)), Some(u64::from(port) - 1)));
        assert_eq!(reader.len(), 3);
        writer.set(ROWS, 1 << 31).unwrap();
        assert_eq!(reader.len(), 3, "the file ends behind the third row");
        writer.file.set_len(1 << 38).unwrap();
        writer.set(ROWS, u64::MAX).unwrap();
        // One page at least has memory, and a huge page at most.
        let rows = reader.len();
        assert!((3..=(2 << 20) / ROW_BYTES).contains(&rows), "{rows} rows");
        assert_eq!(reader.rows(0, 3).filter_map(|row| row.name).collect::<Vec<_>>(), [1, 2, 3].map(address));
        // The next row goes where the others end, and the number is right again.
        assert_eq!(writer.append(&address(4)), Some(rows));
        assert_eq!((writer.len(), reader.len()), (rows + 1, rows + 1));
    }
}
