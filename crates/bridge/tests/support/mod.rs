//! The other side: a plain Zenoh session of the test, to which bridges connect.
#![allow(dead_code, reason = "each test program uses a part of it")]

use rgaps_bridge::Bridge;
use rgaps_client::{Node, Sample, Subscriber};
use rgaps_session::{BridgeDirection, ZenohRule};
use rgaps_testkit::{ports, until, Daemon, LIMIT};
use std::sync::mpsc::{channel, Receiver};
use zenoh::sample::Locality;
use zenoh::{Session, Wait as _};

/// A Zenoh session that listens.
pub struct Zenoh {
    pub session: Session,
    pub endpoint: String,
}

/// A subscriber of the session, with the messages that it has received.
pub struct Received {
    samples: Receiver<zenoh::sample::Sample>,
    pub subscriber: zenoh::pubsub::Subscriber<()>,
}

impl Zenoh {
    pub fn listen() -> Zenoh {
        let endpoint = format!("tcp/127.0.0.1:{}", ports(1)[0]);
        let mut config = zenoh::Config::default();
        for (key, value) in [
            ("listen/endpoints", format!("[{endpoint:?}]")),
            ("scouting/multicast/enabled", "false".to_owned()),
        ] {
            config.insert_json5(key, &value).unwrap();
        }
        let session = zenoh::open(config).wait().unwrap();
        Zenoh { session, endpoint }
    }

    pub fn subscribe(&self, key: &str) -> Received {
        let (to, samples) = channel();
        let subscriber = self.session.declare_subscriber(key.to_owned());
        let subscriber = subscriber.callback(move |sample| drop(to.send(sample)));
        Received {
            samples,
            subscriber: subscriber.wait().unwrap(),
        }
    }

    /// Waits until another session subscribes to a key.
    pub fn wait_for_subscriber(&self, key: &str) {
        let publisher = self.session.declare_publisher(key.to_owned());
        let publisher = publisher.allowed_destination(Locality::Remote);
        let publisher = publisher.wait().unwrap();
        until("a subscriber on the other side", || {
            publisher.matching_status().wait().unwrap().matching()
        });
    }
}

impl Received {
    pub fn next(&self) -> zenoh::sample::Sample {
        self.samples.recv_timeout(LIMIT).expect("a message")
    }
}

/// Parses rules in a line: `TOPIC` or `TOPIC=KEY`, after `>` for outgoing only, after `<` for incoming only.
pub fn rules(text: &str) -> Vec<ZenohRule> {
    let rule = |word: &str| {
        let (direction, word) = match word.split_at(1) {
            (">", rest) => (BridgeDirection::To, rest),
            ("<", rest) => (BridgeDirection::From, rest),
            _ => (BridgeDirection::Both, word),
        };
        let (topic, key) = match word.split_once('=') {
            Some((topic, key)) => (topic, Some(key.to_owned())),
            None => (word, None),
        };
        ZenohRule {
            topic: topic.to_owned(),
            key,
            direction,
            reliable: false,
        }
    };
    text.split_whitespace().map(rule).collect()
}

/// The configuration of a bridge that connects to the endpoint.
pub fn config(endpoint: &str, text: &str) -> rgaps_session::BridgeConfig {
    rgaps_session::BridgeConfig {
        connect: vec![endpoint.to_owned()],
        zenoh: rules(text),
        ..rgaps_session::BridgeConfig::default()
    }
}

/// Starts a bridge in this process.
pub fn bridge(daemon: &Daemon, endpoint: &str, text: &str) -> Bridge {
    Bridge::zenoh(daemon.node("bridge"), &config(endpoint, text)).unwrap()
}

/// Waits until a topic has `count` subscribers, with observers.
pub fn wait_for_readers(node: &Node, topic: &str, count: usize) {
    until("readers", || {
        let info = node.topic(topic);
        info.map_or(0, |info| info.subscribers.len()) == count
    });
}

pub fn receive(subscriber: &Subscriber) -> Sample {
    subscriber.recv_timeout(LIMIT).unwrap()
}

/// Random bytes of this seed.
pub fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut random = rgaps_testkit::Random::new(seed);
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}
