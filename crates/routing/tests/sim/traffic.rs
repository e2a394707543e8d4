//! The messages of one host: what it publishes, what it forwards, and what it delivers.
//!
//! A link takes a few messages of each flow; more wait until it acknowledges some. The bytes of a message are a hash of its number.
use super::node::{Frame, Out};
use super::origin::Origin;
use super::transit::{FlowDescription, Transit};
use rgaps_routing::{FlowId, FlowName, Graph, HostId, Life, Load, Publisher, Time};
use rgaps_testkit::mix;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Messages of a flow that a link takes.
pub const WINDOW: u64 = 4;
/// Messages that an origin keeps; more are not published.
pub const RETAINED_MAX: usize = 48;
/// Whoever wants this topic wants the messages of all publishers.
pub const TOPIC: &str = "all";

pub type FlowKey = (Publisher, FlowId);

pub enum FlowFrame {
    Open(FlowDescription),
    Message(u64, u64),
    Close,
    Cancel,
    Acknowledged(u64),
    Closed,
    Broken(HostId),
}

/// What survives a restart: what was delivered, as in the file of delivered positions.
#[derive(Default)]
pub struct Disk {
    pub finals: BTreeMap<Publisher, Record>,
}

/// What one final host got of one publisher.
#[derive(Default)]
pub struct Record {
    pub first: u64,
    pub next: u64,
    pub delivered: u64,
    /// Ranges.
    pub missed: Vec<(u64, u64)>,
}

struct Incoming {
    from: Life,
    is_final: bool,
    transit: Transit,
    held: BTreeMap<u64, u64>,
}

pub struct Traffic {
    life: Life,
    pub origin: Option<Origin>,
    pub load: Load,
    /// Flows whose origins are to learn how far they are here.
    to_confirm: BTreeSet<FlowKey>,
    pub disk: Disk,
    pub is_subscriber: bool,
    pub window: u64,
    pub retained_max: usize,
    incoming: BTreeMap<FlowKey, Incoming>,
    blocked_until: Time,
}

pub fn bytes(publisher: Publisher, number: u64) -> u64 {
    mix(mix(publisher.origin.incarnation) ^ number)
}

impl Traffic {
    pub fn new(life: Life, disk: Disk) -> Traffic {
        Traffic {
            life,
            origin: None,
            load: Load {
                message_bytes: 0,
                tree_bytes_min: 1,
                fanout: 2,
                lanes: 1,
            },
            to_confirm: BTreeSet::new(),
            disk,
            is_subscriber: false,
            window: WINDOW,
            retained_max: RETAINED_MAX,
            incoming: BTreeMap::new(),
            blocked_until: Duration::ZERO,
        }
    }

    /// It publishes.
    pub fn make_origin(&mut self) {
        self.origin = Some(Origin::new(self.life));
    }

    /// Publishes a message, and leaves out so many numbers before it. Whether there was room.
    pub fn publish(&mut self, gap: u64, now: Time, out: &mut Out) -> bool {
        let Some(origin) = &mut self.origin else {
            return false;
        };
        let has_room = origin.kept.len() < self.retained_max;
        if has_room {
            origin.publish(gap);
        }
        self.pump(now, out);
        has_room
    }

    /// Its subscriber takes nothing until then.
    pub fn block(&mut self, until: Time) {
        self.blocked_until = until;
    }

    /// It forgets all flows that it forwards.
    pub fn drop_transit(&mut self, out: &mut Out) {
        for (key, incoming) in std::mem::take(&mut self.incoming) {
            send(out, incoming.from, key, FlowFrame::Broken(self.life.host));
            cancel(&incoming, key, out);
        }
    }

    pub fn incoming(&self) -> impl Iterator<Item = (FlowKey, &Transit)> {
        let incoming = self.incoming.iter();
        incoming.map(|(key, incoming)| (*key, &incoming.transit))
    }

    pub fn confirmed(&mut self, from: Life, flow: FlowId, next: u64) {
        if let Some(origin) = &mut self.origin {
            origin.confirmed(from, flow, next);
        }
    }

    /// What is to be confirmed over control channels since the last call: the flow, its origin, and the position.
    pub fn confirmations(&mut self) -> Vec<(Life, FlowName, u64)> {
        let flows = std::mem::take(&mut self.to_confirm).into_iter();
        let due = flows.map(|(publisher, FlowId(stream))| {
            let flow = FlowName {
                stream,
                publisher: publisher.number,
            };
            (publisher.origin, flow, self.disk.finals[&publisher].next)
        });
        due.collect()
    }

    /// The channel to an origin restarted.
    pub fn confirm_again(&mut self, origin: HostId) {
        self.confirm_all(|publisher| publisher.origin.host == origin);
    }

    fn confirm_all(&mut self, is_due: impl Fn(&Publisher) -> bool) {
        for (key, incoming) in self.incoming.iter().filter(|(key, _)| is_due(&key.0)) {
            if incoming.is_final && incoming.from != key.0.origin {
                self.to_confirm.insert(*key);
            }
        }
    }

    pub fn link_ended(&mut self, life: Life, out: &mut Out) {
        if let Some(origin) = &mut self.origin {
            origin.link_ended(life);
        }
        let keys: Vec<FlowKey> = self.incoming.keys().copied().collect();
        for key in keys {
            if self.incoming[&key].from == life {
                let incoming = self.incoming.remove(&key).expect("it is there");
                cancel(&incoming, key, out);
            } else {
                self.broken(key, life, life.host, out);
            }
        }
    }

    fn broken(&mut self, key: FlowKey, from: Life, host: HostId, out: &mut Out) {
        if let Some(incoming) = self.incoming.get_mut(&key) {
            let has = |child: Life| incoming.transit.children().any(|tree| tree.life == child);
            if has(from) && incoming.transit.broken(host) {
                send(out, incoming.from, key, FlowFrame::Broken(host));
            }
        }
    }

    pub fn frame(
        &mut self,
        from: Life,
        key: FlowKey,
        frame: FlowFrame,
        is_neighbour: &dyn Fn(Life) -> bool,
        out: &mut Out,
    ) {
        match frame {
            FlowFrame::Open(description) => self.open(from, key, description, is_neighbour, out),
            FlowFrame::Message(..) | FlowFrame::Close | FlowFrame::Cancel => {
                self.forwards(from, key, frame, out);
            }
            _ if key.0.origin == self.life => self.answer_to_origin(key, frame),
            FlowFrame::Acknowledged(next) => {
                if let Some(incoming) = self.incoming.get_mut(&key) {
                    incoming.transit.child_acknowledged(from, next);
                }
            }
            FlowFrame::Closed => {
                if let Some(incoming) = self.incoming.get_mut(&key) {
                    incoming.transit.child_closed(from);
                }
            }
            FlowFrame::Broken(host) => self.broken(key, from, host, out),
        }
    }

    fn answer_to_origin(&mut self, (publisher, flow): FlowKey, frame: FlowFrame) {
        let origin = self.origin.as_mut();
        let Some(origin) = origin.filter(|origin| origin.publisher == publisher) else {
            return;
        };
        match frame {
            FlowFrame::Acknowledged(next) => origin.acknowledged(flow, next),
            FlowFrame::Closed => {}
            FlowFrame::Broken(host) => origin.broken(flow, host),
            _ => unreachable!("these go the other direction"),
        }
    }

    fn open(
        &mut self,
        from: Life,
        key: FlowKey,
        mut description: FlowDescription,
        is_neighbour: &dyn Fn(Life) -> bool,
        out: &mut Out,
    ) {
        if !self.is_subscriber {
            description.tree.is_final = false;
        }
        let (first, is_final) = (description.first, description.tree.is_final);
        if is_final {
            let record = self.disk.finals.entry(key.0).or_insert(Record {
                first,
                next: first,
                ..Record::default()
            });
            if record.next < first {
                record.missed.push((record.next, first));
                record.next = first;
            }
        }
        let (transit, broken) = Transit::open(self.life, description, is_neighbour);
        for host in broken {
            send(out, from, key, FlowFrame::Broken(host));
        }
        for tree in transit.children() {
            let tree = tree.clone();
            let description = FlowDescription { first, tree };
            send(
                out,
                description.tree.life,
                key,
                FlowFrame::Open(description),
            );
        }
        let held = BTreeMap::new();
        let incoming = Incoming {
            from,
            is_final,
            transit,
            held,
        };
        let other = self.incoming.insert(key, incoming);
        assert!(other.is_none(), "a flow came twice");
        self.confirm_all(|publisher| *publisher == key.0);
    }

    fn forwards(&mut self, from: Life, key: FlowKey, frame: FlowFrame, out: &mut Out) {
        let known = self.incoming.get_mut(&key);
        let Some(incoming) = known.filter(|incoming| incoming.from == from) else {
            return;
        };
        match frame {
            FlowFrame::Message(number, content) => {
                incoming.transit.receive(number);
                incoming.held.insert(number, content);
                let held = incoming.held.len() as u64;
                assert!(held <= 2 * self.window, "too much in transit");
            }
            FlowFrame::Close => incoming.transit.close(),
            _ => {
                let incoming = self.incoming.remove(&key).expect("it is there");
                cancel(&incoming, key, out);
            }
        }
    }

    /// Serves these lives, if not yet.
    pub fn serve(&mut self, life: Life) {
        if let Some(origin) = &mut self.origin {
            origin.serve(life);
        }
    }

    /// Makes flows what they should be for a version of the graph.
    pub fn plan(
        &mut self,
        graph: impl FnOnce() -> Rc<Graph>,
        version: u64,
        now: Time,
        out: &mut Out,
    ) {
        let Some(origin) = &mut self.origin else {
            return;
        };
        if origin.needs_plan(now) || origin.planned != version {
            origin.planned = version;
            origin.plan(&graph(), self.load, now, out);
        }
    }

    /// Moves all messages as far as they go.
    pub fn pump(&mut self, now: Time, out: &mut Out) {
        if let Some(origin) = &mut self.origin {
            origin.pump(self.window, out);
        }
        let keys: Vec<FlowKey> = self.incoming.keys().copied().collect();
        for key in keys {
            if now >= self.blocked_until {
                self.deliver(key);
            }
            self.forward(key, out);
        }
    }

    /// Delivers what a flow has for this host, but for duplicates.
    fn deliver(&mut self, key: FlowKey) {
        let incoming = self.incoming.get_mut(&key).expect("it is there");
        let Some(due) = incoming.transit.due_here().filter(|due| !due.is_empty()) else {
            return;
        };
        let record = self.disk.finals.get_mut(&key.0).expect("it is open");
        for (number, content) in incoming.held.range(due.clone()) {
            if *number >= record.next {
                assert_eq!(*content, bytes(key.0, *number));
                record.next = number + 1;
                record.delivered += 1;
            }
        }
        incoming.transit.taken_here(due.end);
        self.confirm_all(|publisher| *publisher == key.0);
    }

    fn forward(&mut self, key: FlowKey, out: &mut Out) {
        let incoming = self.incoming.get_mut(&key).expect("it is there");
        let (transit, held) = (&mut incoming.transit, &incoming.held);
        let children: Vec<Life> = transit.children().map(|tree| tree.life).collect();
        for child in children {
            while let Some((due, _)) = transit.due(child).filter(|due| due.1 < self.window) {
                let Some((number, content)) = held.range(due).next() else {
                    break;
                };
                send(out, child, key, FlowFrame::Message(*number, *content));
                transit.taken(child, number + 1);
            }
        }
        if let Some(next) = transit.acknowledgement() {
            send(out, incoming.from, key, FlowFrame::Acknowledged(next));
        }
        for child in transit.closing_children() {
            send(out, child, key, FlowFrame::Close);
        }
        let first = transit.held().start;
        incoming.held.retain(|number, _| *number >= first);
        if transit.is_closed() {
            send(out, incoming.from, key, FlowFrame::Closed);
            self.incoming.remove(&key);
        }
    }
}

pub fn send(out: &mut Out, to: Life, key: FlowKey, frame: FlowFrame) {
    out.push((to.host, Frame::Flow(key, frame)));
}

fn cancel(incoming: &Incoming, key: FlowKey, out: &mut Out) {
    for tree in incoming.transit.children() {
        send(out, tree.life, key, FlowFrame::Cancel);
    }
}
