//! Links within the test's process.
#![allow(dead_code)]

use crate::support::{hosts_started, until, Host};
use rgaps::{Node, PathKind};
use rgaps_links::control_plane::PlaneEvent;
use rgaps_links::LinksConductor;
use rgaps_transport::Rdma;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Run until they are dropped.
pub struct Links {
    stop: Arc<AtomicBool>,
    runs: Option<JoinHandle<()>>,
}

impl Links {
    /// A host's, with these network cards; of what the control plane tells they hear what `hears` lets through.
    pub fn start(
        host: &Host,
        rdma: Option<Rdma>,
        hears: impl Fn(&PlaneEvent) -> bool + Send + Sync + 'static,
    ) -> Links {
        let stop = Arc::new(AtomicBool::new(false));
        let (config, stopped) = (host.config(), stop.clone());
        let runs = std::thread::spawn(move || {
            let rdma = rdma.ok_or_else(String::new);
            let links = LinksConductor::start_over(config, rdma, hears).unwrap();
            links.run(&stopped).unwrap();
        });
        Links {
            stop,
            runs: Some(runs),
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.runs.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// Waits until all lanes to another host are RDMA lanes.
pub fn wait_for_rdma(node: &Node) {
    until("the lanes to be RDMA lanes", || {
        let peers = node.peers().unwrap_or_default().peers;
        peers.iter().any(|peer| peer.path == PathKind::Rdma)
    });
}

/// Two hosts without links, that know of each other; the first one opens the lanes.
pub fn hosts_without_links(more: &str) -> [Host; 2] {
    let hosts = hosts_started(2, more, Host::start_whole).try_into();
    hosts.ok().expect("there are two")
}
