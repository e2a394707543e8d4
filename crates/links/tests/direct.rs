//! Messages from GPU to GPU that network cards read and write themselves (GPUDirect): two hosts' links in this process, over
//! a network within it and a test driver whose GPU memory that network reaches. Nothing here is a network card.
mod support;
#[path = "support/within.rs"]
mod within;

use rgaps::{Domain, Node, PathKind, Publisher, RemoteRow, Subscriber};
use rgaps_cuda::Driver;
use rgaps_test_driver::TestDriver;
use rgaps_testkit::driver::use_test_driver;
use rgaps_transport::Rdma;
use rgaps_verbs::in_process::{Faults, SoftwareNetwork};
use rgaps_verbs::ChannelConfig;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use support::{bytes_of, content, receive, until, wait_for_subscribers, Host, LIMIT};
use within::{hosts_without_links, wait_for_rdma, Links};

/// Sizes of messages: empty, sent in their frame, and sent in chunks that cards write; also sizes that would be copied at once or in
/// parts if cards did not write them.
const SIZES: [usize; 5] = [0, 1000, 300_001, 3_000_001, (9 << 20) + 5];
const TOPIC: &str = "direct/frames";

/// The whole process has one driver, so this lets one test run at a time.
struct Gpu {
    domain: Domain,
    driver: TestDriver,
    trace: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

fn gpu() -> Gpu {
    static TURN: Mutex<()> = Mutex::new(());
    static FOUND: OnceLock<(Domain, PathBuf)> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let library = rgaps_test_driver::library();
    let (domain, trace) = FOUND.get_or_init(|| {
        let trace = std::env::temp_dir().join(format!("rgaps-direct-{}", std::process::id()));
        let file = trace.to_str().unwrap();
        use_test_driver(&[("DELAY_US", "500"), ("SEED", "3"), ("TRACE", file)]);
        let devices = Driver::load().unwrap().devices().unwrap();
        (Domain::Cuda(devices[0].uuid), trace)
    });
    Gpu {
        domain: *domain,
        driver: TestDriver::loaded(&library),
        trace: trace.clone(),
        _turn: turn,
    }
}

impl Gpu {
    /// Bytes that this process copied to or from the GPU, except those that tests read and write.
    fn copied(&self) -> u64 {
        let text = std::fs::read_to_string(&self.trace).unwrap_or_default();
        let ours = format!("{} cuMemcpyAsync ", std::process::id());
        let bytes = text.lines().filter_map(|line| line.strip_prefix(&ours));
        bytes.filter_map(|bytes| bytes.parse::<u64>().ok()).sum()
    }

    fn flushes(&self) -> u64 {
        self.driver.calls("cuFlushGPUDirectRDMAWrites")
    }
}

/// Two hosts, with their links in this process.
struct Hosts {
    network: SoftwareNetwork,
    here: Node,
    there: Node,
    _links: [Links; 2],
    _hosts: [Host; 2],
}

impl Hosts {
    fn new(network: SoftwareNetwork) -> Hosts {
        let hosts = hosts_without_links(
            "lanes = 2\n[[links.landing]]\nname = \"up\"\ntopics = [\"direct/**\"]\ndomain = \"cuda:0\"\n",
        );
        let links = hosts.each_ref().map(|host| {
            let rdma = Rdma {
                rails: vec![network.device(&format!("nic-{}", host.name)).unwrap()],
                trusted_fabric: true,
                channel: ChannelConfig::default(),
            };
            Links::start(host, Some(rdma), |_| true)
        });
        hosts.iter().for_each(|host| host.wait_for_peers(1));
        let [here, there] = [hosts[0].node("here"), hosts[1].node("there")];
        wait_for_rdma(&here);
        wait_for_rdma(&there);
        Hosts {
            here,
            there,
            network,
            _links: links,
            _hosts: hosts,
        }
    }

    /// A publisher here and a subscriber there, on the GPU.
    fn join(&self, topic: &str, gpu: &Gpu) -> (Publisher, Subscriber) {
        let subscriber = self.there.subscriber(topic).domain(gpu.domain);
        let subscriber = subscriber.reliable().create().unwrap();
        let publisher = self.here.publisher(topic).domain(gpu.domain);
        let publisher = publisher.deadline(LIMIT).create().unwrap();
        wait_for_subscribers(&publisher, 1);
        (publisher, subscriber)
    }

    /// Publishes and reads the first message, and waits until cards read and write the next ones.
    fn wait_direct(&self, topic: &str, gpu: &Gpu, publisher: &Publisher, subscriber: &Subscriber) {
        publish(publisher, 0, 300_001);
        expect(subscriber, gpu, 0, 300_001);
        self.wait_said(
            topic,
            "read on the GPU by the card (GPUDirect)",
            "network cards write it there (GPUDirect)",
        );
    }

    /// Waits until `topic info` of the publisher's host says that the topic does not go to the other, for this reason.
    fn wait_refused(&self, topic: &str, words: &[&str]) {
        until(words[0], || {
            let row = said(&self.here, topic, "host-b");
            let is_so = |path: &str| words.iter().all(|word| path.contains(word));
            row.is_some_and(|row| !row.ready && is_so(&row.path))
        });
    }

    /// Waits until `topic info` of each host says this of the other.
    fn wait_said(&self, topic: &str, sends: &str, lands: &str) {
        for (node, other, what) in [
            (&self.here, "host-b", sends),
            (&self.there, "host-a", lands),
        ] {
            until(what, || {
                let said = said(node, topic, other);
                said.is_some_and(|row| row.ready && row.path.contains(what))
            });
        }
    }
}

fn said(node: &Node, topic: &str, host: &str) -> Option<RemoteRow> {
    let info = node.topic(topic).ok()?;
    info.remote.into_iter().find(|row| row.host == host)
}

fn publish(publisher: &Publisher, number: u64, bytes: usize) {
    let mut loan = publisher.loan(bytes as u64).unwrap();
    loan.write(0, &content(number, bytes)).unwrap();
    loan.publish().unwrap();
}

fn expect(subscriber: &Subscriber, gpu: &Gpu, number: u64, bytes: usize) {
    let sample = receive(subscriber);
    let is = (sample.sequence(), sample.missed(), sample.domain());
    assert_eq!(is, (number, 0, gpu.domain));
    assert!(
        bytes_of(&sample) == content(number, bytes),
        "message {number}"
    );
}

#[test]
fn cards_read_and_write_gpus_and_nothing_of_large_messages_is_copied() {
    let gpu = gpu();
    let hosts = Hosts::new(SoftwareNetwork::new(Faults::default()));
    let (publisher, subscriber) = hosts.join(TOPIC, &gpu);
    hosts.wait_said(TOPIC, "GPUDirect)", "lands in cuda");
    // After the first message, the links know the memory.
    hosts.wait_direct(TOPIC, &gpu, &publisher, &subscriber);
    for (number, bytes) in (1..).zip(SIZES.into_iter().chain(SIZES)) {
        let (copied, flushes) = (gpu.copied(), gpu.flushes());
        publish(&publisher, number, bytes);
        expect(&subscriber, &gpu, number, bytes);
        let is_direct = bytes >= 300_000;
        let most = if is_direct { 0 } else { bytes as u64 };
        assert_eq!(gpu.copied() - copied, most, "{bytes} bytes");
        assert_eq!(
            gpu.flushes() - flushes,
            u64::from(is_direct),
            "{bytes} bytes"
        );
    }
}

#[test]
fn what_cards_refuse_goes_through_pinned_memory_and_the_reason_is_said() {
    let gpu = gpu();
    let network = SoftwareNetwork::new(Faults::default());
    network.refuse("ibv_reg_dmabuf_mr", 95);
    let hosts = Hosts::new(network);
    let (publisher, subscriber) = hosts.join(TOPIC, &gpu);
    let flushes = gpu.flushes();
    for (number, bytes) in (0..).zip(SIZES) {
        let copied = gpu.copied();
        publish(&publisher, number, bytes);
        expect(&subscriber, &gpu, number, bytes);
        assert_eq!(
            gpu.copied() - copied,
            2 * bytes as u64,
            "down and up, {bytes} bytes"
        );
    }
    assert_eq!(gpu.flushes(), flushes);
    let why = "no GPUDirect: registering memory with nic-host-a failed";
    hosts.wait_said(TOPIC, why, &why.replace("host-a", "host-b"));
}

#[test]
fn a_link_that_is_lost_on_the_way_goes_on_through_the_host_and_loses_nothing() {
    let gpu = gpu();
    let hosts = Hosts::new(SoftwareNetwork::new(Faults {
        seed: 11,
        delay_one_in: 3,
        ..Faults::default()
    }));
    let (publisher, subscriber) = hosts.join(TOPIC, &gpu);
    hosts.wait_said(TOPIC, "GPUDirect)", "lands in cuda");
    const MESSAGES: u64 = 40;
    let bytes = |number: u64| SIZES[number as usize % SIZES.len()];
    let reading = std::thread::spawn({
        let domain = gpu.domain;
        move || {
            for number in 0..MESSAGES {
                let sample = receive(&subscriber);
                let is = (sample.sequence(), sample.missed(), sample.domain());
                assert_eq!(is, (number, 0, domain));
                let expected = content(number, bytes(number));
                assert!(bytes_of(&sample) == expected, "message {number}");
            }
            subscriber
        }
    });
    for number in 0..MESSAGES {
        match number {
            12 => hosts.network.set_link(false),
            28 => hosts.network.set_link(true),
            _ => {}
        }
        publish(&publisher, number, bytes(number));
    }
    let subscriber = reading.join().unwrap();
    // The path becomes GPUDirect again.
    hosts.wait_said(
        TOPIC,
        "read on the GPU by the card (GPUDirect)",
        "network cards write it there (GPUDirect)",
    );
    let copied = gpu.copied();
    publish(&publisher, MESSAGES, 3_000_001);
    expect(&subscriber, &gpu, MESSAGES, 3_000_001);
    assert_eq!(gpu.copied(), copied, "it is direct again");
}

/// Without a rule, messages land in the topic's domain on this host.
#[test]
fn a_topic_that_lives_on_a_gpu_is_written_there() {
    const LIVES: &str = "lives";
    let gpu = gpu();
    let hosts = Hosts::new(SoftwareNetwork::new(Faults::default()));
    let local = hosts.there.publisher(LIVES).domain(gpu.domain);
    let local = local.create().unwrap();
    let (publisher, subscriber) = hosts.join(LIVES, &gpu);
    hosts.wait_direct(LIVES, &gpu, &publisher, &subscriber);
    drop(local);
}

#[test]
fn gpudirect_is_met_where_cards_read_and_write_gpus() {
    const REQUIRED: &str = "direct/required";
    let gpu = gpu();
    let hosts = Hosts::new(SoftwareNetwork::new(Faults::default()));
    let subscriber = hosts.there.subscriber(REQUIRED).domain(gpu.domain);
    let subscriber = subscriber.reliable().require(PathKind::GpuDirect);
    let subscriber = subscriber.create().unwrap();
    let publisher = hosts.here.publisher(REQUIRED).domain(gpu.domain);
    let publisher = publisher.deadline(LIMIT).require(PathKind::GpuDirect);
    let publisher = publisher.create().unwrap();
    wait_for_subscribers(&publisher, 1);
    hosts.wait_direct(REQUIRED, &gpu, &publisher, &subscriber);
    let copied = gpu.copied();
    publish(&publisher, 1, 3_000_001);
    expect(&subscriber, &gpu, 1, 3_000_001);
    assert_eq!(gpu.copied(), copied);
    // A later subscriber is not refused either, unless it requires a path that messages of other hosts cannot have.
    let late = || hosts.there.subscriber(REQUIRED).domain(gpu.domain);
    late().require(PathKind::GpuDirect).create().unwrap();
    let refused = late().require(PathKind::Pinned).create().unwrap_err();
    assert!(
        refused.to_string().contains("this one is gpudirect"),
        "{refused}"
    );
}

/// A host that waits for the topic counts as a subscriber at once, before it has reported how messages land there.
#[test]
fn a_publisher_that_requires_gpudirect_and_comes_where_a_host_waits_loses_nothing() {
    const WAITS: &str = "direct/waits";
    let gpu = gpu();
    let hosts = Hosts::new(SoftwareNetwork::new(Faults::default()));
    let subscriber = hosts.there.subscriber(WAITS).domain(gpu.domain);
    let subscriber = subscriber.reliable().create().unwrap();
    until("the host to wait", || {
        said(&hosts.here, WAITS, "host-b").is_some_and(|row| row.ready)
    });
    let publisher = hosts.here.publisher(WAITS).domain(gpu.domain);
    let publisher = publisher.deadline(LIMIT).require(PathKind::GpuDirect);
    let publisher = publisher.create().unwrap();
    wait_for_subscribers(&publisher, 1);
    hosts.wait_direct(WAITS, &gpu, &publisher, &subscriber);
}

/// A refused member is told the actual path, and the card's reason.
#[test]
fn gpudirect_is_refused_with_the_reason_where_cards_refuse_the_gpu() {
    let gpu = gpu();
    let network = SoftwareNetwork::new(Faults::default());
    network.refuse("ibv_reg_dmabuf_mr", 95);
    let hosts = Hosts::new(network);
    let reader = |topic| hosts.there.subscriber(topic).domain(gpu.domain).reliable();
    let writer = |topic| hosts.here.publisher(topic).domain(gpu.domain);
    // A subscriber of a topic whose messages arrive already.
    let (publisher, subscriber) = hosts.join("direct/any", &gpu);
    publish(&publisher, 0, 1000);
    expect(&subscriber, &gpu, 0, 1000);
    let late = reader("direct/any").require(PathKind::GpuDirect).create();
    let late = late.unwrap_err().to_string();
    let words = [
        "the subscriber requires a path of gpudirect or better, and this one is rdma",
        "registering memory with nic-host-a failed",
    ];
    assert!(words.iter().all(|word| late.contains(word)), "{late}");
    // A subscriber that is older than the publisher: the publisher's messages do not go there.
    let first = reader("direct/first").require(PathKind::GpuDirect);
    let _first = first.create().unwrap();
    let unserved = writer("direct/first").create().unwrap();
    hosts.wait_refused("direct/first", &words);
    // A publisher that requires GPUDirect.
    let _strict = reader("direct/strict").create().unwrap();
    let strict = writer("direct/strict").require(PathKind::GpuDirect);
    let strict = strict.create().unwrap();
    hosts.wait_refused(
        "direct/strict",
        &[
            "the publisher requires a path of gpudirect or better",
            words[1],
        ],
    );
    assert_eq!((unserved.subscribers(), strict.subscribers()), (0, 0));
}

#[test]
fn gpudirect_is_refused_where_messages_live_or_land_in_the_memory_of_a_host() {
    let gpu = gpu();
    let hosts = Hosts::new(SoftwareNetwork::new(Faults::default()));
    let strict = |topic, domain| {
        let publisher = hosts.here.publisher(topic).domain(domain);
        publisher.require(PathKind::GpuDirect).create().unwrap()
    };
    let _there = hosts.there.subscriber("direct/host").create().unwrap();
    let _lives = strict("direct/host", Domain::Host);
    hosts.wait_refused(
        "direct/host",
        &["this one is rdma: the messages live in the host's memory"],
    );
    // No rule lets this topic land on a GPU.
    let _there = hosts.there.subscriber("lands").create().unwrap();
    let _lands = strict("lands", gpu.domain);
    hosts.wait_refused(
        "lands",
        &["this one is rdma: on host-b: they land in the host's memory"],
    );
}

/// When the RDMA lanes are lost, the path is TCP; messages that are published meanwhile are left out.
#[test]
fn a_publisher_that_requires_gpudirect_is_not_served_over_tcp() {
    const LOST: &str = "direct/lost";
    let gpu = gpu();
    let hosts = Hosts::new(SoftwareNetwork::new(Faults::default()));
    let subscriber = hosts.there.subscriber(LOST).domain(gpu.domain);
    let subscriber = subscriber.reliable().create().unwrap();
    let publisher = hosts.here.publisher(LOST).domain(gpu.domain);
    let publisher = publisher.deadline(LIMIT).require(PathKind::GpuDirect);
    let publisher = publisher.create().unwrap();
    wait_for_subscribers(&publisher, 1);
    publish(&publisher, 0, 300_001);
    expect(&subscriber, &gpu, 0, 300_001);
    hosts.network.set_link(false);
    hosts.wait_refused(
        LOST,
        &["the publisher requires a path of gpudirect or better, and this one is tcp"],
    );
    publish(&publisher, 1, 300_001);
    hosts.network.set_link(true);
    wait_for_subscribers(&publisher, 1);
    publish(&publisher, 2, 300_001);
    let sample = receive(&subscriber);
    assert!(bytes_of(&sample) == content(2, 300_001));
}
