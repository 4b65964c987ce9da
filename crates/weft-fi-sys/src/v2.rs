//! Declarations that libfabric 2.x (API 1.18 to 2.6) added to those of 1.17, as far as weft uses them.
//!
//! They are written by hand from the public headers and man pages, because no package registry has those
//! headers. Some capability bits have two meanings: the older one up to API 1.20, the newer one from 2.0 on.
//! Code that reads them must check the API version first.

#![allow(non_camel_case_types)]

use core::ffi::{c_int, c_void};

use crate::{FI_CQ_FORMAT_TAGGED, fi_addr_t, fi_cq_err_entry, fi_ops_av, fid_av};

/// The API version from which the 2.x meanings of capability bits hold.
pub const V2_0: u32 = crate::version(2, 0);

/// Receives of tagged messages may name a source (2.0). Formerly `FI_HMEM_HOST_ALLOC`, a registration flag.
pub const FI_TAGGED_DIRECTED_RECV: u64 = 1 << 45;
/// Tagged multi-receive buffers (2.0). Formerly `FI_HMEM_DEVICE_ONLY`, a registration flag.
pub const FI_TAGGED_MULTI_RECV: u64 = 1 << 46;
/// Directed receives match only the exact source (2.0). Formerly `FI_VARIABLE_MSG`.
pub const FI_EXACT_DIRECTED_RECV: u64 = 1 << 48;
/// Accelerator-initiated transfers (2.5). Formerly `FI_XPU_TRIGGER`.
pub const FI_XPU: u64 = 1 << 44;
/// A flag of `fi_getinfo` (1.19): the library enumerates the providers' devices again.
pub const FI_RESCAN: u64 = 1 << 35;
/// Addresses behind a firewall (1.20).
pub const FI_FIREWALL_ADDR: u64 = 1 << 42;
/// Registration by a dma-buf (1.20), a flag of `fi_mr_regattr`.
pub const FI_MR_DMABUF: u64 = 1 << 40;
/// Authorization keys in completions that report their source (1.20).
pub const FI_AUTH_KEY: u64 = 1 << 57;

/// `FI_SOCKADDR_IP`: an IPv4 or an IPv6 socket address (2.3); follows `FI_ADDR_UCX` (1.18).
pub const FI_SOCKADDR_IP: u32 = crate::FI_ADDR_CXI + 2;

/// A single progress mode for data and control (1.20).
pub const FI_PROGRESS_CONTROL_UNIFIED: u32 = crate::FI_PROGRESS_MANUAL + 1;

/// Half precision (2.1).
pub const FI_FLOAT16: u32 = 16;
/// Brain float (2.1).
pub const FI_BFLOAT16: u32 = 17;
/// 8-bit float with 4 exponent and 3 mantissa bits (2.1).
pub const FI_FLOAT8_E4M3: u32 = 18;
/// 8-bit float with 5 exponent and 2 mantissa bits (2.1).
pub const FI_FLOAT8_E5M2: u32 = 19;
/// Difference (2.1), an operation of `fi_op`.
pub const FI_DIFF: u32 = 19;

/// No more registrations are available (1.18).
pub const FI_ENOMR: c_int = 270;

/// Tag formats of `mem_tag_format` (2.0) are numbers below this value; larger values are bit patterns.
pub const FI_TAG_MAX_FORMAT: u64 = 1 << 16;

/// A command of `fi_control` (2.0): the file descriptor of a connection-less endpoint or a queue.
pub const FI_GET_FD: c_int = 20;

/// Options of `fi_setopt`/`fi_getopt` (1.18 to 2.2) that follow `FI_OPT_XPU_TRIGGER`.
pub const FI_OPT_CUDA_API_PERMITTED: c_int = crate::FI_OPT_XPU_TRIGGER as c_int + 1;
/// Whether shared memory may be used, a `bool`.
pub const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = FI_OPT_CUDA_API_PERMITTED + 1;
/// The longest message in bytes, a `size_t`.
pub const FI_OPT_MAX_MSG_SIZE: c_int = FI_OPT_CUDA_API_PERMITTED + 2;
/// The longest tagged message in bytes, a `size_t`.
pub const FI_OPT_MAX_TAGGED_SIZE: c_int = FI_OPT_CUDA_API_PERMITTED + 3;
/// The longest RMA operation in bytes, a `size_t`.
pub const FI_OPT_MAX_RMA_SIZE: c_int = FI_OPT_CUDA_API_PERMITTED + 4;
/// The longest atomic operation in bytes, a `size_t`.
pub const FI_OPT_MAX_ATOMIC_SIZE: c_int = FI_OPT_CUDA_API_PERMITTED + 5;
/// The longest injected message in bytes, a `size_t`.
pub const FI_OPT_INJECT_MSG_SIZE: c_int = FI_OPT_CUDA_API_PERMITTED + 6;
/// The longest injected tagged message in bytes, a `size_t`.
pub const FI_OPT_INJECT_TAGGED_SIZE: c_int = FI_OPT_CUDA_API_PERMITTED + 7;
/// The longest injected RMA operation in bytes, a `size_t`.
pub const FI_OPT_INJECT_RMA_SIZE: c_int = FI_OPT_CUDA_API_PERMITTED + 8;
/// The longest injected atomic operation in bytes, a `size_t`.
pub const FI_OPT_INJECT_ATOMIC_SIZE: c_int = FI_OPT_CUDA_API_PERMITTED + 9;

/// Completion-counter events that count bytes (2.3).
pub const FI_CNTR_EVENTS_BYTES: u32 = crate::FI_CNTR_EVENTS_COMP + 1;

/// The error entry of a completion queue in API 1.20 and later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_err_entry_1_20 {
    /// The part that older versions have.
    pub base: fi_cq_err_entry,
    /// The source of the message; `FI_ADDR_NOTAVAIL` if unknown.
    pub src_addr: fi_addr_t,
}

/// The operations of an address vector in API 1.20 and later. Callers check `size` first.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(clippy::type_complexity)]
pub struct fi_ops_av_1_20 {
    /// The part that older versions have; `base.size` covers the whole table.
    pub base: fi_ops_av,
    /// Adds an authorization key.
    pub insert_auth_key: Option<unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64) -> c_int>,
    /// Reads an authorization key.
    pub lookup_auth_key: Option<unsafe extern "C" fn(*mut fid_av, fi_addr_t, *mut c_void, *mut usize) -> c_int>,
    /// Assigns a number of the client's choice to an address.
    pub set_user_id: Option<unsafe extern "C" fn(*mut fid_av, fi_addr_t, fi_addr_t, u64) -> c_int>,
}

const _: () = assert!(FI_CQ_FORMAT_TAGGED == 4);
const _: () = assert!(core::mem::size_of::<fi_cq_err_entry_1_20>() == core::mem::size_of::<fi_cq_err_entry>() + 8);
