//! What `bench link` reports.

use crate::exchange::Wait;
use crate::machine::Machine;
use crate::summary::{Micros, Short};
use serde::Serialize;

/// A link beside its floor, bare TCP, and its stages alone.
#[derive(Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct LinkReport {
    pub transport: &'static str,
    pub domain: String,
    /// Where messages are read.
    pub to: String,
    pub size: u64,
    pub subscribers: usize,
    pub lanes: u32,
    pub topics: usize,
    pub tls: bool,
    pub wait: Wait,
    /// Whether the hosts were two network namespaces with a cable between them.
    pub namespaces: bool,
    /// Why the hosts were at loopback instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_namespaces: Option<String>,
    /// Messages that were timed one by one.
    pub messages: usize,
    /// From the publish call until the last subscriber of the first topic has the message.
    #[serde(flatten)]
    pub latency: Micros,
    /// From the publish call until a subscriber has the message, over all subscribers of the first topic.
    pub each: Short,
    /// Median latency in the rounds that are not counted. Their messages use memory of both hosts for the first time,
    /// so the kernel must provide its pages, and the GPU's driver must register them.
    pub fresh_us: f64,
    /// Median of the floor: the same hops, wake-ups and copies without rgaps.
    pub floor_us: f64,
    pub floor: Short,
    /// The median latency divided by the floor's.
    pub of_floor: f64,
    /// Median rate of the bursts on all topics.
    pub gbit_s: f64,
    pub messages_per_s: f64,
    /// Messages of a burst on each topic.
    pub burst: u64,
    pub raw_tcp_gbit_s: f64,
    pub of_raw_tcp: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_tls_gbit_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_raw_tls: Option<f64>,
    pub raw_tcp_half_rtt_us: f64,
    pub stages: Stages,
    /// The median latency divided by the time of the slowest stage.
    pub of_slowest_stage: f64,
    /// Bytes that the publishing host sent during the bursts.
    pub wire_bytes: u64,
    pub payload_bytes: u64,
    pub wire_of_payload: f64,
    pub cpu: Cpu,
    pub lost: u64,
    pub duplicate: u64,
    pub corrupt: u64,
    pub machine: Machine,
}

/// Each stage measured alone, in the same run: medians in microseconds.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Stages {
    /// One loan.
    pub alloc_us: f64,
    /// A bare copy from the GPU into pinned memory; 0 if messages are published on the host.
    pub d2h_us: f64,
    /// One message through as many bare TCP connections as the link has lanes.
    pub wire_us: f64,
    /// A bare copy from pinned memory to the GPU; 0 if messages are read on the host.
    pub h2d_us: f64,
    /// A message of 64 bytes to as many subscribers on the publisher's own host.
    pub notify_us: f64,
}

impl Stages {
    pub fn slowest_us(&self) -> f64 {
        let all = [
            self.alloc_us,
            self.d2h_us,
            self.wire_us,
            self.h2d_us,
            self.notify_us,
        ];
        all.into_iter().fold(0.0, f64::max)
    }
}

/// CPU seconds per gigabyte (10⁹ bytes) of payload in bursts, including the time that threads spin.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Cpu {
    pub daemons_s_per_gb: f64,
    pub sending_links_s_per_gb: f64,
    pub landing_links_s_per_gb: f64,
}
