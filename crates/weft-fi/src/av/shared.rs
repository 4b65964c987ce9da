//! An address vector that processes share by name (fi_av(3), `fi_av_attr.name`).
//!
//! Place in the data flow: [`super::table::Table`] keeps a copy of the rows in memory. It uses this file to
//! insert, to remove, and to read new rows.
//!
//! The addresses are in a memfd of the process that opened the name first. Other processes find it by two
//! abstract sockets on which no process listens. The first ensures that only one process makes the file. The
//! name of the second contains the process id and the descriptor number by which the file is found under
//! /proc. All of this disappears with the last process that uses it, and no file has a name in a file system.
//! Only processes of the same user can open the file. Rows written by other processes are checked like any
//! address. Any process may bind an abstract name. A process, for instance of another user, that binds the
//! first name without providing the file prevents the vector from being created. The only effect is an error
//! (-FI_EADDRINUSE).
//!
//! Layout: a head of [`HEAD_BYTES`] (magic, number of removals, number of rows, name), followed by rows of
//! [`ROW_BYTES`] (address, number of insertions). A row never changes its number. Writers hold the file's
//! lock. All processes have the words of the head mapped, so they detect changes without a system call.
//!
//! The number of rows in the head is limited to the rows for which the file has memory. A process that writes
//! a wrong number there costs the others no more memory than it uses itself. A hole at the end of the file
//! does not count as rows.

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
/// The positions of the number of removals and the number of rows, in words of the head.
const REMOVALS: usize = 1;
const ROWS: usize = 2;
/// The number of words in the head in front of the name.
const WORDS: usize = 3;
/// The offset of the name's length, which the name follows.
const NAME_AT: u64 = WORDS as u64 * 8;
/// The maximum length of a vector's name in bytes.
const LONGEST_NAME: usize = 256;
/// The size of the head in bytes.
const HEAD: usize = 512;
const HEAD_BYTES: u64 = HEAD as u64;
/// The size of a row in bytes.
const ROW: usize = NAME_BYTES + 4;
const ROW_BYTES: u64 = ROW as u64;
/// The number of rows in one read.
const BLOCK: usize = 1024;
/// The number of attempts to find a file that another process is creating.
const FIND_ATTEMPTS: u32 = 200;

const _: () = assert!(NAME_AT + 8 + LONGEST_NAME as u64 <= HEAD_BYTES);

/// The shared file, and the sockets by which other processes find it.
pub(super) struct Shared {
    file: File,
    words: Words,
    /// Upper half: the number of rows as last read from the head. Lower half: the number of these rows for
    /// which the file had memory.
    checked: AtomicU64,
    read_only: bool,
    _sockets: Vec<OwnedFd>,
}

/// The contents of a row.
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

/// Binds a socket to an abstract name, which reserves the name.
fn claim(name: &str) -> Result<OwnedFd, rustix::io::Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Writes to the file within the process's limit of file sizes.
fn write(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    memfile::check_size_limit(at + bytes.len() as u64)?;
    file.write_all_at(bytes, at)
}

impl Shared {
    /// Opens the vector with this name, or creates it.
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
                let found = (0..FIND_ATTEMPTS).find_map(|_| {
                    let found = Self::find(&public, bytes, false);
                    if found.is_err() {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    found.ok()
                });
                found.ok_or_else(|| {
                    log::warn!(
                        "fi_av_open: the socket @{public}, which represents the name of this address vector, is bound by a process that has no such \
                         vector of this user; `ss -xap` shows the process. End that process, or choose another name for the vector"
                    );
                    Errno::ADDRINUSE
                })
            }
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }

    fn make(public: &str, name: &[u8], socket: OwnedFd) -> Result<Self, Errno> {
        let made = memfile::create(c"weft-av", MemfdFlags::ALLOW_SEALING);
        let fd = made.map_err(|error| errno::log_error("fi_av_open", &error.into()))?;
        let file = File::from(fd);
        write(&file, &[0; HEAD], 0)?;
        write(&file, &(name.len() as u64).to_le_bytes(), NAME_AT)?;
        write(&file, name, NAME_AT + 8)?;
        write(&file, &MAGIC.to_le_bytes(), 0)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL).map_err(std::io::Error::from)?;
        let words = Words::map(&file, WORDS).map_err(std::io::Error::from)?;
        let location = format!("{public}-{}-{}", std::process::id(), file.as_raw_fd());
        let locator = claim(&location).map_err(std::io::Error::from)?;
        Ok(Self { file, words, checked: AtomicU64::new(0), read_only: false, _sockets: vec![socket, locator] })
    }

    fn find(public: &str, name: &[u8], read_only: bool) -> Result<Self, Errno> {
        let sockets = std::fs::read_to_string("/proc/net/unix")?;
        let prefix = format!("@{public}-");
        let mut locations = sockets.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix(&prefix));
        let open = |location: &str| {
            let (process, number) = location.split_once('-')?;
            let path = format!("/proc/{}/fd/{}", process.parse::<u32>().ok()?, number.parse::<u32>().ok()?);
            // The descriptor may be any file of any process. Opening it must not block, and must not make a
            // terminal the controlling one. The addresses must not have been written by another user.
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
        locations.find_map(open).ok_or(Errno::NOENT)
    }

    /// Whether the file is a vector with this name.
    fn is_of(&self, name: &[u8]) -> bool {
        let mut found = vec![0; name.len()];
        let mut len = [0; 8];
        self.words.get(0) == MAGIC
            && self.file.read_exact_at(&mut len, NAME_AT).is_ok()
            && u64::from_le_bytes(len) == name.len() as u64
            && self.file.read_exact_at(&mut found, NAME_AT + 8).is_ok()
            && found == name
    }

    /// Whether insertions and removals are refused.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Locks out writers in other processes.
    pub(super) fn writing(&self) -> Option<Writing<'_>> {
        loop {
            match flock(&self.file, FlockOperation::LockExclusive) {
                Ok(()) => return Some(Writing(&self.file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// The number of rows, at most 2³² - 1. The file's size is read once per number in the head.
    pub(super) fn len(&self) -> u64 {
        let head_rows = self.words.get(ROWS).min(u64::from(u32::MAX));
        let checked = self.checked.load(Ordering::Relaxed);
        if checked >> 32 == head_rows {
            return checked & u64::from(u32::MAX);
        }
        let rows = head_rows.min(self.rows_of_file());
        self.checked.store(head_rows << 32 | rows, Ordering::Relaxed);
        rows
    }

    /// The maximum number of rows by the file's length and by its allocated memory.
    fn rows_of_file(&self) -> u64 {
        /// The unit of `st_blocks`, see stat(2).
        const BLOCK_BYTES: u64 = 512;
        let Ok(data) = self.file.metadata() else { return 0 };
        data.len().min(data.blocks().saturating_mul(BLOCK_BYTES)).saturating_sub(HEAD_BYTES) / ROW_BYTES
    }

    /// The number of removals so far.
    pub(super) fn removals(&self) -> u64 {
        self.words.get(REMOVALS)
    }

    /// The number of removals and the number of rows.
    pub(super) fn changes(&self) -> Changes {
        Changes { removals: self.removals(), rows: self.len() }
    }

    /// Reads one row.
    pub(super) fn row(&self, at: u64) -> Option<Row> {
        self.rows(at, at + 1).next()
    }

    /// Reads a range of rows in order, up to the end of the file.
    pub(super) fn rows(&self, from: u64, to: u64) -> impl Iterator<Item = Row> {
        let blocks = (from..to).step_by(BLOCK).map_while(move |at| {
            let mut bytes = vec![0; ROW * usize::try_from(to - at).map_or(BLOCK, |rows| rows.min(BLOCK))];
            self.file.read_exact_at(&mut bytes, HEAD_BYTES + at * ROW_BYTES).ok().map(|()| bytes)
        });
        blocks.flat_map(|bytes| bytes.chunks_exact(ROW).filter_map(Row::parse).collect::<Vec<_>>())
    }

    /// Appends a row. The file's lock is held.
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

    /// Sets the number of insertions of a row. The file's lock is held.
    pub(super) fn set_uses(&self, at: u64, uses: u32) -> Option<()> {
        write(&self.file, &uses.to_le_bytes(), HEAD_BYTES + at * ROW_BYTES + NAME_BYTES as u64).ok()?;
        if uses == 0 {
            self.set(REMOVALS, self.removals().wrapping_add(1))?;
        }
        Some(())
    }

    /// Writes a word of the head. The file's lock is held.
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

    /// A process with access to the vector writes a number of rows that the file does not have, and extends
    /// the file without writing to it.
    #[test]
    fn only_rows_with_memory_in_the_file_count() {
        let (writer, reader) = vector("rows");
        (1..4).for_each(|port| assert_eq!(writer.append(&address(port)), Some(u64::from(port) - 1)));
        assert_eq!(reader.len(), 3);
        writer.set(ROWS, 1 << 31).unwrap();
        assert_eq!(reader.len(), 3, "the file ends behind the third row");
        writer.file.set_len(1 << 38).unwrap();
        writer.set(ROWS, u64::MAX).unwrap();
        // At least one page has memory, and at most a huge page.
        let rows = reader.len();
        assert!((3..=(2 << 20) / ROW_BYTES).contains(&rows), "{rows} rows");
        assert_eq!(reader.rows(0, 3).filter_map(|row| row.name).collect::<Vec<_>>(), [1, 2, 3].map(address));
        // The next row is appended behind the others, and corrects the number.
        assert_eq!(writer.append(&address(4)), Some(rows));
        assert_eq!((writer.len(), reader.len()), (rows + 1, rows + 1));
    }
}
