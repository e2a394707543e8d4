//! The sending side: one subscriber per topic that other hosts want. A sample goes to the link of each of
//! those hosts, and is held until none of them needs it any more; nothing is copied for that.
//!
//! A link that has no room for a reliable host holds the topic up, no other topic; for a best-effort host
//! the message is left out, which the receiver is told.

use crate::figures::{Carried, TimesOut};
use crate::land::Ours;
use crate::notes::Notes;
use crate::wire::{monotonic_ns, to_wall, Meta};
use rgaps::{Node, RecvError, Sample, Subscriber, Token, WaitSet};
use rgaps_transport::{Flow, Link, Payload, Rate, Sent};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// What was not.
    pub notes: Arc<Notes>,
    /// What may go.
    pub limits: Limits,
}

/// What of a topic may go to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The host has no place for it now.
    pub paused: bool,
    /// Publishers whose messages do not go there.
    pub barred: BTreeSet<u64>,
    /// The quota that the rest is of.
    pub quota: String,
    /// The longest message.
    pub message_max: Option<u64>,
    /// Bytes a second.
    pub rate: Option<u64>,
    /// Bytes of publishers' messages that are held for that host at once.
    pub staging: BTreeMap<u64, u64>,
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
    /// How long it took.
    pub times: TimesOut,
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
pub struct Held {
    sample: Sample,
    bytes: usize,
    /// Bytes that were seen to be there.
    ready: AtomicUsize,
}

impl Held {
    /// How many bytes are there now, of a message that a GPU still copies down.
    fn look(&self) -> Result<usize, RecvError> {
        let ready = match self.sample.ready_bytes()? {
            all if all == self.sample.len() => self.bytes,
            some => some as usize,
        };
        // Release: whoever reads so many bytes finds them, as we have.
        self.ready.fetch_max(ready, Ordering::Release);
        Ok(ready)
    }
}

impl Payload for Held {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn ready(&self) -> usize {
        self.ready.load(Ordering::Acquire)
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        if self.sample.is_empty() {
            return &[0][from..to];
        }
        let bytes = self.sample.ready_slice();
        &bytes.expect("it was looked at when it was taken, and stays")[from..to]
    }
}

/// A message that goes to the links while it is copied down.
struct Growing {
    held: Arc<Held>,
    publisher: u64,
    sequence: u64,
    /// What the links know.
    told: usize,
}

/// How soon is looked at messages that grow: soon where they did just now, seldom where they wait for other work.
const GROWS: Duration = Duration::from_micros(30);

/// A message that is on its way to the links.
struct Outgoing {
    held: Arc<Held>,
    meta: Vec<u8>,
    /// When it was published, and taken.
    published_ns: u64,
    taken_ns: u64,
    publisher: u64,
    sequence: u64,
    /// Routes that have had it, by their streams.
    done: Vec<u64>,
}

struct Going {
    route: Route,
    /// Its bytes a second, by this clock.
    rate: Option<Rate>,
    clock: Instant,
    /// Per publisher, what it gets next.
    next: HashMap<u64, u64>,
}

impl Going {
    fn new(route: Route) -> Going {
        let mut going = Going {
            rate: None,
            clock: Instant::now(),
            next: HashMap::new(),
            route,
        };
        going.set_rate();
        going
    }

    /// Goes on with other limits.
    fn set_route(&mut self, route: Route) {
        self.route = route;
        self.set_rate();
    }

    fn set_rate(&mut self) {
        let now = self.now_ns();
        let known = self.rate.map(|rate| rate.bytes_s());
        if known != self.route.limits.rate {
            self.rate = self.route.limits.rate.map(|rate| Rate::new(rate, now));
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn flow(&self, publisher: u64) -> Flow {
        Flow {
            topic: self.route.stream,
            incarnation: publisher,
        }
    }

    /// False: not now.
    fn offer(&mut self, topic: &str, message: &Outgoing) -> bool {
        let (publisher, sequence) = (message.publisher, message.sequence);
        let flow = self.flow(publisher);
        let now_ns = self.now_ns();
        let Route {
            link,
            reliable,
            sent,
            notes,
            limits,
            ..
        } = &self.route;
        if limits.paused || limits.barred.contains(&publisher) {
            return true;
        }
        let bytes = message.held.bytes as u64;
        if limits.message_max.is_some_and(|max| bytes > max) {
            let why = format!(
                "quota '{}': message_max: a message of {bytes} bytes",
                limits.quota
            );
            if notes.refused(topic, 1, &why) {
                tracing::warn!(topic, "messages do not leave this host: {why}");
            }
            sent.left_out.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        if let Some(rate) = &mut self.rate {
            if !rate.is_open(now_ns) {
                if !*reliable {
                    sent.left_out.fetch_add(1, Ordering::Relaxed);
                }
                return !*reliable;
            }
        }
        let staging = limits.staging.get(&publisher).copied();
        let next = self.next.entry(publisher).or_insert_with(|| {
            link.open_within(flow, sequence, *reliable, staging.unwrap_or(u64::MAX));
            sequence
        });
        // Of a subscriber that began again where the history does.
        if sequence < *next {
            return true;
        }
        let carried = Carried::new(message.held.clone(), sent.clone(), message.taken_ns);
        match link.send(flow, sequence, carried, &message.meta) {
            Sent::Taken => {
                if let Some(rate) = &mut self.rate {
                    rate.spend(bytes);
                }
                sent.times.take.span(message.published_ns, message.taken_ns);
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
    /// Sent, and not whole yet.
    growing: Vec<Growing>,
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
        let mut pause = GROWS;
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
            let mut growing = false;
            let mut grew = false;
            for (name, topic) in &mut self.topics {
                grew |= topic.grow(name);
                more |= topic.forward(name, &self.ours);
                held_up |= topic.held_up;
                growing |= !topic.growing.is_empty() || topic.unfinished.is_some();
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
            pause = match growing && !grew {
                true => (2 * pause).min(HELD_UP),
                false => GROWS,
            };
            match (more, growing) {
                (true, _) => {}
                (false, true) => self.sleep(pause),
                (false, false) => self.sleep(self.patience(held_up)),
            }
        }
    }

    fn patience(&self, held_up: bool) -> Duration {
        match (held_up, self.topics.len() > MANY) {
            (true, _) => HELD_UP,
            (false, true) => LOOK_MANY,
            (false, false) => LOOK,
        }
    }

    fn sleep(&mut self, limit: Duration) {
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
                    growing: Vec::new(),
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
            self.going.push(match same {
                Some(at) => {
                    let mut going = former.swap_remove(at);
                    going.set_route(route);
                    going
                }
                None => Going::new(route),
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
            if !self.send(name) {
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
            match sample.ready_bytes() {
                // The first part of it is enough.
                Ok(ready) if ready > 0 || sample.is_empty() => {}
                Ok(_) => {
                    self.unfinished = Some(sample);
                    self.held_up = true;
                    return false;
                }
                Err(error) => {
                    tracing::warn!(%error, topic = name, "a message does not leave this host");
                    continue;
                }
            }
            if let Err(error) = sample.ready_slice() {
                tracing::warn!(%error, topic = name, "a message does not leave this host");
                continue;
            }
            let meta = Meta {
                bytes: sample.len(),
                tag: sample.tag(),
                published_ns: to_wall(sample.publish_ns()),
                tensor: sample.tensor().copied(),
            };
            let (publisher, sequence) = (sample.publisher_id(), sample.sequence());
            let published_ns = sample.publish_ns();
            let held = Arc::new(Held {
                bytes: sample.len().max(1) as usize,
                sample,
                ready: AtomicUsize::new(0),
            });
            // What it says is the links' to hear when they have the message.
            let ready = held.look().unwrap_or(0);
            if ready < held.bytes {
                self.growing.push(Growing {
                    held: held.clone(),
                    publisher,
                    sequence,
                    told: 0,
                });
            }
            self.outgoing = Some(Outgoing {
                publisher,
                sequence,
                meta: meta.encode(),
                held,
                published_ns,
                taken_ns: monotonic_ns(),
                done: Vec::new(),
            });
        }
        true
    }

    /// Tells the links how far messages are that they have. Whether any has grown.
    fn grow(&mut self, name: &str) -> bool {
        let mut grew = false;
        let Topic {
            growing,
            going,
            outgoing,
            ..
        } = self;
        growing.retain_mut(|message| {
            let Growing {
                held,
                publisher,
                sequence,
                told,
            } = message;
            // Routes that it is still to be offered to see what is there then, but not that it never will be whole.
            let is_outgoing = outgoing
                .as_ref()
                .is_some_and(|outgoing| Arc::ptr_eq(&outgoing.held, held));
            match held.look() {
                Ok(ready) if ready > *told => {
                    *told = ready;
                    grew = true;
                    for going in going.iter() {
                        let flow = going.flow(*publisher);
                        going.route.link.more(flow, *sequence, ready as u64);
                    }
                    ready < held.bytes || is_outgoing
                }
                Ok(ready) => ready < held.bytes || is_outgoing,
                Err(error) => {
                    for going in going.iter() {
                        let flow = going.flow(*publisher);
                        going.route.link.give_up(flow, *sequence);
                    }
                    if is_outgoing {
                        *outgoing = None;
                    }
                    tracing::warn!(%error, topic = name, "a message does not leave this host");
                    false
                }
            }
        });
        grew
    }

    /// False: some route has no room for it now.
    fn send(&mut self, name: &str) -> bool {
        let Some(mut message) = self.outgoing.take() else {
            return true;
        };
        let mut all = true;
        for going in &mut self.going {
            let stream = going.route.stream;
            if message.done.contains(&stream) {
                continue;
            }
            match going.offer(name, &message) {
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
