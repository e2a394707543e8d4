//! Receive buffers of messages, and publishing the messages in order.

use super::{Bound, LinkIngress, RemotePublisher};
use crate::egress::InTransit;
use crate::event::ConductorEvent;
use crate::issues::TopicIssues;
use crate::lock;
use crate::quotas::too_long;
use crate::wire::{from_wall, MessageDescription, MAX_LINK_MESSAGE_BYTES};
use rgaps_client::links::{LinksLoan, SetMetadata, StreamingCopy};
use rgaps_client::{Domain, Loan, LoanError, PublishError};
use rgaps_sync::monotonic_ns;
use rgaps_transport::machine::{BufferReply, CardBuffer, PrefixMemory, ReceiveBuffer};
use rgaps_transport::Payload;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Messages of at least this many bytes are copied to the GPUs that read them while they arrive.
const STREAMING_BYTES_MIN: u64 = 1 << 20;

/// Finds the receive buffer of a message. `Full`: there is none now. `Refused`: this host does not want the message.
pub(super) fn receive_buffer(
    bound: Bound,
    sequence: u64,
    description: &[u8],
    bytes: u64,
    owner: &Arc<LinkIngress>,
) -> BufferReply {
    let landing = bound.landing;
    let landing = landing.filter(|landing| sequence >= landing.position());
    if landing.is_none() && bound.transit.is_none() {
        return BufferReply::Refused;
    }
    if let Some(landing) = &landing {
        let arriving = landing.landing_bytes.load(Ordering::Relaxed);
        // A single message may be larger than the limit.
        if arriving > 0 && arriving + bytes > landing.limits.bytes_max {
            return BufferReply::Full;
        }
    }
    let mut message = ArrivingMessage {
        loan: None,
        transit: None,
        copies: None,
        bytes,
        landing: None,
        publisher: 0,
        position: bound.position,
        owner: owner.clone(),
        placed_ns: monotonic_ns(),
        turn_ns: None,
    };
    // A message that is too long to land here may still be forwarded.
    let landing = landing.filter(|landing| !is_too_long(landing, bytes, &owner.counts.issues));
    if let Some(transit) = bound.transit {
        // The message arrives in the transit's memory. If it also lands here, it is copied into a loan in its turn.
        message.transit = transit.receive(sequence, description, bytes);
        if message.transit.is_none() {
            return BufferReply::Full;
        }
        message.publisher = transit.publisher;
    } else if let Some(landing) = &landing {
        let loan = match usable(landing, sequence, landing.loan(bytes, owner)) {
            Ok(Some(loan)) => loan,
            Ok(None) => return BufferReply::Refused,
            Err(NoLoan) => return BufferReply::Full,
        };
        message.copies = streaming_copy(message.loan.insert(loan), bytes);
        message.publisher = landing.origin;
    } else {
        return BufferReply::Refused;
    }
    if let Some(landing) = &landing {
        landing.landing_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
    message.landing = landing;
    BufferReply::Buffer(Box::new(message))
}

fn is_too_long(landing: &RemotePublisher, bytes: u64, issues: &TopicIssues) -> bool {
    let quota = landing.limits.quota.as_ref();
    let Some(why) = quota.and_then(|quota| too_long(quota, bytes)) else {
        return false;
    };
    let what = "messages of another host cannot be published here";
    issues.warn_refused(landing.publisher.topic(), 1, what, &why);
    true
}

/// Begins the streaming copy of a message to GPUs, if GPUs read the topic and the message is large or lands on a GPU.
fn streaming_copy(loan: &mut Loan, bytes: u64) -> Option<Arc<StreamingBuffer>> {
    let lands_on_gpu = loan.domain() != Domain::Host;
    if !lands_on_gpu && bytes < STREAMING_BYTES_MIN {
        return None;
    }
    let copies = loan.begin_streaming_copy()?;
    let address = lands_on_gpu.then(|| loan.address());
    Some(Arc::new(StreamingBuffer { address, copies }))
}

/// A message that lands, or is forwarded, or both.
pub(super) struct ArrivingMessage {
    /// The memory in which the message lands. None: it arrives in the memory of `transit`.
    loan: Option<Loan>,
    /// The memory in which the message arrives if it is forwarded.
    transit: Option<InTransit>,
    /// The streaming copy to GPUs, until the link takes it.
    copies: Option<Arc<StreamingBuffer>>,
    bytes: u64,
    landing: Option<Arc<RemotePublisher>>,
    /// The publisher's number on its own host.
    publisher: u64,
    /// The delivered position of the message's flow. None: its origin needs no confirmation.
    position: Option<Arc<AtomicU64>>,
    owner: Arc<LinkIngress>,
    /// When the message got its receive buffer, in nanoseconds of the monotonic clock.
    placed_ns: u64,
    /// When it first had its turn to be published. None: not yet.
    turn_ns: Option<u64>,
}

/// The streaming copy of a message to GPUs, while it arrives.
pub(super) struct StreamingBuffer {
    /// Address of the receive buffer in GPU memory. None: the message arrives in host memory.
    pub(super) address: Option<u64>,
    pub(super) copies: StreamingCopy,
}

impl CardBuffer for StreamingBuffer {
    fn address(&self) -> Option<u64> {
        self.address
    }

    fn landed(&self, from: u64, bytes: u64, directly: bool) {
        match directly {
            true => self.copies.written(from, bytes),
            false => self.copies.arrived(from, bytes),
        }
    }
}

impl ReceiveBuffer for ArrivingMessage {
    fn on_card(&mut self) -> Option<Arc<dyn CardBuffer>> {
        Some(self.copies.take()?)
    }

    fn prefix_memory(&mut self) -> Option<Arc<PrefixMemory>> {
        let in_transit = self.transit.as_ref();
        in_transit.map(|in_transit| in_transit.memory.clone())
    }

    fn memory(&mut self) -> &mut [u8] {
        let loan = self.loan.as_mut().map(Loan::filled);
        // An empty slice has another length than the message, so the link drops the message.
        loan.and_then(Result::ok).unwrap_or_default()
    }

    fn deliver(
        mut self: Box<Self>,
        sequence: u64,
        description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>> {
        if let Some(in_transit) = &mut self.transit {
            in_transit.deliver();
        }
        match self.publish_in_turn(sequence, description) {
            true => {
                let position = self.position.as_ref();
                position.inspect(|position| self.owner.pass(position, sequence + 1));
                Ok(())
            }
            false => Err(self),
        }
    }
}

struct NoLoan;

impl ArrivingMessage {
    /// Publishes the message, if it lands here and was not published yet. Returns false if it has to wait.
    fn publish_in_turn(&mut self, sequence: u64, description: &[u8]) -> bool {
        let turn_ns = *self.turn_ns.get_or_insert_with(monotonic_ns);
        let described =
            MessageDescription::decode(description).filter(|meta| meta.bytes.max(1) == self.bytes);
        let Some(landing) = self.landing.clone() else {
            if let Some(meta) = described {
                self.note_delivered("", sequence, &meta, turn_ns);
            }
            return true;
        };
        let _turn = lock(&landing.turn);
        if sequence < landing.position() {
            // The message came by another route meanwhile.
            return true;
        }
        let Some(meta) = described else {
            tracing::warn!(
                topic = landing.publisher.topic(),
                sequence,
                "a message's description does not decode; dropped"
            );
            landing.follow_history(sequence + 1);
            return true;
        };
        match self.loan_to_publish(&landing, sequence) {
            Ok(Some(loan)) => {
                // A loan that comes back waits for a slow reliable subscriber here; the link tries again in a moment.
                self.loan = self.publish(&landing, loan, sequence, &meta);
                if self.loan.is_some() {
                    return false;
                }
            }
            Ok(None) => {}
            Err(NoLoan) => return false,
        }
        landing.follow_history(sequence + 1);
        true
    }
}

/// Sorts out an attempt to get a loan. None: there will never be one, and the message is lost. [`NoLoan`]: there is none now.
fn usable(
    landing: &RemotePublisher,
    sequence: u64,
    loan: Result<Option<Loan>, LoanError>,
) -> Result<Option<Loan>, NoLoan> {
    match loan {
        Ok(Some(loan)) => Ok(Some(loan)),
        Ok(None) | Err(LoanError::TooManyLoans { .. } | LoanError::Client(_)) => Err(NoLoan),
        Err(error) => {
            tracing::warn!(%error, topic = landing.publisher.topic(), sequence, "a message of another host cannot be published here");
            Ok(None)
        }
    }
}

/// Sets a message's size, tag, times, shape and metadata.
fn describe(
    loan: &mut Loan,
    meta: &MessageDescription,
    now_ns: u64,
    (topic, sequence): (&str, u64),
) {
    loan.truncate(meta.bytes);
    loan.set_tag(meta.tag);
    loan.set_publish_ns(from_wall(meta.published_ns, now_ns));
    if let Some(tensor) = meta.tensor {
        if let Err(error) = loan.set_tensor(tensor) {
            tracing::warn!(%error, topic, sequence, "a message has an invalid shape; dropped");
        }
    }
    if !meta.metadata.is_empty() {
        let fits = loan.set_metadata(meta.metadata.lengths(), meta.metadata.as_bytes());
        debug_assert!(fits, "the decoder checked it");
    }
}

impl ArrivingMessage {
    /// The loan in which the message landed, or one into which it is copied. None: the message is lost.
    fn loan_to_publish(
        &mut self,
        landing: &Arc<RemotePublisher>,
        sequence: u64,
    ) -> Result<Option<Loan>, NoLoan> {
        let Some(in_transit) = self.transit.as_ref().filter(|_| self.loan.is_none()) else {
            return Ok(self.loan.take());
        };
        let copied = landing.loan(self.bytes, &self.owner).and_then(|loan| {
            let Some(mut loan) = loan else {
                return Ok(None);
            };
            let bytes = in_transit.memory.slice(0, self.bytes as usize);
            loan.filled()?.copy_from_slice(bytes);
            Ok(Some(loan))
        });
        usable(landing, sequence, copied)
    }

    /// Publishes the message in its turn. Returns the loan if it has to wait for a subscriber.
    fn publish(
        &self,
        landing: &Arc<RemotePublisher>,
        mut loan: Loan,
        sequence: u64,
        meta: &MessageDescription,
    ) -> Option<Loan> {
        let topic = landing.publisher.topic();
        let turn_ns = self.turn_ns.unwrap_or(self.placed_ns);
        describe(&mut loan, meta, turn_ns, (topic, sequence));
        landing.follow_history(sequence);
        let missed = landing.missed_before(sequence);
        // The message carries a sum, and not only this gap: subscribers here may skip the message after a gap.
        let missed_so_far = landing.missed.load(Ordering::Relaxed) + missed;
        loan.set_missed_so_far(missed_so_far);
        let published = landing.published.load(Ordering::Relaxed);
        landing
            .mark
            .begin(sequence, landing.publisher.id(), published);
        let is_quiet = landing.is_in_batch.load(Ordering::Acquire);
        landing.set_quiet(is_quiet);
        match loan.try_publish() {
            Ok(number) => {
                self.owner.batch.published(landing, is_quiet);
                landing.published.store(number + 1, Ordering::Relaxed);
                landing.missed.store(missed_so_far, Ordering::Relaxed);
                landing.pass(sequence + 1);
                if missed > 0 {
                    self.owner
                        .counts
                        .missed
                        .fetch_add(missed, Ordering::Relaxed);
                    self.owner.counts.issues.missed(topic, missed);
                }
                self.note_delivered(topic, sequence, meta, turn_ns);
                None
            }
            Err(unpublished) => match (unpublished.error, unpublished.loan) {
                (PublishError::BackPressured { .. } | PublishError::Replica(_), Some(loan)) => {
                    landing.ring();
                    Some(*loan)
                }
                (error, _) => {
                    tracing::warn!(%error, topic, sequence, "publishing a message of another host failed; the message is lost");
                    None
                }
            },
        }
    }

    /// Records times and a trace of a message that was published here or sent on.
    fn note_delivered(&self, topic: &str, sequence: u64, meta: &MessageDescription, turn_ns: u64) {
        let times = [self.placed_ns, turn_ns, monotonic_ns()];
        self.owner.counts.published(times, meta.published_ns);
        if let Some(traces) = &self.owner.counts.traces {
            let trace = traces.pick(topic, self.publisher, sequence, meta.bytes.max(1));
            trace.inspect(|trace| traces.landed(trace, times));
        }
    }
}

impl Drop for ArrivingMessage {
    fn drop(&mut self) {
        if let Some(landing) = &self.landing {
            landing
                .landing_bytes
                .fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

struct ControlBuffer {
    bytes: Vec<u8>,
    owner: Arc<LinkIngress>,
}

pub(super) fn control_buffer(bytes: u64, owner: &Arc<LinkIngress>) -> BufferReply {
    if bytes > MAX_LINK_MESSAGE_BYTES as u64 {
        return BufferReply::Refused;
    }
    BufferReply::Buffer(Box::new(ControlBuffer {
        bytes: vec![0; bytes as usize],
        owner: owner.clone(),
    }))
}

impl ReceiveBuffer for ControlBuffer {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn deliver(mut self: Box<Self>, _: u64, _: &[u8]) -> Result<(), Box<dyn ReceiveBuffer>> {
        let event = ConductorEvent::LinkMessage(std::mem::take(&mut self.bytes));
        self.owner.reporter.report(event);
        Ok(())
    }
}
