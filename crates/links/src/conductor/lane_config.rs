//! What links and their lanes are made with.

use crate::host_link::RetainLimits;
use rgaps_client::links::{Links, Rdma};
use rgaps_transport::{LinkConfig, RdmaMode, Security, TlsPaths};
use std::time::Duration;

/// How lanes are secured: as the control plane, where that has certificates.
pub(super) fn security(links: &Links, host: &str) -> anyhow::Result<Security> {
    let paths = links.tls.paths().map(|[ca, certificate, key]| TlsPaths {
        ca,
        certificate,
        key,
    });
    Ok(Security::of(paths, links.insecure, host)?)
}

pub(super) fn link_config(links: &Links) -> LinkConfig {
    let mut config = LinkConfig {
        lanes: links.lanes as usize,
        spin: links.spin(),
        rdma: match links.rdma {
            Rdma::Off => RdmaMode::No,
            Rdma::Auto => RdmaMode::Prefer,
            Rdma::Only => RdmaMode::Require,
        },
        ..LinkConfig::default()
    };
    config.beat_ms = (links.lease_ms / 4).clamp(50, 1000);
    config.quiet_ms = (links.lease_ms * 3 / 2).max(300);
    config
}

pub(super) fn retain_limits(links: &Links) -> RetainLimits {
    RetainLimits {
        in_flight_max: links.in_flight_max.0,
        outage_max: links.outage_max.0,
        outage: Duration::from_millis(links.outage_ms),
    }
}
