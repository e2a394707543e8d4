//! A process's connection to the daemon.

use crate::client::{Conductor, HostMemory};
use crate::{
    ClientError, ClientRow, Forgotten, LinkFigures, MpsInfo, OpenError, PeersInfo, PoolRow,
    Publisher, PublisherBuilder, RemoteRow, Status, Subscriber, SubscriberBuilder, TopicInfo,
    TopicRow, WaitSet,
};
use rgaps_session::{CameOver, Config, InterestRow};
use std::path::PathBuf;
use std::sync::Arc;

/// A process's connection to the daemon of its host. Clones are the same node; it ends when the
/// last of them and of its publishers, subscribers, loans and samples is gone.
#[derive(Clone)]
pub struct Node {
    pub(crate) conductor: Arc<Conductor>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

/// Makes a [`Node`].
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    name: String,
    config: Option<Config>,
    bin_dirs: Vec<PathBuf>,
    host_memory: Option<Arc<dyn HostMemory>>,
}

impl NodeBuilder {
    /// Uses this configuration instead of the files and the environment.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Also looks here for `rgapsd` when one has to be started.
    pub fn bin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.bin_dirs.push(dir.into());
        self
    }

    /// Who hears of host memory that this node maps. For the process with the links to other hosts.
    #[doc(hidden)]
    pub fn host_memory(mut self, watch: Arc<dyn HostMemory>) -> Self {
        self.host_memory = Some(watch);
        self
    }

    /// Connects to the daemon, or starts it.
    pub fn build(self) -> Result<Node, OpenError> {
        if !rgaps_sync::atomic::has_lock_free_u128() {
            return Err(OpenError::Processor);
        }
        let config = match self.config {
            Some(config) => config,
            None => Config::load(None).map_err(|error| OpenError::Argument(error.to_string()))?,
        };
        let address = tracing::enabled!(tracing::Level::WARN).then(|| config.clone());
        let conductor = Conductor::start(config, &self.name, &self.bin_dirs, self.host_memory)?;
        if let Some(warning) = address.as_ref().and_then(rgaps_session::split_warning) {
            tracing::warn!("{warning}");
        }
        Ok(Node {
            conductor: Arc::new(conductor),
        })
    }
}

impl Node {
    /// Connects to the daemon with the configuration of this machine and user, or starts it.
    /// `name` is what listings call this process.
    pub fn new(name: &str) -> Result<Node, OpenError> {
        Node::builder(name).build()
    }

    /// Makes a node step by step.
    pub fn builder(name: &str) -> NodeBuilder {
        NodeBuilder {
            name: name.to_owned(),
            config: None,
            bin_dirs: Vec::new(),
            host_memory: None,
        }
    }

    /// A publisher of `topic`, to be configured and created. A leading `/` of the name is ignored, as in
    /// every call that takes a topic.
    pub fn publisher(&self, topic: &str) -> PublisherBuilder {
        PublisherBuilder::new(self.clone(), topic)
    }

    /// A subscriber of `topic`, to be configured and created.
    pub fn subscriber(&self, topic: &str) -> SubscriberBuilder {
        SubscriberBuilder::new(self.clone(), topic)
    }

    /// An empty wait set.
    pub fn wait_set(&self) -> WaitSet {
        WaitSet::new(self.clone())
    }

    /// How the daemon is.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.conductor.status()
    }

    /// How it is with CUDA's Multi-Process Service (MPS) in the daemon's realm.
    pub fn mps(&self) -> Result<MpsInfo, ClientError> {
        self.conductor.mps()
    }

    /// All topics that this process may see, by name.
    pub fn topics(&self) -> Result<Vec<TopicRow>, ClientError> {
        self.conductor.topics()
    }

    /// One topic with its members.
    pub fn topic(&self, name: &str) -> Result<TopicInfo, ClientError> {
        self.conductor.topic(name)
    }

    /// Drops the history of transient-local publishers of a topic that have closed or died. A topic without
    /// members and history is gone, with its type. Publishers that are there keep theirs. Whoever may publish to the
    /// topic may do this. A reliable subscriber still gets what it has not read.
    ///
    /// [`RefusalCode::NotFound`](crate::RefusalCode::NotFound): there is no such topic.
    pub fn forget_topic(&self, name: &str) -> Result<Forgotten, ClientError> {
        self.conductor.forget_topic(name)
    }

    /// The other hosts of the realm, as the links to them are.
    pub fn peers(&self) -> Result<PeersInfo, ClientError> {
        self.conductor.peers()
    }

    /// What was counted and timed on the links with other hosts.
    pub fn link_figures(&self) -> Result<Vec<LinkFigures>, ClientError> {
        self.conductor.link_figures()
    }

    /// All pools.
    pub fn pools(&self) -> Result<Vec<PoolRow>, ClientError> {
        self.conductor.pools()
    }

    /// All client processes.
    pub fn clients(&self) -> Result<Vec<ClientRow>, ClientError> {
        self.conductor.clients()
    }

    /// Has the daemon leave for good. Members go on among those who are there.
    pub fn stop_daemon(&self) -> Result<(), ClientError> {
        self.conductor.stop_daemon()
    }
}

/// Who publishes and subscribes on this host, links left out.
#[derive(Clone, Debug)]
pub struct Interest {
    /// Changes with who is in which topic.
    pub version: u64,
    /// Changes with every daemon.
    pub daemon: u64,
    /// None: nothing has changed.
    pub rows: Option<Vec<InterestRow>>,
    /// To who knows nothing yet: publishers of former links, and how many messages each published.
    pub departed: Vec<(u64, u64)>,
}

/// For the process with the links to other hosts, and no other.
#[doc(hidden)]
impl Node {
    /// Who publishes and subscribes on this host, if that has changed since `known`.
    pub fn interest(&self, known: u64) -> Result<Interest, ClientError> {
        self.conductor.interest(known)
    }

    /// Says whom a subscriber stands for.
    pub fn stands_for(
        &self,
        subscriber: &Subscriber,
        hosts: Vec<RemoteRow>,
    ) -> Result<(), ClientError> {
        self.conductor.stands_for(subscriber.core.member(), hosts)
    }

    /// Says how messages of a publisher that stands for one elsewhere come to this host now.
    pub fn comes_over(&self, publisher: &Publisher, over: CameOver) -> Result<(), ClientError> {
        self.conductor.comes_over(publisher.member(), over)
    }

    /// Tells the daemon between which hosts and this one a topic does not cross, and why.
    pub fn unserved(&self, topic: &str, hosts: Vec<RemoteRow>) -> Result<(), ClientError> {
        self.conductor.unserved(topic.to_owned(), hosts)
    }

    /// Tells the daemon how it is with other hosts.
    pub fn set_peers(&self, peers: PeersInfo) -> Result<(), ClientError> {
        self.conductor.set_peers(peers)
    }

    /// Tells the daemon what was counted and timed on the link with a host.
    pub fn set_figures(&self, figures: LinkFigures) -> Result<(), ClientError> {
        self.conductor.set_figures(figures)
    }
}
