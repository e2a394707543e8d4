//! One host: uses the crate as links do.
use super::traffic::{Disk, FlowFrame, FlowKey, Traffic, TOPIC};
use rgaps_routing::{
    ControlMessage, Datagram, HostId, Life, PathTable, Router, RouterFrame, StreamId, Time,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// A host that cannot be reached for so long is given up.
pub const OUTAGE: Duration = Duration::from_millis(1500);

/// What crosses a cable.
pub enum Frame {
    Router(RouterFrame),
    Flow(FlowKey, FlowFrame),
}

pub struct Node {
    pub life: Life,
    pub router: Router,
    pub traffic: Traffic,
    /// Its neighbours at the last call of `take_ended`.
    linked: BTreeSet<Life>,
}

/// Frames to send, with their receivers.
pub type Out = Vec<(HostId, Frame)>;

impl Node {
    pub fn new(life: Life, disk: Disk) -> Node {
        Node {
            life,
            router: Router::new(life),
            traffic: Traffic::new(life, disk),
            linked: BTreeSet::new(),
        }
    }

    pub fn paths(&self) -> &PathTable {
        self.router.paths()
    }

    pub fn frame(&mut self, from: Life, frame: Frame, now: Time, out: &mut Out) {
        match frame {
            Frame::Router(RouterFrame::Paths(paths)) => self
                .router
                .advertised(from.host, paths, now)
                .expect("hosts keep the rules"),
            Frame::Router(RouterFrame::Datagram(datagram)) => self.datagram(datagram, now, out),
            Frame::Flow(key, frame) => {
                let is_neighbour = |life| self.router.paths().is_neighbour(life);
                self.traffic.frame(from, key, frame, &is_neighbour, out);
                self.traffic.pump(now, out);
            }
        }
    }

    fn datagram(&mut self, datagram: Datagram, now: Time, out: &mut Out) {
        let from = datagram.segment.from.life.host;
        let is_here = datagram.path.first() == Some(&self.life.host);
        assert!(is_here, "host {:?} is not on the path", self.life);
        let received = self.router.receive(datagram, true, now);
        if let Some((next, datagram)) = received.forward {
            assert!(next != from && !datagram.path.contains(&self.life.host));
            out.push((next, Frame::Router(RouterFrame::Datagram(datagram))));
        }
        self.tell_renewed();
        for (from, report) in received.reports {
            if let ControlMessage::Confirm { flow, next } = report {
                self.traffic.confirmed(from, StreamId(flow.stream), next);
            }
        }
    }

    /// Confirms again to hosts whose channel restarted: it has lost the confirmations that waited.
    fn tell_renewed(&mut self) {
        for host in self.router.take_renewed() {
            self.traffic.confirm_again(host);
        }
    }

    /// Changes what this host wants of a topic; 0: nothing.
    pub fn want(&mut self, topic: &str, want: u64) {
        let want = (want > 0).then(|| [want as u8][..].into());
        self.router.want(topic, want);
    }

    /// Takes the neighbours whose links it has withdrawn since the last call, and ends their flows.
    pub fn take_ended(&mut self, now: Time, out: &mut Out) -> Vec<Life> {
        let linked = self.paths().neighbours().collect();
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
        self.router.tick(now);
        self.router.expire(OUTAGE, &BTreeSet::new(), now);
        self.tell_renewed();
        let paths = self.router.paths();
        for (host, known) in self.router.all_wants() {
            let end = paths.path(host).map(|path| path.end());
            let wants = known.wants.contains_key(TOPIC) && known.life == end;
            if let Some(life) = end.filter(|_| wants) {
                self.traffic.serve(life);
            }
        }
        let version = paths.version();
        self.traffic
            .plan(|| paths.graph().into(), version, now, out);
        if let Some(origin) = &mut self.traffic.origin {
            origin.finish(out);
        }
        self.traffic.pump(now, out);
        for (origin, flow, next) in self.traffic.confirmations() {
            let confirm = ControlMessage::Confirm { flow, next };
            self.router.say(origin.host, confirm);
        }
        let frames = self.router.poll(true, now).into_iter();
        out.extend(frames.map(|(to, frame)| (to, Frame::Router(frame))));
    }
}
