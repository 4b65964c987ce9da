//! The variables of the environment that a job reads.
//!
//! Place in the data flow: `spawn`, `job`, `exit` and `wait` ask here. Names are those that clients and launchers of
//! the GASNet-EX API use.

use crate::error::Error;

/// The value of a variable; `None` if it is unset or empty.
#[must_use]
pub fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn wrong(name: &str, value: &str, expected: &'static str) -> Error {
    Error::Variable { name: name.to_owned(), value: value.to_owned(), expected }
}

/// A whole number.
///
/// # Errors
/// The value is not a number.
pub fn number(name: &str) -> Result<Option<u64>, Error> {
    text(name).map(|value| value.parse().map_err(|_| wrong(name, &value, "a whole number"))).transpose()
}

/// A yes or no, as y, yes, 1, true, on or their opposites.
///
/// # Errors
/// The value is neither.
pub fn yes(name: &str) -> Result<Option<bool>, Error> {
    let parse = |value: String| match value.to_ascii_lowercase().as_str() {
        "y" | "yes" | "1" | "true" | "on" => Ok(true),
        "n" | "no" | "0" | "false" | "off" => Ok(false),
        _ => Err(wrong(name, &value, "yes or no")),
    };
    text(name).map(parse).transpose()
}

/// A time in seconds, with a fraction.
///
/// # Errors
/// The value is not a positive number.
pub fn seconds(name: &str) -> Result<Option<f64>, Error> {
    let parse = |value: String| match value.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
        _ => Err(wrong(name, &value, "a positive number of seconds")),
    };
    text(name).map(parse).transpose()
}

/// The scope of a share of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// For each process (`/P`).
    Process,
    /// For all processes of a host together (`/H`).
    Host,
}

/// Parses a size such as `64M`, `0.85/H`, `25%` or `2 GB/P`, in bytes for one process. A number with a point and
/// without a unit, or a percentage, is a share of `memory`.
#[must_use]
pub fn size(value: &str, memory: u64, processes: u64) -> Option<u64> {
    let (amount, scope) = match value.trim().rsplit_once('/') {
        Some((amount, scope)) => match scope.trim() {
            "P" | "p" => (amount, Some(Scope::Process)),
            "H" | "h" => (amount, Some(Scope::Host)),
            _ => return None,
        },
        None => (value, None),
    };
    let amount = amount.trim();
    let digits = amount.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(amount.len());
    let (number, unit) = (amount[..digits].parse::<f64>().ok()?, amount[digits..].trim().to_ascii_uppercase());
    let is_share = unit.is_empty() && amount.contains('.');
    #[expect(clippy::cast_precision_loss, reason = "sizes need no more than 53 bits")]
    let factor = match unit.as_str() {
        "%" => memory as f64 / 100.0,
        "" if is_share => memory as f64,
        "" | "B" => 1.0,
        "K" | "KB" | "KIB" => 1024.0,
        "M" | "MB" | "MIB" => 1_048_576.0,
        "G" | "GB" | "GIB" => 1_073_741_824.0,
        "T" | "TB" | "TIB" => 1_099_511_627_776.0,
        _ => return None,
    };
    // A share is one of the host by default, an amount one of the process.
    let shared = is_share || unit == "%";
    let scope = scope.unwrap_or(if shared { Scope::Host } else { Scope::Process });
    #[expect(clippy::cast_precision_loss, reason = "sizes need no more than 53 bits")]
    let parts = if scope == Scope::Host { processes as f64 } else { 1.0 };
    let bytes = number * factor / parts;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
    (1.0..9e18).contains(&bytes).then_some(bytes as u64)
}

/// The largest segment of a process in bytes (`GASNET_MAX_SEGSIZE`), a multiple of the page size.
///
/// # Errors
/// The value is no size.
pub fn max_segment(processes: u64, most: u64) -> Result<u64, Error> {
    const NAME: &str = "GASNET_MAX_SEGSIZE";
    let value = text(NAME).unwrap_or_else(|| "0.85/H".to_owned());
    let bytes = size(&value, physical_memory(), processes)
        .ok_or_else(|| wrong(NAME, &value, "a size such as 256M, 4GB/P or 0.5/H"))?;
    let page = rustix::param::page_size() as u64;
    Ok((bytes.min(most) / page * page).max(page))
}

/// The memory of the host in bytes.
#[must_use]
pub fn physical_memory() -> u64 {
    rustix::system::sysinfo().totalram as u64 * u64::from(rustix::system::sysinfo().mem_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_understood() {
        let cases = [
            ("64M", Some(64 << 20)),
            ("1.5 KB", Some(1536)),
            ("0.5", Some(500)),
            ("0.5/P", Some(2000)),
            ("50%", Some(500)),
            ("4G/H", Some(1 << 30)),
            ("4G/P", Some(4 << 30)),
            ("4096", Some(4096)),
            ("much", None),
            ("4X", None),
            ("4/Q", None),
            ("0", None),
        ];
        for (value, bytes) in cases {
            assert_eq!(size(value, 4000, 4), bytes, "{value}");
        }
    }
}
