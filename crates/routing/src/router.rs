//! The routing state of every host, whether it publishes or only forwards: paths, control channels and interest together.
//!
//! | what the router learns | how |
//! |---|---|
//! | links of this host | [`Router::link_up`], [`Router::lanes_lost`], [`Router::link_ended`] |
//! | routes of other hosts | neighbours advertise them ([`RouterFrame::Paths`]), with all hosts on them |
//! | interest | this router asks each host that it reaches over the control channel ([`RouterFrame::Datagram`]); the host sends all its interest, then every change |
//! | positions of final hosts | final hosts confirm or refuse flows of this host over the same channels ([`Received::reports`]) |

use crate::channel::{ChannelEvent, Channels, ControlMessage, Datagram, Hop};
use crate::ids::{HostId, Life, Time};
use crate::interest::{HostInterest, InterestTable, Wants};
use crate::paths::{Path, PathError, PathTable};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What routers of neighbours send each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterFrame {
    /// All paths of the sender that the neighbour may use.
    Paths(Vec<Path>),
    /// A segment of a control channel, which the neighbour delivers or forwards along its path.
    Datagram(Datagram),
}

/// What to do after a datagram arrived.
#[derive(Debug, Default, PartialEq)]
pub struct Received {
    /// Send the datagram on to this neighbour.
    pub forward: Option<(HostId, Datagram)>,
    /// The interest of this host may have changed.
    pub interest: Option<HostId>,
    /// The [`ControlMessage::Confirm`] and [`ControlMessage::Refused`] that arrived, with their senders.
    pub reports: Vec<(Life, ControlMessage)>,
}

/// The routing state of one host. See the table above.
#[derive(Debug)]
pub struct Router {
    own: Life,
    paths: PathTable,
    channels: Channels,
    interest: InterestTable,
    /// The last advertisement of each neighbour. It may arrive before the call of `link_up`.
    advertised: BTreeMap<HostId, Vec<Path>>,
    /// Neighbours whose link machine restarted: they have lost what this host advertised to them.
    restarted: BTreeSet<HostId>,
    /// Hosts without a path, and the time since when.
    unreachable: BTreeMap<HostId, Time>,
    /// Hosts whose channel restarted or was forgotten since [`Router::take_renewed`].
    renewed: BTreeSet<HostId>,
}

impl Router {
    /// The router of a host without links.
    pub fn new(own: Life) -> Router {
        Router {
            own,
            paths: PathTable::new(own),
            channels: Channels::new(own),
            interest: InterestTable::default(),
            advertised: BTreeMap::new(),
            restarted: BTreeSet::new(),
            unreachable: BTreeMap::new(),
            renewed: BTreeSet::new(),
        }
    }

    /// A link to this life has lanes, perhaps again.
    pub fn link_up(&mut self, life: Life, now: Time) {
        if self.restarted.remove(&life.host) {
            self.paths.link_ended(life.host);
        }
        self.paths.link_up(life);
        if let Some(paths) = self.advertised.get(&life.host).cloned() {
            // The advertisement may be from an earlier life of the neighbour: then it is not valid.
            let _ = self.paths.advertised(life, paths, now);
        }
    }

    /// The link to a host has lost its last lane.
    pub fn lanes_lost(&mut self, host: HostId, now: Time) {
        self.paths.lanes_lost(host, now);
    }

    /// The host's link machine restarted, and has lost what it was sent. Takes effect when the link has lanes again.
    pub fn link_restarted(&mut self, host: HostId) {
        self.restarted.insert(host);
    }

    /// The link to a host has ended for certain, for example because the other end withdrew it.
    pub fn link_ended(&mut self, host: HostId) {
        self.advertised.remove(&host);
        self.paths.link_ended(host);
    }

    /// Takes a neighbour's advertisement, which has all its paths. They count once its link is up.
    pub fn advertised(
        &mut self,
        from: HostId,
        paths: Vec<Path>,
        now: Time,
    ) -> Result<(), PathError> {
        self.advertised.insert(from, paths.clone());
        if self.restarted.contains(&from) {
            return Ok(());
        }
        let neighbour = self.paths.neighbours().find(|life| life.host == from);
        neighbour.map_or(Ok(()), |life| self.paths.advertised(life, paths, now))
    }

    /// All hosts on the paths of the neighbours' last advertisements; a host may occur several times.
    pub fn advertised_hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        let lives = self.advertised.values().flatten().flat_map(Path::lives);
        lives.map(|life| life.host)
    }

    /// Takes a datagram of a control channel, or finds the neighbour that it goes on to. `relays`: this host forwards.
    pub fn receive(&mut self, datagram: Datagram, relays: bool, now: Time) -> Received {
        let mut received = Received::default();
        match datagram.hop(self.own.host) {
            Hop::Forward(next, datagram) if relays => {
                let is_neighbour = self.paths.neighbours().any(|life| life.host == next);
                received.forward = is_neighbour.then_some((next, datagram));
            }
            Hop::Deliver(segment) => {
                for event in self.channels.receive(segment, now) {
                    self.channel_event(event, &mut received);
                }
            }
            Hop::Forward(..) | Hop::Drop => {}
        }
        received
    }

    fn channel_event(&mut self, event: ChannelEvent, to: &mut Received) {
        match event {
            ChannelEvent::Restarted(life) => {
                self.interest.restarted(life, &mut self.channels);
                self.renewed.insert(life.host);
            }
            ChannelEvent::Message(from, message) => match message {
                ControlMessage::Confirm { .. } | ControlMessage::Refused { .. } => {
                    to.reports.push((from, message));
                }
                message => {
                    if self.interest.receive(from, &message, &mut self.channels) {
                        to.interest = Some(from.host);
                    }
                }
            },
        }
    }

    /// Settles paths, and asks hosts that have become reachable for their interest.
    pub fn tick(&mut self, now: Time) {
        self.paths.tick(now);
        for path in self.paths.paths() {
            self.interest.ask(path.end().host, &mut self.channels);
        }
    }

    /// Takes the frames to send to neighbours now. `relays`: this host forwards, and so advertises paths.
    pub fn poll(&mut self, relays: bool, now: Time) -> Vec<(HostId, RouterFrame)> {
        let neighbours = self.paths.neighbours().map(|life| life.host);
        let neighbours: Vec<HostId> = neighbours.filter(|_| relays).collect();
        let paths = neighbours.into_iter().filter_map(|host| {
            let paths = self.paths.advertisement(host)?;
            Some((host, RouterFrame::Paths(paths)))
        });
        let mut all: Vec<_> = paths.collect();
        let datagrams = self.channels.poll(now, &self.paths).into_iter();
        all.extend(datagrams.map(|of| (of.path[0], RouterFrame::Datagram(of))));
        all
    }

    /// Forgets all hosts outside `kept` that were not reachable for `outage`, and returns them.
    pub fn expire(&mut self, outage: Duration, kept: &BTreeSet<HostId>, now: Time) -> Vec<HostId> {
        let known = self.channels.hosts().map(|(host, _)| host);
        let (reached, lost): (Vec<HostId>, Vec<HostId>) =
            known.partition(|host| self.paths.path(*host).is_some() || kept.contains(host));
        for host in reached {
            self.unreachable.remove(&host);
        }
        let (unreachable, mut over) = (&mut self.unreachable, lost);
        over.retain(|host| now.saturating_sub(*unreachable.entry(*host).or_insert(now)) >= outage);
        for host in &over {
            self.unreachable.remove(host);
            self.channels.forget(*host);
            self.interest.forget(*host);
        }
        self.renewed.extend(&over);
        over
    }

    /// Takes the hosts that may have lost the control messages that they were sent: the user sends them again.
    pub fn take_renewed(&mut self) -> BTreeSet<HostId> {
        std::mem::take(&mut self.renewed)
    }

    /// Sends a message to a host over its control channel.
    pub fn say(&mut self, host: HostId, message: ControlMessage) {
        self.channels.send(host, message);
    }

    /// Whether few messages wait to be sent to a host.
    pub fn has_room(&self, host: HostId) -> bool {
        self.channels.has_room(host)
    }

    /// Sets what this host wants of a topic; `None`: nothing.
    pub fn want(&mut self, topic: &str, want: Option<Box<[u8]>>) {
        self.interest.set(topic, want, &mut self.channels);
    }

    /// What this host wants.
    pub fn own_wants(&self) -> &Wants {
        self.interest.own()
    }

    /// What one host wants, if it was asked.
    pub fn wants(&self, host: HostId) -> Option<&HostInterest> {
        self.interest.host(host)
    }

    /// What the other hosts want that were asked.
    pub fn all_wants(&self) -> impl Iterator<Item = (HostId, &HostInterest)> {
        self.interest.hosts()
    }

    /// The hosts that have a channel, and whether everything sent to them is acknowledged.
    pub fn channels(&self) -> impl Iterator<Item = (HostId, bool)> + '_ {
        self.channels.hosts()
    }

    /// The table of paths to other hosts.
    pub fn paths(&self) -> &PathTable {
        &self.paths
    }
}
