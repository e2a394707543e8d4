//! ROS 2, as nodes with `rmw_zenoh` speak it: a topic is a key with domain, type and hash, a message is CDR, its attachment has a
//! number, a time and the publisher's id, and liveliness tokens make the graph visible. Or as `zenoh-bridge-ros2dds` speaks it
//! for nodes with DDS: a topic's key is its name, and a message is CDR and nothing else.
//!
//! Known types (`types`) become arrays, with `header.stamp` as `capture_ns`, `frame_id`, and other members as values of the header. All others
//! cross as their CDR bytes. A message that comes in has the key `ros` in its header.

mod cdr;
mod cloud;
mod decode;
mod encode;
mod image;
mod keys;
mod types;

use crate::beside::Beside;
use crate::dialect::{Dialect, Inbound, Offer, Outbound};
use crate::error::BridgeError;
use decode::Decoded;
use keys::Endpoint;
use rgaps_client::{Header, Sample, Value};
use rgaps_session::{bare_topic_name, Bridge as Config, Ros2Rule, RosMiddleware};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::OnceLock;
use types::Type;
use xxhash_rust::xxh3::xxh3_128;
use zenoh::bytes::{Encoding, ZBytes};

/// The key of a header with what only ROS 2 knows.
const ROS: &str = "ros";
/// Bytes of a publisher's id.
const GID_BYTES: usize = 16;
/// An attachment: number, time, length of the id, id.
const ATTACHMENT_BYTES: usize = 8 + 8 + 1 + GID_BYTES;

/// ROS 2 over Zenoh.
pub(crate) struct Ros2 {
    domain: u32,
    middleware: RosMiddleware,
    outgoing: Vec<Route>,
    incoming: Vec<Route>,
}

/// A topic that crosses.
struct Route {
    rule: Ros2Rule,
    /// Its name in ROS 2.
    name: String,
    /// None: it crosses as its CDR bytes.
    known: Option<&'static Type>,
    /// `*` if it is not known.
    hash: String,
    /// The id of the bridge's publisher.
    gid: OnceLock<[u8; GID_BYTES]>,
    /// Number of its next message.
    next: AtomicI64,
}

impl Ros2 {
    /// The rules of a configuration.
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

    /// The key of a route's messages. `hash`: `*` for those with any.
    fn key_of(&self, route: &Route, hash: &str) -> String {
        match self.middleware {
            RosMiddleware::Zenoh => route.endpoint(self.domain).key(hash),
            RosMiddleware::Dds => bare_topic_name(&route.name).to_owned(),
        }
    }
}

impl Route {
    fn new(rule: &Ros2Rule) -> Route {
        let known = types::find(&rule.type_name);
        let hash = rule.hash.clone();
        Route {
            name: match &rule.name {
                Some(name) => format!("/{}", bare_topic_name(name)),
                None => format!("/{}", bare_topic_name(&rule.topic)),
            },
            known,
            hash: hash.unwrap_or_else(|| known.map_or("*", |known| known.hash).to_owned()),
            gid: OnceLock::new(),
            // As rclcpp counts.
            next: AtomicI64::new(1),
            rule: rule.clone(),
        }
    }

    fn endpoint(&self, domain: u32) -> Endpoint<'_> {
        Endpoint {
            domain,
            topic: &self.name,
            type_name: &self.rule.type_name,
            // Of a type that is not known, as rmw_zenoh writes it for those without a hash.
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

    /// What a message from ROS 2 says of itself.
    fn mark(&self, sample: &zenoh::sample::Sample) -> Value {
        let mut mark = BTreeMap::from([
            ("topic".to_owned(), Value::from(self.name.as_str())),
            ("type".to_owned(), Value::from(self.rule.type_name.as_str())),
        ]);
        let attachment = sample.attachment().map(ZBytes::to_bytes);
        let attachment = attachment.as_deref().unwrap_or_default();
        if attachment.len() == ATTACHMENT_BYTES {
            let number = |at: usize| {
                let bytes = attachment[at..at + 8].try_into().expect("eight bytes");
                Value::Int(i64::from_le_bytes(bytes))
            };
            mark.insert("sequence".to_owned(), number(0));
            mark.insert("source_ns".to_owned(), number(8));
        }
        mark.into()
    }
}

impl Dialect for Ros2 {
    fn mark(&self) -> &'static str {
        ROS
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
                // As rmw_zenoh makes it.
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
            Some(known) => encode::encode(known, type_name, published_ns, sample)?,
            None => raw(sample)?,
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
        // With any hash: those of older releases differ.
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

    fn decode(&self, rule: usize, sample: &zenoh::sample::Sample) -> Result<Inbound, String> {
        let route = &self.incoming[rule];
        let payload = sample.payload();
        let mut decoded = match route.known {
            Some(known) => decode::decode(known, payload)?,
            None => Decoded {
                payload: payload.clone(),
                skip: 0,
                len: payload.len(),
                header: Header::default(),
                beside: Beside::default(),
            },
        };
        let type_name = match decoded.header.values.get("encoding") {
            Some(Value::Text(encoding)) if decoded.beside.tensor.is_some() => encoding.clone(),
            _ => route.rule.type_name.clone(),
        };
        let mark = route.mark(sample);
        decoded.header.values.insert(ROS.to_owned(), mark);
        decoded.beside.set_header(&decoded.header)?;
        Ok(Inbound {
            topic: bare_topic_name(&route.rule.topic).to_owned(),
            type_name,
            payload: decoded.payload,
            skip: decoded.skip,
            len: decoded.len,
            beside: decoded.beside,
        })
    }
}

/// A message that is CDR already.
fn raw(sample: Sample) -> Result<ZBytes, String> {
    let bytes = sample.as_slice().map_err(|error| error.to_string())?;
    match bytes {
        [0, 0 | 1, _, _, ..] => crate::plain::held(sample),
        _ => Err("its bytes are not CDR".to_owned()),
    }
}
