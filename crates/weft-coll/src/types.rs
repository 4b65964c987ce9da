//! Datatypes and operations of MPI, and their counterparts in libfabric.
//!
//! Place in the data flow: [`crate::plan`] asks whether a type is a plain run of bytes, and which reduction a type and
//! an operation are. Types that are not listed here are derived, or have gaps.

use std::ffi::{CStr, c_char};

use rustc_hash::FxHashMap;
use weft_fi_sys::*;

use crate::mpi::{Abi, Handle};
use crate::pmpi::Pmpi;

/// The arithmetic of a type's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Signed,
    Unsigned,
    Float,
    Complex,
    /// C's `bool`: logical operations only.
    Bool,
    /// `MPI_BYTE`: bitwise operations only.
    Byte,
    /// Moved, but never combined.
    Opaque,
}

/// A predefined type without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Basic {
    class: Class,
    /// Bytes of one element.
    size: usize,
}

/// C's `char`, which MPI libraries reduce although the standard has it for text only.
const CHAR: Class = if c_char::MIN == 0 { Class::Unsigned } else { Class::Signed };

/// The predefined types: number in the ABI of MPICH, object of Open MPI, and class.
const TYPES: &[(Handle, &CStr, Class)] = &[
    (0x4c00_0101, c"ompi_mpi_char", CHAR),
    (0x4c00_0118, c"ompi_mpi_signed_char", Class::Signed),
    (0x4c00_0102, c"ompi_mpi_unsigned_char", Class::Unsigned),
    (0x4c00_010d, c"ompi_mpi_byte", Class::Byte),
    (0x4c00_010f, c"ompi_mpi_packed", Class::Opaque),
    (0x4c00_040e, c"ompi_mpi_wchar", Class::Opaque),
    (0x4c00_0203, c"ompi_mpi_short", Class::Signed),
    (0x4c00_0204, c"ompi_mpi_unsigned_short", Class::Unsigned),
    (0x4c00_0405, c"ompi_mpi_int", Class::Signed),
    (0x4c00_0406, c"ompi_mpi_unsigned", Class::Unsigned),
    (0x4c00_0807, c"ompi_mpi_long", Class::Signed),
    (0x4c00_0808, c"ompi_mpi_unsigned_long", Class::Unsigned),
    (0x4c00_0809, c"ompi_mpi_long_long_int", Class::Signed),
    (0x4c00_0819, c"ompi_mpi_unsigned_long_long", Class::Unsigned),
    (0x4c00_040a, c"ompi_mpi_float", Class::Float),
    (0x4c00_080b, c"ompi_mpi_double", Class::Float),
    (0x4c00_100c, c"ompi_mpi_long_double", Class::Float),
    (0x4c00_0137, c"ompi_mpi_int8_t", Class::Signed),
    (0x4c00_0238, c"ompi_mpi_int16_t", Class::Signed),
    (0x4c00_0439, c"ompi_mpi_int32_t", Class::Signed),
    (0x4c00_083a, c"ompi_mpi_int64_t", Class::Signed),
    (0x4c00_013b, c"ompi_mpi_uint8_t", Class::Unsigned),
    (0x4c00_023c, c"ompi_mpi_uint16_t", Class::Unsigned),
    (0x4c00_043d, c"ompi_mpi_uint32_t", Class::Unsigned),
    (0x4c00_083e, c"ompi_mpi_uint64_t", Class::Unsigned),
    (0x4c00_013f, c"ompi_mpi_c_bool", Class::Bool),
    (0x4c00_0840, c"ompi_mpi_c_float_complex", Class::Complex),
    (0x4c00_1041, c"ompi_mpi_c_double_complex", Class::Complex),
    (0x4c00_2042, c"ompi_mpi_c_long_double_complex", Class::Complex),
    (0x4c00_0133, c"ompi_mpi_cxx_bool", Class::Bool),
    (0x4c00_0834, c"ompi_mpi_cxx_cplex", Class::Complex),
    (0x4c00_1035, c"ompi_mpi_cxx_dblcplex", Class::Complex),
    (0x4c00_2036, c"ompi_mpi_cxx_ldblcplex", Class::Complex),
    (0x4c00_0843, c"ompi_mpi_aint", Class::Signed),
    (0x4c00_0844, c"ompi_mpi_offset", Class::Signed),
    (0x4c00_0845, c"ompi_mpi_count", Class::Signed),
    (0x4c00_011a, c"ompi_mpi_character", Class::Opaque),
    (0x4c00_041d, c"ompi_mpi_logical", Class::Opaque),
    (0x4c00_041b, c"ompi_mpi_integer", Class::Signed),
    (0x4c00_012d, c"ompi_mpi_integer1", Class::Signed),
    (0x4c00_022f, c"ompi_mpi_integer2", Class::Signed),
    (0x4c00_0430, c"ompi_mpi_integer4", Class::Signed),
    (0x4c00_0831, c"ompi_mpi_integer8", Class::Signed),
    (0x4c00_041c, c"ompi_mpi_real", Class::Float),
    (0x4c00_0427, c"ompi_mpi_real4", Class::Float),
    (0x4c00_0829, c"ompi_mpi_real8", Class::Float),
    (0x4c00_081f, c"ompi_mpi_dblprec", Class::Float),
    (0x4c00_081e, c"ompi_mpi_cplex", Class::Complex),
    (0x4c00_0828, c"ompi_mpi_complex8", Class::Complex),
    (0x4c00_102a, c"ompi_mpi_complex16", Class::Complex),
    (0x4c00_1022, c"ompi_mpi_dblcplex", Class::Complex),
];

/// The predefined operations: number in the ABI of MPICH, object of Open MPI, and libfabric's operation.
const OPERATIONS: &[(Handle, &CStr, fi_op)] = &[
    (0x5800_0001, c"ompi_mpi_op_max", FI_MAX),
    (0x5800_0002, c"ompi_mpi_op_min", FI_MIN),
    (0x5800_0003, c"ompi_mpi_op_sum", FI_SUM),
    (0x5800_0004, c"ompi_mpi_op_prod", FI_PROD),
    (0x5800_0005, c"ompi_mpi_op_land", FI_LAND),
    (0x5800_0006, c"ompi_mpi_op_band", FI_BAND),
    (0x5800_0007, c"ompi_mpi_op_lor", FI_LOR),
    (0x5800_0008, c"ompi_mpi_op_bor", FI_BOR),
    (0x5800_0009, c"ompi_mpi_op_lxor", FI_LXOR),
    (0x5800_000a, c"ompi_mpi_op_bxor", FI_BXOR),
];

/// Types and operations by handle.
pub(crate) struct Types {
    types: FxHashMap<Handle, Basic>,
    operations: FxHashMap<Handle, fi_op>,
}

impl Types {
    /// The types and operations that the MPI library has. In Open MPI, a type that its compiler lacked has no size.
    pub(crate) fn of(pmpi: &Pmpi) -> Self {
        let basic = |&(number, object, class): &(Handle, &CStr, Class)| {
            let handle = pmpi.mpi.constant(number, object)?;
            // MPICH's handles contain the size, and its library treats a type that it lacks as an error.
            let written = number >> 8 & 0xff;
            let size = if pmpi.mpi.abi() == Abi::Mpich { written } else { pmpi.type_size(handle)? };
            (size > 0).then_some((handle, Basic { class, size }))
        };
        let operation = |&(number, object, op)| Some((pmpi.mpi.constant(number, object)?, op));
        Self {
            types: TYPES.iter().filter_map(basic).collect(),
            operations: OPERATIONS.iter().filter_map(operation).collect(),
        }
    }

    /// Bytes of one element, if the type is a predefined one without gaps.
    pub(crate) fn plain(&self, datatype: Handle) -> Option<usize> {
        self.types.get(&datatype).map(|basic| basic.size)
    }

    /// libfabric's type and operation, and bytes of one element, if weft can reduce them.
    pub(crate) fn reduction(&self, datatype: Handle, operation: Handle) -> Option<(fi_datatype, fi_op, usize)> {
        let basic = *self.types.get(&datatype)?;
        let op = *self.operations.get(&operation)?;
        Some((number(basic, op)?, op, basic.size))
    }
}

/// libfabric's type for a reduction of these elements, if the MPI standard allows the operation.
fn number(basic: Basic, op: fi_op) -> Option<fi_datatype> {
    let logical = [FI_LAND, FI_LOR, FI_LXOR].contains(&op);
    let bitwise = [FI_BAND, FI_BOR, FI_BXOR].contains(&op);
    let ordered = [FI_MIN, FI_MAX].contains(&op);
    Some(match (basic.class, basic.size) {
        (Class::Signed, 1) => FI_INT8,
        (Class::Signed, 2) => FI_INT16,
        (Class::Signed, 4) => FI_INT32,
        (Class::Signed, 8) => FI_INT64,
        (Class::Unsigned, 1) => FI_UINT8,
        (Class::Unsigned, 2) => FI_UINT16,
        (Class::Unsigned, 4) => FI_UINT32,
        (Class::Unsigned, 8) => FI_UINT64,
        (Class::Bool, 1) if logical => FI_UINT8,
        (Class::Byte, 1) if bitwise => FI_UINT8,
        (Class::Float | Class::Complex, _) if logical || bitwise => return None,
        (Class::Float, 4) => FI_FLOAT,
        (Class::Float, 8) => FI_DOUBLE,
        (Class::Float, 16) => FI_LONG_DOUBLE,
        (Class::Complex, _) if ordered => return None,
        (Class::Complex, 8) => FI_FLOAT_COMPLEX,
        (Class::Complex, 16) => FI_DOUBLE_COMPLEX,
        (Class::Complex, 32) => FI_LONG_DOUBLE_COMPLEX,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(class: Class, size: usize) -> Basic {
        Basic { class, size }
    }

    #[test]
    fn numbers_of_reductions_follow_class_and_size() {
        assert_eq!(number(basic(Class::Signed, 4), FI_SUM), Some(FI_INT32));
        assert_eq!(number(basic(Class::Float, 8), FI_MAX), Some(FI_DOUBLE));
        assert_eq!(number(basic(Class::Complex, 16), FI_PROD), Some(FI_DOUBLE_COMPLEX));
        assert_eq!(number(basic(Class::Bool, 1), FI_LAND), Some(FI_UINT8));
        assert_eq!(number(basic(Class::Byte, 1), FI_BXOR), Some(FI_UINT8));
    }

    #[test]
    fn reductions_outside_the_standard_are_refused() {
        for (class, size, op) in [
            (Class::Complex, 16, FI_MIN),
            (Class::Float, 8, FI_BAND),
            (Class::Float, 4, FI_LOR),
            (Class::Byte, 1, FI_SUM),
            (Class::Bool, 1, FI_MAX),
            (Class::Opaque, 1, FI_MAX),
            (Class::Float, 2, FI_SUM),
        ] {
            assert_eq!(number(basic(class, size), op), None, "{class:?} of {size} bytes");
        }
    }

    #[test]
    fn types_and_operations_are_listed_once() {
        let types: FxHashMap<_, _> = TYPES.iter().map(|&(number, object, _)| (number, object)).collect();
        assert_eq!(types.len(), TYPES.len());
        let operations: FxHashMap<_, _> = OPERATIONS.iter().map(|&(number, object, _)| (number, object)).collect();
        assert_eq!(operations.len(), OPERATIONS.len());
    }
}
