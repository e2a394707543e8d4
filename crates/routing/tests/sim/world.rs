//! A network of hosts that run, stop, restart, and whose cables flap.
use super::network::{host, Arrival, Happening, Network};
use super::node::{Frame, Node, Out};
use super::random::Random;
use super::shape;
use rgaps_routing::{Life, Time};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(50);
/// After a frame a host looks after what has to be sent.
const REACT: Duration = Duration::from_millis(5);

pub struct World {
    pub random: Random,
    pub network: Network,
    pub hosts: Vec<Option<Node>>,
    incarnations: u64,
    /// When each host looks next.
    polls: Vec<Time>,
    out: Out,
}

impl World {
    /// Some hosts, all running, and the cables between them, all up.
    pub fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let count = 3 + random.below(10) as usize;
        let cables = shape::cables(count, &mut random);
        let mut world = World {
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
                Happening::Frame(arrival) => self.arrive(arrival),
                Happening::Poll(at) => self.poll(at),
                Happening::Fault => self.fault(),
            }
        }
        self.network.now = end;
    }

    /// The cables over which hosts can talk now.
    pub fn usable(&self) -> Vec<(usize, usize)> {
        let cables = self.network.cables.iter().filter(|cable| {
            let (a, b) = cable.ends;
            cable.is_up && self.hosts[a].is_some() && self.hosts[b].is_some()
        });
        cables.map(|cable| cable.ends).collect()
    }

    /// Everything that was stopped or pulled is there again.
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
        match self.random.below(11) {
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
            _ => self.plug(cable),
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
        self.hosts[at] = Some(Node::new(life));
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
        if self.hosts[at].take().is_none() {
            return;
        }
        self.polls[at] = Duration::MAX;
        for cable in 0..self.network.cables.len() {
            let ends = self.network.cables[cable].ends;
            if ends.0 == at || ends.1 == at {
                self.lose(cable);
                self.network.cables[cable].session = None;
                self.network.cables[cable].swallowed.clear();
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
                node.paths.lanes_lost(host(other), self.network.now);
            }
        }
    }

    /// The ends of a cable have lanes, if both run and it is up. A session that neither withdrew goes on.
    fn join(&mut self, cable: usize) {
        let (a, b) = self.network.cables[cable].ends;
        let lives = [a, b].map(|at| self.hosts[at].as_ref().map(|node| node.life));
        let ([Some(one), Some(two)], true) = (lives, self.network.cables[cable].is_up) else {
            return;
        };
        let goes_on = self.network.cables[cable].session.is_some();
        for (own, other) in [(a, two), (b, one)] {
            let node = self.hosts[own].as_mut().expect("it runs");
            if !goes_on {
                node.paths.link_ended(other.host);
            }
            node.paths.link_up(other);
            self.after(own);
            self.wake(own, REACT);
        }
        if goes_on {
            let swallowed = std::mem::take(&mut self.network.cables[cable].swallowed);
            for arrival in swallowed {
                self.network.deliver(arrival, &mut self.random);
            }
        } else {
            let session = self.network.new_session();
            self.network.cables[cable].session = Some(session);
            self.network.cables[cable].swallowed.clear();
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        let cable = &mut self.network.cables[arrival.cable];
        if cable.session != Some(arrival.session) {
            return;
        }
        if !cable.is_up || !cable.swallowed.is_empty() {
            cable.swallowed.push_back(arrival);
            return;
        }
        let from = cable.other(arrival.to);
        let from = self.hosts[from].as_ref().expect("a session has both").life;
        let to = arrival.to;
        let node = self.hosts[to].as_mut().expect("a session has both");
        node.frame(from, arrival.frame, self.network.now, &mut self.out);
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
        for ended in node.take_ended() {
            let other = ended.host.0 as usize;
            let cable = self.network.cable_between(at, other).expect("a cable");
            let runs = self.hosts[other]
                .as_ref()
                .is_some_and(|node| node.life == ended);
            if runs {
                self.network.cables[cable].session = None;
                self.network.cables[cable].swallowed.clear();
            }
        }
        let mut out = std::mem::take(&mut self.out);
        for (to, frame) in out.drain(..) {
            // A host between has no room.
            if matches!(frame, Frame::Datagram(_)) && self.random.one_in(20) {
                continue;
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
