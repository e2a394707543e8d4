//! Calls of topics: what can wait becomes a job.

use super::api::cu;
use super::jobs::{Job, Refused};
use super::memory::span;
use super::session::{done, Outcome, Session};
use super::topics::{publish, Member, Topics};
use crate::call::{Call, CallValue};
use crate::codes::Code;
use crate::extent::{Extent, Pitched};
use crate::frame::FrameHeader;
use rgaps::{Domain, GpuUuid, Stream};
use std::sync::Arc;
use std::time::Duration;

fn later(work: impl Fn() -> Result<CallValue, Refused> + Send + 'static) -> Result<Outcome, Code> {
    Ok(Outcome::Later(Job::Topic(Box::new(work))))
}

impl Session {
    pub(super) fn topic_call(
        &mut self,
        of: &FrameHeader,
        call: &Call<'_>,
    ) -> Result<Outcome, Code> {
        let topics = self.topics.clone();
        match *call {
            Call::TopicPublisher {
                publisher: number,
                topic,
                options,
            } => {
                let (domain, topic) = (self.domain(of.device)?, topic.to_owned());
                later(move || topics.add(number, topics.publisher(&topic, domain, options)?))
            }
            Call::TopicSubscriber {
                subscriber: number,
                topic,
                options,
            } => {
                let (domain, topic) = (self.domain(of.device)?, topic.to_owned());
                later(move || topics.add(number, topics.subscriber(&topic, domain, options)?))
            }
            Call::TopicLeave { member } => {
                topics.find(member)?;
                later(move || {
                    topics.leave(member);
                    Ok(CallValue::Nothing)
                })
            }
            _ => self.message_call(of, call, topics),
        }
    }

    fn message_call(
        &mut self,
        of: &FrameHeader,
        call: &Call<'_>,
        topics: Arc<Topics>,
    ) -> Result<Outcome, Code> {
        match *call {
            Call::TopicPublish {
                publisher,
                from,
                bytes,
                ref tensor,
                stream,
            } => {
                let Member::Publisher(publisher) = topics.find(publisher)? else {
                    return Err(Code::INVALID_HANDLE);
                };
                if bytes > 0 {
                    self.readable(from, bytes)?;
                }
                let stream = self.topic_stream(of, stream)?;
                let tensor = tensor.clone();
                later(move || publish(&publisher, (from, bytes), tensor.as_ref(), stream))
            }
            Call::TopicReceive {
                subscriber,
                message,
                timeout_ns,
                stream,
            } => {
                let Member::Subscriber(subscriber) = topics.find(subscriber)? else {
                    return Err(Code::INVALID_HANDLE);
                };
                let stream = self.topic_stream(of, stream)?;
                let timeout = Duration::from_nanos(timeout_ns);
                later(move || topics.receive(&subscriber, message, timeout, stream))
            }
            Call::TopicRelease { message, stream } => {
                let stream = self.topic_stream(of, stream)?;
                done(topics.release(message, stream))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// A stream for work of rgaps. Refuses one that records, on which the work would not be done.
    fn topic_stream(&mut self, of: &FrameHeader, stream: u64) -> Result<Stream, Code> {
        let stream = self.stream(of, stream)?;
        self.refuse_recording(stream)?;
        Ok(Stream(stream as u64))
    }

    /// The domain of a device's memory.
    fn domain(&self, device: u16) -> Result<Domain, Code> {
        let mut uuid = [0; 16];
        // SAFETY: the out pointer is to a variable of this function; ordinals of devices are devices.
        unsafe { cu!(self.api, device_uuid(&mut uuid, device.into()))? };
        Ok(Domain::Cuda(GpuUuid(uuid)))
    }

    /// Whether the client may read all of a range: its own memory, or a message.
    pub(super) fn readable(&self, address: u64, bytes: u64) -> Result<(), Code> {
        let own = self.memory.check(address, bytes);
        own.or_else(|_| self.topics.check(address, bytes))
    }

    /// Whether the client may read all rows of an extent.
    pub(super) fn readable_rows(&self, at: &Pitched, extent: &Extent) -> Result<(), Code> {
        let bytes = span(at, extent).ok_or(Code::INVALID_VALUE)?;
        self.readable(at.address, bytes)
    }
}
