//! Messages that links hold, and their times on the way to each host.

use crate::counts::HostCounts;
use crate::traces::Trace;
use rgaps_client::{Domain, RecvError, Sample, Stage};
use rgaps_sync::monotonic_ns;
use rgaps_transport::{Description, Payload};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What is known of a message beside its bytes.
pub struct MessageInfo {
    pub publisher: u64,
    pub sequence: u64,
    pub meta: Description,
    pub published_ns: u64,
    pub taken_ns: u64,
    /// The host that it came from, if it was not published here.
    pub received_from: Option<String>,
}

/// A message that goes to other hosts.
pub struct OutgoingMessage {
    pub info: MessageInfo,
    of: Bytes,
    bytes: usize,
    /// Bytes that were seen to be there.
    ready: AtomicUsize,
    /// A trace says that it was taken.
    traced: AtomicBool,
}

enum Bytes {
    Sample(Sample),
    /// On a GPU, where network cards read it; copied to the host if some of it has to go another way.
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

    /// Whether it is the first time that a trace is to say that it was taken.
    pub fn trace_once(&self) -> bool {
        !self.traced.swap(true, Ordering::Relaxed)
    }

    /// How many bytes are there now, of a message that a GPU still copies down.
    pub fn look(&self) -> Result<usize, RecvError> {
        let sample = match &self.of {
            Bytes::Sample(sample) | Bytes::OnGpu(sample, _) => sample,
            Bytes::InTransit(message) => return Ok(message.ready()),
        };
        let ready = match sample.ready_bytes()? {
            all if all == sample.len() => self.bytes,
            some => some as usize,
        };
        // Release: whoever reads so many bytes finds them, as we have.
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
    // An empty one counts as one byte.
    let mut bytes = vec![0; sample.len().max(1) as usize].into_boxed_slice();
    if let Err(error) = sample.read(0, &mut bytes[..sample.len() as usize]) {
        // Its work has ended, so the GPU's context fails, and a process gets no other one. The next links resend what was not acknowledged.
        tracing::error!(%error, "a GPU's messages cannot be read any more; rgaps-links ends, and the daemon restarts it");
        std::process::exit(1);
    }
    bytes
}

/// A message on its way to one host. It is dropped when that has it, or it was given up.
pub struct Carried {
    pub message: Arc<OutgoingMessage>,
    pub counts: Arc<HostCounts>,
    /// When its first byte was written; 0: it was not.
    pub written_ns: AtomicU64,
    pub trace: Option<Trace>,
}

impl Carried {
    /// A lane writes it. Two lanes that begin at the same time say the same.
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
