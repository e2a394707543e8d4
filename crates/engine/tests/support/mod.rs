//! An engine without sockets, and simulated clients that use the shared memory as real ones do.
#![allow(dead_code)] // each test file uses a part of it

use rgaps_engine::{Engine, Opened, Peer, SessionId, Setup, Sources, Verdict};
use rgaps_layout::{
    device_owner, Domain, GpuUuid, PublisherRegion, CONTROL_BYTES, GRANULE_BYTES, LAYOUT_VERSION,
    SEGMENT_UNIT_BYTES,
};
use rgaps_pool::{Access, HostConfig, HostSource, PoolError, Segment, SegmentSource, SharedMap};
use rgaps_session::{
    Answer, Config, Credentials, Demand, DeviceRow, DeviceSeatRow, History, Member, Offer,
    PoolGrant, PoolRow, Range, Refusal, RefusalCode, Request, Ring, Role, SeatEnd, Status,
    TopicInfo, TopicRow, ZoneGrant, ZoneId, PROTOCOL_VERSION,
};
use rgaps_topic::{Reader, RegionView, Shared, Start, TopicView, Writer};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Granules of a segment of the tests' pools: the smallest segment.
pub const SEGMENT_GRANULES: u64 = SEGMENT_UNIT_BYTES / GRANULE_BYTES;
/// Granules of the tests' pools: few, so that they are soon full.
pub const POOL_GRANULES: u64 = 2 * SEGMENT_GRANULES;

/// How many simulated GPUs exist. Their memory is host memory, and the UUID of GPU n has 16 times the byte n.
pub const GPUS: u8 = 20;

/// The domain of a simulated GPU. A GPU above [`GPUS`] does not exist.
pub fn gpu(number: u8) -> Domain {
    Domain::Cuda(GpuUuid([number; 16]))
}

/// Host memory that claims to be in a given domain.
struct Source(Domain, HostSource);

impl SegmentSource for Source {
    fn domain(&self) -> Domain {
        self.0
    }
    fn granularity(&self) -> u64 {
        self.1.granularity()
    }
    fn create(&mut self, bytes: u64) -> Result<Segment, PoolError> {
        self.1.create(bytes)
    }
    fn adopt(&mut self, fd: OwnedFd, bytes: u64, inode: u64) -> Result<Segment, PoolError> {
        self.1.adopt(fd, bytes, inode)
    }
    fn discard(&mut self, segment: &Segment, offset: u64, bytes: u64) {
        self.1.discard(segment, offset, bytes);
    }
}

struct SmallSources;

impl Sources for SmallSources {
    fn open(&mut self, domain: Domain) -> Result<Opened, PoolError> {
        match domain {
            Domain::Cuda(GpuUuid([number, ..])) if number > GPUS => Err(PoolError::Unavailable {
                domain,
                reason: "no such GPU here".into(),
            }),
            _ => Ok(Opened {
                source: Box::new(Source(domain, HostSource::new(HostConfig::default()))),
                cap_bytes: POOL_GRANULES * GRANULE_BYTES,
                segment_bytes: SEGMENT_UNIT_BYTES,
            }),
        }
    }
}

pub struct World {
    pub engine: Engine,
    pub now: Instant,
    config: Config,
    folder: tempfile::TempDir,
}

/// What a client keeps of a zone.
pub struct Hold {
    pub grant: ZoneGrant,
    pub registry: OwnedFd,
    pub control: OwnedFd,
    pub map: SharedMap,
}

impl Hold {
    pub fn words(&self) -> Shared {
        // SAFETY: `self.map` is a read-write mapping of `self.map.bytes()` bytes. Tests use no view after they have dropped the `Hold`,
        // which unmaps it.
        unsafe { Shared::new(self.map.base().as_ptr(), self.map.bytes()) }
    }

    /// Takes the lock on the registry by which the daemon sees that this client lives.
    pub fn lock(&self) {
        let mut lock = flock(self.grant.client_index);
        // SAFETY: `self.registry` keeps the descriptor open, and `lock` is a local `flock`, which is what F_OFD_SETLK reads.
        let rc = unsafe { libc::fcntl(self.registry.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }
}

fn flock(byte: u32) -> libc::flock {
    libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte.into(),
        l_len: 1,
        l_pid: 0,
    }
}

pub struct Sim {
    pub id: SessionId,
    pub name: String,
    pub uid: u32,
    pub holds: HashMap<ZoneId, Hold>,
    pub segments: Vec<OwnedFd>,
    /// The timelines that `hand_back_all` hands back.
    pub timelines: Vec<u32>,
}

impl Sim {
    fn enter(&mut self, zone: ZoneId, grant: ZoneGrant, registry: OwnedFd, control: OwnedFd) {
        let map = SharedMap::new(control.as_fd(), CONTROL_BYTES, Access::ReadWrite).unwrap();
        let hold = Hold {
            grant,
            registry,
            control,
            map,
        };
        hold.lock();
        self.holds.insert(zone, hold);
    }
}

#[derive(Clone, Debug)]
pub struct Seat {
    pub member: Member,
    pub region_offset: u64,
    pub doorbell: u32,
    pub ring: Ring,
    pub pool: Option<PoolGrant>,
    pub reads: Option<PoolGrant>,
}

pub fn offer(depth: u32, reliable: bool, transient_local: bool) -> Offer {
    Offer {
        history: History::KeepLast(depth),
        reliable,
        transient_local,
        loans: 2,
    }
}

pub fn volatile() -> Role {
    Role::Publisher(offer(4, true, false))
}

pub fn lasting() -> Role {
    Role::Publisher(offer(4, true, true))
}

pub fn best_effort() -> Role {
    Role::Subscriber(Demand {
        reliable: false,
        transient_local: false,
        depth: 0,
    })
}

pub fn reliable() -> Role {
    Role::Subscriber(Demand {
        reliable: true,
        transient_local: false,
        depth: 0,
    })
}

/// A subscriber that begins with the kept history.
pub fn late() -> Role {
    Role::Subscriber(Demand {
        reliable: false,
        transient_local: true,
        depth: 0,
    })
}

/// An observer that begins with the kept history.
pub fn observer() -> Role {
    Role::Observer(Demand {
        reliable: true,
        transient_local: true,
        depth: 9,
    })
}

/// A device topic of 4 messages, with these seats: the owner of each, and the message that it wants.
pub fn device_row(newest: u64, seats: &[(u64, u64)]) -> DeviceRow {
    let seats = seats.iter().zip(0..);
    DeviceRow {
        domain: Domain::Host,
        depth: 4,
        blocks: 6,
        block_bytes: 256,
        kernels_publish: true,
        takes_turns: false,
        newest,
        publisher_waits: true,
        forwarded: 0,
        refused: 0,
        evictions: 0,
        seats: seats
            .map(|((owner, next_sequence), seat)| DeviceSeatRow {
                seat,
                owner: *owner,
                joined: true,
                reliable: true,
                evicted: false,
                is_bridge: false,
                next_sequence: *next_sequence,
                missed: 0,
                held: 0,
            })
            .collect(),
    }
}

pub fn typed(topic: &str, type_name: &str, role: Role) -> Request {
    Request::Join {
        topic: topic.into(),
        type_name: type_name.into(),
        domain: None,
        role,
        require: None,
        arrives_over: None,
    }
}

pub fn wish(topic: &str, role: Role) -> Request {
    wish_in(topic, role, None)
}

pub fn wish_in(topic: &str, role: Role, domain: impl Into<Option<Domain>>) -> Request {
    Request::Join {
        topic: topic.into(),
        type_name: String::new(),
        domain: domain.into(),
        role,
        require: None,
        arrives_over: None,
    }
}

impl World {
    pub fn new() -> World {
        World::with(Config::default())
    }

    pub fn with(config: Config) -> World {
        let folder = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let engine = engine(&config, &folder, now);
        World {
            engine,
            now,
            config,
            folder,
        }
    }

    /// The path of the state file.
    pub fn state_file(&self) -> PathBuf {
        self.folder.path().join("sock.state")
    }

    /// Kills the daemon and starts the next one.
    pub fn restart(&mut self) {
        self.engine = engine(&self.config, &self.folder, self.now);
    }

    /// Lets time pass, and ticks the engine whenever it asks for that.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.engine.next_tick() {
            // An overdue session stays due until somebody cuts it off, so step on by at least 1 ms.
            self.now = next.max(self.now + Duration::from_millis(1));
            if self.now > end {
                break;
            }
            self.engine.tick(self.now);
        }
        self.now = end;
        self.engine.tick(self.now);
    }

    pub fn connect_as(&mut self, uid: u32, watched: bool) -> SessionId {
        self.connect_process(std::process::id(), uid, watched)
    }

    fn connect_process(&mut self, pid: u32, uid: u32, watched: bool) -> SessionId {
        let credentials = Credentials {
            pid: Some(pid),
            uid,
            gid: uid,
        };
        let peer = Peer {
            credentials,
            groups: vec![],
            process_is_watched: watched,
        };
        self.engine.connect(self.now, peer).unwrap()
    }

    pub fn client(&mut self, name: &str) -> Sim {
        self.client_as(name, rustix::process::geteuid().as_raw())
    }

    pub fn client_as(&mut self, name: &str, uid: u32) -> Sim {
        let id = self.connect_as(uid, true);
        self.sim(name, uid, id)
    }

    /// A client with this process number.
    pub fn client_of_process(&mut self, name: &str, pid: u32) -> Sim {
        let uid = rustix::process::geteuid().as_raw();
        let id = self.connect_process(pid, uid, true);
        self.sim(name, uid, id)
    }

    fn sim(&mut self, name: &str, uid: u32, id: SessionId) -> Sim {
        let sim = Sim {
            id,
            name: name.into(),
            uid,
            holds: HashMap::new(),
            segments: vec![],
            timelines: vec![],
        };
        self.hello(&sim);
        sim
    }

    pub fn hello(&mut self, sim: &Sim) {
        let hello = Request::Hello {
            protocol: PROTOCOL_VERSION,
            layout: LAYOUT_VERSION,
            realm: "default".into(),
            name: sim.name.clone(),
        };
        self.ask(sim, hello).unwrap();
    }

    /// Gives the client a session with the next daemon. Hands nothing back.
    pub fn reconnect(&mut self, sim: &mut Sim) {
        sim.id = self.connect_as(sim.uid, true);
        self.hello(sim);
    }

    pub fn verdict(&mut self, sim: &Sim, request: Request, fds: Vec<OwnedFd>) -> Verdict {
        self.engine.handle(self.now, sim.id, request, fds)
    }

    pub fn ask_with(
        &mut self,
        sim: &Sim,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        match self.verdict(sim, request, fds) {
            Verdict::Answer { result, fds, .. } => result.map(|answer| (answer, fds)),
            Verdict::CutOff(why) => panic!("cut off: {why}"),
        }
    }

    pub fn ask(&mut self, sim: &Sim, request: Request) -> Result<Answer, Refusal> {
        self.ask_with(sim, request, vec![])
            .map(|(answer, _)| answer)
    }

    pub fn refused(&mut self, sim: &Sim, request: Request) -> RefusalCode {
        let refusal = self
            .ask(sim, request.clone())
            .expect_err(&format!("{request:?}"));
        assert!(refusal.message.len() > 20, "says what to do: {refusal:?}");
        refusal.code
    }

    pub fn try_join(&mut self, sim: &mut Sim, request: Request) -> Result<Seat, Refusal> {
        let (answer, mut fds) = self.ask_with(sim, request, vec![])?;
        let Answer::Joined {
            member,
            grant,
            region_offset,
            doorbell,
            ring,
            pool,
            reads,
            ..
        } = answer
        else {
            panic!("{answer:?}")
        };
        if let Some(grant) = grant {
            let control = fds.pop().unwrap();
            let registry = fds.pop().unwrap();
            sim.enter(member.zone, grant, registry, control);
        }
        assert!(fds.is_empty());
        Ok(Seat {
            member,
            region_offset,
            doorbell,
            ring,
            pool,
            reads,
        })
    }

    pub fn join(&mut self, sim: &mut Sim, topic: &str, role: Role) -> Seat {
        self.try_join(sim, wish(topic, role)).unwrap()
    }

    /// Sends a bridge's report. Returns the seats that end.
    pub fn report_device(&mut self, sim: &Sim, seat: &Seat, row: DeviceRow) -> Vec<SeatEnd> {
        let report = Request::Device {
            member: seat.member,
            device: Box::new(row),
        };
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let answer = self.ask_with(sim, report, vec![file(), file(), file()]);
        match answer.unwrap().0 {
            Answer::Seats(ends) => ends,
            other => panic!("{other:?}"),
        }
    }

    /// Opens a device topic by its name. Returns the owner number for the client's seats.
    pub fn open_device(&mut self, sim: &mut Sim, topic: &str) -> u64 {
        let request = Request::OpenDevice {
            topic: topic.into(),
            publishes: true,
        };
        let (answer, fds) = self.ask_with(sim, request, vec![]).unwrap();
        let Answer::Device { zone, grant, .. } = answer else {
            panic!("{answer:?}")
        };
        let mut fds = fds.into_iter().skip(3);
        if let Some(grant) = grant {
            sim.enter(zone, grant, fds.next().unwrap(), fds.next().unwrap());
        }
        assert!(fds.next().is_none());
        let grant = sim.holds[&zone].grant;
        device_owner(zone, grant.client_index, grant.client_id)
    }

    pub fn leave(&mut self, sim: &Sim, seat: &Seat) {
        self.ask(sim, Request::Leave(seat.member)).unwrap();
    }

    pub fn lease(&mut self, sim: &Sim, seat: &Seat, granules: u64) -> Range {
        let pool = seat.pool.expect("a publisher's").pool;
        self.lease_in(sim, seat, pool, granules).unwrap()
    }

    pub fn lease_in(
        &mut self,
        sim: &Sim,
        seat: &Seat,
        pool: u32,
        granules: u64,
    ) -> Result<Range, Refusal> {
        let request = Request::Lease {
            publisher: seat.member,
            pool,
            bytes: granules * GRANULE_BYTES,
        };
        match self.ask(sim, request)? {
            Answer::Leased { ranges } => Ok(ranges[0]),
            other => panic!("{other:?}"),
        }
    }

    pub fn take_timeline(&mut self, sim: &Sim, zone: ZoneId) -> u32 {
        match self.ask(sim, Request::TakeTimeline { zone }).unwrap() {
            Answer::Timeline { timeline } => timeline,
            other => panic!("{other:?}"),
        }
    }

    /// Fetches the descriptors of all segments of pool 0 in the seat's zone.
    pub fn fetch_segments(&mut self, sim: &mut Sim, seat: &Seat, writable: bool) {
        loop {
            let from = sim.segments.len() as u32;
            let request = Request::Segments {
                zone: seat.member.zone,
                pool: 0,
                from,
                writable,
            };
            let (_, fds) = self.ask_with(sim, request, vec![]).unwrap();
            if fds.is_empty() {
                return;
            }
            sim.segments.extend(fds);
        }
    }

    pub fn writer(&self, sim: &Sim, seat: &Seat) -> Writer<Shared> {
        let words = sim.holds[&seat.member.zone].words();
        let geometry = PublisherRegion {
            ring_capacity: seat.ring.ring_capacity,
            block_capacity: seat.ring.block_capacity,
        };
        let topic = TopicView::new(words, seat.region_offset).unwrap();
        let region = RegionView::new(words, seat.ring.region_offset, geometry).unwrap();
        let Seat { member, ring, .. } = seat;
        Writer::new(
            topic,
            member.slot,
            region,
            member.incarnation,
            ring.start,
            ring.depth,
            u64::MAX,
        )
        .unwrap()
    }

    pub fn topic(&self, sim: &Sim, seat: &Seat) -> TopicView<Shared> {
        TopicView::new(sim.holds[&seat.member.zone].words(), seat.region_offset).unwrap()
    }

    pub fn reader(&self, sim: &Sim, seat: &Seat, reliable: bool, start: Start) -> Reader<Shared> {
        Reader::new(self.topic(sim, seat), seat.member.slot, reliable, start).unwrap()
    }

    /// Ends the client's process.
    pub fn kill(&mut self, sim: Sim) {
        let id = sim.id;
        drop(sim);
        self.engine.process_ended(id);
    }

    pub fn status(&mut self, sim: &Sim) -> Status {
        match self.ask(sim, Request::Status).unwrap() {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    pub fn pools(&mut self, sim: &Sim) -> Vec<PoolRow> {
        match self.ask(sim, Request::Pools).unwrap() {
            Answer::Pools(pools) => pools,
            other => panic!("{other:?}"),
        }
    }

    pub fn leased_granules(&mut self, sim: &Sim) -> u64 {
        self.pools(sim)
            .iter()
            .map(|pool| pool.leased_bytes / GRANULE_BYTES)
            .sum()
    }

    pub fn topics(&mut self, sim: &Sim) -> Vec<TopicRow> {
        match self.ask(sim, Request::Topics { from: 0 }).unwrap() {
            Answer::Topics(topics) => topics,
            other => panic!("{other:?}"),
        }
    }

    pub fn info(&mut self, sim: &Sim, topic: &str) -> TopicInfo {
        match self
            .ask(
                sim,
                Request::Topic {
                    topic: topic.into(),
                },
            )
            .unwrap()
        {
            Answer::Topic(info) => info,
            other => panic!("{other:?}"),
        }
    }

    pub fn hand_back(&mut self, sim: &Sim, zone: ZoneId) -> Result<bool, Refusal> {
        let hold = &sim.holds[&zone];
        let request = Request::HandBack {
            zone,
            client_index: hold.grant.client_index,
            client_id: hold.grant.client_id,
        };
        let fds = vec![
            hold.registry.try_clone().unwrap(),
            hold.control.try_clone().unwrap(),
        ];
        match self.ask_with(sim, request, fds)?.0 {
            Answer::Zone { wants_segments } => Ok(wants_segments),
            other => panic!("{other:?}"),
        }
    }

    pub fn hand_back_segments(&mut self, sim: &Sim, zone: ZoneId) -> Result<(), Refusal> {
        for (number, chunk) in sim.segments.chunks(5).enumerate() {
            let fds = chunk.iter().map(|fd| fd.try_clone().unwrap()).collect();
            let from = number as u32 * 5;
            self.ask_with(
                sim,
                Request::HandBackSegments {
                    zone,
                    pool: 0,
                    from,
                },
                fds,
            )?;
        }
        Ok(())
    }

    /// Hands back a zone with the segments of pool 0, and claims members with their ranges in that pool.
    pub fn hand_back_all(&mut self, sim: &mut Sim, zone: ZoneId, claims: &[(Member, Vec<Range>)]) {
        self.reconnect(sim);
        if self.hand_back(sim, zone).unwrap() {
            self.hand_back_segments(sim, zone).unwrap();
        }
        for (member, ranges) in claims {
            self.ask(
                sim,
                Request::Claim {
                    member: *member,
                    pool: 0,
                    ranges: ranges.clone(),
                },
            )
            .unwrap();
        }
        self.ask(
            sim,
            Request::HandedBack {
                zone,
                doorbells: vec![],
                timelines: sim.timelines.clone(),
            },
        )
        .unwrap();
    }
}

fn engine(config: &Config, folder: &tempfile::TempDir, now: Instant) -> Engine {
    Engine::new(
        Setup {
            config: config.clone(),
            socket: folder.path().join("sock"),
            state_file: Some(folder.path().join("sock.state")),
            sources: Box::new(SmallSources),
            version: "test".into(),
        },
        now,
    )
    .unwrap()
}
