//! [`WaitSet`]: waits for messages of many topics at once.

use crate::pending::Deadline;
use crate::{ClientError, Node, RecvError, Subscriber};
use rgaps_layout::WAIT_SLICE_NS;
use rgaps_session::ZoneId;
use rgaps_sync::{futex_wait_any, spin_hint, WAIT_ANY_MAX};
use rgaps_topic::Sleeper;
use std::sync::Arc;
use std::time::Duration;

/// Identifies a subscriber in a wait set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub usize);

/// Waits for messages of several subscribers at once. The subscribers share one doorbell per zone, so one sleep covers
/// any number of topics.
pub struct WaitSet {
    node: Node,
    members: Vec<Option<Subscriber>>,
    /// The doorbell that the set's subscribers of each zone share.
    doorbells: Vec<(ZoneId, u32)>,
}

impl std::fmt::Debug for WaitSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitSet")
            .field("members", &self.members.iter().flatten().count())
            .finish_non_exhaustive()
    }
}

impl WaitSet {
    pub(crate) fn new(node: Node) -> WaitSet {
        WaitSet {
            node,
            members: Vec::new(),
            doorbells: Vec::new(),
        }
    }

    /// Adds a subscriber of the same node. Fails with [`ClientError::Argument`] if the subscriber is of another node, or is in a
    /// wait set: it may be in one at a time.
    pub fn attach(&mut self, subscriber: &Subscriber) -> Result<Token, ClientError> {
        let core = &subscriber.core;
        core.guard.check()?;
        if !Arc::ptr_eq(&core.client().conductor, &self.node.conductor) {
            return Err(ClientError::Argument(format!(
                "the subscriber of topic '{}' is of another node than the wait set",
                subscriber.topic()
            )));
        }
        let zone = core.zone().id();
        let doorbell = match self.doorbells.iter().find(|(id, _)| *id == zone) {
            Some((_, doorbell)) => *doorbell,
            None => {
                if self.doorbells.len() == WAIT_ANY_MAX {
                    return Err(ClientError::Argument(format!(
                        "the topics of a wait set have more than {WAIT_ANY_MAX} different sets of access rules, which is the limit; use several wait sets"
                    )));
                }
                let doorbell = self.node.conductor.take_doorbell(zone)?;
                self.doorbells.push((zone, doorbell));
                doorbell
            }
        };
        if !core.join_wait_set(doorbell) {
            return Err(ClientError::Argument(format!(
                "the subscriber of topic '{}' is in a wait set, and may be in one at a time; detach it there first, or \
                 create another subscriber",
                subscriber.topic()
            )));
        }
        let free = self.members.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() - 1
        });
        self.members[index] = Some(subscriber.clone());
        Ok(Token(index))
    }

    /// Removes a subscriber. False if the wait set has no such token.
    pub fn detach(&mut self, token: Token) -> bool {
        let member = self.members.get_mut(token.0).and_then(Option::take);
        if let Some(subscriber) = &member {
            subscriber.core.leave_wait_set();
        }
        member.is_some()
    }

    /// Waits until at least one subscriber has a message, and returns the tokens of all that have one; empty after
    /// `timeout`. Before it sleeps it spins for the longest [`SubscriberQos::spin`](crate::SubscriberQos) of its
    /// subscribers. Fails if the wait set is empty.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<Token>, RecvError> {
        if self.members.iter().all(Option::is_none) {
            return Err(RecvError::Client(ClientError::Argument(
                "the wait set is empty: attach subscribers first".to_owned(),
            )));
        }
        let deadline = Deadline::after(timeout);
        let members = self.members.iter().flatten();
        let spin = members
            .map(|member| member.core.qos.spin)
            .max()
            .unwrap_or_default();
        let spun = Deadline::after(spin.min(timeout));
        while spun.left_ns().is_some() {
            let ready = self.ready();
            if !ready.is_empty() {
                return Ok(ready);
            }
            spin_hint();
        }
        loop {
            // One doorbell per zone; every member of the zone announces its sleep there.
            let mut sleepers: Vec<(ZoneId, Sleeper<'_>)> = Vec::new();
            for core in self.members.iter().flatten().map(|member| &member.core) {
                let sleeper = core.announce_sleep()?;
                if sleepers.iter().all(|(zone, _)| *zone != core.zone().id()) {
                    sleepers.push((core.zone().id(), sleeper));
                }
            }
            let ready = self.ready();
            let left_ns = deadline.left_ns();
            if !ready.is_empty() || left_ns.is_none() {
                return Ok(ready);
            }
            let slice_ns = left_ns.unwrap_or(0).min(WAIT_SLICE_NS);
            let words: Vec<_> = sleepers.iter().map(|(_, sleeper)| sleeper.word()).collect();
            futex_wait_any(&words, slice_ns);
        }
    }

    fn ready(&self) -> Vec<Token> {
        let members = self.members.iter().enumerate();
        members
            .filter(|(_, member)| {
                member
                    .as_ref()
                    .is_some_and(|member| member.core.lock().is_ready())
            })
            .map(|(index, _)| Token(index))
            .collect()
    }
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        for core in self.members.iter().flatten().map(|member| &member.core) {
            if core.guard.is_child() {
                return;
            }
            core.leave_wait_set();
        }
        for (zone, doorbell) in self.doorbells.drain(..) {
            let _ = self.node.conductor.return_doorbell(zone, doorbell);
        }
    }
}
