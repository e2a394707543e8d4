//! Forwards messages of other hosts: sends each, while it arrives, to the children that its flow's tree names.
//!
//! | part | task |
//! |---|---|
//! | the link that a message arrives on | asks for its memory ([`Transit::receive`]), and reports how many bytes have arrived |
//! | one thread for all flows | owns the children's flows; sends each message in its turn, and its bytes as they arrive |
//! | the conductor | opens, closes and cuts the children's flows |
//!
//! There is a thread of its own because two links that called each other with their locks held could deadlock: messages are forwarded
//! in both directions. A large message is sent as soon as it is requested, so its bytes leave while others arrive.
//! A small one is sent when it is delivered. [`TransitFlow`] decides in what order, and how the children's flows end.

use super::host_flow::HostFlow;
use super::message::{MessageInfo, OutgoingMessage};
use super::{FlowTarget, BLOCKED_PAUSE};
use crate::event::{ConductorEvent, LinkReporter};
use crate::host_link::Sent;
use crate::lock;
use rgaps_routing::{FlowName, TransitAction, TransitFlow};
use rgaps_sync::monotonic_ns;
use rgaps_transport::machine::PrefixMemory;
use rgaps_transport::{Description, Payload};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};

/// Messages of at least this many bytes are sent while they arrive.
const GROWING_BYTES_MIN: u64 = 64 << 10;

/// A command to the thread.
pub enum TransitCommand {
    /// Send the messages of the flow with this number and topic to these hosts from now on.
    Children(u64, String, Vec<FlowTarget>),
    /// Forget the flow with this number: all of its children's flows have ended.
    Forget(u64),
    /// Of the flow with this number, the message with this sequence has this many bytes, from the first on.
    Ready(u64, u64, u64),
    /// Carry out a decision of the flow with this number.
    Act(u64, TransitAction<Arc<OutgoingMessage>>),
}

/// A flow of another host that this host forwards.
pub struct Transit {
    number: u64,
    /// The publisher's number on the origin.
    pub publisher: u64,
    commands: Sender<TransitCommand>,
    /// Reports to the conductor for the link over which the messages come.
    reporter: LinkReporter,
    /// Bytes of messages that this host holds for the flow; `bytes_max` is their limit, which a single message may exceed.
    bytes: AtomicU64,
    bytes_max: u64,
    /// Set when a message gets no memory. Freeing memory clears it, and reports [`ConductorEvent::Room`] if it was set.
    is_full: AtomicBool,
    flow: Mutex<TransitFlow<Arc<OutgoingMessage>>>,
}

/// The bytes of a message in transit, until all children have acknowledged them.
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

/// A message that arrives and is forwarded. Dropping it says that no more of it arrives in this memory; an incomplete one is a gap only
/// once its origin gives it up.
pub struct InTransit {
    /// The memory in which the message arrives.
    pub memory: Arc<PrefixMemory>,
    transit: Arc<Transit>,
    sequence: u64,
    unsent: Option<Arc<OutgoingMessage>>,
}

impl Transit {
    /// A transit with this number, for the flow of a publisher. `bytes_max`: the most bytes of its messages that may be here at a time.
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
            flow: Mutex::default(),
        })
    }

    /// Sends the flow's decision to the thread, with the flow's lock held, so that decisions arrive in order.
    fn decide<R>(
        &self,
        call: impl FnOnce(
            &mut TransitFlow<Arc<OutgoingMessage>>,
            &mut dyn FnMut(TransitAction<Arc<OutgoingMessage>>),
        ) -> R,
    ) -> R {
        call(&mut lock(&self.flow), &mut |action| {
            if let TransitAction::Break = action {
                let broken = ConductorEvent::TransitBroken(self.number);
                return self.reporter.report(broken);
            }
            // Sending does not fail: the thread ends after all flows.
            let _ = self.commands.send(TransitCommand::Act(self.number, action));
        })
    }

    /// Returns memory for a message that is about to arrive. None: there is none now.
    pub fn receive(
        self: &Arc<Self>,
        sequence: u64,
        description: &[u8],
        bytes: u64,
    ) -> Option<InTransit> {
        let here = self.bytes.load(Ordering::Acquire);
        // A single message may be larger than the limit.
        if here > 0 && here + bytes > self.bytes_max {
            self.is_full.store(true, Ordering::Release);
            // Memory that was freed before the flag was set caused no report, so this looks again.
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
        let info = MessageInfo {
            publisher: self.publisher,
            sequence,
            meta: Description::new(description).unwrap_or_default(),
            published_ns: now_ns,
            taken_ns: now_ns,
            received_from: Some(self.reporter.source.host.clone()),
        };
        let message = OutgoingMessage::in_transit(Box::new(message), info);
        let mut in_transit = InTransit {
            memory,
            transit: self.clone(),
            sequence,
            unsent: Some(message),
        };
        if let Some(message) = in_transit.unsent.take_if(|_| is_growing) {
            self.decide(|flow, mut act| flow.begin(sequence, message, &mut act));
        }
        Some(in_transit)
    }

    /// Records that messages below `next` that have not arrived never will.
    pub fn miss(&self, next: u64) {
        self.decide(|flow, mut act| flow.miss(next, &mut act));
    }

    /// Records that no message follows.
    pub fn close(&self) {
        self.decide(|flow, mut act| flow.close(&mut act));
    }
}

impl InTransit {
    /// Call when the message is complete and has its turn: sends it, if it was not sent while it arrived.
    pub fn deliver(&mut self) {
        let unsent = self.unsent.take();
        self.transit
            .decide(|flow, mut act| flow.deliver(self.sequence, unsent, &mut act));
    }
}

impl Drop for InTransit {
    fn drop(&mut self) {
        let is_complete = self.memory.ready() == self.memory.bytes();
        let unsent = self
            .transit
            .decide(|flow, mut act| flow.dropped(self.sequence, is_complete, &mut act));
        drop(unsent);
    }
}

/// Starts the thread that sends messages on. It ends when all senders of commands are dropped.
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
    /// Messages that were not sent to this child yet.
    queue: VecDeque<Arc<OutgoingMessage>>,
    /// Messages below this sequence were sent, left out or put in the queue.
    next: u64,
    /// The child was told that no message below this sequence follows. 0: tell it again.
    announced: u64,
    is_closed: bool,
}

fn run(received: &Receiver<TransitCommand>) {
    let mut flows: BTreeMap<u64, Children> = BTreeMap::new();
    let mut held_up = false;
    loop {
        let command = match held_up {
            true => received.recv_timeout(BLOCKED_PAUSE),
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
    match command {
        TransitCommand::Children(number, topic, all) => {
            let children = flows.entry(number).or_default();
            children.topic = topic;
            children.set(all);
        }
        TransitCommand::Forget(number) => {
            let rest = flows.remove(&number).into_iter().flat_map(|of| of.all);
            let open = rest.filter(|child| !child.is_closed);
            open.for_each(|mut child| child.cut());
        }
        TransitCommand::Ready(number, sequence, ready) => {
            for child in flows.get(&number).into_iter().flat_map(|of| &of.all) {
                child.for_flows(|link, flow| link.ready(flow, sequence, ready));
            }
        }
        TransitCommand::Act(number, action) => {
            if let Some(children) = flows.get_mut(&number) {
                children.act(action);
            }
        }
    }
}

impl Children {
    fn act(&mut self, action: TransitAction<Arc<OutgoingMessage>>) {
        match action {
            TransitAction::Send(sequence, message) => {
                for child in &mut self.all {
                    child.next = child.next.max(sequence + 1);
                    child.queue.push_back(message.clone());
                }
            }
            TransitAction::GiveUp(sequence) => {
                for child in &mut self.all {
                    child.queue.retain(|of| of.info.sequence != sequence);
                    child.for_flows(|link, flow| link.give_up(flow, sequence));
                }
            }
            TransitAction::Skip(next) => {
                for child in &mut self.all {
                    child.next = child.next.max(next);
                }
            }
            TransitAction::Close => self.is_closing = true,
            // `Break` does not come here: `Transit::decide` reports it to the conductor, which cuts the children's flows.
            TransitAction::Cut | TransitAction::Break => self.all.iter_mut().for_each(Child::cut),
        }
    }

    fn set(&mut self, all: Vec<FlowTarget>) {
        let mut before = std::mem::take(&mut self.all);
        for target in all {
            let known = before
                .iter()
                .position(|child| child.flow.route.tree.root() == target.tree.root());
            let mut child = match known {
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
            };
            // An empty `begins` keeps the origin's in OPEN.
            child.flow.open_flows(|_| BTreeMap::new());
            self.all.push(child);
        }
        // Hosts that are not children in the new tree get their messages in another flow.
        before.iter_mut().for_each(Child::cut);
    }

    /// Sends queued messages as far as the children's links have room. If the flow is closing, closes those of children without a queue.
    fn send(&mut self) {
        for child in self.all.iter_mut().filter(|child| !child.is_closed) {
            child.send(&self.topic);
            child.flow.settle();
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
            // Announces the messages that were left out after the last one that was sent.
            self.announced = self.next;
            self.for_flows(|link, flow| link.skip(flow, self.next));
        }
    }

    /// Ends the child's flow at once: messages in the queue or on their way to the child are dropped.
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

    /// The sequences of the messages that were sent since the last call.
    fn sent(commands: &Receiver<TransitCommand>) -> Vec<u64> {
        let messages = commands.try_iter().filter_map(|command| match command {
            TransitCommand::Act(_, TransitAction::Send(sequence, _)) => Some(sequence),
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
        // Message 3 is missed.
        let mut fifth = receive(4, LARGE);
        assert!(sent(&sides.commands).is_empty());
        sides.transit.miss(4);
        fifth.deliver();
        assert_eq!(sent(&sides.commands), [4]);
    }

    #[test]
    fn a_message_that_went_on_in_part_is_a_gap_only_when_its_origin_gives_it_up() {
        use TransitAction::{GiveUp, Send, Skip};
        use TransitCommand::Act;
        let sides = begin(u64::MAX);
        drop(sides.transit.receive(0, &[], LARGE));
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(commands[..], [Act(_, Send(..))]));
        sides.transit.miss(1);
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(commands[..], [Act(1, GiveUp(0)), Act(1, Skip(1))]));
        // The memory of a message that is missed may outlive the report that it is missed.
        let second = sides.transit.receive(1, &[], LARGE);
        sides.transit.miss(2);
        drop(second);
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(
            commands[..],
            [Act(_, Send(..)), Act(1, Skip(2)), Act(1, GiveUp(1))]
        ));
    }

    #[test]
    fn the_end_of_a_flow_cuts_what_went_on_in_part() {
        use TransitAction::{Close, Cut, Send};
        use TransitCommand::Act;
        let sides = begin(u64::MAX);
        drop(sides.transit.receive(0, &[], LARGE));
        sides.transit.close();
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(commands[..], [Act(_, Send(..)), Act(1, Cut)]));
        let sides = begin(u64::MAX);
        let first = sides.transit.receive(0, &[], LARGE);
        sides.transit.close();
        drop(first);
        let commands: Vec<TransitCommand> = sides.commands.try_iter().collect();
        assert!(matches!(
            commands[..],
            [Act(_, Send(..)), Act(1, Close), Act(1, Cut)]
        ));
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
