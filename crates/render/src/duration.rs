//! Durations in text: the exact form of flags and settings, and the rounded form of reports.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses `500ms`, `90s`, `10m`, `1h` or `30d`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let Some((_, millis)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("expected a number with a unit, such as 500ms, 90s, 10m, 1h or 30d".to_owned());
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(*millis)) {
        None => Err(format!("`{number}{unit}` is out of range")),
        Some(0) => Err("the duration must be greater than zero".to_owned()),
        Some(millis) => Ok(Duration::from_millis(millis)),
    }
}

/// Formats a duration exactly, in the largest unit that divides it. [`parse`] reads it back.
pub fn format_exact(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let unit = UNITS.iter().find(|(_, unit)| millis % unit == 0);
    unit.map_or_else(|| format!("{millis}ms"), |(name, unit)| format!("{}{name}", millis / unit))
}

/// Formats a duration for a report, rounded down to two units: `1.2 s`, `3m 05s`.
pub fn format_millis(millis: u64) -> String {
    match millis {
        ..1000 => format!("{millis} ms"),
        1000..60_000 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        60_000..3_600_000 => format!("{}m {:02}s", millis / 60_000, millis / 1000 % 60),
        _ => format!("{}h {:02}m", millis / 3_600_000, millis / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_format_round_trips() {
        for (text, duration) in [
            ("500ms", Duration::from_millis(500)),
            ("90s", Duration::from_secs(90)),
            ("10m", Duration::from_mins(10)),
            ("1h", Duration::from_hours(1)),
            ("30d", Duration::from_hours(30 * 24)),
        ] {
            assert_eq!(parse(text), Ok(duration));
            assert_eq!(format_exact(duration), text);
        }
        assert_eq!(format_exact(Duration::from_mins(1)), "1m");
    }

    #[test]
    fn invalid_durations_are_rejected() {
        for text in
            ["", "10", "s", "-1s", "1.5h", "0s", "10 m", "99999999999999999999h", "18446744073709551615h"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn reported_duration_has_at_most_two_units() {
        for (millis, text) in [(7, "7 ms"), (1250, "1.2 s"), (61_000, "1m 01s"), (3_660_000, "1h 01m")] {
            assert_eq!(format_millis(millis), text);
        }
    }
}
