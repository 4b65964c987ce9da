//! Clients, endpoints and segments of this rank.
//!
//! Place in the data flow: weft-gex-c gives the client pointers to these objects, which live until the process ends.
//! `am` finds the handler of a message here.

use std::ffi::{CString, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::invoke::{ANY_ARGS, Entry, MAX_ARGS};
use crate::own::Own;

/// The first index that the client may use, if it does not choose it.
pub const FIRST_INDEX: u8 = 128;

/// A client of the job.
pub struct Client {
    name: CString,
    flags: u32,
    cdata: AtomicPtr<c_void>,
}

impl Client {
    /// A client of a name.
    #[must_use]
    pub fn new(name: CString, flags: u32) -> Self {
        Self { name, flags, cdata: AtomicPtr::default() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &CString {
        &self.name
    }

    /// The flags of its start.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The client's pointer.
    #[must_use]
    pub fn cdata(&self) -> &AtomicPtr<c_void> {
        &self.cdata
    }
}

/// A segment of this rank.
pub struct Segment {
    addr: usize,
    bytes: usize,
    /// The place in the job's memory file; `None` for memory of the client.
    offset: Option<u64>,
    flags: u32,
    cdata: AtomicPtr<c_void>,
}

impl Segment {
    /// A segment at an address.
    #[must_use]
    pub fn new(addr: usize, bytes: usize, offset: Option<u64>, flags: u32) -> Self {
        Self { addr, bytes, offset, flags, cdata: AtomicPtr::default() }
    }

    /// Its address.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its place in the job's memory file.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// The flags of its creation.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The client's pointer.
    #[must_use]
    pub fn cdata(&self) -> &AtomicPtr<c_void> {
        &self.cdata
    }
}

/// The reason why handlers are not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The entry has no function.
    #[error("entry {0} of the handler table has no function; pass a function")]
    NoFunction(usize),
    /// The index is in use.
    #[error("handler index {0} is registered twice; choose another index, or 0 for any")]
    Taken(u8),
    /// There are more arguments than a message has.
    #[error("entry {0} of the handler table has more than {most} arguments; pass more of them in a payload", most = MAX_ARGS)]
    Arguments(usize),
    /// No index is left.
    #[error("no handler index is left; register fewer handlers")]
    Full,
}

/// An endpoint of this rank.
pub struct Endpoint {
    index: u16,
    caps: u32,
    flags: u32,
    handlers: [OnceLock<Entry>; 256],
    segment: OnceLock<&'static Segment>,
    cdata: AtomicPtr<c_void>,
    /// The engine, if it does not use that of the first endpoint.
    own: Option<Own>,
}

impl Endpoint {
    /// An endpoint without handlers and segment.
    #[must_use]
    pub fn new(index: u16, caps: u32, flags: u32, own: Option<Own>) -> Self {
        Self {
            index,
            caps,
            flags,
            handlers: std::array::from_fn(|_| OnceLock::new()),
            segment: OnceLock::new(),
            cdata: AtomicPtr::default(),
            own,
        }
    }

    /// Its own engine.
    #[inline(always)]
    #[must_use]
    pub fn own(&self) -> Option<&Own> {
        self.own.as_ref()
    }

    /// Its number in this rank.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Its capabilities.
    #[must_use]
    pub fn caps(&self) -> u32 {
        self.caps
    }

    /// The flags of its creation.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The client's pointer.
    #[must_use]
    pub fn cdata(&self) -> &AtomicPtr<c_void> {
        &self.cdata
    }

    /// Its segment.
    #[must_use]
    pub fn segment(&self) -> Option<&'static Segment> {
        self.segment.get().copied()
    }

    /// Binds a segment. False: it has one.
    #[must_use]
    pub fn bind(&self, segment: &'static Segment) -> bool {
        self.segment.set(segment).is_ok()
    }

    /// The handler of an index.
    #[inline(always)]
    #[must_use]
    pub fn handler(&self, index: u8) -> Option<&Entry> {
        self.handlers[usize::from(index)].get()
    }

    /// Registers handlers. Entries with index 0 get the highest free ones, in their order.
    ///
    /// # Errors
    /// See [`Refused`]. Handlers before the refused one stay registered.
    pub fn register(&self, table: &mut [Entry]) -> Result<(), Refused> {
        for (at, entry) in table.iter().enumerate() {
            if entry.function.is_none() {
                return Err(Refused::NoFunction(at));
            }
            if entry.nargs != ANY_ARGS && entry.nargs as usize > MAX_ARGS {
                return Err(Refused::Arguments(at));
            }
        }
        for entry in table.iter().filter(|entry| entry.index != 0) {
            self.handlers[usize::from(entry.index)].set(*entry).map_err(|_| Refused::Taken(entry.index))?;
        }
        let mut free = (FIRST_INDEX..=u8::MAX).rev().filter(|&index| self.handler(index).is_none());
        for entry in table.iter_mut().filter(|entry| entry.index == 0) {
            entry.index = free.next().ok_or(Refused::Full)?;
            self.handlers[usize::from(entry.index)].set(*entry).map_err(|_| Refused::Taken(entry.index))?;
        }
        Ok(())
    }
}

/// Reads the client's pointer.
#[must_use]
pub fn cdata(of: &AtomicPtr<c_void>) -> *mut c_void {
    of.load(Ordering::Acquire)
}

/// Sets the client's pointer.
pub fn set_cdata(of: &AtomicPtr<c_void>, value: *mut c_void) {
    of.store(value, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing() {}

    fn entry(index: u8) -> Entry {
        Entry { index, function: Some(nothing), flags: 0, nargs: 2, cdata: std::ptr::null(), name: std::ptr::null() }
    }

    #[test]
    fn free_indices_are_given_from_above() {
        let endpoint = Endpoint::new(0, 31, 0, None);
        let mut table = [entry(0), entry(255), entry(200), entry(0)];
        assert_eq!(endpoint.register(&mut table), Ok(()));
        assert_eq!(table.map(|entry| entry.index), [254, 255, 200, 253]);
        assert_eq!(endpoint.handler(253).map(|entry| entry.index), Some(253));
        assert_eq!(endpoint.register(&mut [entry(200)]), Err(Refused::Taken(200)));
        let mut wrong = [entry(0), Entry { nargs: 17, ..entry(0) }];
        assert_eq!(endpoint.register(&mut wrong), Err(Refused::Arguments(1)));
        let mut none = [Entry { function: None, ..entry(0) }];
        assert_eq!(endpoint.register(&mut none), Err(Refused::NoFunction(0)));
        let mut many = [entry(0); 126];
        assert_eq!(endpoint.register(&mut many), Err(Refused::Full));
    }
}
