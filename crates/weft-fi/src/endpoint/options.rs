//! Endpoint options: `fi_getopt` and `fi_setopt` (fi_endpoint(3)).
//!
//! Place in the data flow: control calls before enable, some also later.
//!
//! Errors: -FI_ENOPROTOOPT for unknown options, -FI_EINVAL or -FI_ETOOSMALL for a size that does not match the option's
//! type, -FI_EOPNOTSUPP or -FI_EINVAL for values that cannot be met.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use weft_fi_sys as sys;
use weft_fi_sys::v2;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::endpoint::{Ep, Kind};
use crate::info::EpType;

// The headers define options as an anonymous enumeration; the calls take an `int`.
const MIN_MULTI_RECV: c_int = sys::FI_OPT_MIN_MULTI_RECV as c_int;
const CM_DATA_SIZE: c_int = sys::FI_OPT_CM_DATA_SIZE as c_int;
const HMEM_P2P: c_int = sys::FI_OPT_FI_HMEM_P2P as c_int;
/// `FI_HMEM_P2P_REQUIRED`, the only choice that a provider without device memory cannot meet.
const P2P_REQUIRED: c_int = sys::FI_HMEM_P2P_REQUIRED as c_int;

impl<D: Device> Ep<D> {
    /// Reads an option: `fi_getopt`.
    ///
    /// # Safety
    /// `len` is the length of the client's buffer `value`.
    pub(super) unsafe fn get_option(
        &self,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut usize,
    ) -> Result<(), Errno> {
        if level != sys::FI_OPT_ENDPOINT as c_int {
            return Err(Errno::NOPROTOOPT);
        }
        let number = match name {
            MIN_MULTI_RECV => self.setup.lock().min_multi_recv,
            CM_DATA_SIZE if self.ty == EpType::Msg => weft_engine::MAX_CONN_DATA,
            CM_DATA_SIZE => 0,
            v2::FI_OPT_MAX_MSG_SIZE | v2::FI_OPT_MAX_TAGGED_SIZE | v2::FI_OPT_MAX_RMA_SIZE => self.limits.max_msg_bytes,
            v2::FI_OPT_MAX_ATOMIC_SIZE => weft_engine::MAX_ATOMIC_BYTES,
            v2::FI_OPT_INJECT_MSG_SIZE
            | v2::FI_OPT_INJECT_TAGGED_SIZE
            | v2::FI_OPT_INJECT_RMA_SIZE
            | v2::FI_OPT_INJECT_ATOMIC_SIZE => self.limits.inject_bytes,
            _ => return Err(Errno::NOPROTOOPT),
        };
        // SAFETY: the caller's promise.
        unsafe { give_number(number, value, len) }
    }

    /// Sets an option: `fi_setopt`.
    ///
    /// # Safety
    /// `value` has `len` bytes.
    pub(super) unsafe fn set_option(
        &self,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: usize,
    ) -> Result<(), Errno> {
        if level != sys::FI_OPT_ENDPOINT as c_int {
            return Err(Errno::NOPROTOOPT);
        }
        match name {
            MIN_MULTI_RECV => {
                // SAFETY: the caller's promise.
                let bytes = unsafe { read::<usize>(value, len) }?;
                self.setup.lock().min_multi_recv = bytes;
                self.receives().inspect(|shared| shared.pool.set_min_multi_recv(bytes));
                if let Some(engine) = &mut self.cell.state().engine {
                    engine.set_min_multi_recv(bytes);
                }
                Ok(())
            }
            v2::FI_OPT_SHARED_MEMORY_PERMITTED => {
                // SAFETY: the caller's promise. A C `bool` has one byte.
                let permitted = unsafe { read::<u8>(value, len) }? != 0;
                let mut setup = self.setup.lock();
                if setup.enabled {
                    return Err(Errno::OPBADSTATE);
                }
                // The devices of a passive endpoint, or of a scalable endpoint's receive contexts, may be open already.
                // Peers may know that these have shared memory.
                if !permitted && (setup.opened_from.has_devices() || self.kind == Kind::Receive) {
                    return Err(Errno::OPNOTSUPP);
                }
                setup.shm = permitted;
                Ok(())
            }
            // There is no device memory. Every choice that does not need it is met.
            HMEM_P2P => {
                // SAFETY: the caller's promise.
                let choice = unsafe { read::<c_int>(value, len) }?;
                if choice == P2P_REQUIRED { Err(Errno::OPNOTSUPP) } else { Ok(()) }
            }
            v2::FI_OPT_CUDA_API_PERMITTED => Err(Errno::INVAL),
            v2::FI_OPT_MAX_MSG_SIZE | v2::FI_OPT_MAX_TAGGED_SIZE | v2::FI_OPT_MAX_RMA_SIZE => {
                // SAFETY: the caller's promise.
                let asked = unsafe { read::<usize>(value, len) }?;
                if asked > self.limits.max_msg_bytes { Err(Errno::INVAL) } else { Ok(()) }
            }
            v2::FI_OPT_INJECT_MSG_SIZE | v2::FI_OPT_INJECT_TAGGED_SIZE | v2::FI_OPT_INJECT_RMA_SIZE => {
                // SAFETY: the caller's promise.
                let asked = unsafe { read::<usize>(value, len) }?;
                if asked > self.limits.inject_bytes { Err(Errno::INVAL) } else { Ok(()) }
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }
}

/// Writes a `size_t` for the client.
///
/// # Safety
/// `len` is null or the length of the client's buffer `value`.
pub(crate) unsafe fn give_number(number: usize, value: *mut c_void, len: *mut usize) -> Result<(), Errno> {
    let len = NonNull::new(len).ok_or(Errno::INVAL)?;
    // SAFETY: the caller's promise.
    let room = unsafe { len.read() };
    // SAFETY: the caller's promise.
    unsafe { len.write(size_of::<usize>()) };
    if room < size_of::<usize>() {
        return Err(Errno::TOOSMALL);
    }
    let value = NonNull::new(value.cast::<usize>()).ok_or(Errno::INVAL)?;
    // SAFETY: the client's buffer is large enough. It may be unaligned.
    unsafe { value.write_unaligned(number) };
    Ok(())
}

/// Reads an option's value of type `T`.
///
/// # Safety
/// `value` is null or has `len` bytes.
unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Result<T, Errno> {
    if value.is_null() || len != size_of::<T>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the length was checked, and every bit pattern is a value of the integers used here.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}
