//! Named limits. Every table, queue and bit mask that is shared takes its size from here.

/// Version of every structure in this crate; both ends of a mapping must agree on it.
pub const LAYOUT_VERSION: u32 = 7;
/// The most pieces in which a replica is copied, one after the other.
pub const MAX_COPY_PIECES: u64 = 32;

/// Publishers of one topic on one host. One bit each in a topic's `blocked` word.
pub const MAX_PUBLISHERS: usize = 16;
/// Subscribers of one topic on one host. One bit each in a block's holder word.
pub const MAX_SUBSCRIBERS: usize = 60;
/// Dimensions of a tensor that a descriptor can carry.
pub const MAX_DIMS: usize = 8;
/// Largest attachment of a message, in bytes. A header is an attachment, too.
pub const MAX_ATTACHMENT_BYTES: usize = 4096;
/// Most parts (named arrays) of one message.
pub const MAX_MESSAGE_PARTS: usize = 32;
/// Longest name of a part, in bytes of UTF-8.
pub const MAX_PART_NAME: usize = 63;
/// Copies of a message in pools of other domains.
pub const MAX_REPLICAS: usize = 8;
/// Longest topic name, in bytes of UTF-8.
pub const MAX_TOPIC_NAME: usize = 255;
/// Longest type name of a topic, in bytes of UTF-8.
pub const MAX_TYPE_NAME: usize = 127;
/// Longest client name, in bytes of UTF-8.
pub const MAX_CLIENT_NAME: usize = 63;

/// All sequence numbers are below this, which leaves room to add to them. A higher one violates the protocol.
pub const SEQUENCE_END: u64 = 1 << 62;
/// Deepest history of a publisher, in messages.
pub const MAX_DEPTH: u32 = 1 << 15;
/// Most blocks (loans, history and held samples together) of one publisher.
pub const MAX_BLOCKS: u32 = 1 << 16;
/// Most samples that one subscriber may hold at once.
pub const MAX_HELD: u32 = 4096;
/// Blocks that a publisher has beyond its history and its loans: samples held after they left the ring.
pub const SPARE_BLOCKS: u32 = 4096;
/// Samples that one subscriber may hold at once unless it asks for more.
pub const DEFAULT_HELD: u32 = 64;

/// Topics of one zone.
pub const MAX_TOPICS: usize = 8192;
/// Client processes of one zone.
pub const MAX_CLIENTS: usize = 1024;
/// Pools (one per domain) of one zone.
pub const MAX_POOLS: usize = 16;
/// Segments of one pool.
pub const MAX_SEGMENTS: usize = 256;
/// Doorbells (one per subscriber, publisher or wait set) of one zone.
pub const MAX_DOORBELLS: u32 = 1 << 16;
/// Timelines (one per stream of a process that publishes or releases on it) of one zone.
pub const MAX_TIMELINES: u32 = 4096;
/// Deferred releases of one subscriber. One more release first waits on the CPU for the oldest.
pub const MAX_DEFERRED_RELEASES: usize = 128;

/// Publishers lease memory in multiples of this: the page size of GPU memory for network cards (GPUDirect), and the largest page
/// of the supported hosts.
pub const GRANULE_BYTES: u64 = 64 << 10;
/// Segments are multiples of this: the huge page of x86-64, and the granularity of CUDA's virtual
/// memory management on all known GPUs.
pub const SEGMENT_UNIT_BYTES: u64 = 2 << 20;
/// Largest alignment of a block that a publisher can ask for.
pub const MAX_BLOCK_ALIGN: u64 = SEGMENT_UNIT_BYTES;
/// Largest pool, in bytes. It determines the size of the registry's granule table.
pub const MAX_POOL_BYTES: u64 = 1 << 40;
/// Granules of the largest pool.
pub const MAX_GRANULES: usize = (MAX_POOL_BYTES / GRANULE_BYTES) as usize;
/// Alignment of every block, and the smallest unit that is allocated.
pub const BLOCK_ALIGN: u64 = 256;

/// Size of a control segment. It is sparse: only touched pages take memory.
pub const CONTROL_BYTES: u64 = 16 << 30;
/// Unit in which ranges of the control segment are handed out.
pub const CONTROL_PAGE: u64 = 4096;

/// Bit of a holder word that belongs to the publisher: from the loan until it is published.
pub const PRODUCER_BIT: u32 = 60;
/// Bit of a holder word that says that the topic's ring holds the block.
pub const RING_BIT: u32 = 61;

/// The longest time for which a sleeper does not look again, so that a lost wake-up delays a message and does not lose it.
pub const WAIT_SLICE_NS: u64 = 500_000_000;

/// A late joiner waits for history that is on its way from another host as long as some of it has landed within this time.
pub const HISTORY_STALL_NS: u64 = 10_000_000_000;

const _: () = assert!(MAX_SUBSCRIBERS <= PRODUCER_BIT as usize);
const _: () = assert!(SEGMENT_UNIT_BYTES % GRANULE_BYTES == 0 && GRANULE_BYTES % BLOCK_ALIGN == 0);
const _: () = assert!(MAX_BLOCKS % 64 == 0 && MAX_DEPTH.is_power_of_two());
