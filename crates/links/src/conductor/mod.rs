//! One thread owns the links' state: this host's topics, other hosts, and the flows between them. Other threads send it events.
//! A few times a second it asks the daemon for publishers and subscribers, and reconciles the flows with them.
//!
//! | owner | state |
//! |---|---|
//! | [`Daemon`] | the topics of this host, as its daemon lists them, and what the links last reported to it ([`report`]) |
//! | [`Presence`] | which other hosts are present, by their tokens on the control plane |
//! | [`RemoteHost`] | a host: the link with it, and the flows that come from there |
//! | [`Network`] | paths, interest of other hosts, and confirmations to origins |
//! | [`Routes`] | how each host is reached, also while its path is lost |
//! | [`EgressPlan`] | a topic of this host: the streams in which it goes out, and their limits |
//! | [`EgressThreads`] | the threads that take the topics' messages and send them |
//! | [`Landings`] | the publishers here that publish messages of other hosts, and their delivered positions |
//! | [`Transits`] | flows that this host receives from other hosts and forwards |
//! | [`Cards`] | which GPUs network cards can read and write |

mod daemon;
mod egress_plan;
mod events;
mod hosts;
mod ingress_plan;
mod landing;
mod landings;
mod presence;
mod report;
mod routes;
mod topics;
mod transits;

use self::daemon::Daemon;
use self::egress_plan::EgressPlan;
use self::landings::Landings;
use self::presence::Presence;
use self::routes::Routes;
use self::transits::Transits;
use crate::control_plane::{PlaneEvent, PlaneListener};
use crate::delivered::DeliveredFile;
use crate::egress::{start_transit, EgressThreads, OwnPublishers};
use crate::event::{ConductorEvent, SourcedEvent};
use crate::host_link::HostLink;
use crate::ingress::MemoryRequest;
use crate::keys::{number_of, HostLife};
use crate::network::Network;
use crate::pool_memory;
use crate::quotas::Staged;
use crate::rails::{self, names, CardMemory, CardPreference, Cards};
use crate::remote_host::RemoteHost;
use crate::traces::Tracer;
use anyhow::Context;
use rgaps_client::links::{LinksNode, LinksNodeBuilder, LINKS_CLIENT};
use rgaps_client::{Config, Node, Subscriber};
use rgaps_connection::{Security, Tls};
use rgaps_session::{CudaUse, NumaChoice};
use rgaps_sync::wall_ns;
use rgaps_transport::{Endpoint, EndpointConfig, EndpointError, Rdma};
use rgaps_verbs::Location;
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the conductor asks the daemon for publishers and subscribers, and reconciles.
const LOOK: Duration = Duration::from_millis(50);
/// The same when nothing has changed for [`IDLE_AFTER`].
const LOOK_IDLE: Duration = Duration::from_millis(250);
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// Least time between two confirmations of delivered positions to the origins of messages that come here through other hosts.
const CONFIRM_EVERY: Duration = Duration::from_millis(5);
/// Pause before the conductor tries again what this host's daemon refused.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// The conductor reconciles everything at least this often.
const LOOK_ALL: Duration = Duration::from_secs(10);
/// How long links that end wait until other hosts acknowledge all sent messages. The daemon waits longer for the links to end.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// How long new links wait until the former process of the links has ended.
const PREVIOUS_LIMIT: Duration = Duration::from_secs(10);
/// How long new links wait at most for the hosts of `links.connect` before they take messages.
const GATHER: Duration = Duration::from_secs(2);

/// The links of this host.
pub struct LinksConductor {
    config: Config,
    own: HostLife,
    begun: Instant,
    daemon: Daemon,
    presence: Presence,
    peers: BTreeMap<String, RemoteHost>,
    endpoint: Endpoint,
    cards: Cards,
    network: Network,
    routes: Routes,
    topics: BTreeMap<String, EgressPlan>,
    /// The topic of each stream of `topics`, and of no other.
    streams: HashMap<u64, String>,
    /// The parts of quotas that publishers have reserved for messages that go out from here.
    staged: Staged,
    egress: EgressThreads,
    landings: Landings,
    transits: Transits,
    /// The thread that asks the daemon for memory.
    memory: Sender<MemoryRequest>,
    tracer: Option<Arc<Tracer>>,
    events: Receiver<SourcedEvent>,
    event_sender: Sender<SourcedEvent>,
    /// Whether delivered positions wait to be confirmed to origins.
    confirms: bool,
    /// When positions were confirmed last.
    confirmed_at: Instant,
    /// Whether something has changed since the last reconciliation.
    dirty: bool,
    /// When to reconcile next, even if nothing changes.
    reconcile_at: Instant,
}

/// Which network cards to prefer: those near GPUs on which rules let messages land, or else near any GPU.
fn near(config: &Config) -> CardPreference {
    let lands_on = landing::gpus(&config.links);
    CardPreference {
        lands_on_gpus: !lands_on.is_empty(),
        gpus: match lands_on.is_empty() && config.pool.cuda.enabled != CudaUse::Off {
            true => Location::gpus(),
            false => lands_on,
        },
        numa_node: match config.pool.host.numa_node {
            Some(NumaChoice::Node(node)) => Some(node),
            _ => None,
        },
    }
}

impl LinksConductor {
    /// Joins the daemon and the realm's other hosts.
    pub fn start(config: Config) -> anyhow::Result<LinksConductor> {
        let rdma = rails::open(&config.links, &near(&config))?;
        LinksConductor::start_over(config, rdma, |_| true)
    }

    /// [`LinksConductor::start`] with the given network cards, or the reason why there are none. For tests: the conductor does not get
    /// events of the control plane that `listens_to` rejects.
    #[doc(hidden)]
    pub fn start_over(
        config: Config,
        rdma: Result<Rdma, String>,
        listens_to: impl Fn(&PlaneEvent) -> bool + Send + Sync + 'static,
    ) -> anyhow::Result<LinksConductor> {
        let links = &config.links;
        let host = links.host_name().map_err(anyhow::Error::msg)?;
        let tracer = Tracer::start(&config.traces, &config.realm, &host)?;
        let incarnation = wall_ns().max(1);
        let own = HostLife { host, incarnation };
        let over = rdma.as_ref().map_or_else(String::clone, names);
        // Comes before the node: the endpoint's cards register the node's memory.
        let (endpoint, tls) = open_endpoint(&config, &own, rdma.as_ref().ok().cloned())?;
        let memory = rdma.map(|_| CardMemory::new(endpoint.registrar()));
        let node = join_daemon(&config, memory.as_ref().ok())?;
        let delivered = open_delivered(&config, &node)?;
        let lanes: Vec<SocketAddr> = endpoint.local_addr().into_iter().collect();
        let own_publishers = OwnPublishers::default();
        let (event_sender, events) = channel();
        let egress = EgressThreads::start(&node, &own_publishers, &event_sender);
        let reported = listener(event_sender.clone(), listens_to);
        let presence = Presence::join(&config, &own, (lanes.clone(), tls), reported)?;
        tracing::info!(host = own.host, realm = config.realm, ?lanes, rdma = %over, "links are ready");
        Ok(LinksConductor {
            daemon: Daemon::new(node),
            presence,
            peers: BTreeMap::new(),
            endpoint,
            cards: Cards::new(memory),
            network: Network::new(&own),
            own,
            begun: Instant::now(),
            routes: Routes::default(),
            topics: BTreeMap::new(),
            streams: HashMap::new(),
            staged: Staged::default(),
            egress: egress.context("creating a thread")?,
            landings: Landings::new(delivered, own_publishers),
            transits: Transits::new(start_transit().context("creating a thread")?),
            memory: pool_memory::start().context("creating a thread")?,
            tracer,
            events,
            event_sender,
            confirms: false,
            confirmed_at: Instant::now(),
            dirty: true,
            reconcile_at: Instant::now(),
            config,
        })
    }

    /// Runs until `stop` is set, or the control plane fails.
    pub fn run(mut self, stop: &AtomicBool) -> anyhow::Result<Seats> {
        let mut changed = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            // Events first: other hosts wait for the answers to some.
            while let Ok(event) = self.events.try_recv() {
                self.handle(event);
            }
            let looked = self.look();
            if let Err(error) = &looked {
                tracing::warn!(
                    "asking the daemon for publishers and subscribers failed: {error:#}"
                );
            }
            let no_rdma = self.cards.why_none();
            for peer in self.peers.values_mut() {
                self.dirty |= peer.look_over(no_rdma);
                peer.linked().iter().for_each(|link| link.give_up_outage());
            }
            if self.dirty {
                changed = begun;
            }
            self.reconcile();
            if looked.is_ok() {
                self.presence.plane.announce()?;
            }
            self.report_peers();
            let pause = match changed.elapsed() < IDLE_AFTER {
                true => LOOK,
                false => LOOK_IDLE,
            };
            self.wait(begun + pause);
        }
        Ok(self.leave())
    }

    /// Handles events until then, or until one makes the state dirty. Meanwhile it confirms delivered positions to origins.
    fn wait(&mut self, until: Instant) {
        loop {
            self.send_confirmed();
            self.exchange();
            let left = until.saturating_duration_since(Instant::now());
            let pause = match self.confirms {
                true => left.min(CONFIRM_EVERY),
                false => left,
            };
            match self.events.recv_timeout(pause) {
                Ok(event) => {
                    self.handle(event);
                    // A change is reconciled at once. Events about progress are frequent and change nothing else.
                    if self.dirty || Instant::now() >= until {
                        return;
                    }
                }
                Err(_) if left <= pause => return,
                Err(_) => {}
            }
        }
    }

    fn leave(self) -> Seats {
        let taken = self.egress.end();
        // Gives linked hosts time to acknowledge sent messages. The next links send the others again.
        let until = Instant::now() + LEAVE_LIMIT;
        let links = || self.peers.values().filter_map(RemoteHost::linked);
        let is_sent = |link: &HostLink| {
            let status = link.status();
            status.lanes.is_empty() || status.retained_bytes == 0
        };
        while !links().all(is_sent) && Instant::now() < until {
            std::thread::sleep(CONFIRM_EVERY);
        }
        self.presence.plane.leave();
        links().for_each(|link| link.close());
        drop((self.peers, self.endpoint));
        self.tracer.iter().for_each(|tracer| tracer.end());
        let topics = self.topics.into_values();
        let wanted = topics.filter_map(EgressPlan::into_subscriber);
        Seats {
            _subscribers: wanted.chain(taken).collect(),
            _node: self.daemon.node,
        }
    }

    fn look(&mut self) -> anyhow::Result<()> {
        let changes = self.daemon.look()?;
        self.dirty |= changes.daemon || changes.rows;
        if changes.daemon {
            let topics = self.topics.values_mut();
            topics.for_each(EgressPlan::forget_reported);
        }
        if changes.rows {
            self.landings.note(self.daemon.landed());
            self.announce_wants();
        }
        Ok(())
    }
}

/// The subscribers of links that ended. When dropped, they leave their topics, and publishers do not wait for them.
pub struct Seats {
    _subscribers: Vec<Subscriber>,
    _node: Node,
}

impl Seats {
    /// For a process that ends at once: the subscribers do not leave, so the daemon keeps reliable ones' seats for the next links,
    /// and publishers wait for those.
    pub fn leave_empty(self) {
        std::mem::forget(self);
    }
}

/// Joins the daemon as a client. `known`: the network cards with which the client registers its memory.
fn join_daemon(config: &Config, known: Option<&Arc<CardMemory>>) -> anyhow::Result<Node> {
    let mut config = config.clone();
    // Links never start a daemon.
    config.autostart = false;
    let mut node = Node::builder(LINKS_CLIENT).config(config);
    if let Some(known) = known {
        node = node.host_memory(known.clone());
    }
    let node = node.build()?.with_full_names();
    wait_for_previous(&node)?;
    Ok(node)
}

/// Opens the file of delivered positions, which lies beside the daemon's socket: what former links published here.
fn open_delivered(config: &Config, node: &Node) -> anyhow::Result<DeliveredFile> {
    let mut path = config.socket_path().into_os_string();
    path.push(".links");
    let departed = node.interest(0)?.departed.into_iter().collect();
    DeliveredFile::open(path.as_ref(), &departed)
}

/// Sends the control plane's events to the conductor, except those that `listens_to` rejects.
fn listener(
    to: Sender<SourcedEvent>,
    listens_to: impl Fn(&PlaneEvent) -> bool + Send + Sync + 'static,
) -> PlaneListener {
    Arc::new(move |event| {
        if listens_to(&event) {
            let _ = to.send((None, ConductorEvent::PlaneEvent(event)));
        }
    })
}

fn open_endpoint(
    config: &Config,
    own: &HostLife,
    rdma: Option<Rdma>,
) -> anyhow::Result<(Endpoint, Option<Tls>)> {
    let links = &config.links;
    // Lanes use the certificates of the control plane, if it has any.
    let security = Security::of(links.tls.paths(), links.insecure, &own.host)?;
    let tls = match &security {
        Security::Tls(tls) => Some(tls.clone()),
        _ => None,
    };
    let endpoint = accept_lanes(EndpointConfig {
        incarnation: own.incarnation,
        realm: number_of(&config.realm),
        listen: Some(links.listen.context("links.listen names no address")?),
        security,
        rdma,
    })?;
    Ok((endpoint, tls))
}

/// Opens the endpoint. While its port is in use, it tries again: former links may hold a fixed port for a moment.
fn accept_lanes(config: EndpointConfig) -> Result<Endpoint, EndpointError> {
    let until = Instant::now() + PREVIOUS_LIMIT;
    loop {
        match Endpoint::new(config.clone()) {
            Err(EndpointError::Listen { error, .. })
                if error.kind() == ErrorKind::AddrInUse && Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            endpoint => return endpoint,
        }
    }
}

/// Waits until the daemon has cleaned up after the former links: from then on the positions that they delivered do not change.
fn wait_for_previous(node: &Node) -> anyhow::Result<()> {
    let until = Instant::now() + PREVIOUS_LIMIT;
    loop {
        let clients = node.clients()?.into_iter();
        let links = clients.filter(|client| client.name == LINKS_CLIENT).count();
        if links <= 1 {
            return Ok(());
        }
        if Instant::now() >= until {
            anyhow::bail!(
                "another process has the links of this host already; stop it ('rgaps status' names it)"
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
