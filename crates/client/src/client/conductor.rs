//! [`Conductor`]: the handle through which the rest of the process uses the conductor's thread.

use super::daemon_session;
use super::error::broken;
use super::mapping::PoolMapping;
use super::worker::{unexpected, Worker};
use super::zone_records::Arena;
use super::{ClientError, ForkGuard, HostMemory, ZoneView};
use crate::links::Interest;
use rgaps_layout::{Domain, CONTROL_BYTES};
use rgaps_pool::Access;
use rgaps_session::{
    Answer, ArrivalPath, ClientRow, Config, DeviceRow, Forgotten, InterestRow, LinkFigures, Member,
    MpsInfo, PathKind, PeersInfo, PoolGrant, PoolRow, Range, RemoteRow, Request, Ring, Role,
    SeatEnd, Status, TopicInfo, TopicRow, ZoneId,
};
use rgaps_sync::atomic::Ordering;
use rgaps_topic::{Shared, TopicView};
use rustix::event::EventfdFlags;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// How many commands the queue to the thread holds. A caller that finds it full waits.
const COMMANDS_MAX: usize = 256;
/// The most pages of one listing that are read.
const PAGES_MAX: usize = 4096;

/// Runs on the conductor's thread.
pub(super) type Command = Box<dyn FnOnce(&mut Worker) + Send>;

/// A device topic that was opened by name.
pub(crate) struct OpenedDevice {
    pub(crate) row: DeviceRow,
    /// Descriptors of its control memory, ring and words, in this order.
    pub(crate) fds: [OwnedFd; 3],
    /// The zone whose client index identifies this process as the owner of its seats.
    pub(crate) zone: Arc<ZoneView>,
}

/// The daemon's answer to a join, with the zone mapped.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    /// This publisher or subscriber.
    pub(crate) member: Member,
    /// Its zone, mapped.
    pub(crate) zone: Arc<ZoneView>,
    /// Offset of the topic in the control segment.
    pub(crate) region_offset: u64,
    /// Random number of the topic.
    pub(crate) topic_id: u64,
    /// The member's doorbell.
    pub(crate) doorbell: u32,
    /// A publisher's ring; zeros for a subscriber.
    pub(crate) ring: Ring,
    /// The topic's pool. None: a subscriber joined before any publisher; it calls [`Conductor::pool_grant`] when a descriptor
    /// names a pool.
    pub(crate) pool: Option<PoolGrant>,
    /// The pool that a subscriber reads in, if it named a domain that is not the topic's.
    pub(crate) reads: Option<PoolGrant>,
}

impl Joined {
    /// The control segment, and the view of the topic in it.
    ///
    /// # Safety
    /// The zone outlives the results and their copies.
    pub(crate) unsafe fn topic(&self) -> Result<(Shared, TopicView<Shared>), ClientError> {
        // SAFETY: the zone maps `CONTROL_BYTES` bytes for writing as long as it lives, and the caller promises that it outlives the
        // results. All processes access the segment only as atomics.
        let storage = unsafe { Shared::new(self.zone.control().as_ptr(), CONTROL_BYTES) };
        let topic = TopicView::new(storage, self.region_offset)
            .filter(|topic| topic.topic_id().load(Ordering::Acquire) == self.topic_id)
            .ok_or_else(|| broken("the topic is not at its offset in the control segment"))?;
        Ok((storage, topic))
    }
}

/// A node's thread for everything that needs the daemon. Each method sends the thread a command and waits for the result, at most
/// about as long as a daemon takes to start. In a forked child all methods fail with [`ClientError::Forked`].
///
/// Dropping it leaves all topics and ends the thread.
pub(crate) struct Conductor {
    // Not dropped in a forked child, which has neither the thread nor the descriptor.
    inner: ManuallyDrop<Inner>,
    guard: ForkGuard,
    config: Config,
}

struct Inner {
    commands: Option<SyncSender<Command>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Conductor {
    /// Connects to the daemon, or starts it, and starts the thread. `name` appears in listings; `bin_dirs` are folders that may
    /// have `rgapsd`.
    pub(crate) fn start(
        config: Config,
        name: &str,
        bin_dirs: &[PathBuf],
        watch: Option<Arc<dyn HostMemory>>,
    ) -> Result<Conductor, ClientError> {
        let guard = ForkGuard::new()?;
        let session = daemon_session::open(&config, name, bin_dirs, config.autostart)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).map_err(ClientError::system("eventfd"))?;
        let wake = Arc::new(wake);
        let (sender, receiver) = sync_channel::<Command>(COMMANDS_MAX);
        let worker = Worker::new(
            session,
            config.clone(),
            name.to_owned(),
            bin_dirs.to_vec(),
            guard.clone(),
            watch,
        );
        let thread_wake = wake.clone();
        let thread = std::thread::Builder::new()
            .name("rgaps-conductor".to_owned())
            .spawn(move || {
                block_signals();
                worker.run(&receiver, &thread_wake);
            })
            .map_err(|source| ClientError::System {
                call: "creating a thread",
                source,
            })?;
        let inner = Inner {
            commands: Some(sender),
            wake,
            thread: Some(thread),
        };
        Ok(Conductor {
            inner: ManuallyDrop::new(inner),
            guard,
            config,
        })
    }

    /// The guard that all handles of this node check.
    pub(crate) fn guard(&self) -> &ForkGuard {
        &self.guard
    }

    /// The configuration of this node.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Joins a topic. `domain` None: the topic's, or host memory for a publisher of a topic that has none yet. An empty
    /// `type_name`: any type. `arrives_over`: of a publisher that represents one of another host.
    pub(crate) fn join(
        &self,
        topic: &str,
        type_name: &str,
        domain: Option<Domain>,
        role: Role,
        require: Option<PathKind>,
        arrives_over: Option<ArrivalPath>,
    ) -> Result<Joined, ClientError> {
        let request = Request::Join {
            topic: topic.to_owned(),
            type_name: type_name.to_owned(),
            domain,
            role,
            require,
            arrives_over,
        };
        self.run(move |worker| worker.join(&request))
    }

    /// Tells the daemon that a subscriber is closed but holds samples. Succeeds without a daemon: the next one finds that in shared
    /// memory.
    pub(crate) fn close(&self, member: Member) -> Result<(), ClientError> {
        self.run(move |worker| worker.close_subscriber(member))
    }

    /// Leaves a topic. Succeeds without a daemon: this process does not claim the member from the next one.
    pub(crate) fn leave(&self, member: Member) -> Result<(), ClientError> {
        self.run(move |worker| worker.leave(member))
    }

    /// Leases memory for a publisher. The first range has at least `bytes` bytes. All ranges are mapped for writing when this
    /// returns.
    pub(crate) fn lease(
        &self,
        publisher: Member,
        pool: u32,
        bytes: u64,
    ) -> Result<Vec<Range>, ClientError> {
        self.run(move |worker| worker.lease(publisher, pool, bytes))
    }

    /// Records that a publisher also writes in another pool. Call it before mapping that pool for writing.
    pub(crate) fn write_in(&self, publisher: Member, pool: u32) -> Result<(), ClientError> {
        self.run(move |worker| worker.write_in(publisher, pool))
    }

    /// Sets the arenas from which the conductor takes a publisher's free memory when a pool is full.
    pub(crate) fn set_arena(
        &self,
        publisher: Member,
        arena: Weak<dyn Arena>,
    ) -> Result<(), ClientError> {
        self.run(move |worker| {
            worker.set_arena(publisher, arena);
            Ok(())
        })
    }

    /// Returns leased memory. Succeeds without a daemon.
    pub(crate) fn return_ranges(
        &self,
        publisher: Member,
        pool: u32,
        ranges: Vec<Range>,
    ) -> Result<(), ClientError> {
        self.run(move |worker| worker.return_ranges(publisher, pool, ranges))
    }

    /// A doorbell for a wait set.
    pub(crate) fn take_doorbell(&self, zone: ZoneId) -> Result<u32, ClientError> {
        self.run(move |worker| worker.take_doorbell(zone))
    }

    /// Returns a doorbell. Succeeds without a daemon.
    pub(crate) fn return_doorbell(&self, zone: ZoneId, doorbell: u32) -> Result<(), ClientError> {
        self.run(move |worker| worker.return_doorbell(zone, doorbell))
    }

    /// A timeline for a stream. Fails at once where there is no daemon.
    pub(super) fn take_timeline(&self, zone: ZoneId) -> Result<u32, ClientError> {
        self.run(move |worker| worker.take_timeline(zone))
    }

    /// Returns a timeline. Succeeds without a daemon.
    pub(super) fn return_timeline(&self, zone: ZoneId, timeline: u32) -> Result<(), ClientError> {
        self.run(move |worker| worker.return_timeline(zone, timeline))
    }

    /// Tells the daemon that this process's work on GPUs has ended, because its context is lost.
    pub(crate) fn gpu_lost(&self, zone: ZoneId) -> Result<(), ClientError> {
        self.run(move |worker| worker.gpu_lost(zone))
    }

    /// Tells the daemon how a subscriber's messages reach it. Succeeds at once without a daemon: the next one is told.
    pub(crate) fn report_path(&self, member: Member, path: &str) -> Result<(), ClientError> {
        let path = path.to_owned();
        self.run(move |worker| worker.report_path(member, path))
    }

    /// Tells the daemon the state of the device topic that a member forwards to or from. Returns the seats to end; none at once
    /// without a daemon.
    pub(crate) fn report_device(
        &self,
        member: Member,
        device: DeviceRow,
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<SeatEnd>, ClientError> {
        self.run(move |worker| worker.report_device(member, device, &fds))
    }

    /// Opens the device topic that a bridge forwards to or from `topic`.
    pub(crate) fn open_device(
        &self,
        topic: &str,
        publishes: bool,
    ) -> Result<OpenedDevice, ClientError> {
        let topic = topic.to_owned();
        self.run(move |worker| worker.open_device(topic, publishes))
    }

    /// Number, domain and cap of a pool.
    pub(crate) fn pool_grant(&self, zone: ZoneId, pool: u32) -> Result<PoolGrant, ClientError> {
        self.run(move |worker| worker.pool_grant(zone, pool))
    }

    /// The mapping of a pool for the CPU or GPU `at`, with all segments that exist. A node has one per zone, access and `at`.
    /// Mapping for writing needs a publisher of this process in the pool.
    pub(crate) fn pool_mapping(
        &self,
        zone: ZoneId,
        grant: PoolGrant,
        access: Access,
        at: Domain,
    ) -> Result<Arc<PoolMapping>, ClientError> {
        self.run(move |worker| worker.pool_mapping(zone, &grant, access, at))
    }

    /// Maps the segments by which a pool has grown, for a message beyond the mapped bytes.
    pub(crate) fn sync_pool(&self, zone: ZoneId, pool: u32) -> Result<(), ClientError> {
        self.run(move |worker| worker.sync_pool(zone, pool))
    }

    /// The state of the daemon.
    pub(crate) fn status(&self) -> Result<Status, ClientError> {
        match self.ask(Request::Status)? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected("a question for its status", &other)),
        }
    }

    /// The keys of those settings (key, value) whose value differs in the daemon.
    pub(crate) fn compare(
        &self,
        settings: Vec<(String, String)>,
    ) -> Result<Vec<String>, ClientError> {
        match self.ask(Request::Compare { settings })? {
            Answer::Unlike(keys) => Ok(keys),
            other => Err(unexpected("a comparison of settings", &other)),
        }
    }

    /// The state of MPS in the realm.
    pub(crate) fn mps(&self) -> Result<MpsInfo, ClientError> {
        match self.ask(Request::Mps)? {
            Answer::Mps(info) => Ok(info),
            other => Err(unexpected("a question for MPS", &other)),
        }
    }

    /// All topics that this client may see, by name.
    pub(crate) fn topics(&self) -> Result<Vec<TopicRow>, ClientError> {
        self.pages(|from| match self.ask(Request::Topics { from })? {
            Answer::Topics(rows) => Ok(rows),
            other => Err(unexpected("a question for topics", &other)),
        })
    }

    /// The same, but fails at once without a daemon.
    pub(crate) fn topics_now(&self) -> Result<Vec<TopicRow>, ClientError> {
        let ask = |request| self.run(move |worker| worker.ask_now(&request));
        self.pages(|from| match ask(Request::Topics { from })? {
            Answer::Topics(rows) => Ok(rows),
            other => Err(unexpected("a question for topics", &other)),
        })
    }

    /// One topic.
    pub(crate) fn topic(&self, name: &str) -> Result<TopicInfo, ClientError> {
        match self.ask(Request::Topic {
            topic: name.to_owned(),
        })? {
            Answer::Topic(topic) => Ok(topic),
            other => Err(unexpected("a question for a topic", &other)),
        }
    }

    /// Drops the history of a topic's closed and dead publishers.
    pub(crate) fn forget_topic(&self, name: &str) -> Result<Forgotten, ClientError> {
        match self.ask(Request::Forget {
            topic: name.to_owned(),
        })? {
            Answer::Forgotten(forgotten) => Ok(forgotten),
            other => Err(unexpected("a request to forget a topic", &other)),
        }
    }

    /// All pools.
    pub(crate) fn pools(&self) -> Result<Vec<PoolRow>, ClientError> {
        match self.ask(Request::Pools)? {
            Answer::Pools(rows) => Ok(rows),
            other => Err(unexpected("a question for pools", &other)),
        }
    }

    /// All client processes.
    pub(crate) fn clients(&self) -> Result<Vec<ClientRow>, ClientError> {
        self.pages(|from| match self.ask(Request::Clients { from })? {
            Answer::Clients(rows) => Ok(rows),
            other => Err(unexpected("a question for clients", &other)),
        })
    }

    /// The other hosts.
    pub(crate) fn peers(&self) -> Result<PeersInfo, ClientError> {
        match self.ask(Request::Peers)? {
            Answer::Peers(peers) => Ok(peers),
            other => Err(unexpected("a question for other hosts", &other)),
        }
    }

    /// The same, but fails at once without a daemon.
    pub(crate) fn peers_now(&self) -> Result<PeersInfo, ClientError> {
        match self.run(move |worker| worker.ask_now(&Request::Peers))? {
            Answer::Peers(peers) => Ok(peers),
            other => Err(unexpected("a question for other hosts", &other)),
        }
    }

    /// Counters and histograms of all links.
    pub(crate) fn link_figures(&self) -> Result<Vec<LinkFigures>, ClientError> {
        self.pages(|from| match self.ask(Request::Figures { from })? {
            Answer::Figures(rows) => Ok(rows),
            other => Err(unexpected("a question for figures", &other)),
        })
    }

    /// The publishers and subscribers of this host, if they have changed since version `known`.
    pub(crate) fn interest(&self, known: u64) -> Result<Interest, ClientError> {
        let mut rows: Vec<InterestRow> = Vec::new();
        let mut seen = None;
        let mut departed = Vec::new();
        for _ in 0..PAGES_MAX {
            let from = rows.len() as u32;
            let (version, daemon, more) = match self.ask(Request::Interest { known, from })? {
                Answer::Interest {
                    version,
                    daemon,
                    rows,
                    departed: these,
                } => {
                    departed.extend(these);
                    (version, daemon, rows)
                }
                other => return Err(unexpected("a question for interest", &other)),
            };
            // Keep the version of the first page: a change between two pages then shows up in the next call.
            let (version, daemon) = *seen.get_or_insert((version, daemon));
            if version == known || more.is_empty() {
                let rows = (version != known).then_some(rows);
                return Ok(Interest {
                    version,
                    daemon,
                    rows,
                    departed,
                });
            }
            rows.extend(more);
        }
        Err(ClientError::Protocol("its listing does not end".to_owned()))
    }

    /// Tells the daemon for which hosts a subscriber of the links reads.
    pub(crate) fn stands_for(
        &self,
        member: Member,
        hosts: Vec<RemoteRow>,
    ) -> Result<(), ClientError> {
        self.notify(Request::StandsFor { member, hosts })
    }

    /// Tells the daemon over which path the messages of another host's publisher arrive.
    pub(crate) fn comes_over(&self, member: Member, over: ArrivalPath) -> Result<(), ClientError> {
        self.notify(Request::ComesOver { member, over })
    }

    /// Tells the daemon to or from which hosts the links do not carry a topic.
    pub(crate) fn unserved(&self, topic: String, hosts: Vec<RemoteRow>) -> Result<(), ClientError> {
        self.notify(Request::Unserved { topic, hosts })
    }

    /// Tells the daemon the state of the links to other hosts.
    pub(crate) fn set_peers(&self, peers: PeersInfo) -> Result<(), ClientError> {
        self.notify(Request::SetPeers(peers))
    }

    /// Tells the daemon the counters and histograms of a link.
    pub(crate) fn set_figures(&self, figures: LinkFigures) -> Result<(), ClientError> {
        self.notify(Request::SetFigures(Box::new(figures)))
    }

    fn notify(&self, request: Request) -> Result<(), ClientError> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => Err(unexpected("news", &other)),
        }
    }

    /// Makes the daemon stay when it has no clients.
    pub(crate) fn keep_daemon(&self) -> Result<(), ClientError> {
        self.ask(Request::Stay).map(|_| ())
    }

    /// Stops the daemon, and returns when it has ended.
    pub(crate) fn stop_daemon(&self) -> Result<(), ClientError> {
        self.run(Worker::stop_daemon)
    }

    fn ask(&self, request: Request) -> Result<Answer, ClientError> {
        self.run(move |worker| worker.ask(&request).map(|(answer, _)| answer))
    }

    fn pages<T>(
        &self,
        page: impl Fn(u32) -> Result<Vec<T>, ClientError>,
    ) -> Result<Vec<T>, ClientError> {
        let mut rows = Vec::new();
        for _ in 0..PAGES_MAX {
            let more = page(rows.len() as u32)?;
            if more.is_empty() {
                return Ok(rows);
            }
            rows.extend(more);
        }
        Err(ClientError::Protocol("its listing does not end".to_owned()))
    }

    /// Runs `work` on the conductor's thread, and waits for its result.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Worker) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, ClientError> {
        self.guard.check()?;
        let commands = self.inner.commands.as_ref().ok_or(ClientError::Closed)?;
        let (reply, answer) = sync_channel(1);
        let command = move |worker: &mut Worker| {
            // Cannot fail: the channel has room for the one reply, and the caller below keeps the receiver.
            let _ = reply.send(work(worker));
        };
        commands
            .send(Box::new(command))
            .map_err(|_| ClientError::Closed)?;
        self.inner.wake();
        // The thread answers each command within its time limits. If it panics, it drops the sender, and this returns an error.
        answer.recv().map_err(|_| ClientError::Closed)?
    }
}

impl Inner {
    fn wake(&self) {
        // Fails only when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        if self.guard.is_child() {
            return;
        }
        // SAFETY: `drop` runs once, only `drop` takes `inner`, and nothing uses `self.inner` after this line.
        let mut inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        inner.commands = None;
        inner.wake();
        if let Some(thread) = inner.thread.take() {
            // A panic of the thread was reported by its hook; there is nothing left to do.
            let _ = thread.join();
        }
    }
}

/// Blocks all signals in the calling thread, so that handlers run on the program's own threads.
pub(crate) fn block_signals() {
    // SAFETY: `set` is initialised by sigfillset before it is used, and only this thread's mask
    // is changed.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}
