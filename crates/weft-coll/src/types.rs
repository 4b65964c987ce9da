//! Datatypes and operations of MPI, and their counterparts in libfabric.
//!
//! Place in the data flow: [`crate::plan`] asks whether a type is a plain run of bytes, and which reduction a type and
//! an operation are. Types that are not listed here are derived, or have gaps.

use std::ffi::c_char;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use weft_fi_sys::*;

use crate::mpi::{Abi, Handle, Named};
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

/// The predefined types and their classes.
const TYPES: &[(Named, Class)] = &[
    (Named::new(0x4c00_0101, c"ompi_mpi_char", 0x243), CHAR),
    (Named::new(0x4c00_0118, c"ompi_mpi_signed_char", 0x244), Class::Signed),
    (Named::new(0x4c00_0102, c"ompi_mpi_unsigned_char", 0x245), Class::Unsigned),
    (Named::new(0x4c00_010d, c"ompi_mpi_byte", 0x247), Class::Byte),
    (Named::new(0x4c00_010f, c"ompi_mpi_packed", 0x207), Class::Opaque),
    (Named::new(0x4c00_040e, c"ompi_mpi_wchar", 0x23c), Class::Opaque),
    (Named::new(0x4c00_0203, c"ompi_mpi_short", 0x208), Class::Signed),
    (Named::new(0x4c00_0204, c"ompi_mpi_unsigned_short", 0x20c), Class::Unsigned),
    (Named::new(0x4c00_0405, c"ompi_mpi_int", 0x209), Class::Signed),
    (Named::new(0x4c00_0406, c"ompi_mpi_unsigned", 0x20d), Class::Unsigned),
    (Named::new(0x4c00_0807, c"ompi_mpi_long", 0x20a), Class::Signed),
    (Named::new(0x4c00_0808, c"ompi_mpi_unsigned_long", 0x20e), Class::Unsigned),
    (Named::new(0x4c00_0809, c"ompi_mpi_long_long_int", 0x20b), Class::Signed),
    (Named::new(0x4c00_0819, c"ompi_mpi_unsigned_long_long", 0x20f), Class::Unsigned),
    (Named::new(0x4c00_040a, c"ompi_mpi_float", 0x210), Class::Float),
    (Named::new(0x4c00_080b, c"ompi_mpi_double", 0x214), Class::Float),
    (Named::new(0x4c00_100c, c"ompi_mpi_long_double", 0x220), Class::Float),
    (Named::new(0x4c00_0137, c"ompi_mpi_int8_t", 0x240), Class::Signed),
    (Named::new(0x4c00_0238, c"ompi_mpi_int16_t", 0x248), Class::Signed),
    (Named::new(0x4c00_0439, c"ompi_mpi_int32_t", 0x250), Class::Signed),
    (Named::new(0x4c00_083a, c"ompi_mpi_int64_t", 0x258), Class::Signed),
    (Named::new(0x4c00_013b, c"ompi_mpi_uint8_t", 0x241), Class::Unsigned),
    (Named::new(0x4c00_023c, c"ompi_mpi_uint16_t", 0x249), Class::Unsigned),
    (Named::new(0x4c00_043d, c"ompi_mpi_uint32_t", 0x251), Class::Unsigned),
    (Named::new(0x4c00_083e, c"ompi_mpi_uint64_t", 0x259), Class::Unsigned),
    (Named::new(0x4c00_013f, c"ompi_mpi_c_bool", 0x238), Class::Bool),
    (Named::new(0x4c00_0840, c"ompi_mpi_c_float_complex", 0x212), Class::Complex),
    (Named::new(0x4c00_1041, c"ompi_mpi_c_double_complex", 0x216), Class::Complex),
    (Named::new(0x4c00_2042, c"ompi_mpi_c_long_double_complex", 0x224), Class::Complex),
    (Named::new(0x4c00_0133, c"ompi_mpi_cxx_bool", 0x239), Class::Bool),
    (Named::new(0x4c00_0834, c"ompi_mpi_cxx_cplex", 0x213), Class::Complex),
    (Named::new(0x4c00_1035, c"ompi_mpi_cxx_dblcplex", 0x217), Class::Complex),
    (Named::new(0x4c00_2036, c"ompi_mpi_cxx_ldblcplex", 0x225), Class::Complex),
    (Named::new(0x4c00_0843, c"ompi_mpi_aint", 0x201), Class::Signed),
    (Named::new(0x4c00_0844, c"ompi_mpi_offset", 0x203), Class::Signed),
    (Named::new(0x4c00_0845, c"ompi_mpi_count", 0x202), Class::Signed),
    (Named::new(0x4c00_011a, c"ompi_mpi_character", 0x21e), Class::Opaque),
    (Named::new(0x4c00_041d, c"ompi_mpi_logical", 0x218), Class::Opaque),
    (Named::new(0x4c00_041b, c"ompi_mpi_integer", 0x219), Class::Signed),
    (Named::new(0x4c00_012d, c"ompi_mpi_integer1", 0x2c1), Class::Signed),
    (Named::new(0x4c00_022f, c"ompi_mpi_integer2", 0x2c9), Class::Signed),
    (Named::new(0x4c00_0430, c"ompi_mpi_integer4", 0x2d1), Class::Signed),
    (Named::new(0x4c00_0831, c"ompi_mpi_integer8", 0x2d9), Class::Signed),
    (Named::new(0x4c00_041c, c"ompi_mpi_real", 0x21a), Class::Float),
    (Named::new(0x4c00_0427, c"ompi_mpi_real4", 0x2d2), Class::Float),
    (Named::new(0x4c00_0829, c"ompi_mpi_real8", 0x2da), Class::Float),
    (Named::new(0x4c00_081f, c"ompi_mpi_dblprec", 0x21c), Class::Float),
    (Named::new(0x4c00_081e, c"ompi_mpi_cplex", 0x21b), Class::Complex),
    (Named::new(0x4c00_0828, c"ompi_mpi_complex8", 0x2db), Class::Complex),
    (Named::new(0x4c00_102a, c"ompi_mpi_complex16", 0x2e3), Class::Complex),
    (Named::new(0x4c00_1022, c"ompi_mpi_dblcplex", 0x21d), Class::Complex),
];

/// The predefined operations and those of libfabric.
const OPERATIONS: &[(Named, fi_op)] = &[
    (Named::new(0x5800_0001, c"ompi_mpi_op_max", 0x23), FI_MAX),
    (Named::new(0x5800_0002, c"ompi_mpi_op_min", 0x22), FI_MIN),
    (Named::new(0x5800_0003, c"ompi_mpi_op_sum", 0x21), FI_SUM),
    (Named::new(0x5800_0004, c"ompi_mpi_op_prod", 0x24), FI_PROD),
    (Named::new(0x5800_0005, c"ompi_mpi_op_land", 0x30), FI_LAND),
    (Named::new(0x5800_0006, c"ompi_mpi_op_band", 0x28), FI_BAND),
    (Named::new(0x5800_0007, c"ompi_mpi_op_lor", 0x31), FI_LOR),
    (Named::new(0x5800_0008, c"ompi_mpi_op_bor", 0x29), FI_BOR),
    (Named::new(0x5800_0009, c"ompi_mpi_op_lxor", 0x32), FI_LXOR),
    (Named::new(0x5800_000a, c"ompi_mpi_op_bxor", 0x2a), FI_BXOR),
];

/// The predefined types of a value and an index, which have gaps in part.
const PAIRS: &[Named] = &[
    Named::new(0x8c00_0000, c"ompi_mpi_float_int", 0x228),
    Named::new(0x8c00_0001, c"ompi_mpi_double_int", 0x229),
    Named::new(0x8c00_0002, c"ompi_mpi_long_int", 0x22a),
    Named::new(0x4c00_0816, c"ompi_mpi_2int", 0x22b),
    Named::new(0x8c00_0003, c"ompi_mpi_short_int", 0x22c),
    Named::new(0x8c00_0004, c"ompi_mpi_longdbl_int", 0x22d),
    Named::new(0x4c00_0821, c"ompi_mpi_2real", 0x230),
    Named::new(0x4c00_1023, c"ompi_mpi_2dblprec", 0x231),
    Named::new(0x4c00_0820, c"ompi_mpi_2integer", 0x232),
];

/// The predefined operations on pairs.
const ON_PAIRS: &[Named] =
    &[Named::new(0x5800_000b, c"ompi_mpi_op_minloc", 0x38), Named::new(0x5800_000c, c"ompi_mpi_op_maxloc", 0x39)];

/// The predefined operations that no collective has.
const OTHERS: &[Named] = &[
    Named::new(0x1800_0000, c"ompi_mpi_op_null", 0x20),
    Named::new(0x5800_000d, c"ompi_mpi_op_replace", 0x3c),
    Named::new(0x5800_000e, c"ompi_mpi_op_no_op", 0x3d),
];

/// Types and operations by handle.
pub(crate) struct Types {
    types: FxHashMap<Handle, Basic>,
    operations: FxHashMap<Handle, fi_op>,
    pairs: SmallVec<[Handle; 9]>,
    on_pairs: SmallVec<[Handle; 2]>,
    others: SmallVec<[Handle; 3]>,
}

impl Types {
    /// The types and operations that the MPI library has. In Open MPI, a type that its compiler lacked has no size.
    pub(crate) fn of(pmpi: &Pmpi) -> Self {
        let basic = |(named, class): &(Named, Class)| {
            let handle = pmpi.mpi.constant(named)?;
            // MPICH's handles contain the size. To ask MPICH for the size of a type that it lacks is an error, in its
            // standard interface as well.
            let size = if pmpi.mpi.abi() == Abi::OpenMpi { pmpi.type_size(handle)? } else { named.mpich() >> 8 & 0xff };
            (size > 0).then_some((handle, Basic { class: *class, size }))
        };
        let operation = |(named, op): &(Named, fi_op)| Some((pmpi.mpi.constant(named)?, *op));
        Self {
            types: TYPES.iter().filter_map(basic).collect(),
            operations: OPERATIONS.iter().filter_map(operation).collect(),
            pairs: PAIRS.iter().filter_map(|named| pmpi.mpi.constant(named)).collect(),
            on_pairs: ON_PAIRS.iter().filter_map(|named| pmpi.mpi.constant(named)).collect(),
            others: OTHERS.iter().filter_map(|named| pmpi.mpi.constant(named)).collect(),
        }
    }

    /// Whether the type is a predefined pair.
    pub(crate) fn is_pair(&self, datatype: Handle) -> bool {
        self.pairs.contains(&datatype)
    }

    /// Whether the operation is none of the program.
    pub(crate) fn is_predefined_op(&self, operation: Handle) -> bool {
        self.operations.contains_key(&operation)
            || self.on_pairs.contains(&operation)
            || self.others.contains(&operation)
    }

    /// Whether the MPI library may combine elements of this type by this operation. It answers for operations of the
    /// program as well.
    pub(crate) fn is_sound(&self, datatype: Handle, operation: Handle) -> bool {
        if self.on_pairs.contains(&operation) {
            return self.is_pair(datatype);
        }
        !self.is_predefined_op(operation) || self.reduction(datatype, operation).is_some()
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
    use rustc_hash::FxHashSet;

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
        let types: Vec<_> = TYPES.iter().map(|(named, _)| named).collect();
        let operations: Vec<_> = OPERATIONS.iter().map(|(named, _)| named).collect();
        for table in [types, operations] {
            let mpich: FxHashSet<_> = table.iter().map(|named| named.mpich()).collect();
            let standard: FxHashSet<_> = table.iter().map(|named| named.standard()).collect();
            assert_eq!([mpich.len(), standard.len()], [table.len(); 2]);
        }
    }
}
