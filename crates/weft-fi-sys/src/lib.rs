//! libfabric's C declarations: structures, operation tables and constants, and nothing else.
//!
//! Place in the data flow: the vocabulary of weft-fi. `bindings.rs` is generated from the headers of
//! libfabric 1.17 by `cargo xtask bindings` and checked in; [`v2`] holds by hand what 2.x added and weft
//! uses. libfabric only ever appends to its structures, so the 1.17 layout is right for every later host as
//! long as nobody takes the *size* of a structure that the host allocated (weft has the host allocate every
//! `fi_info`). No function is declared: weft must not link against libfabric, see `weft_fi::host`.

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

/// A version as libfabric packs it: `FI_VERSION(major, minor)`.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// The two numbers of a packed version.
#[must_use]
pub const fn version_parts(version: u32) -> (u32, u32) {
    (version >> 16, version & 0xffff)
}

/// `FI_ADDR_UNSPEC` and `FI_ADDR_NOTAVAIL`, which are cast expressions in C that bindgen does not evaluate.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// See [`FI_ADDR_UNSPEC`].
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
