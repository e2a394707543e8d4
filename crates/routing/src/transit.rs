//! A host between: in what order the messages of a flow go on, and what becomes of one of which only a part went on.
//!
//! A large message goes on while it arrives, a small one when it is delivered; children get the messages of a flow in order, or not at
//! all. Nothing here has to survive: what a final host has not confirmed, its origin still holds, and sends again. So a child must take
//! nothing for a gap that its origin did not leave. If nothing more of a message comes after a part of it went on, it is *incomplete*:
//!
//! | then | action |
//! |---|---|
//! | the origin gives it up | children miss it, too |
//! | it arrives once more | children need another flow: they have another part of it |
//! | the flow ends | the children's flows end before it, without a gap |

use std::collections::{BTreeMap, BTreeSet};

/// What is to be done in the children's flows.
#[derive(Debug, PartialEq, Eq)]
pub enum TransitAction<M> {
    /// Send this message, or as much of it as is there.
    Send(u64, M),
    /// This message, of which a part was sent, is missed.
    GiveUp(u64),
    /// Messages below this number that were not sent never come.
    Skip(u64),
    /// No message follows.
    Close,
    /// Nothing follows, not even the rest of what was sent in part.
    Cut,
    /// Nothing follows, and the origin has to know it: all children need another flow.
    Break,
}

/// A flow that goes on from here. `M` is a message, as its user holds it. Each call passes what is to be done to `act`.
#[derive(Debug)]
pub struct TransitFlow<M> {
    /// The next message to send.
    next: u64,
    /// Messages that wait for those before them.
    reordered: BTreeMap<u64, M>,
    /// Messages below this number were delivered here, or never come.
    settled: u64,
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
    /// A message that goes on while it arrives. Messages before it that neither arrive nor are missed hold it up. One that arrives once
    /// more is not sent again.
    pub fn begin(&mut self, number: u64, message: M, act: &mut impl FnMut(TransitAction<M>)) {
        if number >= self.next {
            self.reordered.insert(number, message);
            self.send(act);
        }
    }

    /// A message is complete, and those before it are delivered or missed. It goes on now, if it has not begun to.
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

    /// Messages below `next` that have not arrived never come.
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

    /// Nothing more of a message comes: it is complete, or its memory was given up. Returns it if it was not sent.
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

    /// No message follows.
    pub fn close(&mut self, act: &mut impl FnMut(TransitAction<M>)) {
        self.is_closed = true;
        act(match self.incomplete.is_empty() {
            true => TransitAction::Close,
            false => TransitAction::Cut,
        });
    }

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
