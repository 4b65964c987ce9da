//! The mappings of this process, and whether it may access a piece of memory.
//!
//! Place in the data flow: the engine calls [`accessible`] ([`weft_engine::Probe`]) before it performs a
//! peer's access to registered memory. Without this check, an access to memory that is unmapped or protected
//! would end the process by a signal.
//!
//! For the pages of one access, madvise(2) answers (MADV_POPULATE_READ and MADV_POPULATE_WRITE, from Linux
//! 5.14 on). It makes the pages present, as the access would. /proc/self/maps is read in three cases: the
//! kernel does not support the advice (older kernels, device memory), the range is long, or the caller wants
//! the whole accessible range. If the file cannot be read, the memory is assumed to be accessible.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use weft_engine::nic::Span;

/// Longer ranges are looked up instead of made present: other operations of the endpoint would wait for the
/// page faults.
const POPULATE_LIMIT_BYTES: u64 = 4 << 20;

/// Whether all of `memory` can be read, and with `write` also written. `Some` is a range around it with the
/// same access: the whole contiguous range if `far`, otherwise its pages.
#[must_use]
pub fn accessible(memory: Span, write: bool, far: bool) -> Option<Span> {
    let pages = pages(memory)?;
    if !far && pages.len <= POPULATE_LIMIT_BYTES {
        match populate(pages, write) {
            Ok(()) => return Some(pages),
            // Nothing is mapped there, or no memory backs the mapping: the file is shorter, or the memory has
            // failed.
            Err(Errno::NOMEM | Errno::FAULT | Errno::HWPOISON) => return None,
            Err(_) => {}
        }
    }
    look_up(pages, write)
}

/// Looks the pages up in the list of all mappings. Its buffers are not on the stack of [`accessible`].
#[cold]
#[inline(never)]
fn look_up(pages: Span, write: bool) -> Option<Span> {
    match mappings() {
        Ok(mappings) => around(mappings, pages, write),
        Err(_) => Some(pages),
    }
}

/// The pages of the memory. `None`: the range wraps around the end of the address space.
fn pages(memory: Span) -> Option<Span> {
    let page = rustix::param::page_size() as u64;
    let start = memory.start / page * page;
    let end = memory.start.checked_add(memory.len)?.checked_next_multiple_of(page)?;
    Some(Span { start, len: end - start })
}

fn populate(pages: Span, write: bool) -> Result<(), Errno> {
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let start = usize::try_from(pages.start).map_err(|_| Errno::INVAL)?;
    let len = usize::try_from(pages.len).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel makes pages present and does not change their contents; for unmapped addresses it
    // returns an error.
    unsafe { madvise(std::ptr::with_exposed_provenance_mut(start), len, advice) }
}

/// The contiguous range around `pages` in which every mapping allows the access.
fn around(mappings: impl Iterator<Item = Option<Mapping>>, pages: Span, write: bool) -> Option<Span> {
    let mut run = Span::default();
    for mapping in mappings.flatten().filter(|mapping| mapping.read && mapping.write >= write) {
        if mapping.span.start == run.end() && run.len > 0 {
            run.len += mapping.span.len;
        } else if run.contains(&pages) {
            break;
        } else {
            run = mapping.span;
        }
    }
    run.contains(&pages).then_some(run)
}

/// A line of proc_pid_maps(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) span: Span,
    read: bool,
    write: bool,
    /// Private and anonymous: not backed by a file.
    pub(crate) private: bool,
}

impl Mapping {
    /// Parses a line such as `7f0000000000-7f0000001000 rw-p 00000000 00:00 0`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (address(start)?, address(end)?);
        let (rights, inode) = (words.next()?, words.nth(2)?);
        Some(Self {
            span: Span { start, len: end.checked_sub(start)? },
            read: rights.starts_with('r'),
            write: rights.as_bytes().get(1) == Some(&b'w'),
            private: rights.ends_with('p') && inode == "0",
        })
    }
}

/// All mappings of this process in address order. `None` stands for a line that cannot be read or parsed.
pub(crate) fn mappings() -> io::Result<impl Iterator<Item = Option<Mapping>>> {
    let lines = BufReader::new(File::open("/proc/self/maps")?).split(b'\n');
    Ok(lines.map(|line| Mapping::parse(&String::from_utf8_lossy(&line.ok()?))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

    use super::*;

    const PAGES: usize = 8;

    fn page() -> usize {
        rustix::param::page_size()
    }

    /// Maps pages of which the third is read-only, the fifth inaccessible, and the seventh unmapped.
    fn patchwork() -> *mut u8 {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGES * page(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let base: *mut u8 = base.unwrap().cast();
        // SAFETY: a page of that mapping, to which no reference exists.
        unsafe { mprotect(base.wrapping_add(2 * page()).cast(), page(), MprotectFlags::READ) }.unwrap();
        // SAFETY: as above.
        unsafe { mprotect(base.wrapping_add(4 * page()).cast(), page(), MprotectFlags::empty()) }.unwrap();
        // SAFETY: as above.
        unsafe { munmap(base.wrapping_add(6 * page()).cast(), page()) }.unwrap();
        base
    }

    #[test]
    fn access_is_checked_for_every_page() {
        let base = patchwork();
        let (start, page_bytes) = (base.expose_provenance() as u64, page() as u64);
        let pieces = [
            (0, 2, true, true),
            (0, 3, true, false),
            (2, 1, true, false),
            (3, 1, true, true),
            (3, 2, false, false),
            (4, 1, false, false),
            (5, 1, true, true),
            (5, 2, false, false),
            (6, 1, false, false),
            (7, 1, true, true),
        ];
        for (at, count, readable, writable) in pieces {
            // Neither end is aligned to a page.
            let memory = Span { start: start + at * page_bytes + 1, len: count * page_bytes - 2 };
            for far in [false, true] {
                let found = |write| accessible(memory, write, far);
                assert_eq!(found(false).is_some(), readable, "page {at}, {count} pages, far {far}");
                assert_eq!(found(true).is_some(), writable, "page {at}, {count} pages, far {far}");
                assert!(found(false).is_none_or(|span| span.contains(&memory)));
            }
        }
        let first = Span { start, len: 1 };
        assert_eq!(accessible(first, true, false), Some(Span { start, len: page_bytes }));
        assert!(accessible(first, true, true).unwrap().len >= 2 * page_bytes, "the whole contiguous range is returned");
        assert!(accessible(first, false, true).unwrap().len >= 4 * page_bytes);
        assert_eq!(accessible(Span { start, len: u64::MAX }, false, false), None, "it wraps around");
        // SAFETY: the mapping made by `patchwork`, and a hole, to which no reference exists.
        unsafe { munmap(base.cast(), PAGES * page()) }.unwrap();
    }

    /// An access behind the end of the file would raise SIGBUS.
    #[test]
    fn memory_behind_the_end_of_a_file_is_not_accessible() {
        let file = crate::memfile::create(c"weft-short", rustix::fs::MemfdFlags::empty()).unwrap();
        let page_bytes = page() as u64;
        rustix::fs::ftruncate(&file, page_bytes).unwrap();
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), 2 * page(), rights, MapFlags::SHARED, &file, 0) }.unwrap();
        let memory = |len| Span { start: base.expose_provenance() as u64, len };
        assert!(accessible(memory(page_bytes), true, false).is_some());
        assert_eq!(accessible(memory(page_bytes + 1), true, false), None);
        // SAFETY: the new mapping, to which no reference exists.
        unsafe { munmap(base, 2 * page()) }.unwrap();
    }

    /// The fallback for kernels without the advice.
    #[test]
    fn adjacent_mappings_are_joined() {
        let maps = "1000-3000 rw-p 0 00:00 0\n3000-4000 rw-s 0 00:01 7 /x y\n4000-5000 r--p 0 00:00 0\n6000-7000 rw-p 0 00:00 0\n?";
        let around = |pages, write| around(maps.lines().map(Mapping::parse), pages, write);
        let span = |start, end| Span { start, len: end - start };
        assert_eq!(around(span(0x2000, 0x4000), true), Some(span(0x1000, 0x4000)));
        assert_eq!(around(span(0x2000, 0x5000), true), None);
        assert_eq!(around(span(0x2000, 0x5000), false), Some(span(0x1000, 0x5000)));
        assert_eq!(around(span(0x6000, 0x7000), true), Some(span(0x6000, 0x7000)));
        assert_eq!(around(span(0x5000, 0x6000), false), None);
    }

    #[test]
    fn lines_of_maps_are_parsed() {
        let mapping = |line| Mapping::parse(line).map(|found| (found.span.start, found.span.end(), found.private));
        let heap = "5581e000-5583f000 rw-p 00000000 00:00 0                                  [heap]";
        assert_eq!(mapping(heap), Some((0x5581_e000, 0x5583_f000, true)));
        for of_a_file in
            ["1000-3000 rw-p 00002000 fd:01 17 /a b", "1000-3000 rw-s 00000000 00:01 9 /SYSV00000000 (deleted)"]
        {
            assert_eq!(mapping(of_a_file), Some((0x1000, 0x3000, false)));
        }
        assert_eq!((mapping(""), mapping("1000-x rw-p 0 0:0 0")), (None, None));
    }
}
