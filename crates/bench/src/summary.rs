//! Summaries of measured times: percentiles, medians, slopes.

use serde::Serialize;

/// A distribution of times between processes.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct Micros {
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub min_us: f64,
    pub max_us: f64,
}

impl Micros {
    /// Summarises times in nanoseconds. All values are 0 if there are none.
    pub fn of(mut ns: Vec<u64>) -> Micros {
        ns.sort_unstable();
        let us = |share| at(&ns, share) as f64 / 1e3;
        Micros {
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            min_us: us(0.0),
            max_us: us(1.0),
        }
    }

    /// The median and the 99th percentile alone.
    pub fn short(self) -> Short {
        Short {
            p50_us: self.p50_us,
            p99_us: self.p99_us,
        }
    }
}

/// A distribution in two numbers.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Short {
    pub p50_us: f64,
    pub p99_us: f64,
}

/// A distribution of the times of one operation, and the mean CPU time per operation.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Nanos {
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub cpu_ns: f64,
}

impl Nanos {
    /// Summarises times in nanoseconds, and the CPU time of `operations` other operations of the same kind.
    pub fn of(mut ns: Vec<u64>, cpu_ns: u64, operations: u64) -> Nanos {
        ns.sort_unstable();
        Nanos {
            p50_ns: at(&ns, 0.5),
            p99_ns: at(&ns, 0.99),
            max_ns: at(&ns, 1.0),
            cpu_ns: round(cpu_ns as f64 / operations.max(1) as f64, 1),
        }
    }
}

/// Returns the `share` quantile of sorted values, by nearest rank; 0 if there are none.
pub fn at(sorted: &[u64], share: f64) -> u64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0;
    };
    sorted[(last as f64 * share).round() as usize]
}

/// Returns the median, the upper one of two; 0 if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the slope of the least-squares line through the points; 0 with fewer than two different `x`.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    if spread > 0.0 {
        points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread
    } else {
        0.0
    }
}

/// Rounds to `digits` decimal places. Further digits of a measured time are noise.
pub fn round(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (value * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_distribution() {
        let us = Micros::of((0..=1000).rev().map(|n| n * 1000).collect());
        assert_eq!((us.min_us, us.p50_us, us.p99_us), (0.0, 500.0, 990.0));
        assert_eq!((us.p999_us, us.max_us), (999.0, 1000.0));
        assert_eq!(Micros::of(Vec::new()).max_us, 0.0);
        assert_eq!(Nanos::of(vec![3, 1, 2], 30, 4).cpu_ns, 7.5);
    }

    #[test]
    fn a_line_has_its_slope() {
        let line: Vec<_> = [1.0, 2.0, 8.0].map(|x| (x, 5.0 + 0.25 * x)).into();
        assert!((slope(&line) - 0.25).abs() < 1e-12);
        assert_eq!(slope(&[(1.0, 2.0)]), 0.0);
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
    }
}
