//! Lanes over TCP on loopback do what every kind has to.
#![forbid(unsafe_code)]
mod lanes {
    pub mod finish;
    pub mod hosts;
    pub mod scenarios;
}
use lanes::hosts::{endpoint, Host};
use lanes::scenarios::{conformance, Over};
use rgaps_transport::{Endpoint, LaneKind, LaneStatus, Link};
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
