//! Tracks which other hosts are present, by their tokens on the control plane.

use crate::control_plane::{ControlPlane, PlaneListener};
use crate::keys::{HostLife, HostToken};
use crate::probe::Probe;
use rgaps_client::links::MAX_REMOTE_HOSTS;
use rgaps_client::Config;
use rgaps_connection::Tls;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Least time between two reopenings of the control plane.
const REOPEN_PAUSE: Duration = Duration::from_secs(60);
const MAX_LIVES: usize = 4 * MAX_REMOTE_HOSTS;

pub(super) struct Presence {
    pub(super) plane: ControlPlane,
    pub(super) probe: Probe,
    /// The tokens that are present, in the order in which they appeared. A dead life's token may stay for a while beside its successor's.
    lives: Vec<HostToken>,
    /// When the control plane was last reopened. None: never.
    reopened: Option<Instant>,
}

impl Presence {
    /// Joins the realm's control plane. `lanes`: where this host accepts lanes.
    pub(super) fn join(
        config: &Config,
        own: &HostLife,
        (lanes, tls): (Vec<SocketAddr>, Option<Tls>),
        listener: PlaneListener,
    ) -> anyhow::Result<Presence> {
        let (realm, links) = (&config.realm, &config.links);
        let plane = ControlPlane::join(realm, links, own.clone(), lanes, listener)?;
        let probe = Probe::start(plane.session.clone(), realm, &links.connect, tls)?;
        Ok(Presence {
            plane,
            probe,
            lives: Vec::new(),
            reopened: None,
        })
    }

    pub(super) fn appeared(&mut self, token: &HostToken) {
        self.lives.retain(|life| life.node != token.node);
        if self.lives.len() < MAX_LIVES {
            self.lives.push(token.clone());
        }
    }

    /// Removes a life that left. Returns the newest other life of the host, which may have appeared before this one left.
    pub(super) fn left(&mut self, node: &HostLife) -> Option<HostToken> {
        self.lives.retain(|life| life.node != *node);
        let mut lives = self.lives.iter();
        lives.rfind(|life| life.node.host == node.host).cloned()
    }

    /// Forgets all lives, and returns them.
    pub(super) fn take_all(&mut self) -> Vec<HostToken> {
        std::mem::take(&mut self.lives)
    }

    pub(super) fn has(&self, node: &HostLife) -> bool {
        self.lives.iter().any(|life| life.node == *node)
    }

    /// Call when a host with a token has not answered for the time `since`: reopens the control plane, in case the fault is there, unless
    /// it did so less than [`REOPEN_PAUSE`] ago.
    pub(super) fn unanswered(&mut self, host: &str, since: Duration) {
        let pauses = |at: Instant| at.elapsed() < REOPEN_PAUSE;
        if self.reopened.is_some_and(pauses) {
            return;
        }
        tracing::warn!(
            host,
            "a host that is there did not answer for {} s; the control plane is opened anew",
            since.as_secs()
        );
        self.reopened = Some(Instant::now());
        match self.plane.reopen() {
            Ok(()) => self.probe.set_session(self.plane.session.clone()),
            Err(error) => tracing::error!("{error:#}"),
        }
    }
}
