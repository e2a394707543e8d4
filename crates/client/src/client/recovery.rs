//! Hands back this process's zones, segments and members to a new daemon, which did not create them.

use super::session::{CallError, Session};
use super::worker::Worker;
use super::zone_records::ZoneBook;
use rgaps_session::{Answer, Member, Range, Request, MAX_PACKET_FDS, MAX_RANGES};
use std::os::fd::AsFd;

impl Worker {
    /// Hands back all zones that are not lost, and marks their pools as stale. A zone that the daemon refuses is lost from then on;
    /// only the end of the session is an error.
    pub(super) fn hand_back(&mut self, session: &mut Session) -> Result<(), CallError> {
        for (id, book) in &self.zones {
            if book.view.lost().is_some() {
                continue;
            }
            match hand_back_zone(session, book) {
                Ok(()) => self
                    .stale_pools
                    .extend(book.pools.keys().map(|pool| (*id, *pool))),
                Err(CallError::Refused(refusal)) => {
                    tracing::warn!(reason = refusal.message, "the new daemon could not take over the memory of some topics; they are lost");
                    book.view.set_lost(&refusal.message);
                }
                Err(CallError::Unsendable(error)) => book.view.set_lost(&error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn hand_back_zone(session: &mut Session, book: &ZoneBook) -> Result<(), CallError> {
    let zone = book.view.id();
    let grant = book.view.grant();
    let registry = book
        .view
        .registry_to_hand_back()
        .map_err(|error| CallError::Lost(error.to_string()))?;
    let request = Request::HandBack {
        zone,
        client_index: grant.client_index,
        client_id: grant.client_id,
    };
    let (answer, _) = session.call(&request, &[registry.as_fd(), book.view.control_fd()])?;
    drop(registry);
    let Answer::Zone { wants_segments } = answer else {
        return Err(CallError::Lost(format!(
            "it answered a hand-back with {answer:?}"
        )));
    };
    if wants_segments {
        hand_back_segments(session, book)?;
    }
    for (member, kept) in &book.members {
        // Subscribers are claimed, too, and have no leases.
        if kept.leases.is_empty() {
            claim(session, *member, 0, &[])?;
        }
        for (pool, ranges) in &kept.leases {
            claim(session, *member, *pool, ranges)?;
        }
    }
    let doorbells = book.doorbells.iter().copied().collect();
    let request = Request::HandedBack {
        zone,
        doorbells,
        timelines: book.timelines.iter().copied().collect(),
    };
    session.call(&request, &[])?;
    for (member, kept) in &book.members {
        if let Some(path) = kept.path.clone() {
            let member = *member;
            match session.call(&Request::Path { member, path }, &[]) {
                // A refusal does no harm: the path is for listings only.
                Ok(_) | Err(CallError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn hand_back_segments(session: &mut Session, book: &ZoneBook) -> Result<(), CallError> {
    for (pool, kept) in &book.pools {
        let fds = kept.descriptors();
        for (packet, fds) in fds.chunks(MAX_PACKET_FDS).enumerate() {
            let request = Request::HandBackSegments {
                zone: book.view.id(),
                pool: *pool,
                from: (packet * MAX_PACKET_FDS) as u32,
            };
            match session.call(&request, fds) {
                Ok(_) => {}
                // Skip only this pool: the daemon may accept others, and another client may hand back good segments of this one.
                Err(CallError::Refused(refusal)) => {
                    tracing::warn!(
                        pool,
                        reason = refusal.message,
                        "the new daemon refuses segments of a pool that this process handed back"
                    );
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn claim(
    session: &mut Session,
    member: Member,
    pool: u32,
    ranges: &[Range],
) -> Result<(), CallError> {
    // The loop sends at least one packet, so that a member without leases is claimed too.
    let mut left = ranges;
    loop {
        let (packet, rest) = left.split_at(left.len().min(MAX_RANGES));
        let request = Request::Claim {
            member,
            pool,
            ranges: packet.to_vec(),
        };
        match session.call(&request, &[]) {
            Ok(_) => {}
            Err(CallError::Refused(refusal)) => {
                tracing::warn!(
                    ?member,
                    reason = refusal.message,
                    "the new daemon does not recognize a publisher or subscriber of this process"
                );
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        if rest.is_empty() {
            return Ok(());
        }
        left = rest;
    }
}
