//! The table that the threads share: channels, clients, and which topics have viewers.
//!
//! A topic has a channel for each schema of its messages, from its first message with that schema on. Lock order: the hub's lock
//! first, then an outbox's.

use crate::outbox::{Frame, NoRoom, Outbox};
use crate::protocol;
use rgaps_recording::SchemaKind;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the server reads a topic after a request for its thumbnail.
const THUMBNAIL_KEPT: Duration = Duration::from_secs(5);

struct Channel {
    id: u32,
    kind: SchemaKind,
    metadata: BTreeMap<String, String>,
    /// The number of subscriptions, over all clients.
    subscriptions: u32,
    /// The newest message, while the topic is read.
    latest: Option<Arc<Frame>>,
}

/// A topic of the realm.
#[derive(Default)]
struct Topic {
    channels: Vec<Channel>,
    /// When a page last requested its thumbnail. None: never.
    looked_at: Option<Instant>,
    /// Why the server cannot read the topic. None: it can, or has not tried.
    refused: Option<String>,
    /// How many messages were larger than the limit and could not be down-sampled.
    too_large: u64,
}

impl Topic {
    /// Whether to read the topic: it has a viewer, or no channel yet, since the first message decides on the schema.
    fn is_wanted(&self) -> bool {
        let mut channels = self.channels.iter();
        self.channels.is_empty()
            || channels.any(|channel| channel.subscriptions > 0)
            || self
                .looked_at
                .is_some_and(|at| at.elapsed() < THUMBNAIL_KEPT)
    }
}

#[derive(Default)]
struct HubState {
    topics: BTreeMap<String, Topic>,
    published: BTreeSet<String>,
    is_daemon_there: bool,
    /// The number of the last channel.
    channel: u32,
    clients: BTreeMap<u64, Arc<Outbox>>,
    client: u64,
    sent: u64,
    replaced: u64,
    /// The users of each topic, as clients that follow the graph know them.
    graph: BTreeMap<String, protocol::Users>,
}

impl HubState {
    fn channel(&mut self, id: u32) -> Option<(&str, &mut Channel)> {
        let mut topics = self.topics.iter_mut();
        topics.find_map(|(name, topic)| {
            let channel = topic.channels.iter_mut().find(|known| known.id == id)?;
            Some((name.as_str(), channel))
        })
    }
}

fn too_large(topic: &str) -> String {
    let text = format!("messages of topic '{topic}' are larger than --max-bytes, and no images: they are not shown");
    protocol::warning(&text)
}

/// A topic on the page, besides its figures.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) topic: String,
    /// The schemas of its channels.
    pub(crate) schemas: Vec<&'static str>,
    pub(crate) refused: Option<String>,
    pub(crate) too_large: u64,
}

/// Counters of the server.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) clients: usize,
    pub(crate) clients_max: usize,
    pub(crate) rate: f64,
    pub(crate) max_bytes: u64,
    /// Messages that were put into outboxes of clients.
    pub(crate) sent: u64,
    /// Messages that a newer one replaced before a slow client got them.
    pub(crate) replaced: u64,
}

pub(crate) struct Hub {
    state: Mutex<HubState>,
    changed: Condvar,
    clients_max: usize,
}

impl Hub {
    pub(crate) fn new(clients_max: usize) -> Hub {
        Hub {
            state: Mutex::default(),
            changed: Condvar::new(),
            clients_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client and announces all channels to it. None: there are too many.
    pub(crate) fn join(&self, outbox: &Arc<Outbox>) -> Option<u64> {
        let mut state = self.lock();
        if state.clients.len() >= self.clients_max {
            return None;
        }
        let topics = state.topics.iter();
        let channels = topics.flat_map(|(name, topic)| {
            let channels = topic.channels.iter();
            channels
                .map(|channel| protocol::channel(channel.id, name, channel.kind, &channel.metadata))
        });
        let channels: Vec<Value> = channels.collect();
        if !channels.is_empty() {
            outbox.announce(protocol::advertise(&channels));
        }
        state.client += 1;
        let id = state.client;
        state.clients.insert(id, outbox.clone());
        Some(id)
    }

    pub(crate) fn leave(&self, client: u64) {
        let mut state = self.lock();
        let Some(outbox) = state.clients.remove(&client) else {
            return;
        };
        for id in outbox.end() {
            if let Some((_, channel)) = state.channel(id) {
                channel.subscriptions -= 1;
            }
        }
    }

    /// Subscribes a client to a channel. The client first gets the channel's newest message, if there is one. The outer error is a text
    /// for the client; the inner one is the outbox's refusal.
    pub(crate) fn subscribe(
        &self,
        outbox: &Outbox,
        wish: protocol::Subscription,
    ) -> Result<Result<(), NoRoom>, String> {
        let mut state = self.lock();
        let Some((topic, channel)) = state.channel(wish.channel_id) else {
            return Err(format!("there is no channel {}", wish.channel_id));
        };
        let topic = topic.to_owned();
        if let Err(no_room) = outbox.subscribe(wish.id, channel.id) {
            return Ok(Err(no_room));
        }
        channel.subscriptions += 1;
        if let Some(latest) = channel.latest.clone() {
            outbox.offer(wish.channel_id, &latest);
            state.sent += 1;
        }
        if state
            .topics
            .get(&topic)
            .is_some_and(|topic| topic.too_large > 0)
        {
            outbox.announce(too_large(&topic));
        }
        drop(state);
        self.changed.notify_all();
        Ok(Ok(()))
    }

    pub(crate) fn unsubscribe(&self, outbox: &Outbox, id: u32) {
        let mut state = self.lock();
        let ended = outbox.unsubscribe(id);
        if let Some((_, channel)) = ended.and_then(|channel| state.channel(channel)) {
            channel.subscriptions -= 1;
        }
    }

    /// Starts or stops to send a client the users of each topic: at once, and whenever they change.
    pub(crate) fn follow_graph(&self, outbox: &Outbox, follows: bool) {
        let state = self.lock();
        outbox.follow_graph(follows);
        if follows && !state.graph.is_empty() {
            outbox.announce(protocol::connection_graph(&state.graph, &[]));
        }
    }

    /// Whether any client follows the users of topics.
    pub(crate) fn is_graph_followed(&self) -> bool {
        let state = self.lock();
        let mut clients = state.clients.values();
        clients.any(|outbox| outbox.follows_graph())
    }

    /// Stores the users of each topic, and sends them to the clients that follow them if they have changed.
    pub(crate) fn set_graph(&self, graph: BTreeMap<String, protocol::Users>) {
        let mut state = self.lock();
        if graph == state.graph {
            return;
        }
        let known = std::mem::replace(&mut state.graph, graph);
        let removed = known.keys().filter(|name| !state.graph.contains_key(*name));
        let removed: Vec<&str> = removed.map(String::as_str).collect();
        let update = protocol::connection_graph(&state.graph, &removed);
        let clients = state.clients.values();
        for outbox in clients.filter(|outbox| outbox.follows_graph()) {
            outbox.announce(update.clone());
        }
    }

    /// The newest image of a topic. From this call on the server reads the topic for some seconds. `Some(None)`: no image has come
    /// yet. None: there is no such topic.
    pub(crate) fn thumbnail(&self, topic: &str) -> Option<Option<Arc<Frame>>> {
        let mut state = self.lock();
        let topic = state.topics.get_mut(topic)?;
        topic.looked_at = Some(Instant::now());
        let channels = topic.channels.iter();
        let mut latest = channels.filter_map(|channel| channel.latest.clone());
        let image = latest.find(|frame| frame.image.is_some());
        drop(state);
        self.changed.notify_all();
        Some(image)
    }

    /// Waits until a topic gets a viewer, for at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        drop(self.changed.wait_timeout(self.lock(), timeout));
    }

    /// Stores the existing topics, and those of them with publishers or with messages of publishers that left. Announces to clients
    /// which channels have ended.
    pub(crate) fn set_topics(&self, names: &BTreeSet<String>, published: BTreeSet<String>) {
        let mut state = self.lock();
        (state.published, state.is_daemon_there) = (published, true);
        for name in names {
            if !state.topics.contains_key(name) {
                state.topics.insert(name.clone(), Topic::default());
            }
        }
        let mut ended = Vec::new();
        state.topics.retain(|name, topic| {
            let exists = names.contains(name);
            if !exists {
                ended.extend(topic.channels.iter().map(|channel| channel.id));
            }
            exists
        });
        if ended.is_empty() {
            return;
        }
        for outbox in state.clients.values() {
            for &id in &ended {
                outbox.forget(id);
            }
            outbox.announce(protocol::unadvertise(&ended));
        }
    }

    /// Call when the daemon does not answer.
    pub(crate) fn set_away(&self) {
        self.lock().is_daemon_there = false;
    }

    /// The topics to read, and whether the daemon answered last time. Leaves out topics with neither publishers nor history, since a
    /// subscriber would keep such a topic in existence.
    pub(crate) fn wanted(&self) -> (BTreeSet<String>, bool) {
        let state = self.lock();
        let wanted = state
            .topics
            .iter()
            .filter(|(name, topic)| topic.is_wanted() && state.published.contains(*name));
        let wanted = wanted.map(|(name, _)| name.clone()).collect();
        (wanted, state.is_daemon_there)
    }

    /// Whether a topic has a channel with this schema.
    pub(crate) fn has_channel(&self, topic: &str, kind: SchemaKind) -> bool {
        let state = self.lock();
        let topic = state.topics.get(topic);
        topic.is_some_and(|topic| topic.channels.iter().any(|channel| channel.kind == kind))
    }

    /// Creates a channel and announces it to all clients.
    pub(crate) fn add_channel(
        &self,
        name: &str,
        kind: SchemaKind,
        metadata: BTreeMap<String, String>,
    ) {
        let mut state = self.lock();
        let id = state.channel + 1;
        let Some(topic) = state.topics.get_mut(name) else {
            return;
        };
        let channel = protocol::channel(id, name, kind, &metadata);
        topic.channels.push(Channel {
            id,
            kind,
            metadata,
            subscriptions: 0,
            latest: None,
        });
        state.channel = id;
        for outbox in state.clients.values() {
            outbox.announce(protocol::advertise(std::slice::from_ref(&channel)));
        }
    }

    /// Puts a message into the outboxes of all clients that subscribe to its channel, and keeps it as the newest.
    pub(crate) fn deliver(&self, name: &str, kind: SchemaKind, frame: Frame) {
        let frame = Arc::new(frame);
        let mut state = self.lock();
        let Some(topic) = state.topics.get_mut(name) else {
            return;
        };
        let mut channels = topic.channels.iter_mut();
        let Some(channel) = channels.find(|channel| channel.kind == kind) else {
            return;
        };
        channel.latest = Some(frame.clone());
        let (id, subscriptions) = (channel.id, channel.subscriptions);
        let clients = state.clients.values();
        let replaced: u64 = clients.map(|outbox| outbox.offer(id, &frame)).sum();
        state.replaced += replaced;
        state.sent += u64::from(subscriptions);
    }

    /// Call when the server stops reading a topic: drops its newest messages, which would become old.
    pub(crate) fn close(&self, name: &str) {
        let mut state = self.lock();
        if let Some(topic) = state.topics.get_mut(name) {
            for channel in &mut topic.channels {
                channel.latest = None;
            }
        }
    }

    pub(crate) fn refuse(&self, name: &str, reason: Option<String>) {
        let mut state = self.lock();
        if let Some(topic) = state.topics.get_mut(name) {
            topic.refused = reason;
        }
    }

    /// Counts a message that is larger than the limit. Warns clients at the first one.
    pub(crate) fn count_too_large(&self, name: &str) {
        let mut state = self.lock();
        let Some(topic) = state.topics.get_mut(name) else {
            return;
        };
        topic.too_large += 1;
        if topic.too_large == 1 {
            for outbox in state.clients.values() {
                outbox.announce(too_large(name));
            }
        }
    }

    pub(crate) fn shown(&self) -> Vec<Shown> {
        let state = self.lock();
        let topics = state.topics.iter();
        let shown = topics.map(|(name, topic)| Shown {
            topic: name.clone(),
            schemas: topic
                .channels
                .iter()
                .map(|channel| channel.kind.name())
                .collect(),
            refused: topic.refused.clone(),
            too_large: topic.too_large,
        });
        shown.collect()
    }

    pub(crate) fn figures(&self, rate: f64, max_bytes: u64) -> Figures {
        let state = self.lock();
        Figures {
            clients: state.clients.len(),
            clients_max: self.clients_max,
            rate,
            max_bytes,
            sent: state.sent,
            replaced: state.replaced,
        }
    }
}
