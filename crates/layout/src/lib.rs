//! The layout of bytes that processes, hosts and GPUs share.
//!
//! This crate defines everything on which two programs must agree: the limits, the structures in a zone's *control segment*, the
//! descriptor in a topic's ring, and the names of domains and element types. The structures are plain `repr(C)` data with
//! fixed-width fields; no code outside this crate writes an offset by hand. Nobody borrows a structure while another process may
//! write it: `rgaps-topic` reads and writes the fields as atomics, through accessors that it generates from the table
//! [`control_structures!`].
//!
//! A change of any structure here bumps [`LAYOUT_VERSION`] and has a decision record.
#![warn(clippy::too_many_lines)]
#![forbid(unsafe_code)]

mod control;
mod define;
mod descriptor;
mod device;
mod domain;
mod dtype;
mod lane_end;
mod limits;
mod metadata;
mod region;
mod registry;
mod tensor_type;

pub use control::{
    BlockEntry, ControlHeader, DeferredRelease, Descriptor, Doorbell, PoolCounts, PublisherSlot,
    SubscriberSlot, Timeline, TopicRegion, CONTROL_MAGIC, DEFERRED_RELEASE_BY_PUBLISHER,
    DEFERRED_RELEASE_BY_SUBSCRIBER, DEFERRED_RELEASE_FREE, DEFERRED_RELEASE_PENDING,
    DOORBELL_TABLE_OFFSET, DYNAMIC_OFFSET, HISTORY_LANDING, POINT_ABORTED, POINT_NONE,
    POOL_COUNTS_OFFSET, PUBLISHER_ACTIVE, PUBLISHER_EMPTY, PUBLISHER_ORPHAN, TIMELINE_TABLE_BYTES,
    TIMELINE_TABLE_OFFSET, TOPIC_MAGIC,
};
pub use descriptor::{
    BlockWord, ElementWord, ReplicaPair, DESCRIPTOR_COPIED, DESCRIPTOR_METADATA, DESCRIPTOR_MISSED,
    DESCRIPTOR_QUEUED, DESCRIPTOR_TYPED, REPLICA_PAIRS,
};
pub use device::{
    device_header, device_owner, is_device_owner_in, DeviceControl, DeviceSeat, DeviceTopicView,
    DEVICE_BLOCK_ALIGN, DEVICE_CONTROL_BYTES, DEVICE_CURSOR_JOINED, DEVICE_CURSOR_RELIABLE,
    DEVICE_CURSOR_SHIFT, DEVICE_GENERATION_SHIFT, DEVICE_HOLDER_BYTES, DEVICE_LAYOUT_VERSION,
    DEVICE_MAGIC, DEVICE_OWNER_UNKNOWN, DEVICE_PRODUCER_BIT, DEVICE_PUBLISHER_ENDPOINT,
    DEVICE_RING_BIT, DEVICE_SEAT_FREE, DEVICE_SEQUENCE_SHIFT, MAX_DEVICE_BLOCKS, MAX_DEVICE_DEPTH,
    MAX_DEVICE_SUBSCRIBERS,
};
pub use domain::{Domain, DomainParseError, GpuUuid};
pub use dtype::{DType, DTypeParseError};
pub use lane_end::LaneEnd;
pub use limits::*;
pub use metadata::{
    MetadataLengths, PartEntry, ATTACHMENT_HEADER, ATTACHMENT_RAW, MAX_METADATA_BYTES,
    PART_ENTRY_BYTES,
};
pub use region::{PublisherRegion, METADATA_FAR_BYTES, METADATA_NEAR_BYTES};
pub use registry::{
    ClientRecord, PoolRecord, PublisherRecord, RegistryHeader, SegmentRecord, SubscriberRecord,
    TopicRecord, RECORD_FREE, RECORD_LIVE, RECORD_ORPHAN, REGISTRY_MAGIC, TYPE_NAME_BYTES,
};
pub use tensor_type::{type_accepts, TensorType, TensorTypeError};
