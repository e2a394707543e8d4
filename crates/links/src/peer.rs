//! Another host as the coordinator knows it.

use crate::agreement::Agreement;
use crate::counts::EgressCounts;
use crate::ended::Early;
use crate::host_link::{Flow, HostLink, Sent};
use crate::keys::{Node, Want};
use crate::land::{Landing, Landings};
use crate::through::Through;
use crate::wire::{clip_to, Said, Stream, SAID};
use rgaps_client::{LinkFigures, PathKind, PeerRow, PeerState};
use rgaps_session::MAX_PEER_TOPICS;
use rgaps_transport::{Description, LaneKind, LaneStatus, LinkStatus};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two words about messages that were given up.
const TELL_GIVEN_UP: Duration = Duration::from_secs(1);
/// What is to be said and could not yet.
const MAX_UNSAID: usize = 4096;
/// Streams whose topics are known.
const MAX_NAMES: usize = 16384;

/// A topic of theirs that comes here.
pub struct Incoming {
    /// What they said of it.
    pub stream: Stream,
    /// Where its publishers' messages land.
    pub landings: HashMap<u64, Arc<Landing>>,
    /// What was answered.
    pub outcome: Result<(), String>,
    /// Since when the life of the host that it came from is over.
    pub former: Option<Instant>,
    /// Something of it had no place, which is tried again.
    pub again: bool,
    /// Since when all of it waits for others to leave the topic; until it is given up nothing is answered.
    pub waits: Option<Instant>,
    /// It was answered.
    pub said: bool,
    /// What was said of whether cards write it where it lands.
    pub written: Option<Result<(), String>>,
}

impl Incoming {
    /// Nothing of it has a place yet.
    pub fn new(stream: Stream) -> Incoming {
        Incoming {
            stream,
            landings: HashMap::new(),
            outcome: Ok(()),
            former: None,
            again: false,
            waits: None,
            said: false,
            written: None,
        }
    }
}

/// Another host.
pub struct Peer {
    /// Its last life.
    pub node: Node,
    /// The version that it speaks.
    pub protocol: u32,
    /// When it was there last: its token came, or it asked for lanes.
    pub seen: Instant,
    /// Since when it is gone.
    pub lost: Option<Instant>,
    /// Why it is not linked with.
    pub refused: Option<String>,
    /// The link, with which of its lives.
    pub link: Option<(u64, HostLink)>,
    /// Whether it has lanes.
    pub up: bool,
    /// Since when it has none.
    pub away: Option<Instant>,
    /// What is said about hosts behind it, and behind this one.
    pub through: Through,
    /// Owns the link.
    pub landings: Arc<Landings>,
    /// Counts.
    pub departed: Arc<EgressCounts>,
    /// When it is asked for its lanes again; none: while it is being asked.
    pub meet_at: Option<Instant>,
    /// What it wants.
    pub wants: BTreeMap<String, Want>,
    /// What it wanted until then, unless it is only gone.
    pub wanted: BTreeMap<String, (Want, Instant)>,
    /// Whether that is what it says itself.
    pub agreement: Agreement,
    /// What it said of streams that go there.
    pub ready: HashMap<u64, Result<(), String>>,
    /// What it said of whether cards write there what they read here.
    pub written: HashMap<u64, Result<(), String>>,
    /// What it was told of streams that go there.
    pub announced: HashMap<u64, Stream>,
    /// Streams that come from there.
    pub incoming: HashMap<u64, Incoming>,
    /// It was gone for so long that nothing is kept for it.
    pub given_up: bool,
    /// Topics by the streams that went or go there.
    pub names: BTreeMap<u64, String>,
    /// Streams of which what is not acknowledged went another way.
    pub moved: BTreeSet<u64>,
    /// Streams that ended just now, and their topics: whoever forwards these is to hear of it.
    pub ended: Vec<(u64, String)>,
    /// Flows from there that ended before it was heard of them.
    pub early_ends: Early,
    /// Something that was said was given up.
    pub said_lost: bool,
    said: u64,
    said_open: bool,
    unsaid: VecDeque<Vec<u8>>,
    /// Messages that were given up since that was told last, and when that was.
    pub gave_up: (u64, Option<Instant>),
    /// What went wrong last.
    pub detail: String,
    /// What lanes go over.
    pub over: Over,
    /// The link's, when it was looked at last.
    status: Option<LinkStatus>,
}

/// Bytes of what a listing says of lanes: those of all hosts have to fit into a packet.
const OVER_BYTES: usize = 64;
const WHY_NOT_BYTES: usize = 120;

/// What the lanes of a link go over, and why it is nothing better.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Over {
    /// The slowest of them.
    pub path: PathKind,
    /// All of them, in words.
    pub words: String,
    /// Empty if it is RDMA.
    pub why_not: String,
}

impl Over {
    /// `no_rdma`: why this host has none.
    fn of(lanes: &[LaneStatus], no_rdma: &str) -> Over {
        let mut kinds = BTreeSet::new();
        let mut why_not = None;
        for lane in lanes {
            kinds.insert(match (lane.kind, &lane.rail) {
                (LaneKind::Rdma, Some(rail)) => format!("rdma on {rail}"),
                (LaneKind::Rdma, None) => "rdma".to_owned(),
                (LaneKind::Tls, _) => "tcp with TLS".to_owned(),
                (LaneKind::Tcp, _) => "tcp".to_owned(),
            });
            if lane.kind != LaneKind::Rdma {
                why_not = why_not.or_else(|| lane.why_not.clone());
            }
        }
        let rdma = !lanes.is_empty() && lanes.iter().all(|lane| lane.kind == LaneKind::Rdma);
        let why_not = match (rdma, no_rdma) {
            (true, _) => String::new(),
            (false, "") => why_not.unwrap_or_else(|| match lanes {
                [] => "it has no lanes now".to_owned(),
                _ => "the other host has no RDMA".to_owned(),
            }),
            (false, no_rdma) => no_rdma.to_owned(),
        };
        Over {
            path: match rdma {
                true => PathKind::Rdma,
                false => PathKind::Tcp,
            },
            words: clip_to(
                &kinds.into_iter().collect::<Vec<_>>().join(", "),
                OVER_BYTES,
            ),
            why_not: clip_to(&why_not, WHY_NOT_BYTES),
        }
    }
}

impl Peer {
    /// One that has just come.
    pub fn new(
        node: Node,
        protocol: u32,
        (departed, landings): (Arc<EgressCounts>, Arc<Landings>),
    ) -> Peer {
        Peer {
            node,
            protocol,
            seen: Instant::now(),
            lost: None,
            refused: None,
            link: None,
            up: false,
            away: Some(Instant::now()),
            through: Through::default(),
            landings,
            departed,
            meet_at: None,
            wants: BTreeMap::new(),
            wanted: BTreeMap::new(),
            agreement: Agreement::default(),
            ready: HashMap::new(),
            written: HashMap::new(),
            announced: HashMap::new(),
            incoming: HashMap::new(),
            given_up: false,
            names: BTreeMap::new(),
            moved: BTreeSet::new(),
            ended: Vec::new(),
            early_ends: Early::default(),
            said_lost: false,
            said: 0,
            said_open: false,
            unsaid: VecDeque::new(),
            gave_up: (0, None),
            detail: String::new(),
            over: Over::default(),
            status: None,
        }
    }

    /// Looks at the link. Whether lanes go over another path than before.
    pub fn look_over(&mut self, no_rdma: &str) -> bool {
        self.status = self.linked().map(HostLink::status);
        let lanes = self.status.as_ref().map_or(&[][..], |status| &status.lanes);
        let over = Over::of(lanes, no_rdma);
        let before = std::mem::replace(&mut self.over, over);
        before.path != self.over.path
    }

    /// The link, if there is one, with or without lanes.
    pub fn linked(&self) -> Option<&HostLink> {
        self.link.as_ref().map(|(_, link)| link)
    }

    /// Whether topics can go there.
    pub fn is_usable(&self) -> bool {
        self.refused.is_none() && self.link.is_some()
    }

    /// Whether what goes there arrives, as far as is known: it has lanes, or had some until a moment ago.
    pub fn is_near(&self, patience: Duration) -> bool {
        let away = self.away.is_some_and(|since| since.elapsed() >= patience);
        self.refused.is_none() && !self.given_up && !away
    }

    /// Says something, in its turn. `own` is this life of ours.
    pub fn say(&mut self, own: u64, said: &Said) {
        match said.encode() {
            Ok(bytes) if self.unsaid.len() < MAX_UNSAID => self.unsaid.push_back(bytes),
            Ok(_) => tracing::error!(
                host = self.node.host,
                "too many control messages to a host are waiting; one was dropped"
            ),
            Err(error) => tracing::error!(%error, "encoding a control message failed"),
        }
        self.say_more(own);
    }

    /// Says what could not be said before.
    pub fn say_more(&mut self, own: u64) {
        let Some((_, link)) = &self.link else { return };
        let flow = Flow {
            topic: SAID,
            incarnation: own,
        };
        if !self.said_open {
            link.open(flow, 0, true, u64::MAX);
            self.said_open = true;
        }
        while let Some(bytes) = self.unsaid.front() {
            match link.send(
                flow,
                self.said,
                Arc::new(bytes.clone()),
                Description::default(),
            ) {
                Sent::Full => return,
                Sent::Taken => {}
                Sent::Never => {
                    tracing::error!(
                        host = self.node.host,
                        "a control message is too large to send to a host; dropped"
                    );
                }
            }
            self.unsaid.pop_front();
            self.said += 1;
        }
    }

    /// A link that has said nothing yet.
    pub fn begin_link(&mut self, life: u64, link: HostLink) {
        self.link = Some((life, link));
        (self.said, self.said_open) = (0, false);
        self.unsaid.clear();
        self.forget_said();
    }

    /// Drops the link with all that it knows. The host is asked for its lanes again.
    pub fn end_link(&mut self) {
        let Some((_, link)) = self.link.take() else {
            return;
        };
        self.status = None;
        // A thread of it may be opening a lane, which takes up to two seconds.
        let closing = std::thread::Builder::new().name("link-close".to_owned());
        if let Err(error) = closing.spawn(move || link.close()) {
            tracing::warn!(%error, "a link cannot be closed at once: no thread");
        }
    }

    /// Another life of it knows nothing of what was said.
    pub fn forget_said(&mut self) {
        self.announced.clear();
        self.ready.clear();
        self.written.clear();
        self.through.forget_said();
        self.agreement = Agreement::default();
    }

    /// A stream of a topic goes there.
    pub fn begin_stream(&mut self, number: u64, topic: &str) {
        if self.names.len() >= MAX_NAMES {
            if let Some((oldest, _)) = self.names.pop_first() {
                self.moved.remove(&oldest);
            }
        }
        self.names.insert(number, topic.to_owned());
    }

    /// A topic does not go there any more, or goes there in another stream.
    pub fn end_stream(&mut self, number: u64, topic: &str, moved: bool) {
        if moved && self.names.contains_key(&number) {
            self.moved.insert(number);
        }
        self.announced.remove(&number);
        self.ready.remove(&number);
        self.written.remove(&number);
        self.through
            .reached
            .retain(|(stream, _), _| *stream != number);
        self.ended.push((number, topic.to_owned()));
    }

    /// A publisher's flow has ended: where its messages landed.
    pub fn end_flow(&mut self, flow: Flow) -> Option<Arc<Landing>> {
        let (mut landing, mut is_known) = (None, false);
        if let Some(incoming) = self.incoming.get_mut(&flow.topic) {
            landing = incoming.landings.remove(&flow.incarnation);
            let publishers = &mut incoming.stream.publishers;
            let count = publishers.len();
            publishers.retain(|source| source.publisher != flow.incarnation);
            is_known = landing.is_some() || publishers.len() < count;
            if incoming.landings.is_empty() && publishers.is_empty() {
                self.incoming.remove(&flow.topic);
            }
        }
        if !is_known {
            self.early_ends.add(flow);
        }
        self.landings.remove(flow);
        landing
    }

    /// Nothing lands any more of those publishers of a stream of which nothing did: their flows do not end, as none began.
    pub fn end_unused(&mut self, stream: u64) {
        let Some(incoming) = self.incoming.get(&stream) else {
            return;
        };
        let named = incoming.stream.publishers.iter();
        let named = named.map(|source| source.publisher);
        let publishers: BTreeSet<u64> = named.chain(incoming.landings.keys().copied()).collect();
        let flows = publishers.into_iter().map(|incarnation| Flow {
            topic: stream,
            incarnation,
        });
        let unused: Vec<Flow> = flows
            .filter(|flow| self.landings.is_unused(*flow))
            .collect();
        for flow in unused {
            // A publisher leaves when it is dropped.
            drop(self.end_flow(flow));
        }
    }

    /// Nothing lands of a stream any more.
    pub fn end_incoming(&mut self, stream: u64) {
        let incoming = self.incoming.remove(&stream);
        for incarnation in incoming.iter().flat_map(|i| i.landings.keys()) {
            self.landings.remove(Flow {
                topic: stream,
                incarnation: *incarnation,
            });
        }
    }

    /// Whether a stream reaches this host, or one that it leads to; if not, why.
    pub fn reaches(&self, stream: u64, host: &str) -> Result<(), &str> {
        let said = match host == self.node.host {
            true => self.ready.get(&stream),
            false => self.through.reached.get(&(stream, host.to_owned())),
        };
        match (said, self.up) {
            (Some(Err(why)), _) => Err(why),
            (_, false) => Err("the host is not linked now"),
            (None, true) => Err("the host still prepares"),
            (Some(Ok(())), true) => Ok(()),
        }
    }

    /// Tells of messages that were given up, not of each.
    pub fn tell_given_up(&mut self) {
        let (messages, told) = self.gave_up;
        let due = told.is_none_or(|told| told.elapsed() >= TELL_GIVEN_UP);
        if messages > 0 && due {
            let why = match self.up {
                true => "it takes best-effort messages more slowly than they come (links.in_flight_max)",
                false => "it was gone for longer than links.outage_ms, or more than links.outage_max waited for it",
            };
            tracing::warn!(
                host = self.node.host,
                messages,
                "messages to a host were dropped: {why}"
            );
            self.gave_up = (0, Some(Instant::now()));
        }
    }

    /// What was counted and timed on the link.
    pub fn figures(&self) -> LinkFigures {
        let arrived = &self.landings.arrived;
        crate::figures::figures(
            &self.node.host,
            &self.departed,
            arrived,
            self.status.as_ref(),
        )
    }

    /// As others see it.
    pub fn row(&self) -> PeerRow {
        let status = self.status.as_ref();
        let state = match (&self.refused, self.lost, self.up) {
            (Some(_), ..) => PeerState::Refused,
            (None, Some(_), false) => PeerState::Lost,
            (None, _, true) => PeerState::Linked,
            (None, None, false) => PeerState::Joining,
        };
        let error = || status.and_then(|status| status.error.clone());
        let detail = match (&self.refused, state) {
            (Some(why), _) => why.clone(),
            (None, PeerState::Linked) => String::new(),
            (None, _) => error().unwrap_or_else(|| self.detail.clone()),
        };
        let arrived = &self.landings.arrived;
        PeerRow {
            host: self.node.host.clone(),
            incarnation: self.node.incarnation,
            protocol: self.protocol,
            state,
            detail: crate::wire::clip(&detail),
            lanes: status.map_or(0, |status| status.lanes.len() as u32),
            path: self.over.path,
            over: self.over.words.clone(),
            why_not: self.over.why_not.clone(),
            topics_out: self.ready.values().filter(|ready| ready.is_ok()).count() as u32,
            topics_in: self.landings.streams() as u32,
            messages_out: self.departed.messages.load(Ordering::Relaxed),
            messages_in: arrived.messages.load(Ordering::Relaxed),
            bytes_out: self.departed.bytes.load(Ordering::Relaxed),
            bytes_in: arrived.bytes.load(Ordering::Relaxed),
            topics: self.landings.notes.rows(MAX_PEER_TOPICS),
        }
    }
}
