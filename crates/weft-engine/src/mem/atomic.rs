//! Client memory that is updated atomically.
//!
//! Place in the data flow: [`crate::amo`] computes the new value of a number; this module reads and replaces
//! the number in one step. Where the CPU has instructions for the length and alignment, it uses them. The
//! step is then atomic for all endpoints of the process, other processes that map the memory, and the
//! client's own atomics.
//!
//! All other numbers are updated under a lock by [`locked`]: unaligned numbers, numbers of 32 bytes, and
//! numbers that lie in two pieces. This is atomic among the endpoints of this process, as fi_atomic(3)
//! requires of a provider. Address and length alone decide between instruction and lock, so one number is
//! always updated in the same way.
//!
//! The safety contract is that of [`Iov::new`]: until its operation ends, the memory may be read and written.
//! Non-atomic accesses by the client during that time race with weft, as they would with a network card.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Iov;

/// Memory that the CPU replaces in one step.
pub(crate) trait Cell: Sized {
    /// The value of a cell.
    type Bits: Copy + PartialEq;

    /// The cells of which this memory consists. `None`: the memory is not aligned for them or not a whole
    /// number of them, or the CPU has no such instruction.
    fn cells(memory: &Iov) -> Option<&[Self]>;
    /// Reads the value. The memory need not be writable.
    fn load(&self) -> Self::Bits;
    /// Replaces the value, and returns the previous one.
    fn swap(&self, new: Self::Bits) -> Self::Bits;
    /// Adds modulo the range, and returns the previous value.
    fn add(&self, more: Self::Bits) -> Self::Bits;
    /// Performs a bitwise and, and returns the previous value.
    fn and(&self, mask: Self::Bits) -> Self::Bits;
    /// Performs a bitwise or, and returns the previous value.
    fn or(&self, mask: Self::Bits) -> Self::Bits;
    /// Performs a bitwise exclusive or, and returns the previous value.
    fn xor(&self, mask: Self::Bits) -> Self::Bits;
    /// Replaces the value by the result of `change`, unless that is `None`. Returns the previous value.
    /// `change` is called again when another thread has changed the value meanwhile.
    fn update(&self, change: impl FnMut(Self::Bits) -> Option<Self::Bits>) -> Self::Bits;
}

/// Whether `memory` is an array of elements of `size` bytes that are aligned to their size.
fn is_array(memory: &Iov, size: usize) -> bool {
    (memory.ptr as usize).is_multiple_of(size) && memory.len.is_multiple_of(size) && memory.len > 0
}

macro_rules! cell {
    ($($cell:ty: $bits:ty)*) => {
        $(impl Cell for $cell {
            type Bits = $bits;

            #[inline]
            fn cells(memory: &Iov) -> Option<&[Self]> {
                const SIZE: usize = size_of::<$cell>();
                if !is_array(memory, SIZE) {
                    return None;
                }
                // SAFETY: alignment and length were checked above, and the contract of `Iov::new` makes the
                // memory valid. Other threads may change atomics behind a shared reference.
                Some(unsafe { std::slice::from_raw_parts(memory.ptr.cast(), memory.len / SIZE) })
            }
            #[inline]
            fn load(&self) -> $bits {
                self.load(Ordering::SeqCst)
            }
            #[inline]
            fn swap(&self, new: $bits) -> $bits {
                self.swap(new, Ordering::SeqCst)
            }
            #[inline]
            fn add(&self, more: $bits) -> $bits {
                self.fetch_add(more, Ordering::SeqCst)
            }
            #[inline]
            fn and(&self, mask: $bits) -> $bits {
                self.fetch_and(mask, Ordering::SeqCst)
            }
            #[inline]
            fn or(&self, mask: $bits) -> $bits {
                self.fetch_or(mask, Ordering::SeqCst)
            }
            #[inline]
            fn xor(&self, mask: $bits) -> $bits {
                self.fetch_xor(mask, Ordering::SeqCst)
            }
            #[inline]
            fn update(&self, change: impl FnMut($bits) -> Option<$bits>) -> $bits {
                match self.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change) {
                    Ok(old) | Err(old) => old,
                }
            }
        })*
    };
}

cell! { AtomicU8: u8  AtomicU16: u16  AtomicU32: u32  AtomicU64: u64 }

/// Sixteen bytes, for CPUs that replace them in one step (x86-64 with cmpxchg16b) and read them in one step
/// (those with AVX).
#[derive(Debug)]
#[repr(C, align(16))]
pub(crate) struct Wide(std::cell::UnsafeCell<u128>);

// SAFETY: only atomic instructions access the bytes.
unsafe impl Sync for Wide {}

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Wide {
    fn is_possible() -> bool {
        std::arch::is_x86_feature_detected!("cmpxchg16b") && std::arch::is_x86_feature_detected!("avx")
    }

    #[inline]
    fn read(&self) -> u128 {
        let (low, high): (u64, u64);
        // SAFETY: a `Wide` is sixteen aligned readable bytes, and exists only where the CPU has AVX. There,
        // an aligned load of sixteen bytes is one access (Intel SDM vol. 3A, 9.1.1; AMD APM vol. 2, 7.3.2).
        unsafe {
            std::arch::asm!(
                "vmovdqa {x}, xmmword ptr [{at}]",
                "vmovq {low}, {x}",
                "vpextrq {high}, {x}, 1",
                at = in(reg) self.0.get(),
                x = out(xmm_reg) _,
                low = out(reg) low,
                high = out(reg) high,
                options(nostack, readonly, preserves_flags)
            );
        }
        u128::from(high) << 64 | u128::from(low)
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "halves")]
    fn exchange(&self, old: u128, new: u128) -> Result<u128, u128> {
        // rustc's own function calls a library that weft does not link, unless the call is inlined.
        let (mut low, mut high) = (old as u64, (old >> 64) as u64);
        // SAFETY: a `Wide` is sixteen aligned writable bytes, and exists only where the CPU has the
        // instruction. The compiler reserves rbx, so its value is restored.
        unsafe {
            std::arch::asm!(
                "xchg {new_low}, rbx",
                "lock cmpxchg16b xmmword ptr [rdi]",
                "mov rbx, {new_low}",
                new_low = inout(reg) new as u64 => _,
                in("rcx") (new >> 64) as u64,
                in("rdi") self.0.get(),
                inout("rax") low,
                inout("rdx") high,
                options(nostack)
            );
        }
        let found = u128::from(high) << 64 | u128::from(low);
        if found == old { Ok(old) } else { Err(found) }
    }
}

/// Other processors have no cells of sixteen bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
impl Wide {
    fn is_possible() -> bool {
        false
    }

    fn read(&self) -> u128 {
        unreachable!("this CPU has no cells of sixteen bytes")
    }

    fn exchange(&self, _old: u128, _new: u128) -> Result<u128, u128> {
        unreachable!("this CPU has no cells of sixteen bytes")
    }
}

impl Cell for Wide {
    type Bits = u128;

    fn cells(memory: &Iov) -> Option<&[Self]> {
        const SIZE: usize = size_of::<Wide>();
        if !is_array(memory, SIZE) || !Self::is_possible() {
            return None;
        }
        // SAFETY: alignment and length were checked above, and the contract of `Iov::new` makes the memory
        // valid. Every access to a `Wide` is atomic.
        Some(unsafe { std::slice::from_raw_parts(memory.ptr.cast(), memory.len / SIZE) })
    }

    fn load(&self) -> u128 {
        self.read()
    }

    fn swap(&self, new: u128) -> u128 {
        self.update(|_| Some(new))
    }

    fn add(&self, more: u128) -> u128 {
        self.update(|old| Some(old.wrapping_add(more)))
    }

    fn and(&self, mask: u128) -> u128 {
        self.update(|old| Some(old & mask))
    }

    fn or(&self, mask: u128) -> u128 {
        self.update(|old| Some(old | mask))
    }

    fn xor(&self, mask: u128) -> u128 {
        self.update(|old| Some(old ^ mask))
    }

    fn update(&self, mut change: impl FnMut(u128) -> Option<u128>) -> u128 {
        let mut old = self.read();
        while let Some(new) = change(old) {
            match self.exchange(old, new) {
                Ok(_) => break,
                Err(found) => old = found,
            }
        }
        old
    }
}

/// Locks for numbers that no instruction updates in one step. The address of a number selects its lock.
static STRIPES: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

/// Runs `work` on the number that begins at `memory`. All other numbers with the same lock are excluded.
pub(crate) fn locked<R>(memory: &Iov, work: impl FnOnce() -> R) -> R {
    let line = memory.ptr as usize / 64;
    let guard = STRIPES[line % STRIPES.len()].lock();
    // The lock protects no data of its own that a panic could leave inconsistent.
    let _guard = guard.unwrap_or_else(std::sync::PoisonError::into_inner);
    work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Owned;

    /// Sixteen bytes at the given offset from an address that is a multiple of 64.
    fn at(owned: &mut Owned, offset: usize) -> Iov {
        let whole = owned.iov();
        let skip = (whole.ptr as usize).next_multiple_of(64) - whole.ptr as usize;
        whole.slice(skip + offset, 16)
    }

    #[test]
    fn only_aligned_arrays_are_cells() {
        let mut owned = Owned::new(vec![0; 256]);
        let aligned = at(&mut owned, 0);
        assert_eq!(AtomicU64::cells(&aligned).map(<[_]>::len), Some(2));
        assert_eq!(AtomicU8::cells(&at(&mut owned, 3)).map(<[_]>::len), Some(16));
        for offset in 1..8 {
            assert!(AtomicU64::cells(&at(&mut owned, offset)).is_none(), "{offset}");
        }
        assert!(AtomicU64::cells(&aligned.slice(0, 12)).is_none(), "half a number");
        assert!(AtomicU32::cells(&Iov::EMPTY).is_none(), "nothing");
        assert!(Wide::cells(&at(&mut owned, 8)).is_none(), "half aligned");
    }

    #[test]
    fn sixteen_bytes_change_together() {
        let mut owned = Owned::new(vec![0; 256]);
        let memory = at(&mut owned, 16);
        let Some([cell]) = Wide::cells(&memory) else { return };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        // Both halves count, so that a torn read or write is visible.
                        cell.update(|old| Some(old.wrapping_add(1 << 64 | 1)));
                        let seen = cell.load();
                        assert_eq!(seen >> 64, seen & u128::from(u64::MAX));
                    }
                });
            }
        });
        assert_eq!(cell.load(), 8000 << 64 | 8000);
        assert_eq!(cell.swap(7), 8000 << 64 | 8000);
        assert_eq!((cell.add(1), cell.or(0x10), cell.and(0x18), cell.xor(1)), (7, 8, 0x18, 0x18));
        assert_eq!(cell.update(|_| None), 0x19);
    }

    #[test]
    fn a_lock_serializes_updates_of_a_number() {
        let mut owned = Owned::new(vec![0; 256]);
        let memory = at(&mut owned, 1);
        let address = memory.addr();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..2000 {
                        locked(&memory, || {
                            let mut bytes = [0; 16];
                            memory.read(&mut bytes);
                            memory.write(&(u128::from_le_bytes(bytes) + 1).to_le_bytes());
                        });
                    }
                });
            }
        });
        let mut bytes = [0; 16];
        memory.read(&mut bytes);
        assert_eq!((u128::from_le_bytes(bytes), memory.addr()), (8000, address));
    }
}
