//! The landing side: what comes from another host becomes a message here. Bytes go from the socket into a
//! loan of the publisher that stands for the one elsewhere, and are published in their turn.

mod landing;
mod places;

pub use self::landing::{Landing, LandingLimits, Wanted};

use self::places::{receive_buffer, Saying};
use crate::counts::IngressCounts;
use crate::event::Heard;
use crate::host_link::{Flow, HostEvent, Ingress};
use crate::notes::Notes;
use crate::relay::Carry;
use crate::traces::LinkTraces;
use crate::wire::{MAX_SAID_BYTES, SAID};
use rgaps_transport::machine::BufferReply;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long messages wait for a place where there is none yet.
pub const PLACE_LIMIT: Duration = Duration::from_secs(20);
/// Flows that were not announced, whose time is taken.
const MAX_STRANGERS: usize = 1024;

/// Flows and streams that have no place, and are known by it.
const MAX_REFUSED: usize = 8192;

/// Where a flow's messages land, and where they go on to.
#[derive(Clone)]
struct Bound {
    landing: Arc<Landing>,
    carry: Option<Arc<Carry>>,
    came: Came,
}

/// How far a flow's messages have come, in their order.
#[derive(Clone, Default)]
struct Came(Arc<AtomicU64>);

impl Came {
    /// Those below this have, or never will.
    fn up_to(&self, next: u64) {
        self.0.fetch_max(next, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Flows {
    known: HashMap<Flow, Bound>,
    /// Flows that have no place here, and their topics.
    refused: HashMap<Flow, String>,
    /// Topics that have none, by their streams, and why.
    refused_streams: HashMap<u64, (String, String)>,
    /// Streams that are over.
    over: HashSet<u64>,
    /// Since when others were waited for.
    strangers: HashMap<Flow, Instant>,
}

/// Why messages of a flow are refused.
enum Refusal {
    /// Its publisher has no place in this topic, which was said.
    Flow(String),
    /// The topic has none, and why.
    Stream(String, String),
    /// The stream is over.
    Over,
    /// It was not heard of.
    Unheard,
}

impl Flows {
    /// Why messages of a flow are refused that has no place here; none: they wait for one.
    fn refusal(&self, flow: Flow) -> Option<Refusal> {
        if let Some(topic) = self.refused.get(&flow) {
            return Some(Refusal::Flow(topic.clone()));
        }
        if let Some((topic, why)) = self.refused_streams.get(&flow.topic) {
            return Some(Refusal::Stream(topic.clone(), why.clone()));
        }
        if self.over.contains(&flow.topic) {
            return Some(Refusal::Over);
        }
        let since = self.strangers.get(&flow);
        let is_late = since.is_some_and(|since| since.elapsed() >= PLACE_LIMIT);
        is_late.then_some(Refusal::Unheard)
    }

    /// What a flow belongs to was said before, or is being said again. Refused, if too many wait.
    fn wait(&mut self, flow: Flow) -> Option<Refusal> {
        if self.strangers.contains_key(&flow) {
            return None;
        }
        if self.strangers.len() >= MAX_STRANGERS {
            return Some(Refusal::Unheard);
        }
        self.strangers.insert(flow, Instant::now());
        None
    }
}

/// What messages from a host become here.
pub struct Landings {
    host: String,
    flows: Mutex<Flows>,
    /// Counts.
    pub arrived: Arc<IngressCounts>,
    /// What did not come across.
    pub notes: Arc<Notes>,
    to: Sender<(String, Heard)>,
    memory: Sender<Wanted>,
}

impl Landings {
    /// Those of a host. What the link tells goes to `to`, what has to be asked of the daemon to `memory`.
    pub fn new(
        host: &str,
        to: Sender<(String, Heard)>,
        memory: Sender<Wanted>,
        traces: Option<LinkTraces>,
    ) -> Arc<Landings> {
        Arc::new(Landings {
            host: host.to_owned(),
            flows: Mutex::default(),
            arrived: Arc::new(IngressCounts {
                traces,
                ..IngressCounts::default()
            }),
            notes: Arc::default(),
            to,
            memory,
        })
    }

    fn flows(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A flow's messages land there, and go on to others.
    pub fn insert(&self, flow: Flow, landing: Arc<Landing>, carry: Option<Arc<Carry>>) {
        let mut flows = self.flows();
        flows.strangers.remove(&flow);
        flows.refused.remove(&flow);
        let known = flows.known.get(&flow);
        let came = known.map(|known| known.came.clone()).unwrap_or_default();
        let bound = Bound {
            landing,
            carry,
            came,
        };
        flows.known.insert(flow, bound);
    }

    /// Where a flow's messages land, and the publisher's others.
    pub fn landing(&self, flow: Flow) -> Option<Arc<Landing>> {
        let flows = self.flows();
        let bound = flows.known.get(&flow);
        bound.map(|bound| bound.landing.clone())
    }

    /// A flow's messages below this are where they are to go. What was published here in a former life, or came another
    /// way, is not unless it has come in this flow too: who sends it holds it for those that it goes on to.
    pub fn passed(&self, flow: Flow) -> Option<u64> {
        let bound = self.flows().known.get(&flow).cloned()?;
        // In this order: what comes between is not passed.
        let came = bound.came.0.load(Ordering::Acquire);
        Some(bound.landing.relay.floor().min(came))
    }

    /// Whether no message has come in a flow.
    pub fn is_unused(&self, flow: Flow) -> bool {
        let flows = self.flows();
        let known = flows.known.get(&flow);
        known.is_none_or(|bound| bound.came.0.load(Ordering::Acquire) == 0)
    }

    /// Whether messages of a flow are refused that has no place here. If not, they wait for one.
    pub fn is_refused(&self, flow: Flow) -> bool {
        self.flows().refusal(flow).is_some()
    }

    /// A message was refused.
    fn note(&self, refusal: Refusal) {
        match refusal {
            Refusal::Flow(topic) => self.notes.refused_again(&topic),
            Refusal::Stream(topic, why) => {
                if self.notes.refused(&topic, 1, &why) {
                    let host = &self.host;
                    tracing::warn!(host, topic, "messages of another host are refused: {why}");
                }
            }
            Refusal::Over | Refusal::Unheard => {}
        }
    }

    /// A stream of this topic has no place here, for this reason, or has again.
    pub fn refuse(&self, stream: u64, topic: &str, why: Option<&str>) {
        let mut flows = self.flows();
        match why {
            Some(why) => {
                if flows.refused_streams.len() >= MAX_REFUSED {
                    flows.refused_streams.clear();
                }
                let refused = (topic.to_owned(), why.to_owned());
                flows.refused_streams.insert(stream, refused);
            }
            None => {
                flows.refused_streams.remove(&stream);
            }
        }
    }

    /// One publisher's messages have none.
    pub fn refuse_flow(&self, flow: Flow, topic: &str) {
        let mut flows = self.flows();
        flows.strangers.remove(&flow);
        if flows.refused.len() >= MAX_REFUSED {
            flows.refused.clear();
        }
        flows.refused.insert(flow, topic.to_owned());
    }

    /// What of a stream has no place here is not waited for any more.
    pub fn end_stream(&self, stream: u64) {
        let mut flows = self.flows();
        if flows.over.len() >= MAX_REFUSED {
            flows.over.clear();
        }
        flows.over.insert(stream);
    }

    /// A flow has ended.
    pub fn remove(&self, flow: Flow) {
        // A publisher leaves when it is dropped, which is not for this lock.
        let mut flows = self.flows();
        flows.refused.remove(&flow);
        let gone = flows.known.remove(&flow);
        drop(flows);
        drop(gone);
    }

    /// All of them have.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut *self.flows());
        drop(gone);
    }

    /// Streams that messages come in.
    pub fn streams(&self) -> usize {
        let flows = self.flows();
        let streams: HashSet<u64> = flows.known.keys().map(|flow| flow.topic).collect();
        streams.len()
    }
}

impl Ingress for Landings {
    fn buffer(&self, flow: Flow, sequence: u64, bytes: u64) -> BufferReply {
        if flow.topic == SAID {
            if bytes > MAX_SAID_BYTES as u64 {
                return BufferReply::Refused;
            }
            return BufferReply::Buffer(Box::new(Saying {
                bytes: vec![0; bytes as usize],
                to: self.to.clone(),
                host: self.host.clone(),
            }));
        }
        let mut flows = self.flows();
        let known = flows.known.get(&flow).cloned();
        let Some(Bound {
            landing,
            carry,
            came,
        }) = known
        else {
            let refusal = flows.refusal(flow).or_else(|| flows.wait(flow));
            drop(flows);
            return match refusal {
                None => BufferReply::Full,
                Some(refusal) => {
                    self.note(refusal);
                    BufferReply::Refused
                }
            };
        };
        drop(flows);
        let room = receive_buffer(&landing, sequence, bytes, carry, came, self);
        if matches!(room, BufferReply::Buffer(_)) {
            self.arrived.messages.fetch_add(1, Ordering::Relaxed);
            self.arrived.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        room
    }

    fn event(&self, event: HostEvent) {
        match &event {
            HostEvent::Up => {
                self.arrived.connects.fetch_add(1, Ordering::Relaxed);
            }
            HostEvent::GaveUp { flow, first, next } if flow.topic != SAID => {
                let given_up = &self.arrived.given_up;
                given_up.fetch_add(next.saturating_sub(*first), Ordering::Relaxed);
            }
            HostEvent::Missed { flow, next } => {
                let landing = self.flows().known.get(flow).cloned();
                let Some(Bound { came, landing, .. }) = landing else {
                    return;
                };
                // The next message counts them: by its number, which no lost frame and no kill makes wrong.
                came.up_to(*next);
                landing.follow_history(*next);
                return;
            }
            _ => {}
        }
        let _ = self.to.send((self.host.clone(), Heard::Event(event)));
    }
}
