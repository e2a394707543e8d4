//! What links and their lanes are made with.

use crate::host_link::RetainLimits;
use anyhow::Context;
use rgaps_client::links::{Links, LinksTls, Rdma};
use rgaps_transport::{LinkConfig, RdmaMode, Security, Tls, TlsFiles};
use std::time::Duration;

/// How lanes are secured: as the control plane, where that has certificates.
pub(super) fn security(links: &Links, host: &str) -> anyhow::Result<Security> {
    let LinksTls {
        ca,
        certificate,
        key,
    } = &links.tls;
    let (Some(ca), Some(certificate), Some(key)) = (ca, certificate, key) else {
        return Ok(match links.insecure {
            true => Security::Insecure,
            false => Security::Loopback,
        });
    };
    let read =
        |path: &std::path::Path| std::fs::read(path).with_context(|| path.display().to_string());
    let files = TlsFiles {
        roots: read(ca)?,
        chain: read(certificate)?,
        key: read(key)?,
    };
    let tls = Tls::new(&files).context("links.tls")?;
    if !tls.is_for(host) {
        anyhow::bail!(
            "links.tls.certificate: {} does not name '{host}', as this host is called: have one made whose \
             subject alternative names have DNS:{host} (see Certificates on the page 'Links between hosts' of the documentation), or set links.host",
            certificate.display()
        );
    }
    Ok(Security::Tls(tls))
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
