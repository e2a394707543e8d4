//! Sessions of clients, their limits, and which one ends to make room for another user.

use crate::refuse::{bad, refuse};
use rgaps_mps::MpsIdentity;
use rgaps_session::{Credentials, Limits, Refusal, RefusalCode, ZoneId, LINKS_CLIENT};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long a client may take to send hello.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Most sessions over the limits that are kept until their hello, which is refused.
const MAX_TURNED_AWAY: usize = 64;
/// How many sessions are kept for root and the daemon's own user.
const RESERVED_SESSIONS: usize = 64;
/// At most one in so many of all sessions is kept for them.
const OWNERS_SHARE: usize = 8;

/// The number of a session, from 1 on. No number is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// Who a session's client is, as the kernel reports it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Process, user and group.
    pub credentials: Credentials,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Whether [`Engine::process_ended`](crate::Engine::process_ended) will report the end of its process.
    pub process_is_watched: bool,
}

/// Whether a user owns the realm: root and the daemon's own user do.
pub(crate) fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// A client's session.
pub(crate) struct Session {
    pub(crate) peer: Peer,
    pub(crate) name: String,
    /// Whether its hello was accepted.
    pub(crate) welcomed: bool,
    /// By zone: the client's index there.
    pub(crate) zones: BTreeMap<ZoneId, u32>,
    /// Pools whose segments it has fetched or was sent.
    pub(crate) pools: BTreeSet<(ZoneId, u32)>,
    pub(crate) mps: MpsIdentity,
    /// Whether its socket is closed while its process lives, and may still read what it holds.
    pub(crate) detached: bool,
    /// The answer to its hello, if too many sessions were open when it connected.
    refused: Option<Refusal>,
    /// Until when its hello is due.
    deadline: Instant,
}

impl Session {
    fn new(peer: Peer, refused: Option<Refusal>, deadline: Instant) -> Session {
        Session {
            peer,
            name: String::new(),
            welcomed: false,
            zones: BTreeMap::new(),
            pools: BTreeSet::new(),
            mps: MpsIdentity::default(),
            detached: false,
            refused,
            deadline,
        }
    }

    pub(crate) fn uid(&self) -> u32 {
        self.peer.credentials.uid
    }

    /// The number of its process; 0 if unknown.
    pub(crate) fn pid(&self) -> u32 {
        self.peer.credentials.pid.unwrap_or(0)
    }

    /// Refuses if too many sessions were open when it connected.
    pub(crate) fn check_admitted(&self) -> Result<(), Refusal> {
        self.refused.clone().map_or(Ok(()), Err)
    }

    /// Whether it is the session of the links' process. `check_links` gives that name to no other client.
    pub(crate) fn is_links(&self) -> bool {
        self.welcomed && self.name == LINKS_CLIENT
    }
}

/// All sessions.
pub(crate) struct Sessions {
    all: HashMap<SessionId, Session>,
    next: u64,
    limits: Limits,
}

impl Sessions {
    pub(crate) fn new(limits: &Limits) -> Sessions {
        Sessions {
            all: HashMap::new(),
            next: 1,
            limits: limits.clone(),
        }
    }

    /// Opens a session. None: there are far too many, and the caller closes the connection without an answer.
    pub(crate) fn open(&mut self, peer: Peer, now: Instant) -> Option<SessionId> {
        let refused = self.over_limit(peer.credentials.uid);
        let waiting = self.all.values().filter(|s| s.refused.is_some()).count();
        if refused.is_some() && waiting >= MAX_TURNED_AWAY {
            return None;
        }
        let id = SessionId(self.next);
        self.next += 1;
        let session = Session::new(peer, refused, now + HANDSHAKE);
        self.all.insert(id, session);
        Some(id)
    }

    pub(crate) fn close(&mut self, session: SessionId) -> Option<Session> {
        self.all.remove(&session)
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<&Session> {
        self.all.get(&session)
    }

    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut Session> {
        self.all.get_mut(&session)
    }

    /// A session; a refusal if it has ended.
    pub(crate) fn require(&mut self, session: SessionId) -> Result<&mut Session, Refusal> {
        self.get_mut(session)
            .ok_or_else(|| bad("the session has ended"))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter().map(|(id, session)| (*id, session))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn is_links(&self, session: SessionId) -> bool {
        self.get(session).is_some_and(Session::is_links)
    }

    /// Whether the links' process has a session.
    pub(crate) fn have_links(&self) -> bool {
        self.all.values().any(Session::is_links)
    }

    /// Sessions whose hello is overdue.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<SessionId> {
        let late = self.iter();
        let late = late.filter(|(_, s)| !s.welcomed && now >= s.deadline);
        late.map(|(id, _)| id).collect()
    }

    /// When the next hello becomes overdue.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.all.values().filter(|s| !s.welcomed);
        waiting.map(|s| s.deadline).min()
    }

    /// Why one more session of this user is over a limit, if it is.
    fn over_limit(&self, uid: u32) -> Option<Refusal> {
        let limits = &self.limits;
        let (all, of_user) = (self.admitted().count(), self.admitted_of(uid));
        let (count, key) = if all >= self.room_for(uid) {
            (limits.connections, "connections")
        } else if of_user >= limits.connections_per_user as usize {
            (limits.connections_per_user, "connections_per_user")
        } else {
            return None;
        };
        let message = format!(
            "the limit of {count} open sessions is reached; close some, or raise limits.{key} in rgaps.toml, then run 'rgaps down'"
        );
        Some(refuse(RefusalCode::LimitReached, message))
    }

    fn admitted(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.iter().filter(|(_, s)| s.refused.is_none())
    }

    fn admitted_of(&self, uid: u32) -> usize {
        self.admitted().filter(|(_, s)| s.uid() == uid).count()
    }

    /// The limit of sessions for this user. The last ones are for root and the daemon's user, who must be able to query and to
    /// stop the daemon.
    fn room_for(&self, uid: u32) -> usize {
        let all = self.limits.connections as usize;
        match is_owner(uid) {
            true => all,
            false => all - (all / OWNERS_SHARE).min(RESERVED_SESSIONS),
        }
    }

    /// The session to end so that user `uid` gets one, if all are taken: of the user with the most sessions, the newest session
    /// without a zone. None if that user would then have fewer than `uid`.
    pub(crate) fn makes_room(&self, uid: u32) -> Option<SessionId> {
        if self.admitted().count() < self.room_for(uid) {
            return None;
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for (_, session) in self.admitted() {
            *counts.entry(session.uid()).or_default() += 1;
        }
        let own = counts.get(&uid).copied().unwrap_or_default();
        let (most, count) = counts
            .into_iter()
            .max_by_key(|(uid, count)| (*count, *uid))?;
        if count <= own + 1 {
            return None;
        }
        let of_most = self.admitted().filter(|(_, s)| s.uid() == most);
        of_most
            .filter(|(_, s)| s.zones.is_empty())
            .map(|(id, _)| id)
            .max()
    }
}
