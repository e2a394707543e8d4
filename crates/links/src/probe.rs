//! Why hosts that the configuration names are not there. Zenoh tries them for ever and says little; so what it
//! tries is tried here, too, now and then and only while hosts are missing, and what comes of it is told.

use crate::wire::clip;
use anyhow::Context;
use rgaps_client::NotReached;
use rgaps_session::MAX_NOT_REACHED;
use rgaps_transport::Tls;
use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zenoh::{Session, Wait};

/// Pause between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// How long one endpoint may take.
const LIMIT: Duration = Duration::from_secs(2);
/// Looks at which nobody was there before that is told of an endpoint that can be reached.
const ALONE: u32 = 3;
const STRANGE: &str = "it is reached, and nobody who speaks as this host does answers: do both have tls/, or both tcp/?";
/// Looks at endpoints until it is dropped.
pub struct Probe {
    board: Arc<Mutex<BTreeMap<String, String>>>,
    // Gone when this is dropped, which ends the thread in its next pause.
    _stop: Sender<()>,
}

impl Probe {
    /// Starts to look at the endpoints `connect`.
    pub fn start(session: Session, connect: &[String], tls: Option<Tls>) -> anyhow::Result<Probe> {
        let board = Arc::new(Mutex::new(BTreeMap::new()));
        let (stop, stopped) = channel::<()>();
        let (reported, endpoints) = (board.clone(), connect.to_vec());
        std::thread::Builder::new()
            .name("rgaps-probe".to_owned())
            .spawn(move || {
                let mut alone = 0;
                while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    let there = session.info().peers_zid().wait().count();
                    alone = if there == 0 { alone + 1 } else { 0 };
                    let mut found = match there < endpoints.len() {
                        true => look(&endpoints, tls.as_ref()),
                        false => BTreeMap::new(),
                    };
                    if alone >= ALONE {
                        for endpoint in &endpoints {
                            let why = found.entry(endpoint.clone());
                            why.or_insert_with(|| STRANGE.to_owned());
                        }
                    }
                    let mut board = reported.lock().unwrap_or_else(PoisonError::into_inner);
                    for (endpoint, why) in &found {
                        if board.get(endpoint) != Some(why) {
                            tracing::warn!(endpoint, "cannot reach a host: {why}");
                        }
                    }
                    *board = found;
                }
            })
            .context("creating a thread")?;
        Ok(Probe { board, _stop: stop })
    }

    /// The endpoints that are not reached, and why.
    pub fn not_reached(&self) -> Vec<NotReached> {
        let board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = board.iter().map(|(endpoint, why)| NotReached {
            endpoint: clip(endpoint),
            reason: clip(why),
        });
        rows.take(MAX_NOT_REACHED).collect()
    }
}

fn look(endpoints: &[String], tls: Option<&Tls>) -> BTreeMap<String, String> {
    let tried = endpoints.iter().filter_map(|endpoint| {
        let why = attempt(endpoint, tls).err()?;
        Some((endpoint.clone(), why))
    });
    tried.collect()
}

fn attempt(endpoint: &str, tls: Option<&Tls>) -> Result<(), String> {
    // As the configuration's check has it.
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
