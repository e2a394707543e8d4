//! Calls of a link's user, which run without the link's lock: deliveries and events.

use super::{LinkEvent, LinkRuntime};
use crate::machine::frame::Description;
use crate::machine::{BufferReply, FlowId, LinkOutput, OpenReply, ReceiveBuffer, Turn};

/// One call to make.
pub(super) enum Task {
    Output(LinkOutput),
    Event(LinkEvent),
}

/// The arguments of [`LinkMachine::delivered`](crate::machine::LinkMachine::delivered) after a delivery.
pub(super) type Delivered = (FlowId, Result<(), Turn>);

impl Task {
    /// Performs the task; after a delivery, returns its outcome for the machine.
    pub(super) fn perform(self, link: &LinkRuntime) -> Option<Delivered> {
        match self {
            Self::Event(event) => link.user.event(event, link),
            Self::Output(LinkOutput::Deliver { flow, turn }) => {
                return Some((flow, deliver(link, flow, turn)));
            }
            Self::Output(LinkOutput::Flow(event)) => link.user.flow_event(event, link),
            Self::Output(LinkOutput::Violation(violation)) => {
                link.disconnect(None, &violation);
            }
            Self::Output(LinkOutput::Stuck { lane }) => {
                if let Some(lane) = link.lock().lanes.get(&lane) {
                    lane.close("the peer does not read the answers that it causes");
                }
            }
        }
        None
    }
}

/// Delivers a turn. `Err`: the user cannot take it now.
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
            return deliver_small(link, flow, sequence, bytes.split_at(description_bytes));
        }
    }
    Ok(())
}

/// Asks the user whether it accepts a flow that begins. False if the user is not ready for it.
fn open(link: &LinkRuntime, flow: FlowId, description: &Description) -> bool {
    let refuse = |why: Description| link.change(|change| change.refuse(flow, why));
    match link.receiver.opened(flow, description) {
        OpenReply::Accepted => {}
        OpenReply::Waits => return false,
        OpenReply::Refused(why) => {
            refuse(why);
        }
        OpenReply::Violation(what) => {
            refuse(Description::of_words(what));
            link.violated(None, "Open", what);
        }
    }
    true
}

/// Copies a small message into a receive buffer of the user's and delivers it. `Err`: the user cannot take it now. The turn then has
/// the receive buffer, or a copy of the bytes if the user had no buffer.
pub(super) fn deliver_small(
    link: &LinkRuntime,
    flow: FlowId,
    sequence: u64,
    (description, bytes): (&[u8], &[u8]),
) -> Result<(), Turn> {
    let length = bytes.len() as u64;
    let reply = link.receiver.buffer(flow, sequence, description, length);
    if let BufferReply::Full = reply {
        return Err(Turn::Small {
            sequence,
            bytes: [description, bytes].concat().into(),
            description_bytes: description.len(),
        });
    }
    let filled = match reply {
        BufferReply::Buffer(buffer) => fill(buffer, bytes),
        _ => None,
    };
    let Some(buffer) = filled else {
        link.receiver.missed(flow, sequence, sequence + 1);
        return Ok(());
    };
    let delivered = buffer.deliver(sequence, description);
    delivered.map_err(|buffer| Turn::Large {
        sequence,
        description: Description::new(description).expect("a frame brought it, which limits it"),
        buffer,
    })
}

/// Fills a buffer with these bytes; `None` if the buffer has another length.
fn fill(mut buffer: Box<dyn ReceiveBuffer>, bytes: &[u8]) -> Option<Box<dyn ReceiveBuffer>> {
    if let Some(memory) = buffer.prefix_memory() {
        return memory.fill(bytes).then_some(buffer);
    }
    let memory = buffer.memory();
    let has_length = memory.len() == bytes.len();
    if has_length {
        memory.copy_from_slice(bytes);
    }
    has_length.then_some(buffer)
}
