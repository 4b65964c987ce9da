//! The shape of exported functions.
//!
//! Place in the data flow: `collectives`, `communicators` and `completions` define their functions with [`export!`].
//! Each has the name of a function of MPI and the types that the C compiler passes in its place: handles as whole
//! registers, pointers without a type.
//!
//! The counts of collectives are exported as well: the provider adds them to the report of the process for `weft run`.

use std::sync::atomic::AtomicU64;

/// Collectives of this process that weft has run, and those that were left to the MPI library. weft's provider finds
/// the array by its name.
// SAFETY: no other library defines this name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static weft_coll_counts: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Whether this library completes node communicators (1), and how many of those that this process has made stayed
/// smaller than its host, counted by their first members. weft's provider finds the array by its name.
// SAFETY: no other library defines this name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static weft_coll_nodes: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The type of an argument. `count` is the type of counts: `c_int`, or `MPI_Count` in functions that end in `_c`.
macro_rules! argument {
    (pointer $count:ty) => { *mut std::ffi::c_void };
    (handle $count:ty) => { $crate::mpi::Handle };
    (int $count:ty) => { std::ffi::c_int };
    (count $count:ty) => { $count };
}

/// Defines a function of MPI under both its names ([`crate::chain`]). `library()` in its body calls the MPI library
/// with the same arguments.
macro_rules! export {
    ([$count:ty] $name:ident($($argument:ident: $kind:ident),*) |$library:ident| $body:expr) => {
        #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
        const _: () = {
            type Function = unsafe extern "C" fn($($crate::exports::argument!($kind $count)),*) -> std::ffi::c_int;
            static CHAIN: $crate::chain::Chain = $crate::chain::Chain::new(concat!(stringify!($name), "\0"));

            unsafe extern "C" fn own($($argument: $crate::exports::argument!($kind $count)),*) -> std::ffi::c_int {
                let $library = || $crate::mpi::pmpi!(
                    concat!("P", stringify!($name)),
                    $($argument => $crate::exports::argument!($kind $count)),*
                );
                $body
            }

            // SAFETY: the name is that of MPI's function, in whose place the program shall find it.
            #[unsafe(export_name = stringify!($name))]
            unsafe extern "C" fn called($($argument: $crate::exports::argument!($kind $count)),*) -> std::ffi::c_int {
                let Some(address) = CHAIN.next() else {
                    // SAFETY: the arguments are those of the program.
                    return unsafe { own($($argument),*) };
                };
                CHAIN.passing();
                let address = std::ptr::with_exposed_provenance::<std::ffi::c_void>(address);
                // SAFETY: a function of this name has this type, with handles as whole registers.
                let function = unsafe { std::mem::transmute::<*const std::ffi::c_void, Function>(address) };
                // SAFETY: the arguments are those of the program.
                let code = unsafe { function($($argument),*) };
                CHAIN.passed(code, address.addr());
                code
            }

            unsafe extern "C" fn profiled($($argument: $crate::exports::argument!($kind $count)),*) -> std::ffi::c_int {
                CHAIN.arrived();
                // SAFETY: the arguments are those of the caller.
                unsafe { own($($argument),*) }
            }

            unsafe extern "C" fn inside($($argument: $crate::exports::argument!($kind $count)),*) -> std::ffi::c_int {
                $crate::mpi::pmpi!(
                    concat!("P", stringify!($name)),
                    $($argument => $crate::exports::argument!($kind $count)),*
                )
            }

            $crate::exports::profiling_name!($name profiled inside);
        };
    };
}

/// Exports the profiling name of a function. Calls from inside the MPI library continue at `$inside`, all others at
/// `$profiled`. On other processors the return address is not at hand, and the name stays the MPI library's.
macro_rules! profiling_name {
    ($name:ident $profiled:ident $inside:ident) => {
        // SAFETY: the name is that of MPI's profiling interface, in whose place tools shall find it.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(export_name = concat!("P", stringify!($name)))]
        #[unsafe(naked)]
        unsafe extern "C" fn profiling() {
            // On entry the return address is on top of the stack. The jumps leave stack and arguments as they are.
            std::arch::naked_asm!(
                "mov r11, [rsp]",
                "sub r11, [rip + {library}]",
                "cmp r11, [rip + {library} + 8]",
                "jae {profiled}",
                "jmp {inside}",
                library = sym $crate::chain::LIBRARY,
                profiled = sym $profiled,
                inside = sym $inside,
            )
        }

        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(export_name = concat!("P", stringify!($name)))]
        #[unsafe(naked)]
        unsafe extern "C" fn profiling() {
            // On entry the return address is in the link register. The branches leave stack and arguments as they are.
            std::arch::naked_asm!(
                "adrp x16, {library}",
                "add x16, x16, :lo12:{library}",
                "ldp x16, x17, [x16]",
                "sub x16, x30, x16",
                "cmp x16, x17",
                "b.lo 2f",
                "b {profiled}",
                "2: b {inside}",
                library = sym $crate::chain::LIBRARY,
                profiled = sym $profiled,
                inside = sym $inside,
            )
        }
    };
}

/// An argument of a function with large counts in its place in the function with counts of type `int`. A count that is
/// too large ends the call.
macro_rules! narrow {
    (count $argument:ident) => {
        match std::ffi::c_int::try_from($argument) {
            Ok(count) => count,
            Err(_) => return $crate::mpi::ERR_COUNT,
        }
    };
    ($kind:ident $argument:ident) => {
        $argument
    };
}

/// As [`export!`], for a function with large counts. Programs look for these functions at run time and would find this
/// library's. In an MPI library without them, `library` calls the function named `small`.
macro_rules! export_large {
    ($small:ident $name:ident($($argument:ident: $kind:ident),*) |$library:ident| $body:expr) => {
        $crate::exports::export! {
            [i64] $name($($argument: $kind),*)
            |large| {
                let $library = || {
                    static LARGE: $crate::mpi::Symbol = $crate::mpi::Symbol::new(concat!("P", stringify!($name), "\0"));
                    if LARGE.find().is_some() {
                        return large();
                    }
                    $crate::mpi::pmpi!(
                        concat!("P", stringify!($small)),
                        $($crate::exports::narrow!($kind $argument) =>
                            $crate::exports::argument!($kind std::ffi::c_int)),*
                    )
                };
                $body
            }
        }
    };
}

pub(crate) use {argument, export, export_large, narrow, profiling_name};
