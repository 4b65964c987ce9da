//! How a number comes about: batches that are long against the clock, and the median of enough of them.

use std::time::Duration;

use super::stats;

/// Batches in one sample, at least. The median of so many does not see a few that were interrupted.
const BATCHES: u32 = 16;

/// How long a batch took, and how much of that counts.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    pub(crate) all: Duration,
    pub(crate) counts: Duration,
}

/// Nanoseconds of one operation.
///
/// `batch` makes that many operations and tells how long they took. The batches that find out how many
/// operations last long enough are the warm-up and do not count; then `sample` is filled with batches of one
/// size, at least [`BATCHES`].
pub(crate) fn nanoseconds<E>(sample: Duration, mut batch: impl FnMut(u64) -> Result<Duration, E>) -> Result<f64, E> {
    nanoseconds_of_part(sample, |count| batch(count).map(|took| Took { all: took, counts: took }))
}

/// The same for batches of which only a part counts. The sample is as long as all of it.
pub(crate) fn nanoseconds_of_part<E>(
    sample: Duration,
    mut batch: impl FnMut(u64) -> Result<Took, E>,
) -> Result<f64, E> {
    let enough = sample / BATCHES;
    let mut count = 1;
    loop {
        let took = batch(count)?.all;
        if took >= enough || count >= 1 << 40 {
            break;
        }
        // A little beyond the goal, but never more than eightfold: the first operations are slow and mislead.
        let goal = u128::from(count) * enough.as_nanos() * 11 / 10 / took.as_nanos().max(1);
        count = u64::try_from(goal).unwrap_or(u64::MAX).clamp(count + 1, count * 8);
    }
    let (mut total, mut each) = (Duration::ZERO, Vec::new());
    while total < sample || each.len() < BATCHES as usize {
        let took = batch(count)?;
        total += took.all;
        each.push(took.counts.as_secs_f64() * 1e9 / count as f64);
        // One operation that alone lasts longer than the sample need not be repeated sixteen times.
        if count == 1 && total >= sample * 2 {
            break;
        }
    }
    Ok(stats::median(&each).unwrap_or_default())
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
