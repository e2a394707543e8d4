//! The configuration: its keys, and its sources.
//!
//! Later sources override earlier ones: the built-in values; the first file that exists (the one that `--config` or `RGAPS_CONFIG`
//! names, else `./rgaps.toml`, `~/.config/rgaps/rgaps.toml`, `/etc/rgaps/rgaps.toml`); the environment (`RGAPS_REALM`,
//! `RGAPS_POOL__HOST__CAP=2GiB` and so on, with two underscores for a dot); arguments of the program's caller. An error names its
//! source. A daemon that a client starts gets the client's whole configuration.

mod blame;
mod bridge;
mod gpu;
mod landing;
mod lane_address;
mod leaves;
mod links;
mod load;
mod memory;
mod metrics;
mod numa;
mod paths;
mod rules;
mod size;
mod traces;

pub use bridge::{BridgeConfig, BridgeDirection, Ros2Rule, RosMiddleware, ZenohRule};
pub use gpu::Gpu;
pub use landing::{LandIn, LandingRule};
pub use lane_address::LANE_PORT;
pub use links::{Links, LinksTls, Rdma, Watermark};
pub use load::{Argument, Environment};
pub(crate) use load::{INLINE_VARIABLE, LINKS_PROGRAM_VARIABLE};
pub use metrics::{LogFormat, Metrics};
pub use numa::NumaChoice;
pub(crate) use paths::{prepare_folder, uid, SYSTEM_FOLDER, USER_PREFIX};
pub use rules::{Action, Direction, LinkRule, Quota};
pub use size::{ByteSize, ByteSizeError};
pub use traces::Traces;

use crate::names::{self, TopicNames};
use rgaps_layout::{MAX_CLIENTS, MAX_POOL_BYTES, MAX_SEGMENTS, MAX_TOPICS, SEGMENT_UNIT_BYTES};
use serde::{de, Deserialize, Deserializer, Serialize, Serializer};
use std::path::PathBuf;
use std::time::Duration;

/// Segment size unless the configuration says otherwise.
const DEFAULT_SEGMENT_BYTES: u64 = 64 << 20;
/// Default of [`CudaPool::map_max`]: a message that is read over the connection between GPUs for up to this many bytes in all is
/// not worth a copy.
const DEFAULT_MAP_MAX_BYTES: u64 = 4 << 20;
/// Longest name of a realm, which becomes part of a file's name.
const MAX_REALM_NAME: usize = 64;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("the configuration '{}' cannot be read: {source}; name another with --config or RGAPS_CONFIG", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file, an environment variable or an argument has an invalid value.
    #[error("{location}: {reason}")]
    Wrong {
        /// The file and its line, the variable, or the argument.
        location: String,
        /// Which key is wrong, and why.
        reason: String,
    },
    /// The folder of the socket cannot be used.
    #[error("the socket's folder '{}' cannot be used: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
}

/// The whole configuration. The keys in `rgaps.toml` have the names of the fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The realm, which identifies a daemon of this user or host: `[A-Za-z0-9_-]`, at most 64 characters.
    pub realm: String,
    /// Path of the daemon's socket. `None`: [`Config::socket_path`] chooses it.
    pub socket: Option<PathBuf>,
    /// Permissions of the socket.
    pub socket_mode: FileMode,
    /// A daemon without clients ends after this long, in milliseconds; 0: never.
    pub idle_exit_ms: u64,
    /// How long a new daemon waits for clients to hand back its predecessor's memory, in milliseconds.
    pub recovery_ms: u64,
    /// What to log: a filter of the crate `tracing`, such as "info" or "rgaps_engine=debug".
    pub log: String,
    /// The format of logs.
    pub log_format: LogFormat,
    /// Whether a client that finds no daemon starts one.
    pub autostart: bool,
    /// The namespace of topics that a client names without a leading slash; empty: none.
    pub namespace: String,
    /// Topics that a client uses instead of others: `camera:=front/camera`.
    #[serde(deserialize_with = "names::rules")]
    pub remap: Vec<String>,
    /// Memory.
    pub pool: Pools,
    /// How GPUs are used.
    pub cuda: Cuda,
    /// Limits.
    pub limits: Limits,
    /// Links to other hosts.
    pub links: Links,
    /// The server of this host's GPUs for CUDA programs on other hosts.
    pub gpu: Gpu,
    /// Bridges to Zenoh and ROS 2.
    pub bridge: BridgeConfig,
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// Traces of messages between hosts.
    pub traces: Traces,
    /// Which users may publish and subscribe to which topics. Topics that no rule names are open to everyone who can open the
    /// socket.
    pub access: Vec<AccessRule>,
    /// The file that was read.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// Environment variables that start with `RGAPS_` but name no key.
    #[serde(skip)]
    pub ignored_variables: Vec<String>,
    /// Configuration files that exist where one is searched, and that this user may not read.
    #[serde(skip)]
    pub unreadable_files: Vec<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            realm: "default".to_owned(),
            socket: None,
            socket_mode: FileMode(0o600),
            idle_exit_ms: 60_000,
            recovery_ms: 2_000,
            log: "info".to_owned(),
            log_format: LogFormat::default(),
            autostart: true,
            namespace: String::new(),
            remap: Vec::new(),
            pool: Pools::default(),
            cuda: Cuda::default(),
            limits: Limits::default(),
            links: Links::default(),
            gpu: Gpu::default(),
            bridge: BridgeConfig::default(),
            metrics: Metrics::default(),
            traces: Traces::default(),
            access: Vec::new(),
            file: None,
            ignored_variables: Vec::new(),
            unreadable_files: Vec::new(),
        }
    }
}

/// Pools, by kind of domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pools {
    /// Shared host memory.
    pub host: HostPool,
    /// GPUs.
    pub cuda: CudaPool,
}

/// A host pool. There is one per zone (topics of equal access rules).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostPool {
    /// Largest size in bytes. `None`: half of the memory of this machine or container.
    pub cap: Option<ByteSize>,
    /// The pool grows by segments of this size, a multiple of 2 MiB.
    pub segment: ByteSize,
    /// Which part of the system gives the memory.
    pub provider: HostProvider,
    /// Huge pages.
    pub hugepages: HugePages,
    /// NUMA node to allocate on.
    pub numa_node: Option<NumaChoice>,
    /// Whether the daemon touches a segment's pages when it creates the segment, and not when a message first needs them.
    pub prefault: bool,
}

impl Default for HostPool {
    fn default() -> Self {
        HostPool {
            cap: None,
            segment: ByteSize(DEFAULT_SEGMENT_BYTES),
            provider: HostProvider::Memfd,
            hugepages: HugePages::Off,
            numa_node: None,
            prefault: false,
        }
    }
}

/// A CUDA pool, per GPU and zone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CudaPool {
    /// Largest size in bytes on each GPU. `None`: half of the GPU's memory.
    pub cap: Option<ByteSize>,
    /// The pool grows by segments of this size, a multiple of 2 MiB.
    pub segment: ByteSize,
    /// Whether GPUs are used.
    pub enabled: CudaUse,
    /// How messages in one GPU's memory reach subscribers on another GPU.
    pub peer: PeerUse,
    /// With `peer = "auto"`: subscribers on another GPU read a message in place if its bytes, times the number of readers on that
    /// GPU, are at most this; otherwise it is copied there.
    pub map_max: ByteSize,
}

impl Default for CudaPool {
    fn default() -> Self {
        CudaPool {
            cap: None,
            segment: ByteSize(DEFAULT_SEGMENT_BYTES),
            enabled: CudaUse::Auto,
            peer: PeerUse::Auto,
            map_max: ByteSize(DEFAULT_MAP_MAX_BYTES),
        }
    }
}

/// How GPUs are used, besides their memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cuda {
    /// Whether the daemon runs CUDA's Multi-Process Service for its clients, or uses one that runs already.
    pub mps: bool,
}

/// Which part of the system gives the memory of a host pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostProvider {
    /// Sealed memfds, which need no driver.
    #[default]
    Memfd,
    /// dma-bufs from the kernel's `/dev/udmabuf`.
    Udmabuf,
    /// dma-bufs of the kernel module dmaplane.
    Dmaplane,
}

impl HostProvider {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            HostProvider::Memfd => "memfd",
            HostProvider::Udmabuf => "udmabuf",
            HostProvider::Dmaplane => "dmaplane",
        }
    }
}

/// Whether a host pool uses huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// No.
    #[default]
    Off,
    /// Yes if there are free ones, else ordinary pages and a warning.
    Try,
    /// Yes, or creating the segment fails.
    Require,
}

/// Whether GPUs are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CudaUse {
    /// If a driver answers.
    #[default]
    Auto,
    /// No; the driver is not even loaded.
    Off,
}

/// How messages in one GPU's memory reach subscribers on another GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerUse {
    /// In place or by a copy, depending on the size: see [`CudaPool::map_max`]. Always by a copy without peer access.
    #[default]
    Auto,
    /// By a copy, one for all readers on a GPU.
    Copy,
    /// In place. By a copy without peer access.
    Map,
}

/// Limits of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Client processes of a zone.
    pub clients: u32,
    /// Topics of a zone.
    pub topics: u32,
    /// Sessions that are open at once.
    pub connections: u32,
    /// Sessions of one user that are open at once.
    pub connections_per_user: u32,
    /// The most bytes of a pool that one publisher may lease. `None`: the pool's cap.
    pub lease_per_publisher: Option<ByteSize>,
    /// How long the publisher of a device topic waits for a subscriber that receives nothing before the daemon evicts the
    /// subscriber, in milliseconds. 0: without limit.
    pub device_stall_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            clients: MAX_CLIENTS as u32,
            topics: MAX_TOPICS as u32,
            connections: 2 * MAX_CLIENTS as u32,
            connections_per_user: MAX_CLIENTS as u32,
            lease_per_publisher: None,
            device_stall_ms: 30_000,
        }
    }
}

/// Which users may publish and subscribe to some topics. Topics of different rules share no memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessRule {
    /// Its name.
    pub name: String,
    /// Patterns of topic names: `camera/*`, `robot/**`.
    pub topics: Vec<String>,
    /// Users that may subscribe; with `groups` empty too, everyone.
    #[serde(default)]
    pub users: Vec<Principal>,
    /// Groups that may subscribe.
    #[serde(default)]
    pub groups: Vec<Principal>,
    /// Users that may publish; with `publish_groups` empty too, those that may subscribe.
    #[serde(default)]
    pub publish_users: Vec<Principal>,
    /// Groups that may publish.
    #[serde(default)]
    pub publish_groups: Vec<Principal>,
}

/// A user or group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a user or group is a name (\"alice\") or a number (1000)"
)]
pub enum Principal {
    /// By number.
    Id(u32),
    /// By name.
    Name(String),
}

/// Permissions of a file, written in octal as a string: "0660".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:04o}", self.0))
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "permissions are written in octal as a string, such as \"0660\"";
        // Only as a string: the number 660 would be the mode 0o1224.
        let text = String::deserialize(deserializer).map_err(|_| de::Error::custom(EXPECTED))?;
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(FileMode(mode)),
            _ => Err(de::Error::custom(EXPECTED)),
        }
    }
}

/// Longest pause of a client between two attempts to find a daemon.
pub const RECONNECT_PAUSE_MAX_MS: u64 = 1000;
/// A new daemon waits at least this long for its predecessor's clients. Until then each of them has connected, and has had half
/// a second to hand back its memory.
pub const RECOVERY_MS_MIN: u64 = RECONNECT_PAUSE_MAX_MS + 500;

impl Config {
    /// How long a daemon without clients stays; `None`: for ever.
    pub fn idle_exit(&self) -> Option<Duration> {
        (self.idle_exit_ms != 0).then(|| Duration::from_millis(self.idle_exit_ms))
    }

    /// The namespace and remapping by which a client resolves the names of topics.
    pub fn topic_names(&self) -> Result<TopicNames, String> {
        TopicNames::new(&self.namespace, &self.remap)
    }

    /// Checks all values. The error begins with the key.
    pub fn check(&self) -> Result<(), String> {
        check_realm(&self.realm)?;
        self.topic_names()?;
        check_pool("pool.host", self.pool.host.cap, self.pool.host.segment)?;
        self.pool.host.check()?;
        self.links.check()?;
        if self.pool.host.numa_node == Some(NumaChoice::Nic) && self.links.listen.is_none() {
            return Err(
                "pool.host.numa_node = \"nic\" means the network card with the address links.listen, which is not set; \
                 set it, or write the number of the node"
                    .to_owned(),
            );
        }
        self.gpu.check(self.links.has_tls())?;
        self.bridge.check()?;
        self.metrics.check()?;
        self.traces.check()?;
        check_pool("pool.cuda", self.pool.cuda.cap, self.pool.cuda.segment)?;
        if self.recovery_ms < RECOVERY_MS_MIN {
            return Err(format!(
                "recovery_ms = {}: it must be at least {RECOVERY_MS_MIN}, since clients look for \
                 a new daemon only every {RECONNECT_PAUSE_MAX_MS} ms",
                self.recovery_ms
            ));
        }
        let limits = &self.limits;
        for (key, value, most) in [
            ("clients", limits.clients, MAX_CLIENTS as u32),
            ("topics", limits.topics, MAX_TOPICS as u32),
            ("connections", limits.connections, u32::MAX),
            (
                "connections_per_user",
                limits.connections_per_user,
                u32::MAX,
            ),
        ] {
            if value == 0 || value > most {
                return Err(format!("limits.{key} = {value}: it must be 1 to {most}"));
            }
        }
        Ok(())
    }
}

impl HostPool {
    fn check(&self) -> Result<(), String> {
        if self.provider == HostProvider::Udmabuf && self.hugepages == HugePages::Require {
            return Err(format!(
                "pool.host.hugepages = \"require\": pool.host.provider = \"{}\" maps ordinary pages only; set the provider \
                 to \"memfd\", or huge pages to \"try\" or \"off\"",
                self.provider.name()
            ));
        }
        Ok(())
    }

    /// The cap in bytes, a multiple of the unit of segments: as configured, or half of the available memory.
    pub fn cap_bytes(&self) -> u64 {
        let wanted = self
            .cap
            .map_or_else(|| memory::available_bytes() / 2, |cap| cap.0);
        wanted.clamp(SEGMENT_UNIT_BYTES, MAX_POOL_BYTES) / SEGMENT_UNIT_BYTES * SEGMENT_UNIT_BYTES
    }

    /// Bytes of a segment, see [`segment_bytes`].
    pub fn segment_bytes(&self) -> u64 {
        segment_bytes(self.segment, self.cap_bytes())
    }
}

/// The size of a pool's segments in bytes: as configured, or larger if the table of segments could not hold a pool of this cap
/// otherwise.
pub fn segment_bytes(configured: ByteSize, cap_bytes: u64) -> u64 {
    let least = cap_bytes
        .div_ceil(MAX_SEGMENTS as u64)
        .next_multiple_of(SEGMENT_UNIT_BYTES);
    configured.0.next_multiple_of(SEGMENT_UNIT_BYTES).max(least)
}

fn check_realm(realm: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if realm.is_empty() || realm.len() > MAX_REALM_NAME || !realm.chars().all(plain) {
        return Err(format!(
            "realm = {realm:?}: the name of a realm has 1 to {MAX_REALM_NAME} letters, digits, \
             '_' or '-'"
        ));
    }
    Ok(())
}

fn check_pool(key: &str, cap: Option<ByteSize>, segment: ByteSize) -> Result<(), String> {
    if segment.0 == 0 || segment.0 % SEGMENT_UNIT_BYTES != 0 {
        return Err(format!(
            "{key}.segment = {segment}: it must be a multiple of 2MiB"
        ));
    }
    match cap {
        Some(cap) if cap.0 < SEGMENT_UNIT_BYTES || cap.0 > MAX_POOL_BYTES => Err(format!(
            "{key}.cap = {cap}: it must be 2MiB to {}",
            ByteSize(MAX_POOL_BYTES)
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod tests;
