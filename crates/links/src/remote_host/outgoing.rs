//! The streams in which a topic of this host goes to other hosts, and their flows.

use super::RemoteHost;
use crate::control_plane::random_u64;
use crate::egress::{FlowLimits, FlowTarget, Hold};
use crate::network::{id, Network};
use crate::wire::{FlowDescription, Tree};
use rgaps_routing::{HostId, StreamHealth};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause before this host opens a flow again that another host refused.
const OPEN_AGAIN: Duration = Duration::from_millis(900);

/// A host's answer to OPEN, and when it came: the host takes the flow's messages, or the reason why not.
pub type FlowAnswer = (Result<(), String>, Instant);

/// Whether a host refused a flow less than [`OPEN_AGAIN`] ago, so that the flow must not be opened again yet.
pub fn is_refused_now(answer: Option<&FlowAnswer>) -> bool {
    answer.is_some_and(|(answer, at)| answer.is_err() && at.elapsed() < OPEN_AGAIN)
}

/// The stream in which a topic's messages go to one directly linked host, the root, and from there to the hosts below.
pub struct OutgoingStream {
    /// A random number that names the stream on the wire: `FlowName::stream` of its flows.
    stream: u64,
    /// The tree that the messages follow from the linked host, which is its root.
    tree: Tree,
    /// By the numbers of publishers.
    flows: BTreeMap<u64, OutgoingFlow>,
    limits: FlowLimits,
    /// Why rules or quotas keep all publishers' messages from the root. None: some publisher may send.
    barred: Option<String>,
    health: StreamHealth,
    /// The lives of the final hosts below the root when the stream began. None: the host was not reached then.
    lives: BTreeMap<String, Option<u64>>,
    /// Whether network cards read the messages in GPU memory here.
    is_read: bool,
    /// Whether network cards write the messages into GPU memory at the root, or why not. None: the root has not said yet.
    written: Option<Result<(), String>>,
}

/// One publisher's messages in a stream.
struct OutgoingFlow {
    description: Arc<FlowDescription>,
    /// The last answers of the hosts of the tree, by their names.
    answers: BTreeMap<String, FlowAnswer>,
}

impl OutgoingFlow {
    fn answer(&self, host: &str) -> Option<Result<(), &str>> {
        let (answer, _) = self.answers.get(host)?;
        Some(answer.as_ref().copied().map_err(String::as_str))
    }
}

impl OutgoingStream {
    /// A stream that has no flows yet.
    pub fn new(tree: Tree, network: &Network) -> OutgoingStream {
        let below = tree.ends_below();
        let lives = below.map(|end| (end.clone(), network.incarnation(end)));
        OutgoingStream {
            stream: random_u64(),
            lives: lives.collect(),
            tree,
            flows: BTreeMap::new(),
            limits: FlowLimits::default(),
            barred: None,
            health: network.begin_stream(),
            is_read: false,
            written: None,
        }
    }

    /// Whether another stream has to replace this one. `wanted`: the tree that is planned now.
    pub fn is_to_be_replaced(&self, wanted: &Tree, network: &Network) -> bool {
        let has_restarted = |(end, life): (&String, &Option<u64>)| {
            let now = network.incarnation(end);
            now.is_some() && now != *life
        };
        let is_wanted = self.tree == *wanted && !self.lives.iter().any(has_restarted);
        network.is_to_be_replaced(&self.health, is_wanted)
    }

    /// Records that a host of the tree gets no more of the stream.
    pub fn set_broken(&mut self) {
        self.health.set_broken();
    }

    pub fn is_broken(&self) -> bool {
        self.health.is_broken()
    }

    /// Records that the root restarted. Its link sends again what it had not acknowledged, but what it had not yet forwarded to hosts below
    /// is lost there, so another stream has to send that.
    pub fn root_restarted(&mut self) {
        if self.tree.leads_on() {
            self.health.root_restarted();
        }
    }

    /// Sets whether network cards read the messages in GPU memory here.
    pub fn with_read(self, is_read: bool) -> OutgoingStream {
        OutgoingStream { is_read, ..self }
    }

    pub fn stream(&self) -> u64 {
        self.stream
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn limits(&self) -> &FlowLimits {
        &self.limits
    }

    pub fn barred(&self) -> Option<&String> {
        self.barred.as_ref()
    }

    pub fn is_read(&self) -> bool {
        self.is_read
    }

    /// Whether network cards write the messages into GPU memory at the root, or why not. None: the root has not said yet.
    pub fn written(&self) -> Option<&Result<(), String>> {
        self.written.as_ref()
    }

    pub fn set_written(&mut self, outcome: Result<(), String>) {
        self.written = Some(outcome);
    }

    /// Opens a publisher's flow, unless it is open or barred. Returns whether it did.
    pub fn open(
        &mut self,
        publisher: u64,
        describe: impl FnOnce(&Tree) -> FlowDescription,
    ) -> bool {
        let is_barred = self.limits.held.get(&publisher) == Some(&Hold::Barred);
        if is_barred || self.flows.contains_key(&publisher) {
            return false;
        }
        let flow = OutgoingFlow {
            description: Arc::new(describe(&self.tree)),
            answers: BTreeMap::new(),
        };
        self.flows.insert(publisher, flow);
        true
    }

    /// Forgets the flows of publishers that ended.
    pub fn end_flows(&mut self, ended: &[u64]) {
        self.flows.retain(|publisher, _| !ended.contains(publisher));
    }

    /// Sets which messages may go to the root. `why`: a reason that bars a publisher, if one is barred. Returns whether the limits changed.
    pub fn set_limits(
        &mut self,
        limits: FlowLimits,
        why: Option<String>,
        mut publishers: impl Iterator<Item = u64>,
    ) -> bool {
        let some = publishers.any(|publisher| !limits.bars(publisher));
        self.barred = why.filter(|_| !some);
        let is_changed = self.limits != limits;
        self.limits = limits;
        is_changed
    }

    /// Records a host's answer to OPEN. Returns whether it differs from its last one. None: the stream has no flow of that publisher.
    pub fn answered(
        &mut self,
        publisher: u64,
        host: &str,
        (answer, at): FlowAnswer,
    ) -> Option<bool> {
        let answers = &mut self.flows.get_mut(&publisher)?.answers;
        let is_new = answers.get(host).map(|(before, _)| before) != Some(&answer);
        answers.insert(host.to_owned(), (answer, at));
        Some(is_new)
    }

    /// The final host `end` below the root, if `from` may report on it: only hosts on the tree's path to it may.
    pub fn end_reported_by(&self, from: HostId, end: HostId) -> Option<String> {
        let end = self.tree.ends_below().find(|host| id(host) == end)?;
        let mut on = self.tree.path(end);
        on.push(self.tree.root().to_owned());
        on.iter().any(|host| id(host) == from).then(|| end.clone())
    }

    /// Where the topic's subscriber sends messages of this stream. None: there is no link with `peer`, the root.
    pub fn target(&self, peer: &RemoteHost) -> Option<FlowTarget> {
        let flows = self.flows.values();
        Some(FlowTarget {
            tree: self.tree.clone(),
            link: peer.linked()?.clone(),
            stream: self.stream,
            publishers: flows.map(|flow| flow.description.clone()).collect(),
            counts: peer.counts().clone(),
            limits: self.limits.clone(),
            is_in_transit: false,
        })
    }

    /// Forgets what the root answered and reported: its next life answers anew.
    pub fn forget_answers(&mut self) {
        self.written = None;
        let flows = self.flows.values_mut();
        flows.for_each(|flow| flow.answers.clear());
    }

    /// Whether the root takes the messages of at least one flow.
    pub fn is_taken(&self) -> bool {
        let mut flows = self.flows.values();
        flows.any(|flow| flow.answer(self.tree.root()) == Some(Ok(())))
    }

    /// A host's answer to the stream: Ok if it takes at least one flow, an error if it refuses all. None: it has not answered some, and
    /// takes none.
    fn answer(&self, host: &str) -> Option<Result<(), &str>> {
        let answers = || self.flows.values().map(|flow| flow.answer(host));
        if self.flows.is_empty() || answers().any(|answer| answer == Some(Ok(()))) {
            return Some(Ok(()));
        }
        answers().reduce(|one, other| one.and_then(|one| other.map(|_| one)))?
    }

    /// Whether messages get to `host`, or why not. `peer`: the root.
    pub fn reaches(&self, peer: &RemoteHost, host: &str) -> Result<(), &str> {
        match (self.answer(host), peer.reach().is_up()) {
            (Some(Err(why)), _) => Err(why),
            (_, false) => Err("the host is not linked now"),
            (None, true) => Err("the host still prepares"),
            (Some(Ok(())), true) => Ok(()),
        }
    }

    /// Publishers that the root refused less than [`OPEN_AGAIN`] ago.
    pub fn refused(&self) -> impl Iterator<Item = u64> + '_ {
        let refused = self.flows.iter().filter(|(_, flow)| {
            let answer = flow.answers.get(self.tree.root());
            is_refused_now(answer)
        });
        refused.map(|(publisher, _)| *publisher)
    }
}
