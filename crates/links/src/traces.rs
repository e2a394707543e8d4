//! Traces of single messages between hosts, for an OpenTelemetry collector.
//!
//! Nothing of a trace travels with its message: both hosts derive its ID, those of its spans, and whether the
//! message is sampled, from the publisher's number and the sequence. The thread that ends a stage queues a span
//! and goes on. One thread sends the spans. If the queue is full, or the collector does not accept a span, the
//! span is dropped and counted.

#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "traces/without_otlp.rs"]
mod otlp;

use crate::lock;
use crate::wire::clip;
use anyhow::Context;
use otlp::Collector;
use rgaps_client::links::Traces;
use rgaps_client::{Stage, TraceFigures};
use rgaps_sync::{monotonic_ns, wall_offset_ns};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most spans that wait for the collector.
const QUEUE: usize = 4096;
/// Most spans that are sent together.
const BATCH: usize = 512;
/// How long a span waits for others to be sent with.
const GATHER: Duration = Duration::from_secs(1);
/// How long links that end wait for the last spans to be sent.
const END_LIMIT: Duration = Duration::from_secs(1);

/// A message that is sampled.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "otlp"), allow(dead_code))]
pub struct Trace {
    id: u128,
    topic: String,
    publisher: u64,
    sequence: u64,
    bytes: u64,
    /// The host that sent the message here, if this host forwards it. None: it was published here, or this is a final host.
    pub received_from: Option<String>,
}

/// A stage of a sampled message.
#[cfg_attr(not(feature = "otlp"), allow(dead_code))]
struct TraceSpan {
    trace: Trace,
    id: u64,
    parent: Option<u64>,
    stage: Stage,
    /// The other host of a stage between two hosts.
    peer: Option<String>,
    /// Times in nanoseconds of the monotonic clock.
    from_ns: u64,
    to_ns: u64,
}

enum SpanEvent {
    Ended(Box<TraceSpan>),
    /// Send the spans that are left, and then answer.
    Flush(SyncSender<()>),
}

#[derive(Debug, Default)]
struct Counts {
    spans: AtomicU64,
    dropped: AtomicU64,
    error: Mutex<String>,
}

#[derive(Debug)]
pub struct Tracer {
    host: String,
    url: String,
    /// A message is sampled if the upper 63 of the low 64 bits of its trace's ID are below this.
    below: u64,
    queue: SyncSender<SpanEvent>,
    counts: Arc<Counts>,
}

impl Tracer {
    /// Starts the configured tracer. None: no endpoint is configured. `host`: this host.
    pub fn start(traces: &Traces, realm: &str, host: &str) -> anyhow::Result<Option<Arc<Tracer>>> {
        let Some(url) = traces.url() else {
            return Ok(None);
        };
        let collector = Collector::new(&url, realm, host)?;
        let (queue, events) = sync_channel(QUEUE);
        let counts = Arc::<Counts>::default();
        let exporter = Exporter {
            collector,
            url: url.clone(),
            counts: counts.clone(),
        };
        std::thread::Builder::new()
            .name("rgaps-traces".to_owned())
            .spawn(move || exporter.run(&events))
            .context("creating a thread")?;
        tracing::info!(url, ratio = traces.ratio, "sending traces of messages");
        Ok(Some(Arc::new(Tracer {
            host: host.to_owned(),
            url,
            below: below(traces.ratio),
            queue,
            counts,
        })))
    }

    pub fn figures(&self) -> TraceFigures {
        TraceFigures {
            endpoint: self.url.clone(),
            spans: self.counts.spans.load(Relaxed),
            dropped: self.counts.dropped.load(Relaxed),
            error: lock(&self.counts.error).clone(),
        }
    }

    /// Sends the spans that are left. Waits for that no longer than [`END_LIMIT`], and sends none if the queue is full.
    pub fn end(&self) {
        let (done, is_done) = sync_channel(1);
        if self.queue.try_send(SpanEvent::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(END_LIMIT);
        }
    }
}

#[derive(Debug)]
pub struct LinkTraces {
    tracer: Arc<Tracer>,
    peer: String,
}

impl LinkTraces {
    pub fn new(tracer: &Arc<Tracer>, peer: &str) -> LinkTraces {
        LinkTraces {
            tracer: tracer.clone(),
            peer: peer.to_owned(),
        }
    }

    /// The trace of a message. None: it is not sampled.
    pub fn pick(&self, topic: &str, publisher: u64, sequence: u64, bytes: u64) -> Option<Trace> {
        let id = trace_id(publisher, sequence);
        // Decides as OpenTelemetry's ratio sampler does, so that other programs decide the same from the same ID.
        (((id as u64) >> 1) < self.tracer.below).then(|| Trace {
            id,
            topic: topic.to_owned(),
            publisher,
            sequence,
            bytes,
            received_from: None,
        })
    }

    /// Records that the links took a message that was published here. Times are of the monotonic clock.
    pub fn taken(&self, trace: &Trace, published_ns: u64, taken_ns: u64) {
        let here = &self.tracer.host;
        let times = [published_ns, taken_ns];
        self.queue(trace, (Stage::Take, here, here), None, times);
    }

    /// Records that a lane wrote the message from `written_ns` on, and that the other host acknowledged it now.
    pub fn sent(&self, trace: &Trace, taken_ns: u64, written_ns: u64, now_ns: u64) {
        let (here, there) = (&self.tracer.host, &self.peer);
        let before = Some(match &trace.received_from {
            None => span_id(trace.id, Stage::Take, here, here),
            Some(from) => span_id(trace.id, Stage::Publish, from, here),
        });
        let queued = [taken_ns, written_ns];
        self.queue(trace, (Stage::Queue, here, there), before, queued);
        let on_wire = [written_ns, now_ns];
        self.queue(trace, (Stage::Wire, here, there), before, on_wire);
    }

    /// Records when a message got its receive buffer, had its turn and was published here.
    pub fn landed(&self, trace: &Trace, [placed_ns, turn_ns, now_ns]: [u64; 3]) {
        let (there, here) = (&self.peer, &self.tracer.host);
        let wire = Some(span_id(trace.id, Stage::Wire, there, here));
        let (lands, published) = ([placed_ns, turn_ns], [turn_ns, now_ns]);
        self.queue(trace, (Stage::Land, there, here), wire, lands);
        self.queue(trace, (Stage::Publish, there, here), wire, published);
    }

    /// Queues the span of a stage between two hosts, or on this host, if `from` and `to` are the same.
    fn queue(
        &self,
        trace: &Trace,
        (stage, from, to): (Stage, &str, &str),
        parent: Option<u64>,
        [from_ns, to_ns]: [u64; 2],
    ) {
        let span = Box::new(TraceSpan {
            id: span_id(trace.id, stage, from, to),
            parent,
            stage,
            peer: (from != to).then(|| self.peer.clone()),
            from_ns,
            to_ns,
            trace: trace.clone(),
        });
        let queued = self.tracer.queue.try_send(SpanEvent::Ended(span));
        if queued.is_err() {
            self.tracer.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// The number below which this share of all 63-bit numbers lies.
fn below(ratio: f64) -> u64 {
    (ratio.clamp(0.0, 1.0) * (1u64 << 63) as f64) as u64
}

/// Mixes all bits (the finaliser of splitmix64).
fn mixed(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Derives a trace's ID, the same on each host. It is unique because the publisher's number is random.
fn trace_id(publisher: u64, sequence: u64) -> u128 {
    let high = mixed(publisher ^ mixed(sequence.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    let low = mixed(high ^ publisher.rotate_left(32));
    // 0 is no valid ID.
    (u128::from(high) << 64 | u128::from(low)).max(1)
}

fn span_id(trace: u128, stage: Stage, from: &str, to: &str) -> u64 {
    let mut id = mixed((trace >> 64) as u64 ^ trace as u64);
    for part in [stage.name(), from, to] {
        id = mixed(part.bytes().fold(id, |sum, byte| {
            mixed(sum.wrapping_mul(31) ^ u64::from(byte))
        }));
    }
    id.max(1)
}

struct Exporter {
    collector: Collector,
    url: String,
    counts: Arc<Counts>,
}

impl Exporter {
    fn run(mut self, events: &Receiver<SpanEvent>) {
        while let Ok(first) = events.recv() {
            let until = Instant::now() + GATHER;
            let (mut batch, mut flush) = (Vec::with_capacity(BATCH), None);
            let mut next = Some(first);
            while let Some(event) = next {
                match event {
                    SpanEvent::Ended(span) => batch.push(*span),
                    SpanEvent::Flush(done) => flush = Some(done),
                }
                let left = until.saturating_duration_since(Instant::now());
                let is_over = batch.len() >= BATCH || flush.is_some();
                next = (!is_over).then(|| events.recv_timeout(left).ok()).flatten();
            }
            if !batch.is_empty() {
                self.send(batch);
            }
            if let Some(done) = flush {
                let _ = done.send(());
            }
        }
    }

    fn send(&mut self, batch: Vec<TraceSpan>) {
        let spans = batch.len() as u64;
        let (rejected, why) = self.collector.send(batch, wall_offset_ns(monotonic_ns()));
        self.counts.spans.fetch_add(spans - rejected, Relaxed);
        self.counts.dropped.fetch_add(rejected, Relaxed);
        let why = match rejected {
            0 => String::new(),
            _ => clip(&why),
        };
        let mut known = lock(&self.counts.error);
        if *known != why && !why.is_empty() {
            tracing::warn!(
                url = self.url,
                "sending spans to the collector failed: {why}"
            );
        }
        *known = why;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn tracer(ratio: f64, queue: usize) -> (Arc<Tracer>, Receiver<SpanEvent>) {
        let (queue, reported) = sync_channel(queue);
        let tracer = Tracer {
            host: "here".to_owned(),
            url: String::new(),
            below: below(ratio),
            queue,
            counts: Arc::default(),
        };
        (Arc::new(tracer), reported)
    }

    #[test]
    fn hosts_with_the_same_ratio_tell_of_the_same_messages() {
        let picked = |ratio: f64| -> Vec<u64> {
            let (tracer, _told) = tracer(ratio, 1);
            let link = LinkTraces::new(&tracer, "there");
            let all = 0..10_000;
            all.filter(|sequence| link.pick("t", 7, *sequence, 1).is_some())
                .collect()
        };
        assert_eq!(picked(0.0).len(), 0);
        assert_eq!(picked(1.0).len(), 10_000);
        let tenth = picked(0.1);
        assert_eq!(picked(0.1), tenth);
        // 10000 draws of a tenth: 5 deviations are 150.
        assert!((850..1150).contains(&tenth.len()), "{}", tenth.len());
        // A host with a higher ratio samples these messages, too.
        let half: HashSet<u64> = picked(0.5).into_iter().collect();
        assert!(tenth.iter().all(|sequence| half.contains(sequence)));
    }

    #[test]
    fn messages_and_stages_have_numbers_of_their_own() {
        let mut traces = HashSet::new();
        for publisher in 0..100 {
            for sequence in 0..100 {
                assert!(traces.insert(trace_id(publisher, sequence)));
            }
        }
        let mut spans = HashSet::new();
        for stage in Stage::ALL {
            for (from, to) in [("a", "b"), ("b", "a"), ("a", "a"), ("ab", ""), ("", "ab")] {
                assert!(spans.insert(span_id(1, stage, from, to)));
                assert_eq!(span_id(1, stage, from, to), span_id(1, stage, from, to));
            }
        }
    }

    #[test]
    fn what_the_queue_has_no_room_for_is_dropped_and_counted() {
        let (tracer, reported) = tracer(1.0, 3);
        let link = LinkTraces::new(&tracer, "there");
        for sequence in 0..4 {
            let trace = link.pick("t", 1, sequence, 10).unwrap();
            link.sent(&trace, 1, 2, 3);
        }
        assert_eq!((tracer.figures().spans, tracer.figures().dropped), (0, 5));
        drop(reported);
        let trace = link.pick("t", 1, 9, 10).unwrap();
        link.taken(&trace, 0, 1);
        assert_eq!(tracer.figures().dropped, 6);
        // The receiver is gone, so this does not wait.
        tracer.end();
    }
}
