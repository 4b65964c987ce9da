//! Timing: batches that are long compared with the clock's resolution, and their median.

use std::time::Duration;

use super::stats;

/// Fewest batches in one sample. A few interrupted batches do not affect the median.
const BATCHES: u32 = 16;

/// The duration of a batch, and the measured part of it.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    pub(crate) all: Duration,
    pub(crate) counts: Duration,
}

/// Measures the nanoseconds of one operation.
///
/// `batch` performs the given number of operations and returns their duration. The first batches determine a
/// sufficient number of operations; they are the warm-up and do not count. Then batches of this size fill `sample`,
/// at least [`BATCHES`] of them.
pub(crate) fn nanoseconds<E>(sample: Duration, mut batch: impl FnMut(u64) -> Result<Duration, E>) -> Result<f64, E> {
    nanoseconds_of_part(sample, |count| batch(count).map(|took| Took { all: took, counts: took }))
}

/// Measures as [`nanoseconds`] does, where only a part of each batch counts. The sample has the duration of whole
/// batches.
pub(crate) fn nanoseconds_of_part<E>(sample: Duration, batch: impl FnMut(u64) -> Result<Took, E>) -> Result<f64, E> {
    Ok(stats::median(&batches(sample, batch)?).unwrap_or_default())
}

/// The nanoseconds of one operation in each batch of a sample, see [`nanoseconds_of_part`].
pub(crate) fn batches<E>(sample: Duration, mut batch: impl FnMut(u64) -> Result<Took, E>) -> Result<Vec<f64>, E> {
    let enough = sample / BATCHES;
    let mut count = 1;
    loop {
        let took = batch(count)?.all;
        if took >= enough || count >= 1 << 40 {
            break;
        }
        // Grow a little beyond the goal, but at most eightfold: the first operations are slow and misleading.
        let goal = u128::from(count) * enough.as_nanos() * 11 / 10 / took.as_nanos().max(1);
        count = u64::try_from(goal).unwrap_or(u64::MAX).clamp(count + 1, count * 8);
    }
    let (mut total, mut each) = (Duration::ZERO, Vec::new());
    while total < sample || each.len() < BATCHES as usize {
        let took = batch(count)?;
        total += took.all;
        each.push(took.counts.as_secs_f64() * 1e9 / count as f64);
        // A single operation that lasts longer than the sample is not repeated for the full number of batches.
        if count == 1 && total >= sample * 2 {
            break;
        }
    }
    Ok(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruptions_do_not_affect_the_median() {
        let mut batches = 0_u64;
        let per_op = nanoseconds(Duration::from_millis(160), |count| {
            batches += 1;
            let pause = if batches.is_multiple_of(4) { 50_000_000 } else { 0 };
            Ok::<_, ()>(Duration::from_nanos(count * 250 + pause))
        });
        assert!((per_op.expect("no error") - 250.0).abs() < 1.0, "{per_op:?}");
    }

    #[test]
    fn a_slow_operation_is_repeated_a_bounded_number_of_times() {
        let mut runs = 0;
        let per_op = nanoseconds(Duration::from_millis(10), |count| {
            runs += count;
            Ok::<_, ()>(Duration::from_secs(1) * u32::try_from(count).expect("few"))
        });
        assert_eq!(per_op, Ok(1e9));
        assert!(runs < 4, "{runs}");
    }

    #[test]
    fn an_error_ends_the_measurement() {
        assert_eq!(nanoseconds(Duration::from_millis(10), |_| Err::<Duration, _>("broken")), Err("broken"));
    }
}
