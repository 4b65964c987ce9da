//! Raw memory for a provider: allocated once, zeroed, page-aligned, and never accessed through a Rust
//! reference.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use weft_fi_sys::fid_domain;

/// The page size, the unit of registration and of cross-memory attach.
const ALIGN: usize = 4096;

/// A block of memory. The drop frees it, so the owner must ensure that no provider uses it afterwards.
pub(crate) struct Block {
    start: NonNull<u8>,
    source: Source,
}

/// The allocator of a block.
enum Source {
    Heap(Layout),
    /// The provider's ([`MemoryOps`]), for a domain that the owner keeps open.
    Provider {
        len: usize,
        ops: NonNull<MemoryOps>,
        domain: *mut fid_domain,
    },
}

/// `struct weft_memory_ops` (fi_weft(7), "EXTENSIONS").
#[repr(C)]
pub(crate) struct MemoryOps {
    size: usize,
    alloc: unsafe extern "C" fn(*mut fid_domain, usize, u64, *mut *mut c_void) -> c_int,
    free: unsafe extern "C" fn(*mut fid_domain, *mut c_void) -> c_int,
}

// SAFETY: a block is plain memory and bound to no thread.
unsafe impl Send for Block {}

impl Block {
    /// Allocates zeroed memory of at least one page.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1).next_multiple_of(ALIGN), ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Some(Self { start, source: Source::Heap(layout) })
    }

    /// Allocates zeroed memory that peers may map, of at least one page. `None`: there is none.
    ///
    /// # Safety
    /// The domain is open until the block is dropped, and `ops` is its table.
    pub(crate) unsafe fn mapped(domain: *mut fid_domain, ops: NonNull<MemoryOps>, bytes: usize) -> Option<Self> {
        let len = bytes.max(1).next_multiple_of(ALIGN);
        let mut start = std::ptr::null_mut();
        // SAFETY: the caller's promise.
        let table = unsafe { ops.as_ref() };
        // SAFETY: the caller's promise; the address goes to a local.
        let result = unsafe { (table.alloc)(domain, len, 0, &mut start) };
        let start = NonNull::new(start.cast()).filter(|_| result == 0)?;
        Some(Self { start, source: Source::Provider { len, ops, domain } })
    }

    pub(crate) const fn len(&self) -> usize {
        match &self.source {
            Source::Heap(layout) => layout.size(),
            Source::Provider { len, .. } => *len,
        }
    }

    pub(crate) const fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address of `len` bytes at `offset`, if the range is inside the block.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // Wrapping arithmetic is safe code, and the range was just checked.
        (end <= self.len()).then(|| self.start.as_ptr().wrapping_add(offset))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match &self.source {
            // SAFETY: allocated with this layout; `self` is the only owner.
            Source::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            Source::Provider { ops, domain, .. } => {
                // SAFETY: the table exists as long as the library, which is not unloaded.
                let table = unsafe { ops.as_ref() };
                // SAFETY: allocated by this domain, which is open.
                unsafe { (table.free)(*domain, self.start.as_ptr().cast()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_outside_the_block_are_refused() {
        let block = Block::new(5000).expect("a small block");
        assert_eq!(block.len(), 8192);
        assert_eq!(block.at(0, 8192), Some(block.start()));
        assert!(block.at(8192, 0).is_some());
        assert!(block.at(8191, 2).is_none() && block.at(usize::MAX, 2).is_none());
    }
}
