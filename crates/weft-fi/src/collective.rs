//! Collectives (fi_collective(3)): not offered yet.
//!
//! Place in the data flow: every function pointer is set and returns -FI_ENOSYS, because clients call them
//! without a check for null.

use weft_fi_sys as sys;

use crate::abi::noop;

/// The operations.
pub(crate) static OPS: sys::fi_ops_collective = noop::COLLECTIVE;
