//! What each request does.

use super::Engine;
use crate::clients::Client;
use crate::paths::Wish;
use crate::qos::check_path;
use crate::refuse::{bad, refuse};
use crate::sessions::Session;
use crate::sessions::{is_owner, SessionId};
use crate::zone::{Seat, Zone};
use rgaps_layout::{LAYOUT_VERSION, MAX_CLIENT_NAME};
use rgaps_session::{
    check_topic_name, Answer, Member, Notice, PoolGrant, Range, Refusal, RefusalCode, Request,
    Role, Side, ZoneId, FIGURES_ROWS, MAX_PACKET_FDS, MAX_RANGES, PROTOCOL_VERSION,
};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

impl Engine {
    /// Welcomes a client, if its version, realm and name are right.
    pub(super) fn hello(
        &mut self,
        session: SessionId,
        protocol: u32,
        layout: u32,
        realm: &str,
        name: String,
    ) -> Result<Answer, Refusal> {
        let known = self.sessions.get(session);
        known.map_or(Ok(()), Session::check_admitted)?;
        if (protocol, layout) != (PROTOCOL_VERSION, LAYOUT_VERSION) {
            return Err(refuse(
                RefusalCode::VersionMismatch,
                format!(
                    "the daemon ({}) uses protocol {PROTOCOL_VERSION} with layout \
                     {LAYOUT_VERSION}, the client protocol {protocol} with layout {layout}; \
                     install the same version of rgaps for both, then restart the daemon ('rgaps down')",
                    self.setup.version
                ),
            ));
        }
        if realm != self.setup.config.realm {
            return Err(refuse(
                RefusalCode::VersionMismatch,
                format!(
                    "the daemon at this socket serves realm '{}', not '{}'; set RGAPS_REALM or RGAPS_SOCKET",
                    self.setup.config.realm,
                    realm.chars().take(MAX_CLIENT_NAME).collect::<String>()
                ),
            ));
        }
        if name.len() > MAX_CLIENT_NAME || name.chars().any(char::is_control) {
            return Err(bad(format!(
                "the name of a client must have at most {MAX_CLIENT_NAME} bytes and no control characters"
            )));
        }
        self.check_links(session, &name)?;
        let expects_hand_back = self.recovery.expects_any();
        let known = self.sessions.require(session)?;
        known.name = name;
        known.welcomed = true;
        Ok(Answer::Welcome {
            version: self.setup.version.clone(),
            pid: std::process::id(),
            daemon: self.daemon,
            expects_hand_back,
        })
    }

    /// Serves any request but hello. Puts the descriptors for the answer into `out`.
    pub(super) fn serve(
        &mut self,
        session: SessionId,
        request: Request,
        fds: Vec<OwnedFd>,
        out: &mut Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        match request {
            Request::Join {
                topic,
                type_name,
                domain,
                role,
                require,
                arrives_over,
            } => {
                self.note_process(session);
                let over = arrives_over.as_ref();
                over.map_or(Ok(()), |over| check_path(&over.why))?;
                let wish = Wish {
                    topic: &topic,
                    type_name: &type_name,
                    domain,
                    role,
                    require,
                    remote_path: arrives_over.filter(|_| self.sessions.is_links(session)),
                };
                self.join(session, &wish, out)
            }
            Request::Leave(member) => self.leave(session, &member),
            Request::Close(member) => self.close(session, &member),
            Request::Pool { zone, pool } => {
                let (zone, _) = self.zone_of(session, zone)?;
                Ok(Answer::Pool(zone.memory().require(pool)?.grant()))
            }
            Request::Segments {
                zone,
                pool,
                from,
                writable,
            } => self.segments(session, zone, pool, from, writable, out),
            Request::Lease {
                publisher,
                pool,
                bytes,
            } => self.lease(session, &publisher, pool, bytes),
            Request::Return {
                publisher,
                pool,
                ranges,
            } => self.give_back(session, &publisher, pool, &ranges),
            Request::Pin { zone, pool } => {
                let (zone, _) = self.zone_of(session, zone)?;
                zone.pin(pool)?;
                Ok(Answer::Done)
            }
            Request::Device { member, device } => self.set_device(session, &member, *device, fds),
            Request::OpenDevice { topic, publishes } => {
                self.open_device(session, &topic, publishes, out)
            }
            request => self.serve_waiting(session, request, fds),
        }
    }

    /// Serves requests about doorbells, timelines and GPUs, and those by which clients hand back a zone.
    fn serve_waiting(
        &mut self,
        session: SessionId,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        match request {
            Request::Path { member, path } => {
                let (zone, client) = self.zone_of(session, member.zone)?;
                zone.topics_mut().set_path(&member, client, path)?;
                Ok(Answer::Done)
            }
            Request::TakeDoorbell { zone } => {
                let (zone, client) = self.zone_of(session, zone)?;
                let doorbell = zone.take_doorbell(client)?;
                Ok(Answer::Doorbell { doorbell })
            }
            Request::ReturnDoorbell { zone, doorbell } => {
                let (zone, client) = self.zone_of(session, zone)?;
                zone.return_doorbell(client, doorbell)?;
                Ok(Answer::Done)
            }
            Request::TakeTimeline { zone } => {
                let (zone, client) = self.zone_of(session, zone)?;
                let timeline = zone.control_mut().take_timeline(client)?;
                Ok(Answer::Timeline { timeline })
            }
            Request::ReturnTimeline { zone, timeline } => {
                let (zone, client) = self.zone_of(session, zone)?;
                zone.return_timeline(client, timeline)?;
                Ok(Answer::Done)
            }
            Request::GpuLost { zone } => self.gpu_lost(session, zone),
            Request::HandBack {
                zone,
                client_index,
                client_id,
            } => self.hand_back(session, zone, client_index, client_id, fds),
            Request::HandBackSegments { zone, pool, from } => {
                self.hand_back_segments(session, zone, pool, from, fds)
            }
            Request::Claim {
                member,
                pool,
                ranges,
            } => self.claim(session, &member, pool, &ranges),
            Request::HandedBack {
                zone,
                doorbells,
                timelines,
            } => self.handed_back(session, zone, &doorbells, &timelines),
            Request::UnderMps { pipe_directory } => self.under_mps(session, pipe_directory),
            request => self.serve_listing(session, request),
        }
    }

    /// Serves listings, requests to the daemon itself, and reports of the links.
    fn serve_listing(&mut self, session: SessionId, request: Request) -> Result<Answer, Refusal> {
        match request {
            Request::Status => Ok(Answer::Status(self.status(Some(session)))),
            Request::Topics { from } => self.list_topics(session, from),
            Request::Topic { topic } => self.describe_topic(session, &topic),
            Request::Forget { topic } => self.forget_topic(session, &topic),
            Request::Pools => self.list_pools(session),
            Request::Clients { from } => self.list_clients(session, from),
            Request::Stop => self.stop_for(session),
            Request::Stay => self.stay_for(session),
            Request::Interest { known, from } => self.interest(session, known, from),
            Request::Unserved { topic, hosts } => {
                self.require_links(session)?;
                let set = self.links.set_unserved(session, topic, hosts);
                set.map(|()| Answer::Done)
            }
            Request::ComesOver { member, over } => self.comes_over(session, &member, over),
            Request::StandsFor { member, hosts } => self.stands_for(session, &member, hosts),
            Request::SetPeers(peers) => {
                self.require_links(session)?;
                self.links.set_peers(session, peers).map(|()| Answer::Done)
            }
            Request::Peers => Ok(Answer::Peers(self.links.peers())),
            Request::SetFigures(figures) => {
                self.require_links(session)?;
                let set = self.links.set_figures(session, *figures);
                set.map(|()| Answer::Done)
            }
            Request::Figures { from } => {
                let page = self.links.figures().skip(from as usize);
                Ok(Answer::Figures(page.take(FIGURES_ROWS).cloned().collect()))
            }
            Request::Compare { settings } => Ok(Answer::Unlike(self.unlike(settings))),
            Request::Mps => Ok(Answer::Mps(self.mps_info())),
            // `handle`, `serve` or `serve_waiting` has served these. They are named so that a new request does not compile until it
            // is served.
            Request::Hello { .. }
            | Request::Join { .. }
            | Request::Leave(_)
            | Request::Close(_)
            | Request::Pool { .. }
            | Request::Segments { .. }
            | Request::Lease { .. }
            | Request::Return { .. }
            | Request::Pin { .. }
            | Request::Path { .. }
            | Request::Device { .. }
            | Request::OpenDevice { .. }
            | Request::TakeDoorbell { .. }
            | Request::ReturnDoorbell { .. }
            | Request::TakeTimeline { .. }
            | Request::ReturnTimeline { .. }
            | Request::GpuLost { .. }
            | Request::HandBack { .. }
            | Request::HandBackSegments { .. }
            | Request::Claim { .. }
            | Request::HandedBack { .. }
            | Request::UnderMps { .. } => Err(bad("a second hello")),
        }
    }

    /// The zone, and the session's client in it.
    pub(super) fn zone_of(
        &mut self,
        session: SessionId,
        zone: ZoneId,
    ) -> Result<(&mut Zone, u32), Refusal> {
        let client = self.sessions.require(session)?.zones.get(&zone).copied();
        let zone = self.zones.get_mut(zone);
        zone.zip(client).ok_or_else(|| {
            refuse(
                RefusalCode::NotFound,
                "this session is not in that zone; join one of its topics first",
            )
        })
    }

    fn join(
        &mut self,
        session: SessionId,
        wish: &Wish<'_>,
        out: &mut Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let zone_id = self.zone_for(session, wish)?;
        let peer = self.sessions.require(session)?;
        let known = peer.zones.get(&zone_id).copied();
        let zone = self.zones.get_mut(zone_id);
        let zone = zone.expect("`zone_for` gives a zone that is there");
        let sources = self.setup.sources.as_mut();
        let (seat, grant) = match known {
            Some(client) => (zone.join(client, wish, sources)?, None),
            None => {
                let client = Client::of(session, peer);
                let (seat, grant) = zone.join_first(client, wish, sources, out)?;
                peer.zones.insert(zone_id, grant.client_index);
                // Without this, a successor would take the zone for dead if only this client lived.
                self.write_state();
                (seat, Some(grant))
            }
        };
        self.notify_seat(session, zone_id, &seat);
        self.notify_mismatches(zone_id, &seat.member);
        Ok(Answer::Joined {
            member: seat.member,
            grant,
            region_offset: seat.region_offset,
            topic_id: seat.topic_id,
            doorbell: seat.doorbell,
            ring: seat.ring,
            pool: seat.pool,
            reads: seat.reads,
        })
    }

    /// Tells the sessions of all subscribers of a new member's topic the topic's pool, and the member's session the pool in which
    /// the member reads.
    fn notify_seat(&mut self, session: SessionId, zone_id: ZoneId, seat: &Seat) {
        let zone = self.zones.get(zone_id);
        let topic = zone.and_then(|zone| Some((zone, zone.topics().get(seat.member.topic)?)));
        if let (Some(pool), Some((zone, topic))) = (seat.pool, topic) {
            let clients = topic
                .subscribers
                .iter()
                .filter_map(|s| zone.clients().get(s.client));
            let subscribed: BTreeSet<SessionId> = clients.filter_map(|c| c.session).collect();
            for subscribed in subscribed {
                self.notify_pool(subscribed, zone_id, pool);
            }
        }
        if let Some(pool) = seat.reads {
            self.notify_pool(session, zone_id, pool);
        }
    }

    /// The access class of a topic, if the session may publish or subscribe to it.
    pub(super) fn check_access(
        &self,
        session: SessionId,
        topic: &str,
        publishes: bool,
    ) -> Result<String, Refusal> {
        check_topic_name(topic).map_err(|error| bad(error.to_string()))?;
        let known = self.sessions.get(session);
        let peer = &known.ok_or_else(|| bad("the session has ended"))?.peer;
        let class = self.access.class_of(topic);
        let (may, verb) = match publishes {
            true => (
                class.may_publish(&peer.credentials, &peer.groups),
                "publish",
            ),
            false => (
                class.may_subscribe(&peer.credentials, &peer.groups),
                "subscribe",
            ),
        };
        match may {
            true => Ok(class.name().to_owned()),
            false => Err(refuse(
                RefusalCode::NotPermitted,
                format!(
                    "user {} may not {verb} to topic '{topic}': access rule '{}' of the daemon's \
                     rgaps.toml does not name them",
                    peer.credentials.uid,
                    class.name()
                ),
            )),
        }
    }

    /// The zone of a topic's access class, if the session may join the topic. Creates the zone if there is none.
    fn zone_for(&mut self, session: SessionId, wish: &Wish<'_>) -> Result<ZoneId, Refusal> {
        let publishes = matches!(wish.role, Role::Publisher(_));
        let class = self.check_access(session, wish.topic, publishes)?;
        self.check_recovered(&class)?;
        if let Some(zone) = self.zones.of_class(&class) {
            return Ok(zone.id());
        }
        let zone = Zone::create(&class, &self.setup.config.limits)?;
        let id = zone.id();
        tracing::info!(class, "created a zone");
        self.zones.add(zone);
        Ok(id)
    }

    fn leave(&mut self, session: SessionId, member: &Member) -> Result<Answer, Refusal> {
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.topics().check_member(member, client)?;
        zone.remove_member(member.topic, member.side, member.slot);
        Ok(Answer::Done)
    }

    fn close(&mut self, session: SessionId, member: &Member) -> Result<Answer, Refusal> {
        let (zone, client) = self.zone_of(session, member.zone)?;
        zone.topics().check_member(member, client)?;
        if member.side != Side::Subscriber {
            return Err(refuse(
                RefusalCode::BadRequest,
                "only subscribers are closed; publishers leave",
            ));
        }
        zone.close_subscriber(member.topic, member.slot);
        Ok(Answer::Done)
    }

    fn segments(
        &mut self,
        session: SessionId,
        zone_id: ZoneId,
        pool: u32,
        from: u32,
        writable: bool,
        out: &mut Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let is_links = self.sessions.is_links(session);
        let (zone, client) = self.zone_of(session, zone_id)?;
        if writable && !is_links && !zone.may_write(client, pool) {
            return Err(refuse(
                RefusalCode::NotPermitted,
                "only publishers that use a pool may map it for writing; join \
                 as a publisher",
            ));
        }
        let (bytes, fds) =
            zone.memory()
                .require(pool)?
                .descriptors(from, MAX_PACKET_FDS, writable)?;
        out.extend(fds);
        self.sessions
            .require(session)?
            .pools
            .insert((zone_id, pool));
        Ok(Answer::Segments { bytes })
    }

    fn lease(
        &mut self,
        session: SessionId,
        publisher: &Member,
        pool: u32,
        bytes: u64,
    ) -> Result<Answer, Refusal> {
        let limit = self
            .setup
            .config
            .limits
            .lease_per_publisher
            .map(|limit| limit.0);
        let (zone, client) = self.zone_of(session, publisher.zone)?;
        zone.check_quarantine(client, pool)?;
        let (range, grown) = match zone.lease(publisher, client, pool, bytes, limit) {
            Ok(leased) => leased,
            Err(refusal) => {
                if refusal.code == RefusalCode::PoolFull {
                    self.notify_shortage(publisher.zone, pool);
                }
                return Err(refusal);
            }
        };
        if let Some(from) = grown {
            self.notify_growth(publisher.zone, pool, from);
        }
        Ok(Answer::Leased {
            ranges: vec![range],
        })
    }

    /// Tells a session of a pool and sends it the pool's segments, unless it has been told.
    fn notify_pool(&mut self, session: SessionId, zone: ZoneId, pool: PoolGrant) {
        let knows = self
            .sessions
            .get(session)
            .is_none_or(|s| s.detached || s.pools.contains(&(zone, pool.pool)));
        if knows {
            return;
        }
        self.notify(session, Notice::TopicPool { zone, pool }, Vec::new());
        if let Some(known) = self.sessions.get_mut(session) {
            known.pools.insert((zone, pool.pool));
        }
        self.send_segments(session, zone, pool.pool, 0);
    }

    /// Asks the clients of all publishers with memory of a pool to return what they do not need of it.
    fn notify_shortage(&mut self, zone_id: ZoneId, pool: u32) {
        let Some(zone) = self.zones.get(zone_id) else {
            return;
        };
        let leases = |session: &Session| {
            let client = session.zones.get(&zone_id);
            !session.detached && client.is_some_and(|client| zone.leases_in(*client, pool))
        };
        let publishing = self.sessions.iter().filter(|(_, s)| leases(s));
        let publishing: Vec<SessionId> = publishing.map(|(id, _)| id).collect();
        let short = Notice::PoolShort {
            zone: zone_id,
            pool,
        };
        for session in publishing {
            self.notify(session, short.clone(), Vec::new());
        }
    }

    /// Sends the segments of a pool from number `from` on to all clients that use the pool, before the publisher that asked for
    /// them gets its answer. So its messages there can be read even if this daemon dies.
    fn notify_growth(&mut self, zone: ZoneId, pool: u32, from: u32) {
        let using = self
            .sessions
            .iter()
            .filter(|(_, s)| !s.detached && s.pools.contains(&(zone, pool)));
        let using: Vec<SessionId> = using.map(|(id, _)| id).collect();
        for session in using {
            self.send_segments(session, zone, pool, from);
        }
    }

    fn send_segments(&mut self, session: SessionId, zone_id: ZoneId, pool: u32, from: u32) {
        let client = self
            .sessions
            .get(session)
            .and_then(|known| known.zones.get(&zone_id));
        let (Some(zone), Some(client)) = (self.zones.get(zone_id), client) else {
            return;
        };
        let writable = self.sessions.is_links(session) || zone.may_write(*client, pool);
        let sent = zone
            .memory()
            .require(pool)
            .and_then(|pool| pool.descriptors(from, MAX_PACKET_FDS, writable));
        // If there are none, the client asks for them, and the answer to that says what is wrong.
        let (bytes, fds) = sent.unwrap_or_default();
        self.notify(
            session,
            Notice::PoolGrown {
                zone: zone_id,
                pool,
                from,
                bytes,
                writable,
            },
            fds,
        );
    }

    fn give_back(
        &mut self,
        session: SessionId,
        publisher: &Member,
        pool: u32,
        ranges: &[Range],
    ) -> Result<Answer, Refusal> {
        if ranges.len() > MAX_RANGES {
            return Err(bad(format!(
                "{} ranges are over the limit of {MAX_RANGES} per request",
                ranges.len()
            )));
        }
        let (zone, client) = self.zone_of(session, publisher.zone)?;
        zone.give_back(publisher, client, pool, ranges)?;
        Ok(Answer::Done)
    }

    fn stop_for(&mut self, session: SessionId) -> Result<Answer, Refusal> {
        self.require_owner(session, "stop it")?;
        self.stop();
        Ok(Answer::Done)
    }

    fn stay_for(&mut self, session: SessionId) -> Result<Answer, Refusal> {
        self.require_owner(session, "keep it running without clients")?;
        self.setup.config.idle_exit_ms = 0;
        self.maintenance.stay();
        Ok(Answer::Done)
    }

    fn require_owner(&mut self, session: SessionId, deed: &str) -> Result<(), Refusal> {
        let uid = self.sessions.require(session)?.uid();
        match is_owner(uid) {
            true => Ok(()),
            false => Err(refuse(
                RefusalCode::NotPermitted,
                format!("only the daemon's own user and root may {deed}"),
            )),
        }
    }
}
