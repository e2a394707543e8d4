//! The end of sessions and of processes.

use super::Engine;
use crate::sessions::SessionId;
use rgaps_session::ZoneId;
use std::collections::BTreeMap;

impl Engine {
    /// Handles the end of a session's socket, which either side closed. `ended`: the client's process has ended, too.
    ///
    /// What the client holds stays as long as its process lives: the process may still read the bytes, or
    /// have forked a child that does. If the daemon cannot watch the process, the end of the socket counts as its end.
    pub fn hang_up(&mut self, session: SessionId, ended: bool) {
        let Some(known) = self.sessions.get_mut(session) else {
            return;
        };
        let holdings = known.zones.iter().any(|(zone, client)| {
            self.zones
                .get(*zone)
                .is_some_and(|z| z.has_holdings(*client))
        });
        if holdings && known.peer.process_is_watched && !ended {
            known.detached = true;
            tracing::info!(
                client = known.name,
                pid = known.peer.credentials.pid,
                "a client closed its session without leaving; the memory that it holds stays until its process ends"
            );
            return;
        }
        self.end_session(session);
    }

    /// Ends a session whose process has ended, so that the process neither reads nor writes shared memory any more.
    pub fn process_ended(&mut self, session: SessionId) {
        self.end_session(session);
    }

    fn end_session(&mut self, session: SessionId) {
        let held = self.quarantine_session(session);
        let Some(ended) = self.sessions.close(session) else {
            return;
        };
        self.links.forget(session);
        if !held {
            self.clean_up_after(&ended.name, ended.pid(), &ended.zones);
        }
        self.maintain_soon();
        self.note_idleness();
    }

    /// Takes back everything that a dead client held, in all its zones. `zones`: its index in each.
    pub(super) fn clean_up_after(&mut self, name: &str, pid: u32, zones: &BTreeMap<ZoneId, u32>) {
        let (mut died, mut freed) = (false, 0);
        self.maintenance.sweep_soon(self.now);
        for (zone, client) in zones {
            let Some(zone) = self.zones.get_mut(*zone) else {
                continue;
            };
            died |= zone.has_holdings(*client);
            freed += zone.reap_client(*client, self.now);
        }
        self.save_departed();
        if died {
            self.counters.clients_reaped += 1;
            self.counters.blocks_reclaimed += freed;
            tracing::info!(
                client = name,
                pid,
                blocks = freed,
                "cleaned up after a client"
            );
        }
    }

    /// Whether the session goes on without its socket, since the client's process lives.
    pub fn is_detached(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(|s| s.detached)
    }
}
