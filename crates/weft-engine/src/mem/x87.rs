//! C's `long double` on x86-64: sum, difference and product of 80-bit numbers.
//!
//! Rust has no such type, and the result must be the one that the client's own code would have got, so the
//! x87 unit that computes it there computes it here. A number is handed in and out as the 16 bytes that C
//! keeps it in, of which the low ten count.
//!
//! On other processors `long double` is something else, and [`crate::amo`] does not offer it.

#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        pub(crate) fn $name(a: u128, b: u128) -> u128 {
            let mut result = 0u128;
            // SAFETY: the operands and the result are ours and longer than the ten bytes that are accessed.
            // The stack of the unit is as empty after it as before, its registers are declared as changed,
            // and rounding is as the thread has it.
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

/// Elsewhere nothing is offered that would call these.
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

    /// An 80-bit number from one of 64 bits (normal ones and zero).
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
    fn what_doubles_compute_exactly_is_the_same() {
        for (a, b) in [(1.0, 2.0), (-3.5, 0.25), (0.0, -7.0), (1e10, 12345.0), (-0.5, -0.5), (3.0, 3.0)] {
            assert_eq!(add(extended(a), extended(b)), extended(a + b), "{a} + {b}");
            assert_eq!(sub(extended(a), extended(b)), extended(a - b), "{a} - {b}");
            assert_eq!(mul(extended(a), extended(b)), extended(a * b), "{a} * {b}");
        }
    }

    #[test]
    fn more_than_a_double_is_kept() {
        // 2^63 + 1 needs 64 bits of significand.
        let large = extended(9_223_372_036_854_775_808.0);
        assert_eq!(add(large, extended(1.0)), large + 1);
        assert_eq!(sub(add(large, extended(1.0)), large), extended(1.0));
    }
}
