//! The client processes of a zone. Each has a record in the registry, whose byte it locks as long as it lives.

use crate::random;
use crate::refuse::{bad, refuse, system};
use crate::registry::RegistryFile;
use crate::sessions::Session;
use crate::sessions::SessionId;
use crate::state_file::may_live;
use rgaps_layout::{device_owner, ClientRecord, MAX_CLIENTS, MAX_CLIENT_NAME, RECORD_LIVE};
use rgaps_session::{Refusal, RefusalCode, ZoneId, LINKS_CLIENT};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A client is dead when its lock was found free for this long: it may have got its record just before the last daemon
/// died, and be about to take the lock.
const LOCK_GRACE: Duration = Duration::from_millis(250);

/// `Client::session` of a client in quarantine: no session has this number.
pub(crate) const QUARANTINED: SessionId = SessionId(0);

/// A client process in a zone.
#[derive(Debug)]
pub(crate) struct Client {
    /// None: a predecessor's client that has not returned, or links that ended and left seats.
    pub(crate) session: Option<SessionId>,
    /// A random number, by which a client identifies itself when it returns.
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) name: String,
    /// When the daemon first found the client's lock on the registry free. None: the lock was held at the last look.
    pub(crate) unlocked_since: Option<Instant>,
    /// Whether the client may have seats in device topics.
    pub(crate) has_devices: bool,
    /// Set for links whose process has ended: until when their seats wait for the next links.
    pub(crate) vacant_until: Option<Instant>,
}

impl Client {
    /// The client of a session. `Clients::add` gives it its `id`.
    pub(crate) fn of(session: SessionId, of: &Session) -> Client {
        Client {
            session: Some(session),
            id: 0,
            pid: of.pid(),
            uid: of.uid(),
            gid: of.peer.credentials.gid,
            name: of.name.clone(),
            unlocked_since: None,
            has_devices: false,
            vacant_until: None,
        }
    }

    /// Whether it is a client of a predecessor that may still return.
    pub(crate) fn is_awaited(&self) -> bool {
        self.session.is_none() && self.vacant_until.is_none()
    }
}

/// The clients of a zone, by the index of their record.
#[derive(Default)]
pub(crate) struct Clients {
    all: BTreeMap<u32, Client>,
    /// Process numbers of a predecessor's clients, if they mean the same processes to this daemon; otherwise empty.
    saved_pids: BTreeSet<u32>,
}

impl Clients {
    /// The clients that a predecessor recorded. `saved_pids`: their process numbers, as far as these
    /// mean the same processes to this daemon.
    pub(crate) fn load(
        registry: &RegistryFile,
        saved_pids: BTreeSet<u32>,
    ) -> std::io::Result<Clients> {
        let mut all = BTreeMap::new();
        for index in 0..MAX_CLIENTS as u32 {
            let record = registry.client(index)?;
            if record.state == RECORD_LIVE {
                all.insert(index, client_of(&record));
            }
        }
        Ok(Clients { all, saved_pids })
    }

    /// Adds a client, gives it an `id` and writes its record. Returns its index. `most`: the limit of clients.
    pub(crate) fn add(
        &mut self,
        registry: &RegistryFile,
        most: u32,
        mut client: Client,
    ) -> Result<u32, Refusal> {
        let most = most.min(MAX_CLIENTS as u32);
        let index = (0..most).find(|index| !self.all.contains_key(index)).ok_or_else(|| {
            refuse(
                RefusalCode::LimitReached,
                format!("the limit of {most} client processes is reached; raise limits.clients in rgaps.toml, then run 'rgaps down'"),
            )
        })?;
        client.id = random::nonzero_u64();
        registry
            .set_client(index, &record_of(&client))
            .map_err(|e| system("write its registry", e))?;
        self.all.insert(index, client);
        Ok(index)
    }

    /// Forgets a client that has nothing left.
    pub(crate) fn remove(&mut self, registry: &RegistryFile, index: u32) {
        registry.clear_client(index);
        self.all.remove(&index);
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Client> {
        self.all.get(&index)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Client> {
        self.all.get_mut(&index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Client)> {
        self.all.iter().map(|(index, client)| (*index, client))
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A client's name and process, for messages to people.
    pub(crate) fn describe(&self, index: u32) -> String {
        match self.get(index) {
            Some(client) => format!("'{}' (process {})", client.name, client.pid),
            None => "a client".to_owned(),
        }
    }

    /// The client that has a seat of a device topic. `owner`: the number in the seat, made of `zone` and the client.
    pub(crate) fn owner_of_seat(&mut self, zone: ZoneId, owner: u64) -> Option<&mut Client> {
        let mut all = self.all.iter_mut();
        let found = all.find(|(index, client)| device_owner(zone, **index, client.id) == owner);
        found.map(|(_, client)| client)
    }

    pub(crate) fn is_links(&self, index: u32) -> bool {
        self.get(index)
            .is_some_and(|client| client.name == LINKS_CLIENT)
    }

    /// Whether clients are without a session: a predecessor's, or links that ended and left seats.
    pub(crate) fn have_absent(&self) -> bool {
        self.all.values().any(|client| client.session.is_none())
    }

    /// Process numbers of the predecessor's clients that may still return, as the predecessor recorded them.
    pub(crate) fn awaited(&self) -> BTreeSet<u32> {
        let awaited = self.all.values().filter(|client| client.is_awaited());
        awaited.map(|client| client.pid).collect()
    }

    /// Process numbers of the clients, from which a successor sees who lives; 0 for a client that this daemon knows only from
    /// a predecessor's registry.
    pub(crate) fn pids_to_save(&self) -> Vec<u32> {
        let all = self.all.values();
        // Links that ended have nothing to hand back; their seats are for the next ones.
        let all = all.filter(|client| client.vacant_until.is_none());
        let known =
            |client: &Client| client.session.is_some() || self.saved_pids.contains(&client.pid);
        all.map(|client| if known(client) { client.pid } else { 0 })
            .collect()
    }

    /// Whether links that a predecessor served may still return.
    pub(crate) fn await_links(&self) -> bool {
        let mut all = self.all.values();
        all.any(|client| client.is_awaited() && client.name == LINKS_CLIENT)
    }

    /// Whether any client of a predecessor may still return.
    pub(crate) fn are_awaited(&self) -> bool {
        self.all.values().any(Client::is_awaited)
    }

    /// Whether any dead client is in quarantine.
    pub(crate) fn have_quarantined(&self) -> bool {
        let mut all = self.all.values();
        all.any(|client| client.session == Some(QUARANTINED))
    }

    /// Clients that are links that ended and left seats.
    pub(crate) fn vacant(&self) -> Vec<u32> {
        let vacant = self.iter().filter(|(_, c)| c.vacant_until.is_some());
        vacant.map(|(index, _)| index).collect()
    }

    /// Vacant clients whose seats have been empty for too long.
    pub(crate) fn overdue_seats(&self, now: Instant) -> Vec<u32> {
        let overdue = |until: Instant| now >= until;
        let clients = self.iter();
        let clients = clients.filter(|(_, client)| client.vacant_until.is_some_and(overdue));
        clients.map(|(index, _)| index).collect()
    }

    /// Clients of a predecessor that have not returned and whose process has ended. The lock on the registry tells: it has been
    /// free for [`LOCK_GRACE`]. A child made with `clone` may still hold it, so a process number that has ended counts as a
    /// free lock.
    pub(crate) fn find_dead(&mut self, registry: &RegistryFile, now: Instant) -> Vec<u32> {
        let mut dead = Vec::new();
        let all = self.all.iter_mut();
        let absent = all.filter(|(_, client)| client.is_awaited());
        for (index, client) in absent {
            let has_ended = self.saved_pids.contains(&client.pid) && !may_live(client.pid);
            let locked = registry.is_locked(*index);
            match locked.map(|locked| locked && !has_ended) {
                Ok(false) => {
                    let since = *client.unlocked_since.get_or_insert(now);
                    if now >= since + LOCK_GRACE {
                        dead.push(*index);
                    }
                }
                Ok(true) => client.unlocked_since = None,
                Err(error) => tracing::error!(%error, "fcntl(F_OFD_GETLK) on a registry"),
            }
        }
        dead
    }

    /// Attaches a client of a predecessor's to its new session.
    pub(crate) fn attach(
        &mut self,
        index: u32,
        id: u64,
        uid: u32,
        pid: u32,
        session: SessionId,
    ) -> Result<(), Refusal> {
        let client = self
            .get_mut(index)
            .filter(|client| client.id == id)
            .ok_or_else(|| {
                refuse(
                    RefusalCode::ZoneLost,
                    "the daemon believed this client dead and cleaned up after it; restart the client",
                )
            })?;
        if client.uid != uid || client.session.is_some() {
            return Err(bad(
                "this number in the zone belongs to another client, or was claimed before",
            ));
        }
        client.session = Some(session);
        client.pid = pid;
        client.unlocked_since = None;
        Ok(())
    }
}

fn record_of(client: &Client) -> ClientRecord {
    let mut record = ClientRecord {
        state: RECORD_LIVE,
        pid: client.pid,
        uid: client.uid,
        gid: client.gid,
        client_id: client.id,
        name: [0; MAX_CLIENT_NAME + 1],
    };
    record.name[..client.name.len()].copy_from_slice(client.name.as_bytes());
    record
}

fn client_of(record: &ClientRecord) -> Client {
    let end = record
        .name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(record.name.len() - 1);
    let name: String = String::from_utf8_lossy(&record.name[..end])
        .chars()
        .filter(|c| !c.is_control() && *c != char::REPLACEMENT_CHARACTER)
        .collect();
    Client {
        session: None,
        id: record.client_id,
        pid: record.pid,
        uid: record.uid,
        gid: record.gid,
        name,
        unlocked_since: None,
        has_devices: false,
        vacant_until: None,
    }
}
