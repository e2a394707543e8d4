//! Numbers as people write and read them.

use std::time::Duration;

/// A time in seconds, with a fraction if need be.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = |_| format!("'{text}' is no time in seconds, such as 2 or 0.5");
    let seconds: f64 = text.parse().map_err(|_| wrong(()))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong(()))
}

/// A time in seconds, above 0.
pub fn period(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err(format!("'{text}' is no time above 0 seconds")),
        period => Ok(period),
    }
}

/// A number per second, above 0.
pub fn frequency(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(hz) if hz > 0.0 && hz.is_finite() => Ok(hz),
        _ => Err(format!("'{text}' is no number per second above 0")),
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
    fn sizes_and_spans_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        let times = [0.5, 80.0, 1500.0, 2e6].map(micros);
        assert_eq!(times, ["0.5us", "80us", "1.5ms", "2.0s"]);
        assert_eq!(span(59_999), "59 s");
        assert_eq!(span(11_520_000), "3 h 12 min");
    }
}
