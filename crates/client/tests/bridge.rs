//! Bridges between device topics and ordinary ones, in host memory and on the test driver. `HostPublisher` and
//! `HostSubscriber` take the place of kernels. tests/device tests real kernels in other processes, and kills processes.

use rgaps_client::{
    DeviceError, DeviceGeometry, DeviceRole, DeviceTopic, Direction, Domain, Node, OpenError,
    RefusalCode, Sample,
};
use rgaps_cuda::Driver;
use rgaps_device::{HostPublisher, HostSubscriber};
use rgaps_testkit::{content, until, Daemon};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);
const SIZES: DeviceGeometry = DeviceGeometry {
    depth: 4,
    blocks: 6,
    block_bytes: 4096,
};

/// The host's domain, and that of the test driver's GPU.
fn domains() -> [Domain; 2] {
    static DRIVER: OnceLock<Arc<Driver>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        rgaps_testkit::driver::use_test_driver(&[("DELAY_US", "200")]);
        Driver::load().unwrap()
    });
    let uuid = driver.devices().unwrap()[0].uuid;
    [Domain::Host, Domain::Cuda(uuid)]
}

fn node() -> (Daemon, Node) {
    let daemon = Daemon::start_with("[pool.cuda]\ncap = \"64MiB\"\n");
    let node = daemon.node("bridge");
    (daemon, node)
}

fn topic(domain: Domain) -> Arc<DeviceTopic> {
    Arc::new(DeviceTopic::create(domain, SIZES).unwrap())
}

fn payload(sequence: u64) -> Vec<u8> {
    content(sequence, 1 + sequence as usize * 37 % 4096)
}

fn bytes_of(sample: &Sample) -> Vec<u8> {
    let mut bytes = vec![0; sample.len() as usize];
    sample.read(0, &mut bytes).unwrap();
    bytes
}

/// Publishes as a kernel does, and waits for room. Returns the sequence number.
fn publish(publisher: &mut HostPublisher, bytes: &[u8]) -> u64 {
    let mut published = None;
    until("room in a device topic", || {
        // SAFETY: `bytes` is borrowed until `publish` returns, which has then copied it.
        let tried = unsafe { publisher.publish(bytes.as_ptr() as u64, bytes.len() as u64) };
        published = tried.unwrap().ok();
        published.is_some()
    });
    published.unwrap()
}

#[test]
fn what_a_kernel_publishes_hosts_receive() {
    for domain in domains() {
        let (_daemon, node) = node();
        let topic = topic(domain);
        let mut kernel = HostPublisher::attach(topic.clone()).unwrap();
        let bridge = node
            .bridge("camera", topic.clone(), Direction::ToHosts)
            .unwrap();
        let subscriber = node.subscriber("camera").reliable().create().unwrap();
        for sequence in 1..=50 {
            assert_eq!(publish(&mut kernel, &payload(sequence)), sequence);
            let sample = subscriber.recv_timeout(SOON).unwrap();
            assert_eq!((sample.tag(), sample.missed()), (sequence, 0));
            assert!(bytes_of(&sample) == payload(sequence), "{sequence}");
        }
        until("the last message to be counted", || {
            bridge.figures().forwarded == 50
        });
        assert_eq!(bridge.figures().failure, None);
    }
}

#[test]
fn a_reliable_host_holds_the_kernel_back_and_a_best_effort_one_does_not() {
    let [domain, _] = domains();
    let (_daemon, node) = node();
    let topic = topic(domain);
    let mut kernel = HostPublisher::attach(topic.clone()).unwrap();
    let _bridge = node
        .bridge("camera", topic.clone(), Direction::ToHosts)
        .unwrap();
    let best_effort = node.subscriber("camera").create().unwrap();
    for sequence in 1..=40 {
        publish(&mut kernel, &payload(sequence));
    }
    drop(best_effort);
    let reliable = node.subscriber("camera").reliable().create().unwrap();
    let bytes = payload(41);
    let mut published = 0;
    // Both rings fill, and the bridge may hold a message between them.
    until("the kernel to be held back", || {
        // SAFETY: `bytes` outlives the call, which has copied it when it returns.
        let tried = unsafe { kernel.publish(bytes.as_ptr() as u64, bytes.len() as u64) };
        match tried.unwrap() {
            Ok(_) => published += 1,
            Err(_) => return node.topics().unwrap()[0].waiting == 1,
        }
        false
    });
    for _ in 0..published {
        assert_eq!(reliable.recv_timeout(SOON).unwrap().missed(), 0);
    }
}

#[test]
fn what_hosts_publish_a_kernel_receives() {
    for domain in domains() {
        let (_daemon, node) = node();
        let topic = topic(domain);
        let mut kernel = HostSubscriber::join(topic.clone()).unwrap();
        let bridge = node
            .bridge("commands", topic.clone(), Direction::ToKernels)
            .unwrap();
        let publisher = node
            .publisher("commands")
            .domain(domain)
            .deadline(SOON)
            .create()
            .unwrap();
        for sequence in 1..=50u64 {
            publisher.put(&payload(sequence)).unwrap();
            let mut waiting = Vec::new();
            until("a message for the kernel", || {
                waiting = kernel.waiting().unwrap();
                !waiting.is_empty()
            });
            assert_eq!(waiting[0].sequence, sequence);
            assert_eq!(waiting[0].bytes, payload(sequence).len() as u64);
            kernel.release().unwrap();
        }
        // A message larger than a block: the bridge counts it as refused, and delivers the next one.
        publisher.put(&[0; 5000]).unwrap();
        publisher.put(b"next").unwrap();
        until("the next message", || {
            let waiting = kernel.waiting().unwrap();
            waiting.first().is_some_and(|message| message.bytes == 4)
        });
        let figures = bridge.figures();
        assert_eq!((figures.refused, figures.failure), (1, None));
    }
}

#[test]
fn the_next_bridge_goes_on_where_the_last_one_ended() {
    for domain in domains() {
        let (_daemon, node) = node();
        let topic = topic(domain);
        let mut kernel = HostPublisher::attach(topic.clone()).unwrap();
        let subscriber = node.subscriber("camera").reliable().create().unwrap();
        for round in 0..3 {
            let bridge = node
                .bridge("camera", topic.clone(), Direction::ToHosts)
                .unwrap();
            let first = 1 + round * 8;
            for sequence in first..first + 4 {
                publish(&mut kernel, &payload(sequence));
            }
            // Messages that were published while there was no bridge come first.
            let from = if round == 0 { first } else { first - 4 };
            for sequence in from..first + 4 {
                let sample = subscriber.recv_timeout(SOON).unwrap();
                assert_eq!(sample.tag(), sequence);
            }
            drop(bridge);
            for sequence in first + 4..first + 8 {
                publish(&mut kernel, &payload(sequence));
            }
        }
        let (taken, _) = topic.taken_and_evicted();
        assert_eq!(taken, 1, "all bridges had one seat");
    }
}

#[test]
fn an_evicted_bridge_says_so() {
    let [domain, _] = domains();
    let (_daemon, node) = node();
    let topic = topic(domain);
    let mut kernel = HostPublisher::attach(topic.clone()).unwrap();
    let bridge = node
        .bridge("camera", topic.clone(), Direction::ToHosts)
        .unwrap();
    topic.evict(topic.bridge_seat().unwrap()).unwrap();
    publish(&mut kernel, b"lost");
    until("the bridge to end", || bridge.figures().failure.is_some());
    let failure = bridge.figures().failure.unwrap();
    assert!(failure.contains("evicted"), "{failure}");
    drop(bridge);
    let subscriber = node.subscriber("camera").reliable().create().unwrap();
    let _bridge = node
        .bridge("camera", topic.clone(), Direction::ToHosts)
        .unwrap();
    publish(&mut kernel, b"next");
    assert_eq!(subscriber.recv_timeout(SOON).unwrap().tag(), 2);
}

#[test]
fn a_topic_has_one_bridge() {
    let [domain, _] = domains();
    let (_daemon, node) = node();
    let topic = topic(domain);
    let _bridge = node.bridge("a", topic.clone(), Direction::ToHosts).unwrap();
    let refused = node.bridge("b", topic, Direction::ToKernels).err();
    assert!(
        matches!(refused, Some(OpenError::Device(DeviceError::Bridged))),
        "{refused:?}"
    );
}

#[test]
fn a_device_topic_is_opened_by_name() {
    for domain in domains() {
        let (mut daemon, node) = node();
        let not_found = |name: &str| {
            let refused = node.open_device(name, None, DeviceRole::Publisher).err();
            let Some(OpenError::Client(rgaps_client::ClientError::Refused(refusal))) = refused
            else {
                panic!("{refused:?}");
            };
            assert_eq!(refusal.code, RefusalCode::NotFound);
        };
        not_found("camera");
        let made = topic(domain);
        let bridge = node
            .bridge("camera", made.clone(), Direction::ToHosts)
            .unwrap();
        let opened = node
            .open_device("/camera", None, DeviceRole::Publisher)
            .unwrap();
        let mut kernel = HostPublisher::attach(Arc::new(opened)).unwrap();
        let subscriber = node.subscriber("camera").reliable().create().unwrap();
        publish(&mut kernel, b"hello");
        assert_eq!(bytes_of(&subscriber.recv_timeout(SOON).unwrap()), b"hello");
        let reads = node
            .open_device("camera", Some(domain), DeviceRole::Subscriber)
            .unwrap();
        assert!(reads.take_seat().unwrap() > 0);
        // The bridge reports the device topic to the next daemon, too.
        daemon.restart();
        until("the next daemon to know the device topic", || {
            node.topics()
                .is_ok_and(|rows| rows.iter().any(|row| row.is_device))
        });
        drop(bridge);
        until("the bridge's publisher to leave", || {
            node.topics()
                .is_ok_and(|rows| rows.iter().all(|row| !row.is_device))
        });
        not_found("camera");
    }
}

#[test]
fn listings_say_who_waits() {
    let [domain, _] = domains();
    let (_daemon, node) = node();
    let topic = topic(domain);
    let mut kernel = HostPublisher::attach(topic.clone()).unwrap();
    let _bridge = node
        .bridge("camera", topic.clone(), Direction::ToHosts)
        .unwrap();
    let silent = topic.take_seat().unwrap();
    let device = |node: &Node| node.topic("camera").unwrap().device.unwrap();
    until("the seats to be listed", || device(&node).seats.len() == 2);
    let row = device(&node);
    assert_eq!(
        (row.domain, row.depth, row.blocks, row.block_bytes),
        (domain, 4, 6, 4096)
    );
    assert!(row.kernels_publish && row.seats[0].is_bridge && row.seats[0].joined);
    assert!(!row.seats[1].is_bridge && !row.seats[1].joined);
    // The reliable subscriber reads nothing. So the bridge stops, and the device topic's publisher waits for it.
    let reliable = node.subscriber("camera").reliable().create().unwrap();
    let bytes = payload(1);
    until("the publisher to wait for the bridge", || {
        // SAFETY: `bytes` outlives the call, which has copied it when it returns.
        let tried = unsafe { kernel.publish(bytes.as_ptr() as u64, bytes.len() as u64) };
        let row = device(&node);
        tried.unwrap().is_err() && row.waits_for(&row.seats[0])
    });
    topic.leave_seat(silent).unwrap();
    until("the seat to be gone", || device(&node).seats.len() == 1);
    drop(reliable);
}
