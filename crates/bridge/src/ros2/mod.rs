//! The dialect of ROS 2, in two forms. Nodes with `rmw_zenoh`: a topic's key has its domain, type and hash, a message is CDR, its
//! attachment has a number, a time and the publisher's id, and liveliness tokens make up the graph. Nodes with DDS, behind
//! `zenoh-bridge-ros2dds`: a topic's key is its name, and a message is CDR without an attachment.
//!
//! Messages of known types become arrays (crate `rgaps-ros2`). All others cross as their CDR bytes. The bridge sets the key `ros` in
//! the header of each incoming message.

mod graph;
mod keys;

pub use graph::{ros2_topics, RosTopic};

use crate::dialect::{Dialect, Inbound, Offer, Outbound};
use crate::error::BridgeError;
use keys::Endpoint;
use rgaps_client::bindings::Beside;
use rgaps_client::{Header, Sample, Value};
use rgaps_ros2::{Data, Decoded, Type, MARK};
use rgaps_session::{bare_topic_name, BridgeConfig as Config, Ros2Rule, RosMiddleware};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use xxhash_rust::xxh3::xxh3_128;
use zenoh::bytes::{Encoding, ZBytes};

/// Bytes of a publisher's id.
const GID_BYTES: usize = 16;
/// Most publishers of ROS 2 whose last number a rule keeps.
const PUBLISHERS_SEEN_MAX: usize = 1024;
/// An attachment: number, time, length of the id, id.
const ATTACHMENT_BYTES: usize = 8 + 8 + 1 + GID_BYTES;

/// ROS 2 over Zenoh.
pub(crate) struct Ros2 {
    domain: u32,
    middleware: RosMiddleware,
    outgoing: Vec<Route>,
    incoming: Vec<Route>,
}

/// A rule, and the state of its topic.
struct Route {
    rule: Ros2Rule,
    /// The topic's name in ROS 2, with its leading slash.
    name: String,
    /// The type. None: rgaps does not know it, so messages cross as their CDR bytes.
    known: Option<&'static Type>,
    /// The hash of the type; `*` if it is unknown.
    hash: String,
    /// The id of the bridge's publisher, once its token is made.
    gid: OnceLock<[u8; GID_BYTES]>,
    /// Number of the next outgoing message.
    next: AtomicI64,
    /// The last number of each publisher, by its id, for incoming transient-local topics: a message may come twice.
    seen: Mutex<HashMap<[u8; GID_BYTES], i64>>,
}

impl Ros2 {
    /// Takes the rules of a configuration.
    pub(crate) fn new(config: &Config) -> Result<Ros2, BridgeError> {
        let routes = |is_meant: fn(&&Ros2Rule) -> bool| {
            let rules = config.ros2.iter().filter(is_meant);
            rules.map(Route::new).collect::<Vec<_>>()
        };
        let outgoing = routes(|rule| rule.direction.is_to());
        let middleware = config.ros_middleware;
        let unknown = outgoing.iter().find(|route| route.hash == "*");
        if let (Some(route), RosMiddleware::Zenoh) = (unknown, middleware) {
            return Err(BridgeError::NoHash(route.rule.type_name.clone()));
        }
        Ok(Ros2 {
            domain: config.ros_domain,
            middleware,
            outgoing,
            incoming: routes(|rule| rule.direction.is_from()),
        })
    }

    /// How many messages late joiners get by the protocol of rmw_zenoh. None: the rule is volatile, or the nodes use DDS.
    fn kept(&self, route: &Route) -> Option<u32> {
        let is_kept = route.rule.transient_local && self.middleware == RosMiddleware::Zenoh;
        is_kept.then_some(route.rule.depth)
    }

    /// The key of a route's messages. `hash`: `*` matches messages with any hash.
    fn key_of(&self, route: &Route, hash: &str) -> String {
        match self.middleware {
            RosMiddleware::Zenoh => route.endpoint(self.domain).key(hash),
            RosMiddleware::Dds => bare_topic_name(&route.name).to_owned(),
        }
    }
}

impl Route {
    fn new(rule: &Ros2Rule) -> Route {
        let known = rgaps_ros2::find(&rule.type_name);
        let hash = rule.hash.clone();
        Route {
            name: match &rule.name {
                Some(name) => format!("/{}", bare_topic_name(name)),
                None => format!("/{}", bare_topic_name(&rule.topic)),
            },
            known,
            hash: hash.unwrap_or_else(|| known.map_or("*", |known| known.hash).to_owned()),
            gid: OnceLock::new(),
            // rclcpp counts from 1.
            next: AtomicI64::new(1),
            seen: Mutex::default(),
            rule: rule.clone(),
        }
    }

    fn endpoint(&self, domain: u32) -> Endpoint<'_> {
        Endpoint {
            domain,
            topic: &self.name,
            type_name: &self.rule.type_name,
            // rmw_zenoh writes this for types without a hash.
            hash: match self.hash.as_str() {
                "*" => "TypeHashNotSupported",
                hash => hash,
            },
            reliable: self.rule.reliable,
            transient_local: self.rule.transient_local,
            depth: self.rule.depth,
        }
    }

    fn attachment(&self, published_ns: u64) -> Vec<u8> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut bytes = Vec::with_capacity(ATTACHMENT_BYTES);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&(published_ns as i64).to_le_bytes());
        bytes.push(GID_BYTES as u8);
        bytes.extend_from_slice(self.gid.get().unwrap_or(&[0; GID_BYTES]));
        bytes
    }

    /// The value of the key `ros` in the header of an incoming message: its topic and type, and its number and time if it has them.
    fn mark(&self, sample: &zenoh::sample::Sample) -> Value {
        let mut mark = BTreeMap::from([
            ("topic".to_owned(), Value::from(self.name.as_str())),
            ("type".to_owned(), Value::from(self.rule.type_name.as_str())),
        ]);
        if let Some(beside) = Attachment::of(sample) {
            mark.insert("sequence".to_owned(), Value::Int(beside.number));
            mark.insert("source_ns".to_owned(), Value::Int(beside.source_ns));
        }
        mark.into()
    }
}

/// The attachment of a message of rmw_zenoh.
struct Attachment {
    number: i64,
    source_ns: i64,
    gid: [u8; GID_BYTES],
}

impl Attachment {
    fn of(sample: &zenoh::sample::Sample) -> Option<Attachment> {
        let bytes = sample.attachment()?.to_bytes();
        let bytes = <&[u8; ATTACHMENT_BYTES]>::try_from(&*bytes).ok()?;
        let number = |at: usize| {
            let bytes = bytes[at..at + 8].try_into().expect("eight bytes");
            i64::from_le_bytes(bytes)
        };
        Some(Attachment {
            number: number(0),
            source_ns: number(8),
            gid: bytes[17..].try_into().expect("its length is known"),
        })
    }
}

impl Dialect for Ros2 {
    fn mark(&self) -> &'static str {
        MARK
    }

    fn tokens(&self, session: &str) -> Vec<String> {
        if self.middleware == RosMiddleware::Dds {
            return Vec::new();
        }
        let mut tokens = vec![keys::node_token(self.domain, session)];
        for (routes, is_publisher) in [(&self.outgoing, true), (&self.incoming, false)] {
            for route in routes {
                let endpoint = route.endpoint(self.domain);
                let token = endpoint.token(session, tokens.len(), is_publisher);
                // rmw_zenoh derives a publisher's id from its token in this way.
                let _ = route.gid.set(xxh3_128(token.as_bytes()).to_le_bytes());
                tokens.push(token);
            }
        }
        tokens
    }

    fn outgoing(&self) -> Vec<(String, bool)> {
        let routes = self.outgoing.iter().map(|route| &route.rule);
        routes
            .map(|rule| (rule.topic.clone(), rule.reliable))
            .collect()
    }

    fn key(&self, rule: usize, _: &str) -> String {
        let route = &self.outgoing[rule];
        self.key_of(route, &route.hash)
    }

    fn encode(
        &self,
        rule: usize,
        type_name: &str,
        published_ns: u64,
        sample: Sample,
    ) -> Result<Outbound, String> {
        let route = &self.outgoing[rule];
        let payload = match route.known {
            // A message of a known type may be CDR already, as replayed from a bag; then it is sent as it is.
            Some(known) if type_name != known.name || !rgaps_ros2::is_cdr(type_name, &sample) => {
                encode(known, type_name, published_ns, sample)?
            }
            _ => raw(sample)?,
        };
        Ok(Outbound {
            payload,
            encoding: Encoding::default(),
            attachment: match self.middleware {
                RosMiddleware::Zenoh => route.attachment(published_ns),
                RosMiddleware::Dds => Vec::new(),
            },
        })
    }

    fn incoming(&self) -> Vec<String> {
        // Takes messages with any hash, since older releases have other hashes.
        let routes = self.incoming.iter();
        routes.map(|route| self.key_of(route, "*")).collect()
    }

    fn offer(&self, rule: usize) -> Offer {
        let rule = &self.incoming[rule].rule;
        Offer {
            transient_local: rule.transient_local,
            keep_last: rule.depth,
        }
    }

    fn keeps(&self, rule: usize) -> Option<u32> {
        self.kept(&self.outgoing[rule])
    }

    fn asks(&self, rule: usize) -> Option<u32> {
        self.kept(&self.incoming[rule])
    }

    fn is_repeated(&self, rule: usize, sample: &zenoh::sample::Sample) -> bool {
        let route = &self.incoming[rule];
        let Some(beside) = Attachment::of(sample).filter(|_| route.rule.transient_local) else {
            return false;
        };
        let mut seen = route.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() == PUBLISHERS_SEEN_MAX && !seen.contains_key(&beside.gid) {
            seen.clear();
        }
        let last = seen.entry(beside.gid).or_insert(i64::MIN);
        let is_repeated = beside.number <= *last;
        *last = beside.number.max(*last);
        is_repeated
    }

    fn decode(&self, rule: usize, sample: &zenoh::sample::Sample) -> Result<Inbound, String> {
        let route = &self.incoming[rule];
        let payload = sample.payload();
        let mut decoded = match route.known {
            Some(known) => rgaps_ros2::decode(known, payload.reader(), payload.len())?,
            None => Decoded {
                data: Data::Within(0..payload.len()),
                header: Header::default(),
                beside: Beside::default(),
                type_name: route.rule.type_name.clone(),
            },
        };
        let mark = route.mark(sample);
        decoded.header.values.insert(MARK.to_owned(), mark);
        decoded.beside.set_header(&decoded.header)?;
        let (payload, range) = match decoded.data {
            Data::Own(bytes) => {
                let len = bytes.len();
                (ZBytes::from(bytes), 0..len)
            }
            Data::Within(range) => (payload.clone(), range),
        };
        Ok(Inbound {
            topic: bare_topic_name(&route.rule.topic).to_owned(),
            type_name: decoded.type_name,
            payload,
            skip: range.start,
            len: range.len(),
            beside: decoded.beside,
        })
    }
}

/// Encodes a message as a known type, without a copy of its bytes.
fn encode(
    known: &Type,
    type_name: &str,
    published_ns: u64,
    sample: Sample,
) -> Result<ZBytes, String> {
    let encoded = rgaps_ros2::encode(known, type_name, published_ns, &sample)?;
    let Some(at) = encoded.data_at else {
        return Ok(ZBytes::from(encoded.bytes));
    };
    let (before, after) = encoded.bytes.split_at(at);
    let mut payload = ZBytes::writer();
    payload.append(ZBytes::from(before));
    payload.append(crate::plain::held(sample)?);
    payload.append(ZBytes::from(after));
    Ok(payload.finish())
}

/// The bytes of a message that is CDR already. The error says that it is not.
fn raw(sample: Sample) -> Result<ZBytes, String> {
    let bytes = sample.as_slice().map_err(|error| error.to_string())?;
    match bytes {
        [0, 0 | 1, _, _, ..] => crate::plain::held(sample),
        _ => Err("its bytes are not CDR".to_owned()),
    }
}
