//! Computes figures over a window of a topic's last messages.

use rgaps::Sample;
use rgaps_sync::monotonic_ns;
use serde::Serialize;
use std::collections::VecDeque;

/// Which figure to compute.
#[derive(Clone, Copy)]
pub enum Rate {
    Hz,
    Bandwidth,
    Delay,
}

/// A message in the window.
#[derive(Clone, Copy)]
pub struct Arrival {
    pub at_ns: u64,
    bytes: u64,
    delay_ns: i64,
}

/// The nanoseconds from publishing to `now_ns`. Negative if a clock was set back: messages of other hosts carry the time of a wall
/// clock.
pub fn delay_ns(sample: &Sample, now_ns: u64) -> i64 {
    now_ns.wrapping_sub(sample.publish_ns()) as i64
}

#[derive(Default)]
pub struct Window {
    pub arrivals: VecDeque<Arrival>,
    pub messages: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum Figures {
    Hz {
        rate_hz: Option<f64>,
        interval_min_ms: Option<f64>,
        interval_mean_ms: Option<f64>,
        interval_max_ms: Option<f64>,
        interval_stddev_ms: Option<f64>,
    },
    Bandwidth {
        bytes_per_s: Option<f64>,
        bytes_min: Option<u64>,
        bytes_mean: Option<f64>,
        bytes_max: Option<u64>,
    },
    Delay {
        min_us: Option<f64>,
        p50_us: Option<f64>,
        p99_us: Option<f64>,
        max_us: Option<f64>,
    },
}

impl Window {
    pub fn add(&mut self, sample: &Sample, most: usize) {
        let at_ns = monotonic_ns();
        if self.arrivals.len() == most {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(Arrival {
            at_ns,
            bytes: sample.len(),
            delay_ns: delay_ns(sample, at_ns),
        });
        self.messages += 1;
    }

    /// The seconds from the first to the last arrival. None: fewer than two arrivals, or all at the same time.
    fn span_s(&self) -> Option<f64> {
        let (first, last) = (self.arrivals.front()?, self.arrivals.back()?);
        let span_ns = last.at_ns - first.at_ns;
        (span_ns > 0).then_some(span_ns as f64 / 1e9)
    }

    pub fn figures(&self, rate: Rate) -> Figures {
        match rate {
            Rate::Hz => self.hz(),
            Rate::Bandwidth => self.bandwidth(),
            Rate::Delay => self.delay(),
        }
    }

    fn hz(&self) -> Figures {
        let pairs = self.arrivals.iter().zip(self.arrivals.iter().skip(1));
        let intervals: Vec<f64> = pairs
            .map(|(a, b)| (b.at_ns - a.at_ns) as f64 / 1e6)
            .collect();
        let mean = mean(&intervals);
        let variance = mean.map(|mean| {
            let squares = intervals.iter().map(|ms| (ms - mean).powi(2));
            squares.sum::<f64>() / intervals.len() as f64
        });
        Figures::Hz {
            rate_hz: self.span_s().map(|span| intervals.len() as f64 / span),
            interval_min_ms: intervals.iter().copied().reduce(f64::min),
            interval_mean_ms: mean,
            interval_max_ms: intervals.iter().copied().reduce(f64::max),
            interval_stddev_ms: variance.map(f64::sqrt),
        }
    }

    fn bandwidth(&self) -> Figures {
        let sizes = || self.arrivals.iter().map(|arrival| arrival.bytes);
        // The span begins with the first arrival, whose bytes came before it.
        let within: u64 = sizes().skip(1).sum();
        let all: Vec<f64> = sizes().map(|bytes| bytes as f64).collect();
        Figures::Bandwidth {
            bytes_per_s: self.span_s().map(|span| within as f64 / span),
            bytes_min: sizes().min(),
            bytes_mean: mean(&all),
            bytes_max: sizes().max(),
        }
    }

    fn delay(&self) -> Figures {
        let mut delays: Vec<i64> = self
            .arrivals
            .iter()
            .map(|arrival| arrival.delay_ns)
            .collect();
        delays.sort_unstable();
        let at = |share: f64| {
            let last = delays.len().checked_sub(1)?;
            Some(delays[(last as f64 * share).round() as usize] as f64 / 1e3)
        };
        Figures::Delay {
            min_us: at(0.0),
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: at(1.0),
        }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(arrivals: &[(u64, u64, i64)]) -> Window {
        let arrivals: VecDeque<_> = arrivals
            .iter()
            .map(|&(ms, bytes, delay_ns)| Arrival {
                at_ns: ms * 1_000_000,
                bytes,
                delay_ns,
            })
            .collect();
        Window {
            messages: arrivals.len() as u64,
            arrivals,
        }
    }

    #[test]
    fn figures_of_a_known_window() {
        let window = window(&[(1000, 10, 1000), (1100, 20, 3000), (1400, 30, 2000)]);
        let Figures::Hz {
            rate_hz,
            interval_min_ms,
            interval_max_ms,
            interval_stddev_ms,
            ..
        } = window.hz()
        else {
            panic!()
        };
        assert_eq!((rate_hz, interval_min_ms), (Some(5.0), Some(100.0)));
        assert_eq!(
            (interval_max_ms, interval_stddev_ms),
            (Some(300.0), Some(100.0))
        );
        let Figures::Bandwidth {
            bytes_per_s,
            bytes_mean,
            ..
        } = window.bandwidth()
        else {
            panic!()
        };
        assert_eq!((bytes_per_s, bytes_mean), (Some(125.0), Some(20.0)));
        let Figures::Delay { p50_us, max_us, .. } = window.delay() else {
            panic!()
        };
        assert_eq!((p50_us, max_us), (Some(2.0), Some(3.0)));
    }

    #[test]
    fn too_few_messages_have_no_rate() {
        for few in [window(&[]), window(&[(5, 7, 9)])] {
            assert!(matches!(few.hz(), Figures::Hz { rate_hz: None, .. }));
            assert!(matches!(
                few.bandwidth(),
                Figures::Bandwidth {
                    bytes_per_s: None,
                    ..
                }
            ));
        }
    }
}
