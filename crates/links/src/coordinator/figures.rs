//! Reports the figures of all links to the daemon.

use crate::peer::Peer;
use rgaps_client::links::LinksNode;
use rgaps_client::Node;
use std::time::{Duration, Instant};

/// How often the daemon is told.
const TELL: Duration = Duration::from_secs(1);

/// Tells the daemon of all links, now and then.
#[derive(Default)]
pub struct Teller {
    told: Option<Instant>,
}

impl Teller {
    /// If it is time.
    pub fn tell<'a>(&mut self, node: &Node, peers: impl Iterator<Item = &'a Peer>) {
        if self.told.is_some_and(|at| at.elapsed() < TELL) {
            return;
        }
        self.told = Some(Instant::now());
        for peer in peers {
            // It takes those of hosts only that it was told of.
            if let Err(error) = node.set_figures(peer.figures()) {
                tracing::debug!(%error, host = peer.node.host, "telling the daemon the figures of a link failed");
            }
        }
    }
}
