//! The thread that publishes the messages of an incoming rule.

use crate::counts::Reason;
use crate::dialect::Inbound;
use crate::queue::Queue;
use crate::shared::Shared;
use rgaps_client::bindings::{PatientLoan as _, SetMetadata as _};
use rgaps_client::{Loan, LoanError, PublishError, Publisher, Unpublished};
use rgaps_session::explain;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use zenoh::sample::SampleKind;

/// Time between two looks whether the bridge stops.
const SLICE: Duration = Duration::from_millis(50);
/// How long a message waits for memory, and for reliable subscribers.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most publishers of a rule, which has one for each topic and type.
const PUBLISHERS_MAX: usize = 1024;

pub(crate) struct Incoming {
    shared: Arc<Shared>,
    rule: usize,
    queue: Arc<Queue>,
    /// Publishers by topic and type.
    publishers: HashMap<(String, String), Publisher>,
}

impl Incoming {
    pub(crate) fn new(shared: Arc<Shared>, rule: usize, queue: Arc<Queue>) -> Incoming {
        Incoming {
            shared,
            rule,
            queue,
            publishers: HashMap::new(),
        }
    }

    pub(crate) fn run(mut self) {
        while !self.shared.is_stopped() {
            let Some(sample) = self.queue.pop(SLICE) else {
                continue;
            };
            // Zenoh can delete a key; topics have no such operation.
            let is_deleted = sample.kind() == SampleKind::Delete;
            if is_deleted || self.shared.dialect.is_repeated(self.rule, &sample) {
                continue;
            }
            let taken = match self.shared.dialect.decode(self.rule, &sample) {
                Ok(message) => self.publish(message),
                Err(why) => Err((Reason::Invalid, why)),
            };
            if let Err((reason, why)) = taken {
                self.shared.drop_one(sample.key_expr(), reason, &why);
            }
        }
    }

    fn publisher(&mut self, topic: &str, type_name: &str) -> Result<&Publisher, String> {
        let key = (topic.to_owned(), type_name.to_owned());
        if !self.publishers.contains_key(&key) {
            if self.publishers.len() == PUBLISHERS_MAX {
                return Err(format!(
                    "the rule brings more than {PUBLISHERS_MAX} topics, which is the limit; name fewer"
                ));
            }
            let offer = self.shared.dialect.offer(self.rule);
            let mut builder = self.shared.node.publisher(topic).type_name(type_name);
            builder = builder.keep_last(offer.keep_last);
            if offer.transient_local {
                builder = builder.transient_local();
            }
            builder = builder.deadline(SLICE).loan_timeout(PATIENCE);
            let publisher = builder.create().map_err(|error| explain(&error))?;
            let mut own = self
                .shared
                .own
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            own.insert(publisher.id());
            drop(own);
            let topics_in = &self.shared.counters.topics_in;
            topics_in.fetch_add(1, Ordering::Relaxed);
            self.publishers.insert(key.clone(), publisher);
        }
        Ok(&self.publishers[&key])
    }

    fn publish(&mut self, message: Inbound) -> Result<(), (Reason, String)> {
        let shared = self.shared.clone();
        let publisher = self
            .publisher(&message.topic, &message.type_name)
            .map_err(|why| (Reason::NoTopic, why))?;
        let bytes = message.len as u64;
        let mut loan = publisher.loan(bytes).map_err(|error| {
            let reason = match error {
                LoanError::PoolFull { .. } | LoanError::NoBlocks { .. } => Reason::PoolFull,
                LoanError::TooLarge { .. } => Reason::PoolFull,
                _ => Reason::NoTopic,
            };
            (reason, explain(&error))
        })?;
        fill(&mut loan, &message).map_err(|why| (Reason::Invalid, why))?;
        let begun = Instant::now();
        let goes_on = || begun.elapsed() < PATIENCE && !shared.is_stopped();
        let published = loan.publish_while(goes_on);
        published.map_err(|Unpublished { error, .. }| {
            let reason = match error {
                PublishError::BackPressured { .. } => Reason::BackPressured,
                _ => Reason::NoTopic,
            };
            (reason, explain(&error))
        })?;
        shared.counters.count_received(bytes);
        Ok(())
    }
}

/// Copies a message into a loan. The error says why the message does not fit the loan.
fn fill(loan: &mut Loan, message: &Inbound) -> Result<(), String> {
    let (mut skip, mut at) = (message.skip, 0);
    for slice in message.payload.slices() {
        let skipped = skip.min(slice.len());
        skip -= skipped;
        let taken = (slice.len() - skipped).min(message.len - at);
        let slice = &slice[skipped..skipped + taken];
        let written = loan.write(at as u64, slice);
        written.map_err(|error| explain(&error))?;
        at += taken;
    }
    loan.set_beside(&message.beside)
}
