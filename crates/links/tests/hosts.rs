//! Topics between hosts that are two or three daemons on this machine.
mod support;

use rgaps::{DType, Late, PeerState};
use rgaps_session::LANE_PORT;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use support::stream::all_talk;
use support::{
    content, hosts, nothing_more, ports, receive, try_put, until, wait_for_subscribers, Host,
    LIMIT, SHORT,
};

const SIZES: [usize; 7] = [0, 1, 100, 5_000, 70_000, 3_000_000, 12_345_678];

#[test]
fn a_message_crosses_once_for_all_subscribers_of_a_host() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscribers"));
    let subscribers: Vec<_> = (0..3)
        .map(|_| there.subscriber("photos").reliable().create().unwrap())
        .collect();
    let publisher = here
        .publisher("photos")
        .type_name("photo")
        .deadline(LIMIT)
        .create()
        .unwrap();
    wait_for_subscribers(&publisher, 3);
    for (number, bytes) in SIZES.into_iter().enumerate() {
        let mut loan = publisher.loan(bytes as u64).unwrap();
        loan.write(0, &content(number as u64, bytes)).unwrap();
        loan.set_tag(number as u64 + 100);
        if bytes == 5_000 {
            loan.set_shape(DType::U8, &[50, 100]).unwrap();
        }
        loan.publish().unwrap();
    }
    let mut addresses = Vec::new();
    for subscriber in &subscribers {
        for (number, bytes) in SIZES.into_iter().enumerate() {
            let sample = receive(subscriber);
            assert_eq!(sample.len(), bytes as u64);
            assert!(sample.as_slice().unwrap() == content(number as u64, bytes));
            assert_eq!(sample.tag(), number as u64 + 100);
            assert_eq!((sample.sequence(), sample.missed()), (number as u64, 0));
            let tensor = sample.tensor();
            assert_eq!(tensor.is_some(), bytes == 5_000);
            if let Some(tensor) = tensor {
                assert_eq!(
                    (tensor.ndim, tensor.shape[0], tensor.shape[1]),
                    (2, 50, 100)
                );
            }
            if number == 5 {
                addresses.push(sample);
            }
        }
    }
    // All subscribers get the same bytes.
    let first = addresses[0].address();
    assert!(addresses.iter().all(|sample| sample.address() == first));
    let topic = there.topic("photos").unwrap();
    assert_eq!(topic.row.type_name, "photo");
    // Each message crossed once, however many subscribers the host has.
    let total: u64 = SIZES.iter().map(|bytes| (*bytes).max(1) as u64).sum();
    until("the count of what crossed", || {
        let peers = here.peers().unwrap().peers;
        let row = peers.first();
        row.map(|row| (row.messages_out, row.bytes_out)) == Some((SIZES.len() as u64, total))
    });
    let remote = || here.topic("photos").unwrap().remote;
    until("the other host to be ready", || {
        remote().first().is_some_and(|row| row.ready)
    });
    let remote = remote();
    assert_eq!(remote.len(), 1);
    assert_eq!(
        (remote[0].host.as_str(), remote[0].subscribers),
        ("host-b", 3)
    );
    assert!(
        remote[0].path.contains("tcp") && remote[0].path.contains("no RDMA: links.trusted_fabric"),
        "{remote:?}"
    );
}

#[test]
fn publishers_may_come_first_and_both_ways_work_at_once() {
    let hosts = hosts(2, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    let publishers: Vec<_> = (0..2)
        .map(|at| {
            let topic = format!("from/{at}");
            nodes[at]
                .publisher(&topic)
                .deadline(LIMIT)
                .create()
                .unwrap()
        })
        .collect();
    let subscribers: Vec<_> = (0..2)
        .map(|at| {
            let topic = format!("from/{}", 1 - at);
            nodes[at].subscriber(&topic).reliable().create().unwrap()
        })
        .collect();
    for publisher in &publishers {
        wait_for_subscribers(publisher, 1);
    }
    for number in 0..300u64 {
        for publisher in &publishers {
            publisher.put(&content(number, 2_000)).unwrap();
        }
    }
    for subscriber in &subscribers {
        for number in 0..300u64 {
            let sample = receive(subscriber);
            assert_eq!(sample.sequence(), number);
            assert!(sample.as_slice().unwrap() == content(number, 2_000));
        }
    }
}

#[test]
fn nothing_comes_back_and_three_hosts_get_each_message_once() {
    const COUNT: u64 = 50;
    let hosts = hosts(3, "");
    let nodes: Vec<_> = hosts.iter().map(|host| host.node("member")).collect();
    all_talk(&nodes, COUNT, || {});
}

#[test]
fn who_comes_late_gets_the_history_also_on_another_host() {
    let hosts = hosts(3, "");
    let here = hosts[0].node("publisher");
    let publisher = here
        .publisher("map")
        .transient_local()
        .keep_last(4)
        .deadline(LIMIT)
        .create()
        .unwrap();
    for number in 0..10u64 {
        publisher.put(&content(number, 300_000)).unwrap();
    }
    let late = |host: usize| {
        let node = hosts[host].node("late");
        let subscriber = node
            .subscriber("map")
            .reliable()
            .late(Late::AllKept)
            .create()
            .unwrap();
        (node, subscriber)
    };
    let (_first_node, first) = late(1);
    for number in 6..10 {
        assert!(receive(&first).as_slice().unwrap() == content(number, 300_000));
    }
    publisher.put(&content(10, 300_000)).unwrap();
    assert!(receive(&first).as_slice().unwrap() == content(10, 300_000));
    // The first host does not get the history again that the next host gets.
    let (_second_node, second) = late(2);
    for number in 7..11 {
        assert!(receive(&second).as_slice().unwrap() == content(number, 300_000));
    }
    publisher.put(&content(11, 300_000)).unwrap();
    for subscriber in [&first, &second] {
        assert!(receive(subscriber).as_slice().unwrap() == content(11, 300_000));
    }
    // This history comes from the host's own publisher of the remote messages.
    let (_third_node, third) = late(1);
    for number in 8..12 {
        assert!(receive(&third).as_slice().unwrap() == content(number, 300_000));
    }
    // A late joiner gets the latest message, and those after it.
    let node = hosts[2].node("latest");
    let latest = node.subscriber("map").reliable().late(Late::Latest);
    let latest = latest.create().unwrap();
    assert!(receive(&latest).as_slice().unwrap() == content(11, 300_000));
    publisher.put(&content(12, 300_000)).unwrap();
    assert!(receive(&latest).as_slice().unwrap() == content(12, 300_000));
}

#[test]
fn the_history_of_several_publishers_is_in_the_order_of_publishing_on_another_host_too() {
    let hosts = hosts(2, "");
    let here = hosts[0].node("publishers");
    let publish = |number: u64| {
        let publisher = here.publisher("state").transient_local().keep_last(4);
        let publisher = publisher.deadline(LIMIT).create().unwrap();
        publisher.put(&content(number, 1_000)).unwrap();
        publisher
    };
    // The newest message is of a publisher that has left. The order of slots and publishers is another.
    let lives = publish(0);
    (1..4).for_each(|number| drop(publish(number)));
    lives.put(&content(4, 1_000)).unwrap();
    drop(publish(5));
    let node = hosts[1].node("late");
    let late = |late: Late| {
        let subscriber = node.subscriber("state").reliable().late(late);
        subscriber.create().unwrap()
    };
    // Of the publishers that have left, the topic keeps the last four messages: 1 is dropped. Of the one that lives, it keeps all.
    let first = late(Late::AllKept);
    for number in [0, 2, 3, 4, 5] {
        assert!(receive(&first).as_slice().unwrap() == content(number, 1_000));
    }
    // Messages that have landed are the history of later subscribers there.
    for (last, expected) in [(Late::Latest, 5..6), (Late::Last(3), 3..6)] {
        let subscriber = late(last);
        for number in expected {
            assert!(receive(&subscriber).as_slice().unwrap() == content(number, 1_000));
        }
        assert!(subscriber.try_recv().unwrap().is_none());
    }
}

#[test]
fn publishers_that_publish_nothing_leave_no_place_taken() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publishers"), hosts[1].node("subscriber"));
    let stays = here.publisher("often").deadline(LIMIT).create().unwrap();
    let mut subscriber = there.subscriber("often").reliable().create().unwrap();
    wait_for_subscribers(&stays, 1);
    let landed = |count: usize| {
        until("places", || {
            there
                .topic("often")
                .is_ok_and(|topic| topic.publishers.len() == count)
        });
    };
    // All rounds together have more publishers than a topic may have on a host. In the last round, the subscriber leaves while they exist.
    for round in 0..6 {
        let publishers = [0; 5].map(|_| here.publisher("often").create().unwrap());
        landed(6);
        if round == 5 {
            drop(subscriber);
            until("no path", || stays.subscribers() == 0);
            subscriber = there.subscriber("often").reliable().create().unwrap();
            wait_for_subscribers(&stays, 1);
            landed(6);
        }
        drop(publishers);
        landed(1);
    }
    stays.put(&content(1, 1000)).unwrap();
    assert!(receive(&subscriber).as_slice().unwrap() == content(1, 1000));
}

#[test]
fn a_slow_reliable_subscriber_holds_the_publisher_back_on_another_host() {
    let hosts = hosts(
        2,
        "in_flight_max = \"1MiB\"\noutage_max = \"1MiB\"\nheld_max = 8",
    );
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscriber"));
    let subscriber = there.subscriber("slow").reliable().create().unwrap();
    let publisher = here.publisher("slow").keep_last(4).deadline(SHORT);
    let publisher = publisher.create().unwrap();
    wait_for_subscribers(&publisher, 1);
    const COUNT: u64 = 200;
    // Nobody reads until the publisher is back-pressured.
    let mut next = 0;
    while try_put(&publisher, &content(next, 100_000)) {
        next += 1;
        assert!(next < COUNT, "nothing holds the publisher back");
    }
    let publishing = std::thread::spawn(move || {
        for number in next..COUNT {
            while !try_put(&publisher, &content(number, 100_000)) {}
        }
        publisher
    });
    for number in 0..COUNT {
        let sample = receive(&subscriber);
        assert_eq!((sample.sequence(), sample.missed()), (number, 0));
        assert!(sample.as_slice().unwrap() == content(number, 100_000));
    }
    let publisher = publishing.join().unwrap();
    nothing_more(&publisher, &[&subscriber]);
}

/// An address of this machine for links that listen at the fixed port. No other test uses it, since no other has this port.
fn own_address(port: u16) -> Ipv4Addr {
    let [high, low] = port.to_be_bytes();
    Ipv4Addr::new(127, high, low, 64)
}

fn with_fixed_port(at: usize, ports: &[u16]) -> Host {
    let links = format!(
        "host = \"host-{at}\"\nlisten = \"{}\"\ncontrol = [\"tcp/127.0.0.1:{}\"]\n\
         connect = [\"tcp/127.0.0.1:{}\"]\n",
        own_address(ports[at]),
        ports[at],
        ports[1 - at]
    );
    Host::start(&format!("host-{at}"), &links)
}

#[test]
fn lanes_use_one_port_that_a_firewall_can_be_told() {
    let ports = ports(2);
    let hosts = [0, 1].map(|at| with_fixed_port(at, &ports));
    hosts[0].wait_for_peers(1);
    for port in ports {
        let lanes = SocketAddr::from((own_address(port), LANE_PORT));
        assert!(
            TcpStream::connect(lanes).is_ok(),
            "nobody listens at {lanes}"
        );
    }
}

#[test]
fn links_that_were_killed_get_their_fixed_port_again() {
    let ports = ports(2);
    let mut hosts = [0, 1].map(|at| with_fixed_port(at, &ports));
    // Waits for both hosts: otherwise the second host's link with the killed links could be mistaken for that with the next ones.
    hosts.iter().for_each(|host| host.wait_for_peers(1));
    hosts[0].kill_links();
    let node = hosts[1].node("watch");
    until("the killed links to be missed", || {
        let peers = node.peers().unwrap_or_default().peers;
        peers.iter().all(|peer| peer.state != PeerState::Linked)
    });
    hosts[0].start_links();
    hosts[1].wait_for_peers(1);
    assert!(TcpStream::connect((own_address(ports[0]), LANE_PORT)).is_ok());
}
