//! C's `long double` on x86-64: sum, difference and product of 80-bit numbers.
//!
//! Rust has no such type. The result must equal the result of the client's own code, which uses the x87 unit,
//! so this module uses it, too. Numbers are passed as the 16 bytes in which C stores them; the low ten bytes
//! are significant.
//!
//! On other processors `long double` has another format, and [`crate::amo`] does not offer it.

#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        pub(crate) fn $name(a: u128, b: u128) -> u128 {
            let mut result = 0u128;
            // SAFETY: the operands and the result are local variables, and longer than the ten bytes that are
            // accessed. The x87 stack is as empty afterwards as before, its registers are declared as
            // clobbered, and the rounding mode is the thread's.
            unsafe {
                std::arch::asm!(
                    "fld tbyte ptr [{a}]",
                    "fld tbyte ptr [{b}]",
                    $instruction,
                    "fstp tbyte ptr [{result}]",
                    a = in(reg) &raw const a,
                    b = in(reg) &raw const b,
                    result = in(reg) &raw mut result,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack)
                );
            }
            result
        }
    };
}

/// Other processors offer no operation that would call these functions.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        pub(crate) fn $name(_a: u128, _b: u128) -> u128 {
            unreachable!("long double is not offered here")
        }
    };
}

operation! {
    /// `a + b`
    add, "faddp st(1), st"
}
operation! {
    /// `a - b`
    sub, "fsubp st(1), st"
}
operation! {
    /// `a * b`
    mul, "fmulp st(1), st"
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    /// The 80-bit form of a normal `f64` or zero.
    fn extended(x: f64) -> u128 {
        let bits = x.to_bits();
        let (sign, exponent, fraction) = (bits >> 63, bits >> 52 & 0x7ff, bits & ((1 << 52) - 1));
        if exponent == 0 {
            return u128::from(sign) << 79;
        }
        let exponent = exponent + 16383 - 1023;
        u128::from(sign) << 79 | u128::from(exponent) << 64 | u128::from(1 << 63 | fraction << 11)
    }

    #[test]
    fn x87_agrees_with_exact_doubles() {
        for (a, b) in [(1.0, 2.0), (-3.5, 0.25), (0.0, -7.0), (1e10, 12345.0), (-0.5, -0.5), (3.0, 3.0)] {
            assert_eq!(add(extended(a), extended(b)), extended(a + b), "{a} + {b}");
            assert_eq!(sub(extended(a), extended(b)), extended(a - b), "{a} - {b}");
            assert_eq!(mul(extended(a), extended(b)), extended(a * b), "{a} * {b}");
        }
    }

    #[test]
    fn x87_keeps_bits_beyond_a_double() {
        // The number needs 64 bits of significand.
        let large = extended(9_223_372_036_854_775_808.0);
        assert_eq!(add(large, extended(1.0)), large + 1);
        assert_eq!(sub(add(large, extended(1.0)), large), extended(1.0));
    }
}
