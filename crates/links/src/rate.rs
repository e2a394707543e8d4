//! How many bytes a second a topic may send: a token bucket.
//!
//! A message is sent when there is any credit, and may leave a debt, so that one larger than the bucket is sent, too. In
//! any span of time at most `rate * span + bucket + one message` are sent.

/// The bucket holds the credit of one second divided by this.
const BUCKET_PART: u64 = 20;
const NS: i128 = 1_000_000_000;

/// A token bucket. Callers pass the time in nanoseconds; one before the latest adds no credit.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    bytes_s: u64,
    /// In bytes times [`NS`]. Negative: a debt.
    credit: i128,
    at_ns: u64,
}

impl Rate {
    pub fn new(bytes_s: u64, now_ns: u64) -> Self {
        let mut rate = Self {
            bytes_s: bytes_s.max(1),
            credit: 0,
            at_ns: now_ns,
        };
        rate.credit = rate.bucket();
        rate
    }

    fn bucket(&self) -> i128 {
        i128::from((self.bytes_s / BUCKET_PART).max(1)) * NS
    }

    /// Adds the credit since the last call. Returns whether a message may be sent.
    pub fn is_open(&mut self, now_ns: u64) -> bool {
        let confirmed = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let more = i128::from(self.bytes_s) * i128::from(confirmed);
        self.credit = (self.credit + more).min(self.bucket());
        self.credit > 0
    }

    pub fn spend(&mut self, bytes: u64) {
        self.credit -= i128::from(bytes) * NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as much as the rate allows at each step. Returns the bytes.
    fn run(rate: &mut Rate, bytes: u64, step_ns: u64, steps: u64) -> u64 {
        let mut went = 0;
        for step in 0..steps {
            while rate.is_open(step * step_ns) {
                rate.spend(bytes);
                went += bytes;
            }
        }
        went
    }

    #[test]
    fn no_more_goes_than_the_rate_and_no_less_for_long() {
        for bytes_s in [1_000, 1_000_000, 10_000_000_000] {
            for bytes in [1 + bytes_s / 1000, bytes_s / 7, 3 * bytes_s] {
                let mut rate = Rate::new(bytes_s, 0);
                let went = run(&mut rate, bytes, 1_000_000, 20_000);
                let most = bytes_s * 20 + bytes_s / 20 + bytes;
                assert!(went <= most, "{bytes_s} {bytes}: {went}");
                assert!(went >= bytes_s * 19, "{bytes_s} {bytes}: {went}");
            }
        }
    }

    #[test]
    fn a_pause_saves_no_more_than_the_bucket() {
        let mut rate = Rate::new(1_000_000, 0);
        rate.spend(50_000);
        assert!(!rate.is_open(0));
        assert!(rate.is_open(3_600_000_000_000));
        let mut went = 0;
        while rate.is_open(3_600_000_000_000) {
            rate.spend(1000);
            went += 1000;
        }
        assert_eq!(went, 50_000);
        // An earlier time adds no credit.
        assert!(!rate.is_open(0));
    }
}
