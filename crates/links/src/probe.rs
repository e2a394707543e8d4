//! Finds out why endpoints of `links.connect` are not reached. Zenoh dials them without end and reports little. So while hosts are
//! missing, the probe dials each endpoint itself now and then, and asks the hosts that answer for their realms.

use crate::keys::realm_and_host;
use crate::lock;
use crate::wire::clip;
use anyhow::Context;
use rgaps_client::NotReached;
use rgaps_connection::Tls;
use rgaps_session::MAX_NOT_REACHED;
use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zenoh::{Session, Wait};

const LOOK: Duration = Duration::from_secs(2);
/// How long one endpoint, or the question for realms, may take.
const LIMIT: Duration = Duration::from_secs(2);
/// An endpoint that accepts connections while Zenoh has no host is reported after so many looks in a row: Zenoh needs a moment after
/// a cable is back.
const REACHED: u32 = 3;
const STRANGE: &str = "it is reached, and nobody who speaks as this host does answers: do both have tls/, or both tcp/?";

/// Dials endpoints on a thread of its own until it is dropped.
pub struct Probe {
    shared: Arc<Shared>,
    // Dropping this ends the thread in its next pause.
    _stop: Sender<()>,
}

struct Shared {
    session: Mutex<Session>,
    /// Whether this host knows another host of its realm.
    knows_hosts: AtomicBool,
    /// The endpoints that are not reached, and why.
    board: Mutex<BTreeMap<String, String>>,
}

impl Probe {
    pub fn start(
        session: Session,
        realm: &str,
        connect: &[String],
        tls: Option<Tls>,
    ) -> anyhow::Result<Probe> {
        let shared = Arc::new(Shared {
            session: Mutex::new(session),
            knows_hosts: AtomicBool::new(false),
            board: Mutex::default(),
        });
        let (stop, stopped) = channel::<()>();
        let mut prober = Prober {
            shared: shared.clone(),
            realm: realm.to_owned(),
            endpoints: connect.iter().map(|of| (of.clone(), 0)).collect(),
            tls,
        };
        std::thread::Builder::new()
            .name("rgaps-probe".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    let found = prober.look();
                    let mut board = lock(&prober.shared.board);
                    for (endpoint, why) in &found {
                        if board.get(endpoint) != Some(why) {
                            tracing::warn!(endpoint, "cannot reach a host: {why}");
                        }
                    }
                    *board = found;
                }
            })
            .context("creating a thread")?;
        Ok(Probe {
            shared,
            _stop: stop,
        })
    }

    /// Tells the probe whether this host knows another host of its realm.
    pub fn set_knows_hosts(&self, knows_hosts: bool) {
        self.shared
            .knows_hosts
            .store(knows_hosts, Ordering::Relaxed);
    }

    pub fn set_session(&self, session: Session) {
        *lock(&self.shared.session) = session;
    }

    /// The endpoints that are not reached, and why.
    pub fn not_reached(&self) -> Vec<NotReached> {
        let board = lock(&self.shared.board);
        let rows = board.iter().map(|(endpoint, why)| NotReached {
            endpoint: clip(endpoint),
            reason: clip(why),
        });
        rows.take(MAX_NOT_REACHED).collect()
    }
}

struct Prober {
    shared: Arc<Shared>,
    realm: String,
    /// Each endpoint, with the number of looks in a row that reached it while Zenoh had no host.
    endpoints: Vec<(String, u32)>,
    tls: Option<Tls>,
}

impl Prober {
    /// The endpoints that lead to no host of the realm, and why.
    fn look(&mut self) -> BTreeMap<String, String> {
        let before = self.hosts();
        let mut found = match before < self.endpoints.len() {
            true => self.dial(),
            false => BTreeMap::new(),
        };
        if self.hosts() != before {
            // A host connected or left meanwhile, so these findings may be wrong; the next look decides.
            return BTreeMap::new();
        }
        for (endpoint, reached) in &mut self.endpoints {
            let is_reached = before == 0 && !found.contains_key(endpoint);
            *reached = if is_reached { *reached + 1 } else { 0 };
            if *reached >= REACHED {
                found.insert(endpoint.clone(), STRANGE.to_owned());
            }
        }
        if before > 0 && !self.shared.knows_hosts.load(Ordering::Relaxed) {
            if let Some(why) = self.other_realm() {
                for (endpoint, _) in &self.endpoints {
                    found.entry(endpoint.clone()).or_insert_with(|| why.clone());
                }
            }
        }
        found
    }

    /// How many hosts Zenoh is connected with, of any realm.
    fn hosts(&self) -> usize {
        let session = lock(&self.shared.session).clone();
        session.info().peers_zid().wait().count()
    }

    /// The endpoints that accept no connection, and why.
    fn dial(&self) -> BTreeMap<String, String> {
        let tried = self.endpoints.iter().filter_map(|(endpoint, _)| {
            let why = attempt(endpoint, self.tls.as_ref()).err()?;
            Some((endpoint.clone(), why))
        });
        tried.collect()
    }

    /// Asks for hosts of other realms. Returns the reason to report if one answers.
    fn other_realm(&self) -> Option<String> {
        let session = lock(&self.shared.session).clone();
        let tokens = session.liveliness().get("rgaps/*/node/**");
        let replies = tokens.timeout(LIMIT).wait().ok()?;
        let (realm, host) = replies.iter().find_map(|reply| {
            let sample = reply.into_result().ok()?;
            let (realm, host) = realm_and_host(sample.key_expr().as_str())?;
            (realm != self.realm).then(|| (realm.to_owned(), host))
        })?;
        Some(format!(
            "host '{host}' is of realm '{realm}', and this host of realm '{}': set the same realm on both hosts",
            self.realm
        ))
    }
}

fn attempt(endpoint: &str, tls: Option<&Tls>) -> Result<(), String> {
    // The configuration's check accepts only this form.
    let (protocol, address) = endpoint.split_once('/').ok_or("it is no endpoint")?;
    let (host, _) = address.rsplit_once(':').ok_or("it names no port")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let resolved = address.to_socket_addrs();
    let mut resolved = resolved.map_err(|error| format!("its name is not known: {error}"))?;
    let address = resolved.next().ok_or("its name has no address")?;
    match (protocol, tls) {
        ("tls", Some(tls)) => tls.probe(address, host, LIMIT),
        _ => match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = format!("tcp/{}", held.local_addr().unwrap());
        attempt(&there, None).unwrap();
        drop(held);
        let why = attempt(&there, None).unwrap_err();
        assert!(why.contains("refused"), "{why}");
    }
}
