//! One host: what its user would do with the crate.
use super::traffic::{Disk, FlowFrame, FlowKey, Traffic, TOPIC};
use rgaps_routing::{
    ChannelEvent, Channels, ControlMessage, Datagram, FlowId, Hop, HostId, InterestTable, Life,
    Path, PathTable, Time,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A host that cannot be reached for so long is given up.
pub const OUTAGE: Duration = Duration::from_millis(1500);

/// What crosses a cable.
pub enum Frame {
    Paths(Vec<Path>),
    Datagram(Datagram),
    Flow(FlowKey, FlowFrame),
}

pub struct Node {
    pub life: Life,
    pub paths: PathTable,
    pub channels: Channels,
    pub interest: InterestTable,
    pub traffic: Traffic,
    /// Hosts that have a channel and no path, and since when.
    unreachable: BTreeMap<HostId, Time>,
    /// Its neighbours when it looked last.
    linked: BTreeSet<Life>,
}

/// Frames and where they go.
pub type Out = Vec<(HostId, Frame)>;

impl Node {
    pub fn new(life: Life, disk: Disk) -> Node {
        Node {
            life,
            paths: PathTable::new(life),
            channels: Channels::new(life),
            interest: InterestTable::default(),
            traffic: Traffic::new(life, disk),
            unreachable: BTreeMap::new(),
            linked: BTreeSet::new(),
        }
    }

    pub fn frame(&mut self, from: Life, frame: Frame, now: Time, out: &mut Out) {
        match frame {
            Frame::Paths(paths) => self
                .paths
                .advertised(from, paths, now)
                .expect("hosts keep the rules"),
            Frame::Datagram(datagram) => self.datagram(datagram, now, out),
            Frame::Flow(key, frame) => {
                let is_neighbour = |life| self.paths.is_neighbour(life);
                self.traffic.frame(from, key, frame, &is_neighbour, out);
                self.traffic.pump(now, out);
            }
        }
    }

    fn datagram(&mut self, datagram: Datagram, now: Time, out: &mut Out) {
        let from = datagram.segment.from.life.host;
        match datagram.hop(self.life.host) {
            Hop::Deliver(segment) => {
                for event in self.channels.receive(segment, now) {
                    self.control(event);
                }
            }
            Hop::Forward(next, datagram) => {
                assert!(next != from && !datagram.path.contains(&self.life.host));
                if self.paths.neighbours().any(|life| life.host == next) {
                    out.push((next, Frame::Datagram(datagram)));
                }
            }
            Hop::Drop => panic!("host {:?} is not on the path", self.life),
        }
    }

    fn control(&mut self, event: ChannelEvent) {
        let channels = &mut self.channels;
        match event {
            ChannelEvent::Restarted(life) => {
                self.interest.restarted(life, channels);
                self.traffic.confirm_again(life.host);
            }
            ChannelEvent::Message(from, ControlMessage::Confirm { flow, next }) => {
                self.traffic.confirmed(from, FlowId(flow.stream), next);
            }
            ChannelEvent::Message(from, message) => {
                self.interest.receive(from, &message, channels);
            }
        }
    }

    /// Changes what this host wants of a topic; 0: nothing.
    pub fn want(&mut self, topic: &str, want: u64) {
        let want = (want > 0).then(|| [want as u8][..].into());
        self.interest.set(topic, want, &mut self.channels);
    }

    /// Neighbours whose links it has withdrawn.
    pub fn take_ended(&mut self, now: Time, out: &mut Out) -> Vec<Life> {
        let linked = self.paths.neighbours().collect();
        let before = std::mem::replace(&mut self.linked, linked);
        let ended: Vec<Life> = before.difference(&self.linked).copied().collect();
        for life in &ended {
            self.traffic.link_ended(*life, out);
        }
        if !ended.is_empty() {
            self.traffic.pump(now, out);
        }
        ended
    }

    pub fn poll(&mut self, now: Time, out: &mut Out) {
        self.paths.tick(now);
        let neighbours: Vec<Life> = self.paths.neighbours().collect();
        for neighbour in neighbours {
            let paths = self.paths.advertisement(neighbour.host);
            out.extend(paths.map(|paths| (neighbour.host, Frame::Paths(paths))));
        }
        for path in self.paths.paths() {
            self.interest.ask(path.end().host, &mut self.channels);
        }
        self.give_up(now);
        for (host, known) in self.interest.hosts() {
            let end = self.paths.path(host).map(|path| path.end());
            let wants = known.wants.contains_key(TOPIC) && known.life == end;
            if let Some(life) = end.filter(|_| wants) {
                self.traffic.serve(life);
            }
        }
        let version = self.paths.version();
        self.traffic
            .plan(|| self.paths.graph().into(), version, now, out);
        if let Some(origin) = &mut self.traffic.origin {
            origin.finish(out);
        }
        self.traffic.pump(now, out);
        for (origin, flow, next) in self.traffic.confirmations() {
            let confirm = ControlMessage::Confirm { flow, next };
            self.channels.send(origin.host, confirm);
        }
        for datagram in self.channels.poll(now, &self.paths) {
            out.push((datagram.path[0], Frame::Datagram(datagram)));
        }
    }

    fn give_up(&mut self, now: Time) {
        let hosts: Vec<HostId> = self.channels.hosts().map(|(host, _)| host).collect();
        for host in hosts {
            if self.paths.path(host).is_some() {
                self.unreachable.remove(&host);
            } else if now - *self.unreachable.entry(host).or_insert(now) >= OUTAGE {
                self.unreachable.remove(&host);
                self.channels.forget(host);
                self.interest.forget(host);
                // What waited in the channel is gone with it.
                self.traffic.confirm_again(host);
            }
        }
    }
}
