//! The history that a late joiner on another host gets. Its host takes history only once it has such a subscriber.
mod support;

use rgaps::{Late, Node, Publisher, Subscriber};
use rgaps_testkit::{resume, stop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use support::stream::crossed;
use support::{
    hosts, last_message, nothing_more, ports, receive, start_among, until, wait_for_subscribers,
    Host, LIMIT, LOOK_AGAIN,
};

/// A message of a topic that crosses slowly takes some seconds.
const SLOW: &str = "outage_ms = 300000\n[[links.quotas]]\nname = \"slow\"\n\
                    topics = [\"slow/**\"]\nrate_max = 3000";
const SLOW_BYTES: usize = 3000;

/// A publisher whose messages have consecutive tags.
struct Tagged {
    publisher: Publisher,
    bytes: usize,
    next: u64,
}

impl Tagged {
    fn new(node: &Node, topic: &str, bytes: usize) -> Tagged {
        let publisher = node.publisher(topic).transient_local().keep_last(8);
        Tagged {
            publisher: publisher.deadline(LIMIT).create().unwrap(),
            bytes,
            next: 0,
        }
    }

    fn put(&mut self, count: u64) {
        for _ in 0..count {
            self.put_tagged(self.next);
            self.next += 1;
        }
    }

    fn put_tagged(&self, tag: u64) {
        let mut loan = self.publisher.loan(self.bytes as u64).unwrap();
        loan.write(0, &vec![tag as u8; self.bytes]).unwrap();
        loan.set_tag(tag);
        loan.publish().unwrap();
    }
}

fn joins(node: &Node, topic: &str, late: Late) -> Subscriber {
    let subscriber = node.subscriber(topic).reliable().late(late);
    subscriber.create().unwrap()
}

/// Receives messages with these tags, in this order, and none missed.
fn gets(subscriber: &Subscriber, tags: impl IntoIterator<Item = u64>) {
    for tag in tags {
        let sample = receive(subscriber);
        assert_eq!((sample.tag(), sample.missed()), (tag, 0));
        let payload = sample.as_slice().unwrap();
        assert!(payload.iter().all(|byte| *byte == tag as u8), "{tag}");
    }
}

#[test]
fn the_first_late_joiner_on_another_host_gets_the_newest_messages_and_no_more() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("late"));
    for reliable in [true, false] {
        for (late, first) in [(Late::Latest, 4), (Late::Last(3), 2), (Late::AllKept, 0)] {
            let topic = format!("map/{first}/{reliable}");
            let mut map = Tagged::new(&here, &topic, 1000);
            map.put(5);
            let mut builder = there.subscriber(&topic).late(late);
            if reliable {
                builder = builder.reliable();
            }
            let subscriber = builder.create().unwrap();
            gets(&subscriber, first..5);
            wait_for_subscribers(&map.publisher, 1);
            map.put(2);
            gets(&subscriber, 5..7);
            nothing_more(&map.publisher, &[&subscriber]);
        }
    }
}

#[test]
fn the_newest_are_those_of_all_publishers_of_the_other_host() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publishers"), hosts[1].node("late"));
    for (late, expected) in [
        (Late::Latest, 7..8),
        (Late::Last(3), 5..8),
        (Late::AllKept, 0..8),
    ] {
        let topic = format!("state/{}", expected.start);
        let publishers = [0; 3].map(|_| Tagged::new(&here, &topic, 1000));
        for (tag, of) in [0, 0, 1, 0, 2, 1, 0, 1].into_iter().enumerate() {
            publishers[of].put_tagged(tag as u64);
        }
        let subscriber = joins(&there, &topic, late);
        gets(&subscriber, expected);
        publishers[2].put_tagged(8);
        gets(&subscriber, 8..9);
        nothing_more(&publishers[0].publisher, &[&subscriber]);
    }
}

#[test]
fn the_newest_are_those_of_both_hosts() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("late"));
    // The message of the subscriber's own host is older than the other host's, or newer.
    for (local_first, expected) in [(true, vec![0, 3]), (false, vec![3])] {
        let topic = format!("both/{local_first}");
        let remote = Tagged::new(&here, &topic, 1000);
        let local = Tagged::new(&there, &topic, 1000);
        let of = |tag| match (tag == 0) == local_first {
            true => &local,
            false => &remote,
        };
        (0..4).for_each(|tag| of(tag).put_tagged(tag));
        let subscriber = joins(&there, &topic, Late::Latest);
        gets(&subscriber, expected);
        wait_for_subscribers(&remote.publisher, 1);
        remote.put_tagged(4);
        gets(&subscriber, 4..5);
    }
}

#[test]
fn no_message_is_missed_or_doubled_between_the_history_and_what_is_published_meanwhile() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("late"));
    for late in [Late::Latest, Late::Last(5), Late::AllKept, Late::Nothing] {
        let topic = format!("goes-on/{late:?}").replace(['(', ')'], "-");
        let mut tagged = Tagged::new(&here, &topic, 20_000);
        tagged.put(8);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let publishing = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                tagged.put(1);
                // Leaves the processor to the hosts; nothing depends on how long.
                std::thread::sleep(LOOK_AGAIN);
            }
            tagged.publisher.put(last_message()).unwrap();
            tagged
        });
        let subscriber = joins(&there, &topic, late);
        let first = receive(&subscriber).tag();
        gets(&subscriber, first + 1..first + 60);
        stop.store(true, Ordering::Relaxed);
        let published = publishing.join().unwrap().next;
        gets(&subscriber, first + 60..published);
        assert_eq!(receive(&subscriber).as_slice().unwrap(), last_message());
    }
}

#[test]
fn history_that_another_wants_is_none_of_a_live_subscribers() {
    let hosts = hosts(2, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscribers"));
    let mut map = Tagged::new(&here, "map", 1000);
    map.put(5);
    let live = joins(&there, "map", Late::Nothing);
    wait_for_subscribers(&map.publisher, 1);
    let late = joins(&there, "map", Late::Last(2));
    gets(&late, 3..5);
    wait_for_subscribers(&map.publisher, 2);
    map.put(1);
    for subscriber in [&live, &late] {
        gets(subscriber, 5..6);
    }
    nothing_more(&map.publisher, &[&live, &late]);
}

#[test]
fn a_host_that_had_only_live_subscribers_gets_the_history_when_one_wants_it_also_beside_another_host(
) {
    let hosts = hosts(3, "");
    let (here, there) = (hosts[0].node("publisher"), hosts[1].node("subscribers"));
    let mut map = Tagged::new(&here, "map", 1000);
    map.put(5);
    let elsewhere = joins(&hosts[2].node("late"), "map", Late::AllKept);
    gets(&elsewhere, 0..5);
    let live = joins(&there, "map", Late::Nothing);
    wait_for_subscribers(&map.publisher, 2);
    let late = joins(&there, "map", Late::Last(2));
    gets(&late, 3..5);
    wait_for_subscribers(&map.publisher, 3);
    map.put(1);
    for subscriber in [&live, &late, &elsewhere] {
        gets(subscriber, 5..6);
    }
    nothing_more(&map.publisher, &[&live, &late, &elsewhere]);
}

/// Three hosts in a row: the second one is linked with both others. With a node on each.
fn row(config: &str) -> ([Host; 3], [Node; 3]) {
    let ports = ports(3);
    let around: [&[usize]; 3] = [&[1], &[0, 2], &[1]];
    let hosts = [0, 1, 2].map(|at| start_among(&ports, at, around[at], config));
    let nodes = [0, 1, 2].map(|at| hosts[at].node("member"));
    (hosts, nodes)
}

#[test]
fn a_late_joiner_that_is_reached_through_another_host_gets_the_newest_messages_too() {
    let (_hosts, nodes) = row("");
    // The host between has no subscriber.
    let mut map = Tagged::new(&nodes[0], "map", 1000);
    map.put(5);
    let far = joins(&nodes[2], "map", Late::Latest);
    gets(&far, 4..5);
    wait_for_subscribers(&map.publisher, 1);
    map.put(1);
    gets(&far, 5..6);
    // The host between subscribes first. Its live messages are history for the host behind it.
    let mut state = Tagged::new(&nodes[0], "state", 1000);
    state.put(5);
    let near = joins(&nodes[1], "state", Late::Last(3));
    gets(&near, 2..5);
    wait_for_subscribers(&state.publisher, 1);
    state.put(1);
    gets(&near, 5..6);
    let far = joins(&nodes[2], "state", Late::Last(2));
    gets(&far, 4..6);
    wait_for_subscribers(&state.publisher, 2);
    state.put(1);
    for subscriber in [&near, &far] {
        gets(subscriber, 6..7);
    }
    nothing_more(&state.publisher, &[&near, &far]);
}

#[test]
fn a_late_joiner_behind_a_host_that_is_held_back_gets_the_history_whole() {
    for (late, first) in [(Late::AllKept, 6), (Late::Last(3), 11), (Late::Latest, 13)] {
        let (_hosts, nodes) = row("");
        let near = joins(&nodes[1], "log", Late::Nothing);
        let mut log = Tagged::new(&nodes[0], "log", 1000);
        wait_for_subscribers(&log.publisher, 1);
        // Nobody reads on host-b: eight messages land, and the link holds the others.
        log.put(14);
        until("the link", || crossed(&nodes[0], "host-b") == 14);
        let far = joins(&nodes[2], "log", late);
        wait_for_subscribers(&log.publisher, 2);
        gets(&near, 0..14);
        gets(&far, first..14);
        log.put(1);
        for subscriber in [&near, &far] {
            gets(subscriber, 14..15);
        }
        nothing_more(&log.publisher, &[&near, &far]);
    }
}

#[test]
fn a_late_joiner_does_not_stop_links_that_hold_all_that_they_may() {
    let (_hosts, nodes) = row("held_max = 6");
    let near = joins(&nodes[1], "log", Late::Nothing);
    let mut log = Tagged::new(&nodes[0], "log", 1000);
    wait_for_subscribers(&log.publisher, 1);
    // Nobody reads on host-b: eight messages land, the link holds six, and six wait for the link.
    log.put(20);
    until("the link", || crossed(&nodes[0], "host-b") == 14);
    let far = joins(&nodes[2], "log", Late::AllKept);
    wait_for_subscribers(&log.publisher, 2);
    gets(&near, 0..20);
    let first = receive(&far).tag();
    assert!(first <= 12, "{first}");
    gets(&far, first + 1..20);
    log.put(1);
    for subscriber in [&near, &far] {
        gets(subscriber, 20..21);
    }
}

/// How many messages of a topic's publishers this host has.
fn landed(there: &Node, topic: &str) -> u64 {
    let topic = there.topic(topic);
    let publishers = topic.map_or_else(|_| Vec::new(), |topic| topic.publishers);
    let published = publishers.iter().map(|row| row.head - row.start);
    published.sum()
}

fn links_of(host: &Host) -> u32 {
    host.links.as_ref().expect("they were started").id()
}

/// A subscriber that has got a part of its history: some of the five messages have landed, and the sending links are stopped. If all
/// five landed before that, the test tries again with another topic.
fn on_its_way(hosts: &[Host], there: &Node, late: Late) -> (Tagged, Subscriber) {
    let links = links_of(&hosts[0]);
    let mut found = None;
    let mut topics = (0..).map(|number| format!("slow/map/{number}"));
    until("history that is on its way", || {
        let topic = topics.next().expect("there is always another");
        let mut map = Tagged::new(&hosts[0].node("publisher"), &topic, SLOW_BYTES);
        map.put(5);
        let subscriber = joins(there, &topic, late);
        until("history to land", || landed(there, &topic) > 0);
        stop(links);
        if landed(there, &topic) < 5 {
            found = Some((map, subscriber));
        } else {
            resume(links);
        }
        found.is_some()
    });
    found.expect("it was waited for")
}

/// Checks a subscriber that did not wait for all of the history: it got the newest message that had landed, and gets all that land later.
fn gets_what_landed_and_the_rest(subscriber: &Subscriber, first: u64) {
    assert!(first < 4, "history had landed that was on its way");
    gets(subscriber, first + 1..5);
}

#[test]
fn the_history_of_a_publisher_that_ends_while_it_is_on_its_way_comes_whole() {
    let hosts = hosts(2, SLOW);
    let there = hosts[1].node("late");
    let (map, subscriber) = on_its_way(&hosts, &there, Late::Latest);
    drop(map);
    resume(links_of(&hosts[0]));
    gets(&subscriber, 4..5);
    let next = Tagged::new(&hosts[0].node("next"), subscriber.topic(), 10);
    wait_for_subscribers(&next.publisher, 1);
    nothing_more(&next.publisher, &[&subscriber]);
}

#[test]
fn links_that_die_where_history_lands_leave_what_has_landed_and_the_next_ones_bring_the_rest() {
    let mut hosts = hosts(2, SLOW);
    let there = hosts[1].node("late");
    let (map, subscriber) = on_its_way(&hosts, &there, Late::Latest);
    hosts[1].kill_links();
    let first = receive(&subscriber).tag();
    resume(links_of(&hosts[0]));
    hosts[1].start_links();
    gets_what_landed_and_the_rest(&subscriber, first);
    nothing_more(&map.publisher, &[&subscriber]);
}

#[test]
fn links_that_die_where_history_comes_from_are_waited_for() {
    let mut hosts = hosts(2, SLOW);
    let there = hosts[1].node("late");
    let (map, subscriber) = on_its_way(&hosts, &there, Late::Latest);
    hosts[0].kill_links();
    hosts[0].start_links();
    gets(&subscriber, 4..5);
    nothing_more(&map.publisher, &[&subscriber]);
}

#[test]
fn a_link_that_brings_no_history_for_long_keeps_nobody_waiting() {
    let hosts = hosts(2, SLOW);
    let there = hosts[1].node("late");
    let (map, subscriber) = on_its_way(&hosts, &there, Late::Latest);
    let first = receive(&subscriber).tag();
    resume(links_of(&hosts[0]));
    gets_what_landed_and_the_rest(&subscriber, first);
    nothing_more(&map.publisher, &[&subscriber]);
}
