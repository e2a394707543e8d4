//! Times of a message on its way to one host.

use super::RetainedMessage;
use crate::counts::HostCounts;
use crate::traces::Trace;
use rgaps_client::Stage;
use rgaps_sync::monotonic_ns;
use rgaps_transport::Payload;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// A message on its way to one host. It is dropped when that has it, or it was given up.
pub struct Carried {
    held: Arc<RetainedMessage>,
    counts: Arc<HostCounts>,
    taken_ns: u64,
    /// When its first byte was written; 0: it was not.
    written_ns: AtomicU64,
    trace: Option<Trace>,
}

impl Carried {
    pub fn new(
        held: Arc<RetainedMessage>,
        counts: Arc<HostCounts>,
        taken_ns: u64,
        trace: Option<Trace>,
    ) -> Arc<Carried> {
        Arc::new(Carried {
            held,
            counts,
            taken_ns,
            written_ns: AtomicU64::new(0),
            trace,
        })
    }

    /// A lane writes it. Two lanes that begin at the same time say the same.
    fn begin(&self) {
        if self.written_ns.load(Relaxed) == 0 {
            self.written_ns.store(monotonic_ns(), Relaxed);
        }
    }
}

impl Payload for Carried {
    fn bytes(&self) -> usize {
        self.held.bytes()
    }

    fn ready(&self) -> usize {
        self.held.ready()
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        self.begin();
        self.held.slice(from, to)
    }

    fn direct(&self) -> Option<u64> {
        self.begin();
        self.held.direct()
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let written_ns = *self.written_ns.get_mut();
        if written_ns != 0 {
            let (counts, now_ns) = (&self.counts, monotonic_ns());
            counts.times(Stage::Queue).span(self.taken_ns, written_ns);
            counts.times(Stage::Wire).span(written_ns, now_ns);
            if let (Some(traces), Some(trace)) = (&counts.traces, self.trace.take()) {
                traces.sent(&trace, self.taken_ns, written_ns, now_ns);
            }
        }
    }
}
