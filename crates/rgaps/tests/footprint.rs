//! How much memory topics lease, and how listings report it.

use rgaps::{BlockSum, History, Loan, MemoryUses, Node, Publisher, PublisherQos, PublisherRow};
use rgaps_testkit::{Daemon, LIMIT as SOON};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// An RGB frame of 3840 by 2160.
const FRAME: u64 = 3840 * 2160 * 3;

/// The only publisher of a topic.
fn row(node: &Node, topic: &str) -> PublisherRow {
    let mut info = node.topic(topic).unwrap();
    assert_eq!(info.publishers.len(), 1);
    info.publishers.remove(0)
}

/// The leased bytes of all pools.
fn pool_leased(node: &Node) -> u64 {
    let pools = node.pools().unwrap();
    pools.iter().map(|pool| pool.leased_bytes).sum()
}

fn loans(publisher: &Publisher, count: usize, bytes: u64) -> Vec<Loan> {
    (0..count).map(|_| publisher.loan(bytes).unwrap()).collect()
}

/// Publishes a message without writing its bytes, so the kernel allocates no pages for it.
fn publish(publisher: &Publisher, bytes: u64) {
    publisher.loan(bytes).unwrap().publish().unwrap();
}

fn a_small_topic_stays_small(daemon: &Daemon) {
    let node = daemon.node("imu");
    let publisher = node.publisher("imu").create().unwrap();
    let reliable = node.subscriber("imu").reliable().create().unwrap();
    let lagging = node.subscriber("imu").create().unwrap();
    for number in 0..5000u64 {
        publisher.put(&[number.to_le_bytes(); 3].concat()).unwrap();
        assert_eq!(reliable.recv_timeout(SOON).unwrap().len(), 24);
    }
    assert!(lagging.missed() > 0 || lagging.try_recv().unwrap().is_some());
    let leased = row(&node, "imu").leased_bytes;
    assert!(leased <= 64 * KIB, "{leased} bytes");
    assert_eq!(pool_leased(&node), leased);
}

#[test]
fn a_topic_of_24_byte_messages_leases_64_kib_at_most() {
    a_small_topic_stays_small(&Daemon::start());
}

/// The pool consists of huge pages where the system has some, else of ordinary ones.
#[test]
fn a_small_topic_stays_small_in_a_pool_of_huge_pages() {
    let settings = "[pool.host]\ncap = \"8MiB\"\nsegment = \"2MiB\"\nhugepages = \"try\"\n";
    a_small_topic_stays_small(&Daemon::start_with(settings));
}

#[test]
fn a_4k_camera_leases_an_eighth_more_than_it_keeps_at_most() {
    let daemon = Daemon::start_with("[pool.host]\ncap = \"1GiB\"\n");
    let node = daemon.node("camera");
    let publisher = node.publisher("camera").keep_last(16).create().unwrap();
    let mut leases = Vec::new();
    for _ in 0..40 {
        publish(&publisher, FRAME);
        leases.push(publisher.leased_bytes());
    }
    // The history of 16 messages, and one loan: the oldest message leaves only when the loan is published.
    let needed = 17 * FRAME;
    let leased = row(&node, "camera").leased_bytes;
    assert!((needed..=needed * 9 / 8).contains(&leased), "{leased}");
    assert_eq!(leases.last(), Some(&leased));
    assert_eq!(
        leases[20], leased,
        "nothing is leased once its history is there"
    );
    leases.dedup();
    assert!(leases.len() <= 17, "{} leases", leases.len());
}

#[test]
fn memory_for_small_messages_is_leased_ahead() {
    let daemon = Daemon::start();
    let node = daemon.node("once");
    let publisher = node.publisher("once").create().unwrap();
    publish(&publisher, 60_000);
    let leased = publisher.leased_bytes();
    for _ in 0..40 {
        publish(&publisher, 60_000);
    }
    assert_eq!(publisher.leased_bytes(), leased);
    assert!(leased <= 8 * MIB + 64 * KIB, "{leased}");
}

#[test]
fn a_publisher_with_a_limit_leases_up_to_it() {
    let daemon = Daemon::start_with("[limits]\nlease_per_publisher = \"512KiB\"\n");
    let node = daemon.node("limited");
    // A full history would take more than the limit. The publisher leases up to the limit what its messages so far need.
    let publisher = node.publisher("limited").create().unwrap();
    for _ in 0..8 {
        publish(&publisher, 60_000);
    }
    let leased = publisher.leased_bytes();
    assert!((8 * 60_000..=512 * KIB).contains(&leased), "{leased}");
    let error = publisher.loan(60_000).expect_err("a refusal").to_string();
    assert!(error.contains("limits.lease_per_publisher"), "{error}");
}

#[test]
fn a_thousand_small_topics_fit_a_small_pool() {
    const TOPICS: u64 = 1000;
    let daemon = Daemon::start_with("[pool.host]\ncap = \"64MiB\"\nsegment = \"8MiB\"\n");
    let node = daemon.node("many");
    let publishers: Vec<Publisher> = (0..TOPICS)
        .map(|at| node.publisher(&format!("small/{at}")).create().unwrap())
        .collect();
    for _ in 0..3 {
        for publisher in &publishers {
            publisher.put(&[1; 24]).unwrap();
        }
    }
    assert_eq!(pool_leased(&node), TOPICS * 64 * KIB);
    drop(publishers);
    // A large message can use the memory that they returned.
    let large = node.publisher("large").loan_timeout(SOON);
    drop(large.create().unwrap().loan(60 * MIB).unwrap());
}

#[test]
fn memory_that_is_not_needed_is_given_back_and_leased_again() {
    let daemon = Daemon::start_with("[pool.host]\ncap = \"256MiB\"\n");
    let node = daemon.node("breathes");
    let qos = PublisherQos {
        history: History::KeepLast(1),
        max_loans: 128,
        ..PublisherQos::default()
    };
    let publisher = node.publisher("breathes").qos(qos).create().unwrap();
    for round in 0..3 {
        let open = loans(&publisher, 100, MIB);
        let leased = row(&node, "breathes").leased_bytes;
        assert!((100 * MIB..=113 * MIB).contains(&leased), "{leased}");
        drop(open);
        // The message in the history stays.
        publish(&publisher, 24);
        assert!(
            publisher.trim(0).unwrap() >= 100 * MIB - 64 * KIB,
            "round {round}"
        );
        let left = row(&node, "breathes").leased_bytes;
        assert_eq!((left, publisher.leased_bytes()), (64 * KIB, 64 * KIB));
        assert_eq!(pool_leased(&node), left);
    }
}

#[test]
fn topic_info_says_what_leased_memory_is_used_for() {
    let daemon = Daemon::start();
    let node = daemon.node("explains");
    let publisher = node.publisher("explained").keep_last(4).create().unwrap();
    assert_eq!(row(&node, "explained").uses, MemoryUses::default());
    let subscriber = node.subscriber("explained").create().unwrap();
    publish(&publisher, 10 * KIB);
    publish(&publisher, 10 * KIB);
    let held: Vec<_> = (0..2)
        .map(|_| subscriber.recv_timeout(SOON).unwrap())
        .collect();
    for _ in 0..5 {
        publish(&publisher, KIB);
    }
    let open = loans(&publisher, 3, 300);
    let sum = |blocks, bytes| BlockSum { blocks, bytes };
    let row = row(&node, "explained");
    assert_eq!(
        row.uses,
        MemoryUses {
            history: sum(4, 4 * KIB),
            loans: sum(3, 3 * 512),
            held: sum(2, 20 * KIB),
            replicas: sum(0, 0),
        }
    );
    assert_eq!(row.uses.bytes(), publisher.used_bytes());
    assert!(row.uses.bytes() <= row.leased_bytes);
    drop((held, open));
}
