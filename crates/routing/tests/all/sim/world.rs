//! A network of hosts that run, stop, restart, and whose cables flap.
use super::network::{host, Happening, Network};
use super::node::{Frame, Node, Out};
use super::shape;
use super::traffic::{Disk, FlowFrame, TOPIC};
use rgaps_routing::{HostId, Life, Publisher, RouterFrame, Time};
use rgaps_testkit::Random;
use std::collections::BTreeMap;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);
/// A host polls so soon after a frame arrives.
const REACT: Duration = Duration::from_millis(5);

/// What a host does whenever it runs.
#[derive(Clone, Copy, Default)]
pub struct Role {
    pub is_origin: bool,
    pub is_subscriber: bool,
    /// The size of the messages, if it is an origin. It decides the kind of tree.
    pub message_bytes: u64,
    pub fanout: usize,
}

pub struct World {
    pub random: Random,
    pub network: Network,
    pub hosts: Vec<Option<Node>>,
    pub roles: Vec<Role>,
    /// Whether origins give up some of their messages.
    pub gives_up: bool,
    /// How often each message crossed each cable in each direction; `None` if that is not counted.
    pub copies: Option<BTreeMap<(usize, HostId, Publisher, u64), u64>>,
    /// The disks of the hosts that do not run.
    disks: Vec<Disk>,
    incarnations: u64,
    /// When each host polls next.
    polls: Vec<Time>,
    out: Out,
}

impl World {
    /// A random network without messages: all hosts run, and all cables are up.
    pub fn new(seed: u64) -> World {
        World::with_roles(seed, |_, _| Role::default())
    }

    /// A random network whose hosts have roles.
    pub fn with_roles(seed: u64, role: impl Fn(usize, &mut Random) -> Role) -> World {
        let mut random = Random::new(seed);
        let count = 3 + random.below(10) as usize;
        let cables = shape::cables(count, &mut random);
        let roles = (0..count).map(|at| role(at, &mut random)).collect();
        let mut world = World {
            roles,
            gives_up: true,
            copies: None,
            disks: (0..count).map(|_| Disk::default()).collect(),
            network: Network::new(cables),
            random,
            hosts: (0..count).map(|_| None).collect(),
            incarnations: 0,
            polls: vec![Duration::MAX; count],
            out: Vec::new(),
        };
        for at in 0..count {
            world.start(at);
        }
        for cable in 0..world.network.cables.len() {
            world.plug(cable);
        }
        world
    }

    /// Plans `count` faults, the last at `end`.
    pub fn faults(&mut self, count: u64, end: Duration) {
        let end_us = end.as_micros() as u64;
        for _ in 0..count {
            let at = self.network.now + Duration::from_micros(self.random.below(end_us));
            self.network.at(at, Happening::Fault);
        }
    }

    pub fn run(&mut self, span: Duration) {
        let end = self.network.now + span;
        while let Some(happening) = self.network.next(end) {
            match happening {
                Happening::Arrival(cable, end) => self.arrive(cable, end),
                Happening::Poll(at) => self.poll(at),
                Happening::Fault => self.fault(),
                Happening::Publish(at) => self.publish(at),
                Happening::Up(at, cable, other, session) => {
                    let cable = &self.network.cables[cable];
                    if cable.is_up && cable.session == Some(session) {
                        self.link_up(at, other);
                    }
                }
                Happening::Over(at, other) => self.link_over(at, other),
            }
        }
        self.network.now = end;
    }

    /// The cables that are up and whose hosts both run.
    pub fn usable(&self) -> Vec<(usize, usize)> {
        let cables = self.network.cables.iter().filter(|cable| {
            let (a, b) = cable.ends;
            cable.is_up && self.hosts[a].is_some() && self.hosts[b].is_some()
        });
        cables.map(|cable| cable.ends).collect()
    }

    /// Plans messages of all origins, the last at `end`.
    pub fn messages(&mut self, count: u64, end: Duration) {
        let end_us = end.as_micros() as u64;
        for at in (0..self.hosts.len())
            .filter(|at| self.roles[*at].is_origin)
            .collect::<Vec<_>>()
        {
            for _ in 0..count {
                let time = self.network.now + Duration::from_micros(self.random.below(end_us));
                self.network.at(time, Happening::Publish(at));
            }
        }
    }

    fn publish(&mut self, at: usize) {
        if let Some(node) = &mut self.hosts[at] {
            let gap = self.random.below(3);
            node.traffic.publish(gap, self.network.now, &mut self.out);
            if self.gives_up && self.random.one_in(16) {
                node.traffic.give_up(usize::MAX, &mut self.out);
            }
            self.after(at);
        }
    }

    /// Starts all hosts, and plugs in all cables.
    pub fn heal(&mut self) {
        for at in 0..self.hosts.len() {
            if self.hosts[at].is_none() {
                self.start(at);
            }
        }
        for cable in 0..self.network.cables.len() {
            self.plug(cable);
        }
    }

    fn fault(&mut self) {
        let cables = self.network.cables.len() as u64;
        let cable = self.random.below(cables) as usize;
        let at = self.random.below(self.hosts.len() as u64) as usize;
        match self.random.below(14) {
            0 => self.stop(at),
            1 if self.hosts[at].is_some() => {
                self.stop(at);
                self.start(at);
            }
            1..=3 => self.start(at),
            4 => self.pull(cable),
            5 => {
                self.pull(cable);
                self.plug(cable);
            }
            6..=8 => self.change_interest(at),
            9 => self.block(at),
            10 => {
                if let Some(node) = &mut self.hosts[at] {
                    node.traffic.drop_transit(&mut self.out);
                    self.after(at);
                }
            }
            11 => {
                let number = self.random.below(48) as usize;
                if let Some(node) = &mut self.hosts[at] {
                    node.traffic.give_up(number, &mut self.out);
                    self.after(at);
                }
            }
            _ => self.plug(cable),
        }
    }

    /// The subscriber of a host takes no message for a while.
    fn block(&mut self, at: usize) {
        let span = Duration::from_millis(self.random.below(1000));
        if let Some(node) = &mut self.hosts[at] {
            node.traffic.block(self.network.now + span);
        }
    }

    fn change_interest(&mut self, at: usize) {
        let (topic, want) = (self.random.below(4), self.random.below(3));
        if let Some(node) = &mut self.hosts[at] {
            node.want(&format!("t/{topic}"), want);
            self.wake(at, REACT);
        }
    }

    pub fn start(&mut self, at: usize) {
        if self.hosts[at].is_some() {
            return;
        }
        self.incarnations += 1;
        let life = Life {
            host: host(at),
            incarnation: self.incarnations,
        };
        let mut node = Node::new(life, std::mem::take(&mut self.disks[at]));
        let role = self.roles[at];
        if role.is_origin {
            node.traffic.make_origin();
        }
        node.traffic.load.message_bytes = role.message_bytes;
        node.traffic.load.fanout = role.fanout;
        node.traffic.is_subscriber = role.is_subscriber;
        node.want(TOPIC, role.is_subscriber.into());
        self.hosts[at] = Some(node);
        let phase = Duration::from_micros(self.random.below(50_000));
        self.wake(at, phase);
        for cable in 0..self.network.cables.len() {
            let ends = self.network.cables[cable].ends;
            if ends.0 == at || ends.1 == at {
                self.join(cable);
            }
        }
    }

    pub fn stop(&mut self, at: usize) {
        let Some(node) = self.hosts[at].take() else {
            return;
        };
        self.disks[at] = node.traffic.disk;
        self.polls[at] = Duration::MAX;
        for cable in 0..self.network.cables.len() {
            let ends = self.network.cables[cable].ends;
            if ends.0 == at || ends.1 == at {
                self.lose(cable);
                self.network.cables[cable].end_session();
                let other = if ends.0 == at { ends.1 } else { ends.0 };
                let over = Happening::Over(other, node.life);
                self.network.at(self.network.now, over);
            }
        }
    }

    pub fn pull(&mut self, cable: usize) {
        if std::mem::take(&mut self.network.cables[cable].is_up) {
            self.lose(cable);
        }
    }

    pub fn plug(&mut self, cable: usize) {
        if !std::mem::replace(&mut self.network.cables[cable].is_up, true) {
            self.join(cable);
        }
    }

    /// Both ends lose the lanes of a link.
    fn lose(&mut self, cable: usize) {
        let (a, b) = self.network.cables[cable].ends;
        for (own, other) in [(a, b), (b, a)] {
            if let Some(node) = &mut self.hosts[own] {
                node.router.lanes_lost(host(other), self.network.now);
            }
        }
    }

    /// Gives both ends of a cable lanes, if both run and the cable is up. A session that neither end has withdrawn goes on.
    fn join(&mut self, cable: usize) {
        let (a, b) = self.network.cables[cable].ends;
        let lives = [a, b].map(|at| self.hosts[at].as_ref().map(|node| node.life));
        let ([Some(one), Some(two)], true) = (lives, self.network.cables[cable].is_up) else {
            return;
        };
        let goes_on = self.network.cables[cable].session.is_some();
        for (own, other) in [(a, two), (b, one)] {
            let node = self.hosts[own].as_mut().expect("it runs");
            if goes_on {
                let random = &mut self.random;
                node.traffic
                    .lanes_lost(other, || random.one_in(2), &mut self.out);
            } else {
                node.router.link_ended(other.host);
            }
            self.after(own);
        }
        self.link_up(a, two);
        if goes_on {
            self.link_up(b, one);
            self.network.resend(cable, &mut self.random);
            return;
        }
        let session = self.network.new_session();
        self.network.cables[cable].session = Some(session);
        // The first frames may arrive before the second end learns that the link is up.
        let late_us = match self.random.one_in(3) {
            true => self.random.below(20_000),
            false => 0,
        };
        let time = self.network.now + Duration::from_micros(late_us);
        self.network.at(time, Happening::Up(b, cable, one, session));
    }

    fn link_over(&mut self, at: usize, other: Life) {
        let node = self.hosts[at].as_mut();
        let node = node.filter(|node| !node.paths().is_neighbour(other));
        if let Some(node) = node {
            node.traffic.link_ended(other, &mut self.out);
            self.after(at);
            self.wake(at, REACT);
        }
    }

    fn link_up(&mut self, at: usize, other: Life) {
        let node = self.hosts[at].as_mut().expect("it runs");
        node.router.link_up(other, self.network.now);
        self.after(at);
        self.wake(at, REACT);
    }

    fn arrive(&mut self, cable: usize, end: usize) {
        let cable = &mut self.network.cables[cable];
        if !cable.is_up {
            return;
        }
        let Some(frame) = cable.frames[end].pop_front() else {
            return;
        };
        let (a, b) = cable.ends;
        let (from, to) = if end == 0 { (b, a) } else { (a, b) };
        let from = self.hosts[from].as_ref().expect("a session has both").life;
        let node = self.hosts[to].as_mut().expect("a session has both");
        node.frame(from, frame, self.network.now, &mut self.out);
        self.after(to);
        self.wake(to, REACT);
    }

    fn poll(&mut self, at: usize) {
        if self.polls[at] != self.network.now {
            return;
        }
        self.polls[at] = Duration::MAX;
        let Some(node) = &mut self.hosts[at] else {
            return;
        };
        node.poll(self.network.now, &mut self.out);
        self.after(at);
        self.wake(at, POLL);
    }

    /// Sends what a host has to send, and ends the sessions of links that it withdrew.
    fn after(&mut self, at: usize) {
        let node = self.hosts[at].as_mut().expect("it runs");
        let life = node.life;
        for ended in node.take_ended(self.network.now, &mut self.out) {
            let other = ended.host.0 as usize;
            let cable = self.network.cable_between(at, other).expect("a cable");
            let runs = self.hosts[other]
                .as_ref()
                .is_some_and(|node| node.life == ended);
            if runs {
                self.network.cables[cable].end_session();
                let over = Happening::Over(other, life);
                self.network.at(self.network.now, over);
            }
        }
        let mut out = std::mem::take(&mut self.out);
        for (to, frame) in out.drain(..) {
            // Lost, as if a host between had no room for it.
            if matches!(frame, Frame::Router(RouterFrame::Datagram(_))) && self.random.one_in(20) {
                continue;
            }
            if let (Some(copies), Frame::Flow(key, FlowFrame::Message(number, _))) =
                (&mut self.copies, &frame)
            {
                *copies.entry((at, to, key.0, *number)).or_default() += 1;
            }
            self.network
                .send(at, to.0 as usize, frame, &mut self.random);
        }
        self.out = out;
    }

    fn wake(&mut self, at: usize, span: Duration) {
        let time = self.network.now + span;
        if time < self.polls[at] {
            self.polls[at] = time;
            self.network.at(time, Happening::Poll(at));
        }
    }
}
