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

/// Links that run on a thread until they are dropped.
pub struct Links {
    stop: Arc<AtomicBool>,
    runs: Option<JoinHandle<()>>,
}

impl Links {
    /// Starts the links of a host, with these network cards. The links get only the control plane's events that `hears` accepts.
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

/// Starts two hosts that know each other, without links. The first one will open the lanes.
pub fn hosts_without_links(more: &str) -> [Host; 2] {
    let hosts = hosts_started(2, more, Host::start_whole).try_into();
    hosts.ok().expect("there are two")
}
