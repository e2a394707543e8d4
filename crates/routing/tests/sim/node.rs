//! One host: what its user would do with the crate.
use rgaps_routing::{
    ChannelEvent, Channels, Datagram, Hop, HostId, InterestTable, Life, Path, PathTable, Time,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// A host that cannot be reached for so long is given up.
pub const OUTAGE: Duration = Duration::from_millis(1500);

/// What crosses a cable.
pub enum Frame {
    Paths(Vec<Path>),
    Datagram(Datagram),
}

pub struct Node {
    pub life: Life,
    pub paths: PathTable,
    pub channels: Channels,
    pub interest: InterestTable,
    /// Hosts that have a channel and no path, and since when.
    unreachable: BTreeMap<HostId, Time>,
}

/// Frames and where they go.
pub type Out = Vec<(HostId, Frame)>;

impl Node {
    pub fn new(life: Life) -> Node {
        Node {
            life,
            paths: PathTable::new(life),
            channels: Channels::new(life),
            interest: InterestTable::default(),
            unreachable: BTreeMap::new(),
        }
    }

    pub fn frame(&mut self, from: Life, frame: Frame, now: Time, out: &mut Out) {
        match frame {
            Frame::Paths(paths) => self
                .paths
                .advertised(from, paths, now)
                .expect("hosts keep the rules"),
            Frame::Datagram(datagram) => self.datagram(datagram, now, out),
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
            ChannelEvent::Restarted(life) => self.interest.restarted(life, channels),
            ChannelEvent::Message(from, message) => {
                self.interest.receive(from, &message, channels);
            }
        }
    }

    /// Changes what this host wants of a topic; 0: nothing.
    pub fn want(&mut self, topic: &str, want: u64) {
        let want = (want > 0).then(|| [want as u8][..].into());
        self.interest.set(&topic.into(), want, &mut self.channels);
    }

    /// Neighbours whose links it has withdrawn.
    pub fn take_ended(&mut self) -> Vec<Life> {
        self.paths.take_ended()
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
            }
        }
    }
}
