//! A flow at a host below the origin. Its messages arrive over a link, are delivered here if the host is final, and are forwarded to the
//! children that the tree names, as `TransitFlow` decides. The link and the children's flows are simulated.
//!
//! | event | action |
//! |---|---|
//! | OPEN | open a flow to each child that is a neighbour; report each other child as broken |
//! | a large message begins to arrive | begin to forward it |
//! | a message is complete and has its turn | deliver it here; forward it, if that has not begun; acknowledge it to the host before |
//! | the link loses its lanes | the memory of an incomplete message may be lost with them: it begins again |
//! | CLOSE | forward it to a child once that has taken all |
//! | every child has answered CLOSE | answer CLOSE, and forget the flow |
//! | the link to a child ended | drop the child; report it as broken to the host before |
//! | a child reports a host below it as broken | drop it from the tree; report it to the host before |
//! | the host before cancels the flow, or the link to it ended | close the children's flows, or cut them before an incomplete message |
//!
//! So an acknowledgement means that the message was delivered here, not that it arrived below; the final hosts confirm that. This state
//! need not survive a crash: when this host ends, the host before reports it as broken, and the origin retransmits.

use super::traffic::{FlowFrame, Record};
use rgaps_routing::{HostId, Life, TransitAction, TransitFlow, Tree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The content of OPEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowDescription {
    /// Its first message has this number, or a later one.
    pub first: u64,
    /// The receiver, and the hosts below it.
    pub tree: Tree,
    /// The number from which on each host is owed messages.
    pub begins: BTreeMap<HostId, u64>,
}

/// An arrival that waits for its turn.
enum Arrived {
    Message {
        number: u64,
        /// Set when the message is complete.
        content: Option<u64>,
        /// Whether it is forwarded while it arrives.
        is_large: bool,
        is_lost: bool,
    },
    Miss(u64),
    /// The message is missed, but its memory is not dropped yet.
    GivenUp(u64),
    Close,
}

/// A flow that a child gets.
struct Child {
    tree: Tree,
    /// Messages that its link has not taken.
    queue: VecDeque<u64>,
    /// Messages of which the child has only the beginning.
    partial: BTreeSet<u64>,
    /// Messages that the child has not acknowledged.
    flight: VecDeque<u64>,
    /// All messages below are sent, queued, or never arrive. Below `announced` the child knows so.
    next: u64,
    announced: u64,
    is_closing: bool,
    close_sent: bool,
    is_closed: bool,
}

/// A flow that arrives at this host.
pub struct Transit {
    pub from: Life,
    pub is_final: bool,
    flow: TransitFlow<()>,
    arrived: VecDeque<Arrived>,
    /// Complete messages that a child still needs, with their content.
    whole: BTreeMap<u64, u64>,
    children: Vec<Child>,
    /// The delivered position, and the position that was acknowledged to the host before.
    pub next: u64,
    acknowledged: u64,
    is_closing: bool,
}

/// Frames to send, to the host before or to children.
pub type Frames = Vec<(Life, FlowFrame)>;

impl Transit {
    /// Opens a flow, and its flows to children.
    pub fn open(
        (from, own): (Life, Life),
        description: FlowDescription,
        is_neighbour: impl Fn(Life) -> bool,
        out: &mut Frames,
    ) -> Transit {
        let FlowDescription {
            first,
            tree,
            begins,
        } = description;
        assert!(tree.life == own && tree.is_valid());
        let children = tree.children.into_iter();
        let (near, broken): (Vec<Tree>, Vec<Tree>) =
            children.partition(|child| is_neighbour(child.life));
        let broken = broken.iter().map(|child| child.life.host);
        out.extend(broken.map(|host| (from, FlowFrame::Broken(host))));
        for tree in &near {
            let tree = tree.clone();
            let description = FlowDescription {
                first,
                tree,
                begins: begins.clone(),
            };
            out.push((description.tree.life, FlowFrame::Open(description)));
        }
        let child = |tree| Child {
            tree,
            queue: VecDeque::new(),
            partial: BTreeSet::new(),
            flight: VecDeque::new(),
            next: first,
            announced: first,
            is_closing: false,
            close_sent: false,
            is_closed: false,
        };
        let mut transit = Transit {
            from,
            is_final: tree.is_final,
            flow: TransitFlow::default(),
            arrived: VecDeque::new(),
            whole: BTreeMap::new(),
            children: near.into_iter().map(child).collect(),
            next: first,
            acknowledged: first,
            is_closing: false,
        };
        transit.act(out, |flow, mut act| flow.miss(first, &mut act));
        transit
    }

    /// Calls the `TransitFlow`, and performs its actions.
    fn act(
        &mut self,
        out: &mut Frames,
        call: impl FnOnce(&mut TransitFlow<()>, &mut dyn FnMut(TransitAction<()>)),
    ) {
        let mut actions = Vec::new();
        call(&mut self.flow, &mut |action| actions.push(action));
        for action in actions {
            if let TransitAction::Break = action {
                for child in self.children.drain(..) {
                    out.push((child.tree.life, FlowFrame::Cancel));
                    out.push((self.from, FlowFrame::Broken(child.tree.life.host)));
                }
            }
            for child in &mut self.children {
                child.act(&action, out);
            }
            if let TransitAction::Cut = action {
                self.children.clear();
            }
        }
    }

    pub fn has_child(&self, life: Life) -> bool {
        self.children.iter().any(|child| child.tree.life == life)
    }

    /// Handles a frame of the host before.
    pub fn receive(&mut self, frame: FlowFrame, out: &mut Frames) {
        match frame {
            FlowFrame::Begin(number) => {
                self.arrive(number, None);
                self.act(out, |flow, mut act| flow.begin(number, (), &mut act));
            }
            FlowFrame::Message(number, content) => self.message(number, content, out),
            FlowFrame::GiveUp(number) => {
                let gap = self.arrived.iter_mut().find(|arrived| {
                    matches!(arrived, Arrived::Message { number: of, content: None, .. } if *of == number)
                });
                // Its memory is dropped before its turn or after it.
                let is_late = number % 2 == 0;
                if let Some(gap) = gap {
                    *gap = match is_late {
                        true => Arrived::GivenUp(number),
                        false => Arrived::Miss(number + 1),
                    };
                    if !is_late {
                        self.act(out, |flow, mut act| {
                            flow.dropped(number, false, &mut act);
                        });
                    }
                }
            }
            FlowFrame::Miss(next) => self.arrived.push_back(Arrived::Miss(next)),
            FlowFrame::Close => self.arrived.push_back(Arrived::Close),
            _ => unreachable!("these go the other direction"),
        }
    }

    fn arrive(&mut self, number: u64, content: Option<u64>) {
        self.arrived.push_back(Arrived::Message {
            number,
            content,
            is_large: content.is_none(),
            is_lost: false,
        });
    }

    fn message(&mut self, number: u64, whole: u64, out: &mut Frames) {
        let begun = self.arrived.iter_mut().find_map(|arrived| match arrived {
            Arrived::Message {
                number: of,
                content,
                is_lost,
                ..
            } if *of == number => Some((content, std::mem::take(is_lost))),
            _ => None,
        });
        let Some((content, was_lost)) = begun else {
            return self.arrive(number, Some(whole));
        };
        *content = Some(whole);
        self.whole.insert(number, whole);
        if was_lost {
            self.act(out, |flow, mut act| flow.begin(number, (), &mut act));
        }
    }

    /// The link has no lanes for a moment. `is_lost` decides for each incomplete message whether its memory is lost.
    pub fn lanes_lost(&mut self, mut is_lost: impl FnMut() -> bool, out: &mut Frames) {
        let mut dropped = Vec::new();
        for arrived in &mut self.arrived {
            if let Arrived::Message {
                number,
                content: None,
                is_lost: lost @ false,
                ..
            } = arrived
            {
                *lost = is_lost();
                dropped.extend(lost.then_some(*number));
            }
        }
        for number in dropped {
            self.act(out, |flow, mut act| {
                flow.dropped(number, false, &mut act);
            });
        }
    }

    /// Performs the arrivals that have their turn; delivers messages here if there is a record. `held_max`: stops when children still need
    /// so many messages.
    pub fn deliver(
        &mut self,
        mut record: Option<&mut Record>,
        is_blocked: bool,
        held_max: usize,
        check: impl Fn(u64, u64),
        out: &mut Frames,
    ) {
        while let Some(arrived) = self.arrived.front() {
            match *arrived {
                Arrived::Message {
                    number,
                    content: Some(content),
                    is_large,
                    ..
                } => {
                    if self.held() >= held_max {
                        return;
                    }
                    if !self.children.is_empty() {
                        self.whole.insert(number, content);
                    }
                    let small = (!is_large).then_some(());
                    self.act(out, |flow, mut act| flow.deliver(number, small, &mut act));
                    if is_blocked && record.is_some() {
                        return;
                    }
                    if let Some(record) = &mut record {
                        record.deliver(number, || check(number, content));
                    }
                    self.next = number + 1;
                    self.act(out, |flow, mut act| {
                        flow.dropped(number, true, &mut act);
                    });
                }
                Arrived::Message { .. } => return,
                Arrived::Miss(next) => self.miss(next, out),
                Arrived::GivenUp(number) => {
                    self.miss(number + 1, out);
                    self.act(out, |flow, mut act| {
                        flow.dropped(number, false, &mut act);
                    });
                }
                Arrived::Close => {
                    self.is_closing = true;
                    self.act(out, |flow, mut act| flow.close(&mut act));
                }
            }
            self.arrived.pop_front();
        }
    }

    /// Does not change the record: the next message that is delivered counts the missing ones before it.
    fn miss(&mut self, next: u64, out: &mut Frames) {
        self.next = self.next.max(next);
        self.act(out, |flow, mut act| flow.miss(next, &mut act));
    }

    /// The host before has cut the flow or has ended. This flow delivers no more messages.
    pub fn end(&mut self, out: &mut Frames) {
        self.is_closing = true;
        let rest: Vec<(u64, bool)> = self
            .arrived
            .drain(..)
            .filter_map(|arrived| {
                let (number, content) = unfinished(arrived)?;
                // Children may have got its beginning.
                content.map(|content| self.whole.insert(number, content));
                Some((number, content.is_some()))
            })
            .collect();
        // Memory may be dropped before or after the flow closes: half of it each.
        let (before, after) = rest.split_at(rest.len() / 2);
        for &(number, is_whole) in before {
            self.act(out, |flow, mut act| {
                flow.dropped(number, is_whole, &mut act);
            });
        }
        self.act(out, |flow, mut act| flow.close(&mut act));
        for &(number, is_whole) in after {
            self.act(out, |flow, mut act| {
                flow.dropped(number, is_whole, &mut act);
            });
        }
    }

    /// A child has acknowledged all messages below a number.
    pub fn child_acknowledged(&mut self, child: Life, next: u64) {
        if let Some(child) = self.child(child) {
            while child.flight.front().is_some_and(|number| *number < next) {
                child.flight.pop_front();
            }
        }
    }

    /// A child has answered CLOSE.
    pub fn child_closed(&mut self, child: Life) {
        if let Some(child) = self.child(child) {
            child.is_closed = child.close_sent;
        }
    }

    /// A child or a host below it gets no more of the flow: drops it, and reports it to the host before.
    pub fn broken(&mut self, host: HostId, out: &mut Frames) {
        let count = self.children.len();
        self.children.retain(|child| child.tree.life.host != host);
        let mut trees = self.children.iter_mut().map(|child| &mut child.tree);
        let was_below = trees.any(|tree| tree.prune(host).is_some());
        if was_below || self.children.len() < count {
            out.push((self.from, FlowFrame::Broken(host)));
        }
    }

    /// Sends the children as many messages as they take, and acknowledges to the host before.
    pub fn send(&mut self, window: usize, out: &mut Frames) {
        for child in &mut self.children {
            child.send(&self.whole, window, out);
        }
        let children = &self.children;
        self.whole
            .retain(|number, _| children.iter().any(|child| child.needs(*number)));
        if self.acknowledged < self.next {
            self.acknowledged = self.next;
            out.push((self.from, FlowFrame::Acknowledged(self.next)));
        }
    }

    /// Whether the host before sends nothing more.
    pub fn is_ended(&self) -> bool {
        self.is_closing
    }

    /// Whether CLOSE can be answered, and the flow then forgotten.
    pub fn is_closed(&self) -> bool {
        self.is_closing && self.children.iter().all(|child| child.is_closed)
    }

    /// How many messages children still need.
    pub fn held(&self) -> usize {
        self.whole.len()
    }

    fn child(&mut self, life: Life) -> Option<&mut Child> {
        self.children
            .iter_mut()
            .find(|child| child.tree.life == life)
    }
}

/// The number of a message that has memory, and its content if it is complete.
fn unfinished(arrived: Arrived) -> Option<(u64, Option<u64>)> {
    match arrived {
        Arrived::Message {
            number,
            content,
            is_lost: false,
            ..
        } => Some((number, content)),
        Arrived::GivenUp(number) => Some((number, None)),
        _ => None,
    }
}

impl Child {
    fn act(&mut self, action: &TransitAction<()>, out: &mut Frames) {
        match *action {
            TransitAction::Send(number, ()) => {
                assert!(number >= self.next, "sent twice");
                self.next = number + 1;
                self.queue.push_back(number);
            }
            TransitAction::GiveUp(number) => {
                self.queue.retain(|of| *of != number);
                if self.partial.remove(&number) {
                    out.push((self.tree.life, FlowFrame::GiveUp(number)));
                }
            }
            TransitAction::Skip(next) => self.next = self.next.max(next),
            TransitAction::Close => self.is_closing = true,
            TransitAction::Cut => out.push((self.tree.life, FlowFrame::Cancel)),
            TransitAction::Break => {}
        }
    }

    fn send(&mut self, whole: &BTreeMap<u64, u64>, window: usize, out: &mut Frames) {
        let life = self.tree.life;
        let mut send = |frame| out.push((life, frame));
        let partial = std::mem::take(&mut self.partial);
        for number in partial {
            match whole.get(&number) {
                Some(content) => send(FlowFrame::Message(number, *content)),
                None => {
                    self.partial.insert(number);
                }
            }
        }
        while self.flight.len() < window {
            let Some(number) = self.queue.pop_front() else {
                break;
            };
            if self.announced < number {
                send(FlowFrame::Miss(number));
            }
            self.announced = number + 1;
            self.flight.push_back(number);
            match whole.get(&number) {
                Some(content) => send(FlowFrame::Message(number, *content)),
                None => {
                    self.partial.insert(number);
                    send(FlowFrame::Begin(number));
                }
            }
        }
        if self.queue.is_empty() && self.announced < self.next {
            self.announced = self.next;
            send(FlowFrame::Miss(self.next));
        }
        let has_all = self.queue.is_empty() && self.partial.is_empty();
        if self.is_closing && has_all && !self.close_sent {
            self.close_sent = true;
            send(FlowFrame::Close);
        }
    }

    fn needs(&self, number: u64) -> bool {
        self.queue.contains(&number) || self.flight.contains(&number)
    }
}
