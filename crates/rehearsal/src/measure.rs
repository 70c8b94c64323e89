//! Sizes (`64kB`, `100MB`, `1GiB`) and durations (`200ms`, `3s`, `2m`) as a script writes them.

use std::time::Duration;

const SIZES: [(&str, u64); 9] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];

const DURATIONS: [(&str, u64); 3] = [("ms", 1), ("s", 1_000), ("m", 60_000)];

/// Parses a number of bytes.
pub(crate) fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let (_, factor) = SIZES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*factor)
}

/// Parses a duration. The unit is required, because a bare `5` is ambiguous.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let (_, factor) = DURATIONS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*factor).map(Duration::from_millis)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_accept_decimal_and_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("2kB", 2_000),
            ("2KB", 2_000),
            ("2KiB", 2_048),
            ("100MB", 100_000_000),
            ("1MiB", 1_048_576),
            ("1GB", 1_000_000_000),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "MB", "1mb", "-1", "1.5MB", "1 MB", "99999999999999GB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn duration_requires_a_unit() {
        assert_eq!(duration("200ms"), Some(Duration::from_millis(200)));
        assert_eq!(duration("3s"), Some(Duration::from_secs(3)));
        assert_eq!(duration("2m"), Some(Duration::from_mins(2)));
        for text in ["", "5", "s", "1h", "1.5s", "-1s", "18446744073709551615m"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
