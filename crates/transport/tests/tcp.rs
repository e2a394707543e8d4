//! Runs the scenarios for all kinds of lanes over plain TCP on loopback.
#![forbid(unsafe_code)]
#[allow(dead_code, reason = "every test program uses a part of it")]
mod lanes {
    pub mod finish;
    pub mod hosts;
    pub mod scenarios;
}
use lanes::hosts::{endpoint, Host, Link};
use lanes::scenarios::{conformance, Over};
use rgaps_transport::{Endpoint, LaneKind, LaneStatus};
use std::sync::Arc;

/// Plain TCP.
struct Tcp;

impl Over for Tcp {
    fn endpoint(&self, incarnation: u64) -> Endpoint {
        endpoint(incarnation)
    }

    fn host(&self, _endpoint: &Endpoint) -> Arc<Host> {
        Host::new()
    }

    fn check(&self, link: &Link) {
        let status = link.status();
        let tcp = |lane: &LaneStatus| lane.kind == LaneKind::Tcp && lane.why_not.is_none();
        assert!(status.lanes.iter().all(tcp), "{:?}", status.lanes);
    }
}

conformance!(Tcp);
