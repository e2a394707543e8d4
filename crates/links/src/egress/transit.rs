//! Messages of other hosts that go on from here: while one arrives, it is sent to the children that its flow's tree names.
//!
//! | who | does |
//! |---|---|
//! | the link that a message arrives on | asks for its memory ([`Transit::receive`]), and says how much of it is there |
//! | one thread for all flows | owns the children's flows; sends each message in its turn, and then what is there of it |
//! | the conductor | opens, closes and cuts the children's flows |
//!
//! The thread is one of its own because links that call each other with their locks held would wait for each other: messages go
//! on in both directions. A large message is sent as soon as it is requested, so its bytes leave while others arrive.
//! A small one is sent when it is delivered. Children get the messages of a flow in order, or not at all.
//!
//! Nothing here has to survive: what a final host has not confirmed, its origin still holds, and sends again. So a child must take
//! nothing for a gap that its origin did not leave. A message of which a part went on, and of which nothing more comes, waits: for the
//! origin to give it up, for which the child gets a gap, or for the end of its flow, which then *cuts* the child's flow before it.

use super::host_flow::HostFlow;
use super::message::{MessageInfo, OutgoingMessage, RetainedMessage};
use super::{FlowTarget, HELD_UP};
use crate::event::{ConductorEvent, LinkReporter};
use crate::host_link::Sent;
use crate::lock;
use rgaps_routing::FlowName;
use rgaps_sync::monotonic_ns;
use rgaps_transport::machine::PrefixMemory;
use rgaps_transport::{Description, Payload};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};

/// Messages from this size on are sent while they arrive.
const GROWING_BYTES_MIN: u64 = 64 << 10;

/// What the thread is to do for a flow, which has a number.
pub enum TransitCommand {
    /// The flow's topic, and the hosts that its messages go on to from now on.
    Children(u64, String, Vec<FlowTarget>),
    /// No message follows.
    Close(u64),
    /// Nothing follows, and no part of a message that is not complete.
    Cut(u64),
    /// All children's flows have ended.
    Forget(u64),
    /// A message is to be sent.
    Message(u64, OutgoingMessage),
    /// So many bytes of a message are there.
    Ready(u64, u64, u64),
    /// Its origin has given up a message that was sent in part.
    GiveUp(u64, u64),
    /// Messages below this one that were not sent never come.
    Skip(u64, u64),
}

/// A flow of another host whose messages go on from here.
pub struct Transit {
    number: u64,
    /// Their publisher, on the host that they come from.
    pub publisher: u64,
    commands: Sender<TransitCommand>,
    /// Of the link that they come over.
    reporter: LinkReporter,
    /// Bytes of messages that are here, and how many there may be.
    bytes: AtomicU64,
    bytes_max: u64,
    /// A message was refused memory.
    is_full: AtomicBool,
    order: Mutex<Order>,
}

#[derive(Default)]
struct Order {
    /// The next message to send.
    next: u64,
    /// Messages that wait for those before them.
    reordered: BTreeMap<u64, OutgoingMessage>,
    /// Messages below this one were delivered here, or never come.
    settled: u64,
    /// Messages that went on in part, and of which nothing more comes: whether their origin has given them up is not known.
    incomplete: BTreeSet<u64>,
    is_closed: bool,
}

/// The bytes of a message in transit, until all children have them.
struct TransitMessage {
    memory: Arc<PrefixMemory>,
    transit: Arc<Transit>,
}

impl Payload for TransitMessage {
    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn ready(&self) -> usize {
        self.memory.ready()
    }

    fn slice(&self, from: usize, to: usize) -> &[u8] {
        self.memory.slice(from, to)
    }
}

impl Drop for TransitMessage {
    fn drop(&mut self) {
        let transit = &self.transit;
        let bytes = self.memory.bytes() as u64;
        transit.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if transit.is_full.swap(false, Ordering::AcqRel) {
            transit.reporter.report(ConductorEvent::Room);
        }
    }
}

/// A message that arrives and goes on. Dropped before it is complete, it is given up.
pub struct InTransit {
    /// Where it arrives.
    pub memory: Arc<PrefixMemory>,
    transit: Arc<Transit>,
    sequence: u64,
    unsent: Option<OutgoingMessage>,
}

impl Transit {
    /// One with this number, of a publisher whose messages come over a link. `bytes_max`: more are not here at a time.
    pub fn new(
        (number, publisher): (u64, u64),
        commands: Sender<TransitCommand>,
        reporter: LinkReporter,
        bytes_max: u64,
    ) -> Arc<Transit> {
        Arc::new(Transit {
            number,
            publisher,
            commands,
            reporter,
            bytes: AtomicU64::new(0),
            bytes_max,
            is_full: AtomicBool::new(false),
            order: Mutex::default(),
        })
    }

    fn command(&self, command: TransitCommand) {
        // The thread ends after all flows.
        let _ = self.commands.send(command);
    }

    /// Memory for a message that is about to arrive; none now.
    pub fn receive(
        self: &Arc<Self>,
        sequence: u64,
        description: &[u8],
        bytes: u64,
    ) -> Option<InTransit> {
        let here = self.bytes.load(Ordering::Acquire);
        // One message may be larger than what there may be.
        if here > 0 && here + bytes > self.bytes_max {
            self.is_full.store(true, Ordering::Release);
            // What freed memory before did not know that.
            if self.bytes.load(Ordering::Acquire) > 0 {
                return None;
            }
        }
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        let is_growing = bytes >= GROWING_BYTES_MIN;
        let (number, commands) = (self.number, self.commands.clone());
        let memory = PrefixMemory::new(bytes as usize, move |ready| {
            if is_growing {
                let _ = commands.send(TransitCommand::Ready(number, sequence, ready as u64));
            }
        });
        let message = TransitMessage {
            memory: memory.clone(),
            transit: self.clone(),
        };
        let now_ns = monotonic_ns();
        let message = OutgoingMessage {
            held: RetainedMessage::in_transit(Box::new(message)),
            info: Arc::new(MessageInfo {
                publisher: self.publisher,
                sequence,
                meta: Description::new(description).unwrap_or_default(),
                published_ns: now_ns,
                taken_ns: now_ns,
                received_from: Some(self.reporter.host().to_owned()),
            }),
        };
        let mut in_transit = InTransit {
            memory,
            transit: self.clone(),
            sequence,
            unsent: Some(message),
        };
        if is_growing {
            self.send(in_transit.unsent.take());
        }
        Some(in_transit)
    }

    fn send(&self, message: Option<OutgoingMessage>) {
        let mut order = lock(&self.order);
        if let Some(message) = message {
            order.reordered.insert(message.info.sequence, message);
        }
        let Order {
            next, reordered, ..
        } = &mut *order;
        while reordered
            .first_key_value()
            .is_some_and(|(first, _)| first <= next)
        {
            if let Some((sequence, message)) = reordered.pop_first() {
                *next = (*next).max(sequence + 1);
                self.command(TransitCommand::Message(self.number, message));
            }
        }
    }

    /// Messages below `next` that have not come never come.
    pub fn miss(&self, next: u64) {
        let mut order = lock(&self.order);
        order.next = order.next.max(next);
        order.settled = order.settled.max(next);
        let incomplete = order.incomplete.split_off(&next);
        let given_up = std::mem::replace(&mut order.incomplete, incomplete);
        drop(order);
        for sequence in given_up {
            self.command(TransitCommand::GiveUp(self.number, sequence));
        }
        self.command(TransitCommand::Skip(self.number, next));
        self.send(None);
    }

    /// No message follows.
    pub fn close(&self) {
        let mut order = lock(&self.order);
        order.is_closed = true;
        let is_whole = order.incomplete.is_empty();
        drop(order);
        self.command(match is_whole {
            true => TransitCommand::Close(self.number),
            false => TransitCommand::Cut(self.number),
        });
    }
}

impl InTransit {
    /// It is complete, and its turn: it is sent, if it was not.
    pub fn deliver(&mut self) {
        let transit = &self.transit;
        let mut order = lock(&transit.order);
        order.settled = order.settled.max(self.sequence + 1);
        let is_broken = order.incomplete.contains(&self.sequence);
        drop(order);
        if is_broken {
            let broken = ConductorEvent::TransitBroken(transit.number);
            transit.reporter.report(broken);
        }
        if let Some(message) = self.unsent.take() {
            transit.send(Some(message));
        }
    }
}

impl Drop for InTransit {
    fn drop(&mut self) {
        let (number, sequence) = (self.transit.number, self.sequence);
        let is_complete = self.memory.ready() == self.memory.bytes();
        let mut order = lock(&self.transit.order);
        let unsent = order.reordered.remove(&sequence);
        let is_sent = order.next > sequence;
        let command = match (order.settled > sequence, order.is_closed) {
            _ if is_complete || !is_sent => None,
            (true, _) => Some(TransitCommand::GiveUp(number, sequence)),
            (false, true) => Some(TransitCommand::Cut(number)),
            (false, false) => {
                order.incomplete.insert(sequence);
                None
            }
        };
        drop(order);
        drop(unsent);
        command.into_iter().for_each(|of| self.transit.command(of));
    }
}

/// Starts the thread that sends messages on. It ends when nobody can tell it anything any more.
pub fn start_transit() -> std::io::Result<Sender<TransitCommand>> {
    let (commands, received) = channel();
    std::thread::Builder::new()
        .name("rgaps-transit".to_owned())
        .spawn(move || run(&received))?;
    Ok(commands)
}

/// The children of a flow.
#[derive(Default)]
struct Children {
    topic: String,
    all: Vec<Child>,
    is_closing: bool,
}

struct Child {
    flow: HostFlow,
    /// Messages that are not sent yet.
    queue: VecDeque<Arc<OutgoingMessage>>,
    /// All below it is sent, left out or in the queue; and the part of that which its flow knows of.
    next: u64,
    announced: u64,
    is_closed: bool,
}

fn run(received: &Receiver<TransitCommand>) {
    let mut flows: BTreeMap<u64, Children> = BTreeMap::new();
    let mut held_up = false;
    loop {
        let command = match held_up {
            true => received.recv_timeout(HELD_UP),
            false => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match command {
            Ok(command) => perform(&mut flows, command),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Ok(command) = received.try_recv() {
            perform(&mut flows, command);
        }
        held_up = false;
        for children in flows.values_mut() {
            children.send();
            held_up |= children.all.iter().any(|child| !child.queue.is_empty());
        }
    }
}

fn perform(flows: &mut BTreeMap<u64, Children>, command: TransitCommand) {
    let mut each = |number, act: &mut dyn FnMut(&mut Child)| {
        let children = flows.get_mut(&number).into_iter();
        children.flat_map(|of| &mut of.all).for_each(act);
    };
    match command {
        TransitCommand::Children(number, topic, all) => {
            let children = flows.entry(number).or_default();
            children.topic = topic;
            children.set(all);
        }
        TransitCommand::Close(number) => {
            if let Some(children) = flows.get_mut(&number) {
                children.is_closing = true;
            }
        }
        TransitCommand::Cut(number) => each(number, &mut |child| child.cut()),
        TransitCommand::Forget(number) => {
            let rest = flows.remove(&number).into_iter().flat_map(|of| of.all);
            let open = rest.filter(|child| !child.is_closed);
            open.for_each(|mut child| child.cut());
        }
        TransitCommand::Message(number, message) => {
            let message = Arc::new(message);
            each(number, &mut |child| {
                child.next = child.next.max(message.info.sequence + 1);
                child.queue.push_back(message.clone());
            });
        }
        TransitCommand::Ready(number, sequence, ready) => {
            each(number, &mut |child| {
                child.for_flows(|link, flow| link.ready(flow, sequence, ready));
            });
        }
        TransitCommand::GiveUp(number, sequence) => {
            each(number, &mut |child| {
                child.queue.retain(|of| of.info.sequence != sequence);
                child.for_flows(|link, flow| link.give_up(flow, sequence));
            });
        }
        TransitCommand::Skip(number, next) => {
            each(number, &mut |child| child.next = child.next.max(next));
        }
    }
}

impl Children {
    fn set(&mut self, all: Vec<FlowTarget>) {
        let mut before = std::mem::take(&mut self.all);
        for target in all {
            let known = before
                .iter()
                .position(|child| child.flow.route.tree.root() == target.tree.root());
            self.all.push(match known {
                Some(at) => {
                    let mut child = before.swap_remove(at);
                    child.flow.set_route(target);
                    child.announced = 0;
                    child
                }
                None => Child {
                    flow: HostFlow::new(target),
                    queue: VecDeque::new(),
                    next: 0,
                    announced: 0,
                    is_closed: false,
                },
            });
        }
        // Their messages come in another flow.
        before.iter_mut().for_each(Child::cut);
    }

    /// Sends what there is, as far as the children's links take it, and closes the flows of those that have all of it.
    fn send(&mut self) {
        for child in self.all.iter_mut().filter(|child| !child.is_closed) {
            child.send(&self.topic);
            if self.is_closing && child.queue.is_empty() {
                child.is_closed = true;
                child.flow.close_all();
            }
        }
    }
}

impl Child {
    fn send(&mut self, topic: &str) {
        while let Some(message) = self.queue.front() {
            if self.flow.offer(topic, message) == Sent::Full {
                return;
            }
            self.queue.pop_front();
        }
        if self.announced < self.next {
            // What was left out, if nothing was sent since.
            self.announced = self.next;
            self.for_flows(|link, flow| link.skip(flow, self.next));
        }
    }

    /// Ends its flow, whatever of it is on its way.
    fn cut(&mut self) {
        self.is_closed = true;
        self.queue.clear();
        self.for_flows(|link, flow| link.end_flow(flow, true));
    }

    fn for_flows(&self, call: impl Fn(&crate::host_link::HostLink, FlowName)) {
        let route = &self.flow.route;
        for of in &route.publishers {
            call(&route.link, self.flow.flow(of.publisher));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::SourcedEvent;

    const LARGE: u64 = GROWING_BYTES_MIN;

    struct Sides {
        transit: Arc<Transit>,
        commands: Receiver<TransitCommand>,
        events: Receiver<SourcedEvent>,
    }

    fn begin(bytes_max: u64) -> Sides {
        let (to, commands) = channel();
        let (report, events) = channel();
        let transit = Transit::new((1, 5), to, LinkReporter::new("a", report), bytes_max);
        Sides {
            transit,
            commands,
            events,
        }
    }

    /// The messages that were sent since.
    fn sent(commands: &Receiver<TransitCommand>) -> Vec<u64> {
        let messages = commands.try_iter().filter_map(|command| match command {
            TransitCommand::Message(_, message) => Some(message.info.sequence),
            _ => None,
        });
        messages.collect()
    }

    #[test]
    fn messages_go_on_in_order_and_large_ones_before_they_arrive() {
        let sides = begin(u64::MAX);
        let receive = |sequence, bytes| sides.transit.receive(sequence, &[], bytes).unwrap();
        let _first = receive(0, LARGE);
        assert_eq!(sent(&sides.commands), [0]);
        let _third = receive(2, LARGE);
        let mut second = receive(1, 1);
        assert!(sent(&sides.commands).is_empty());
        second.deliver();
        assert_eq!(sent(&sides.commands), [1, 2]);
        // The next one is missed.
        let mut fifth = receive(4, LARGE);
        assert!(sent(&sides.commands).is_empty());
        sides.transit.miss(4);
        fifth.deliver();
        assert_eq!(sent(&sides.commands), [4]);
    }

    #[test]
    fn a_message_that_went_on_in_part_is_a_gap_only_when_its_origin_gives_it_up() {
        use TransitCommand::{GiveUp, Message, Skip};
        let sides = begin(u64::MAX);
        drop(sides.transit.receive(0, &[], LARGE));
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(commands[..], [Message(..)]));
        sides.transit.miss(1);
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(commands[..], [GiveUp(1, 0), Skip(1, 1)]));
        // Its memory may outlive that.
        let second = sides.transit.receive(1, &[], LARGE);
        sides.transit.miss(2);
        drop(second);
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(
            commands[..],
            [Message(..), Skip(1, 2), GiveUp(1, 1)]
        ));
    }

    #[test]
    fn the_end_of_a_flow_cuts_what_went_on_in_part() {
        use TransitCommand::{Close, Cut, Message};
        let sides = begin(u64::MAX);
        drop(sides.transit.receive(0, &[], LARGE));
        sides.transit.close();
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(commands[..], [Message(..), Cut(1)]));
        let sides = begin(u64::MAX);
        let first = sides.transit.receive(0, &[], LARGE);
        sides.transit.close();
        drop(first);
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(commands[..], [Message(..), Close(1), Cut(1)]));
    }

    #[test]
    fn children_need_another_flow_if_a_message_that_went_on_in_part_comes_once_more() {
        let sides = begin(u64::MAX);
        drop(sides.transit.receive(0, &[], LARGE));
        sides.transit.receive(0, &[], LARGE).unwrap().deliver();
        let (_, event) = sides.events.try_recv().unwrap();
        assert!(matches!(event, ConductorEvent::TransitBroken(1)));
    }

    #[test]
    fn messages_wait_for_memory_until_those_before_them_are_gone() {
        let sides = begin(3 * LARGE / 2);
        let first = sides.transit.receive(0, &[], LARGE);
        assert!(first.is_some() && sides.transit.receive(1, &[], LARGE).is_none());
        assert!(sides.events.try_recv().is_err());
        assert_eq!(sent(&sides.commands), [0]);
        let (source, event) = sides.events.try_recv().unwrap();
        assert!(source.unwrap().host == "a" && matches!(event, ConductorEvent::Room));
        assert!(sides.transit.receive(1, &[], LARGE).is_some());
    }
}
