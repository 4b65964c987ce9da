//! Random numbers without state: each is a function of the seed, the rank and the number of the draw.
//!
//! Place in the data flow: [`crate::machine`] draws the jitter of messages and the noise of processors. A further rank
//! does not change the draws of the others.

/// The kinds of draws, each with a stream of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    /// Delays of messages, by sender.
    Jitter = 1,
    /// Places of interruptions, by rank.
    Noise,
    /// Times at which ranks enter.
    Skew,
    /// Contexts that a card does not find in its memory.
    Miss,
    /// Turns of ranks that share a processor: the next rank, and the duration.
    Turn,
}

/// A number below `bound`; 0 for a bound of 0.
pub(crate) const fn below(bound: u64, stream: Stream, seed: u64, rank: u32, number: u64) -> u64 {
    let drawn = mix(mix(seed ^ ((stream as u64) << 56) ^ rank as u64).wrapping_add(number));
    let scaled = (drawn as u128 * bound as u128) >> 64;
    #[allow(clippy::cast_possible_truncation)] // Below the bound.
    let scaled = scaled as u64;
    scaled
}

/// The mixing function of SplitMix64 (Steele, Lea and Flood, 2014).
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_fill_their_range() {
        let drawn: Vec<u64> = (0..1000).map(|n| below(10, Stream::Jitter, 1, 7, n)).collect();
        assert!((0..10).all(|value| (60..150).contains(&drawn.iter().filter(|&&d| d == value).count())));
        assert_eq!(below(0, Stream::Noise, 1, 0, 0), 0);
        assert_ne!(drawn, (0..1000).map(|n| below(10, Stream::Noise, 1, 7, n)).collect::<Vec<_>>());
    }
}
