//! All operations on all types, compared with models that compute each case directly on Rust's own numbers.

#![allow(clippy::unwrap_used)]

use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;
use crate::mem::Owned;

const ALL_FORMS: [Form; 3] = [Form::Base, Form::Fetch, Form::Compare];

/// All operations of the table.
fn all() -> Vec<Amo> {
    let mut out = Vec::new();
    for ty in TYPES {
        for op in OPS {
            out.extend(ALL_FORMS.into_iter().filter_map(|form| Amo::new(form, ty.ty, op.op)));
        }
    }
    out
}

/// Computes the new bytes of one number.
type Model = fn(Op, &[u8], &[u8], &[u8]) -> Vec<u8>;

macro_rules! model {
    ($name:ident, $number:ty, $extra:expr) => {
        fn $name(op: Op, old: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
            let [a, b, c] = [old, operand, compare].map(|bytes| <$number>::from_ne_bytes(bytes.try_into().unwrap()));
            let zero = <$number>::default();
            let truth = |truth: bool| <$number>::from(u8::from(truth));
            let new = match op {
                Op::Min => {
                    if b < a {
                        b
                    } else {
                        a
                    }
                }
                Op::Max => {
                    if b > a {
                        b
                    } else {
                        a
                    }
                }
                Op::Lor => truth(a != zero || b != zero),
                Op::Land => truth(a != zero && b != zero),
                Op::Lxor => truth((a != zero && !(b != zero)) || (!(a != zero) && b != zero)),
                Op::Read => a,
                Op::Write => b,
                Op::Cswap => {
                    if c == a {
                        b
                    } else {
                        a
                    }
                }
                Op::CswapNe => {
                    if c != a {
                        b
                    } else {
                        a
                    }
                }
                Op::CswapLe => {
                    if c <= a {
                        b
                    } else {
                        a
                    }
                }
                Op::CswapLt => {
                    if c < a {
                        b
                    } else {
                        a
                    }
                }
                Op::CswapGe => {
                    if c >= a {
                        b
                    } else {
                        a
                    }
                }
                Op::CswapGt => {
                    if c > a {
                        b
                    } else {
                        a
                    }
                }
                other => ($extra)(other, a, b, c),
            };
            new.to_ne_bytes().to_vec()
        }
    };
}

macro_rules! integer_model {
    ($($name:ident: $number:ty, $wider:ty;)*) => {
        $(model!($name, $number, |op, a: $number, b: $number, c: $number| {
            // Computes modulo the range by means of a wider type, where there is one.
            #[allow(clippy::cast_possible_truncation, clippy::cast_lossless, clippy::cast_possible_wrap)]
            match op {
                Op::Sum => (a as $wider).wrapping_add(b as $wider) as $number,
                Op::Diff => (a as $wider).wrapping_sub(b as $wider) as $number,
                Op::Prod => (a as $wider).wrapping_mul(b as $wider) as $number,
                Op::Bor => a | b,
                Op::Band => a & b,
                Op::Bxor => a ^ b,
                Op::Mswap => (b & c) | (a & !c),
                _ => panic!("no such operation: {op:?}"),
            }
        });)*
    };
}

integer_model! {
    uint8: u8, u128;
    int16: i16, i128;
    uint16: u16, u128;
    int32: i32, i128;
    uint32: u32, u128;
    int64: i64, i128;
    uint64: u64, u128;
    int128: i128, i128;
    uint128: u128, u128;
}

/// Uses the model `int16` on sign-extended numbers.
fn int8_model(op: Op, old: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
    let wide = |bytes: &[u8]| i16::from(bytes[0].cast_signed()).to_ne_bytes();
    let new = int16(op, &wide(old), &wide(operand), &wide(compare));
    vec![new[if cfg!(target_endian = "little") { 0 } else { 1 }]]
}

macro_rules! float_model {
    ($($name:ident: $number:ty;)*) => {
        $(model!($name, $number, |op, a: $number, b: $number, _c| match op {
            Op::Sum => a + b,
            Op::Diff => a - b,
            Op::Prod => a * b,
            _ => panic!("no such operation: {op:?}"),
        });)*
    };
}

float_model! {
    float: f32;
    double: f64;
}

macro_rules! complex_model {
    ($($name:ident: $number:ty;)*) => {
        $(fn $name(op: Op, old: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
            let [a, b, c] = [old, operand, compare].map(|bytes| {
                let (re, im) = bytes.split_at(size_of::<$number>());
                [re, im].map(|part| <$number>::from_ne_bytes(part.try_into().unwrap()))
            });
            let is = |x: [$number; 2]| x != [0.0, 0.0];
            let truth = |truth: bool| [<$number>::from(truth), 0.0];
            let new = match op {
                Op::Sum => [a[0] + b[0], a[1] + b[1]],
                Op::Diff => [a[0] - b[0], a[1] - b[1]],
                Op::Prod => [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]],
                Op::Lor => truth(is(a) || is(b)),
                Op::Land => truth(is(a) && is(b)),
                Op::Lxor => truth(is(a) != is(b)),
                Op::Read => a,
                Op::Write => b,
                Op::Cswap => if c == a { b } else { a },
                Op::CswapNe => if c != a { b } else { a },
                _ => panic!("no such operation: {op:?}"),
            };
            new.map(<$number>::to_ne_bytes).concat()
        })*
    };
}

complex_model! {
    float_complex: f32;
    double_complex: f64;
}

/// The value of a short number, computed bit by bit from the definition of the format.
fn value(ty: Type, bytes: &[u8]) -> f64 {
    let (bits, exponent_bits, fraction_bits) = match ty {
        Type::Float16 => (u16::from_ne_bytes(bytes.try_into().unwrap()), 5, 10),
        Type::Bfloat16 => (u16::from_ne_bytes(bytes.try_into().unwrap()), 8, 7),
        Type::Float8E4m3 => (u16::from(bytes[0]), 4, 3),
        Type::Float8E5m2 => (u16::from(bytes[0]), 5, 2),
        _ => panic!("not a short number"),
    };
    let exponent = i32::from(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    let sign = if bits >> (exponent_bits + fraction_bits) == 0 { 1.0 } else { -1.0 };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let top = exponent == (1 << exponent_bits) - 1;
    let size = match (exponent, ty) {
        (_, Type::Float8E4m3) if bits & 0x7f == 0x7f => f64::NAN,
        (_, Type::Float16 | Type::Bfloat16 | Type::Float8E5m2) if top && fraction == 0.0 => f64::INFINITY,
        (_, Type::Float16 | Type::Bfloat16 | Type::Float8E5m2) if top => f64::NAN,
        (0, _) => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    sign * size
}

/// The finite values of a short type in ascending order, each with its bits.
type Values = Vec<(f64, Vec<u8>)>;

fn values(ty: Type) -> Values {
    let size = ty.size();
    let all = (0..1u32 << (8 * size)).map(|bits| bits.to_le_bytes()[..size].to_vec());
    let mut values = all.map(|bytes| (value(ty, &bytes), bytes)).filter(|(x, _)| x.is_finite()).collect::<Vec<_>>();
    values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    values
}

/// The nearest short number, found between its neighbours. Of two equally near numbers, the one with even
/// bits is returned. Values at least half a step beyond the largest number become infinite, or NaN in formats
/// without infinity. If the largest number is even (448 of E4M3), the value at exactly half a step is rounded
/// to it.
fn nearest(ty: Type, x: f64) -> Vec<u8> {
    static TABLES: [OnceLock<Values>; 4] = [const { OnceLock::new() }; 4];
    let values = TABLES[ty as usize - Type::Float16 as usize].get_or_init(|| values(ty));
    let [.., (second, _), (last, bits)] = &values[..] else { panic!("the type has many values") };
    let half = last + (last - second) / 2.0;
    if x.is_nan() || x.abs() > half || (x.abs() == half && bits[0] & 1 == 1) {
        let wanted = if ty == Type::Float8E4m3 { f64::NAN } else { x / 0.0 };
        let all = (0..1u32 << (8 * ty.size())).map(|bits| bits.to_le_bytes()[..ty.size()].to_vec());
        let fits = |bytes: &Vec<u8>| value(ty, bytes) == wanted || (wanted.is_nan() && value(ty, bytes).is_nan());
        return all.into_iter().find(fits).unwrap();
    }
    let above = values.partition_point(|(y, _)| *y < x);
    let near = &values[above.saturating_sub(1)..(above + 2).min(values.len())];
    let key = |(y, bytes): &&(f64, Vec<u8>)| ((y - x).abs(), bytes[0] & 1);
    near.iter().min_by(|a, b| key(a).partial_cmp(&key(b)).unwrap()).unwrap().1.clone()
}

/// The model of a type, if the type has one of its own.
fn model_of(ty: Type) -> Option<Model> {
    Some(match ty {
        Type::Int8 => int8_model,
        Type::Uint8 => uint8,
        Type::Int16 => int16,
        Type::Uint16 => uint16,
        Type::Int32 => int32,
        Type::Uint32 => uint32,
        Type::Int64 => int64,
        Type::Uint64 => uint64,
        Type::Int128 => int128,
        Type::Uint128 => uint128,
        Type::Float => float,
        Type::Double => double,
        Type::FloatComplex => float_complex,
        Type::DoubleComplex => double_complex,
        _ => return None,
    })
}

/// Generates a number of a type: a small one, or arbitrary bits. Floating-point numbers are sometimes NaN.
fn number(ty: Type) -> BoxedStrategy<Vec<u8>> {
    let size = ty.size();
    let any = proptest::collection::vec(any::<u8>(), size);
    match ty {
        Type::Float => prop_oneof![any, (-4i8..4).prop_map(|n| f32::from(n).to_ne_bytes().to_vec())].boxed(),
        Type::Double => prop_oneof![any, (-4i8..4).prop_map(|n| f64::from(n).to_ne_bytes().to_vec())].boxed(),
        Type::FloatComplex => {
            let part = (-2i8..2).prop_map(|n| f32::from(n).to_ne_bytes());
            prop_oneof![any, (part.clone(), part).prop_map(|(re, im)| [re, im].concat())].boxed()
        }
        Type::DoubleComplex => {
            let part = (-2i8..2).prop_map(|n| f64::from(n).to_ne_bytes());
            prop_oneof![any, (part.clone(), part).prop_map(|(re, im)| [re, im].concat())].boxed()
        }
        Type::LongDouble => (-4i8..4).prop_map(|n| extended(f64::from(n)).to_vec()).boxed(),
        Type::LongDoubleComplex => {
            (-2i8..2, -2i8..2).prop_map(|(re, im)| [re, im].map(|n| extended(f64::from(n))).concat()).boxed()
        }
        _ => {
            let small = (0u8..4).prop_map(move |n| {
                let mut bytes = vec![0; size];
                bytes[if cfg!(target_endian = "little") { 0 } else { size - 1 }] = n;
                bytes
            });
            prop_oneof![any, small].boxed()
        }
    }
}

/// Converts a normal double to C's long double.
fn extended(x: f64) -> [u8; 16] {
    let bits = x.to_bits();
    let (sign, exponent, fraction) =
        (u128::from(bits >> 63), u128::from(bits >> 52 & 0x7ff), bits << 11 & (u64::MAX >> 1));
    if x == 0.0 {
        return (sign << 79).to_ne_bytes();
    }
    (sign << 79 | (exponent + 16383 - 1023) << 64 | 1 << 63 | u128::from(fraction)).to_ne_bytes()
}

/// Converts a long double to the double of the same value, which must exist.
fn double_of(bytes: &[u8]) -> f64 {
    let bits = u128::from_ne_bytes(bytes.try_into().unwrap()) & ((1 << 80) - 1);
    let exponent = i32::try_from(bits >> 64 & 0x7fff).unwrap();
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    let size = (bits as u64) as f64 * 2f64.powi((exponent - 16383 - 63).max(-1000));
    if bits >> 79 == 0 { size } else { -size }
}

/// Computes by the model for doubles, in which every value of the test is exact.
fn through_doubles(ty: Type, op: Op, numbers: [&[u8]; 3]) -> Vec<u8> {
    let split = |bytes: &[u8]| bytes.chunks(16).map(|part| double_of(part).to_ne_bytes()).collect::<Vec<_>>().concat();
    let [old, operand, compare] = numbers.map(split);
    let model = if ty == Type::LongDouble { double } else { double_complex };
    let new = model(op, &old, &operand, &compare);
    new.chunks(8).flat_map(|part| extended(f64::from_ne_bytes(part.try_into().unwrap()))).collect()
}

/// The expected value of a number after an operation.
fn expected(amo: Amo, old: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
    let (ty, op) = (amo.ty(), amo.op());
    if let Some(model) = model_of(ty) {
        return model(op, old, operand, compare);
    }
    if matches!(ty, Type::LongDouble | Type::LongDoubleComplex) {
        return through_doubles(ty, op, [old, operand, compare]);
    }
    // Short numbers are computed by the model for doubles.
    let wide = [old, operand, compare].map(|bytes| value(ty, bytes).to_ne_bytes());
    let new = double(op, &wide[0], &wide[1], &wide[2]);
    let new = f64::from_ne_bytes(new.try_into().unwrap());
    for same in [old, operand] {
        if new.to_bits() == value(ty, same).to_bits() {
            return same.to_vec();
        }
    }
    nearest(ty, new)
}

/// Whether two values are the same number. All NaNs are the same.
fn same(ty: Type, a: &[u8], b: &[u8]) -> bool {
    let nan = |bytes: &[u8]| match ty {
        Type::Float => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        Type::Double => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        Type::FloatComplex => bytes.chunks(4).any(|part| f32::from_ne_bytes(part.try_into().unwrap()).is_nan()),
        Type::DoubleComplex => bytes.chunks(8).any(|part| f64::from_ne_bytes(part.try_into().unwrap()).is_nan()),
        Type::Float16 | Type::Bfloat16 | Type::Float8E4m3 | Type::Float8E5m2 => value(ty, bytes).is_nan(),
        _ => false,
    };
    let zero = |bytes: &[u8]| match ty {
        Type::Float16 | Type::Bfloat16 | Type::Float8E4m3 | Type::Float8E5m2 => value(ty, bytes) == 0.0,
        Type::LongDouble | Type::LongDoubleComplex => bytes.chunks(16).all(|part| double_of(part) == 0.0),
        _ => false,
    };
    a == b || (nan(a) && nan(b)) || (zero(a) && zero(b))
}

/// Memory that begins at `skip` bytes from a multiple of 64, cut into pieces.
fn memory(owned: &mut Owned, skip: usize, len: usize, cuts: &[usize]) -> Vec<Iov> {
    let whole = owned.iov();
    let start = usize::try_from(whole.addr().next_multiple_of(64) - whole.addr()).unwrap() + skip;
    let mut out = Vec::new();
    let mut at = 0;
    for cut in cuts {
        let end = (at + cut).min(len);
        out.push(whole.slice(start + at, end - at));
        at = end;
    }
    out.push(whole.slice(start + at, len - at));
    out
}

fn bytes_of(memory: &[Iov]) -> Vec<u8> {
    mem::to_vec(memory)
}

#[test]
fn the_table_agrees_with_fi_atomic() {
    let valid = |form, ty: Type, op: Op| Amo::new(form, ty, op).is_some();
    for ty in TYPES {
        let (integer, ordered) = (ty.class == Class::Integer, ty.class != Class::Complex);
        for op in OPS {
            let on_it = match op.op {
                Op::Bor | Op::Band | Op::Bxor | Op::Mswap => integer,
                Op::Min | Op::Max | Op::CswapLe | Op::CswapLt | Op::CswapGe | Op::CswapGt => ordered,
                _ => true,
            } && ty.here;
            let compare = op.op as u8 >= Op::Cswap as u8 && op.op as u8 <= Op::Mswap as u8;
            assert_eq!(valid(Form::Base, ty.ty, op.op), on_it && !compare && op.op != Op::Read, "{op:?} {ty:?}");
            assert_eq!(valid(Form::Fetch, ty.ty, op.op), on_it && !compare, "{op:?} {ty:?}");
            assert_eq!(valid(Form::Compare, ty.ty, op.op), on_it && compare, "{op:?} {ty:?}");
        }
    }
    assert_eq!((Type::from_number(20), Op::from_number(20)), (None, None));
    assert_eq!((Type::from_number(13), Op::from_number(18)), (Some(Type::LongDoubleComplex), Some(Op::Mswap)));
}

#[test]
fn the_form_determines_the_number_of_sources() {
    for amo in all() {
        let expected = match (amo.form(), amo.op()) {
            (Form::Compare, _) => 2,
            (_, Op::Read) => 0,
            _ => 1,
        };
        assert_eq!(amo.sources(), expected, "{amo:?}");
        assert_eq!((amo.fetches(), amo.changes()), (amo.form() != Form::Base, amo.op() != Op::Read), "{amo:?}");
    }
}

/// The random input of one operation.
#[derive(Debug, Clone)]
struct Case {
    amo: Amo,
    /// Previous value, operand and value to compare with, for each number.
    numbers: Vec<[Vec<u8>; 3]>,
    skip: usize,
    cuts: Vec<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    proptest::sample::select(all()).prop_flat_map(|amo| {
        let one = || number(amo.ty());
        let equal = one().prop_map(|n| [n.clone(), n.clone(), n]);
        let three = prop_oneof![3 => (one(), one(), one()).prop_map(|(a, b, c)| [a, b, c]), 1 => equal];
        let skip = prop_oneof![2 => Just(0), 1 => 0usize..40];
        let cuts = prop_oneof![2 => Just(Vec::new()), 1 => proptest::collection::vec(0usize..50, 1..4)];
        (proptest::collection::vec(three, 1..6), skip, cuts).prop_map(move |(numbers, skip, cuts)| Case {
            amo,
            numbers,
            skip,
            cuts,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    /// Any numbers, at any address and in any pieces.
    #[test]
    fn every_operation_agrees_with_its_model(case in case()) {
        let Case { amo, numbers, skip, cuts } = case;
        let size = amo.ty().size();
        let column = |n: usize| numbers.iter().flat_map(|three| three[n].clone()).collect::<Vec<_>>();
        let mut owned = Owned::new(vec![0xEE; 64 + 40 + 6 * LARGEST_BYTES + 8]);
        let target = memory(&mut owned, skip, numbers.len() * size, &cuts);
        mem::scatter(&target, 0, &column(0));
        let sources = [column(1), column(2)][..amo.sources()].concat();
        let mut results = vec![0x55];
        amo.execute(&target, &sources, amo.fetches().then_some(&mut results));
        prop_assert_eq!(&results[1..], &if amo.fetches() { column(0) } else { Vec::new() }[..]);
        let after = bytes_of(&target);
        for (number, [old, operand, compare]) in after.chunks(size).zip(&numbers) {
            let expected = expected(amo, old, operand, compare);
            prop_assert!(same(amo.ty(), number, &expected), "{:?}: {:?}, not {:?}", amo, number, expected);
        }
        let around = owned.iov();
        let before = usize::try_from(target[0].addr() - around.addr()).unwrap();
        prop_assert!(bytes_of(&[around.slice(0, before)]).iter().all(|byte| *byte == 0xEE));
        let end = before + numbers.len() * size;
        prop_assert!(bytes_of(&[around.slice(end, usize::MAX)]).iter().all(|byte| *byte == 0xEE));
    }
}

/// A byte has few enough values to try all pairs.
#[test]
fn arithmetic_on_byte_floats_agrees_with_its_model() {
    let olds = (0..=u8::MAX).collect::<Vec<_>>();
    for ty in [Type::Float8E4m3, Type::Float8E5m2] {
        for op in [Op::Sum, Op::Diff, Op::Prod, Op::Min, Op::Max] {
            let amo = Amo::new(Form::Base, ty, op).unwrap();
            for operand in 0..=u8::MAX {
                let mut owned = Owned::new(olds.clone());
                amo.execute(&[owned.iov()], &[operand; 256], None);
                for (old, number) in olds.iter().zip(bytes_of(&[owned.iov()])) {
                    let expected = expected(amo, &[*old], &[operand], &[0]);
                    assert!(same(ty, &[number], &expected), "{amo:?} of {old}, {operand}: {number}, not {expected:?}");
                }
            }
        }
    }
}

/// Aligned, unaligned and divided numbers: concurrent updates of several threads are all counted.
#[test]
fn updates_of_several_threads_add_up() {
    const ROUNDS: u8 = 200;
    for amo in all().into_iter().filter(|amo| amo.op() == Op::Sum && amo.form() == Form::Fetch) {
        let (ty, size) = (amo.ty(), amo.ty().size());
        // Only types that count in units without rounding take part.
        let Some(one) = unit(ty) else { continue };
        for (skip, cuts) in [(0, vec![]), (1, vec![]), (0, vec![size / 2])] {
            let mut owned = Owned::new(vec![0; 256]);
            let target = memory(&mut owned, skip, size, &cuts);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let (target, one) = (target.clone(), one.clone());
                    scope.spawn(move || {
                        let mut results = Vec::new();
                        for _ in 0..ROUNDS {
                            amo.execute(&target, &one, Some(&mut results));
                        }
                        assert_eq!(results.len(), usize::from(ROUNDS) * size);
                    });
                }
            });
            let sum = bytes_of(&target);
            let mut expected = Owned::new(vec![0; size]);
            let expected = [expected.iov()];
            for _ in 0..3 * u16::from(ROUNDS) {
                amo.execute(&expected, &one, None);
            }
            assert_eq!(sum, bytes_of(&expected), "{amo:?} at {skip}, {cuts:?}");
        }
    }
}

/// One, for types that count to six hundred without rounding.
fn unit(ty: Type) -> Option<Vec<u8>> {
    let mut bytes = vec![0; ty.size()];
    match ty {
        Type::Bfloat16 | Type::Float8E4m3 | Type::Float8E5m2 => return None,
        Type::Float | Type::FloatComplex => bytes[..4].copy_from_slice(&1f32.to_ne_bytes()),
        Type::Double | Type::DoubleComplex => bytes[..8].copy_from_slice(&1f64.to_ne_bytes()),
        Type::LongDouble | Type::LongDoubleComplex => bytes[..16].copy_from_slice(&extended(1.0)),
        Type::Float16 => bytes.copy_from_slice(&0x3c00u16.to_ne_bytes()),
        _ => bytes[if cfg!(target_endian = "little") { 0 } else { ty.size() - 1 }] = 1,
    }
    Some(bytes)
}

/// An aligned number that has a piece of its own is updated by instructions, in an array whose other numbers
/// are not.
#[test]
fn aligned_pieces_use_instructions() {
    let mut seen = Vec::new();
    let mut owned = Owned::new(vec![0; 256]);
    let target = memory(&mut owned, 0, 32, &[8, 4]);
    each_number(&target, 8, &mut |number| seen.push(number.iter().map(Iov::len).collect::<Vec<_>>()));
    assert_eq!(seen, [vec![8], vec![4, 4], vec![8], vec![8]]);
    seen.clear();
    let target = memory(&mut owned, 0, 20, &[0, 3, 0, 1]);
    each_number(&target, 8, &mut |number| seen.push(number.iter().map(Iov::len).collect::<Vec<_>>()));
    assert_eq!(seen, [vec![3, 1, 4], vec![8]], "the last four bytes are no number");
}

/// The bits of a long double beyond the precision of a double are kept.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn long_doubles_keep_all_their_bits() {
    let mut owned = Owned::new(extended(9_223_372_036_854_775_808.0).to_vec());
    let target = [owned.iov()];
    let amo = Amo::new(Form::Base, Type::LongDouble, Op::Sum).unwrap();
    amo.execute(&target, &extended(1.0), None);
    let sum = u128::from_ne_bytes(bytes_of(&target).try_into().unwrap());
    assert_eq!(sum, u128::from_ne_bytes(extended(9_223_372_036_854_775_808.0)) | 1);
}
