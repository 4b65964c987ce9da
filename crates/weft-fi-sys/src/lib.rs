//! libfabric's C declarations: structures, operation tables and constants.
//!
//! Place in the data flow: the vocabulary of weft-fi. `cargo xtask bindings` generates `bindings.rs` from the
//! headers of libfabric 1.17, and the result is checked in. [`v2`] is written by hand and holds the additions
//! of 2.x that weft uses. libfabric only appends to its structures. The 1.17 layout is therefore valid for
//! every later host, as long as no code takes the *size* of a structure that the host allocated. weft lets
//! the host allocate every `fi_info`. No function is declared, because weft must not link against libfabric;
//! see `weft_fi::host`.

mod generated {
    #![allow(
        missing_docs,
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        unreachable_pub,
        unsafe_op_in_unsafe_fn,
        dead_code,
        rustdoc::all,
        clippy::all,
        clippy::undocumented_unsafe_blocks,
        clippy::multiple_unsafe_ops_per_block,
        clippy::cast_possible_truncation
    )]
    include!("bindings.rs");
}

pub mod v2;

pub use generated::*;

/// Packs a version as `FI_VERSION(major, minor)` does.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// The major and minor number of a packed version.
#[must_use]
pub const fn version_parts(version: u32) -> (u32, u32) {
    (version >> 16, version & 0xffff)
}

/// `FI_ADDR_UNSPEC`: a cast expression in C, which bindgen does not evaluate.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// `FI_ADDR_NOTAVAIL`: as [`FI_ADDR_UNSPEC`], a cast expression in C.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
