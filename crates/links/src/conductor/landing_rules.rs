//! In which domain messages of other hosts land here, as it is configured.

use super::LinksConductor;
use crate::remote_host::{IngressPlan, RemoteHost};
use rgaps_client::links::{InterestRow, LandIn, LandingRule, Links};
use rgaps_client::{Domain, GpuUuid, PathKind};
use rgaps_cuda::Driver;
use rgaps_verbs::Location;
use std::sync::OnceLock;

impl LinksConductor {
    /// Where a topic's publishers that stand for others are to be. None: where the topic lives.
    pub(super) fn lands_in(&self, topic: &str) -> Result<Option<Domain>, String> {
        let row = self.rows.get(topic);
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
        let domain = incoming.landing.as_ref()?.publisher().domain();
        let written = self.written_row(peer, topic, domain);
        match self.config.links.landing(topic) {
            Some(rule) => Some(describe(rule, domain) + &written.unwrap_or_default()),
            None => Some(format!("comes from there; lands in {domain}{}", written?)),
        }
    }

    /// How what lands on a GPU from a host comes there, where lanes go over network cards.
    fn written_row(&self, peer: &RemoteHost, topic: &str, domain: Domain) -> Option<String> {
        if domain == Domain::Host || peer.over.path != PathKind::Rdma {
            return None;
        }
        Some(match self.written(topic) {
            Ok(()) => "; network cards write it there (GPUDirect)".to_owned(),
            Err(why) => format!("; through pinned memory (no GPUDirect: {why})"),
        })
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
