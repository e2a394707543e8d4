//! Where messages of other hosts land here, as it is configured; and whether network cards read a topic's messages on the GPU where they
//! live, and write them on the one where they land: each host tells the other its part, and both together are the path.

use super::report::IncomingPaths;
use super::LinksConductor;
use crate::rails::Cards;
use crate::remote_host::{IngressPlan, RemoteHost};
use crate::wire::{clip, clip_to, FlowDescription, LinkMessage};
use rgaps_client::links::{ArrivalPath, InterestRow, LandIn, LandingRule, Links};
use rgaps_client::{Domain, GpuUuid, PathKind};
use rgaps_cuda::Driver;
use rgaps_session::MAX_PATH_BYTES;
use rgaps_verbs::Location;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// The GPU that the topic's subscriber reads on, if network cards read the messages there and all links go over cards; or why not.
pub(super) fn reads_in<'a>(
    row: Option<&InterestRow>,
    cards: &Cards,
    hosts: impl Iterator<Item = &'a String>,
    peers: &BTreeMap<String, RemoteHost>,
) -> Result<Domain, String> {
    let domain = row.and_then(|row| row.domain);
    let Some(domain @ Domain::Cuda(gpu)) = domain else {
        return Err("the messages live in the host's memory, and not on a GPU".to_owned());
    };
    let mut linked = hosts.filter_map(|host| Some((host, peers.get(host)?)));
    if let Some((host, peer)) = linked.find(|(_, peer)| peer.over.path != PathKind::Rdma) {
        let why_not = &peer.over.why_not;
        return Err(format!("{host}, where they go too, has no RDMA: {why_not}"));
    }
    cards.reads(gpu).map(|()| domain)
}

/// How a publisher's messages come from a host. `written`: as [`LinksConductor::written`] says.
pub(super) fn incoming_path(
    peer: &RemoteHost,
    source: &FlowDescription,
    (written, relays): (&Result<(), String>, bool),
) -> ArrivalPath {
    let host = peer.name();
    let (path, why) = match (peer.over.path, &source.read, written) {
        (PathKind::Rdma, ..) if !source.via.is_empty() => {
            let why = format!("{host} passes them on, out of its memory");
            (PathKind::Rdma, why)
        }
        (PathKind::Rdma, ..) if relays && source.tree.leads_on() => {
            let why = "they go on to other hosts, and so land in this one's memory";
            (PathKind::Rdma, why.to_owned())
        }
        (PathKind::Rdma, Err(why), _) => (PathKind::Rdma, format!("on {host}: {why}")),
        (PathKind::Rdma, Ok(()), Err(why)) => (PathKind::Rdma, why.clone()),
        (PathKind::Rdma, Ok(()), Ok(())) => (PathKind::GpuDirect, String::new()),
        (path, ..) => (path, peer.over.why_not.clone()),
    };
    let why = clip_to(&why, MAX_PATH_BYTES);
    ArrivalPath { path, why }
}

impl LinksConductor {
    /// Whether a topic uses no tree, where messages would land in hosts' memory: cards read it on its GPU, or a publisher requires a path.
    pub(super) fn goes_directly(&self, topic: &str) -> bool {
        let Some(row) = self.daemon.row(topic) else {
            return false;
        };
        let is_read = match row.domain {
            Some(Domain::Cuda(gpu)) => self.cards.reads(gpu).is_ok(),
            _ => false,
        };
        let mut publishers = row.publishers.iter();
        is_read || publishers.any(|publisher| publisher.require.is_some())
    }

    /// Whether network cards write what comes of a topic on the GPU where it lands, or why not.
    pub(super) fn written(&self, topic: &str) -> Result<(), String> {
        let lives_in = || self.daemon.row(topic).and_then(|row| row.domain);
        match self.lands_in(topic)?.or_else(lives_in) {
            Some(Domain::Cuda(gpu)) => self.cards.writes(gpu).map_err(|why| clip(&why)),
            _ => Err("they land in the host's memory, and not on a GPU".to_owned()),
        }
    }

    /// Says how what comes here lands to the hosts that it comes from, and over what to this host's daemon.
    pub(super) fn report_landings(&mut self) {
        let flows = self.peers.values().flat_map(|peer| peer.incoming.values());
        let topics: BTreeSet<String> = flows.map(|of| of.description.topic.clone()).collect();
        let written = topics.into_iter().map(|topic| {
            let written = self.written(&topic);
            (topic, written)
        });
        let written: BTreeMap<String, Result<(), String>> = written.collect();
        let relays = self.config.links.relay;
        let mut paths = IncomingPaths::new();
        for peer in self.peers.values_mut() {
            let flows = peer.incoming.iter();
            let streams = flows.map(|(flow, of)| (flow.stream, &written[&of.description.topic]));
            let streams: BTreeMap<u64, &Result<(), String>> = streams.collect();
            peer.reported_written
                .retain(|stream, _| streams.contains_key(stream));
            for (stream, written) in streams {
                if peer.reach.is_up() && peer.reported_written.get(&stream) != Some(written) {
                    peer.say(&LinkMessage::Written(stream, written.clone()));
                    peer.reported_written.insert(stream, written.clone());
                }
            }
            for incoming in peer.incoming.values() {
                let (Some(landing), of) = (&incoming.landing, &incoming.description) else {
                    continue;
                };
                let over = incoming_path(peer, of, (&written[&of.topic], relays));
                let known = paths.entry(landing.publisher.id());
                let known = known.or_insert_with(|| (landing.clone(), over.clone()));
                // In two streams at once: the slower one counts.
                if over.path < known.1.path {
                    known.1 = over;
                }
            }
        }
        self.daemon.report.incoming(&self.daemon.node, paths);
    }

    /// Where a topic's publishers that stand for others are to be. None: where the topic lives.
    pub(super) fn lands_in(&self, topic: &str) -> Result<Option<Domain>, String> {
        let row = self.daemon.row(topic);
        if row.is_some_and(|row| row.domain.is_some()) {
            return Ok(None);
        }
        let Some(rule) = self.config.links.landing(topic) else {
            return Ok(Some(Domain::Host));
        };
        let domain = match rule.domain {
            LandIn::Host => Ok(Domain::Host),
            LandIn::Readers => Ok(of_readers(row)),
            LandIn::Uuid(uuid) => Ok(Domain::Cuda(uuid)),
            LandIn::Gpu(number) => gpu(number).map(Domain::Cuda),
        };
        domain
            .map(Some)
            .map_err(|why| format!("links.landing '{}': {why}", rule.name))
    }

    /// Where a topic lands, if a rule says so or a network card could write there; none where it does not land.
    pub(super) fn landing_row(&self, peer: &RemoteHost, incoming: &IngressPlan) -> Option<String> {
        let topic = &incoming.description.topic;
        let domain = incoming.landing.as_ref()?.publisher.domain();
        let is_by_card = domain != Domain::Host && peer.over.path == PathKind::Rdma;
        let written = is_by_card.then(|| match self.written(topic) {
            Ok(()) => "; network cards write it there (GPUDirect)".to_owned(),
            Err(why) => format!("; through pinned memory (no GPUDirect: {why})"),
        });
        match self.config.links.landing(topic) {
            Some(rule) => Some(describe(rule, domain) + &written.unwrap_or_default()),
            None => Some(format!("comes from there; lands in {domain}{}", written?)),
        }
    }
}

fn describe(rule: &LandingRule, domain: Domain) -> String {
    let LandingRule { name, .. } = rule;
    let is_so = match rule.domain {
        LandIn::Readers => true,
        LandIn::Host => domain == Domain::Host,
        LandIn::Uuid(uuid) => domain == Domain::Cuda(uuid),
        LandIn::Gpu(number) => gpu(number).map(Domain::Cuda) == Ok(domain),
    };
    match is_so {
        true => format!("comes from there; lands in {domain}, by links.landing '{name}'"),
        false => format!(
            "comes from there; lands in {domain}, where the topic lives here, and not in {}, as \
             links.landing '{name}' says",
            rule.domain
        ),
    }
}

/// The one domain that subscribers read in.
fn of_readers(row: Option<&InterestRow>) -> Domain {
    match row.map(|row| &row.readers[..]) {
        Some([domain]) => *domain,
        _ => Domain::Host,
    }
}

/// Where the GPUs are that messages land on by rules, as far as they are there.
pub(super) fn gpus(links: &Links) -> Vec<Location> {
    let named = links.landing.iter().filter_map(|rule| match rule.domain {
        LandIn::Uuid(uuid) => Some(uuid),
        LandIn::Gpu(number) => gpu(number).ok(),
        LandIn::Host | LandIn::Readers => None,
    });
    let places = named.filter_map(|uuid| {
        let driver = Driver::load().ok()?;
        let address = driver.pci_bus_id(&driver.device(uuid).ok()?).ok()?;
        Some(Location::of_pci(&address))
    });
    places.collect()
}

/// A GPU by its number. The driver is asked once, and only where GPUs have numbers.
fn gpu(number: u32) -> Result<GpuUuid, String> {
    static SEEN: OnceLock<Vec<GpuUuid>> = OnceLock::new();
    let seen = match SEEN.get() {
        Some(seen) => seen,
        None => {
            let devices = Driver::load()
                .and_then(|driver| driver.devices())
                .map_err(|error| format!("no GPU can be used: {error}"))?;
            SEEN.get_or_init(|| devices.iter().map(|device| device.uuid).collect())
        }
    };
    let found = seen.get(number as usize).copied();
    found.ok_or_else(|| format!("there is no GPU {number}: the links see {}", seen.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgaps_client::links::Demand;

    fn readers(domains: &[Domain]) -> InterestRow {
        InterestRow {
            name: "t".to_owned(),
            domain: None,
            publishers: Vec::new(),
            landed: Vec::new(),
            subscribers: 2,
            demand: Demand {
                reliable: false,
                transient_local: false,
                depth: 0,
            },
            readers: domains.to_vec(),
        }
    }

    #[test]
    fn readers_that_do_not_agree_read_from_the_host() {
        let gpu = |number| Domain::Cuda(GpuUuid([number; 16]));
        assert_eq!(of_readers(None), Domain::Host);
        assert_eq!(of_readers(Some(&readers(&[]))), Domain::Host);
        assert_eq!(of_readers(Some(&readers(&[gpu(1)]))), gpu(1));
        assert_eq!(
            of_readers(Some(&readers(&[gpu(1), Domain::Host]))),
            Domain::Host
        );
    }
}
