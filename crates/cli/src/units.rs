//! Parses and formats numbers with units for people.

use rgaps_view::overview::Times;
use std::time::Duration;

/// Parses a time in seconds, such as `2` or `0.5`.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = |_| format!("'{text}' is not a time in seconds, such as 2 or 0.5");
    let seconds: f64 = text.parse().map_err(|_| wrong(()))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong(()))
}

/// Parses a time in seconds, above 0.
pub fn period(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err(format!("'{text}' is not a time above 0 seconds")),
        period => Ok(period),
    }
}

/// Parses a rate per second, above 0.
pub fn frequency(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(hz) if hz > 0.0 && hz.is_finite() => Ok(hz),
        _ => Err(format!("'{text}' is not a rate above 0 per second")),
    }
}

/// Bytes with a unit: `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// A short time with its unit: `80us`, `1.5ms`, `2.0s`.
pub fn micros(us: f64) -> String {
    match us {
        ..10.0 => format!("{us:.1}us"),
        ..1e3 => format!("{us:.0}us"),
        ..1e6 => format!("{:.1}ms", us / 1e3),
        _ => format!("{:.1}s", us / 1e6),
    }
}

/// Median and 99th percentile: `80us/1.5ms`.
pub fn times(times: Option<Times>) -> String {
    let written = |times: Times| format!("{}/{}", micros(times.p50_us), micros(times.p99_us));
    times.map_or_else(|| "-".to_owned(), written)
}

/// A time between two events, in running text: `80.0 us`, `1.5 ms`, `-2.0 s`.
pub fn spaced_micros(us: f64) -> String {
    match us.abs() {
        ..1e3 => format!("{us:.1} us"),
        ..1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

/// A length of time: `3 h 12 min`, `48 s`.
pub fn span(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

/// A number of things: `1 message`, `3 messages`.
pub fn counted(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        _ => format!("{count} {thing}s"),
    }
}

/// Nanoseconds since 1970 as a time in UTC: `2026-11-23T13:00:00.123456Z`.
pub fn utc(ns: u64) -> String {
    let (s, us) = (ns / 1_000_000_000, ns / 1000 % 1_000_000);
    // Days to a date, by eras of 400 years that begin in March (Howard Hinnant, "chrono-Compatible Low-Level
    // Date Algorithms").
    let days = s / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (s / 3600 % 24, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_checked() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["", "-1", "1s", "nan", "1e300"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(frequency("2.5"), Ok(2.5));
        for wrong in ["0", "-3", "inf", "x"] {
            assert!(frequency(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_dates() {
        for (s, date) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(utc(s * 1_000_000_000), date);
        }
        assert_eq!(utc(1_234_567), "1970-01-01T00:00:00.001234Z");
    }

    #[test]
    fn sizes_and_spans_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        let times = [0.5, 80.0, 1500.0, 2e6].map(micros);
        assert_eq!(times, ["0.5us", "80us", "1.5ms", "2.0s"]);
        let times = [80.0, 136_879.4, -2e6].map(spaced_micros);
        assert_eq!(times, ["80.0 us", "136.9 ms", "-2.0 s"]);
        assert_eq!(span(59_999), "59 s");
        assert_eq!(span(11_520_000), "3 h 12 min");
    }
}
