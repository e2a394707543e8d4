//! Interest: what each host wants of topics. A host sends its interest only to hosts that ask for it.
//!
//! | event | action |
//! |---|---|
//! | a host becomes reachable | send it `Ask` |
//! | `Ask` arrives | send all interest, then `InterestComplete`, and from then on every change |
//! | the channel restarts | the peer's `Ask` no longer counts; ask it again. Its known interest stays valid, but doubtful |
//! | `InterestComplete` arrives | drop the interest that is still doubtful: the peer has not repeated it |
//! | a host is given up | forget its interest and its `Ask` |

use crate::channel::{Channels, ControlMessage};
use crate::ids::{HostId, Life};
use std::collections::{BTreeMap, BTreeSet};

/// The most topics of one host that another remembers.
pub const MAX_TOPICS: usize = 8192;

/// What a host wants, by topic. Only the user understands the bytes.
pub type Wants = BTreeMap<Box<str>, Box<[u8]>>;

/// What another host wants.
#[derive(Debug, Default)]
pub struct HostInterest {
    /// The life whose interest arrived last.
    pub life: Option<Life>,
    /// Its interest, by topic.
    pub wants: Wants,
    /// Whether these are all topics that it wants.
    pub is_complete: bool,
    /// Topics that the host has not repeated since its channel restarted.
    doubtful: BTreeSet<Box<str>>,
}

/// The interest of this host, and of the hosts that it asked.
#[derive(Debug, Default)]
pub struct InterestTable {
    own: Wants,
    /// The hosts that have asked for this host's interest.
    askers: BTreeSet<HostId>,
    hosts: BTreeMap<HostId, HostInterest>,
}

impl InterestTable {
    /// Sets what this host wants of a topic; `None`: nothing.
    pub fn set(&mut self, topic: &str, want: Option<Box<[u8]>>, channels: &mut Channels) {
        let before = match &want {
            Some(want) => self.own.insert(topic.into(), want.clone()),
            None => self.own.remove(topic),
        };
        if before != want {
            for host in &self.askers {
                let (topic, want) = (topic.into(), want.clone());
                channels.send(*host, ControlMessage::Interest { topic, want });
            }
        }
    }

    /// Asks a host, unless it was asked before.
    pub fn ask(&mut self, host: HostId, channels: &mut Channels) {
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.hosts.entry(host) {
            vacant.insert(HostInterest::default());
            channels.send(host, ControlMessage::Ask);
        }
    }

    /// The channel to a life restarted.
    pub fn restarted(&mut self, life: Life, channels: &mut Channels) {
        self.askers.remove(&life.host);
        if let Some(interest) = self.hosts.get_mut(&life.host) {
            interest.is_complete = false;
            interest.doubtful = interest.wants.keys().cloned().collect();
            channels.send(life.host, ControlMessage::Ask);
        }
    }

    /// Takes a message about interest. Returns whether the known interest of its sender may have changed.
    pub fn receive(
        &mut self,
        from: Life,
        message: &ControlMessage,
        channels: &mut Channels,
    ) -> bool {
        if *message == ControlMessage::Ask {
            self.askers.insert(from.host);
            for (topic, want) in &self.own {
                let (topic, want) = (topic.clone(), Some(want.clone()));
                channels.send(from.host, ControlMessage::Interest { topic, want });
            }
            channels.send(from.host, ControlMessage::InterestComplete);
            return false;
        }
        let Some(interest) = self.hosts.get_mut(&from.host) else {
            return false;
        };
        match message {
            ControlMessage::Interest { topic, want } => interest.learn(from, topic, want),
            ControlMessage::InterestComplete => {
                interest.life = Some(from);
                interest.is_complete = true;
                for topic in std::mem::take(&mut interest.doubtful) {
                    interest.wants.remove(&topic);
                }
            }
            _ => return false,
        }
        true
    }

    /// Forgets a host that was given up.
    pub fn forget(&mut self, host: HostId) {
        self.askers.remove(&host);
        self.hosts.remove(&host);
    }

    /// What this host wants.
    pub fn own(&self) -> &Wants {
        &self.own
    }

    /// What one host wants, if it was asked.
    pub fn host(&self, host: HostId) -> Option<&HostInterest> {
        self.hosts.get(&host)
    }

    /// What the other hosts want that were asked.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, &HostInterest)> {
        self.hosts.iter().map(|(host, interest)| (*host, interest))
    }
}

impl HostInterest {
    fn learn(&mut self, from: Life, topic: &str, want: &Option<Box<[u8]>>) {
        self.life = Some(from);
        self.doubtful.remove(topic);
        match want {
            Some(want) if self.wants.len() < MAX_TOPICS || self.wants.contains_key(topic) => {
                self.wants.insert(topic.into(), want.clone());
            }
            Some(_) => {}
            None => {
                self.wants.remove(topic);
            }
        }
    }
}
