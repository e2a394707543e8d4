//! The messages between clients and the daemon.
//!
//! One packet of a `SOCK_SEQPACKET` socket carries one [`ClientPacket`] or [`DaemonPacket`], encoded by postcard, with its file
//! descriptors. [`MAX_PACKET_BYTES`] and [`MAX_PACKET_FDS`] limit a packet. The receiver closes the session of a peer that sends
//! more, or something that does not decode.

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
/// The least limit of open files (`ulimit -n`) with which a daemon can work.
pub const DAEMON_FILES_MIN: u64 = 512;
/// The most ranges of one lease or return.
pub const MAX_RANGES: usize = 256;
/// Longest description of a path, with the reason why there is no faster one, in bytes of UTF-8. A listing has at most 64 subscribers and 64 hosts.
pub const MAX_PATH_BYTES: usize = 300;
/// Rows of one page of a listing.
pub const PAGE_ROWS: usize = 64;
/// Rows of one page of [`Answer::Interest`], whose rows are longer.
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
/// How many publishers of earlier links processes a zone remembers.
pub const MAX_DEPARTED: usize = 1024;
/// Longest name of a host.
pub const MAX_HOST_NAME: usize = 64;
/// Longest text about a host, in bytes.
pub const MAX_PEER_TEXT: usize = 300;
/// Endpoints that are not reached, in a listing of hosts.
pub const MAX_NOT_REACHED: usize = 16;
/// Topics with lost or refused messages, in a listing of hosts.
pub const MAX_PEER_TOPICS: usize = 32;
/// The client name of the links' process. Only the daemon's own user and root may use it.
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
    /// The answer to a request.
    Answer {
        /// The request's number.
        id: u64,
        /// Its outcome.
        result: Result<Answer, Refusal>,
    },
    /// A message that answers no request.
    Notice(Notice),
}

/// A message from the daemon that answers no request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// A pool that the client uses has new segments. The packet carries their descriptors, so that the client can read messages in
    /// them even if the daemon dies now. The client gets missing descriptors with [`Request::Segments`].
    PoolGrown {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool in the zone.
        pool: u32,
        /// Number of the first segment in this packet.
        from: u32,
        /// The sizes of the segments in bytes; empty if their descriptors could not be sent.
        bytes: Vec<u64>,
        /// Whether the descriptors allow writing.
        writable: bool,
    },
    /// A topic that the client subscribes to now has its pool. The client maps it before the first message arrives, since then
    /// there may be no daemon to ask. If the pool has segments already, [`Notice::PoolGrown`] follows.
    TopicPool {
        /// The zone.
        zone: ZoneId,
        /// The pool.
        pool: PoolGrant,
    },
    /// Somebody needs memory of a full pool: the client returns memory that no message needs.
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
    /// The daemon stops because somebody asked for it ([`Request::Stop`]); clients do not start another one by themselves.
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
    /// All messages up to these limits. At a limit the publisher drops the oldest message, once no reliable subscriber needs it.
    KeepAll {
        /// Limit in messages.
        messages: u32,
        /// Limit in bytes of payload.
        bytes: u64,
    },
}

impl History {
    /// The most messages that are kept.
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
    /// The messages that it keeps for subscribers that lag and, if `transient_local`, for late joiners.
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
    /// The length of the subscriber's own queue, in messages: it skips older ones. 0: all that publishers keep. Does not affect
    /// matching.
    pub depth: u32,
}

impl Demand {
    /// The least demand that serves both subscribers.
    pub fn and(self, other: Demand) -> Demand {
        let reliable = self.reliable || other.reliable;
        Demand {
            reliable,
            transient_local: self.transient_local || other.transient_local,
            // With a reliable subscriber, no message is skipped on the way to the subscribers' host.
            depth: match (reliable, self.depth, other.depth) {
                (true, ..) | (_, 0, _) | (_, _, 0) => 0,
                (false, one, other) => one.max(other),
            },
        }
    }
}

/// The role in which a client joins a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Publish.
    Publisher(Offer),
    /// Subscribe.
    Subscriber(Demand),
    /// Subscribe to every publisher of the type, whatever it offers. The demand applies as far as each publisher's offer allows.
    Observer(Demand),
}

/// A side of a topic: publishers or subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// `TopicRegion::publisher`.
    Publisher,
    /// `TopicRegion::subscriber`.
    Subscriber,
}

/// Identifies a publisher or subscriber: its slot, and the random number that distinguishes it from other members of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Zone of the topic.
    pub zone: ZoneId,
    /// Index of the topic in the zone.
    pub topic: u32,
    /// Side.
    pub side: Side,
    /// Its slot on that side.
    pub slot: u32,
    /// Incarnation of the slot.
    pub incarnation: u64,
}

/// A range of a pool, in bytes. It consists of whole granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// A client's request. The first one of a session must be `Hello`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// The first request of a session. Answer: [`Answer::Welcome`].
    Hello {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// [`rgaps_layout::LAYOUT_VERSION`].
        layout: u32,
        /// The realm that the client wants to join.
        realm: String,
        /// The client's name in listings.
        name: String,
    },
    /// Join a topic, and create it if it does not exist. Answer: [`Answer::Joined`]. If that has a `ZoneGrant`, its packet carries
    /// two descriptors: the registry (read-only, with an open file description of its own for this client) and the control segment.
    Join {
        /// The topic's name.
        topic: String,
        /// The type of a publisher's messages, or the type that a subscriber expects; empty: any.
        type_name: String,
        /// For a publisher: the domain of its messages; None: the topic's domain, or the host if the topic has none yet. For a
        /// subscriber: the domain in which it reads, to which publishers copy messages of other domains; None: the messages' own.
        domain: Option<Domain>,
        /// The role.
        role: Role,
        /// The slowest acceptable path to each subscriber, or from each publisher; None: any.
        require: Option<PathKind>,
        /// For a publisher of the links, which stands for one on another host: how its messages arrive here. Others: None.
        arrives_over: Option<ArrivalPath>,
    },
    /// Leave a topic. The daemon keeps a publisher's history, and the leases under it, as long as somebody needs it. A subscriber
    /// has released all its samples before. Answer: [`Answer::Done`].
    Leave(Member),
    /// Notice that a subscriber has closed itself ([`SubscriberSlot::closed`](rgaps_layout::SubscriberSlot)). Publishers stop waiting
    /// and copying for it. It leaves when it has released its last sample. Answer: [`Answer::Done`].
    Close(Member),
    /// Get a pool of a zone that the client is in. A subscriber needs it that joined before the topic had a domain, and finds the
    /// pool in a descriptor; so does a publisher whose subscribers read in another domain. Answer: [`Answer::Pool`].
    Pool {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool.
        pool: u32,
    },
    /// Get the descriptors of a pool's segments from number `from` on, as many as fit in a packet; none if the pool has no such
    /// segments. Answer: [`Answer::Segments`].
    Segments {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool.
        pool: u32,
        /// First segment wanted.
        from: u32,
        /// Whether the client wants to write. Allowed for a publisher of the pool, for a publisher of a topic with a subscriber that
        /// reads in the pool, and for the links' process, whose network cards may be unable to register read-only memory. Others
        /// get read-only descriptors.
        writable: bool,
    },
    /// Lease more memory for a publisher: at least one contiguous range of `bytes` (rounded up to granules). Answer:
    /// [`Answer::Leased`], or `PoolFull`.
    Lease {
        /// The publisher.
        publisher: Member,
        /// Index of the pool: the publisher's own, or one that a subscriber of its topic reads in.
        pool: u32,
        /// Contiguous bytes wanted.
        bytes: u64,
    },
    /// Return ranges that a publisher no longer needs. Answer: [`Answer::Done`].
    Return {
        /// The publisher.
        publisher: Member,
        /// Index of the pool that they are in.
        pool: u32,
        /// The ranges.
        ranges: Vec<Range>,
    },
    /// The client is about to register the pages of a host pool with its CUDA driver, which pins them. From the answer on, daemons
    /// no longer return the pool's free memory to the system, as long as the pool exists: otherwise other processes would see
    /// other pages there than the GPU. Answer: [`Answer::Done`].
    Pin {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool.
        pool: u32,
    },
    /// Report how messages reach a subscriber, for listings. Lost when the daemon dies. Answer: [`Answer::Done`].
    Path {
        /// The subscriber.
        member: Member,
        /// At most [`MAX_PATH_BYTES`], no control characters.
        path: String,
    },
    /// Report that a publisher or subscriber forwards between its topic and a device topic, whose three descriptors the packet
    /// carries (control, ring, words). The client repeats this, so that listings are recent and a new daemon knows it, too. Ends
    /// with the member. Answer: [`Answer::Seats`], which the client carries out.
    Device {
        /// The publisher or subscriber.
        member: Member,
        /// The device topic as it is now.
        device: Box<DeviceRow>,
    },
    /// Open the device topic that somebody forwards to or from a topic. The client enters the topic's zone, as with a join, and owns
    /// the seats that it takes. Answer: [`Answer::Device`]; its packet carries the three descriptors, and behind them those of the
    /// zone if there is a grant.
    OpenDevice {
        /// The topic's name.
        topic: String,
        /// Whether the client's kernels publish. If not, and the ring is host memory, the ring's descriptor is read-only.
        publishes: bool,
    },
    /// Take a doorbell for a wait set. Answer: [`Answer::Doorbell`].
    TakeDoorbell {
        /// The zone.
        zone: ZoneId,
    },
    /// Return a doorbell. Answer: [`Answer::Done`].
    ReturnDoorbell {
        /// The zone.
        zone: ZoneId,
        /// Its index.
        doorbell: u32,
    },
    /// Take a timeline for a stream. The client's points continue from its current value.
    /// Answer: [`Answer::Timeline`].
    TakeTimeline {
        /// The zone.
        zone: ZoneId,
    },
    /// Return a timeline after it has reached its last point. Answer: [`Answer::Done`].
    ReturnTimeline {
        /// The zone.
        zone: ZoneId,
        /// Its index.
        timeline: u32,
    },
    /// Report that the client's CUDA context is lost, and with it all its queued GPU work. The daemon ends the client's timelines as
    /// if the client had died, and takes them back. Answer: [`Answer::Done`].
    GpuLost {
        /// The zone.
        zone: ZoneId,
    },
    /// Begin to hand a zone back to a new daemon. The packet carries the descriptors of registry and control segment. Answer:
    /// [`Answer::Zone`].
    HandBack {
        /// The zone.
        zone: ZoneId,
        /// The client's index in the registry. The client holds a lock on the registry's byte of this number.
        client_index: u32,
        /// The random number in its record.
        client_id: u64,
    },
    /// Second step of handing back, for each pool that the client has mapped: packets with the descriptors of its segments, in
    /// order. Answer: [`Answer::Done`].
    HandBackSegments {
        /// The zone.
        zone: ZoneId,
        /// Index of the pool.
        pool: u32,
        /// Number of the first segment in this packet.
        from: u32,
    },
    /// Third step of handing back, for each member that the client still has, and each pool of a publisher. Answer:
    /// [`Answer::Done`].
    Claim {
        /// The member.
        member: Member,
        /// Index of the pool that the ranges are in.
        pool: u32,
        /// Leases of a publisher, in packets of at most [`MAX_RANGES`].
        ranges: Vec<Range>,
    },
    /// Last step of handing back. The daemon frees what the client has neither claimed nor listed here. Answer: [`Answer::Done`].
    HandedBack {
        /// The zone.
        zone: ZoneId,
        /// Doorbells taken for wait sets.
        doorbells: Vec<u32>,
        /// Timelines taken for streams.
        timelines: Vec<u32>,
    },
    /// Get the state of the daemon. Answer: [`Answer::Status`].
    Status,
    /// List the topics that the client may see, by name, from row `from` on. Answer: [`Answer::Topics`].
    Topics {
        /// First row wanted.
        from: u32,
    },
    /// List one topic's members. Answer: [`Answer::Topic`].
    Topic {
        /// Its name.
        topic: String,
    },
    /// Drop the history that closed or dead publishers left in a topic, if the client may publish there. Answer:
    /// [`Answer::Forgotten`].
    Forget {
        /// The topic's name.
        topic: String,
    },
    /// List all pools. Answer: [`Answer::Pools`].
    Pools,
    /// List client processes, from row `from` on. Answer: [`Answer::Clients`].
    Clients {
        /// First row wanted.
        from: u32,
    },
    /// Stop the daemon. Only the daemon's own user and root may do this. Answer: [`Answer::Done`].
    Stop,
    /// Make the daemon stay without clients until a [`Stop`](Self::Stop). Only the daemon's own user and root may do this. Answer:
    /// [`Answer::Done`].
    Stay,
    /// For the links only: list publishers and subscribers of this host, except those of the links, from row `from` on, if anything
    /// has changed since version `known`. Answer: [`Answer::Interest`].
    Interest {
        /// The version that the links know; 0: none.
        known: u64,
        /// First row wanted.
        from: u32,
    },
    /// For the links only: report hosts to or from which a topic does not cross, and why; and hosts from which it arrives, and in
    /// which domain. Replaces the topic's earlier report. Answer: [`Answer::Done`].
    Unserved {
        /// The topic's name.
        topic: String,
        /// At most [`MAX_REMOTE_HOSTS`]; `ready` marks hosts whose messages arrive here. Empty: nothing to report.
        hosts: Vec<RemoteRow>,
    },
    /// For the links only: report the subscribers on other hosts for which one of the links' own stands. Lost when the daemon dies.
    /// Answer: [`Answer::Done`].
    StandsFor {
        /// The subscriber.
        member: Member,
        /// At most [`MAX_REMOTE_HOSTS`].
        hosts: Vec<RemoteRow>,
    },
    /// For the links only: report how messages of one of their publishers now arrive at this host. Lost when the daemon dies.
    /// Answer: [`Answer::Done`].
    ComesOver {
        /// The publisher.
        member: Member,
        /// As `arrives_over` of [`Request::Join`].
        over: ArrivalPath,
    },
    /// For the links only: report the state of the other hosts. Kept as long as the session. Answer: [`Answer::Done`].
    SetPeers(PeersInfo),
    /// List the other hosts. Answer: [`Answer::Peers`].
    Peers,
    /// For the links only: report the counters and times of the link to a host. Kept as long as the session. Answer:
    /// [`Answer::Done`].
    SetFigures(Box<LinkFigures>),
    /// Get the counters and times of links, by hosts, from row `from` on. Answer: [`Answer::Figures`].
    Figures {
        /// First row wanted.
        from: u32,
    },
    /// Compare keys of the client's configuration with the daemon's. Answer: [`Answer::Unlike`].
    Compare {
        /// Keys with dots, and the client's values as TOML.
        settings: Vec<(String, String)>,
    },
    /// Get the state of MPS. Answer: [`Answer::Mps`].
    Mps,
    /// Report that this process's CUDA contexts use the MPS of this pipe directory. The GPU work of such a process may outlive it, so
    /// the daemon asks that MPS when the process has ended. Answer: [`Answer::Done`].
    UnderMps {
        /// `CUDA_MPS_PIPE_DIRECTORY`, or the default: absolute.
        pipe_directory: String,
    },
}

/// The daemon's answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // answers are rare and short-lived
pub enum Answer {
    /// The request was carried out.
    Done,
    /// To `Hello`.
    Welcome {
        /// Version of the daemon's package.
        version: String,
        /// Its process, in its own PID namespace.
        pid: u32,
        /// A random number that identifies the daemon's process.
        daemon: u64,
        /// Whether the daemon waits for clients to hand back zones of its predecessor.
        expects_hand_back: bool,
    },
    /// To `Join`.
    Joined {
        /// The new member.
        member: Member,
        /// The client's place in the zone, if this is the session's first topic there.
        grant: Option<ZoneGrant>,
        /// Offset of the topic's `TopicRegion` in the control segment.
        region_offset: u64,
        /// Random number of the topic.
        topic_id: u64,
        /// The member's doorbell.
        doorbell: u32,
        /// Geometry and history of the publisher's own ring; zeros for a subscriber.
        ring: Ring,
        /// The topic's pool; None before its first publisher has joined.
        pool: Option<PoolGrant>,
        /// The pool in which a subscriber reads, if that is not the topic's pool, or if the topic has none yet.
        reads: Option<PoolGrant>,
    },
    /// To `Pool`.
    Pool(PoolGrant),
    /// To `Segments`. The packet carries one descriptor per entry.
    Segments {
        /// The size of each segment in bytes.
        bytes: Vec<u64>,
    },
    /// To `Lease`.
    Leased {
        /// The ranges. The first one has at least the requested size.
        ranges: Vec<Range>,
    },
    /// To `OpenDevice`.
    Device {
        /// The device topic.
        device: Box<DeviceRow>,
        /// The topic's zone.
        zone: ZoneId,
        /// The client's place in the zone, if the client has just entered it.
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
    /// To `Compare`: the keys for which the daemon's configuration has another value.
    Unlike(Vec<String>),
    /// To `Mps`.
    Mps(MpsInfo),
    /// To `Interest`.
    Interest {
        /// Changes whenever a member joins or leaves a topic.
        version: u64,
        /// A random number that identifies the daemon's process.
        daemon: u64,
        /// Empty if nothing has changed.
        rows: Vec<InterestRow>,
        /// Only if `known` was 0: incarnations of publishers of earlier links processes, and how many messages each published; the
        /// last [`MAX_DEPARTED`].
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
    /// Index of its record in the registry. The client takes a read lock (`F_OFD_SETLK`) on the registry's byte of this number.
    pub client_index: u32,
    /// Random number in its record.
    pub client_id: u64,
}

/// A publisher's ring in the control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Offset of its `PublisherRegion`.
    pub region_offset: u64,
    /// Descriptors in the ring.
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
    /// The address range that the client reserves, in bytes.
    pub cap_bytes: u64,
    /// The number of its segments.
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
    /// Its kind, for programs.
    pub code: RefusalCode,
    /// The reason, for people.
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
    /// Whether the daemon still waits for clients of its predecessor, or for the memory that they hand back.
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
    /// Whether a bridge forwards its messages from or to a device topic.
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
    /// Whether it has closed or died while its history is kept.
    pub orphan: bool,
    pub start: u64,
    pub head: u64,
    pub tail: u64,
    pub leased_bytes: u64,
    /// How much of the leased memory is used, and for what.
    pub uses: MemoryUses,
    pub blocks_used: u32,
    /// How often it stopped waiting for a slow reliable subscriber.
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
    /// Whether it is an observer, which matches every publisher of its type.
    pub observer: bool,
    /// The type that it expects; empty if it takes any.
    pub type_name: String,
    /// Publishers that do not match it.
    pub mismatched: u32,
    pub received: u64,
    pub missed: u64,
    pub held: u32,
    /// How many messages of matching publishers it has not received yet.
    pub lag: u64,
    /// How many publishers stopped waiting for this reliable subscriber, since it was slow, as of their last messages.
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
    /// The provider of the memory: as in the configuration's `pool.host.provider`; "driver" for GPUs.
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
    /// The domain of its messages; None before the first publisher has joined.
    pub domain: Option<Domain>,
    /// Publishers of this host, including closed and dead ones whose history is kept.
    pub publishers: Vec<InterestPublisher>,
    /// Incarnations of publishers that the links, or earlier links processes, have or had here.
    pub landed: Vec<u64>,
    /// Subscribers of this host.
    pub subscribers: u32,
    /// The demands of all of them, combined by [`Demand::and`].
    pub demand: Demand,
    /// The domains in which they asked to read, without duplicates.
    pub readers: Vec<Domain>,
}

/// A publisher as links see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterestPublisher {
    /// Its random number.
    pub incarnation: u64,
    /// The declared type of its messages; empty if it declares none.
    pub type_name: String,
    /// The quality of service that it offers.
    pub offer: Offer,
    /// Whether it has closed or died while its history is kept.
    pub orphan: bool,
    /// The slowest acceptable path; None: any.
    pub require: Option<PathKind>,
}

/// A host with subscribers of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRow {
    /// Its name.
    pub host: String,
    /// The number of its subscribers.
    pub subscribers: u32,
    /// Whether messages reach them.
    pub ready: bool,
    /// The path by which messages reach them, or the reason why none do.
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
    /// Whether network cards have registered the host's pools as dma-bufs; if not, the reason why they use addresses, in at most
    /// [`MAX_PEER_TEXT`] bytes. None: no card has registered a pool, or segments are no dma-bufs.
    pub dma_bufs: Option<Result<(), String>>,
    /// Traces of single messages.
    pub traces: TraceFigures,
}

impl PeersInfo {
    /// The names of hosts to and from which no messages cross now.
    pub fn not_linked(&self) -> impl Iterator<Item = &str> {
        let apart = self.peers.iter().filter(|peer| peer.state.is_apart());
        apart.map(|peer| peer.host.as_str())
    }
}

/// An endpoint of another host that cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotReached {
    /// The endpoint as configured, at most [`MAX_PEER_TEXT`] bytes.
    pub endpoint: String,
    /// Why it cannot be reached, at most [`MAX_PEER_TEXT`] bytes.
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
    /// The lanes' transports (TCP, TLS, RDMA), and why they use no faster one.
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
    /// This host knows it, and has no link to it yet.
    #[default]
    Joining,
    /// It is linked, and messages cross.
    Linked,
    /// It was linked, and has disappeared.
    Lost,
    /// A link to it is refused.
    Refused,
    /// Messages cross through another host, without a direct link.
    Through,
}

impl PeerState {
    /// Whether no messages cross to or from it.
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
    /// From the end of the previous stage until its first byte is written to a lane.
    Queue,
    /// From the end of the previous stage until the other host has acknowledged, and so published, the message.
    Wire,
    /// On the receiving host, from allocating the receive buffer until all bytes have arrived and it is the message's turn.
    Land,
    /// From the end of the previous stage until it is published.
    Publish,
    /// From publishing until it is published on the receiving host, by the wall clocks of both hosts.
    Total,
}

/// A histogram of times, with buckets of powers of two of microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The sum of all times, in nanoseconds.
    pub sum_ns: u64,
    /// How many times are in each bucket: up to 1 us, 2 us, 4 us and so on; the last bucket has all longer times.
    pub counts: [u64; HISTOGRAM_BUCKETS],
}
