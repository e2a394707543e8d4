//! The session between a client process and the daemon of its host: messages, the socket that
//! carries them with file descriptors, configuration, and finding or starting the daemon.
//!
//! A session carries joins, leaves, leases and mappings, but never a message of a topic.

#![warn(clippy::too_many_lines)]

mod access;
mod children;
mod config;
mod device;
mod explain;
mod figures;
mod launch;
mod lock;
mod message;
mod mps;
mod names;
mod path;
#[cfg(feature = "program")]
mod program;
mod ready;
pub mod report;
mod similar;
mod socket;
mod visible;

pub use access::{
    bare_topic_name, check_topic_name, is_pattern, pattern_matches, Access, AccessClass,
    AccessError, TopicNameError, DEFAULT_CLASS,
};
pub use children::{
    bridge_command, end_with_parent, find_links, gpu_server_command, links_command,
    BridgeProgramError,
};
pub use config::{
    segment_bytes, AccessRule, Action, Argument, BridgeConfig, BridgeDirection, ByteSize,
    ByteSizeError, Config, ConfigError, Cuda, CudaPool, CudaUse, Direction, Environment, FileMode,
    Gpu, HostPool, HostProvider, HugePages, LandIn, LandingRule, Limits, LinkRule, Links, LinksTls,
    LogFormat, Metrics, NumaChoice, PeerUse, Pools, Principal, Quota, Rdma, Ros2Rule,
    RosMiddleware, Traces, Watermark, ZenohRule, LANE_PORT, RECONNECT_PAUSE_MAX_MS,
    RECOVERY_MS_MIN,
};
pub use device::{DeviceRow, DeviceSeatRow, SeatEnd};
pub use explain::explain;
pub use launch::{
    connect, connect_or_start, find_daemon, list_paths, unblock_signals, LaunchError,
};
pub use lock::{DaemonLock, LockError};
pub use message::*;
pub use mps::{
    MpsControl, MpsError, MpsServer, MPS_CLIENTS_MAX, MPS_CONTROL_PROGRAM,
    MPS_DEFAULT_PIPE_DIRECTORY, MPS_LOG_VARIABLE, MPS_PIPE_PATH_MAX, MPS_PIPE_VARIABLE,
};
pub use names::TopicNames;
pub use path::{ArrivalPath, PathKind, PathKindError};
#[cfg(feature = "program")]
pub use program::{on_own_stack, print_error, start_log};
pub use ready::Ready;
pub use rgaps_layout::LaneEnd;
pub use similar::similar_name;
pub use socket::{Credentials, SessionListener, SessionSocket, SocketError, KERNEL_FDS_MAX};
pub use visible::{split_warning, visible_daemons, DaemonRole, SplitWarning, VisibleDaemon};
