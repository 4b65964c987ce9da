//! Collectives (fi_collective(3)): not offered yet.
//!
//! Place in the data flow: every slot is filled and answers -FI_ENOSYS, since clients call them without looking.

use weft_fi_sys as sys;

use crate::abi::noop;

/// The operations.
pub(crate) static OPS: sys::fi_ops_collective = noop::COLLECTIVE;
