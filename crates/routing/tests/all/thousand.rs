//! A thousand hosts on one switch, in virtual time: the depth of the tree, the bytes on each cable, the time for a large message, and the
//! cost when an inner host dies. `FIGURES=path` writes the figures as JSON, also for fewer hosts.
//!
//! Each host has one cable, which sends one chunk after the other, at the same speed to every other host. Each chunk is a message of the
//! simulation with a number of its own, so hosts forward a chunk while later ones arrive.
use crate::sim::node::{Frame, Out};
use crate::sim::traffic::{Disk, FlowFrame, Traffic};
use rgaps_routing::{
    build, chunk_bytes, Graph, HostId, Life, Load, StreamId, Time, WITHDRAW_AFTER,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

/// A cable's speed: 100 Gbit/s.
const CABLE_BYTES_PER_S: f64 = 12.5e9;
const LATENCY: Duration = Duration::from_micros(10);
/// Lanes over which nothing arrives are closed after this.
const QUIET: Duration = Duration::from_millis(1500);
const CONFIRM: Duration = Duration::from_millis(5);
/// Bytes of a frame beside its content.
const FRAME_BYTES: u64 = 64;
/// Bytes of a host in a tree.
const TREE_HOST_BYTES: u64 = 17;

enum Happening {
    Frame(usize, usize, Frame),
    Confirm,
    Dies(usize),
    Noticed(usize),
}

struct Switch {
    hosts: Vec<Traffic>,
    is_dead: Vec<bool>,
    /// The other hosts have noticed its death.
    is_noticed: Vec<bool>,
    /// The network without the hosts whose death was noticed.
    graph: Rc<Graph>,
    /// The host has all messages.
    is_finished: Vec<bool>,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: Vec<Option<Happening>>,
    /// Until when the cable of each host is busy, and the bytes that it has carried.
    busy: Vec<Time>,
    sent_bytes: Vec<u64>,
    chunk_bytes: u64,
    version: u64,
    out: Out,
    chunks: u64,
    published: u64,
    /// When the last host had all messages.
    finished: Time,
}

fn life(host: usize) -> Life {
    Life {
        host: HostId(host as u64),
        incarnation: 1,
    }
}

impl Switch {
    fn new(count: usize, load: Load, chunk_bytes: u64, chunks: u64) -> Switch {
        let host = |at: usize| {
            let mut traffic = Traffic::new(life(at), Disk::default());
            traffic.load = load;
            traffic.is_subscriber = at > 0;
            traffic.window = 8;
            traffic.has_large = false;
            traffic.retained_max = (2 * load.message_bytes / chunk_bytes) as usize;
            traffic
        };
        let mut switch = Switch {
            hosts: (0..count).map(host).collect(),
            is_dead: vec![false; count],
            is_noticed: vec![false; count],
            graph: mesh(&vec![false; count]).into(),
            is_finished: vec![false; count],
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            happenings: Vec::new(),
            busy: vec![Duration::ZERO; count],
            sent_bytes: vec![0; count],
            chunk_bytes,
            version: 1,
            out: Vec::new(),
            chunks,
            published: 0,
            finished: Duration::ZERO,
        };
        switch.hosts[0].make_origin();
        for at in 1..count {
            switch.hosts[0].serve(life(at));
        }
        switch.plan();
        switch.at(CONFIRM, Happening::Confirm);
        switch
    }

    fn at(&mut self, time: Time, happening: Happening) {
        self.queue
            .push(Reverse((time, self.happenings.len() as u64)));
        self.happenings.push(Some(happening));
    }

    fn plan(&mut self) {
        let graph = self.graph.clone();
        self.hosts[0].plan(|| graph, self.version, self.now, &mut self.out);
        self.publish();
    }

    fn publish(&mut self) {
        let origin = &mut self.hosts[0];
        while self.published < self.chunks {
            if !origin.publish(0, self.now, &mut self.out) {
                break;
            }
            self.published += 1;
        }
        origin.pump(self.now, &mut self.out);
        self.send(0);
    }

    /// Puts the frames of a host on its cable.
    fn send(&mut self, from: usize) {
        for (to, frame) in std::mem::take(&mut self.out) {
            let Frame::Flow(_, flow) = &frame else {
                continue;
            };
            let bytes = FRAME_BYTES
                + match flow {
                    FlowFrame::Message(..) => self.chunk_bytes,
                    FlowFrame::Open(open) => TREE_HOST_BYTES * open.tree.hosts().len() as u64,
                    _ => 0,
                };
            let arrives = self.carry_bytes(from, bytes);
            self.at(arrives, Happening::Frame(from, to.0 as usize, frame));
        }
    }

    fn carry_bytes(&mut self, from: usize, bytes: u64) -> Time {
        self.sent_bytes[from] += bytes;
        let span = Duration::from_secs_f64(bytes as f64 / CABLE_BYTES_PER_S);
        self.busy[from] = self.busy[from].max(self.now) + span;
        self.busy[from] + LATENCY
    }

    /// Runs until all living hosts have confirmed all messages. Returns when the last of them had all.
    fn run(&mut self) -> Time {
        loop {
            let is_done = self.published == self.chunks
                && self.hosts[0]
                    .origin
                    .as_ref()
                    .expect("it publishes")
                    .kept
                    .is_empty();
            if is_done {
                return self.finished;
            }
            let Reverse((time, number)) = self.queue.pop().expect("it does not stall");
            self.now = time;
            let happening = self.happenings[number as usize].take().expect("once");
            self.happen(happening);
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Frame(from, to, frame) => {
                let Frame::Flow(key, frame) = frame else {
                    return;
                };
                if self.is_dead[from] || self.is_dead[to] {
                    return;
                }
                let is_neighbour = |life: Life| !self.is_noticed[life.host.0 as usize];
                let host = &mut self.hosts[to];
                host.frame(life(from), key, frame, &is_neighbour, &mut self.out);
                host.pump(self.now, &mut self.out);
                let mut records = host.disk.finals.values();
                if records.any(|record| record.next == self.chunks) && !self.is_finished[to] {
                    self.is_finished[to] = true;
                    self.finished = self.now;
                }
                self.send(to);
                if to == 0 {
                    self.plan();
                }
            }
            Happening::Confirm => self.confirm(),
            Happening::Dies(at) => {
                self.is_dead[at] = true;
                self.at(self.now + QUIET + WITHDRAW_AFTER, Happening::Noticed(at));
            }
            Happening::Noticed(dead) => {
                self.version += 1;
                self.is_noticed[dead] = true;
                self.graph = mesh(&self.is_noticed).into();
                for at in 0..self.hosts.len() {
                    if !self.is_dead[at] {
                        self.hosts[at].link_ended(life(dead), &mut self.out);
                        self.send(at);
                    }
                }
                self.plan();
            }
        }
    }

    /// All hosts send their confirmations, each over its own cable.
    fn confirm(&mut self) {
        for at in (1..self.hosts.len())
            .filter(|at| !self.is_dead[*at])
            .collect::<Vec<_>>()
        {
            for (_, flow, next) in self.hosts[at].confirmations() {
                self.carry_bytes(at, FRAME_BYTES);
                self.hosts[0].confirmed(life(at), StreamId(flow.stream), next);
            }
        }
        self.plan();
        self.at(self.now + CONFIRM, Happening::Confirm);
    }
}

/// The graph in which all hosts that are not left out have links to each other.
fn mesh(is_left_out: &[bool]) -> Graph {
    let mut graph = Graph::new(life(0));
    let hosts: Vec<usize> = (0..is_left_out.len())
        .filter(|at| !is_left_out[*at])
        .collect();
    for (at, a) in hosts.iter().enumerate() {
        for b in &hosts[at + 1..] {
            graph.join(life(*a), life(*b));
        }
    }
    graph
}

/// The cost of sending some messages to all hosts.
struct Figures {
    hosts: usize,
    message_bytes: u64,
    messages: u64,
    depth: usize,
    width: usize,
    seconds: f64,
    /// The time that a cable needs to send one message once.
    hop_seconds: f64,
    origin_bytes: u64,
    cable_bytes_max: u64,
    cable_bytes_mean: u64,
    hosts_below_dead: usize,
}

impl Figures {
    fn json(&self, fault: &str) -> String {
        format!(
            r#"{{"fault":"{fault}","hosts":{},"message_bytes":{},"messages":{},"depth":{},"width":{},"seconds":{:.6},"hop_seconds":{:.6},"origin_cable_bytes":{},"cable_bytes_max":{},"cable_bytes_mean":{},"hosts_below_dead":{}}}"#,
            self.hosts,
            self.message_bytes,
            self.messages,
            self.depth,
            self.width,
            self.seconds,
            self.hop_seconds,
            self.origin_bytes,
            self.cable_bytes_max,
            self.cable_bytes_mean,
            self.hosts_below_dead,
        )
    }
}

/// Sends messages to all hosts. `dies`: the origin's first child dies in the middle of the second message.
fn measure(hosts: usize, message_bytes: u64, messages: u64, dies: bool) -> Figures {
    let load = Load {
        message_bytes,
        tree_bytes_min: 64 << 10,
        fanout: 2,
        lanes: 4,
    };
    let wanted = (1..hosts).map(life).collect();
    let tree = build(&mesh(&vec![false; hosts]), &wanted, load);
    let chunk = chunk_bytes(message_bytes, tree.depth());
    let mut switch = Switch::new(hosts, load, chunk, messages * message_bytes / chunk);
    let hop_seconds = message_bytes as f64 / CABLE_BYTES_PER_S;
    let inner = tree.children[0].life.host.0 as usize;
    if dies {
        let time = Duration::from_secs_f64(1.5 * hop_seconds * tree.width() as f64);
        switch.at(time, Happening::Dies(inner));
    }
    let seconds = switch.run().as_secs_f64();
    for (at, host) in switch.hosts.iter().enumerate().skip(1) {
        let chunks: u64 = host
            .disk
            .finals
            .values()
            .map(|record| record.delivered.len() as u64)
            .sum();
        assert!(
            chunks == switch.chunks || at == inner && dies,
            "host {at} has {chunks}"
        );
        let missed = host
            .disk
            .finals
            .values()
            .any(|record| !record.missed.is_empty());
        assert!(!missed, "host {at} missed messages");
    }
    Figures {
        hosts,
        message_bytes,
        messages,
        depth: tree.depth(),
        width: tree.width(),
        seconds,
        hop_seconds,
        origin_bytes: switch.sent_bytes[0],
        cable_bytes_max: *switch.sent_bytes.iter().max().expect("hosts"),
        cable_bytes_mean: switch.sent_bytes.iter().sum::<u64>() / hosts as u64,
        hosts_below_dead: if dies {
            tree.children[0].hosts().len() - 1
        } else {
            0
        },
    }
}

#[test]
fn a_thousand_hosts_get_large_messages_over_two_copies_of_the_origin() {
    let calm = measure(1000, 64 << 20, 2, false);
    println!("{}", calm.json("none"));
    let once = calm.messages * calm.message_bytes;
    let copies = calm.origin_bytes as f64 / once as f64;
    assert!(calm.width == 2 && calm.depth <= 9);
    assert!(copies < 2.01, "the origin sent {copies} copies");
    let most = calm.cable_bytes_max as f64 / once as f64;
    assert!(most < 2.01, "a cable carried {most} copies");
    let hops = calm.seconds / calm.hop_seconds / calm.messages as f64;
    assert!(hops < 2.5, "a message took {hops} hop times");

    let fault = measure(1000, 64 << 20, 2, true);
    println!("{}", fault.json("inner host"));
    assert!(fault.hosts_below_dead > 400);
    let more = (fault.origin_bytes - calm.origin_bytes) as f64 / calm.message_bytes as f64;
    assert!(
        more < 2.0,
        "the death of an inner host cost {more} messages on the origin's cable"
    );
}

#[test]
fn fifteen_hosts_get_a_large_message_in_little_more_than_one_hop() {
    let figures = measure(16, 256 << 20, 1, false);
    println!("{}", figures.json("none"));
    let hops = figures.seconds / figures.hop_seconds;
    assert!(hops < 1.5, "it took {hops} hop times");
}

#[test]
fn figures_for_a_plot() {
    let Ok(path) = std::env::var("FIGURES") else {
        return;
    };
    let mut rows = Vec::new();
    for hosts in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000] {
        for message_bytes in [1 << 20, 16 << 20, 64 << 20] {
            rows.push(measure(hosts, message_bytes, 2, false).json("none"));
            if hosts > 2 {
                rows.push(measure(hosts, message_bytes, 2, true).json("inner host"));
            }
        }
    }
    std::fs::write(&path, format!("[{}]\n", rows.join(",\n"))).expect("the file of figures");
}
