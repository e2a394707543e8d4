//! Another host as the conductor knows it.

use crate::control_plane::random_u64;
use crate::egress::{FlowLimits, Hold};
use crate::host_link::HostLink;
use crate::ingress::{LinkIngress, RemotePublisher};
use crate::keys::HostLife;
use crate::network::Network;
use crate::reach::Reach;
use crate::wire::{clip_to, FlowDescription, LinkMessage, Tree};
use rgaps_client::{PathKind, PeerRow};
use rgaps_routing::FlowName;
use rgaps_session::MAX_PEER_TOPICS;
use rgaps_transport::{LaneKind, LaneStatus, LinkStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The log says at most this often that messages were given up.
const REPORT_GIVEN_UP: Duration = Duration::from_secs(1);
/// Pause before a flow that was refused is opened again.
const OPEN_AGAIN: Duration = Duration::from_millis(900);
/// How long a stream of which a branch is broken waits for other routes.
const BROKEN_LIMIT: Duration = Duration::from_secs(5);

/// A publisher of theirs whose messages come here.
pub struct IngressPlan {
    /// What OPEN said of it, and what was said since.
    pub description: FlowDescription,
    pub landing: Option<Arc<RemotePublisher>>,
    /// Why they do not, and since when.
    pub refused: Option<(String, Instant)>,
    /// Since when it waits for others to leave the topic; until that is given up nothing is answered.
    pub waits: Option<Instant>,
    /// How far its messages are, if its origin is not the host that they come from.
    pub position: Option<Arc<AtomicU64>>,
    /// The position that its origin was told last.
    pub confirmed: Option<u64>,
}

impl IngressPlan {
    /// One that nothing is known of but what OPEN says.
    pub fn new(description: FlowDescription) -> IngressPlan {
        IngressPlan {
            description,
            landing: None,
            refused: None,
            waits: None,
            position: None,
            confirmed: None,
        }
    }

    /// What its origin is to learn: below which number its messages are delivered here, or never come.
    pub fn unconfirmed(&self) -> Option<u64> {
        let (position, landing) = (self.position.as_ref()?, self.landing.as_ref()?);
        let next = match self.description.tree.is_reliable_here() {
            true => position.load(Ordering::Acquire).max(landing.position()),
            false => 0,
        };
        (self.confirmed != Some(next)).then_some(next)
    }
}

/// That a host takes a flow's messages, or why not; and when it said so.
pub type FlowAnswer = (Result<(), String>, Instant);

/// Whether a host refused a flow just now. In a moment the flow is opened again.
pub fn is_refused_now(answer: Option<&FlowAnswer>) -> bool {
    answer.is_some_and(|(answer, at)| answer.is_err() && at.elapsed() < OPEN_AGAIN)
}

/// What a topic sends to a host that it goes to directly.
pub struct OutgoingStream {
    pub stream: u64,
    /// The hosts that messages take from there, itself the root.
    pub tree: Tree,
    pub flows: BTreeMap<u64, OutgoingFlow>,
    pub limits: FlowLimits,
    /// Why nothing may go there, if that is so.
    pub barred: Option<String>,
    /// When the stream began, and at which version of the network.
    begun: (Instant, u64),
    /// The lives of the hosts behind, as far as they were reached then.
    lives: BTreeMap<String, Option<u64>>,
    /// A host of the tree is not sent to there any more.
    pub is_broken: bool,
    /// Network cards read its messages on the GPU that they live on.
    pub is_read: bool,
    /// What the host said of whether cards write there what they read here.
    pub written: Option<Result<(), String>>,
}

pub struct OutgoingFlow {
    pub description: Arc<FlowDescription>,
    /// What the host, and those below it, answered last.
    pub answers: BTreeMap<String, FlowAnswer>,
}

impl OutgoingFlow {
    fn answer(&self, host: &str) -> Option<Result<(), &str>> {
        let (answer, _) = self.answers.get(host)?;
        Some(answer.as_ref().copied().map_err(String::as_str))
    }
}

impl OutgoingStream {
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
            begun: (Instant::now(), network.version()),
            is_broken: false,
            is_read: false,
            written: None,
        }
    }

    /// Whether another stream is to replace it: its tree has changed, it is broken and routes have changed, or a host behind has restarted.
    pub fn is_to_begin_again(&self, wanted: &Tree, network: &Network) -> bool {
        let (at, before) = self.begun;
        let has_changed = network.version() != before;
        let is_due = self.is_broken && (has_changed || at.elapsed() >= BROKEN_LIMIT);
        let is_other = |(end, life): (&String, &Option<u64>)| {
            let now = network.incarnation(end);
            now.is_some() && now != *life
        };
        is_due || self.tree != *wanted || has_changed && self.lives.iter().any(is_other)
    }

    /// The host's life is over. What it had and did not send on goes there in another stream.
    pub fn end_life(&mut self) {
        if self.tree.leads_on() {
            (self.is_broken, self.begun.1) = (true, u64::MAX);
        }
    }

    /// Another life of the host knows nothing of what was said.
    pub fn forget_answers(&mut self) {
        self.written = None;
        let flows = self.flows.values_mut();
        flows.for_each(|flow| flow.answers.clear());
    }

    /// Whether the host takes the messages of some flow.
    pub fn is_taken(&self) -> bool {
        let mut flows = self.flows.values();
        flows.any(|flow| flow.answer(self.tree.root()) == Some(Ok(())))
    }

    /// What the host, or one behind it, answered to the stream: one of its flows is enough. None: nothing yet.
    fn answer(&self, host: &str) -> Option<Result<(), &str>> {
        let answers = || self.flows.values().map(|flow| flow.answer(host));
        if self.flows.is_empty() || answers().any(|answer| answer == Some(Ok(()))) {
            return Some(Ok(()));
        }
        // Refused, if all are.
        answers().reduce(|one, other| one.and_then(|one| other.map(|_| one)))?
    }

    /// Whether it reaches the host, which is `peer`, or one behind it; if not, why.
    pub fn reaches(&self, peer: &RemoteHost, host: &str) -> Result<(), &str> {
        match (self.answer(host), peer.reach.is_up()) {
            (Some(Err(why)), _) => Err(why),
            (_, false) => Err("the host is not linked now"),
            (None, true) => Err("the host still prepares"),
            (Some(Ok(())), true) => Ok(()),
        }
    }

    /// Publishers that the host has refused just now.
    pub fn refused(&self) -> impl Iterator<Item = u64> + '_ {
        let refused = self.flows.iter().filter(|(_, flow)| {
            let answer = flow.answers.get(self.tree.root());
            is_refused_now(answer)
        });
        refused.map(|(publisher, _)| *publisher)
    }

    /// Whether a publisher's flow is opened there.
    pub fn opens(&self, publisher: u64) -> bool {
        self.limits.held.get(&publisher) != Some(&Hold::Barred)
    }
}

pub struct RemoteHost {
    pub reach: Reach,
    /// The link, with which of its lives.
    pub link: Option<(HostLife, HostLink)>,
    /// Owns the link.
    pub ingress: Arc<LinkIngress>,
    pub incoming: BTreeMap<FlowName, IngressPlan>,
    /// By the streams that come from there, what it was told: whether network cards write their messages where they land.
    pub reported_written: BTreeMap<u64, Result<(), String>>,
    /// What publishers of a former life of it publish through here, and since when: its next life may go on with that.
    pub orphans: Vec<(Arc<RemotePublisher>, Instant)>,
    /// Messages that had been given up when the log said so last, and when that was.
    reported_given_up: (u64, Option<Instant>),
    pub over: LinkPath,
    pub status: Option<LinkStatus>,
}

/// Bytes of what a listing says of lanes: those of all hosts have to fit into a packet.
const OVER_BYTES: usize = 64;
const WHY_NOT_BYTES: usize = 120;

/// What the lanes of a link go over, and why it is nothing better.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkPath {
    /// The slowest of them.
    pub path: PathKind,
    /// All of them, in words.
    pub words: String,
    /// Empty if it is RDMA.
    pub why_not: String,
}

impl LinkPath {
    /// `no_rdma`: why this host has none.
    fn of(lanes: &[LaneStatus], no_rdma: &str) -> LinkPath {
        let kinds = lanes.iter().map(|lane| match (lane.kind, &lane.rail) {
            (LaneKind::Rdma, Some(rail)) => format!("rdma on {rail}"),
            (LaneKind::Rdma, None) => "rdma".to_owned(),
            (LaneKind::Tls, _) => "tcp with TLS".to_owned(),
            (LaneKind::Tcp, _) => "tcp".to_owned(),
        });
        let kinds: Vec<String> = kinds.collect::<BTreeSet<_>>().into_iter().collect();
        let mut slow = lanes.iter().filter(|lane| lane.kind != LaneKind::Rdma);
        let path = match lanes.is_empty() || slow.clone().next().is_some() {
            true => PathKind::Tcp,
            false => PathKind::Rdma,
        };
        let why_not = match (path, no_rdma, lanes) {
            (PathKind::Tcp, "", []) => "it has no lanes now",
            (PathKind::Tcp, "", _) => slow
                .find_map(|lane| lane.why_not.as_deref())
                .unwrap_or("the other host has no RDMA"),
            (PathKind::Tcp, no_rdma, _) => no_rdma,
            _ => "",
        };
        LinkPath {
            path,
            words: clip_to(&kinds.join(", "), OVER_BYTES),
            why_not: clip_to(why_not, WHY_NOT_BYTES),
        }
    }
}

impl RemoteHost {
    pub fn new(reach: Reach, ingress: Arc<LinkIngress>) -> RemoteHost {
        RemoteHost {
            reach,
            link: None,
            ingress,
            incoming: BTreeMap::new(),
            reported_written: BTreeMap::new(),
            orphans: Vec::new(),
            reported_given_up: (0, None),
            over: LinkPath::default(),
            status: None,
        }
    }

    /// The host's name.
    pub fn name(&self) -> &str {
        &self.reach.node().host
    }

    /// Looks at the link. Whether lanes go over another path than before.
    pub fn look_over(&mut self, no_rdma: &str) -> bool {
        self.status = self.linked().map(|link| link.status());
        let lanes = self.status.as_ref().map_or(&[][..], |status| &status.lanes);
        let over = LinkPath::of(lanes, no_rdma);
        let before = std::mem::replace(&mut self.over, over);
        before.path != self.over.path
    }

    /// Whether it is to be asked for its lanes now, `pause` after that was due.
    pub fn ask(&mut self, pause: Duration, now: Instant) -> bool {
        let life = self.link.as_ref().map(|(life, _)| life);
        let is_linked = life == Some(self.reach.node());
        self.reach.ask(is_linked, pause, now)
    }

    /// The link, if there is one, with or without lanes.
    pub fn linked(&self) -> Option<&HostLink> {
        self.link.as_ref().map(|(_, link)| link)
    }

    /// Whether topics can go there.
    pub fn is_usable(&self) -> bool {
        self.reach.speaks_same() && self.link.is_some()
    }

    /// Says something, in its turn. What it has not heard when it restarts, its next life is told again.
    pub fn say(&self, said: &LinkMessage) {
        let Some(link) = self.linked() else { return };
        if !link.say(said.encode()) {
            tracing::error!(
                host = self.name(),
                "too many control messages to a host are waiting; one was dropped"
            );
        }
    }

    /// Drops the link with all that it knows, and all that came over it. The host is asked for its lanes again.
    pub fn end_link(&mut self) {
        self.incoming.clear();
        self.orphans.clear();
        self.ingress.clear();
        let Some((_, link)) = self.link.take() else {
            return;
        };
        self.status = None;
        self.ingress = self.ingress.next();
        // A thread of it may be opening a lane, which takes up to two seconds.
        let closing = std::thread::Builder::new().name("link-close".to_owned());
        if let Err(error) = closing.spawn(move || link.close()) {
            tracing::warn!(%error, "a link cannot be closed at once: no thread");
        }
    }

    /// Its life is over; another may go on with what comes from there.
    pub fn end_life(&mut self) {
        let ended = std::mem::take(&mut self.incoming).into_values();
        let landings = ended.filter_map(|of| of.landing);
        self.orphans.extend(landings.map(|of| (of, Instant::now())));
    }

    /// One flow of each stream that comes from there: one that lands, or else one that was refused, if there is any.
    pub fn incoming_streams(&self) -> impl Iterator<Item = &IngressPlan> {
        let mut streams: BTreeMap<u64, &IngressPlan> = BTreeMap::new();
        let rank = |i: &IngressPlan| (i.landing.is_some(), i.refused.is_some());
        for (flow, incoming) in &self.incoming {
            let known = streams.entry(flow.stream).or_insert(incoming);
            if rank(incoming) > rank(known) {
                *known = incoming;
            }
        }
        streams.into_values()
    }

    /// Tells of messages that were given up, not of each.
    pub fn report_given_up(&mut self) {
        let given_up = self.ingress.counts.given_up.load(Ordering::Relaxed);
        let (before, reported) = self.reported_given_up;
        let messages = given_up - before;
        let due = reported.is_none_or(|reported| reported.elapsed() >= REPORT_GIVEN_UP);
        if messages > 0 && due {
            let why = match self.reach.is_up() {
                true => "it takes best-effort messages more slowly than they come (links.in_flight_max)",
                false => "it was gone for longer than links.outage_ms, or more than links.outage_max waited for it",
            };
            tracing::warn!(
                host = self.name(),
                messages,
                "messages to a host were dropped: {why}"
            );
            self.reported_given_up = (given_up, Some(Instant::now()));
        }
    }

    /// As it is listed, with how many topics go there.
    pub fn row(&self, topics_out: u32) -> PeerRow {
        let status = self.status.as_ref();
        let error = status.and_then(|status| status.error.as_deref());
        let (state, detail) = self.reach.listed(error);
        let node = self.reach.node();
        let counts = &self.ingress.counts;
        let landing = self.incoming_streams().filter(|of| of.landing.is_some());
        PeerRow {
            host: node.host.clone(),
            incarnation: node.incarnation,
            protocol: self.reach.protocol(),
            state,
            detail,
            lanes: status.map_or(0, |status| status.lanes.len() as u32),
            path: self.over.path,
            over: self.over.words.clone(),
            why_not: self.over.why_not.clone(),
            topics_out,
            topics_in: landing.count() as u32,
            messages_out: counts.messages_out.load(Ordering::Relaxed),
            messages_in: counts.messages_in.load(Ordering::Relaxed),
            bytes_out: counts.bytes_out.load(Ordering::Relaxed),
            bytes_in: counts.bytes_in.load(Ordering::Relaxed),
            topics: counts.issues.rows(MAX_PEER_TOPICS),
        }
    }
}
