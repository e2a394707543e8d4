//! The conductor as the rest of the process sees it.

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

/// Commands that wait for the conductor; who sends one more waits for room.
const COMMANDS_MAX: usize = 256;
/// Pages that a listing is read for at most.
const PAGES_MAX: usize = 4096;

/// Runs on the conductor's thread.
pub(super) type Command = Box<dyn FnOnce(&mut Worker) + Send>;

/// A device topic that was opened by name.
pub(crate) struct OpenedDevice {
    pub(crate) row: DeviceRow,
    /// Of control, ring and words.
    pub(crate) fds: [OwnedFd; 3],
    /// In which this process has its seats.
    pub(crate) zone: Arc<ZoneView>,
}

/// What came of a join.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    /// This publisher or subscriber.
    pub(crate) member: Member,
    /// Its zone, mapped.
    pub(crate) zone: Arc<ZoneView>,
    /// Of the topic in the control segment.
    pub(crate) region_offset: u64,
    /// Random number of the topic.
    pub(crate) topic_id: u64,
    /// The member's doorbell.
    pub(crate) doorbell: u32,
    /// A publisher's ring; zeros for a subscriber.
    pub(crate) ring: Ring,
    /// The topic's pool; a subscriber may come before anyone has named a domain, and asks for
    /// it with [`Conductor::pool_grant`] when a descriptor names it.
    pub(crate) pool: Option<PoolGrant>,
    /// The pool that a subscriber reads in, if it named a domain that is not the topic's.
    pub(crate) reads: Option<PoolGrant>,
}

impl Joined {
    /// The control segment's words, and the topic in them.
    ///
    /// # Safety
    /// Whoever uses them keeps the zone as long.
    pub(crate) unsafe fn topic(&self) -> Result<(Shared, TopicView<Shared>), ClientError> {
        // SAFETY: the zone maps the control segment of that size for writing for as long as it lives, which our caller
        // keeps; everything in it is accessed as atomics.
        let storage = unsafe { Shared::new(self.zone.control().as_ptr(), CONTROL_BYTES) };
        let topic = TopicView::new(storage, self.region_offset)
            .filter(|topic| topic.topic_id().load(Ordering::Acquire) == self.topic_id)
            .ok_or_else(|| broken("the topic is not at its offset in the control segment"))?;
        Ok((storage, topic))
    }
}

/// The node's thread for everything that the daemon is needed for. Calls wait for it, at most
/// about as long as a daemon takes to start; in a forked child they refuse.
///
/// Dropping it leaves everything and ends the thread.
pub(crate) struct Conductor {
    // Left alone in a forked child, which has neither the thread nor the descriptor.
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
    /// Connects to the daemon, or starts it, and starts the thread. `name` is shown in listings;
    /// `bin_dirs` are looked in for `rgapsd`.
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

    /// For the handles of this node: one load tells whether they are a forked child's.
    pub(crate) fn guard(&self) -> &ForkGuard {
        &self.guard
    }

    /// What this process was configured with.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Joins a topic. A `domain` of none takes the topic's, or host for a publisher of a topic
    /// that has none yet; an empty `type_name` is any.
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

    /// Says that a subscriber has closed itself, and holds samples. Fine without a daemon: the next one sees it.
    pub(crate) fn close(&self, member: Member) -> Result<(), ClientError> {
        self.run(move |worker| worker.close_subscriber(member))
    }

    /// Leaves. Fine without a daemon: the next one sees that the member is gone.
    pub(crate) fn leave(&self, member: Member) -> Result<(), ClientError> {
        self.run(move |worker| worker.leave(member))
    }

    /// More memory for a publisher: the first range has at least `bytes`. What is leased is
    /// mapped in the zone's mappings of the pool before this returns.
    pub(crate) fn lease(
        &self,
        publisher: Member,
        pool: u32,
        bytes: u64,
    ) -> Result<Vec<Range>, ClientError> {
        self.run(move |worker| worker.lease(publisher, pool, bytes))
    }

    /// Says that a publisher writes in another pool, too, before that is mapped.
    pub(crate) fn write_in(&self, publisher: Member, pool: u32) -> Result<(), ClientError> {
        self.run(move |worker| worker.write_in(publisher, pool))
    }

    /// Says where a publisher's memory can be asked for when its pool is full.
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

    /// Gives leased memory back. Fine without a daemon.
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

    /// Done with a doorbell. Fine without a daemon.
    pub(crate) fn return_doorbell(&self, zone: ZoneId, doorbell: u32) -> Result<(), ClientError> {
        self.run(move |worker| worker.return_doorbell(zone, doorbell))
    }

    /// A timeline for a stream. Fails at once where there is no daemon.
    pub(super) fn take_timeline(&self, zone: ZoneId) -> Result<u32, ClientError> {
        self.run(move |worker| worker.take_timeline(zone))
    }

    /// Done with a timeline. Fine without a daemon.
    pub(super) fn return_timeline(&self, zone: ZoneId, timeline: u32) -> Result<(), ClientError> {
        self.run(move |worker| worker.return_timeline(zone, timeline))
    }

    /// Tells the daemon that this process's work on GPUs has ended, because its context is lost.
    pub(crate) fn gpu_lost(&self, zone: ZoneId) -> Result<(), ClientError> {
        self.run(move |worker| worker.gpu_lost(zone))
    }

    /// Tells the daemon how a subscriber's messages reach it. Does not wait for a daemon to come.
    pub(crate) fn report_path(&self, member: Member, path: &str) -> Result<(), ClientError> {
        let path = path.to_owned();
        self.run(move |worker| worker.report_path(member, path))
    }

    /// Tells the daemon of the device topic that a member forwards to or from, and gets the seats that end. Does not wait for a daemon to
    /// come.
    pub(crate) fn report_device(
        &self,
        member: Member,
        device: DeviceRow,
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<SeatEnd>, ClientError> {
        self.run(move |worker| worker.report_device(member, device, &fds))
    }

    /// The device topic that a topic is forwarded to or from.
    pub(crate) fn open_device(
        &self,
        topic: &str,
        publishes: bool,
    ) -> Result<OpenedDevice, ClientError> {
        let topic = topic.to_owned();
        self.run(move |worker| worker.open_device(topic, publishes))
    }

    /// A pool that a descriptor names.
    pub(crate) fn pool_grant(&self, zone: ZoneId, pool: u32) -> Result<PoolGrant, ClientError> {
        self.run(move |worker| worker.pool_grant(zone, pool))
    }

    /// A pool's mapping for the use of the CPU or GPU `at`, one per node, zone and access, with all
    /// segments that there are. To write takes a publisher in the pool.
    pub(crate) fn pool_mapping(
        &self,
        zone: ZoneId,
        grant: PoolGrant,
        access: Access,
        at: Domain,
    ) -> Result<Arc<PoolMapping>, ClientError> {
        self.run(move |worker| worker.pool_mapping(zone, &grant, access, at))
    }

    /// Maps what a pool has grown by, for who meets an offset beyond what is mapped.
    pub(crate) fn sync_pool(&self, zone: ZoneId, pool: u32) -> Result<(), ClientError> {
        self.run(move |worker| worker.sync_pool(zone, pool))
    }

    /// How the daemon is.
    pub(crate) fn status(&self) -> Result<Status, ClientError> {
        match self.ask(Request::Status)? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected("a question for its status", &other)),
        }
    }

    /// Which of these settings the daemon does not have.
    pub(crate) fn compare(
        &self,
        settings: Vec<(String, String)>,
    ) -> Result<Vec<String>, ClientError> {
        match self.ask(Request::Compare { settings })? {
            Answer::Unlike(keys) => Ok(keys),
            other => Err(unexpected("a comparison of settings", &other)),
        }
    }

    /// How it is with MPS.
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

    /// The same, if a daemon answers now; waits for none to come.
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

    /// Drops the history that publishers of a topic left who are gone.
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

    /// The same, if a daemon answers now.
    pub(crate) fn peers_now(&self) -> Result<PeersInfo, ClientError> {
        match self.run(move |worker| worker.ask_now(&Request::Peers))? {
            Answer::Peers(peers) => Ok(peers),
            other => Err(unexpected("a question for other hosts", &other)),
        }
    }

    /// What was counted and timed on links.
    pub(crate) fn link_figures(&self) -> Result<Vec<LinkFigures>, ClientError> {
        self.pages(|from| match self.ask(Request::Figures { from })? {
            Answer::Figures(rows) => Ok(rows),
            other => Err(unexpected("a question for figures", &other)),
        })
    }

    /// Who publishes and subscribes on this host.
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
            // What changes between two pages is a change of the next look: the first version counts.
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

    /// Says whom a subscriber stands for.
    pub(crate) fn stands_for(
        &self,
        member: Member,
        hosts: Vec<RemoteRow>,
    ) -> Result<(), ClientError> {
        self.notify(Request::StandsFor { member, hosts })
    }

    /// Says how messages of a publisher come here.
    pub(crate) fn comes_over(&self, member: Member, over: ArrivalPath) -> Result<(), ClientError> {
        self.notify(Request::ComesOver { member, over })
    }

    /// Says between which hosts and this one a topic does not cross.
    pub(crate) fn unserved(&self, topic: String, hosts: Vec<RemoteRow>) -> Result<(), ClientError> {
        self.notify(Request::Unserved { topic, hosts })
    }

    /// Says how it is with other hosts.
    pub(crate) fn set_peers(&self, peers: PeersInfo) -> Result<(), ClientError> {
        self.notify(Request::SetPeers(peers))
    }

    /// Says what was counted and timed on a link.
    pub(crate) fn set_figures(&self, figures: LinkFigures) -> Result<(), ClientError> {
        self.notify(Request::SetFigures(Box::new(figures)))
    }

    fn notify(&self, request: Request) -> Result<(), ClientError> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => Err(unexpected("news", &other)),
        }
    }

    /// Has the daemon stay without clients.
    pub(crate) fn keep_daemon(&self) -> Result<(), ClientError> {
        self.ask(Request::Stay).map(|_| ())
    }

    /// Has the daemon leave for good; returns when it has.
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

    /// Has the thread do something, and waits for what comes of it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Worker) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, ClientError> {
        self.guard.check()?;
        let commands = self.inner.commands.as_ref().ok_or(ClientError::Closed)?;
        let (reply, answer) = sync_channel(1);
        let command = move |worker: &mut Worker| {
            // There is room for the one reply, and who asked waits for it below.
            let _ = reply.send(work(worker));
        };
        commands
            .send(Box::new(command))
            .map_err(|_| ClientError::Closed)?;
        self.inner.wake();
        // The thread answers every command within its time limits; if it should panic, the
        // sender of the reply is dropped.
        answer.recv().map_err(|_| ClientError::Closed)?
    }
}

impl Inner {
    fn wake(&self) {
        // It fails when the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Conductor {
    fn drop(&mut self) {
        if self.guard.is_child() {
            return;
        }
        // SAFETY: taken once, here, and `inner` is not used again.
        let mut inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        inner.commands = None;
        inner.wake();
        if let Some(thread) = inner.thread.take() {
            // A panic of the thread was reported by its hook; there is nothing left to do.
            let _ = thread.join();
        }
    }
}

/// Leaves the process's signals to its other threads, where their handlers are expected to run.
pub(crate) fn block_signals() {
    // SAFETY: `set` is initialised by sigfillset before it is used, and only this thread's mask
    // is changed.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}
