//! Drives fuzz targets: mutates inputs that a peer or a client may supply. No input may cause a panic, a hang, or an
//! access to memory that was not offered.
//!
//! Place in the data flow: the tests of the other crates call [`fuzz`] with a target, a function of bytes. Targets
//! therefore reach private items of their crates. `cargo test` runs each target for [`SECONDS`]; `make fuzz MINUTES=60`
//! runs it for longer.
//!
//! Stored inputs are in `corpus/<target>/`. They are run first, followed by mutations of them. A target returns an
//! *outcome*, a number of its choice. An input with a new outcome is kept in memory and, with `WEFT_FUZZ_STORE=1`, in
//! the corpus up to a limit. The search therefore gets deeper without compiler instrumentation, and `make fuzz` needs
//! no nightly compiler.
//!
//! [`rounds`] drives targets that depend on more than bytes, for instance on another thread. It stores nothing.
//!
//! A failing input is written to `corpus/<target>/failing-*` and is run first from then on. An input that kills the
//! process remains in `<temporary directory>/weft-fuzz-<target>-<process>`.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Default duration of a target, in processor time of its thread. The depth of the search should depend little on other
/// load of the machine.
pub const SECONDS: f64 = 1.5;
/// Longest input.
const MAX_BYTES: usize = 4096;
/// Most inputs stored for a target, since the number of its outcomes may be unlimited.
const MAX_STORED: usize = 256;
/// Most inputs kept in memory.
const MAX_POOL: usize = 20_000;
/// Longest processor time of one run.
const MAX_RUN: Duration = Duration::from_secs(5);
/// Longest duration of one run, on a loaded machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        // The remainder is smaller than a usize.
        #[allow(clippy::cast_possible_truncation)]
        let below = self.bits().checked_rem(n as u64).unwrap_or(0) as usize;
        below
    }
}

/// Reads an input as numbers; past its end it reads zeros.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes, or the remaining ones if there are fewer.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(n.min(self.0.len()));
        self.0 = later;
        now
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next eight bytes, as a little-endian number.
    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(8);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    /// Whether the whole input has been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Runs `target` on the stored inputs of `name`, on `seeds`, and on mutations of both until the time is over.
///
/// # Panics
/// If the target panics or takes too long. The message names the file that contains the input.
pub fn fuzz(name: &str, seeds: &[Vec<u8>], mut target: impl FnMut(&[u8]) -> u64) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let current = std::env::temp_dir().join(format!("weft-fuzz-{name}-{}", std::process::id()));
    let Ok(record) = File::create(&current) else { panic!("cannot write {}", current.display()) };
    let store = number("WEFT_FUZZ_STORE").is_some_and(|yes| yes > 0.0);
    let (seconds, seed) = (seconds(), seed());
    let mut random = Random(seed);
    let mut seen = HashSet::new();
    let mut pool = stored(&corpus);
    let mut room = if store { MAX_STORED.saturating_sub(pool.len()) } else { 0 };
    pool.extend_from_slice(seeds);
    pool.push(Vec::new());
    let known = pool.len();
    let mut run = |input: &[u8]| {
        // The input is written to disk first, in case it kills the process.
        let _ = record.set_len(input.len() as u64).and_then(|()| record.write_all_at(input, 0));
        let (start, start_processor) = (Instant::now(), processor_time());
        let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
        let path = corpus.join(format!("failing-{:016x}", hash(input)));
        let (took, waited) = (processor_time().saturating_sub(start_processor), start.elapsed());
        let late = took > MAX_RUN || waited > MAX_WAIT;
        if late || outcome.is_err() {
            let _ = fs::create_dir_all(&corpus).and_then(|()| fs::write(&path, input));
        }
        assert!(!late, "fuzz target {name} took {took:?} of {waited:?} for {}", path.display());
        outcome.unwrap_or_else(|cause| {
            eprintln!("fuzz target {name} failed for {}", path.display());
            resume_unwind(cause)
        })
    };
    for input in &pool {
        seen.insert(run(input));
    }
    let (end, mut runs) = (processor_time() + Duration::from_secs_f64(seconds), 0_u64);
    while processor_time() < end {
        let input = mutate(&pool, &mut random);
        runs += 1;
        if seen.insert(run(&input)) {
            if room > 0 {
                room -= 1;
                let _ = fs::create_dir_all(&corpus)
                    .and_then(|()| fs::write(corpus.join(format!("{:016x}", hash(&input))), &input));
            }
            if pool.len() < MAX_POOL {
                pool.push(input);
            }
        }
    }
    let _ = fs::remove_file(&current);
    eprintln!(
        "fuzz target {name}: {known} stored inputs, {runs} mutated ones in {seconds:.1} s (seed {seed}), {} outcomes",
        seen.len()
    );
}

/// Runs `round` repeatedly with random numbers, for the duration of a target.
pub fn rounds(name: &str, mut round: impl FnMut(&mut Random)) {
    let (seconds, seed) = (seconds(), seed());
    let (mut random, mut runs) = (Random(seed), 0_u64);
    let end = processor_time() + Duration::from_secs_f64(seconds);
    while processor_time() < end {
        round(&mut random);
        runs += 1;
    }
    eprintln!("fuzz target {name}: {runs} rounds in {seconds:.1} s (seed {seed})");
}

fn number(variable: &str) -> Option<f64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The duration of a target.
fn seconds() -> f64 {
    number("WEFT_FUZZ_MINUTES").map_or(SECONDS, |minutes| minutes * 60.0)
}

/// The seed of the random numbers.
fn seed() -> u64 {
    std::env::var("WEFT_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    // Both parts of the time are positive.
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// The stored inputs, in the order of their names.
fn stored(corpus: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(corpus).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

/// The FNV-1a hash, by which files are named.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Makes an input from one of the pool by some changes, which may include parts of others.
fn mutate(pool: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    // Half of the picks are among the latest inputs, which have been mutated least.
    let pick = |random: &mut Random| {
        let from = if random.below(2) == 0 { pool.len().saturating_sub(32) } else { 0 };
        &pool[from + random.below(pool.len() - from)]
    };
    let mut bytes = pick(random).clone();
    for _ in 0..=random.below(6) {
        change(&mut bytes, pick(random), random);
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

/// Makes one change.
fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const NUMBERS: [u64; 14] =
        [0, 1, 7, 8, 16, 63, 64, 255, 4096, 65_535, 65_536, 1 << 31, u32::MAX as u64, u64::MAX - 7];
    let at = random.below(bytes.len() + 1);
    let len = random.below(bytes.len() - at + 1).min(1 + random.below(64));
    match random.below(9) {
        0 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        1 => bytes[at..].iter_mut().take(1).for_each(|byte| *byte = random.bits().to_le_bytes()[0]),
        2 => drop(bytes.drain(at..at + len)),
        3 => {
            let copy = bytes[at..at + len].to_vec();
            bytes.splice(at..at, copy);
        }
        4 => {
            let from = random.below(other.len() + 1);
            let piece = &other[from..][..random.below(other.len() - from + 1).min(256)];
            bytes.splice(at..at + len, piece.iter().copied());
        }
        5 | 6 => {
            // A number of any width: near a special one, small, or random.
            let number = match random.below(3) {
                0 => NUMBERS[random.below(NUMBERS.len())].wrapping_add(random.below(3) as u64).wrapping_sub(1),
                1 => random.below(300) as u64,
                _ => random.bits(),
            };
            let width = 1 << random.below(4);
            for (to, from) in bytes[at..].iter_mut().zip(&number.to_le_bytes()[..width]) {
                *to = *from;
            }
        }
        7 => bytes.truncate(at),
        _ => {
            let more: Vec<u8> = (0..random.below(32)).map(|_| random.bits().to_le_bytes()[0]).collect();
            bytes.splice(at..at, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver finds the outcomes step by step, which blind mutation would not do in this time.
    #[test]
    fn new_outcomes_extend_the_corpus() {
        let mut deepest = 0;
        fuzz("self-test", &[b"w___".to_vec()], |input| {
            let depth = input.iter().zip(b"weft").take_while(|(a, b)| a == b).count();
            deepest = deepest.max(depth);
            depth as u64
        });
        assert_eq!(deepest, 4);
    }

    #[test]
    #[should_panic(expected = "found")]
    fn a_panic_fails_the_test_and_leaves_its_input() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/self-test-panic");
        let _ = fs::remove_dir_all(&corpus);
        let outcome = catch_unwind(|| {
            fuzz("self-test-panic", &[vec![1, 2, 3]], |input| {
                assert!(input.first() != Some(&1), "found");
                0
            });
        });
        assert_eq!(stored(&corpus), [vec![1, 2, 3]]);
        let _ = fs::remove_dir_all(&corpus);
        if let Err(cause) = outcome {
            resume_unwind(cause);
        }
    }

    #[test]
    fn readers_return_zeros_past_the_end() {
        let mut reader = Reader(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!((reader.byte(), reader.word(), reader.byte(), reader.word()), (1, 2, 9, 0));
        assert!(reader.is_empty());
    }
}
