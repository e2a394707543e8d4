//! `topic hz`, `topic bw` and `topic delay`: figures over a window of the last messages.

use super::message::{reader, Messages, Next};
use crate::args::{Common, Watch};
use crate::output::Output;
use crate::stop::Stop;
use crate::{session, units};
use rgaps::Sample;
use rgaps_sync::monotonic_ns;
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Instant;

/// What is measured.
#[derive(Clone, Copy)]
pub enum Rate {
    Hz,
    Bandwidth,
    Delay,
}

/// What is remembered of a message.
#[derive(Clone, Copy)]
struct Arrival {
    at_ns: u64,
    bytes: u64,
    delay_ns: u64,
}

#[derive(Default)]
struct Window {
    arrivals: VecDeque<Arrival>,
    messages: u64,
}

/// A report. Fields that are not asked for are left out; those that cannot be known yet are null.
#[derive(Serialize)]
struct Report<'a> {
    topic: &'a str,
    messages: u64,
    missed: u64,
    window: usize,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Figures {
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

pub fn watch(
    common: &Common,
    watch: &Watch,
    rate: Rate,
    output: &mut Output,
) -> anyhow::Result<()> {
    let stop = Stop::install()?;
    let node = session::join(common)?;
    let subscriber = reader(&node, &watch.topic, &watch.place)?.create()?;
    let mut messages = Messages::new(&subscriber, &stop, watch.timeout);
    let end = watch.duration.map(|duration| Instant::now() + duration);
    let mut window = Window::default();
    let mut report_at = Instant::now() + watch.every;
    let report = |window: &Window, output: &mut Output| {
        let report = Report {
            topic: subscriber.topic(),
            messages: window.messages,
            missed: subscriber.missed(),
            window: window.arrivals.len(),
            figures: window.figures(rate),
        };
        output.put(&report, |to| show(&report, to))
    };
    loop {
        let due = end.map_or(report_at, |end| end.min(report_at));
        match messages.next(Some(due))? {
            Next::Message(sample) => {
                window.add(&sample, watch.window as usize);
                if watch.count == Some(window.messages) {
                    return report(&window, output);
                }
            }
            Next::Stopped => return report(&window, output),
            Next::Due if end.is_some_and(|end| Instant::now() >= end) => {
                return report(&window, output);
            }
            Next::Due => {
                report(&window, output)?;
                report_at = Instant::now() + watch.every;
            }
        }
    }
}

impl Window {
    fn add(&mut self, sample: &Sample, most: usize) {
        let at_ns = monotonic_ns();
        if self.arrivals.len() == most {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back(Arrival {
            at_ns,
            bytes: sample.len(),
            delay_ns: at_ns.saturating_sub(sample.publish_ns()),
        });
        self.messages += 1;
    }

    /// From the first to the last arrival, in seconds; none before there are two.
    fn span_s(&self) -> Option<f64> {
        let (first, last) = (self.arrivals.front()?, self.arrivals.back()?);
        let span_ns = last.at_ns - first.at_ns;
        (span_ns > 0).then_some(span_ns as f64 / 1e9)
    }

    fn figures(&self, rate: Rate) -> Figures {
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
        // What came with the first arrival came before the span.
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
        let mut delays: Vec<u64> = self
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

fn show(report: &Report<'_>, to: &mut dyn Write) -> io::Result<()> {
    match &report.figures {
        _ if report.messages == 0 => write!(to, "no message yet")?,
        Figures::Hz {
            rate_hz: Some(hz),
            interval_min_ms,
            interval_max_ms,
            interval_stddev_ms,
            ..
        } => write!(
            to,
            "{hz:.3} Hz, interval {:.3} to {:.3} ms, standard deviation {:.3} ms",
            interval_min_ms.unwrap_or(0.0),
            interval_max_ms.unwrap_or(0.0),
            interval_stddev_ms.unwrap_or(0.0)
        )?,
        Figures::Bandwidth {
            bytes_per_s: Some(rate),
            bytes_min,
            bytes_mean,
            bytes_max,
        } => write!(
            to,
            "{}/s, messages of {} to {}, mean {}",
            units::bytes(*rate as u64),
            units::bytes(bytes_min.unwrap_or(0)),
            units::bytes(bytes_max.unwrap_or(0)),
            units::bytes(bytes_mean.unwrap_or(0.0) as u64)
        )?,
        Figures::Delay {
            min_us: Some(min),
            p50_us: Some(p50),
            p99_us: Some(p99),
            max_us: Some(max),
        } => {
            write!(
                to,
                "delay p50 {p50:.1}, p99 {p99:.1}, {min:.1} to {max:.1} us"
            )?;
        }
        _ => write!(to, "one message")?,
    }
    writeln!(
        to,
        "; {} messages, {} missed",
        report.messages, report.missed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(arrivals: &[(u64, u64, u64)]) -> Window {
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
