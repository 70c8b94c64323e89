//! The middle of a few samples, and how far they lie apart.

use std::fmt;

/// The median, minimum and maximum of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Half of the samples are not above it.
    pub median: f64,
    /// The least of them.
    pub least: f64,
    /// The greatest of them.
    pub most: f64,
}

impl Spread {
    /// None of no samples.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        let middle = samples.len() / 2;
        let (least, most) = (*samples.first()?, *samples.last()?);
        let median = if samples.len() % 2 == 1 {
            samples[middle]
        } else {
            f64::midpoint(samples[middle - 1], samples[middle])
        };
        Some(Self { median, least, most })
    }
}

/// `median (least–most)`, with as many decimals as the format asks for; of one sample just that.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = f.precision().unwrap_or(2);
        let Self { median, least, most } = self;
        write!(f, "{median:.decimals$}")?;
        if least < most { write!(f, " ({least:.decimals$}–{most:.decimals$})") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_count_is_the_mean_of_the_middle() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(format!("{spread:.1}"), "2.5 (1.0–4.0)");
    }

    #[test]
    fn median_ignores_one_slow_round() {
        let spread = Spread::of([1.0, 90.0, 1.2, 1.1, 1.3]).unwrap();
        assert_eq!(format!("{spread:.1}"), "1.2 (1.0–90.0)");
    }

    #[test]
    fn median_of_no_samples_is_none() {
        assert_eq!(Spread::of([]), None);
    }
}
