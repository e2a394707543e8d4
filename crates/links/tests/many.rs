//! Many hosts and topics. `HOSTS` and `TOPICS` say how many; `make links-many` runs ten and a thousand, with release
//! builds. Then the test idles for `IDLE_S` seconds, and prints how much of a core each daemon and links process uses meanwhile.
mod support;

use rgaps::{Node, Publisher, Subscriber};
use std::time::{Duration, Instant};
use support::{hosts, receive, wait_for_subscribers, Host, LIMIT};

const MESSAGES: u64 = 3;

fn number(name: &str, default: usize) -> usize {
    let number = std::env::var(name).ok();
    number.map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text:?}: it must be a number"))
    })
}

/// Seconds of a processor that a process has used.
fn cpu_s(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The fields after the name, which may contain any characters.
    let fields = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// The host that publishes a topic, and the one that reads it: all pairs in turn.
fn pair(topic: usize, hosts: usize) -> (usize, usize) {
    let from = topic % hosts;
    (from, (from + 1 + topic / hosts % (hosts - 1)) % hosts)
}

#[test]
fn many_topics_between_many_hosts() {
    let (count, topics) = (number("HOSTS", 4), number("TOPICS", 100));
    let hosts: Vec<Host> = hosts(count, "");
    hosts.iter().for_each(|host| host.wait_for_peers(count - 1));
    let nodes: Vec<Node> = hosts.iter().map(|host| host.node("member")).collect();
    let name = |topic: usize| format!("many/{topic}");
    let begun = Instant::now();
    let subscribers: Vec<Subscriber> = (0..topics)
        .map(|topic| {
            let node = &nodes[pair(topic, count).1];
            node.subscriber(&name(topic)).reliable().create().unwrap()
        })
        .collect();
    let publishers: Vec<Publisher> = (0..topics)
        .map(|topic| {
            let node = &nodes[pair(topic, count).0];
            let publisher = node.publisher(&name(topic)).deadline(LIMIT);
            publisher.keep_last(MESSAGES as u32).create().unwrap()
        })
        .collect();
    let joined = begun.elapsed();
    for publisher in &publishers {
        wait_for_subscribers(publisher, 1);
    }
    println!(
        "{count} hosts, {topics} topics: joined in {joined:.1?}, all paths ready after {:.1?}",
        begun.elapsed()
    );
    for number in 0..MESSAGES {
        for (topic, publisher) in publishers.iter().enumerate() {
            let text = format!("{topic} {number}");
            publisher.put(text.as_bytes()).unwrap();
        }
    }
    for (topic, subscriber) in subscribers.iter().enumerate() {
        for number in 0..MESSAGES {
            let sample = receive(subscriber);
            let expected = format!("{topic} {number}");
            assert_eq!(sample.as_slice().unwrap(), expected.as_bytes());
            assert_eq!((sample.sequence(), sample.missed()), (number, 0));
        }
    }
    println!("all messages were there after {:.1?}", begun.elapsed());
    let idle = Duration::from_secs(number("IDLE_S", 0) as u64);
    if idle.is_zero() {
        return;
    }
    // Lets the work of joining end first.
    std::thread::sleep(Duration::from_secs(5));
    let used = || -> Vec<[f64; 2]> {
        let processes = hosts.iter().map(|host| {
            let links = host.links.as_ref().unwrap().id();
            [cpu_s(host.daemon.id()), cpu_s(links)]
        });
        processes.collect()
    };
    let before = used();
    std::thread::sleep(idle);
    for ((host, before), after) in hosts.iter().zip(before).zip(used()) {
        let [daemon, links] =
            [0, 1].map(|at| (after[at] - before[at]) / idle.as_secs_f64() * 100.0);
        println!(
            "{}: idle, rgapsd {daemon:.2} % and rgaps-links {links:.2} % of a core",
            host.name
        );
    }
}
