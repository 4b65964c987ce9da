//! The shape of exported functions.
//!
//! Place in the data flow: `collectives`, `communicators` and `completions` define their functions with [`export!`].
//! Each has the name of a function of MPI and the types that the C compiler passes in its place: handles as whole
//! registers, pointers without a type.

/// The type of an argument. `count` is the type of counts: `c_int`, or `MPI_Count` in functions that end in `_c`.
macro_rules! argument {
    (pointer $count:ty) => { *mut std::ffi::c_void };
    (handle $count:ty) => { $crate::mpi::Handle };
    (int $count:ty) => { std::ffi::c_int };
    (count $count:ty) => { $count };
}

/// Defines a function of MPI. `library!()` in its body calls the MPI library with the same arguments.
macro_rules! export {
    ([$count:ty] $name:ident($($argument:ident: $kind:ident),*) |$library:ident| $body:expr) => {
        // SAFETY: the name is that of MPI's function, in whose place the program shall find it.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        unsafe extern "C" fn $name($($argument: $crate::exports::argument!($kind $count)),*) -> std::ffi::c_int {
            let $library = || $crate::mpi::pmpi!(
                concat!("P", stringify!($name)),
                $($argument => $crate::exports::argument!($kind $count)),*
            );
            $body
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

pub(crate) use {argument, export, export_large, narrow};
