//! Reproducible random numbers: the same seed gives the same sequence.
//!
//! The generator is `SplitMix64`, which is good enough for simulations and not for cryptography.

/// A seeded generator.
#[derive(Debug, Clone)]
pub struct SeededRandom(u64);

impl SeededRandom {
    /// Creates a generator with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns an independent generator for another thread.
    pub fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns a number in [0, 1).
    pub fn fraction(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let part = (self.next() >> 11) as f64;
        part / 9_007_199_254_740_992.0
    }

    /// Returns an exponentially distributed waiting time with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.fraction()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_sequence_depends_on_the_seed() {
        let throws = |seed| {
            let mut random = SeededRandom::new(seed);
            [random.below(1000), random.below(1000), random.below(1000)]
        };
        assert_eq!(throws(7), throws(7));
        assert_ne!(throws(7), throws(8));
    }

    #[test]
    fn waiting_times_have_the_requested_mean() {
        let mut random = SeededRandom::new(1);
        let mean = (0..20_000).map(|_| random.exponential(3.0)).sum::<f64>() / 20_000.0;
        assert!((2.9..3.1).contains(&mean), "{mean}");
    }
}
