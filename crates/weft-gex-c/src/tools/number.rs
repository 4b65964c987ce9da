//! Numbers as text: `1536`, `0x600`, `1.5KB`, `2 GB`.
//!
//! Numbers of memory always carry a unit when they are written, so that a reader whose default unit differs reads the
//! same number.

use std::ffi::{c_char, c_int};

use super::{fatal, text};

const UNITS: [(&str, u64); 4] = [("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)];

/// The number in `text`. `memory_unit` is 0 for numbers without units, else the unit of a number that names none.
pub(super) fn parse(text: &str, memory_unit: u64) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) => i128::from(u64::from_str_radix(hexadecimal, 16).ok()?),
        None => decimal(digits, memory_unit)?,
    };
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

fn decimal(text: &str, memory_unit: u64) -> Option<i128> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit = match suffix.trim().to_ascii_uppercase().as_str() {
        "" => memory_unit.max(1),
        _ if memory_unit == 0 => return None,
        "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1 << 40,
        _ => return None,
    };
    if number.contains('.') {
        let value: f64 = number.parse().ok()?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "fractions are approximate")]
        return Some((value * unit as f64) as i128);
    }
    let value: u64 = number.parse().ok()?;
    Some(i128::from(value) * i128::from(unit))
}

/// `value` as text. A number of memory is written in the largest unit that divides it.
pub(super) fn format(value: i64, memory: bool) -> String {
    if !memory {
        return value.to_string();
    }
    let magnitude = value.unsigned_abs();
    let sign = if value < 0 { "-" } else { "" };
    match UNITS.iter().find(|(_, unit)| magnitude != 0 && magnitude.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{sign}{} {name}", magnitude / unit),
        None => format!("{sign}{magnitude} B"),
    }
}

/// # Safety
/// `buffer` has room for `bytes`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_format_number(
    value: i64,
    buffer: *mut c_char,
    bytes: usize,
    is_memory: c_int,
) -> *mut c_char {
    // SAFETY: the caller has the room.
    unsafe { text::put(&format(value, is_memory != 0), buffer, bytes) };
    buffer
}

/// # Safety
/// `number` is a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_parse_int(number: *const c_char, memory_unit: u64) -> i64 {
    // SAFETY: the caller passes a C string.
    let text = unsafe { text::of(number) }.unwrap_or("");
    parse(text, memory_unit).unwrap_or_else(|| {
        fatal::fatal(&format!("\"{text}\" is no number: write digits, and KB, MB, GB or TB for memory"))
    })
}

/// # Safety
/// `number` is a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_parse_dbl(number: *const c_char) -> f64 {
    // SAFETY: the caller passes a C string.
    let text = unsafe { text::of(number) }.unwrap_or("");
    parse_real(text).unwrap_or_else(|| fatal::fatal(&format!("\"{text}\" is no number: write 0.5 or 1/2")))
}

/// A real number, also as a fraction: `0.5`, `1/2`.
pub(super) fn parse_real(text: &str) -> Option<f64> {
    match text.split_once('/') {
        Some((over, under)) => Some(over.trim().parse::<f64>().ok()? / under.trim().parse::<f64>().ok()?),
        None => text.trim().parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_text() {
        for bit in 0..62 {
            let value = 1i64 << bit;
            assert_eq!(parse(&format(value, true), 1), Some(value));
            assert_eq!(parse(&format(value, true), 1 << 20), Some(value));
            assert_eq!(parse(&format(value, false), 0), Some(value));
            assert_eq!(parse(&format(-value, true), 1), Some(-value));
        }
        assert_eq!(format(0, true), "0 B");
    }

    #[test]
    fn units_apply_to_numbers_without_one() {
        assert_eq!(parse("128", 1 << 20), Some(128 << 20));
        assert_eq!(parse("1.5KB", 1), Some(1536));
        assert_eq!(parse("2 gb", 1), Some(2 << 30));
        assert_eq!(parse("0x10", 0), Some(16));
    }

    #[test]
    fn other_text_is_no_number() {
        for text in ["", "x", "1 XB", "1K2", "9999999999999999999", "--1"] {
            assert_eq!(parse(text, 1), None, "{text}");
        }
        assert_eq!(parse("1K", 0), None);
        assert_eq!(parse_real("1/4"), Some(0.25));
    }
}
