//! A host between: decides in which order it forwards the messages of a flow to its children, and what happens to a message of which it
//! has forwarded only a part.
//!
//! It forwards a large message while that arrives, and a small one when it is delivered. Children get the messages of a flow in order.
//! None of this state has to survive a crash: the origin retains the messages that a final host has not confirmed, and sends them again.
//! So a child must see no gap that the origin did not make. A message that this host has forwarded in part, and of which the rest no
//! longer arrives, is *incomplete*:
//!
//! | event | action |
//! |---|---|
//! | the origin gives it up | the children miss it, too |
//! | it arrives again, into other memory | the children need another flow, since theirs has a part of the first copy |
//! | the flow ends | the children's flows end before it, without a gap |

use std::collections::{BTreeMap, BTreeSet};

/// What to do in the children's flows.
#[derive(Debug, PartialEq, Eq)]
pub enum TransitAction<M> {
    /// Send this message, as far as it has arrived; the rest follows.
    Send(u64, M),
    /// Give up this message, of which a part was sent: the children miss it.
    GiveUp(u64),
    /// Tell the children that messages below this number that were not sent never arrive.
    Skip(u64),
    /// Close the flows: no message follows.
    Close,
    /// End the flows at once: not even the rest of a message that was sent in part follows.
    Cut,
    /// Report to the origin that the children's flows cannot go on: all children need another flow.
    Break,
}

/// A flow that this host forwards. `M` is the user's handle of a message. Each call passes the actions to take to `act`.
#[derive(Debug)]
pub struct TransitFlow<M> {
    /// The number of the next message to send.
    next: u64,
    /// The reorder buffer: messages that wait for those before them.
    reordered: BTreeMap<u64, M>,
    /// Messages below this number were delivered here, or never arrive.
    settled: u64,
    /// Messages of which a part was sent and the rest no longer arrives.
    incomplete: BTreeSet<u64>,
    is_closed: bool,
}

impl<M> Default for TransitFlow<M> {
    fn default() -> Self {
        TransitFlow {
            next: 0,
            reordered: BTreeMap::new(),
            settled: 0,
            incomplete: BTreeSet::new(),
            is_closed: false,
        }
    }
}

impl<M> TransitFlow<M> {
    /// A message begins to arrive that is forwarded meanwhile. It waits until the messages before it are sent or missed. A message that was
    /// sent before is not sent again.
    pub fn begin(&mut self, number: u64, message: M, act: &mut impl FnMut(TransitAction<M>)) {
        if number >= self.next {
            self.reordered.insert(number, message);
            self.send(act);
        }
    }

    /// A message is complete, and those before it are delivered or missed. `message` is sent, unless it was sent while it arrived.
    pub fn deliver(
        &mut self,
        number: u64,
        message: Option<M>,
        act: &mut impl FnMut(TransitAction<M>),
    ) {
        self.settled = self.settled.max(number + 1);
        if self.incomplete.contains(&number) {
            act(TransitAction::Break);
        }
        if let Some(message) = message {
            self.begin(number, message, act);
        }
    }

    /// Messages below `next` that have not arrived never will.
    pub fn miss(&mut self, next: u64, act: &mut impl FnMut(TransitAction<M>)) {
        self.next = self.next.max(next);
        self.settled = self.settled.max(next);
        self.reordered = self.reordered.split_off(&next);
        let incomplete = self.incomplete.split_off(&next);
        let given_up = std::mem::replace(&mut self.incomplete, incomplete);
        given_up
            .into_iter()
            .map(TransitAction::GiveUp)
            .for_each(&mut *act);
        act(TransitAction::Skip(next));
        self.send(act);
    }

    /// Call when no more of a message arrives in this memory: the message is complete, or the memory was given up. Returns the message if
    /// it was not sent.
    pub fn dropped(
        &mut self,
        number: u64,
        is_complete: bool,
        act: &mut impl FnMut(TransitAction<M>),
    ) -> Option<M> {
        let unsent = self.reordered.remove(&number);
        if is_complete || self.next <= number {
            return unsent;
        }
        if self.settled > number {
            act(TransitAction::GiveUp(number));
        } else if self.is_closed {
            act(TransitAction::Cut);
        } else {
            self.incomplete.insert(number);
        }
        unsent
    }

    /// The flow has ended: no message follows.
    pub fn close(&mut self, act: &mut impl FnMut(TransitAction<M>)) {
        self.is_closed = true;
        act(match self.incomplete.is_empty() {
            true => TransitAction::Close,
            false => TransitAction::Cut,
        });
    }

    /// Sends the messages of the reorder buffer whose turn it is.
    fn send(&mut self, act: &mut impl FnMut(TransitAction<M>)) {
        while let Some(first) = self.reordered.first_entry() {
            if *first.key() > self.next {
                return;
            }
            let (number, message) = first.remove_entry();
            self.next = number + 1;
            act(TransitAction::Send(number, message));
        }
    }
}
