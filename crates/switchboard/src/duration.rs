//! Times as a person writes them: a number and a unit.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads `500ms`, `90s`, `10m`, `1h` or `30d`.
pub fn read(text: &str) -> Result<Duration, String> {
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

/// Writes it in the largest unit that leaves no rest.
pub fn show(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let whole = UNITS.iter().find(|(_, unit)| millis % unit == 0);
    whole.map_or_else(|| format!("{millis}ms"), |(name, unit)| format!("{}{name}", millis / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_their_units_and_written_back() {
        for (text, duration) in [
            ("500ms", Duration::from_millis(500)),
            ("90s", Duration::from_secs(90)),
            ("10m", Duration::from_mins(10)),
            ("1h", Duration::from_hours(1)),
            ("30d", Duration::from_hours(30 * 24)),
        ] {
            assert_eq!(read(text), Ok(duration));
            assert_eq!(show(duration), text);
        }
        assert_eq!(show(Duration::from_mins(1)), "1m");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in
            ["", "10", "s", "-1s", "1.5h", "0s", "10 m", "99999999999999999999h", "18446744073709551615h"]
        {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
