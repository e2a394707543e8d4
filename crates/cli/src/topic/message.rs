//! Waits for messages, for commands that listen until a signal or a limit ends them.

use crate::args::ReadIn;
use crate::domain;
use crate::exit::NotInTime;
use crate::stop::Stop;
use rgaps::{Node, RecvError, Sample, Subscriber, SubscriberBuilder};
use std::time::{Duration, Instant};

/// Time between two looks for a signal.
const SLICE: Duration = Duration::from_millis(50);

/// Why a wait for a message ended.
pub enum Next {
    Message(Box<Sample>),
    /// The caller's point in time came.
    Due,
    /// A signal asked the command to stop.
    Stopped,
}

/// A builder for a subscriber that observes a topic: it matches every publisher's quality of service, and reads in the domain of
/// the command line.
pub fn reader(node: &Node, topic: &str, read_in: &ReadIn) -> anyhow::Result<SubscriberBuilder> {
    let mut builder = node.subscriber(topic).observer();
    if let Some(path) = read_in.require {
        builder = builder.require(path);
    }
    Ok(
        match read_in.domain.as_deref().map(domain::parse).transpose()? {
            Some(domain) => builder.domain(domain),
            None => builder,
        },
    )
}

/// Waits for messages, with a limit on the time without one.
pub struct Messages<'a> {
    pub subscriber: &'a Subscriber,
    pub stop: &'a Stop,
    pub timeout: Option<Duration>,
    last: Instant,
}

impl<'a> Messages<'a> {
    pub fn new(subscriber: &'a Subscriber, stop: &'a Stop, timeout: Option<Duration>) -> Self {
        Messages {
            subscriber,
            stop,
            timeout,
            last: Instant::now(),
        }
    }

    /// Waits for a message, at most until `due`.
    pub fn next(&mut self, due: Option<Instant>) -> anyhow::Result<Next> {
        loop {
            if self.stop.is_set() {
                return Ok(Next::Stopped);
            }
            let now = Instant::now();
            if due.is_some_and(|due| now >= due) {
                return Ok(Next::Due);
            }
            let patience = self.timeout.map(|timeout| self.last + timeout);
            let until = [due, patience, Some(now + SLICE)];
            let until = until.into_iter().flatten().min().unwrap_or(now);
            match self
                .subscriber
                .recv_timeout(until.saturating_duration_since(now))
            {
                Ok(sample) => {
                    self.last = Instant::now();
                    return Ok(Next::Message(Box::new(sample)));
                }
                Err(RecvError::TimedOut(_)) => {}
                Err(RecvError::Untrusted { topic, reason }) => {
                    rgaps_session::print_error(format_args!(
                        "rgaps: a message of topic '{topic}' was skipped: {reason}"
                    ));
                }
                Err(error) => return Err(error.into()),
            }
            if patience.is_some_and(|patience| Instant::now() >= patience) {
                let text = format!(
                    "no message on topic '{}' for {} s; {}",
                    self.subscriber.topic(),
                    self.timeout.unwrap_or_default().as_secs_f64(),
                    self.subscriber.silence()
                );
                return Err(NotInTime(text).into());
            }
        }
    }
}
