//! Messages that links hold, and their times on the way to each host.

use crate::counts::HostCounts;
use crate::traces::Trace;
use rgaps_client::{Domain, RecvError, Sample, Stage};
use rgaps_sync::monotonic_ns;
use rgaps_transport::{Description, Payload};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A message's metadata and times.
pub struct MessageInfo {
    pub publisher: u64,
    pub sequence: u64,
    pub meta: Description,
    pub published_ns: u64,
    pub taken_ns: u64,
    /// The host that it came from, if it was not published here.
    pub received_from: Option<String>,
}

/// A message that goes to other hosts, shared by the links that send it.
pub struct OutgoingMessage {
    pub info: MessageInfo,
    of: Bytes,
    bytes: usize,
    /// How many of its bytes are known to be readable, from the first on.
    ready: AtomicUsize,
    /// Whether [`trace_once`](Self::trace_once) was called.
    traced: AtomicBool,
}

enum Bytes {
    Sample(Sample),
    /// In GPU memory, where network cards read it; copied to the host if a part has to go over a lane without RDMA.
    OnGpu(Sample, OnceLock<Box<[u8]>>),
    /// From another host, perhaps still arriving.
    InTransit(Box<dyn Payload>),
}

impl OutgoingMessage {
    pub fn sample(sample: Sample, info: MessageInfo) -> Arc<OutgoingMessage> {
        let bytes = sample.len().max(1) as usize;
        let of = match sample.domain() {
            Domain::Host => Bytes::Sample(sample),
            Domain::Cuda(_) => Bytes::OnGpu(sample, OnceLock::new()),
        };
        OutgoingMessage::new(info, bytes, of)
    }

    pub fn in_transit(message: Box<dyn Payload>, info: MessageInfo) -> Arc<OutgoingMessage> {
        OutgoingMessage::new(info, message.bytes(), Bytes::InTransit(message))
    }

    fn new(info: MessageInfo, bytes: usize, of: Bytes) -> Arc<OutgoingMessage> {
        Arc::new(OutgoingMessage {
            info,
            of,
            bytes,
            ready: AtomicUsize::new(0),
            traced: AtomicBool::new(false),
        })
    }

    /// Returns true once: the caller then records in a trace that the links took the message.
    pub fn trace_once(&self) -> bool {
        !self.traced.swap(true, Ordering::Relaxed)
    }

    /// Finds out how many bytes are readable now, and records that. Fewer than all: a GPU still copies the message to the host.
    pub fn look(&self) -> Result<usize, RecvError> {
        let sample = match &self.of {
            Bytes::Sample(sample) | Bytes::OnGpu(sample, _) => sample,
            Bytes::InTransit(message) => return Ok(message.ready()),
        };
        let ready = match sample.ready_bytes()? {
            all if all == sample.len() => self.bytes,
            some => some as usize,
        };
        // Release: pairs with the Acquire in `ready`, so that a thread that reads this count finds the bytes.
        self.ready.fetch_max(ready, Ordering::Release);
        Ok(ready)
    }
}

impl Payload for OutgoingMessage {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn ready(&self) -> usize {
        match &self.of {
            Bytes::InTransit(message) => message.ready(),
            Bytes::Sample(_) | Bytes::OnGpu(..) => self.ready.load(Ordering::Acquire),
        }
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        let sample = match &self.of {
            Bytes::InTransit(message) => return message.slice(from, to),
            Bytes::OnGpu(sample, copy) => return &copy.get_or_init(|| fetch(sample))[from..to],
            Bytes::Sample(sample) => sample,
        };
        if sample.is_empty() {
            return &[0][from..to];
        }
        let bytes = sample.ready_slice();
        &bytes.expect("it was looked at when it was taken, and stays")[from..to]
    }

    fn direct(&self) -> Option<u64> {
        match &self.of {
            Bytes::OnGpu(sample, _) if !sample.is_empty() => Some(sample.address()),
            _ => None,
        }
    }
}

fn fetch(sample: &Sample) -> Box<[u8]> {
    // An empty message travels as one byte.
    let mut bytes = vec![0; sample.len().max(1) as usize].into_boxed_slice();
    if let Err(error) = sample.read(0, &mut bytes[..sample.len() as usize]) {
        // The message's work has ended, so it is the GPU's context that fails, and a process cannot get another. The next process of the
        // links resends messages that were not acknowledged.
        tracing::error!(%error, "a GPU's messages cannot be read any more; rgaps-links ends, and the daemon restarts it");
        std::process::exit(1);
    }
    bytes
}

/// A message on its way to one host. The link drops it when the host has acknowledged it, or when it was given up.
pub struct Carried {
    pub message: Arc<OutgoingMessage>,
    pub counts: Arc<HostCounts>,
    /// When a lane began to write the message, in nanoseconds of the monotonic clock; 0: none has yet.
    pub written_ns: AtomicU64,
    pub trace: Option<Trace>,
}

impl Carried {
    /// Records that a lane begins to write it. Two lanes that begin at the same time may both store, about the same time.
    fn begin(&self) {
        if self.written_ns.load(Ordering::Relaxed) == 0 {
            self.written_ns.store(monotonic_ns(), Ordering::Relaxed);
        }
    }
}

impl Payload for Carried {
    fn bytes(&self) -> usize {
        self.message.bytes()
    }

    fn ready(&self) -> usize {
        self.message.ready()
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        self.begin();
        self.message.slice(from, to)
    }

    fn direct(&self) -> Option<u64> {
        self.begin();
        self.message.direct()
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let written_ns = *self.written_ns.get_mut();
        if written_ns != 0 {
            let (counts, now_ns) = (&self.counts, monotonic_ns());
            let taken_ns = self.message.info.taken_ns;
            counts.times(Stage::Queue).span(taken_ns, written_ns);
            counts.times(Stage::Wire).span(written_ns, now_ns);
            if let (Some(traces), Some(trace)) = (&counts.traces, self.trace.take()) {
                traces.sent(&trace, taken_ns, written_ns, now_ns);
            }
        }
    }
}
