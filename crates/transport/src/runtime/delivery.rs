//! What a link does without its lock: it delivers messages to its user, and tells the user what happened.

use super::user::{FlowReceiver, LinkEvent, OpenReply};
use super::LinkRuntime;
use crate::machine::frame::{Description, Remote};
use crate::machine::{self, BufferReply, FlowId, LinkOutput, ProtocolViolation, Turn};
use crate::rdma::RegistrationTable;
use std::sync::Arc;

/// A small message in its turn.
pub(super) struct SmallMessage<'a> {
    pub(super) flow: FlowId,
    pub(super) sequence: u64,
    pub(super) description: &'a [u8],
    pub(super) bytes: &'a [u8],
}

/// What the machine asks for: memory of the link's receiver. The memory that peers may write is what the endpoint registered.
pub(super) struct MachineUser {
    pub(super) receiver: Arc<dyn FlowReceiver>,
    pub(super) registered: Arc<RegistrationTable>,
}

impl machine::LinkUser for MachineUser {
    fn buffer(&self, flow: FlowId, sequence: u64, description: &[u8], bytes: u64) -> BufferReply {
        self.receiver.buffer(flow, sequence, description, bytes)
    }

    fn remote(&self, address: u64, bytes: u64) -> Option<Remote> {
        self.registered.remote(address, bytes)
    }
}

/// One thing to do.
pub(super) enum Task {
    Output(LinkOutput),
    Event(LinkEvent),
}

/// What the machine is told then.
pub(super) type Delivered = (FlowId, Result<(), Turn>);

impl Task {
    pub(super) fn perform(self, link: &LinkRuntime) -> Option<Delivered> {
        let output = match self {
            Self::Event(event) => {
                link.user.event(event, link);
                return None;
            }
            Self::Output(output) => output,
        };
        match output {
            LinkOutput::Deliver { flow, turn } => {
                return Some((flow, deliver(link, flow, turn)));
            }
            LinkOutput::Flow(event) => link.user.flow_event(event, link),
            LinkOutput::Stuck { lane } => link.close_lane(lane, "the peer asks and does not read"),
        }
        None
    }
}

/// Delivers what has its turn; `Err`: the user cannot take it now.
fn deliver(link: &LinkRuntime, flow: FlowId, turn: Turn) -> Result<(), Turn> {
    match turn {
        Turn::Opened {
            ref description, ..
        } => {
            let is_answered = open(link, flow, description);
            return is_answered.then_some(()).ok_or(turn);
        }
        Turn::Missed { first, next } => link.receiver.missed(flow, first, next),
        Turn::Closed { .. } => link.receiver.closed(flow),
        Turn::Large {
            sequence,
            description,
            buffer,
        } => {
            let delivered = buffer.deliver(sequence, description.as_slice());
            return delivered.map_err(|buffer| Turn::Large {
                sequence,
                description,
                buffer,
            });
        }
        Turn::Small {
            sequence,
            bytes,
            description_bytes,
        } => {
            let (description, message) = bytes.split_at(description_bytes);
            let small = SmallMessage {
                flow,
                sequence,
                description,
                bytes: message,
            };
            return small.deliver(link);
        }
    }
    Ok(())
}

/// Asks the user for a flow that begins; false: it is not ready for it.
fn open(link: &LinkRuntime, flow: FlowId, description: &Description) -> bool {
    let refuse = |why: Description| link.change(|change| change.refuse(flow, why));
    match link.receiver.opened(flow, description) {
        OpenReply::Accepted => {}
        OpenReply::Waits => return false,
        OpenReply::Refused(why) => {
            refuse(why);
        }
        OpenReply::Violation(what) => {
            refuse(Description::new(what.as_bytes()).unwrap_or_default());
            let frame = "Open";
            link.disconnect(None, &ProtocolViolation::State { frame, what });
        }
    }
    true
}

impl SmallMessage<'_> {
    /// `Err`: it cannot be delivered now. It is in its receive buffer, or a copy, since there is none.
    pub(super) fn deliver(&self, link: &LinkRuntime) -> Result<(), Turn> {
        let (flow, sequence) = (self.flow, self.sequence);
        let missed = || {
            link.receiver.missed(flow, sequence, sequence + 1);
            Ok(())
        };
        let bytes = self.bytes.len() as u64;
        let reply = link
            .receiver
            .buffer(flow, sequence, self.description, bytes);
        let mut buffer = match reply {
            BufferReply::Buffer(buffer) => buffer,
            BufferReply::Full => {
                return Err(Turn::Small {
                    sequence,
                    bytes: [self.description, self.bytes].concat().into(),
                    description_bytes: self.description.len(),
                })
            }
            BufferReply::Refused => return missed(),
        };
        let is_filled = match buffer.prefix_memory() {
            Some(memory) => memory.fill(self.bytes),
            None => match buffer.memory() {
                memory if memory.len() == self.bytes.len() => {
                    memory.copy_from_slice(self.bytes);
                    true
                }
                _ => false,
            },
        };
        if !is_filled {
            drop(buffer);
            return missed();
        }
        let delivered = buffer.deliver(sequence, self.description);
        delivered.map_err(|buffer| Turn::Large {
            sequence,
            description: Description::new(self.description)
                .expect("a frame brought it, which limits it"),
            buffer,
        })
    }
}
