//! Attachments, headers and parts cross links byte for byte: over TCP, over TLS, over RDMA (a network within this process), and
//! through a host between.
#[path = "support/authority.rs"]
mod authority;
mod support;
#[path = "support/within.rs"]
mod within;

use authority::{files, links, Authority};
use rgaps::{
    DType, Header, Node, PartSpec, Publisher, Subscriber, MAX_ATTACHMENT_BYTES, MAX_MESSAGE_PARTS,
};
use rgaps_transport::Rdma;
use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
use rgaps_verbs::ChannelConfig;
use support::{content, hosts, ports, receive, start_among, wait_for_subscribers, Host, LIMIT};
use within::{hosts_without_links, wait_for_rdma, Links};

/// Sizes of messages that travel in their frame, and in chunks.
const SIZES: [u64; 4] = [0, 100, 20_000, 3_000_001];

fn join(topic: &str, here: &Node, there: &Node) -> (Publisher, Subscriber) {
    let subscriber = there.subscriber(topic).reliable().create().unwrap();
    let publisher = here.publisher(topic).deadline(LIMIT).create().unwrap();
    wait_for_subscribers(&publisher, 1);
    (publisher, subscriber)
}

/// Publishes here messages with all kinds of metadata, and compares them there.
fn all_arrives(here: &Node, there: &Node) {
    let (publisher, subscriber) = join("metadata", here, there);
    let attachments = [&b""[..], b"odd", &[200; 300], &[7; MAX_ATTACHMENT_BYTES]];
    for (number, size) in SIZES.into_iter().enumerate() {
        for attachment in attachments {
            let bytes = content(number as u64, size as usize);
            let mut loan = publisher.loan(size).unwrap();
            loan.write(0, &bytes).unwrap();
            loan.set_attachment(attachment).unwrap();
            loan.publish().unwrap();
            let sample = receive(&subscriber);
            assert!(sample.as_slice().unwrap() == bytes);
            assert_eq!(sample.attachment().unwrap_or_default(), attachment);
            assert_eq!(sample.header().unwrap(), None);
        }
    }
    let header = Header::captured_now().frame_id("left").value("gain", 1.5);
    let names: Vec<String> = (0..MAX_MESSAGE_PARTS)
        .map(|n| format!("part {n}"))
        .collect();
    for (number, size) in SIZES.into_iter().enumerate() {
        let shape = [2, size / 2];
        let parts: Vec<_> = names
            .iter()
            .map(|name| PartSpec {
                name,
                dtype: DType::U8,
                shape: &shape,
            })
            .collect();
        // Small messages have all parts, large ones two.
        let parts = &parts[..if size > 20_000 { 2 } else { MAX_MESSAGE_PARTS }];
        let mut loan = publisher.loan_parts(parts).unwrap();
        loan.as_mut_slice().unwrap().fill(0xee);
        for spec in parts {
            let to = loan.part_mut(spec.name).unwrap();
            to.copy_from_slice(&content(number as u64, to.len()));
        }
        loan.set_header(&header).unwrap();
        loan.set_tag(5);
        let sent: Vec<_> = loan.parts().unwrap().iter().collect();
        let whole = loan.as_mut_slice().unwrap().to_vec();
        loan.publish().unwrap();
        let sample = receive(&subscriber);
        assert_eq!(sample.tag(), 5);
        assert!(sample.as_slice().unwrap() == whole);
        assert_eq!(sample.parts().unwrap().iter().collect::<Vec<_>>(), sent);
        let last = sample.part_slice(parts[parts.len() - 1].name).unwrap();
        assert!(last == content(number as u64, last.len()));
        assert_eq!(sample.header().unwrap().as_ref(), Some(&header));
    }
    // A message without metadata gets none of an earlier message's.
    publisher.put(b"plain").unwrap();
    let sample = receive(&subscriber);
    assert_eq!(sample.attachment(), None);
    assert!(sample.parts().unwrap().is_empty());
}

#[test]
fn attachments_and_parts_cross_a_link_over_tcp() {
    let hosts = hosts(2, "");
    all_arrives(&hosts[0].node("here"), &hosts[1].node("there"));
}

#[test]
fn attachments_and_parts_cross_a_link_over_tls() {
    let authority = Authority::new();
    let ports = ports(2);
    let hosts = [("host-a", 0), ("host-b", 1)].map(|(name, own)| {
        let more = files(&authority.ca(), &authority.certify(name));
        Host::start(name, &links(name, "tls", ports[own], ports[1 - own], &more))
    });
    all_arrives(&hosts[0].node("here"), &hosts[1].node("there"));
}

#[test]
fn attachments_and_parts_cross_a_link_over_rdma() {
    let network = SoftwareNetwork::new(Faults::default());
    let hosts = hosts_without_links("lanes = 2\n");
    let _links = hosts.each_ref().map(|host| {
        let rdma = Rdma {
            rails: vec![network.device(&format!("nic-{}", host.name)).unwrap()],
            trusted_fabric: true,
            channel: ChannelConfig::default(),
        };
        Links::start(host, Some(rdma), |_| true)
    });
    hosts.iter().for_each(|host| host.wait_for_peers(1));
    let (here, there) = (hosts[0].node("here"), hosts[1].node("there"));
    wait_for_rdma(&here);
    all_arrives(&here, &there);
}

#[test]
fn attachments_and_parts_are_carried_on_by_a_host_between() {
    let ports = ports(3);
    let hosts: Vec<Host> = [[1, 1], [0, 2], [1, 1]]
        .into_iter()
        .enumerate()
        .map(|(at, others)| start_among(&ports, at, &others, ""))
        .collect();
    all_arrives(&hosts[0].node("here"), &hosts[2].node("there"));
}
