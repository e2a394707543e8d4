//! The messages of one host: what it publishes, what it forwards, and what it delivers.
//!
//! A link takes a few messages of each flow; more wait until it acknowledges some. The bytes of a message are a hash of its number.
use super::node::{Frame, Out};
use super::origin::Origin;
use rgaps_routing::{
    FlowDescription, FlowId, GivenUp, Graph, HostId, Life, Load, Offer, Positions, Publisher, Time,
    Transit,
};
use rgaps_testkit::mix;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Messages of a flow that a link takes.
pub const WINDOW: u64 = 4;
/// Messages that an origin keeps; more are not published.
pub const RETAINED_MAX: u64 = 48;
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
    transit: Transit,
    held: BTreeMap<u64, u64>,
}

pub struct Traffic {
    life: Life,
    pub origin: Option<Origin>,
    pub load: Load,
    pub positions: Positions,
    pub disk: Disk,
    pub is_subscriber: bool,
    pub window: u64,
    pub retained_max: u64,
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
            positions: Positions::default(),
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

    pub fn publish(&mut self, now: Time, out: &mut Out) {
        if let Some(origin) = &mut self.origin {
            let retained = origin.delivery.retained();
            if retained.end - retained.start < self.retained_max {
                origin.delivery.publish();
            }
            self.pump(now, out);
        }
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

    pub fn confirmed(&mut self, from: Life, publisher: Publisher, next: u64) {
        let origin = self.origin.as_mut();
        if let Some(origin) = origin.filter(|origin| origin.publisher == publisher) {
            assert!(next <= origin.delivery.retained().end, "confirmed too much");
            origin.delivery.confirmed(from, next);
        }
    }

    /// Earlier lives of this origin have ended.
    pub fn origin_lives(&mut self, life: Life) {
        self.forget(|origin| origin.host == life.host && origin != life);
    }

    pub fn origin_ended(&mut self, host: HostId) {
        self.forget(|origin| origin.host == host);
    }

    fn forget(&mut self, ended: impl Fn(Life) -> bool) {
        let publishers = self.positions.all().map(|(publisher, ..)| publisher);
        let ended: Vec<Publisher> = publishers
            .filter(|publisher| ended(publisher.origin))
            .filter(|publisher| self.incoming.keys().all(|key| key.0 != *publisher))
            .collect();
        for publisher in ended {
            self.positions.forget(publisher);
        }
    }

    pub fn link_ended(&mut self, life: Life, out: &mut Out) {
        if let Some(origin) = &mut self.origin {
            origin.delivery.link_ended(life);
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
            FlowFrame::Acknowledged(next) => origin.delivery.acknowledged(flow, next),
            FlowFrame::Closed => origin.delivery.closed(flow),
            FlowFrame::Broken(host) => origin.delivery.broken(flow, host),
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
            description.tree.base = None;
        }
        let (publisher, first) = (key.0, description.first);
        if let Some(base) = description.tree.base {
            let record = self.disk.finals.get(&publisher);
            let resumed = record.map(|record| record.next);
            let missed = self.positions.open(publisher, base, resumed);
            let record = self.disk.finals.entry(publisher).or_insert(Record {
                first: base,
                next: base,
                ..Record::default()
            });
            if missed > 0 {
                record.missed.push((record.next, record.next + missed));
                record.next += missed;
            }
        }
        let (transit, broken) =
            Transit::open(self.life, description, is_neighbour).expect("trees are valid");
        for host in broken {
            send(out, from, key, FlowFrame::Broken(host));
        }
        for tree in transit.children() {
            let description = FlowDescription {
                publisher,
                flow: key.1,
                first,
                tree: tree.clone(),
            };
            send(out, tree.life, key, FlowFrame::Open(description));
        }
        let held = BTreeMap::new();
        let incoming = Incoming {
            from,
            transit,
            held,
        };
        let other = self.incoming.insert(key, incoming);
        assert!(other.is_none(), "a flow came twice");
    }

    fn forwards(&mut self, from: Life, key: FlowKey, frame: FlowFrame, out: &mut Out) {
        let known = self.incoming.get_mut(&key);
        let Some(incoming) = known.filter(|incoming| incoming.from == from) else {
            return;
        };
        match frame {
            FlowFrame::Message(number, content) => {
                incoming.transit.receive(number).expect("in order");
                incoming.held.insert(number, content);
                let held = incoming.transit.held();
                assert!(
                    held.end - held.start <= 2 * self.window,
                    "too much in transit"
                );
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
    pub fn plan(&mut self, graph: impl FnOnce() -> Rc<Graph>, version: u64, now: Time) {
        let Some(origin) = &mut self.origin else {
            return;
        };
        if origin.delivery.needs_plan(now) || origin.planned != version {
            origin.planned = version;
            let given_up = origin.delivery.plan(&graph(), self.load, now);
            for GivenUp { life, confirmed } in given_up {
                origin.given_up.push((life.host, confirmed, None));
            }
        }
    }

    /// Moves all messages as far as they go.
    pub fn pump(&mut self, now: Time, out: &mut Out) {
        if let Some(origin) = &mut self.origin {
            origin.pump(self.window, out);
        }
        let keys: Vec<FlowKey> = self.incoming.keys().copied().collect();
        let mut again = true;
        while std::mem::take(&mut again) {
            for key in &keys {
                again |= now >= self.blocked_until && self.deliver(*key);
            }
        }
        for key in keys {
            self.forward(key, out);
        }
    }

    /// Delivers what a flow has for this host. Whether a position rose.
    fn deliver(&mut self, key: FlowKey) -> bool {
        let incoming = self.incoming.get_mut(&key).expect("it is there");
        let is_direct = incoming.from == key.0.origin;
        let mut rose = false;
        while let Some(number) = incoming.transit.due_here() {
            match self.positions.offer(key.0, number, is_direct) {
                Offer::Wait => break,
                Offer::Duplicate => {}
                Offer::Deliver => {
                    let record = self.disk.finals.get_mut(&key.0).expect("it is open");
                    assert_eq!(record.next, number, "out of order");
                    assert_eq!(incoming.held[&number], bytes(key.0, number));
                    record.next += 1;
                    record.delivered += 1;
                    self.positions.delivered(key.0);
                    rose = true;
                }
            }
            incoming.transit.taken_here();
        }
        rose
    }

    fn forward(&mut self, key: FlowKey, out: &mut Out) {
        let incoming = self.incoming.get_mut(&key).expect("it is there");
        let transit = &mut incoming.transit;
        let children: Vec<Life> = transit.children().map(|tree| tree.life).collect();
        for child in children {
            while let Some((number, _)) = transit.due(child).filter(|due| due.1 < self.window) {
                let message = FlowFrame::Message(number, incoming.held[&number]);
                send(out, child, key, message);
                transit.taken(child);
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
