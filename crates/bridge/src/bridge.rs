//! A running bridge: starts the session with Zenoh, the threads and the subscriptions, and ends them.

use crate::counts::{Counters, Counts, Reason};
use crate::dialect::Dialect;
use crate::error::BridgeError;
use crate::history;
use crate::incoming::Incoming;
use crate::network;
use crate::outgoing::Outgoing;
use crate::plain::Plain;
use crate::queue::Queue;
use crate::ros2::Ros2;
use crate::shared::Shared;
use rgaps_client::Node;
use rgaps_session::{is_pattern, BridgeConfig as Config};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;
use zenoh::key_expr::KeyExpr;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::sample::{Locality, Sample};
use zenoh::Wait as _;

/// A running bridge. Dropping it ends it, too, but only [`stop`](Bridge::stop) waits until the session with Zenoh is closed.
pub struct Bridge {
    shared: Arc<Shared>,
    tokens: Vec<LivelinessToken>,
    subscribers: Vec<Subscriber<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Bridge {
    /// Starts a bridge to Zenoh, with the rules in `bridge.zenoh` of the configuration. Does not wait until the session reaches another
    /// Zenoh node.
    ///
    /// # Errors
    /// A rule is invalid, or Zenoh cannot be started.
    pub fn zenoh(node: Node, config: &Config) -> Result<Bridge, BridgeError> {
        Bridge::start(node, config, Arc::new(Plain::new(config)))
    }

    /// Starts a bridge to nodes of ROS 2, with the rules in `bridge.ros2` of the configuration. Without an endpoint it connects to
    /// the router of this host, as these nodes do.
    ///
    /// # Errors
    /// A rule is invalid, or Zenoh cannot be started.
    pub fn ros2(node: Node, config: &Config) -> Result<Bridge, BridgeError> {
        let config = network::with_router(config);
        let dialect = Arc::new(Ros2::new(&config)?);
        Bridge::start(node, &config, dialect)
    }

    fn start(
        node: Node,
        config: &Config,
        dialect: Arc<dyn Dialect>,
    ) -> Result<Bridge, BridgeError> {
        let (outgoing, incoming) = (dialect.outgoing(), dialect.incoming());
        if outgoing.is_empty() && incoming.is_empty() {
            return Err(BridgeError::NoRule);
        }
        let incoming: Vec<_> = incoming
            .into_iter()
            .map(check_key)
            .collect::<Result<_, _>>()?;
        for (rule, (topic, _)) in outgoing.iter().enumerate() {
            if !is_pattern(topic) {
                check_key(dialect.key(rule, topic))?;
            }
        }
        let shared = Arc::new(Shared {
            session: network::open(config)?,
            node: node.with_full_names(),
            dialect,
            counters: Counters::default(),
            stop: AtomicBool::new(false),
            own: RwLock::default(),
            warned: Mutex::default(),
        });
        let tokens = declare_tokens(&shared)?;
        let mut bridge = Bridge {
            shared,
            tokens,
            subscribers: Vec::new(),
            threads: Vec::new(),
        };
        for (rule, key) in incoming.into_iter().enumerate() {
            bridge.receive(rule, key)?;
        }
        if !outgoing.is_empty() {
            let sender = Outgoing::new(bridge.shared.clone(), outgoing)?;
            bridge.spawn("rgaps-outgoing", move || sender.run())?;
        }
        Ok(bridge)
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), BridgeError> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        self.threads
            .push(thread.spawn(run).map_err(BridgeError::Thread)?);
        Ok(())
    }

    fn receive(&mut self, rule: usize, key: KeyExpr<'static>) -> Result<(), BridgeError> {
        let queue = Arc::new(Queue::default());
        let receiver = Incoming::new(self.shared.clone(), rule, queue.clone());
        self.spawn("rgaps-incoming", move || receiver.run())?;
        let shared = self.shared.clone();
        let take = move |sample: Sample| {
            let key = sample.key_expr().clone();
            if !queue.push(sample) {
                shared.drop_one(&key, Reason::QueueFull, Reason::QueueFull.explain());
            }
        };
        let failed = |error: zenoh::Error| BridgeError::Zenoh(error.to_string());
        let session = &self.shared.session;
        let subscriber = session.declare_subscriber(key.clone());
        let subscriber = subscriber.allowed_origin(Locality::Remote);
        let live = subscriber.callback(take.clone()).wait().map_err(failed)?;
        self.subscribers.push(live);
        if let Some(depth) = self.shared.dialect.asks(rule) {
            let kept = history::ask(session, &key, depth, take).map_err(failed)?;
            self.subscribers.push(kept);
        }
        Ok(())
    }

    /// The current counters.
    pub fn counts(&self) -> Counts {
        self.shared
            .counters
            .read(network::peers(&self.shared.session))
    }

    /// Ends the bridge. Returns its counters.
    pub fn stop(mut self) -> Counts {
        let counts = self.counts();
        self.end();
        network::close(self.shared.session.clone());
        let peers = counts.peers;
        self.shared.counters.read(peers)
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.tokens.clear();
        self.subscribers.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.end();
    }
}

fn declare_tokens(shared: &Shared) -> Result<Vec<LivelinessToken>, BridgeError> {
    let session = shared.session.zid().to_string();
    let tokens = shared.dialect.tokens(&session).into_iter();
    let liveliness = shared.session.liveliness();
    let declare = |token: String| liveliness.declare_token(token).wait();
    tokens
        .map(|token| declare(token).map_err(|error| BridgeError::Zenoh(error.to_string())))
        .collect()
}

fn check_key(key: String) -> Result<KeyExpr<'static>, BridgeError> {
    KeyExpr::try_from(key.clone()).map_err(|error| BridgeError::Key {
        key,
        reason: error.to_string(),
    })
}
