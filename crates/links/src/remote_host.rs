//! Another host as the conductor knows it: its link, the flows that come from there, and the streams that go there.

mod outgoing;

pub use self::outgoing::{is_refused_now, FlowAnswer, OutgoingStream};

use crate::counts::HostCounts;
use crate::egress::Transit;
use crate::host_link::HostLink;
use crate::ingress::{Bound, LinkIngress, RemotePublisher};
use crate::keys::HostLife;
use crate::reach::Reach;
use crate::wire::{clip_to, FlowDescription, LinkMessage};
use rgaps_client::{LinkFigures, PathKind, PeerRow};
use rgaps_routing::{FlowName, HostId};
use rgaps_session::MAX_PEER_TOPICS;
use rgaps_transport::{EndpointError, LaneKind, LaneStatus, LinkStatus, Peer as LanePeer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Least time between two log lines that say how many messages to a host were dropped.
const REPORT_GIVEN_UP: Duration = Duration::from_secs(1);
/// How long listings show a flow that this host refused, unless its sender opens it again.
const REFUSED_SHOWN: Duration = Duration::from_secs(15);

/// A flow that another host opened: the messages of one publisher in one stream.
pub struct IngressPlan {
    /// The flow's description in OPEN.
    description: FlowDescription,
    /// The publisher here that publishes the messages. None: they only pass through this host, or the flow is not admitted.
    landing: Option<Arc<RemotePublisher>>,
    /// Why this host refuses the publisher's messages, and since when.
    refused: Option<(String, Instant)>,
    /// Since when the flow waits for a free seat in its topic. The sender gets no answer until the flow is admitted or refused.
    waits: Option<Instant>,
    /// The delivered position. None: the flow comes directly from its origin, which learns positions from acknowledgements.
    position: Option<Arc<AtomicU64>>,
    /// The position that was confirmed to the origin last. None: none yet, or the origin may have lost it.
    confirmed: Option<u64>,
}

impl IngressPlan {
    /// A plan that knows only what OPEN said.
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

    pub fn description(&self) -> &FlowDescription {
        &self.description
    }

    pub fn landing(&self) -> Option<&Arc<RemotePublisher>> {
        self.landing.as_ref()
    }

    /// Why this host refuses the flow, if it does.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_ref().map(|(why, _)| &why[..])
    }

    /// Whether the flow is neither refused nor waiting.
    pub fn is_admitted(&self) -> bool {
        self.refused.is_none() && self.waits.is_none()
    }

    /// Admits the flow. Its messages land in `landing`; None: they only pass through this host.
    pub fn admit(&mut self, landing: Option<Arc<RemotePublisher>>) {
        (self.landing, self.refused, self.waits) = (landing, None, None);
    }

    /// Has the flow wait for a seat in its topic. Returns how long it has waited.
    pub fn wait(&mut self) -> Duration {
        self.waits.get_or_insert_with(Instant::now).elapsed()
    }

    pub fn refuse(&mut self, why: String) {
        (self.refused, self.waits) = (Some((why, Instant::now())), None);
    }

    /// Says where the messages of an admitted flow go: to its landing on `this` host, and to `transit`.
    pub fn bind(&mut self, this: HostId, transit: Option<Arc<Transit>>) -> Bound {
        let begins = self.description.begins.get(&this);
        if let (Some(next), Some(landing)) = (begins, &self.landing) {
            landing.begin(*next);
        }
        if !self.description.via.is_empty() {
            self.position = Some(Arc::default());
        }
        Bound {
            landing: self.landing.clone(),
            transit,
            position: self.position.clone(),
        }
    }

    /// The position to confirm to the origin: every message below it was delivered here or never comes. None: the origin knows it already,
    /// or needs no confirmation.
    pub fn unconfirmed(&self) -> Option<u64> {
        let (position, landing) = (self.position.as_ref()?, self.landing.as_ref()?);
        let next = match self.description.tree.is_reliable_here() {
            true => position.load(Ordering::Acquire).max(landing.position()),
            false => 0,
        };
        (self.confirmed != Some(next)).then_some(next)
    }
}

/// Another host: whether it is reached, the link with it, and the flows that come from there.
pub struct RemoteHost {
    reach: Reach,
    /// The link, and the life of the host that it leads to.
    link: Option<(HostLife, HostLink)>,
    /// Takes what arrives over the link. A new link gets a new one.
    ingress: Arc<LinkIngress>,
    incoming: BTreeMap<FlowName, IngressPlan>,
    /// By incoming streams, the last report to the host: whether network cards write the stream's messages into GPU memory here, or why
    /// not.
    reported_written: BTreeMap<u64, Result<(), String>>,
    /// Landings of the host's former lives, and since when each has no flow. Its next life may continue them.
    orphans: Vec<(Arc<RemotePublisher>, Instant)>,
    /// How many messages had been dropped at the last log line about them, and when that was.
    reported_given_up: (u64, Option<Instant>),
    over: LinkPath,
    /// The link's state at the last [`RemoteHost::look_over`]. None: there was no link.
    status: Option<LinkStatus>,
}

/// Limits of the texts about lanes in a listing, in bytes: those of all hosts have to fit into one packet.
const OVER_BYTES: usize = 64;
const WHY_NOT_BYTES: usize = 120;

/// What the lanes of a link run over, and why not over RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkPath {
    /// The slowest kind among the lanes.
    pub path: PathKind,
    /// All kinds among the lanes, in words.
    pub words: String,
    /// Why at least one lane is not an RDMA lane. Empty: all lanes are.
    pub why_not: String,
}

impl LinkPath {
    /// `no_rdma`: why this host has no RDMA; empty: it has.
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

    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// For what the control plane and lanes report about the host.
    pub fn reach_mut(&mut self) -> &mut Reach {
        &mut self.reach
    }

    pub fn ingress(&self) -> &Arc<LinkIngress> {
        &self.ingress
    }

    pub fn counts(&self) -> &Arc<HostCounts> {
        &self.ingress.counts
    }

    /// The path of the lanes at the last [`RemoteHost::look_over`].
    pub fn over(&self) -> &LinkPath {
        &self.over
    }

    pub fn figures(&self) -> LinkFigures {
        self.counts().figures(self.name(), self.status.as_ref())
    }

    /// The life of the host that the link leads to.
    pub fn linked_life(&self) -> Option<&HostLife> {
        self.link.as_ref().map(|(life, _)| life)
    }

    /// Has the link lead to this life of the host; if there is none, `create` makes it. Returns whether another life was linked, or none.
    pub fn join(
        &mut self,
        node: &HostLife,
        lanes: LanePeer,
        create: impl FnOnce(LanePeer, &Arc<LinkIngress>) -> Result<HostLink, EndpointError>,
    ) -> Result<bool, EndpointError> {
        let Some((life, link)) = &mut self.link else {
            self.link = Some((node.clone(), create(lanes, &self.ingress)?));
            return Ok(true);
        };
        link.set_peer(lanes)?;
        let is_other = life != node;
        life.clone_from(node);
        Ok(is_other)
    }

    /// Reads the link's state. Returns whether the lanes run over another path than at the last call.
    pub fn look_over(&mut self, no_rdma: &str) -> bool {
        self.status = self.linked().map(|link| link.status());
        let lanes = self.status.as_ref().map_or(&[][..], |status| &status.lanes);
        let over = LinkPath::of(lanes, no_rdma);
        let before = std::mem::replace(&mut self.over, over);
        before.path != self.over.path
    }

    /// Whether this host has to ask the other one for its lanes now: `pause` after that was due.
    pub fn ask(&mut self, pause: Duration, now: Instant) -> bool {
        let is_linked = self.linked_life() == Some(self.reach.node());
        self.reach.ask(is_linked, pause, now)
    }

    /// The link, if there is one, with or without lanes.
    pub fn linked(&self) -> Option<&HostLink> {
        self.link.as_ref().map(|(_, link)| link)
    }

    /// Whether this host can send topics to the other one: there is a link, and both speak the same version.
    pub fn is_usable(&self) -> bool {
        self.reach.speaks_same() && self.link.is_some()
    }

    /// Sends a control message, in order. The link sends what the host has not acknowledged again to its next life.
    pub fn say(&self, message: &LinkMessage) {
        let Some(link) = self.linked() else { return };
        if !link.say(message.encode()) {
            tracing::error!(
                host = self.name(),
                "too many control messages to a host are waiting; one was dropped"
            );
        }
    }

    /// Closes the link and forgets all flows that came over it. Afterwards this host asks for lanes again.
    pub fn end_link(&mut self) {
        self.incoming.clear();
        self.orphans.clear();
        self.ingress.clear();
        let Some((_, link)) = self.link.take() else {
            return;
        };
        self.status = None;
        self.ingress = self.ingress.next();
        // Closing waits for the link's threads. One may be opening a lane, which takes up to two seconds.
        let closing = std::thread::Builder::new().name("link-close".to_owned());
        if let Err(error) = closing.spawn(move || link.close()) {
            tracing::warn!(%error, "a link cannot be closed at once: no thread");
        }
    }

    /// Call when the host restarted: its flows end, but their landings stay as orphans, which its next life may continue.
    pub fn end_life(&mut self) {
        let ended = std::mem::take(&mut self.incoming).into_values();
        let landings = ended.filter_map(|of| of.landing);
        self.orphans.extend(landings.map(|of| (of, Instant::now())));
    }

    pub fn add_incoming(&mut self, plans: Vec<(FlowName, IngressPlan)>) {
        self.incoming.extend(plans);
    }

    /// Forgets a flow that its sender closed.
    pub fn close_incoming(&mut self, flow: FlowName) -> Option<IngressPlan> {
        self.incoming.remove(&flow)
    }

    /// Takes out the flows that wait for a seat, and forgets those that were refused [`REFUSED_SHOWN`] ago.
    pub fn take_waiting(&mut self) -> Vec<(FlowName, IngressPlan)> {
        let is_shown = |(_, since): &(String, Instant)| since.elapsed() < REFUSED_SHOWN;
        let kept = std::mem::take(&mut self.incoming).into_iter();
        let kept = kept.filter(|(_, plan)| plan.refused.as_ref().is_none_or(is_shown));
        let (waiting, others): (Vec<_>, Vec<_>) = kept.partition(|(_, plan)| plan.waits.is_some());
        self.incoming = others.into_iter().collect();
        waiting
    }

    /// Whether an incoming flow waits for a seat in its topic.
    pub fn has_waiting(&self) -> bool {
        self.incoming.values().any(|plan| plan.waits.is_some())
    }

    /// Confirms new positions to origins with `confirm`, which returns whether it had room. Origins that `is_renewed` names have forgotten
    /// all positions. Returns whether all were confirmed.
    pub fn confirm_positions(
        &mut self,
        is_renewed: impl Fn(&str) -> bool,
        mut confirm: impl FnMut(&str, FlowName, u64) -> bool,
    ) -> bool {
        self.ingress.forget_reported();
        let mut is_all = true;
        for (flow, plan) in &mut self.incoming {
            let origin = plan.description.origin(&self.reach.node().host);
            if is_renewed(origin) {
                plan.confirmed = None;
            }
            let Some(next) = plan.unconfirmed() else {
                continue;
            };
            match confirm(origin, *flow, next) {
                true => plan.confirmed = Some(next),
                false => is_all = false,
            }
        }
        is_all
    }

    pub fn incoming_topics(&self) -> impl Iterator<Item = &String> {
        self.incoming.values().map(|plan| &plan.description.topic)
    }

    /// The flows that land here.
    pub fn landed(&self) -> impl Iterator<Item = (&Arc<RemotePublisher>, &FlowDescription)> {
        let plans = self.incoming.values();
        plans.filter_map(|plan| Some((plan.landing.as_ref()?, &plan.description)))
    }

    /// Tells the host, for each stream whose report changed, whether network cards write its messages into GPU memory here. `written`: by
    /// topics.
    pub fn report_written(&mut self, written: &BTreeMap<String, Result<(), String>>) {
        let flows = self.incoming.iter();
        let streams = flows.map(|(flow, of)| (flow.stream, &written[&of.description.topic]));
        let streams: BTreeMap<u64, &Result<(), String>> = streams.collect();
        self.reported_written
            .retain(|stream, _| streams.contains_key(stream));
        for (stream, written) in streams {
            if self.reach.is_up() && self.reported_written.get(&stream) != Some(written) {
                self.say(&LinkMessage::Written(stream, written.clone()));
                self.reported_written.insert(stream, written.clone());
            }
        }
    }

    /// Forgets what was reported to the host: its next life does not know it.
    pub fn forget_reported(&mut self) {
        self.reported_written.clear();
    }

    /// Keeps only the orphans for which this holds. It gets the landing, and since when it has no flow.
    pub fn retain_orphans(&mut self, stays: impl Fn(&Arc<RemotePublisher>, Instant) -> bool) {
        self.orphans
            .retain(|(landing, since)| stays(landing, *since));
    }

    /// One flow of each incoming stream: preferably one that lands, else one that was refused.
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

    /// Logs how many messages to the host were dropped since the last such line.
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

    /// The host's row in a listing. `topics_out`: how many topics go there.
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
