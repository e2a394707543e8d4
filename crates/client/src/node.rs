//! [`Node`]: a process's connection to the daemon, and the calls that ask the daemon something.

use crate::client::{Conductor, HostMemory};
use crate::links::{Interest, LinksNode, LinksNodeBuilder};
use crate::{
    ClientError, ClientRow, Forgotten, LinkFigures, MpsInfo, OpenError, PeersInfo, PoolRow,
    Publisher, PublisherBuilder, RemoteRow, Status, Subscriber, SubscriberBuilder, TopicInfo,
    TopicRow, WaitSet,
};
use rgaps_session::{ArrivalPath, Config, TopicNames};
use std::path::PathBuf;
use std::sync::Arc;

/// A process's connection to the daemon of its host.
///
/// Clones share one connection. It closes when the last clone, publisher, subscriber, loan and sample is dropped.
#[derive(Clone)]
pub struct Node {
    pub(crate) conductor: Arc<Conductor>,
    /// The namespace and the rules of remapping. None: callers pass full names.
    names: Option<Arc<TopicNames>>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

/// Configures and creates a [`Node`].
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    name: String,
    config: Option<Config>,
    bin_dirs: Vec<PathBuf>,
    host_memory: Option<Arc<dyn HostMemory>>,
}

impl NodeBuilder {
    /// Uses this configuration instead of `rgaps.toml` and the environment variables.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Adds a folder in which to look for the program `rgapsd`, in case the node must start the daemon.
    pub fn bin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.bin_dirs.push(dir.into());
        self
    }

    /// Connects to the daemon, and starts it if none runs.
    ///
    /// Errors: [`OpenError::Argument`] for an invalid configuration, [`OpenError::Client`] if there is no daemon and
    /// none can be started, [`OpenError::Processor`] on a processor without 128-bit compare-and-swap.
    pub fn build(self) -> Result<Node, OpenError> {
        if !rgaps_sync::atomic::has_lock_free_u128() {
            return Err(OpenError::Processor);
        }
        let config = match self.config {
            Some(config) => config,
            None => {
                let config =
                    Config::load(None).map_err(|error| OpenError::Argument(error.to_string()))?;
                for warning in config.warnings() {
                    tracing::warn!("{warning}");
                }
                config
            }
        };
        let names = config.topic_names().map_err(OpenError::Argument)?;
        let address = tracing::enabled!(tracing::Level::WARN).then(|| config.clone());
        let conductor = Conductor::start(config, &self.name, &self.bin_dirs, self.host_memory)?;
        if let Some(warning) = address.as_ref().and_then(rgaps_session::split_warning) {
            tracing::warn!("{warning}");
        }
        Ok(Node {
            conductor: Arc::new(conductor),
            names: Some(Arc::new(names)),
        })
    }
}

impl Node {
    /// Connects to the daemon with the configuration of this machine and user, and starts the daemon if none runs.
    /// `name` appears in listings such as `rgaps topic info`; several processes may use the same name.
    /// See [`NodeBuilder::build`] for the errors.
    pub fn new(name: &str) -> Result<Node, OpenError> {
        Node::builder(name).build()
    }

    /// Configures a node before it connects.
    pub fn builder(name: &str) -> NodeBuilder {
        NodeBuilder {
            name: name.to_owned(),
            config: None,
            bin_dirs: Vec::new(),
            host_memory: None,
        }
    }

    /// The full name of a topic, as listings, [`Publisher::topic`] and other hosts use it. The node puts a name without a leading
    /// `/` below the namespace of its configuration, then applies the rules of remapping. A pattern becomes a full pattern.
    /// Every method of a node that takes a topic calls this.
    pub fn resolve_topic(&self, name: &str) -> String {
        match &self.names {
            Some(names) => names.resolve(name),
            None => name.to_owned(),
        }
    }

    /// A node on the same connection whose methods take full names, exactly as [`topics`](Self::topics) lists them. It has no
    /// namespace and no remapping, and a leading `/` is an error.
    pub fn with_full_names(&self) -> Node {
        Node {
            conductor: self.conductor.clone(),
            names: None,
        }
    }

    /// Configures a publisher of `topic`; [`PublisherBuilder::create`] creates it.
    pub fn publisher(&self, topic: &str) -> PublisherBuilder {
        PublisherBuilder::new(self.clone(), self.resolve_topic(topic))
    }

    /// Configures a subscriber of `topic`; [`SubscriberBuilder::create`] creates it.
    pub fn subscriber(&self, topic: &str) -> SubscriberBuilder {
        SubscriberBuilder::new(self.clone(), self.resolve_topic(topic))
    }

    /// An empty wait set, to wait for messages of several subscribers at once.
    pub fn wait_set(&self) -> WaitSet {
        WaitSet::new(self.clone())
    }

    /// The state of the daemon: version, counts of clients and topics, memory, warnings.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.conductor.status()
    }

    /// Returns those of `keys` (keys of this node's configuration) that have no effect, because the running daemon was started
    /// with other values. `rgaps down` stops that daemon; the next node starts one with its own configuration.
    pub fn settings_without_effect(&self, keys: &[String]) -> Result<Vec<String>, ClientError> {
        let config = self.conductor.config();
        let settings = config.daemon_leaves(keys.iter().map(String::as_str));
        match settings.is_empty() {
            true => Ok(Vec::new()),
            false => self.conductor.compare(settings),
        }
    }

    /// The state of CUDA's Multi-Process Service (MPS) in the daemon's realm.
    pub fn mps(&self) -> Result<MpsInfo, ClientError> {
        self.conductor.mps()
    }

    /// All topics that the access rules let this process see, sorted by name.
    pub fn topics(&self) -> Result<Vec<TopicRow>, ClientError> {
        self.conductor.topics()
    }

    /// One topic, with its publishers, subscribers and mismatches.
    ///
    /// [`RefusalCode::NotFound`](crate::RefusalCode::NotFound): there is no such topic.
    pub fn topic(&self, name: &str) -> Result<TopicInfo, ClientError> {
        self.conductor.topic(&self.resolve_topic(name))
    }

    /// Drops the history that closed or dead transient-local publishers left in a topic. Living publishers keep their
    /// history, and a reliable subscriber still gets the messages that it has not read. If the topic then has no members
    /// and no history, the daemon removes it with its type. Requires the right to publish to the topic.
    ///
    /// [`RefusalCode::NotFound`](crate::RefusalCode::NotFound): there is no such topic.
    pub fn forget_topic(&self, name: &str) -> Result<Forgotten, ClientError> {
        self.conductor.forget_topic(&self.resolve_topic(name))
    }

    /// The other hosts of the realm, and the state of the links to them.
    pub fn peers(&self) -> Result<PeersInfo, ClientError> {
        self.conductor.peers()
    }

    /// Counters and histograms of the links to other hosts.
    pub fn link_figures(&self) -> Result<Vec<LinkFigures>, ClientError> {
        self.conductor.link_figures()
    }

    /// All memory pools of the realm that this process may see.
    pub fn pools(&self) -> Result<Vec<PoolRow>, ClientError> {
        self.conductor.pools()
    }

    /// All processes that are connected to the daemon.
    pub fn clients(&self) -> Result<Vec<ClientRow>, ClientError> {
        self.conductor.clients()
    }

    /// Keeps the daemon running until [`stop_daemon`](Self::stop_daemon). A daemon that a client started otherwise ends some
    /// time after its last client. Only the daemon's own user and root may do this.
    pub fn keep_daemon(&self) -> Result<(), ClientError> {
        self.conductor.keep_daemon()
    }

    /// Stops the daemon. Existing publishers and subscribers go on exchanging messages; their processes do not start another
    /// daemon by themselves. Only the daemon's own user and root may do this.
    pub fn stop_daemon(&self) -> Result<(), ClientError> {
        self.conductor.stop_daemon()
    }
}

impl LinksNodeBuilder for NodeBuilder {
    fn host_memory(mut self, watch: Arc<dyn HostMemory>) -> Self {
        self.host_memory = Some(watch);
        self
    }
}

impl LinksNode for Node {
    fn interest(&self, known: u64) -> Result<Interest, ClientError> {
        self.conductor.interest(known)
    }

    fn stands_for(
        &self,
        subscriber: &Subscriber,
        hosts: Vec<RemoteRow>,
    ) -> Result<(), ClientError> {
        self.conductor.stands_for(subscriber.core.member(), hosts)
    }

    fn comes_over(&self, publisher: &Publisher, over: ArrivalPath) -> Result<(), ClientError> {
        self.conductor.comes_over(publisher.member(), over)
    }

    fn unserved(&self, topic: &str, hosts: Vec<RemoteRow>) -> Result<(), ClientError> {
        self.conductor.unserved(topic.to_owned(), hosts)
    }

    fn set_peers(&self, peers: PeersInfo) -> Result<(), ClientError> {
        self.conductor.set_peers(peers)
    }

    fn set_figures(&self, figures: LinkFigures) -> Result<(), ClientError> {
        self.conductor.set_figures(figures)
    }
}
