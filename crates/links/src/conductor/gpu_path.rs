//! Whether network cards read a topic's messages on the GPU where they live, and write them on the one where they land:
//! each host finds out its own part and says it to the other. Both together are the path.

use super::report::IncomingPaths;
use super::LinksConductor;
use crate::rails::CardMemory;
use crate::remote_host::RemoteHost;
use crate::wire::{clip, clip_to, FlowDescription, LinkMessage};
use rgaps_client::links::{CameOver, InterestRow};
use rgaps_client::{Domain, PathKind};
use rgaps_routing::FlowName;
use rgaps_session::MAX_PATH_BYTES;
use std::collections::btree_map::Entry;
use std::collections::BTreeMap;

/// The GPU that the topic's subscriber reads on: where its messages are, if network cards read them there and all links go over
/// cards. Else it reads on the host, for that reason.
pub(super) fn reads_in<'a>(
    row: Option<&InterestRow>,
    known: Option<&CardMemory>,
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
    match known {
        Some(known) => known.reads(gpu).map(|()| domain),
        None => Err("this host has no RDMA".to_owned()),
    }
}

/// How a publisher's messages come from a host. `written`: as [`LinksConductor::written`] says.
pub(super) fn incoming_path(
    peer: &RemoteHost,
    source: &FlowDescription,
    (written, relays): (&Result<(), String>, bool),
) -> CameOver {
    let host = &peer.node.host;
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
    CameOver { path, why }
}

impl LinksConductor {
    /// Whether a topic's messages go to each host that is linked with, and not over a tree: network cards read them on their GPU, or a
    /// publisher requires a path. On the hosts of a tree they would land in the host's memory.
    pub(super) fn goes_directly(&self, topic: &str) -> bool {
        let Some(row) = self.rows.get(topic) else {
            return false;
        };
        let is_read = match (row.domain, &self.known) {
            (Some(Domain::Cuda(gpu)), Some(known)) => known.reads(gpu).is_ok(),
            _ => false,
        };
        let mut publishers = row.publishers.iter();
        is_read || publishers.any(|publisher| publisher.require.is_some())
    }

    /// Whether network cards write what comes of a topic on the GPU where it lands, or why not.
    pub(super) fn written(&self, topic: &str) -> Result<(), String> {
        let lives_in = || self.rows.get(topic).and_then(|row| row.domain);
        let domain = self.lands_in(topic)?.or_else(lives_in);
        match (domain, &self.known) {
            (Some(Domain::Cuda(gpu)), Some(known)) => known.writes(gpu).map_err(|why| clip(&why)),
            (Some(Domain::Cuda(_)), None) => Err(clip(&self.no_rdma)),
            _ => Err("they land in the host's memory, and not on a GPU".to_owned()),
        }
    }

    /// Says how what comes here lands to the hosts that it comes from, and over what to this host's daemon.
    pub(super) fn report_landings(&mut self) {
        let relays = self.config.links.relay;
        let mut ways = IncomingPaths::new();
        let mut news = BTreeMap::new();
        for (host, peer) in &self.peers {
            for (flow, incoming) in &peer.incoming {
                let of = &incoming.description;
                let written = self.written(&of.topic);
                if incoming.written.as_ref() != Some(&written) {
                    news.insert((host.clone(), flow.stream), written.clone());
                }
                let Some(landing) = &incoming.landing else {
                    continue;
                };
                let over = incoming_path(peer, of, (&written, relays));
                match ways.entry(landing.publisher().id()) {
                    Entry::Vacant(entry) => {
                        entry.insert((landing.clone(), over));
                    }
                    // In two streams at once: the slower one counts.
                    Entry::Occupied(mut entry) if over.path < entry.get().1.path => {
                        entry.insert((landing.clone(), over));
                    }
                    Entry::Occupied(_) => {}
                }
            }
        }
        for ((host, number), written) in news {
            let Some(peer) = self.peers.get_mut(&host).filter(|peer| peer.is_up()) else {
                continue;
            };
            for (_, incoming) in peer.incoming.range_mut(FlowName::all_of(number)) {
                incoming.written = Some(written.clone());
            }
            peer.say(&LinkMessage::Written(number, written));
        }
        self.report.incoming(&self.node, ways);
    }
}
