//! What the threads share: the channels, the clients, and which topics somebody looks at.
//!
//! A topic has a channel for each type of its messages, from its first message of that type on. Locks are taken in this order: the
//! hub's, then an outbox's.

use crate::outbox::{Frame, NoRoom, Outbox};
use crate::protocol;
use rgaps_recording::Kind;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the server reads a topic after its thumbnail was asked for.
const THUMBNAIL_KEPT: Duration = Duration::from_secs(5);

struct Channel {
    id: u32,
    kind: Kind,
    metadata: BTreeMap<String, String>,
    /// Of all clients.
    subscriptions: u32,
    /// The newest message, while the topic is read.
    latest: Option<Arc<Frame>>,
}

/// What is known of a topic.
#[derive(Default)]
struct Topic {
    channels: Vec<Channel>,
    /// When its thumbnail was asked for.
    looked_at: Option<Instant>,
    /// Why it cannot be read.
    refused: Option<String>,
    /// Messages that were larger than the limit, and no images.
    too_large: u64,
}

impl Topic {
    /// Somebody looks, or its first message is not known.
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
    /// Of the last channel.
    channel: u32,
    clients: BTreeMap<u64, Arc<Outbox>>,
    client: u64,
    sent: u64,
    replaced: u64,
    /// Who uses which topic, as clients know it that follow that.
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

/// What the page says of a topic besides its figures.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) topic: String,
    /// Of its channels.
    pub(crate) schemas: Vec<&'static str>,
    pub(crate) refused: Option<String>,
    pub(crate) too_large: u64,
}

/// What the server did.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) clients: usize,
    pub(crate) clients_max: usize,
    pub(crate) rate: f64,
    pub(crate) max_bytes: u64,
    /// Messages that clients were given to send.
    pub(crate) sent: u64,
    /// Messages that a slow client did not get.
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

    /// Sends a channel's messages to a client, beginning with the newest one that is there. The error is for the client.
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

    /// Tells a client who uses which topic, now and whenever it changes, or no more.
    pub(crate) fn follow_graph(&self, outbox: &Outbox, follows: bool) {
        let state = self.lock();
        outbox.follow_graph(follows);
        if follows && !state.graph.is_empty() {
            outbox.announce(protocol::connection_graph(&state.graph, &[]));
        }
    }

    /// Whether a client wants to know who uses which topic.
    pub(crate) fn is_graph_followed(&self) -> bool {
        let state = self.lock();
        let mut clients = state.clients.values();
        clients.any(|outbox| outbox.follows_graph())
    }

    /// Who uses which topic.
    pub(crate) fn set_graph(&self, graph: BTreeMap<String, protocol::Users>) {
        let mut state = self.lock();
        if graph == state.graph {
            return;
        }
        let known = std::mem::replace(&mut state.graph, graph);
        let gone = known.keys().filter(|name| !state.graph.contains_key(*name));
        let gone: Vec<&str> = gone.map(String::as_str).collect();
        let update = protocol::connection_graph(&state.graph, &gone);
        let clients = state.clients.values();
        for outbox in clients.filter(|outbox| outbox.follows_graph()) {
            outbox.announce(update.clone());
        }
    }

    /// The newest message of an image topic, which is read for some seconds from now on. `Some(None)`: none has come yet. None:
    /// there is no such topic.
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

    /// Waits until somebody else looks, or for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        drop(self.changed.wait_timeout(self.lock(), timeout));
    }

    /// The topics that exist now, and those with publishers or with messages of publishers that left. Clients are told which
    /// channels ended.
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

    /// The daemon does not answer.
    pub(crate) fn set_away(&self) {
        self.lock().is_daemon_there = false;
    }

    /// The topics to read now, and whether the daemon answered last time. A topic without publishers is not read: its subscriber
    /// would keep it in existence.
    pub(crate) fn wanted(&self) -> (BTreeSet<String>, bool) {
        let state = self.lock();
        let wanted = state
            .topics
            .iter()
            .filter(|(name, topic)| topic.is_wanted() && state.published.contains(*name));
        let wanted = wanted.map(|(name, _)| name.clone()).collect();
        (wanted, state.is_daemon_there)
    }

    /// Whether messages of a topic have come, of which channels are made.
    pub(crate) fn has_channel(&self, topic: &str, kind: Kind) -> bool {
        let state = self.lock();
        let topic = state.topics.get(topic);
        topic.is_some_and(|topic| topic.channels.iter().any(|channel| channel.kind == kind))
    }

    /// Makes a channel and announces it.
    pub(crate) fn add_channel(&self, name: &str, kind: Kind, metadata: BTreeMap<String, String>) {
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

    /// Gives a message to all who want it.
    pub(crate) fn deliver(&self, name: &str, kind: Kind, frame: Frame) {
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

    /// The server reads a topic no more: what was its newest message becomes old.
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

    /// Counts a message that was larger than the limit, and warns clients at the first one.
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
