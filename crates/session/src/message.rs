//! What clients and the daemon say to each other.
//!
//! One packet of a `SOCK_SEQPACKET` socket carries one [`ClientPacket`] or [`DaemonPacket`],
//! encoded by postcard, with its file descriptors. Packets are bounded by [`MAX_PACKET_BYTES`]
//! and [`MAX_PACKET_FDS`]; whoever sends more, or something that does not decode, is cut off.

use crate::device::{DeviceRow, SeatEnd};
use crate::path::{ArrivalPath, PathKind};
use rgaps_layout::Domain;
use serde::{Deserialize, Serialize};

/// Version of everything in this module.
pub const PROTOCOL_VERSION: u32 = 12;
/// Longest packet.
pub const MAX_PACKET_BYTES: usize = 80 * 1024;
/// Most file descriptors that one packet carries.
pub const MAX_PACKET_FDS: usize = 32;
/// Open files (`ulimit -n`) without which a daemon could not serve anybody.
pub const DAEMON_FILES_MIN: u64 = 512;
/// Ranges that one lease or return names at most.
pub const MAX_RANGES: usize = 256;
/// Longest description of a path, with the reason why there is no faster one, in bytes of UTF-8. A listing has at most 64 subscribers and 64 hosts.
pub const MAX_PATH_BYTES: usize = 300;
/// Rows of one page of a listing.
pub const PAGE_ROWS: usize = 64;
/// Rows of one page of what links want to know, whose rows are longer.
pub const INTEREST_ROWS: usize = 16;
/// Longest reason why a publisher and a subscriber do not match, in bytes of UTF-8.
pub const MAX_REASON_BYTES: usize = 500;
/// Pairs that do not match in a topic's listing.
pub const MAX_MISMATCHES: usize = 16;
/// Hosts that a subscriber of the links stands for, and rows of a listing of hosts.
pub const MAX_REMOTE_HOSTS: usize = 64;
/// Rows of one page of figures of links, whose rows are longer.
pub const FIGURES_ROWS: usize = 16;
/// Buckets of a [`Histogram`].
pub const HISTOGRAM_BUCKETS: usize = 27;
/// Publishers of former links that are remembered in a zone.
pub const MAX_DEPARTED: usize = 1024;
/// Longest name of a host.
pub const MAX_HOST_NAME: usize = 64;
/// Longest text about a host.
pub const MAX_PEER_TEXT: usize = 300;
/// Endpoints that are not reached, in a listing of hosts.
pub const MAX_NOT_REACHED: usize = 16;
/// Topics with lost or refused messages, in a listing of hosts.
pub const MAX_PEER_TOPICS: usize = 32;
/// The name of the process that has the links to other hosts. The daemon's own user or root only.
pub const LINKS_CLIENT: &str = "rgaps-links";

/// From a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientPacket {
    /// The answer carries the same number.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // packets are short-lived
pub enum DaemonPacket {
    /// To the request of this number.
    Answer {
        /// The request's number.
        id: u64,
        /// Its outcome.
        result: Result<Answer, Refusal>,
    },
    /// Unasked.
    Notice(Notice),
}

/// Unasked news from the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// A pool that the client uses has more segments. Its packet carries their descriptors, so
    /// that a message in them can be read even if the daemon dies now; those that are missing are
    /// to be had with [`Request::Segments`].
    PoolGrown {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool in the zone.
        pool: u32,
        /// Number of the first segment in this packet.
        from: u32,
        /// Their sizes; none if their descriptors could not be sent.
        bytes: Vec<u64>,
        /// Whether the descriptors can be written through.
        writable: bool,
    },
    /// A topic that the client subscribes to has got its pool: map it before the first message
    /// comes, which may be when there is no daemon to ask. If the pool has segments already,
    /// [`Notice::PoolGrown`] follows.
    TopicPool {
        /// The zone.
        zone: ZoneId,
        /// The pool.
        pool: PoolGrant,
    },
    /// Somebody wants memory of a pool that is full: give back what no message needs.
    PoolShort {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool in the zone.
        pool: u32,
    },
    /// A publisher and a subscriber of a topic do not match, one of which is the client's. Sent once, when
    /// the second of them joins.
    Mismatch {
        /// The topic's name.
        topic: String,
        /// The other member, and what does not fit; at most [`MAX_REASON_BYTES`].
        reason: String,
    },
    /// The daemon is going away on purpose; clients do not start another by themselves.
    Stopping,
}

/// A zone: the topics of one set of access rules in a realm, with their control segment,
/// registry and pools. Random.
pub type ZoneId = u128;

/// How many messages a publisher keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum History {
    /// The last `n` messages.
    KeepLast(u32),
    /// All messages up to these limits; at a limit the oldest message goes, once no reliable subscriber needs it.
    KeepAll {
        /// Limit in messages.
        messages: u32,
        /// Limit in bytes of payload.
        bytes: u64,
    },
}

impl History {
    /// Messages kept at most.
    pub fn depth(self) -> u32 {
        match self {
            History::KeepLast(n) => n,
            History::KeepAll { messages, .. } => messages,
        }
    }
}

/// The quality of service that a publisher offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// What it keeps for subscribers that lag and, if `transient_local`, for late joiners.
    pub history: History,
    /// Whether reliable subscribers may back-pressure it.
    pub reliable: bool,
    /// Whether late joiners get the history, even after the publisher has closed or died.
    pub transient_local: bool,
    /// How many loans may be open at once.
    pub loans: u32,
}

/// The quality of service that a subscriber requests. Only publishers that offer it match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Whether publishers must wait for it instead of overwriting messages.
    pub reliable: bool,
    /// Whether to start with the kept history.
    pub transient_local: bool,
    /// The subscriber's own queue: of the messages that wait for it, the newest so many; 0: all that publishers
    /// keep. It asks nothing of publishers.
    pub depth: u32,
}

impl Demand {
    /// What serves both subscribers.
    pub fn and(self, other: Demand) -> Demand {
        let reliable = self.reliable || other.reliable;
        Demand {
            reliable,
            transient_local: self.transient_local || other.transient_local,
            // One that is reliable skips nothing on its way to the host of who reads it.
            depth: match (reliable, self.depth, other.depth) {
                (true, ..) | (_, 0, _) | (_, _, 0) => 0,
                (false, one, other) => one.max(other),
            },
        }
    }
}

/// In which role a client joins a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Publish.
    Publisher(Offer),
    /// Subscribe.
    Subscriber(Demand),
    /// Subscribe to every publisher of the type, whatever it offers: each meets the demand as far as it can.
    Observer(Demand),
}

/// Which side of a topic a slot is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// `TopicRegion::publisher`.
    Publisher,
    /// `TopicRegion::subscriber`.
    Subscriber,
}

/// A publisher or subscriber, by its place and the random number that makes it this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Zone of the topic.
    pub zone: ZoneId,
    /// Index of the topic in the zone.
    pub topic: u32,
    /// Side.
    pub side: Side,
    /// Slot on that side.
    pub slot: u32,
    /// Incarnation of the slot.
    pub incarnation: u64,
}

/// A range of a pool in bytes, whole granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// What a client can ask of the daemon. All but `Hello` need a welcome first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// First of every session. Answer: [`Answer::Welcome`].
    Hello {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// [`rgaps_layout::LAYOUT_VERSION`].
        layout: u32,
        /// The realm that the client means.
        realm: String,
        /// What to call the client in listings.
        name: String,
    },
    /// Join a topic, creating it if need be. Answer: [`Answer::Joined`]; its packet carries two
    /// descriptors when `ZoneGrant` is there: the registry (read-only, an open file description
    /// of the client's own) and the control segment.
    Join {
        /// The topic's name.
        topic: String,
        /// Of a publisher: the type of its messages; empty: any. Of a subscriber: the type that it
        /// expects; empty: any.
        type_name: String,
        /// Of a publisher: the domain its messages live in; none takes the topic's, or host if it has
        /// none yet. Of a subscriber: the domain in which it reads, where messages of another are
        /// copied to; none reads where they are.
        domain: Option<Domain>,
        /// The role.
        role: Role,
        /// The slowest path that will do, to each subscriber or from each publisher; none: any.
        require: Option<PathKind>,
        /// Of a publisher of the links, which stands for one elsewhere: how its messages come here.
        arrives_over: Option<ArrivalPath>,
    },
    /// Leave. A publisher's history stays with the daemon as long as someone needs it; its leases
    /// go with it. A subscriber has released all it held. Answer: [`Answer::Done`].
    Leave(Member),
    /// Look at a subscriber that has closed itself ([`SubscriberSlot::closed`](rgaps_layout::SubscriberSlot)): nobody
    /// waits for it or copies for it any more. It leaves when it has released what it holds. Answer:
    /// [`Answer::Done`].
    Close(Member),
    /// A pool of a zone that the client is in; for a subscriber that joined before anyone had
    /// named the topic's domain, and meets the pool in a descriptor, and for a publisher that has
    /// subscribers reading elsewhere. Answer: [`Answer::Pool`].
    Pool {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool.
        pool: u32,
    },
    /// Descriptors of a pool's segments from number `from` on, as many as fit in a packet; none
    /// if there are none from there on. Answer: [`Answer::Segments`].
    Segments {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool.
        pool: u32,
        /// First segment wanted.
        from: u32,
        /// For a publisher of the pool, or of a topic that has a subscriber reading in it, and for the links'
        /// process, whose network cards may not know what cannot be written; others get descriptors
        /// that can only be read.
        writable: bool,
    },
    /// More memory for a publisher: at least one contiguous range of `bytes` (rounded up to
    /// granules). Answer: [`Answer::Leased`], or `PoolFull`.
    Lease {
        /// The publisher.
        publisher: Member,
        /// Index of the pool: the publisher's own, or one that a subscriber of its topic reads in.
        pool: u32,
        /// Contiguous bytes wanted.
        bytes: u64,
    },
    /// Ranges that a publisher does not need any more. Answer: [`Answer::Done`].
    Return {
        /// The publisher.
        publisher: Member,
        /// Index of the pool that they are in.
        pool: u32,
        /// The ranges.
        ranges: Vec<Range>,
    },
    /// The client is about to register the pages of a host pool with its CUDA driver, which holds on
    /// to them: from the answer on, the daemon leaves the pool's free memory as it is, or others
    /// would see other pages. For as long as the pool is there, whoever serves it.
    /// Answer: [`Answer::Done`].
    Pin {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool.
        pool: u32,
    },
    /// How a subscriber's messages reach it, for listings. Not kept when the daemon dies. Answer:
    /// [`Answer::Done`].
    Path {
        /// The subscriber.
        member: Member,
        /// At most [`MAX_PATH_BYTES`], no control characters.
        path: String,
    },
    /// A publisher or subscriber forwards between its topic and a device topic, whose three descriptors the packet carries
    /// (control, ring, words). Said again and again, so that a listing is recent and the next daemon knows. Gone with the
    /// member. Answer: [`Answer::Seats`], which the client acts on.
    Device {
        /// The publisher or subscriber.
        member: Member,
        /// The device topic as it is now.
        device: Box<DeviceRow>,
    },
    /// The device topic that somebody forwards to or from a topic. The client enters the topic's zone, as with a join, and is the
    /// owner of the seats that it takes. Answer: [`Answer::Device`]; its packet carries the three descriptors, and behind them
    /// those of the zone if it comes with a grant.
    OpenDevice {
        /// The topic's name.
        topic: String,
        /// Whether the client's kernels publish; of others the ring's descriptor cannot be written through, where that is host
        /// memory.
        publishes: bool,
    },
    /// A doorbell for a wait set. Answer: [`Answer::Doorbell`].
    TakeDoorbell {
        /// The zone.
        zone: ZoneId,
    },
    /// Done with a doorbell. Answer: [`Answer::Done`].
    ReturnDoorbell {
        /// The zone.
        zone: ZoneId,
        /// Its index.
        doorbell: u32,
    },
    /// A timeline for a stream. Its value is as the daemon leaves it: points count on from there.
    /// Answer: [`Answer::Timeline`].
    TakeTimeline {
        /// The zone.
        zone: ZoneId,
    },
    /// Done with a timeline: its last point was waited for. Answer: [`Answer::Done`].
    ReturnTimeline {
        /// The zone.
        zone: ZoneId,
        /// Its index.
        timeline: u32,
    },
    /// The client lives, but its CUDA context is lost, and with it all GPU work that it had queued.
    /// Ends its timelines as its death would, and takes them back. Answer: [`Answer::Done`].
    GpuLost {
        /// The zone.
        zone: ZoneId,
    },
    /// After the daemon was restarted: first packet of a zone's handing back, with the
    /// descriptors of registry and control segment. Answer: [`Answer::Zone`].
    HandBack {
        /// The zone.
        zone: ZoneId,
        /// The client's index in the registry, on whose byte it holds its lock.
        client_index: u32,
        /// The random number in its record.
        client_id: u64,
    },
    /// Then, per pool the client has mapped: the descriptors of its segments, in order, as many
    /// packets as it takes. Answer: [`Answer::Done`].
    HandBackSegments {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool.
        pool: u32,
        /// Number of the first segment in this packet.
        from: u32,
    },
    /// Then, per member, what the client still has; of a publisher, per pool. Answer: [`Answer::Done`].
    Claim {
        /// The member.
        member: Member,
        /// Index of the pool that the ranges are in.
        pool: u32,
        /// Leases of a publisher, in packets of at most [`MAX_RANGES`].
        ranges: Vec<Range>,
    },
    /// Last: the doorbells of its wait sets, and its timelines; what it did not claim is given up.
    /// Answer: [`Answer::Done`].
    HandedBack {
        /// The zone.
        zone: ZoneId,
        /// Doorbells taken for wait sets.
        doorbells: Vec<u32>,
        /// Timelines taken for streams.
        timelines: Vec<u32>,
    },
    /// How the daemon is. Answer: [`Answer::Status`].
    Status,
    /// Topics that the client may see, by name, from row `from` on. Answer: [`Answer::Topics`].
    Topics {
        /// First row wanted.
        from: u32,
    },
    /// One topic's members. Answer: [`Answer::Topic`].
    Topic {
        /// Its name.
        topic: String,
    },
    /// Drop the history that publishers of a topic left who are gone, if the client may publish there. Answer:
    /// [`Answer::Forgotten`].
    Forget {
        /// The topic's name.
        topic: String,
    },
    /// All pools. Answer: [`Answer::Pools`].
    Pools,
    /// Client processes, from row `from` on. Answer: [`Answer::Clients`].
    Clients {
        /// First row wanted.
        from: u32,
    },
    /// Leave, for good: only from the daemon's own user or root. Answer: [`Answer::Done`].
    Stop,
    /// Stay without clients, until somebody asks for [`Stop`](Self::Stop): only from the daemon's own user or root.
    /// Answer: [`Answer::Done`].
    Stay,
    /// Links: who publishes and subscribes on this host, themselves left out, from row `from` on, if
    /// anything has changed since `known`. Answer: [`Answer::Interest`].
    Interest {
        /// The version that is known; 0: none.
        known: u64,
        /// First row wanted.
        from: u32,
    },
    /// For the links only: hosts between which and this one a topic does not cross, and why; or from which it
    /// comes, and where it lands. Takes the place of what was said before; empty: there is nothing to say.
    /// Answer: [`Answer::Done`].
    Unserved {
        /// The topic's name.
        topic: String,
        /// At most [`MAX_REMOTE_HOSTS`], those ready whose messages come here.
        hosts: Vec<RemoteRow>,
    },
    /// Links: whom a subscriber of theirs stands for. Not kept when the daemon dies. Answer:
    /// [`Answer::Done`].
    StandsFor {
        /// The subscriber.
        member: Member,
        /// At most [`MAX_REMOTE_HOSTS`].
        hosts: Vec<RemoteRow>,
    },
    /// Links: how messages of a publisher of theirs come to this host now. Not kept when the daemon dies. Answer:
    /// [`Answer::Done`].
    ComesOver {
        /// The publisher.
        member: Member,
        /// As with [`Request::Join`].
        over: ArrivalPath,
    },
    /// Links: the other hosts, as they are. Kept as long as the session. Answer: [`Answer::Done`].
    SetPeers(PeersInfo),
    /// The other hosts. Answer: [`Answer::Peers`].
    Peers,
    /// Links: what was counted and timed on the link with a host. Kept as long as the session. Answer:
    /// [`Answer::Done`].
    SetFigures(Box<LinkFigures>),
    /// What was counted and timed on links, by hosts, from row `from` on. Answer: [`Answer::Figures`].
    Figures {
        /// First row wanted.
        from: u32,
    },
    /// Which of these settings the daemon does not have: keys of its configuration, with the values that the client's
    /// has, as TOML. Answer: [`Answer::Unlike`].
    Compare {
        /// Keys and values.
        settings: Vec<(String, String)>,
    },
    /// How it is with MPS. Answer: [`Answer::Mps`].
    Mps,
    /// This process's CUDA contexts are made through the MPS of this pipe directory, so its end does
    /// not end its work on GPUs; that MPS is asked then. Answer: [`Answer::Done`].
    UnderMps {
        /// `CUDA_MPS_PIPE_DIRECTORY`, or the default: absolute.
        pipe_directory: String,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // answers are rare and short-lived
pub enum Answer {
    /// Done.
    Done,
    /// To `Hello`.
    Welcome {
        /// Version of the daemon's package.
        version: String,
        /// Its process, in its own PID namespace.
        pid: u32,
        /// Random, changes with every daemon.
        daemon: u64,
        /// Zones that a predecessor left and that wait to be handed back.
        expects_hand_back: bool,
    },
    /// To `Join`.
    Joined {
        /// What was joined.
        member: Member,
        /// There when this is the session's first topic in the zone.
        grant: Option<ZoneGrant>,
        /// Of the topic in the control segment.
        region_offset: u64,
        /// Random number of the topic.
        topic_id: u64,
        /// The member's doorbell.
        doorbell: u32,
        /// Geometry and history of the publisher's own ring; zeros for a subscriber.
        ring: Ring,
        /// The topic's pool, once a publisher has come.
        pool: Option<PoolGrant>,
        /// The pool that a subscriber reads in, where that is another than the topic's, or there is
        /// none yet.
        reads: Option<PoolGrant>,
    },
    /// To `Pool`.
    Pool(PoolGrant),
    /// To `Segments`; the packet carries a descriptor per entry.
    Segments {
        /// Bytes of each.
        bytes: Vec<u64>,
    },
    /// To `Lease`.
    Leased {
        /// The ranges; the first is as large as was asked for.
        ranges: Vec<Range>,
    },
    /// To `OpenDevice`.
    Device {
        /// The device topic.
        device: Box<DeviceRow>,
        /// The topic's zone.
        zone: ZoneId,
        /// The client's place in it, if it was not in it.
        grant: Option<ZoneGrant>,
    },
    /// To `Device`: seats to free, and seats whose subscribers are to be evicted.
    Seats(Vec<SeatEnd>),
    /// To `TakeDoorbell`.
    Doorbell {
        /// Its index.
        doorbell: u32,
    },
    /// To `TakeTimeline`.
    Timeline {
        /// Its index.
        timeline: u32,
    },
    /// To `HandBack`.
    Zone {
        /// Whether the daemon still lacks the segments of the zone's pools.
        wants_segments: bool,
    },
    /// To `Status`.
    Status(Status),
    /// To `Topics`.
    Topics(Vec<TopicRow>),
    /// To `Topic`.
    Topic(TopicInfo),
    /// To `Forget`.
    Forgotten(Forgotten),
    /// To `Pools`.
    Pools(Vec<PoolRow>),
    /// To `Clients`.
    Clients(Vec<ClientRow>),
    /// To `Compare`: the keys that the daemon's configuration has another value for.
    Unlike(Vec<String>),
    /// To `Mps`.
    Mps(MpsInfo),
    /// To `Interest`.
    Interest {
        /// Changes with who is in which topic.
        version: u64,
        /// Random, changes with every daemon.
        daemon: u64,
        /// None of them if nothing has changed.
        rows: Vec<InterestRow>,
        /// To who knows nothing yet: incarnations of publishers of former links, and how many messages
        /// each published; the last [`MAX_DEPARTED`].
        departed: Vec<(u64, u64)>,
    },
    /// To `Peers`.
    Peers(PeersInfo),
    /// To `Figures`: at most [`FIGURES_ROWS`].
    Figures(Vec<LinkFigures>),
}

/// A client's place in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneGrant {
    /// Index of its record in the registry: the byte to lock (`F_OFD_SETLK`, read).
    pub client_index: u32,
    /// Random number in its record.
    pub client_id: u64,
}

/// A publisher's ring in the control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Of its `PublisherRegion`.
    pub region_offset: u64,
    /// Descriptors.
    pub ring_capacity: u32,
    /// Entries of the block table.
    pub block_capacity: u32,
    /// Messages kept.
    pub depth: u32,
    /// Sequence number of its first message.
    pub start: u64,
}

/// A pool, for a client that will map it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolGrant {
    /// Index in the zone.
    pub pool: u32,
    /// Where its bytes are.
    pub domain: Domain,
    /// Address range to reserve.
    pub cap_bytes: u64,
    /// Segments there are.
    pub segments: u32,
}

/// The kind of a refusal, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RefusalCode {
    /// The access rules forbid it, or only the daemon's user and root may do it.
    NotPermitted,
    /// The topic exists in another domain.
    DomainMismatch,
    /// The path between a publisher and a subscriber is slower than one of them requires.
    PathTooSlow,
    /// A limit is reached; the message names it.
    LimitReached,
    /// The pool is at its cap.
    PoolFull,
    /// The domain cannot be used: there is no such GPU, no driver, or no free GPU memory.
    DomainUnavailable,
    /// Client and daemon have different protocols, layouts or realms.
    VersionMismatch,
    /// There is no such topic, member or zone.
    NotFound,
    /// The request is not valid.
    BadRequest,
    /// A new daemon could not take over the zone of its predecessor.
    ZoneLost,
    /// The daemon is waiting for clients to hand back its predecessor's zones; try again shortly.
    Recovering,
    /// A system call of the daemon failed.
    Internal,
}

/// The daemon refused a request. The message says why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people.
    pub message: String,
}

/// The state of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct Status {
    pub version: String,
    pub realm: String,
    pub pid: u32,
    pub socket: String,
    pub uptime_ms: u64,
    pub clients: u32,
    pub topics: u32,
    pub zones: u32,
    pub rss_bytes: u64,
    pub idle_exit_ms: Option<u64>,
    /// Dead clients after which the daemon cleaned up, and the blocks that this freed.
    pub clients_reaped: u64,
    pub blocks_reclaimed: u64,
    /// Sessions that the daemon closed because of a protocol violation.
    pub sessions_cut_off: u64,
    /// Whether clients of the previous daemon are still awaited: some of them, or the memory that they hand back.
    pub recovering: bool,
    /// History that closed or dead publishers left for late joiners. The daemon stays as long as there is any.
    pub kept: KeptHistory,
    /// Warnings for the user, such as fallbacks in use and limits that are nearly reached.
    pub warnings: Vec<String>,
    /// The process `rgaps-links`, which has the links to other hosts.
    pub links: LinksInfo,
}

/// The state of the process `rgaps-links`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinksInfo {
    /// Its state.
    pub state: LinksState,
    /// Why it is not running; only if the state is [`LinksState::Failed`].
    pub failure: Option<Box<LinksFailure>>,
}

/// The state of the process `rgaps-links`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinksState {
    /// The daemon's configuration has no links.
    #[default]
    Off,
    /// The daemon has started it, and it has not connected yet.
    Starting,
    /// It has connected to the daemon.
    Running,
    /// It could not be started, or has ended.
    Failed,
}

/// Why the process `rgaps-links` is not running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{advice}: {reason}")]
pub struct LinksFailure {
    /// What to do.
    pub advice: String,
    /// What is wrong.
    pub reason: String,
}

/// History that closed or dead publishers left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptHistory {
    /// Number of topics with such history.
    pub topics: u32,
    /// Number of messages.
    pub messages: u64,
    /// The names of some of these topics.
    pub names: Vec<String>,
}

/// How much of a topic's history was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// Number of publishers that had left it.
    pub publishers: u32,
    /// Number of messages.
    pub messages: u64,
}

/// A topic, as in `rgaps topic list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TopicRow {
    pub name: String,
    /// The type of its publishers, or of its subscribers if the publishers have none; empty if nobody declares one.
    pub type_name: String,
    pub domain: Option<Domain>,
    pub publishers: u32,
    pub subscribers: u32,
    pub orphans: u32,
    pub messages: u64,
    pub bytes: u64,
    /// Messages that subscribers received, and that they missed; each subscriber counts by itself.
    pub received: u64,
    pub missed: u64,
    /// Messages in histories, and samples that subscribers hold.
    pub kept: u64,
    pub held: u64,
    /// Subscribers on other hosts that messages reach.
    pub remote: u32,
    /// Publishers that wait for reliable subscribers to make room.
    pub waiting: u32,
    /// Its messages come from a device topic, or go to one.
    pub is_device: bool,
}

/// A topic with its members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TopicInfo {
    pub row: TopicRow,
    pub zone: ZoneId,
    pub publishers: Vec<PublisherRow>,
    pub subscribers: Vec<SubscriberRow>,
    /// Hosts with subscribers of the topic.
    pub remote: Vec<RemoteRow>,
    /// Publishers and subscribers that do not match; at most [`MAX_MISMATCHES`].
    pub mismatches: Vec<MismatchRow>,
    /// The device topic that its messages come from or go to.
    pub device: Option<Box<DeviceRow>>,
}

/// A publisher and a subscriber of a topic that do not match, so no message passes between them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MismatchRow {
    /// Slot of the publisher.
    pub publisher: u32,
    /// Slot of the subscriber.
    pub subscriber: u32,
    /// Why they do not match, and what either side can change; at most [`MAX_REASON_BYTES`].
    pub reason: String,
}

/// A publisher of a topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PublisherRow {
    pub slot: u32,
    pub client: String,
    pub pid: u32,
    pub offer: Offer,
    /// The declared type of its messages; empty if it declares none.
    pub type_name: String,
    /// Subscribers that do not match it.
    pub mismatched: u32,
    /// It has closed or died, and its history is kept.
    pub orphan: bool,
    pub start: u64,
    pub head: u64,
    pub tail: u64,
    pub leased_bytes: u64,
    /// How much of the leased memory is used, and for what.
    pub uses: MemoryUses,
    pub blocks_used: u32,
    /// How often it continued without a slow reliable subscriber.
    pub drops: u64,
    /// Slots of the reliable subscribers that it waits for, one bit each: they have not read the oldest message that it keeps.
    pub waits_for: u64,
}

/// What a publisher's leased memory is used for. A block with several reasons counts for the first of
/// replicas, history, loans and held; the rest of what is leased is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUses {
    /// Messages that are kept.
    pub history: BlockSum,
    /// Loans that are being filled, and blocks that the publisher's GPU work may still write.
    pub loans: BlockSum,
    /// Messages that have left the history and are still samples of subscribers.
    pub held: BlockSum,
    /// Replicas of messages in pools of other domains.
    pub replicas: BlockSum,
}

impl MemoryUses {
    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        let all = [self.history, self.loans, self.held, self.replicas];
        all.iter()
            .fold(0, |sum, blocks| sum.saturating_add(blocks.bytes))
    }
}

/// A number of blocks, and the sum of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct BlockSum {
    pub blocks: u32,
    pub bytes: u64,
}

impl BlockSum {
    /// Counts one more block.
    pub fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A subscriber of a topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SubscriberRow {
    pub slot: u32,
    pub client: String,
    pub pid: u32,
    pub demand: Demand,
    /// It is an observer: it matches every publisher of its type, whatever that offers.
    pub observer: bool,
    /// The type that it expects; empty if it takes any.
    pub type_name: String,
    /// Publishers that do not match it.
    pub mismatched: u32,
    pub received: u64,
    pub missed: u64,
    pub held: u32,
    /// Messages behind the heads of the publishers that match it.
    pub lag: u64,
    /// Publishers that do not wait for it, though it is reliable, since it was slow: as of their last messages.
    pub dropped_by: u32,
    /// The domain in which it reads, if that is not the domain of the messages.
    pub domain: Option<Domain>,
    /// How messages reach it ("zero copy"), and why there is no faster path.
    pub path: String,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PoolRow {
    pub zone: ZoneId,
    pub access: String,
    pub domain: Domain,
    pub cap_bytes: u64,
    pub segment_bytes: u64,
    pub segments: u32,
    pub leased_bytes: u64,
    /// Who gave the memory: see the configuration's `pool.host.provider`; "driver" for GPUs.
    pub provider: String,
    pub pages: String,
    /// The requested NUMA node, and the percentage of sampled pages that are on it.
    pub numa: Option<(u32, u32)>,
    /// Replicas that publishers have made in this pool so far, and their bytes.
    pub copied_messages: u64,
    pub copied_bytes: u64,
    pub warnings: Vec<String>,
}

/// A client process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ClientRow {
    pub name: String,
    pub pid: u32,
    pub uid: u32,
    pub publishers: u32,
    pub subscribers: u32,
}

/// The state of MPS in a realm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MpsState {
    /// No MPS: processes take turns on a GPU.
    #[default]
    Off,
    /// The daemon is starting or restarting its own.
    Starting,
    /// The daemon's own.
    Own,
    /// One that ran already; the daemon uses it, and neither starts nor stops it.
    Foreign,
    /// The previous daemon's, which ends after its last client.
    Draining,
    /// The daemon's own is not running, and the daemon does not restart it.
    Failed,
}

/// MPS in a realm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MpsInfo {
    pub state: MpsState,
    /// The directories that clients need in their environment.
    pub pipe_directory: Option<String>,
    pub log_directory: Option<String>,
    /// Process ID of the MPS control daemon, in the PID namespace of rgaps's daemon.
    pub control_pid: Option<u32>,
    /// How often the daemon restarted it.
    pub restarts: u32,
    /// Dead clients in quarantine: MPS has not confirmed that their GPU work has ended.
    pub quarantined: u32,
    /// What is wrong, and what to do.
    pub reason: Option<String>,
}

/// A topic as links see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterestRow {
    /// Its name.
    pub name: String,
    /// Where its messages live, once somebody has said so.
    pub domain: Option<Domain>,
    /// Publishers of this host, and those that left a history.
    pub publishers: Vec<InterestPublisher>,
    /// Incarnations of publishers that links, also former ones, have or had here.
    pub landed: Vec<u64>,
    /// Subscribers of this host.
    pub subscribers: u32,
    /// All that any of them asks for.
    pub demand: Demand,
    /// Domains that they read in, those that name one: each once.
    pub readers: Vec<Domain>,
}

/// A publisher as links see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterestPublisher {
    /// Its random number.
    pub incarnation: u64,
    /// The declared type of its messages; empty if it declares none.
    pub type_name: String,
    /// What it promises.
    pub offer: Offer,
    /// It left or died; its history is kept.
    pub orphan: bool,
    /// The slowest path that will do.
    pub require: Option<PathKind>,
}

/// A host with subscribers of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRow {
    /// Its name.
    pub host: String,
    /// How many.
    pub subscribers: u32,
    /// Whether messages reach them.
    pub ready: bool,
    /// Over what path messages reach them, or why they do not.
    pub path: String,
}

/// The hosts of a realm, as one of them sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeersInfo {
    /// This host; empty if it has no links.
    pub host: String,
    /// The other hosts.
    pub peers: Vec<PeerRow>,
    /// Configured endpoints of hosts that cannot be reached, at most [`MAX_NOT_REACHED`].
    pub not_reached: Vec<NotReached>,
    /// Whether network cards know the host's pools as dma-bufs, or why by their addresses; none where no card knows any
    /// or segments are no dma-bufs. The reason has at most [`MAX_PEER_TEXT`] bytes.
    pub dma_bufs: Option<Result<(), String>>,
    /// Traces of single messages.
    pub traces: TraceFigures,
}

impl PeersInfo {
    /// Hosts that messages neither come from nor go to now.
    pub fn not_linked(&self) -> impl Iterator<Item = &str> {
        let apart = self.peers.iter().filter(|peer| peer.state.is_apart());
        apart.map(|peer| peer.host.as_str())
    }
}

/// An endpoint of another host that cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotReached {
    /// As the configuration names it. At most [`MAX_PEER_TEXT`] bytes, like the reason.
    pub endpoint: String,
    /// Why.
    pub reason: String,
}

/// Traces of single messages that the links sent to a collector, as spans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFigures {
    /// Address of the collector; empty without traces.
    pub endpoint: String,
    /// Spans that the collector accepted.
    pub spans: u64,
    /// Spans that were dropped: the queue was full, or the collector did not accept them.
    pub dropped: u64,
    /// Why the collector accepts no spans; empty while it does. At most [`MAX_PEER_TEXT`] bytes, like the endpoint.
    pub error: String,
}

/// Another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PeerRow {
    pub host: String,
    /// A random number that changes when its links restart.
    pub incarnation: u64,
    /// Version of the protocol between hosts.
    pub protocol: u32,
    pub state: PeerState,
    /// Why it is not linked, or details of the link.
    pub detail: String,
    pub lanes: u32,
    /// The slowest path of its lanes.
    pub path: PathKind,
    /// What the lanes use (TCP, TLS, RDMA), and why they use nothing faster.
    pub over: String,
    pub why_not: String,
    /// Topics that are sent to this host, and that are received from it.
    pub topics_out: u32,
    pub topics_in: u32,
    pub messages_out: u64,
    pub messages_in: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// Topics of which messages were lost or refused, and why; at most [`MAX_PEER_TOPICS`] in a listing.
    pub topics: Vec<PeerTopic>,
}

/// Lost and refused messages of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerTopic {
    /// Its name.
    pub topic: String,
    /// Messages to that host that were dropped.
    pub gave_up: u64,
    /// Messages from that host that were lost.
    pub missed: u64,
    /// How often that host sent or requested something that a rule or quota forbids.
    pub refused: u64,
    /// The rule or quota, if one is the reason.
    pub why: String,
}

/// The state of another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// It is known, and not linked yet.
    #[default]
    Joining,
    /// It is linked, and messages cross.
    Linked,
    /// It was known, and has gone.
    Lost,
    /// A link to it is refused.
    Refused,
    /// Messages cross through another host.
    Through,
}

impl PeerState {
    /// No messages cross to it or from it.
    pub fn is_apart(self) -> bool {
        matches!(self, Self::Joining | Self::Lost | Self::Refused)
    }
}

/// Counters and histograms of the link to a host, since this host's links started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct LinkFigures {
    pub host: String,
    pub lanes: u32,
    pub messages_out: u64,
    pub messages_in: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// Bytes on the wire, including frames and retransmissions.
    pub wire_bytes_out: u64,
    pub wire_bytes_in: u64,
    /// Best-effort messages that were skipped because there was no room.
    pub skipped: u64,
    /// Messages that were dropped in an outage.
    pub given_up: u64,
    /// Messages of the other host that were lost.
    pub missed: u64,
    /// Messages that were retransmitted after a lane was lost, and duplicates that were received and dropped.
    pub resent: u64,
    pub duplicates: u64,
    /// How often the link came up, how many lanes ended, and how often all lanes were closed because of a protocol violation.
    pub connects: u64,
    pub lanes_ended: u64,
    pub violations: u64,
    /// Lanes that ended, by reason, in the order of [`LaneEnd::ALL`](crate::LaneEnd::ALL).
    pub ends: [u64; 7],
    pub rdma: RdmaFigures,
    /// Bytes that the other host has not acknowledged.
    pub retained_bytes: u64,
    /// Times, by stage, in the order of [`Stage::ALL`].
    pub stages: [Histogram; 6],
}

/// Counters of the lanes over RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RdmaFigures {
    /// Lanes that were opened, and how often RDMA failed.
    pub opened: u64,
    pub failed: u64,
    /// Bytes that were copied through lanes' rings.
    pub ring_bytes_out: u64,
    pub ring_bytes_in: u64,
    /// Bytes that network cards wrote directly into receive buffers.
    pub direct_bytes_out: u64,
    pub direct_bytes_in: u64,
    /// Work requests that were posted, and doorbells rung for them.
    pub works: u64,
    pub doorbells: u64,
    /// How often a frame waited for bytes of the other host's ring, for its receives, or for slots of the send queue
    /// and the completion queue.
    pub stalls_ring: u64,
    pub stalls_receives: u64,
    pub stalls_sends: u64,
}

/// A stage of a message's path between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// From publishing until the links take it.
    Take,
    /// From then until its first byte is written to a lane.
    Queue,
    /// From then until the other host has acknowledged it, and so published it.
    Wire,
    /// On the receiving host, from having a receive buffer until all bytes have arrived and it is the message's turn.
    Land,
    /// From then until it is published.
    Publish,
    /// From publishing until it is published on the receiving host, by the wall clocks of both hosts.
    Total,
}

/// A histogram of times, with buckets of powers of two of microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The sum of all times, in nanoseconds.
    pub sum_ns: u64,
    /// How many times fall into each bucket: up to 1 us, 2 us, 4 us and so on; the last bucket has all longer ones.
    pub counts: [u64; HISTOGRAM_BUCKETS],
}
