//! Host pools of dma-bufs that network cards know by their descriptors: two hosts' links in this process, over a network within it,
//! where a device gives dma-bufs (tests/vm/suites/dma-bufs.sh). Nothing here is a network card.
mod support;
#[path = "support/within.rs"]
mod within;

use rgaps::Node;
use rgaps_transport::Rdma;
use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
use rgaps_verbs::ChannelConfig;
use std::path::Path;
use support::{
    bytes_of, content, hosts_started, receive, until, wait_for_subscribers, Host, LIMIT,
};
use within::Links;

const TOPIC: &str = "dma/bufs";
/// The size of messages: large enough that cards write them.
const BYTES: usize = 3_000_001;
const MESSAGES: u64 = 6;

fn is_here(device: &str) -> bool {
    let is_here = Path::new(device).exists();
    if !is_here {
        println!("left out: no {device}");
    }
    is_here
}

/// Returns what `rgaps peers` reports of each host's pools after messages have crossed.
fn said_after_messages(network: &SoftwareNetwork) -> [Option<Result<(), String>>; 2] {
    let pool = "cap = \"256MiB\"\nprovider = \"dmaplane\"";
    let whole = |name: &str, links: &str| Host::start_whole_with_pool(name, links, pool);
    let hosts = hosts_started(2, "lanes = 2\n", whole);
    let _links: Vec<Links> = hosts
        .iter()
        .map(|host| {
            let rdma = Rdma {
                rails: vec![network.device(&format!("nic-{}", host.name)).unwrap()],
                trusted_fabric: true,
                channel: ChannelConfig::default(),
            };
            Links::start(host, Some(rdma), |_| true)
        })
        .collect();
    hosts.iter().for_each(|host| host.wait_for_peers(1));
    let nodes: Vec<Node> = hosts.iter().map(|host| host.node("test")).collect();
    let subscriber = nodes[1].subscriber(TOPIC).reliable().create().unwrap();
    let publisher = nodes[0].publisher(TOPIC).deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    for number in 0..MESSAGES {
        publisher.put(&content(number, BYTES)).unwrap();
        let sample = receive(&subscriber);
        assert_eq!((sample.sequence(), sample.missed()), (number, 0));
        assert!(
            bytes_of(&sample) == content(number, BYTES),
            "message {number}"
        );
    }
    let said = |node: &Node| node.peers().unwrap().dma_bufs;
    until("hosts to say how cards know their pools", || {
        nodes.iter().all(|node| said(node).is_some())
    });
    [said(&nodes[0]), said(&nodes[1])]
}

#[test]
fn cards_know_pools_as_dma_bufs_where_their_driver_takes_them() {
    if !is_here("/dev/dmaplane-pool") {
        return;
    }
    let network = SoftwareNetwork::new(Faults::default());
    // Registering memory by its address fails.
    network.refuse("ibv_reg_mr", 95);
    assert_eq!(said_after_messages(&network), [Some(Ok(())), Some(Ok(()))]);
}

#[test]
fn cards_know_pools_by_their_addresses_where_their_driver_takes_no_dma_bufs_and_the_reason_is_said()
{
    if !is_here("/dev/dmaplane-pool") {
        return;
    }
    let network = SoftwareNetwork::new(Faults::default());
    network.refuse("ibv_reg_dmabuf_mr", 95);
    for said in said_after_messages(&network) {
        let why = said.unwrap().unwrap_err();
        assert!(why.contains("ibv_reg_dmabuf_mr"), "{why}");
    }
}
