//! A flow's messages that are not acknowledged, in their order.
//!
//! Many messages of a flow are in flight at a time, and few of them need a frame. So the queue counts the oldest messages that have no
//! work, and skips them.

use super::limits::may_request;
use super::send_message::{QueuedItem, SendMessage, SendState};
use crate::payload::Payload;
use std::collections::VecDeque;
use std::sync::Arc;

/// The flow looks only at so many of its oldest messages for something to send.
const LOOK_AHEAD: usize = 64;

/// The oldest is first; their first sequences ascend.
#[derive(Default)]
pub(super) struct SendQueue {
    all: VecDeque<SendMessage>,
    /// How many of the oldest are known to have no work.
    settled: usize,
}

impl SendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The first number of the oldest.
    pub(super) fn first(&self) -> Option<u64> {
        Some(self.all.front()?.first)
    }

    /// The numbers of all messages.
    pub(super) fn sequences(&self) -> Vec<u64> {
        let messages = self.all.iter().filter(|message| message.is_message());
        messages.map(|message| message.first).collect()
    }

    pub(super) fn at(&self, at: usize) -> &SendMessage {
        &self.all[at]
    }

    pub(super) fn at_mut(&mut self, at: usize) -> &mut SendMessage {
        self.settled = self.settled.min(at);
        &mut self.all[at]
    }

    pub(super) fn position(&self, sequence: u64) -> Option<usize> {
        let found = self
            .all
            .binary_search_by_key(&sequence, |message| message.first);
        found.ok()
    }

    pub(super) fn push(&mut self, message: SendMessage) {
        debug_assert!(matches!(message.state, SendState::Queued));
        self.all.push_back(message);
    }

    /// Appends a gap: numbers that were never sent.
    pub(super) fn push_gap(&mut self, first: u64, next: u64) {
        self.push(SendMessage::new(first, next, QueuedItem::Gap));
        self.join_gaps(self.all.len() - 1);
    }

    /// Joins the gap at `at` with an unsent gap right before it.
    fn join_gaps(&mut self, at: usize) {
        let is_unsent_gap = |before: &usize| {
            let SendMessage { item, state, .. } = &self.all[*before];
            matches!((item, state), (QueuedItem::Gap, SendState::Queued))
        };
        if let Some(before) = at.checked_sub(1).filter(is_unsent_gap) {
            self.all[at].first = self.all[before].first;
            self.all.remove(before);
        }
        self.settled = 0;
    }

    /// Removes the oldest item, if all of it is below this position. The flow's end stays.
    pub(super) fn pop_below(&mut self, next: u64) -> Option<SendMessage> {
        let oldest = self.all.front()?;
        if oldest.next > next || matches!(oldest.item, QueuedItem::Close) {
            return None;
        }
        let message = self.all.pop_front()?;
        self.settled = self.settled.saturating_sub(1);
        Some(message)
    }

    /// Applies a change to all items.
    pub(super) fn change(&mut self, each: impl FnMut(&mut SendMessage)) {
        self.all.iter_mut().for_each(each);
        self.settled = 0;
    }

    /// Turns a message into a gap. Returns its payload; `None`, without a change, for a gap or the flow's end.
    pub(super) fn make_gap(&mut self, at: usize) -> Option<Arc<dyn Payload>> {
        let message = &mut self.all[at];
        let QueuedItem::Message { payload, .. } = &message.item else {
            return None;
        };
        let payload = Arc::clone(payload);
        (message.item, message.state) = (QueuedItem::Gap, SendState::Queued);
        self.join_gaps(at);
        Some(payload)
    }

    /// The oldest message of which no byte was sent.
    pub(super) fn oldest_unsent(&self) -> Option<u64> {
        let is_unsent = |message: &&SendMessage| {
            let waits = matches!(
                message.state,
                SendState::Queued | SendState::Requested { .. }
            );
            waits && message.is_message()
        };
        Some(self.all.iter().find(is_unsent)?.first)
    }

    fn looked_at(&self) -> usize {
        self.all.len().min(LOOK_AHEAD)
    }

    /// Whether one of the first [`LOOK_AHEAD`] items has something to send or to request.
    pub(super) fn has_work(&mut self) -> bool {
        let end = self.looked_at();
        while self.settled < end && !self.all[self.settled].has_work() {
            self.settled += 1;
        }
        self.settled < end
    }

    /// The position of the first item from `from` on that has something to send or to request. `all_busy`: no lane takes a chunk now.
    pub(super) fn work_from(&mut self, from: usize, all_busy: bool) -> Option<usize> {
        if !self.has_work() {
            return None;
        }
        let begin = from.max(self.settled).min(self.looked_at());
        let mut rest = self.all.range(begin..self.looked_at());
        let found = rest.position(|message| match message.state {
            SendState::Granted(_) => !all_busy && message.has_work(),
            _ => message.has_work(),
        });
        found.map(|at| begin + at)
    }

    /// Whether a message of so many bytes may request a grant. All that request or have one are among the first [`LOOK_AHEAD`].
    pub(super) fn may_request(&self, bytes: u64) -> bool {
        let asking = self.all.range(..self.looked_at()).filter(|of| of.asks());
        let add = |(count, sum), of: &SendMessage| (count + 1, sum + of.bytes());
        let (grants, granted_bytes) = asking.fold((0, 0), add);
        may_request(grants, granted_bytes, bytes)
    }

    /// Removes all items.
    pub(super) fn take_all(&mut self) -> VecDeque<SendMessage> {
        std::mem::take(self).all
    }
}
