//! Histograms of times: buckets, sums and quantiles.

use crate::message::{Histogram, Stage, HISTOGRAM_BUCKETS};

impl Stage {
    /// All stages, in the order in which a message passes them.
    pub const ALL: [Stage; 6] = [
        Stage::Take,
        Stage::Queue,
        Stage::Wire,
        Stage::Land,
        Stage::Publish,
        Stage::Total,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Take => "take",
            Stage::Queue => "queue",
            Stage::Wire => "wire",
            Stage::Land => "land",
            Stage::Publish => "publish",
            Stage::Total => "total",
        }
    }
}

impl Histogram {
    /// The bucket of a time.
    pub fn bucket(ns: u64) -> usize {
        let us = ns.div_ceil(1000).max(1);
        let log = u64::BITS - (us - 1).leading_zeros();
        (log as usize).min(HISTOGRAM_BUCKETS - 1)
    }

    /// The upper bound of a bucket, in nanoseconds; `None` for the last bucket.
    pub fn bound_ns(bucket: usize) -> Option<u64> {
        (bucket + 1 < HISTOGRAM_BUCKETS).then(|| 1000 << bucket)
    }

    /// The number of times.
    pub fn count(&self) -> u64 {
        // Saturating, since the counts come from another process.
        let sum = |sum: u64, count: &u64| sum.saturating_add(*count);
        self.counts.iter().fold(0, sum)
    }

    /// The difference to an earlier state of the same histogram.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let mut since = *self;
        since.sum_ns = since.sum_ns.saturating_sub(before.sum_ns);
        for (count, before) in since.counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(before);
        }
        since
    }

    /// An estimate of the quantile `share` (0 to 1), assuming even spread inside a bucket. `None` if the histogram is
    /// empty; in the last bucket, its lower bound.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (count as f64 * share).clamp(0.0, count as f64);
        let mut below = 0.0;
        for (bucket, here) in self.counts.iter().enumerate() {
            let here = *here as f64;
            if here > 0.0 && below + here >= wanted {
                let least = match bucket {
                    0 => 0,
                    _ => 1000u64 << (bucket - 1),
                };
                let most = Histogram::bound_ns(bucket).unwrap_or(least);
                let part = ((wanted - below) / here).clamp(0.0, 1.0);
                return Some(least + ((most - least) as f64 * part) as u64);
            }
            below += here;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times: &[u64]) -> Histogram {
        let mut all = Histogram::default();
        for ns in times {
            all.counts[Histogram::bucket(*ns)] += 1;
            all.sum_ns += ns;
        }
        all
    }

    #[test]
    fn times_are_within_their_buckets() {
        for ns in [
            0,
            1,
            999,
            1000,
            1001,
            2000,
            2001,
            4_000_001,
            33_554_432_000,
            33_554_432_001,
            u64::MAX,
        ] {
            let bucket = Histogram::bucket(ns);
            let most = Histogram::bound_ns(bucket);
            assert!(most.is_none_or(|most| ns <= most), "{ns} {bucket}");
            if bucket > 0 {
                assert!(
                    ns > Histogram::bound_ns(bucket - 1).unwrap(),
                    "{ns} {bucket}"
                );
            }
        }
        assert_eq!(Histogram::bucket(u64::MAX), HISTOGRAM_BUCKETS - 1);
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_what_they_are_of() {
        assert_eq!(of(&[]).quantile_ns(0.5), None);
        let all = of(&[1500; 99]
            .iter()
            .copied()
            .chain([900_000])
            .collect::<Vec<_>>());
        let (p50, p99, most) = (
            all.quantile_ns(0.5),
            all.quantile_ns(0.99),
            all.quantile_ns(1.0),
        );
        assert!((1000..=2000).contains(&p50.unwrap()), "{p50:?}");
        assert!((1000..=2000).contains(&p99.unwrap()), "{p99:?}");
        assert_eq!(most, Some(1_024_000));
        assert_eq!(of(&[u64::MAX]).quantile_ns(0.5), Some(33_554_432_000));
        assert_eq!(all.since(&all).count(), 0);
    }

    #[test]
    fn what_a_peer_says_does_not_run_over() {
        let wild = Histogram {
            sum_ns: u64::MAX,
            counts: [u64::MAX; HISTOGRAM_BUCKETS],
        };
        assert_eq!(wild.count(), u64::MAX);
        assert!(wild.quantile_ns(0.99).is_some());
    }
}
