//! The messages of one host: those that it publishes, forwards and delivers.
//!
//! A link takes a few messages of each flow; the others wait until it acknowledges some. A message's content is a hash of its number.
use super::node::{Frame, Out};
use super::origin::Origin;
use super::transit::{FlowDescription, Frames, Transit};
use rgaps_routing::{FlowName, Graph, HostId, Life, Load, Publisher, StreamId, Time};
use rgaps_testkit::mix;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// The most unacknowledged messages of a flow that a link takes.
pub const WINDOW: u64 = 4;
/// The most messages that an origin keeps; it then publishes no more.
pub const RETAINED_MAX: usize = 48;
/// A host that wants this topic wants the messages of all publishers.
pub const TOPIC: &str = "all";

pub type FlowKey = (Publisher, StreamId);

pub enum FlowFrame {
    Open(FlowDescription),
    /// A large message begins to arrive.
    Begin(u64),
    /// A message is complete: its number and content.
    Message(u64, u64),
    /// A message that began is missed.
    GiveUp(u64),
    /// Messages below this number that have not arrived are missed.
    Miss(u64),
    Close,
    Cancel,
    Acknowledged(u64),
    Closed,
    Broken(HostId),
}

/// The state that survives a restart: the deliveries, as in the file of delivered positions.
#[derive(Default)]
pub struct Disk {
    pub finals: BTreeMap<Publisher, Record>,
}

/// The deliveries of one publisher's messages at one final host.
#[derive(Default)]
pub struct Record {
    pub first: u64,
    pub next: u64,
    pub delivered: BTreeSet<u64>,
    /// Ranges: the first number, and the number after the last.
    pub missed: Vec<(u64, u64)>,
}

impl Record {
    /// A flow's OPEN names the number with which the host begins. It counts only for a new host.
    fn begin(&mut self, first: u64) {
        if self.next == 0 {
            (self.first, self.next) = (first, first);
        }
    }

    /// Delivers a message whose turn it is, unless it is a duplicate.
    pub fn deliver(&mut self, number: u64, check: impl FnOnce()) {
        if number < self.next {
            return;
        }
        check();
        if self.next < number {
            self.missed.push((self.next, number));
        }
        self.next = number + 1;
        assert!(self.delivered.insert(number), "delivered twice");
    }
}

pub struct Traffic {
    life: Life,
    pub origin: Option<Origin>,
    pub load: Load,
    /// Flows whose positions have to be confirmed to their origins.
    to_confirm: BTreeSet<FlowKey>,
    pub disk: Disk,
    pub is_subscriber: bool,
    pub window: u64,
    pub retained_max: usize,
    /// Every third message is large.
    pub has_large: bool,
    incoming: BTreeMap<FlowKey, Transit>,
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
            has_large: true,
            incoming: BTreeMap::new(),
            blocked_until: Duration::ZERO,
        }
    }

    /// Makes the host an origin.
    pub fn make_origin(&mut self) {
        self.origin = Some(Origin::new(self.life));
    }

    /// Publishes a message, and leaves out `gap` numbers before it. False if there was no room.
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

    /// The host's subscriber takes no message until then.
    pub fn block(&mut self, until: Time) {
        self.blocked_until = until;
    }

    /// Ends all flows that the host forwards.
    pub fn drop_transit(&mut self, out: &mut Out) {
        let keys: Vec<FlowKey> = self.incoming.keys().copied().collect();
        for key in keys {
            self.end(key, out);
            if let Some(transit) = self.incoming.get(&key) {
                send(out, transit.from, key, FlowFrame::Broken(self.life.host));
            }
        }
    }

    /// The origin gives up one of its messages.
    pub fn give_up(&mut self, at: usize, out: &mut Out) {
        if let Some(origin) = &mut self.origin {
            origin.give_up(at, out);
        }
    }

    /// The link with a host has no lanes for a moment.
    pub fn lanes_lost(&mut self, from: Life, mut is_lost: impl FnMut() -> bool, out: &mut Out) {
        let incoming = self.incoming.iter_mut();
        for (key, transit) in incoming.filter(|(_, transit)| transit.from == from) {
            let mut frames = Vec::new();
            transit.lanes_lost(&mut is_lost, &mut frames);
            send_all(out, *key, frames);
        }
    }

    pub fn incoming(&self) -> impl Iterator<Item = (FlowKey, &Transit)> {
        self.incoming.iter().map(|(key, transit)| (*key, transit))
    }

    pub fn confirmed(&mut self, from: Life, flow: StreamId, next: u64) {
        if let Some(origin) = &mut self.origin {
            origin.confirmed(from, flow, next);
        }
    }

    /// Takes the confirmations to send over control channels: the origin, the flow and the position.
    pub fn confirmations(&mut self) -> Vec<(Life, FlowName, u64)> {
        let flows = std::mem::take(&mut self.to_confirm).into_iter();
        let due = flows.map(|(publisher, StreamId(stream))| {
            let flow = FlowName {
                stream,
                publisher: publisher.number,
            };
            let key = (publisher, StreamId(stream));
            let position = self.incoming.get(&key).map_or(0, |of| of.next);
            let next = self.disk.finals[&publisher].next.max(position);
            (publisher.origin, flow, next)
        });
        due.collect()
    }

    /// Confirms all flows of an origin again, after its channel restarted.
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
                self.end(key, out);
            } else {
                self.broken(key, life, life.host, out);
            }
        }
    }

    fn end(&mut self, key: FlowKey, out: &mut Out) {
        if let Some(transit) = self.incoming.get_mut(&key) {
            let mut frames = Vec::new();
            transit.end(&mut frames);
            send_all(out, key, frames);
        }
    }

    fn broken(&mut self, key: FlowKey, from: Life, host: HostId, out: &mut Out) {
        if let Some(transit) = self.incoming.get_mut(&key) {
            if transit.has_child(from) {
                let mut frames = Vec::new();
                transit.broken(host, &mut frames);
                send_all(out, key, frames);
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
            FlowFrame::Acknowledged(_) | FlowFrame::Closed | FlowFrame::Broken(_) => {
                self.answer(from, key, frame, out);
            }
            _ => self.forwards(from, key, frame, out),
        }
    }

    fn answer(&mut self, from: Life, key: FlowKey, frame: FlowFrame, out: &mut Out) {
        if key.0.origin == self.life {
            return self.answer_to_origin(key, frame);
        }
        let transit = self.incoming.get_mut(&key);
        match (frame, transit) {
            (FlowFrame::Broken(host), _) => self.broken(key, from, host, out),
            (FlowFrame::Acknowledged(next), Some(transit)) => {
                transit.child_acknowledged(from, next)
            }
            (_, Some(transit)) => transit.child_closed(from),
            (_, None) => {}
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
        if description.tree.is_final {
            let record = self.disk.finals.entry(key.0).or_default();
            let begins = description.begins.get(&self.life.host);
            begins.inspect(|first| record.begin(**first));
        }
        let mut frames = Vec::new();
        let ends = (from, self.life);
        let transit = Transit::open(ends, description, is_neighbour, &mut frames);
        send_all(out, key, frames);
        let other = self.incoming.insert(key, transit);
        assert!(other.is_none(), "a flow came twice");
        self.confirm_all(|publisher| *publisher == key.0);
    }

    fn forwards(&mut self, from: Life, key: FlowKey, frame: FlowFrame, out: &mut Out) {
        let known = self.incoming.get_mut(&key);
        let Some(transit) = known.filter(|transit| transit.from == from && !transit.is_ended())
        else {
            return;
        };
        if let FlowFrame::Cancel = frame {
            return self.end(key, out);
        }
        let mut frames = Vec::new();
        transit.receive(frame, &mut frames);
        send_all(out, key, frames);
    }

    /// Makes the origin serve a life, if it does not yet.
    pub fn serve(&mut self, life: Life) {
        if let Some(origin) = &mut self.origin {
            origin.serve(life);
        }
    }

    /// Plans the origin's flows, if the graph has a new version or there is another reason to.
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
        if origin.needs_plan(version, now) {
            origin.plan((&graph(), version), self.load, now, out);
        }
    }

    /// Moves the messages of all flows as far as possible.
    pub fn pump(&mut self, now: Time, out: &mut Out) {
        if let Some(origin) = &mut self.origin {
            origin.pump(self.window, self.has_large, out);
        }
        let keys: Vec<FlowKey> = self.incoming.keys().copied().collect();
        for key in keys {
            self.go_on(key, now, out);
        }
    }

    /// Moves the messages of one flow that arrives.
    fn go_on(&mut self, key: FlowKey, now: Time, out: &mut Out) {
        let transit = self.incoming.get_mut(&key).expect("it is there");
        let record = self.disk.finals.get_mut(&key.0);
        let record = record.filter(|_| transit.is_final);
        let before = record.as_ref().map(|record| (record.next, transit.next));
        let check = |number, content| assert_eq!(content, bytes(key.0, number));
        let held_max = 2 * self.window as usize;
        let is_blocked = now < self.blocked_until;
        let mut frames = Vec::new();
        transit.deliver(record, is_blocked, held_max, check, &mut frames);
        transit.send(self.window as usize, &mut frames);
        let position = transit.next;
        if transit.is_closed() {
            frames.push((transit.from, FlowFrame::Closed));
            self.incoming.remove(&key);
        }
        send_all(out, key, frames);
        let record = self.disk.finals.get(&key.0);
        let after = record.map(|record| (record.next, position));
        if before.is_some() && before != after {
            self.confirm_all(|publisher| *publisher == key.0);
        }
    }
}

pub fn send(out: &mut Out, to: Life, key: FlowKey, frame: FlowFrame) {
    out.push((to.host, Frame::Flow(key, frame)));
}

fn send_all(out: &mut Out, key: FlowKey, frames: Frames) {
    for (to, frame) in frames {
        send(out, to, key, frame);
    }
}
