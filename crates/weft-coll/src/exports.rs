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

pub(crate) use {argument, export};
