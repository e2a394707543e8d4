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
    /// Two network namespaces with a cable between them; or why it was at loopback.
    pub namespaces: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_namespaces: Option<String>,
    /// Timed one by one.
    pub messages: usize,
    /// From the publish call until the last of the first topic's subscribers has the message.
    #[serde(flatten)]
    pub latency: Micros,
    /// Until each of them has.
    pub each: Short,
    /// The median of the messages before those, whose memory is used for the first time on both hosts: the kernel
    /// provides its pages, and the GPU's driver gets to know them.
    pub fresh_us: f64,
    /// The same hops, wake-ups and copies without rgaps.
    pub floor_us: f64,
    pub floor: Short,
    pub of_floor: f64,
    /// Of bursts on all topics, the middle one.
    pub gbit_s: f64,
    pub messages_per_s: f64,
    /// Messages of a burst, on each topic.
    pub burst: u64,
    pub raw_tcp_gbit_s: f64,
    pub of_raw_tcp: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_tls_gbit_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_raw_tls: Option<f64>,
    pub raw_tcp_half_rtt_us: f64,
    /// Each stage alone.
    pub stages: Stages,
    /// The median latency by the slowest of them.
    pub of_slowest_stage: f64,
    /// Of bursts.
    pub wire_bytes: u64,
    pub payload_bytes: u64,
    pub wire_of_payload: f64,
    pub cpu: Cpu,
    pub lost: u64,
    pub duplicate: u64,
    pub corrupt: u64,
    pub machine: Machine,
}

/// Medians in microseconds, each measured without the others in the same run.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Stages {
    /// A loan.
    pub alloc_us: f64,
    /// A bare copy from the GPU into pinned memory, and back; 0 on the host.
    pub d2h_us: f64,
    /// One message through as many bare connections.
    pub wire_us: f64,
    pub h2d_us: f64,
    /// A message of 64 bytes to as many subscribers of the same host.
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

/// Seconds of processors for each billion bytes of bursts, with what bursts wait for.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Cpu {
    pub daemons_s_per_gb: f64,
    pub sending_links_s_per_gb: f64,
    pub landing_links_s_per_gb: f64,
}
