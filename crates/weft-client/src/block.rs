//! Raw memory for a provider: allocated once, zeroed, page-aligned, and never accessed through a Rust
//! reference.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The page size, the unit of registration and of cross-memory attach.
const ALIGN: usize = 4096;

/// A block of memory. The drop frees it, so the owner must ensure that no provider uses it afterwards.
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
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
        Some(Self { start, layout })
    }

    pub(crate) const fn len(&self) -> usize {
        self.layout.size()
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
        // SAFETY: allocated with this layout; `self` is the only owner.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
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
