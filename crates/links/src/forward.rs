//! The sending side: one subscriber per topic that other hosts want. A sample goes to the link of each of
//! those hosts, and is held until none of them needs it any more; nothing is copied for that.
//!
//! A link that has no room for a reliable host holds the topic up, no other topic; for a best-effort host
//! the message is left out, which the receiver is told.

use crate::land::Ours;
use crate::wire::{to_wall, Meta};
use rgaps::{Node, RecvError, Sample, Subscriber, Token, WaitSet};
use rgaps_transport::{Flow, Link, Payload, Sent};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::Duration;

/// Messages of a topic before others get their turn.
const TURN: usize = 32;
/// How soon is looked again at topics that are held up.
const HELD_UP: Duration = Duration::from_millis(1);
/// How soon orders are looked for.
const LOOK: Duration = Duration::from_millis(10);
/// The same with many topics, each of which costs something to look at.
const LOOK_MANY: Duration = Duration::from_millis(50);
/// From here on there are many.
const MANY: usize = 64;

/// A host that a topic goes to.
#[derive(Clone)]
pub struct Route {
    /// The link with it.
    pub link: Link,
    /// `Flow::topic` of its flows.
    pub stream: u64,
    /// Somebody there is not to miss anything.
    pub reliable: bool,
    /// What was sent.
    pub sent: Arc<Departed>,
}

/// Counts of what went to a host.
#[derive(Debug, Default)]
pub struct Departed {
    /// Messages.
    pub messages: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Messages for which there was no room.
    pub left_out: AtomicU64,
}

/// What a forwarder is to do.
pub enum Order {
    /// A topic goes to these hosts. With a subscriber, it takes the place of the former one.
    Topic(String, Option<Subscriber>, Vec<Route>),
    /// Publishers of a topic that are gone.
    Gone(String, Vec<u64>),
    /// A topic goes nowhere any more.
    End(String),
}

/// The bytes of a sample.
struct Held {
    sample: Sample,
    bytes: usize,
}

impl Payload for Held {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        if self.sample.is_empty() {
            return &[0][from..to];
        }
        let bytes = self.sample.as_slice();
        &bytes.expect("it was looked at when it was taken, and stays")[from..to]
    }
}

/// A message that is on its way to the links.
struct Outgoing {
    held: Arc<Held>,
    meta: Vec<u8>,
    publisher: u64,
    sequence: u64,
    /// Routes that have had it, by their streams.
    done: Vec<u64>,
}

struct Going {
    route: Route,
    /// Per publisher, what it gets next.
    next: HashMap<u64, u64>,
}

impl Going {
    fn flow(&self, publisher: u64) -> Flow {
        Flow {
            topic: self.route.stream,
            incarnation: publisher,
        }
    }

    /// False: not now.
    fn offer(&mut self, message: &Outgoing) -> bool {
        let (publisher, sequence) = (message.publisher, message.sequence);
        let flow = self.flow(publisher);
        let Route {
            link,
            reliable,
            sent,
            ..
        } = &self.route;
        let next = self.next.entry(publisher).or_insert_with(|| {
            link.open(flow, sequence, *reliable);
            sequence
        });
        // Of a subscriber that began again where the history does.
        if sequence < *next {
            return true;
        }
        match link.send(flow, sequence, message.held.clone(), &message.meta) {
            Sent::Taken => {
                let bytes = message.held.bytes as u64;
                sent.messages.fetch_add(1, Ordering::Relaxed);
                sent.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Sent::Full if *reliable => return false,
            Sent::Full | Sent::Never => {
                sent.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
        *next = sequence + 1;
        true
    }

    fn close(&mut self, publisher: u64) {
        if self.next.remove(&publisher).is_some() {
            self.route.link.close_flow(self.flow(publisher));
        }
    }

    fn close_all(&mut self) {
        for publisher in self.next.keys().copied().collect::<Vec<_>>() {
            self.close(publisher);
        }
    }
}

struct Topic {
    subscriber: Subscriber,
    /// In the wait set.
    token: Option<Token>,
    going: Vec<Going>,
    /// Taken, and its bytes are not there yet.
    unfinished: Option<Sample>,
    outgoing: Option<Outgoing>,
    gone: Vec<u64>,
    /// The next look may find something without a doorbell.
    held_up: bool,
}

/// A thread that forwards topics.
pub struct Forwarder {
    orders: Sender<Order>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Forwarder {
    /// Starts it. It ends when it is dropped.
    pub fn start(node: &Node, ours: Ours) -> std::io::Result<Forwarder> {
        let (orders, received) = std::sync::mpsc::channel();
        let set = node.wait_set();
        let thread = std::thread::Builder::new()
            .name("rgaps-forward".to_owned())
            .spawn(move || {
                let topics = BTreeMap::new();
                Thread { set, topics, ours }.run(&received);
            })?;
        Ok(Forwarder {
            orders,
            thread: Some(thread),
        })
    }

    /// Has it do something, soon.
    pub fn order(&self, order: Order) {
        if self.orders.send(order).is_err() {
            tracing::error!("the thread that forwards topics has ended");
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.orders = std::sync::mpsc::channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Thread {
    set: WaitSet,
    topics: BTreeMap<String, Topic>,
    ours: Ours,
}

impl Thread {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            let first = match self.topics.is_empty() {
                true => match orders.recv() {
                    Ok(order) => Some(order),
                    Err(_) => return,
                },
                false => match orders.recv_timeout(Duration::ZERO) {
                    Ok(order) => Some(order),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return self.end(),
                },
            };
            if let Some(order) = first {
                self.obey(order);
            }
            while let Ok(order) = orders.try_recv() {
                self.obey(order);
            }
            let mut held_up = false;
            let mut more = false;
            for (name, topic) in &mut self.topics {
                more |= topic.forward(name, &self.ours);
                held_up |= topic.held_up;
                match (topic.held_up, topic.token) {
                    // It would not let us sleep.
                    (true, Some(token)) => {
                        self.set.detach(token);
                        topic.token = None;
                    }
                    (false, None) => topic.token = self.set.attach(&topic.subscriber).ok(),
                    _ => {}
                }
            }
            if !more {
                self.sleep(held_up);
            }
        }
    }

    fn sleep(&mut self, held_up: bool) {
        let limit = match (held_up, self.topics.len() > MANY) {
            (true, _) => HELD_UP,
            (false, true) => LOOK_MANY,
            (false, false) => LOOK,
        };
        let waited = match self.topics.values().any(|topic| topic.token.is_some()) {
            true => self.set.wait(limit).is_ok(),
            false => false,
        };
        if !waited {
            std::thread::sleep(limit);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Topic(name, subscriber, routes) => self.set_topic(name, subscriber, routes),
            Order::Gone(name, publishers) => {
                if let Some(topic) = self.topics.get_mut(&name) {
                    topic.gone.extend(publishers);
                    topic.close_gone();
                }
            }
            Order::End(name) => {
                if let Some(topic) = self.topics.remove(&name) {
                    self.take_leave(topic);
                }
            }
        }
    }

    fn set_topic(&mut self, name: String, subscriber: Option<Subscriber>, routes: Vec<Route>) {
        match (self.topics.get_mut(&name), subscriber) {
            (Some(topic), subscriber) => {
                if let Some(subscriber) = subscriber {
                    if let Some(token) = topic.token.take() {
                        self.set.detach(token);
                    }
                    // What the former one had taken goes first; the new one begins before it ended.
                    topic.subscriber = subscriber;
                }
                topic.set_routes(routes);
            }
            (None, Some(subscriber)) => {
                let mut topic = Topic {
                    subscriber,
                    token: None,
                    going: Vec::new(),
                    unfinished: None,
                    outgoing: None,
                    gone: Vec::new(),
                    held_up: false,
                };
                topic.set_routes(routes);
                self.topics.insert(name, topic);
            }
            (None, None) => tracing::error!(name, "a topic without a subscriber"),
        }
    }

    fn take_leave(&mut self, mut topic: Topic) {
        if let Some(token) = topic.token.take() {
            self.set.detach(token);
        }
        topic.going.iter_mut().for_each(Going::close_all);
    }

    fn end(mut self) {
        for (_, topic) in std::mem::take(&mut self.topics) {
            self.take_leave(topic);
        }
    }
}

impl Topic {
    fn set_routes(&mut self, routes: Vec<Route>) {
        let mut former = std::mem::take(&mut self.going);
        for route in routes {
            let same = former
                .iter()
                .position(|going| going.route.stream == route.stream);
            let next = same.map(|at| former.swap_remove(at).next);
            self.going.push(Going {
                route,
                next: next.unwrap_or_default(),
            });
        }
        former.iter_mut().for_each(Going::close_all);
    }

    /// Flows of publishers that are gone end when all that was taken of theirs is sent.
    fn close_gone(&mut self) {
        let waits = self.outgoing.as_ref().map(|message| message.publisher);
        let unfinished = self.unfinished.as_ref().map(Sample::publisher_id);
        let mut gone = std::mem::take(&mut self.gone);
        gone.retain(|publisher| {
            if waits == Some(*publisher) || unfinished == Some(*publisher) {
                return true;
            }
            self.going
                .iter_mut()
                .for_each(|going| going.close(*publisher));
            false
        });
        self.gone = gone;
    }

    /// Sends what there is. True: there may be more.
    fn forward(&mut self, name: &str, ours: &Ours) -> bool {
        self.held_up = false;
        for _ in 0..TURN {
            if !self.send() {
                self.held_up = true;
                return false;
            }
            if !self.gone.is_empty() {
                self.close_gone();
            }
            let sample = match self.unfinished.take() {
                Some(sample) => Ok(Some(sample)),
                None => self.subscriber.try_recv(),
            };
            let sample = match sample {
                Ok(Some(sample)) => sample,
                Ok(None) => return false,
                // What the links hold comes back when it is acknowledged.
                Err(RecvError::TooManyHeld { .. } | RecvError::Client(_)) => {
                    self.held_up = true;
                    return false;
                }
                Err(error) => {
                    tracing::warn!(%error, topic = name, "a message does not leave this host");
                    continue;
                }
            };
            if ours.contains(sample.publisher_id()) {
                continue;
            }
            match sample.is_ready() {
                Ok(true) => {}
                Ok(false) => {
                    self.unfinished = Some(sample);
                    self.held_up = true;
                    return false;
                }
                Err(error) => {
                    tracing::warn!(%error, topic = name, "a message does not leave this host");
                    continue;
                }
            }
            if let Err(error) = sample.as_slice() {
                tracing::warn!(%error, topic = name, "a message does not leave this host");
                continue;
            }
            let meta = Meta {
                bytes: sample.len(),
                tag: sample.tag(),
                published_ns: to_wall(sample.publish_ns()),
                tensor: sample.tensor().copied(),
            };
            self.outgoing = Some(Outgoing {
                publisher: sample.publisher_id(),
                sequence: sample.sequence(),
                meta: meta.encode(),
                held: Arc::new(Held {
                    bytes: sample.len().max(1) as usize,
                    sample,
                }),
                done: Vec::new(),
            });
        }
        true
    }

    /// False: some route has no room for it now.
    fn send(&mut self) -> bool {
        let Some(mut message) = self.outgoing.take() else {
            return true;
        };
        let mut all = true;
        for going in &mut self.going {
            let stream = going.route.stream;
            if message.done.contains(&stream) {
                continue;
            }
            match going.offer(&message) {
                true => message.done.push(stream),
                false => all = false,
            }
        }
        if !all {
            self.outgoing = Some(message);
        }
        all
    }
}
