//! Memory that messages land in, and what is done with them in their turn.

use super::{Bound, LinkIngress, RemotePublisher};
use crate::counts::IngressCounts;
use crate::event::{ConductorEvent, LinkReporter};
use crate::issues::TopicIssues;
use crate::relay::Destinations;
use crate::wire::{from_wall, monotonic_ns, MessageDescription};
use rgaps_client::links::{LinksLoan, SetMetadata, StreamingCopy};
use rgaps_client::{Domain, Loan, LoanError, PublishError};
use rgaps_transport::machine::{BufferReply, CardBuffer, ReceiveBuffer};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Messages from this size on are copied to GPUs that they are read on while they land.
const STREAMING_BYTES_MIN: u64 = 1 << 20;

/// The receive buffer of a message that comes in a flow; or why it has none, now or ever.
pub(super) fn receive_buffer(
    Bound {
        landing,
        destinations,
        received,
    }: Bound,
    sequence: u64,
    bytes: u64,
    owner: &LinkIngress,
) -> BufferReply {
    let is_here = sequence < landing.next.load(Ordering::Acquire);
    if is_here && destinations.is_none() || is_too_long(&landing, bytes, &owner.issues) {
        return BufferReply::Refused;
    }
    let arriving = landing.landing_bytes.load(Ordering::Relaxed);
    // One message may be larger than what there may be.
    if arriving > 0 && arriving + bytes > landing.limits.most() {
        return BufferReply::Full;
    }
    if let Some(destinations) = destinations.clone().filter(|_| is_here) {
        landing.landing_bytes.fetch_add(bytes, Ordering::Relaxed);
        return BufferReply::Buffer(Box::new(Repeated {
            bytes: vec![0; bytes as usize].into_boxed_slice(),
            length: bytes,
            landing,
            destinations,
            received,
        }));
    }
    let mut loan = match landing.loan(bytes, owner) {
        Ok(Some(loan)) => loan,
        Ok(None) | Err(LoanError::TooManyLoans { .. } | LoanError::Client(_)) => {
            return BufferReply::Full
        }
        Err(error) => {
            tracing::warn!(%error, topic = landing.publisher.topic(), sequence, "a message of another host cannot be published here");
            return BufferReply::Refused;
        }
    };
    landing.landing_bytes.fetch_add(bytes, Ordering::Relaxed);
    // What goes on to other hosts is read on this one.
    let lands_on_gpu = loan.domain() != Domain::Host && destinations.is_none();
    BufferReply::Buffer(Box::new(ArrivingMessage {
        copies: streaming_copy(&mut loan, bytes, lands_on_gpu),
        loan: Some(loan),
        bytes,
        landing,
        destinations,
        received,
        arrived: owner.arrived.clone(),
        placed_ns: monotonic_ns(),
        turn_ns: None,
        issues: owner.issues.clone(),
    }))
}

/// Whether a quota forbids a message of this length.
fn is_too_long(landing: &RemotePublisher, bytes: u64, issues: &TopicIssues) -> bool {
    let limit = landing.limits.message_max.as_ref();
    let Some((_, quota)) = limit.filter(|(max, _)| bytes > *max) else {
        return false;
    };
    let why = format!("quota '{quota}': message_max: a message of {bytes} bytes");
    let topic = landing.publisher.topic();
    if issues.refused(topic, 1, &why) {
        tracing::warn!(
            topic,
            "messages of another host cannot be published here: {why}"
        );
    }
    true
}

/// Begins the streaming copy of a message to GPUs, if it is one for that.
fn streaming_copy(loan: &mut Loan, bytes: u64, lands_on_gpu: bool) -> Option<Arc<StreamingBuffer>> {
    if !lands_on_gpu && bytes < STREAMING_BYTES_MIN {
        return None;
    }
    let copies = loan.begin_streaming_copy()?;
    let address = lands_on_gpu.then(|| loan.address());
    Some(Arc::new(StreamingBuffer { address, copies }))
}

/// A message that lands.
pub(super) struct ArrivingMessage {
    pub(super) loan: Option<Loan>,
    /// The streaming copy to GPUs, until the link asks.
    pub(super) copies: Option<Arc<StreamingBuffer>>,
    pub(super) bytes: u64,
    pub(super) landing: Arc<RemotePublisher>,
    pub(super) destinations: Option<Arc<Destinations>>,
    pub(super) received: Arc<AtomicU64>,
    pub(super) arrived: Arc<IngressCounts>,
    /// When it had its place, and its turn.
    pub(super) placed_ns: u64,
    pub(super) turn_ns: Option<u64>,
    pub(super) issues: Arc<TopicIssues>,
}

/// The streaming copy of a message to GPUs, while it arrives.
pub(super) struct StreamingBuffer {
    /// Of its memory on a GPU; none if it arrives in the host's.
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

    fn memory(&mut self) -> &mut [u8] {
        let loan = self.loan.as_mut().map(Loan::filled);
        // Of another length than was asked for: the link throws the message away.
        loan.and_then(Result::ok).unwrap_or_default()
    }

    fn deliver(
        mut self: Box<Self>,
        sequence: u64,
        description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>> {
        let landing = self.landing.clone();
        if let Some(destinations) = &self.destinations {
            if landing.relay.waits(destinations) {
                return Err(self);
            }
        }
        let _turn = landing.turn();
        if sequence < landing.next.load(Ordering::Acquire) {
            // It came another way meanwhile.
            if let Some(destinations) = self.destinations.clone() {
                let bytes: Box<[u8]> = self.memory().into();
                landing.repeat(sequence, description, bytes, destinations);
            }
            self.received.fetch_max(sequence + 1, Ordering::AcqRel);
            return Ok(());
        }
        let Some(loan) = self.loan.take() else {
            return Ok(());
        };
        let described =
            MessageDescription::decode(description).filter(|meta| meta.bytes.max(1) == self.bytes);
        match described {
            Some(meta) => {
                // A reliable subscriber here is slow: asked again in a moment.
                if let Some(loan) = self.publish(loan, sequence, &meta) {
                    self.loan = Some(loan);
                    return Err(self);
                }
            }
            None => tracing::warn!(
                topic = landing.publisher.topic(),
                sequence,
                "a message's description does not decode; dropped"
            ),
        }
        landing.follow_history(sequence + 1);
        self.received.fetch_max(sequence + 1, Ordering::AcqRel);
        Ok(())
    }
}

/// A message is to have all that is known of it.
fn describe(loan: &mut Loan, meta: &MessageDescription, topic: &str, sequence: u64) {
    loan.truncate(meta.bytes);
    loan.set_tag(meta.tag);
    loan.set_publish_ns(from_wall(meta.published_ns));
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
    /// Publishes it in its turn. Returns the loan if that has to wait for a subscriber.
    fn publish(
        &mut self,
        mut loan: Loan,
        sequence: u64,
        meta: &MessageDescription,
    ) -> Option<Loan> {
        let landing = &self.landing;
        let topic = landing.publisher.topic();
        let turn_ns = *self.turn_ns.get_or_insert_with(monotonic_ns);
        describe(&mut loan, meta, topic, sequence);
        landing.follow_history(sequence);
        let missed = landing.missed_before(sequence);
        // As a sum, for subscribers here may skip the very message that tells of the gap.
        let missed_so_far = landing.missed.load(Ordering::Relaxed) + missed;
        loan.set_missed_so_far(missed_so_far);
        let published = landing.published.load(Ordering::Relaxed);
        landing
            .mark
            .begin(sequence, landing.publisher.id(), published);
        landing
            .relay
            .begin(published, sequence, self.destinations.as_ref());
        match loan.try_publish() {
            Ok(number) => {
                landing.published.store(number + 1, Ordering::Relaxed);
                landing.missed.store(missed_so_far, Ordering::Relaxed);
                landing.pass(sequence + 1);
                self.note_missed(topic, missed);
                self.note_published(topic, sequence, meta, turn_ns);
                None
            }
            Err(unpublished) => {
                landing.relay.undo(published);
                match (unpublished.error, unpublished.loan) {
                    (PublishError::BackPressured { .. } | PublishError::Replica(_), Some(loan)) => {
                        Some(*loan)
                    }
                    (error, _) => {
                        tracing::warn!(%error, topic, sequence, "publishing a message of another host failed; the message is lost");
                        None
                    }
                }
            }
        }
    }

    fn note_published(&self, topic: &str, sequence: u64, meta: &MessageDescription, turn_ns: u64) {
        let times = [self.placed_ns, turn_ns, monotonic_ns()];
        self.arrived.times.published(times, meta.published_ns);
        if let Some(traces) = &self.arrived.traces {
            let publisher = self.landing.relay.publisher;
            let trace = traces.pick(topic, publisher, sequence, meta.bytes.max(1));
            trace.inspect(|trace| traces.landed(trace, times));
        }
    }

    fn note_missed(&self, topic: &str, missed: u64) {
        if missed == 0 {
            return;
        }
        self.arrived.missed.fetch_add(missed, Ordering::Relaxed);
        if let Some(missed) = self.issues.missed(topic, missed) {
            tracing::warn!(topic, missed, "messages of another host were lost");
        }
    }
}

impl Drop for ArrivingMessage {
    fn drop(&mut self) {
        self.landing
            .landing_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A message that was published here before, and goes on to other hosts.
pub(super) struct Repeated {
    pub(super) bytes: Box<[u8]>,
    pub(super) length: u64,
    pub(super) landing: Arc<RemotePublisher>,
    pub(super) destinations: Arc<Destinations>,
    pub(super) received: Arc<AtomicU64>,
}

impl ReceiveBuffer for Repeated {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn deliver(
        mut self: Box<Self>,
        sequence: u64,
        description: &[u8],
    ) -> Result<(), Box<dyn ReceiveBuffer>> {
        if self.landing.relay.waits(&self.destinations) {
            return Err(self);
        }
        let described = MessageDescription::decode(description);
        if described.is_some_and(|meta| meta.bytes.max(1) == self.length) {
            let bytes = std::mem::take(&mut self.bytes);
            let destinations = self.destinations.clone();
            self.landing
                .repeat(sequence, description, bytes, destinations);
        }
        self.received.fetch_max(sequence + 1, Ordering::AcqRel);
        Ok(())
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.landing
            .landing_bytes
            .fetch_sub(self.length, Ordering::Relaxed);
    }
}

/// What the peer says.
pub(super) struct ControlBuffer {
    pub(super) bytes: Vec<u8>,
    pub(super) reporter: LinkReporter,
}

impl ReceiveBuffer for ControlBuffer {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn deliver(mut self: Box<Self>, _: u64, _: &[u8]) -> Result<(), Box<dyn ReceiveBuffer>> {
        let said = ConductorEvent::LinkMessage(std::mem::take(&mut self.bytes));
        self.reporter.report(said);
        Ok(())
    }
}
