//! Where messages of other hosts land here, and whether they come by GPUDirect: the sender's network card reads them in GPU memory, and the
//! receiver's card writes them into GPU memory. Each host knows only its own part, and tells it the other.

use super::report::IncomingPaths;
use super::LinksConductor;
use crate::rails::Cards;
use crate::remote_host::{IngressPlan, RemoteHost};
use crate::wire::{clip, clip_to, FlowDescription};
use rgaps_client::links::{ArrivalPath, InterestRow, LandIn, LandingRule, Links};
use rgaps_client::{Domain, GpuUuid, PathKind};
use rgaps_cuda::Driver;
use rgaps_session::MAX_PATH_BYTES;
use rgaps_verbs::Location;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// The GPU in whose memory network cards read the topic's messages, if all links use RDMA and the cards can; or why they do not.
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
    if let Some((host, peer)) = linked.find(|(_, peer)| peer.over().path != PathKind::Rdma) {
        let why_not = &peer.over().why_not;
        return Err(format!("{host}, where they go too, has no RDMA: {why_not}"));
    }
    cards.reads(gpu).map(|()| domain)
}

/// The path by which a publisher's messages come from a host. `written`: the result of [`LinksConductor::written`].
pub(super) fn incoming_path(
    peer: &RemoteHost,
    source: &FlowDescription,
    (written, relays): (&Result<(), String>, bool),
) -> ArrivalPath {
    let host = peer.name();
    let (path, why) = match (peer.over().path, &source.read, written) {
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
        (path, ..) => (path, peer.over().why_not.clone()),
    };
    let why = clip_to(&why, MAX_PATH_BYTES);
    ArrivalPath { path, why }
}

impl LinksConductor {
    /// Whether a topic must not use trees, on which messages pass through host memory: network cards read it in GPU memory, or a publisher
    /// requires a path.
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

    /// Whether network cards write a topic's incoming messages into the GPU memory where they land, or why not.
    pub(super) fn written(&self, topic: &str) -> Result<(), String> {
        let lives_in = || self.daemon.row(topic).and_then(|row| row.domain);
        match self.lands_in(topic)?.or_else(lives_in) {
            Some(Domain::Cuda(gpu)) => self.cards.writes(gpu).map_err(|why| clip(&why)),
            _ => Err("they land in the host's memory, and not on a GPU".to_owned()),
        }
    }

    /// Tells other hosts how their messages land here, and this host's daemon by which paths they come.
    pub(super) fn report_landings(&mut self) {
        let topics = self.peers.values().flat_map(RemoteHost::incoming_topics);
        let topics: BTreeSet<String> = topics.cloned().collect();
        let written = topics.into_iter().map(|topic| {
            let written = self.written(&topic);
            (topic, written)
        });
        let written: BTreeMap<String, Result<(), String>> = written.collect();
        let relays = self.config.links.relay;
        let mut paths = IncomingPaths::new();
        for peer in self.peers.values_mut() {
            peer.report_written(&written);
            for (landing, of) in peer.landed() {
                let over = incoming_path(peer, of, (&written[&of.topic], relays));
                let known = paths.entry(landing.publisher.id());
                let known = known.or_insert_with(|| (landing.clone(), over.clone()));
                // A publisher may come in two streams at once: the slower path counts.
                if over.path < known.1.path {
                    known.1 = over;
                }
            }
        }
        self.daemon.report.incoming(&self.daemon.node, paths);
    }

    /// The domain for a topic's landings. None: the topic has a domain here already, and landings use that.
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

    /// Where a flow lands, in words. None: it does not land, or there is nothing to say: no rule, and no network card could write there.
    pub(super) fn landing_row(&self, peer: &RemoteHost, incoming: &IngressPlan) -> Option<String> {
        let topic = &incoming.description().topic;
        let domain = incoming.landing()?.publisher.domain();
        let is_by_card = domain != Domain::Host && peer.over().path == PathKind::Rdma;
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

/// The domain in which all subscribers read; the host's memory if they read in several.
fn of_readers(row: Option<&InterestRow>) -> Domain {
    match row.map(|row| &row.readers[..]) {
        Some([domain]) => *domain,
        _ => Domain::Host,
    }
}

/// The PCI locations of the GPUs that rules name as landing, without those that do not exist here.
pub(super) fn gpus(links: &Links) -> Vec<Location> {
    let named = links.landing.iter().filter_map(|rule| match rule.domain {
        LandIn::Uuid(uuid) => Some(uuid),
        LandIn::Gpu(number) => gpu(number).ok(),
        LandIn::Host | LandIn::Readers => None,
    });
    let locations = named.filter_map(|uuid| {
        let driver = Driver::load().ok()?;
        let address = driver.pci_bus_id(&driver.device(uuid).ok()?).ok()?;
        Some(Location::of_pci(&address))
    });
    locations.collect()
}

/// A GPU by its number. Asks the driver once, and only if a rule names a number.
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
