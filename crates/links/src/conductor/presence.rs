//! Which other hosts are there, as the control plane says.

use crate::control_plane::{ControlPlane, PlaneListener};
use crate::keys::{HostLife, Token};
use crate::probe::Probe;
use rgaps_client::links::MAX_REMOTE_HOSTS;
use rgaps_client::Config;
use rgaps_connection::Tls;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The control plane is opened anew at most so often.
const REOPEN_PAUSE: Duration = Duration::from_secs(60);
const MAX_LIVES: usize = 4 * MAX_REMOTE_HOSTS;

pub(super) struct Presence {
    pub(super) plane: ControlPlane,
    pub(super) probe: Probe,
    /// Lives of other hosts' links whose tokens are there, the last one last. A dead one may be known for a while beside the next.
    lives: Vec<Token>,
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

    pub(super) fn appeared(&mut self, token: &Token) {
        self.lives.retain(|life| life.node != token.node);
        if self.lives.len() < MAX_LIVES {
            self.lives.push(token.clone());
        }
    }

    /// Removes a life that is gone. Returns another life of the same host, if there is one: it may have appeared before this one left.
    pub(super) fn left(&mut self, node: &HostLife) -> Option<Token> {
        self.lives.retain(|life| life.node != *node);
        let mut lives = self.lives.iter();
        lives.rfind(|life| life.node.host == node.host).cloned()
    }

    /// Forgets all lives, and returns them.
    pub(super) fn take_all(&mut self) -> Vec<Token> {
        std::mem::take(&mut self.lives)
    }

    pub(super) fn has(&self, node: &HostLife) -> bool {
        self.lives.iter().any(|life| life.node == *node)
    }

    /// A host that is there has not answered for so long: perhaps the fault is the control plane's. It is opened anew, if it was not just now.
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
