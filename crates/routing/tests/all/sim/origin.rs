//! What a host publishes. It opens a flow to each host that the graph reaches; links also have rules and quotas.
use super::node::{Out, OUTAGE};
use super::traffic::{bytes, send, FlowFrame};
use super::transit::FlowDescription;
use rgaps_routing::{
    build, Delivery, Graph, HostId, Life, Load, Publisher, StreamHealth, StreamId, Time, Tree,
};
use std::collections::{BTreeMap, BTreeSet};

/// A host that is served.
struct Served {
    life: Life,
    confirmed: u64,
    /// It was not served before.
    is_new: bool,
    unreachable: Option<Time>,
}

/// A flow, and the link that it is sent on.
struct OriginFlow {
    tree: Tree,
    /// What is sent there arrives. If not, the link retains it for nobody.
    is_linked: bool,
    health: StreamHealth,
    /// The link retains messages from `acknowledged` up to `sent`.
    acknowledged: u64,
    sent: u64,
    /// Large messages whose rest is not yet sent.
    partial: BTreeSet<u64>,
}

/// An origin's delivery, and what it gave up.
pub struct Origin {
    pub delivery: Delivery,
    pub publisher: Publisher,
    /// Hosts that were given up: from which number, and up to which when they came back.
    pub given_up: Vec<(HostId, u64, Option<u64>)>,
    /// The version of the graph that the flows were planned for.
    planned: u64,
    /// All messages, and those that are still there.
    pub numbers: BTreeSet<u64>,
    pub kept: BTreeSet<u64>,
    /// Messages that the origin gave up. Some hosts may have them.
    pub withdrawn: BTreeSet<u64>,
    hosts: BTreeMap<HostId, Served>,
    flows: BTreeMap<StreamId, OriginFlow>,
    flows_opened: u64,
    is_dirty: bool,
}

impl Origin {
    pub fn new(life: Life) -> Origin {
        let publisher = Publisher {
            origin: life,
            number: 0,
        };
        Origin {
            delivery: Delivery::default(),
            publisher,
            given_up: Vec::new(),
            planned: 0,
            numbers: BTreeSet::new(),
            kept: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            hosts: BTreeMap::new(),
            flows: BTreeMap::new(),
            flows_opened: 0,
            is_dirty: false,
        }
    }

    /// Publishes a message, and leaves out so many numbers before it.
    pub fn publish(&mut self, gap: u64) {
        let number = self.delivery.next() + gap;
        self.delivery.publish(number);
        self.numbers.insert(number);
        self.kept.insert(number);
    }

    pub fn serve(&mut self, life: Life) {
        let known = self.hosts.entry(life.host).or_insert(Served {
            life,
            confirmed: 0,
            is_new: true,
            unreachable: None,
        });
        self.is_dirty |= known.is_new || known.life != life;
        known.life = life;
    }

    /// The hosts that are served.
    pub fn hosts(&self) -> impl Iterator<Item = Life> + '_ {
        self.hosts.values().map(|host| host.life)
    }

    pub fn flows(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.flows.keys().copied()
    }

    pub fn confirmed(&mut self, from: Life, id: StreamId, next: u64) {
        let flow = self.flows.get(&id);
        if flow.is_some_and(|flow| flow.tree.finals().contains(&from)) {
            assert!(next <= self.delivery.next(), "confirmed too much");
            self.delivery.confirmed(id, from.host, next);
            self.note(from, next);
        }
    }

    pub fn acknowledged(&mut self, id: StreamId, next: u64) {
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        flow.acknowledged = flow.acknowledged.max(next);
        self.delivery.acknowledged(id, next);
        let (root, is_final) = (flow.tree.life, flow.tree.is_final);
        if is_final {
            self.note(root, next);
        }
    }

    fn note(&mut self, life: Life, next: u64) {
        if let Some(host) = self.hosts.get_mut(&life.host) {
            host.confirmed = host.confirmed.max(next);
        }
    }

    /// A host of a flow broke off, with all below it.
    pub fn broken(&mut self, id: StreamId, host: HostId) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.is_linked &= flow.tree.life.host != host;
            flow.health.set_broken();
            self.is_dirty = true;
        }
    }

    pub fn link_ended(&mut self, neighbour: Life) {
        let flows = self.flows.values_mut();
        for flow in flows.filter(|flow| flow.tree.life == neighbour) {
            flow.is_linked = false;
            flow.health.set_broken();
            self.is_dirty = true;
        }
    }

    /// Whether [`Origin::plan`] has something to do at this version of the graph.
    pub fn needs_plan(&self, version: u64, now: Time) -> bool {
        let (mut hosts, mut flows) = (self.hosts.values(), self.flows.values());
        self.is_dirty
            || self.planned != version
            || hosts.any(|host| is_lost(host, now))
            || flows.any(|flow| flow.health.is_to_be_replaced(true, version, now))
    }

    /// Opens and closes flows, so that each reachable host is in the tree of one. `version`: of the graph.
    pub fn plan(&mut self, (graph, version): (&Graph, u64), load: Load, now: Time, out: &mut Out) {
        (self.is_dirty, self.planned) = (false, version);
        let reachable = graph.parents();
        for host in self.hosts.values_mut() {
            let is_reachable = reachable.contains_key(&host.life);
            host.unreachable = (!is_reachable).then(|| host.unreachable.unwrap_or(now));
        }
        let given_up = &mut self.given_up;
        self.hosts.retain(|id, host| {
            let is_lost = is_lost(host, now);
            if is_lost && !host.is_new {
                given_up.push((*id, host.confirmed, None));
            }
            !is_lost
        });
        let wanted = self
            .hosts
            .values()
            .filter(|host| host.unreachable.is_none());
        let wanted = wanted.map(|host| host.life).collect();
        let mut planned = BTreeSet::new();
        for branch in build(graph, &wanted, load).children {
            let mut flows = self.flows.iter();
            let stays = flows.find(|(_, flow)| {
                let is_wanted = flow.tree == branch;
                !flow.health.is_to_be_replaced(is_wanted, version, now)
            });
            let stays = stays.map(|(id, _)| *id);
            planned.insert(stays.unwrap_or_else(|| {
                let health = StreamHealth::new(version, now);
                self.open(branch, health, out)
            }));
        }
        // A host that cannot be reached keeps the flow that it had.
        let is_away = |life: Life| {
            let host = self.hosts.get(&life.host);
            host.is_some_and(|host| host.unreachable.is_some())
        };
        let replaced = self.flows.iter().filter(|(id, flow)| {
            !planned.contains(id) && !flow.tree.finals().into_iter().any(is_away)
        });
        for id in replaced.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close(id, out);
        }
    }

    fn open(&mut self, tree: Tree, health: StreamHealth, out: &mut Out) -> StreamId {
        self.flows_opened += 1;
        let id = StreamId((self.publisher.origin.incarnation << 32) + self.flows_opened);
        let (root, from) = (tree.life, self.delivery.next());
        let finals = tree.finals().into_iter();
        let finals = finals.map(|life| (life.host, true)).collect();
        self.delivery.open(id, root.host, &finals, from);
        let first = self.delivery.due(id).map_or(from, |due| due.start);
        for host in finals.keys() {
            let Some(host) = self.hosts.get_mut(host).filter(|host| host.is_new) else {
                continue;
            };
            (host.is_new, host.confirmed) = (false, from);
            let given_up = self.given_up.iter_mut().rev();
            let mut given_up = given_up.filter(|(lost, ..)| *lost == host.life.host);
            if let Some((.., back)) = given_up.next() {
                back.get_or_insert(from);
            }
        }
        let flow = OriginFlow {
            tree: tree.clone(),
            is_linked: true,
            health,
            acknowledged: first,
            sent: first,
            partial: BTreeSet::new(),
        };
        self.flows.insert(id, flow);
        let open = FlowFrame::Open(FlowDescription {
            first,
            tree,
            begins: self.delivery.begins(id),
        });
        send(out, root, (self.publisher, id), open);
        id
    }

    fn close(&mut self, id: StreamId, out: &mut Out) {
        self.delivery.close(id);
        let mut flow = self.flows.remove(&id).expect("it is there");
        if flow.is_linked {
            finish((self.publisher, id), &mut flow, out);
            send(out, flow.tree.life, (self.publisher, id), FlowFrame::Close);
        }
    }

    /// Gives up one of the messages that it keeps, the last one if there are fewer.
    pub fn give_up(&mut self, at: usize, out: &mut Out) {
        let at = at.min(self.kept.len().saturating_sub(1));
        let Some(number) = self.kept.iter().nth(at).copied() else {
            return;
        };
        self.kept.remove(&number);
        self.numbers.remove(&number);
        self.withdrawn.insert(number);
        for (id, flow) in &mut self.flows {
            if flow.partial.remove(&number) && flow.is_linked {
                let to = flow.tree.life;
                send(out, to, (self.publisher, *id), FlowFrame::GiveUp(number));
            }
        }
    }

    /// Sends the rest of the messages that began.
    pub fn finish(&mut self, out: &mut Out) {
        for (id, flow) in &mut self.flows {
            finish((self.publisher, *id), flow, out);
        }
    }

    /// Sends what is due, as far as links take it, and drops messages that nobody needs any more.
    pub fn pump(&mut self, window: u64, has_large: bool, out: &mut Out) {
        for (id, flow) in &mut self.flows {
            let mut send = |life, frame| send(out, life, (self.publisher, *id), frame);
            let life = flow.tree.life;
            while let Some(due) = self.delivery.due(*id) {
                let is_full = flow.sent - flow.acknowledged >= window;
                if flow.is_linked && is_full {
                    break;
                }
                let number = self.kept.range(due.clone()).next().copied();
                let expected = self.numbers.range(due.clone()).next().copied();
                assert_eq!(number, expected, "it was let go");
                let Some(number) = number else {
                    self.delivery.sent(*id, due.end - 1, false);
                    flow.sent = due.end;
                    if flow.is_linked {
                        send(life, FlowFrame::Miss(due.end));
                    }
                    break;
                };
                let missed = flow.sent < number;
                flow.sent = number + 1;
                self.delivery.sent(*id, number, true);
                if !flow.is_linked {
                    continue;
                }
                if missed {
                    send(life, FlowFrame::Miss(number));
                }
                if has_large && number % 3 == 0 {
                    flow.partial.insert(number);
                    send(life, FlowFrame::Begin(number));
                } else {
                    let content = bytes(self.publisher, number);
                    send(life, FlowFrame::Message(number, content));
                }
            }
        }
        let retained = self.delivery.retained();
        let flows = &self.flows;
        self.kept.retain(|number| {
            let mut flows = flows.values();
            *number >= retained || flows.any(|flow| (flow.acknowledged..flow.sent).contains(number))
        });
    }
}

/// Sends the rest of the messages of a flow that began.
fn finish(key: (Publisher, StreamId), flow: &mut OriginFlow, out: &mut Out) {
    for number in std::mem::take(&mut flow.partial) {
        if flow.is_linked {
            let message = FlowFrame::Message(number, bytes(key.0, number));
            send(out, flow.tree.life, key, message);
        }
    }
}

/// Whether a host could not be reached for too long.
fn is_lost(host: &Served, now: Time) -> bool {
    let since = host.unreachable;
    since.is_some_and(|since| now.saturating_sub(since) >= OUTAGE)
}
